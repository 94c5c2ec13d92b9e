//! UDP (RFC 768). RoCE v2 sends checksum 0; the ICRC protects the packet.

use super::{Field, Malformed, split};

/// The length of a header.
pub const LENGTH: usize = 8;

/// Where the fields lie.
pub(crate) mod field {
    use super::Field;

    pub const SOURCE_PORT: Field<0, 2> = Field;
    pub const DESTINATION_PORT: Field<2, 2> = Field;
    pub const LENGTH: Field<4, 2> = Field;
    pub const CHECKSUM: Field<6, 2> = Field;
}

/// A view of a header.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a>(&'a [u8; LENGTH]);

impl<'a> Header<'a> {
    /// Splits the header off the start of `bytes`.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), Malformed> {
        let (header, rest) = split(bytes, "UDP")?;
        Ok((Self(header), rest))
    }

    /// The source port.
    #[must_use]
    pub fn source_port(&self) -> u16 {
        u16::from_be_bytes(*field::SOURCE_PORT.of(self.0))
    }

    /// The destination port.
    #[must_use]
    pub fn destination_port(&self) -> u16 {
        u16::from_be_bytes(*field::DESTINATION_PORT.of(self.0))
    }

    /// The length of the datagram in bytes, header included.
    #[must_use]
    pub fn length(&self) -> u16 {
        u16::from_be_bytes(*field::LENGTH.of(self.0))
    }

    /// The checksum; 0 means none.
    #[must_use]
    pub fn checksum(&self) -> u16 {
        u16::from_be_bytes(*field::CHECKSUM.of(self.0))
    }
}

/// A header taken apart. The checksum is neither checked nor sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The source port.
    pub source_port: u16,
    /// The destination port.
    pub destination_port: u16,
    /// The length of the payload in bytes.
    pub payload_length: u16,
}

impl Repr {
    /// The header at the start of `packet`, and its payload. The datagram must fill its IP packet:
    /// the ICRC is its last word.
    #[inline]
    pub fn parse(packet: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let (header, payload) = Header::new(packet)?;
        // RC-3
        if usize::from(header.length()) != packet.len() {
            return Err(Malformed::Length("UDP"));
        }
        let repr = Self {
            source_port: header.source_port(),
            destination_port: header.destination_port(),
            // At most 65527, for it came from a 16-bit field.
            payload_length: payload.len() as u16,
        };
        Ok((repr, payload))
    }

    /// The bytes of the header, with checksum 0. The payload may have at most 65527 bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; LENGTH] {
        let length = self.payload_length.saturating_add(LENGTH as u16);
        let mut bytes = [0; LENGTH];
        field::SOURCE_PORT.put(&mut bytes, self.source_port.to_be_bytes());
        field::DESTINATION_PORT.put(&mut bytes, self.destination_port.to_be_bytes());
        field::LENGTH.put(&mut bytes, length.to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_round_trips() {
        let repr = Repr { source_port: 0xc123, destination_port: 4791, payload_length: 2 };
        let mut bytes = repr.to_bytes().to_vec();
        bytes.extend([8, 9]);
        assert_eq!(Repr::parse(&bytes), Ok((repr, &[8, 9][..])));
    }

    /// RC-3.
    #[test]
    fn a_length_beside_the_packets_is_refused() {
        let repr = Repr { source_port: 1, destination_port: 2, payload_length: 2 };
        let mut bytes = repr.to_bytes().to_vec();
        assert_eq!(Repr::parse(&bytes), Err(Malformed::Length("UDP")));
        bytes.extend([8, 9, 10]);
        assert_eq!(Repr::parse(&bytes), Err(Malformed::Length("UDP")));
        assert_eq!(Repr::parse(&bytes[..7]), Err(Malformed::Truncated("UDP")));
    }
}
