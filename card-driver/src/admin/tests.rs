use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::Duration;

use fpga_regs::coyote::tlb::Geometry;
use fpga_regs::coyote::vfpga::{self, Bank, EventKind, IsrRead};
use fpga_regs::engine::admin::RqKind;
use fpga_regs::engine::event::{Event, EventType};
use fpga_regs::engine::qp::{AttributeMask, QpState, QpType};

use super::*;
use crate::fake::FakeCard;
use crate::lock::lock;
use crate::relay::ClientRings;
use crate::shell::SpacesOfWindows;

fn engine() -> (Arc<FakeCard>, AdminEngine) {
    let card = Arc::new(FakeCard::with_interrupts(2));
    let engine = engine_of(&card);
    (card, engine)
}

fn engine_of(card: &Arc<FakeCard>) -> AdminEngine {
    let backend: Arc<dyn CardBackend> = Arc::<FakeCard>::clone(card);
    let large = Geometry { page_bits: 21, order: 9, ways: 2 };
    let translator = Arc::new(SpacesOfWindows::new(large, 2));
    let shell = Arc::new(Shell::new(3, backend, Bank::Plain, 2, translator));
    let fd = memfd::create("rings", 4096).unwrap();
    let mapping = SharedMapping::new(fd.as_fd(), 0, 4096, Access::ReadWrite).unwrap();
    let mapping = Arc::new(mapping);
    let rings = DmaMemory::Shared { mapping: Arc::clone(&mapping), offset: 0 };
    card.dma_map(RINGS, 4096, rings).unwrap();
    shell.map(1, RINGS, 4096, Purpose::OwnRings);
    let mut engine = AdminEngine::start(3, shell, 1, &mut Arena::new(&[(0, u64::MAX)])).unwrap();
    let rings = ClientRings { memory: Arc::clone(&mapping), iova: RINGS };
    engine.grant(PAGE, rings).unwrap();
    engine
}

/// Where all queues have their rings, and their doorbell page.
const RINGS: u64 = 1 << 40;
const PAGE: u8 = 1;
const CQ: CreateCq = CreateCq { ring: RINGS, log2_entries: 0, page: PAGE, vector: 0 };

fn qp(engine: &mut AdminEngine) -> (u32, u8) {
    let cqn = engine.create_cq(&CQ).unwrap();
    let queue = CreateRq { ring: RINGS, page: PAGE, ..CreateRq::default() };
    let rqn = engine.create_rq(&queue).unwrap();
    let (kind, page) = (QpType::Rc, PAGE);
    let wanted = CreateQp { sq_ring: RINGS, kind, page, ..CreateQp::default() };
    engine.create_qp(&CreateQp { send_cqn: cqn, receive_cqn: cqn, rqn, ..wanted }).unwrap()
}

/// Lets engine 1 hear of no commands.
fn silence(card: &FakeCard) {
    card.script(|card, offset, value| {
        if offset != user_csr(1) + window::ADMIN_DOORBELL {
            card.pass(offset, value);
        }
    });
}

/// The numbers of the objects that the engine tells of, once they are served.
#[derive(Default)]
struct Heard(Arc<Mutex<Vec<u32>>>);

impl Heard {
    fn of(engine: &mut AdminEngine) -> Self {
        let heard = Arc::<Mutex<Vec<u32>>>::default();
        let tell = Arc::clone(&heard);
        engine.listen(Arc::new(move |event| lock(&tell).push(event.number)));
        Self(heard)
    }

    fn take(&self) -> Vec<u32> {
        std::mem::take(&mut lock(&self.0))
    }
}

fn completion_event(cqn: u32) -> Event {
    Event { kind: EventType::Completion, number: cqn, ..Event::default() }
}

#[test]
fn commands_are_answered_over_many_laps_of_the_rings() {
    let (card, mut engine) = engine();
    assert_eq!(engine.name(), "balboa3 window 1");
    let (qpn, generation) = qp(&mut engine);
    let mask = AttributeMask::STATE;
    let failed = Attributes { state: QpState::Err, mask, ..Attributes::default() };
    for _ in 0..500 {
        let cqn = engine.create_cq(&CQ).unwrap();
        assert_eq!(engine.modify_qp(qpn, &failed).unwrap(), generation);
        engine.destroy_cq(cqn).unwrap();
    }
    assert_eq!(engine.query_qp(qpn).unwrap().state, QpState::Err);
    let (qpn, _) = qp(&mut engine);
    assert_eq!(engine.query_qp(qpn).unwrap().state, QpState::Reset);
    assert_eq!(engine.query_port().unwrap().active_mtu, 5);
    // Both blocks of an answer, and all words of one with many.
    let attributes = Attributes { dest_qpn: 99, dgid: [7; 16], ..Attributes::default() };
    let counters: Vec<u64> = (1..=COUNTERS.len() as u64).collect();
    let block = |words: &[u64]| std::array::from_fn(|i| words.get(i).copied().unwrap_or(0));
    card.window(1, |w| {
        w.answers.insert(Opcode::QueryQp, attributes.encode().into());
        w.answers.insert(Opcode::QueryCounters, counters.chunks(8).map(block).collect());
    });
    assert_eq!(engine.query_qp(qpn).unwrap(), attributes);
    assert_eq!(engine.query_counters().unwrap(), counters);
}

#[test]
fn an_engine_s_own_counters_are_those_that_it_has_seen() {
    let (card, mut engine) = engine();
    assert_eq!(engine.own_counters(), []);
    let register = |offset| user_csr(1) + offset;
    card.set(Bar::Shell, register(window::PAYLOAD_WRITTEN), 1 << 40);
    card.set(Bar::Shell, register(window::IGNORED), 7 << 32);
    assert_eq!(
        engine.own_counters(),
        [("engine_payload_written", 1 << 40), ("engine_ignored_doorbells", 7)]
    );
    card.set(Bar::Shell, register(window::MAGIC), u64::MAX);
    assert_eq!(engine.own_counters(), []);
}

#[test]
fn a_refused_command_names_engine_command_and_status() {
    let (card, mut engine) = engine();
    card.window(1, |w| w.refuse.insert(Opcode::CreateKey, AdminStatus::NoResources));
    let error = engine.create_key(&CreateKey::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "balboa3 window 1: CreateKey was refused: the engine's table is full"
    );
    assert!(engine.death().is_none());
}

#[test]
fn a_silent_engine_is_dead_and_fails_at_once_until_it_is_restarted() {
    let (card, mut engine) = engine();
    engine.set_command_limit(Duration::ZERO);
    silence(&card);
    let error = engine.create_cq(&CQ).unwrap_err();
    assert!(error.to_string().contains("no answer to CreateCq"), "{error}");
    assert!(matches!(error, Error::Dead { .. }));
    assert_eq!(engine.next_event(), Some(EngineEvent::Dead));
    card.script(FakeCard::pass);
    assert!(engine.create_cq(&CQ).is_err());
    engine.restart().unwrap();
    engine.set_command_limit(COMMAND_LIMIT);
    engine.create_cq(&CQ).unwrap();
}

#[test]
fn a_card_that_is_gone_is_not_waited_for() {
    let (card, mut engine) = engine();
    card.leave();
    let error = engine.create_cq(&CQ).unwrap_err();
    assert!(error.to_string().contains("the card is gone"), "{error}");
    assert!(engine.restart().unwrap_err().to_string().contains("the card is gone"));
}

#[test]
fn events_are_told_in_order_over_many_laps_and_clear_the_interrupt() {
    let (card, mut engine) = engine();
    let heard = Heard::of(&mut engine);
    for lap in 0..3 {
        let numbers = lap * 3000..(lap + 1) * 3000;
        numbers.clone().for_each(|number| card.raise(1, completion_event(number)));
        engine.shell.attend().unwrap();
        assert_eq!(heard.take(), numbers.collect::<Vec<_>>());
    }
    // An event that came while the first was reported is reported behind it, without a new interrupt.
    engine.shell.attend().unwrap();
    let reported = card.read64(Bar::Shell, Bank::Plain.cnfg(1) + vfpga::ISR);
    assert_eq!(IsrRead::decode(reported).kind, EventKind::Offload, "no event");
    assert_eq!(engine.next_event(), None);
}

#[test]
fn an_event_that_comes_before_the_clear_has_arrived_is_signalled_behind_it() {
    let (card, mut engine) = engine();
    let heard = Heard::of(&mut engine);
    card.hold_clears();
    for number in 1..100 {
        card.raise(1, completion_event(2 * number));
        engine.shell.attend().unwrap();
        card.raise(1, completion_event(2 * number + 1));
        let seen = engine.shell.signals(1);
        engine.shell.attend().unwrap();
        assert_eq!(engine.shell.signals(1), seen, "the first is reported still");
        card.let_clears_arrive();
        engine.shell.attend().unwrap();
        assert_ne!(engine.shell.signals(1), seen, "event {number} is lost");
        card.let_clears_arrive();
        assert_eq!(heard.take(), [2 * number, 2 * number + 1]);
    }
}

/// The value of engine 1's interrupt register, and what it reports.
fn reported(card: &FakeCard) -> (u64, EventKind) {
    let isr = card.read64(Bar::Shell, Bank::Plain.cnfg(1) + vfpga::ISR);
    (isr, IsrRead::decode(isr).kind)
}

#[test]
fn completions_are_told_on_the_cards_thread_until_the_card_is_to_be_asked_for_lost_ones() {
    let (card, mut engine) = engine();
    let heard = Heard::of(&mut engine);
    let mut told = 0;
    for cqn in 0..1500 {
        card.raise(1, completion_event(cqn));
        let seen = engine.shell.signals(1);
        if engine.shell.serve_at_once(1, reported(&card).0) {
            told += 1;
            assert_ne!(engine.shell.signals(1), seen, "a thread that waits looks again");
        } else {
            engine.shell.attend().unwrap();
        }
        assert_eq!(heard.take(), [cqn]);
        assert_eq!(reported(&card).1, EventKind::Offload, "it is taken back");
    }
    assert!((1400..1500).contains(&told), "{told}");
}

#[test]
fn all_else_is_left_to_a_thread_that_may_wait() {
    let (card, mut engine) = engine();
    let heard = Heard::of(&mut engine);
    let is_left = |engine: &AdminEngine| {
        let (isr, kind) = reported(&card);
        assert_eq!(kind, EventKind::Notify);
        !engine.shell.serve_at_once(1, isr) && reported(&card).1 == kind
    };
    assert!(!engine.shell.serve_at_once(1, reported(&card).0), "nothing is reported");
    assert!(!engine.shell.serve_at_once(99, 0), "there is no such vFPGA");
    // More of one ring than others are to wait for.
    (0..5).for_each(|cqn| card.raise(1, completion_event(cqn)));
    assert!(is_left(&engine));
    assert_eq!(heard.take(), [0, 1, 2, 3]);
    engine.shell.attend().unwrap();
    assert_eq!(heard.take(), [4]);
    // Another event than a completion, which may be told at length, and what stands behind it.
    engine.shell.attend().unwrap();
    let limit = Event { kind: EventType::ReceiveLimit, number: 6, ..Event::default() };
    [completion_event(5), limit, completion_event(7)].into_iter().for_each(|it| card.raise(1, it));
    assert!(is_left(&engine));
    assert_eq!(heard.take(), [5]);
    engine.shell.attend().unwrap();
    assert_eq!(heard.take(), [6, 7]);
    // While another thread serves the vector and reads the rings.
    let (shell, tried) = (Arc::clone(&engine.shell), Arc::new(Mutex::new(Vec::new())));
    let (by, notify) =
        (Arc::clone(&tried), IsrRead { kind: EventKind::Notify, ..IsrRead::default() });
    engine.listen(Arc::new(move |_| lock(&by).push(shell.serve_at_once(1, notify.encode()))));
    engine.shell.attend().unwrap();
    card.raise(1, completion_event(8));
    engine.shell.attend().unwrap();
    assert_eq!(*lock(&tried), [false]);
    engine.listen(Arc::new(|_| {}));
}

#[test]
fn an_overflow_is_reported_once_as_lost_events() {
    let (card, mut engine) = engine();
    let heard = Heard::of(&mut engine);
    (0..5000).for_each(|cqn| card.raise(1, completion_event(cqn)));
    engine.shell.attend().unwrap();
    assert_eq!(heard.take(), (0..4096).collect::<Vec<_>>());
    engine.service();
    assert_eq!(
        [engine.next_event(), engine.next_event()],
        [Some(EngineEvent::Lost { rings: 1 }), None]
    );
    card.raise(1, completion_event(9));
    engine.shell.attend().unwrap();
    assert_eq!((heard.take(), engine.next_event()), (vec![9], None));
}

#[test]
fn an_event_waits_for_its_own_ring_and_for_a_few_of_each_other() {
    const FEW: usize = 16;
    let (card, mut engine) = engine();
    assert_eq!(engine.limits().event_rings, 4);
    let heard = Heard::of(&mut engine);
    for lap in 0..3u32 {
        // A flood in the third ring, and rare events in the others.
        (0..4096).for_each(|cqn| card.raise_in(1, 2, completion_event(cqn)));
        let rare = [(0, 5000), (1, 5001), (3, 5003)];
        rare.into_iter().for_each(|(ring, cqn)| card.raise_in(1, ring, completion_event(cqn)));
        engine.shell.attend().unwrap();
        let heard = heard.take();
        let place = |cqn: u32| heard.iter().position(|it| *it == cqn).unwrap();
        assert!(place(5000) < 3 * FEW && place(5001) < 3 * FEW && place(5003) < 3 * FEW);
        let flood: Vec<u32> = heard.iter().copied().filter(|cqn| *cqn < 5000).collect();
        assert_eq!(flood, (0..4096).collect::<Vec<_>>(), "lap {lap}");
        assert_eq!(heard.len(), 4096 + 3);
    }
    assert_eq!(engine.next_event(), None);
}

#[test]
fn a_ring_that_overflows_has_its_own_events_lost_and_no_others() {
    let (card, mut engine) = engine();
    let heard = Heard::of(&mut engine);
    for round in 0..2 {
        (0..5000).for_each(|cqn| card.raise_in(1, 3, completion_event(cqn)));
        (0..4096).for_each(|cqn| card.raise_in(1, 1, completion_event(10_000 + cqn)));
        card.raise(1, completion_event(20_000));
        engine.shell.attend().unwrap();
        let mut told = heard.take();
        told.sort_unstable();
        let wanted = (0..4096).chain(10_000..14_096).chain([20_000]);
        assert_eq!(told, wanted.collect::<Vec<_>>(), "round {round}");
        engine.service();
        let lost = Some(EngineEvent::Lost { rings: 1 << 3 });
        assert_eq!([engine.next_event(), engine.next_event()], [lost, None]);
    }
    // Of several, all are said at once.
    for ring in [0, 2] {
        (0..5000).for_each(|cqn| card.raise_in(1, ring, completion_event(cqn)));
    }
    engine.shell.attend().unwrap();
    assert_eq!(engine.next_event(), Some(EngineEvent::Lost { rings: 0b101 }));
    card.raise_in(1, 2, completion_event(9));
    engine.shell.attend().unwrap();
    assert_eq!((heard.take().last(), engine.next_event()), (Some(&9), None));
}

#[test]
fn an_engine_is_told_of_the_space_in_a_ring_while_others_are_still_read() {
    let (card, mut engine) = engine();
    for ring in [0, 2] {
        (0..4096).for_each(|cqn| card.raise_in(1, ring, completion_event(cqn)));
    }
    let (heard, late) = (Heard::default(), Arc::clone(&card));
    let tell = Arc::clone(&heard.0);
    engine.listen(Arc::new(move |event| {
        let mut heard = lock(&tell);
        heard.push(event.number);
        // A quarter of each has been read, and the engine goes on.
        if heard.len() == 2 * 1100 {
            (0..1000).for_each(|cqn| late.raise_in(1, 0, completion_event(5000 + cqn)));
        }
    }));
    engine.shell.attend().unwrap();
    assert_eq!(engine.next_event(), None);
    // As many of each as a ring has are a pass, and those that came meanwhile are in the next.
    let told = heard.take();
    assert!(told.iter().take(2 * 4096).all(|cqn| *cqn < 4096));
    assert_eq!(
        told.into_iter().skip(2 * 4096).collect::<Vec<_>>(),
        (5000..6000).collect::<Vec<_>>()
    );
}

/// Gives engine 1 capabilities that the software card's does not have.
fn needs(card: &FakeCard, needs: window::Capabilities) {
    let register = user_csr(1) + window::CAPABILITIES;
    card.set(Bar::Shell, register, card.read64(Bar::Shell, register) | needs.bits());
}

/// What was written to these registers of engine 1, in its order.
fn written(card: &FakeCard, registers: [u64; 2]) -> Vec<(u64, u64)> {
    let writes = card.take_writes().into_iter();
    let writes = writes.map(|(offset, value)| (offset.wrapping_sub(user_csr(1)), value));
    writes.filter(|(register, _)| registers.contains(register)).collect()
}

#[test]
fn an_engine_that_asks_for_a_seed_gets_one_before_each_start() {
    let card = Arc::new(FakeCard::with_interrupts(2));
    needs(&card, window::Capabilities::SEED);
    let mut engine = engine_of(&card);
    let mut writes = written(&card, [window::SEED, window::CONTROL]);
    engine.restart().unwrap();
    writes.extend(written(&card, [window::SEED, window::CONTROL]));
    let registers: Vec<u64> = writes.iter().map(|(register, _)| *register).collect();
    let start = [window::CONTROL, window::SEED, window::CONTROL];
    assert_eq!(registers, [start, start].concat());
    let seeds = [writes[1].1, writes[4].1];
    assert!(seeds[0] != seeds[1] && !seeds.contains(&0), "{seeds:x?}");
}

#[test]
fn an_engine_of_the_contract_before_is_written_no_register_that_it_lacks() {
    let card = Arc::new(FakeCard::with_interrupts(2));
    let profile = u64::from(window::Profile::Vqe.0) << 32;
    card.set(Bar::Shell, user_csr(1) + window::VERSION, 1 << 16 | 1 | profile);
    card.set(Bar::Shell, user_csr(1) + window::LIMIT_NUMBERS, 0);
    let mut engine = engine_of(&card);
    assert_eq!((engine.limits().qpn_bits, engine.limits().qpn_random), (0, 0));
    card.fault(1, false, 8 << 21, 64);
    engine.shell.attend().unwrap();
    assert_eq!(engine.shell.counts().refused, 1);
    engine.restart().unwrap();
    qp(&mut engine);
    assert_eq!(written(&card, [window::SEED, window::FAULT_REFUSED]), []);
    // The same card, with an engine that has to be told.
    let card = Arc::new(FakeCard::with_interrupts(2));
    needs(&card, window::Capabilities::FAULT_REFUSED);
    let engine = engine_of(&card);
    card.fault(1, true, 8 << 21, 64);
    engine.shell.attend().unwrap();
    let note = window::FaultRefused { address: 8 << 21, is_write: true }.encode();
    assert_eq!(
        written(&card, [window::SEED, window::FAULT_REFUSED]),
        [(window::FAULT_REFUSED, note)]
    );
}

#[test]
fn a_card_that_knows_of_one_event_ring_is_driven_with_one() {
    let card = Arc::new(FakeCard::with_interrupts(2));
    card.set(Bar::Shell, user_csr(1) + window::LIMIT_EVENTS, 0);
    let mut engine = engine_of(&card);
    let heard = Heard::of(&mut engine);
    assert_eq!(engine.limits().event_rings, 1);
    assert_eq!(card.written(Bar::Shell, user_csr(1) + window::EVENT_RINGS), 1);
    let second = engine.create_cq(&CreateCq { vector: 1, ..CQ });
    assert!(matches!(second, Err(Error::Refused { status: AdminStatus::Invalid, .. })));
    let cqn = engine.create_cq(&CQ).unwrap();
    (0..5000).for_each(|_| card.raise(1, completion_event(cqn)));
    engine.shell.attend().unwrap();
    assert_eq!(heard.take().len(), 4096);
    assert_eq!(engine.next_event(), Some(EngineEvent::Lost { rings: 1 }));
}

#[test]
fn all_events_of_a_queue_are_told_before_its_end_is() {
    let (card, mut engine) = engine();
    let heard = Heard::of(&mut engine);
    for vector in 0..4 {
        let cqn = engine.create_cq(&CreateCq { vector, ..CQ }).unwrap();
        let other = engine.create_cq(&CreateCq { vector, ..CQ }).unwrap();
        card.raise_in(1, vector, completion_event(other));
        card.raise_in(1, vector, completion_event(cqn));
        engine.destroy_cq(cqn).unwrap();
        assert_eq!(heard.take(), [other, cqn]);
    }
    engine.shell.attend().unwrap();
    assert!(heard.take().is_empty());
}

#[test]
fn a_limit_is_given_behind_all_that_was_told_of_the_one_before() {
    let (card, mut engine) = engine();
    let heard = Heard::of(&mut engine);
    let queue = CreateRq { ring: RINGS, page: PAGE, kind: RqKind::Shared, ..CreateRq::default() };
    let rqn = engine.create_rq(&queue).unwrap();
    card.raise(1, Event { kind: EventType::ReceiveLimit, number: rqn, ..Event::default() });
    engine.modify_rq(rqn, 0).unwrap();
    assert_eq!(heard.take(), [rqn]);
    assert_eq!(card.window(1, |w| w.log.last().copied()), Some(Opcode::ModifyRq));
    assert!(engine.modify_rq(rqn + 1, 0).is_err());
    // Nothing is posted, which is told of at once.
    engine.modify_rq(rqn, 1).unwrap();
    engine.shell.attend().unwrap();
    assert_eq!(heard.take(), [rqn]);
}

#[test]
fn a_fatal_event_is_the_engines_death() {
    let (card, mut engine) = engine();
    card.raise(1, Event { kind: EventType::Fatal, code: 42, ..Event::default() });
    engine.shell.attend().unwrap();
    assert_eq!(nix::unistd::read(engine.news(), &mut [0; 8]), Ok(8), "its owner is told");
    engine.service();
    assert!(engine.death().unwrap().contains("code 42"));
    assert!(engine.set_gid(0, None, 0).is_err());
    card.set(Bar::Shell, user_csr(1) + window::STATUS, window::STATUS_FATAL);
    assert!(engine.restart().unwrap_err().to_string().contains("does not reset"));
}

#[test]
fn a_ring_that_is_emptied_for_a_restart_is_not_read_meanwhile() {
    let (card, mut engine) = engine();
    let heard = Heard::of(&mut engine);
    let events = Arc::clone(&engine.events);
    for restart in 0..20 {
        for _ in 0..=1 << LOG2_EVENTS {
            card.raise(1, completion_event(9));
            events.drain();
        }
        // Now in the lap in which an engine writes zeros.
        assert!(heard.take().iter().all(|number| *number == 9));
        let (begin, begun) = mpsc::channel();
        let stopped = AtomicBool::new(false);
        let restarted = thread::scope(|scope| {
            scope.spawn(|| {
                while !stopped.load(Ordering::Relaxed) {
                    events.drain();
                    let _ = begin.send(());
                }
            });
            begun.recv().unwrap();
            let restarted = engine.restart();
            stopped.store(true, Ordering::Relaxed);
            restarted
        });
        restarted.unwrap();
        assert_eq!(heard.take(), [0; 0], "restart {restart}");
    }
}

#[test]
fn completions_that_nobody_asked_for_are_skipped_until_they_are_too_many() {
    let (card, mut engine) = engine();
    for _ in 0..50 {
        card.window(1, |w| (0..3).for_each(|_| w.babble()));
        engine.create_cq(&CQ).unwrap();
    }
    // More than a lap in one answer is a card that would go on for ever.
    silence(&card);
    let stopped = AtomicBool::new(false);
    let error = thread::scope(|scope| {
        scope.spawn(|| {
            while !stopped.load(Ordering::Relaxed) {
                card.window(1, |w| w.babble());
            }
        });
        let error = engine.create_cq(&CQ).unwrap_err();
        stopped.store(true, Ordering::Relaxed);
        error
    });
    assert!(matches!(error, Error::Dead { .. }), "{error}");
    assert!(error.to_string().contains("it answers commands that were never given"), "{error}");
}
