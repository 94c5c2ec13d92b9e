//! Detection of a fork, by a page that the kernel wipes in the child.

use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::{Error, PAGE_BYTES, Result};

/// Tells a process from a forked child of it, for the price of one load.
///
/// What the canary guards (mappings, sockets, shadows of rings) belongs to the process that made
/// the canary; in a child made by `fork` it must not be used, and [`Self::alive`] is false there.
#[derive(Debug)]
pub struct ForkCanary {
    page: WipedPage,
}

impl ForkCanary {
    /// Makes a canary that is alive in this process and dead in every child forked later.
    pub fn new() -> Result<Self> {
        let page = WipedPage::new()?;
        page.word().store(1, Ordering::Relaxed);
        Ok(Self { page })
    }

    /// Whether this is the process that made the canary.
    #[inline]
    pub fn alive(&self) -> bool {
        self.page.word().load(Ordering::Relaxed) != 0
    }
}

/// A private page that reads as zero in a forked child (MADV_WIPEONFORK, Linux 4.14).
#[derive(Debug)]
struct WipedPage {
    base: NonNull<u8>,
}

// SAFETY: the page is reached through its one atomic word only.
unsafe impl Send for WipedPage {}
// SAFETY: as above.
unsafe impl Sync for WipedPage {}

impl WipedPage {
    fn new() -> Result<Self> {
        const LENGTH: NonZeroUsize = NonZeroUsize::new(PAGE_BYTES).unwrap();
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing we use.
        let base = unsafe {
            mmap_anonymous(
                None,
                LENGTH,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                MapFlags::MAP_PRIVATE,
            )
        }
        .map_err(Error::os("mmap of an anonymous page"))?;
        let page = Self { base: base.cast() };
        // SAFETY: the range is the one just mapped; the advice changes nothing in this process.
        unsafe { madvise(base, PAGE_BYTES, MmapAdvise::MADV_WIPEONFORK) }
            .map_err(Error::os("madvise(MADV_WIPEONFORK)"))?;
        Ok(page)
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: the page is mapped as long as `self` lives (in a forked child as well), is
        // page-aligned, and is reached through this word only.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().cast()) }
    }
}

impl Drop for WipedPage {
    fn drop(&mut self) {
        // SAFETY: the range is the one `new` mapped; the page is inherited over a fork, so it is
        // ours in a child too.
        let unmapped = unsafe { munmap(self.base.cast(), PAGE_BYTES) };
        debug_assert!(unmapped.is_ok());
    }
}

/// A number that differs between this process and those it was forked from; never 0.
///
/// Mappings remember the epoch they were made in, so that a child does not unmap what it never
/// inherited.
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
