//! A card as its driver has it: the way to it, its engines, its address space.

use std::sync::Arc;
use std::time::Instant;

use bitstreams::Manifest;
use fpga_regs::coyote::pci::Bar;
use fpga_regs::coyote::xdma::{self, Direction};
use fpga_regs::engine::admin::{AdminStatus, COUNTERS, Opcode, PortAttributes};
use fpga_regs::engine::window::Capabilities;
use hostmem::DmaMemory;

use crate::address::{PortAddress, gid_text};
use crate::backend::{CardBackend, Identity};
use crate::engine::Engine;
use crate::error::Error;
use crate::gsi::Gsi;
use crate::hosted::HostedOptions;
use crate::interrupts::Interrupts;
use crate::iova::{Arena, IovaRange};
use crate::says::Says;
use crate::shell::{Expected, Shell};
use crate::translations::Purpose;

/// Numbers of cards are below this; those above are of the remains of cards that were reset.
pub const NUMBERS: u32 = 1 << 10;

/// A card that was brought up.
pub struct Device {
    /// Its number, as in `balboaN`; the remains of a card that was reset have a multiple of [`NUMBERS`] more.
    pub number: u32,
    /// The way to the card itself.
    pub card: Arc<dyn CardBackend>,
    /// The way to its engines: another one where balboad hosts them.
    pub backend: Arc<dyn CardBackend>,
    /// Its description, for people.
    pub identity: Identity,
    /// The first addresses of its port, which its MAC address and node GUID follow from.
    pub address: PortAddress,
    /// The GID table: all zeros where there is none.
    pub gids: Vec<[u8; 16]>,
    /// The VLAN that each is in; 0 for none.
    pub vlans: Vec<u16>,
    /// Contract version, for people.
    pub firmware: String,
    /// Its windows with an engine in them.
    pub windows: Vec<Window>,
    /// Its I/O virtual addresses.
    pub arena: Arena,
    /// The shell's part of its windows.
    pub shell: Arc<Shell>,
    /// Serves its interrupts, once it is told to.
    pub interrupts: Option<Interrupts>,
    /// The bitstream that it holds.
    pub manifest: Manifest,
    /// The card's description of itself when it was last up; `None` if it never was.
    pub said: Option<Says>,
    /// The options of an engine that balboad hosts for it.
    pub options: HostedOptions,
}

/// A window of a card.
pub struct Window {
    /// Number of the vFPGA.
    pub index: u8,
    /// The engine in it.
    pub engine: Box<dyn Engine>,
    /// I/O virtual addresses without mappings, which the engine may still have in objects whose end it did not confirm.
    pub kept: Vec<IovaRange>,
}

impl Window {
    /// Whether its engine has queue pair 1 to give.
    #[must_use]
    pub fn offers_gsi(&self) -> bool {
        self.engine.limits().capabilities.contains(Capabilities::GSI)
    }
}

/// The party that can still reach a released range of IOVAs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// No card or engine.
    Nobody,
    /// The engine of that window, until it is started anew.
    Engine(u8),
    /// The card, which may have translations of it, until it is reset.
    Card,
}

impl Device {
    /// The device name.
    #[must_use]
    pub fn name(&self) -> String {
        format!("balboa{}", self.number % NUMBERS)
    }

    /// Whether its engines are balboad's, over the command registers of a published bitstream.
    #[must_use]
    pub fn is_hosted(&self) -> bool {
        !Arc::ptr_eq(&self.card, &self.backend)
    }

    /// Lets the card reach memory through a window, for that purpose; page faults bring the translations that are not
    /// inserted ahead. `None` for memory that is mapped later.
    ///
    /// # Errors
    /// The back-end's.
    pub fn map(
        &self,
        window: u8,
        range: &IovaRange,
        memory: Option<DmaMemory>,
        purpose: Purpose,
    ) -> Result<(), Error> {
        if let Some(memory) = memory {
            self.backend.dma_map(range.start(), range.length(), memory)?;
        }
        self.shell.map(window, range.start(), range.length(), purpose);
        Ok(())
    }

    /// Takes translations back that [`Self::map`] gave, a row of pages; `true` when none is left, and
    /// then the memory may be unmapped. After `false` another call is due.
    ///
    /// # Errors
    /// [`Error::Dead`] when the card does not confirm: the ranges are not to be used again.
    pub fn take_back(&mut self, window: u8, ranges: &[&IovaRange]) -> Result<bool, Error> {
        let ranges: Vec<_> = ranges.iter().map(|range| (range.start(), range.length())).collect();
        let taken = self.shell.unmap(window, &ranges);
        if taken.is_err() {
            let mut windows = self.windows.iter_mut();
            windows.find(|it| it.index == window).into_iter().for_each(|it| it.engine.check());
        }
        taken
    }

    /// Unmaps the next piece of a range, of which so many bytes are unmapped already.
    ///
    /// # Errors
    /// The back-end's; the range is not to be used again.
    pub fn unmap_piece(&self, range: &IovaRange, unmapped: &mut u64) -> Result<(), Error> {
        let start = range.start().saturating_add(*unmapped);
        let left = range.length().saturating_sub(*unmapped);
        let piece = self.backend.dma_piece();
        let length = piece.saturating_sub(start.checked_rem(piece).unwrap_or(0)).min(left);
        match self.backend.dma_unmap(start, length) {
            Ok(()) => *unmapped = unmapped.saturating_add(length),
            // Memory that was mapped in larger pieces goes as a whole, so the caller and others wait for all of it.
            Err(_) if length < left => {
                self.backend.dma_unmap(start, left)?;
                *unmapped = range.length();
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Unmaps a whole range at once, with all pieces of its mappings.
    ///
    /// # Errors
    /// The back-end's; the range is not to be used again.
    pub fn unmap_all(&self, range: &IovaRange) -> Result<(), Error> {
        self.backend.dma_unmap(range.start(), range.length())
    }

    /// Releases a range of IOVAs as soon as no card and no program can reach it any more.
    pub fn release_iova(&mut self, range: IovaRange, reach: Reach) {
        if reach == Reach::Nobody {
            return self.arena.release(range, Instant::now());
        }
        self.arena.lose(&range);
        let mut windows = self.windows.iter_mut();
        if let Some(window) = windows.find(|window| reach == Reach::Engine(window.index)) {
            window.kept.push(range);
        }
    }

    /// Starts the engine of a window anew. Nothing that uses it may be left.
    ///
    /// # Errors
    /// The engine's; [`Error::Dead`] where the engine is balboad's, whose end is not the card's, and the card may still
    /// reach for pages that are gone.
    pub fn restart(&mut self, index: u8) -> Result<(), Error> {
        let mut windows = self.windows.iter_mut();
        let Some(window) = windows.find(|window| window.index == index) else { return Ok(()) };
        if self.shell.translator().outlives_engines() && self.shell.is_in_doubt(index) {
            let engine = window.engine.name().to_owned();
            let why = format!(
                "its MMU has not confirmed that pages are gone, and if it never does only balboa reset balboa{} ends that",
                self.number
            );
            return Err(Error::Dead { engine, why });
        }
        window.engine.restart()?;
        write_gids(&mut *window.engine, &self.gids, &self.vlans)?;
        let now = Instant::now();
        window.kept.drain(..).for_each(|range| self.arena.regain(range, now));
        Ok(())
    }

    /// Changes the GID table and the VLANs of its entries, in every window whose engine lives; true if it
    /// was another before.
    ///
    /// # Errors
    /// An engine's; the table then counts as not changed, and may be tried again.
    pub fn set_gids(&mut self, gids: Vec<[u8; 16]>, vlans: Vec<u16>) -> Result<bool, Error> {
        if gids == self.gids && vlans == self.vlans {
            return Ok(false);
        }
        let before = self.gids.iter().zip(&self.vlans);
        let changes = (0u8..).zip(gids.iter().zip(&vlans).zip(before));
        let changes: Vec<_> = changes.filter(|(_, (now, before))| now != before).collect();
        for window in self.windows.iter_mut().filter(|window| window.engine.death().is_none()) {
            for &(index, ((gid, vlan), _)) in &changes {
                window.engine.set_gid(index, (*gid != [0; 16]).then_some(*gid), *vlan)?;
            }
        }
        (self.gids, self.vlans) = (gids, vlans);
        Ok(true)
    }

    /// Gives all its engines up, so that its programs are told that the device is gone.
    pub fn abandon(&mut self, why: &str) {
        self.windows.iter_mut().for_each(|window| window.engine.abandon(why));
    }

    /// Whether none of its engines lives.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.windows.iter().all(|window| window.engine.death().is_some())
    }

    /// Whether it was reset since it was brought up: its DMA engines stand still.
    #[must_use]
    pub fn was_reset(&self) -> bool {
        let engine = xdma::engine(Direction::HostToCard, 0);
        self.backend.read32(Bar::Xdma, engine | xdma::ENGINE_CONTROL) == 0
    }

    /// Serves its interrupts from now on by a thread of their own.
    ///
    /// # Errors
    /// [`Error::Memory`] or [`Error::Backend`] when descriptors or threads run out.
    pub fn serve_interrupts(&mut self) -> Result<(), Error> {
        self.interrupts = Some(Interrupts::serve(&self.shell)?);
        Ok(())
    }

    /// Takes the port off its cable, or puts it back, for all that use the card.
    ///
    /// # Errors
    /// [`Error::Dead`] where no engine lives; the engine's.
    pub fn set_link(&mut self, up: bool) -> Result<(), Error> {
        match self.living_engine() {
            Some(engine) => engine.set_link(up),
            None => {
                Err(Error::Dead { engine: self.name(), why: "none of its engines lives".into() })
            }
        }
    }

    /// Opens the card's queue pair 1, or gives the one that is open. It ends when the card is brought up anew.
    ///
    /// # Errors
    /// [`Error::Refused`] as unsupported where no engine of it offers that; the engine's.
    pub fn open_gsi(&mut self) -> Result<Arc<Gsi>, Error> {
        match self.windows.iter_mut().find(|window| window.offers_gsi()) {
            Some(window) => window.engine.open_gsi(),
            None => Err(Error::Refused {
                engine: self.name(),
                opcode: Opcode::CreateQp,
                status: AdminStatus::Unsupported,
                detail: "; it has no queue pair 1 to give".into(),
            }),
        }
    }

    /// Expects a datagram's arrival at once, as [`Shell::expect`], of the window with queue pair 1.
    #[must_use]
    pub fn expect_arrivals(&self) -> Option<Expected<'_>> {
        self.shell.expect(self.windows.iter().find(|window| window.offers_gsi())?.index)
    }

    /// Closes its queue pair 1, and drops its unread datagrams.
    pub fn close_gsi(&mut self) {
        self.windows.iter_mut().for_each(|window| window.engine.close_gsi());
    }

    /// The port, as its first living engine sees it; all zeros, and so down, where none lives.
    pub fn port(&mut self) -> PortAttributes {
        match self.living_engine().map(Engine::query_port) {
            Some(Ok(attributes)) => attributes,
            Some(Err(error)) => {
                log::warn!("{}: the port cannot be queried: {error}", self.name());
                PortAttributes::default()
            }
            None => PortAttributes::default(),
        }
    }

    /// A number that grows when its counters may have changed without a call to it; `None` where it tells none.
    #[must_use]
    pub fn activity(&self) -> Option<u64> {
        self.backend.activity()
    }

    /// The counters by name: the transport's, then the port's, the driver's, and of each name the sum of its engines' own.
    pub fn counters(&mut self) -> Vec<(String, u64)> {
        // They are the card's: every engine of it answers the same.
        let values = match self.living_engine().map(Engine::query_counters) {
            Some(Ok(values)) => values,
            Some(Err(error)) => {
                log::warn!("{error}");
                Vec::new()
            }
            None => Vec::new(),
        };
        let ports = self.backend.port_counters();
        let faults = self.shell.counts();
        let mmu = [("mmu_faults_mended", faults.refilled), ("mmu_faults_refused", faults.refused)];
        let mut engines: Vec<(&str, u64)> = Vec::new();
        for (name, value) in self.windows.iter_mut().flat_map(|it| it.engine.own_counters()) {
            match engines.iter_mut().find(|(known, _)| *known == name) {
                Some((_, sum)) => *sum = sum.wrapping_add(value),
                None => engines.push((name, value)),
            }
        }
        let named = COUNTERS.iter().copied().zip(values).chain(ports).chain(mmu).chain(engines);
        named.map(|(name, value)| (name.to_owned(), value)).collect()
    }

    fn living_engine(&mut self) -> Option<&mut (dyn Engine + 'static)> {
        let mut windows = self.windows.iter_mut();
        windows.find(|window| window.engine.death().is_none()).map(|window| &mut *window.engine)
    }
}

/// Writes the GID table of an engine, once it has started.
///
/// # Errors
/// The engine's.
pub(crate) fn write_gids(
    engine: &mut dyn Engine,
    gids: &[[u8; 16]],
    vlans: &[u16],
) -> Result<(), Error> {
    let entries = (0u8..).zip(gids.iter().zip(vlans));
    for (index, (gid, vlan)) in entries.filter(|(_, (gid, _))| **gid != [0; 16]) {
        engine.set_gid(index, Some(*gid), *vlan)?;
        log::debug!("{}: GID {index} is {}", engine.name(), gid_text(*gid));
    }
    Ok(())
}
