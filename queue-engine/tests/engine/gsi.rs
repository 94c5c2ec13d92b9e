//! Queue pair 1: the driver's, and a kind of QP of datagrams.

use fpga_regs::engine::admin::{AdminStatus, CreateAh, CreateQp, Membership, Opcode};
use fpga_regs::engine::cqe::{Flags, Status};
use fpga_regs::engine::doorbell::{SlotValue, slot_value};
use fpga_regs::engine::qp::{AttributeMask as M, Attributes, GSI_QKEY, GSI_QPN, QpState, QpType};
use fpga_regs::engine::window::{self, Capabilities};
use fpga_regs::engine::wqe::{Datagram, SendOpcode};
use queue_engine::{EngineConfig, ReceiveKind, ReceivedMessage, TransportEvent, WqeOperation};

use crate::engine::support::bench::{Bench, PAGE, PDN, sound_attributes, standard};
use crate::engine::support::client::{ClientCq, ClientQp};
use crate::engine::support::device::{Device as _, Need, needs};
use crate::engine::support::manual::Manual;
use crate::engine::support::wqe::Wqe;

/// An engine that offers it: that of window 0.
fn config() -> EngineConfig {
    EngineConfig {
        window: 0,
        capabilities: standard().capabilities | Capabilities::GSI,
        ..standard()
    }
}

fn bench() -> Bench<Manual> {
    Bench::with(config(), Manual::default())
}

fn made(bench: &mut Bench<Manual>) -> (ClientCq, ClientQp) {
    let (cq, rq) = (bench.create_cq(8), bench.create_rq(4, 0));
    let qp = bench.create_qp_of(QpType::Gsi, 6, (&cq, &cq), rq);
    (cq, qp)
}

/// Asks for another, which is not to be.
fn refusal(bench: &mut Bench<Manual>) -> AdminStatus {
    let (cq, rq) = (bench.create_cq(2), bench.create_rq(2, 0));
    let sq_ring = bench.memory.allocate(64 + 256);
    let (send_cqn, receive_cqn, rqn) = (cq.cqn, cq.cqn, rq.rqn);
    let (kind, page, pdn, log2_sq_blocks) = (QpType::Gsi, PAGE, PDN, 2);
    let queues = CreateQp { sq_ring, log2_sq_blocks, page, kind, pdn, ..CreateQp::default() };
    let command = CreateQp { send_cqn, receive_cqn, rqn, ..queues };
    bench.status(Opcode::CreateQp, &command.encode())
}

/// A doorbell that changes nothing in its slot is not heard.
#[test]
fn a_successor_never_has_a_generation_that_stands_in_the_slot_of_its_number() {
    needs!(Need::OtherLimits);
    let mut bench = bench();
    let page = bench.page.clone();
    let check = |qp: &ClientQp, generation: u8| {
        let standing = SlotValue::decode(page.load(qp.slot()));
        assert_ne!((standing.number, standing.generation), (qp.qpn, generation));
    };
    for cycle in 0..2000 {
        let (cq, mut qp) = made(&mut bench);
        check(&qp, qp.generation);
        // Any generation may stand there, not only that of the QP's last ring.
        page.store(qp.slot(), slot_value(qp.qpn, qp.generation.wrapping_add(1), 8));
        let generation = bench.go(qp.qpn, QpState::Reset);
        check(&qp, generation);
        assert_eq!(generation, qp.generation.wrapping_add(2));
        qp.start_over(generation.wrapping_add(cycle as u8));
        qp.produce(8);
        for (opcode, number) in [
            (Opcode::DestroyQp, qp.qpn),
            (Opcode::DestroyRq, qp.rq.rqn),
            (Opcode::DestroyCq, cq.cqn),
        ] {
            assert_eq!(bench.destroy(opcode, number), AdminStatus::Success);
        }
    }
}

#[test]
fn there_is_one_with_that_number_and_it_comes_again() {
    needs!(Need::OtherLimits);
    let mut bench = Bench::with(EngineConfig { qps: 2, ..config() }, Manual::default());
    for _ in 0..3 {
        let (_, qp) = made(&mut bench);
        assert_eq!(qp.qpn, GSI_QPN);
        assert_eq!(refusal(&mut bench), AdminStatus::NoResources);
        assert_eq!(bench.query(GSI_QPN).state, QpState::Reset);
        assert_eq!(bench.destroy(Opcode::DestroyQp, GSI_QPN), AdminStatus::Success);
        assert_eq!(bench.destroy(Opcode::DestroyQp, GSI_QPN), AdminStatus::NotFound);
    }
    made(&mut bench);
    bench.write(window::CONTROL, window::CONTROL_RESET);
    bench.start();
    assert_eq!(made(&mut bench).1.qpn, GSI_QPN);
    // It takes no place of theirs, and gave none when it went.
    let mut more = || {
        let (cq, rq) = (bench.create_cq(2), bench.create_rq(2, 0));
        let sq_ring = bench.memory.allocate(64 + 256);
        let (send_cqn, receive_cqn, rqn) = (cq.cqn, cq.cqn, rq.rqn);
        let (kind, page) = (QpType::Rc, PAGE);
        let queues = CreateQp { sq_ring, log2_sq_blocks: 2, page, kind, ..CreateQp::default() };
        let command = CreateQp { send_cqn, receive_cqn, rqn, ..queues };
        bench.status(Opcode::CreateQp, &command.encode())
    };
    let outcomes = [more(), more(), more()];
    let (made, full) = (AdminStatus::Success, AdminStatus::NoResources);
    assert_eq!(outcomes, [made, made, full]);
}

#[test]
fn other_windows_have_none_nor_has_an_engine_that_does_not_offer_it() {
    needs!(Need::OtherLimits);
    let elsewhere = EngineConfig { window: 2, ..config() };
    let without = EngineConfig { capabilities: standard().capabilities, ..config() };
    for config in [elsewhere, without] {
        let mut bench = Bench::with(config, Manual::default());
        let offers = Capabilities::from_bits_retain(bench.read(window::CAPABILITIES));
        assert!(!offers.contains(Capabilities::GSI));
        assert_eq!(refusal(&mut bench), AdminStatus::Unsupported);
    }
}

#[test]
fn it_has_its_q_key_and_no_other() {
    needs!(Need::OtherLimits);
    let mut bench = bench();
    made(&mut bench);
    let mask = M::STATE | M::PKEY_INDEX | M::PORT | M::QKEY;
    let init = Attributes { mask, state: QpState::Init, ..sound_attributes() };
    for qkey in [0, 1, 0x8000_0000, GSI_QKEY + 1, !GSI_QKEY] {
        let wrong = Attributes { qkey, ..init };
        assert_eq!(bench.modify(GSI_QPN, &wrong).status, AdminStatus::Invalid, "{qkey:#x}");
    }
    bench.climb_with_qkey(GSI_QPN, GSI_QKEY);
    let wrong = Attributes { mask: M::QKEY, qkey: 7, ..Attributes::default() };
    assert_eq!(bench.modify(GSI_QPN, &wrong).status, AdminStatus::Invalid);
    let (_, last) = bench.transport.modified.last().unwrap();
    assert_eq!((last.state, bench.query(GSI_QPN).state), (QpState::Rts, QpState::Rts));
}

#[test]
fn it_is_in_no_group() {
    needs!(Need::OtherLimits);
    let mut bench = bench();
    made(&mut bench);
    let group = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 7, 0, 2];
    let command = Membership { qpn: GSI_QPN, group }.encode();
    assert_eq!(bench.status(Opcode::AttachMulticast, &command), AdminStatus::Invalid);
    assert!(bench.transport.members.is_empty());
}

#[test]
fn it_sends_and_receives_datagrams_alone() {
    needs!(Need::OtherLimits);
    let mut bench = bench();
    let (mut cq, mut qp) = made(&mut bench);
    let region = bench.register(1 << 12);
    let dgid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 7, 0, 2];
    let vector = CreateAh { pdn: PDN, page: PAGE, dgid, ..CreateAh::default() };
    let ah = bench.succeed(Opcode::CreateAh, &vector.encode()).result;
    bench.climb_with_qkey(GSI_QPN, GSI_QKEY);
    let datagram = Datagram { ah, qpn: GSI_QPN, qkey: GSI_QKEY };
    let [[_, _, address, key, ..]] = datagram.encode();
    qp.post(&Wqe::inline(SendOpcode::Send, &[7; 256]).remote(address, key as u32));
    bench.settle();
    let sent = std::mem::take(&mut bench.transport.sent);
    let sent: Vec<_> = sent.iter().map(|it| (it.operation, it.length)).collect();
    assert_eq!(sent, [(WqeOperation::Datagram { datagram, immediate: None }, 256)]);
    bench.complete(GSI_QPN, 1);
    assert_eq!(cq.poll_one().status, Status::Success);

    qp.rq.post_as(1, &[], 255);
    qp.rq.post(2, &[region.sge(0, 296)]);
    assert!(bench.device.take_receive(GSI_QPN).is_err());
    assert_eq!(bench.device.take_receive(GSI_QPN).unwrap().capacity, 296);
    bench.handle(TransportEvent::Received(ReceivedMessage {
        qpn: GSI_QPN,
        length: 296,
        kind: ReceiveKind::Send,
        immediate: None,
        solicited: false,
        source_qpn: Some(1),
    }));
    let [failed, whole] = cq.poll().try_into().unwrap();
    assert_eq!((failed.wqe_index, failed.status), (1, Status::LocalProtection));
    assert_eq!((whole.wqe_index, whole.source_qpn, whole.byte_count), (2, 1, 296));
    assert_eq!(whole.flags, Flags::RECEIVE | Flags::GRH);
    assert_eq!(bench.query(GSI_QPN).state, QpState::Rts, "one receive that fails fails alone");

    // An operation of other services takes its send queue to SQE, as that of any QP of datagrams.
    qp.post(&Wqe::gather(SendOpcode::Write, &[region.sge(0, 8)]));
    bench.settle();
    assert_eq!(cq.poll_one().status, Status::LocalQpOperation);
    assert_eq!(bench.query(GSI_QPN).state, QpState::Sqe);
}
