//! A port that a host's network stack shares, between a peer's frames and those of the host.
//!
//! Checked promises: frames on which the card acts are the card's, and no other side sees those that it
//! answers, so that every question has one answer; and no frame of the host's reaches, at the peer, the queue
//! pair that the card's is connected to, unless the card knows it as forged.

use std::task::Poll;

use arbitrary::Unstructured;
use roce::wire::{arp, bth, ethernet, icrc, ipv4, ipv6, ndp, udp};
use roce::{
    AccessDenied, AccessFlags, AddressVector, Gid, IcrcPolicy, Instant, MacAddr, Owner, PathMtu,
    Psn, QpAttributes, Qpn, ReceiveError, RemoteAccess, RemoteRange, ResponderMemory, Stack,
    StackConfig, TakenReceive, Target,
};

use crate::Outcome;

/// An end of the cable: Ethernet address, IPv4 address and the number of its queue pair.
type End = (MacAddr, std::net::Ipv4Addr, u32);

const CARD: End = (MacAddr([2, 0, 0, 0, 0, 1]), std::net::Ipv4Addr::new(10, 0, 0, 1), 0x11);
const PEER: End = (MacAddr([2, 0, 0, 0, 0, 2]), std::net::Ipv4Addr::new(10, 0, 0, 2), 0x23);

/// A user that has no memory and no receive requests.
struct Nobody;

impl ResponderMemory for Nobody {
    fn check_remote(
        &mut self,
        _: Target,
        _: RemoteRange,
        _: RemoteAccess,
    ) -> Poll<Result<(), AccessDenied>> {
        Poll::Ready(Err(AccessDenied::Memory))
    }

    fn take_receive(&mut self, _: Target) -> Poll<Result<TakenReceive, ReceiveError>> {
        Poll::Ready(Err(ReceiveError::Empty))
    }
}

pub fn run(u: &mut Unstructured<'_>) -> Outcome {
    let over_ipv6 = u.arbitrary()?;
    while !u.is_empty() {
        let mut card = connected(CARD, PEER, over_ipv6);
        let frame = frame(u, PEER, CARD)?;
        let owner = card.owner(&frame);
        let [acted, answered] = heard(&mut card, frame);
        assert!(!acted || owner == Owner::Stack, "the card acts on a frame that is {owner:?}'s");
        assert!(!answered || owner == Owner::Stack, "two answer: the frame is {owner:?}'s");

        let mut peer = connected(PEER, CARD, over_ipv6);
        let card = connected(CARD, PEER, over_ipv6);
        let frame = self::frame(u, CARD, PEER)?;
        let forged = card.is_forged(&frame);
        let [reaches, _] = heard(&mut peer, frame);
        assert!(!reaches || forged, "the host speaks for the card");
    }
    Ok(())
}

/// The stack of an end, whose queue pair is connected to the other's.
fn connected(own: End, other: End, over_ipv6: bool) -> Stack {
    let (mac, ipv4, qpn) = own;
    let (mtu_max, icrc_policy) = (PathMtu::Mtu256, IcrcPolicy::CheckAll);
    let mut stack = Stack::new(StackConfig { mac, ipv4, mtu_max, icrc_policy });
    let qpn = Qpn::new(qpn).expect("a small number");
    stack.create_qp(qpn, roce::Service::Rc, 0).expect("room for a QP");
    let (sgid_index, dgid) = match over_ipv6 {
        true => (0, Gid::from_ipv6(other.0.link_local())),
        false => (1, Gid::from_ipv4(other.1)),
    };
    let peer = Qpn::new(other.2).expect("a small number");
    let path = AddressVector::new(sgid_index, dgid);
    let init = QpAttributes::to_init(AccessFlags::all());
    let rtr = QpAttributes::to_rtr(path, mtu_max, peer, Psn::default());
    for change in [init, rtr] {
        stack.modify_qp(Instant(0), qpn, &change).expect("a sound change");
    }
    stack
}

/// Whether a frame reaches the queue pair, and whether it is answered beside RoCE.
fn heard(stack: &mut Stack, mut frame: Vec<u8>) -> [bool; 2] {
    let count = |stack: &Stack, names: &[&str]| -> u64 {
        let counters = stack.counters();
        counters.iter().filter(|(name, _)| names.contains(name)).map(|(_, value)| value).sum()
    };
    let counted = |stack: &Stack| {
        [&["rcvd_pkts"][..], &["arp_replies", "ndp_replies"]].map(|names| count(stack, names))
    };
    let before = counted(stack);
    let _ = stack.receive(Instant(1), &mut frame, 0, &mut Nobody, &mut Vec::new());
    stack.commit(Instant(1), &[]);
    let after = counted(stack);
    [after[0] > before[0], after[1] > before[1]]
}

/// A frame from one end to the other, with a little of it changed.
fn frame(u: &mut Unstructured<'_>, from: End, to: End) -> arbitrary::Result<Vec<u8>> {
    let mut bytes = match u.int_in_range(0..=7)? {
        0 => arp_frame(u, from, to)?,
        1 => solicitation(u, from, to)?,
        _ => roce_frame(u, from, to)?,
    };
    for _ in 0..u.int_in_range(0..=2)? {
        let at = u.choose_index(bytes.len())?;
        bytes[at] = u.arbitrary()?;
    }
    if u.ratio(1, 16)? {
        bytes.truncate(u.choose_index(bytes.len())?);
    }
    if u.ratio(1, 8)? && bytes.len() > 12 {
        let tag = [0x81, 0x00, u.arbitrary()?, u.arbitrary()?];
        bytes.splice(12..12, tag);
    }
    // A changed byte is protected again: it is another frame then, not a broken one.
    if u.ratio(7, 8)? {
        let _ = icrc::append(&mut bytes);
    }
    Ok(bytes)
}

fn header(destination: MacAddr, source: MacAddr, ethertype: ethernet::EtherType) -> Vec<u8> {
    ethernet::Repr { destination, source, tag: None, ethertype }.to_bytes().to_vec()
}

fn roce_frame(u: &mut Unstructured<'_>, from: End, to: End) -> arbitrary::Result<Vec<u8>> {
    let body = u.choose_index(64)? & !3;
    let body = u.bytes(body)?;
    let transport = bth::Repr {
        opcode: u.arbitrary::<u8>()? & if u.ratio(7, 8)? { 0x1f } else { 0xff },
        dest_qpn: *u.choose(&[to.2, to.2, to.2, 1, from.2])?,
        psn: Psn::new(u.int_in_range(0..=1)?),
        pkey: 0xffff,
        ..bth::Repr::default()
    };
    let packet = [&transport.to_bytes()[..], body, &[0; icrc::LENGTH]].concat();
    let udp = udp::Repr {
        source_port: u.arbitrary()?,
        destination_port: if u.ratio(15, 16)? { 4791 } else { u.arbitrary()? },
        payload_length: packet.len() as u16,
    };
    let datagram = [&udp.to_bytes()[..], &packet].concat();
    let payload_length = datagram.len() as u16;
    let (ethertype, ip) = if u.arbitrary()? {
        let ip = ipv4::Repr {
            type_of_service: u.arbitrary()?,
            time_to_live: u.arbitrary()?,
            protocol: ipv4::PROTOCOL_UDP,
            source: from.1,
            destination: to.1,
            payload_length,
        };
        (ethernet::EtherType::IPV4, ip.to_bytes().to_vec())
    } else {
        let ip = ipv6::Repr {
            traffic_class: u.arbitrary()?,
            flow_label: 0,
            next_header: ipv6::NEXT_HEADER_UDP,
            hop_limit: u.arbitrary()?,
            source: from.0.link_local(),
            destination: to.0.link_local(),
            payload_length,
        };
        (ethernet::EtherType::IPV6, ip.to_bytes().to_vec())
    };
    Ok([header(to.0, from.0, ethertype), ip, datagram].concat())
}

fn arp_frame(u: &mut Unstructured<'_>, from: End, to: End) -> arbitrary::Result<Vec<u8>> {
    let operation = if u.arbitrary()? { arp::Operation::Request } else { arp::Operation::Reply };
    let packet = arp::Repr {
        operation,
        sender_mac: from.0,
        sender_ip: from.1,
        target_mac: MacAddr::default(),
        target_ip: to.1,
    };
    let destination = if u.arbitrary()? { MacAddr::BROADCAST } else { to.0 };
    let header = header(destination, from.0, ethernet::EtherType::ARP);
    Ok([&header[..], &packet.to_bytes()].concat())
}

fn solicitation(u: &mut Unstructured<'_>, from: End, to: End) -> arbitrary::Result<Vec<u8>> {
    let (target, source) = (to.0.link_local(), from.0.link_local());
    let group = ndp::solicited_node(target);
    let destination = if u.arbitrary()? { group } else { target };
    let ip = ipv6::Repr {
        traffic_class: 0,
        flow_label: 0,
        next_header: ipv6::NEXT_HEADER_ICMPV6,
        hop_limit: ndp::HOP_LIMIT,
        source,
        destination,
        payload_length: ndp::LENGTH as u16,
    };
    let mut message = [0; ndp::LENGTH];
    message[0] = 135;
    message[8..].copy_from_slice(&target.octets());
    let pseudo_header =
        [&source.octets()[..], &destination.octets(), &[0, 0, 0, ndp::LENGTH as u8, 0, 0, 0, 58]];
    let words = [&pseudo_header.concat()[..], &message].concat();
    let sum: u32 =
        words.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mac = if destination == group {
        roce::MacAddr::of_group(roce::Gid::from_ipv6(group))
    } else {
        to.0
    };
    let header = header(mac, from.0, ethernet::EtherType::IPV6);
    Ok([&header[..], &ip.to_bytes(), &message].concat())
}
