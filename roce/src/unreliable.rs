//! Unreliable Connection: queue pairs whose SENDs and WRITEs go to one peer, which answers nothing.
//!
//! A message is complete when its packets were made. At the peer it arrives whole or not at all: from a
//! packet that is missing, or cannot be taken, to the beginning of the next message everything is dropped.
//! The receive request of a SEND that was dropped is used for the next one.

use core::task::Poll;

use fpga_regs::engine::qp::QpState;

use crate::api::{
    Event, FramePayload, Operation, QpEvent, ReceiveError, ReceiveKind, ReceiveStatus,
    ResponderMemory, SendRequest, Source, Transmit,
};
use crate::arriving::{Arriving, Request, Stop};
use crate::attributes::{QpAttributes, QpSnapshot};
use crate::counters::{add, bump};
use crate::drops::{self, Reason};
use crate::error::PostError;
use crate::incoming::Incoming;
use crate::log::Taken;
use crate::opcode::{Class, Position};
use crate::owed::Ack;
use crate::param;
use crate::psn::Psn;
use crate::qp::{QpCore, Shared};
use crate::requester::{data_frame, data_opcode};
use crate::types::Instant;
use crate::unanswered::Unanswered;

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
    arriving: Arriving,
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
            arriving: Arriving::default(),
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
                self.core.begin_to_drain(shared, self.is_drained());
            }
            _ => self.core.make_ready(shared),
        }
    }

    /// Lets messages wait for the peer's Ethernet address, from a change of the path on.
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
        self.sends.post(&mut self.core, shared, request)
    }

    /// Enters the error state.
    pub(crate) fn enter_error(&mut self, shared: &mut Shared) {
        let state = &mut self.core.attributes.state;
        if core::mem::replace(state, QpState::Err) == QpState::Err {
            return;
        }
        // UC-14
        self.sends.forget();
        self.core.set_timer(shared, None);
        self.begun = 0;
        if let Some(id) = self.arriving.stop() {
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
        self.arriving.forget_receive(id);
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
        let payload = FramePayload { qpn: self.core.qpn, srqn: None, source, offset, length, psn };
        let transmit = data_frame(&self.core, transport, &request, None, position, payload)?;
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

    /// Drops the message whose turn it is, for its neighbour's address is not known.
    pub(crate) fn drop_head(&mut self, shared: &mut Shared) {
        self.begun = 0;
        self.sends.drop_head(&self.core, shared);
    }

    /// Its packets have been made.
    pub(crate) fn settle(&mut self, shared: &mut Shared) {
        // UC-4
        self.sends.settle(&self.core, shared);
        self.core.check_drained(shared, self.is_drained());
    }

    /// The payload of a message could not be read.
    pub(crate) fn unreadable(&mut self, shared: &mut Shared, message: u64) {
        // UC-12
        if self.core.state() != QpState::Err && self.sends.fail(&self.core, shared, message) {
            self.begun = 0;
            self.core.attributes.state = QpState::Sqe;
        }
    }

    /// Takes a request of the peer. One that is pending has at most established the connection, and given
    /// the message before it up.
    pub(crate) fn receive(
        &mut self,
        shared: &mut Shared,
        incoming: &Incoming<'_>,
        memory: &mut impl ResponderMemory,
    ) -> Poll<()> {
        let packet = incoming.packet;
        // UC-5
        if !self.core.state().receives_unreliable() {
            drops::count(&mut shared.counters, Reason::WrongState);
            return Poll::Ready(());
        }
        self.core.establish(shared);
        let is_gap = packet.bth.psn != self.expected;
        if is_gap || packet.opcode.position.is_start() {
            self.arriving.abandon();
        }
        let is_next = self.arriving.is_next(packet.opcode);
        let taken = match is_next {
            true => self.take_packet(shared, incoming, memory),
            false => Ok(()),
        };
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
        let counters = &mut shared.counters;
        match taken {
            Ok(()) if is_next => add(&mut counters.rcvd_bytes, packet.payload.len() as u64),
            // UC-11
            Err(Stop::NoReceive(ReceiveError::Invalid)) => {
                bump(&mut counters.resp_cqe_error);
                self.enter_error(shared);
            }
            // The packet is dropped, and so is the rest of its message.
            _ => {
                self.arriving.abandon();
                drops::count(
                    counters,
                    match taken {
                        // UC-6
                        Ok(()) => Reason::AfterGap,
                        // UC-8
                        Err(Stop::Invalid) => Reason::Invalid,
                        // UC-10
                        Err(Stop::Denied(_)) => Reason::Denied,
                        // UC-9
                        Err(Stop::TooLong(_)) => Reason::TooLong,
                        Err(Stop::NoReceive(_) | Stop::Undecided) => Reason::NoReceive,
                    },
                );
            }
        }
        Poll::Ready(())
    }

    /// Executes a packet that is the next of its message.
    fn take_packet(
        &mut self,
        shared: &mut Shared,
        incoming: &Incoming<'_>,
        memory: &mut impl ResponderMemory,
    ) -> Result<(), Stop> {
        let Self { core, arriving, .. } = self;
        let packet = incoming.packet;
        // UC-8
        if !packet.opcode.payload.allows(packet.payload.len(), core.mtu().bytes() as usize) {
            return Err(Stop::Invalid);
        }
        // At most a frame, far below 2^32.
        let length = packet.payload.len() as u32;
        // Nothing is acknowledged.
        let at = Ack { sequence: 0, msn: 0 };
        let request = Request { incoming, target: core.qpn.into(), length, at };
        match packet.opcode.class {
            Class::Send => {
                let kind = ReceiveKind::Send;
                arriving.take_send(core, shared, &request, kind, memory)
            }
            Class::Write => arriving.take_write(core, shared, &request, memory),
            _ => Err(Stop::Invalid),
        }
    }
}

/// Whether an operation exists along an unreliable connection.
const fn is_offered(operation: Operation) -> bool {
    // UC-1
    !operation.is_answered() && !matches!(operation, Operation::SendInvalidate { .. })
}
