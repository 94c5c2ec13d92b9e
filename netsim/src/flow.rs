//! A flow: WRITEs from one host to another, one after the other.

use roce::Qpn;

use crate::frame::PRIORITY_SHIFT;
use crate::time::Time;

/// A message of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its bytes, at most 2^31.
    pub bytes: u32,
    /// It is posted then, or when there is room in the send ring.
    pub start: Time,
}

/// A flow.
#[derive(Debug)]
pub struct Flow {
    /// The host that writes.
    pub from: u32,
    /// The host whose memory is written.
    pub to: u32,
    /// Its queue pairs, of which the first one writes. They are there from its first message until all are complete.
    pub qpns: [Qpn; 2],
    /// The traffic class of its packets.
    pub class: u8,
    /// The messages, by when they start.
    pub messages: Vec<Message>,
    /// How many of them are posted.
    pub posted: usize,
    /// When each of the first of them was complete.
    pub ends: Vec<Time>,
    /// Bytes of payload that left, those that left again among them.
    pub sent: u64,
    /// Bytes of payload that are where they belong.
    pub delivered: u64,
    /// It failed.
    pub failed: bool,
}

impl Flow {
    /// The priority of its packets.
    #[must_use]
    pub const fn priority(&self) -> u8 {
        self.class >> PRIORITY_SHIFT
    }

    /// Whether it had messages to send at some time between two.
    #[must_use]
    pub fn is_active(&self, from: Time, to: Time) -> bool {
        let begun = self.messages.first().is_some_and(|first| first.start < to);
        let over = self.ends.len() == self.messages.len()
            && self.ends.last().is_none_or(|last| *last <= from);
        begun && !over
    }
}
