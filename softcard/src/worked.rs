//! The working time of the card thread, as its clients see it.
//!
//! A program that polls and finds nothing hands its core over ([`hostmem::HandOver`]). By this it tells
//! whether the time that passed was the cards'.

use std::sync::Arc;

use hostmem::SharedMapping;

use hostmem::thread_page::WORKED_OFFSET;

/// A clock that goes while there is work.
#[derive(Debug)]
pub(crate) struct Worked {
    page: Arc<SharedMapping>,
    nanoseconds: u64,
    /// When the round began behind which there was work.
    since: Option<u64>,
}

impl Worked {
    /// A counter in the card thread's page, which can be written.
    pub(crate) fn new(page: Arc<SharedMapping>) -> Self {
        Self { page, nanoseconds: 0, since: None }
    }

    /// The round that began at that time, in nanoseconds, had work.
    pub(crate) fn begin(&mut self, now: u64) {
        self.since = Some(now);
    }

    /// The next round begins.
    pub(crate) fn end(&mut self, now: u64) {
        let Some(since) = self.since.take() else { return };
        self.nanoseconds = self.nanoseconds.wrapping_add(now.saturating_sub(since));
        let microseconds = self.nanoseconds.wrapping_div(1000);
        // Readers subtract modulo 2^32, too.
        let word = u32::try_from(microseconds & u64::from(u32::MAX)).unwrap_or_default();
        let _ = self.page.store_relaxed_u32(WORKED_OFFSET as usize, word);
    }
}
