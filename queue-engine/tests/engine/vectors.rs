//! Completion vectors: event rings beside the first one.

use fpga_regs::engine::admin::{AdminStatus, CreateCq, ModerateCq, Opcode, ResizeCq};
use fpga_regs::engine::doorbell::ArmKind;
use fpga_regs::engine::event::{EventType, QpEvent};
use fpga_regs::engine::window::{self as w, Capabilities};
use fpga_regs::engine::wqe::SendOpcode;
use queue_engine::{EngineConfig, TransportEvent};

use crate::engine::support::bench::{Bench, LOG2_EVENTS, PAGE, standard};
use crate::engine::support::client::{ClientCq, ClientQp};
use crate::engine::support::device::{Device as _, Need, needs};
use crate::engine::support::manual::Manual;
use crate::engine::support::wqe::Wqe;

fn rings() -> u8 {
    standard().event_rings
}
const ENTRIES: usize = 1 << LOG2_EVENTS;

/// An engine with so many event rings.
fn bench(rings: u8) -> Bench<Manual> {
    let mut bench = Bench::stopped(standard(), Manual::default());
    bench.lay(rings);
    bench.start();
    bench.set_gid(0, Some([1; 16]));
    bench
}

/// A queue of a vector, and a queue pair that completes there.
fn queue(bench: &mut Bench<Manual>, vector: u8) -> (ClientCq, ClientQp) {
    let cq = bench.create_cq_of(vector, 4);
    let qp = bench.ready_qp(&cq);
    (cq, qp)
}

/// Arms the queue and completes something on it; answers with the arming's sequence.
fn fire(bench: &mut Bench<Manual>, (cq, qp): &mut (ClientCq, ClientQp)) -> u64 {
    let sequence = cq.arm(ArmKind::Any).into();
    bench.settle();
    qp.post(&Wqe::gather(SendOpcode::Send, &[]));
    bench.settle();
    bench.complete(qp.qpn, 1);
    cq.poll_one();
    sequence
}

/// An event ring's events of completions: the queues and their arming's sequences.
fn told(bench: &mut Bench<Manual>, ring: u8) -> Vec<(u32, u64)> {
    let of_one = |event: fpga_regs::engine::event::Event| {
        assert_eq!(event.kind, EventType::Completion);
        (event.number, event.data)
    };
    bench.events_in(ring).into_iter().map(of_one).collect()
}

#[test]
fn completions_are_told_in_the_ring_of_their_queue_and_all_else_in_the_first() {
    needs!(Need::EventRings(4));
    let mut bench = bench(rings());
    let mut queues: Vec<_> = (0..rings()).map(|vector| queue(&mut bench, vector)).collect();
    for _ in 0..3 * ENTRIES {
        for (vector, queue) in (0..).zip(&mut queues) {
            bench.device.take_interrupt();
            let sequence = fire(&mut bench, queue);
            assert!(bench.device.take_interrupt());
            for ring in 0..rings() {
                let wanted = if ring == vector { vec![(queue.0.cqn, sequence)] } else { vec![] };
                assert_eq!(told(&mut bench, ring), wanted);
            }
        }
    }
    let qpn = queues[2].1.qpn;
    bench.handle(TransportEvent::Async { qpn, event: QpEvent::CommunicationEstablished });
    let told = bench.events();
    assert_eq!((told.len(), told[0].kind, told[0].number), (1, EventType::Qp, qpn));
    assert!((1..rings()).all(|ring| bench.events_in(ring).is_empty()));
}

#[test]
fn a_queue_that_overran_is_told_of_in_the_first_ring() {
    needs!(Need::EventRings(4));
    let mut bench = bench(rings());
    let (cq, mut qp) = queue(&mut bench, 3);
    for _ in 0..17 {
        qp.post(&Wqe::gather(SendOpcode::Send, &[]));
        bench.settle();
        bench.complete(qp.qpn, 1);
    }
    let told = bench.events();
    assert_eq!((told[0].kind, told[0].number), (EventType::CqError, cq.cqn));
    assert!(bench.events_in(3).is_empty());
}

#[test]
fn a_full_ring_loses_its_own_events_alone_and_says_so_until_it_is_told_otherwise() {
    let overflow = |rings: u8| {
        w::Status { enabled: true, ..w::Status::default() }.with_overflows(rings).encode()
    };
    for full in 0..rings() {
        let mut bench = bench(rings());
        let mut queues: Vec<_> = (0..rings()).map(|vector| queue(&mut bench, vector)).collect();
        for _ in 0..2 {
            for _ in 0..ENTRIES {
                fire(&mut bench, &mut queues[usize::from(full)]);
            }
            assert_eq!(bench.read(w::STATUS), overflow(0));
            bench.device.take_interrupt();
            fire(&mut bench, &mut queues[usize::from(full)]);
            assert!(bench.device.take_interrupt(), "the driver must hear of it");
            assert_eq!(bench.read(w::STATUS), overflow(1 << full));
            for (vector, queue) in (0..).zip(&mut queues).filter(|(vector, _)| *vector != full) {
                let sequence = fire(&mut bench, queue);
                assert_eq!(told(&mut bench, vector), [(queue.0.cqn, sequence)]);
                // That another ring is told of takes nothing back.
                let clear = w::EventOverflowClear { ring: vector };
                bench.write(w::EVENT_OVERFLOW_CLEAR, clear.encode());
                assert_eq!(bench.read(w::STATUS), overflow(1 << full));
            }
            assert_eq!(told(&mut bench, full).len(), ENTRIES);
            let clear = w::EventOverflowClear { ring: full };
            bench.write(w::EVENT_OVERFLOW_CLEAR, clear.encode());
            assert_eq!(bench.read(w::STATUS), overflow(0));
        }
    }
}

#[test]
fn a_queue_keeps_its_ring_where_it_is_moved_and_its_events_are_moderated() {
    needs!(Capabilities::MODERATION | Capabilities::RESIZE_CQ);
    let mut bench = bench(rings());
    let mut queue = queue(&mut bench, 2);
    let moderate = ModerateCq { cqn: queue.0.cqn, count: 5, period: 50 };
    bench.succeed(Opcode::ModerateCq, &moderate.encode());
    let ring = bench.memory.allocate(64 + (64 << 3));
    let resize = ResizeCq { ring, log2_entries: 3, cqn: queue.0.cqn };
    bench.succeed(Opcode::ResizeCq, &resize.encode());
    (queue.0.ring, queue.0.log2_entries, queue.0.consumer) = (ring, 3, 0);
    let sequence = fire(&mut bench, &mut queue);
    assert_eq!(told(&mut bench, 2), []);
    bench.pass(50_000);
    assert_eq!(told(&mut bench, 2), [(queue.0.cqn, sequence)]);
    assert!([0, 1, 3].into_iter().all(|ring| bench.events_in(ring).is_empty()));
}

#[test]
fn a_vector_without_a_ring_is_refused() {
    for laid in 1..=rings() {
        let mut bench = bench(laid);
        let ring = bench.memory.allocate(128);
        for vector in [0, laid - 1, laid, rings(), 255] {
            let command = CreateCq { ring, log2_entries: 0, page: PAGE, vector };
            let wanted = if vector < laid { AdminStatus::Success } else { AdminStatus::Invalid };
            let status = bench.status(Opcode::CreateCq, &command.encode());
            assert_eq!(status, wanted, "vector {vector} of {laid}");
        }
    }
}

#[test]
fn more_rings_than_there_can_be_and_rings_out_of_reach_leave_the_engine_disabled() {
    needs!(Need::OtherLimits);
    let started = |config: EngineConfig, laid: u8, written: u64| {
        let mut bench = Bench::stopped(config, Manual::default());
        bench.lay(laid);
        assert_eq!(bench.read(w::EVENT_RINGS), u64::from(laid));
        for (register, value) in [
            (w::ADMIN_SQ_BASE, bench.admin_sq),
            (w::ADMIN_SQ_SIZE, 4),
            (w::ADMIN_CQ_BASE, bench.admin_cq),
            (w::ADMIN_CQ_SIZE, 4),
            (w::EVENT_BASE, bench.event_ring),
            (w::EVENT_SIZE, LOG2_EVENTS.into()),
            (w::EVENT_RINGS, written),
            (w::CONTROL, w::CONTROL_ENABLE),
        ] {
            bench.write(register, value);
        }
        (bench.read(w::STATUS), bench.read(w::LIMIT_EVENTS))
    };
    let enabled = w::STATUS_ENABLED;
    // A driver that does not know the register lays one.
    assert_eq!(started(standard(), 1, 0), (enabled, rings().into()));
    assert_eq!(started(standard(), 1, 1).0, enabled);
    assert_eq!(started(standard(), rings(), rings().into()).0, enabled);
    assert_eq!(started(standard(), 2, 3).0, 0, "the third is out of reach");
    let limit = |event_rings| EngineConfig { event_rings, ..standard() };
    for (offered, limit) in [(0, limit(0)), (1, limit(1)), (3, limit(3))] {
        let limit_word = u64::from(offered.max(1u8));
        assert_eq!(started(limit, 3, limit_word), (enabled, limit_word));
        assert_eq!(started(limit, 8, limit_word + 1).0, 0);
    }
    assert_eq!(started(limit(255), 8, 8), (enabled, w::MAX_EVENT_RINGS.into()));
    for written in [9, 256, 257, 1 << 32, u64::MAX] {
        assert_eq!(started(limit(255), 8, written).0, 0, "{written:#x}");
    }
    let last = u64::MAX - 63;
    let mut bench = Bench::stopped(standard(), Manual::default());
    bench.lay(2);
    bench.write(w::EVENT_BASE, last);
    bench.write(w::CONTROL, w::CONTROL_ENABLE);
    assert_eq!(bench.read(w::STATUS), 0, "they would wrap");
}

/// An engine in whose rings so many events stand unread for a completion at most.
fn bench_of(completions: u64) -> Bench<Manual> {
    let mut bench = Bench::stopped(standard(), Manual::default());
    bench.lay(rings());
    bench.write(w::EVENT_COMPLETIONS, completions);
    assert_eq!(bench.read(w::EVENT_COMPLETIONS), completions);
    bench.start();
    bench.set_gid(0, Some([1; 16]));
    bench
}

#[test]
fn completions_that_find_no_room_wait_in_the_engine_and_none_is_lost() {
    needs!(Need::Queues(3 * ENTRIES as u32), Need::EventRings(4));
    // As the driver allows, and more than the ring has.
    for (limit, room) in [(4, 4), (1, 1), (u64::MAX, ENTRIES)] {
        let mut bench = bench_of(limit);
        let mut queues: Vec<_> = (0..3 * ENTRIES).map(|_| queue(&mut bench, 1)).collect();
        for lap in 0..3 {
            let mut fired: Vec<_> =
                queues.iter_mut().map(|queue| (queue.0.cqn, fire(&mut bench, queue))).collect();
            bench.device.take_interrupt();
            // Those that wait are told of once, as they fired last.
            for (queue, (_, sequence)) in queues.iter_mut().zip(&mut fired).skip(room) {
                *sequence = fire(&mut bench, queue);
            }
            let mut heard = Vec::new();
            while heard.len() < fired.len() {
                let told = told(&mut bench, 1);
                assert_eq!(told.len(), room.min(fired.len() - heard.len()), "lap {lap}");
                heard.extend(told);
                bench.settle();
                let more = heard.len() < fired.len();
                assert_eq!(bench.device.take_interrupt(), more, "the driver must hear of the next");
            }
            assert_eq!(heard, fired);
        }
        assert_eq!(bench.read(w::STATUS), w::STATUS_ENABLED);
        assert!([0, 2, 3].into_iter().all(|ring| bench.events_in(ring).is_empty()));
    }
}

#[test]
fn whose_queue_waits_for_room_has_a_turn_with_each_other_client() {
    needs!(Need::Queues(102));
    const FEW: usize = 4;
    let mut bench = bench_of(FEW as u64);
    for page in [2, 3] {
        let memory = bench.page.clone();
        assert!(bench.device.open_page(page, memory));
    }
    let mut of = |page: u8| {
        let cq = bench.create_cq_by(page, 0, 4);
        let qp = bench.ready_qp(&cq);
        (cq, qp)
    };
    let mut flood: Vec<_> = (0..100).map(|_| of(2)).collect();
    let mut seldom = [of(3), of(1)];
    for lap in 0..3 {
        for queue in flood.iter_mut().chain(&mut seldom) {
            fire(&mut bench, queue);
        }
        let mut heard = Vec::new();
        while heard.len() < flood.len() + seldom.len() {
            heard.extend(told(&mut bench, 0).into_iter().map(|(cqn, _)| cqn));
            bench.settle();
        }
        for (cq, _) in &seldom {
            let place = heard.iter().position(|cqn| *cqn == cq.cqn).unwrap();
            assert!(place < FEW + 3, "behind {place} events in lap {lap}");
        }
        let others = heard.into_iter().filter(|cqn| seldom.iter().all(|(cq, _)| cq.cqn != *cqn));
        assert!(others.eq(flood.iter().map(|(cq, _)| cq.cqn)), "in their order");
    }
}

#[test]
fn a_queue_that_ends_waits_no_more_and_all_else_is_told_beside_those_that_wait() {
    let mut bench = bench_of(2);
    let [mut first, mut second] = [queue(&mut bench, 0), queue(&mut bench, 0)];
    let mut third = queue(&mut bench, 0);
    let qpn = first.1.qpn;
    fire(&mut bench, &mut first);
    fire(&mut bench, &mut second);
    // Something else has the rest of the ring.
    let other = TransportEvent::Async { qpn, event: QpEvent::CommunicationEstablished };
    (2..ENTRIES).for_each(|_| bench.handle(other));
    assert_eq!(bench.read(w::STATUS), w::STATUS_ENABLED);
    fire(&mut bench, &mut third);
    let ended = [(Opcode::DestroyQp, third.1.qpn), (Opcode::DestroyCq, third.0.cqn)];
    for (opcode, number) in ended {
        assert_eq!(bench.destroy(opcode, number), AdminStatus::Success);
    }
    assert_eq!(bench.events().len(), ENTRIES);
    bench.settle();
    assert!(bench.events().is_empty(), "of a queue that has gone nothing is told");
    // A reset forgets the others.
    for queue in [&mut first, &mut second] {
        fire(&mut bench, queue);
        fire(&mut bench, queue);
    }
    bench.write(w::CONTROL, w::CONTROL_RESET);
    bench.start();
    bench.settle();
    assert!(bench.events().is_empty());
}
