//! The header of a management datagram (specification, section 13.4.2).

use super::{Malformed, layout, open};

/// The length of a management datagram.
pub const LENGTH: usize = 256;

/// The length of its header.
pub const HEADER_LENGTH: usize = 24;

/// A management datagram.
pub type Mad = [u8; LENGTH];

/// The base version of management datagrams.
const BASE_VERSION: u8 = 1;
/// The class of the connection manager.
const CLASS: u8 = 0x07;
/// The version of that class.
const CLASS_VERSION: u8 = 2;
/// The only method of it.
const SEND: u8 = 0x03;

open! {
    /// The attribute of a management datagram of this class: which message it is.
    Attribute(u16) {
        REQ = 0x10, "REQ";
        MRA = 0x11, "MRA";
        REJ = 0x12, "REJ";
        REP = 0x13, "REP";
        RTU = 0x14, "RTU";
        DREQ = 0x15, "DREQ";
        DREP = 0x16, "DREP";
        SIDR_REQ = 0x17, "SIDR_REQ";
        SIDR_REP = 0x18, "SIDR_REP";
        LAP = 0x19, "LAP";
        APR = 0x1a, "APR";
    }
}

layout! {
    /// The header.
    Header of 24 {
        /// The version of the datagram's format.
        base_version: u8 = 0:0 + 8;
        /// The management class.
        class: u8 = 1:0 + 8;
        /// The version of the class.
        class_version: u8 = 2:0 + 8;
        /// The request; the first bit marks a response.
        method: u8 = 3:0 + 8;
        /// The status of a response.
        status: u16 = 4:0 + 16;
        /// Belongs to the class.
        class_specific: u16 = 6:0 + 16;
        /// The transaction ID.
        transaction_id: u64 = 8:0 + 64;
        /// The attribute.
        attribute: Attribute = 16:0 + 16;
        /// Narrows the attribute.
        modifier: u32 = 20:0 + 32;
    }
}

/// The transaction, message and data of a datagram of the connection manager's.
pub(super) fn parse(
    datagram: &[u8],
) -> Result<(u64, Attribute, &[u8; LENGTH - HEADER_LENGTH]), Malformed> {
    // CM-1
    let whole: &Mad = datagram.try_into().map_err(|_| Malformed::Length(datagram.len()))?;
    let split = whole.split_first_chunk::<HEADER_LENGTH>();
    let (header, data) = split.ok_or(Malformed::Length(datagram.len()))?;
    let data = data.try_into().map_err(|_| Malformed::Length(datagram.len()))?;
    let header = Header::load(header);
    let Header { base_version: base, class, class_version: version, method, .. } = header;
    if (base, class, version, method) != (BASE_VERSION, CLASS, CLASS_VERSION, SEND) {
        return Err(Malformed::Class { base, class, version, method });
    }
    Ok((header.transaction_id, header.attribute, data))
}

/// The datagram of a transaction's message.
pub(super) fn emit(
    transaction_id: u64,
    attribute: Attribute,
    data: &[u8; LENGTH - HEADER_LENGTH],
) -> Mad {
    let header = Header {
        base_version: BASE_VERSION,
        class: CLASS,
        class_version: CLASS_VERSION,
        method: SEND,
        transaction_id,
        attribute,
        ..Header::ZERO
    };
    let mut mad = [0; LENGTH];
    let (head, tail) = mad.split_at_mut(HEADER_LENGTH);
    head.copy_from_slice(&header.to_bytes());
    tail.copy_from_slice(data);
    mad
}
