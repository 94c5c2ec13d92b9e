//! The entries of a vFPGA's TLB for programs' memory.
//!
//! An entry is a page of 4 KiB of one address space. It is inserted when the card asks for it, and leads where
//! memory is that the space's QP may reach, or else into the sink of the space. The TLB chooses the set by the
//! address alone, so the pages of all spaces compete: a new one takes the place of the set's oldest, which is
//! counted.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use fpga_regs::coyote::tlb::{Entry, Geometry};
use fpga_regs::coyote::vfpga::Stream;

/// Bytes of a page.
const PAGE: u64 = 4096;
/// Pages that one fault inserts: the requested one, and those behind it that have memory.
const AHEAD: u64 = 16;
/// Pages that were driven out of their set and are kept in mind. Each took a transfer that asked for another page, and
/// those are made in their order, so accesses under way to one end long before so many others have gone.
const DRIVEN_OUT: usize = 512;

/// A page of an address space.
type Page = (u8, u64);

/// An entry of which the memory goes away, and its successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone {
    /// The address space.
    pub ctid: u8,
    /// First byte.
    pub vaddr: u64,
    /// The process that the entry names.
    pub hpid: u32,
    /// The words that put another page in its place, or none.
    pub words: [u64; 2],
}

/// The entries that the small-page TLB of a vFPGA may have.
#[derive(Debug)]
pub struct Pages {
    geometry: Geometry,
    /// The process number of entries of address space 0: each space has another, for the TLB takes an entry's
    /// place, and removes it, by address and process alone.
    hpid: u32,
    /// The bus address of space 0's sink, and how far it is to the next one's.
    sinks: (u64, u64),
    /// Bus address of each page.
    entries: BTreeMap<Page, u64>,
    /// Those that lead into a sink.
    sunk: BTreeSet<Page>,
    /// The address spaces into whose sinks pages lead of which the card is still to be told.
    sinking: BTreeSet<u8>,
    /// The same by set, oldest first.
    sets: HashMap<u64, VecDeque<Page>>,
    /// The last ones that were driven out, and the memory that they led to, to which something may still be on its way.
    driven_out: VecDeque<(Page, u64)>,
    /// Counts.
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
        let (entries, sunk, sinking, sets, driven_out) = Default::default();
        let (conflicts, sinkings) = (0, 0);
        Some(Self {
            geometry,
            hpid,
            sinks,
            entries,
            sunk,
            sinking,
            sets,
            driven_out,
            conflicts,
            sinkings,
        })
    }

    /// Forgets everything, as the card has with its reset.
    pub fn reset(&mut self) {
        self.entries.clear();
        self.sunk.clear();
        self.sinking.clear();
        self.sets.clear();
        self.driven_out.clear();
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

    /// The message to the card about a page, whose new destination, if any, is in the book.
    fn gone(&self, page: Page) -> Gone {
        let (ctid, vaddr) = page;
        let hpid = self.hpid_of(ctid);
        let words = match self.entries.get(&page) {
            Some(paddr) => self.words(page, *paddr, true),
            None => self.words(page, 0, false),
        };
        Gone { ctid, vaddr, hpid, words }
    }

    /// Takes note that a page was driven out.
    fn drive_out(&mut self, page: Page, paddr: u64) {
        if self.driven_out.len() >= DRIVEN_OUT {
            self.driven_out.pop_front();
        }
        self.driven_out.push_back((page, paddr));
    }

    /// Makes pages lead elsewhere, and tells the card; also of pages that were driven out, `most` in all.
    fn lead_away(
        &mut self,
        pages: Vec<(Page, Option<u64>)>,
        most: usize,
        too: impl Fn(&(Page, u64)) -> bool,
    ) -> Vec<Gone> {
        let mut named = BTreeSet::new();
        for (page, paddr) in pages {
            self.lead(page, paddr);
            named.insert(page);
        }
        self.driven_out.retain(|it| {
            let is_told = too(it) && (named.len() < most || named.contains(&it.0));
            named.extend(is_told.then_some(it.0));
            !is_told
        });
        named.into_iter().map(|page| self.gone(page)).collect()
    }

    /// Whether pages of an address space between two addresses lead to memory, or were driven out and the card has
    /// not asked for them since.
    #[must_use]
    pub fn holds(&self, ctid: u8, start: u64, end: u64) -> bool {
        let range = (ctid, start)..(ctid, end);
        let leads = |(page, _): (&Page, &u64)| !self.sunk.contains(page);
        self.entries.range(range.clone()).any(leads)
            || self.driven_out.iter().any(|(page, _)| range.contains(page))
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
                    self.sink_page(page);
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
        match self.entries.insert(page, paddr) {
            None => {
                let set = self.sets.entry(self.geometry.set(page.1)).or_default();
                set.push_back(page);
                let full = set.len() > self.geometry.ways as usize;
                if let Some(victim) = if full { set.pop_front() } else { None } {
                    self.conflicts = self.conflicts.saturating_add(1);
                    self.sunk.remove(&victim);
                    let paddr = self.entries.remove(&victim).unwrap_or(0);
                    self.drive_out(victim, paddr);
                    entries.push(self.words(victim, paddr, false));
                }
            }
            Some(before) if before != paddr => self.drive_out(page, before),
            Some(_) => {}
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
        let other = |(ctid, vaddr): Page| memory(ctid, vaddr).filter(|paddr| !within(paddr));
        let there = self.entries.iter().filter(|(_, paddr)| within(paddr)).take(most);
        let there = there.map(|(page, _)| (*page, Some(other(*page).unwrap_or(self.sink(page.0)))));
        let there = there.collect();
        self.lead_away(there, most, |(_, paddr)| within(paddr))
    }

    /// Lets the pages of an address space, some of them at most, lead into its sink.
    pub fn close(&mut self, ctid: u8, most: usize) -> Vec<Gone> {
        let of_space = self.entries.range((ctid, 0)..=(ctid, u64::MAX)).map(|(page, _)| *page);
        let open = of_space.filter(|page| !self.sunk.contains(page)).take(most);
        let sink = self.sink(ctid);
        let open = open.map(|page| (page, Some(sink))).collect();
        self.lead_away(open, most, |(page, _)| page.0 == ctid)
    }

    /// The entries of pages that there is memory for, so many from one on, before they are asked for.
    #[must_use]
    pub fn fill(
        &mut self,
        ctid: u8,
        first: u64,
        pages: u64,
        memory: impl Fn(u64) -> Option<u64>,
    ) -> Vec<[u64; 2]> {
        let mut entries = Vec::new();
        for step in 0..pages {
            let page = first.wrapping_add(step.wrapping_mul(PAGE));
            let Some(paddr) = memory(page) else { break };
            self.insert((ctid, page), paddr, &mut entries);
        }
        entries
    }

    /// Forgets the pages of an address space between two addresses, some of them at most, each by the entry that removes it.
    pub fn forget(&mut self, ctid: u8, start: u64, end: u64, most: usize) -> Vec<Gone> {
        let range = (ctid, start)..(ctid, end);
        let there = self.entries.range(range.clone()).map(|(page, _)| (*page, None));
        let there = there.take(most).collect();
        self.lead_away(there, most, |(page, _)| range.contains(page))
    }

    /// Forgets the pages that are picked by their address space and their target, so many at most, from one on, which
    /// becomes the next start: pages that come again meanwhile are not forgotten again.
    pub fn recall(
        &mut self,
        from: &mut (u8, u64),
        most: usize,
        picks: impl Fn(u8, u64) -> bool,
    ) -> Vec<Gone> {
        let there = self.entries.range(*from..).filter(|((ctid, _), paddr)| picks(*ctid, **paddr));
        let there: Vec<_> = there.map(|(page, _)| (*page, None)).take(most).collect();
        if let Some(((ctid, vaddr), _)) = there.last() {
            *from = (*ctid, vaddr.saturating_add(1));
        }
        self.lead_away(there, most, |((ctid, _), paddr)| picks(*ctid, *paddr))
    }

    /// Forgets a page.
    fn remove(&mut self, page: Page) {
        self.entries.remove(&page);
        self.sunk.remove(&page);
        let number = self.geometry.set(page.1);
        if let Some(set) = self.sets.get_mut(&number) {
            set.retain(|other| *other != page);
            if set.is_empty() {
                self.sets.remove(&number);
            }
        }
    }

    /// Takes note that a page leads into its sink from now on.
    fn sink_page(&mut self, page: Page) {
        self.sunk.insert(page);
        self.sinking.insert(page.0);
    }

    /// The address spaces into whose sinks pages lead since the last call: bytes there belong to others by now, and are
    /// to be cleared before the card is told.
    pub fn take_sinking(&mut self) -> BTreeSet<u8> {
        std::mem::take(&mut self.sinking)
    }

    /// Makes a page lead to another one on the bus, such as the sink, or to none.
    fn lead(&mut self, page: Page, other: Option<u64>) {
        match other {
            None => self.remove(page),
            Some(paddr) => {
                if paddr == self.sink(page.0) {
                    self.sink_page(page);
                }
                self.entries.insert(page, paddr);
            }
        }
    }

    /// Forgets the pages that lead into a sink, so that they are asked for again, but for those of address spaces that stay as they
    /// are; the words that remove them.
    pub fn surface(&mut self, stays: impl Fn(u8) -> bool) -> Vec<[u64; 2]> {
        let mut entries = Vec::new();
        let surfacing: Vec<_> =
            self.sunk.iter().filter(|(ctid, _)| !stays(*ctid)).copied().collect();
        for page in surfacing {
            let paddr = self.entries.get(&page).copied().unwrap_or(0);
            self.remove(page);
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
        assert!(pages.surface(|ctid| ctid == 5).is_empty(), "it stays where it is");
        let gone = decoded(&pages.surface(|_| false));
        assert_eq!(gone, [(5, 0x40000, sink, false)]);
        assert!(pages.surface(|_| false).is_empty());
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
    fn pages_are_recalled_once_each_in_rows_and_others_stay() {
        let mut pages = pages();
        let memory = |page: u64| Some(page + 0x80000);
        for (ctid, page) in [(1, 0x10000), (2, 0x11000), (2, 0x12000)] {
            let _ = pages.fill(ctid, page, 1, memory);
        }
        let picks = |ctid, paddr| ctid == 2 || paddr == 0x90000;
        let mut from = (0, 0);
        let row = |gone: &[Gone]| {
            let words: Vec<_> = gone.iter().map(|gone| gone.words).collect();
            decoded(&words).iter().map(|it| (it.0, it.1, it.3)).collect::<Vec<_>>()
        };
        let first = pages.recall(&mut from, 2, picks);
        assert_eq!(row(&first), [(1, 0x10000, false), (2, 0x11000, false)]);
        // Somebody asks for it again before the next row.
        let _ = pages.fill(1, 0x10000, 1, memory);
        assert_eq!(row(&pages.recall(&mut from, 2, picks)), [(2, 0x12000, false)]);
        assert_eq!(pages.recall(&mut from, 2, picks), []);
        assert!(pages.holds(1, 0x10000, 0x11000) && !pages.holds(2, 0, u64::MAX));
        let mut from = (0, 0);
        assert_eq!(pages.recall(&mut from, 2, |ctid, _| ctid == 3), []);
    }

    #[test]
    fn a_closed_space_leads_nowhere_and_others_stay() {
        let mut pages = pages();
        let _ = pages.mend(5, 0x10000, two_pages);
        let _ = pages.mend(6, 0x12000, |page| (page == 0x12000).then_some(page));
        for most in [1, 8] {
            assert_eq!(pages.close(5, most).len(), 1);
        }
        assert!(pages.close(5, 8).is_empty() && pages.close(7, 8).is_empty());
        assert_eq!(pages.close(6, 8).len(), 1);
        assert_eq!(pages.surface(|_| false).len(), 3);
    }

    #[test]
    fn who_has_pages_sink_clears_the_sink_first() {
        let mut pages = pages();
        let mut sinking = |step: &dyn Fn(&mut Pages)| {
            step(&mut pages);
            pages.take_sinking().into_iter().collect::<Vec<_>>()
        };
        assert_eq!(sinking(&|it| drop(it.mend(5, 0x10000, two_pages))), []);
        assert_eq!(sinking(&|it| drop(it.mend(6, 0x10000, two_pages))), []);
        assert_eq!(sinking(&|it| drop(it.mend(7, 0x42000, two_pages))), [7], "asked for");
        assert_eq!(sinking(&|it| drop(it.close(5, 1))), [5]);
        assert_eq!(sinking(&|it| drop(it.close(5, 8))), [5], "the other page");
        assert_eq!(sinking(&|it| drop(it.close(5, 8))), [], "none is left");
        let ranges = [(0x90000, 0x1000)];
        assert_eq!(sinking(&|it| drop(it.replace(&ranges, 8, |_, _| None))), [6]);
        assert_eq!(sinking(&|it| drop(it.forget(6, 0x11000, 0x12000, 8))), [], "it leads nowhere");
        assert_eq!(sinking(&|it| drop(it.surface(|_| false))), []);
    }

    #[test]
    fn pages_are_filled_ahead_as_far_as_there_is_memory_and_forgotten_by_a_range() {
        let mut pages = pages();
        let entries = decoded(&pages.fill(5, 0x10000, 4, two_pages));
        assert_eq!(entries, [(5, 0x10000, 0x90000, true), (5, 0x11000, 0x91000, true)]);
        let _ = pages.fill(6, 0x10000, 1, two_pages);
        let first = pages.forget(5, 0x10000, 0x12000, 1);
        assert_eq!(first.len(), 1);
        assert!(pages.holds(5, 0x10000, 0x12000) && !pages.holds(5, 0x10000, 0x11000));
        let gone = pages.forget(5, 0x10000, 0x12000, 8);
        let words: Vec<_> = gone.iter().map(|gone| gone.words).collect();
        assert_eq!(decoded(&words), [(5, 0x11000, 0, false)]);
        assert!(!pages.holds(5, 0, u64::MAX) && pages.forget(5, 0, u64::MAX, 8).is_empty());
        // The other space's is still there.
        assert_eq!(pages.close(6, 8).len(), 1);
    }

    #[test]
    fn one_that_was_driven_out_is_drained_before_its_memory_goes() {
        let mut pages = pages();
        for ctid in 1..=3 {
            let _ = pages.fill(ctid, 0x3000, 1, |page| Some(page + 0x1000 * u64::from(ctid)));
        }
        assert_eq!(pages.counts().0, 1);
        let row = pages.replace(&[(0x4000, 0x1000)], 8, |_, _| None);
        assert_eq!(
            row.iter().map(|gone| (gone.ctid, gone.vaddr)).collect::<Vec<_>>(),
            [(1, 0x3000)]
        );
        assert!(pages.replace(&[(0x4000, 0x1000)], 8, |_, _| None).is_empty());
        // The number of pages in one message is limited, and no page counts twice.
        for page in [0x3000, 0x3000, 0x7000] {
            for ctid in 4..=6 {
                let memory = |page| Some(page + 0x1000 * u64::from(ctid));
                let _ = pages.fill(ctid, page, 1, memory);
            }
        }
        assert!(pages.holds(4, 0x3000, 0x4000));
        let rows = [(); 3].map(|()| pages.close(4, 1).len());
        assert_eq!(rows, [1, 1, 0]);
        assert!(!pages.holds(4, 0, u64::MAX));
        // As many are kept in mind as there may be something on its way to.
        for page in 0..2000 {
            let _ = pages.fill(4, page * 0x4000, 1, |page| Some(page + 0x100_0000));
        }
        assert_eq!(pages.driven_out.len(), DRIVEN_OUT);
    }

    #[test]
    fn other_pages_than_of_4_kib_are_not_used() {
        assert!(Pages::new(Geometry { page_bits: 13, ..GEOMETRY }, HPID, SINKS).is_none());
    }
}
