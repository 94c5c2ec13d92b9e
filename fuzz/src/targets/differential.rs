//! The model of the published card, and the stack's own code, compiled natively: posts, packets, contexts and timers
//! that expire go to both, and after each step they must have sent, landed, completed and counted the same.
//!
//! The code is the transport with UDP and IPv4 around it. The shell's parts in front of it are not in it: splitter
//! and windows are modelled here, as the model does them, and nothing is posted that a window would hold.
//!
//! Not compared, for the natively compiled code does not show it:
//!
//! * how many packets fit between the two stages of reception: where reception stands, [`BEHIND`] more are given;
//! * requests that go out once the retransmission lists are lost: nothing is posted any more;
//! * the effects when the stack asks for payload of no bytes, or of more than a packet has, as READ responses
//!   leave it of other requests: an input ends there;
//! * the order of packets that leave at once when reception goes on, and the order of queue pairs whose timers repeat.

mod packet;
mod peer;
mod stack;

use std::collections::BTreeMap;

use arbitrary::Unstructured;
use fpga_regs::coyote::vfpga::{self as v, Command, RdmaConnection0, RdmaContext0, RdmaContext1};
use stock::{Build, Card, Host, Identity, Reach, Space, param};

use self::packet::{Packet, READ_REQUEST, RESPONSE_FIRST, RESPONSE_LAST, RESPONSE_ONLY};
use self::peer::Peer;
use self::stack::{Answer, Stack};
use crate::Outcome;

const OWN: Identity = Identity { mac: [2, 0, 0, 0, 0, 1], ipv4: 0x0a00_0001 };
const OTHER: Identity = Identity { mac: [2, 0, 0, 0, 0, 2], ipv4: 0x0a00_0002 };
/// Queue pairs, each with the address space of its number.
const QPS: u32 = 4;
/// The peer's number of a queue pair.
const REMOTE: u32 = 0x01_2340;
const UDP_PORT: u16 = 18488;
/// Steps of an input at most.
const STEPS: usize = 80;
/// Packets that are given to a card that stands.
const BEHIND: usize = param::BEHIND;

/// A packet that is posted.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    opcode: u8,
    qpn: u32,
    slot: u8,
    last: bool,
    length: u32,
    local: u64,
    remote: u64,
}

/// A command that is posted: its halves with their addresses, and the packets that it becomes.
struct Post {
    local: (Command, u64),
    remote: (Command, u64),
    is_read: bool,
    pieces: Vec<Piece>,
}

/// Which order the packets of a step have in both.
#[derive(Clone, Copy)]
enum Order {
    All,
    /// That of the packets of each queue pair.
    OfEach,
    None,
}

/// The bytes at an address of a queue pair's address space, by the rule that the harness has, too.
fn memory(ctid: u8, vaddr: u64, into: &mut [u8]) {
    for (at, byte) in (vaddr..).zip(into) {
        *byte = (at ^ at >> 8 ^ at >> 16) as u8 ^ ctid.wrapping_mul(37);
    }
}

/// The host of the model: memory that never changes, and a list of the writes.
#[derive(Default)]
struct Written {
    landings: Vec<(u8, u64, Vec<u8>)>,
    /// Where copies of counters went.
    copies: Vec<u64>,
}

impl Host for Written {
    fn read(&mut self, space: Space, vaddr: u64, into: &mut [u8]) -> Reach {
        memory(space.ctid, vaddr, into);
        Reach::Done
    }

    fn write(&mut self, space: Space, vaddr: u64, from: &[u8]) -> Reach {
        self.landings.push((space.ctid, vaddr, from.to_vec()));
        Reach::Done
    }

    fn write_back(&mut self, bus: u64, _: u32) {
        self.copies.push(bus);
    }
}

/// A window of the shell's, as [`stock`] has it.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    head: u8,
    tail: u8,
    issued: bool,
}

impl Window {
    /// The slot of another packet, if there is room for one.
    fn slot(&mut self) -> Option<u8> {
        if self.issued && self.head == self.tail {
            return None;
        }
        let slot = self.head;
        (self.head, self.issued) = ((slot + 1) % param::WINDOW, true);
        Some(slot)
    }

    fn answered(&mut self) {
        self.tail = (self.tail + 1) % param::WINDOW;
        self.issued &= self.head != self.tail;
    }
}

/// All windows: of WRITEs and SENDs, and of READs, for each queue pair.
#[derive(Clone, Copy)]
struct Windows {
    all: [[Window; QPS as usize]; 2],
    build: Build,
}

impl Windows {
    /// Changes a window by the entry that its look-up reads: an old build reads that of queue pair 0's WRITEs for all
    /// of them (STOCK-41).
    fn change<T>(&mut self, is_read: bool, qpn: usize, change: impl FnOnce(&mut Window) -> T) -> T {
        let mut window = match self.build {
            Build::Mended => self.all[usize::from(is_read)][qpn],
            Build::Old => self.all[0][0],
        };
        let changed = change(&mut window);
        self.all[usize::from(is_read)][qpn] = window;
        changed
    }

    /// Gives each packet its slot; none, if one of them had to wait.
    fn admit(&mut self, pieces: &mut [Piece]) -> bool {
        let before = *self;
        for piece in pieces {
            let is_read = piece.opcode == READ_REQUEST;
            let Some(slot) = self.change(is_read, piece.qpn as usize, Window::slot) else {
                *self = before;
                return false;
            };
            piece.slot = slot;
        }
        true
    }
}

/// Where copies of a kind of counter are wanted; the additions are far below.
fn copies_at(kind: u64) -> u64 {
    (kind + 1) << 40
}

/// The model and the stack.
struct Both {
    card: Card,
    host: Written,
    stack: Stack,
    now: u64,
    windows: Windows,
    /// READ requests whose data has not landed.
    reads_out: u8,
    /// The steps so far, for the message of a difference.
    done: Vec<String>,
    /// Packets given since reception stands.
    behind: usize,
    over: bool,
}

impl Both {
    fn new(build: Build) -> Self {
        let mut card = Card::of_build(1, build);
        card.set_identity(OWN);
        let mut both = Self {
            card,
            host: Written::default(),
            stack: Stack::new(OWN.ipv4),
            now: 0,
            windows: Windows { all: Default::default(), build },
            reads_out: 0,
            done: vec![format!("a card of the build {build:?}")],
            behind: 0,
            over: false,
        };
        let mut arp =
            [&OWN.mac[..], &OTHER.mac, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2], &OTHER.mac].concat();
        arp.extend(OTHER.ipv4.to_be_bytes());
        arp.extend(OWN.mac);
        arp.extend(OWN.ipv4.to_be_bytes());
        both.card.receive(&arp);
        both.store(v::WBACK.offset, [0, 1, 2, 3].map(copies_at));
        for qpn in 0..QPS {
            let remote_qpn = REMOTE + qpn;
            let first = RdmaConnection0 { qpn: qpn as u16, remote_qpn, udp_port: UDP_PORT };
            let gid = u64::from(OTHER.ipv4) << 32 | u64::from(OTHER.ipv4);
            both.store(v::RDMA_CONN_0, [first.encode(), gid, gid, 0]);
            let answer = both.stack.connection(qpn, remote_qpn, OTHER.ipv4, UDP_PORT);
            both.compare(vec![answer], &[], Order::All);
        }
        both
    }

    fn store(&mut self, offset: u64, words: [u64; 4]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert!(self.card.store(0, offset, &bytes, &mut self.host));
    }

    fn context(&mut self, qpn: u32, expected: u32, next: u32, rkey: u32) {
        self.done.push(format!("context of {qpn}: expects {expected:#x}, sends {next:#x}"));
        let first = RdmaContext0 { qpn, rkey }.encode();
        let second = RdmaContext1 { local_psn: expected, remote_psn: next }.encode();
        self.store(v::RDMA_CTX_0, [first, second, 0, 0]);
        let answer = self.stack.context(qpn, expected, next, rkey);
        self.compare(vec![answer], &[], Order::All);
    }

    /// Posts a command to the model, and the packets that it becomes to the stack; none of them where a window has no
    /// room, or the lists are lost.
    fn post(&mut self, post: Post) -> Vec<Piece> {
        let Post { local, remote, is_read, mut pieces } = post;
        let Some(&Piece { qpn, .. }) = pieces.first() else { return pieces };
        if self.card.starves() {
            return Vec::new();
        }
        let count = pieces.len() as u8;
        let reads = if is_read { count } else { 0 };
        let has_room = self.reads_out + reads <= param::READ_PIECES;
        if !has_room || !self.windows.admit(&mut pieces) {
            return Vec::new();
        }
        self.reads_out += reads;
        self.done.push(format!("post {pieces:x?}"));
        let [first, second] = if is_read { [remote, local] } else { [local, remote] };
        self.store(v::CTRL, [first.0.encode(), first.1, second.0.encode(), second.1]);
        let answers = pieces.iter().map(|piece| self.stack.post(piece)).collect();
        // The shell counts the payload of a WRITE or SEND, where it has read it.
        let read = !is_read && local.0.last;
        let copies = read.then(|| copies_at(0) + (u64::from(qpn) << 2));
        self.compare(answers, copies.as_slice(), Order::All);
        pieces
    }

    fn receive(&mut self, packet: &Packet) {
        let Packet { opcode, qpn, psn, reth, syndrome, payload } = packet;
        self.done.push(format!(
            "packet {opcode:#04x} to {qpn}, PSN {psn:#x}, RETH {reth:x?}, syndrome {syndrome:#x}, {} bytes",
            payload.len()
        ));
        let bytes = packet.bytes(OTHER.ipv4, OWN.ipv4);
        self.card.receive(&[&OWN.mac[..], &OTHER.mac, &[8, 0], &bytes].concat());
        let answer = self.stack.receive(&bytes);
        self.compare(vec![answer], &[], Order::All);
    }

    fn tick(&mut self) {
        self.done.push("timers expire".into());
        self.now += 2 * param::LONG_TIMEOUT;
        let answer = self.stack.tick();
        self.compare(vec![answer], &[], Order::OfEach);
    }

    /// Compares the model's effects with the stack's, with copies of counters that are not the stack's.
    fn compare(&mut self, answers: Vec<Answer>, copies: &[u64], order: Order) {
        let stood = self.card.parked().is_some();
        let mut answer = Answer::default();
        for next in answers {
            answer.packets.extend(next.packets);
            answer.landings.extend(next.landings);
            answer.acks.extend(next.acks);
            answer.read.extend(next.read);
            answer.counts = next.counts;
            answer.is_lost |= next.is_lost;
            answer.is_endless |= next.is_endless;
        }
        let mut packets = Vec::new();
        while !self.card.work(self.now, &mut self.host) {
            packets.extend(std::iter::from_fn(|| self.card.transmit()));
        }
        packets.extend(std::iter::from_fn(|| self.card.transmit()));
        let Written { landings, copies: copied } = std::mem::take(&mut self.host);
        self.same("whether it goes on for ever", &[false], &[answer.is_endless]);
        if answer.is_lost {
            self.over = true;
            return;
        }
        // Held packets go on at once, by several ways.
        self.packets(packets, &answer, if stood { Order::None } else { order });
        self.landings(landings, &answer);
        self.copies(copied, &answer, copies);
        let tally = self.card.tally();
        let counts = [tally.psn_drops, tally.repeated, tally.received, tally.sent];
        self.same("dropped for their PSN, repeated, received, sent", &counts, &answer.counts);
        for ack in &answer.acks {
            let is_read = (RESPONSE_FIRST..=RESPONSE_ONLY).contains(&ack.opcode);
            self.windows.change(is_read, ack.qpn.into(), Window::answered);
        }
        let ends = |opcode| opcode == RESPONSE_LAST || opcode == RESPONSE_ONLY;
        let landed = answer.landings.iter().filter(|landing| ends(landing.opcode)).count() as u8;
        self.reads_out = self.reads_out.saturating_sub(landed);
        self.behind = if self.card.parked().is_some() { self.behind } else { 0 };
    }

    fn packets(&self, frames: Vec<Vec<u8>>, answer: &Answer, order: Order) {
        let model = frames.iter().map(|frame| {
            let mut packet = frame[14..frame.len() - 4].to_vec();
            // The header's checksum, as the ICRC, is made behind the stack.
            packet[10..12].fill(0);
            packet
        });
        let stack = answer.packets.iter().map(|packet| {
            let length = usize::from(u16::from_be_bytes([packet[2], packet[3]])) - 4;
            packet.get(..length).unwrap_or(packet).to_vec()
        });
        let (mut model, mut stack): (Vec<_>, Vec<_>) = (model.collect(), stack.collect());
        match order {
            Order::All => {}
            Order::OfEach => {
                let qpn = |packet: &Vec<u8>| packet[33..36].to_vec();
                model.sort_by_key(qpn);
                stack.sort_by_key(qpn);
            }
            Order::None => {
                model.sort_unstable();
                stack.sort_unstable();
            }
        }
        self.same("packets", &model, &stack);
    }

    fn landings(&self, landings: Vec<(u8, u64, Vec<u8>)>, answer: &Answer) {
        let stack = answer.landings.iter().filter(|landing| !landing.bytes.is_empty());
        let stack: Vec<_> =
            stack.map(|it| ((it.qpn & 0x3f) as u8, it.vaddr, it.bytes.clone())).collect();
        self.same("payload that landed", &landings, &stack);
    }

    fn copies(&self, mut copied: Vec<u64>, answer: &Answer, others: &[u64]) {
        let local = |kind, qpn: u16| copies_at(kind) + (u64::from(qpn & 0x3f) << 2);
        let mut stack: Vec<u64> = answer.read.iter().map(|qpn| local(0, *qpn)).collect();
        let counted = answer.landings.iter().filter(|landing| landing.last);
        stack.extend(counted.map(|landing| local(1, landing.qpn)));
        for ack in answer.acks.iter().filter(|ack| ack.last) {
            let is_read = (RESPONSE_FIRST..=RESPONSE_ONLY).contains(&ack.opcode);
            // The record of a completion, as the shell makes it (STOCK-20).
            let record = u64::from(ack.opcode) << 27
                | u64::from(ack.stream) << 25
                | 3 << 23
                | u64::from(ack.dest) << 19
                | u64::from(ack.qpn & 0x3f) << 13;
            stack.push(copies_at(if is_read { 2 } else { 3 }) + (record << 2));
        }
        stack.extend(others);
        copied.sort_unstable();
        stack.sort_unstable();
        self.same("completions", &copied, &stack);
    }

    fn same<T: PartialEq + std::fmt::Debug>(&self, what: &str, model: &[T], stack: &[T]) {
        if model == stack {
            return;
        }
        let at = model.iter().zip(stack).take_while(|(model, stack)| model == stack).count();
        let [model, stack] = [model, stack].map(|all| match all.get(at) {
            Some(one) => format!("{one:x?}").chars().take(1_000).collect(),
            None => String::from("nothing"),
        });
        let done = self.done.join("\n  ");
        panic!("{what} differ, number {at}\n model {model}\n stack {stack}\nafter\n  {done}");
    }
}

pub fn run(u: &mut Unstructured<'_>) -> Outcome {
    let mut both = Both::new(if u.arbitrary()? { Build::Old } else { Build::Mended });
    let mut peers = BTreeMap::new();
    for qpn in 0..QPS {
        peers.insert(qpn, Peer::connect(u, &mut both, qpn)?);
    }
    for _ in 0..STEPS {
        let qpn = u.int_in_range(0..=QPS - 1)?;
        let Some(peer) = peers.get_mut(&qpn) else { break };
        match u.int_in_range(0..=15)? {
            0..=3 => peer.post(u, &mut both, false)?,
            4 => peer.post(u, &mut both, true)?,
            5 => both.tick(),
            6 if u.ratio(1, 4)? => *peer = Peer::connect(u, &mut both, qpn)?,
            kind => {
                let Some(packet) = (match kind {
                    6..=9 => peer.answer(),
                    10..=13 => Some(peer.request(u)?),
                    14 => Some(peer.odd_request(u)?),
                    _ => Some(peer.odd_answer(u)?),
                }) else {
                    continue;
                };
                if both.card.parked().is_some() {
                    if both.behind == BEHIND {
                        break;
                    }
                    both.behind += 1;
                }
                both.receive(&packet);
            }
        }
        if both.over {
            break;
        }
    }
    Ok(())
}
