//! Signals that were ignored when this process began: exec hands that on, while it ends all handlers.

use std::mem::MaybeUninit;
use std::ptr::null;

/// Has a signal do by default what it does; says whether it was ignored.
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

/// Has a signal ignored, as before a [`heed`] that said that it was.
pub fn ignore(signal: i32) {
    // SAFETY: no code of this process is called by that.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

#[cfg(test)]
mod tests {
    use super::*;

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
