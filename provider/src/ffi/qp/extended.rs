//! The extended form of a QP: work requests that a program builds call by call.

use std::ffi::{c_int, c_void};
use std::slice;

use crate::abi::verbs::{
    self as ibv, ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp_ex, ibv_sge,
};
use fpga_regs::engine::qp::QpType;
use fpga_regs::engine::wqe::{Atomic, Datagram};

use super::{QpObject, own};
use crate::error::{Result, unsupported};
use crate::ffi::payload::{copy_inline, elements, inline_length};
use crate::ffi::{ah, mw};
use crate::sq::{Building, Request};
use crate::wr::{KeyChange, KeyRequest, Operations, Payload};

/// An operation that a program can ask for: its flag, its opcode, and the function that puts the operation's builder
/// into a QP.
type SendOp = (ibv::ibv_qp_create_send_ops_flags, ibv::ibv_wr_opcode, fn(&mut ibv_qp_ex));

const SEND_OPS: [SendOp; 10] = [
    (ibv::IBV_QP_EX_WITH_RDMA_WRITE, ibv::IBV_WR_RDMA_WRITE, |qp| {
        qp.wr_rdma_write = Some(wr_rdma_write);
    }),
    (ibv::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, ibv::IBV_WR_RDMA_WRITE_WITH_IMM, |qp| {
        qp.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    }),
    (ibv::IBV_QP_EX_WITH_SEND, ibv::IBV_WR_SEND, |qp| qp.wr_send = Some(wr_send)),
    (ibv::IBV_QP_EX_WITH_SEND_WITH_IMM, ibv::IBV_WR_SEND_WITH_IMM, |qp| {
        qp.wr_send_imm = Some(wr_send_imm);
    }),
    (ibv::IBV_QP_EX_WITH_RDMA_READ, ibv::IBV_WR_RDMA_READ, |qp| {
        qp.wr_rdma_read = Some(wr_rdma_read);
    }),
    (ibv::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, ibv::IBV_WR_ATOMIC_CMP_AND_SWP, |qp| {
        qp.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    }),
    (ibv::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, ibv::IBV_WR_ATOMIC_FETCH_AND_ADD, |qp| {
        qp.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    }),
    (ibv::IBV_QP_EX_WITH_LOCAL_INV, ibv::IBV_WR_LOCAL_INV, |qp| {
        qp.wr_local_inv = Some(wr_local_inv);
    }),
    (ibv::IBV_QP_EX_WITH_BIND_MW, ibv::IBV_WR_BIND_MW, |qp| qp.wr_bind_mw = Some(wr_bind_mw)),
    (ibv::IBV_QP_EX_WITH_SEND_WITH_INV, ibv::IBV_WR_SEND_WITH_INV, |qp| {
        qp.wr_send_inv = Some(wr_send_inv);
    }),
];

/// Refuses operations that cannot be posted to a QP.
pub(super) fn check(asked: u64, operations: &Operations) -> Result<()> {
    let offered = SEND_OPS.iter().filter(|(_, opcode, _)| operations.offers(*opcode));
    let offered = offered.fold(0, |all, (flag, ..)| all | u64::from(*flag));
    match asked & !offered {
        0 => Ok(()),
        lacking => {
            Err(unsupported!("the operations {lacking:#x} of send_ops_flags are not offered"))
        }
    }
}

/// Puts the functions that build work requests into a QP, of operations those that were asked for.
pub(super) fn furnish(qp: &mut ibv_qp_ex, kind: QpType, asked: u64) {
    qp.wr_start = Some(wr_start);
    qp.wr_complete = Some(wr_complete);
    qp.wr_abort = Some(wr_abort);
    qp.wr_set_sge = Some(wr_set_sge);
    qp.wr_set_sge_list = Some(wr_set_sge_list);
    qp.wr_set_inline_data = Some(wr_set_inline_data);
    qp.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    match kind {
        QpType::Ud => qp.wr_set_ud_addr = Some(wr_set_ud_addr),
        QpType::XrcSend => qp.wr_set_xrc_srqn = Some(wr_set_xrc_srqn),
        _ => {}
    }
    for (_, _, put) in SEND_OPS.iter().filter(|(flag, ..)| asked & u64::from(*flag) != 0) {
        put(qp);
    }
}

/// The list that is being built.
///
/// # Safety
/// The QP is one of this provider, of which the caller builds a list: no other thread does, because the
/// list has the queue's lock, or because the program promised it.
#[inline(always)]
unsafe fn building<'a>(qp: *mut ibv_qp_ex) -> &'a mut Building<'static> {
    // SAFETY: as the caller promises.
    unsafe { &mut (*qp.cast::<QpObject>()).building }
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: the program passes a QP of this provider, which it does not destroy before the list ends;
    // nothing that is held of it goes beyond.
    let queue = unsafe { &own(qp.cast()).queues.send };
    // SAFETY: nobody else builds a list once the queue is held.
    Building::begin(queue, move || unsafe { building(qp) });
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the program passes a QP of this provider, of which it ends the list.
    unsafe { building(qp) }.complete()
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: as in `wr_complete`.
    unsafe { building(qp) }.abort();
}

/// A request of an operation.
///
/// # Safety
/// As [`building`].
#[inline(always)]
unsafe fn request<'a>(
    qp: *mut ibv_qp_ex,
    opcode: ibv::ibv_wr_opcode,
    remote: (u64, u32),
    immediate: u32,
) -> Request<'a> {
    // SAFETY: as the caller promises; the program has set both fields, and leaves them alone during the call.
    let (flags, wr_id) = unsafe { ((*qp).wr_flags, &(*qp).wr_id) };
    Request { opcode, flags, wr_id, remote, immediate }
}

/// Adds a request of an operation.
///
/// # Safety
/// As [`building`].
#[inline(always)]
unsafe fn add(
    qp: *mut ibv_qp_ex,
    opcode: ibv::ibv_wr_opcode,
    (address, rkey): (u64, u32),
    immediate: u32,
) {
    // SAFETY: as the caller promises.
    unsafe {
        let request = request(qp, opcode, (address, rkey), immediate);
        if !building(qp).request_at_once(&request) {
            add_other(qp, rkey, address, opcode, immediate);
        }
    }
}

/// As [`add`], behind a request of which something is awaited, or along XRC: apart, so that it takes no
/// registers there. Its arguments stand where those of a WRITE do.
///
/// # Safety
/// As [`building`].
#[cold]
#[inline(never)]
unsafe fn add_other(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    address: u64,
    opcode: ibv::ibv_wr_opcode,
    immediate: u32,
) {
    // SAFETY: as the caller promises.
    unsafe { building(qp).request(request(qp, opcode, (address, rkey), immediate)) };
}

/// Adds an atomic.
///
/// # Safety
/// As [`building`].
unsafe fn add_atomic(
    qp: *mut ibv_qp_ex,
    opcode: ibv::ibv_wr_opcode,
    remote: (u64, u32),
    operands: Atomic,
) {
    // SAFETY: as the caller promises.
    unsafe { building(qp).atomic(request(qp, opcode, remote, 0), operands) };
}

macro_rules! adds {
    ($($name:ident($($argument:ident: $type:ty),*): $opcode:ident, $remote:expr, $immediate:expr;)*) => {
        $(unsafe extern "C" fn $name(qp: *mut ibv_qp_ex, $($argument: $type),*) {
            // SAFETY: the program passes a QP of this provider, of which it builds a list.
            unsafe { add(qp, ibv::$opcode, $remote, $immediate) };
        })*
    };
}

adds! {
    wr_rdma_write(rkey: u32, address: u64): IBV_WR_RDMA_WRITE, (address, rkey), 0;
    wr_rdma_write_imm(rkey: u32, address: u64, immediate: u32):
        IBV_WR_RDMA_WRITE_WITH_IMM, (address, rkey), immediate;
    wr_rdma_read(rkey: u32, address: u64): IBV_WR_RDMA_READ, (address, rkey), 0;
    wr_send(): IBV_WR_SEND, (0, 0), 0;
    wr_send_imm(immediate: u32): IBV_WR_SEND_WITH_IMM, (0, 0), immediate;
    wr_send_inv(rkey: u32): IBV_WR_SEND_WITH_INV, (0, 0), rkey;
}

/// Adds a change of keys.
///
/// # Safety
/// As [`building`].
unsafe fn add_key_change(qp: *mut ibv_qp_ex, opcode: ibv::ibv_wr_opcode, change: KeyChange) {
    // SAFETY: as the caller promises; the program has set both fields.
    let (flags, wr_id) = unsafe { ((*qp).wr_flags, (*qp).wr_id) };
    // SAFETY: as the caller promises.
    unsafe { building(qp) }.key_change(opcode, &KeyRequest { wr_id, flags, change });
}

unsafe extern "C" fn wr_local_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: as in `adds`.
    unsafe { add_key_change(qp, ibv::IBV_WR_LOCAL_INV, KeyChange::Invalidate { rkey }) };
}

unsafe extern "C" fn wr_bind_mw(
    qp: *mut ibv_qp_ex,
    window: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: the program passes a window of this provider, and its binding.
    match unsafe { mw::binding_type_2(window, rkey, &*info) } {
        // SAFETY: as in `adds`.
        Ok(change) => unsafe { add_key_change(qp, ibv::IBV_WR_BIND_MW, change) },
        // SAFETY: as in `adds`.
        Err(errno) => unsafe { building(qp) }.fail(errno),
    }
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: as in `adds`.
    let building = unsafe { building(qp) };
    // SAFETY: the program passes an address handle of this provider, or none.
    match unsafe { ah::number(ah) } {
        Some(ah) => building.target(Datagram { ah, qpn, qkey }),
        None => building.fail(libc::EINVAL),
    }
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, srqn: u32) {
    // SAFETY: as in `adds`.
    unsafe { building(qp) }.srq(srqn);
}

unsafe extern "C" fn wr_atomic_cmp_swp(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    address: u64,
    compare: u64,
    swap_add: u64,
) {
    let operands = Atomic { swap_add, compare };
    // SAFETY: as in `adds`.
    unsafe { add_atomic(qp, ibv::IBV_WR_ATOMIC_CMP_AND_SWP, (address, rkey), operands) };
}

unsafe extern "C" fn wr_atomic_fetch_add(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    address: u64,
    swap_add: u64,
) {
    let operands = Atomic { swap_add, compare: 0 };
    // SAFETY: as in `adds`.
    unsafe { add_atomic(qp, ibv::IBV_WR_ATOMIC_FETCH_AND_ADD, (address, rkey), operands) };
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: as in `adds`.
    if !unsafe { building(qp) }.element(&ibv_sge { addr, length, lkey }) {
        // SAFETY: as in `adds`.
        unsafe { set_sge(qp, lkey, addr, length) };
    }
}

/// As [`wr_set_sge`], of other requests than most are: apart, so that it takes no registers there.
///
/// # Safety
/// As [`building`].
#[inline(never)]
unsafe fn set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let sge = ibv_sge { addr, length, lkey };
    // SAFETY: as the caller promises.
    unsafe { building(qp) }.payload(Payload::Sges(slice::from_ref(&sge)));
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: as in `adds`.
    let building = unsafe { building(qp) };
    // SAFETY: the program passes that many elements.
    match unsafe { elements(list, c_int::try_from(count).unwrap_or(c_int::MAX)) } {
        Ok(sges) => building.payload(Payload::Sges(sges)),
        Err(errno) => building.fail(errno),
    }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, address: *mut c_void, length: usize) {
    let piece = ibv_data_buf { addr: address, length };
    // SAFETY: as the program promises.
    unsafe { set_inline_data(qp, slice::from_ref(&piece)) };
}

unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    let pieces = match count {
        0 => &[],
        // SAFETY: the program passes that many pieces.
        _ => unsafe { slice::from_raw_parts(list, count) },
    };
    // SAFETY: as the program promises.
    unsafe { set_inline_data(qp, pieces) };
}

/// # Safety
/// As [`building`]; the memory of the pieces can be read.
#[inline(always)]
unsafe fn set_inline_data(qp: *mut ibv_qp_ex, pieces: &[ibv_data_buf]) {
    // SAFETY: as the caller promises.
    let building = unsafe { building(qp) };
    let pieces = pieces.iter().map(|piece| (piece.addr.cast_const().cast(), piece.length));
    match inline_length(pieces.clone()) {
        Ok(length) => {
            if let Some(entry) = building.inline(length) {
                // SAFETY: as the caller promises.
                unsafe { copy_inline(entry, pieces) };
            }
        }
        Err(errno) => building.fail(errno),
    }
}
