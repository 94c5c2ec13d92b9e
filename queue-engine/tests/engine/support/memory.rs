//! Host memory of the tests: sparse words, mapped by ranges, watched.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use fpga_regs::Block;
use fpga_regs::engine::cqe::{LAST_WORD, expected_phase, phase};

/// Where the card's own memory is, to the engine.
pub const OWN: u64 = 1 << 63;

/// Memory that driver, clients and engine share; clones are the same memory.
#[derive(Clone, Debug, Default)]
pub struct TestMemory(Rc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// Words by byte address; others read 0.
    words: RefCell<HashMap<u64, u64>>,
    /// Ranges the card can reach: first byte, bytes.
    mapped: RefCell<Vec<(u64, u64)>>,
    everything: Cell<bool>,
    next: Cell<u64>,
    /// A record whose producer index moves on by some entries whenever it is looked at.
    runaway: Cell<Option<(u64, u32)>>,
    /// Addresses of the entries published, in order.
    published: RefCell<Vec<u64>>,
    /// Blocks read by the device.
    reads: Cell<u64>,
}

impl TestMemory {
    /// Memory of which every address is reachable.
    pub fn everything() -> Self {
        let memory = Self::default();
        memory.0.everything.set(true);
        memory
    }

    /// Maps `bytes` zeroed bytes at a fresh address, 64-byte aligned, with a hole behind them.
    pub fn allocate(&self, bytes: u64) -> u64 {
        let iova = self.0.next.get().max(0x10_0000);
        self.0.next.set((iova + bytes).next_multiple_of(4096) + 4096);
        self.map(iova, bytes);
        iova
    }

    /// Makes a range reachable.
    pub fn map(&self, iova: u64, bytes: u64) {
        self.0.mapped.borrow_mut().push((iova, bytes));
    }

    /// Whether the card's transfers of a range succeed.
    pub fn reaches(&self, iova: u64, bytes: u64) -> bool {
        let Some(end) = iova.checked_add(bytes) else { return false };
        let within = |&(start, length): &(u64, u64)| iova >= start && end <= start + length;
        self.0.everything.get() || self.0.mapped.borrow().iter().any(within)
    }

    pub fn load(&self, address: u64) -> u64 {
        assert_eq!(address % 8, 0);
        self.0.words.borrow().get(&address).copied().unwrap_or(0)
    }

    pub fn store(&self, address: u64, word: u64) {
        assert_eq!(address % 8, 0);
        self.0.words.borrow_mut().insert(address, word);
    }

    /// Stores the lower or upper half of a word.
    pub fn store_u32(&self, address: u64, value: u32) {
        let base = address & !7;
        let shift = (address & 4) * 8;
        let others = self.load(base) & !(u64::from(u32::MAX) << shift);
        self.store(base, others | u64::from(value) << shift);
    }

    pub fn load_block(&self, address: u64) -> Block {
        std::array::from_fn(|i| self.load(address + 8 * i as u64))
    }

    /// The entry of an index in a ring of 2^`log2_entries` blocks, if the device has written it.
    pub fn entry(&self, ring: u64, index: u32, log2_entries: u8) -> Option<Block> {
        let place = u64::from(index) & ((1 << log2_entries) - 1);
        let block = self.load_block(ring + 64 * place);
        (phase(block[LAST_WORD]) == expected_phase(index, log2_entries)).then_some(block)
    }

    pub fn store_block(&self, address: u64, block: &Block) {
        for (i, word) in (0..).zip(block) {
            self.store(address + 8 * i, *word);
        }
    }

    /// Makes the producer index of a record run away: `step` further at each look.
    pub fn run_away(&self, record: u64, step: u32) {
        self.0.runaway.set(Some((record, step)));
    }

    /// Takes the addresses of the entries published since the last call.
    pub fn take_published(&self) -> Vec<u64> {
        std::mem::take(&mut self.0.published.borrow_mut())
    }

    /// Blocks the device has read so far.
    pub fn reads(&self) -> u64 {
        self.0.reads.get()
    }

    /// A block that the device reads of a ring.
    pub fn read_block(&self, address: u64) -> Block {
        self.0.reads.set(self.reads() + 1);
        self.load_block(address)
    }

    /// A word that the device reads of a queue's record.
    pub fn read_word(&self, address: u64) -> u64 {
        let runaway = self.0.runaway.get().filter(|(record, _)| *record == address);
        if let Some((record, step)) = runaway {
            let index = self.load(record) as u32;
            self.store_u32(record, index.wrapping_add(step));
        }
        self.load(address)
    }

    /// An entry that the device writes to a ring.
    pub fn publish_block(&self, address: u64, block: &Block) {
        self.0.published.borrow_mut().push(address);
        self.store_block(address, block);
    }
}

/// A doorbell page; clones are the same page.
#[derive(Clone, Debug)]
pub struct TestPage(Rc<[Cell<u64>; 512]>);

impl Default for TestPage {
    fn default() -> Self {
        Self(Rc::new([const { Cell::new(0) }; 512]))
    }
}

impl TestPage {
    pub fn store(&self, slot: usize, value: u64) {
        self.0[slot].set(value);
    }

    pub fn load(&self, slot: usize) -> u64 {
        self.0[slot].get()
    }
}
