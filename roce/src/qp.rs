//! A queue pair: its state, and what requester, responder and completer share.

use fpga_regs::engine::qp::QpType;

use crate::api::{Event, QpEvent, ReceiveStatus, SendStatus, Transmit};
use crate::attributes::QpSnapshot;
use crate::congestion::Notification;
use crate::counters::{Counters, QpCounters, bump};
use crate::log::{EffectKind, Log, Taken};
use crate::opcode::{Opcode, code};
use crate::param;
use crate::path::Path;
use crate::psn::Psn;
use crate::req::Requester;
use crate::resp::Responder;
use crate::state::QpState;
use crate::timer::Timers;
use crate::types::{Instant, PathMtu, Qpn};
use crate::wire::bth;

use std::collections::VecDeque;

/// What all queue pairs of a port share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub counters: Counters,
    pub log: Log,
    pub timers: Timers,
    /// Slots of QPs that may have something to send, in turn.
    pub ready: VecDeque<u32>,
}

/// Which service a queue pair has, and which side of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    /// Reliable Connection, both sides.
    Reliable,
    /// XRC, the side that sends.
    XrcSend,
    /// XRC, the side that receives for the shared receive queues of a domain.
    XrcReceive { domain: u32 },
}

impl Service {
    /// The bits of opcodes that name it.
    const fn code(self) -> u8 {
        match self {
            Self::Reliable => code::RELIABLE_CONNECTION,
            Self::XrcSend | Self::XrcReceive { .. } => code::EXTENDED_RELIABLE_CONNECTION,
        }
    }

    /// As the card's contract calls it.
    pub(crate) const fn kind(self) -> QpType {
        match self {
            Self::Reliable => QpType::Rc,
            Self::XrcSend => QpType::XrcSend,
            Self::XrcReceive { .. } => QpType::XrcReceive,
        }
    }

    /// Whether packets of an opcode are for it.
    // RC-6, XRC-3
    #[inline]
    pub(crate) const fn hears(self, opcode: &Opcode) -> bool {
        self.hears_requests() && opcode.service() == self.code() && !opcode.class.is_response()
            || self.hears_responses()
                && opcode.service() == self.code()
                && opcode.class.is_response()
    }

    /// Whether it answers requests whose opcode has such a service.
    pub(crate) const fn answers(self, opcode: u8) -> bool {
        self.hears_requests() && opcode & code::SERVICE == self.code()
    }

    const fn hears_requests(self) -> bool {
        !matches!(self, Self::XrcSend)
    }

    pub(crate) const fn hears_responses(self) -> bool {
        !matches!(self, Self::XrcReceive { .. })
    }
}

/// One queue pair.
#[derive(Debug)]
pub(crate) struct Qp {
    pub qpn: Qpn,
    pub service: Service,
    /// Whose it is.
    pub client: u16,
    /// Its place in the stack's table.
    pub slot: u32,
    /// Changes with every reset, so that what belongs to an earlier life is recognised.
    pub generation: u32,
    /// State and attributes; `rq_psn`, `sq_psn` and `sq_draining` here are not kept current.
    pub attributes: QpSnapshot,
    /// Present from RTR on.
    pub path: Option<Path>,
    pub requester: Requester,
    pub responder: Responder,
    /// Whether the slot stands in the ready queue.
    pub queued: bool,
    /// Whether the last frame was an answer, so that requests get their turn.
    pub responded: bool,
    /// Whether a request arrived since RTR.
    pub established: bool,
    /// Whether the drained event of this stay in SQD was reported.
    pub drained: bool,
    pub notification: Notification,
    pub counters: QpCounters,
}

impl Qp {
    /// A queue pair in RESET.
    pub(crate) fn new(qpn: Qpn, service: Service, client: u16, slot: u32, generation: u32) -> Self {
        Self {
            qpn,
            service,
            client,
            slot,
            generation,
            attributes: QpSnapshot::default(),
            path: None,
            requester: Requester::default(),
            responder: Responder::default(),
            queued: false,
            responded: false,
            established: false,
            drained: false,
            notification: Notification::default(),
            counters: QpCounters::default(),
        }
    }

    /// Whether its requests name a shared receive queue.
    #[inline]
    pub(crate) fn names_srq(&self) -> bool {
        self.service == Service::XrcSend
    }

    /// The state.
    pub(crate) fn state(&self) -> QpState {
        self.attributes.state
    }

    /// The path MTU; meaningful from RTR on.
    pub(crate) fn mtu(&self) -> PathMtu {
        self.attributes.path_mtu.unwrap_or(PathMtu::Mtu256)
    }

    /// Puts the QP into the ready queue.
    #[inline]
    pub(crate) fn make_ready(&mut self, shared: &mut Shared) {
        if !self.queued {
            self.queued = true;
            shared.ready.push_back(self.slot);
        }
    }

    /// Reports an event, after whatever still waits for its placements.
    pub(crate) fn emit(&self, shared: &mut Shared, event: Event) {
        shared.log.emit(self.slot, self.generation, event);
    }

    /// Adds an effect to the log.
    pub(crate) fn push_effect(&self, shared: &mut Shared, kind: EffectKind) {
        shared.log.push(self.slot, self.generation, kind);
    }

    /// Moves the QP's one timer to the earlier of its deadlines.
    pub(crate) fn update_timer(&mut self, shared: &mut Shared) {
        let probe = self.requester.probe.deadline();
        let deadline = match (self.requester.rnr_until, self.requester.ack_deadline) {
            (Some(rnr), _) => Some(rnr),
            (None, Some(ack)) => Some(probe.map_or(ack, |probe| probe.min(ack))),
            (None, None) => None,
        };
        shared.timers.set(self.slot, deadline);
    }

    /// The next frame, if there is anything to send.
    #[inline]
    pub(crate) fn transmit(&mut self, shared: &mut Shared, now: Instant) -> Option<Transmit> {
        if !self.path.as_ref()?.is_resolved() {
            self.wait_for_neighbour(shared, now, param::ARP_WAIT);
            return None;
        }
        let transmit = self.next_frame(shared, now);
        if transmit.is_some() {
            bump(&mut shared.counters.sent_pkts);
            bump(&mut self.counters.sent_pkts);
        }
        transmit
    }

    /// Makes the next frame. Frames are large, so the usual one, a request, is handed on untouched.
    #[inline]
    fn next_frame(&mut self, shared: &mut Shared, now: Instant) -> Option<Transmit> {
        let notification = self.transmit_notification(shared);
        if notification.is_some() {
            return notification;
        }
        // Answers and requests take turns.
        let request_first = core::mem::take(&mut self.responded);
        if request_first {
            let request = self.transmit_request(shared, now);
            if request.is_some() {
                return request;
            }
        }
        if self.responder.has_answer() {
            let answer = self.transmit_response(shared);
            if answer.is_some() {
                self.responded = true;
                return answer;
            }
        }
        if request_first { None } else { self.transmit_request(shared, now) }
    }

    /// The Base Transport Header of a frame to the peer.
    pub(crate) fn transport_header(&self, opcode: u8, sequence: u64, length: u32) -> bth::Repr {
        let peer = self.attributes.dest_qpn.map_or(0, Qpn::value);
        // XRC-1
        transport_header(peer, opcode | self.service.code(), Psn::of(sequence), length)
    }

    /// Fails the oldest message and enters the error state.
    pub(crate) fn fail_send(&mut self, shared: &mut Shared, status: SendStatus) {
        if self.state() == QpState::Err {
            return;
        }
        // RC-84
        let message = self.requester.head_number;
        bump(&mut shared.counters.req_cqe_error);
        self.emit(shared, Event::SendFailed { qpn: self.qpn, message, status });
        self.enter_error(shared);
    }

    /// Enters the error state: the requester stops, the responder says what it still has to say
    /// about a request that it refused, and a receive request that was taken is given back.
    pub(crate) fn enter_error(&mut self, shared: &mut Shared) {
        if self.state() == QpState::Err {
            return;
        }
        self.attributes.state = QpState::Err;
        // RC-83
        self.requester.stop();
        self.update_timer(shared);
        if let Some(taken) = self.responder.stop() {
            self.fail_receive(shared, taken, ReceiveStatus::Flushed);
        }
        self.emit(shared, Event::EnteredError { qpn: self.qpn });
        if self.responder.has_last_words() {
            self.make_ready(shared);
        }
    }

    /// Reports a failed receive request.
    pub(crate) fn fail_receive(&self, shared: &mut Shared, taken: Taken, status: ReceiveStatus) {
        if status != ReceiveStatus::Flushed {
            bump(&mut shared.counters.resp_cqe_error);
        }
        let Taken { srqn, id } = taken;
        self.emit(shared, Event::ReceiveFailed { qpn: self.qpn, srqn, id, status });
    }

    /// Reports an asynchronous event.
    pub(crate) fn emit_async(&self, shared: &mut Shared, kind: QpEvent) {
        self.emit(shared, Event::Async { qpn: self.qpn, kind });
    }

    /// In SQD, reports once that all messages that had begun are complete.
    pub(crate) fn check_drained(&mut self, shared: &mut Shared) {
        if self.state() == QpState::Sqd && !self.drained && self.requester.is_drained() {
            // RC-80
            self.drained = true;
            self.emit_async(shared, QpEvent::SqDrained);
        }
    }

    /// The attributes as they are now.
    pub(crate) fn snapshot(&self) -> QpSnapshot {
        QpSnapshot {
            sq_draining: self.state() == QpState::Sqd && !self.requester.is_drained(),
            rq_psn: self.responder.expected_psn(),
            sq_psn: self.requester.next_psn(),
            ..self.attributes
        }
    }
}

/// The Base Transport Header of a frame to a peer with a payload of `length` bytes.
#[inline]
pub(crate) fn transport_header(dest_qpn: u32, opcode: u8, psn: Psn, length: u32) -> bth::Repr {
    bth::Repr {
        // RC-13
        opcode,
        // Interoperable peers take 0 for a path about to migrate, and go slow.
        migrated: true,
        pad_count: pad(length),
        pkey: param::DEFAULT_PKEY,
        dest_qpn,
        psn,
        ..bth::Repr::default()
    }
}

/// Padding after a payload of `length` bytes: up to a multiple of four.
// RC-8
pub(crate) const fn pad(length: u32) -> u8 {
    (length.wrapping_neg() & 3) as u8
}
