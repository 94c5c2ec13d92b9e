//! Strangers on the link without the key, and programs that name others' objects.

use fpga_regs::engine::cqe::Status;
use fpga_regs::engine::tunnel::{TURNOVER, place_of, ring_address};
use queue_engine::TransportEvent;
use trial::share::share;

use crate::ends::Net;
use crate::{MS, SEND};

/// Where in a frame of a slot the packet's number stands, its address, and the slot.
const PSN: std::ops::Range<usize> = 51..54;
const ADDRESS: std::ops::Range<usize> = 54..62;
const SLOT: usize = 70;
/// Where in a slot its number stands.
const NUMBER: usize = 8;

/// A stranger's frame, made from an overheard one of the peer: the next packet, at the place of a slot.
fn forged(overheard: &[u8], ctid: u8, place: u64) -> Vec<u8> {
    let mut frame = overheard.to_vec();
    let [a, b, c] = overheard[PSN] else { panic!("no number") };
    let next = (u32::from_be_bytes([0, a, b, c]) + 1) & 0xff_ffff;
    frame[PSN].copy_from_slice(&next.to_be_bytes()[1..]);
    let address = ring_address(ctid) + place_of(place) as u64;
    frame[ADDRESS].copy_from_slice(&address.to_be_bytes());
    frame
}

/// Two QPs, the first of which has sent one message; and the frame of it that a stranger has overheard.
fn overheard(seed: u64) -> (Net, [u32; 2], Vec<u8>) {
    let mut net = Net::new(seed, TURNOVER);
    let [a, b] = net.connect(7, true);
    net.overheard = Some(Vec::new());
    for _ in 0..8 {
        net.program(1, b).posted.push_back(8);
    }
    net.submit(0, a, SEND, &[1; 8]).unwrap();
    net.run(20 * MS);
    assert_eq!((net.program(0, a).completed(), net.program(1, b).taken.len()), (1, 1));
    let frames = net.overheard.take().unwrap();
    let slot = frames.iter().find(|(side, frame)| *side == 1 && frame.get(42) == Some(&0x0a));
    let (_, frame) = slot.unwrap().clone();
    net.may_stand = true;
    (net, [a, b], frame)
}

#[test]
fn no_slot_of_a_stranger_counts_and_none_that_he_keeps_away_is_said_to_have_arrived() {
    /// Further changes of the frame.
    type Change = fn(&mut [u8]);
    let number: Change = |frame| frame[SLOT + NUMBER] = 2;
    let changes: [(u64, Change); 4] = [
        // The one that was overheard, at its place, and at that of the next one.
        (1, |_| {}),
        (2, |_| {}),
        (2, number),
        (2, |frame| {
            frame[SLOT + NUMBER] = 2;
            frame[SLOT + 64..][..8].fill(9);
        }),
    ];
    for (seed, (place, change)) in (0..).zip(changes) {
        let (mut net, [a, b], frame) = overheard(seed);
        let mut frame = forged(&frame, (b & 0x3f) as u8, place);
        change(&mut frame);
        net.put_on_link(1, &frame);
        net.run(20 * MS);
        assert!(net.place(1, b, place_of(place))[..64] == frame[SLOT..][..64], "it came not");
        assert_eq!((net.program(1, b).taken.len(), net.program(1, b).events.len()), (1, 1));
        // The packet number is used up, so that the next packet with it is taken for a repetition.
        net.submit(0, a, SEND, &[2; 8]).unwrap();
        net.run(1_000 * MS);
        let failed = TransportEvent::Failed { qpn: a, status: Status::RetryExceeded };
        assert_eq!(net.program(0, a).completed(), 1, "change {seed}");
        assert_eq!(net.program(0, a).events.last(), Some(&failed), "change {seed}");
        assert_eq!(net.program(1, b).taken, [[1; 8]], "change {seed}");
    }
}

#[test]
fn what_a_stranger_says_again_is_not_taken_again() {
    let (mut net, [a, b], frame) = overheard(9);
    for byte in 2..8 {
        net.put_on_link(1, &frame);
        let _ = net.submit(0, a, SEND, &[byte; 8]);
        net.run(20 * MS);
    }
    net.run(1_000 * MS);
    let done = net.program(0, a).completed() as usize;
    let taken = &net.program(1, b).taken;
    assert!(taken.len() >= done, "{done} of {}", taken.len());
    assert!((1..).zip(taken).all(|(byte, bytes)| *bytes == [byte; 8]), "{taken:?}");
}

/// Two QPs that have exchanged a message, and one of the first side's that names a number of others, or one that nobody has,
/// and sends to it; that one.
fn stray(net: &mut Net, others: bool) -> ([u32; 2], u32) {
    let pair = net.connect(7, true);
    net.program(1, pair[1]).posted.push_back(8);
    net.submit(0, pair[0], SEND, &[1; 8]).unwrap();
    net.run(20 * MS);
    let stranger = net.create(0);
    net.name(0, stranger, if others { pair[1] } else { 40 });
    net.submit(0, stranger, SEND, &[2; 8]).unwrap();
    (pair, stranger)
}

#[test]
fn a_program_that_names_a_number_of_others_sends_nothing_and_harms_nobody() {
    for (seed, others) in [(20, true), (21, false)] {
        let mut net = Net::new(seed, TURNOVER);
        let ([a, b], stranger) = stray(&mut net, others);
        let posts = net.posts(0);
        net.run(1_000 * MS);
        assert_eq!(net.posts(0), posts);
        let failed = TransportEvent::Failed { qpn: stranger, status: Status::RetryExceeded };
        assert_eq!(net.program(0, stranger).events, [failed]);
        net.program(1, b).posted.push_back(8);
        net.submit(0, a, SEND, &[3; 8]).unwrap();
        net.run(20 * MS);
        assert_eq!(net.program(1, b).taken, [[1; 8], [3; 8]]);
    }
}

#[test]
fn between_two_processes_it_stops_its_own_card_and_is_taken_for_nobody() {
    for (seed, others) in [(20, true), (21, false)] {
        let mut net = Net::apart(seed);
        let (pair, stranger) = stray(&mut net, others);
        net.may_stand = true;
        net.run(1_000 * MS);
        assert!(!others || net.stands(0), "it is not refused");
        assert_eq!(net.program(1, pair[1]).taken, [[1; 8]]);
        assert_eq!(net.program(0, stranger).completed(), 0);
    }
}

#[test]
fn what_is_sent_before_the_peer_is_ready_waits_for_it() {
    let mut net = Net::new(30, TURNOVER);
    let [a, b] = [0, 1].map(|side| net.create(side));
    net.name(0, a, b);
    net.submit(0, a, SEND, &[1; 8]).unwrap();
    net.run(300 * MS);
    assert_eq!(net.posts(0), 0);
    net.program(1, b).posted.push_back(8);
    net.name(1, b, a);
    net.run(20 * MS);
    assert_eq!((net.program(0, a).completed(), &*net.program(1, b).taken), (1, &[vec![1; 8]][..]));
}

/// Its packets would be refused behind that, which stops the card that sends.
#[test]
fn who_sends_to_a_queue_pair_that_begins_anew_fails_and_no_card_stands() {
    for seed in (0..60).step_by(share()) {
        let mut net = Net::new(seed, TURNOVER);
        net.delay = 50_000;
        let [[a, b], [c, d]] = [0; 2].map(|_| net.connect(7, true));
        for byte in 0..60 {
            net.program(1, b).posted.push_back(9000);
            net.submit(0, a, SEND, &[byte; 9000]).unwrap();
        }
        while net.program(0, a).completed() == 0 {
            net.run(seed * 10_000 + 10_000);
        }
        assert!(net.program(0, a).completed() < 30, "there is more to do");
        assert!(net.settle(1, b), "what is on its way arrives");
        net.reset(1, b);
        net.name(1, b, a);
        net.run(600 * MS);
        let failed = TransportEvent::Failed { qpn: a, status: Status::RetryExceeded };
        assert_eq!(net.program(0, a).events.last(), Some(&failed), "seed {seed}");
        net.program(1, d).posted.push_back(8);
        net.submit(0, c, SEND, &[1; 8]).unwrap();
        // Once it begins anew, too, they reach each other.
        net.reset(0, a);
        net.name(0, a, b);
        net.program(1, b).posted = [8].into();
        net.program(1, b).taken.clear();
        net.submit(0, a, SEND, &[2; 8]).unwrap();
        net.run(20 * MS);
        assert_eq!(net.program(1, d).taken, [[1; 8]], "seed {seed}");
        assert_eq!(net.program(1, b).taken, [[2; 8]], "seed {seed}");
    }
}
