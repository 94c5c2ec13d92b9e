//! Verbs' numbers for the card's codes: the same numbers, where they are any.

use crate::abi::verbs as ibv;
#[cfg(doc)]
use fpga_regs::engine::cqe::KIND;
use fpga_regs::engine::cqe::{Flags, Opcode, Status};

/// `vendor_err` of a completion the card reported with a code this provider does not know.
pub(crate) const VENDOR_UNKNOWN_CODE: u32 = 0x100;
/// `vendor_err` of a completion that names a work request that is not outstanding.
pub(crate) const VENDOR_UNKNOWN_REQUEST: u32 = 0x101;
/// `vendor_err` of work requests flushed because the card, or balboad, has died.
pub(crate) const VENDOR_CARD_DIED: u32 = 0x102;

/// The `ibv_wc_status` of a card's status, which is its number; `None` for a code that is none.
#[inline(always)]
pub(crate) fn wc_status(status: Status) -> Option<ibv::ibv_wc_status> {
    status.name().map(|_| status.0.into())
}

/// The `ibv_wc_opcode` of a card's completion opcode on a send or a receive queue, which is its number.
///
/// `None` for a code that is none, and for one of the other kind of queue.
#[inline(always)]
pub(crate) fn wc_opcode(opcode: Opcode, receive: bool) -> Option<ibv::ibv_wc_opcode> {
    let is_of_queue = opcode.name().is_some() && receive == (opcode >= Opcode::Receive);
    is_of_queue.then_some(opcode.0.into())
}

/// The `ibv_wc_opcode` of a transfer, by the [kind](KIND) of its entry; `None` for everything else.
#[inline(always)]
pub(crate) fn plain_opcode(kind: u32) -> Option<ibv::ibv_wc_opcode> {
    (kind <= ibv::IBV_WC_FETCH_ADD).then_some(kind)
}

/// The `ibv_wc_opcode` and the flags of a receive that succeeded, by the [kind](KIND) of its entry; `None` for
/// everything else, and for a receive along XRC, whose queue another word names.
#[inline(always)]
pub(crate) fn plain_receive(kind: u32) -> Option<(ibv::ibv_wc_opcode, Flags)> {
    const RECEIVE: u32 = u32::from_le_bytes([Opcode::Receive.0, 0, 0, Flags::RECEIVE.bits()]);
    const OPTIONAL: Flags =
        Flags::IMMEDIATE.union(Flags::INVALIDATED).union(Flags::SOLICITED).union(Flags::GRH);
    // The operations of receives differ in one bit.
    const OPERATION: u8 = Opcode::Receive.0 ^ Opcode::ReceiveWriteImm.0;
    const ANY: u32 = u32::from_le_bytes([OPERATION, 0, 0, OPTIONAL.bits()]);
    if kind & !ANY != RECEIVE {
        return None;
    }
    let [opcode, _, _, flags] = kind.to_le_bytes();
    Some((opcode.into(), Flags::from_bits_retain(flags)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The contract took its numbers from verbs.
    #[test]
    fn the_cards_codes_are_verbs_own() {
        for (code, status) in [
            (Status::Success, ibv::IBV_WC_SUCCESS),
            (Status::LocalLength, ibv::IBV_WC_LOC_LEN_ERR),
            (Status::LocalQpOperation, ibv::IBV_WC_LOC_QP_OP_ERR),
            (Status::LocalProtection, ibv::IBV_WC_LOC_PROT_ERR),
            (Status::Flushed, ibv::IBV_WC_WR_FLUSH_ERR),
            (Status::WindowBind, ibv::IBV_WC_MW_BIND_ERR),
            (Status::BadResponse, ibv::IBV_WC_BAD_RESP_ERR),
            (Status::LocalAccess, ibv::IBV_WC_LOC_ACCESS_ERR),
            (Status::RemoteInvalidRequest, ibv::IBV_WC_REM_INV_REQ_ERR),
            (Status::RemoteAccess, ibv::IBV_WC_REM_ACCESS_ERR),
            (Status::RemoteOperation, ibv::IBV_WC_REM_OP_ERR),
            (Status::RetryExceeded, ibv::IBV_WC_RETRY_EXC_ERR),
            (Status::RnrRetryExceeded, ibv::IBV_WC_RNR_RETRY_EXC_ERR),
            (Status::RemoteInvalidRdRequest, ibv::IBV_WC_REM_INV_RD_REQ_ERR),
            (Status::General, ibv::IBV_WC_GENERAL_ERR),
        ] {
            assert_eq!(wc_status(code), Some(status));
        }
        for (code, opcode) in [
            (Opcode::Send, ibv::IBV_WC_SEND),
            (Opcode::Write, ibv::IBV_WC_RDMA_WRITE),
            (Opcode::Read, ibv::IBV_WC_RDMA_READ),
            (Opcode::CompareSwap, ibv::IBV_WC_COMP_SWAP),
            (Opcode::FetchAdd, ibv::IBV_WC_FETCH_ADD),
            (Opcode::BindWindow, ibv::IBV_WC_BIND_MW),
            (Opcode::LocalInvalidate, ibv::IBV_WC_LOCAL_INV),
            (Opcode::Receive, ibv::IBV_WC_RECV),
            (Opcode::ReceiveWriteImm, ibv::IBV_WC_RECV_RDMA_WITH_IMM),
        ] {
            assert_eq!(wc_opcode(code, code >= Opcode::Receive), Some(opcode));
        }
    }

    #[test]
    fn every_code_with_a_name_is_taken_on_its_kind_of_queue_and_no_other() {
        for code in 0..=u8::MAX {
            assert_eq!(wc_status(Status(code)).is_some(), Status(code).name().is_some(), "{code}");
            let known = Opcode(code).name().is_some();
            let receives = Opcode(code) >= Opcode::Receive;
            assert_eq!(wc_opcode(Opcode(code), receives).is_some(), known, "opcode {code}");
            assert_eq!(wc_opcode(Opcode(code), !receives), None, "opcode {code}");
            let plain = plain_opcode(code.into());
            assert_eq!(plain, wc_opcode(Opcode(code), false).filter(|_| code <= 4), "{code}");
        }
    }

    #[test]
    fn a_plain_receive_is_one_of_a_queue_pair_that_succeeded_and_nothing_else() {
        let optional = Flags::all() - Flags::RECEIVE - Flags::XRC;
        for (opcode, flags) in (0..=u16::MAX).map(|it| (it as u8, (it >> 8) as u8)) {
            let kind = |status, vendor| u32::from_le_bytes([opcode, status, vendor, flags]);
            let kept = Flags::from_bits_retain(flags);
            let is_plain = wc_opcode(Opcode(opcode), true).is_some()
                && kept.contains(Flags::RECEIVE)
                && (kept - Flags::RECEIVE - optional).is_empty();
            let expected = is_plain.then_some((opcode.into(), kept));
            assert_eq!(plain_receive(kind(0, 0)), expected, "opcode {opcode}, flags {flags:#x}");
            for one_more in (0..8).map(|bit| 1 << bit) {
                assert_eq!(plain_receive(kind(one_more, 0)), None, "status {one_more:#x}");
                assert_eq!(plain_receive(kind(0, one_more)), None, "vendor code {one_more:#x}");
            }
        }
    }
}
