//! XRC: targets, and the shared receive queues of XRC domains.
//!
//! A target has no queue, no completion queue and no protection domain: it answers, and each request says
//! for which shared receive queue it is. That may be one of any engine of the card, so questions to
//! a target's engine are about the target alone, and those to a queue's engine name the queue. A receive
//! that was taken is the queue's, and not the target's.

use fpga_regs::engine::admin::{AdminStatus, CreateQp};
use fpga_regs::engine::cqe::{Cqe, Flags, Status};
use fpga_regs::engine::event::{Event, EventType, QpEvent};
use fpga_regs::engine::key::Access;
use fpga_regs::engine::qp::{AttributeMask, Attributes, QpState};
use fpga_regs::engine::transition;

use crate::cq::Completions;
use crate::doorbells::DoorbellPage;
use crate::engine::Engine;
use crate::flush::{capacity, describe};
use crate::keys::Peer;
use crate::memory::Rings;
use crate::numbers::{Random, take};
use crate::qp::XrcTarget;
use crate::rq::{Given, Rq, TakenWqe};
use crate::transport::{
    ReceiveError, ReceivedMessage, RemoteAccess, RemoteRange, TakenReceive, Transport, XrcRequest,
};

/// The completion of a receive that a shared receive queue of an XRC domain gave to a target.
fn entry(srqn: u32, qpn: u32, tag: u32, status: Status) -> Cqe {
    let opcode = fpga_regs::engine::cqe::Opcode::Receive;
    let flags = Flags::RECEIVE | Flags::XRC;
    Cqe { qpn, wqe_index: tag, opcode, status, flags, srqn, ..Cqe::default() }
}

impl<M: Rings, D: DoorbellPage, N: Random> Engine<M, D, N> {
    /// Makes a target in RESET; answers with its number and its generation.
    pub(crate) fn create_target(
        &mut self,
        command: &CreateQp,
        transport: &mut impl Transport,
    ) -> Result<(u32, u8), AdminStatus> {
        let qpn = self.qp_numbers.draw(&mut self.random).ok_or(AdminStatus::NoResources)?;
        if let Err(status) = transport.create_qp(qpn, command) {
            self.qp_numbers.free(qpn);
            return Err(status);
        }
        let generation = self.random.next_u32() as u8;
        let (state, access) = (QpState::Reset, Access::empty());
        let (tells_drained, reached_last) = (false, false);
        let command = *command;
        let target = XrcTarget { command, generation, state, access, tells_drained, reached_last };
        self.targets.insert(qpn, target);
        Ok((qpn, generation))
    }

    /// Changes a target; answers with its generation.
    pub(crate) fn modify_target(
        &mut self,
        now: u64,
        qpn: u32,
        attributes: &Attributes,
        transport: &mut impl Transport,
    ) -> Result<u8, AdminStatus> {
        let target = self.targets.get(&qpn).ok_or(AdminStatus::NotFound)?;
        let (from, mask) = (target.state, attributes.mask);
        let offered = self.config.capabilities;
        let to = transition::check(target.command.kind, from, attributes, offered)?;
        self.check_ranges(attributes)?;
        transport.modify_qp(now, qpn, &Attributes { state: to, ..*attributes })?;
        let Some(target) = self.targets.get_mut(&qpn) else { return Err(AdminStatus::NotFound) };
        target.state = to;
        if from != to && to == QpState::Sqd {
            let asked = mask.contains(AttributeMask::EN_SQD_ASYNC_NOTIFY);
            target.tells_drained = asked && attributes.sqd_notify == 1;
        }
        if mask.contains(AttributeMask::ACCESS) {
            target.access = Access::from_bits_truncate(attributes.access);
        }
        if to == QpState::Reset {
            target.generation = target.generation.wrapping_add(1);
            (target.access, target.reached_last) = (Access::empty(), false);
        }
        let generation = target.generation;
        if to == QpState::Err {
            self.fail_target(now, qpn);
        }
        Ok(generation)
    }

    /// The state of a target, and the rights that it gives.
    pub(crate) fn query_target(&self, qpn: u32) -> Option<(QpState, Access)> {
        self.targets.get(&qpn).map(|target| (target.state, target.access))
    }

    pub(crate) fn destroy_target(
        &mut self,
        qpn: u32,
        transport: &mut impl Transport,
    ) -> Result<(), AdminStatus> {
        take(&mut self.targets, qpn).ok_or(AdminStatus::NotFound)?;
        transport.destroy_qp(qpn);
        self.qp_numbers.free(qpn);
        Ok(())
    }

    /// Puts a target in ERR, and reports that it takes no further receives. One in RESET stays there.
    pub(crate) fn fail_target(&mut self, now: u64, qpn: u32) {
        let Some(target) = self.targets.get_mut(&qpn) else { return };
        if target.state == QpState::Reset {
            return;
        }
        target.state = QpState::Err;
        if !std::mem::replace(&mut target.reached_last, true) {
            self.tell_qp(now, qpn, QpEvent::LastWqeReached);
        }
    }

    /// Something happened to a target.
    pub(crate) fn tell_of_target(&mut self, now: u64, qpn: u32, event: QpEvent) {
        let Some(target) = self.targets.get(&qpn) else { return };
        if event != QpEvent::SqDrained || target.tells_drained {
            self.tell_qp(now, qpn, event);
        }
    }

    pub(crate) fn tell_qp(&mut self, now: u64, number: u32, event: QpEvent) {
        let event = Event { kind: EventType::Qp, code: event.0, number, ..Event::default() };
        self.events.push(event, now);
    }

    /// The queue that a request names, if it is of the target's domain.
    fn named(&mut self, request: XrcRequest) -> Option<(&mut Rq<M>, u32)> {
        let rq = self.rqs.get_mut(&request.srqn)?;
        let is_its = rq.xrc.as_ref().is_some_and(|queue| queue.xrcdn == request.xrcdn);
        is_its.then_some((rq, request.srqn))
    }

    /// Checks a peer's access to memory through a target; the transport has looked at the rights that the
    /// target gives. `None` where the domain has no such queue.
    pub fn allows_xrc(
        &mut self,
        request: XrcRequest,
        memory: RemoteRange,
        access: RemoteAccess,
    ) -> Option<bool> {
        let (rq, _) = self.named(request)?;
        let peer = Peer { qpn: request.qpn, pdn: rq.pdn };
        Some(match access {
            // A peer may invalidate only bindings of the own QP, and a target binds nothing.
            RemoteAccess::Invalidate => false,
            _ => memory.length == 0 || self.opens(peer, memory, access),
        })
    }

    /// Takes the next receive of the queue that a request names.
    ///
    /// # Errors
    /// [`ReceiveError`]; one that is [`ReceiveError::Invalid`] completes with an error.
    pub fn take_xrc_receive(&mut self, request: XrcRequest) -> Result<TakenReceive, ReceiveError> {
        let (rq, srqn) = self.named(request).ok_or(ReceiveError::NoSrq)?;
        let wqe = rq.take().ok_or(ReceiveError::Empty)?;
        if rq.fell_below_limit() {
            self.below_limit.push(srqn);
        }
        let capacity = wqe.sges.as_ref().map(capacity);
        let queue = self.rqs.get_mut(&srqn).and_then(|rq| rq.xrc.as_mut());
        let queue = queue.ok_or(ReceiveError::NoSrq)?;
        let Some(capacity) = capacity else {
            let failed = entry(srqn, request.qpn, wqe.tag, Status::LocalProtection);
            self.failed_receives.push((queue.cqn, failed));
            return Err(ReceiveError::Invalid);
        };
        // No other of any queue has that name for as long as it is under way.
        let id = u64::from(srqn) << 32 | u64::from(self.next_xrc_receive);
        self.next_xrc_receive = self.next_xrc_receive.wrapping_add(1);
        let sges = wqe.sges.unwrap_or_default();
        queue.taken.insert(id, TakenWqe { id, tag: wqe.tag, sges, failed: None });
        Ok(TakenReceive { id, capacity, left: None })
    }

    /// Completes the receives that could not be used; whether there were any.
    pub(crate) fn complete_failed_receives(&mut self, now: u64) -> bool {
        let failed = std::mem::take(&mut self.failed_receives);
        let mut completions =
            Completions { cqs: &mut self.cqs, events: &mut self.events, lost: &mut self.lost, now };
        for (cqn, entry) in &failed {
            completions.push(*cqn, *entry);
        }
        !failed.is_empty()
    }

    /// A receive that a queue gave to a target is filled, or failed: then there is no message.
    pub(crate) fn complete_xrc(
        &mut self,
        now: u64,
        given: Given,
        outcome: Result<&ReceivedMessage, Status>,
    ) {
        let Given { srqn, id, qpn } = given;
        let queue = self.rqs.get_mut(&srqn).and_then(|rq| rq.xrc.as_mut());
        // A queue that is gone has nothing to complete.
        let Some(queue) = queue else { return };
        let Some(taken) = queue.taken.remove(&id) else { return };
        let status = outcome.err().unwrap_or(Status::Success);
        let mut entry = entry(srqn, qpn, taken.tag, status);
        if let Ok(received) = outcome {
            describe(received, &mut entry);
        }
        let cqn = queue.cqn;
        Completions { cqs: &mut self.cqs, events: &mut self.events, lost: &mut self.lost, now }
            .push(cqn, entry);
    }

    /// A receive that a queue gave to a target, and the protection domain of its memory.
    pub(crate) fn xrc_receive(&self, srqn: u32, id: u64) -> Option<(&TakenWqe, u32)> {
        let rq = self.rqs.get(&srqn)?;
        Some((rq.xrc.as_ref()?.taken.get(&id)?, rq.pdn))
    }

    /// The holder of the rights to memory that a target's peer names along XRC: the queue's domain decides.
    pub(crate) fn xrc_peer(&self, srqn: u32, qpn: u32) -> Option<Peer> {
        let rq = self.rqs.get(&srqn).filter(|rq| rq.xrc.is_some())?;
        Some(Peer { qpn, pdn: rq.pdn })
    }
}
