//! Ethernet II, with an optional 802.1Q tag.

use super::{Field, Malformed, split};
use crate::types::MacAddr;

/// The length of an untagged header.
pub const LENGTH: usize = 14;

/// The length of an 802.1Q tag.
pub const TAG_LENGTH: usize = 4;

/// Where a tag stands: behind both addresses.
pub const TAG_OFFSET: usize = 12;

/// The protocol of an Ethernet payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4.
    pub const IPV4: Self = Self(0x0800);
    /// ARP.
    pub const ARP: Self = Self(0x0806);
    /// An 802.1Q tag.
    pub const VLAN: Self = Self(0x8100);
    /// IPv6.
    pub const IPV6: Self = Self(0x86dd);
}

/// Where the fields of an untagged header lie.
mod field {
    use super::Field;

    pub const DESTINATION_ADDRESS: Field<0, 6> = Field;
    pub const SOURCE_ADDRESS: Field<6, 6> = Field;
    pub const ETHERTYPE: Field<12, 2> = Field;
}

/// A view of an untagged header.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a>(&'a [u8; LENGTH]);

impl<'a> Header<'a> {
    /// Splits the header off the start of `bytes`.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), Malformed> {
        let (header, rest) = split(bytes, "Ethernet")?;
        Ok((Self(header), rest))
    }

    /// The destination address.
    #[must_use]
    #[inline]
    pub fn destination(&self) -> MacAddr {
        MacAddr(*field::DESTINATION_ADDRESS.of(self.0))
    }

    /// The source address.
    #[must_use]
    #[inline]
    pub fn source(&self) -> MacAddr {
        MacAddr(*field::SOURCE_ADDRESS.of(self.0))
    }

    /// The protocol, which may be [`EtherType::VLAN`].
    #[must_use]
    #[inline]
    pub fn ethertype(&self) -> EtherType {
        EtherType(u16::from_be_bytes(*field::ETHERTYPE.of(self.0)))
    }
}

/// An 802.1Q tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// The priority code point: 3 bits.
    pub priority: u8,
    /// The drop-eligible indicator.
    pub drop_eligible: bool,
    /// The VLAN identifier: 12 bits; 0 is a priority tag without a VLAN.
    pub vlan: u16,
}

impl Tag {
    /// The bytes of the tag, with the protocol number that says that it is one.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; TAG_LENGTH] {
        let [type_hi, type_lo] = EtherType::VLAN.0.to_be_bytes();
        let [hi, lo] = (self.vlan & 0xfff).to_be_bytes();
        let priority = (self.priority & 7) << 5;
        let drop_eligible = u8::from(self.drop_eligible) << 4;
        [type_hi, type_lo, priority | drop_eligible | hi, lo]
    }
}

/// A header taken apart, with its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The destination address.
    pub destination: MacAddr,
    /// The source address.
    pub source: MacAddr,
    /// The 802.1Q tag.
    pub tag: Option<Tag>,
    /// The protocol of the payload.
    pub ethertype: EtherType,
}

impl Repr {
    /// The header and the tag at the start of `frame`, and the payload.
    #[inline]
    pub fn parse(frame: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let (header, rest) = Header::new(frame)?;
        let mut repr = Self {
            destination: header.destination(),
            source: header.source(),
            tag: None,
            ethertype: header.ethertype(),
        };
        if repr.ethertype != EtherType::VLAN {
            return Ok((repr, rest));
        }
        let (&[hi, lo, type_hi, type_lo], rest) = split::<TAG_LENGTH>(rest, "802.1Q")?;
        repr.tag = Some(Tag {
            priority: hi >> 5,
            drop_eligible: hi & 0x10 != 0,
            vlan: u16::from_be_bytes([hi & 0x0f, lo]),
        });
        repr.ethertype = EtherType(u16::from_be_bytes([type_hi, type_lo]));
        Ok((repr, rest))
    }

    /// The VLAN it belongs to; 0 for none. A priority tag is no VLAN.
    #[must_use]
    #[inline]
    pub fn vlan(&self) -> u16 {
        self.tag.map_or(0, |tag| tag.vlan)
    }

    /// The bytes of the header without its tag.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        field::DESTINATION_ADDRESS.put(&mut bytes, self.destination.0);
        field::SOURCE_ADDRESS.put(&mut bytes, self.source.0);
        field::ETHERTYPE.put(&mut bytes, self.ethertype.0.to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_round_trips() {
        let repr = Repr {
            destination: MacAddr([1, 2, 3, 4, 5, 6]),
            source: MacAddr([7, 8, 9, 10, 11, 12]),
            tag: None,
            ethertype: EtherType::IPV6,
        };
        let mut bytes = repr.to_bytes().to_vec();
        bytes.push(99);
        assert_eq!(Repr::parse(&bytes), Ok((repr, &[99_u8][..])));
    }

    #[test]
    fn a_tag_round_trips() {
        for (priority, drop_eligible, vlan) in [(0, false, 1), (7, true, 0xfff), (5, false, 0xabc)]
        {
            let tag = Tag { priority, drop_eligible, vlan };
            let bytes = [&[0; TAG_OFFSET][..], &tag.to_bytes(), &[8, 0]].concat();
            assert_eq!(Repr::parse(&bytes).unwrap().0.tag, Some(tag));
        }
    }

    #[test]
    fn a_tag_is_taken_off() {
        let mut bytes = vec![0; 12];
        bytes.extend([0x81, 0x00, 0xb1, 0x23, 0x08, 0x06, 42]);
        let (repr, rest) = Repr::parse(&bytes).unwrap();
        assert_eq!(repr.tag, Some(Tag { priority: 5, drop_eligible: true, vlan: 0x123 }));
        assert_eq!(repr.ethertype, EtherType::ARP);
        assert_eq!(rest, [42]);
        assert!(Repr::parse(&bytes[..17]).is_err());
    }
}
