use std::rc::Rc;
use std::time::Duration;

use fpga_regs::coyote::tlb::Geometry;
use fpga_regs::coyote::vfpga::Bank;
use fpga_regs::engine::event::Event;
use fpga_regs::engine::qp::{AttributeMask, QpState};

use super::*;
use crate::event_ring::MOST_EVENTS;
use crate::fake::FakeCard;

fn engine() -> (Rc<FakeCard>, AdminEngine) {
    let card = Rc::new(FakeCard::new(2));
    let backend: Rc<dyn CardBackend> = Rc::<FakeCard>::clone(&card);
    let large = Geometry { page_bits: 21, order: 9, ways: 2 };
    let shell = Rc::new(Shell::new(3, backend, Bank::Plain, large, 2));
    let engine = AdminEngine::start(3, shell, 1, &mut Arena::new(&[(0, u64::MAX)])).unwrap();
    (card, engine)
}

fn completion_event(cqn: u32) -> Event {
    Event { kind: EventType::Completion, number: cqn, ..Event::default() }
}

#[test]
fn commands_are_answered_over_many_laps_of_the_rings() {
    let (_card, mut engine) = engine();
    assert_eq!(engine.name(), "balboa3 window 1");
    let (qpn, generation) = engine.create_qp(&CreateQp::default()).unwrap();
    assert_eq!(generation, 7);
    let wanted =
        Attributes { state: QpState::Err, mask: AttributeMask::STATE, ..Attributes::default() };
    for _ in 0..500 {
        let cqn = engine.create_cq(&CreateCq::default()).unwrap();
        engine.modify_qp(qpn, &wanted).unwrap_or_default();
        engine.destroy_cq(cqn).unwrap();
    }
    let (qpn, _) = engine.create_qp(&CreateQp::default()).unwrap();
    assert_eq!(engine.query_qp(qpn).unwrap().state, QpState::Reset);
    assert_eq!(engine.query_qp(qpn).unwrap().dest_qpn, 99);
    assert_eq!(engine.query_port().unwrap().active_mtu, 3);
    let counters: Vec<u64> = (1..=COUNTERS.len() as u64).collect();
    assert_eq!(engine.query_counters().unwrap(), counters);
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
    card.window(1, |w| w.silent = true);
    let error = engine.create_cq(&CreateCq::default()).unwrap_err();
    assert!(error.to_string().contains("no answer to CreateCq"), "{error}");
    assert!(matches!(error, Error::Dead { .. }));
    assert_eq!(engine.next_event(), Some(EngineEvent::Dead));
    card.window(1, |w| w.silent = false);
    assert!(engine.create_cq(&CreateCq::default()).is_err());
    engine.restart().unwrap();
    engine.set_command_limit(COMMAND_LIMIT);
    engine.create_cq(&CreateCq::default()).unwrap();
}

#[test]
fn a_card_that_is_gone_is_not_waited_for() {
    let (card, mut engine) = engine();
    card.window(1, |w| w.gone = true);
    let error = engine.create_cq(&CreateCq::default()).unwrap_err();
    assert!(error.to_string().contains("the card is gone"), "{error}");
    assert!(engine.restart().unwrap_err().to_string().contains("the card is gone"));
}

#[test]
fn events_come_in_order_over_many_laps_and_clear_the_interrupt() {
    let (card, mut engine) = engine();
    for lap in 0..3 {
        for i in 0..3000 {
            card.raise(1, completion_event(lap * 3000 + i));
        }
        engine.service();
        for i in 0..3000 {
            let event = engine.next_event();
            let Some(EngineEvent::Card(event)) = event else { panic!("{event:?}") };
            assert_eq!(event.number, lap * 3000 + i);
        }
        assert_eq!(engine.next_event(), None);
    }
    let vector = engine.interrupt().unwrap();
    assert_eq!(nix::unistd::read(vector, &mut [0; 8]), Err(nix::errno::Errno::EAGAIN));
}

#[test]
fn an_event_that_comes_before_the_clear_has_arrived_is_signalled_behind_it() {
    let (card, mut engine) = engine();
    card.hold_clears();
    for number in 1..100 {
        card.raise(1, completion_event(2 * number));
        engine.service();
        card.raise(1, completion_event(2 * number + 1));
        assert!(!engine.shell.wait(1, Duration::ZERO).unwrap(), "the first is reported still");
        card.let_clears_arrive();
        assert!(engine.shell.wait(1, Duration::ZERO).unwrap(), "event {number} is lost");
        engine.service();
        card.let_clears_arrive();
        let events = std::iter::from_fn(|| engine.next_event());
        let numbers = events.map(|event| match event {
            EngineEvent::Card(event) => event.number,
            other => panic!("{other:?}"),
        });
        assert_eq!(numbers.collect::<Vec<_>>(), [2 * number, 2 * number + 1]);
    }
}

#[test]
fn an_overflow_is_reported_once_as_lost_events() {
    let (card, mut engine) = engine();
    for i in 0..5000 {
        card.raise(1, completion_event(i));
    }
    engine.service();
    let events: Vec<_> = std::iter::from_fn(|| engine.next_event()).collect();
    assert_eq!(events.len(), 4097);
    assert_eq!(events.last(), Some(&EngineEvent::Lost));
    card.raise(1, completion_event(9));
    engine.service();
    assert_eq!(std::iter::from_fn(|| engine.next_event()).count(), 1);
}

#[test]
fn no_event_of_a_destroyed_queue_is_returned() {
    let (card, mut engine) = engine();
    let cqn = engine.create_cq(&CreateCq::default()).unwrap();
    let other = engine.create_cq(&CreateCq::default()).unwrap();
    card.raise(1, completion_event(cqn));
    card.raise(1, completion_event(other));
    engine.service();
    card.raise(1, completion_event(cqn));
    engine.destroy_cq(cqn).unwrap();
    let events: Vec<_> = std::iter::from_fn(|| engine.next_event()).collect();
    assert!(matches!(events[..], [EngineEvent::Card(event)] if event.number == other));
}

#[test]
fn a_fatal_event_is_the_engines_death() {
    let (card, mut engine) = engine();
    card.raise(1, Event { kind: EventType::Fatal, code: 42, ..Event::default() });
    engine.service();
    assert!(engine.death().unwrap().contains("code 42"));
    assert!(engine.set_gid(0, None).is_err());
    card.window(1, |w| w.stuck = true);
    assert!(engine.restart().unwrap_err().to_string().contains("does not reset"));
}

#[test]
fn completions_that_nobody_asked_for_are_skipped_until_they_are_too_many() {
    let (card, mut engine) = engine();
    card.window(1, |w| w.babble = 3);
    for _ in 0..50 {
        engine.create_cq(&CreateCq::default()).unwrap();
    }
    // More than a lap in one answer is a card that would go on for ever.
    card.window(1, |w| w.babble = 1000);
    let error = engine.create_cq(&CreateCq::default()).unwrap_err();
    assert!(matches!(error, Error::Dead { .. }), "{error}");
}

#[test]
fn events_that_nobody_takes_become_one_look_at_every_queue() {
    let (card, mut engine) = engine();
    for _ in 0..40 {
        for cqn in 0..4096 {
            card.raise(1, completion_event(cqn));
        }
        engine.service();
    }
    let events: Vec<_> = std::iter::from_fn(|| engine.next_event()).collect();
    assert!(events.len() <= MOST_EVENTS && events.contains(&EngineEvent::Lost));
}

#[test]
fn completions_are_told_and_none_is_kept_whoever_waits_for_it() {
    let (card, mut engine) = engine();
    let heard = Rc::new(std::cell::RefCell::new(Vec::new()));
    let tell = Rc::clone(&heard);
    engine.listen(Rc::new(move |cqn| tell.borrow_mut().push(cqn)));
    for cqn in 0..3 {
        card.raise(1, completion_event(cqn));
    }
    engine.service();
    assert_eq!(*heard.borrow(), [0, 1, 2]);
    assert_eq!(engine.next_event(), None);
}
