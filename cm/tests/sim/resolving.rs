//! Where datagrams of a service go.

use std::time::Duration;

use cm::presence::Presence;
use cm::wire::{Attribute, Body, Message, Rtu, SidrReq, SidrStatus};
use cm::{Answer, EventKind, Id, Offer, PortSpace, Resolve, State, Transport, param};

use crate::world::{OWNER, SERVICE, World, is_padded};

const MILLISECOND: Duration = Duration::from_millis(1);

fn resolve(world: &mut World, space: PortSpace) -> Id {
    let asks = Resolve {
        path: world.path(0, 1),
        space,
        source_port: 40_001,
        destination_port: SERVICE,
        response_timeout: 20,
        max_cm_retries: 15,
        private_data: b"where",
    };
    world.call(0, |manager, now| manager.resolve(now, OWNER, &asks)).unwrap()
}

const HERE: Answer<'static> =
    Answer { status: SidrStatus::VALID, qpn: 300, qkey: param::UDP_QKEY, private_data: b"here" };

/// CM-44.
#[test]
fn a_listener_says_where_its_datagrams_go() {
    let mut world = World::new(2);
    let listener = world.listen_for(1, PortSpace::Udp, Offer::Datagrams, 5);
    let active = resolve(&mut world, PortSpace::Udp);
    world.pass(MILLISECOND);
    let event = world.event(1);
    let EventKind::ResolveRequest(request) = event.kind else { panic!() };
    assert_eq!((request.listener, request.source_port), (listener, 40_001));
    assert_eq!(request.route, world.route(1, 0));
    assert!(is_padded(&request.private_data, b"where", 180));
    let bad = Answer { qpn: 0xff_ffff, ..HERE };
    assert!(world.call(1, |manager, now| manager.answer(now, event.id, &bad)).is_err());
    world.call(1, |manager, now| manager.answer(now, event.id, &HERE)).unwrap();
    assert!(world.call(1, |manager, now| manager.answer(now, event.id, &HERE)).is_err());
    world.pass(MILLISECOND);
    let EventKind::Resolved(resolved) = world.event(0).kind else { panic!() };
    assert_eq!(
        (resolved.status, resolved.qpn, resolved.qkey),
        (SidrStatus::VALID, 300, 0x0123_4567)
    );
    assert!(is_padded(&resolved.private_data, b"here", 136));
    // Its number is none of a connection.
    let rtu = Rtu { local_comm_id: active.0, remote_comm_id: event.id.0, ..Rtu::ZERO };
    let (route, sent) = (world.route(0, 1), world.sent.len());
    world.deliver(route, &Message { transaction_id: 1, body: rtu.into() }.to_bytes());
    assert_eq!(world.sent.len(), sent);
    for (node, id) in [(0, active), (1, event.id)] {
        world.call(node, |manager, now| manager.destroy(now, id)).unwrap();
    }
    world.settle();
    assert!(world.is_empty());
}

/// CM-44, CM-45.
#[test]
fn a_question_is_repeated_and_its_answer_too() {
    let mut world = World::new(2);
    world.listen_for(1, PortSpace::Udp, Offer::Datagrams, 5);
    let mut seen = 0;
    world.loses = Box::new(move |_, _| {
        seen += 1;
        [1, 3].contains(&seen)
    });
    // Lost; asked; undecided; answer lost; asked; answered.
    resolve(&mut world, PortSpace::Udp);
    world.pass(Duration::from_secs(5));
    let id = world.event(1).id;
    world.call(1, |manager, now| manager.answer(now, id, &HERE)).unwrap();
    world.call(1, |manager, now| manager.destroy(now, id)).unwrap();
    world.pass(Duration::from_secs(10));
    assert!(matches!(world.event(0).kind, EventKind::Resolved(_)));
    assert_eq!(world.count(1, Attribute::SIDR_REP), 2);
    world.no_event(1);
}

/// CM-44.
#[test]
fn a_question_that_nobody_answers_is_given_up() {
    let mut world = World::new(2);
    let id = resolve(&mut world, PortSpace::Udp);
    world.loses = Box::new(|_, _| true);
    world.nodes[0].events.clear();
    // The first one is under way already, and is answered; that answer is lost.
    world.settle();
    assert_eq!(world.count(0, Attribute::SIDR_REQ), 16);
    assert_eq!(world.event(0).kind, EventKind::Unreachable);
    assert_eq!(world.state(0, id), State::Ended);
}

/// CM-46.
#[test]
fn a_question_for_what_nobody_offers_is_refused() {
    let mut world = World::new(2);
    world.listen(1, 5);
    world.listen_for(1, PortSpace::Ib, Offer::Connections(Transport::Rc), 5);
    for space in [PortSpace::Udp, PortSpace::Tcp, PortSpace::Ib] {
        resolve(&mut world, space);
        world.pass(MILLISECOND);
        let EventKind::Resolved(resolved) = world.event(0).kind else { panic!() };
        assert_eq!(resolved.status, SidrStatus::UNSUPPORTED);
    }
    world.listen_for(1, PortSpace::Udp, Offer::Datagrams, 5);
    resolve(&mut world, PortSpace::Udp);
    world.pass(MILLISECOND);
    let id = world.event(1).id;
    world.call(1, |manager, now| manager.destroy(now, id)).unwrap();
    world.pass(MILLISECOND);
    let EventKind::Resolved(resolved) = world.event(0).kind else { panic!() };
    assert_eq!((resolved.status, resolved.qpn, resolved.qkey), (SidrStatus::REJECTED, 0, 0));
    // Addresses of another host.
    let question = world.sent.iter().rfind(|it| it.attribute() == Attribute::SIDR_REQ).unwrap();
    let Body::SidrReq(mut req) = question.message.body else { panic!() };
    req.request_id ^= 1;
    let refused = |world: &mut World, req: SidrReq, status| {
        let bytes = Message { transaction_id: 3, body: req.into() }.to_bytes();
        let route = world.route(0, 1);
        world.deliver(route, &bytes);
        let Body::SidrRep(rep) = world.sent.last().unwrap().message.body else { panic!() };
        assert_eq!((rep.status, rep.request_id), (status, req.request_id));
        world.no_event(1);
    };
    refused(&mut world, SidrReq { pkey: 0x8001, ..req }, SidrStatus::UNSUPPORTED);
    req.private_data[19] ^= 1;
    refused(&mut world, req, SidrStatus::REJECTED);
}

/// CM-9, CM-11.
#[test]
fn an_answer_is_believed_of_who_was_asked_and_in_its_transaction_only() {
    let mut world = World::new(3);
    let id = resolve(&mut world, PortSpace::Udp);
    let transaction_id = world.sent[0].message.transaction_id;
    let rep = cm::wire::SidrRep { request_id: id.0, qpn: 9, ..cm::wire::SidrRep::ZERO };
    let message = Message { transaction_id, body: rep.into() };
    let (stranger, peer) = (world.route(2, 0), world.route(1, 0));
    world.deliver(stranger, &message.to_bytes());
    let other = Message { transaction_id: transaction_id ^ 1, ..message };
    world.deliver(peer, &other.to_bytes());
    world.no_event(0);
    world.deliver(peer, &message.to_bytes());
    assert!(matches!(world.event(0).kind, EventKind::Resolved(_)));
}

/// CM-41.
#[test]
fn a_question_that_is_destroyed_is_not_asked_again() {
    let mut world = World::new(2);
    world.loses = Box::new(|_, _| true);
    let id = resolve(&mut world, PortSpace::Udp);
    world.call(0, |manager, now| manager.destroy(now, id)).unwrap();
    assert!(world.is_empty());
    world.settle();
    assert_eq!(world.sent.len(), 1);
}

fn ask_who_is_there(world: &mut World) -> Id {
    let path = world.path(0, 1);
    world.call(0, |manager, now| manager.ask_presence(now, OWNER, path, 17)).unwrap()
}

/// CM-52.
#[test]
fn a_balboad_says_that_it_is_there_another_that_it_knows_no_such_service_and_nothing_is_kept() {
    let mut world = World::new(2);
    for (told, wanted) in [
        (None, None),
        (Some("0.1.0"), Some(Presence { version: "0.1.0".into(), mtu: 5, flags: 1 })),
    ] {
        if let Some(version) = told {
            world.call(1, |manager, _| manager.set_presence(version, Presence::NUMBERS_SEGMENTS));
        }
        let id = ask_who_is_there(&mut world);
        world.pass(MILLISECOND);
        let EventKind::Resolved(resolved) = world.event(0).kind else { panic!() };
        let status = if wanted.is_some() { SidrStatus::VALID } else { SidrStatus::UNSUPPORTED };
        assert_eq!(resolved.status, status);
        assert_eq!(Presence::parse(&resolved.private_data), wanted);
        world.call(0, |manager, now| manager.destroy(now, id)).unwrap();
        world.settle();
        assert!(world.is_empty());
    }
    world.loses = Box::new(|_, _| true);
    let sent = world.count(0, Attribute::SIDR_REQ);
    ask_who_is_there(&mut world);
    world.settle();
    assert_eq!(world.event(0).kind, EventKind::Unreachable);
    assert_eq!(world.count(0, Attribute::SIDR_REQ), sent + 1, "it is asked once");
}

/// CM-53.
#[test]
fn strangers_who_ask_who_is_there_again_and_again_are_answered_so_often_and_no_more() {
    let mut world = World::new(2);
    world.call(1, |manager, _| manager.set_presence("0.1.0", 0));
    let asks = |world: &mut World| {
        let before = world.count(1, Attribute::SIDR_REP);
        let route = world.route(0, 1);
        for request_id in 0..3 * param::PRESENCES {
            let private_data = Presence::question();
            let service_id = cm::presence::SERVICE.0;
            let req = SidrReq { request_id, pkey: param::PKEY, service_id, private_data };
            world.deliver(route, &Message { transaction_id: 1, body: req.into() }.to_bytes());
        }
        world.count(1, Attribute::SIDR_REP) - before
    };
    assert_eq!(asks(&mut world), param::PRESENCES as usize);
    let dropped = world.nodes[1].manager.counters().drop_presence;
    assert_eq!(dropped, u64::from(2 * param::PRESENCES));
    world.pass(Duration::from_secs(1));
    assert_eq!(asks(&mut world), param::PRESENCES as usize);
    world.settle();
    assert!(world.is_empty(), "nothing is kept of them");
}
