//! The card's queue pair 1, by which connection managers talk to each other: its rings are the driver's own, and
//! no client reaches it.
//!
//! [`Gsi::send`], [`Gsi::find`] and [`Gsi::take`] are for any thread, and do not wait. Commands to the engine, which
//! make address handles for new peers, are given where the engine is served ([`crate::engine::Engine::service`]); a
//! datagram waits here for that, and no longer. If the peer's Ethernet address is unknown, the card asks for it, and
//! keeps datagrams to the peer, and those behind them, until 100 ms after the handle was made; then it drops them. So
//! datagrams to absent peers delay others by at most that, for any number of such peers.
//!
//! Datagrams may be lost, as any: where too many are on their way, where too many wait for a handle, where the
//! receives have run out. Their sender repeats them.

mod handles;
mod rings;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use fpga_regs::coyote::pci::Bar;
use fpga_regs::engine::doorbell::{QueueKind, slot};
use hostmem::{EventFd, SharedMapping};

use crate::backend::CardBackend;
use crate::error::Error;
use crate::lock::lock;
use handles::Handles;
pub(crate) use handles::Task;
pub(crate) use rings::{
    BUFFERS_AT, MEMORY_BYTES, Names, RECEIVE_CQ_AT, RQ_AT, SEND_CQ_AT, SQ_AT, Sizes,
};
use rings::{Queues, Sent};

/// Bytes of a management datagram.
pub const DATAGRAM_BYTES: usize = 256;
/// A management datagram.
pub type Datagram = [u8; DATAGRAM_BYTES];

/// The destination of a datagram: to queue pair 1 of that peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GsiAddress {
    /// Local GID table index.
    pub sgid_index: u8,
    /// The peer's GID, network order.
    pub dgid: [u8; 16],
    /// Hop limit, or time to live.
    pub hop_limit: u8,
    /// Traffic class, or type of service.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Service level.
    pub sl: u8,
}

/// The client for which a card sends or looks for a peer, by a number of the caller's; `None` for no client in
/// particular. Each client has a share of handles, of waiting datagrams and of peers that are looked for, so that
/// none keeps the others out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Party(pub Option<u64>);

/// A datagram that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GsiArrival {
    /// The GID that it comes from, network order.
    pub source: [u8; 16],
    /// Local GID table index of the GID that it was sent to; of those that are alike in several VLANs the first.
    pub destination_gid_index: u8,
    /// Hop limit, or time to live, that was left.
    pub hop_limit: u8,
    /// Traffic class, or type of service.
    pub traffic_class: u8,
    /// Flow label; 0 with IPv4.
    pub flow_label: u32,
    /// The sending queue pair; 1 if the sender keeps the rules.
    pub source_qpn: u32,
    /// The datagram. One of another length is none, and does not arrive.
    pub datagram: Datagram,
}

/// The card's queue pair 1, driven by the driver itself. Any thread may use it.
#[derive(Debug)]
pub struct Gsi {
    /// The engine's name, for messages.
    name: String,
    /// Where all of it is, and where the card sees that.
    memory: Arc<SharedMapping>,
    iova: u64,
    news: EventFd,
    /// Calls the thread that serves the engine.
    attend: EventFd,
    /// The completion queue of arrivals; `u64::MAX` while there is none.
    arrivals: AtomicU64,
    /// An arrival raises an event.
    armed: AtomicBool,
    /// [`Self::news`] was signalled, and not drained since.
    told: AtomicBool,
    state: Mutex<State>,
}

/// The driver's own doorbell page.
pub(crate) struct DriverBell {
    pub(crate) backend: Arc<dyn CardBackend>,
    /// Where it is in the shell's BAR.
    pub(crate) page: u64,
}

#[derive(Debug, Default)]
struct State {
    /// `None` while there is no queue pair.
    queues: Option<Queues>,
    /// Why there is none.
    why: String,
    handles: Handles,
    /// The card's addresses, by index.
    gids: Vec<[u8; 16]>,
    /// Datagrams that were not sent.
    lost: u64,
}

impl std::fmt::Debug for DriverBell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bell").field("page", &self.page).finish_non_exhaustive()
    }
}

impl DriverBell {
    fn ring(&self, kind: QueueKind, number: u32, value: u64) {
        let at = (slot(kind, number) as u64).wrapping_mul(8);
        self.backend.write64(Bar::Shell, self.page.wrapping_add(at), value);
    }
}

impl Gsi {
    /// A queue pair that is not there yet; `attend` calls the thread that serves the engine.
    pub(crate) fn new(
        name: &str,
        (memory, iova): (Arc<SharedMapping>, u64),
        attend: EventFd,
    ) -> Result<Self, Error> {
        Ok(Self {
            name: name.to_owned(),
            memory,
            iova,
            news: EventFd::new()?,
            attend,
            arrivals: AtomicU64::new(u64::MAX),
            armed: AtomicBool::new(false),
            told: AtomicBool::new(false),
            state: Mutex::default(),
        })
    }

    /// Sends a datagram, which may be lost as any.
    ///
    /// # Errors
    /// [`Error::Dead`] where there is no queue pair: it was closed, or its engine is dead.
    pub fn send(&self, party: Party, to: &GsiAddress, datagram: &Datagram) -> Result<(), Error> {
        let state = &mut *lock(&self.state);
        let Some(queues) = &mut state.queues else {
            return Err(Error::Dead { engine: self.name.clone(), why: state.why.clone() });
        };
        let sent = match state.handles.find(party, to) {
            Some(handle) => handle.send(queues, datagram),
            None => state.handles.wait(party, to, datagram),
        };
        if sent == Sent::Lost {
            state.lost = state.lost.saturating_add(1);
        }
        if sent == Sent::Waits || queues.has_failed() {
            self.call();
        }
        Ok(())
    }

    /// Whether the card has found a peer, as far as is known here: its datagrams wait for nothing then. Else the card
    /// looks for it, and the caller asks again later. A card that cannot tell counts as one that has.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn find(&self, party: Party, to: &GsiAddress) -> Result<bool, Error> {
        let state = &mut *lock(&self.state);
        let Some(queues) = &state.queues else {
            return Err(Error::Dead { engine: self.name.clone(), why: state.why.clone() });
        };
        let is_found = state.handles.is_found(party, to, queues.posted());
        if !is_found {
            self.call();
        }
        Ok(is_found)
    }

    /// The next datagram that arrived. After `None`, [`Self::news`] signals the next.
    pub fn take(&self) -> Option<GsiArrival> {
        let State { queues, gids, .. } = &mut *lock(&self.state);
        let mut queues = queues.as_mut();
        let arrived = queues.as_mut().map(|queues| queues.take(&self.memory, gids));
        if let Some(arrival @ Some(_)) = arrived {
            return arrival;
        }
        // Signals from now on are heard.
        if self.told.swap(false, Ordering::AcqRel) {
            let _ = self.news.drain();
        }
        if let Some(queues) = queues.filter(|_| !self.armed.swap(true, Ordering::AcqRel)) {
            queues.arm();
        }
        None
    }

    /// A descriptor that is readable when datagrams may wait, or the queue pair has ended, until [`Self::take`] has
    /// answered `None`.
    #[must_use]
    pub fn news(&self) -> BorrowedFd<'_> {
        self.news.as_fd()
    }

    /// Whether there is a queue pair: not once it was closed, nor while its engine is dead.
    #[must_use]
    pub fn is_open(&self) -> bool {
        lock(&self.state).queues.is_some()
    }

    /// Datagrams that were to be sent, and were dropped here.
    #[must_use]
    pub fn lost(&self) -> u64 {
        lock(&self.state).lost
    }

    /// The queue pair is made, in memory of zeros, and ready to send.
    pub(crate) fn begin(&self, bell: DriverBell, sizes: Sizes, names: Names) -> Result<(), Error> {
        let mut queues = Queues::new(bell, (&self.memory, self.iova), sizes, names)?;
        let state = &mut *lock(&self.state);
        self.arrivals.store(names.receive_cqn.into(), Ordering::Release);
        self.armed.store(true, Ordering::Release);
        queues.begin();
        state.queues = Some(queues);
        Ok(())
    }

    /// Empties the memory of queues that are not made yet.
    pub(crate) fn empty(&self) -> Result<(), Error> {
        for at in (0..MEMORY_BYTES).step_by(8) {
            self.memory.store_relaxed_u64(usize::try_from(at).unwrap_or(usize::MAX), 0)?;
        }
        Ok(())
    }

    /// Where the card sees a part of its memory.
    pub(crate) fn at(&self, part: u64) -> u64 {
        self.iova.wrapping_add(part)
    }

    /// Whether arrivals complete there.
    pub(crate) fn is_told_by(&self, cqn: u32) -> bool {
        self.arrivals.load(Ordering::Acquire) == u64::from(cqn)
    }

    /// Whether the card has failed a send, after which the queue pair stops sending.
    pub(crate) fn has_failed(&self) -> bool {
        lock(&self.state).queues.as_ref().is_some_and(Queues::has_failed)
    }

    /// The next command for the engine.
    pub(crate) fn next_task(&self) -> Task {
        let State { queues, handles, .. } = &mut *lock(&self.state);
        queues.as_mut().map_or(Task::Nothing, |queues| handles.next(queues.complete()))
    }

    /// Sends the datagrams that wait for the handle of an address, or drops them where there is none.
    pub(crate) fn settle(&self, address: GsiAddress, ah: Option<u32>) {
        let State { queues, handles, lost, .. } = &mut *lock(&self.state);
        let party = handles.wanted_by(&address);
        let waiting = handles.take_waiting(&address);
        *lost = lost.saturating_add(waiting.len() as u64);
        if ah.is_none() {
            handles.give_up(&address);
        }
        if let (Some(ah), Some(queues)) = (ah, queues) {
            let handle = handles.add(party, address, ah);
            for waiting in &waiting {
                let sent = handle.send(queues, &waiting.datagram);
                *lost = lost.saturating_sub(u64::from(sent == Sent::Posted));
            }
        }
    }

    /// The engine has said whether it has found the peer of a handle.
    pub(crate) fn answer(&self, address: &GsiAddress, ah: u32, is_found: bool) {
        lock(&self.state).handles.answer(address, ah, is_found);
    }

    /// There is no queue pair any more; the handles that the engine may have.
    pub(crate) fn end(&self, why: &str) -> Vec<u32> {
        let state = &mut *lock(&self.state);
        state.queues = None;
        why.clone_into(&mut state.why);
        self.arrivals.store(u64::MAX, Ordering::Release);
        self.signal();
        std::mem::take(&mut state.handles).into_all()
    }

    /// Calls the thread that serves the engine.
    pub(crate) fn call(&self) {
        // A counter that is full has been signalled.
        let _ = self.attend.signal();
    }

    fn signal(&self) {
        // Before, for a thread that has seen the signal; behind it, for one that has looked between the two.
        self.told.store(true, Ordering::Release);
        let _ = self.news.signal();
        self.told.store(true, Ordering::Release);
    }

    /// Its completion queue raised its event, or may have.
    pub(crate) fn hear(&self) {
        self.armed.store(false, Ordering::Release);
        self.signal();
    }

    /// The card has those addresses now; the one of an index may be another than before.
    pub(crate) fn set_gids(&self, gids: Vec<[u8; 16]>, changed: Option<u8>) {
        let state = &mut *lock(&self.state);
        state.gids = gids;
        if let Some(index) = changed {
            state.handles.forget(index);
            self.call();
        }
    }
}

#[cfg(test)]
mod tests;
