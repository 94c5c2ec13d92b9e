//! Patterns in packets, against a search of whole messages that knows no automaton.

use std::sync::Arc;

use services::{
    Chain, Error, Inspect, Operation, Part, PatternsError, Placing, ServedQp, Settings, Verdict,
};
use trial::rng::Rng;

/// Where occurrences of patterns end in a message, in order; an offset for each pattern that ends there.
fn ends(patterns: &[Vec<u8>], message: &[u8]) -> Vec<usize> {
    let of = |pattern: &Vec<u8>| {
        let found = message.windows(pattern.len()).enumerate();
        let length = pattern.len();
        found.filter(|(_, it)| it == pattern).map(|(at, _)| at + length).collect::<Vec<_>>()
    };
    let mut all: Vec<_> = patterns.iter().flat_map(of).collect();
    all.sort_unstable();
    all
}

/// Bytes of so few kinds that patterns are found often, and begin in the middle of others.
fn few(rng: &mut Rng, kinds: u64, length: usize) -> Vec<u8> {
    (0..length).map(|_| b'a' + rng.below(kinds) as u8).collect()
}

fn some_patterns(rng: &mut Rng, kinds: u64) -> Vec<Vec<u8>> {
    let count = rng.between(1, 6);
    let one = |_| {
        let length = rng.between(1, 12) as usize;
        few(rng, kinds, length)
    };
    let mut patterns: Vec<_> = (0..count).map(one).collect();
    patterns.sort();
    patterns.dedup();
    patterns
}

/// A packet's part of its message, and its payload.
type Packet = (Part, Vec<u8>);

/// A message in packets of random lengths.
fn cut(rng: &mut Rng, operation: Operation, message: &[u8]) -> Vec<Packet> {
    let most = rng.pick(&[1, 2, 7, 40]);
    let (mut packets, mut offset) = (Vec::new(), 0);
    while offset < message.len() {
        let length = (rng.between(1, most) as usize).min(message.len() - offset);
        let is_last = offset + length == message.len();
        let part = Part { operation, offset: offset as u64, length: length as u32, is_last };
        packets.push((part, message[offset..offset + length].to_vec()));
        offset += length;
    }
    packets
}

fn connection(patterns: &[Vec<u8>], refuses: bool) -> ServedQp {
    let inspect = Inspect::new(patterns, refuses).unwrap();
    ServedQp::new(Arc::new(Chain::new(vec![Arc::new(inspect)]).unwrap()))
}

/// Has a packet come, perhaps several times before it is accepted, as after a loss behind the check.
fn take(rng: &mut Rng, connection: &mut ServedQp, packet: &Packet) -> Verdict {
    let (part, payload) = packet;
    for _ in 0..rng.below(3) {
        let matches = connection.counters().matches;
        let verdict = connection.check(Some((part, payload)));
        if verdict != Verdict::Accept {
            return verdict;
        }
        assert_eq!(connection.counters().matches, matches, "it is not accepted");
        if rng.chance(3000) {
            connection.check(None);
        }
    }
    let verdict = connection.check(Some((part, payload)));
    if verdict == Verdict::Accept {
        connection.accept();
        let mut bytes = payload.clone();
        assert!(connection.act(&mut Placing { bytes: &mut bytes, address: None }));
        assert_eq!(&bytes, payload);
    }
    verdict
}

/// Messages of both ways, and the packets of both, those of each in their order.
fn traffic(rng: &mut Rng, kinds: u64) -> (Vec<Vec<u8>>, Vec<Packet>) {
    let mut messages = Vec::new();
    let mut ways = [Vec::new(), Vec::new()];
    for _ in 0..rng.between(1, 5) {
        let operation = rng.pick(&[Operation::Send, Operation::Write, Operation::Read]);
        let length = rng.between(1, 200) as usize;
        let message = few(rng, kinds, length);
        ways[usize::from(operation == Operation::Read)].extend(cut(rng, operation, &message));
        messages.push(message);
    }
    let mut rest = ways.map(|way| way.into_iter().peekable());
    let mut all = Vec::new();
    while rest.iter_mut().any(|way| way.peek().is_some()) {
        all.extend(rest[rng.below(2) as usize].next());
    }
    (messages, all)
}

#[test]
fn all_that_a_search_of_whole_messages_finds_is_counted_wherever_packets_cut_it() {
    let mut found = 0;
    for seed in 0..1000 {
        let rng = &mut Rng::new(seed);
        let kinds = rng.between(1, 4);
        let patterns = some_patterns(rng, kinds);
        let (messages, packets) = traffic(rng, kinds);
        let mut connection = connection(&patterns, false);
        for packet in &packets {
            assert_eq!(take(rng, &mut connection, packet), Verdict::Accept);
        }
        let expected: usize = messages.iter().map(|message| ends(&patterns, message).len()).sum();
        let counters = connection.counters();
        assert_eq!(counters.matches, expected as u64, "seed {seed}: {patterns:?}");
        let bytes: usize = messages.iter().map(Vec::len).sum();
        assert_eq!(counters.acted_bytes, bytes as u64);
        assert_eq!(counters.acted_packets, packets.len() as u64);
        found += expected;
    }
    assert!(found > 10_000, "{found}");
}

#[test]
fn the_packet_in_which_the_first_pattern_ends_is_refused_and_none_before_it() {
    let (mut refused, mut whole) = (0, 0);
    for seed in 0..1000 {
        let rng = &mut Rng::new(seed);
        let patterns = some_patterns(rng, 4);
        let operation = rng.pick(&[Operation::Send, Operation::Write, Operation::Read]);
        let length = rng.between(1, 100) as usize;
        let message = few(rng, 4, length);
        let mut connection = connection(&patterns, true);
        let first = ends(&patterns, &message).first().copied();
        let mut passed = 0;
        for packet in cut(rng, operation, &message) {
            let verdict = take(rng, &mut connection, &packet);
            let end = passed + packet.1.len();
            let has_one = first.is_some_and(|first| first <= end);
            assert_eq!(verdict == Verdict::Refuse, has_one, "seed {seed}: {patterns:?}");
            if has_one {
                // Nor is anything behind it taken.
                assert_eq!(take(rng, &mut connection, &packet), Verdict::Refuse);
                break;
            }
            passed = end;
        }
        let counters = connection.counters();
        let is_refused = u64::from(first.is_some());
        assert_eq!((counters.refused_packets, counters.matches), (is_refused, is_refused));
        assert_eq!(counters.acted_bytes, passed as u64, "what was refused is not placed");
        refused += is_refused;
        whole += 1 - is_refused;
    }
    assert!(refused > 100 && whole > 50, "{refused} and {whole}");
}

#[test]
fn messages_are_looked_at_each_by_itself() {
    let patterns = [b"needle".to_vec()];
    let mut connection = connection(&patterns, false);
    let rng = &mut Rng::new(1);
    let mut say = |operation, text: &[u8]| {
        for packet in cut(rng, operation, text) {
            assert_eq!(take(rng, &mut connection, &packet), Verdict::Accept);
        }
        connection.counters().matches
    };
    assert_eq!(say(Operation::Send, b"nee"), 0);
    assert_eq!(say(Operation::Send, b"dle"), 0, "a message that begins is nobody's continuation");
    assert_eq!(say(Operation::Write, b"a needle"), 1);
    assert_eq!(say(Operation::Read, b"needles, needles"), 3);
}

#[test]
fn a_packet_longer_than_any_is_more_work_than_was_declared() {
    let packet = |length: u32| {
        let part = Part { operation: Operation::Write, offset: 0, length, is_last: true };
        (part, vec![0; length as usize])
    };
    let patterns = [b"needle".to_vec()];
    let (mut just, mut more) = (connection(&patterns, false), connection(&patterns, false));
    let rng = &mut Rng::new(1);
    assert_eq!(take(rng, &mut just, &packet(4096)), Verdict::Accept);
    assert_eq!(take(rng, &mut more, &packet(4097)), Verdict::Refuse);
    assert_eq!((just.counters().over_budget, more.counters().over_budget), (0, 1));
}

#[test]
fn an_inspection_is_made_of_its_settings_or_refused_in_a_sentence() {
    let setting = |name: &str, value: &[u8]| (name.to_owned(), value.to_vec());
    let chain = |names: &[&str], settings: &[(String, Vec<u8>)]| {
        Settings::new(settings.to_vec()).and_then(|settings| Chain::named(names, settings))
    };
    let one = setting("patterns", b"needle");
    let only = std::slice::from_ref(&one);
    for mode in ["refuse", "count"] {
        let all = [one.clone(), setting("mode", mode.as_bytes())];
        assert_eq!(chain(&["inspect", "preprocess"], &all).unwrap().names().len(), 2);
    }
    for (names, settings, why) in [
        (&["inspect"][..], &[][..], Error::NoPatterns),
        (&["preprocess"], only, Error::Setting("patterns".into())),
        (&["inspect"], &[one.clone(), setting("colour", b"")], Error::Setting("colour".into())),
        (&["inspect"], &[one.clone(), one.clone()], Error::SettingTwice("patterns".into())),
        (&["inspect"], &[one.clone(), setting("mode", b"\n")], Error::Mode("\\n".into())),
        (&["inspect"], &[setting("patterns", b"#")], Error::Patterns(PatternsError::None)),
        (&["inspect", "inspect"], only, Error::Twice("inspect".into())),
        (
            &["preprocess", "inspect"],
            only,
            Error::CheckBehind { checks: "inspect".into(), rewrites: "preprocess".into() },
        ),
    ] {
        assert_eq!(chain(names, settings).unwrap_err(), why);
        assert!(!why.to_string().contains('\n'));
    }
    assert_eq!(Inspect::new(&[Vec::new()], true).unwrap_err(), Error::Automaton);
}
