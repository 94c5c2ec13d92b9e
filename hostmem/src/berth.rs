//! A value that waits for work, while the thread that has it sleeps: whoever brings work may do it there and then.
//!
//! Waking the thread, and sleeping until it has done the work, costs two changes of threads, which for a small piece of
//! work is most of the time. So before its keeper sleeps it moors the value ([`Berth::moor`]). Somebody with work boards
//! it ([`Berth::board`]), does the work, and leaves. The keeper, woken by anything, takes it back ([`Berth::unmoor`]),
//! and waits until a guest has left, which sees that it is wanted.
//!
//! One word says who has it. The keeper asks for it in a second word *before* it looks at the first, and a guest looks
//! at the second *behind* giving it back, with a full fence between: so either the keeper finds it moored or the guest
//! sees that somebody is to be woken. The steps are generic over the words, so that the loom model at the end of this file runs
//! the very code that production runs.

use std::cell::UnsafeCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Thread};

use crate::barrier;
use crate::relay::Holder;

/// A word of the berth's; the second implementation is the model checker's.
trait BerthWord {
    fn load(&self) -> u32;
    fn store(&self, value: u32);
    /// Moves on from one value to another; `false` where the word is another one.
    fn exchange(&self, from: u32, to: u32) -> bool;
    /// A store before it and a load behind it, of different words, stay in order.
    fn full_fence(&self);
}

impl BerthWord for AtomicU32 {
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

/// The keeper has it.
const KEPT: u32 = 0;
/// Nobody has it.
const MOORED: u32 = 1;
/// A guest has it.
const VISITED: u32 = 2;
/// A guest has lost it.
const LOST: u32 = 3;

/// In the second word: the keeper wants it back.
const WANTED: u32 = 1;

/// A guest's first step: whether it has the value.
fn board(place: &impl BerthWord) -> bool {
    place.exchange(MOORED, VISITED)
}

/// A guest's last step: whether the keeper is to be woken.
fn leave(place: &impl BerthWord, wanted: &impl BerthWord, then: u32) -> bool {
    place.store(then);
    place.full_fence();
    wanted.load() == WANTED
}

/// The keeper's step, to be repeated while a guest has it: what became of it.
fn unmoor(place: &impl BerthWord, wanted: &impl BerthWord) -> u32 {
    wanted.store(WANTED);
    wanted.full_fence();
    if place.exchange(MOORED, KEPT) {
        wanted.store(0);
        return KEPT;
    }
    place.load()
}

/// Where a value waits for work.
pub struct Berth<T> {
    place: AtomicU32,
    wanted: AtomicU32,
    /// Who wants it.
    keeper: Mutex<Option<Thread>>,
    value: UnsafeCell<Option<Holder<T>>>,
}

// SAFETY: the value is reached by whoever moved the word to a state of its own, one thread at a time: it acquires what
// the one before has released. That a value goes from thread to thread as a whole, whether or not its type may, is what who
// makes a `Holder` has promised (`Holder::new`).
unsafe impl<T> Send for Berth<T> {}
// SAFETY: as above; all else in it is Sync.
unsafe impl<T> Sync for Berth<T> {}

/// Somebody who works with a moored value. Without [`Guest::leave`], as where a panic unwinds, the value ends.
pub struct Guest<'a, T> {
    berth: &'a Berth<T>,
    value: Option<Holder<T>>,
}

impl<T> Default for Berth<T> {
    fn default() -> Self {
        Self {
            place: AtomicU32::new(KEPT),
            wanted: AtomicU32::new(0),
            keeper: Mutex::default(),
            value: UnsafeCell::new(None),
        }
    }
}

impl<T> Berth<T> {
    /// Keeper: leaves the value there. One keeper at a time has it.
    pub fn moor(&self, value: Holder<T>) {
        // SAFETY: who has the holder is the keeper, and nobody else looks at the place while it is kept.
        unsafe { *self.value.get() = Some(value) };
        BerthWord::store(&self.place, MOORED);
    }

    /// Keeper: takes the value back, and waits while a guest has it; `None` where one has lost it.
    pub fn unmoor(&self) -> Option<Holder<T>> {
        loop {
            match unmoor(&self.place, &self.wanted) {
                // SAFETY: the word says that it is the keeper's.
                KEPT => return unsafe { (*self.value.get()).take() },
                LOST => return None,
                _ => {}
            }
            *self.keeper.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread::current());
            // Who has left since has not seen whom to wake; who leaves from now on does, once.
            if BerthWord::load(&self.place) == VISITED {
                thread::park();
            }
        }
    }

    /// Boards the value; `None` where the keeper has it or wants it, or another guest has it.
    pub fn board(&self) -> Option<Guest<'_, T>> {
        if self.wanted.load(Ordering::Relaxed) == WANTED {
            return None;
        }
        if !board(&self.place) {
            return None;
        }
        // SAFETY: the word says that it is the guest's.
        let value = unsafe { (*self.value.get()).take() };
        Some(Guest { berth: self, value })
    }

    fn give_back(&self, value: Option<Holder<T>>) {
        let then = if value.is_some() { MOORED } else { LOST };
        // SAFETY: the word still says that it is the guest's.
        unsafe { *self.value.get() = value };
        if leave(&self.place, &self.wanted, then) {
            let keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner).take();
            keeper.iter().for_each(Thread::unpark);
        }
    }
}

impl<T> Guest<'_, T> {
    /// Whether the keeper waits for the value.
    pub fn is_wanted(&self) -> bool {
        self.berth.wanted.load(Ordering::Relaxed) == WANTED
    }

    /// Leaves the value where it was.
    pub fn leave(mut self) {
        let value = self.value.take();
        self.berth.give_back(value);
        // It is given back.
        std::mem::forget(self);
    }
}

impl<T> Deref for Guest<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        let Some(value) = &self.value else {
            unreachable!("a guest has the value until it leaves")
        };
        value
    }
}

impl<T> DerefMut for Guest<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        let Some(value) = &mut self.value else {
            unreachable!("a guest has the value until it leaves")
        };
        value
    }
}

impl<T> Drop for Guest<'_, T> {
    fn drop(&mut self) {
        // What it was at is half done: whoever watches the value sees its end.
        drop(self.value.take());
        self.berth.give_back(None);
    }
}

impl<T> fmt::Debug for Berth<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Berth").field("place", &self.place).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Guest<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guest").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;
    use std::sync::{Arc, mpsc};

    use super::*;
    use crate::relay::Sight;

    /// A value that no thread could send.
    fn held(number: u32) -> Holder<Rc<Cell<u32>>> {
        Holder::new(|| Ok::<_, ()>(Rc::new(Cell::new(number)))).unwrap()
    }

    #[test]
    fn only_a_moored_value_is_boarded_and_by_one_at_a_time() {
        let berth = Berth::default();
        assert!(berth.board().is_none());
        berth.moor(held(1));
        let guest = berth.board().unwrap();
        assert!(berth.board().is_none());
        guest.set(2);
        guest.leave();
        assert_eq!(
            berth.board().map(|guest| {
                let seen = guest.get();
                guest.leave();
                seen
            }),
            Some(2)
        );
        assert_eq!(berth.unmoor().unwrap().get(), 2);
        assert!(berth.board().is_none());
    }

    #[test]
    fn a_keeper_waits_for_its_guest_which_sees_that_it_is_wanted() {
        let berth = Arc::new(Berth::default());
        berth.moor(held(0));
        let guest = berth.board().unwrap();
        let keeper = {
            let berth = Arc::clone(&berth);
            thread::spawn(move || berth.unmoor().unwrap().get())
        };
        while !guest.is_wanted() {
            thread::yield_now();
        }
        guest.set(7);
        guest.leave();
        assert_eq!(keeper.join().unwrap(), 7);
    }

    #[test]
    fn keepers_and_guests_lose_no_work() {
        const EACH: u32 = 2000;
        let berth = Arc::new(Berth::default());
        berth.moor(held(0));
        let guests: Vec<_> = (0..2)
            .map(|_| {
                let berth = Arc::clone(&berth);
                thread::spawn(move || {
                    for _ in 0..EACH {
                        let guest = loop {
                            match berth.board() {
                                Some(guest) => break guest,
                                None => thread::yield_now(),
                            }
                        };
                        guest.set(guest.get() + 1);
                        guest.leave();
                    }
                })
            })
            .collect();
        for _ in 0..EACH {
            let value = berth.unmoor().unwrap();
            value.set(value.get() + 1);
            berth.moor(value);
        }
        guests.into_iter().for_each(|guest| guest.join().unwrap());
        assert_eq!(berth.unmoor().unwrap().get(), 3 * EACH);
    }

    #[test]
    fn a_guest_that_panics_ends_the_value_and_wakes_its_keeper() {
        let value = held(0);
        let watch = value.watch();
        let berth = Arc::new(Berth::default());
        berth.moor(value);
        let boards = Arc::clone(&berth);
        let (aboard, waits) = mpsc::channel();
        let guest = thread::spawn(move || {
            let guest = boards.board().unwrap();
            aboard.send(()).unwrap();
            while !guest.is_wanted() {
                thread::yield_now();
            }
            panic!("as it should");
        });
        waits.recv().unwrap();
        assert!(berth.unmoor().is_none());
        assert!(guest.join().is_err());
        assert_eq!(watch.look(), Sight::Ended);
        assert!(berth.board().is_none());
    }
}

/// The protocol under loom: every interleaving and every stale load the memory model allows.
#[cfg(test)]
mod model {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32, Ordering, fence};

    use super::{BerthWord, KEPT, MOORED, VISITED, board, leave, unmoor};

    impl BerthWord for AtomicU32 {
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
        /// Works with the value; loom fails where two threads do so at once, or one does not see what the other did.
        fn work(&self) {
            // SAFETY: what the model is to show.
            self.value.with_mut(|value| unsafe { *value += 1 });
        }
    }

    #[test]
    fn one_at_a_time_has_the_value_and_no_keeper_sleeps_beside_a_moored_one() {
        loom::model(|| {
            let shared = Arc::new(Shared {
                place: AtomicU32::new(MOORED),
                wanted: AtomicU32::new(0),
                value: UnsafeCell::new(0),
            });
            let guests: Vec<_> = (0..2)
                .map(|_| {
                    let shared = Arc::clone(&shared);
                    loom::thread::spawn(move || {
                        board(&shared.place).then(|| {
                            shared.work();
                            leave(&shared.place, &shared.wanted, MOORED)
                        })
                    })
                })
                .collect();
            let found = unmoor(&shared.place, &shared.wanted);
            if found == KEPT {
                shared.work();
            }
            let left: Vec<_> = guests.into_iter().map(|guest| guest.join().unwrap()).collect();
            let woken = left.contains(&Some(true));
            // It sleeps only while a guest has it, who wakes it then.
            assert!(found != VISITED || woken, "the keeper sleeps for ever");
        });
    }
}
