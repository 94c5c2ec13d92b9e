//! What balboad knows of a vFPGA's TLB: the pages that have memory, and which it has inserted.
//!
//! The card is given I/O virtual addresses, so its MMU translates them to themselves, in large
//! pages: what a page is allowed to is decided by keys, not here. A page stays inserted until its
//! last mapping goes. TLBs forget entries; the shadow is what they are filled from again.

use std::collections::{BTreeMap, HashMap};

use fpga_regs::coyote::tlb::{Entry, Geometry};
use fpga_regs::coyote::vfpga::Stream;

/// A large page with memory in it.
#[derive(Clone, Copy, Debug, Default)]
struct Page {
    /// Mappings that lie in it, wholly or in part.
    mappings: u32,
    /// The TLB was told of it, and may still know it.
    inserted: bool,
}

/// The shadow of one vFPGA's large-page TLB.
#[derive(Debug)]
pub struct Shadow {
    geometry: Geometry,
    ctid: u8,
    hpid: u32,
    /// By page number.
    pages: BTreeMap<u64, Page>,
    /// Pages inserted, by set.
    sets: HashMap<u64, u32>,
}

impl Shadow {
    /// A shadow of an empty TLB.
    #[must_use]
    pub fn new(geometry: Geometry, ctid: u8, hpid: u32) -> Self {
        Self { geometry, ctid, hpid, pages: BTreeMap::new(), sets: HashMap::new() }
    }

    /// The process that entries name.
    #[must_use]
    pub fn hpid(&self) -> u32 {
        self.hpid
    }

    fn numbers(&self, start: u64, length: u64) -> std::ops::RangeInclusive<u64> {
        let last = start.saturating_add(length.saturating_sub(1));
        start >> self.geometry.page_bits..=last >> self.geometry.page_bits
    }

    fn address(&self, number: u64) -> u64 {
        number.wrapping_shl(self.geometry.page_bits)
    }

    fn entry(&self, number: u64, valid: bool) -> [u64; 2] {
        let vaddr = self.address(number);
        let (ctid, hpid) = (self.ctid, self.hpid);
        let entry = Entry { vaddr, paddr: vaddr, hpid, ctid, stream: Stream::Host, valid };
        entry.encode(self.geometry)
    }

    /// Notes that a range has memory now; answers the entries to insert ahead of their first use:
    /// those for which their set has a way left.
    #[must_use]
    pub fn map(&mut self, start: u64, length: u64, prefill: bool) -> Vec<[u64; 2]> {
        let mut entries = Vec::new();
        for number in self.numbers(start, length) {
            let page = self.pages.entry(number).or_default();
            page.mappings = page.mappings.saturating_add(1);
            let set = self.geometry.set(number.wrapping_shl(self.geometry.page_bits));
            let used = self.sets.entry(set).or_default();
            if prefill && !page.inserted && *used < self.geometry.ways {
                page.inserted = true;
                *used = used.saturating_add(1);
                entries.push(self.entry(number, true));
            }
        }
        entries
    }

    /// Notes that a range has no memory any more; answers the pages that no mapping is left in and
    /// that the TLB may know, each as its first byte and the entry that removes it.
    #[must_use]
    pub fn unmap(&mut self, start: u64, length: u64) -> Vec<(u64, [u64; 2])> {
        let mut gone = Vec::new();
        for number in self.numbers(start, length) {
            let Some(page) = self.pages.get_mut(&number) else { continue };
            page.mappings = page.mappings.saturating_sub(1);
            if page.mappings > 0 {
                continue;
            }
            let inserted = page.inserted;
            self.pages.remove(&number);
            if inserted {
                let address = self.address(number);
                if let Some(used) = self.sets.get_mut(&self.geometry.set(address)) {
                    *used = used.saturating_sub(1);
                }
                gone.push((address, self.entry(number, false)));
            }
        }
        gone
    }

    /// The entries that a transfer of `length` bytes at `vaddr` needs; empty where there is no memory
    /// at its first byte.
    #[must_use]
    pub fn refill(&mut self, vaddr: u64, length: u32) -> Vec<[u64; 2]> {
        let mut entries = Vec::new();
        for number in self.numbers(vaddr, length.max(1).into()) {
            let Some(page) = self.pages.get_mut(&number) else { break };
            if !std::mem::replace(&mut page.inserted, true) {
                let set = self.geometry.set(number.wrapping_shl(self.geometry.page_bits));
                let used = self.sets.entry(set).or_default();
                *used = used.saturating_add(1);
            }
            entries.push(self.entry(number, true));
        }
        entries
    }

    /// Pages with memory in them.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.pages.len()
    }

    /// Bytes of a page.
    #[must_use]
    pub fn page_bytes(&self) -> u64 {
        self.geometry.page_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: u64 = 2 << 20;
    const GEOMETRY: Geometry = Geometry { page_bits: 21, order: 2, ways: 2 };

    fn shadow() -> Shadow {
        Shadow::new(GEOMETRY, 0, 77)
    }

    fn pages(entries: &[[u64; 2]]) -> Vec<u64> {
        let page = |words: &[u64; 2]| {
            let entry = Entry::decode(*words, GEOMETRY);
            assert_eq!((entry.vaddr, entry.hpid, entry.ctid), (entry.paddr, 77, 0));
            assert!(entry.valid && entry.stream == Stream::Host);
            entry.vaddr / LARGE
        };
        entries.iter().map(page).collect()
    }

    #[test]
    fn mapping_fills_ahead_as_far_as_the_sets_have_ways() {
        let mut shadow = shadow();
        assert_eq!(pages(&shadow.map(LARGE - 4096, 8192, true)), [0, 1]);
        assert_eq!(pages(&shadow.map(LARGE, 4096, true)), [0; 0], "it is inserted already");
        // Pages 4 to 15 fall into the sets 0 to 3 three times; 0 and 1 have a page each.
        let filled = pages(&shadow.map(4 * LARGE, 12 * LARGE, true));
        assert_eq!(filled, [4, 5, 6, 7, 10, 11]);
        assert_eq!(pages(&shadow.map(20 * LARGE, LARGE, false)), [0; 0]);
        assert_eq!(pages(&shadow.refill(20 * LARGE + 5, 64)), [20]);
    }

    #[test]
    fn a_page_is_taken_back_when_its_last_mapping_goes() {
        let mut shadow = shadow();
        let _ = shadow.map(0, 4096, true);
        let _ = shadow.map(8192, LARGE, true);
        assert_eq!(shadow.unmap(0, 4096), []);
        let gone = shadow.unmap(8192, LARGE);
        let starts: Vec<u64> = gone.iter().map(|(start, _)| *start).collect();
        assert_eq!(starts, [0, LARGE]);
        assert!(gone.iter().all(|(start, words)| {
            let entry = Entry::decode(*words, GEOMETRY);
            entry.vaddr == *start && !entry.valid && entry.hpid == 77
        }));
        assert_eq!(shadow.pages(), 0);
        let _ = shadow.map(0, 2 * LARGE, false);
        assert_eq!(shadow.unmap(0, 2 * LARGE), [], "the TLB never knew them");
        assert_eq!(shadow.unmap(0, LARGE), [], "nothing is there");
    }

    #[test]
    fn a_fault_is_mended_where_there_is_memory() {
        let mut shadow = shadow();
        let _ = shadow.map(2 * LARGE, 2 * LARGE, false);
        assert_eq!(pages(&shadow.refill(3 * LARGE - 64, 128)), [2, 3]);
        assert_eq!(pages(&shadow.refill(4 * LARGE - 64, 128)), [3], "what is there of it");
        assert_eq!(shadow.refill(4 * LARGE, 64), [[0; 2]; 0]);
        assert_eq!(pages(&shadow.refill(2 * LARGE, 0)), [2]);
        // Refilled pages count: their set is full now.
        let _ = shadow.map(6 * LARGE, LARGE, true);
        assert_eq!(pages(&shadow.map(10 * LARGE, LARGE, true)), [0; 0]);
    }
}
