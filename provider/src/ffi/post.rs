//! Posting work requests.

use std::ffi::c_int;
use std::slice;

use crate::abi::verbs::{
    self as ibv, ibv_mw, ibv_mw_bind, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_srq,
};
use fpga_regs::engine::wqe::{Atomic, Datagram};

use super::ah;
use super::mw;
use super::payload::{copy_inline, elements, inline_length, pieces};
use super::pd::are_one;
use super::qp::own;
use super::srq;
use crate::lock::QueueGuard;
use crate::rq::ReceiveQueue;
use crate::sq::{Cursor, SendBatch, SendQueue};
use crate::wr::{AtomicRequest, KeyChange, KeyRequest, Payload, SendRequest};

pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    list: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the program passes a QP of this provider.
    let queue = &unsafe { own(qp) }.queues.send;
    let Some(guard) = queue.lock_at_once() else {
        // SAFETY: as the program promises.
        return unsafe { post_waiting(queue, list, bad) };
    };
    // SAFETY: as the program promises.
    let Some(wr) = (unsafe { only(list) }) else {
        // SAFETY: as the program promises.
        return unsafe { post_list(queue, guard, list, bad) };
    };
    if wr.send_flags >= ibv::IBV_SEND_INLINE {
        // SAFETY: as the program promises; the list is of that one request.
        return unsafe { post_one::<true>(queue, guard, list, bad) };
    }
    // SAFETY: as above.
    unsafe { post_one::<false>(queue, guard, list, bad) }
}

/// As [`post_send`], one request of one element, which may be inline or is not. Each kind is apart, as lists are: their
/// common part is done before any of them needs a register more than a call leaves free.
///
/// # Safety
/// As [`post_send`]; the list is one request as [`push_inline`] or [`push_usual`] takes it.
#[inline(never)]
unsafe fn post_one<const INLINE: bool>(
    queue: &SendQueue,
    guard: QueueGuard<'_>,
    list: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    let batch = SendBatch::new(queue, guard);
    let (queue, cursor, end) = batch.position();
    let pushed = if INLINE {
        // SAFETY: as the caller promises.
        unsafe { push_inline(queue, cursor, end, &*list) }
    } else {
        // SAFETY: as the caller promises.
        unsafe { push_usual(queue, cursor, end, &*list) }
    };
    if let Some(cursor) = pushed {
        batch.post(cursor);
        return 0;
    }
    // SAFETY: as the caller promises.
    unsafe { post_list(queue, batch.into_guard(), list, bad) }
}

/// The request that a list is of, if it is one request of one element.
///
/// # Safety
/// As [`post_send`].
#[inline(always)]
unsafe fn only<'a>(list: *mut ibv_send_wr) -> Option<&'a ibv_send_wr> {
    // SAFETY: as the caller promises.
    unsafe { list.as_ref() }.filter(|wr| wr.next.is_null() && wr.num_sge == 1)
}

/// Pushes a request of one element, not inline, along a connection: the usual case, which needs fewer registers
/// than others. Where it is another, or cannot be posted, it answers `None` and nothing is pushed.
///
/// # Safety
/// The request is of one element, which is there.
#[inline(always)]
unsafe fn push_usual(
    queue: &SendQueue,
    cursor: Cursor,
    end: u32,
    wr: &ibv_send_wr,
) -> Option<Cursor> {
    // No flag behind INLINE can be posted.
    if wr.send_flags >= ibv::IBV_SEND_INLINE {
        return None;
    }
    // SAFETY: as the caller promises.
    let sge = unsafe { wr.sg_list.as_ref() }?;
    let shape = queue.shape();
    let operation = shape.operations.get_connected(wr.opcode)?;
    let flags = shape.flags.get(wr.send_flags).ok()?;
    // Every entry has room for one element.
    let (how, payload) = ((operation, flags), Payload::Sges(slice::from_ref(sge)));
    // SAFETY: the operation reads fields that the request has.
    let (remote, immediate) = (|| unsafe { remote(wr) }, || unsafe { immediate(wr) });
    queue.push_admitted((cursor, end), wr.wr_id, how, payload, remote, immediate).ok()
}

/// Pushes a request of one inline element along a connection: the usual case of those that are inline. Where it
/// is another, or cannot be posted, it answers `None` and nothing is pushed.
///
/// # Safety
/// The request is of one element, which is there with the memory that it names; its flags have INLINE, or one
/// behind it, with which no request can be posted.
#[inline(always)]
unsafe fn push_inline(
    queue: &SendQueue,
    cursor: Cursor,
    end: u32,
    wr: &ibv_send_wr,
) -> Option<Cursor> {
    // SAFETY: as the caller promises.
    let sge = unsafe { wr.sg_list.as_ref() }?;
    let shape = queue.shape();
    let operation = shape.operations.get_connected_inline(wr.opcode)?;
    let flags = shape.flags.get(wr.send_flags).ok()?;
    let &ibv::ibv_sge { addr, length, .. } = sge;
    if length > shape.max_inline {
        return None;
    }
    let (how, payload) = ((operation, flags), Payload::Inline(length));
    // SAFETY: the operation reads fields that the request has.
    let (remote, immediate) = (|| unsafe { remote(wr) }, || unsafe { immediate(wr) });
    let pushed = queue.push_admitted((cursor, end), wr.wr_id, how, payload, remote, immediate).ok();
    if pushed.is_some() {
        let piece = (addr as *const u8, length as usize);
        // SAFETY: as the caller promises.
        unsafe { copy_inline(queue.entry(cursor), std::iter::once(piece)) };
    }
    pushed
}

/// As [`post_send`], waiting for others that post.
///
/// # Safety
/// As [`post_send`].
#[cold]
#[inline(never)]
unsafe fn post_waiting(
    queue: &SendQueue,
    list: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    match queue.begin() {
        // SAFETY: as the caller promises.
        Ok(batch) => unsafe { post_list(queue, batch.into_guard(), list, bad) },
        Err(errno) => {
            // SAFETY: the program passes a place for the request that failed.
            unsafe { bad.write(list) };
            errno
        }
    }
}

/// Posts a list of any requests to a queue that is open.
///
/// # Safety
/// As [`post_send`].
#[inline(never)]
unsafe fn post_list(
    queue: &SendQueue,
    guard: QueueGuard<'_>,
    list: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    let mut batch = SendBatch::new(queue, guard);
    let (queue, mut cursor, end) = batch.position();
    let (mut next, mut errno) = (list, 0);
    // SAFETY: the program passes a list of requests that it leaves alone during the call.
    while let Some(wr) = unsafe { next.as_ref() } {
        let usual = match wr.num_sge {
            // SAFETY: as above, with the memory to which the request points.
            1 => unsafe { push_usual(queue, cursor, end, wr) },
            _ => None,
        };
        let pushed = match usual {
            Some(pushed) => Ok(pushed),
            // SAFETY: as above.
            None => unsafe { push_any(queue, cursor, end, wr) },
        };
        match pushed {
            Ok(pushed) => cursor = pushed,
            Err(failed) => {
                // SAFETY: as above.
                unsafe { bad.write(next) };
                crate::log::not_posted("ibv_post_send", (wr.opcode, wr.send_flags), failed);
                errno = failed;
                break;
            }
        }
        next = wr.next;
    }
    batch.advance(cursor);
    batch.finish();
    errno
}

/// Posts one request of any kind.
///
/// # Safety
/// The request's elements are there, and with inline data the memory they name.
#[inline(never)]
unsafe fn push_any(
    queue: &SendQueue,
    cursor: Cursor,
    end: u32,
    wr: &ibv_send_wr,
) -> Result<Cursor, i32> {
    // SAFETY: as the caller promises.
    match unsafe {
        with_payload(queue, cursor, wr, |payload| push_payload(queue, cursor, end, wr, payload))
    } {
        // SAFETY: as the caller promises.
        Err(libc::EOPNOTSUPP) => unsafe { push_rare(queue, cursor, end, wr) },
        pushed => pushed,
    }
}

/// Finds the payload of a request, which goes to the cursor, and posts it with that.
///
/// # Safety
/// As [`push_any`].
#[inline(always)]
unsafe fn with_payload(
    queue: &SendQueue,
    cursor: Cursor,
    wr: &ibv_send_wr,
    push: impl FnOnce(Payload<'_>) -> Result<Cursor, i32>,
) -> Result<Cursor, i32> {
    // SAFETY: as the caller promises.
    let sges = unsafe { elements(wr.sg_list, wr.num_sge)? };
    if wr.send_flags & ibv::IBV_SEND_INLINE == 0 {
        return push(Payload::Sges(sges));
    }
    if sges.len() > queue.shape().max_sge as usize {
        return Err(libc::EINVAL);
    }
    let pushed = push(Payload::Inline(inline_length(pieces(sges))?))?;
    // SAFETY: as the caller promises.
    unsafe { copy_inline(queue.entry(cursor), pieces(sges)) };
    Ok(pushed)
}

/// Posts a request along XRC.
///
/// # Safety
/// As [`push_any`].
unsafe fn push_xrc(
    queue: &SendQueue,
    cursor: Cursor,
    end: u32,
    wr: &ibv_send_wr,
) -> Result<Cursor, i32> {
    let push = |payload: Payload<'_>| {
        let request =
            SendRequest { wr_id: wr.wr_id, opcode: wr.opcode, flags: wr.send_flags, payload };
        // SAFETY: requests along XRC have this variant.
        let srqn = unsafe { wr.qp_type.xrc.remote_srqn };
        // SAFETY: requests of the operations it is asked for have the `rdma` variant.
        let remote = || unsafe { (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey) };
        // SAFETY: requests of the operations it is asked for have the `imm_data` variant.
        let immediate = || unsafe { wr.__bindgen_anon_1.imm_data };
        queue.push_xrc(cursor, end, &request, srqn, remote, immediate)
    };
    // SAFETY: as the caller promises.
    unsafe { with_payload(queue, cursor, wr, push) }
}

/// Posts an operation that is not in the table of the usual ones.
///
/// # Safety
/// As [`push_any`].
#[cold]
#[inline(never)]
unsafe fn push_rare(
    queue: &SendQueue,
    cursor: Cursor,
    end: u32,
    wr: &ibv_send_wr,
) -> Result<Cursor, i32> {
    if queue.shape().operations.along_xrc(wr.opcode).is_ok() {
        // SAFETY: as the caller promises.
        return unsafe { push_xrc(queue, cursor, end, wr) };
    }
    if queue.shape().operations.key_change(wr.opcode).is_err() {
        // SAFETY: as the caller promises.
        return unsafe { push_atomic(queue, cursor, end, wr) };
    }
    let change = if wr.opcode == ibv::IBV_WR_BIND_MW {
        // SAFETY: binds have the `bind_mw` variant, with a window of this provider and a region.
        unsafe {
            let bind = wr.__bindgen_anon_2.bind_mw;
            mw::binding_type_2(bind.mw, bind.rkey, &bind.bind_info)?
        }
    } else {
        // SAFETY: requests that take a key back have this variant.
        KeyChange::Invalidate { rkey: unsafe { wr.__bindgen_anon_1.invalidate_rkey } }
    };
    let request = KeyRequest { wr_id: wr.wr_id, flags: wr.send_flags, change };
    queue.push_key_change(cursor, end, wr.opcode, &request)
}

/// Posts an atomic.
///
/// # Safety
/// As [`push_any`].
#[cold]
#[inline(never)]
unsafe fn push_atomic(
    queue: &SendQueue,
    cursor: Cursor,
    end: u32,
    wr: &ibv_send_wr,
) -> Result<Cursor, i32> {
    queue.shape().operations.atomic(wr.opcode)?;
    // SAFETY: as the caller promises.
    let [result] = (unsafe { elements(wr.sg_list, wr.num_sge)? }) else { return Err(libc::EINVAL) };
    // SAFETY: atomics have the `atomic` variant.
    let (remote, value) = unsafe {
        let atomic = &raw const wr.wr.atomic;
        (((*atomic).remote_addr, (*atomic).rkey), (*atomic).compare_add)
    };
    let operands = if wr.opcode == ibv::IBV_WR_ATOMIC_CMP_AND_SWP {
        // SAFETY: as above; an addition need not initialise the field that it does not use.
        let swap_add = unsafe { wr.wr.atomic.swap };
        Atomic { swap_add, compare: value }
    } else {
        Atomic { swap_add: value, compare: 0 }
    };
    let srqn = match queue.shape().operations.name_srq() {
        // SAFETY: requests along XRC have this variant.
        true => unsafe { wr.qp_type.xrc.remote_srqn },
        false => 0,
    };
    let request = AtomicRequest {
        wr_id: wr.wr_id,
        opcode: wr.opcode,
        flags: wr.send_flags,
        remote,
        srqn,
        operands,
        result,
    };
    queue.push_atomic(cursor, end, &request)
}

/// Remote memory, its address and key.
///
/// # Safety
/// The request's operation has that.
#[inline(always)]
unsafe fn remote(wr: &ibv_send_wr) -> (u64, u32) {
    // SAFETY: requests of such an operation have the `rdma` variant.
    unsafe { (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey) }
}

/// Immediate data.
///
/// # Safety
/// The request's operation has that.
#[inline(always)]
unsafe fn immediate(wr: &ibv_send_wr) -> u32 {
    // SAFETY: requests of such an operation have the `imm_data` variant.
    unsafe { wr.__bindgen_anon_1.imm_data }
}

/// Reads the fields that the operation uses: the rest of the structure need not be initialised.
#[inline(always)]
fn push_payload(
    queue: &SendQueue,
    cursor: Cursor,
    end: u32,
    wr: &ibv_send_wr,
    payload: Payload<'_>,
) -> Result<Cursor, i32> {
    let request = SendRequest { wr_id: wr.wr_id, opcode: wr.opcode, flags: wr.send_flags, payload };
    queue.push(
        cursor,
        end,
        &request,
        // SAFETY: it is asked for where the operation has it.
        || unsafe { remote(wr) },
        || {
            // SAFETY: requests of the operations it is asked for have the `ud` variant, with an address
            // handle of this provider, or none.
            unsafe {
                let ud = &raw const wr.wr.ud;
                let ah = ah::number((*ud).ah)?;
                Some(Datagram { ah, qpn: (*ud).remote_qpn, qkey: (*ud).remote_qkey })
            }
        },
        // SAFETY: it is asked for where the operation has it.
        || unsafe { immediate(wr) },
    )
}

/// Binds a window of type 1, whose next key this side chooses. libibverbs has checked its type.
pub(super) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> c_int {
    // SAFETY: the program passes a QP and a window of this provider, and its binding; nobody else
    // binds that window meanwhile.
    super::errno("ibv_bind_mw", unsafe { bind_type_1(qp, &mut *mw, &*bind) })
}

/// # Safety
/// QP and window are ones of this provider, the region one of libibverbs' or null.
unsafe fn bind_type_1(
    qp: *mut ibv_qp,
    mw: &mut ibv_mw,
    bind: &ibv_mw_bind,
) -> crate::error::Result<()> {
    const REQUEST: &str = "the QP does not take its request, by type, state, room or the flags";
    // SAFETY: as the caller promises; the domains of both live as long as they do.
    if unsafe { !are_one(mw.pd, (*qp).pd) } {
        return Err(mw::not_bound("the QP is in another domain, or in none")(libc::EPERM));
    }
    // SAFETY: as the caller promises.
    let (rkey, change) = unsafe { mw::binding_type_1(mw, &bind.bind_info)? };
    let request = KeyRequest { wr_id: bind.wr_id, flags: bind.send_flags, change };
    // SAFETY: as the caller promises.
    let mut batch = unsafe { own(qp) }.queues.send.begin().map_err(mw::not_bound(REQUEST))?;
    let (queue, cursor, end) = batch.position();
    let pushed = queue.push_key_change(cursor, end, ibv::IBV_WR_BIND_MW, &request);
    if let Ok(cursor) = pushed {
        batch.advance(cursor);
    }
    batch.finish();
    pushed.map(|_| mw.rkey = rkey).map_err(mw::not_bound(REQUEST))
}

pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the program passes a QP of this provider, and its requests.
    unsafe { post_receives(&own(qp).queues.receive, list, bad) }
}

pub(super) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the program passes a shared receive queue of this provider, and its requests.
    unsafe { post_receives(&srq::own(srq).shared.queue, list, bad) }
}

/// # Safety
/// `list` is a list of requests with their elements, which stays as it is during the call, and `bad` a
/// place for one that fails.
#[inline(always)]
unsafe fn post_receives(
    queue: &ReceiveQueue,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut batch = match queue.begin() {
        Ok(batch) => batch,
        Err(errno) => {
            // SAFETY: the program passes a place for the request that failed.
            unsafe { bad.write(list) };
            return errno;
        }
    };
    let mut next = list;
    // SAFETY: the program passes a list of requests that it leaves alone during the call.
    while let Some(wr) = unsafe { next.as_ref() } {
        // SAFETY: as above, with its elements.
        let sges = unsafe { elements(wr.sg_list, wr.num_sge) };
        if let Err(errno) = sges.and_then(|sges| batch.push(wr.wr_id, sges)) {
            batch.finish();
            // SAFETY: as above.
            unsafe { bad.write(next) };
            return errno;
        }
        next = wr.next;
    }
    batch.finish();
    0
}
