//! The event rings and the interrupt behind them.

use std::collections::BTreeSet;

use fpga_regs::BLOCK_BYTES;
use fpga_regs::engine::cqe::expected_phase;
use fpga_regs::engine::event::Event;
use fpga_regs::engine::window::MAX_LOG2_EVENTS;

use crate::memory::{Ring, Rings, aligned_ring};
use crate::registers::QueueRegisters;

/// The event rings of an engine.
#[derive(Debug)]
pub(crate) struct EventRings<M: Rings> {
    /// By number; none while they are closed.
    rings: Vec<EventRing<M>>,
    /// log2 of the entries of each.
    log2_entries: u8,
    /// An interrupt is due.
    pub(crate) raised: bool,
    /// When completion queues are to be told of whose events wait for more, and their numbers.
    held: BTreeSet<(u64, u32)>,
}

/// One of them.
#[derive(Debug)]
struct EventRing<M: Rings> {
    ring: M::Ring,
    producer: u32,
    /// What the driver wrote to the consumer register.
    consumer: u32,
    /// An event was lost; sticky.
    overflow: bool,
}

impl<M: Rings> EventRings<M> {
    pub(crate) fn closed() -> Self {
        Self { rings: Vec::new(), log2_entries: 0, raised: false, held: BTreeSet::new() }
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

    /// The rings the registers name, `most` at most; `None` where they are more, one is out of reach, or they
    /// have no such size.
    pub(crate) fn open(r: &QueueRegisters, most: u8, memory: &M) -> Option<Self> {
        let log2_entries =
            u8::try_from(r.event_size).ok().filter(|log2| *log2 <= MAX_LOG2_EVENTS)?;
        let count = u8::try_from(r.event_rings.max(1)).ok().filter(|count| *count <= most)?;
        let bytes = (BLOCK_BYTES as u64).wrapping_shl(u32::from(log2_entries));
        let ring = |number: u8| {
            let base = r.event_base.checked_add(bytes.checked_mul(number.into())?)?;
            let ring = aligned_ring(memory, base, log2_entries)?;
            Some(EventRing { ring, producer: 0, consumer: 0, overflow: false })
        };
        let rings = (0..count).map(ring).collect::<Option<_>>()?;
        Some(Self { rings, log2_entries, ..Self::closed() })
    }

    /// Whether there is a ring of that number.
    pub(crate) fn has(&self, ring: u8) -> bool {
        usize::from(ring) < self.rings.len()
    }

    /// The driver has read a ring that far.
    pub(crate) fn consumed(&mut self, ring: u8, consumer: u32) {
        if let Some(ring) = self.rings.get_mut(usize::from(ring)) {
            ring.consumer = consumer;
        }
    }

    /// Which rings have lost events: bit n is that of ring n.
    pub(crate) fn overflows(&self) -> u8 {
        self.rings.iter().rev().fold(0, |bits, ring| bits << 1 | u8::from(ring.overflow))
    }

    /// The driver knows that a ring has lost events.
    pub(crate) fn clear_overflow(&mut self, ring: u8) {
        if let Some(ring) = self.rings.get_mut(usize::from(ring)) {
            ring.overflow = false;
        }
    }

    /// Writes an event to the first ring, or notes that it was lost.
    pub(crate) fn push(&mut self, event: Event, now: u64) {
        self.push_in(0, event, now);
    }

    /// Writes an event to a ring, or notes that it was lost.
    pub(crate) fn push_in(&mut self, ring: u8, mut event: Event, now: u64) {
        let Some(ring) = self.rings.get_mut(usize::from(ring)) else { return };
        self.raised = true;
        let entries = 1u32.wrapping_shl(u32::from(self.log2_entries));
        if ring.producer.wrapping_sub(ring.consumer) >= entries {
            ring.overflow = true;
            return;
        }
        event.timestamp = now;
        event.phase = u8::from(expected_phase(ring.producer, self.log2_entries));
        let [encoded] = event.encode();
        ring.ring.publish(ring.producer, &encoded);
        ring.producer = ring.producer.wrapping_add(1);
    }
}
