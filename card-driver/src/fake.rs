//! A card for tests: the software card, made to misbehave.
//!
//! It notes a driver's accesses and passes them on to the card, and the card's answers to the driver,
//! unless a test replaces them. A write has arrived when it returns, so that nothing
//! depends on when the card's thread runs.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard};

use fpga_regs::coyote::pci::Bar;
use fpga_regs::coyote::shell;
use fpga_regs::coyote::static_layer;
use fpga_regs::coyote::vfpga::{self, Bank, IsrWrite};
use fpga_regs::coyote::xdma::{self, Direction, VectorMap};
use fpga_regs::engine::event::Event;
use fpga_regs::engine::window as w;
use fpga_regs::port::WatchFilter;
use hostmem::{DmaMemory, EventFd};
use roce::qos::Qos;
use softcard::{Runtime, Unfounded};

use crate::backend::{CardBackend, DoorbellGrant, GrantKind, Identity};
use crate::error::Error;
use crate::lock::lock;
use crate::soft::{self, SoftBackend, SoftCard};

mod commands;

use commands::{FakeWindow, Mappings};

const WINDOWS: usize = softcard::WINDOWS as usize;

/// A test's function in the place of a write to the shell's registers.
type Script = dyn Fn(&FakeCard, u64, u64) + Send + Sync;

/// A software card that can be told to misbehave.
pub struct FakeCard {
    card: SoftBackend,
    _runtime: Running,
    state: Mutex<State>,
    script: Mutex<Arc<Script>>,
    wanted_back: EventFd,
}

/// The runtime of the card; to be dropped behind it.
struct Running(Option<Runtime>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(Runtime::shutdown);
    }
}

#[derive(Default)]
struct State {
    /// Values that registers read in place of their own.
    lies: HashMap<(Bar, u64), u64>,
    config_lies: HashMap<u16, u16>,
    /// It reads all ones, and hears nothing.
    gone: bool,
    /// Accesses to its registers until it is; `None` where they have no end.
    accesses: Option<u32>,
    /// Its port may be recorded.
    records: bool,
    /// Writes, in order, and how many of them were taken.
    writes: Vec<(Bar, u64, u64)>,
    taken: usize,
    /// Clears of events that are on their way up to the next read; `None` where each arrives at once.
    clears: Option<Vec<usize>>,
    mappings: Mappings,
    unmapped: Vec<(u64, u64)>,
    /// Rounds in which it moved frames, beside those of the card below.
    moved: u64,
    /// Resets by its driver, and whether there are none.
    resets: u32,
    stays: bool,
    /// How many mappings and grants there may be yet; `None` where there is no end to them.
    takings: Option<u32>,
    /// Clients map their memory themselves, in pieces of so many bytes.
    piece: Option<u64>,
    pages: BTreeSet<(u8, u8)>,
    windows: [FakeWindow; WINDOWS],
}

/// The engine that a register in a window is of, and which register of it.
fn window_of(offset: u64) -> Option<(usize, u64)> {
    (0..WINDOWS).find_map(|index| {
        let register = offset.checked_sub(vfpga::user_csr(index as u64))?;
        (register < w::WINDOW_BYTES).then_some((index, register))
    })
}

fn isr(index: usize) -> u64 {
    Bank::Plain.cnfg(index as u64) + vfpga::ISR
}

impl State {
    /// Whether it is gone when its registers are accessed once more.
    fn is_gone(&mut self) -> bool {
        if let Some(left) = &mut self.accesses {
            match left.checked_sub(1) {
                Some(fewer) => *left = fewer,
                None => self.gone = true,
            }
        }
        self.gone
    }

    /// Takes one of the mappings and grants that there may be yet.
    fn take(&mut self) -> Result<(), Error> {
        let Some(takings) = &mut self.takings else { return Ok(()) };
        *takings = takings.checked_sub(1).ok_or(Error::Limit("there is no more".into()))?;
        Ok(())
    }
}

impl FakeCard {
    /// A card of `windows` engines with few objects each.
    pub fn new(windows: u8) -> Self {
        let (runtime, cards) = soft::start(&[SoftCard::default()], &[], None, vec![], 0).unwrap();
        let [card] = cards.try_into().unwrap();
        let fake = Self {
            card,
            _runtime: Running(Some(runtime)),
            state: Mutex::default(),
            script: Mutex::new(Arc::new(Self::pass)),
            wanted_back: EventFd::new().unwrap(),
        };
        fake.set(Bar::Shell, shell::N_REGIONS, windows.into());
        for csr in (0..u64::from(windows)).map(vfpga::user_csr) {
            fake.set(Bar::Shell, csr + w::LIMIT_QP_CQ, 64 | 64 << 32);
            fake.set(Bar::Shell, csr + w::LIMIT_KEY_RQ, 64 | 64 << 32);
            let port = w::LimitPort::decode(fake.card.read64(Bar::Shell, csr + w::LIMIT_PORT));
            let port = w::LimitPort { ahs: 64, ..port }.encode();
            fake.set(Bar::Shell, csr + w::LIMIT_PORT, port);
            let groups = w::LimitMulticast { groups: 16, qps_per_group: 4 }.encode();
            fake.set(Bar::Shell, csr + w::LIMIT_MULTICAST, groups);
        }
        fake
    }

    /// A card with its interrupts on, as bring-up leaves them.
    pub fn with_interrupts(windows: u8) -> Self {
        let fake = Self::new(windows);
        let vectors = VectorMap { first: 0, second: 1, third: 2, fourth: 3 }.encode();
        let registers = [
            (xdma::USER_VECTOR_MAP.at(0), vectors),
            (xdma::USER_INTERRUPT_ENABLE_SET, xdma::USER_INTERRUPT_VFPGAS),
        ];
        for (register, value) in registers {
            fake.card.write32(Bar::Xdma, xdma::INTERRUPT_BLOCK + register, value);
        }
        fake
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Gives a test an engine's commands to read or change.
    pub fn window<T>(&self, index: usize, act: impl FnOnce(&mut FakeWindow) -> T) -> T {
        act(&mut self.state().windows[index])
    }

    /// Sets the value of a register.
    pub fn set(&self, bar: Bar, offset: u64, value: u64) {
        self.state().lies.insert((bar, offset), value);
    }

    /// Has it tell that it moved frames.
    pub fn moves_frames(&self) {
        self.state().moved += 1;
    }

    /// Hides features of the software card.
    pub fn hide(&self, capabilities: w::Capabilities) {
        for register in (0..WINDOWS as u64).map(|index| vfpga::user_csr(index) + w::CAPABILITIES) {
            let offered = self.card.read64(Bar::Shell, register);
            self.set(Bar::Shell, register, offered & !capabilities.bits());
        }
    }

    /// Sets the value of a word of configuration space.
    pub fn set_config(&self, offset: u16, value: u16) {
        self.state().config_lies.insert(offset, value);
    }

    /// Calls a function in place of 64-bit writes from now on, with offset and value of each.
    pub fn script(&self, script: impl Fn(&Self, u64, u64) + Send + Sync + 'static) {
        *lock(&self.script) = Arc::new(script);
    }

    /// Leaves the bus.
    pub fn leave(&self) {
        self.state().gone = true;
    }

    /// Leaves the bus behind so many accesses to its registers; `None` not at all.
    pub fn leave_after(&self, accesses: Option<u32>) {
        self.state().accesses = accesses;
    }

    /// Whether it has left the bus.
    pub fn has_left(&self) -> bool {
        self.state().gone
    }

    /// Resets the function, behind its driver's back.
    pub fn reset(&self) {
        let engine = xdma::engine(Direction::HostToCard, 0) | xdma::ENGINE_CONTROL;
        self.card.write32(Bar::Xdma, engine, 0);
        self.card.write32(Bar::Static, static_layer::PR_EOST_RESET, 0);
        self.settle();
    }

    /// Records frames when it is asked to, as the software card beneath it does.
    pub fn record_frames(&self) {
        self.state().records = true;
    }

    /// Asks for the card back, as the kernel does.
    pub fn want_back(&self) {
        self.wanted_back.signal().unwrap();
    }

    /// Finds that the memory of a process at an address does not answer, and tells balboad.
    pub fn give_up_memory_at(&self, address: u64) {
        let state = self.state();
        let process = state.mappings.values().find_map(|(_, memory)| match memory {
            DmaMemory::Process { process, address: its } if *its == address => Some(process),
            _ => None,
        });
        process.expect("memory of a process").give_up();
        signal(self.given_up());
    }

    /// Makes it a card whose clients map their memory themselves, in pieces of so many bytes.
    pub fn set_piece(&self, bytes: u64) {
        self.state().piece = Some(bytes);
    }

    /// Maps and grants so often, and not once more; `None` as often as it is asked.
    pub fn fail_after(&self, takings: Option<u32>) {
        self.state().takings = takings;
    }

    /// Keeps the writes that clear events on their way, as posted writes may be.
    pub fn hold_clears(&self) {
        self.state().clears = Some(Vec::new());
    }

    /// Lets the clears on their way arrive.
    pub fn let_clears_arrive(&self) {
        self.push_clears(&mut self.state());
    }

    fn push_clears(&self, state: &mut State) {
        let clear = IsrWrite { clear_pending: true, ..IsrWrite::default() };
        for index in state.clears.as_mut().map(std::mem::take).unwrap_or_default() {
            self.write(isr(index), clear.encode());
        }
    }

    /// Reports a page fault.
    pub fn fault(&self, index: u8, write: bool, vaddr: u64, length: u32) {
        self.card.handle.report(index, Unfounded::PageFault { write, vaddr, length });
    }

    /// Raises an event in the name of an engine.
    pub fn raise(&self, index: u8, event: Event) {
        self.raise_in(index, 0, event);
    }

    /// The same in an event ring of that number.
    pub fn raise_in(&self, index: u8, ring: u8, event: Event) {
        self.card.handle.report(index, Unfounded::Event(ring, event));
    }

    /// Signals the vector of a vFPGA, whether it reports anything or not.
    pub fn signal(&self, index: u16) {
        signal(self.vector(index));
    }

    /// The last value written to a register.
    pub fn written(&self, bar: Bar, offset: u64) -> u64 {
        let here = |(its, at, _): &&(Bar, u64, u64)| (*its, *at) == (bar, offset);
        self.state().writes.iter().rev().find(here).map_or(0, |(.., value)| *value)
    }

    /// Takes the values written to the shell's registers, by offset.
    pub fn take_writes(&self) -> Vec<(u64, u64)> {
        let state = &mut *self.state();
        let new = state.writes[state.taken..].iter().filter(|(bar, ..)| *bar == Bar::Shell);
        state.taken = state.writes.len();
        new.map(|&(_, offset, value)| (offset, value)).collect()
    }

    /// Refuses resets by its driver from now on.
    pub fn refuse_resets(&self) {
        self.state().stays = true;
    }

    /// Takes how often its driver has reset it.
    pub fn take_resets(&self) -> u32 {
        std::mem::take(&mut self.state().resets)
    }

    /// Takes the unmapped ranges, as first bytes and lengths.
    pub fn take_unmapped(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.state().unmapped)
    }

    /// Ranges mapped, with their lengths.
    pub fn mapped(&self) -> Vec<(u64, u64)> {
        self.state().mappings.iter().map(|(iova, (length, _))| (*iova, *length)).collect()
    }

    /// Pages granted.
    pub fn granted(&self) -> usize {
        self.state().pages.len()
    }

    /// Waits until all writes have arrived.
    fn settle(&self) {
        self.card.read32(Bar::Static, static_layer::PROBE);
    }

    fn write(&self, offset: u64, value: u64) {
        self.card.write64(Bar::Shell, offset, value);
        self.settle();
    }

    /// Passes a write to the shell's registers on.
    pub fn pass(&self, offset: u64, value: u64) {
        let State { windows, mappings, clears, .. } = &mut *self.state();
        let clears_event = IsrWrite::decode(value).clear_pending;
        let cleared = (0..WINDOWS).find(|index| offset == isr(*index) && clears_event);
        if let (Some(clears), Some(index)) = (clears, cleared) {
            return clears.push(index);
        }
        let Some((index, register)) = window_of(offset) else { return self.write(offset, value) };
        let window = &mut windows[index];
        match register {
            w::CONTROL if value == w::CONTROL_ENABLE => {
                window.start(&self.card, vfpga::user_csr(index as u64), mappings);
            }
            w::CONTROL => window.stop(),
            w::ADMIN_DOORBELL => window.pass_commands(value as u32),
            _ => {}
        }
        self.write(offset, value);
        window.pass_answers();
    }

    /// The value of a register that the test replaces.
    fn lie(&self, bar: Bar, offset: u64) -> Option<u64> {
        let state = &mut *self.state();
        if state.is_gone() {
            return Some(u64::MAX);
        }
        self.push_clears(state);
        state.windows.iter_mut().for_each(FakeWindow::pass_answers);
        state.lies.get(&(bar, offset)).copied()
    }
}

/// Signals an eventfd.
fn signal(fd: Option<BorrowedFd<'_>>) {
    nix::unistd::write(fd.unwrap(), &1u64.to_ne_bytes()).unwrap();
}

impl CardBackend for FakeCard {
    fn read32(&self, bar: Bar, offset: u64) -> u32 {
        let lie = self.lie(bar, offset);
        lie.map_or_else(|| self.card.read32(bar, offset), |lie| lie as u32)
    }

    fn write32(&self, bar: Bar, offset: u64, value: u32) {
        let mut state = self.state();
        state.writes.push((bar, offset, value.into()));
        if !state.is_gone() {
            self.card.write32(bar, offset, value);
        }
    }

    fn read64(&self, bar: Bar, offset: u64) -> u64 {
        self.lie(bar, offset).unwrap_or_else(|| self.card.read64(bar, offset))
    }

    fn write_wide(&self, offset: u64, words: [u64; 4]) {
        let mut state = self.state();
        for (at, word) in (offset..).step_by(8).zip(words) {
            state.writes.push((Bar::Shell, at, word));
        }
        if !state.is_gone() {
            self.card.write_wide(offset, words);
        }
    }

    fn write64(&self, bar: Bar, offset: u64, value: u64) {
        let mut state = self.state();
        state.writes.push((bar, offset, value));
        let gone = state.is_gone();
        drop(state);
        let script = Arc::clone(&lock(&self.script));
        if !gone {
            script(self, offset, value);
        }
    }

    fn read_config(&self, offset: u16) -> u16 {
        let lie = self.state().config_lies.get(&offset).copied();
        lie.unwrap_or_else(|| self.card.read_config(offset))
    }

    fn write_config(&self, offset: u16, value: u16) {
        self.card.write_config(offset, value);
    }

    fn vector(&self, vector: u16) -> Option<BorrowedFd<'_>> {
        self.card.vector(vector)
    }

    fn wanted_back(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wanted_back.as_fd())
    }

    fn given_up(&self) -> Option<BorrowedFd<'_>> {
        self.card.given_up()
    }

    fn dma_map(&self, iova: u64, length: u64, memory: DmaMemory) -> Result<(), Error> {
        let mut state = self.state();
        state.take()?;
        if state.piece.is_some() && matches!(memory, DmaMemory::Process { .. }) {
            return Ok(());
        }
        self.card.dma_map(iova, length, memory.clone())?;
        state.mappings.insert(iova, (length, memory));
        Ok(())
    }

    fn dma_unmap(&self, iova: u64, length: u64) -> Result<(), Error> {
        let mut state = self.state();
        state.unmapped.push((iova, length));
        state.mappings.retain(|start, (bytes, _)| {
            let inside = (iova..iova + length).contains(start);
            assert!(!inside || start + *bytes <= iova + length, "{start:#x} lies across the edge");
            !inside
        });
        self.card.dma_unmap(iova, length)
    }

    fn iova_ranges(&self) -> Result<Vec<(u64, u64)>, Error> {
        self.card.iova_ranges()
    }

    fn dma_piece(&self) -> u64 {
        self.state().piece.unwrap_or(u64::MAX)
    }

    fn grant_kind(&self) -> GrantKind {
        self.state().piece.map_or(GrantKind::Page, |_| GrantKind::Device)
    }

    fn grant_page(&self, window: u8, page: u8) -> Result<DoorbellGrant, Error> {
        let mut state = self.state();
        state.take()?;
        let grant = self.card.grant_page(window, page)?;
        state.pages.insert((window, page));
        Ok(grant)
    }

    fn revoke_page(&self, window: u8, page: u8) {
        assert!(self.state().pages.remove(&(window, page)), "never granted");
        self.card.revoke_page(window, page);
    }

    fn reset(&self) -> Result<(), Error> {
        self.state().resets += 1;
        if self.state().stays {
            return Err(Error::Backend("the function cannot be reset".into()));
        }
        Self::reset(self);
        Ok(())
    }

    fn record(&self, filter: WatchFilter, reader: UnixStream) -> Result<(), Error> {
        if self.state().records {
            return self.card.record(filter, reader);
        }
        Err(Error::NoRecord("it is a card behind VFIO".into()))
    }

    fn end_record(&self) {
        self.card.end_record();
    }

    fn identity(&self) -> Identity {
        self.card.identity()
    }

    fn activity(&self) -> Option<u64> {
        let moved = self.state().moved;
        self.card.activity().map(|activity| activity.wrapping_add(moved))
    }

    fn qos(&self) -> Result<Qos, Error> {
        self.card.qos()
    }

    fn set_qos(&self, qos: Qos) -> Result<(), Error> {
        self.card.set_qos(qos)
    }

    fn port_counters(&self) -> Vec<(&'static str, u64)> {
        self.card.port_counters()
    }
}
