//! Datagrams through the tunnel.

use std::collections::{BTreeMap, BTreeSet};

use fpga_regs::engine::admin::AdminStatus;
use fpga_regs::engine::cqe::Status;
use fpga_regs::engine::event::QpEvent;
use fpga_regs::engine::qp::QpState;
use fpga_regs::engine::tunnel::{SLOT_BYTES, SLOTS, TURNOVER};
use fpga_regs::engine::wqe::Datagram;
use queue_engine::{ReceiveKind, ReceivedMessage, TransportError, TransportEvent, WqeOperation};
use stock_engine::Meetings;
use stock_engine::param::{MESSAGES, WAITING, WATCHDOG};
use trial::rng::Rng;

use super::ends::{IPV4, Net, THIRD, gid_of};
use super::{MS, SEND, number, write};

const QKEY: u32 = 0x1111_1111;
/// Bytes of the GRH.
const GRH: usize = 40;

fn to(ah: u32, qpn: u32) -> WqeOperation {
    WqeOperation::Datagram { datagram: Datagram { ah, qpn, qkey: QKEY }, immediate: None }
}

/// A net whose sides have handles to both: the peer's address is handle 1, their own is handle 2.
fn net(seed: u64, turnover: u32) -> Net {
    let mut net = Net::new(seed, turnover);
    handles(&mut net, 0);
    handles(&mut net, 1);
    net
}

fn handles(net: &mut Net, side: usize) {
    for (ah, other) in [(1, 1 - side), (2, side)] {
        net.handle(side, ah, gid_of(IPV4[other])).unwrap();
    }
}

#[test]
fn the_first_connection_has_another_number_behind_each_reset() {
    let meetings = Meetings::default();
    let first: BTreeSet<u32> = (0..5).map(|_| Net::again(&meetings).create(0)).collect();
    assert_eq!(first.len(), 5, "{first:?}");
}

/// `SEEDS=1000` tries so many, `SEED=7` that one.
#[test]
fn datagrams_of_all_lengths_arrive_whole_in_their_order_beside_connections() {
    match number("SEED") {
        Some(seed) => storm(seed),
        None => (0..number("SEEDS").unwrap_or(12)).for_each(storm),
    }
}

/// Several queue pairs of both sides send each other datagrams, while connections WRITE; all that have a receive arrive, and
/// contexts are rewritten often.
fn storm(seed: u64) {
    let mut rng = Rng::new(seed);
    let mut net = net(seed, rng.between(20, 200) as u32);
    let pairs: Vec<_> = (0..rng.below(4)).map(|_| net.connect(7, true)).collect();
    let mut sockets = Vec::new();
    for _ in 0..rng.between(2, 6) {
        let side = rng.below(2) as usize;
        let qpn = net.socket(side, QKEY);
        sockets.push((side, qpn));
    }
    // The datagrams that each must receive of each, in their order, and those that each has sent.
    let mut wanted: BTreeMap<(u32, u32), Vec<Sent>> = BTreeMap::new();
    let mut sent: BTreeMap<u32, u64> = BTreeMap::new();
    for round in 0..rng.between(2, 6) {
        for pair in &pairs {
            let side = rng.below(2) as usize;
            net.submit(side, pair[side], write(0, None), &[7; 20_001]).unwrap();
        }
        for _ in 0..rng.between(1, 40) {
            let [(side, qpn), (other, dest)] = [0, 1].map(|_| rng.pick(&sockets));
            let length = if rng.chance(3000) { 4096 - rng.below(200) } else { rng.below(4097) };
            let bytes: Vec<u8> = (0..length).map(|_| rng.next() as u8).collect();
            let immediate = rng.chance(5000).then(|| rng.next() as u32);
            let ah = if side == other { 2 } else { 1 };
            let datagram = Datagram { ah, qpn: dest, qkey: QKEY };
            let operation = WqeOperation::Datagram { datagram, immediate };
            net.program(other, dest).posted.push_back(GRH + bytes.len() + 4096);
            net.submit(side, qpn, operation, &bytes).unwrap();
            *sent.entry(qpn).or_default() += 1;
            wanted.entry((dest, qpn)).or_default().push(Sent { side, other, bytes, immediate });
        }
        net.run(300 * MS);
        for &(side, qpn) in &sockets {
            let count = sent.get(&qpn).copied().unwrap_or(0);
            let tallies = [0, 1].map(|side| net.nodes[side].carrier.datagrams());
            let own = net.program(side, qpn);
            let told = (own.completed(), tallies, &own.events);
            assert_eq!(own.completed(), count, "seed {seed}, round {round}: {told:?}");
        }
    }
    for &(side, qpn) in &sockets {
        judge(&mut net, seed, (side, qpn), &mut wanted);
    }
    assert!(wanted.values().all(Vec::is_empty), "seed {seed}: some did not arrive");
}

struct Sent {
    side: usize,
    other: usize,
    bytes: Vec<u8>,
    immediate: Option<u32>,
}

/// Compares the datagrams that a queue pair has received.
fn judge(
    net: &mut Net,
    seed: u64,
    (side, qpn): (usize, u32),
    wanted: &mut BTreeMap<(u32, u32), Vec<Sent>>,
) {
    let program = net.program(side, qpn);
    let received = program.events.iter().filter_map(|event| match event {
        TransportEvent::Received(received) => Some(*received),
        TransportEvent::Completed { .. } => None,
        other => panic!("seed {seed}: {other:?}"),
    });
    for (message, bytes) in received.zip(&program.taken) {
        let from = message.source_qpn.unwrap();
        let Sent { side, other, bytes: payload, immediate } =
            wanted.get_mut(&(qpn, from)).unwrap().remove(0);
        let length = (GRH + payload.len()) as u32;
        let all = ReceivedMessage {
            qpn,
            length,
            kind: ReceiveKind::Send,
            immediate,
            solicited: false,
            source_qpn: Some(from),
        };
        assert_eq!(message, all, "seed {seed}");
        assert!(bytes[GRH..GRH + payload.len()] == payload, "seed {seed}: other bytes");
        assert_eq!(bytes[..20], [0; 20], "the half of IPv6");
        assert_eq!((bytes[20], bytes[21], bytes[28]), (0x45, 0x20, 64));
        let addresses = [IPV4[side], IPV4[other]].map(u32::to_be_bytes).concat();
        assert_eq!(bytes[32..40], addresses, "seed {seed}");
    }
}

#[test]
fn what_nobody_takes_is_dropped_and_counted_and_its_sender_goes_on() {
    for (side, ah) in [(0, 2), (1, 1)] {
        let mut net = net(1, TURNOVER);
        let (from, dest) = (net.socket(0, QKEY), net.socket(side, QKEY));
        let other_key = Datagram { ah, qpn: dest, qkey: QKEY ^ 1 };
        let own_key = Datagram { ah, qpn: dest, qkey: 1 << 31 };
        let send = |datagram| WqeOperation::Datagram { datagram, immediate: None };
        // Without a receive, with another Q_Key, to numbers without a queue pair; then one that arrives.
        net.submit(0, from, to(ah, dest), &[1; 8]).unwrap();
        net.run(50 * MS);
        net.program(side, dest).posted.extend([GRH + 7, GRH + 9, GRH + 9]);
        net.submit(0, from, send(other_key), &[2; 8]).unwrap();
        for qpn in [dest + 1, dest & 0x3f, 1, 0xff_ffff] {
            net.submit(0, from, to(ah, qpn), &[3; 8]).unwrap();
        }
        net.submit(0, from, to(ah, dest), &[4; 8]).unwrap();
        net.submit(0, from, send(own_key), &[5; 8]).unwrap();
        net.run(50 * MS);
        assert_eq!(net.program(0, from).completed(), 8);
        let events: Vec<_> = net.program(side, dest).events.clone();
        let short = TransportEvent::ReceiveFailed { qpn: dest, status: Status::LocalLength };
        assert_eq!(events[0], short, "{events:?}");
        assert!(matches!(events[1..], [TransportEvent::Received(_)]), "{events:?}");
        assert_eq!(net.program(side, dest).taken[1][GRH..][..8], [5; 8]);
        let tallies = [0, 1].map(|side| net.nodes[side].carrier.datagrams());
        let sum = |of: fn(&stock_engine::DatagramTally) -> u64| tallies.iter().map(of).sum::<u64>();
        assert_eq!((sum(|it| it.sent), sum(|it| it.received)), (8, 1));
        assert_eq!((sum(|it| it.unreceived), sum(|it| it.failed)), (1, 1));
        assert_eq!(sum(|it| it.refused), 5, "{tallies:?}");
    }
}

#[test]
fn one_whose_memory_has_gone_takes_its_queue_pair_to_sqe_from_where_it_goes_on() {
    let mut net = net(2, TURNOVER);
    let [a, b] = [net.socket(0, QKEY), net.socket(1, QKEY)];
    net.program(1, b).posted.extend([GRH + 8; 3]);
    net.submit(0, a, to(1, b), &[1; 8]).unwrap();
    let gone = net.submit(0, a, to(1, b), &[2; 8]).unwrap();
    net.submit(0, a, to(1, b), &[3; 8]).unwrap();
    net.program(0, a).messages.remove(&gone);
    net.run(50 * MS);
    let failed = TransportEvent::Failed { qpn: a, status: Status::LocalProtection };
    let done = TransportEvent::Completed { qpn: a, count: 1 };
    assert_eq!(net.program(0, a).events, [done, failed]);
    assert_eq!(net.state(0, a), QpState::Sqe);
    assert_eq!(net.submit(0, a, to(1, b), &[4; 8]), Err(TransportError::WrongState));
    // It receives as ever.
    net.program(0, a).posted.push_back(GRH + 8);
    net.submit(1, b, to(1, a), &[5; 8]).unwrap();
    net.change(0, a, QpState::Rts);
    assert_eq!(net.submit(0, a, to(1, b), &[6; 4097]), Err(TransportError::TooLong));
    net.submit(0, a, to(1, b), &[7; 8]).unwrap();
    net.run(50 * MS);
    assert_eq!(net.program(0, a).taken[0][GRH..], [5; 8]);
    let taken = net.program(1, b).taken.iter().map(|bytes| bytes[GRH]);
    assert!(taken.eq([1, 7]));
    // In SQD nothing begins, and in ERR nothing is left.
    net.program(0, a).events.clear();
    net.change(0, a, QpState::Sqd);
    net.run(MS);
    let drained = TransportEvent::Async { qpn: a, event: QpEvent::SqDrained };
    assert_eq!(net.program(0, a).events, [drained]);
    net.change(0, a, QpState::Err);
    net.submit(1, b, to(1, a), &[8; 8]).unwrap();
    net.run(50 * MS);
    assert_eq!(net.program(0, a).taken.len(), 1);
}

#[test]
fn who_is_no_card_of_this_process_and_who_is_many_is_refused() {
    let mut net = net(3, TURNOVER);
    let mut group = [0; 16];
    group[..2].copy_from_slice(&[0xff, 0x0e]);
    for dgid in [gid_of(0x0a00_0003), gid_of(0xe000_0001), group] {
        assert_eq!(net.handle(0, 9, dgid), Err(AdminStatus::Unsupported), "{dgid:x?}");
    }
}

/// Sends a message between two new QPs, by which the first card knows where the second one is.
fn greet(net: &mut Net) {
    let [a, b] = net.connect(7, true);
    net.program(1, b).posted.push_back(8);
    net.submit(0, a, SEND, &[1; 8]).unwrap();
    net.run(50 * MS);
    assert_eq!(net.program(0, a).completed(), 1);
}

#[test]
fn a_card_in_whose_place_another_one_answers_is_offered_no_link() {
    let mut net = Net::of_three(10);
    net.handle(0, 3, gid_of(THIRD)).unwrap();
    greet(&mut net);
    let [a, third] = [net.socket(0, QKEY), net.third_socket(QKEY)];
    net.run(300 * MS);
    let refused = |net: &Net| net.nodes[0].carrier.posts.tally().refused;
    assert_eq!(refused(&net), 0);
    // An earlier handle leads nowhere, and delays no other.
    for _ in 0..MESSAGES {
        net.submit(0, a, to(3, third), &[1; 8]).unwrap();
    }
    net.run(50 * MS);
    assert_eq!(net.program(0, a).completed(), MESSAGES as u64);
    assert_eq!(net.nodes[0].carrier.datagrams().undelivered, MESSAGES as u64);
    assert_eq!(net.handle(0, 4, gid_of(THIRD)), Err(AdminStatus::Unsupported));
    let why = net.nodes[0].carrier.posts.take_reason().unwrap();
    assert!(why.contains("and 10.0.0.2 has answered by it"), "{why}");
    assert_eq!(refused(&net), 1);
}

#[test]
fn why_a_link_is_refused_no_program_is_told() {
    let mut net = Net::of_three(11);
    net.third.as_mut().unwrap().stands = true;
    net.third_socket(QKEY);
    net.socket(0, QKEY);
    // A link is offered to the third card, which looks only when another one has answered in its place.
    net.run(MS);
    greet(&mut net);
    let denied = net.handle(0, 3, gid_of(0xe000_0001));
    assert_eq!(denied, Err(AdminStatus::Unsupported));
    net.third.as_mut().unwrap().stands = false;
    net.run(300 * MS);
    let posts = &mut net.nodes[0].carrier.posts;
    assert_eq!(posts.tally().refused, 2, "the handle and the link, once");
    let why = posts.take_reason();
    assert_eq!(why.as_deref(), Some("there is no multicast through the tunnel"));
    assert_eq!(posts.take_reason(), None);
}

#[test]
fn a_card_that_forgets_everything_gets_datagrams_again_and_stops_nobody() {
    let mut net = net(4, 30);
    for round in 0..6u8 {
        let restarted = usize::from(round % 2);
        let [a, b] = [net.socket(0, QKEY), net.socket(1, QKEY)];
        for (side, qpn, peer) in [(0, a, b), (1, b, a)] {
            net.program(side, qpn).posted.extend([GRH + 4096; 60]);
            for byte in 0..60 {
                net.submit(side, qpn, to(1, peer), &[byte; 4096]).unwrap();
            }
        }
        net.run(100 * MS);
        for (side, qpn) in [(0, a), (1, b)] {
            let taken = net.program(side, qpn).taken.iter().map(|bytes| bytes[GRH]);
            assert!(taken.eq(0..60), "round {round}");
        }
        net.destroy(1 - restarted, [a, b][1 - restarted]);
        net.restart(restarted);
        net.give_gid(restarted);
        handles(&mut net, restarted);
    }
}

#[test]
fn who_floods_a_card_that_takes_nothing_is_not_held_up_for_ever_and_others_go_on() {
    let mut net = net(5, TURNOVER);
    let [flooder, other, beside] = [0; 3].map(|side| net.socket(side, QKEY));
    let b = net.socket(1, QKEY);
    net.program(1, b).posted.extend([GRH + 8; 400]);
    net.program(0, beside).posted.push_back(GRH + 8);
    net.submit(0, flooder, to(1, b), &[1; 8]).unwrap();
    net.run(50 * MS);
    // Its thread stands, and its card acknowledges.
    net.nodes[1].stands = true;
    for _ in 0..MESSAGES {
        net.submit(0, flooder, to(1, b), &[2; 8]).unwrap();
    }
    net.submit(0, other, to(2, beside), &[3; 8]).unwrap();
    net.run(100 * MS);
    assert_eq!(net.program(0, other).completed(), 1, "who sends elsewhere waited");
    assert!(net.program(0, flooder).completed() < 65);
    net.run(2 * WATCHDOG);
    assert_eq!(net.program(0, flooder).completed(), 65, "it is dropped in the end");
    let dropped = net.nodes[0].carrier.datagrams().undelivered;
    net.nodes[1].stands = false;
    net.run(100 * MS);
    assert_eq!(net.program(1, b).taken.len() as u64, 65 - dropped);
    // Of two that want the same way each has its turn.
    for _ in 0..MESSAGES {
        net.submit(0, flooder, to(1, b), &[4; 8]).unwrap();
    }
    net.submit(0, other, to(1, b), &[5; 8]).unwrap();
    net.run(100 * MS);
    let taken = net.program(1, b).taken.iter().rev().take(65);
    let place = taken.map(|bytes| bytes[GRH]).position(|byte| byte == 5).unwrap();
    assert!(place > 32, "it stood behind {} of the other's", 64 - place);
}

#[test]
fn a_link_that_dies_is_made_anew() {
    let mut net = net(6, TURNOVER);
    let [a, b] = [net.socket(0, QKEY), net.socket(1, QKEY)];
    net.program(1, b).posted.extend([GRH + 8; 4]);
    net.submit(0, a, to(1, b), &[1; 8]).unwrap();
    net.run(50 * MS);
    // Nothing gets through for as long as the card repeats, and longer.
    net.loss = 10_000;
    net.submit(0, a, to(1, b), &[2; 8]).unwrap();
    net.run(2 * WATCHDOG);
    assert_eq!(net.nodes[0].carrier.posts.tally().quarantined, 1);
    net.loss = 0;
    net.submit(0, a, to(1, b), &[3; 8]).unwrap();
    net.run(100 * MS);
    assert_eq!(net.program(0, a).completed(), 3);
    let taken = net.program(1, b).taken.iter().map(|bytes| bytes[GRH]);
    assert!(taken.eq([1, 3]));
}

#[test]
fn a_link_on_a_number_that_was_used_before_carries_datagrams() {
    let mut net = net(7, TURNOVER);
    // All numbers but one are taken, and that one is every link's.
    for _ in 0..61 {
        net.create(0);
    }
    for round in 0..3 {
        let [a, b] = [net.socket(0, QKEY), net.socket(1, QKEY)];
        for (side, qpn, peer) in [(0, a, b), (1, b, a)] {
            net.program(side, qpn).posted.push_back(GRH + 8);
            net.submit(side, qpn, to(1, peer), &[side as u8; 8]).unwrap();
        }
        net.run(100 * MS);
        for (side, qpn, byte) in [(0, a, 1), (1, b, 0)] {
            let taken = net.program(side, qpn).taken.iter().map(|bytes| bytes[GRH]);
            assert!(taken.eq([byte]), "round {round}, side {side}");
        }
        net.destroy(0, a);
        net.restart(1);
        net.give_gid(1);
        handles(&mut net, 1);
    }
}

#[test]
fn a_link_of_which_a_slot_was_overwritten_is_made_anew() {
    let mut net = net(8, TURNOVER);
    let [a, b] = [net.socket(0, QKEY), net.socket(1, QKEY)];
    net.program(1, b).posted.extend([GRH + 8; 4]);
    net.submit(0, a, to(1, b), &[1; 8]).unwrap();
    net.run(50 * MS);
    // Both cards have acknowledged, and neither engine has looked; 2 is the first number that there is.
    net.nodes[1].stands = true;
    net.submit(0, a, to(1, b), &[2; 8]).unwrap();
    net.run(50 * MS);
    net.put(1, 2, 0, &vec![0; SLOTS as usize * SLOT_BYTES]);
    net.nodes[1].stands = false;
    net.run(2 * WATCHDOG);
    net.submit(0, a, to(1, b), &[3; 8]).unwrap();
    net.run(100 * MS);
    let taken = net.program(1, b).taken.iter().map(|bytes| bytes[GRH]);
    assert!(taken.eq([1, 3]));
    assert_eq!(net.nodes[0].carrier.datagrams().undelivered, 1);
    assert_eq!(net.nodes[0].carrier.posts.tally().quarantined, 0);
}

#[test]
fn what_waits_for_a_card_whose_programs_have_gone_is_dropped_and_nobody_looks_for_its_answers() {
    let mut net = net(9, TURNOVER);
    let [a, b] = [net.socket(0, QKEY), net.socket(1, QKEY)];
    net.program(1, b).posted.push_back(GRH + 8);
    net.submit(0, a, to(1, b), &[1; 8]).unwrap();
    net.run(50 * MS);
    net.nodes[1].stands = true;
    for _ in 0..MESSAGES {
        net.submit(0, a, to(1, b), &[2; 8]).unwrap();
    }
    net.run(50 * MS);
    assert!(net.nodes[0].carrier.is_waiting());
    net.destroy(1, b);
    net.run(50 * MS);
    let out = WAITING as u64;
    assert_eq!(net.program(0, a).completed(), 1 + MESSAGES as u64);
    assert_eq!(net.nodes[0].carrier.datagrams().undelivered, MESSAGES as u64 - out);
    net.destroy(0, a);
    net.run(50 * MS);
    assert!(!net.nodes[0].carrier.is_waiting());
}
