//! The connection manager: all connections, resolutions and listeners of a machine's cards.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::binding::{Bind, Bindings, Offer};
use crate::connection::{Connection, ExchangeKind};
use crate::counters::{self, Counters};
use crate::event::{Event, EventKind, Farewell, Rejection, Transmit};
use crate::machine::{self, Act, Input, State};
use crate::param::{self, Limits};
use crate::presence::Rate;
use crate::qp::{QpAttributes, QpTarget};
use crate::random::Random;
use crate::types::{Address, BindingId, Error, Id, Instant, Owner, Path, PortAttributes, Route};
use crate::wire::{Attribute, Body, Drep, Mad, Message, Rej, RejectReason, Rejected};

mod calls;
mod input;

/// The connection manager. See the crate's documentation for how it is driven.
#[derive(Debug)]
pub struct Manager {
    limits: Limits,
    random: Random,
    ports: BTreeMap<u32, PortAttributes>,
    bindings: Bindings,
    ids: BTreeMap<u32, Connection>,
    /// Identifiers of an owner.
    owners: BTreeMap<Owner, usize>,
    /// Identifiers that have an owner.
    owned: usize,
    /// Connections by the peer's address and its number.
    remotes: BTreeMap<(ExchangeKind, Address, u32), u32>,
    /// Connections by the peer's address and its queue pair, while they may live.
    far_ends: BTreeMap<(Address, u32), u32>,
    timers: BTreeSet<(Instant, u32)>,
    /// Identifiers without an owner, in the order in which they lost it.
    lingering: BTreeMap<u64, u32>,
    last_lingering: u64,
    transmits: VecDeque<Transmit>,
    events: VecDeque<Event>,
    counters: Counters,
    /// The answer to questions for presence: the version, and flags.
    presence: Option<(String, u8)>,
    presences: Rate,
    /// The listener whose backlog had no room for the last request.
    found_full: Option<BindingId>,
}

/// The messages and events that were prepared for a step.
#[derive(Debug, Default)]
struct Prepared {
    /// The message that is sent if the step says so.
    send: Option<Body>,
    /// The event for the owner if the step says so.
    tell: Option<EventKind>,
    /// The transaction of the message that is answered.
    answers: u64,
}

impl Manager {
    /// Bytes that an identifier costs at most, its places in the tables included: a tree's nodes are
    /// half full at least.
    pub const BYTES_OF_ID: usize = size_of::<Mad>()
        + 2 * (size_of::<(u32, Connection)>()
            + size_of::<((ExchangeKind, Address, u32), u32)>()
            + size_of::<((Address, u32), u32)>()
            + size_of::<(Instant, u32)>()
            + size_of::<(u64, u32)>());

    /// A connection manager without ports. `random` gives 64 bits at a time that no stranger can
    /// guess: communication IDs, transaction IDs, PSNs and ports are drawn of them.
    #[must_use]
    pub fn new(limits: Limits, random: Box<dyn FnMut() -> u64 + Send>) -> Self {
        Self {
            limits,
            random: Random::new(random),
            ports: BTreeMap::new(),
            bindings: Bindings::default(),
            ids: BTreeMap::new(),
            owners: BTreeMap::new(),
            owned: 0,
            remotes: BTreeMap::new(),
            far_ends: BTreeMap::new(),
            timers: BTreeSet::new(),
            lingering: BTreeMap::new(),
            last_lingering: 0,
            transmits: VecDeque::new(),
            events: VecDeque::new(),
            counters: Counters::default(),
            presence: None,
            presences: Rate::default(),
            found_full: None,
        }
    }

    /// Adds a card's port, or changes its attributes.
    pub fn set_port(&mut self, port: u32, attributes: PortAttributes) {
        self.ports.insert(port, attributes);
    }

    /// Takes a port away. Connections on it are the caller's to destroy; messages that it still owes go out as
    /// datagrams that no port sends.
    pub fn remove_port(&mut self, port: u32) {
        self.ports.remove(&port);
    }

    /// Answers questions for presence ([`crate::presence`]) from now on, by a version, and flags.
    // CM-52
    pub fn set_presence(&mut self, version: &str, flags: u8) {
        self.presence = Some((version.to_owned(), flags));
    }

    /// Binds a port for an owner; answers with the port.
    ///
    /// # Errors
    /// Where another has it, none is free, the owner has too many, or the space is not offered.
    pub fn bind(&mut self, owner: Owner, bind: Bind) -> Result<(BindingId, u16), Error> {
        self.bindings.bind(owner, bind, &self.limits, &mut self.random)
    }

    /// Changes whether a binding shares its port with others that allow it, and whether a wildcard of IPv6 shares
    /// IPv4's. Bindings that have the port already keep it.
    ///
    /// # Errors
    /// Where there is no such binding.
    pub fn share(&mut self, binding: BindingId, reuse: bool, only_ipv6: bool) -> Result<(), Error> {
        self.bindings.share(binding, reuse, only_ipv6)
    }

    /// Opens a binding for requests, of which `backlog` may be undecided at a time.
    ///
    /// # Errors
    /// Where there is no such binding, or another one with its address.
    pub fn listen(
        &mut self,
        binding: BindingId,
        offer: Offer,
        backlog: usize,
    ) -> Result<(), Error> {
        self.bindings.listen(binding, offer, backlog.min(self.limits.backlog))
    }

    /// The owner has taken note of a request: its listener's backlog has room for another. Says whether it had not before.
    // CM-21
    pub fn take_up(&mut self, id: Id) -> bool {
        let binding = self.ids.get_mut(&id.0).and_then(|connection| connection.binding.take());
        if let Some(binding) = binding {
            self.bindings.decided(binding);
        }
        binding.is_some()
    }

    /// The listener that could not be asked by the last datagram, for its backlog was full. Where its owner has taken
    /// note of requests meanwhile ([`Self::take_up`]), the datagram may be taken once more.
    pub fn take_full(&mut self) -> Option<BindingId> {
        self.found_full.take()
    }

    /// Gives a bound port back. Requests that it was asked about are their owner's to decide.
    ///
    /// # Errors
    /// Where there is no such binding.
    pub fn unbind(&mut self, binding: BindingId) -> Result<(), Error> {
        self.bindings.unbind(binding)
    }

    /// The state of a connection or resolution.
    #[must_use]
    pub fn state(&self, id: Id) -> Option<State> {
        self.owned_connection(id).ok().map(|connection| connection.state)
    }

    /// The path of a connection or resolution, seen from here.
    #[must_use]
    pub fn path(&self, id: Id) -> Option<Path> {
        self.owned_connection(id).ok().map(|connection| connection.path)
    }

    /// The attributes that bring the queue pair of a connection to a state.
    ///
    /// # Errors
    /// Where they are not known yet, or not any more.
    pub fn qp_attributes(&self, id: Id, target: QpTarget) -> Result<QpAttributes, Error> {
        let connection = self.owned_connection(id)?;
        crate::qp::attributes(connection, target)
            .ok_or(Error::State { id, state: connection.state })
    }

    /// The next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.transmits.pop_front()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The time of the next work for [`Manager::poll`].
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Handles timers that are due, up to [`param::TIMER_TURN`] of them; the rest stays due.
    pub fn poll(&mut self, now: Instant) {
        // CM-50
        for _ in 0..param::TIMER_TURN {
            let Some(&(at, id)) = self.timers.first() else { break };
            if at > now {
                break;
            }
            self.set_deadline(id, None);
            self.time_out(now, id);
        }
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Connections and resolutions that have an owner, those that have none, and bound ports.
    #[must_use]
    pub fn census(&self) -> (usize, usize, usize) {
        (self.owned, self.lingering.len(), self.bindings.len())
    }

    fn owned_connection(&self, id: Id) -> Result<&Connection, Error> {
        let connection = self.ids.get(&id.0).filter(|connection| connection.owner.is_some());
        connection.ok_or(Error::NoId(id))
    }

    fn time_out(&mut self, now: Instant, id: u32) {
        let Some(connection) = self.ids.get(&id) else { return };
        let waits = machine::step(connection.state, Input::Timeout).is_some();
        if waits && connection.left > 0 {
            self.run(now, id, Input::Timeout, Prepared::default());
            return;
        }
        let silence =
            || EventKind::Disconnected { by: Farewell::Silence, private_data: Box::default() };
        let tell = match connection.state {
            State::DreqSent => silence(),
            State::TimeWait => EventKind::TimeWaitExit,
            _ => EventKind::Unreachable,
        };
        let prepared = Prepared { send: connection.timed_out(), tell: Some(tell), answers: 0 };
        self.run(now, id, Input::Expired, prepared);
    }

    /// Another connection of the peer's has the queue pair of this one, which is therefore gone.
    // CM-35
    fn end_stale(&mut self, now: Instant, id: u32) {
        let Some(connection) = self.ids.get(&id) else { return };
        let rejection = Rejection {
            reason: RejectReason::STALE_CONNECTION,
            message: Rejected::OTHER,
            info: Box::default(),
            private_data: Box::default(),
        };
        let tell = Some(EventKind::Rejected(Box::new(rejection)));
        let send = connection.farewell();
        self.run(now, id, Input::Stale, Prepared { send, tell, answers: 0 });
    }

    /// Does the step of an input. Answers whether there is one.
    fn run(&mut self, now: Instant, id: u32, input: Input, mut prepared: Prepared) -> bool {
        let Some(connection) = self.ids.get(&id) else { return false };
        let Some(row) = machine::step(connection.state, input) else {
            counters::add(&mut self.counters.drop_state);
            return false;
        };
        if matches!(prepared.send, Some(Body::Dreq(_))) {
            self.new_transaction(id);
        }
        for act in row.does {
            self.act(now, id, *act, &mut prepared);
        }
        self.enter(id, row.to);
        true
    }

    fn act(&mut self, now: Instant, id: u32, act: Act, prepared: &mut Prepared) {
        let Some(connection) = self.ids.get_mut(&id) else { return };
        match act {
            Act::Send => {
                let Some(body) = prepared.send.take() else { return };
                let transaction_id = connection.transaction_id;
                let datagram = Box::new(Message { transaction_id, body }.to_bytes());
                connection.last_word = Some(datagram.clone());
                let (owner, route) = (connection.owner, connection.path.route);
                self.transmit(owner, route, body.attribute(), datagram);
            }
            Act::Repeat => self.repeat(id),
            Act::Mra => {
                let message = connection.mra().into();
                let (route, transaction_id) = (connection.path.route, connection.transaction_id);
                self.say(route, transaction_id, message);
            }
            Act::RefuseStale => {
                let stale = connection.rej(RejectReason::STALE_CONNECTION, &[], &[]);
                let route = connection.path.route;
                if let Ok(rej) = stale {
                    let rej = Rej { message: Rejected::REQ, ..rej };
                    self.say(route, prepared.answers, rej.into());
                }
            }
            Act::Drep => self.answer_dreq(id, prepared.answers),
            Act::Wait => {
                connection.left = connection.retries;
                let at = now.after(connection.patience);
                self.set_deadline(id, Some(at));
            }
            Act::WaitAgain => {
                connection.left = connection.left.saturating_sub(1);
                let at = now.after(connection.patience);
                self.set_deadline(id, Some(at));
            }
            Act::WaitLonger => {
                let at = now.after(connection.longer);
                self.set_deadline(id, Some(at));
            }
            Act::Rest => self.set_deadline(id, None),
            Act::WaitForPackets => {
                let at = now.after(connection.time_wait());
                self.set_deadline(id, Some(at));
            }
            Act::KeepLastWord => self.set_deadline(id, Some(now.after(param::LAST_WORD))),
            Act::Decided => {
                if let Some(binding) = connection.binding.take() {
                    self.bindings.decided(binding);
                }
            }
            Act::Tell => {
                if let (Some(owner), Some(kind)) = (connection.owner, prepared.tell.take()) {
                    self.events.push_back(Event { owner, id: Id(id), kind });
                }
            }
        }
    }

    /// Sends the last word again.
    fn repeat(&mut self, id: u32) {
        let Some(connection) = self.ids.get(&id) else { return };
        let Some(datagram) = connection.last_word.clone() else { return };
        counters::add(&mut self.counters.repeated);
        let attribute = attribute(&datagram);
        self.transmit(connection.owner, connection.path.route, attribute, datagram);
    }

    /// Answers a DREQ: as before, if it was answered before, or without words.
    fn answer_dreq(&mut self, id: u32, transaction_id: u64) {
        let Some(connection) = self.ids.get(&id) else { return };
        let last = connection.last_word.as_deref().map(attribute);
        if last == Some(Attribute::DREP) && connection.transaction_id == transaction_id {
            self.repeat(id);
        } else if let Ok(drep) = connection.drep(&[]) {
            let route = connection.path.route;
            self.say(route, transaction_id, drep.into());
        }
    }

    /// Brings a connection to a state, and drops the data that the state does not need.
    fn enter(&mut self, id: u32, state: State) {
        let Some(connection) = self.ids.get_mut(&id) else { return };
        connection.state = state;
        if !matches!(state, State::TimeWait | State::Answered | State::Ended) {
            return;
        }
        let far_end = connection.far_end();
        if self.far_ends.get(&far_end) == Some(&id) {
            self.far_ends.remove(&far_end);
        }
        if state == State::Ended {
            connection.last_word = None;
            self.forget_remote(id);
            let Some(connection) = self.ids.get(&id) else { return };
            if connection.owner.is_none() {
                self.remove(id);
            }
        }
    }

    fn forget_remote(&mut self, id: u32) {
        let Some(connection) = self.ids.get(&id) else { return };
        let Some(number) = connection.remote_id else { return };
        let key = (connection.kind, connection.path.route.remote, number);
        if self.remotes.get(&key) == Some(&id) {
            self.remotes.remove(&key);
        }
    }

    /// Takes an identifier out of all tables.
    fn remove(&mut self, id: u32) {
        self.set_deadline(id, None);
        self.forget_remote(id);
        let Some(connection) = self.ids.remove(&id) else { return };
        let far_end = connection.far_end();
        if self.far_ends.get(&far_end) == Some(&id) {
            self.far_ends.remove(&far_end);
        }
        if let Some(binding) = connection.binding {
            self.bindings.decided(binding);
        }
        if let Some(place) = connection.lingers {
            self.lingering.remove(&place);
        }
        if let Some(owner) = connection.owner {
            self.disown(owner);
        }
    }

    fn disown(&mut self, owner: Owner) {
        self.owned = self.owned.saturating_sub(1);
        if let Some(have) = self.owners.get_mut(&owner) {
            *have = have.saturating_sub(1);
            if *have == 0 {
                self.owners.remove(&owner);
            }
        }
    }

    /// Whether an owner may have one identifier more.
    // CM-49
    fn may_own(&self, owner: Owner) -> Result<(), Error> {
        let have = self.owners.get(&owner).copied().unwrap_or(0);
        let Limits { ids_per_owner, ids, .. } = self.limits;
        if have >= ids_per_owner {
            return Err(Error::Quota { what: "identifiers of an owner", most: ids_per_owner });
        }
        // No owner has more than is left for all others together: there is always something left for the next one.
        if have >= ids.saturating_sub(self.owned) {
            return Err(Error::Quota { what: "identifiers of all owners", most: ids });
        }
        Ok(())
    }

    /// Keeps a connection under its number, which was drawn.
    fn keep(&mut self, owner: Owner, mut connection: Connection) -> u32 {
        let id = connection.local_id;
        connection.owner = Some(owner);
        if let Some(number) = connection.remote_id {
            let key = (connection.kind, connection.path.route.remote, number);
            self.remotes.insert(key, id);
            if connection.kind == ExchangeKind::Connection {
                self.far_ends.insert(connection.far_end(), id);
            }
        }
        self.ids.insert(id, connection);
        self.owned = self.owned.saturating_add(1);
        let have = self.owners.entry(owner).or_insert(0);
        *have = have.saturating_add(1);
        id
    }

    /// A number that no connection has.
    // CM-12
    fn draw_id(&mut self) -> Result<u32, Error> {
        for _ in 0..param::DRAWS {
            let id = self.random.next() as u32;
            if id != 0 && !self.ids.contains_key(&id) {
                return Ok(id);
            }
        }
        Err(Error::Quota { what: "communication IDs", most: self.limits.ids })
    }

    /// A PSN to begin with: 24 bits.
    fn draw_psn(&mut self) -> u32 {
        self.random.next() as u32 & 0xff_ffff
    }

    // CM-13
    fn new_transaction(&mut self, id: u32) {
        let transaction_id = self.random.next();
        if let Some(connection) = self.ids.get_mut(&id) {
            connection.transaction_id = transaction_id;
        }
    }

    fn set_deadline(&mut self, id: u32, deadline: Option<Instant>) {
        let Some(connection) = self.ids.get_mut(&id) else { return };
        if let Some(before) = connection.deadline {
            self.timers.remove(&(before, id));
        }
        connection.deadline = deadline;
        if let Some(at) = deadline {
            self.timers.insert((at, id));
        }
    }

    /// Says something once.
    fn say(&mut self, route: Route, transaction_id: u64, body: Body) {
        let datagram = Box::new(Message { transaction_id, body }.to_bytes());
        self.transmit(None, route, body.attribute(), datagram);
    }

    fn transmit(
        &mut self,
        owner: Option<Owner>,
        route: Route,
        attribute: Attribute,
        datagram: Box<Mad>,
    ) {
        Counters::count(&mut self.counters.sent, attribute);
        self.transmits.push_back(Transmit { owner, route, datagram });
    }

    /// Answers a DREQ of a connection that is not there.
    fn say_drep(&mut self, route: Route, transaction_id: u64, local: u32, remote: u32) {
        let drep = Drep { local_comm_id: local, remote_comm_id: remote, ..Drep::ZERO };
        self.say(route, transaction_id, drep.into());
    }
}

/// The kind of message of an own datagram.
fn attribute(datagram: &Mad) -> Attribute {
    match datagram.get(16..18) {
        Some(&[high, low]) => Attribute(u16::from_be_bytes([high, low])),
        _ => Attribute(0),
    }
}
