//! The local side of work requests, as programs give it.

use std::ffi::c_int;
use std::slice;

use crate::abi::verbs::ibv_sge;
use fpga_regs::engine::wqe::{MAX_INLINE, MAX_SGE, SEND_PAYLOAD_OFFSET};
use hostmem::BlockRing;

/// The elements of a request; EINVAL for more than any queue takes, and for a list that is none.
///
/// # Safety
/// `list` has `count` elements.
#[inline(always)]
pub(super) unsafe fn elements<'a>(
    list: *const ibv_sge,
    count: c_int,
) -> Result<&'a [ibv_sge], i32> {
    if count == 0 {
        return Ok(&[]);
    }
    // A negative count is a large one.
    let count = count as u32 as usize;
    if count > MAX_SGE || list.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: as the caller promises; the program leaves the list alone meanwhile.
    Ok(unsafe { slice::from_raw_parts(list, count) })
}

/// The pieces of memory that elements name.
pub(super) fn pieces(sges: &[ibv_sge]) -> impl Iterator<Item = (*const u8, usize)> + Clone {
    sges.iter().map(|sge| (sge.addr as *const u8, sge.length as usize))
}

/// Bytes of an inline request's pieces together; EINVAL for more than any entry holds.
pub(super) fn inline_length(pieces: impl Iterator<Item = (*const u8, usize)>) -> Result<u32, i32> {
    let length = pieces.fold(0usize, |sum, (_, bytes)| sum.saturating_add(bytes));
    if length > MAX_INLINE { Err(libc::EINVAL) } else { Ok(length as u32) }
}

/// Copies the bytes of an inline request into its entry, which has room for them.
///
/// # Safety
/// The memory of the pieces can be read. (It need not be registered.)
#[inline(always)]
pub(super) unsafe fn copy_inline(
    (ring, block): (&BlockRing, u32),
    pieces: impl Iterator<Item = (*const u8, usize)>,
) {
    let mut offset = SEND_PAYLOAD_OFFSET;
    for (piece, bytes) in pieces {
        // SAFETY: as the caller promises.
        unsafe { ring.copy_in(block, offset, piece, bytes) };
        offset = offset.wrapping_add(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doorbell::tests::memory;

    fn sge(bytes: &[u8]) -> ibv_sge {
        ibv_sge { addr: bytes.as_ptr() as u64, length: bytes.len() as u32, lkey: 0 }
    }

    #[test]
    fn inline_data_is_gathered_without_gaps_whatever_its_pieces() {
        let bytes: Vec<u8> = (0..=255).collect();
        let all = [sge(&bytes[..3]), sge(&[]), sge(&bytes[3..70]), sge(&bytes[70..256])];
        assert_eq!(inline_length(pieces(&all)), Ok(256));
        let ring = BlockRing::new(memory(4096), 0, 8).unwrap();
        // SAFETY: the elements name living memory.
        unsafe { copy_inline((&ring, 6), pieces(&all)) };
        let blocks: Vec<_> = (6..11).map(|block| ring.read(block)).collect();
        let copied: Vec<u8> = blocks.iter().flatten().flat_map(|it| it.to_le_bytes()).collect();
        assert_eq!(copied[SEND_PAYLOAD_OFFSET..][..256], bytes);
        assert!(copied[..SEND_PAYLOAD_OFFSET].iter().all(|&byte| byte == 0), "the header");
        assert!(copied[SEND_PAYLOAD_OFFSET + 256..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn inline_data_longer_than_an_entry_is_refused_before_it_is_read() {
        let nowhere = ibv_sge { addr: 8, length: MAX_INLINE as u32, lkey: 0 };
        let one = ibv_sge { addr: 8, length: 1, lkey: 0 };
        assert_eq!(inline_length(pieces(&[nowhere])), Ok(MAX_INLINE as u32));
        assert_eq!(inline_length(pieces(&[nowhere, one])), Err(libc::EINVAL));
        let huge = ibv_sge { addr: 8, length: u32::MAX, lkey: 0 };
        assert_eq!(inline_length(pieces(&[huge; 16])), Err(libc::EINVAL));
        assert_eq!(
            inline_length([(std::ptr::null(), usize::MAX); 2].into_iter()),
            Err(libc::EINVAL)
        );
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
