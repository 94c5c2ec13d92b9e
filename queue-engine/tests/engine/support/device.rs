//! The interface of queue engines that the tests need, for any implementation.
//!
//! A device has three sides: the registers and doorbell pages of its window, host memory that it reads and writes by
//! its own transfers ([`TestMemory`]), and the port at which a [`Transport`] takes its messages. Nobody sees its inside.
//! Its time goes on with [`Device::step`] alone.

use std::fmt;

use fpga_regs::engine::window::{Capabilities, LimitRate, Profile};
use queue_engine::{
    EngineConfig, Payload, Piece, ReceiveError, RemoteAccess, RemoteRange, TakenReceive, Transport,
    TransportEvent, Unreachable, XrcRequest,
};

use super::memory::{TestMemory, TestPage};

/// The full configuration of this crate's engine, for tests that ask for no other.
pub const FULL: EngineConfig = EngineConfig {
    window: 2,
    profile: Profile::Vqe,
    capabilities: Capabilities::RC
        .union(Capabilities::SEND)
        .union(Capabilities::WRITE)
        .union(Capabilities::READ)
        .union(Capabilities::IMMEDIATE)
        .union(Capabilities::SRQ)
        .union(Capabilities::RESIZE_CQ)
        .union(Capabilities::UD)
        .union(Capabilities::MULTICAST)
        .union(Capabilities::DEVICE_MEMORY)
        .union(Capabilities::MODERATION)
        .union(Capabilities::NULL_MR)
        .union(Capabilities::RATE_LIMIT)
        .union(Capabilities::INVALIDATE)
        .union(Capabilities::MEMORY_WINDOW),
    qps: 1024,
    cqs: 1024,
    rqs: 1024,
    keys: 1024,
    ahs: 1024,
    groups: 8,
    qps_per_group: 4,
    rates: LimitRate { min: 1_000, max: 100_000_000 },
    log2_cq_entries: 12,
    log2_sq_blocks: 10,
    log2_rq_entries: 10,
    max_rd_atomic: 16,
    max_message: 1 << 30,
    device_memory: 64 << 10,
    event_rings: 4,
    under_way_bytes: 1 << 20,
};

/// A need of a test that not every device meets.
#[derive(Clone, Copy, Debug)]
pub enum Need {
    /// These capabilities in [`Device::CONFIG`].
    Offers(Capabilities),
    /// Devices with limits and capabilities that the test chooses instead of [`Device::CONFIG`].
    OtherLimits,
    /// Calls that act at once, one step of which ends with a bounded piece of work: turns can be counted.
    Turns,
}

impl From<Capabilities> for Need {
    fn from(capabilities: Capabilities) -> Self {
        Self::Offers(capabilities)
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Offers(capabilities) => write!(f, "the device does not offer {capabilities:?}"),
            Self::OtherLimits => f.write_str("the device has its own limits and no others"),
            Self::Turns => f.write_str("the device does not work in turns that can be counted"),
        }
    }
}

/// A queue engine as its driver, its clients and its transport reach it.
///
/// Times are in nanoseconds of the device's own clock.
pub trait Device: Sized {
    /// The configuration of tests that ask for no other.
    const CONFIG: EngineConfig;

    /// Whether it can be built with another configuration.
    const OTHER_LIMITS: bool;

    /// Whether its calls act at once, and turns can be counted by its steps.
    const TURNS: bool;

    /// Whether it serves a test with that need.
    fn serves(need: Need) -> bool {
        match need {
            Need::Offers(capabilities) => Self::CONFIG.capabilities.contains(capabilities),
            Need::OtherLimits => Self::OTHER_LIMITS,
            Need::Turns => Self::TURNS,
        }
    }

    /// A device out of reset, without doorbell pages.
    fn new(config: EngineConfig, memory: TestMemory) -> Self;

    /// Reads a register of the window, behind every write before it.
    fn read_register(&mut self, offset: u64, port: &mut impl Transport) -> u64;

    /// Writes a register of the window; the effect may take some steps.
    fn write_register(&mut self, offset: u64, value: u64, port: &mut impl Transport);

    /// Puts a doorbell page in place; `false` where there is no such page or it is in use.
    fn open_page(&mut self, page: u8, memory: TestPage) -> bool;

    /// Takes a doorbell page away.
    fn close_page(&mut self, page: u8);

    /// Resets it as the shell does, doorbell pages and all.
    fn reset(&mut self, port: &mut impl Transport);

    /// Whether an interrupt came since the last call.
    fn take_interrupt(&mut self) -> bool;

    /// Goes on by one step, of at least a nanosecond; `false` where there was nothing to do, and nothing is on its way.
    fn step(&mut self, port: &mut impl Transport) -> bool;

    /// Its clock.
    fn now(&self) -> u64;

    /// Sets its clock on while it rests.
    fn pass(&mut self, time: u64);

    /// When it has something to do by itself though nothing happens.
    fn next_wake(&self) -> Option<u64>;

    /// Reports the outcome of a message or a QP to it at the port.
    fn report(&mut self, event: TransportEvent, port: &mut impl Transport);

    /// Claims the next receive of a QP at the port.
    ///
    /// # Errors
    /// As [`queue_engine::Engine::take_receive`].
    fn take_receive(&mut self, qpn: u32) -> Result<TakenReceive, ReceiveError>;

    /// Tells it at the port that a receive which made no sense was refused to the peer.
    fn refuse_receive(&mut self, qpn: u32, port: &mut impl Transport);

    /// Claims the next receive of a shared receive queue along XRC.
    ///
    /// # Errors
    /// As [`queue_engine::Engine::take_xrc_receive`].
    fn take_xrc_receive(&mut self, request: XrcRequest) -> Result<TakenReceive, ReceiveError>;

    /// Checks at the port whether a peer may reach memory through a QP.
    fn allows(&self, qpn: u32, memory: RemoteRange, access: RemoteAccess) -> bool;

    /// The same along XRC; `None` where the domain has no such queue.
    fn allows_xrc(
        &mut self,
        request: XrcRequest,
        memory: RemoteRange,
        access: RemoteAccess,
    ) -> Option<bool>;

    /// Fetches or places `length` bytes from `offset` of a payload at the port, and adds to `pieces` the runs of
    /// addresses that were read or written for them, in the order of the bytes.
    ///
    /// # Errors
    /// [`Unreachable`]; `pieces` is then as it was.
    fn resolve(
        &self,
        qpn: u32,
        payload: Payload,
        offset: u64,
        length: u32,
        pieces: &mut Vec<Piece>,
    ) -> Result<(), Unreachable>;
}

/// Tells that a test does not run: the runner of the tests counts the lines of the file that `SKIPPED_TESTS` names.
pub fn skip(need: Need) {
    use std::io::Write as _;
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    let line = format!("{}::{test}: {need}\n", env!("CARGO_CRATE_NAME"));
    // Past the runner's capture, which is not shown for a test that passes.
    let _ = write!(std::io::stderr(), "SKIPPED {line}");
    if let Some(path) = std::env::var_os("SKIPPED_TESTS") {
        let mut file = std::fs::File::options().append(true).create(true).open(path).unwrap();
        file.write_all(line.as_bytes()).unwrap();
    }
}

/// Ends a test as skipped where the device does not serve its needs.
macro_rules! needs {
    ($($need:expr),+ $(,)?) => {$(
        let need = $crate::engine::support::device::Need::from($need);
        if !<$crate::Dut as $crate::engine::support::device::Device>::serves(need) {
            return $crate::engine::support::device::skip(need);
        }
    )+};
}
pub(crate) use needs;
