//! The event rings and the interrupt behind them.
//!
//! As many events of completions stand in a ring as the driver allows. Further ones wait here, one for each queue, and go
//! on by the turns of their clients: so none is lost, and a client's events wait for a few of each other's.

use std::collections::{BTreeMap, BTreeSet};

use fpga_regs::BLOCK_BYTES;
use fpga_regs::engine::cqe::expected_phase;
use fpga_regs::engine::event::{Event, EventType};
use fpga_regs::engine::window::MAX_LOG2_EVENTS;

use crate::memory::{Ring, Rings, aligned_ring};
use crate::rings::QueueRegisters;

/// The event rings of an engine.
#[derive(Debug)]
pub(crate) struct EventRings<M: Rings> {
    /// The rings by number; none while they are closed.
    rings: Vec<EventRing<M>>,
    /// log2 of the entries of each.
    log2_entries: u8,
    /// An interrupt is due.
    pub(crate) raised: bool,
    /// When completion queues are to be told of whose events wait for more, and their numbers.
    held: BTreeSet<(u64, u32)>,
    /// Unread events of a ring at which completions wait; none where they are lost at the end of the ring.
    limit: Option<u32>,
    /// Completion queues that have fired and wait for room.
    waiting: BTreeMap<PlaceInLine, Fired>,
    /// The count of the next one.
    next: u64,
}

/// A completion queue that has fired.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fired {
    pub(crate) cqn: u32,
    /// The sequence of its last arming that raised an event.
    pub(crate) sequence: u32,
}

/// The place of a completion queue among those that wait for room in a ring, in the order of turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PlaceInLine {
    ring: u8,
    client: u8,
    /// How many came before.
    count: u64,
}

/// One of them.
#[derive(Debug)]
struct EventRing<M: Rings> {
    ring: M::Ring,
    producer: u32,
    /// The driver's value of the consumer register.
    consumer: u32,
    /// An event was lost; sticky.
    overflow: bool,
    /// The client whose turn it was last.
    last: u8,
}

impl<M: Rings> EventRing<M> {
    fn unread(&self) -> u32 {
        self.producer.wrapping_sub(self.consumer)
    }
}

impl<M: Rings> EventRings<M> {
    /// Bytes that a completion queue takes here at most.
    pub(crate) const BYTES_OF_EACH: usize =
        2 * (size_of::<(PlaceInLine, Fired)>() + size_of::<(u64, u32)>());

    pub(crate) fn closed() -> Self {
        Self {
            rings: Vec::new(),
            log2_entries: 0,
            raised: false,
            held: BTreeSet::new(),
            limit: None,
            waiting: BTreeMap::new(),
            next: 0,
        }
    }

    /// Schedules the event of a completion queue for a time, unless that is taken back.
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
            Some(EventRing { ring, producer: 0, consumer: 0, overflow: false, last: 0 })
        };
        let rings = (0..count).map(ring).collect::<Option<_>>()?;
        let entries = 1u32.wrapping_shl(log2_entries.into());
        let limit = u32::try_from(r.event_completions).unwrap_or(u32::MAX).min(entries);
        Some(Self { rings, log2_entries, limit: (limit > 0).then_some(limit), ..Self::closed() })
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

    /// The rings that have lost events: bit n is that of ring n.
    pub(crate) fn overflows(&self) -> u8 {
        self.rings.iter().rev().fold(0, |bits, ring| bits << 1 | u8::from(ring.overflow))
    }

    /// The driver knows that a ring has lost events.
    pub(crate) fn clear_overflow(&mut self, ring: u8) {
        if let Some(ring) = self.rings.get_mut(usize::from(ring)) {
            ring.overflow = false;
        }
    }

    /// Tells of a completion queue of a client in a ring, or answers with where it waits for that.
    pub(crate) fn complete(
        &mut self,
        ring: u8,
        client: u8,
        fired: Fired,
        now: u64,
    ) -> Option<PlaceInLine> {
        let any_waits = self.first_waiting(ring, 0).is_some();
        if self.limit.is_some() && (any_waits || !self.has_room(ring)) {
            let place = PlaceInLine { ring, client, count: self.next };
            self.next = self.next.wrapping_add(1);
            self.waiting.insert(place, fired);
            return Some(place);
        }
        self.push_completion(ring, fired, now);
        None
    }

    /// A completion queue that waits there has fired again.
    pub(crate) fn complete_again(&mut self, place: PlaceInLine, sequence: u32) {
        if let Some(fired) = self.waiting.get_mut(&place) {
            fired.sequence = sequence;
        }
    }

    /// A completion queue that waits there has gone.
    pub(crate) fn forget(&mut self, place: Option<PlaceInLine>) {
        if let Some(place) = place {
            self.waiting.remove(&place);
        }
    }

    /// Whether a completion may be told in a ring.
    fn has_room(&self, ring: u8) -> bool {
        let ring = self.rings.get(usize::from(ring));
        ring.is_some_and(|ring| self.limit.is_none_or(|limit| ring.unread() < limit))
    }

    /// Where the queue waits that is the first of a ring, from a client on.
    fn first_waiting(&self, ring: u8, client: u8) -> Option<PlaceInLine> {
        if self.waiting.is_empty() {
            return None;
        }
        let first = PlaceInLine { ring, client, count: 0 };
        let last = PlaceInLine { ring, client: u8::MAX, count: u64::MAX };
        self.waiting.range(first..=last).next().map(|(place, _)| *place)
    }

    /// Tells of one that waits and has room now, of the client whose turn it is in its ring; answers with the queue.
    #[inline]
    pub(crate) fn tell_waiting(&mut self, now: u64) -> Option<u32> {
        if self.waiting.is_empty() {
            return None;
        }
        let rings = (0..).zip(&self.rings);
        let (number, last) =
            rings.map(|(number, ring)| (number, ring.last)).find(|(number, _)| {
                self.has_room(*number) && self.first_waiting(*number, 0).is_some()
            })?;
        let of_next = last.checked_add(1).and_then(|client| self.first_waiting(number, client));
        let place = of_next.or_else(|| self.first_waiting(number, 0))?;
        let fired = self.waiting.remove(&place)?;
        if let Some(ring) = self.rings.get_mut(usize::from(number)) {
            ring.last = place.client;
        }
        self.push_completion(number, fired, now);
        Some(fired.cqn)
    }

    fn push_completion(&mut self, ring: u8, fired: Fired, now: u64) {
        let (kind, data) = (EventType::Completion, u64::from(fired.sequence));
        self.push_in(ring, Event { kind, number: fired.cqn, data, ..Event::default() }, now);
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
        if ring.unread() >= entries {
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
