//! End-to-end credits: how many messages the peer has receive requests for.
//!
//! A responder says in each acknowledgement how many receive requests it has left (specification,
//! section 9.7.7.2). A requester that has used them up sends the next message's first packet alone
//! and waits: that packet either finds a receive request that was posted meanwhile, and its
//! acknowledgement tells of more, or it costs an RNR NAK and is all that must be repeated. So no
//! promise that is lost, stale or never made can stop a queue pair.
//!
//! The specification limits the number of a message: that of the messages executed, plus the
//! credits. Here only the messages that take a receive request are counted on either side of that
//! sum: a WRITE or READ uses up nothing. So the requester may send at least as much as the specification
//! allows, and never more than the peer has promised.

use crate::api::Operation;
use crate::message::Message;
use crate::wire::aeth::credits_of;

/// A requester's knowledge of its peer's receive requests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Credit {
    /// How many messages of the connection may take a receive request; at first none.
    limit: u64,
    /// The packet beyond the limit that was sent alone.
    alone: Option<Alone>,
}

/// A packet that takes a receive request of which the peer has not told.
#[derive(Clone, Copy, Debug)]
struct Alone {
    /// The sequence after it.
    end: u64,
    /// Messages before its own that take a receive request.
    takes_before: u64,
}

impl Credit {
    /// The credit of a connection without credits: it limits nothing.
    // XRC-8
    pub(crate) const UNLIMITED: Self = Self { limit: u64::MAX, alone: None };

    /// Whether the peer has told how many receive requests it has, or will.
    pub(crate) fn tells(&self) -> bool {
        self.limit != u64::MAX
    }

    /// Whether nothing more is sent until the packet sent alone is answered.
    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        self.alone.is_some()
    }

    /// Notes that packet `sequence` of `message` is sent.
    // RC-91
    #[inline]
    pub(crate) fn spend(&mut self, message: &Message, sequence: u64) {
        if message.takes_before < self.limit {
            return;
        }
        let at = match message.request.operation {
            Operation::Write | Operation::Read | Operation::Atomic(_) => return,
            // RC-39: Only its last packet takes the receive request.
            Operation::WriteImm => message.end().wrapping_sub(1),
            Operation::Send | Operation::SendImm | Operation::SendInvalidate { .. } => {
                message.first
            }
        };
        if sequence == at {
            let end = sequence.wrapping_add(1);
            self.alone = Some(Alone { end, takes_before: message.takes_before });
        }
    }

    /// Everything before `unacked` is acknowledged.
    #[inline]
    pub(crate) fn follow_progress(&mut self, unacked: u64) {
        if self.alone.is_some_and(|alone| alone.end <= unacked) {
            self.alone = None;
        }
    }

    /// Everything unacknowledged is sent again.
    pub(crate) fn go_back(&mut self) {
        self.alone = None;
    }

    /// Takes the credit code of an acknowledgement, when `taken` messages that take a receive request
    /// are known to be executed. Says whether more may be sent than before.
    pub(crate) fn heed(&mut self, code: u8, taken: u64) -> bool {
        let limit = match credits_of(code) {
            // RC-90
            Some(credits) => taken.saturating_add(u64::from(credits)),
            // RC-92
            None => u64::MAX,
        };
        if limit <= self.limit {
            return false;
        }
        self.limit = limit;
        if self.alone.is_some_and(|alone| alone.takes_before < limit) {
            self.alone = None;
        }
        true
    }
}
