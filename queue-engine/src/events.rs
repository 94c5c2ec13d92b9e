//! The event ring and the interrupt behind it.

use std::collections::BTreeSet;

use fpga_regs::engine::cqe::expected_phase;
use fpga_regs::engine::event::Event;
use fpga_regs::engine::window::MAX_LOG2_EVENTS;

use crate::memory::{Ring, Rings, aligned_ring};
use crate::registers::QueueRegisters;

/// The event ring of an engine.
#[derive(Debug)]
pub(crate) struct EventRing<M: Rings> {
    ring: Option<M::Ring>,
    log2_entries: u8,
    producer: u32,
    /// What the driver wrote to the consumer register.
    pub(crate) consumer: u32,
    /// An event was lost; sticky.
    pub(crate) overflow: bool,
    /// An interrupt is due.
    pub(crate) raised: bool,
    /// When completion queues are to be told of whose events wait for more, and their numbers.
    held: BTreeSet<(u64, u32)>,
}

impl<M: Rings> EventRing<M> {
    pub(crate) fn closed() -> Self {
        Self {
            ring: None,
            log2_entries: 0,
            producer: 0,
            consumer: 0,
            overflow: false,
            raised: false,
            held: BTreeSet::new(),
        }
    }

    /// Has a completion queue be told of at a time, unless that is taken back.
    pub(crate) fn hold(&mut self, due: u64, cqn: u32) {
        self.held.insert((due, cqn));
    }

    /// Takes that back.
    pub(crate) fn release(&mut self, due: Option<u64>, cqn: u32) {
        if let Some(due) = due {
            self.held.remove(&(due, cqn));
        }
    }

    /// The next completion queue whose time has come.
    pub(crate) fn take_due(&mut self, now: u64) -> Option<u32> {
        let &(due, cqn) = self.held.first().filter(|(due, _)| *due <= now)?;
        self.held.remove(&(due, cqn));
        Some(cqn)
    }

    /// When the next one's comes.
    pub(crate) fn next_due(&self) -> Option<u64> {
        self.held.first().map(|(due, _)| *due)
    }

    /// The ring the registers name; `None` where it is out of reach or has no such size.
    pub(crate) fn open(r: &QueueRegisters, memory: &M) -> Option<Self> {
        let log2_entries =
            u8::try_from(r.event_size).ok().filter(|log2| *log2 <= MAX_LOG2_EVENTS)?;
        let ring = aligned_ring(memory, r.event_base, log2_entries)?;
        Some(Self { ring: Some(ring), log2_entries, ..Self::closed() })
    }

    /// Writes an event, or notes that it was lost.
    pub(crate) fn push(&mut self, mut event: Event, now: u64) {
        let Some(ring) = &self.ring else { return };
        self.raised = true;
        let entries = 1u32.wrapping_shl(u32::from(self.log2_entries));
        if self.producer.wrapping_sub(self.consumer) >= entries {
            self.overflow = true;
            return;
        }
        event.timestamp = now;
        event.phase = u8::from(expected_phase(self.producer, self.log2_entries));
        let [encoded] = event.encode();
        ring.publish(self.producer, &encoded);
        self.producer = self.producer.wrapping_add(1);
    }
}
