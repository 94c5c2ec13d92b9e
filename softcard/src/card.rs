//! A card: its shell, its vFPGAs, its network, and the traffic between them.

use std::rc::Rc;
use std::sync::Arc;

use bitstreams::soft::Logic;
use fpga_regs::coyote::shell::Map;
use roce::IcrcPolicy;
use services::{Chain, Selector};

use crate::Error;
use crate::WINDOWS;
use crate::dma::AddressSpace;
use crate::image::Image;
use crate::interrupts::Interrupts;
use crate::mmu::Translation;
use crate::network::{Host, Network};
use crate::port::{FramePool, Port};
use crate::protection::Protection;
use crate::published::Published;
use crate::scratch::Scratch;
use crate::shell::Shell;
use crate::stock::Stock;
use crate::transfer::Streams;
use crate::vfpga::{Control, Logic as _, Pages, Slots, Vfpga, occupant};

/// The doorbell pages of all windows.
pub(crate) type AllPages = [Pages; WINDOWS as usize];

/// The shell and logic that a card comes up with.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Programmed {
    /// The register map of its shell.
    pub(crate) map: Map,
    pub(crate) image: Image,
    /// The number of vFPGAs with the image, if not all have it.
    pub(crate) vfpgas: Option<u8>,
    /// Whether its reconfiguration engine takes bitstreams, as an FPGA's.
    pub(crate) plays_fpga: bool,
}

/// A software card.
pub(crate) struct Card {
    pub(crate) image: Image,
    /// The network of the published image, in place of the stack of [`Network`].
    pub(crate) stock: Option<Box<Stock>>,
    pub(crate) shell: Shell,
    pub(crate) vfpgas: Vec<Vfpga>,
    pub(crate) network: Network,
    pub(crate) memory: AddressSpace,
    pub(crate) scratch: Scratch,
    pub(crate) streams: Streams,
    /// The pages that are there without a grant, over each reset.
    wired: AllPages,
    pub(crate) published: Arc<Published>,
}

impl Card {
    pub(crate) fn new(
        Programmed { map, image, vfpgas, plays_fpga }: Programmed,
        port: Box<dyn Port>,
        icrc_policy: IcrcPolicy,
        pool: FramePool,
        vectors: Rc<dyn Interrupts>,
        published: Arc<Published>,
    ) -> Self {
        let mut card = Self {
            stock: None,
            image,
            shell: Shell::new(map, vectors),
            vfpgas: Vec::new(),
            network: Network::new(port, icrc_policy, pool),
            memory: AddressSpace::default(),
            scratch: Scratch::default(),
            streams: Streams::default(),
            wired: AllPages::default(),
            published,
        };
        if plays_fpga {
            card.shell.reconfiguration.take_bitstreams();
        }
        card.program(Some((image, vfpgas.unwrap_or(image.vfpgas()))));
        card
    }

    /// Gives it an image's logic in that number of vFPGAs, or makes it a card without an image, of which the static
    /// layer alone answers.
    pub(crate) fn program(&mut self, image: Option<(Image, u8)>) {
        // Objects of the old logic, and its messages under way.
        self.reset();
        // The stack of the published image would send all in the clear.
        let would_leak = |image: Image| self.network.seals() && image.is_published();
        let image = image.filter(|(image, _)| !would_leak(*image));
        let (image, count) = image.unwrap_or((self.image, 0));
        self.image = image;
        let build = image.build().filter(|_| count > 0);
        self.stock = build.map(|build| Box::new(Stock::new(count, build)));
        self.published.program(image.bank());
        // The default shapes make sense.
        let vfpga = |(number, isr)| {
            let (logic, isr) = (image.logic(number), Arc::clone(isr));
            Vfpga::new(number, logic, image.ctrl_cnfg(), &self.memory.bus, isr)
        };
        let places = (0..count).zip(&self.published.isrs);
        self.vfpgas = places.filter_map(vfpga).collect();
        if self.network.host.is_some() {
            self.withhold_gsi();
        }
        self.reset();
        self.published.cut_off(self.is_cut_off());
    }

    /// Has everything that is RoCE sealed on its way, before the card has queue pairs. With the published image, which
    /// seals nothing, it becomes a card without an image.
    pub(crate) fn protect(&mut self, protection: &Protection) {
        self.network.protect(protection);
        if self.image.is_published() {
            self.program(None);
        }
    }

    /// Attaches services to queue pairs of the card's stack.
    pub(crate) fn attach(&mut self, selector: Selector, chain: Chain) -> Result<(), Error> {
        match self.stock {
            Some(_) => Err(services::Error::NoPlace.into()),
            None => Ok(self.network.attach(selector, chain)?),
        }
    }

    /// Attaches the services that the program of a new queue pair asks for.
    pub(crate) fn ask(&mut self, qpn: u32, chain: Chain) -> Result<(), Error> {
        match self.stock {
            Some(_) => Err(services::Error::NoPlace.into()),
            None => Ok(self.network.ask(qpn, chain)?),
        }
    }

    /// Whether there is a vFPGA of that number which the shell's datapath register cuts off.
    pub(crate) fn is_decoupled(&self, index: usize) -> bool {
        self.vfpgas.get(index).is_some_and(|vfpga| vfpga.decoupled)
    }

    /// Puts logic into a vFPGA, or takes the present one out; the others go on. Logic that needs another network than
    /// the card has does nothing there.
    pub(crate) fn load_into(&mut self, index: usize, logic: Option<Logic>) {
        self.stop_transfers(index);
        let Some(vfpga) = self.vfpgas.get_mut(index) else { return };
        let wants_published = |logic: &Logic| *logic == Logic::Stock;
        let published = self.image.is_published();
        vfpga.load(logic.filter(|it| wants_published(it) == published), &mut self.network);
        if self.network.host.is_some() {
            occupant!(&mut vfpga.logic, logic => logic.withhold_gsi());
        }
    }

    /// Whether nothing of its shell is to be reached: it is decoupled, or there is none.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.shell.reconfiguration.decoupled || self.vfpgas.is_empty()
    }

    /// Shares the port with the host's network stack, whose kernel answers for QP 1.
    pub(crate) fn share_port(&mut self, host: Box<dyn Port>) {
        self.network.host = Some(Host::new(host));
        self.withhold_gsi();
    }

    fn withhold_gsi(&mut self) {
        for vfpga in &mut self.vfpgas {
            occupant!(&mut vfpga.logic, logic => logic.withhold_gsi());
        }
    }

    /// Resets the shell as a pulse on its reset does: objects of logic, QPs and frames under way are gone.
    pub(crate) fn reset(&mut self) {
        for ((number, vfpga), isr) in (0..).zip(&mut self.vfpgas).zip(&self.published.isrs) {
            vfpga.reset_logic(&mut self.network);
            // The default shapes make sense.
            if let Some(control) =
                Control::new(number, self.image.ctrl_cnfg(), &self.memory.bus, Arc::clone(isr))
            {
                vfpga.reset_shell(control);
            }
        }
        self.open_wired();
        self.scratch = Scratch::default();
        self.streams = Streams::default();
        self.network.reset();
        if let Some(stock) = &mut self.stock {
            stock.reset(self.network.identity());
        }
        self.shell.datapath = 0;
    }

    /// Gives up the transfers of a vFPGA that wait, for its logic stops.
    pub(crate) fn stop_transfers(&mut self, index: usize) {
        self.scratch.fail_transfers(index);
        self.streams.fail(index);
        self.network.waits.fail(index);
        if let Some(vfpga) = self.vfpgas.get(index) {
            vfpga.control.unit.stop();
        }
    }

    /// Whether the card must do nothing before the driver has answered a page fault.
    pub(crate) fn waits_for_driver(&self) -> bool {
        self.vfpgas.iter().any(|vfpga| vfpga.control.unit.waits())
    }

    /// Tells the driver of new faults, and lets refused pages be asked for again.
    pub(crate) fn settle_faults(&mut self) {
        for (index, vfpga) in self.vfpgas.iter_mut().enumerate() {
            let mut mmu = vfpga.control.unit.mmu.borrow_mut();
            mmu.settle();
            let has_news = mmu.has_news();
            drop(mmu);
            if has_news && vfpga.control.tell_faults() {
                self.shell.signal(index);
            }
        }
    }

    /// Finds the pages of rings again that the driver took back; `false` when that has to wait.
    pub(crate) fn find_rings(&mut self, now: u64) -> bool {
        for vfpga in &mut self.vfpgas {
            if vfpga.control.unit.is_complete() {
                continue;
            }
            match vfpga.control.unit.complete() {
                Translation::Found { .. } => {}
                Translation::Waits => return false,
                Translation::Refused => {
                    let (logic, mut ports) = vfpga.parts(&mut self.network);
                    occupant!(logic, logic => logic.lost_memory(now, &mut ports));
                    vfpga.control.unit.stop();
                }
            }
        }
        true
    }

    /// Resets the function: all state of the card is as when it came up.
    pub(crate) fn reset_function(&mut self) {
        self.shell.reset_function();
        self.network.reset_function();
        if let Some(stock) = self.stock.as_deref_mut() {
            stock.reset_function();
        }
        self.reset();
    }

    /// Resets the function, and puts doorbell pages in place that stay over each reset.
    pub(crate) fn wire(&mut self, pages: AllPages) {
        self.wired = pages;
        self.reset_function();
    }

    fn open_wired(&mut self) {
        for (vfpga, pages) in self.vfpgas.iter_mut().zip(self.wired.clone()) {
            for (page, slots) in (1..).zip(pages) {
                if let Some(slots) = slots {
                    vfpga.open_page(page, slots);
                }
            }
        }
    }

    pub(crate) fn open_page(&mut self, window: u8, page: u8, slots: Slots) -> bool {
        let vfpga = self.vfpgas.get_mut(usize::from(window));
        vfpga.is_some_and(|vfpga| vfpga.open_page(page, slots))
    }

    pub(crate) fn close_page(&mut self, window: u8, page: u8) {
        if let Some(vfpga) = self.vfpgas.get_mut(usize::from(window)) {
            vfpga.close_page(page);
        }
    }

    /// Bytes kept for work under way of the QPs behind a doorbell page, beyond each QP's own.
    pub(crate) fn under_way_bytes(&self, window: u8, page: u8) -> usize {
        let vfpga = self.vfpgas.get(usize::from(window));
        vfpga.map_or(0, |vfpga| occupant!(&vfpga.logic, logic => logic.under_way_bytes(page)))
    }

    /// Signals the vectors of logic that has news, once until it was heard.
    pub(crate) fn raise_interrupts(&mut self) {
        for (index, vfpga) in self.vfpgas.iter_mut().enumerate() {
            if vfpga.notify() {
                self.shell.signal(index);
            }
        }
    }

    /// The time that the card's next round is to go on to, where that is not the host's.
    #[inline]
    pub(crate) fn goes_on_to(&self) -> Option<u64> {
        // Nobody waits for who waits for the driver, which may wait for another card's answer first.
        if self.is_cut_off() || self.waits_for_driver() {
            return None;
        }
        let coupled = self.vfpgas.iter().filter(|vfpga| !vfpga.decoupled);
        coupled.filter_map(|vfpga| occupant!(&vfpga.logic, logic => logic.goes_on_to())).min()
    }

    /// The time of the card's next work by itself.
    pub(crate) fn next_timeout(&mut self) -> Option<u64> {
        if self.waits_for_driver() || self.is_cut_off() {
            return None;
        }
        let coupled = self.vfpgas.iter().filter(|vfpga| !vfpga.decoupled);
        let logic = coupled.filter_map(|vfpga| occupant!(&vfpga.logic, logic => logic.next_wake()));
        let stock = self.stock.as_ref().and_then(|stock| stock.next_timeout());
        logic.chain(self.network.next_timeout()).chain(stock).min()
    }

    /// Counters that are the port's and the DMA's, not the stack's.
    pub(crate) fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = self.network.counters();
        let mmu = self.vfpgas.iter().map(|vfpga| vfpga.control.unit.mmu.borrow().counters);
        let mmu = mmu.fold(crate::mmu::MmuCounters::default(), crate::mmu::MmuCounters::plus);
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
        counters.extend(self.stock.iter().flat_map(|stock| stock.counters()));
        for vfpga in &self.vfpgas {
            counters.extend(occupant!(&vfpga.logic, logic => logic.counters()));
        }
        counters
    }
}
