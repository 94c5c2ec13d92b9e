//! A value that one thread works with, and that another takes over when the first does not come back.
//!
//! A copy from another process's memory waits for the server of that memory: a file system in user
//! space, a `userfaultfd`. Nothing but the end of the whole process interrupts a thread that waits
//! so. A thread that must go on therefore makes such a call *without* its value
//! ([`Holder::without`]). Another thread watches ([`Watcher`]), and if the call takes too long it takes the
//! value and goes on in the place of the first one, which finds the value gone should it ever return.
//!
//! The word that decides on the owner of the value counts up: even while it is held, odd while its holder
//! is in a call. The thread that moves it on from an odd number has the value, and only one can. As the word
//! never repeats, a thread that returns after years takes nothing back.
//!
//! Leaving and coming back are an atomic operation each, and no system call while the watcher is
//! awake. The three steps are generic over the word, so that the loom model at the end of this file
//! runs the very code that production runs.

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};
use std::time::Duration;

/// The word that says whose the value is; the second implementation is the model checker's.
trait OwnershipWord {
    fn load(&self) -> u64;
    /// Stores, in one order with all such stores and loads.
    fn store(&self, turn: u64);
    /// Moves on from one number to another; `false` where the word is another one.
    fn exchange(&self, from: u64, to: u64) -> bool;
}

impl OwnershipWord for AtomicU64 {
    fn load(&self) -> u64 {
        Self::load(self, Ordering::SeqCst)
    }
    fn store(&self, turn: u64) {
        Self::store(self, turn, Ordering::SeqCst);
    }
    fn exchange(&self, from: u64, to: u64) -> bool {
        self.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

/// The word once no thread works with the value any more.
const ENDED: u64 = u64::MAX;

/// The holder of `turn` goes into a call; answers the number of the call.
#[inline(always)]
fn leave(word: &impl OwnershipWord, turn: u64) -> u64 {
    let call = turn.wrapping_add(1);
    word.store(call);
    call
}

/// Takes the value from the holder in the call of that number; the number of the new turn, or `None`
/// if another thread has taken it.
#[inline(always)]
fn take(word: &impl OwnershipWord, call: u64) -> Option<u64> {
    let turn = call.wrapping_add(1);
    word.exchange(call, turn).then_some(turn)
}

/// The state that holder and watcher share.
struct Shared<T> {
    word: AtomicU64,
    /// The watcher sleeps until the value is left.
    dozes: AtomicBool,
    watcher: OnceLock<Thread>,
    /// `None` once it has ended.
    value: UnsafeCell<Option<T>>,
}

// SAFETY: only the one `Holder` reaches the value, and the word hands that on from thread to thread
// with sequentially consistent operations. A `T` that is not Send was made by a closure that is, on
// the thread of the first holder (`Holder::new`): objects that it shares without synchronisation are
// parts of itself, and all of them go to the next thread together. `Holder::new` names the caller's
// duties.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above; all else in it is Sync.
unsafe impl<T> Sync for Shared<T> {}

/// The value, for the thread that works with it.
///
/// Dropping it ends the value: it is dropped there and then.
pub struct Holder<T> {
    shared: Arc<Shared<T>>,
    turn: u64,
    // The value is this thread's.
    _thread: PhantomData<*const ()>,
}

/// The state of a value as a watching thread sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// A thread works with it; the number of its turn.
    Held(u64),
    /// Its holder is in a call; the number of the call.
    Left(u64),
    /// The value has been dropped.
    Ended,
}

/// The end of the thread that watches.
pub struct Watcher<T>(Arc<Shared<T>>);

impl<T> Holder<T> {
    /// Makes a value for the calling thread to work with.
    ///
    /// The value goes to other threads as a whole, whether or not its type may. So nothing of it may be bound to a
    /// thread (a lock that is held, for one), and neither `make` nor a holder of the value may leave a part of it
    /// in a variable of the thread's.
    pub fn new<E>(make: impl FnOnce() -> Result<T, E> + Send) -> Result<Self, E> {
        let shared = Shared {
            word: AtomicU64::new(0),
            dozes: AtomicBool::new(false),
            watcher: OnceLock::new(),
            value: UnsafeCell::new(Some(make()?)),
        };
        Ok(Self { shared: Arc::new(shared), turn: 0, _thread: PhantomData })
    }

    /// A watch over it, for another thread.
    pub fn watch(&self) -> Watcher<T> {
        Watcher(Arc::clone(&self.shared))
    }

    /// Makes a call that may not return in time, without the value.
    ///
    /// `None` where another thread has taken the value meanwhile: the caller has nothing left to do.
    #[inline]
    pub fn without<R>(mut self, call: impl FnOnce() -> R + Send) -> Option<(Self, R)> {
        let number = leave(&self.shared.word, self.turn);
        if self.shared.dozes.load(Ordering::SeqCst) {
            self.shared.wake();
        }
        let result = call();
        self.turn = take(&self.shared.word, number)?;
        Some((self, result))
    }
}

impl<T> Deref for Holder<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the value is this holder's, which is borrowed, until it is left or dropped.
        let value = unsafe { &*self.shared.value.get() };
        let Some(value) = value else { unreachable!("a value that is held has not ended") };
        value
    }
}

impl<T> DerefMut for Holder<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and the holder is borrowed exclusively.
        let value = unsafe { &mut *self.shared.value.get() };
        let Some(value) = value else { unreachable!("a value that is held has not ended") };
        value
    }
}

impl<T> Drop for Holder<T> {
    fn drop(&mut self) {
        // In a call that panicked the value has been left; another may have it.
        let call = self.turn.wrapping_add(1);
        let held = self.shared.word.load(Ordering::SeqCst) == self.turn
            || take(&self.shared.word, call).is_some();
        if held {
            // SAFETY: the value is this holder's, and no reference to it is left.
            drop(unsafe { (*self.shared.value.get()).take() });
            OwnershipWord::store(&self.shared.word, ENDED);
            self.shared.wake();
        }
    }
}

impl<T> Shared<T> {
    fn wake(&self) {
        self.dozes.store(false, Ordering::SeqCst);
        if let Some(watcher) = self.watcher.get() {
            watcher.unpark();
        }
    }
}

impl<T> Watcher<T> {
    /// Whether the value is held.
    pub fn look(&self) -> Sight {
        match OwnershipWord::load(&self.0.word) {
            ENDED => Sight::Ended,
            turn if turn % 2 == 0 => Sight::Held(turn),
            call => Sight::Left(call),
        }
    }

    /// Sleeps for about that long, less if the value ends, and until a change if `seen`, the state seen last, is that
    /// it is held, and that still holds.
    ///
    /// One thread only, always the same.
    pub fn doze(&self, seen: Sight, about: Duration) {
        let shared = &*self.0;
        shared.watcher.get_or_init(thread::current);
        if let Sight::Held(_) = seen {
            shared.dozes.store(true, Ordering::SeqCst);
            while self.look() == seen && shared.dozes.load(Ordering::SeqCst) {
                thread::park();
            }
            shared.dozes.store(false, Ordering::SeqCst);
        }
        if self.look() != Sight::Ended {
            thread::park_timeout(about);
        }
    }

    /// Takes the value, for the calling thread, from the holder that is in the call of that number;
    /// `None` where it has come back.
    pub fn take(&self, call: u64) -> Option<Holder<T>> {
        let turn = take(&self.0.word, call)?;
        Some(Holder { shared: Arc::clone(&self.0), turn, _thread: PhantomData })
    }
}

impl<T> Clone for Watcher<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> fmt::Debug for Holder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Holder").field("turn", &self.turn).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Watcher<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Watcher").field(&self.look()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;
    use std::sync::mpsc;

    use super::*;

    /// A value that no thread could send.
    fn held(number: u32) -> Holder<Rc<Cell<u32>>> {
        Holder::new(|| Ok::<_, ()>(Rc::new(Cell::new(number)))).unwrap()
    }

    #[test]
    fn who_comes_back_in_time_goes_on() {
        let mut holder = held(1);
        let watch = holder.watch();
        for number in 0..10 {
            assert_eq!(watch.look(), Sight::Held(2 * number));
            let (back, seen) = holder.without(|| watch.look()).unwrap();
            assert_eq!(seen, Sight::Left(2 * number + 1));
            assert!(watch.take(2 * number + 1).is_none(), "it has come back");
            holder = back;
            holder.set(holder.get() + 1);
        }
        assert_eq!(holder.get(), 11);
        drop(holder);
        assert_eq!(watch.look(), Sight::Ended);
    }

    #[test]
    fn who_comes_back_late_has_nothing_left_to_do() {
        let (first, watches) = mpsc::channel();
        let (go_on, wait) = mpsc::channel::<()>();
        let late = thread::spawn(move || {
            let holder = held(7);
            first.send(holder.watch()).unwrap();
            holder.without(move || wait.recv().unwrap()).is_none()
        });
        let watch = watches.recv().unwrap();
        let mut holder = loop {
            match watch.look() {
                Sight::Left(call) => break watch.take(call).unwrap(),
                _ => thread::yield_now(),
            }
        };
        assert_eq!(holder.get(), 7);
        // The new holder is in a call too when the old one returns.
        holder = holder
            .without(|| {
                go_on.send(()).unwrap();
                assert!(late.join().unwrap(), "the value was taken");
            })
            .unwrap()
            .0;
        holder.set(8);
        drop(holder);
        assert_eq!(watch.look(), Sight::Ended);
    }

    #[test]
    fn a_watcher_sleeps_until_the_value_is_left_or_ends() {
        let holder = held(0);
        let watch = holder.watch();
        let (told, tells) = mpsc::channel();
        let watcher = thread::spawn(move || {
            while watch.look() != Sight::Ended {
                let seen = watch.look();
                watch.doze(seen, Duration::from_millis(1));
                let _ = told.send(seen);
            }
        });
        let (holder, ()) = holder
            .without(move || while !matches!(tells.recv().unwrap(), Sight::Left(_)) {})
            .unwrap();
        drop(holder);
        watcher.join().unwrap();
    }

    #[test]
    fn a_call_that_panics_ends_the_value() {
        let (first, watches) = mpsc::channel();
        let failed = thread::spawn(move || {
            let holder = held(7);
            first.send(holder.watch()).unwrap();
            holder.without(|| panic!("as it should")).is_none()
        });
        assert!(failed.join().is_err());
        assert_eq!(watches.recv().unwrap().look(), Sight::Ended);
    }
}

/// The protocol under loom: every interleaving and every stale load the memory model allows.
#[cfg(test)]
mod model {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64, Ordering};

    use super::{OwnershipWord, leave, take};

    impl OwnershipWord for AtomicU64 {
        fn load(&self) -> u64 {
            Self::load(self, Ordering::SeqCst)
        }
        fn store(&self, turn: u64) {
            Self::store(self, turn, Ordering::SeqCst);
        }
        fn exchange(&self, from: u64, to: u64) -> bool {
            self.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        }
    }

    struct Shared {
        word: AtomicU64,
        value: UnsafeCell<u32>,
    }

    impl Shared {
        /// Works with the value; loom fails where two threads do so at once, or one does not see
        /// the other's write.
        fn work(&self) {
            // SAFETY: the model shows that no other thread does so at once.
            self.value.with_mut(|value| unsafe { *value += 1 });
        }
    }

    #[test]
    fn one_thread_at_a_time_has_the_value_and_none_gets_it_back_from_its_successor() {
        loom::model(|| {
            let shared = Arc::new(Shared { word: AtomicU64::new(0), value: UnsafeCell::new(0) });
            let first = {
                let shared = Arc::clone(&shared);
                loom::thread::spawn(move || {
                    let mut turn = 0;
                    for _ in 0..2 {
                        shared.work();
                        match take(&shared.word, leave(&shared.word, turn)) {
                            Some(back) => turn = back,
                            None => return false,
                        }
                    }
                    shared.work();
                    true
                })
            };
            let seen = OwnershipWord::load(&shared.word);
            let taken = if seen % 2 == 1 { take(&shared.word, seen) } else { None };
            if let Some(turn) = taken {
                shared.work();
                // And is in a call itself, which is nobody else's to end.
                let call = leave(&shared.word, turn);
                let back = take(&shared.word, call);
                assert_eq!(back, Some(call + 1));
                shared.work();
            }
            assert_eq!(first.join().unwrap(), taken.is_none());
        });
    }
}
