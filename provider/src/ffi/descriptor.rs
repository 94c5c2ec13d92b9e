//! The file behind a descriptor.

use std::mem::MaybeUninit;
use std::os::fd::RawFd;

/// Which file a descriptor stands for: a device and the number of an inode on it.
pub(crate) type File = (u64, u64);

/// The file that a descriptor stands for; `None` where it is no descriptor.
pub(crate) fn file(fd: RawFd) -> Option<File> {
    let mut found = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: there is room for the answer.
    if unsafe { libc::fstat(fd, found.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: the call has succeeded, and so has written it.
    let found = unsafe { found.assume_init() };
    Some((found.st_dev, found.st_ino))
}
