//! Polling: completion entries in, `ibv_wc` out.

use fpga_regs::engine::cqe::{Cqe, Flags, Status, expected_phase, phase};
use verbs_sys::v44::verbs::{self as ibv, ibv_wc, ibv_wc__bindgen_ty_1};

use crate::cq::{CONSUMER, CompletionQueue, CqState};
use crate::qp::Queues;
use crate::status::{
    VENDOR_CARD_DIED, VENDOR_UNKNOWN_CODE, VENDOR_UNKNOWN_REQUEST, wc_opcode, wc_status,
};
use crate::table::QpTable;

impl CompletionQueue {
    /// Delivers up to `limit` completions and returns how many; fails with EPERM in a forked child.
    ///
    /// Where there is none and the card is dead, the work requests it died with are delivered as
    /// flushed.
    #[inline(always)]
    pub(crate) fn poll(&self, limit: usize, mut deliver: impl FnMut(ibv_wc)) -> Result<usize, i32> {
        if !self.path.is_ours() {
            return Err(libc::EPERM);
        }
        let mut state = self.lock();
        let start = state.consumer;
        let mut index = start;
        let mut delivered = 0usize;
        while delivered < limit {
            let last = self.ring.load_last_acquire(index);
            if phase(last) != expected_phase(index, self.log2_entries) {
                break;
            }
            // The last word is used as it was when its phase was seen.
            let [w0, w1, w2, w3, w4, w5, w6, _] = self.ring.read(index);
            let cqe = Cqe::decode(&[[w0, w1, w2, w3, w4, w5, w6, last]]);
            index = index.wrapping_add(1);
            if let Some(completion) = completion(&state.table, &cqe) {
                deliver(completion);
                delivered = delivered.wrapping_add(1);
            }
        }
        if index != start {
            state.consumer = index;
            self.record.store_release_u32(CONSUMER, index);
        } else if self.path.is_dead() {
            delivered = flush(&state, limit, deliver);
        }
        Ok(delivered)
    }
}

/// What an entry completes; `None` for one of a QP that was destroyed or reset meanwhile.
#[inline(always)]
fn completion(table: &QpTable, cqe: &Cqe) -> Option<ibv_wc> {
    let queues = &*table.get(cqe.qpn)?.queues;
    if queues.generation() != cqe.generation {
        return None;
    }
    let receive = cqe.flags.contains(Flags::RECEIVE);
    let wr_id = if receive {
        queues.receive.retire(cqe.wqe_index)
    } else {
        queues.send.retire(cqe.wqe_index)
    };
    let Some(wr_id) = wr_id else { return Some(unknown_request(queues, receive)) };
    if cqe.status != Status::Success {
        return Some(failed(queues, wr_id, cqe, receive));
    }
    let Some(opcode) = wc_opcode(cqe.opcode).filter(|_| is_sound(cqe, receive)) else {
        return Some(error(queues, wr_id, ibv::IBV_WC_GENERAL_ERR, VENDOR_UNKNOWN_CODE, receive));
    };
    let mut wc_flags = 0;
    if cqe.flags.contains(Flags::IMMEDIATE) {
        wc_flags |= ibv::IBV_WC_WITH_IMM;
    }
    if cqe.flags.contains(Flags::INVALIDATED) {
        wc_flags |= ibv::IBV_WC_WITH_INV;
    }
    Some(ibv_wc {
        status: ibv::IBV_WC_SUCCESS,
        opcode,
        vendor_err: 0,
        byte_len: cqe.byte_count,
        __bindgen_anon_1: ibv_wc__bindgen_ty_1 { imm_data: cqe.immediate },
        src_qp: cqe.source_qpn,
        wc_flags,
        ..blank(queues, wr_id)
    })
}

/// Whether an entry's opcode is one of the queue it says it is of.
#[inline(always)]
fn is_sound(cqe: &Cqe, receive: bool) -> bool {
    (cqe.opcode.0 >= fpga_regs::engine::cqe::Opcode::Receive.0) == receive
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

#[cold]
fn error(queues: &Queues, wr_id: u64, status: u32, vendor_err: u32, receive: bool) -> ibv_wc {
    let opcode = if receive { ibv::IBV_WC_RECV } else { ibv::IBV_WC_SEND };
    ibv_wc { status, opcode, vendor_err, ..blank(queues, wr_id) }
}

/// The completion of a work request that failed.
#[cold]
fn failed(queues: &Queues, wr_id: u64, cqe: &Cqe, receive: bool) -> ibv_wc {
    match wc_status(cqe.status) {
        Some(status) => {
            let failed = error(queues, wr_id, status, u32::from(cqe.vendor_code), receive);
            let opcode = wc_opcode(cqe.opcode).filter(|_| is_sound(cqe, receive));
            ibv_wc { opcode: opcode.unwrap_or(failed.opcode), ..failed }
        }
        None => error(queues, wr_id, ibv::IBV_WC_GENERAL_ERR, VENDOR_UNKNOWN_CODE, receive),
    }
}

/// The card completed what is not outstanding: said aloud, with the QP and no work request.
#[cold]
fn unknown_request(queues: &Queues, receive: bool) -> ibv_wc {
    error(queues, 0, ibv::IBV_WC_GENERAL_ERR, VENDOR_UNKNOWN_REQUEST, receive)
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
