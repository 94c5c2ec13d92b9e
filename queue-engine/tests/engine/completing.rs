//! Completions of messages that end well.

use fpga_regs::engine::cqe::{Cqe, Flags, Opcode, Status};
use fpga_regs::engine::qp::QpState;
use fpga_regs::engine::wqe::{SendFlags, SendOpcode};

use crate::engine::support::bench::Bench;
use crate::engine::support::device::Device as _;
use crate::engine::support::random::{Seeded, for_seeds};
use crate::engine::support::wqe::Wqe;

#[test]
fn a_completion_names_the_work_and_carries_nothing_else() {
    let mut bench = Bench::new();
    let mut cq = bench.create_cq(4);
    let mut qp = bench.ready_qp(&cq);
    let region = bench.register(4096);
    let cases = [
        (SendOpcode::Send, Opcode::Send),
        (SendOpcode::SendImm, Opcode::Send),
        (SendOpcode::Write, Opcode::Write),
        (SendOpcode::WriteImm, Opcode::Write),
        (SendOpcode::Read, Opcode::Read),
    ];
    for (posted, opcode) in cases {
        let wqe = Wqe::gather(posted, &[region.sge(0, 700); 3]).immediate(9);
        let wqe_index = qp.post(&wqe);
        bench.settle();
        bench.complete(qp.qpn, 1);
        let entry = cq.poll_one();
        let expected = Cqe {
            qpn: qp.qpn,
            wqe_index,
            byte_count: 2100,
            opcode,
            status: Status::Success,
            flags: Flags::empty(),
            timestamp: entry.timestamp,
            generation: qp.generation,
            phase: entry.phase,
            ..Cqe::default()
        };
        assert_eq!(entry, expected, "{posted:?}");
        assert!((1..=bench.now()).contains(&entry.timestamp));
    }
}

#[test]
fn unsignaled_messages_complete_in_silence() {
    let mut bench = Bench::new();
    let mut cq = bench.create_cq(6);
    let mut qp = bench.ready_qp(&cq);
    let wqe = Wqe::gather(SendOpcode::Send, &[]);
    let mut signaled = Vec::new();
    for i in 0..30 {
        if i % 4 == 3 {
            signaled.push(qp.post(&wqe));
        } else {
            qp.post(&wqe.clone().unsignaled());
        }
    }
    bench.settle();
    bench.complete(qp.qpn, 30);
    let indices: Vec<_> = cq.poll().iter().map(|entry| entry.wqe_index).collect();
    assert_eq!(indices, signaled);
}

#[test]
fn completions_come_in_the_order_of_posting_however_they_are_counted() {
    for_seeds(20, |seed| {
        let mut random = Seeded::new(seed);
        let mut bench = Bench::new();
        let mut cq = bench.create_cq(8);
        let mut qp = bench.ready_qp(&cq);
        let mut expected = Vec::new();
        let mut done = Vec::new();
        for _ in 0..200 {
            while random.below(3) > 0 && bench.transport.under_way(qp.qpn) < 12 {
                let opcode =
                    random.choose(&[SendOpcode::Send, SendOpcode::Write, SendOpcode::Read]);
                let mut wqe = Wqe::gather(opcode, &[]);
                if random.one_in(2) {
                    wqe = wqe.unsignaled();
                }
                let index = qp.post(&wqe);
                bench.settle();
                if wqe.header.flags.contains(SendFlags::SIGNALED) {
                    expected.push(index);
                }
            }
            let under_way = bench.transport.under_way(qp.qpn) as u64;
            bench.complete(qp.qpn, random.below(under_way + 1));
            done.extend(cq.poll().iter().map(|entry| entry.wqe_index));
            assert!(expected.starts_with(&done));
        }
        let under_way = bench.transport.under_way(qp.qpn) as u64;
        bench.complete(qp.qpn, under_way);
        done.extend(cq.poll().iter().map(|entry| entry.wqe_index));
        assert_eq!(done, expected);
    });
}

#[test]
fn a_transport_that_counts_too_many_completes_no_more_than_there_are() {
    let mut bench = Bench::new();
    let mut cq = bench.create_cq(4);
    let mut qp = bench.ready_qp(&cq);
    qp.post(&Wqe::gather(SendOpcode::Send, &[]));
    bench.settle();
    bench.handle(queue_engine::TransportEvent::Completed { qpn: qp.qpn, count: u64::MAX });
    assert_eq!(cq.poll().len(), 1);
    bench.handle(queue_engine::TransportEvent::Completed { qpn: 1, count: 1 });
    assert!(cq.poll().is_empty());
    qp.post(&Wqe::gather(SendOpcode::Send, &[]));
    qp.post(&Wqe::gather(SendOpcode::FetchAdd, &[]));
    bench.settle();
    bench.handle(queue_engine::TransportEvent::Completed { qpn: qp.qpn, count: 2 });
    let statuses: Vec<_> = cq.poll().iter().map(|entry| entry.status).collect();
    assert_eq!(statuses, [Status::Success, Status::LocalQpOperation]);
}

#[test]
fn send_and_receive_completions_go_to_their_own_queues() {
    let mut bench = Bench::new();
    let (mut send, mut receive) = (bench.create_cq(4), bench.create_cq(4));
    let rq = bench.create_rq(2, 0);
    let mut qp = bench.create_qp(4, &send, &receive, rq);
    bench.climb(qp.qpn, QpState::Rts);
    qp.post(&Wqe::gather(SendOpcode::Send, &[]));
    qp.rq.post(77, &[]);
    bench.settle();
    bench.complete(qp.qpn, 1);
    assert_eq!(send.poll_one().flags, Flags::empty());
    assert!(receive.poll().is_empty());
    bench.device.take_receive(qp.qpn).unwrap();
    bench.handle(crate::engine::receiving::received(qp.qpn, 0));
    assert_eq!(receive.poll_one().wqe_index, 77);
    assert!(send.poll().is_empty());
}

#[test]
fn a_reset_makes_what_was_under_way_silent_and_the_next_generation_starts_over() {
    let mut bench = Bench::new();
    let mut cq = bench.create_cq(6);
    let mut qp = bench.ready_qp(&cq);
    let region = bench.register(64);
    for tag in 0..5 {
        qp.post(&Wqe::gather(SendOpcode::Send, &[region.sge(0, 8)]));
        qp.rq.post(tag, &[region.sge(0, 8)]);
    }
    bench.settle();
    bench.device.take_receive(qp.qpn).unwrap();
    qp.post_silently(&Wqe::gather(SendOpcode::Send, &[]));
    let generation = bench.go(qp.qpn, QpState::Reset);
    assert_eq!(generation, qp.generation.wrapping_add(1));
    bench.settle();
    bench.handle(queue_engine::TransportEvent::Completed { qpn: qp.qpn, count: 3 });
    bench.handle(crate::engine::receiving::received(qp.qpn, 0));
    bench.handle(queue_engine::TransportEvent::Failed { qpn: qp.qpn, status: Status::General });
    bench.handle(queue_engine::TransportEvent::Error { qpn: qp.qpn });
    assert!(cq.poll().is_empty());
    assert_eq!(bench.query(qp.qpn).state, QpState::Reset);

    qp.start_over(generation);
    bench.climb(qp.qpn, QpState::Rts);
    bench.transport.sent.clear();
    let index = qp.post(&Wqe::gather(SendOpcode::Write, &[]));
    qp.rq.post(99, &[]);
    bench.settle();
    assert_eq!((index, bench.transport.sent.len()), (0, 1));
    assert_eq!(bench.transport.sent[0].number, 0);
    bench.complete(qp.qpn, 1);
    let entry = cq.poll_one();
    assert_eq!((entry.generation, entry.wqe_index, entry.opcode), (generation, 0, Opcode::Write));
    assert_eq!(bench.device.take_receive(qp.qpn).unwrap().id, 0);
    bench.handle(crate::engine::receiving::received(qp.qpn, 0));
    assert_eq!(cq.poll_one().wqe_index, 99);
}
