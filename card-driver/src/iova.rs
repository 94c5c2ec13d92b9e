//! The arena of I/O virtual addresses of one card.
//!
//! One compact arena below 2^44, the shell's limit. A range of 2 MiB or more is congruent to the
//! virtual address it maps modulo 2 MiB, so that large TLB entries fit. Between two ranges lies a
//! page that is never mapped, so that a read or write past the end of one faults. A range that was
//! given back rests before it is used again, unless its addresses are needed before: a late access meets no memory.
//!
//! Every client with a place on the card has a guaranteed share of the addresses. Addresses beyond all
//! shares go to the first that asks.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::spans::{FreeSpans, Span};

/// First address of the arena: above the addresses that platforms keep for interrupts and devices.
pub const ARENA_START: u64 = 1 << 32;
/// End of the arena: addresses on the shell have 44 bits.
pub const ARENA_END: u64 = 1 << 44;
/// The time that a released range rests.
pub const REST: Duration = Duration::from_secs(1);
/// Ranges that have rested and become free with one allocation at most: they have many givers, and one allocator.
const RESTED: usize = 64;
/// Ranges that are woken with one allocation at most, where addresses run out.
const WOKEN: usize = 1024;

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

    /// The addresses that it takes, with the page behind it.
    #[must_use]
    pub fn span(&self) -> Span {
        self.span
    }

    /// Bytes of addresses that it takes, with the page behind it.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.span.length
    }
}

/// The free, used and resting addresses of a card.
#[derive(Debug)]
pub struct Arena {
    free: FreeSpans,
    resting: VecDeque<(Instant, Span)>,
    /// Bytes of each party's share.
    share: u64,
    /// Bytes beyond all shares, and how many of them are in use or lost.
    spare: u64,
    spare_used: u64,
    /// Bytes that are lost: without a user, and not given back.
    lost: u64,
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
        let spare = free.free_bytes();
        Self { free, resting: VecDeque::new(), share: 0, spare, spare_used: 0, lost: 0 }
    }

    /// Divides the free bytes among so many places: half of it or less, and `rings` bytes for each beside its share.
    pub fn divide(&mut self, places: u64, rings: u64) {
        let free = self.free.free_bytes();
        let parts = places.max(1).saturating_mul(2).checked_next_power_of_two();
        self.share = parts.and_then(|parts| free.checked_div(parts)).unwrap_or(0);
        let rings = rings.saturating_add(2 * LARGE_PAGE).saturating_mul(places).min(free / 4);
        let kept = self.share.saturating_mul(places).saturating_add(rings);
        self.spare = free.saturating_sub(kept);
    }

    /// The limit in bytes, at present, for a client that has `has` of them.
    #[must_use]
    pub fn limit(&self, has: u64) -> u64 {
        let left = self.spare.saturating_sub(self.spare_used);
        has.max(self.share).saturating_add(left)
    }

    /// Records that a client that had `before` bytes has `after`.
    pub fn note(&mut self, before: u64, after: u64) {
        let beyond = |bytes: u64| bytes.saturating_sub(self.share);
        let (before, after) = (beyond(before), beyond(after));
        self.spare_used = self.spare_used.saturating_sub(before).saturating_add(after);
    }

    /// Records that a range is out of use and cannot be released, unless [`Self::regain`] one day regains it.
    pub fn lose(&mut self, range: &IovaRange) {
        self.spare_used = self.spare_used.saturating_add(range.taken());
        self.lost = self.lost.saturating_add(range.length());
    }

    /// Gives a range back that was lost.
    pub fn regain(&mut self, range: IovaRange, now: Instant) {
        self.spare_used = self.spare_used.saturating_sub(range.taken());
        self.lost = self.lost.saturating_sub(range.length());
        self.release(range, now);
    }

    /// Bytes of the ranges that are lost.
    #[must_use]
    pub fn lost_bytes(&self) -> u64 {
        self.lost
    }

    /// Bytes free in all.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.free.free_bytes()
    }

    /// Takes a range of at least `length` bytes, in whole pages and at least one, for memory that
    /// begins at virtual address `va`. `now` decides which ranges have rested.
    ///
    /// After `None` there may be one the next time, while [`Self::has_resting`] says that there are more
    /// to be woken.
    pub fn allocate(&mut self, length: u64, va: u64, now: Instant) -> Option<IovaRange> {
        self.settle(now);
        let length = length.max(1).checked_next_multiple_of(PAGE)?;
        let (modulus, remainder) =
            if length >= LARGE_PAGE { (LARGE_PAGE, va % LARGE_PAGE) } else { (PAGE, 0) };
        let (length, remainder) = (length.checked_add(PAGE)?, remainder & !(PAGE - 1));
        for _ in 0..WOKEN {
            if let Some(span) = self.free.take(length, modulus, remainder) {
                return Some(IovaRange { span });
            }
            // Resting spans are used again when addresses run out, the longest-resting first.
            let (_, span) = self.resting.pop_front()?;
            self.free.give(span);
        }
        self.free.take(length, modulus, remainder).map(|span| IovaRange { span })
    }

    /// Takes just those addresses, if all of them are free: those of a range of an earlier arena of the card, where a
    /// program may still map memory.
    pub fn hold(&mut self, span: Span) -> Option<IovaRange> {
        self.free.take_at(span).map(|span| IovaRange { span })
    }

    /// Whether any range rests.
    #[must_use]
    pub fn has_resting(&self) -> bool {
        !self.resting.is_empty()
    }

    /// Gives a range back, to rest from `now` on. Nothing may be mapped there any more.
    pub fn release(&mut self, range: IovaRange, now: Instant) {
        self.resting.push_back((now, range.span));
    }

    fn settle(&mut self, now: Instant) {
        for _ in 0..RESTED {
            match self.resting.front() {
                Some((since, _)) if now.saturating_duration_since(*since) >= REST => {}
                _ => break,
            }
            if let Some((_, span)) = self.resting.pop_front() {
                self.free.give(span);
            }
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
    fn addresses_that_somebody_may_still_map_are_held_until_they_are_given_back() {
        let (mut before, mut arena) = (Arena::new(&[(0, u64::MAX)]), Arena::new(&[(0, u64::MAX)]));
        let now = Instant::now();
        let ranges = [3 << 20, 1, 5 << 20].map(|length| before.allocate(length, 0, now).unwrap());
        let free = arena.free_bytes();
        let held = ranges.each_ref().map(|range| arena.hold(range.span()).unwrap());
        assert_eq!(held, ranges);
        assert_eq!(arena.hold(ranges[1].span()), None, "it is taken");
        let next = arena.allocate(1, 0, now).unwrap();
        assert!(ranges.iter().all(|range| range.start() != next.start()));
        held.into_iter().chain([next]).for_each(|range| arena.release(range, now));
        arena.settle(now + REST);
        assert_eq!(arena.free_bytes(), free);
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

    #[test]
    fn who_rests_is_woken_when_addresses_run_out() {
        let mut arena = Arena::new(&[(0, u64::MAX)]);
        let now = Instant::now();
        // As a program does that registers a lot of memory anew for each message.
        for round in 0..100 {
            let range = arena.allocate(ARENA_END / 4, 0, now);
            arena.release(range.unwrap_or_else(|| panic!("round {round}")), now);
        }
        let small = arena.allocate(PAGE, 0, now).unwrap();
        arena.release(small, now);
        assert!(arena.resting.len() > 1, "nobody is woken while there is room");
    }

    #[test]
    fn of_many_who_rest_some_are_woken_at_a_time() {
        const RANGES: u64 = 3000;
        let mut arena = Arena::new(&[(ARENA_START, ARENA_START + RANGES * 2 * PAGE - 1)]);
        let now = Instant::now();
        let ranges: Vec<_> = (0..RANGES).map(|_| arena.allocate(PAGE, 0, now).unwrap()).collect();
        ranges.into_iter().for_each(|range| arena.release(range, now));
        let mut left = RANGES as usize;
        while arena.allocate(16 << 20, 0, now).is_none() {
            assert!(arena.has_resting());
            assert_eq!(left - arena.resting.len(), WOKEN);
            left -= WOKEN;
        }
        assert!(left < RANGES as usize);
    }

    #[test]
    fn those_who_have_rested_become_free_by_and_by() {
        let mut arena = Arena::new(&[(0, u64::MAX)]);
        let now = Instant::now();
        let ranges: Vec<_> = (0..1000).map(|_| arena.allocate(PAGE, 0, now).unwrap()).collect();
        ranges.into_iter().for_each(|range| arena.release(range, now));
        for left in (0..1000 / RESTED).rev() {
            arena.allocate(PAGE, 0, now + REST).unwrap();
            assert_eq!(arena.resting.len() / RESTED, left);
        }
    }

    #[test]
    fn everybody_has_a_share_and_what_is_beyond_is_for_who_asks_first() {
        const PLACES: u64 = 60;
        let mut arena = Arena::new(&[(0, u64::MAX)]);
        arena.divide(PLACES, 1 << 30);
        let share = arena.limit(0) - arena.spare;
        assert!(share >= 120 << 30, "{share}");
        let take = |arena: &mut Arena, has: &mut u64, bytes: u64| {
            let more = has.saturating_add(bytes).min(arena.limit(*has));
            arena.note(*has, more);
            *has = more;
        };
        let mut places = vec![0; PLACES as usize];
        // The greedy take all that there is for them, and the others still find their share.
        for has in &mut places[..9] {
            take(&mut arena, has, 1 << 40);
        }
        assert_eq!(places[0], 1 << 40);
        take(&mut arena, &mut places[9], u64::MAX);
        assert!(places[9] < 1 << 40, "{}", places[9]);
        for has in &mut places[10..] {
            take(&mut arena, has, u64::MAX);
            assert_eq!(*has, share);
        }
        let rings = PLACES * ((1 << 30) + LARGE_PAGE);
        assert!(places.iter().sum::<u64>() + rings <= arena.free_bytes());
        // Another client finds returned addresses.
        arena.note(places[0], 0);
        assert_eq!(arena.limit(places[20]), share + (1 << 40) - share);
        let now = Instant::now();
        let lost = arena.allocate(1 << 30, 0, now).unwrap();
        let taken = lost.taken();
        arena.lose(&lost);
        assert_eq!(arena.limit(places[20]), share + (1 << 40) - share - taken);
        let free = arena.free_bytes();
        arena.regain(lost, now);
        assert_eq!((arena.limit(places[20]), arena.lost_bytes()), (share + (1 << 40) - share, 0));
        // It rests as any other that was given back.
        assert_eq!(arena.free_bytes(), free);
        assert!(arena.allocate(1, 0, now + REST).is_some());
        assert_eq!(arena.free_bytes(), free + taken - 2 * PAGE);
    }

    #[test]
    fn a_small_arena_is_divided_too() {
        let mut arena = Arena::new(&[(0, (1 << 33) - 1)]);
        arena.divide(60, 1 << 30);
        assert!(arena.limit(0) > 1 << 30, "{}", arena.limit(0));
        assert!(arena.limit(0) < arena.free_bytes() / 2);
    }
}
