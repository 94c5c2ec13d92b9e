//! Neighbour solicitation and advertisement of IPv6 (RFC 4861), as far as a port must answer them.

use core::net::Ipv6Addr;

use super::{Malformed, checksum_add, checksum_finish, ipv6, split};
use crate::types::MacAddr;

/// The length of a solicitation or advertisement without options.
pub const LENGTH: usize = 24;

/// The length of an advertisement with the target's Ethernet address.
pub const ADVERTISEMENT_LENGTH: usize = LENGTH + 8;

/// The hop limit that proves that no router forwarded the packet.
pub const HOP_LIMIT: u8 = 255;

const TYPE_SOLICITATION: u8 = 135;
const TYPE_ADVERTISEMENT: u8 = 136;
const FLAG_SOLICITED_OVERRIDE: u8 = 0x60;
const OPTION_TARGET_ADDRESS: u8 = 2;

/// The multicast address on which `address` is solicited.
#[must_use]
pub fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    Ipv6Addr::from_bits((0xff02 << 112) | 0x1_ff00_0000 | address.to_bits() & 0x00ff_ffff)
}

/// The Ethernet group address of an IPv6 multicast address (RFC 2464).
#[must_use]
pub fn multicast_mac(address: Ipv6Addr) -> MacAddr {
    let [a, b, c, d] = (address.to_bits() as u32).to_be_bytes();
    MacAddr([0x33, 0x33, a, b, c, d])
}

/// The target of the neighbour solicitation that `packet` carries as its whole payload, checksum
/// and hop limit checked.
pub fn parse_solicitation(ip: &ipv6::Repr, packet: &[u8]) -> Result<Ipv6Addr, Malformed> {
    let (header, _options) = split::<LENGTH>(packet, "NDP")?;
    if header[0] != TYPE_SOLICITATION || header[1] != 0 || ip.hop_limit != HOP_LIMIT {
        return Err(Malformed::Version("NDP"));
    }
    if checksum(ip.source, ip.destination, packet) != 0 {
        return Err(Malformed::Checksum("NDP"));
    }
    let target: &[u8; 16] = header.last_chunk().unwrap_or(&[0; 16]);
    Ok(Ipv6Addr::from(*target))
}

/// The bytes of the advertisement that answers a solicitation for `target`, which has the address
/// `mac`, sent from `target` to `destination`.
#[must_use]
pub fn advertisement(
    target: Ipv6Addr,
    mac: MacAddr,
    destination: Ipv6Addr,
) -> [u8; ADVERTISEMENT_LENGTH] {
    let mut bytes = [0; ADVERTISEMENT_LENGTH];
    bytes[0] = TYPE_ADVERTISEMENT;
    bytes[4] = FLAG_SOLICITED_OVERRIDE;
    bytes[8..24].copy_from_slice(&target.octets());
    bytes[24] = OPTION_TARGET_ADDRESS;
    bytes[25] = 1;
    bytes[26..32].copy_from_slice(&mac.0);
    let [c0, c1] = checksum(target, destination, &bytes).to_be_bytes();
    bytes[2] = c0;
    bytes[3] = c1;
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
    fn solicited_node_addresses_map_to_ethernet_groups() {
        let group = solicited_node(TARGET);
        assert_eq!(group.to_string(), "ff02::1:ff33:4455");
        assert_eq!(multicast_mac(group), MacAddr([0x33, 0x33, 0xff, 0x33, 0x44, 0x55]));
    }
}
