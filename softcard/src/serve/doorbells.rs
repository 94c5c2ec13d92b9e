//! The doorbell pages of BAR4, in a memory file that clients map.
//!
//! The file is laid out as the BAR is, up to the last doorbell page; its other pages are never
//! looked at. A store to a page gives no notice: the card looks at its doorbells by timer.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use fpga_regs::coyote::vfpga;
use fpga_regs::engine::window::{DOORBELL_PAGES, PAGE_BYTES};
use hostmem::{Access, DoorbellPage, SharedMapping, memfd};

use crate::card::AllPages;
use crate::vfpga::Slots;
use crate::{Error, WINDOWS};

/// The memory of all doorbell pages.
#[derive(Debug)]
pub(crate) struct Doorbells {
    file: OwnedFd,
    mapping: Arc<SharedMapping>,
}

/// Byte offset in BAR4 of page 0 of a window, which the doorbell pages follow.
fn window(number: u8) -> u64 {
    let stride = u64::from(number).saturating_mul(vfpga::CONTROL_WINDOW_STRIDE);
    vfpga::CONTROL_WINDOW_BASE.saturating_add(stride).saturating_add(vfpga::USER_CSR_OFFSET)
}

/// Byte offset in BAR4 of a page of a window.
fn page(window_number: u8, page: u8) -> u64 {
    window(window_number).saturating_add(u64::from(page).saturating_mul(PAGE_BYTES))
}

/// Where in BAR4 the doorbell pages are, window by window.
pub(crate) fn areas() -> Vec<Range<u64>> {
    let area = |window| page(window, 1)..page(window, DOORBELL_PAGES.saturating_add(1));
    (0..WINDOWS).map(area).collect()
}

impl Doorbells {
    /// Makes the file.
    pub(crate) fn new() -> Result<Self, Error> {
        let bytes = areas().last().map_or(0, |area| area.end as usize);
        let file = memfd::create("balboa-doorbells", bytes)?;
        let mapping = SharedMapping::new(file.as_fd(), 0, bytes, Access::ReadWrite)?;
        Ok(Self { file, mapping: Arc::new(mapping) })
    }

    /// The file, to be handed out.
    pub(crate) fn into_file(self) -> OwnedFd {
        self.file
    }

    /// The pages, as the card looks at them.
    pub(crate) fn pages(&self) -> Result<AllPages, Error> {
        let mut pages = AllPages::default();
        for (window_number, places) in (0..).zip(&mut pages) {
            for (number, place) in (1..).zip(places) {
                let offset = page(window_number, number) as usize;
                let slots = DoorbellPage::new(Arc::clone(&self.mapping), offset)?;
                *place = Some(Slots(Arc::new(slots)));
            }
        }
        Ok(pages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_areas_are_pages_1_to_15_of_each_window() {
        assert_eq!(areas()[0], 0x12_1000..0x13_0000);
        assert_eq!(areas()[3], 0x1e_1000..0x1f_0000);
    }

    #[test]
    fn a_store_through_the_file_is_seen_in_its_page() {
        let doorbells = Doorbells::new().unwrap();
        let pages = doorbells.pages().unwrap();
        let file = doorbells.into_file();
        let theirs =
            SharedMapping::new(file.as_fd(), 0x1e_1000, 0xf000, Access::ReadWrite).unwrap();
        theirs.store_release_u64(0xe008, 7).unwrap();
        assert_eq!(pages[3][14].as_ref().unwrap().0.read(1), 7);
    }
}
