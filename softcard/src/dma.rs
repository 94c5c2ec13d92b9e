//! Vectored copies between the card's frames and host memory.
//!
//! Memory of another process is copied by a call that the kernel may keep: that memory may be a file of
//! a file system that does not answer, or wait for a `userfaultfd`. So the card hands such a
//! [`Call`] out, with the frames that it is about, and the card's runner makes it without the card
//! (`hostmem::takeover`). If it does not return in time, the card goes on without those frames, and
//! reaches no memory of that process again.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::rc::Rc;

use fpga_regs::engine::wqe::ATOMIC_BYTES;
use hostmem::{DmaMemory, Error as HostError, RemoteRange};
use nix::unistd::Pid;
use roce::AtomicOperation;
use smallvec::SmallVec;

use crate::Error;
use crate::bus::{Bus, BusMemory, Rights};
use crate::mmu::MemoryDirection;
use crate::port::Frame;
use crate::processes::Slot;

/// The address space of one card.
#[derive(Debug, Default)]
pub(crate) struct AddressSpace {
    pub(crate) bus: Rc<Bus>,
    /// The card's time in nanoseconds, as of its last round.
    pub(crate) now: u64,
    /// Payload fetched from host memory.
    pub(crate) read: Copied,
    /// Payload placed in host memory.
    pub(crate) written: Copied,
    /// Parts that could not be copied.
    pub(crate) faults: u64,
}

/// The counts of copies one way.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Copied {
    pub(crate) bytes: u64,
    /// Parts, and the 64-byte beats they took, modulo 2^32.
    pub(crate) requests: u32,
    pub(crate) beats: u32,
}

impl Copied {
    fn count(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes as u64);
        self.requests = self.requests.wrapping_add(1);
        self.beats = self.beats.wrapping_add(bytes.div_ceil(BEAT) as u32);
    }
}

/// Bytes of a beat of the DMA streams.
const BEAT: usize = 64;

/// Ranges of frames for which a call's lists need no allocation.
const BATCH: usize = 128;

/// A part of a frame, and where its bytes are on the bus.
#[derive(Clone, Debug)]
pub(crate) struct FramePart {
    /// Number of the frame in its burst.
    pub(crate) frame: usize,
    pub(crate) range: Range<usize>,
    pub(crate) bus: u64,
    /// The number by which the caller knows it when it fails.
    pub(crate) owner: usize,
}

/// The rest of a part.
struct Rest {
    /// On the bus.
    address: u64,
    /// The number of its frame.
    number: usize,
    /// Its bytes in the frame.
    range: Range<usize>,
}

/// The parts of a burst of frames, which are copied in order.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    list: Vec<FramePart>,
    /// The parts, by their numbers, that are no copies: memory on which an operation is executed.
    atomics: Vec<(usize, AtomicOperation)>,
    /// The part that comes next, and its bytes that are copied.
    next: usize,
    into: usize,
    /// The call that was handed out: whose memory it reaches, and the end of its parts.
    lent: Option<(Slot, usize)>,
    /// A call that was made, to be used again.
    spare: Option<Box<Call>>,
}

/// The end of a part that was not simply copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartEnd {
    /// An atomic operation was executed on it.
    Executed {
        /// The value before.
        before: u64,
    },
    Failed,
}

/// A copy between frames and the memory of another process, or atomic operations on that memory.
#[derive(Debug)]
pub(crate) struct Call {
    direction: MemoryDirection,
    pid: Pid,
    /// The frames, with their numbers in the burst.
    frames: Vec<(usize, Frame)>,
    /// The ranges of frames, by their places in `frames`, in order.
    local: Vec<(usize, Range<usize>)>,
    remote: Vec<RemoteRange>,
    /// The operation on each range, of ranges that are no copies; and the values before.
    atomics: Vec<AtomicOperation>,
    before: Vec<u64>,
    asked: usize,
    moved: usize,
}

impl Default for Call {
    fn default() -> Self {
        let (frames, local, remote) = Default::default();
        let (atomics, before) = Default::default();
        let (direction, pid) = (MemoryDirection::Read, Pid::from_raw(0));
        Self { direction, pid, frames, local, remote, atomics, before, asked: 0, moved: 0 }
    }
}

impl Call {
    /// Copies, which may take as long as the other process likes.
    pub(crate) fn make(&mut self) {
        if !self.atomics.is_empty() {
            self.execute();
            return;
        }
        let outcome = match self.direction {
            MemoryDirection::Read => self.fetch(),
            MemoryDirection::Write => self.place(),
        };
        self.moved = moved(outcome);
    }

    /// Executes the atomic operations in order, up to one that cannot be.
    fn execute(&mut self) {
        for (operation, place) in self.atomics.iter().zip(&self.remote) {
            let mut word = [0; ATOMIC_BYTES];
            let range = std::slice::from_ref(place);
            let read = |word: &mut [u8]| {
                let mut local = [IoSliceMut::new(word)];
                hostmem::process::read_vectored(self.pid, &mut local, range).is_ok()
            };
            let write = |word: &[u8]| {
                let mut local = [IoSlice::new(word)];
                hostmem::process::write_vectored(self.pid, &mut local, range).is_ok()
            };
            let Some(before) = update(*operation, &mut word, read, write) else { return };
            self.before.push(before);
            self.moved = self.moved.saturating_add(ATOMIC_BYTES);
        }
    }

    fn fetch(&mut self) -> Result<usize, HostError> {
        let mut local = SmallVec::<[IoSliceMut<'_>; BATCH]>::new();
        let mut ranges = self.local.iter().peekable();
        for (place, (_, frame)) in self.frames.iter_mut().enumerate() {
            let (mut rest, mut at) = (frame.as_mut_slice(), 0usize);
            while let Some((_, range)) = ranges.next_if(|(of, _)| *of == place) {
                let before = range.start.saturating_sub(at).min(rest.len());
                let (_, behind) = rest.split_at_mut(before);
                let (own, behind) = behind.split_at_mut(range.len().min(behind.len()));
                local.push(IoSliceMut::new(own));
                (rest, at) = (behind, range.end);
            }
        }
        hostmem::process::read_vectored(self.pid, &mut local, &self.remote)
    }

    fn place(&mut self) -> Result<usize, HostError> {
        let bytes = |(place, range): &(usize, Range<usize>)| {
            let frame = self.frames.get(*place).map_or(&[][..], |(_, frame)| frame.as_slice());
            IoSlice::new(frame.get(range.clone()).unwrap_or_default())
        };
        let mut local: SmallVec<[_; BATCH]> = self.local.iter().map(bytes).collect();
        hostmem::process::write_vectored(self.pid, &mut local, &self.remote)
    }

    /// Adds a range of the process's memory, where adjacent ones are one: the kernel finds and pins
    /// the pages of each range by itself.
    #[inline]
    fn add_remote(&mut self, base: usize, len: usize) {
        self.asked = self.asked.saturating_add(len);
        match self.remote.last_mut() {
            Some(last) if last.base.checked_add(last.len) == Some(base) => {
                last.len = last.len.saturating_add(len);
            }
            _ => self.remote.push(RemoteRange { base, len }),
        }
    }

    /// Adds a range of a frame of the burst, and takes that frame along.
    #[inline]
    fn add_local(&mut self, frames: &mut VecDeque<Frame>, number: usize, range: Range<usize>) {
        if self.frames.last().is_none_or(|(last, _)| *last != number) {
            let frame = frames.get_mut(number).map(std::mem::take).unwrap_or_default();
            self.frames.push((number, frame));
        }
        self.local.push((self.frames.len().saturating_sub(1), range));
    }
}

/// Executes an atomic operation on a word of memory, and answers with the value before; `None` where
/// that cannot be reached.
fn update(
    operation: AtomicOperation,
    word: &mut [u8; ATOMIC_BYTES],
    read: impl FnOnce(&mut [u8]) -> bool,
    write: impl FnOnce(&[u8]) -> bool,
) -> Option<u64> {
    if !read(word) {
        return None;
    }
    let before = u64::from_ne_bytes(*word);
    let done = operation.apply(before).is_none_or(|value| write(&value.to_ne_bytes()));
    done.then_some(before)
}

/// Bytes that moved before a failure, or all of them.
fn moved(outcome: Result<usize, HostError>) -> usize {
    match outcome {
        Ok(moved) => moved,
        Err(HostError::ProcessMemory { moved, .. }) => moved,
        Err(_) => 0,
    }
}

impl Parts {
    /// Empties it.
    pub(crate) fn clear(&mut self) {
        self.list.clear();
        self.atomics.clear();
        (self.next, self.into) = (0, 0);
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether a call was handed out.
    pub(crate) fn is_lent(&self) -> bool {
        self.lent.is_some()
    }

    pub(crate) fn truncate(&mut self, length: usize) {
        self.list.truncate(length);
    }

    pub(crate) fn push(&mut self, part: FramePart) {
        self.list.push(part);
    }

    /// Turns the part added last into the execution of an operation, in place of a copy.
    pub(crate) fn execute_last(&mut self, operation: AtomicOperation) {
        self.atomics.push((self.list.len().saturating_sub(1), operation));
    }

    /// The operation to be executed on a part; `None` for one that is copied.
    #[inline]
    fn atomic(&self, index: usize) -> Option<AtomicOperation> {
        if self.atomics.is_empty() {
            return None;
        }
        let found = self.atomics.binary_search_by_key(&index, |(part, _)| *part).ok()?;
        self.atomics.get(found).map(|(_, operation)| *operation)
    }

    /// The rest of a part, behind so many bytes of it.
    #[inline]
    fn at(&self, index: usize, into: usize) -> Option<Rest> {
        let part = self.list.get(index)?;
        let start = part.range.start.saturating_add(into);
        Some(Rest {
            address: part.bus.saturating_add(into as u64),
            number: part.frame,
            range: start..part.range.end,
        })
    }

    /// Takes note of bytes that were copied.
    fn advance(&mut self, mut bytes: usize, copied: &mut Copied) {
        while let Some(part) = self.list.get(self.next) {
            let left = part.range.len().saturating_sub(self.into);
            if bytes < left {
                self.into = self.into.saturating_add(bytes);
                return;
            }
            copied.count(part.range.len());
            bytes = bytes.saturating_sub(left);
            (self.next, self.into) = (self.next.saturating_add(1), 0);
            if bytes == 0 {
                return;
            }
        }
    }
}

/// Memory and frames of a burst that is being copied, and the receiver of failures.
pub(crate) struct Copying<'a, F> {
    pub(crate) direction: MemoryDirection,
    pub(crate) parts: &'a mut Parts,
    pub(crate) frames: &'a mut VecDeque<Frame>,
    /// Called with the owner of each part that cannot be copied, or is no copy.
    pub(crate) ended: F,
}

impl<F: FnMut(usize, PartEnd)> Copying<'_, F> {
    /// Gives up the parts up to number `end`; the number of them.
    fn fail(&mut self, end: usize) -> u64 {
        let parts = self.parts.list.get(self.parts.next..end).unwrap_or_default();
        parts.iter().for_each(|part| (self.ended)(part.owner, PartEnd::Failed));
        let failed = parts.len() as u64;
        (self.parts.next, self.parts.into) = (end, 0);
        failed
    }

    /// Takes note that the next part's operation was executed.
    fn executed(&mut self, before: u64, copied: &mut Copied) {
        if let Some(part) = self.parts.list.get(self.parts.next) {
            (self.ended)(part.owner, PartEnd::Executed { before });
        }
        self.parts.advance(ATOMIC_BYTES, copied);
    }
}

impl AddressSpace {
    /// Maps a range that overlaps no other.
    pub(crate) fn map(&self, iova: u64, length: u64, memory: DmaMemory) -> Result<(), Error> {
        self.bus.map(iova, length, memory)
    }

    /// Unmaps every range that lies inside the given one.
    pub(crate) fn unmap(&self, iova: u64, length: u64) {
        self.bus.unmap(iova, length);
    }

    /// Copies in order as far as the card itself can; gives the call that makes the next copy, which is to be given
    /// back ([`Self::returned`]) or given up ([`Self::abandon`]) before this goes on.
    pub(crate) fn copy<F: FnMut(usize, PartEnd)>(
        &mut self,
        mut burst: Copying<'_, F>,
    ) -> Option<Box<Call>> {
        let rights = rights(burst.direction);
        loop {
            let (next, into) = (burst.parts.next, burst.parts.into);
            let Rest { address, number, range } = burst.parts.at(next, into)?;
            let left = range.len();
            if let Some(operation) = burst.parts.atomic(next) {
                match self.execute(&mut burst, operation, address) {
                    Some(call) => return Some(call),
                    None => continue,
                }
            }
            if let Some(BusMemory::Process(process, _)) =
                self.bus.find(address, left as u64, rights)
            {
                match self.bus.pid(process, self.now) {
                    Some(pid) => return Some(self.gather(&mut burst, process, pid)),
                    // It has ended, and its id may be a stranger's by now, or it did not answer.
                    None => self.fail(&mut burst),
                }
                continue;
            }
            let Some((place, bytes)) = self.bus.look_up(address, rights) else {
                self.fail(&mut burst);
                continue;
            };
            let here = left.min(usize::try_from(bytes).unwrap_or(left));
            let range = range.start..range.start.saturating_add(here);
            let frame = burst.frames.get_mut(number);
            let copied = match (place, burst.direction) {
                (BusMemory::Process(process, base), _) => {
                    let Some(pid) = self.bus.pid(process, self.now) else {
                        self.fail(&mut burst);
                        continue;
                    };
                    let mut call = begin(&mut burst, process, pid, next);
                    call.add_remote(base, here);
                    call.add_local(burst.frames, number, range);
                    return Some(call);
                }
                (BusMemory::Shared(mapping, offset), MemoryDirection::Read) => frame
                    .and_then(|frame| frame.as_mut_slice().get_mut(range))
                    .is_some_and(|into| mapping.read_bytes(offset, into).is_ok()),
                (BusMemory::Shared(mapping, offset), MemoryDirection::Write) => frame
                    .and_then(|frame| frame.as_slice().get(range))
                    .is_some_and(|from| mapping.write_bytes(offset, from).is_ok()),
                (BusMemory::Asked(owner), MemoryDirection::Read) => frame
                    .and_then(|frame| frame.as_mut_slice().get_mut(range))
                    .is_some_and(|into| owner.read(address, into)),
                (BusMemory::Asked(owner), MemoryDirection::Write) => frame
                    .and_then(|frame| frame.as_slice().get(range))
                    .is_some_and(|from| owner.write(address, from)),
            };
            match copied {
                true => burst.parts.advance(here, self.copied(burst.direction)),
                false => self.fail(&mut burst),
            }
        }
    }

    /// Takes as many of the next parts as lie in the memory of one process.
    fn gather<F: FnMut(usize, PartEnd)>(
        &self,
        burst: &mut Copying<'_, F>,
        process: Slot,
        pid: Pid,
    ) -> Box<Call> {
        let rights = rights(burst.direction);
        let (mut index, mut into) = (burst.parts.next, burst.parts.into);
        let mut call = begin(burst, process, pid, index);
        while let Some(Rest { address, number, range }) = burst.parts.at(index, into) {
            if burst.parts.atomic(index).is_some() {
                break;
            }
            match self.bus.find(address, range.len() as u64, rights) {
                Some(BusMemory::Process(its, base)) if its == process => {
                    call.add_remote(base, range.len());
                    call.add_local(burst.frames, number, range);
                }
                _ => break,
            }
            (index, into) = (index.saturating_add(1), 0);
        }
        burst.parts.lent = Some((process, index));
        call
    }

    /// Executes the operation of the next part, or gives the call that does, with the parts behind it
    /// that are such, too, and in the same process's memory.
    fn execute<F: FnMut(usize, PartEnd)>(
        &mut self,
        burst: &mut Copying<'_, F>,
        operation: AtomicOperation,
        address: u64,
    ) -> Option<Box<Call>> {
        let mut word = [0; ATOMIC_BYTES];
        let before = match self.bus.access(address, ATOMIC_BYTES as u64, Rights::BOTH) {
            Some(BusMemory::Process(process, _)) => {
                if let Some(pid) = self.bus.pid(process, self.now) {
                    return Some(self.gather_atomics(burst, process, pid));
                }
                None
            }
            Some(BusMemory::Shared(mapping, offset)) => update(
                operation,
                &mut word,
                |word| mapping.read_bytes(offset, word).is_ok(),
                |word| mapping.write_bytes(offset, word).is_ok(),
            ),
            Some(BusMemory::Asked(owner)) => update(
                operation,
                &mut word,
                |word| owner.read(address, word),
                |word| owner.write(address, word),
            ),
            None => None,
        };
        match before {
            Some(before) => burst.executed(before, self.copied(MemoryDirection::Write)),
            None => self.fail(burst),
        }
        None
    }

    /// Takes as many of the next operations as are on the memory of one process.
    fn gather_atomics<F: FnMut(usize, PartEnd)>(
        &self,
        burst: &mut Copying<'_, F>,
        process: Slot,
        pid: Pid,
    ) -> Box<Call> {
        let mut index = burst.parts.next;
        let mut call = begin(burst, process, pid, index);
        while let (Some(Rest { address, .. }), Some(operation)) =
            (burst.parts.at(index, 0), burst.parts.atomic(index))
        {
            match self.bus.find(address, ATOMIC_BYTES as u64, Rights::BOTH) {
                Some(BusMemory::Process(its, base)) if its == process => {
                    call.remote.push(RemoteRange { base, len: ATOMIC_BYTES });
                    call.atomics.push(operation);
                    call.asked = call.asked.saturating_add(ATOMIC_BYTES);
                }
                _ => break,
            }
            index = index.saturating_add(1);
        }
        burst.parts.lent = Some((process, index));
        call
    }

    /// Takes back a call that was made.
    pub(crate) fn returned<F: FnMut(usize, PartEnd)>(
        &mut self,
        mut burst: Copying<'_, F>,
        mut call: Box<Call>,
    ) {
        burst.parts.lent = None;
        for (number, frame) in call.frames.drain(..) {
            if let Some(place) = burst.frames.get_mut(number) {
                *place = frame;
            }
        }
        if call.atomics.is_empty() {
            burst.parts.advance(call.moved, self.copied(burst.direction));
        }
        for before in call.before.drain(..) {
            burst.executed(before, self.copied(burst.direction));
        }
        if call.moved < call.asked {
            self.fail(&mut burst);
        }
        burst.parts.spare = Some(call);
    }

    /// Gives up a call that did not return, with the frames that it has, and the memory of its
    /// process; the process's id.
    pub(crate) fn abandon<F: FnMut(usize, PartEnd)>(
        &mut self,
        mut burst: Copying<'_, F>,
    ) -> Option<Pid> {
        let (process, end) = burst.parts.lent.take()?;
        self.faults = self.faults.saturating_add(burst.fail(end));
        self.bus.give_up(process)
    }

    /// Fetches bytes of the driver's own; whether all of them came.
    pub(crate) fn fetch(&mut self, address: u64, into: &mut [u8]) -> bool {
        let mut from = 0usize;
        while from < into.len() {
            let address = address.saturating_add(from as u64);
            let found = self.bus.look_up(address, Rights::READ);
            let rest = into.get_mut(from..).unwrap_or_default();
            let bytes = found.as_ref().map_or(0, |(_, bytes)| *bytes);
            let here = rest.len().min(usize::try_from(bytes).unwrap_or(usize::MAX));
            let rest = rest.get_mut(..here).unwrap_or_default();
            let fetched = match found.map(|(place, _)| place) {
                Some(BusMemory::Shared(mapping, offset)) => {
                    mapping.read_bytes(offset, rest).is_ok()
                }
                Some(BusMemory::Asked(owner)) => owner.read(address, rest),
                // A client's, which may not answer: nobody waits for it here.
                Some(BusMemory::Process(..)) | None => false,
            };
            if !fetched {
                self.faults = self.faults.saturating_add(1);
                return false;
            }
            from = from.saturating_add(here);
        }
        self.read.count(into.len());
        true
    }

    /// Writes bytes of the driver's own, a counter's copy; an address without memory is a fault of the bus.
    pub(crate) fn put(&mut self, address: u64, from: &[u8]) {
        let place = self.bus.access(address, from.len() as u64, Rights::WRITE);
        let put = match place {
            Some(BusMemory::Shared(mapping, offset)) => mapping.write_bytes(offset, from).is_ok(),
            Some(BusMemory::Asked(owner)) => owner.write(address, from),
            // A client's, which may not answer.
            Some(BusMemory::Process(..)) | None => false,
        };
        match put {
            true => self.written.count(from.len()),
            false => self.faults = self.faults.saturating_add(1),
        }
    }

    fn fail<F: FnMut(usize, PartEnd)>(&mut self, burst: &mut Copying<'_, F>) {
        let behind = burst.parts.next.saturating_add(1);
        self.faults = self.faults.saturating_add(burst.fail(behind));
    }

    fn copied(&mut self, direction: MemoryDirection) -> &mut Copied {
        match direction {
            MemoryDirection::Read => &mut self.read,
            MemoryDirection::Write => &mut self.written,
        }
    }
}

/// An empty call for the parts up to and with number `last`.
fn begin<F>(burst: &mut Copying<'_, F>, process: Slot, pid: Pid, last: usize) -> Box<Call> {
    burst.parts.lent = Some((process, last.saturating_add(1)));
    let mut call = burst.parts.spare.take().unwrap_or_default();
    call.local.clear();
    call.remote.clear();
    call.atomics.clear();
    call.before.clear();
    (call.direction, call.pid, call.asked, call.moved) = (burst.direction, pid, 0, 0);
    call
}

/// The access to host memory that a transfer in a direction makes.
fn rights(direction: MemoryDirection) -> Rights {
    match direction {
        MemoryDirection::Read => Rights::READ,
        MemoryDirection::Write => Rights::WRITE,
    }
}

#[cfg(test)]
mod tests;
