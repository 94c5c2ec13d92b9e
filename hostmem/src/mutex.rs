//! A mutex that without contention takes two locked instructions.
//!
//! The data path takes and gives back a lock with every call. The state is one word: free, held, or held while a
//! thread may be waiting for it; only the last costs a system call to give back. As the state is ordinary memory of
//! the process, a forked child has its own copy of it.
//!
//! The algorithm is the second one of Drepper's "Futexes Are Tricky".

use std::cell::UnsafeCell;
use std::hint::spin_loop;
use std::ops::{Deref, DerefMut};
use std::ptr::null;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const FREE: u32 = 0;
const HELD: u32 = 1;
const WAITED_FOR: u32 = 2;

/// Looks at a held lock before waiting for it: most holders have it for some ten nanoseconds.
const SPINS: u32 = 100;

/// A value that one thread at a time can use.
///
/// There is no poisoning: a thread that panics while it holds the lock gives it back.
#[derive(Debug, Default)]
// The state first: then the mutex's address is the state's, and the data path needs only one.
#[repr(C)]
pub struct FutexMutex<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is moved and reached by one thread at a time.
unsafe impl<T: Send> Send for FutexMutex<T> {}
// SAFETY: as above; a shared mutex gives the value to one holder at a time.
unsafe impl<T: Send> Sync for FutexMutex<T> {}

/// Holds a [`FutexMutex`] until dropped.
#[derive(Debug)]
pub struct FutexGuard<'a, T> {
    mutex: &'a FutexMutex<T>,
}

impl<T> FutexMutex<T> {
    /// A free mutex.
    pub const fn new(value: T) -> Self {
        Self { state: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    /// Takes the mutex if it is free.
    #[inline(always)]
    pub fn try_lock(&self) -> Option<FutexGuard<'_, T>> {
        let free = self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed);
        // Not `then_some`: a guard that is made is also dropped.
        free.is_ok().then(|| FutexGuard { mutex: self })
    }

    /// Waits for the mutex.
    #[inline(always)]
    pub fn lock(&self) -> FutexGuard<'_, T> {
        self.try_lock().unwrap_or_else(|| self.wait())
    }

    #[cold]
    #[inline(never)]
    fn wait(&self) -> FutexGuard<'_, T> {
        for _ in 0..SPINS {
            if let Some(guard) = self.try_lock() {
                return guard;
            }
            spin_loop();
        }
        // A holder that gives it back after this wakes a waiter. That may be once too often.
        loop {
            match self.lock_or_be_waited_for() {
                Some(guard) => return guard,
                None => wait_while(&self.state, WAITED_FOR, None),
            }
        }
    }

    /// Waits for the mutex, about so long at most.
    pub fn lock_within(&self, limit: Duration) -> Option<FutexGuard<'_, T>> {
        self.lock_or_be_waited_for().or_else(|| {
            self.wait_for(limit);
            self.lock_or_be_waited_for()
        })
    }

    /// Takes the mutex if it is free; if not, its holder will find that another thread may wait.
    pub(crate) fn lock_or_be_waited_for(&self) -> Option<FutexGuard<'_, T>> {
        let was_free = self.state.swap(WAITED_FOR, Ordering::Acquire) == FREE;
        was_free.then(|| FutexGuard { mutex: self })
    }

    /// Sleeps behind a [`Self::lock_or_be_waited_for`] in vain, until it is given back, or for that long.
    pub(crate) fn wait_for(&self, limit: Duration) {
        wait_while(&self.state, WAITED_FOR, Some(limit));
    }

    /// Gives it back; whether a thread may be waiting, which the caller must then wake.
    #[inline(always)]
    fn give_back(&self) -> bool {
        self.state.fetch_sub(1, Ordering::Release) != HELD
    }

    #[cold]
    #[inline(never)]
    fn wake(&self) {
        self.state.store(FREE, Ordering::Release);
        wake_one(&self.state);
    }
}

impl FutexMutex<()> {
    /// The guard of a mutex that the caller holds by one that it [kept](FutexGuard::keep), and by no other.
    #[inline(always)]
    pub fn kept(&self) -> FutexGuard<'_, ()> {
        FutexGuard { mutex: self }
    }
}

impl<'a, T> FutexGuard<'a, T> {
    /// Keeps the mutex held without a guard: the caller alone knows of it.
    #[inline(always)]
    pub fn keep(self) {
        std::mem::forget(self);
    }

    /// Gives the mutex back, as dropping the guard does, without waking waiting threads yet.
    ///
    /// For a caller that has a better place for the rare call than this one.
    #[inline(always)]
    pub fn release(self) -> Option<Waiters<'a, T>> {
        let mutex = self.mutex;
        std::mem::forget(self);
        mutex.give_back().then_some(Waiters { mutex })
    }
}

/// The threads that wait for a mutex that is about to be free.
#[must_use = "nobody gets the mutex before they are woken"]
pub struct Waiters<'a, T> {
    mutex: &'a FutexMutex<T>,
}

impl<T> Waiters<'_, T> {
    /// Frees the mutex and wakes one of them.
    pub fn wake(self) {
        self.mutex.wake();
    }
}

impl<T> Deref for FutexGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the mutex.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T> DerefMut for FutexGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is borrowed by one alone.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T> Drop for FutexGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.mutex.give_back() {
            self.mutex.wake();
        }
    }
}

/// Sleeps while the word has a value, or for that long; may return early.
pub(crate) fn wait_while(word: &AtomicU32, value: u32, limit: Option<Duration>) {
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    let limit = limit.map(|limit| libc::timespec {
        tv_sec: limit.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    });
    let limit = limit.as_ref().map_or(null(), std::ptr::from_ref);
    // SAFETY: the kernel reads the word and the time limit, which live.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, limit) };
}

/// Wakes one thread that sleeps on the word.
fn wake_one(word: &AtomicU32) {
    wake(word, 1);
}

/// Wakes all threads that sleep on the word.
pub(crate) fn wake_all(word: &AtomicU32) {
    wake(word, libc::c_int::MAX);
}

fn wake(word: &AtomicU32, most: libc::c_int) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel uses the address as a name only.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, most) };
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Barrier};

    use super::*;

    #[test]
    fn a_held_mutex_is_not_taken_and_is_free_afterwards() {
        let mutex = FutexMutex::new(1);
        let mut guard = mutex.lock();
        assert!(mutex.try_lock().is_none());
        assert!(mutex.try_lock().is_none(), "the attempt gave it back");
        *guard += 1;
        drop(guard);
        assert_eq!(*mutex.try_lock().unwrap(), 2);
    }

    #[test]
    fn a_mutex_whose_guard_was_kept_is_held_until_its_guard_is_taken_and_dropped() {
        let mutex = FutexMutex::new(());
        mutex.lock().keep();
        assert!(mutex.try_lock().is_none());
        drop(mutex.kept());
        mutex.try_lock().unwrap().keep();
        assert!(mutex.try_lock().is_none());
        assert!(mutex.kept().release().is_none(), "nobody waits");
        assert!(mutex.try_lock().is_some());
    }

    #[test]
    fn who_waits_for_a_held_mutex_for_a_while_gets_it_only_once_it_is_given_back() {
        let mutex = FutexMutex::new(1);
        let guard = mutex.lock();
        assert!(mutex.lock_within(Duration::from_micros(100)).is_none());
        drop(guard);
        assert_eq!(mutex.lock_within(Duration::ZERO).map(|guard| *guard), Some(1));
        assert!(mutex.try_lock().is_some());
    }

    #[test]
    fn many_threads_that_count_lose_nothing_and_all_come_through() {
        const THREADS: u32 = 8;
        const ROUNDS: u32 = 20_000;
        let mutex = Arc::new(FutexMutex::new(0));
        let begin = Arc::new(Barrier::new(THREADS as usize));
        let count = |mutex: Arc<FutexMutex<u32>>| {
            let begin = Arc::clone(&begin);
            move || {
                begin.wait();
                for round in 0..ROUNDS {
                    let mut count = mutex.lock();
                    // Now and then the others are made to sleep.
                    if round % 512 == 0 {
                        std::thread::yield_now();
                    }
                    *count += 1;
                    // Both ways of giving it back.
                    if round % 2 == 0 {
                        count.release().into_iter().for_each(Waiters::wake);
                    }
                }
            }
        };
        let threads: Vec<_> =
            (0..THREADS).map(|_| std::thread::spawn(count(Arc::clone(&mutex)))).collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(*mutex.lock(), THREADS * ROUNDS);
        assert_eq!(mutex.state.load(Ordering::Relaxed), FREE);
    }
}
