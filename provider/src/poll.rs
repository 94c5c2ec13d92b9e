//! Polling: completion entries in, `ibv_wc` out.

use std::sync::Arc;

use crate::abi::verbs::{self as ibv, ibv_wc, ibv_wc__bindgen_ty_1};
use fpga_regs::engine::cqe::{Cqe, Flags, KIND, Opcode, Status};
use hostmem::{TurnGuard, Waiters, WrittenBlock};
use nix::errno::Errno;

use crate::cq::{CONSUMER, CompletionQueue, CqState};
use crate::qp::Queues;
use crate::srq::SharedReceiveQueue;
use crate::status::{
    VENDOR_CARD_DIED, VENDOR_UNKNOWN_CODE, VENDOR_UNKNOWN_REQUEST, plain_opcode, plain_receive,
    wc_opcode, wc_status,
};

/// Places in an entry, in 32-bit words.
const QPN: usize = 0;
const WQE_INDEX: usize = 1;
const BYTE_COUNT: usize = 2;
const IMMEDIATE: usize = 3;
const SOURCE: usize = 4;
/// The same, in 64-bit words.
const TIMESTAMP: usize = 3;
const SRQN: usize = 4;

/// The completions that [`CompletionQueue::take_usual`] takes.
pub(crate) const SENT: bool = false;
pub(crate) const RECEIVED: bool = true;

/// Polls of a queue that find nothing until the core is handed over: the cost, if no thread waits for the core, is then
/// small beside them.
const EMPTY_POLLS: u32 = 16;

/// When the card wrote an entry, in nanoseconds of its clock, if the caller wants it; otherwise 0.
#[inline(always)]
fn time<const TIMED: bool>(block: WrittenBlock<'_>) -> u64 {
    if TIMED { block.load_word(TIMESTAMP) } else { 0 }
}

impl CompletionQueue {
    /// Delivers up to `limit` completions and returns how many, as `ibv_poll_cq` does: a negative
    /// errno, which is also set, where that cannot be. It is EINVAL for a negative limit, EPERM in a
    /// forked child.
    ///
    /// Where there is none and the card is dead, the work requests it died with are delivered as
    /// flushed.
    #[inline(always)]
    pub(crate) fn poll(&self, limit: i32, mut deliver: impl FnMut(ibv_wc, u64)) -> i32 {
        // The usual case is one send that succeeded, with nobody else polling. It needs neither the
        // loop nor the registers that takes, and a receive that succeeded needs few more; the loop takes
        // all others.
        if limit <= 0 || !self.canary.is_unmarked() {
            return self.poll_waiting(limit, deliver);
        }
        let Some(mut state) = self.state.try_lock() else {
            return self.poll_waiting(limit, deliver);
        };
        match self.take_usual::<false, SENT>(&mut state, &mut deliver) {
            Some(next) => self.end_poll(limit, deliver, next, state),
            None => self.poll_received(limit, deliver, state),
        }
    }

    /// As [`Self::poll`], where the next entry is of no send that succeeded. It is apart because a receive
    /// needs more registers than a send.
    #[inline(never)]
    fn poll_received(
        &self,
        limit: i32,
        mut deliver: impl FnMut(ibv_wc, u64),
        mut state: TurnGuard<'_, CqState>,
    ) -> i32 {
        match self.take_usual::<false, RECEIVED>(&mut state, &mut deliver) {
            Some(next) => self.end_poll(limit, deliver, next, state),
            None => self.poll_all(limit, deliver, 0, state),
        }
    }

    /// Ends a poll that delivered the completion before the entry `next`, and delivers what is behind that.
    #[inline(always)]
    fn end_poll(
        &self,
        limit: i32,
        deliver: impl FnMut(ibv_wc, u64),
        next: u32,
        state: TurnGuard<'_, CqState>,
    ) -> i32 {
        if limit > 1 && state.ring.written(next).is_some() {
            return self.poll_all(limit, deliver, 1, state);
        }
        match state.release() {
            None => 1,
            Some(waiters) => one_and_wake(waiters),
        }
    }

    /// Begins to take completions one by one: nobody else polls until the guard is dropped. It fails if another thread
    /// polls, and in a forked child.
    #[inline(always)]
    pub(crate) fn hold_at_once(&self) -> Option<TurnGuard<'_, CqState>> {
        if self.canary.is_unmarked() { self.state.try_lock() } else { None }
    }

    /// As [`Self::hold_at_once`], waiting for others that poll; EPERM in a forked child.
    pub(crate) fn hold(&self) -> Result<TurnGuard<'_, CqState>, i32> {
        if self.path.is_ours() { Ok(self.lock()) } else { Err(libc::EPERM) }
    }

    /// Delivers the first completion to the holder of `state`, and answers with the queue; where there is none
    /// with ENOENT.
    pub(crate) fn first_poll<'a, const TIMED: bool>(
        &'a self,
        mut state: TurnGuard<'a, CqState>,
        mut deliver: impl FnMut(ibv_wc, u64),
    ) -> Result<TurnGuard<'a, CqState>, i32> {
        if self.take_usual::<TIMED, RECEIVED>(&mut state, &mut deliver).is_some() {
            return Ok(state);
        }
        let take = |state: &mut CqState| self.take_any::<TIMED>(state, 1, &mut deliver, 0);
        match self.take_or_hand_over(state, take, || self.path.hand_over()) {
            (0, _) => Err(libc::ENOENT),
            (_, state) => Ok(state),
        }
    }

    /// Delivers one more completion to the holder of `state`; whether there was one.
    #[inline(always)]
    pub(crate) fn next_poll<const TIMED: bool>(
        &self,
        state: &mut CqState,
        mut deliver: impl FnMut(ibv_wc, u64),
    ) -> bool {
        self.take_usual::<TIMED, SENT>(state, &mut deliver).is_some()
            || self.next_unusual::<TIMED>(state, deliver)
    }

    #[inline(never)]
    fn next_unusual<const TIMED: bool>(
        &self,
        state: &mut CqState,
        mut deliver: impl FnMut(ibv_wc, u64),
    ) -> bool {
        self.take_usual::<TIMED, RECEIVED>(state, &mut deliver).is_some()
            || self.take_any::<TIMED>(state, 1, &mut deliver, 0) != 0
    }

    /// Delivers the completion of the next entry, where that is of a send that succeeded ([`SENT`]) or of a
    /// receive that did ([`RECEIVED`]), and answers the index of the one behind it; of anything else nothing is
    /// taken.
    #[inline(always)]
    pub(crate) fn take_usual<const TIMED: bool, const RECEIVE: bool>(
        &self,
        state: &mut CqState,
        deliver: &mut impl FnMut(ibv_wc, u64),
    ) -> Option<u32> {
        let index = state.consumer;
        let block = state.ring.written(index)?;
        // The kind first: the look for the other kind begins anew, and this one has cost little by then.
        let kind = block.load_half(KIND / 4);
        let is_usual =
            if RECEIVE { plain_receive(kind).is_some() } else { plain_opcode(kind).is_some() };
        if !is_usual {
            return None;
        }
        let queues = state.table.get_first(block.load_half(QPN))?;
        if !is_of(block, queues) {
            return None;
        }
        let completion =
            if RECEIVE { received(kind, queues, block)? } else { sent(kind, queues, block)? };
        let time = time::<TIMED>(block);
        // From now on the card may write over the entry.
        let next = index.wrapping_add(1);
        state.consumer = next;
        state.ring.record.store_release_u32(CONSUMER, next);
        deliver(completion, time);
        Some(next)
    }

    /// Delivers the completions in the ring, of every kind, waiting for others that poll.
    #[cold]
    #[inline(never)]
    fn poll_waiting(&self, limit: i32, deliver: impl FnMut(ibv_wc, u64)) -> i32 {
        let refused = match limit {
            0 => return 0,
            ..0 => libc::EINVAL,
            _ if self.path.is_ours() => return self.poll_all(limit, deliver, 0, self.lock()),
            _ => libc::EPERM,
        };
        Errno::set_raw(refused);
        refused.wrapping_neg()
    }

    /// Delivers the completions in the ring, of every kind, behind those that were `delivered` before.
    #[inline(never)]
    fn poll_all(
        &self,
        limit: i32,
        mut deliver: impl FnMut(ibv_wc, u64),
        delivered: i32,
        state: TurnGuard<'_, CqState>,
    ) -> i32 {
        let take =
            |state: &mut CqState| self.take_any::<false>(state, limit, &mut deliver, delivered);
        self.take_or_hand_over(state, take, || self.path.hand_over()).0
    }

    /// Delivers the completions in the ring, as [`Self::poll_all`], and answers their number; where there are none and
    /// the card is dead, those of the work requests that it died with.
    #[inline(always)]
    fn take_any<const TIMED: bool>(
        &self,
        state: &mut CqState,
        limit: i32,
        deliver: &mut impl FnMut(ibv_wc, u64),
        mut delivered: i32,
    ) -> i32 {
        let mut start = state.consumer;
        let mut index = start;
        while delivered < limit {
            let Some(block) = state.ring.written(index) else {
                if !state.go_on() {
                    break;
                }
                (start, index) = (state.consumer, state.consumer);
                continue;
            };
            index = index.wrapping_add(1);
            // An entry of a QP that was destroyed or reset meanwhile completes nothing.
            let Some(queues) = state.table.get(block.load_half(QPN)) else {
                if let Some(completion) = of_srq(&state.srqs, block) {
                    deliver(completion, time::<TIMED>(block));
                    delivered = delivered.wrapping_add(1);
                }
                continue;
            };
            if is_of(block, queues) {
                let time = time::<TIMED>(block);
                match sent(block.load_half(KIND / 4), queues, block) {
                    Some(completion) => deliver(completion, time),
                    None => other(queues, block, |completion| deliver(completion, time)),
                }
                delivered = delivered.wrapping_add(1);
            }
        }
        if index != start {
            state.consumer = index;
            state.ring.record.store_release_u32(CONSUMER, index);
        } else if delivered == 0 && self.path.is_dead() {
            return self.flush(state, limit, deliver);
        }
        delivered
    }

    /// Takes completions, as `take` does and answers; where there are none, now and then hands the core
    /// over, and looks again where that was done.
    ///
    /// A program takes the answer for how it is now, and may look for the end of a connection next. The core
    /// may have been away for as long as the last messages and that end took to come, and a program that hears of the
    /// end alone destroys the queue pair, and the completions with it.
    #[inline(always)]
    fn take_or_hand_over<'a>(
        &'a self,
        mut state: TurnGuard<'a, CqState>,
        mut take: impl FnMut(&mut CqState) -> i32,
        hand_over: impl FnOnce() -> bool,
    ) -> (i32, TurnGuard<'a, CqState>) {
        let taken = take(&mut state);
        if taken != 0 {
            return (taken, state);
        }
        state.empty_polls = state.empty_polls.wrapping_add(1);
        if state.empty_polls % EMPTY_POLLS != 0 {
            return (0, state);
        }
        drop(state);
        let is_stale = hand_over();
        let mut state = self.lock();
        let taken = if is_stale { take(&mut state) } else { 0 };
        (taken, state)
    }

    /// Delivers the outstanding work requests of a dead card as flushed, and closes the queues with EIO.
    #[cold]
    fn flush(&self, state: &CqState, limit: i32, deliver: &mut impl FnMut(ibv_wc, u64)) -> i32 {
        let mut delivered = 0i32;
        for queues in state.table.iter() {
            queues.close(libc::EIO);
            let sends = || (queues.send_cqn == self.cqn).then(|| queues.send.flush_one()).flatten();
            let receives =
                || (queues.receive_cqn == self.cqn).then(|| queues.receive.flush_one()).flatten();
            while delivered < limit {
                let (wr_id, receive) = match sends() {
                    Some(wr_id) => (wr_id, false),
                    None => match receives() {
                        Some(wr_id) => (wr_id, true),
                        None => break,
                    },
                };
                let flushed = ibv::IBV_WC_WR_FLUSH_ERR;
                deliver(error(queues.qpn(), wr_id, flushed, VENDOR_CARD_DIED, receive), 0);
                delivered = delivered.wrapping_add(1);
            }
        }
        delivered
    }
}

/// Ends a poll that found one completion, where another thread waits to poll.
#[cold]
#[inline(never)]
fn one_and_wake(waiters: Waiters<'_, ()>) -> i32 {
    waiters.wake();
    1
}

/// Whether an entry is of these queues; not where they were reset meanwhile.
#[inline(always)]
fn is_of(block: WrittenBlock<'_>, queues: &Queues) -> bool {
    let Cqe { generation, .. } = Cqe::decode(&[[0, 0, 0, 0, 0, 0, 0, block.last()]]);
    queues.generation() == generation
}

/// The completion of an entry whose kind is that of a send that succeeded, as most are; `None` where no such
/// request is outstanding.
///
/// Each word of the entry is read when it is used, for there are few registers.
#[inline(always)]
fn sent(kind: u32, queues: &Queues, block: WrittenBlock<'_>) -> Option<ibv_wc> {
    let opcode = plain_opcode(kind)?;
    let wr_id = queues.send.retire(block.load_half(WQE_INDEX))?;
    let byte_len = block.load_half(BYTE_COUNT);
    Some(ibv_wc { opcode, byte_len, ..blank(queues.qpn(), wr_id) })
}

/// The same of a receive, whose kind [says so](plain_receive).
#[inline(always)]
fn received(kind: u32, queues: &Queues, block: WrittenBlock<'_>) -> Option<ibv_wc> {
    let (opcode, flags) = plain_receive(kind)?;
    let wr_id = retire_receive(queues, block.load_half(WQE_INDEX))?;
    Some(ibv_wc {
        opcode,
        byte_len: block.load_half(BYTE_COUNT),
        __bindgen_anon_1: ibv_wc__bindgen_ty_1 { imm_data: block.load_half(IMMEDIATE) },
        src_qp: block.load_half(SOURCE),
        wc_flags: wc_flags(flags),
        ..blank(queues.qpn(), wr_id)
    })
}

/// Delivers what an entry completes that [`sent`] left alone.
#[inline(always)]
fn other(queues: &Queues, block: WrittenBlock<'_>, mut deliver: impl FnMut(ibv_wc)) {
    // The last word is used as it was when its phase was seen.
    let [w0, w1, w2] = block.load_first();
    let cqe = Cqe::decode(&[[w0, w1, w2, 0, 0, 0, 0, block.last()]]);
    let receive = cqe.flags.contains(Flags::RECEIVE);
    let wr_id = retire(queues, cqe.wqe_index, receive);
    if cqe.status != Status::Success {
        let Cqe { status, vendor_code, opcode, .. } = cqe;
        let why = Failure { status, vendor_code, opcode, receive };
        return deliver(failed(queues.qpn(), wr_id, why));
    }
    deliver(ended(queues.qpn(), &cqe, wr_id, receive));
}

/// The completion of an entry that says that a work request succeeded.
#[inline(always)]
fn ended(qpn: u32, cqe: &Cqe, wr_id: Option<u64>, receive: bool) -> ibv_wc {
    let Some(wr_id) = wr_id else {
        return garbled(qpn, 0, VENDOR_UNKNOWN_REQUEST, receive);
    };
    let Some(opcode) = wc_opcode(cqe.opcode, receive) else {
        return garbled(qpn, wr_id, VENDOR_UNKNOWN_CODE, receive);
    };
    succeeded(qpn, cqe, wr_id, opcode)
}

/// The completion of an entry of a shared receive queue of an XRC domain; `None` where it is of none that
/// completes here. Its QP, the target, may be any program's.
#[cold]
#[inline(never)]
fn of_srq(srqs: &[Arc<SharedReceiveQueue>], block: WrittenBlock<'_>) -> Option<ibv_wc> {
    let [w0, w1, w2] = block.load_first();
    let cqe = Cqe::decode(&[[w0, w1, w2, 0, block.load_word(SRQN), 0, 0, block.last()]]);
    if !cqe.flags.contains(Flags::XRC | Flags::RECEIVE) {
        return None;
    }
    let srq = srqs.iter().find(|srq| srq.srqn == cqe.srqn)?;
    let wr_id = srq.retire(cqe.wqe_index);
    let Cqe { qpn, status, vendor_code, opcode, .. } = cqe;
    Some(match status {
        Status::Success => ended(qpn, &cqe, wr_id, true),
        _ => failed(qpn, wr_id, Failure { status, vendor_code, opcode, receive: true }),
    })
}

/// The completion of a work request that succeeded.
#[inline(always)]
fn succeeded(qpn: u32, cqe: &Cqe, wr_id: u64, opcode: u32) -> ibv_wc {
    ibv_wc {
        opcode,
        byte_len: cqe.byte_count,
        __bindgen_anon_1: ibv_wc__bindgen_ty_1 { imm_data: cqe.immediate },
        src_qp: cqe.source_qpn,
        wc_flags: wc_flags(cqe.flags),
        ..blank(qpn, wr_id)
    }
}

/// Takes back the work request that an entry names.
#[inline(always)]
fn retire(queues: &Queues, wqe_index: u32, receive: bool) -> Option<u64> {
    if !receive {
        return queues.send.retire(wqe_index);
    }
    retire_receive(queues, wqe_index)
}

/// Takes back the receive whose entry has that tag.
#[inline(always)]
fn retire_receive(queues: &Queues, tag: u32) -> Option<u64> {
    // Where it has a shared queue, nothing is ever in its own.
    queues.receive.retire(tag).or_else(|| queues.shared.as_ref()?.retire(tag))
}

/// The `ibv_wc_flags` of an entry's flags.
#[inline(always)]
fn wc_flags(flags: Flags) -> u32 {
    // IMMEDIATE (2) is IBV_WC_WITH_IMM (2), INVALIDATED (4) becomes IBV_WC_WITH_INV (8).
    const _: () = assert!(Flags::IMMEDIATE.bits() as u32 == ibv::IBV_WC_WITH_IMM);
    const _: () = assert!((Flags::INVALIDATED.bits() as u32) << 1 == ibv::IBV_WC_WITH_INV);
    // and GRH (16) becomes IBV_WC_GRH (1).
    const _: () = assert!((Flags::GRH.bits() as u32) >> 4 == ibv::IBV_WC_GRH);
    let bits = u32::from(flags.bits());
    (bits & ibv::IBV_WC_WITH_IMM)
        | ((bits << 1) & ibv::IBV_WC_WITH_INV)
        | ((bits >> 4) & ibv::IBV_WC_GRH)
}

/// A completion with nothing to tell.
#[inline(always)]
pub(crate) fn blank(qpn: u32, wr_id: u64) -> ibv_wc {
    ibv_wc {
        wr_id,
        status: ibv::IBV_WC_SUCCESS,
        opcode: ibv::IBV_WC_SEND,
        vendor_err: 0,
        byte_len: 0,
        __bindgen_anon_1: ibv_wc__bindgen_ty_1 { imm_data: 0 },
        qp_num: qpn,
        src_qp: 0,
        wc_flags: 0,
        pkey_index: 0,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
    }
}

fn error(qpn: u32, wr_id: u64, status: u32, vendor_err: u32, receive: bool) -> ibv_wc {
    let opcode = if receive { ibv::IBV_WC_RECV } else { ibv::IBV_WC_SEND };
    ibv_wc { status, opcode, vendor_err, ..blank(qpn, wr_id) }
}

/// The completion of an entry that cannot be: said aloud, with the QP.
///
/// An entry without an outstanding work request has `wr_id` 0.
#[cold]
fn garbled(qpn: u32, wr_id: u64, vendor_err: u32, receive: bool) -> ibv_wc {
    error(qpn, wr_id, ibv::IBV_WC_GENERAL_ERR, vendor_err, receive)
}

/// The reason for which a work request failed, as its entry has it.
#[derive(Clone, Copy)]
struct Failure {
    status: Status,
    vendor_code: u8,
    opcode: Opcode,
    receive: bool,
}

/// The completion of a work request that failed.
#[cold]
fn failed(qpn: u32, wr_id: Option<u64>, why: Failure) -> ibv_wc {
    let Failure { status, vendor_code, opcode, receive } = why;
    let Some(wr_id) = wr_id else {
        return garbled(qpn, 0, VENDOR_UNKNOWN_REQUEST, receive);
    };
    let Some(status) = wc_status(status) else {
        return garbled(qpn, wr_id, VENDOR_UNKNOWN_CODE, receive);
    };
    let failed = error(qpn, wr_id, status, u32::from(vendor_code), receive);
    ibv_wc { opcode: wc_opcode(opcode, receive).unwrap_or(failed.opcode), ..failed }
}

#[cfg(test)]
pub(crate) mod tests;
