//! XRC: targets, initiators, and the shared receive queues of XRC domains.

use fpga_regs::engine::admin::{AdminStatus, CreateQp, CreateRq, ModifyRq, Opcode, RqKind};
use fpga_regs::engine::cqe::{self, Flags, Status};
use fpga_regs::engine::event::{EventType, QpEvent};
use fpga_regs::engine::key::Access;
use fpga_regs::engine::qp::{AttributeMask, Attributes, QpState, QpType};
use fpga_regs::engine::window::Capabilities;
use fpga_regs::engine::wqe::SendOpcode;
use queue_engine::{
    EngineConfig, Payload, Piece, ReceiveError, ReceiveKind, ReceivedMessage, RemoteAccess,
    RemoteRange, TransportEvent, Unreachable, XrcRequest,
};

use crate::engine::support::bench::{Bench, PAGE, PDN, Region, standard, step_to};
use crate::engine::support::client::{ClientCq, ClientQp, ClientRq};
use crate::engine::support::device::{Device as _, Need, needs};
use crate::engine::support::manual::Manual;
use crate::engine::support::wqe::Wqe;

const XRCDN: u32 = 5;
/// A target of another engine.
const FOREIGN_QPN: u32 = 0x70_0042;
const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);
const NOTHING: RemoteRange = RemoteRange { rkey: 0, va: 0, length: 0 };

struct Fixture {
    bench: Bench<Manual>,
    cq: ClientCq,
    srq: ClientRq,
    region: Region,
}

fn config() -> EngineConfig {
    let more = Capabilities::XRC | Capabilities::ATOMIC;
    EngineConfig { capabilities: standard().capabilities | more, ..standard() }
}

impl Fixture {
    fn new() -> Self {
        let mut bench = Bench::with(config(), Manual::default());
        let cq = bench.create_cq(4);
        let srq = bench.create_xrc_rq(3, (cq.cqn, XRCDN));
        let region = bench.register_with(4096, ALL, PDN);
        Self { bench, cq, srq, region }
    }

    fn request(&self, qpn: u32) -> XrcRequest {
        XrcRequest { qpn, xrcdn: XRCDN, srqn: self.srq.rqn }
    }

    /// Takes a receive for a target; answers with its name.
    fn take(&mut self, qpn: u32) -> u64 {
        let request = self.request(qpn);
        let taken = self.bench.device.take_xrc_receive(request).unwrap();
        assert_eq!(taken.left, None, "others may take what is left");
        taken.id
    }

    fn received(&mut self, qpn: u32, id: u64, length: u32) {
        let (kind, immediate) = (ReceiveKind::Send, Some(7));
        let received =
            ReceivedMessage { qpn, length, kind, immediate, solicited: true, source_qpn: None };
        let srqn = self.srq.rqn;
        self.bench.handle(TransportEvent::XrcReceived { srqn, id, received });
    }

    fn create(&mut self, kind: QpType) -> CreateQp {
        let sq_ring = self.bench.memory.allocate(64 + (64 << 4));
        let (log2_sq_blocks, send_cqn) = (4, self.cq.cqn);
        CreateQp {
            sq_ring,
            log2_sq_blocks,
            page: PAGE,
            kind,
            pdn: PDN,
            send_cqn,
            ..Default::default()
        }
    }

    fn target(&mut self) -> u32 {
        let command =
            CreateQp { kind: QpType::XrcReceive, page: PAGE, xrcdn: XRCDN, ..Default::default() };
        self.bench.succeed(Opcode::CreateQp, &command.encode()).result
    }

    fn events(&mut self) -> Vec<(EventType, u8, u32)> {
        self.bench.events().iter().map(|event| (event.kind, event.code, event.number)).collect()
    }
}

/// A change of an XRC QP, of the attributes that a reliable connection takes.
fn step(kind: QpType, state: QpState) -> Attributes {
    use AttributeMask as M;
    let receives = M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    let sends = M::MAX_RD_ATOMIC | M::RETRY_COUNT | M::RNR_RETRY;
    let foreign = if kind == QpType::XrcSend { receives } else { sends };
    let step = step_to(state);
    Attributes { mask: step.mask - foreign, ..step }
}

fn climb(bench: &mut Bench<Manual>, kind: QpType, qpn: u32) {
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let status = bench.modify(qpn, &step(kind, state)).status;
        assert_eq!(status, AdminStatus::Success, "{kind:?} to {state:?}");
    }
    bench.settle();
}

#[test]
fn receives_complete_at_the_queue_they_are_of_whichever_engine_has_the_target() {
    needs!(Need::OtherLimits);
    let mut fixture = Fixture::new();
    let sge = fixture.region.sge(16, 100);
    (0..3).for_each(|tag| fixture.srq.post(tag, &[sge]));
    let own = fixture.target();
    let (first, second) = (fixture.take(FOREIGN_QPN), fixture.take(own));
    let mut pieces: Vec<Piece> = Vec::new();
    let srqn = fixture.srq.rqn;
    let receive = Payload::XrcReceive { srqn, id: first };
    fixture.bench.device.resolve(FOREIGN_QPN, receive, 4, 8, &mut pieces).unwrap();
    assert_eq!(pieces, [Piece { iova: fixture.region.iova + 20, length: 8 }]);
    // In the order in which they end, not in that in which they were taken.
    fixture.received(own, second, 5);
    fixture.received(FOREIGN_QPN, first, 9);
    let entries = fixture.cq.poll();
    let seen: Vec<_> =
        entries.iter().map(|it| (it.qpn, it.srqn, it.wqe_index, it.byte_count)).collect();
    assert_eq!(seen, [(own, srqn, 1, 5), (FOREIGN_QPN, srqn, 0, 9)]);
    let flags = Flags::RECEIVE | Flags::XRC | Flags::IMMEDIATE | Flags::SOLICITED;
    assert!(entries.iter().all(|it| it.flags == flags && it.opcode == cqe::Opcode::Receive));
    // Nothing is told twice, and nothing of a receive that is none.
    fixture.received(own, second, 5);
    assert_eq!(fixture.cq.poll(), []);
    let gone = fixture.bench.device.resolve(FOREIGN_QPN, receive, 0, 8, &mut pieces);
    assert_eq!(gone, Err(Unreachable));
    let (id, status) = (fixture.take(own), Status::Flushed);
    fixture.bench.handle(TransportEvent::XrcReceiveFailed { srqn, id, qpn: own, status });
    assert_eq!(fixture.cq.poll_one().status, Status::Flushed);
}

#[test]
fn a_request_reaches_queues_of_its_domain_only() {
    needs!(Need::OtherLimits);
    let mut fixture = Fixture::new();
    fixture.srq.post(0, &[]);
    let shared = fixture.bench.create_rq_of(RqKind::Shared, 2, 0);
    let private = fixture.bench.create_rq(2, 0);
    let right = fixture.request(FOREIGN_QPN);
    let wrong = [
        XrcRequest { xrcdn: XRCDN + 1, ..right },
        XrcRequest { srqn: right.srqn + 1, ..right },
        XrcRequest { xrcdn: 0, srqn: shared.rqn, ..right },
        XrcRequest { xrcdn: 0, srqn: private.rqn, ..right },
    ];
    for request in wrong {
        let engine = &mut fixture.bench.device;
        assert_eq!(engine.take_xrc_receive(request), Err(ReceiveError::NoSrq), "{request:?}");
        assert_eq!(engine.allows_xrc(request, NOTHING, RemoteAccess::Write), None);
    }
    let engine = &mut fixture.bench.device;
    assert!(engine.take_xrc_receive(right).is_ok());
    assert_eq!(engine.take_xrc_receive(right), Err(ReceiveError::Empty));
}

#[test]
fn memory_is_reached_in_the_domain_of_the_queue_that_is_named() {
    needs!(Need::OtherLimits);
    let mut fixture = Fixture::new();
    let other = fixture.bench.register_with(4096, ALL, PDN + 1);
    let request = fixture.request(FOREIGN_QPN);
    let (region, srqn) = (fixture.region, request.srqn);
    let engine = &mut fixture.bench.device;
    for access in [RemoteAccess::Write, RemoteAccess::Read, RemoteAccess::Atomic] {
        let mut allows =
            |rkey, va, length| engine.allows_xrc(request, RemoteRange { rkey, va, length }, access);
        assert_eq!(allows(region.key, region.va, 8), Some(true));
        assert_eq!(allows(region.key, region.va + 4090, 8), Some(false));
        assert_eq!(allows(other.key, other.va, 8), Some(false));
        assert_eq!(allows(other.key, other.va, 0), Some(true), "no bytes need no key");
    }
    let key = RemoteRange { rkey: region.key, ..NOTHING };
    assert_eq!(engine.allows_xrc(request, key, RemoteAccess::Invalidate), Some(false));
    let mut pieces: Vec<Piece> = Vec::new();
    let access = RemoteAccess::Read;
    let mut remote = |rkey, address, srqn| {
        let payload = Payload::XrcRemote { srqn, rkey, address, access };
        fixture.bench.device.resolve(FOREIGN_QPN, payload, 0, 8, &mut pieces)
    };
    assert_eq!(remote(region.key, region.va, srqn), Ok(()));
    assert_eq!(remote(other.key, other.va, srqn), Err(Unreachable));
    assert_eq!(remote(region.key, region.va, srqn + 1), Err(Unreachable));
    assert_eq!(pieces, [Piece { iova: region.iova, length: 8 }]);
}

#[test]
fn a_receive_that_cannot_be_used_fails_and_the_next_one_is_good() {
    needs!(Need::OtherLimits);
    let mut fixture = Fixture::new();
    let sge = fixture.region.sge(0, 8);
    fixture.srq.post_as(3, &[sge], 255);
    fixture.srq.post(4, &[sge]);
    let request = fixture.request(FOREIGN_QPN);
    assert_eq!(fixture.bench.device.take_xrc_receive(request), Err(ReceiveError::Invalid));
    fixture.bench.settle();
    let failed = fixture.cq.poll_one();
    assert_eq!((failed.wqe_index, failed.status), (3, Status::LocalProtection));
    assert_eq!((failed.qpn, failed.srqn), (FOREIGN_QPN, fixture.srq.rqn));
    fixture.take(FOREIGN_QPN);
}

#[test]
fn a_queue_may_go_while_what_it_gave_is_under_way_and_its_completion_queue_may_not() {
    needs!(Need::OtherLimits);
    let mut fixture = Fixture::new();
    fixture.srq.post(0, &[]);
    let (cqn, srqn) = (fixture.cq.cqn, fixture.srq.rqn);
    let id = fixture.take(FOREIGN_QPN);
    assert_eq!(fixture.bench.destroy(Opcode::DestroyCq, cqn), AdminStatus::Busy);
    assert_eq!(fixture.bench.destroy(Opcode::DestroyRq, srqn), AdminStatus::Success);
    fixture.received(FOREIGN_QPN, id, 0);
    assert_eq!(fixture.cq.poll(), []);
    assert_eq!(fixture.bench.destroy(Opcode::DestroyCq, cqn), AdminStatus::Success);
}

#[test]
fn no_receive_has_the_name_of_one_of_a_queue_that_is_gone() {
    needs!(Need::OtherLimits);
    let mut fixture = Fixture::new();
    let mut names = Vec::new();
    for _ in 0..3 {
        fixture.srq.post(0, &[]);
        // The number of the queue may be another's by then.
        names.push(fixture.take(FOREIGN_QPN) as u32);
        let (cqn, srqn) = (fixture.cq.cqn, fixture.srq.rqn);
        assert_eq!(fixture.bench.destroy(Opcode::DestroyRq, srqn), AdminStatus::Success);
        fixture.srq = fixture.bench.create_xrc_rq(3, (cqn, XRCDN));
    }
    assert_eq!(names, [0, 1, 2]);
}

#[test]
fn a_queue_has_a_limit_as_any_that_is_shared() {
    needs!(Need::OtherLimits);
    let mut fixture = Fixture::new();
    (0..3).for_each(|tag| fixture.srq.post(tag, &[]));
    let rqn = fixture.srq.rqn;
    let limit = ModifyRq { rqn, limit: 3 };
    assert_eq!(fixture.bench.status(Opcode::ModifyRq, &limit.encode()), AdminStatus::Success);
    fixture.take(FOREIGN_QPN);
    fixture.bench.settle();
    assert_eq!(fixture.events(), [(EventType::ReceiveLimit, 0, rqn)]);
}

#[test]
fn an_initiator_has_no_receive_queue_and_says_for_which_queue_each_request_is() {
    needs!(Need::OtherLimits);
    let mut fixture = Fixture::new();
    let command = fixture.create(QpType::XrcSend);
    let completion = fixture.bench.succeed(Opcode::CreateQp, &command.encode());
    let (qpn, generation) = (completion.result, completion.generation);
    climb(&mut fixture.bench, QpType::XrcSend, qpn);
    let (memory, page) = (fixture.bench.memory.clone(), fixture.bench.page.clone());
    let (sq, log2_blocks, rq) = (command.sq_ring, 4, fixture.srq.clone());
    let mut qp = ClientQp { memory, page, qpn, generation, sq, log2_blocks, producer: 0, rq };
    let mut wqe = Wqe::gather(SendOpcode::Send, &[]);
    wqe.header.remote_srqn = 0x12_3456;
    qp.post(&wqe);
    fixture.bench.settle();
    assert_eq!(fixture.bench.transport.last_srqn, Some(0x12_3456));
    // It takes no receives, so nothing is told of the last one.
    fixture.bench.go(qpn, QpState::Err);
    fixture.bench.handle(TransportEvent::Error { qpn });
    assert_eq!(fixture.events(), []);
    assert_eq!(fixture.cq.poll_one().status, Status::Flushed);
    assert_eq!(fixture.bench.destroy(Opcode::DestroyQp, qpn), AdminStatus::Success);
}

#[test]
fn a_target_has_states_attributes_and_events_and_nothing_else() {
    needs!(Need::OtherLimits);
    let mut fixture = Fixture::new();
    let qpn = fixture.target();
    climb(&mut fixture.bench, QpType::XrcReceive, qpn);
    let now = fixture.bench.query(qpn);
    assert_eq!((now.state, now.access), (QpState::Rts, step_to(QpState::Init).access));
    let event = QpEvent::CommunicationEstablished;
    fixture.bench.handle(TransportEvent::Async { qpn, event });
    fixture.bench.handle(TransportEvent::Async { qpn, event: QpEvent::SqDrained });
    assert_eq!(fixture.events(), [(EventType::Qp, event.0, qpn)]);
    // It fails by itself, and reports once that it takes no further receives.
    let last = (EventType::Qp, QpEvent::LastWqeReached.0, qpn);
    fixture.bench.handle(TransportEvent::Error { qpn });
    fixture.bench.handle(TransportEvent::Error { qpn });
    assert_eq!((fixture.events(), fixture.bench.query(qpn).state), (vec![last], QpState::Err));
    let before = fixture.bench.go(qpn, QpState::Reset);
    fixture.bench.handle(TransportEvent::Error { qpn });
    assert_eq!((fixture.events(), fixture.bench.query(qpn).state), (vec![], QpState::Reset));
    fixture.bench.go(qpn, QpState::Err);
    assert_eq!(fixture.events(), [last]);
    assert_eq!(fixture.bench.go(qpn, QpState::Reset), before.wrapping_add(1));
    let surplus = step_to(QpState::Rtr);
    assert_eq!(fixture.bench.modify(qpn, &surplus).status, AdminStatus::BadState);
    assert_eq!(fixture.bench.destroy(Opcode::DestroyQp, qpn), AdminStatus::Success);
    assert_eq!(fixture.bench.destroy(Opcode::DestroyQp, qpn), AdminStatus::NotFound);
}

#[test]
fn what_cannot_be_is_refused() {
    needs!(Need::OtherLimits);
    let mut fixture = Fixture::new();
    let ring = fixture.bench.memory.allocate(64 + 64);
    let kind = RqKind::Xrc;
    let queue =
        CreateRq { ring, page: PAGE, pdn: PDN, kind, cqn: 1, xrcdn: XRCDN, ..Default::default() };
    let status = fixture.bench.status(Opcode::CreateRq, &queue.encode());
    assert_eq!(status, AdminStatus::NotFound, "it needs a completion queue");
    // No other QP takes receives of a queue of a domain.
    let (cqn, rqn) = (fixture.cq.cqn, fixture.srq.rqn);
    let command = CreateQp { receive_cqn: cqn, rqn, ..fixture.create(QpType::Rc) };
    let status = fixture.bench.status(Opcode::CreateQp, &command.encode());
    assert_eq!(status, AdminStatus::NotFound);
    let mut without = Bench::new();
    assert_eq!(without.status(Opcode::CreateRq, &queue.encode()), AdminStatus::Unsupported);
    for kind in [QpType::XrcSend, QpType::XrcReceive] {
        let command = CreateQp { kind, page: PAGE, ..Default::default() };
        let status = without.status(Opcode::CreateQp, &command.encode());
        assert_eq!(status, AdminStatus::Unsupported, "{kind:?}");
    }
}

#[test]
fn all_of_it_ends_with_the_engine() {
    needs!(Need::OtherLimits);
    let mut fixture = Fixture::new();
    let qpn = fixture.target();
    let request = fixture.request(qpn);
    fixture.bench.reset();
    assert_eq!(fixture.bench.device.take_xrc_receive(request), Err(ReceiveError::NoSrq));
    assert!(!fixture.bench.transport.has(qpn));
}

#[test]
fn a_target_fails_whose_message_a_queue_cannot_tell_of_whichever_engine_has_it() {
    needs!(Need::OtherLimits);
    let mut fixture = Fixture::new();
    let small = fixture.bench.create_cq(0);
    let mut srq = fixture.bench.create_xrc_rq(3, (small.cqn, XRCDN));
    (0..3).for_each(|tag| srq.post(tag, &[]));
    fixture.srq = srq;
    fixture.bench.transport.refuses = true;
    let own = fixture.target();
    climb(&mut fixture.bench, QpType::XrcReceive, own);
    fixture.events();
    for qpn in [own, FOREIGN_QPN, own] {
        let id = fixture.take(qpn);
        fixture.received(qpn, id, 0);
    }
    assert_eq!(fixture.bench.transport.refused, [FOREIGN_QPN, own]);
    // The transport tells the engine that has it; this one tells of its own.
    for qpn in [FOREIGN_QPN, own] {
        fixture.bench.handle(TransportEvent::Async { qpn, event: QpEvent::Fatal });
        fixture.bench.handle(TransportEvent::Error { qpn });
    }
    let told = fixture.events();
    let of = |event: QpEvent| (EventType::Qp, event.0, own);
    let error = (EventType::CqError, 0, small.cqn);
    assert_eq!(told, [error, of(QpEvent::Fatal), of(QpEvent::LastWqeReached)]);
    assert_eq!(fixture.bench.query(own).state, QpState::Err);
}
