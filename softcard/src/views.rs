//! Rings and doorbell records, wherever on the bus they lie.
//!
//! A view remembers where its memory is until its latch says that this may not hold any more: the end of another
//! program's memory costs it nothing. Memory that is one piece here is reached directly.
//! Scattered memory, and memory that must be asked for, is looked up at every access. Memory that is gone reads as all
//! ones and swallows writes, as on PCIe.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use fpga_regs::{BLOCK_BYTES, Block};
use hostmem::{BlockRing, SharedMapping};

use crate::bus::{Bus, BusMemory, Rights};
use crate::latch::Latch;

/// An address that no memory has.
const NOWHERE: u64 = u64::MAX;

/// The memory found at the last look.
#[derive(Debug)]
struct Remembered<T> {
    /// The latch's generation then; 0 before the first look.
    latched: u64,
    /// The bus's generation then: memory that was not found may be there when that has changed.
    looked: u64,
    direct: Option<T>,
}

impl<T> Remembered<T> {
    fn nothing() -> RefCell<Self> {
        RefCell::new(Self { latched: 0, looked: 0, direct: None })
    }

    /// Looks again if that may find anything else.
    #[inline]
    fn refresh(
        &mut self,
        bus: &Bus,
        open: impl FnOnce(Arc<SharedMapping>, usize) -> hostmem::Result<T>,
        latch: &Rc<Latch>,
    ) -> Option<&T> {
        let holds = self.latched == latch.generation();
        if !holds || (self.direct.is_none() && self.looked != bus.generation()) {
            self.latched = latch.generation();
            self.looked = bus.generation();
            self.direct = match bus.watch(latch) {
                Some(BusMemory::Shared(mapping, offset)) => open(mapping, offset).ok(),
                _ => None,
            };
        }
        self.direct.as_ref()
    }
}

/// A doorbell record.
#[derive(Debug)]
pub struct RecordView {
    bus: Rc<Bus>,
    latch: Rc<Latch>,
    memory: RefCell<Remembered<hostmem::Record>>,
}

impl RecordView {
    pub(crate) fn new(bus: &Rc<Bus>, latch: Rc<Latch>) -> Self {
        Self { bus: Rc::clone(bus), latch, memory: Remembered::nothing() }
    }

    #[inline]
    fn directly<T>(&self, load: impl FnOnce(&hostmem::Record) -> T) -> Option<T> {
        let mut memory = self.memory.borrow_mut();
        memory.refresh(&self.bus, hostmem::Record::new, &self.latch).map(load)
    }

    fn at(&self, offset: usize) -> u64 {
        self.latch.at(offset as u64).unwrap_or(NOWHERE)
    }

    /// Loads the word at an aligned offset in bytes with acquire ordering.
    #[inline]
    pub fn load_u32(&self, offset: usize) -> u32 {
        let direct = self.directly(|record| record.load_acquire_u32(offset.wrapping_div(4)));
        direct.unwrap_or_else(|| load_u32(&self.bus, self.at(offset)))
    }

    /// Loads the word at an aligned offset in bytes with acquire ordering.
    #[inline]
    pub fn load_u64(&self, offset: usize) -> u64 {
        let direct = self.directly(|record| record.load_acquire_u64(offset.wrapping_div(8)));
        direct.unwrap_or_else(|| load_u64(&self.bus, self.at(offset)))
    }
}

/// A ring.
#[derive(Debug)]
pub struct RingView {
    bus: Rc<Bus>,
    latch: Rc<Latch>,
    blocks: u32,
    memory: RefCell<Remembered<BlockRing>>,
}

impl RingView {
    pub(crate) fn new(bus: &Rc<Bus>, latch: Rc<Latch>, blocks: u32) -> Self {
        Self { bus: Rc::clone(bus), latch, blocks, memory: Remembered::nothing() }
    }

    #[inline]
    fn directly<T>(&self, access: impl FnOnce(&BlockRing) -> T) -> Option<T> {
        let open = |mapping, offset| BlockRing::new(mapping, offset, self.blocks);
        let mut memory = self.memory.borrow_mut();
        memory.refresh(&self.bus, open, &self.latch).map(access)
    }

    /// The bus address of a block.
    fn at(&self, index: u32) -> u64 {
        let block = u64::from(index & self.blocks.saturating_sub(1));
        self.latch.at(block.saturating_mul(BLOCK_BYTES as u64)).unwrap_or(NOWHERE)
    }

    /// Copies a block.
    #[inline]
    pub fn read(&self, index: u32) -> Block {
        let direct = self.directly(|ring| ring.read(index));
        direct.unwrap_or_else(|| read_block(&self.bus, self.at(index)))
    }

    /// Writes a block.
    #[inline]
    pub fn write(&self, index: u32, value: &Block) {
        if self.directly(|ring| ring.write(index, value)).is_none() {
            write_block(&self.bus, self.at(index), value, false);
        }
    }

    /// Writes all but the last word of a block, then that with release ordering.
    #[inline]
    pub fn publish(&self, index: u32, value: &Block) {
        if self.directly(|ring| ring.write_published(index, value)).is_none() {
            write_block(&self.bus, self.at(index), value, true);
        }
    }
}

/// Loads a word with acquire ordering.
fn load_u32(bus: &Bus, address: u64) -> u32 {
    match bus.access(address, 4, Rights::READ) {
        Some(BusMemory::Shared(mapping, offset)) => {
            mapping.load_acquire_u32(offset).unwrap_or(u32::MAX)
        }
        Some(BusMemory::Asked(owner)) => {
            let mut bytes = [0; 4];
            if owner.read(address, &mut bytes) { u32::from_le_bytes(bytes) } else { u32::MAX }
        }
        Some(BusMemory::Process(..)) | None => u32::MAX,
    }
}

/// Loads a word with acquire ordering.
fn load_u64(bus: &Bus, address: u64) -> u64 {
    match bus.access(address, 8, Rights::READ) {
        Some(BusMemory::Shared(mapping, offset)) => {
            mapping.load_acquire_u64(offset).unwrap_or(u64::MAX)
        }
        Some(BusMemory::Asked(owner)) => {
            let mut bytes = [0; 8];
            if owner.read(address, &mut bytes) { u64::from_le_bytes(bytes) } else { u64::MAX }
        }
        Some(BusMemory::Process(..)) | None => u64::MAX,
    }
}

fn read_block(bus: &Bus, address: u64) -> Block {
    let mut bytes = [0xff; BLOCK_BYTES];
    let done = match bus.access(address, BLOCK_BYTES as u64, Rights::READ) {
        Some(BusMemory::Shared(mapping, offset)) => mapping.read_bytes(offset, &mut bytes).is_ok(),
        Some(BusMemory::Asked(owner)) => owner.read(address, &mut bytes),
        Some(BusMemory::Process(..)) | None => false,
    };
    if done { block_of(&bytes) } else { [u64::MAX; BLOCK_BYTES / 8] }
}

/// The block of these bytes.
pub(crate) fn block_of(bytes: &[u8; BLOCK_BYTES]) -> Block {
    let mut block = Block::default();
    for (word, bytes) in block.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = bytes.try_into().map_or(0, u64::from_le_bytes);
    }
    block
}

/// Writes a block; the last word behind the others if it says that the block is there.
pub(crate) fn write_block(bus: &Bus, address: u64, block: &Block, publish: bool) {
    let mut bytes = [0; BLOCK_BYTES];
    for (into, word) in bytes.chunks_exact_mut(8).zip(block) {
        into.copy_from_slice(&word.to_le_bytes());
    }
    let [body @ .., last] = block;
    let before = size_of_val(body);
    match bus.access(address, BLOCK_BYTES as u64, Rights::WRITE) {
        Some(BusMemory::Shared(mapping, offset)) => {
            // An alignment or a mapping that does not allow it: the card's write goes nowhere.
            let _ = mapping.write_bytes(offset, bytes.get(..before).unwrap_or_default());
            let _ = mapping.store_release_u64(offset.saturating_add(before), *last);
        }
        Some(BusMemory::Asked(owner)) if publish => {
            if owner.write(address, bytes.get(..before).unwrap_or_default()) {
                owner.write(address.saturating_add(before as u64), &last.to_le_bytes());
            }
        }
        Some(BusMemory::Asked(owner)) => {
            owner.write(address, &bytes);
        }
        Some(BusMemory::Process(..)) | None => {}
    }
}
