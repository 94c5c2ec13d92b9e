//! A card's addresses: the MAC, the node GUID and the GIDs that follow from its IPv4 address.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// The IPv4 address of a card's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAddress {
    /// The address.
    pub ip: Ipv4Addr,
    /// Bits of the network's prefix.
    pub prefix: u8,
}

impl PortAddress {
    /// The address card `number` has when none is given: 10.77.0.(number + 1)/24.
    #[must_use]
    pub fn default_of(number: u32) -> Self {
        let host = u8::try_from(number.saturating_add(1)).unwrap_or(u8::MAX);
        Self { ip: Ipv4Addr::new(10, 77, 0, host), prefix: 24 }
    }

    /// The locally administered MAC address made of it: `02:00` and the four octets.
    #[must_use]
    pub fn mac(&self) -> [u8; 6] {
        let [a, b, c, d] = self.ip.octets();
        [0x02, 0x00, a, b, c, d]
    }

    /// The GID table: 0 is the link-local address of the MAC, 1 the IPv4 address as `::ffff:a.b.c.d`.
    #[must_use]
    pub fn gids(&self) -> [[u8; 16]; 2] {
        [link_local_gid(self.mac()), self.ip.to_ipv6_mapped().octets()]
    }
}

impl FromStr for PortAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (ip, prefix) = text.split_once('/').unwrap_or((text, "24"));
        let ip: Ipv4Addr = ip.parse().map_err(|_| format!("{ip} is no IPv4 address A.B.C.D"))?;
        if let Some(why) = no_host_ipv4(ip) {
            return Err(format!("{ip} cannot be the address of a port: {why}"));
        }
        match prefix.parse() {
            Ok(prefix) if (1..=32).contains(&prefix) => Ok(Self { ip, prefix }),
            _ => Err(format!("/{prefix} is no prefix length from 1 to 32")),
        }
    }
}

/// Whether a GID stands for an IPv4 address.
#[must_use]
pub fn is_ipv4(gid: [u8; 16]) -> bool {
    Ipv6Addr::from(gid).to_ipv4_mapped().is_some()
}

/// The address that a GID stands for, as people write it.
#[must_use]
pub fn text(gid: [u8; 16]) -> String {
    Ipv6Addr::from(gid).to_canonical().to_string()
}

/// Why an address cannot be one of a port that has that MAC address.
#[must_use]
pub fn refusal(gid: [u8; 16], mac: [u8; 6]) -> Option<String> {
    let address = Ipv6Addr::from(gid);
    let why = match address.to_ipv4_mapped() {
        Some(ip) => no_host_ipv4(ip)?,
        None if address.is_unspecified() => "it is the unspecified address",
        None if address.is_multicast() => "it is a multicast address",
        None if address.is_loopback() => "it is the loopback address",
        None => {
            // Peers take the MAC address out of such an address and ask nobody.
            let [0xfe, 0x80, 0, 0, 0, 0, 0, 0, .., 0xff, 0xfe, _, _, _] = gid else { return None };
            if gid == link_local_gid(mac) {
                return None;
            }
            "peers take an Ethernet address out of it, and that is not the card's"
        }
    };
    Some(format!("{} cannot be the address of a port: {why}", text(gid)))
}

/// The kind of an IPv4 address that is not a host's.
fn no_host_ipv4(ip: Ipv4Addr) -> Option<&'static str> {
    match ip {
        ip if ip.is_unspecified() => Some("it is the unspecified address"),
        ip if ip.is_multicast() => Some("it is a multicast address"),
        ip if ip.is_broadcast() => Some("it is the broadcast address"),
        ip if ip.is_loopback() => Some("it is a loopback address"),
        _ => None,
    }
}

/// The node GUID of a MAC address (EUI-64), host order.
#[must_use]
pub fn node_guid(mac: [u8; 6]) -> u64 {
    u64::from_be_bytes(eui64(mac))
}

/// The link-local GID `fe80::/64` of a MAC address, network order.
#[must_use]
pub fn link_local_gid(mac: [u8; 6]) -> [u8; 16] {
    let [a, b, c, d, e, f, g, h] = eui64(mac);
    [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a, b, c, d, e, f, g, h]
}

/// A MAC address as the shell register wants it: first octet highest.
#[must_use]
pub fn mac_register(mac: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

/// A GID as people write it, an IPv6 address.
#[must_use]
pub fn gid_text(gid: [u8; 16]) -> String {
    Ipv6Addr::from(gid).to_string()
}

fn eui64(mac: [u8; 6]) -> [u8; 8] {
    let [a, b, c, d, e, f] = mac;
    [a ^ 0x02, b, c, 0xff, 0xfe, d, e, f]
}

#[cfg(test)]
mod tests {
    use hostmem::netdev::mac_text;

    use super::*;

    #[test]
    fn what_no_host_can_have_is_refused_by_its_kind() {
        let mac = PortAddress::default_of(0).mac();
        let refused = |text: &str| {
            let address: std::net::IpAddr = text.parse().unwrap();
            let gid = match address {
                std::net::IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                std::net::IpAddr::V6(ip) => ip.octets(),
            };
            refusal(gid, mac)
        };
        for (address, why) in [
            ("0.0.0.0", "unspecified"),
            ("224.0.0.1", "multicast"),
            ("239.255.255.255", "multicast"),
            ("255.255.255.255", "broadcast"),
            ("127.0.0.1", "loopback"),
            ("::ffff:127.9.9.9", "127.9.9.9 cannot"),
            ("::", "unspecified"),
            ("::1", "loopback"),
            ("ff02::1", "multicast"),
            ("fe80::aff:fe4d:2", "Ethernet address"),
        ] {
            let told = refused(address).unwrap_or_default();
            assert!(told.contains(why), "{address}: {told:?}");
        }
        for address in ["10.0.0.1", "2001:db8::1", "fd00::1", "fe80::1", "fe80::aff:fe4d:1"] {
            assert_eq!(refused(address), None, "{address}");
        }
    }

    #[test]
    fn the_first_card_has_the_addresses_that_the_documentation_names() {
        let address = PortAddress::default_of(0);
        assert_eq!(address.ip.to_string(), "10.77.0.1");
        assert_eq!(mac_text(address.mac()), "02:00:0a:4d:00:01");
        assert_eq!(mac_register(address.mac()), 0x0200_0a4d_0001);
        let [link_local, ipv4] = address.gids();
        assert_eq!(gid_text(link_local), "fe80::aff:fe4d:1");
        assert_eq!(gid_text(ipv4), "::ffff:10.77.0.1");
        assert_eq!(node_guid(address.mac()), 0x0000_0aff_fe4d_0001);
    }
}
