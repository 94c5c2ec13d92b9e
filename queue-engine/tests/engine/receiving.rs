//! Receive queues: the entry that an incoming message finds there, and its completion.

use fpga_regs::engine::cqe::{Cqe, Flags, Opcode, Status};
use fpga_regs::engine::key::Access;
use fpga_regs::engine::qp::QpState;
use fpga_regs::engine::wqe::{SendOpcode, Sge};
use queue_engine::{
    Payload, Piece, ReceiveError, ReceiveKind, ReceivedMessage, TakenReceive, TransportEvent,
    Unreachable,
};

use crate::engine::support::bench::{Bench, PDN, Region};
use crate::engine::support::client::{ClientCq, ClientQp};
use crate::engine::support::device::Device as _;
use crate::engine::support::manual::Manual;
use crate::engine::support::wqe::Wqe;

/// Posts a receive.
type Post = fn(&mut Fixture);

/// A SEND of some length arrived in the oldest taken receive.
pub fn received(qpn: u32, length: u32) -> TransportEvent {
    let kind = ReceiveKind::Send;
    TransportEvent::Received(ReceivedMessage {
        qpn,
        length,
        kind,
        immediate: None,
        solicited: false,
        source_qpn: None,
    })
}

struct Fixture {
    bench: Bench<Manual>,
    cq: ClientCq,
    qp: ClientQp,
    region: Region,
}

impl Fixture {
    fn with_stride(log2_stride: u8) -> Self {
        let mut bench = Bench::new();
        let cq = bench.create_cq(8);
        let rq = bench.create_rq(3, log2_stride);
        let qp = bench.create_qp(4, &cq, &cq, rq);
        bench.climb(qp.qpn, QpState::Rts);
        let region = bench.register(1 << 16);
        Self { bench, cq, qp, region }
    }

    fn new() -> Self {
        Self::with_stride(0)
    }

    fn take(&mut self) -> Result<TakenReceive, ReceiveError> {
        self.bench.device.take_receive(self.qp.qpn)
    }

    fn outcome(&mut self) -> Vec<(u32, Status)> {
        self.cq.poll().iter().map(|entry| (entry.wqe_index, entry.status)).collect()
    }

    fn refuse(&mut self) {
        self.bench.refuse_receive(self.qp.qpn);
        self.bench.settle();
    }
}

#[test]
fn receives_are_taken_in_order_and_complete_with_what_arrived() {
    let mut fixture = Fixture::new();
    for tag in [10, 20, 30] {
        fixture.qp.rq.post(tag, &[fixture.region.sge(0, 100), fixture.region.sge(200, 50)]);
    }
    let taken: Vec<_> = (0..3).map(|_| fixture.take()).collect();
    for ((id, behind), taken) in [(0, 2), (1, 1), (2, 0)].into_iter().zip(taken) {
        let TakenReceive { left, .. } = taken.unwrap();
        assert_eq!(taken, Ok(TakenReceive { id, capacity: 150, left }));
        assert!(left.is_none_or(|left| left == behind), "{left:?} are left of {behind}");
    }
    assert_eq!(fixture.take(), Err(ReceiveError::Empty));

    let qpn = fixture.qp.qpn;
    let plain = ReceivedMessage {
        qpn,
        length: 0,
        kind: ReceiveKind::Send,
        immediate: None,
        solicited: false,
        source_qpn: None,
    };
    let messages = [
        ReceivedMessage { length: 150, ..plain },
        ReceivedMessage { length: 7, immediate: Some(0xdead_beef), solicited: true, ..plain },
        ReceivedMessage { length: 9, kind: ReceiveKind::Write, immediate: Some(5), ..plain },
    ];
    for message in messages {
        fixture.bench.handle(TransportEvent::Received(message));
    }
    let entries = fixture.cq.poll();
    let expected = Cqe {
        qpn,
        wqe_index: 10,
        byte_count: 150,
        opcode: Opcode::Receive,
        status: Status::Success,
        flags: Flags::RECEIVE,
        timestamp: entries[0].timestamp,
        generation: fixture.qp.generation,
        phase: 1,
        ..Cqe::default()
    };
    assert_eq!(entries[0], expected);
    let with_immediate = Flags::RECEIVE | Flags::IMMEDIATE;
    let second = Cqe {
        wqe_index: 20,
        byte_count: 7,
        immediate: 0xdead_beef,
        flags: with_immediate | Flags::SOLICITED,
        timestamp: entries[1].timestamp,
        ..expected
    };
    assert_eq!(entries[1], second);
    let third = Cqe {
        wqe_index: 30,
        byte_count: 9,
        immediate: 5,
        opcode: Opcode::ReceiveWriteImm,
        flags: with_immediate,
        timestamp: entries[2].timestamp,
        ..expected
    };
    assert_eq!(entries[2], third);
}

#[test]
fn entries_of_every_stride_hold_as_many_elements_as_fit() {
    for (log2_stride, most) in [(0, 3), (1, 7), (2, 15), (3, 16)] {
        let mut fixture = Fixture::with_stride(log2_stride);
        for lap in 0..3u64 {
            for count in 0..=most {
                let sges: Vec<_> = (0..count as u32)
                    .map(|i| fixture.region.sge(u64::from(i) * 100 + lap, i + 1))
                    .collect();
                fixture.qp.rq.post(count as u32, &sges);
                let taken = fixture.take().unwrap();
                assert_eq!(taken.capacity, (count * (count + 1) / 2) as u64);
                let mut pieces: Vec<Piece> = Vec::new();
                let payload = Payload::Receive { id: taken.id };
                let length = taken.capacity as u32;
                fixture
                    .bench
                    .device
                    .resolve(fixture.qp.qpn, payload, 0, length, &mut pieces)
                    .unwrap();
                let piece = |sge: &Sge| Piece {
                    iova: sge.address - fixture.region.va + fixture.region.iova,
                    length: sge.length,
                };
                assert_eq!(pieces, Vec::from_iter(sges.iter().map(piece)));
                fixture.bench.handle(received(fixture.qp.qpn, length));
                assert_eq!(fixture.outcome(), [(count as u32, Status::Success)]);
            }
        }
    }
}

#[test]
fn receives_can_be_taken_from_rtr_to_sqd_only() {
    let mut bench = Bench::new();
    let cq = bench.create_cq(4);
    let rq = bench.create_rq(3, 0);
    let mut qp = bench.create_qp(4, &cq, &cq, rq);
    for tag in 0..8 {
        qp.rq.post(tag, &[]);
    }
    assert_eq!(bench.device.take_receive(qp.qpn), Err(ReceiveError::Empty));
    bench.climb(qp.qpn, QpState::Init);
    assert_eq!(bench.device.take_receive(qp.qpn), Err(ReceiveError::Empty));
    bench.go(qp.qpn, QpState::Reset);
    for state in [QpState::Rtr, QpState::Rts] {
        bench.climb(qp.qpn, state);
        assert!(bench.device.take_receive(qp.qpn).is_ok(), "{state:?}");
        if state == QpState::Rtr {
            bench.go(qp.qpn, QpState::Reset);
        }
    }
    bench.go(qp.qpn, QpState::Sqd);
    assert!(bench.device.take_receive(qp.qpn).is_ok());
    bench.go(qp.qpn, QpState::Err);
    assert_eq!(bench.device.take_receive(qp.qpn), Err(ReceiveError::Empty));
    assert_eq!(bench.device.take_receive(1), Err(ReceiveError::Empty));
}

#[test]
fn a_receive_that_makes_no_sense_fails_after_those_before_it_and_takes_the_qp_along() {
    let mut fixture = Fixture::new();
    fixture.qp.rq.post(1, &[fixture.region.sge(0, 8)]);
    fixture.qp.rq.post_as(2, &[], 255);
    fixture.qp.rq.post(3, &[fixture.region.sge(0, 8)]);
    let send = fixture.qp.post(&Wqe::gather(SendOpcode::Send, &[]));
    fixture.bench.settle();
    assert!(fixture.take().is_ok());
    assert_eq!(fixture.take(), Err(ReceiveError::Invalid));
    fixture.refuse();
    assert_eq!(fixture.outcome(), [], "the first one is still being filled");
    assert_eq!(fixture.bench.query(fixture.qp.qpn).state, QpState::Rts);
    fixture.bench.handle(received(fixture.qp.qpn, 8));
    // Sends and receives end in their own order each.
    let (receives, sends): (Vec<Cqe>, Vec<Cqe>) =
        fixture.cq.poll().iter().partition(|entry| entry.flags.contains(Flags::RECEIVE));
    let of = |entries: &[Cqe]| Vec::from_iter(entries.iter().map(|it| (it.wqe_index, it.status)));
    let expected = [(1, Status::Success), (2, Status::LocalProtection), (3, Status::Flushed)];
    assert_eq!(of(&receives), expected);
    assert_eq!(of(&sends), [(send, Status::Flushed)]);
    assert_eq!(fixture.bench.query(fixture.qp.qpn).state, QpState::Err);
    assert_eq!(fixture.bench.transport.state(fixture.qp.qpn), QpState::Err);
    fixture.refuse();
    fixture.bench.handle(TransportEvent::Error { qpn: fixture.qp.qpn });
    assert_eq!(fixture.outcome(), [], "nothing is told twice");
}

#[test]
fn a_receive_that_makes_no_sense_fails_at_once_when_it_is_the_first() {
    let mut fixture = Fixture::new();
    fixture.qp.rq.post_as(2, &[], 255);
    assert_eq!(fixture.take(), Err(ReceiveError::Invalid));
    fixture.refuse();
    assert_eq!(fixture.outcome(), [(2, Status::LocalProtection)]);
    assert_eq!(fixture.bench.transport.state(fixture.qp.qpn), QpState::Err);
}

#[test]
fn a_receive_that_makes_no_sense_keeps_its_cause_when_the_transport_reports_the_error() {
    let mut fixture = Fixture::new();
    fixture.qp.rq.post(1, &[fixture.region.sge(0, 8)]);
    fixture.qp.rq.post_as(2, &[], 255);
    assert!(fixture.take().is_ok());
    assert_eq!(fixture.take(), Err(ReceiveError::Invalid));
    fixture.bench.transport.enter_error(fixture.qp.qpn);
    fixture.bench.handle(TransportEvent::Error { qpn: fixture.qp.qpn });
    assert_eq!(fixture.outcome(), [(1, Status::Flushed), (2, Status::LocalProtection)]);
    fixture.refuse();
    assert_eq!(fixture.outcome(), []);
}

#[test]
fn a_receive_out_of_reach_takes_a_message_of_no_bytes_and_no_other() {
    let cases: &[(&str, Post)] = &[
        ("a wrong key", |f| f.qp.rq.post(9, &[Sge { lkey: 0, ..f.region.sge(0, 8) }])),
        ("a read-only region", |f| {
            let region = f.bench.register_with(64, Access::empty(), PDN);
            f.qp.rq.post(9, &[region.sge(0, 8)]);
        }),
        ("a foreign domain", |f| {
            let region = f.bench.register_with(64, Access::LOCAL_WRITE, PDN + 1);
            f.qp.rq.post(9, &[region.sge(0, 8)]);
        }),
        ("behind the region", |f| f.qp.rq.post(9, &[f.region.sge(1 << 16, 8)])),
    ];
    for (name, post) in cases {
        let mut fixture = Fixture::new();
        post(&mut fixture);
        let taken = fixture.take().unwrap();
        assert_eq!(taken.capacity, 8, "{name}");
        let (qpn, payload) = (fixture.qp.qpn, Payload::Receive { id: taken.id });
        let mut pieces: Vec<Piece> = Vec::new();
        let mut place = |length| {
            let engine = &fixture.bench.device;
            engine.resolve(qpn, payload, 0, length, &mut pieces)
        };
        assert_eq!((place(1), place(8), place(0)), (Err(Unreachable), Err(Unreachable), Ok(())));
        assert_eq!(pieces, [], "{name}");
        fixture.bench.handle(received(qpn, 0));
        assert_eq!(fixture.outcome(), [(9, Status::Success)], "{name}");
    }
}

#[test]
fn a_message_reaches_the_elements_before_one_that_is_out_of_reach() {
    let mut fixture = Fixture::new();
    let (good, bad) = (fixture.region.sge(0, 4), fixture.region.sge(65536, 1));
    fixture.qp.rq.post(9, &[good, bad]);
    let payload = Payload::Receive { id: fixture.take().unwrap().id };
    let mut pieces: Vec<Piece> = Vec::new();
    let mut place =
        |length| fixture.bench.device.resolve(fixture.qp.qpn, payload, 0, length, &mut pieces);
    assert_eq!((place(5), place(4)), (Err(Unreachable), Ok(())));
    assert_eq!(pieces, [Piece { iova: fixture.region.iova, length: 4 }]);
}

#[test]
fn receives_with_more_elements_than_there_can_be_are_invalid() {
    let cases: &[(&str, Post)] = &[
        ("more elements than the stride holds", |f| {
            f.qp.rq.post_as(9, &[f.region.sge(0, 1); 3], 4);
        }),
        ("255 elements", |f| f.qp.rq.post_as(9, &[], 255)),
    ];
    for (name, post) in cases {
        let mut fixture = Fixture::new();
        post(&mut fixture);
        assert_eq!(fixture.take(), Err(ReceiveError::Invalid), "{name}");
        fixture.refuse();
        assert_eq!(fixture.outcome(), [(9, Status::LocalProtection)], "{name}");
    }
}

#[test]
fn a_receive_that_the_transport_fails_completes_with_its_status_and_the_rest_is_flushed() {
    let mut fixture = Fixture::new();
    fixture.qp.rq.post(1, &[fixture.region.sge(0, 8)]);
    fixture.qp.rq.post(2, &[]);
    fixture.qp.rq.post(3, &[]);
    assert!(fixture.take().is_ok());
    assert!(fixture.take().is_ok());
    fixture.bench.transport.enter_error(fixture.qp.qpn);
    let status = Status::LocalLength;
    fixture.bench.handle(TransportEvent::ReceiveFailed { qpn: fixture.qp.qpn, status });
    let expected = [(1, status), (2, Status::Flushed), (3, Status::Flushed)];
    assert_eq!(fixture.outcome(), expected);
    let status = Status::Flushed;
    fixture.bench.handle(TransportEvent::ReceiveFailed { qpn: fixture.qp.qpn, status });
    assert_eq!(fixture.outcome(), []);
}

#[test]
fn the_receive_queue_serves_the_next_qp_from_its_start() {
    let mut fixture = Fixture::new();
    fixture.qp.rq.post(1, &[]);
    assert!(fixture.take().is_ok());
    fixture.qp.rq.post(2, &[]);
    let Fixture { mut bench, cq, qp, .. } = fixture;
    bench.destroy(fpga_regs::engine::admin::Opcode::DestroyQp, qp.qpn);
    let mut rq = qp.rq;
    rq.produce(0);
    let mut qp = bench.create_qp(4, &cq, &cq, rq);
    bench.climb(qp.qpn, QpState::Rts);
    assert_eq!(bench.device.take_receive(qp.qpn), Err(ReceiveError::Empty));
    qp.rq.post(3, &[]);
    assert_eq!(bench.device.take_receive(qp.qpn).unwrap().id, 0);
}
