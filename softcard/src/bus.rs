//! The bus between card and host: the memory at each bus address, and the rights to it.
//!
//! Ranges are as an IOMMU makes them: they may be as small as a page, neighbours on the bus need not
//! be neighbours in memory, and any of them may go away between two accesses. The bus therefore
//! [tells](Bus::watch) the holder of a view of memory when the view's range goes, and a user that found
//! no range looks again when the bus's [generation](Bus::generation) has moved on.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use hostmem::{DmaMemory, SharedMapping};
use nix::unistd::Pid;

use crate::Error;
use crate::latch::Latch;
use crate::own_memory::{NULL_MEMORY, OWN_MEMORY, OwnMemory, Part};
use crate::processes::{Processes, Slot};

/// Memory that only its owner can reach, which is asked for every access.
pub(crate) trait AskedMemory: Debug {
    /// Fetches bytes; `false` when not all of them arrived.
    fn read(&self, address: u64, into: &mut [u8]) -> bool;
    /// Places bytes; `false` when not all of them did.
    fn write(&self, address: u64, from: &[u8]) -> bool;
}

/// The memory from [`NULL_MEMORY`] on.
#[derive(Debug)]
struct NullMemory;

impl AskedMemory for NullMemory {
    fn read(&self, _: u64, into: &mut [u8]) -> bool {
        into.fill(0);
        true
    }

    fn write(&self, _: u64, _: &[u8]) -> bool {
        true
    }
}

/// The memory behind a range.
#[derive(Clone, Debug)]
pub(crate) enum Backing {
    /// Memory that is mapped here or another process's.
    Reached(DmaMemory),
    /// Memory whose owner is asked.
    Asked(Rc<dyn AskedMemory>),
}

/// The accesses that the card may make in a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rights {
    pub(crate) read: bool,
    pub(crate) write: bool,
}

impl Rights {
    pub(crate) const NONE: Self = Self { read: false, write: false };
    pub(crate) const READ: Self = Self { read: true, write: false };
    pub(crate) const WRITE: Self = Self { read: false, write: true };
    pub(crate) const BOTH: Self = Self { read: true, write: true };

    fn include(self, wanted: Self) -> bool {
        (self.read || !wanted.read) && (self.write || !wanted.write)
    }
}

#[derive(Debug)]
struct Range {
    /// The number of ranges mapped up to it, itself included.
    number: u64,
    /// The last byte, which may be the last one there is.
    last: u64,
    rights: Rights,
    backing: Backing,
    /// The process that owns the memory, where it is another one.
    process: Option<Slot>,
    /// The latches that remember the range.
    watchers: Vec<Weak<Latch>>,
}

impl Range {
    /// Adds a latch to those told of the range's end. Latches that are gone, or came twice, make room first.
    fn watch(&mut self, latch: &Rc<Latch>) {
        if !latch.watches(self.number) {
            return;
        }
        if self.watchers.len() == self.watchers.capacity() {
            self.watchers.retain(|latch| latch.strong_count() > 0);
            self.watchers.sort_unstable_by_key(Weak::as_ptr);
            self.watchers.dedup_by(|one, other| one.ptr_eq(other));
        }
        self.watchers.push(Rc::downgrade(latch));
    }

    /// Tells the latches that the range found may not hold any more.
    fn tell(&self) {
        for latch in self.watchers.iter().filter_map(Weak::upgrade) {
            latch.look_again();
        }
    }
}

/// The memory at a bus address.
pub(crate) enum BusMemory {
    Shared(Arc<SharedMapping>, usize),
    Process(Slot, usize),
    Asked(Rc<dyn AskedMemory>),
}

/// A range of program memory that was found before, with all rights.
#[derive(Clone, Copy, Debug)]
struct FoundRange {
    address: u64,
    length: u64,
    process: Slot,
    base: u64,
}

/// The host's memory as the card reaches it over the bus.
#[derive(Debug)]
pub(crate) struct Bus {
    ranges: RefCell<BTreeMap<u64, Range>>,
    /// Ranges that were ever mapped.
    mapped: Cell<u64>,
    processes: RefCell<Processes>,
    generation: Cell<u64>,
    /// Whether the card may speak first on the bus.
    master: Cell<bool>,
    /// The range found last: the elements of a burst mostly lie in one.
    last: Cell<Option<FoundRange>>,
    /// Accesses of the card that found no memory, and the last one that was not told yet.
    refusals: Cell<u64>,
    refused: Cell<Option<(u64, Rights)>>,
    /// The card's own memory.
    pub(crate) own: OwnMemory,
    /// The memory at addresses where it has none.
    null: Rc<dyn AskedMemory>,
}

impl Default for Bus {
    fn default() -> Self {
        Self {
            ranges: RefCell::default(),
            mapped: Cell::new(0),
            processes: RefCell::default(),
            generation: Cell::new(1),
            master: Cell::new(true),
            last: Cell::new(None),
            refusals: Cell::new(0),
            refused: Cell::new(None),
            own: OwnMemory::default(),
            null: Rc::new(NullMemory),
        }
    }
}

/// Bus addresses of the card are below this, as the shell's 44 bits have it.
const ADDRESS_LIMIT: u64 = 1 << 44;

impl Bus {
    /// Bytes that a range takes with two latches that watch it, in a tree whose nodes are half full at least.
    pub(crate) const RANGE_BYTES: usize =
        2 * size_of::<(u64, Range)>() + 4 * size_of::<Weak<Latch>>();

    /// A number that changes whenever reachable memory may no longer be, or the other way round.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.get()
    }

    fn changed(&self) {
        self.last.set(None);
        self.generation.set(self.generation.get().wrapping_add(1));
    }

    /// Lets the card reach memory, or keeps it from reaching any: bus mastering.
    pub(crate) fn set_master(&self, master: bool) {
        if self.master.replace(master) != master {
            self.ranges.borrow().values().for_each(Range::tell);
            self.changed();
        }
    }

    /// Maps a range that overlaps no other and that the card can address.
    pub(crate) fn map(&self, address: u64, length: u64, memory: DmaMemory) -> Result<(), Error> {
        if address.checked_add(length).is_none_or(|end| end > ADDRESS_LIMIT) {
            return Err(Error::BadRange { iova: address, length });
        }
        self.map_any(address, length, Rights::BOTH, Backing::Reached(memory))
    }

    /// Maps a range that overlaps no other, even one that the card cannot address.
    pub(crate) fn map_any(
        &self,
        address: u64,
        length: u64,
        rights: Rights,
        backing: Backing,
    ) -> Result<(), Error> {
        let last = length.checked_sub(1).and_then(|more| address.checked_add(more));
        let last = last.ok_or(Error::BadRange { iova: address, length })?;
        let mut ranges = self.ranges.borrow_mut();
        let below = ranges.range(..=last).next_back();
        if below.is_some_and(|(_, range)| range.last >= address) {
            return Err(Error::Overlap { iova: address, length });
        }
        let process = match &backing {
            Backing::Reached(DmaMemory::Process { process, .. }) => {
                Some(self.processes.borrow_mut().enter(process))
            }
            _ => None,
        };
        let number = self.mapped.get().wrapping_add(1);
        self.mapped.set(number);
        let watchers = Vec::new();
        ranges.insert(address, Range { number, last, rights, backing, process, watchers });
        self.changed();
        Ok(())
    }

    /// Unmaps every range that lies inside the given one; answers how many.
    pub(crate) fn unmap(&self, address: u64, length: u64) -> usize {
        let Some(more) = length.checked_sub(1) else { return 0 };
        let last = address.saturating_add(more);
        let mut ranges = self.ranges.borrow_mut();
        let inside: Vec<u64> = ranges
            .range(address..=last)
            .filter(|(_, range)| range.last <= last)
            .map(|(start, _)| *start)
            .collect();
        for range in inside.iter().filter_map(|start| ranges.remove(start)) {
            range.tell();
            if let Some(process) = range.process {
                self.processes.borrow_mut().leave(process);
            }
        }
        self.changed();
        inside.len()
    }

    /// Unmaps everything.
    pub(crate) fn clear(&self) {
        let ranges = std::mem::take(&mut *self.ranges.borrow_mut());
        ranges.values().for_each(Range::tell);
        self.changed();
    }

    /// Whether a boundary of the given range lies inside a mapped one.
    pub(crate) fn cuts(&self, address: u64, length: u64) -> bool {
        let Some(more) = length.checked_sub(1) else { return false };
        let last = address.saturating_add(more);
        let ranges = self.ranges.borrow();
        let cut = |at: u64| {
            let below = ranges.range(..at).next_back();
            below.is_some_and(|(_, range)| range.last >= at)
        };
        cut(address) || last.checked_add(1).is_some_and(cut)
    }

    /// Ranges that are mapped.
    pub(crate) fn ranges(&self) -> usize {
        self.ranges.borrow().len()
    }

    /// The memory of `length` bytes from `address`, if that is one range with these rights.
    #[inline]
    pub(crate) fn find(&self, address: u64, length: u64, wanted: Rights) -> Option<BusMemory> {
        if let Some(last) = self.last.get() {
            let within = address.wrapping_sub(last.address);
            if within < last.length && length <= last.length.wrapping_sub(within) {
                let base = usize::try_from(last.base.checked_add(within)?).ok()?;
                return Some(BusMemory::Process(last.process, base));
            }
        }
        let (place, bytes) = self.look(address, wanted)?;
        (length <= bytes).then_some(place)
    }

    /// The memory at the one place that a latch has, if that is one range that may be read and written; the latch's
    /// generation changes when that range goes.
    pub(crate) fn watch(&self, latch: &Rc<Latch>) -> Option<BusMemory> {
        let address = latch.base()?;
        let found = self.find(address, latch.bytes(), Rights::BOTH)?;
        // The card's own memory stays where it is.
        if address >= OWN_MEMORY {
            return Some(found);
        }
        let mut ranges = self.ranges.borrow_mut();
        let (_, range) = ranges.range_mut(..=address).next_back()?;
        range.watch(latch);
        Some(found)
    }

    /// The memory at `address`, and the number of bytes from there on in the same range.
    pub(crate) fn look_up(&self, address: u64, wanted: Rights) -> Option<(BusMemory, u64)> {
        let found = self.look(address, wanted);
        if found.is_none() {
            self.refuse(address, wanted);
        }
        found
    }

    /// The memory as by [`Bus::find`], for an access that is made now or not at all.
    pub(crate) fn access(&self, address: u64, length: u64, wanted: Rights) -> Option<BusMemory> {
        let found = self.find(address, length, wanted);
        if found.is_none() {
            self.refuse(address, wanted);
        }
        found
    }

    fn refuse(&self, address: u64, wanted: Rights) {
        // An address that the card cannot put on the bus is not refused there.
        if wanted != Rights::NONE && address < ADDRESS_LIMIT {
            self.refused.set(Some((address, wanted)));
            self.refusals.set(self.refusals.get().saturating_add(1));
        }
    }

    fn look(&self, address: u64, wanted: Rights) -> Option<(BusMemory, u64)> {
        #[cfg(test)]
        tests::LOOKS.with(|looks| looks.set(looks.get() + 1));
        if address >= NULL_MEMORY {
            return Some((BusMemory::Asked(self.null.clone()), u64::MAX.wrapping_sub(address)));
        }
        if address >= OWN_MEMORY {
            let Part { mapping, offset, left } = self.own.at(address)?;
            return Some((BusMemory::Shared(Arc::clone(mapping), offset), left));
        }
        if !self.master.get() || address >= ADDRESS_LIMIT {
            return None;
        }
        let ranges = self.ranges.borrow();
        let (start, range) = ranges.range(..=address).next_back()?;
        let within = address.checked_sub(*start)?;
        let bytes = range.last.checked_sub(address)?.checked_add(1)?;
        if !range.rights.include(wanted) {
            return None;
        }
        let place = match &range.backing {
            Backing::Reached(DmaMemory::Shared { mapping, offset }) => {
                let offset = usize::try_from(offset.checked_add(within)?).ok()?;
                BusMemory::Shared(Arc::clone(mapping), offset)
            }
            Backing::Reached(DmaMemory::Process { address: base, .. }) => {
                let process = range.process?;
                if range.rights == Rights::BOTH {
                    let length = bytes.saturating_add(within);
                    self.last.set(Some(FoundRange {
                        address: *start,
                        length,
                        process,
                        base: *base,
                    }));
                }
                BusMemory::Process(process, usize::try_from(base.checked_add(within)?).ok()?)
            }
            Backing::Asked(owner) => BusMemory::Asked(Rc::clone(owner)),
        };
        Some((place, bytes.min(ADDRESS_LIMIT.saturating_sub(address))))
    }

    /// The id by which a process's memory is reached; `None` once it is not its own any more, which
    /// the time `now`, in nanoseconds, helps to tell.
    pub(crate) fn pid(&self, process: Slot, now: u64) -> Option<Pid> {
        self.processes.borrow().pid(process, now)
    }

    /// Stops all accesses to the memory of a process that did not answer; its id.
    pub(crate) fn give_up(&self, process: Slot) -> Option<Pid> {
        self.processes.borrow().give_up(process)
    }

    /// The last access of the card that found no memory, and was not told yet.
    pub(crate) fn take_refused(&self) -> Option<(u64, Rights)> {
        self.refused.take()
    }

    /// Accesses of the card that nothing answered.
    pub(crate) fn refusals(&self) -> u64 {
        self.refusals.get()
    }

    /// The number of latches remembered, of all ranges.
    #[cfg(test)]
    pub(crate) fn watchers(&self) -> usize {
        self.ranges.borrow().values().map(|range| range.watchers.len()).sum()
    }

    /// Whether all of `bytes` bytes from `address` are mapped, to any memory with any rights.
    #[cfg(test)]
    pub(crate) fn reachable(&self, address: u64, bytes: u64) -> bool {
        self.all(address, bytes, |_| true)
    }

    /// Whether rings and records can be there: one word at a time must be reachable.
    pub(crate) fn holds_rings(&self, address: u64, bytes: u64) -> bool {
        self.all(address, bytes, |place| !matches!(place, BusMemory::Process(..)))
    }

    fn all(&self, address: u64, bytes: u64, fits: impl Fn(&BusMemory) -> bool) -> bool {
        let (mut at, mut left) = (address, bytes.max(1));
        while left > 0 {
            match self.look_up(at, Rights::NONE) {
                Some((place, here)) if fits(&place) => {
                    left = left.saturating_sub(here);
                    at = at.saturating_add(here);
                }
                _ => return false,
            }
        }
        true
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    thread_local! {
        /// The number of this thread's searches for memory at an address.
        pub(crate) static LOOKS: Cell<usize> = const { Cell::new(0) };
    }

    fn memory() -> DmaMemory {
        let process = crate::processes::tests::process(std::process::id());
        DmaMemory::Process { process, address: 0x7000_0000 }
    }

    #[test]
    fn ranges_do_not_overlap_and_stay_below_the_shells_limit() {
        let bus = Bus::default();
        bus.map(0x1000, 16, memory()).unwrap();
        assert!(matches!(bus.map(0x100f, 1, memory()), Err(Error::Overlap { .. })));
        assert!(matches!(bus.map(0xff0, 17, memory()), Err(Error::Overlap { .. })));
        bus.map(0x1010, 16, memory()).unwrap();
        assert!(matches!(bus.map(0, 0, memory()), Err(Error::BadRange { .. })));
        let high = bus.map(ADDRESS_LIMIT - 8, 16, memory());
        assert!(matches!(high, Err(Error::BadRange { .. })));
        assert_eq!(bus.unmap(0x1000, 0x20), 2);
        assert!(!bus.reachable(0x1000, 1) && !bus.reachable(0x1010, 1));
    }

    #[test]
    fn a_range_above_the_shells_limit_can_be_mapped_and_not_reached() {
        let bus = Bus::default();
        let reached = || Backing::Reached(memory());
        bus.map_any(ADDRESS_LIMIT - 4096, 8192, Rights::BOTH, reached()).unwrap();
        assert!(bus.reachable(ADDRESS_LIMIT - 4096, 4096));
        assert!(!bus.reachable(ADDRESS_LIMIT - 4096, 4097));
        bus.map_any(OWN_MEMORY - 4096, 4096, Rights::BOTH, reached()).unwrap();
        assert!(!bus.reachable(OWN_MEMORY - 4096, 1));
        // Where there is no memory of any kind, nothing that is mapped is reached either.
        bus.map_any(u64::MAX - 4095, 4096, Rights::BOTH, reached()).unwrap();
        let found = bus.find(u64::MAX - 4095, 1, Rights::READ);
        assert!(matches!(found, Some(BusMemory::Asked(_))), "it is mapped memory");
        assert_eq!(bus.unmap(ADDRESS_LIMIT - 4096, u64::MAX), 3);
    }

    #[test]
    fn unmapping_takes_what_lies_inside_and_sees_what_it_would_cut() {
        let bus = Bus::default();
        for page in 1..=4 {
            bus.map(page << 12, 4096, memory()).unwrap();
        }
        assert!(bus.cuts(0x1800, 4096) && bus.cuts(0x1000, 0x1800) && bus.cuts(0x1800, 16));
        assert!(!bus.cuts(0, 0x10_0000) && !bus.cuts(0x1000, 4096) && !bus.cuts(0x9000, 16));
        assert_eq!(bus.unmap(0, 0x3000), 2);
        assert_eq!(bus.ranges(), 2);
        assert_eq!(bus.unmap(0x8000, 0x3000), 0);
        assert_eq!(bus.unmap(0x3000, 0), 0);
    }

    #[test]
    fn nothing_is_reached_without_the_right_to_it_nor_without_bus_mastering() {
        let bus = Bus::default();
        bus.map_any(0x1000, 4096, Rights::READ, Backing::Reached(memory())).unwrap();
        assert!(bus.find(0x1000, 1, Rights::READ).is_some());
        assert_eq!(bus.take_refused(), None);
        assert!(bus.access(0x1000, 1, Rights::WRITE).is_none());
        assert_eq!((bus.take_refused(), bus.refusals()), (Some((0x1000, Rights::WRITE)), 1));
        let generation = bus.generation();
        bus.set_master(false);
        assert!(bus.find(0x1000, 1, Rights::READ).is_none() && !bus.reachable(0x1000, 1));
        assert_ne!(bus.generation(), generation);
    }

    #[test]
    fn what_spans_ranges_is_reachable_unless_there_is_a_gap() {
        let bus = Bus::default();
        for page in [1, 2, 4] {
            bus.map(page << 12, 4096, memory()).unwrap();
        }
        assert!(bus.reachable(0x1000, 0x2000) && !bus.reachable(0x1000, 0x2001));
        assert!(!bus.holds_rings(0x1000, 64));
        assert!(bus.find(0x1f00, 0x200, Rights::READ).is_none());
    }
}
