//! QPs of datagrams, and the address handles that say where those go.

use fpga_regs::engine::admin::{AdminStatus, CreateAh, Destroy, MAX_ENDED_AHS, Membership, Opcode};
use fpga_regs::engine::cqe::{self, Flags, Status};
use fpga_regs::engine::event::QpEvent;
use fpga_regs::engine::qp::{AttributeMask as M, Attributes, QpState, QpType};
use fpga_regs::engine::window::Capabilities;
use fpga_regs::engine::wqe::{Datagram, SendFlags, SendOpcode};
use queue_engine::{
    EngineConfig, ReceiveError, ReceiveKind, ReceivedMessage, TransportError, TransportEvent,
    WqeOperation,
};

use crate::engine::receiving::received;
use crate::engine::support::bench::{Bench, PAGE, PDN, Region, standard};
use crate::engine::support::client::{ClientCq, ClientQp};
use crate::engine::support::device::{Device as _, Need, needs};
use crate::engine::support::manual::Manual;
use crate::engine::support::wqe::Wqe;

const DGID: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 7, 0, 2];
const VECTOR: CreateAh = CreateAh {
    pdn: PDN,
    sgid_index: 0,
    hop_limit: 64,
    traffic_class: 0x20,
    sl: 3,
    static_rate: 0,
    page: PAGE,
    flow_label: 0xf_ffff,
    dgid: DGID,
};

/// A QP of datagrams in RTS, and an address handle.
struct Fixture {
    bench: Bench<Manual>,
    cq: ClientCq,
    qp: ClientQp,
    region: Region,
    ah: u32,
}

impl Fixture {
    fn new() -> Self {
        let mut bench = Bench::new();
        let cq = bench.create_cq(8);
        let rq = bench.create_rq(4, 0);
        let qp = bench.create_qp_of(QpType::Ud, 6, (&cq, &cq), rq);
        let region = bench.register(1 << 16);
        let ah = bench.succeed(Opcode::CreateAh, &VECTOR.encode()).result;
        bench.climb_datagrams(qp.qpn);
        Self { bench, cq, qp, region, ah }
    }

    fn modify(&mut self, state: QpState, mask: M) -> AdminStatus {
        let mask = mask | M::STATE;
        let change = Attributes { mask, state, ..Attributes::default() };
        self.bench.modify(self.qp.qpn, &change).status
    }

    fn datagram(&self) -> Datagram {
        Datagram { ah: self.ah, qpn: 0xab_cdef, qkey: 0x8765_4321 }
    }

    fn wqe(&self, datagram: Datagram) -> Wqe {
        let [[_, _, address, key, ..]] = datagram.encode();
        Wqe::gather(SendOpcode::Send, &[self.region.sge(0, 100)]).remote(address, key as u32)
    }

    fn post(&mut self, wqe: &Wqe) {
        self.qp.post(wqe);
        self.bench.settle();
    }

    fn outcome(&mut self) -> Vec<(u32, Status)> {
        self.cq.poll().iter().map(|entry| (entry.wqe_index, entry.status)).collect()
    }

    fn state(&mut self) -> QpState {
        self.bench.query(self.qp.qpn).state
    }
}

#[test]
fn an_address_handle_reaches_the_transport_and_goes() {
    needs!(Capabilities::UD);
    let mut bench = Bench::new();
    let ah = bench.succeed(Opcode::CreateAh, &VECTOR.encode()).result;
    assert_eq!(bench.transport.ahs[&ah], VECTOR);
    assert_eq!(ah >> 20, 2, "the window's number stands above it");
    assert_eq!(bench.destroy(Opcode::DestroyAh, ah ^ 1), AdminStatus::NotFound);
    assert_eq!(bench.destroy(Opcode::DestroyAh, ah), AdminStatus::Success);
    assert_eq!(bench.destroy(Opcode::DestroyAh, ah), AdminStatus::NotFound);
    assert!(bench.transport.ahs.is_empty());
    bench.succeed(Opcode::CreateAh, &VECTOR.encode());
    bench.write(fpga_regs::engine::window::CONTROL, fpga_regs::engine::window::CONTROL_RESET);
    assert!(bench.transport.ahs.is_empty(), "a reset forgets it");
}

#[test]
fn it_is_told_whether_the_peer_of_an_address_handle_is_found() {
    needs!(Capabilities::UD);
    let mut bench = Bench::new();
    let ah = bench.succeed(Opcode::CreateAh, &VECTOR.encode()).result;
    let query = Destroy { number: ah }.encode();
    assert_eq!(bench.status(Opcode::QueryAh, &query), AdminStatus::Unsupported);
    for is_found in [false, true] {
        bench.transport.finds = Some(is_found);
        assert_eq!(bench.succeed(Opcode::QueryAh, &query).result, u32::from(is_found));
    }
    let other = Destroy { number: ah ^ 1 }.encode();
    assert_eq!(bench.status(Opcode::QueryAh, &other), AdminStatus::NotFound);
}

#[test]
fn address_handles_that_cannot_be_are_refused_and_leave_nothing() {
    needs!(Capabilities::UD, Need::OtherLimits);
    let mut bench = Bench::with(EngineConfig { ahs: 2, ..standard() }, Manual::default());
    for wrong in [
        CreateAh { sgid_index: 1, ..VECTOR },
        CreateAh { sgid_index: 255, ..VECTOR },
        CreateAh { dgid: [0; 16], ..VECTOR },
        CreateAh { flow_label: 1 << 20, ..VECTOR },
        CreateAh { sl: 16, ..VECTOR },
        CreateAh { static_rate: 1, ..VECTOR },
        CreateAh { page: 3, ..VECTOR },
        CreateAh { page: 0, ..VECTOR },
    ] {
        assert_eq!(bench.status(Opcode::CreateAh, &wrong.encode()), AdminStatus::Invalid);
    }
    bench.transport.admin_refusal = Some(AdminStatus::Invalid);
    for _ in 0..3 {
        assert_eq!(bench.status(Opcode::CreateAh, &VECTOR.encode()), AdminStatus::Invalid);
    }
    bench.transport.admin_refusal = None;
    for _ in 0..2 {
        bench.succeed(Opcode::CreateAh, &VECTOR.encode());
    }
    assert_eq!(bench.status(Opcode::CreateAh, &VECTOR.encode()), AdminStatus::NoResources);
}

#[test]
fn without_the_capability_there_are_none() {
    needs!(Capabilities::UD, Need::OtherLimits);
    let capabilities = standard().capabilities - Capabilities::UD;
    let mut bench = Bench::with(EngineConfig { capabilities, ..standard() }, Manual::default());
    assert_eq!(bench.status(Opcode::CreateAh, &VECTOR.encode()), AdminStatus::Unsupported);
    assert_eq!(bench.destroy(Opcode::DestroyAh, 1), AdminStatus::Unsupported);
    let query = Destroy { number: 1 }.encode();
    assert_eq!(bench.status(Opcode::QueryAh, &query), AdminStatus::Unsupported);
}

const GROUP: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 7, 0, 2];

#[test]
fn members_of_groups_reach_the_transport_and_other_qps_do_not() {
    needs!(Capabilities::UD | Capabilities::MULTICAST);
    let mut fixture = Fixture::new();
    let qpn = fixture.qp.qpn;
    let connected = {
        let rq = fixture.bench.create_rq(4, 0);
        fixture.bench.create_qp_of(QpType::Rc, 6, (&fixture.cq, &fixture.cq), rq).qpn
    };
    let mut set = |opcode, qpn| {
        let status = fixture.bench.status(opcode, &Membership { qpn, group: GROUP }.encode());
        (status, fixture.bench.transport.members.len())
    };
    let (attach, detach) = (Opcode::AttachMulticast, Opcode::DetachMulticast);
    assert_eq!(set(attach, connected), (AdminStatus::Invalid, 0));
    assert_eq!(set(attach, qpn ^ 1), (AdminStatus::NotFound, 0));
    assert_eq!(set(detach, qpn), (AdminStatus::NotFound, 0));
    assert_eq!(set(attach, qpn), (AdminStatus::Success, 1));
    assert_eq!(set(attach, qpn), (AdminStatus::Success, 1));
    assert_eq!(set(detach, connected), (AdminStatus::Invalid, 1));
    assert_eq!(set(detach, qpn), (AdminStatus::Success, 0));
    assert_eq!(set(detach, qpn), (AdminStatus::NotFound, 0));
    fixture.bench.transport.admin_refusal = Some(AdminStatus::NoResources);
    let command = Membership { qpn, group: GROUP }.encode();
    assert_eq!(fixture.bench.status(attach, &command), AdminStatus::NoResources);
}

#[test]
fn without_the_capability_there_are_no_groups() {
    needs!(Capabilities::UD | Capabilities::MULTICAST, Need::OtherLimits);
    let capabilities = standard().capabilities - Capabilities::MULTICAST;
    let mut bench = Bench::with(EngineConfig { capabilities, ..standard() }, Manual::default());
    for opcode in [Opcode::AttachMulticast, Opcode::DetachMulticast] {
        let command = Membership { qpn: 1, group: GROUP };
        assert_eq!(bench.status(opcode, &command.encode()), AdminStatus::Unsupported);
    }
}

#[test]
fn a_datagram_reaches_the_transport_with_its_target() {
    needs!(Capabilities::UD);
    let mut fixture = Fixture::new();
    let datagram = fixture.datagram();
    let plain = fixture.wqe(datagram);
    fixture.post(&plain.clone().flag(SendFlags::SOLICITED));
    let mut with_immediate = plain.immediate(0x0102_0304);
    with_immediate.header.opcode = SendOpcode::SendImm;
    fixture.post(&with_immediate);
    let mut inline = Wqe::inline(SendOpcode::Send, &[7; 40]);
    inline.header = fpga_regs::engine::wqe::SendHeader {
        flags: inline.header.flags,
        ..fixture.wqe(datagram).header
    };
    fixture.post(&inline);
    let sent = std::mem::take(&mut fixture.bench.transport.sent);
    let fields: Vec<_> =
        sent.iter().map(|it| (it.number, it.operation, it.length, it.solicited)).collect();
    let operation = |immediate| WqeOperation::Datagram { datagram, immediate };
    assert_eq!(
        fields,
        [
            (0, operation(None), 100, true),
            (1, operation(Some(0x0102_0304)), 100, false),
            (2, operation(None), 40, false)
        ]
    );
    fixture.bench.complete(fixture.qp.qpn, 3);
    let entries = fixture.cq.poll();
    assert!(entries.iter().all(|it| it.opcode == cqe::Opcode::Send && it.byte_count > 0));
    assert_eq!(entries.len(), 3);
}

/// Makes a work request wrong.
type Wrong = fn(&mut Fixture) -> Wqe;

#[test]
fn a_send_that_fails_leaves_the_queue_pair_in_sqe_until_it_is_brought_back() {
    needs!(Capabilities::UD);
    let wrongs: [(Wrong, Status); 7] = [
        (
            |it| {
                let mut wqe = it.wqe(it.datagram());
                wqe.header.opcode = SendOpcode::Write;
                wqe
            },
            Status::LocalQpOperation,
        ),
        (
            |it| Wqe::atomic(SendOpcode::FetchAdd, [1, 1], &[it.region.sge(0, 8)]),
            Status::LocalQpOperation,
        ),
        (|it| it.wqe(Datagram { ah: it.ah ^ 1, ..it.datagram() }), Status::LocalQpOperation),
        (
            // Another domain's.
            |it| {
                let foreign = CreateAh { pdn: PDN + 1, ..VECTOR };
                let ah = it.bench.succeed(Opcode::CreateAh, &foreign.encode()).result;
                it.wqe(Datagram { ah, ..it.datagram() })
            },
            Status::LocalQpOperation,
        ),
        (
            |it| {
                it.bench.destroy(Opcode::DestroyAh, it.ah);
                it.wqe(it.datagram())
            },
            Status::LocalQpOperation,
        ),
        (
            |it| {
                it.bench.transport.refusal = Some(TransportError::TooLong);
                it.wqe(it.datagram())
            },
            Status::LocalLength,
        ),
        (
            |it| {
                let mut wqe = Wqe::gather(SendOpcode::Send, &[it.region.sge(1 << 16, 1)]);
                wqe.header.remote_address = it.wqe(it.datagram()).header.remote_address;
                wqe
            },
            Status::LocalProtection,
        ),
    ];
    for (number, (wrong, status)) in wrongs.into_iter().enumerate() {
        let mut fixture = Fixture::new();
        let qpn = fixture.qp.qpn;
        fixture.qp.rq.post(77, &[]);
        let good = fixture.wqe(fixture.datagram());
        fixture.post(&good);
        let wrong = wrong(&mut fixture);
        fixture.post(&wrong);
        fixture.post(&good);
        assert_eq!((fixture.outcome(), fixture.state()), (vec![], QpState::Rts), "{number}");
        fixture.bench.complete(qpn, 1);
        let wanted = [(0, Status::Success), (1, status), (2, Status::Flushed)];
        assert_eq!(fixture.outcome(), wanted, "wrong request {number}");
        assert_eq!(fixture.state(), QpState::Sqe);
        // Later posts are flushed too, and receives are taken.
        fixture.post(&good);
        assert_eq!(fixture.outcome(), [(3, Status::Flushed)]);
        assert!(fixture.bench.device.take_receive(qpn).is_ok());
        // Brought back it sends.
        fixture.bench.transport.refusal = None;
        fixture.ah = fixture.bench.succeed(Opcode::CreateAh, &VECTOR.encode()).result;
        let good = fixture.wqe(fixture.datagram());
        assert_eq!(fixture.modify(QpState::Rts, M::empty()), AdminStatus::Success);
        let before = fixture.bench.transport.sent.len();
        fixture.post(&good);
        assert_eq!(fixture.bench.transport.sent.len(), before + 1);
        fixture.bench.complete(qpn, 1);
        assert_eq!(fixture.outcome(), [(4, Status::Success)]);
    }
}

#[test]
fn what_the_transport_cannot_send_fails_likewise() {
    needs!(Capabilities::UD);
    let mut fixture = Fixture::new();
    let good = fixture.wqe(fixture.datagram());
    for _ in 0..64 {
        fixture.qp.post(&good);
    }
    let qpn = fixture.qp.qpn;
    fixture.bench.settle();
    fixture.bench.handle(TransportEvent::Failed { qpn, status: Status::LocalProtection });
    let all = fixture.outcome();
    assert_eq!(all.first(), Some(&(0, Status::LocalProtection)));
    assert!(all[1..].iter().all(|it| it.1 == Status::Flushed) && all.len() == 64);
    assert_eq!(fixture.state(), QpState::Sqe);
    for to in [QpState::Sqd, QpState::Rtr, QpState::Init] {
        assert_eq!(fixture.modify(to, M::empty()), AdminStatus::BadState);
    }
    assert_eq!(fixture.modify(QpState::Err, M::empty()), AdminStatus::Success);
}

#[test]
fn a_received_datagram_says_whom_it_is_from() {
    needs!(Capabilities::UD);
    let mut fixture = Fixture::new();
    let qpn = fixture.qp.qpn;
    fixture.qp.rq.post(9, &[fixture.region.sge(0, 200)]);
    assert_eq!(fixture.bench.device.take_receive(qpn).unwrap().capacity, 200);
    fixture.bench.handle(TransportEvent::Received(ReceivedMessage {
        qpn,
        length: 140,
        kind: ReceiveKind::Send,
        immediate: None,
        solicited: false,
        source_qpn: Some(0x12_3456),
    }));
    let entry = fixture.cq.poll_one();
    assert_eq!((entry.source_qpn, entry.byte_count, entry.wqe_index), (0x12_3456, 140, 9));
    assert_eq!(entry.flags, Flags::RECEIVE | Flags::GRH);
}

#[test]
fn receives_fail_one_by_one_and_the_queue_pair_goes_on() {
    needs!(Capabilities::UD);
    let mut fixture = Fixture::new();
    let qpn = fixture.qp.qpn;
    let good = fixture.region.sge(0, 200);
    for (tag, count) in (1..).zip([1, 255, 255, 1, 255]) {
        fixture.qp.rq.post_as(tag, &[good], count);
    }
    let taken: Vec<_> = (0..5).map(|_| fixture.bench.device.take_receive(qpn).is_ok()).collect();
    assert_eq!(taken, [true, false, false, true, false]);
    fixture.bench.settle();
    assert_eq!(fixture.outcome(), [], "each in its turn");
    let short = TransportEvent::ReceiveFailed { qpn, status: Status::LocalLength };
    fixture.bench.handle(short);
    let failed = |tag| (tag, Status::LocalProtection);
    assert_eq!(fixture.outcome(), [(1, Status::LocalLength), failed(2), failed(3)]);
    fixture.bench.handle(short);
    assert_eq!(fixture.outcome(), [(4, Status::LocalLength), failed(5)]);
    // One that nothing stands before fails by itself.
    fixture.qp.rq.post_as(6, &[good], 255);
    assert_eq!(fixture.bench.device.take_receive(qpn), Err(ReceiveError::Invalid));
    fixture.bench.settle();
    assert_eq!((fixture.outcome(), fixture.state()), (vec![failed(6)], QpState::Rts));
}

#[test]
fn a_receive_that_fails_in_a_burst_is_not_taken_for_the_next_one() {
    needs!(Capabilities::UD);
    let mut fixture = Fixture::new();
    let qpn = fixture.qp.qpn;
    fixture.qp.rq.post_as(1, &[], 255);
    fixture.qp.rq.post(2, &[fixture.region.sge(0, 200)]);
    // Both are taken before the engine has a turn.
    let taken = [(); 2].map(|()| fixture.bench.device.take_receive(qpn).is_ok());
    assert_eq!(taken, [false, true]);
    fixture.bench.handle(TransportEvent::Received(ReceivedMessage {
        qpn,
        length: 140,
        kind: ReceiveKind::Send,
        immediate: None,
        solicited: false,
        source_qpn: Some(3),
    }));
    let outcome = [(1, Status::LocalProtection), (2, Status::Success)];
    assert_eq!(fixture.outcome(), outcome);
}

/// An address handle that its program destroys as soon as it has posted.
mod ending {
    use super::*;

    impl Fixture {
        fn end(&mut self) -> AdminStatus {
            self.bench.destroy(Opcode::DestroyAh, self.ah)
        }

        fn make(&mut self) -> u32 {
            self.bench.succeed(Opcode::CreateAh, &VECTOR.encode()).result
        }

        /// Whether the transport has the handle.
        fn is_kept(&self) -> bool {
            self.bench.transport.ahs.contains_key(&self.ah)
        }
    }

    #[test]
    fn it_stays_until_what_was_posted_is_sent() {
        needs!(Capabilities::UD);
        let mut fixture = Fixture::new();
        let qpn = fixture.qp.qpn;
        let good = fixture.wqe(fixture.datagram());
        // Fetched requests, and those that the engine has not seen, for which the transport has no room.
        fixture.bench.transport.capacity = 2;
        (0..3).for_each(|_| fixture.post(&good));
        for _ in 0..60 {
            fixture.qp.post_silently(&good);
        }
        assert_eq!(fixture.end(), AdminStatus::Success);
        assert_eq!(fixture.end(), AdminStatus::NotFound, "to the driver it is gone");
        let query = Destroy { number: fixture.ah }.encode();
        assert_eq!(fixture.bench.status(Opcode::QueryAh, &query), AdminStatus::NotFound);
        for sent in 0..63 {
            assert!(fixture.is_kept(), "after {sent}");
            fixture.bench.complete(qpn, 1);
        }
        assert!(!fixture.is_kept());
        let wanted: Vec<_> = (0..63).map(|index| (index, Status::Success)).collect();
        assert_eq!(fixture.outcome(), wanted);
        // Requests that are posted now name no handle.
        fixture.post(&good);
        assert_eq!(fixture.outcome(), [(63, Status::LocalQpOperation)]);
    }

    #[test]
    fn one_that_nobody_posted_with_goes_at_once_and_so_does_another_domains() {
        needs!(Capabilities::UD);
        let mut fixture = Fixture::new();
        assert_eq!((fixture.end(), fixture.is_kept()), (AdminStatus::Success, false));
        fixture.ah = fixture.make();
        let good = fixture.wqe(fixture.datagram());
        fixture.post(&good);
        let foreign = CreateAh { pdn: PDN + 1, ..VECTOR };
        let foreign = fixture.bench.succeed(Opcode::CreateAh, &foreign.encode()).result;
        assert_eq!(fixture.bench.destroy(Opcode::DestroyAh, foreign), AdminStatus::Success);
        assert!(!fixture.bench.transport.ahs.contains_key(&foreign));
        // Sent before the end.
        let qpn = fixture.qp.qpn;
        fixture.bench.complete(qpn, 1);
        assert_eq!((fixture.end(), fixture.is_kept()), (AdminStatus::Success, false));
    }

    #[test]
    fn it_goes_where_its_queue_pair_will_not_send() {
        needs!(Capabilities::UD);
        let ways: [fn(&mut Fixture); 5] = [
            |it| assert_eq!(it.modify(QpState::Err, M::empty()), AdminStatus::Success),
            |it| assert_eq!(it.modify(QpState::Reset, M::empty()), AdminStatus::Success),
            |it| {
                let ended = it.bench.destroy(Opcode::DestroyQp, it.qp.qpn);
                assert_eq!(ended, AdminStatus::Success);
            },
            |it| {
                let (qpn, status) = (it.qp.qpn, Status::LocalProtection);
                it.bench.handle(TransportEvent::Failed { qpn, status });
            },
            |it| {
                // Nonsense behind it fails in its turn.
                it.post(&Wqe::atomic(SendOpcode::FetchAdd, [1, 1], &[it.region.sge(0, 8)]));
                it.bench.complete(it.qp.qpn, 1);
            },
        ];
        for (number, way) in ways.into_iter().enumerate() {
            let mut fixture = Fixture::new();
            let good = fixture.wqe(fixture.datagram());
            fixture.post(&good);
            assert_eq!((fixture.end(), fixture.is_kept()), (AdminStatus::Success, true));
            way(&mut fixture);
            assert!(!fixture.is_kept(), "way {number}");
        }
        // A pause is none of them.
        let mut fixture = Fixture::new();
        let good = fixture.wqe(fixture.datagram());
        fixture.post(&good);
        assert_eq!(fixture.end(), AdminStatus::Success);
        for (state, sent) in [(QpState::Sqd, 0), (QpState::Rts, 1)] {
            assert_eq!(fixture.modify(state, M::empty()), AdminStatus::Success);
            assert!(fixture.is_kept());
            fixture.bench.complete(fixture.qp.qpn, sent);
        }
        assert!(!fixture.is_kept());
    }

    #[test]
    fn it_stays_until_the_last_of_many_queue_pairs_has_sent() {
        needs!(Capabilities::UD);
        const QPS: usize = 1000;
        let mut fixture = Fixture::new();
        let good = fixture.wqe(fixture.datagram());
        let mut qps: Vec<_> = (0..QPS)
            .map(|_| {
                let rq = fixture.bench.create_rq(1, 0);
                let cqs = (&fixture.cq, &fixture.cq);
                let qp = fixture.bench.create_qp_of(QpType::Ud, 4, cqs, rq);
                fixture.bench.climb_datagrams(qp.qpn);
                qp
            })
            .collect();
        for qp in &mut qps {
            qp.post(&good);
        }
        assert_eq!(fixture.end(), AdminStatus::Success);
        fixture.bench.settle();
        assert_eq!(fixture.bench.transport.sent.len(), QPS);
        for qp in qps {
            assert!(fixture.is_kept());
            fixture.bench.complete(qp.qpn, 1);
        }
        assert!(!fixture.is_kept());
    }

    #[test]
    fn so_many_stay_and_no_more() {
        needs!(Capabilities::UD, Need::OtherLimits);
        let mut fixture = Fixture::new();
        let qpn = fixture.qp.qpn;
        for _ in 0..MAX_ENDED_AHS {
            let good = fixture.wqe(fixture.datagram());
            fixture.post(&good);
            assert_eq!(fixture.end(), AdminStatus::Success);
            fixture.ah = fixture.make();
        }
        let good = fixture.wqe(fixture.datagram());
        fixture.post(&good);
        for _ in 0..3 {
            assert_eq!((fixture.end(), fixture.is_kept()), (AdminStatus::Busy, true));
        }
        fixture.bench.complete(qpn, 1);
        assert_eq!(fixture.end(), AdminStatus::Success);
        fixture.bench.complete(qpn, u64::from(MAX_ENDED_AHS) - 1);
        assert_eq!((fixture.is_kept(), fixture.bench.transport.ahs.len()), (true, 1));
        fixture.bench.complete(qpn, 1);
        assert_eq!(fixture.bench.transport.ahs.len(), 0);
        // Those that stay count.
        let mut bench = Bench::with(EngineConfig { ahs: 1, ..standard() }, Manual::default());
        bench.succeed(Opcode::CreateAh, &VECTOR.encode());
        assert_eq!(bench.status(Opcode::CreateAh, &VECTOR.encode()), AdminStatus::NoResources);
    }

    #[test]
    fn a_reset_of_the_window_forgets_those_that_stay() {
        needs!(Capabilities::UD);
        let mut fixture = Fixture::new();
        let good = fixture.wqe(fixture.datagram());
        fixture.post(&good);
        assert_eq!(fixture.end(), AdminStatus::Success);
        let control = fpga_regs::engine::window::CONTROL;
        fixture.bench.write(control, fpga_regs::engine::window::CONTROL_RESET);
        assert!(fixture.bench.transport.ahs.is_empty());
    }
}

#[test]
fn a_queue_pair_of_datagrams_fails_by_the_first_completion_that_it_loses() {
    needs!(Capabilities::UD);
    for of_receive in [false, true] {
        let mut fixture = Fixture::new();
        let small = fixture.bench.create_cq(0);
        let rq = fixture.bench.create_rq(4, 0);
        let mut qp = fixture.bench.create_qp_of(QpType::Ud, 6, (&small, &small), rq);
        fixture.bench.climb_datagrams(qp.qpn);
        let wqe = fixture.wqe(fixture.datagram());
        for _ in 0..2 {
            if of_receive {
                qp.rq.post(0, &[fixture.region.sge(0, 100)]);
                fixture.bench.device.take_receive(qp.qpn).unwrap();
                fixture.bench.handle(received(qp.qpn, 50));
            } else {
                qp.post(&wqe);
                fixture.bench.settle();
                fixture.bench.complete(qp.qpn, 1);
            }
        }
        assert_eq!(fixture.bench.query(qp.qpn).state, QpState::Err, "receives: {of_receive}");
        let told = fixture.bench.events();
        let fatal: Vec<_> = told.iter().filter(|it| it.code == QpEvent::Fatal.0).collect();
        assert!(fatal.len() == 1 && fatal[0].number == qp.qpn, "{told:?}");
        // Another goes on.
        fixture.post(&wqe);
        fixture.bench.complete(fixture.qp.qpn, 1);
        assert_eq!(fixture.outcome(), [(0, Status::Success)]);
    }
}
