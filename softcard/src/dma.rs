//! Vectored copies between the card and host memory.

use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::rc::Rc;

use hostmem::{DmaMemory, Error as HostError, RemoteRange, SharedMapping};
use nix::unistd::Pid;
use queue_engine::{HostMemory, ReadElement, WriteElement};
use smallvec::SmallVec;

use crate::Error;
use crate::bus::{AskedMemory, Bus, Place, Rights};
use crate::mmu::Direction;
use crate::processes::Slot;

/// The address space of one card.
#[derive(Debug, Default)]
pub(crate) struct AddressSpace {
    pub(crate) bus: Rc<Bus>,
    /// The card's time in nanoseconds, as of its last round.
    pub(crate) now: u64,
    /// Payload bytes fetched from host memory.
    pub(crate) bytes_read: u64,
    /// Payload bytes placed in host memory.
    pub(crate) bytes_written: u64,
    /// Elements that could not be copied.
    pub(crate) faults: u64,
    /// Elements fetched and placed, and the 64-byte beats they took, modulo 2^32.
    pub(crate) requests_read: u32,
    pub(crate) requests_written: u32,
    pub(crate) beats_read: u32,
    pub(crate) beats_written: u32,
}

/// What a burst came to.
#[derive(Clone, Copy, Debug, Default)]
struct Copied {
    bytes: u64,
    elements: u32,
    beats: u32,
    faults: u64,
}

/// Bytes of a beat of the DMA streams.
const BEAT: usize = 64;

impl AddressSpace {
    /// Maps a range that overlaps no other.
    pub(crate) fn map(&self, iova: u64, length: u64, memory: DmaMemory) -> Result<(), Error> {
        self.bus.map(iova, length, memory)
    }

    /// Unmaps every range that lies inside the given one.
    pub(crate) fn unmap(&self, iova: u64, length: u64) {
        self.bus.unmap(iova, length);
    }
}

/// Elements of a burst, and ranges of a process, for which a call's lists need no allocation.
const BATCH: usize = 128;

/// How many elements lie wholly in the first `moved` bytes.
fn whole<E: Element>(burst: &[E], moved: usize) -> usize {
    let mut left = moved;
    let whole = burst.iter().take_while(|element| {
        let fits = element.length() <= left;
        left = left.saturating_sub(element.length());
        fits
    });
    whole.count()
}

/// Adds a range of a process's memory to a list, where adjacent ones are one: the kernel finds and
/// pins the pages of each range by itself.
#[inline]
fn add_range(ranges: &mut SmallVec<[RemoteRange; BATCH]>, address: usize, length: usize) {
    match ranges.last_mut() {
        Some(last) if last.base.checked_add(last.len) == Some(address) => {
            last.len = last.len.saturating_add(length);
        }
        _ => ranges.push(RemoteRange { base: address, len: length }),
    }
}

/// Bytes that moved before a failure, or all of them.
fn moved(outcome: Result<usize, HostError>) -> usize {
    match outcome {
        Ok(moved) => moved,
        Err(HostError::ProcessMemory { moved, .. }) => moved,
        Err(_) => 0,
    }
}

/// An element of a burst, whichever way its bytes go.
pub(crate) trait Element: Sized {
    /// The element's own bytes.
    type Bytes;
    /// What the system call takes for the element's own bytes.
    type Local<'b>
    where
        Self: 'b;

    /// What the element does to host memory.
    const RIGHTS: Rights;
    /// Which way its transfers go through the MMU.
    const DIRECTION: Direction;

    /// An element that has not been copied.
    fn new(iova: u64, bytes: Self::Bytes) -> Self;
    /// The first `length` bytes, or all there are, and those behind them.
    fn split(bytes: Self::Bytes, length: usize) -> (Self::Bytes, Self::Bytes);
    fn iova(&self) -> u64;
    fn length(&self) -> usize;
    fn is_done(&self) -> bool;
    fn set_done(&mut self);
    /// Copies a part from or to memory that is mapped here; whether that was possible.
    fn copy_here(&mut self, part: Range<usize>, mapping: &SharedMapping, offset: usize) -> bool;
    /// Copies a part from or to memory whose owner is asked; whether that was possible.
    fn copy_asked(&mut self, part: Range<usize>, owner: &dyn AskedMemory, address: u64) -> bool;
    /// Copies a part from or to another process; whether that was possible.
    fn copy_process(&mut self, part: Range<usize>, pid: Pid, address: usize) -> bool;
    fn local(&mut self) -> Self::Local<'_>;
    /// Copies a batch from or to another process; answers how many bytes moved.
    fn copy_there(
        pid: Pid,
        local: &mut [Self::Local<'_>],
        remote: &[RemoteRange],
    ) -> Result<usize, HostError>;
}

impl<'a> Element for ReadElement<'a> {
    type Bytes = &'a mut [u8];
    type Local<'b>
        = IoSliceMut<'b>
    where
        Self: 'b;

    const RIGHTS: Rights = Rights::READ;
    const DIRECTION: Direction = Direction::Read;

    fn new(iova: u64, into: &'a mut [u8]) -> Self {
        Self { iova, into, done: false }
    }

    fn split(bytes: &'a mut [u8], length: usize) -> (&'a mut [u8], &'a mut [u8]) {
        bytes.split_at_mut(bytes.len().min(length))
    }

    fn iova(&self) -> u64 {
        self.iova
    }

    fn length(&self) -> usize {
        self.into.len()
    }

    fn is_done(&self) -> bool {
        self.done
    }

    fn set_done(&mut self) {
        self.done = true;
    }

    fn copy_here(&mut self, part: Range<usize>, mapping: &SharedMapping, offset: usize) -> bool {
        self.into.get_mut(part).is_some_and(|part| mapping.read_bytes(offset, part).is_ok())
    }

    fn copy_asked(&mut self, part: Range<usize>, owner: &dyn AskedMemory, address: u64) -> bool {
        self.into.get_mut(part).is_some_and(|part| owner.read(address, part))
    }

    fn copy_process(&mut self, part: Range<usize>, pid: Pid, address: usize) -> bool {
        let Some(part) = self.into.get_mut(part) else { return false };
        let remote = [RemoteRange { base: address, len: part.len() }];
        Self::copy_there(pid, &mut [IoSliceMut::new(part)], &remote).is_ok()
    }

    fn local(&mut self) -> IoSliceMut<'_> {
        IoSliceMut::new(self.into)
    }

    fn copy_there(
        pid: Pid,
        local: &mut [IoSliceMut<'_>],
        remote: &[RemoteRange],
    ) -> Result<usize, HostError> {
        hostmem::process::read_vectored(pid, local, remote)
    }
}

impl<'a> Element for WriteElement<'a> {
    type Bytes = &'a [u8];
    type Local<'b>
        = IoSlice<'b>
    where
        Self: 'b;

    const RIGHTS: Rights = Rights::WRITE;
    const DIRECTION: Direction = Direction::Write;

    fn new(iova: u64, from: &'a [u8]) -> Self {
        Self { iova, from, done: false }
    }

    fn split(bytes: &'a [u8], length: usize) -> (&'a [u8], &'a [u8]) {
        bytes.split_at(bytes.len().min(length))
    }

    fn iova(&self) -> u64 {
        self.iova
    }

    fn length(&self) -> usize {
        self.from.len()
    }

    fn is_done(&self) -> bool {
        self.done
    }

    fn set_done(&mut self) {
        self.done = true;
    }

    fn copy_here(&mut self, part: Range<usize>, mapping: &SharedMapping, offset: usize) -> bool {
        self.from.get(part).is_some_and(|part| mapping.write_bytes(offset, part).is_ok())
    }

    fn copy_asked(&mut self, part: Range<usize>, owner: &dyn AskedMemory, address: u64) -> bool {
        self.from.get(part).is_some_and(|part| owner.write(address, part))
    }

    fn copy_process(&mut self, part: Range<usize>, pid: Pid, address: usize) -> bool {
        let Some(part) = self.from.get(part) else { return false };
        let remote = [RemoteRange { base: address, len: part.len() }];
        Self::copy_there(pid, &mut [IoSlice::new(part)], &remote).is_ok()
    }

    fn local(&mut self) -> IoSlice<'_> {
        IoSlice::new(self.from)
    }

    fn copy_there(
        pid: Pid,
        local: &mut [IoSlice<'_>],
        remote: &[RemoteRange],
    ) -> Result<usize, HostError> {
        hostmem::process::write_vectored(pid, local, remote)
    }
}

impl HostMemory for AddressSpace {
    fn read(&mut self, burst: &mut [ReadElement<'_>]) {
        let copied = self.copy(burst);
        self.bytes_read = self.bytes_read.saturating_add(copied.bytes);
        self.requests_read = self.requests_read.wrapping_add(copied.elements);
        self.beats_read = self.beats_read.wrapping_add(copied.beats);
        self.faults = self.faults.saturating_add(copied.faults);
    }

    fn write(&mut self, burst: &mut [WriteElement<'_>]) {
        let copied = self.copy(burst);
        self.bytes_written = self.bytes_written.saturating_add(copied.bytes);
        self.requests_written = self.requests_written.wrapping_add(copied.elements);
        self.beats_written = self.beats_written.wrapping_add(copied.beats);
        self.faults = self.faults.saturating_add(copied.faults);
    }
}

impl AddressSpace {
    /// Copies a burst in order.
    fn copy<E: Element>(&self, burst: &mut [E]) -> Copied {
        let mut total = Copied::default();
        let mut rest = burst;
        // Each round copies up to the first element that fails and goes on behind it.
        while !rest.is_empty() {
            let copied = self.copy_run(rest);
            let (done, behind) = rest.split_at_mut(copied.min(rest.len()));
            for element in done {
                element.set_done();
                let length = element.length();
                total.bytes = total.bytes.saturating_add(length as u64);
                total.elements = total.elements.wrapping_add(1);
                total.beats = total.beats.wrapping_add(length.div_ceil(BEAT) as u32);
            }
            rest = match (copied, behind) {
                (0, [_, behind @ ..]) => {
                    total.faults = total.faults.saturating_add(1);
                    behind
                }
                (_, behind) => behind,
            };
        }
        total
    }

    /// Copies as many of the first elements as one way of copying can; answers how many.
    fn copy_run<E: Element>(&self, burst: &mut [E]) -> usize {
        let mut there: Option<Slot> = None;
        let mut local = SmallVec::<[_; BATCH]>::new();
        let mut remote = SmallVec::new();
        let mut here = 0usize;
        for element in burst.iter_mut() {
            let length = element.length();
            match self.bus.find(element.iova(), length as u64, E::RIGHTS) {
                Some(Place::Process(process, address)) if here == 0 => {
                    if *there.get_or_insert(process) != process {
                        break;
                    }
                    local.push(element.local());
                    add_range(&mut remote, address, length);
                }
                Some(Place::Process(..)) => break,
                Some(Place::Shared(..) | Place::Asked(_)) | None => {
                    if there.is_some() || !self.copy_piecewise(element) {
                        break;
                    }
                    here = here.saturating_add(1);
                }
            }
        }
        let Some(process) = there else { return here };
        // A process that has ended has no memory, and its id may be a stranger's by now.
        let Some(pid) = self.bus.pid(process, self.now) else { return 0 };
        let moved = moved(E::copy_there(pid, &mut local, &remote));
        drop(local);
        whole(burst, moved)
    }

    /// Copies an element range by range; whether all of it could be.
    fn copy_piecewise<E: Element>(&self, element: &mut E) -> bool {
        let length = element.length();
        let mut from = 0usize;
        loop {
            let address = element.iova().saturating_add(from as u64);
            let Some((place, bytes)) = self.bus.look_up(address, E::RIGHTS) else { return false };
            let left = length.saturating_sub(from);
            let until = from.saturating_add(left.min(usize::try_from(bytes).unwrap_or(left)));
            let copied = match place {
                Place::Shared(mapping, offset) => element.copy_here(from..until, &mapping, offset),
                Place::Asked(owner) => element.copy_asked(from..until, &*owner, address),
                Place::Process(process, address) => self
                    .bus
                    .pid(process, self.now)
                    .is_some_and(|pid| element.copy_process(from..until, pid, address)),
            };
            if !copied || until >= length {
                return copied;
            }
            from = until;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::Arc;

    use queue_engine::{Record, Ring};

    use super::*;
    use crate::bus::Backing;
    use crate::mmu::Latch;
    use crate::processes::tests::process;
    use crate::views::{RecordView, RingView};

    fn own(buffer: &[u8]) -> DmaMemory {
        let process = process(std::process::id());
        DmaMemory::Process { process, address: buffer.as_ptr() as u64 }
    }

    #[test]
    fn the_id_of_a_process_that_has_ended_is_not_used() {
        // While it was not waited for, its id is still there and could be asked.
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let process = process(child.id());
        let begun = std::time::Instant::now();
        let now = || u64::try_from(begun.elapsed().as_nanos()).unwrap();
        while process.is_itself(now()) {
            assert!(begun.elapsed().as_secs() < 60, "it does not end");
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        let mut space = AddressSpace::default();
        let memory = DmaMemory::Process { process: Arc::clone(&process), address: 0x1000 };
        space.map(0x1000, 64, memory).unwrap();
        let mut burst = [WriteElement { iova: 0x1000, from: &[1; 8], done: false }];
        space.now = now() + 1_000_000_000;
        space.write(&mut burst);
        assert!(!burst[0].done);
        space.unmap(0x1000, 64);
        assert_eq!(Arc::strong_count(&process), 1, "nothing holds its handle any more");
        child.wait().unwrap();
    }

    #[test]
    fn a_burst_reads_every_element_it_can_and_tells_which_it_could_not() {
        let memory: Vec<u8> = (0..=255).collect();
        let mut space = AddressSpace::default();
        space.map(0x20_0000, 256, own(&memory)).unwrap();
        let (mut a, mut b, mut c) = ([0; 16], [0; 16], [0; 100]);
        let mut burst = [
            ReadElement { iova: 0x20_0000, into: &mut a, done: false },
            ReadElement { iova: 0x20_00f8, into: &mut b, done: false },
            ReadElement { iova: 0x20_0010, into: &mut c, done: false },
        ];
        space.read(&mut burst);
        assert_eq!(burst.each_ref().map(|element| element.done), [true, false, true]);
        assert_eq!(a[..], memory[..16]);
        assert_eq!(c[..], memory[16..116]);
        assert_eq!((space.bytes_read, space.faults), (116, 1));
    }

    #[test]
    fn memory_that_is_not_there_fails_its_element_only() {
        let memory = vec![7u8; 64];
        let mut space = AddressSpace::default();
        space.map(0x1000, 64, own(&memory)).unwrap();
        let process = process(std::process::id());
        space.map(0x4000, 64, DmaMemory::Process { process, address: 8 }).unwrap();
        let mut burst = [
            WriteElement { iova: 0x1000, from: &[1; 8], done: false },
            WriteElement { iova: 0x4000, from: &[2; 8], done: false },
            WriteElement { iova: 0x1008, from: &[3; 8], done: false },
        ];
        space.write(&mut burst);
        assert_eq!(burst.each_ref().map(|element| element.done), [true, false, true]);
        assert_eq!((space.bytes_written, space.faults), (16, 1));
    }

    #[test]
    fn a_range_that_was_found_before_is_found_no_more_once_it_is_unmapped() {
        let memory = vec![7u8; 64];
        let mut space = AddressSpace::default();
        space.map(0x1000, 64, own(&memory)).unwrap();
        let reads = |space: &mut AddressSpace, iova| {
            let mut byte = [0; 2];
            let mut burst = [ReadElement { iova, into: &mut byte, done: false }];
            space.read(&mut burst);
            burst[0].done
        };
        assert!(reads(&mut space, 0x1000) && reads(&mut space, 0x103e));
        assert!(!reads(&mut space, 0x103f) && !reads(&mut space, 0xfff));
        space.unmap(0x1000, 64);
        assert!(!reads(&mut space, 0x1000));
    }

    /// Memory that somebody must be asked for.
    #[derive(Debug)]
    struct Asked(std::cell::RefCell<Vec<u8>>);

    impl AskedMemory for Asked {
        fn read(&self, address: u64, into: &mut [u8]) -> bool {
            let start = usize::try_from(address - 0x3000).unwrap();
            into.copy_from_slice(&self.0.borrow()[start..start + into.len()]);
            true
        }
        fn write(&self, address: u64, from: &[u8]) -> bool {
            let start = usize::try_from(address - 0x3000).unwrap();
            self.0.borrow_mut()[start..start + from.len()].copy_from_slice(from);
            true
        }
    }

    /// A page of each kind in a row: shared, another process's, asked for.
    fn three_kinds(buffer: &[u8], asked: &Rc<Asked>) -> AddressSpace {
        let space = AddressSpace::default();
        let fd = hostmem::memfd::create("shared", 4096).unwrap();
        let mapping = SharedMapping::new(fd.as_fd(), 0, 4096, hostmem::Access::ReadWrite).unwrap();
        let shared = DmaMemory::Shared { mapping: Arc::new(mapping), offset: 0 };
        space.map(0x1000, 4096, shared).unwrap();
        space.map(0x2000, 4096, own(buffer)).unwrap();
        let owner = Backing::Asked(asked.clone());
        space.bus.map_any(0x3000, 4096, Rights::BOTH, owner).unwrap();
        space
    }

    #[test]
    fn an_element_may_span_ranges_of_every_kind() {
        let buffer = vec![0u8; 4096];
        let asked = Rc::new(Asked(vec![0; 4096].into()));
        let mut space = three_kinds(&buffer, &asked);
        let bytes: Vec<u8> = (0..4296u32).map(|i| i as u8).collect();
        let mut burst = [WriteElement { iova: 0x1f9c, from: &bytes, done: false }];
        space.write(&mut burst);
        assert!(burst[0].done);
        let mut back = vec![0; 4296];
        let mut burst = [ReadElement { iova: 0x1f9c, into: &mut back, done: false }];
        space.read(&mut burst);
        assert!(burst[0].done);
        assert_eq!(back, bytes);
        assert_eq!(asked.0.borrow()[..100], bytes[4196..]);
        let mut beyond = [ReadElement { iova: 0x3f9c, into: &mut back[..101], done: false }];
        space.read(&mut beyond);
        assert!(!beyond[0].done);
    }

    #[test]
    fn a_ring_scattered_over_the_bus_reads_as_written_until_it_is_unmapped() {
        let asked = Rc::new(Asked(vec![0; 4096].into()));
        let space = three_kinds(&[0; 4096], &asked);
        space.unmap(0x2000, 4096);
        let fd = hostmem::memfd::create("shared", 8192).unwrap();
        let mapping = SharedMapping::new(fd.as_fd(), 0, 8192, hostmem::Access::ReadWrite).unwrap();
        let mapping = Arc::new(mapping);
        space.map(0x2000, 4096, DmaMemory::Shared { mapping, offset: 4096 }).unwrap();
        let ring = RingView::new(&space.bus, Latch::direct(0x1000, 8192), 128);
        for index in 0..128u32 {
            ring.publish(index, &[u64::from(index); 8]);
        }
        let asked_for = RingView::new(&space.bus, Latch::direct(0x3000, 4096), 64);
        asked_for.write(65, &[7; 8]);
        asked_for.publish(66, &[8; 8]);
        for index in 0..128 {
            assert_eq!(ring.read(index), [u64::from(index); 8]);
        }
        assert_eq!([asked_for.read(1), asked_for.read(2)], [[7; 8], [8; 8]]);
        let record = RecordView::new(&space.bus, Latch::direct(0x3040, 64));
        assert_eq!((record.load_u32(4), record.load_u64(8)), (0, 7));
        space.unmap(0x2000, 4096);
        assert_eq!(ring.read(63), [63; 8]);
        assert_eq!(ring.read(64), [u64::MAX; 8]);
        ring.write(64, &[9; 8]);
        space.unmap(0x3000, 4096);
        assert_eq!(record.load_u32(4), u32::MAX);
        assert_eq!(asked.0.borrow()[72], 7);
    }
}
