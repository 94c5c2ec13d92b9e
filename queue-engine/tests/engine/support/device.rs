//! The interface of queue engines that the tests need, for any implementation.
//!
//! A device has three sides: the registers and doorbell pages of its window, host memory that it reads and writes by
//! its own transfers ([`TestMemory`]), and the port at which a [`Transport`] takes its messages. Nobody sees its inside.
//! Its time goes on with [`Device::step`] alone.

use std::fmt;

use fpga_regs::engine::window::Capabilities;
use queue_engine::{
    EngineConfig, Payload, Piece, ReceiveError, RemoteAccess, RemoteRange, TakenReceive, Transport,
    TransportEvent, Unreachable, XrcRequest,
};

use super::memory::{TestMemory, TestPage};

/// A need of a test that not every device meets.
#[derive(Clone, Copy, Debug)]
pub enum Need {
    /// These capabilities in [`Device::config`].
    Offers(Capabilities),
    /// So many queue pairs, receive queues and completion queues at a time.
    Queues(u32),
    /// So many keys at a time.
    Keys(u32),
    /// So many event rings.
    EventRings(u8),
    /// Devices with limits and capabilities that the test chooses instead of [`Device::config`].
    OtherLimits,
    /// Calls that act at once, one step of which ends with a bounded piece of work: turns can be counted.
    Turns,
    /// Doorbell pages that are there once they were opened.
    Pages,
    /// Knowledge of the memory that is mapped, for the memory of a key.
    Mappings,
    /// Everything that a [`Transport`] is asked and says, at its port.
    Words,
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
            Self::Queues(count) => write!(f, "the device has fewer than {count} queues of a kind"),
            Self::Keys(count) => write!(f, "the device has fewer than {count} keys"),
            Self::EventRings(count) => write!(f, "the device has fewer than {count} event rings"),
            Self::OtherLimits => f.write_str("the device has its own limits and no others"),
            Self::Turns => f.write_str("the device does not work in turns that can be counted"),
            Self::Pages => f.write_str("the device has all doorbell pages at all times"),
            Self::Mappings => f.write_str("the device does not know which memory is mapped"),
            Self::Words => f.write_str("the device's port has no word for what its transport says"),
        }
    }
}

/// A queue engine as its driver, its clients and its transport reach it.
///
/// Times are in nanoseconds of the device's own clock.
pub trait Device: Sized {
    /// Whether it can be built with another configuration.
    const OTHER_LIMITS: bool;

    /// Whether its calls act at once, and turns can be counted by its steps.
    const TURNS: bool;

    /// Whether doorbell pages come and go.
    const PAGES: bool = true;

    /// Whether it refuses a key for memory that is not mapped.
    const MAPPINGS: bool = true;

    /// Whether its port has a word for everything that a [`Transport`] is asked and says.
    const WORDS: bool = true;

    /// Receives of a queue pair that may be claimed at a time.
    const CLAIMS: usize = usize::MAX;

    /// Of random cases, and of what is tried again and again, it tries one in so many: it is slow.
    const SHARE: u64 = 1;

    /// Whether it serves a test with that need.
    fn serves(need: Need) -> bool {
        match need {
            Need::Offers(capabilities) => Self::config().capabilities.contains(capabilities),
            Need::Queues(count) => {
                let EngineConfig { qps, cqs, rqs, .. } = Self::config();
                [qps, cqs, rqs].iter().all(|most| *most >= count)
            }
            Need::Keys(count) => Self::config().keys >= count,
            Need::EventRings(count) => Self::config().event_rings >= count,
            Need::OtherLimits => Self::OTHER_LIMITS,
            Need::Turns => Self::TURNS,
            Need::Pages => Self::PAGES,
            Need::Mappings => Self::MAPPINGS,
            Need::Words => Self::WORDS,
        }
    }

    /// The configuration of tests that ask for no other.
    fn config() -> EngineConfig;

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
