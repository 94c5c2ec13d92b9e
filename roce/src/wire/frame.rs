//! A whole RoCE v2 packet, from the UDP header to the invariant CRC.

use core::ops::Range;

use super::aeth;
use super::bth;
use super::extension::{atomicacketh, atomiceth, deth, immdt, xrceth};
use super::reth;
use super::{Malformed, icrc};
use crate::opcode::{Extensions, Opcode};

/// The transport headers of a packet, and where its payload lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The Base Transport Header.
    pub bth: bth::Repr,
    /// The row of its opcode.
    pub opcode: &'static Opcode,
    /// The datagram header.
    pub deth: Option<deth::Repr>,
    /// The shared receive queue that a request along XRC names.
    pub srqn: Option<u32>,
    /// The RDMA header.
    pub reth: Option<reth::Repr>,
    /// The header of an atomic operation.
    pub atomic: Option<atomiceth::Repr>,
    /// The acknowledgement header.
    pub aeth: Option<aeth::Repr>,
    /// The immediate data.
    pub immediate: Option<u32>,
    /// The key to take back.
    pub invalidate: Option<u32>,
    /// The payload without padding, as a range of the bytes parsed.
    pub payload: Range<usize>,
}

impl Repr {
    /// The transport headers in `datagram`: the payload of the UDP datagram, invariant CRC
    /// included (it is not checked here).
    #[inline]
    pub fn parse(datagram: &[u8]) -> Result<Self, Malformed> {
        let (base, mut rest) = bth::Repr::parse(datagram)?;
        // RC-5
        let opcode = Opcode::find(base.opcode).ok_or(Malformed::Opcode(base.opcode))?;
        let mut repr = Self {
            bth: base,
            opcode,
            deth: None,
            srqn: None,
            reth: None,
            atomic: None,
            aeth: None,
            immediate: None,
            invalidate: None,
            payload: 0..0,
        };
        if !opcode.extensions.is_empty() {
            rest = repr.parse_extensions(rest)?;
        }
        let trailer = icrc::LENGTH.wrapping_add(usize::from(repr.bth.pad_count));
        let length = rest.len().checked_sub(trailer).ok_or(Malformed::Length("BTH"))?;
        // RC-8
        if length.wrapping_add(usize::from(repr.bth.pad_count)) % 4 != 0 {
            return Err(Malformed::Length("BTH"));
        }
        let start = datagram.len().wrapping_sub(rest.len());
        repr.payload = start..start.wrapping_add(length);
        Ok(repr)
    }

    /// Parses the extension headers, of which most packets of a long message have none, and gives the rest.
    fn parse_extensions<'a>(&mut self, mut rest: &'a [u8]) -> Result<&'a [u8], Malformed> {
        let extensions = self.opcode.extensions;
        if extensions.contains(Extensions::DETH) {
            let (header, tail) = deth::Repr::parse(rest)?;
            (self.deth, rest) = (Some(header), tail);
        }
        if extensions.contains(Extensions::XRCETH) {
            let (srqn, tail) = xrceth::parse(rest)?;
            (self.srqn, rest) = (Some(srqn), tail);
        }
        if extensions.contains(Extensions::RETH) {
            let (header, tail) = reth::Repr::parse(rest)?;
            (self.reth, rest) = (Some(header), tail);
        }
        if extensions.contains(Extensions::ATOMICETH) {
            let (header, tail) = atomiceth::Repr::parse(rest)?;
            (self.atomic, rest) = (Some(header), tail);
        }
        if extensions.contains(Extensions::AETH) {
            let (header, tail) = aeth::Repr::parse(rest)?;
            (self.aeth, rest) = (Some(header), tail);
        }
        if extensions.contains(Extensions::ATOMICACKETH) {
            (_, rest) = atomicacketh::parse(rest)?;
        }
        if extensions.contains(Extensions::IMMDT) {
            let (data, tail) = immdt::parse(rest)?;
            (self.immediate, rest) = (Some(data), tail);
        }
        if extensions.contains(Extensions::IETH) {
            let (key, tail) = immdt::parse(rest)?;
            (self.invalidate, rest) = (Some(key), tail);
        }
        Ok(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opcode::code;
    use crate::psn::Psn;

    #[test]
    fn a_write_with_immediate_is_taken_apart() {
        let base = bth::Repr {
            opcode: code::WRITE_ONLY_IMM,
            pad_count: 1,
            psn: Psn::new(5),
            ..bth::Repr::default()
        };
        let rdma = reth::Repr { va: 1, rkey: 2, dma_length: 3 };
        let mut bytes = base.to_bytes().to_vec();
        bytes.extend(rdma.to_bytes());
        bytes.extend(immdt::to_bytes(9));
        bytes.extend([b'a', b'b', b'c', 0, 1, 2, 3, 4]);
        let repr = Repr::parse(&bytes).unwrap();
        assert_eq!((repr.bth, repr.reth, repr.immediate), (base, Some(rdma), Some(9)));
        assert_eq!(bytes[repr.payload.clone()], *b"abc");
        assert_eq!(repr.aeth, None);
    }

    /// RC-5.
    #[test]
    fn every_truncation_of_every_opcode_is_refused_or_parsed_within_bounds() {
        for opcode in 0..=u8::MAX {
            let base = bth::Repr { opcode, pad_count: 3, ..bth::Repr::default() };
            let mut bytes = base.to_bytes().to_vec();
            bytes.resize(64, 0x5a);
            for length in 0..bytes.len() {
                if let Ok(repr) = Repr::parse(&bytes[..length]) {
                    assert!(repr.payload.start <= repr.payload.end);
                    assert!(repr.payload.end + 7 == length);
                    assert_eq!(repr.payload.start, repr.opcode.header_length());
                }
            }
        }
    }

    #[test]
    fn reserved_opcodes_are_named() {
        let base = bth::Repr { opcode: 0x15, ..bth::Repr::default() };
        assert_eq!(Repr::parse(&base.to_bytes()), Err(Malformed::Opcode(0x15)));
    }
}
