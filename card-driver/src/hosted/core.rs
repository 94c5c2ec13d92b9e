//! The engine of one vFPGA, with the layers below it: posts, pages, memory.

use std::sync::{Arc, Mutex};

use fpga_regs::coyote::pci::Bar;
use fpga_regs::coyote::vfpga::Bank as BankKind;
use fpga_regs::engine::window::{self, Capabilities, LimitRate, Profile};
use fpga_regs::engine::wqe::AtomicOperation;
use queue_engine::{
    Engine, EngineConfig, Payload, Piece, ReceiveError, RemoteAccess, RemoteRange, TakenReceive,
    TransportEvent, Unreachable,
};
use stock_engine::param::{AHS, CTIDS, LOCAL};
use stock_engine::{
    Carrier, Gone, Host, Locate, Memory, Pages, Registers, Window, Windows, local_address,
};

use super::layout::{BOUNCE_BYTES, Layout};
use super::memory::{HostMemory, KernelRandom, Slots};
use crate::backend::CardBackend;
use crate::lock::lock;
use crate::spaces::Recall;

type HostedEngine = Engine<HostMemory, Slots, KernelRandom>;

/// Bytes that are kept of one client's work under way, at most, beyond those of each of its queue pairs.
pub(super) const UNDER_WAY_BYTES: usize = 8 << 20;

/// The bank of control registers of a vFPGA.
#[derive(Clone)]
pub(super) struct Bank {
    pub(super) card: Arc<dyn CardBackend>,
    pub(super) vfpga: u8,
}

impl Registers for Bank {
    fn store(&mut self, register: u64, words: [u64; 4]) {
        let bank = BankKind::Avx.cnfg(self.vfpga.into());
        self.card.write_wide(bank.wrapping_add(register), words);
    }

    fn load(&mut self, register: u64) -> u64 {
        let bank = BankKind::Avx.cnfg(self.vfpga.into());
        self.card.read64(Bar::Shell, bank.wrapping_add(register))
    }
}

/// Bytes of a page.
const PAGE: u64 = 4096;

/// Event rings of an engine. They are balboad's own memory on both sides, and trusted as those of a card are.
const EVENT_RINGS: u8 = 4;

/// The configuration of an engine over a published card: operations that the card carries, and those of the tunnel, if
/// there is one.
fn config(vfpga: u8, tunnel: bool) -> EngineConfig {
    let carried = Capabilities::RC
        | Capabilities::WRITE
        | Capabilities::READ
        | Capabilities::RESIZE_CQ
        | Capabilities::MODERATION;
    let tunnelled = Capabilities::SEND
        | Capabilities::IMMEDIATE
        | Capabilities::ATOMIC
        | Capabilities::INVALIDATE
        | Capabilities::MEMORY_WINDOW
        | Capabilities::SRQ
        | Capabilities::UD
        | Capabilities::RNR;
    EngineConfig {
        window: vfpga,
        profile: Profile::Stock,
        capabilities: if tunnel { carried | tunnelled } else { carried },
        // QPs 0 and 1 have a meaning of their own elsewhere.
        qps: u32::from(CTIDS).saturating_sub(if vfpga == 0 { 2 } else { 0 }),
        cqs: 4096,
        rqs: 4096,
        keys: 16_384,
        ahs: if tunnel { AHS } else { 0 },
        groups: 0,
        qps_per_group: 0,
        rates: LimitRate { min: 0, max: 0 },
        log2_cq_entries: 22,
        log2_sq_blocks: 18,
        log2_rq_entries: 16,
        max_rd_atomic: 16,
        max_message: 1 << 30,
        device_memory: 0,
        event_rings: EVENT_RINGS,
        under_way_bytes: UNDER_WAY_BYTES,
    }
}

/// An engine and the layers below it.
pub(super) struct Core {
    pub(super) engine: HostedEngine,
    pub(super) carrier: Carrier<Bank>,
    pub(super) pages: Pages,
    /// Through which long messages of the tunnel's go.
    pub(super) windows: Windows,
    /// How often the card was reset.
    pub(super) resets: u64,
    vfpga: u8,
    memory: HostMemory,
    layout: Arc<Layout>,
    /// The address spaces, a bit each, with inline payloads of their present or earlier owners.
    inline: u64,
    /// Held while an atomic is executed: they are one with those of all vFPGAs of the card.
    atomics: Arc<Mutex<()>>,
}

/// The bit of an address space.
const fn bit(ctid: u8) -> u64 {
    1u64.wrapping_shl(ctid as u32)
}

impl Core {
    pub(super) fn new(
        vfpga: u8,
        carrier: Carrier<Bank>,
        pages: Pages,
        memory: HostMemory,
        layout: Arc<Layout>,
        atomics: Arc<Mutex<()>>,
    ) -> Self {
        let engine = Engine::new(config(vfpga, carrier.posts.has_tunnel()), KernelRandom);
        let windows = Windows::default();
        Self {
            engine,
            carrier,
            pages,
            windows,
            resets: 0,
            vfpga,
            memory,
            layout,
            inline: 0,
            atomics,
        }
    }

    /// Does a bounded piece of the work that is due; `true` if there was any.
    pub(super) fn turn(&mut self, now: u64) -> bool {
        let Self { engine, carrier, memory, .. } = self;
        let mut did = engine.execute(now, memory, carrier) | engine.poll(now, carrier);
        did |= self.advance(now);
        let mut told = false;
        while let Some(event) = self.carrier.take_event() {
            told |= matches!(event, TransportEvent::Received(_));
            self.engine.handle(now, event, &mut self.carrier);
            did = true;
        }
        if told {
            // Peers get acknowledgements of messages that programs were told of. A program may leave then: the answers
            // are posted before, as far as possible.
            self.advance(now);
        }
        did
    }

    /// Lets the carrier take arrivals, and send.
    fn advance(&mut self, now: u64) -> bool {
        let Self { engine, carrier, memory, layout, inline, vfpga, atomics, windows, .. } = self;
        let (vfpga, pieces) = (*vfpga, Vec::new());
        let mut place =
            PayloadMemory { engine, memory, layout, inline, vfpga, pieces, atomics, windows };
        carrier.advance(now, &mut place)
    }

    /// Writes a register of the window.
    pub(super) fn write_register(&mut self, register: u64, value: u64) {
        if register == window::CONTROL && value & window::CONTROL_ENABLE != 0 {
            // The card has confirmed by now that nothing is on its way of those that were there before.
            self.clear_inline();
        }
        self.engine.write_register(register, value, &mut self.carrier);
    }

    /// Clears the inline payloads of all address spaces: of some it may not have been confirmed that they have ended.
    fn clear_inline(&mut self) {
        for ctid in (0..CTIDS).filter(|ctid| self.inline & bit(*ctid) != 0) {
            self.layout.clear_own(self.vfpga, ctid);
        }
        self.inline = 0;
    }

    /// The entries with which a transfer goes on that met no page.
    pub(super) fn mend(&mut self, ctid: u8, vaddr: u64) -> Vec<[u64; 2]> {
        let Self { engine, carrier, pages, windows, layout, vfpga, .. } = self;
        let sunk = pages.counts().1;
        let entries = pages.mend(ctid, vaddr, |page| {
            page_of(engine, carrier, windows, (layout, *vfpga), ctid, page)
        });
        if pages.counts().1 != sunk {
            log::debug!(
                "vFPGA {vfpga}: {vaddr:#x} of address space {ctid} is no memory; the access leads to an empty page"
            );
        }
        self.clear_sinks();
        entries
    }

    /// Clears the sinks that pages are about to lead into: bytes of the address spaces' earlier owners may lie there,
    /// and would go to the QPs' peers.
    fn clear_sinks(&mut self) {
        for ctid in self.pages.take_sinking() {
            self.layout.clear_sink(self.vfpga, ctid);
        }
    }

    /// Stops the sending of a QP. Gives entries that replace those of its address space, so many at most.
    pub(super) fn close(&mut self, qpn: u32, most: usize) -> Vec<Gone> {
        let Some(ctid) = self.carrier.posts.ctid(qpn) else { return Vec::new() };
        self.carrier.posts.close(ctid);
        self.windows.begin_end(ctid);
        let gone = self.pages.close(ctid, most);
        self.clear_sinks();
        gone
    }

    /// A QP reaches no memory any more, and nothing is on its way to any.
    pub(super) fn closed(&mut self, qpn: u32) {
        if let Some(ctid) = self.carrier.posts.ctid(qpn) {
            self.windows.forget(ctid);
            self.layout.clear_own(self.vfpga, ctid);
            self.inline &= !bit(ctid);
        }
    }

    /// The words that remove the entries which lead to memory without an owner. Those of a QP that has ended stay until
    /// it is connected anew: without them, packets of its peer that the card has acknowledged would wait for an answer
    /// to a page fault, and a late answer would come to the next connection.
    pub(super) fn surface(&mut self) -> Vec<[u64; 2]> {
        let Self { carrier, pages, .. } = self;
        carrier.surface();
        pages.surface(|ctid| carrier.posts.is_closed(ctid))
    }

    /// Forgets everything, as the card has with its reset.
    pub(super) fn reset(&mut self) {
        self.clear_inline();
        let Self { engine, carrier, pages, windows, resets, .. } = self;
        engine.reset(carrier);
        carrier.reset();
        pages.reset();
        windows.reset();
        *resets = resets.wrapping_add(1);
    }

    /// Entries for the place of those whose memory goes away.
    pub(super) fn replace(&mut self, ranges: &[(u64, u64)], most: usize) -> Vec<Gone> {
        let Self { engine, carrier, pages, windows, layout, vfpga, .. } = self;
        let gone = pages.replace(ranges, most, |ctid, page| {
            page_of(engine, carrier, windows, (layout, *vfpga), ctid, page)
        });
        self.clear_sinks();
        gone
    }

    /// Entries of pages of a window that was opened; `None` where there is no such.
    pub(super) fn fill(&mut self) -> Option<Vec<[u64; 2]>> {
        let Self { engine, carrier, pages, windows, layout, vfpga, .. } = self;
        let (ctid, first, count) = windows.take_fresh()?;
        Some(pages.fill(ctid, first, count, |page| {
            page_of(engine, carrier, windows, (layout, *vfpga), ctid, page)
        }))
    }

    /// Ends windows that lead to memory which their QPs may not reach any more.
    pub(super) fn lapse(&mut self) {
        let Self { engine, carrier, windows, .. } = self;
        windows.end_those(|ctid, window| leads(engine, carrier.posts.qpn(ctid), window));
    }

    /// The removal of entries, some at most, of pages that those without the tunnel have of memory or in a queue pair, from one on.
    pub(super) fn recall(&mut self, of: Recall, from: &mut (u8, u64), most: usize) -> Vec<Gone> {
        let Self { carrier, pages, .. } = self;
        pages.recall(from, most, |ctid, paddr| {
            let is_of = match of {
                // A page has more than its region where that begins within it.
                Recall::Memory { iova, length } => {
                    paddr | PAGE.wrapping_sub(1) >= iova && paddr < iova.saturating_add(length)
                }
                Recall::Qp { qpn } => carrier.posts.qpn(ctid) == qpn,
            };
            is_of && !carrier.is_tunnelled(ctid)
        })
    }

    /// The entries, some of them at most, of windows that have ended.
    pub(super) fn leave(&mut self, most: usize) -> Vec<Gone> {
        let Self { pages, windows, .. } = self;
        let mut gone = Vec::new();
        for (ctid, start, end) in windows.leave() {
            gone.extend(pages.forget(ctid, start, end, most.saturating_sub(gone.len())));
        }
        gone
    }
}

/// The page on the bus of a page of an address space.
fn page_of(
    engine: &HostedEngine,
    carrier: &Carrier<Bank>,
    windows: &Windows,
    (layout, vfpga): (&Layout, u8),
    ctid: u8,
    page: u64,
) -> Option<u64> {
    if !carrier.posts.is_open(ctid) || carrier.is_local(ctid) {
        return None;
    }
    let qpn = carrier.posts.qpn(ctid);
    if carrier.is_tunnelled(ctid) {
        let behind_window = || {
            let (window, bus) = windows.find(ctid, page)?;
            leads(engine, qpn, window).then_some(bus)
        };
        return layout.slot_page(vfpga, ctid, page).or_else(behind_window);
    }
    if page & LOCAL == 0 {
        return engine.remote_page(qpn, page);
    }
    let iova = page & !LOCAL;
    (layout.is_bounce(vfpga, ctid, iova) || engine.is_local_page(qpn, iova)).then_some(iova)
}

/// Whether a window leads to where its bytes lie now, and its QP may still reach them.
fn leads(engine: &HostedEngine, qpn: u32, window: &Window) -> bool {
    let Window { payload, offset, bytes, iova, .. } = *window;
    let Payload::Remote { rkey, address, access } = payload else {
        return in_one_piece(engine, qpn, payload, offset, bytes) == Some(iova);
    };
    let memory = RemoteRange { rkey, va: address, length: bytes.into() };
    engine.allows(qpn, memory, access)
        && in_one_piece(engine, qpn, payload, offset, bytes) == Some(iova)
}

/// Where bytes of a payload lie on the bus now, if in one piece.
fn in_one_piece(
    engine: &HostedEngine,
    qpn: u32,
    payload: Payload,
    offset: u64,
    bytes: u32,
) -> Option<u64> {
    let mut pieces: Vec<Piece> = Vec::new();
    engine.resolve(qpn, payload, offset, bytes, &mut pieces).ok()?;
    let [piece] = pieces.as_slice() else { return None };
    Some(piece.iova)
}

/// The memory in which the payload of messages lies, by their engine.
struct PayloadMemory<'a> {
    engine: &'a mut HostedEngine,
    memory: &'a HostMemory,
    layout: &'a Layout,
    inline: &'a mut u64,
    vfpga: u8,
    pieces: Vec<Piece>,
    atomics: &'a Mutex<()>,
    windows: &'a mut Windows,
}

impl PayloadMemory<'_> {
    /// Copies an inline payload out of the ring, which strangers on the link are not to reach, to a place that waits for
    /// the card.
    fn bounce(&mut self, qpn: u32, slot: u8) -> Option<(u64, u32)> {
        let ctid = (qpn & 0x3f) as u8;
        *self.inline |= bit(ctid);
        let (iova, own, offset) = self.layout.bounce(self.vfpga, ctid, slot);
        let mut bytes = Vec::new();
        for piece in &self.pieces {
            let (ring, at) = self.memory.find(piece.iova, piece.length.into())?;
            let before = bytes.len();
            bytes.resize(before.checked_add(usize::try_from(piece.length).ok()?)?, 0);
            ring.read_bytes(at, bytes.get_mut(before..)?).ok()?;
        }
        let length = u32::try_from(bytes.len()).ok()?;
        if u64::from(length) > BOUNCE_BYTES {
            return None;
        }
        own.write_bytes(offset, &bytes).ok()?;
        Some((local_address(iova), length))
    }
}

impl Locate for PayloadMemory<'_> {
    fn locate(
        &mut self,
        qpn: u32,
        number: u64,
        offset: u32,
        length: u32,
        slot: u8,
    ) -> Result<(u64, u32), Unreachable> {
        self.pieces.clear();
        let payload = Payload::Message { number };
        self.engine.resolve(qpn, payload, offset.into(), length, &mut self.pieces)?;
        let first = *self.pieces.first().ok_or(Unreachable)?;
        if self.memory.find(first.iova, first.length.into()).is_some() {
            return self.bounce(qpn, slot).ok_or(Unreachable);
        }
        Ok((local_address(first.iova), first.length))
    }
}

impl PayloadMemory<'_> {
    /// Finds where bytes of a payload lie, and calls with each piece and its place in them.
    fn each(
        &mut self,
        qpn: u32,
        (payload, offset): (Payload, u64),
        length: usize,
        mut call: impl FnMut(&HostMemory, u64, std::ops::Range<usize>) -> Option<()>,
    ) -> Result<(), Unreachable> {
        let length = u32::try_from(length).map_err(|_| Unreachable)?;
        self.pieces.clear();
        self.engine.resolve(qpn, payload, offset, length, &mut self.pieces)?;
        let mut done = 0usize;
        for piece in &self.pieces {
            let end = done.saturating_add(piece.length as usize);
            call(self.memory, piece.iova, done..end).ok_or(Unreachable)?;
            done = end;
        }
        Ok(())
    }
}

impl Host for PayloadMemory<'_> {
    fn allows(&self, qpn: u32, memory: RemoteRange, access: RemoteAccess) -> bool {
        self.engine.allows(qpn, memory, access)
    }

    fn take_receive(&mut self, qpn: u32) -> Result<TakenReceive, ReceiveError> {
        self.engine.take_receive(qpn)
    }

    fn read(
        &mut self,
        qpn: u32,
        payload: Payload,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), Unreachable> {
        self.each(qpn, (payload, offset), into.len(), |memory, iova, range| {
            memory.copy_from(iova, into.get_mut(range)?)
        })
    }

    fn write(
        &mut self,
        qpn: u32,
        payload: Payload,
        offset: u64,
        from: &[u8],
    ) -> Result<(), Unreachable> {
        self.each(qpn, (payload, offset), from.len(), |memory, iova, range| {
            memory.copy_to(iova, from.get(range)?)
        })
    }

    fn atomic(
        &mut self,
        qpn: u32,
        rkey: u32,
        address: u64,
        operation: AtomicOperation,
    ) -> Result<u64, Unreachable> {
        let atomics = self.atomics;
        let _alone = lock(atomics);
        let payload = Payload::Remote { rkey, address, access: RemoteAccess::Atomic };
        let mut bytes = [0; 8];
        self.read(qpn, payload, 0, &mut bytes)?;
        let before = u64::from_le_bytes(bytes);
        if let Some(after) = operation.apply(before) {
            self.write(qpn, payload, 0, &after.to_le_bytes())?;
        }
        Ok(before)
    }

    fn open(&mut self, qpn: u32, payload: Payload, offset: u64, bytes: u32) -> Option<u64> {
        // A memory window is taken back by requests, in the midst of others, that wait for nothing.
        if matches!(payload, Payload::Remote { rkey, .. } if self.engine.is_window(rkey)) {
            return None;
        }
        let iova = in_one_piece(self.engine, qpn, payload, offset, bytes)?;
        // balboad's own memory is no program's.
        if !self.memory.is_of_program(iova, bytes.into()) {
            return None;
        }
        self.windows.open((qpn & 0x3f) as u8, iova, (payload, offset), bytes)
    }

    fn close(&mut self, qpn: u32, window: u64) {
        self.windows.close((qpn & 0x3f) as u8, window);
    }

    fn is_closed(&self, qpn: u32, window: u64) -> bool {
        self.windows.is_closed((qpn & 0x3f) as u8, window)
    }
}

impl Memory for PayloadMemory<'_> {
    fn sequence(&self, ctid: u8, place: usize) -> u64 {
        self.layout.sequence(self.vfpga, ctid, place)
    }

    fn slot(&self, ctid: u8, place: usize, into: &mut [u8]) {
        self.layout.slot(self.vfpga, ctid, place, into);
    }

    fn stage(&mut self, ctid: u8, number: u8, slot: &[u8]) -> u64 {
        local_address(self.layout.stage(self.vfpga, ctid, number, slot))
    }

    fn deliver(&mut self, qpn: u32, place: usize, slot: &[u8]) {
        let (vfpga, ctid) = ((qpn >> 6) as u8, (qpn & 0x3f) as u8);
        self.layout.deliver(vfpga, ctid, place, slot);
    }

    fn clear(&mut self, ctid: u8) {
        self.layout.clear_slots(self.vfpga, ctid);
    }

    fn end_windows(&mut self, ctid: u8) -> bool {
        self.windows.end(ctid)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may fail")]
mod tests {
    use fpga_regs::engine::admin::CreateQp;
    use fpga_regs::engine::qp::QpType;
    use fpga_regs::engine::tunnel;
    use queue_engine::Transport as _;

    use super::super::tests::engines_over;
    use super::*;
    use crate::fake::FakeCard;

    #[test]
    fn a_page_of_nobody_s_is_empty_when_the_card_is_told_that_pages_lead_there() {
        const PAGES: u64 = 0x9_0000;
        let hosted = engines_over(&Arc::new(FakeCard::new(1)));
        let mut core = lock(hosted.shared.core(0).unwrap());
        let mut step = |step: &dyn Fn(&mut Core) -> usize| {
            let sink = |core: &Core| {
                let (memory, at) = core.layout.sink(0, 5);
                let mut bytes = [0; 64];
                memory.read_bytes(at, &mut bytes).unwrap();
                bytes
            };
            let (memory, at) = core.layout.sink(0, 5);
            // As the last one's peer has left it.
            memory.write_bytes(at, &[7; 64]).unwrap();
            (step(&mut core), sink(&core) == [0; 64])
        };
        let fill = |core: &mut Core| core.pages.fill(5, 0x1000, 2, |page| Some(page + PAGES)).len();
        assert_eq!(step(&fill), (2, false), "none leads there");
        assert_eq!(step(&|core| core.close(5, 1).len()), (1, true), "its QP ends");
        let memory = [(PAGES + 0x2000, 0x1000)];
        assert_eq!(step(&|core| core.replace(&memory, 8).len()), (1, true), "memory goes");
        assert_eq!(step(&|core| core.mend(5, 0x8000).len()), (1, true), "there is no memory");
        assert_eq!(step(&|core| core.mend(6, 0x8000).len()), (1, false), "another one's");
    }

    #[test]
    fn what_comes_for_a_queue_pair_that_has_ended_waits_for_no_page() {
        let hosted = engines_over(&Arc::new(FakeCard::new(1)));
        let mut core = lock(hosted.shared.core(0).unwrap());
        let command = CreateQp { kind: QpType::Rc, ..CreateQp::default() };
        for qpn in [5, 6] {
            core.carrier.create_qp(qpn, &command).unwrap();
            assert_eq!(core.mend(qpn as u8, tunnel::ring_address(qpn as u8)).len(), 1);
        }
        core.close(5, 16);
        assert_eq!(core.surface().len(), 1, "that of the one that may be connected");
        core.carrier.destroy_qp(5);
        assert_eq!(core.surface().len(), 1, "nobody has the other one's number");
    }

    #[test]
    fn inline_payloads_go_with_the_engine_or_the_card_where_no_end_of_their_queue_pair_was_confirmed()
     {
        let hosted = engines_over(&Arc::new(FakeCard::new(1)));
        let mut core = lock(hosted.shared.core(0).unwrap());
        let command = CreateQp { kind: QpType::Rc, ..CreateQp::default() };
        let enable = |core: &mut Core| core.write_register(window::CONTROL, window::CONTROL_ENABLE);
        for anew in [enable, Core::reset] {
            core.carrier.create_qp(5, &command).unwrap();
            let layout = Arc::clone(&core.layout);
            let Core { engine, memory, inline, atomics, windows, .. } = &mut *core;
            let (layout, pieces) = (&*layout, Vec::new());
            let mut place = PayloadMemory {
                engine,
                memory,
                layout,
                inline,
                vfpga: 0,
                pieces,
                atomics,
                windows,
            };
            place.bounce(5, 15).unwrap();
            let (_, own, at) = layout.bounce(0, 5, 15);
            own.write_bytes(at, &[7; 64]).unwrap();
            core.close(5, 16);
            // As the engine does that is stopped.
            core.carrier.destroy_qp(5);
            let mut bytes = [0; 64];
            own.read_bytes(at, &mut bytes).unwrap();
            assert_eq!(bytes, [7; 64], "it may be on its way");
            anew(&mut core);
            own.read_bytes(at, &mut bytes).unwrap();
            assert_eq!(bytes, [0; 64]);
        }
    }

    #[test]
    fn nothing_of_whoever_had_an_address_space_before_is_left_in_it() {
        let hosted = engines_over(&Arc::new(FakeCard::new(1)));
        let mut core = lock(hosted.shared.core(0).unwrap());
        let layout = Arc::clone(&core.layout);
        let inline = |ctid| {
            let (_, memory, at) = layout.bounce(0, ctid, 15);
            let mut bytes = [0; 64];
            memory.read_bytes(at, &mut bytes).unwrap();
            memory.write_bytes(at, &[7; 64]).unwrap();
            bytes[63]
        };
        assert_eq!([5, 6].map(inline), [0, 0]);
        core.closed(5);
        assert_eq!([5, 6].map(inline), [0, 7]);
        let (came, sent) = (tunnel::place_of(31), tunnel::SLOTS as usize * tunnel::SLOT_BYTES);
        for ctid in [5, 6] {
            layout.deliver(0, ctid, came, &[7; tunnel::SLOT_BYTES]);
            layout.stage(0, ctid, 0, &[7; tunnel::SLOT_BYTES]);
        }
        layout.clear_slots(0, 5);
        let slots = |ctid| {
            [came, sent].map(|place| {
                let mut slot = [0; tunnel::SLOT_BYTES];
                layout.slot(0, ctid, place, &mut slot);
                slot[tunnel::SLOT_BYTES - 1]
            })
        };
        assert_eq!([5, 6].map(slots), [[0, 0], [7, 7]]);
    }
}
