//! The queue of events, in the order of their times.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::time::Time;

/// Things that will happen: by time, and of one time in the order in which they were decided.
#[derive(Debug)]
pub struct Events<E> {
    heap: BinaryHeap<Entry<E>>,
    next: u64,
}

#[derive(Debug)]
struct Entry<E> {
    at: Time,
    number: u64,
    event: E,
}

impl<E> Default for Events<E> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), next: 0 }
    }
}

impl<E> Events<E> {
    /// Adds an event at a time.
    pub fn push(&mut self, at: Time, event: E) {
        self.heap.push(Entry { at, number: self.next, event });
        self.next += 1;
    }

    /// The next thing, if its time is not after `until`.
    pub fn pop(&mut self, until: Time) -> Option<(Time, E)> {
        if self.heap.peek()?.at > until {
            return None;
        }
        self.heap.pop().map(|entry| (entry.at, entry.event))
    }

    /// How many things will happen.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether nothing will.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
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
}
