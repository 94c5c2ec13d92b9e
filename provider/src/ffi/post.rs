//! Posting work requests.

use std::ffi::c_int;

use fpga_regs::engine::wqe::{MAX_INLINE, MAX_SGE, SEND_MAX_BLOCKS, SEND_PAYLOAD_OFFSET};
use verbs_sys::v44::verbs::{self as ibv, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge};

use super::qp::own;
use crate::sq::SendBatch;
use crate::wr::{InlineData, Payload, SendRequest};

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
    // SAFETY: as the caller promises.
    let sges = unsafe { elements(wr.sg_list, wr.num_sge)? };
    // Only what the operation uses is read: the rest of the structure need not be initialised.
    let (mut remote_address, mut rkey, mut immediate) = (0, 0, 0);
    if matches!(
        wr.opcode,
        ibv::IBV_WR_RDMA_WRITE | ibv::IBV_WR_RDMA_WRITE_WITH_IMM | ibv::IBV_WR_RDMA_READ
    ) {
        // SAFETY: requests of these operations have the `rdma` variant.
        let rdma = unsafe { &wr.wr.rdma };
        (remote_address, rkey) = (rdma.remote_addr, rdma.rkey);
    }
    if matches!(wr.opcode, ibv::IBV_WR_RDMA_WRITE_WITH_IMM | ibv::IBV_WR_SEND_WITH_IMM) {
        // SAFETY: requests of these operations have the `imm_data` variant.
        immediate = unsafe { wr.__bindgen_anon_1.imm_data };
    }
    let inline;
    let payload = if wr.send_flags & ibv::IBV_SEND_INLINE == 0 {
        Payload::Sges(sges)
    } else {
        // SAFETY: as the caller promises.
        inline = unsafe { gather(sges)? };
        Payload::Inline(&inline)
    };
    batch.push(&SendRequest {
        wr_id: wr.wr_id,
        opcode: wr.opcode,
        flags: wr.send_flags,
        immediate,
        remote_address,
        rkey,
        payload,
    })
}

/// The elements of a request; EINVAL for more than any queue takes.
///
/// # Safety
/// `list` has `count` elements.
#[inline(always)]
unsafe fn elements<'a>(list: *const ibv_sge, count: c_int) -> Result<&'a [ibv_sge], i32> {
    match count {
        0 => Ok(&[]),
        1.. if count as usize <= MAX_SGE && !list.is_null() => {
            // SAFETY: as the caller promises; the program leaves the list alone meanwhile.
            Ok(unsafe { std::slice::from_raw_parts(list, count as usize) })
        }
        _ => Err(libc::EINVAL),
    }
}

/// Copies the bytes of an inline request; EINVAL for more than any entry holds.
///
/// # Safety
/// The memory the elements name can be read. (It need not be registered.)
#[inline(never)]
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
        for count in [-1, 17, c_int::MIN, c_int::MAX] {
            // SAFETY: the call fails before it looks at the list.
            assert_eq!(unsafe { elements(std::ptr::dangling(), count) }.err(), Some(libc::EINVAL));
        }
        // SAFETY: as above.
        assert_eq!(unsafe { elements(std::ptr::null(), 1) }.err(), Some(libc::EINVAL));
        // SAFETY: there are no elements.
        assert!(unsafe { elements(std::ptr::null(), 0) }.is_ok_and(<[_]>::is_empty));
    }
}
