//! Registers, enabling, reset, numbers.

use fpga_regs::engine::admin::{AdminStatus, CreateCq, Opcode};
use fpga_regs::engine::window::{self as w, Profile};
use fpga_regs::engine::wqe::SendOpcode;
use queue_engine::EngineConfig;

use crate::engine::support::bench::{Bench, PAGE, standard};
use crate::engine::support::device::{Device as _, Need, needs};
use crate::engine::support::manual::Manual;
use crate::engine::support::memory::{TestMemory, TestPage};
use crate::engine::support::wqe::Wqe;

#[test]
fn the_window_says_what_the_engine_is_and_offers() {
    let mut bench = Bench::stopped(standard(), Manual::default());
    assert_eq!(bench.read(w::MAGIC), w::MAGIC_VALUE);
    let version = u64::from(w::VERSION_MAJOR) << 16 | u64::from(w::VERSION_MINOR);
    assert_eq!(bench.read(w::VERSION), version | u64::from(Profile::Vqe.0) << 32);
    assert_eq!(bench.read(w::CAPABILITIES), standard().capabilities.bits());
    let EngineConfig { qps, cqs, keys, rqs, ahs, .. } = standard();
    assert_eq!(bench.read(w::LIMIT_QP_CQ), u64::from(qps) | u64::from(cqs) << 32);
    assert_eq!(bench.read(w::LIMIT_KEY_RQ), u64::from(keys) | u64::from(rqs) << 32);
    let queues = 12 | 10 << 8 | 10 << 16 | 16 << 24 | 288 << 32 | 16 << 48 | 16 << 56;
    assert_eq!(bench.read(w::LIMIT_QUEUES), queues);
    assert_eq!(bench.read(w::LIMIT_PORT), 1 << 30 | 16 << 32 | 1 << 40 | u64::from(ahs) << 48);
    let numbers = w::LimitNumbers::decode(bench.read(w::LIMIT_NUMBERS));
    assert_eq!(numbers.qpn_bits, 20);
    assert!((13..=20).contains(&numbers.qpn_random), "{numbers:?}");
    assert_eq!(bench.read(w::STATUS), 0);
    for time in [0, 77] {
        bench.pass(time);
        let now = bench.now();
        let read = bench.read(w::TIMESTAMP);
        assert!((now..=bench.now()).contains(&read), "{read}");
    }
}

#[test]
fn ring_registers_read_back_and_others_read_zero() {
    let mut bench = Bench::stopped(standard(), Manual::default());
    let rings = [w::ADMIN_SQ_BASE, w::ADMIN_SQ_SIZE, w::ADMIN_CQ_BASE, w::ADMIN_CQ_SIZE];
    let events = [w::EVENT_BASE, w::EVENT_SIZE, w::EVENT_RINGS];
    for (value, register) in (1..).zip(rings.into_iter().chain(events)) {
        bench.write(register, value);
        assert_eq!(bench.read(register), value);
    }
    let write_only = [w::CONTROL, w::ADMIN_DOORBELL, w::EVENT_CONSUMER, w::EVENT_OVERFLOW_CLEAR];
    for register in write_only.into_iter().chain([0x48, 0x1000, 0xfff8, u64::MAX]) {
        assert_eq!(bench.read(register), 0, "{register:#x}");
    }
    for register in [w::MAGIC, w::VERSION, w::CAPABILITIES, w::STATUS] {
        let before = bench.read(register);
        bench.write(register, !before);
        assert_eq!(bench.read(register), before, "{register:#x}");
    }
    let before = bench.read(w::TIMESTAMP);
    bench.write(w::TIMESTAMP, !before);
    let read = bench.read(w::TIMESTAMP);
    assert!((before..=bench.now()).contains(&read), "{read}");
}

#[test]
fn rings_out_of_reach_unaligned_or_too_large_leave_the_engine_disabled() {
    let sound = |bench: &Bench<Manual>| {
        let Bench { admin_sq, admin_cq, event_ring, .. } = *bench;
        [
            (w::ADMIN_SQ_BASE, admin_sq),
            (w::ADMIN_SQ_SIZE, 4),
            (w::ADMIN_CQ_BASE, admin_cq),
            (w::ADMIN_CQ_SIZE, 4),
            (w::EVENT_BASE, event_ring),
            (w::EVENT_SIZE, 5),
        ]
    };
    let wrong: [(u64, &[u64]); 6] = [
        (w::ADMIN_SQ_BASE, &[0, 0x10_0008, u64::MAX - 63]),
        (w::ADMIN_SQ_SIZE, &[5, 13, 64, 256, u64::MAX]),
        (w::ADMIN_CQ_BASE, &[0, 0x10_2020]),
        (w::ADMIN_CQ_SIZE, &[5, 13, 260]),
        (w::EVENT_BASE, &[0, 0x10_4001]),
        (w::EVENT_SIZE, &[6, 17, 1 << 32]),
    ];
    for (register, values) in wrong {
        for &value in values {
            let mut bench = Bench::stopped(standard(), Manual::default());
            for (sound_register, sound_value) in sound(&bench) {
                bench.write(sound_register, sound_value);
            }
            bench.write(register, value);
            bench.write(w::CONTROL, w::CONTROL_ENABLE);
            assert_eq!(bench.read(w::STATUS), 0, "{register:#x} = {value:#x}");
            bench.write(w::ADMIN_DOORBELL, 1);
            bench.settle();
            assert!(bench.admin_completions().is_empty());
        }
    }
}

#[test]
fn an_unaligned_ring_is_refused_even_where_memory_would_bear_it() {
    let mut bench = Bench::stopped_over(TestMemory::everything(), standard(), Manual::default());
    for register in [w::ADMIN_SQ_BASE, w::ADMIN_CQ_BASE, w::EVENT_BASE] {
        bench.write(register, 0x1020);
        bench.write(w::CONTROL, w::CONTROL_ENABLE);
        assert_eq!(bench.read(w::STATUS), 0);
        bench.write(register, 0x1000);
    }
    bench.write(w::CONTROL, w::CONTROL_ENABLE);
    assert_eq!(bench.read(w::STATUS), w::STATUS_ENABLED);
}

#[test]
fn enabling_a_running_engine_changes_nothing() {
    let mut bench = Bench::new();
    let cq = bench.create_cq(2);
    bench.write(w::CONTROL, w::CONTROL_ENABLE);
    bench.memory.take_published();
    bench.execute_admin();
    assert!(bench.memory.take_published().is_empty(), "no command is executed twice");
    assert_eq!(bench.destroy(Opcode::DestroyCq, cq.cqn), AdminStatus::Success);
}

#[test]
fn reset_forgets_every_object_and_stops_all_dma() {
    let mut bench = Bench::new();
    let cq = bench.create_cq(4);
    let region = bench.register(4096);
    let mut qps: Vec<_> = (0..3).map(|_| bench.ready_qp(&cq)).collect();
    let mut qpns: Vec<_> = qps.iter().map(|qp| qp.qpn).collect();
    qps[0].post(&Wqe::gather(SendOpcode::Send, &[region.sge(0, 8)]));

    bench.device.take_interrupt();
    bench.write(w::CONTROL, w::CONTROL_RESET);
    assert_eq!(bench.read(w::STATUS), 0);
    qpns.sort_unstable();
    bench.transport.destroyed.sort_unstable();
    assert_eq!(bench.transport.destroyed, qpns);
    assert!(bench.transport.gids.is_empty());
    assert!(!bench.device.take_interrupt());
    bench.memory.take_published();
    bench.transport.sent.clear();
    for qp in &mut qps {
        qp.ring();
        qp.rq.post(1, &[]);
    }
    bench.settle();
    assert!(bench.transport.sent.is_empty());
    assert!(bench.memory.take_published().is_empty());

    bench.start();
    assert_eq!(bench.destroy(Opcode::DestroyCq, cq.cqn), AdminStatus::NotFound);
    assert_eq!(bench.destroy(Opcode::DestroyKey, region.key), AdminStatus::NotFound);
    assert_eq!(bench.destroy(Opcode::DestroyQp, qps[0].qpn), AdminStatus::NotFound);
}

#[test]
fn doorbell_pages_stay_in_place_across_a_reset() {
    let mut bench = Bench::new();
    bench.write(w::CONTROL, w::CONTROL_RESET);
    bench.start();
    bench.set_gid(0, Some(crate::engine::support::bench::GID));
    let cq = bench.create_cq(4);
    let mut qp = bench.ready_qp(&cq);
    qp.post(&Wqe::gather(SendOpcode::Send, &[]));
    bench.settle();
    assert_eq!(bench.transport.sent.len(), 1);
}

#[test]
fn a_reset_of_the_shell_takes_the_doorbell_pages_too() {
    let mut bench = Bench::new();
    let cq = bench.create_cq(4);
    let qp = bench.ready_qp(&cq);
    bench.reset();
    assert_eq!(bench.transport.destroyed, [qp.qpn]);
    assert_eq!(bench.read(w::STATUS), 0);
    assert!(bench.device.open_page(PAGE, bench.page.clone()));
    bench.start();
    let cq = bench.create_cq(4);
    assert_eq!(bench.destroy(Opcode::DestroyCq, cq.cqn), AdminStatus::Success);
}

#[test]
fn a_page_is_opened_once_and_closed_pages_take_no_queues() {
    needs!(Need::Pages);
    let mut bench = Bench::new();
    assert!(!bench.device.open_page(PAGE, TestPage::default()));
    for page in [0, 16, 255] {
        assert!(!bench.device.open_page(page, TestPage::default()), "page {page}");
        bench.device.close_page(page);
    }
    assert!(bench.device.open_page(15, TestPage::default()));

    let cq = bench.create_cq(4);
    let mut qp = bench.ready_qp(&cq);
    bench.device.close_page(PAGE);
    qp.post(&Wqe::gather(SendOpcode::Send, &[]));
    bench.settle();
    assert!(bench.transport.sent.is_empty(), "a queue on a closed page is deaf");
    let ring = bench.memory.allocate(4096);
    let command = CreateCq { ring, log2_entries: 1, page: PAGE, vector: 0 };
    assert_eq!(bench.status(Opcode::CreateCq, &command.encode()), AdminStatus::Invalid);
    assert!(bench.device.open_page(PAGE, bench.page.clone()));
    assert_eq!(bench.destroy(Opcode::DestroyQp, qp.qpn), AdminStatus::Success);
}

#[test]
fn a_qpn_carries_the_number_of_its_window() {
    needs!(Need::OtherLimits);
    for window in 0..16 {
        let config = EngineConfig { window, ..standard() };
        let mut bench = Bench::with(config, Manual::default());
        let cq = bench.create_cq(4);
        for _ in 0..8 {
            let rq = bench.create_rq(0, 0);
            let qp = bench.create_qp(0, &cq, &cq, rq);
            assert_eq!(qp.qpn >> 20, u32::from(window));
        }
    }
}

#[test]
fn numbers_rest_across_destroy_and_reset() {
    let mut bench = Bench::new();
    let mut seen = std::collections::BTreeSet::new();
    for round in 0..200 {
        let region = bench.register(64);
        let cq = bench.create_cq(0);
        let rq = bench.create_rq(0, 0);
        let qp = bench.create_qp(0, &cq, &cq, rq);
        assert!(seen.insert((0, region.key >> 8)), "key {round}");
        assert!(seen.insert((1, cq.cqn)), "CQN {round}");
        assert!(seen.insert((2, qp.rq.rqn)), "RQN {round}");
        assert!(seen.insert((3, qp.qpn)), "QPN {round}");
        if round % 50 == 0 {
            bench.write(w::CONTROL, w::CONTROL_RESET);
            bench.start();
        } else {
            assert_eq!(bench.destroy(Opcode::DestroyQp, qp.qpn), AdminStatus::Success);
            assert_eq!(bench.destroy(Opcode::DestroyRq, qp.rq.rqn), AdminStatus::Success);
            assert_eq!(bench.destroy(Opcode::DestroyCq, cq.cqn), AdminStatus::Success);
            assert_eq!(bench.destroy(Opcode::DestroyKey, region.key), AdminStatus::Success);
        }
    }
}

#[test]
fn limits_beyond_the_number_spaces_are_brought_down() {
    needs!(Need::OtherLimits);
    let config = EngineConfig { qps: u32::MAX, keys: u32::MAX, ..standard() };
    let mut bench = Bench::stopped(config, Manual::default());
    let qps = bench.read(w::LIMIT_QP_CQ) as u32;
    assert!((1 << 18..1 << 19).contains(&qps), "{qps}");
    let keys = bench.read(w::LIMIT_KEY_RQ) as u32;
    assert!((1 << 22..1 << 23).contains(&keys), "{keys}");
}
