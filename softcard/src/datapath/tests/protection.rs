//! Cards that seal their frames, and take only sealed ones.

use std::collections::HashSet;
use std::net::IpAddr;

use fpga_regs::engine::wqe::SendOpcode;
use psp::{Header, Peer, Secret, Version, param};
use roce::opcode::code;
use roce::wire::{bth, ethernet, icrc, ipv6, reth, udp};
use trial::rng::{Rng, pattern};
use trial::share::share;

use super::pair::{MEMORY, Pair};
use super::rig::{REGION, Rig, VA};
use super::*;
use crate::congestion::{Congestion, Reaction};
use crate::port::{FaultSource, Faults};
use crate::protection::Protection;

/// A cable on which a stranger records frames, and inserts others.
#[derive(Clone, Default)]
struct Cable {
    seen: Rc<RefCell<Vec<Vec<u8>>>>,
    /// For the second card.
    injected: Rc<RefCell<VecDeque<Frame>>>,
}

struct Tap {
    port: Box<dyn Port>,
    cable: Cable,
    is_second: bool,
}

impl Port for Tap {
    fn send(&mut self, now: u64, burst: &mut VecDeque<Frame>) {
        self.cable.seen.borrow_mut().extend(burst.iter().map(|frame| frame.as_slice().to_vec()));
        self.port.send(now, burst);
    }

    fn receive(&mut self, now: u64, into: &mut VecDeque<Frame>, budget: usize) {
        if self.is_second {
            into.append(&mut self.cable.injected.borrow_mut());
        }
        self.port.receive(now, into, budget);
    }

    fn room(&self) -> usize {
        self.port.room()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

fn address(mac: [u8; 6]) -> IpAddr {
    MacAddr(mac).link_local().into()
}

fn protection(version: Version, peer: [u8; 6], key: u8) -> Protection {
    let peer = Peer { addresses: vec![address(peer)], secret: Secret::new([key; 32]) };
    Protection { version, port: param::UDP_PORT, peers: vec![peer] }
}

/// Two cards on a cable.
fn bare() -> (Pair, Cable) {
    on(1, &Reaction::default(), ["", ""])
}

/// Two cards of so many queue pairs on a cable of these faults, towards each.
fn on(qps: usize, reaction: &Reaction, faults: [&str; 2]) -> (Pair, Cable) {
    let cable = Cable::default();
    let pair = Pair::behind(qps, reaction, |card, port, pool| {
        let tap = Box::new(Tap { port, cable: cable.clone(), is_second: card == 1 });
        if faults[card].is_empty() {
            return tap;
        }
        let source = FaultSource { seed: 1, card, layer: 0 };
        Box::new(Faults::new(tap, &faults[card].parse().unwrap(), source, pool))
    });
    (pair, cable)
}

/// Two cards of which each has a key for the other.
fn pair(version: Version, keys: [u8; 2]) -> (Pair, Cable) {
    let (mut pair, cable) = bare();
    seal(&mut pair, version, keys, param::EPOCH_PACKETS);
    (pair, cable)
}

/// Gives each of two cards a key for the other, and epochs of so many packets.
fn seal(pair: &mut Pair, version: Version, keys: [u8; 2], packets: u32) {
    for (number, key) in keys.into_iter().enumerate() {
        let (rig, peer) = match number {
            0 => (&mut pair.one, PEER),
            _ => (&mut pair.other, OWN),
        };
        let protection = protection(version, peer, key);
        let associations = protection.associations().with_epochs_of(packets);
        let (sealing, opening) = protection.steps_of(associations);
        rig.card.network.steps.sealing = Some(sealing);
        rig.card.network.steps.opening = Some(opening);
    }
}

/// The packets that a card refused, or could not send.
fn refused(rig: &Rig) -> u64 {
    let names = [
        "psp_stale_events",
        "psp_rx_auth_fail",
        "psp_rx_error",
        "psp_rx_bad",
        "psp_rx_replayed",
        "psp_rx_in_clear",
        "psp_tx_error",
        "port_frames_not_opened",
        "port_frames_misattributed",
    ];
    names.into_iter().map(|name| counter(rig, name)).sum()
}

/// Has the first card carry a message of any kind, and of any length up to so many bytes, and looks at each byte.
fn carry_some(pair: &mut Pair, rng: &mut Rng, longest: u64) {
    let length = rng.between(1, longest) as u32;
    let mut bytes = vec![0; length as usize];
    pattern(rng.next(), 0, &mut bytes);
    let opcode = rng.pick(&[SendOpcode::Write, SendOpcode::Send, SendOpcode::Read]);
    let (from, to) = (&pair.one, &mut pair.other);
    match opcode {
        SendOpcode::Read => to.write(REGION, &bytes),
        _ => from.write(MEMORY, &bytes),
    }
    if opcode == SendOpcode::Send {
        to.post_receive(MEMORY, length);
    }
    pair.one.post_from(MEMORY, opcode, length, pair.other.rkey);
    let ended = loop {
        pair.step();
        if let Some(ended) = pair.one.poll() {
            break ended;
        }
    };
    assert_eq!(ended.status, Status::Success, "{opcode:?}");
    let (rig, place) = match opcode {
        SendOpcode::Read => (&pair.one, MEMORY),
        SendOpcode::Send => (&pair.other, MEMORY),
        _ => (&pair.other, REGION),
    };
    assert!(rig.read(place, bytes.len()) == bytes, "{opcode:?} of {length} bytes");
    pair.other.poll_all();
}

fn counter(rig: &Rig, name: &str) -> u64 {
    let counters = rig.card.network.counters();
    counters.iter().find(|(it, _)| *it == name).map_or(0, |(_, value)| *value)
}

/// The bytes behind the UDP header of a frame over IPv6.
const PACKET: usize = ethernet::LENGTH + ipv6::LENGTH + udp::LENGTH;

#[test]
fn messages_pass_sealed_and_no_initialization_vector_comes_twice() {
    for version in Version::ALL {
        let (mut pair, cable) = pair(version, [7, 7]);
        let bytes: Vec<u8> = (0..5000_u32).map(|at| (at * 7) as u8).collect();
        pair.one.write(MEMORY, &bytes);
        pair.other.post_receive(MEMORY, 5000);
        for opcode in [SendOpcode::Write, SendOpcode::Send] {
            assert_eq!(pair.carry(opcode, 5000).unwrap().status, Status::Success, "{version}");
        }
        assert_eq!(pair.other.read(REGION, 5000), bytes);
        assert_eq!(pair.other.read(MEMORY, 5000), bytes);
        pair.one.write(MEMORY, &[0; 5000]);
        assert_eq!(pair.carry(SendOpcode::Read, 5000).unwrap().status, Status::Success);
        assert_eq!(pair.one.read(MEMORY, 5000), bytes);

        let mut vectors = HashSet::new();
        let tapped = cable.seen.borrow();
        assert!(tapped.len() > 15, "{}", tapped.len());
        for frame in tapped.iter() {
            let (udp, packet) = udp::Header::new(&frame[PACKET - udp::LENGTH..]).unwrap();
            assert_eq!(udp.destination_port(), 1000, "nothing is in the clear");
            let header = Header::parse(packet).unwrap();
            assert_eq!(header.version, version);
            assert!(vectors.insert((frame[6..12].to_vec(), header.spi, header.iv)));
            let shows = frame.windows(16).any(|seen| bytes.windows(16).any(|own| own == seen));
            assert!(!shows || !version.encrypts(), "it is readable");
        }
        let shown = tapped.iter().any(|frame| frame.windows(64).any(|it| *it == bytes[..64]));
        assert_eq!(shown, !version.encrypts(), "what is only authenticated is to be read");
        let sealed = counter(&pair.one, "psp_tx_packets") + counter(&pair.other, "psp_tx_packets");
        assert_eq!(sealed, tapped.len() as u64);
        let opened = counter(&pair.one, "psp_rx_packets") + counter(&pair.other, "psp_rx_packets");
        assert_eq!(opened, sealed);
    }
}

#[test]
fn a_wrong_key_carries_nothing() {
    let (mut pair, _) = pair(Version::AesGcm128, [7, 8]);
    pair.one.write(MEMORY, &[5; 64]);
    assert!(pair.carry(SendOpcode::Write, 64).is_none());
    assert_eq!(pair.other.read(REGION, 64), [0; 64]);
    assert_eq!(counter(&pair.other, "psp_rx_auth_fail"), 1);
    assert_eq!(counter(&pair.other, "psp_rx_packets"), 0);
}

/// A stranger on the cable inserts recorded frames, changed ones, and frames that were never sealed.
#[test]
fn what_an_injector_sends_changes_nothing() {
    let (mut pair, cable) = pair(Version::AesGcm128, [7, 7]);
    pair.one.write(MEMORY, &[5; 64]);
    assert_eq!(pair.carry(SendOpcode::Write, 64).unwrap().status, Status::Success);
    assert_eq!(pair.other.read(REGION, 64), [5; 64]);
    pair.other.write(REGION, &[0; 64]);
    let request = cable.seen.borrow()[0].clone();
    let heard = pair.other.card.network.stack.counters().rcvd_pkts;
    let mut inject = |frame: &[u8]| {
        cable.injected.borrow_mut().extend(Frame::from_bytes(frame));
        pair.work();
    };
    inject(&request);
    // The header, the index of the key, the vector, the cookie, the encrypted bytes, the check value.
    for at in [PACKET + 1, PACKET + 7, PACKET + 15, PACKET + 23, PACKET + 40, request.len() - 1] {
        let mut changed = request.clone();
        // A vector that has not come.
        changed[PACKET + 14] ^= 1;
        changed[at] ^= 4;
        inject(&changed);
    }
    // Cut short, though its lengths say so.
    let mut cut = request[..PACKET + 20].to_vec();
    cut[18..20].copy_from_slice(&28_u16.to_be_bytes());
    cut[58..60].copy_from_slice(&28_u16.to_be_bytes());
    inject(&cut);
    for (name, count) in [
        ("psp_rx_replayed", 1),
        ("psp_rx_bad", 2),
        ("psp_stale_events", 1),
        ("psp_rx_auth_fail", 4),
        ("port_frames_not_opened", 8),
    ] {
        assert_eq!(counter(&pair.other, name), count, "{name}");
    }
    // What its stack would take, had the card no steps.
    let steps = std::mem::take(&mut pair.one.card.network.steps);
    assert!(pair.carry(SendOpcode::Write, 64).is_none());
    pair.one.card.network.steps = steps;
    assert_ne!(counter(&pair.other, "psp_rx_in_clear"), 0);
    assert_eq!(pair.other.read(REGION, 64), [0; 64]);
    let counters = pair.other.card.network.stack.counters();
    assert_eq!(counters.rcvd_pkts, heard, "nothing came to the stack");
}

/// NeVerMore's first attack: a queue pair of an ordinary user's, on the same card as the victim's, and aimed at the victim's
/// peer. Its packets have the right addresses, and the card seals them as all others.
#[test]
fn a_queue_pair_beside_the_peers_does_not_speak_for_it() {
    for protected in [false, true] {
        let (mut pair, _) = either(protected);
        pair.one.make_another();
        pair.one.connect(PEER, pair.other.qpn);
        pair.one.write(MEMORY, &[0x66; 64]);
        // Where the packet is taken, the victim has its acknowledgement.
        assert!(pair.carry(SendOpcode::Write, 64).is_none());
        let arrived = if protected { [0; 64] } else { [0x66; 64] };
        assert_eq!(pair.other.read(REGION, 64), arrived);
        let refused = counter(&pair.other, "port_frames_misattributed");
        assert_eq!(refused, u64::from(protected));
        // The victim's packet has the same PSN, and is a repetition then: it seems to arrive.
        pair.one.drive_next();
        pair.one.write(MEMORY, &[0x11; 64]);
        assert_eq!(pair.carry(SendOpcode::Write, 64).unwrap().status, Status::Success);
        let arrived = if protected { [0x11; 64] } else { [0x66; 64] };
        assert_eq!(pair.other.read(REGION, 64), arrived);
    }
}

/// A card is no such peer of its own: its frames to itself are sealed by a key that no other card has.
#[test]
fn peers_without_a_key_and_groups_are_refused() {
    let (mut pair, _) = pair(Version::AesGcm128, [7, 7]);
    let network = &mut pair.one.card.network;
    let gid = |ip: &str| Gid::from_ipv6(ip.parse().unwrap());
    for stranger in [gid("fe80::9"), gid("ff0e::1"), Gid::from_ipv4([10, 0, 0, 9].into())] {
        let refused = network.check_peer(stranger).unwrap_err();
        assert_eq!(refused, roce::Error::Unprotected { dgid: stranger });
        assert!(refused.to_string().contains("--psp-peers"), "{refused}");
    }
    let own = network.stack.gid(0).unwrap();
    for peer in [Gid::from_ipv6(MacAddr(PEER).link_local()), own] {
        assert_eq!(network.check_peer(peer), Ok(()));
    }
    let group = network.set_member(0, Qpn::new(pair.one.qpn).unwrap(), gid("ff0e::1"), true);
    assert_eq!(group, Err(roce::Error::Unprotected { dgid: gid("ff0e::1") }));
}

/// A RoCE packet that a host without the card's key sends with the first card's addresses.
fn forged(transport: &bth::Repr, rest: &[u8]) -> Frame {
    let payload = [&transport.to_bytes()[..], rest, &[0; icrc::LENGTH]].concat();
    let udp = udp::Repr {
        source_port: 0xc000,
        destination_port: 4791,
        payload_length: payload.len() as u16,
    };
    let ip = ipv6::Repr {
        traffic_class: 0,
        flow_label: 0,
        next_header: ipv6::NEXT_HEADER_UDP,
        hop_limit: 64,
        source: MacAddr(OWN).link_local(),
        destination: MacAddr(PEER).link_local(),
        payload_length: (payload.len() + udp::LENGTH) as u16,
    };
    let ethernet = ethernet::Repr {
        destination: MacAddr(PEER),
        source: MacAddr(OWN),
        tag: None,
        ethertype: ethernet::EtherType::IPV6,
    };
    let headers = [&ethernet.to_bytes()[..], &ip.to_bytes(), &udp.to_bytes()].concat();
    let mut frame = Frame::from_bytes(&[headers, payload].concat()).unwrap();
    frame.seal();
    frame
}

/// Two cards on a cable on which everything is sealed, or in the clear.
fn either(protected: bool) -> (Pair, Cable) {
    match protected {
        true => pair(Version::AesGcm128, [7, 7]),
        false => bare(),
    }
}

/// NeVerMore's second attack: notifications of congestion that no peer has sent, which slow a connection down.
#[test]
fn a_forged_notification_of_congestion_is_heard_in_the_clear_alone() {
    for protected in [false, true] {
        let (mut pair, cable) = either(protected);
        let transport = bth::Repr {
            opcode: code::CNP,
            pkey: 0xffff,
            becn: true,
            dest_qpn: pair.other.qpn,
            ..bth::Repr::default()
        };
        cable.injected.borrow_mut().push_back(forged(&transport, &[0; 16]));
        pair.work();
        let counters = pair.other.card.network.stack.counters();
        let heard = counters.rp_cnp_handled + counters.rp_cnp_ignored;
        assert_eq!(heard, u64::from(!protected));
        assert_eq!(counter(&pair.other, "psp_rx_in_clear"), u64::from(protected));
    }
}

/// ReDMArk's first attacks, by a stranger who has read all numbers on the cable: a WRITE with the peer's key, and one
/// whose key is wrong, which ends the connection.
#[test]
fn a_forged_write_is_taken_in_the_clear_alone() {
    for protected in [false, true] {
        for is_known in [false, true] {
            let (mut pair, cable) = either(protected);
            let transport = bth::Repr {
                opcode: code::WRITE_ONLY,
                pkey: 0xffff,
                dest_qpn: pair.other.qpn,
                ack_request: true,
                ..bth::Repr::default()
            };
            let rkey = if is_known { pair.other.rkey } else { pair.other.rkey ^ 1 };
            let reth = reth::Repr { va: VA, rkey, dma_length: 64 };
            let rest = [&reth.to_bytes()[..], &[0x66; 64]].concat();
            cable.injected.borrow_mut().push_back(forged(&transport, &rest));
            pair.work();
            let is_written = is_known && !protected;
            assert_eq!(pair.other.read(REGION, 64), [if is_written { 0x66 } else { 0 }; 64]);
            let ends = !is_known && !protected;
            assert_eq!(pair.other.state(), if ends { QpState::Err } else { QpState::Rts });
            assert_eq!(counter(&pair.other, "psp_rx_in_clear"), u64::from(protected));
        }
    }
}

/// Each key has sixteen packets here, and not millions.
#[test]
fn keys_are_rotated_under_traffic_without_loss() {
    let mut rng = Rng::new(1);
    let (mut pair, _) = bare();
    seal(&mut pair, Version::AesGcm256, [7, 7], 16);
    for _ in 0..300 {
        carry_some(&mut pair, &mut rng, 6000);
    }
    pair.work();
    for (rig, peer) in [(&pair.one, &pair.other), (&pair.other, &pair.one)] {
        let sent = counter(rig, "psp_tx_packets");
        assert_eq!(counter(rig, "psp_key_rotations"), (sent - 1) / 16);
        assert!(sent > 500, "{sent}");
        assert_eq!((counter(peer, "psp_rx_packets"), refused(peer)), (sent, 0));
        assert_eq!(rig.card.network.stack.counters().retransmitted_pkts, 0);
    }
}

#[test]
fn keys_are_rotated_on_a_bad_cable_and_every_message_arrives() {
    let mut rng = Rng::new(2);
    let cable = "loss=2%,dup=2%,reorder=5%,corrupt=1%";
    let (mut pair, _) = on(1, &Reaction::default(), [cable, cable]);
    seal(&mut pair, Version::AesGcm128, [7, 7], 16);
    for _ in 0..300 {
        carry_some(&mut pair, &mut rng, 6000);
    }
    for rig in [&pair.one, &pair.other] {
        assert!(counter(rig, "psp_key_rotations") > 50);
    }
    assert_ne!(pair.one.card.network.stack.counters().retransmitted_pkts, 0);
}

/// What is marked on the way is told to the sender by notifications that are sealed as all else.
#[test]
fn notifications_of_congestion_pass_sealed() {
    let reaction = "dcqcn-mlx5".parse::<Congestion>().unwrap().reaction(None).unwrap();
    let narrow = "rate=1G,buffer=128k,ecn=8k:32k:10%";
    let (mut pair, cable) = on(1, &reaction, ["", narrow]);
    seal(&mut pair, Version::AesGcm128, [7, 7], param::EPOCH_PACKETS);
    pair.one.write(MEMORY, &[5; 0x1_0000]);
    for _ in 0..20 {
        assert_eq!(pair.carry(SendOpcode::Write, 0x1_0000).unwrap().status, Status::Success);
    }
    let [one, other] = [&pair.one, &pair.other].map(|rig| *rig.card.network.stack.counters());
    assert!(other.np_cnp_sent > 0 && one.rp_cnp_handled > 0, "{}", other.np_cnp_sent);
    assert_eq!(one.rp_cnp_handled + one.rp_cnp_ignored, other.np_cnp_sent);
    for frame in cable.seen.borrow().iter() {
        let (udp, _) = udp::Header::new(&frame[PACKET - udp::LENGTH..]).unwrap();
        assert_eq!(udp.destination_port(), param::UDP_PORT, "nothing is in the clear");
    }
    assert_eq!((refused(&pair.one), refused(&pair.other)), (0, 0));
}

/// 100,000, or as many as PSP_PACKETS says, of several queue pairs, on a cable where they overtake each other.
#[test]
fn of_many_good_packets_none_is_refused() {
    let packets =
        std::env::var("PSP_PACKETS").map_or(100_000 / share() as u64, |it| it.parse().unwrap());
    let mut rng = Rng::new(3);
    let (mut pair, cable) = on(4, &Reaction::default(), ["reorder=1%", "reorder=1%"]);
    seal(&mut pair, Version::AesGcm128, [7, 7], 5_000);
    while counter(&pair.one, "psp_rx_packets") + counter(&pair.other, "psp_rx_packets") < packets {
        // Most are short, for the sake of time.
        let longest = rng.pick(&[64, 64, 64, 64, 64, 64, 64, 3000]);
        carry_some(&mut pair, &mut rng, longest);
        pair.drive_next();
        cable.seen.borrow_mut().clear();
    }
    pair.work();
    for (rig, peer) in [(&pair.one, &pair.other), (&pair.other, &pair.one)] {
        assert_eq!(refused(rig), 0);
        assert_eq!(counter(rig, "psp_tx_packets"), counter(peer, "psp_rx_packets"));
    }
}
