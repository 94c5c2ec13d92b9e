//! Free spans of an address space: best fit, with a congruence, coalescing returned spans.
//!
//! Shared by the arena of IOVAs and by the allocator inside a client's ring memory. The cost of
//! taking a span does not grow with the number of free ones.

use std::collections::{BTreeMap, BTreeSet};

/// Free spans that may be too small by their congruence and are looked at all the same, lest a larger
/// one be broken.
const TRIES: usize = 16;

/// A range of addresses or offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// First byte.
    pub start: u64,
    /// Bytes, at least one.
    pub length: u64,
}

/// The free spans of an address space.
#[derive(Debug, Default)]
pub struct FreeSpans {
    // start -> length; spans never touch each other.
    free: BTreeMap<u64, u64>,
    // The same as (length, start).
    by_length: BTreeSet<(u64, u64)>,
    free_bytes: u64,
}

impl FreeSpans {
    /// A space of which all of `whole` is free.
    #[must_use]
    pub fn new(whole: Span) -> Self {
        let mut spans = Self::default();
        spans.insert(whole.start, whole.length);
        spans
    }

    fn insert(&mut self, start: u64, length: u64) {
        self.free.insert(start, length);
        self.by_length.insert((length, start));
        self.free_bytes = self.free_bytes.saturating_add(length);
    }

    fn remove(&mut self, start: u64) -> Option<u64> {
        let length = self.free.remove(&start)?;
        self.by_length.remove(&(length, start));
        self.free_bytes = self.free_bytes.saturating_sub(length);
        Some(length)
    }

    /// Takes the smallest free span of `length` bytes whose start is `remainder` modulo `modulus`.
    ///
    /// `modulus` is a power of two. `None` when no free span is large enough for any start; of
    /// those that are barely large enough, the first few are tried.
    pub fn take(&mut self, length: u64, modulus: u64, remainder: u64) -> Option<Span> {
        let mask = modulus.checked_sub(1)?;
        let skip = |hole: u64| remainder.wrapping_sub(hole) & mask;
        let fits = |&&(bytes, hole): &&(u64, u64)| {
            skip(hole).checked_add(length).is_some_and(|needed| needed <= bytes)
        };
        let sure = length.checked_add(mask)?;
        let mut few = self.by_length.range((length, 0)..).take(TRIES);
        let found = few.find(fits).or_else(|| self.by_length.range((sure, 0)..).next());
        let &(hole_length, hole) = found?;
        let span = Span { start: hole.wrapping_add(skip(hole)), length };
        self.cut(Span { start: hole, length: hole_length }, span);
        Some(span)
    }

    /// Takes just that span; `None` where not all of it is free.
    pub fn take_at(&mut self, span: Span) -> Option<Span> {
        let (&start, &length) = self.free.range(..=span.start).next_back()?;
        let end = span.start.checked_add(span.length)?;
        if end > start.saturating_add(length) {
            return None;
        }
        self.cut(Span { start, length }, span);
        Some(span)
    }

    /// Takes a span out of a free one that it lies in.
    fn cut(&mut self, hole: Span, span: Span) {
        self.remove(hole.start);
        let before = span.start.wrapping_sub(hole.start);
        if before > 0 {
            self.insert(hole.start, before);
        }
        let after = hole.length.wrapping_sub(before).wrapping_sub(span.length);
        if after > 0 {
            self.insert(span.start.wrapping_add(span.length), after);
        }
    }

    /// Gives back a span that [`Self::take`] returned, merging it with its neighbours.
    pub fn give(&mut self, span: Span) {
        let Span { mut start, mut length } = span;
        match self.free.range(..start).next_back() {
            Some((&before, &before_length)) if before.wrapping_add(before_length) == start => {
                self.remove(before);
                start = before;
                length = length.wrapping_add(before_length);
            }
            _ => {}
        }
        if let Some(after_length) = self.remove(start.wrapping_add(length)) {
            length = length.wrapping_add(after_length);
        }
        self.insert(start, length);
    }

    /// Bytes free in all.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.free_bytes
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

    #[test]
    fn the_smallest_span_that_is_large_enough_is_broken() {
        let mut spans = space();
        let all: Vec<_> = (0..16).map(|_| spans.take(0x1000, 0x1000, 0).unwrap()).collect();
        // Free are three pages at 0x3000, one at 0x8000, two at 0xc000.
        for at in [2, 3, 4, 7, 11, 12] {
            spans.give(all[at]);
        }
        assert_eq!(spans.take(0x1000, 0x1000, 0).unwrap().start, 0x8000);
        assert_eq!(spans.take(0x2000, 0x1000, 0).unwrap().start, 0xc000);
        assert_eq!(spans.take(0x1000, 0x4000, 0).unwrap().start, 0x4000);
        assert_eq!(spans.free_bytes(), 0x2000);
        assert_eq!(spans.take(0x2000, 0x1000, 0), None, "0x3000 and 0x5000 are no neighbours");
    }

    #[test]
    fn many_small_spans_hide_no_large_one() {
        // Every other page is free, and none of them has the congruence; and there is one large span.
        let mut spans = FreeSpans::default();
        (0..10_000).for_each(|n| spans.give(Span { start: (2 * n + 1) << 12, length: 0x1000 }));
        spans.give(Span { start: 1 << 30, length: 0x3000 });
        assert_eq!(spans.take(0x1000, 0x2000, 0).unwrap().start, 1 << 30);
        assert_eq!(spans.free.len(), 10_001);
    }
}
