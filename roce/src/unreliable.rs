//! Unreliable Connection: queue pairs whose SENDs and WRITEs go to one peer, which answers nothing.
//!
//! A message is complete when its packets were made. At the peer it arrives whole or not at all: from a
//! packet that is missing, or cannot be taken, to the beginning of the next message everything is dropped.
//! The receive request of a SEND that was dropped is used for the next one.

use core::task::Poll;

use crate::api::{
    Event, Operation, Payload, Placement, QpEvent, ReceiveError, ReceiveKind, ReceiveStatus,
    RemoteAccess, SendRequest, Sink, Source, TakenReceive, Transmit, Verbs,
};
use crate::attributes::{AccessFlags, QpAttributes, QpSnapshot};
use crate::comp::FramePlace;
use crate::counters::{add, bump};
use crate::error::PostError;
use crate::log::{EffectKind, Taken};
use crate::opcode::{Class, Position};
use crate::owed::Ack;
use crate::param;
use crate::psn::Psn;
use crate::qp::{QpCore, Shared};
use crate::req::{data_frame, data_opcode};
use crate::resp::{Current, check_remote};
use crate::state::QpState;
use crate::types::Instant;
use crate::unanswered::Unanswered;
use crate::wire::frame;

/// A queue pair of Unreliable Connection.
#[derive(Debug)]
pub(crate) struct UcQp {
    pub core: QpCore,
    /// Until then messages wait for the peer's Ethernet address.
    pub patient_until: Instant,
    /// When to ask next whether that address is still right.
    pub next_check: Instant,
    pub sends: Unanswered<SendRequest>,
    /// Packets made of the message whose turn it is.
    begun: u32,
    /// The PSN to send next.
    psn: Psn,
    /// The PSN that a peer which has lost nothing sends next.
    expected: Psn,
    /// The message of which not all packets have arrived.
    current: Option<Current>,
    /// A receive request that a message had taken which was dropped then.
    held: Option<TakenReceive>,
}

/// A packet of the peer, in its place.
struct Request<'a> {
    packet: &'a frame::Repr,
    place: FramePlace,
    length: u32,
}

/// Why a packet is not taken.
enum Stop {
    /// It is dropped, and so is what is left of its message, which a counter says.
    Drop(fn(&mut Shared) -> &mut u64),
    /// The next receive request cannot be used; the layer above completes it.
    BadReceive,
    /// The layer above has not decided yet: the packet comes again.
    Undecided,
}

impl UcQp {
    /// A queue pair in RESET.
    pub(crate) fn new(core: QpCore) -> Self {
        Self {
            core,
            patient_until: Instant::default(),
            next_check: Instant::default(),
            sends: Unanswered::default(),
            begun: 0,
            psn: Psn::default(),
            expected: Psn::default(),
            current: None,
            held: None,
        }
    }

    /// Enters a state other than RESET, with the attributes of a change.
    pub(crate) fn change(&mut self, shared: &mut Shared, to: QpState, change: &QpAttributes) {
        if to == QpState::Err {
            self.enter_error(shared);
            return;
        }
        match (core::mem::replace(&mut self.core.attributes.state, to), to) {
            // UC-2
            (QpState::Init, QpState::Rtr) => self.expected = change.rq_psn.unwrap_or_default(),
            (QpState::Rtr, QpState::Rts) => self.psn = change.sq_psn.unwrap_or_default(),
            // UC-13
            (QpState::Rts, QpState::Sqd) => {
                self.core.drained = false;
                self.check_drained(shared);
            }
            _ => self.core.make_ready(shared),
        }
    }

    /// Has messages wait for the peer's Ethernet address, from a change of the path on.
    pub(crate) fn be_patient(&mut self, now: Instant) {
        self.patient_until = now.after(param::DATAGRAM_PATIENCE);
        self.next_check = now.after(param::DATAGRAM_CHECK_INTERVAL);
    }

    /// Takes a message, and gives its number.
    pub(crate) fn post(
        &mut self,
        shared: &mut Shared,
        request: SendRequest,
    ) -> Result<u64, PostError> {
        let (qpn, state) = (self.core.qpn, self.core.state());
        if !state.sends_requests() {
            return Err(PostError::State { qpn, state });
        }
        // UC-1
        if !is_offered(request.operation) {
            return Err(PostError::NotOffered(qpn));
        }
        if request.length > param::MAX_MESSAGE_LENGTH {
            return Err(PostError::TooLong(request.length));
        }
        if self.sends.room() == 0 {
            return Err(PostError::Full(qpn));
        }
        let number = self.sends.post(request);
        self.core.make_ready(shared);
        Ok(number)
    }

    /// Enters the error state.
    pub(crate) fn enter_error(&mut self, shared: &mut Shared) {
        let state = &mut self.core.attributes.state;
        if core::mem::replace(state, QpState::Err) == QpState::Err {
            return;
        }
        // UC-14
        self.sends.forget();
        self.begun = 0;
        self.abandon();
        if let Some(TakenReceive { id, .. }) = self.held.take() {
            self.core.fail_receive(shared, Taken { srqn: None, id }, ReceiveStatus::Flushed);
        }
        self.core.emit(shared, Event::EnteredError { qpn: self.core.qpn });
    }

    /// A placement failed: the QP enters the error state. Unless a receive request that failed has
    /// `reported` that, an event must.
    pub(crate) fn placement_failed(&mut self, shared: &mut Shared, reported: bool) {
        if self.core.state() != QpState::Err && !reported {
            self.core.emit_async(shared, QpEvent::Fatal);
        }
        self.enter_error(shared);
    }

    /// Drops the receive request `id`, whose failure is reported.
    pub(crate) fn forget_receive(&mut self, id: u64) {
        self.abandon();
        self.held = self.held.filter(|receive| receive.id != id);
    }

    /// The attributes as they are now.
    pub(crate) fn snapshot(&self) -> QpSnapshot {
        QpSnapshot {
            sq_draining: self.core.state() == QpState::Sqd && !self.is_drained(),
            rq_psn: self.expected,
            sq_psn: self.psn,
            ..self.core.attributes
        }
    }

    fn is_drained(&self) -> bool {
        self.sends.is_settled() && self.begun == 0
    }

    /// The message of which a packet may be made now, and its number.
    pub(crate) fn head(&self) -> Option<(SendRequest, u64)> {
        let state = self.core.state();
        // UC-13
        let goes_on = state.begins_messages() || state.sends_requests() && self.begun != 0;
        self.sends.head().filter(|_| goes_on)
    }

    /// Makes the next packet of the message whose turn it is.
    pub(crate) fn transmit(&mut self, shared: &mut Shared) -> Option<Transmit> {
        let (request, message) = self.head()?;
        let mtu = self.core.mtu();
        let offset = u64::from(self.begun) << mtu.shift();
        let rest = u64::from(request.length).saturating_sub(offset);
        // At most a path MTU.
        let length = rest.min(u64::from(mtu.bytes())) as u32;
        let is_last = self.begun.wrapping_add(1) == mtu.packets(request.length);
        let position = Position::new(self.begun == 0, is_last);
        let psn = self.psn;
        // UC-1, UC-3
        let opcode = data_opcode(request.operation, position);
        let transport = self.core.transport_header(opcode, psn, length);
        let source = Source::Message { message };
        let payload = Payload { qpn: self.core.qpn, srqn: None, source, offset, length, psn };
        let path = self.core.path.as_ref()?;
        let transmit = data_frame(path, transport, (&request, None), position, payload);
        self.core.count_sent(shared);
        add(&mut shared.counters.sent_bytes, u64::from(length));
        self.psn = psn.add(1);
        self.begun = self.begun.wrapping_add(1);
        if is_last {
            self.begun = 0;
            self.sends.advance();
        }
        Some(transmit)
    }

    /// Drops the message whose turn it is, for nobody knows where its peer is.
    pub(crate) fn drop_head(&mut self, shared: &mut Shared) {
        self.begun = 0;
        self.sends.drop_head(&self.core, shared);
    }

    /// Its packets have been made.
    pub(crate) fn settle(&mut self, shared: &mut Shared) {
        // UC-4
        self.sends.settle(&self.core, shared);
        self.check_drained(shared);
    }

    /// The payload of a message could not be read.
    pub(crate) fn unreadable(&mut self, shared: &mut Shared, message: u64) {
        // UC-12
        if self.core.state() != QpState::Err && self.sends.fail(&self.core, shared, message) {
            self.begun = 0;
            self.core.attributes.state = QpState::Sqe;
        }
    }

    fn check_drained(&mut self, shared: &mut Shared) {
        let is_drained = self.is_drained();
        self.core.check_drained(shared, is_drained);
    }

    /// Takes a request of the peer. One that is pending has at most established the connection, and given
    /// the message before it up.
    pub(crate) fn receive(
        &mut self,
        shared: &mut Shared,
        packet: &frame::Repr,
        place: FramePlace,
        verbs: &mut impl Verbs,
        placements: &mut Vec<Placement>,
    ) -> Poll<()> {
        // UC-5
        if !self.core.state().receives_unreliable() {
            bump(&mut shared.counters.drop_wrong_state);
            return Poll::Ready(());
        }
        self.core.establish(shared);
        let is_gap = packet.bth.psn != self.expected;
        if is_gap || packet.opcode.position.is_start() {
            self.abandon();
        }
        // At most a frame, far below 2^32.
        let length = packet.payload.len() as u32;
        let request = Request { packet, place, length };
        let taken = self.take_packet(shared, &request, verbs, placements);
        if matches!(taken, Err(Stop::Undecided)) {
            return Poll::Pending;
        }
        // UC-6
        if is_gap {
            bump(&mut shared.counters.out_of_sequence);
            bump(&mut shared.counters.out_of_seq_request);
            bump(&mut self.core.counters.out_of_sequence);
        }
        self.expected = packet.bth.psn.add(1);
        match taken {
            Ok(()) => add(&mut shared.counters.rcvd_bytes, u64::from(length)),
            Err(Stop::Drop(counter)) => {
                self.abandon();
                bump(counter(shared));
            }
            // UC-11
            _ => {
                bump(&mut shared.counters.resp_cqe_error);
                self.enter_error(shared);
            }
        }
        Poll::Ready(())
    }

    /// Gives the message in progress up. Its receive request is for the next one.
    fn abandon(&mut self) {
        // UC-7
        if let Some(Current::Send { receive, .. }) = self.current.take() {
            self.held = Some(receive);
        }
    }

    fn take_packet(
        &mut self,
        shared: &mut Shared,
        request: &Request<'_>,
        verbs: &mut impl Verbs,
        placements: &mut Vec<Placement>,
    ) -> Result<(), Stop> {
        let opcode = request.packet.opcode;
        let in_order = match (self.current, opcode.class) {
            (None, _) => opcode.position.is_start(),
            (Some(Current::Send { .. }), Class::Send)
            | (Some(Current::Write { .. }), Class::Write) => true,
            (Some(_), _) => false,
        };
        // UC-6
        if !in_order {
            return Err(Stop::Drop(|shared| &mut shared.counters.drop_after_gap));
        }
        // UC-8
        if !opcode.payload.allows(request.packet.payload.len(), self.core.mtu().bytes() as usize) {
            return Err(INVALID);
        }
        match opcode.class {
            Class::Send => self.take_send(shared, request, verbs, placements),
            Class::Write => self.take_write(shared, request, verbs, placements),
            _ => Err(INVALID),
        }
    }

    fn take_send(
        &mut self,
        shared: &mut Shared,
        request: &Request<'_>,
        verbs: &mut impl Verbs,
        placements: &mut Vec<Placement>,
    ) -> Result<(), Stop> {
        let (receive, offset) = match self.current {
            Some(Current::Send { receive, offset }) => (receive, offset),
            _ => (self.take_receive(verbs)?, 0),
        };
        let end = offset.wrapping_add(u64::from(request.length));
        // From here on a message that is dropped gives its receive request back.
        self.current = Some(Current::Send { receive, offset: end });
        // UC-9
        if end > receive.capacity || end > u64::from(param::MAX_MESSAGE_LENGTH) {
            return Err(Stop::Drop(|shared| &mut shared.counters.resp_local_length_error));
        }
        if request.length != 0 {
            let sink = Sink::Receive { id: receive.id };
            self.place(shared, request, sink, offset, Some(receive.id), placements);
        }
        if request.packet.opcode.position.is_end() {
            self.current = None;
            bump(&mut shared.counters.rdma_recvs);
            // At most MAX_MESSAGE_LENGTH.
            self.complete_receive(shared, request, receive, end as u32, ReceiveKind::Send);
        }
        Ok(())
    }

    fn take_write(
        &mut self,
        shared: &mut Shared,
        request: &Request<'_>,
        verbs: &mut impl Verbs,
        placements: &mut Vec<Placement>,
    ) -> Result<(), Stop> {
        let is_end = request.packet.opcode.position.is_end();
        let (rkey, va, offset, length) = match self.current {
            Some(Current::Write { rkey, va, offset, length }) => (rkey, va, offset, length),
            _ => self.begin_write(request, verbs)?,
        };
        let end = offset.checked_add(request.length).ok_or(INVALID)?;
        // UC-8
        if (is_end && end != length) || (!is_end && end >= length) {
            return Err(INVALID);
        }
        // Taken before anything is placed, for it may be pending.
        let receive = match request.packet.immediate {
            Some(_) => Some(self.take_receive(verbs)?),
            None => None,
        };
        if request.length != 0 {
            let sink = Sink::Remote { rkey, va: va.wrapping_add(u64::from(offset)) };
            let id = receive.map(|receive| receive.id);
            self.place(shared, request, sink, u64::from(offset), id, placements);
        }
        self.current = (!is_end).then_some(Current::Write { rkey, va, offset: end, length });
        if is_end {
            bump(&mut shared.counters.rx_write_requests);
        }
        if let Some(receive) = receive {
            self.complete_receive(shared, request, receive, length, ReceiveKind::Write);
        }
        Ok(())
    }

    /// Checks the first packet of a WRITE: key, address, offset 0, length.
    fn begin_write(
        &mut self,
        request: &Request<'_>,
        verbs: &mut impl Verbs,
    ) -> Result<(u32, u64, u32, u32), Stop> {
        let rdma = request.packet.reth.ok_or(INVALID)?;
        // UC-10
        if !self.core.attributes.access.contains(AccessFlags::REMOTE_WRITE)
            || rdma.dma_length > param::MAX_MESSAGE_LENGTH
        {
            return Err(INVALID);
        }
        let (qpn, asked) = (self.core.qpn, (rdma.rkey, rdma.va, rdma.dma_length));
        match check_remote(verbs, qpn.into(), asked, RemoteAccess::Write) {
            Poll::Ready(Ok(())) => Ok((rdma.rkey, rdma.va, 0, rdma.dma_length)),
            Poll::Ready(Err(_)) => {
                Err(Stop::Drop(|shared| &mut shared.counters.resp_remote_access_errors))
            }
            Poll::Pending => Err(Stop::Undecided),
        }
    }

    fn take_receive(&mut self, verbs: &mut impl Verbs) -> Result<TakenReceive, Stop> {
        // UC-7
        if let Some(held) = self.held.take() {
            return Ok(held);
        }
        match verbs.take_receive(self.core.qpn.into()) {
            Poll::Ready(Ok(receive)) => Ok(receive),
            // UC-9
            Poll::Ready(Err(ReceiveError::Empty | ReceiveError::NoSrq)) => {
                Err(Stop::Drop(|shared| &mut shared.counters.out_of_buffer))
            }
            Poll::Ready(Err(ReceiveError::Invalid)) => Err(Stop::BadReceive),
            Poll::Pending => Err(Stop::Undecided),
        }
    }

    fn place(
        &self,
        shared: &mut Shared,
        request: &Request<'_>,
        sink: Sink,
        offset: u64,
        receive: Option<u64>,
        placements: &mut Vec<Placement>,
    ) {
        let placement = shared.log.place();
        // Nothing is acknowledged.
        let at = Ack { sequence: 0, msn: 0 };
        let receive = receive.map(|id| Taken { srqn: None, id });
        let kind = EffectKind::PlacedRequest { placement, at, receive };
        self.core.push_effect(shared, kind);
        let start = request.place.payload_start;
        placements.push(Placement {
            qpn: self.core.qpn,
            srqn: None,
            sink,
            offset,
            frame_index: request.place.frame_index,
            range: start..start.wrapping_add(request.length as usize),
        });
    }

    fn complete_receive(
        &self,
        shared: &mut Shared,
        request: &Request<'_>,
        receive: TakenReceive,
        length: u32,
        kind: ReceiveKind,
    ) {
        let received = Event::ReceiveCompleted {
            qpn: self.core.qpn,
            srqn: None,
            id: receive.id,
            length,
            kind,
            imm: request.packet.immediate,
            solicited: request.packet.bth.solicited,
            source_qpn: None,
        };
        self.core.emit(shared, received);
    }
}

/// A packet that its message cannot have.
const INVALID: Stop = Stop::Drop(|shared| &mut shared.counters.resp_remote_invalid_request);

/// Whether an operation exists along an unreliable connection.
const fn is_offered(operation: Operation) -> bool {
    // UC-1
    !operation.is_answered() && !matches!(operation, Operation::SendInvalidate)
}
