//! The server of connection management: the counterpart of the kernel's device `rdma_cm`.
//!
//! Programs have *channels*, on channels *identifiers*, and ask by commands of the kernel's interface ([`abi`]).
//! Their events wait in the channel (`channel.rs`). The states of identifiers are those of Linux' RDMA CM
//! (`calls.rs`, `told.rs`); messages, connections and ports are [`cm::Manager`]'s, one for all cards.
//!
//! All of it runs on the control thread, which every part of it delays by a bounded amount: the cost of a command
//! follows from its own identifier, a round takes a limited number of datagrams and timers, and a channel ends in
//! parts. It never waits: a message that cannot be sent is lost, and the manager repeats it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant as Clock};

use card_driver::engine::EngineLimits;
use card_driver::gsi::{GsiAddress, GsiArrival, Party};
use cm::{BindingId, Counters, Id, Instant, Manager, Owner, PortAttributes, Route, Transmit};
use nix::errno::Errno;
use shim_abi::{CmEvent, CmReader, CmToken};

use crate::error::Error;
use crate::numbers::Numbers;
use crate::poller::Poller;
use crate::process::ClientId;
use crate::quota::{CM_EVENT_BYTES, CM_ID_BYTES, CM_JOIN_BYTES, Resource, Usage, covers};

pub mod abi;
mod ahead;
mod answers;
mod calls;
mod channel;
#[cfg(any(test, feature = "fake"))]
#[allow(clippy::expect_used, reason = "it is for tests")]
pub mod fake;
mod identifier;
pub mod network;
mod pings;
mod search;
mod told;

use ahead::{Leaving, Reader};
use channel::{CmChannel, UnreadEvent};
use identifier::{Identifier, IdentifierState};
use network::{Network, Port};

/// How long a card takes to acknowledge, as the provider tells programs: 4.096 µs · 2^code.
const ACK_DELAY: u8 = 16;
/// Identifiers of channels that end, or of cards that are gone, before others have their turn.
const ENDED_PER_TURN: usize = 32;
/// Events of a channel that are sent before others have their turn.
const SENT_PER_TURN: usize = 64;
/// Identifiers of which it is seen whether they are of a card that is gone, before others have their turn.
const LOOKED_AT_PER_TURN: usize = 256;
/// Bytes of random numbers that are asked for at a time.
const RANDOM_BYTES: usize = 512;

/// Bytes that an identifier costs at most, with its events and its places in tables.
const BYTES_OF_ID: usize = Manager::BYTES_OF_ID
    + 2 * (size_of::<(u32, Identifier)>() + size_of::<[(u64, u32); 5]>())
    // A connection tells of a request or an answer, of its beginning, end and exit, and of its card's end.
    + 6 * BYTES_OF_EVENT;
/// Bytes that a join costs at most.
const BYTES_OF_JOIN: usize = 2 * size_of::<(u32, Join)>() + size_of::<[u32; 4]>();
/// Bytes that an event costs at most.
const BYTES_OF_EVENT: usize = 2 * (size_of::<(u64, UnreadEvent)>() + size_of::<u64>()) + 256;
const _: () = assert!(covers(CM_ID_BYTES, 0, BYTES_OF_ID));
const _: () = assert!(covers(CM_JOIN_BYTES, 0, BYTES_OF_JOIN));
const _: () = assert!(covers(CM_EVENT_BYTES, 0, BYTES_OF_EVENT));

/// The caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    /// The client.
    pub client: ClientId,
    /// Its user.
    pub uid: u32,
}

/// Whether a client has a queue pair of that number on a card, of any type and in any state: the client, the card,
/// the number.
pub type HasQp<'a> = &'a dyn Fn(ClientId, u32, u32) -> bool;

/// The answer to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// The bytes.
    pub output: Vec<u8>,
    /// Numbers of void events on their way, on the channel; with MIGRATE_ID, on the channel that the identifier leaves.
    pub void: Vec<u64>,
}

/// A group that an identifier has joined.
#[derive(Debug)]
struct Join {
    of: u32,
    reported: u32,
    unread: Option<u64>,
}

/// The channels of a client, and its use of their quota.
#[derive(Debug, Default)]
struct CmClient {
    usage: Usage,
    channels: BTreeSet<u64>,
    era: ahead::Era,
}

/// The numbers of objects, of all clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Event channels.
    pub channels: usize,
    /// Identifiers.
    pub identifiers: usize,
    /// Identifiers that listen.
    pub listeners: usize,
    /// Bound ports.
    pub ports: usize,
    /// Joins.
    pub joins: usize,
    /// Connections and resolutions that programs have.
    pub connections: usize,
    /// Connections that end without a program.
    pub lingering: usize,
}

/// The server of connection management.
pub struct ConnectionManager {
    manager: Manager,
    clients: BTreeMap<ClientId, CmClient>,
    channels: BTreeMap<u64, CmChannel>,
    tokens: BTreeMap<CmToken, u64>,
    last_channel: u64,
    ids: BTreeMap<u32, Identifier>,
    numbers: Numbers,
    joins: BTreeMap<u32, Join>,
    join_numbers: Numbers,
    connections: BTreeMap<Id, u32>,
    listeners: BTreeMap<BindingId, u32>,
    // Clients that hold an event of a channel, with that.
    holders: BTreeSet<(ClientId, u64)>,
    // Channels with events that were not sent yet.
    unsent: BTreeSet<u64>,
    // Those of them that were sent as many as go in a turn, in the order of their turns.
    behind: VecDeque<u64>,
    // For each client, its identifiers whose destination is looked for, by when that goes on.
    searches: BTreeMap<ClientId, BTreeSet<(Instant, u32)>>,
    // Whose search was looked at last.
    last_looker: ClientId,
    // The addresses that `balboa ping` asks.
    pings: pings::Pings,
    // Channels that end, in the order of their turns.
    ending: VecDeque<u64>,
    // Cards that are gone, in the order of their turns, each with the number up to which its identifiers were told.
    losing: VecDeque<(u32, u32)>,
    random: Random,
    origin: Clock,
}

impl Default for ConnectionManager {
    fn default() -> Self {
        Self::new()
    }
}

impl ConnectionManager {
    /// A manager without cards.
    #[must_use]
    pub fn new() -> Self {
        let mut drawn = Random::new();
        // The manager has room for every client's quota of identifiers.
        let most = Resource::CmIds.limit(&EngineLimits::default());
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let limits =
            cm::Limits { ids_per_owner: most, bindings_per_owner: most, ..cm::Limits::default() };
        let manager = Manager::new(limits, Box::new(move || u64::from_ne_bytes(drawn.draw())));
        Self {
            manager,
            clients: BTreeMap::new(),
            channels: BTreeMap::new(),
            tokens: BTreeMap::new(),
            last_channel: 0,
            ids: BTreeMap::new(),
            numbers: Numbers::default(),
            joins: BTreeMap::new(),
            join_numbers: Numbers::default(),
            connections: BTreeMap::new(),
            listeners: BTreeMap::new(),
            holders: BTreeSet::new(),
            unsent: BTreeSet::new(),
            behind: VecDeque::new(),
            searches: BTreeMap::new(),
            last_looker: ClientId(0),
            pings: pings::Pings::default(),
            ending: VecDeque::new(),
            losing: VecDeque::new(),
            random: Random::new(),
            origin: Clock::now(),
        }
    }

    fn now(&self) -> Instant {
        Instant(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Sets a card's port.
    pub fn set_port(&mut self, card: u32, port: &Port) {
        let attributes = PortAttributes { ca_guid: port.guid, ack_delay: ACK_DELAY, mtu: port.mtu };
        self.manager.set_port(card, attributes);
    }

    /// Opens a channel: its name, and the program's end of its socket.
    ///
    /// # Errors
    /// [`Error::Quota`] where the client has too many, or why there is no socket.
    pub fn open(
        &mut self,
        poller: &Arc<Poller>,
        asker: Asker,
    ) -> Result<(CmToken, OwnedFd), Error> {
        let mut token: CmToken = self.random.draw();
        while self.tokens.contains_key(&token) {
            token = self.random.draw();
        }
        let client = self.clients.entry(asker.client).or_default();
        take(&mut client.usage, Resource::CmChannels)?;
        let key = self.last_channel.wrapping_add(1);
        let made = CmChannel::new(poller, key, asker.client, asker.uid, token);
        let (channel, theirs) = made.inspect_err(|_| {
            client.usage.give(None, Resource::CmChannels, 1);
        })?;
        self.last_channel = key;
        client.channels.insert(key);
        self.channels.insert(key, channel);
        self.tokens.insert(token, key);
        Ok((token, theirs))
    }

    /// Executes a command of a channel. The queue pair that it names, by which the peer knows the connection, has to be
    /// one of the asking client, or of the channel's client.
    ///
    /// # Errors
    /// With the error number that the kernel would have `write` return.
    pub fn command(
        &mut self,
        network: &mut dyn Network,
        has_qp: HasQp<'_>,
        asker: Asker,
        channel: CmReader,
        bytes: &[u8],
        from: Option<CmReader>,
    ) -> Result<Said, Error> {
        let key = self.named(asker, &channel.channel)?;
        self.hear(asker.client, key, channel);
        let (command, out) = abi::parse(bytes).map_err(|errno| {
            refused(errno, "the command is not one, or has no room for its answer")
        })?;
        let from = from.filter(|_| matches!(command, abi::Command::MigrateId { .. }));
        let left = from.map(|from| self.named(asker, &from.channel)).transpose()?;
        if let (Some(left), Some(from)) = (left, from) {
            self.hear(asker.client, left, from);
        }
        let caller = calls::Caller { key, asker, from: left, has_qp };
        // Only one of the two can lose events.
        let lost = left.unwrap_or(key);
        if command.ends_events() {
            self.look_what_is_read(lost);
        }
        if let Some(id) = command.changes() {
            // Its identifier is of this channel, or of none that it may use.
            let read = from.map_or(channel.read, |from| from.read);
            self.outdate(id, Some(Reader { client: asker.client, channel: lost, read }));
        }
        let outcome = self.execute(network, caller, &command, out);
        self.flush(network);
        let void = self.channels.get_mut(&lost).map(CmChannel::take_void).unwrap_or_default();
        Ok(Said { output: outcome?, void })
    }

    /// Notes the place up to which a process has read a channel, and the events that it holds.
    fn hear(&mut self, client: ClientId, key: u64, reader: CmReader) {
        if let Some(channel) = self.channels.get_mut(&key) {
            if channel.hear_held(client, reader.held) {
                self.holders.insert((client, key));
            } else {
                self.holders.remove(&(client, key));
            }
        }
        self.note_read(key, reader.read);
    }

    /// A channel's programs have read its events up to one, but for those that are held; whether they had not before.
    fn note_read(&mut self, key: u64, up_to: u64) -> bool {
        let mut is_news = false;
        let read = |channel: &mut CmChannel| channel.take_read(up_to);
        while let Some((place, event)) = self.channels.get_mut(&key).and_then(read) {
            is_news = true;
            self.settle(key, &event);
            if let Some(it) = self.ids.get_mut(&event.of) {
                it.reported = it.reported.wrapping_add(1);
                // Before it are those alone that are held.
                let at = it.unread.iter().position(|unread| *unread == place);
                at.and_then(|at| it.unread.remove(at));
            }
            if let Some(join) = event.join.and_then(|join| self.joins.get_mut(&join)) {
                join.reported = join.reported.wrapping_add(1);
                join.unread = None;
            }
            if event.number == abi::event::CONNECT_REQUEST {
                self.take_up(event.about);
            }
        }
        is_news
    }

    /// Takes an event out of its channel, with all holds on it.
    fn take_out(&mut self, key: u64, place: u64) -> Option<UnreadEvent> {
        let channel = self.channels.get_mut(&key)?;
        let event = channel.remove(place)?;
        while let Some(holder) = channel.release_holder(place) {
            self.holders.remove(&(holder, key));
        }
        Some(event)
    }

    /// A program knows of a request.
    fn take_up(&mut self, id: u32) {
        let Some(it) = self.ids.get_mut(&id) else { return };
        it.is_known = true;
        if let Some(connection) = it.connection {
            self.manager.take_up(connection);
        }
    }

    /// Notes the events of a channel that were read and not reported by a command yet, as far as its socket tells;
    /// whether there were any.
    fn look_what_is_read(&mut self, key: u64) -> bool {
        let taken = self.channels.get(&key).map_or(0, CmChannel::certainly_taken);
        self.note_read(key, taken)
    }

    /// Takes requests that processes hold off their listener's backlog: it may be long until a command reports that
    /// they were read. Whether there were any. They are held still.
    fn make_room_of_held(&mut self, key: u64) -> bool {
        let Some(channel) = self.channels.get(&key) else { return false };
        let requests = channel.held().filter(|event| event.number == abi::event::CONNECT_REQUEST);
        let connections = requests.filter_map(|event| self.ids.get(&event.about)?.connection);
        // Of all of them, not up to the first.
        connections.filter(|connection| self.manager.take_up(*connection)).count() > 0
    }

    /// The channel of a name that a process may use.
    fn named(&self, asker: Asker, token: &CmToken) -> Result<u64, Error> {
        let key =
            *self.tokens.get(token).ok_or_else(|| refused(Errno::EBADF, "no such channel"))?;
        let channel = self.channels.get(&key).filter(|channel| channel.uid == asker.uid);
        channel.map(|_| key).ok_or_else(|| refused(Errno::EACCES, "the channel of another user"))
    }

    /// Takes a datagram that a card's queue pair 1 received.
    pub fn arrived(&mut self, network: &mut dyn Network, card: u32, arrival: &GsiArrival) {
        let Some(local) = network.address(card, arrival.destination_gid_index) else { return };
        let remote = cm::Address { gid: arrival.source.into(), vlan: local.vlan };
        let from = Route {
            traffic_class: arrival.traffic_class,
            flow_label: arrival.flow_label,
            ..Route::between(card, local, remote)
        };
        let now = self.now();
        self.manager.input(now, &from, arrival.source_qpn, &arrival.datagram);
        // Its program may have read requests, and not said so.
        let full = self.manager.take_full().and_then(|full| self.listeners.get(&full).copied());
        if let Some(key) = full.and_then(|id| self.ids.get(&id)).map(|it| it.channel) {
            let is_read = self.look_what_is_read(key);
            if self.make_room_of_held(key) || is_read {
                self.manager.input_again(now, &from, arrival.source_qpn, &arrival.datagram);
                self.manager.take_full();
            }
        }
        self.flush(network);
    }

    /// The time until [`Self::tick`] has work.
    #[must_use]
    pub fn patience(&self) -> Option<Duration> {
        let at = self.next_deadline()?;
        Some(Duration::from_nanos(at.0.saturating_sub(self.now().0)))
    }

    fn next_deadline(&self) -> Option<Instant> {
        let pings = self.next_ping();
        self.manager.next_deadline().into_iter().chain(self.next_search()).chain(pings).min()
    }

    /// Does the work that is due.
    pub fn tick(&mut self, network: &mut dyn Network) {
        let now = self.now();
        self.tick_at(network, now);
    }

    fn tick_at(&mut self, network: &mut dyn Network, now: Instant) {
        if self.manager.next_deadline().is_some_and(|at| at <= now) {
            self.manager.poll(now);
            self.flush(network);
        }
        self.go_on_searching(network, now);
        self.go_on_pinging(network, now);
        self.go_on_sending(network);
        self.send_events(network);
    }

    /// Sends the datagrams that are due, and tells the events.
    fn flush(&mut self, network: &mut dyn Network) {
        loop {
            while let Some(transmit) = self.manager.poll_transmit() {
                send(network, &transmit);
            }
            let Some(event) = self.manager.poll_event() else { break };
            self.told(network, event);
        }
        self.send_events(network);
    }

    /// Sends events that are to be sent, as far as there is room for them, and some of each channel; the rest waits for
    /// its turn.
    fn send_events(&mut self, network: &dyn Network) {
        while let Some(key) = self.unsent.pop_first() {
            self.send_some_of(network, key);
        }
    }

    fn send_some_of(&mut self, network: &dyn Network, key: u64) {
        if self.channels.get(&key).is_some_and(CmChannel::has_many_on_the_way) {
            self.look_what_is_read(key);
        }
        for _ in 0..SENT_PER_TURN {
            let unsent = self.channels.get(&key).and_then(CmChannel::unsent);
            let Some((place, event)) = unsent else { return };
            let (about, number, output) = (event.about, event.number, event.encode());
            let ahead = self.ahead(network, Leaving { channel: key, place, id: about, number });
            let message = shim_abi::encode(&CmEvent { number: place, output, ahead });
            debug_assert!(message.len() <= shim_abi::CM_EVENT_BYTES, "so it is read whole");
            if let Some(channel) = self.channels.get_mut(&key) {
                channel.send(place, &message);
            }
        }
        let behind = self.channels.get_mut(&key).filter(|channel| channel.unsent().is_some());
        if behind.is_some_and(|channel| !std::mem::replace(&mut channel.waits, true)) {
            self.behind.push_back(key);
        }
    }

    /// Whether there are channels that wait for their turn to be told more.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        !self.behind.is_empty()
    }

    fn go_on_sending(&mut self, network: &dyn Network) {
        let Some(key) = self.behind.pop_front() else { return };
        if let Some(channel) = self.channels.get_mut(&key) {
            channel.waits = false;
            self.send_some_of(network, key);
        }
    }

    /// A channel's socket has room again.
    pub fn go_on_telling(&mut self, network: &dyn Network, key: u64) {
        if let Some(channel) = self.channels.get_mut(&key) {
            channel.has_room();
            self.unsent.insert(key);
            self.send_events(network);
        }
    }

    /// The program has closed all descriptors of a channel.
    pub fn hang_up(&mut self, key: u64) {
        let Some(channel) = self.channels.get_mut(&key) else { return };
        channel.unwatch();
        if self.tokens.remove(&channel.token).is_some() {
            self.ending.push_back(key);
        }
    }

    /// Ends the channels of a client, which by then holds nothing of others'.
    pub fn end_client(&mut self, client: ClientId) {
        self.end_ping(client);
        let held = self.holders.range((client, 0)..=(client, u64::MAX));
        for (client, key) in held.copied().collect::<Vec<_>>() {
            self.holders.remove(&(client, key));
            if let Some(channel) = self.channels.get_mut(&key) {
                channel.forget_holder(client);
            }
        }
        let Some(it) = self.clients.get(&client) else { return };
        let channels: Vec<_> = it.channels.iter().copied().collect();
        channels.into_iter().for_each(|key| self.hang_up(key));
        self.forget(client);
    }

    /// Whether channels wait for their end, or identifiers for the event of their card's end.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        !self.ending.is_empty() || !self.losing.is_empty()
    }

    /// Ends some identifiers of a channel that ends, and some whose card is gone.
    pub fn go_on_ending(&mut self, network: &mut dyn Network) {
        if let Some(key) = self.ending.pop_front() {
            self.end_some_of(key);
        }
        if let Some((card, from)) = self.losing.pop_front() {
            self.lose_some_of(card, from);
        }
        self.flush(network);
    }

    fn end_some_of(&mut self, key: u64) {
        let Some(channel) = self.channels.get(&key) else { return };
        let some: Vec<_> = channel.ids.iter().copied().take(ENDED_PER_TURN).collect();
        if some.is_empty() {
            let client = channel.client;
            for holder in channel.holders() {
                self.holders.remove(&(holder, key));
            }
            self.channels.remove(&key);
            if let Some(it) = self.clients.get_mut(&client) {
                it.channels.remove(&key);
                it.usage.give(None, Resource::CmChannels, 1);
            }
            self.forget(client);
            return;
        }
        for id in some {
            self.destroy(id);
        }
        self.ending.push_back(key);
    }

    /// Records that a card has died: its identifiers are told, by and by, and are good for nothing but to be destroyed.
    pub fn lose_card(&mut self, card: u32) {
        self.outdate_all();
        if !self.is_losing(card) {
            self.losing.push_back((card, 0));
        }
    }

    /// Whether there may be identifiers that were not told yet that their card is gone.
    #[must_use]
    pub fn is_losing(&self, card: u32) -> bool {
        self.losing.iter().any(|(losing, _)| *losing == card)
    }

    fn lose_some_of(&mut self, card: u32, from: u32) {
        let mut lost = Vec::new();
        let mut next = None;
        for (looked_at, (id, it)) in self.ids.range(from..).enumerate() {
            if looked_at >= LOOKED_AT_PER_TURN || lost.len() >= ENDED_PER_TURN {
                next = Some(*id);
                break;
            }
            let is_of_card = it.device.is_some_and(|device| device.card == card);
            lost.extend((is_of_card && it.state != IdentifierState::Removed).then_some(*id));
        }
        self.losing.extend(next.map(|next| (card, next)));
        for id in lost {
            self.remove(id);
        }
    }

    /// Forgets a client that has nothing.
    fn forget(&mut self, client: ClientId) {
        if self.clients.get(&client).is_some_and(|it| it.channels.is_empty()) {
            self.clients.remove(&client);
        }
    }

    /// A client's share.
    #[must_use]
    pub fn usage(&self, client: ClientId) -> Option<&Usage> {
        self.clients.get(&client).map(|it| &it.usage)
    }

    /// The numbers of objects.
    #[must_use]
    pub fn census(&self) -> Census {
        let (connections, lingering, ports) = self.manager.census();
        Census {
            channels: self.channels.len(),
            identifiers: self.ids.len(),
            listeners: self.listeners.len(),
            ports,
            joins: self.joins.len(),
            connections,
            lingering,
        }
    }

    /// The counters of messages received, sent and dropped.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        self.manager.counters()
    }

    /// The client that a channel is of, and the channel.
    fn channel(&mut self, key: u64) -> Option<(&mut CmClient, &mut CmChannel)> {
        let channel = self.channels.get_mut(&key)?;
        let client = self.clients.get_mut(&channel.client)?;
        Some((client, channel))
    }

    /// Puts an event where its identifier's channel keeps them.
    fn tell(&mut self, event: UnreadEvent) {
        let Some(it) = self.ids.get_mut(&event.of) else { return };
        let Some(channel) = self.channels.get_mut(&it.channel) else { return };
        let join = event.join;
        let place = channel.push(event);
        self.unsent.insert(it.channel);
        it.unread.push_back(place);
        if let Some(join) = join.and_then(|join| self.joins.get_mut(&join)) {
            join.unread = Some(place);
        }
    }
}

/// Sends a datagram of the manager's.
fn send(network: &mut dyn Network, transmit: &Transmit) {
    let Route { port, local, remote, traffic_class, hop_limit, sl, .. } = transmit.route;
    // A message from an address that the card has lost is dropped.
    let Some(sgid_index) = network.index(port, local) else { return };
    let dgid = remote.gid.octets();
    // A connection's flow label is for its packets. By its own each would take an address handle of the card's.
    let flow_label = 0;
    let to = GsiAddress { sgid_index, dgid, hop_limit, traffic_class, flow_label, sl };
    network.send(port, party(transmit.owner), &to, &transmit.datagram);
}

/// Counts one of a resource that belongs to no card.
fn take(usage: &mut Usage, resource: Resource) -> Result<(), Error> {
    usage.take(None, resource, 1, &EngineLimits::default())
}

/// A refusal with an error number of the kernel's.
fn refused(errno: Errno, why: impl Into<String>) -> Error {
    Error::Connection { errno, why: why.into() }
}

/// The error that a call of the manager's is.
fn refused_by(error: cm::Error) -> Error {
    use cm::Error as E;
    let errno = match error {
        E::AddressInUse => Errno::EADDRINUSE,
        E::AddressNotAvailable => Errno::EADDRNOTAVAIL,
        E::PortSpace(_) => Errno::EPROTONOSUPPORT,
        E::NoPort(_) => Errno::ENODEV,
        E::Quota { .. } => Errno::ENOMEM,
        E::NoId(_)
        | E::NoBinding(_)
        | E::State { .. }
        | E::PrivateData { .. }
        | E::Range(_)
        | E::Family => Errno::EINVAL,
    };
    refused(errno, error.to_string())
}

/// The cards' party for an owner.
fn party(owner: Option<Owner>) -> Party {
    Party(owner.map(|owner| owner.0))
}

/// The manager's owner for a client.
fn owner(client: ClientId) -> Owner {
    Owner(client.0)
}

/// Random numbers of the kernel's, some at a time.
#[derive(Debug)]
struct Random {
    buffer: [u8; RANDOM_BYTES],
    used: usize,
}

impl Random {
    fn new() -> Self {
        Self { buffer: [0; RANDOM_BYTES], used: RANDOM_BYTES }
    }

    /// Numbers that cannot be guessed.
    fn draw<const N: usize>(&mut self) -> [u8; N] {
        loop {
            let end = self.used.saturating_add(N);
            if let Some(drawn) = self.buffer.get(self.used..end).and_then(|it| it.try_into().ok()) {
                self.used = end;
                return drawn;
            }
            // The kernel may only be asked again.
            while getrandom::fill(&mut self.buffer).is_err() {}
            self.used = 0;
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
