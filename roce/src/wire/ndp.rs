//! Neighbour solicitation and advertisement of IPv6 (RFC 4861), as far as a port asks and answers.

use core::net::Ipv6Addr;

use super::{Field, Malformed, checksum_add, checksum_finish, ipv6, split};
use crate::types::MacAddr;

/// The length of a solicitation or advertisement without options.
pub const LENGTH: usize = 24;

/// The length of an option with an Ethernet address.
const ADDRESS_OPTION: usize = 8;

/// The length of a solicitation or advertisement with an Ethernet address.
pub const WITH_ADDRESS: usize = LENGTH + ADDRESS_OPTION;

/// The hop limit that proves that no router forwarded the packet.
pub const HOP_LIMIT: u8 = 255;

const TYPE_SOLICITATION: u8 = 135;
const TYPE_ADVERTISEMENT: u8 = 136;
const FLAG_SOLICITED_OVERRIDE: u8 = 0x60;
const OPTION_SOURCE_ADDRESS: u8 = 1;
const OPTION_TARGET_ADDRESS: u8 = 2;

/// Where the fields of a message with an Ethernet address lie. A solicitation has no flags.
mod field {
    use super::{ADDRESS_OPTION, Field, LENGTH};

    pub const TYPE: usize = 0;
    pub const CODE: usize = 1;
    pub const CHECKSUM: Field<2, 2> = Field;
    pub const FLAGS: usize = 4;
    pub const TARGET_ADDRESS: Field<8, 16> = Field;
    pub const OPTION: Field<LENGTH, ADDRESS_OPTION> = Field;
}

/// The multicast address on which `address` is solicited.
#[must_use]
pub fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    Ipv6Addr::from_bits((0xff02 << 112) | 0x1_ff00_0000 | address.to_bits() & 0x00ff_ffff)
}

/// The target of the neighbour solicitation that `packet` carries as its whole payload, checksum
/// and hop limit checked.
pub fn parse_solicitation(ip: &ipv6::Repr, packet: &[u8]) -> Result<Ipv6Addr, Malformed> {
    parse(TYPE_SOLICITATION, ip, packet).map(|(target, _)| target)
}

/// The target of the neighbour advertisement that `packet` carries, and its Ethernet address, which
/// answers to a multicast solicitation have; checksum and hop limit checked.
pub fn parse_advertisement(
    ip: &ipv6::Repr,
    packet: &[u8],
) -> Result<(Ipv6Addr, MacAddr), Malformed> {
    let (target, mut options) = parse(TYPE_ADVERTISEMENT, ip, packet)?;
    while let &[kind, units, a, b, c, d, e, f, ..] = options {
        if kind == OPTION_TARGET_ADDRESS && units == 1 {
            return Ok((target, MacAddr([a, b, c, d, e, f])));
        }
        // An option of no length would be the last one for ever.
        let length = usize::from(units.max(1)).wrapping_mul(ADDRESS_OPTION);
        options = options.get(length..).unwrap_or_default();
    }
    Err(Malformed::Truncated("NDP"))
}

/// The target of a message of that type, and its options.
fn parse<'a>(
    kind: u8,
    ip: &ipv6::Repr,
    packet: &'a [u8],
) -> Result<(Ipv6Addr, &'a [u8]), Malformed> {
    let (header, options) = split::<LENGTH>(packet, "NDP")?;
    if header[field::TYPE] != kind || header[field::CODE] != 0 || ip.hop_limit != HOP_LIMIT {
        return Err(Malformed::Version("NDP"));
    }
    if checksum(ip.source, ip.destination, packet) != 0 {
        return Err(Malformed::Checksum("NDP"));
    }
    let target = Ipv6Addr::from(*field::TARGET_ADDRESS.of(header));
    // RC-14
    if [ip.source, ip.destination, target].iter().any(|it| it.to_ipv4_mapped().is_some()) {
        return Err(Malformed::Mapped("NDP"));
    }
    Ok((target, options))
}

/// The bytes of the solicitation for `target`, sent from `source`, which has the address `mac`, to
/// the [`solicited_node`] address.
#[must_use]
pub fn solicitation(target: Ipv6Addr, mac: MacAddr, source: Ipv6Addr) -> [u8; WITH_ADDRESS] {
    let destination = solicited_node(target);
    message([TYPE_SOLICITATION, 0], OPTION_SOURCE_ADDRESS, target, mac, [source, destination])
}

/// The bytes of the advertisement that answers a solicitation for `target`, which has the address
/// `mac`, sent from `target` to `destination`.
#[must_use]
pub fn advertisement(target: Ipv6Addr, mac: MacAddr, destination: Ipv6Addr) -> [u8; WITH_ADDRESS] {
    let kind = [TYPE_ADVERTISEMENT, FLAG_SOLICITED_OVERRIDE];
    message(kind, OPTION_TARGET_ADDRESS, target, mac, [target, destination])
}

/// A message of a type, with its flags and one option, between two addresses.
fn message(
    [kind, flags]: [u8; 2],
    option: u8,
    target: Ipv6Addr,
    mac: MacAddr,
    [source, destination]: [Ipv6Addr; 2],
) -> [u8; WITH_ADDRESS] {
    let mut bytes = [0; WITH_ADDRESS];
    bytes[field::TYPE] = kind;
    bytes[field::FLAGS] = flags;
    field::TARGET_ADDRESS.put(&mut bytes, target.octets());
    let [a, b, c, d, e, f] = mac.0;
    field::OPTION.put(&mut bytes, [option, 1, a, b, c, d, e, f]);
    let sum = checksum(source, destination, &bytes);
    field::CHECKSUM.put(&mut bytes, sum.to_be_bytes());
    bytes
}

/// The ICMPv6 checksum over pseudo-header and message; 0 for a message whose own is right.
pub(crate) fn checksum(source: Ipv6Addr, destination: Ipv6Addr, message: &[u8]) -> u16 {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    let mut sum = checksum_add(0, &source.octets());
    sum = checksum_add(sum, &destination.octets());
    sum = checksum_add(sum, &length.to_be_bytes());
    sum = checksum_add(sum, &[0, 0, 0, ipv6::NEXT_HEADER_ICMPV6]);
    checksum_finish(checksum_add(sum, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Gid;

    const SOURCE: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
    const TARGET: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0x11, 0x22ff, 0xfe33, 0x4455);

    fn solicitation() -> (ipv6::Repr, Vec<u8>) {
        let destination = solicited_node(TARGET);
        let mut bytes = vec![0; LENGTH];
        bytes[0] = TYPE_SOLICITATION;
        bytes[8..24].copy_from_slice(&TARGET.octets());
        bytes.extend([1, 1, 2, 0, 0, 0, 0, 1]);
        let sum = checksum(SOURCE, destination, &bytes).to_be_bytes();
        bytes[2..4].copy_from_slice(&sum);
        let ip = ipv6::Repr {
            traffic_class: 0,
            flow_label: 0,
            next_header: ipv6::NEXT_HEADER_ICMPV6,
            hop_limit: HOP_LIMIT,
            source: SOURCE,
            destination,
            payload_length: bytes.len() as u16,
        };
        (ip, bytes)
    }

    #[test]
    fn a_solicitation_names_its_target() {
        let (ip, bytes) = solicitation();
        assert_eq!(parse_solicitation(&ip, &bytes), Ok(TARGET));
        let forwarded = ipv6::Repr { hop_limit: 254, ..ip };
        assert!(parse_solicitation(&forwarded, &bytes).is_err());
        for bit in 0..bytes.len() * 8 {
            let mut wrong = bytes.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(parse_solicitation(&ip, &wrong).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn an_advertisement_has_a_right_checksum() {
        let mac = MacAddr([0x02, 0x11, 0x22, 0x33, 0x44, 0x55]);
        let bytes = advertisement(TARGET, mac, SOURCE);
        assert_eq!(checksum(TARGET, SOURCE, &bytes), 0);
        assert_eq!(bytes[24..32], [2, 1, 0x02, 0x11, 0x22, 0x33, 0x44, 0x55]);
    }

    #[test]
    fn an_advertisement_names_its_target_and_where_it_is() {
        let mac = MacAddr([0x02, 0x11, 0x22, 0x33, 0x44, 0x55]);
        let plain = advertisement(TARGET, mac, SOURCE);
        let ip = |length: usize| ipv6::Repr {
            traffic_class: 0,
            flow_label: 0,
            next_header: ipv6::NEXT_HEADER_ICMPV6,
            hop_limit: HOP_LIMIT,
            source: TARGET,
            destination: SOURCE,
            payload_length: length as u16,
        };
        assert_eq!(parse_advertisement(&ip(plain.len()), &plain), Ok((TARGET, mac)));
        assert!(parse_solicitation(&ip(plain.len()), &plain).is_err());
        // Behind another option, and without any.
        let sealed = |options: &[u8]| {
            let mut bytes = [&plain[..LENGTH], options].concat();
            bytes[2..4].fill(0);
            let sum = checksum(TARGET, SOURCE, &bytes).to_be_bytes();
            bytes[2..4].copy_from_slice(&sum);
            bytes
        };
        let behind = sealed(&[&[14, 2][..], &[0; 14], &plain[LENGTH..]].concat());
        assert_eq!(parse_advertisement(&ip(behind.len()), &behind), Ok((TARGET, mac)));
        for options in
            [&[][..], &[2, 1, 2, 0, 0, 0, 0], &[2, 0, 2, 0, 0, 0, 0, 1], &[14, 255, 0, 0]]
        {
            let bytes = sealed(options);
            assert!(parse_advertisement(&ip(bytes.len()), &bytes).is_err(), "{options:?}");
        }
        for bit in 0..plain.len() * 8 {
            let mut wrong = plain;
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(parse_advertisement(&ip(wrong.len()), &wrong).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_solicitation_that_is_made_is_one() {
        let bytes = super::solicitation(TARGET, MacAddr([2, 0, 0, 0, 0, 1]), SOURCE);
        let (ip, expected) = solicitation();
        assert_eq!((&bytes[..], parse_solicitation(&ip, &bytes)), (&expected[..], Ok(TARGET)));
    }

    #[test]
    fn solicited_node_addresses_map_to_ethernet_groups() {
        let group = solicited_node(TARGET);
        assert_eq!(group.to_string(), "ff02::1:ff33:4455");
        let mac = MacAddr::of_group(Gid::from_ipv6(group));
        assert_eq!(mac, MacAddr([0x33, 0x33, 0xff, 0x33, 0x44, 0x55]));
    }
}
