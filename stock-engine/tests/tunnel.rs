//! Two ends of the tunnel, over two published cards in virtual time.
//!
//! Checks after every step: no post was lost, nothing was refused by the card, reception of neither stands, and
//! nothing but WRITEs and their acknowledgements goes over the link.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::panic,
    reason = "tests"
)]

mod datagrams;
mod ends;
mod grants;
mod strangers;

use std::collections::BTreeMap;

use ends::{Net, OPEN_BYTES, RKEY};
use fpga_regs::engine::cqe::Status;
use fpga_regs::engine::event::QpEvent;
use fpga_regs::engine::key::Access;
use fpga_regs::engine::qp::QpState;
use fpga_regs::engine::tunnel::{SLOTS, TURNOVER, place_of};
use fpga_regs::engine::wqe::AtomicOperation;
use queue_engine::{ReceiveKind, ReceivedMessage, TransportError, TransportEvent, WqeOperation};
use stock_engine::param::{REPEATS, WATCHDOG};
use trial::rng::Rng;
use trial::share::share;

const MS: u64 = 1_000_000;
const SEND: WqeOperation = WqeOperation::Send { immediate: None };

fn write(remote_address: u64, immediate: Option<u32>) -> WqeOperation {
    WqeOperation::Write { remote_address, rkey: RKEY, immediate }
}

fn read(remote_address: u64) -> WqeOperation {
    WqeOperation::Read { remote_address, rkey: RKEY }
}

/// A number of the environment's.
fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// `SEEDS=1000` tries so many, `SEED=7` that one.
#[test]
fn all_kinds_of_messages_of_any_length_are_exact_and_provoke_nothing() {
    match number("SEED") {
        Some(seed) => storm(seed),
        None => (0..number("SEEDS").unwrap_or(12)).for_each(storm),
    }
}

/// A sent message, and its expected outcome.
struct Sent {
    number: u64,
    operation: WqeOperation,
    bytes: Vec<u8>,
}

fn random_operation(rng: &mut Rng) -> (WqeOperation, usize) {
    let length = match rng.below(4) {
        0 => rng.below(9),
        1 => rng.below(5000),
        2 => 4032 * rng.below(4),
        _ => rng.below(40_000),
    };
    let place = rng.below(OPEN_BYTES as u64 - 40_000);
    let immediate = rng.chance(5000).then(|| rng.next() as u32);
    match rng.below(5) {
        0 | 1 => (WqeOperation::Send { immediate }, length as usize),
        2 => (write(place, immediate), length as usize),
        3 => (read(place), length as usize),
        _ => {
            let operation = AtomicOperation::FetchAdd { add: rng.next() };
            let remote_address = place & !7;
            (WqeOperation::Atomic { remote_address, rkey: RKEY, operation }, 8)
        }
    }
}

/// QPs of both sides act at random, one message after the other, so that each outcome is known; receives come late, and
/// contexts are rewritten often.
fn storm(seed: u64) {
    let mut rng = Rng::new(seed);
    let turnover = rng.between(20, 200) as u32;
    let mut net = Net::granting(seed, turnover, rng.between(4, 30_000) as u32);
    for node in &mut net.nodes {
        node.programs.in_pieces = rng.chance(1000);
    }
    let pairs: Vec<_> = (0..rng.between(1, 6)).map(|_| net.connect(7, true)).collect();
    for round in 0..rng.between(2, 8) {
        let mut all = Vec::new();
        for &pair in &pairs {
            // Of one direction at a time, for both reach the same memory.
            let side = rng.below(2) as usize;
            let before = net.program(1 - side, pair[1 - side]).open.clone();
            let mut sent = Vec::new();
            for _ in 0..rng.between(1, 12) {
                let (operation, length) = random_operation(&mut rng);
                let bytes: Vec<u8> = (0..length).map(|_| rng.next() as u8).collect();
                let number = net.submit(side, pair[side], operation, &bytes).unwrap();
                sent.push(Sent { number, operation, bytes });
            }
            all.push((pair, side, before, sent));
        }
        // Some receives are there, and the others come later.
        let early = rng.chance(5000);
        for late in [false, true] {
            if late == early {
                net.run(rng.between(1, 30) * MS);
            }
            for (pair, side, _, sent) in &all {
                let wanted = |it: &&Sent| match it.operation {
                    WqeOperation::Send { .. } => true,
                    WqeOperation::Write { immediate, .. } => immediate.is_some(),
                    _ => false,
                };
                let half = sent.iter().filter(wanted).count().div_ceil(2);
                let receives: Vec<_> =
                    sent.iter().filter(wanted).map(|it| it.bytes.len()).collect();
                let range = if late { half..receives.len() } else { 0..half };
                let receiver = net.program(1 - side, pair[1 - side]);
                receiver.posted.extend(receives[range].iter().map(|bytes| bytes + 3));
            }
        }
        net.run(400 * MS);
        for (pair, side, before, sent) in &all {
            judge(&mut net, (seed, round), *pair, *side, before.clone(), sent);
        }
    }
}

/// Executes the sent messages on a copy of the memory, and compares.
fn judge(
    net: &mut Net,
    at: (u64, u64),
    pair: [u32; 2],
    side: usize,
    mut open: Vec<u8>,
    sent: &[Sent],
) {
    let own = net.program(side, pair[side]);
    assert_eq!(own.completed(), sent.len() as u64, "{at:?}: {:?}", own.events);
    assert!(own.events.iter().all(|it| matches!(it, TransportEvent::Completed { .. })), "{at:?}");
    own.events.clear();
    let mut expected = Vec::new();
    for Sent { number, operation, bytes } in sent {
        let (mut result, length) = (bytes.clone(), bytes.len());
        let qpn = pair[1 - side];
        let mut receive = |kind, immediate| {
            let length = length as u32;
            let received = ReceivedMessage {
                qpn,
                length,
                kind,
                immediate,
                solicited: false,
                source_qpn: None,
            };
            expected.push((received, bytes.clone()));
        };
        match *operation {
            WqeOperation::Send { immediate } => receive(ReceiveKind::Send, immediate),
            WqeOperation::Write { remote_address, immediate, .. } => {
                let start = remote_address as usize;
                open[start..start + length].copy_from_slice(bytes);
                if immediate.is_some() {
                    receive(ReceiveKind::Write, immediate);
                }
            }
            WqeOperation::Read { remote_address, .. } => {
                let start = remote_address as usize;
                result = open[start..start + length].to_vec();
            }
            WqeOperation::Atomic { remote_address, operation, .. } => {
                let place = &mut open[remote_address as usize..][..8];
                result = place.to_vec();
                let before = u64::from_le_bytes((&*place).try_into().unwrap());
                if let Some(after) = operation.apply(before) {
                    place.copy_from_slice(&after.to_le_bytes());
                }
            }
            _ => panic!("{operation:?}"),
        }
        assert!(net.program(side, pair[side]).messages[number] == result, "{at:?}: {operation:?}");
    }
    let peer = net.program(1 - side, pair[1 - side]);
    assert!(peer.open == open, "{at:?}: memory that peers reach");
    let received: Vec<_> = peer.events.drain(..).collect();
    let first = peer.taken.len() - expected.len();
    assert_eq!(received.len(), expected.len(), "{at:?}");
    for (index, (event, (wanted, bytes))) in received.into_iter().zip(expected).enumerate() {
        assert_eq!(event, TransportEvent::Received(wanted), "{at:?}");
        if wanted.kind == ReceiveKind::Send {
            assert!(peer.taken[first + index][..bytes.len()] == bytes, "{at:?}: receive {index}");
        }
    }
}

#[test]
fn a_peer_in_rtr_answers_though_it_may_not_ask() {
    let mut net = Net::new(1, TURNOVER);
    let [a, b] = net.connect(0, false);
    net.program(1, b).posted.push_back(10);
    assert_eq!(net.submit(1, b, SEND, &[1]), Err(TransportError::WrongState));
    net.submit(0, a, SEND, &[5; 7]).unwrap();
    net.submit(0, a, read(9), &[0; 9001]).unwrap();
    net.submit(0, a, write(3, None), &[8; 40_000]).unwrap();
    net.run(60 * MS);
    assert_eq!(net.program(0, a).completed(), 3);
    let event = QpEvent::CommunicationEstablished;
    assert_eq!(net.program(1, b).events[0], TransportEvent::Async { qpn: b, event });
    assert!(net.program(1, b).open[3..40_003] == [8; 40_000]);
}

#[test]
fn without_a_receive_it_is_tried_again_as_often_as_was_said() {
    let mut net = Net::new(2, TURNOVER);
    let [a, b] = net.connect(3, true);
    net.submit(0, a, SEND, &[1; 5000]).unwrap();
    net.submit(0, a, SEND, &[2; 9]).unwrap();
    net.run(50 * MS);
    let failed = TransportEvent::Failed { qpn: a, status: Status::RnrRetryExceeded };
    assert_eq!(net.program(0, a).events, [failed]);
    assert!(net.program(1, b).events.is_empty() && net.program(1, b).taken.is_empty());
}

#[test]
fn a_refused_request_ends_both_sides_behind_what_was_done_before() {
    let denied =
        |address| WqeOperation::Write { remote_address: address, rkey: RKEY + 1, immediate: None };
    let atomic = |remote_address, rkey| {
        let operation = AtomicOperation::FetchAdd { add: 1 };
        WqeOperation::Atomic { remote_address, rkey, operation }
    };
    let cases = [
        (atomic(0, RKEY + 1), 8, Status::RemoteAccess, Some(QpEvent::AccessError)),
        (atomic(OPEN_BYTES as u64, RKEY), 8, Status::RemoteAccess, Some(QpEvent::AccessError)),
        (denied(0), 8, Status::RemoteAccess, Some(QpEvent::AccessError)),
        (write(OPEN_BYTES as u64 - 5, None), 6, Status::RemoteAccess, Some(QpEvent::AccessError)),
        (write(u64::MAX, None), 6, Status::RemoteAccess, Some(QpEvent::AccessError)),
        (read(OPEN_BYTES as u64), 1, Status::RemoteAccess, Some(QpEvent::AccessError)),
        (atomic(4, RKEY), 8, Status::RemoteInvalidRequest, Some(QpEvent::RequestError)),
        // Longer than its receive.
        (SEND, 101, Status::RemoteInvalidRequest, None),
    ];
    for (operation, length, status, event) in cases {
        let mut net = Net::new(3, TURNOVER);
        let [a, b] = net.connect(7, true);
        net.program(1, b).posted.push_back(100);
        let before = net.program(1, b).open.clone();
        net.submit(0, a, write(0, None), &before[..9]).unwrap();
        net.submit(0, a, operation, &vec![1; length]).unwrap();
        net.submit(0, a, write(0, None), &[1; 9]).unwrap();
        net.run(50 * MS);
        let done = TransportEvent::Completed { qpn: a, count: 1 };
        let failed = TransportEvent::Failed { qpn: a, status };
        assert_eq!(net.program(0, a).events, [done, failed], "{operation:?}");
        let told = match event {
            Some(event) => {
                vec![TransportEvent::Async { qpn: b, event }, TransportEvent::Error { qpn: b }]
            }
            None => vec![TransportEvent::ReceiveFailed { qpn: b, status: Status::LocalLength }],
        };
        assert_eq!(net.program(1, b).events, told, "{operation:?}");
        assert!(net.program(1, b).open == before, "{operation:?}");
        assert_eq!(net.submit(1, b, SEND, &[1]), Err(TransportError::WrongState));
    }
}

/// If the program can be told of the first messages only, the peer hears that those have come.
#[test]
fn of_a_message_that_a_program_cannot_be_told_of_its_peer_hears_no_success() {
    for (seed, room) in (0..16).flat_map(|seed| (0..6).map(move |room| (seed, room))) {
        let mut net = Net::new(seed, TURNOVER);
        let [a, b] = net.connect(7, true);
        net.program(1, b).posted.extend([10; 6]);
        net.program(1, b).room = Some(room);
        for byte in 0..6 {
            net.submit(0, a, SEND, &[byte; 7]).unwrap();
        }
        net.run(50 * MS);
        let (done, events) = (net.program(0, a).completed(), net.program(0, a).events.clone());
        let failed = TransportEvent::Failed { qpn: a, status: Status::RemoteOperation };
        assert_eq!((done, events.last()), (room as u64, Some(&failed)), "seed {seed}");
        let told = &net.program(1, b).events;
        let fatal = TransportEvent::Async { qpn: b, event: QpEvent::Fatal };
        let received = told.iter().take_while(|it| matches!(it, TransportEvent::Received(_)));
        assert_eq!(received.count(), room, "seed {seed}");
        assert_eq!(told[room..], [fatal, TransportEvent::Error { qpn: b }], "seed {seed}");
    }
}

#[test]
fn what_a_queue_pair_does_not_grant_is_refused_whatever_the_key_allows() {
    let add = AtomicOperation::FetchAdd { add: 1 };
    let atomic = WqeOperation::Atomic { remote_address: 0, rkey: RKEY, operation: add };
    for (operation, right) in [
        (write(0, None), Access::REMOTE_WRITE),
        (read(0), Access::REMOTE_READ),
        (atomic, Access::REMOTE_ATOMIC),
    ] {
        let mut net = Net::new(16, TURNOVER);
        net.grants = Access::all().difference(right);
        let [a, b] = net.connect(7, true);
        let before = net.program(1, b).open.clone();
        net.submit(0, a, operation, &[1; 8]).unwrap();
        net.run(50 * MS);
        let failed = TransportEvent::Failed { qpn: a, status: Status::RemoteInvalidRequest };
        assert_eq!(net.program(0, a).events, [failed], "{operation:?}");
        assert!(net.program(1, b).open == before, "{operation:?}");
    }
}

#[test]
fn a_peer_that_answers_nothing_ends_the_queue_pair_though_its_card_acknowledges() {
    let mut net = Net::new(4, TURNOVER);
    let [a, b] = net.connect(7, true);
    net.submit(0, a, write(0, None), &[1; 9]).unwrap();
    net.run(50 * MS);
    net.nodes[1].stands = true;
    let operation = AtomicOperation::FetchAdd { add: 1 };
    net.submit(0, a, WqeOperation::Atomic { remote_address: 0, rkey: RKEY, operation }, &[0; 8])
        .unwrap();
    net.submit(0, a, write(64, None), &[1; 40_000]).unwrap();
    net.run(1_000 * MS);
    let done = TransportEvent::Completed { qpn: a, count: 1 };
    let failed = TransportEvent::Failed { qpn: a, status: Status::RetryExceeded };
    assert_eq!(net.program(0, a).events, [done, failed]);
    // Nothing of it is out, so its number does not rest.
    assert_eq!(net.nodes[0].carrier.posts.tally().quarantined, 0);
    // Late, the peer finds the atomic, and executes it: the requester does not know.
    let before = net.program(1, b).open[..8].to_vec();
    net.nodes[1].stands = false;
    net.run(50 * MS);
    assert_ne!(net.program(1, b).open[..8], before);
}

#[test]
fn a_peer_that_looks_late_finds_every_slot() {
    let mut net = Net::new(15, TURNOVER);
    let [a, b] = net.connect(7, true);
    net.submit(0, a, write(0, None), &[1; 9]).unwrap();
    net.run(50 * MS);
    // More than its ring has places for.
    net.nodes[1].stands = true;
    let bytes: Vec<u8> = (0..OPEN_BYTES).map(|at| (at / 7) as u8).collect();
    for _ in 0..3 {
        net.submit(0, a, write(0, None), &bytes).unwrap();
    }
    let before = net.nodes[0].carrier.tally().sent;
    net.run(200 * MS);
    let waiting = net.nodes[0].carrier.tally().sent - before;
    assert!(waiting <= u64::from(SLOTS), "{waiting} slots");
    net.nodes[1].stands = false;
    net.run(200 * MS);
    assert_eq!(net.program(0, a).completed(), 4, "{:?}", net.program(0, a).events);
    assert!(net.program(1, b).open == bytes);
}

#[test]
fn in_sqd_what_was_begun_is_finished_and_nothing_begins() {
    let mut net = Net::new(9, TURNOVER);
    let [a, b] = net.connect(7, true);
    let drained = TransportEvent::Async { qpn: a, event: QpEvent::SqDrained };
    net.drain(0, a, true);
    net.run(MS);
    assert_eq!(net.program(0, a).events, [drained], "nothing was begun");
    net.drain(0, a, false);
    net.program(0, a).events.clear();
    // One waits for a receive, and is begun all the same.
    net.submit(0, a, SEND, &[3; 9]).unwrap();
    net.run(50 * MS);
    for byte in 0..30 {
        net.submit(0, a, write(0, None), &[byte; 40_000]).unwrap();
    }
    net.drain(0, a, true);
    assert!(net.is_draining(0, a));
    net.run(100 * MS);
    assert!(net.is_draining(0, a) && net.program(0, a).events.is_empty());
    net.program(1, b).posted.push_back(9);
    net.run(200 * MS);
    assert_eq!(net.program(0, a).events.last(), Some(&drained));
    let done = net.program(0, a).completed();
    assert!(!net.is_draining(0, a) && (1..31).contains(&done), "{done}");
    let said = net.program(0, a).events.len();
    // The peer's request is answered, a second time is nothing new, and silence does not count.
    net.submit(1, b, read(0), &[0; 9001]).unwrap();
    net.drain(0, a, true);
    net.run(2_000 * MS);
    assert_eq!(net.program(1, b).completed(), 1);
    assert_eq!(net.program(0, a).events.len(), said);
    net.drain(0, a, false);
    net.run(200 * MS);
    assert_eq!(net.program(0, a).completed(), 31);
}

#[test]
fn one_packet_at_a_time_gets_through_a_cable_that_loses() {
    for seed in 0..3 {
        let mut net = Net::lossy(seed, 20, WATCHDOG);
        net.loss = 500;
        let pairs: Vec<_> = (0..3).map(|_| net.connect(7, true)).collect();
        for pair in &pairs {
            for side in [0, 1] {
                net.submit(side, pair[side], write(0, None), &[side as u8; 30_001]).unwrap();
                net.submit(side, pair[side], read(40_000), &[0; 30_003]).unwrap();
                net.submit(side, pair[side], write(80_000, None), &[side as u8; 7]).unwrap();
            }
        }
        net.run(30_000 * MS);
        for pair in &pairs {
            for side in [0, 1] {
                let (own, peer) = (pair[side], pair[1 - side]);
                assert_eq!(net.program(side, own).completed(), 3, "seed {seed}: {own}");
                let open = net.program(1 - side, peer).open.clone();
                assert!(open[..30_001] == [side as u8; 30_001], "seed {seed}: {own}");
                assert!(open[80_000..80_007] == [side as u8; 7], "seed {seed}: {own}");
                let got = &net.program(side, own).messages[&1];
                assert!(*got == open[40_000..70_003], "seed {seed}: {own}");
            }
        }
    }
}

#[test]
fn a_turnover_that_waits_for_repetitions_fails_nobody_with_the_shortest_watchdog() {
    let mut net = Net::lossy(17, 10, REPEATS);
    let pair = net.connect(7, true);
    for side in [0, 1] {
        net.submit(side, pair[side], write(0, None), &[side as u8 | 0x80; 100_000]).unwrap();
    }
    net.run(10_000 * MS);
    for side in [0, 1] {
        let own = net.program(side, pair[side]);
        assert_eq!(own.events, [TransportEvent::Completed { qpn: pair[side], count: 1 }]);
        assert!(
            net.program(1 - side, pair[1 - side]).open[..100_000] == [side as u8 | 0x80; 100_000]
        );
        assert!(net.nodes[side].carrier.tally().turnovers >= 2);
    }
    // A silent peer is found out all the same.
    net.nodes[1].stands = true;
    net.submit(0, pair[0], write(0, None), &[1; 8]).unwrap();
    net.run(3 * REPEATS + 100 * MS);
    let failed = TransportEvent::Failed { qpn: pair[0], status: Status::RetryExceeded };
    assert_eq!(net.program(0, pair[0]).events.last(), Some(&failed));
}

#[test]
fn queue_pairs_of_one_card_do_not_rest_for_repetitions_that_no_card_makes() {
    let mut net = Net::lossy(18, 10, WATCHDOG);
    let pair = [net.create(0), net.create(0)];
    net.join([0, 0], pair, 7, true);
    net.submit(0, pair[0], write(0, None), &[1; 100_000]).unwrap();
    // Two turnovers at least, each with less than a rest.
    net.run(REPEATS);
    assert_eq!(net.program(0, pair[0]).completed(), 1);
}

#[test]
fn a_cable_that_loses_brings_no_false_success() {
    let mut failed = 0;
    for seed in 0..6 {
        let mut net = Net::new(seed, TURNOVER);
        let pairs: Vec<_> = (0..4).map(|_| net.connect(7, true)).collect();
        (net.loss, net.may_stand) = (30, true);
        let mut taken = BTreeMap::new();
        for message in 0..60u64 {
            for [a, _] in &pairs {
                let at = message * 2000;
                let bytes = [message as u8 | 0x80; 2000];
                if net.submit(0, *a, write(at, None), &bytes).is_ok() {
                    *taken.entry(*a).or_default() += 1u64;
                }
            }
            net.run(MS);
        }
        net.run(1_000 * MS);
        for [a, b] in &pairs {
            let own = net.program(0, *a);
            let done = own.completed();
            let fails = |it: &TransportEvent| matches!(it, TransportEvent::Failed { .. });
            let fails = own.events.iter().any(fails);
            assert!(fails || done == taken[a], "seed {seed}: {a} waits after a second");
            failed += u64::from(fails);
            let open = &net.program(1, *b).open;
            for message in 0..done {
                let at = message as usize * 2000;
                assert!(open[at..at + 2000] == [message as u8 | 0x80; 2000], "seed {seed}: {a}");
            }
        }
    }
    assert!(failed > 0, "no loss stopped a card");
}

/// One QP writes to another one of the same side and reads it back.
fn there_and_back(net: &mut Net, own: u32, peer: u32) {
    net.program(0, peer).posted.push_back(5000);
    net.submit(0, own, write(1, None), &[9; 40_001]).unwrap();
    net.submit(0, own, SEND, &[8; 4999]).unwrap();
    let number = net.submit(0, own, read(0), &[0; 40_003]).unwrap();
    net.run(100 * MS);
    assert_eq!(net.program(0, own).completed(), 3, "{:?}", net.program(0, own).events);
    let open = net.program(0, peer).open.clone();
    assert!(open[1..40_002] == [9; 40_001]);
    assert!(net.program(0, own).messages[&number] == open[..40_003]);
    assert!(net.program(0, peer).taken[0][..4999] == [8; 4999]);
}

#[test]
fn queue_pairs_of_one_card_reach_each_other_and_no_packet_leaves() {
    let mut net = Net::new(11, 10);
    let pair = [net.create(0), net.create(0)];
    net.join([0, 0], pair, 7, true);
    there_and_back(&mut net, pair[0], pair[1]);
    // One that is connected to itself.
    let alone = net.create(0);
    net.attach_beside(0, alone, alone);
    there_and_back(&mut net, alone, alone);
    // A peer that goes tells no other, and a later QP of its number is another one.
    net.destroy(0, pair[1]);
    net.submit(0, pair[0], write(1, None), &[7; 9]).unwrap();
    net.run(600 * MS);
    let failed = TransportEvent::Failed { qpn: pair[0], status: Status::RetryExceeded };
    assert_eq!(net.program(0, pair[0]).events.last(), Some(&failed));
    assert_eq!(net.posts(0), 0);
}

#[test]
fn nobody_writes_into_the_ring_of_another_pair_of_the_card() {
    let mut net = Net::new(12, TURNOVER);
    let pair = [net.create(0), net.create(0)];
    net.join([0, 0], pair, 7, true);
    let stranger = net.create(0);
    // It names one that has another peer, as only one side of them does.
    net.attach_beside(0, stranger, pair[1]);
    net.submit(0, stranger, write(0, None), &[6; 9]).unwrap();
    net.run(10 * MS);
    assert!(net.place(0, pair[1], place_of(1)).iter().all(|byte| *byte == 0));
    there_and_back(&mut net, pair[0], pair[1]);
    net.run(600 * MS);
    let failed = TransportEvent::Failed { qpn: stranger, status: Status::RetryExceeded };
    assert_eq!(net.program(0, stranger).events, [failed]);
}

#[test]
fn what_a_connection_held_back_is_no_slot_of_the_next_one_between_the_same_queue_pairs() {
    let mut net = Net::new(16, TURNOVER);
    let [a, b] = [net.create(0), net.create(0)];
    net.attach_beside(0, a, b);
    net.attach_beside(0, b, a);
    // More than the ring holds, each to a place of its own.
    let submit = |net: &mut Net, messages: std::ops::Range<u64>, byte: u8| {
        for message in messages {
            net.submit(0, a, write(message * 8, None), &[byte; 8]).unwrap();
        }
    };
    submit(&mut net, 0..60, 1);
    while net.nodes[0].carrier.tally().taken == 0 {
        net.run(5_000);
    }
    let before = net.nodes[0].carrier.tally();
    assert!(before.taken < before.sent && before.sent < 60, "{before:?}");
    // The keys of all connections are the same, by the same first numbers.
    net.reset(0, b);
    net.program(0, b).open.fill(0);
    net.attach_beside(0, b, a);
    net.submit(0, b, write(0, None), &[3; 8]).unwrap();
    net.run(MS);
    net.reset(0, a);
    net.program(0, a).open.fill(0);
    net.program(0, a).events.clear();
    net.attach_beside(0, a, b);
    submit(&mut net, 0..28, 2);
    net.run(10 * MS);
    assert_eq!(net.program(0, a).completed(), 28, "{:?}", net.program(0, a).events);
    assert_eq!(net.program(0, b).completed(), 1, "{:?}", net.program(0, b).events);
    assert!(net.program(0, a).open[..9] == [3, 3, 3, 3, 3, 3, 3, 3, 0]);
    let open = net.program(0, b).open.clone();
    assert!(open[..28 * 8].iter().all(|byte| *byte == 2));
    assert!(open[28 * 8..].iter().all(|byte| *byte == 0), "it was not sent again");
    submit(&mut net, 28..60, 4);
    net.run(10 * MS);
    assert_eq!(net.program(0, a).completed(), 60, "{:?}", net.program(0, a).events);
}

#[test]
fn memory_that_goes_during_a_transfer_ends_its_queue_pair_and_harms_no_card() {
    for (operation, bytes) in [(write(0, None), 100_000), (read(0), 100_000)] {
        let mut net = Net::new(13, TURNOVER);
        let [a, b] = net.connect(7, true);
        let [other, _] = net.connect(7, true);
        net.submit(0, a, operation, &vec![1; bytes]).unwrap();
        net.submit(0, other, write(0, None), &vec![1; bytes]).unwrap();
        while net.nodes.iter().map(|node| node.carrier.tally().sent).sum::<u64>() < 12 {
            net.run(5_000);
        }
        assert!(net.program(0, a).events.is_empty(), "{operation:?} was too fast");
        net.program(1, b).open.clear();
        net.run(100 * MS);
        let failed = TransportEvent::Failed { qpn: a, status: Status::RemoteOperation };
        assert_eq!(net.program(0, a).events, [failed], "{operation:?}");
        assert_eq!(net.program(0, other).completed(), 1, "{operation:?}");
        let [again, _] = net.connect(7, true);
        net.submit(0, again, operation, &vec![1; bytes]).unwrap();
        net.run(100 * MS);
        assert_eq!(net.program(0, again).completed(), 1, "{operation:?}");
    }
}

#[test]
fn sixty_two_queue_pairs_carry_all_at_once_and_each_byte_is_its_own() {
    let mut net = Net::new(14, 100);
    let pairs: Vec<_> = (0..62).map(|_| net.connect(7, true)).collect();
    let bytes_of = |index: usize| -> Vec<u8> {
        let mut rng = Rng::new(index as u64);
        (0..20_001).map(|_| rng.next() as u8).collect()
    };
    for (index, [a, b]) in pairs.iter().enumerate() {
        net.program(1, *b).posted.push_back(20_001);
        net.submit(0, *a, SEND, &bytes_of(index)).unwrap();
        net.submit(1, *b, write(1, None), &bytes_of(100 + index)).unwrap();
        net.submit(1, *b, read(1), &[0; 20_001]).unwrap();
    }
    net.run(500 * MS);
    for (index, [a, b]) in pairs.iter().enumerate() {
        assert_eq!((net.program(0, *a).completed(), net.program(1, *b).completed()), (1, 2));
        assert!(net.program(1, *b).taken[0] == bytes_of(index), "{index}");
        assert!(net.program(0, *a).open[1..20_002] == bytes_of(100 + index), "{index}");
        assert!(net.program(1, *b).messages[&1] == bytes_of(100 + index), "{index}");
    }
}

/// A card is reset that sends, and to which its peer may send; which then stand.
fn stand_behind_a_reset(seed: u64, drains: bool, peer_sends: bool) -> [bool; 2] {
    let mut net = Net::new(seed, 30);
    (net.may_stand, net.delay) = (true, 50_000);
    let [a, b] = net.connect(7, true);
    for byte in 0..30 {
        net.program(1, b).posted.push_back(9000);
        net.submit(0, a, SEND, &[byte; 9000]).unwrap();
        if peer_sends {
            net.program(0, a).posted.push_back(9000);
            net.submit(1, b, SEND, &[byte; 9000]).unwrap();
        }
    }
    while net.program(0, a).completed() == 0 {
        net.run(seed * 10_000 + 10_000);
    }
    assert!(net.program(0, a).completed() < 30, "there is more to do");
    if drains {
        assert!(net.halt(0), "what has begun is answered");
    }
    if drains && !peer_sends {
        let taken = net.program(1, b).taken.len();
        net.run(50 * MS);
        assert_eq!(net.program(1, b).taken.len(), taken, "and nothing else begins");
    }
    net.restart(0);
    net.run(50 * MS);
    [0, 1].map(|side| net.stands(side))
}

#[test]
fn a_card_that_is_reset_behind_the_answers_to_what_it_sent_stops_nobody() {
    let stand = |seed, drains| stand_behind_a_reset(seed, drains, false).contains(&true);
    assert!((0..40).any(|seed| stand(seed, false)), "amid them one stands");
    for seed in 0..40 {
        assert!(!stand(seed, true), "seed {seed}");
    }
}

#[test]
fn a_card_is_reset_behind_what_others_have_sent_it_and_stops_nobody() {
    let stand = |seed, drains| stand_behind_a_reset(seed, drains, true);
    assert!((0..40).any(|seed| stand(seed, false)[0]), "amid them it stands");
    for seed in 0..40 {
        assert_eq!(stand(seed, true), [false; 2], "seed {seed}");
    }
}

/// As one whose peer is on another balboad, which nothing is known of.
#[test]
fn who_only_answers_outlives_a_peer_that_ends_amid_what_it_sends() {
    for seed in (0..40).step_by(share()) {
        let mut net = Net::new(seed, TURNOVER);
        net.delay = 50_000;
        let [a, b] = net.connect(7, seed % 2 == 0);
        for byte in 0..30 {
            net.program(1, b).posted.push_back(9000);
            net.submit(0, a, SEND, &[byte; 9000]).unwrap();
        }
        while net.program(1, b).taken.is_empty() {
            net.run(seed * 5_000 + 5_000);
        }
        match seed % 3 {
            0 => net.destroy(0, a),
            1 => net.fail(0, a),
            _ => net.reset(0, a),
        }
        net.run(2_000 * MS);
        let state = if seed % 2 == 0 { QpState::Rts } else { QpState::Rtr };
        assert_eq!(net.state(1, b), state, "seed {seed}");
        let is_end = |it: &&TransportEvent| {
            matches!(it, TransportEvent::Error { .. } | TransportEvent::Failed { .. })
        };
        let end = net.program(1, b).events.iter().find(is_end);
        assert_eq!(end, None, "seed {seed}");
    }
}

#[test]
fn a_slot_that_is_written_again_changes_nothing() {
    let mut net = Net::new(5, TURNOVER);
    let [a, b] = net.connect(7, true);
    let send = |net: &mut Net, byte| {
        net.program(1, b).posted.push_back(8);
        net.submit(0, a, SEND, &[byte; 8]).unwrap();
        net.run(20 * MS);
    };
    send(&mut net, 0);
    let first = net.place(1, b, place_of(1));
    for byte in 1..=SLOTS as u8 {
        // A late repetition by the card: at each time, over any slot there, and in the place of the next one.
        net.put(1, b, place_of(1), &first);
        net.put(1, b, place_of(u64::from(byte) + 1), &first);
        send(&mut net, byte);
    }
    assert_eq!(net.program(0, a).completed(), u64::from(SLOTS) + 1);
    let taken = &net.program(1, b).taken;
    assert!(taken.iter().enumerate().all(|(index, bytes)| *bytes == [index as u8; 8]));
}

#[test]
fn another_key_is_no_peer() {
    let mut net = Net::with_keys(6, TURNOVER, [[7; 16], [8; 16]]);
    let [a, b] = net.connect(7, true);
    net.program(1, b).posted.push_back(8);
    net.submit(0, a, SEND, &[1; 8]).unwrap();
    net.run(1_000 * MS);
    let failed = TransportEvent::Failed { qpn: a, status: Status::RetryExceeded };
    assert_eq!(net.program(0, a).events, [failed]);
    assert!(net.program(1, b).events.is_empty() && net.program(1, b).taken.is_empty());
}

#[test]
fn contexts_are_rewritten_while_both_sides_send_and_nothing_is_lost() {
    let mut net = Net::new(8, 10);
    let pair = net.connect(7, true);
    for round in 0..20u8 {
        for side in [0, 1] {
            let at = u64::from(round) * 5000;
            net.submit(side, pair[side], write(at, None), &[round | 0x80; 5000]).unwrap();
        }
        net.run(MS);
    }
    net.run(100 * MS);
    for side in [0, 1] {
        assert_eq!(net.program(side, pair[side]).completed(), 20);
        let open = &net.program(side, pair[side]).open;
        assert!((0..20).all(|round| open[round * 5000..][..5000] == [round as u8 | 0x80; 5000]));
        assert!(
            net.nodes[side].carrier.tally().turnovers > 2,
            "{:?}",
            net.nodes[side].carrier.tally()
        );
    }
}
