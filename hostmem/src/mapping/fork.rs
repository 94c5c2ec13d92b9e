//! Detection of a fork, by a page that the kernel wipes in the child.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use memmap2::{MmapOptions, MmapRaw};
use nix::errno::Errno;

use crate::{Error, PAGE_BYTES, Result};

/// The kernel's value of the word in a forked child.
const WIPED: u64 = 0;
const ALIVE: u64 = 1;
const MARKED: u64 = 2;

/// Tells a process from a forked child of it, for the price of one load; a clone is the same canary.
///
/// The objects that the canary guards (mappings, sockets, shadows of rings) belong to the process that made
/// the canary; in a child made by `fork` it must not be used, and [`Self::alive`] is false there.
#[derive(Clone, Debug)]
pub struct ForkCanary {
    /// The word in the page.
    word: NonNull<AtomicU64>,
    // Keeps `word` mapped.
    _page: Arc<WipedPage>,
}

// SAFETY: the word is reached by atomics only, and stays mapped with us.
unsafe impl Send for ForkCanary {}
// SAFETY: as above.
unsafe impl Sync for ForkCanary {}

impl ForkCanary {
    /// Makes a canary that is alive in this process and dead in every child forked later.
    pub fn new() -> Result<Self> {
        let page = WipedPage::new()?;
        page.word().store(ALIVE, Ordering::Relaxed);
        Ok(Self { word: NonNull::from(page.word()), _page: Arc::new(page) })
    }

    /// Whether this is the process that made the canary.
    #[inline(always)]
    pub fn alive(&self) -> bool {
        // SAFETY: the word is mapped as long as the page lives, which is as long as we do.
        unsafe { self.word.as_ref() }.load(Ordering::Relaxed) != WIPED
    }

    /// Notes for good that the process has finished with the memory that the canary guards.
    pub fn mark(&self) {
        if self.alive() {
            // SAFETY: as above.
            unsafe { self.word.as_ref() }.store(MARKED, Ordering::Relaxed);
        }
    }

    /// Whether the canary was marked, in this process.
    pub fn is_marked(&self) -> bool {
        // SAFETY: as above.
        unsafe { self.word.as_ref() }.load(Ordering::Relaxed) == MARKED
    }

    /// Whether this is the process that made the canary and the canary was not marked.
    #[inline(always)]
    pub fn is_unmarked(&self) -> bool {
        // SAFETY: as above.
        unsafe { self.word.as_ref() }.load(Ordering::Relaxed) == ALIVE
    }
}

/// A private page that reads as zero in a forked child (MADV_WIPEONFORK, Linux 4.14).
#[derive(Debug)]
struct WipedPage(MmapRaw);

impl WipedPage {
    fn new() -> Result<Self> {
        let page = MmapOptions::new().len(PAGE_BYTES).map_anon();
        let page = MmapRaw::from(page.map_err(Error::io("mmap of an anonymous page"))?);
        // SAFETY: the range is the one just mapped; the advice changes nothing in this process.
        let advised =
            unsafe { libc::madvise(page.as_mut_ptr().cast(), PAGE_BYTES, libc::MADV_WIPEONFORK) };
        Errno::result(advised).map_err(Error::os("madvise(MADV_WIPEONFORK)"))?;
        Ok(Self(page))
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: the page is mapped as long as `self` lives (in a forked child as well), is
        // page-aligned, and is reached through this word only.
        unsafe { AtomicU64::from_ptr(self.0.as_mut_ptr().cast()) }
    }
}

/// A number that differs between this process and those it was forked from; never 0.
///
/// Mappings remember the epoch they were made in, so that a child does not unmap memory that it
/// never inherited.
pub(super) fn epoch() -> Result<u64> {
    static PAGE: OnceLock<WipedPage> = OnceLock::new();
    // Ordinary memory: a child inherits the value, and so numbers its own epoch past it.
    static LAST: AtomicU64 = AtomicU64::new(0);

    let page = match PAGE.get() {
        Some(page) => page,
        None => {
            let page = WipedPage::new()?;
            PAGE.get_or_init(|| page)
        }
    };
    let word = page.word();
    loop {
        let current = word.load(Ordering::Acquire);
        if current != 0 {
            return Ok(current);
        }
        let next = LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        // Of several threads that find the word wiped one sets it, and all use its number.
        let _ = word.compare_exchange(0, next, Ordering::AcqRel, Ordering::Acquire);
    }
}
