//! The side that is asked.

use std::time::Duration;

use cm::wire::{
    AlternatePath, Attribute, Body, Message, Mra, RejectReason, Rejected, Req, TransportService,
};
use cm::{EventKind, Offer, PortSpace, State, Transport, param};

use crate::world::{World, accepts, is_padded};

const MILLISECOND: Duration = Duration::from_millis(1);

/// What node 0 asks node 1 with by its first REQ, which is lost.
fn asked(world: &mut World) -> (u64, Req) {
    world.loses = Box::new(|node, _| node == 0);
    world.connect(0, 1, 100);
    world.loses = Box::new(|_, _| false);
    let message = world.sent.last().unwrap().message;
    let Body::Req(req) = message.body else { panic!("{message:?} is no REQ") };
    (message.transaction_id, req)
}

fn ask(world: &mut World, transaction_id: u64, req: Req) {
    let bytes = Message { transaction_id, body: req.into() }.to_bytes();
    let route = world.route(0, 1);
    world.deliver(route, &bytes);
}

/// The reason of the refusal that node 1 sent last, and its further information.
fn refusal(world: &World) -> (RejectReason, Vec<u8>) {
    let last = world.sent.last().unwrap();
    let Body::Rej(rej) = last.message.body else { panic!("{last:?} is no REJ") };
    assert_eq!((last.node, rej.message), (1, Rejected::REQ));
    (rej.reason, rej.info[..usize::from(rej.info_length)].to_vec())
}

/// CM-30.
#[test]
fn a_listener_is_told_once_who_asks_for_what() {
    let mut world = World::new(2);
    let listener = world.listen(1, 5);
    let (transaction, req) = asked(&mut world);
    ask(&mut world, transaction, req);
    ask(&mut world, transaction, req);
    let EventKind::ConnectRequest(request) = world.event(1).kind else { panic!() };
    assert_eq!(request.listener, listener);
    assert_eq!(request.path.route, world.route(1, 0));
    assert_eq!((request.path.mtu, request.path.rate), (3, 7));
    assert_eq!(request.source(), world.nodes[0].address.ip());
    assert_eq!(request.offer(), Offer::Connections(Transport::Rc));
    assert_eq!((request.source_port, request.remote_qpn), (40_000, 100));
    assert_eq!((request.responder_resources, request.initiator_depth), (3, 4));
    assert_eq!((request.retry_count, request.rnr_retry_count), (6, 5));
    assert_eq!((request.flow_control, request.srq), (true, false));
    assert!(is_padded(&request.private_data, b"hello", 56));
    world.no_event(1);
}

/// CM-8.
#[test]
fn the_path_of_the_request_is_that_of_the_side_that_is_asked() {
    let mut world = World::new(2);
    world.listen(1, 5);
    let (transaction, req) = asked(&mut world);
    for (asked, has) in [(0, 64), (1, 64), (2, 2), (255, 255)] {
        let req = Req {
            local_comm_id: asked + 1,
            local_qpn: asked + 100,
            primary_hop_limit: asked as u8,
            primary_flow_label: 0xabcde,
            primary_traffic_class: 0x68,
            primary_sl: 3,
            primary_local_ack_timeout: 18,
            ..req
        };
        ask(&mut world, transaction, req);
        let EventKind::ConnectRequest(request) = world.event(1).kind else { panic!() };
        let route = request.path.route;
        assert_eq!((route.hop_limit, route.flow_label), (has, 0xabcde));
        assert_eq!((route.traffic_class, route.sl), (0x68, 3));
        assert_eq!(request.path.packet_lifetime, 17);
    }
}

/// CM-15, CM-22.
#[test]
fn a_request_for_a_service_that_nobody_offers_is_refused() {
    let mut world = World::new(2);
    let (transaction, req) = asked(&mut world);
    for service_id in [req.service_id, 0, u64::MAX] {
        ask(&mut world, transaction, Req { service_id, ..req });
        assert_eq!(refusal(&world), (RejectReason::INVALID_SERVICE_ID, vec![]));
    }
    world.no_event(1);
    assert_eq!(world.nodes[1].manager.census(), (0, 0, 0));
}

/// CM-7, CM-10.
#[test]
fn addresses_in_a_request_are_those_of_its_datagram() {
    let mut world = World::new(2);
    world.listen(1, 5);
    let (transaction, req) = asked(&mut world);
    let other = "::ffff:10.0.0.9".parse().unwrap();
    let own = world.nodes[1].address.gid.octets().to_vec();
    ask(&mut world, transaction, Req { primary_local_gid: other, ..req });
    assert_eq!(refusal(&world), (RejectReason::INVALID_GID, own.clone()));
    ask(&mut world, transaction, Req { primary_remote_gid: other, ..req });
    assert_eq!(refusal(&world), (RejectReason::INVALID_GID, own));
    for byte in [0, 1, 19, 35] {
        let mut bad = req;
        bad.private_data[byte] ^= 0x10;
        ask(&mut world, transaction, bad);
        assert_eq!(refusal(&world), (RejectReason::CONSUMER, vec![]), "byte {byte}");
    }
    world.no_event(1);
    ask(&mut world, transaction, req);
    world.request(1);
}

/// CM-18.
#[test]
fn a_listener_is_asked_for_what_it_offers_only() {
    let mut world = World::new(2);
    world.listen(1, 5);
    let (transaction, req) = asked(&mut world);
    for transport_service in
        [TransportService::UC, TransportService::RD, TransportService::EXTENDED]
    {
        ask(&mut world, transaction, Req { transport_service, ..req });
        assert_eq!(refusal(&world), (RejectReason::INVALID_TRANSPORT_TYPE, vec![]));
    }
    world.listen_for(1, PortSpace::Udp, Offer::Datagrams, 5);
    world.listen_for(1, PortSpace::Ib, Offer::Connections(Transport::Uc), 5);
    let udp = req.service_id ^ 0x0106_0000 ^ 0x0111_0000;
    ask(&mut world, transaction, Req { service_id: udp, ..req });
    assert_eq!(refusal(&world), (RejectReason::INVALID_TRANSPORT_TYPE, vec![]));
    let service_id = req.service_id ^ 0x0106_0000 ^ 0x013f_0000;
    let transport_service = TransportService::UC;
    world.no_event(1);
    ask(&mut world, transaction, Req { service_id, transport_service, ..req });
    world.request(1);
}

/// CM-19, CM-20.
#[test]
fn what_no_queue_pair_here_could_have_is_refused() {
    let mut world = World::new(2);
    world.listen(1, 5);
    let (transaction, req) = asked(&mut world);
    let port = cm::PortAttributes { ca_guid: 1, ack_delay: 0, mtu: 4 };
    world.nodes[1].manager.set_port(3, port);
    for path_mtu in [0, 5, 6, 15] {
        ask(&mut world, transaction, Req { path_mtu, ..req });
        assert_eq!(refusal(&world), (RejectReason::INVALID_MTU, vec![4]));
    }
    for local_qpn in [0, 1, 0xff_ffff] {
        ask(&mut world, transaction, Req { local_qpn, ..req });
        assert_eq!(refusal(&world), (RejectReason::UNSUPPORTED, vec![]));
    }
    ask(&mut world, transaction, Req { pkey: 0x8001, ..req });
    assert_eq!(refusal(&world), (RejectReason::UNSUPPORTED, vec![]));
    world.no_event(1);
    ask(&mut world, transaction, Req { pkey: 0x7fff, path_mtu: 4, ..req });
    world.request(1);
}

/// CM-13, CM-31.
#[test]
fn a_repeated_request_is_answered_as_the_state_says() {
    let mut world = World::new(2);
    world.listen(1, 5);
    let (transaction, req) = asked(&mut world);
    ask(&mut world, transaction, req);
    ask(&mut world, transaction, req);
    let last = |world: &World| world.sent.last().unwrap().message;
    let Body::Mra(mra) = last(&world).body else { panic!() };
    assert_eq!((mra.message, mra.service_timeout), (Rejected::REQ, param::SERVICE_TIMEOUT));
    let id = world.request(1);
    assert_eq!((mra.local_comm_id, mra.remote_comm_id), (id.0, req.local_comm_id));
    world.accept(1, id, 200);
    let reply = last(&world);
    ask(&mut world, transaction, req);
    assert_eq!(last(&world), reply);
    assert_eq!((world.count(1, Attribute::REP), world.count(1, Attribute::MRA)), (2, 1));
    assert_eq!(reply.transaction_id, transaction, "an answer has the request's");

    let (transaction, req) = asked(&mut world);
    let req = Req { local_qpn: 101, ..req };
    ask(&mut world, transaction, req);
    let id = world.request(1);
    let no = |manager: &mut cm::Manager, now| manager.reject(now, id, RejectReason(99), &[], b"no");
    world.call(1, no).unwrap();
    world.call(1, |manager, now| manager.destroy(now, id)).unwrap();
    let refused = last(&world);
    ask(&mut world, transaction, req);
    assert_eq!(last(&world), refused);
    assert_eq!(world.count(1, Attribute::REJ), 2, "the last word is said again");
    world.no_event(1);
    world.pass(param::LAST_WORD);
    ask(&mut world, transaction, req);
    world.request(1);
}

/// CM-28, CM-32.
#[test]
fn a_reply_that_nobody_answers_is_repeated_and_then_given_up() {
    let mut world = World::new(2);
    world.listen(1, 5);
    let (transaction, req) = asked(&mut world);
    ask(&mut world, transaction, Req { max_cm_retries: 3, ..req });
    let id = world.request(1);
    world.loses = Box::new(|_, _| true);
    world.accept(1, id, 200);
    world.settle();
    assert_eq!(world.count(1, Attribute::REP), 4);
    assert_eq!(world.event(1).kind, EventKind::Unreachable);
    let rejs = |sent: &&crate::world::Sent| sent.node == 1 && sent.attribute() == Attribute::REJ;
    let last = world.sent.iter().rfind(rejs).unwrap();
    let Body::Rej(rej) = last.message.body else { panic!() };
    assert_eq!(rej.reason, RejectReason::TIMEOUT);
    assert_eq!((rej.local_comm_id, rej.remote_comm_id), (id.0, req.local_comm_id));
    let patience = param::time(20) + param::time(param::ack_timeout(15, param::PACKET_LIFETIME));
    let replies: Vec<_> =
        world.sent.iter().filter(|sent| sent.attribute() == Attribute::REP).collect();
    for pair in replies.windows(2) {
        assert_eq!(pair[1].at, pair[0].at.after(patience));
    }
    assert_eq!(world.event(1).kind, EventKind::TimeWaitExit);
}

/// CM-32, CM-51.
#[test]
fn times_that_a_peer_names_are_waited_for_within_a_bound() {
    let mut world = World::new(2);
    world.listen(1, 5);
    let (transaction, req) = asked(&mut world);
    let slow = Req { local_cm_response_timeout: 31, primary_local_ack_timeout: 31, ..req };
    ask(&mut world, transaction, slow);
    let id = world.request(1);
    world.accept(1, id, 200);
    let way = param::time(param::LONGEST_ROUND_TRIP);
    let most = param::time(param::LONGEST_RESPONSE_TIMEOUT) + way;
    let at = world.now;
    let second = |world: &World| world.nodes[1].manager.next_deadline().unwrap();
    assert_eq!(second(&world), at.after(most));
    let mra = Mra {
        local_comm_id: req.local_comm_id,
        remote_comm_id: id.0,
        message: Rejected::REP,
        service_timeout: 31,
        ..Mra::ZERO
    };
    let mra = Message { transaction_id: transaction, body: mra.into() }.to_bytes();
    let route = world.route(0, 1);
    world.deliver(route, &mra);
    assert_eq!(world.state(1, id), State::RtuWait);
    let longest = param::time(param::LONGEST_SERVICE_TIMEOUT) + way;
    assert_eq!(second(&world), at.after(longest));
    world.pass(longest);
    assert_eq!(world.state(1, id), State::RepSent);
    assert_eq!(world.count(1, Attribute::REP), 2);
}

/// CM-33.
#[test]
fn a_packet_of_the_connection_stands_for_a_lost_ready_to_use() {
    let mut world = World::new(2);
    world.listen(1, 5);
    let active = world.connect(0, 1, 100);
    world.pass(MILLISECOND);
    let passive = world.request(1);
    let early = |manager: &mut cm::Manager, now| manager.communication_established(now, passive);
    assert!(world.call(1, early).is_err(), "nothing was accepted");
    world.accept(1, passive, 200);
    world.pass(MILLISECOND);
    world.loses = Box::new(|_, body| matches!(body, Body::Rtu(_)));
    world.ready(0, active);
    world.call(1, early).unwrap();
    assert_eq!(world.event(1).kind, EventKind::Established { private_data: Box::default() });
    assert!(world.call(1, early).is_err(), "it is there already");
    world.settle();
    assert_eq!(world.state(1, passive), State::Established);
    assert_eq!(world.count(1, Attribute::REP), 1);
    world.no_event(1);
}

/// CM-34.
#[test]
fn a_peer_that_gives_up_is_known_by_its_address_and_number() {
    let mut world = World::new(2);
    world.listen(1, 5);
    let active = world.connect(0, 1, 100);
    world.pass(MILLISECOND);
    let passive = world.request(1);
    world.call(0, |manager, now| manager.destroy(now, active)).unwrap();
    world.pass(MILLISECOND);
    let EventKind::Rejected(rejection) = world.event(1).kind else { panic!() };
    assert_eq!(rejection.reason, RejectReason::TIMEOUT);
    assert_eq!(world.state(1, passive), State::Ended);
    let late = accepts(200);
    assert!(world.call(1, |manager, now| manager.accept(now, passive, &late)).is_err());
    world.call(1, |manager, now| manager.destroy(now, passive)).unwrap();
    assert!(world.is_empty());
}

/// CM-35.
#[test]
fn a_queue_pair_that_is_used_again_ends_the_connection_that_had_it() {
    let (mut world, active, passive) = World::connected();
    // The peer has started anew, and knows nothing of the connection.
    world.loses = Box::new(|node, body| node == 0 && matches!(body, Body::Dreq(_)));
    world.call(0, |manager, now| manager.destroy(now, active)).unwrap();
    let again = world.connect(0, 1, 100);
    world.pass(MILLISECOND);
    let EventKind::Rejected(rejection) = world.event(0).kind else { panic!() };
    assert_eq!(rejection.reason, RejectReason::STALE_CONNECTION);
    assert_eq!(world.state(0, again), State::Ended);
    assert!(matches!(world.event(1).kind, EventKind::Disconnected { .. }));
    assert_eq!(world.state(1, passive), State::TimeWait);
    let third = world.connect(0, 1, 100);
    world.establish(third, 100);
}

/// CM-35.
#[test]
fn a_request_that_is_undecided_ends_when_its_queue_pair_asks_anew() {
    let mut world = World::new(2);
    world.listen(1, 5);
    let (transaction, req) = asked(&mut world);
    ask(&mut world, transaction, req);
    let first = world.request(1);
    ask(&mut world, 5, Req { local_comm_id: 77, ..req });
    assert_eq!(refusal(&world), (RejectReason::STALE_CONNECTION, vec![]));
    assert!(matches!(world.event(1).kind, EventKind::Rejected(_)));
    assert_eq!(world.state(1, first), State::Ended);
    ask(&mut world, 5, Req { local_comm_id: 77, ..req });
    let second = world.request(1);
    world.accept(1, second, 200);
    // The same number in another transaction is another connection, too.
    ask(&mut world, 6, Req { local_comm_id: 77, local_qpn: 101, ..req });
    assert_eq!(refusal(&world), (RejectReason::STALE_CONNECTION, vec![]));
    assert_eq!(world.state(1, second), State::TimeWait);
    let EventKind::Rejected(rejection) = world.event(1).kind else { panic!() };
    assert_eq!(rejection.reason, RejectReason::STALE_CONNECTION);
}

/// CM-35.
#[test]
fn a_reply_with_the_queue_pair_of_a_living_connection_is_refused() {
    let (mut world, active, _) = World::connected();
    world.listen_for(1, PortSpace::Ib, Offer::Connections(Transport::Rc), 5);
    let mut asks = world.asks(0, 1, 101);
    asks.space = PortSpace::Ib;
    let second = world.call(0, |manager, now| manager.connect(now, crate::world::OWNER, &asks));
    let second = second.unwrap();
    world.pass(MILLISECOND);
    let passive = world.request(1);
    world.accept(1, passive, 200);
    world.pass(MILLISECOND);
    assert_eq!(world.state(0, active), State::DreqSent);
    assert_eq!(world.state(0, second), State::ReqSent);
    assert!(matches!(world.event(1).kind, EventKind::Disconnected { .. }));
    let EventKind::Rejected(rejection) = world.event(1).kind else {
        panic!("the reply was refused")
    };
    assert_eq!(rejection.reason, RejectReason::STALE_CONNECTION);
}

/// CM-35.
#[test]
fn whoever_was_accepted_by_a_queue_pair_that_accepts_another_is_told() {
    let mut world = World::new(2);
    world.listen(1, 5);
    let ids = [world.connect(0, 1, 100), world.connect(0, 1, 101)];
    world.pass(MILLISECOND);
    for _ in 0..2 {
        let passive = world.request(1);
        world.accept(1, passive, 200);
    }
    world.pass(MILLISECOND);
    assert!(matches!(world.event(0).kind, EventKind::ConnectResponse(_)));
    let event = world.event(0);
    let EventKind::Rejected(rejection) = event.kind else { panic!() };
    assert_eq!(rejection.reason, RejectReason::STALE_CONNECTION);
    assert!(ids.contains(&event.id));
    assert_eq!(world.state(0, event.id), State::TimeWait);
}

/// CM-42.
#[test]
fn an_alternate_path_is_not_taken_and_the_reply_says_so() {
    let mut world = World::new(2);
    world.listen(1, 5);
    for (index, byte) in [None, Some(0), Some(19)].into_iter().enumerate() {
        let (transaction, mut req) = asked(&mut world);
        req.local_qpn += index as u32;
        req.alternate = AlternatePath::NONE;
        if let Some(byte) = byte {
            req.alternate.0[byte] = 1;
        }
        ask(&mut world, transaction, req);
        let id = world.request(1);
        world.accept(1, id, 200);
        let Body::Rep(rep) = world.sent.last().unwrap().message.body else { panic!() };
        assert_eq!(rep.failover_accepted, u8::from(byte.is_some()));
    }
}
