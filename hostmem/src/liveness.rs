//! Seeing, by one load, that another process has died.
//!
//! The holder keeps a robust mutex locked in a page that others map read-only. When the thread that
//! locked it ends, in any way, the kernel walks that thread's list of robust locks and sets
//! the OWNER_DIED bit in the lock's word. Readers need no descriptor, no system call and no
//! signal: a poll loop that found nothing looks at the word.
//!
//! The word is the first one of the C library's `pthread_mutex_t` (glibc; a futex word as the
//! kernel's robust-list interface defines it): the holder's thread id in bits 29:0, waiters in bit
//! 31, OWNER_DIED in bit 30. A holder that gives the lock back sets OWNER_DIED itself, so that its
//! readers test one bit. 0 means never held.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::errno::Errno;

use crate::mapping::SharedMapping;
use crate::word::SharedWord;
use crate::{Error, Result};

#[cfg(not(target_env = "gnu"))]
compile_error!("the place of the lock word in pthread_mutex_t is known for glibc only");

/// Bit of a futex word that the kernel sets when the thread that held the lock has ended.
const OWNER_DIED: u32 = 0x4000_0000;

/// Bytes a liveness lock takes up in its page.
pub const LIVENESS_BYTES: usize = size_of::<libc::pthread_mutex_t>();

/// Alignment of a liveness lock in its page, in bytes.
pub const LIVENESS_ALIGNMENT: usize = 64;

/// A held liveness lock: as long as it exists and its thread runs, readers see its holder alive.
///
/// It is bound to the thread that made it, whose end counts. Dropping it gives the lock back, and
/// readers then see the holder dead. Only the holder may be able to write the page.
#[derive(Debug)]
pub struct Liveness {
    mapping: Arc<SharedMapping>,
    mutex: *mut libc::pthread_mutex_t,
    // The lock is owned by a thread: neither Send nor Sync.
    _thread: PhantomData<*const ()>,
}

impl Liveness {
    /// Takes the lock at `offset` (a multiple of 64) for the calling thread.
    ///
    /// The mapping is one that can be written; the page is one that others can only read
    /// ([`crate::memfd::create_read_only_for_others`]), and nothing else lies in the lock's
    /// [`LIVENESS_BYTES`]. A lock that is held there already is refused with EBUSY.
    pub fn hold(mapping: Arc<SharedMapping>, offset: usize) -> Result<Self> {
        const OBJECT: &str = "liveness lock";
        mapping.must_be_writable(OBJECT)?;
        let at = mapping.span(OBJECT, offset, LIVENESS_BYTES, LIVENESS_ALIGNMENT)?;
        if mapping.load_acquire_u32(offset)? & !OWNER_DIED != 0 {
            return Err(Error::Os { call: "liveness lock", errno: Errno::EBUSY });
        }
        let mutex: *mut libc::pthread_mutex_t = at.as_ptr().cast();
        let attributes = Attributes::new()?;
        // SAFETY: `mutex` is aligned and within the mapping, which lives as long as the lock; no lock is held there, so
        // initialising it anew disturbs no thread.
        check("pthread_mutex_init", unsafe { libc::pthread_mutex_init(mutex, &attributes.0) })?;
        // SAFETY: the mutex was just initialised.
        check("pthread_mutex_lock", unsafe { libc::pthread_mutex_lock(mutex) })?;
        Ok(Self { mapping, mutex, _thread: PhantomData })
    }
}

/// A liveness lock as its readers see it.
#[derive(Debug, Clone)]
pub struct Lifeline(SharedWord);

impl Lifeline {
    /// Looks at the lock at `offset`, a multiple of 4, of a mapping that need not be writable.
    ///
    /// A process has taken it before: until then no process counts as dead.
    pub fn new(mapping: Arc<SharedMapping>, offset: usize) -> Result<Self> {
        SharedWord::new(mapping, offset).map(Self)
    }

    /// Whether the holder of the lock has ended or given it back.
    ///
    /// An acquire load: the holder's stores before it died are seen afterwards.
    #[inline(always)]
    pub fn is_dead(&self) -> bool {
        self.0.load_acquire() & OWNER_DIED != 0
    }
}

impl Drop for Liveness {
    fn drop(&mut self) {
        // A forked child owns neither the lock nor the mapping it lies in.
        if self.mapping.is_ours() {
            // SAFETY: this thread holds the lock (we are not Send) and the page is still mapped.
            // Unlocking also takes the lock off this thread's robust list, before the page goes.
            let unlocked = unsafe { libc::pthread_mutex_unlock(self.mutex) };
            debug_assert_eq!(unlocked, 0);
            // SAFETY: the first word of the mutex is a futex word in a page that is still mapped; no thread holds the
            // lock, and only holders write the word.
            let word = unsafe { AtomicU32::from_ptr(self.mutex.cast()) };
            word.store(OWNER_DIED.to_le(), Ordering::Release);
        }
    }
}

/// Attributes of a mutex that is shared between processes and robust.
struct Attributes(libc::pthread_mutexattr_t);

impl Attributes {
    fn new() -> Result<Self> {
        // SAFETY: an all-zero attribute object is plain data, initialised by the next call.
        let mut attributes = Self(unsafe { std::mem::zeroed() });
        let this = &raw mut attributes.0;
        // SAFETY: the pointer is to the object above, which outlives the calls.
        unsafe {
            check("pthread_mutexattr_init", libc::pthread_mutexattr_init(this))?;
            check(
                "pthread_mutexattr_setpshared",
                libc::pthread_mutexattr_setpshared(this, libc::PTHREAD_PROCESS_SHARED),
            )?;
            check(
                "pthread_mutexattr_setrobust",
                libc::pthread_mutexattr_setrobust(this, libc::PTHREAD_MUTEX_ROBUST),
            )?;
        }
        Ok(attributes)
    }
}

impl Drop for Attributes {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once.
        unsafe { libc::pthread_mutexattr_destroy(&raw mut self.0) };
    }
}

fn check(call: &'static str, error_number: i32) -> Result<()> {
    match error_number {
        0 => Ok(()),
        number => Err(Error::Os { call, errno: Errno::from_raw(number) }),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use nix::sys::signal::{Signal, kill};
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork, pipe};

    use super::*;
    use crate::{Access, memfd};

    fn page() -> (OwnedFd, Arc<SharedMapping>) {
        let (fd, writer) = memfd::create_read_only_for_others("liveness", 4096).unwrap();
        (fd, Arc::new(writer))
    }

    fn reader(fd: &OwnedFd) -> Arc<SharedMapping> {
        Arc::new(SharedMapping::new(fd.as_fd(), 0, 4096, Access::ReadOnly).unwrap())
    }

    fn is_dead(reader: &Arc<SharedMapping>, offset: usize) -> bool {
        Lifeline::new(Arc::clone(reader), offset).unwrap().is_dead()
    }

    #[test]
    fn the_holder_is_alive_until_it_gives_the_lock_back() {
        let (fd, writer) = page();
        let reader = reader(&fd);
        assert_eq!(reader.load_relaxed_u32(64).unwrap(), 0);
        let held = Liveness::hold(writer.clone(), 64).unwrap();
        assert!(!is_dead(&reader, 64));
        let again = Liveness::hold(writer.clone(), 64).unwrap_err();
        assert_eq!(again.errno(), Some(Errno::EBUSY));
        drop(held);
        assert!(is_dead(&reader, 64));
        let _held = Liveness::hold(writer, 64).unwrap();
        assert!(!is_dead(&reader, 64));
    }

    #[test]
    fn the_end_of_the_thread_that_forgot_the_lock_counts() {
        let (fd, writer) = page();
        let reader = reader(&fd);
        let thread = std::thread::spawn(move || {
            std::mem::forget(Liveness::hold(writer, 0).unwrap());
        });
        thread.join().unwrap();
        assert!(is_dead(&reader, 0));
        assert_eq!(reader.load_relaxed_u32(0).unwrap() & OWNER_DIED, OWNER_DIED);
    }

    #[test]
    fn a_lock_is_not_made_where_it_does_not_fit_or_cannot_be_written() {
        let (fd, writer) = page();
        assert!(matches!(Liveness::hold(writer.clone(), 8), Err(Error::Misaligned { .. })));
        assert!(matches!(Liveness::hold(writer, 4096), Err(Error::OutOfRange { .. })));
        let read_only = reader(&fd);
        assert!(matches!(Liveness::hold(read_only, 0), Err(Error::ReadOnly { .. })));
    }

    #[test]
    fn a_killed_holder_is_seen_dead() {
        // Mappings are not inherited, so the child maps the file anew and this file is writable.
        let fd = memfd::create("liveness", 4096).unwrap();
        let map = |access| SharedMapping::new(fd.as_fd(), 0, 4096, access).unwrap();
        let reader = Arc::new(map(Access::ReadOnly));
        let (ready, tell) = pipe().unwrap();
        // SAFETY: the child runs only code that takes no lock another thread could have held.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                let held = Liveness::hold(Arc::new(map(Access::ReadWrite)), 128);
                let told = nix::unistd::write(&tell, &[u8::from(held.is_ok())]);
                debug_assert!(told.is_ok());
                loop {
                    nix::unistd::pause();
                }
            }
            ForkResult::Parent { child } => {
                let mut byte = [0];
                assert_eq!(nix::unistd::read(&ready, &mut byte).unwrap(), 1);
                assert_eq!(byte, [1], "the child could not take the lock");
                assert!(!is_dead(&reader, 128));
                kill(child, Signal::SIGKILL).unwrap();
                let status = waitpid(child, None).unwrap();
                assert!(matches!(status, WaitStatus::Signaled(_, Signal::SIGKILL, _)));
                assert!(is_dead(&reader, 128));
            }
        }
    }

    #[test]
    fn a_forked_child_cannot_give_the_lock_back() {
        let (fd, writer) = page();
        let reader = reader(&fd);
        let held = Liveness::hold(writer, 0).unwrap();
        // SAFETY: the child only drops the lock and ends.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                drop(held);
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(0) }
            }
            ForkResult::Parent { child } => {
                assert!(matches!(waitpid(child, None).unwrap(), WaitStatus::Exited(_, 0)));
                assert!(!is_dead(&reader, 0));
                drop(held);
                assert!(is_dead(&reader, 0));
            }
        }
    }
}
