//! Posts to served cards as published, by one store and by its parts.

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use fpga_regs::coyote::shell::{self, CTRL_CNFG_DEFAULT, IpAddress, MacAddress};
use fpga_regs::coyote::tlb::{Entry, Geometry};
use fpga_regs::coyote::vfpga::{
    self as v, Bank, Command, RdmaConnection0, RdmaContext0, RdmaContext1, Stream,
};
use hostmem::{Access, SharedMapping, memfd};

use crate::client::*;
use crate::support::Served;

/// Memory that a card reaches, by the same address on the bus and in its address space.
const MEMORY: u64 = 1 << 32;
const BYTES: u64 = 2 << 20;
const CTID: u8 = 3;
const LENGTH: usize = 64;
/// The numbers of the counters of sent READs and WRITEs.
const READS: u64 = 2;
const WRITES: u64 = 3;

struct Node {
    client: VfioUserClient,
    memory: SharedMapping,
    number: u32,
    /// Bytes of the parts in which it stores.
    part: usize,
}

impl Node {
    fn new(served: &Served, number: u32, part: usize) -> Self {
        let mut client = VfioUserClient::enabled(&served.socket());
        let file = memfd::create("host", BYTES as usize).unwrap();
        let memory =
            SharedMapping::new(file.as_fd(), 0, BYTES as usize, Access::ReadWrite).unwrap();
        client.call_with(DMA_MAP, &map(3, 0, MEMORY, BYTES), &[file.as_fd()]).unwrap();
        let ip = IpAddress { ipv4: Self::ipv4(number) }.encode();
        client.write64(BAR4, shell::IP_ADDRESS, ip);
        let mac = MacAddress { mac: 0x0200_0000_0000 | u64::from(number) }.encode();
        client.write64(BAR4, shell::MAC_ADDRESS, mac);
        let geometry = Geometry::large(CTRL_CNFG_DEFAULT).unwrap();
        let (vaddr, paddr, stream) = (MEMORY, MEMORY, Stream::Host);
        let entry = Entry { vaddr, paddr, hpid: 7, ctid: CTID, stream, valid: true };
        for (at, word) in (0..).step_by(8).zip(entry.encode(geometry)) {
            client.write64(BAR4, v::large_tlb(0) + at, word);
        }
        Self { client, memory, number, part }
    }

    fn ipv4(number: u32) -> u32 {
        0x0a00_0001 + number
    }

    fn register(register: u64) -> u64 {
        Bank::Avx.cnfg(0) + register
    }

    /// Stores to a register, in parts, between which another thread uses one of the shell's.
    fn store(&mut self, register: u64, words: [u64; 4]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        for (at, part) in (register..).step_by(self.part).zip(bytes.chunks(self.part)) {
            self.client.write(BAR4, Self::register(at), part).unwrap();
            self.client.write64(BAR4, Self::register(v::ISR_VADDR), at);
            assert_eq!(self.client.read64(BAR4, Self::register(v::ISR_VADDR)), at);
        }
    }

    fn connect(&mut self, peer: u32) {
        let psn = |number: u32| 1000 * (1 + number);
        let qpn = u32::from(CTID);
        let first = RdmaContext0 { qpn, rkey: 5 }.encode();
        let second = RdmaContext1 { local_psn: psn(self.number), remote_psn: psn(peer) }.encode();
        self.store(v::RDMA_CTX_0, [first, second, 0, 0]);
        let first = RdmaConnection0 { qpn: CTID.into(), remote_qpn: qpn, udp_port: 18488 }.encode();
        let gid = u64::from(Self::ipv4(peer)) << 32 | u64::from(Self::ipv4(peer));
        self.store(v::RDMA_CONN_0, [first, gid, gid, 0]);
        self.store(v::NET_ARP, [Self::ipv4(peer).into(), 0, 0, 0]);
    }

    /// The command of a WRITE from the memory's begin to that of the peer's, behind its first bytes.
    fn command() -> [u64; 4] {
        let length = LENGTH as u32;
        let own =
            Command { stream: Stream::Host, ctid: CTID, length, last: true, ..Command::default() };
        let other = Command { opcode: 1, stream: Stream::Rdma, start: true, ..own };
        [own.encode(), MEMORY, other.encode(), MEMORY + LENGTH as u64]
    }

    fn sent(&mut self, which: u64) -> u64 {
        self.client.read64(BAR4, Self::register(v::SENT.offset + 8 * which))
    }

    fn bytes(&self, at: usize) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        self.memory.read_bytes(at, &mut bytes).unwrap();
        bytes
    }
}

/// Two cards that know each other, whose drivers store in parts of so many bytes.
fn pair(served: &[Served; 2], part: usize) -> [Node; 2] {
    let [mut one, mut other] = [0, 1].map(|n| Node::new(&served[n as usize], n, part));
    one.connect(1);
    other.connect(0);
    [one, other]
}

fn until(what: &str, mut so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_whole_store_posts_and_parts_do_where_they_are_joined() {
    for (join, part) in [(false, 32), (true, 32), (true, 8), (true, 16)] {
        let served = Served::published(join);
        let [mut one, other] = pair(&served, part);
        for round in 1..=3 {
            let bytes = [round as u8; LENGTH];
            one.memory.write_bytes(0, &bytes).unwrap();
            one.store(v::CTRL, Node::command());
            until("a WRITE has landed", || other.bytes(LENGTH) == bytes);
            assert_eq!((one.sent(READS), one.sent(WRITES)), (0, round), "parts of {part}");
        }
    }
}

#[test]
fn a_store_in_parts_counts_and_sends_nothing() {
    for part in [8, 16] {
        let served = Served::published(false);
        let [mut one, other] = pair(&served, part);
        one.memory.write_bytes(0, &[7; LENGTH]).unwrap();
        one.store(v::CTRL, Node::command());
        assert_eq!(one.sent(WRITES), 1);
        // No later one leaves any more, so that none arrives however long it is waited for.
        one.part = 32;
        one.store(v::CTRL, Node::command());
        until("the card has looked at it", || {
            one.client.read64(BAR4, Node::register(v::CTRL)) == 1 && one.sent(WRITES) == 2
        });
        assert_eq!(other.bytes(LENGTH), [0; LENGTH]);
    }
}

#[test]
fn a_part_without_the_next_one_is_the_store_that_it_was() {
    let served = Served::published(true);
    let [mut one, _other] = pair(&served, 8);
    let read = Command { stream: Stream::Rdma, ctid: CTID, start: true, ..Command::default() };
    let at = |register| Node::register(register);
    // The first half of a READ, and then something else.
    one.client.write64(BAR4, at(v::CTRL), read.encode());
    assert_eq!(one.sent(READS), 0, "its rest may come");
    one.client.write64(BAR4, at(v::NET_ARP), 0);
    assert_eq!(one.sent(READS), 1);
    // What does not begin at a register's begin, or has no such size, waits for nothing.
    one.client.write64(BAR4, at(v::CTRL + 16), 0);
    one.client.write(BAR4, at(v::CTRL), &read.encode().to_le_bytes()[..4]).unwrap();
    one.client.write64(BAR4, at(v::CTRL), read.encode());
    one.client.write64(BAR4, at(v::CTRL), read.encode());
    assert_eq!(one.sent(READS), 3, "the short one, and the first of two");
    // Another client finds nothing of it.
    one.client.call(RESET, &[]).unwrap();
    one.client.write(CONFIG, 4, &[0x06, 0x00]).unwrap();
    one.client.write64(BAR4, at(v::NET_ARP), 0);
    assert_eq!(one.sent(READS), 0, "it was forgotten with the reset");
}
