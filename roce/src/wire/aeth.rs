//! The ACK Extended Transport Header (specification, sections 9.3.5 and 9.7.5.1).

use super::{Field, Malformed, split};

/// The length of a header.
pub const LENGTH: usize = 4;

/// The credit code that says nothing: no end-to-end flow control.
// RC-92
pub const CREDITS_INVALID: u8 = 0x1f;

/// The receive requests that the other credit codes stand for (specification, section 9.7.7.2).
// RC-89
const CREDITS: [u32; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12_288, 16_384, 24_576, 32_768,
];

/// The number of receive requests that a credit code stands for; `None` for
/// [`CREDITS_INVALID`] (of more than 5 bits, the low ones count).
#[must_use]
pub fn credits_of(code: u8) -> Option<u32> {
    CREDITS.get(usize::from(code & 0x1f)).copied()
}

/// The code of the largest number of receive requests that is not above `count`.
#[must_use]
pub fn credit_code(count: u32) -> u8 {
    // The first is 0, so at least one is not above; there are 31.
    CREDITS.partition_point(|&credits| credits <= count).saturating_sub(1) as u8
}

/// The code of a NAK.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NakCode {
    /// A packet is missing.
    PsnSequenceError,
    /// The request is invalid, unsupported, or too long for the receive buffer.
    InvalidRequest,
    /// The key, range or access was refused.
    RemoteAccessError,
    /// The responder failed.
    RemoteOperationalError,
    /// The request's datagram domain is invalid.
    InvalidRdRequest,
    /// A code that the specification reserves.
    Reserved(u8),
}

impl NakCode {
    const fn from_bits(bits: u8) -> Self {
        match bits {
            0 => Self::PsnSequenceError,
            1 => Self::InvalidRequest,
            2 => Self::RemoteAccessError,
            3 => Self::RemoteOperationalError,
            4 => Self::InvalidRdRequest,
            other => Self::Reserved(other),
        }
    }

    const fn bits(self) -> u8 {
        match self {
            Self::PsnSequenceError => 0,
            Self::InvalidRequest => 1,
            Self::RemoteAccessError => 2,
            Self::RemoteOperationalError => 3,
            Self::InvalidRdRequest => 4,
            Self::Reserved(bits) => bits & 0x1f,
        }
    }
}

/// The syndrome: the kind of an acknowledgement, and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Syndrome {
    /// Everything up to the PSN was executed; the credit code limits further SENDs.
    Ack {
        /// 5 bits; see [`credits_of`].
        credits: u8,
    },
    /// No receive request: try again after the timer.
    RnrNak {
        /// 5 bits; see [`crate::param::rnr_timeout`].
        timer: u8,
    },
    /// The request was not executed.
    Nak(NakCode),
    /// Bits that the specification reserves.
    Reserved(u8),
}

impl Syndrome {
    /// The syndrome in the byte on the wire.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Self {
        let value = byte & 0x1f;
        match byte >> 5 {
            0 => Self::Ack { credits: value },
            1 => Self::RnrNak { timer: value },
            3 => Self::Nak(NakCode::from_bits(value)),
            _ => Self::Reserved(byte),
        }
    }

    /// The byte on the wire.
    #[must_use]
    pub const fn to_byte(self) -> u8 {
        match self {
            Self::Ack { credits } => credits & 0x1f,
            Self::RnrNak { timer } => 0x20 | timer & 0x1f,
            Self::Nak(code) => 0x60 | code.bits(),
            Self::Reserved(byte) => byte,
        }
    }
}

/// Where the fields lie.
mod field {
    use super::Field;

    pub const SYNDROME: usize = 0;
    pub const MSN: Field<1, 3> = Field;
}

/// A view of a header.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a>(&'a [u8; LENGTH]);

impl<'a> Header<'a> {
    /// Splits the header off the start of `bytes`.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), Malformed> {
        let (header, rest) = split(bytes, "AETH")?;
        Ok((Self(header), rest))
    }

    /// The syndrome of the acknowledgement.
    #[must_use]
    pub fn syndrome(&self) -> Syndrome {
        Syndrome::from_byte(self.0[field::SYNDROME])
    }

    /// The message sequence number: 24 bits.
    #[must_use]
    pub fn msn(&self) -> u32 {
        let [a, b, c] = *field::MSN.of(self.0);
        u32::from_be_bytes([0, a, b, c])
    }
}

/// A header taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The syndrome of the acknowledgement.
    pub syndrome: Syndrome,
    /// The message sequence number: 24 bits.
    pub msn: u32,
}

impl Repr {
    /// Parses the header at the start of `bytes`, and splits it off.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let (header, rest) = Header::new(bytes)?;
        Ok((Self { syndrome: header.syndrome(), msn: header.msn() }, rest))
    }

    /// The bytes of the header.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; LENGTH] {
        let [_, msn @ ..] = self.msn.to_be_bytes();
        let mut bytes = [0; LENGTH];
        bytes[field::SYNDROME] = self.syndrome.to_byte();
        field::MSN.put(&mut bytes, msn);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_syndrome_byte_round_trips() {
        for byte in 0..=u8::MAX {
            assert_eq!(Syndrome::from_byte(byte).to_byte(), byte);
        }
    }

    #[test]
    fn syndromes_are_the_specifications() {
        assert_eq!(Syndrome::from_byte(0x1f), Syndrome::Ack { credits: CREDITS_INVALID });
        assert_eq!(Syndrome::from_byte(0x2c), Syndrome::RnrNak { timer: 12 });
        assert_eq!(Syndrome::from_byte(0x60), Syndrome::Nak(NakCode::PsnSequenceError));
        assert_eq!(Syndrome::from_byte(0x61), Syndrome::Nak(NakCode::InvalidRequest));
        assert_eq!(Syndrome::from_byte(0x62), Syndrome::Nak(NakCode::RemoteAccessError));
        assert_eq!(Syndrome::from_byte(0x63), Syndrome::Nak(NakCode::RemoteOperationalError));
        assert_eq!(Syndrome::from_byte(0x40), Syndrome::Reserved(0x40));
        assert_eq!(Syndrome::from_byte(0x80), Syndrome::Reserved(0x80));
    }

    #[test]
    fn a_header_round_trips() {
        let repr = Repr { syndrome: Syndrome::RnrNak { timer: 3 }, msn: 0xab_cdef };
        assert_eq!(repr.to_bytes(), [0x23, 0xab, 0xcd, 0xef]);
        assert_eq!(Repr::parse(&repr.to_bytes()), Ok((repr, &[][..])));
    }
}
