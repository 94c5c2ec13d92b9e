//! A program's queues: it posts, rings, arms and polls as its provider would.

use fpga_regs::Block;
use fpga_regs::engine::cqe::Cqe;
use fpga_regs::engine::doorbell::{Arm, ArmKind, QueueKind, record, slot, slot_value};
use fpga_regs::engine::wqe::{ReceiveHeader, Sge};

use super::memory::{TestMemory, TestPage};
use super::wqe::Wqe;

/// A completion queue.
#[derive(Debug)]
pub struct ClientCq {
    pub memory: TestMemory,
    pub page: TestPage,
    pub cqn: u32,
    pub ring: u64,
    pub log2_entries: u8,
    pub consumer: u32,
    pub sequence: u32,
}

impl ClientCq {
    /// The next entry, without taking it.
    pub fn peek(&self) -> Option<Cqe> {
        let entries = self.ring + record::ENTRIES;
        let block = self.memory.entry(entries, self.consumer, self.log2_entries)?;
        Some(Cqe::decode(&[block]))
    }

    /// Takes every entry without telling the engine.
    pub fn take(&mut self) -> Vec<Cqe> {
        let mut entries = Vec::new();
        while let Some(entry) = self.peek() {
            entries.push(entry);
            self.consumer = self.consumer.wrapping_add(1);
        }
        entries
    }

    /// Takes every entry and gives its place back.
    pub fn poll(&mut self) -> Vec<Cqe> {
        let entries = self.take();
        self.memory.store_u32(self.ring + record::CONSUMER as u64, self.consumer);
        entries
    }

    /// Takes the one entry that must be there.
    pub fn poll_one(&mut self) -> Cqe {
        let entries = self.poll();
        assert_eq!(entries.len(), 1, "{entries:?}");
        entries[0]
    }

    /// Arms the queue behind the completions that were polled, and rings; gives the arm sequence.
    pub fn arm(&mut self, kind: ArmKind) -> u32 {
        self.arm_silently(kind);
        self.ring();
        self.sequence
    }

    /// Arms the queue and does not ring.
    pub fn arm_silently(&mut self, kind: ArmKind) {
        self.sequence = Arm::next_sequence(self.sequence);
        if kind == ArmKind::Any {
            self.memory.store_u32(self.ring + record::ARMED_FOR_ANY as u64, self.sequence);
        }
        let arm = Arm { consumer: self.consumer, sequence: self.sequence, kind };
        self.memory.store(self.ring + record::ARM as u64, arm.encode());
    }

    pub fn ring(&self) {
        self.page.store(self.slot(), slot_value(self.cqn, 0, self.sequence));
    }

    pub fn slot(&self) -> usize {
        slot(QueueKind::Completion, self.cqn)
    }
}

/// A receive queue.
#[derive(Clone, Debug)]
pub struct ClientRq {
    pub memory: TestMemory,
    pub page: TestPage,
    pub rqn: u32,
    pub ring: u64,
    pub log2_entries: u8,
    pub log2_stride: u8,
    pub producer: u32,
}

impl ClientRq {
    /// Posts a receive and rings.
    pub fn post(&mut self, tag: u32, sges: &[Sge]) {
        self.post_as(tag, sges, sges.len() as u8);
    }

    /// Posts a receive that claims to have `num_sge` elements.
    pub fn post_as(&mut self, tag: u32, sges: &[Sge], num_sge: u8) {
        let stride = 1usize << self.log2_stride;
        let mut blocks = vec![[0; 8]; stride];
        blocks[0] = ReceiveHeader { num_sge, tag }.encode()[0];
        let words: Vec<u64> = sges.iter().flat_map(|sge| sge.encode()).collect();
        blocks.as_flattened_mut()[2..2 + words.len()].copy_from_slice(&words);
        let index = u64::from(self.producer) & ((1 << self.log2_entries) - 1);
        let entry = self.ring + record::ENTRIES + index * stride as u64 * 64;
        for (i, block) in (0..).zip(&blocks) {
            self.memory.store_block(entry + 64 * i, block);
        }
        self.produce(self.producer.wrapping_add(1));
    }

    /// Stores the producer index and rings.
    pub fn produce(&mut self, producer: u32) {
        self.producer = producer;
        self.memory.store_u32(self.ring + record::PRODUCER as u64, producer);
        let value = slot_value(self.rqn, 0, producer);
        self.page.store(slot(QueueKind::Receive, self.rqn), value);
    }
}

/// A QP with its receive queue.
#[derive(Debug)]
pub struct ClientQp {
    pub memory: TestMemory,
    pub page: TestPage,
    pub qpn: u32,
    pub generation: u8,
    pub sq: u64,
    pub log2_blocks: u8,
    pub producer: u32,
    pub rq: ClientRq,
}

impl ClientQp {
    /// Posts a WQE and rings; answers with its index.
    pub fn post(&mut self, wqe: &Wqe) -> u32 {
        let index = self.post_silently(wqe);
        self.ring();
        index
    }

    /// Posts a WQE and does not ring.
    pub fn post_silently(&mut self, wqe: &Wqe) -> u32 {
        self.post_blocks(&wqe.encode())
    }

    /// Writes blocks to the ring and moves the producer index behind them.
    pub fn post_blocks(&mut self, blocks: &[Block]) -> u32 {
        let index = self.producer;
        for block in blocks {
            self.memory.store_block(self.block_address(self.producer), block);
            self.producer = self.producer.wrapping_add(1);
        }
        self.memory.store_u32(self.sq + record::PRODUCER as u64, self.producer);
        index
    }

    /// The address of a block of the send ring.
    pub fn block_address(&self, index: u32) -> u64 {
        let index = u64::from(index) & ((1 << self.log2_blocks) - 1);
        self.sq + record::ENTRIES + index * 64
    }

    pub fn ring(&self) {
        self.page.store(self.slot(), slot_value(self.qpn, self.generation, self.producer));
    }

    pub fn slot(&self) -> usize {
        slot(QueueKind::Send, self.qpn)
    }

    /// Stores a producer index and rings.
    pub fn produce(&mut self, producer: u32) {
        self.producer = producer;
        self.memory.store_u32(self.sq + record::PRODUCER as u64, producer);
        self.ring();
    }

    /// Starts over after a RESET, as the provider does.
    pub fn start_over(&mut self, generation: u8) {
        self.generation = generation;
        self.producer = 0;
        self.memory.store_u32(self.sq + record::PRODUCER as u64, 0);
        self.rq.producer = 0;
        self.rq.memory.store_u32(self.rq.ring + record::PRODUCER as u64, 0);
    }
}
