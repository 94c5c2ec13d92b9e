//! A driver's view of one software card.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Sender, SyncSender};

use fpga_regs::coyote::pci::Bar;
use fpga_regs::port::WatchFilter;
use hostmem::{
    Access, Borrowable, DmaMemory, DoorbellPage, EventFd, PAGE_BYTES, SharedMapping, Waker, memfd,
};

use roce::qos::Qos;
use services::{Attached, Chain, Selector};

use crate::Error;
use crate::command::{Action, Command};
use crate::published::{InterruptHandler, Published};
use crate::reconfig::Spoil;
use crate::run::{self, CardThread};
use crate::unfounded::Unfounded;

/// The parts of a grant of a doorbell page.
#[derive(Debug)]
pub struct PageGrant {
    /// A memfd of exactly the page.
    pub page: OwnedFd,
    /// The eventfd that wakes the card thread while its asleep word is set.
    pub wake: OwnedFd,
}

/// A software card as a driver sees a PCIe function.
///
/// Writes are posted, reads wait for all writes before them; both are executed by the card thread, or by the calling one
/// while that sleeps, but for reads of published values.
#[derive(Clone, Debug)]
pub struct CardHandle {
    pub(crate) card: usize,
    pub(crate) commands: Sender<Command>,
    pub(crate) waker: Arc<Waker>,
    pub(crate) idle_cards: Arc<Borrowable<CardThread>>,
    pub(crate) published: Arc<Published>,
}

impl CardHandle {
    fn send(&self, action: Action) {
        self.leave(action);
        if self.waker.is_needed() {
            self.rouse();
        }
    }

    /// Runs a sleeping card for the orders left for it.
    fn rouse(&self) {
        if !run::visit(&self.idle_cards) {
            let _ = self.waker.signal();
        }
    }

    /// Leaves an order, for which the card does not wake up.
    fn leave(&self, action: Action) {
        // A card thread that has ended hears nothing; a caller that waits for an answer sees it.
        let _ = self.commands.send(Command { card: self.card, action });
    }

    fn ask<T>(&self, action: impl FnOnce(SyncSender<T>) -> Action) -> Result<T, Error> {
        let (reply, answer) = mpsc::sync_channel(1);
        self.send(action(reply));
        answer.recv().map_err(|_| Error::Gone)
    }

    /// Reads `bytes` (1, 2, 4 or 8) bytes at `offset`, a multiple of them; all ones when the card is
    /// gone, as on PCIe.
    #[must_use]
    pub fn read(&self, bar: Bar, offset: u64, bytes: u8) -> u64 {
        let gone = if bytes >= 8 {
            u64::MAX
        } else {
            (1u64 << (bytes & 7).wrapping_mul(8)).wrapping_sub(1)
        };
        let published = self.published.read(bar, offset).filter(|_| bytes == 8);
        published.unwrap_or_else(|| {
            self.ask(|reply| Action::Read { bar, offset, bytes, reply }).unwrap_or(gone)
        })
    }

    /// Writes `bytes` (1, 2, 4 or 8) bytes at `offset`, a multiple of them.
    pub fn write(&self, bar: Bar, offset: u64, bytes: u8, value: u64) {
        self.published.write_sent();
        self.leave(Action::Write { bar, offset, bytes, value });
        let may_wait = || bytes == 8 && self.published.may_wait(bar, offset, value);
        if self.waker.is_needed() && !may_wait() {
            self.rouse();
        }
    }

    /// Writes 32 bytes of the shell's BAR by one store, as a command of the published image wants it; `offset` is a
    /// multiple of them.
    pub fn write_wide(&self, offset: u64, bytes: [u8; 32]) {
        self.published.write_sent();
        self.send(Action::WriteWide { offset, bytes });
    }

    /// The eventfd of an MSI-X vector.
    #[must_use]
    pub fn vector(&self, number: u16) -> Option<BorrowedFd<'_>> {
        self.published.vectors.get(usize::from(number)).map(AsFd::as_fd)
    }

    /// Reserves an MSI-X vector for the one thread that looks for its interrupts itself, until
    /// [`Self::release_vector`]; `false` if there is none.
    #[must_use]
    pub fn hold_vector(&self, number: u16) -> bool {
        self.published.hold(number)
    }

    /// Releases the vector; whether the card would have signalled it meanwhile.
    #[must_use]
    pub fn release_vector(&self, number: u16) -> bool {
        self.published.release(number)
    }

    /// Has interrupts served at once on the thread that runs the card, before a vector is signalled; `None`: no more, and
    /// on return none is being served so.
    pub fn serve_by(&self, serve: Option<InterruptHandler>) {
        self.published.serve_by(serve);
    }

    /// Lets the card reach memory at a range of its addresses.
    ///
    /// # Errors
    /// [`Error::BadRange`], [`Error::Overlap`], [`Error::Gone`].
    pub fn dma_map(&self, iova: u64, length: u64, memory: DmaMemory) -> Result<(), Error> {
        self.ask(|reply| Action::Map { iova, length, memory, reply: Some(reply) })?
    }

    /// Takes ranges back that lie inside the given one; no DMA to them happens after the return.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn dma_unmap(&self, iova: u64, length: u64) -> Result<(), Error> {
        self.ask(|reply| Action::Unmap { iova, length, reply: Some(reply) })
    }

    /// Maps memory before all later requests, and without waiting, as [`Self::dma_map`]. A failure is logged, and
    /// ignored.
    pub fn dma_map_ahead(&self, iova: u64, length: u64, memory: DmaMemory) {
        self.leave(Action::Map { iova, length, memory, reply: None });
    }

    /// Unmaps ranges that the card no longer uses, without waiting, as [`Self::dma_unmap`].
    pub fn dma_unmap_unused(&self, iova: u64, length: u64) {
        self.leave(Action::Unmap { iova, length, reply: None });
    }

    /// Makes a doorbell page of a window and lets the card look at it.
    ///
    /// # Errors
    /// [`Error::NoPage`], [`Error::Host`], [`Error::Gone`].
    pub fn grant_page(&self, window: u8, page: u8) -> Result<PageGrant, Error> {
        let memory = memfd::create("balboa-doorbells", PAGE_BYTES)?;
        let mapping = SharedMapping::new(memory.as_fd(), 0, PAGE_BYTES, Access::ReadWrite)?;
        let slots = Arc::new(DoorbellPage::new(Arc::new(mapping), 0)?);
        let wake = EventFd::new()?;
        let clients = wake.try_clone()?;
        self.ask(|reply| Action::Grant { window, page, slots, wake, reply })??;
        Ok(PageGrant { page: memory, wake: clients.into_fd() })
    }

    /// Takes a doorbell page away; later stores to it ring nothing.
    pub fn revoke_page(&self, window: u8, page: u8) {
        let _ = self.ask(|reply| Action::Revoke { window, page, reply });
    }

    /// Bytes of [`crate::UNDER_WAY_BYTES`] that the client behind a doorbell page uses; 0 when the card
    /// is gone.
    #[must_use]
    pub fn under_way_bytes(&self, window: u8, page: u8) -> usize {
        self.ask(|reply| Action::UnderWay { window, page, reply }).unwrap_or_default()
    }

    /// Reports an event without a cause in a vFPGA, as a broken card would: for the tests of drivers.
    pub fn report(&self, vfpga: u8, unfounded: Unfounded) {
        let _ = self.ask(|reply| Action::Report { vfpga, unfounded, reply });
    }

    /// Spoils the reconfiguration that comes next, at its descriptor of that number, from 0 on: for the tests of
    /// drivers.
    pub fn spoil_reconfiguration(&self, descriptor: u32, how: Spoil) {
        let _ = self.ask(|reply| Action::Spoil { descriptor, how, reply });
    }

    /// Resets the function, as a driver's reset of it does.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn reset(&self) -> Result<(), Error> {
        self.ask(|reply| Action::Reset { reply })
    }

    /// Records the card's port for the reader of a socket's other end, as a pcapng file: frames that pass the filter
    /// from now on, until [`Self::end_record`] or the reader's end.
    ///
    /// # Errors
    /// [`Error::Recorded`] where another recording is read, [`Error::Recorder`], [`Error::Gone`].
    pub fn record(&self, filter: WatchFilter, reader: UnixStream) -> Result<(), Error> {
        match self.ask(|reply| Action::Record { filter, reader, reply })? {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::Recorded),
            Err(source) => Err(Error::Recorder(source)),
        }
    }

    /// Ends the recording: frames that wait are still written.
    pub fn end_record(&self) {
        self.send(Action::EndRecord);
    }

    /// Attaches services to queue pairs of the card.
    ///
    /// # Errors
    /// [`Error::Services`], and nothing is attached; [`Error::Gone`].
    pub fn attach(&self, selector: Selector, chain: Chain) -> Result<(), Error> {
        self.ask(|reply| Action::Attach { selector, chain, reply })?
    }

    /// Has other services follow those that are attached there: messages that have begun keep those, and later ones have
    /// these.
    ///
    /// # Errors
    /// As [`Self::attach`]; nothing is changed then.
    pub fn replace(&self, selector: Selector, chain: Chain) -> Result<(), Error> {
        self.ask(|reply| Action::Replace { selector, chain, reply })?
    }

    /// Attaches the services that the program of a new queue pair asks for, before that is connected.
    ///
    /// # Errors
    /// As [`Self::attach`].
    pub fn ask_for_services(&self, qpn: u32, chain: Chain) -> Result<(), Error> {
        self.ask(|reply| Action::Ask { qpn, chain, reply })?
    }

    /// Detaches the services that are attached there. Where messages are under way that is refused, unless it is to be
    /// `now`: then those that have begun keep their services to their end. Answers on how many queue pairs there are
    /// such.
    ///
    /// # Errors
    /// [`Error::Services`], and nothing is detached; [`Error::Gone`].
    pub fn detach(&self, selector: Selector, now: bool) -> Result<usize, Error> {
        self.ask(|reply| Action::Detach { selector, now, reply })?
    }

    /// Tells the process that has a queue pair, before that is connected, and without waiting.
    pub fn own(&self, qpn: u32, process: u32) {
        self.leave(Action::Own { qpn, process });
    }

    /// Tells that a process has ended: the services that were attached to its queue pairs are detached. Messages that
    /// have begun keep them to their end.
    pub fn end_process(&self, process: u32) {
        self.send(Action::EndProcess { process });
    }

    /// The services that are attached; none when the card is gone.
    #[must_use]
    pub fn attached(&self) -> Vec<Attached> {
        self.ask(|reply| Action::Attached { reply }).unwrap_or_default()
    }

    /// A number that grows when the card has moved frames or payload, or a timer of its transport ran. It does not wake
    /// the card.
    #[must_use]
    pub fn activity(&self) -> u64 {
        self.published.activity.load(Ordering::Acquire)
    }

    /// The settings of the port's priorities.
    ///
    /// # Errors
    /// [`Error::NoQueues`], [`Error::MachinesQueues`] or [`Error::Gone`].
    pub fn qos(&self) -> Result<Qos, Error> {
        self.ask(|reply| Action::Qos { reply })?
    }

    /// Changes the settings of the port's priorities.
    ///
    /// # Errors
    /// [`Error::Qos`], [`Error::NoQueues`], [`Error::MachinesQueues`] or [`Error::NoHeadroom`], and nothing has changed;
    /// [`Error::Gone`].
    pub fn set_qos(&self, qos: Qos) -> Result<(), Error> {
        self.ask(|reply| Action::SetQos { qos, reply })?
    }

    /// The counters of the card's port and of its DMA, by name; empty when the card is gone.
    #[must_use]
    pub fn port_counters(&self) -> Vec<(&'static str, u64)> {
        self.ask(|reply| Action::Counters { reply }).unwrap_or_default()
    }
}
