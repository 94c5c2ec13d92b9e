//! The lock of a queue, which a thread domain does away with; and that of a send queue, which a list that a program builds
//! call by call keeps.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering, compiler_fence};
use std::time::Duration;

use hostmem::barrier::store_then_load_everywhere;
use hostmem::{FutexGuard, FutexMutex, Waiters};

/// Keeps two threads from posting to one queue at a time, or leaves that to the program.
///
/// A QP of a parent domain with a thread domain is used by one thread at a time: its program said
/// so. Then there is no lock. Queues keep what the lock protects in relaxed atomics, so that a
/// program that breaks its word gets a garbled queue, which the card's checks contain, and not
/// undefined behaviour.
#[derive(Debug)]
pub(crate) struct QueueLock {
    is_needed: bool,
    mutex: FutexMutex<()>,
}

/// Holds a [`QueueLock`] until dropped.
pub(crate) struct QueueGuard<'a> {
    held: Option<FutexGuard<'a, ()>>,
}

impl<'a> QueueGuard<'a> {
    /// Holds the queue on, with nothing that says so.
    #[inline(always)]
    fn keep(self) {
        if let Some(guard) = self.held {
            guard.keep();
        }
    }

    /// Gives the queue back, as dropping does, but wakes no waiting thread yet.
    #[inline(always)]
    pub(crate) fn release(self) -> Option<Waiters<'a, ()>> {
        self.held.and_then(FutexGuard::release)
    }
}

impl QueueLock {
    /// Makes the lock, or with `single_threaded` none.
    pub(crate) fn new(single_threaded: bool) -> Self {
        Self { is_needed: !single_threaded, mutex: FutexMutex::new(()) }
    }

    /// Waits for the queue.
    #[inline(always)]
    pub(crate) fn lock(&self) -> QueueGuard<'_> {
        QueueGuard { held: self.is_needed.then(|| self.mutex.lock()) }
    }

    /// What [`QueueGuard::keep`] left: the caller holds the queue.
    #[inline(always)]
    fn kept(&self) -> QueueGuard<'_> {
        QueueGuard { held: self.is_needed.then(|| self.mutex.kept()) }
    }

    /// Takes the queue if nobody has it.
    #[inline(always)]
    pub(crate) fn try_lock(&self) -> Option<QueueGuard<'_>> {
        Some(match self.is_needed {
            false => QueueGuard { held: None },
            true => QueueGuard { held: Some(self.mutex.try_lock()?) },
        })
    }
}

/// A value of *list*: none is open, or it is about to be posted.
const NONE: u8 = 0;
/// In *list*.
const OPEN: u8 = 1;

/// A value of *end*: a list is posted, and gives the lock back.
const GIVES_BACK: u32 = 1;
/// A value of *end*: a list is posted, and there is no lock.
const NO_LOCK: u32 = 0;
/// A value of *end*: a list is not posted.
const OVERTAKEN: u32 = 2;

/// The time after which a thread that waits for a post looks again whether a list has begun since.
const LOOK_AGAIN: Duration = Duration::from_micros(100);

/// The lock of a send queue, which a list that is built call by call holds from the first call to the last.
///
/// Between two calls nothing is done, for as long as the program likes, and it may never go on. So a thread that resets
/// the queue waits for no list, which may be its own, but *overtakes* it: none of it is posted when it ends.
///
/// | word | writer | meaning |
/// |---|---|---|
/// | *list* | the holder of the lock | whether a list is open |
/// | *end* | the overtaking thread; the end of a list that was overtaken | how a list ends |
///
/// The posting thread marks its list as closed, *then* looks how it ends; the overtaking thread marks the end, *then*
/// looks whether a list is open. With a full fence between on both sides one of them sees the other. The first side is
/// on the data path, so the other has the kernel put its fence there. If no list is open, another thread is posting at
/// this moment, and the overtaking one waits for it.
#[derive(Debug)]
pub(crate) struct SendLock {
    queue: QueueLock,
    list: AtomicU8,
    end: AtomicU32,
    /// Held by a thread that overtakes a list, until it has changed the queue, and by the end of that list.
    overtaking: FutexMutex<()>,
}

/// The end of a list, with the lock that it held; no thread can overtake it any more.
pub(crate) struct ListEnd<'a> {
    /// Whether it was overtaken: then nothing of it may be posted.
    pub is_overtaken: bool,
    /// The queue.
    pub guard: QueueGuard<'a>,
    _one: Option<FutexGuard<'a, ()>>,
}

impl SendLock {
    /// As [`QueueLock::new`].
    pub(crate) fn new(single_threaded: bool) -> Self {
        let queue = QueueLock::new(single_threaded);
        let end = AtomicU32::new(usual_end(&queue));
        Self { queue, list: AtomicU8::new(NONE), end, overtaking: FutexMutex::default() }
    }

    /// Waits for the queue, also for a list.
    #[inline(always)]
    pub(crate) fn lock(&self) -> QueueGuard<'_> {
        self.queue.lock()
    }

    /// Takes the queue if nobody has it.
    #[inline(always)]
    pub(crate) fn try_lock(&self) -> Option<QueueGuard<'_>> {
        self.queue.try_lock()
    }

    /// Leaves the queue held by a list, until [`Self::end`] or [`Self::end_at_once`].
    #[inline(always)]
    pub(crate) fn keep_for_list(&self, guard: QueueGuard<'_>) {
        guard.keep();
        self.list.store(OPEN, Ordering::Release);
    }

    /// Ends the list to post it. `None` where it may have been overtaken or there is no lock: [`Self::end`] tells.
    #[inline(always)]
    pub(crate) fn end_at_once(&self) -> Option<QueueGuard<'_>> {
        self.list.store(NONE, Ordering::Release);
        compiler_fence(Ordering::SeqCst);
        let is_usual = self.end.load(Ordering::Relaxed) == GIVES_BACK;
        // Not `then_some`: a guard that is made is also dropped.
        is_usual.then(|| QueueGuard { held: Some(self.queue.mutex.kept()) })
    }

    /// Ends the list, whatever has become of it.
    pub(crate) fn end(&self) -> ListEnd<'_> {
        self.list.store(NONE, Ordering::Release);
        // Where there is no lock, one thread alone writes how it ends.
        let one = self.queue.is_needed.then(|| self.overtaking.lock());
        let is_overtaken = self.end.load(Ordering::Relaxed) == OVERTAKEN;
        self.end.store(usual_end(&self.queue), Ordering::Relaxed);
        ListEnd { is_overtaken, guard: self.queue.kept(), _one: one }
    }

    /// Changes the queue while no thread posts to it, and overtakes a list that is open.
    pub(crate) fn overtake(&self, change: impl FnOnce()) {
        let mut taken = self.queue.try_lock();
        while taken.is_none() {
            if let Some(_one) = self.overtake_list() {
                return change();
            }
            let within = self.queue.mutex.lock_within(LOOK_AGAIN);
            taken = within.map(|guard| QueueGuard { held: Some(guard) });
        }
        // Where there is no lock, one may be open all the same.
        if self.list.load(Ordering::Relaxed) == OPEN {
            self.end.store(OVERTAKEN, Ordering::Relaxed);
        }
        change();
    }

    /// Overtakes the list that is open, which does not end before the guard is dropped; `None` where none is.
    fn overtake_list(&self) -> Option<FutexGuard<'_, ()>> {
        let one = self.overtaking.lock();
        let before = self.end.swap(OVERTAKEN, Ordering::Relaxed);
        store_then_load_everywhere();
        if self.list.load(Ordering::Acquire) == OPEN {
            return Some(one);
        }
        // A list that was overtaken before, and that just ends, remains so.
        self.end.store(before, Ordering::Relaxed);
        None
    }
}

/// How a list ends that is not overtaken.
fn usual_end(queue: &QueueLock) -> u32 {
    if queue.is_needed { GIVES_BACK } else { NO_LOCK }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_just_ends_remains_overtaken_when_the_queue_is_reset_again() {
        let lock = SendLock::new(false);
        lock.keep_for_list(lock.lock());
        lock.overtake(|| ());
        assert!(lock.end_at_once().is_none());
        // Another thread resets the queue before the list has asked what became of it.
        assert!(lock.overtake_list().is_none());
        assert!(lock.end().is_overtaken);
        // The next list is another.
        lock.keep_for_list(lock.lock());
        assert!(lock.end_at_once().is_some());
    }

    #[test]
    fn without_a_lock_a_list_is_overtaken_once() {
        let lock = SendLock::new(true);
        for overtaken in [true, false] {
            lock.keep_for_list(lock.lock());
            if overtaken {
                lock.overtake(|| ());
            }
            assert!(lock.end_at_once().is_none());
            assert_eq!(lock.end().is_overtaken, overtaken);
        }
    }
}
