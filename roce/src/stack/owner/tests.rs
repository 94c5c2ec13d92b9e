use core::net::{Ipv4Addr, Ipv6Addr};

use super::super::StackConfig;
use super::*;
use crate::control;
use crate::path::PortAddresses;
use crate::types::{MacAddr, PathMtu};

const OWN: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const PEER: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const OWN_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PEER_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const QPN: u32 = 0x1234;

fn stack() -> Stack {
    let mut stack = Stack::new(StackConfig { mac: OWN, ipv4: OWN_IP, mtu_max: PathMtu::Mtu4096 });
    stack.create_qp(Qpn::new(QPN).unwrap()).unwrap();
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
    let ask = |stack: &Stack, target| stack.owner(&control::arp_request(&peer(), PEER_IP, target));
    assert_eq!(ask(&stack, OWN_IP), Owner::Stack);
    assert_eq!(ask(&stack, second), Owner::Both);
    let mut gids = [None; param::GID_TABLE_LENGTH];
    gids[7] = Some(crate::types::Gid::from_ipv4(second));
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
    assert_eq!(stack.owner(&control::arp_reply(&peer(), &request)), Owner::Both);
    assert_eq!(stack.owner(&frame(OWN, EtherType::ARP, &[&[0; 28]])), Owner::Host);
}

#[test]
fn solicitations_are_the_stacks_and_advertisements_the_hosts() {
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
        let group = ndp::multicast_mac(ip.destination);
        stack.owner(&frame(group, EtherType::IPV6, &[&ip.to_bytes(), &message]))
    };
    assert_eq!(solicit(own, PEER.link_local()), Owner::Stack);
    assert_eq!(solicit(PEER.link_local(), PEER.link_local()), Owner::Host);
    assert_eq!(solicit(own, Ipv6Addr::UNSPECIFIED), Owner::Host);
    let told = control::neighbour_advertisement(&peer(), PEER.link_local(), OWN, own);
    assert_eq!(stack.owner(&told), Owner::Host);
}

/// Whatever the owner is, it is found without a panic.
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
