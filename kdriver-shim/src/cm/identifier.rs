//! Identifiers: the objects that programs bind, listen with and connect by.

use std::collections::{BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use cm::{Address, BindingId, Id, Instant, Path, PortSpace, ServiceId};
use fpga_regs::engine::qp::QpType;

use super::answers::Facts;
use crate::process::ClientId;

/// The progress of an identifier. The names are Linux'.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentifierState {
    /// Nothing was asked of it.
    Idle,
    /// It has an address, or all of them, and a port.
    Bound,
    /// Its destination is looked for.
    AddrQuery,
    /// It has a card and a destination.
    AddrResolved,
    /// It has a path.
    RouteResolved,
    /// It takes requests.
    Listen,
    /// It asks, or is asked, or is connected.
    Connect,
    /// It was connected.
    Disconnect,
    /// Its card is gone.
    Removed,
}

/// The address and the card that an identifier has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// The card.
    pub card: u32,
    /// The address of it.
    pub address: Address,
}

/// The search for an identifier's destination.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// The card, and its address for the search.
    pub device: Device,
    /// The time of the next question to the card.
    pub at: Instant,
    /// The time from then to the question after it.
    pub interval: Duration,
    /// The time at which the program hears that no host was found.
    pub until: Instant,
}

/// An identifier.
#[derive(Debug)]
pub struct Identifier {
    /// The channel that it is of.
    pub channel: u64,
    /// The number by which the program knows it; 0 before it has said.
    pub uid: u64,
    /// The space that its port is of.
    pub space: PortSpace,
    /// The kind of its queue pair.
    pub kind: QpType,
    /// Its progress.
    pub state: IdentifierState,
    /// The address on this side.
    pub source: Option<SocketAddr>,
    /// The address on the other side.
    pub destination: Option<SocketAddr>,
    /// Its card.
    pub device: Option<Device>,
    /// The path.
    pub path: Option<Path>,
    /// The search for its destination, where it is looked for.
    pub search: Option<Search>,
    /// Its port.
    pub binding: Option<BindingId>,
    /// Its connection or resolution.
    pub connection: Option<Id>,
    /// Whether the program was told of it: one of a request is by the event that it reads.
    pub is_known: bool,
    /// Events that it counts and that were read.
    pub reported: u32,
    /// Places of those that were not.
    pub unread: VecDeque<u64>,
    /// The program has asked to end it, and was told that there are some.
    pub is_ending: bool,
    /// The client that got answers ahead that still hold, and the place of the event with them.
    pub told_ahead: Option<(ClientId, u64)>,
    /// Its joins.
    pub joins: BTreeSet<u32>,
    /// Type of service.
    pub tos: u8,
    /// The acknowledgement timeout's code, where the program chose one.
    pub ack_timeout: Option<u8>,
    /// Whether it shares its port with others that do.
    pub reuse: bool,
    /// Whether a wildcard of IPv6 leaves IPv4 alone.
    pub only_family: bool,
}

impl Identifier {
    /// A new one.
    #[must_use]
    pub fn new(channel: u64, uid: u64, space: PortSpace, kind: QpType) -> Self {
        Self {
            channel,
            uid,
            space,
            kind,
            state: IdentifierState::Idle,
            source: None,
            destination: None,
            device: None,
            path: None,
            search: None,
            binding: None,
            connection: None,
            is_known: true,
            reported: 0,
            unread: VecDeque::new(),
            is_ending: false,
            told_ahead: None,
            joins: BTreeSet::new(),
            tos: 0,
            ack_timeout: None,
            reuse: false,
            only_family: false,
        }
    }

    /// Its data for answers.
    #[must_use]
    pub fn facts(&self, guid: Option<u64>) -> Facts {
        let service = |address: Option<SocketAddr>| {
            ServiceId::new(self.space, address.map_or(0, |it| it.port())).0
        };
        Facts {
            guid,
            source: self.source,
            destination: self.destination,
            path: self.path,
            services: [service(self.source), service(self.destination)],
        }
    }

    /// The path from its address to its destination, along a port of that MTU and rate.
    #[must_use]
    pub fn path_along(&self, mtu: u8, rate: u8) -> Option<Path> {
        let (device, source) = (self.device?, self.source?);
        let destination = self.destination?;
        let remote = Address {
            gid: Ipv6Addr::from(super::abi::gid(destination.ip())),
            vlan: device.address.vlan,
        };
        let route = cm::Route {
            traffic_class: self.tos,
            flow_label: Path::flow_label(source.port(), destination.port()),
            ..cm::Route::between(device.card, device.address, remote)
        };
        let path = Path::along(route, mtu, rate);
        // A code is half of the one above it: an acknowledgement takes the way twice.
        let chosen = self.ack_timeout.map(|code| code.saturating_sub(1));
        let packet_lifetime = chosen.unwrap_or(path.packet_lifetime);
        Some(Path { packet_lifetime, ..path })
    }
}

/// No address of the same kind, and no port.
#[must_use]
pub fn unspecified(like: SocketAddr) -> SocketAddr {
    let ip = match like {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    SocketAddr::new(ip, 0)
}

/// A GID as an address of the same kind as another.
#[must_use]
pub fn in_kind(gid: Ipv6Addr, like: SocketAddr) -> SocketAddr {
    let mut address = like;
    address.set_ip(match (like, gid.to_ipv4_mapped()) {
        (SocketAddr::V4(_), Some(ip)) => ip.into(),
        _ => gid.into(),
    });
    address
}
