//! Posting work requests.

use std::ffi::c_int;

use fpga_regs::engine::wqe::{MAX_INLINE, MAX_SGE, SEND_MAX_BLOCKS, SEND_PAYLOAD_OFFSET};
use verbs_sys::v44::verbs::{self as ibv, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge};

use super::qp::own;
use crate::lock::QueueGuard;
use crate::sq::{Cursor, SendBatch, SendQueue, Simple};
use crate::wr::{InlineData, Operation, Payload, SendRequest};

pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    list: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the program passes a QP of this provider.
    let queue = &unsafe { own(qp) }.queues.send;
    let Some(mut batch) = queue.begin_at_once() else {
        // SAFETY: as the program promises.
        return unsafe { post_waiting(queue, list, bad) };
    };
    // SAFETY: as the program promises.
    if let Some(cursor) = unsafe { push_only(&batch, list) } {
        batch.advance(cursor);
        batch.finish();
        return 0;
    }
    // SAFETY: as the program promises.
    unsafe { post_list(queue, batch.into_guard(), list, bad) }
}

/// Posts a list that is one request of one element, not inline: the usual case. Where it is not,
/// or the request cannot be posted, it answers `None` and nothing is posted.
///
/// # Safety
/// The list, the request's element, and with inline data the memory it names, are there.
#[inline(always)]
unsafe fn push_only(batch: &SendBatch<'_>, list: *mut ibv_send_wr) -> Option<Cursor> {
    // SAFETY: as the caller promises.
    let wr = unsafe { list.as_ref() }?;
    if !wr.next.is_null() || wr.num_sge != 1 || wr.send_flags >= ibv::IBV_SEND_INLINE {
        return None;
    }
    // SAFETY: as the caller promises.
    let sge = unsafe { wr.sg_list.as_ref() }?;
    batch.push_simple(
        &Simple { opcode: wr.opcode, flags: wr.send_flags, wr_id: wr.wr_id, sge },
        // SAFETY: requests of the operations it is asked for have the `rdma` variant.
        || unsafe { (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey) },
        // SAFETY: requests of the operations it is asked for have the `imm_data` variant.
        || unsafe { wr.__bindgen_anon_1.imm_data },
    )
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
    let mut next = list;
    // SAFETY: the program passes a list of requests that it leaves alone during the call.
    while let Some(wr) = unsafe { next.as_ref() } {
        // SAFETY: as above, with what the request points to.
        if let Err(errno) = unsafe { push(&mut batch, wr) } {
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

/// # Safety
/// The request's elements are there, and with inline data the memory they name.
unsafe fn push(batch: &mut SendBatch<'_>, wr: &ibv_send_wr) -> Result<(), i32> {
    let (queue, cursor, end) = batch.position();
    let operation = queue.shape().operations.get(wr.opcode)?;
    // SAFETY: as the caller promises.
    let sges = unsafe { elements(wr.sg_list, wr.num_sge)? };
    let inline;
    let payload = if wr.send_flags & ibv::IBV_SEND_INLINE == 0 {
        Payload::Sges(sges)
    } else {
        if sges.len() > queue.shape().max_sge as usize {
            return Err(libc::EINVAL);
        }
        // SAFETY: as the caller promises.
        inline = unsafe { gather(sges)? };
        Payload::Inline(&inline)
    };
    batch.advance(queue.push(cursor, end, &request(wr, operation, payload))?);
    Ok(())
}

/// Reads what the operation uses: the rest of the structure need not be initialised.
#[inline(always)]
fn request<'a>(wr: &ibv_send_wr, operation: Operation, payload: Payload<'a>) -> SendRequest<'a> {
    let (mut remote_address, mut rkey, mut immediate) = (0, 0, 0);
    if operation.has_remote() {
        // SAFETY: requests of these operations have the `rdma` variant.
        let rdma = unsafe { &wr.wr.rdma };
        (remote_address, rkey) = (rdma.remote_addr, rdma.rkey);
    }
    if operation.has_immediate() {
        // SAFETY: requests of these operations have the `imm_data` variant.
        immediate = unsafe { wr.__bindgen_anon_1.imm_data };
    }
    let (wr_id, flags) = (wr.wr_id, wr.send_flags);
    SendRequest { wr_id, operation, flags, immediate, remote_address, rkey, payload }
}

/// The elements of a request; EINVAL for more than any queue takes, and for a list that is none.
///
/// # Safety
/// `list` has `count` elements.
#[inline(always)]
unsafe fn elements<'a>(list: *const ibv_sge, count: c_int) -> Result<&'a [ibv_sge], i32> {
    if count == 0 {
        return Ok(&[]);
    }
    // A negative count is a large one.
    let count = count as u32 as usize;
    if count > MAX_SGE || list.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: as the caller promises; the program leaves the list alone meanwhile.
    Ok(unsafe { std::slice::from_raw_parts(list, count) })
}

/// Copies the bytes of an inline request; EINVAL for more than any entry holds.
///
/// # Safety
/// The memory the elements name can be read. (It need not be registered.)
#[inline(always)]
unsafe fn gather(sges: &[ibv_sge]) -> Result<InlineData, i32> {
    let length = sges.iter().fold(0u64, |sum, sge| sum.saturating_add(sge.length.into()));
    if length > MAX_INLINE as u64 {
        return Err(libc::EINVAL);
    }
    let mut data = InlineData { blocks: [[0; 8]; SEND_MAX_BLOCKS], length: length as u32 };
    let mut place = data.blocks.as_mut_ptr().cast::<u8>().wrapping_add(SEND_PAYLOAD_OFFSET);
    for sge in sges.iter().filter(|sge| sge.length > 0) {
        let bytes = sge.length as usize;
        // SAFETY: the source is the program's promise; all lengths together fit behind the header,
        // as was checked; the blocks are plain integers, whose bytes may be anything.
        unsafe { std::ptr::copy_nonoverlapping(sge.addr as *const u8, place, bytes) };
        place = place.wrapping_add(bytes);
    }
    Ok(data)
}

pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the program passes a QP of this provider.
    let queue = &unsafe { own(qp) }.queues.receive;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn sge(bytes: &[u8]) -> ibv_sge {
        ibv_sge { addr: bytes.as_ptr() as u64, length: bytes.len() as u32, lkey: 0 }
    }

    #[test]
    fn inline_data_is_gathered_without_gaps_whatever_its_pieces() {
        let bytes: Vec<u8> = (0..=255).collect();
        let pieces = [sge(&bytes[..3]), sge(&[]), sge(&bytes[3..70]), sge(&bytes[70..256])];
        // SAFETY: the elements name living memory.
        let data = unsafe { gather(&pieces) }.unwrap();
        let words = &data.blocks.as_flattened()[4..];
        let copied: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(data.length, 256);
        assert_eq!(copied[..256], bytes);
        assert!(copied[256..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn inline_data_longer_than_an_entry_is_refused_before_it_is_read() {
        let nowhere = ibv_sge { addr: 8, length: MAX_INLINE as u32, lkey: 0 };
        let one = ibv_sge { addr: 8, length: 1, lkey: 0 };
        // SAFETY: the call fails before it reads.
        assert_eq!(unsafe { gather(&[nowhere, one]) }.err(), Some(libc::EINVAL));
        let huge = ibv_sge { addr: 8, length: u32::MAX, lkey: 0 };
        // SAFETY: as above.
        assert_eq!(unsafe { gather(&[huge; 16]) }.err(), Some(libc::EINVAL));
    }

    #[test]
    fn counts_of_elements_that_cannot_be_are_refused() {
        // SAFETY: the call fails before it looks at the list.
        let errno = |list, count| unsafe { elements(list, count) }.err();
        for count in [-1, 17, c_int::MIN, c_int::MAX] {
            assert_eq!(errno(std::ptr::dangling(), count), Some(libc::EINVAL), "{count}");
        }
        assert_eq!(errno(std::ptr::null(), 1), Some(libc::EINVAL));
        assert_eq!(errno(std::ptr::null(), 0), None);
    }
}
