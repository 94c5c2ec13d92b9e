//! The queue engine in RTL as logic of a software card: the card's seam on one side, the ports of a vFPGA on the other.
//!
//! The logic has a clock of its own. While it has work, the time of all cards of its thread goes on as that does, and it
//! never runs ahead of them; while all such logic is quiet, their time passes as the host's, which costs no cycles.
//! The time of the engine's own register is its cycles, without the time in which it was quiet.
//!
//! Each access to host memory is a transfer of the card's: the clock stands until it has ended, unless the driver waits
//! for the value of a register. Of a page fault that it refuses the driver tells the logic by itself; of memory that a process
//! took away, which memory behind a bus cannot do, the logic is told here in the same way.

mod memory;
mod transport;

use std::cell::RefCell;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::task::Poll;

use fpga_regs::engine::doorbell::SLOTS;
use fpga_regs::engine::window::{DOORBELL_PAGES, PAGE_BYTES};
use roce::{AccessDenied, Event, ReceiveError, RemoteAccess, TakenReceive, Target};
use softcard::logic::{
    Access, Answer, HostTransfer, Logic, Missed, Ports, Slots, Tag, Unreachable, Wanted,
};

use crate::bus::{Config, Violation};
use crate::card::Vfpga;
use crate::ffi::{Library, LoadError};
use memory::CardMemory;
use transport::Transport;

/// What images call it.
pub const NAME: &str = "rtl";
/// The library of the engine, in the directory `gateware` beside that of the program.
const LIBRARY: &str = "libengine.so";
/// Nanoseconds of a cycle.
const CYCLE: u64 = 4;
/// Cycles that it goes on to at a time: what one card sends is at the next one so much later at most.
const STEP: u64 = 32;
/// Cycles in which a register answers.
const REGISTER_CYCLES: u32 = 100_000;

static LOADED: OnceLock<Library> = OnceLock::new();

/// Offers the engine to images of this process's cards. It is loaded when the first card has it, or by [`load`] or [`take`].
///
/// # Errors
/// [`softcard::Error::LogicName`] where it was offered before.
pub fn offer() -> Result<(), softcard::Error> {
    softcard::logic::offer(NAME, make)
}

/// Where the library of the engine is to be.
fn place() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    let directory = program.parent().and_then(|bin| bin.parent()).map(|it| it.join("gateware"));
    directory.unwrap_or_default().join(LIBRARY)
}

/// Has cards take the engine of a library, where none was loaded before.
pub fn take(library: &Library) {
    LOADED.get_or_init(|| library.clone());
}

/// Loads the engine.
///
/// # Errors
/// [`LoadError`]: it was not built.
pub fn load() -> Result<&'static Library, LoadError> {
    match LOADED.get() {
        Some(library) => Ok(library),
        None => {
            let library = Library::load(&place())?;
            Ok(LOADED.get_or_init(|| library))
        }
    }
}

/// The engine in the vFPGA of that number. Where it was not built, nothing answers there.
fn make(vfpga: u8) -> Box<dyn Logic> {
    let seed = RandomState::new().build_hasher().finish();
    let config = Config { seed, ..Config::default() };
    let made = load().and_then(|library| Vfpga::new(library, config));
    let logic = made.map(|vfpga| Simulation::new(vfpga, seed));
    match &logic {
        Ok(_) => log::info!("vFPGA {vfpga}: image={NAME} seed={seed:#x}"),
        Err(error) => log::error!("vFPGA {vfpga}: image={NAME}: {error}"),
    }
    Box::new(Rtl { simulation: RefCell::new(logic.ok()) })
}

/// The engine as a card sees it.
struct Rtl {
    /// What runs; `None` where it is not there, or broke a rule of its ports.
    simulation: RefCell<Option<Simulation>>,
}

/// A doorbell page, and its slots as they were last seen.
struct Page {
    slots: Slots,
    seen: Vec<u64>,
}

/// The engine and what stands around it.
struct Simulation {
    vfpga: Vfpga,
    memory: CardMemory,
    transport: Transport,
    pages: [Option<Page>; DOORBELL_PAGES as usize],
    /// The card's time, in nanoseconds.
    time: u64,
    /// Cycles since it was made.
    cycles: u64,
    seed: u64,
}

impl Simulation {
    fn new(vfpga: Vfpga, seed: u64) -> Self {
        Self {
            vfpga,
            memory: CardMemory::default(),
            transport: Transport::default(),
            pages: [const { None }; DOORBELL_PAGES as usize],
            time: 0,
            cycles: 0,
            seed,
        }
    }

    /// The place of the doorbell page of that number, which count from 1.
    fn page(&mut self, number: u8) -> Option<&mut Option<Page>> {
        self.pages.get_mut(usize::from(number).checked_sub(1)?)
    }

    fn is_quiet(&self) -> bool {
        self.vfpga.is_quiet() && !self.transport.has_work()
    }

    /// Takes note of the time, which passes by itself while there is no work.
    fn catch_up(&mut self, now: u64) {
        if self.is_quiet() {
            self.time = self.time.max(now);
        }
    }

    fn cycle(&mut self) -> Result<(), Violation> {
        self.cycles += 1;
        self.time += CYCLE;
        self.vfpga.cycle(&mut self.memory)
    }

    /// Makes stores of the slots that changed.
    fn look_at_pages(&mut self) {
        // Those that were found before come first; an overwritten one loses nothing.
        if self.vfpga.has_orders() {
            return;
        }
        for (page, number) in self.pages.iter_mut().zip(1..) {
            let Some(Page { slots, seen }) = page else { continue };
            for (slot, seen) in seen.iter_mut().enumerate() {
                let value = slots.read(slot);
                if value != *seen {
                    *seen = value;
                    let offset = number * PAGE_BYTES + 8 * slot as u64;
                    self.vfpga.write(offset as u16, value);
                }
            }
        }
    }

    /// Works up to a time, or until host memory is waited for; `true` if there was anything.
    fn work(&mut self, now: u64, ports: &mut Ports<'_>) -> Result<bool, Violation> {
        self.catch_up(now);
        self.look_at_pages();
        self.transport.begin();
        self.transport.give_room(ports, self.vfpga.port());
        let mut worked = self.transport.obey(now, ports, self.vfpga.port());
        while self.time < now && self.memory.due().is_none() && !self.is_quiet() {
            self.cycle()?;
            worked = true;
            self.transport.obey(now, ports, self.vfpga.port());
        }
        // What was found last begins with the next round, before which nobody may sleep.
        Ok(worked || !self.is_quiet())
    }

    /// The value of a register.
    fn read(&mut self, now: u64, offset: u64) -> Result<Option<u64>, Violation> {
        self.catch_up(now);
        self.vfpga.ask(offset as u16);
        for _ in 0..REGISTER_CYCLES {
            self.cycle()?;
            if let Some(value) = self.vfpga.take_answer() {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }
}

impl Rtl {
    /// Asks what runs for something; `otherwise` if nothing runs, from now on too if a rule was broken.
    fn with<T>(
        &self,
        otherwise: T,
        act: impl FnOnce(&mut Simulation) -> Result<T, Violation>,
    ) -> T {
        let mut simulation = self.simulation.borrow_mut();
        let Some(running) = simulation.as_mut() else { return otherwise };
        match act(running) {
            Ok(value) => value,
            Err(violation) => {
                log::error!("image={NAME} seed={:#x} stands still: {violation}", running.seed);
                *simulation = None;
                otherwise
            }
        }
    }
}

impl Logic for Rtl {
    fn read_register(&self, now: u64, offset: u64) -> u64 {
        let value = self.with(None, |running| running.read(now, offset));
        value.unwrap_or(u64::MAX)
    }

    fn write_register(&mut self, now: u64, offset: u64, value: u64, _ports: &mut Ports<'_>) {
        self.with((), |running| {
            running.catch_up(now);
            running.vfpga.write(offset as u16, value);
            Ok(())
        });
    }

    fn open_page(&mut self, page: u8, slots: Slots) -> bool {
        self.with(false, |running| {
            let Some(place @ None) = running.page(page) else { return Ok(false) };
            let seen = (0..SLOTS).map(|slot| slots.read(slot)).collect();
            *place = Some(Page { slots, seen });
            Ok(true)
        })
    }

    fn close_page(&mut self, page: u8) {
        self.with((), |running| {
            if let Some(place) = running.page(page) {
                *place = None;
            }
            Ok(())
        });
    }

    fn reset(&mut self, _ports: &mut Ports<'_>) {
        self.with((), |running| {
            running.vfpga.reset();
            running.memory = CardMemory::default();
            running.transport = Transport::default();
            running.pages = [const { None }; DOORBELL_PAGES as usize];
            Ok(())
        });
    }

    /// It keeps no views: each access is found anew.
    fn lost_memory(&mut self, _now: u64, _ports: &mut Ports<'_>) {}

    fn work(&mut self, now: u64, ports: &mut Ports<'_>) -> bool {
        self.with(false, |running| running.work(now, ports))
    }

    fn goes_on_to(&self) -> Option<u64> {
        let simulation = self.simulation.borrow();
        let running = simulation.as_ref().filter(|running| !running.is_quiet())?;
        Some(running.time.saturating_add(STEP * CYCLE))
    }

    fn transfer(&self) -> Option<HostTransfer> {
        self.simulation.borrow().as_ref()?.memory.due().cloned()
    }

    fn transferred(&mut self, end: Result<&[u8], Missed>) {
        self.with((), |running| {
            running.memory.end(end);
            Ok(())
        });
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.with(Vec::new(), |running| {
            let counts = running.vfpga.bus().counts();
            Ok(vec![
                ("rtl_cycles", running.cycles),
                ("rtl_bytes_read", counts.bytes_read),
                ("rtl_bytes_written", counts.bytes_written),
                ("rtl_port_beats", running.vfpga.port().beats),
            ])
        })
    }

    fn take_notify(&mut self) -> Option<u32> {
        self.with(None, |running| {
            let bus = running.vfpga.bus();
            Ok(std::iter::from_fn(|| bus.take_interrupt()).last())
        })
    }

    fn is_ready(&self) -> bool {
        self.with(true, |running| Ok(running.transport.is_ready()))
    }

    fn check_remote(&mut self, tag: Tag, access: &Access) -> Poll<Result<(), AccessDenied>> {
        let denied = access.target.srq.map_or(AccessDenied::Memory, |_| AccessDenied::Srq);
        let otherwise = Poll::Ready(Err(denied));
        let is_offered = matches!(access.access, RemoteAccess::Write | RemoteAccess::Read);
        if access.target.srq.is_some() || !is_offered {
            return otherwise;
        }
        self.with(otherwise, |running| {
            running.transport.check(tag, access, running.vfpga.port());
            Ok(Poll::Pending)
        })
    }

    fn take_receive(
        &mut self,
        tag: Tag,
        target: Target,
    ) -> Poll<Result<TakenReceive, ReceiveError>> {
        if target.srq.is_some() {
            return Poll::Ready(Err(ReceiveError::NoSrq));
        }
        self.with(Poll::Ready(Err(ReceiveError::Invalid)), |running| {
            running.transport.claim(tag, target.qpn, running.vfpga.port());
            Ok(Poll::Pending)
        })
    }

    fn carries_payload(&self) -> bool {
        true
    }

    fn place(&mut self, tag: Tag, wanted: &Wanted, bytes: &[u8]) -> Poll<Result<(), Unreachable>> {
        self.with(Poll::Ready(Err(Unreachable)), |running| {
            Ok(running.transport.place(tag, wanted, bytes, running.vfpga.port()))
        })
    }

    fn fetch(&mut self, tag: Tag, wanted: &Wanted, _: &mut [u8]) -> Poll<Result<(), Unreachable>> {
        self.with(Poll::Ready(Err(Unreachable)), |running| {
            Ok(running.transport.fetch(tag, wanted, running.vfpga.port()))
        })
    }

    fn take_event(&mut self, _now: u64, event: Event, _ports: &mut Ports<'_>) {
        self.with((), |running| {
            running.transport.tell(event, running.vfpga.port());
            Ok(())
        });
    }

    fn hear_link(&mut self, _now: u64, up: bool) {
        self.with((), |running| {
            running.vfpga.port().report(crate::port::Report::Link { is_up: up });
            Ok(())
        });
    }

    fn poll_answer(&mut self) -> Option<(Tag, Answer)> {
        self.with(None, |running| {
            let counts = running.vfpga.bus().counts();
            Ok(running.transport.answer(running.vfpga.port(), counts))
        })
    }
}
