//! What the card asks of its link, answered in place of one: whose an address is, and that somebody has joined a group.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use roce::MacAddr;
use roce::wire::ethernet::{self, EtherType};
use roce::wire::{arp, ipv6, ndp};

/// The Ethernet address behind which all peers are: what is sent there goes by the kernel's routes.
pub(super) const BEYOND: MacAddr = MacAddr([0x02, 0x62, 0x65, 0x79, 0x6f, 0x6e]);

/// A frame that is not RoCE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// Who has an address, asked from one of the card's; the answer, if anybody has.
    Whose { from: IpAddr, to: IpAddr, answer: Vec<u8> },
    /// That the card is in groups, or no more.
    Groups(Vec<(IpAddr, bool)>),
}

/// What a frame of the card's asks; `None` for anything else.
pub(super) fn asked(frame: &[u8]) -> Option<Asked> {
    let (header, packet) = ethernet::Repr::parse(frame).ok()?;
    match header.ethertype {
        EtherType::ARP => whose_ipv4(&header, packet),
        EtherType::IPV4 => reported_ipv4(packet).map(Asked::Groups),
        EtherType::IPV6 => {
            let (ip, payload) = ipv6::Repr::parse(packet).ok()?;
            match ip.next_header {
                ipv6::HOP_BY_HOP => reported_ipv6(payload).map(Asked::Groups),
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

/// Types of records of a report (RFC 3376, 4.2.12; RFC 3810, 5.2.12) that say "in the group, whoever sends to it".
const IS_MEMBER: u8 = 2;
const JOINED: u8 = 4;
/// "No more".
const LEFT: u8 = 3;

fn is_member(kind: u8) -> Option<bool> {
    match kind {
        IS_MEMBER | JOINED => Some(true),
        LEFT => Some(false),
        _ => None,
    }
}

/// The groups of an IGMP report of version 3, in an IPv4 packet with options.
fn reported_ipv4(packet: &[u8]) -> Option<Vec<(IpAddr, bool)>> {
    const REPORT: u8 = 0x22;
    const IGMP: u8 = 2;
    let (&first, &protocol) = (packet.first()?, packet.get(9)?);
    let message = packet.get(usize::from(first & 15).checked_mul(4)?..)?;
    (protocol == IGMP && message.first() == Some(&REPORT)).then_some(())?;
    let records = message.get(8..)?.chunks_exact(8);
    let groups = records.filter_map(|record| match *record {
        [kind, 0, 0, 0, a, b, c, d] => Some((Ipv4Addr::new(a, b, c, d).into(), is_member(kind)?)),
        _ => None,
    });
    Some(groups.collect())
}

/// The groups of an MLD report of version 2, behind its hop-by-hop options.
fn reported_ipv6(payload: &[u8]) -> Option<Vec<(IpAddr, bool)>> {
    const REPORT: u8 = 143;
    let message = payload.get(8..)?;
    (message.first() == Some(&REPORT)).then_some(())?;
    let records = message.get(8..)?.chunks_exact(20);
    let groups = records.filter_map(|record| {
        let (&[kind, 0, 0, 0], group) = record.split_first_chunk::<4>()? else { return None };
        let group = Ipv6Addr::from(*group.first_chunk::<16>()?);
        Some((group.into(), is_member(kind)?))
    });
    Some(groups.collect())
}

#[cfg(test)]
mod tests {
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
    fn groups_are_those_of_the_reports() {
        let group = Ipv4Addr::new(239, 1, 2, 3);
        let other = Ipv4Addr::new(239, 1, 2, 4);
        let own = Ipv4Addr::new(10, 0, 0, 1);
        let packet = igmp::report(own, &[(RecordType::IsMember, group), (RecordType::Left, other)]);
        let groups = vec![(group.into(), true), (other.into(), false)];
        assert_eq!(asked(&framed(EtherType::IPV4, &[&packet])), Some(Asked::Groups(groups)));

        let group: Ipv6Addr = "ff0e::1:2".parse().unwrap();
        let (ip, payload) = mld::report("fe80::1".parse().unwrap(), &[(RecordType::Left, group)]);
        let frame = framed(EtherType::IPV6, &[&ip.to_bytes(), &payload]);
        assert_eq!(asked(&frame), Some(Asked::Groups(vec![(group.into(), false)])));
    }

    #[test]
    fn cut_frames_ask_nothing() {
        let packet =
            igmp::report(Ipv4Addr::new(10, 0, 0, 1), &[(RecordType::Left, [239, 1, 1, 1].into())]);
        let frame = framed(EtherType::IPV4, &[&packet]);
        for length in 0..frame.len() {
            assert!(asked(&frame[..length]).is_none_or(|asked| asked == Asked::Groups(Vec::new())));
        }
    }
}
