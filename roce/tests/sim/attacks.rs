//! Attacks on Reliable Connection from the network, as ReDMArk and NeVerMore describe them: each is
//! stopped here, or named in `docs/security-left.md` with the reason why it cannot be.

use std::net::Ipv6Addr;

use roce::opcode::code;
use roce::wire::aeth::{NakCode, Syndrome};
use roce::wire::{ethernet, icrc, ipv6, ndp, reth};
use roce::{MacAddr, Operation, QpState};

use crate::connection::Options;
use crate::for_each_seed;
use crate::network::round;
use crate::puppet::{PEER_IP, Puppet, RKEY, RQ_PSN, SQ_PSN, Say, VA, ack, answer, rdma, request};
use trial::rng::Rng;

fn puppet() -> Puppet {
    Puppet::new(&Options::default())
}

/// The bytes that the peer may write to.
fn memory(puppet: &Puppet) -> &[u8] {
    &puppet.node.memory.regions[&RKEY].bytes
}

/// A WRITE that is right in everything but its PSN.
fn write(psn: u32) -> Say {
    rdma(code::WRITE_ONLY, psn, 0, 64, vec![0x66; 64])
}

/// The victim's connection works as if nothing had happened.
fn assert_unharmed(puppet: &mut Puppet) {
    assert_eq!(puppet.state(), QpState::Rts);
    assert!(memory(puppet).iter().all(|byte| *byte == 0), "memory was written");
    let psn = puppet.node.stack.query_qp(puppet.qpn).unwrap().rq_psn.value();
    assert_eq!(psn, RQ_PSN, "a forged packet was taken for the next one");
    let sent = puppet.say(&[write(RQ_PSN)]);
    assert!(sent.iter().any(|it| matches!(it.syndrome, Some(Syndrome::Ack { .. }))), "{sent:?}");
    assert_eq!(memory(puppet)[..64], [0x66; 64]);
    puppet.post(Operation::Write, 8);
    let sent = puppet.drain();
    assert_eq!(sent.len(), 1, "{sent:?}");
    puppet.say(&[ack(SQ_PSN)]);
    assert_eq!(puppet.events().len(), 1, "the victim's own WRITE completes");
}

#[test]
fn a_guessed_psn_writes_nothing_and_fails_nothing() {
    for_each_seed("a_guessed_psn_writes_nothing_and_fails_nothing", 1, |seed| {
        let (mut puppet, mut rng) = (puppet(), Rng::new(seed));
        let mut answers = 0;
        for _ in 0..20_000 {
            let psn = rng.below(1 << 24) as u32;
            if psn == RQ_PSN {
                continue;
            }
            answers += puppet.say(&[write(psn)]).len();
        }
        // Half of the guesses lie ahead and report one gap between them; the other half lie behind
        // and are acknowledged as repetitions. Nothing is answered more than once.
        assert!(answers <= 20_000, "{answers} answers to 20,000 packets");
        let counters = *puppet.node.stack.counters();
        assert!(counters.out_of_sequence > 5_000 && counters.duplicate_request > 5_000);
        assert!(puppet.events().iter().all(|event| matches!(event, roce::Event::Async { .. })));
        assert_unharmed(&mut puppet);
    });
}

#[test]
fn a_guessed_qpn_reaches_nobody() {
    let (mut puppet, mut rng) = (puppet(), Rng::new(1));
    for n in 0..20_000_u64 {
        let dest_qpn = (rng.below(1 << 24) as u32).max(0x100);
        let say = Say { dest_qpn: Some(dest_qpn), ..write(RQ_PSN) };
        assert!(puppet.say(&[say]).is_empty());
        assert_eq!(puppet.node.stack.counters().drop_unknown_qp, n + 1);
    }
    assert_unharmed(&mut puppet);
}

/// The frames that must be dropped in silence, with any other fields, and the counter of each.
#[test]
fn one_bad_frame_of_any_opcode_moves_no_queue_pair_to_err() {
    for opcode in 0..=u8::MAX {
        let mut puppet = puppet();
        puppet.post(Operation::Write, 8);
        puppet.drain();
        let good = Say { opcode, ..write(RQ_PSN) };
        let mut broken_seal = puppet.frame(&good);
        let last = broken_seal.len() - 1;
        broken_seal[last] ^= 0x10;
        let mut other_address = puppet.frame(&good);
        // The last byte of the destination address, so that the card is not meant; the header's
        // checksum and the seal are right.
        let [ip, checksum] = [33, 25];
        other_address[ip] = other_address[ip].wrapping_add(1);
        other_address[checksum] = other_address[checksum].wrapping_sub(1);
        icrc::append(&mut other_address).unwrap();
        let stranger = std::net::Ipv4Addr::new(10, 7, 0, 98);
        let frames = [
            broken_seal,
            other_address,
            puppet.frame(&Say { source: Some(stranger), ..good.clone() }),
            puppet.frame(&Say { pkey: Some(0x1234), ..good.clone() }),
            puppet.frame(&Say { dest_qpn: Some(0x12), ..good }),
        ];
        let before = *puppet.node.stack.counters();
        for frame in frames {
            let sent = puppet.feed(&[frame]);
            assert!(sent.is_empty(), "opcode {opcode:#x}: {sent:?}");
            assert_eq!(puppet.state(), QpState::Rts, "opcode {opcode:#x}");
            assert!(puppet.events().is_empty(), "opcode {opcode:#x}");
        }
        let after = puppet.node.stack.counters();
        let drops = |counters: &roce::Counters| {
            counters.rx_icrc_encapsulated
                + counters.drop_not_for_us
                + counters.drop_malformed
                + counters.drop_wrong_source
                + counters.drop_bad_pkey
                + counters.drop_unknown_qp
                + counters.drop_bad_opcode
        };
        assert!(drops(after) >= drops(&before) + 5, "opcode {opcode:#x}: not all are counted");
        assert_eq!(after.rcvd_pkts, before.rcvd_pkts, "opcode {opcode:#x} reached the QP");
    }
}

#[test]
fn an_answer_outside_the_window_acknowledges_and_fails_nothing() {
    let (mut puppet, mut rng) = (puppet(), Rng::new(1));
    for _ in 0..4 {
        puppet.post(Operation::Write, 8);
    }
    puppet.drain();
    let fatal = [
        Syndrome::Nak(NakCode::InvalidRequest),
        Syndrome::Nak(NakCode::RemoteAccessError),
        Syndrome::Nak(NakCode::RemoteOperationalError),
        Syndrome::Nak(NakCode::PsnSequenceError),
        Syndrome::RnrNak { timer: 1 },
        Syndrome::Ack { credits: 3 },
    ];
    for _ in 0..20_000 {
        let psn = rng.below(1 << 24) as u32;
        if (SQ_PSN..SQ_PSN + 4).contains(&psn) {
            continue;
        }
        puppet.say(&[answer(psn, rng.pick(&fatal))]);
        assert_eq!(puppet.state(), QpState::Rts);
        assert!(puppet.events().is_empty());
    }
    puppet.say(&[ack(SQ_PSN + 3)]);
    assert_eq!(puppet.events().len(), 1, "all four are complete");
}

#[test]
fn a_spoofed_source_reaches_nobody_even_with_everything_else_known() {
    let mut puppet = puppet();
    for last in (0..=u8::MAX).filter(|last| *last != PEER_IP.octets()[3]) {
        let source = std::net::Ipv4Addr::new(10, 7, 0, last);
        assert!(puppet.say(&[Say { source: Some(source), ..write(RQ_PSN) }]).is_empty());
        puppet.say(&[Say { source: Some(source), ..request(code::SEND_ONLY, RQ_PSN, vec![1]) }]);
    }
    let counters = puppet.node.stack.counters();
    // One of them is its own, and is nobody else's.
    assert_eq!((counters.drop_wrong_source, counters.drop_martian_source), (2 * 254, 2));
    assert_unharmed(&mut puppet);
}

/// An IPv6 packet from a station that no queue pair has as its peer.
fn over_ipv6(
    puppet: &Puppet,
    source: Ipv6Addr,
    destination: Ipv6Addr,
    part: (u8, &[u8]),
) -> Vec<u8> {
    let (next_header, payload) = part;
    let header = ethernet::Repr {
        destination: puppet.node.mac,
        source: STRANGER,
        tag: None,
        ethertype: ethernet::EtherType::IPV6,
    };
    let ip = ipv6::Repr {
        traffic_class: 0,
        flow_label: 0,
        next_header,
        hop_limit: ndp::HOP_LIMIT,
        source,
        destination,
        payload_length: payload.len() as u16,
    };
    [&header.to_bytes()[..], &ip.to_bytes(), payload].concat()
}

/// A message of neighbour discovery, sealed for these addresses.
fn neighbour_message(
    puppet: &Puppet,
    source: Ipv6Addr,
    destination: Ipv6Addr,
    mut message: [u8; ndp::WITH_ADDRESS],
) -> Vec<u8> {
    message[2..4].fill(0);
    let length = message.len() as u8;
    let addresses = [source.octets(), destination.octets()].concat();
    let next = ipv6::NEXT_HEADER_ICMPV6;
    let sum = checksum(&[&addresses[..], &[0, 0, 0, length, 0, 0, 0, next], &message].concat());
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    over_ipv6(puppet, source, destination, (next, &message))
}

const STRANGER: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x66]);

/// RC-14: the same 128 bits name the peer, but no packet of IPv6 has them.
#[test]
fn mapped_addresses_in_ipv6_reach_no_connection_and_turn_no_neighbour_away() {
    let mut puppet = puppet();
    let [peer, own] = [PEER_IP, puppet.node.ipv4].map(|ip| ip.to_ipv6_mapped());
    let link_local = puppet.node.mac.link_local();
    let datagram = puppet.frame(&write(RQ_PSN)).split_off(34);
    for (source, destination) in [(peer, own), (peer, link_local), (link_local, own)] {
        let roce = (ipv6::NEXT_HEADER_UDP, &datagram[..]);
        let mut frame = over_ipv6(&puppet, source, destination, roce);
        icrc::append(&mut frame).unwrap();
        assert!(puppet.feed(&[frame]).is_empty());
    }
    let counters = puppet.node.stack.counters();
    assert_eq!((counters.drop_not_for_us, counters.drop_martian_source), (2, 1));
    assert_unharmed(&mut puppet);

    // Silence makes the stack ask for its peer again, by ARP.
    puppet.post(Operation::Write, 8);
    puppet.drain();
    let asked = |puppet: &Puppet| puppet.node.stack.counters().sent_arp_requests;
    let before = asked(&puppet);
    while asked(&puppet) == before {
        puppet.time_out();
    }
    let stranger = STRANGER.link_local();
    for (source, destination) in [(peer, own), (peer, link_local), (stranger, link_local)] {
        let told = ndp::advertisement(peer, STRANGER, destination);
        let frame = neighbour_message(&puppet, source, destination, told);
        puppet.feed(&[frame]);
    }
    puppet.post(Operation::Write, 8);
    let sent = round(&mut puppet.node, puppet.now);
    assert!(sent.iter().all(|frame| frame[..6] != STRANGER.0), "the stranger got a frame");
    assert!(!sent.is_empty());

    // Nor is a question for an IPv4 address in this form answered.
    let replies = |puppet: &Puppet| puppet.node.stack.counters().ndp_replies;
    for (target, answered) in [(own, 0), (link_local, 1)] {
        let asked = ndp::solicitation(target, STRANGER, stranger);
        let frame = neighbour_message(&puppet, stranger, link_local, asked);
        puppet.node.inbox.push(frame.into());
        round(&mut puppet.node, puppet.now);
        assert_eq!(replies(&puppet), answered, "{target}");
    }
}

#[test]
fn an_address_range_that_wraps_around_opens_nothing() {
    for opcode in [code::WRITE_ONLY, code::READ_REQUEST] {
        for (va, dma_length) in [
            (u64::MAX, 64),
            (u64::MAX - 62, 64),
            (VA.wrapping_sub(1), 64),
            (VA - 64, 65),
            (VA + 65_536, 64),
            (VA + 65_536 - 63, 64),
            (0u64.wrapping_sub(VA), 64),
            (1 << 63, 64),
        ] {
            let mut puppet = puppet();
            let payload = if opcode == code::WRITE_ONLY { vec![0x66; 64] } else { Vec::new() };
            let dma_length = if opcode == code::WRITE_ONLY { 64 } else { dma_length };
            let reth = Some(reth::Repr { va, rkey: RKEY, dma_length });
            let sent = puppet.say(&[Say { reth, ..request(opcode, RQ_PSN, payload) }]);
            let refused = Some(Syndrome::Nak(NakCode::RemoteAccessError));
            assert_eq!(sent[0].syndrome, refused, "{va:#x} of {dma_length} bytes: {sent:?}");
            assert!(memory(&puppet).iter().all(|byte| *byte == 0));
        }
    }
}

#[test]
fn a_request_for_no_bytes_touches_nothing_whatever_key_it_names() {
    let mut puppet = puppet();
    let reth = Some(reth::Repr { va: u64::MAX, rkey: 0xdead_beef, dma_length: 0 });
    puppet.say(&[Say { reth, ..request(code::WRITE_ONLY, RQ_PSN, Vec::new()) }]);
    let sent = puppet.say(&[Say { reth, ..request(code::READ_REQUEST, RQ_PSN + 1, Vec::new()) }]);
    assert!(sent.iter().all(|it| it.payload.is_empty()), "{sent:?}");
    assert_eq!(puppet.state(), QpState::Rts);
    assert!(memory(&puppet).iter().all(|byte| *byte == 0));
}

#[test]
fn read_only_memory_is_read_and_not_written() {
    let mut puppet = puppet();
    puppet.node.memory.regions.get_mut(&RKEY).unwrap().writable = false;
    let sent = puppet.say(&[rdma(code::READ_REQUEST, RQ_PSN, 0, 8, Vec::new())]);
    assert_eq!(sent[0].payload.len(), 8);
    let sent = puppet.say(&[write(RQ_PSN + 1)]);
    assert_eq!(sent[0].syndrome, Some(Syndrome::Nak(NakCode::RemoteAccessError)));
    assert!(memory(&puppet).iter().all(|byte| *byte == 0));
}

/// An attacker gets less out of the port than it puts in: a stranger's frames are never answered
/// by more frames.
#[test]
fn no_frame_of_a_stranger_is_answered_by_more_than_one() {
    let (mut puppet, mut rng) = (puppet(), Rng::new(1));
    let mut answered = 0;
    for _ in 0..5_000 {
        let source = std::net::Ipv4Addr::new(10, 9, rng.below(256) as u8, rng.below(256) as u8);
        let opcode = rng.below(256) as u8;
        let mut frame = puppet.frame(&Say { opcode, source: Some(source), ..write(RQ_PSN) });
        // Half of them are made an ICMP echo, which is answered, or something else.
        if rng.chance(5_000) {
            let protocol = rng.pick(&[1, 1, 17, 58]);
            let sum = u16::from_be_bytes([frame[24], frame[25]]);
            let sum = sum.wrapping_add(u16::from(frame[23])).wrapping_sub(u16::from(protocol));
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
            frame[23] = protocol;
            frame[34..42].copy_from_slice(&[8, 0, 0, 0, 0, 1, 0, 1]);
            let sum = checksum(&frame[34..]);
            frame[36..38].copy_from_slice(&sum.to_be_bytes());
        }
        puppet.node.inbox.push(frame.into());
        let answers = round(&mut puppet.node, puppet.now);
        assert!(answers.len() <= 1, "{} answers", answers.len());
        answered += answers.len();
    }
    assert!(answered > 1_000, "the echo requests are answered");
    assert_unharmed(&mut puppet);
}

/// The Internet checksum.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}
