//! Logic in RTL behind the shell's ports: it, the bus, and the driver's registers, in one clock.

use std::collections::VecDeque;
use std::task::Poll;

use fpga_regs::engine::window::{FAULT_REFUSED, FaultNotes, FaultRefused};

use crate::bus::{BEAT_BYTES, Beat, Bus, Config, Driven, Master, Port as HostPort};
use crate::bus::{Request, Violation};
use crate::ffi::{In, Library, LoadError, Logic, Out, PortIn, Table};
use crate::memory::{Direction, Memory, Reached};
use crate::port::{Passed, Port};
use crate::random::Random;

/// Cycles in which the reset is held.
const RESET: u32 = 4;

/// How often the driver looks whether its last note of a fault is used, at most.
const LOOKS: u32 = 10_000;

/// A write of a register, or the question for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Write { address: u16, value: u64, strobes: u8 },
    Read { address: u16 },
}

/// The other end of `axi_ctrl`.
#[derive(Debug)]
struct Control {
    /// How often of 256 times it takes no answer, and shows nothing new.
    lazy: u8,
    random: Random,
    /// Whether the address, and the data, of the first order are shown, which holds until they are taken.
    shows: [bool; 2],
    /// What the logic answered in the last cycle and was not taken: that something was written, what was read.
    held: (bool, Option<u64>),
}

impl Control {
    fn goes_on(&mut self) -> bool {
        !self.random.chance(self.lazy)
    }

    /// Takes note of the answers of a cycle; `false` where one that was held is not shown any more.
    fn holds(&mut self, shell: &In, out: &Out) -> bool {
        let shown = (out.bvalid != 0, (out.rvalid != 0).then_some(out.rdata));
        let is_kept =
            (!self.held.0 || shown.0) && (self.held.1.is_none() || self.held.1 == shown.1);
        self.held = (shown.0 && shell.bready == 0, shown.1.filter(|_| shell.rready == 0));
        is_kept
    }
}

/// Who gives an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Giver {
    /// Who has the card.
    Caller,
    /// The part of a driver that refuses faults.
    Driver,
}

/// The part of a driver that tells the logic of faults before it refuses them, one after the other.
#[derive(Debug, Default)]
struct Driver {
    refusal: Option<Refusal>,
    orders: VecDeque<Order>,
}

#[derive(Debug)]
struct Refusal {
    direction: Direction,
    address: u64,
    step: Step,
}

#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// It waits until the last note of the direction is used, and has looked so often.
    Looks(u32),
    /// It reads behind the note.
    Tells,
    Told,
}

impl Driver {
    fn refuse(&mut self, direction: Direction, address: u64) -> Poll<()> {
        match &self.refusal {
            None => {
                self.refusal = Some(Refusal { direction, address, step: Step::Looks(0) });
                self.look();
                Poll::Pending
            }
            Some(it)
                if (it.direction, it.address) == (direction, address) && it.step == Step::Told =>
            {
                self.refusal = None;
                Poll::Ready(())
            }
            Some(_) => Poll::Pending,
        }
    }

    fn look(&mut self) {
        self.orders.push_back(Order::Read { address: FAULT_REFUSED as u16 });
    }

    /// The register was read.
    fn take(&mut self, value: u64) {
        let Some(refusal) = &mut self.refusal else { return };
        let is_write = refusal.direction == Direction::Write;
        match &mut refusal.step {
            Step::Looks(looks) if *looks < LOOKS && FaultNotes::decode(value).has(is_write) => {
                *looks += 1;
            }
            Step::Looks(_) => {
                refusal.step = Step::Tells;
                let value = FaultRefused { address: refusal.address, is_write }.encode();
                let address = FAULT_REFUSED as u16;
                self.orders.push_back(Order::Write { address, value, strobes: u8::MAX });
            }
            Step::Tells | Step::Told => {
                refusal.step = Step::Told;
                return;
            }
        }
        self.look();
    }
}

/// Logic in RTL, in a vFPGA whose clock stands until [`Vfpga::cycle`].
#[derive(Debug)]
pub struct Vfpga {
    logic: Logic,
    bus: Bus,
    /// Cycles that the reset is still held.
    reset: u32,
    orders: VecDeque<Order>,
    control: Control,
    driver: Driver,
    /// The order that is shown, or was taken.
    given: Option<(Order, Giver)>,
    /// Whether its address and data were taken, and its answer is awaited.
    asked: bool,
    answer: Option<u64>,
    /// The other end of its port N, if it has one.
    port: Port,
    /// Whether the logic was quiet in the last cycle, in which nothing came to it.
    quiet: bool,
    /// Faults that the driver refused.
    pub faults: u64,
    /// What decides all that is random.
    pub seed: u64,
}

impl Vfpga {
    /// Logic of a library, behind a bus, in reset. The bus's seed decides what its registers hold before that, too.
    ///
    /// # Errors
    /// [`LoadError::Memory`].
    pub fn new(library: &Library, config: Config) -> Result<Self, LoadError> {
        let logic = library.make(config.seed)?;
        let orders = VecDeque::new();
        // The transport is as unsteady as the bus.
        let port = Port::new(config.seed, config.stalls);
        let random = Random::new(config.seed ^ 0xa1c7);
        let control = Control { lazy: 0, random, shows: [false; 2], held: (false, None) };
        let seed = config.seed;
        let bus = Bus::new(config);
        Ok(Self {
            logic,
            bus,
            reset: RESET,
            orders,
            control,
            driver: Driver::default(),
            given: None,
            asked: false,
            answer: None,
            port,
            quiet: false,
            faults: 0,
            seed,
        })
    }

    /// The bus.
    pub fn bus(&mut self) -> &mut Bus {
        &mut self.bus
    }

    /// The other end of its port N.
    pub fn port(&mut self) -> &mut Port {
        &mut self.port
    }

    /// Makes the driver's end of the registers unsteady: so often of 256 times it takes no answer, and shows nothing new.
    pub fn be_lazy(&mut self, lazy: u8) {
        self.control.lazy = lazy;
    }

    /// Flips a bit of all that the logic has in a table.
    pub fn flip(&mut self, table: Table, bit: u32) {
        self.logic.flip(table, bit);
    }

    /// What passed since the last call; from the first on it is noted.
    pub fn take_passed(&mut self) -> Vec<Passed> {
        self.port.passed.replace(Vec::new()).unwrap_or_default()
    }

    /// The number of this cycle.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.bus.now()
    }

    /// Whether orders wait to be given.
    #[must_use]
    pub fn has_orders(&self) -> bool {
        !self.orders.is_empty() || self.given.is_some()
    }

    /// Whether nothing is under way in the logic and around it: until something comes, each cycle is as the last.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.quiet && self.comes_nothing()
    }

    /// Whether nothing comes to the logic in the next cycle.
    fn comes_nothing(&self) -> bool {
        let is_told_nothing = !self.has_orders() && self.driver.orders.is_empty();
        self.reset == 0 && is_told_nothing && self.port.is_quiet() && self.bus.is_quiet()
    }

    /// Resets the logic, which the shell takes off the bus meanwhile.
    pub fn reset(&mut self) {
        self.reset = RESET;
        self.bus.decouple(true);
        self.port.forget();
        self.quiet = false;
        self.orders.clear();
        self.driver = Driver::default();
        self.given = None;
        self.asked = false;
        (self.control.shows, self.control.held) = ([false; 2], (false, None));
        self.answer = None;
    }

    /// Writes a register, behind all orders of before.
    pub fn write(&mut self, address: u16, value: u64) {
        self.write_bytes(address, value, 0xff);
    }

    /// The same of the bytes of a register whose strobes are set.
    pub fn write_bytes(&mut self, address: u16, value: u64, strobes: u8) {
        self.orders.push_back(Order::Write { address, value, strobes });
    }

    /// Asks for a register, behind all orders of before; [`Vfpga::take_answer`] has it some cycles later.
    pub fn ask(&mut self, address: u16) {
        self.orders.push_back(Order::Read { address });
    }

    /// The value of a register that was asked for.
    pub fn take_answer(&mut self) -> Option<u64> {
        self.answer.take()
    }

    /// Lets one cycle pass.
    ///
    /// # Errors
    /// Where the logic breaks a rule of the ports.
    pub fn cycle(&mut self, memory: &mut impl Memory) -> Result<(), Violation> {
        let cycle = self.bus.now();
        let came_nothing = self.comes_nothing();
        let was_quiet = self.quiet && came_nothing;
        let driven = *self.bus.driven();
        let mut shell = wires_of(&driven);
        shell.rst_n = u8::from(self.reset == 0);
        if self.reset == 0 {
            self.order(&mut shell);
        }
        let port = match self.reset {
            0 => self.port.drive(),
            _ => PortIn::default(),
        };
        self.logic.drive_port(&port);
        let out = self.logic.settle(&shell);
        let port_out = self.logic.read_port();
        // Where something comes, the logic shows from the next cycle on that it has work.
        self.quiet = port_out.engine_quiet != 0 && came_nothing;
        let master = match self.reset {
            0 => master_of(&out),
            _ => Master::default(),
        };
        let (driver, passed) = (&mut self.driver, &mut self.port.passed);
        self.bus.clock(&master, &mut Watched { memory, driver, passed })?;
        while self.bus.take_fault().is_some() {
            self.faults += 1;
        }
        self.logic.clock();
        if self.reset == 0 {
            self.port.went_on(cycle, &port, &port_out)?;
            if !self.control.holds(&shell, &out) {
                return Err(Violation::Unstable { cycle, port: HostPort::Control });
            }
            self.went_on(&shell, &out);
        } else {
            self.reset -= 1;
            if self.reset == 0 {
                self.bus.decouple(false);
            }
        }
        match was_quiet && !self.is_quiet() {
            true => Err(Violation::Woke { cycle }),
            false => Ok(()),
        }
    }

    /// Shows the oldest order; those of the driver come between.
    fn order(&mut self, shell: &mut In) {
        shell.bready = self.control.goes_on().into();
        shell.rready = self.control.goes_on().into();
        if self.given.is_none() {
            let own = self.driver.orders.pop_front().map(|order| (order, Giver::Driver));
            self.given = own.or_else(|| Some((self.orders.pop_front()?, Giver::Caller)));
        }
        let Some((order, _)) = self.given.filter(|_| !self.asked) else { return };
        for place in 0..2 {
            self.control.shows[place] |= self.control.goes_on();
        }
        let [address_valid, data_valid] = self.control.shows.map(u8::from);
        match order {
            Order::Write { address, value, strobes } => {
                (shell.awvalid, shell.wvalid) = (address_valid, data_valid);
                (shell.awaddr, shell.wdata, shell.wstrb) = (address, value, strobes);
            }
            Order::Read { address } => {
                (shell.araddr, shell.arvalid) = (address, address_valid);
            }
        }
    }

    fn went_on(&mut self, shell: &In, out: &Out) {
        let Some((order, giver)) = self.given else { return };
        // Logic takes an address and its data together.
        let written = shell.awvalid != 0 && out.awready != 0 && out.wready != 0;
        if written || (shell.arvalid != 0 && out.arready != 0) {
            self.asked = true;
            self.control.shows = [false; 2];
            // Logic may act on it before it says that it was written.
            if let (Order::Write { address, value, strobes: u8::MAX }, Some(passed)) =
                (order, &mut self.port.passed)
            {
                passed.push(Passed::Register { offset: address, value });
            }
        }
        let is_read = out.rvalid != 0 && shell.rready != 0;
        if self.asked && (is_read || (out.bvalid != 0 && shell.bready != 0)) {
            match giver {
                Giver::Caller if is_read => self.answer = Some(out.rdata),
                Giver::Driver if is_read => self.driver.take(out.rdata),
                _ => {}
            }
            self.asked = false;
            self.given = None;
        }
    }
}

/// Host memory with its driver, and the note of what passes.
struct Watched<'a, M> {
    memory: &'a mut M,
    driver: &'a mut Driver,
    passed: &'a mut Option<Vec<Passed>>,
}

impl<M: Memory> Memory for Watched<'_, M> {
    fn reaches(&mut self, direction: Direction, address: u64, length: u32) -> Poll<Reached> {
        self.memory.reaches(direction, address, length)
    }

    fn refuse(&mut self, direction: Direction, address: u64) -> Poll<()> {
        self.driver.refuse(direction, address)
    }

    fn read(&mut self, address: u64, into: &mut [u8]) -> Poll<()> {
        let read = self.memory.read(address, into);
        if let (Poll::Ready(()), Some(passed)) = (read, &mut self.passed) {
            passed.push(Passed::Read { address, length: into.len() });
        }
        read
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Poll<()> {
        let written = self.memory.write(address, bytes);
        if let (Poll::Ready(()), Some(passed)) = (written, &mut self.passed) {
            passed.push(Passed::Wrote { address, bytes: bytes.to_vec() });
        }
        written
    }
}

/// What the bus drives, on wires.
fn wires_of(driven: &Driven) -> In {
    let mut wires = In {
        sq_rd_ready: driven.read_ready.into(),
        sq_wr_ready: driven.write_ready.into(),
        send_ready: driven.data_ready[0].into(),
        notify_ready: driven.notify_ready.into(),
        ..In::default()
    };
    if let Some(done) = driven.read_done {
        (wires.cq_rd_valid, wires.cq_rd_stream) = (1, done.stream);
    }
    if let Some(done) = driven.write_done {
        (wires.cq_wr_valid, wires.cq_wr_stream) = (1, done.stream);
    }
    if let Some(beat) = driven.data[0] {
        wires.recv_valid = 1;
        wires.recv_last = beat.last.into();
        wires.recv_keep = keep_of(beat.bytes);
        wires.recv_data = beat.data;
    }
    wires
}

/// What the logic drives, off the wires.
fn master_of(out: &Out) -> Master {
    let request = |valid: u8, address, length, stream| {
        (valid != 0).then_some(Request { address, length, stream })
    };
    let mut master = Master {
        read: request(out.sq_rd_valid, out.sq_rd_address, out.sq_rd_length, out.sq_rd_stream),
        write: request(out.sq_wr_valid, out.sq_wr_address, out.sq_wr_length, out.sq_wr_stream),
        notify: (out.notify_valid != 0).then_some(out.notify),
        ..Master::default()
    };
    master.takes[0] = out.recv_ready != 0;
    if out.send_valid != 0 {
        // A gap in what is kept shows as a beat of another length than it must have.
        let bytes = (!out.send_keep).trailing_zeros();
        let whole = out.send_keep == keep_of(bytes as u8);
        let bytes = if whole { bytes as u8 } else { 0 };
        master.data[0] = Some(Beat { data: out.send_data, bytes, last: out.send_last != 0 });
    }
    master
}

/// The bytes that count in a beat.
fn keep_of(bytes: u8) -> u64 {
    match usize::from(bytes) {
        BEAT_BYTES.. => u64::MAX,
        bytes => (1 << bytes) - 1,
    }
}
