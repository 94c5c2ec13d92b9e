//! Pages of a dma-buf, mapped.

use std::ffi::c_void;
use std::os::fd::RawFd;
use std::ptr::null_mut;

use nix::errno::Errno;

use crate::error::{Result, invalid, unsupported};

/// The pages of a dma-buf as this program's memory, by which the card reaches them.
#[derive(Debug)]
pub(super) struct Pages {
    start: *mut c_void,
    bytes: usize,
}

impl Pages {
    /// Maps the pages that `length` bytes from `offset` on lie in; answers with the address of the first.
    pub(super) fn map(fd: RawFd, offset: u64, length: u64, writable: bool) -> Result<(Self, u64)> {
        let page = hostmem::PAGE_BYTES as u64;
        let begin = offset & !page.wrapping_sub(1);
        let within = offset.wrapping_sub(begin);
        let bytes =
            within.checked_add(length).and_then(|bytes| bytes.checked_next_multiple_of(page));
        let (Some(bytes), Ok(begin)) = (bytes, i64::try_from(begin)) else {
            return Err(invalid!("{length} bytes from {offset} on are no part of a dma-buf"));
        };
        let protection =
            if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        let bytes = bytes as usize;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let start =
            unsafe { libc::mmap(null_mut(), bytes, protection, libc::MAP_SHARED, fd, begin) };
        if start != libc::MAP_FAILED {
            return Ok((Self { start, bytes }, (start as u64).wrapping_add(within)));
        }
        Err(match Errno::last() {
            Errno::EINVAL => invalid!("the dma-buf has no {length} bytes from {offset} on"),
            errno => unsupported!("the dma-buf cannot be mapped for the processor ({errno})"),
        })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the range is the one that was mapped, and the card's keys to it are gone.
        unsafe { libc::munmap(self.start, self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use nix::sys::memfd::{MFdFlags, memfd_create};
    use nix::unistd::ftruncate;

    use super::*;

    #[test]
    fn pages_are_mapped_around_a_range_and_given_back() {
        let file = memfd_create("file", MFdFlags::empty()).unwrap();
        ftruncate(&file, 3 * 4096).unwrap();
        nix::sys::uio::pwrite(&file, b"here", 5000).unwrap();
        let (pages, address) = Pages::map(file.as_raw_fd(), 5000, 4, true).unwrap();
        assert_eq!((pages.bytes, address % 4096), (4096, 5000 % 4096));
        let mut found = [0; 4];
        // SAFETY: the address is of the mapping, of which no reference is made.
        unsafe { std::ptr::copy_nonoverlapping(address as *const u8, found.as_mut_ptr(), 4) };
        assert_eq!(&found, b"here");
        drop(pages);
        let none = [(u64::MAX - 1, 4), (4096, u64::MAX), (1 << 63, 4)];
        for (offset, length) in none {
            let errno = Pages::map(file.as_raw_fd(), offset, length, true).unwrap_err().errno();
            assert_eq!(errno, libc::EINVAL, "{offset} {length}");
        }
    }
}
