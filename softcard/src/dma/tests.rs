use std::os::fd::AsFd;
use std::sync::Arc;

use hostmem::SharedMapping;

use super::*;
use crate::bus::{AskedMemory, Backing};
use crate::latch::Latch;
use crate::own_memory::NULL_MEMORY;
use crate::port::FRAME_CAPACITY;
use crate::processes::tests::process;
use crate::views::{RecordView, RingView};

fn own(buffer: &[u8]) -> DmaMemory {
    let process = process(std::process::id());
    DmaMemory::Process { process, address: buffer.as_ptr() as u64 }
}

/// Frames that are being copied.
struct Burst {
    direction: MemoryDirection,
    parts: Parts,
    frames: VecDeque<Frame>,
    /// Whether each part could be copied.
    done: Vec<bool>,
    /// The values that operations have found, by their parts.
    found: Vec<(usize, u64)>,
}

impl Burst {
    /// A frame for each of these, whose bytes go to that address, or come from there.
    fn new(direction: MemoryDirection, frames: &[(u64, &[u8])]) -> Self {
        let mut parts = Parts::default();
        for (number, (bus, bytes)) in frames.iter().enumerate() {
            parts.push(FramePart {
                frame: number,
                range: 0..bytes.len(),
                bus: *bus,
                owner: number,
            });
        }
        let done = vec![true; frames.len()];
        let frames = frames.iter().map(|(_, bytes)| Frame::from_bytes(bytes).unwrap());
        Self { direction, parts, frames: frames.collect(), done, found: Vec::new() }
    }

    /// Another frame behind all others.
    fn add(&mut self, bus: u64, bytes: &[u8]) {
        let (frame, range) = (self.frames.len(), 0..bytes.len());
        self.parts.push(FramePart { frame, range, bus, owner: self.done.len() });
        self.frames.push_back(Frame::from_bytes(bytes).unwrap());
        self.done.push(true);
    }

    fn add_atomic(&mut self, bus: u64, operation: AtomicOperation) {
        self.parts.push(FramePart {
            frame: 0,
            range: 0..ATOMIC_BYTES,
            bus,
            owner: self.done.len(),
        });
        self.parts.execute_last(operation);
        self.done.push(true);
    }

    fn placing(frames: &[(u64, &[u8])]) -> Self {
        Self::new(MemoryDirection::Write, frames)
    }

    /// Frames of these lengths that come from those addresses.
    fn fetching<const N: usize>(frames: [(u64, usize); N]) -> Self {
        let room = [0; FRAME_CAPACITY];
        Self::new(MemoryDirection::Read, &frames.map(|(bus, length)| (bus, &room[..length])))
    }

    fn copying(&mut self) -> Copying<'_, impl FnMut(usize, PartEnd)> {
        let Self { direction, parts, frames, done, found } = self;
        let ended = |owner: usize, end| match end {
            PartEnd::Failed => done[owner] = false,
            PartEnd::Executed { before } => found.push((owner, before)),
        };
        Copying { direction: *direction, parts, frames, ended }
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
fn where_there_is_no_memory_reads_give_zeros_and_writes_are_lost() {
    let memory = vec![7u8; 64];
    let mut space = AddressSpace::default();
    space.map(0x1000, 64, own(&memory)).unwrap();
    let frames: [(u64, &[u8]); 3] =
        [(NULL_MEMORY, &[1; 100]), (0x1000, &[2; 8]), (NULL_MEMORY, &[3; 8])];
    assert_eq!(Burst::placing(&frames).copy(&mut space), [true; 3]);
    assert_eq!(memory[..9], [2, 2, 2, 2, 2, 2, 2, 2, 7]);
    // The bytes that the frame had before, too.
    let mut burst =
        Burst::new(MemoryDirection::Read, &[(NULL_MEMORY, &[9; 1500]), (0x1000, &[9; 8])]);
    assert_eq!(burst.copy(&mut space), [true; 2]);
    assert_eq!(burst.frames[0].as_slice(), [0; 1500]);
    assert_eq!((burst.frames[1].as_slice(), space.faults), (&memory[..8], 0));
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
    assert_eq!(memory[..17], [[1; 8], [3; 8]].concat().into_iter().chain([7]).collect::<Vec<_>>());
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

/// A frame that places bytes, an addition on the same word, a swap, another frame, and so on: the value that each
/// finds, and the last one, are as of one after the other.
fn in_a_row(space: &mut AddressSpace, at: u64) -> (Vec<bool>, Vec<(usize, u64)>) {
    let mut burst = Burst::placing(&[(at, &[1; 8])]);
    let add = AtomicOperation::FetchAdd { add: 1 };
    let value = u64::from_ne_bytes([1; 8]);
    let swap = |compare| AtomicOperation::CompareSwap { compare, swap: 5 };
    let atomics = [(at, add), (at, swap(value)), (at, swap(value + 1)), (at + 8, add)];
    for (bus, operation) in atomics {
        burst.add_atomic(bus, operation);
    }
    burst.add(at + 4, &[7; 2]);
    burst.add_atomic(at, add);
    let done = burst.copy(space).to_vec();
    (done, burst.found)
}

fn expected_in_a_row() -> (Vec<bool>, Vec<(usize, u64)>) {
    let value = u64::from_ne_bytes([1; 8]);
    let last = u64::from_ne_bytes([5, 0, 0, 0, 7, 7, 0, 0]);
    let found = vec![(1, value), (2, value + 1), (3, value + 1), (4, 0), (6, last)];
    (vec![true; 7], found)
}

#[test]
fn operations_are_executed_in_the_order_of_the_copies_around_them() {
    let asked = Rc::new(Asked(vec![0; 4096].into()));
    let bytes: Vec<u8> = vec![0; 4096];
    let mut space = three_kinds(&bytes, &asked);
    for at in [0x1010, 0x2010, 0x3010] {
        assert_eq!(in_a_row(&mut space, at), expected_in_a_row(), "{at:#x}");
        let mut left = Burst::fetching([(at, 16)]);
        assert_eq!(left.copy(&mut space), [true]);
        assert_eq!(left.frames[0].as_slice(), [6, 0, 0, 0, 7, 7, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    }
}

#[test]
fn an_operation_on_memory_that_is_not_there_fails_alone() {
    let memory = vec![0u8; 64];
    let mut space = AddressSpace::default();
    space.map(0x1000, 64, own(&memory)).unwrap();
    let process = process(std::process::id());
    space.map(0x4000, 64, DmaMemory::Process { process, address: 8 }).unwrap();
    let mut burst = Burst::placing(&[(0x1000, &[3; 8])]);
    let add = AtomicOperation::FetchAdd { add: 1 };
    for bus in [0x1000, 0x4000, 0x9000, 0x1038, 0x103c, 0x1008] {
        burst.add_atomic(bus, add);
    }
    assert_eq!(burst.copy(&mut space), [true, true, false, false, true, false, true]);
    let three = u64::from_ne_bytes([3; 8]);
    assert_eq!(burst.found, [(1, three), (4, 0), (6, 0)]);
    assert_eq!((space.written.bytes, space.faults), (32, 3));
    let one = 1u64.to_ne_bytes();
    assert_eq!(memory[..8], (three + 1).to_ne_bytes());
    assert_eq!((&memory[8..16], &memory[56..]), (&one[..], &one[..]));
}

#[test]
fn operations_of_a_call_that_does_not_return_fail() {
    let memory = vec![0u8; 64];
    let mut space = AddressSpace::default();
    space.map(0x1000, 64, own(&memory)).unwrap();
    let mut burst = Burst::placing(&[]);
    for _ in 0..3 {
        burst.add_atomic(0x1000, AtomicOperation::FetchAdd { add: 1 });
    }
    let kept = space.copy(burst.copying()).unwrap();
    assert!(space.abandon(burst.copying()).is_some());
    assert_eq!(burst.copy(&mut space), [false; 3]);
    assert_eq!((burst.found.len(), space.faults), (0, 3));
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

/// Memory whose owner must be asked.
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
