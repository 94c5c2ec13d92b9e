//! The commit of a burst of received frames, once its payload is placed: it lets acknowledgements and events out, or
//! fails a queue pair.

use super::Stack;
use super::slots::Slot;
use crate::api::{Event, Placed, ReceiveStatus, SendStatus};
use crate::counters::bump;
use crate::log::{Effect, EffectKind};
use crate::owed::Ack;
use crate::qp::{QpCore, Shared};
use crate::types::{Instant, Qpn};

/// A placement that failed.
pub(super) struct Failure {
    pub(super) slot: u32,
    /// The request packet, and the messages executed before it; `None` for a response.
    pub(super) request: Option<Ack>,
    /// The receive request that is reported as failed.
    pub(super) receive: Option<u64>,
}

/// Lets an event of a connection out; the receives behind a request that failed are flushed.
#[inline(always)]
fn release(shared: &mut Shared, event: Event, slot: u32, failures: &[Failure]) {
    let mut failed = failures.iter().filter(|f| f.slot == slot && f.request.is_some()).peekable();
    match event {
        Event::ReceiveCompleted { qpn, srqn, id, .. }
        | Event::ReceiveFailed { qpn, srqn, id, .. }
            if failed.peek().is_some() =>
        {
            // The message whose placement failed is reported already.
            if !failed.any(|failure| failure.receive == Some(id)) {
                let status = ReceiveStatus::Flushed;
                shared.log.release(Event::ReceiveFailed { qpn, srqn, id, status });
            }
        }
        event => shared.log.release(event),
    }
}

impl Stack {
    /// Tells how the placements since the last commit went, in order. Only now
    /// do the acknowledgements and events that depend on them become visible. To be called after
    /// every burst of `receive`, also when there were no placements; a missing one counts as
    /// failure.
    ///
    /// A failed placement of a request becomes a NAK "remote operational error" (and
    /// [`ReceiveStatus::LocalProtection`]); one of a response becomes
    /// [`SendStatus::LocalProtection`]. Either way the QP enters the error state.
    ///
    /// Where one is [`Placed::Later`], nothing of its queue pair becomes visible yet, and it sends nothing
    /// ([`Stack::pause`]); its further frames are to be given again. All the others go on.
    pub fn commit(&mut self, _now: Instant, placed: &[Placed]) {
        let mut effects = self.shared.log.take();
        let is_late = |placed: &Placed| matches!(placed, Placed::Later);
        if self.shared.log.has_aside() || placed.iter().any(is_late) {
            self.put_aside(&mut effects, placed);
        }
        let failures = self.commit_effects(&effects, placed);
        self.shared.log.finish(effects);
        if !failures.is_empty() {
            self.fail(failures);
        }
    }

    fn commit_effects(&mut self, effects: &[Effect], placed: &[Placed]) -> Vec<Failure> {
        let mut failures = Vec::new();
        for effect in effects {
            self.commit_effect(effect, placed, &mut failures);
        }
        failures
    }

    #[cold]
    fn put_aside(&mut self, effects: &mut Vec<Effect>, placed: &[Placed]) {
        let is_late = |number| placed.get(number) == Some(&Placed::Later);
        for effect in effects.iter().filter(|it| it.kind.placements().any(is_late)) {
            let qp = self.slots.core_mut(effect.slot);
            if let Some(qp) = qp.filter(|qp| qp.generation == effect.generation) {
                qp.paused = true;
                self.shared.log.begin_aside(effect.slot);
            }
        }
        self.shared.log.put_aside(effects);
    }

    /// Reports the outcomes of a queue pair's placements that were not known at the commit. `placed` is the commit's
    /// list, with this queue pair's outcomes filled in. Must not be called between [`Stack::receive`] and the commit
    /// behind it.
    ///
    /// The queue pair sends nothing before [`Stack::go_on`].
    pub fn settle(&mut self, qpn: Qpn, placed: &[Placed]) {
        let Some(slot) = self.slot(qpn) else { return };
        let effects = self.shared.log.take_aside(slot);
        let failures = self.commit_effects(&effects, placed);
        self.fail(failures);
    }

    /// Drops the effects that were put aside of a queue pair that begins anew, except for those on others.
    pub(super) fn forget_aside(&mut self, slot: u32) {
        for Effect { kind, .. } in self.shared.log.take_aside(slot) {
            self.flush_orphan(kind);
        }
    }

    #[cold]
    fn fail(&mut self, failures: Vec<Failure>) {
        for failure in failures {
            let reported = failure.receive.is_some();
            match (self.slots.get_mut(failure.slot), failure.request) {
                (Some(Slot::Uc(qp)), _) => qp.placement_failed(&mut self.shared, reported),
                (Some(Slot::Rc(qp)), Some(at)) => {
                    qp.placement_failed(&mut self.shared, at, reported);
                }
                (Some(Slot::Rc(qp)), None) => qp.enter_error(&mut self.shared),
                _ => {}
            }
        }
    }

    fn commit_effect(&mut self, effect: &Effect, placed: &[Placed], failures: &mut Vec<Failure>) {
        let Effect { slot, generation, kind } = *effect;
        if self.is_orphan(effect) {
            return self.flush_orphan(kind);
        }
        let Some(occupant) = self.slots.get_mut(slot) else { return };
        if occupant.core().is_none_or(|qp| qp.generation != generation) {
            return;
        }
        if let (Some(services), Some(qp)) = (&mut self.services, occupant.core()) {
            for number in kind.placements() {
                services.done(qp.qpn, placed.get(number).copied().unwrap_or(Placed::Failed));
            }
        }
        if matches!(occupant, Slot::Ud(_)) {
            return self.commit_datagram(effect, placed, failures);
        }
        let failed = |is_request| {
            failures.iter().any(|f| f.slot == slot && f.request.is_some() == is_request)
        };
        let placed = |placement: usize| placed.get(placement).copied().unwrap_or(Placed::Failed);
        let succeeded = |placement: usize| placed(placement) == Placed::Copied;
        let shared = &mut self.shared;
        match kind {
            // RC-47, UC-11
            EffectKind::PlacedRequest { placement, at, receive } => {
                if succeeded(placement) || failed(true) {
                    return;
                }
                if let Some(taken) = receive {
                    match occupant {
                        Slot::Rc(qp) => qp.responder.forget_receive(taken.id),
                        Slot::Uc(qp) => qp.forget_receive(taken.id),
                        _ => {}
                    }
                    if let Some(qp) = occupant.core() {
                        qp.fail_receive(shared, taken, ReceiveStatus::LocalProtection);
                    }
                }
                let receive = receive.map(|taken| taken.id);
                failures.push(Failure { slot, request: Some(at), receive });
            }
            // RC-47, RC-99
            EffectKind::ExecutedAtomic { placement, at } => {
                if failed(true) {
                    return;
                }
                match placed(placement) {
                    Placed::Executed { before } => {
                        if let Slot::Rc(qp) = occupant {
                            qp.responder.atomic_executed(at.sequence, before);
                        }
                    }
                    _ => failures.push(Failure { slot, request: Some(at), receive: None }),
                }
            }
            // RC-86
            EffectKind::PlacedResponse { placement, message } => {
                if succeeded(placement) || failed(false) {
                    return;
                }
                bump(&mut shared.counters.req_cqe_error);
                let status = SendStatus::LocalProtection;
                if let Some(qp) = occupant.core() {
                    shared.log.release(Event::SendFailed { qpn: qp.qpn, message, status });
                }
                failures.push(Failure { slot, request: None, receive: None });
            }
            EffectKind::PlacedDatagram { .. } => {}
            EffectKind::Event(Event::SendsCompleted { .. } | Event::SendFailed { .. })
                if failed(false) => {}
            EffectKind::Event(event) => release(shared, event, slot, failures),
        }
    }

    /// Whether an effect is one of a queue pair that was reset or destroyed since.
    fn is_orphan(&self, effect: &Effect) -> bool {
        let Effect { slot, generation, kind } = *effect;
        let EffectKind::Event(event) = kind else { return false };
        let lives = |qp: &QpCore| qp.generation == generation;
        event.srqn().is_some() && !self.slots.core(slot).is_some_and(lives)
    }

    /// A receive request of a shared receive queue along XRC ends, though its queue pair has not waited.
    // XRC-7
    fn flush_orphan(&mut self, kind: EffectKind) {
        if let EffectKind::Event(
            Event::ReceiveCompleted { qpn, srqn: srqn @ Some(_), id, .. }
            | Event::ReceiveFailed { qpn, srqn: srqn @ Some(_), id, .. },
        ) = kind
        {
            let status = ReceiveStatus::Flushed;
            self.shared.log.release(Event::ReceiveFailed { qpn, srqn, id, status });
        }
    }
}
