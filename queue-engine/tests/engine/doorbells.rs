//! A doorbell is a level: a slot may be overwritten, and no work is lost.

use fpga_regs::engine::doorbell::{ArmKind, QueueKind, slot};
use fpga_regs::engine::qp::QpState;
use fpga_regs::engine::wqe::SendOpcode;
use queue_engine::EngineConfig;

use crate::engine::support::bench::{Bench, PAGE, standard};
use crate::engine::support::client::{ClientCq, ClientQp};
use crate::engine::support::device::{Need, needs};
use crate::engine::support::manual::Manual;
use crate::engine::support::random::{Seeded, for_seeds};
use crate::engine::support::wqe::Wqe;

fn many_qps(bench: &mut Bench<Manual>, cq: &ClientCq, count: usize) -> Vec<ClientQp> {
    (0..count)
        .map(|_| {
            let rq = bench.create_rq(0, 0);
            let qp = bench.create_qp(4, cq, cq, rq);
            bench.climb(qp.qpn, QpState::Rts);
            qp
        })
        .collect()
}

/// Two QPs that share a slot.
fn colliding(bench: &mut Bench<Manual>, cq: &ClientCq) -> (ClientQp, ClientQp) {
    let mut qps: Vec<ClientQp> = Vec::new();
    // There are 128 slots.
    for _ in 0..129 {
        let [qp] = many_qps(bench, cq, 1).try_into().unwrap();
        match qps.iter().position(|other| other.slot() == qp.slot()) {
            Some(other) => return (qps.swap_remove(other), qp),
            None => qps.push(qp),
        }
    }
    panic!("{} QPs share no slot", qps.len());
}

#[test]
fn two_qps_behind_one_slot_overwrite_each_others_doorbell_and_lose_nothing() {
    let mut bench = Bench::new();
    let cq = bench.create_cq(8);
    let (mut first, mut second) = colliding(&mut bench, &cq);
    first.post(&Wqe::gather(SendOpcode::Send, &[]));
    second.post(&Wqe::gather(SendOpcode::Send, &[]));
    bench.settle();
    let mut sent: Vec<_> = bench.transport.sent.iter().map(|sent| sent.qpn).collect();
    sent.sort_unstable();
    let mut expected = [first.qpn, second.qpn];
    expected.sort_unstable();
    assert_eq!(sent, expected);
}

#[test]
fn a_slot_that_does_not_change_costs_no_look_at_the_rings() {
    needs!(Need::Turns);
    let mut bench = Bench::new();
    let cq = bench.create_cq(8);
    let mut qps = many_qps(&mut bench, &cq, 20);
    bench.settle();
    assert!(!bench.poll());
    let before = bench.memory.reads();
    for _ in 0..100 {
        assert!(!bench.poll());
    }
    assert_eq!(bench.memory.reads(), before);
    qps[0].post(&Wqe::gather(SendOpcode::Send, &[]));
    assert!(bench.poll());
}

#[test]
fn a_destroyed_qp_leaves_its_slot_to_those_behind_it() {
    let mut bench = Bench::new();
    let cq = bench.create_cq(8);
    let (mut first, mut second) = colliding(&mut bench, &cq);
    first.post(&Wqe::gather(SendOpcode::Send, &[]));
    let qpn = first.qpn;
    bench.destroy(fpga_regs::engine::admin::Opcode::DestroyQp, qpn);
    second.post(&Wqe::gather(SendOpcode::Send, &[]));
    bench.settle();
    let sent: Vec<_> = bench.transport.sent.iter().map(|sent| sent.qpn).collect();
    // Requests posted before the end came first.
    assert_eq!(sent, [qpn, second.qpn]);
}

#[test]
fn five_hundred_qps_lose_no_post_whatever_is_seen_of_their_doorbells() {
    needs!(Need::OtherLimits);
    for_seeds(4, |seed| {
        let mut random = Seeded::new(seed);
        let config = EngineConfig { log2_cq_entries: 14, ..standard() };
        let mut bench = Bench::with(config, Manual::default());
        let mut cq = bench.create_cq(14);
        let mut qps = many_qps(&mut bench, &cq, 500);
        let mut open = vec![0; qps.len()];
        let mut posted = 0;
        for _ in 0..8000 {
            let i = random.below(500) as usize;
            if open[i] == 16 {
                // The ring is full: all of it must have been seen by now.
                bench.settle();
                bench.complete(qps[i].qpn, 16);
                open[i] = 0;
            }
            qps[i].post(&Wqe::gather(SendOpcode::Send, &[]));
            open[i] += 1;
            posted += 1;
            if random.one_in(200) {
                bench.poll();
            }
        }
        bench.settle();
        assert_eq!(bench.transport.sent.len(), posted);
        for qp in &qps {
            let count = bench.transport.under_way(qp.qpn) as u64;
            bench.complete(qp.qpn, count);
        }
        assert_eq!(cq.poll().len(), posted);
    });
}

#[test]
fn every_kind_of_queue_has_its_own_slots() {
    let mut bench = Bench::new();
    let mut cq = bench.create_cq(4);
    let mut qp = bench.ready_qp(&cq);
    let slots = [
        slot(QueueKind::Send, qp.qpn),
        slot(QueueKind::Receive, qp.rq.rqn),
        slot(QueueKind::Completion, cq.cqn),
    ];
    assert!(slots[0] < slots[1] && slots[1] < slots[2]);
    qp.rq.post(0, &[]);
    cq.arm(ArmKind::Any);
    qp.post(&Wqe::gather(SendOpcode::Send, &[]));
    bench.settle();
    assert_eq!(bench.transport.sent.len(), 1);
    bench.complete(qp.qpn, 1);
    assert_eq!(bench.events().len(), 1);
}

#[test]
fn what_waited_for_room_longest_comes_first() {
    let mut bench = Bench::with(standard(), Manual::with_capacity(1));
    let cq = bench.create_cq(8);
    let mut qps = many_qps(&mut bench, &cq, 3);
    for qp in &mut qps {
        for _ in 0..4 {
            qp.post(&Wqe::gather(SendOpcode::Send, &[]));
        }
    }
    bench.settle();
    assert_eq!(bench.transport.sent.len(), 3);
    for round in 1..4 {
        for qp in &qps {
            bench.complete(qp.qpn, 1);
        }
        assert_eq!(bench.transport.sent.len(), 3 * (round + 1));
    }
}

#[test]
fn who_rings_for_thousands_of_queues_delays_no_other_client() {
    needs!(Need::Turns, Need::OtherLimits);
    const MANY: usize = 3000;
    let config = EngineConfig { qps: 4096, rqs: 4096, ..standard() };
    let mut bench = Bench::with(config, Manual::default());
    let cq = bench.create_cq(8);
    let mut many = many_qps(&mut bench, &cq, MANY);
    bench.become_client(PAGE + 1);
    let cq = bench.create_cq_by(PAGE + 1, 0, 8);
    let mut few = many_qps(&mut bench, &cq, 1);
    bench.settle();
    let send = Wqe::gather(SendOpcode::Send, &[]);
    for round in 0..10 {
        for qp in &mut many {
            qp.post(&send);
        }
        few[0].post(&send);
        let before = bench.transport.sent.len();
        assert!(bench.poll());
        let sent = &bench.transport.sent[before..];
        assert!(sent.iter().any(|it| it.qpn == few[0].qpn), "it waits in round {round}");
    }
    bench.settle();
    // All that was posted is sent.
    assert_eq!(bench.transport.sent.len(), 10 * (MANY + 1));
}

#[test]
fn a_client_of_thousands_of_queues_has_all_turns_where_nobody_else_has_work() {
    needs!(Need::Turns, Need::OtherLimits);
    let config = EngineConfig { qps: 4096, rqs: 4096, ..standard() };
    let mut bench = Bench::with(config, Manual::default());
    let cq = bench.create_cq(8);
    let mut many = many_qps(&mut bench, &cq, 2000);
    let send = Wqe::gather(SendOpcode::Send, &[]);
    for qp in &mut many {
        qp.post(&send);
    }
    let polls = (1..).find(|_| !bench.poll());
    // 16 turns each, and one that finds nothing.
    assert_eq!((bench.transport.sent.len(), polls), (2000, Some(2000 / 16 + 1)));
}
