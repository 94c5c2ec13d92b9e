//! The completer: effects of acknowledgements, NAKs and responses on the requester.

use core::ops::Range;
use core::time::Duration;

use fpga_regs::engine::qp::QpState;

use crate::api::{AtomicOperation, Event, Operation, Placement, SendStatus, Sink};
use crate::counters::{add, bump};
use crate::drops::{self, Reason};
use crate::incoming::Incoming;
use crate::log::EffectKind;
use crate::message::Message;
use crate::opcode::Class;
use crate::param;
use crate::psn::Psn;
use crate::qp::{QpCore, Shared};
use crate::requester::Requester;
use crate::services::{Part, PartKind};
use crate::types::Instant;
use crate::window::Acked;
use crate::wire::aeth::{NakCode, Syndrome};
use crate::wire::frame;

/// A response of the peer that awaits one.
struct Response<'a> {
    incoming: &'a Incoming<'a>,
    sequence: u64,
}

/// The messages and packets that one answer of the peer acknowledges.
#[derive(Clone, Copy, Default)]
struct Progress {
    /// Packets; of READs and atomics responses.
    packets: u64,
    /// Bytes of their payload.
    bytes: u64,
    /// Messages that left the ring.
    messages: usize,
}

impl Requester {
    /// Handles a response of the peer.
    pub(crate) fn receive_response(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        incoming: &Incoming<'_>,
    ) {
        let Incoming { now, packet, .. } = *incoming;
        // RC-10
        if !core.state().sends_requests() {
            drops::count(&mut shared.counters, Reason::WrongState);
            return;
        }
        let sequence = packet.bth.psn.near(self.unacked);
        // RC-57
        let syndrome = packet.aeth.map(|header| header.syndrome);
        if sequence < self.unacked || sequence >= self.sent {
            // RC-93
            let last = sequence.wrapping_add(1) == self.unacked;
            let raised = match (packet.opcode.class, syndrome) {
                (Class::Acknowledge, Some(Syndrome::Ack { credits })) if last => {
                    self.heed_credits(core, shared, credits)
                }
                _ => false,
            };
            if !raised {
                drops::count(&mut shared.counters, Reason::StaleResponse);
            }
            return;
        }
        match (packet.opcode.class, syndrome) {
            (Class::ReadResponse, None | Some(Syndrome::Ack { .. })) => {
                let response = Response { incoming, sequence };
                self.receive_read_response(core, shared, &response);
            }
            (Class::AtomicAcknowledge, Some(Syndrome::Ack { .. })) => {
                let response = Response { incoming, sequence };
                self.receive_atomic_response(core, shared, &response);
            }
            (Class::Acknowledge, Some(Syndrome::Ack { .. })) => {
                if !self.acknowledge(core, shared, now, sequence.wrapping_add(1)) {
                    self.receive_implied_nak(core, shared, now);
                }
            }
            (Class::Acknowledge, Some(Syndrome::RnrNak { timer })) => {
                self.receive_rnr_nak(core, shared, now, sequence, timer);
            }
            (Class::Acknowledge, Some(Syndrome::Nak(code))) => {
                self.receive_nak(core, shared, now, sequence, code);
            }
            // RC-61
            _ => drops::count(&mut shared.counters, Reason::BadOpcode),
        }
        // RC-90
        if let Some(Syndrome::Ack { credits }) = syndrome {
            self.heed_credits(core, shared, credits);
        }
    }

    /// Takes everything before `end` for acknowledged, as far as no response to a READ or an atomic is
    /// missing, and says whether none is.
    fn acknowledge(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        now: Instant,
        end: u64,
    ) -> bool {
        let before = self.unacked;
        let mut by = Progress::default();
        // RC-56
        while self.unacked < end {
            match self.messages.front() {
                Some(message) if !message.is_answered() => {
                    let next = end.min(message.end());
                    by.bytes = by.bytes.wrapping_add(message.bytes(self.unacked..next, core.mtu()));
                    self.unacked = next;
                    if next == message.end() {
                        self.messages.pop_front();
                        by.messages = by.messages.wrapping_add(1);
                    }
                }
                _ => break,
            }
        }
        by.packets = self.unacked.wrapping_sub(before);
        if by.packets != 0 {
            self.progress(core, shared, now, by);
        }
        self.unacked >= end
    }

    /// The oldest unacknowledged packet moved.
    fn progress(&mut self, core: &mut QpCore, shared: &mut Shared, now: Instant, by: Progress) {
        // RC-76
        self.retries = core.attributes.retry_cnt;
        self.rnr_retries = core.attributes.rnr_retry;
        let round_trip = self.probe.progress(now, self.unacked);
        let acked = Acked { packets: by.packets, bytes: by.bytes, round_trip };
        self.follow_progress(core, now, acked, by.messages);
        self.restart_ack_timer(core, shared, now);
        if by.messages != 0 {
            let count = by.messages as u64;
            self.head_number = self.head_number.wrapping_add(count);
            add(&mut shared.counters.rdma_sends, count);
            // RC-25
            let through = self.head_number.wrapping_sub(1);
            core.emit(shared, Event::SendsCompleted { qpn: core.qpn, through });
        }
        if self.unreadable == Some(self.head_number) {
            self.fail_send(core, shared, SendStatus::LocalProtection);
            return;
        }
        core.check_drained(shared, self.is_drained());
        core.make_ready(shared);
    }

    /// The message that a response answers, if it is one of those that have such responses.
    fn answered(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        now: Instant,
        sequence: u64,
        has_such: impl FnOnce(Operation) -> bool,
    ) -> Option<Message> {
        // RC-68: A response acknowledges the SENDs and WRITEs before it.
        if self.unacked < sequence && !self.acknowledge(core, shared, now, sequence) {
            self.receive_implied_nak(core, shared, now);
            return None;
        }
        let message = self.messages.front().copied()?;
        // RC-72
        if !has_such(message.request.operation) || core.state() == QpState::Err {
            drops::count(&mut shared.counters, Reason::StaleResponse);
            return None;
        }
        Some(message)
    }

    /// The part of its message that a response to a READ is, if its turn has come.
    pub(crate) fn part(&self, core: &QpCore, packet: &frame::Repr) -> Option<Part> {
        if packet.opcode.class != Class::ReadResponse || !core.state().sends_requests() {
            return None;
        }
        let sequence = packet.bth.psn.near(self.unacked);
        // RC-68
        let message = self.messages.iter().find(|message| message.is_answered())?;
        let is_next = sequence == self.unacked.max(message.first) && sequence < self.sent;
        if !is_next || message.request.operation != Operation::Read {
            return None;
        }
        let (offset, length) = message.payload_at(sequence, core.mtu());
        let is_last = sequence.wrapping_add(1) == message.end();
        let is_whole = packet.payload.len() == length as usize;
        is_whole.then_some(Part { kind: PartKind::Read, offset, is_last })
    }

    /// Fails the READ whose response has its turn, for a service does not let that pass.
    pub(crate) fn refuse_by_service(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        now: Instant,
        psn: Psn,
    ) {
        let sequence = psn.near(self.unacked);
        // RC-68
        self.acknowledge(core, shared, now, sequence);
        self.fail_send(core, shared, SendStatus::BadResponse);
    }

    /// Whether messages of its own are not complete.
    pub(crate) fn is_open(&self) -> bool {
        !self.messages.is_empty()
    }

    fn receive_read_response(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        response: &Response<'_>,
    ) {
        let Response { incoming, sequence } = *response;
        let Incoming { now, packet, place, .. } = *incoming;
        let is_read = |operation: Operation| operation == Operation::Read;
        let Some(message) = self.answered(core, shared, now, sequence, is_read) else { return };
        let next = sequence.wrapping_add(1);
        let (offset, length) = message.payload_at(sequence, core.mtu());
        let is_end = next == message.request_end(sequence);
        // RC-71
        if packet.opcode.position.is_end() != is_end || packet.payload.len() != length as usize {
            self.fail_send(core, shared, SendStatus::BadResponse);
            return;
        }
        if length != 0 {
            let start = place.payload_start;
            let range = start..start.wrapping_add(length as usize);
            self.place_response(core, shared, offset, place.frame_index, range);
            add(&mut shared.counters.rcvd_bytes, u64::from(length));
        }
        self.unacked = next;
        let completed = next == message.end();
        if completed {
            self.messages.pop_front();
        }
        let by =
            Progress { packets: 1, bytes: u64::from(length), messages: usize::from(completed) };
        self.progress(core, shared, now, by);
    }

    fn receive_atomic_response(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        response: &Response<'_>,
    ) {
        let Response { incoming, sequence } = *response;
        let Incoming { now, place, .. } = *incoming;
        let is_atomic = |operation: Operation| matches!(operation, Operation::Atomic(_));
        let Some(message) = self.answered(core, shared, now, sequence, is_atomic) else { return };
        self.place_response(core, shared, 0, place.frame_index, place.value_before());
        self.unacked = message.end();
        self.messages.pop_front();
        let bytes = u64::from(AtomicOperation::LENGTH);
        self.progress(core, shared, now, Progress { packets: 1, bytes, messages: 1 });
    }

    /// Places bytes of a frame in the buffer of the oldest message.
    fn place_response(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        offset: u64,
        frame_index: usize,
        range: Range<usize>,
    ) {
        let message = self.head_number;
        let (qpn, srqn, sink) = (core.qpn, None, Sink::Message { message });
        let placement = shared.log.place(Placement { qpn, srqn, sink, offset, frame_index, range });
        core.push_effect(shared, EffectKind::PlacedResponse { placement, message });
    }

    /// A later response or acknowledgement shows that responses are missing. One retry for
    /// each place; then only the timer helps.
    fn receive_implied_nak(&mut self, core: &mut QpCore, shared: &mut Shared, now: Instant) {
        if core.state() == QpState::Err || self.implied_nak_at == Some(self.unacked) {
            drops::count(&mut shared.counters, Reason::StaleResponse);
            return;
        }
        // RC-69
        self.implied_nak_at = Some(self.unacked);
        bump(&mut shared.counters.implied_nak_seq_err);
        bump(&mut core.counters.implied_nak_seq_err);
        self.retry(core, shared, now);
    }

    fn receive_nak(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        now: Instant,
        sequence: u64,
        code: NakCode,
    ) {
        let status = match code {
            NakCode::PsnSequenceError => {
                bump(&mut shared.counters.packet_seq_err);
                bump(&mut shared.counters.rcvd_seq_err);
                bump(&mut core.counters.packet_seq_err);
                // RC-58, RC-59
                if !self.acknowledge(core, shared, now, sequence) {
                    self.receive_implied_nak(core, shared, now);
                } else if self.next != self.unacked {
                    self.retry(core, shared, now);
                }
                return;
            }
            // RC-60
            NakCode::InvalidRequest => SendStatus::RemoteInvalidRequest,
            NakCode::RemoteAccessError => SendStatus::RemoteAccess,
            NakCode::RemoteOperationalError => SendStatus::RemoteOperation,
            // XRC-5
            NakCode::InvalidRdRequest if core.service.names_srq() => {
                SendStatus::RemoteInvalidRdRequest
            }
            // RC-61
            NakCode::InvalidRdRequest | NakCode::Reserved(_) => {
                drops::count(&mut shared.counters, Reason::Malformed);
                return;
            }
        };
        bump(match status {
            SendStatus::RemoteAccess => &mut shared.counters.req_remote_access_errors,
            SendStatus::RemoteOperation => &mut shared.counters.req_remote_operational_errors,
            _ => &mut shared.counters.req_remote_invalid_request,
        });
        // A NAK acknowledges the packets before it. If READ responses before it are missing, they
        // are asked for again, though a peer in its error state will hardly answer.
        if self.acknowledge(core, shared, now, sequence) {
            self.fail_send(core, shared, status);
        } else {
            self.receive_implied_nak(core, shared, now);
        }
    }

    fn receive_rnr_nak(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        now: Instant,
        sequence: u64,
        timer: u8,
    ) {
        bump(&mut shared.counters.rcvd_rnr_err);
        bump(&mut core.counters.rcvd_rnr_err);
        if !self.acknowledge(core, shared, now, sequence) {
            self.receive_implied_nak(core, shared, now);
            return;
        }
        // RC-64: A repetition of the NAK, or one overtaken by a retry, says nothing new.
        if core.state() == QpState::Err || self.rnr_until.is_some() || self.next == self.unacked {
            return;
        }
        // RC-65
        if core.attributes.rnr_retry != param::RNR_RETRY_INFINITE {
            match self.rnr_retries.checked_sub(1) {
                Some(left) => self.rnr_retries = left,
                None => {
                    bump(&mut shared.counters.retry_rnr_exceeded_err);
                    bump(&mut shared.counters.rnr_nak_retry_err);
                    self.fail_send(core, shared, SendStatus::RnrRetryExceeded);
                    return;
                }
            }
        }
        self.go_back_unready();
        self.rnr_until = Some(now.after(param::rnr_timeout(timer)));
        self.ack_deadline = None;
        self.update_timer(core, shared);
    }

    /// Sends everything unacknowledged again, or gives up.
    fn retry(&mut self, core: &mut QpCore, shared: &mut Shared, now: Instant) {
        // RC-75
        let Some(left) = self.retries.checked_sub(1) else {
            bump(&mut shared.counters.retry_exceeded_err);
            self.fail_send(core, shared, SendStatus::RetryExceeded);
            return;
        };
        bump(&mut shared.counters.completer_retry_err);
        self.retries = left;
        self.go_back_after_loss(core, now);
        self.restart_ack_timer(core, shared, now);
        core.make_ready(shared);
    }

    /// The QP's timer fired. A neighbour whose Ethernet address is unknown is a `lost_cause` when
    /// it did not answer many requests. Says whether the peer did not answer, so that its Ethernet
    /// address may be in doubt.
    pub(crate) fn timer_fired(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        now: Instant,
        lost_cause: bool,
    ) -> bool {
        if !core.state().sends_requests() {
            return false;
        }
        if self.rnr_until.take().is_some() {
            self.restart_ack_timer(core, shared, now);
            core.make_ready(shared);
            return false;
        }
        if core.paused {
            // Its packets may not have left, and the peer's answers may wait unread.
            self.restart_ack_timer(core, shared, now);
            return false;
        }
        if self.ack_deadline.is_some_and(|deadline| deadline > now) {
            self.probe(core, shared, now);
            return false;
        }
        self.ack_deadline = None;
        let resolved = core.path.as_ref().is_some_and(|path| path.is_resolved());
        if !resolved && !lost_cause {
            self.wait_for_neighbour(core, shared, now, param::ARP_WAIT);
            return false;
        }
        if resolved && self.next == self.unacked {
            // Nothing was sent since the last time: the caller is busy, the peer is not silent.
            self.restart_ack_timer(core, shared, now);
            core.make_ready(shared);
            return false;
        }
        // RC-75
        bump(&mut shared.counters.local_ack_timeout_err);
        bump(&mut core.counters.local_ack_timeout_err);
        self.implied_nak_at = None;
        self.probe.fired();
        self.retry(core, shared, now);
        if !resolved {
            self.wait_for_neighbour(core, shared, now, Duration::ZERO);
        }
        true
    }

    /// The memory of message `number` could not be read. Messages before it are finished first.
    pub(crate) fn message_unreadable(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        number: u64,
    ) {
        let requester = &mut *self;
        let index = number.wrapping_sub(requester.head_number);
        if index >= requester.messages.len() as u64 {
            return;
        }
        let number = requester.unreadable.map_or(number, |other| other.min(number));
        requester.unreadable = Some(number);
        // RC-85
        if number == requester.head_number {
            self.fail_send(core, shared, SendStatus::LocalProtection);
        } else {
            // The last packet before it may not have asked for an acknowledgement.
            requester.go_back();
            core.make_ready(shared);
        }
    }

    /// Heeds the credit code of an acknowledgement. Says whether more may be sent than before.
    #[inline]
    pub(crate) fn heed_credits(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        code: u8,
    ) -> bool {
        // None, as of those that were executed, allows nothing new.
        if code == 0 {
            return false;
        }
        let taken = self.takes_executed();
        let raised = self.credit.heed(code, taken);
        if raised {
            core.make_ready(shared);
        }
        raised
    }
}
