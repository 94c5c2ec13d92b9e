//! Polling: completion entries in, `ibv_wc` out.

use fpga_regs::engine::cqe::{Cqe, Flags, Opcode, Status};
use parking_lot::MutexGuard;
use verbs_sys::v44::verbs::{self as ibv, ibv_wc, ibv_wc__bindgen_ty_1};

use crate::cq::{CONSUMER, CompletionQueue, CqState};
use crate::qp::Queues;
use crate::status::{
    VENDOR_CARD_DIED, VENDOR_UNKNOWN_CODE, VENDOR_UNKNOWN_REQUEST, wc_opcode, wc_status,
};

impl CompletionQueue {
    /// Delivers up to `limit` completions and returns how many; fails with EPERM in a forked child.
    ///
    /// Where there is none and the card is dead, the work requests it died with are delivered as
    /// flushed.
    #[inline(always)]
    pub(crate) fn poll(&self, limit: usize, mut deliver: impl FnMut(ibv_wc)) -> Result<usize, i32> {
        if limit == 0 {
            return Ok(0);
        }
        if !self.path.is_ours() {
            return Err(libc::EPERM);
        }
        let mut state = self.lock();
        let index = state.consumer;
        // The usual case is one work request that succeeded, which needs neither the loop nor the
        // registers it takes; whatever is not usual is left to it.
        if let Some(completion) = self.usual(&state, index) {
            let next = index.wrapping_add(1);
            state.consumer = next;
            self.record.store_release_u32(CONSUMER, next);
            deliver(completion);
            if limit == 1 || !self.is_written(next) {
                return Ok(1);
            }
            return Ok(self.poll_all(state, limit.wrapping_sub(1), deliver).wrapping_add(1));
        }
        Ok(self.poll_all(state, limit, deliver))
    }

    /// The completion of an entry that is there, of a work request that succeeded; `None` for
    /// anything else, of which nothing was taken then.
    #[inline(always)]
    fn usual(&self, state: &CqState, index: u32) -> Option<ibv_wc> {
        let block = self.ring.block(index);
        let last = block.load_last_acquire();
        if !self.is_of_lap(index, last) {
            return None;
        }
        let [w0, w1, w2] = block.load_first();
        let cqe = Cqe::decode(&[[w0, w1, w2, 0, 0, 0, 0, last]]);
        let queues = &*state.table.get(cqe.qpn)?.queues;
        let receive = cqe.flags.contains(Flags::RECEIVE);
        if queues.generation() != cqe.generation || cqe.status != Status::Success {
            return None;
        }
        let (opcode, wr_id) = match receive {
            true => (wc_opcode(cqe.opcode, true)?, queues.receive.retire(cqe.wqe_index)?),
            false => (wc_opcode(cqe.opcode, false)?, queues.send.retire(cqe.wqe_index)?),
        };
        Some(succeeded(queues, &cqe, wr_id, opcode))
    }

    /// Delivers what is there, of whatever kind.
    #[inline(never)]
    fn poll_all(
        &self,
        mut state: MutexGuard<'_, CqState>,
        limit: usize,
        mut deliver: impl FnMut(ibv_wc),
    ) -> usize {
        let start = state.consumer;
        let mut index = start;
        let mut delivered = 0usize;
        while delivered < limit {
            let block = self.ring.block(index);
            let last = block.load_last_acquire();
            if !self.is_of_lap(index, last) {
                break;
            }
            // The last word is used as it was when its phase was seen.
            let [w0, w1, w2] = block.load_first();
            let cqe = Cqe::decode(&[[w0, w1, w2, 0, 0, 0, 0, last]]);
            index = index.wrapping_add(1);
            // An entry of a QP that was destroyed or reset meanwhile completes nothing.
            let Some(entry) = state.table.get(cqe.qpn) else { continue };
            let queues = &*entry.queues;
            if queues.generation() == cqe.generation {
                complete(queues, &cqe, &mut deliver);
                delivered = delivered.wrapping_add(1);
            }
        }
        if index != start {
            state.consumer = index;
            self.record.store_release_u32(CONSUMER, index);
        } else if self.path.is_dead() {
            delivered = flush(&state, limit, deliver);
        }
        delivered
    }
}

/// Delivers what an entry completes.
#[inline(always)]
fn complete(queues: &Queues, cqe: &Cqe, deliver: &mut impl FnMut(ibv_wc)) {
    let receive = cqe.flags.contains(Flags::RECEIVE);
    if cqe.status != Status::Success {
        let Cqe { status, vendor_code, opcode, .. } = *cqe;
        let why = Failure { status, vendor_code, opcode, receive };
        return deliver(failed(queues, cqe.wqe_index, why));
    }
    let Some(wr_id) = retire(queues, cqe.wqe_index, receive) else {
        return deliver(garbled(queues, 0, VENDOR_UNKNOWN_REQUEST, receive));
    };
    let Some(opcode) = wc_opcode(cqe.opcode, receive) else {
        return deliver(garbled(queues, wr_id, VENDOR_UNKNOWN_CODE, receive));
    };
    deliver(succeeded(queues, cqe, wr_id, opcode));
}

/// The completion of a work request that succeeded.
#[inline(always)]
fn succeeded(queues: &Queues, cqe: &Cqe, wr_id: u64, opcode: u32) -> ibv_wc {
    ibv_wc {
        opcode,
        byte_len: cqe.byte_count,
        __bindgen_anon_1: ibv_wc__bindgen_ty_1 { imm_data: cqe.immediate },
        src_qp: cqe.source_qpn,
        wc_flags: wc_flags(cqe.flags),
        ..blank(queues, wr_id)
    }
}

/// Takes back the work request that an entry names.
#[inline(always)]
fn retire(queues: &Queues, wqe_index: u32, receive: bool) -> Option<u64> {
    if receive { queues.receive.retire(wqe_index) } else { queues.send.retire(wqe_index) }
}

/// The `ibv_wc_flags` of an entry's flags.
#[inline(always)]
fn wc_flags(flags: Flags) -> u32 {
    // IMMEDIATE (2) is IBV_WC_WITH_IMM (2), INVALIDATED (4) becomes IBV_WC_WITH_INV (8).
    const _: () = assert!(Flags::IMMEDIATE.bits() as u32 == ibv::IBV_WC_WITH_IMM);
    const _: () = assert!((Flags::INVALIDATED.bits() as u32) << 1 == ibv::IBV_WC_WITH_INV);
    let bits = u32::from(flags.bits());
    (bits & ibv::IBV_WC_WITH_IMM) | ((bits << 1) & ibv::IBV_WC_WITH_INV)
}

#[inline(always)]
fn blank(queues: &Queues, wr_id: u64) -> ibv_wc {
    ibv_wc {
        wr_id,
        status: ibv::IBV_WC_SUCCESS,
        opcode: ibv::IBV_WC_SEND,
        vendor_err: 0,
        byte_len: 0,
        __bindgen_anon_1: ibv_wc__bindgen_ty_1 { imm_data: 0 },
        qp_num: queues.qpn(),
        src_qp: 0,
        wc_flags: 0,
        pkey_index: 0,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
    }
}

fn error(queues: &Queues, wr_id: u64, status: u32, vendor_err: u32, receive: bool) -> ibv_wc {
    let opcode = if receive { ibv::IBV_WC_RECV } else { ibv::IBV_WC_SEND };
    ibv_wc { status, opcode, vendor_err, ..blank(queues, wr_id) }
}

/// The completion of an entry that cannot be: said aloud, with the QP.
///
/// An entry of what is not outstanding has no work request; its `wr_id` is 0.
#[cold]
fn garbled(queues: &Queues, wr_id: u64, vendor_err: u32, receive: bool) -> ibv_wc {
    error(queues, wr_id, ibv::IBV_WC_GENERAL_ERR, vendor_err, receive)
}

/// What an entry says of a work request that failed.
#[derive(Clone, Copy)]
struct Failure {
    status: Status,
    vendor_code: u8,
    opcode: Opcode,
    receive: bool,
}

/// The completion of a work request that failed.
#[cold]
fn failed(queues: &Queues, wqe_index: u32, why: Failure) -> ibv_wc {
    let Failure { status, vendor_code, opcode, receive } = why;
    let Some(wr_id) = retire(queues, wqe_index, receive) else {
        return garbled(queues, 0, VENDOR_UNKNOWN_REQUEST, receive);
    };
    let Some(status) = wc_status(status) else {
        return garbled(queues, wr_id, VENDOR_UNKNOWN_CODE, receive);
    };
    let failed = error(queues, wr_id, status, u32::from(vendor_code), receive);
    ibv_wc { opcode: wc_opcode(opcode, receive).unwrap_or(failed.opcode), ..failed }
}

/// Delivers what was outstanding on a dead card as flushed, and closes the queues with EIO.
#[cold]
fn flush(state: &CqState, limit: usize, mut deliver: impl FnMut(ibv_wc)) -> usize {
    let mut delivered = 0usize;
    for entry in state.table.iter() {
        let queues = &*entry.queues;
        queues.close(libc::EIO);
        loop {
            if delivered >= limit {
                return delivered;
            }
            let send = if entry.sends { queues.send.flush_one() } else { None };
            let (wr_id, receive) = match send {
                Some(wr_id) => (wr_id, false),
                None if !entry.receives => break,
                None => match queues.receive.flush_one() {
                    Some(wr_id) => (wr_id, true),
                    None => break,
                },
            };
            deliver(error(queues, wr_id, ibv::IBV_WC_WR_FLUSH_ERR, VENDOR_CARD_DIED, receive));
            delivered = delivered.wrapping_add(1);
        }
    }
    delivered
}

#[cfg(test)]
pub(crate) mod tests;
