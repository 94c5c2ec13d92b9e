//! Free spans of an address space: first fit, with a congruence, coalescing what is given back.
//!
//! Shared by the arena of IOVAs and by the allocator inside a client's ring memory.

use std::collections::BTreeMap;

/// A range of addresses or offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// First byte.
    pub start: u64,
    /// Bytes, at least one.
    pub length: u64,
}

/// What of an address space is free.
#[derive(Debug, Default)]
pub struct FreeSpans {
    // start -> length; spans never touch each other.
    free: BTreeMap<u64, u64>,
}

impl FreeSpans {
    /// A space of which all of `whole` is free.
    #[must_use]
    pub fn new(whole: Span) -> Self {
        Self { free: BTreeMap::from([(whole.start, whole.length)]) }
    }

    /// Takes the first free span of `length` bytes whose start is `remainder` modulo `modulus`.
    ///
    /// `modulus` is a power of two. `None` when no free span is large enough.
    pub fn take(&mut self, length: u64, modulus: u64, remainder: u64) -> Option<Span> {
        let mask = modulus.checked_sub(1)?;
        let (hole, hole_length, start) = self.free.iter().find_map(|(&hole, &hole_length)| {
            let skip = remainder.wrapping_sub(hole) & mask;
            let needed = skip.checked_add(length)?;
            (needed <= hole_length).then_some((hole, hole_length, hole.wrapping_add(skip)))
        })?;
        self.free.remove(&hole);
        let before = start.wrapping_sub(hole);
        if before > 0 {
            self.free.insert(hole, before);
        }
        let after = hole_length.wrapping_sub(before).wrapping_sub(length);
        if after > 0 {
            self.free.insert(start.wrapping_add(length), after);
        }
        Some(Span { start, length })
    }

    /// Gives back a span that [`Self::take`] returned, merging it with its neighbours.
    pub fn give(&mut self, span: Span) {
        let Span { mut start, mut length } = span;
        match self.free.range(..start).next_back() {
            Some((&before, &before_length)) if before.wrapping_add(before_length) == start => {
                self.free.remove(&before);
                start = before;
                length = length.wrapping_add(before_length);
            }
            _ => {}
        }
        if let Some(after_length) = self.free.remove(&start.wrapping_add(length)) {
            length = length.wrapping_add(after_length);
        }
        self.free.insert(start, length);
    }

    /// Bytes free in all.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.free.values().fold(0, |sum, &length| sum.saturating_add(length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> FreeSpans {
        FreeSpans::new(Span { start: 0x1000, length: 0x10000 })
    }

    #[test]
    fn a_span_is_congruent_and_disjoint_from_the_others() {
        let mut spans = space();
        let a = spans.take(0x1000, 0x4000, 0x3000).unwrap();
        assert_eq!(a, Span { start: 0x3000, length: 0x1000 });
        let b = spans.take(0x2000, 0x1000, 0).unwrap();
        assert_eq!(b, Span { start: 0x1000, length: 0x2000 });
        let c = spans.take(0x1000, 0x1000, 0).unwrap();
        assert_eq!(c.start, 0x4000);
    }

    #[test]
    fn what_is_given_back_in_any_order_becomes_one_span_again() {
        let mut spans = space();
        let mut taken: Vec<_> = (0..16).map(|_| spans.take(0x1000, 0x1000, 0).unwrap()).collect();
        assert_eq!(spans.take(1, 1, 0), None);
        assert_eq!(spans.free_bytes(), 0);
        for i in [3, 0, 7, 1, 11, 2, 0, 3, 5, 1, 4, 0, 2, 1, 0, 0] {
            let at = i % taken.len();
            spans.give(taken.swap_remove(at));
        }
        let whole = spans.take(0x10000, 0x1000, 0).unwrap();
        assert_eq!(whole, Span { start: 0x1000, length: 0x10000 });
    }

    #[test]
    fn a_length_near_the_end_of_the_numbers_is_no_fit() {
        assert_eq!(space().take(u64::MAX, 0x1000, 0xfff), None);
    }
}
