//! ARP for IPv4 over Ethernet (RFC 826).

use core::net::Ipv4Addr;

use super::{Field, Malformed, split};
use crate::types::MacAddr;

/// The length of a packet.
pub const LENGTH: usize = 28;

/// Hardware and protocol type, and the lengths of their addresses: Ethernet and IPv4.
const FORMAT: (u16, u16, (u8, u8)) = (1, 0x0800, (6, 4));

/// Where the fields lie, named as the RFC names them.
mod field {
    use super::Field;

    pub const HRD: Field<0, 2> = Field;
    pub const PRO: Field<2, 2> = Field;
    pub const HLN: usize = 4;
    pub const PLN: usize = 5;
    pub const OP: Field<6, 2> = Field;
    pub const SHA: Field<8, 6> = Field;
    pub const SPA: Field<14, 4> = Field;
    pub const THA: Field<18, 6> = Field;
    pub const TPA: Field<24, 4> = Field;
}

/// The operation of an ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// A question for the owner of the target address.
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
        u16::from_be_bytes(*field::HRD.of(self.0))
    }

    /// The protocol type; 0x0800 is IPv4.
    #[must_use]
    pub fn protocol_type(&self) -> u16 {
        u16::from_be_bytes(*field::PRO.of(self.0))
    }

    /// The length of hardware addresses.
    #[must_use]
    pub fn hardware_length(&self) -> u8 {
        self.0[field::HLN]
    }

    /// The length of protocol addresses.
    #[must_use]
    pub fn protocol_length(&self) -> u8 {
        self.0[field::PLN]
    }

    /// The operation code; 1 is a request, 2 a reply.
    #[must_use]
    pub fn operation(&self) -> u16 {
        u16::from_be_bytes(*field::OP.of(self.0))
    }

    /// The sender's Ethernet address.
    #[must_use]
    pub fn sender_mac(&self) -> MacAddr {
        MacAddr(*field::SHA.of(self.0))
    }

    /// The sender's IPv4 address.
    #[must_use]
    pub fn sender_ip(&self) -> Ipv4Addr {
        Ipv4Addr::from(*field::SPA.of(self.0))
    }

    /// The target's Ethernet address; undefined in a request.
    #[must_use]
    pub fn target_mac(&self) -> MacAddr {
        MacAddr(*field::THA.of(self.0))
    }

    /// The target's IPv4 address.
    #[must_use]
    pub fn target_ip(&self) -> Ipv4Addr {
        Ipv4Addr::from(*field::TPA.of(self.0))
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
        let lengths = (packet.hardware_length(), packet.protocol_length());
        let format = (packet.hardware_type(), packet.protocol_type(), lengths);
        if format != FORMAT {
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
        let operation: u16 = match self.operation {
            Operation::Request => 1,
            Operation::Reply => 2,
        };
        let (hardware, protocol, (hardware_length, protocol_length)) = FORMAT;
        let mut bytes = [0; LENGTH];
        field::HRD.put(&mut bytes, hardware.to_be_bytes());
        field::PRO.put(&mut bytes, protocol.to_be_bytes());
        bytes[field::HLN] = hardware_length;
        bytes[field::PLN] = protocol_length;
        field::OP.put(&mut bytes, operation.to_be_bytes());
        field::SHA.put(&mut bytes, self.sender_mac.0);
        field::SPA.put(&mut bytes, self.sender_ip.octets());
        field::THA.put(&mut bytes, self.target_mac.0);
        field::TPA.put(&mut bytes, self.target_ip.octets());
        bytes
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
