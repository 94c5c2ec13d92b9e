//! Doorbells: a level in memory, and a slot that says where to look.
//!
//! The truth about a queue is its *doorbell record*, the first block of the queue's ring memory;
//! entries follow from byte 64. A producer writes entries, release-stores the record, then stores
//! to the queue's slot in its doorbell page. A later store to the same slot may overwrite an earlier
//! one unseen, so the slot is only a hint: an engine that polls re-reads the records of every queue
//! behind a slot whose value changed.
//!
//! Where the grant has a wake-up, the producer then issues a full fence, reads the asleep word, and
//! signals the eventfd if it is set. The card sets the word, issues a full fence, looks at every
//! doorbell once more, and sleeps.

/// Slots of a doorbell page, 8 bytes each, write only.
pub const SLOTS: usize = 512;

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
    const fn index(self) -> usize {
        match self {
            Self::Send => 0,
            Self::Receive => 1,
            Self::Completion => 2,
        }
    }
}

const SLOTS_PER_KIND: usize = 128;

/// The slot of a queue in its doorbell page, below [`SLOTS`].
#[inline(always)]
#[must_use]
pub const fn slot(kind: QueueKind, number: u32) -> usize {
    (number as usize % SLOTS_PER_KIND) + kind.index() * SLOTS_PER_KIND
}

/// The value to store in a queue's slot.
///
/// [31:0] producer index (for a CQ the arm sequence), [55:32] queue number, [63:56] generation. Two
/// successive stores of one queue, or of its successor under the same number, always differ: an
/// engine that polls sees each of them.
#[inline(always)]
#[must_use]
pub const fn slot_value(number: u32, generation: u8, index: u32) -> u64 {
    index as u64 | (number as u64 & 0xff_ffff) << 32 | (generation as u64) << 56
}

/// Words of a doorbell record, as byte offsets in the queue's first block.
pub mod record {
    /// SQ and RQ, u32: producer index; in blocks for an SQ, in entries for an RQ.
    pub const PRODUCER: usize = 0;
    /// CQ, u32: consumer index, in entries; the engine reads it to tell a full ring.
    pub const CONSUMER: usize = 0;
    /// CQ, u64: the arm word, see [`super::Arm`].
    pub const ARM: usize = 8;
    /// CQ, u32: completion-channel records the program has read; the driver's, not the engine's.
    pub const EVENTS_READ: usize = 16;
    /// Byte offset of the first entry behind the record.
    pub const ENTRIES: u64 = 64;
}

/// What an armed completion queue waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArmKind {
    /// A completion of a solicited message, or an error.
    Solicited,
    /// Any completion.
    Any,
}

/// The arm word of a completion queue: one arming, told apart from others by its sequence.
///
/// [31:0] index behind the last entry seen when arming; [61:32] sequence, one more with each arming; [63:62] kind:
/// 0 never armed, 1 solicited, 2 any. An entry at or beyond that index fires at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arm {
    /// Index behind the last entry the program had seen when it armed, consumed or not.
    pub consumer: u32,
    /// Counts armings, modulo 2^30.
    pub sequence: u32,
    /// What is waited for.
    pub kind: ArmKind,
}

impl Arm {
    /// The sequence that follows `sequence`.
    #[inline(always)]
    #[must_use]
    pub const fn next_sequence(sequence: u32) -> u32 {
        sequence.wrapping_add(1) & 0x3fff_ffff
    }

    /// The word as it stands in the record.
    #[inline(always)]
    #[must_use]
    pub const fn encode(self) -> u64 {
        let kind = match self.kind {
            ArmKind::Solicited => 1,
            ArmKind::Any => 2,
        };
        self.consumer as u64 | (self.sequence as u64 & 0x3fff_ffff) << 32 | kind << 62
    }

    /// Reads the word; `None` when the queue was never armed or the kind is unknown.
    #[inline(always)]
    #[must_use]
    pub const fn decode(word: u64) -> Option<Self> {
        let kind = match word >> 62 {
            1 => ArmKind::Solicited,
            2 => ArmKind::Any,
            _ => return None,
        };
        Some(Self { consumer: word as u32, sequence: (word >> 32) as u32 & 0x3fff_ffff, kind })
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
}
