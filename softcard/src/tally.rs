//! Counts of the port's frames, by kind, for the shell's statistics registers.

use roce::param::ROCE_UDP_PORT;
use roce::wire::ethernet::{self, EtherType};
use roce::wire::{ipv4, ipv6, udp};

use crate::port::Direction;

/// TCP's number, in either version of IP.
const PROTOCOL_TCP: u8 = 6;

/// Packets of one kind, transmitted and received, modulo 2^32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) tx: u32,
    pub(crate) rx: u32,
}

/// Packets of every kind that the registers tell apart.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PortTally {
    pub(crate) packets: Count,
    pub(crate) arp: Count,
    pub(crate) icmp: Count,
    pub(crate) tcp: Count,
    pub(crate) roce: Count,
}

impl PortTally {
    /// Counts an Ethernet frame.
    pub(crate) fn count(&mut self, direction: Direction, frame: &[u8]) {
        let bump = |count: &mut Count| {
            let place = match direction {
                Direction::Outbound => &mut count.tx,
                Direction::Inbound => &mut count.rx,
            };
            *place = place.wrapping_add(1);
        };
        bump(&mut self.packets);
        let Ok((ethernet, packet)) = ethernet::Repr::parse(frame) else { return };
        let is_roce = |datagram: &[u8]| {
            udp::Header::new(datagram)
                .is_ok_and(|(header, _)| header.destination_port() == ROCE_UDP_PORT)
        };
        match ethernet.ethertype {
            EtherType::ARP => bump(&mut self.arp),
            EtherType::IPV4 => {
                let Ok((ip, payload)) = ipv4::Header::new(packet) else { return };
                match ip.protocol() {
                    ipv4::PROTOCOL_ICMP => bump(&mut self.icmp),
                    PROTOCOL_TCP => bump(&mut self.tcp),
                    ipv4::PROTOCOL_UDP if is_roce(payload) => bump(&mut self.roce),
                    _ => {}
                }
            }
            EtherType::IPV6 => {
                let Ok((ip, payload)) = ipv6::Header::new(packet) else { return };
                match ip.next_header() {
                    ipv6::NEXT_HEADER_ICMPV6 => bump(&mut self.icmp),
                    PROTOCOL_TCP => bump(&mut self.tcp),
                    ipv6::NEXT_HEADER_UDP if is_roce(payload) => bump(&mut self.roce),
                    _ => {}
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_told_apart_by_their_headers() {
        let mut ipv4 = [0u8; 60];
        ipv4[12..14].copy_from_slice(&[8, 0]);
        let mut tally = PortTally::default();
        for (protocol, port) in [(17, 4791u16), (17, 53), (1, 0), (6, 4791)] {
            ipv4[23] = protocol;
            ipv4[36..38].copy_from_slice(&port.to_be_bytes());
            tally.count(Direction::Inbound, &ipv4);
        }
        let mut ipv6 = [0u8; 80];
        ipv6[12..14].copy_from_slice(&[0x86, 0xdd]);
        ipv6[20] = 17;
        ipv6[56..58].copy_from_slice(&ROCE_UDP_PORT.to_be_bytes());
        tally.count(Direction::Outbound, &ipv6);
        let tagged = [&ipv6[..12], &[0x81, 0, 0, 5], &ipv6[12..]].concat();
        tally.count(Direction::Outbound, &tagged);
        let mut arp = [0u8; 42];
        arp[12..14].copy_from_slice(&[8, 6]);
        tally.count(Direction::Outbound, &arp);
        tally.count(Direction::Outbound, &[]);
        assert_eq!(tally.packets, Count { tx: 4, rx: 4 });
        assert_eq!((tally.roce, tally.arp), (Count { tx: 2, rx: 1 }, Count { tx: 1, rx: 0 }));
        assert_eq!((tally.icmp, tally.tcp), (Count { tx: 0, rx: 1 }, Count { tx: 0, rx: 1 }));
    }
}
