//! A forked child.

use std::io;

use nix::unistd::Pid;

/// Runs a function in a forked child, which ends with the exit code that it gives.
///
/// The child is a copy of this thread alone. Nothing of the parent is dropped in it.
///
/// # Errors
/// When there is no child.
pub fn in_child(act: impl FnOnce() -> i32) -> io::Result<Pid> {
    // SAFETY: the C library keeps its own locks in order over a fork, and the test tries what a verbs provider does
    // with its own; the child leaves by _exit.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).unwrap_or(101);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(code) }
        }
        child => Ok(Pid::from_raw(child)),
    }
}
