//! A value that another thread may borrow, to do work that it brings, while the owner of the value sleeps.
//!
//! Waking the owner, and sleeping until it has done the work, costs two changes of threads, which for a small piece of
//! work is most of the time. So before the owner sleeps it sets the value aside ([`Borrowable::set_aside`]). A thread
//! with work borrows the value ([`Borrowable::borrow`]), does the work, and gives the value back. The owner, woken by
//! anything, reclaims the value ([`Borrowable::reclaim`]), and waits until a borrower, which sees that the owner wants
//! the value, has given it back.
//!
//! One word says which thread has the value. The owner asks for the value in a second word *before* it looks at the
//! first, and a borrower looks at the second *behind* giving the value back, with a full fence between: so either the
//! owner finds the value set aside, or the borrower sees that it has to wake the owner. The steps are generic over the
//! words, so that the loom model at the end of this file runs the very code that production runs.

use std::cell::UnsafeCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Thread};

use crate::barrier;
use crate::takeover::Holder;

/// One of the two words; the second implementation is the model checker's.
trait BorrowWord {
    fn load(&self) -> u32;
    fn store(&self, value: u32);
    /// Moves on from one value to another; `false` where the word is another one.
    fn exchange(&self, from: u32, to: u32) -> bool;
    /// A store before it and a load behind it, of different words, stay in order.
    fn full_fence(&self);
}

impl BorrowWord for AtomicU32 {
    fn load(&self) -> u32 {
        Self::load(self, Ordering::Acquire)
    }
    fn store(&self, value: u32) {
        Self::store(self, value, Ordering::Release);
    }
    fn exchange(&self, from: u32, to: u32) -> bool {
        self.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
    fn full_fence(&self) {
        barrier::store_then_load();
    }
}

/// The owner has the value.
const OWNED: u32 = 0;
/// No thread has the value.
const SET_ASIDE: u32 = 1;
/// A borrower has the value.
const BORROWED: u32 = 2;
/// A borrower has lost the value.
const LOST: u32 = 3;

/// In the second word: the owner wants the value back.
const WANTED: u32 = 1;

/// A borrower's first step: whether it has the value.
fn borrow(place: &impl BorrowWord) -> bool {
    place.exchange(SET_ASIDE, BORROWED)
}

/// A borrower's last step: whether the owner is to be woken.
fn give_back(place: &impl BorrowWord, wanted: &impl BorrowWord, then: u32) -> bool {
    place.store(then);
    place.full_fence();
    wanted.load() == WANTED
}

/// The owner's step, to be repeated while a borrower has the value: the first word, behind it.
fn reclaim(place: &impl BorrowWord, wanted: &impl BorrowWord) -> u32 {
    wanted.store(WANTED);
    wanted.full_fence();
    if place.exchange(SET_ASIDE, OWNED) {
        wanted.store(0);
        return OWNED;
    }
    place.load()
}

/// A value, and the words that say which thread has it.
pub struct Borrowable<T> {
    place: AtomicU32,
    wanted: AtomicU32,
    /// The owner, while it waits for the value.
    owner: Mutex<Option<Thread>>,
    value: UnsafeCell<Option<Holder<T>>>,
}

// SAFETY: only the thread that moved the word to a state of its own reaches the value, one thread at a time: it acquires
// the writes that the one before has released. The maker of a `Holder` has promised that the value may go from thread
// to thread as a whole, whether or not its type may (`Holder::new`).
unsafe impl<T> Send for Borrowable<T> {}
// SAFETY: as above; all else in it is Sync.
unsafe impl<T> Sync for Borrowable<T> {}

/// A value that a thread has borrowed. Without [`Borrowed::give_back`], as where a panic unwinds, the value ends.
pub struct Borrowed<'a, T> {
    borrowable: &'a Borrowable<T>,
    value: Option<Holder<T>>,
}

impl<T> Default for Borrowable<T> {
    fn default() -> Self {
        Self {
            place: AtomicU32::new(OWNED),
            wanted: AtomicU32::new(0),
            owner: Mutex::default(),
            value: UnsafeCell::new(None),
        }
    }
}

impl<T> Borrowable<T> {
    /// Owner: sets the value aside. One owner at a time has it.
    pub fn set_aside(&self, value: Holder<T>) {
        // SAFETY: the caller has the holder and so is the owner; no other thread looks at the cell while it is owned.
        unsafe { *self.value.get() = Some(value) };
        BorrowWord::store(&self.place, SET_ASIDE);
    }

    /// Owner: reclaims the value, and waits while a borrower has it; `None` where one has lost it.
    pub fn reclaim(&self) -> Option<Holder<T>> {
        loop {
            match reclaim(&self.place, &self.wanted) {
                // SAFETY: the word says that it is the owner's.
                OWNED => return unsafe { (*self.value.get()).take() },
                LOST => return None,
                _ => {}
            }
            *self.owner.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread::current());
            // A borrower that has given back since has not seen which thread to wake; from now on one does, once.
            if BorrowWord::load(&self.place) == BORROWED {
                thread::park();
            }
        }
    }

    /// Borrows the value; `None` where the owner has it or wants it, or another borrower has it.
    pub fn borrow(&self) -> Option<Borrowed<'_, T>> {
        if self.wanted.load(Ordering::Relaxed) == WANTED {
            return None;
        }
        if !borrow(&self.place) {
            return None;
        }
        // SAFETY: the word says that it is the borrower's.
        let value = unsafe { (*self.value.get()).take() };
        Some(Borrowed { borrowable: self, value })
    }

    fn give_back(&self, value: Option<Holder<T>>) {
        let then = if value.is_some() { SET_ASIDE } else { LOST };
        // SAFETY: the word still says that it is the borrower's.
        unsafe { *self.value.get() = value };
        if give_back(&self.place, &self.wanted, then) {
            let owner = self.owner.lock().unwrap_or_else(PoisonError::into_inner).take();
            owner.iter().for_each(Thread::unpark);
        }
    }
}

impl<T> Borrowed<'_, T> {
    /// Whether the owner waits for the value.
    pub fn is_wanted(&self) -> bool {
        self.borrowable.wanted.load(Ordering::Relaxed) == WANTED
    }

    /// Gives the value back.
    pub fn give_back(mut self) {
        let value = self.value.take();
        self.borrowable.give_back(value);
        // There is nothing left to drop.
        std::mem::forget(self);
    }
}

impl<T> Deref for Borrowed<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        let Some(value) = &self.value else {
            unreachable!("a borrower has the value until it gives it back")
        };
        value
    }
}

impl<T> DerefMut for Borrowed<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        let Some(value) = &mut self.value else {
            unreachable!("a borrower has the value until it gives it back")
        };
        value
    }
}

impl<T> Drop for Borrowed<'_, T> {
    fn drop(&mut self) {
        // The work is half done: a thread that watches the value sees its end.
        drop(self.value.take());
        self.borrowable.give_back(None);
    }
}

impl<T> fmt::Debug for Borrowable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Borrowable").field("place", &self.place).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Borrowed<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Borrowed").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;
    use std::sync::{Arc, mpsc};

    use super::*;
    use crate::takeover::Sight;

    /// A value that no thread could send.
    fn held(number: u32) -> Holder<Rc<Cell<u32>>> {
        Holder::new(|| Ok::<_, ()>(Rc::new(Cell::new(number)))).unwrap()
    }

    #[test]
    fn only_a_value_set_aside_is_borrowed_and_by_one_at_a_time() {
        let borrowable = Borrowable::default();
        assert!(borrowable.borrow().is_none());
        borrowable.set_aside(held(1));
        let borrower = borrowable.borrow().unwrap();
        assert!(borrowable.borrow().is_none());
        borrower.set(2);
        borrower.give_back();
        assert_eq!(
            borrowable.borrow().map(|borrower| {
                let seen = borrower.get();
                borrower.give_back();
                seen
            }),
            Some(2)
        );
        assert_eq!(borrowable.reclaim().unwrap().get(), 2);
        assert!(borrowable.borrow().is_none());
    }

    #[test]
    fn an_owner_waits_for_its_borrower_which_sees_that_the_value_is_wanted() {
        let borrowable = Arc::new(Borrowable::default());
        borrowable.set_aside(held(0));
        let borrower = borrowable.borrow().unwrap();
        let owner = {
            let borrowable = Arc::clone(&borrowable);
            thread::spawn(move || borrowable.reclaim().unwrap().get())
        };
        while !borrower.is_wanted() {
            thread::yield_now();
        }
        borrower.set(7);
        borrower.give_back();
        assert_eq!(owner.join().unwrap(), 7);
    }

    #[test]
    fn owners_and_borrowers_lose_no_work() {
        const EACH: u32 = 2000;
        let borrowable = Arc::new(Borrowable::default());
        borrowable.set_aside(held(0));
        let borrowers: Vec<_> = (0..2)
            .map(|_| {
                let borrowable = Arc::clone(&borrowable);
                thread::spawn(move || {
                    for _ in 0..EACH {
                        let borrower = loop {
                            match borrowable.borrow() {
                                Some(borrower) => break borrower,
                                None => thread::yield_now(),
                            }
                        };
                        borrower.set(borrower.get() + 1);
                        borrower.give_back();
                    }
                })
            })
            .collect();
        for _ in 0..EACH {
            let value = borrowable.reclaim().unwrap();
            value.set(value.get() + 1);
            borrowable.set_aside(value);
        }
        borrowers.into_iter().for_each(|borrower| borrower.join().unwrap());
        assert_eq!(borrowable.reclaim().unwrap().get(), 3 * EACH);
    }

    #[test]
    fn a_borrower_that_panics_ends_the_value_and_wakes_the_owner() {
        let value = held(0);
        let watch = value.watch();
        let borrowable = Arc::new(Borrowable::default());
        borrowable.set_aside(value);
        let for_borrower = Arc::clone(&borrowable);
        let (borrowed, waits) = mpsc::channel();
        let borrower = thread::spawn(move || {
            let borrower = for_borrower.borrow().unwrap();
            borrowed.send(()).unwrap();
            while !borrower.is_wanted() {
                thread::yield_now();
            }
            panic!("as it should");
        });
        waits.recv().unwrap();
        assert!(borrowable.reclaim().is_none());
        assert!(borrower.join().is_err());
        assert_eq!(watch.look(), Sight::Ended);
        assert!(borrowable.borrow().is_none());
    }
}

/// The protocol under loom: every interleaving and every stale load the memory model allows.
#[cfg(test)]
mod model {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32, Ordering, fence};

    use super::{BORROWED, BorrowWord, OWNED, SET_ASIDE, borrow, give_back, reclaim};

    impl BorrowWord for AtomicU32 {
        fn load(&self) -> u32 {
            Self::load(self, Ordering::Acquire)
        }
        fn store(&self, value: u32) {
            Self::store(self, value, Ordering::Release);
        }
        fn exchange(&self, from: u32, to: u32) -> bool {
            self.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
        }
        fn full_fence(&self) {
            fence(Ordering::SeqCst);
        }
    }

    struct Shared {
        place: AtomicU32,
        wanted: AtomicU32,
        value: UnsafeCell<u32>,
    }

    impl Shared {
        /// Works with the value; loom fails where two threads do so at once, or one does not see the other's write.
        fn work(&self) {
            // SAFETY: the model shows that no other thread does so at once.
            self.value.with_mut(|value| unsafe { *value += 1 });
        }
    }

    #[test]
    fn one_thread_at_a_time_has_the_value_and_no_owner_sleeps_beside_one_set_aside() {
        loom::model(|| {
            let shared = Arc::new(Shared {
                place: AtomicU32::new(SET_ASIDE),
                wanted: AtomicU32::new(0),
                value: UnsafeCell::new(0),
            });
            let borrowers: Vec<_> = (0..2)
                .map(|_| {
                    let shared = Arc::clone(&shared);
                    loom::thread::spawn(move || {
                        borrow(&shared.place).then(|| {
                            shared.work();
                            give_back(&shared.place, &shared.wanted, SET_ASIDE)
                        })
                    })
                })
                .collect();
            let found = reclaim(&shared.place, &shared.wanted);
            if found == OWNED {
                shared.work();
            }
            let left: Vec<_> =
                borrowers.into_iter().map(|borrower| borrower.join().unwrap()).collect();
            let woken = left.contains(&Some(true));
            // The owner sleeps only while a borrower has the value, and that one wakes it then.
            assert!(found != BORROWED || woken, "the owner sleeps for ever");
        });
    }
}
