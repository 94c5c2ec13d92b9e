//! Two cards with the published image, driven by their registers as a driver would.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fpga_regs::coyote::pci::Bar;
use fpga_regs::coyote::shell::{self, CtrlCnfg, IpAddress, MacAddress};
use fpga_regs::coyote::tlb::{Entry, Geometry};
use fpga_regs::coyote::vfpga::{
    self as v, Bank, Command, EventKind, IsrRead, IsrWrite, RdmaConnection0, RdmaContext0,
    RdmaContext1, Stream,
};
use hostmem::{Access, DmaMemory, PidFd, RemoteProcess, SharedMapping, memfd};
use nix::unistd::Pid;
use softcard::{CardConfig, CardHandle, Image, Link, Runtime, RuntimeConfig};
use std::os::fd::AsFd;

/// Bytes of memory that each card can reach; virtual and bus addresses are the same.
const BYTES: u64 = 4 << 20;
const MEMORY: u64 = 1 << 32;
const PAGE: u64 = 2 << 20;
const HPID: u32 = 77;

struct Node {
    card: CardHandle,
    memory: Arc<SharedMapping>,
    number: u32,
}

/// Two cards on the switch.
struct Pair {
    nodes: [Node; 2],
    runtime: Option<Runtime>,
}

fn bytes_of(words: [u64; 4]) -> [u8; 32] {
    let mut bytes = [0; 32];
    for (into, word) in bytes.chunks_exact_mut(8).zip(words) {
        into.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

impl Node {
    fn new(card: CardHandle, number: u32) -> Self {
        let file = memfd::create("host", BYTES as usize).unwrap();
        let memory =
            SharedMapping::new(file.as_fd(), 0, BYTES as usize, Access::ReadWrite).unwrap();
        let node = Self { card, memory: Arc::new(memory), number };
        let shared = DmaMemory::Shared { mapping: Arc::clone(&node.memory), offset: 0 };
        node.card.dma_map(MEMORY, BYTES, shared).unwrap();
        let ipv4 = IpAddress { ipv4: node.ipv4() }.encode();
        node.card.write(Bar::Shell, shell::IP_ADDRESS, 8, ipv4);
        let mac = MacAddress { mac: 0x0200_0000_0000 | u64::from(number) }.encode();
        node.card.write(Bar::Shell, shell::MAC_ADDRESS, 8, mac);
        node
    }

    fn ipv4(&self) -> u32 {
        0x0a00_0001 + self.number
    }

    fn read(&self, register: u64) -> u64 {
        self.card.read(Bar::Shell, Bank::Avx.cnfg(0) + register, 8)
    }

    fn write(&self, register: u64, value: u64) {
        self.card.write(Bar::Shell, Bank::Avx.cnfg(0) + register, 8, value);
    }

    fn write_wide(&self, register: u64, words: [u64; 4]) {
        self.card.write_wide(Bank::Avx.cnfg(0) + register, bytes_of(words));
    }

    /// Inserts the large page of an address into an address space's TLB.
    fn insert(&self, ctid: u8, vaddr: u64) {
        let cnfg = CtrlCnfg::decode(self.card.read(Bar::Shell, shell::CTRL_CNFG, 8));
        let geometry = Geometry::large(cnfg).unwrap();
        let entry = Entry {
            vaddr,
            paddr: vaddr,
            hpid: HPID + u32::from(ctid),
            ctid,
            stream: Stream::Host,
            valid: true,
        };
        for (at, word) in (0u64..).step_by(8).zip(entry.encode(geometry)) {
            self.card.write(Bar::Shell, v::large_tlb(0) + at, 8, word);
        }
    }

    fn connect(&self, ctid: u8, peer: &Self) {
        let qpn = u32::from(ctid);
        let psn = |node: &Self| 1000 * (1 + node.number);
        let second = RdmaContext1 { local_psn: psn(self), remote_psn: psn(peer) }.encode();
        let first = RdmaContext0 { qpn, rkey: 5 }.encode();
        self.write_wide(v::RDMA_CTX_0, [first, second, 0, 0]);
        let first = RdmaConnection0 { qpn: ctid.into(), remote_qpn: qpn, udp_port: 18488 }.encode();
        let gid = u64::from(peer.ipv4()) << 32 | u64::from(peer.ipv4());
        self.write_wide(v::RDMA_CONN_0, [first, gid, gid, 0]);
        self.write_wide(v::NET_ARP, [peer.ipv4().into(), 0, 0, 0]);
    }

    fn post(&self, read: bool, ctid: u8, local: u64, remote: u64, length: u32) {
        let own = Command { stream: Stream::Host, ctid, length, last: true, ..Command::default() };
        let opcode = if read { 0 } else { 1 };
        let other = Command { opcode, stream: Stream::Rdma, start: true, ..own };
        let [own, other] = [(own, local), (other, remote)].map(|(half, at)| [half.encode(), at]);
        let [first, second] = if read { [other, own] } else { [own, other] };
        self.write_wide(v::CTRL, [first[0], first[1], second[0], second[1]]);
    }

    /// Completions of an address space: local reads and writes, remote reads and writes.
    fn completed(&self, ctid: u8) -> [u32; 4] {
        let words = [v::AVX_LOCAL, v::AVX_REMOTE].map(|array| {
            let word = self.read(array.offset + array.stride * u64::from(ctid));
            [word as u32, (word >> 32) as u32]
        });
        [words[0][0], words[0][1], words[1][0], words[1][1]]
    }

    fn fill(&self, at: u64, length: usize, seed: u8) -> Vec<u8> {
        let bytes: Vec<u8> = (0..length).map(|i| (i as u8) ^ (i >> 8) as u8 ^ seed).collect();
        self.memory.write_bytes((at - MEMORY) as usize, &bytes).unwrap();
        bytes
    }

    fn bytes(&self, at: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory.read_bytes((at - MEMORY) as usize, &mut bytes).unwrap();
        bytes
    }
}

/// Waits until a condition holds.
fn until(what: &str, mut so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Pair {
    fn new(ctids: &[u8]) -> Self {
        let card = || CardConfig::new(Link::Switch, Image::Stock);
        let cards = vec![card(), card()];
        let runtime = Runtime::start(RuntimeConfig { cards, ..Default::default() }).unwrap();
        let nodes = [0, 1].map(|n| Node::new(runtime.card(n as usize).unwrap(), n));
        for &ctid in ctids {
            nodes[0].connect(ctid, &nodes[1]);
            nodes[1].connect(ctid, &nodes[0]);
        }
        Self { nodes, runtime: Some(runtime) }
    }

    /// The same with all pages in the TLBs.
    fn with_pages(ctids: &[u8]) -> Self {
        let pair = Self::new(ctids);
        for node in &pair.nodes {
            for &ctid in ctids {
                [0, PAGE].into_iter().for_each(|at| node.insert(ctid, MEMORY + at));
            }
        }
        pair
    }

    fn end(mut self) {
        let runtime = self.runtime.take();
        drop(self);
        runtime.unwrap().shutdown();
    }
}

#[test]
fn the_shell_says_avx_and_the_plain_bank_is_dead() {
    let pair = Pair::new(&[]);
    let node = &pair.nodes[0];
    let cnfg = CtrlCnfg::decode(node.card.read(Bar::Shell, shell::CTRL_CNFG, 8));
    assert!(cnfg.avx && cnfg.writeback);
    let plain = Bank::Plain.cnfg(0);
    node.card.write(Bar::Shell, plain + v::ISR_VADDR, 8, 7);
    node.write(v::ISR_VADDR, 9);
    let read = |at| node.card.read(Bar::Shell, at, 8);
    assert_eq!((read(plain + v::ISR_VADDR), node.read(v::ISR_VADDR)), (0, 9));
    assert_eq!((read(plain + v::NET_ARP), node.read(v::NET_ARP)), (0, 1));
    assert_eq!(read(v::user_csr(0)), 0, "no engine's window is there");
    pair.end();
}

#[test]
fn writes_and_reads_are_exact_and_counted_by_registers_alone() {
    let pair = Pair::with_pages(&[3]);
    let [one, other] = &pair.nodes;
    let data = one.fill(MEMORY, 1 << 20, 1);
    one.post(false, 3, MEMORY, MEMORY + PAGE, 1 << 20);
    until("the WRITE is acknowledged", || one.completed(3)[3] == 1);
    until("the WRITE has landed", || other.completed(3)[1] == 1);
    assert!(other.bytes(MEMORY + PAGE, 1 << 20) == data);
    let data = other.fill(MEMORY + 64, 100_000, 2);
    one.post(true, 3, MEMORY + PAGE + 128, MEMORY + 64, 100_000);
    until("the READ has landed", || one.completed(3)[1] == 1);
    assert!(one.bytes(MEMORY + PAGE + 128, 100_000) == data);
    assert_eq!(one.card.read(Bar::Shell, shell::STAT_STREAM_DOWN, 8), 0);
    pair.end();
}

#[test]
fn a_post_in_parts_counts_as_sent_and_sends_nothing() {
    let pair = Pair::with_pages(&[3]);
    let node = &pair.nodes[0];
    let half =
        Command { stream: Stream::Host, ctid: 3, length: 64, last: true, ..Default::default() };
    let remote = Command { opcode: 1, stream: Stream::Rdma, start: true, ..half };
    for (at, word) in [half.encode(), MEMORY, remote.encode(), MEMORY].into_iter().enumerate() {
        node.write(8 * at as u64, word);
    }
    assert_eq!(node.read(v::SENT.offset + 24), 1);
    node.post(false, 3, MEMORY, MEMORY, 64);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!((node.read(v::CTRL), node.completed(3)), (1, [0; 4]));
    pair.end();
}

#[test]
fn a_page_fault_stalls_the_card_and_names_the_address_space() {
    let pair = Pair::new(&[3, 4]);
    let [one, other] = &pair.nodes;
    [3, 4].into_iter().for_each(|ctid| other.insert(ctid, MEMORY));
    let data = one.fill(MEMORY, 64, 9);
    one.post(false, 3, MEMORY, MEMORY + 4096, 64);
    let isr = || IsrRead::decode(one.read(v::ISR));
    until("a page fault is reported", || isr().kind == EventKind::PageFault);
    assert_eq!(
        (isr().write, one.read(v::ISR_PID) & 0x3f, one.read(v::ISR_VADDR)),
        (false, 3, MEMORY)
    );
    // The same address of another space is another page.
    one.insert(4, MEMORY);
    one.insert(3, MEMORY);
    let answer =
        IsrWrite { clear_pending: true, restart_read: true, success: true, ..Default::default() };
    one.write(v::ISR, answer.encode());
    until("the WRITE is acknowledged", || one.completed(3)[3] == 1);
    until("the WRITE has landed", || other.completed(3)[1] == 1);
    assert!(other.bytes(MEMORY + 4096, 64) == data);
    // What the driver refuses is gone, though the peer was told that it has come.
    one.post(false, 3, MEMORY, MEMORY + PAGE, 64);
    let isr = || IsrRead::decode(other.read(v::ISR));
    until("a page fault is reported", || isr().kind == EventKind::PageFault && isr().write);
    let answer = IsrWrite { clear_pending: true, restart_write: true, ..Default::default() };
    other.write(v::ISR, answer.encode());
    until("the WRITE is acknowledged", || one.completed(3)[3] == 2);
    one.post(false, 4, MEMORY, MEMORY + 8192, 64);
    until("the next WRITE has landed", || other.completed(4)[1] == 1);
    assert_eq!(other.completed(3)[1], 1);
    pair.end();
}

#[test]
fn memory_of_a_process_is_copied_by_calls() {
    let pair = Pair::with_pages(&[3]);
    let [one, other] = &pair.nodes;
    // The second page of the other card is a part of this process.
    let place: &'static mut [u8] = Box::leak(vec![0u8; 2 * PAGE as usize].into_boxed_slice());
    let address = (place.as_ptr() as u64).next_multiple_of(4096);
    other.card.dma_unmap(MEMORY, BYTES).unwrap();
    let handle = PidFd::open(Pid::this()).unwrap();
    let process = Arc::new(RemoteProcess::new(Pid::this(), handle));
    other.card.dma_map(MEMORY, PAGE, DmaMemory::Process { process, address }).unwrap();
    let data = one.fill(MEMORY, 300_000, 4);
    one.post(false, 3, MEMORY, MEMORY + 64, 300_000);
    until("the WRITE has landed", || other.completed(3)[1] == 1);
    one.post(true, 3, MEMORY + PAGE, MEMORY + 64, 300_000);
    until("the READ has landed", || one.completed(3)[1] == 1);
    assert!(one.bytes(MEMORY + PAGE, 300_000) == data);
    pair.end();
}

#[test]
fn memory_of_a_process_that_is_gone_reads_as_zeros_beside_other_memory_too_and_stops_nobody() {
    let pair = Pair::with_pages(&[3]);
    let [one, other] = &pair.nodes;
    one.card.dma_unmap(MEMORY, BYTES).unwrap();
    let handle = PidFd::open(Pid::this()).unwrap();
    let process = Arc::new(RemoteProcess::new(Pid::this(), handle));
    // Nothing is mapped there.
    let address = 1 << 20;
    one.card.dma_map(MEMORY, PAGE, DmaMemory::Process { process, address }).unwrap();
    let shared = DmaMemory::Shared { mapping: Arc::clone(&one.memory), offset: PAGE };
    one.card.dma_map(MEMORY + PAGE, BYTES - PAGE, shared).unwrap();
    // A packet of both, one of the first, and one of the other.
    for (count, start) in [(1, MEMORY + PAGE - 2048), (2, MEMORY), (3, MEMORY + PAGE)] {
        one.fill(MEMORY + PAGE, 4096, count);
        other.fill(MEMORY, 4096, 99);
        one.post(false, 3, start, MEMORY, 4096);
        until("the WRITE has landed", || other.completed(3)[1] == u32::from(count));
        let bytes = other.bytes(MEMORY, 4096);
        let whole = one.bytes(MEMORY + PAGE, 4096);
        assert!(if count == 3 { bytes == whole } else { bytes == [0; 4096] }, "{count}");
    }
    // What comes for it is gone, and the next one is not.
    for (count, start) in [(1, MEMORY + PAGE - 2048), (2, MEMORY), (3, MEMORY + PAGE)] {
        let data = other.fill(MEMORY, 4096, 7 + count);
        other.post(false, 3, MEMORY, start, 4096);
        until("the WRITE has landed", || one.completed(3)[1] == u32::from(count));
        assert!(count != 3 || one.bytes(MEMORY + PAGE, 4096) == data);
    }
    pair.end();
}

#[test]
fn a_reset_of_the_shell_ends_what_a_silent_peer_keeps() {
    let pair = Pair::with_pages(&[3, 4]);
    let [one, other] = &pair.nodes;
    one.post(false, 3, MEMORY, MEMORY, 64);
    until("they know each other", || one.completed(3)[3] == 1);
    // A peer that does not exist.
    let nobody = RdmaConnection0 { qpn: 3, remote_qpn: 3, udp_port: 1 }.encode();
    one.write_wide(v::RDMA_CONN_0, [nobody, 0x0a00_0063_0a00_0063, 0, 0]);
    for _ in 0..20 {
        one.post(false, 3, MEMORY, MEMORY, 64);
    }
    until("the window is full", || one.read(v::CTRL) == 3);
    use fpga_regs::coyote::static_layer::PR_EOST_RESET;
    one.card.write(Bar::Static, PR_EOST_RESET, 4, 0);
    one.card.write(Bar::Static, PR_EOST_RESET, 4, 1);
    assert_eq!((one.read(v::CTRL), one.completed(3)), (0, [0; 4]));
    // Its window is as full as it was (STOCK-43), which is no other connection's.
    one.connect(4, other);
    other.connect(4, one);
    one.insert(4, MEMORY);
    one.post(false, 4, MEMORY, MEMORY, 64);
    until("the card works again", || one.completed(4)[3] == 1);
    pair.end();
}
