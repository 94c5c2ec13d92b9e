//! Destinations that are looked for.

use super::*;

const PEER: &str = "10.77.0.2:7174";

/// Alice, searching for a peer that is silent, from one of her addresses or from any; and the time of the card's second
/// question, 1 ms after the first.
fn searching(bench: &mut Bench, from: Option<&str>) -> (Program, u32, Instant) {
    let mut alice = bench.program(ALICE);
    bench.wire.silent = vec![abi::gid("10.77.0.2".parse().unwrap())];
    let id = bench.id(&mut alice, 0xa);
    if let Some(from) = from {
        bench.bind(&mut alice, id, from).unwrap();
    } else {
        // It is in the network of the first card, as long as no card has it.
        bench.wire.addresses.retain(|local| local.card == 0);
    }
    bench.resolve(&mut alice, id, None, PEER).unwrap();
    bench.no_event(&mut alice);
    assert_eq!(bench.server.ids[&id].state, IdentifierState::AddrQuery);
    let second = bench.server.next_search().unwrap();
    (alice, id, second)
}

fn usage(bench: &Bench) -> u64 {
    let usage = bench.server.usage(ALICE.client);
    usage.map_or(0, |usage| usage.of(Resource::CmEvents))
}

/// Lets the searches go on until then.
fn wait_until(bench: &mut Bench, second: Instant, milliseconds: u64) -> usize {
    let until = Instant(second.0 + milliseconds * 1_000_000);
    let mut looks = 0;
    while let Some(at) = bench.server.next_search().filter(|at| *at <= until) {
        bench.server.tick_at(&mut bench.wire, at);
        looks += 1;
    }
    looks
}

#[test]
fn an_address_that_nobody_has_is_told_of_when_the_programs_time_has_passed() {
    let mut bench = Bench::new();
    let (mut alice, id, second) = searching(&mut bench, None);
    assert!(wait_until(&mut bench, second, 1_998) <= 20);
    bench.no_event(&mut alice);
    assert_eq!(usage(&bench), 1);
    // Not before it knows where that is.
    assert_eq!(errno(&bench.route(&mut alice, id).unwrap_err()), Errno::EINVAL);
    assert_eq!(errno(&bench.listen(&mut alice, id, 0).unwrap_err()), Errno::EINVAL);
    assert_eq!(errno(&bench.qp_attr(&mut alice, id, 1).unwrap_err()), Errno::EINVAL);
    let again = bench.resolve(&mut alice, id, None, PEER).unwrap_err();
    assert_eq!(errno(&again), Errno::EINVAL);
    wait_until(&mut bench, second, 3_600_000);
    let error = bench.event(&mut alice);
    let timed_out = (Errno::ETIMEDOUT as i32).wrapping_neg() as u32;
    assert_eq!((error.number, error.id, error.status), (event::ADDR_ERROR, id, timed_out));
    bench.tell_read(&mut alice);
    assert_eq!((usage(&bench), bench.server.next_search()), (0, None));
    // The peer comes up, and the same identifier finds it.
    bench.wire.silent.clear();
    bench.resolve(&mut alice, id, None, PEER).unwrap();
    assert_eq!(bench.event(&mut alice).number, event::ADDR_RESOLVED);
    bench.route(&mut alice, id).unwrap();
    assert_eq!(bench.event(&mut alice).number, event::ROUTE_RESOLVED);
    assert_eq!(bench.destroy(&mut alice, id), 3);
}

#[test]
fn a_peer_that_answers_late_is_found() {
    let mut bench = Bench::new();
    let (mut alice, id, second) = searching(&mut bench, Some("10.77.0.1:0"));
    wait_until(&mut bench, second, 1_000);
    bench.no_event(&mut alice);
    bench.wire.silent.clear();
    wait_until(&mut bench, second, 1_500);
    let found = bench.event(&mut alice);
    assert_eq!((found.number, found.id), (event::ADDR_RESOLVED, id));
    assert_eq!(bench.query_route(&mut alice, id)[140..144], [10, 77, 0, 1]);
    assert_eq!((usage(&bench), bench.server.next_search()), (0, None));
}

#[test]
fn what_is_known_without_asking_is_resolved_at_once() {
    let mut bench = Bench::new();
    let mut alice = bench.program(ALICE);
    let texts = ["10.77.0.1", "239.1.1.1"];
    bench.wire.silent = texts.iter().map(|text| abi::gid(text.parse().unwrap())).collect();
    for text in texts {
        let id = bench.id_of(&mut alice, 0xa, space::UDP, QpType::Ud);
        bench.resolve(&mut alice, id, None, &format!("{text}:7174")).unwrap();
        assert_eq!(bench.event(&mut alice).number, event::ADDR_RESOLVED);
    }
}

#[test]
fn the_loopback_address_and_none_are_a_cards_own() {
    let mut bench = Bench::new();
    let (mut alice, mut bob) = (bench.program(ALICE), bench.program(BOB));
    let listener = bench.id(&mut bob, 0xb);
    bench.bind(&mut bob, listener, "127.0.0.1:7174").unwrap();
    bench.listen(&mut bob, listener, 0).unwrap();
    let listener = bench.id(&mut bob, 0xb);
    bench.bind(&mut bob, listener, "[::1]:7175").unwrap();
    bench.listen(&mut bob, listener, 0).unwrap();
    let rows = [
        (None, "127.0.0.1:7174", "10.77.0.1"),
        (None, "0.0.0.0:7174", "10.77.0.1"),
        (None, "[::1]:7175", "fe80::1"),
        (None, "[::]:7175", "fe80::1"),
        // By the card whose address the program has bound, or else by the first.
        (Some("10.77.0.2:0"), "127.0.0.1:7174", "10.77.0.2"),
        (Some("[2001:db8::2]:0"), "[::1]:7175", "2001:db8::2"),
        (Some("127.0.0.1:0"), "127.0.0.1:7174", "10.77.0.1"),
    ];
    for (qpn, (from, to, own)) in (20..).zip(rows) {
        let id = bench.id(&mut alice, 0xa);
        bench.resolve(&mut alice, id, from, to).unwrap();
        assert_eq!(bench.event(&mut alice).number, event::ADDR_RESOLVED);
        bench.route(&mut alice, id).unwrap();
        assert_eq!(bench.event(&mut alice).number, event::ROUTE_RESOLVED);
        let its = &bench.server.ids[&id];
        let [source, destination] = [its.source, its.destination].map(|it| it.unwrap().ip());
        assert_eq!([source, destination], [own.parse::<std::net::IpAddr>().unwrap(); 2]);
        bench.connect(&mut alice, id, qpn, &[]).unwrap();
        bench.carry();
        assert_eq!(bench.event(&mut bob).qpn(), qpn, "{to}");
    }
    // Where no card has an address of that kind there is no device.
    bench.wire.addresses.retain(|local| local.address.ip().is_ipv4());
    let id = bench.id(&mut alice, 0xa);
    let none = bench.resolve(&mut alice, id, None, "[::1]:7175").unwrap_err();
    assert_eq!(errno(&none), Errno::ENODEV);
}

#[test]
fn a_search_that_nobody_waits_for_leaves_nothing() {
    for from in [None, Some("10.77.0.1:0")] {
        let mut bench = Bench::new();
        let (mut alice, id, _) = searching(&mut bench, from);
        assert_eq!(bench.destroy(&mut alice, id), 0);
        assert_eq!((usage(&bench), bench.server.next_search()), (0, None));

        let mut bench = Bench::new();
        let (alice, _, _) = searching(&mut bench, from);
        bench.end(&alice);
        assert_eq!((usage(&bench), bench.server.next_search()), (0, None));
        assert_eq!(bench.server.census(), Census::default());
    }
}

#[test]
fn a_card_that_goes_ends_a_search_by_its_address() {
    let mut bench = Bench::new();
    let (mut alice, id, _) = searching(&mut bench, Some("10.77.0.1:0"));
    bench.lose(0);
    assert_eq!(bench.event(&mut alice).number, event::DEVICE_REMOVAL);
    assert_eq!((usage(&bench), bench.server.next_search()), (0, None));
    assert_eq!(bench.destroy(&mut alice, id), 1);

    // A search without a card ends by its timeout, because a card that is gone finds no peer.
    let mut bench = Bench::new();
    let (mut alice, id, second) = searching(&mut bench, None);
    bench.lose(0);
    bench.wire.addresses.clear();
    wait_until(&mut bench, second, 3_600_000);
    assert_eq!(bench.event(&mut alice).number, event::ADDR_ERROR);
    assert_eq!(bench.destroy(&mut alice, id), 1);
    assert_eq!(usage(&bench), 0);
}

#[test]
fn a_search_moves_with_its_identifier() {
    let mut bench = Bench::new();
    let (mut alice, id, second) = searching(&mut bench, Some("10.77.0.1:0"));
    let mut new = bench.program(ALICE);
    let migrate = raw(number::MIGRATE_ID, &body(16, &[(8, &id.to_ne_bytes())]), 4);
    bench.say_from(&mut new, &migrate, &mut alice).unwrap();
    wait_until(&mut bench, second, 3_600_000);
    assert_eq!(bench.event(&mut new).number, event::ADDR_ERROR);
    bench.tell_read(&mut new);
    assert_eq!(usage(&bench), 0);
}

#[test]
fn who_looks_for_thousands_keeps_nobody_from_being_looked_for() {
    let mut bench = Bench::new();
    let mut alice = bench.program(ALICE);
    bench.wire.silent =
        vec![abi::gid("10.77.0.9".parse().unwrap()), abi::gid("10.77.0.2".parse().unwrap())];
    let look = |bench: &mut Bench, program: &mut Program, to| {
        let id = bench.id(program, 0xa);
        bench.resolve(program, id, Some("10.77.0.1:0"), to).unwrap();
        id
    };
    for _ in 0..3000 {
        look(&mut bench, &mut alice, "10.77.0.9:1");
    }
    let mut others = [BOB, CAROL].map(|asker| {
        let mut program = bench.program(asker);
        look(&mut bench, &mut program, PEER);
        program
    });
    bench.wire.silent.pop();
    // All are due. In one turn each client's first is looked at, in any order of the questions.
    let later = Instant(bench.server.now().0 + 1_000_000_000);
    let Bench { server, wire, .. } = &mut bench;
    server.go_on_searching(wire, later);
    server.send_events(wire);
    for program in &mut others {
        assert_eq!(bench.event(program).number, event::ADDR_RESOLVED);
    }
    bench.no_event(&mut alice);
    // And in the next ones those are looked at that have waited for longest.
    let due = |bench: &Bench| bench.server.due_search(later).is_some();
    let mut turns = 1;
    while due(&bench) {
        bench.server.go_on_searching(&bench.wire, later);
        turns += 1;
    }
    assert_eq!(turns, 3002usize.div_ceil(256));
    assert!(bench.server.searches.keys().eq([&ALICE.client]));
}
