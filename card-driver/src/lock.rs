//! Locking of data that balboad's threads share.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex. Its last holder may have panicked: each change is whole by itself, and the others go on.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
