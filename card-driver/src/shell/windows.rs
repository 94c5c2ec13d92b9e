//! Address spaces of windows, one for each vFPGA, whose pages lie where the bus has them.

use std::sync::Mutex;

use fpga_regs::coyote::tlb::Geometry;
use fpga_regs::coyote::vfpga::{self, IsrPid};
use fpga_regs::engine::window::CTID;

use super::{ROW, Shell, Translator};
use crate::error::Error;
use crate::lock::lock;
use crate::translations::{Purpose, Translations};

/// The possible contents of each vFPGA's large-page TLB. Each is locked behind the vFPGA's state.
#[derive(Debug)]
pub struct SpacesOfWindows(Vec<Mutex<Translations>>);

impl SpacesOfWindows {
    /// The address spaces of so many vFPGAs with empty TLBs.
    #[must_use]
    pub fn new(large: Geometry, regions: u8) -> Self {
        let hpid = std::process::id();
        Self((0..regions).map(|_| Mutex::new(Translations::new(large, CTID, hpid))).collect())
    }

    /// The address spaces of a card without vFPGAs.
    #[must_use]
    pub fn none() -> Self {
        Self(Vec::new())
    }

    fn of(&self, vfpga: u8) -> Option<&Mutex<Translations>> {
        self.0.get(usize::from(vfpga))
    }
}

impl Translator for SpacesOfWindows {
    fn tlb(&self, vfpga: u8) -> u64 {
        vfpga::large_tlb(vfpga.into())
    }

    fn outlives_engines(&self) -> bool {
        false
    }

    fn map(&self, shell: &Shell, index: u8, start: u64, length: u64, purpose: Purpose) {
        let (Some(vfpga), Some(translations)) = (shell.vfpga(index), self.of(index)) else {
            return;
        };
        let _state = lock(&vfpga.state);
        let entries = lock(translations).map(start, length, purpose);
        shell.write_entries(index, &entries);
    }

    fn unmap(&self, shell: &Shell, index: u8, ranges: &[(u64, u64)]) -> Result<bool, Error> {
        let (Some(vfpga), Some(translations)) = (shell.vfpga(index), self.of(index)) else {
            return Ok(true);
        };
        let state = lock(&vfpga.state);
        let mut translations = lock(translations);
        ranges.iter().for_each(|(start, _)| translations.forget(*start));
        let mut row = Vec::new();
        for &(start, length) in ranges {
            row.extend(translations.take_gone(start, length, ROW.saturating_sub(row.len())));
        }
        if row.is_empty() {
            return Ok(true);
        }
        let (hpid, bytes) = (translations.hpid(), translations.page_bytes());
        let entries: Vec<[u64; 2]> = row.iter().map(|(_, words)| *words).collect();
        shell.write_entries(index, &entries);
        drop((translations, state));
        let length = u32::try_from(bytes).unwrap_or(u32::MAX);
        let pages = row.iter().map(|(page, _)| (IsrPid { ctid: CTID, hpid }, *page, length));
        shell.invalidate_row(vfpga, pages)?;
        Ok(row.len() < ROW)
    }

    fn mend(&self, vfpga: u8, ctid: u8, vaddr: u64, length: u32) -> Vec<[u64; 2]> {
        let translations = self.of(vfpga).filter(|_| ctid == CTID);
        translations.map(|it| lock(it).refill(vaddr, length)).unwrap_or_default()
    }
}
