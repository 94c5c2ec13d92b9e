//! A queue pair of Reliable Connection, or of XRC: its requester and its responder, which take turns.

use core::task::Poll;

use fpga_regs::engine::qp::QpState;

use crate::api::{
    AtomicOperation, Event, Operation, ReceiveStatus, ResponderMemory, SendRequest, Transmit,
};
use crate::attributes::{QpAttributes, QpSnapshot};
use crate::credit::Credit;
use crate::error::PostError;
use crate::incoming::Incoming;
use crate::owed::Ack;
use crate::param;
use crate::path::Path;
use crate::psn::Psn;
use crate::qp::{QpCore, Shared};
use crate::requester::Requester;
use crate::responder::Responder;
use crate::service::Service;
use crate::services::Part;
use crate::types::Instant;
use crate::wire::frame;

/// A queue pair whose peer answers each message.
#[derive(Debug)]
pub(crate) struct RcQp {
    pub core: QpCore,
    pub requester: Requester,
    pub responder: Responder,
    /// Whether the last frame was an answer, so that requests get their turn.
    responded: bool,
}

impl RcQp {
    /// A queue pair in RESET.
    pub(crate) fn new(core: QpCore) -> Self {
        Self {
            core,
            requester: Requester::default(),
            responder: Responder::default(),
            responded: false,
        }
    }

    /// Enters a state other than RESET, with the attributes of a change.
    pub(crate) fn change(&mut self, shared: &mut Shared, to: QpState, change: &QpAttributes) {
        if to == QpState::Err {
            self.responder.silence();
            self.enter_error(shared);
            return;
        }
        let attributes = &mut self.core.attributes;
        let from = core::mem::replace(&mut attributes.state, to);
        match (from, to) {
            (QpState::Init, QpState::Rtr) => {
                // RC-19
                let is_shared = self.core.service != Service::Rc;
                self.responder.start(change.rq_psn.unwrap_or_default(), is_shared);
            }
            (QpState::Rtr, QpState::Rts) => {
                let psn = change.sq_psn.unwrap_or_default();
                let (retries, rnr) = (attributes.retry_cnt, attributes.rnr_retry);
                let names_srq = self.core.service.names_srq();
                let credit = if names_srq { Credit::UNLIMITED } else { Credit::default() };
                // RC-19
                self.requester.start(psn, retries, rnr, credit);
            }
            // RC-80
            (QpState::Rts, QpState::Sqd) => {
                self.requester.drain();
                self.core.make_ready(shared);
                self.core.begin_to_drain(shared, self.requester.is_drained());
            }
            (QpState::Sqd, _) => self.core.make_ready(shared),
            _ => {}
        }
    }

    /// Takes a message, along XRC for the peer's shared receive queue `srqn`, and gives its number.
    #[inline]
    pub(crate) fn post(
        &mut self,
        shared: &mut Shared,
        now: Instant,
        srqn: Option<u32>,
        request: SendRequest,
    ) -> Result<u64, PostError> {
        let QpCore { qpn, service, .. } = self.core;
        // XRC-3
        let sends = match srqn {
            None => service == Service::Rc,
            Some(_) => service == Service::XrcSend,
        };
        if !sends {
            return Err(PostError::NotOffered(qpn));
        }
        let state = self.core.state();
        // RC-79
        if !state.sends_requests() {
            return Err(PostError::State { qpn, state });
        }
        // RC-23
        if request.length > param::MAX_MESSAGE_LENGTH {
            return Err(PostError::TooLong(request.length));
        }
        if request.operation.is_answered() && self.core.attributes.max_rd_atomic == 0 {
            return Err(PostError::ReadsDisabled(qpn));
        }
        if matches!(request.operation, Operation::Atomic(_))
            && request.length != AtomicOperation::LENGTH
        {
            return Err(PostError::AtomicLength(request.length));
        }
        if self.requester.room() == 0 {
            return Err(PostError::Full(qpn));
        }
        let number = self.requester.post(request, srqn.unwrap_or_default(), self.core.mtu());
        if self.core.path.as_ref().is_some_and(Path::is_resolved) {
            self.core.make_ready(shared);
        } else {
            self.requester.wait_for_neighbour(&mut self.core, shared, now, param::ARP_WAIT);
        }
        Ok(number)
    }

    /// The next frame of a priority, if there is anything to send.
    #[inline]
    pub(crate) fn transmit(
        &mut self,
        shared: &mut Shared,
        now: Instant,
        priority: u8,
    ) -> Option<Transmit> {
        if !self.core.path.as_ref()?.is_resolved() {
            self.requester.wait_for_neighbour(&mut self.core, shared, now, param::ARP_WAIT);
            return None;
        }
        let transmit = self.next_frame(shared, now, priority);
        if transmit.is_some() {
            self.core.count_sent(shared);
        }
        transmit
    }

    /// Makes the next frame. Frames are large, so the usual one, a request, is handed on untouched.
    #[inline]
    fn next_frame(&mut self, shared: &mut Shared, now: Instant, priority: u8) -> Option<Transmit> {
        let notification = self.core.transmit_notification(shared, priority);
        if notification.is_some() {
            return notification;
        }
        // It stands in another line.
        if self.core.priority != priority {
            return None;
        }
        let is_held = self.core.is_held(now);
        // Answers and requests take turns.
        let request_first = !is_held && core::mem::take(&mut self.responded);
        if request_first {
            let request = self.requester.transmit_request(&mut self.core, shared, now);
            if request.is_some() {
                return request;
            }
        }
        if self.responder.has_answer() {
            let answer = self.responder.transmit_response(&mut self.core, shared, now);
            if answer.is_some() {
                self.responded = true;
                return answer;
            }
        }
        if is_held {
            self.wait(shared);
            None
        } else if request_first {
            None
        } else {
            self.requester.transmit_request(&mut self.core, shared, now)
        }
    }

    /// The window holds the next frame back, if there is one.
    // RC-107
    #[cold]
    fn wait(&mut self, shared: &mut Shared) {
        if self.responder.has_answer() || self.requester.has_request(&self.core) {
            self.core.hold(shared);
        }
    }

    /// Takes a packet of the peer's. A request that is pending has at most established the connection.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        shared: &mut Shared,
        incoming: &Incoming<'_>,
        memory: &mut impl ResponderMemory,
    ) -> Poll<()> {
        let Self { core, requester, responder, .. } = self;
        let taken = if incoming.packet.opcode.class.is_response() {
            requester.receive_response(core, shared, incoming);
            Poll::Ready(())
        } else {
            responder.receive_request(core, shared, incoming, memory)
        };
        self.see_to_error(shared);
        taken
    }

    /// The part of its message that a packet of the peer's carries, if its turn has come.
    pub(crate) fn part(&self, packet: &frame::Repr) -> Option<Part> {
        match packet.opcode.class.is_response() {
            true => self.requester.part(&self.core, packet),
            false => self.responder.part(&self.core, packet),
        }
    }

    /// Fails at a packet that is part of a message, for a service does not let it pass.
    pub(crate) fn refuse_by_service(
        &mut self,
        shared: &mut Shared,
        now: Instant,
        packet: &frame::Repr,
    ) {
        let Self { core, requester, responder, .. } = self;
        match packet.opcode.class.is_response() {
            true => requester.refuse_by_service(core, shared, now, packet.bth.psn),
            false => responder.refuse_by_service(core, shared, packet.bth.psn),
        }
        self.see_to_error(shared);
    }

    /// Handles a request of the peer whose opcode is unknown.
    pub(crate) fn receive_unknown_request(&mut self, shared: &mut Shared, psn: Psn) {
        self.responder.receive_unknown_request(&mut self.core, shared, psn);
        self.see_to_error(shared);
    }

    /// The QP's timer fired; says whether the peer did not answer, as [`Requester::timer_fired`].
    pub(crate) fn timer_fired(
        &mut self,
        shared: &mut Shared,
        now: Instant,
        lost_cause: bool,
    ) -> bool {
        let unanswered = self.requester.timer_fired(&mut self.core, shared, now, lost_cause);
        self.see_to_error(shared);
        unanswered
    }

    /// The memory of message `number` could not be read. Messages before it are finished first.
    pub(crate) fn message_unreadable(&mut self, shared: &mut Shared, number: u64) {
        self.requester.message_unreadable(&mut self.core, shared, number);
        self.see_to_error(shared);
    }

    /// The memory behind READ response `psn` could not be read.
    pub(crate) fn response_unreadable(&mut self, shared: &mut Shared, psn: Psn) {
        self.responder.response_unreadable(&mut self.core, shared, psn);
        self.see_to_error(shared);
    }

    /// A placement of the request packet `at` failed, as [`Responder::placement_failed`] has it.
    pub(crate) fn placement_failed(&mut self, shared: &mut Shared, at: Ack, reported: bool) {
        self.responder.placement_failed(&mut self.core, shared, at, reported);
        self.see_to_error(shared);
    }

    /// Refuses the requests that were executed and are not acknowledged: the layer above cannot tell its program of
    /// them.
    pub(crate) fn refuse_unacknowledged(&mut self, shared: &mut Shared) {
        self.responder.refuse_unacknowledged(&mut self.core, shared);
        self.see_to_error(shared);
    }

    /// Enters the error state.
    pub(crate) fn enter_error(&mut self, shared: &mut Shared) {
        self.core.enter_error();
        self.see_to_error(shared);
    }

    /// Ends the work of a side that has failed: the requester stops, the responder sends the answers up to a request
    /// that it refused, and the receive request that it had taken is given back.
    #[inline]
    fn see_to_error(&mut self, shared: &mut Shared) {
        if core::mem::take(&mut self.core.failed) {
            self.end(shared);
        }
    }

    #[cold]
    fn end(&mut self, shared: &mut Shared) {
        // RC-83
        self.requester.stop();
        self.requester.update_timer(&mut self.core, shared);
        if let Some(taken) = self.responder.stop() {
            self.core.fail_receive(shared, taken, ReceiveStatus::Flushed);
        }
        self.core.emit(shared, Event::EnteredError { qpn: self.core.qpn });
        if self.responder.has_last_words() {
            self.core.make_ready(shared);
        }
    }

    /// The attributes as they are now.
    pub(crate) fn snapshot(&self) -> QpSnapshot {
        QpSnapshot {
            sq_draining: self.core.state() == QpState::Sqd && !self.requester.is_drained(),
            rq_psn: self.responder.expected_psn(),
            sq_psn: self.requester.next_psn(),
            ..self.core.attributes
        }
    }
}
