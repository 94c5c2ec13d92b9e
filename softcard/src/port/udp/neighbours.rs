//! The card's ARP requests and neighbour solicitations, answered in place of its link.

use std::net::IpAddr;

use roce::MacAddr;
use roce::wire::ethernet::{self, EtherType};
use roce::wire::{arp, ipv6, ndp};

/// The Ethernet address behind which all peers are: frames to it go by the kernel's routes.
pub(super) const BEYOND: MacAddr = MacAddr([0x02, 0x62, 0x65, 0x79, 0x6f, 0x6e]);

/// A frame that is not RoCE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// The question for the owner of an address, from one of the card's; and the answer, if there is an owner.
    Whose { from: IpAddr, to: IpAddr, answer: Vec<u8> },
    /// Nothing: it reports in which groups the card is.
    Groups,
}

/// The question in a frame of the card's; `None` for any other frame.
pub(super) fn asked(frame: &[u8]) -> Option<Asked> {
    let (header, packet) = ethernet::Repr::parse(frame).ok()?;
    match header.ethertype {
        EtherType::ARP => whose_ipv4(&header, packet),
        EtherType::IPV4 => is_igmp(packet).then_some(Asked::Groups),
        EtherType::IPV6 => {
            let (ip, payload) = ipv6::Repr::parse(packet).ok()?;
            match ip.next_header {
                ipv6::HOP_BY_HOP => is_mld(payload).then_some(Asked::Groups),
                _ => whose_ipv6(&header, &ip, payload),
            }
        }
        _ => None,
    }
}

fn header(to: MacAddr, ethertype: EtherType) -> [u8; ethernet::LENGTH] {
    ethernet::Repr { destination: to, source: BEYOND, tag: None, ethertype }.to_bytes()
}

fn whose_ipv4(header_of: &ethernet::Repr, packet: &[u8]) -> Option<Asked> {
    let request = arp::Repr::parse(packet).ok()?;
    (request.operation == arp::Operation::Request).then_some(())?;
    let reply = arp::Repr {
        operation: arp::Operation::Reply,
        sender_mac: BEYOND,
        sender_ip: request.target_ip,
        target_mac: request.sender_mac,
        target_ip: request.sender_ip,
    };
    let answer = [&header(header_of.source, EtherType::ARP)[..], &reply.to_bytes()].concat();
    Some(Asked::Whose { from: request.sender_ip.into(), to: request.target_ip.into(), answer })
}

fn whose_ipv6(header_of: &ethernet::Repr, ip: &ipv6::Repr, payload: &[u8]) -> Option<Asked> {
    let target = ndp::parse_solicitation(ip, payload).ok()?;
    let message = ndp::advertisement(target, BEYOND, ip.source);
    let about = ipv6::Repr {
        source: target,
        destination: ip.source,
        payload_length: message.len() as u16,
        ..*ip
    };
    let ethernet = header(header_of.source, EtherType::IPV6);
    let answer = [&ethernet[..], &about.to_bytes(), &message].concat();
    Some(Asked::Whose { from: ip.source.into(), to: target.into(), answer })
}

/// Whether an IPv4 packet reports groups.
fn is_igmp(packet: &[u8]) -> bool {
    const IGMP: u8 = 2;
    packet.get(9) == Some(&IGMP)
}

/// Whether the bytes behind the hop-by-hop options of an IPv6 packet report groups.
fn is_mld(payload: &[u8]) -> bool {
    const REPORT: u8 = 143;
    payload.get(8) == Some(&REPORT)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use roce::wire::igmp::{self, RecordType};
    use roce::wire::mld;

    use super::*;

    const OWN: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

    fn framed(ethertype: EtherType, parts: &[&[u8]]) -> Vec<u8> {
        let header =
            ethernet::Repr { destination: MacAddr::BROADCAST, source: OWN, tag: None, ethertype };
        [&header.to_bytes()[..], &parts.concat()].concat()
    }

    #[test]
    fn everybody_is_beyond() {
        let [own, peer] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
        let request = arp::Repr {
            operation: arp::Operation::Request,
            sender_mac: OWN,
            sender_ip: own,
            target_mac: MacAddr::default(),
            target_ip: peer,
        };
        let frame = framed(EtherType::ARP, &[&request.to_bytes()]);
        let Some(Asked::Whose { from, to, answer }) = asked(&frame) else { panic!() };
        assert_eq!((from, to), (own.into(), peer.into()));
        let reply = arp::Repr::parse(&answer[14..]).unwrap();
        assert_eq!((reply.sender_mac, reply.sender_ip), (BEYOND, peer));
        assert_eq!(answer[..6], OWN.0);
        // An answer of the card's is no question.
        let frame = framed(EtherType::ARP, &[&reply.to_bytes()]);
        assert_eq!(asked(&frame), None);
    }

    #[test]
    fn everybody_is_beyond_over_ipv6() {
        let [own, peer] = ["2001:db8::1", "2001:db8::2"].map(|it| it.parse::<Ipv6Addr>().unwrap());
        let message = ndp::solicitation(peer, OWN, own);
        let ip = ipv6::Repr {
            traffic_class: 0,
            flow_label: 0,
            next_header: ipv6::NEXT_HEADER_ICMPV6,
            hop_limit: ndp::HOP_LIMIT,
            source: own,
            destination: ndp::solicited_node(peer),
            payload_length: message.len() as u16,
        };
        let frame = framed(EtherType::IPV6, &[&ip.to_bytes(), &message]);
        let Some(Asked::Whose { from, to, answer }) = asked(&frame) else { panic!() };
        assert_eq!((from, to), (own.into(), peer.into()));
        let (ip, payload) = ipv6::Repr::parse(&answer[14..]).unwrap();
        assert_eq!(ndp::parse_advertisement(&ip, payload), Ok((peer, BEYOND)));
    }

    #[test]
    fn reports_of_groups_ask_nothing() {
        let group = Ipv4Addr::new(239, 1, 2, 3);
        let packet = igmp::report(Ipv4Addr::new(10, 0, 0, 1), &[(RecordType::Left, group)]);
        assert_eq!(asked(&framed(EtherType::IPV4, &[&packet])), Some(Asked::Groups));

        let group: Ipv6Addr = "ff0e::1:2".parse().unwrap();
        let (ip, payload) = mld::report("fe80::1".parse().unwrap(), &[(RecordType::Left, group)]);
        let frame = framed(EtherType::IPV6, &[&ip.to_bytes(), &payload]);
        assert_eq!(asked(&frame), Some(Asked::Groups));
    }

    #[test]
    fn cut_frames_ask_for_nobody() {
        let message =
            ndp::solicitation("fe80::2".parse().unwrap(), OWN, "fe80::1".parse().unwrap());
        for length in 0..message.len() {
            let frame = framed(EtherType::IPV6, &[&message[..length]]);
            assert_eq!(asked(&frame), None);
        }
    }
}
