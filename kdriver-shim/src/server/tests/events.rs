//! Events of a client's objects, and their number.

use std::sync::atomic::{AtomicBool, Ordering};

use super::bench::{Bench, Peer, records};
use super::*;

/// A client with a completion queue that tells a channel.
struct Notified {
    peer: Peer,
    channel: u32,
    records_of: OwnedFd,
    cqn: u32,
    /// The memory of its rings, and where the queue's is.
    rings: SharedMapping,
    ring: u64,
}

impl Notified {
    fn new(bench: &mut Bench) -> Self {
        let peer = bench.provider();
        let (context, fds) = bench.open(&peer, 0);
        let length = context.rings.length as usize;
        let rings = SharedMapping::new(fds[4].as_fd(), 0, length, Access::ReadWrite).unwrap();
        let (channel, mut fds) = bench.channel(&peer, context.context);
        let (cqn, ring) = bench.cq(&peer, context.context, Some(channel));
        Self { peer, channel, records_of: fds.remove(0), cqn, rings, ring }
    }

    /// Says that so many events were read.
    fn read(&self, count: u32) {
        let at = self.ring as usize + record::EVENTS_READ;
        self.rings.store_release_u32(at, count).unwrap();
    }
}

#[test]
fn completion_events_are_merged_while_one_is_unread_and_stop_with_the_queue() {
    let mut bench = Bench::new(1, 1);
    let notified = Notified::new(&mut bench);
    let &Notified { ref peer, ref records_of, cqn, .. } = &notified;
    bench.completion(cqn);
    bench.completion(cqn);
    assert_eq!(records(records_of), [0xc0ffeeu64.to_le_bytes()]);
    notified.read(1);
    bench.completion(cqn);
    let taken = records(records_of);
    assert_eq!(taken.len(), 1);
    let event = Event { kind: EventType::Completion, number: cqn, ..Event::default() };
    notified.read(2);
    bench.cards[0].raise(0, event);
    let answer = bench.ask(peer, Request::DestroyCq { cqn }).0;
    let sent = records(records_of).len() as u32;
    let expected = Response::Destroyed { completion_events: 2 + sent, async_events: 0 };
    assert_eq!(answer, expected);
    bench.completion(cqn);
    assert!(records(records_of).is_empty());
}

#[test]
fn the_events_of_a_resized_queue_are_counted_in_either_record_and_then_in_the_new_one() {
    let mut bench = Bench::new(1, 1);
    let mut notified = Notified::new(&mut bench);
    let cqn = notified.cqn;
    let told = |bench: &mut Bench, notified: &Notified| {
        bench.completion(cqn);
        records(&notified.records_of).len()
    };
    assert_eq!(told(&mut bench, &notified), 1);
    let resize = Request::ResizeCq { cqn, log2_entries: 3 };
    let Response::CqResized { ring, end } = bench.ask(&notified.peer, resize).0 else { panic!() };
    assert_eq!(end, 0);
    assert_eq!(told(&mut bench, &notified), 0, "the first was not read");
    notified.read(1);
    assert_eq!(told(&mut bench, &notified), 1, "read by the old record");
    notified.ring = ring;
    notified.read(2);
    assert_eq!(told(&mut bench, &notified), 1, "read by the new record");
    bench.ask(&notified.peer, Request::ReleaseCqRing { cqn });
    assert_eq!(told(&mut bench, &notified), 0);
    notified.read(3);
    assert_eq!(told(&mut bench, &notified), 1);
}

#[test]
fn a_client_that_lies_about_what_it_has_read_has_one_record_kept() {
    let mut bench = Bench::new(1, 1);
    let notified = Notified::new(&mut bench);
    let &Notified { ref peer, ref records_of, cqn, .. } = &notified;
    for read in 1..=2000 {
        bench.completion(cqn);
        notified.read(read);
    }
    let client = bench.server.clients.values().next().unwrap();
    assert_eq!(client.owned.channels[&notified.channel].records.kept(), 1);
    // Those that were sent are counted, and no others.
    let in_socket = records(records_of).len() as u32;
    assert!(in_socket < 1000);
    let answer = bench.ask(peer, Request::DestroyCq { cqn }).0;
    let late = records(records_of).len() as u32;
    let completion_events = in_socket + late;
    assert_eq!(answer, Response::Destroyed { completion_events, async_events: 0 });
}

#[test]
fn a_channel_that_is_closed_counts_no_more_also_where_a_completion_found_that_first() {
    let mut bench = Bench::new(1, 1);
    let Notified { peer: _peer, records_of, cqn, .. } = Notified::new(&mut bench);
    drop(records_of);
    bench.completion(cqn);
    let client = bench.server.clients.values().next().unwrap();
    assert!(client.owned.channels.is_empty());
    assert_eq!(client.usage.of(crate::quota::Resource::Channels), 0);
}

/// A client with a queue pair, and the socket of its asynchronous events.
struct Listening {
    peer: Peer,
    events: OwnedFd,
    cqn: u32,
    qpn: u32,
}

impl Listening {
    fn new(bench: &mut Bench) -> Self {
        let peer = bench.provider();
        let (context, mut fds) = bench.open(&peer, 0);
        let pdn = bench.pd(&peer, context.context);
        let (cqn, _) = bench.cq(&peer, context.context, None);
        let qpn = bench.qp(&peer, pdn, cqn);
        Self { peer, events: fds.remove(0), cqn, qpn }
    }
}

#[test]
fn asynchronous_events_carry_the_cookie_of_their_object() {
    let mut bench = Bench::new(1, 1);
    let Listening { peer, events, cqn, qpn } = Listening::new(&mut bench);
    let card = Arc::clone(&bench.cards[0]);
    let fatal = QpEvent::Fatal.0;
    let raise =
        |kind, code, number| card.raise(0, Event { kind, code, number, ..Event::default() });
    raise(EventType::Qp, fatal, qpn);
    raise(EventType::Qp, fatal, qpn);
    raise(EventType::CqError, 0, cqn);
    raise(EventType::Port, 0, 0);
    raise(EventType::Qp, fatal, qpn + 1000);
    bench.turn();
    let expected = [(0xdeadu64, 1u32), (0xc0ffee, 0), (1, 10)];
    let expected = expected
        .map(|(cookie, kind)| [&cookie.to_le_bytes()[..], &kind.to_le_bytes(), &[0; 4]].concat());
    assert_eq!(records(&events), expected);
    let answer = bench.ask(&peer, Request::DestroyQp { qpn }).0;
    assert_eq!(answer, Response::Destroyed { completion_events: 0, async_events: 1 });
}

#[test]
fn a_failure_of_a_qp_before_its_reset_hides_none_behind_it() {
    let mut bench = Bench::new(1, 1);
    let Listening { peer, events, qpn, .. } = Listening::new(&mut bench);
    connect_qp(&mut bench, &peer, qpn, 77).unwrap();
    let failure =
        Event { kind: EventType::Qp, code: QpEvent::Fatal.0, number: qpn, ..Event::default() };
    // It stands in the ring when the reset is answered, and its interrupt comes late.
    bench.cards[0].hold_clears();
    bench.cards[0].raise(0, Event { kind: EventType::Completion, ..Event::default() });
    bench.turn();
    let once = AtomicBool::new(true);
    bench.cards[0].script(move |card, offset, value| {
        card.pass(offset, value);
        if is_doorbell(offset) && once.swap(false, Ordering::Relaxed) {
            card.raise(0, failure);
        }
    });
    go(&mut bench, &peer, qpn, QpState::Reset);
    connect_qp(&mut bench, &peer, qpn, 77).unwrap();
    bench.cards[0].let_clears_arrive();
    bench.turn();
    assert_eq!(records(&events).len(), 1);
    bench.cards[0].let_clears_arrive();
    bench.cards[0].raise(0, failure);
    bench.turn();
    assert_eq!(records(&events).len(), 1, "it failed again");
}

#[test]
fn a_tool_takes_a_port_off_its_cable_and_its_programs_are_told() {
    let mut bench = Bench::new(2, 1);
    let Listening { peer, events, .. } = Listening::new(&mut bench);
    let (other, mut fds) = bench.open(&peer, 1);
    let tool = bench.tool();
    let (port_active, port_err) = (9u32, 10u32);
    let record = |kind: u32| [&1u64.to_le_bytes()[..], &kind.to_le_bytes(), &[0; 4]].concat();
    let state = bench.state_dir().join("ports/balboa0/state");
    for (up, told, text) in [(false, port_err, "1: DOWN\n"), (true, port_active, "4: ACTIVE\n")] {
        assert_eq!(bench.ask(&tool, Request::SetLink { card: 0, up }).0, Response::Done);
        assert_eq!(std::fs::read_to_string(&state).unwrap(), text, "as soon as it is answered");
        bench.turn();
        assert_eq!(records(&events), [record(told)]);
        let (Response::Cards(cards), _) = bench.ask(&tool, Request::ListCards) else { panic!() };
        assert_eq!([cards[0].port.link_up, cards[1].port.link_up], [up, true]);
    }
    assert!(records(&fds.remove(0)).is_empty(), "card 1, context {}", other.context);
}

#[test]
fn counters_are_read_of_cards_only_that_worked_or_that_somebody_asked_for_something() {
    let mut bench = Bench::new(1, 1);
    let peer = bench.provider();
    bench.open(&peer, 0);
    let begun = Instant::now();
    let reads = |bench: &mut Bench, seconds| {
        bench.server.write_ports(begun + Duration::from_secs(seconds));
        let log = bench.cards[0].window(0, |w| w.log.clone());
        log.iter().filter(|opcode| **opcode == Opcode::QueryCounters).count()
    };
    let first = reads(&mut bench, 10);
    assert_eq!(reads(&mut bench, 20), first);
    bench.open(&peer, 0);
    assert_eq!(reads(&mut bench, 20), first, "it is not time");
    assert_eq!(reads(&mut bench, 30), first + 1);
    assert_eq!(reads(&mut bench, 40), first + 1);
    bench.cards[0].moves_frames();
    assert_eq!(reads(&mut bench, 50), first + 2);
    assert_eq!(reads(&mut bench, 60), first + 2);
}

#[test]
fn a_link_is_changed_by_tools_only_and_on_cards_that_are_there() {
    let mut bench = Bench::new(1, 1);
    let peer = bench.provider();
    let request = Request::SetLink { card: 0, up: false };
    let refusal = bench.refused(&peer, request.clone());
    assert_eq!(refusal.errno, Errno::EPERM as i32);
    let tool = bench.tool();
    let refusal = bench.refused(&tool, Request::SetLink { card: 7, up: false });
    assert_eq!(refusal.errno, Errno::EINVAL as i32);
    // A card that cannot.
    let unsupported = fpga_regs::engine::admin::AdminStatus::Unsupported;
    bench.cards[0].window(0, |w| w.refuse.insert(Opcode::SetLink, unsupported));
    let refusal = bench.refused(&tool, request);
    assert_eq!(refusal.errno, Errno::EOPNOTSUPP as i32);
    assert!(refusal.reason.contains("balboa0 window 0: SetLink"), "{refusal:?}");
}

fn ip(text: &str) -> [u8; 16] {
    match text.parse().unwrap() {
        std::net::IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        std::net::IpAddr::V6(ip) => ip.octets(),
    }
}

#[test]
fn addresses_keep_their_index_and_programs_are_told_of_each_change() {
    let mut bench = Bench::new(2, 2);
    let Listening { peer: _peer, events, .. } = Listening::new(&mut bench);
    let tool = bench.tool();
    let changed = [&1u64.to_le_bytes()[..], &18u32.to_le_bytes(), &[0; 4]].concat();
    let add = |bench: &mut Bench, text| {
        let answer = bench.ask(&tool, Request::AddGid { card: 0, gid: ip(text), vlan: 0 }).0;
        let Response::Gid { index } = answer else { panic!("{answer:?}") };
        index
    };
    let del = |text: &str| Request::DelGid { card: 0, gid: ip(text), vlan: 0 };
    // The first of IPv4 is the card's own.
    assert_eq!(add(&mut bench, "2001:db8::1"), 2);
    assert_eq!(add(&mut bench, "10.1.0.1"), 3);
    assert_eq!(records(&events), [changed.clone(), changed.clone()]);
    bench.ask(&tool, del("10.77.0.1"));
    bench.ask(&tool, del("2001:db8::1"));
    assert_eq!(add(&mut bench, "2001:db8::2"), 2, "index 1 is for addresses of IPv4");
    assert_eq!(add(&mut bench, "10.1.0.2"), 1);
    assert_eq!(records(&events).len(), 4);
    let (Response::Cards(cards), _) = bench.ask(&tool, Request::ListCards) else { panic!() };
    let [first, other] = [&cards[0].port.gids, &cards[1].port.gids];
    assert_eq!(first[1..4], ["10.1.0.2", "2001:db8::2", "10.1.0.1"].map(ip));
    assert_eq!((first.len(), other[2]), (16, [0; 16]));
    let file = bench.state_dir().join("ports/balboa0/gids/3");
    let text = std::fs::read_to_string(file).unwrap();
    assert_eq!(text, "0000:0000:0000:0000:0000:ffff:0a01:0001\n");
    // Every engine of the card was told.
    for window in 0..2 {
        let log = bench.cards[0].window(window, |w| w.log.clone());
        let told = log.iter().filter(|opcode| **opcode == Opcode::SetGid).count();
        assert_eq!(told, 2 + 6, "window {window}");
    }
}

#[test]
fn an_address_that_cannot_be_is_refused_by_its_name_and_changes_nothing() {
    let mut bench = Bench::new(2, 1);
    let Listening { peer, events, .. } = Listening::new(&mut bench);
    let tool = bench.tool();
    let add = |text: &str| Request::AddGid { card: 0, gid: ip(text), vlan: 0 };
    let del = |text: &str| Request::DelGid { card: 0, gid: ip(text), vlan: 0 };
    let refused = [
        (add("10.77.0.1"), Errno::EINVAL, "10.77.0.1 is an address of balboa0 already"),
        (add("10.77.0.2"), Errno::EINVAL, "10.77.0.2 is an address of balboa1 already"),
        (add("ff02::1"), Errno::EINVAL, "multicast"),
        (add("0.0.0.0"), Errno::EINVAL, "unspecified"),
        (add("::"), Errno::EINVAL, "unspecified"),
        (add("::1"), Errno::EINVAL, "loopback"),
        (del("10.1.0.1"), Errno::EINVAL, "balboa0 has no address 10.1.0.1"),
        (del("::"), Errno::EINVAL, "balboa0 has no address"),
        (del("fe80::aff:fe4d:1"), Errno::EINVAL, "stays"),
    ];
    for (request, errno, why) in refused {
        let refusal = bench.refused(&tool, request.clone());
        assert_eq!(refusal.errno, errno as i32, "{request:?}");
        assert!(refusal.reason.contains(why), "{request:?}: {refusal:?}");
        assert_eq!(bench.refused(&peer, request).errno, Errno::EPERM as i32, "a verbs program");
    }
    let tagged = |text: &str, vlan| Request::AddGid { card: 0, gid: ip(text), vlan };
    let refusal = bench.refused(&tool, tagged("10.5.0.1", 4095));
    assert_eq!(refusal.errno, Errno::EINVAL as i32);
    assert!(refusal.reason.contains("VLAN 4095"), "{refusal:?}");
    for host in 2..16 {
        bench.ask(&tool, add(&format!("10.1.0.{host}")));
    }
    assert_eq!(records(&events).len(), 14);
    let refusal = bench.refused(&tool, add("10.1.0.16"));
    assert_eq!(refusal.errno, Errno::ENOSPC as i32);
    assert!(refusal.reason.contains("16 entries"), "{refusal:?}");
    bench.server.cards[0].follows_kernel = true;
    for request in [add("10.1.0.16"), del("10.1.0.2")] {
        let refusal = bench.refused(&tool, request);
        assert_eq!(refusal.errno, Errno::EOPNOTSUPP as i32);
        assert!(refusal.reason.contains("ip addr"), "{refusal:?}");
    }
    assert!(records(&events).is_empty());
}

#[test]
fn an_address_of_a_vlan_is_another_than_the_same_elsewhere() {
    let mut bench = Bench::new(1, 1);
    let tool = bench.tool();
    let add = |vlan| Request::AddGid { card: 0, gid: ip("10.77.0.1"), vlan };
    let del = |vlan| Request::DelGid { card: 0, gid: ip("10.77.0.1"), vlan };
    assert!(bench.refused(&tool, add(0)).reason.contains("10.77.0.1 is an address"));
    assert_eq!(bench.ask(&tool, add(5)).0, Response::Gid { index: 2 });
    assert_eq!(bench.ask(&tool, add(4094)).0, Response::Gid { index: 3 });
    assert!(bench.refused(&tool, add(5)).reason.contains("10.77.0.1 vlan 5 is an address"));
    assert_eq!(bench.ask(&tool, del(5)).0, Response::Done);
    assert!(bench.refused(&tool, del(5)).reason.contains("no address 10.77.0.1 vlan 5"));
    let (Response::Cards(cards), _) = bench.ask(&tool, Request::ListCards) else { panic!() };
    let port = &cards[0].port;
    assert_eq!((port.vlans[1], port.vlans[2], port.vlans[3]), (0, 0, 4094));
    assert_eq!((port.gids[2], port.gids[3]), ([0; 16], port.gids[1]));
}
