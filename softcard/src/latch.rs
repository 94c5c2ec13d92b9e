//! Kept translations: where the pages of a ring or a record are, until they are taken back.
//!
//! Latches are found by their pages: the cost of a page's end depends on the rings in it, not on the
//! number of all rings.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::rc::{Rc, Weak};

use fpga_regs::BLOCK_BYTES;

#[cfg(test)]
thread_local! {
    /// How often this thread has looked at a latch.
    pub(crate) static TOUCHED: Cell<usize> = const { Cell::new(0) };
}

/// Bytes that follow one another on the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BusRun {
    pub(crate) bus: u64,
    pub(crate) bytes: u64,
}

/// A part of a ring whose bytes follow one another on the bus.
#[derive(Clone, Copy, Debug)]
struct RingPart {
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
    /// The parts, in the order of their offsets.
    parts: RefCell<Vec<RingPart>>,
    /// Where all of it is, in one piece.
    base: Cell<Option<u64>>,
    /// Moves on whenever the memory may be elsewhere, or nowhere; never 0.
    generation: Cell<u64>,
    /// The range of the bus that was asked to tell when it goes.
    watched: Cell<u64>,
    /// Where it is found by its pages.
    index: Weak<Index>,
    number: u64,
}

impl Latch {
    /// Bytes that the latch of a ring within two pages takes, with its places in the index, whose nodes
    /// are half full at least.
    pub(crate) const BYTES: usize = size_of::<Rc<Self>>()
        + size_of::<Self>()
        + 4 * size_of::<RingPart>()
        + 4 * size_of::<((u64, u64), Weak<Self>)>();

    pub(crate) fn new(vaddr: u64, bytes: u64, index: &Rc<Index>) -> Self {
        let number = index.numbers.get();
        index.numbers.set(number.wrapping_add(1));
        Self::unlisted(vaddr, bytes, Rc::downgrade(index), number)
    }

    fn unlisted(vaddr: u64, bytes: u64, index: Weak<Index>, number: u64) -> Self {
        let (parts, base) = Default::default();
        let (generation, watched) = (Cell::new(1), Cell::new(0));
        Self { vaddr, bytes, parts, base, generation, watched, index, number }
    }

    /// A latch of memory that is where it is.
    pub(crate) fn direct(address: u64, bytes: u64) -> Rc<Self> {
        let latch = Self::unlisted(address, bytes, Weak::new(), 0);
        latch.parts.borrow_mut().push(RingPart { offset: 0, bytes, bus: address });
        latch.base.set(Some(address));
        Rc::new(latch)
    }

    /// A number that changes whenever the memory found by the latch may not hold any more; never 0.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generation.get()
    }

    /// Makes all that remember the memory's place look again.
    pub(crate) fn look_again(&self) {
        self.generation.set(self.generation.get().wrapping_add(1).max(1));
    }

    /// Notes that a range of the bus tells when it goes; whether it did not before.
    pub(crate) fn watches(&self, range: u64) -> bool {
        self.watched.replace(range) != range
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

    /// Whether a condition holds for all its parts on the bus.
    pub(crate) fn all(&self, mut holds: impl FnMut(u64, u64) -> bool) -> bool {
        self.parts.borrow().iter().all(|part| holds(part.bus, part.bytes))
    }

    /// Asks for every page that is not there; its first one is then where it is said, and the others may lie
    /// elsewhere.
    pub(crate) fn complete<E>(
        &self,
        mut find: impl FnMut(u64, u32) -> Result<BusRun, E>,
    ) -> Result<BusRun, E> {
        #[cfg(test)]
        TOUCHED.with(|touched| touched.set(touched.get() + 1));
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
            let found = find(self.vaddr.saturating_add(offset), length)?;
            let next = parts.get(index).map_or(self.bytes, |part| part.offset);
            let bytes = found.bytes.min(next.saturating_sub(offset));
            parts.insert(index, RingPart { offset, bytes, bus: found.bus });
        }
        let first = parts.first().map_or(0, |part| part.bus);
        let follows = |part: &RingPart| part.bus == first.wrapping_add(part.offset);
        let whole = parts.iter().all(follows);
        self.base.set(whole.then_some(first));
        self.look_again();
        Ok(BusRun { bus: first, bytes: self.bytes })
    }

    /// Forgets the pages in a range of virtual addresses; whether there were any.
    pub(crate) fn forget(&self, start: u64, bytes: u64) -> bool {
        #[cfg(test)]
        TOUCHED.with(|touched| touched.set(touched.get() + 1));
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
            self.look_again();
        }
        forgot
    }
}

impl Drop for Latch {
    fn drop(&mut self) {
        if let Some(index) = self.index.upgrade() {
            index.remove(self);
        }
    }
}

/// The latches of a vFPGA by the pages that they lie in.
#[derive(Debug)]
pub(crate) struct Index {
    page_bits: u32,
    numbers: Cell<u64>,
    /// The latches, by page and by number.
    pub(crate) entries: RefCell<BTreeMap<(u64, u64), Weak<Latch>>>,
}

impl Index {
    pub(crate) fn new(page_bits: u32) -> Rc<Self> {
        Rc::new(Self { page_bits, numbers: Cell::new(0), entries: RefCell::default() })
    }

    /// The pages of a range, and at least one.
    fn pages(&self, start: u64, bytes: u64) -> RangeInclusive<u64> {
        let last = start.saturating_add(bytes.saturating_sub(1));
        start.wrapping_shr(self.page_bits)..=last.wrapping_shr(self.page_bits)
    }

    pub(crate) fn insert(&self, latch: &Rc<Latch>) {
        let mut entries = self.entries.borrow_mut();
        for page in self.pages(latch.vaddr, latch.bytes) {
            entries.insert((page, latch.number), Rc::downgrade(latch));
        }
    }

    fn remove(&self, latch: &Latch) {
        let mut entries = self.entries.borrow_mut();
        for page in self.pages(latch.vaddr, latch.bytes) {
            entries.remove(&(page, latch.number));
        }
    }

    /// The latches that touch the pages of a range; those of several pages are among them several
    /// times.
    pub(crate) fn touching(&self, start: u64, bytes: u64) -> Vec<Rc<Latch>> {
        let pages = self.pages(start, bytes);
        let entries = self.entries.borrow();
        let found = entries.range((*pages.start(), 0)..=(*pages.end(), u64::MAX));
        found.filter_map(|(_, latch)| latch.upgrade()).collect()
    }
}
