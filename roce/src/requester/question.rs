//! Questions to a silent peer, as the requester has them: see [`crate::probe`].

use super::Requester;
use crate::api::Transmit;
use crate::counters::bump;
use crate::qp::{QpCore, Shared};
use crate::types::Instant;

impl Requester {
    /// Lets the timers wait once more, after the card did not run for a while. Says whether they do.
    // RC-97
    pub(crate) fn excuse_late_timer(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        now: Instant,
    ) -> bool {
        let requester = &mut *self;
        let Some(ack) = requester.ack_deadline else { return false };
        let Some(until) = requester.probe.excuse(ack, now) else { return false };
        requester.ack_deadline = Some(ack.max(until));
        self.update_timer(core, shared);
        true
    }

    /// Nothing has moved for a while.
    pub(crate) fn probe(&mut self, core: &mut QpCore, shared: &mut Shared, now: Instant) {
        let requester = &mut *self;
        if requester.probe.take_alone() && requester.next > requester.unacked {
            requester.go_back_after_loss(core, now);
        } else {
            requester.probe.ask();
        }
        requester.probe.restart(now, requester.ack_deadline.is_some());
        core.make_ready(shared);
        self.update_timer(core, shared);
    }

    /// Emits the question that is due.
    pub(crate) fn transmit_probe(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
    ) -> Option<Transmit> {
        let requester = &mut *self;
        if !requester.probe.take_due()
            || requester.rnr_until.is_some()
            || !core.state().sends_requests()
        {
            return None;
        }
        let sequence = requester.unacked;
        let number = requester.head_number;
        let message = *requester.messages.front()?;
        if sequence >= requester.next || requester.unreadable == Some(number) {
            return None;
        }
        if message.is_answered() {
            // To ask is to ask for the data.
            requester.go_back();
            requester.probe.repeat(sequence);
            return None;
        }
        requester.probe.sent(sequence);
        bump(&mut shared.counters.sent_questions);
        self.data_packet(core, shared, &message, number, sequence, true)
    }
}
