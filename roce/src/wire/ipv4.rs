//! IPv4 without options (RFC 791); RoCE v2 uses neither options nor fragments.

use core::net::Ipv4Addr;

use super::{Field, Malformed, checksum_add, checksum_finish, split};

/// The length of a header without options.
pub const LENGTH: usize = 20;

/// The protocol number of ICMP.
pub const PROTOCOL_ICMP: u8 = 1;

/// The protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;

const DONT_FRAGMENT: u16 = 0x4000;

/// Where the fields lie.
pub(crate) mod field {
    use super::Field;

    pub const VERSION_IHL: usize = 0;
    pub const TYPE_OF_SERVICE: usize = 1;
    pub const TOTAL_LENGTH: Field<2, 2> = Field;
    pub const IDENTIFICATION: Field<4, 2> = Field;
    pub const FLAGS_FRAGMENT_OFFSET: Field<6, 2> = Field;
    pub const TIME_TO_LIVE: usize = 8;
    pub const PROTOCOL: usize = 9;
    pub const HEADER_CHECKSUM: Field<10, 2> = Field;
    pub const SOURCE_ADDRESS: Field<12, 4> = Field;
    pub const DESTINATION_ADDRESS: Field<16, 4> = Field;
}

/// A view of a header without options.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a>(&'a [u8; LENGTH]);

impl<'a> Header<'a> {
    /// Splits the header off the start of `bytes`.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), Malformed> {
        let (header, rest) = split(bytes, "IPv4")?;
        Ok((Self(header), rest))
    }

    /// The version; 4.
    #[must_use]
    pub fn version(&self) -> u8 {
        self.0[field::VERSION_IHL] >> 4
    }

    /// The length of the header with its options, in bytes.
    #[must_use]
    pub fn header_length(&self) -> usize {
        usize::from(self.0[field::VERSION_IHL] & 0x0f) << 2
    }

    /// The type of service: DSCP in the upper six bits, ECN in the lower two.
    #[must_use]
    pub fn type_of_service(&self) -> u8 {
        self.0[field::TYPE_OF_SERVICE]
    }

    /// The length of the packet in bytes, header included.
    #[must_use]
    pub fn total_length(&self) -> u16 {
        u16::from_be_bytes(*field::TOTAL_LENGTH.of(self.0))
    }

    /// The identification of the packet among fragments.
    #[must_use]
    pub fn identification(&self) -> u16 {
        u16::from_be_bytes(*field::IDENTIFICATION.of(self.0))
    }

    /// Whether the packet is a fragment of a larger one.
    #[must_use]
    pub fn is_fragment(&self) -> bool {
        // "More fragments" or an offset; the "don't fragment" bit does not count.
        u16::from_be_bytes(*field::FLAGS_FRAGMENT_OFFSET.of(self.0)) & 0x3fff != 0
    }

    /// Where the payload begins in that of the whole packet, in units of 8 bytes.
    #[must_use]
    pub fn fragment_offset(&self) -> u16 {
        u16::from_be_bytes(*field::FLAGS_FRAGMENT_OFFSET.of(self.0)) & 0x1fff
    }

    /// The time to live.
    #[must_use]
    pub fn time_to_live(&self) -> u8 {
        self.0[field::TIME_TO_LIVE]
    }

    /// The protocol of the payload.
    #[must_use]
    pub fn protocol(&self) -> u8 {
        self.0[field::PROTOCOL]
    }

    /// Whether the header checksum is right.
    #[must_use]
    pub fn checksum_is_right(&self) -> bool {
        checksum_finish(checksum_add(0, self.0)) == 0
    }

    /// The source address.
    #[must_use]
    pub fn source(&self) -> Ipv4Addr {
        Ipv4Addr::from(*field::SOURCE_ADDRESS.of(self.0))
    }

    /// The destination address.
    #[must_use]
    pub fn destination(&self) -> Ipv4Addr {
        Ipv4Addr::from(*field::DESTINATION_ADDRESS.of(self.0))
    }
}

/// A header taken apart. Emitted headers carry "don't fragment" and identification 0 (RFC 6864).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The type of service: DSCP in the upper six bits, ECN in the lower two.
    pub type_of_service: u8,
    /// The time to live.
    pub time_to_live: u8,
    /// The protocol of the payload.
    pub protocol: u8,
    /// The source address.
    pub source: Ipv4Addr,
    /// The destination address.
    pub destination: Ipv4Addr,
    /// The length of the payload in bytes.
    pub payload_length: u16,
}

impl Repr {
    /// The header at the start of `packet`, checksum checked, and exactly its payload: Ethernet
    /// padding is cut off.
    #[inline]
    pub fn parse(packet: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let (header, rest) = Header::new(packet)?;
        // RC-3
        if header.version() != 4 || header.header_length() != LENGTH {
            return Err(Malformed::Version("IPv4"));
        }
        if !header.checksum_is_right() {
            return Err(Malformed::Checksum("IPv4"));
        }
        if header.is_fragment() {
            return Err(Malformed::Fragment("IPv4"));
        }
        let payload = usize::from(header.total_length())
            .checked_sub(LENGTH)
            .and_then(|length| rest.get(..length))
            .ok_or(Malformed::Length("IPv4"))?;
        let repr = Self {
            type_of_service: header.type_of_service(),
            time_to_live: header.time_to_live(),
            protocol: header.protocol(),
            source: header.source(),
            destination: header.destination(),
            // At most 65515, for it came from a 16-bit field.
            payload_length: payload.len() as u16,
        };
        Ok((repr, payload))
    }

    /// The bytes of the header, with its checksum. The payload may have at most 65515 bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; LENGTH] {
        let total_length = self.payload_length.saturating_add(LENGTH as u16);
        let mut bytes = [0; LENGTH];
        bytes[field::VERSION_IHL] = 0x45;
        bytes[field::TYPE_OF_SERVICE] = self.type_of_service;
        field::TOTAL_LENGTH.put(&mut bytes, total_length.to_be_bytes());
        field::FLAGS_FRAGMENT_OFFSET.put(&mut bytes, DONT_FRAGMENT.to_be_bytes());
        bytes[field::TIME_TO_LIVE] = self.time_to_live;
        bytes[field::PROTOCOL] = self.protocol;
        field::SOURCE_ADDRESS.put(&mut bytes, self.source.octets());
        field::DESTINATION_ADDRESS.put(&mut bytes, self.destination.octets());
        let checksum = checksum_finish(checksum_add(0, &bytes));
        field::HEADER_CHECKSUM.put(&mut bytes, checksum.to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Repr {
        Repr {
            type_of_service: 0x6a,
            time_to_live: 64,
            protocol: PROTOCOL_UDP,
            source: Ipv4Addr::new(192, 168, 0, 1),
            destination: Ipv4Addr::new(192, 168, 0, 199),
            payload_length: 3,
        }
    }

    #[test]
    fn a_header_round_trips_and_padding_is_cut() {
        let mut bytes = sample().to_bytes().to_vec();
        bytes.extend([1, 2, 3, 0, 0, 0]);
        assert_eq!(Repr::parse(&bytes), Ok((sample(), &[1, 2, 3][..])));
        assert_eq!(Repr::parse(&bytes[..22]), Err(Malformed::Length("IPv4")));
    }

    /// RC-3.
    #[test]
    fn a_flipped_bit_anywhere_in_the_header_is_noticed() {
        for bit in 0..LENGTH * 8 {
            let mut bytes = sample().to_bytes().to_vec();
            bytes.extend([1, 2, 3]);
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Repr::parse(&bytes).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn the_checksum_matches_a_known_header() {
        // The example of RFC 1071's usual illustration: 192.168.0.1 to 192.168.0.199, UDP.
        let repr = Repr { type_of_service: 0, payload_length: 95, ..sample() };
        assert_eq!(repr.to_bytes()[10..12], [0xb8, 0x61]);
    }
}
