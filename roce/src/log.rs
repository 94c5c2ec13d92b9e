//! Effects of a burst of frames, held back until its placements are known to have succeeded.

use core::ops::Range;
use std::collections::{BTreeMap, VecDeque};

use crate::api::{Event, Placement};
use crate::owed::Ack;

/// An effect that waits for the next commit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effect {
    /// The QP's slot.
    pub slot: u32,
    /// The QP's generation; an effect of an earlier generation is void.
    pub generation: u32,
    /// The kind, with its values.
    pub kind: EffectKind,
}

/// A receive request that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    /// Along XRC: the shared receive queue that it is of.
    pub srqn: Option<u32>,
    /// The request's name, given by the layer above.
    pub id: u64,
}

/// The kinds of [`Effect`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum EffectKind {
    /// A request packet was accepted under the condition of its placement.
    PlacedRequest {
        /// The placement, counted from the last commit.
        placement: usize,
        /// The packet, and the messages executed before it.
        at: Ack,
        /// The receive request it fills.
        receive: Option<Taken>,
    },
    /// An atomic request was accepted under the condition of its execution.
    ExecutedAtomic {
        /// The placement, counted from the last commit.
        placement: usize,
        /// The packet, and the messages executed before it.
        at: Ack,
    },
    /// A response was accepted under the condition of its placement.
    PlacedResponse {
        /// The placement, counted from the last commit.
        placement: usize,
        /// The message number of the READ or atomic.
        message: u64,
    },
    /// A datagram was accepted under the condition of its placements; the event behind it says so.
    PlacedDatagram {
        /// The first of its placements, counted from the last commit.
        first: usize,
        /// How many they are.
        count: u8,
        /// The receive request it fills.
        receive: u64,
    },
    /// An event that happened after the effects before it.
    Event(Event),
}

impl EffectKind {
    /// The placements that it depends on, counted from the last commit.
    pub(crate) fn placements(&self) -> Range<usize> {
        match *self {
            Self::PlacedRequest { placement, .. }
            | Self::ExecutedAtomic { placement, .. }
            | Self::PlacedResponse { placement, .. } => placement..placement.wrapping_add(1),
            Self::PlacedDatagram { first, count, .. } => first..first.wrapping_add(count.into()),
            Self::Event(_) => 0..0,
        }
    }
}

/// The effects since the last commit, and the events that came out of earlier ones.
#[derive(Debug, Default)]
pub(crate) struct Log {
    effects: Vec<Effect>,
    /// The caller's, while a frame is received.
    pub placements: Vec<Placement>,
    /// Placements since the last commit.
    placed: usize,
    /// The effects on QPs with placements that are not known yet, by slot.
    aside: BTreeMap<u32, Vec<Effect>>,
    events: VecDeque<Event>,
}

impl Log {
    /// Whether nothing waits for a commit.
    pub(crate) fn is_committed(&self) -> bool {
        self.effects.is_empty() && self.placed == 0
    }

    /// Adds a placement and gives its number, counted from the last commit.
    #[inline]
    pub(crate) fn place(&mut self, placement: Placement) -> usize {
        self.placements.push(placement);
        let number = self.placed;
        self.placed = number.wrapping_add(1);
        number
    }

    /// Adds an effect.
    pub(crate) fn push(&mut self, slot: u32, generation: u32, kind: EffectKind) {
        self.effects.push(Effect { slot, generation, kind });
    }

    /// Reports an event of a QP: after everything that waits, at once if nothing does.
    pub(crate) fn emit(&mut self, slot: u32, generation: u32, event: Event) {
        if self.is_committed() {
            match self.aside.get_mut(&slot) {
                None => self.release(event),
                Some(waiting) => {
                    waiting.push(Effect { slot, generation, kind: EffectKind::Event(event) });
                }
            }
        } else {
            self.push(slot, generation, EffectKind::Event(event));
        }
    }

    /// Makes an event visible.
    pub(crate) fn release(&mut self, event: Event) {
        self.events.push_back(event);
    }

    /// Takes the effects for a commit; give the vector back with [`Log::finish`].
    pub(crate) fn take(&mut self) -> Vec<Effect> {
        self.placed = 0;
        core::mem::take(&mut self.effects)
    }

    /// Ends a commit: keeps the vector's memory for the next burst.
    pub(crate) fn finish(&mut self, mut effects: Vec<Effect>) {
        effects.clear();
        self.effects = effects;
    }

    /// Whether effects on a QP wait for placements of before the last commit.
    #[inline]
    pub(crate) fn is_aside(&self, slot: u32) -> bool {
        !self.aside.is_empty() && self.aside.contains_key(&slot)
    }

    /// Puts effects on a QP aside from now on.
    pub(crate) fn begin_aside(&mut self, slot: u32) {
        self.aside.entry(slot).or_default();
    }

    /// Puts the effects aside that are on such QPs.
    pub(crate) fn put_aside(&mut self, effects: &mut Vec<Effect>) {
        effects.retain(|effect| match self.aside.get_mut(&effect.slot) {
            Some(waiting) => {
                waiting.push(*effect);
                false
            }
            None => true,
        });
    }

    /// Whether any effects were put aside.
    #[inline]
    pub(crate) fn has_aside(&self) -> bool {
        !self.aside.is_empty()
    }

    /// Takes the effects on a QP that were put aside.
    pub(crate) fn take_aside(&mut self, slot: u32) -> Vec<Effect> {
        self.aside.remove(&slot).unwrap_or_default()
    }

    /// The next visible event.
    pub(crate) fn poll(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Drops visible events that `keep` refuses.
    pub(crate) fn retain(&mut self, keep: impl FnMut(&Event) -> bool) {
        self.events.retain(keep);
    }
}
