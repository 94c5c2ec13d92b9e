//! Small values that every part of the connection manager shares.

use core::fmt;
use core::net::{IpAddr, Ipv6Addr};
use core::time::Duration;

use crate::param;

/// A point in time, in nanoseconds since an origin that the caller chooses.
///
/// Instants are only compared, and durations added; the clock must never run backwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(pub u64);

impl Instant {
    /// The instant `duration` later; saturates at the end of time.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

/// An address in a network of the link's: the one without tags, or a VLAN.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// The GID: an IPv6 address, or an IPv4 address in its mapped form.
    pub gid: Ipv6Addr,
    /// Number of the VLAN, 12 bits; 0 for none.
    pub vlan: u16,
}

impl Address {
    /// An address in the network without tags.
    #[must_use]
    pub const fn untagged(ip: IpAddr) -> Self {
        let gid = match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        Self { gid, vlan: 0 }
    }

    /// The IP address that the GID is.
    #[must_use]
    pub const fn ip(self) -> IpAddr {
        // CM-8
        match self.gid.to_ipv4_mapped() {
            Some(ip) => IpAddr::V4(ip),
            None => IpAddr::V6(self.gid),
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.vlan {
            0 => write!(f, "{}", self.ip()),
            vlan => write!(f, "{}@{vlan}", self.ip()),
        }
    }
}

/// The two ends of datagrams, and their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The card's port, by the number that the caller gave it ([`crate::Manager::set_port`]).
    pub port: u32,
    /// The address on this side.
    pub local: Address,
    /// The address on the other side.
    pub remote: Address,
    /// IPv4 type of service or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv6 flow label, 20 bits; it also chooses the UDP source port.
    pub flow_label: u32,
    /// IPv4 time to live or IPv6 hop limit.
    pub hop_limit: u8,
    /// Service level: the priority in a VLAN.
    pub sl: u8,
}

impl Route {
    /// A route with nothing asked for but where it leads.
    #[must_use]
    pub const fn between(port: u32, local: Address, remote: Address) -> Self {
        let hop_limit = param::HOP_LIMIT;
        Self { port, local, remote, traffic_class: 0, flow_label: 0, hop_limit, sl: 0 }
    }
}

/// A route, and the attributes on which a connection along it may rely: the path record of a network without a
/// subnet manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The path between the two ends.
    pub route: Route,
    /// The path MTU's code: 1 is 256 bytes, 5 is 4096.
    pub mtu: u8,
    /// The rate's code, as verbs have it.
    pub rate: u8,
    /// How long a packet lives at most: 4.096 µs · 2^code, 5 bits.
    pub packet_lifetime: u8,
}

impl Path {
    /// A path along a route, with the attributes that Linux assumes of RoCE.
    #[must_use]
    pub const fn along(route: Route, mtu: u8, rate: u8) -> Self {
        Self { route, mtu, rate, packet_lifetime: param::PACKET_LIFETIME }
    }

    /// The default flow label of a connection between two ports: packets
    /// of different connections spread over the network's links, as with Linux.
    #[must_use]
    pub const fn flow_label(source_port: u16, destination_port: u16) -> u32 {
        (source_port as u32).wrapping_mul(31).wrapping_add(destination_port as u32) & 0xf_ffff
    }
}

/// The transport service of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    /// Reliable Connection.
    Rc,
    /// Unreliable Connection.
    Uc,
}

/// The owner of an identifier, of a binding and of their events; the caller's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(pub u64);

/// A connection or a resolution, by its local communication ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub u32);

/// A bound port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BindingId(pub u64);

/// A port of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAttributes {
    /// The card's GUID.
    pub ca_guid: u64,
    /// How long the card takes to acknowledge: 4.096 µs · 2^code, 5 bits.
    pub ack_delay: u8,
    /// The largest path MTU's code.
    pub mtu: u8,
}

/// Why a call does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no such connection or resolution.
    #[error("there is no identifier {:#010x}", .0.0)]
    NoId(Id),
    /// There is no such binding.
    #[error("there is no binding {}", .0.0)]
    NoBinding(BindingId),
    /// There is no such port.
    #[error("there is no port {0}")]
    NoPort(u32),
    /// The state of the identifier does not allow it.
    #[error("identifier {:#010x} is in the state {state:?}, which does not allow this", id.0)]
    State {
        /// The identifier.
        id: Id,
        /// Its state.
        state: crate::State,
    },
    /// More private data than the message has room for.
    #[error("{length} bytes of private data, where the message has room for {most}")]
    PrivateData {
        /// Bytes given.
        length: usize,
        /// Bytes that fit.
        most: usize,
    },
    /// A value that the message's field cannot have.
    #[error("{0} is out of its range")]
    Range(&'static str),
    /// The two addresses are not of one kind, or in two networks.
    #[error("source and destination are not in the same network")]
    Family,
    /// The port space is not offered.
    #[error("port space {0:?} is not offered")]
    PortSpace(crate::PortSpace),
    /// The address and port are another binding's.
    #[error("the address is in use")]
    AddressInUse,
    /// A wildcard binding overlaps with another one, or no port is free.
    #[error("the address is not available")]
    AddressNotAvailable,
    /// The owner, or all of them together, have reached a limit.
    #[error("{what}: {most} is the limit")]
    Quota {
        /// The name of the objects that are too many.
        what: &'static str,
        /// How many there may be.
        most: usize,
    },
}
