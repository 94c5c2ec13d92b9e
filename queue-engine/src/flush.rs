//! Completes finished requests, and flushes requests that cannot finish.

use std::collections::VecDeque;

use fpga_regs::engine::cqe::{Cqe, Flags, Opcode, Status};
use fpga_regs::engine::event::{Event, EventType, QpEvent};
use fpga_regs::engine::qp::{AttributeMask, Attributes, QpState, QpType};
use fpga_regs::engine::wqe::ATOMIC_BYTES;

use crate::cq::Completions;
use crate::doorbells::DoorbellPage;
use crate::engine::Engine;
use crate::fetch::{Peeked, QUANTUM, completed_as};
use crate::keys::Peer;
use crate::memory::Rings;
use crate::numbers::Random;
use crate::qp::{KEPT_RECEIVES, Qp};
use crate::resolve::right_of;
use crate::rq::{Given, Rq, Sges, TakenWqe};
use crate::transport::{
    ReceiveError, ReceiveKind, ReceivedMessage, RemoteAccess, RemoteRange, TakenReceive, Transport,
    TransportEvent,
};
use crate::under_way::narrow;

/// The bits of an address that tell a byte within a word of atomics.
const WITHIN_WORD: u64 = ATOMIC_BYTES as u64 - 1;

impl<M: Rings, D: DoorbellPage, N: Random> Engine<M, D, N> {
    /// Records an event of the transport for a QP of this engine.
    ///
    /// [`Engine::poll`] then does the work that follows from it.
    pub fn handle(&mut self, now: u64, event: TransportEvent, transport: &mut impl Transport) {
        self.hear(now, event, transport);
        self.fail_lost(now, transport);
    }

    /// Fails each QP of which a completion was lost: before the transport acknowledges that message, if it does so
    /// behind the events. A QP that has failed already, or is gone, stays as it is.
    #[inline]
    pub(crate) fn fail_lost(&mut self, now: u64, transport: &mut impl Transport) {
        if !self.lost.is_empty() {
            self.fail_all_lost(now, transport);
        }
    }

    #[cold]
    fn fail_all_lost(&mut self, now: u64, transport: &mut impl Transport) {
        for qpn in std::mem::take(&mut self.lost) {
            // An XRC target may be another engine's.
            if transport.refuse(now, qpn) {
                continue;
            }
            let works = |qp: &Qp<M>| !matches!(qp.state, QpState::Reset | QpState::Err);
            if !self.qps.get(&qpn).is_some_and(|qp| works(qp) && qp.failing.is_none()) {
                continue;
            }
            self.tell_qp(now, qpn, QpEvent::Fatal);
            self.fail_here(now, qpn, None, transport);
        }
    }

    fn hear(&mut self, now: u64, event: TransportEvent, transport: &mut impl Transport) {
        match event {
            TransportEvent::XrcReceived { srqn, id, received } => {
                let given = Given { srqn, id, qpn: received.qpn };
                return self.complete_xrc(now, given, Ok(&received));
            }
            TransportEvent::XrcReceiveFailed { srqn, id, qpn, status } => {
                return self.complete_xrc(now, Given { srqn, id, qpn }, Err(status));
            }
            TransportEvent::Error { qpn } => self.fail_target(now, qpn),
            TransportEvent::Async { qpn, event } => self.tell_of_target(now, qpn, event),
            _ => {}
        }
        let Some(qp) = self.qps.get(&event.qpn()) else { return };
        let (tells_drained, kind) = (qp.tells_drained, qp.kind);
        // Before anything else of this QP: entries that waited longer for room come first.
        self.feed_starved();
        let of_receive =
            matches!(event, TransportEvent::Received(_) | TransportEvent::ReceiveFailed { .. });
        if kind.is_datagram() && of_receive {
            // Those taken before that one, of the same burst, which fail alone.
            self.fail_receive_if_due(now, event.qpn(), transport);
        }
        match event {
            TransportEvent::Completed { qpn, count } => self.completed(now, qpn, count, transport),
            TransportEvent::Failed { qpn, status } if !kind.is_reliable() => {
                self.flush_send_queue(now, qpn, Some(status));
            }
            TransportEvent::Failed { qpn, status } => self.flush(now, qpn, Some(status)),
            TransportEvent::Received(received) => self.received(now, received, transport),
            TransportEvent::ReceiveFailed { qpn, status } => {
                self.complete_receive(now, qpn, |qp, taken| qp.receive_cqe(taken.tag, status));
                if kind.is_datagram() {
                    self.fail_receive_if_due(now, qpn, transport);
                } else {
                    self.flush(now, qpn, None);
                }
            }
            TransportEvent::Error { qpn } => self.flush(now, qpn, None),
            TransportEvent::Async { event: QpEvent::SqDrained, .. } if !tells_drained => {}
            TransportEvent::Async { qpn, event } => {
                let event =
                    Event { kind: EventType::Qp, code: event.0, number: qpn, ..Event::default() };
                self.events.push(event, now);
            }
            TransportEvent::XrcReceived { .. } | TransportEvent::XrcReceiveFailed { .. } => {}
        }
        if kind.is_datagram() && !of_receive {
            self.let_handles_go(event.qpn(), transport);
        }
    }

    /// Ends the address handles of which a QP was the last holder, and is no longer.
    pub(crate) fn let_handles_go(&mut self, qpn: u32, transport: &mut impl Transport) {
        let Some(qp) = self.qps.get_mut(&qpn).filter(|qp| !qp.held.is_empty()) else { return };
        for ah in self.ahs.let_go(qp) {
            self.ahs.forget(ah);
            transport.destroy_ah(ah);
        }
    }

    fn completed(&mut self, now: u64, qpn: u32, count: u64, transport: &mut impl Transport) {
        let Some(qp) = self.qps.get_mut(&qpn) else { return };
        let mut completions =
            Completions { cqs: &mut self.cqs, events: &mut self.events, lost: &mut self.lost, now };
        for _ in 0..count {
            if qp.under_way.front().is_none_or(|message| message.failed.is_some()) {
                break;
            }
            let Some(message) = qp.under_way.pop() else { break };
            if message.signaled {
                let status = Status::Success;
                let byte_count = message.length;
                let entry = qp.send_cqe(message.wqe_index, message.opcode, status);
                completions.push(qp.send_cqn, Cqe { byte_count, ..entry });
            }
        }
        if qp.under_way.settle(self.shares.of(qp.page)) {
            transport.narrow(qpn);
        }
        self.look_at(qpn);
        self.fail_if_due(now, qpn, transport);
    }

    /// Fails a QP whose oldest message was never submitted: all before it are complete.
    pub(crate) fn fail_if_due(&mut self, now: u64, qpn: u32, transport: &mut impl Transport) {
        let Some(qp) = self.qps.get(&qpn).filter(|qp| qp.failing.is_none()) else { return };
        let Some(status) = qp.under_way.front().and_then(|message| message.failed) else { return };
        if !qp.kind.is_reliable() {
            self.flush_send_queue(now, qpn, Some(status));
        } else {
            self.fail_here(now, qpn, Some(status), transport);
        }
    }

    /// Fails a QP for an error that the engine found: its requests are flushed as soon as nothing reaches its memory
    /// any more.
    fn fail_here(
        &mut self,
        now: u64,
        qpn: u32,
        cause: Option<Status>,
        transport: &mut impl Transport,
    ) {
        stop_transport(now, qpn, transport);
        match self.qps.get_mut(&qpn).filter(|_| transport.lingers(qpn)) {
            Some(qp) => (qp.failing, qp.sq.stopped) = (Some(cause), true),
            None => self.flush(now, qpn, cause),
        }
    }

    fn received(&mut self, now: u64, received: ReceivedMessage, transport: &mut impl Transport) {
        let ReceivedMessage { qpn, kind, .. } = received;
        if let ReceiveKind::SendInvalidate { rkey } = kind {
            let pdn = self.qps.get(&qpn).map_or(0, |qp| qp.pdn);
            // A key that another request has invalidated since needs nothing more.
            let _ = self.keys.invalidate(Peer { qpn, pdn }, rkey);
        }
        let complete = |qp: &Qp<M>, taken: &TakenWqe| {
            let mut entry = qp.receive_cqe(taken.tag, Status::Success);
            describe(&received, &mut entry);
            entry
        };
        self.complete_receive(now, qpn, complete);
        self.fail_receive_if_due(now, qpn, transport);
    }

    fn complete_receive(
        &mut self,
        now: u64,
        qpn: u32,
        describe: impl Fn(&Qp<M>, &TakenWqe) -> Cqe,
    ) {
        let Some(qp) = self.qps.get_mut(&qpn) else { return };
        let Some(taken) = qp.receives.pop_front() else { return };
        narrow(&mut qp.receives, KEPT_RECEIVES);
        let entry = describe(qp, &taken);
        let cqn = qp.receive_cqn;
        let mut completions =
            Completions { cqs: &mut self.cqs, events: &mut self.events, lost: &mut self.lost, now };
        completions.push(cqn, entry);
    }

    /// Fails the oldest receive taken if it cannot be filled, and with it the QP; one of datagrams goes on
    /// behind all such.
    pub(crate) fn fail_receive_if_due(
        &mut self,
        now: u64,
        qpn: u32,
        transport: &mut impl Transport,
    ) {
        let failed = |taken: &TakenWqe| taken.failed;
        while let Some(qp) = self.qps.get(&qpn) {
            let kind = qp.kind;
            let front = qp.receives.front().filter(|_| qp.failing.is_none());
            let Some(status) = front.and_then(failed) else { return };
            self.complete_receive(now, qpn, |qp, taken| qp.receive_cqe(taken.tag, status));
            if !kind.is_datagram() {
                return self.fail_here(now, qpn, None, transport);
            }
        }
    }

    /// Puts a QP that is not answered in SQE and completes all its sends: the oldest with `cause`, the
    /// rest flushed. As with [`Engine::flush`], posted requests are flushed by turns.
    pub(crate) fn flush_send_queue(&mut self, now: u64, qpn: u32, cause: Option<Status>) {
        let Some(qp) = self.qps.get_mut(&qpn) else { return };
        if !matches!(qp.state, QpState::Rts | QpState::Sqd | QpState::Sqe) {
            return;
        }
        qp.state = QpState::Sqe;
        let mut completions =
            Completions { cqs: &mut self.cqs, events: &mut self.events, lost: &mut self.lost, now };
        flush_messages(qp, cause, &mut completions);
        qp.under_way.close(self.shares.of(qp.page));
        qp.sq.stopped = false;
        if flush_sends(qp, &mut completions) {
            self.look_at(qpn);
        }
    }

    /// Puts a QP in ERR and completes all its requests: the oldest message with `cause`, the rest flushed.
    ///
    /// Posted requests are flushed by turns, so that no ring can keep the engine busy; called again for
    /// the rest, and for later posts. A QP in RESET has none and stays there.
    pub(crate) fn flush(&mut self, now: u64, qpn: u32, cause: Option<Status>) {
        let Some(qp) = self.qps.get_mut(&qpn) else { return };
        if qp.state == QpState::Reset {
            return;
        }
        qp.state = QpState::Err;
        let cause = qp.failing.take().flatten().or(cause);
        let mut completions =
            Completions { cqs: &mut self.cqs, events: &mut self.events, lost: &mut self.lost, now };
        flush_messages(qp, cause, &mut completions);
        qp.under_way.close(self.shares.of(qp.page));
        let sends_left = flush_sends(qp, &mut completions);
        flush_taken(qp, &mut completions);
        let rq = self.rqs.get_mut(&qp.rqn).filter(|rq| rq.private_qpn().is_some());
        let receives_left = match rq {
            Some(rq) => {
                self.flushing.insert(qpn);
                flush_receives(qp, rq, &mut completions)
            }
            // The posted receives are for other QPs, and this one takes none any more. A QP that only sends has none.
            None if qp.kind == QpType::XrcSend => false,
            None => {
                if !std::mem::replace(&mut qp.reached_last, true) {
                    let code = QpEvent::LastWqeReached.0;
                    let event =
                        Event { kind: EventType::Qp, code, number: qpn, ..Event::default() };
                    self.events.push(event, now);
                }
                false
            }
        };
        if sends_left || receives_left {
            self.look_at(qpn);
        }
    }

    /// Checks a peer's access to memory through a QP.
    #[must_use]
    pub fn allows(&self, qpn: u32, memory: RemoteRange, access: RemoteAccess) -> bool {
        let Some(qp) = self.qps.get(&qpn) else { return false };
        let peer = Peer { qpn, pdn: qp.pdn };
        if access == RemoteAccess::Invalidate {
            return self.keys.can_invalidate(peer, memory.rkey);
        }
        qp.access.contains(right_of(access))
            && (memory.length == 0 || self.opens(peer, memory, access))
    }

    /// Whether a key is a memory window's, or none.
    #[must_use]
    pub fn is_window(&self, rkey: u32) -> bool {
        !self.keys.is_region(rkey)
    }

    /// Whether a key opens memory to a peer.
    pub(crate) fn opens(&self, peer: Peer, memory: RemoteRange, access: RemoteAccess) -> bool {
        let found = self.keys.translate_remote(peer, memory, right_of(access));
        // Eight bytes for the card as for the program, so that they never lie on two pages.
        found.is_ok_and(|iova| access != RemoteAccess::Atomic || iova & WITHIN_WORD == 0)
    }

    /// Takes the next receive of a QP for a message that arrives.
    ///
    /// # Errors
    /// [`ReceiveError::Empty`], or [`ReceiveError::Invalid`] for one that makes no sense; that one completes with an error once [`Engine::refuse_receive`] says so.
    pub fn take_receive(&mut self, qpn: u32) -> Result<TakenReceive, ReceiveError> {
        let qp = self.qps.get_mut(&qpn).ok_or(ReceiveError::Empty)?;
        if !qp.state.receives_unreliable() {
            return Err(ReceiveError::Empty);
        }
        let rq = self.rqs.get_mut(&qp.rqn).ok_or(ReceiveError::Empty)?;
        let wqe = rq.take().ok_or(ReceiveError::Empty)?;
        let id = qp.next_receive;
        qp.next_receive = id.wrapping_add(1);
        let left = rq.private_qpn().map(|_| rq.left());
        if rq.fell_below_limit() {
            self.below_limit.push(qp.rqn);
        }
        let sges = wqe.sges;
        let capacity = sges.as_ref().map(capacity);
        let failed = capacity.is_none().then_some(Status::LocalProtection);
        qp.receives.push_back(TakenWqe {
            id,
            tag: wqe.tag,
            sges: sges.unwrap_or_default(),
            failed,
        });
        if failed.is_some() && qp.kind.is_datagram() {
            self.look_at(qpn);
        }
        capacity.map(|capacity| TakenReceive { id, capacity, left }).ok_or(ReceiveError::Invalid)
    }

    /// Tells of the shared receive queues that have fewer entries than their limit; whether there were
    /// any.
    pub(crate) fn tell_below_limit(&mut self, now: u64) -> bool {
        let rqns = std::mem::take(&mut self.below_limit);
        for &number in &rqns {
            let event = Event { kind: EventType::ReceiveLimit, number, ..Event::default() };
            self.events.push(event, now);
        }
        !rqns.is_empty()
    }

    /// Completes the receive that a QP has taken from a shared queue, ahead of its RESET or its end: the
    /// queue's owner must learn that the entry is free.
    pub(crate) fn give_up_taken(&mut self, now: u64, qpn: u32) {
        let Some(qp) = self.qps.get_mut(&qpn) else { return };
        if self.rqs.get(&qp.rqn).is_some_and(|rq| rq.private_qpn().is_none()) {
            let mut completions = Completions {
                cqs: &mut self.cqs,
                events: &mut self.events,
                lost: &mut self.lost,
                now,
            };
            flush_taken(qp, &mut completions);
        }
    }

    /// Completes a receive that [`Engine::take_receive`] called invalid, when its turn has come.
    pub fn refuse_receive(&mut self, now: u64, qpn: u32, transport: &mut impl Transport) {
        self.fail_receive_if_due(now, qpn, transport);
    }
}

/// Writes a message's fields into a completion.
pub(crate) fn describe(received: &ReceivedMessage, entry: &mut Cqe) {
    let ReceivedMessage { length, kind, immediate, solicited, source_qpn, qpn: _ } = *received;
    entry.byte_count = length;
    match kind {
        ReceiveKind::Send => {}
        ReceiveKind::Write => entry.opcode = Opcode::ReceiveWriteImm,
        ReceiveKind::SendInvalidate { rkey } => {
            entry.immediate = rkey;
            entry.flags |= Flags::INVALIDATED;
        }
    }
    if let Some(immediate) = immediate {
        entry.immediate = immediate;
        entry.flags |= Flags::IMMEDIATE;
    }
    if solicited {
        entry.flags |= Flags::SOLICITED;
    }
    if let Some(source_qpn) = source_qpn {
        entry.source_qpn = source_qpn;
        entry.flags |= Flags::GRH;
    }
}

/// Bytes a receive can hold. Where they lie, and whether that is within reach, is looked at when some are placed.
pub(crate) fn capacity(sges: &Sges) -> u64 {
    sges.iter().map(|sge| u64::from(sge.length)).sum()
}

fn stop_transport(now: u64, qpn: u32, transport: &mut impl Transport) {
    let attributes =
        Attributes { mask: AttributeMask::STATE, state: QpState::Err, ..Attributes::default() };
    // The QP is known to the transport, and every state leads to ERR.
    let _ = transport.modify_qp(now, qpn, &attributes);
}

/// Completes the messages that were fetched.
fn flush_messages<M: Rings>(
    qp: &mut Qp<M>,
    cause: Option<Status>,
    completions: &mut Completions<'_, M>,
) {
    let mut status = cause.unwrap_or(Status::Flushed);
    while let Some(message) = qp.under_way.pop() {
        let entry = qp.send_cqe(message.wqe_index, message.opcode, status);
        completions.push(qp.send_cqn, entry);
        status = Status::Flushed;
    }
}

/// Completes requests of the send ring; `true` when there may be more.
fn flush_sends<M: Rings>(qp: &mut Qp<M>, completions: &mut Completions<'_, M>) -> bool {
    for _ in 0..QUANTUM {
        let posted = qp.sq.posted();
        if posted == 0 {
            return false;
        }
        let Peeked { header, blocks, .. } = qp.sq.peek(posted);
        let opcode = header.map_or(Opcode::Send, |header| completed_as(header.opcode));
        let entry = qp.send_cqe(qp.sq.fetch, opcode, Status::Flushed);
        completions.push(qp.send_cqn, entry);
        qp.sq.fetch = qp.sq.fetch.wrapping_add(blocks);
    }
    true
}

/// Completes the receives taken.
pub(crate) fn flush_taken<M: Rings>(qp: &mut Qp<M>, completions: &mut Completions<'_, M>) {
    while let Some(taken) = qp.receives.pop_front() {
        let status = taken.failed.unwrap_or(Status::Flushed);
        completions.push(qp.receive_cqn, qp.receive_cqe(taken.tag, status));
    }
    qp.receives = VecDeque::new();
}

/// Completes requests of a QP's own receive ring; `true` when there may be more.
fn flush_receives<M: Rings>(
    qp: &mut Qp<M>,
    rq: &mut Rq<M>,
    completions: &mut Completions<'_, M>,
) -> bool {
    for _ in 0..QUANTUM {
        let Some(wqe) = rq.take() else { return false };
        let entry = qp.receive_cqe(wqe.tag, Status::Flushed);
        completions.push(qp.receive_cqn, entry);
    }
    true
}
