//! A card for tests: registers in tables, and engines that keep count of their objects.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard};

use fpga_regs::Block;
use fpga_regs::coyote::pci::{self, Bar};
use fpga_regs::coyote::shell::{self, CTRL_CNFG_DEFAULT, CtrlCnfg, Map, MemCnfg, NetworkCnfg};
use fpga_regs::coyote::static_layer;
use fpga_regs::coyote::vfpga::{self, Bank, EventKind, IsrPid, IsrRead, IsrWrite};
use fpga_regs::coyote::xdma::{self, Direction, EngineIdentifier};
use fpga_regs::engine::admin::{
    AdminStatus, COUNTERS, Completion, Destroy, Header, ModifyQp, Opcode, PortAttributes,
};
use fpga_regs::engine::cqe::expected_phase;
use fpga_regs::engine::event::Event;
use fpga_regs::engine::qp::{Attributes, QpState, QpType};
use fpga_regs::engine::transition;
use fpga_regs::engine::window as w;
use hostmem::{DmaMemory, EventFd, SharedMapping, memfd};

use crate::backend::{CardBackend, DoorbellGrant, GrantKind, Identity, WakeGrant};
use crate::error::Error;
use crate::lock::lock;

/// Where the fake's Device Control stands.
pub const EXPRESS_CONTROL: u16 = 0x60 + pci::EXPRESS_DEVICE_CONTROL;
/// A word of configuration space that, set to 1, keeps Device Control as it is.
pub const STUBBORN: u16 = 0xff0;

/// A card in memory.
pub struct FakeCard {
    state: Mutex<State>,
    vectors: Vec<EventFd>,
    wanted_back: EventFd,
    given_up: EventFd,
    behind_commands: Mutex<Box<dyn FnMut() + Send>>,
}

#[derive(Default)]
struct State {
    registers: HashMap<(u8, u64), u64>,
    windows: Vec<FakeWindow>,
    mappings: BTreeMap<u64, (u64, DmaMemory)>,
    pages: BTreeSet<(u8, u8)>,
    /// Clears of events by vFPGA that are on their way up to the next read; `None` where each
    /// arrives at once.
    clears: Option<Vec<u64>>,
    /// Configuration space, by 16-bit word.
    config: HashMap<u16, u16>,
    /// Events of each vFPGA, the first of them reported.
    events: HashMap<u64, VecDeque<IsrRead>>,
    /// Whether the ends of invalidations are reported.
    mute: bool,
    /// Entries written to TLB windows, by vFPGA, in order.
    entries: Vec<(u64, [u64; 2])>,
    /// Answers to events, by vFPGA, in order.
    answers: Vec<(u64, IsrWrite)>,
    /// The register behind whose next write a fault is reported, and where the fault is.
    ambush: Option<(u64, u64)>,
    /// First bytes of the pages invalidated, with the process named, in order.
    invalidated: Vec<(u64, u32)>,
    /// Clients map their memory themselves, in pieces of so many bytes.
    piece: Option<u64>,
    /// What was unmapped, in order.
    unmapped: Vec<(u64, u64)>,
    /// How many mappings and grants there may be yet; `None` where there is no end to them.
    takings: Option<u32>,
}

/// What a test sees and sets of an engine.
#[derive(Default)]
pub struct FakeWindow {
    /// Answers nothing.
    pub silent: bool,
    /// How many completions of other commands come before each answer.
    pub babble: u32,
    /// Answers nothing, and reads all ones.
    pub gone: bool,
    /// Does not reset.
    pub stuck: bool,
    /// Refuses these.
    pub refuse: HashMap<Opcode, AdminStatus>,
    /// Commands executed, with the number they named or made.
    pub log: Vec<(Opcode, u32)>,
    /// Objects that live, with their kind.
    pub live: BTreeSet<(Opcode, u32)>,
    /// QPs and their states.
    pub qps: BTreeMap<u32, QpState>,
    /// The next object's number.
    pub next: u32,
    status: u64,
    registers: HashMap<u64, u64>,
    sq: u32,
    cq: u32,
    events: u32,
}

impl FakeCard {
    /// A healthy card with `windows` engines.
    pub fn new(windows: u8) -> Self {
        let mut state = State::default();
        let mut set = |bar: Bar, offset, value| {
            state.registers.insert((bar.number(), offset), value);
        };
        set(Bar::Static, static_layer::PROBE, u64::from(static_layer::PROBE_VALUE));
        set(Bar::Shell, shell::PROBE, u64::from(static_layer::PROBE_VALUE));
        set(Bar::Shell, shell::N_CHAN, xdma::CHANNELS);
        set(Bar::Shell, shell::N_REGIONS, u64::from(windows));
        set(Bar::Shell, shell::CTRL_CNFG, CTRL_CNFG_DEFAULT.encode());
        let memory = MemCnfg { host_streams: true, ..MemCnfg::default() };
        set(Bar::Shell, shell::MEM_CNFG, memory.encode());
        let rdma = NetworkCnfg { enabled: true, port: 0 };
        set(Bar::Shell, shell::RDMA_CNFG.at(Map::Since2026), rdma.encode());
        for direction in [Direction::HostToCard, Direction::CardToHost] {
            for channel in 0..xdma::CHANNELS {
                let identifier = xdma::identifier(direction);
                let id = EngineIdentifier { channel: channel as u8, identifier };
                set(Bar::Xdma, xdma::engine(direction, channel), id.encode().into());
            }
        }
        for index in 0..u64::from(windows) {
            let csr = vfpga::user_csr(index);
            set(Bar::Shell, csr + w::MAGIC, w::MAGIC_VALUE);
            set(Bar::Shell, csr + w::VERSION, 1 << 32 | u64::from(w::VERSION_MAJOR) << 16);
            set(Bar::Shell, csr + w::LIMIT_QP_CQ, 64 | 64 << 32);
            set(Bar::Shell, csr + w::LIMIT_KEY_RQ, 64 | 64 << 32);
            set(Bar::Shell, csr + w::LIMIT_QUEUES, 22 | 15 << 8 | 14 << 16 | 16 << 24);
            set(Bar::Shell, csr + w::LIMIT_PORT, 1 << 30 | 16 << 32);
        }
        state.windows =
            (0..windows).map(|_| FakeWindow { next: 2, ..Default::default() }).collect();
        state.config.extend([
            (pci::CONFIG_VENDOR, pci::VENDOR_ID),
            (pci::CONFIG_DEVICE, pci::DEVICE_ID),
            (pci::CONFIG_CAPABILITIES, 0x40),
            (0x40, 0x6001),
            (0x60, u16::from(pci::CAPABILITY_PCI_EXPRESS)),
            (EXPRESS_CONTROL, 0x0810 | pci::DEVICE_CONTROL_RELAXED_ORDERING),
        ]);
        let vectors = (0..windows).map(|_| EventFd::new().unwrap()).collect();
        let wanted_back = EventFd::new().unwrap();
        let behind_commands = Mutex::new(Box::new(|| {}) as Box<dyn FnMut() + Send>);
        let given_up = EventFd::new().unwrap();
        Self { state: Mutex::new(state), vectors, wanted_back, given_up, behind_commands }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
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
        self.given_up.signal().unwrap();
    }

    /// Resets the function, behind its driver's back.
    pub fn reset(&self) {
        self.set(Bar::Xdma, xdma::engine(Direction::HostToCard, 0) | xdma::ENGINE_CONTROL, 0);
        for window in &mut self.state().windows {
            let next = window.next;
            *window = FakeWindow { next, ..FakeWindow::default() };
        }
    }

    /// Sets what a register reads.
    pub fn set(&self, bar: Bar, offset: u64, value: u64) {
        self.state().registers.insert((bar.number(), offset), value);
    }

    /// Sets a word of configuration space.
    pub fn set_config(&self, offset: u16, value: u16) {
        self.state().config.insert(offset, value);
    }

    /// Keeps the ends of invalidations to itself.
    pub fn mute(&self) {
        self.state().mute = true;
    }

    /// Reports them again; those of before are lost.
    pub fn unmute(&self) {
        self.state().mute = false;
    }

    /// Does something behind every command that is executed.
    pub fn behind_commands(&self, act: impl FnMut() + Send + 'static) {
        *lock(&self.behind_commands) = Box::new(act);
    }

    /// Where the control registers of a vFPGA are.
    fn cnfg(&self, index: u64) -> u64 {
        self.state().bank().cnfg(index)
    }

    /// Reports a page fault.
    pub fn fault(&self, index: u64, write: bool, vaddr: u64, length: u32) {
        let cnfg = self.cnfg(index);
        self.set(Bar::Shell, cnfg + vfpga::ISR_VADDR, vaddr);
        self.set(Bar::Shell, cnfg + vfpga::ISR_LEN, length.into());
        let event = IsrRead { kind: EventKind::PageFault, write, ..IsrRead::default() };
        self.report(&mut self.state(), index, event);
    }

    /// Reports a fault of a read at `vaddr` by vFPGA 0 behind the next write of its control register
    /// at `register`.
    pub fn fault_behind(&self, register: u64, vaddr: u64) {
        let offset = self.cnfg(0) + register;
        self.state().ambush = Some((offset, vaddr));
    }

    /// Takes the pages that were invalidated, each with the process named.
    pub fn take_invalidated(&self) -> Vec<(u64, u32)> {
        std::mem::take(&mut self.state().invalidated)
    }

    /// Is a card whose clients map their memory themselves, in pieces of so many bytes.
    pub fn set_piece(&self, bytes: u64) {
        self.state().piece = Some(bytes);
    }

    /// Takes what was unmapped, first bytes and lengths.
    pub fn take_unmapped(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.state().unmapped)
    }

    /// Maps and grants so often, and not once more; `None` as often as it is asked.
    pub fn fail_after(&self, takings: Option<u32>) {
        self.state().takings = takings;
    }

    /// Signals the vector of a vFPGA, whether it reports anything or not.
    pub fn signal(&self, index: usize) {
        self.vectors[index].signal().unwrap();
    }

    /// Reports that an engine has something to say.
    pub fn notify(&self, index: u64) {
        self.report_notify(&mut self.state(), index);
    }

    /// One that waits behind what is reported stands for later ones.
    fn report_notify(&self, state: &mut State, index: u64) {
        let event = IsrRead { kind: EventKind::Notify, ..IsrRead::default() };
        if !state.events.entry(index).or_default().iter().skip(1).any(|it| *it == event) {
            self.report(state, index, event);
        }
    }

    fn report(&self, state: &mut State, index: u64, event: IsrRead) {
        let events = state.events.entry(index).or_default();
        events.push_back(event);
        if events.len() == 1 {
            self.signal(index as usize);
        }
    }

    fn push_clears(&self, state: &mut State) {
        for index in state.clears.as_mut().map(std::mem::take).unwrap_or_default() {
            self.clear(state, index);
        }
    }

    /// Takes the reported event back, and reports the next.
    fn clear(&self, state: &mut State, index: u64) {
        let events = state.events.entry(index).or_default();
        events.pop_front();
        if !events.is_empty() {
            self.signal(index as usize);
        }
    }

    /// Whether a vFPGA has no event that was not taken back.
    pub fn is_quiet(&self, index: u64) -> bool {
        self.state().events.get(&index).is_none_or(VecDeque::is_empty)
    }

    /// Takes what was written to the TLB windows.
    pub fn take_entries(&self) -> Vec<(u64, [u64; 2])> {
        std::mem::take(&mut self.state().entries)
    }

    /// Takes what was answered to events, locks aside.
    pub fn take_answers(&self) -> Vec<(u64, IsrWrite)> {
        std::mem::take(&mut self.state().answers)
    }

    fn write_register(&self, bar: Bar, offset: u64, value: u64) {
        let mut state = self.state();
        let bank = state.bank();
        for index in (0..vfpga::MAX_VFPGAS).filter(|_| bar == Bar::Shell) {
            if offset == bank.cnfg(index) + vfpga::ISR {
                return self.write_isr(&mut state, index, IsrWrite::decode(value));
            }
            let window = vfpga::large_tlb(index);
            if offset == window + vfpga::TLB_WORD_1 {
                let first = (bar.number(), window + vfpga::TLB_WORD_0);
                let first = state.registers.get(&first).copied().unwrap_or(0);
                state.entries.push((index, [first, value]));
            }
        }
        let State { registers, windows, mappings, .. } = &mut *state;
        match csr(offset, windows.len()) {
            Some((index, register)) => {
                windows[index].write(mappings, register, value);
                if register == w::ADMIN_DOORBELL && !windows[index].gone {
                    self.report_notify(&mut state, index as u64);
                }
            }
            None => {
                registers.insert((bar.number(), offset), value);
            }
        }
    }

    fn write_isr(&self, state: &mut State, index: u64, isr: IsrWrite) {
        if isr.clear_pending {
            match &mut state.clears {
                Some(clears) => clears.push(index),
                None => self.clear(state, index),
            }
        }
        if !isr.lock && isr != (IsrWrite { clear_pending: true, ..IsrWrite::default() }) {
            state.answers.push((index, isr));
        }
        if !isr.lock && isr.invalidate {
            let read = |register| {
                let key = (Bar::Shell.number(), state.bank().cnfg(index) + register);
                state.registers.get(&key).copied().unwrap_or(0)
            };
            let hpid = IsrPid::decode(read(vfpga::ISR_PID)).hpid;
            let page = read(vfpga::ISR_VADDR);
            state.invalidated.push((page, hpid));
        }
        if !isr.lock && isr.invalidate_last && !state.mute {
            let event = IsrRead { kind: EventKind::Invalidated, ..IsrRead::default() };
            self.report(state, index, event);
        }
    }

    /// What was last written to a register.
    pub fn get(&self, bar: Bar, offset: u64) -> u64 {
        self.state().registers.get(&(bar.number(), offset)).copied().unwrap_or(0)
    }

    /// Looks at or changes an engine.
    pub fn window<T>(&self, index: usize, act: impl FnOnce(&mut FakeWindow) -> T) -> T {
        act(&mut self.state().windows[index])
    }

    /// Ranges mapped, with their lengths.
    pub fn mapped(&self) -> Vec<(u64, u64)> {
        self.state().mappings.iter().map(|(iova, (length, _))| (*iova, *length)).collect()
    }

    /// Keeps the writes that clear events on their way, as posted writes may be.
    pub fn hold_clears(&self) {
        self.state().clears = Some(Vec::new());
    }

    /// Lets those arrive that are on their way.
    pub fn let_clears_arrive(&self) {
        self.push_clears(&mut self.state());
    }

    /// Pages granted.
    pub fn granted(&self) -> usize {
        self.state().pages.len()
    }

    /// Raises an event as an engine does; a full ring sets the overflow bit.
    pub fn raise(&self, index: usize, event: Event) {
        let mut state = self.state();
        let State { windows, mappings, .. } = &mut *state;
        windows[index].raise(mappings, event);
        self.report_notify(&mut state, index as u64);
    }
}

impl State {
    /// Takes one of the mappings and grants that there may be yet.
    fn take(&mut self) -> Result<(), Error> {
        let Some(takings) = &mut self.takings else { return Ok(()) };
        *takings = takings.checked_sub(1).ok_or(Error::Backend("there is no more".into()))?;
        Ok(())
    }

    /// Where the shell has the control registers of its vFPGAs.
    fn bank(&self) -> Bank {
        let ctrl_cnfg = self.registers.get(&(Bar::Shell.number(), shell::CTRL_CNFG));
        Bank::of(CtrlCnfg::decode(ctrl_cnfg.copied().unwrap_or(0)))
    }
}

fn locate(mappings: &BTreeMap<u64, (u64, DmaMemory)>, iova: u64) -> (Arc<SharedMapping>, usize) {
    let (start, (length, memory)) = mappings.range(..=iova).next_back().expect("mapped memory");
    assert!(iova < start + length, "{iova:#x} is not mapped");
    match memory {
        DmaMemory::Shared { mapping, offset } => {
            (Arc::clone(mapping), (offset + iova - start) as usize)
        }
        DmaMemory::Process { .. } => panic!("{iova:#x} is a process's memory"),
    }
}

fn store_block(mappings: &BTreeMap<u64, (u64, DmaMemory)>, iova: u64, block: Block) {
    let (mapping, at) = locate(mappings, iova);
    for (i, word) in block.into_iter().enumerate() {
        mapping.store_release_u64(at + i * 8, word).unwrap();
    }
}

impl FakeWindow {
    fn register(&self, offset: u64) -> u64 {
        self.registers.get(&offset).copied().unwrap_or(0)
    }

    fn raise(&mut self, mappings: &BTreeMap<u64, (u64, DmaMemory)>, mut event: Event) {
        let log2 = self.register(w::EVENT_SIZE) as u8;
        let free = self.register(w::EVENT_CONSUMER) + (1 << log2) - u64::from(self.events);
        if free == 0 {
            self.status |= w::STATUS_EVENT_OVERFLOW;
            return;
        }
        event.phase = u8::from(expected_phase(self.events, log2));
        let at = u64::from(self.events) % (1 << log2) * 64;
        let [block] = event.encode();
        store_block(mappings, self.register(w::EVENT_BASE) + at, block);
        self.events += 1;
    }

    fn write(&mut self, mappings: &BTreeMap<u64, (u64, DmaMemory)>, offset: u64, value: u64) {
        self.registers.insert(offset, value);
        match offset {
            w::CONTROL if value == w::CONTROL_RESET => {
                if self.stuck {
                    self.status |= w::STATUS_FATAL;
                    return;
                }
                self.status = 0;
                (self.sq, self.cq, self.events) = (0, 0, 0);
                self.registers.clear();
                self.live.clear();
                self.qps.clear();
            }
            w::CONTROL => self.status = w::STATUS_ENABLED,
            w::EVENT_OVERFLOW_CLEAR => self.status &= !w::STATUS_EVENT_OVERFLOW,
            w::ADMIN_DOORBELL if !self.silent && !self.gone && self.status != 0 => {
                while self.sq != value as u32 {
                    self.command(mappings);
                }
            }
            _ => {}
        }
    }

    fn command(&mut self, mappings: &BTreeMap<u64, (u64, DmaMemory)>) {
        let blocks = 1 << self.register(w::ADMIN_SQ_SIZE);
        let read = |index: u32| -> Block {
            let at = self.register(w::ADMIN_SQ_BASE) + u64::from(index) % blocks * 64;
            let (mapping, at) = locate(mappings, at);
            std::array::from_fn(|i| mapping.load_acquire_u64(at + i * 8).unwrap())
        };
        let first = read(self.sq);
        let header = Header::decode(&[first]);
        let rest = [read(self.sq + 1), read(self.sq + 2)];
        self.sq += u32::from(header.blocks);
        let outcome = match self.refuse.get(&header.opcode) {
            Some(status) => Err(*status),
            None => self.execute(header, first, rest, mappings),
        };
        let (status, result) = match outcome {
            Ok(result) => (AdminStatus::Success, result),
            Err(status) => (status, 0),
        };
        let log2 = self.register(w::ADMIN_CQ_SIZE) as u8;
        let completion = Completion {
            tag: header.tag,
            opcode: header.opcode,
            status,
            result,
            generation: 7,
            phase: u8::from(expected_phase(self.cq, log2)),
        };
        let stray = Completion { tag: header.tag.wrapping_sub(1), ..completion };
        for _ in 0..self.babble {
            self.complete(mappings, stray, log2);
        }
        self.complete(mappings, completion, log2);
    }

    fn complete(
        &mut self,
        mappings: &BTreeMap<u64, (u64, DmaMemory)>,
        mut completion: Completion,
        log2: u8,
    ) {
        completion.phase = u8::from(expected_phase(self.cq, log2));
        let at = u64::from(self.cq) % (1 << log2) * 64;
        let [block] = completion.encode();
        store_block(mappings, self.register(w::ADMIN_CQ_BASE) + at, block);
        self.cq += 1;
    }

    fn execute(
        &mut self,
        header: Header,
        first: Block,
        rest: [Block; 2],
        mappings: &BTreeMap<u64, (u64, DmaMemory)>,
    ) -> Result<u32, AdminStatus> {
        let named = Destroy::decode(&[first]).number;
        let mut end = |kind, number| {
            self.live.remove(&(kind, number)).then_some(number).ok_or(AdminStatus::NotFound)
        };
        let mut answer = Vec::new();
        let result = match header.opcode {
            kind @ (Opcode::CreateCq | Opcode::CreateRq | Opcode::CreateQp | Opcode::CreateKey) => {
                let number = self.next;
                self.next += 1;
                self.live.insert((kind, number));
                if kind == Opcode::CreateQp {
                    self.qps.insert(number, QpState::Reset);
                }
                number
            }
            Opcode::DestroyCq => end(Opcode::CreateCq, named)?,
            Opcode::DestroyRq => end(Opcode::CreateRq, named)?,
            Opcode::DestroyQp => end(Opcode::CreateQp, named)?,
            Opcode::DestroyKey => end(Opcode::CreateKey, named)?,
            Opcode::ModifyQp => {
                let qpn = ModifyQp::decode(&[first]).qpn;
                let wanted = Attributes::decode(&rest);
                let state = self.qps.get_mut(&qpn).ok_or(AdminStatus::NotFound)?;
                *state = transition::check(QpType::Rc, *state, &wanted)?;
                qpn
            }
            Opcode::QueryQp => {
                let state = *self.qps.get(&named).ok_or(AdminStatus::NotFound)?;
                answer.extend(Attributes { state, dest_qpn: 99, ..Default::default() }.encode());
                named
            }
            Opcode::QueryPort => {
                let port =
                    PortAttributes { link_up: 1, max_mtu: 5, active_mtu: 3, ..Default::default() };
                answer.extend(port.encode());
                0
            }
            Opcode::QueryCounters => {
                let values: Vec<u64> = (1..=COUNTERS.len() as u64).collect();
                let blocks = values.chunks(8);
                answer.extend(blocks.map(|chunk| -> Block {
                    std::array::from_fn(|i| chunk.get(i).copied().unwrap_or(0))
                }));
                0
            }
            Opcode::SetGid => 0,
            _ => return Err(AdminStatus::Unsupported),
        };
        self.log.push((header.opcode, result));
        for (i, block) in answer.into_iter().enumerate() {
            store_block(mappings, header.response + i as u64 * 64, block);
        }
        Ok(result)
    }
}

/// Window and register of an offset in the shell BAR, where it lies in a user CSR window.
fn csr(offset: u64, windows: usize) -> Option<(usize, u64)> {
    (0..windows).find_map(|index| {
        let register = offset.checked_sub(vfpga::user_csr(index as u64))?;
        (register < w::WINDOW_BYTES).then_some((index, register))
    })
}

impl CardBackend for FakeCard {
    fn read32(&self, bar: Bar, offset: u64) -> u32 {
        self.get(bar, offset) as u32
    }

    fn write32(&self, bar: Bar, offset: u64, value: u32) {
        self.set(bar, offset, u64::from(value));
    }

    fn read_config(&self, offset: u16) -> u16 {
        self.state().config.get(&offset).copied().unwrap_or(0)
    }

    fn write_config(&self, offset: u16, value: u16) {
        let mut state = self.state();
        let stubborn = state.config.get(&STUBBORN) == Some(&1);
        if offset != EXPRESS_CONTROL || !stubborn {
            state.config.insert(offset, value);
        }
    }

    fn read64(&self, bar: Bar, offset: u64) -> u64 {
        let mut state = self.state();
        self.push_clears(&mut state);
        let bank = state.bank();
        let isr = (0..vfpga::MAX_VFPGAS).find(|i| offset == bank.cnfg(*i) + vfpga::ISR);
        if let (Bar::Shell, Some(index)) = (bar, isr) {
            let event = state.events.get(&index).and_then(VecDeque::front);
            return event.map_or(0, |event| event.encode());
        }
        match csr(offset, state.windows.len()) {
            Some((index, w::STATUS)) if state.windows[index].gone => u64::MAX,
            Some((index, w::STATUS)) => state.windows[index].status,
            _ => state.registers.get(&(bar.number(), offset)).copied().unwrap_or(0),
        }
    }

    fn write64(&self, bar: Bar, offset: u64, value: u64) {
        self.write_register(bar, offset, value);
        let command = csr(offset, self.vectors.len()).map(|(_, register)| register);
        if bar == Bar::Shell && command == Some(w::ADMIN_DOORBELL) {
            (lock(&self.behind_commands))();
        }
        let behind = |(register, _): &mut (u64, u64)| *register == offset;
        let ambush = self.state().ambush.take_if(behind);
        if let Some((_, vaddr)) = ambush {
            self.set(Bar::Shell, self.cnfg(0) + vfpga::ISR_PID, 0);
            self.fault(0, false, vaddr, 64);
        }
    }

    fn vector(&self, vector: u16) -> Option<BorrowedFd<'_>> {
        self.vectors.get(usize::from(vector)).map(AsFd::as_fd)
    }

    fn wanted_back(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wanted_back.as_fd())
    }

    fn given_up(&self) -> Option<BorrowedFd<'_>> {
        Some(self.given_up.as_fd())
    }

    fn dma_map(&self, iova: u64, length: u64, memory: DmaMemory) -> Result<(), Error> {
        let mut state = self.state();
        state.take()?;
        let before = state.mappings.range(..iova + length).next_back();
        assert!(before.is_none_or(|(start, (length, _))| start + length <= iova), "overlap");
        state.mappings.insert(iova, (length, memory));
        Ok(())
    }

    fn dma_unmap(&self, iova: u64, length: u64) -> Result<(), Error> {
        let end = iova + length;
        self.state().unmapped.push((iova, length));
        self.state().mappings.retain(|start, (length, _)| {
            let inside = *start >= iova && *start < end;
            assert!(!inside || start + *length <= end, "{start:#x} lies across the edge");
            !inside
        });
        Ok(())
    }

    fn iova_ranges(&self) -> Result<Vec<(u64, u64)>, Error> {
        Ok(vec![(0, (1 << 39) - 1)])
    }

    fn dma_piece(&self) -> u64 {
        self.state().piece.unwrap_or(u64::MAX)
    }

    fn grant_kind(&self) -> GrantKind {
        self.state().piece.map_or(GrantKind::Page, |_| GrantKind::Device)
    }

    fn grant_page(&self, window: u8, page: u8) -> Result<DoorbellGrant, Error> {
        self.state().take()?;
        assert!(self.state().pages.insert((window, page)), "granted twice");
        let wake = WakeGrant {
            eventfd: EventFd::new()?.into_fd(),
            thread_page: memfd::create("words", 4096)?,
            asleep: 0,
            liveness: 64,
            worked: 128,
        };
        Ok(DoorbellGrant::Page { page: memfd::create("page", 4096)?, wake })
    }

    fn revoke_page(&self, window: u8, page: u8) {
        assert!(self.state().pages.remove(&(window, page)), "never granted");
    }

    fn identity(&self) -> Identity {
        Identity {
            board: "fake".into(),
            location: "fake:00".into(),
            link: "none".into(),
            icrc_policy: None,
            interface: "none".into(),
        }
    }

    fn port_counters(&self) -> Vec<(&'static str, u64)> {
        vec![("port_frames", 5)]
    }
}
