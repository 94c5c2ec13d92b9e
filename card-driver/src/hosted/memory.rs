//! Host memory as an engine in this process sees it: what is mapped for the card, by the card's addresses.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use fpga_regs::{BLOCK_BYTES, Block};
use hostmem::{BlockRing, DmaMemory, DoorbellPage, SharedMapping};
use queue_engine::{Random, Record, Ring, Rings};

use crate::iova::ARENA_END;
use crate::lock::lock;

/// A range that this process has mapped, too.
#[derive(Clone, Debug)]
struct Range {
    length: u64,
    mapping: Arc<SharedMapping>,
    offset: u64,
}

/// Memory of rings. That of programs is the card's to reach.
#[derive(Clone, Debug, Default)]
pub(super) struct HostMemory(Arc<Mutex<BTreeMap<u64, Range>>>);

impl HostMemory {
    /// Takes note of a range.
    pub(super) fn map(&self, iova: u64, length: u64, memory: &DmaMemory) {
        if let DmaMemory::Shared { mapping, offset } = memory {
            let (mapping, offset) = (Arc::clone(mapping), *offset);
            lock(&self.0).insert(iova, Range { length, mapping, offset });
        }
    }

    /// Forgets the ranges that begin in another one.
    pub(super) fn unmap(&self, iova: u64, length: u64) {
        let end = iova.saturating_add(length);
        lock(&self.0).retain(|start, _| *start < iova || *start >= end);
    }

    /// Where bytes lie in a mapping, if they are this process's, too.
    pub(super) fn find(&self, iova: u64, bytes: u64) -> Option<(Arc<SharedMapping>, usize)> {
        let ranges = lock(&self.0);
        let (start, range) = ranges.range(..=iova).next_back()?;
        let into = iova.checked_sub(*start)?;
        if into.checked_add(bytes)? > range.length {
            return None;
        }
        let offset = usize::try_from(range.offset.checked_add(into)?).ok()?;
        Some((Arc::clone(&range.mapping), offset))
    }
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

/// The kernel's random numbers: nobody can guess a key.
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
