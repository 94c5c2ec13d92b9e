//! The TLBs of a vFPGA: their geometry, and the entries written through its TLB windows.
//!
//! A vFPGA has two set-associative TLBs that are looked up in parallel, one for small and one for
//! large pages; a hit for a large page wins. An entry is two words: the first is written to
//! [`TLB_WORD_0`](super::vfpga::TLB_WORD_0) of the window, the second, which inserts it, to [`TLB_WORD_1`](super::vfpga::TLB_WORD_1). There is no reading back.
//! Source: Coyote `vfpga_hw.c` (`create_tlb_mapping`), `tlb_slave.sv`.

use super::shell::CtrlCnfg;
use super::vfpga::Stream;

constants! {
    /// Entries a window holds ahead of the TLB; the published driver writes any number without a
    /// pause.
    pub const WINDOW_FIFO: usize = 64;
    /// Bits of a virtual address.
    pub const VADDR_BITS: u32 = 48;
    /// Bits of a physical address, which is an I/O virtual address where there is an IOMMU.
    pub const PADDR_BITS: u32 = 44;
    /// Bits of a ctid, the number of an address space.
    pub const CTID_BITS: u32 = 6;
}

const STREAM_BITS: u32 = 2;

/// Shape of one TLB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// log2 of the bytes of a page.
    pub page_bits: u32,
    /// log2 of the number of sets.
    pub order: u32,
    /// Entries of a set.
    pub ways: u32,
}

impl Geometry {
    /// A shape that entries have room for; `None` for any other.
    #[must_use]
    pub const fn new(page_bits: u32, order: u32, ways: u32) -> Option<Self> {
        let fits = page_bits >= 12 && order > 0 && page_bits + order < VADDR_BITS && ways > 0;
        if fits && page_bits < PADDR_BITS { Some(Self { page_bits, order, ways }) } else { None }
    }

    /// The shape of the small-page TLB; `None` where it makes no sense.
    #[must_use]
    pub const fn small(ctrl_cnfg: CtrlCnfg) -> Option<Self> {
        let CtrlCnfg { stlb_page_bits, stlb_order, stlb_ways, .. } = ctrl_cnfg;
        Self::new(stlb_page_bits as u32, stlb_order as u32, stlb_ways as u32)
    }

    /// The shape of the large-page TLB; `None` where it makes no sense.
    #[must_use]
    pub const fn large(ctrl_cnfg: CtrlCnfg) -> Option<Self> {
        let CtrlCnfg { ltlb_page_bits, ltlb_order, ltlb_ways, .. } = ctrl_cnfg;
        Self::new(ltlb_page_bits as u32, ltlb_order as u32, ltlb_ways as u32)
    }

    /// Bytes of a page.
    #[must_use]
    pub const fn page_bytes(self) -> u64 {
        1 << self.page_bits
    }

    /// Number of sets.
    #[must_use]
    pub const fn sets(self) -> u64 {
        1 << self.order
    }

    /// The set that the page of a virtual address belongs to.
    #[must_use]
    pub const fn set(self, vaddr: u64) -> u64 {
        vaddr >> self.page_bits & mask(self.order)
    }

    /// The tag that distinguishes the pages of a set.
    #[must_use]
    pub const fn tag(self, vaddr: u64) -> u64 {
        vaddr >> (self.page_bits + self.order) & mask(self.tag_bits())
    }

    const fn tag_bits(self) -> u32 {
        VADDR_BITS - self.page_bits - self.order
    }
}

const fn mask(bits: u32) -> u64 {
    u64::MAX >> (64 - bits)
}

/// A TLB entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Any virtual address of the page.
    pub vaddr: u64,
    /// Any physical address of the page.
    pub paddr: u64,
    /// Process on the host; with the tag it names the entry to remove.
    pub hpid: u32,
    /// Address space.
    pub ctid: u8,
    /// Memory the physical address belongs to.
    pub stream: Stream,
    /// Inserts the entry; if not set, removes the one with this page and `hpid`.
    pub valid: bool,
}

impl Entry {
    /// The two words of the entry; addresses are cut to their page.
    ///
    /// Word 0: physical page number from bit 0, `hpid` in bits 63 to 32. Word 1 from bit 0: set, tag,
    /// ctid (6 bits), stream (2), valid.
    #[must_use]
    pub const fn encode(&self, geometry: Geometry) -> [u64; 2] {
        let page = self.paddr >> geometry.page_bits & mask(PADDR_BITS - geometry.page_bits);
        let mut word = geometry.set(self.vaddr);
        let mut at = geometry.order;
        word |= geometry.tag(self.vaddr) << at;
        at += geometry.tag_bits();
        word |= (self.ctid as u64 & mask(CTID_BITS)) << at;
        at += CTID_BITS;
        word |= (self.stream.0 as u64 & mask(STREAM_BITS)) << at;
        at += STREAM_BITS;
        word |= (self.valid as u64) << at;
        [page | (self.hpid as u64) << 32, word]
    }

    /// Reads an entry; every pair of words decodes, addresses are those of the page's first byte.
    #[must_use]
    pub const fn decode([first, second]: [u64; 2], geometry: Geometry) -> Self {
        let vpn_bits = VADDR_BITS - geometry.page_bits;
        let above = second >> vpn_bits;
        Self {
            vaddr: (second & mask(vpn_bits)) << geometry.page_bits,
            paddr: (first & mask(PADDR_BITS - geometry.page_bits)) << geometry.page_bits,
            hpid: (first >> 32) as u32,
            ctid: (above & mask(CTID_BITS)) as u8,
            stream: Stream((above >> CTID_BITS & mask(STREAM_BITS)) as u8),
            valid: above >> (CTID_BITS + STREAM_BITS) & 1 == 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Geometry = Geometry { page_bits: 12, order: 10, ways: 4 };
    const LARGE: Geometry = Geometry { page_bits: 21, order: 9, ways: 2 };

    const ENTRY: Entry = Entry {
        vaddr: 0xaaaa_aaa0_0000,
        paddr: 0xfed_cba0_0000,
        hpid: 0x1234_5678,
        ctid: 0x2a,
        stream: Stream::Host,
        valid: true,
    };

    #[test]
    fn words_of_the_published_shapes_have_the_published_bits() {
        let [first, second] = ENTRY.encode(SMALL);
        assert_eq!(first, 0x1234_5678_fedc_ba00);
        assert_eq!(second & 0x3ff, 0xaaaa_aaa0_0000 >> 12 & 0x3ff);
        assert_eq!(second >> 10 & 0x3ff_ffff, 0xaaaa_aaa0_0000 >> 22);
        assert_eq!((second >> 36 & 0x3f, second >> 42 & 3, second >> 44), (0x2a, 1, 1));
        let [first, second] = ENTRY.encode(LARGE);
        assert_eq!(first, 0x1234_5678 << 32 | 0xfed_cba0_0000 >> 21);
        assert_eq!(second & 0x1ff, 0xaaaa_aaa0_0000 >> 21 & 0x1ff);
        assert_eq!(second >> 9 & 0x3_ffff, 0xaaaa_aaa0_0000 >> 30);
        assert_eq!((second >> 27 & 0x3f, second >> 33 & 3, second >> 35), (0x2a, 1, 1));
    }

    #[test]
    fn an_entry_comes_back_as_its_page() {
        for geometry in [SMALL, LARGE] {
            let page = !(geometry.page_bytes() - 1);
            let inside = Entry { vaddr: ENTRY.vaddr + 77, paddr: ENTRY.paddr + 77, ..ENTRY };
            let back = Entry::decode(inside.encode(geometry), geometry);
            let wanted = Entry { vaddr: ENTRY.vaddr & page, paddr: ENTRY.paddr & page, ..ENTRY };
            assert_eq!(back, wanted);
            let high = [SMALL, LARGE].map(|shape| Entry::decode([0, u64::MAX << 46], shape).vaddr);
            assert_eq!(high, [0, 0], "what stands above the valid bit is ignored");
        }
    }

    #[test]
    fn shapes_without_room_for_a_tag_are_refused() {
        assert_eq!(Geometry::new(12, 10, 4), Some(SMALL));
        for (page_bits, order, ways) in
            [(11, 10, 4), (30, 18, 2), (44, 1, 1), (12, 0, 4), (12, 10, 0)]
        {
            assert_eq!(Geometry::new(page_bits, order, ways), None);
        }
    }
}
