//! The arena of I/O virtual addresses of one card.
//!
//! One compact arena below 2^44, the shell's limit. A range of 2 MiB or more is congruent to the
//! virtual address it maps modulo 2 MiB, so that large TLB entries fit. Between two ranges lies a
//! page that is never mapped, so that a read or write past the end of one faults. A range that was
//! given back rests before it is used again: a late access meets nothing, not somebody's memory.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::spans::{FreeSpans, Span};

/// First address of the arena: above the addresses that platforms keep for interrupts and devices.
pub const ARENA_START: u64 = 1 << 32;
/// End of the arena: addresses on the shell have 44 bits.
pub const ARENA_END: u64 = 1 << 44;
/// How long a range rests.
pub const REST: Duration = Duration::from_secs(1);

const PAGE: u64 = 4096;
const LARGE_PAGE: u64 = 2 << 20;

/// A range of IOVAs in whole pages, given out by an [`Arena`] and to be given back to it.
#[derive(Debug, PartialEq, Eq)]
pub struct IovaRange {
    span: Span,
}

impl IovaRange {
    /// First address, a multiple of the page.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.span.start
    }

    /// Bytes that may be mapped, whole pages.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.span.length.saturating_sub(PAGE)
    }
}

/// The free, used and resting addresses of a card.
#[derive(Debug)]
pub struct Arena {
    free: FreeSpans,
    resting: VecDeque<(Instant, Span)>,
}

impl Arena {
    /// An arena of which all is free that lies in one of these ranges, first and last address.
    #[must_use]
    pub fn new(ranges: &[(u64, u64)]) -> Self {
        let mut free = FreeSpans::default();
        for &(first, last) in ranges {
            let start = first.max(ARENA_START).checked_next_multiple_of(PAGE).unwrap_or(ARENA_END);
            // The last page may be cut short.
            let end = last.saturating_add(1).min(ARENA_END) & !(PAGE - 1);
            if start < end {
                free.give(Span { start, length: end.wrapping_sub(start) });
            }
        }
        Self { free, resting: VecDeque::new() }
    }

    /// Bytes free in all.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.free.free_bytes()
    }

    /// Takes a range of at least `length` bytes, in whole pages and at least one, for memory that
    /// begins at virtual address `va`. `now` decides which ranges have rested.
    pub fn allocate(&mut self, length: u64, va: u64, now: Instant) -> Option<IovaRange> {
        self.settle(now);
        let length = length.max(1).checked_next_multiple_of(PAGE)?;
        let (modulus, remainder) =
            if length >= LARGE_PAGE { (LARGE_PAGE, va % LARGE_PAGE) } else { (PAGE, 0) };
        let span = self.free.take(length.checked_add(PAGE)?, modulus, remainder & !(PAGE - 1))?;
        Some(IovaRange { span })
    }

    /// Gives a range back, to rest from `now` on. Nothing may be mapped there any more.
    pub fn release(&mut self, range: IovaRange, now: Instant) {
        self.resting.push_back((now, range.span));
    }

    fn settle(&mut self, now: Instant) {
        while let Some(&(since, span)) = self.resting.front() {
            if now.saturating_duration_since(since) < REST {
                break;
            }
            self.resting.pop_front();
            self.free.give(span);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_ranges_are_congruent_to_the_virtual_address_modulo_2_mib() {
        let mut arena = Arena::new(&[(0, u64::MAX)]);
        let now = Instant::now();
        let small = arena.allocate(100, 0x7fff_1234_5000, now).unwrap();
        assert_eq!((small.start() % PAGE, small.length()), (0, PAGE));
        let va = 0x7f12_3456_7000;
        let large = arena.allocate(3 << 20, va, now).unwrap();
        assert_eq!(large.start() % LARGE_PAGE, va % LARGE_PAGE);
        assert_eq!(large.length(), 3 << 20);
    }

    #[test]
    fn only_what_the_kernel_lists_is_given_out() {
        let gap = (0xfee0_0000u64, 0xfeef_ffff);
        let mut arena = Arena::new(&[(0, gap.0 - 1), (gap.1 + 1, (1 << 33) + 0x17ff)]);
        assert_eq!(arena.free_bytes(), (1 << 32) + 0x1000);
        let now = Instant::now();
        assert_eq!(arena.allocate(1 << 33, 0, now), None);
        let all = arena.allocate(1 << 32, 0, now).unwrap();
        assert_eq!((all.start(), arena.free_bytes()), (ARENA_START, 0));
        assert_eq!(Arena::new(&[(0, ARENA_START - 1), (ARENA_END, u64::MAX)]).free_bytes(), 0);
    }

    #[test]
    fn a_guard_page_lies_between_neighbours() {
        let mut arena = Arena::new(&[(0, u64::MAX)]);
        let now = Instant::now();
        let a = arena.allocate(PAGE, 0, now).unwrap();
        let b = arena.allocate(PAGE, 0, now).unwrap();
        assert_eq!(b.start() - a.start(), 2 * PAGE);
    }

    #[test]
    fn a_range_rests_before_it_is_given_out_again() {
        let mut arena = Arena::new(&[(0, u64::MAX)]);
        let now = Instant::now();
        let a = arena.allocate(PAGE, 0, now).unwrap();
        let start = a.start();
        arena.release(a, now);
        assert_ne!(arena.allocate(PAGE, 0, now).unwrap().start(), start);
        assert_eq!(arena.allocate(PAGE, 0, now + REST).unwrap().start(), start);
    }

    #[test]
    fn what_does_not_fit_below_2_pow_44_is_refused() {
        let mut arena = Arena::new(&[(0, u64::MAX)]);
        let now = Instant::now();
        assert_eq!(arena.allocate(ARENA_END, 0, now), None);
        assert_eq!(arena.allocate(u64::MAX, 0, now), None);
        assert!(arena.allocate(ARENA_END / 2, 0, now).is_some());
    }
}
