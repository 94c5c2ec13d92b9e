//! Frame formats: a view over bytes and a value for each header.
//!
//! A view borrows exactly the bytes of its header, so that after the length check in its `new` no
//! accessor can fail. A value (`Repr`) is a header taken apart: `parse` makes it from a view,
//! `to_bytes` makes bytes of it. Where the fields of a header lie stands once, in its module
//! `field`, under the specification's names: as the number of a byte, or as a `Field` of several.
//! All fields are big-endian on the wire unless stated otherwise; values are in host order.

use core::ops::Range;

pub mod aeth;
pub mod arp;
pub mod bth;
pub mod difference;
pub mod ethernet;
pub mod extension;
pub mod frame;
pub mod icmpv4;
pub mod icrc;
pub mod igmp;
pub mod ipv4;
pub mod ipv6;
pub mod mld;
pub mod ndp;
pub mod reth;
pub mod udp;

/// Why bytes are not the header they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Fewer bytes than the header has.
    #[error("{0} header is cut off")]
    Truncated(&'static str),
    /// A length field disagrees with the bytes at hand.
    #[error("{0} length field does not fit the frame")]
    Length(&'static str),
    /// A version or constant field has another value.
    #[error("{0} header has an unknown version or format")]
    Version(&'static str),
    /// The header checksum is wrong.
    #[error("{0} checksum is wrong")]
    Checksum(&'static str),
    /// Two addresses that must agree do not.
    #[error("{0} packet and its frame name different senders")]
    Sender(&'static str),
    /// An IPv4 address in its mapped form, which a GID may have but no packet.
    #[error("{0} packet has a mapped IPv4 address")]
    Mapped(&'static str),
    /// The packet is a fragment.
    #[error("{0} packet is a fragment")]
    Fragment(&'static str),
    /// The opcode is none of those known.
    #[error("opcode {0:#04x} is unknown")]
    Opcode(u8),
}

/// The first `N` bytes as an array, and the rest.
#[inline]
pub(crate) fn split<'a, const N: usize>(
    bytes: &'a [u8],
    name: &'static str,
) -> Result<(&'a [u8; N], &'a [u8]), Malformed> {
    bytes.split_first_chunk().ok_or(Malformed::Truncated(name))
}

/// A field of several bytes in a header: where it begins, and how many they are.
#[derive(Clone, Copy)]
pub(crate) struct Field<const AT: usize, const N: usize>;

impl<const AT: usize, const N: usize> Field<AT, N> {
    /// Where the field lies.
    pub(crate) const fn range(self) -> Range<usize> {
        AT..const { AT + N }
    }

    /// The bytes of the field. It does not compile for a header that is too short, so that nothing
    /// is left to check when it runs.
    #[inline]
    pub(crate) const fn of<const LENGTH: usize>(self, header: &[u8; LENGTH]) -> &[u8; N] {
        const { assert!(AT + N <= LENGTH) };
        match header.split_at(AT).1.first_chunk() {
            Some(bytes) => bytes,
            None => &[0; N],
        }
    }

    /// Sets the bytes of the field, as checked as [`Field::of`].
    #[inline]
    pub(crate) const fn put<const LENGTH: usize>(self, header: &mut [u8; LENGTH], bytes: [u8; N]) {
        const { assert!(AT + N <= LENGTH) };
        if let Some(place) = header.split_at_mut(AT).1.first_chunk_mut() {
            *place = bytes;
        }
    }
}

/// The internet checksum's running sum of `bytes`, added to `sum` (RFC 1071).
#[inline]
pub(crate) fn checksum_add(sum: u32, bytes: &[u8]) -> u32 {
    let mut sum = u64::from(sum);
    for pair in bytes.chunks(2) {
        let word = match *pair {
            [a, b] => u16::from_be_bytes([a, b]),
            [a] => u16::from_be_bytes([a, 0]),
            _ => 0,
        };
        sum = sum.wrapping_add(u64::from(word));
    }
    while sum >> 32 != 0 {
        sum = (sum & 0xffff_ffff).wrapping_add(sum >> 32);
    }
    sum as u32
}

/// The internet checksum of a running sum.
#[inline]
pub(crate) fn checksum_finish(mut sum: u32) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff).wrapping_add(sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_internet_checksum_matches_its_rfc_example() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(checksum_finish(checksum_add(0, &bytes)), !0xddf2);
        assert_eq!(checksum_finish(checksum_add(0, &[0x12])), !0x1200);
    }
}
