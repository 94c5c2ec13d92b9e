//! The local side of work requests, as programs give it.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::slice;

use crate::abi::verbs::ibv_sge;
use fpga_regs::engine::wqe::{MAX_INLINE, MAX_SGE};

use crate::wr::InlineData;

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

/// Copies the bytes of an inline request; EINVAL for more than any entry holds.
///
/// # Safety
/// The memory of the pieces can be read. (It need not be registered.)
#[inline(always)]
pub(super) unsafe fn gather<'a>(
    pieces: impl Iterator<Item = (*const u8, usize)> + Clone,
    room: &'a mut [MaybeUninit<u64>; MAX_INLINE / 8],
) -> Result<InlineData<'a>, i32> {
    let length = pieces.clone().fold(0usize, |sum, (_, bytes)| sum.saturating_add(bytes));
    if length > MAX_INLINE {
        return Err(libc::EINVAL);
    }
    let words = length.div_ceil(8);
    // The last word may get fewer bytes than it has.
    if let Some(last) = room.get_mut(words.wrapping_sub(1)) {
        last.write(0);
    }
    let first = room.as_mut_ptr().cast::<u64>();
    let mut place = first.cast::<u8>();
    for (piece, bytes) in pieces.filter(|(_, bytes)| *bytes > 0) {
        // SAFETY: the source is the program's promise; all lengths together fit, as was checked; the
        // words are plain integers, whose bytes may be anything.
        unsafe { std::ptr::copy_nonoverlapping(piece, place, bytes) };
        place = place.wrapping_add(bytes);
    }
    // SAFETY: every byte of these words was written: by the copies without a gap, or as the last
    // word's zero.
    let words = unsafe { slice::from_raw_parts(first, words) };
    Ok(InlineData { words, length: length as u32 })
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
        let all = [sge(&bytes[..3]), sge(&[]), sge(&bytes[3..70]), sge(&bytes[70..256])];
        let mut room = [MaybeUninit::new(u64::MAX); MAX_INLINE / 8];
        // SAFETY: the elements name living memory.
        let data = unsafe { gather(pieces(&all), &mut room) }.unwrap();
        let copied: Vec<u8> = data.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(data.length, 256);
        assert_eq!(copied, bytes);
    }

    #[test]
    fn the_last_word_of_inline_data_ends_with_zeros() {
        for length in 0..=17 {
            let mut room = [MaybeUninit::new(u64::MAX); MAX_INLINE / 8];
            // SAFETY: the element names living memory.
            let data = unsafe { gather(pieces(&[sge(&[0x55; 17][..length])]), &mut room) }.unwrap();
            let copied: Vec<u8> = data.words.iter().flat_map(|word| word.to_le_bytes()).collect();
            assert_eq!(data.length as usize, length);
            assert_eq!(copied.len(), length.next_multiple_of(8));
            assert!(copied[..length].iter().all(|&byte| byte == 0x55));
            assert!(copied[length..].iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn inline_data_longer_than_an_entry_is_refused_before_it_is_read() {
        let nowhere = ibv_sge { addr: 8, length: MAX_INLINE as u32, lkey: 0 };
        let one = ibv_sge { addr: 8, length: 1, lkey: 0 };
        let mut room = [MaybeUninit::uninit(); MAX_INLINE / 8];
        // SAFETY: the call fails before it reads.
        assert_eq!(unsafe { gather(pieces(&[nowhere, one]), &mut room) }.err(), Some(libc::EINVAL));
        let huge = ibv_sge { addr: 8, length: u32::MAX, lkey: 0 };
        // SAFETY: as above.
        assert_eq!(unsafe { gather(pieces(&[huge; 16]), &mut room) }.err(), Some(libc::EINVAL));
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
