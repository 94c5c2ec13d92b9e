//! The network: nodes, what connects them, and virtual time.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use roce::opcode::{Class, Opcode};
use roce::wire::icrc;
use roce::{
    Event, IcrcPolicy, Instant, MacAddr, PathMtu, Placed, Placement, Stack, StackConfig, Transmit,
};

use crate::cable::{Cable, Frame};
use crate::fabric::Fabric;
use crate::ledger::{Asked, Ledger};
use crate::memory::Memory;
use crate::script::Script;
use trial::rng::Rng;

/// Frames that a node emits at a time, and the time that each of them takes.
const BUDGET: usize = 64;
pub const FRAME_TIME: u64 = 100;

/// How long a node sleeps after the first frame of a burst.
pub const WAKE_DELAY: u64 = 300;

/// One card: transport, memory, and the frames that came in.
pub struct Node {
    pub stack: Stack,
    pub memory: Memory,
    pub mac: MacAddr,
    pub ipv4: Ipv4Addr,
    pub events: Vec<Event>,
    pub inbox: Vec<Frame>,
    next_wake: Option<u64>,
    /// When the last frame leaves.
    leaves: u64,
    /// A node does not run before.
    stalled_until: u64,
    /// A node that is off neither sends nor receives.
    pub off: bool,
    pub frames_received: u64,
    /// How often it has run.
    pub rounds: u64,
    pub roce_frames_sent: u64,
    /// Copies of the frames emitted, if they are wanted.
    pub capture: Option<Vec<Vec<u8>>>,
    /// Copies of the frames received, if they are wanted.
    pub heard: Option<Vec<Frame>>,
    /// What is owed to peers, if it is to be watched.
    pub ledger: Option<Ledger>,
    /// Every request asks for an acknowledgement, as those of some cards do.
    pub insists: bool,
    /// The layer above cannot tell its program of the messages that come.
    pub untold: bool,
}

/// Something that will happen.
enum Happening {
    /// A frame from one node to another comes to the line of this number on its way.
    Hop((usize, usize, usize), Frame),
    Arrival(usize, Frame),
    Wake(usize),
}

/// All nodes and what is under way between them.
pub struct Network {
    pub now: u64,
    pub nodes: Vec<Node>,
    pub fabric: Fabric,
    pub rng: Rng,
    /// What befalls frames at exact places, before the cables' own faults.
    pub script: Option<Script>,
    /// What will happen, by time and then by when that was decided.
    queue: BTreeMap<(u64, u64), Happening>,
    next_id: u64,
}

impl Network {
    /// Nodes on one switch.
    pub fn new(seed: u64, nodes: usize, cable: Cable) -> Self {
        Self::with_fabric(Rng::new(seed), nodes, Fabric::star(nodes, cable))
    }

    /// Nodes on a fabric that was made for as many.
    pub fn with_fabric(rng: Rng, nodes: usize, fabric: Fabric) -> Self {
        let nodes = (0..nodes).map(|index| Node::new(index as u8 + 1)).collect();
        Self { now: 1_000, nodes, fabric, rng, script: None, queue: BTreeMap::new(), next_id: 0 }
    }

    fn schedule(&mut self, at: u64, happening: Happening) {
        let id = self.next_id;
        self.next_id += 1;
        self.queue.insert((at, id), happening);
    }

    /// Keeps copies of all frames that nodes emit and receive from now on.
    pub fn record(&mut self) {
        for node in &mut self.nodes {
            node.capture = Some(Vec::new());
            node.heard = Some(Vec::new());
            node.ledger = Some(Ledger::default());
        }
    }

    /// Lets a node work as soon as possible.
    pub fn wake(&mut self, node: usize) {
        self.wake_at(node, self.now);
    }

    fn wake_at(&mut self, node: usize, at: u64) {
        let at = at.max(self.now);
        if self.nodes[node].next_wake.is_none_or(|next| at < next) {
            self.nodes[node].next_wake = Some(at);
            self.schedule(at, Happening::Wake(node));
        }
    }

    /// Lets the next thing happen. Gives the node that worked, if one did; `None` in the outer
    /// option when nothing will ever happen.
    pub fn step(&mut self) -> Option<Option<usize>> {
        let ((at, _), happening) = self.queue.pop_first()?;
        assert!(at >= self.now, "time runs backwards");
        self.now = at;
        match happening {
            Happening::Hop(hop, frame) => {
                self.hop(hop, at, frame);
                Some(None)
            }
            Happening::Arrival(node, frame) => {
                if !self.nodes[node].off {
                    self.nodes[node].inbox.push(frame);
                    self.wake_at(node, at + WAKE_DELAY);
                }
                Some(None)
            }
            Happening::Wake(node) => {
                if self.nodes[node].next_wake != Some(at) {
                    return Some(None);
                }
                self.nodes[node].next_wake = None;
                let stalled = self.nodes[node].stalled_until;
                if at < stalled {
                    self.wake_at(node, stalled);
                    return Some(None);
                }
                self.work(node);
                Some(Some(node))
            }
        }
    }

    /// Keeps a node from running for a time, as a busy machine does. Frames go on arriving.
    pub fn stall(&mut self, node: usize, time: u64) {
        self.nodes[node].stalled_until = self.now + time;
    }

    /// Steps until `done` or `deadline`, and says whether it was `done`.
    pub fn run(&mut self, deadline: u64, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        loop {
            if done(self) {
                return true;
            }
            if self.now >= deadline || self.step().is_none() {
                return done(self);
            }
        }
    }

    /// One round of a node's loop, as a card would do it.
    fn work(&mut self, index: usize) {
        let now = self.now;
        let node = &mut self.nodes[index];
        if node.off {
            return;
        }
        let emitted = node.round(now);
        let busy = emitted.len() == BUDGET;
        let own = emitted.iter().filter(|frame| node.stack.hears_itself(frame));
        let looped = |frame: &Vec<u8>| Frame { looped: true, ..frame.clone().into() };
        let own: Vec<Frame> = own.map(looped).collect();
        let hears_itself = !own.is_empty();
        node.inbox.extend(own);
        // Rounds that follow fast may send at the same time, so that their frames overtake each other; not
        // where each has its place.
        let mut leaves = if self.script.is_some() { now.max(node.leaves) } else { now };
        for frame in emitted {
            leaves += FRAME_TIME;
            self.send(index, leaves, frame);
        }
        self.nodes[index].leaves = leaves;
        if hears_itself {
            self.wake_at(index, now + 1);
        }
        if busy {
            self.wake_at(index, now + BUDGET as u64 * FRAME_TIME);
        }
        if let Some(at) = self.nodes[index].stack.next_timeout() {
            self.wake_at(index, at.0.max(now + 1));
        }
    }

    /// Hands a frame of node `from` to the switch.
    fn send(&mut self, from: usize, at: u64, frame: Vec<u8>) {
        let mut frame = Frame::from(frame);
        if self.script.as_mut().is_some_and(|script| !script.carry(from, at, &mut frame)) {
            return;
        }
        let destination = MacAddr(frame.bytes[..6].try_into().unwrap());
        let targets: Vec<usize> = (0..self.nodes.len())
            .filter(|&to| {
                if destination.is_group() { to != from } else { self.nodes[to].mac == destination }
            })
            .collect();
        for to in targets {
            self.hop((from, to, 0), at, Frame { looped: to == from, ..frame.clone() });
        }
    }

    /// Puts a frame on the way to node `to`, from whoever it says.
    pub fn inject(&mut self, to: usize, at: u64, frame: Vec<u8>) {
        self.hop((to, to, 0), at, frame.into());
    }

    /// Sends a frame over one line of its way.
    fn hop(&mut self, (from, to, stage): (usize, usize, usize), at: u64, frame: Frame) {
        let (copies, ends) = self.fabric.carry(&mut self.rng, (from, to, stage), at, frame);
        for (arrival, frame) in copies {
            let next = if ends {
                Happening::Arrival(to, frame)
            } else {
                Happening::Hop((from, to, stage + 1), frame)
            };
            self.schedule(arrival, next);
        }
    }
}

impl Node {
    pub fn new(number: u8) -> Self {
        let mac = MacAddr([0x02, 0xba, 0x1b, 0x0a, 0, number]);
        let ipv4 = Ipv4Addr::new(10, 7, 0, number);
        let (mtu_max, icrc_policy) = (PathMtu::Mtu4096, IcrcPolicy::CheckAll);
        let config = StackConfig { mac, ipv4, mtu_max, icrc_policy };
        Self {
            stack: Stack::new(config),
            memory: Memory::default(),
            mac,
            ipv4,
            events: Vec::new(),
            inbox: Vec::new(),
            next_wake: None,
            leaves: 0,
            stalled_until: 0,
            off: false,
            frames_received: 0,
            rounds: 0,
            roce_frames_sent: 0,
            capture: None,
            heard: None,
            ledger: None,
            insists: false,
            untold: false,
        }
    }

    /// Receives a burst, copies, commits, collects events, and gives the frames to send.
    pub fn round(&mut self, now: u64) -> Vec<Vec<u8>> {
        let now = Instant(now);
        self.rounds += 1;
        let mut burst = std::mem::take(&mut self.inbox);
        let mut placements: Vec<Placement> = Vec::new();
        for (index, frame) in burst.iter_mut().enumerate() {
            self.frames_received += 1;
            let ledger = self.ledger.as_mut();
            let asked =
                ledger.and_then(|ledger| Some((Asked::of(&self.stack, &frame.bytes)?, ledger)));
            assert!(
                self.stack.receive(now, frame, index, &mut self.memory, &mut placements).is_ready()
            );
            if let Some((asked, ledger)) = asked {
                ledger.hear(&self.stack, &asked);
            }
        }
        if let Some(services) = self.stack.services() {
            for placement in &mut placements {
                let frame = &mut burst[placement.frame_index].bytes;
                placement.sink = services.act(placement, frame);
            }
        }
        let placed: Vec<Placed> = placements
            .iter()
            .map(|placement| self.memory.place(placement, &burst[placement.frame_index].bytes))
            .collect();
        if let Some(heard) = &mut self.heard {
            heard.extend(burst);
        }
        self.stack.commit(now, &placed);
        self.stack.handle_timeout(now);
        while let Some(event) = self.stack.poll_event() {
            if self.untold && matches!(event, Event::ReceiveCompleted { .. }) {
                assert!(self.stack.refuse_unacknowledged(event.qpn()));
            }
            self.events.push(event);
        }
        let mut emitted = Vec::new();
        let mut failed = None;
        while emitted.len() < BUDGET {
            let Some(transmit) = self.stack.poll_transmit(now) else { break };
            let qpn = transmit.payload.map(|payload| payload.qpn);
            if qpn.is_some() && qpn == failed {
                continue;
            }
            match self.assemble(now, &transmit) {
                Some(frame) => emitted.push(frame),
                None => failed = qpn,
            }
        }
        self.stack.frames_made();
        while let Some(event) = self.stack.poll_event() {
            self.events.push(event);
        }
        emitted
    }

    /// Makes a frame of what the transport emitted.
    fn assemble(&mut self, now: Instant, transmit: &Transmit) -> Option<Vec<u8>> {
        let mut frame = transmit.header.as_slice().to_vec();
        if self.insists && transmit.needs_icrc {
            insist(&mut frame);
        }
        if let Some(payload) = &transmit.payload {
            if !self.memory.fetch(payload, &mut frame) {
                self.stack.payload_failed(now, payload.qpn, payload);
                return None;
            }
        }
        frame.resize(frame.len() + usize::from(transmit.pad), 0);
        if transmit.needs_icrc {
            frame.extend([0; icrc::LENGTH]);
            icrc::append(&mut frame).expect("a frame that can be sealed");
            self.roce_frames_sent += 1;
        }
        assert_eq!(frame.len(), transmit.frame_length());
        if let Some(ledger) = &mut self.ledger {
            ledger.speak(&frame);
        }
        if let Some(capture) = &mut self.capture {
            capture.push(frame.clone());
        }
        Some(frame)
    }
}

/// Has a request ask for an acknowledgement. `header` is all that comes before the payload.
fn insist(header: &mut [u8]) {
    let transport = match header[12..14] {
        [0x08, 0x00] => 14 + 20 + 8,
        [0x86, 0xdd] => 14 + 40 + 8,
        _ => return,
    };
    let is_request = Opcode::find(header[transport])
        .is_some_and(|row| !row.class.is_response() && row.class != Class::CongestionNotification);
    if is_request {
        header[transport + 8] |= 0x80;
    }
}
