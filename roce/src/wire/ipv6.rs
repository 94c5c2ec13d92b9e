//! IPv6 without extension headers (RFC 8200).

use core::net::Ipv6Addr;

use super::{Field, Malformed, split};

/// The length of a header.
pub const LENGTH: usize = 40;

/// The next-header number of UDP.
pub const NEXT_HEADER_UDP: u8 = 17;

/// The next-header number of ICMPv6.
pub const NEXT_HEADER_ICMPV6: u8 = 58;

/// The number of the hop-by-hop options header.
pub const HOP_BY_HOP: u8 = 0;

/// The number of the routing header.
pub const ROUTING: u8 = 43;

/// The number of the fragment header.
pub const FRAGMENT: u8 = 44;

/// The number of the destination options header.
pub const DESTINATION_OPTIONS: u8 = 60;

/// Where the fields lie.
pub(crate) mod field {
    use super::Field;

    pub const VERSION_CLASS_FLOW: Field<0, 4> = Field;
    pub const PAYLOAD_LENGTH: Field<4, 2> = Field;
    pub const NEXT_HEADER: usize = 6;
    pub const HOP_LIMIT: usize = 7;
    pub const SOURCE_ADDRESS: Field<8, 16> = Field;
    pub const DESTINATION_ADDRESS: Field<24, 16> = Field;
}

/// A view of a header.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a>(&'a [u8; LENGTH]);

impl<'a> Header<'a> {
    /// Splits the header off the start of `bytes`.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), Malformed> {
        let (header, rest) = split(bytes, "IPv6")?;
        Ok((Self(header), rest))
    }

    /// Version, traffic class and flow label.
    fn first_word(&self) -> u32 {
        u32::from_be_bytes(*field::VERSION_CLASS_FLOW.of(self.0))
    }

    /// The version; 6.
    #[must_use]
    pub fn version(&self) -> u8 {
        let [first, ..] = *field::VERSION_CLASS_FLOW.of(self.0);
        first >> 4
    }

    /// The traffic class: DSCP in the upper six bits, ECN in the lower two.
    #[must_use]
    pub fn traffic_class(&self) -> u8 {
        (self.first_word() >> 20) as u8
    }

    /// The flow label: 20 bits.
    #[must_use]
    pub fn flow_label(&self) -> u32 {
        self.first_word() & 0x000f_ffff
    }

    /// The length of the payload in bytes.
    #[must_use]
    pub fn payload_length(&self) -> u16 {
        u16::from_be_bytes(*field::PAYLOAD_LENGTH.of(self.0))
    }

    /// The protocol of the payload.
    #[must_use]
    pub fn next_header(&self) -> u8 {
        self.0[field::NEXT_HEADER]
    }

    /// The hop limit.
    #[must_use]
    pub fn hop_limit(&self) -> u8 {
        self.0[field::HOP_LIMIT]
    }

    /// The source address.
    #[must_use]
    pub fn source(&self) -> Ipv6Addr {
        Ipv6Addr::from(*field::SOURCE_ADDRESS.of(self.0))
    }

    /// The destination address.
    #[must_use]
    pub fn destination(&self) -> Ipv6Addr {
        Ipv6Addr::from(*field::DESTINATION_ADDRESS.of(self.0))
    }
}

/// A header taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The traffic class: DSCP in the upper six bits, ECN in the lower two.
    pub traffic_class: u8,
    /// The flow label: 20 bits.
    pub flow_label: u32,
    /// The protocol of the payload.
    pub next_header: u8,
    /// The hop limit.
    pub hop_limit: u8,
    /// The source address.
    pub source: Ipv6Addr,
    /// The destination address.
    pub destination: Ipv6Addr,
    /// The length of the payload in bytes.
    pub payload_length: u16,
}

impl Repr {
    /// The header at the start of `packet`, and exactly its payload: Ethernet padding is cut off.
    pub fn parse(packet: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let (header, rest) = Header::new(packet)?;
        if header.version() != 6 {
            return Err(Malformed::Version("IPv6"));
        }
        let payload =
            rest.get(..usize::from(header.payload_length())).ok_or(Malformed::Length("IPv6"))?;
        let repr = Self {
            traffic_class: header.traffic_class(),
            flow_label: header.flow_label(),
            next_header: header.next_header(),
            hop_limit: header.hop_limit(),
            source: header.source(),
            destination: header.destination(),
            payload_length: header.payload_length(),
        };
        Ok((repr, payload))
    }

    /// The bytes of the header.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; LENGTH] {
        let word = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0x000f_ffff;
        let mut bytes = [0; LENGTH];
        field::VERSION_CLASS_FLOW.put(&mut bytes, word.to_be_bytes());
        field::PAYLOAD_LENGTH.put(&mut bytes, self.payload_length.to_be_bytes());
        bytes[field::NEXT_HEADER] = self.next_header;
        bytes[field::HOP_LIMIT] = self.hop_limit;
        field::SOURCE_ADDRESS.put(&mut bytes, self.source.octets());
        field::DESTINATION_ADDRESS.put(&mut bytes, self.destination.octets());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_round_trips_and_padding_is_cut() {
        let repr = Repr {
            traffic_class: 0xa3,
            flow_label: 0xf_1234,
            next_header: NEXT_HEADER_UDP,
            hop_limit: 5,
            source: "fe80::1".parse().unwrap(),
            destination: "2001:db8::2".parse().unwrap(),
            payload_length: 2,
        };
        let mut bytes = repr.to_bytes().to_vec();
        bytes.extend([1, 2, 0, 0]);
        assert_eq!(Repr::parse(&bytes), Ok((repr, &[1, 2][..])));
        assert_eq!(Repr::parse(&bytes[..41]), Err(Malformed::Length("IPv6")));
        bytes[0] = 0x4a;
        assert_eq!(Repr::parse(&bytes), Err(Malformed::Version("IPv6")));
    }
}
