//! The network device of the machine that has an address.

use std::net::Ipv6Addr;

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::if_nametoindex;

/// The addresses of the network devices in this process's network namespace, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses(Vec<(Ipv6Addr, String)>);

impl Addresses {
    /// Asks the kernel; where it does not answer there are none.
    #[must_use]
    pub fn look() -> Self {
        let found = getifaddrs().into_iter().flatten();
        Self(found.filter_map(|it| Some((address_of(&it)?, it.interface_name))).collect())
    }

    /// These addresses, each with its device; those of IPv4 are mapped into IPv6, as GIDs are.
    #[must_use]
    pub fn of(addresses: Vec<(Ipv6Addr, String)>) -> Self {
        Self(addresses)
    }

    /// The name of the device that has a GID's address, outside any VLAN of the card's own.
    #[must_use]
    pub fn device(&self, gid: [u8; 16]) -> Option<&str> {
        let gid = Ipv6Addr::from(gid);
        let found = self.0.iter().find(|(address, _)| *address == gid);
        found.map(|(_, device)| device.as_str()).filter(|_| !gid.is_unspecified())
    }

    /// The index of that device, 0 where there is none.
    #[must_use]
    pub fn device_index(&self, gid: [u8; 16]) -> u32 {
        self.device(gid).and_then(|device| if_nametoindex(device).ok()).unwrap_or(0)
    }
}

fn address_of(found: &InterfaceAddress) -> Option<Ipv6Addr> {
    let address = found.address.as_ref()?;
    let four = address.as_sockaddr_in().map(|it| it.ip().to_ipv6_mapped());
    four.or_else(|| address.as_sockaddr_in6().map(|it| it.ip()))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn the_loopback_device_has_its_address_and_nobody_an_unspecified_one() {
        let here = Addresses::look();
        let gid = Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets();
        // In a network namespace whose loopback device is down it has no address.
        if let Some(device) = here.device(gid) {
            assert_eq!(if_nametoindex(device).ok(), Some(here.device_index(gid)));
        }
        let (nowhere, name) = (Ipv6Addr::UNSPECIFIED, "eth0".to_owned());
        assert_eq!(Addresses::of(vec![(nowhere, name)]).device([0; 16]), None);
        assert_eq!(here.device_index([0xfd; 16]), 0);
    }
}
