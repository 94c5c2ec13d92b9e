//! One set-associative TLB.

use fpga_regs::coyote::tlb::{Entry, Geometry};

/// An entry in its way.
#[derive(Clone, Copy, Debug, Default)]
struct Way {
    tag: u64,
    /// First byte of the physical page.
    page: u64,
    hpid: u32,
    ctid: u8,
    valid: bool,
    /// It was hit since the other ways of its set had their chance.
    referenced: bool,
}

/// A TLB of published geometry.
///
/// Streams are not compared, as in a build that has host streams and no card memory.
#[derive(Debug)]
pub(super) struct Tlb {
    geometry: Geometry,
    ways: Vec<Way>,
}

impl Tlb {
    pub(super) fn new(geometry: Geometry) -> Self {
        // Shapes come from a register's fields: at most 2^15 sets of 15 ways.
        let sets = usize::try_from(geometry.sets()).unwrap_or(1);
        let ways = sets.saturating_mul(geometry.ways as usize);
        Self { geometry, ways: vec![Way::default(); ways] }
    }

    pub(super) fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn set(&mut self, vaddr: u64) -> &mut [Way] {
        let ways = self.geometry.ways as usize;
        let set = usize::try_from(self.geometry.set(vaddr)).unwrap_or(0);
        let start = set.saturating_mul(ways);
        self.ways.get_mut(start..start.saturating_add(ways)).unwrap_or_default()
    }

    /// First byte of the physical page of an address, where it has an entry.
    pub(super) fn look_up(&mut self, vaddr: u64, ctid: u8) -> Option<u64> {
        let tag = self.geometry.tag(vaddr);
        let set = self.set(vaddr);
        let hit = |way: &Way| way.valid && way.tag == tag && way.ctid == ctid;
        let hit = set.iter().position(hit)?;
        // When all have been hit, the others' hits are forgotten, so that one can be told again.
        if set.iter().enumerate().all(|(i, way)| i == hit || way.referenced || !way.valid) {
            set.iter_mut().for_each(|way| way.referenced = false);
        }
        let way = set.get_mut(hit)?;
        way.referenced = true;
        Some(way.page)
    }

    /// Inserts an entry: in place of the one with its tag and process, else where none is, else in
    /// place of one not hit lately. Answers the virtual page whose translation changed.
    pub(super) fn insert(&mut self, entry: &Entry) -> bool {
        let tag = self.geometry.tag(entry.vaddr);
        let set = self.set(entry.vaddr);
        let same = |way: &Way| way.valid && way.tag == tag && way.hpid == entry.hpid;
        let place = set
            .iter()
            .position(same)
            .or_else(|| set.iter().position(|way| !way.valid))
            .or_else(|| set.iter().position(|way| !way.referenced))
            .unwrap_or(0);
        let Some(way) = set.get_mut(place) else { return false };
        let changed = same(way) && (way.page != entry.paddr || way.ctid != entry.ctid);
        *way = Way {
            tag,
            page: entry.paddr,
            hpid: entry.hpid,
            ctid: entry.ctid,
            valid: true,
            referenced: true,
        };
        changed
    }

    /// Removes the entries with a tag and process; the address space is not compared.
    pub(super) fn remove(&mut self, entry: &Entry) {
        let tag = self.geometry.tag(entry.vaddr);
        for way in self.set(entry.vaddr) {
            way.valid &= way.tag != tag || way.hpid != entry.hpid;
        }
    }
}

#[cfg(test)]
mod tests {
    use fpga_regs::coyote::vfpga::Stream;

    use super::*;

    /// Two sets of two ways of 4 KiB pages.
    const TINY: Geometry = Geometry { page_bits: 12, order: 1, ways: 2 };

    fn entry(page: u64) -> Entry {
        let vaddr = page << 12;
        Entry { vaddr, paddr: vaddr | 1 << 40, hpid: 7, ctid: 3, stream: Stream::Host, valid: true }
    }

    fn hits(tlb: &mut Tlb, pages: &[u64]) -> Vec<u64> {
        let hit = |page: &u64| tlb.look_up(page << 12 | 0x123, 3).is_some();
        pages.iter().copied().filter(hit).collect()
    }

    #[test]
    fn a_hit_needs_page_and_address_space() {
        let mut tlb = Tlb::new(TINY);
        tlb.insert(&entry(4));
        assert_eq!(tlb.look_up(0x4fff, 3), Some(1 << 40 | 0x4000));
        assert_eq!(tlb.look_up(0x4fff, 2), None);
        assert_eq!(tlb.look_up(0x6000, 3), None, "same set, another tag");
        assert_eq!(tlb.look_up(0x5000, 3), None, "another set");
    }

    #[test]
    fn a_set_holds_as_many_pages_as_it_has_ways_and_the_newest_stays() {
        let mut tlb = Tlb::new(TINY);
        for page in [0, 2, 4] {
            tlb.insert(&entry(page));
            assert_eq!(hits(&mut tlb, &[page]), [page]);
        }
        assert_eq!(hits(&mut tlb, &[0, 2, 4]).len(), 2);
        tlb.insert(&entry(1));
        assert_eq!(hits(&mut tlb, &[1, 4]), [1, 4], "other sets are not concerned");
    }

    #[test]
    fn the_way_that_was_not_hit_goes_first() {
        let mut tlb = Tlb::new(TINY);
        tlb.insert(&entry(0));
        tlb.insert(&entry(2));
        // Both were inserted; a hit begins anew.
        assert_eq!(hits(&mut tlb, &[0]), [0]);
        tlb.insert(&entry(4));
        assert_eq!(hits(&mut tlb, &[0, 2, 4]), [0, 4]);
    }

    #[test]
    fn an_entry_is_replaced_and_removed_by_page_and_process() {
        let mut tlb = Tlb::new(TINY);
        assert!(!tlb.insert(&entry(4)));
        assert!(!tlb.insert(&entry(4)), "the same again");
        assert!(tlb.insert(&Entry { paddr: 0x9000, ..entry(4) }));
        assert_eq!(tlb.look_up(0x4000, 3), Some(0x9000));
        tlb.remove(&Entry { hpid: 8, ..entry(4) });
        assert_eq!(hits(&mut tlb, &[4]), [4]);
        tlb.remove(&Entry { ctid: 9, ..entry(4) });
        assert!(hits(&mut tlb, &[4]).is_empty());
    }
}
