//! Buffers of devices, or of the kernel, that a descriptor stands for (dma-bufs).

use std::ffi::c_int;
use std::os::fd::{BorrowedFd, RawFd};

use crate::abi::verbs::{ibv_mr, ibv_pd};
use nix::sys::statfs::fstatfs;

use super::pages::Pages;
use super::{mr, object};
use crate::error::{Result, invalid, unsupported};
use crate::mr::Registration;

/// The type that `fstatfs` reports of a dma-buf (`DMA_BUF_MAGIC`, linux/magic.h).
const MAGIC: i64 = 0x444d_4142;

pub(super) unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    let range = (offset, length as u64);
    // SAFETY: the program passes a domain of this provider.
    object("ibv_reg_dmabuf_mr", unsafe { register(pd, fd, range, iova, access) })
}

/// # Safety
/// The domain is one of this provider and lives.
unsafe fn register(
    pd: *mut ibv_pd,
    fd: RawFd,
    (offset, length): (u64, u64),
    iova: u64,
    access: c_int,
) -> Result<*mut ibv_mr> {
    if !is_dmabuf(fd) {
        return Err(invalid!("descriptor {fd} is of no dma-buf"));
    }
    let writable = Registration::new(offset, length, iova, access as u32)?.is_written();
    let (pages, address) = Pages::map(fd, offset, length, writable)?;
    let registration = Registration::new(address, length, iova, access as u32)?;
    // SAFETY: as the caller promises.
    match unsafe { mr::register(pd, registration, Some(pages), access) } {
        // Mapped it is; so it is the kernel that hands on no pages.
        Err(error) if error.errno() == libc::EFAULT => Err(unsupported!(
            "the kernel reaches the dma-buf's pages for nobody but the processor: a device's own memory, or a \
             udmabuf of Linux 6.12 and newer"
        )),
        registered => registered,
    }
}

fn is_dmabuf(fd: RawFd) -> bool {
    if fd < 0 {
        return false;
    }
    // SAFETY: the program's number is borrowed for this call only; one that is not open is EBADF.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    fstatfs(fd).is_ok_and(|statfs| statfs.filesystem_type().0 == MAGIC)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use nix::sys::memfd::{MFdFlags, memfd_create};

    use super::*;

    #[test]
    fn only_a_dmabuf_is_one() {
        let file = memfd_create("file", MFdFlags::empty()).unwrap();
        assert!(!is_dmabuf(file.as_raw_fd()));
        assert!(!is_dmabuf(-1));
        assert!(!is_dmabuf(i32::MAX));
    }
}
