//! The end of a balboad of `balboa run --start` with its last program.
//!
//! Each program holds a shared lock on a file of the state directory, by a descriptor that it hands on to its children:
//! the kernel releases the lock when the last of them has closed it or ended. balboad tries to take the exclusive lock,
//! which it gets only then, and keeps it while it ends: a later `balboa run` sees that, and starts another balboad.

use std::fs::File;
use std::time::{Duration, Instant};

use host_view::directory::Directory;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use shim_abi::{LEASE_NAME, LEASE_VARIABLE};

use crate::error::Error;

/// How often it is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// The time without a holder after which it ends: the next of a script's programs finds the same balboad until then.
const GRACE: Duration = Duration::from_secs(5);
/// The same before the first has held it: the program that started this may have to wait for a processor.
const FIRST_GRACE: Duration = Duration::from_secs(30);

/// The file, and the time since which no program holds it.
#[derive(Debug)]
pub struct Lease {
    file: File,
    // Held from when it is over: dropping it would let go.
    over: Option<Flock<File>>,
    due: Instant,
    unheld: Option<Instant>,
    grace: Duration,
}

impl Lease {
    /// The one of a state directory, if this process was started to end with it.
    ///
    /// # Errors
    /// [`Error::Os`] when its file cannot be made.
    pub fn wanted(directory: &Directory) -> Result<Option<Self>, Error> {
        match std::env::var_os(LEASE_VARIABLE) {
            Some(_) => Self::of(directory, Instant::now()).map(Some),
            None => Ok(None),
        }
    }

    fn of(directory: &Directory, now: Instant) -> Result<Self, Error> {
        let file = directory.file(LEASE_NAME).map_err(|error| Error::Os {
            call: "opening balboad.lease in the state directory",
            errno: error.raw_os_error().map_or(Errno::EIO, Errno::from_raw),
        })?;
        Ok(Self { file, over: None, due: now, unheld: None, grace: FIRST_GRACE })
    }

    /// Records that a program has taken the lease, though it may have let go by the next look.
    pub fn is_taken(&mut self) {
        (self.unheld, self.grace) = (None, GRACE);
    }

    /// The time to wait before [`Self::is_over`].
    #[must_use]
    pub fn patience(&self, now: Instant) -> Duration {
        self.due.saturating_duration_since(now)
    }

    /// Looks at it, if it is time to: whether it had neither a holder nor a use of balboad for long enough. From then
    /// on no program can hold it.
    pub fn is_over(&mut self, is_used: bool, now: Instant) -> bool {
        if self.over.is_some() {
            return true;
        }
        if now < self.due {
            return false;
        }
        self.due = now.checked_add(LOOK).unwrap_or(now);
        let lock =
            self.file.try_clone().ok().map(|it| Flock::lock(it, FlockArg::LockExclusiveNonblock));
        let unheld = match lock {
            Some(Ok(lock)) if !is_used => lock,
            // Given back by being dropped, if it was had.
            Some(Ok(_)) | Some(Err((_, Errno::EWOULDBLOCK))) => {
                (self.unheld, self.grace) = (None, GRACE);
                return false;
            }
            // Nothing tells; it is looked at again.
            _ => return false,
        };
        let since = *self.unheld.get_or_insert(now);
        if now.saturating_duration_since(since) < self.grace {
            return false;
        }
        self.over = Some(unheld);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use super::*;

    fn lease() -> (tempfile::TempDir, Lease, Instant) {
        let root = tempfile::tempdir().unwrap();
        let now = Instant::now();
        let lease = Lease::of(&Directory::open(root.path()).unwrap(), now).unwrap();
        (root, lease, now)
    }

    /// Holds the lease as a program does.
    fn hold(root: &tempfile::TempDir) -> Result<Flock<File>, Errno> {
        let file = File::open(root.path().join(LEASE_NAME)).unwrap();
        Flock::lock(file, FlockArg::LockSharedNonblock).map_err(|(_, errno)| errno)
    }

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn it_is_over_when_nobody_has_held_it_for_the_grace_and_nobody_can_hold_it_then() {
        let (root, mut lease, now) = lease();
        let (one, other) = (hold(&root).unwrap(), hold(&root).unwrap());
        assert!(!lease.is_over(false, now));
        assert_eq!(lease.patience(now), LOOK);
        drop(one);
        assert!(!lease.is_over(false, now + seconds(100)), "the other holds it");
        drop(other);
        assert!(!lease.is_over(false, now + seconds(200)));
        assert!(!lease.is_over(false, now + seconds(204)));
        let again = hold(&root).unwrap();
        assert!(!lease.is_over(false, now + seconds(206)), "it is held again");
        drop(again);
        assert!(!lease.is_over(false, now + seconds(300)));
        assert!(lease.is_over(false, now + seconds(305)));
        assert_eq!(hold(&root).unwrap_err(), Errno::EWOULDBLOCK);
        assert!(lease.is_over(true, now + seconds(306)), "there is no way back");
        drop(lease);
        hold(&root).unwrap();
    }

    #[test]
    fn a_child_that_has_the_descriptor_holds_it() {
        let (root, mut lease, now) = lease();
        let held = hold(&root).unwrap();
        let stdin = std::process::Stdio::from(held.try_clone().unwrap());
        let mut child =
            std::process::Command::new("sleep").arg("600").stdin(stdin).spawn().unwrap();
        // As exec does: dropped as a lock it would be given back for all.
        nix::unistd::close(held.as_raw_fd()).unwrap();
        std::mem::forget(held);
        assert!(!lease.is_over(false, now + seconds(10)));
        assert!(!lease.is_over(false, now + seconds(100)));
        child.kill().unwrap();
        child.wait().unwrap();
        // Another test's child may have it until it executes something.
        let mut at = 200;
        while !lease.is_over(false, now + seconds(at)) {
            at += 1;
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_connected_program_keeps_it_though_it_has_closed_its_descriptors() {
        let (_root, mut lease, now) = lease();
        for at in [0, 100, 200] {
            assert!(!lease.is_over(true, now + seconds(at)));
        }
        assert!(!lease.is_over(false, now + seconds(300)));
        assert!(lease.is_over(false, now + seconds(305)));
    }

    #[test]
    fn the_first_to_hold_it_is_waited_for_longer_and_not_for_ever() {
        let (_root, mut lease, now) = lease();
        for at in [0, 5, 29] {
            assert!(!lease.is_over(false, now + seconds(at)));
        }
        assert!(lease.is_over(false, now + seconds(30)));
    }

    #[test]
    fn a_program_that_ends_between_two_looks_is_no_longer_waited_for_than_others() {
        let (_root, mut lease, now) = lease();
        assert!(!lease.is_over(false, now));
        lease.is_taken();
        // Its five seconds begin with the look behind it.
        assert!(!lease.is_over(false, now + seconds(4)));
        assert!(!lease.is_over(false, now + seconds(8)));
        assert!(lease.is_over(false, now + seconds(9)));
    }
}
