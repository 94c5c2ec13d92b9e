//! Clients that play by the rules, at random, against a model of the completions that are due.

use std::collections::{BTreeMap, VecDeque};

use fpga_regs::engine::admin::{AdminStatus, Opcode as Admin};
use fpga_regs::engine::cqe::{Flags, Status};
use fpga_regs::engine::doorbell::ArmKind;
use fpga_regs::engine::event::EventType;
use fpga_regs::engine::qp::QpState;
use fpga_regs::engine::wqe::{SendOpcode, Sge};
use queue_engine::{ReceiveError, TransportEvent};

use crate::Dut;
use crate::engine::receiving::received;
use crate::engine::support::bench::{Bench, Region, standard};
use crate::engine::support::client::{ClientCq, ClientQp};
use crate::engine::support::device::Device as _;
use crate::engine::support::manual::Manual;
use crate::engine::support::random::{Seeded, for_seeds};
use crate::engine::support::wqe::Wqe;

const QPS: usize = 10;
/// Messages a QP may have under way.
const CAPACITY: usize = 6;
const LOG2_SQ: u8 = 5;
const LOG2_RQ: u8 = 4;

/// Work that was posted.
#[derive(Clone, Copy, Debug)]
struct Posted {
    /// WQE index, or tag.
    name: u32,
    blocks: u32,
    signaled: bool,
    bad: bool,
}

/// A QP, and the model's state of it.
struct ModelQp {
    client: ClientQp,
    cq: usize,
    failed: bool,
    /// Something was posted and not rung for.
    silent: bool,
    /// Sends posted and not complete.
    sends: VecDeque<Posted>,
    /// Receives posted and not taken.
    receives: VecDeque<Posted>,
    /// Receives taken and not complete.
    taken: VecDeque<Posted>,
    /// Completions that must come and have not yet, for sends and for receives.
    expected: [VecDeque<(u32, Status)>; 2],
}

impl ModelQp {
    fn expect(&mut self, receive: bool, name: u32, status: Status) {
        self.expected[usize::from(receive)].push_back((name, status));
    }

    /// The QP is in ERR: everything it has completes.
    fn fail(&mut self, cause: Option<Status>) {
        self.failed = true;
        let mut status = cause.unwrap_or(Status::Flushed);
        for posted in std::mem::take(&mut self.sends) {
            self.expect(false, posted.name, status);
            status = Status::Flushed;
        }
        for posted in std::mem::take(&mut self.taken) {
            let status = if posted.bad { Status::LocalProtection } else { Status::Flushed };
            self.expect(true, posted.name, status);
        }
        for posted in std::mem::take(&mut self.receives) {
            self.expect(true, posted.name, Status::Flushed);
        }
    }

    /// A request that has become the oldest of its kind and cannot be executed fails the QP.
    fn come_to_rest(&mut self) {
        let is_bad = |queue: &VecDeque<Posted>| queue.front().is_some_and(|posted| posted.bad);
        if self.failed || is_bad(&self.taken) {
            self.fail(None);
        } else if is_bad(&self.sends) {
            self.fail(Some(Status::LocalProtection));
        }
    }

    /// Rings for posted requests; a doorbell that rings for nothing could hide another's.
    fn ring(&mut self) {
        if std::mem::take(&mut self.silent) {
            self.client.ring();
        }
    }

    /// Blocks of the send ring that are in use.
    fn blocks(&self) -> u32 {
        self.sends.iter().map(|posted| posted.blocks).sum()
    }
}

struct Storm {
    random: Seeded,
    bench: Bench<Manual>,
    cqs: Vec<ClientCq>,
    /// The arm sequence a CQ waits to hear of.
    armed: Vec<Option<u32>>,
    qps: Vec<ModelQp>,
    region: Region,
    next_tag: u32,
    completions: usize,
}

impl Storm {
    fn new(seed: u64) -> Self {
        let mut bench = Bench::with(standard(), Manual::with_capacity(CAPACITY));
        let cqs = (0..3).map(|_| bench.create_cq(9)).collect();
        let region = bench.register(4096);
        let mut storm = Self {
            random: Seeded::new(seed),
            bench,
            cqs,
            armed: vec![None; 3],
            qps: Vec::new(),
            region,
            next_tag: 0,
            completions: 0,
        };
        for cq in 0..QPS {
            let qp = storm.make_qp(cq % 3);
            storm.qps.push(qp);
        }
        storm
    }

    fn make_qp(&mut self, cq: usize) -> ModelQp {
        let rq = self.bench.create_rq(LOG2_RQ, 0);
        let client = self.bench.create_qp(LOG2_SQ, &self.cqs[cq], &self.cqs[cq], rq);
        self.bench.climb(client.qpn, QpState::Rts);
        ModelQp {
            client,
            cq,
            failed: false,
            silent: false,
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            taken: VecDeque::new(),
            expected: Default::default(),
        }
    }

    fn bad_sge(&self) -> Sge {
        Sge { length: 1, lkey: self.region.key ^ 1, ..Sge::default() }
    }

    fn post_send(&mut self, i: usize) {
        let random = &mut self.random;
        let bad = random.one_in(60);
        let signaled = random.one_in(2);
        let opcode = random.choose(&[SendOpcode::Send, SendOpcode::Write, SendOpcode::Read]);
        let mut sges = vec![self.region.sge(random.below(4000), 9); random.below(16) as usize];
        if bad {
            sges.push(self.bad_sge());
        }
        let mut wqe = Wqe::gather(opcode, &sges);
        if !signaled {
            wqe = wqe.unsignaled();
        }
        let blocks = wqe.encode().len() as u32;
        let qp = &mut self.qps[i];
        if qp.blocks() + blocks > 1 << LOG2_SQ {
            return;
        }
        let name = qp.client.post_silently(&wqe);
        qp.sends.push_back(Posted { name, blocks, signaled, bad });
        qp.silent = true;
        // Often several are posted before the doorbell rings.
        if self.random.one_in(2) {
            qp.ring();
        }
    }

    fn post_receive(&mut self, i: usize) {
        let bad = self.random.one_in(60);
        let qp = &mut self.qps[i];
        if qp.receives.len() + qp.taken.len() >= 1 << LOG2_RQ {
            return;
        }
        self.next_tag += 1;
        let count = if bad { 255 } else { 1 };
        qp.client.rq.post_as(self.next_tag, &[self.region.sge(0, 64)], count);
        qp.receives.push_back(Posted { name: self.next_tag, blocks: 1, signaled: true, bad });
    }

    /// Everything rings, the engine comes to rest, and the model gives the completions that must be there.
    fn rest(&mut self) {
        for qp in &mut self.qps {
            qp.ring();
        }
        self.bench.settle();
        for qp in &mut self.qps {
            qp.come_to_rest();
        }
    }

    fn transport_completes(&mut self, i: usize) {
        let under_way = self.bench.transport.under_way(self.qps[i].client.qpn) as u64;
        let qp = &mut self.qps[i];
        if qp.failed || under_way == 0 {
            return;
        }
        let count = 1 + self.random.below(under_way);
        for _ in 0..count {
            let posted = qp.sends.pop_front().unwrap();
            assert!(!posted.bad);
            if posted.signaled {
                qp.expect(false, posted.name, Status::Success);
            }
        }
        let event = self.bench.transport.completed(qp.client.qpn, count);
        self.bench.handle(event);
    }

    fn transport_fails(&mut self, i: usize) {
        let qp = &mut self.qps[i];
        let qpn = qp.client.qpn;
        if qp.failed {
            return;
        }
        let status = self.random.choose(&[Status::RetryExceeded, Status::RemoteAccess]);
        let event = if self.bench.transport.under_way(qpn) > 0 && self.random.one_in(2) {
            qp.fail(Some(status));
            self.bench.transport.failed(qpn, status)
        } else {
            qp.fail(None);
            self.bench.transport.enter_error(qpn);
            TransportEvent::Error { qpn }
        };
        self.bench.handle(event);
    }

    /// A message arrives: its beginning, or the end of one that began before.
    fn message_arrives(&mut self, i: usize) {
        let qp = &mut self.qps[i];
        let qpn = qp.client.qpn;
        if qp.taken.len() < Dut::CLAIMS && self.random.one_in(2) {
            let taken = self.bench.device.take_receive(qpn);
            let next = if qp.failed { None } else { qp.receives.pop_front() };
            let outcome = match next {
                None => Err(ReceiveError::Empty),
                Some(posted) if posted.bad => Err(ReceiveError::Invalid),
                Some(_) => Ok(64),
            };
            assert_eq!(taken.map(|taken| taken.capacity), outcome);
            qp.taken.extend(next);
            if outcome == Err(ReceiveError::Invalid) {
                self.bench.refuse_receive(qpn);
            }
        } else if let Some(posted) = qp.taken.pop_front() {
            qp.expect(true, posted.name, Status::Success);
            self.bench.handle(received(qpn, 5));
        }
    }

    fn driver_acts(&mut self, i: usize) {
        let qpn = self.qps[i].client.qpn;
        match self.random.below(3) {
            0 => {
                self.bench.go(qpn, QpState::Err);
                self.qps[i].fail(None);
            }
            1 => {
                let generation = self.bench.go(qpn, QpState::Reset);
                let qp = &mut self.qps[i];
                qp.client.start_over(generation);
                qp.silent = false;
                (qp.sends, qp.receives, qp.taken) = Default::default();
                qp.failed = false;
                self.bench.climb(qpn, QpState::Rts);
            }
            _ => {
                self.collect();
                assert_eq!(self.bench.destroy(Admin::DestroyQp, qpn), AdminStatus::Success);
                let cq = self.qps[i].cq;
                let new = self.make_qp(cq);
                let old = std::mem::replace(&mut self.qps[i], new);
                assert!(old.expected.iter().all(VecDeque::is_empty), "{:?}", old.expected);
                assert_eq!(
                    self.bench.destroy(Admin::DestroyRq, old.client.rq.rqn),
                    AdminStatus::Success
                );
            }
        }
    }

    /// Events and completions are exactly those the model expects.
    fn collect(&mut self) {
        self.rest();
        for event in self.bench.events() {
            assert_eq!(event.kind, EventType::Completion);
            let cq = self.cqs.iter().position(|cq| cq.cqn == event.number).unwrap();
            let sequence = self.armed[cq].take().map(u64::from);
            assert_eq!(sequence, Some(event.data), "one event for one arming");
            assert!(self.cqs[cq].peek().is_some(), "an event follows its entry");
        }
        let owners: BTreeMap<u32, usize> =
            (0..).zip(&self.qps).map(|(i, qp)| (qp.client.qpn, i)).collect();
        for cq in 0..self.cqs.len() {
            let waiting = self.armed[cq].is_some();
            let entries = self.cqs[cq].poll();
            assert!(!waiting || entries.is_empty(), "an armed queue got entries without an event");
            self.completions += entries.len();
            for entry in entries {
                let qp = &mut self.qps[owners[&entry.qpn]];
                let receive = entry.flags.contains(Flags::RECEIVE);
                let expected = qp.expected[usize::from(receive)].pop_front();
                assert_eq!(Some((entry.wqe_index, entry.status)), expected, "{entry:?}");
            }
        }
        for qp in &self.qps {
            assert!(qp.expected.iter().all(VecDeque::is_empty), "missing: {:?}", qp.expected);
        }
        for cq in 0..self.cqs.len() {
            if self.armed[cq].is_none() && self.random.one_in(2) {
                self.armed[cq] = Some(self.cqs[cq].arm(ArmKind::Any));
            }
        }
    }

    fn step(&mut self) {
        let i = self.random.below(QPS as u64) as usize;
        match self.random.below(100) {
            0..=44 => self.post_send(i),
            45..=59 => self.post_receive(i),
            60..=69 => drop(self.bench.poll()),
            action => {
                self.rest();
                match action {
                    70..=84 => self.transport_completes(i),
                    85..=95 => self.message_arrives(i),
                    96 => self.transport_fails(i),
                    97 => self.driver_acts(i),
                    _ => self.collect(),
                }
            }
        }
    }
}

#[test]
fn every_piece_of_work_completes_once_in_order_and_as_it_must() {
    for_seeds(30, |seed| {
        let mut storm = Storm::new(seed);
        for _ in 0..3000 {
            storm.step();
        }
        storm.collect();
        assert!(storm.completions > 300, "{} completions", storm.completions);
    });
}
