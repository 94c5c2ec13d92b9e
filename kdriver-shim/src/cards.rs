//! The cards: their engines, doorbell pages, address space, and who owns which queue.

use std::sync::Arc;

use bitstreams::Manifest;
use fpga_regs::coyote::pci::Bar;
use fpga_regs::coyote::xdma::{self, Direction};
use fpga_regs::engine::admin::PortAttributes;
use fpga_regs::engine::window::DOORBELL_PAGES;
use hostmem::DmaMemory;
use shim_abi::{CardInfo, Limits, PortInfo};

use crate::address::{PortAddress, node_guid};
use crate::backend::{CardBackend, Identity};
use crate::claims::Claims;
use crate::engine::{Engine, EngineLimits};
use crate::error::Error;
use crate::interrupts::Interrupts;
use crate::iova::{Arena, IovaRange};
use crate::listeners::Listeners;
use crate::process::ClientId;
use crate::quota::Resource;
use crate::shell::Shell;
use crate::translations::Purpose;

/// The P_Key table: the default partition, full member.
const PKEYS: [u16; 1] = [0xffff];
/// `ibv_mtu` of 4096 bytes.
const LARGEST_MTU: u8 = 5;
/// `ibv_mtu` of 256 bytes.
const SMALLEST_MTU: u8 = 1;

/// A card that was brought up.
pub struct Card {
    /// Its number, as in `balboaN`.
    pub number: u32,
    /// The way to it.
    pub backend: Arc<dyn CardBackend>,
    /// What it is, for people.
    pub identity: Identity,
    /// The first addresses of its port, which its MAC address and node GUID follow from.
    pub address: PortAddress,
    /// The GID table: all zeros where there is none.
    pub gids: Vec<[u8; 16]>,
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
    /// The connections that its QPs speak for.
    pub claims: Claims,
    /// What was leaked because the card did not confirm its end.
    pub quarantine: Quarantine,
    /// The bitstream that it holds.
    pub manifest: Manifest,
    /// The kernel wants it back.
    pub wanted_back: bool,
}

/// What is never used again because the card did not confirm that it is done with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Quarantine {
    /// Queue pairs, receive queues and completion queues.
    pub queues: u64,
    /// Keys.
    pub keys: u64,
    /// Bytes of I/O virtual addresses.
    pub iova_bytes: u64,
    /// Doorbell pages.
    pub pages: u64,
}

/// Whose a doorbell page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// Nobody's.
    Free,
    /// A client's.
    Client(ClientId),
    /// A client's that is gone, but the engine may still have queues on it.
    Quarantined,
}

/// A window of a card: one engine, and who uses it.
pub struct Window {
    /// Number of the vFPGA.
    pub index: u8,
    /// The engine.
    pub engine: Box<dyn Engine>,
    /// Doorbell pages 1 to 15.
    pub pages: Vec<Page>,
    /// Its completion queues and queue pairs, and who is told of their events.
    pub listeners: Arc<Listeners>,
    /// What is to be looked at because events were lost.
    pub suspects: Suspects,
}

/// Queues of which events may have been lost; they are looked at by turns.
#[derive(Debug, Default)]
pub struct Suspects {
    /// Completion queues that somebody waits for.
    pub cqs: Vec<u32>,
    /// Queue pairs.
    pub qps: Vec<u32>,
}

impl Suspects {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cqs.is_empty() && self.qps.is_empty()
    }
}

impl Window {
    /// A window of which nothing is used.
    #[must_use]
    pub fn new(card: u32, index: u8, mut engine: Box<dyn Engine>) -> Self {
        let listeners = Arc::new(Listeners::new(card, index));
        let told = Arc::clone(&listeners);
        engine.listen(Arc::new(move |event| told.tell(event)));
        let pages = vec![Page::Free; usize::from(DOORBELL_PAGES)];
        Self { index, engine, pages, listeners, suspects: Suspects::default() }
    }

    /// Free doorbell pages.
    #[must_use]
    pub fn free_pages(&self) -> usize {
        self.pages.iter().filter(|page| **page == Page::Free).count()
    }

    /// Takes a free page for a client and returns its number.
    pub fn take_page(&mut self, client: ClientId) -> Option<u8> {
        let (number, page) = (1u8..).zip(&mut self.pages).find(|(_, page)| **page == Page::Free)?;
        *page = Page::Client(client);
        Some(number)
    }

    /// Changes whose a page is.
    pub fn set_page(&mut self, number: u8, owner: Page) {
        if let Some((_, page)) = (1u8..).zip(&mut self.pages).find(|(n, _)| *n == number) {
            *page = owner;
        }
    }

    /// Whether no client uses the window.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        !self.pages.iter().any(|page| matches!(page, Page::Client(_)))
    }
}

impl Card {
    /// The device name.
    #[must_use]
    pub fn name(&self) -> String {
        format!("balboa{}", self.number)
    }

    /// A window by its number.
    ///
    /// # Errors
    /// [`Error::NoSuch`] where there is none.
    pub fn window(&mut self, index: u8) -> Result<&mut Window, Error> {
        self.windows
            .iter_mut()
            .find(|window| window.index == index)
            .ok_or(Error::NoSuch { object: "window", number: u64::from(index) })
    }

    /// The window a new client goes to: the living one with the most free pages.
    ///
    /// # Errors
    /// [`Error::NoPages`] when every page is taken, [`Error::Dead`] when no engine lives.
    pub fn emptiest_window(&mut self) -> Result<&mut Window, Error> {
        let pages = self.windows.iter().map(|window| window.pages.len()).sum();
        let card = self.number;
        let death = self.windows.iter().find_map(|window| {
            let why = window.engine.death()?.to_owned();
            Some(Error::Dead { engine: window.engine.name().to_owned(), why })
        });
        let mut best: Option<&mut Window> = None;
        let mut living = false;
        for window in self.windows.iter_mut().filter(|window| window.engine.death().is_none()) {
            living = true;
            let free = window.free_pages();
            if free > best.as_ref().map_or(0, |best| best.free_pages()) {
                best = Some(window);
            }
        }
        match (best, death) {
            (Some(window), _) => Ok(window),
            (None, Some(death)) if !living => Err(death),
            (None, _) => Err(Error::NoPages { card, pages }),
        }
    }

    /// Lets the card reach memory through a window, for that purpose; translations that are not
    /// inserted ahead come by page faults. `None` for memory that is mapped later, or by a client.
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
    pub fn take_back(&self, window: u8, ranges: &[&IovaRange]) -> Result<bool, Error> {
        let ranges: Vec<_> = ranges.iter().map(|range| (range.start(), range.length())).collect();
        self.shell.unmap(window, &ranges)
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
            // Whoever mapped it in larger pieces has to wait for all of it, and so have others.
            Err(_) if length < left => {
                self.backend.dma_unmap(start, left)?;
                *unmapped = range.length();
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Unmaps all of a range in one go, whatever pieces it was mapped in.
    ///
    /// # Errors
    /// The back-end's; the range is not to be used again.
    pub fn unmap_all(&self, range: &IovaRange) -> Result<(), Error> {
        self.backend.dma_unmap(range.start(), range.length())
    }

    /// Changes the GID table, in every window whose engine lives; true if it was another before.
    ///
    /// # Errors
    /// An engine's; the table then counts as not changed, and may be tried again.
    pub fn set_gids(&mut self, gids: Vec<[u8; 16]>) -> Result<bool, Error> {
        if gids == self.gids {
            return Ok(false);
        }
        for window in self.windows.iter_mut().filter(|window| window.engine.death().is_none()) {
            let changes = (0u8..).zip(gids.iter().zip(&self.gids));
            for (index, (gid, _)) in changes.filter(|(_, (gid, before))| gid != before) {
                window.engine.set_gid(index, (*gid != [0; 16]).then_some(*gid))?;
            }
        }
        self.gids = gids;
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

    /// Whether no client has a place on it.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        self.windows.iter().all(Window::is_unused)
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

    /// Gives a range of IOVAs back, or leaks it where the card may still use it.
    pub fn release_iova(&mut self, range: IovaRange, clean: bool) {
        if clean {
            self.arena.release(range, std::time::Instant::now());
        } else {
            self.quarantine.iova_bytes = self.quarantine.iova_bytes.saturating_add(range.length());
            self.arena.lose(range);
        }
    }

    /// The port, as its first living engine sees it; down where none lives.
    pub fn port(&mut self) -> PortInfo {
        let living = self.windows.iter_mut().find(|window| window.engine.death().is_none());
        let attributes = match living.map(|window| window.engine.query_port()) {
            Some(Ok(attributes)) => attributes,
            Some(Err(error)) => {
                log::warn!("balboa{}: the port cannot be queried: {error}", self.number);
                PortAttributes::default()
            }
            None => PortAttributes::default(),
        };
        PortInfo {
            link_up: attributes.link_up != 0,
            max_mtu: attributes.max_mtu.clamp(SMALLEST_MTU, LARGEST_MTU),
            active_mtu: attributes.active_mtu.clamp(SMALLEST_MTU, LARGEST_MTU),
            mac: self.address.mac(),
            gids: self.gids.clone(),
            pkeys: PKEYS.to_vec(),
        }
    }

    /// What clients are told of the card.
    pub fn info(&mut self) -> CardInfo {
        CardInfo {
            card: self.number,
            name: self.name(),
            node_guid: node_guid(self.address.mac()),
            firmware: self.firmware.clone(),
            board: self.identity.board.clone(),
            port: self.port(),
        }
    }
}

/// A card by its number.
///
/// # Errors
/// [`Error::NoSuch`] where there is none.
pub fn find(cards: &mut [Card], number: u32) -> Result<&mut Card, Error> {
    let none = Error::NoSuch { object: "card", number: u64::from(number) };
    cards.iter_mut().find(|card| card.number == number).ok_or(none)
}

/// What a client is told that it may have: the engine's limits within its quotas.
#[must_use]
pub fn client_limits(engine: &EngineLimits) -> Limits {
    let limit = |resource: Resource| u32::try_from(resource.limit(engine)).unwrap_or(u32::MAX);
    Limits {
        capabilities: engine.capabilities.bits(),
        qps: limit(Resource::Qps),
        cqs: limit(Resource::Cqs),
        mrs: limit(Resource::Mrs),
        pds: limit(Resource::Pds),
        log2_cq_entries: engine.log2_cq_entries,
        log2_sq_blocks: engine.log2_sq_blocks,
        log2_rq_entries: engine.log2_rq_entries,
        max_sge: engine.max_sge,
        max_inline: engine.max_inline,
        max_rd_atomic: engine.max_rd_atomic,
        max_init_rd_atomic: engine.max_init_rd_atomic,
        max_message: engine.max_message,
        max_mr_bytes: Resource::MrBytes.limit(engine),
    }
}
