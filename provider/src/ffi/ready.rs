//! Waiting until a program has acknowledged the events it was handed.

use libc::{pthread_cond_t, pthread_mutex_t};

/// Waits until each counter has reached its number.
///
/// libibverbs counts acknowledged events under the mutex and signals the condition.
///
/// # Safety
/// Mutex, condition and counters are those of one living object; counters change under the mutex
/// only.
pub(super) unsafe fn wait(
    mutex: *mut pthread_mutex_t,
    condition: *mut pthread_cond_t,
    counters: &[(*const u32, u32)],
) {
    // SAFETY: as the caller promises: all pointers are live, and the mutex is held around every
    // read of a counter.
    unsafe {
        libc::pthread_mutex_lock(mutex);
        while counters.iter().any(|&(counter, number)| counter.read_volatile() != number) {
            libc::pthread_cond_wait(condition, mutex);
        }
        libc::pthread_mutex_unlock(mutex);
    }
}
