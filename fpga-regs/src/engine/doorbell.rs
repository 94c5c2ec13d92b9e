//! Doorbells: a level in memory, and a slot that says where to look.
//!
//! The truth about a queue is its *doorbell record*, the first block of the queue's ring memory;
//! entries follow from byte 64. A producer writes entries, release-stores the record, then stores
//! to the queue's slot in its doorbell page. A later store to the same slot may overwrite an earlier
//! one unseen, so the slot is only a hint: an engine that polls re-reads the records of every queue
//! behind a slot whose value changed.
//!
//! Where the grant has a wake-up, the producer then issues a full fence, reads the asleep word, and
//! signals the eventfd if it is set (for receives alone: if it is 1). The card sets the word, issues
//! a full fence, looks at every doorbell once more, and sleeps.

use super::window::{DOORBELL_PAGES, RELAY_PAGE};

constants! {
    /// Slots of a doorbell page, 8 bytes each, write only.
    pub const SLOTS: usize = 512;
    /// Slots of each kind of queue, a [`QueueCode`]; those behind the last kind are reserved.
    pub const SLOTS_PER_KIND: usize = 128;
}

open_enum! {
    /// The kind of a queue, as its part of the slot number.
    pub struct QueueCode(u8) {
        /// Send queue of the QP with that number.
        Send = 0,
        /// Receive queue or shared receive queue with that number.
        Receive = 1,
        /// Completion queue with that number.
        Completion = 2,
    }
}

/// The kinds of queue that have doorbells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QueueKind {
    /// Send queue of the QP with that number.
    Send,
    /// Receive queue or shared receive queue with that number.
    Receive,
    /// Completion queue with that number.
    Completion,
}

impl QueueKind {
    const fn code(self) -> QueueCode {
        match self {
            Self::Send => QueueCode::Send,
            Self::Receive => QueueCode::Receive,
            Self::Completion => QueueCode::Completion,
        }
    }
}

/// The slot of a queue in its doorbell page, below [`SLOTS`].
#[inline(always)]
#[must_use]
pub const fn slot(kind: QueueKind, number: u32) -> usize {
    (number as usize % SLOTS_PER_KIND) + kind.code().0 as usize * SLOTS_PER_KIND
}

/// The doorbell page in which the queues of a client have their slots.
#[inline(always)]
#[must_use]
pub const fn page_of(client: u8) -> u8 {
    if client > DOORBELL_PAGES { RELAY_PAGE } else { client }
}

bits! {
    /// The value to store in a queue's slot.
    ///
    /// Two successive stores of one queue, or of its successor under the same number, always differ:
    /// an engine that polls sees each of them. So an engine gives a QP no generation that stands in the
    /// slot of its number already.
    pub struct SlotValue(u64) {
        /// SQ, RQ: producer index. CQ: arm sequence.
        index[31:0]: u32,
        /// Number of the queue: QPN, RQN or CQN.
        number[55:32]: u32,
        /// SQ: generation of the QP. RQ: the same for a private one. CQ: how often it
        /// was resized, modulo 256.
        generation[63:56]: u8,
    }
}

/// The value to store in a queue's slot, as [`SlotValue`] says.
#[inline(always)]
#[must_use]
pub const fn slot_value(number: u32, generation: u8, index: u32) -> u64 {
    SlotValue { index, number, generation }.encode()
}

layout! {
    /// The doorbell record of a send or receive queue.
    pub struct ProducerRecord: 1 {
        /// Producer index, counting on for ever; in blocks for an SQ, in entries for an RQ.
        producer @ 0x00: u32,
    }
}

layout! {
    /// The doorbell record of a completion queue.
    pub struct CompletionRecord: 1 {
        /// Consumer index, in entries, counting on for ever; the engine reads it to tell a full ring.
        consumer @ 0x00: u32,
        /// The arm word ([`ArmWord`]), stored as one.
        arm @ 0x08: u64,
        /// Completion-channel records the program has read; the driver's, not the engine's.
        events_read @ 0x10: u32,
        /// Sequence of the last arming for any completion, stored before its arm word; 0 where there was none.
        armed_for_any @ 0x14: u32,
    }
}

/// Words of a doorbell record, as byte offsets in the queue's first block.
pub mod record {
    use super::{CompletionRecord, ProducerRecord};

    /// [`ProducerRecord::producer`].
    pub const PRODUCER: usize = ProducerRecord::FIELDS[0].offset;
    /// [`CompletionRecord::consumer`].
    pub const CONSUMER: usize = CompletionRecord::FIELDS[0].offset;
    /// [`CompletionRecord::arm`].
    pub const ARM: usize = CompletionRecord::FIELDS[1].offset;
    /// [`CompletionRecord::events_read`].
    pub const EVENTS_READ: usize = CompletionRecord::FIELDS[2].offset;
    /// [`CompletionRecord::armed_for_any`].
    pub const ARMED_FOR_ANY: usize = CompletionRecord::FIELDS[3].offset;
    /// Byte offset of the first entry behind the record.
    pub const ENTRIES: u64 = 64;
}

/// The completions for which an armed completion queue waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArmKind {
    /// A completion of a solicited message, or an error.
    Solicited,
    /// Any completion.
    Any,
}

open_enum! {
    /// The completions for which an armed completion queue waits, as its part of the arm word.
    pub struct ArmCode(u8) {
        /// Never armed.
        Never = 0,
        /// A completion of a solicited message, or an error.
        Solicited = 1,
        /// Any completion.
        Any = 2,
    }
}

bits! {
    /// The arm word of a completion queue. An entry at or beyond `consumer` that is of the kind
    /// waited for fires at once.
    pub struct ArmWord(u64) {
        /// Index behind the last entry that was consumed, or that an event reported to the program.
        consumer[31:0]: u32,
        /// One more with each arming, modulo 2^30; comes back in the event.
        arm_sequence[61:32]: u32,
        /// The completions that the program waits for.
        kind[63:62]: ArmCode,
    }
}

/// Sequences of armings count modulo 2^30.
const SEQUENCE_MASK: u32 = 0x3fff_ffff;

/// One arming of a completion queue, told apart from others by its sequence: an [`ArmWord`] of a
/// known kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arm {
    /// Index behind the last entry the program had seen when it armed, consumed or not.
    pub consumer: u32,
    /// Counts armings, modulo 2^30.
    pub sequence: u32,
    /// The completions for which the queue waits.
    pub kind: ArmKind,
}

impl Arm {
    /// The sequence that follows `sequence`.
    #[inline(always)]
    #[must_use]
    pub const fn next_sequence(sequence: u32) -> u32 {
        sequence.wrapping_add(1) & SEQUENCE_MASK
    }

    /// Whether the arming with sequence `any` is this one, or came before it and behind that with sequence `seen`.
    #[must_use]
    pub const fn covers(self, any: u32, seen: u32) -> bool {
        let behind_seen = any.wrapping_sub(seen) & SEQUENCE_MASK;
        behind_seen != 0 && behind_seen <= self.sequence.wrapping_sub(seen) & SEQUENCE_MASK
    }

    /// The word as it stands in the record.
    #[inline(always)]
    #[must_use]
    pub const fn encode(self) -> u64 {
        let kind = match self.kind {
            ArmKind::Solicited => ArmCode::Solicited,
            ArmKind::Any => ArmCode::Any,
        };
        ArmWord { consumer: self.consumer, arm_sequence: self.sequence, kind }.encode()
    }

    /// Reads the word; `None` when the queue was never armed or the kind is unknown.
    #[inline(always)]
    #[must_use]
    pub const fn decode(word: u64) -> Option<Self> {
        let ArmWord { consumer, arm_sequence: sequence, kind } = ArmWord::decode(word);
        let kind = match kind {
            ArmCode::Solicited => ArmKind::Solicited,
            ArmCode::Any => ArmKind::Any,
            _ => return None,
        };
        Some(Self { consumer, sequence, kind })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_queue_kind_has_its_own_slots_inside_the_page() {
        for number in [0, 1, 127, 128, 0xff_ffff, u32::MAX] {
            let [send, receive, completion] =
                [QueueKind::Send, QueueKind::Receive, QueueKind::Completion]
                    .map(|kind| slot(kind, number));
            assert!(send < receive && receive < completion && completion < SLOTS);
        }
    }

    #[test]
    fn the_arm_word_survives_its_encoding() {
        for kind in [ArmKind::Solicited, ArmKind::Any] {
            let arm = Arm { consumer: u32::MAX, sequence: 0x3fff_ffff, kind };
            assert_eq!(Arm::decode(arm.encode()), Some(arm));
        }
        assert_eq!(Arm::decode(0), None);
        assert_eq!(Arm::next_sequence(0x3fff_ffff), 0);
    }

    #[test]
    fn an_arming_covers_those_behind_the_last_that_was_seen() {
        for start in [0_u32, 1000, 0x3fff_fffd] {
            let at = |steps: u32| start.wrapping_add(steps) & SEQUENCE_MASK;
            let arm = Arm { consumer: 0, sequence: at(4), kind: ArmKind::Solicited };
            let covered: Vec<u32> = (0..8).filter(|any| arm.covers(at(*any), at(2))).collect();
            assert_eq!(covered, [3, 4], "from {start:#x}");
            assert!((0..8).all(|any| !arm.covers(at(any), at(4))), "nothing is new");
        }
    }
}
