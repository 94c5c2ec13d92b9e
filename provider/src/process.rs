//! Locks of what belongs to the process as a whole, which a fork must not leave held.

use std::cell::RefCell;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A value of the process behind a lock that is only ever held for a moment.
///
/// A child is forked with a copy of every lock, held or not, and without the threads that would give
/// them back. So [`hold_all`] takes these before a fork and [`release_all`] gives them back after
/// it, on both sides; they are the standard library's, whose state is one word of ordinary memory.
#[derive(Debug)]
pub(crate) struct ProcessLock<T>(Mutex<T>);

impl<T> ProcessLock<T> {
    /// Makes the lock.
    pub(crate) const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Uses the value; `act` waits for nothing.
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        act(&mut self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lock that is held over a fork, whatever it protects.
trait Hold: Sync {
    fn hold(&'static self) -> Box<dyn Held>;
}

trait Held {}
impl<T> Held for MutexGuard<'static, T> {}

impl<T: Send> Hold for ProcessLock<T> {
    fn hold(&'static self) -> Box<dyn Held> {
        Box::new(self.lock())
    }
}

/// Every lock of the process, in the order in which they are taken.
fn all() -> [&'static dyn Hold; 5] {
    [
        &crate::control::SHARED,
        &crate::ffi::hook::OURS,
        &crate::ucm::CHANNELS,
        &crate::ffi::device::LISTED,
        &crate::lives::CARDS,
    ]
}

thread_local! {
    static HELD: RefCell<Vec<Box<dyn Held>>> = const { RefCell::new(Vec::new()) };
}

/// Takes every lock of the process, before the calling thread forks.
pub(crate) extern "C" fn hold_all() {
    // A thread that is ending has no place of its own any more; then nothing is held.
    let _ = HELD.try_with(|held| held.borrow_mut().extend(all().map(Hold::hold)));
}

/// Gives back what [`hold_all`] took, in the parent and in the child.
pub(crate) extern "C" fn release_all() {
    let _ = HELD.try_with(|held| held.borrow_mut().clear());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_is_held_over_a_fork_is_free_afterwards() {
        hold_all();
        let waits = std::thread::spawn(|| crate::control::SHARED.with(|_| ()));
        release_all();
        waits.join().unwrap();
        crate::control::SHARED.with(|_| ());
    }
}
