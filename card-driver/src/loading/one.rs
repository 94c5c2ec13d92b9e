//! Images of one vFPGA alone, which is taken off the datapath while the others go on.

use std::sync::Arc;
use std::time::Instant;

use fpga_regs::coyote::pci::Bar;
use fpga_regs::coyote::shell::{self, Datapath, PrCnfg};
use fpga_regs::coyote::static_layer as s;
use fpga_regs::coyote::vfpga::user_csr;

use super::{CLEAR, Loading, Pace, holds_no_image, is_busy, is_loadable, swallow_end};
use crate::backend::CardBackend;
use crate::device::{Device, Reach, Window};
use crate::engine::EngineLimits;
use crate::engines::is_queue_engine;
use crate::error::Error;

/// Takes a vFPGA off the datapath, or puts it back.
fn datapath(backend: &dyn CardBackend, map: shell::Map, index: u8, off: bool) {
    let bit = 1u32.wrapping_shl(index.into());
    let register = if off { shell::DATAPATH_SET } else { shell::DATAPATH_CLEAR };
    let value = Datapath { decouple: bit, reset: bit }.encode();
    backend.write64(Bar::Shell, register.at(map), value);
}

impl Device {
    /// Whether images of one vFPGA alone can be loaded into it.
    ///
    /// # Errors
    /// [`Error::Load`] with the feature that it lacks.
    pub fn takes_images_of_one(&self) -> Result<(), Error> {
        let card = self.number;
        let failed = |why: &str| Err(Error::Load { card, why: why.to_owned() });
        if self.is_hosted() {
            return failed(
                "its vFPGAs have one stack in common, which keeps their queue pairs; load an image of the whole card",
            );
        }
        match PrCnfg::decode(self.backend.read64(Bar::Shell, shell::PR_CNFG)).enabled {
            true => Ok(()),
            false => failed(
                "its shell is built without reconfiguration of single vFPGAs (EN_PR); load an image of the whole card",
            ),
        }
    }

    /// Takes an unused vFPGA, whose engine is given up, off the datapath, and prepares the card for an image of it. It
    /// is for [`Self::finish_loading_one`] or [`Self::let_image_go`].
    ///
    /// # Errors
    /// [`Error::Load`], the back-end's, and the engine's where it does not come to a rest: nothing was given to it then.
    pub fn begin_loading_one(
        &mut self,
        index: u8,
        image: Arc<Vec<u8>>,
        pace: Pace,
    ) -> Result<Loading, Error> {
        let begun = self.take_off_datapath(index, image, pace);
        self.unless_gone(begun)
    }

    fn take_off_datapath(
        &mut self,
        index: u8,
        image: Arc<Vec<u8>>,
        pace: Pace,
    ) -> Result<Loading, Error> {
        let card = self.number;
        let failed = |why: &str| Error::Load { card, why: why.to_owned() };
        self.takes_images_of_one()?;
        let dead = |window: &Window| window.engine.death().is_some();
        if !is_loadable(&image, pace)
            || !self.windows.iter().any(|window| window.index == index && dead(window))
        {
            return Err(failed(
                "there is nothing to load, or in no such chunks, or its engine runs",
            ));
        }
        let backend = Arc::clone(&self.backend);
        if is_busy(&*backend) {
            return Err(failed("its engine is at another image, and only a reset ends that"));
        }
        if is_queue_engine(&*backend, u64::from(index)) {
            let mut windows = self.windows.iter_mut().filter(|window| window.index == index);
            windows.try_for_each(|window| window.engine.await_reset())?;
        }
        let length = Loading::span(&image, pace);
        let none = Error::NoAddressSpace { card, length };
        let range = self.arena.allocate(length, 0, Instant::now()).ok_or(none)?;
        let iova = range.start();
        datapath(&*backend, self.manifest.map, index, true);
        Ok(Loading::begin(card, backend, (image, pace), iova, Some((index, range))))
    }

    /// Puts the vFPGA of which a card has taken an image on the datapath again, and starts its engine anew.
    ///
    /// # Errors
    /// If there is no engine then, or another one than before, which is not used.
    pub fn finish_loading_one(&mut self, loading: &mut Loading) -> Result<(), Error> {
        let Some(index) = self.end_loading_one(loading, true) else { return Ok(()) };
        let started = self.start_loaded(index);
        self.unless_gone(started)
    }

    fn start_loaded(&mut self, index: u8) -> Result<(), Error> {
        let card = self.number;
        if !is_queue_engine(&*self.backend, u64::from(index)) {
            return Err(Error::Load { card, why: format!("vFPGA {index} holds no queue engine") });
        }
        let csr = user_csr(u64::from(index));
        let read = |register: u64| self.backend.read64(Bar::Shell, csr.wrapping_add(register));
        let found = EngineLimits::read(read);
        let mut windows = self.windows.iter();
        if windows.any(|it| it.index == index && *it.engine.limits() != found) {
            let why = format!(
                "the engine in vFPGA {index} offers other things than that of before, which only an image of the whole card changes"
            );
            return Err(Error::Load { card, why });
        }
        self.restart(index)
    }

    /// Drops an unfinished image of one vFPGA. Its vFPGA stays off the datapath; if nothing was given to the card,
    /// it keeps its image, and is started anew, unless the card was reset.
    ///
    /// # Errors
    /// The engine's, where it was to be started.
    pub fn let_image_go(&mut self, loading: &mut Loading) -> Result<(), Error> {
        let has_begun = loading.has_begun();
        match self.end_loading_one(loading, !has_begun) {
            Some(index) if !has_begun && !self.was_reset() => {
                let started = self.restart(index);
                self.unless_gone(started)
            }
            _ => Ok(()),
        }
    }

    /// Takes back the address range of an image of one vFPGA alone, and couples that vFPGA, which this returns.
    fn end_loading_one(&mut self, loading: &mut Loading, couples: bool) -> Option<u8> {
        let (index, range) = loading.alone.take()?;
        let Loading { backend, given, taken, .. } = loading;
        // Until it is reset, it may read buffers that it has not confirmed to have taken.
        let unmapped = backend.dma_unmap(range.start(), range.length());
        let reach = if given == taken && unmapped.is_ok() { Reach::Nobody } else { Reach::Card };
        self.release_iova(range, reach);
        backend.write32(Bar::Static, s::PR_CTRL, CLEAR.encode());
        swallow_end(&**backend);
        if couples {
            datapath(&**backend, self.manifest.map, index, false);
        }
        Some(index)
    }

    /// Whether the card has lost the image to which its shell belonged.
    #[must_use]
    pub fn has_lost_image(&self) -> bool {
        holds_no_image(&*self.backend)
    }
}
