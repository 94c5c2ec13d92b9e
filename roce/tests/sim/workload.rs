//! Workloads: messages of every kind over a connection, compared byte for byte.

use std::collections::VecDeque;

use roce::{AtomicOperation, Event, Instant, Operation, PathMtu, ReceiveKind, SendRequest};

use crate::connection::End;
use crate::counting::{self, Counted};
use crate::memory::{Local, Region};
use crate::network::Network;
use trial::rng::{Rng, pattern_vec};

/// Some atomic; which one is drawn when it is posted.
pub const ATOMIC: Operation = Operation::Atomic(AtomicOperation::FetchAdd { add: 0 });

/// The filler of memory that must not be written.
const FILLER: u8 = 0xee;

/// Unused bytes between the targets of two WRITEs.
const GUARD: usize = 3;

/// One message, and where its bytes are.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    pub operation: Operation,
    pub length: u32,
    /// The pattern of its bytes (of a READ: in the peer's memory).
    key: u64,
    /// The offset in the peer's region.
    offset: usize,
    imm: u32,
    solicited: bool,
    fence: bool,
}

impl Op {
    /// Whether the peer's layer above sees a completion.
    fn consumes_receive(&self) -> bool {
        self.operation.takes_receive()
    }
}

/// How receive requests are supplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Supply {
    /// Always enough.
    Ready,
    /// One at a time, some microseconds after the last one was consumed.
    Late,
}

/// The plan of a workload.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub messages: usize,
    pub mtu: PathMtu,
    /// The longest message, in path MTUs.
    pub longest: u64,
    pub supply: Supply,
    /// The only operation, or every kind.
    pub only: Option<Operation>,
    /// The length of every message but atomics, where it is not drawn.
    pub exact: Option<u32>,
}

impl Plan {
    pub fn mixed(messages: usize, mtu: PathMtu) -> Self {
        Self { messages, mtu, longest: 12, supply: Supply::Ready, only: None, exact: None }
    }
}

/// Messages in one direction of a connection.
pub struct Flow {
    pub from: End,
    pub to: End,
    /// Along XRC: the shared receive queue of each message.
    srqns: Vec<u32>,
    ops: Vec<Op>,
    write_rkey: u32,
    read_rkey: u32,
    supply: Supply,
    longest_send: usize,
    posted: usize,
    pub completed: usize,
    /// Indices of ops whose receive completion is still to come.
    expected: VecDeque<usize>,
    /// Messages that consume a receive request.
    receives: usize,
    receives_posted: usize,
    next_supply: u64,
    /// The results of its atomics, in their order.
    pub counted: Vec<Counted>,
}

const WRITE_VA: u64 = 0x7000_0000_0001;
const READ_VA: u64 = 0x1_0003;

impl Flow {
    /// Lays out memory for `plan` at both ends.
    pub fn new(network: &mut Network, from: End, to: End, plan: &Plan) -> Self {
        let mut rng = Rng::new(network.rng.next());
        let mtu = u64::from(plan.mtu.bytes());
        let (mut ops, mut write_length, mut read_length) = (Vec::new(), 0, 0_usize);
        let read_key = rng.next();
        for _ in 0..plan.messages {
            let drawn = random_length(&mut rng, mtu, plan.longest);
            let length = plan.exact.map_or(drawn, |exact| exact as usize);
            let operation = plan.only.unwrap_or_else(|| {
                rng.pick(&[
                    Operation::Send,
                    Operation::SendImm,
                    Operation::Write,
                    Operation::Write,
                    Operation::WriteImm,
                    Operation::Read,
                    ATOMIC,
                ])
            });
            let is_atomic = matches!(operation, Operation::Atomic(_));
            let mut op = Op {
                operation,
                length: if is_atomic { AtomicOperation::LENGTH } else { length as u32 },
                key: rng.next(),
                offset: 0,
                imm: rng.next() as u32,
                solicited: rng.chance(5_000),
                fence: rng.chance(1_000),
            };
            match operation {
                Operation::Read => {
                    op.key = read_key;
                    op.offset = rng.below(100) as usize;
                    read_length = read_length.max(op.offset + length);
                }
                Operation::Write | Operation::WriteImm => {
                    op.offset = write_length + GUARD;
                    write_length = op.offset + length;
                }
                Operation::Atomic(_) => op.offset = counting::draw_word(&mut rng),
                _ => {}
            }
            ops.push(op);
        }
        let longest = ops.iter().filter(|op| op.consumes_receive()).map(|op| op.length).max();
        let shared = network.rng.chance(3_000);
        let memory = &mut network.sim.hosts[to.node].memory;
        counting::lay_out(memory);
        if shared {
            memory.shared.insert(to.qpn.value());
        }
        let write_rkey = 0x100 + memory.regions.len() as u32;
        let write = vec![FILLER; write_length + GUARD];
        memory.regions.insert(write_rkey, Region { va: WRITE_VA, bytes: write, writable: true });
        let read_rkey = write_rkey + 1;
        let read = pattern_vec(read_key, 0, read_length);
        memory.regions.insert(read_rkey, Region { va: READ_VA, bytes: read, writable: false });
        let expected: VecDeque<usize> =
            (0..ops.len()).filter(|&index| ops[index].consumes_receive()).collect();
        Self {
            from,
            to,
            srqns: Vec::new(),
            ops,
            write_rkey,
            read_rkey,
            supply: plan.supply,
            longest_send: longest.unwrap_or(0) as usize,
            posted: 0,
            completed: 0,
            receives: expected.len(),
            expected,
            receives_posted: 0,
            next_supply: 0,
            counted: Vec::new(),
        }
    }

    /// A flow along XRC to shared receive queues of a domain, each message to any of them.
    pub fn along_xrc(
        network: &mut Network,
        (from, to): (End, End),
        (domain, srqns): (u32, &[u32]),
        plan: &Plan,
    ) -> Self {
        let mut flow = Self::new(network, from, to, plan);
        flow.srqns = flow.ops.iter().map(|_| network.rng.pick(srqns)).collect();
        let memory = &mut network.sim.hosts[to.node].memory;
        memory.srqs.extend(srqns.iter().map(|srqn| (*srqn, domain)));
        flow
    }

    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    pub fn is_done(&self) -> bool {
        self.completed == self.ops.len() && self.expected.is_empty()
    }

    /// Posts messages up to the limit, and receive requests at the other end.
    pub fn pump(&mut self, network: &mut Network) {
        let now = Instant(network.now());
        let before = self.posted;
        while self.posted < self.ops.len()
            && network.sim.hosts[self.from.node].stack.send_room(self.from.qpn) != 0
        {
            let op = &mut self.ops[self.posted];
            if let Operation::Atomic(operation) = &mut op.operation {
                let memory = &network.sim.hosts[self.to.node].memory;
                *operation = counting::draw(&mut network.rng, memory, op.offset);
            }
            let op = *op;
            let node = &mut network.sim.hosts[self.from.node];
            let (remote_va, rkey) = match op.operation {
                Operation::Read => (READ_VA + op.offset as u64, self.read_rkey),
                Operation::Write | Operation::WriteImm => {
                    (WRITE_VA + op.offset as u64, self.write_rkey)
                }
                Operation::Atomic(_) => (counting::VA + op.offset as u64, counting::RKEY),
                _ => (0, 0),
            };
            let request = SendRequest {
                operation: op.operation,
                length: op.length,
                remote_va,
                rkey,
                imm: op.imm,
                solicited: op.solicited,
                fence: op.fence,
            };
            let qpn = self.from.qpn;
            let posted = match self.srqns.get(self.posted) {
                None => node.stack.post_send(now, qpn, request),
                Some(srqn) => node.stack.post_xrc_send(now, qpn, *srqn, request),
            };
            let number = posted.unwrap();
            assert_eq!(number, self.posted as u64);
            let local = match op.operation {
                Operation::Read | Operation::Atomic(_) => {
                    Local::Buffer(vec![FILLER; op.length as usize])
                }
                _ => Local::Pattern(op.key),
            };
            node.memory.messages.insert((self.from.qpn.value(), number), local);
            self.posted += 1;
        }
        if self.posted != before {
            network.wake(self.from.node);
        }
        self.supply_receives(network);
    }

    fn supply_receives(&mut self, network: &mut Network) {
        let consumed = self.receives - self.expected.len();
        let ahead = match self.supply {
            Supply::Ready => 512,
            Supply::Late if network.now() < self.next_supply => return,
            Supply::Late => 1,
        };
        while self.receives_posted < self.receives && self.receives_posted < consumed + ahead {
            let capacity = self.longest_send + network.rng.below(100) as usize;
            let memory = &mut network.sim.hosts[self.to.node].memory;
            // In the order in which messages take them.
            match self.srqns.get(self.taker(self.receives_posted)) {
                None => memory.post_receive(self.to.qpn, capacity),
                Some(srqn) => memory.post_xrc_receive(*srqn, capacity),
            };
            self.receives_posted += 1;
            self.next_supply = network.now() + network.rng.below(60_000);
        }
    }

    /// The message that takes the receive request of that number.
    fn taker(&self, number: usize) -> usize {
        let takes = |index: &usize| self.ops[*index].consumes_receive();
        (0..self.ops.len()).filter(takes).nth(number).unwrap()
    }

    /// Checks an event of either end, if it belongs to this flow.
    pub fn check(&mut self, network: &mut Network, node: usize, event: &Event) {
        match *event {
            Event::SendsCompleted { qpn, through } if self.from == (End { node, qpn }) => {
                assert!(through >= self.completed as u64, "completion {through} twice");
                assert!(through < self.posted as u64, "completion of what was not posted");
                while self.completed as u64 <= through {
                    self.check_sent(network, self.completed);
                    self.completed += 1;
                }
            }
            Event::ReceiveCompleted {
                qpn,
                srqn,
                id,
                length,
                kind,
                imm,
                solicited,
                source_qpn: None,
            } if self.to == (End { node, qpn }) => {
                let index = self.expected.pop_front().expect("an unexpected message");
                assert_eq!(srqn, self.srqns.get(index).copied(), "queue of op {index}");
                let op = self.ops[index];
                let buffer = network.sim.hosts[node].memory.buffers.remove(&id).expect("a receive");
                assert_eq!(length, op.length, "length of op {index}");
                assert_eq!(solicited, op.solicited, "solicited event of op {index}");
                let has_imm = matches!(op.operation, Operation::SendImm | Operation::WriteImm);
                assert_eq!(imm, has_imm.then_some(op.imm), "immediate of op {index}");
                let written = if op.operation == Operation::WriteImm {
                    assert_eq!(kind, ReceiveKind::Write);
                    self.check_written(network, index);
                    0
                } else {
                    assert_eq!(kind, ReceiveKind::Send);
                    op.length as usize
                };
                let (used, rest) = buffer.bytes.split_at(written);
                assert!(used == pattern_vec(op.key, 0, written), "bytes of op {index} {op:?}");
                assert!(rest.iter().all(|&byte| byte == FILLER), "op {index} wrote too far");
            }
            Event::SendFailed { .. } | Event::ReceiveFailed { .. } | Event::EnteredError { .. } => {
                panic!("at {} ns, node {node}: {event:?}", network.now());
            }
            _ => {}
        }
    }

    fn check_sent(&mut self, network: &mut Network, index: usize) {
        let op = self.ops[index];
        let message = (self.from.qpn.value(), index as u64);
        let local = network.sim.hosts[self.from.node].memory.messages.remove(&message).unwrap();
        match (op.operation, local) {
            (Operation::Read, Local::Buffer(bytes)) => {
                let right = pattern_vec(op.key, op.offset as u64, op.length as usize);
                assert!(bytes == right, "bytes of READ {index} {op:?}");
            }
            (Operation::Write | Operation::WriteImm, _) => self.check_written(network, index),
            (Operation::Atomic(operation), Local::Buffer(bytes)) => {
                let before = u64::from_ne_bytes(bytes.try_into().unwrap());
                self.counted.push(Counted { word: op.offset, operation, before });
            }
            _ => {}
        }
    }

    fn check_written(&self, network: &mut Network, index: usize) {
        let op = self.ops[index];
        let region = network.sim.hosts[self.to.node].memory.regions.get(&self.write_rkey).unwrap();
        let bytes = &region.bytes[op.offset..op.offset + op.length as usize];
        assert!(bytes == pattern_vec(op.key, 0, bytes.len()), "bytes of WRITE {index} {op:?}");
    }

    /// Checks at the end that nothing was written beside the targets.
    pub fn check_guards(&self, network: &Network) {
        let region = &network.sim.hosts[self.to.node].memory.regions[&self.write_rkey];
        let mut at = 0;
        for op in &self.ops {
            if matches!(op.operation, Operation::Write | Operation::WriteImm) {
                assert!(region.bytes[at..op.offset].iter().all(|&byte| byte == FILLER));
                at = op.offset + op.length as usize;
            }
        }
        assert!(region.bytes[at..].iter().all(|&byte| byte == FILLER));
    }
}

/// Lengths around every edge: nothing, a few bytes, about a path MTU, several of them.
fn random_length(rng: &mut Rng, mtu: u64, longest: u64) -> usize {
    let length = match rng.below(10) {
        0 => 0,
        1 | 2 => rng.between(1, 8),
        3 => mtu * rng.between(1, longest),
        4 => mtu * rng.between(1, longest) - 1,
        5 => mtu * rng.between(1, longest) + 1,
        6 => rng.below(mtu * longest),
        _ => rng.below(2 * mtu),
    };
    length as usize
}

/// Runs flows to their end, and checks them, within `limit` nanoseconds of virtual time.
pub fn run(network: &mut Network, flows: &mut [Flow], limit: u64) {
    for flow in flows.iter_mut() {
        flow.pump(network);
    }
    let deadline = network.now() + limit;
    loop {
        for node in 0..network.sim.hosts.len() {
            let events = std::mem::take(&mut network.sim.hosts[node].events);
            for event in &events {
                for flow in flows.iter_mut() {
                    flow.check(network, node, event);
                }
            }
        }
        if flows.iter().all(Flow::is_done) {
            break;
        }
        for flow in flows.iter_mut() {
            flow.pump(network);
        }
        let alive = network.step();
        if !alive || network.now() >= deadline {
            let left: Vec<_> = flows.iter().map(|flow| flow.ops.len() - flow.completed).collect();
            let what = if alive { "still at work" } else { "everything stands still" };
            panic!("{what} after {limit} ns; messages left: {left:?}");
        }
    }
    for flow in flows.iter() {
        flow.check_guards(network);
    }
    counting::check(network, flows);
}
