//! Opcodes of Reliable Connection, by the numbers of the Base Transport Header, as far as the stack has them.

pub(crate) const SEND_FIRST: u8 = 0x00;
pub(crate) const SEND_MIDDLE: u8 = 0x01;
pub(crate) const SEND_LAST: u8 = 0x02;
pub(crate) const SEND_ONLY: u8 = 0x04;
pub(crate) const WRITE_FIRST: u8 = 0x06;
pub(crate) const WRITE_MIDDLE: u8 = 0x07;
pub(crate) const WRITE_LAST: u8 = 0x08;
pub(crate) const WRITE_ONLY: u8 = 0x0a;
pub(crate) const READ_REQUEST: u8 = 0x0c;
pub(crate) const RESPONSE_FIRST: u8 = 0x0d;
pub(crate) const RESPONSE_MIDDLE: u8 = 0x0e;
pub(crate) const RESPONSE_LAST: u8 = 0x0f;
pub(crate) const RESPONSE_ONLY: u8 = 0x10;
pub(crate) const ACK: u8 = 0x11;

/// A WRITE of any kind without immediate data.
pub(crate) const fn is_write(opcode: u8) -> bool {
    matches!(opcode, WRITE_FIRST | WRITE_MIDDLE | WRITE_LAST | WRITE_ONLY)
}

/// A READ response.
pub(crate) const fn is_read_response(opcode: u8) -> bool {
    matches!(opcode, RESPONSE_FIRST | RESPONSE_MIDDLE | RESPONSE_LAST | RESPONSE_ONLY)
}

/// Whether a responder sends it.
pub(crate) const fn is_response(opcode: u8) -> bool {
    is_read_response(opcode) || opcode == ACK
}

/// Whether it carries an AETH.
pub(crate) const fn has_aeth(opcode: u8) -> bool {
    matches!(opcode, RESPONSE_FIRST | RESPONSE_LAST | RESPONSE_ONLY | ACK)
}

/// Whether it carries a RETH that the stack reads.
pub(crate) const fn has_reth(opcode: u8) -> bool {
    matches!(opcode, WRITE_FIRST | WRITE_ONLY | READ_REQUEST)
}

/// Bytes of the headers that may follow the Base Transport Header.
pub(crate) const RETH: usize = 16;
pub(crate) const AETH: usize = 4;

/// Bytes of the header that the stack looks for.
pub(crate) const fn extension(opcode: u8) -> usize {
    match opcode {
        _ if has_reth(opcode) => RETH,
        _ if has_aeth(opcode) => AETH,
        _ => 0,
    }
}

/// Whether it has no payload, even if bytes follow its headers.
pub(crate) const fn is_bare(opcode: u8) -> bool {
    matches!(opcode, READ_REQUEST | ACK)
}

/// Whether it is a request with payload that the stack can send.
pub(crate) const fn is_sent_with_payload(opcode: u8) -> bool {
    is_write(opcode) || matches!(opcode, SEND_FIRST | SEND_MIDDLE | SEND_LAST | SEND_ONLY)
}
