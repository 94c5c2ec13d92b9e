//! Room in completion queues, of which only the logic knows when it looked: accounts of what there was, and of what may be
//! lost.

use std::collections::{BTreeSet, VecDeque};

use fpga_regs::engine::admin::{AdminStatus, Completion, ModifyQp, Opcode, ResizeCq};
use fpga_regs::engine::cqe::{Cqe, Status};
use fpga_regs::engine::doorbell::record;
use fpga_regs::engine::event::{Event, EventType, QpEvent};
use fpga_regs::engine::qp::QpState;
use queue_engine::TransportEvent;

use super::{LockStep, Qp, Step, Written, out};
use crate::port::{Command, Operation};

/// A completion queue, as the logic has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cq {
    pub(super) ring: Written,
    /// The consumer index when the logic last read the record.
    pub(super) consumer: u32,
    /// A completion of it was lost, and the driver was told.
    pub(super) has_overrun: bool,
}

impl Cq {
    pub(super) fn new(ring: Written) -> Self {
        Self { ring, consumer: 0, has_overrun: false }
    }

    pub(super) fn record(&self) -> u64 {
        self.ring.base - record::ENTRIES
    }

    pub(super) fn entries(&self) -> u32 {
        1 << self.ring.log2
    }

    /// Entries that wait to be consumed, at most.
    pub(super) fn waiting(&self) -> u32 {
        self.ring.next.wrapping_sub(self.consumer)
    }
}

/// A completion of the model's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) entry: Cqe,
    /// Its queue pair was not in ERR: if it is lost, the driver hears of that.
    pub(super) works: bool,
}

/// Queue pairs that lost a completion.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// The driver was told, since RESET.
    told: BTreeSet<u32>,
    /// It has to be.
    owed: BTreeSet<u32>,
}

impl Losses {
    /// A queue pair lost one; the driver has to hear of it, unless that was in ERR, or it has heard already.
    pub(super) fn owe(&mut self, qpn: u32, has_failed: bool) {
        if !has_failed && !self.told.contains(&qpn) {
            self.owed.insert(qpn);
        }
    }

    pub(super) fn owes(&self, qpn: u32) -> bool {
        self.owed.contains(&qpn)
    }

    /// The driver's own command took the queue pair to ERR first.
    pub(super) fn settle(&mut self, qpn: u32) {
        self.owed.remove(&qpn);
    }

    /// The driver is told: whether for the first time.
    fn tell(&mut self, qpn: u32) -> bool {
        self.owed.remove(&qpn);
        self.told.insert(qpn)
    }
}

impl LockStep {
    /// A queue pair of which the driver should have heard that it lost a completion.
    pub(super) fn untold(&self) -> Option<u32> {
        let lost = |left: &VecDeque<Wanted>| left.iter().any(|it| it.works);
        let mut all = self.completions.iter().filter(|(_, left)| lost(left));
        let untold = all.find(|((_, qpn, _), _)| !self.losses.told.contains(qpn));
        untold.map(|((_, qpn, _), _)| *qpn).or(self.losses.owed.first().copied())
    }

    /// A queue pair is destroyed, or in RESET: each message that ended well has its completion, unless that was lost, as the
    /// driver was told.
    pub(super) fn ended(&mut self, qpn: u32) -> Step {
        let is_told = self.losses.told.remove(&qpn);
        self.losses.settle(qpn);
        for ((cqn, _, _), left) in self.completions.iter_mut().filter(|((_, of, _), _)| *of == qpn)
        {
            let has_overrun = self.cqs.get(cqn).is_some_and(|cq| cq.has_overrun);
            for it in left.iter_mut().filter(|it| it.entry.status == Status::Success) {
                if !has_overrun || (it.works && !is_told) {
                    return out(format!("{it:?} is missing, and was not told to be lost"));
                }
                it.works = false;
            }
        }
        Ok(())
    }

    /// The completion queue that has an entry there.
    pub(super) fn cq_at(&self, address: u64) -> Option<u32> {
        self.cqs.iter().find(|(_, cq)| cq.ring.has(address)).map(|(cqn, _)| *cqn)
    }

    /// Completions of receives for which room is kept, at least.
    pub(super) fn kept(&self, cqn: u32) -> u32 {
        self.qps.values().filter(|qp| qp.receive_cqn == cqn).map(|qp| qp.kept).sum()
    }

    /// Whether the logic may have found no room in a completion queue: it may know of all that the model does, and have
    /// taken each receive that is asked for.
    pub(super) fn may_be_full(&self, cqn: u32) -> bool {
        let Some(cq) = self.cqs.get(&cqn) else { return false };
        let behind = self.completions.iter().filter(|((of, ..), _)| *of == cqn);
        let known: usize = behind.map(|(_, left)| left.len()).sum();
        let most = u64::from(cq.waiting()) + u64::from(self.kept(cqn));
        let most = most + known as u64 + self.claims.len() as u64;
        cq.has_overrun || most >= u64::from(cq.entries())
    }

    /// Whether a command fails a queue pair of which a completion was lost: neither the model nor the driver asked for it.
    pub(super) fn ends_for_loss(&self, command: &Command) -> bool {
        let is_end = command.operation == Operation::Modify && command.to_state() == QpState::Err;
        let is_asked = self.next_command().is_some_and(|(header, [first, ..], _)| {
            header.opcode == Opcode::ModifyQp && ModifyQp::decode(&[first]).qpn == command.qpn
        });
        let may_lose = |qp: &Qp| self.may_be_full(qp.send_cqn) || self.may_be_full(qp.receive_cqn);
        is_end
            && !is_asked
            && !self.told.expects(command)
            && self.qps.get(&command.qpn).is_some_and(may_lose)
    }

    /// A queue pair fails because a completion was lost. The event that says so is on its way to memory, if it is not there.
    pub(super) fn lose(&mut self, qpn: u32) {
        self.losses.owe(qpn, false);
        self.told.failed(qpn);
        self.engine.handle(self.now, TransportEvent::Error { qpn }, &mut self.told);
        self.settle();
    }

    /// Has the model tell of a loss that the logic tells of: whether that may be, and is the first of its object.
    pub(super) fn is_of_loss(&mut self, event: &Event) -> bool {
        let number = event.number;
        let (is_first, code) = match event.kind {
            EventType::CqError => (self.overruns(number), 0),
            EventType::Qp => (self.has_lost(number), QpEvent::Fatal.0),
            _ => return false,
        };
        if is_first {
            let told = Event { kind: event.kind, code, number, ..Event::default() };
            self.engine.raise(self.now, told);
            self.settle();
        }
        is_first
    }

    /// A completion queue has lost a completion, the first one.
    fn overruns(&mut self, cqn: u32) -> bool {
        let may_be = self.may_be_full(cqn);
        let cq = self.cqs.get_mut(&cqn).filter(|_| may_be);
        cq.is_some_and(|cq| !std::mem::replace(&mut cq.has_overrun, true))
    }

    /// A queue pair of such a completion queue has lost one, and the driver has not heard that.
    fn has_lost(&mut self, qpn: u32) -> bool {
        let has_overrun = |cqn: &u32| self.cqs.get(cqn).is_some_and(|cq| cq.has_overrun);
        let Some(qp) = self.qps.get(&qpn) else { return false };
        (has_overrun(&qp.send_cqn) || has_overrun(&qp.receive_cqn)) && self.losses.tell(qpn)
    }

    /// The next command, if it moves a completion queue: to where.
    pub(super) fn moving_to(&self) -> Option<(u32, Written)> {
        let (header, [first, ..], _) = self.next_command().filter(|_| self.answers.is_empty())?;
        let ResizeCq { cqn, ring, log2_entries } = ResizeCq::decode(&[first]);
        (header.opcode == Opcode::ResizeCq).then(|| (cqn, Written::behind(ring, log2_entries)))
    }

    /// Lets the model move a completion queue with as many entries as the logic knows of, or keeps room for. The index behind
    /// the last one in the old ring is the logic's.
    pub(super) fn move_cq(&mut self, cqn: u32, ring: Written) {
        let needed = self.cqs.get(&cqn).map_or(0, |cq| cq.waiting().max(self.kept(cqn)));
        self.world.outstanding.set(needed);
        self.engine.execute(self.now, &self.world, &mut self.told);
        self.world.outstanding.set(0);
        self.collect();
        let Some(answer) = self.answers.back_mut() else { return };
        let moved = Completion::decode(&[*answer]);
        let Some(cq) = self.cqs.get_mut(&cqn).filter(|_| moved.status == AdminStatus::Success)
        else {
            return;
        };
        let (end, before) = (cq.ring.next, cq.record());
        [*answer] = Completion { result: end, ..moved }.encode();
        *cq = Cq { ring, consumer: 0, ..*cq };
        self.world.move_cq(before, cq.record(), moved.result.wrapping_sub(end));
    }
}
