//! The way to a card's doorbells, and the sign that the card lives.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hostmem::{DoorbellPage, ForkCanary, Liveness, Record, SharedMapping, Waker};

/// What this process was granted on one card: a doorbell page, and how the card is woken.
///
/// One for each card and process; all contexts of the process on that card share it.
#[derive(Debug)]
pub(crate) struct CardPath {
    page: DoorbellPage,
    /// `None` where the card sees its doorbells without being woken.
    waker: Option<Waker>,
    life: Life,
    /// Set for good once the card was seen dead.
    dead: AtomicBool,
    canary: Arc<ForkCanary>,
}

/// The signs that a card still works for this process.
#[derive(Debug, Default)]
pub(crate) struct Life {
    /// The page and offset of the lock that dies with the card's thread.
    pub thread: Option<(Arc<SharedMapping>, usize)>,
    /// The word that balboad sets once it has taken the card away: a record, and which of its words.
    pub state: Option<(Record, usize)>,
}

impl Life {
    #[inline(always)]
    fn is_over(&self) -> bool {
        let thread = self.thread.as_ref();
        let state = self.state.as_ref();
        thread.is_some_and(|(page, offset)| Liveness::is_dead(page, *offset).unwrap_or(true))
            || state.is_some_and(|(record, word)| record.load_acquire_u32(*word) != 0)
    }
}

impl CardPath {
    /// Joins what a grant brought.
    pub(crate) fn new(
        page: DoorbellPage,
        waker: Option<Waker>,
        life: Life,
        canary: Arc<ForkCanary>,
    ) -> Self {
        Self { page, waker, life, dead: AtomicBool::new(false), canary }
    }

    /// Stores a doorbell slot and wakes the card if it sleeps; the queue's record comes first.
    #[inline(always)]
    pub(crate) fn ring(&self, slot: usize, value: u64) {
        self.page.ring(slot, value);
        if let Some(waker) = &self.waker {
            // A wake-up can only fail when the eventfd is gone, and then so is the card: the
            // liveness word tells.
            let _ = waker.wake_if_asleep();
        }
    }

    /// Whether the process that holds this path runs it, and not a forked child.
    #[inline(always)]
    pub(crate) fn is_ours(&self) -> bool {
        self.canary.alive()
    }

    /// Whether the card's thread has ended, or balboad has taken the card away.
    #[inline(always)]
    pub(crate) fn is_dead(&self) -> bool {
        if self.dead.load(Ordering::Relaxed) {
            return true;
        }
        let dead = self.life.is_over();
        if dead {
            self.declare_dead();
        }
        dead
    }

    /// Notes that the card is gone.
    pub(crate) fn declare_dead(&self) {
        self.dead.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::fd::AsFd;

    use hostmem::{Access, memfd};

    use super::*;

    /// Shared memory as balboad would have made it.
    pub(crate) fn memory(bytes: usize) -> Arc<SharedMapping> {
        let fd = memfd::create("test", bytes).unwrap();
        Arc::new(SharedMapping::new(fd.as_fd(), 0, bytes, Access::ReadWrite).unwrap())
    }

    /// A path to a card that is nobody, with the doorbell page to look at.
    pub(crate) fn path() -> (Arc<CardPath>, DoorbellPage) {
        let page = DoorbellPage::new(memory(4096), 0).unwrap();
        let canary = Arc::new(ForkCanary::new().unwrap());
        (Arc::new(CardPath::new(page.clone(), None, Life::default(), canary)), page)
    }

    #[test]
    fn a_card_whose_lock_was_given_back_is_dead_for_good() {
        let (fd, writer) = memfd::create_read_only_for_others("live", 4096).unwrap();
        let reader = SharedMapping::new(fd.as_fd(), 0, 4096, Access::ReadOnly).unwrap();
        let writer = Arc::new(writer);
        let held = Liveness::hold(Arc::clone(&writer), 64).unwrap();
        let page = DoorbellPage::new(memory(4096), 0).unwrap();
        let canary = Arc::new(ForkCanary::new().unwrap());
        let life = Life { thread: Some((Arc::new(reader), 64)), state: None };
        let path = CardPath::new(page, None, life, canary);
        assert!(!path.is_dead());
        drop(held);
        assert!(path.is_dead());
        let _again = Liveness::hold(writer, 64).unwrap();
        assert!(path.is_dead());
    }

    #[test]
    fn a_card_that_balboad_took_away_is_dead_for_good() {
        let states = Record::new(memory(4096), 0).unwrap();
        let page = DoorbellPage::new(memory(4096), 0).unwrap();
        let life = Life { thread: None, state: Some((states.clone(), 3)) };
        let path = CardPath::new(page, None, life, Arc::new(ForkCanary::new().unwrap()));
        states.store_release_u32(2, 1);
        assert!(!path.is_dead(), "another card's word");
        states.store_release_u32(3, 1);
        assert!(path.is_dead());
        states.store_release_u32(3, 0);
        assert!(path.is_dead());
    }
}
