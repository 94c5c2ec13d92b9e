use core::net::{Ipv4Addr, Ipv6Addr};

use fpga_regs::engine::qp::QpState;

use super::super::StackConfig;
use super::*;
use crate::api::IcrcPolicy;
use crate::attributes::{AccessFlags, AddressVector, QpAttributes};
use crate::control;
use crate::path::PortAddresses;
use crate::psn::Psn;
use crate::service::Service;
use crate::types::{Instant, MacAddr, PathMtu};

const OWN: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const PEER: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const OWN_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PEER_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const QPN: u32 = 0x1234;
const PEERS_QPN: u32 = 0x4321;

fn stack() -> Stack {
    let (mtu_max, icrc_policy) = (PathMtu::Mtu4096, IcrcPolicy::CheckAll);
    let mut stack = Stack::new(StackConfig { mac: OWN, ipv4: OWN_IP, mtu_max, icrc_policy });
    stack.create_qp(Qpn::new(QPN).unwrap(), Service::Rc, 0).unwrap();
    stack
}

fn peer() -> PortAddresses {
    PortAddresses::new(PEER, PEER_IP)
}

fn frame(destination: MacAddr, ethertype: EtherType, parts: &[&[u8]]) -> Vec<u8> {
    let header = ethernet::Repr { destination, source: PEER, tag: None, ethertype };
    let mut frame = header.to_bytes().to_vec();
    parts.iter().for_each(|part| frame.extend_from_slice(part));
    frame
}

fn ipv4_frame(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let ip = ipv4::Repr {
        type_of_service: 0,
        time_to_live: 64,
        protocol,
        source: PEER_IP,
        destination: OWN_IP,
        payload_length: payload.len() as u16,
    };
    frame(OWN, EtherType::IPV4, &[&ip.to_bytes(), payload])
}

fn datagram(destination_port: u16, payload: &[u8]) -> Vec<u8> {
    let udp =
        udp::Repr { source_port: 0xc000, destination_port, payload_length: payload.len() as u16 };
    [&udp.to_bytes()[..], payload].concat()
}

fn roce_to(dest_qpn: u32) -> Vec<u8> {
    let transport = bth::Repr { dest_qpn, ..bth::Repr::default() };
    let payload = [&transport.to_bytes()[..], &[0; 4]].concat();
    datagram(param::ROCE_UDP_PORT, &payload)
}

#[test]
fn roce_packets_are_the_stacks_if_it_has_the_qp() {
    let stack = stack();
    let owner = |qpn| stack.owner(&ipv4_frame(ipv4::PROTOCOL_UDP, &roce_to(qpn)));
    assert_eq!(owner(QPN), Owner::Stack);
    for others in [0, 1, 0x11, QPN + 1, 0xff_ffff] {
        assert_eq!(owner(others), Owner::Host, "QP {others:#x}");
    }
}

#[test]
fn over_ipv6_the_same_holds() {
    let (stack, own) = (stack(), OWN.link_local());
    for (qpn, whose) in [(QPN, Owner::Stack), (1, Owner::Host)] {
        let payload = roce_to(qpn);
        let ip = ipv6::Repr {
            traffic_class: 0,
            flow_label: 0,
            next_header: ipv6::NEXT_HEADER_UDP,
            hop_limit: 64,
            source: PEER.link_local(),
            destination: own,
            payload_length: payload.len() as u16,
        };
        let frame = frame(OWN, EtherType::IPV6, &[&ip.to_bytes(), &payload]);
        assert_eq!(stack.owner(&frame), whose);
    }
}

#[test]
fn everything_else_to_this_port_is_the_hosts() {
    let stack = stack();
    let other_port = datagram(4790, &roce_to(QPN)[8..]);
    let mut fragment = ipv4_frame(ipv4::PROTOCOL_UDP, &roce_to(QPN));
    fragment[20] = 0x20;
    let mut tagged = ipv4_frame(ipv4::PROTOCOL_UDP, &roce_to(QPN));
    tagged.splice(12..12, [0x81, 0x00, 0x00, 0x05]);
    for (what, frame) in [
        ("another UDP port", ipv4_frame(ipv4::PROTOCOL_UDP, &other_port)),
        ("ICMP", ipv4_frame(ipv4::PROTOCOL_ICMP, &[8, 0, 0, 0])),
        ("TCP", ipv4_frame(6, &[0; 20])),
        ("a header that is cut short", ipv4_frame(ipv4::PROTOCOL_UDP, &roce_to(QPN)[..12])),
        ("a fragment", fragment),
        ("a VLAN", tagged),
        ("a broadcast", frame(MacAddr::BROADCAST, EtherType::IPV4, &[&[0x45; 40]])),
        ("another protocol", frame(OWN, EtherType(0x88cc), &[])),
    ] {
        assert_eq!(stack.owner(&frame), Owner::Host, "{what}");
    }
}

#[test]
fn frames_to_other_stations_never_reach_the_host() {
    let stack = stack();
    let mut frame = ipv4_frame(ipv4::PROTOCOL_ICMP, &[8, 0, 0, 0]);
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
    assert_eq!(stack.owner(&frame), Owner::Stack);
    assert_eq!(stack.owner(&[0; 13]), Owner::Stack);
}

#[test]
fn questions_for_an_address_of_the_port_are_the_stacks_and_others_both_may_hear() {
    let mut stack = stack();
    let second = Ipv4Addr::new(10, 9, 0, 1);
    let ask =
        |stack: &Stack, target| stack.owner(&control::arp_request(&peer(), 0, PEER_IP, target));
    assert_eq!(ask(&stack, OWN_IP), Owner::Stack);
    assert_eq!(ask(&stack, second), Owner::Both);
    let mut gids = [None; param::GID_TABLE_LENGTH];
    gids[7] = Some(crate::types::Gid::from_ipv4(second).into());
    stack.set_gids(gids);
    assert_eq!(ask(&stack, second), Owner::Stack);
    assert_eq!(ask(&stack, OWN_IP), Owner::Both);
    let request = arp::Repr {
        operation: arp::Operation::Request,
        sender_mac: OWN,
        sender_ip: second,
        target_mac: MacAddr::default(),
        target_ip: PEER_IP,
    };
    assert_eq!(stack.owner(&control::arp_reply(&peer(), 0, &request)), Owner::Both);
    assert_eq!(stack.owner(&frame(OWN, EtherType::ARP, &[&[0; 28]])), Owner::Host);
}

#[test]
fn solicitations_are_the_stacks_and_advertisements_both_may_hear() {
    let (stack, own) = (stack(), OWN.link_local());
    let solicit = |target: Ipv6Addr, source: Ipv6Addr| {
        let mut message = [0; ndp::LENGTH];
        message[0] = 135;
        message[8..].copy_from_slice(&target.octets());
        let ip = ipv6::Repr {
            traffic_class: 0,
            flow_label: 0,
            next_header: ipv6::NEXT_HEADER_ICMPV6,
            hop_limit: ndp::HOP_LIMIT,
            source,
            destination: ndp::solicited_node(target),
            payload_length: message.len() as u16,
        };
        let sum = ndp::checksum(ip.source, ip.destination, &message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        let group = MacAddr::of_group(Gid::from_ipv6(ip.destination));
        stack.owner(&frame(group, EtherType::IPV6, &[&ip.to_bytes(), &message]))
    };
    assert_eq!(solicit(own, PEER.link_local()), Owner::Stack);
    assert_eq!(solicit(PEER.link_local(), PEER.link_local()), Owner::Host);
    assert_eq!(solicit(own, Ipv6Addr::UNSPECIFIED), Owner::Host);
    let to = control::Addressee { vlan: 0, mac: OWN };
    let told = control::neighbour_advertisement(&peer(), PEER.link_local(), to, own);
    assert_eq!(stack.owner(&told), Owner::Both);
}

/// A stack whose queue pair is connected to one of the peer's, over IPv4 or IPv6.
fn connected(dgid: Gid, sgid_index: u8) -> Stack {
    let mut stack = stack();
    let path = AddressVector::new(sgid_index, dgid);
    let peer = Qpn::new(PEERS_QPN).unwrap();
    let init = QpAttributes::to_init(AccessFlags::default());
    let rtr = QpAttributes::to_rtr(path, PathMtu::Mtu1024, peer, Psn::default());
    for change in [init, rtr] {
        stack.modify_qp(Instant(0), Qpn::new(QPN).unwrap(), &change).unwrap();
    }
    stack
}

/// An IPv4 packet with options, from the host to the peer.
fn sent_ipv4(destination: Ipv4Addr, options: &[u8], payload: &[u8]) -> Vec<u8> {
    let ip = ipv4::Repr {
        type_of_service: 0,
        time_to_live: 64,
        protocol: ipv4::PROTOCOL_UDP,
        source: OWN_IP,
        destination,
        payload_length: payload.len() as u16,
    };
    let mut ip = ip.to_bytes();
    ip[0] += (options.len() / 4) as u8;
    frame(PEER, EtherType::IPV4, &[&ip, options, payload])
}

/// Gives an IPv4 header that was changed its checksum.
fn reseal(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let sum = crate::wire::checksum_finish(crate::wire::checksum_add(0, &frame[14..34]));
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
}

/// An IPv6 packet with extension headers, the first of which has that number.
fn sent_ipv6(next_header: u8, extensions: &[u8], payload: &[u8]) -> Vec<u8> {
    let ip = ipv6::Repr {
        traffic_class: 0,
        flow_label: 0,
        next_header,
        hop_limit: 64,
        source: OWN.link_local(),
        destination: PEER.link_local(),
        payload_length: (extensions.len() + payload.len()) as u16,
    };
    frame(PEER, EtherType::IPV6, &[&ip.to_bytes(), extensions, payload])
}

#[test]
fn the_host_speaks_for_no_connected_queue_pair() {
    let mut stack = connected(Gid::from_ipv4(PEER_IP), 1);
    let ours = roce_to(PEERS_QPN);
    let forged = |stack: &Stack, frame: &[u8]| stack.is_forged(frame);
    let plain = sent_ipv4(PEER_IP, &[], &ours);
    let mut first_fragment = plain.clone();
    first_fragment[20] = 0x20;
    let mut tagged = plain.clone();
    tagged.splice(12..12, [0x81, 0x00, 0x00, 0x05]);
    // Fragments without the header that names the QP, or that overwrite it.
    let mut tiny = sent_ipv4(PEER_IP, &[], &ours[..8]);
    tiny[20] = 0x20;
    reseal(&mut tiny);
    let mut padded = tiny.clone();
    padded.resize(60, 0);
    let mut cut = sent_ipv4(PEER_IP, &[], &[]);
    cut[20] = 0x20;
    let mut over_it = plain.clone();
    over_it[21] = 0x01;
    for (what, frame) in [
        ("a first fragment of eight bytes", tiny.clone()),
        ("the same as Ethernet pads it", padded),
        ("a first fragment of none", cut),
        ("a fragment from the eighth byte on", over_it),
        ("a packet", plain.clone()),
        ("IP options", sent_ipv4(PEER_IP, &[1; 8], &ours)),
        ("a first fragment", first_fragment),
        ("a tag", tagged),
        ("no more than what names it", plain[..14 + 20 + 8 + 8].to_vec()),
    ] {
        assert!(forged(&stack, &frame), "{what}");
    }
    let mut later_fragment = plain.clone();
    later_fragment[21] = 0x02;
    let mut to_another_port = tiny.clone();
    to_another_port[14 + 20 + 3] ^= 1;
    for (what, frame) in [
        ("the peer's QP 1", sent_ipv4(PEER_IP, &[], &roce_to(1))),
        ("another QP", sent_ipv4(PEER_IP, &[], &roce_to(PEERS_QPN + 1))),
        ("another peer", sent_ipv4(Ipv4Addr::new(10, 0, 0, 3), &[], &ours)),
        ("another port", sent_ipv4(PEER_IP, &[], &datagram(4790, &ours[8..]))),
        ("a later fragment", later_fragment),
        ("a tiny fragment to another port", to_another_port),
        ("no fragment, and no packet either", sent_ipv4(PEER_IP, &[], &ours[..8])),
        ("IPv6", sent_ipv6(ipv6::NEXT_HEADER_UDP, &[], &ours)),
    ] {
        assert!(!forged(&stack, &frame), "{what}");
    }
    stack.destroy_qp(Qpn::new(QPN).unwrap());
    assert!(!forged(&stack, &plain) && !forged(&stack, &tiny));
    assert!(stack.connections.is_empty());
}

#[test]
fn over_ipv6_neither_with_extension_headers() {
    let mut stack = connected(Gid::from_ipv6(PEER.link_local()), 0);
    let ours = roce_to(PEERS_QPN);
    let udp = ipv6::NEXT_HEADER_UDP;
    // Of its last three bits, one says that more follow.
    let fragment = |offset| [udp, 0, 0, offset, 0, 0, 0, 7];
    let options = [ipv6::FRAGMENT, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let chain = [&options[..], &fragment(1)].concat();
    let endless = [ipv6::HOP_BY_HOP, 0, 1, 4, 0, 0, 0, 0].repeat(64);
    for (next, extensions, expected) in [
        (udp, &[][..], true),
        (ipv6::FRAGMENT, &fragment(1), true),
        (ipv6::FRAGMENT, &fragment(8), true),
        (ipv6::FRAGMENT, &fragment(17), false),
        (ipv6::HOP_BY_HOP, &chain, true),
        (ipv6::DESTINATION_OPTIONS, &chain, true),
        (ipv6::ROUTING, &chain, true),
        (ipv6::HOP_BY_HOP, &endless, true),
        (6, &[], false),
    ] {
        let frame = sent_ipv6(next, extensions, &ours);
        assert_eq!(stack.is_forged(&frame), expected, "{next} {extensions:?}");
        for length in 0..frame.len() {
            let _ = stack.is_forged(&frame[..length]);
        }
    }
    // First fragments that end before they name the QP: in the UDP header, behind it, and in an
    // extension header of the part that is cut.
    let cut = [ipv6::DESTINATION_OPTIONS, 0, 0, 1, 0, 0, 0, 7];
    for (first, part, is_forged) in [
        (fragment(1), &ours[..0], true),
        (fragment(1), &ours[..8], true),
        (fragment(1), &ours[..16], true),
        (cut, &[udp, 1, 1, 4, 0, 0, 0, 0][..], true),
        (cut, &[udp, 0, 1, 4, 0, 0, 0, 0][..], true),
        // All of a packet, though it says it were a fragment.
        (fragment(0), &ours[..8], false),
    ] {
        let mut frame = sent_ipv6(ipv6::FRAGMENT, &first, part);
        // As Ethernet pads it.
        frame.resize(frame.len().max(120), 0);
        assert_eq!(stack.is_forged(&frame), is_forged, "{first:?} {part:?}");
    }
    let reset = QpAttributes { state: Some(QpState::Reset), ..QpAttributes::default() };
    stack.modify_qp(Instant(0), Qpn::new(QPN).unwrap(), &reset).unwrap();
    assert!(stack.connections.is_empty());
}

/// The owner of any frame is found without a panic.
#[test]
fn every_cut_of_every_frame_has_an_owner() {
    let stack = stack();
    let whole = ipv4_frame(ipv4::PROTOCOL_UDP, &roce_to(QPN));
    for length in 0..whole.len() {
        let _ = stack.owner(&whole[..length]);
    }
    for at in 0..whole.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut changed = whole.clone();
            changed[at] = value;
            let _ = stack.owner(&changed);
        }
    }
}
