//! Timers of queue pairs: one deadline each, moved on almost every packet.
//!
//! A deadline that moves later costs nothing: the queue keeps the earlier entry, and when that
//! entry comes up it is put back at the deadline of that moment. So the queue sees about one
//! operation per QP and timeout, not per packet, and there is never a scan over all QPs.
//!
//! Before a sleep such entries are put right ([`Timers::settle_first`]): waking for one is work for
//! nothing, and having the kernel set a clock for one may cost more than the sleep.

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::types::Instant;

/// The timer of one queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Timer {
    /// When to fire.
    deadline: Option<Instant>,
    /// When the queue will look at this timer: not later than the deadline.
    scheduled: Option<Instant>,
}

/// The queue of timers.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<Entry>>,
}

/// An entry: when, and whose (slot and generation of the QP).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    at: Instant,
    slot: u32,
    generation: u32,
}

impl Timers {
    /// Moves the deadline of `timer`, which belongs to the QP of `slot` and `generation`.
    #[inline]
    pub(crate) fn set(
        &mut self,
        timer: &mut Timer,
        slot: u32,
        generation: u32,
        deadline: Option<Instant>,
    ) {
        timer.deadline = deadline;
        if let Some(at) = deadline {
            if timer.scheduled.is_none_or(|scheduled| at < scheduled) {
                timer.scheduled = Some(at);
                self.heap.push(Reverse(Entry { at, slot, generation }));
            }
        }
    }

    /// The earliest time at which the queue must be looked at.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse(entry)| entry.at)
    }

    /// Whose the first entry is: slot and generation.
    pub(crate) fn first(&self) -> Option<(u32, u32)> {
        self.heap.peek().map(|Reverse(entry)| (entry.slot, entry.generation))
    }

    /// Puts the first entry right if it comes up before the deadline of its `timer`, and says
    /// whether it had to; without a timer, the QP of that entry being gone, it goes.
    pub(crate) fn settle_first(&mut self, timer: Option<&mut Timer>) -> bool {
        let Some(Reverse(entry)) = self.heap.peek().copied() else { return false };
        let timer = timer.filter(|timer| timer.scheduled == Some(entry.at));
        if timer.as_ref().is_some_and(|timer| timer.deadline == Some(entry.at)) {
            return false;
        }
        self.heap.pop();
        if let Some(timer) = timer {
            timer.scheduled = None;
            let deadline = timer.deadline;
            self.set(timer, entry.slot, entry.generation, deadline);
        }
        true
    }

    /// The number of entries.
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    /// Takes the next entry that is due: time, slot, generation. The caller hands it to
    /// [`Timers::fire`] with the timer of that QP, if the QP still exists.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<(Instant, u32, u32)> {
        let Reverse(entry) = *self.heap.peek()?;
        if entry.at > now {
            return None;
        }
        self.heap.pop();
        Some((entry.at, entry.slot, entry.generation))
    }

    /// Whether the timer, whose entry at time `at` came up, fires now. It is disarmed if so.
    pub(crate) fn fire(
        &mut self,
        timer: &mut Timer,
        (at, slot, generation): (Instant, u32, u32),
        now: Instant,
    ) -> bool {
        if timer.scheduled != Some(at) {
            return false;
        }
        timer.scheduled = None;
        match timer.deadline {
            Some(deadline) if deadline <= now => {
                timer.deadline = None;
                true
            }
            deadline => {
                self.set(timer, slot, generation, deadline);
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(timers: &mut Timers, timer: &mut Timer, now: u64) -> bool {
        let mut fired = false;
        while let Some(entry) = timers.pop_due(Instant(now)) {
            fired |= timers.fire(timer, entry, Instant(now));
        }
        fired
    }

    #[test]
    fn a_deadline_that_moves_later_fires_only_then() {
        let (mut timers, mut timer) = (Timers::default(), Timer::default());
        timers.set(&mut timer, 0, 0, Some(Instant(10)));
        timers.set(&mut timer, 0, 0, Some(Instant(30)));
        assert_eq!(timers.heap.len(), 1);
        assert!(!due(&mut timers, &mut timer, 10));
        assert_eq!(timers.next(), Some(Instant(30)));
        assert!(!due(&mut timers, &mut timer, 29));
        assert!(due(&mut timers, &mut timer, 31));
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn a_deadline_that_moves_earlier_fires_once() {
        let (mut timers, mut timer) = (Timers::default(), Timer::default());
        timers.set(&mut timer, 0, 0, Some(Instant(30)));
        timers.set(&mut timer, 0, 0, Some(Instant(10)));
        assert!(due(&mut timers, &mut timer, 10));
        assert!(!due(&mut timers, &mut timer, 40));
    }

    #[test]
    fn a_cancelled_deadline_does_not_fire() {
        let (mut timers, mut timer) = (Timers::default(), Timer::default());
        timers.set(&mut timer, 0, 0, Some(Instant(10)));
        timers.set(&mut timer, 0, 0, None);
        assert!(!due(&mut timers, &mut timer, 100));
        timers.set(&mut timer, 0, 0, Some(Instant(110)));
        assert!(due(&mut timers, &mut timer, 110));
    }

    #[test]
    fn settled_entries_are_deadlines() {
        let mut timers = Timers::default();
        let mut of = [Timer::default(); 4];
        for (slot, timer) in (0..).zip(&mut of) {
            timers.set(timer, slot, 0, Some(Instant(10 + u64::from(slot))));
        }
        timers.set(&mut of[0], 0, 0, Some(Instant(40)));
        timers.set(&mut of[1], 1, 0, None);
        timers.set(&mut of[3], 3, 0, Some(Instant(5)));
        timers.set(&mut of[3], 3, 0, Some(Instant(30)));
        // The QP of slot 2 is gone.
        while let Some((slot, _)) = timers.first() {
            let timer = Some(&mut of[slot as usize]).filter(|_| slot != 2);
            if !timers.settle_first(timer) {
                break;
            }
        }
        assert_eq!(timers.next(), Some(Instant(30)));
        assert_eq!(timers.len(), 2);
        assert!(due(&mut timers, &mut of[3], 30));
        assert!(due(&mut timers, &mut of[0], 40));
        timers.set(&mut of[1], 1, 0, Some(Instant(50)));
        assert_eq!(timers.next(), Some(Instant(50)));
    }
}
