//! Sealed memory files: their size can never change, so a mapping of one never faults.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;

use crate::mapping::{Access, SharedMapping};
use crate::{Error, Result};

/// Makes a zeroed memory file of `bytes` bytes whose size is fixed for good.
///
/// Closed on exec; sealed against shrinking, growing and further seals. `name` shows up in
/// `/proc/PID/maps` and may hold up to 249 bytes.
pub fn create(name: &str, bytes: usize) -> Result<OwnedFd> {
    let fd = sized(name, bytes)?;
    seal(fd.as_fd(), fixed_size() | SealFlag::F_SEAL_SEAL)?;
    Ok(fd)
}

/// Makes a memory file that its creator writes and all others can only read.
///
/// Returned are the descriptor to hand out and the only mapping that can ever write the file: it is made first, and
/// then the file is sealed against future writes, so that neither `mmap` nor `write` of a receiver of the
/// descriptor can change it. Size rules are [`create`]'s.
pub fn create_read_only_for_others(name: &str, bytes: usize) -> Result<(OwnedFd, SharedMapping)> {
    let fd = sized(name, bytes)?;
    seal(fd.as_fd(), fixed_size())?;
    let mapping = SharedMapping::new(fd.as_fd(), 0, bytes, Access::ReadWrite)?;
    seal_future_write(fd.as_fd())?;
    Ok((fd, mapping))
}

/// Forbids new ways to write a memory file, and any further seal.
///
/// Writable mappings that exist stay writable. Fails with EPERM on a file from [`create`], whose
/// seals are final: use [`create_read_only_for_others`].
pub fn seal_future_write(fd: BorrowedFd<'_>) -> Result<()> {
    seal(fd, SealFlag::F_SEAL_FUTURE_WRITE | SealFlag::F_SEAL_SEAL)
}

fn fixed_size() -> SealFlag {
    SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW
}

fn sized(name: &str, bytes: usize) -> Result<OwnedFd> {
    let length = i64::try_from(bytes).ok().filter(|&length| length > 0).ok_or(Error::BadSize {
        object: "memory file",
        value: bytes as u64,
        unit: "bytes",
        rule: "its size lies between 1 and the largest file offset",
    })?;
    let fd = memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)
        .map_err(Error::os("memfd_create"))?;
    ftruncate(&fd, length).map_err(Error::os("ftruncate of a memory file"))?;
    Ok(fd)
}

fn seal(fd: BorrowedFd<'_>, seals: SealFlag) -> Result<()> {
    fcntl(fd, FcntlArg::F_ADD_SEALS(seals)).map_err(Error::os("sealing of a memory file"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::*;

    #[test]
    fn the_size_of_a_sealed_file_cannot_change() {
        let fd = create("sealed", 8192).unwrap();
        assert_eq!(ftruncate(&fd, 4096), Err(Errno::EPERM));
        assert_eq!(ftruncate(&fd, 16384), Err(Errno::EPERM));
        assert_eq!(seal_future_write(fd.as_fd()).unwrap_err().errno(), Some(Errno::EPERM));
    }

    #[test]
    fn the_descriptor_is_closed_on_exec() {
        let fd = create("cloexec", 4096).unwrap();
        let flags = fcntl(&fd, FcntlArg::F_GETFD).unwrap();
        assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
    }

    #[test]
    fn an_empty_file_is_refused() {
        assert!(matches!(create("empty", 0), Err(Error::BadSize { value: 0, .. })));
    }

    #[test]
    fn only_the_maker_can_write_a_file_that_others_read() {
        let (fd, writer) = create_read_only_for_others("words", 4096).unwrap();
        writer.store_release_u32(64, 7).unwrap();

        let reader = SharedMapping::new(fd.as_fd(), 0, 4096, Access::ReadOnly).unwrap();
        assert_eq!(reader.load_acquire_u32(64).unwrap(), 7);
        writer.store_release_u32(64, 8).unwrap();
        assert_eq!(reader.load_acquire_u32(64).unwrap(), 8);

        let refused = SharedMapping::new(fd.as_fd(), 0, 4096, Access::ReadWrite).unwrap_err();
        assert_eq!(refused.errno(), Some(Errno::EPERM));
        assert_eq!(nix::unistd::write(&fd, b"x"), Err(Errno::EPERM));
    }
}
