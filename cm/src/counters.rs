//! Counters of messages that came, that went, and that were dropped.

use crate::wire::Attribute;

/// The number of different messages.
pub const MESSAGES: usize = 11;

/// Counters of a connection manager.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages received, by attribute, REQ first.
    pub received: [u64; MESSAGES],
    /// Messages sent, by attribute, REQ first, repetitions too.
    pub sent: [u64; MESSAGES],
    /// Messages sent again.
    pub repeated: u64,
    /// Requests that the manager refused by itself.
    pub refused: u64,
    /// Datagrams that were no messages, or not from queue pair 1.
    pub drop_malformed: u64,
    /// Messages of a connection that does not exist, or that has another peer.
    pub drop_unknown: u64,
    /// Messages that the state of the connection has no use for.
    pub drop_state: u64,
    /// Requests that found their listener's backlog full.
    pub drop_backlog: u64,
    /// Questions for the presence of a balboad that were too many.
    pub drop_presence: u64,
    /// Connections whose last word was not kept, for there were too many.
    pub cut_short: u64,
}

impl Counters {
    pub(crate) fn count(messages: &mut [u64; MESSAGES], attribute: Attribute) {
        let index = attribute.0.wrapping_sub(Attribute::REQ.0);
        if let Some(count) = messages.get_mut(usize::from(index)) {
            add(count);
        }
    }
}

/// One more.
pub(crate) fn add(count: &mut u64) {
    *count = count.wrapping_add(1);
}
