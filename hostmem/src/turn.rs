//! A mutex whose holder may keep its turn while it rests, and whose value others may change meanwhile.
//!
//! A thread that takes completions one by one has the queue for itself from the first to the last, so others that
//! poll wait. But between two calls it does nothing, for as long as it likes, and may never go on. A thread that
//! changes the queue waits for no more than a call: while the holder [rests](TurnGuard::rest), it changes the value
//! beside it ([`Turn::change`]).
//!
//! | word | writer | meaning |
//! |---|---|---|
//! | the turn, a [`FutexMutex`] | all | whether a thread has it |
//! | *resting* | the holder of the turn | the holder does not touch the value now |
//! | *changes* | the changing thread | a thread changes the value, or is about to |
//!
//! A holder that goes on takes back that it rests, *then* looks for a change; a changer announces itself, *then*
//! looks whether the holder rests. With a full fence between on both sides one of them sees the other. The side
//! that goes on does so with each completion, so it has none: the changer has the kernel put one into every thread
//! of the process (membarrier(2)), which costs microseconds while a thread has the turn, and nothing otherwise.
//! Where the kernel offers none, the other side is told to look behind a fence of its own. The steps are generic
//! over the words, so that the loom model at the end of this file runs the very code that production runs.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering, compiler_fence};
use std::time::Duration;

use crate::barrier::{self, STORED, fence_of_all};
use crate::mutex::{FutexGuard, FutexMutex, Waiters, wait_while, wake_all};

/// In *changes*: a thread changes the value, or is about to.
const CHANGES: u32 = 1;
/// In *changes*, for good: a holder that goes on needs a fence of its own.
const FENCES: u32 = 2;

/// The interval at which a changing thread looks whether the holder, which was in a call, rests: the holder does not
/// tell.
const LOOK_AGAIN: Duration = Duration::from_micros(100);

/// A word of the lock's; the second implementation is the model checker's.
trait TurnWord {
    fn load(&self) -> u32;
    fn store(&self, value: u32);
    fn set(&self, bits: u32);
    fn clear(&self, bits: u32);
    /// The fence of a holder that goes on: of the compiler alone, for the changing thread's fence orders the processor.
    fn light_fence(&self);
    /// A store before it and a load behind it, of different words, stay in order.
    fn full_fence(&self);
}

impl TurnWord for AtomicU32 {
    #[inline(always)]
    fn load(&self) -> u32 {
        Self::load(self, Ordering::Acquire)
    }
    #[inline(always)]
    fn store(&self, value: u32) {
        Self::store(self, value, Ordering::Release);
    }
    fn set(&self, bits: u32) {
        self.fetch_or(bits, Ordering::AcqRel);
    }
    fn clear(&self, bits: u32) {
        self.fetch_and(!bits, Ordering::AcqRel);
    }
    #[inline(always)]
    fn light_fence(&self) {
        compiler_fence(Ordering::SeqCst);
    }
    fn full_fence(&self) {
        barrier::store_then_load();
    }
}

/// The step of a holder that goes on: whether the value is its own again.
#[inline(always)]
fn goes_on(resting: &impl TurnWord, changes: &impl TurnWord) -> bool {
    resting.store(0);
    resting.light_fence();
    changes.load() == 0
}

/// The same where that is not said to be so, to be repeated behind a [rest](rests).
fn goes_on_for_sure(resting: &impl TurnWord, changes: &impl TurnWord) -> bool {
    resting.store(0);
    resting.full_fence();
    changes.load() & CHANGES == 0
}

/// The holder's last step of a call.
#[inline(always)]
fn rests(resting: &impl TurnWord) {
    resting.store(1);
}

/// The first step of a changing thread; a fence in all threads follows.
fn announce(changes: &impl TurnWord) {
    changes.set(CHANGES);
}

/// Its second, to be repeated while the turn is not its own either: whether the value is.
fn is_free_beside(resting: &impl TurnWord) -> bool {
    resting.load() != 0
}

/// Its last.
fn withdraw(changes: &impl TurnWord) {
    changes.clear(CHANGES);
}

/// A value that one thread at a time can use, in turns that may have rests.
#[derive(Debug)]
// The turn first: then the lock's address is its state's, and the data path needs only one.
#[repr(C)]
pub struct Turn<T> {
    turn: FutexMutex<()>,
    resting: AtomicU32,
    changes: AtomicU32,
    /// Held by the thread that changes beside a turn.
    changing: FutexMutex<()>,
    value: UnsafeCell<T>,
}

// SAFETY: the value is moved and reached by one thread at a time.
unsafe impl<T: Send> Send for Turn<T> {}
// SAFETY: as above: by the holder of the turn that does not rest, or by the one changing thread while it rests.
unsafe impl<T: Send> Sync for Turn<T> {}

/// The hold on the turn, and the value, until dropped.
#[derive(Debug)]
pub struct TurnGuard<'a, T> {
    lock: &'a Turn<T>,
}

/// The hold on the value until dropped, by a turn of its own or beside one that rests.
#[derive(Debug)]
pub struct Change<'a, T> {
    lock: &'a Turn<T>,
    /// `None` where it is beside the turn.
    turn: Option<TurnGuard<'a, T>>,
    _one: Option<FutexGuard<'a, ()>>,
}

impl<T> Turn<T> {
    /// A free turn.
    pub fn new(value: T) -> Self {
        let changes = AtomicU32::new(if fence_of_all::is_offered() { 0 } else { FENCES });
        let (turn, changing) = (FutexMutex::new(()), FutexMutex::new(()));
        Self { turn, resting: AtomicU32::new(0), changes, changing, value: UnsafeCell::new(value) }
    }

    /// Takes the turn if it is free.
    #[inline(always)]
    pub fn try_lock(&self) -> Option<TurnGuard<'_, T>> {
        self.turn.try_lock()?.keep();
        Some(TurnGuard { lock: self })
    }

    /// Waits for the turn, also for one that rests.
    #[inline(always)]
    pub fn lock(&self) -> TurnGuard<'_, T> {
        self.turn.lock().keep();
        TurnGuard { lock: self }
    }

    /// Goes on after a [rest](TurnGuard::rest); `None` where no holder rests.
    ///
    /// # Safety
    /// One thread at a time goes on with a turn, or [ends](Self::end) it.
    #[inline(always)]
    pub unsafe fn resume(&self) -> Option<TurnGuard<'_, T>> {
        if self.resting.load(Ordering::Relaxed) == 0 {
            return None;
        }
        if !goes_on(&self.resting, &self.changes) {
            self.let_change();
        }
        Some(TurnGuard { lock: self })
    }

    /// Ends a turn that rests; without effect where none does.
    ///
    /// # Safety
    /// As [`Self::resume`].
    #[inline(always)]
    pub unsafe fn end(&self) {
        if self.resting.load(Ordering::Relaxed) == 0 {
            return;
        }
        self.resting.store(0, Ordering::Relaxed);
        // A thread that changes beside this turn wants it first, so it is not given back over that.
        if let Some(waiters) = self.turn.kept().release() {
            self.end_wanted(waiters);
        }
    }

    #[cold]
    #[inline(never)]
    fn end_wanted(&self, waiters: Waiters<'_, ()>) {
        self.let_change();
        waiters.wake();
    }

    /// Rests until no thread changes the value; the caller has the turn.
    #[cold]
    #[inline(never)]
    fn let_change(&self) {
        while !goes_on_for_sure(&self.resting, &self.changes) {
            rests(&self.resting);
            let seen = TurnWord::load(&self.changes);
            if seen & CHANGES != 0 {
                wait_while(&self.changes, seen, None);
            }
        }
    }

    /// Takes the value to change it, and waits for a thread that uses or changes it now, but for no turn that rests.
    pub fn change(&self) -> Change<'_, T> {
        if let Some(turn) = self.try_lock() {
            return Change { lock: self, turn: Some(turn), _one: None };
        }
        let one = self.changing.lock();
        announce(&self.changes);
        let mut is_ordered = false;
        loop {
            // The holder of the turn does not give it back from now on without looking here.
            if let Some(turn) = self.turn.lock_or_be_waited_for() {
                turn.keep();
                self.change_is_over();
                let turn = Some(TurnGuard { lock: self });
                return Change { lock: self, turn, _one: None };
            }
            if !is_ordered {
                self.order();
                is_ordered = true;
            }
            if is_free_beside(&self.resting) {
                return Change { lock: self, turn: None, _one: Some(one) };
            }
            self.turn.wait_for(LOOK_AGAIN);
        }
    }

    /// Shows the holder that there is a change, before it goes on once more.
    fn order(&self) {
        barrier::store_then_load();
        if self.changes.load(Ordering::Relaxed) & FENCES == 0 && !fence_of_all::put() {
            // The kernel offered it once; a filter has forbidden it since.
            self.changes.fetch_or(FENCES, Ordering::SeqCst);
            std::thread::sleep(STORED);
        }
    }

    fn change_is_over(&self) {
        withdraw(&self.changes);
        wake_all(&self.changes);
    }
}

impl<'a, T> TurnGuard<'a, T> {
    /// Gives the turn back, as dropping the guard does, without waking waiting threads yet.
    #[inline(always)]
    pub fn release(self) -> Option<Waiters<'a, ()>> {
        let lock = self.lock;
        std::mem::forget(self);
        lock.turn.kept().release()
    }

    /// Keeps the turn without using the value, until [`Turn::resume`] or [`Turn::end`].
    #[inline(always)]
    pub fn rest(self) {
        rests(&self.lock.resting);
        std::mem::forget(self);
    }
}

impl<T> Deref for TurnGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the guard has the turn, which does not rest.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for TurnGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is borrowed by one alone.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for TurnGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        drop(self.lock.turn.kept());
    }
}

impl<T> Deref for Change<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this thread has the turn, or the holder rests until this is over, and no other thread changes.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Change<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and this is borrowed by one alone.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Change<'_, T> {
    fn drop(&mut self) {
        if self.turn.is_none() {
            self.lock.change_is_over();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Barrier};

    use super::*;

    fn ends<T>(lock: &Turn<T>) {
        // SAFETY: the tests go on in one thread.
        unsafe { lock.end() };
    }

    fn resumes<T>(lock: &Turn<T>) -> Option<TurnGuard<'_, T>> {
        // SAFETY: as above.
        unsafe { lock.resume() }
    }

    #[test]
    fn a_turn_that_rests_is_nobody_elses_and_what_is_changed_beside_it_it_finds() {
        let lock = Turn::new(1);
        assert!(resumes(&lock).is_none(), "nobody rests");
        ends(&lock);
        let mut turn = lock.try_lock().unwrap();
        *turn += 1;
        turn.rest();
        assert!(lock.try_lock().is_none());
        // By the very thread that has the turn.
        *lock.change() += 10;
        *lock.change() += 10;
        let mut turn = resumes(&lock).unwrap();
        assert_eq!(*turn, 22);
        *turn += 1;
        turn.rest();
        *lock.change() += 10;
        ends(&lock);
        ends(&lock);
        assert_eq!(*lock.change(), 33, "of nobody's turn");
        assert_eq!(*lock.try_lock().unwrap(), 33);
    }

    #[test]
    fn a_turn_that_is_dropped_after_a_rest_is_over() {
        let lock = Turn::new(());
        lock.lock().rest();
        drop(resumes(&lock));
        assert!(resumes(&lock).is_none());
        lock.lock().rest();
        assert!(resumes(&lock).unwrap().release().is_none(), "nobody waits");
        assert!(lock.try_lock().is_some());
    }

    /// Two threads change, one takes whole turns, and one goes on and rests in a turn that ends now and then.
    fn contended(lock: &Turn<(u64, u64)>) {
        const ROUNDS: u64 = 3000;
        let begin = Barrier::new(4);
        let both = |value: &mut (u64, u64)| {
            assert_eq!(value.0, value.1, "somebody else is in the middle of it");
            value.0 += 1;
            std::hint::spin_loop();
            value.1 += 1;
        };
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    begin.wait();
                    (0..ROUNDS).for_each(|_| both(&mut lock.change()));
                });
            }
            scope.spawn(|| {
                begin.wait();
                (0..ROUNDS).for_each(|_| both(&mut lock.lock()));
            });
            scope.spawn(|| {
                begin.wait();
                for round in 0..ROUNDS {
                    lock.lock().rest();
                    for _ in 0..round % 8 {
                        let mut turn = resumes(lock).unwrap();
                        both(&mut turn);
                        turn.rest();
                    }
                    ends(lock);
                }
            });
        });
        let gone_on: u64 = (0..ROUNDS).map(|round| round % 8).sum();
        let value = *lock.try_lock().expect("all turns are over");
        assert_eq!(value, (3 * ROUNDS + gone_on, 3 * ROUNDS + gone_on));
        assert_eq!(lock.changes.load(Ordering::Relaxed) & CHANGES, 0);
    }

    #[test]
    fn nobody_sees_half_of_what_another_does_and_all_come_through() {
        let lock = Turn::new((0, 0));
        contended(&lock);
        // As where the kernel has no fence for all.
        let lock = Turn::new((0, 0));
        lock.changes.store(FENCES, Ordering::Relaxed);
        contended(&lock);
    }

    #[test]
    fn changes_come_through_beside_a_turn_that_never_ends() {
        use std::sync::atomic::AtomicBool;
        let (lock, over) = (Arc::new(Turn::new(0u64)), Arc::new(AtomicBool::new(false)));
        let began = Arc::new(Barrier::new(2));
        let endless = {
            let (lock, over, began) = (Arc::clone(&lock), Arc::clone(&over), Arc::clone(&began));
            std::thread::spawn(move || {
                lock.lock().rest();
                began.wait();
                let mut rounds = 0u64;
                while !over.load(Ordering::Relaxed) {
                    let turn = resumes(&lock).unwrap();
                    rounds += u64::from(*turn < u64::MAX);
                    turn.rest();
                }
                rounds
            })
        };
        began.wait();
        (0..1000).for_each(|_| *lock.change() += 1);
        over.store(true, Ordering::Relaxed);
        endless.join().unwrap();
        assert!(lock.try_lock().is_none(), "the turn did not end");
        assert_eq!(*lock.change(), 1000);
    }
}

/// The protocol under loom: every interleaving and every stale load the memory model allows. Of a fence that the kernel puts
/// into all threads the model knows nothing; its threads have those fences of their own.
#[cfg(test)]
mod model {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32, Ordering, fence};

    use super::{
        CHANGES, TurnWord, announce, goes_on, goes_on_for_sure, is_free_beside, rests, withdraw,
    };

    impl TurnWord for AtomicU32 {
        fn load(&self) -> u32 {
            Self::load(self, Ordering::Acquire)
        }
        fn store(&self, value: u32) {
            Self::store(self, value, Ordering::Release);
        }
        fn set(&self, bits: u32) {
            self.fetch_or(bits, Ordering::AcqRel);
        }
        fn clear(&self, bits: u32) {
            self.fetch_and(!bits, Ordering::AcqRel);
        }
        fn light_fence(&self) {
            fence(Ordering::SeqCst);
        }
        fn full_fence(&self) {
            fence(Ordering::SeqCst);
        }
    }

    /// The turn's values: free, held, held and wanted.
    const FREE: u32 = 0;
    const HELD: u32 = 1;
    const WANTED: u32 = 2;

    struct Shared {
        turn: AtomicU32,
        resting: AtomicU32,
        changes: AtomicU32,
        value: UnsafeCell<u32>,
    }

    impl Shared {
        /// Works with the value; loom fails where two threads do so at once, or one does not see the other's write.
        fn work(&self) {
            // SAFETY: the model shows that no other thread does so at once.
            self.value.with_mut(|value| unsafe { *value += 1 });
        }

        /// By a swap, which the model puts behind the overwritten value; it may not do so for a store.
        fn give_back(&self) {
            self.turn.swap(FREE, Ordering::Release);
        }

        /// Goes on for one call, in either way; whether it could.
        fn call(&self) -> bool {
            let own = goes_on(&self.resting, &self.changes)
                || goes_on_for_sure(&self.resting, &self.changes);
            if own {
                self.work();
            }
            rests(&self.resting);
            own
        }

        /// Ends the turn as [`super::Turn::end`]; whether it could.
        fn end(&self) -> bool {
            self.resting.store(0, Ordering::Relaxed);
            if self.turn.fetch_sub(1, Ordering::Release) != HELD {
                if !goes_on_for_sure(&self.resting, &self.changes) {
                    rests(&self.resting);
                    return false;
                }
                self.give_back();
            }
            true
        }

        /// Changes the value by one attempt; whether it could.
        fn change(&self) -> bool {
            announce(&self.changes);
            let own = self.turn.swap(WANTED, Ordering::AcqRel) == FREE;
            fence(Ordering::SeqCst);
            let is_free = own || is_free_beside(&self.resting);
            if is_free {
                self.work();
            }
            if own {
                self.give_back();
            }
            withdraw(&self.changes);
            is_free
        }
    }

    #[test]
    fn one_at_a_time_has_the_value_whether_the_turn_goes_on_or_ends() {
        loom::model(|| {
            let shared = Arc::new(Shared {
                turn: AtomicU32::new(HELD),
                resting: AtomicU32::new(1),
                changes: AtomicU32::new(0),
                value: UnsafeCell::new(0),
            });
            let changer = {
                let shared = Arc::clone(&shared);
                loom::thread::spawn(move || shared.change())
            };
            let mut worked = u32::from(shared.call());
            let ended = shared.end();
            if ended
                && shared
                    .turn
                    .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                shared.work();
                worked += 1;
                shared.give_back();
            }
            worked += u32::from(changer.join().unwrap());
            // The next changing thread finds it free, or its holder resting.
            let is_free = shared.turn.load(Ordering::Relaxed) == FREE;
            assert!(is_free || is_free_beside(&shared.resting));
            assert_eq!(shared.changes.load(Ordering::Relaxed) & CHANGES, 0);
            // SAFETY: the other thread has ended.
            shared.value.with(|value| assert_eq!(unsafe { *value }, worked));
        });
    }
}
