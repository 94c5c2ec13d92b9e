//! IGMP (RFC 3376): queries for members of IPv4's groups, of every version, and reports of version 3.

use core::net::Ipv4Addr;
use core::time::Duration;

use super::{Field, Malformed, checksum_add, checksum_finish, ipv4, split};

/// The protocol number.
pub const PROTOCOL: u8 = 2;

/// Where reports go: all routers that know version 3.
pub const REPORTS_TO: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 22);

/// The group that every host is in, without saying so.
pub const ALL_HOSTS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);

/// Records that a report has at most, so that any Ethernet carries it.
pub const MAX_RECORDS: usize = 180;

const TYPE_QUERY: u8 = 0x11;
const TYPE_REPORT: u8 = 0x22;
/// Bytes of a query of versions 1 and 2, with which that of version 3 begins.
const QUERY: usize = 8;
/// Bytes of a report before its records.
const REPORT: usize = 8;
/// No router forwards the messages.
const TIME_TO_LIVE: u8 = 1;
/// Internetwork control.
const TYPE_OF_SERVICE: u8 = 0xc0;
/// The IP option that has routers look at a packet that is not for them.
const ROUTER_ALERT: [u8; 4] = [0x94, 4, 0, 0];
/// Bytes of an IP header with that option.
const HEADER: usize = ipv4::LENGTH + ROUTER_ALERT.len();
/// The code, in tenths of a second, that the query of version 1 stands for.
const VERSION_1_CODE: u8 = 100;

/// Where the fields of a message lie.
mod field {
    use super::Field;

    pub const TYPE: usize = 0;
    pub const MAX_RESP_CODE: usize = 1;
    pub const CHECKSUM: Field<2, 2> = Field;
    pub const GROUP: Field<4, 4> = Field;
    pub const RECORDS: Field<6, 2> = Field;
}

/// The type of a report's record of a group: those of IGMPv3, which are also MLDv2's. No source is ever named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordType {
    /// The host is a member, as it was before.
    IsMember = 2,
    /// It is none any more.
    Left = 3,
    /// It has become one.
    Joined = 4,
}

/// A question for members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query<A> {
    /// The group asked for; `None` for all.
    pub group: Option<A>,
    /// When the answer is to come at the latest.
    pub within: Duration,
}

/// The query in an IPv4 packet with any options, everything checked that proves it to be one of the link's.
pub fn parse_query(packet: &[u8]) -> Result<Query<Ipv4Addr>, Malformed> {
    let (ip, _) = ipv4::Header::new(packet)?;
    let length = ip.header_length();
    let total = usize::from(ip.total_length());
    let (Some(header), Some(message)) = (packet.get(..length), packet.get(length..total)) else {
        return Err(Malformed::Length("IGMP"));
    };
    if ip.version() != 4 || length < ipv4::LENGTH || ip.time_to_live() != TIME_TO_LIVE {
        return Err(Malformed::Version("IGMP"));
    }
    if ip.is_fragment() {
        return Err(Malformed::Fragment("IGMP"));
    }
    let sum = |bytes| checksum_finish(checksum_add(0, bytes));
    if sum(header) != 0 || sum(message) != 0 {
        return Err(Malformed::Checksum("IGMP"));
    }
    let (query, _) = split::<QUERY>(message, "IGMP")?;
    let group = Ipv4Addr::from(*field::GROUP.of(query));
    let addressed = if group.is_unspecified() { ALL_HOSTS } else { group };
    if query[field::TYPE] != TYPE_QUERY || ip.destination() != addressed {
        return Err(Malformed::Version("IGMP"));
    }
    let code = match query[field::MAX_RESP_CODE] {
        0 if message.len() == QUERY => VERSION_1_CODE,
        code => code,
    };
    let tenths = match code {
        0x80.. if message.len() > QUERY => {
            u32::from(code & 0xf | 0x10) << (u32::from(code >> 4 & 7).wrapping_add(3))
        }
        _ => code.into(),
    };
    let within = Duration::from_millis(u64::from(tenths).saturating_mul(100));
    Ok(Query { group: (!group.is_unspecified()).then_some(group), within })
}

/// The IPv4 packet of a report by a host of that address, or of none. Of the records, up to
/// [`MAX_RECORDS`] are told.
#[must_use]
pub fn report(source: Ipv4Addr, records: &[(RecordType, Ipv4Addr)]) -> Vec<u8> {
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
    let sum = checksum_finish(checksum_add(0, &message));
    if let Some(header) = message.first_chunk_mut::<REPORT>() {
        field::CHECKSUM.put(header, sum.to_be_bytes());
    }
    let ip = ipv4::Repr {
        type_of_service: TYPE_OF_SERVICE,
        time_to_live: TIME_TO_LIVE,
        protocol: PROTOCOL,
        source,
        destination: REPORTS_TO,
        // With the option, which the header's length below counts.
        payload_length: message.len().wrapping_add(ROUTER_ALERT.len()) as u16,
    };
    let mut header = [0; HEADER];
    for (byte, value) in header.iter_mut().zip(ip.to_bytes().into_iter().chain(ROUTER_ALERT)) {
        *byte = value;
    }
    header[ipv4::field::VERSION_IHL] = 0x40 | (HEADER >> 2) as u8;
    ipv4::field::HEADER_CHECKSUM.put(&mut header, [0; 2]);
    let sum = checksum_finish(checksum_add(0, &header));
    ipv4::field::HEADER_CHECKSUM.put(&mut header, sum.to_be_bytes());
    [&header[..], &message].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);

    /// A query with a router alert, as those of version 3 have.
    fn query(group: Ipv4Addr, to: Ipv4Addr, code: u8, rest: &[u8]) -> Vec<u8> {
        let mut packet = report(SOURCE, &[]);
        let mut message = vec![TYPE_QUERY, code, 0, 0];
        message.extend(group.octets());
        message.extend(rest);
        let sum = checksum_finish(checksum_add(0, &message)).to_be_bytes();
        message[2..4].copy_from_slice(&sum);
        packet.truncate(HEADER);
        packet[16..20].copy_from_slice(&to.octets());
        packet[2..4].copy_from_slice(&((HEADER + message.len()) as u16).to_be_bytes());
        packet[10..12].fill(0);
        let sum = checksum_finish(checksum_add(0, &packet)).to_be_bytes();
        packet[10..12].copy_from_slice(&sum);
        packet.extend(message);
        packet
    }

    #[test]
    fn queries_of_all_versions_say_of_which_group_and_until_when() {
        let none = Ipv4Addr::UNSPECIFIED;
        let within = |packet: &[u8]| parse_query(packet).unwrap().within.as_millis();
        let version_3 = query(none, ALL_HOSTS, 100, &[2, 125, 0, 0]);
        assert_eq!(parse_query(&version_3).unwrap().group, None);
        assert_eq!(within(&version_3), 10_000);
        assert_eq!(within(&query(none, ALL_HOSTS, 0, &[])), 10_000, "version 1");
        assert_eq!(within(&query(none, ALL_HOSTS, 0, &[2, 125, 0, 0])), 0);
        assert_eq!(within(&query(GROUP, GROUP, 10, &[])), 1_000, "version 2");
        assert_eq!(within(&query(GROUP, GROUP, 0x9f, &[])), 15_900, "version 2");
        // 0x9f: (15 + 16) << (1 + 3) tenths.
        assert_eq!(within(&query(GROUP, GROUP, 0x9f, &[2, 125, 0, 0])), 49_600);
        assert_eq!(parse_query(&query(GROUP, GROUP, 10, &[])).unwrap().group, Some(GROUP));
        // Padded by Ethernet.
        assert!(parse_query(&[&version_3[..], &[9; 12]].concat()).is_ok());
    }

    #[test]
    fn what_is_no_query_of_the_links_is_none() {
        let good = query(GROUP, GROUP, 10, &[2, 125, 0, 0]);
        assert!(parse_query(&good).is_ok());
        for bit in 0..good.len() * 8 {
            let mut wrong = good.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(parse_query(&wrong).is_err(), "bit {bit}");
        }
        for length in 0..good.len() {
            assert!(parse_query(&good[..length]).is_err(), "{length} bytes");
        }
        assert!(parse_query(&query(GROUP, ALL_HOSTS, 10, &[])).is_err());
        assert!(parse_query(&report(SOURCE, &[(RecordType::Joined, GROUP)])).is_err());
    }

    #[test]
    fn a_report_is_that_of_the_specification() {
        let packet = report(SOURCE, &[(RecordType::Joined, GROUP)]);
        let (ip, message) = packet.split_at(HEADER);
        assert_eq!(ip[0], 0x46);
        assert_eq!(ip[2..4], [0, 40]);
        assert_eq!(ip[8..10], [1, 2]);
        assert_eq!(ip[12..], [10, 0, 0, 1, 224, 0, 0, 22, 0x94, 4, 0, 0]);
        assert_eq!(checksum_finish(checksum_add(0, ip)), 0);
        assert_eq!(checksum_finish(checksum_add(0, message)), 0);
        assert_eq!((message[0], &message[6..]), (0x22, &[0, 1, 4, 0, 0, 0, 239, 1, 2, 3][..]));
        let many = vec![(RecordType::IsMember, GROUP); MAX_RECORDS + 9];
        assert!(report(SOURCE, &many).len() <= 1500);
    }
}
