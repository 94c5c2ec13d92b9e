//! Threads that are cancelled in a call that waits, as `pthread_cancel` does it.
//!
//! If such a thread took a lock or an event along, the next caller would miss it.

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use anyhow::{Result, ensure};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use verbs_sys::current::verbs as v;

use super::connection::{EventChannel, GetCmEvent, RawChannel};
use super::{Channel, Context};

const PTHREAD_CANCEL_ENABLE: c_int = 0;
const PTHREAD_CANCEL_DISABLE: c_int = 1;
/// The result of a thread that was cancelled.
const PTHREAD_CANCELED: usize = usize::MAX;

unsafe extern "C" {
    fn pthread_cancel(thread: libc::pthread_t) -> c_int;
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

type GetCqEvent =
    unsafe extern "C" fn(*mut v::ibv_comp_channel, *mut *mut v::ibv_cq, *mut *mut c_void) -> c_int;
type GetAsyncEvent = unsafe extern "C" fn(*mut v::ibv_context, *mut v::ibv_async_event) -> c_int;

/// When a thread is cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Before it calls: it ends at the first place where it may.
    Before,
    /// While it waits.
    Waiting,
}

/// A call that waits.
#[derive(Clone, Copy)]
enum Call {
    Completion(GetCqEvent, *mut v::ibv_comp_channel),
    Asynchronous(GetAsyncEvent, *mut v::ibv_context),
    Connection(GetCmEvent, *mut RawChannel),
}

/// A thread's orders, and its reports.
struct Task {
    call: Call,
    when: When,
    /// Its number, once it is about to call.
    thread: AtomicI32,
    is_cancelled: AtomicBool,
}

/// Calls, with nothing to be dropped: it is unwound from within the call.
extern "C-unwind" fn run(task: *mut c_void) -> *mut c_void {
    // SAFETY: the task outlives the thread, which is joined.
    let task = unsafe { &*task.cast::<Task>() };
    let is_before = task.when == When::Before;
    if is_before {
        // SAFETY: the former state is of no interest.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, null_mut()) };
    }
    // SAFETY: it has no arguments.
    task.thread.store(unsafe { libc::gettid() }, Ordering::Release);
    while is_before && !task.is_cancelled.load(Ordering::Acquire) {
        std::hint::spin_loop();
    }
    // SAFETY: as above; and the objects of the calls live, as do the places for their answers.
    unsafe {
        pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, null_mut());
        match task.call {
            Call::Completion(get, channel) => {
                let (mut cq, mut context) = (null_mut(), null_mut());
                get(channel, &raw mut cq, &raw mut context);
            }
            Call::Asynchronous(get, context) => {
                let mut event = std::mem::zeroed();
                get(context, &raw mut event);
            }
            Call::Connection(get, channel) => {
                let mut event = null_mut();
                get(channel, &raw mut event);
            }
        }
    }
    null_mut()
}

/// Starts a thread that makes a call, and cancels it.
fn cancel(call: Call, when: When) -> Result<()> {
    type Thread = extern "C-unwind" fn(*mut c_void) -> *mut c_void;
    let task = Task { call, when, thread: AtomicI32::new(0), is_cancelled: AtomicBool::new(false) };
    let argument = (&raw const task).cast_mut().cast();
    let mut thread = 0;
    // SAFETY: the function takes a task, which lives until the thread is joined. The type that `libc` has for it
    // leaves out only that it may be unwound.
    let made = unsafe {
        let run = std::mem::transmute::<Thread, extern "C" fn(*mut c_void) -> *mut c_void>(run);
        libc::pthread_create(&raw mut thread, null(), run, argument)
    };
    ensure!(made == 0, "no thread: {}", io::Error::from_raw_os_error(made));
    while task.thread.load(Ordering::Acquire) == 0 {
        std::thread::yield_now();
    }
    while when == When::Waiting && !is_asleep(task.thread.load(Ordering::Acquire))? {
        std::thread::yield_now();
    }
    let mut result = null_mut();
    // SAFETY: the thread was made above, and is joined once.
    let joined = unsafe {
        pthread_cancel(thread);
        task.is_cancelled.store(true, Ordering::Release);
        libc::pthread_join(thread, &raw mut result)
    };
    ensure!(joined == 0 && result.addr() == PTHREAD_CANCELED, "it was not cancelled");
    Ok(())
}

/// Whether a thread of this process sleeps.
fn is_asleep(thread: i32) -> Result<bool> {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"))?;
    // Behind the name, in brackets, which may have any bytes in it.
    Ok(stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('S')))
}

impl Channel {
    /// Cancels a thread that gets an event of this channel.
    ///
    /// # Errors
    /// When it does not end by that.
    pub fn cancel(&self, when: When) -> Result<()> {
        cancel(Call::Completion(self.library().ibv_get_cq_event, self.raw()), when)
    }
}

impl Context {
    /// Cancels a thread that gets an asynchronous event.
    ///
    /// # Errors
    /// When it does not end by that.
    pub fn cancel(&self, when: When) -> Result<()> {
        cancel(Call::Asynchronous(self.library().ibv_get_async_event, self.raw()), when)
    }
}

impl EventChannel {
    /// Cancels a thread that gets an event of this channel.
    ///
    /// # Errors
    /// When it does not end by that.
    pub fn cancel(&self, when: When) -> Result<()> {
        cancel(Call::Connection(self.get(), self.raw()), when)
    }

    /// Looks for an event, of which there is none.
    ///
    /// # Errors
    /// When it is answered otherwise.
    pub fn has_none(&self) -> Result<()> {
        let mut event = null_mut();
        // SAFETY: the channel lives, and its descriptor with it; there is a place for the event.
        let (got, errno) = unsafe {
            let fd = BorrowedFd::borrow_raw((*self.raw()).fd);
            let flags = OFlag::from_bits_truncate(fcntl(fd, FcntlArg::F_GETFL)?);
            fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
            let got = (self.get())(self.raw(), &raw mut event);
            let errno = Errno::last();
            fcntl(fd, FcntlArg::F_SETFL(flags))?;
            (got, errno)
        };
        ensure!((got, errno) == (-1, Errno::EAGAIN), "{got}, {errno}");
        Ok(())
    }
}
