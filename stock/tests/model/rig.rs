//! Two cards on a cable, and single cards whose frames are made by hand.

use std::collections::BTreeMap;
use std::ops::Range;

use fpga_regs::coyote::vfpga::{
    self as v, Command, RdmaConnection0, RdmaContext0, RdmaContext1, Stream,
};
use stock::{Build, Card, Host, Identity, Reach, Space};

/// Bytes of each address space, from address 0 on.
pub const SPACE: usize = 4 << 20;
/// Where the driver wants copies of the counters.
pub const WRITEBACK: u64 = 0x8000_0000;

/// A host's memory.
#[derive(Debug, Default)]
pub struct Memory {
    spaces: BTreeMap<Space, Vec<u8>>,
    /// Addresses whose pages are not there yet, and those that there is nothing at.
    pub absent: Range<u64>,
    pub refused: Range<u64>,
    /// Counters that were written back: address and value.
    pub written_back: Vec<(u64, u32)>,
}

impl Memory {
    pub fn space(&mut self, ctid: u8) -> &mut Vec<u8> {
        self.spaces.entry(Space { vfpga: 0, ctid }).or_insert_with(|| vec![0; SPACE])
    }

    fn reach(&mut self, space: Space, vaddr: u64, length: usize) -> Result<&mut [u8], Reach> {
        let end = vaddr + length as u64;
        let meets = |range: &Range<u64>| range.start < end && vaddr < range.end;
        if meets(&self.absent) {
            return Err(Reach::Waits);
        }
        if meets(&self.refused) || end > SPACE as u64 {
            return Err(Reach::Refused);
        }
        let start = vaddr as usize;
        let bytes = self.spaces.entry(space).or_insert_with(|| vec![0; SPACE]);
        Ok(&mut bytes[start..start + length])
    }
}

impl Host for Memory {
    fn read(&mut self, space: Space, vaddr: u64, into: &mut [u8]) -> Reach {
        match self.reach(space, vaddr, into.len()) {
            Ok(bytes) => {
                into.copy_from_slice(bytes);
                Reach::Done
            }
            Err(reach) => reach,
        }
    }

    fn write(&mut self, space: Space, vaddr: u64, from: &[u8]) -> Reach {
        match self.reach(space, vaddr, from.len()) {
            Ok(bytes) => {
                bytes.copy_from_slice(from);
                Reach::Done
            }
            Err(reach) => reach,
        }
    }

    fn write_back(&mut self, bus: u64, value: u32) {
        self.written_back.push((bus, value));
    }
}

/// A card in its host.
#[derive(Debug)]
pub struct Node {
    pub card: Card,
    pub memory: Memory,
}

pub const MAC: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
pub const IPV4: [u32; 2] = [0x0a00_0001, 0x0a00_0002];

/// A command's half.
pub fn half(ctid: u8, length: u32) -> Command {
    Command { ctid, length, stream: Stream::Host, last: true, ..Command::default() }
}

/// The halves of a WRITE, before anything of them is changed.
pub fn write_halves(ctid: u8, length: u32) -> (Command, Command) {
    let remote = Command { opcode: 1, stream: Stream::Rdma, start: true, ..half(ctid, length) };
    (half(ctid, length), remote)
}

/// The same of a READ.
pub fn read_halves(ctid: u8, length: u32) -> (Command, Command) {
    let remote = Command { stream: Stream::Rdma, start: true, ..half(ctid, length) };
    (remote, half(ctid, length))
}

pub fn bytes_of(words: [u64; 4]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

impl Node {
    pub fn new(number: usize) -> Self {
        Self::of_build(number, Build::Mended)
    }

    pub fn of_build(number: usize, build: Build) -> Self {
        let mut card = Card::of_build(1, build);
        card.set_identity(Identity { mac: MAC[number], ipv4: IPV4[number] });
        Self { card, memory: Memory::default() }
    }

    pub fn store(&mut self, offset: u64, bytes: &[u8]) {
        assert!(self.card.store(0, offset, bytes, &mut self.memory));
    }

    pub fn load(&self, offset: u64) -> u64 {
        self.card.load(0, offset).unwrap()
    }

    /// Posts both halves by one store.
    pub fn post(&mut self, (first, second): (Command, Command), vaddrs: (u64, u64)) {
        let words = [first.encode(), vaddrs.0, second.encode(), vaddrs.1];
        self.store(v::CTRL, &bytes_of(words));
    }

    pub fn write(&mut self, ctid: u8, local: u64, remote: u64, length: u32) {
        self.post(write_halves(ctid, length), (local, remote));
    }

    pub fn read(&mut self, ctid: u8, local: u64, remote: u64, length: u32) {
        self.post(read_halves(ctid, length), (remote, local));
    }

    pub fn context(&mut self, ctid: u8, local_psn: u32, remote_psn: u32, rkey: u32) {
        let qpn = u32::from(ctid);
        let first = RdmaContext0 { qpn, rkey }.encode();
        let second = RdmaContext1 { local_psn, remote_psn }.encode();
        self.store(v::RDMA_CTX_0, &bytes_of([first, second, 0, 0]));
    }

    pub fn connect(&mut self, ctid: u8, remote_qpn: u32, ipv4: u32) {
        let first = RdmaConnection0 { qpn: ctid.into(), remote_qpn, udp_port: 18488 };
        let gid = u64::from(ipv4) << 32 | u64::from(ipv4);
        self.store(v::RDMA_CONN_0, &bytes_of([first.encode(), gid, gid, 0]));
    }

    /// Completions of an address space: local reads and writes, remote reads and writes.
    pub fn completed(&self, ctid: u8) -> [u32; 4] {
        let at = 32 * u64::from(ctid);
        let (local, remote) = (self.load(0x800 + at), self.load(0x808 + at));
        [local as u32, (local >> 32) as u32, remote as u32, (remote >> 32) as u32]
    }

    pub fn sent(&self) -> [u64; 4] {
        [0, 1, 2, 3].map(|kind| self.load(v::SENT.offset + 8 * kind))
    }

    pub fn queued(&self) -> u64 {
        self.load(v::CTRL)
    }

    pub fn work(&mut self, now: u64) -> bool {
        self.card.work(now, &mut self.memory)
    }

    /// Works, and takes all frames.
    pub fn frames(&mut self, now: u64) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        loop {
            let done = self.work(now);
            let before = frames.len();
            frames.extend(std::iter::from_fn(|| self.card.transmit()));
            if done || frames.len() == before {
                return frames;
            }
        }
    }
}

/// Two cards on a cable.
#[derive(Debug)]
pub struct Pair {
    pub nodes: [Node; 2],
    pub now: u64,
    /// Every frame that went over the cable, with its sender.
    pub seen: Vec<(usize, Vec<u8>)>,
}

pub const RKEY: u32 = 0x1234;

impl Pair {
    /// Two cards that know each other's Ethernet addresses, and QPs of some address spaces.
    pub fn new(ctids: &[u8]) -> Self {
        Self::of_build(ctids, Build::Mended)
    }

    /// The same of a build.
    pub fn of_build(ctids: &[u8], build: Build) -> Self {
        let nodes = [0, 1].map(|number| Node::of_build(number, build));
        let mut pair = Self { nodes, now: 0, seen: Vec::new() };
        for &ctid in ctids {
            for (number, node) in pair.nodes.iter_mut().enumerate() {
                let psns = [100 + 1000 * u32::from(ctid), 200 + 1000 * u32::from(ctid)];
                node.context(ctid, psns[number], psns[1 - number], RKEY);
                node.connect(ctid, ctid.into(), IPV4[1 - number]);
                let lookup = u64::from(IPV4[1 - number]);
                node.store(v::NET_ARP, &bytes_of([lookup, 0, 0, 0]));
            }
        }
        pair.settle();
        pair.seen.clear();
        pair
    }

    /// Lets frames pass until there are none, but those that `lost` takes, by their sender and their number.
    pub fn run(&mut self, mut lost: impl FnMut(usize, usize, &[u8]) -> bool) {
        loop {
            let mut any = false;
            for number in [0, 1] {
                for frame in self.nodes[number].frames(self.now) {
                    any = true;
                    let index = self.seen.len();
                    self.seen.push((number, frame.clone()));
                    if !lost(number, index, &frame) {
                        self.nodes[1 - number].card.receive(&frame);
                        let _ = self.nodes[1 - number].work(self.now);
                    }
                }
            }
            if !any {
                return;
            }
        }
    }

    pub fn settle(&mut self) {
        self.run(|_, _, _| false);
    }

    /// Goes on to the next due time, and lets frames pass; `false` where there is none.
    pub fn wait(&mut self) -> bool {
        let due = self.nodes.iter().filter_map(|node| node.card.next_timeout()).min();
        let Some(due) = due else { return false };
        self.now = self.now.max(due);
        self.settle();
        true
    }

    /// Opcodes that went over the cable from a card.
    pub fn opcodes(&self, sender: usize) -> Vec<u8> {
        self.seen
            .iter()
            .filter(|(from, _)| *from == sender)
            .filter_map(|(_, it)| opcode(it))
            .collect()
    }
}

/// The opcode of a frame that is a packet.
pub fn opcode(frame: &[u8]) -> Option<u8> {
    (frame[12..14] == [8, 0]).then(|| frame[42])
}

pub fn psn(frame: &[u8]) -> u32 {
    u32::from_be_bytes([0, frame[51], frame[52], frame[53]])
}

/// The RETH of a frame: address, key, length.
pub fn reth(frame: &[u8]) -> (u64, u32, u32) {
    let word = |at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
    (u64::from(word(54)) << 32 | u64::from(word(58)), word(62), word(66))
}

/// Syndrome and MSN of a frame.
pub fn aeth(frame: &[u8]) -> (u8, u32) {
    (frame[54], u32::from_be_bytes([0, frame[55], frame[56], frame[57]]))
}

pub fn asks(frame: &[u8]) -> bool {
    frame[50] & 0x80 != 0
}

/// A frame made by hand, to the card of that number. The source, and the invariant CRC, are invalid.
pub fn frame(to: usize, opcode: u8, qpn: u32, psn: u32, rest: &[u8]) -> Vec<u8> {
    let udp = 8 + 12 + rest.len() + 4;
    let mut header = vec![0x45, 0];
    header.extend((udp as u16 + 20).to_be_bytes());
    header.extend([0, 0, 0, 0, 64, 17, 0, 0, 192, 168, 77, 7]);
    header.extend(IPV4[to].to_be_bytes());
    let sum: u32 = header.chunks(2).map(|it| u32::from(u16::from_be_bytes([it[0], it[1]]))).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut frame = [&MAC[to][..], &[2, 9, 9, 9, 9, 9], &[8, 0], &header].concat();
    for word in [4791, 4791, udp as u16, 0] {
        frame.extend(u16::to_be_bytes(word));
    }
    frame.extend([opcode, 0x30, 0x12, 0x34, 0]);
    frame.extend(&qpn.to_be_bytes()[1..]);
    frame.push(0);
    frame.extend(&psn.to_be_bytes()[1..]);
    frame.extend(rest);
    frame.extend([0xde, 0xad, 0xbe, 0xef]);
    frame
}

/// An ACK, or a NAK, made by hand.
pub fn ack_frame(to: usize, qpn: u32, psn: u32, syndrome: u8) -> Vec<u8> {
    frame(to, 0x11, qpn, psn, &[syndrome, 0, 0, 0])
}

/// The bytes of a RETH and payload, behind a Base Transport Header.
pub fn with_reth(vaddr: u64, length: u32, payload: &[u8]) -> Vec<u8> {
    let key = 0xbad_cafeu32;
    [&vaddr.to_be_bytes()[..], &key.to_be_bytes(), &length.to_be_bytes(), payload].concat()
}

/// Bytes that tell where they are.
pub fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at as u8) ^ (at >> 8) as u8 ^ seed).collect()
}
