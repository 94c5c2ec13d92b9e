//! The loop that serves one card to one client at a time.
//!
//! One thread does everything: it handles the client's messages, works on the card, and sleeps.
//! While queues exist it wakes by itself to look at the doorbells, since a store to a mapped page
//! gives no notice: every 25 µs after work, less and less often when there is none.

use fpga_regs::coyote::shell::Map;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::EpollFlags;

use super::access::{self, Snapshot};
use super::doorbells::Doorbells;
use super::irqs::Raised;
use super::joined::Joined;
use super::link::ClientLink;
use super::listener::Listener;
use super::session::{Effect, REGION_ACCESS_BYTES, Reaction, Session};
use super::wire::Header;
use crate::FaultSpec;
use crate::bus::AskedMemory;
use crate::card::{Card, Programmed};
use crate::congestion::Congestion;
use crate::error::Error;
use crate::image::Image;
use crate::port::{self, Cabling, FramePool};
use crate::published::Published;
use crate::run::POOLED_FRAMES;
use crate::wait::Waiter;

/// How often doorbells are looked at after work, in nanoseconds.
const LOOK_NS: u64 = 25_000;
/// How often they are looked at when there has been no work for long, in nanoseconds.
const IDLE_LOOK_NS: u64 = 1_000_000;
/// Without work for a time, doorbells are looked at this many times in as long again.
const LOOKS_PER_IDLE_TIME: u64 = 40;
/// However much work there is, a signal and a new client are looked for once in so many rounds.
const ROUNDS: u64 = 256;
/// Refused accesses are logged this often at most, in nanoseconds.
const TELL_NS: u64 = 1_000_000_000;
/// Messages handled between two looks at the card.
const MESSAGES: usize = 64;

/// The card to serve, and its socket.
#[derive(Clone, Debug)]
pub struct ServeConfig {
    /// Path of the socket that clients connect to.
    pub socket: PathBuf,
    /// The other end of the card's port.
    pub link: crate::Link,
    /// The card's image.
    pub image: Image,
    /// Plays an FPGA: it does not say that it is a software card, and takes bitstreams.
    pub plays_fpga: bool,
    /// The card's reaction to congestion.
    pub congestion: Congestion,
    /// The faults of the cable.
    pub faults: Vec<FaultSpec>,
    /// The seed of the faults, which fixes the n-th frame's each way.
    pub seed: u64,
    /// The file for a capture of the port, in pcapng.
    pub capture: Option<PathBuf>,
    /// The time that a client may take to answer a request for its memory, before the server gives it up.
    pub patience: Duration,
    /// Takes the parts of a store of 32 bytes for one store, as no card does: for emulators, which split it.
    pub join_split_stores: bool,
}

impl ServeConfig {
    /// A [`ServeConfig::patience`] as long as QEMU's own.
    pub const PATIENCE: Duration = Duration::from_secs(5);
}

/// A card that is served as a PCIe device over vfio-user.
pub struct Server {
    card: Card,
    link: Rc<ClientLink>,
    raised: Raised,
    listener: Listener,
    waiter: Waiter,
    /// When there was work last.
    worked: u64,
    /// The events of the client's socket that are listened to.
    interest: EpollFlags,
    rounds: u64,
    /// When a refused access was logged last.
    told: Option<u64>,
    /// Stores that come in parts, if those are joined.
    joined: Option<Joined>,
}

impl Server {
    /// Plugs the card's cable and listens for clients.
    ///
    /// # Errors
    /// [`Error::Socket`], [`Error::Port`], [`Error::Device`], [`Error::NoFaultCard`], [`Error::BadFault`],
    /// [`Error::Capture`], [`Error::Host`].
    pub fn new(config: ServeConfig) -> Result<Self, Error> {
        let ServeConfig { socket, link, image, plays_fpga, congestion, .. } = config;
        let ServeConfig { faults, seed, capture, patience, join_split_stores, .. } = config;
        let pool = FramePool::new(POOLED_FRAMES);
        let icrc_policy = link.icrc_policy();
        let cabling = Cabling { links: vec![link], faults, seed, capture };
        let reaction = congestion.reaction(cabling.rate(0))?;
        let mut ports = port::plug(cabling, &pool)?;
        let port = ports.pop().ok_or(Error::Gone)?;
        let waiter = Waiter::new()?;
        waiter.listen_to_port(&*port)?;
        let raised = Raised::default();
        let vectors = Rc::new(raised.clone());
        let published = Arc::new(Published::new()?);
        let mut card = Card::new(
            Programmed { map: Map::default(), image, vfpgas: None, plays_fpga },
            port,
            icrc_policy,
            pool,
            vectors,
            published,
        );
        card.network.react(reaction);
        card.memory.bus.set_master(false);
        let link = Rc::new(ClientLink::new(patience));
        let listener = Listener::new(socket)?;
        waiter.listen(listener.fd(), EpollFlags::EPOLLIN)?;
        let interest = EpollFlags::empty();
        Ok(Self {
            card,
            link,
            raised,
            listener,
            waiter,
            worked: 0,
            interest,
            rounds: 0,
            told: None,
            joined: join_split_stores.then(Joined::default),
        })
    }

    /// Serves until the descriptor becomes readable; may be called again.
    ///
    /// # Errors
    /// [`Error::Host`] when the descriptor cannot be waited for.
    pub fn run(&mut self, stop: BorrowedFd<'_>) -> Result<(), Error> {
        Waiter::sharpen_timers();
        self.waiter.listen(stop, EpollFlags::EPOLLIN)?;
        loop {
            let worked = self.step();
            self.rounds = self.rounds.wrapping_add(1);
            let due = !worked || self.rounds % ROUNDS == 0 || self.link.has_waited();
            if due && is_readable(stop) {
                break;
            }
            if !worked {
                let until = self.next_look();
                self.waiter.sleep(until);
            }
        }
        self.waiter.forget(stop);
        self.card.network.port.flush();
        Ok(())
    }

    /// The client's share of this process, and the counters of card and port, by name.
    #[must_use]
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let [maps, files, events] = self.link.with_session(|s| s.holdings()).unwrap_or_default();
        let mut counters = vec![
            ("clients", u64::from(self.link.is_open())),
            ("dma_maps", maps),
            ("mapped_files", files),
            ("interrupt_eventfds", events),
            ("bus_refusals", self.card.memory.bus.refusals()),
        ];
        counters.extend(self.card.counters());
        counters
    }

    /// Works without sleeping; `true` if there was anything to do.
    pub fn step(&mut self) -> bool {
        self.link.begin_round();
        let messages = self.serve_client();
        let card = self.card_step(|card, now| card.round(now));
        self.link.with_session(|session| session.irqs.collect());
        self.tell_refusals();
        let worked = messages || card;
        if worked {
            self.worked = self.waiter.now();
        }
        if !worked || self.rounds % ROUNDS == 0 {
            self.accept();
        }
        worked
    }

    /// Logs the refusals that an IOMMU would report, one line in a while.
    fn tell_refusals(&mut self) {
        let now = self.waiter.now();
        if self.told.is_some_and(|told| now.saturating_sub(told) < TELL_NS) {
            return;
        }
        let bus = &self.card.memory.bus;
        let Some((address, rights)) = bus.take_refused() else { return };
        self.told = Some(now);
        let what = if rights.write { "write" } else { "read" };
        log::warn!(
            "the card may not {what} bus address {address:#x}: no map of the client allows it, or the card is no bus master ({} such accesses)",
            bus.refusals()
        );
    }

    /// The time of the next look at the card, without any event.
    fn next_look(&mut self) -> Option<u64> {
        let queues = self.card.network.stack.is_used();
        let now = self.waiter.now();
        let idle = now.saturating_sub(self.worked);
        let pause = (idle / LOOKS_PER_IDLE_TIME).clamp(LOOK_NS, IDLE_LOOK_NS);
        let look = queues.then(|| now.saturating_add(pause));
        [look, self.card.next_timeout()].into_iter().flatten().min()
    }

    /// Handles messages of the client; `true` if there were any.
    fn serve_client(&mut self) -> bool {
        if !self.link.is_open() {
            return false;
        }
        self.link.flush();
        let mut budget = MESSAGES;
        while let Some((header, step)) = self.link.next_step(&mut budget) {
            self.carry_out(&header, step);
        }
        if let Some(reason) = self.link.over() {
            log::info!("{reason}");
            self.disconnect();
            return true;
        }
        self.follow_interest();
        // One is taken off to find that there is no message.
        budget.saturating_add(1) < MESSAGES
    }

    /// Listens for room while messages wait for the client, else for its messages.
    fn follow_interest(&mut self) {
        let interest = match self.link.is_clogged() {
            true => EpollFlags::EPOLLOUT,
            false => EpollFlags::EPOLLIN,
        };
        if interest != self.interest {
            self.interest = interest;
            self.link.change_interest(&self.waiter, interest);
        }
    }

    fn disconnect(&mut self) {
        // The descriptor leaves the set by being closed.
        self.link.close();
        if let Some(joined) = &mut self.joined {
            joined.clear();
        }
        self.card.reset_function();
        self.link.remember(Snapshot::new());
        hostmem::heap::give_back();
    }

    /// Lets a client in, if none is there; a second one is turned away.
    fn accept(&mut self) {
        let Some(socket) = self.listener.accept() else { return };
        // The one before may have left since it was last listened to.
        self.serve_client();
        if self.link.is_open() {
            log::warn!("a second client is turned away");
            return;
        }
        match self.connect(socket) {
            Ok(()) => log::info!("a client has connected"),
            Err(error) => log::warn!("a client is turned away: {error}"),
        }
    }

    fn connect(&mut self, socket: OwnedFd) -> Result<(), Error> {
        // A client before may still hold the file of its pages.
        let doorbells = Doorbells::new()?;
        self.card.wire(doorbells.pages()?);
        self.interest = EpollFlags::EPOLLIN;
        self.waiter.listen(&socket, self.interest)?;
        let bus = Rc::clone(&self.card.memory.bus);
        let client: Rc<dyn AskedMemory> = self.link.clone();
        let is_marked = !self.card.shell.reconfiguration.takes_bitstreams();
        let session = Session::new(bus, self.raised.clone(), client, is_marked);
        self.link.open(socket, session, doorbells.into_file());
        Ok(())
    }

    fn carry_out(&mut self, header: &Header, step: Reaction) {
        match step {
            Reaction::Reply(answer) => self.link.answer(header, Ok(answer)),
            Reaction::Refuse(errno) | Reaction::End(errno) => self.link.answer(header, Err(errno)),
            Reaction::Post(answer, effects) => {
                self.link.answer(header, Ok(answer));
                effects.into_iter().for_each(|effect| self.affect(effect));
            }
            Reaction::Finish(effects, answer) => {
                effects.into_iter().for_each(|effect| self.affect(effect));
                self.link.answer(header, Ok(answer));
            }
            Reaction::Read { bar, offset, mut answer } => {
                let now = self.waiter.now();
                let data = answer.payload.get_mut(REGION_ACCESS_BYTES..).unwrap_or_default();
                access::read(&self.card, now, bar, offset, data);
                self.link.answer(header, Ok(answer));
            }
        }
    }

    fn affect(&mut self, effect: Effect) {
        let now = self.waiter.now();
        self.affect_at(now, effect);
        self.catch_up(now);
    }

    /// Runs a step of the card, and then the client's writes of meanwhile.
    fn card_step<T>(&mut self, act: impl FnOnce(&mut Card, u64) -> T) -> T {
        let now = self.waiter.now();
        self.remember(now);
        let outcome = act(&mut self.card, now);
        self.catch_up(now);
        outcome
    }

    /// Executes the client's writes of while the card waited.
    fn catch_up(&mut self, now: u64) {
        while let Some(effect) = self.link.next_posted() {
            self.affect_at(now, effect);
        }
    }

    fn affect_at(&mut self, now: u64, effect: Effect) {
        self.remember(now);
        let Self { card, joined, .. } = self;
        match (effect, joined) {
            (Effect::Write { bar, offset, data }, None) => {
                access::write(card, now, bar, offset, &data);
            }
            (Effect::Write { bar, offset, data }, Some(joined)) => {
                joined.write(card, now, bar, offset, &data);
            }
            (Effect::Reset, joined) => {
                card.reset_function();
                joined.iter_mut().for_each(|joined| joined.clear());
            }
        }
    }

    /// Keeps the values of registers, if the card may be waiting when they are read next.
    fn remember(&self, now: u64) {
        if self.link.may_ask() {
            self.link.remember(access::snapshot(&self.card, now));
        }
    }
}

/// Whether a descriptor is readable now.
fn is_readable(fd: BorrowedFd<'_>) -> bool {
    poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}
