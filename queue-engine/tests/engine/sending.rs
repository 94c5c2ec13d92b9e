//! From a posted send WQE to a message at the transport.

use fpga_regs::Block;
use fpga_regs::engine::admin::{AdminStatus, Destroy, Header, ModifyQp, Opcode};
use fpga_regs::engine::cqe::Status;
use fpga_regs::engine::qp::QpState;
use fpga_regs::engine::window::Capabilities;
use fpga_regs::engine::wqe::{AtomicOperation, MAX_INLINE, SendFlags, SendOpcode, Sge};
use queue_engine::{EngineConfig, Payload, Piece, WqeOperation};

use crate::engine::support::bench::{Bench, Region, standard, step_to};
use crate::engine::support::client::{ClientCq, ClientQp};
use crate::engine::support::device::{Device as _, Need, needs};
use crate::engine::support::manual::{Manual, Sent};
use crate::engine::support::random::{Seeded, for_seeds};
use crate::engine::support::wqe::Wqe;

struct Fixture {
    bench: Bench<Manual>,
    cq: ClientCq,
    qp: ClientQp,
    region: Region,
}

impl Fixture {
    fn new() -> Self {
        Self::over(Manual::default())
    }

    fn over(transport: Manual) -> Self {
        let mut bench = Bench::with(standard(), transport);
        let cq = bench.create_cq(8);
        let qp = bench.ready_qp(&cq);
        let region = bench.register(1 << 16);
        Self { bench, cq, qp, region }
    }

    /// Posts, and answers with the one message that reached the transport.
    fn send(&mut self, wqe: &Wqe) -> Sent {
        self.qp.post(wqe);
        self.bench.settle();
        let mut sent = std::mem::take(&mut self.bench.transport.sent);
        assert_eq!(sent.len(), 1, "{sent:?}");
        sent.remove(0)
    }

    /// Where the bytes of a message lie.
    fn pieces(&self, sent: &Sent) -> Vec<Piece> {
        let (payload, mut pieces) = (Payload::Message { number: sent.number }, Vec::new());
        self.bench.device.resolve(sent.qpn, payload, 0, sent.length, &mut pieces).unwrap();
        pieces
    }

    fn complete_all(&mut self) {
        let count = self.bench.transport.under_way(self.qp.qpn) as u64;
        self.bench.complete(self.qp.qpn, count);
        self.cq.poll();
    }
}

#[test]
fn each_operation_reaches_the_transport_with_its_fields() {
    let mut fixture = Fixture::new();
    let sge = fixture.region.sge(16, 100);
    let (remote_address, rkey) = (0xabcd_0000_1234, 0x55_66);
    let immediate = Some(0x0102_0304);
    let cases = [
        (SendOpcode::Send, WqeOperation::Send { immediate: None }),
        (SendOpcode::SendImm, WqeOperation::Send { immediate }),
        (SendOpcode::Write, WqeOperation::Write { remote_address, rkey, immediate: None }),
        (SendOpcode::WriteImm, WqeOperation::Write { remote_address, rkey, immediate }),
        (SendOpcode::Read, WqeOperation::Read { remote_address, rkey }),
    ];
    for (number, (opcode, operation)) in (0..).zip(cases) {
        let wqe = Wqe::gather(opcode, &[sge]).remote(remote_address, rkey).immediate(0x0102_0304);
        let expected = Sent {
            qpn: fixture.qp.qpn,
            number,
            operation,
            length: 100,
            solicited: false,
            fence: false,
        };
        let sent = fixture.send(&wqe);
        assert_eq!(sent, expected, "{opcode:?}");
        let place = Piece { iova: fixture.region.iova + 16, length: 100 };
        assert_eq!(fixture.pieces(&sent), [place], "{opcode:?}");
    }
}

#[test]
fn an_atomic_reaches_the_transport_with_its_operands_and_eight_bytes_for_its_result() {
    needs!(Capabilities::ATOMIC);
    let mut fixture = Fixture::new();
    let (remote_address, rkey) = (0xabcd_0000_1238, 0x55_66);
    let cases = [
        (SendOpcode::CompareSwap, AtomicOperation::CompareSwap { compare: 7, swap: 1 << 63 }),
        (SendOpcode::FetchAdd, AtomicOperation::FetchAdd { add: 1 << 63 }),
    ];
    for (number, (opcode, operation)) in (0..).zip(cases) {
        // The rest of the element is left alone.
        let sge = fixture.region.sge(16, 100);
        let wqe = Wqe::atomic(opcode, [1 << 63, 7], &[sge]).remote(remote_address, rkey);
        let expected = Sent {
            qpn: fixture.qp.qpn,
            number,
            operation: WqeOperation::Atomic { remote_address, rkey, operation },
            length: 8,
            solicited: false,
            fence: false,
        };
        let sent = fixture.send(&wqe);
        assert_eq!(sent, expected, "{opcode:?}");
        let place = Piece { iova: fixture.region.iova + 16, length: 8 };
        assert_eq!(fixture.pieces(&sent), [place], "{opcode:?}");
    }
}

#[test]
fn solicited_and_fence_reach_the_transport() {
    let mut fixture = Fixture::new();
    let plain = Wqe::gather(SendOpcode::Send, &[]);
    let sent = fixture.send(&plain.clone().flag(SendFlags::SOLICITED));
    assert!(sent.solicited && !sent.fence);
    let sent = fixture.send(&plain.flag(SendFlags::FENCE));
    assert!(!sent.solicited && sent.fence);
}

#[test]
fn entries_of_one_to_five_blocks_gather_up_to_sixteen_elements() {
    let mut fixture = Fixture::new();
    for count in 0..=16u32 {
        let sges: Vec<_> =
            (0..count).map(|i| fixture.region.sge(u64::from(i) * 1000, i + 1)).collect();
        let sent = fixture.send(&Wqe::gather(SendOpcode::Send, &sges));
        assert_eq!(sent.length, count * (count + 1) / 2);
        let expected: Vec<_> = (0..count)
            .map(|i| Piece { iova: fixture.region.iova + u64::from(i) * 1000, length: i + 1 })
            .collect();
        assert_eq!(fixture.pieces(&sent), expected, "{count} elements");
        fixture.complete_all();
    }
}

#[test]
fn empty_elements_need_no_key_and_make_no_piece() {
    let mut fixture = Fixture::new();
    let nothing = Sge { address: u64::MAX, length: 0, lkey: 0xdead };
    let sent = fixture.send(&Wqe::gather(SendOpcode::Write, &[nothing; 16]));
    assert_eq!((sent.length, fixture.pieces(&sent).len()), (0, 0));
    let sges = [nothing, fixture.region.sge(0, 4), nothing];
    let sent = fixture.send(&Wqe::gather(SendOpcode::Write, &sges));
    assert_eq!((sent.length, fixture.pieces(&sent).len()), (4, 1));
}

#[test]
fn inline_data_lies_in_the_ring_at_every_length_and_place() {
    let mut fixture = Fixture::new();
    for length in (0..=MAX_INLINE).chain((0..=MAX_INLINE).rev().step_by(7)) {
        let bytes: Vec<u8> = (0..length).map(|i| (i * 7 + length) as u8).collect();
        let sent = fixture.send(&Wqe::inline(SendOpcode::Send, &bytes));
        assert_eq!(sent.length as usize, length);
        let pieces = fixture.pieces(&sent);
        assert!(pieces.len() <= 2);
        let mut found = Vec::new();
        for piece in &pieces {
            assert_ne!(piece.length, 0);
            for address in piece.iova..piece.iova + u64::from(piece.length) {
                let word = fixture.bench.memory.load(address & !7).to_le_bytes();
                found.push(word[(address % 8) as usize]);
            }
        }
        assert_eq!(found, bytes);
        fixture.complete_all();
    }
}

#[test]
fn entries_wrap_at_the_end_of_the_ring() {
    for_seeds(20, |seed| {
        let mut random = Seeded::new(seed);
        let mut fixture = Fixture::new();
        for _ in 0..500 {
            let count = random.below(17) as u32;
            let sges: Vec<_> = (0..count)
                .map(|_| fixture.region.sge(random.below(60_000), 1 + random.below(5000) as u32))
                .collect();
            let index = fixture.qp.producer;
            let sent = fixture.send(&Wqe::gather(SendOpcode::Send, &sges));
            let expected: Vec<_> = sges
                .iter()
                .map(|sge| {
                    let offset = sge.address - fixture.region.va;
                    Piece { iova: fixture.region.iova + offset, length: sge.length }
                })
                .collect();
            assert_eq!(fixture.pieces(&sent), expected);
            fixture.bench.complete(fixture.qp.qpn, 1);
            assert_eq!(fixture.cq.poll_one().wqe_index, index);
        }
    });
}

#[test]
fn a_ring_of_one_block_serves_one_entry_at_a_time() {
    let mut fixture = Fixture::new();
    let rq = fixture.bench.create_rq(0, 0);
    let mut qp = fixture.bench.create_qp(0, &fixture.cq, &fixture.cq, rq);
    fixture.bench.climb(qp.qpn, QpState::Rts);
    for round in 0..1000u32 {
        assert_eq!(qp.post(&Wqe::gather(SendOpcode::Send, &[])), round);
        fixture.bench.settle();
        fixture.bench.complete(qp.qpn, 1);
        assert_eq!(fixture.cq.poll_one().wqe_index, round);
    }
}

#[test]
fn a_list_of_posts_needs_one_doorbell() {
    let mut fixture = Fixture::new();
    for _ in 0..20 {
        fixture.qp.post_silently(&Wqe::gather(SendOpcode::Send, &[fixture.region.sge(0, 1)]));
    }
    fixture.bench.settle();
    assert!(fixture.bench.transport.sent.is_empty(), "nobody rang");
    fixture.qp.ring();
    fixture.bench.settle();
    let numbers: Vec<_> = fixture.bench.transport.sent.iter().map(|sent| sent.number).collect();
    assert_eq!(numbers, Vec::from_iter(0..20));
}

#[test]
fn a_full_ring_is_fetched_in_turns() {
    needs!(Need::Turns);
    let mut bench = Bench::new();
    let cq = bench.create_cq(10);
    let rq = bench.create_rq(0, 0);
    let mut qp = bench.create_qp(10, &cq, &cq, rq);
    bench.climb(qp.qpn, QpState::Rts);
    for _ in 0..1024 {
        qp.post_silently(&Wqe::gather(SendOpcode::Send, &[]));
    }
    qp.ring();
    assert!(bench.poll());
    let first = bench.transport.sent.len();
    assert!((1..1024).contains(&first), "{first} entries in one turn");
    bench.settle();
    assert_eq!(bench.transport.sent.len(), 1024);
}

#[test]
fn no_room_at_the_transport_delays_and_completions_resume() {
    let mut fixture = Fixture::over(Manual::with_capacity(3));
    for _ in 0..10 {
        fixture.qp.post(&Wqe::gather(SendOpcode::Send, &[]));
    }
    fixture.bench.settle();
    assert_eq!(fixture.bench.transport.sent.len(), 3);
    fixture.bench.complete(fixture.qp.qpn, 1);
    assert_eq!(fixture.bench.transport.sent.len(), 4);
    fixture.bench.complete(fixture.qp.qpn, 3);
    assert_eq!(fixture.bench.transport.sent.len(), 7);
    fixture.bench.complete(fixture.qp.qpn, 3);
    fixture.bench.complete(fixture.qp.qpn, 3);
    assert_eq!(fixture.cq.poll().len(), 10);
}

#[test]
fn a_transport_that_is_full_after_all_takes_the_message_later_and_once() {
    needs!(Need::Words);
    let mut fixture = Fixture::new();
    fixture.bench.transport.refusal = Some(queue_engine::TransportError::Full);
    fixture.qp.post(&Wqe::gather(SendOpcode::Send, &[]));
    fixture.qp.post(&Wqe::gather(SendOpcode::Write, &[]));
    fixture.bench.settle();
    assert!(fixture.bench.transport.sent.is_empty());
    fixture.bench.transport.refusal = None;
    fixture.bench.complete(fixture.qp.qpn, 0);
    assert_eq!(fixture.bench.transport.sent.len(), 2);
}

#[test]
fn posts_in_sqd_wait_for_rts() {
    let mut fixture = Fixture::new();
    fixture.send(&Wqe::gather(SendOpcode::Send, &[]));
    fixture.bench.go(fixture.qp.qpn, QpState::Sqd);
    fixture.qp.post(&Wqe::gather(SendOpcode::Write, &[]));
    fixture.bench.settle();
    assert!(fixture.bench.transport.sent.is_empty());
    fixture.bench.complete(fixture.qp.qpn, 1);
    assert_eq!(fixture.cq.poll().len(), 1, "what was under way completes in SQD");
    assert!(fixture.bench.transport.sent.is_empty());
    fixture.bench.go(fixture.qp.qpn, QpState::Rts);
    fixture.bench.settle();
    assert_eq!(fixture.bench.transport.sent.len(), 1);
}

#[test]
fn posts_before_rts_wait_for_it() {
    let mut bench = Bench::new();
    let cq = bench.create_cq(4);
    let rq = bench.create_rq(0, 0);
    let mut qp = bench.create_qp(4, &cq, &cq, rq);
    qp.post(&Wqe::gather(SendOpcode::Send, &[]));
    for state in [QpState::Init, QpState::Rtr] {
        bench.climb(qp.qpn, state);
        bench.settle();
        assert!(bench.transport.sent.is_empty(), "{state:?}");
        bench.go(qp.qpn, QpState::Reset);
    }
    bench.climb(qp.qpn, QpState::Rts);
    bench.settle();
    assert_eq!(bench.transport.sent.len(), 1);
}

#[test]
fn a_message_may_be_as_long_as_the_limit_and_no_longer() {
    needs!(Need::OtherLimits);
    let config = EngineConfig { max_message: 1000, ..standard() };
    let mut bench = Bench::with(config, Manual::default());
    let mut cq = bench.create_cq(4);
    let mut qp = bench.ready_qp(&cq);
    let region = bench.register(4096);
    qp.post(&Wqe::gather(SendOpcode::Send, &[region.sge(0, 600), region.sge(0, 400)]));
    bench.settle();
    bench.complete(qp.qpn, 1);
    assert_eq!(cq.poll_one().status, Status::Success);
    qp.post(&Wqe::gather(SendOpcode::Send, &[region.sge(0, 600), region.sge(0, 401)]));
    bench.settle();
    assert_eq!(cq.poll_one().status, Status::LocalLength);
    assert_eq!(bench.transport.sent.len(), 1);
}

/// Ends a QP's sending in one way, and the messages with it.
fn end(bench: &mut Bench<Manual>, qpn: u32, to: Option<QpState>) -> AdminStatus {
    match to {
        None => bench.destroy(Opcode::DestroyQp, qpn),
        Some(state) => bench.modify(qpn, &step_to(state)).status,
    }
}

const ENDS: [Option<QpState>; 3] = [Some(QpState::Err), Some(QpState::Reset), None];

#[test]
fn what_was_posted_before_the_end_of_a_qps_sending_is_taken_first() {
    for to in ENDS {
        let mut fixture = Fixture::new();
        let qpn = fixture.qp.qpn;
        for _ in 0..3 {
            fixture.qp.post(&Wqe::gather(SendOpcode::Send, &[fixture.region.sge(0, 8)]));
        }
        assert_eq!(end(&mut fixture.bench, qpn, to), AdminStatus::Success);
        let sent: Vec<u64> = fixture.bench.transport.sent.iter().map(|sent| sent.number).collect();
        assert_eq!(sent, [0, 1, 2], "{to:?}");
        fixture.qp.post(&Wqe::gather(SendOpcode::Send, &[fixture.region.sge(0, 8)]));
        fixture.bench.settle();
        assert_eq!(fixture.bench.transport.sent.len(), 3, "{to:?}");
        let flushed = if to == Some(QpState::Err) { 4 } else { 0 };
        let completions = fixture.cq.poll();
        assert_eq!(completions.len(), flushed, "{to:?}");
        assert!(completions.iter().all(|entry| entry.status == Status::Flushed), "{to:?}");
    }
}

#[test]
fn the_end_of_a_qps_sending_waits_for_its_turn_to_send_but_not_for_ever() {
    needs!(Need::Turns);
    for (to, leaves_after) in ENDS.into_iter().flat_map(|to| [(to, Some(2)), (to, None)]) {
        let mut fixture = Fixture::new();
        let Fixture { bench, cq, qp, region } = &mut fixture;
        let other = bench.ready_qp(cq);
        qp.post(&Wqe::gather(SendOpcode::Send, &[region.sge(0, 8)]));
        bench.transport.keeps_in_line = true;
        let header = |opcode, blocks| Header { opcode, blocks, tag: 5, response: 0 }.encode()[0];
        let with = |block: Block, header: Block| std::array::from_fn(|i| block[i] | header[i]);
        let command = match to {
            None => {
                let [block] = Destroy { number: qp.qpn }.encode();
                vec![with(block, header(Opcode::DestroyQp, 1))]
            }
            Some(state) => {
                let ([block], [second, third]) =
                    (ModifyQp { qpn: qp.qpn }.encode(), step_to(state).encode());
                vec![with(block, header(Opcode::ModifyQp, 3)), second, third]
            }
        };
        bench.push_admin(&command);
        bench.ring_admin();
        let mut calls = 1;
        while bench.admin_completions().is_empty() {
            assert_eq!(bench.transport.state(qp.qpn), QpState::Rts, "{to:?}");
            if leaves_after == Some(calls) {
                bench.transport.keeps_in_line = false;
            }
            assert!(bench.poll(), "{to:?}");
            calls += 1;
        }
        assert_eq!(calls, leaves_after.unwrap_or(4) + 1, "{to:?}");
        // The next one without payload waits for no other.
        bench.transport.keeps_in_line = true;
        assert_eq!(end(bench, other.qpn, to), AdminStatus::Success);
    }
}
