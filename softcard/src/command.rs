//! Commands of a driver's thread to the card thread: register accesses, mappings, grants.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use fpga_regs::coyote::pci::Bar;
use fpga_regs::port::WatchFilter;
use hostmem::{DmaMemory, DoorbellPage, EventFd};
use roce::qos::Qos;
use services::{Attached, Chain, Selector};

use crate::Error;
use crate::reconfig::Spoil;
use crate::unfounded::Unfounded;

/// A command for card number `card`; those of one sender are executed in order.
pub(crate) struct Command {
    pub(crate) card: usize,
    pub(crate) action: Action,
}

/// An order to the card.
pub(crate) enum Action {
    /// A posted write.
    Write { bar: Bar, offset: u64, bytes: u8, value: u64 },
    /// A posted write of 32 bytes to the shell's BAR.
    WriteWide { offset: u64, bytes: [u8; 32] },
    /// A read, answered with the value.
    Read { bar: Bar, offset: u64, bytes: u8, reply: SyncSender<u64> },
    /// Maps memory; answered if the sender waits.
    Map { iova: u64, length: u64, memory: DmaMemory, reply: Option<SyncSender<Result<(), Error>>> },
    /// Unmaps memory; answered, if the sender waits, when no DMA to it can follow.
    Unmap { iova: u64, length: u64, reply: Option<SyncSender<()>> },
    /// Puts a doorbell page in place and listens to its eventfd.
    Grant {
        window: u8,
        page: u8,
        slots: Arc<DoorbellPage>,
        wake: EventFd,
        reply: SyncSender<Result<(), Error>>,
    },
    /// Takes a doorbell page away.
    Revoke { window: u8, page: u8, reply: SyncSender<()> },
    /// Tells the bytes kept for work under way of the QPs behind a doorbell page.
    UnderWay { window: u8, page: u8, reply: SyncSender<usize> },
    /// Reports an event without a cause; answered when it is reported.
    Report { vfpga: u8, unfounded: Unfounded, reply: SyncSender<()> },
    /// Resets the function; answered when that is done.
    Reset { reply: SyncSender<()> },
    /// Spoils the reconfiguration that comes next, from a descriptor on; answered when that is noted.
    Spoil { descriptor: u32, how: Spoil, reply: SyncSender<()> },
    /// Records the port for a reader; answered false where another one reads already.
    Record {
        filter: WatchFilter,
        reader: UnixStream,
        reply: SyncSender<Result<bool, std::io::Error>>,
    },
    /// Ends the recording.
    EndRecord,
    /// Has other services follow those that are attached there.
    Replace { selector: Selector, chain: Chain, reply: SyncSender<Result<(), Error>> },
    /// Attaches services to queue pairs.
    Attach { selector: Selector, chain: Chain, reply: SyncSender<Result<(), Error>> },
    /// Attaches the services that the program of a new queue pair asks for.
    Ask { qpn: u32, chain: Chain, reply: SyncSender<Result<(), Error>> },
    /// Detaches them; answered with how many queue pairs keep them to the end of a message.
    Detach { selector: Selector, now: bool, reply: SyncSender<Result<usize, Error>> },
    /// Tells the process that has a queue pair.
    Own { qpn: u32, process: u32 },
    /// Tells that a process has ended, and with it the services that were attached to its queue pairs.
    EndProcess { process: u32 },
    /// Lists the attached services.
    Attached { reply: SyncSender<Vec<Attached>> },
    /// Tells the settings of the port's priorities.
    Qos { reply: SyncSender<Result<Qos, Error>> },
    /// Changes them.
    SetQos { qos: Qos, reply: SyncSender<Result<(), Error>> },
    /// The port's counters.
    Counters { reply: SyncSender<Vec<(&'static str, u64)>> },
}
