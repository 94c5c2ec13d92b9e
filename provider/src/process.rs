//! Locks of the process as a whole, which a fork must not leave held.

use std::cell::RefCell;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A value of the process behind a lock that is only ever held for a moment.
///
/// A child is forked with a copy of every lock, held or not, and without the threads that would give
/// them back. So [`hold`] takes these before a fork and [`release`] gives them back after it, on
/// both sides; they are the standard library's, whose state is one word of ordinary memory.
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

/// A lock that is held over a fork.
pub(crate) trait Hold: Sync {
    /// Takes the lock, until the returned guard is dropped.
    fn hold(&'static self) -> Box<dyn Held>;
}

/// A lock that is held.
pub(crate) trait Held {}
impl<T> Held for MutexGuard<'static, T> {}

impl<T: Send> Hold for ProcessLock<T> {
    fn hold(&'static self) -> Box<dyn Held> {
        Box::new(self.lock())
    }
}

thread_local! {
    static HELD: RefCell<Vec<Box<dyn Held>>> = const { RefCell::new(Vec::new()) };
}

/// Takes locks before the calling thread forks, in their order.
pub(crate) fn hold(locks: &[&'static dyn Hold]) {
    // A thread that is ending has no place of its own any more; then nothing is held.
    let _ = HELD.try_with(|held| held.borrow_mut().extend(locks.iter().map(|lock| lock.hold())));
}

/// Releases the locks that [`hold`] took.
pub(crate) fn release() {
    let _ = HELD.try_with(|held| held.borrow_mut().clear());
}
