//! ARP for IPv4 over Ethernet (RFC 826).

use core::net::Ipv4Addr;

use super::{Malformed, split};
use crate::types::MacAddr;

/// The length of a packet.
pub const LENGTH: usize = 28;

/// What an ARP packet says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Who has the target address?
    Request,
    /// The sender has the sender address.
    Reply,
}

/// A view of a packet.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a>(&'a [u8; LENGTH]);

impl<'a> Packet<'a> {
    /// The packet at the start of `bytes`; Ethernet padding may follow.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        Ok(Self(split(bytes, "ARP")?.0))
    }

    /// The hardware type; 1 is Ethernet.
    #[must_use]
    pub fn hardware_type(&self) -> u16 {
        u16::from_be_bytes([self.0[0], self.0[1]])
    }

    /// The protocol type; 0x0800 is IPv4.
    #[must_use]
    pub fn protocol_type(&self) -> u16 {
        u16::from_be_bytes([self.0[2], self.0[3]])
    }

    /// The lengths of hardware and protocol addresses.
    #[must_use]
    pub fn address_lengths(&self) -> (u8, u8) {
        (self.0[4], self.0[5])
    }

    /// The operation code; 1 is a request, 2 a reply.
    #[must_use]
    pub fn operation(&self) -> u16 {
        u16::from_be_bytes([self.0[6], self.0[7]])
    }

    /// The sender's Ethernet address.
    #[must_use]
    pub fn sender_mac(&self) -> MacAddr {
        MacAddr([self.0[8], self.0[9], self.0[10], self.0[11], self.0[12], self.0[13]])
    }

    /// The sender's IPv4 address.
    #[must_use]
    pub fn sender_ip(&self) -> Ipv4Addr {
        Ipv4Addr::new(self.0[14], self.0[15], self.0[16], self.0[17])
    }

    /// The target's Ethernet address; undefined in a request.
    #[must_use]
    pub fn target_mac(&self) -> MacAddr {
        MacAddr([self.0[18], self.0[19], self.0[20], self.0[21], self.0[22], self.0[23]])
    }

    /// The target's IPv4 address.
    #[must_use]
    pub fn target_ip(&self) -> Ipv4Addr {
        Ipv4Addr::new(self.0[24], self.0[25], self.0[26], self.0[27])
    }
}

/// A packet taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Request or reply.
    pub operation: Operation,
    /// The sender's Ethernet address.
    pub sender_mac: MacAddr,
    /// The sender's IPv4 address.
    pub sender_ip: Ipv4Addr,
    /// The target's Ethernet address; zero in a request.
    pub target_mac: MacAddr,
    /// The target's IPv4 address.
    pub target_ip: Ipv4Addr,
}

impl Repr {
    /// The packet at the start of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let packet = Packet::new(bytes)?;
        let format = (packet.hardware_type(), packet.protocol_type(), packet.address_lengths());
        if format != (1, 0x0800, (6, 4)) {
            return Err(Malformed::Version("ARP"));
        }
        let operation = match packet.operation() {
            1 => Operation::Request,
            2 => Operation::Reply,
            _ => return Err(Malformed::Version("ARP")),
        };
        Ok(Self {
            operation,
            sender_mac: packet.sender_mac(),
            sender_ip: packet.sender_ip(),
            target_mac: packet.target_mac(),
            target_ip: packet.target_ip(),
        })
    }

    /// The bytes of the packet.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; LENGTH] {
        let operation = match self.operation {
            Operation::Request => 1,
            Operation::Reply => 2,
        };
        let [s0, s1, s2, s3, s4, s5] = self.sender_mac.0;
        let [i0, i1, i2, i3] = self.sender_ip.octets();
        let [t0, t1, t2, t3, t4, t5] = self.target_mac.0;
        let [j0, j1, j2, j3] = self.target_ip.octets();
        [
            0, 1, 8, 0, 6, 4, 0, operation, s0, s1, s2, s3, s4, s5, i0, i1, i2, i3, t0, t1, t2, t3,
            t4, t5, j0, j1, j2, j3,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_round_trips() {
        let repr = Repr {
            operation: Operation::Reply,
            sender_mac: MacAddr([2, 0, 0, 0, 0, 1]),
            sender_ip: Ipv4Addr::new(10, 0, 0, 1),
            target_mac: MacAddr([2, 0, 0, 0, 0, 2]),
            target_ip: Ipv4Addr::new(10, 0, 0, 2),
        };
        assert_eq!(Repr::parse(&repr.to_bytes()), Ok(repr));
    }

    #[test]
    fn other_hardware_and_protocols_are_refused() {
        let repr = Repr {
            operation: Operation::Request,
            sender_mac: MacAddr::default(),
            sender_ip: Ipv4Addr::UNSPECIFIED,
            target_mac: MacAddr::default(),
            target_ip: Ipv4Addr::UNSPECIFIED,
        };
        for index in [1, 2, 4, 5, 7] {
            let mut bytes = repr.to_bytes();
            bytes[index] ^= 0x40;
            assert_eq!(Repr::parse(&bytes), Err(Malformed::Version("ARP")));
        }
        assert!(Repr::parse(&repr.to_bytes()[..27]).is_err());
    }
}
