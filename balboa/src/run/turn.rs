//! A turn among processes: the lock of a file, which is waited for, but not for ever.

use std::fs::File;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use super::start::RETRY;

/// Waits until this process alone has the lock of a file; `None` where others have had it for so long.
///
/// # Errors
/// The errno of flock(2).
pub fn wait(mut file: File, limit: Duration) -> Result<Option<Flock<File>>, Errno> {
    let begun = Instant::now();
    loop {
        file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(turn) => return Ok(Some(turn)),
            Err((file, Errno::EWOULDBLOCK)) if begun.elapsed() < limit => file,
            Err((_, Errno::EWOULDBLOCK)) => return Ok(None),
            Err((_, errno)) => return Err(errno),
        };
        sleep(RETRY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_waited_for_as_long_as_was_said() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let file = || File::open(path.path()).unwrap();
        let turn = wait(file(), Duration::ZERO).unwrap();
        assert!(turn.is_some());
        assert!(wait(file(), Duration::ZERO).unwrap().is_none());
        drop(turn);
        assert!(wait(file(), Duration::ZERO).unwrap().is_some());
    }
}
