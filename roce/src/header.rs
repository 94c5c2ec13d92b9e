//! The header of a frame to send, in one inline buffer.

use core::fmt;

use crate::wire::extension::{atomiceth, xrceth};
use crate::wire::{bth, ethernet, ipv6, udp};

/// The longest header: Ethernet with a tag, IPv6, UDP, BTH, XRCETH and AtomicETH.
const INLINE: usize = ethernet::LENGTH
    + ethernet::TAG_LENGTH
    + ipv6::LENGTH
    + udp::LENGTH
    + bth::LENGTH
    + xrceth::LENGTH
    + atomiceth::LENGTH;

/// Header bytes of one frame. Headers of RoCE frames need no allocation; the rare ARP and ICMP
/// answers, which are whole frames, are boxed.
#[derive(Clone)]
pub struct HeaderBuffer(Bytes);

#[derive(Clone)]
enum Bytes {
    Inline { bytes: [u8; INLINE], length: u8 },
    Whole(Box<[u8]>),
}

impl HeaderBuffer {
    /// A header that begins with these bytes; it holds many more.
    #[inline]
    pub(crate) fn beginning<const N: usize>(first: &[u8; N]) -> Self {
        const { assert!(N <= INLINE) };
        let mut bytes = [0; INLINE];
        if let Some(place) = bytes.first_chunk_mut() {
            *place = *first;
        }
        Self(Bytes::Inline { bytes, length: N as u8 })
    }

    /// A whole frame.
    pub(crate) fn whole(frame: Vec<u8>) -> Self {
        Self(Bytes::Whole(frame.into_boxed_slice()))
    }

    /// Appends `more`; headers never exceed the buffer, so nothing is ever cut off.
    #[inline]
    pub(crate) fn push(&mut self, more: &[u8]) {
        if let Bytes::Inline { bytes, length } = &mut self.0 {
            let start = usize::from(*length);
            let end = start.wrapping_add(more.len());
            if let Some(place) = bytes.get_mut(start..end) {
                place.copy_from_slice(more);
                *length = end as u8;
            }
        }
    }

    /// Puts `more` in at an offset; what stood there and behind it stands behind that.
    pub(crate) fn insert(&mut self, offset: usize, more: &[u8]) {
        if let Bytes::Inline { bytes, length } = &mut self.0 {
            let end = usize::from(*length).wrapping_add(more.len());
            let behind = bytes.get_mut(offset..end);
            if let Some(behind) = behind.filter(|behind| behind.len() >= more.len()) {
                behind.rotate_right(more.len());
                for (place, byte) in behind.iter_mut().zip(more) {
                    *place = *byte;
                }
                *length = end as u8;
            }
        }
    }

    /// The bytes, Ethernet header first.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        match &self.0 {
            Bytes::Inline { bytes, length } => {
                bytes.get(..usize::from(*length)).unwrap_or_default()
            }
            Bytes::Whole(frame) => frame,
        }
    }
}

impl fmt::Debug for HeaderBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HeaderBuffer(")?;
        for byte in self.as_slice() {
            write!(f, "{byte:02x}")?;
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_grow() {
        let mut header = HeaderBuffer::beginning(&[1, 2, 3]);
        header.push(&[4, 0xaf]);
        assert_eq!(header.as_slice(), [1, 2, 3, 4, 0xaf]);
        assert_eq!(format!("{header:?}"), "HeaderBuffer(01020304af)");
        header.insert(1, &[9, 8]);
        assert_eq!(header.as_slice(), [1, 9, 8, 2, 3, 4, 0xaf]);
        header.insert(7, &[7]);
        assert_eq!(header.as_slice(), [1, 9, 8, 2, 3, 4, 0xaf, 7]);
    }
}
