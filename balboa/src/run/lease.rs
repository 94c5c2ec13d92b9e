//! A program's hold on a balboad that ends with its last program: a shared lock on a file of the state directory.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, Flock, FlockArg, OFlag, fcntl};
use shim_abi::LEASE_NAME;

/// The descriptor by which a program holds it, or one above: those below are the program's own choice.
const DESCRIPTOR: i32 = 230;

/// A lease that this process holds until it drops it.
#[derive(Debug)]
pub struct Lease(Flock<File>);

/// The balboad is about to end.
#[derive(Debug)]
pub struct Ending;

impl Lease {
    /// Takes the lease of a state directory; `None` if no balboad ever ended with its programs there.
    ///
    /// If the file was there, the lease holds the balboad that serves there and answers afterwards: a listening balboad
    /// has made it.
    ///
    /// # Errors
    /// [`Ending`] when no program can have it any more, or yet.
    pub fn take(dir: &Path) -> Result<Option<Self>, Ending> {
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let opened =
            OpenOptions::new().read(true).custom_flags(flags.bits()).open(dir.join(LEASE_NAME));
        // The attempt to connect reports other faults of the directory.
        let Ok(file) = opened else { return Ok(None) };
        match Flock::lock(file, FlockArg::LockSharedNonblock) {
            Ok(lock) => Ok(Some(Self(lock))),
            Err((_, Errno::EWOULDBLOCK)) => Err(Ending),
            Err(_) => Ok(None),
        }
    }

    /// Hands a second descriptor on to the program that this process executes, for which it stays open.
    ///
    /// # Errors
    /// When descriptors run out.
    pub fn hand_on(&self) -> Result<(), Errno> {
        let duplicate = |least| fcntl(&*self.0, FcntlArg::F_DUPFD(least)).map(drop);
        // A limit of descriptors may be below that.
        duplicate(DESCRIPTOR).or_else(|_| duplicate(3))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_held_by_many_and_by_none_while_balboad_has_it() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Lease::take(dir.path()).unwrap().is_none(), "there is none");
        let file = File::create(dir.path().join(LEASE_NAME)).unwrap();
        let leases = [(); 2].map(|()| Lease::take(dir.path()).unwrap().unwrap());
        let (file, errno) = Flock::lock(file, FlockArg::LockExclusiveNonblock).unwrap_err();
        assert_eq!(errno, Errno::EWOULDBLOCK);
        drop(leases);
        let ending = Flock::lock(file, FlockArg::LockExclusiveNonblock).unwrap();
        assert!(Lease::take(dir.path()).is_err());
        drop(ending);
        assert!(Lease::take(dir.path()).unwrap().is_some());
    }
}
