//! Signals: those that were ignored when this process began, for exec hands that on, while it ends all handlers; and
//! those that have a number alone.

use std::mem::MaybeUninit;
use std::ptr::null;

use nix::errno::Errno;
use nix::unistd::Pid;

/// Gives a signal its default effect; returns whether it was ignored.
///
/// A signal that has a handler keeps it. So does one that cannot be changed, or is none.
pub fn heed(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: no action is given, so that nothing changes; the second pointer is to one of ours.
    let asked = unsafe { libc::sigaction(signal, null(), action.as_mut_ptr()) };
    if asked != 0 {
        return false;
    }
    // SAFETY: the call has written it, and before it was zeros, which is a value of it.
    let action = unsafe { action.assume_init() };
    let is_ignored = action.sa_sigaction == libc::SIG_IGN;
    if is_ignored {
        // SAFETY: no code of this process is called by that; nor was any before.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    is_ignored
}

/// Ignores a signal again, after a [`heed`] that said that it was ignored before.
pub fn ignore(signal: i32) {
    // SAFETY: no code of this process is called by that.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// Sends a process a signal by its number, also a real-time one.
///
/// # Errors
/// The errno of kill(2); EINVAL if it is no number of one process.
pub fn send(process: Pid, signal: i32) -> Result<(), Errno> {
    if process.as_raw() <= 0 {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the call takes two integers and touches no memory of ours. A signal's handler is the other process's.
    Errno::result(unsafe { libc::kill(process.as_raw(), signal) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_real_time_signal_is_sent_to_one_process() {
        use std::os::unix::process::ExitStatusExt as _;

        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
        assert_eq!(send(pid, libc::SIGRTMIN() + 3), Ok(()));
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGRTMIN() + 3));
        for group in [0, -1] {
            assert_eq!(send(Pid::from_raw(group), 0), Err(Errno::EINVAL));
        }
    }

    #[test]
    fn what_is_ignored_is_heeded_and_what_is_not_stays() {
        // One that nothing else of the tests has.
        let signal = libc::SIGRTMAX();
        assert!(!heed(signal));
        ignore(signal);
        assert!(heed(signal) && !heed(signal));
        assert!(!heed(-1) && !heed(libc::SIGKILL));
    }
}
