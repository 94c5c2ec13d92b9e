//! GIDs of IPv4 addresses, which are all that a published card has.

use std::net::{Ipv4Addr, Ipv6Addr};

/// The IPv4 address of a GID, as a number.
pub(crate) fn ipv4_of(gid: [u8; 16]) -> Option<u32> {
    Ipv6Addr::from(gid).to_ipv4_mapped().map(u32::from)
}

/// The GID of an IPv4 address.
pub(crate) fn gid_of(ipv4: u32) -> [u8; 16] {
    Ipv4Addr::from(ipv4).to_ipv6_mapped().octets()
}
