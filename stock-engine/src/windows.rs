//! Windows: addresses of QPs' address spaces that lead to memory of programs for as long as a part of a message moves.
//!
//! An address space of the tunnel's leads to no page of a program but through them. The card is told of a window's pages ahead, and
//! they are looked up anew when it asks for one. So taking back memory, or a key to it, ends the windows that lead
//! there, and waits for that; and a window is gone only when the card has forgotten its pages, and nothing is on its
//! way through them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use queue_engine::Payload;

use crate::param::{CTIDS, WINDOW_PAGES, WINDOW_PAGES_LEFT, WINDOWS, WINDOWS_OF_SPACE};

/// Bytes of a page.
const PAGE: u64 = 4096;

/// How far a window is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Open,
    /// Its pages are to be forgotten by the card.
    Ended,
    /// They are being forgotten.
    Leaving,
}

/// A window, and the memory behind it.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// The payload to which the bytes belong.
    pub payload: Payload,
    /// The first of them.
    pub offset: u64,
    /// How many.
    pub bytes: u32,
    /// The bus address of the bytes.
    pub iova: u64,
    life: Life,
}

/// The windows of a vFPGA.
#[derive(Debug)]
pub struct Windows {
    /// By address space and first address.
    all: BTreeMap<(u8, u64), Window>,
    /// Where the next one of each address space begins.
    next: Vec<u64>,
    /// Pages of all of them.
    pages: u64,
    /// Those that the card was told of nothing yet.
    fresh: VecDeque<(u8, u64)>,
    /// Address spaces that end whole.
    ending: BTreeSet<u8>,
    opened: u64,
    refused: u64,
}

/// The pages that a window has.
const fn pages_of(address: u64, bytes: u32) -> u64 {
    (address % PAGE).saturating_add(bytes as u64).div_ceil(PAGE)
}

/// The first byte of a window's pages, and the one behind the last.
fn range_of(address: u64, bytes: u32) -> (u64, u64) {
    let start = address & !(PAGE.wrapping_sub(1));
    (start, start.saturating_add(pages_of(address, bytes).saturating_mul(PAGE)))
}

/// How far behind a window's first page another one of its pages is; `None` where that is none of its.
fn into_window(address: u64, bytes: u32, page: u64) -> Option<u64> {
    let into = page.checked_sub(address & !(PAGE.wrapping_sub(1)))?;
    (into < pages_of(address, bytes).saturating_mul(PAGE)).then_some(into)
}

impl Default for Windows {
    fn default() -> Self {
        // Not all in the same sets of the TLB.
        let next = (0..u64::from(CTIDS)).map(|ctid| ctid.wrapping_mul(67 * PAGE)).collect();
        let (all, pages, fresh, ending, opened, refused) = Default::default();
        Self { all, next, pages, fresh, ending, opened, refused }
    }
}

impl Windows {
    /// Opens one on bytes that lie at `iova` on the bus: its first address. `None` where there are too many.
    pub fn open(
        &mut self,
        ctid: u8,
        iova: u64,
        (payload, offset): (Payload, u64),
        bytes: u32,
    ) -> Option<u64> {
        let pages = pages_of(iova, bytes);
        let more = self.pages.saturating_add(pages);
        let left = if self.has(ctid) { WINDOW_PAGES_LEFT } else { 0 };
        if more > WINDOW_PAGES.saturating_sub(left) || self.ending.contains(&ctid) {
            self.refused = self.refused.wrapping_add(1);
            return None;
        }
        let next = self.next.get_mut(usize::from(ctid))?;
        // A page between two windows belongs to neither.
        let length = pages.saturating_add(1).saturating_mul(PAGE);
        if next.saturating_add(length) > WINDOWS_OF_SPACE {
            *next = 0;
        }
        let space = WINDOWS.saturating_add(WINDOWS_OF_SPACE.saturating_mul(ctid.into()));
        let start = space.saturating_add(*next);
        *next = next.saturating_add(length);
        // One that was there a round ago may still be.
        let end = start.saturating_add(length);
        let mut before = self.all.range((ctid, space)..(ctid, end)).map(|((_, at), it)| (at, it));
        let reaches = |(at, it): (&u64, &Window)| into_window(*at, it.bytes, start).is_some();
        if before.next_back().is_some_and(|it| *it.0 >= start || reaches(it)) {
            self.refused = self.refused.wrapping_add(1);
            return None;
        }
        let address = start.saturating_add(iova % PAGE);
        self.pages = more;
        self.opened = self.opened.wrapping_add(1);
        let window = Window { payload, offset, bytes, iova, life: Life::Open };
        self.all.insert((ctid, address), window);
        self.fresh.push_back((ctid, address));
        Some(address)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether an address space has any.
    fn has(&self, ctid: u8) -> bool {
        self.all.range((ctid, 0)..=(ctid, u64::MAX)).next().is_some()
    }

    /// Ends a window, if it is open.
    pub fn close(&mut self, ctid: u8, address: u64) {
        let window = self.all.get_mut(&(ctid, address));
        if let Some(window) = window.filter(|it| it.life == Life::Open) {
            window.life = Life::Ended;
        }
    }

    /// Whether one has ended, and nothing is on its way through it.
    #[must_use]
    pub fn is_closed(&self, ctid: u8, address: u64) -> bool {
        !self.all.contains_key(&(ctid, address))
    }

    /// Ends all windows of an address space; whether no transfer is on its way through any.
    pub fn end(&mut self, ctid: u8) -> bool {
        let mut none = true;
        for (_, window) in self.all.range_mut((ctid, 0)..=(ctid, u64::MAX)) {
            none = false;
            if window.life == Life::Open {
                window.life = Life::Ended;
            }
        }
        none
    }

    /// All pages of an address space are about to lead nowhere, and its windows with them.
    pub fn begin_end(&mut self, ctid: u8) {
        self.end(ctid);
        self.ending.insert(ctid);
    }

    /// They do, and nothing is on its way to any other.
    pub fn forget(&mut self, ctid: u8) {
        self.ending.remove(&ctid);
        self.drop_those(|of, _, _| of == ctid);
    }

    /// Forgets all, as the card has with its reset.
    pub fn reset(&mut self) {
        self.ending.clear();
        self.drop_those(|_, _, _| true);
    }

    fn drop_those(&mut self, goes: impl Fn(u8, u64, &Window) -> bool) {
        let mut pages = 0u64;
        self.all.retain(|(ctid, address), window| {
            let stays = !goes(*ctid, *address, window);
            if stays {
                pages = pages.saturating_add(pages_of(*address, window.bytes));
            }
            stays
        });
        self.pages = pages;
    }

    /// The open one that a page is of, and the page on the bus that it leads to as long as that is the window's memory.
    #[must_use]
    pub fn find(&self, ctid: u8, page: u64) -> Option<(&Window, u64)> {
        let last = page.saturating_add(PAGE.wrapping_sub(1));
        let ((_, address), window) = self.all.range((ctid, 0)..=(ctid, last)).next_back()?;
        let into = into_window(*address, window.bytes, page)?;
        let bus = (window.iova & !(PAGE.wrapping_sub(1))).saturating_add(into);
        (window.life == Life::Open).then_some((window, bus))
    }

    /// One that was opened, and of whose pages the card is to be told ahead: its address space, first page, and pages.
    pub fn take_fresh(&mut self) -> Option<(u8, u64, u64)> {
        let (ctid, address) = self.fresh.pop_front()?;
        let bytes = self.all.get(&(ctid, address)).map_or(0, |window| window.bytes);
        Some((ctid, address & !(PAGE.wrapping_sub(1)), pages_of(address, bytes)))
    }

    /// Whether [`Self::take_fresh`] has any, and whether [`Self::leave`] has.
    #[must_use]
    pub fn due(&self) -> (bool, bool) {
        let ended = |(ctid, _): &(u8, u64)| !self.ending.contains(ctid);
        let mut all = self.all.iter();
        let has_ended = all.any(|(key, window)| window.life != Life::Open && ended(key));
        (!self.fresh.is_empty(), has_ended)
    }

    /// Those that have ended, and that the card is to forget, as address space, first byte and the byte behind the
    /// last page. Then [`Self::left`] is due. Those of address spaces that end are among them: a caller may have to
    /// know that no window of a key is left, without waiting for the end of all others.
    pub fn leave(&mut self) -> Vec<(u8, u64, u64)> {
        let mut leaving = Vec::new();
        for ((ctid, address), window) in &mut self.all {
            if window.life == Life::Open {
                continue;
            }
            window.life = Life::Leaving;
            let (start, end) = range_of(*address, window.bytes);
            leaving.push((*ctid, start, end));
        }
        leaving
    }

    /// Drops the windows whose pages the card has forgotten, unless `holds` says of bytes from a first one on to
    /// another that transfers may be on their way through them: one caller may have begun with some, and another with
    /// others.
    pub fn left(&mut self, holds: impl Fn(u8, u64, u64) -> bool) {
        let ending = std::mem::take(&mut self.ending);
        self.drop_those(|ctid, address, window| {
            let (start, end) = range_of(address, window.bytes);
            let leaves = window.life == Life::Leaving && !ending.contains(&ctid);
            leaves && !holds(ctid, start, end)
        });
        self.ending = ending;
    }

    /// Ends the windows whose memory is not where it was, as `leads` says, or not the peer's any more.
    pub fn end_those(&mut self, leads: impl Fn(u8, &Window) -> bool) {
        for ((ctid, _), window) in &mut self.all {
            if window.life == Life::Open && !leads(*ctid, window) {
                window.life = Life::Ended;
            }
        }
    }

    /// Windows that were opened so far, and those for which there was no room.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.opened, self.refused)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::arithmetic_side_effects, reason = "tests may fail")]
mod tests {
    use super::*;

    const IOVA: u64 = 0x9_0123;
    const WHAT: (Payload, u64) = (Payload::Message { number: 3 }, 7);
    /// One page more than it has whole ones.
    const BYTES: u32 = 4 * 4096;

    #[test]
    fn a_window_leads_to_its_pages_and_none_beside_them() {
        let mut windows = Windows::default();
        let address = windows.open(5, IOVA, WHAT, BYTES).unwrap();
        assert_eq!(address % PAGE, IOVA % PAGE);
        let first = address - IOVA % PAGE;
        let found = |page| windows.find(5, page).map(|(window, bus)| (window.offset, bus));
        assert_eq!(found(first), Some((7, 0x9_0000)));
        assert_eq!(found(first + 4 * PAGE), Some((7, 0x9_4000)));
        assert_eq!((found(first - PAGE), found(first + 5 * PAGE)), (None, None));
        assert!(windows.find(6, first).is_none(), "another address space");
        assert_eq!(windows.take_fresh(), Some((5, first, 5)));
        assert_eq!(windows.take_fresh(), None);
    }

    #[test]
    fn one_that_ends_leads_nowhere_and_is_closed_when_the_card_has_forgotten_it() {
        let mut windows = Windows::default();
        let address = windows.open(5, IOVA, WHAT, BYTES).unwrap();
        let first = address - IOVA % PAGE;
        windows.close(5, address);
        assert!(windows.find(5, first).is_none() && !windows.is_closed(5, address));
        assert!(windows.due().1);
        assert_eq!(windows.leave(), [(5, first, first + 5 * PAGE)]);
        // One that ends meanwhile was not forgotten by that.
        let other = windows.open(5, IOVA, WHAT, BYTES).unwrap();
        assert_ne!(other, address);
        windows.close(5, other);
        windows.left(|_, _, _| false);
        assert!(windows.is_closed(5, address) && !windows.is_closed(5, other));
        windows.leave();
        // Somebody else has begun with it, and the card has not confirmed that.
        windows.left(|ctid, start, end| (ctid, end - start) == (5, 5 * PAGE));
        assert!(!windows.is_closed(5, other));
        windows.left(|_, _, _| false);
        assert!(windows.is_closed(5, other) && windows.end(5) && !windows.due().1);
    }

    #[test]
    fn an_address_space_that_ends_waits_for_its_own_end_alone() {
        let mut windows = Windows::default();
        let address = windows.open(5, IOVA, WHAT, BYTES).unwrap();
        windows.begin_end(5);
        assert!(windows.open(5, IOVA, WHAT, BYTES).is_none(), "it ends");
        assert!(!windows.due().1, "nobody has to look for it");
        let first = address - IOVA % PAGE;
        assert_eq!(windows.leave(), [(5, first, first + 5 * PAGE)], "who asks for all");
        windows.left(|_, _, _| false);
        assert!(!windows.end(5) && !windows.is_closed(5, address));
        windows.forget(5);
        assert!(windows.end(5) && windows.is_closed(5, address));
        assert!(windows.open(5, IOVA, WHAT, BYTES).is_some());
    }

    #[test]
    fn those_whose_memory_is_elsewhere_or_nobody_s_by_now_end() {
        let mut windows = Windows::default();
        let [one, other] = [5, 6].map(|ctid| windows.open(ctid, IOVA, WHAT, BYTES).unwrap());
        windows.end_those(|ctid, window| (ctid, window.iova) == (6, IOVA));
        assert!(windows.due().1 && windows.find(5, one & !(PAGE - 1)).is_none());
        assert!(windows.find(6, other & !(PAGE - 1)).is_some());
    }

    #[test]
    fn who_has_windows_leaves_half_of_the_pages_to_others() {
        let mut windows = Windows::default();
        let open = |windows: &mut Windows, ctid| {
            (0..u64::MAX).find(|_| windows.open(ctid, 0, WHAT, 16 * 4096).is_none()).unwrap()
        };
        assert_eq!(open(&mut windows, 5), WINDOW_PAGES / 2 / 16);
        for ctid in 6..38 {
            assert_eq!(open(&mut windows, ctid), 1, "{ctid}");
        }
        assert_eq!(open(&mut windows, 38), 0);
        assert_eq!(windows.counts().0, 64);
        windows.reset();
        assert_eq!(open(&mut windows, 38), WINDOW_PAGES / 2 / 16);
    }

    #[test]
    fn addresses_go_round_in_their_own_space() {
        let mut windows = Windows::default();
        let mut last = 0;
        for _ in 0..3 {
            *windows.next.get_mut(5).unwrap() = WINDOWS_OF_SPACE - 8 * PAGE;
            for _ in 0..2 {
                last = windows.open(5, IOVA, WHAT, BYTES).unwrap();
                assert!(
                    (WINDOWS + 5 * WINDOWS_OF_SPACE..WINDOWS + 6 * WINDOWS_OF_SPACE)
                        .contains(&last)
                );
            }
            assert!(last < WINDOWS + 5 * WINDOWS_OF_SPACE + PAGE, "{last:#x}");
            // A round later it is still open, and none is opened over it, or over a part of it.
            for next in [WINDOWS_OF_SPACE - PAGE, 4 * PAGE] {
                *windows.next.get_mut(5).unwrap() = next;
                assert!(windows.open(5, IOVA, WHAT, BYTES).is_none());
                assert!(windows.open(5, IOVA, WHAT, BYTES).is_some(), "behind it there is room");
                windows.reset();
                *windows.next.get_mut(5).unwrap() = 0;
                last = windows.open(5, IOVA, WHAT, BYTES).unwrap();
            }
            windows.reset();
        }
        assert!(WINDOWS + WINDOWS_OF_SPACE * u64::from(CTIDS) <= crate::param::LOCAL);
        assert!(last % PAGE == IOVA % PAGE);
    }
}
