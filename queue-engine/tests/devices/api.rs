//! The answers of this crate's engine to the software around it, which no register and no port tells.

use fpga_regs::engine::admin::{AdminStatus, CreateQp, Opcode};
use fpga_regs::engine::cqe::Status;
use fpga_regs::engine::key::Access;
use fpga_regs::engine::qp::{AttributeMask, Attributes, QpState, QpType};
use fpga_regs::engine::window::{self, Capabilities};
use fpga_regs::engine::wqe::SendOpcode;
use queue_engine::{Engine, EngineConfig, TRANSPORT_MESSAGE_BYTES, TransportEvent};

use super::device::Bus;
use crate::engine::support::bench::{Bench, PAGE, PDN, sound_attributes, standard};
use crate::engine::support::manual::Manual;
use crate::engine::support::memory::TestPage;
use crate::engine::support::random::Seeded;
use crate::engine::support::wqe::Wqe;

#[test]
fn an_engine_says_whether_it_has_qps() {
    let mut bench = Bench::new();
    let cq = bench.create_cq(4);
    assert!(!bench.device.engine.has_qps());
    let qp = bench.ready_qp(&cq);
    assert!(bench.device.engine.has_qps());
    assert_eq!(Engine::<Bus, TestPage, Seeded>::window_of(qp.qpn), standard().window);
    assert_eq!(bench.destroy(Opcode::DestroyQp, qp.qpn), AdminStatus::Success);
    assert!(!bench.device.engine.has_qps());
    assert_eq!(bench.transport.destroyed, [qp.qpn]);
    bench.transport.admin_refusal = Some(AdminStatus::NoResources);
    let command = CreateQp {
        sq_ring: bench.memory.allocate(128),
        page: PAGE,
        kind: QpType::Rc,
        send_cqn: cq.cqn,
        receive_cqn: cq.cqn,
        rqn: qp.rq.rqn,
        ..CreateQp::default()
    };
    assert_eq!(bench.status(Opcode::CreateQp, &command.encode()), AdminStatus::NoResources);
    assert!(!bench.device.engine.has_qps());
    bench.transport.admin_refusal = None;
    bench.ready_qp(&cq);
    bench.write(window::CONTROL, window::CONTROL_RESET);
    assert!(!bench.device.engine.has_qps(), "a reset takes all of them");
}

#[test]
fn what_is_withheld_is_offered_no_more_and_all_else_is() {
    let mut bench = Bench::new();
    bench.device.engine.withhold(Capabilities::UD);
    let offers = Capabilities::from_bits_retain(bench.read(window::CAPABILITIES));
    assert_eq!(offers, standard().capabilities - Capabilities::UD);
    let command = CreateQp { page: PAGE, kind: QpType::Ud, ..CreateQp::default() };
    assert_eq!(bench.status(Opcode::CreateQp, &command.encode()), AdminStatus::Unsupported);
}

#[test]
fn the_oldest_message_is_the_oldest_that_is_not_complete() {
    let mut bench = Bench::new();
    let cq = bench.create_cq(6);
    let mut qp = bench.ready_qp(&cq);
    let oldest = |bench: &Bench<Manual>, qpn| bench.device.engine.oldest_message(qpn);
    assert_eq!(oldest(&bench, qp.qpn), None);
    for _ in 0..4 {
        qp.post(&Wqe::gather(SendOpcode::Write, &[]));
    }
    qp.post(&Wqe::gather(SendOpcode::FetchAdd, &[]));
    bench.settle();
    assert_eq!(oldest(&bench, qp.qpn), Some(0));
    bench.complete(qp.qpn, 2);
    assert_eq!(oldest(&bench, qp.qpn), Some(2));
    bench.complete(qp.qpn, 2);
    assert_eq!(oldest(&bench, qp.qpn), None, "the last one was never submitted");
}

#[test]
fn receives_are_heeded_while_a_qp_flushes_them_and_only_then() {
    let mut bench = Bench::new();
    let cq = bench.create_cq(6);
    let mut qps = [0, 1].map(|_| {
        let rq = bench.create_rq(3, 0);
        let qp = bench.create_qp(4, &cq, &cq, rq);
        bench.climb(qp.qpn, QpState::Rts);
        qp
    });
    assert!(!bench.device.engine.heeds_receives());
    for qp in &qps {
        bench.go(qp.qpn, QpState::Err);
        bench.settle();
        assert!(bench.device.engine.heeds_receives());
    }
    bench.go(qps[0].qpn, QpState::Reset);
    bench.settle();
    assert!(bench.device.engine.heeds_receives(), "the other one still flushes");
    assert_eq!(bench.destroy(Opcode::DestroyQp, qps[1].qpn), AdminStatus::Success);
    assert!(!bench.device.engine.heeds_receives());
    bench.climb(qps[0].qpn, QpState::Rts);
    qps[0].post(&Wqe::gather(SendOpcode::Send, &[]));
    bench.settle();
    let event = bench.transport.failed(qps[0].qpn, Status::RetryExceeded);
    bench.handle(event);
    assert!(bench.device.engine.heeds_receives(), "a failure below leads to ERR too");
}

/// An engine that follows another one flushes where that did: a report may have come before, or comes behind.
#[test]
fn a_queue_pair_whose_turn_is_kept_hears_reports_and_flushes_later() {
    let mut bench = Bench::new();
    let mut cq = bench.create_cq(6);
    let [mut kept, mut other] = [0, 1].map(|_| bench.ready_qp(&cq));
    let wqe = Wqe::gather(SendOpcode::Write, &[]);
    let indices = [0, 1, 2].map(|_| kept.post(&wqe));
    bench.settle();
    bench.go(kept.qpn, QpState::Err);
    other.post(&wqe);
    let (qpn, now) = (kept.qpn, bench.device.now);
    while bench.device.engine.poll_of(now, |it| it != qpn, &mut bench.transport) {}
    assert_eq!(bench.transport.under_way(other.qpn), 1, "others have their turns");
    assert!(cq.poll().is_empty());
    bench.report(TransportEvent::Completed { qpn, count: 1 });
    bench.settle();
    bench.report(TransportEvent::Completed { qpn, count: 1 });
    let told = cq.poll().into_iter().map(|entry| (entry.wqe_index, entry.status));
    let statuses = [Status::Success, Status::Flushed, Status::Flushed];
    assert!(told.eq(indices.into_iter().zip(statuses)));
}

/// Queue pairs whose peers do not acknowledge keep an engine from nothing but their own client's share.
#[test]
fn what_a_client_has_under_way_has_an_end_and_every_queue_pair_goes_on() {
    const QPS: usize = 40;
    const MESSAGES: usize = 500;
    const SHARE: usize = 64 << 10;
    let config = EngineConfig { under_way_bytes: SHARE, ..standard() };
    let mut bench = Bench::with(config, Manual::default());
    let mut cq = bench.create_cq(12);
    let region = bench.register(64);
    let mut qps: Vec<_> = (0..QPS)
        .map(|_| {
            let rq = bench.create_rq(0, 0);
            bench.create_qp(10, &cq, &cq, rq)
        })
        .collect();
    for qp in &mut qps {
        bench.climb(qp.qpn, QpState::Rts);
        let wqe = Wqe::gather(SendOpcode::Write, &[region.sge(0, 1)]).unsignaled();
        for _ in 0..MESSAGES {
            qp.post(&wqe);
        }
    }
    bench.settle();
    let under_way = |bench: &Bench<Manual>| -> Vec<usize> {
        qps.iter().map(|qp| bench.transport.under_way(qp.qpn)).collect()
    };
    let all: usize = under_way(&bench).iter().sum();
    // A message that takes from the share takes at least the transport's memory of it.
    let most = SHARE / TRANSPORT_MESSAGE_BYTES;
    assert!(all <= QPS * 32 + most, "{all} messages are under way");
    assert!(all > QPS * 32 + most / 4, "{all} messages are under way");
    let used = bench.device.engine.under_way_bytes(PAGE);
    assert!((SHARE / 2..=SHARE).contains(&used), "{used}");

    // A QP with much room gives it back as its messages end, and so does the transport.
    let widest = qps.iter().map(|qp| qp.qpn).max_by_key(|qpn| bench.transport.under_way(*qpn));
    let widest = widest.unwrap();
    assert!(bench.transport.narrowed.is_empty());
    bench.complete(widest, bench.transport.under_way(widest) as u64);
    assert_eq!(bench.transport.narrowed, [widest]);

    // Each goes on to its last message, beside the others.
    let (last, others) = qps.split_last().unwrap();
    let mut completed = 0;
    while completed < MESSAGES {
        let count = bench.transport.under_way(last.qpn);
        assert!(count > 0, "stuck behind {completed}");
        bench.complete(last.qpn, count as u64);
        bench.settle();
        completed += count;
    }
    // The room that others gave back is there for QPs with more messages.
    for qp in others {
        bench.go(qp.qpn, QpState::Reset);
    }
    let mut last = qps.pop().unwrap();
    let wqe = Wqe::gather(SendOpcode::Write, &[region.sge(0, 1)]).unsignaled();
    for _ in 0..MESSAGES {
        last.post(&wqe);
    }
    bench.settle();
    assert_eq!(bench.transport.under_way(last.qpn), MESSAGES);
    assert!(cq.poll().is_empty());
    assert_ne!(bench.device.engine.under_way_bytes(PAGE), 0);
    bench.go(last.qpn, QpState::Err);
    bench.settle();
    assert_eq!(
        bench.device.engine.under_way_bytes(PAGE),
        0,
        "nothing is kept for who only flushes"
    );
}

#[test]
fn pages_for_hardware_that_sees_no_key_are_those_that_peers_may_reach() {
    const PAGE: u64 = 4096;
    // The second page, of which no other region has a part.
    let inside = |at: u64| (at + PAGE) & !(PAGE - 1);
    let mut bench = Bench::new();
    let cq = bench.create_cq(4);
    let qpn = bench.ready_qp(&cq).qpn;
    let set_rights = |bench: &mut Bench<Manual>, access: Access| {
        let mask = AttributeMask::ACCESS;
        bench.modify(qpn, &Attributes { mask, access: access.bits(), ..sound_attributes() });
    };
    let own = Access::LOCAL_WRITE;
    let mut register = |access, pdn| bench.register_with(3 * PAGE, access, pdn);
    let open = register(own | Access::REMOTE_READ, PDN);
    let shut = register(own, PDN);
    let foreign = register(own | Access::REMOTE_READ, PDN + 1);
    let remote = |bench: &Bench<Manual>, va| bench.device.engine.remote_page(qpn, va);
    set_rights(&mut bench, Access::REMOTE_WRITE);
    assert_eq!(remote(&bench, inside(open.va)), None, "the QP does not");
    set_rights(&mut bench, Access::REMOTE_READ);
    assert_eq!(remote(&bench, inside(open.va)), Some(inside(open.iova)));
    for va in [shut.va, foreign.va, open.va + 64 * PAGE] {
        assert_eq!(remote(&bench, inside(va)), None);
    }
    for state in [QpState::Rts, QpState::Sqd, QpState::Rts] {
        bench.go(qpn, state);
        assert_eq!(remote(&bench, inside(open.va)), Some(inside(open.iova)), "{state:?}");
    }
    bench.go(qpn, QpState::Err);
    assert_eq!(remote(&bench, inside(open.va)), None);
}

/// For hardware that sees no key, and takes a peer's word for an address.
#[test]
fn local_pages_are_those_of_what_is_under_way() {
    const PAGE: u64 = 4096;
    let mut bench = Bench::new();
    let cq = bench.create_cq(8);
    let mut qp = bench.ready_qp(&cq);
    let region = bench.register(1 << 16);
    let other = bench.register(3 * PAGE);
    let qpn = qp.qpn;
    // A part of the region that begins at its second page and reaches into its fourth.
    let (first, iova) = (PAGE - region.va % PAGE, region.iova);
    let page = |at: u64| (iova + first + at * PAGE) & !(PAGE - 1);
    let local = |bench: &Bench<Manual>| {
        let is_local = |at| bench.device.engine.is_local_page(qpn, page(at));
        [0, 1, 2, 3].map(is_local)
    };
    assert_eq!(local(&bench), [false; 4]);
    let sge = region.sge(first, 2 * PAGE as u32 + 1);
    qp.post(&Wqe::gather(SendOpcode::Send, &[sge]));
    bench.settle();
    assert_eq!(local(&bench), [true, true, true, false]);
    let others = (other.iova + PAGE) & !(PAGE - 1);
    assert!(!bench.device.engine.is_local_page(qpn, others), "nobody has named it");
    bench.go(qpn, QpState::Sqd);
    assert_eq!(local(&bench), [true, true, true, false], "what was begun goes on");
    bench.complete(qpn, 1);
    assert_eq!(local(&bench), [false; 4]);
}
