//! Address spaces of queue pairs, one for each, in small pages that the card asks for.

use std::sync::Arc;

use fpga_regs::coyote::tlb::WINDOW_FIFO;
use fpga_regs::coyote::vfpga;

use super::{ROW, Shell, Translator};
use crate::error::Error;
use crate::lock::lock;
use crate::spaces::{Recall, Spaces};
use crate::translations::Purpose;

/// Address spaces whose pages' owners a [`Spaces`] names.
pub struct SpacesOfQps(Arc<dyn Spaces>);

impl SpacesOfQps {
    /// Address spaces whose pages' owners `spaces` names.
    #[must_use]
    pub fn new(spaces: Arc<dyn Spaces>) -> Self {
        Self(spaces)
    }
}

impl Translator for SpacesOfQps {
    fn tlb(&self, vfpga: u8) -> u64 {
        vfpga::small_tlb(vfpga.into())
    }

    fn outlives_engines(&self) -> bool {
        true
    }

    /// Nothing: their pages are asked for, and the owners of rings reach those.
    fn map(&self, _: &Shell, _: u8, _: u64, _: u64, _: Purpose) {}

    fn unmap(&self, shell: &Shell, index: u8, ranges: &[(u64, u64)]) -> Result<bool, Error> {
        let left = shell.redirect(index, ROW, || self.0.replace(index, ranges, ROW))?;
        self.surface(shell, index);
        Ok(!left)
    }

    fn mend(&self, vfpga: u8, ctid: u8, vaddr: u64, _: u32) -> Vec<[u64; 2]> {
        self.0.mend(vfpga, ctid, vaddr)
    }

    fn end_space(&self, shell: &Shell, index: u8, qpn: u32, anew: bool) -> Result<(), Error> {
        self.0.settle(index, qpn, anew);
        while shell.redirect(index, ROW, || self.0.close(index, qpn, ROW))? {}
        self.0.closed(index, qpn);
        Ok(())
    }

    fn settle(&self, vfpga: u8, qpn: u32) {
        self.0.settle(vfpga, qpn, true);
    }

    fn reason(&self, vfpga: u8) -> Option<String> {
        self.0.reason(vfpga)
    }

    fn fill(&self, shell: &Shell, index: u8) {
        let Some(vfpga) = shell.vfpga(index) else { return };
        let _state = lock(&vfpga.state);
        while let Some(entries) = self.0.fill(index) {
            for row in entries.chunks(WINDOW_FIFO) {
                shell.write_entries(index, row);
            }
        }
    }

    fn shut(&self, shell: &Shell, index: u8) -> Result<(), Error> {
        let Some(vfpga) = shell.vfpga(index) else { return Ok(()) };
        while shell.redirect(index, WINDOW_FIFO, || self.0.shut(index, WINDOW_FIFO))? {}
        // Another thread may have begun with some, and wait for the card.
        if !lock(&vfpga.state).is_in_doubt() {
            self.0.is_shut(index);
        }
        Ok(())
    }

    fn lapse(&self, shell: &Shell, index: u8) -> Result<(), Error> {
        self.0.lapse(index);
        self.shut(shell, index)
    }

    fn recall(&self, shell: &Shell, index: u8, of: Recall) -> Result<(), Error> {
        let mut from = (0, 0);
        while shell.redirect(index, ROW, || self.0.recall(index, of, &mut from, ROW))? {}
        Ok(())
    }

    fn surface(&self, shell: &Shell, index: u8) {
        let Some(vfpga) = shell.vfpga(index) else { return };
        let _state = lock(&vfpga.state);
        shell.write_entries(index, &self.0.surface(index));
        self.0.surfaced(index);
    }

    fn end(&self) {
        self.0.end();
    }
}
