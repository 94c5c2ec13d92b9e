//! A driver of a served card, down to its rings, over the tests' own client.
//!
//! It stands for the guest: memory with pages that lie in another order on the bus than in their
//! file, registers through messages, doorbells through the mapped page. Where the card must ask for
//! memory it answers like QEMU: not before its own request was answered.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use fpga_regs::Block;
use fpga_regs::coyote::tlb::{Entry, Geometry};
use fpga_regs::coyote::{shell, vfpga};
use fpga_regs::engine::admin::{
    AdminStatus, Completion, CreateCq, CreateKey, CreateQp, CreateRq, Header, KeyKind, ModifyQp,
    Opcode, SetGid,
};
use fpga_regs::engine::cqe::{Cqe, LAST_WORD, expected_phase, phase};
use fpga_regs::engine::doorbell::{Arm, ArmKind, QueueKind, record, slot, slot_value};
use fpga_regs::engine::key::Access as Rights;
use fpga_regs::engine::qp::{AttributeMask, Attributes, QpState, QpType};
use fpga_regs::engine::window;
use fpga_regs::engine::wqe::{ReceiveHeader, SendFlags, SendHeader, SendOpcode, Sge};
use hostmem::{Access, EventFd, SharedMapping, memfd};

use crate::client::*;

/// The first bus address of the guest's memory, in pages of the card's MMU.
pub const BASE: u64 = 0x4000_0000;
const PAGE: u64 = 4096;
const PAGES: u64 = 1024;
/// The window that is driven.
const WINDOW: u64 = 1;
const DOORBELL_PAGE: u8 = 2;
const PDN: u32 = 7;
const LOG2_ADMIN: u8 = 4;
const LOG2_CQ: u8 = 4;
const LOG2_SQ: u8 = 6;
const LOG2_RQ: u8 = 3;
/// How long anything may take on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(20);

/// How the card reaches the guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// It maps the file.
    Mapped,
    /// It asks.
    Asked,
}

/// The guest's memory: a file whose pages lie on the bus in reverse order.
pub struct Guest {
    file: OwnedFd,
    mapping: SharedMapping,
}

impl Guest {
    fn new() -> Self {
        let bytes = (PAGES * PAGE) as usize;
        let file = memfd::create("guest", bytes).unwrap();
        let mapping = SharedMapping::new(file.as_fd(), 0, bytes, Access::ReadWrite).unwrap();
        Self { file, mapping }
    }

    /// Where in the file a bus address is.
    fn offset(address: u64) -> u64 {
        let (page, within) = ((address - BASE) / PAGE, address % PAGE);
        (PAGES - 1 - page) * PAGE + within
    }

    /// The pieces of a range that lie in one page each: bus address and place in the range.
    fn pieces(address: u64, length: usize) -> impl Iterator<Item = (u64, std::ops::Range<usize>)> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let here = address + at as u64;
            let bytes = ((PAGE - here % PAGE) as usize).min(length - at);
            let piece = at..at + bytes;
            at += bytes;
            (bytes > 0).then_some((here, piece))
        })
    }

    pub fn read(&self, address: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        for (at, piece) in Self::pieces(address, length) {
            self.mapping.read_bytes(Self::offset(at) as usize, &mut bytes[piece]).unwrap();
        }
        bytes
    }

    pub fn write(&self, address: u64, bytes: &[u8]) {
        for (at, piece) in Self::pieces(address, bytes.len()) {
            self.mapping.write_bytes(Self::offset(at) as usize, &bytes[piece]).unwrap();
        }
    }

    fn block(&self, address: u64) -> Block {
        // The last word first: it says that the others are there.
        let word = |n: usize| {
            let offset = Self::offset(address + 8 * n as u64) as usize;
            self.mapping.load_acquire_u64(offset).unwrap()
        };
        let last = word(LAST_WORD);
        std::array::from_fn(|n| if n == LAST_WORD { last } else { word(n) })
    }

    fn write_block(&self, address: u64, block: &Block) {
        let words = block.iter().flat_map(|word| word.to_le_bytes());
        self.write(address, &words.collect::<Vec<u8>>());
    }

    fn store_u32(&self, address: u64, value: u32) {
        self.mapping.store_release_u32(Self::offset(address) as usize, value).unwrap();
    }

    fn store_u64(&self, address: u64, value: u64) {
        self.mapping.store_release_u64(Self::offset(address) as usize, value).unwrap();
    }
}

/// Memory with a key.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    pub va: u64,
    pub address: u64,
    pub key: u32,
}

/// A QP with its rings and its completion queue.
#[derive(Clone, Copy, Debug)]
pub struct Qp {
    pub qpn: u32,
    generation: u8,
    pub sq: u64,
    producer: u32,
    rqn: u32,
    pub rq: u64,
    received: u32,
    cqn: u32,
    pub cq: u64,
    consumer: u32,
}

/// An access of the card to the guest's memory, for which it asked.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub write: bool,
    pub address: u64,
    pub bytes: u64,
}

pub struct Driver {
    pub client: VfioUserClient,
    pub guest: Guest,
    /// Signalled by vector [`WINDOW`].
    pub interrupt: EventFd,
    doorbells: SharedMapping,
    /// The accesses that the card asked for, and the stores to its doorbells.
    pub asked: Vec<Asked>,
    pub rung: u64,
    /// First byte that is not yet given away.
    free: u64,
    admin: u64,
    answers: u64,
    produced: u32,
    consumed: u32,
    ip: [u8; 4],
}

fn register(offset: u64) -> u64 {
    vfpga::CONTROL_WINDOW_BASE
        + WINDOW * vfpga::CONTROL_WINDOW_STRIDE
        + vfpga::USER_CSR_OFFSET
        + offset
}

impl Driver {
    /// Brings a card up whose address is 10.0.0.`number`.
    pub fn new(socket: &Path, reach: Reach, number: u8) -> Self {
        let mut client = VfioUserClient::enabled(socket);
        let guest = Guest::new();
        let info = [u32s(&[112, 0, BAR4, 0]), u64s(&[0, 0])].concat();
        let info = client.call(GET_REGION_INFO, &info).unwrap();
        let page = register(u64::from(DOORBELL_PAGE) * PAGE);
        let doorbells =
            SharedMapping::new(info.fds[0].as_fd(), page, PAGE as usize, Access::ReadWrite);
        let mut driver = Self {
            client,
            guest,
            interrupt: EventFd::new().unwrap(),
            doorbells: doorbells.unwrap(),
            asked: Vec::new(),
            rung: 0,
            free: BASE,
            admin: 0,
            answers: 0,
            produced: 0,
            consumed: 0,
            ip: [10, 0, 0, number],
        };
        driver.map(reach);
        driver.set_up(number);
        driver
    }

    /// Maps the guest's memory, page by page or without a file, and tells the card's MMU.
    fn map(&mut self, reach: Reach) {
        match reach {
            Reach::Mapped => {
                for page in 0..PAGES {
                    let address = BASE + page * PAGE;
                    let payload = map(3, Guest::offset(address), address, PAGE);
                    let fds = [self.guest.file.as_fd()];
                    self.client.call_with(DMA_MAP, &payload, &fds).unwrap();
                }
            }
            Reach::Asked => {
                self.client.call(DMA_MAP, &map(3, 0, BASE, PAGES * PAGE)).unwrap();
            }
        }
        // Every address is its own.
        for page in Self::large_pages() {
            self.enter(page, page, true);
        }
    }

    /// The first bytes of the large pages that the guest's memory lies in.
    pub fn large_pages() -> impl Iterator<Item = u64> {
        (BASE..BASE + PAGES * PAGE).step_by(2 << 20)
    }

    /// Inserts the entry of a large page into the card's TLB, or removes it.
    pub fn enter(&mut self, vaddr: u64, paddr: u64, valid: bool) {
        let shape = Geometry::large(shell::CTRL_CNFG_DEFAULT).unwrap();
        let entry = Entry { vaddr, paddr, hpid: 1, ctid: 0, stream: vfpga::Stream::Host, valid };
        let [first, second] = entry.encode(shape);
        let window = vfpga::large_tlb(WINDOW);
        self.client.write64(BAR4, window + vfpga::TLB_WORD_0, first);
        self.client.write64(BAR4, window + vfpga::TLB_WORD_1, second);
    }

    /// Takes the guest's large pages back from the card's MMU.
    pub fn take_pages_back(&mut self) {
        for page in Self::large_pages() {
            self.enter(page, page, false);
            self.set_cnfg(vfpga::ISR_VADDR, page);
            self.set_cnfg(vfpga::ISR_LEN, 2 << 20);
            let isr = vfpga::IsrWrite { invalidate: true, ..Default::default() };
            self.set_cnfg(vfpga::ISR, isr.encode());
        }
    }

    /// Reads a control register of the vFPGA.
    pub fn cnfg(&mut self, register: u64) -> u64 {
        self.client.read64(BAR4, vfpga::Bank::Plain.cnfg(WINDOW) + register)
    }

    /// Writes a control register of the vFPGA.
    pub fn set_cnfg(&mut self, register: u64, value: u64) {
        self.client.write64(BAR4, vfpga::Bank::Plain.cnfg(WINDOW) + register, value);
    }

    /// Reads a register of the engine.
    pub fn engine(&mut self, offset: u64) -> u64 {
        self.client.read64(BAR4, register(offset))
    }

    /// Takes the event that the vFPGA reports, if it reports any. A page fault is answered with the
    /// page that `find` names for its address, or refused.
    pub fn mend(&mut self, find: impl Fn(u64) -> Option<u64>) {
        let event = vfpga::IsrRead::decode(self.cnfg(vfpga::ISR));
        if event.kind == vfpga::EventKind(0) {
            return;
        }
        let vaddr = self.cnfg(vfpga::ISR_VADDR);
        let clear = vfpga::IsrWrite { clear_pending: true, ..Default::default() };
        self.set_cnfg(vfpga::ISR, clear.encode());
        if event.kind != vfpga::EventKind::PageFault {
            return;
        }
        let found = find(vaddr);
        if let Some(paddr) = found {
            self.enter(vaddr, paddr, true);
        }
        let answer = vfpga::IsrWrite {
            restart_read: !event.write,
            restart_write: event.write,
            success: found.is_some(),
            ..Default::default()
        };
        self.set_cnfg(vfpga::ISR, answer.encode());
    }

    fn set_up(&mut self, number: u8) {
        let ip = u64::from(u32::from_be_bytes(self.ip));
        self.client.write64(BAR4, shell::IP_ADDRESS, ip);
        self.client.write64(BAR4, shell::MAC_ADDRESS, 0x0200_0000_0000 | u64::from(number));
        // User interrupt i to vector i; all of them enabled.
        self.client.write(BAR2, 0x2080, &[0, 1, 2, 3]).unwrap();
        self.client.write(BAR2, 0x2008, &0x7fff_u32.to_le_bytes()).unwrap();
        let set = u32s(&[20, 0x24, 2, WINDOW as u32, 1]);
        self.client.call_with(SET_IRQS, &set, &[self.interrupt.as_fd()]).unwrap();
        self.admin = self.allocate(64 << LOG2_ADMIN);
        self.answers = self.allocate(64 << LOG2_ADMIN);
        let events = self.allocate(64 << LOG2_ADMIN);
        for (offset, value) in [
            (window::ADMIN_SQ_BASE, self.admin),
            (window::ADMIN_SQ_SIZE, LOG2_ADMIN.into()),
            (window::ADMIN_CQ_BASE, self.answers),
            (window::ADMIN_CQ_SIZE, LOG2_ADMIN.into()),
            (window::EVENT_BASE, events),
            (window::EVENT_SIZE, LOG2_ADMIN.into()),
            (window::CONTROL, window::CONTROL_ENABLE),
        ] {
            self.write(offset, value);
        }
        assert_eq!(self.client.read64(BAR4, register(window::STATUS)), window::STATUS_ENABLED);
        let gid = self.gid();
        self.run(Opcode::SetGid, &SetGid { index: 1, valid: 1, vlan: 0, gid }.encode());
    }

    pub fn gid(&self) -> [u8; 16] {
        let [a, b, c, d] = self.ip;
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
    }

    /// Gives zeroed memory away, at a multiple of 64 that is none of a page.
    pub fn allocate(&mut self, bytes: u64) -> u64 {
        let address = self.free;
        self.free = (address + bytes).next_multiple_of(64);
        assert!(self.free <= BASE + PAGES * PAGE);
        address
    }

    fn write(&mut self, offset: u64, value: u64) {
        self.client.write64(BAR4, register(offset), value);
    }

    /// Answers the requests of the card.
    pub fn attend(&mut self) {
        self.client.overhear();
        while let Some(request) = self.client.requests.pop_front() {
            self.attend_to(&request);
        }
    }

    pub fn attend_to(&mut self, request: &Message) {
        let field = |at| u64::from_le_bytes(request.payload[at..at + 8].try_into().unwrap());
        let (address, count) = (field(0), field(8) as usize);
        let mut payload = request.payload[..16].to_vec();
        match request.command {
            DMA_READ => payload.extend(self.guest.read(address, count)),
            DMA_WRITE => self.guest.write(address, &request.payload[16..16 + count]),
            other => panic!("the card says {other}"),
        }
        let write = request.command == DMA_WRITE;
        self.asked.push(Asked { write, address, bytes: count as u64 });
        self.client.say_as(request.id, request.command, REPLY, &payload, &[]);
    }

    /// Attends to the card until `look` finds a value.
    pub fn wait<T>(&mut self, look: impl FnMut(&mut Self) -> Option<T>) -> T {
        self.wait_but(|_| None, look)
    }

    /// Waits as [`Driver::wait`], but answers some requests otherwise.
    pub fn wait_but<T>(
        &mut self,
        answer: impl Fn(&Message) -> Option<&'static [u8]>,
        mut look: impl FnMut(&mut Self) -> Option<T>,
    ) -> T {
        let start = Instant::now();
        loop {
            self.client.overhear();
            while let Some(request) = self.client.requests.pop_front() {
                match answer(&request) {
                    Some([]) => {
                        self.client.say_as(request.id, request.command, REPLY | ERROR, &[], &[]);
                    }
                    Some(other) => {
                        self.client.say_as(request.id, request.command, REPLY, other, &[]);
                    }
                    None => self.attend_to(&request),
                }
            }
            if let Some(found) = look(self) {
                return found;
            }
            assert!(start.elapsed() < PATIENCE, "the card does nothing");
            std::thread::yield_now();
        }
    }

    /// Writes a command and rings.
    pub fn submit(&mut self, opcode: Opcode, blocks: &[Block]) {
        let header = Header { opcode, blocks: blocks.len() as u8, tag: 1, response: 0 };
        for (number, block) in blocks.iter().enumerate() {
            let mut block = *block;
            if number == 0 {
                block.iter_mut().zip(header.encode()[0]).for_each(|(word, more)| *word |= more);
            }
            let index = u64::from(self.produced) & ((1 << LOG2_ADMIN) - 1);
            self.guest.write_block(self.admin + 64 * index, &block);
            self.produced += 1;
        }
        self.write(window::ADMIN_DOORBELL, self.produced.into());
    }

    /// The answer to the oldest command, if it is there.
    pub fn answer(&mut self) -> Option<Completion> {
        let index = u64::from(self.consumed) & ((1 << LOG2_ADMIN) - 1);
        let block = self.guest.block(self.answers + 64 * index);
        let there = phase(block[LAST_WORD]) == expected_phase(self.consumed, LOG2_ADMIN);
        there.then(|| {
            self.consumed += 1;
            Completion::decode(&[block])
        })
    }

    /// Runs a command that must succeed.
    pub fn run(&mut self, opcode: Opcode, blocks: &[Block]) -> Completion {
        self.submit(opcode, blocks);
        let completion = self.wait(Self::answer);
        assert_eq!(completion.status, AdminStatus::Success, "{opcode:?}");
        completion
    }

    /// Memory with a key and every right.
    pub fn register(&mut self, length: u64) -> Region {
        let address = self.allocate(length);
        self.register_as(address, address, length)
    }

    /// Registers memory that the card is to name by another address, as [`Driver::register`].
    pub fn register_as(&mut self, address: u64, iova: u64, length: u64) -> Region {
        let va = 0x7f00_0000_0000 + iova;
        let access = Rights::LOCAL_WRITE
            | Rights::REMOTE_WRITE
            | Rights::REMOTE_READ
            | Rights::REMOTE_ATOMIC;
        let kind = KeyKind::Region;
        let command = CreateKey { va, length, iova, pdn: PDN, access, kind, dm: 0 };
        let key = self.run(Opcode::CreateKey, &command.encode()).result;
        Region { va, address, key }
    }

    /// A QP in RESET.
    pub fn create_qp(&mut self) -> Qp {
        let cq = self.allocate(64 + (64 << LOG2_CQ));
        let command = CreateCq { ring: cq, log2_entries: LOG2_CQ, page: DOORBELL_PAGE, vector: 0 };
        let cqn = self.run(Opcode::CreateCq, &command.encode()).result;
        let ring = self.allocate(64 + (64 << LOG2_RQ));
        let command = CreateRq {
            ring,
            log2_entries: LOG2_RQ,
            page: DOORBELL_PAGE,
            pdn: PDN,
            ..Default::default()
        };
        let rqn = self.run(Opcode::CreateRq, &command.encode()).result;
        let rq = ring;
        let sq = self.allocate(64 + (64 << LOG2_SQ));
        let command = CreateQp {
            sq_ring: sq,
            log2_sq_blocks: LOG2_SQ,
            page: DOORBELL_PAGE,
            kind: QpType::Rc,
            pdn: PDN,
            send_cqn: cqn,
            receive_cqn: cqn,
            rqn,
            xrcdn: 0,
        };
        let made = self.run(Opcode::CreateQp, &command.encode());
        let (qpn, generation) = (made.result, made.generation);
        Qp { qpn, generation, sq, producer: 0, rqn, rq, received: 0, cqn, cq, consumer: 0 }
    }

    /// Takes a QP to RTS, towards a peer.
    pub fn connect(&mut self, qp: &Qp, dgid: [u8; 16], dest_qpn: u32) {
        use AttributeMask as M;
        let access = Rights::LOCAL_WRITE
            | Rights::REMOTE_WRITE
            | Rights::REMOTE_READ
            | Rights::REMOTE_ATOMIC;
        let attributes = Attributes {
            path_mtu: 5,
            access: access.bits(),
            port: 1,
            timeout: 18,
            dest_qpn,
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            retry_count: 7,
            rnr_retry: 7,
            sgid_index: 1,
            hop_limit: 64,
            dgid,
            ..Attributes::default()
        };
        let init = M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS;
        let rtr = M::STATE | M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
        let rtr = rtr | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
        let rts = M::STATE | M::TIMEOUT | M::RETRY_COUNT | M::RNR_RETRY | M::SQ_PSN;
        let rts = rts | M::MAX_RD_ATOMIC;
        for (state, mask) in [(QpState::Init, init), (QpState::Rtr, rtr), (QpState::Rts, rts)] {
            let [head] = ModifyQp { qpn: qp.qpn }.encode();
            let [first, second] = Attributes { mask, state, ..attributes }.encode();
            self.run(Opcode::ModifyQp, &[head, first, second]);
        }
    }

    /// Posts a WRITE of a whole region and rings.
    pub fn post_write(&mut self, qp: &mut Qp, from: Region, length: u32, to: Region) {
        self.post(SendOpcode::Write, qp, from, length, to);
    }

    /// Posts a WRITE or READ between a whole region here and one of the peer's, and rings.
    pub fn post(&mut self, opcode: SendOpcode, qp: &mut Qp, from: Region, length: u32, to: Region) {
        let header = SendHeader {
            opcode,
            flags: SendFlags::SIGNALED,
            num_sge: 1,
            blocks: 1,
            remote_address: to.va,
            rkey: to.key,
            ..SendHeader::default()
        };
        let [mut block] = header.encode();
        let sge = Sge { address: from.va, length, lkey: from.key }.encode();
        block[4..6].copy_from_slice(&sge);
        self.write_send(qp, &[block]);
        self.ring_send(qp);
    }

    /// Writes a request into the send ring.
    pub fn write_send(&mut self, qp: &mut Qp, blocks: &[Block]) {
        for block in blocks {
            let index = u64::from(qp.producer) & ((1 << LOG2_SQ) - 1);
            self.guest.write_block(qp.sq + record::ENTRIES + 64 * index, block);
            qp.producer += 1;
        }
    }

    /// Rings for all that was written into the send ring.
    pub fn ring_send(&mut self, qp: &Qp) {
        self.guest.store_u32(qp.sq + record::PRODUCER as u64, qp.producer);
        self.ring(QueueKind::Send, qp.qpn, qp.generation, qp.producer);
    }

    /// Posts a receive into a region, and rings.
    pub fn post_receive(&mut self, qp: &mut Qp, into: Region, length: u32) {
        let [mut block] = ReceiveHeader { num_sge: 1, tag: 0 }.encode();
        block[2..4].copy_from_slice(&Sge { address: into.va, length, lkey: into.key }.encode());
        let index = u64::from(qp.received) & ((1 << LOG2_RQ) - 1);
        self.guest.write_block(qp.rq + record::ENTRIES + 64 * index, &block);
        qp.received += 1;
        self.guest.store_u32(qp.rq + record::PRODUCER as u64, qp.received);
        self.ring(QueueKind::Receive, qp.rqn, qp.generation, qp.received);
    }

    /// Asks for an event when the next completion comes.
    pub fn arm(&mut self, qp: &Qp) {
        let arm = Arm { consumer: qp.consumer, sequence: 1, kind: ArmKind::Any };
        self.guest.store_u64(qp.cq + record::ARM as u64, arm.encode());
        self.ring(QueueKind::Completion, qp.cqn, 0, 1);
    }

    fn ring(&mut self, kind: QueueKind, number: u32, generation: u8, index: u32) {
        let value = slot_value(number, generation, index);
        self.doorbells.store_release_u64(8 * slot(kind, number), value).unwrap();
        self.rung += 1;
    }

    /// The next completion of a QP, if it is there.
    pub fn poll(&mut self, qp: &mut Qp) -> Option<Cqe> {
        let index = u64::from(qp.consumer) & ((1 << LOG2_CQ) - 1);
        let block = self.guest.block(qp.cq + record::ENTRIES + 64 * index);
        let there = phase(block[LAST_WORD]) == expected_phase(qp.consumer, LOG2_CQ);
        there.then(|| {
            qp.consumer += 1;
            self.guest.store_u32(qp.cq + record::CONSUMER as u64, qp.consumer);
            Cqe::decode(&[block])
        })
    }
}
