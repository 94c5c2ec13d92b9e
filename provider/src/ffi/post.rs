//! Posting work requests.

use std::ffi::c_int;

use fpga_regs::engine::wqe::{MAX_INLINE, MAX_SGE, SEND_MAX_BLOCKS, SEND_PAYLOAD_OFFSET};
use verbs_sys::v44::verbs::{self as ibv, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge};

use super::qp::own;
use crate::sq::{Cursor, SendBatch, SendQueue};
use crate::wr::{InlineData, Operation, Payload, SendRequest};

pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    list: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the program passes a QP of this provider.
    let queue = &unsafe { own(qp) }.queues.send;
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
#[inline(always)]
unsafe fn push(batch: &mut SendBatch<'_>, wr: &ibv_send_wr) -> Result<(), i32> {
    let (queue, cursor, end) = batch.position();
    let short = (0..=SHORT_SEND).contains(&wr.num_sge);
    let next = if short && wr.send_flags & ibv::IBV_SEND_INLINE == 0 {
        let operation = queue.shape().operations.get(wr.opcode)?;
        // SAFETY: as the caller promises.
        let sges = unsafe { elements(wr.sg_list, wr.num_sge)? };
        queue.push(cursor, end, &request(wr, operation, Payload::Sges(sges)))?
    } else {
        // SAFETY: as the caller promises.
        unsafe { push_long(queue, cursor, end, wr)? }
    };
    batch.advance(next);
    Ok(())
}

/// Elements up to which the way of a request is kept short.
const SHORT_SEND: c_int = 2;

/// Posts a request of more than one block, or with inline data.
///
/// # Safety
/// As [`push`].
#[inline(never)]
unsafe fn push_long(
    queue: &SendQueue,
    cursor: Cursor,
    end: u32,
    wr: &ibv_send_wr,
) -> Result<Cursor, i32> {
    let operation = queue.shape().operations.get(wr.opcode)?;
    // SAFETY: as the caller promises.
    let sges = unsafe { elements(wr.sg_list, wr.num_sge)? };
    if wr.send_flags & ibv::IBV_SEND_INLINE == 0 {
        return queue.push(cursor, end, &request(wr, operation, Payload::Sges(sges)));
    }
    if sges.len() > queue.shape().max_sge as usize {
        return Err(libc::EINVAL);
    }
    // SAFETY: as the caller promises.
    let data = unsafe { gather(sges)? };
    queue.push(cursor, end, &request(wr, operation, Payload::Inline(&data)))
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
