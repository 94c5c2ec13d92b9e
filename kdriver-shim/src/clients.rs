//! Clients: one process each, with everything it owns.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use card_driver::Error as DriverError;
use card_driver::backend::DoorbellGrant;
use card_driver::device::Reach;
use card_driver::iova::IovaRange;
use card_driver::spans::Span;
use hostmem::{PidFd, RemoteProcess, fdpass};
use nix::errno::Errno;
use nix::sys::epoll::EpollFlags;
use shim_abi::{DoorbellAccess, Request};

use crate::cards::{Card, Window, find};
use crate::error::{ADDRESSES, Error};
use crate::images::examiner::Examined;
use crate::numbers::Numbers;
use crate::objects::{Ah, Channel, Context, Cq, Dm, Leaving, Mr, Mw, Pd, Qp, Srq, XrcTarget, Xrcd};
use crate::poller::{Poller, Watch};
use crate::process::{ClientId, Process};
use crate::quota::Usage;
use crate::rings::RingMemory;

/// The requests that a client may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Its first message is awaited.
    Greeting,
    /// It has said that it is a verbs program, and the kernel is asked about it.
    Examined,
    /// A verbs program.
    Provider,
    /// A program that asks and makes nothing.
    Tool,
    /// Its requests are not read any more, and its objects end in turns.
    Ending,
}

/// A client's share of a card: its place in one window.
#[derive(Debug)]
pub struct CardUse {
    /// The window it is pinned to.
    pub window: u8,
    /// Its doorbell page there.
    pub page: u8,
    /// The word in the client's ring memory that says whether the card is lost.
    pub state: u32,
    /// The card's addresses of the client's ring memory, once it has some.
    pub rings: Option<IovaRange>,
    /// The kind of the doorbell page's descriptors, once it is granted.
    pub access: Option<DoorbellAccess>,
    /// The doorbell page's descriptors, until they are handed out.
    pub grant: Option<DoorbellGrant>,
    /// Rings of queues that are gone, which the card may reach as long as it knows where the memory is.
    pub kept: Vec<Span>,
    /// Bytes of the card's addresses that its regions take.
    pub addresses: u64,
    /// The card has confirmed the end of all that has ended.
    pub clean: bool,
}

impl CardUse {
    /// A share with nothing yet but its doorbell page.
    #[must_use]
    pub fn new(window: u8, page: u8, state: u32) -> Self {
        let (rings, access, grant, kept, addresses) = Default::default();
        Self { window, page, state, rings, access, grant, kept, addresses, clean: true }
    }

    /// The card's address of a ring in the client's ring memory.
    ///
    /// # Errors
    /// [`Error::NoSuch`] where that has no addresses yet.
    pub fn ring_address(&self, ring: Span) -> Result<u64, Error> {
        let rings = self.rings.as_ref().map(IovaRange::start);
        let start = rings.ok_or(Error::NoSuch { object: "ring memory", number: 0 })?;
        Ok(start.wrapping_add(ring.start))
    }

    /// Takes addresses for a region of `length` bytes at virtual address `va`.
    ///
    /// # Errors
    /// [`Error::Quota`] beyond the client's present part of them, [`DriverError::NoAddressSpace`] if so
    /// many are not left in one piece.
    pub fn take_addresses(
        &mut self,
        card: &mut Card,
        length: u64,
        va: u64,
    ) -> Result<IovaRange, Error> {
        let (used, limit) = (self.addresses, card.device.arena.limit(self.addresses));
        if length > limit.saturating_sub(used) {
            return Err(Error::Quota {
                card: Some(card.device.number),
                resource: ADDRESSES,
                used,
                asked: length,
                limit,
            });
        }
        let none = DriverError::NoAddressSpace { card: card.device.number, length };
        let range = card.device.arena.allocate(length, va, Instant::now()).ok_or(none)?;
        self.addresses = used.saturating_add(range.taken());
        card.device.arena.note(used, self.addresses);
        Ok(range)
    }

    /// The party that can still reach addresses here: memory that the card was told to let go `is_unmapped`, or may
    /// still be mapped, and the engine's knowledge of it `is_released`, or may still be there.
    #[must_use]
    pub fn reach(&self, is_unmapped: bool, is_released: bool) -> Reach {
        match (is_unmapped, is_released) {
            (false, _) => Reach::Card,
            (true, false) => Reach::Engine(self.window),
            (true, true) => Reach::Nobody,
        }
    }

    /// Gives addresses of a region back as soon as no party can reach them.
    pub fn give_addresses(&mut self, card: &mut Card, range: IovaRange, reach: Reach) {
        let left = self.addresses.saturating_sub(range.taken());
        card.device.arena.note(self.addresses, left);
        self.addresses = left;
        card.device.release_iova(range, reach);
    }
}

/// A request that was begun, or has to wait, and is served again later.
#[derive(Debug)]
pub struct PutOff {
    /// The request.
    pub request: Request,
    /// Clients that were ending when it met a shortage, and have not ended since: their objects may be the missing
    /// ones.
    pub awaits: Vec<ClientId>,
    /// The examiner's finding about the request's image.
    pub found: Option<Examined>,
}

impl PutOff {
    /// A request without a finding yet.
    #[must_use]
    pub fn new(request: Request, awaits: Vec<ClientId>) -> Self {
        Self { request, awaits, found: None }
    }
}

/// A client's objects, kind by kind in the order in which they end: each before the ones that it uses.
///
/// How each is undone stands in [`crate::undo`], and for those that end by and by in [`crate::leaving`] and
/// [`crate::ending`].
#[derive(Debug, Default)]
pub struct Owned {
    /// Queue pairs by number; numbers of different cards never collide in one client.
    pub qps: BTreeMap<u32, Qp>,
    /// Handles of XRC targets.
    pub targets: BTreeMap<u32, XrcTarget>,
    /// Shared receive queues by number, as those of queue pairs.
    pub srqs: BTreeMap<u32, Srq>,
    /// Handles of XRC domains.
    pub xrcds: BTreeMap<u32, Xrcd>,
    /// Address handles.
    pub ahs: BTreeMap<u32, Ah>,
    /// Memory windows.
    pub mws: BTreeMap<u32, Mw>,
    /// Completion queues by number; numbers of different cards never collide in one client.
    pub cqs: BTreeMap<u32, Cq>,
    /// Memory regions.
    pub mrs: BTreeMap<u32, Mr>,
    /// Memory regions on their way out.
    pub leaving: Leaving,
    /// Parts of cards' own memory.
    pub dms: BTreeMap<u32, Dm>,
    /// Places on cards, by card number.
    pub places: BTreeMap<u32, CardUse>,
    /// Ring memory, from the first open context on.
    pub rings: Option<RingMemory>,
    /// Completion channels.
    pub channels: BTreeMap<u32, Channel>,
    /// Protection domains by number.
    pub pds: BTreeMap<u32, Pd>,
    /// Open contexts.
    pub contexts: BTreeMap<u32, Context>,
}

/// A client and its objects.
#[derive(Debug)]
pub struct Client {
    /// Its number.
    pub id: ClientId,
    /// Its process.
    pub process: Process,
    /// The requests that it may make.
    pub stage: Stage,
    /// Its control socket.
    pub socket: OwnedFd,
    /// The kernel takes no descriptors for that socket, and never has.
    pub refuses_descriptors: bool,
    /// Its process, as its memory is reached.
    pub handle: Arc<RemoteProcess>,
    /// Places of the two in the epoll set.
    pub watches: Vec<Watch>,
    /// Its objects; apart, for a client is moved at each of its requests.
    pub owned: Box<Owned>,
    /// Whether it was given the descriptor of its ring memory.
    pub rings_handed_out: bool,
    /// A request that is not answered yet.
    pub put_off: Option<PutOff>,
    /// The card that it has had reset, and for whose return it waits.
    pub resetting: Option<u32>,
    /// Its share of each limited resource.
    pub usage: Usage,
    /// Numbers of its contexts, regions and channels.
    pub numbers: Numbers,
    /// The block that the numbers of its protection domains lie in, once it has had one, and those in
    /// the block.
    pub pd_block: Option<u32>,
    /// See [`Self::pd_block`].
    pub pd_numbers: Numbers,
}

impl Client {
    /// A client that has just connected.
    #[must_use]
    pub fn new(id: ClientId, process: Process, socket: OwnedFd, pidfd: PidFd) -> Self {
        let pid = nix::unistd::Pid::from_raw(process.pid);
        Self {
            id,
            process,
            stage: Stage::Greeting,
            refuses_descriptors: fdpass::refuses_descriptors(socket.as_fd()),
            socket,
            handle: Arc::new(RemoteProcess::new(pid, pidfd)),
            watches: Vec::new(),
            owned: Box::default(),
            rings_handed_out: false,
            put_off: None,
            resetting: None,
            usage: Usage::default(),
            numbers: Numbers::default(),
            pd_block: None,
            pd_numbers: Numbers::default(),
        }
    }

    /// Logs why balboad refuses a request.
    pub fn log_refusal(&self, why: &Error) {
        let level = match why {
            // librdmacm tries so at each start.
            Error::Connection { errno: Errno::EAFNOSUPPORT, .. } => log::Level::Debug,
            _ => log::Level::Info,
        };
        log::log!(level, client = self.process.pid; "{} was refused: {why}", self.label());
    }

    /// The client as the log names it.
    #[must_use]
    pub fn label(&self) -> String {
        format!("{} ({})", self.process.command, self.process.pid)
    }

    /// Whether it has a card open, and is not at its end.
    #[must_use]
    pub fn has_open(&self, card: u32) -> bool {
        self.stage != Stage::Ending && self.owned.contexts.values().any(|it| it.card == card)
    }

    /// Whether it has a queue pair of that number on a card, of any type and in any state.
    #[must_use]
    pub fn has_qp(&self, card: u32, qpn: u32) -> bool {
        let owned = &self.owned;
        owned.qps.get(&qpn).is_some_and(|qp| qp.card == card)
            || owned.targets.values().any(|it| it.card == card && it.qpn == Some(qpn))
    }

    /// Takes its requests, or leaves them waiting in its socket.
    pub fn heed(&self, poller: &Poller, requests: bool) {
        let interest = if requests { EpollFlags::EPOLLIN } else { EpollFlags::empty() };
        if let Some(control) = self.watches.first() {
            poller.change(self.socket.as_fd(), control, interest);
        }
    }

    /// Whether the client has its place on a card in that window.
    #[must_use]
    pub fn uses(&self, card: u32, window: u8) -> bool {
        self.owned.places.get(&card).is_some_and(|place| place.window == window)
    }

    /// Tells the client's process that it has lost a card.
    pub fn lose_card(&self, card: u32) {
        if let (Some(rings), Some(place)) = (&self.owned.rings, self.owned.places.get(&card)) {
            rings.set_lost(place.state, true);
        }
    }

    /// The client's place on a card.
    ///
    /// # Errors
    /// [`Error::NoSuch`] where it has none.
    pub fn place(&self, card: u32) -> Result<&CardUse, Error> {
        self.owned.places.get(&card).ok_or(no_place(card))
    }

    /// The client's place on a card, to change it.
    ///
    /// # Errors
    /// [`Error::NoSuch`] where it has none.
    pub fn place_mut(&mut self, card: u32) -> Result<&mut CardUse, Error> {
        self.owned.places.get_mut(&card).ok_or(no_place(card))
    }

    /// The client's window of a card.
    ///
    /// # Errors
    /// [`Error::NoSuch`] where it has no place there.
    pub fn window<'a>(&self, cards: &'a mut [Card], card: u32) -> Result<Window<'a>, Error> {
        let window = self.place(card)?.window;
        find(cards, card)?.window(window)
    }
}

fn no_place(card: u32) -> Error {
    Error::NoSuch { object: "open card", number: u64::from(card) }
}
