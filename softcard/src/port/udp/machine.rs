//! The machine's own network, as far as a card stands on it: devices, their addresses and MTUs.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};

use hostmem::netdev;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use nix::sys::socket::SockaddrStorage;
use roce::PathMtu;
pub use roce::param::ROCE_UDP_PORT;

use super::frames::Pair;
use crate::link::UdpLink;

/// The smallest MTU of a device: every IPv4 host takes it whole, and it holds a path MTU of 256 with every header.
pub const LEAST_MTU: u32 = 576;

/// An address of the machine's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineAddress {
    /// The address.
    pub ip: IpAddr,
    /// Bits of its network's prefix.
    pub prefix: u8,
}

/// A device of the machine's, and its addresses for a card on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineDevice {
    /// Its name.
    pub name: String,
    /// Its number.
    pub index: u32,
    /// Whether it is up and has a carrier.
    pub is_up: bool,
    /// Bytes that it takes in one packet.
    pub mtu: u32,
    /// Link-local ones first, then IPv4, then IPv6, each in the kernel's order.
    pub addresses: Vec<MachineAddress>,
}

impl MachineDevice {
    /// The largest path MTU that the device carries whole.
    #[must_use]
    pub fn path_mtu(&self) -> Option<PathMtu> {
        path_mtu(self.mtu, 0)
    }
}

/// The largest path MTU whose packets a device of an MTU carries whole, where each is so many bytes longer.
#[must_use]
pub fn path_mtu(device: u32, longer: usize) -> Option<PathMtu> {
    use PathMtu::{Mtu256, Mtu512, Mtu1024, Mtu2048, Mtu4096};
    // IPv6, UDP, the longest transport headers, immediate data and the invariant CRC.
    const HEADERS: u32 = 40 + 8 + 12 + 28 + 4 + 4;
    let most = u32::try_from(longer).ok().and_then(|longer| device.checked_sub(longer))?;
    let fits = |mtu: &PathMtu| mtu.bytes().saturating_add(HEADERS) <= most;
    [Mtu4096, Mtu2048, Mtu1024, Mtu512, Mtu256].into_iter().find(fits)
}

/// The device and addresses that a card on `link` has now.
///
/// # Errors
/// A sentence: no such device, no address, an address of no device, an MTU below [`LEAST_MTU`].
pub fn find(link: &UdpLink) -> Result<MachineDevice, String> {
    let all = getifaddrs().map_err(|errno| format!("the machine's addresses: {errno}"))?;
    let mut found: Vec<Listed> = Vec::new();
    let mut names: Vec<(String, bool)> = Vec::new();
    for entry in all {
        let is_up = entry.flags.contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_LOWER_UP);
        // The label of an address begins with the name of its device and a colon, which no name has.
        let name = entry.interface_name.split(':').next().unwrap_or_default().to_owned();
        if !names.iter().any(|(other, _)| *other == name) {
            names.push((name.clone(), is_up));
        }
        let Some(ip) = entry.address.as_ref().and_then(ip_of) else { continue };
        let mask = entry.netmask.as_ref().and_then(ip_of);
        let prefix = mask.map_or(0, prefix_of);
        found.push(Listed { device: name, address: MachineAddress { ip, prefix } });
    }
    let (name, only) = match link {
        UdpLink::Device(name) => (name.clone(), None),
        UdpLink::Address(ip) => (device_of(*ip, &found)?, Some(*ip)),
        UdpLink::DefaultRoute => {
            let ip = default_source().ok_or_else(|| {
                "no route leads out of this machine; name a device or an address: udp:DEVICE, udp:ADDRESS"
                    .to_owned()
            })?;
            (device_of(ip, &found)?, None)
        }
    };
    let Some((_, is_up)) = names.iter().find(|(other, _)| *other == name) else {
        return Err(format!(
            "there is no network device {name}; `ip -br link` lists those that there are"
        ));
    };
    let index = if_nametoindex(name.as_str()).map_err(|errno| format!("{name}: {errno}"))?;
    let addresses = match only {
        Some(ip) => {
            let listed = found.iter().map(|it| it.address).find(|it| it.ip == ip);
            // An address of the loopback network is the machine's without being listed.
            vec![listed.unwrap_or(MachineAddress { ip, prefix: 8 })]
        }
        None => ordered(found.iter().filter(|it| it.device == name).map(|it| it.address)),
    };
    if addresses.is_empty() {
        return Err(format!(
            "{name} has no address; give it one: ip addr add ADDRESS/PREFIX dev {name}"
        ));
    }
    let mtu = netdev::mtu(&name).map_err(|error| format!("{name}: {error}"))?;
    if mtu < LEAST_MTU {
        return Err(format!(
            "{name} has an MTU of {mtu}, and a card needs {LEAST_MTU}; raise it: ip link set {name} mtu 1500"
        ));
    }
    Ok(MachineDevice { name, index, is_up: *is_up, mtu, addresses })
}

/// Whether the machine knows a way from one of its addresses to another address, and may use it.
#[must_use]
pub fn has_route(from: IpAddr, device: u32, to: IpAddr) -> bool {
    let Ok(socket) = UdpSocket::bind(scoped(from, device, 0)) else { return false };
    socket.connect(scoped(to, device, 9)).is_ok()
}

/// The address that the machine would send from to another.
#[must_use]
pub fn source_to(to: IpAddr) -> Option<IpAddr> {
    let unspecified = match to {
        IpAddr::V4(_) => IpAddr::from([0; 4]),
        IpAddr::V6(_) => IpAddr::from([0; 16]),
    };
    let socket = UdpSocket::bind(SocketAddr::new(unspecified, 0)).ok()?;
    socket.connect(SocketAddr::new(to, 9)).ok()?;
    socket.local_addr().ok().map(|local| local.ip())
}

/// An address with a port, by a device where it is a link's alone.
pub(super) fn scoped(ip: IpAddr, device: u32, port: u16) -> SocketAddr {
    match ip {
        IpAddr::V6(ip) if is_of_link(ip) => std::net::SocketAddrV6::new(ip, port, 0, device).into(),
        ip => SocketAddr::new(ip, port),
    }
}

/// The device by which a datagram between two addresses leaves, where one of them is valid on one link only; 0 where
/// the route decides.
pub(super) fn device_between(device: u32, pair: Pair) -> u32 {
    let needs_it = |ip| match ip {
        IpAddr::V6(ip) => is_of_link(ip) || ip.is_multicast(),
        IpAddr::V4(ip) => ip.is_multicast(),
    };
    if needs_it(pair.own) || needs_it(pair.peer) { device } else { 0 }
}

/// Whether an address is valid on one link only.
pub(super) fn is_of_link(ip: Ipv6Addr) -> bool {
    let [first, ..] = ip.segments();
    ip.is_unicast_link_local() || first & 0xff0f == 0xff02
}

/// The address by which the machine leaves for the world: to addresses that are for documents, so that nothing is sent.
fn default_source() -> Option<IpAddr> {
    let world = [IpAddr::from([198, 51, 100, 1]), "2001:db8::1".parse().ok()?];
    world.into_iter().find_map(source_to)
}

/// An address of the machine's, and the device that has it.
struct Listed {
    device: String,
    address: MachineAddress,
}

fn device_of(ip: IpAddr, found: &[Listed]) -> Result<String, String> {
    let listed = |is: &dyn Fn(IpAddr) -> bool| {
        found.iter().find(|it| is(it.address.ip)).map(|it| it.device.clone())
    };
    let is_loopback = ip.is_ipv4() && ip.is_loopback();
    listed(&|of| of == ip)
        .or_else(|| is_loopback.then(|| listed(&|of| of.is_loopback())).flatten())
        .ok_or_else(|| {
            format!("{ip} is no address of this machine; `ip -br addr` lists those that it has")
        })
}

/// Link-local ones first, then IPv4, then IPv6. The loopback address of IPv6 is no address of a port.
fn ordered(addresses: impl Iterator<Item = MachineAddress>) -> Vec<MachineAddress> {
    let place = |it: &MachineAddress| match it.ip {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => 0,
        IpAddr::V4(_) => 1,
        IpAddr::V6(_) => 2,
    };
    let mut all: Vec<_> = addresses.filter(|it| it.ip != IpAddr::V6(Ipv6Addr::LOCALHOST)).collect();
    all.sort_by_key(place);
    all
}

fn ip_of(address: &SockaddrStorage) -> Option<IpAddr> {
    if let Some(v4) = address.as_sockaddr_in() {
        return Some(v4.ip().into());
    }
    address.as_sockaddr_in6().map(|it| it.ip().into())
}

fn prefix_of(mask: IpAddr) -> u8 {
    let ones = match mask {
        IpAddr::V4(mask) => mask.to_bits().leading_ones(),
        IpAddr::V6(mask) => mask.to_bits().leading_ones(),
    };
    u8::try_from(ones).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> MachineAddress {
        MachineAddress { ip: text.parse().unwrap(), prefix: 24 }
    }

    #[test]
    fn addresses_are_in_the_order_of_a_gid_table() {
        let all = ["2001:db8::1", "10.0.0.1", "::1", "fe80::1", "10.0.0.2"].map(address);
        let ordered: Vec<String> =
            ordered(all.into_iter()).iter().map(|it| it.ip.to_string()).collect();
        assert_eq!(ordered, ["fe80::1", "10.0.0.1", "10.0.0.2", "2001:db8::1"]);
    }

    #[test]
    fn a_path_mtu_is_what_the_device_takes_with_every_header() {
        let of = |mtu| {
            let (name, addresses) = (String::new(), Vec::new());
            MachineDevice { name, index: 0, is_up: true, mtu, addresses }.path_mtu()
        };
        assert_eq!(of(1500), Some(PathMtu::Mtu1024));
        assert_eq!(of(9000), Some(PathMtu::Mtu4096));
        assert_eq!(of(4192), Some(PathMtu::Mtu4096));
        assert_eq!(of(4191), Some(PathMtu::Mtu2048));
        assert_eq!(of(LEAST_MTU), Some(PathMtu::Mtu256));
        assert_eq!(path_mtu(4208, 16), Some(PathMtu::Mtu4096));
        assert_eq!(path_mtu(4207, 16), Some(PathMtu::Mtu2048));
        assert_eq!(path_mtu(1500, usize::MAX), None);
    }

    #[test]
    fn what_cannot_be_stood_on_is_told_in_a_sentence() {
        let device = UdpLink::Device("no-such-device".into());
        let told = find(&device).unwrap_err();
        assert!(told.starts_with("there is no network device no-such-device; `ip"), "{told}");
        let foreign = UdpLink::Address("198.51.100.7".parse().unwrap());
        let told = find(&foreign).unwrap_err();
        assert!(told.starts_with("198.51.100.7 is no address of this machine; `ip"), "{told}");
    }

    #[test]
    fn every_address_of_the_loopback_network_is_the_machines() {
        let found = find(&UdpLink::Address("127.0.0.9".parse().unwrap())).unwrap();
        assert_eq!(
            found.addresses,
            [MachineAddress { ip: "127.0.0.9".parse().unwrap(), prefix: 8 }]
        );
        assert_eq!(found.path_mtu(), Some(PathMtu::Mtu4096));
        assert!(has_route("127.0.0.9".parse().unwrap(), found.index, "127.0.0.1".parse().unwrap()));
    }
}
