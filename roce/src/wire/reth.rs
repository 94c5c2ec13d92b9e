//! The RDMA Extended Transport Header (specification, section 9.3.3).

use super::{Field, Malformed, split};

/// The length of a header.
pub const LENGTH: usize = 16;

/// Where the fields lie.
mod field {
    use super::Field;

    pub const VA: Field<0, 8> = Field;
    pub const R_KEY: Field<8, 4> = Field;
    pub const DMA_LEN: Field<12, 4> = Field;
}

/// A view of a header.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a>(&'a [u8; LENGTH]);

impl<'a> Header<'a> {
    /// Splits the header off the start of `bytes`.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), Malformed> {
        let (header, rest) = split(bytes, "RETH")?;
        Ok((Self(header), rest))
    }

    /// The virtual address.
    #[must_use]
    pub fn va(&self) -> u64 {
        u64::from_be_bytes(*field::VA.of(self.0))
    }

    /// The remote key.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        u32::from_be_bytes(*field::R_KEY.of(self.0))
    }

    /// The length of the whole message in bytes.
    #[must_use]
    pub fn dma_length(&self) -> u32 {
        u32::from_be_bytes(*field::DMA_LEN.of(self.0))
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
    /// Parses the header at the start of `bytes`, and splits it off.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let (header, rest) = Header::new(bytes)?;
        let repr = Self { va: header.va(), rkey: header.rkey(), dma_length: header.dma_length() };
        Ok((repr, rest))
    }

    /// The bytes of the header.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        field::VA.put(&mut bytes, self.va.to_be_bytes());
        field::R_KEY.put(&mut bytes, self.rkey.to_be_bytes());
        field::DMA_LEN.put(&mut bytes, self.dma_length.to_be_bytes());
        bytes
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
