//! Event channels, a program's substitute for the kernel's open file.
//!
//! Events go to the program by the channel's socket, whole and in their order. balboad keeps each, too, until a command
//! says how far the program has read: until then a change of its identifier may void it, or move it to another channel.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use hostmem::fdpass::{self, Wait, Writer};
use nix::sys::epoll::EpollFlags;
use nix::sys::socket::{setsockopt, sockopt};
use shim_abi::CmToken;

use super::abi::{Output, length};
use super::answers::AddressHandle;
use crate::error::Error;
use crate::poller::{Poller, Token, Watch};
use crate::process::ClientId;

/// Bytes of events, as a socket counts them, that wait in it for the program, at most; the kernel doubles it.
const SOCKET_BYTES: usize = 128 << 10;

/// Events that were sent and are not known to be read, before it is seen which were. The socket has room for fewer, so
/// that some were.
const MOST_ON_THE_WAY: usize = 1024;

/// Processes known to hold an event of a channel, at most; events of further holders count as read.
const MOST_HOLDERS: usize = 16;

/// The peer's parameters of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offered {
    /// Its queue pair.
    pub qpn: u32,
    /// Its words.
    pub private_data: Box<[u8]>,
    /// READs and atomics that it would like to have served at a time.
    pub responder_resources: u8,
    /// READs and atomics that it serves at a time.
    pub initiator_depth: u8,
    /// Whether it has end-to-end flow control.
    pub flow_control: bool,
    /// Retries.
    pub retry_count: u8,
    /// Retries after RNR NAKs.
    pub rnr_retry_count: u8,
    /// Whether its queue pair has a shared receive queue.
    pub srq: bool,
}

/// The destination of datagrams.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// The queue pair.
    pub qpn: u32,
    /// Its Q_Key.
    pub qkey: u32,
    /// The way there.
    pub to: Option<AddressHandle>,
    /// The peer's own bytes.
    pub private_data: Box<[u8]>,
}

/// The data of an event besides its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Param {
    /// Nothing.
    None,
    /// Parameters of a connection.
    Connection(Offered),
    /// Parameters of datagrams.
    Datagrams(Served),
    /// The argument of an event that the program reports to itself.
    Argument(u64),
}

/// An event that was not read yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadEvent {
    /// The identifier that counts it.
    pub of: u32,
    /// The join that counts it, too.
    pub join: Option<u32>,
    /// The program's number of the event's subject.
    pub uid: u64,
    /// The identifier that it is about, or the join.
    pub about: u32,
    /// The number of the event.
    pub number: u32,
    /// Its status: 0, the negative number of an error, or a reason.
    pub status: u32,
    /// More of it.
    pub param: Param,
}

impl UnreadEvent {
    /// The bytes that the kernel would answer GET_EVENT with.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut answer = Output::new(length::EVENT);
        answer.put(0, &self.uid.to_ne_bytes());
        answer.put(8, &self.about.to_ne_bytes());
        answer.put(12, &self.number.to_ne_bytes());
        answer.put(16, &self.status.to_ne_bytes());
        match &self.param {
            Param::None => {}
            Param::Argument(argument) => answer.put(20, &argument.to_ne_bytes()),
            Param::Connection(offered) => {
                answer.put(20, &offered.qpn.to_ne_bytes());
                answer.put(28, &offered.private_data);
                let rest = [
                    u8::try_from(offered.private_data.len()).unwrap_or(0),
                    u8::from(offered.srq),
                    offered.responder_resources,
                    offered.initiator_depth,
                    u8::from(offered.flow_control),
                    offered.retry_count,
                    offered.rnr_retry_count,
                ];
                answer.put(284, &rest);
            }
            Param::Datagrams(Served { qpn, qkey, to, private_data }) => {
                answer.put(20, &qpn.to_ne_bytes());
                answer.put(24, &qkey.to_ne_bytes());
                if let Some(to) = to {
                    answer.put(28, &to.encode());
                }
                answer.put(60, private_data);
                answer.put(316, &[u8::try_from(private_data.len()).unwrap_or(0)]);
            }
        }
        answer.cut(length::EVENT)
    }
}

/// An event channel.
#[derive(Debug)]
pub struct CmChannel {
    /// The client that made it, and whose end is its own.
    pub client: ClientId,
    /// The user with the right to it.
    pub uid: u32,
    /// The name by which programs ask for it.
    pub token: CmToken,
    /// Its identifiers.
    pub ids: BTreeSet<u32>,
    socket: Writer,
    poller: Arc<Poller>,
    watch: Option<Watch>,
    // By their places, which ascend: those that were not read, as far as it is known.
    events: BTreeMap<u64, UnreadEvent>,
    last: u64,
    // The place of the last event that is in the socket, or was.
    sent: u64,
    // How many of `events` are in the socket, or were.
    on_the_way: usize,
    // The socket has no room: the poller tells when it has.
    is_full: bool,
    // Events that were taken out while they were on their way.
    void: Vec<u64>,
    // Events that processes have taken from the socket, and their programs have not read.
    held: BTreeMap<ClientId, u64>,
    /// Whether it waits for its turn to be told more.
    pub waits: bool,
}

impl CmChannel {
    /// A new one, and the program's end of it.
    ///
    /// # Errors
    /// [`Error::Memory`] or [`Error::Os`] when descriptors run out.
    pub fn new(
        poller: &Arc<Poller>,
        key: u64,
        client: ClientId,
        uid: u32,
        token: CmToken,
    ) -> Result<(Self, OwnedFd), Error> {
        let (socket, theirs) = fdpass::one_way()?;
        setsockopt(&socket, sockopt::SndBuf, &SOCKET_BYTES)
            .map_err(Error::os("setsockopt of a channel"))?;
        let watch = poller.watch(&socket, Token::CmChannel(key), EpollFlags::empty())?;
        let channel = Self {
            client,
            uid,
            token,
            ids: BTreeSet::new(),
            socket,
            poller: Arc::clone(poller),
            watch: Some(watch),
            events: BTreeMap::new(),
            last: 0,
            sent: 0,
            on_the_way: 0,
            is_full: false,
            void: Vec::new(),
            held: BTreeMap::new(),
            waits: false,
        };
        Ok((channel, theirs))
    }

    /// Adds an event to send, and returns its place.
    pub fn push(&mut self, event: UnreadEvent) -> u64 {
        self.last = self.last.wrapping_add(1);
        self.events.insert(self.last, event);
        self.last
    }

    /// The next event to be sent, and its place; none while the socket is full.
    pub fn unsent(&self) -> Option<(u64, &UnreadEvent)> {
        let mut unsent = self.events.range(self.sent.saturating_add(1)..);
        unsent.next().filter(|_| !self.is_full).map(|(place, event)| (*place, event))
    }

    /// Sends the event of a place, which is the next; where there is no room, the poller tells when there is.
    pub fn send(&mut self, place: u64, message: &[u8]) {
        if fdpass::send(self.socket.as_fd(), message, &[], Wait::Never).is_ok() {
            self.sent = place;
            self.on_the_way = self.on_the_way.saturating_add(1);
        } else {
            // One whose other end is closed is told of by the poller, too.
            self.heed_room(true);
        }
    }

    /// The socket has room again.
    pub fn has_room(&mut self) {
        self.heed_room(false);
    }

    fn heed_room(&mut self, is_full: bool) {
        if std::mem::replace(&mut self.is_full, is_full) != is_full {
            let interest = if is_full { EpollFlags::EPOLLOUT } else { EpollFlags::empty() };
            if let Some(watch) = &self.watch {
                self.poller.change(self.socket.as_fd(), watch, interest);
            }
        }
    }

    /// Hears which event a process holds; whether it holds one.
    pub fn hear_held(&mut self, client: ClientId, place: u64) -> bool {
        self.held.remove(&client);
        let is_one = place <= self.sent && self.events.contains_key(&place);
        let holds = is_one && self.held.len() < MOST_HOLDERS;
        if holds {
            self.held.insert(client, place);
        }
        holds
    }

    /// A client that has ended holds nothing.
    pub fn forget_holder(&mut self, client: ClientId) {
        self.held.remove(&client);
    }

    /// The clients that hold events of it.
    pub fn holders(&self) -> impl Iterator<Item = ClientId> {
        self.held.keys().copied()
    }

    /// Events of it that processes hold.
    pub fn held(&self) -> impl Iterator<Item = &UnreadEvent> {
        self.held.values().filter_map(|place| self.events.get(place))
    }

    /// Releases the event of a place from one client that holds it, and returns that client.
    pub fn release_holder(&mut self, place: u64) -> Option<ClientId> {
        let holder =
            self.held.iter().find(|(_, held)| **held == place).map(|(client, _)| *client)?;
        self.held.remove(&holder);
        Some(holder)
    }

    /// Takes the oldest event that was read, and its place, where all were up to a place but for those that are held.
    pub fn take_read(&mut self, up_to: u64) -> Option<(u64, UnreadEvent)> {
        let is_left = |place| self.held.values().any(|held| *held == place);
        let mut sent = self.events.range(..=up_to.min(self.sent)).map(|(place, _)| *place);
        let place = sent.find(|place| !is_left(*place))?;
        self.on_the_way = self.on_the_way.saturating_sub(1);
        Some((place, self.events.remove(&place)?))
    }

    /// Whether so many were sent, and not known to be read, that it has to be seen which were.
    pub fn has_many_on_the_way(&self) -> bool {
        self.on_the_way >= MOST_ON_THE_WAY
    }

    /// The place up to which all events were certainly taken from the socket, with any claim of the program; all of
    /// them, if the socket is empty.
    pub fn certainly_taken(&self) -> u64 {
        if self.on_the_way == 0 {
            return 0;
        }
        let unread = fdpass::unread(self.socket.as_fd()).unwrap_or(usize::MAX);
        // Each takes more memory than it has bytes.
        let unread = unread.div_ceil(length::EVENT);
        let taken = self.on_the_way.saturating_sub(unread);
        let last = taken.checked_sub(1).and_then(|last| self.events.keys().nth(last));
        last.copied().unwrap_or(0)
    }

    /// Takes an event out by its place.
    pub fn remove(&mut self, place: u64) -> Option<UnreadEvent> {
        let event = self.events.remove(&place)?;
        if place <= self.sent {
            self.on_the_way = self.on_the_way.saturating_sub(1);
            self.void.push(place);
        }
        Some(event)
    }

    /// Places of events that were taken out while they were on their way, since this was asked last.
    pub fn take_void(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.void)
    }

    /// Stops listening to it.
    pub fn unwatch(&mut self) {
        if let Some(watch) = self.watch.take() {
            self.poller.unwatch(&self.socket, watch);
        }
        self.socket.end();
    }
}
