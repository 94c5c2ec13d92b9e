//! The side that asks.

use std::time::Duration;

use cm::wire::{
    Attribute, Body, IpHeader, Message, Mra, RejectReason, Rejected, Rep, Req, TransportService,
};
use cm::{EventKind, Path, QpAttributes, QpTarget, Route, ServiceId, State, Transport, param};

use crate::world::{OWNER, SERVICE, World, is_padded};

const MILLISECOND: Duration = Duration::from_millis(1);

fn req(world: &World, index: usize) -> (u64, Req) {
    let message = world.sent[index].message;
    match message.body {
        Body::Req(req) => (message.transaction_id, req),
        other => panic!("{other:?} is no REQ"),
    }
}

/// CM-3, CM-5, CM-6, CM-8, CM-13.
#[test]
fn a_request_says_who_asks_whom_for_what() {
    let mut world = World::new(2);
    let id = world.connect(0, 1, 100);
    let (transaction, asked) = req(&world, 0);
    assert_ne!(transaction, 0);
    assert_eq!(asked.local_comm_id, id.0);
    assert_eq!(ServiceId(asked.service_id).port(), Some((cm::PortSpace::Tcp, SERVICE)));
    assert_eq!((asked.local_qpn, asked.local_ca_guid, asked.pkey), (100, 0x1000, 0xffff));
    assert_eq!((asked.responder_resources, asked.initiator_depth), (4, 3));
    assert_eq!((asked.retry_count, asked.rnr_retry_count, asked.max_cm_retries), (6, 5, 15));
    assert_eq!((asked.local_cm_response_timeout, asked.remote_cm_response_timeout), (20, 20));
    assert_eq!((asked.path_mtu, asked.primary_packet_rate), (3, 7));
    assert_eq!(asked.transport_service, TransportService::RC);
    assert_eq!((asked.primary_local_lid, asked.primary_remote_lid), (0xffff, 0xffff));
    assert!(!asked.primary_subnet_local && asked.end_to_end_flow_control && !asked.srq);
    let (local, remote) = (world.nodes[0].address, world.nodes[1].address);
    assert_eq!((asked.primary_local_gid, asked.primary_remote_gid), (local.gid, remote.gid));
    assert_eq!(asked.primary_hop_limit, 64);
    assert_eq!(asked.primary_local_ack_timeout, param::ack_timeout(15, param::PACKET_LIFETIME));
    let header = IpHeader::parse(&asked.private_data).unwrap();
    assert_eq!((header.source, header.destination), (local.ip(), remote.ip()));
    assert_eq!(header.source_port, 40_000);
    assert!(is_padded(&asked.private_data[36..], b"hello", 56));

    let near =
        Route { hop_limit: 1, flow_label: 0xabcde, traffic_class: 9, sl: 2, ..world.route(0, 1) };
    let mut asks = world.asks(0, 1, 101);
    asks.path = Path { route: near, ..asks.path };
    asks.transport = Transport::Uc;
    world.call(0, |manager, now| manager.connect(now, OWNER, &asks)).unwrap();
    let (second, asked) = req(&world, 1);
    assert_ne!(second, transaction);
    assert!(asked.primary_subnet_local && asked.primary_local_lid == 0);
    assert_eq!(asked.transport_service, TransportService::UC);
    assert_eq!(
        (asked.primary_flow_label, asked.primary_traffic_class, asked.primary_sl),
        (0xabcde, 9, 2)
    );
}

/// CM-4.
#[test]
fn values_that_no_field_can_have_are_refused() {
    use cm::Error;
    let mut world = World::new(2);
    let good = world.asks(0, 1, 100);
    let with = |change: &dyn Fn(&mut cm::Connect<'static>)| {
        let mut asks = good;
        change(&mut asks);
        asks
    };
    let long = [1; 57];
    let words: &'static [u8] = Box::leak(Box::new(long));
    let bad = [
        (with(&|it| it.private_data = words), Error::PrivateData { length: 57, most: 56 }),
        (with(&|it| it.qpn = 1), Error::Range("QPN")),
        (with(&|it| it.qpn = 0xff_ffff), Error::Range("QPN")),
        (with(&|it| it.retry_count = 8), Error::Range("retry count")),
        (with(&|it| it.rnr_retry_count = 8), Error::Range("RNR retry count")),
        (with(&|it| it.max_cm_retries = 16), Error::Range("CM retries")),
        (with(&|it| it.response_timeout = 32), Error::Range("response timeout")),
        (with(&|it| it.path.mtu = 6), Error::Range("path MTU")),
        (with(&|it| it.path.mtu = 0), Error::Range("path MTU")),
        (with(&|it| it.path.route.flow_label = 1 << 20), Error::Range("flow label")),
        (with(&|it| it.path.route.port = 9), Error::NoPort(9)),
        (with(&|it| it.path.route.local.gid = "fe80::1".parse().unwrap()), Error::Family),
        (with(&|it| it.path.route.remote.vlan = 5), Error::Family),
    ];
    for (asks, error) in bad {
        let answer = world.call(0, |manager, now| manager.connect(now, OWNER, &asks));
        assert_eq!(answer, Err(error));
    }
    assert!(world.is_empty() && world.sent.is_empty());
    let most = with(&|it| it.private_data = &words[..56]);
    world.call(0, |manager, now| manager.connect(now, OWNER, &most)).unwrap();
}

/// CM-23, CM-28.
#[test]
fn a_request_that_nobody_answers_is_repeated_and_then_given_up() {
    let mut world = World::new(2);
    world.loses = Box::new(|_, _| true);
    let id = world.connect(0, 1, 100);
    world.settle();
    assert_eq!(world.count(0, Attribute::REQ), 16);
    let patience = param::time(20) + param::time(param::PACKET_LIFETIME + 1);
    for pair in world.sent[..16].windows(2) {
        assert_eq!(pair[1].at, pair[0].at.after(patience));
        assert_eq!(pair[1].message, pair[0].message, "a repetition is the same");
    }
    assert_eq!(world.event(0).kind, EventKind::Unreachable);
    let last = world.sent.last().unwrap().message;
    let Body::Rej(rej) = last.body else { panic!("{last:?} is no REJ") };
    assert_eq!((rej.reason, rej.message), (RejectReason::TIMEOUT, Rejected::OTHER));
    assert_eq!((rej.local_comm_id, rej.remote_comm_id), (id.0, 0));
    assert_eq!(rej.info[..usize::from(rej.info_length)], 0x1000_u64.to_be_bytes());
    assert_eq!(world.state(0, id), State::Ended);
    // A reply that comes too late is refused, and leaves nothing behind.
    let (transaction_id, _) = req(&world, 0);
    let late = Rep { local_comm_id: 5, remote_comm_id: id.0, local_qpn: 200, ..Rep::ZERO };
    let route = world.route(1, 0);
    world.deliver(route, &Message { transaction_id, body: late.into() }.to_bytes());
    let Body::Rej(rej) = world.sent.last().unwrap().message.body else { panic!() };
    assert_eq!(rej.reason, RejectReason::INVALID_COMM_ID);
    world.call(0, |manager, now| manager.destroy(now, id)).unwrap();
    assert!(world.is_empty());
}

/// CM-24, CM-51.
#[test]
fn a_peer_that_asks_for_time_gets_it_within_a_bound() {
    for (asked, given) in [(22, 22), (31, param::LONGEST_SERVICE_TIMEOUT)] {
        let mut world = World::new(2);
        world.loses = Box::new(|_, _| true);
        let id = world.connect(0, 1, 100);
        let (transaction_id, _) = req(&world, 0);
        let mra = Mra { remote_comm_id: id.0, service_timeout: asked, ..Mra::ZERO };
        let mra = Message { transaction_id, body: mra.into() }.to_bytes();
        let (at, route) = (world.now, world.route(1, 0));
        world.deliver(route, &mra);
        assert_eq!(world.state(0, id), State::RepWait);
        world.deliver(route, &mra);
        let longer = param::time(given) + param::time(param::PACKET_LIFETIME + 1);
        assert_eq!(world.nodes[0].manager.next_deadline(), Some(at.after(longer)));
        world.pass(longer);
        assert_eq!(world.state(0, id), State::ReqSent);
        assert_eq!(world.count(0, Attribute::REQ), 2);
    }
}

/// CM-47.
#[test]
fn who_tries_for_ever_tries_again_soon() {
    let timer = |world: &World, node: usize, id| {
        let attributes = world.nodes[node].manager.qp_attributes(id, QpTarget::Rtr);
        let Ok(QpAttributes::Rtr { min_rnr_timer, .. }) = attributes else { panic!() };
        min_rnr_timer
    };
    for (retries, expected) in [(6, param::RNR_TIMER), (7, param::SHORT_RNR_TIMER)] {
        let mut world = World::new(2);
        world.listen(1, 5);
        let asks = cm::Connect { rnr_retry_count: retries, ..world.asks(0, 1, 100) };
        let active = world.call(0, |manager, now| manager.connect(now, OWNER, &asks)).unwrap();
        world.pass(MILLISECOND);
        let passive = world.request(1);
        // The passive side uses the active side's timer until it accepts with its own: 4.
        assert_eq!(timer(&world, 1, passive), expected);
        world.accept(1, passive, 200);
        assert_eq!(timer(&world, 1, passive), param::RNR_TIMER);
        world.pass(MILLISECOND);
        assert_eq!(timer(&world, 0, active), expected);
    }
}

/// CM-25, CM-26, CM-47, CM-48.
#[test]
fn a_reply_tells_what_the_queue_pair_needs() {
    let mut world = World::new(2);
    world.listen(1, 5);
    let active = world.connect(0, 1, 100);
    let early = world.nodes[0].manager.qp_attributes(active, QpTarget::Rtr);
    assert!(early.is_err(), "the peer's queue pair is not known");
    let init = world.nodes[0].manager.qp_attributes(active, QpTarget::Init);
    assert_eq!(init, Ok(QpAttributes::Init { remote_read_atomic: true }));
    world.pass(MILLISECOND);
    let passive = world.request(1);
    world.accept(1, passive, 200);
    world.pass(MILLISECOND);
    let EventKind::ConnectResponse(response) = world.event(0).kind else { panic!() };
    assert_eq!((response.remote_qpn, response.remote_ca_guid), (200, 0x1001));
    assert_eq!((response.responder_resources, response.initiator_depth), (2, 3));
    assert_eq!((response.rnr_retry_count, response.flow_control, response.srq), (4, false, true));
    assert!(is_padded(&response.private_data, b"welcome", 196));

    let of = |world: &World, node: usize, id, target| {
        world.nodes[node].manager.qp_attributes(id, target).unwrap()
    };
    let path = world.path(0, 1);
    let QpAttributes::Rtr {
        path: has, dest_qpn, rq_psn, max_dest_rd_atomic, min_rnr_timer, ..
    } = of(&world, 0, active, QpTarget::Rtr)
    else {
        panic!()
    };
    assert_eq!((has, dest_qpn, max_dest_rd_atomic, min_rnr_timer), (path, 200, 2, 0));
    let QpAttributes::Rts { sq_psn, max_rd_atomic, retry_cnt, rnr_retry, timeout, .. } =
        of(&world, 0, active, QpTarget::Rts)
    else {
        panic!()
    };
    assert_eq!((max_rd_atomic, retry_cnt, rnr_retry), (3, 6, 4));
    assert_eq!(timeout, param::ack_timeout(15, param::PACKET_LIFETIME));
    let QpAttributes::Rtr { rq_psn: passive_rq, dest_qpn, max_dest_rd_atomic, .. } =
        of(&world, 1, passive, QpTarget::Rtr)
    else {
        panic!()
    };
    assert_eq!((dest_qpn, max_dest_rd_atomic), (100, 3));
    let QpAttributes::Rts { sq_psn: passive_sq, max_rd_atomic, retry_cnt, rnr_retry, .. } =
        of(&world, 1, passive, QpTarget::Rts)
    else {
        panic!()
    };
    assert_eq!((max_rd_atomic, retry_cnt, rnr_retry), (2, 6, 5));
    assert_eq!((sq_psn, passive_sq), (passive_rq, rq_psn), "each sends what the other expects");
    assert_ne!(rq_psn, passive_rq, "PSNs are drawn");

    world.ready(0, active);
    world.pass(MILLISECOND);
    let EventKind::Established { private_data } = world.event(1).kind else { panic!() };
    assert!(is_padded(&private_data, b"ready", 224));
    world.no_event(0);
}

/// CM-26.
#[test]
fn a_repeated_reply_is_answered_by_patience_first_and_by_ready_then() {
    let mut world = World::new(2);
    world.listen(1, 5);
    let active = world.connect(0, 1, 100);
    world.pass(MILLISECOND);
    let passive = world.request(1);
    world.accept(1, passive, 200);
    world.pass(Duration::from_secs(6));
    assert_eq!(world.state(0, active), State::RepReceived);
    assert_eq!(world.state(1, passive), State::RtuWait);
    assert_eq!((world.count(1, Attribute::REP), world.count(0, Attribute::MRA)), (2, 1));
    let mut first = true;
    world.loses =
        Box::new(move |_, body| matches!(body, Body::Rtu(_)) && std::mem::take(&mut first));
    world.ready(0, active);
    assert_eq!(world.count(0, Attribute::RTU), 1);
    world.pass(Duration::from_secs(80));
    assert_eq!(world.count(1, Attribute::REP), 3);
    assert_eq!(world.count(0, Attribute::RTU), 2);
    assert_eq!(world.state(1, passive), State::Established);
}

/// CM-27.
#[test]
fn a_refusal_is_told_with_its_reason() {
    let mut world = World::new(2);
    world.listen(1, 5);
    let active = world.connect(0, 1, 100);
    world.pass(MILLISECOND);
    let passive = world.request(1);
    let call = |manager: &mut cm::Manager, now| {
        manager.reject(now, passive, RejectReason::CONSUMER, &[1, 2], b"no")
    };
    world.call(1, call).unwrap();
    world.pass(MILLISECOND);
    let EventKind::Rejected(rejection) = world.event(0).kind else { panic!() };
    assert_eq!((rejection.reason, rejection.message), (RejectReason::CONSUMER, Rejected::REQ));
    assert_eq!(rejection.info[..], [1, 2]);
    assert!(is_padded(&rejection.private_data, b"no", 148));
    assert_eq!(world.state(0, active), State::Ended);
    assert!(world.nodes[0].manager.qp_attributes(active, QpTarget::Init).is_err());
}

/// CM-29.
#[test]
fn a_reply_to_nobody_is_refused_so_that_the_peer_need_not_wait() {
    let mut world = World::new(2);
    world.listen(1, 5);
    let active = world.connect(0, 1, 100);
    world.pass(MILLISECOND);
    let passive = world.request(1);
    world.loses = Box::new(|node, _| node == 0);
    world.call(0, |manager, now| manager.destroy(now, active)).unwrap();
    world.loses = Box::new(|_, _| false);
    world.accept(1, passive, 200);
    world.pass(MILLISECOND);
    let EventKind::Rejected(rejection) = world.event(1).kind else { panic!() };
    assert_eq!(rejection.reason, RejectReason::INVALID_COMM_ID);
    assert_eq!(rejection.message, Rejected::REP);
}

/// CM-22.
#[test]
fn two_sides_that_ask_each_other_get_two_connections_or_two_refusals() {
    let mut world = World::new(2);
    let ids = [world.connect(0, 1, 100), world.connect(1, 0, 200)];
    world.pass(MILLISECOND);
    for (node, id) in ids.into_iter().enumerate() {
        let EventKind::Rejected(rejection) = world.event(node).kind else { panic!() };
        assert_eq!(rejection.reason, RejectReason::INVALID_SERVICE_ID);
        world.call(node, |manager, now| manager.destroy(now, id)).unwrap();
    }
    world.listen(0, 5);
    world.listen(1, 5);
    let ids = [world.connect(0, 1, 100), world.connect(1, 0, 200)];
    world.pass(MILLISECOND);
    for node in 0..2 {
        let passive = world.request(node);
        world.accept(node, passive, 300);
    }
    world.pass(MILLISECOND);
    for (node, id) in ids.into_iter().enumerate() {
        assert!(matches!(world.event(node).kind, EventKind::ConnectResponse(_)));
        world.ready(node, id);
    }
    world.pass(MILLISECOND);
    for (node, id) in ids.into_iter().enumerate() {
        assert!(matches!(world.event(node).kind, EventKind::Established { .. }));
        assert_eq!(world.state(node, id), State::Established);
    }
}
