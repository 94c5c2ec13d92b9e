//! Nodes with a connection manager each, and the network between them.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use cm::wire::{Attribute, Body, Mad, Message};
use cm::{
    Accept, Address, Bind, BindingId, Connect, Event, EventKind, Farewell, Id, Instant, Limits,
    Manager, Offer, Owner, Path, PortAttributes, PortSpace, Route, State, Transport,
};

use trial::rng::Rng;

/// The owner of everything, where a test needs only one.
pub const OWNER: Owner = Owner(7);
/// The port that services have.
pub const SERVICE: u16 = 7174;
/// The card's port of every node.
const PORT: u32 = 3;
/// How long a datagram is under way at least.
const DELAY: Duration = Duration::from_micros(50);

/// The faults of the network, in chances out of 10,000.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub loss: u32,
    pub duplicate: u32,
    /// The chance of being late by up to a second, overtaken by others.
    pub late: u32,
}

/// A datagram that a node has sent.
#[derive(Clone, Debug)]
pub struct Sent {
    pub at: Instant,
    pub node: usize,
    pub message: Message,
}

impl Sent {
    pub fn attribute(&self) -> Attribute {
        self.message.body.attribute()
    }
}

pub struct Node {
    pub manager: Manager,
    /// Its address, seen by the others.
    pub address: Address,
    pub events: VecDeque<Event>,
}

/// A source of random numbers.
type Numbers = Box<dyn FnMut() -> u64 + Send>;

type Loses = Box<dyn FnMut(usize, &Body) -> bool>;

pub struct World {
    pub now: Instant,
    pub nodes: Vec<Node>,
    pub faults: Faults,
    pub sent: Vec<Sent>,
    pub rng: Rng,
    /// Messages that are lost beside the faults: asked with the sender and the message.
    pub loses: Loses,
    wire: BTreeMap<(Instant, u64), (Route, Box<Mad>)>,
    number: u64,
}

impl World {
    pub fn new(nodes: usize) -> Self {
        Self::seeded(nodes, 1, Limits::default())
    }

    pub fn seeded(nodes: usize, seed: u64, limits: Limits) -> Self {
        Self::drawing(nodes, seed, limits, |number| {
            let mut rng = Rng::new(seed * 1000 + number as u64);
            Box::new(move || rng.next())
        })
    }

    /// A world of nodes whose managers have these numbers for random ones.
    pub fn drawing(
        nodes: usize,
        seed: u64,
        limits: Limits,
        numbers: impl Fn(usize) -> Numbers,
    ) -> Self {
        let node = |number: usize| {
            let mut manager = Manager::new(limits.clone(), numbers(number));
            let ca_guid = 0x1000 + number as u64;
            manager.set_port(PORT, PortAttributes { ca_guid, ack_delay: 15, mtu: 5 });
            let address = Address::untagged(format!("10.0.0.{}", number + 1).parse().unwrap());
            Node { manager, address, events: VecDeque::new() }
        };
        Self {
            now: Instant(1_000_000_000),
            nodes: (0..nodes).map(node).collect(),
            faults: Faults::default(),
            sent: Vec::new(),
            rng: Rng::new(seed),
            loses: Box::new(|_, _| false),
            wire: BTreeMap::new(),
            number: 0,
        }
    }

    pub fn route(&self, from: usize, to: usize) -> Route {
        Route::between(PORT, self.nodes[from].address, self.nodes[to].address)
    }

    pub fn path(&self, from: usize, to: usize) -> Path {
        Path::along(self.route(from, to), 3, 7)
    }

    /// A request of `from` to `to`, by the queue pair `qpn`.
    pub fn asks(&self, from: usize, to: usize, qpn: u32) -> Connect<'static> {
        Connect {
            path: self.path(from, to),
            space: PortSpace::Tcp,
            source_port: 40_000,
            destination_port: SERVICE,
            transport: Transport::Rc,
            qpn,
            srq: false,
            responder_resources: 4,
            initiator_depth: 3,
            flow_control: true,
            retry_count: 6,
            rnr_retry_count: 5,
            response_timeout: 20,
            max_cm_retries: 15,
            private_data: b"hello",
        }
    }

    pub fn listen(&mut self, node: usize, backlog: usize) -> BindingId {
        self.listen_for(node, PortSpace::Tcp, Offer::Connections(Transport::Rc), backlog)
    }

    pub fn listen_for(
        &mut self,
        node: usize,
        space: PortSpace,
        offer: Offer,
        backlog: usize,
    ) -> BindingId {
        let address = self.nodes[node].address.ip();
        let bind = Bind { space, address, vlan: 0, port: SERVICE, reuse: false, only_ipv6: false };
        let manager = &mut self.nodes[node].manager;
        let (id, _) = manager.bind(OWNER, bind).unwrap();
        manager.listen(id, offer, backlog).unwrap();
        id
    }

    pub fn connect(&mut self, from: usize, to: usize, qpn: u32) -> Id {
        let asks = self.asks(from, to, qpn);
        let id = self.nodes[from].manager.connect(self.now, OWNER, &asks).unwrap();
        self.drain(from);
        id
    }

    /// Calls a node's manager, and takes its events and datagrams.
    pub fn call<T>(&mut self, node: usize, call: impl FnOnce(&mut Manager, Instant) -> T) -> T {
        let answer = call(&mut self.nodes[node].manager, self.now);
        self.drain(node);
        answer
    }

    pub fn accept(&mut self, node: usize, id: Id, qpn: u32) {
        let accept = accepts(qpn);
        self.call(node, |manager, now| manager.accept(now, id, &accept)).unwrap();
    }

    pub fn ready(&mut self, node: usize, id: Id) {
        self.call(node, |manager, now| manager.ready(now, id, b"ready")).unwrap();
    }

    pub fn state(&self, node: usize, id: Id) -> State {
        self.nodes[node].manager.state(id).expect("the identifier is there")
    }

    /// Takes datagrams and events of a node.
    pub fn drain(&mut self, node: usize) {
        while let Some(transmit) = self.nodes[node].manager.poll_transmit() {
            let message = Message::parse(&transmit.datagram[..]).unwrap();
            assert_eq!(message.to_bytes(), *transmit.datagram, "reserved bits are zeros");
            self.sent.push(Sent { at: self.now, node, message });
            let lost = (self.loses)(node, &message.body) || self.rng.chance(self.faults.loss);
            let copies =
                if lost { 0 } else { 1 + u32::from(self.rng.chance(self.faults.duplicate)) };
            for _ in 0..copies {
                self.post(transmit.route, transmit.datagram.clone());
            }
        }
        while let Some(event) = self.nodes[node].manager.poll_event() {
            self.nodes[node].events.push_back(event);
        }
    }

    /// Puts a datagram on the wire; the route is the sender's.
    pub fn post(&mut self, route: Route, datagram: Box<Mad>) {
        let late = self.rng.chance(self.faults.late);
        let extra = if late { self.rng.below(1_000_000_000) } else { self.rng.below(10_000) };
        let at = self.now.after(DELAY).after(Duration::from_nanos(extra));
        self.number += 1;
        self.wire.insert((at, self.number), (route, datagram));
    }

    /// When something happens next.
    fn next(&self) -> Option<Instant> {
        let timers = self.nodes.iter().filter_map(|node| node.manager.next_deadline());
        let wire = self.wire.keys().next().map(|(at, _)| *at);
        timers.chain(wire).min()
    }

    /// Advances to the next event, if it is before `end`.
    pub fn step(&mut self, end: Instant) -> bool {
        let Some(at) = self.next().filter(|at| *at <= end) else { return false };
        self.now = self.now.max(at);
        while let Some(entry) = self.wire.first_entry().filter(|entry| entry.key().0 <= self.now) {
            let (route, datagram) = entry.remove();
            self.deliver(route, &datagram[..]);
        }
        for node in 0..self.nodes.len() {
            self.nodes[node].manager.poll(self.now);
            self.drain(node);
        }
        true
    }

    /// Hands a datagram to the node that the route leads to, at once.
    pub fn deliver(&mut self, route: Route, datagram: &[u8]) {
        let to = self.nodes.iter().position(|node| node.address == route.remote);
        let Some(to) = to else { return };
        let back = Route { local: route.remote, remote: route.local, ..route };
        self.nodes[to].manager.input(self.now, &back, 1, datagram);
        self.drain(to);
    }

    /// Lets `time` pass.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now.after(time);
        while self.step(end) {}
        self.now = end;
    }

    /// Lets time pass until nothing happens any more.
    pub fn settle(&mut self) {
        let mut steps = 0;
        while self.step(Instant(u64::MAX)) {
            steps += 1;
            assert!(steps < 1_000_000, "it never ends");
        }
    }

    /// The datagrams that a node has sent of a kind.
    pub fn count(&self, node: usize, attribute: Attribute) -> usize {
        let of = |sent: &&Sent| sent.node == node && sent.attribute() == attribute;
        self.sent.iter().filter(of).count()
    }

    /// The next event of a node.
    pub fn event(&mut self, node: usize) -> Event {
        let event = self.nodes[node].events.pop_front().expect("an event");
        assert_eq!(event.owner, OWNER);
        event
    }

    pub fn no_event(&self, node: usize) {
        assert_eq!(self.nodes[node].events, [], "of node {node}");
    }

    /// The identifier of a new request.
    pub fn request(&mut self, node: usize) -> Id {
        let event = self.event(node);
        assert!(matches!(event.kind, EventKind::ConnectRequest(_)), "{event:?}");
        event.id
    }

    /// A connection from node 0 to node 1, whose queue pairs are 100 and 200.
    pub fn connected() -> (Self, Id, Id) {
        let mut world = Self::new(2);
        world.listen(1, 5);
        let active = world.connect(0, 1, 100);
        let passive = world.establish(active, 100);
        (world, active, passive)
    }

    /// Completes node 0's request to node 1; the queue pair there is `qpn` + 100.
    pub fn establish(&mut self, active: Id, qpn: u32) -> Id {
        self.pass(Duration::from_millis(1));
        let passive = self.request(1);
        self.accept(1, passive, qpn + 100);
        self.pass(Duration::from_millis(1));
        assert!(matches!(self.event(0).kind, EventKind::ConnectResponse(_)));
        self.ready(0, active);
        self.pass(Duration::from_millis(1));
        assert!(matches!(self.event(1).kind, EventKind::Established { .. }));
        let states = (self.state(0, active), self.state(1, passive));
        assert_eq!(states, (State::Established, State::Established));
        passive
    }

    /// Nothing is left of anything.
    pub fn is_empty(&self) -> bool {
        let rests = |node: &Node| {
            let (owned, lingering, _) = node.manager.census();
            owned == 0 && lingering == 0 && node.manager.next_deadline().is_none()
        };
        self.wire.is_empty() && self.nodes.iter().all(rests)
    }
}

pub fn accepts(qpn: u32) -> Accept<'static> {
    Accept {
        qpn,
        srq: true,
        responder_resources: 3,
        initiator_depth: 2,
        flow_control: false,
        rnr_retry_count: 4,
        private_data: b"welcome",
    }
}

/// How the end of a connection was told.
pub fn farewell(event: &Event) -> Farewell {
    match &event.kind {
        EventKind::Disconnected { by, .. } => *by,
        other => panic!("{other:?} is no end"),
    }
}

/// Begins with `words`, and goes on with zeros.
pub fn is_padded(field: &[u8], words: &[u8], length: usize) -> bool {
    field.len() == length
        && field.starts_with(words)
        && field[words.len()..].iter().all(|byte| *byte == 0)
}
