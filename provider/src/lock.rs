//! The lock of a queue, which a thread domain does away with.

use hostmem::{FutexGuard, FutexMutex, Waiters};

/// Keeps two threads from posting to one queue at a time, or leaves that to the program.
///
/// A QP of a parent domain with a thread domain is used by one thread at a time: its program said
/// so. Then there is no lock. Queues keep what the lock protects in relaxed atomics, so that a
/// program that breaks its word gets a garbled queue, which the card's checks contain, and not
/// undefined behaviour.
#[derive(Debug)]
pub(crate) struct QueueLock(Option<FutexMutex<()>>);

/// Holds a [`QueueLock`] until dropped.
pub(crate) struct QueueGuard<'a> {
    held: Option<FutexGuard<'a, ()>>,
}

impl<'a> QueueGuard<'a> {
    /// Holds the queue on, until somebody takes [`QueueLock::kept`].
    #[inline(always)]
    pub(crate) fn keep(self) {
        if let Some(guard) = self.held {
            guard.keep();
        }
    }

    /// Gives the queue back, as dropping does; who waits for it is not woken yet.
    #[inline(always)]
    pub(crate) fn release(self) -> Option<Waiters<'a, ()>> {
        self.held.and_then(FutexGuard::release)
    }
}

impl QueueLock {
    /// Makes the lock, or with `single_threaded` none.
    pub(crate) fn new(single_threaded: bool) -> Self {
        Self((!single_threaded).then(|| FutexMutex::new(())))
    }

    /// Waits for the queue.
    #[inline(always)]
    pub(crate) fn lock(&self) -> QueueGuard<'_> {
        QueueGuard { held: self.0.as_ref().map(FutexMutex::lock) }
    }

    /// What [`QueueGuard::keep`] left: the caller holds the queue.
    #[inline(always)]
    pub(crate) fn kept(&self) -> QueueGuard<'_> {
        QueueGuard { held: self.0.as_ref().map(FutexMutex::kept) }
    }

    /// Takes the queue if nobody has it.
    #[inline(always)]
    pub(crate) fn try_lock(&self) -> Option<QueueGuard<'_>> {
        Some(match &self.0 {
            None => QueueGuard { held: None },
            Some(mutex) => QueueGuard { held: Some(mutex.try_lock()?) },
        })
    }
}
