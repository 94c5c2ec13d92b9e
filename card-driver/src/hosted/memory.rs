//! Host memory as an engine in this process sees it: mappings for the card, by the card's addresses.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use fpga_regs::{BLOCK_BYTES, Block};
use hostmem::{BlockRing, DmaMemory, DoorbellPage, RemoteRange, SharedMapping};
use queue_engine::{Random, Record, Ring, Rings};

use super::porter::{CopyDirection, Porter};
use crate::iova::ARENA_END;
use crate::lock::lock;

/// A range that is mapped for the card.
#[derive(Clone, Debug)]
struct Range {
    length: u64,
    memory: DmaMemory,
}

/// Memory of rings and, where they are this machine's other processes', of programs.
#[derive(Clone, Debug)]
pub(super) struct HostMemory {
    ranges: Arc<Mutex<BTreeMap<u64, Range>>>,
    porter: Arc<Porter>,
}

impl HostMemory {
    /// A memory without mappings; a porter copies from and to programs' memory.
    pub(super) fn new(porter: Porter) -> Self {
        Self { ranges: Arc::default(), porter: Arc::new(porter) }
    }

    /// Takes note of a range.
    pub(super) fn map(&self, iova: u64, length: u64, memory: &DmaMemory) {
        lock(&self.ranges).insert(iova, Range { length, memory: memory.clone() });
    }

    /// Forgets the ranges that begin in another one.
    pub(super) fn unmap(&self, iova: u64, length: u64) {
        let end = iova.saturating_add(length);
        let mut ranges = lock(&self.ranges);
        let within: Vec<u64> = ranges.range(iova..end).map(|(start, _)| *start).collect();
        for start in within {
            ranges.remove(&start);
        }
    }

    /// The range that has a byte, and where in it.
    fn range_of(&self, iova: u64) -> Option<(Range, u64)> {
        let ranges = lock(&self.ranges);
        let (start, range) = ranges.range(..=iova).next_back()?;
        let into = iova.checked_sub(*start).filter(|into| *into < range.length)?;
        Some((range.clone(), into))
    }

    /// Where bytes lie in a mapping, if they are this process's, too.
    pub(super) fn find(&self, iova: u64, bytes: u64) -> Option<(Arc<SharedMapping>, usize)> {
        let (range, into) = self.range_of(iova)?;
        if into.checked_add(bytes)? > range.length {
            return None;
        }
        let DmaMemory::Shared { mapping, offset } = range.memory else { return None };
        let offset = usize::try_from(offset.checked_add(into)?).ok()?;
        Some((mapping, offset))
    }

    /// Whether bytes are memory of programs that live.
    pub(super) fn is_of_program(&self, iova: u64, bytes: u64) -> bool {
        let mut done = 0;
        while done < bytes {
            let found = iova.checked_add(done).and_then(|at| self.range_of(at));
            let Some((range, at)) = found else { return false };
            let DmaMemory::Process { process, .. } = &range.memory else { return false };
            if process.has_ended() || process.is_given_up() {
                return false;
            }
            done = done.saturating_add(range.length.saturating_sub(at));
        }
        true
    }

    /// Copies bytes from their addresses on the bus; `None` where some have no memory, or no owner.
    pub(super) fn copy_from(&self, iova: u64, into: &mut [u8]) -> Option<()> {
        let mut done = 0usize;
        while done < into.len() {
            let (range, at) = self.range_of(iova.checked_add(done as u64)?)?;
            let here = part(&range, at, into.len().saturating_sub(done));
            let bytes = into.get_mut(done..done.checked_add(here)?)?;
            match &range.memory {
                DmaMemory::Shared { mapping, offset } => {
                    let offset = usize::try_from(offset.checked_add(at)?).ok()?;
                    mapping.read_bytes(offset, bytes).ok()?;
                }
                DmaMemory::Process { process, address } => {
                    let theirs = theirs(*address, at, here)?;
                    let room = vec![0; here];
                    let carried =
                        self.porter.carry(process, theirs, CopyDirection::FromProgram, room)?;
                    bytes.copy_from_slice(carried.get(..here)?);
                }
            }
            done = done.checked_add(here)?;
        }
        Some(())
    }

    /// Copies bytes to their addresses on the bus; `None` where some have no memory, or no owner. Some may be there.
    pub(super) fn copy_to(&self, iova: u64, from: &[u8]) -> Option<()> {
        let mut done = 0usize;
        while done < from.len() {
            let (range, at) = self.range_of(iova.checked_add(done as u64)?)?;
            let here = part(&range, at, from.len().saturating_sub(done));
            let bytes = from.get(done..done.checked_add(here)?)?;
            match &range.memory {
                DmaMemory::Shared { mapping, offset } => {
                    let offset = usize::try_from(offset.checked_add(at)?).ok()?;
                    mapping.write_bytes(offset, bytes).ok()?;
                }
                DmaMemory::Process { process, address } => {
                    let theirs = theirs(*address, at, here)?;
                    self.porter.carry(process, theirs, CopyDirection::ToProgram, bytes.to_vec())?;
                }
            }
            done = done.checked_add(here)?;
        }
        Some(())
    }
}

/// How many of some bytes lie in a range from a place on.
fn part(range: &Range, at: u64, bytes: usize) -> usize {
    let left = range.length.saturating_sub(at);
    bytes.min(usize::try_from(left).unwrap_or(usize::MAX))
}

/// Where bytes of a range lie in their process.
fn theirs(address: u64, at: u64, bytes: usize) -> Option<RemoteRange> {
    let base = usize::try_from(address.checked_add(at)?).ok()?;
    Some(RemoteRange { base, len: bytes })
}

impl Rings for HostMemory {
    type Record = RecordView;
    type Ring = RingView;

    fn record(&self, iova: u64) -> Option<RecordView> {
        let (mapping, offset) = self.find(iova, BLOCK_BYTES as u64)?;
        hostmem::Record::new(mapping, offset).ok().map(RecordView)
    }

    fn ring(&self, iova: u64, log2_blocks: u8) -> Option<RingView> {
        let blocks = 1u32.checked_shl(log2_blocks.into())?;
        let bytes = u64::from(blocks).checked_mul(BLOCK_BYTES as u64)?;
        let (mapping, offset) = self.find(iova, bytes)?;
        BlockRing::new(mapping, offset, blocks).ok().map(RingView)
    }

    fn reachable(&self, iova: u64, bytes: u64) -> bool {
        iova.checked_add(bytes).is_some_and(|end| end <= ARENA_END)
    }
}

/// A doorbell record.
#[derive(Debug)]
pub(super) struct RecordView(hostmem::Record);

impl Record for RecordView {
    fn load_u32(&self, offset: usize) -> u32 {
        self.0.load_acquire_u32(offset.wrapping_div(4))
    }

    fn load_u64(&self, offset: usize) -> u64 {
        self.0.load_acquire_u64(offset.wrapping_div(8))
    }
}

/// A ring.
#[derive(Debug)]
pub(super) struct RingView(BlockRing);

impl Ring for RingView {
    fn read(&self, index: u32) -> Block {
        self.0.read(index)
    }

    fn write(&self, index: u32, value: &Block) {
        self.0.write(index, value);
    }

    fn publish(&self, index: u32, value: &Block) {
        self.0.write_published(index, value);
    }
}

/// A doorbell page that a client stores to.
#[derive(Debug)]
pub(super) struct Slots(pub(super) DoorbellPage);

impl queue_engine::DoorbellPage for Slots {
    fn load(&self, slot: usize) -> u64 {
        self.0.read(slot)
    }
}

/// The kernel's random numbers: a key cannot be guessed.
#[derive(Debug)]
pub(super) struct KernelRandom;

impl Random for KernelRandom {
    fn next_u32(&mut self) -> u32 {
        let mut word = [0; 4];
        // Linux answers for every such size once booted, and retries are its own.
        while getrandom::fill(&mut word).is_err() {}
        u32::from_le_bytes(word)
    }
}
