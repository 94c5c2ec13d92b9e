//! Buffers that the kernel shares by a descriptor, made of memory files.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::{Failed, Mapping};

/// `struct udmabuf_create` of linux/udmabuf.h.
#[repr(C)]
struct Create {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

/// `_IOW('u', 0x42, struct udmabuf_create)`
const CREATE: libc::Ioctl = 0x4018_7542;

/// A dma-buf of pages that this program has mapped, too.
#[derive(Debug)]
pub struct DmaBuf {
    /// Its pages.
    pub memory: Mapping,
    /// The descriptor by which others name it.
    pub descriptor: OwnedFd,
}

impl DmaBuf {
    /// Makes one of zeroed memory; `None` where the kernel makes none.
    ///
    /// # Errors
    /// When the kernel refuses one of that size.
    pub fn new(length: usize) -> Result<Option<Self>, Failed> {
        let call = "making a udmabuf";
        let failed = |_| Failed::last(call);
        let Ok(device) = OpenOptions::new().read(true).write(true).open("/dev/udmabuf") else {
            return Ok(None);
        };
        let file = memfd_create("dma-buf", MFdFlags::MFD_ALLOW_SEALING).map_err(failed)?;
        let file = File::from(file);
        file.set_len(length as u64).map_err(|_| Failed::last(call))?;
        fcntl(file.as_fd(), FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).map_err(failed)?;
        let memory = Mapping::sharing(&file, length)?;
        let create =
            Create { memfd: file.as_raw_fd() as u32, flags: 0, offset: 0, size: length as u64 };
        // SAFETY: the device reads the structure, which stays for the call.
        let made = unsafe { libc::ioctl(device.as_raw_fd(), CREATE, &raw const create) };
        if made < 0 {
            return Err(Failed::last(call));
        }
        // SAFETY: the descriptor was just made for us.
        let descriptor = unsafe { OwnedFd::from_raw_fd(made) };
        Ok(Some(Self { memory, descriptor }))
    }
}
