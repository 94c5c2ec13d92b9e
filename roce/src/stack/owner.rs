//! Whose a received frame is, where a host's network stack shares the port.

use super::Stack;
use crate::param;
use crate::types::Qpn;
use crate::wire::ethernet::{self, EtherType};
use crate::wire::{arp, bth, ipv4, ipv6, ndp, udp};

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
    ///   answers them; other ARP packets are both's, for both ask;
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

#[cfg(test)]
mod tests;
