//! Strangers, spoofed messages, guessed numbers, repetitions of old messages.

use std::collections::BTreeSet;
use std::time::Duration;

use cm::wire::{Body, Drep, Dreq, Message, Mra, Rej, RejectReason, Rep, Rtu};
use cm::{Address, Limits, Route, State, param};

use crate::world::{Sent, World};
use trial::rng::Rng;

const MILLISECOND: Duration = Duration::from_millis(1);

/// Everything that would change a connection if it came from the peer.
fn poison(local: u32, remote: u32, qpn: u32) -> Vec<Body> {
    let (local_comm_id, remote_comm_id) = (local, remote);
    vec![
        Rep { local_comm_id, remote_comm_id, local_qpn: 9, ..Rep::ZERO }.into(),
        Rtu { local_comm_id, remote_comm_id, ..Rtu::ZERO }.into(),
        Mra { local_comm_id, remote_comm_id, service_timeout: 31, ..Mra::ZERO }.into(),
        Rej { local_comm_id, remote_comm_id, reason: RejectReason::TIMEOUT, ..Rej::ZERO }.into(),
        Rej { local_comm_id, remote_comm_id: 0, reason: RejectReason::TIMEOUT, ..Rej::ZERO }.into(),
        Rej { local_comm_id, remote_comm_id, reason: RejectReason::CONSUMER, ..Rej::ZERO }.into(),
        Dreq { local_comm_id, remote_comm_id, remote_qpn: qpn, ..Dreq::ZERO }.into(),
        Drep { local_comm_id, remote_comm_id, ..Drep::ZERO }.into(),
    ]
}

/// CM-9.
#[test]
fn messages_of_a_connection_are_believed_of_its_peers_address_only() {
    let (mut world, active, passive) = World::connected();
    let stranger = Address::untagged("10.0.0.66".parse().unwrap());
    let vlan = Address { vlan: 7, ..world.nodes[1].address };
    let good = world.route(1, 0);
    for local in [stranger, vlan] {
        for body in poison(passive.0, active.0, 100) {
            let bytes = Message { transaction_id: 1, body }.to_bytes();
            world.deliver(Route { local, ..good }, &bytes);
        }
    }
    // To another address of this side, for which the network does not care here.
    let elsewhere = Route { local: stranger, remote: world.nodes[1].address, ..good };
    for body in poison(passive.0, active.0, 100) {
        let bytes = Message { transaction_id: 1, body }.to_bytes();
        world.nodes[0].manager.input(world.now, &elsewhere, 1, &bytes);
        world.drain(0);
    }
    world.no_event(0);
    assert_eq!(world.state(0, active), State::Established);
    // The same of the peer's address ends it.
    let dreq = poison(passive.0, active.0, 100).remove(6);
    world.deliver(good, &Message { transaction_id: 1, body: dreq }.to_bytes());
    assert_eq!(world.state(0, active), State::DreqReceived);
}

/// CM-11.
#[test]
fn a_guessed_number_is_not_enough_to_answer_a_request() {
    let mut world = World::new(2);
    world.loses = Box::new(|_, _| true);
    let id = world.connect(0, 1, 100);
    let transaction_id = world.sent[0].message.transaction_id;
    let peer = world.route(1, 0);
    for wrong in [0, transaction_id ^ 1, transaction_id ^ 1 << 63] {
        for body in poison(5, id.0, 100) {
            world.deliver(peer, &Message { transaction_id: wrong, body }.to_bytes());
        }
    }
    world.no_event(0);
    assert_eq!(world.state(0, id), State::ReqSent);
    let rep = poison(5, id.0, 100).remove(0);
    world.deliver(peer, &Message { transaction_id, body: rep }.to_bytes());
    assert_eq!(world.state(0, id), State::RepReceived);
}

/// CM-11.
#[test]
fn a_reply_that_names_no_queue_pair_is_refused() {
    let mut world = World::new(2);
    world.loses = Box::new(|_, _| true);
    let id = world.connect(0, 1, 100);
    let transaction_id = world.sent[0].message.transaction_id;
    let peer = world.route(1, 0);
    for local_qpn in [0, 1, 0xff_ffff] {
        let rep = Rep { local_comm_id: 5, remote_comm_id: id.0, local_qpn, ..Rep::ZERO };
        world.deliver(peer, &Message { transaction_id, body: rep.into() }.to_bytes());
        let Body::Rej(rej) = world.sent.last().unwrap().message.body else { panic!() };
        assert_eq!(rej.reason, RejectReason::UNSUPPORTED);
    }
    world.no_event(0);
}

/// CM-9, CM-34.
#[test]
fn only_a_peer_that_gives_up_needs_no_number_of_ours() {
    let mut world = World::new(2);
    world.listen(1, 5);
    let active = world.connect(0, 1, 100);
    world.pass(MILLISECOND);
    let passive = world.request(1);
    let good = world.route(0, 1);
    let rej = |reason, remote_comm_id| {
        let rej = Rej { local_comm_id: active.0, remote_comm_id, reason, ..Rej::ZERO };
        Message { transaction_id: 1, body: rej.into() }.to_bytes()
    };
    let (timeout, consumer) = (RejectReason::TIMEOUT, RejectReason::CONSUMER);
    for (reason, number) in [(consumer, 0), (timeout, passive.0 ^ 1), (consumer, passive.0 ^ 1)] {
        world.deliver(good, &rej(reason, number));
        assert_eq!(world.state(1, passive), State::ReqReceived);
    }
    let elsewhere = Address::untagged("10.0.0.66".parse().unwrap());
    let back = Route { local: elsewhere, remote: good.local, ..good };
    world.nodes[1].manager.input(world.now, &back, 1, &rej(timeout, 0));
    assert_eq!(world.state(1, passive), State::ReqReceived);
    world.deliver(good, &rej(timeout, 0));
    assert_eq!(world.state(1, passive), State::Ended);
}

/// CM-9.
#[test]
fn a_late_refusal_of_the_request_does_not_end_what_was_accepted() {
    let mut world = World::new(2);
    world.listen(1, 5);
    let active = world.connect(0, 1, 100);
    let transaction_id = world.sent[0].message.transaction_id;
    let passive = world.establish(active, 100);
    let route = world.route(1, 0);
    for local_comm_id in [0, passive.0 ^ 1] {
        let rej = Rej { local_comm_id, remote_comm_id: active.0, ..Rej::ZERO };
        world.deliver(route, &Message { transaction_id, body: rej.into() }.to_bytes());
    }
    world.no_event(0);
    assert_eq!(world.state(0, active), State::Established);
    // Nor does a reply that comes back to its sender, which neither repeats nor refuses it.
    let (sent, rep) = (
        world.sent.len(),
        world.sent.iter().find_map(|it| match it.message.body {
            Body::Rep(rep) => Some(rep),
            _ => None,
        }),
    );
    let rep = Rep { local_comm_id: active.0, remote_comm_id: passive.0, ..rep.unwrap() };
    let route = world.route(0, 1);
    world.deliver(route, &Message { transaction_id, body: rep.into() }.to_bytes());
    assert_eq!(world.sent.len(), sent);
    assert_eq!(world.state(1, passive), State::Established);
}

/// CM-25, CM-35.
#[test]
fn a_reply_with_the_number_of_another_connection_is_refused() {
    let mut world = World::new(2);
    world.loses = Box::new(|_, _| true);
    let peer = world.route(1, 0);
    for (qpn, reason) in [(100, None), (101, Some(RejectReason::DUPLICATE_COMM_ID))] {
        let id = world.connect(0, 1, qpn);
        let transaction_id = world.sent.last().unwrap().message.transaction_id;
        let (local_comm_id, remote_comm_id) = (5, id.0);
        let rep = Rep { local_comm_id, remote_comm_id, local_qpn: qpn + 100, ..Rep::ZERO };
        world.deliver(peer, &Message { transaction_id, body: rep.into() }.to_bytes());
        let refused = match world.sent.last().unwrap().message.body {
            Body::Rej(rej) => Some(rej.reason),
            _ => None,
        };
        assert_eq!(refused, reason);
    }
}

/// CM-50.
#[test]
fn an_answer_goes_back_as_the_datagram_came_but_for_marks_and_hops() {
    let mut world = World::new(2);
    let dreq = Dreq { local_comm_id: 5, ..Dreq::ZERO };
    let bytes = Message { transaction_id: 8, body: dreq.into() }.to_bytes();
    let good = Route { traffic_class: 0x68, flow_label: 7, sl: 3, ..world.route(1, 0) };
    let from = Route { traffic_class: 0x6b, hop_limit: 2, ..good };
    world.nodes[1].manager.input(world.now, &from, 1, &bytes);
    let transmit = world.nodes[1].manager.poll_transmit().unwrap();
    assert_eq!(transmit.route, good);
}

/// CM-12, CM-13.
#[test]
fn numbers_are_drawn_from_all_there_are() {
    let mut world = World::new(2);
    let mut ids = BTreeSet::new();
    for qpn in 100..400 {
        ids.insert(world.connect(0, 1, qpn).0);
    }
    assert_eq!(ids.len(), 300);
    let transactions: BTreeSet<u64> =
        world.sent.iter().map(|sent| sent.message.transaction_id).collect();
    assert_eq!(transactions.len(), 300);
    let all = |numbers: &mut dyn Iterator<Item = u64>, bits: u32| {
        let (mut or, mut and) = (0, u64::MAX);
        numbers.for_each(|number| {
            or |= number;
            and &= number;
        });
        assert_eq!((or, and), (u64::MAX >> (64 - bits), 0));
    };
    all(&mut ids.iter().map(|id| u64::from(*id)), 32);
    all(&mut transactions.into_iter(), 64);
    let psn = |sent: &Sent| match sent.message.body {
        Body::Req(req) => u64::from(req.starting_psn),
        _ => 0,
    };
    all(&mut world.sent.iter().map(psn), 24);
}

/// CM-12; NeVerMore's third attack. A user of the peer's host has connected just before the victim, and so knows two
/// numbers. Where numbers are a counter, masked by a seed, the victim's two differ from them in a few ways only.
#[test]
fn numbers_of_ones_own_connection_do_not_tell_those_of_the_next() {
    let near = (0_u32..256).flat_map(|count| (1..8).map(move |on| count ^ (count + on)));
    let near: BTreeSet<u32> = near.collect();
    for is_counter in [true, false] {
        let mut world = match is_counter {
            true => World::drawing(2, 1, Limits::default(), |_| {
                let mut count = 0;
                Box::new(move || {
                    count += 1;
                    0x5eed_0123_4567_89ab ^ count
                })
            }),
            false => World::new(2),
        };
        world.listen(1, 5);
        let [own, victim] = [100, 101].map(|qpn| {
            let active = world.connect(0, 1, qpn);
            (active, world.establish(active, qpn))
        });
        let route = world.route(0, 1);
        for (one, other) in near.iter().flat_map(|one| near.iter().map(move |other| (one, other))) {
            let (local_comm_id, remote_comm_id) = (own.0.0 ^ one, own.1.0 ^ other);
            let dreq = Dreq { local_comm_id, remote_comm_id, remote_qpn: 201, ..Dreq::ZERO };
            world.deliver(route, &Message { transaction_id: 1, body: dreq.into() }.to_bytes());
        }
        let state = if is_counter { State::DreqReceived } else { State::Established };
        assert_eq!(world.state(1, victim.1), state, "a counter: {is_counter}");
    }
}

/// CM-1, CM-3.
#[test]
fn what_does_not_come_from_queue_pair_1_or_is_no_message_is_dropped() {
    let mut world = World::new(2);
    world.listen(1, 5);
    world.loses = Box::new(|_, _| true);
    world.connect(0, 1, 100);
    let bytes = world.sent[0].message.to_bytes();
    let from = world.route(1, 0);
    let manager = &mut world.nodes[1].manager;
    for qpn in [0, 2, 100, 0xff_ffff] {
        manager.input(world.now, &from, qpn, &bytes);
    }
    for length in [0, 24, 255] {
        manager.input(world.now, &from, 1, &bytes[..length]);
    }
    assert_eq!(manager.counters().drop_malformed, 7);
    assert!(manager.poll_event().is_none() && manager.poll_transmit().is_none());
    manager.input(world.now, &from, 1, &bytes);
    assert!(manager.poll_event().is_some());
}

/// CM-50.
#[test]
fn a_datagram_is_answered_by_two_at_most_and_two_managers_do_not_talk_for_ever() {
    let mut rng = Rng::new(4);
    let (mut world, active, passive) = World::connected();
    let numbers = [0, 1, active.0, passive.0];
    for round in 0..3000 {
        let attribute = 0x10 + rng.below(11) as u8;
        let mut bytes: [u8; 256] = std::array::from_fn(|_| rng.next() as u8);
        bytes[..8].copy_from_slice(&[1, 7, 2, 3, 0, 0, 0, 0]);
        bytes[16..18].copy_from_slice(&[0, attribute]);
        for at in [24, 28] {
            bytes[at..at + 4].copy_from_slice(&rng.pick(&numbers).to_be_bytes());
        }
        let sent = world.sent.len();
        let route = world.route(round % 2, 1 - round % 2);
        world.deliver(route, &bytes);
        assert!(world.sent.len() <= sent + 2, "{:?}", &world.sent[sent..]);
        world.pass(MILLISECOND);
        assert!(world.sent.len() <= sent + 10, "{:?}", &world.sent[sent..]);
        world.nodes.iter_mut().for_each(|node| node.events.clear());
    }
}

/// CM-40, CM-50.
#[test]
fn what_was_said_is_said_again_to_no_effect() {
    let (mut world, active, passive) = World::connected();
    let said: Vec<Sent> = world.sent.clone();
    for _ in 0..5 {
        for sent in &said {
            let route = world.route(sent.node, 1 - sent.node);
            world.deliver(route, &sent.message.to_bytes());
            world.pass(MILLISECOND);
        }
    }
    for (node, id) in [(0, active), (1, passive)] {
        assert_eq!(world.state(node, id), State::Established);
        world.no_event(node);
    }
    world.call(0, |manager, now| manager.disconnect(now, active, &[])).unwrap();
    world.pass(MILLISECOND);
    world.call(1, |manager, now| manager.disconnect(now, passive, &[])).unwrap();
    world.pass(MILLISECOND);
    world.nodes.iter_mut().for_each(|node| node.events.clear());
    let said: Vec<Sent> = world.sent.clone();
    for sent in &said {
        let route = world.route(sent.node, 1 - sent.node);
        world.deliver(route, &sent.message.to_bytes());
    }
    world.no_event(0);
    world.no_event(1);
}

/// CM-50.
#[test]
fn timers_have_their_turns() {
    let mut world = World::new(2);
    let count = param::TIMER_TURN + 10;
    for qpn in 0..count {
        world.loses = Box::new(|_, _| true);
        world.connect(0, 1, 100 + qpn as u32);
    }
    let due = world.nodes[0].manager.next_deadline().unwrap();
    let repeated = |manager: &mut cm::Manager| {
        manager.poll(due);
        std::iter::from_fn(|| manager.poll_transmit()).count()
    };
    let manager = &mut world.nodes[0].manager;
    assert_eq!(repeated(manager), param::TIMER_TURN);
    assert_eq!(manager.next_deadline(), Some(due));
    assert_eq!(repeated(manager), 10);
    assert_eq!(manager.counters().repeated, count as u64);
    assert_eq!(manager.counters().sent[0], 2 * count as u64);
}
