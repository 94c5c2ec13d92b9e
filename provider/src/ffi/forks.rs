//! The locks that a fork must not leave held: every lock of the process.

use std::sync::OnceLock;

use super::{device, hook};
use crate::process::{self, Hold};
use crate::{control, lives, ucm};

/// Every lock of the process, in the order in which they are taken.
static LOCKS: [&dyn Hold; 5] =
    [&control::SHARED, &hook::OURS, &ucm::CHANNELS, &device::LISTED, &lives::CARDS];

/// Sees to it that a child is never forked with a lock of the process's taken, once for the process.
pub(super) fn hold_over_forks() -> Result<(), &'static str> {
    static HELD: OnceLock<bool> = OnceLock::new();
    let held = HELD.get_or_init(|| {
        // SAFETY: both functions may run around a fork in any thread, and never unload.
        unsafe { libc::pthread_atfork(Some(hold_all), Some(release_all), Some(release_all)) == 0 }
    });
    held.then_some(()).ok_or("the C library has no memory left")
}

/// Takes every lock of the process, before the calling thread forks.
extern "C" fn hold_all() {
    process::hold(&LOCKS);
}

/// Releases the locks that [`hold_all`] took, in the parent and in the child.
extern "C" fn release_all() {
    process::release();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_is_held_over_a_fork_is_free_afterwards() {
        hold_all();
        let waits = std::thread::spawn(|| control::SHARED.with(|_| ()));
        release_all();
        waits.join().unwrap();
        control::SHARED.with(|_| ());
    }
}
