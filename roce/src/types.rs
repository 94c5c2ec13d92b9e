//! Small values that every part of the transport shares.

use core::fmt;
use core::net::{Ipv4Addr, Ipv6Addr};
use core::time::Duration;

/// A point in time, in nanoseconds since an origin that the caller chooses.
///
/// The transport only compares instants and adds durations; the clock must never run backwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(pub u64);

impl Instant {
    /// A second in the units of the clock: nanoseconds.
    pub const SECOND: u64 = 1_000_000_000;

    /// The instant `duration` later; saturates at the end of time.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }

    /// The instant `duration` earlier; saturates at the origin.
    #[must_use]
    pub fn before(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_sub(nanos))
    }

    /// The time from `earlier` to `self`; zero if `earlier` is not earlier.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A queue pair number: 24 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Qpn(u32);

impl Qpn {
    /// The largest queue pair number that names one queue pair; 0xff_ffff means "multicast".
    pub const MAX: u32 = 0x00ff_fffe;

    /// All queue pairs in a multicast group, as a destination.
    pub const GROUP: Self = Self(0x00ff_ffff);

    /// A destination of datagrams: a queue pair, or [`Qpn::GROUP`].
    #[must_use]
    pub const fn destination(value: u32) -> Option<Self> {
        if value == Self::GROUP.0 { Some(Self::GROUP) } else { Self::new(value) }
    }

    /// The queue pair number `value`, or `None` if it does not fit 24 bits or is reserved for
    /// multicast.
    #[must_use]
    pub const fn new(value: u32) -> Option<Self> {
        if value <= Self::MAX { Some(Self(value)) } else { None }
    }

    /// The number, at most 24 bits.
    #[must_use]
    pub const fn value(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// An Ethernet address, first byte on the wire first.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// The broadcast address.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// The group address of an IP multicast group (RFC 1112, RFC 2464).
    #[must_use]
    pub const fn of_group(group: Gid) -> Self {
        let [a, b, c, d] = (group.0 as u32).to_be_bytes();
        match group.as_ipv4() {
            Some(_) => Self([1, 0, 0x5e, b & 0x7f, c, d]),
            None => Self([0x33, 0x33, a, b, c, d]),
        }
    }

    /// Whether this is a group address (multicast or broadcast).
    #[must_use]
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// The IPv6 link-local address whose interface identifier is the modified EUI-64 of this
    /// address (RFC 4291, appendix A).
    #[must_use]
    pub const fn link_local(self) -> Ipv6Addr {
        let [a, b, c, d, e, f] = self.0;
        Ipv6Addr::from_bits(u128::from_be_bytes([
            0xfe,
            0x80,
            0,
            0,
            0,
            0,
            0,
            0,
            a ^ 2,
            b,
            c,
            0xff,
            0xfe,
            d,
            e,
            f,
        ]))
    }

    /// The Ethernet address that [`MacAddr::link_local`] would turn into `address`, if there is
    /// one.
    #[must_use]
    pub const fn of_link_local(address: Ipv6Addr) -> Option<Self> {
        let [hi0, hi1, z0, z1, z2, z3, z4, z5, a, b, c, x, y, d, e, f] = address.octets();
        let prefix = u64::from_be_bytes([hi0, hi1, z0, z1, z2, z3, z4, z5]);
        if prefix == 0xfe80_0000_0000_0000 && x == 0xff && y == 0xfe {
            Some(Self([a ^ 2, b, c, d, e, f]))
        } else {
            None
        }
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A global identifier: an IPv6 address, or an IPv4 address in its mapped form `::ffff:a.b.c.d`.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gid(u128);

impl Gid {
    /// The identifier in these 16 bytes, first byte on the wire first.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(bytes))
    }

    /// The 16 bytes, first byte on the wire first.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// The identifier of an IPv4 address.
    #[must_use]
    pub const fn from_ipv4(address: Ipv4Addr) -> Self {
        Self(0xffff_0000_0000 | address.to_bits() as u128)
    }

    /// The identifier of an IPv6 address.
    #[must_use]
    pub const fn from_ipv6(address: Ipv6Addr) -> Self {
        Self(address.to_bits())
    }

    /// The IPv4 address, if this is a mapped one.
    #[must_use]
    pub const fn as_ipv4(self) -> Option<Ipv4Addr> {
        if self.0 >> 32 == 0xffff { Some(Ipv4Addr::from_bits(self.0 as u32)) } else { None }
    }

    /// Whether this is the address of a multicast group, of IPv4 or IPv6.
    #[must_use]
    pub const fn is_group(self) -> bool {
        match self.as_ipv4() {
            Some(address) => address.is_multicast(),
            None => self.as_ipv6().is_multicast(),
        }
    }

    /// Whether this is a loopback address, of IPv4 or IPv6.
    #[must_use]
    pub const fn is_loopback(self) -> bool {
        match self.as_ipv4() {
            Some(address) => address.is_loopback(),
            None => self.as_ipv6().is_loopback(),
        }
    }

    /// The IPv6 address (for a mapped IPv4 address, its mapped form).
    #[must_use]
    pub const fn as_ipv6(self) -> Ipv6Addr {
        Ipv6Addr::from_bits(self.0)
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.as_ipv6(), f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An address in a network of the link's: the one without tags, or a VLAN. The same address in
/// another is another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// The address.
    pub gid: Gid,
    /// Number of the VLAN, 12 bits; 0 for none.
    pub vlan: u16,
}

impl Address {
    /// An address in the network without tags.
    #[must_use]
    pub const fn untagged(gid: Gid) -> Self {
        Self { gid, vlan: 0 }
    }
}

impl From<Gid> for Address {
    fn from(gid: Gid) -> Self {
        Self::untagged(gid)
    }
}

/// The addresses of a port by their index; `None` where there is none.
pub type GidTable = [Option<Address>; crate::param::GID_TABLE_LENGTH];

/// The largest payload of one packet on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathMtu {
    /// 256 bytes.
    Mtu256 = 1,
    /// 512 bytes.
    Mtu512 = 2,
    /// 1024 bytes.
    Mtu1024 = 3,
    /// 2048 bytes.
    Mtu2048 = 4,
    /// 4096 bytes.
    Mtu4096 = 5,
}

impl PathMtu {
    /// Every path MTU, smallest first.
    pub const ALL: [Self; 5] =
        [Self::Mtu256, Self::Mtu512, Self::Mtu1024, Self::Mtu2048, Self::Mtu4096];

    /// The path MTU of the specification's code (1 is 256 bytes, 5 is 4096 bytes).
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Mtu256),
            2 => Some(Self::Mtu512),
            3 => Some(Self::Mtu1024),
            4 => Some(Self::Mtu2048),
            5 => Some(Self::Mtu4096),
            _ => None,
        }
    }

    /// The specification's code (1 is 256 bytes, 5 is 4096 bytes).
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The size in bytes.
    #[must_use]
    #[inline]
    pub const fn bytes(self) -> u32 {
        1 << self.shift()
    }

    /// The binary logarithm of the size in bytes.
    #[inline]
    pub(crate) const fn shift(self) -> u32 {
        match self {
            Self::Mtu256 => 8,
            Self::Mtu512 => 9,
            Self::Mtu1024 => 10,
            Self::Mtu2048 => 11,
            Self::Mtu4096 => 12,
        }
    }

    /// The number of packets that a message of `length` bytes takes: at least one.
    #[inline]
    pub(crate) const fn packets(self, length: u32) -> u32 {
        // Without overflow for lengths near 2^32.
        let whole = length >> self.shift();
        let rest = length & self.bytes().wrapping_sub(1);
        let packets = if rest == 0 { whole } else { whole.wrapping_add(1) };
        // RC-24
        if packets == 0 { 1 } else { packets }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_local_addresses_round_trip_through_eui64() {
        let mac = MacAddr([0x02, 0x11, 0x22, 0x33, 0x44, 0x55]);
        let address = mac.link_local();
        assert_eq!(address.to_string(), "fe80::11:22ff:fe33:4455");
        assert_eq!(MacAddr::of_link_local(address), Some(mac));
        assert_eq!(MacAddr::of_link_local("fe80::1".parse().unwrap()), None);
        assert_eq!(MacAddr::of_link_local("fe81::11:22ff:fe33:4455".parse().unwrap()), None);
    }

    /// UD-18.
    #[test]
    fn groups_of_both_kinds_have_their_ethernet_addresses() {
        let mac = |group: &str| {
            let ip: core::net::IpAddr = group.parse().unwrap();
            let gid = match ip {
                core::net::IpAddr::V4(ip) => Gid::from_ipv4(ip),
                core::net::IpAddr::V6(ip) => Gid::from_ipv6(ip),
            };
            assert!(gid.is_group(), "{group}");
            MacAddr::of_group(gid).to_string()
        };
        assert_eq!(mac("239.129.2.3"), "01:00:5e:01:02:03");
        assert_eq!(mac("224.0.0.22"), "01:00:5e:00:00:16");
        assert_eq!(mac("ff0e::ffff:e001:203"), "33:33:e0:01:02:03");
        for other in ["::ffff:10.0.0.1", "::ffff:240.0.0.1", "fe80::1", "::"] {
            assert!(!Gid::from_ipv6(other.parse().unwrap()).is_group(), "{other}");
        }
    }

    #[test]
    fn an_ipv4_gid_is_the_mapped_address() {
        let gid = Gid::from_ipv4(Ipv4Addr::new(10, 1, 2, 3));
        assert_eq!(gid.to_string(), "::ffff:10.1.2.3");
        assert_eq!(gid.as_ipv4(), Some(Ipv4Addr::new(10, 1, 2, 3)));
        assert_eq!(Gid::from_bytes(gid.to_bytes()), gid);
        assert_eq!(Gid::from_ipv6("fe80::1".parse().unwrap()).as_ipv4(), None);
    }

    /// RC-24.
    #[test]
    fn packets_of_a_message_are_counted_up_to_the_largest_length() {
        for mtu in PathMtu::ALL {
            assert_eq!(PathMtu::from_code(mtu.code()), Some(mtu));
            let size = mtu.bytes();
            assert_eq!(mtu.packets(0), 1);
            assert_eq!(mtu.packets(1), 1);
            assert_eq!(mtu.packets(size), 1);
            assert_eq!(mtu.packets(size + 1), 2);
            assert_eq!(mtu.packets(1 << 31), (1 << 31) / size);
            assert_eq!(u64::from(mtu.packets(u32::MAX)), (1u64 << 32) / u64::from(size));
        }
        assert_eq!(PathMtu::from_code(0), None);
        assert_eq!(PathMtu::from_code(6), None);
    }

    /// RC-9.
    #[test]
    fn only_24_bit_unicast_numbers_are_queue_pair_numbers() {
        assert!(Qpn::new(0xff_fffe).is_some());
        assert!(Qpn::new(0xff_ffff).is_none());
        assert!(Qpn::new(0x100_0000).is_none());
        assert_eq!(Qpn::destination(0xff_ffff), Some(Qpn::GROUP));
        assert_eq!(Qpn::destination(7), Qpn::new(7));
        assert!(Qpn::destination(0x100_0000).is_none());
    }
}
