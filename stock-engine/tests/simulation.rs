//! Two published cards in virtual time, each with a transport over its command registers, and a cable between.
//!
//! Checks after every step: no post was lost, nothing was refused by the card, reception of neither stands, no
//! packet is a NAK or one that the stack does not know, and each asks to be acknowledged.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::panic,
    reason = "tests"
)]

mod builds;
mod net;

use std::collections::BTreeMap;

use fpga_regs::engine::admin::{AdminStatus, CreateQp};
use fpga_regs::engine::cqe::Status;
use fpga_regs::engine::event::QpEvent;
use fpga_regs::engine::qp::{QpState, QpType};
use net::{Net, WINDOW_BYTES};
use queue_engine::{Transport as _, TransportError, TransportEvent};
use trial::rng::Rng;

const MS: u64 = 1_000_000;

/// A number of the environment's.
fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// `SEEDS=1000` tries so many, `SEED=7` that one.
#[test]
fn writes_and_reads_of_many_queue_pairs_are_exact_and_provoke_nothing() {
    match number("SEED") {
        Some(seed) => storm(seed),
        None => (0..number("SEEDS").unwrap_or(12)).for_each(storm),
    }
}

/// QPs of both sides write and read; all of it ends, and each byte is where it belongs.
fn storm(seed: u64) {
    let mut rng = Rng::new(seed);
    let mut net = Net::new(seed);
    let pairs = rng.between(1, 20) as usize;
    let qps: Vec<_> = (0..pairs).map(|_| net.connect()).collect();
    let mut expected = Vec::new();
    for (index, &[a, b]) in qps.iter().enumerate() {
        let (side, own, peer) = if rng.chance(5000) { (0, a, b) } else { (1, b, a) };
        let read = rng.chance(5000);
        for message in 0..rng.between(1, 6) {
            let length = 4 * rng.between(1, 20_000) as u32;
            let length = length.min(WINDOW_BYTES as u32 / 8);
            let at = (message % 6) * (WINDOW_BYTES / 8);
            net.fill(side, own, at, length, seed ^ index as u64 ^ message);
            net.fill(1 - side, peer, at, length, !(seed ^ index as u64 ^ message));
            net.submit(side, own, read, at, length).unwrap();
            expected.push((side, own, peer, at, length, read));
        }
    }
    net.run(2_000 * MS);
    let completed: u64 = net.completed.values().sum();
    assert_eq!(completed, expected.len() as u64, "seed {seed}");
    for (side, own, peer, at, length, _) in expected {
        let (one, other) =
            (net.bytes(side, own, at, length), net.bytes(1 - side, peer, at, length));
        assert!(one == other, "seed {seed}: {length} bytes at {at} of {own}");
    }
    assert!(net.failed.is_empty(), "seed {seed}: {:?}", net.failed);
}

#[test]
fn one_packet_at_a_time_gets_through_a_cable_that_loses() {
    for seed in 0..3 {
        let mut net = Net::with(seed, true);
        net.loss = 500;
        let qps: Vec<_> = (0..4).map(|_| net.connect()).collect();
        for (index, &[a, b]) in qps.iter().enumerate() {
            let (side, own, peer) = if index % 2 == 0 { (0, a, b) } else { (1, b, a) };
            for message in 0..3 {
                let at = message * (WINDOW_BYTES / 8);
                net.fill(side, own, at, 60_000, seed ^ at);
                net.fill(1 - side, peer, at, 60_000, !(seed ^ at));
                net.submit(side, own, index >= 2, at, 60_000).unwrap();
            }
        }
        net.run(30_000 * MS);
        assert!(net.failed.is_empty(), "seed {seed}: {:?}", net.failed);
        assert_eq!(net.completed.values().sum::<u64>(), 12, "seed {seed}");
        for &[a, b] in &qps {
            for message in 0..3 {
                let at = message * (WINDOW_BYTES / 8);
                let same = net.bytes(0, a, at, 60_000) == net.bytes(1, b, at, 60_000);
                assert!(same, "seed {seed}: {a} at {at}");
            }
        }
    }
}

/// As `docs/stock-card.md` warns, an acknowledgement counts for any packet.
#[test]
fn a_late_acknowledgement_completes_the_next_write_and_a_late_response_no_read() {
    for read in [false, true] {
        let mut net = Net::with(19, true);
        let [a, b] = net.connect();
        for at in [0, 4096] {
            net.fill(0, a, at, 4096, at + 1);
            net.fill(1, b, at, 4096, at + 2);
        }
        // The first request is repeated before its answer comes, and so it is answered twice.
        (net.late, net.may_stand) = (Some(MS), true);
        net.submit(0, a, read, 0, 4096).unwrap();
        while net.completed.is_empty() {
            net.run(5_000);
        }
        assert!(net.bytes(0, a, 0, 4096) == net.bytes(1, b, 0, 4096));
        net.loss = 10_000;
        net.submit(0, a, read, 4096, 4096).unwrap();
        net.run(50_000);
        net.loss = 0;
        while net.completed[&(0, a)] < 2 {
            net.run(5_000);
        }
        let is_done = net.bytes(0, a, 4096, 4096) == net.bytes(1, b, 4096, 4096);
        assert_eq!((is_done, net.failed.len()), (read, 0));
        // Behind the WRITE that is complete and was not done there is a gap.
        net.submit(0, a, read, 0, 4096).unwrap();
        net.run(1_500 * MS);
        let failed = net.failed.get(&(0, a)).copied();
        assert_eq!(failed, (!read).then_some(Status::RetryExceeded));
    }
}

#[test]
fn where_a_gap_stops_a_card_every_queue_pair_that_waits_fails_within_a_second() {
    let mut stood = 0;
    for seed in 0..8 {
        let mut net = Net::new(seed);
        let qps: Vec<_> = (0..4).map(|_| net.connect()).collect();
        let mut taken = BTreeMap::new();
        let mut submit = |net: &mut Net| {
            for &[a, _] in &qps {
                let count: &mut u64 = taken.entry((0, a)).or_default();
                *count += u64::from(net.submit(0, a, false, 0, 1 << 17).is_ok());
            }
        };
        submit(&mut net);
        net.run(50 * MS);
        assert_eq!(net.completed.len(), qps.len());
        (net.loss, net.may_stand) = (100, true);
        for _ in 0..6 {
            submit(&mut net);
        }
        net.run(1_000 * MS);
        // The cable is whole again, and the card is not.
        net.loss = 0;
        submit(&mut net);
        net.run(1_000 * MS);
        if net.stands() {
            stood += 1;
        }
        for (qp, taken) in taken {
            let fails = [Status::RetryExceeded, Status::BadResponse];
            let failed = net.failed.get(&qp).is_some_and(|status| fails.contains(status));
            assert!(failed || net.completed[&qp] == taken, "seed {seed}: {qp:?} waits still");
        }
    }
    assert!(stood > 0, "no loss stopped a card");
}

#[test]
fn who_can_post_nothing_for_a_second_after_dead_ones_fails_and_its_number_does_not_rest() {
    let mut net = Net::new(10);
    let qps: Vec<_> = (0..5).map(|_| net.connect()).collect();
    for &[a, _] in &qps {
        net.submit(0, a, true, 0, 64).unwrap();
    }
    net.run(50 * MS);
    let dead: Vec<_> = qps.iter().take(4).flatten().copied().collect();
    net.silence(&dead);
    // Four dead peers keep all READs that the card can have out.
    for &[a, _] in &qps {
        for _ in 0..2 {
            net.submit(0, a, true, 0, 4096).unwrap();
        }
        net.run(MS);
    }
    net.run(900 * MS);
    assert_eq!((net.nodes[0].posts.tally().lost_reads, net.failed.len()), (8, 4));
    let [last, _] = qps[4];
    net.run(500 * MS);
    assert!(!net.failed.contains_key(&(0, last)), "the four have only just been given up");
    net.run(120 * MS);
    assert_eq!(net.failed.get(&(0, last)), Some(&Status::RetryExceeded));
    let tally = net.nodes[0].posts.tally();
    assert_eq!((tally.quarantined, tally.stuck), (4, 1));
}

#[test]
fn dead_queue_pairs_that_come_after_each_other_fail_nobody_who_waits_behind_them() {
    let mut net = Net::new(15);
    let qps: Vec<_> = (0..25).map(|_| net.connect()).collect();
    for &[a, _] in &qps {
        net.submit(0, a, false, 0, 64).unwrap();
    }
    net.run(50 * MS);
    assert_eq!(net.completed.len(), 25);
    let dead: Vec<_> = qps.iter().take(24).map(|[a, _]| *a).collect();
    net.silence(&dead);
    // Each takes four of the card's 32 packets, and keeps them for half a second: three rows of eight.
    for &[a, _] in &qps {
        for _ in 0..4 {
            net.submit(0, a, false, 0, 1 << 16).unwrap();
        }
    }
    net.run(1_400 * MS);
    let [last, _] = qps[24];
    assert_eq!((net.failed.len(), net.completed[&(0, last)]), (16, 1), "it has to wait for long");
    net.run(1_000 * MS);
    assert_eq!((net.failed.len(), net.completed[&(0, last)]), (24, 5));
    let tally = net.nodes[0].posts.tally();
    assert_eq!((tally.quarantined, tally.stuck), (24, 0));
}

#[test]
fn a_queue_pair_that_is_given_up_gives_those_of_another_vfpga_their_time_anew() {
    // Four dead readers keep all READs of the second node's vFPGA, so that a QP behind them posts nothing for good; a
    // dead peer of the first one's is given up later.
    let mut net = Net::sharing(20);
    let readers: Vec<_> = (0..5).map(|_| net.connect()).collect();
    let [writer, _] = net.connect();
    for &[_, b] in &readers {
        net.submit(1, b, true, 0, 64).unwrap();
    }
    net.submit(0, writer, false, 0, 64).unwrap();
    net.run(50 * MS);
    (net.loss, net.may_stand) = (10_000, true);
    for &[_, b] in &readers {
        for _ in 0..2 {
            net.submit(1, b, true, 0, 4096).unwrap();
        }
        net.run(MS);
    }
    net.run(800 * MS);
    net.submit(0, writer, false, 0, 64).unwrap();
    net.run(1_000 * MS);
    let [_, last] = readers[4];
    assert_eq!((net.failed.len(), net.failed.contains_key(&(1, last))), (5, false));
    net.run(600 * MS);
    assert_eq!(net.failed.get(&(1, last)), Some(&Status::RetryExceeded));
}

#[test]
fn in_sqd_what_was_begun_is_finished_and_nothing_begins() {
    let mut net = Net::new(9);
    let [a, b] = net.connect();
    let drained = |net: &Net| {
        let is_drained = |(side, event): &&(usize, TransportEvent)| {
            let wanted = TransportEvent::Async { qpn: a, event: QpEvent::SqDrained };
            *side == 0 && *event == wanted
        };
        net.events.iter().filter(is_drained).count()
    };
    net.drain(0, a, true);
    net.run(MS);
    assert_eq!((drained(&net), net.is_draining(0, a)), (1, false), "nothing was begun");
    net.drain(0, a, false);
    for _ in 0..30 {
        net.submit(0, a, false, 0, 1 << 17).unwrap();
    }
    while !net.completed.contains_key(&(0, a)) {
        net.run(5_000);
    }
    net.drain(0, a, true);
    assert!(net.is_draining(0, a));
    net.run(100 * MS);
    let done = net.completed[&(0, a)];
    assert!((2..30).contains(&done), "{done}");
    assert_eq!((drained(&net), net.is_draining(0, a)), (2, false));
    net.drain(0, a, true);
    net.run(2_000 * MS);
    assert_eq!((net.completed[&(0, a)], drained(&net)), (done, 2), "a second time is nothing new");
    net.drain(0, a, false);
    net.run(100 * MS);
    assert_eq!((net.completed[&(0, a)], net.failed.len()), (30, 0));
    // A QP that ends by a failure was not drained.
    net.silence(&[a, b]);
    net.submit(0, a, false, 0, 1 << 12).unwrap();
    net.run(5_000);
    net.drain(0, a, true);
    assert!(net.is_draining(0, a));
    net.run(2_000 * MS);
    assert_eq!((net.failed.len(), drained(&net)), (1, 2));
}

#[test]
fn copies_of_counters_that_go_astray_hit_the_guard_pages_alone() {
    let mut net = Net::new(7);
    for index in 0..62 {
        let [a, _] = net.connect();
        // READs of one packet and of several, and WRITEs; where each copy goes is looked at when it does.
        net.submit(0, a, index % 2 == 0, 0, if index % 3 == 0 { 64 } else { 9000 }).unwrap();
    }
    net.run(300 * MS);
    assert_eq!(net.completed.len(), 62);
    assert!(net.astray(0) >= 62, "{}", net.astray(0));
}

#[test]
fn counters_wrap_and_completions_are_told_all_the_same() {
    let mut net = Net::new(1);
    let [a, _] = net.connect();
    // The next completions pass 2^32.
    net.wrap_from(0, a, u32::MAX - 2);
    for _ in 0..6 {
        net.submit(0, a, false, 0, 64).unwrap();
    }
    net.run(100 * MS);
    assert_eq!(net.completed[&(0, a)], 6);
}

#[test]
fn more_acknowledgements_than_packets_end_a_queue_pair_whose_number_rests() {
    let mut net = Net::new(26);
    let [a, _] = net.connect();
    net.submit(0, a, false, 0, 64).unwrap();
    net.run(50 * MS);
    assert_eq!(net.completed[&(0, a)], 1);
    net.submit(0, a, false, 0, 64).unwrap();
    net.wrap_from(0, a, 2);
    net.run(50 * MS);
    assert_eq!(net.failed.get(&(0, a)), Some(&Status::BadResponse));
    assert_eq!((net.completed[&(0, a)], net.nodes[0].posts.tally().quarantined), (1, 1));
}

#[test]
fn a_silent_peer_costs_its_own_queue_pair_and_nobody_elses() {
    let mut net = Net::new(2);
    let [dead, _] = net.connect();
    let [reader, _] = net.connect();
    let [alive, _] = net.connect();
    for _ in 0..4 {
        net.submit(0, dead, false, 0, 1 << 16).unwrap();
        net.submit(0, reader, true, 0, 1 << 16).unwrap();
    }
    net.run(20 * MS);
    let before = net.completed.clone();
    assert_eq!((before[&(0, dead)], before[&(0, reader)]), (4, 4));
    net.silence(&[dead, reader]);
    for _ in 0..20 {
        net.submit(0, dead, false, 0, 1 << 16).unwrap();
        net.submit(0, reader, true, 0, 1 << 16).unwrap();
    }
    for _ in 0..20 {
        net.submit(0, alive, false, 0, 1 << 16).unwrap();
    }
    net.run(100 * MS);
    assert_eq!(net.completed[&(0, alive)], 20, "others go on meanwhile");
    net.run(1_000 * MS);
    assert_eq!(net.failed[&(0, dead)], Status::RetryExceeded);
    assert_eq!(net.failed[&(0, reader)], Status::RetryExceeded);
    let tally = net.nodes[0].posts.tally();
    assert_eq!(tally.quarantined, 2);
    assert!(tally.unanswered > tally.answered, "nobody has answered since");
    net.submit(0, alive, false, 0, 64).unwrap();
    net.run(MS);
    let tally = net.nodes[0].posts.tally();
    assert!(tally.unanswered < tally.answered, "the card does not stand");
    assert!(net.nodes[0].posts.tally().lost_reads <= 2, "a dead peer keeps no more");
    assert_eq!(net.submit(0, dead, false, 0, 64), Err(TransportError::WrongState));
    // Their numbers rest, and others are to be had.
    net.destroy(0, dead);
    for _ in 0..59 {
        assert_ne!(net.connect()[0], dead);
    }
    assert!(net.try_create(0).is_err(), "all but the resting ones are in use");
    let again = net.submit(0, alive, true, 0, 64);
    assert_eq!(again, Err(TransportError::Unsupported), "it has WRITEs");
}

#[test]
fn a_dead_peer_keeps_two_reads_of_its_queue_pair_and_no_more() {
    let mut net = Net::new(25);
    let [reader, peer] = net.connect();
    net.submit(0, reader, true, 0, 64).unwrap();
    net.run(50 * MS);
    net.silence(&[peer]);
    for _ in 0..10 {
        net.submit(0, reader, true, 0, 4096).unwrap();
    }
    net.run(1_000 * MS);
    assert_eq!(net.failed.get(&(0, reader)), Some(&Status::RetryExceeded));
    assert_eq!(net.nodes[0].posts.tally().lost_reads, 2);
}

#[test]
fn the_first_request_waits_for_its_answer_though_it_was_lost_for_want_of_an_address() {
    for seed in 0..20 {
        let mut net = Net::new(seed);
        net.unanswered = true;
        let [a, b] = net.connect();
        net.run(20 * MS);
        // It is lost, and with it the card asks; by the time of the second one it would know.
        net.unanswered = false;
        for at in [0, 4096] {
            net.fill(0, a, at, 4096, seed + at);
            net.submit(0, a, false, at, 4096).unwrap();
            net.run(20_000);
        }
        net.run(100 * MS);
        assert_eq!(net.completed.get(&(0, a)), Some(&2), "seed {seed}");
        assert!(net.bytes(0, a, 0, 8192) == net.bytes(1, b, 0, 8192), "seed {seed}");
    }
}

#[test]
fn a_number_is_used_again_once_nothing_of_it_is_out() {
    let mut net = Net::new(3);
    let mut seen = Vec::new();
    for round in 0..130 {
        let [a, b] = net.connect();
        net.fill(0, a, 0, 4096, round);
        net.submit(0, a, false, 0, 4096).unwrap();
        net.run(30 * MS);
        assert_eq!(net.completed[&(0, a)], 1);
        assert!(net.bytes(0, a, 0, 4096) == net.bytes(1, b, 0, 4096));
        net.destroy(0, a);
        net.destroy(1, b);
        seen.push(a);
    }
    assert!(
        seen[..62].iter().collect::<std::collections::BTreeSet<_>>().len() == 62,
        "the longest free one first"
    );
}

#[test]
fn what_a_published_card_does_not_carry_is_refused_before_it_is_posted() {
    let mut net = Net::new(4);
    let [a, _] = net.connect();
    for length in [0, 1, 3, 4097] {
        assert_eq!(
            net.submit(0, a, false, 0, length),
            Err(TransportError::Unsupported),
            "{length}"
        );
    }
    assert_eq!(net.submit_at(0, a, 1 << 48, 4), Err(TransportError::Unsupported));
    assert_eq!(net.send(0, a), Err(TransportError::Unsupported));
    net.submit(0, a, true, 0, 4).unwrap();
    assert_eq!(net.submit(0, a, false, 0, 4), Err(TransportError::Unsupported), "it READs");
    assert_eq!(net.state(0, a), QpState::Rts);
    net.run(50 * MS);
    assert_eq!(net.completed[&(0, a)], 1);
}

#[test]
fn to_an_rnic_a_write_goes_packet_by_packet_by_one_key() {
    let mut net = Net::of_rnics(7);
    let [a, b] = net.connect();
    let [c, d] = net.connect();
    let lengths = [4, 4096, 40_000, 100_000];
    for (index, length) in (0u32..).zip(lengths) {
        let at = u64::from(index) * (WINDOW_BYTES / 8);
        net.fill(0, a, at, length, index.into());
        net.fill(1, d, at, length, u64::from(index) + 9);
        net.submit_by(0, a, false, at, length, 0x1234_5678).unwrap();
        net.submit_by(0, c, true, at, length, 0x9abc_def0).unwrap();
    }
    net.run(1_000 * MS);
    assert_eq!((net.completed[&(0, a)], net.completed[&(0, c)]), (4, 4));
    for (index, length) in (0u64..).zip(lengths) {
        let at = index * (WINDOW_BYTES / 8);
        assert!(net.bytes(0, a, at, length) == net.bytes(1, b, at, length), "{length} written");
        assert!(net.bytes(0, c, at, length) == net.bytes(1, d, at, length), "{length} read");
    }
    assert_eq!(net.named[&(1, b)], [(0x0a, Some(0x1234_5678))].into(), "WRITE Only");
    assert_eq!(net.named[&(1, d)], [(0x0c, Some(0x9abc_def0))].into(), "READ request");
    // Another key, and the other way, once something has come that way.
    let refused = Err(TransportError::Unsupported);
    assert_eq!(net.submit_by(0, a, false, 0, 4, 1), refused);
    assert_eq!(net.submit_by(1, b, false, 0, 4, 2), refused);
    assert_eq!(net.submit_by(0, a, false, 0, 4, 0x1234_5678), Ok(4));
}

#[test]
fn what_a_published_card_cannot_connect_is_refused() {
    let mut net = Net::new(22);
    let refused = Err(AdminStatus::Unsupported);
    let posts = &mut net.nodes[0].posts;
    let qpn = posts.name_qp(QpType::Rc).unwrap().unwrap();
    let datagrams = CreateQp { kind: QpType::Ud, ..CreateQp::default() };
    assert_eq!(posts.create_qp(qpn, &datagrams), refused);
    let qpn = net.try_create(0).unwrap();
    assert_eq!(net.try_connect(0, qpn, |all| all.path_mtu = 4), refused);
    assert_eq!(net.try_connect(0, qpn, |all| all.sgid_index = 0), refused, "not its address");
    assert_eq!(net.try_connect(0, qpn, |all| all.dgid = [0xfe; 16]), refused, "not of IPv4");
    let own = net.own_gid(0);
    assert_eq!(net.try_connect(0, qpn, |all| all.dgid = own), refused, "nobody carries that here");
    assert_eq!(net.try_connect(0, qpn, |_| {}), Ok(()));
    assert_eq!(net.let_send(0, qpn), Ok(()));
    net.drain(0, qpn, true);
    assert_eq!(net.try_path(0, qpn, own), refused, "its path stays");
}

#[test]
fn a_side_whose_peer_has_sent_before_does_not_come_to_send() {
    let mut net = Net::new(23);
    let [a, b] = [0, 1].map(|side| net.try_create(side).unwrap());
    net.try_connect(0, a, |all| all.dest_qpn = b).unwrap();
    net.try_connect(1, b, |all| all.dest_qpn = a).unwrap();
    net.let_send(0, a).unwrap();
    net.submit(0, a, false, 0, 64).unwrap();
    net.run(50 * MS);
    assert_eq!(net.completed[&(0, a)], 1);
    assert_eq!(net.let_send(1, b), Err(AdminStatus::Busy));
}

#[test]
fn to_a_queue_pair_of_the_same_process_nothing_is_sent_before_it_is_ready() {
    let mut net = Net::together(25);
    let [a, b, c] = [0, 1, 0].map(|side| net.try_create(side).unwrap());
    for (qpn, dest_qpn) in [(a, b), (c, 40)] {
        net.try_connect(0, qpn, |all| all.dest_qpn = dest_qpn).unwrap();
        net.let_send(0, qpn).unwrap();
        net.submit(0, qpn, false, 0, 64).unwrap();
    }
    net.run(300 * MS);
    assert_eq!(net.nodes[0].posts.tally().posts, 0);
    net.try_connect(1, b, |all| all.dest_qpn = a).unwrap();
    net.run(5 * MS);
    assert_eq!(net.let_send(1, b), Ok(()), "though it was sent something before");
    net.run(300 * MS);
    assert_eq!(net.completed[&(0, a)], 1);
    net.submit(1, b, false, 64, 64).unwrap();
    net.submit(0, a, false, 0, 64).unwrap();
    net.run(100 * MS);
    assert_eq!((net.completed[&(0, a)], net.completed[&(1, b)]), (2, 1));
    assert_eq!(net.failed[&(0, c)], Status::RetryExceeded, "nobody has that number");
    let tally = net.nodes[0].posts.tally();
    assert_eq!((tally.posts, tally.stuck, tally.quarantined), (2, 0, 0), "the card does not stand");
    // One that is closed is sent nothing more.
    net.nodes[1].posts.close((b & 0x3f) as u8);
    net.submit(0, a, false, 0, 64).unwrap();
    net.run(600 * MS);
    assert_eq!((net.nodes[0].posts.tally().posts, net.failed[&(0, a)]), (2, Status::RetryExceeded));
}

#[test]
fn a_number_to_which_anything_is_on_its_way_is_not_connected_anew() {
    let mut net = Net::together(26);
    let [a, b] = net.connect();
    net.run(20 * MS);
    net.silence(&[b]);
    net.submit(0, a, false, 0, 64).unwrap();
    net.run(20 * MS);
    net.reset(1, b);
    for peer in [a, 40] {
        assert_eq!(net.try_connect(1, b, |all| all.dest_qpn = peer), Err(AdminStatus::Busy));
        net.reset(1, b);
    }
    // It is given up, and its card stops repeating it.
    net.run(1_000 * MS);
    assert_eq!(net.failed[&(0, a)], Status::RetryExceeded);
    assert_eq!(net.try_connect(1, b, |all| all.dest_qpn = a), Ok(()));
}

#[test]
fn who_has_failed_is_sent_nothing_by_queue_pairs_of_the_same_process() {
    let mut net = Net::together(27);
    let [a, b] = net.connect();
    net.odd_at(a, 1);
    net.submit(0, a, false, 0, 64).unwrap();
    net.submit(0, a, false, 0, 64).unwrap();
    net.run(50 * MS);
    assert_eq!(net.failed[&(0, a)], Status::LocalLength);
    net.submit(1, b, false, 0, 64).unwrap();
    net.run(600 * MS);
    assert_eq!((net.nodes[1].posts.tally().posts, net.failed[&(1, b)]), (0, Status::RetryExceeded));
}

#[test]
fn a_number_that_rests_is_connected_to_nobody() {
    let mut net = Net::new(24);
    let [a, _] = net.connect();
    net.submit(0, a, false, 0, 64).unwrap();
    net.run(50 * MS);
    net.silence(&[a]);
    net.submit(0, a, false, 0, 64).unwrap();
    net.run(1_000 * MS);
    assert_eq!(net.failed.get(&(0, a)), Some(&Status::RetryExceeded));
    net.reset(0, a);
    assert_eq!(net.try_connect(0, a, |_| {}), Err(AdminStatus::NoResources));
    net.nodes[0].posts.reset();
    let again = net.try_create(0).unwrap();
    assert_eq!(net.try_connect(0, again, |_| {}), Ok(()));
}

#[test]
fn who_would_go_to_the_ethernet_address_of_another_peer_is_refused_until_the_reset() {
    let mut net = Net::new(21);
    // Its address ends as that of the peer does.
    let other = 0x0a00_0102;
    let [a, _] = net.connect();
    assert_eq!(net.name_peer(0, other), Ok(()), "nobody has answered yet");
    net.submit(0, a, false, 0, 64).unwrap();
    net.run(50 * MS);
    assert_eq!(net.completed[&(0, a)], 1);
    assert_eq!(net.name_peer(0, other), Err(AdminStatus::Unsupported));
    assert_eq!((net.name_peer(0, 0x0a00_0103), net.name_peer(0, 0x0a00_0002)), (Ok(()), Ok(())));
    net.nodes[0].posts.reset();
    assert_eq!(net.name_peer(0, other), Ok(()));
}

#[test]
fn no_more_reads_are_out_than_a_peer_keeps_places_for() {
    let mut net = Net::new(3);
    net.reads = 0;
    let [none, _] = net.connect();
    assert_eq!(net.submit(0, none, true, 0, 4), Err(TransportError::Unsupported));
    net.reads = 1;
    let [one, silent] = net.connect();
    net.silence(&[silent]);
    net.submit(0, one, true, 0, 4096).unwrap();
    net.submit(0, one, true, 4096, 4096).unwrap();
    net.run(300 * MS);
    assert_eq!(net.nodes[0].posts.tally().posts, 1);
}

#[test]
fn a_piece_of_an_odd_length_fails_its_message_behind_those_before() {
    let mut net = Net::new(5);
    let [a, _] = net.connect();
    net.submit(0, a, false, 0, 64).unwrap();
    net.odd_at(a, 1);
    net.submit(0, a, false, 0, 64).unwrap();
    net.submit(0, a, false, 0, 64).unwrap();
    net.run(50 * MS);
    assert_eq!(net.completed[&(0, a)], 1);
    assert_eq!(net.failed[&(0, a)], Status::LocalLength);
    let last = net.events.iter().rev().find(|(side, _)| *side == 0).map(|(_, event)| *event);
    assert!(matches!(last, Some(TransportEvent::Failed { .. })));
}

#[test]
fn a_peer_that_writes_to_a_queue_pair_that_reads_ends_it() {
    let mut net = Net::new(6);
    let [a, b] = net.connect();
    net.submit(0, a, true, 0, 64).unwrap();
    net.run(50 * MS);
    net.submit(1, b, false, 4096, 64).unwrap();
    net.run(50 * MS);
    // The counter has moved though nothing was out: the next READ finds it, whose end cannot be told any more.
    net.submit(0, a, true, 0, 64).unwrap();
    net.run(50 * MS);
    assert_eq!(net.failed.get(&(0, a)), Some(&Status::BadResponse));
}
