//! Host memory of the tests: sparse words, mapped by ranges, watched.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use fpga_regs::{BLOCK_BYTES, Block};
use queue_engine::{DoorbellPage, Record, Ring, Rings};

/// Where the card's own memory is, to the engine.
pub const OWN: u64 = 1 << 63;
/// Where there is none.
pub const NULL: u64 = 3 << 62;

/// Memory that driver, clients and engine share; clones are the same memory.
#[derive(Clone, Debug, Default)]
pub struct TestMemory(Rc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// Words by byte address; what was never written reads 0.
    words: RefCell<HashMap<u64, u64>>,
    /// Ranges the card can reach: first byte, bytes.
    mapped: RefCell<Vec<(u64, u64)>>,
    everything: Cell<bool>,
    next: Cell<u64>,
    /// A record whose producer index moves on by some entries whenever it is looked at.
    runaway: Cell<Option<(u64, u32)>>,
    /// Addresses of the entries published, in order.
    published: RefCell<Vec<u64>>,
    /// Blocks read by the engine.
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

    fn reaches(&self, iova: u64, bytes: u64) -> bool {
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

    /// Blocks the engine has read so far.
    pub fn reads(&self) -> u64 {
        self.0.reads.get()
    }
}

/// A view of a record or of a ring.
#[derive(Debug)]
pub struct View {
    memory: TestMemory,
    iova: u64,
    mask: u64,
}

impl View {
    fn address(&self, index: u32) -> u64 {
        self.iova + (u64::from(index) & self.mask) * BLOCK_BYTES as u64
    }
}

impl Record for View {
    fn load_u32(&self, offset: usize) -> u32 {
        assert!(offset < BLOCK_BYTES && offset % 4 == 0);
        let address = self.iova + offset as u64;
        let runaway = self.memory.0.runaway.get().filter(|(record, _)| *record == self.iova);
        if let (Some((record, step)), 0) = (runaway, offset) {
            let index = self.memory.load(record) as u32;
            self.memory.store_u32(record, index.wrapping_add(step));
        }
        (self.memory.load(address & !7) >> ((address & 4) * 8)) as u32
    }

    fn load_u64(&self, offset: usize) -> u64 {
        assert!(offset < BLOCK_BYTES && offset % 8 == 0);
        self.memory.load(self.iova + offset as u64)
    }
}

impl Ring for View {
    fn read(&self, index: u32) -> Block {
        self.memory.0.reads.set(self.memory.reads() + 1);
        self.memory.load_block(self.address(index))
    }

    fn write(&self, index: u32, value: &Block) {
        self.memory.store_block(self.address(index), value);
    }

    fn publish(&self, index: u32, value: &Block) {
        self.memory.0.published.borrow_mut().push(self.address(index));
        self.write(index, value);
    }
}

impl Rings for TestMemory {
    type Record = View;
    type Ring = View;

    fn record(&self, iova: u64) -> Option<View> {
        self.ring(iova, 0)
    }

    fn ring(&self, iova: u64, log2_blocks: u8) -> Option<View> {
        let blocks = 1u64 << log2_blocks;
        let reached = iova % 64 == 0 && self.reaches(iova, blocks * BLOCK_BYTES as u64);
        reached.then(|| View { memory: self.clone(), iova, mask: blocks - 1 })
    }

    fn reachable(&self, iova: u64, bytes: u64) -> bool {
        self.reaches(iova, bytes)
    }

    fn own(&self) -> Option<(u64, View)> {
        Some((OWN, View { memory: self.clone(), iova: OWN, mask: u64::MAX }))
    }

    fn null(&self) -> Option<u64> {
        Some(NULL)
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
}

impl DoorbellPage for TestPage {
    fn load(&self, slot: usize) -> u64 {
        self.0[slot].get()
    }
}
