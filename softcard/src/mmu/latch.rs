//! What the engine of a vFPGA keeps of translations, and its way to host memory.
//!
//! An engine keeps where the pages of its rings are until the driver takes one of them back; it then
//! touches no ring before it has asked for that page again. So an engine never has to stop in the
//! middle of a ring access, and rings that meet in one set of the TLB do not chase each other out.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use fpga_regs::BLOCK_BYTES;
use queue_engine::Rings;

use super::{Direction, Mmu, Pages, Translation};
use crate::bus::Bus;
use crate::views::{RecordView, RingView};

/// A part of a ring whose bytes follow one another on the bus.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// Bytes of the ring before it.
    offset: u64,
    bytes: u64,
    bus: u64,
}

/// The translations of a ring or record.
#[derive(Debug)]
pub(crate) struct Latch {
    vaddr: u64,
    bytes: u64,
    /// In the order of their offsets.
    parts: RefCell<Vec<Part>>,
    /// Where all of it is, in one piece.
    base: Cell<Option<u64>>,
}

impl Latch {
    fn new(vaddr: u64, bytes: u64) -> Self {
        Self { vaddr, bytes, parts: RefCell::default(), base: Cell::new(None) }
    }

    /// A latch of memory that is where it is.
    #[cfg(test)]
    pub(crate) fn direct(address: u64, bytes: u64) -> Rc<Self> {
        let latch = Self::new(address, bytes);
        latch.parts.borrow_mut().push(Part { offset: 0, bytes, bus: address });
        latch.base.set(Some(address));
        Rc::new(latch)
    }

    /// Bytes in all.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The bus address of the first byte, if all others follow.
    #[inline]
    pub(crate) fn base(&self) -> Option<u64> {
        self.base.get()
    }

    /// The bus address of a byte; `None` where it has none.
    pub(crate) fn at(&self, offset: u64) -> Option<u64> {
        let parts = self.parts.borrow();
        let index = parts.partition_point(|part| part.offset <= offset).checked_sub(1)?;
        let part = parts.get(index)?;
        let within = offset.checked_sub(part.offset).filter(|within| *within < part.bytes)?;
        part.bus.checked_add(within)
    }

    /// Asks for every page that is not there.
    fn complete(&self, mmu: &mut Mmu) -> Translation {
        let mut parts = self.parts.borrow_mut();
        let mut offset = 0;
        let mut index = 0;
        while offset < self.bytes {
            if let Some(part) = parts.get(index).filter(|part| part.offset == offset) {
                offset = offset.saturating_add(part.bytes);
                index = index.saturating_add(1);
                continue;
            }
            let left = self.bytes.saturating_sub(offset);
            let length = u32::try_from(left.min(BLOCK_BYTES as u64)).unwrap_or(0);
            match mmu.translate(Direction::Read, self.vaddr.saturating_add(offset), length) {
                Translation::Found { bus, bytes } => {
                    let next = parts.get(index).map_or(self.bytes, |part| part.offset);
                    let bytes = bytes.min(next.saturating_sub(offset));
                    parts.insert(index, Part { offset, bytes, bus });
                }
                other => return other,
            }
        }
        let first = parts.first().map_or(0, |part| part.bus);
        let follows = |part: &Part| part.bus == first.wrapping_add(part.offset);
        let whole = parts.iter().all(follows);
        self.base.set(whole.then_some(first));
        Translation::Found { bus: first, bytes: self.bytes }
    }

    /// Forgets the pages in a range of virtual addresses; whether there were any.
    fn forget(&self, start: u64, bytes: u64) -> bool {
        let end = start.saturating_add(bytes);
        let mut parts = self.parts.borrow_mut();
        let before = parts.len();
        parts.retain(|part| {
            let first = self.vaddr.saturating_add(part.offset);
            first >= end || first.saturating_add(part.bytes) <= start
        });
        let forgot = parts.len() < before;
        if forgot {
            self.base.set(None);
        }
        forgot
    }
}

/// A vFPGA's way to host memory.
#[derive(Debug)]
pub(crate) struct Unit {
    pub(crate) mmu: RefCell<Mmu>,
    bus: Rc<Bus>,
    latches: RefCell<Vec<Weak<Latch>>>,
    /// Pages of a latch were forgotten.
    stale: Cell<bool>,
}

impl Unit {
    pub(crate) fn new(mmu: Mmu, bus: Rc<Bus>) -> Self {
        Self { mmu: RefCell::new(mmu), bus, latches: RefCell::default(), stale: Cell::new(false) }
    }

    /// Executes an entry written to a TLB window.
    pub(crate) fn write_entry(&self, pages: Pages, words: [u64; 2]) {
        let gone = self.mmu.borrow_mut().write_entry(pages, words);
        if let Some((start, bytes)) = gone {
            self.forget(start, bytes);
        }
    }

    /// Lets nobody keep a translation of these addresses.
    pub(crate) fn forget(&self, start: u64, bytes: u64) {
        let mut forgot = false;
        self.latches.borrow_mut().retain(|latch| {
            let Some(latch) = latch.upgrade() else { return false };
            forgot |= latch.forget(start, bytes);
            true
        });
        if forgot {
            self.stale.set(true);
            self.bus.look_again();
        }
    }

    /// Asks again for the pages of rings that were forgotten.
    pub(crate) fn complete(&self) -> Translation {
        if !self.stale.get() {
            return Translation::Found { bus: 0, bytes: 0 };
        }
        let mut mmu = self.mmu.borrow_mut();
        for latch in self.latches.borrow().iter().filter_map(Weak::upgrade) {
            match latch.complete(&mut mmu) {
                Translation::Found { .. } => {}
                other => return other,
            }
        }
        self.stale.set(false);
        self.bus.look_again();
        Translation::Found { bus: 0, bytes: 0 }
    }

    /// Gives up what waits and what was kept, for an engine that stops.
    pub(crate) fn stop(&self) {
        self.mmu.borrow_mut().stop();
        self.stale.set(false);
        for latch in self.latches.borrow_mut().drain(..).filter_map(|latch| latch.upgrade()) {
            latch.forget(0, u64::MAX);
        }
        self.bus.look_again();
    }

    fn latch(&self, vaddr: u64, bytes: u64) -> Option<Rc<Latch>> {
        if self.waits() {
            return None;
        }
        let latch = Latch::new(vaddr, bytes);
        match latch.complete(&mut self.mmu.borrow_mut()) {
            Translation::Found { .. } => {}
            _ => return None,
        }
        let held = |part: &Part| self.bus.holds_rings(part.bus, part.bytes);
        if !latch.parts.borrow().iter().all(held) {
            return None;
        }
        let latch = Rc::new(latch);
        let mut latches = self.latches.borrow_mut();
        if latches.len() == latches.capacity() {
            latches.retain(|latch| latch.strong_count() > 0);
        }
        latches.push(Rc::downgrade(&latch));
        Some(latch)
    }
}

impl Rings for Unit {
    type Record = RecordView;
    type Ring = RingView;

    fn record(&self, iova: u64) -> Option<RecordView> {
        let latch = self.latch(iova, BLOCK_BYTES as u64)?;
        Some(RecordView::new(&self.bus, latch))
    }

    fn ring(&self, iova: u64, log2_blocks: u8) -> Option<RingView> {
        let blocks = 1u32.checked_shl(u32::from(log2_blocks))?;
        let bytes = u64::from(blocks).checked_mul(BLOCK_BYTES as u64)?;
        let latch = self.latch(iova, bytes)?;
        Some(RingView::new(&self.bus, latch, blocks))
    }

    fn reachable(&self, iova: u64, bytes: u64) -> bool {
        let end = iova.checked_add(bytes);
        end.is_some_and(|end| end <= 1 << fpga_regs::coyote::tlb::PADDR_BITS)
    }

    fn waits(&self) -> bool {
        self.mmu.borrow().waits()
    }
}
