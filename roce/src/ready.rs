//! The lines of queue pairs that may have a packet to send: one for each priority, and none waits for another.
//!
//! A slot stands in a line once, and leaves it when its turn has come, even if another queue pair has the slot by then:
//! no slot is searched for among the others. Within a priority queue pairs take turns of [`param::TRANSMIT_QUANTUM`]
//! frames, and so do priorities.

use std::collections::VecDeque;

use crate::param;
use crate::priority::{PRIORITIES, Priorities, bit};

/// The lines of a port.
#[derive(Debug, Default)]
pub(crate) struct Ready {
    lines: [VecDeque<u32>; PRIORITIES],
    /// The lines that are not empty, a bit each.
    waiting: u8,
    /// The lines that each slot stands in.
    standing: Vec<u8>,
    /// The priority whose turn it is.
    priority: u8,
    /// Frames that it may still emit, where others wait.
    rest_of_priority: u32,
    /// Frames that the first in its line may still emit.
    rest: u32,
}

impl Ready {
    /// Bytes of a slot that stands in all lines.
    pub(crate) const BYTES_OF_EACH: usize = PRIORITIES * size_of::<u32>() + size_of::<u8>();

    /// Adds a slot, whose number is that of slots so far.
    pub(crate) fn add(&mut self) {
        self.standing.push(0);
    }

    /// Puts a slot into the line of a priority, 0 to 7.
    #[inline]
    pub(crate) fn stand(&mut self, slot: u32, priority: u8) {
        let bit = bit(priority);
        let Some(standing) = self.standing.get_mut(slot as usize) else { return };
        if *standing & bit != 0 {
            return;
        }
        *standing |= bit;
        self.waiting |= bit;
        if let Some(line) = self.lines.get_mut(usize::from(priority)) {
            line.push_back(slot);
        }
    }

    /// Whether a slot stands in any line.
    pub(crate) fn stands(&self, slot: u32) -> bool {
        self.standing.get(slot as usize).is_some_and(|lines| *lines != 0)
    }

    /// The slot whose turn it is among those of some priorities, and its priority.
    #[inline]
    pub(crate) fn first(&mut self, open: Priorities) -> Option<(u32, u8)> {
        let waiting = Priorities(self.waiting & open.0);
        if waiting.0 == 0 {
            return None;
        }
        if self.rest == 0 || self.rest_of_priority == 0 || !waiting.has(self.priority) {
            self.turn(waiting);
        }
        let line = self.lines.get(usize::from(self.priority))?;
        line.front().map(|slot| (*slot, self.priority))
    }

    /// It is another's turn.
    #[cold]
    fn turn(&mut self, waiting: Priorities) {
        if let Some(line) = self.lines.get_mut(usize::from(self.priority)) {
            if self.rest == 0 && !line.is_empty() {
                line.rotate_left(1);
                self.rest = param::TRANSMIT_QUANTUM;
            }
        }
        if self.rest_of_priority != 0 && waiting.has(self.priority) {
            return;
        }
        let before = self.priority;
        // The next one behind it; itself, if it is alone.
        let behind = waiting.0.rotate_right(u32::from(before).wrapping_add(1));
        let steps = behind.trailing_zeros().wrapping_add(1);
        self.priority = u32::from(before).wrapping_add(steps) as u8 & 7;
        self.rest_of_priority = param::TRANSMIT_QUANTUM;
        if self.priority != before {
            self.rest = param::TRANSMIT_QUANTUM;
        }
    }

    /// The first has emitted a frame.
    #[inline]
    pub(crate) fn emitted(&mut self) {
        self.rest = self.rest.wrapping_sub(1);
        self.rest_of_priority = self.rest_of_priority.wrapping_sub(1);
    }

    /// The first lets the others of its priority go first.
    pub(crate) fn yields(&mut self) {
        self.rest = 0;
    }

    /// The first leaves its line: it has nothing to send.
    #[inline]
    pub(crate) fn leaves(&mut self) {
        let bit = bit(self.priority);
        let Some(line) = self.lines.get_mut(usize::from(self.priority)) else { return };
        let slot = line.pop_front();
        if line.is_empty() {
            self.waiting &= !bit;
        }
        if let Some(standing) = slot.and_then(|slot| self.standing.get_mut(slot as usize)) {
            *standing &= !bit;
        }
        self.rest = param::TRANSMIT_QUANTUM;
    }

    /// How many stand in all lines.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.lines.iter().map(VecDeque::len).sum()
    }

    /// The last in the line of a priority.
    #[cfg(test)]
    pub(crate) fn last(&self, priority: usize) -> Option<u32> {
        self.lines[priority].back().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUANTUM: usize = param::TRANSMIT_QUANTUM as usize;

    fn ready(slots: u32) -> Ready {
        let mut ready = Ready::default();
        (0..slots).for_each(|_| ready.add());
        ready
    }

    /// The slots whose turn each of so many frames is.
    fn turns(ready: &mut Ready, open: Priorities, frames: usize) -> Vec<u32> {
        let one = |_| {
            let (slot, _) = ready.first(open).unwrap();
            ready.emitted();
            slot
        };
        (0..frames).map(one).collect()
    }

    /// RC-108.
    #[test]
    fn slots_of_a_priority_take_turns() {
        let mut ready = ready(3);
        (0..3).for_each(|slot| ready.stand(slot, 3));
        ready.stand(1, 3);
        let expected = [[0; QUANTUM], [1; QUANTUM], [2; QUANTUM], [0; QUANTUM]].concat();
        assert_eq!(turns(&mut ready, Priorities::ALL, 4 * QUANTUM), expected);
        for slot in [1, 2, 0] {
            assert_eq!(ready.first(Priorities::ALL), Some((slot, 3)));
            ready.leaves();
        }
        assert_eq!((ready.first(Priorities::ALL), ready.len()), (None, 0));
        assert!((0..3).all(|slot| !ready.stands(slot)));
    }

    /// RC-108.
    #[test]
    fn priorities_take_turns_however_many_slots_they_have() {
        let mut ready = ready(4);
        (0..3).for_each(|slot| ready.stand(slot, 7));
        ready.stand(3, 0);
        let turns = turns(&mut ready, Priorities::ALL, 60 * QUANTUM);
        for slot in 0..4 {
            let expected = if slot == 3 { 30 } else { 10 };
            assert_eq!(turns.iter().filter(|it| **it == slot).count(), expected * QUANTUM);
        }
    }

    /// RC-108.
    #[test]
    fn a_priority_that_is_not_open_holds_nobody_back() {
        let mut ready = ready(2);
        ready.stand(0, 3);
        ready.stand(1, 4);
        let open = Priorities::ALL.with(3, false);
        assert_eq!(turns(&mut ready, open, 3 * QUANTUM), [1; 3 * QUANTUM]);
        ready.first(open).unwrap();
        ready.leaves();
        assert_eq!(ready.first(open), None);
        assert!(ready.stands(0) && !ready.stands(1));
        assert_eq!(ready.first(Priorities::ALL), Some((0, 3)));
    }

    #[test]
    fn a_slot_stands_once_in_each_line() {
        let mut ready = ready(1);
        for _ in 0..3 {
            (0..8).for_each(|priority| ready.stand(0, priority));
        }
        assert_eq!(ready.len(), 8);
        let mut priorities = Vec::new();
        while let Some((_, priority)) = ready.first(Priorities::ALL) {
            priorities.push(priority);
            ready.leaves();
        }
        priorities.sort_unstable();
        assert!(priorities.into_iter().eq(0..8) && !ready.stands(0));
    }
}
