//! Mappings of device memory that may go away under their users.
//!
//! A PCI function whose memory is switched off, or that was taken out, can no longer be mapped: the
//! kernel answers an access to its BAR by SIGBUS, which would end a program that did nothing wrong.
//! The first such mapping of a process installs a handler: the page that was touched is replaced by
//! one of ordinary memory filled with ones, as reads of a function that is gone return, and the
//! mapping is marked as lost. Accesses to anything else go to the handler that was there before.
//!
//! A program that installs a handler for SIGBUS of its own afterwards, without calling the former
//! one, takes this away.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use nix::errno::Errno;

use crate::{Error, PAGE_BYTES, Result};

/// Ranges of device memory that a process maps at a time.
const PLACES: usize = 256;

/// A range whose loss is looked out for; free while its end is 0.
struct WatchedRange {
    start: AtomicUsize,
    end: AtomicUsize,
    lost: AtomicBool,
}

static WATCHED: [WatchedRange; PLACES] = [const {
    WatchedRange {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        lost: AtomicBool::new(false),
    }
}; PLACES];

/// Held to take a place; the handler only reads.
static TAKING: Mutex<()> = Mutex::new(());
static INSTALLED: OnceLock<Option<Former>> = OnceLock::new();

/// The handler that was there before.
struct Former(libc::sigaction);

// SAFETY: the structure is numbers and the addresses of functions, which belong to no thread.
unsafe impl Send for Former {}
// SAFETY: as above; it is only read.
unsafe impl Sync for Former {}

/// A range of addresses that is looked out for, until it is dropped.
#[derive(Debug)]
pub(crate) struct LossWatch {
    place: usize,
}

impl LossWatch {
    /// Looks out for a range of device memory that was just mapped.
    pub(crate) fn new(start: usize, bytes: usize) -> Result<Self> {
        if INSTALLED.get_or_init(install).is_none() {
            return Err(Error::Os { call: "sigaction(SIGBUS)", errno: Errno::EINVAL });
        }
        let _taking = TAKING.lock().unwrap_or_else(PoisonError::into_inner);
        let free = WATCHED.iter().position(|place| place.end.load(Ordering::Relaxed) == 0);
        let Some((index, place)) = free.and_then(|index| Some((index, WATCHED.get(index)?))) else {
            return Err(Error::BadSize {
                object: "a process",
                value: PLACES as u64 + 1,
                unit: "mappings of device memory",
                rule: "it can have 256",
            });
        };
        place.lost.store(false, Ordering::Relaxed);
        place.start.store(start, Ordering::Relaxed);
        place.end.store(start.saturating_add(bytes), Ordering::Release);
        Ok(Self { place: index })
    }

    /// Whether an access found the device gone.
    pub(crate) fn is_lost(&self) -> bool {
        WATCHED.get(self.place).is_some_and(|place| place.lost.load(Ordering::Relaxed))
    }
}

impl Drop for LossWatch {
    fn drop(&mut self) {
        if let Some(place) = WATCHED.get(self.place) {
            place.end.store(0, Ordering::Release);
        }
    }
}

fn install() -> Option<Former> {
    let mut wanted = MaybeUninit::<libc::sigaction>::zeroed();
    let mut former = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all-zero is a value of the structure: no flags, an empty mask, the default handler.
    let wanted = unsafe { wanted.assume_init_mut() };
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_bus_error;
    wanted.sa_sigaction = handler as usize;
    wanted.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: both structures live through the call; the handler does only what is allowed in one.
    let installed = unsafe { libc::sigaction(libc::SIGBUS, wanted, former.as_mut_ptr()) };
    if installed != 0 {
        return None;
    }
    // SAFETY: the call succeeded and has written it.
    Some(Former(unsafe { former.assume_init() }))
}

/// The handler. It calls system calls only, and keeps errno.
extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel hands a valid structure, and SIGBUS fills its address.
    let address = unsafe { (*info).si_addr() } as usize;
    let place = WATCHED.iter().find(|place| {
        let end = place.end.load(Ordering::Acquire);
        end != 0 && (place.start.load(Ordering::Relaxed)..end).contains(&address)
    });
    let errno = Errno::last_raw();
    match place {
        Some(place) if replace(address & !(PAGE_BYTES - 1)) => {
            place.lost.store(true, Ordering::Release);
        }
        _ => former(signal, info, context),
    }
    Errno::set_raw(errno);
}

/// Puts a page of ones where device memory was.
fn replace(page: usize) -> bool {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
    let ones = unsafe { libc::mmap(null_mut(), PAGE_BYTES, protection, flags, -1, 0) };
    if ones == libc::MAP_FAILED {
        return false;
    }
    // SAFETY: the page was just mapped for writing.
    unsafe { ones.cast::<u8>().write_bytes(0xff, PAGE_BYTES) };
    let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let page = page as *mut libc::c_void;
    // SAFETY: the page lies in a range of device memory that its owner has mapped and not given
    // back; its users reach it by volatile and atomic accesses, to which any bytes are a value. The
    // new page takes its place at once, so that no other thread sees it half filled.
    let moved = unsafe { libc::mremap(ones, PAGE_BYTES, PAGE_BYTES, how, page) };
    moved != libc::MAP_FAILED
}

/// Passes a signal on to the handler that was there before.
fn former(signal: c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let Some(Some(Former(action))) = INSTALLED.get() else { return };
    match action.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => {
            // Restores the default: the access happens again and ends the program.
            // SAFETY: the structure is one that the kernel gave.
            unsafe { libc::sigaction(libc::SIGBUS, action, null_mut()) };
        }
        handler if action.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: with this flag the address is that of such a function.
            let handler = unsafe {
                std::mem::transmute::<
                    usize,
                    extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::c_void),
                >(handler)
            };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: without the flag the address is that of such a function.
            let handler = unsafe { std::mem::transmute::<usize, extern "C" fn(c_int)>(handler) };
            handler(signal);
        }
    }
}
