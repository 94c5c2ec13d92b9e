//! Service IDs of RDMA CM (specification, annex A11): a port of a port space.

use core::fmt;

/// A space of ports, by the number that RDMA CM has for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PortSpace {
    /// IP over InfiniBand; not offered, for it needs a subnet manager.
    Ipoib = 0x0002,
    /// Connections; the protocol number of TCP.
    Tcp = 0x0106,
    /// Datagrams; the protocol number of UDP.
    Udp = 0x0111,
    /// InfiniBand's own services.
    Ib = 0x013f,
}

/// A port of a space, as messages name it: RDMA CM's prefix, the space's number and the port's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(pub u64);

impl ServiceId {
    /// The service ID of a port.
    #[must_use]
    pub const fn new(space: PortSpace, port: u16) -> Self {
        // CM-5
        Self((space as u64) << 16 | port as u64)
    }

    /// The port that a service ID names; `None` for services that are not RDMA CM's.
    #[must_use]
    pub const fn port(self) -> Option<(PortSpace, u16)> {
        let space = match self.0 >> 16 {
            0x0002 => PortSpace::Ipoib,
            0x0106 => PortSpace::Tcp,
            0x0111 => PortSpace::Udp,
            0x013f => PortSpace::Ib,
            _ => return None,
        };
        Some((space, self.0 as u16))
    }
}

impl fmt::Debug for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CM-5.
    #[test]
    fn a_service_id_is_a_port_of_a_port_space() {
        use PortSpace::{Ib, Ipoib, Tcp, Udp};
        assert_eq!(ServiceId::new(Tcp, 7174).0, 0x0000_0000_0106_1c06);
        assert_eq!(ServiceId::new(Udp, 1).0, 0x0000_0000_0111_0001);
        assert_eq!(ServiceId::new(Ib, 0xffff).0, 0x0000_0000_013f_ffff);
        for space in [Ipoib, Tcp, Udp, Ib] {
            assert_eq!(ServiceId::new(space, 99).port(), Some((space, 99)));
        }
        for other in [0, 0x1_0106_0001, 0x0107_0001, u64::MAX] {
            assert_eq!(ServiceId(other).port(), None);
        }
    }
}
