//! The extended form of a completion queue: completions one by one, of which the program reads the fields that it asked
//! for.

use std::ffi::c_int;

use crate::abi::verbs::{self as ibv, ibv_cq_ex, ibv_poll_cq_attr, ibv_wc, ibv_wc_opcode};
use hostmem::TurnGuard;

use super::super::errno;
use super::CqObject;
use crate::cq::CqState;
use crate::error::invalid;
use crate::poll::SENT;

/// The state between the start and the end of a poll: that has the queue's [turn](hostmem::Turn), and rests between its
/// calls.
pub(super) struct Polling {
    /// The completion that is read now, without the fields of the public structure.
    completion: CompletionFields,
    /// When the card wrote it.
    timestamp: u64,
}

/// The fields of a completion that functions read. (Service levels and LIDs are another network's.)
#[derive(Clone, Copy, Default)]
struct CompletionFields {
    opcode: u32,
    byte_len: u32,
    qp_num: u32,
    vendor_err: u32,
    imm_data: u32,
    src_qp: u32,
    wc_flags: u32,
}

impl Polling {
    /// Of a queue without a poll.
    pub(super) fn none() -> Self {
        Self { completion: CompletionFields::default(), timestamp: 0 }
    }
}

/// The fields of a completion that a program may ask for, and the function that reads each.
///
/// A card has its own clock and not the time of day; it looks at no VLAN, flow or tag.
pub(super) const OFFERED: u64 = (ibv::IBV_WC_EX_WITH_BYTE_LEN
    | ibv::IBV_WC_EX_WITH_IMM
    | ibv::IBV_WC_EX_WITH_QP_NUM
    | ibv::IBV_WC_EX_WITH_SRC_QP
    | ibv::IBV_WC_EX_WITH_SLID
    | ibv::IBV_WC_EX_WITH_SL
    | ibv::IBV_WC_EX_WITH_DLID_PATH_BITS
    | ibv::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP) as u64;

/// Puts the functions of a poll into a queue: those that read the requested fields of [`OFFERED`].
pub(super) fn furnish(cq: &mut ibv_cq_ex, asked: u64) {
    let is_asked = |flag: u32| asked & u64::from(flag) != 0;
    if is_asked(ibv::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP) {
        cq.start_poll = Some(start_poll::<true>);
        cq.next_poll = Some(next_poll::<true>);
    } else {
        cq.start_poll = Some(start_poll::<false>);
        cq.next_poll = Some(next_poll::<false>);
    }
    cq.end_poll = Some(end_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(read_vendor_err);
    cq.read_wc_flags = Some(read_wc_flags);
    let reads_u32: [(u32, &mut Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>, _); 5] = [
        (ibv::IBV_WC_EX_WITH_BYTE_LEN, &mut cq.read_byte_len, read_byte_len as _),
        (ibv::IBV_WC_EX_WITH_IMM, &mut cq.read_imm_data, read_imm_data as _),
        (ibv::IBV_WC_EX_WITH_QP_NUM, &mut cq.read_qp_num, read_qp_num as _),
        (ibv::IBV_WC_EX_WITH_SRC_QP, &mut cq.read_src_qp, read_src_qp as _),
        (ibv::IBV_WC_EX_WITH_SLID, &mut cq.read_slid, read_slid as _),
    ];
    for (flag, place, read) in reads_u32 {
        *place = is_asked(flag).then_some(read);
    }
    cq.read_sl = is_asked(ibv::IBV_WC_EX_WITH_SL).then_some(read_sl);
    cq.read_dlid_path_bits =
        is_asked(ibv::IBV_WC_EX_WITH_DLID_PATH_BITS).then_some(read_dlid_path_bits);
    cq.read_completion_ts =
        is_asked(ibv::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP).then_some(read_completion_ts);
}

/// Puts a completion where the program and the functions below find it.
///
/// # Safety
/// The queue is one of this provider, which the caller polls.
#[inline(always)]
unsafe fn put<const TIMED: bool>(cq: *mut CqObject, completion: &ibv_wc, time: u64) {
    let ibv_wc { opcode, byte_len, qp_num, vendor_err, src_qp, wc_flags, .. } = *completion;
    // SAFETY: both variants are one initialised u32.
    let imm_data = unsafe { completion.__bindgen_anon_1.imm_data };
    // SAFETY: the queue is the caller's while it polls, and so are these places.
    unsafe {
        let seen = &raw mut (*cq).verbs.__bindgen_anon_1.cq_ex;
        (*seen.cast::<ibv_cq_ex>()).wr_id = completion.wr_id;
        (*seen.cast::<ibv_cq_ex>()).status = completion.status;
        (*cq).polling.completion =
            CompletionFields { opcode, byte_len, qp_num, vendor_err, imm_data, src_qp, wc_flags };
        // Nobody can read another's.
        if TIMED {
            (*cq).polling.timestamp = time;
        }
    }
}

unsafe extern "C" fn start_poll<const TIMED: bool>(
    cq: *mut ibv_cq_ex,
    attr: *mut ibv_poll_cq_attr,
) -> c_int {
    // SAFETY: the program passes its attributes.
    if unsafe { (*attr).comp_mask } != 0 {
        return unknown_bits();
    }
    let own = cq.cast::<CqObject>();
    // SAFETY: the program passes a queue of this provider, which it does not destroy before the end of
    // the poll.
    let queue = unsafe { (*own).queue.as_ref() };
    let Some(mut state) = queue.hold_at_once() else {
        // SAFETY: as above.
        return unsafe { start_waiting::<TIMED>(own) };
    };
    // SAFETY: the completion goes to the thread that polls.
    let mut deliver = |completion, time| unsafe { put::<TIMED>(own, &completion, time) };
    if queue.take_usual::<TIMED, SENT>(&mut state, &mut deliver).is_none() {
        // SAFETY: as above.
        return unsafe { start_unusual::<TIMED>(own, state) };
    }
    state.rest();
    0
}

/// As [`start_poll`], if another thread polls, or none can.
///
/// # Safety
/// As [`start_poll`].
#[cold]
#[inline(never)]
unsafe fn start_waiting<const TIMED: bool>(own: *mut CqObject) -> c_int {
    // SAFETY: as in `start_poll`.
    match unsafe { (*own).queue.as_ref() }.hold() {
        // SAFETY: as the caller promises.
        Ok(state) => unsafe { start_unusual::<TIMED>(own, state) },
        Err(errno) => errno,
    }
}

/// As [`start_poll`], behind the queue's turn, for any first completion: apart, so that it takes no registers there.
///
/// # Safety
/// As [`start_poll`]; the state is that queue's.
#[inline(never)]
unsafe fn start_unusual<const TIMED: bool>(
    own: *mut CqObject,
    state: TurnGuard<'_, CqState>,
) -> c_int {
    // SAFETY: as in `start_poll`.
    let queue = unsafe { (*own).queue.as_ref() };
    // SAFETY: the completion goes to the thread that polls.
    let deliver = |completion, time| unsafe { put::<TIMED>(own, &completion, time) };
    match queue.first_poll::<TIMED>(state, deliver) {
        Ok(state) => {
            state.rest();
            0
        }
        Err(errno) => errno,
    }
}

#[cold]
#[inline(never)]
fn unknown_bits() -> c_int {
    errno("ibv_start_poll", Err(invalid!("the poll's attribute mask has unknown bits")))
}

unsafe extern "C" fn next_poll<const TIMED: bool>(cq: *mut ibv_cq_ex) -> c_int {
    let own = cq.cast::<CqObject>();
    // SAFETY: the program passes a queue of this provider that it polls.
    let queue = unsafe { (*own).queue.as_ref() };
    // SAFETY: as above; the calls of a poll do not overlap.
    let Some(mut state) = (unsafe { queue.state.resume() }) else { return libc::EINVAL };
    // SAFETY: the completion goes to the thread that polls, beside the one that is held.
    let deliver = |completion, time| unsafe { put::<TIMED>(own, &completion, time) };
    let is_taken = queue.next_poll::<TIMED>(&mut state, deliver);
    state.rest();
    if is_taken { 0 } else { libc::ENOENT }
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: the program passes a queue of this provider that it polls.
    let queue = unsafe { (*cq.cast::<CqObject>()).queue.as_ref() };
    // SAFETY: as above; the calls of a poll do not overlap.
    unsafe { queue.state.end() };
}

/// The completion that is read now.
///
/// # Safety
/// The queue is one of this provider, which the caller polls.
#[inline(always)]
unsafe fn completion<'a>(cq: *mut ibv_cq_ex) -> &'a CompletionFields {
    // SAFETY: as the caller promises; nothing is delivered meanwhile.
    unsafe { &(*cq.cast::<CqObject>()).polling.completion }
}

macro_rules! reads {
    ($($name:ident: $type:ty = |$completion:ident| $value:expr;)*) => {
        $(unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $type {
            // SAFETY: the program passes a queue of this provider that it polls.
            let $completion = unsafe { completion(cq) };
            $value
        })*
    };
}

reads! {
    read_opcode: ibv_wc_opcode = |it| it.opcode;
    read_vendor_err: u32 = |it| it.vendor_err;
    read_wc_flags: u32 = |it| it.wc_flags;
    read_byte_len: u32 = |it| it.byte_len;
    read_imm_data: u32 = |it| it.imm_data;
    read_qp_num: u32 = |it| it.qp_num;
    read_src_qp: u32 = |it| it.src_qp;
    read_slid: u32 = |_it| 0;
    read_sl: u8 = |_it| 0;
    read_dlid_path_bits: u8 = |_it| 0;
}

unsafe extern "C" fn read_completion_ts(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: the program passes a queue of this provider that it polls.
    unsafe { (*cq.cast::<CqObject>()).polling.timestamp }
}

#[cfg(test)]
mod tests;
