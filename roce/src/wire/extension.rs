//! The smaller extension headers: ImmDt, AtomicETH, AtomicAckETH, DETH and XRCETH (specification,
//! sections 9.3.2 to 9.3.8, and annex A14).

use super::{Field, Malformed, split};

/// Immediate data, and the header of a SEND with invalidate, which has a key in its place (IETH).
pub mod immdt {
    use super::{Malformed, split};

    /// The length of a header.
    pub const LENGTH: usize = 4;

    /// Parses the immediate data at the start of `bytes`, and splits it off.
    pub fn parse(bytes: &[u8]) -> Result<(u32, &[u8]), Malformed> {
        let (header, rest) = split::<LENGTH>(bytes, "ImmDt")?;
        Ok((u32::from_be_bytes(*header), rest))
    }

    /// The bytes of the header.
    #[must_use]
    pub fn to_bytes(immediate: u32) -> [u8; LENGTH] {
        immediate.to_be_bytes()
    }
}

/// The XRC Extended Transport Header.
pub mod xrceth {
    use super::{Malformed, split};

    /// The length of a header.
    pub const LENGTH: usize = 4;

    /// Parses the number of the shared receive queue in the header at the start of `bytes`, and splits the header off.
    pub fn parse(bytes: &[u8]) -> Result<(u32, &[u8]), Malformed> {
        let ([_, s0, s1, s2], rest) = split::<LENGTH>(bytes, "XRCETH")?;
        Ok((u32::from_be_bytes([0, *s0, *s1, *s2]), rest))
    }

    /// The bytes of the header; of the number 24 bits count.
    #[must_use]
    pub fn to_bytes(srqn: u32) -> [u8; LENGTH] {
        (srqn & 0xff_ffff).to_be_bytes()
    }
}

/// The Atomic Extended Transport Header.
pub mod atomiceth {
    use super::{Field, Malformed, split};

    /// The length of a header.
    pub const LENGTH: usize = 28;

    /// Where the fields lie.
    mod field {
        use super::Field;

        pub const VA: Field<0, 8> = Field;
        pub const R_KEY: Field<8, 4> = Field;
        pub const SWAP_ADD_DT: Field<12, 8> = Field;
        pub const CMP_DT: Field<20, 8> = Field;
    }

    /// A view of a header.
    #[derive(Clone, Copy, Debug)]
    pub struct Header<'a>(&'a [u8; LENGTH]);

    impl<'a> Header<'a> {
        /// Splits the header off the start of `bytes`.
        pub fn new(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), Malformed> {
            let (header, rest) = split(bytes, "AtomicETH")?;
            Ok((Self(header), rest))
        }

        /// The virtual address, a multiple of 8.
        #[must_use]
        pub fn va(&self) -> u64 {
            u64::from_be_bytes(*field::VA.of(self.0))
        }

        /// The remote key.
        #[must_use]
        pub fn rkey(&self) -> u32 {
            u32::from_be_bytes(*field::R_KEY.of(self.0))
        }

        /// The value to swap in, or to add.
        #[must_use]
        pub fn swap_or_add(&self) -> u64 {
            u64::from_be_bytes(*field::SWAP_ADD_DT.of(self.0))
        }

        /// The value to compare with.
        #[must_use]
        pub fn compare(&self) -> u64 {
            u64::from_be_bytes(*field::CMP_DT.of(self.0))
        }
    }

    /// A header taken apart.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Repr {
        /// The virtual address, a multiple of 8.
        pub va: u64,
        /// The remote key.
        pub rkey: u32,
        /// The value to swap in, or to add.
        pub swap_or_add: u64,
        /// The value to compare with.
        pub compare: u64,
    }

    impl Repr {
        /// Parses the header at the start of `bytes`, and splits it off.
        pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Malformed> {
            let (header, rest) = Header::new(bytes)?;
            let repr = Self {
                va: header.va(),
                rkey: header.rkey(),
                swap_or_add: header.swap_or_add(),
                compare: header.compare(),
            };
            Ok((repr, rest))
        }

        /// The bytes of the header.
        #[must_use]
        pub fn to_bytes(&self) -> [u8; LENGTH] {
            let mut bytes = [0; LENGTH];
            field::VA.put(&mut bytes, self.va.to_be_bytes());
            field::R_KEY.put(&mut bytes, self.rkey.to_be_bytes());
            field::SWAP_ADD_DT.put(&mut bytes, self.swap_or_add.to_be_bytes());
            field::CMP_DT.put(&mut bytes, self.compare.to_be_bytes());
            bytes
        }
    }
}

/// The Atomic ACK Extended Transport Header.
pub mod atomicacketh {
    use super::{Malformed, split};

    /// The length of a header.
    pub const LENGTH: usize = 8;

    /// Parses the value before the operation at the start of `bytes`, and splits it off.
    pub fn parse(bytes: &[u8]) -> Result<(u64, &[u8]), Malformed> {
        let (header, rest) = split::<LENGTH>(bytes, "AtomicAckETH")?;
        Ok((u64::from_be_bytes(*header), rest))
    }

    /// The bytes of the header.
    #[must_use]
    pub fn to_bytes(original: u64) -> [u8; LENGTH] {
        original.to_be_bytes()
    }

    /// Makes the value of a header, in place: from then on its bytes are in the order of the host, as in memory.
    pub fn make_value(header: &mut [u8; LENGTH]) {
        *header = u64::from_be_bytes(*header).to_ne_bytes();
    }
}

/// The Datagram Extended Transport Header.
pub mod deth {
    use super::{Malformed, split};

    /// The length of a header.
    pub const LENGTH: usize = 8;

    /// A header taken apart.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Repr {
        /// The queue key.
        pub qkey: u32,
        /// The source queue pair number: 24 bits.
        pub source_qpn: u32,
    }

    impl Repr {
        /// Parses the header at the start of `bytes`, and splits it off.
        pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Malformed> {
            let (&[k0, k1, k2, k3, _, q0, q1, q2], rest) = split::<LENGTH>(bytes, "DETH")?;
            let repr = Self {
                qkey: u32::from_be_bytes([k0, k1, k2, k3]),
                source_qpn: u32::from_be_bytes([0, q0, q1, q2]),
            };
            Ok((repr, rest))
        }

        /// The bytes of the header.
        #[must_use]
        pub fn to_bytes(&self) -> [u8; LENGTH] {
            let [k0, k1, k2, k3] = self.qkey.to_be_bytes();
            let [_, q0, q1, q2] = self.source_qpn.to_be_bytes();
            [k0, k1, k2, k3, 0, q0, q1, q2]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_headers_round_trip() {
        let bytes = immdt::to_bytes(0x0102_0304);
        assert_eq!(bytes, [1, 2, 3, 4]);
        assert_eq!(immdt::parse(&bytes), Ok((0x0102_0304, &[][..])));
        let mut header = atomicacketh::to_bytes(1 << 63);
        assert_eq!(atomicacketh::parse(&header), Ok((1 << 63, &[][..])));
        atomicacketh::make_value(&mut header);
        assert_eq!(u64::from_ne_bytes(header), 1 << 63);
        assert!(immdt::parse(&bytes[..3]).is_err());
        assert_eq!(xrceth::to_bytes(0xff01_0203), [0, 1, 2, 3]);
        assert_eq!(xrceth::parse(&[9, 1, 2, 3]), Ok((0x1_0203, &[][..])));
        assert!(xrceth::parse(&bytes[..3]).is_err());
        assert!(atomicacketh::parse(&bytes).is_err());
    }

    #[test]
    fn an_atomic_header_round_trips() {
        let repr = atomiceth::Repr {
            va: 0x0102_0304_0506_0708,
            rkey: 0x1112_1314,
            swap_or_add: 0x2122_2324_2526_2728,
            compare: 0x3132_3334_3536_3738,
        };
        let bytes = repr.to_bytes();
        assert_eq!(bytes[8..12], [0x11, 0x12, 0x13, 0x14]);
        assert_eq!(atomiceth::Repr::parse(&bytes), Ok((repr, &[][..])));
        assert!(atomiceth::Repr::parse(&bytes[..27]).is_err());
    }

    #[test]
    fn a_datagram_header_round_trips() {
        let repr = deth::Repr { qkey: 0x8001_0000, source_qpn: 0xab_cdef };
        assert_eq!(repr.to_bytes(), [0x80, 0x01, 0, 0, 0, 0xab, 0xcd, 0xef]);
        assert_eq!(deth::Repr::parse(&repr.to_bytes()), Ok((repr, &[][..])));
    }
}
