//! Messages of a send queue of an unreliable service: each is complete when its packets were made.

use std::collections::VecDeque;

use crate::api::{Event, SendStatus};
use crate::counters::{add, bump};
use crate::drops::{self, Reason};
use crate::error::PostError;
use crate::param;
use crate::qp::{QpCore, Shared};

/// The messages of a send queue.
#[derive(Debug)]
pub(crate) struct Unanswered<T> {
    /// Messages of which not all packets were made, oldest first.
    messages: VecDeque<T>,
    /// The number of the first of them.
    next: u64,
    /// The number of the oldest that is not complete: from it on to `next` packets are being made.
    oldest: u64,
}

impl<T> Default for Unanswered<T> {
    fn default() -> Self {
        Self { messages: VecDeque::new(), next: 0, oldest: 0 }
    }
}

impl<T: Copy> Unanswered<T> {
    /// How many more messages fit.
    pub(crate) fn room(&self) -> usize {
        param::SEND_RING.saturating_sub(self.messages.len())
    }

    /// Adds a message where there is room, and gives its number.
    pub(crate) fn post(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        message: T,
    ) -> Result<u64, PostError> {
        if self.room() == 0 {
            return Err(PostError::Full(core.qpn));
        }
        let number = self.next.wrapping_add(self.messages.len() as u64);
        self.messages.push_back(message);
        core.make_ready(shared);
        Ok(number)
    }

    /// Gives room back of which three quarters are empty.
    pub(crate) fn narrow(&mut self) {
        let mut room = self.messages.capacity();
        while room > param::KEPT_MESSAGES && self.messages.len() <= room / 4 {
            room = (room / 2).max(param::KEPT_MESSAGES);
        }
        self.messages.shrink_to(room);
    }

    /// The message whose turn it is, and its number.
    pub(crate) fn head(&self) -> Option<(T, u64)> {
        self.messages.front().map(|message| (*message, self.next))
    }

    /// The last packet of the message whose turn it was is being made.
    pub(crate) fn advance(&mut self) {
        self.messages.pop_front();
        self.next = self.next.wrapping_add(1);
    }

    /// Drops the message whose turn it was. It is complete behind those before it.
    pub(crate) fn drop_head(&mut self, core: &QpCore, shared: &mut Shared) {
        // UD-8
        drops::count(&mut shared.counters, Reason::NoNeighbour);
        let is_oldest = self.oldest == self.next;
        self.advance();
        if is_oldest {
            self.settle(core, shared);
        }
    }

    /// All packets that were polled have been made.
    pub(crate) fn settle(&mut self, core: &QpCore, shared: &mut Shared) {
        // UD-6
        self.complete(core, shared, self.next);
    }

    /// Whether all messages are complete that have left the queue.
    pub(crate) fn is_settled(&self) -> bool {
        self.oldest == self.next
    }

    /// Completes the messages before `end`.
    fn complete(&mut self, core: &QpCore, shared: &mut Shared, end: u64) {
        let count = end.saturating_sub(self.oldest);
        if count == 0 {
            return;
        }
        self.oldest = end;
        add(&mut shared.counters.rdma_sends, count);
        let through = end.wrapping_sub(1);
        core.emit(shared, Event::SendsCompleted { qpn: core.qpn, through });
    }

    /// The payload of a message could not be read: it fails, behind those before it, and all that were
    /// posted behind it are forgotten. `false` where it is complete already.
    pub(crate) fn fail(&mut self, core: &QpCore, shared: &mut Shared, message: u64) -> bool {
        if !(self.oldest..=self.next).contains(&message) {
            return false;
        }
        // UD-13
        self.complete(core, shared, message);
        bump(&mut shared.counters.req_cqe_error);
        let (qpn, status) = (core.qpn, SendStatus::LocalProtection);
        core.emit(shared, Event::SendFailed { qpn, message, status });
        self.forget();
        true
    }

    /// Forgets all messages that are not complete.
    pub(crate) fn forget(&mut self) {
        self.next = self.next.wrapping_add(self.messages.len() as u64);
        self.oldest = self.next;
        self.messages = VecDeque::new();
    }
}
