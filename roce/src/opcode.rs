//! The table of operation codes: for each its class, position, extension headers and payload.
//!
//! Codes are those of the specification, section 9.2, for Reliable Connection and Unreliable Connection, the
//! two of Unreliable Datagram, those of XRC (annex A14), and the congestion notification packet of annex A17.

use bitflags::bitflags;

use crate::wire::{aeth, bth, extension, reth};

bitflags! {
    /// The extension headers that follow the Base Transport Header, in the order of their bits.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Extensions: u8 {
        /// Datagram header.
        const DETH = 1;
        /// The peer's shared receive queue, of XRC.
        const XRCETH = 2;
        /// RDMA header.
        const RETH = 4;
        /// Atomic header.
        const ATOMICETH = 8;
        /// Acknowledgement header.
        const AETH = 16;
        /// Atomic acknowledgement header.
        const ATOMICACKETH = 32;
        /// Immediate data.
        const IMMDT = 64;
        /// The key to take back.
        const IETH = 128;
    }
}

impl Extensions {
    /// The length of the extension headers in bytes.
    #[must_use]
    pub const fn length(self) -> usize {
        let mut length = 0_usize;
        let lengths = [
            (Self::DETH, extension::deth::LENGTH),
            (Self::XRCETH, extension::xrceth::LENGTH),
            (Self::RETH, reth::LENGTH),
            (Self::ATOMICETH, extension::atomiceth::LENGTH),
            (Self::AETH, aeth::LENGTH),
            (Self::ATOMICACKETH, extension::atomicacketh::LENGTH),
            (Self::IMMDT, extension::immdt::LENGTH),
            (Self::IETH, extension::immdt::LENGTH),
        ];
        let mut rest: &[(Self, usize)] = &lengths;
        while let [(extension, size), tail @ ..] = rest {
            if self.contains(*extension) {
                length = length.saturating_add(*size);
            }
            rest = tail;
        }
        length
    }
}

/// The kind of message that a packet belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// SEND.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ request.
    ReadRequest,
    /// RDMA READ response.
    ReadResponse,
    /// Acknowledgement.
    Acknowledge,
    /// Atomic acknowledgement.
    AtomicAcknowledge,
    /// Compare and swap.
    CompareSwap,
    /// Fetch and add.
    FetchAdd,
    /// Unreliable datagram.
    Datagram,
    /// Congestion notification packet.
    CongestionNotification,
}

impl Class {
    /// Whether the packet goes from responder to requester.
    #[must_use]
    pub const fn is_response(self) -> bool {
        matches!(self, Self::ReadResponse | Self::Acknowledge | Self::AtomicAcknowledge)
    }

    /// Whether the packet is a request that is answered with bytes, rather than acknowledged.
    #[must_use]
    #[inline]
    pub const fn is_answered(self) -> bool {
        matches!(self, Self::ReadRequest | Self::CompareSwap | Self::FetchAdd)
    }
}

/// Where in its message a packet stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Position {
    /// The first of several.
    First,
    /// Neither first nor last.
    Middle,
    /// The last of several.
    Last,
    /// First and last.
    Only,
}

impl Position {
    /// Whether the packet begins a message.
    #[must_use]
    pub const fn is_start(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Whether the packet ends a message.
    #[must_use]
    pub const fn is_end(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }

    /// The position of a packet that does or does not begin and end its message.
    #[must_use]
    pub const fn new(start: bool, end: bool) -> Self {
        match (start, end) {
            (true, true) => Self::Only,
            (true, false) => Self::First,
            (false, true) => Self::Last,
            (false, false) => Self::Middle,
        }
    }
}

/// How many bytes of payload a packet may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PayloadRule {
    /// None.
    None,
    /// Exactly the path MTU.
    Mtu,
    /// From 1 to the path MTU.
    OneToMtu,
    /// From 0 to the path MTU.
    ZeroToMtu,
}

impl PayloadRule {
    /// Whether `length` bytes are allowed under a path MTU of `mtu` bytes.
    #[must_use]
    pub const fn allows(self, length: usize, mtu: usize) -> bool {
        match self {
            Self::None => length == 0,
            Self::Mtu => length == mtu,
            Self::OneToMtu => length != 0 && length <= mtu,
            Self::ZeroToMtu => length <= mtu,
        }
    }
}

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opcode {
    /// The code on the wire.
    pub code: u8,
    /// The specification's name.
    pub name: &'static str,
    /// The kind of message.
    pub class: Class,
    /// The place in the message.
    pub position: Position,
    /// The extension headers.
    pub extensions: Extensions,
    /// The payload.
    pub payload: PayloadRule,
}

impl Opcode {
    /// The row of a code, if the code is known.
    #[must_use]
    pub fn find(code: u8) -> Option<&'static Self> {
        let index = INDEX.get(usize::from(code))?;
        TABLE.get(usize::from(*index))
    }

    /// The bits of the code that name the transport service: one of [`code`]'s.
    #[must_use]
    #[inline]
    pub const fn service(&self) -> u8 {
        self.code & code::SERVICE
    }

    /// The length of the transport headers, Base Transport Header included.
    #[must_use]
    pub const fn header_length(&self) -> usize {
        bth::LENGTH.saturating_add(self.extensions.length())
    }
}

/// Codes by name.
pub mod code {
    #![expect(missing_docs, reason = "the names are the specification's")]
    pub const SEND_FIRST: u8 = 0x00;
    pub const SEND_MIDDLE: u8 = 0x01;
    pub const SEND_LAST: u8 = 0x02;
    pub const SEND_LAST_IMM: u8 = 0x03;
    pub const SEND_ONLY: u8 = 0x04;
    pub const SEND_ONLY_IMM: u8 = 0x05;
    pub const WRITE_FIRST: u8 = 0x06;
    pub const WRITE_MIDDLE: u8 = 0x07;
    pub const WRITE_LAST: u8 = 0x08;
    pub const WRITE_LAST_IMM: u8 = 0x09;
    pub const WRITE_ONLY: u8 = 0x0a;
    pub const WRITE_ONLY_IMM: u8 = 0x0b;
    pub const READ_REQUEST: u8 = 0x0c;
    pub const READ_RESPONSE_FIRST: u8 = 0x0d;
    pub const READ_RESPONSE_MIDDLE: u8 = 0x0e;
    pub const READ_RESPONSE_LAST: u8 = 0x0f;
    pub const READ_RESPONSE_ONLY: u8 = 0x10;
    pub const ACKNOWLEDGE: u8 = 0x11;
    pub const ATOMIC_ACKNOWLEDGE: u8 = 0x12;
    pub const COMPARE_SWAP: u8 = 0x13;
    pub const FETCH_ADD: u8 = 0x14;
    pub const SEND_LAST_INVALIDATE: u8 = 0x16;
    pub const SEND_ONLY_INVALIDATE: u8 = 0x17;
    pub const UD_SEND_ONLY: u8 = 0x64;
    pub const UD_SEND_ONLY_IMM: u8 = 0x65;
    pub const CNP: u8 = 0x81;
    /// The bits of a code that name the transport service.
    pub const SERVICE: u8 = 0xe0;
    /// Their value for Reliable Connection.
    pub const RELIABLE_CONNECTION: u8 = 0;
    /// Their value for Unreliable Connection, whose SENDs and WRITEs are otherwise those of Reliable Connection.
    pub const UNRELIABLE_CONNECTION: u8 = 0x20;
    /// Their value for Unreliable Datagram.
    pub const UNRELIABLE_DATAGRAM: u8 = 0x60;
    /// Their value for XRC, whose codes are otherwise those of Reliable Connection.
    pub const EXTENDED_RELIABLE_CONNECTION: u8 = 0xa0;
}

const fn row(
    code: u8,
    name: &'static str,
    class: Class,
    position: Position,
    extensions: Extensions,
    payload: PayloadRule,
) -> Opcode {
    Opcode { code, name, class, position, extensions, payload }
}

const UC: u8 = code::UNRELIABLE_CONNECTION;
const XRC: u8 = code::EXTENDED_RELIABLE_CONNECTION;
const NONE: Extensions = Extensions::empty();
const IMMDT: Extensions = Extensions::IMMDT;
const IETH: Extensions = Extensions::IETH;
const RETH: Extensions = Extensions::RETH;
const RETH_IMMDT: Extensions = RETH.union(IMMDT);
const AETH: Extensions = Extensions::AETH;
const AETH_ATOMIC: Extensions = AETH.union(Extensions::ATOMICACKETH);
const ATOMIC: Extensions = Extensions::ATOMICETH;
const DETH: Extensions = Extensions::DETH;
const DETH_IMMDT: Extensions = DETH.union(IMMDT);
const XRCETH: Extensions = Extensions::XRCETH;
const XRCETH_IMMDT: Extensions = XRCETH.union(IMMDT);
const XRCETH_IETH: Extensions = XRCETH.union(IETH);
const XRCETH_RETH: Extensions = XRCETH.union(RETH);
const XRCETH_RETH_IMMDT: Extensions = XRCETH_RETH.union(IMMDT);
const XRCETH_ATOMIC: Extensions = XRCETH.union(ATOMIC);

use Class::{
    Acknowledge, AtomicAcknowledge, CompareSwap, CongestionNotification, Datagram, FetchAdd,
    ReadRequest, ReadResponse, Send, Write,
};
use PayloadRule::{Mtu, OneToMtu, ZeroToMtu};
use Position::{First, Last, Middle, Only};

/// Every known code.
#[rustfmt::skip]
// RC-5
static TABLE: [Opcode; 61] = [
    row(code::SEND_FIRST, "SEND_FIRST", Send, First, NONE, Mtu),
    row(code::SEND_MIDDLE, "SEND_MIDDLE", Send, Middle, NONE, Mtu),
    row(code::SEND_LAST, "SEND_LAST", Send, Last, NONE, OneToMtu),
    row(code::SEND_LAST_IMM, "SEND_LAST_WITH_IMMEDIATE", Send, Last, IMMDT, OneToMtu),
    row(code::SEND_ONLY, "SEND_ONLY", Send, Only, NONE, ZeroToMtu),
    row(code::SEND_ONLY_IMM, "SEND_ONLY_WITH_IMMEDIATE", Send, Only, IMMDT, ZeroToMtu),
    row(code::WRITE_FIRST, "RDMA_WRITE_FIRST", Write, First, RETH, Mtu),
    row(code::WRITE_MIDDLE, "RDMA_WRITE_MIDDLE", Write, Middle, NONE, Mtu),
    row(code::WRITE_LAST, "RDMA_WRITE_LAST", Write, Last, NONE, OneToMtu),
    row(code::WRITE_LAST_IMM, "RDMA_WRITE_LAST_WITH_IMMEDIATE", Write, Last, IMMDT, OneToMtu),
    row(code::WRITE_ONLY, "RDMA_WRITE_ONLY", Write, Only, RETH, ZeroToMtu),
    row(code::WRITE_ONLY_IMM, "RDMA_WRITE_ONLY_WITH_IMMEDIATE", Write, Only, RETH_IMMDT, ZeroToMtu),
    row(code::READ_REQUEST, "RDMA_READ_REQUEST", ReadRequest, Only, RETH, PayloadRule::None),
    row(code::READ_RESPONSE_FIRST, "RDMA_READ_RESPONSE_FIRST", ReadResponse, First, AETH, Mtu),
    row(code::READ_RESPONSE_MIDDLE, "RDMA_READ_RESPONSE_MIDDLE", ReadResponse, Middle, NONE, Mtu),
    row(code::READ_RESPONSE_LAST, "RDMA_READ_RESPONSE_LAST", ReadResponse, Last, AETH, OneToMtu),
    row(code::READ_RESPONSE_ONLY, "RDMA_READ_RESPONSE_ONLY", ReadResponse, Only, AETH, ZeroToMtu),
    row(code::ACKNOWLEDGE, "ACKNOWLEDGE", Acknowledge, Only, AETH, PayloadRule::None),
    row(code::ATOMIC_ACKNOWLEDGE, "ATOMIC_ACKNOWLEDGE", AtomicAcknowledge, Only, AETH_ATOMIC, PayloadRule::None),
    row(code::COMPARE_SWAP, "COMPARE_SWAP", CompareSwap, Only, ATOMIC, PayloadRule::None),
    row(code::FETCH_ADD, "FETCH_ADD", FetchAdd, Only, ATOMIC, PayloadRule::None),
    // RC-102
    row(code::SEND_LAST_INVALIDATE, "SEND_LAST_WITH_INVALIDATE", Send, Last, IETH, OneToMtu),
    row(code::SEND_ONLY_INVALIDATE, "SEND_ONLY_WITH_INVALIDATE", Send, Only, IETH, ZeroToMtu),
    // UC-1
    row(UC | code::SEND_FIRST, "UC_SEND_FIRST", Send, First, NONE, Mtu),
    row(UC | code::SEND_MIDDLE, "UC_SEND_MIDDLE", Send, Middle, NONE, Mtu),
    row(UC | code::SEND_LAST, "UC_SEND_LAST", Send, Last, NONE, OneToMtu),
    row(UC | code::SEND_LAST_IMM, "UC_SEND_LAST_WITH_IMMEDIATE", Send, Last, IMMDT, OneToMtu),
    row(UC | code::SEND_ONLY, "UC_SEND_ONLY", Send, Only, NONE, ZeroToMtu),
    row(UC | code::SEND_ONLY_IMM, "UC_SEND_ONLY_WITH_IMMEDIATE", Send, Only, IMMDT, ZeroToMtu),
    row(UC | code::WRITE_FIRST, "UC_RDMA_WRITE_FIRST", Write, First, RETH, Mtu),
    row(UC | code::WRITE_MIDDLE, "UC_RDMA_WRITE_MIDDLE", Write, Middle, NONE, Mtu),
    row(UC | code::WRITE_LAST, "UC_RDMA_WRITE_LAST", Write, Last, NONE, OneToMtu),
    row(UC | code::WRITE_LAST_IMM, "UC_RDMA_WRITE_LAST_WITH_IMMEDIATE", Write, Last, IMMDT, OneToMtu),
    row(UC | code::WRITE_ONLY, "UC_RDMA_WRITE_ONLY", Write, Only, RETH, ZeroToMtu),
    row(UC | code::WRITE_ONLY_IMM, "UC_RDMA_WRITE_ONLY_WITH_IMMEDIATE", Write, Only, RETH_IMMDT, ZeroToMtu),
    row(code::UD_SEND_ONLY, "UD_SEND_ONLY", Datagram, Only, DETH, ZeroToMtu),
    row(code::UD_SEND_ONLY_IMM, "UD_SEND_ONLY_WITH_IMMEDIATE", Datagram, Only, DETH_IMMDT, ZeroToMtu),
    // XRC-1
    row(XRC | code::SEND_FIRST, "XRC_SEND_FIRST", Send, First, XRCETH, Mtu),
    row(XRC | code::SEND_MIDDLE, "XRC_SEND_MIDDLE", Send, Middle, XRCETH, Mtu),
    row(XRC | code::SEND_LAST, "XRC_SEND_LAST", Send, Last, XRCETH, OneToMtu),
    row(XRC | code::SEND_LAST_IMM, "XRC_SEND_LAST_WITH_IMMEDIATE", Send, Last, XRCETH_IMMDT, OneToMtu),
    row(XRC | code::SEND_ONLY, "XRC_SEND_ONLY", Send, Only, XRCETH, ZeroToMtu),
    row(XRC | code::SEND_ONLY_IMM, "XRC_SEND_ONLY_WITH_IMMEDIATE", Send, Only, XRCETH_IMMDT, ZeroToMtu),
    row(XRC | code::WRITE_FIRST, "XRC_RDMA_WRITE_FIRST", Write, First, XRCETH_RETH, Mtu),
    row(XRC | code::WRITE_MIDDLE, "XRC_RDMA_WRITE_MIDDLE", Write, Middle, XRCETH, Mtu),
    row(XRC | code::WRITE_LAST, "XRC_RDMA_WRITE_LAST", Write, Last, XRCETH, OneToMtu),
    row(XRC | code::WRITE_LAST_IMM, "XRC_RDMA_WRITE_LAST_WITH_IMMEDIATE", Write, Last, XRCETH_IMMDT, OneToMtu),
    row(XRC | code::WRITE_ONLY, "XRC_RDMA_WRITE_ONLY", Write, Only, XRCETH_RETH, ZeroToMtu),
    row(XRC | code::WRITE_ONLY_IMM, "XRC_RDMA_WRITE_ONLY_WITH_IMMEDIATE", Write, Only, XRCETH_RETH_IMMDT, ZeroToMtu),
    row(XRC | code::READ_REQUEST, "XRC_RDMA_READ_REQUEST", ReadRequest, Only, XRCETH_RETH, PayloadRule::None),
    row(XRC | code::READ_RESPONSE_FIRST, "XRC_RDMA_READ_RESPONSE_FIRST", ReadResponse, First, AETH, Mtu),
    row(XRC | code::READ_RESPONSE_MIDDLE, "XRC_RDMA_READ_RESPONSE_MIDDLE", ReadResponse, Middle, NONE, Mtu),
    row(XRC | code::READ_RESPONSE_LAST, "XRC_RDMA_READ_RESPONSE_LAST", ReadResponse, Last, AETH, OneToMtu),
    row(XRC | code::READ_RESPONSE_ONLY, "XRC_RDMA_READ_RESPONSE_ONLY", ReadResponse, Only, AETH, ZeroToMtu),
    row(XRC | code::ACKNOWLEDGE, "XRC_ACKNOWLEDGE", Acknowledge, Only, AETH, PayloadRule::None),
    row(XRC | code::ATOMIC_ACKNOWLEDGE, "XRC_ATOMIC_ACKNOWLEDGE", AtomicAcknowledge, Only, AETH_ATOMIC, PayloadRule::None),
    row(XRC | code::COMPARE_SWAP, "XRC_COMPARE_SWAP", CompareSwap, Only, XRCETH_ATOMIC, PayloadRule::None),
    row(XRC | code::FETCH_ADD, "XRC_FETCH_ADD", FetchAdd, Only, XRCETH_ATOMIC, PayloadRule::None),
    row(XRC | code::SEND_LAST_INVALIDATE, "XRC_SEND_LAST_WITH_INVALIDATE", Send, Last, XRCETH_IETH, OneToMtu),
    row(XRC | code::SEND_ONLY_INVALIDATE, "XRC_SEND_ONLY_WITH_INVALIDATE", Send, Only, XRCETH_IETH, ZeroToMtu),
    // Sixteen reserved bytes follow the header; no rule of a path MTU applies.
    row(code::CNP, "CNP", CongestionNotification, Only, NONE, ZeroToMtu),
];

/// The row in the table of each code, or a number beyond the table.
static INDEX: [u8; 256] = index();

#[expect(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "evaluated at compile time, where both are errors"
)]
const fn index() -> [u8; 256] {
    let mut index = [u8::MAX; 256];
    let mut at = 0;
    while at < TABLE.len() {
        index[TABLE[at].code as usize] = at as u8;
        at += 1;
    }
    index
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_found_by_its_code_and_no_other() {
        let mut found = 0;
        for code in 0..=u8::MAX {
            if let Some(row) = Opcode::find(code) {
                assert_eq!(row.code, code);
                found += 1;
            }
        }
        assert_eq!(found, TABLE.len());
        assert_eq!(Opcode::find(0x15), None);
    }

    /// RC-5.
    #[test]
    fn header_lengths_are_the_sum_of_their_parts() {
        let length = |code| Opcode::find(code).unwrap().header_length();
        assert_eq!(length(code::SEND_FIRST), 12);
        assert_eq!(length(code::WRITE_ONLY_IMM), 32);
        assert_eq!(length(code::READ_REQUEST), 28);
        assert_eq!(length(code::ACKNOWLEDGE), 16);
        assert_eq!(length(code::ATOMIC_ACKNOWLEDGE), 24);
        assert_eq!(length(code::COMPARE_SWAP), 40);
        assert_eq!(length(code::UD_SEND_ONLY_IMM), 24);
    }

    /// UC-1.
    #[test]
    fn an_unreliable_connection_has_the_sends_and_writes_of_a_reliable_one() {
        for code in 0..code::SERVICE {
            let (reliable, unreliable) = (Opcode::find(code & !UC), Opcode::find(code | UC));
            let Some(row) = unreliable.filter(|row| row.service() == UC) else {
                let kept = |row: &Opcode| matches!(row.class, Send | Write);
                assert!(reliable.is_none_or(|row| !kept(row) || row.extensions == IETH));
                continue;
            };
            let expected = Opcode { code: row.code, name: row.name, ..*reliable.unwrap() };
            assert_eq!(*row, expected);
            assert_eq!(row.name, format!("UC_{}", reliable.unwrap().name));
        }
    }

    /// XRC-1, XRC-2.
    #[test]
    fn xrc_has_all_of_a_reliable_connection_and_requests_name_a_queue() {
        for code in 0..code::SERVICE {
            let (reliable, extended) = (Opcode::find(code & !XRC), Opcode::find(code | XRC));
            let Some(row) = reliable.filter(|row| row.code & !XRC == row.code) else {
                assert_eq!(extended, None);
                continue;
            };
            let more = if row.class.is_response() { NONE } else { XRCETH };
            let extended = extended.unwrap();
            let (code, extensions) = (row.code | XRC, row.extensions | more);
            assert_eq!(*extended, Opcode { code, name: extended.name, extensions, ..*row });
            assert_eq!(extended.name, format!("XRC_{}", row.name));
            assert_eq!(extended.service(), XRC);
        }
    }

    #[test]
    fn only_starts_and_ends_carry_their_headers() {
        for row in &TABLE {
            let ends = row.position.is_end();
            assert!(ends || !row.extensions.intersects(IMMDT | IETH), "{}", row.name);
            if row.class == Write {
                assert_eq!(row.extensions.contains(RETH), row.position.is_start(), "{}", row.name);
            }
            assert_eq!(row.payload == Mtu, matches!(row.position, First | Middle), "{}", row.name);
        }
    }
}
