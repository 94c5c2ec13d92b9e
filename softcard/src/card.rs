//! A card: its identity, its engines, its stack, its port.

use std::rc::Rc;
use std::sync::Arc;

use fpga_regs::coyote::shell::{CTRL_CNFG_DEFAULT, Map};
use fpga_regs::engine::window::{Capabilities, DOORBELL_PAGES, FATAL_RING_UNREACHABLE, Profile};
use hostmem::DoorbellPage;
use queue_engine::{Engine, EngineConfig};
use roce::{IcrcPolicy, MacAddr, PathMtu, Stack, StackConfig};

use crate::WINDOWS;
use crate::bus::Bus;
use crate::datapath::Scratch;
use crate::dma::AddressSpace;
use crate::gids::Gids;
use crate::host::Host;
use crate::isr::Event;
use crate::mmu::{Translation, Unit};
use crate::port::{FramePool, Port};
use crate::published::{IsrCopy, Published};
use crate::random::KernelRandom;
use crate::reconfig::Reconfiguration;
use crate::tally::Tally;
use crate::transport::RoceTransport;
use crate::vfpga::Vfpga;
use crate::xdma::Xdma;

/// An engine of a software card.
pub(crate) type CardEngine = Engine<Unit, Slots, KernelRandom>;

/// A doorbell page as the engine looks at it.
#[derive(Clone, Debug)]
pub(crate) struct Slots(pub(crate) Arc<DoorbellPage>);

impl queue_engine::DoorbellPage for Slots {
    #[inline]
    fn load(&self, slot: usize) -> u64 {
        self.0.read(slot)
    }
}

/// Where the card's interrupts go.
pub(crate) trait Interrupts {
    /// Signals an MSI-X vector, if there is one of that number.
    fn signal(&self, vector: usize);
}

/// The addresses a driver gave the card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) mac: [u8; 6],
    pub(crate) ipv4: u32,
}

/// The doorbell pages of all windows.
pub(crate) type Pages = [[Option<Slots>; DOORBELL_PAGES as usize]; WINDOWS as usize];

/// A software card.
pub(crate) struct Card {
    pub(crate) identity: Identity,
    /// Which of the published register maps the shell has.
    pub(crate) map: Map,
    pub(crate) xdma: Xdma,
    pub(crate) reconfiguration: Reconfiguration,
    /// The shell's datapath register: which vFPGAs are decoupled, or in reset.
    pub(crate) datapath: u64,
    /// TCP and RDMA offsets, which only keep what is written.
    pub(crate) offsets: [u64; 2],
    pub(crate) tally: Tally,
    /// The shell's part of each window.
    pub(crate) vfpgas: Vec<Vfpga>,
    pub(crate) engines: Vec<CardEngine>,

    /// The pages granted in each window, for stores that come through the BAR.
    pub(crate) pages: Pages,
    /// The pages that are there without a grant, whatever is reset.
    wired: Pages,
    pub(crate) memory: AddressSpace,
    pub(crate) stack: Stack,
    pub(crate) port: Box<dyn Port>,
    /// What the port's link says, for every stack that the card has.
    icrc_policy: IcrcPolicy,
    /// The host's network stack, where it shares the port's addresses.
    pub(crate) host: Option<Host>,
    /// The GID tables that the windows' engines were given.
    pub(crate) gids: Gids,
    pub(crate) pool: FramePool,
    pub(crate) scratch: Scratch,
    pub(crate) vectors: Rc<dyn Interrupts>,
    pub(crate) published: Arc<Published>,
}

/// Bytes that a card keeps of what one client has under way, at most, beyond what each of its queue
/// pairs has of its own.
pub const UNDER_WAY_BYTES: usize = 8 << 20;

/// Bytes that a card keeps for a queue pair with its receive queue at most, beside its client's
/// [`UNDER_WAY_BYTES`].
pub const QP_BYTES: usize = CardEngine::QP_BYTES + Stack::QP_BYTES + 2 * RING_BYTES;

/// Bytes that a card keeps for a completion queue at most.
pub const CQ_BYTES: usize = CardEngine::CQ_BYTES + RING_BYTES;

/// Bytes that a card keeps for a memory region with its key at most.
pub const MR_BYTES: usize = CardEngine::KEY_BYTES + Bus::RANGE_BYTES;

/// Bytes that a card keeps at most of where a ring lies, and of that it may reach it.
const RING_BYTES: usize = 2 * Unit::LATCH_BYTES + Bus::RANGE_BYTES;

/// What every engine of a software card offers.
fn engine_config(window: u8) -> EngineConfig {
    EngineConfig {
        window,
        profile: Profile::Vqe,
        capabilities: Capabilities::RC
            | Capabilities::SEND
            | Capabilities::WRITE
            | Capabilities::READ
            | Capabilities::IMMEDIATE
            | Capabilities::RNR,
        qps: 16_384,
        cqs: 16_384,
        rqs: 16_384,
        keys: 65_536,
        log2_cq_entries: 22,
        log2_sq_blocks: 18,
        log2_rq_entries: 16,
        max_rd_atomic: roce::param::MAX_RD_ATOMIC,
        max_message: 1 << 31,
        under_way_bytes: UNDER_WAY_BYTES,
    }
}

/// The shell's part of the windows, after a reset.
fn new_vfpgas(memory: &AddressSpace, published: &Published) -> Vec<Vfpga> {
    // The default shapes make sense.
    let vfpga = |isr: &IsrCopy| Vfpga::new(CTRL_CNFG_DEFAULT, &memory.bus, Arc::clone(isr));
    published.isrs.iter().filter_map(vfpga).collect()
}

fn new_stack(identity: Identity, icrc_policy: IcrcPolicy) -> Stack {
    Stack::new(StackConfig {
        mac: MacAddr(identity.mac),
        ipv4: identity.ipv4.into(),
        mtu_max: PathMtu::Mtu4096,
        icrc_policy,
    })
}

/// Whether the shell's datapath register cuts a vFPGA off.
pub(crate) fn decoupled(datapath: u64, index: usize) -> bool {
    u32::try_from(index).is_ok_and(|bit| datapath.wrapping_shr(bit) & 1 == 1)
}

/// The engine that a QPN belongs to.
pub(crate) fn engine_of(engines: &mut [CardEngine], qpn: u32) -> Option<&mut CardEngine> {
    engines.get_mut(usize::from(CardEngine::window_of(qpn)))
}

impl Card {
    pub(crate) fn new(
        map: Map,
        port: Box<dyn Port>,
        icrc_policy: IcrcPolicy,
        pool: FramePool,
        vectors: Rc<dyn Interrupts>,
        published: Arc<Published>,
    ) -> Self {
        let engine = |window| Engine::new(engine_config(window), KernelRandom::new());
        let memory = AddressSpace::default();
        Self {
            identity: Identity::default(),
            map,
            xdma: Xdma::default(),
            reconfiguration: Reconfiguration::default(),
            datapath: 0,
            offsets: [0; 2],
            tally: Tally::default(),
            vfpgas: new_vfpgas(&memory, &published),
            engines: (0..WINDOWS).map(engine).collect(),
            pages: Default::default(),
            wired: Default::default(),
            memory,
            stack: new_stack(Identity::default(), icrc_policy),
            port,
            icrc_policy,
            host: None,
            gids: Gids::default(),
            pool,
            scratch: Scratch::default(),
            vectors,
            published,
        }
    }

    /// Takes a new address, as long as no QP uses the old one.
    pub(crate) fn set_identity(&mut self, identity: Identity) {
        if !self.engines.iter().any(CardEngine::has_qps) {
            self.identity = identity;
            self.stack = new_stack(identity, self.icrc_policy);
            self.gids.apply(&mut self.stack, identity);
        }
    }

    /// What a pulse on the shell's reset does: engines, QPs and frames under way are gone.
    pub(crate) fn reset(&mut self) {
        for (window, engine) in self.engines.iter_mut().enumerate() {
            let (stack, identity, gids) = (&mut self.stack, self.identity, &mut self.gids);
            engine.reset(&mut RoceTransport { stack, identity, gids, window });
        }
        self.pages = Default::default();
        self.open_wired();
        self.scratch = Scratch::default();
        self.stack = new_stack(self.identity, self.icrc_policy);
        self.vfpgas = new_vfpgas(&self.memory, &self.published);
        self.datapath = 0;
    }

    /// Whether a vFPGA is cut off from the rest of the card.
    pub(crate) fn is_decoupled(&self, index: usize) -> bool {
        decoupled(self.datapath, index)
    }

    /// Gives up the transfers of a window that wait for TLB entries, for its engine stops.
    pub(crate) fn stop_transfers(&mut self, index: usize) {
        self.scratch.fail_transfers(index);
        if let Some(vfpga) = self.vfpgas.get(index) {
            vfpga.unit.stop();
        }
    }

    /// Whether the card must do nothing before the driver has answered a page fault.
    pub(crate) fn waits_for_driver(&self) -> bool {
        self.vfpgas.iter().any(|vfpga| vfpga.unit.mmu.borrow().waits())
    }

    /// Tells the driver of new faults, and lets what was refused be asked for again.
    pub(crate) fn settle_faults(&mut self) {
        for (index, vfpga) in self.vfpgas.iter_mut().enumerate() {
            vfpga.unit.mmu.borrow_mut().settle();
            if vfpga.tell_faults() {
                self.xdma.signal(index, &*self.vectors);
            }
        }
    }

    /// Finds the pages of rings again that the driver took back; `false` when that has to wait.
    pub(crate) fn find_rings(&mut self, now: u64) -> bool {
        for (window, (vfpga, engine)) in self.vfpgas.iter().zip(&mut self.engines).enumerate() {
            match vfpga.unit.complete() {
                Translation::Found { .. } => {}
                Translation::Waits => return false,
                Translation::Refused => {
                    let (stack, identity, gids) = (&mut self.stack, self.identity, &mut self.gids);
                    let mut transport = RoceTransport { stack, identity, gids, window };
                    engine.fail(now, FATAL_RING_UNREACHABLE, &mut transport);
                    vfpga.unit.stop();
                }
            }
        }
        true
    }

    /// What a function-level reset does: all state of the card is as when it came up.
    pub(crate) fn reset_function(&mut self) {
        self.xdma = Xdma::default();
        self.reconfiguration = Reconfiguration::default();
        self.offsets = [0; 2];
        self.tally = Tally::default();
        self.identity = Identity::default();
        self.reset();
    }

    /// Resets the function, and puts doorbell pages in place that stay whatever is reset.
    pub(crate) fn wire(&mut self, pages: Pages) {
        self.wired = pages;
        self.reset_function();
    }

    fn open_wired(&mut self) {
        for (window, pages) in (0..).zip(self.wired.clone()) {
            for (page, slots) in (1..).zip(pages) {
                if let Some(slots) = slots {
                    self.open_page(window, page, slots);
                }
            }
        }
    }

    pub(crate) fn open_page(&mut self, window: u8, page: u8, slots: Slots) -> bool {
        let Some(place) = self.page(window, page) else { return false };
        *place = Some(slots.clone());
        let engine = self.engines.get_mut(usize::from(window));
        engine.is_some_and(|engine| engine.open_page(page, slots))
    }

    pub(crate) fn close_page(&mut self, window: u8, page: u8) {
        if let Some(place) = self.page(window, page) {
            *place = None;
        }
        if let Some(engine) = self.engines.get_mut(usize::from(window)) {
            engine.close_page(page);
        }
    }

    pub(crate) fn page(&mut self, window: u8, page: u8) -> Option<&mut Option<Slots>> {
        let pages = self.pages.get_mut(usize::from(window))?;
        pages.get_mut(usize::from(page).checked_sub(1)?)
    }

    /// Bytes kept of what the QPs behind a doorbell page have under way, beyond what is each one's own.
    pub(crate) fn under_way_bytes(&self, window: u8, page: u8) -> usize {
        let engine = self.engines.get(usize::from(window));
        engine.map_or(0, |engine| engine.under_way_bytes(page))
    }

    /// Signals the vectors of engines that have something to say, once until they were heard.
    pub(crate) fn raise_interrupts(&mut self) {
        for (window, engine) in self.engines.iter_mut().enumerate() {
            let Some(vfpga) = self.vfpgas.get_mut(window) else { continue };
            if engine.take_interrupt() && vfpga.isr.raise(Event::Notify { value: 0 }) {
                self.xdma.signal(window, &*self.vectors);
            }
        }
    }

    /// Counters that are the port's and the DMA's, not the stack's.
    pub(crate) fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = self.port.counters();
        counters.extend(self.host.iter().flat_map(Host::counters));
        let mmu = self.vfpgas.iter().map(|vfpga| vfpga.unit.mmu.borrow().counters);
        let mmu = mmu.fold(crate::mmu::Counters::default(), crate::mmu::Counters::plus);
        counters.extend([
            ("tlb_misses", mmu.misses),
            ("tlb_faults", mmu.faults),
            ("tlb_refusals", mmu.refusals),
            ("tlb_insertions", mmu.insertions),
            ("tlb_removals", mmu.removals),
            ("dma_bytes_read", self.memory.read.bytes),
            ("dma_bytes_written", self.memory.written.bytes),
            ("dma_faults", self.memory.faults),
        ]);
        counters
    }
}
