//! The driver's record of a vFPGA's TLB: the ranges that have memory, and the pages it has inserted.
//!
//! The card is given I/O virtual addresses, so its MMU translates them to themselves, in large
//! pages: keys decide on accesses, not translations. Mapped memory is kept by ranges of any size, and
//! only entries that the TLB may know by pages: balboad makes room in the TLB by itself, oldest first, so
//! that a set never has more payload entries than ways. Pages with rings are left alone until
//! their memory goes, for an engine keeps where they are. TLBs forget entries; from here they are filled
//! again.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::RangeInclusive;

use fpga_regs::coyote::tlb::{Entry, Geometry, WINDOW_FIFO};
use fpga_regs::coyote::vfpga::Stream;

/// Pages of a range that are looked at, and inserted where there is room, ahead of their first use,
/// and pages that one fault inserts: as many entries as a TLB window takes in one go. All others come
/// as they are asked for.
const AHEAD: usize = WINDOW_FIFO;

/// The purpose of a range's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Payload.
    Payload,
    /// Rings of clients, most of whose addresses are never used: no page is inserted before it is
    /// asked for, and then it stays.
    Rings,
    /// Rings of balboad's own: their pages are inserted ahead, and stay.
    OwnRings,
}

/// The pages of one set that may be in the TLB.
#[derive(Debug, Default)]
struct Set {
    /// The entries of payload, oldest first; at most as many as there are ways.
    payload: VecDeque<u64>,
    /// How many there are with rings.
    rings: u32,
}

/// The possible contents of one vFPGA's large-page TLB, and the operations on it.
#[derive(Debug)]
pub struct Translations {
    geometry: Geometry,
    ctid: u8,
    hpid: u32,
    /// The ranges with memory: last byte of each, by its first. No two overlap.
    ranges: BTreeMap<u64, u64>,
    /// The ranges that are for rings.
    rings: BTreeMap<u64, u64>,
    /// Pages that the TLB may know, by number, and whether they were inserted for rings.
    inserted: BTreeMap<u64, bool>,
    /// The same by set; none that is empty.
    sets: HashMap<u64, Set>,
}

/// The range that lies in any of these bytes, as first and last byte.
fn overlapping(ranges: &BTreeMap<u64, u64>, bytes: &RangeInclusive<u64>) -> Option<(u64, u64)> {
    let (&first, &last) = ranges.range(..=bytes.end()).next_back()?;
    (last >= *bytes.start()).then_some((first, last))
}

impl Translations {
    /// An empty TLB, without memory.
    #[must_use]
    pub fn new(geometry: Geometry, ctid: u8, hpid: u32) -> Self {
        let (ranges, rings, inserted, sets) = Default::default();
        Self { geometry, ctid, hpid, ranges, rings, inserted, sets }
    }

    /// The process that entries name.
    #[must_use]
    pub fn hpid(&self) -> u32 {
        self.hpid
    }

    /// Bytes of a page.
    #[must_use]
    pub fn page_bytes(&self) -> u64 {
        self.geometry.page_bytes()
    }

    fn numbers(&self, start: u64, length: u64) -> RangeInclusive<u64> {
        let last = start.saturating_add(length.saturating_sub(1));
        start >> self.geometry.page_bits..=last >> self.geometry.page_bits
    }

    fn address(&self, number: u64) -> u64 {
        number.wrapping_shl(self.geometry.page_bits)
    }

    /// First and last byte of a page.
    fn bytes(&self, number: u64) -> RangeInclusive<u64> {
        let first = self.address(number);
        first..=first | self.page_bytes().wrapping_sub(1)
    }

    fn set_of(&self, number: u64) -> u64 {
        self.geometry.set(self.address(number))
    }

    fn entry(&self, number: u64, valid: bool) -> [u64; 2] {
        let vaddr = self.address(number);
        let (ctid, hpid) = (self.ctid, self.hpid);
        let entry = Entry { vaddr, paddr: vaddr, hpid, ctid, stream: Stream::Host, valid };
        entry.encode(self.geometry)
    }

    /// Whether there is memory in a page.
    fn has_memory(&self, number: u64) -> bool {
        overlapping(&self.ranges, &self.bytes(number)).is_some()
    }

    /// Notes that a range has memory now, which overlaps no other; answers the entries to insert ahead
    /// of their first use: those of its first pages for which their set has a way left.
    #[must_use]
    pub fn map(&mut self, start: u64, length: u64, purpose: Purpose) -> Vec<[u64; 2]> {
        let last = start.saturating_add(length.saturating_sub(1));
        debug_assert!(overlapping(&self.ranges, &(start..=last)).is_none(), "{start:#x} overlaps");
        self.ranges.insert(start, last);
        if purpose != Purpose::Payload {
            self.rings.insert(start, last);
        }
        let mut entries = Vec::new();
        if purpose == Purpose::Rings {
            return entries;
        }
        for number in self.numbers(start, length).take(AHEAD) {
            let set = self.sets.get(&self.set_of(number));
            let used = set.map_or(0, |set| set.payload.len().saturating_add(set.rings as usize));
            if !self.inserted.contains_key(&number) && used < self.geometry.ways as usize {
                self.insert(number, &mut entries);
            }
        }
        entries
    }

    /// Removes the range that begins there: the TLB gets no entries of it any more, and [`Self::take_gone`] gives those
    /// that it still knows.
    pub fn forget(&mut self, start: u64) {
        self.ranges.remove(&start);
        self.rings.remove(&start);
    }

    /// Takes pages of a range out of which there is no memory any more and that the TLB may know, at
    /// most so many; each as its first byte and the entry that removes it.
    #[must_use]
    pub fn take_gone(&mut self, start: u64, length: u64, most: usize) -> Vec<(u64, [u64; 2])> {
        let known = self.inserted.range(self.numbers(start, length)).map(|(number, _)| *number);
        let gone: Vec<u64> = known.filter(|number| !self.has_memory(*number)).take(most).collect();
        gone.into_iter()
            .map(|number| {
                self.remove(number);
                (self.address(number), self.entry(number, false))
            })
            .collect()
    }

    /// The entries that a transfer of `length` bytes at `vaddr` needs; empty where there is no memory
    /// at its first byte.
    ///
    /// For a transfer whose pages do not all fit into different sets, only the first ones: one fault must
    /// not evict its own entries.
    #[must_use]
    pub fn refill(&mut self, vaddr: u64, length: u32) -> Vec<[u64; 2]> {
        let mut entries = Vec::new();
        let sets = usize::try_from(self.geometry.sets()).unwrap_or(usize::MAX);
        for number in self.numbers(vaddr, length.max(1).into()).take(AHEAD.min(sets)) {
            if !self.has_memory(number) {
                break;
            }
            self.insert(number, &mut entries);
        }
        entries
    }

    /// Adds the entries that insert a page, perhaps for another time, and make room for it.
    fn insert(&mut self, number: u64, entries: &mut Vec<[u64; 2]>) {
        if !self.inserted.contains_key(&number) {
            let rings = overlapping(&self.rings, &self.bytes(number)).is_some();
            let set = self.sets.entry(self.geometry.set(self.address(number))).or_default();
            let mut victim = None;
            if rings {
                set.rings = set.rings.saturating_add(1);
            } else {
                let full = set.payload.len() >= self.geometry.ways as usize;
                victim = if full { set.payload.pop_front() } else { None };
                set.payload.push_back(number);
            }
            self.inserted.insert(number, rings);
            if let Some(victim) = victim {
                self.inserted.remove(&victim);
                entries.push(self.entry(victim, false));
            }
        }
        entries.push(self.entry(number, true));
    }

    fn remove(&mut self, number: u64) {
        let Some(rings) = self.inserted.remove(&number) else { return };
        let index = self.set_of(number);
        let Some(set) = self.sets.get_mut(&index) else { return };
        if rings {
            set.rings = set.rings.saturating_sub(1);
        } else {
            set.payload.retain(|other| *other != number);
        }
        if set.rings == 0 && set.payload.is_empty() {
            self.sets.remove(&index);
        }
    }

    /// Ranges with memory, and pages that the TLB may know.
    #[must_use]
    pub fn size(&self) -> (usize, usize) {
        (self.ranges.len(), self.inserted.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: u64 = 2 << 20;
    const GEOMETRY: Geometry = Geometry { page_bits: 21, order: 2, ways: 2 };

    fn empty() -> Translations {
        Translations::new(GEOMETRY, 0, 77)
    }

    /// Pages inserted, and those removed for them.
    fn pages(entries: &[[u64; 2]]) -> (Vec<u64>, Vec<u64>) {
        let entries = entries.iter().map(|words| {
            let entry = Entry::decode(*words, GEOMETRY);
            assert_eq!((entry.vaddr, entry.hpid, entry.ctid), (entry.paddr, 77, 0));
            assert_eq!(entry.stream, Stream::Host);
            (entry.vaddr / LARGE, entry.valid)
        });
        let (inserted, removed): (Vec<_>, Vec<_>) = entries.partition(|(_, valid)| *valid);
        let numbers = |pages: Vec<(u64, bool)>| pages.into_iter().map(|(page, _)| page).collect();
        (numbers(inserted), numbers(removed))
    }

    fn inserted(entries: &[[u64; 2]]) -> Vec<u64> {
        let (inserted, removed) = pages(entries);
        assert_eq!(removed, [0; 0]);
        inserted
    }

    fn gone(translations: &mut Translations, start: u64, length: u64) -> Vec<u64> {
        translations.forget(start);
        let gone = translations.take_gone(start, length, usize::MAX);
        let page = |(page, words): &(u64, [u64; 2])| {
            let entry = Entry::decode(*words, GEOMETRY);
            assert_eq!((entry.vaddr, entry.hpid, entry.valid), (*page, 77, false));
            page / LARGE
        };
        gone.iter().map(page).collect()
    }

    #[test]
    fn mapping_fills_ahead_as_far_as_the_sets_have_ways() {
        let mut translations = empty();
        assert_eq!(inserted(&translations.map(LARGE - 4096, 8192, Purpose::Payload)), [0, 1]);
        let again = translations.map(LARGE + 8192, 4096, Purpose::Payload);
        assert_eq!(inserted(&again), [0; 0], "it is inserted already");
        // Pages 4 to 15 fall into the sets 0 to 3 three times; 0 and 1 have a page each.
        let filled = translations.map(4 * LARGE, 12 * LARGE, Purpose::Payload);
        assert_eq!(inserted(&filled), [4, 5, 6, 7, 10, 11]);
    }

    #[test]
    fn a_page_is_taken_back_when_its_last_memory_goes() {
        let mut translations = empty();
        let _ = translations.map(0, 4096, Purpose::Payload);
        let _ = translations.map(8192, LARGE, Purpose::Payload);
        assert_eq!(gone(&mut translations, 0, 4096), [0; 0]);
        assert_eq!(gone(&mut translations, 8192, LARGE), [0, 1]);
        assert_eq!(translations.size(), (0, 0));
        let _ = translations.map(0, 2 * LARGE, Purpose::Rings);
        assert_eq!(gone(&mut translations, 0, 2 * LARGE), [0; 0], "the TLB never knew them");
        assert_eq!(gone(&mut translations, 0, LARGE), [0; 0], "nothing is there");
        assert!(translations.sets.is_empty());
    }

    #[test]
    fn a_fault_is_mended_where_there_is_memory() {
        let mut translations = empty();
        let _ = translations.map(2 * LARGE, 2 * LARGE, Purpose::Rings);
        assert_eq!(inserted(&translations.refill(3 * LARGE - 64, 128)), [2, 3]);
        assert_eq!(inserted(&translations.refill(4 * LARGE - 64, 128)), [3], "what is there of it");
        assert_eq!(translations.refill(4 * LARGE, 64), [[0; 2]; 0]);
        assert_eq!(inserted(&translations.refill(2 * LARGE, 0)), [2]);
        // Refilled pages count: their set is full now.
        let _ = translations.map(6 * LARGE, LARGE, Purpose::Payload);
        assert_eq!(inserted(&translations.map(10 * LARGE, LARGE, Purpose::Payload)), [0; 0]);
        translations.forget(2 * LARGE);
        assert_eq!(translations.refill(2 * LARGE, 64), [[0; 2]; 0], "its memory goes");
    }

    #[test]
    fn room_is_made_by_the_page_that_came_first_and_rings_stay() {
        let mut translations = empty();
        let _ = translations.map(0, LARGE, Purpose::Rings);
        assert_eq!(inserted(&translations.refill(64, 64)), [0]);
        let _ = translations.map(LARGE, 1000 * LARGE, Purpose::Payload);
        // Page 4 was inserted ahead; all of these are of set 0, like the rings' page.
        assert_eq!(inserted(&translations.refill(8 * LARGE, 64)), [8]);
        assert_eq!(pages(&translations.refill(12 * LARGE, 64)), (vec![12], vec![4]));
        assert_eq!(inserted(&translations.refill(8 * LARGE, 64)), [8], "the TLB may forget, too");
        assert_eq!(pages(&translations.refill(4 * LARGE, 64)), (vec![4], vec![8]));
        // A long transfer does not drive out its own first pages.
        let (long, _) = pages(&translations.refill(100 * LARGE, u32::MAX));
        assert_eq!(long, [100, 101, 102, 103]);
        assert_eq!(gone(&mut translations, 0, LARGE), [0]);
    }

    #[test]
    fn what_terabytes_cost_is_what_the_tlb_holds_of_them() {
        const HUGE: u64 = 4 << 40;
        const TLB: usize = 1024;
        let geometry = Geometry { page_bits: 21, order: 9, ways: 2 };
        let mut translations = Translations::new(geometry, 0, 77);
        assert_eq!(translations.map(0, HUGE, Purpose::Payload).len(), AHEAD);
        assert_eq!(translations.size(), (1, AHEAD));
        // However much of it is used.
        for fault in 0..20_000u64 {
            let page = fault.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (HUGE / LARGE);
            assert!((1..=2).contains(&translations.refill(page * LARGE, 64).len()));
            assert!(translations.size().1 <= TLB, "{:?} after fault {fault}", translations.size());
        }
        translations.forget(0);
        let mut left = translations.size().1;
        assert!(left > TLB / 2);
        while left > 0 {
            let row = translations.take_gone(0, HUGE, 16);
            assert_eq!(row.len(), left.min(16));
            left -= row.len();
        }
        assert_eq!(translations.size(), (0, 0));
    }
}
