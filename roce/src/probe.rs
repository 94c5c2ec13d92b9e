//! Asking a silent peer how far it has come, long before the acknowledgement timeout.
//!
//! A responder reports a gap once (specification, section 9.7.5.1.1). If that NAK is lost, or the
//! last packet before a pause, nothing but the requester's timer helps; and that one is set for the
//! longest path of a fabric, tens of milliseconds, while a round trip takes tens of microseconds.
//! So, when nothing has moved for some round trips, the requester sends its oldest packet again, by
//! itself, and asks for an acknowledgement. The answer tells everything: a responder that had the
//! packet acknowledges all it has; one that lacked it acknowledges this packet alone, and then what
//! was sent after it is known to be lost too and sent again.
//!
//! A question costs one frame, so it does no harm when the peer is merely slow; each further one
//! waits twice as long. It uses up no retry: those, and the time until a peer counts as gone, are
//! the acknowledgement timer's as ever. Nothing is asked before a round trip has been measured.

use core::time::Duration;

use crate::api::Transmit;
use crate::counters::bump;
use crate::param;
use crate::qp::{Qp, Shared};
use crate::types::Instant;

/// When a requester asks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Probe {
    /// When to ask, unless something moves before.
    deadline: Option<Instant>,
    /// Questions since something moved.
    asked: u32,
    /// A question is to be sent.
    due: bool,
    /// The sequence after the packet that the question repeated.
    end: Option<u64>,
    /// A packet whose round trip is being measured: the sequence after it, and when it was sent.
    timed: Option<(u64, Instant)>,
    /// The smoothed round-trip time in nanoseconds.
    round_trip: Option<u64>,
}

impl Probe {
    /// When to ask.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Begins to measure with a new packet that asks for an acknowledgement.
    pub(crate) fn time(&mut self, sequence: u64, now: Instant) {
        if self.timed.is_none() {
            self.timed = Some((sequence.wrapping_add(1), now));
        }
    }

    /// Everything is sent again: measures of what was sent before would be of either.
    pub(crate) fn forget(&mut self) {
        (self.due, self.end, self.timed) = (false, None, None);
    }

    /// Waits anew, if the acknowledgement timer runs.
    pub(crate) fn restart(&mut self, now: Instant, is_timed: bool) {
        self.deadline = match self.round_trip {
            Some(round_trip) if is_timed => {
                let patience = round_trip.saturating_mul(param::PROBE_ROUND_TRIPS);
                let patience = Duration::from_nanos(patience).max(param::PROBE_FLOOR);
                Some(now.after(patience.saturating_mul(1 << self.asked.min(16))))
            }
            _ => None,
        };
    }

    /// Everything before `unacked` is acknowledged. Says whether that answers a question, such that
    /// what was sent later is lost.
    pub(crate) fn progress(&mut self, now: Instant, unacked: u64) -> bool {
        self.asked = 0;
        self.due = false;
        if let Some((_, sent)) = self.timed.take_if(|(end, _)| *end <= unacked) {
            let sample = now.0.saturating_sub(sent.0);
            let known = self.round_trip.unwrap_or(sample);
            self.round_trip = Some(known.saturating_sub(known / 8).saturating_add(sample / 8));
        }
        match self.end {
            Some(end) if end <= unacked => {
                self.end = None;
                end == unacked
            }
            _ => false,
        }
    }
}

impl Qp {
    /// Nothing has moved for a while.
    pub(crate) fn probe(&mut self, shared: &mut Shared, now: Instant) {
        let requester = &mut self.requester;
        requester.probe.asked = requester.probe.asked.saturating_add(1);
        requester.probe.due = true;
        requester.probe.restart(now, requester.ack_deadline.is_some());
        self.make_ready(shared);
        self.update_timer(shared);
    }

    /// Emits the question that is due.
    pub(crate) fn transmit_probe(&mut self, shared: &mut Shared) -> Option<Transmit> {
        let requester = &mut self.requester;
        if !core::mem::take(&mut requester.probe.due)
            || requester.rnr_until.is_some()
            || !self.attributes.state.sends_requests()
        {
            return None;
        }
        let sequence = requester.unacked;
        let number = requester.head_number;
        let message = *requester.messages.front()?;
        if sequence >= requester.next || requester.unreadable == Some(number) {
            return None;
        }
        if message.is_read() {
            // To ask is to ask for the data.
            requester.go_back();
            return None;
        }
        requester.probe.end = Some(sequence.wrapping_add(1));
        bump(&mut shared.counters.retransmitted_pkts);
        bump(&mut self.counters.retransmitted_pkts);
        self.data_packet(shared, &message, number, sequence, true)
    }
}
