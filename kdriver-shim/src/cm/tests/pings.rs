//! Answers of hosts to pings.

use shim_abi::{Pinged, Who};

use super::*;

const TOOL: ClientId = ClientId(9);

fn gid(text: &str) -> [u8; 16] {
    match text.parse().unwrap() {
        std::net::IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        std::net::IpAddr::V6(ip) => ip.octets(),
    }
}

/// Asks, carries the datagrams on, and lets all times pass until there is an answer.
fn ping(bench: &mut Bench, card: Option<u32>, to: &str) -> Result<Pinged, Error> {
    bench.server.ping(&mut bench.wire, TOOL, card, gid(to))?;
    loop {
        while let Some((card, arrival)) = bench.wire.under_way.pop_front() {
            bench.server.arrived(&mut bench.wire, card, &arrival);
        }
        if let Some((client, pinged)) = bench.server.pinged() {
            assert_eq!(client, TOOL);
            assert!(bench.server.pinged().is_none() && bench.server.next_deadline().is_none());
            assert_eq!(bench.server.census().connections, 0);
            return Ok(pinged);
        }
        let at = bench.server.next_deadline().expect("it waits for something");
        bench.server.tick_at(&mut bench.wire, at);
    }
}

#[test]
fn a_balboad_another_and_nobody_are_told_apart() {
    let mut bench = Bench::new();
    for (card, to) in [(None, "10.77.0.2"), (Some(0), "2001:db8::2"), (Some(0), "fe80::2")] {
        let other = ping(&mut bench, card, to).unwrap();
        assert_eq!(other.who, Who::Other { status: 1 }, "{to}");
    }
    bench.server.set_presence("0.1.0", 1);
    let version = "0.1.0".to_owned();
    let balboad = ping(&mut bench, None, "10.77.0.2").unwrap();
    assert_eq!(balboad.who, Who::Balboad { version, mtu: 5, flags: 1 });
    // A card's own address is reached by itself, and another card may be named.
    assert_eq!((balboad.card, balboad.source), (1, gid("10.77.0.2")));
    let from = ping(&mut bench, Some(0), "10.77.0.2").unwrap();
    assert_eq!((from.card, from.source), (0, gid("10.77.0.1")));
    bench.wire.silent.push(gid("10.77.0.9"));
    assert_eq!(ping(&mut bench, None, "10.77.0.9").unwrap().who, Who::Nobody);
    // Found on the link, and nothing that is said gets there.
    assert_eq!(ping(&mut bench, None, "10.77.0.8").unwrap().who, Who::Silent);
    bench.wire.cut = true;
    assert_eq!(ping(&mut bench, Some(0), "10.77.0.2").unwrap().who, Who::Silent);
}

#[test]
fn an_answer_of_other_bytes_is_none_of_a_balboads() {
    let mut bench = Bench::new();
    bench.server.set_presence("0.1.0", 0);
    bench.server.ping(&mut bench.wire, TOOL, Some(0), gid("10.77.0.2")).unwrap();
    let (card, question) = bench.wire.under_way.pop_front().unwrap();
    bench.server.arrived(&mut bench.wire, card, &question);
    let (card, mut answer) = bench.wire.under_way.pop_front().unwrap();
    // The number of the layout, behind the header and 96 bytes.
    answer.datagram[24 + 96 + 4] = 2;
    bench.server.arrived(&mut bench.wire, card, &answer);
    let (_, pinged) = bench.server.pinged().unwrap();
    assert_eq!(pinged.who, Who::Other { status: 0 });
    // It was answered: a second answer belongs to no question.
    bench.server.arrived(&mut bench.wire, card, &answer);
    assert!(bench.server.pinged().is_none());
}

#[test]
fn what_cannot_be_asked_is_refused_and_who_has_gone_is_told_nothing() {
    let mut bench = Bench::new();
    for (card, to, words) in [
        (None, "192.0.2.1", "in the network of no card"),
        (Some(7), "10.77.0.2", "there is no balboa7"),
        (None, "224.0.0.1", "the address of no card"),
        (None, "0.0.0.0", "the address of no card"),
        (None, "::1", "the address of no card"),
    ] {
        let refusal = ping(&mut bench, card, to).unwrap_err().to_string();
        assert!(refusal.contains(words), "{to}: {refusal}");
    }
    bench.wire.cut = true;
    for number in 0..64 {
        let client = ClientId(100 + number);
        bench.server.ping(&mut bench.wire, client, None, gid("10.77.0.2")).unwrap();
    }
    let refusal = ping(&mut bench, None, "10.77.0.2").unwrap_err().to_string();
    assert!(refusal.contains("64 others ask"), "{refusal}");
    (0..64).for_each(|number| bench.server.end_client(ClientId(100 + number)));
    assert!(bench.server.pinged().is_none() && bench.server.next_deadline().is_none());
    assert_eq!(bench.server.census().connections, 0);
}
