//! Threads that a program may cancel: where they wait, and not amid a change.
//!
//! `pthread_cancel` unwinds the thread's stack in the kind of C, from the call in which it waits, over our
//! functions into the program's. Those have then nothing to drop, and do not forbid it: the replacements
//! of `open`, `close`, `read` and `write` do the provider's part in a function that is not cancelled, and hand on or
//! wait outside of it. `fstat`, `ioctl` and `opendir` are no cancellation points, and neither are their replacements.
//!
//! The call itself is declared as `extern "C"`, not as `"C-unwind"`: the plug-in is built to abort at a panic, and
//! then a function that calls another which may unwind gets a landing pad that aborts the process at any unwinding. A
//! function whose callees do not unwind has none, and the C library's unwinder goes over it by its frame alone.

use std::ffi::{c_int, c_void};
use std::os::fd::RawFd;
use std::ptr::null_mut;

use nix::errno::Errno;

const PTHREAD_CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    fn recv(socket: c_int, buffer: *mut c_void, length: usize, flags: c_int) -> isize;
}

/// Looks whether a socket has something to read, or has ended, with further flags of `recv`'s.
///
/// A socket whose writer was killed reports that once (ECONNRESET), before its unread data: an end as any other, which
/// the next look sees behind the rest of the data.
///
/// Where it waits, as the socket's own mode says, the calling thread may be cancelled.
pub(crate) fn peek(socket: RawFd, flags: c_int) -> Result<(), Errno> {
    let mut byte = 0u8;
    // SAFETY: there is room for one byte.
    let read = unsafe { recv(socket, (&raw mut byte).cast(), 1, libc::MSG_PEEK | flags) };
    match Errno::last() {
        errno if read < 0 && errno != Errno::ECONNRESET => Err(errno),
        _ => Ok(()),
    }
}

/// While it lives, `pthread_cancel` does not end the calling thread; after it, it does.
pub(crate) struct Uncancelled {
    before: c_int,
    /// It is the thread's own.
    _here: std::marker::PhantomData<*mut ()>,
}

impl Uncancelled {
    /// From now on.
    pub(crate) fn now() -> Self {
        let mut before = 0;
        // SAFETY: the function writes the former state to a place that outlives the call.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
        Self { before, _here: std::marker::PhantomData }
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: the state is one that the function has given; the former one may be left out.
        unsafe { pthread_setcancelstate(self.before, null_mut()) };
    }
}
