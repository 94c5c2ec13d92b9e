//! Completion entries, which the engine writes into a completion ring.
//!
//! An entry is 64 bytes and counts when its phase, bit 0 of the last byte, is that of the current
//! lap: 1 on the first lap over the zeroed ring, then alternating. The engine writes words 0 to 6,
//! then word 7 by one release store; all payload the entry speaks of is visible before.

open_enum! {
    /// The status of a work request; the numbers are those of `ibv_wc_status`.
    pub struct Status(u8) {
        /// As asked.
        Success = 0,
        /// Message longer than the receive or the limit.
        LocalLength = 1,
        /// The QP cannot do this operation.
        LocalQpOperation = 2,
        /// A local key, its bounds, rights or domain; or memory that went away.
        LocalProtection = 4,
        /// The queue was in error when the request's turn came.
        Flushed = 5,
        /// The window could not be bound.
        WindowBind = 6,
        /// The responder's answer is impossible.
        BadResponse = 7,
        /// A local access right was missing.
        LocalAccess = 8,
        /// The responder found the request invalid, or its QP does not grant it.
        RemoteInvalidRequest = 9,
        /// The responder's key, its bounds, rights or domain denied the access.
        RemoteAccess = 10,
        /// The responder failed.
        RemoteOperation = 11,
        /// No answer after all retries.
        RetryExceeded = 12,
        /// The responder was not ready after all retries.
        RnrRetryExceeded = 13,
        /// XRC: the responder has no such shared receive queue in its domain.
        RemoteInvalidRdRequest = 15,
        /// An error without a name of its own.
        General = 21,
    }
}

open_enum! {
    /// The completed operation; the numbers are those of `ibv_wc_opcode`.
    pub struct Opcode(u8) {
        /// SEND.
        Send = 0,
        /// RDMA WRITE.
        Write = 1,
        /// RDMA READ.
        Read = 2,
        /// Compare and swap.
        CompareSwap = 3,
        /// Fetch and add.
        FetchAdd = 4,
        /// Window bind.
        BindWindow = 5,
        /// Local invalidate.
        LocalInvalidate = 6,
        /// A SEND was received.
        Receive = 128,
        /// An RDMA WRITE with immediate data was received.
        ReceiveWriteImm = 129,
    }
}

flags! {
    /// Flags of a completion.
    pub struct Flags(u8) {
        /// Of a receive queue; else of a send queue.
        RECEIVE = 1 << 0,
        /// `immediate` is immediate data.
        IMMEDIATE = 1 << 1,
        /// `immediate` is the key that was invalidated.
        INVALIDATED = 1 << 2,
        /// The message was solicited.
        SOLICITED = 1 << 3,
        /// UD: 40 bytes stand before the payload, which `byte_count` counts: the header of IPv6, or in the
        /// last 20 of them that of IPv4.
        GRH = 1 << 4,
        /// XRC: the entry is of shared receive queue `srqn`, through `qpn`, which may be another client's.
        XRC = 1 << 5,
    }
}

layout! {
    /// A completion.
    pub struct Cqe: 1 {
        /// The QP it belongs to.
        qpn @ 0x00: u32,
        /// Send: block index of the WQE in the send ring. Receive: the WQE's tag.
        wqe_index @ 0x04: u32,
        /// Bytes of the message, sent or received; undefined with an error.
        byte_count @ 0x08: u32,
        /// Immediate data, or the key that was invalidated.
        immediate @ 0x0c: u32,
        /// UD: QPN of the sender.
        source_qpn @ 0x10: u32,
        /// The completed operation.
        opcode @ 0x14: Opcode,
        /// How it ended.
        status @ 0x15: Status,
        /// The engine's own finer reason; 0 with success.
        vendor_code @ 0x16: u8,
        /// Kind and contents.
        flags @ 0x17: Flags,
        /// Nanoseconds of the engine's clock.
        timestamp @ 0x18: u64,
        /// XRC: the shared receive queue.
        srqn @ 0x20: u32,
        /// Generation of the QP, one more with each RESET; entries of an earlier one are stale.
        generation @ 0x38: u8,
        /// Bit 0: the phase.
        phase @ 0x3f: u8,
    }
}

constants! {
    /// The number of an entry's last word, which carries the phase and is written last.
    pub const LAST_WORD: usize = 7;
}

/// The phase of an entry, read from its last word.
#[inline(always)]
#[must_use]
pub const fn phase(last_word: u64) -> bool {
    last_word >> 56 & 1 == 1
}

/// Byte offset of the 32-bit word made of opcode, status, vendor code and flags. Of a send that
/// succeeded it is the opcode alone.
pub const KIND: usize = 0x14;

/// The phase that entry `index` of a ring of 2^`log2_entries` carries once written.
#[inline(always)]
#[must_use]
pub const fn expected_phase(index: u32, log2_entries: u8) -> bool {
    (index as u64 >> log2_entries) & 1 == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_phase_is_bit_0_of_the_last_byte() {
        let entry = Cqe { phase: 1, ..Cqe::default() }.encode();
        assert_eq!(entry[0][LAST_WORD].to_le_bytes()[7], 1);
        assert!(phase(entry[0][LAST_WORD]));
    }

    #[test]
    fn the_kind_of_a_plain_entry_is_its_opcode_and_of_no_other() {
        let plain = Cqe { opcode: Opcode::Read, source_qpn: u32::MAX, ..Cqe::default() };
        let kind = |entry: Cqe| (entry.encode()[0][KIND / 8] >> 32) as u32;
        assert_eq!(kind(plain), Opcode::Read.0.into());
        assert!(kind(Cqe { status: Status::Flushed, ..plain }) > 0xff);
        assert!(kind(Cqe { vendor_code: 1, ..plain }) > 0xff);
        assert!(kind(Cqe { flags: Flags::RECEIVE, ..plain }) > 0xff);
    }

    #[test]
    fn the_phase_alternates_with_each_lap_and_across_the_index_wrap() {
        assert!(expected_phase(0, 4));
        assert!(!expected_phase(16, 4));
        assert!(expected_phase(32, 4));
        assert!(!expected_phase(u32::MAX, 4));
    }
}
