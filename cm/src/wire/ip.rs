//! The addresses that RDMA CM's private data begins with (specification, annex A11).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Malformed, layout};

layout! {
    /// The IP CM service's header.
    Raw of 36 {
        /// The version that decides the meaning of the rest.
        major_version: u8 = 0:0 + 4;
        /// The version of the additions.
        minor_version: u8 = 0:4 + 4;
        /// 4 or 6.
        ip_version: u8 = 1:0 + 4;
        /// The port of the side that asks.
        source_port: u16 = 2:0 + 16;
        /// The address of the side that asks: IPv4's in the last four bytes.
        source: Ipv6Addr = 4:0 + 128;
        /// The address of the side that is asked.
        destination: Ipv6Addr = 20:0 + 128;
    }
}

/// The addresses and the port of the side that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHeader {
    /// The address of the side that asks.
    pub source: IpAddr,
    /// Its port.
    pub source_port: u16,
    /// The address of the side that is asked; its port is in the service ID.
    pub destination: IpAddr,
}

impl IpHeader {
    /// Bytes of it.
    pub const LENGTH: usize = 36;

    /// The header at the start of private data.
    ///
    /// # Errors
    /// Where it is too short, or of another version.
    pub fn parse(private_data: &[u8]) -> Result<Self, Malformed> {
        let bytes = private_data.first_chunk().ok_or(Malformed::IpHeader)?;
        let raw = Raw::load(bytes);
        let ip = |address: Ipv6Addr| match raw.ip_version {
            4 => Ok(IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() as u32))),
            6 => Ok(IpAddr::V6(address)),
            _ => Err(Malformed::IpHeader),
        };
        // CM-7
        if raw.major_version != 0 {
            return Err(Malformed::IpHeader);
        }
        let (source, destination) = (ip(raw.source)?, ip(raw.destination)?);
        Ok(Self { source, source_port: raw.source_port, destination })
    }

    /// The bytes of the header.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let field = |ip| match ip {
            IpAddr::V4(ip) => Ipv6Addr::from_bits(u128::from(Ipv4Addr::to_bits(ip))),
            IpAddr::V6(ip) => ip,
        };
        // CM-6
        let raw = Raw {
            ip_version: if self.source.is_ipv4() { 4 } else { 6 },
            source_port: self.source_port,
            source: field(self.source),
            destination: field(self.destination),
            ..Raw::ZERO
        };
        raw.to_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CM-6.
    #[test]
    fn addresses_lie_at_the_head_of_private_data_ipv4s_behind_zeros() {
        let header = IpHeader {
            source: "10.1.2.3".parse().unwrap(),
            source_port: 0x1234,
            destination: "10.1.2.4".parse().unwrap(),
        };
        let zeros = [0; 12];
        let parts: [&[u8]; 5] =
            [&[0, 0x40, 0x12, 0x34], &zeros, &[10, 1, 2, 3], &zeros, &[10, 1, 2, 4]];
        assert_eq!(header.to_bytes()[..], parts.concat());
        assert_eq!(IpHeader::parse(&header.to_bytes()), Ok(header));

        let (source, destination) = ("fe80::1".parse().unwrap(), "fe80::2".parse().unwrap());
        let header = IpHeader { source, source_port: 1, destination };
        let bytes = header.to_bytes();
        assert_eq!(bytes[..6], [0, 0x60, 0, 1, 0xfe, 0x80]);
        assert_eq!(IpHeader::parse(&bytes), Ok(header));
    }

    /// CM-7.
    #[test]
    fn addresses_of_another_version_are_none() {
        let mut bytes = [0; 92];
        bytes[1] = 0x40;
        assert!(IpHeader::parse(&bytes).is_ok());
        bytes[0] = 0x01;
        assert!(IpHeader::parse(&bytes).is_ok(), "a minor version adds, and changes nothing");
        bytes[0] = 0x10;
        assert_eq!(IpHeader::parse(&bytes), Err(Malformed::IpHeader));
        bytes[..2].copy_from_slice(&[0, 0x50]);
        assert_eq!(IpHeader::parse(&bytes), Err(Malformed::IpHeader));
        assert_eq!(IpHeader::parse(&[0, 0x40, 0]), Err(Malformed::IpHeader));
    }
}
