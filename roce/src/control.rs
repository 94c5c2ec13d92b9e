//! Frames beside RoCE: ARP, ICMP echo and neighbour discovery, asked and answered, and reports of groups.

use core::net::{Ipv4Addr, Ipv6Addr};

use crate::groups::Report;
use crate::path::PortAddresses;
use crate::types::{Gid, MacAddr};
use crate::wire::igmp::RecordType;
use crate::wire::{arp, ethernet, icmpv4, igmp, ipv4, ipv6, mld, ndp};

/// The receiver of a frame: a station, or all of a group, in a VLAN.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addressee {
    pub vlan: u16,
    pub mac: MacAddr,
}

/// A frame of headers and data, built at once: these frames are rare.
fn frame(
    addresses: &PortAddresses,
    to: Addressee,
    ethertype: ethernet::EtherType,
    parts: &[&[u8]],
) -> Vec<u8> {
    let Addressee { vlan, mac: destination } = to;
    let header = ethernet::Repr { destination, source: addresses.mac, tag: None, ethertype };
    let mut frame = header.to_bytes().to_vec();
    if vlan != 0 {
        // RC-104
        let tag = ethernet::Tag { priority: 0, drop_eligible: false, vlan };
        frame.splice(ethernet::TAG_OFFSET..ethernet::TAG_OFFSET, tag.to_bytes());
    }
    for part in parts {
        frame.extend_from_slice(part);
    }
    frame
}

/// The ARP request, by broadcast in a VLAN, for the owner of `target`, from `own`.
pub(crate) fn arp_request(
    addresses: &PortAddresses,
    vlan: u16,
    own: Ipv4Addr,
    target: Ipv4Addr,
) -> Vec<u8> {
    let packet = arp::Repr {
        operation: arp::Operation::Request,
        sender_mac: addresses.mac,
        sender_ip: own,
        target_mac: MacAddr::default(),
        target_ip: target,
    };
    let to = Addressee { vlan, mac: MacAddr::BROADCAST };
    frame(addresses, to, ethernet::EtherType::ARP, &[&packet.to_bytes()])
}

/// The answer to an ARP request for an address of the port's in a VLAN.
pub(crate) fn arp_reply(addresses: &PortAddresses, vlan: u16, request: &arp::Repr) -> Vec<u8> {
    let packet = arp::Repr {
        operation: arp::Operation::Reply,
        sender_mac: addresses.mac,
        sender_ip: request.target_ip,
        target_mac: request.sender_mac,
        target_ip: request.sender_ip,
    };
    let to = Addressee { vlan, mac: request.sender_mac };
    frame(addresses, to, ethernet::EtherType::ARP, &[&packet.to_bytes()])
}

/// The answer to an ICMP echo request.
pub(crate) fn icmp_reply(
    addresses: &PortAddresses,
    to: Addressee,
    request_ip: &ipv4::Repr,
    request: &icmpv4::Repr<'_>,
) -> Vec<u8> {
    let ip = ipv4::Repr {
        time_to_live: crate::param::DEFAULT_HOP_LIMIT,
        source: request_ip.destination,
        destination: request_ip.source,
        ..*request_ip
    };
    let echo = icmpv4::Repr { reply: true, ..*request };
    frame(
        addresses,
        to,
        ethernet::EtherType::IPV4,
        &[&ip.to_bytes(), &echo.to_bytes(), request.data],
    )
}

/// The solicitation for the owner of `target` in a VLAN, to the group of addresses that end alike, from `own`.
pub(crate) fn neighbour_solicitation(
    addresses: &PortAddresses,
    vlan: u16,
    own: Ipv6Addr,
    target: Ipv6Addr,
) -> Vec<u8> {
    let destination = ndp::solicited_node(target);
    let message = ndp::solicitation(target, addresses.mac, own);
    let ip = ndp_header(own, destination, message.len());
    let to = Addressee { vlan, mac: MacAddr::of_group(Gid::from_ipv6(destination)) };
    frame(addresses, to, ethernet::EtherType::IPV6, &[&ip.to_bytes(), &message])
}

/// The header of a neighbour discovery message.
fn ndp_header(source: Ipv6Addr, destination: Ipv6Addr, length: usize) -> ipv6::Repr {
    ipv6::Repr {
        traffic_class: 0,
        flow_label: 0,
        next_header: ipv6::NEXT_HEADER_ICMPV6,
        hop_limit: ndp::HOP_LIMIT,
        source,
        destination,
        payload_length: length as u16,
    }
}

/// The answer to a neighbour solicitation for `own`, an address of the port's.
pub(crate) fn neighbour_advertisement(
    addresses: &PortAddresses,
    own: Ipv6Addr,
    to: Addressee,
    destination: Ipv6Addr,
) -> Vec<u8> {
    let message = ndp::advertisement(own, addresses.mac, destination);
    let ip = ndp_header(own, destination, message.len());
    frame(addresses, to, ethernet::EtherType::IPV6, &[&ip.to_bytes(), &message])
}

/// The report of members of groups in a VLAN, from the address that the port has there; `None` if it would
/// say nothing.
// UD-23
pub(crate) fn group_report(
    addresses: &PortAddresses,
    vlan: u16,
    report: &Report,
) -> Option<Vec<u8>> {
    let own = addresses.own().filter(|own| own.vlan == vlan).map(|own| own.gid);
    if report.ipv4 {
        let source = own.clone().find_map(Gid::as_ipv4).unwrap_or(Ipv4Addr::UNSPECIFIED);
        let told = report.records.iter().filter_map(|(kind, gid)| Some((*kind, gid.as_ipv4()?)));
        let packet = igmp::report(source, &told.collect::<Vec<_>>());
        let to = Addressee { vlan, mac: MacAddr::of_group(Gid::from_ipv4(igmp::REPORTS_TO)) };
        return Some(frame(addresses, to, ethernet::EtherType::IPV4, &[&packet]));
    }
    let mut own = own.filter(|own| own.as_ipv4().is_none()).map(Gid::as_ipv6);
    let source = own.find(Ipv6Addr::is_unicast_link_local);
    let told = report.records.iter().map(|(kind, gid)| (*kind, gid.as_ipv6()));
    // Neighbours solicit the port by this group, even when all queue pairs have left it.
    let is_needed = |group| addresses.is_solicited_at(vlan, group);
    let told: Vec<_> =
        told.filter(|(kind, group)| *kind != RecordType::Left || !is_needed(*group)).collect();
    if told.is_empty() {
        return None;
    }
    let (ip, payload) = mld::report(source.unwrap_or(Ipv6Addr::UNSPECIFIED), &told);
    let to = Addressee { vlan, mac: MacAddr::of_group(Gid::from_ipv6(mld::REPORTS_TO)) };
    Some(frame(addresses, to, ethernet::EtherType::IPV6, &[&ip.to_bytes(), &payload]))
}
