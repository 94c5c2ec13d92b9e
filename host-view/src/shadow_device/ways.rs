//! Routes of the kernel's: the devices by which they leave, and the MTU that their administrator gave them.
//!
//! What the kernel has learnt of a route from ICMP is not in them: anybody can forge that.

use std::net::IpAddr;

use nix::errno::Errno;

use super::netlink::{NLM_F_DUMP, Routes};
use crate::message::{Message, attributes, u16_at, u32_at};

const RTM_GETLINK: u16 = 18;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const IFLA_MTU: u16 = 4;
/// Bytes of an ifinfomsg, and of an rtmsg, before their attributes.
const LINK_BODY: usize = 16;
const ROUTE_BODY: usize = 12;
const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_METRICS: u16 = 8;
const RTA_MULTIPATH: u16 = 9;
const RTA_IP_PROTO: u16 = 27;
const RTA_DPORT: u16 = 29;
const RTAX_MTU: u16 = 2;
/// Bytes of an rtnexthop: length (u16), flags, hops, the device.
const HOP: usize = 8;
const RTN_UNICAST: u8 = 1;
/// The route itself is wanted, and not what the kernel made of it.
const RTM_F_FIB_MATCH: u32 = 0x2000;
const RTM_F_CLONED: u32 = 0x200;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const UDP: u8 = 17;

/// A datagram whose route is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The address of this machine's that it leaves from.
    pub from: IpAddr,
    /// Where it goes.
    pub to: IpAddr,
    /// Its UDP port there.
    pub port: u16,
    /// The device that it leaves by, where the addresses do not tell.
    pub device: Option<u32>,
}

/// A route.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Way {
    /// Whether it leads to another machine.
    leaves: bool,
    /// The devices by which it leaves.
    devices: Vec<u32>,
    /// The MTU that it was given.
    mtu: Option<u32>,
}

impl Routes {
    /// Bytes that the route of a datagram carries in one packet, as the machine's administrator has it: its MTU, or that of
    /// the device. `None` where it does not leave the machine.
    ///
    /// # Errors
    /// The kernel's: ENETUNREACH and others where there is no route.
    pub fn mtu_of(&self, asked: &Asked) -> Result<Option<u32>, Errno> {
        let [from, to] = [asked.from, asked.to].map(octets);
        let family = if asked.to.is_ipv4() { AF_INET } else { AF_INET6 };
        let bits = |address: &[u8]| u8::try_from(address.len()).unwrap_or(0).saturating_mul(8);
        let mut body = vec![family, bits(&to), bits(&from), 0, 0, 0, 0, 0];
        body.extend(RTM_F_FIB_MATCH.to_ne_bytes());
        let fill = |message: Message| {
            let message = message.with(RTA_DST, &to).with(RTA_SRC, &from);
            let message = match asked.device {
                Some(device) => message.with(RTA_OIF, &device.to_ne_bytes()),
                None => message,
            };
            message.with(RTA_IP_PROTO, &[UDP]).with(RTA_DPORT, &asked.port.to_be_bytes())
        };
        let mut found = None;
        self.ask(RTM_GETROUTE, 0, &body, fill, |kind, body| {
            found = (kind == RTM_NEWROUTE).then(|| way(body)).flatten().or(found.take());
        })?;
        let Some(Way { mtu, devices, .. }) = found.filter(|way| way.leaves) else {
            return Ok(None);
        };
        let mut least = mtu;
        for device in devices {
            least = least.into_iter().chain(self.mtu_of_link(device)?).min();
        }
        Ok(least)
    }

    /// The smallest MTU that a route by a device was given; `None` where none was given any.
    ///
    /// # Errors
    /// The kernel's.
    pub fn least_mtu_by(&self, device: u32) -> Result<Option<u32>, Errno> {
        let mut least = None;
        for family in [AF_INET, AF_INET6] {
            let mut body = vec![0; ROUTE_BODY];
            if let Some(first) = body.first_mut() {
                *first = family;
            }
            self.ask(
                RTM_GETROUTE,
                NLM_F_DUMP,
                &body,
                |message| message,
                |kind, body| {
                    let way = (kind == RTM_NEWROUTE).then(|| way(body)).flatten();
                    let by_it = way.filter(|way| way.leaves && way.devices.contains(&device));
                    least = least.into_iter().chain(by_it.and_then(|way| way.mtu)).min();
                },
            )?;
        }
        Ok(least)
    }

    /// Bytes that a link takes in one packet.
    fn mtu_of_link(&self, index: u32) -> Result<Option<u32>, Errno> {
        let body: Vec<u8> = [0, index, 0, 0].into_iter().flat_map(u32::to_ne_bytes).collect();
        let mut mtu = None;
        self.ask(
            RTM_GETLINK,
            0,
            &body,
            |message| message,
            |_, body| {
                let value = attributes(body, LINK_BODY).find(|(kind, _)| *kind == IFLA_MTU);
                mtu = value.and_then(|(_, value)| u32_at(value, 0)).or(mtu);
            },
        )?;
        Ok(mtu)
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().into(),
        IpAddr::V6(address) => address.octets().into(),
    }
}

/// The route in a message; `None` for one that the kernel made of another.
fn way(body: &[u8]) -> Option<Way> {
    let flags = u32_at(body, 8)?;
    (flags & RTM_F_CLONED == 0).then_some(())?;
    let mut way = Way { leaves: *body.get(7)? == RTN_UNICAST, ..Way::default() };
    for (kind, value) in attributes(body, ROUTE_BODY) {
        match kind {
            RTA_OIF => way.devices.extend(u32_at(value, 0)),
            RTA_MULTIPATH => way.devices.extend(devices_of(value)),
            RTA_METRICS => {
                let mtu = attributes(value, 0).find(|(kind, _)| *kind == RTAX_MTU);
                way.mtu = mtu.and_then(|(_, value)| u32_at(value, 0)).filter(|mtu| *mtu > 0);
            }
            _ => {}
        }
    }
    Some(way)
}

/// The devices of a route that has several.
fn devices_of(mut hops: &[u8]) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(hops, 0)?);
        let device = u32_at(hops, 4).filter(|_| length >= HOP)?;
        hops = hops.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(device)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::attribute;

    /// A message about a route of a kind, with attributes.
    fn route(kind: u8, flags: u32, attributes: &[(u16, Vec<u8>)]) -> Vec<u8> {
        let mut body = vec![AF_INET, 0, 0, 0, 0, 0, 0, kind];
        body.extend(flags.to_ne_bytes());
        body.extend(attributes.iter().flat_map(|(kind, value)| attribute(*kind, value)));
        body
    }

    fn device(index: u32) -> (u16, Vec<u8>) {
        (RTA_OIF, index.to_ne_bytes().into())
    }

    fn mtu(mtu: u32) -> (u16, Vec<u8>) {
        let lock = attribute(1, &4u32.to_ne_bytes());
        (RTA_METRICS, [lock, attribute(RTAX_MTU, &mtu.to_ne_bytes())].concat())
    }

    #[test]
    fn a_route_has_its_devices_and_its_mtu() {
        let read = way(&route(RTN_UNICAST, 0, &[device(7), mtu(1400)])).unwrap();
        assert_eq!(read, Way { leaves: true, devices: vec![7], mtu: Some(1400) });
        let hop = |index: u32| [&[16, 0, 0, 0][..], &index.to_ne_bytes(), &[9; 8]].concat();
        let several = (RTA_MULTIPATH, [hop(7), hop(8)].concat());
        let read = way(&route(RTN_UNICAST, 0, &[several])).unwrap();
        assert_eq!(read, Way { leaves: true, devices: vec![7, 8], mtu: None });
        // To the machine itself; and what was learnt of a route.
        assert!(!way(&route(2, 0, &[device(1)])).unwrap().leaves);
        assert_eq!(way(&route(RTN_UNICAST, RTM_F_CLONED, &[device(7), mtu(600)])), None);
    }

    #[test]
    fn lengths_that_lie_end_the_list() {
        for length in [0, 1, 7, 17, 255] {
            let hops = [[length, 0, 0, 0, 7, 0, 0, 0].as_slice(), &[0; 8]].concat();
            let read = way(&route(RTN_UNICAST, 0, &[(RTA_MULTIPATH, hops)])).unwrap();
            assert!(read.devices.len() <= 2, "{length}: {read:?}");
        }
        let whole = route(RTN_UNICAST, 0, &[device(7), mtu(1400)]);
        for length in 0..whole.len() {
            let read = way(&whole[..length]);
            assert_eq!(read.is_some(), length >= ROUTE_BODY, "{length}");
        }
    }

    #[test]
    fn the_kernel_tells_routes_to_an_ordinary_user() {
        let routes = Routes::open().unwrap();
        let own = |address: &str| address.parse().unwrap();
        let asked = |to| Asked { from: own("127.0.0.1"), to, port: 4791, device: None };
        assert_eq!(routes.mtu_of(&asked(own("127.0.0.2"))), Ok(None), "it does not leave");
        let lo = nix::net::if_::if_nametoindex("lo").unwrap();
        assert_eq!(routes.mtu_of_link(lo), Ok(Some(65_536)));
        assert_eq!(routes.least_mtu_by(lo), Ok(None));
    }
}
