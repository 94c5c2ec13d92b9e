//! The requester: cuts messages into packets, keeps the window, and goes back when told.

use core::time::Duration;
use std::collections::VecDeque;

use fpga_regs::engine::qp::QpState;

use crate::api::{
    AtomicOperation, Event, FramePayload, Operation, SendRequest, SendStatus, Source, Transmit,
};
use crate::counters::{add, bump};
use crate::credit::Credit;
use crate::header::HeaderBuffer;
use crate::message::Message;
use crate::opcode::{Position, code};
use crate::param;
use crate::path::Path;
use crate::probe::Probe;
use crate::psn::Psn;
use crate::qp::{QpCore, Shared};
use crate::types::{Instant, PathMtu};
use crate::window::{Acked, Window as _};
use crate::wire::extension::{self, atomiceth, xrceth};
use crate::wire::{bth, reth};

mod question;
mod unready;

use unready::Unready;

/// The requester of a queue pair. Packets are named by sequence (see [`crate::psn`]).
#[derive(Debug, Default)]
pub(crate) struct Requester {
    /// Messages not yet complete, oldest first; the oldest contains `unacked`.
    pub messages: VecDeque<Message>,
    /// The number of the oldest message, or of the next one posted.
    pub head_number: u64,
    /// The oldest packet not yet acknowledged.
    pub unacked: u64,
    /// The packet to send next.
    pub next: u64,
    /// The packet after the last one ever sent: `unacked <= next <= sent`.
    pub sent: u64,
    /// The index of the message that contains `next`.
    cursor: usize,
    /// The sequence after the last message posted.
    tail: u64,
    /// Request packets of all messages posted.
    tail_weight: u64,
    /// Messages posted that take a receive request of the peer.
    tail_takes: u64,
    /// How many of them it may take.
    pub credit: Credit,
    /// The ends of the READ and atomic requests in flight.
    reads: VecDeque<u64>,
    /// The limit that RNR NAKs set beside the window's.
    unready: Unready,
    /// Packets since one asked for an acknowledgement.
    since_ack_request: u32,
    /// When one last did.
    asked_at: Instant,
    /// Retries left until the next progress.
    pub retries: u8,
    /// RNR retries left until the next progress.
    pub rnr_retries: u8,
    /// Waiting after an RNR NAK.
    pub rnr_until: Option<Instant>,
    /// When to stop waiting for an acknowledgement.
    pub ack_deadline: Option<Instant>,
    /// When to ask the peer how far it has come. See [`crate::probe`].
    pub probe: Probe,
    /// The value of `unacked` at which a missing READ response was last noticed.
    pub implied_nak_at: Option<u64>,
    /// A message whose memory could not be read: nothing from it on is sent.
    pub unreadable: Option<u64>,
}

impl Requester {
    /// Bytes that its READ and atomic requests in flight take at most.
    pub(crate) const READ_BYTES: usize = 2 * param::MAX_RD_ATOMIC as usize * size_of::<u64>();

    /// Begins a connection.
    pub(crate) fn start(&mut self, psn: Psn, retries: u8, rnr_retries: u8, credit: Credit) {
        let first = psn.first_sequence();
        *self = Self {
            unacked: first,
            next: first,
            sent: first,
            tail: first,
            retries,
            rnr_retries,
            credit,
            ..Self::default()
        };
    }

    /// Stops for ever (until the next reset).
    pub(crate) fn stop(&mut self) {
        self.messages = VecDeque::new();
        self.reads.clear();
        self.cursor = 0;
        self.rnr_until = None;
        self.ack_deadline = None;
        self.probe = Probe::default();
        self.unreadable = None;
    }

    /// Stops beginning new messages: makes sure that those in flight are acknowledged, though
    /// the last packet may have counted on a later one to ask for it.
    pub(crate) fn drain(&mut self) {
        if self.is_waiting() && self.since_ack_request != 0 {
            self.go_back();
        }
    }

    /// How many more messages fit.
    pub(crate) fn room(&self) -> usize {
        param::SEND_RING.saturating_sub(self.messages.len())
    }

    /// Adds a message, along XRC for the peer's shared receive queue `srqn`, and gives its number. The caller has
    /// checked that it fits.
    pub(crate) fn post(&mut self, request: SendRequest, srqn: u32, mtu: PathMtu) -> u64 {
        // RC-20
        let packets = mtu.packets(request.length);
        let message = Message {
            request,
            first: self.tail,
            packets,
            srqn,
            weight_before: self.tail_weight,
            takes_before: self.tail_takes,
        };
        let number = self.head_number.wrapping_add(self.messages.len() as u64);
        self.tail = message.end();
        self.tail_weight = message.weight_at(message.end());
        self.tail_takes =
            self.tail_takes.wrapping_add(u64::from(request.operation.takes_receive()));
        // RC-25
        self.messages.push_back(message);
        number
    }

    /// Whether every message that has begun is complete.
    pub(crate) fn is_drained(&self) -> bool {
        self.unacked == self.sent
            && self.messages.front().is_none_or(|message| message.first == self.unacked)
    }

    /// Whether packets await acknowledgement.
    pub(crate) fn is_waiting(&self) -> bool {
        self.unacked != self.sent
    }

    /// Messages that take a receive request of the peer and are wholly acknowledged.
    pub(crate) fn takes_executed(&self) -> u64 {
        self.messages.front().map_or(self.tail_takes, |message| message.takes_before)
    }

    /// The PSN of the next new packet.
    pub(crate) fn next_psn(&self) -> Psn {
        Psn::of(self.sent)
    }

    /// Goes back to the oldest packet that is not acknowledged.
    pub(crate) fn go_back(&mut self) {
        // RC-31
        self.next = self.unacked;
        self.cursor = 0;
        self.reads.clear();
        self.since_ack_request = 0;
        self.credit.go_back();
        self.probe.forget();
    }

    /// Goes back because a packet was lost.
    pub(crate) fn go_back_after_loss(&mut self, core: &mut QpCore, now: Instant) {
        self.go_back();
        self.unready.lost();
        core.window.on_loss(now);
    }

    /// Goes back because the peer had no receive request for the oldest packet.
    // RC-64
    pub(crate) fn go_back_unready(&mut self) {
        let in_vain = self.next.wrapping_sub(self.unacked);
        self.go_back();
        if !self.credit.tells() {
            self.unready.refused(in_vain);
        }
    }

    /// Tidies up after `unacked` moved and `completed` messages left the ring.
    pub(crate) fn follow_progress(
        &mut self,
        core: &mut QpCore,
        now: Instant,
        acked: Acked,
        completed: usize,
    ) {
        self.cursor = self.cursor.saturating_sub(completed);
        if self.next < self.unacked {
            self.next = self.unacked;
            self.cursor = 0;
        }
        self.unready.follow_progress(acked.packets, core.window.window());
        core.window.on_ack(now, acked);
        self.credit.follow_progress(self.unacked);
        while self.reads.front().is_some_and(|&end| end <= self.unacked) {
            self.reads.pop_front();
        }
        if self.rnr_until.is_some() {
            self.rnr_until = None;
        }
    }

    /// Halves the room for messages as long as three quarters of it are empty.
    pub(crate) fn narrow(&mut self) {
        let mut room = self.messages.capacity();
        while room > param::KEPT_MESSAGES && self.messages.len() <= room / 4 {
            room = (room / 2).max(param::KEPT_MESSAGES);
        }
        self.messages.shrink_to(room);
    }

    /// Whether the next packet may be sent now.
    #[inline]
    fn may_send(&self, core: &QpCore) -> bool {
        let state = core.state();
        let Some(message) = self.messages.get(self.cursor) else { return false };
        // RC-91
        if self.rnr_until.is_some() || self.credit.is_waiting() || !state.sends_requests() {
            return false;
        }
        let number = self.head_number.wrapping_add(self.cursor as u64);
        if self.unreadable.is_some_and(|unreadable| number >= unreadable) {
            return false;
        }
        if self.next == message.first {
            let begun = self.next < self.sent;
            // RC-80
            if !begun && !state.begins_messages() {
                return false;
            }
            // RC-26
            if message.request.fence && !self.reads.is_empty() {
                return false;
            }
        }
        // RC-27
        if message.is_answered() && self.reads.len() >= usize::from(core.attributes.max_rd_atomic) {
            return false;
        }
        self.has_room_for(core, message)
    }

    /// Whether the window has room for the next packet, which is one of `message`.
    #[inline]
    fn has_room_for(&self, core: &QpCore, message: &Message) -> bool {
        let end = if message.is_answered() {
            message.request_end(self.next)
        } else {
            self.next.wrapping_add(1)
        };
        let acked = self.messages.front().map_or(0, |head| head.weight_at(self.unacked));
        let in_flight = message.weight_at(self.next).wrapping_sub(acked);
        // RC-21
        in_flight < core.window.window().min(self.unready.limit())
            && end.wrapping_sub(self.unacked) <= param::MAX_PSN_SPAN
    }

    /// Whether the last packet that asked for an acknowledgement left so long ago that this one asks: many packets that
    /// the window lets go one after another would outlast the acknowledgement timeout.
    // RC-30
    #[inline]
    fn asked_long_ago(&self, core: &QpCore, now: Instant) -> bool {
        core.window.paces()
            && core.window.earliest_departure().is_some()
            && now.since(self.asked_at) >= param::PACED_ACK_INTERVAL
    }

    /// Moves past the packets up to `end`, which were just sent.
    fn advance(&mut self, end: u64, message_end: u64) {
        self.next = end;
        if end == message_end {
            self.cursor = self.cursor.wrapping_add(1);
        }
        self.sent = self.sent.max(end);
    }
}

impl Requester {
    /// Whether there is a request to send, if the window lets it go.
    pub(crate) fn has_request(&self, core: &QpCore) -> bool {
        self.probe.is_due() || self.may_send(core)
    }

    /// Emits the next request packet, if one may be sent.
    #[inline]
    pub(crate) fn transmit_request(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        now: Instant,
    ) -> Option<Transmit> {
        if core.window.paces() {
            return self.transmit_paced(core, shared, now);
        }
        self.next_request(core, shared, now)
    }

    #[cold]
    fn transmit_paced(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        now: Instant,
    ) -> Option<Transmit> {
        let mut transmit = self.next_request(core, shared, now)?;
        core.departs(shared, now, &mut transmit);
        Some(transmit)
    }

    fn next_request(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        now: Instant,
    ) -> Option<Transmit> {
        if let Some(probe) = self.transmit_probe(core, shared) {
            return Some(probe);
        }
        if !self.may_send(core) {
            return None;
        }
        let message = *self.messages.get(self.cursor)?;
        let sequence = self.next;
        if sequence < self.sent {
            if self.probe.take_question(sequence) {
                bump(&mut shared.counters.sent_questions);
            } else {
                bump(&mut shared.counters.retransmitted_pkts);
                bump(&mut core.counters.retransmitted_pkts);
            }
        }
        let transmit = match message.request.operation {
            Operation::Read => self.transmit_read(core, &message),
            Operation::Atomic(operation) => self.transmit_atomic(core, &message, operation),
            _ => self.transmit_data(core, shared, now, &message),
        };
        if self.ack_deadline.is_none() {
            self.restart_ack_timer(core, shared, now);
        }
        transmit
    }

    fn transmit_read(&mut self, core: &QpCore, message: &Message) -> Option<Transmit> {
        let mtu = core.mtu();
        let sequence = self.next;
        let end = message.request_end(sequence);
        let (offset, _) = message.payload_at(sequence, mtu);
        let rest = u64::from(message.request.length).saturating_sub(offset);
        // RC-70
        let asked = end.wrapping_sub(sequence) << mtu.shift();
        let rdma = reth::Repr {
            va: message.request.remote_va.wrapping_add(offset),
            rkey: message.request.rkey,
            // At most the message's length, which has 32 bits.
            dma_length: rest.min(asked) as u32,
        };
        let mut header = self.request_header(core, code::READ_REQUEST, message, reth::LENGTH)?;
        header.push(&rdma.to_bytes());
        self.advance(end, message.end());
        self.reads.push_back(end);
        Some(Transmit::without_payload(core.qpn, core.priority, header))
    }

    /// The header of the next packet of a message, which has no payload but `after` bytes behind it.
    fn request_header(
        &self,
        core: &QpCore,
        code: u8,
        message: &Message,
        after: usize,
    ) -> Option<HeaderBuffer> {
        let transport = core.transport_header(code, Psn::of(self.next), 0);
        let srqn = core.service.names_srq().then_some(message.srqn);
        Some(open_header(core.path.as_ref()?, &transport, srqn, after))
    }

    // RC-99
    fn transmit_atomic(
        &mut self,
        core: &QpCore,
        message: &Message,
        operation: AtomicOperation,
    ) -> Option<Transmit> {
        let (code, swap_or_add, compare) = match operation {
            AtomicOperation::CompareSwap { compare, swap } => (code::COMPARE_SWAP, swap, compare),
            AtomicOperation::FetchAdd { add } => (code::FETCH_ADD, add, 0),
        };
        let SendRequest { remote_va: va, rkey, .. } = message.request;
        let atomic = atomiceth::Repr { va, rkey, swap_or_add, compare };
        let mut header = self.request_header(core, code, message, atomiceth::LENGTH)?;
        header.push(&atomic.to_bytes());
        self.advance(message.end(), message.end());
        self.reads.push_back(message.end());
        Some(Transmit::without_payload(core.qpn, core.priority, header))
    }

    #[inline]
    fn transmit_data(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        now: Instant,
        message: &Message,
    ) -> Option<Transmit> {
        let sequence = self.next;
        let number = self.head_number.wrapping_add(self.cursor as u64);
        let is_new = sequence >= self.sent;
        self.advance(sequence.wrapping_add(1), message.end());
        self.credit.spend(message, sequence);

        let since = self.since_ack_request.wrapping_add(1);
        // RC-30: Ask when no further packet can follow now: the next one depends on the answer.
        let ask = since >= param::ACK_INTERVAL_PACKETS
            || self.asked_long_ago(core, now)
            || if self.next != message.end() {
                // The conditions that let this packet of the message go hold for the next one, but for these.
                self.credit.is_waiting() || !self.has_room_for(core, message)
            } else {
                !self.may_send(core)
            };
        self.since_ack_request = if ask { 0 } else { since };
        if ask {
            self.asked_at = now;
        }
        if ask && is_new {
            self.probe.time(sequence, now);
        }
        self.data_packet(core, shared, message, number, sequence, ask)
    }

    /// The packet `sequence` of message `number`.
    #[inline]
    pub(crate) fn data_packet(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        message: &Message,
        number: u64,
        sequence: u64,
        ask: bool,
    ) -> Option<Transmit> {
        let request = &message.request;
        let (offset, length) = message.payload_at(sequence, core.mtu());
        let is_last = sequence.wrapping_add(1) == message.end();
        // RC-22
        let position = Position::new(sequence == message.first, is_last);
        let opcode = data_opcode(request.operation, position);
        let mut transport = core.transport_header(opcode, Psn::of(sequence), length);
        transport.ack_request = ask;
        let (source, psn) = (Source::Message { message: number }, transport.psn);
        let payload = FramePayload { qpn: core.qpn, srqn: None, source, offset, length, psn };
        add(&mut shared.counters.sent_bytes, u64::from(length));
        let srqn = core.service.names_srq().then_some(message.srqn);
        data_frame(core, transport, request, srqn, position, payload)
    }

    /// Starts the acknowledgement timer anew, or stops it if nothing is awaited.
    pub(crate) fn restart_ack_timer(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        now: Instant,
    ) {
        // RC-74
        let timeout = param::ack_timeout(core.attributes.timeout);
        self.ack_deadline = match timeout {
            Some(timeout) if self.is_waiting() => Some(now.after(timeout)),
            _ => None,
        };
        let is_timed = self.ack_deadline.is_some();
        self.probe.restart(now, is_timed);
        self.update_timer(core, shared);
    }

    /// Lets a QP with a packet to send wait for its peer's Ethernet address as if packets had been lost, but `at_least`
    /// that long.
    pub(crate) fn wait_for_neighbour(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        now: Instant,
        at_least: Duration,
    ) {
        let requester = &mut *self;
        if requester.messages.is_empty() || requester.ack_deadline.is_some() {
            return;
        }
        if core.attributes.state.sends_requests() {
            let timeout = param::ack_timeout(core.attributes.timeout);
            requester.ack_deadline = timeout.map(|timeout| now.after(timeout.max(at_least)));
            self.update_timer(core, shared);
        }
    }

    /// Fails the oldest message: the queue pair enters the error state.
    pub(crate) fn fail_send(&mut self, core: &mut QpCore, shared: &mut Shared, status: SendStatus) {
        if core.state() == QpState::Err {
            return;
        }
        // RC-84
        let message = self.head_number;
        bump(&mut shared.counters.req_cqe_error);
        core.emit(shared, Event::SendFailed { qpn: core.qpn, message, status });
        core.enter_error();
        self.stop();
    }

    /// Moves the QP's one timer to the earlier of its deadlines.
    pub(crate) fn update_timer(&mut self, core: &mut QpCore, shared: &mut Shared) {
        let probe = self.probe.deadline();
        let deadline = match (self.rnr_until, self.ack_deadline) {
            (Some(rnr), _) => Some(rnr),
            (None, Some(ack)) => Some(probe.map_or(ack, |probe| probe.min(ack))),
            (None, None) => None,
        };
        core.set_timer(shared, deadline);
    }
}

/// The header of a request with `after` bytes behind it; along XRC it names the peer's shared receive queue.
// XRC-2
#[inline]
fn open_header(
    path: &Path,
    transport: &bth::Repr,
    srqn: Option<u32>,
    after: usize,
) -> HeaderBuffer {
    let Some(srqn) = srqn else { return path.header(transport, after) };
    let mut header = path.header(transport, after.wrapping_add(xrceth::LENGTH));
    header.push(&xrceth::to_bytes(srqn));
    header
}

/// The frame of a packet of a SEND or a WRITE, with its payload, which may be empty.
#[inline(always)]
pub(crate) fn data_frame(
    core: &QpCore,
    mut transport: bth::Repr,
    request: &SendRequest,
    srqn: Option<u32>,
    position: Position,
    payload: FramePayload,
) -> Option<Transmit> {
    // RC-28
    transport.solicited =
        position.is_end() && request.solicited && request.operation.takes_receive();
    // RC-29
    let with_rdma =
        position.is_start() && matches!(request.operation, Operation::Write | Operation::WriteImm);
    let last = if position.is_end() { last_word(request) } else { None };
    let pad = transport.pad_count;
    let mut after = (payload.length as usize).wrapping_add(usize::from(pad));
    if with_rdma {
        after = after.wrapping_add(reth::LENGTH);
    }
    if last.is_some() {
        after = after.wrapping_add(extension::immdt::LENGTH);
    }
    let mut header = open_header(core.path.as_ref()?, &transport, srqn, after);
    if with_rdma {
        let SendRequest { remote_va: va, rkey, length: dma_length, .. } = *request;
        header.push(&reth::Repr { va, rkey, dma_length }.to_bytes());
    }
    if let Some(last) = last {
        header.push(&extension::immdt::to_bytes(last));
    }
    let qpn = Some(payload.qpn);
    let payload = (payload.length != 0).then_some(payload);
    let priority = core.priority;
    Some(Transmit { qpn, header, payload, pad, needs_icrc: true, priority })
}

/// The word that ends the headers of a message's last packet: immediate data, or the key that it invalidates.
#[inline]
const fn last_word(request: &SendRequest) -> Option<u32> {
    match request.operation {
        Operation::SendImm | Operation::WriteImm => Some(request.imm),
        // RC-102
        Operation::SendInvalidate { rkey } => Some(rkey),
        Operation::Send | Operation::Write | Operation::Read | Operation::Atomic(_) => None,
    }
}

/// The opcode of a data packet of an operation along a reliable connection.
pub(crate) fn data_opcode(operation: Operation, position: Position) -> u8 {
    let write = matches!(operation, Operation::Write | Operation::WriteImm);
    match (position, operation) {
        (Position::First, _) if write => code::WRITE_FIRST,
        (Position::First, _) => code::SEND_FIRST,
        (Position::Middle, _) if write => code::WRITE_MIDDLE,
        (Position::Middle, _) => code::SEND_MIDDLE,
        (Position::Last, Operation::Send) => code::SEND_LAST,
        (Position::Last, Operation::SendImm) => code::SEND_LAST_IMM,
        (Position::Last, Operation::SendInvalidate { .. }) => code::SEND_LAST_INVALIDATE,
        (Position::Last, Operation::WriteImm) => code::WRITE_LAST_IMM,
        (Position::Last, _) => code::WRITE_LAST,
        (Position::Only, Operation::Send) => code::SEND_ONLY,
        (Position::Only, Operation::SendImm) => code::SEND_ONLY_IMM,
        (Position::Only, Operation::SendInvalidate { .. }) => code::SEND_ONLY_INVALIDATE,
        (Position::Only, Operation::WriteImm) => code::WRITE_ONLY_IMM,
        (Position::Only, _) => code::WRITE_ONLY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::Service;
    use crate::types::Qpn;
    use crate::window::{AnyWindow, SlowStart};

    fn posted(operation: Operation, length: u32, mtu: PathMtu) -> (Requester, Message) {
        let mut requester = Requester::default();
        requester.start(Psn::new(0xff_fff0), 7, 7, Credit::default());
        let request = SendRequest {
            operation,
            length,
            remote_va: 0,
            rkey: 0,
            imm: 0,
            solicited: false,
            fence: false,
        };
        assert_eq!(requester.post(request, 0, mtu), 0);
        let message = requester.messages[0];
        (requester, message)
    }

    /// RC-22, RC-23.
    #[test]
    fn the_longest_message_is_cut_to_its_last_byte() {
        for mtu in PathMtu::ALL {
            let length = param::MAX_MESSAGE_LENGTH - 1;
            let (_, message) = posted(Operation::Write, length, mtu);
            assert_eq!(message.end() - message.first, (1 << 31) / u64::from(mtu.bytes()));
            let (offset, last) = message.payload_at(message.end() - 1, mtu);
            assert_eq!(offset + u64::from(last), u64::from(length));
            assert_eq!(last, mtu.bytes() - 1);
        }
    }

    /// RC-21.
    #[test]
    fn a_long_read_is_asked_for_in_parts_that_stay_within_the_span() {
        let (mut requester, message) = posted(Operation::Read, 1 << 31, PathMtu::Mtu256);
        let window = AnyWindow::SlowStart(SlowStart::default());
        let mut core = QpCore::new(Qpn::default(), Service::Rc, 0, 0, 0, window);
        (core.attributes.state, core.attributes.max_rd_atomic) = (QpState::Rts, 255);
        let mut parts = 0;
        while requester.may_send(&core) {
            let end = message.request_end(requester.next);
            assert_eq!(end - requester.next, param::READ_REQUEST_PACKETS);
            requester.advance(end, message.end());
            requester.reads.push_back(end);
            parts += 1;
        }
        assert_eq!(parts, param::MAX_PSN_SPAN / param::READ_REQUEST_PACKETS);
        // Wherever a retry begins, requests end at the same places.
        requester.unacked = message.first + 5;
        requester.go_back();
        let end = message.request_end(requester.next);
        assert_eq!(end, message.first + param::READ_REQUEST_PACKETS);
    }

    /// RC-22.
    #[test]
    fn every_operation_has_its_opcodes() {
        use crate::opcode::{Class, Opcode};
        let operations = [
            Operation::Send,
            Operation::SendImm,
            Operation::SendInvalidate { rkey: 0 },
            Operation::Write,
            Operation::WriteImm,
        ];
        let positions = [Position::First, Position::Middle, Position::Last, Position::Only];
        for operation in operations {
            for position in positions {
                let row = Opcode::find(data_opcode(operation, position)).unwrap();
                assert_eq!(row.position, position);
                let write = matches!(operation, Operation::Write | Operation::WriteImm);
                assert_eq!(row.class == Class::Write, write);
            }
        }
    }
}
