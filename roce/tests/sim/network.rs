//! The network: `netsim`'s, of hosts that have their memory by bytes and work in bursts.

use std::cell::RefCell;
use std::rc::Rc;

use netsim::config::{CableSpec, Faults, SwitchConfig};
use netsim::frame::Frame;
use netsim::host::{Host, Pace};
use netsim::port::Owner;
use netsim::shape::{Cable, Plan};
use netsim::{NetworkTally, Time};
use roce::qos::Ets;
use roce::{Event, Kept, Priorities, ReceivedFrame};

use crate::ledger::Ledger;
use crate::memory::Memory;
use crate::script::Script;
use trial::rng::Rng;

/// How long a host sleeps after the first frame of a burst, in nanoseconds.
pub const WAKE_DELAY: u64 = 300;

/// Picoseconds in a nanosecond.
pub const NANO: u64 = 1_000;

/// A round of a host, as a card would do it.
const PACE: Pace = Pace { sleep: WAKE_DELAY * NANO, burst: 64 };

/// A cable that does nothing but carry: 100 Gb/s, and a microsecond.
pub const CABLE: CableSpec = CableSpec {
    rate: 100_000_000_000,
    delay: 1_000 * NANO,
    faults: Faults::NONE,
    ets: Ets::STRICT,
};

/// Switches drop nothing.
const SWITCH: SwitchConfig =
    SwitchConfig { buffer: 1 << 40, reserve: 0, pfc: Vec::new(), red: None, watchdog: None };

/// Each fault to the same degree, in units of one in 10,000 frames.
pub const fn bad(n: u32) -> Faults {
    Faults {
        loss: n,
        duplication: n,
        reordering: n,
        corruption: n,
        jitter: 3_000 * NANO,
        ..Faults::NONE
    }
}

/// A card: a transport over memory.
pub type Node = Host<Memory>;

/// The card of this number, for itself.
pub fn card(number: u32) -> Node {
    let mut card = Node::new(number, 0);
    card.pace = PACE;
    card
}

/// One round of a card that is behind no switch: the frames that it sends once it has received all that have come.
pub fn round(node: &mut Node, now: u64) -> Vec<Vec<u8>> {
    let now = Time::from_nanos(now);
    node.round(now, |_, _| {});
    hear(node);
    let mut frames = Vec::new();
    node.transmit(now, Priorities::ALL, |_, _, frame, _| frames.push(bytes(&frame)));
    hear(node);
    frames
}

fn hear(node: &mut Node) {
    while let Some(event) = node.stack.poll_event() {
        if node.memory.untold && matches!(event, Event::ReceiveCompleted { .. }) {
            assert!(node.stack.refuse_unacknowledged(event.qpn()));
        }
        node.events.push(event);
    }
}

/// All of a frame.
pub fn bytes(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.write(&mut bytes);
    bytes
}

/// Hosts on one switch. The cable is that from the switch to each of them; the other direction takes no time, and does
/// nothing to frames.
fn star(hosts: usize, link: CableSpec) -> Plan {
    let up = CableSpec { delay: 0, ..CABLE };
    let cable = |host| Cable { ends: [Owner::Switch(0), Owner::Host(host)], links: [link, up] };
    let hosts = hosts as u32;
    Plan { hosts, switches: 1, cables: (0..hosts).map(cable).collect(), watched: Vec::new() }
}

/// A random tree of `switches` switches with the hosts on them; `link` draws each direction of each cable.
pub fn tree(
    rng: &mut Rng,
    hosts: usize,
    switches: usize,
    mut link: impl FnMut(&mut Rng) -> CableSpec,
) -> Plan {
    let (hosts, switches) = (hosts as u32, switches as u32);
    let mut cables = Vec::new();
    for vertex in 1..switches + hosts {
        // A switch hangs on one with a smaller number; host n is vertex `switches` + n.
        let parent = Owner::Switch(rng.below(vertex.min(switches).into()) as u32);
        let end = match vertex.checked_sub(switches) {
            Some(host) => Owner::Host(host),
            None => Owner::Switch(vertex),
        };
        cables.push(Cable { ends: [parent, end], links: [link(rng), link(rng)] });
    }
    Plan { hosts, switches, cables, watched: Vec::new() }
}

/// All cards and the frames between them. Times are in nanoseconds.
pub struct Network {
    pub sim: netsim::Network<Memory>,
    pub rng: Rng,
    script: Rc<RefCell<Script>>,
}

impl Network {
    /// Hosts on one switch, each behind a cable with faults.
    pub fn new(seed: u64, hosts: usize, faults: Faults) -> Self {
        Self::on_cables(seed, hosts, CableSpec { faults, ..CABLE })
    }

    /// A network with a cable of another delay; otherwise as [`Network::new`].
    pub fn on_cables(seed: u64, hosts: usize, link: CableSpec) -> Self {
        Self::of(Rng::new(seed), &star(hosts, link))
    }

    /// The network of a plan.
    pub fn of(mut rng: Rng, plan: &Plan) -> Self {
        let mut sim: netsim::Network<Memory> =
            netsim::Network::build(plan, &SWITCH, &[], rng.next()).unwrap();
        for host in &mut sim.hosts {
            host.pace = PACE;
        }
        sim.run(Time::from_nanos(1_000));
        Self { sim, rng, script: Rc::default() }
    }

    pub fn now(&self) -> u64 {
        self.sim.now().nanos()
    }

    /// Keeps copies of all frames that nodes emit and receive from now on.
    pub fn record(&mut self) {
        for node in &mut self.sim.hosts {
            node.memory.capture = Some(Vec::new());
            node.memory.heard = Some(Vec::new());
            node.memory.ledger = Some(Ledger::default());
        }
    }

    /// Plays events at exact frames from now on, before the cables' own faults.
    pub fn play(&mut self, script: Script) {
        self.script = Rc::new(RefCell::new(script));
        for node in &mut self.sim.hosts {
            node.memory.script = Some(Rc::clone(&self.script));
        }
    }

    /// Takes the script back, with the trace that it has recorded.
    pub fn played(&mut self) -> Script {
        self.sim.hosts.iter_mut().for_each(|node| node.memory.script = None);
        self.script.take()
    }

    /// Lets a node work as soon as possible.
    pub fn wake(&mut self, node: usize) {
        self.sim.wake(node as u32);
    }

    /// Keeps a node from running for a time, as a busy machine does. Frames go on arriving.
    pub fn stall(&mut self, node: usize, time: u64) {
        self.sim.stall(node as u32, time * NANO);
    }

    /// Delivers a frame to node `to`, with any source address.
    pub fn inject(&mut self, to: usize, at: u64, frame: &[u8]) {
        self.sim.inject(to as u32, Time::from_nanos(at), Frame::new(frame, frame.len()));
    }

    /// Advances to the next frame or timer, if there is one.
    pub fn step(&mut self) -> bool {
        self.sim.step(Time::NEVER)
    }

    /// Steps until `done` or `deadline`, and says whether it was `done`.
    pub fn run(&mut self, deadline: u64, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let until = Time::from_nanos(deadline);
        while !done(self) {
            if !self.sim.step(until) {
                self.sim.run(until);
                return done(self);
            }
        }
        true
    }
}

/// Every frame has come somewhere, or is under way.
pub fn assert_conserved(network: &Network) {
    let tally @ NetworkTally { sent, flooded, delivered, dropped, unroutable, cables, .. } =
        network.sim.tally();
    let ended = delivered + dropped + unroutable + cables.lost + network.sim.under_way();
    assert_eq!(sent + flooded + cables.duplicated, ended, "{tally:?}");
    assert_eq!(dropped, 0, "a switch has room for all");
}

/// A frame that keeps the value that it gets.
pub struct Held {
    pub bytes: Vec<u8>,
    kept: Kept,
}

impl ReceivedFrame for Held {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn is_vouched_for(&self) -> bool {
        false
    }

    fn kept(&self) -> Kept {
        self.kept
    }

    fn keep(&mut self, kept: Kept) {
        self.kept = kept;
    }
}

impl From<Vec<u8>> for Held {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, kept: Kept::default() }
    }
}
