//! The engine in RTL as a device of the tests: a card of its own for each test, whose clock goes on with the test's calls.

mod card;
mod transport;

use std::cell::RefCell;
use std::sync::OnceLock;

use cosim::lockstep::limits;
use cosim::port::{Check, Payload as Bytes, Submitted, Transfer, Verdict};
use fpga_regs::engine::doorbell::SLOTS;
use fpga_regs::engine::window::{self as w, DOORBELL_PAGES, PAGE_BYTES};
use fpga_regs::engine::wqe::SendOpcode;
use queue_engine::{
    EngineConfig, Payload, Piece, ReceiveError, RemoteAccess, RemoteRange, TakenReceive, Transport,
    TransportEvent, Unreachable, XrcRequest,
};

use crate::engine::support::device::Device;
use crate::engine::support::memory::{TestMemory, TestPage};
use card::Card;
use transport::Adaptor;

/// Cycles of a step at most.
const STEP: u32 = 32;
/// Bytes of a question for payload at most.
const MTU: u32 = 4096;

/// A doorbell page, and its slots as they were last seen.
struct Page {
    memory: TestPage,
    seen: Vec<u64>,
}

/// The device.
pub struct Rtl {
    card: RefCell<Card>,
    adaptor: Adaptor,
    pages: [Option<Page>; DOORBELL_PAGES as usize],
}

impl Rtl {
    /// The place of the doorbell page of that number, which count from 1.
    fn page(&mut self, number: u8) -> Option<&mut Option<Page>> {
        self.pages.get_mut(usize::from(number).checked_sub(1)?)
    }

    /// Makes stores of the slots that changed; `true` if any did.
    fn look_at_pages(&mut self) -> bool {
        let card = self.card.get_mut();
        let mut changed = false;
        for (page, number) in self.pages.iter_mut().zip(1..) {
            let Some(Page { memory, seen }) = page else { continue };
            for (slot, seen) in seen.iter_mut().enumerate() {
                let value = memory.load(slot);
                if value != *seen {
                    *seen = value;
                    changed = true;
                    let offset = number * PAGE_BYTES + 8 * slot as u64;
                    card.vfpga.write(offset as u16, value);
                }
            }
        }
        changed
    }

    /// Moves some bytes of a payload, and adds their runs of addresses, of which the first may go on with the last.
    fn transfer(
        &self,
        transfer: Transfer,
        is_placed: bool,
        goes_on: bool,
        pieces: &mut Vec<Piece>,
    ) -> Result<(), Unreachable> {
        let mut card = self.card.borrow_mut();
        let (verdict, runs) = match is_placed {
            true => card.place(transfer),
            false => card.fetch(transfer),
        };
        if verdict != Verdict::Done {
            return Err(Unreachable);
        }
        let mut runs = runs.into_iter().peekable();
        if let (true, Some(last), Some(run)) = (goes_on, pieces.last_mut(), runs.peek()) {
            if last.iova + u64::from(last.length) == run.iova {
                last.length += run.length;
                runs.next();
            }
        }
        pieces.extend(runs);
        Ok(())
    }
}

impl Device for Rtl {
    const OTHER_LIMITS: bool = false;
    const TURNS: bool = false;
    // docs/card-contract/queues.md: where doorbells are BAR pages, all are always open.
    const PAGES: bool = false;
    // docs/card-contract/admin.md: an engine need not know what is mapped.
    const MAPPINGS: bool = false;
    // docs/gateware-port.md has those that it has.
    const WORDS: bool = false;
    // RECEIVES of gateware/rtl/balboa_engine_pkg.sv.
    const CLAIMS: usize = 4;
    const SHARE: u64 = 30;

    /// What its registers say.
    fn config() -> EngineConfig {
        static CONFIG: OnceLock<EngineConfig> = OnceLock::new();
        *CONFIG.get_or_init(|| {
            let mut card = Card::new(TestMemory::default());
            limits(|register| card.read(register))
        })
    }

    fn new(_: EngineConfig, memory: TestMemory) -> Self {
        let pages = [const { None }; DOORBELL_PAGES as usize];
        Self { card: RefCell::new(Card::new(memory)), adaptor: Adaptor::default(), pages }
    }

    fn read_register(&mut self, offset: u64, _: &mut impl Transport) -> u64 {
        self.card.get_mut().read(offset)
    }

    fn write_register(&mut self, offset: u64, value: u64, _: &mut impl Transport) {
        if let Ok(offset) = u16::try_from(offset) {
            self.card.get_mut().vfpga.write(offset, value);
        }
    }

    fn open_page(&mut self, page: u8, memory: TestPage) -> bool {
        let Some(place @ None) = self.page(page) else { return false };
        let seen = (0..SLOTS).map(|slot| memory.load(slot)).collect();
        *place = Some(Page { memory, seen });
        true
    }

    fn close_page(&mut self, page: u8) {
        if let Some(place) = self.page(page) {
            *place = None;
        }
    }

    fn reset(&mut self, port: &mut impl Transport) {
        self.pages = [const { None }; DOORBELL_PAGES as usize];
        self.adaptor.reset(port);
        let vfpga = &mut self.card.get_mut().vfpga;
        vfpga.reset();
        vfpga.write(w::SEED as u16, vfpga.seed);
    }

    fn take_interrupt(&mut self) -> bool {
        let bus = self.card.get_mut().vfpga.bus();
        std::iter::from_fn(|| bus.take_interrupt()).count() > 0
    }

    fn step(&mut self, port: &mut impl Transport) -> bool {
        let rang = self.look_at_pages();
        let card = self.card.get_mut();
        let mut obeyed = self.adaptor.obey(card, port);
        if !rang && !obeyed && card.vfpga.is_quiet() {
            card.cycle();
            return false;
        }
        for _ in 0..STEP {
            card.cycle();
            obeyed = self.adaptor.obey(card, port);
            if obeyed || card.vfpga.is_quiet() {
                break;
            }
        }
        true
    }

    /// The engine's own clock.
    fn now(&self) -> u64 {
        self.card.borrow_mut().read(w::TIMESTAMP)
    }

    fn pass(&mut self, time: u64) {
        let card = self.card.get_mut();
        (0..time.div_ceil(card::CYCLE)).for_each(|_| card.cycle());
    }

    fn next_wake(&self) -> Option<u64> {
        None
    }

    fn report(&mut self, event: TransportEvent, port: &mut impl Transport) {
        self.adaptor.report(event, self.card.get_mut(), port);
    }

    fn take_receive(&mut self, qpn: u32) -> Result<TakenReceive, ReceiveError> {
        let card = self.card.get_mut();
        card.vfpga.port().claim(1, qpn);
        let claimed = card.until("the answer to a claim", |port| port.claimed.pop_front());
        match claimed.verdict {
            Verdict::Done => {
                self.adaptor.claimed(qpn);
                let (id, capacity) = (claimed.receive.into(), claimed.capacity.into());
                Ok(TakenReceive { id, capacity, left: None })
            }
            // One of a queue pair that is not there, too.
            Verdict::Empty | Verdict::Unreachable => Err(ReceiveError::Empty),
            _ => Err(ReceiveError::Invalid),
        }
    }

    fn refuse_receive(&mut self, qpn: u32, port: &mut impl Transport) {
        self.adaptor.refuse_receive(qpn, self.card.get_mut(), port);
    }

    fn take_xrc_receive(&mut self, _: XrcRequest) -> Result<TakenReceive, ReceiveError> {
        Err(ReceiveError::NoSrq)
    }

    fn allows(&self, qpn: u32, memory: RemoteRange, access: RemoteAccess) -> bool {
        let RemoteRange { rkey, va: address, length } = memory;
        let is_read = match access {
            RemoteAccess::Read => true,
            RemoteAccess::Write => false,
            RemoteAccess::Atomic | RemoteAccess::Invalidate => return false,
        };
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        let mut card = self.card.borrow_mut();
        card.vfpga.port().check(Check { tag: 2, qpn, is_read, rkey, address, length });
        let (_, verdict) = card.until("the answer to a check", |port| port.checked.pop_front());
        verdict == Verdict::Done
    }

    fn allows_xrc(&mut self, _: XrcRequest, _: RemoteRange, _: RemoteAccess) -> Option<bool> {
        None
    }

    fn resolve(
        &self,
        qpn: u32,
        payload: Payload,
        offset: u64,
        length: u32,
        pieces: &mut Vec<Piece>,
    ) -> Result<(), Unreachable> {
        let before = pieces.len();
        let mut done = 0;
        while done < length {
            let part = (length - done).min(MTU);
            let moved = self.part(qpn, payload, offset, done).and_then(|(transfer, is_placed)| {
                let transfer = Transfer { length: part as u16, ..transfer };
                self.transfer(transfer, is_placed, done != 0, pieces)
            });
            if moved.is_err() {
                pieces.truncate(before);
                return moved;
            }
            done += part;
        }
        Ok(())
    }
}

impl Rtl {
    /// The question for the bytes of a payload that stand so far behind an offset, but for their count; whether they are
    /// placed.
    fn part(
        &self,
        qpn: u32,
        payload: Payload,
        offset: u64,
        done: u32,
    ) -> Result<(Transfer, bool), Unreachable> {
        let (payload, is_placed) = match payload {
            Payload::Message { number } => {
                let number = u32::try_from(number).map_err(|_| Unreachable)?;
                let sent: Option<&Submitted> = self.adaptor.message(qpn, number);
                let is_read = sent.is_some_and(|it| SendOpcode(it.opcode) == SendOpcode::Read);
                (Bytes::Message(number), is_read)
            }
            Payload::Receive { id } => {
                (Bytes::Receive(u32::try_from(id).map_err(|_| Unreachable)?), true)
            }
            Payload::Remote { rkey, address, access } => {
                let is_read = match access {
                    RemoteAccess::Read => true,
                    RemoteAccess::Write => false,
                    RemoteAccess::Atomic | RemoteAccess::Invalidate => return Err(Unreachable),
                };
                let address = address.checked_add(done.into()).ok_or(Unreachable)?;
                (Bytes::Remote { rkey, address, is_read }, !is_read)
            }
            Payload::XrcReceive { .. } | Payload::XrcRemote { .. } => return Err(Unreachable),
        };
        let offset = offset.checked_add(done.into()).ok_or(Unreachable)?;
        let offset = u32::try_from(offset).map_err(|_| Unreachable)?;
        Ok((Transfer { tag: 3, qpn, payload, offset, length: 0 }, is_placed))
    }
}
