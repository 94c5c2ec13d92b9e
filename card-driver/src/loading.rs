//! Images on their way into a card, by its own reconfiguration engine.
//!
//! Every buffer is made, and mapped for the card, before anything happens to it: a shortage on this host costs no
//! image. Then the published driver's order: the shell is decoupled, the file goes in chunks of 2 MiB, each in a buffer
//! of its own and by a descriptor of the static layer's engine, as many as that queues; the end is awaited, the shell
//! is reset and coupled again, and then the card is brought up as one that has just come. A descriptor leaves the queue
//! before its data is fetched, and [`s::PR_CNT`] counts ends alone, so that no buffer is used twice; the counter of the
//! DMA channel tells people how far a card has come.
//!
//! The end says that the last word was passed on and a time has gone by since, not that the configuration logic
//! accepted it.
//!
//! An image of one vFPGA alone goes the same way, but that vFPGA is taken off the datapath instead of the shell, and then
//! its engine is started anew; the others go on.
//!
//! Nothing here says that an image is there: [`Device::check_image`] asks the card, once it is up.
//!
//! A card can go between any two reads, and reads all ones from then on. So the driver checks whether it is gone after
//! it has read registers, and before it uses their values.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bitstreams::Manifest;
use fpga_regs::coyote::pci::{Bar, RECONFIGURATION_VECTOR};
use fpga_regs::coyote::shell::{self, ShellPblock};
use fpga_regs::coyote::static_layer::{self as s, PrAddrHigh, PrCtrl, PrLen, PrQueue, PrStat};
use fpga_regs::coyote::xdma;
use hostmem::{Access, DmaMemory, PAGE_BYTES, SharedMapping, memfd};

use crate::backend::{CardBackend, Takes};
use crate::bringup::{self, gone, gone_or};
use crate::device::Device;
use crate::engines::is_queue_engine;
use crate::error::Error;
use crate::iova::{ARENA_END, ARENA_START, IovaRange};
use crate::shell::Shell;

mod one;

/// The time that a card may take for a chunk, or for its end: the published figure for a whole shell is below a second.
pub const LIMIT: Duration = Duration::from_secs(10);

/// The pace of sending an image.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Bytes of a chunk, at most [`s::PR_CHUNK_BYTES`].
    pub chunk: usize,
    /// The time that a chunk may take.
    pub limit: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { chunk: s::PR_CHUNK_BYTES as usize, limit: LIMIT }
    }
}

/// The result of a look at a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadingStep {
    /// The card is at a chunk still.
    Waits,
    /// The card has taken a chunk, or is given one.
    Moved,
    /// The card has all of it, and says that it is at its end.
    Ended,
}

/// An image on its way.
pub struct Loading {
    card: u32,
    backend: Arc<dyn CardBackend>,
    image: Arc<Vec<u8>>,
    /// One for each chunk, once all are made; none goes before the end.
    buffers: Vec<Arc<SharedMapping>>,
    /// Where the card sees them, [`s::PR_CHUNK_BYTES`] apart.
    iova: u64,
    /// The vFPGA that it is for alone, and the addresses of the buffers.
    alone: Option<(u8, IovaRange)>,
    pace: Pace,
    /// Bytes that the card was given, and those that it has taken.
    given: usize,
    taken: usize,
    /// Bytes of the last descriptor.
    length: u32,
    /// The count of the DMA channel before.
    fetched: u32,
    since: Instant,
}

impl Loading {
    fn begin(
        card: u32,
        backend: Arc<dyn CardBackend>,
        (image, pace): (Arc<Vec<u8>>, Pace),
        iova: u64,
        alone: Option<(u8, IovaRange)>,
    ) -> Self {
        let fetched = expect_end(&*backend);
        let (buffers, since) = (Vec::new(), Instant::now());
        let (given, taken, length) = (0, 0, 0);
        Self {
            card,
            backend,
            image,
            buffers,
            iova,
            alone,
            pace,
            given,
            taken,
            length,
            fetched,
            since,
        }
    }

    /// Bytes that the card has taken, and all.
    #[must_use]
    pub fn progress(&self) -> (u64, u64) {
        (self.taken as u64, self.image.len() as u64)
    }

    /// The buffers of the image, up to 128 MiB, for the caller to drop where that delays no client.
    ///
    /// It is the last that holds it once the card cannot reach it any more.
    #[must_use]
    pub fn into_memory(self) -> impl Send + 'static {
        (self.image, self.buffers)
    }

    /// Whether the card was given anything: until then it has its old image.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.given > 0
    }

    fn failed(&self, why: String) -> Error {
        Error::Load { card: self.card, why }
    }

    fn read(&self, register: u64) -> u32 {
        self.backend.read32(Bar::Static, register)
    }

    fn write(&self, register: u64, value: u32) {
        self.backend.write32(Bar::Static, register, value);
    }

    /// Looks at the card, and gives it the next chunk if it has room for one.
    ///
    /// # Errors
    /// [`Error::Load`] if it does not go on, or a register has an unexpected value, [`Error::BringUp`] if it is gone,
    /// and the back-end's: [`Self::has_begun`] then tells whether its old image is lost.
    pub fn step(&mut self, now: Instant) -> Result<LoadingStep, Error> {
        match self.look(now) {
            Ok(LoadingStep::Moved) => Ok(LoadingStep::Moved),
            Ok(step) => {
                gone(self.card, &*self.backend)?;
                if step == LoadingStep::Ended {
                    self.taken = self.given;
                }
                Ok(step)
            }
            Err(error) => Err(gone_or(error, self.card, &*self.backend)),
        }
    }

    /// Looks at the card's progress.
    fn look(&mut self, now: Instant) -> Result<LoadingStep, Error> {
        if self.buffers.len() < self.chunks() {
            self.make_buffer()?;
            self.since = now;
            return Ok(LoadingStep::Moved);
        }
        let whole = self.given == self.image.len();
        if self.given > 0 {
            let length = self.read(s::PR_LEN);
            if length != self.length {
                return Err(self.failed(format!(
                    "its last chunk has {length} bytes, and not {}: it began anew, as when its power went",
                    self.length
                )));
            }
        }
        if whole && PrStat::decode(self.read(s::PR_STAT)).done {
            return Ok(LoadingStep::Ended);
        }
        let moved = self.has_moved();
        if !whole && usize::from(queued(&*self.backend)) < s::PR_QUEUE {
            self.give();
            self.since = now;
            return Ok(LoadingStep::Moved);
        }
        if moved {
            self.since = now;
            return Ok(LoadingStep::Moved);
        }
        match now.saturating_duration_since(self.since) > self.pace.limit {
            false => Ok(LoadingStep::Waits),
            true => Err(self.failed(format!(
                "it did not {} within {:?}, at byte {} of {}",
                if self.taken == self.image.len() { "come to the end" } else { "take a chunk" },
                self.pace.limit,
                self.taken,
                self.image.len()
            ))),
        }
    }

    /// Whether more chunks were fetched than at the last look.
    fn has_moved(&mut self) -> bool {
        let fetched = self.read(s::HDMA_STAT.at(FETCHED)).wrapping_sub(self.fetched);
        let chunks = usize::try_from(fetched).unwrap_or(usize::MAX);
        let taken = match chunks {
            // It counts something else, or from somewhere else.
            beyond if beyond > self.given.div_ceil(self.pace.chunk) => return false,
            chunks => chunks.saturating_mul(self.pace.chunk).min(self.given),
        };
        let moved = taken > self.taken;
        self.taken = self.taken.max(taken);
        moved
    }

    /// How many chunks it has.
    fn chunks(&self) -> usize {
        self.image.len().div_ceil(self.pace.chunk)
    }

    /// Where the card sees a chunk.
    fn address_of(&self, chunk: usize) -> u64 {
        self.iova.saturating_add((chunk as u64).saturating_mul(s::PR_CHUNK_BYTES))
    }

    /// Makes the next chunk's buffer.
    fn make_buffer(&mut self) -> Result<(), Error> {
        let number = self.buffers.len();
        let at = number.saturating_mul(self.pace.chunk);
        let left = self.image.get(at..).unwrap_or_default();
        let chunk = left.get(..self.pace.chunk).unwrap_or(left);
        self.buffers.push(buffer_at(&*self.backend, self.address_of(number), chunk)?);
        Ok(())
    }

    /// Gives the card the next chunk, whose buffer is there; before the first one of a shell it is decoupled.
    fn give(&mut self) {
        if self.given == 0 && self.alone.is_none() {
            self.write(s::PR_DCPL_SET, 1);
        }
        let left = self.image.len().saturating_sub(self.given);
        let bytes = left.min(self.pace.chunk);
        let iova = self.address_of(self.given.checked_div(self.pace.chunk).unwrap_or_default());
        let length = u32::try_from(bytes).unwrap_or(u32::MAX);
        let last = bytes == left;
        let high = u16::try_from(iova >> 32).unwrap_or(u16::MAX);
        self.write(s::PR_ADDR_LOW, iova as u32);
        self.write(s::PR_ADDR_HIGH, PrAddrHigh { address: high }.encode());
        self.write(s::PR_LEN, PrLen { length }.encode());
        self.write(s::PR_CTRL, PrCtrl { start: true, last, clear: last }.encode());
        (self.given, self.length) = (self.given.saturating_add(bytes), length);
    }

    /// Bytes of addresses that all of its buffers take.
    fn span(image: &[u8], pace: Pace) -> u64 {
        let chunks = image.len().div_ceil(pace.chunk.max(1)) as u64;
        chunks.saturating_mul(s::PR_CHUNK_BYTES)
    }
}

/// Indices into [`s::HDMA_STAT`]: reads from the host that were ordered, and those that are complete.
const ASKED: u64 = 0;
const FETCHED: u64 = 2;

/// Takes back the end of an image.
const CLEAR: PrCtrl = PrCtrl { start: false, last: false, clear: true };

/// A buffer with a chunk, that the card sees at an address.
fn buffer_at(
    backend: &dyn CardBackend,
    iova: u64,
    chunk: &[u8],
) -> Result<Arc<SharedMapping>, Error> {
    let bytes = chunk.len().next_multiple_of(PAGE_BYTES);
    let file = memfd::create("balboad-image", bytes)?;
    let buffer = Arc::new(SharedMapping::new(file.as_fd(), 0, bytes, Access::ReadWrite)?);
    buffer.write_bytes(0, chunk)?;
    let memory = DmaMemory::Shared { mapping: Arc::clone(&buffer), offset: 0 };
    backend.dma_map(iova, bytes as u64, memory)?;
    Ok(buffer)
}

/// Descriptors that its engine has queued.
fn queued(backend: &dyn CardBackend) -> u8 {
    PrQueue::decode(backend.read32(Bar::Static, s::PR_CTRL)).queued
}

/// Whether its engine may be at an image still. A descriptor leaves the queue before its data is fetched.
fn is_busy(backend: &dyn CardBackend) -> bool {
    let counted = |of: u64| backend.read32(Bar::Static, s::HDMA_STAT.at(of));
    queued(backend) > 0 || counted(ASKED) != counted(FETCHED)
}

/// Arms the signal of the next image's end; gives the number of reads that the engine's DMA channel has counted so far.
fn expect_end(backend: &dyn CardBackend) -> u32 {
    let enable = xdma::INTERRUPT_BLOCK.wrapping_add(xdma::USER_INTERRUPT_ENABLE_SET);
    backend.write32(Bar::Xdma, enable, xdma::USER_INTERRUPT_RECONFIGURATION);
    backend.write32(Bar::Static, s::PR_CTRL, CLEAR.encode());
    backend.read32(Bar::Static, s::HDMA_STAT.at(FETCHED))
}

/// Takes the signal of an image's end, which has been looked at.
fn swallow_end(backend: &dyn CardBackend) {
    if let Some(vector) = backend.vector(RECONFIGURATION_VECTOR) {
        let _ = nix::unistd::read(vector, &mut [0; 8]);
    }
}

/// Whether a card that does not come up has lost its image and can be given one: its static layer works, and the card
/// shows no image, or another one than its record has. Other causes, such as a shortage on the host or an engine that
/// does not answer, are no lost image.
#[must_use]
pub fn wants_image(
    card: u32,
    backend: &dyn CardBackend,
    manifest: &Manifest,
    had_another: bool,
) -> bool {
    bringup::prepare(card, backend, manifest).is_ok()
        && (holds_no_image(backend)
            || had_another && bringup::holds_another(card, backend, manifest))
}

/// Whether a card holds no image, of which its shell would be.
fn holds_no_image(backend: &dyn CardBackend) -> bool {
    backend.read64(Bar::Shell, shell::N_REGIONS) == u64::MAX
}

/// Whether there is anything of an image to give to a card at a pace, in chunks that it takes.
fn is_loadable(image: &[u8], pace: Pace) -> bool {
    !image.is_empty() && (1..=s::PR_CHUNK_BYTES as usize).contains(&pace.chunk)
}

impl Device {
    /// Takes an unused card from its engines, and prepares it for an image. It is without engines from then on, until
    /// [`Self::finish_loading`] or [`Self::keep_image`].
    ///
    /// # Errors
    /// [`Error::BringUp`], [`Error::Load`] and the back-end's: nothing was given to it then.
    pub fn begin_loading(&mut self, image: Arc<Vec<u8>>, pace: Pace) -> Result<Loading, Error> {
        let begun = self.take_from_engines(image, pace);
        self.unless_gone(begun)
    }

    fn take_from_engines(&mut self, image: Arc<Vec<u8>>, pace: Pace) -> Result<Loading, Error> {
        let card = self.number;
        let failed = |why: &str| Error::Load { card, why: why.to_owned() };
        if !is_loadable(&image, pace) {
            return Err(failed("there is nothing to load, or in no such chunks"));
        }
        self.let_engines_go();
        let backend = Arc::clone(&self.backend);
        bringup::prepare(card, &*backend, &self.manifest)?;
        if is_busy(&*backend) {
            // With one that did not end, for which it may reach for memory as long as it is not reset.
            backend.reset()?;
            bringup::prepare(card, &*backend, &self.manifest)?;
            // Such a reset may leave its counters.
            if queued(&*backend) > 0 {
                return Err(failed(
                    "its engine is at another image, and a reset does not end that",
                ));
            }
        }
        backend.dma_unmap(ARENA_START, ARENA_END - ARENA_START)?;
        Ok(Loading::begin(card, backend, (image, pace), ARENA_START, None))
    }

    /// Brings up a card that has taken a whole image, by the kind of the image. `up` has it before its interrupts are
    /// served. Whether it is seen to have taken it: a device that has refused a bitstream has its shell of before.
    ///
    /// # Errors
    /// If it does not come up with the identity of the image. It has no engine then.
    pub fn finish_loading(
        &mut self,
        loading: &Loading,
        manifest: Manifest,
        up: impl FnOnce(&mut Self),
    ) -> Result<bool, Error> {
        let before = self.said.clone();
        let Loading { backend, image, pace, .. } = loading;
        let write = |register, value| backend.write32(Bar::Static, register, value);
        backend.dma_unmap(ARENA_START, Loading::span(image, *pace))?;
        write(s::PR_CTRL, CLEAR.encode());
        swallow_end(&**backend);
        bringup::reset_shell(&**backend);
        write(s::PR_DCPL_CLR, 1);
        self.come_up(manifest, up)?;
        let told = self.said.as_ref().zip(before.as_ref());
        // A software card looks at the whole image itself, and has none where that is wrong.
        Ok(self.backend.takes() == Takes::SoftImages
            || told.is_some_and(|(now, before)| now.is_other(before)))
    }

    /// Brings a card up again that was given nothing, with the image that it had.
    ///
    /// # Errors
    /// As [`Self::finish_loading`].
    pub fn keep_image(&mut self, up: impl FnOnce(&mut Self)) -> Result<(), Error> {
        self.backend.write32(Bar::Static, s::PR_DCPL_CLR, 1);
        self.come_up(self.manifest.clone(), up)
    }

    /// The outcome of a step with the card; the card's death, if it failed by that.
    fn unless_gone<T>(&self, outcome: Result<T, Error>) -> Result<T, Error> {
        outcome.map_err(|error| gone_or(error, self.number, &*self.card))
    }

    fn come_up(&mut self, manifest: Manifest, up: impl FnOnce(&mut Self)) -> Result<(), Error> {
        let before = std::mem::replace(&mut self.manifest, manifest);
        let outcome = self.bring_up_anew().and_then(|()| self.compare_image());
        let outcome = self.unless_gone(outcome);
        if let Err(error) = outcome {
            self.manifest = before;
            self.let_engines_go();
            return Err(error);
        }
        up(self);
        self.serve_interrupts()
    }

    /// Drops the card's engines, and everything that balboad has added to a card without one.
    pub fn let_engines_go(&mut self) {
        self.interrupts = None;
        self.windows.iter_mut().for_each(|window| window.engine.close_gsi());
        self.windows.clear();
        // The thread may be making the card forget an address space, for which it has the shell of before.
        self.shell.translator().end();
        if self.is_hosted() {
            self.shell = Arc::new(Shell::without_vfpgas(self.number, Arc::clone(&self.card)));
            self.backend = Arc::clone(&self.card);
        }
    }

    /// Whether its shell was built such that its static layer can put another in its place.
    ///
    /// # Errors
    /// [`Error::Load`] where it says that it was not.
    pub fn takes_shells(&self) -> Result<(), Error> {
        // Older shells do not tell, and a card that is gone reads all ones.
        let told = self.backend.read64(Bar::Shell, shell::SHELL_PBLOCK);
        if self.manifest.map == shell::Map::Since2026 && !ShellPblock::decode(told).enabled {
            let why = "its shell is built without reconfiguration of the shell, so its static layer puts no other in its place; program the whole device";
            return Err(Error::Load { card: self.number, why: why.into() });
        }
        Ok(())
    }

    /// Checks the card against its manifest.
    ///
    /// # Errors
    /// [`Error::Load`] with its actual identity, and [`Error::BringUp`] if it is gone.
    pub fn check_image(&self) -> Result<(), Error> {
        self.unless_gone(self.compare_image())
    }

    fn compare_image(&self) -> Result<(), Error> {
        let failed = |why: String| Err(Error::Load { card: self.number, why });
        let name = &self.manifest.name;
        let found = self.backend.read64(Bar::Shell, shell::N_REGIONS);
        if self.windows.is_empty() || found == u64::MAX {
            return failed(format!("it holds no image, and not {name}"));
        }
        if self.manifest.regions.is_some_and(|wanted| u64::from(wanted) != found) {
            return failed(format!("it has {found} vFPGAs, and {name} has others"));
        }
        let there =
            (0..found).filter(|index| is_queue_engine(&*self.backend, *index)).count() as u64;
        // A bitstream may have other logic beside engines; a software card's image has none.
        let wanted = match self.backend.takes() {
            Takes::SoftImages => found,
            Takes::Bitstreams => self.windows.len() as u64,
        };
        if there != wanted || self.windows.len() as u64 != wanted {
            return failed(format!("{there} of its {found} vFPGAs hold a queue engine"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
