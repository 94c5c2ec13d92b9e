//! Descriptors from a peer that is not trusted: memory files and event counters.
//!
//! Such a peer may do anything to its file at any time. A file that can be cut short, or whose
//! pages can run out, would turn an access into SIGBUS; a counter that is full would make a write
//! wait for ever. This module refuses both, as far as the kernel lets it see them.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::fcntl::SealFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::fstat;
use nix::sys::statfs::{HUGETLBFS_MAGIC, fstatfs};

use crate::mapping::{self, Access, SharedMapping};
use crate::{Error, EventFd, Result};

/// The identity of a file, which all descriptors of it share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    device: u64,
    inode: u64,
}

/// Identity and size in bytes of a file.
pub fn identify(fd: BorrowedFd<'_>) -> Result<(FileId, u64)> {
    let stat = fstat(fd).map_err(Error::os("fstat"))?;
    let id = FileId { device: stat.st_dev, inode: stat.st_ino };
    Ok((id, u64::try_from(stat.st_size).unwrap_or(0)))
}

/// Whether a file may be mapped: memory sealed against shrinking, in pages that do not run out.
///
/// Memory files of huge pages are none: a hole punched into one may find no page to fill it again.
pub fn can_be_mapped(fd: BorrowedFd<'_>) -> bool {
    // Only memory files have seals at all, and no limit of a file system of their own.
    mapping::seals(fd).contains(SealFlag::F_SEAL_SHRINK)
        && fstatfs(fd).is_ok_and(|statfs| statfs.filesystem_type() != HUGETLBFS_MAGIC)
}

/// Maps the whole of a file that [can be mapped](can_be_mapped).
///
/// # Errors
/// [`Error::BadKind`] for any other, [`Error::BadSize`] for an empty one, and those of the kernel:
/// EACCES and EPERM where the descriptor or a seal forbids the access.
pub fn map(fd: BorrowedFd<'_>, access: Access) -> Result<SharedMapping> {
    if !can_be_mapped(fd) {
        return Err(Error::BadKind { wanted: "a memory file sealed against shrinking" });
    }
    let (_, bytes) = identify(fd)?;
    SharedMapping::new(fd, 0, usize::try_from(bytes).unwrap_or(usize::MAX), access)
}

/// An event counter that an untrusted peer made and shares.
#[derive(Debug)]
pub struct ForeignEventFd(EventFd);

impl ForeignEventFd {
    /// Takes a descriptor, if it is one of an event counter.
    pub fn new(fd: OwnedFd) -> Result<Self> {
        let link = fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        match link {
            Ok(target) if target.as_os_str() == "anon_inode:[eventfd]" => {
                Ok(Self(EventFd::from_received(fd)))
            }
            _ => Err(Error::BadKind { wanted: "an eventfd" }),
        }
    }

    /// Adds one to the counter unless it is full, and then it is readable already.
    ///
    /// The counter's owner can make this wait only by making it blocking and filling it between two
    /// adjacent system calls of ours.
    pub fn signal(&self) -> Result<()> {
        let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLOUT)];
        match poll(&mut fds, PollTimeout::ZERO) {
            Ok(0) => Ok(()),
            Ok(_) => self.0.signal(),
            Err(errno) => Err(Error::Os { call: "poll of an eventfd", errno }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use nix::errno::Errno;
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use nix::unistd::{ftruncate, pipe, write};

    use super::*;
    use crate::memfd;

    #[test]
    fn only_memory_files_sealed_against_shrinking_are_mapped() {
        let sealed = memfd::create("sealed", 8192).unwrap();
        assert_eq!(map(sealed.as_fd(), Access::ReadWrite).unwrap().len(), 8192);
        let open = memfd_create("open", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        ftruncate(&open, 8192).unwrap();
        let file = fs::File::open("/proc/self/exe").unwrap();
        let (reader, _writer) = pipe().unwrap();
        for fd in [open.as_fd(), file.as_fd(), reader.as_fd()] {
            assert!(matches!(map(fd, Access::ReadOnly), Err(Error::BadKind { .. })));
        }
    }

    #[test]
    fn a_file_that_forbids_writing_is_mapped_for_reading_only() {
        let (fd, _writer) = memfd::create_read_only_for_others("words", 4096).unwrap();
        assert_eq!(map(fd.as_fd(), Access::ReadWrite).unwrap_err().errno(), Some(Errno::EPERM));
        assert_eq!(map(fd.as_fd(), Access::ReadOnly).unwrap().access(), Access::ReadOnly);
    }

    #[test]
    fn two_descriptors_of_one_file_are_known_as_one() {
        let one = memfd::create("one", 4096).unwrap();
        let again = one.try_clone().unwrap();
        let two = memfd::create("two", 4096).unwrap();
        let id = |fd: &OwnedFd| identify(fd.as_fd()).unwrap();
        assert_eq!(id(&one), id(&again));
        assert_ne!(id(&one).0, id(&two).0);
        assert_eq!(id(&two).1, 4096);
    }

    #[test]
    fn what_is_no_eventfd_is_refused() {
        let (_reader, writer) = pipe().unwrap();
        assert!(matches!(ForeignEventFd::new(writer), Err(Error::BadKind { .. })));
    }

    #[test]
    fn a_full_blocking_counter_holds_nobody_up() {
        // SAFETY: eventfd takes two integers; the descriptor is new and nobody else's.
        let raw = unsafe {
            use std::os::fd::FromRawFd;
            OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC))
        };
        let owners = raw.try_clone().unwrap();
        let event = ForeignEventFd::new(raw).unwrap();
        event.signal().unwrap();
        let mut count = [0; 8];
        nix::unistd::read(&owners, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 1);
        write(&owners, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        event.signal().unwrap();
    }
}
