//! Quotas: the share of one owner, and the effects of a flood.

use std::time::Duration;

use cm::wire::{Attribute, Body, RejectReason, SidrStatus};
use cm::{
    Answer, Error, EventKind, Id, Limits, Manager, Offer, Owner, PortAttributes, PortSpace,
    Resolve, State,
};

use crate::world::{OWNER, SERVICE, World};

const MILLISECOND: Duration = Duration::from_millis(1);

fn limited(limits: Limits) -> World {
    World::seeded(2, 1, limits)
}

/// CM-21.
#[test]
fn requests_beyond_the_backlog_are_dropped_and_may_come_again() {
    let mut world = World::new(2);
    world.listen(1, 3);
    for qpn in 100..110 {
        world.connect(0, 1, qpn);
    }
    world.pass(MILLISECOND);
    let requests: Vec<_> = (0..3).map(|_| world.request(1)).collect();
    world.no_event(1);
    assert_eq!(world.nodes[1].manager.counters().drop_backlog, 7);
    assert_eq!(world.count(1, Attribute::REJ), 0, "nobody is refused");
    world.accept(1, requests[0], 500);
    let no = |manager: &mut cm::Manager, now| {
        manager.reject(now, requests[1], RejectReason::CONSUMER, &[], &[])
    };
    world.call(1, no).unwrap();
    world.call(1, |manager, now| manager.destroy(now, requests[2])).unwrap();
    world.pass(Duration::from_secs(6));
    let again = (0..3).map(|_| world.request(1)).count();
    assert_eq!(again, 3);
    world.no_event(1);
}

/// CM-21.
#[test]
fn however_a_request_is_decided_its_place_is_anothers() {
    type Decision = fn(&mut World, Id, Id);
    let ways: [Decision; 7] = [
        |world, _, passive| world.accept(1, passive, 500),
        |world, _, passive| {
            let no = |manager: &mut cm::Manager, now| {
                manager.reject(now, passive, RejectReason::CONSUMER, &[], &[])
            };
            world.call(1, no).unwrap();
        },
        |world, _, passive| {
            world.call(1, |manager, now| manager.destroy(now, passive)).unwrap();
        },
        // It is taken up, and decided later.
        |world, _, passive| {
            world.call(1, |manager, _| manager.take_up(passive));
            assert_eq!(world.nodes[1].manager.state(passive), Some(State::ReqReceived));
        },
        // The peer gives up: it is the owner's until that takes it up or destroys it.
        |world, active, passive| {
            give_up(world, active);
            world.call(1, |manager, _| manager.take_up(passive));
        },
        |world, active, passive| {
            give_up(world, active);
            world.call(1, |manager, now| manager.destroy(now, passive)).unwrap();
        },
        // The peer knows nothing of it any more.
        |world, _, passive| {
            world.connect(0, 1, 100);
            world.pass(MILLISECOND);
            world.call(1, |manager, _| manager.take_up(passive));
        },
    ];
    for (index, decide) in ways.into_iter().enumerate() {
        let mut world = World::new(2);
        world.listen(1, 1);
        let active = world.connect(0, 1, 100);
        world.pass(MILLISECOND);
        let passive = world.request(1);
        decide(&mut world, active, passive);
        world.pass(MILLISECOND);
        world.nodes[1].events.clear();
        world.connect(0, 1, 101);
        world.connect(0, 1, 102);
        world.pass(MILLISECOND);
        world.request(1);
        assert_eq!(world.nodes[1].manager.counters().drop_backlog, 1, "way {index}");
    }
}

/// The side that asks takes its request back.
fn give_up(world: &mut World, active: Id) {
    world.call(0, |manager, now| manager.destroy(now, active)).unwrap();
    world.pass(MILLISECOND);
}

/// CM-21.
#[test]
fn requests_that_are_taken_back_do_not_pile_up_at_who_takes_none() {
    let mut world = World::new(2);
    world.listen(1, 2);
    for qpn in 100..110 {
        let active = world.connect(0, 1, qpn);
        world.pass(MILLISECOND);
        give_up(&mut world, active);
    }
    assert_eq!(world.nodes[1].manager.census().0, 2);
    assert_eq!(world.nodes[1].manager.counters().drop_backlog, 8);
}

/// CM-21.
#[test]
fn however_a_question_is_answered_its_place_is_anothers() {
    for destroyed in [false, true] {
        let mut world = World::new(2);
        world.listen_for(1, PortSpace::Udp, Offer::Datagrams, 1);
        let question = question(&world);
        let ask = |world: &mut World| {
            world.call(0, |manager, now| manager.resolve(now, OWNER, &question)).unwrap();
            world.pass(MILLISECOND);
        };
        ask(&mut world);
        let id = world.event(1).id;
        ask(&mut world);
        world.no_event(1);
        let no = Answer { status: SidrStatus::REJECTED, qpn: 0, qkey: 0, private_data: &[] };
        let decided = world.call(1, |manager, now| match destroyed {
            true => manager.destroy(now, id),
            false => manager.answer(now, id, &no),
        });
        decided.unwrap();
        ask(&mut world);
        world.event(1);
    }
}

fn question(world: &World) -> Resolve<'static> {
    Resolve {
        path: world.path(0, 1),
        space: PortSpace::Udp,
        source_port: 1,
        destination_port: SERVICE,
        response_timeout: 20,
        max_cm_retries: 15,
        private_data: &[],
    }
}

/// CM-49.
#[test]
fn an_owner_has_so_many_identifiers_and_leaves_others_theirs() {
    let mut world = limited(Limits { ids_per_owner: 3, ids: 6, ..Limits::default() });
    let asks = world.asks(0, 1, 100);
    let connect =
        |world: &mut World, owner| world.call(0, |manager, now| manager.connect(now, owner, &asks));
    let (a, b) = (Owner(1), Owner(2));
    let ids: Vec<_> = (0..3).map(|_| connect(&mut world, a).unwrap()).collect();
    let mine = Err(Error::Quota { what: "identifiers of an owner", most: 3 });
    assert_eq!(connect(&mut world, a), mine);
    connect(&mut world, b).unwrap();
    connect(&mut world, b).unwrap();
    // It would have more than is left then for all others together.
    let all = Err(Error::Quota { what: "identifiers of all owners", most: 6 });
    assert_eq!(connect(&mut world, b), all);
    connect(&mut world, Owner(3)).unwrap();
    assert_eq!(connect(&mut world, Owner(4)), all);
    for id in &ids[..2] {
        world.call(0, |manager, now| manager.destroy(now, *id)).unwrap();
    }
    assert_eq!(connect(&mut world, b), all);
    world.call(0, |manager, now| manager.destroy(now, ids[2])).unwrap();
    connect(&mut world, b).unwrap();
    assert_eq!(connect(&mut world, b), mine);
    assert_eq!(world.nodes[0].manager.census().0, 4);
}

/// CM-49.
#[test]
fn there_is_something_left_for_whoever_comes_next() {
    let mut world = limited(Limits { ids: 64, ..Limits::default() });
    let have = [1, 2, 3, 4, 5, 6, 7, 1].map(|owner| {
        let asks = world.asks(0, 1, 100);
        let connect = |world: &mut World| {
            world.call(0, |manager, now| manager.connect(now, Owner(owner), &asks))
        };
        (0..100).filter(|_| connect(&mut world).is_ok()).count()
    });
    assert_eq!(have, [32, 16, 8, 4, 2, 1, 1, 0]);
}

/// CM-49.
#[test]
fn a_listener_whose_owner_has_enough_refuses_for_want_of_resources() {
    let mut world = limited(Limits { ids_per_owner: 2, ..Limits::default() });
    world.listen(1, 10);
    world.listen_for(1, PortSpace::Udp, Offer::Datagrams, 10);
    for qpn in [100, 101] {
        world.connect(0, 1, qpn);
    }
    world.pass(MILLISECOND);
    world.nodes[0].events.clear();
    let asks = world.asks(0, 1, 102);
    let third = world.call(0, |manager, now| manager.connect(now, Owner(8), &asks)).unwrap();
    let question = question(&world);
    world.call(0, |manager, now| manager.resolve(now, Owner(8), &question)).unwrap();
    world.pass(MILLISECOND);
    assert_eq!(world.state(0, third), State::Ended);
    let mut reasons = world.sent.iter().filter_map(|sent| match sent.message.body {
        Body::Rej(rej) => Some(rej.reason.0),
        Body::SidrRep(rep) => Some(u16::from(rep.status.0) + 100),
        _ => None,
    });
    assert_eq!(reasons.next(), Some(RejectReason::NO_RESOURCES.0));
    assert_eq!(reasons.next(), Some(u16::from(SidrStatus::NO_QP.0) + 100));
    assert_eq!(reasons.next(), None);
}

/// CM-49.
#[test]
fn what_lingers_without_an_owner_has_an_end_and_the_oldest_goes_first() {
    let mut world = limited(Limits { lingering: 10, ..Limits::default() });
    world.listen(1, 1000);
    for qpn in 100..130 {
        world.connect(0, 1, qpn);
    }
    world.pass(MILLISECOND);
    let requests: Vec<_> = (0..30).map(|_| world.request(1)).collect();
    for id in &requests {
        world.call(1, |manager, now| manager.destroy(now, *id)).unwrap();
    }
    assert_eq!(world.nodes[1].manager.census().1, 10);
    assert_eq!(world.nodes[1].manager.counters().cut_short, 20);
    // The last ten are refused again by the same word; the first are asked for anew.
    let reqs: Vec<_> =
        world.sent.iter().filter(|it| it.attribute() == Attribute::REQ).cloned().collect();
    let route = world.route(0, 1);
    world.deliver(route, &reqs[29].message.to_bytes());
    world.no_event(1);
    world.deliver(route, &reqs[0].message.to_bytes());
    world.request(1);
}

/// CM-49, CM-50.
#[test]
fn a_flood_of_requests_leaves_other_listeners_and_nothing_behind() {
    let limits = Limits { ids_per_owner: 500, ids: 600, lingering: 100, ..Limits::default() };
    let mut world = limited(limits);
    world.listen(1, 100);
    let bystander = world.listen_for(1, PortSpace::Ib, Offer::Connections(cm::Transport::Rc), 10);
    world.loses = Box::new(|node, _| node == 0);
    world.connect(0, 1, 100);
    world.loses = Box::new(|_, _| false);
    let Body::Req(req) = world.sent[0].message.body else { panic!() };
    let route = world.route(0, 1);
    for number in 1..5000 {
        let flood = cm::wire::Req { local_comm_id: number, local_qpn: number + 500, ..req };
        let message = cm::wire::Message { transaction_id: 1, body: flood.into() };
        world.deliver(route, &message.to_bytes());
    }
    assert_eq!(world.nodes[1].events.len(), 100);
    assert_eq!(world.nodes[1].manager.census().0, 100);
    world.sent.clear();
    let mut asks = world.asks(0, 1, 99);
    asks.space = PortSpace::Ib;
    world.call(0, |manager, now| manager.connect(now, OWNER, &asks)).unwrap();
    world.pass(MILLISECOND);
    let event = world.nodes[1].events.pop_back().unwrap();
    let EventKind::ConnectRequest(request) = event.kind else { panic!() };
    assert_eq!(request.listener, bystander);
}

/// CM-49.
#[test]
fn an_identifier_costs_a_kibibyte_or_two() {
    let bytes = Manager::BYTES_OF_ID;
    assert!((512..2048).contains(&bytes), "{bytes}");
}

#[test]
fn without_its_port_a_card_connects_nothing() {
    let mut world = World::new(2);
    world.listen(1, 5);
    world.connect(0, 1, 100);
    world.pass(MILLISECOND);
    let passive = world.request(1);
    world.nodes.iter_mut().for_each(|node| node.manager.remove_port(3));
    let accept = crate::world::accepts(200);
    let answer = world.call(1, |manager, now| manager.accept(now, passive, &accept));
    assert_eq!(answer, Err(Error::NoPort(3)));
    assert_eq!(world.state(1, passive), State::ReqReceived);
    let asks = world.asks(0, 1, 101);
    let answer = world.call(0, |manager, now| manager.connect(now, OWNER, &asks));
    assert_eq!(answer, Err(Error::NoPort(3)));
}

/// CM-12.
#[test]
fn a_number_that_is_taken_is_drawn_again_but_not_for_ever() {
    let numbers = [0, 5, 1, 2, 5, 0, 6];
    let mut drawn = numbers.into_iter().chain(std::iter::repeat(5));
    let mut manager = Manager::new(Limits::default(), Box::new(move || drawn.next().unwrap()));
    let world = World::new(2);
    manager.set_port(3, PortAttributes { ca_guid: 1, ack_delay: 0, mtu: 5 });
    let asks = world.asks(0, 1, 100);
    let mut connect = || manager.connect(world.now, OWNER, &asks);
    assert_eq!(connect(), Ok(Id(5)), "0 is no number; a PSN and a transaction are drawn, too");
    assert_eq!(connect(), Ok(Id(6)));
    assert!(matches!(connect(), Err(Error::Quota { what: "communication IDs", .. })));
}
