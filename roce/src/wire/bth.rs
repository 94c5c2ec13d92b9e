//! The Base Transport Header (specification, section 9.2).

use super::{Field, Malformed, split};
use crate::psn::Psn;

/// The length of a header.
pub const LENGTH: usize = 12;

/// Where the fields lie.
pub(crate) mod field {
    use super::Field;

    pub const OPCODE: usize = 0;
    pub const SE_M_PADCNT_TVER: usize = 1;
    pub const P_KEY: Field<2, 2> = Field;
    pub const FECN_BECN: usize = 4;
    pub const DEST_QP: Field<5, 3> = Field;
    pub const ACK_REQ: usize = 8;
    pub const PSN: Field<9, 3> = Field;
}

/// A view of a header.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a>(&'a [u8; LENGTH]);

impl<'a> Header<'a> {
    /// Splits the header off the start of `bytes`.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), Malformed> {
        let (header, rest) = split(bytes, "BTH")?;
        Ok((Self(header), rest))
    }

    /// The operation code: transport service in the upper three bits.
    #[must_use]
    pub fn opcode(&self) -> u8 {
        self.0[field::OPCODE]
    }

    /// SE: the receiver shall raise a solicited event.
    #[must_use]
    pub fn solicited(&self) -> bool {
        self.0[field::SE_M_PADCNT_TVER] & 0x80 != 0
    }

    /// M: the sender's path is in the state "migrated".
    #[must_use]
    pub fn migrated(&self) -> bool {
        self.0[field::SE_M_PADCNT_TVER] & 0x40 != 0
    }

    /// Bytes of padding after the payload: 0 to 3.
    #[must_use]
    pub fn pad_count(&self) -> u8 {
        self.0[field::SE_M_PADCNT_TVER] >> 4 & 3
    }

    /// The transport header version; 0.
    #[must_use]
    pub fn version(&self) -> u8 {
        self.0[field::SE_M_PADCNT_TVER] & 0x0f
    }

    /// The partition key.
    #[must_use]
    pub fn pkey(&self) -> u16 {
        u16::from_be_bytes(*field::P_KEY.of(self.0))
    }

    /// Forward explicit congestion notification.
    #[must_use]
    pub fn fecn(&self) -> bool {
        self.0[field::FECN_BECN] & 0x80 != 0
    }

    /// Backward explicit congestion notification.
    #[must_use]
    pub fn becn(&self) -> bool {
        self.0[field::FECN_BECN] & 0x40 != 0
    }

    /// The destination queue pair number: 24 bits.
    #[must_use]
    pub fn dest_qpn(&self) -> u32 {
        let [a, b, c] = *field::DEST_QP.of(self.0);
        u32::from_be_bytes([0, a, b, c])
    }

    /// AckReq: the responder shall acknowledge.
    #[must_use]
    pub fn ack_request(&self) -> bool {
        self.0[field::ACK_REQ] & 0x80 != 0
    }

    /// The packet sequence number.
    #[must_use]
    pub fn psn(&self) -> Psn {
        let [a, b, c] = *field::PSN.of(self.0);
        Psn::new(u32::from_be_bytes([0, a, b, c]))
    }
}

/// A header taken apart; the transport header version is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repr {
    /// The operation code.
    pub opcode: u8,
    /// SE: the receiver shall raise a solicited event.
    pub solicited: bool,
    /// M: the sender's path is in the state "migrated". Senders without path migration set it.
    pub migrated: bool,
    /// Bytes of padding after the payload: 0 to 3.
    pub pad_count: u8,
    /// The partition key.
    pub pkey: u16,
    /// Forward explicit congestion notification.
    pub fecn: bool,
    /// Backward explicit congestion notification.
    pub becn: bool,
    /// The destination queue pair number: 24 bits.
    pub dest_qpn: u32,
    /// AckReq: the responder shall acknowledge.
    pub ack_request: bool,
    /// The packet sequence number.
    pub psn: Psn,
}

impl Repr {
    /// Parses the header at the start of `bytes`, and splits it off.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let (header, rest) = Header::new(bytes)?;
        // RC-4
        if header.version() != 0 {
            return Err(Malformed::Version("BTH"));
        }
        let repr = Self {
            opcode: header.opcode(),
            solicited: header.solicited(),
            migrated: header.migrated(),
            pad_count: header.pad_count(),
            pkey: header.pkey(),
            fecn: header.fecn(),
            becn: header.becn(),
            dest_qpn: header.dest_qpn(),
            ack_request: header.ack_request(),
            psn: header.psn(),
        };
        Ok((repr, rest))
    }

    /// The bytes of the header.
    #[inline]
    #[must_use]
    pub fn to_bytes(&self) -> [u8; LENGTH] {
        let flags = u8::from(self.solicited) << 7
            | u8::from(self.migrated) << 6
            | (self.pad_count & 3) << 4;
        let congestion = u8::from(self.fecn) << 7 | u8::from(self.becn) << 6;
        let [_, dest_qp @ ..] = self.dest_qpn.to_be_bytes();
        let [_, psn @ ..] = self.psn.value().to_be_bytes();
        let mut bytes = [0; LENGTH];
        bytes[field::OPCODE] = self.opcode;
        bytes[field::SE_M_PADCNT_TVER] = flags;
        field::P_KEY.put(&mut bytes, self.pkey.to_be_bytes());
        bytes[field::FECN_BECN] = congestion;
        field::DEST_QP.put(&mut bytes, dest_qp);
        bytes[field::ACK_REQ] = u8::from(self.ack_request) << 7;
        field::PSN.put(&mut bytes, psn);
        bytes
    }
}

/// Whether the partition keys of sender and receiver match: equal in the low 15 bits, at least one
/// of them a full member (specification, section 10.9.3).
#[must_use]
pub fn pkeys_match(a: u16, b: u16) -> bool {
    a & 0x7fff == b & 0x7fff && (a | b) & 0x8000 != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_round_trips() {
        let repr = Repr {
            opcode: 0x0a,
            solicited: true,
            migrated: false,
            pad_count: 3,
            pkey: 0x7fff,
            fecn: true,
            becn: false,
            dest_qpn: 0xab_cdef,
            ack_request: true,
            psn: Psn::new(0x12_3456),
        };
        let bytes = repr.to_bytes();
        assert_eq!(bytes, [0x0a, 0xb0, 0x7f, 0xff, 0x80, 0xab, 0xcd, 0xef, 0x80, 0x12, 0x34, 0x56]);
        assert_eq!(Repr::parse(&bytes), Ok((repr, &[][..])));
        let other = Repr { migrated: true, becn: true, fecn: false, solicited: false, ..repr };
        assert_eq!(Repr::parse(&other.to_bytes()), Ok((other, &[][..])));
    }

    /// RC-4.
    #[test]
    fn another_version_is_refused() {
        let mut bytes = Repr::default().to_bytes();
        bytes[1] = 1;
        assert_eq!(Repr::parse(&bytes), Err(Malformed::Version("BTH")));
        assert_eq!(Repr::parse(&bytes[..11]), Err(Malformed::Truncated("BTH")));
    }

    /// RC-12.
    #[test]
    fn two_limited_members_do_not_match() {
        assert!(pkeys_match(0xffff, 0xffff));
        assert!(pkeys_match(0xffff, 0x7fff));
        assert!(!pkeys_match(0x7fff, 0x7fff));
        assert!(!pkeys_match(0xffff, 0x8001));
    }
}
