//! The way to a card's doorbells, and the sign that the card lives.

use hostmem::{DoorbellPage, DoorbellSlot, ForkCanary, HandOver, Lifeline, SharedWord, Waker};
use vfio::Iommu;

/// What this process was granted on one card: a doorbell page, and how the card is woken.
///
/// One for each card and process; all contexts of the process on that card share it.
#[derive(Debug)]
pub(crate) struct CardPath {
    page: DoorbellPage,
    waker: Waker,
    life: Life,
    /// The IOMMU by which this process maps the memory that it registers; `None` where balboad does.
    iommu: Option<Iommu>,
    /// `None` where the card has no need of this machine's cores.
    shared_cores: Option<SharedCores>,
    /// Marked for good once the card was seen dead.
    canary: ForkCanary,
}

/// A card that runs on the cores that its programs poll on.
#[derive(Debug)]
struct SharedCores {
    hand_over: HandOver,
    /// Counts the microseconds in which the card's thread worked.
    worked: SharedWord,
}

/// The signs that a card still works for this process.
#[derive(Debug)]
pub(crate) struct Life {
    /// The lock that dies with the card's thread.
    pub thread: Lifeline,
    /// The word that balboad sets once it has taken the card away.
    pub state: SharedWord,
}

impl Life {
    #[inline(always)]
    fn is_over(&self) -> bool {
        self.thread.is_dead() || self.state.load_acquire() != 0
    }
}

impl CardPath {
    /// Joins the parts of a grant.
    pub(crate) fn new(page: DoorbellPage, waker: Waker, life: Life, canary: ForkCanary) -> Self {
        Self { page, waker, life, iommu: None, shared_cores: None, canary }
    }

    /// The same, of a card that is a thread of this machine, which counts in that word the
    /// microseconds in which it worked.
    pub(crate) fn with_worked(self, worked: SharedWord) -> Self {
        let hand_over = HandOver::new();
        Self { shared_cores: Some(SharedCores { hand_over, worked }), ..self }
    }

    /// The same, of a card for which this process maps the memory that it registers.
    pub(crate) fn with_iommu(self, iommu: Iommu) -> Self {
        Self { iommu: Some(iommu), ..self }
    }

    /// The IOMMU by which this process maps the memory that it registers, if it does.
    pub(crate) fn iommu(&self) -> Option<&Iommu> {
        self.iommu.as_ref()
    }

    /// A slot of the doorbell page.
    pub(crate) fn slot(&self, slot: usize) -> DoorbellSlot {
        self.page.slot(slot)
    }

    /// Wakes the card if it sleeps; the record and the slot of the queue that has work come first.
    #[inline(always)]
    pub(crate) fn wake_if_asleep(&self) {
        if self.is_asleep() {
            self.wake();
        }
    }

    /// Whether the card sleeps, and is to be [woken](Self::wake).
    #[inline(always)]
    pub(crate) fn is_asleep(&self) -> bool {
        self.waker.is_needed()
    }

    /// Wakes the card if it sleeps and must know of receives that were posted.
    #[inline(always)]
    pub(crate) fn wake_for_receives(&self) {
        if self.waker.is_needed_for_receives() {
            self.wake();
        }
    }

    /// The system call, apart from the way that is taken while the card is awake. Answers 0, so that a call that answers so
    /// has nothing left to do behind it.
    #[cold]
    #[inline(never)]
    pub(crate) fn wake(&self) -> i32 {
        // It can only fail when the eventfd is gone, and then so is the card: the liveness word
        // tells.
        let _ = self.waker.signal();
        // A compiler that knew the answer would have callers make it themselves, behind the call.
        std::hint::black_box(0)
    }

    /// Hands the core over to a waiting thread, in a loop of polls that find nothing, because the card or another
    /// program of its may wait for the core. Returns whether it did.
    #[cold]
    pub(crate) fn hand_over(&self) -> bool {
        self.shared_cores.as_ref().is_some_and(|SharedCores { hand_over, worked }| {
            hand_over.hand_over(|| u64::from(worked.load_relaxed()).wrapping_mul(1000))
        })
    }

    /// Tells whether the path is ours and its card not dead, as far as that was noticed.
    pub(crate) fn canary(&self) -> &ForkCanary {
        &self.canary
    }

    /// Whether the process that holds this path runs it, and not a forked child.
    #[inline(always)]
    pub(crate) fn is_ours(&self) -> bool {
        self.canary.alive()
    }

    /// Whether the card's thread has ended, or balboad has taken the card away.
    #[inline(always)]
    pub(crate) fn is_dead(&self) -> bool {
        self.canary.is_marked() || (self.life.is_over() && self.died())
    }

    /// Whether the path is ours and the card is not dead.
    #[inline(always)]
    pub(crate) fn is_fit(&self) -> bool {
        self.canary.is_unmarked() && !self.life.is_over()
    }

    #[cold]
    #[inline(never)]
    fn died(&self) -> bool {
        self.declare_dead();
        true
    }

    /// Notes that the card is gone.
    pub(crate) fn declare_dead(&self) {
        self.canary.mark();
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::fd::AsFd;
    use std::sync::Arc;

    use hostmem::{Access, Liveness, Record, SharedMapping, memfd};

    use super::*;

    /// Shared memory as balboad would have made it.
    pub(crate) fn memory(bytes: usize) -> Arc<SharedMapping> {
        let fd = memfd::create("test", bytes).unwrap();
        Arc::new(SharedMapping::new(fd.as_fd(), 0, bytes, Access::ReadWrite).unwrap())
    }

    /// A path to a card that is nobody, with the doorbell page to look at.
    pub(crate) fn path() -> (Arc<CardPath>, DoorbellPage) {
        let page = DoorbellPage::new(memory(4096), 0).unwrap();
        (Arc::new(card_path(page.clone(), lasting())), page)
    }

    fn card_path(page: DoorbellPage, life: Life) -> CardPath {
        CardPath::new(page, Waker::needless(), life, ForkCanary::new().unwrap())
    }

    /// The life of a holder that never dies, for nobody has taken the lock.
    fn lasting() -> Life {
        let state = SharedWord::new(memory(4096), 0).unwrap();
        Life { thread: Lifeline::new(memory(4096), 0).unwrap(), state }
    }

    #[test]
    fn a_card_whose_lock_was_given_back_is_dead_for_good() {
        let (fd, writer) = memfd::create_read_only_for_others("live", 4096).unwrap();
        let reader = SharedMapping::new(fd.as_fd(), 0, 4096, Access::ReadOnly).unwrap();
        let writer = Arc::new(writer);
        let held = Liveness::hold(Arc::clone(&writer), 64).unwrap();
        let page = DoorbellPage::new(memory(4096), 0).unwrap();
        let thread = Lifeline::new(Arc::new(reader), 64).unwrap();
        let path = card_path(page, Life { thread, ..lasting() });
        assert!(!path.is_dead());
        drop(held);
        assert!(path.is_dead());
        let _again = Liveness::hold(writer, 64).unwrap();
        assert!(path.is_dead());
    }

    #[test]
    fn a_card_that_balboad_took_away_is_dead_for_good() {
        let memory = memory(4096);
        let states = Record::new(memory.clone(), 0).unwrap();
        let page = DoorbellPage::new(super::tests::memory(4096), 0).unwrap();
        let state = SharedWord::new(memory, 12).unwrap();
        let path = card_path(page, Life { state, ..lasting() });
        states.store_release_u32(2, 1);
        assert!(!path.is_dead(), "another card's word");
        states.store_release_u32(3, 1);
        assert!(path.is_dead());
        states.store_release_u32(3, 0);
        assert!(path.is_dead());
    }
}
