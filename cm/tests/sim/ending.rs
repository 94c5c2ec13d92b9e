//! How connections end.

use std::time::Duration;

use cm::wire::{
    ApPathStatus, Attribute, Body, Dreq, Lap, Message, Rej, RejectReason, Rejected, Rtu,
};
use cm::{EventKind, Farewell, Id, State, param};

use crate::world::{World, farewell};

const MILLISECOND: Duration = Duration::from_millis(1);

fn last(world: &World) -> Body {
    world.sent.last().unwrap().message.body
}

/// CM-13, CM-36, CM-37, CM-40.
#[test]
fn a_connection_ends_by_question_and_answer_and_rests_for_a_while() {
    let (mut world, active, passive) = World::connected();
    world.call(0, |manager, now| manager.disconnect(now, active, b"bye")).unwrap();
    assert_eq!(world.state(0, active), State::DreqSent);
    let transactions = [world.sent[0].message, world.sent.last().unwrap().message];
    assert_ne!(transactions[0].transaction_id, transactions[1].transaction_id);
    world.pass(MILLISECOND);
    let event = world.event(1);
    let EventKind::Disconnected { by: Farewell::Dreq, private_data } = event.kind else { panic!() };
    assert!(private_data.len() == 220 && private_data.starts_with(b"bye"));
    assert_eq!(world.state(1, passive), State::DreqReceived);
    world.call(1, |manager, now| manager.disconnect(now, passive, b"well")).unwrap();
    assert_eq!(world.sent.last().unwrap().message.transaction_id, transactions[1].transaction_id);
    let at = world.now;
    world.pass(MILLISECOND);
    let EventKind::Disconnected { by: Farewell::Drep, private_data } = world.event(0).kind else {
        panic!()
    };
    assert!(private_data.len() == 224 && private_data.starts_with(b"well"));
    assert_eq!(
        (world.state(0, active), world.state(1, passive)),
        (State::TimeWait, State::TimeWait)
    );
    let rest = param::time(param::ack_timeout(15, param::PACKET_LIFETIME));
    assert_eq!(world.nodes[1].manager.next_deadline(), Some(at.after(rest)));
    world.settle();
    for (node, id) in [(0, active), (1, passive)] {
        assert_eq!(world.event(node).kind, EventKind::TimeWaitExit);
        assert_eq!(world.state(node, id), State::Ended);
        world.call(node, |manager, now| manager.destroy(now, id)).unwrap();
    }
    assert!(world.is_empty());
}

/// CM-36.
#[test]
fn a_peer_that_does_not_answer_is_asked_again_and_then_left() {
    let (mut world, active, _) = World::connected();
    world.loses = Box::new(|_, _| true);
    world.call(0, |manager, now| manager.disconnect(now, active, &[])).unwrap();
    world.settle();
    assert_eq!(world.count(0, Attribute::DREQ), 16);
    assert_eq!(farewell(&world.event(0)), Farewell::Silence);
    assert_eq!(world.event(0).kind, EventKind::TimeWaitExit);
}

/// CM-37.
#[test]
fn a_repeated_question_is_answered_again_by_the_same_words() {
    let (mut world, active, passive) = World::connected();
    let mut lost = 0;
    world.loses = Box::new(move |_, body| {
        lost += u32::from(matches!(body, Body::Drep(_)));
        matches!(body, Body::Drep(_)) && lost <= 1
    });
    world.call(0, |manager, now| manager.disconnect(now, active, &[])).unwrap();
    world.pass(MILLISECOND);
    world.call(1, |manager, now| manager.disconnect(now, passive, b"well")).unwrap();
    world.call(1, |manager, now| manager.destroy(now, passive)).unwrap();
    // Longer than the time-wait of the side that answered would be too late for its words.
    let mut early =
        world.sent.iter().rfind(|it| it.attribute() == Attribute::DREQ).unwrap().clone();
    let route = world.route(0, 1);
    world.deliver(route, &early.message.to_bytes());
    world.pass(MILLISECOND);
    let first = world.event(1);
    assert_eq!(farewell(&first), Farewell::Dreq);
    let EventKind::Disconnected { by: Farewell::Drep, private_data } = world.event(0).kind else {
        panic!()
    };
    assert!(private_data.starts_with(b"well"));
    // Another question in the time-wait gets an answer without words.
    early.message.transaction_id ^= 1;
    world.deliver(route, &early.message.to_bytes());
    let Body::Drep(drep) = last(&world) else { panic!() };
    assert_eq!(drep.private_data, [0; 224]);
    world.no_event(1);
}

/// CM-38.
#[test]
fn a_question_about_no_connection_is_answered_so_that_the_peer_need_not_wait() {
    let mut world = World::new(2);
    let dreq = Dreq { local_comm_id: 5, remote_comm_id: 6, remote_qpn: 7, ..Dreq::ZERO };
    let message = Message { transaction_id: 8, body: dreq.into() };
    let route = world.route(0, 1);
    world.deliver(route, &message.to_bytes());
    let answer = world.sent.last().unwrap().message;
    let Body::Drep(drep) = answer.body else { panic!() };
    assert_eq!(answer.transaction_id, 8);
    assert_eq!((drep.local_comm_id, drep.remote_comm_id), (6, 5));
}

/// CM-37.
#[test]
fn a_question_with_another_queue_pair_is_no_end() {
    let (mut world, active, passive) = World::connected();
    let dreq =
        Dreq { local_comm_id: active.0, remote_comm_id: passive.0, remote_qpn: 201, ..Dreq::ZERO };
    let bytes = Message { transaction_id: 8, body: dreq.into() }.to_bytes();
    let (route, sent) = (world.route(0, 1), world.sent.len());
    world.deliver(route, &bytes);
    assert_eq!(world.state(1, passive), State::Established);
    assert_eq!(world.sent.len(), sent);
    world.no_event(1);
}

/// CM-39.
#[test]
fn both_sides_may_ask_at_the_same_time() {
    let (mut world, active, passive) = World::connected();
    world.call(0, |manager, now| manager.disconnect(now, active, &[])).unwrap();
    world.call(1, |manager, now| manager.disconnect(now, passive, &[])).unwrap();
    world.pass(MILLISECOND);
    for (node, id) in [(0, active), (1, passive)] {
        assert_eq!(farewell(&world.event(node)), Farewell::Dreq);
        assert_eq!(world.state(node, id), State::TimeWait);
        world.no_event(node);
    }
    assert_eq!((world.count(0, Attribute::DREQ), world.count(1, Attribute::DREQ)), (1, 1));
}

/// CM-40.
#[test]
fn in_the_time_wait_a_late_request_is_stale() {
    let (mut world, active, passive) = World::connected();
    let req = world.sent.iter().find(|sent| sent.attribute() == Attribute::REQ).unwrap().clone();
    world.call(0, |manager, now| manager.disconnect(now, active, &[])).unwrap();
    world.pass(MILLISECOND);
    world.call(1, |manager, now| manager.disconnect(now, passive, &[])).unwrap();
    world.event(1);
    let route = world.route(0, 1);
    world.deliver(route, &req.message.to_bytes());
    let Body::Rej(rej) = last(&world) else { panic!() };
    assert_eq!(rej.reason, RejectReason::STALE_CONNECTION);
    world.no_event(1);
    assert_eq!(world.state(1, passive), State::TimeWait);
}

/// CM-27.
#[test]
fn a_refusal_ends_a_connection_that_is_there() {
    let (mut world, active, passive) = World::connected();
    let rej = Rej {
        local_comm_id: passive.0,
        remote_comm_id: active.0,
        reason: RejectReason::TIMEOUT,
        info_length: 127,
        ..Rej::ZERO
    };
    let bytes = Message { transaction_id: 0, body: rej.into() }.to_bytes();
    let route = world.route(1, 0);
    world.deliver(route, &bytes);
    let EventKind::Rejected(rejection) = world.event(0).kind else { panic!() };
    assert_eq!(rejection.info.len(), 72, "no more than there is");
    assert_eq!(world.state(0, active), State::TimeWait);
}

/// A world in which node 1 has accepted the request of node 0, and node 0 is not ready yet.
fn accepted() -> (World, Id, Id) {
    let mut world = World::new(2);
    world.listen(1, 5);
    let active = world.connect(0, 1, 100);
    world.pass(MILLISECOND);
    let passive = world.request(1);
    world.accept(1, passive, 200);
    world.pass(MILLISECOND);
    world.event(0);
    (world, active, passive)
}

/// CM-27.
#[test]
fn who_has_accepted_or_was_accepted_may_still_refuse() {
    for node in 0..2 {
        let (mut world, active, passive) = accepted();
        let (id, other, message) = match node {
            0 => (active, passive, Rejected::REP),
            _ => (passive, active, Rejected::OTHER),
        };
        let no = |manager: &mut cm::Manager, now| {
            manager.reject(now, id, RejectReason::CONSUMER, &[], b"no")
        };
        world.call(node, no).unwrap();
        assert!(world.call(node, no).is_err());
        let Body::Rej(rej) = last(&world) else { panic!() };
        assert_eq!(rej.message, message);
        world.pass(MILLISECOND);
        let EventKind::Rejected(rejection) = world.event(1 - node).kind else { panic!() };
        assert!(rejection.private_data.starts_with(b"no"));
        assert_eq!(world.state(1 - node, other), State::TimeWait);
    }
}

/// CM-31.
#[test]
fn a_refusal_that_was_lost_is_said_again_to_whoever_goes_on() {
    for node in 0..2 {
        let (mut world, active, passive) = accepted();
        world.loses = Box::new(|_, _| true);
        let id = if node == 0 { active } else { passive };
        world.call(node, |manager, now| manager.destroy(now, id)).unwrap();
        let refused = world.sent.last().unwrap().message;
        if node == 0 {
            world.loses = Box::new(|_, _| false);
            world.pass(Duration::from_secs(6));
        } else {
            world.ready(0, active);
            let rtu = Rtu { local_comm_id: active.0, remote_comm_id: passive.0, ..Rtu::ZERO };
            let message = Message { transaction_id: 1, body: rtu.into() };
            let route = world.route(0, 1);
            world.loses = Box::new(|_, _| false);
            world.deliver(route, &message.to_bytes());
            world.pass(MILLISECOND);
        }
        assert_eq!(world.sent.last().unwrap().message, refused);
        assert_eq!(world.count(node, Attribute::REJ), 2);
        assert!(matches!(world.event(1 - node).kind, EventKind::Rejected(_)));
    }
}

/// CM-27.
#[test]
fn a_peer_that_refuses_an_end_knows_of_no_connection() {
    let (mut world, active, passive) = World::connected();
    world.loses = Box::new(|_, _| true);
    world.call(0, |manager, now| manager.disconnect(now, active, &[])).unwrap();
    let rej = Rej {
        local_comm_id: passive.0,
        remote_comm_id: active.0,
        reason: RejectReason::INVALID_COMM_ID,
        ..Rej::ZERO
    };
    let route = world.route(1, 0);
    world.deliver(route, &Message { transaction_id: 0, body: rej.into() }.to_bytes());
    assert_eq!(farewell(&world.event(0)), Farewell::Drep);
    assert_eq!(world.state(0, active), State::TimeWait);
    world.settle();
    assert_eq!(world.count(0, Attribute::DREQ), 1);
}

/// CM-38.
#[test]
fn a_question_about_a_connection_that_is_over_is_answered() {
    // Refused; and refused by the peer, whose refusal is all that is left.
    for node in 0..2 {
        let (mut world, active, passive) = accepted();
        let no = |manager: &mut cm::Manager, now| {
            let id = if node == 0 { active } else { passive };
            manager.reject(now, id, RejectReason::CONSUMER, &[], &[])
        };
        world.call(node, no).unwrap();
        if node == 0 {
            world.settle();
            assert_eq!(world.state(1, passive), State::Ended);
        }
        let dreq = Dreq {
            local_comm_id: active.0,
            remote_comm_id: passive.0,
            remote_qpn: 200,
            ..Dreq::ZERO
        };
        let message = Message { transaction_id: 77, body: dreq.into() };
        let (route, before) = (world.route(0, 1), world.state(1, passive));
        world.deliver(route, &message.to_bytes());
        let answer = world.sent.last().unwrap().message;
        let Body::Drep(drep) = answer.body else { panic!("{answer:?}") };
        assert_eq!((answer.transaction_id, drep.remote_comm_id), (77, active.0));
        assert_eq!(world.state(1, passive), before);
    }
}

/// CM-41.
#[test]
fn who_destroys_an_identifier_says_what_the_state_owes() {
    let says = |world: &mut World, node: usize, id: Id| {
        let sent = world.sent.len();
        world.call(node, |manager, now| manager.destroy(now, id)).unwrap();
        assert_eq!(world.sent.len(), sent + 1);
        match last(world) {
            Body::Rej(rej) => format!("REJ of {}: {}", rej.message, rej.reason),
            other => other.attribute().to_string(),
        }
    };
    let asked = || {
        let mut world = World::new(2);
        world.listen(1, 5);
        let active = world.connect(0, 1, 100);
        world.pass(MILLISECOND);
        let passive = world.request(1);
        (world, active, passive)
    };
    let (mut world, active, passive) = asked();
    assert_eq!(says(&mut world, 0, active), "REJ of other: timeout");
    world.loses = Box::new(|_, _| true);
    assert_eq!(says(&mut world, 1, passive), "REJ of REQ: consumer reject");
    let (mut world, active, passive) = accepted();
    assert_eq!(says(&mut world, 0, active), "REJ of REP: consumer reject");
    assert_eq!(says(&mut world, 1, passive), "REJ of other: consumer reject");
    let (mut world, active, passive) = World::connected();
    assert_eq!(says(&mut world, 0, active), "DREQ");
    world.pass(MILLISECOND);
    assert_eq!(says(&mut world, 1, passive), "DREP");
    world.settle();
    assert!(world.is_empty());
}

/// CM-41.
#[test]
fn whatever_is_destroyed_is_ended_properly_and_told_to_nobody() {
    // How far the connection gets before one side destroys it, and which.
    for stage in 0..6 {
        for side in 0..2 {
            let mut world = World::new(2);
            world.listen(1, 5);
            let active = world.connect(0, 1, 100);
            let mut passive = None;
            if stage >= 1 {
                world.pass(MILLISECOND);
                passive = Some(world.request(1));
            }
            if stage >= 2 {
                world.accept(1, passive.unwrap(), 200);
                world.pass(MILLISECOND);
            }
            if stage >= 3 {
                world.ready(0, active);
                world.pass(MILLISECOND);
            }
            if stage >= 4 {
                world.call(0, |manager, now| manager.disconnect(now, active, &[])).unwrap();
            }
            if stage >= 5 {
                world.pass(MILLISECOND);
            }
            world.nodes.iter_mut().for_each(|node| node.events.clear());
            let id = if side == 0 { Some(active) } else { passive };
            let Some(id) = id else { continue };
            world.call(side, |manager, now| manager.destroy(now, id)).unwrap();
            assert!(world.call(side, |manager, now| manager.destroy(now, id)).is_err());
            world.settle();
            world.no_event(side);
            // What the other side has left is told it, and is Ended or undecided.
            let other = if side == 0 { passive } else { Some(active) };
            if let Some(other) = other {
                let state = world.state(1 - side, other);
                assert!(
                    [State::Ended, State::DreqReceived].contains(&state),
                    "stage {stage}, side {side}: {state:?}"
                );
                world.call(1 - side, |manager, now| manager.destroy(now, other)).unwrap();
            }
            world.settle();
            while let Some(event) = world.nodes[1].events.pop_front() {
                if matches!(event.kind, EventKind::ConnectRequest(_)) {
                    world.call(1, |manager, now| manager.destroy(now, event.id)).unwrap();
                }
            }
            world.settle();
            assert!(world.is_empty(), "stage {stage}, side {side}");
        }
    }
}

/// CM-43.
#[test]
fn an_alternate_path_for_a_living_connection_is_refused() {
    let (mut world, active, passive) = World::connected();
    for (local, status) in
        [(active.0, ApPathStatus::UNSUPPORTED), (active.0 ^ 1, ApPathStatus::INVALID_COMM_ID)]
    {
        let lap = Lap { local_comm_id: local, remote_comm_id: passive.0, ..Lap::ZERO };
        let message = Message { transaction_id: 9, body: lap.into() };
        let route = world.route(0, 1);
        world.deliver(route, &message.to_bytes());
        let answer = world.sent.last().unwrap().message;
        let Body::Apr(apr) = answer.body else { panic!() };
        assert_eq!((apr.status, answer.transaction_id), (status, 9));
        assert_eq!((apr.local_comm_id, apr.remote_comm_id), (passive.0, local));
        // An answer to nothing is dropped.
        let back = world.route(1, 0);
        world.deliver(back, &answer.to_bytes());
    }
    assert_eq!(world.state(1, passive), State::Established);
    assert_eq!(world.nodes[0].manager.counters().drop_unknown, 2);
}
