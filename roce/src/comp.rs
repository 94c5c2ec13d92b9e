//! The completer: what acknowledgements, NAKs and responses do to the requester.

use core::ops::Range;
use core::time::Duration;

use crate::api::{Event, Operation, Placement, SendStatus, Sink};
use crate::counters::{add, bump};
use crate::incoming::FramePlace;
use crate::log::EffectKind;
use crate::opcode::Class;
use crate::param;
use crate::qp::Shared;
use crate::reliable::RcQp;
use crate::req::Message;
use crate::state::QpState;
use crate::types::Instant;
use crate::wire::aeth::{NakCode, Syndrome};
use crate::wire::extension::atomicacketh;
use crate::wire::frame;

impl RcQp {
    /// Handles a response of the peer.
    pub(crate) fn receive_response(
        &mut self,
        shared: &mut Shared,
        now: Instant,
        packet: &frame::Repr,
        place: FramePlace,
        placements: &mut Vec<Placement>,
    ) {
        // RC-10
        if !self.core.state().sends_requests() {
            bump(&mut shared.counters.drop_wrong_state);
            return;
        }
        let sequence = packet.bth.psn.near(self.requester.unacked);
        // RC-57
        let syndrome = packet.aeth.map(|header| header.syndrome);
        if sequence < self.requester.unacked || sequence >= self.requester.sent {
            // RC-93
            let last = sequence.wrapping_add(1) == self.requester.unacked;
            let raised = match (packet.opcode.class, syndrome) {
                (Class::Acknowledge, Some(Syndrome::Ack { credits })) if last => {
                    self.heed_credits(shared, credits)
                }
                _ => false,
            };
            if !raised {
                bump(&mut shared.counters.drop_stale_response);
            }
            return;
        }
        match (packet.opcode.class, syndrome) {
            (Class::ReadResponse, None | Some(Syndrome::Ack { .. })) => {
                self.receive_read_response(shared, now, sequence, packet, place, placements);
            }
            (Class::AtomicAcknowledge, Some(Syndrome::Ack { .. })) => {
                self.receive_atomic_response(shared, now, sequence, place, placements);
            }
            (Class::Acknowledge, Some(Syndrome::Ack { .. })) => {
                if !self.acknowledge(shared, now, sequence.wrapping_add(1)) {
                    self.receive_implied_nak(shared, now);
                }
            }
            (Class::Acknowledge, Some(Syndrome::RnrNak { timer })) => {
                self.receive_rnr_nak(shared, now, sequence, timer);
            }
            (Class::Acknowledge, Some(Syndrome::Nak(code))) => {
                self.receive_nak(shared, now, sequence, code);
            }
            // RC-61
            _ => bump(&mut shared.counters.drop_bad_opcode),
        }
        // RC-90
        if let Some(Syndrome::Ack { credits }) = syndrome {
            self.heed_credits(shared, credits);
        }
    }

    /// Takes everything before `end` for acknowledged, as far as no response to a READ or an atomic is
    /// missing, and says whether none is.
    fn acknowledge(&mut self, shared: &mut Shared, now: Instant, end: u64) -> bool {
        let before = self.requester.unacked;
        let mut completed = 0_usize;
        // RC-56
        while self.requester.unacked < end {
            match self.requester.messages.front() {
                Some(message) if !message.is_answered() => {
                    self.requester.unacked = end.min(message.end());
                    if self.requester.unacked == message.end() {
                        self.requester.messages.pop_front();
                        completed = completed.wrapping_add(1);
                    }
                }
                _ => break,
            }
        }
        if self.requester.unacked != before {
            self.progress(shared, now, completed);
        }
        self.requester.unacked >= end
    }

    /// The oldest unacknowledged packet moved, and `completed` messages left the ring.
    fn progress(&mut self, shared: &mut Shared, now: Instant, completed: usize) {
        // RC-76
        self.requester.retries = self.core.attributes.retry_cnt;
        self.requester.rnr_retries = self.core.attributes.rnr_retry;
        self.requester.follow_progress(completed);
        self.requester.probe.progress(now, self.requester.unacked);
        self.restart_ack_timer(shared, now);
        if completed != 0 {
            let count = completed as u64;
            self.requester.head_number = self.requester.head_number.wrapping_add(count);
            add(&mut shared.counters.rdma_sends, count);
            // RC-25
            let through = self.requester.head_number.wrapping_sub(1);
            self.core.emit(shared, Event::SendsCompleted { qpn: self.core.qpn, through });
        }
        if self.requester.unreadable == Some(self.requester.head_number) {
            self.fail_send(shared, SendStatus::LocalProtection);
            return;
        }
        self.core.check_drained(shared, self.requester.is_drained());
        self.core.make_ready(shared);
    }

    /// The message that a response answers, if it is one of those that have such responses.
    fn answered(
        &mut self,
        shared: &mut Shared,
        now: Instant,
        sequence: u64,
        has_such: impl FnOnce(Operation) -> bool,
    ) -> Option<Message> {
        // RC-68: A response acknowledges the SENDs and WRITEs before it.
        if !self.acknowledge(shared, now, sequence) {
            self.receive_implied_nak(shared, now);
            return None;
        }
        let message = self.requester.messages.front().copied()?;
        // RC-72
        if !has_such(message.request.operation) || self.core.state() == QpState::Err {
            bump(&mut shared.counters.drop_stale_response);
            return None;
        }
        Some(message)
    }

    fn receive_read_response(
        &mut self,
        shared: &mut Shared,
        now: Instant,
        sequence: u64,
        packet: &frame::Repr,
        place: FramePlace,
        placements: &mut Vec<Placement>,
    ) {
        let is_read = |operation: Operation| operation == Operation::Read;
        let Some(message) = self.answered(shared, now, sequence, is_read) else { return };
        let next = sequence.wrapping_add(1);
        let (offset, length) = message.payload_at(sequence, self.core.mtu());
        let is_end = next == message.request_end(sequence);
        // RC-71
        if packet.opcode.position.is_end() != is_end || packet.payload.len() != length as usize {
            self.fail_send(shared, SendStatus::BadResponse);
            return;
        }
        if length != 0 {
            let start = place.payload_start;
            let range = start..start.wrapping_add(length as usize);
            self.place_response(shared, offset, (place.frame_index, range), placements);
            add(&mut shared.counters.rcvd_bytes, u64::from(length));
        }
        self.requester.unacked = next;
        let completed = next == message.end();
        if completed {
            self.requester.messages.pop_front();
        }
        self.progress(shared, now, usize::from(completed));
    }

    fn receive_atomic_response(
        &mut self,
        shared: &mut Shared,
        now: Instant,
        sequence: u64,
        place: FramePlace,
        placements: &mut Vec<Placement>,
    ) {
        let is_atomic = |operation: Operation| matches!(operation, Operation::Atomic(_));
        let Some(message) = self.answered(shared, now, sequence, is_atomic) else { return };
        // RC-101: The value is the last of the headers.
        let value = place.payload_start.wrapping_sub(atomicacketh::LENGTH)..place.payload_start;
        self.place_response(shared, 0, (place.frame_index, value), placements);
        self.requester.unacked = message.end();
        self.requester.messages.pop_front();
        self.progress(shared, now, 1);
    }

    /// Places bytes of a frame in the buffer of the oldest message.
    fn place_response(
        &mut self,
        shared: &mut Shared,
        offset: u64,
        (frame_index, range): (usize, Range<usize>),
        placements: &mut Vec<Placement>,
    ) {
        let message = self.requester.head_number;
        let placement = shared.log.place();
        self.core.push_effect(shared, EffectKind::PlacedResponse { placement, message });
        let sink = Sink::Message { message };
        placements.push(Placement {
            qpn: self.core.qpn,
            srqn: None,
            sink,
            offset,
            frame_index,
            range,
        });
    }

    /// A later response or acknowledgement shows that responses are missing. One retry for
    /// each place; then only the timer helps.
    fn receive_implied_nak(&mut self, shared: &mut Shared, now: Instant) {
        if self.core.state() == QpState::Err
            || self.requester.implied_nak_at == Some(self.requester.unacked)
        {
            bump(&mut shared.counters.drop_stale_response);
            return;
        }
        // RC-69
        self.requester.implied_nak_at = Some(self.requester.unacked);
        bump(&mut shared.counters.implied_nak_seq_err);
        bump(&mut self.core.counters.implied_nak_seq_err);
        self.retry(shared, now);
    }

    fn receive_nak(&mut self, shared: &mut Shared, now: Instant, sequence: u64, code: NakCode) {
        let status = match code {
            NakCode::PsnSequenceError => {
                bump(&mut shared.counters.packet_seq_err);
                bump(&mut shared.counters.rcvd_seq_err);
                bump(&mut self.core.counters.packet_seq_err);
                // RC-58, RC-59
                if !self.acknowledge(shared, now, sequence) {
                    self.receive_implied_nak(shared, now);
                } else if self.requester.next != self.requester.unacked {
                    self.retry(shared, now);
                }
                return;
            }
            // RC-60
            NakCode::InvalidRequest => SendStatus::RemoteInvalidRequest,
            NakCode::RemoteAccessError => SendStatus::RemoteAccess,
            NakCode::RemoteOperationalError => SendStatus::RemoteOperation,
            // XRC-5
            NakCode::InvalidRdRequest if self.core.service.names_srq() => {
                SendStatus::RemoteInvalidRdRequest
            }
            // RC-61
            NakCode::InvalidRdRequest | NakCode::Reserved(_) => {
                bump(&mut shared.counters.drop_malformed);
                return;
            }
        };
        bump(match status {
            SendStatus::RemoteAccess => &mut shared.counters.req_remote_access_errors,
            SendStatus::RemoteOperation => &mut shared.counters.req_remote_operational_errors,
            _ => &mut shared.counters.req_remote_invalid_request,
        });
        // A NAK acknowledges what came before it. If READ responses before it are missing, they
        // are asked for again, though a peer in its error state will hardly answer.
        if self.acknowledge(shared, now, sequence) {
            self.fail_send(shared, status);
        } else {
            self.receive_implied_nak(shared, now);
        }
    }

    fn receive_rnr_nak(&mut self, shared: &mut Shared, now: Instant, sequence: u64, timer: u8) {
        bump(&mut shared.counters.rcvd_rnr_err);
        bump(&mut self.core.counters.rcvd_rnr_err);
        if !self.acknowledge(shared, now, sequence) {
            self.receive_implied_nak(shared, now);
            return;
        }
        // RC-64: A repetition of the NAK, or one overtaken by a retry, says nothing new.
        if self.core.state() == QpState::Err
            || self.requester.rnr_until.is_some()
            || self.requester.next == self.requester.unacked
        {
            return;
        }
        // RC-65
        if self.core.attributes.rnr_retry != param::RNR_RETRY_INFINITE {
            match self.requester.rnr_retries.checked_sub(1) {
                Some(left) => self.requester.rnr_retries = left,
                None => {
                    bump(&mut shared.counters.retry_rnr_exceeded_err);
                    bump(&mut shared.counters.rnr_nak_retry_err);
                    self.fail_send(shared, SendStatus::RnrRetryExceeded);
                    return;
                }
            }
        }
        self.requester.go_back_unready();
        self.requester.rnr_until = Some(now.after(param::rnr_timeout(timer)));
        self.requester.ack_deadline = None;
        self.update_timer(shared);
    }

    /// Sends everything unacknowledged again, or gives up.
    fn retry(&mut self, shared: &mut Shared, now: Instant) {
        // RC-75
        let Some(left) = self.requester.retries.checked_sub(1) else {
            bump(&mut shared.counters.retry_exceeded_err);
            self.fail_send(shared, SendStatus::RetryExceeded);
            return;
        };
        bump(&mut shared.counters.completer_retry_err);
        self.requester.retries = left;
        self.requester.go_back_after_loss();
        self.restart_ack_timer(shared, now);
        self.core.make_ready(shared);
    }

    /// The QP's timer fired. A neighbour whose Ethernet address is unknown is a `lost_cause` when
    /// it did not answer many requests. Says whether the peer did not answer, so that its Ethernet
    /// address may be in doubt.
    pub(crate) fn timer_fired(
        &mut self,
        shared: &mut Shared,
        now: Instant,
        lost_cause: bool,
    ) -> bool {
        if !self.core.state().sends_requests() {
            return false;
        }
        if self.requester.rnr_until.take().is_some() {
            self.restart_ack_timer(shared, now);
            self.core.make_ready(shared);
            return false;
        }
        if self.requester.ack_deadline.is_some_and(|deadline| deadline > now) {
            self.probe(shared, now);
            return false;
        }
        self.requester.ack_deadline = None;
        let resolved = self.core.path.as_ref().is_some_and(|path| path.is_resolved());
        if !resolved && !lost_cause {
            self.wait_for_neighbour(shared, now, param::ARP_WAIT);
            return false;
        }
        if resolved && self.requester.next == self.requester.unacked {
            // Nothing was sent since the last time: the caller is busy, the peer is not silent.
            self.restart_ack_timer(shared, now);
            self.core.make_ready(shared);
            return false;
        }
        // RC-75
        bump(&mut shared.counters.local_ack_timeout_err);
        bump(&mut self.core.counters.local_ack_timeout_err);
        self.requester.implied_nak_at = None;
        self.requester.probe.fired();
        self.retry(shared, now);
        if !resolved {
            self.wait_for_neighbour(shared, now, Duration::ZERO);
        }
        true
    }

    /// The memory of message `number` could not be read. Messages before it are finished first.
    pub(crate) fn message_unreadable(&mut self, shared: &mut Shared, number: u64) {
        let requester = &mut self.requester;
        let index = number.wrapping_sub(requester.head_number);
        if index >= requester.messages.len() as u64 {
            return;
        }
        let number = requester.unreadable.map_or(number, |other| other.min(number));
        requester.unreadable = Some(number);
        // RC-85
        if number == requester.head_number {
            self.fail_send(shared, SendStatus::LocalProtection);
        } else {
            // The last packet before it may not have asked for an acknowledgement.
            requester.go_back();
            self.core.make_ready(shared);
        }
    }
}
