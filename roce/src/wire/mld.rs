//! Multicast Listener Discovery (RFC 3810): queries for members of IPv6's groups, of both versions, and
//! reports of version 2.

use core::net::Ipv6Addr;
use core::time::Duration;

use super::igmp::{Query, RecordType};
use super::ndp::checksum;
use super::{Field, Malformed, ipv6, split};

/// Where reports go: all routers that know version 2.
pub const REPORTS_TO: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);

/// The group that every host is in, without saying so.
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Records that a report has at most, so that any Ethernet carries it.
pub const MAX_RECORDS: usize = 70;

const TYPE_QUERY: u8 = 130;
const TYPE_REPORT: u8 = 143;
/// Bytes of a query of version 1, with which that of version 2 begins.
const QUERY: usize = 24;
/// Bytes of a report before its records.
const REPORT: usize = 8;
/// No router forwards the messages.
const HOP_LIMIT: u8 = 1;
/// The header of hop-by-hop options: one of them, the router alert, and padding.
const OPTIONS: [u8; 8] = [ipv6::NEXT_HEADER_ICMPV6, 0, 5, 2, 0, 0, 1, 0];
/// The number of the router alert among options, and that of a padding byte.
const ROUTER_ALERT: u8 = 5;
const PADDING: u8 = 0;

/// Where the fields of a message lie.
mod field {
    use super::Field;

    pub const TYPE: usize = 0;
    pub const CODE: usize = 1;
    pub const CHECKSUM: Field<2, 2> = Field;
    pub const MAX_RESP_CODE: Field<4, 2> = Field;
    pub const RECORDS: Field<6, 2> = Field;
    pub const GROUP: Field<8, 16> = Field;
}

/// The query that `packet` carries, all that follows the IPv6 header; everything checked that proves it to
/// be one of the link's.
pub fn parse_query(ip: &ipv6::Repr, packet: &[u8]) -> Result<Query<Ipv6Addr>, Malformed> {
    let from_link = ip.source.to_bits() >> 118 == 0xfe80 >> 6;
    if ip.next_header != ipv6::HOP_BY_HOP || ip.hop_limit != HOP_LIMIT || !from_link {
        return Err(Malformed::Version("MLD"));
    }
    let message = behind_alert(packet).ok_or(Malformed::Version("MLD"))?;
    let (query, _) = split::<QUERY>(message, "MLD")?;
    if query[field::TYPE] != TYPE_QUERY || query[field::CODE] != 0 {
        return Err(Malformed::Version("MLD"));
    }
    if checksum(ip.source, ip.destination, message) != 0 {
        return Err(Malformed::Checksum("MLD"));
    }
    let group = Ipv6Addr::from(*field::GROUP.of(query));
    let addressed = if group.is_unspecified() { ALL_NODES } else { group };
    if ip.destination != addressed {
        return Err(Malformed::Version("MLD"));
    }
    let code = u32::from(u16::from_be_bytes(*field::MAX_RESP_CODE.of(query)));
    let millis = match code {
        0x8000.. if message.len() > QUERY => {
            (code & 0xfff | 0x1000) << ((code >> 12 & 7).wrapping_add(3))
        }
        _ => code,
    };
    let within = Duration::from_millis(millis.into());
    Ok(Query { group: (!group.is_unspecified()).then_some(group), within })
}

/// The ICMPv6 message behind hop-by-hop options, of which one is the router alert.
fn behind_alert(packet: &[u8]) -> Option<&[u8]> {
    let &[ipv6::NEXT_HEADER_ICMPV6, units, ..] = packet else { return None };
    let length = usize::from(units).wrapping_add(1).wrapping_mul(8);
    let (header, message) = packet.split_at_checked(length)?;
    let mut options = header.get(2..)?;
    loop {
        match *options {
            [PADDING, ref rest @ ..] => options = rest,
            [ROUTER_ALERT, 2, 0, 0, ..] => return Some(message),
            [_, length, ref rest @ ..] => options = rest.get(usize::from(length)..)?,
            _ => return None,
        }
    }
}

/// The bytes behind the IPv6 header of a report by a host of that address, or of none: its next header is that of
/// hop-by-hop options. Of the records, up to [`MAX_RECORDS`] are told.
#[must_use]
pub fn report(source: Ipv6Addr, records: &[(RecordType, Ipv6Addr)]) -> (ipv6::Repr, Vec<u8>) {
    let records = records.get(..records.len().min(MAX_RECORDS)).unwrap_or_default();
    let mut message = vec![0; REPORT];
    for (kind, group) in records {
        message.extend([*kind as u8, 0, 0, 0]);
        message.extend(group.octets());
    }
    if let Some(header) = message.first_chunk_mut::<REPORT>() {
        header[field::TYPE] = TYPE_REPORT;
        field::RECORDS.put(header, (records.len() as u16).to_be_bytes());
    }
    let sum = checksum(source, REPORTS_TO, &message);
    if let Some(header) = message.first_chunk_mut::<REPORT>() {
        field::CHECKSUM.put(header, sum.to_be_bytes());
    }
    let payload = [&OPTIONS[..], &message].concat();
    let ip = ipv6::Repr {
        traffic_class: 0,
        flow_label: 0,
        next_header: ipv6::HOP_BY_HOP,
        hop_limit: HOP_LIMIT,
        source,
        destination: REPORTS_TO,
        payload_length: payload.len() as u16,
    };
    (ip, payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
    const GROUP: Ipv6Addr = Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0, 1, 2);

    fn query(group: Ipv6Addr, to: Ipv6Addr, code: u16, rest: &[u8]) -> (ipv6::Repr, Vec<u8>) {
        let mut message = vec![TYPE_QUERY, 0, 0, 0];
        message.extend(code.to_be_bytes());
        message.extend([0, 0]);
        message.extend(group.octets());
        message.extend(rest);
        let sum = checksum(SOURCE, to, &message).to_be_bytes();
        message[2..4].copy_from_slice(&sum);
        let payload = [&OPTIONS[..], &message].concat();
        let (ip, _) = report(SOURCE, &[]);
        (ipv6::Repr { destination: to, payload_length: payload.len() as u16, ..ip }, payload)
    }

    #[test]
    fn queries_of_both_versions_say_of_which_group_and_until_when() {
        let parse = |(ip, packet): (ipv6::Repr, Vec<u8>)| parse_query(&ip, &packet).unwrap();
        let within = |query| parse(query).within.as_millis();
        let none = Ipv6Addr::UNSPECIFIED;
        assert_eq!(parse(query(none, ALL_NODES, 10_000, &[2, 125, 0, 0])).group, None);
        assert_eq!(within(query(none, ALL_NODES, 10_000, &[2, 125, 0, 0])), 10_000);
        assert_eq!(parse(query(GROUP, GROUP, 1_000, &[])).group, Some(GROUP));
        assert_eq!(within(query(GROUP, GROUP, 0xffff, &[])), 0xffff, "version 1");
        assert_eq!(within(query(GROUP, GROUP, 0x9fff, &[2, 125, 0, 0])), 0x1fff << 4);
    }

    #[test]
    fn what_is_no_query_of_the_links_is_none() {
        let (ip, good) = query(GROUP, GROUP, 1_000, &[2, 125, 0, 0]);
        for bit in 0..good.len() * 8 {
            let mut wrong = good.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            // Of the options, padding may be anything that is skipped.
            let is_padding = (48..64).contains(&bit);
            assert!(is_padding || parse_query(&ip, &wrong).is_err(), "bit {bit}");
        }
        for length in 0..good.len() {
            assert!(parse_query(&ip, &good[..length]).is_err(), "{length} bytes");
        }
        for other in [
            ipv6::Repr { hop_limit: 2, ..ip },
            ipv6::Repr { next_header: ipv6::NEXT_HEADER_ICMPV6, ..ip },
            ipv6::Repr { source: "2001:db8::1".parse().unwrap(), ..ip },
            ipv6::Repr { destination: ALL_NODES, ..ip },
        ] {
            assert!(parse_query(&other, &good).is_err(), "{other:?}");
        }
    }

    #[test]
    fn a_report_is_that_of_the_specification() {
        let (ip, packet) = report(SOURCE, &[(RecordType::Left, GROUP)]);
        assert_eq!((ip.next_header, ip.hop_limit, ip.payload_length), (0, 1, 36));
        assert_eq!(packet[..8], [58, 0, 5, 2, 0, 0, 1, 0]);
        let message = &packet[8..];
        assert_eq!(checksum(SOURCE, REPORTS_TO, message), 0);
        assert_eq!((message[0], message[1]), (143, 0));
        assert_eq!(message[4..12], [0, 0, 0, 1, 3, 0, 0, 0]);
        assert_eq!(message[12..], GROUP.octets());
        let many = vec![(RecordType::IsMember, GROUP); MAX_RECORDS + 9];
        assert!(40 + report(SOURCE, &many).1.len() <= 1500);
    }
}
