//! The extended form of a completion queue: completions one by one, of which the program reads what it
//! asked for.

use std::ffi::c_int;

use crate::abi::verbs::{self as ibv, ibv_cq_ex, ibv_poll_cq_attr, ibv_wc, ibv_wc_opcode};
use hostmem::FutexGuard;

use super::super::errno;
use super::CqObject;
use crate::cq::CqState;
use crate::error::invalid;
use crate::poll::blank;

/// What is between the start and the end of a poll.
pub(super) struct Polling {
    /// The queue, which is this poll's.
    held: Option<FutexGuard<'static, CqState>>,
    /// The completion that is read now.
    completion: ibv_wc,
    /// When the card wrote it.
    timestamp: u64,
}

impl Polling {
    /// Of a queue that nobody polls.
    pub(super) fn none() -> Self {
        Self { held: None, completion: blank(0, 0), timestamp: 0 }
    }
}

/// What can be read of a completion, but for that which always can, and the function that reads it.
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

/// Puts the functions of a poll into a queue: those that read what was asked for, of [`OFFERED`].
pub(super) fn furnish(cq: &mut ibv_cq_ex, asked: u64) {
    cq.start_poll = Some(start_poll);
    cq.next_poll = Some(next_poll);
    cq.end_poll = Some(end_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(read_vendor_err);
    cq.read_wc_flags = Some(read_wc_flags);
    let is_asked = |flag: u32| asked & u64::from(flag) != 0;
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
unsafe fn put(cq: *mut CqObject, completion: ibv_wc, time: u64) {
    // SAFETY: the queue is the caller's while it polls, and so are these places.
    unsafe {
        let seen = &raw mut (*cq).verbs.cq_ex;
        (*seen.cast::<ibv_cq_ex>()).wr_id = completion.wr_id;
        (*seen.cast::<ibv_cq_ex>()).status = completion.status;
        (&raw mut (*cq).polling.completion).write(completion);
        (*cq).polling.timestamp = time;
    }
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the program passes its attributes.
    let mask = unsafe { (*attr).comp_mask };
    if mask != 0 {
        let error = invalid!("the poll's attribute mask {mask:#x} has unknown bits");
        return errno("ibv_start_poll", Err(error));
    }
    let own = cq.cast::<CqObject>();
    // SAFETY: the program passes a queue of this provider, which it does not destroy before the end of
    // the poll; nothing that is held of it goes beyond.
    let queue = unsafe { (*own).queue.as_ref() };
    // SAFETY: what is delivered is delivered to who polls.
    match queue.begin_poll(|completion, time| unsafe { put(own, completion, time) }) {
        Ok(held) => {
            // SAFETY: nobody else polls now.
            unsafe { (&raw mut (*own).polling.held).write(Some(held)) };
            0
        }
        Err(errno) => errno,
    }
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    let own = cq.cast::<CqObject>();
    // SAFETY: the program passes a queue of this provider that it polls.
    let (queue, held) = unsafe { ((*own).queue.as_ref(), &mut (*own).polling.held) };
    let Some(state) = held else { return libc::EINVAL };
    // SAFETY: what is delivered is delivered to who polls, in places beside what is held.
    let found = queue.next_poll(state, |completion, time| unsafe { put(own, completion, time) });
    if found { 0 } else { libc::ENOENT }
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: the program passes a queue of this provider that it polls.
    let held = unsafe { (*cq.cast::<CqObject>()).polling.held.take() };
    drop(held);
}

/// The completion that is read now.
///
/// # Safety
/// The queue is one of this provider, which the caller polls.
#[inline(always)]
unsafe fn completion<'a>(cq: *mut ibv_cq_ex) -> &'a ibv_wc {
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
    // SAFETY: both variants are one initialised u32.
    read_imm_data: u32 = |it| unsafe { it.__bindgen_anon_1.imm_data };
    read_qp_num: u32 = |it| it.qp_num;
    read_src_qp: u32 = |it| it.src_qp;
    read_slid: u32 = |it| u32::from(it.slid);
    read_sl: u8 = |it| it.sl;
    read_dlid_path_bits: u8 = |it| it.dlid_path_bits;
}

unsafe extern "C" fn read_completion_ts(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: the program passes a queue of this provider that it polls.
    unsafe { (*cq.cast::<CqObject>()).polling.timestamp }
}
