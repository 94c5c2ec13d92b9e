//! Host memory as the card sees it: rings by direct windows, payload by vectored bursts.

pub use fpga_regs::engine::message::Piece;
use fpga_regs::{BLOCK_BYTES, Block};

/// Memory that rings live in, which its owner may change at any moment.
///
/// A view outlives an unmap: reads then give arbitrary bytes, and writes are lost.
pub trait Rings {
    /// A view of a doorbell record.
    type Record: Record + core::fmt::Debug;
    /// A view of a ring's entries.
    type Ring: Ring + core::fmt::Debug;

    /// The record at `iova`, or `None` where memory cannot hold one.
    fn record(&self, iova: u64) -> Option<Self::Record>;

    /// The ring of 2^`log2_blocks` blocks from `iova`, or `None` as above.
    fn ring(&self, iova: u64, log2_blocks: u8) -> Option<Self::Ring>;

    /// Whether `bytes` bytes from `iova` are addresses that the card can reach memory by.
    fn reachable(&self, iova: u64, bytes: u64) -> bool;

    /// The card's own memory: the address of its first byte, as [`Piece::iova`] has it, and its blocks, which
    /// are as many as [`crate::EngineConfig::device_memory`] says. `None` where there is none.
    fn own(&self) -> Option<(u64, Self::Ring)> {
        None
    }

    /// An address, as [`Piece::iova`] has it, where reads give zeros and writes are lost, for as many bytes as a piece
    /// can have. `None` where there is none.
    fn null(&self) -> Option<u64> {
        None
    }

    /// Whether the card waits for the driver to locate memory. Memory that was not found meanwhile may be
    /// found later.
    fn waits(&self) -> bool {
        false
    }
}

/// A view of a doorbell record: one block; offsets in bytes, aligned, below 64.
pub trait Record {
    /// Loads a word with acquire ordering.
    fn load_u32(&self, offset: usize) -> u32;
    /// Loads a word with acquire ordering.
    fn load_u64(&self, offset: usize) -> u64;
}

/// A view of a ring; an index counts on for ever and is taken modulo the ring's blocks.
pub trait Ring {
    /// Copies a block.
    fn read(&self, index: u32) -> Block;
    /// Writes a block.
    fn write(&self, index: u32, value: &Block);
    /// Writes words 0 to 6 of a block, then word 7 with release ordering.
    fn publish(&self, index: u32, value: &Block);
}

/// The memory of a queue: its record, then its ring.
#[derive(Debug)]
pub(crate) struct QueueMemory<M: Rings> {
    pub(crate) record: M::Record,
    pub(crate) ring: M::Ring,
}

impl<M: Rings> QueueMemory<M> {
    /// The queue memory at `iova`, or `None` where memory cannot hold it.
    pub(crate) fn open(memory: &M, iova: u64, log2_blocks: u8) -> Option<Self> {
        let entries = iova.checked_add(fpga_regs::engine::doorbell::record::ENTRIES)?;
        Some(Self { record: memory.record(iova)?, ring: memory.ring(entries, log2_blocks)? })
    }
}

/// Whether an address may be that of a ring or of a record.
pub(crate) fn is_aligned(iova: u64) -> bool {
    iova & (BLOCK_BYTES as u64).wrapping_sub(1) == 0
}

/// The ring at `iova`, or `None` where that is not aligned or memory cannot hold one.
pub(crate) fn aligned_ring<M: Rings>(memory: &M, iova: u64, log2_blocks: u8) -> Option<M::Ring> {
    if is_aligned(iova) { memory.ring(iova, log2_blocks) } else { None }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Memory without rings, of which all or nothing is reachable.
    pub(crate) struct Reachable(pub(crate) bool);

    /// A view that nobody gets.
    #[derive(Debug)]
    pub(crate) enum NoView {}

    impl Record for NoView {
        fn load_u32(&self, _: usize) -> u32 {
            match *self {}
        }
        fn load_u64(&self, _: usize) -> u64 {
            match *self {}
        }
    }

    impl Ring for NoView {
        fn read(&self, _: u32) -> Block {
            match *self {}
        }
        fn write(&self, _: u32, _: &Block) {
            match *self {}
        }
        fn publish(&self, _: u32, _: &Block) {
            match *self {}
        }
    }

    impl Rings for Reachable {
        type Record = NoView;
        type Ring = NoView;

        fn record(&self, _: u64) -> Option<NoView> {
            None
        }
        fn ring(&self, _: u64, _: u8) -> Option<NoView> {
            None
        }
        fn reachable(&self, _: u64, _: u64) -> bool {
            self.0
        }
        fn null(&self) -> Option<u64> {
            self.0.then_some(3 << 62)
        }
    }

    #[test]
    fn a_ring_begins_at_a_multiple_of_64_bytes() {
        assert!(is_aligned(0) && is_aligned(64) && is_aligned(u64::MAX - 63));
        assert!(!is_aligned(8) && !is_aligned(63) && !is_aligned(u64::MAX));
    }
}
