//! The places of the driver's rings of commands and events, and the rings of commands.

use fpga_regs::Block;
use fpga_regs::engine::admin::{Completion, Header, MAX_BLOCKS};
use fpga_regs::engine::cqe::expected_phase;
use fpga_regs::engine::window::MAX_LOG2_ADMIN;

use crate::memory::{Ring, Rings, aligned_ring};

/// The driver's registers of the admin and event rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueRegisters {
    pub(crate) admin_sq_base: u64,
    pub(crate) admin_sq_size: u64,
    pub(crate) admin_cq_base: u64,
    pub(crate) admin_cq_size: u64,
    pub(crate) event_base: u64,
    pub(crate) event_size: u64,
    pub(crate) event_rings: u64,
    pub(crate) event_completions: u64,
}

/// The blocks of a command.
pub(crate) type Blocks = [Block; MAX_BLOCKS];

/// The admin submission and completion rings.
#[derive(Debug)]
pub(crate) struct AdminRings<M: Rings> {
    submissions: M::Ring,
    log2_blocks: u8,
    /// Blocks that were taken.
    pub(crate) consumer: u32,
    completions: M::Ring,
    log2_entries: u8,
    producer: u32,
}

impl<M: Rings> AdminRings<M> {
    pub(crate) fn open(r: &QueueRegisters, memory: &M) -> Option<Self> {
        let log2 = |size: u64| u8::try_from(size).ok().filter(|log2| *log2 <= MAX_LOG2_ADMIN);
        let log2_blocks = log2(r.admin_sq_size)?;
        let log2_entries = log2(r.admin_cq_size)?;
        Some(Self {
            submissions: aligned_ring(memory, r.admin_sq_base, log2_blocks)?,
            log2_blocks,
            consumer: 0,
            completions: aligned_ring(memory, r.admin_cq_base, log2_entries)?,
            log2_entries,
            producer: 0,
        })
    }

    /// Copies the next command, if `producer` says there is a whole one; `None` for its blocks where
    /// their number cannot be, which takes one block.
    pub(crate) fn next(&mut self, producer: u32) -> Option<(Header, Option<Blocks>)> {
        let posted = producer.wrapping_sub(self.consumer);
        let ring = 1u32.wrapping_shl(u32::from(self.log2_blocks));
        if posted == 0 || posted > ring {
            return None;
        }
        let first = self.submissions.read(self.consumer);
        let header = Header::decode(&[first]);
        let count = u32::from(header.blocks);
        if !(1..=ring.min(MAX_BLOCKS as u32)).contains(&count) {
            self.consumer = self.consumer.wrapping_add(1);
            return Some((header, None));
        }
        if count > posted {
            return None;
        }
        let mut blocks: Blocks = [[0; 8]; MAX_BLOCKS];
        for (block, step) in blocks.iter_mut().zip(0..count) {
            let index = self.consumer.wrapping_add(step);
            *block = if step == 0 { first } else { self.submissions.read(index) };
        }
        self.consumer = self.consumer.wrapping_add(count);
        Some((header, Some(blocks)))
    }

    pub(crate) fn complete(&mut self, mut completion: Completion) {
        completion.phase = u8::from(expected_phase(self.producer, self.log2_entries));
        let [encoded] = completion.encode();
        self.completions.publish(self.producer, &encoded);
        self.producer = self.producer.wrapping_add(1);
    }
}
