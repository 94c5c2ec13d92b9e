//! A host's network stack that shares the port: the owner of a received frame, and the frames that the host may send.

use core::net::{Ipv4Addr, Ipv6Addr};

use super::Stack;
use super::input::Protocol;
use crate::param;
use crate::path::ConnectionKey;
use crate::types::{Gid, Qpn};
use crate::wire::ethernet::{self, EtherType};
use crate::wire::{arp, bth, ipv4, ipv6, ndp, udp};

/// Extension headers of one IPv6 packet that are looked behind.
const MAX_EXTENSIONS: usize = 8;
/// Bytes that the offset of a fragment counts as one.
const FRAGMENT_UNIT: usize = 8;

/// The owner of a received frame.
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
    /// The owner of a frame from the cable, if a host has the same Ethernet address and the same IP addresses.
    ///
    /// So that every question is answered exactly once:
    ///
    /// * frames to another Ethernet address are the stack's, which drops them;
    /// * RoCE packets are the stack's if it has their destination QP, else the host's: QP 1, and
    ///   QPs that the host has made itself;
    /// * ARP requests and neighbour solicitations for an address of the port's are the stack's, which
    ///   answers them; other ARP packets and neighbour advertisements are both's, for both ask;
    /// * datagrams to a multicast group that the stack is in are both's, for each has members of its own,
    ///   and so are questions for members;
    /// * everything else is the host's: ICMP, other UDP, TCP, fragments, VLANs in which the port has no
    ///   address, and frames that cannot be parsed.
    #[must_use]
    pub fn owner(&self, frame: &[u8]) -> Owner {
        let Ok((ethernet, packet)) = ethernet::Repr::parse(frame) else { return Owner::Stack };
        let group = ethernet.destination.is_group();
        if !group && ethernet.destination != self.addresses.mac {
            return Owner::Stack;
        }
        let vlan = ethernet.vlan();
        // RC-104
        if vlan != 0 && !self.addresses.is_in(vlan) {
            return Owner::Host;
        }
        match ethernet.ethertype {
            _ if group && self.is_for_groups(frame) => Owner::Both,
            EtherType::ARP => self.arp_owner(vlan, packet),
            EtherType::IPV4 if !group => match ipv4::Repr::parse(packet) {
                Ok((ip, payload)) if ip.protocol == ipv4::PROTOCOL_UDP => self.udp_owner(payload),
                _ => Owner::Host,
            },
            EtherType::IPV6 => match ipv6::Repr::parse(packet) {
                Ok((ip, payload)) if ip.next_header == ipv6::NEXT_HEADER_ICMPV6 => {
                    self.ndp_owner(vlan, &ip, payload)
                }
                Ok((ip, payload)) if ip.next_header == ipv6::NEXT_HEADER_UDP && !group => {
                    self.udp_owner(payload)
                }
                _ => Owner::Host,
            },
            _ => Owner::Host,
        }
    }

    /// Whether a peer may take a frame that the host sends for one of a queue pair of this stack's.
    ///
    /// A packet does not name the queue pair that it comes from: the peer knows it by the addresses
    /// and by its own queue pair's number. And every user of the host may send to the RoCE port. A fragment that leaves
    /// the peer's queue pair to another fragment is no honest packet.
    #[must_use]
    pub fn is_forged(&self, frame: &[u8]) -> bool {
        match claim_of(frame) {
            Claim::Nothing => false,
            Claim::Connection(connection) => self.connections.contains_key(&connection),
            Claim::Unclear => !self.connections.is_empty(),
        }
    }

    /// Whether a frame to a group address is a datagram to a group that has members here, or asks for
    /// members while there are any.
    fn is_for_groups(&self, frame: &[u8]) -> bool {
        match self.classify(frame) {
            Ok((_, Protocol::Roce(envelope))) => envelope.flow.destination.gid.is_group(),
            Ok((_, Protocol::Igmp(_) | Protocol::Mld(..))) => !self.groups.is_empty(),
            _ => false,
        }
    }

    fn arp_owner(&self, vlan: u16, packet: &[u8]) -> Owner {
        match arp::Repr::parse(packet) {
            Ok(arp) if arp.operation == arp::Operation::Request => {
                if self.addresses.has_ipv4(vlan, arp.target_ip) {
                    Owner::Stack
                } else {
                    Owner::Both
                }
            }
            Ok(_) => Owner::Both,
            Err(_) => Owner::Host,
        }
    }

    fn ndp_owner(&self, vlan: u16, ip: &ipv6::Repr, packet: &[u8]) -> Owner {
        if ndp::parse_advertisement(ip, packet).is_ok() {
            return Owner::Both;
        }
        match ndp::parse_solicitation(ip, packet) {
            // A station without an address asks whether this one is taken: the host defends its own.
            Ok(target) if !ip.source.is_unspecified() && self.addresses.has_ipv6(vlan, target) => {
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

/// The meaning of a frame to a peer.
enum Claim {
    /// No packet to the RoCE port, or a later part of one.
    Nothing,
    Connection(ConnectionKey),
    /// Another fragment says.
    Unclear,
}

/// The meaning of a frame to a peer that does as network stacks do: they follow IP options and extension headers, and
/// put fragments together.
fn claim_of(frame: &[u8]) -> Claim {
    let Ok((ethernet, packet)) = ethernet::Repr::parse(frame) else { return Claim::Nothing };
    let claim = match ethernet.ethertype {
        EtherType::IPV4 => behind_ipv4(packet),
        EtherType::IPV6 => behind_ipv6(packet),
        _ => None,
    };
    claim.unwrap_or(Claim::Nothing)
}

/// The claim of an IPv4 packet.
fn behind_ipv4(packet: &[u8]) -> Option<Claim> {
    let (header, _) = ipv4::Header::new(packet).ok()?;
    if header.protocol() != ipv4::PROTOCOL_UDP {
        return None;
    }
    // Without Ethernet's padding.
    let end = packet.len().min(header.total_length().into());
    let datagram = packet.get(header.header_length()..end)?;
    let offset = usize::from(header.fragment_offset()).wrapping_mul(FRAGMENT_UNIT);
    let ends: [Ipv4Addr; 2] = [header.source(), header.destination()];
    Some(match offset {
        0 => of_datagram(ends.map(Gid::from_ipv4), datagram, header.is_fragment()),
        offset => of_later_fragment(offset),
    })
}

/// The claim of an IPv6 packet.
fn behind_ipv6(packet: &[u8]) -> Option<Claim> {
    let (header, rest) = ipv6::Header::new(packet).ok()?;
    let mut rest = rest.get(..rest.len().min(header.payload_length().into()))?;
    let mut next = header.next_header();
    let mut is_fragment = false;
    for _ in 0..=MAX_EXTENSIONS {
        match next {
            ipv6::NEXT_HEADER_UDP => {
                let ends: [Ipv6Addr; 2] = [header.source(), header.destination()];
                return Some(of_datagram(ends.map(Gid::from_ipv6), rest, is_fragment));
            }
            ipv6::HOP_BY_HOP | ipv6::ROUTING | ipv6::DESTINATION_OPTIONS | ipv6::FRAGMENT => {}
            _ => return None,
        }
        let &[following, units, high, low, ..] = rest else { return Some(cut_short(is_fragment)) };
        let mut length = usize::from(units).wrapping_add(1).wrapping_mul(8);
        if next == ipv6::FRAGMENT {
            length = 8;
            // An offset in bytes, for it stands in units of 8 above three other bits.
            match u16::from_be_bytes([high, low]) & !7 {
                0 => is_fragment |= low & 1 == 1,
                offset => return Some(of_later_fragment(offset.into())),
            }
        }
        next = following;
        let Some(behind) = rest.get(length..) else { return Some(cut_short(is_fragment)) };
        rest = behind;
    }
    Some(Claim::Unclear)
}

/// The claim of a UDP datagram between two addresses, or of its first fragment.
fn of_datagram([own, peer]: [Gid; 2], datagram: &[u8], is_fragment: bool) -> Claim {
    let Ok((header, payload)) = udp::Header::new(datagram) else { return cut_short(is_fragment) };
    if header.destination_port() != param::ROCE_UDP_PORT {
        return Claim::Nothing;
    }
    let Some(&[high, middle, low]) = payload.get(bth::field::DEST_QP.range()) else {
        return cut_short(is_fragment);
    };
    let dest_qpn = Qpn::new(u32::from_be_bytes([0, high, middle, low]));
    dest_qpn
        .map_or(Claim::Nothing, |dest_qpn| Claim::Connection(ConnectionKey { own, peer, dest_qpn }))
}

/// The claim of a packet that ends before it names the queue pair: none, unless more of it follows.
fn cut_short(is_fragment: bool) -> Claim {
    if is_fragment { Claim::Unclear } else { Claim::Nothing }
}

/// The claim of a fragment that does not begin a packet: none, unless it may overwrite the name of
/// the queue pair.
fn of_later_fragment(offset: usize) -> Claim {
    const NAMED: usize = udp::LENGTH + bth::field::DEST_QP.range().end;
    if offset < NAMED { Claim::Unclear } else { Claim::Nothing }
}

#[cfg(test)]
mod tests;
