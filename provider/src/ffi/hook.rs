//! The place inside libibverbs where a kernel driver would answer.
//!
//! Completion channels and GIDs are questions that libibverbs asks its command descriptor by
//! `ioctl`, and it gets events by `read` from the provider's descriptors; the plug-in interface
//! has no operation for them. So libibverbs' own two slots for these functions are made to lead
//! here, and calls that are not about descriptors of ours go on to where they led before. The slots
//! belong to libibverbs alone: nothing else in the process is touched, and other providers' devices
//! pass through.

use std::ffi::{CStr, c_int, c_ulong, c_void};
use std::os::fd::{IntoRawFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use nix::errno::Errno;
use verbs_sys::ioctl::{RDMA_VERBS_IOCTL, ib_uverbs_attr, ib_uverbs_ioctl_hdr};

use super::cancel::{Uncancelled, peek};
use super::elf::Library;
use super::opened::core_address;
use crate::context::{Channel, Context};
use crate::error::{Error, Result};
use crate::events::EventSource;
use crate::process::ProcessLock;
use crate::uverbs::{self, Answer};

/// The role of a descriptor of the provider's.
enum Role {
    /// libibverbs sends commands to it.
    Command,
    /// Asynchronous events come from it.
    Events,
    /// Completion events come from it.
    Channel { number: u32, source: Arc<EventSource> },
}

pub(crate) struct Ours {
    fd: RawFd,
    context: Arc<Context>,
    role: Role,
}

/// The descriptors of ours that libibverbs knows.
pub(crate) static OURS: ProcessLock<Vec<Ours>> = ProcessLock::new(Vec::new());

/// Adds a descriptor; an earlier one of its number is closed.
fn add(fd: RawFd, context: &Arc<Context>, role: Role) {
    OURS.with(|all| {
        all.retain(|one| one.fd != fd);
        all.push(Ours { fd, context: Arc::clone(context), role });
    });
}

/// Begins to answer libibverbs' questions to a context's command descriptor.
pub(super) fn add_command(fd: RawFd, context: &Arc<Context>) {
    add(fd, context, Role::Command);
}

/// Begins to serve reads of a context's asynchronous events.
pub(super) fn add_events(fd: RawFd, context: &Arc<Context>) {
    add(fd, context, Role::Events);
}

/// Forgets every descriptor of a context.
pub(super) fn remove(context: &Arc<Context>) {
    OURS.with(|all| all.retain(|one| !Arc::ptr_eq(&one.context, context)));
}

/// Forgets a descriptor that turned out to be something else by now.
fn forget(fd: RawFd) {
    OURS.with(|all| all.retain(|one| one.fd != fd));
}

/// The completion channel of a context with that descriptor.
pub(super) fn channel(fd: RawFd, context: &Arc<Context>) -> Option<Channel> {
    OURS.with(|all| {
        let found = all.iter().find(|one| one.fd == fd && Arc::ptr_eq(&one.context, context))?;
        match &found.role {
            Role::Channel { number, source } => {
                Some(Channel { number: *number, fd, source: Arc::clone(source) })
            }
            _ => None,
        }
    })
}

fn commanded(fd: RawFd) -> Option<Arc<Context>> {
    OURS.with(|all| {
        let found = all.iter().find(|one| one.fd == fd && matches!(one.role, Role::Command));
        found.map(|one| Arc::clone(&one.context))
    })
}

fn source(fd: RawFd) -> Option<Arc<EventSource>> {
    OURS.with(|all| {
        let found = all.iter().find(|one| one.fd == fd)?;
        match &found.role {
            Role::Command => None,
            Role::Events => Some(Arc::clone(&found.context.asynchronous)),
            Role::Channel { source, .. } => Some(Arc::clone(source)),
        }
    })
}

type Ioctl = unsafe extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int;
type NextRead = unsafe extern "C" fn(c_int, *mut c_void, usize) -> isize;

/// Where libibverbs' calls led before; 0 stands for the C library.
static NEXT_IOCTL: AtomicUsize = AtomicUsize::new(0);
static NEXT_READ: AtomicUsize = AtomicUsize::new(0);

/// Makes libibverbs' calls lead here, once for the process.
pub(super) fn install() -> Result<()> {
    static INSTALLED: OnceLock<Result<(), &'static str>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| {
        patch(c"ioctl", ioctl as *const () as usize, &NEXT_IOCTL)?;
        patch(c"read", read as *const () as usize, &NEXT_READ)
    });
    installed.map_err(Error::Hook)
}

/// Makes libibverbs' calls of a function lead to ours.
pub(super) fn patch(function: &CStr, ours: usize, next: &AtomicUsize) -> Result<(), &'static str> {
    let library = Library::containing(core_address())
        .ok_or("it is not a library of its own; link the program dynamically")?;
    // SAFETY: libibverbs stays loaded: we depend on it, and it never unloads us.
    match unsafe { lead(&library, function, ours, next) } {
        Ok(0) => Err("it does not import what it should; is it of another release?"),
        Ok(_) => Ok(()),
        Err(_) => Err("its call table cannot be written"),
    }
}

/// Makes a library's calls of a function lead to ours, and says through how many slots it calls it.
///
/// # Safety
/// The library is not unloaded meanwhile.
pub(super) unsafe fn lead(
    library: &Library,
    function: &CStr,
    ours: usize,
    next: &AtomicUsize,
) -> Result<usize> {
    // SAFETY: as the caller promises.
    let slots = unsafe { library.slots(function) };
    for slot in &slots {
        let before = slot.function();
        if before == Some(ours) {
            continue;
        }
        if let Some(before) = before {
            next.store(before, Ordering::Release);
        }
        slot.replace(ours)?;
    }
    Ok(slots.len())
}

/// Sets `errno` and returns -1, as a failed system call does.
pub(super) fn fail(errno: i32) -> c_int {
    Errno::set_raw(errno);
    -1
}

/// libibverbs' `ioctl`.
unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if request == RDMA_VERBS_IOCTL {
        if let Some(context) = commanded(fd) {
            // SAFETY: with this request libibverbs passes a header and its attributes.
            return unsafe { command(&context, argument.cast()) };
        }
    }
    match NEXT_IOCTL.load(Ordering::Acquire) {
        // SAFETY: the call is handed on as it came; the C library's variadic function takes its
        // third argument as any function takes a pointer on the processors supported.
        0 => unsafe { libc::ioctl(fd, request, argument) },
        // SAFETY: the slot led to an `ioctl`.
        next => unsafe { std::mem::transmute::<usize, Ioctl>(next)(fd, request, argument) },
    }
}

/// Answers an ioctl on a command descriptor.
///
/// # Safety
/// The header is followed by its attributes, whose places for answers have the lengths they say.
unsafe fn command(context: &Arc<Context>, header: *mut ib_uverbs_ioctl_hdr) -> c_int {
    // The kernel's answer is no place to be cancelled at.
    let _uncancelled = Uncancelled::now();
    // SAFETY: as the caller promises.
    let (head, attrs) = unsafe {
        let attrs = header.add(1).cast::<ib_uverbs_attr>();
        (*header, std::slice::from_raw_parts(attrs, usize::from((*header).num_attrs)))
    };
    let write = |address: u64, bytes: &[u8]| {
        // SAFETY: each place has room for the bytes, as `uverbs` promises of its outputs.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) };
    };
    match uverbs::answer(context, head.object_id, head.method_id, attrs) {
        Err(errno) => fail(errno),
        Ok(Answer::Bytes(outputs)) => {
            for output in outputs {
                write(output.address, &output.bytes);
            }
            0
        }
        Ok(Answer::Channel { address, fd, number, source }) => {
            let fd = fd.into_raw_fd();
            add(fd, context, Role::Channel { number, source });
            write(address, &fd.to_ne_bytes());
            0
        }
    }
}

/// The outcome of a `read`.
enum Read {
    /// The descriptor is none of ours.
    Elsewhere,
    /// So many bytes, or it fails.
    Returned(Result<usize, Errno>),
    /// There is no record yet.
    NoRecord,
}

/// libibverbs' `read`.
unsafe extern "C-unwind" fn read(fd: c_int, buffer: *mut c_void, count: usize) -> isize {
    loop {
        // SAFETY: the caller has room for `count` bytes.
        match unsafe { record(fd, buffer, count) } {
            Read::Elsewhere => break,
            Read::Returned(Ok(bytes)) => return bytes as isize,
            Read::Returned(Err(errno)) => return fail(errno as i32) as isize,
            // Nothing is held here: a thread may be cancelled while it waits, as the descriptor's own mode says.
            Read::NoRecord => match peek(fd, 0) {
                // Where it is no socket any more, the next look says so.
                Ok(()) | Err(Errno::ENOTSOCK | Errno::EBADF) => {}
                Err(errno) => return fail(errno as i32) as isize,
            },
        }
    }
    match NEXT_READ.load(Ordering::Acquire) {
        // SAFETY: the call is handed on as it came.
        0 => unsafe { libc::read(fd, buffer, count) },
        // SAFETY: the slot led to a `read`.
        next => unsafe { std::mem::transmute::<usize, NextRead>(next)(fd, buffer, count) },
    }
}

/// Reads a record, if the descriptor is one of ours and there is one.
///
/// # Safety
/// There is room for `count` bytes at `buffer`.
unsafe fn record(fd: c_int, buffer: *mut c_void, count: usize) -> Read {
    let Some(source) = source(fd) else { return Read::Elsewhere };
    let mut record = [0; 16];
    let room = record.get_mut(..count.min(16)).unwrap_or_default();
    match source.read(fd, room) {
        Ok(None) => Read::NoRecord,
        Ok(Some(bytes)) => {
            // SAFETY: the caller has room for `count` bytes, and `bytes` is no more.
            unsafe { std::ptr::copy_nonoverlapping(record.as_ptr(), buffer.cast(), bytes) };
            Read::Returned(Ok(bytes))
        }
        // The channel was closed, and something else has its number now.
        Err(Errno::ENOTSOCK | Errno::EBADF) => {
            forget(fd);
            Read::Elsewhere
        }
        Err(errno) => Read::Returned(Err(errno)),
    }
}
