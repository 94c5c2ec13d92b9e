//! What the TLB of a vFPGA is to know of programs' memory.
//!
//! An entry is a page of 4 KiB of one address space. It is inserted when the card asks for it, and leads where memory
//! is that the space's QP may reach, or else into the sink of the space. The TLB chooses the set by the address alone,
//! so the pages of all spaces compete: whoever comes takes the place of the set's oldest, which is counted.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use fpga_regs::coyote::tlb::{Entry, Geometry};
use fpga_regs::coyote::vfpga::Stream;

/// Bytes of a page.
const PAGE: u64 = 4096;
/// Pages that one fault inserts: what it asks for, and those behind it that have memory.
const AHEAD: u64 = 16;

/// A page of an address space.
type Page = (u8, u64);

/// An entry of which the memory goes away, and what stands in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone {
    /// The address space.
    pub ctid: u8,
    /// First byte.
    pub vaddr: u64,
    /// The process that the entry names.
    pub hpid: u32,
    /// The words that put another page in its place.
    pub words: [u64; 2],
}

/// What the small-page TLB of a vFPGA knows at most.
#[derive(Debug)]
pub struct Pages {
    geometry: Geometry,
    /// What entries of address space 0 name as their process: each space has another, for the TLB takes an entry's
    /// place, and removes it, by address and process alone.
    hpid: u32,
    /// The bus address of space 0's sink, and how far it is to the next one's.
    sinks: (u64, u64),
    /// Bus address of each page.
    entries: BTreeMap<Page, u64>,
    /// Those that lead into a sink.
    sunk: BTreeSet<Page>,
    /// The same by set, oldest first.
    sets: HashMap<u64, VecDeque<Page>>,
    conflicts: u64,
    sinkings: u64,
}

impl Pages {
    /// An empty TLB; `None` where it has other pages than of 4 KiB.
    #[must_use]
    pub fn new(geometry: Geometry, hpid: u32, sinks: (u64, u64)) -> Option<Self> {
        if geometry.page_bytes() != PAGE {
            return None;
        }
        let (entries, sunk, sets) = Default::default();
        Some(Self { geometry, hpid, sinks, entries, sunk, sets, conflicts: 0, sinkings: 0 })
    }

    /// Forgets everything, as the card has with its reset.
    pub fn reset(&mut self) {
        self.entries.clear();
        self.sunk.clear();
        self.sets.clear();
    }

    /// Pages that were driven out of their set, and faults that were answered by a sink.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.conflicts, self.sinkings)
    }

    fn sink(&self, ctid: u8) -> u64 {
        let (first, stride) = self.sinks;
        first.saturating_add(stride.saturating_mul(ctid.into()))
    }

    fn hpid_of(&self, ctid: u8) -> u32 {
        self.hpid | u32::from(ctid)
    }

    fn words(&self, (ctid, vaddr): Page, paddr: u64, valid: bool) -> [u64; 2] {
        let hpid = self.hpid_of(ctid);
        Entry { vaddr, paddr, hpid, ctid, stream: Stream::Host, valid }.encode(self.geometry)
    }

    fn gone(&self, page: Page, paddr: u64) -> Gone {
        let (ctid, vaddr) = page;
        Gone { ctid, vaddr, hpid: self.hpid_of(ctid), words: self.words(page, paddr, true) }
    }

    /// The entries by which a transfer goes on that met no page. `memory` says on which page of the bus the memory of a
    /// page lies, if there is any.
    #[must_use]
    pub fn mend(
        &mut self,
        ctid: u8,
        vaddr: u64,
        memory: impl Fn(u64) -> Option<u64>,
    ) -> Vec<[u64; 2]> {
        let first = vaddr & !(PAGE.wrapping_sub(1));
        let mut entries = Vec::new();
        for step in 0..AHEAD {
            let page = (ctid, first.wrapping_add(step.wrapping_mul(PAGE)));
            match memory(page.1) {
                Some(paddr) => self.insert(page, paddr, &mut entries),
                None if step == 0 => {
                    self.sinkings = self.sinkings.saturating_add(1);
                    self.insert(page, self.sink(ctid), &mut entries);
                    self.sunk.insert(page);
                    break;
                }
                None => break,
            }
        }
        entries
    }

    /// Adds the words that insert a page, and make room for it.
    fn insert(&mut self, page: Page, paddr: u64, entries: &mut Vec<[u64; 2]>) {
        self.sunk.remove(&page);
        if self.entries.insert(page, paddr).is_none() {
            let set = self.sets.entry(self.geometry.set(page.1)).or_default();
            set.push_back(page);
            let full = set.len() > self.geometry.ways as usize;
            if let Some(victim) = if full { set.pop_front() } else { None } {
                self.conflicts = self.conflicts.saturating_add(1);
                self.sunk.remove(&victim);
                let paddr = self.entries.remove(&victim).unwrap_or(0);
                entries.push(self.words(victim, paddr, false));
            }
        }
        entries.push(self.words(page, paddr, true));
    }

    /// Puts another page in the place of those, of some at most, whose memory on the bus lies in `ranges`, each by its
    /// first byte and its bytes: where `memory` says that there is some all the same, or the sink.
    pub fn replace(
        &mut self,
        ranges: &[(u64, u64)],
        most: usize,
        memory: impl Fn(u8, u64) -> Option<u64>,
    ) -> Vec<Gone> {
        let lies = |paddr: u64, &(start, length): &(u64, u64)| {
            paddr.checked_sub(start).is_some_and(|offset| offset < length)
        };
        let within = |paddr: &u64| ranges.iter().any(|range| lies(*paddr, range));
        let there = self.entries.iter().filter(|(_, paddr)| within(paddr));
        let there: Vec<Page> = there.map(|(page, _)| *page).take(most).collect();
        let other = |(ctid, vaddr): Page| memory(ctid, vaddr).filter(|paddr| !within(paddr));
        there.into_iter().map(|page| self.lead(page, other(page))).collect()
    }

    /// Lets the pages of an address space, some of them at most, lead into its sink.
    pub fn close(&mut self, ctid: u8, most: usize) -> Vec<Gone> {
        let of_space = self.entries.range((ctid, 0)..=(ctid, u64::MAX)).map(|(page, _)| *page);
        let open = of_space.filter(|page| !self.sunk.contains(page));
        let open: Vec<Page> = open.take(most).collect();
        open.into_iter().map(|page| self.lead(page, None)).collect()
    }

    /// Has a page lead to another one on the bus, or into the sink.
    fn lead(&mut self, page: Page, paddr: Option<u64>) -> Gone {
        if paddr.is_none() {
            self.sunk.insert(page);
        }
        let paddr = paddr.unwrap_or(self.sink(page.0));
        self.entries.insert(page, paddr);
        self.gone(page, paddr)
    }

    /// Forgets the pages that lead into a sink, so that they are asked for again; the words that remove them.
    pub fn surface(&mut self) -> Vec<[u64; 2]> {
        let sunk = std::mem::take(&mut self.sunk);
        let mut entries = Vec::new();
        for page in sunk {
            let paddr = self.entries.remove(&page).unwrap_or(0);
            let number = self.geometry.set(page.1);
            if let Some(set) = self.sets.get_mut(&number) {
                set.retain(|other| *other != page);
                if set.is_empty() {
                    self.sets.remove(&number);
                }
            }
            entries.push(self.words(page, paddr, false));
        }
        entries
    }
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "tests may fail"
)]
mod tests {
    use super::*;

    /// 4 sets of 2 ways.
    const GEOMETRY: Geometry = Geometry { page_bits: 12, order: 2, ways: 2 };
    const SINKS: (u64, u64) = (0x70_0000, 0x4000);
    const HPID: u32 = 99 << 6;

    fn pages() -> Pages {
        Pages::new(GEOMETRY, HPID, SINKS).unwrap()
    }

    fn decoded(words: &[[u64; 2]]) -> Vec<(u8, u64, u64, bool)> {
        let decode = |words: &[u64; 2]| Entry::decode(*words, GEOMETRY);
        words.iter().map(decode).map(|it| (it.ctid, it.vaddr, it.paddr, it.valid)).collect()
    }

    /// Memory of two pages from 0x10000 on, which lies at 0x90000 on the bus.
    fn two_pages(page: u64) -> Option<u64> {
        (0x10000..0x12000).contains(&page).then(|| page + 0x80000)
    }

    #[test]
    fn a_fault_inserts_its_page_and_those_behind_it_that_have_memory() {
        let mut pages = pages();
        let entries = decoded(&pages.mend(5, 0x10123, two_pages));
        assert_eq!(entries, [(5, 0x10000, 0x90000, true), (5, 0x11000, 0x91000, true)]);
        assert_eq!(pages.counts(), (0, 0));
        assert_ne!(pages.hpid_of(5), pages.hpid_of(6), "the TLB finds entries by it");
    }

    #[test]
    fn what_has_no_memory_leads_to_the_sink_of_its_space_until_it_surfaces() {
        let mut pages = pages();
        let sink = SINKS.0 + 5 * SINKS.1;
        assert_eq!(decoded(&pages.mend(5, 0x40000, two_pages)), [(5, 0x40000, sink, true)]);
        assert_eq!(pages.counts(), (0, 1));
        let gone = decoded(&pages.surface());
        assert_eq!(gone, [(5, 0x40000, sink, false)]);
        assert!(pages.surface().is_empty());
    }

    #[test]
    fn a_set_has_no_more_than_its_ways_and_drives_out_the_oldest() {
        let mut pages = pages();
        // One address of three spaces: one set.
        let all = |page| Some(page);
        let mut entries = Vec::new();
        for ctid in 1..=3 {
            entries.extend(decoded(
                &pages.mend(ctid, 0x3000, |page| all(page).filter(|it| *it == 0x3000)),
            ));
        }
        assert_eq!(entries[2..], [(1, 0x3000, 0x3000, false), (3, 0x3000, 0x3000, true)]);
        assert_eq!(pages.counts(), (1, 0));
    }

    #[test]
    fn memory_that_goes_is_led_away_from_in_every_space_and_where_others_have_it_there() {
        let mut pages = pages();
        let _ = pages.mend(5, 0x10000, two_pages);
        let _ = pages.mend(6, 0x10000, two_pages);
        // Of space 6 another region has the second page.
        let other = |ctid, page| (ctid == 6 && page == 0x11000).then_some(0xa1000);
        let mut gone = Vec::new();
        loop {
            let row = pages.replace(&[(0x90000, 0x2000)], 3, other);
            if row.is_empty() {
                break;
            }
            gone.extend(row);
        }
        let words: Vec<_> = gone.iter().map(|gone| gone.words).collect();
        let sinks = [5, 6].map(|ctid| SINKS.0 + ctid * SINKS.1);
        assert_eq!(
            decoded(&words),
            [
                (5, 0x10000, sinks[0], true),
                (5, 0x11000, sinks[0], true),
                (6, 0x10000, sinks[1], true),
                (6, 0x11000, 0xa1000, true)
            ]
        );
        assert_eq!(gone[0].hpid, HPID | 5);
    }

    #[test]
    fn a_closed_space_leads_nowhere_and_others_stay() {
        let mut pages = pages();
        let _ = pages.mend(5, 0x10000, two_pages);
        let _ = pages.mend(6, 0x12000, |page| (page == 0x12000).then_some(page));
        assert_eq!(pages.close(5, 1).len(), 1);
        assert_eq!(pages.close(5, 8).len(), 1);
        assert!(pages.close(5, 8).is_empty() && pages.close(7, 8).is_empty());
        assert_eq!(pages.close(6, 8).len(), 1);
        assert_eq!(pages.surface().len(), 3);
    }

    #[test]
    fn other_pages_than_of_4_kib_are_not_used() {
        assert!(Pages::new(Geometry { page_bits: 13, ..GEOMETRY }, HPID, SINKS).is_none());
    }
}
