//! Memory whose pages a handler is to bring, and never does: userfaultfd(2).

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::path::Path;

use super::mapping::Mapping;

/// `UFFD_API`, and the ioctls' numbers as linux/userfaultfd.h has them.
const API: u64 = 0xaa;
const IOC_NEW: libc::c_ulong = 0xaa00;
const IOC_API: libc::c_ulong = 0xc018_aa3f;
const IOC_REGISTER: libc::c_ulong = 0xc020_aa00;
/// `UFFDIO_REGISTER_MODE_MISSING`.
const MISSING: u64 = 1;

/// `struct uffdio_api`.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
struct Register {
    start: u64,
    length: u64,
    mode: u64,
    ioctls: u64,
}

impl Mapping {
    /// Takes its pages away, and brings none as long as the descriptor is open: a process that touches it waits, the
    /// kernel for another process too. Where the system call is not allowed the device node is.
    ///
    /// # Errors
    /// When neither is.
    pub fn withhold(&mut self, node: &Path) -> io::Result<OwnedFd> {
        self.do_not_touch();
        let faults = faults(node)?;
        let mut api = Api { api: API, features: 0, ioctls: 0 };
        // SAFETY: the descriptor is userfaultfd's, and the place has the size that the number tells.
        check(unsafe { libc::ioctl(faults.as_raw_fd(), IOC_API, &raw mut api) })?;
        let length = self.length();
        let mut register =
            Register { start: self.address(), length: length as u64, mode: MISSING, ioctls: 0 };
        // SAFETY: as above; the range is our own mapping, which nobody here touches.
        check(unsafe { libc::ioctl(faults.as_raw_fd(), IOC_REGISTER, &raw mut register) })?;
        // SAFETY: the range is our own mapping, of whose contents nobody here makes use any more.
        check(unsafe { libc::madvise(self.start().as_ptr().cast(), length, libc::MADV_DONTNEED) })?;
        Ok(faults)
    }
}

/// A descriptor that hears of faults of the kernel's too.
fn faults(node: &Path) -> io::Result<OwnedFd> {
    // SAFETY: the call takes flags only.
    let made = check(unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) } as i32);
    let made = match made {
        Ok(made) => made,
        Err(_) => {
            let node = OpenOptions::new().read(true).write(true).open(node)?;
            // SAFETY: the descriptor is the node's, and the call takes flags only.
            check(unsafe { libc::ioctl(node.as_raw_fd(), IOC_NEW, libc::O_CLOEXEC) })?
        }
    };
    // SAFETY: it was made a moment ago, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}

fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
