//! The card's view of host memory: an address space of ranges, and vectored copies to and from it.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

use fpga_regs::Block;
use hostmem::{BlockRing, Error as HostError, RemoteRange, SharedMapping};
use nix::unistd::Pid;
use queue_engine::{HostMemory, ReadElement, Record, Ring, Rings, WriteElement};

use crate::Error;

/// Memory behind a range of card addresses.
#[derive(Clone, Debug)]
pub enum DmaMemory {
    /// Memory mapped here: rings.
    Shared {
        /// The mapping.
        mapping: Arc<SharedMapping>,
        /// Byte offset of the range in it.
        offset: u64,
    },
    /// Memory of another process: what programs register.
    Process {
        /// The process.
        pid: i32,
        /// First byte there.
        address: u64,
    },
}

#[derive(Debug)]
struct Mapped {
    length: u64,
    memory: DmaMemory,
}

/// What lies at a card address.
enum Place<'a> {
    Shared(&'a Arc<SharedMapping>, usize),
    Process(Pid, usize),
}

/// A range of program memory that was found before.
#[derive(Clone, Copy, Debug)]
struct Found {
    iova: u64,
    length: u64,
    pid: Pid,
    address: u64,
}

/// The address space of one card.
#[derive(Debug, Default)]
pub(crate) struct AddressSpace {
    ranges: BTreeMap<u64, Mapped>,
    /// The range found last: the elements of a burst mostly lie in one.
    last: Cell<Option<Found>>,
    /// Payload bytes fetched from host memory.
    pub(crate) bytes_read: u64,
    /// Payload bytes placed in host memory.
    pub(crate) bytes_written: u64,
    /// Elements that could not be copied.
    pub(crate) faults: u64,
}

/// Card addresses are below this, as the shell's 44 bits have it.
const ADDRESS_LIMIT: u64 = 1 << 44;

impl AddressSpace {
    /// Maps a range that overlaps no other.
    pub(crate) fn map(&mut self, iova: u64, length: u64, memory: DmaMemory) -> Result<(), Error> {
        let end = iova.checked_add(length).filter(|end| length > 0 && *end <= ADDRESS_LIMIT);
        let end = end.ok_or(Error::BadRange { iova, length })?;
        let below = self.ranges.range(..end).next_back();
        if below.is_some_and(|(start, mapped)| start.saturating_add(mapped.length) > iova) {
            return Err(Error::Overlap { iova, length });
        }
        self.ranges.insert(iova, Mapped { length, memory });
        Ok(())
    }

    /// Unmaps every range that lies inside the given one.
    pub(crate) fn unmap(&mut self, iova: u64, length: u64) {
        self.last.set(None);
        let end = iova.saturating_add(length);
        let inside: Vec<u64> = self
            .ranges
            .range(iova..end)
            .filter(|(start, mapped)| start.saturating_add(mapped.length) <= end)
            .map(|(start, _)| *start)
            .collect();
        for start in inside {
            self.ranges.remove(&start);
        }
    }

    #[inline]
    fn find(&self, iova: u64, length: u64) -> Option<Place<'_>> {
        if let Some(last) = self.last.get() {
            let within = iova.wrapping_sub(last.iova);
            if within < last.length && length <= last.length.wrapping_sub(within) {
                let address = usize::try_from(last.address.checked_add(within)?).ok()?;
                return Some(Place::Process(last.pid, address));
            }
        }
        self.look_up(iova, length)
    }

    fn look_up(&self, iova: u64, length: u64) -> Option<Place<'_>> {
        let (start, mapped) = self.ranges.range(..=iova).next_back()?;
        let within = iova.checked_sub(*start)?;
        if within.checked_add(length)? > mapped.length {
            return None;
        }
        Some(match &mapped.memory {
            DmaMemory::Shared { mapping, offset } => {
                Place::Shared(mapping, usize::try_from(offset.checked_add(within)?).ok()?)
            }
            DmaMemory::Process { pid, address } => {
                let pid = Pid::from_raw(*pid);
                let found = Found { iova: *start, length: mapped.length, pid, address: *address };
                self.last.set(Some(found));
                let address = usize::try_from(address.checked_add(within)?).ok()?;
                Place::Process(pid, address)
            }
        })
    }

    fn shared(&self, iova: u64, bytes: u64) -> Option<(Arc<SharedMapping>, usize)> {
        match self.find(iova, bytes)? {
            Place::Shared(mapping, offset) => Some((Arc::clone(mapping), offset)),
            Place::Process(..) => None,
        }
    }
}

/// A doorbell record in ring memory.
#[derive(Debug)]
pub(crate) struct RecordView(hostmem::Record);

impl Record for RecordView {
    #[inline]
    fn load_u32(&self, offset: usize) -> u32 {
        self.0.load_acquire_u32(offset.wrapping_div(4))
    }

    #[inline]
    fn load_u64(&self, offset: usize) -> u64 {
        self.0.load_acquire_u64(offset.wrapping_div(8))
    }
}

/// A ring in ring memory.
#[derive(Debug)]
pub(crate) struct RingView(BlockRing);

impl Ring for RingView {
    #[inline]
    fn read(&self, index: u32) -> Block {
        self.0.read(index)
    }

    #[inline]
    fn write(&self, index: u32, value: &Block) {
        self.0.write(index, value);
    }

    #[inline]
    fn publish(&self, index: u32, value: &Block) {
        self.0.write_published(index, value);
    }
}

impl Rings for AddressSpace {
    type Record = RecordView;
    type Ring = RingView;

    fn record(&self, iova: u64) -> Option<RecordView> {
        let (mapping, offset) = self.shared(iova, fpga_regs::BLOCK_BYTES as u64)?;
        hostmem::Record::new(mapping, offset).ok().map(RecordView)
    }

    fn ring(&self, iova: u64, log2_blocks: u8) -> Option<RingView> {
        let blocks = 1u32.checked_shl(u32::from(log2_blocks))?;
        let bytes = u64::from(blocks).checked_mul(fpga_regs::BLOCK_BYTES as u64)?;
        let (mapping, offset) = self.shared(iova, bytes)?;
        BlockRing::new(mapping, offset, blocks).ok().map(RingView)
    }

    fn reachable(&self, iova: u64, bytes: u64) -> bool {
        self.find(iova, bytes).is_some()
    }
}

/// Elements that follow one another in one process, to be copied by one call.
struct Batch<L> {
    pid: Pid,
    local: Vec<L>,
    remote: Vec<RemoteRange>,
    /// Bytes of each element.
    lengths: Vec<usize>,
}

impl<L> Batch<L> {
    fn new(pid: Pid) -> Self {
        Self { pid, local: Vec::new(), remote: Vec::new(), lengths: Vec::new() }
    }

    fn push(&mut self, local: L, address: usize, length: usize) {
        self.local.push(local);
        self.lengths.push(length);
        match self.remote.last_mut() {
            Some(last) if last.base.checked_add(last.len) == Some(address) => {
                last.len = last.len.saturating_add(length);
            }
            _ => self.remote.push(RemoteRange { base: address, len: length }),
        }
    }

    /// How many elements lie wholly in the first `moved` bytes.
    fn whole(&self, moved: usize) -> usize {
        let mut left = moved;
        let whole = self.lengths.iter().take_while(|length| {
            let fits = **length <= left;
            left = left.saturating_sub(**length);
            fits
        });
        whole.count()
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
trait Element {
    /// What the system call takes for the element's own bytes.
    type Local<'b>
    where
        Self: 'b;

    fn iova(&self) -> u64;
    fn length(&self) -> usize;
    fn set_done(&mut self);
    /// Copies from or to memory that is mapped here; whether that was possible.
    fn copy_here(&mut self, mapping: &SharedMapping, offset: usize) -> bool;
    fn local(&mut self) -> Self::Local<'_>;
    /// Copies a batch from or to another process; answers how many bytes moved.
    fn copy_there(
        pid: Pid,
        local: &mut [Self::Local<'_>],
        remote: &[RemoteRange],
    ) -> Result<usize, HostError>;
}

impl Element for ReadElement<'_> {
    type Local<'b>
        = IoSliceMut<'b>
    where
        Self: 'b;

    fn iova(&self) -> u64 {
        self.iova
    }

    fn length(&self) -> usize {
        self.into.len()
    }

    fn set_done(&mut self) {
        self.done = true;
    }

    fn copy_here(&mut self, mapping: &SharedMapping, offset: usize) -> bool {
        mapping.read_bytes(offset, self.into).is_ok()
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

impl Element for WriteElement<'_> {
    type Local<'b>
        = IoSlice<'b>
    where
        Self: 'b;

    fn iova(&self) -> u64 {
        self.iova
    }

    fn length(&self) -> usize {
        self.from.len()
    }

    fn set_done(&mut self) {
        self.done = true;
    }

    fn copy_here(&mut self, mapping: &SharedMapping, offset: usize) -> bool {
        mapping.write_bytes(offset, self.from).is_ok()
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
        let (bytes, faults) = self.copy(burst);
        self.bytes_read = self.bytes_read.saturating_add(bytes);
        self.faults = self.faults.saturating_add(faults);
    }

    fn write(&mut self, burst: &mut [WriteElement<'_>]) {
        let (bytes, faults) = self.copy(burst);
        self.bytes_written = self.bytes_written.saturating_add(bytes);
        self.faults = self.faults.saturating_add(faults);
    }
}

impl AddressSpace {
    /// Copies a burst in order; answers bytes copied and elements that could not be.
    fn copy<E: Element>(&self, burst: &mut [E]) -> (u64, u64) {
        let (mut bytes, mut faults) = (0u64, 0u64);
        let mut rest = burst;
        // Each round copies up to the first element that fails and goes on behind it.
        while !rest.is_empty() {
            let copied = self.copy_run(rest);
            let (done, behind) = rest.split_at_mut(copied.min(rest.len()));
            for element in done {
                element.set_done();
                bytes = bytes.saturating_add(element.length() as u64);
            }
            rest = match (copied, behind) {
                (0, [_, behind @ ..]) => {
                    faults = faults.saturating_add(1);
                    behind
                }
                (_, behind) => behind,
            };
        }
        (bytes, faults)
    }

    /// Copies as many of the first elements as one way of copying can; answers how many.
    fn copy_run<E: Element>(&self, burst: &mut [E]) -> usize {
        let mut batch: Option<Batch<E::Local<'_>>> = None;
        let mut here = 0usize;
        for element in burst {
            let length = element.length();
            match self.find(element.iova(), length as u64) {
                Some(Place::Shared(mapping, offset)) => {
                    if batch.is_some() || !element.copy_here(mapping, offset) {
                        break;
                    }
                    here = here.saturating_add(1);
                }
                Some(Place::Process(pid, address)) if here == 0 => {
                    let batch = batch.get_or_insert_with(|| Batch::new(pid));
                    if batch.pid != pid {
                        break;
                    }
                    batch.push(element.local(), address, length);
                }
                Some(Place::Process(..)) | None => break,
            }
        }
        match batch {
            Some(mut batch) => {
                let outcome = E::copy_there(batch.pid, &mut batch.local, &batch.remote);
                batch.whole(moved(outcome))
            }
            None => here,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(buffer: &[u8]) -> DmaMemory {
        let pid = i32::try_from(std::process::id()).unwrap();
        DmaMemory::Process { pid, address: buffer.as_ptr() as u64 }
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
        let pid = i32::try_from(std::process::id()).unwrap();
        space.map(0x4000, 64, DmaMemory::Process { pid, address: 8 }).unwrap();
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

    #[test]
    fn ranges_do_not_overlap_and_stay_below_the_shells_limit() {
        let memory = [0u8; 16];
        let mut space = AddressSpace::default();
        space.map(0x1000, 16, own(&memory)).unwrap();
        assert!(matches!(space.map(0x100f, 1, own(&memory)), Err(Error::Overlap { .. })));
        assert!(matches!(space.map(0xff0, 17, own(&memory)), Err(Error::Overlap { .. })));
        space.map(0x1010, 16, own(&memory)).unwrap();
        assert!(matches!(space.map(0, 0, own(&memory)), Err(Error::BadRange { .. })));
        let high = space.map(ADDRESS_LIMIT - 8, 16, own(&memory));
        assert!(matches!(high, Err(Error::BadRange { .. })));
        space.unmap(0x1000, 0x20);
        assert!(!space.reachable(0x1000, 1) && !space.reachable(0x1010, 1));
    }
}
