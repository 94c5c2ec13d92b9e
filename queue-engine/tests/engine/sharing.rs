//! Shared receive queues: the receivers of entries, and the entries that end with each.

use fpga_regs::engine::admin::{AdminStatus, CreateRq, ModifyRq, Opcode, RqKind};
use fpga_regs::engine::cqe::{Flags, Status};
use fpga_regs::engine::event::{EventType, QpEvent};
use fpga_regs::engine::qp::QpState;
use fpga_regs::engine::window::Capabilities;
use queue_engine::{EngineConfig, ReceiveError};

use crate::engine::receiving::received;
use crate::engine::support::bench::{Bench, PAGE, PDN, standard};
use crate::engine::support::client::{ClientCq, ClientQp, ClientRq};
use crate::engine::support::device::{Device as _, Need, needs};
use crate::engine::support::manual::Manual;

/// Two QPs on one receive queue of eight entries, with a completion queue each.
struct Fixture {
    bench: Bench<Manual>,
    srq: ClientRq,
    cqs: [ClientCq; 2],
    qps: [ClientQp; 2],
}

impl Fixture {
    fn new() -> Self {
        let mut bench = Bench::new();
        let srq = bench.create_rq_of(RqKind::Shared, 3, 0);
        let cqs = [(); 2].map(|()| bench.create_cq(6));
        let qps = cqs.each_ref().map(|cq| bench.create_qp(4, cq, cq, srq.clone()));
        qps.iter().for_each(|qp| bench.climb(qp.qpn, QpState::Rts));
        Self { bench, srq, cqs, qps }
    }

    fn post(&mut self, tags: impl IntoIterator<Item = u32>) {
        tags.into_iter().for_each(|tag| self.srq.post(tag, &[]));
        self.bench.settle();
    }

    /// Takes the next receive for a QP.
    fn take(&mut self, qp: usize) -> bool {
        let taken = self.bench.device.take_receive(self.qps[qp].qpn);
        self.bench.settle();
        match taken {
            Ok(taken) => {
                assert_eq!(taken.left, None, "others may take what is left");
                true
            }
            Err(error) => {
                assert_eq!(error, ReceiveError::Empty);
                false
            }
        }
    }

    /// The completions of a QP: tags and statuses.
    fn outcome(&mut self, qp: usize) -> Vec<(u32, Status)> {
        let qpn = self.qps[qp].qpn;
        let entries = self.cqs[qp].poll();
        assert!(entries.iter().all(|it| it.qpn == qpn && it.flags.contains(Flags::RECEIVE)));
        entries.iter().map(|entry| (entry.wqe_index, entry.status)).collect()
    }

    /// The events that are there: kind, code, number.
    fn events(&mut self) -> Vec<(EventType, u8, u32)> {
        self.bench.events().iter().map(|event| (event.kind, event.code, event.number)).collect()
    }

    fn limit(&mut self, limit: u32) -> AdminStatus {
        let status =
            self.bench.status(Opcode::ModifyRq, &ModifyRq { rqn: self.srq.rqn, limit }.encode());
        self.bench.settle();
        status
    }

    fn last_wqe_reached(&self, qp: usize) -> (EventType, u8, u32) {
        (EventType::Qp, QpEvent::LastWqeReached.0, self.qps[qp].qpn)
    }
}

#[test]
fn messages_take_entries_in_order_whoever_they_are_for() {
    needs!(Capabilities::SRQ);
    let mut fixture = Fixture::new();
    fixture.post(10..14);
    assert!([0, 1, 1, 0].into_iter().all(|qp| fixture.take(qp)));
    assert!(!fixture.take(0));
    let qpns = fixture.qps.each_ref().map(|qp| qp.qpn);
    for qp in [1, 0, 0, 1] {
        fixture.bench.handle(received(qpns[qp], 0));
    }
    let success = Status::Success;
    assert_eq!(fixture.outcome(0), [(10, success), (13, success)]);
    assert_eq!(fixture.outcome(1), [(11, success), (12, success)]);
}

#[test]
fn a_qp_in_err_completes_what_it_has_taken_and_leaves_the_rest_to_others() {
    needs!(Capabilities::SRQ);
    let mut fixture = Fixture::new();
    fixture.post(0..4);
    assert!(fixture.take(0) && fixture.take(1) && fixture.take(0));
    let failed = fixture.qps[0].qpn;
    fixture.bench.go(failed, QpState::Err);
    fixture.bench.settle();
    let (flushed, success) = (Status::Flushed, Status::Success);
    assert_eq!(fixture.outcome(0), [(0, flushed), (2, flushed)]);
    assert_eq!(fixture.events(), [fixture.last_wqe_reached(0)]);
    fixture.post(4..8);
    assert_eq!(fixture.outcome(0), [], "it drains nobody else's");
    assert!(!fixture.take(0));
    assert!(fixture.take(1));
    let living = fixture.qps[1].qpn;
    for _ in 0..2 {
        fixture.bench.handle(received(living, 0));
    }
    assert_eq!(fixture.outcome(1), [(1, success), (3, success)]);
    // Once only, however often it is told to be in ERR.
    fixture.bench.go(failed, QpState::Err);
    fixture.bench.settle();
    assert_eq!(fixture.events(), []);
}

#[test]
fn a_qp_that_is_reset_or_destroyed_gives_up_what_it_has_taken_before_it_is_answered() {
    needs!(Capabilities::SRQ);
    for ends in [false, true] {
        let mut fixture = Fixture::new();
        fixture.post(0..3);
        assert!(fixture.take(0) && fixture.take(1));
        let (qpn, generation) = (fixture.qps[0].qpn, fixture.qps[0].generation);
        if ends {
            assert_eq!(fixture.bench.destroy(Opcode::DestroyQp, qpn), AdminStatus::Success);
        } else {
            fixture.bench.go(qpn, QpState::Reset);
        }
        let entry = fixture.cqs[0].poll_one();
        assert_eq!((entry.wqe_index, entry.status), (0, Status::Flushed));
        assert_eq!(entry.generation, generation, "of the QP as it was");
        assert!(fixture.take(1), "the others' entries stay");
    }
}

#[test]
fn a_limit_is_told_of_once_when_fewer_are_left() {
    needs!(Capabilities::SRQ);
    let mut fixture = Fixture::new();
    let told = (EventType::ReceiveLimit, 0, fixture.srq.rqn);
    fixture.post(0..5);
    assert_eq!(fixture.limit(3), AdminStatus::Success);
    assert!(fixture.take(0) && fixture.take(1));
    assert_eq!(fixture.events(), [], "three are left");
    assert!(fixture.take(0));
    assert_eq!(fixture.events(), [told]);
    assert!(fixture.take(0));
    assert_eq!(fixture.events(), [], "once");
    assert_eq!(fixture.limit(2), AdminStatus::Success);
    assert_eq!(fixture.events(), [told], "one is left already");
    assert_eq!(fixture.limit(1), AdminStatus::Success);
    assert_eq!(fixture.limit(0), AdminStatus::Success);
    assert!(fixture.take(1));
    assert_eq!(fixture.events(), [], "there is no limit any more");
    assert_eq!(fixture.limit(8), AdminStatus::Success);
    assert_eq!(fixture.limit(9), AdminStatus::Invalid, "more than the ring holds");
}

#[test]
fn what_was_posted_since_the_last_look_counts_for_the_limit() {
    needs!(Capabilities::SRQ);
    let mut fixture = Fixture::new();
    fixture.post(0..5);
    assert!(fixture.take(0));
    fixture.post(5..8);
    assert_eq!(fixture.limit(7), AdminStatus::Success);
    assert_eq!(fixture.events(), [], "seven are left, of which three are new");
    assert!(fixture.take(1));
    assert_eq!(fixture.events(), [(EventType::ReceiveLimit, 0, fixture.srq.rqn)]);
}

#[test]
fn a_queue_is_destroyed_when_its_last_user_is() {
    needs!(Capabilities::SRQ);
    let mut fixture = Fixture::new();
    let (rqn, qpns) = (fixture.srq.rqn, fixture.qps.each_ref().map(|qp| qp.qpn));
    for qpn in qpns {
        assert_eq!(fixture.bench.destroy(Opcode::DestroyRq, rqn), AdminStatus::Busy);
        assert_eq!(fixture.bench.destroy(Opcode::DestroyQp, qpn), AdminStatus::Success);
    }
    assert_eq!(fixture.bench.destroy(Opcode::DestroyRq, rqn), AdminStatus::Success);
    assert_eq!(fixture.limit(1), AdminStatus::NotFound);
}

#[test]
fn what_has_no_limit_and_what_is_not_offered_is_refused() {
    needs!(Need::OtherLimits, Capabilities::SRQ);
    let mut fixture = Fixture::new();
    let private = fixture.bench.create_rq(3, 0);
    let command = ModifyRq { rqn: private.rqn, limit: 1 };
    let status = fixture.bench.status(Opcode::ModifyRq, &command.encode());
    assert_eq!(status, AdminStatus::Invalid);
    let capabilities = standard().capabilities.difference(Capabilities::SRQ);
    let mut without = Bench::with(EngineConfig { capabilities, ..standard() }, Manual::default());
    let ring = without.memory.allocate(64 + 64);
    let command = |kind| CreateRq { ring, page: PAGE, pdn: PDN, kind, ..CreateRq::default() };
    for kind in [RqKind::Shared, RqKind::Xrc] {
        let status = without.status(Opcode::CreateRq, &command(kind).encode());
        assert_eq!(status, AdminStatus::Unsupported, "{kind:?}");
    }
    let status = without.status(Opcode::ModifyRq, &ModifyRq::default().encode());
    assert_eq!(status, AdminStatus::Unsupported);
}

#[test]
fn of_queue_pairs_on_one_queue_each_fails_by_the_completion_that_it_loses() {
    let mut fixture = Fixture::new();
    let small = fixture.bench.create_cq(1);
    let srq = fixture.srq.clone();
    let qps = [(); 2].map(|()| fixture.bench.create_qp(4, &small, &small, srq.clone()));
    qps.iter().for_each(|qp| fixture.bench.climb(qp.qpn, QpState::Rts));
    fixture.post(0..8);
    let mut arrives = |qp: &ClientQp| {
        fixture.bench.receive(received(qp.qpn, 0));
        let fatal: Vec<_> = fixture.bench.events().iter().map(|it| (it.code, it.number)).collect();
        let fatal = fatal.into_iter().filter(|(code, _)| *code == QpEvent::Fatal.0);
        let states = qps.each_ref().map(|qp| fixture.bench.query(qp.qpn).state);
        (fatal.map(|(_, qpn)| qpn).collect::<Vec<_>>(), states)
    };
    let (err, rts) = (QpState::Err, QpState::Rts);
    assert_eq!(arrives(&qps[0]), (vec![], [rts, rts]));
    assert_eq!(arrives(&qps[1]), (vec![], [rts, rts]));
    assert_eq!(arrives(&qps[0]), (vec![qps[0].qpn], [err, rts]));
    assert_eq!(arrives(&qps[1]), (vec![qps[1].qpn], [err, err]));
    // The receives that no QP took are there for others.
    fixture.take(0);
    fixture.bench.handle(received(fixture.qps[0].qpn, 0));
    assert_eq!(fixture.outcome(0), [(4, Status::Success)]);
}
