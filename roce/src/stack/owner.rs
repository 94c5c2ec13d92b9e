//! A host's network stack that shares the port: whose a received frame is, and what the host may
//! send.

use core::net::{Ipv4Addr, Ipv6Addr};

use super::Stack;
use crate::param;
use crate::path::Connection;
use crate::types::{Gid, Qpn};
use crate::wire::ethernet::{self, EtherType};
use crate::wire::{arp, bth, ipv4, ipv6, ndp, udp};

/// Extension headers of one IPv6 packet that are looked behind.
const MAX_EXTENSIONS: usize = 8;
/// Where the destination QP stands in a transport header.
const DEST_QPN: core::ops::Range<usize> = 5..8;

/// Whose a received frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// This stack's alone: the host must not see it.
    Stack,
    /// The host's alone.
    Host,
    /// Both have a use for it, and neither answers it in the other's place.
    Both,
}

impl Stack {
    /// Whose a frame from the cable is, if a host has the same Ethernet address and the same IP
    /// addresses.
    ///
    /// So that every question is answered exactly once:
    ///
    /// * frames to another Ethernet address are the stack's, which drops them;
    /// * RoCE packets are the stack's if it has their destination QP, else the host's: QP 1, and
    ///   QPs that the host has made itself;
    /// * ARP requests and neighbour solicitations for an address of the port's are the stack's, which
    ///   answers them; other ARP packets and neighbour advertisements are both's, for both ask;
    /// * everything else is the host's: ICMP, other UDP, TCP, fragments, VLANs, what cannot be parsed.
    #[must_use]
    pub fn owner(&self, frame: &[u8]) -> Owner {
        let Ok((ethernet, packet)) = ethernet::Repr::parse(frame) else { return Owner::Stack };
        let group = ethernet.destination.is_group();
        if !group && ethernet.destination != self.addresses.mac {
            return Owner::Stack;
        }
        if ethernet.tag.is_some_and(|tag| tag.vlan != 0) {
            return Owner::Host;
        }
        match ethernet.ethertype {
            EtherType::ARP => self.arp_owner(packet),
            EtherType::IPV4 if !group => match ipv4::Repr::parse(packet) {
                Ok((ip, payload)) if ip.protocol == ipv4::PROTOCOL_UDP => self.udp_owner(payload),
                _ => Owner::Host,
            },
            EtherType::IPV6 => match ipv6::Repr::parse(packet) {
                Ok((ip, payload)) if ip.next_header == ipv6::NEXT_HEADER_ICMPV6 => {
                    self.ndp_owner(&ip, payload)
                }
                Ok((ip, payload)) if ip.next_header == ipv6::NEXT_HEADER_UDP && !group => {
                    self.udp_owner(payload)
                }
                _ => Owner::Host,
            },
            _ => Owner::Host,
        }
    }

    /// Whether a peer would take a frame that the host sends for one of a queue pair of this stack's.
    ///
    /// A packet does not name the queue pair that it comes from: the peer knows it by the addresses
    /// and by its own queue pair's number. And every user of the host may send to the RoCE port.
    #[must_use]
    pub fn is_forged(&self, frame: &[u8]) -> bool {
        connection_of(frame).is_some_and(|connection| self.connections.contains_key(&connection))
    }

    fn arp_owner(&self, packet: &[u8]) -> Owner {
        match arp::Repr::parse(packet) {
            Ok(arp) if arp.operation == arp::Operation::Request => {
                if self.addresses.has_ipv4(arp.target_ip) { Owner::Stack } else { Owner::Both }
            }
            Ok(_) => Owner::Both,
            Err(_) => Owner::Host,
        }
    }

    fn ndp_owner(&self, ip: &ipv6::Repr, packet: &[u8]) -> Owner {
        if ndp::parse_advertisement(ip, packet).is_ok() {
            return Owner::Both;
        }
        match ndp::parse_solicitation(ip, packet) {
            // Who has no address yet asks whether one is taken: the host defends its own.
            Ok(target) if !ip.source.is_unspecified() && self.addresses.has_ipv6(target) => {
                Owner::Stack
            }
            _ => Owner::Host,
        }
    }

    fn udp_owner(&self, datagram: &[u8]) -> Owner {
        let Ok((header, payload)) = udp::Repr::parse(datagram) else { return Owner::Host };
        if header.destination_port != param::ROCE_UDP_PORT {
            return Owner::Host;
        }
        let transport = bth::Repr::parse(payload).ok();
        let qpn = transport.and_then(|(transport, _)| Qpn::new(transport.dest_qpn));
        if qpn.is_some_and(|qpn| self.table.contains_key(&qpn)) {
            Owner::Stack
        } else {
            Owner::Host
        }
    }
}

/// The connection for whose packet a peer may take a frame: as network stacks do, which follow IP
/// options and extension headers and put fragments together.
fn connection_of(frame: &[u8]) -> Option<Connection> {
    let (ethernet, packet) = ethernet::Repr::parse(frame).ok()?;
    let (own, peer, datagram) = match ethernet.ethertype {
        EtherType::IPV4 => behind_ipv4(packet)?,
        EtherType::IPV6 => behind_ipv6(packet)?,
        _ => return None,
    };
    let (header, payload) = udp::Header::new(datagram).ok()?;
    let &[high, middle, low] = payload.get(DEST_QPN)? else { return None };
    let dest_qpn = Qpn::new(u32::from_be_bytes([0, high, middle, low]))?;
    let is_roce = header.destination_port() == param::ROCE_UDP_PORT;
    is_roce.then_some(Connection { own, peer, dest_qpn })
}

/// Source, destination and the beginning of the UDP datagram in an IPv4 packet.
fn behind_ipv4(packet: &[u8]) -> Option<(Gid, Gid, &[u8])> {
    let (header, _) = ipv4::Header::new(packet).ok()?;
    let begins = header.fragment_offset() == 0;
    let datagram = packet.get(header.header_length()..)?;
    let ends: [Ipv4Addr; 2] = [header.source(), header.destination()];
    let [own, peer] = ends.map(Gid::from_ipv4);
    (begins && header.protocol() == ipv4::PROTOCOL_UDP).then_some((own, peer, datagram))
}

/// The same of an IPv6 packet.
fn behind_ipv6(packet: &[u8]) -> Option<(Gid, Gid, &[u8])> {
    let (header, mut rest) = ipv6::Header::new(packet).ok()?;
    let mut next = header.next_header();
    for _ in 0..MAX_EXTENSIONS {
        let &[following, length, high, low, ..] = rest else { return None };
        let length = match next {
            ipv6::HOP_BY_HOP | ipv6::ROUTING | ipv6::DESTINATION_OPTIONS => {
                usize::from(length).wrapping_add(1).wrapping_mul(8)
            }
            // An offset in the upper 13 bits: only the first fragment has the datagram's header.
            ipv6::FRAGMENT if u16::from_be_bytes([high, low]) & 0xfff8 == 0 => 8,
            _ => break,
        };
        next = following;
        rest = rest.get(length..)?;
    }
    let ends: [Ipv6Addr; 2] = [header.source(), header.destination()];
    let [own, peer] = ends.map(Gid::from_ipv6);
    (next == ipv6::NEXT_HEADER_UDP).then_some((own, peer, rest))
}

#[cfg(test)]
mod tests;
