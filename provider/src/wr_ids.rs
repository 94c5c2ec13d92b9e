//! The program's names of outstanding requests, where completions come in any order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use hostmem::{Lender, MaskedTable};

/// A pool of numbered entries, each with a `wr_id` while a work request has it.
///
/// A work request carries a tag, which its completion echoes. The lower bits of a tag are the number
/// of an entry, the others its generation, which is another each time: the completion of an earlier
/// request is not taken for that of a later one. Free entries wait in a ring, in the order in which
/// they were given back; so as long as completions come in the order of posting, tags count up.
///
/// One thread at a time takes entries, and one at a time gives them back.
#[derive(Debug)]
pub(crate) struct WrIdPool {
    places: MaskedTable<PoolEntry>,
    entries: u32,
    given_back: GivenBack,
}

/// An entry of the pool, and an element of the ring of free ones.
#[derive(Debug, Default)]
struct PoolEntry {
    wr_id: AtomicU64,
    /// The tag of the work request that has the entry; [`free_mark`] while none has.
    tag: AtomicU32,
    /// The last tag of a free entry. A post finds it by the number of entries taken before; a
    /// completion puts it where the number of returned entries says, one lap ahead.
    free: AtomicU32,
}

/// Entries given back, running.
#[derive(Debug, Default)]
#[repr(align(64))]
struct GivenBack(AtomicU32);

/// How many places the entries of a pool have: there is another entry for each to name.
fn places(entries: u32) -> u32 {
    entries.max(2)
}

/// The content of the entry of a tag while it is free: a tag of another entry.
#[inline(always)]
fn free_mark(tag: u32) -> u32 {
    tag ^ 1
}

impl WrIdPool {
    /// Makes a pool of so many entries, a power of two, all of them free.
    pub(crate) fn new(entries: u32) -> Self {
        Self::over(MaskedTable::new(places(entries)), entries)
    }

    /// As [`Self::new`], in memory of a lender; `None` where that has none.
    pub(crate) fn lent(entries: u32, lender: Option<&Arc<dyn Lender>>) -> Option<Self> {
        Some(Self::over(MaskedTable::lent(places(entries), lender)?, entries))
    }

    fn over(places: MaskedTable<PoolEntry>, entries: u32) -> Self {
        let pool = Self { places, entries, given_back: GivenBack::default() };
        pool.reset();
        pool
    }

    /// Frees all entries; nobody takes one or gives one back meanwhile.
    pub(crate) fn reset(&self) {
        for (place, tag) in self.places.iter().zip(0u32..) {
            place.tag.store(free_mark(tag), Ordering::Relaxed);
            place.free.store(tag.wrapping_sub(self.lap()), Ordering::Relaxed);
        }
        self.given_back.0.store(0, Ordering::Relaxed);
    }

    /// The distance between the tags of an entry.
    #[inline(always)]
    fn lap(&self) -> u32 {
        self.places.mask().wrapping_add(1)
    }

    /// How many entries are free when so many were taken since the last reset.
    #[inline(always)]
    pub(crate) fn room(&self, taken: u32) -> u32 {
        // Acquire: with the number come the tags of the returned entries.
        let outstanding = taken.wrapping_sub(self.given_back.0.load(Ordering::Acquire));
        self.entries.saturating_sub(outstanding)
    }

    /// Takes an entry where there is [room](Self::room), when so many were taken before, and returns
    /// the tag of the work request.
    #[inline(always)]
    pub(crate) fn take(&self, taken: u32, wr_id: u64) -> u32 {
        let last = self.places.get(taken).free.load(Ordering::Relaxed);
        let tag = last.wrapping_add(self.lap());
        let place = self.places.get(tag);
        place.wr_id.store(wr_id, Ordering::Relaxed);
        place.tag.store(tag, Ordering::Release);
        tag
    }

    /// Gives back the entry of a work request, whose completion carries its tag, and returns the
    /// program's name for it; `None` where no request with that tag is outstanding.
    #[inline(always)]
    pub(crate) fn give_back(&self, tag: u32) -> Option<u64> {
        let place = self.places.get(tag);
        // Acquire: with the tag comes the name.
        if place.tag.load(Ordering::Acquire) != tag {
            return None;
        }
        let wr_id = place.wr_id.load(Ordering::Relaxed);
        place.tag.store(free_mark(tag), Ordering::Relaxed);
        let given_back = self.given_back.0.load(Ordering::Relaxed);
        self.places.get(given_back).free.store(tag, Ordering::Relaxed);
        // Release: a post that takes the entry may write over the name that was read.
        self.given_back.0.store(given_back.wrapping_add(1), Ordering::Release);
        Some(wr_id)
    }

    /// Gives back an entry that is taken, when so many were taken since the last reset: the oldest
    /// one, as long as completions came in the order of posting.
    pub(crate) fn give_back_oldest(&self, taken: u32) -> Option<u64> {
        let oldest = self.given_back.0.load(Ordering::Relaxed);
        if oldest == taken {
            return None;
        }
        (0..=self.places.mask()).find_map(|step| {
            let number = oldest.wrapping_add(step);
            let tag = self.places.get(number).tag.load(Ordering::Acquire);
            let is_taken = (tag ^ number) & self.places.mask() == 0;
            if is_taken { self.give_back(tag) } else { None }
        })
    }
}

#[cfg(test)]
impl WrIdPool {
    /// The number of entries given back, to be set.
    pub(crate) fn given_back(&self) -> &AtomicU32 {
        &self.given_back.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_count_up_as_long_as_completions_come_in_order() {
        let pool = WrIdPool::new(4);
        for taken in 0..20 {
            assert_eq!(pool.room(taken), 4);
            assert_eq!(pool.take(taken, 100 + u64::from(taken)), taken);
            assert_eq!(pool.give_back(taken), Some(100 + u64::from(taken)));
        }
    }

    #[test]
    fn completions_in_any_order_find_their_names_and_make_room() {
        let pool = WrIdPool::new(8);
        let mut outstanding = Vec::new();
        let mut taken = 0u32;
        for round in 0..500u32 {
            while pool.room(taken) > 0 {
                let wr_id = u64::from(taken) << 20;
                let tag = pool.take(taken, wr_id);
                assert!(outstanding.iter().all(|&(other, _)| other & 7 != tag & 7));
                outstanding.push((tag, wr_id));
                taken += 1;
            }
            assert_eq!(outstanding.len(), 8);
            for step in 0..=round % 8 {
                let chosen = (round * 5 + step * 3) as usize % outstanding.len();
                let (tag, wr_id) = outstanding.swap_remove(chosen);
                assert_eq!(pool.give_back(tag), Some(wr_id), "round {round}");
                assert_eq!(pool.give_back(tag), None, "it was given back");
            }
        }
    }

    #[test]
    fn a_completion_of_an_earlier_use_of_an_entry_is_not_believed() {
        let pool = WrIdPool::new(2);
        assert_eq!(pool.give_back(0), None, "nothing is outstanding");
        assert_eq!(pool.take(0, 10), 0);
        assert_eq!(pool.give_back(2), None, "not yet");
        assert_eq!(pool.give_back(0), Some(10));
        assert_eq!((pool.take(1, 11), pool.take(2, 12)), (1, 2));
        assert_eq!(pool.give_back(0), None, "of the same entry, a lap ago");
        assert_eq!(pool.give_back(2), Some(12));
    }

    #[test]
    fn generations_come_round() {
        for entries in [2, 8] {
            let pool = WrIdPool::new(entries);
            for (tag, place) in (0..entries).zip(pool.places.iter()) {
                place.free.store(tag.wrapping_sub(2 * entries), Ordering::Relaxed);
            }
            for taken in 0..3 * entries {
                let tag = pool.take(taken, taken.into());
                assert_eq!(tag, taken.wrapping_sub(entries));
                assert_eq!(pool.give_back(tag.wrapping_add(entries)), None);
                assert_eq!(pool.give_back(tag), Some(taken.into()));
            }
        }
    }

    #[test]
    fn a_pool_of_one_has_room_for_one() {
        let pool = WrIdPool::new(1);
        for taken in 0..10 {
            assert_eq!(pool.room(taken), 1);
            let tag = pool.take(taken, taken.into());
            assert_eq!((pool.room(taken + 1), pool.give_back(tag ^ 1)), (0, None));
            assert_eq!(pool.give_back(tag), Some(taken.into()));
        }
    }

    #[test]
    fn everything_outstanding_is_given_back_once_and_in_order() {
        let pool = WrIdPool::new(4);
        for taken in 0..6 {
            pool.take(taken, taken.into());
            if taken < 3 {
                pool.give_back(taken);
            }
        }
        let all: Vec<_> = std::iter::from_fn(|| pool.give_back_oldest(6)).collect();
        assert_eq!(all, [3, 4, 5]);
        assert_eq!((pool.room(6), pool.give_back(5)), (4, None));
    }

    #[test]
    fn after_a_reset_all_are_free() {
        let pool = WrIdPool::new(4);
        (0..4).for_each(|taken| _ = pool.take(taken, 1));
        assert_eq!(pool.room(4), 0);
        pool.reset();
        assert_eq!((pool.room(0), pool.give_back(1)), (4, None));
        assert_eq!(pool.take(0, 7), 0);
    }
}
