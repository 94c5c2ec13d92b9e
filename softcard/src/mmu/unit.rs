//! The way of a vFPGA's engine to host memory.
//!
//! An engine keeps where the pages of its rings are until the driver takes one of them back; it then
//! touches no ring before it has asked for that page again. So an engine never has to stop in the
//! middle of a ring access, and rings that meet in one set of the TLB do not chase each other out.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use fpga_regs::BLOCK_BYTES;

use super::{Gone, MemoryDirection, Mmu, Pages, Translation};
use crate::bus::Bus;
use crate::latch::{BusRun, Index, Latch};
use crate::own_memory::{OWN_BYTES, OWN_MEMORY};
use crate::views::{RecordView, RingView};

/// A vFPGA's way to host memory.
#[derive(Debug)]
pub struct Unit {
    pub(crate) mmu: RefCell<Mmu>,
    bus: Rc<Bus>,
    latches: Rc<Index>,
    /// Latches of which pages were forgotten.
    stale: RefCell<Vec<Weak<Latch>>>,
}

impl Unit {
    pub(crate) fn new(mmu: Mmu, bus: Rc<Bus>) -> Self {
        let latches = Index::new(mmu.large.geometry().page_bits);
        Self { mmu: RefCell::new(mmu), bus, latches, stale: RefCell::default() }
    }

    /// Executes an entry written to a TLB window.
    pub(crate) fn write_entry(&self, pages: Pages, words: [u64; 2]) {
        let gone = self.mmu.borrow_mut().write_entry(pages, words);
        if let Some(Gone { start, bytes }) = gone {
            self.forget(start, bytes);
        }
    }

    /// Invalidates all remembered translations of these addresses.
    pub(crate) fn forget(&self, start: u64, bytes: u64) {
        for latch in self.latches.touching(start, bytes) {
            if latch.forget(start, bytes) {
                self.stale.borrow_mut().push(Rc::downgrade(&latch));
            }
        }
    }

    /// Whether no page of a ring was forgotten.
    #[inline]
    pub(crate) fn is_complete(&self) -> bool {
        self.stale.borrow().is_empty()
    }

    /// Asks again for the pages of rings that were forgotten.
    pub(crate) fn complete(&self) -> Translation {
        let mut stale = self.stale.borrow_mut();
        while let Some(latch) = stale.last() {
            let latch = latch.upgrade();
            match latch.map(|latch| self.find_all(&latch)) {
                None | Some(Translation::Found { .. }) => stale.pop(),
                Some(other) => return other,
            };
        }
        Translation::Found { bus: 0, bytes: 0 }
    }

    /// Gives up waiting transfers and remembered translations, for an engine that stops.
    pub(crate) fn stop(&self) {
        self.mmu.borrow_mut().stop();
        for latch in self.latches.touching(0, u64::MAX) {
            latch.forget(0, u64::MAX);
        }
        self.stale.borrow_mut().clear();
    }

    /// Asks for every page of a latch that is not there.
    fn find_all(&self, latch: &Latch) -> Translation {
        let mut mmu = self.mmu.borrow_mut();
        let found = latch.complete(|vaddr, length| {
            match mmu.translate(MemoryDirection::Read, vaddr, length) {
                Translation::Found { bus, bytes } => Ok(BusRun { bus, bytes }),
                other => Err(other),
            }
        });
        match found {
            Ok(BusRun { bus, bytes }) => Translation::Found { bus, bytes },
            Err(other) => other,
        }
    }

    fn latch(&self, vaddr: u64, bytes: u64) -> Option<Rc<Latch>> {
        if self.waits() {
            return None;
        }
        let latch = Latch::new(vaddr, bytes, &self.latches);
        match self.find_all(&latch) {
            Translation::Found { .. } => {}
            _ => return None,
        }
        if !latch.all(|bus, bytes| self.bus.holds_rings(bus, bytes)) {
            return None;
        }
        let latch = Rc::new(latch);
        self.latches.insert(&latch);
        Some(latch)
    }

    /// The record at a virtual address, or `None` where memory cannot hold one.
    pub fn record(&self, iova: u64) -> Option<RecordView> {
        let latch = self.latch(iova, BLOCK_BYTES as u64)?;
        Some(RecordView::new(&self.bus, latch))
    }

    /// The ring of 2^`log2_blocks` blocks at a virtual address, or `None` as above.
    pub fn ring(&self, iova: u64, log2_blocks: u8) -> Option<RingView> {
        let blocks = 1u32.checked_shl(u32::from(log2_blocks))?;
        let bytes = u64::from(blocks).checked_mul(BLOCK_BYTES as u64)?;
        let latch = self.latch(iova, bytes)?;
        Some(RingView::new(&self.bus, latch, blocks))
    }

    /// The vFPGA's part of the card's own memory, and the address of its first byte; `None` where the
    /// card has none.
    pub fn own(&self) -> Option<(u64, RingView)> {
        if !self.bus.own.make() {
            return None;
        }
        let latch = Latch::direct(self.mmu.borrow().own, u64::from(OWN_BYTES));
        const BLOCKS: u32 = OWN_BYTES / BLOCK_BYTES as u32;
        Some((OWN_MEMORY, RingView::new(&self.bus, latch, BLOCKS)))
    }

    /// Whether these are addresses of the vFPGA.
    pub fn reachable(&self, iova: u64, bytes: u64) -> bool {
        let end = iova.checked_add(bytes);
        end.is_some_and(|end| end <= 1 << fpga_regs::coyote::tlb::PADDR_BITS)
    }

    /// Whether the card waits for the driver to say where memory is.
    #[inline]
    pub fn waits(&self) -> bool {
        self.mmu.borrow().waits()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::Arc;

    use fpga_regs::coyote::shell::CTRL_CNFG_DEFAULT;
    use fpga_regs::coyote::tlb::{Entry, Geometry};
    use fpga_regs::coyote::vfpga::Stream;
    use hostmem::{Access, DmaMemory, SharedMapping, memfd};

    use super::*;
    use crate::bus::tests::LOOKS;
    use crate::latch::TOUCHED;

    const PAGE: u64 = 2 << 20;
    /// Pages with rings in them, and the rings of each.
    const PAGES: u64 = 4;
    const RINGS: u64 = 256;

    fn entry(page: u64, valid: bool) -> [u64; 2] {
        let vaddr = page * PAGE;
        let entry = Entry { vaddr, paddr: vaddr, hpid: 9, ctid: 0, stream: Stream::Host, valid };
        entry.encode(Geometry::large(CTRL_CNFG_DEFAULT).unwrap())
    }

    /// Rings of a page of memory each, and no end of them; page 0 has none.
    fn rings() -> (Unit, Rc<Bus>, Vec<RingView>) {
        let bus = Rc::new(Bus::default());
        let unit = Unit::new(Mmu::new(CTRL_CNFG_DEFAULT, 0).unwrap(), Rc::clone(&bus));
        let bytes = PAGES * RINGS * 4096;
        let fd = memfd::create("rings", bytes as usize).unwrap();
        let all = SharedMapping::new(fd.as_fd(), 0, bytes as usize, Access::ReadWrite).unwrap();
        let all = Arc::new(all);
        let mut views = Vec::new();
        for page in 0..=PAGES {
            unit.write_entry(Pages::Large, entry(page, true));
            for ring in 0..RINGS * u64::from(page > 0) {
                let mapping = Arc::clone(&all);
                let offset = ((page - 1) * RINGS + ring) * 4096;
                let at = page * PAGE + ring * 8192;
                bus.map(at, 4096, DmaMemory::Shared { mapping, offset }).unwrap();
                let view = unit.ring(at, 6).unwrap();
                view.publish(0, &[offset; 8]);
                views.push(view);
            }
        }
        TOUCHED.set(0);
        LOOKS.set(0);
        (unit, bus, views)
    }

    fn all_read_as_written(views: &[RingView]) {
        for (at, view) in (0..).zip(views) {
            assert_eq!(view.read(0), [at * 4096; 8]);
        }
    }

    #[test]
    fn the_end_of_a_page_concerns_the_rings_in_it_and_no_others() {
        let (unit, _bus, views) = rings();
        unit.write_entry(Pages::Large, entry(0, false));
        unit.forget(0, PAGE);
        assert!(matches!(unit.complete(), Translation::Found { .. }));
        all_read_as_written(&views);
        assert_eq!((TOUCHED.get(), LOOKS.get()), (0, 0), "no ring lies in page 0");

        unit.forget(2 * PAGE, PAGE);
        assert_eq!(TOUCHED.get(), RINGS as usize);
        assert!(matches!(unit.complete(), Translation::Found { .. }));
        assert_eq!(TOUCHED.get(), 2 * RINGS as usize);
        all_read_as_written(&views);
        assert_eq!(LOOKS.get(), RINGS as usize, "the others are where they were");
    }

    #[test]
    fn what_comes_and_goes_on_the_bus_concerns_nobody_elses_rings() {
        let (_unit, bus, views) = rings();
        let process = crate::processes::tests::process(std::process::id());
        let memory = || DmaMemory::Process { process: Arc::clone(&process), address: 0x7000_0000 };
        bus.map(0, 4096, memory()).unwrap();
        all_read_as_written(&views);
        bus.unmap(0, 4096);
        all_read_as_written(&views);
        assert_eq!((TOUCHED.get(), LOOKS.get()), (0, 0));
        // A ring whose own memory goes reads as ones at once, and finds it when it is there again.
        let at = PAGES * PAGE;
        bus.unmap(at, 4096);
        let gone = &views[((PAGES - 1) * RINGS) as usize];
        assert_eq!(gone.read(0), [u64::MAX; 8]);
        let fd = memfd::create("ring", 4096).unwrap();
        let mapping = SharedMapping::new(fd.as_fd(), 0, 4096, Access::ReadWrite).unwrap();
        bus.map(at, 4096, DmaMemory::Shared { mapping: Arc::new(mapping), offset: 0 }).unwrap();
        assert_eq!(gone.read(0), [0; 8]);
        LOOKS.set(0);
        assert_eq!((gone.read(0), LOOKS.get()), ([0; 8], 0), "it is remembered");
        // Without the right to speak on the bus nothing is reached, and all of it behind that.
        bus.set_master(false);
        assert!(views.iter().all(|view| view.read(0) == [u64::MAX; 8]));
        bus.set_master(true);
        all_read_as_written(&views[..RINGS as usize]);
    }

    #[test]
    fn rings_that_are_gone_leave_nothing_behind() {
        let (unit, _bus, mut views) = rings();
        let kept = views.split_off(views.len() - 1);
        drop(views);
        assert_eq!(unit.latches.entries.borrow().len(), 1);
        unit.stop();
        assert_eq!(TOUCHED.get(), 1);
        assert_eq!(kept[0].read(0), [u64::MAX; 8]);
        drop(kept);
        assert!(unit.latches.entries.borrow().is_empty());
    }

    #[test]
    fn a_ring_of_many_pages_is_found_by_each_of_them() {
        let bus = Rc::new(Bus::default());
        let unit = Unit::new(Mmu::new(CTRL_CNFG_DEFAULT, 0).unwrap(), Rc::clone(&bus));
        let fd = memfd::create("ring", 4 * PAGE as usize).unwrap();
        let all = SharedMapping::new(fd.as_fd(), 0, 4 * PAGE as usize, Access::ReadWrite).unwrap();
        bus.map(PAGE, 4 * PAGE, DmaMemory::Shared { mapping: Arc::new(all), offset: 0 }).unwrap();
        (1..5).for_each(|page| unit.write_entry(Pages::Large, entry(page, true)));
        let ring = unit.ring(PAGE + PAGE / 2, 15).unwrap();
        ring.publish((1 << 15) - 1, &[7; 8]);
        for page in 1..3 {
            TOUCHED.set(0);
            unit.forget(page * PAGE, PAGE);
            unit.forget(page * PAGE, PAGE);
            assert!(matches!(unit.complete(), Translation::Found { .. }));
            assert_eq!((TOUCHED.get(), ring.read((1 << 15) - 1)), (3, [7; 8]), "page {page}");
        }
        unit.forget(3 * PAGE, PAGE);
        assert_eq!(TOUCHED.get(), 3, "it ends before");
    }

    #[test]
    fn a_ring_that_moves_to_and_fro_is_noted_once_wherever_it_was() {
        let (unit, bus, views) = rings();
        let moved = |to: u64| {
            let large = Geometry::large(CTRL_CNFG_DEFAULT).unwrap();
            let (hpid, stream) = (9, Stream::Host);
            let entry = Entry { vaddr: PAGE, paddr: to * PAGE, hpid, ctid: 0, stream, valid: true };
            entry.encode(large)
        };
        for turn in 0..1000 {
            unit.write_entry(Pages::Large, moved(1 + turn % 2));
            assert!(matches!(unit.complete(), Translation::Found { .. }));
            assert_eq!(views[0].read(0), [turn % 2 * RINGS * 4096; 8]);
        }
        // Those of page 2, and that of page 1 which lies there by now, twice at the most.
        assert!(bus.watchers() <= 8 * views.len(), "{}", bus.watchers());
    }
}
