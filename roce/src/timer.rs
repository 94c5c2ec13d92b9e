//! Timers, by slot: those of queue pairs have one deadline each, moved on almost every packet.
//!
//! A deadline that moves later costs nothing: the queue keeps the earlier time, and when that comes
//! up the entry is put back at the deadline of that moment. So the queue sees about one operation per
//! QP and timeout, not per packet, and there is never a scan over all QPs. A deadline earlier than
//! its entry moves the entry: each slot always has one.
//!
//! Before a sleep entries that lie before their deadlines are put right ([`Timers::settle`]):
//! waking for one is work for nothing, and having the kernel set a clock for one may cost more than
//! the sleep.

use crate::param;
use crate::types::Instant;

/// The end of time: a deadline there never comes.
const NEVER: Instant = Instant(u64::MAX);

/// The timer of one queue pair.
#[derive(Clone, Copy, Debug)]
struct Timer {
    /// When to fire.
    deadline: Instant,
    /// When the queue will look at this timer: not later than the deadline.
    scheduled: Instant,
    /// Where its entry stands in the heap.
    place: usize,
}

/// The timers of all queue pairs of a port, by slot, and the queue of them.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    timers: Vec<Timer>,
    /// A binary heap, the earliest entry first, of one entry for each timer.
    heap: Vec<Entry>,
}

/// An entry: when, and the slot whose timer.
#[derive(Clone, Copy, Debug)]
struct Entry {
    at: Instant,
    slot: u32,
}

/// An entry that came up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    /// The slot of the queue pair.
    pub slot: u32,
    /// When the queue was to look at it.
    pub at: Instant,
    /// Whether its deadline has come, too; then the timer is disarmed.
    pub fires: bool,
}

impl Timers {
    /// Bytes of a timer and its entry.
    pub(crate) const BYTES_OF_EACH: usize = size_of::<Timer>() + size_of::<Entry>();

    /// Adds the timer of `slot`, which is the number of slots so far.
    pub(crate) fn add(&mut self, slot: u32) {
        self.timers.push(Timer { deadline: NEVER, scheduled: NEVER, place: self.heap.len() });
        self.heap.push(Entry { at: NEVER, slot });
    }

    /// Moves the deadline of the timer of `slot`.
    #[inline]
    pub(crate) fn set(&mut self, slot: u32, deadline: Option<Instant>) {
        let Some(timer) = self.timers.get_mut(slot as usize) else { return };
        let at = deadline.unwrap_or(NEVER);
        timer.deadline = at;
        if at < timer.scheduled {
            let place = timer.place;
            self.sift_up(place, Entry { at, slot });
        }
    }

    /// The earliest time at which the queue must be looked at.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.heap.first().map(|entry| entry.at).filter(|at| *at != NEVER)
    }

    /// The number of entries.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    /// Puts an entry first whose deadline is its time, or one nearer to that.
    pub(crate) fn settle(&mut self) {
        for _ in 0..param::TIMER_TURN {
            let Some(&Entry { at, slot }) = self.heap.first() else { break };
            let deadline = self.deadline(slot);
            if deadline == at {
                break;
            }
            self.sift_down(0, Entry { at: deadline, slot });
        }
    }

    /// Takes the next entry that is due. One whose deadline is later is put back there.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<Due> {
        let Entry { at, slot } = *self.heap.first()?;
        if at > now || at == NEVER {
            return None;
        }
        let fires = self.deadline(slot) <= now;
        if fires {
            self.set(slot, None);
        }
        self.sift_down(0, Entry { at: self.deadline(slot), slot });
        Some(Due { slot, at, fires })
    }

    fn deadline(&self, slot: u32) -> Instant {
        self.timers.get(slot as usize).map_or(NEVER, |timer| timer.deadline)
    }

    /// Puts an entry into `place`, or above it where those are later.
    fn sift_up(&mut self, mut place: usize, entry: Entry) {
        while let Some(above) = place.checked_sub(1).map(|before| before / 2) {
            match self.heap.get(above) {
                Some(&parent) if parent.at > entry.at => self.put(place, parent),
                _ => break,
            }
            place = above;
        }
        self.put(place, entry);
    }

    /// Puts an entry into `place`, or below it where those are earlier.
    fn sift_down(&mut self, mut place: usize, entry: Entry) {
        loop {
            let mut below = place.wrapping_mul(2).wrapping_add(1);
            let Some(mut child) = self.heap.get(below) else { break };
            if let Some(right) = self.heap.get(below.wrapping_add(1)) {
                if right.at < child.at {
                    (below, child) = (below.wrapping_add(1), right);
                }
            }
            if child.at >= entry.at {
                break;
            }
            self.put(place, *child);
            place = below;
        }
        self.put(place, entry);
    }

    fn put(&mut self, place: usize, entry: Entry) {
        if let Some(here) = self.heap.get_mut(place) {
            *here = entry;
        }
        if let Some(timer) = self.timers.get_mut(entry.slot as usize) {
            timer.scheduled = entry.at;
            timer.place = place;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_slots(slots: u32) -> Timers {
        let mut timers = Timers::default();
        (0..slots).for_each(|slot| timers.add(slot));
        timers
    }

    /// The slots whose timers fire up to `now`.
    fn fired(timers: &mut Timers, now: u64) -> Vec<u32> {
        let due = core::iter::from_fn(|| timers.pop_due(Instant(now)));
        due.filter(|due| due.fires).map(|due| due.slot).collect()
    }

    #[test]
    fn a_deadline_that_moves_later_fires_only_then() {
        let mut timers = with_slots(1);
        timers.set(0, Some(Instant(10)));
        timers.set(0, Some(Instant(30)));
        assert_eq!(timers.next(), Some(Instant(10)));
        assert_eq!(fired(&mut timers, 10), []);
        assert_eq!(timers.next(), Some(Instant(30)));
        assert_eq!(fired(&mut timers, 29), []);
        assert_eq!(fired(&mut timers, 31), [0]);
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn a_deadline_that_moves_earlier_fires_once_and_leaves_nothing_behind() {
        let mut timers = with_slots(1);
        for _ in 0..1000 {
            timers.set(0, Some(Instant(30)));
            timers.set(0, Some(Instant(10)));
            assert_eq!(fired(&mut timers, 10), [0]);
            assert_eq!(timers.next(), None);
            assert_eq!(fired(&mut timers, 40), []);
        }
    }

    #[test]
    fn a_cancelled_deadline_does_not_fire() {
        let mut timers = with_slots(1);
        timers.set(0, Some(Instant(10)));
        timers.set(0, None);
        assert_eq!(fired(&mut timers, 100), []);
        timers.set(0, Some(Instant(110)));
        assert_eq!(fired(&mut timers, 110), [0]);
    }

    #[test]
    fn settled_entries_are_deadlines() {
        let mut timers = with_slots(4);
        for slot in 0..4 {
            timers.set(slot, Some(Instant(10 + u64::from(slot))));
        }
        timers.set(0, Some(Instant(40)));
        timers.set(1, None);
        timers.set(2, None);
        timers.set(3, Some(Instant(5)));
        timers.set(3, Some(Instant(30)));
        timers.settle();
        assert_eq!(timers.next(), Some(Instant(30)));
        assert_eq!(fired(&mut timers, 30), [3]);
        assert_eq!(fired(&mut timers, 40), [0]);
        timers.set(1, Some(Instant(50)));
        assert_eq!(timers.next(), Some(Instant(50)));
    }

    /// Every timer fires at its deadline, independently of the others, and knows its one entry.
    #[test]
    fn timers_that_move_at_random_fire_when_they_should() {
        const SLOTS: u32 = 100;
        let mut timers = with_slots(SLOTS);
        let mut deadlines = [None::<u64>; SLOTS as usize];
        let mut random = 1_u32;
        let mut draw = |below: u32| {
            random ^= random << 13;
            random ^= random >> 17;
            random ^= random << 5;
            random % below
        };
        for now in 0..20_000 {
            for _ in 0..3 {
                let slot = draw(SLOTS);
                let deadline = (draw(8) != 0).then(|| now + 1 + u64::from(draw(200)));
                deadlines[slot as usize] = deadline;
                timers.set(slot, deadline.map(Instant));
            }
            if draw(4) == 0 {
                timers.settle();
                let first = deadlines.iter().flatten().min();
                assert_eq!(timers.next(), first.copied().map(Instant), "at {now}");
            }
            let mut fired = fired(&mut timers, now);
            fired.sort_unstable();
            let due = (0..SLOTS).filter(|&slot| deadlines[slot as usize] == Some(now));
            assert_eq!(fired, due.collect::<Vec<_>>(), "at {now}");
            fired.iter().for_each(|&slot| deadlines[slot as usize] = None);
            let places = timers.timers.iter().map(|timer| timers.heap[timer.place].slot);
            assert!(places.eq(0..SLOTS), "at {now}");
        }
    }
}
