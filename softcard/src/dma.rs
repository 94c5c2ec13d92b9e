//! Vectored copies between the card's frames and host memory.
//!
//! Memory of another process is copied by a call that the kernel may keep: that memory may be a file of
//! a file system that does not answer, or wait for a `userfaultfd`. So the card hands such a
//! [`Call`] out, with the frames that it is about, and whoever runs the card makes it without the card
//! (`hostmem::relay`). If it does not return in time, the card goes on without those frames, and
//! reaches no memory of that process again.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::rc::Rc;

use hostmem::{DmaMemory, Error as HostError, RemoteRange};
use nix::unistd::Pid;
use smallvec::SmallVec;

use crate::Error;
use crate::bus::{Bus, Place, Rights};
use crate::mmu::Direction;
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

/// What was copied one way.
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
pub(crate) struct Part {
    /// Number of the frame in its burst.
    pub(crate) frame: usize,
    pub(crate) range: Range<usize>,
    pub(crate) bus: u64,
    /// Whose part it is, for whoever is told that it failed.
    pub(crate) owner: usize,
}

/// The parts of a burst of frames, which are copied in order.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    list: Vec<Part>,
    /// The part that comes next, and its bytes that are copied.
    next: usize,
    into: usize,
    /// The call that was handed out: whose memory it reaches, and the end of its parts.
    lent: Option<(Slot, usize)>,
    /// A call that was made, to be used again.
    spare: Option<Box<Call>>,
}

/// A copy between frames and the memory of another process.
#[derive(Debug)]
pub(crate) struct Call {
    direction: Direction,
    pid: Pid,
    /// The frames, with their numbers in the burst.
    frames: Vec<(usize, Frame)>,
    /// The ranges of frames, by their places in `frames`, in order.
    local: Vec<(usize, Range<usize>)>,
    remote: Vec<RemoteRange>,
    asked: usize,
    moved: usize,
}

impl Default for Call {
    fn default() -> Self {
        let (frames, local, remote) = Default::default();
        let (direction, pid) = (Direction::Read, Pid::from_raw(0));
        Self { direction, pid, frames, local, remote, asked: 0, moved: 0 }
    }
}

impl Call {
    /// Copies, which may take as long as the other process likes.
    pub(crate) fn make(&mut self) {
        let outcome = match self.direction {
            Direction::Read => self.fetch(),
            Direction::Write => self.place(),
        };
        self.moved = moved(outcome);
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

/// Bytes that moved before a failure, or all of them.
fn moved(outcome: Result<usize, HostError>) -> usize {
    match outcome {
        Ok(moved) => moved,
        Err(HostError::ProcessMemory { moved, .. }) => moved,
        Err(_) => 0,
    }
}

impl Parts {
    /// Forgets what there was.
    pub(crate) fn clear(&mut self) {
        self.list.clear();
        (self.next, self.into) = (0, 0);
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    pub(crate) fn truncate(&mut self, length: usize) {
        self.list.truncate(length);
    }

    pub(crate) fn push(&mut self, part: Part) {
        self.list.push(part);
    }

    /// The part that comes next: where its bytes that are not copied are on the bus, and their range
    /// in the frame.
    #[inline]
    fn at(&self, index: usize, into: usize) -> Option<(u64, usize, Range<usize>)> {
        let part = self.list.get(index)?;
        let start = part.range.start.saturating_add(into);
        Some((part.bus.saturating_add(into as u64), part.frame, start..part.range.end))
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

/// Memory and frames of a burst that is being copied, and who is told of what failed.
pub(crate) struct Copying<'a, F> {
    pub(crate) direction: Direction,
    pub(crate) parts: &'a mut Parts,
    pub(crate) frames: &'a mut VecDeque<Frame>,
    /// Called with the owner of each part that cannot be copied.
    pub(crate) failed: F,
}

impl<F: FnMut(usize)> Copying<'_, F> {
    /// Gives up the parts up to number `end`; the number of them.
    fn fail(&mut self, end: usize) -> u64 {
        let parts = self.parts.list.get(self.parts.next..end).unwrap_or_default();
        parts.iter().for_each(|part| (self.failed)(part.owner));
        let failed = parts.len() as u64;
        (self.parts.next, self.parts.into) = (end, 0);
        failed
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

    /// Copies in order as far as the card itself can; gives the call that copies what comes next,
    /// which is to be given back ([`Self::returned`]) or given up ([`Self::abandon`]) before this
    /// goes on.
    pub(crate) fn copy<F: FnMut(usize)>(&mut self, mut burst: Copying<'_, F>) -> Option<Box<Call>> {
        let rights = rights(burst.direction);
        loop {
            let (next, into) = (burst.parts.next, burst.parts.into);
            let (address, number, range) = burst.parts.at(next, into)?;
            let left = range.len();
            if let Some(Place::Process(process, _)) = self.bus.find(address, left as u64, rights) {
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
                (Place::Process(process, base), _) => {
                    let Some(pid) = self.bus.pid(process, self.now) else {
                        self.fail(&mut burst);
                        continue;
                    };
                    let mut call = begin(&mut burst, process, pid, next);
                    call.add_remote(base, here);
                    call.add_local(burst.frames, number, range);
                    return Some(call);
                }
                (Place::Shared(mapping, offset), Direction::Read) => frame
                    .and_then(|frame| frame.as_mut_slice().get_mut(range))
                    .is_some_and(|into| mapping.read_bytes(offset, into).is_ok()),
                (Place::Shared(mapping, offset), Direction::Write) => frame
                    .and_then(|frame| frame.as_slice().get(range))
                    .is_some_and(|from| mapping.write_bytes(offset, from).is_ok()),
                (Place::Asked(owner), Direction::Read) => frame
                    .and_then(|frame| frame.as_mut_slice().get_mut(range))
                    .is_some_and(|into| owner.read(address, into)),
                (Place::Asked(owner), Direction::Write) => frame
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
    fn gather<F: FnMut(usize)>(
        &self,
        burst: &mut Copying<'_, F>,
        process: Slot,
        pid: Pid,
    ) -> Box<Call> {
        let rights = rights(burst.direction);
        let (mut index, mut into) = (burst.parts.next, burst.parts.into);
        let mut call = begin(burst, process, pid, index);
        while let Some((address, number, range)) = burst.parts.at(index, into) {
            match self.bus.find(address, range.len() as u64, rights) {
                Some(Place::Process(its, base)) if its == process => {
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

    /// Takes back a call that was made.
    pub(crate) fn returned<F: FnMut(usize)>(
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
        burst.parts.advance(call.moved, self.copied(burst.direction));
        if call.moved < call.asked {
            self.fail(&mut burst);
        }
        burst.parts.spare = Some(call);
    }

    /// Gives up a call that did not return, with the frames that it has, and the memory of its
    /// process; the process's id.
    pub(crate) fn abandon<F: FnMut(usize)>(&mut self, mut burst: Copying<'_, F>) -> Option<Pid> {
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
                Some(Place::Shared(mapping, offset)) => mapping.read_bytes(offset, rest).is_ok(),
                Some(Place::Asked(owner)) => owner.read(address, rest),
                // A client's, which may not answer: nobody waits for it here.
                Some(Place::Process(..)) | None => false,
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

    fn fail<F: FnMut(usize)>(&mut self, burst: &mut Copying<'_, F>) {
        let behind = burst.parts.next.saturating_add(1);
        self.faults = self.faults.saturating_add(burst.fail(behind));
    }

    fn copied(&mut self, direction: Direction) -> &mut Copied {
        match direction {
            Direction::Read => &mut self.read,
            Direction::Write => &mut self.written,
        }
    }
}

/// An empty call for the parts up to and with number `last`.
fn begin<F>(burst: &mut Copying<'_, F>, process: Slot, pid: Pid, last: usize) -> Box<Call> {
    burst.parts.lent = Some((process, last.saturating_add(1)));
    let mut call = burst.parts.spare.take().unwrap_or_default();
    call.local.clear();
    call.remote.clear();
    (call.direction, call.pid, call.asked, call.moved) = (burst.direction, pid, 0, 0);
    call
}

/// What a transfer in a direction does to host memory.
fn rights(direction: Direction) -> Rights {
    match direction {
        Direction::Read => Rights::READ,
        Direction::Write => Rights::WRITE,
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::Arc;

    use hostmem::SharedMapping;

    use super::*;
    use crate::bus::{AskedMemory, Backing};
    use crate::mmu::Latch;
    use crate::port::FRAME_CAPACITY;
    use crate::processes::tests::process;
    use crate::views::{RecordView, RingView};

    fn own(buffer: &[u8]) -> DmaMemory {
        let process = process(std::process::id());
        DmaMemory::Process { process, address: buffer.as_ptr() as u64 }
    }

    /// Frames that are being copied.
    struct Burst {
        direction: Direction,
        parts: Parts,
        frames: VecDeque<Frame>,
        /// Of each part: whether it could be copied.
        done: Vec<bool>,
    }

    impl Burst {
        /// A frame for each of these, whose bytes go to that address, or come from there.
        fn new(direction: Direction, frames: &[(u64, &[u8])]) -> Self {
            let mut parts = Parts::default();
            for (number, (bus, bytes)) in frames.iter().enumerate() {
                parts.push(Part { frame: number, range: 0..bytes.len(), bus: *bus, owner: number });
            }
            let done = vec![true; frames.len()];
            let frames = frames.iter().map(|(_, bytes)| Frame::from_bytes(bytes).unwrap());
            Self { direction, parts, frames: frames.collect(), done }
        }

        fn placing(frames: &[(u64, &[u8])]) -> Self {
            Self::new(Direction::Write, frames)
        }

        /// Frames of these lengths that come from those addresses.
        fn fetching<const N: usize>(frames: [(u64, usize); N]) -> Self {
            let room = [0; FRAME_CAPACITY];
            Self::new(Direction::Read, &frames.map(|(bus, length)| (bus, &room[..length])))
        }

        fn copying(&mut self) -> Copying<'_, impl FnMut(usize)> {
            let Self { direction, parts, frames, done } = self;
            let failed = |owner: usize| done[owner] = false;
            Copying { direction: *direction, parts, frames, failed }
        }

        /// Makes all copies.
        fn copy(&mut self, space: &mut AddressSpace) -> &[bool] {
            while let Some(mut call) = space.copy(self.copying()) {
                call.make();
                space.returned(self.copying(), call);
            }
            &self.done
        }
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
        space.now = now() + 1_000_000_000;
        assert_eq!(Burst::placing(&[(0x1000, &[1; 8])]).copy(&mut space), [false]);
        space.unmap(0x1000, 64);
        assert_eq!(Arc::strong_count(&process), 1, "nothing holds its handle any more");
        child.wait().unwrap();
    }

    #[test]
    fn a_burst_reads_every_element_it_can_and_tells_which_it_could_not() {
        let memory: Vec<u8> = (0..=255).collect();
        let mut space = AddressSpace::default();
        space.map(0x20_0000, 256, own(&memory)).unwrap();
        let mut burst = Burst::fetching([(0x20_0000, 16), (0x20_00f8, 16), (0x20_0010, 100)]);
        assert_eq!(burst.copy(&mut space), [true, false, true]);
        assert_eq!(burst.frames[0].as_slice(), &memory[..16]);
        assert_eq!(burst.frames[2].as_slice(), &memory[16..116]);
        assert_eq!((space.read.bytes, space.faults), (116, 1));
    }

    #[test]
    fn memory_that_is_not_there_fails_its_element_only() {
        let memory = vec![7u8; 64];
        let mut space = AddressSpace::default();
        space.map(0x1000, 64, own(&memory)).unwrap();
        let process = process(std::process::id());
        space.map(0x4000, 64, DmaMemory::Process { process, address: 8 }).unwrap();
        let frames: [(u64, &[u8]); 3] = [(0x1000, &[1; 8]), (0x4000, &[2; 8]), (0x1008, &[3; 8])];
        assert_eq!(Burst::placing(&frames).copy(&mut space), [true, false, true]);
        assert_eq!((space.written.bytes, space.faults), (16, 1));
        assert_eq!(
            memory[..17],
            [[1; 8], [3; 8]].concat().into_iter().chain([7]).collect::<Vec<_>>()
        );
    }

    #[test]
    fn a_call_that_does_not_return_fails_its_frames_only_and_ends_its_processs_memory() {
        let memory = vec![7u8; 64];
        let mut space = AddressSpace::default();
        space.map(0x1000, 64, own(&memory)).unwrap();
        let silent = process(std::process::id());
        let address = memory.as_ptr() as u64 + 32;
        let its = DmaMemory::Process { process: Arc::clone(&silent), address };
        space.map(0x4000, 32, its).unwrap();
        let frames: [(u64, &[u8]); 5] = [
            (0x1000, &[1; 8]),
            (0x4000, &[2; 8]),
            (0x4008, &[2; 8]),
            (0x1008, &[3; 8]),
            (0x4010, &[2; 8]),
        ];
        let mut burst = Burst::placing(&frames);
        let mut first = space.copy(burst.copying()).unwrap();
        first.make();
        space.returned(burst.copying(), first);
        let kept = space.copy(burst.copying()).unwrap();
        assert_eq!(space.abandon(burst.copying()), Some(silent.pid()));
        assert!(space.abandon(burst.copying()).is_none(), "nothing else is under way");
        assert!(silent.is_given_up());
        assert_eq!(burst.copy(&mut space), [true, false, false, true, false]);
        assert_eq!((space.written.bytes, space.faults), (16, 3));
        let lengths = burst.frames.iter().map(|frame| frame.as_slice().len());
        assert_eq!(lengths.collect::<Vec<_>>(), [8, 0, 0, 8, 8], "two frames are the call's");
        drop(kept);
    }

    #[test]
    fn a_range_that_was_found_before_is_found_no_more_once_it_is_unmapped() {
        let memory = vec![7u8; 64];
        let mut space = AddressSpace::default();
        space.map(0x1000, 64, own(&memory)).unwrap();
        let reads = |space: &mut AddressSpace, iova| Burst::fetching([(iova, 2)]).copy(space)[0];
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
        assert_eq!(Burst::placing(&[(0x1f9c, &bytes)]).copy(&mut space), [true]);
        let mut back = Burst::fetching([(0x1f9c, 4296)]);
        assert_eq!(back.copy(&mut space), [true]);
        assert_eq!(back.frames[0].as_slice(), bytes);
        assert_eq!(asked.0.borrow()[..100], bytes[4196..]);
        assert_eq!(Burst::fetching([(0x3f9c, 101)]).copy(&mut space), [false]);
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
