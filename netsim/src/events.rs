//! The queue of events, in the order of their times.
//!
//! Time is cut into spans of `SPAN` bits of picoseconds. The events of the current span, and of those before it, are
//! in a heap, which is small; later ones lie unsorted on wheels of `SLOTS` slots. A slot of the first wheel is a span, and
//! one of each further wheel is a whole turn of the wheel before. When a slot's time comes, its events go to the wheel
//! before, or to the heap: an event moves once for each wheel, however many others wait.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::time::Time;

/// Bits of a time within a span: 2 ns.
const SPAN: u32 = 11;

/// Bits of a slot's number.
const BITS: u32 = 8;

/// Slots of a wheel.
const SLOTS: usize = 1 << BITS;

/// Wheels that all times need.
const WHEELS: usize = (u64::BITS - SPAN).div_ceil(BITS) as usize;

/// Things that will happen: by time, and of one time in the order in which they were decided.
#[derive(Debug)]
pub struct Events<E> {
    /// The events up to the current span, that included.
    heap: BinaryHeap<Entry<E>>,
    /// The number of the current span.
    span: u64,
    wheels: [Wheel<E>; WHEELS],
    next: u64,
    count: usize,
}

#[derive(Debug)]
struct Entry<E> {
    at: Time,
    number: u64,
    event: E,
}

/// Events that have the upper bits of the current span's number, and greater ones below.
#[derive(Debug)]
struct Wheel<E> {
    slots: Vec<Vec<Entry<E>>>,
    /// The slots that are not empty, a bit each.
    taken: [u64; SLOTS / 64],
}

impl<E> Default for Events<E> {
    fn default() -> Self {
        let wheels = core::array::from_fn(|_| Wheel::default());
        Self { heap: BinaryHeap::new(), span: 0, wheels, next: 0, count: 0 }
    }
}

impl<E> Default for Wheel<E> {
    fn default() -> Self {
        Self { slots: (0..SLOTS).map(|_| Vec::new()).collect(), taken: [0; SLOTS / 64] }
    }
}

impl<E> Wheel<E> {
    fn put(&mut self, slot: usize, entry: Entry<E>) {
        self.slots[slot].push(entry);
        self.taken[slot / 64] |= 1 << (slot % 64);
    }

    fn first(&self) -> Option<usize> {
        let word = self.taken.iter().position(|word| *word != 0)?;
        Some(word * 64 + self.taken[word].trailing_zeros() as usize)
    }

    fn take(&mut self, slot: usize) -> Vec<Entry<E>> {
        self.taken[slot / 64] &= !(1 << (slot % 64));
        std::mem::take(&mut self.slots[slot])
    }
}

impl<E> Events<E> {
    /// Adds an event at a time.
    pub fn push(&mut self, at: Time, event: E) {
        self.put(Entry { at, number: self.next, event });
        self.next += 1;
        self.count += 1;
    }

    /// Goes on to the next span that has events and does not begin after `until`, if none are left of the current one. Says
    /// whether it did.
    pub fn advance(&mut self, until: Time) -> bool {
        let is_over = self.heap.is_empty();
        while self.heap.is_empty() && self.turn(until) {}
        is_over && !self.heap.is_empty()
    }

    /// The events up to the current span, that included, in no order.
    pub fn coming(&self) -> impl Iterator<Item = &E> {
        self.heap.iter().map(|entry| &entry.event)
    }

    /// The next thing, if its time is not after `until`.
    pub fn pop(&mut self, until: Time) -> Option<(Time, E)> {
        self.advance(until);
        if self.heap.peek()?.at > until {
            return None;
        }
        self.count -= 1;
        self.heap.pop().map(|entry| (entry.at, entry.event))
    }

    /// How many things will happen.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether nothing will.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn put(&mut self, entry: Entry<E>) {
        let span = entry.at.0 >> SPAN;
        if span <= self.span {
            return self.heap.push(entry);
        }
        let wheel = (span ^ self.span).ilog2() / BITS;
        let slot = (span >> (wheel * BITS)) as usize % SLOTS;
        self.wheels[wheel as usize].put(slot, entry);
    }

    /// Goes on to the next slot that has events, if it does not begin after `until`, and puts those where they belong from
    /// then on. Says whether there was one.
    fn turn(&mut self, until: Time) -> bool {
        // All of a wheel come before all of the next one.
        let first = |(wheel, it): (u32, &Wheel<E>)| Some((wheel, it.first()?));
        let Some((wheel, slot)) = (0..).zip(&self.wheels).find_map(first) else { return false };
        let shift = wheel * BITS;
        let above = self.span >> (shift + BITS) << BITS;
        let span = (above | slot as u64) << shift;
        if span > until.0 >> SPAN {
            return false;
        }
        self.span = span;
        let entries = self.wheels[wheel as usize].take(slot);
        if wheel == 0 {
            // The heap is empty, and takes them all in at once; the slot keeps the heap's memory.
            let empty = std::mem::replace(&mut self.heap, entries.into()).into_vec();
            self.wheels[0].slots[slot] = empty;
        } else {
            entries.into_iter().for_each(|entry| self.put(entry));
        }
        true
    }
}

/// The heap gives the greatest, which is the earliest.
impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl<E> Eq for Entry<E> {}

#[cfg(test)]
mod tests {
    use trial::rng::Rng;

    use super::*;

    #[test]
    fn events_of_one_time_happen_in_the_order_in_which_they_were_decided() {
        let mut events = Events::default();
        for (at, event) in [(5, 'c'), (3, 'a'), (5, 'd'), (3, 'b'), (9, 'e')] {
            events.push(Time(at), event);
        }
        let order: String =
            std::iter::from_fn(|| events.pop(Time(5))).map(|(_, event)| event).collect();
        assert_eq!(order, "abcd");
        assert_eq!(events.len(), 1);
    }

    #[test]
    fn a_span_begins_when_the_one_before_is_over_and_has_events_in_time() {
        let mut events = Events::default();
        let span = 1 << SPAN;
        for (at, event) in [(span, 'a'), (2 * span - 1, 'b'), (9 * span, 'c')] {
            events.push(Time(at), event);
        }
        assert!(!events.advance(Time(span - 1)) && events.coming().next().is_none());
        assert!(events.advance(Time(span)) && events.coming().count() == 2);
        for event in ['a', 'b'] {
            assert!(!events.advance(Time::NEVER));
            assert_eq!(events.pop(Time::NEVER).unwrap().1, event);
        }
        assert!(!events.advance(Time(9 * span - 1)) && events.advance(Time(9 * span)));
        assert_eq!(events.coming().collect::<Vec<_>>(), [&'c']);
    }

    /// Times near and far, up to the last, and some before the current one, in any order.
    #[test]
    fn events_happen_in_the_order_of_their_times_however_far_they_are() {
        let (mut rng, mut now) = (Rng::new(1), Time(0));
        let (mut events, mut waiting) = (Events::default(), std::collections::BTreeSet::new());
        for number in 0..200_000_u64 {
            let (far, wait) = (1 << rng.below(63), 1 << rng.below(40));
            if rng.chance(5_000) {
                let at = match rng.below(8) {
                    0 => now,
                    1 => Time(now.0.saturating_sub(rng.below(10_000))),
                    _ => now.after(rng.below(far)),
                };
                let at = if rng.chance(10) { Time::NEVER } else { at };
                events.push(at, number);
                waiting.insert((at, number));
            } else {
                let until = now.after(rng.below(wait));
                let first = waiting.first().copied().filter(|(at, _)| *at <= until);
                assert_eq!(events.pop(until), first);
                first.iter().for_each(|it| assert!(waiting.remove(it)));
                now = first.map_or(until, |(at, _)| at.max(now));
            }
            assert_eq!((events.len(), events.is_empty()), (waiting.len(), waiting.is_empty()));
        }
    }
}
