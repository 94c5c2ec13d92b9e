//! The RDMA Extended Transport Header (specification, section 9.3.3).

use super::{Malformed, split};

/// The length of a header.
pub const LENGTH: usize = 16;

/// A view of a header.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a>(&'a [u8; LENGTH]);

impl<'a> Header<'a> {
    /// The header at the start of `bytes`, and what follows it.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), Malformed> {
        let (header, rest) = split(bytes, "RETH")?;
        Ok((Self(header), rest))
    }

    /// The virtual address.
    #[must_use]
    pub fn va(&self) -> u64 {
        let b = self.0;
        u64::from_be_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]])
    }

    /// The remote key.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        u32::from_be_bytes([self.0[8], self.0[9], self.0[10], self.0[11]])
    }

    /// The length of the whole message in bytes.
    #[must_use]
    pub fn dma_length(&self) -> u32 {
        u32::from_be_bytes([self.0[12], self.0[13], self.0[14], self.0[15]])
    }
}

/// A header taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The virtual address.
    pub va: u64,
    /// The remote key.
    pub rkey: u32,
    /// The length of the whole message in bytes.
    pub dma_length: u32,
}

impl Repr {
    /// The header at the start of `bytes`, and what follows it.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let (header, rest) = Header::new(bytes)?;
        let repr = Self { va: header.va(), rkey: header.rkey(), dma_length: header.dma_length() };
        Ok((repr, rest))
    }

    /// The bytes of the header.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; LENGTH] {
        let [a, b, c, d, e, f, g, h] = self.va.to_be_bytes();
        let [k0, k1, k2, k3] = self.rkey.to_be_bytes();
        let [l0, l1, l2, l3] = self.dma_length.to_be_bytes();
        [a, b, c, d, e, f, g, h, k0, k1, k2, k3, l0, l1, l2, l3]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_round_trips() {
        let repr = Repr { va: 0x0102_0304_0506_0708, rkey: 0x090a_0b0c, dma_length: 0x0d0e_0f10 };
        let bytes = repr.to_bytes();
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]);
        assert_eq!(Repr::parse(&bytes), Ok((repr, &[][..])));
        assert_eq!(Repr::parse(&bytes[..15]), Err(Malformed::Truncated("RETH")));
    }
}
