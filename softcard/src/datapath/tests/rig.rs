//! A card with one QP, driven as its driver and a program do it, and a peer made of frames.

use std::os::fd::AsFd;

use fpga_regs::Block;
use fpga_regs::coyote::pci::Bar;
use fpga_regs::coyote::shell::{self, CTRL_CNFG_DEFAULT, Datapath};
use fpga_regs::coyote::tlb::{Entry, Geometry};
use fpga_regs::coyote::vfpga::{self, Stream};
use fpga_regs::engine::admin::{
    AdminStatus, Completion, CreateCq, CreateKey, CreateQp, CreateRq, Destroy, Header, KeyKind,
    ModifyQp, Opcode as Command, SetGid, SetLink,
};
use fpga_regs::engine::cqe::{Cqe, LAST_WORD, expected_phase, phase};
use fpga_regs::engine::doorbell::{QueueKind, record, slot, slot_value};
use fpga_regs::engine::event::Event as EngineEvent;
use fpga_regs::engine::key::Access as Rights;
use fpga_regs::engine::qp::{AttributeMask, Attributes, QpState as State, QpType};
use fpga_regs::engine::window;
use fpga_regs::engine::wqe::{
    ATOMIC_PAYLOAD_OFFSET, RECEIVE_PAYLOAD_OFFSET, ReceiveHeader, SEND_PAYLOAD_OFFSET, SendFlags,
    SendHeader, SendOpcode, Sge,
};
use hostmem::{Access, DmaMemory, DoorbellPage, SharedMapping, memfd};
use roce::opcode::code;
use roce::wire::extension::atomiceth;
use roce::wire::{aeth, bth, frame, icrc, reth};

use super::*;
use crate::congestion::Reaction;
use crate::vfpga::Slots;

/// The engine's window.
pub(super) const WINDOW: u8 = 1;
const PAGE: u8 = 2;
const PDN: u32 = 7;
/// Entries of every ring.
const LOG2: u8 = 4;
/// Where the host's memory is on the bus: one large page.
pub(super) const BASE: u64 = 0x4000_0000;
pub(super) const BYTES: u64 = 2 << 20;
/// The places of rings in it; the rings of further QPs lie so many bytes behind those of the first.
const ADMIN: u64 = BASE;
const ANSWERS: u64 = BASE + 0x1000;
const EVENTS: u64 = BASE + 0x2000;
const CQ: u64 = BASE + 0x3000;
const RQ: u64 = BASE + 0x4000;
const SQ: u64 = BASE + 0x5000;
const MORE_RINGS: u64 = 0x10_0000;
const RINGS_BYTES: u64 = 0x3000;
/// The receives' memory, one after the other.
pub(super) const BUFFERS: u64 = BASE + 0x1_0000;
pub(super) const BUFFER_BYTES: u64 = 0x1000;
/// The source of own messages, and the target of READs.
pub(super) const LOCAL: u64 = BASE + 0x1_8000;
/// Memory that the peer may reach, and by which address.
pub(super) const REGION: u64 = BASE + 0x2_0000;
pub(super) const REGION_BYTES: u64 = 0x1_0000;
pub(super) const VA: u64 = 0x7f00_0000_0000;
/// Receives posted.
pub(super) const RECEIVES: u32 = 2;

pub(super) const PEER_QPN: u32 = 0x22;
pub(super) const MTU: usize = 1024;

/// A packet of the peer.
#[derive(Clone, Debug, Default)]
pub(super) struct Say {
    pub opcode: u8,
    pub psn: u32,
    pub reth: Option<(u64, u32)>,
    /// Address, and an atomic's operands: the value to swap in, or to add, and the value to compare with.
    pub atomic: Option<(u64, u64, u64)>,
    pub aeth: Option<u8>,
    pub word: Option<u32>,
    pub payload: Vec<u8>,
}

/// A packet that the peer hears.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Heard {
    pub opcode: u8,
    pub psn: u32,
    /// Syndrome and message number.
    pub aeth: Option<(u8, u32)>,
    /// The value in an atomic's answer.
    pub payload: Vec<u8>,
}

/// The rings of one QP.
#[derive(Clone, Copy, Default)]
struct Queues {
    /// Bytes from the rings of the first QP to its own.
    rings: u64,
    qpn: u32,
    generation: u8,
    completions: u32,
    posted: u32,
    received: u32,
}

pub(super) struct Rig {
    pub card: Card,
    /// The number of the QP under test.
    pub qpn: u32,
    rings: u64,
    /// Those that are not.
    parked: Vec<Queues>,
    wire: Rc<RefCell<Wire>>,
    memory: Arc<SharedMapping>,
    slots: Arc<DoorbellPage>,
    pub now: u64,
    generation: u8,
    pub rkey: u32,
    /// The address of own messages at the peer.
    pub remote: u64,
    lkey: u32,
    /// Blocks of commands written, and answers, completions and events read.
    commands: u32,
    answers: u32,
    completions: u32,
    events: u32,
    posted: u32,
    received: u32,
}

/// Where in BAR4 a user register of a window is.
pub(super) fn user_register(window: u8, offset: u64) -> u64 {
    let window = vfpga::CONTROL_WINDOW_BASE + u64::from(window) * vfpga::CONTROL_WINDOW_STRIDE;
    window + vfpga::USER_CSR_OFFSET + offset
}

fn mapping(bytes: usize) -> Arc<SharedMapping> {
    let file = memfd::create("rig", bytes).unwrap();
    Arc::new(SharedMapping::new(file.as_fd(), 0, bytes, Access::ReadWrite).unwrap())
}

impl Rig {
    /// A QP in RTS, with receives, towards [`PEER_QPN`]; both sides begin with PSN 0.
    pub fn new() -> Self {
        let wire = Rc::new(RefCell::new(Wire::default()));
        let port = Box::new(TestPort(Rc::clone(&wire)));
        let mut rig = Self { wire, ..Self::at(OWN, port, FramePool::new(16)) };
        rig.connect(PEER, PEER_QPN);
        rig.post_receives();
        rig
    }

    /// A card of that address with a QP in RESET.
    pub fn at(own: [u8; 6], port: Box<dyn Port>, pool: FramePool) -> Self {
        Self::reacting(own, port, pool, Reaction::default())
    }

    /// The same of a card that does so about congestion.
    pub fn reacting(
        own: [u8; 6],
        port: Box<dyn Port>,
        pool: FramePool,
        reaction: Reaction,
    ) -> Self {
        let published = Arc::<Published>::default();
        let vectors = Rc::new(Arc::clone(&published));
        let mut card =
            Card::new(Default::default(), port, IcrcPolicy::CheckAll, pool, vectors, published);
        card.network.react(reaction);
        card.network.clock = || 0;
        card.network.set_identity(Identity { mac: own, ipv4: 0x0a00_0001 });
        let memory = mapping(BYTES as usize);
        let shared = DmaMemory::Shared { mapping: Arc::clone(&memory), offset: 0 };
        card.memory.map(BASE, BYTES, shared).unwrap();
        let slots = Arc::new(DoorbellPage::new(mapping(window::PAGE_BYTES as usize), 0).unwrap());
        assert!(card.open_page(WINDOW, PAGE, Slots(Arc::clone(&slots))));
        let mut rig = Self {
            card,
            qpn: 0,
            rings: 0,
            parked: Vec::new(),
            wire: Rc::default(),
            memory,
            slots,
            now: 0,
            generation: 0,
            rkey: 0,
            remote: VA,
            lkey: 0,
            commands: 0,
            answers: 0,
            completions: 0,
            events: 0,
            posted: 0,
            received: 0,
        };
        rig.enable();
        rig.make_objects(own);
        rig
    }

    pub fn write(&self, address: u64, bytes: &[u8]) {
        self.memory.write_bytes((address - BASE) as usize, bytes).unwrap();
    }

    pub fn read(&self, address: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory.read_bytes((address - BASE) as usize, &mut bytes).unwrap();
        bytes
    }

    fn write_block(&self, ring: u64, index: u32, block: &Block) {
        let words = block.iter().flat_map(|word| word.to_le_bytes());
        let at = ring + 64 * (u64::from(index) & ((1 << LOG2) - 1));
        self.write(at, &words.collect::<Vec<u8>>());
    }

    /// Entry `index` of a ring that the card writes, if it is there.
    fn entry(&self, ring: u64, index: u32) -> Option<Block> {
        let bytes = self.read(ring + 64 * (u64::from(index) & ((1 << LOG2) - 1)), 64);
        let word = |n: usize| u64::from_le_bytes(bytes[8 * n..8 * n + 8].try_into().unwrap());
        let block: Block = std::array::from_fn(word);
        (phase(block[LAST_WORD]) == expected_phase(index, LOG2)).then_some(block)
    }

    fn write_register(&mut self, offset: u64, value: u64) {
        self.card.write(self.now, Bar::Shell, user_register(WINDOW, offset), 8, value);
    }

    /// Resets the logic by the shell's datapath register, and couples it again.
    pub fn reset_logic(&mut self) {
        let map = self.card.shell.map;
        let bits = Datapath { decouple: 0, reset: 1 << WINDOW }.encode();
        for register in [shell::DATAPATH_SET.at(map), shell::DATAPATH_CLEAR.at(map)] {
            self.card.write(self.now, Bar::Shell, register, 8, bits);
        }
    }

    /// Destroys the QP that is driven.
    pub fn destroy(&mut self) {
        self.run(Command::DestroyQp, &Destroy { number: self.qpn }.encode());
    }

    /// Asks for the end of the QP that is driven.
    pub fn ask_to_destroy(&mut self) {
        self.ask(Command::DestroyQp, &Destroy { number: self.qpn }.encode());
    }

    fn enable(&mut self) {
        let shape = Geometry::large(CTRL_CNFG_DEFAULT).unwrap();
        let (ctid, stream, valid) = (0, Stream::Host, true);
        let entry = Entry { vaddr: BASE, paddr: BASE, hpid: 1, ctid, stream, valid };
        let [first, second] = entry.encode(shape);
        for (offset, word) in [(vfpga::TLB_WORD_0, first), (vfpga::TLB_WORD_1, second)] {
            let at = vfpga::large_tlb(WINDOW.into()) + offset;
            self.card.write(self.now, Bar::Shell, at, 8, word);
        }
        for (offset, value) in [
            (window::ADMIN_SQ_BASE, ADMIN),
            (window::ADMIN_SQ_SIZE, LOG2.into()),
            (window::ADMIN_CQ_BASE, ANSWERS),
            (window::ADMIN_CQ_SIZE, LOG2.into()),
            (window::EVENT_BASE, EVENTS),
            (window::EVENT_SIZE, LOG2.into()),
            (window::CONTROL, window::CONTROL_ENABLE),
        ] {
            self.write_register(offset, value);
        }
    }

    /// Lets the card execute a command, which it does at once.
    fn try_run(&mut self, opcode: Command, blocks: &[Block]) -> Completion {
        self.ask(opcode, blocks);
        self.answer().unwrap()
    }

    /// Gives the card a command.
    fn ask(&mut self, opcode: Command, blocks: &[Block]) {
        let header = Header { opcode, blocks: blocks.len() as u8, tag: 1, response: 0 };
        for (number, block) in blocks.iter().enumerate() {
            let mut block = *block;
            if number == 0 {
                block.iter_mut().zip(header.encode()[0]).for_each(|(word, more)| *word |= more);
            }
            self.write_block(ADMIN, self.commands, &block);
            self.commands += 1;
        }
        self.write_register(window::ADMIN_DOORBELL, self.commands.into());
    }

    /// The answer to the next command, if there is one.
    pub fn answer(&mut self) -> Option<Completion> {
        let completion = Completion::decode(&[self.entry(ANSWERS, self.answers)?]);
        self.answers += 1;
        Some(completion)
    }

    fn run(&mut self, opcode: Command, blocks: &[Block]) -> Completion {
        let completion = self.try_run(opcode, blocks);
        assert_eq!(completion.status, AdminStatus::Success, "{opcode:?}");
        completion
    }

    /// Takes the port off its cable, or puts it back.
    pub fn set_link(&mut self, up: bool) {
        self.run(Command::SetLink, &SetLink { up: up.into() }.encode());
    }

    fn make_objects(&mut self, own: [u8; 6]) {
        let gid = MacAddr(own).link_local().octets();
        self.run(Command::SetGid, &SetGid { index: 0, valid: 1, vlan: 0, gid }.encode());
        let (pdn, kind) = (PDN, KeyKind::Region);
        let remote = Rights::REMOTE_WRITE | Rights::REMOTE_READ | Rights::REMOTE_ATOMIC;
        let access = Rights::LOCAL_WRITE | remote;
        let region =
            CreateKey { va: VA, length: REGION_BYTES, iova: REGION, pdn, access, kind, dm: 0 };
        self.rkey = self.run(Command::CreateKey, &region.encode()).result;
        let access = Rights::LOCAL_WRITE;
        let own = CreateKey { va: BASE, length: BYTES, iova: BASE, pdn, access, kind, dm: 0 };
        self.lkey = self.run(Command::CreateKey, &own.encode()).result;
        self.make_qp();
    }

    /// Makes a QP, in RESET, which is driven from now on.
    fn make_qp(&mut self) {
        let pdn = PDN;
        let cq = CreateCq { ring: CQ + self.rings, log2_entries: LOG2, page: PAGE, vector: 0 };
        let cqn = self.run(Command::CreateCq, &cq.encode()).result;
        let rq = CreateRq {
            ring: RQ + self.rings,
            log2_entries: LOG2,
            page: PAGE,
            pdn,
            ..Default::default()
        };
        let rqn = self.run(Command::CreateRq, &rq.encode()).result;
        let qp = CreateQp {
            sq_ring: SQ + self.rings,
            log2_sq_blocks: LOG2,
            page: PAGE,
            kind: QpType::Rc,
            pdn,
            send_cqn: cqn,
            receive_cqn: cqn,
            rqn,
            xrcdn: 0,
        };
        let made = self.run(Command::CreateQp, &qp.encode());
        (self.qpn, self.generation) = (made.result, made.generation);
    }

    /// Parks the QP that is driven, and makes another.
    pub fn make_another(&mut self) {
        let rings = MORE_RINGS + RINGS_BYTES * self.parked.len() as u64;
        let before = self.drive(Queues { rings, ..Queues::default() });
        self.parked.push(before);
        self.make_qp();
    }

    /// Drives the QP that was parked longest, and parks the present one.
    pub fn drive_next(&mut self) {
        if !self.parked.is_empty() {
            let next = self.parked.remove(0);
            let before = self.drive(next);
            self.parked.push(before);
        }
    }

    fn drive(&mut self, next: Queues) -> Queues {
        let Self { rings, qpn, generation, completions, posted, received, .. } = *self;
        let before = Queues { rings, qpn, generation, completions, posted, received };
        let Queues { rings, qpn, generation, completions, posted, received } = next;
        (self.rings, self.qpn, self.generation) = (rings, qpn, generation);
        (self.completions, self.posted, self.received) = (completions, posted, received);
        before
    }

    /// Attributes of a QP that goes to RTS.
    fn attributes_to(peer: [u8; 6], dest_qpn: u32) -> Attributes {
        Attributes {
            path_mtu: PathMtu::Mtu1024 as u8,
            access: (Rights::REMOTE_WRITE | Rights::REMOTE_READ | Rights::REMOTE_ATOMIC).bits(),
            port: 1,
            timeout: 14,
            dest_qpn,
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            retry_count: 7,
            rnr_retry: 7,
            sgid_index: 0,
            hop_limit: 64,
            dgid: MacAddr(peer).link_local().octets(),
            ..Attributes::default()
        }
    }

    pub fn modify(&mut self, attributes: &Attributes) -> AdminStatus {
        self.ask_to_modify(attributes);
        self.answer().unwrap().status
    }

    /// Asks for a change of the QP that is driven.
    pub fn ask_to_modify(&mut self, attributes: &Attributes) {
        let [head] = ModifyQp { qpn: self.qpn }.encode();
        let [first, second] = attributes.encode();
        self.ask(Command::ModifyQp, &[head, first, second]);
    }

    /// Takes the QP to RTS, towards one of a peer's.
    pub fn connect(&mut self, peer: [u8; 6], dest_qpn: u32) {
        use AttributeMask as M;
        let init = M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS;
        let rtr = M::STATE | M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
        let rtr = rtr | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
        let rts = M::STATE | M::TIMEOUT | M::RETRY_COUNT | M::RNR_RETRY | M::SQ_PSN;
        let rts = rts | M::MAX_RD_ATOMIC;
        for (state, mask) in [(State::Init, init), (State::Rtr, rtr), (State::Rts, rts)] {
            let status =
                self.modify(&Attributes { mask, state, ..Self::attributes_to(peer, dest_qpn) });
            assert_eq!(status, AdminStatus::Success);
        }
    }

    fn post_receives(&mut self) {
        for tag in 0..RECEIVES {
            self.post_receive(BUFFERS + u64::from(tag) * BUFFER_BYTES, BUFFER_BYTES as u32);
        }
    }

    /// Posts a receive, whose tag is the number of those before it.
    pub fn post_receive(&mut self, address: u64, length: u32) {
        let tag = self.received;
        let [mut block] = ReceiveHeader { num_sge: 1, tag }.encode();
        let sge = Sge { address, length, lkey: self.lkey }.encode();
        let at = RECEIVE_PAYLOAD_OFFSET / 8;
        block[at..at + 2].copy_from_slice(&sge);
        self.write_block(RQ + self.rings + record::ENTRIES, tag, &block);
        self.received += 1;
        self.write(RQ + self.rings + record::PRODUCER as u64, &self.received.to_le_bytes());
    }

    /// Posts a message of `length` bytes at [`LOCAL`], and rings.
    pub fn post(&mut self, opcode: SendOpcode, length: u32) {
        self.post_from(LOCAL, opcode, length, 1);
    }

    /// Posts a message of `length` bytes to or from the peer's memory by its key, and rings.
    pub fn post_from(&mut self, address: u64, opcode: SendOpcode, length: u32, rkey: u32) {
        self.post_block(self.header(opcode, rkey), SEND_PAYLOAD_OFFSET, (address, length), [0; 2]);
    }

    /// Posts an atomic on the peer's memory, with its operands, and rings.
    pub fn post_atomic(&mut self, address: u64, opcode: SendOpcode, operands: [u64; 2], rkey: u32) {
        self.post_block(self.header(opcode, rkey), ATOMIC_PAYLOAD_OFFSET, (address, 8), operands);
    }

    fn header(&self, opcode: SendOpcode, rkey: u32) -> SendHeader {
        SendHeader {
            opcode,
            flags: SendFlags::SIGNALED,
            num_sge: 1,
            blocks: 1,
            remote_address: self.remote,
            rkey,
            ..SendHeader::default()
        }
    }

    fn post_block(
        &mut self,
        header: SendHeader,
        payload_offset: usize,
        (address, length): (u64, u32),
        operands: [u64; 2],
    ) {
        let [mut block] = header.encode();
        block[4..6].copy_from_slice(&operands);
        let at = payload_offset / 8;
        let sge = Sge { address, length, lkey: self.lkey }.encode();
        block[at..at + 2].copy_from_slice(&sge);
        self.write_block(SQ + self.rings + record::ENTRIES, self.posted, &block);
        self.posted += 1;
        self.write(SQ + self.rings + record::PRODUCER as u64, &self.posted.to_le_bytes());
        let value = slot_value(self.qpn, self.generation, self.posted);
        self.slots.ring(slot(QueueKind::Send, self.qpn), value);
    }

    /// Runs the card until it rests; returns the frames that the peer hears.
    pub fn work(&mut self) -> Vec<Heard> {
        self.now += 1_000;
        while self.card.round(self.now) {}
        let sent = std::mem::take(&mut self.wire.borrow_mut().from_card);
        sent.iter().map(|frame| take_apart(frame)).collect()
    }

    /// The peer says all that as one burst.
    pub fn say(&mut self, says: &[Say]) -> Vec<Heard> {
        for say in says {
            let frame = Frame::from_bytes(&self.frame(say)).unwrap();
            self.wire.borrow_mut().to_card.push_back(frame);
        }
        self.work()
    }

    fn frame(&self, say: &Say) -> Vec<u8> {
        let pad = say.payload.len().wrapping_neg() & 3;
        let transport = bth::Repr {
            opcode: say.opcode,
            pad_count: pad as u8,
            pkey: 0xffff,
            dest_qpn: self.qpn,
            ack_request: true,
            psn: Psn::new(say.psn),
            ..bth::Repr::default()
        };
        let mut body = transport.to_bytes().to_vec();
        if let Some((va, dma_length)) = say.reth {
            body.extend(reth::Repr { va, rkey: self.rkey, dma_length }.to_bytes());
        }
        if let Some((va, swap_or_add, compare)) = say.atomic {
            let atomic = atomiceth::Repr { va, rkey: self.rkey, swap_or_add, compare };
            body.extend(atomic.to_bytes());
        }
        if let Some(byte) = say.aeth {
            let syndrome = aeth::Syndrome::from_byte(byte);
            body.extend(aeth::Repr { syndrome, msn: 0 }.to_bytes());
        }
        body.extend(say.word.iter().flat_map(|word| word.to_be_bytes()));
        body.extend(&say.payload);
        body.resize(body.len() + pad + icrc::LENGTH, 0);
        let length = (8 + body.len() as u16).to_be_bytes();
        let mut frame = [&OWN[..], &PEER, &[0x86, 0xdd]].concat();
        frame.extend([0x60, 0, 0, 0, length[0], length[1], 17, 64]);
        frame.extend(MacAddr(PEER).link_local().octets());
        frame.extend(MacAddr(OWN).link_local().octets());
        frame.extend([0xc0, 0, 0x12, 0xb7, length[0], length[1], 0, 0]);
        frame.extend(body);
        icrc::append(&mut frame).unwrap();
        frame
    }

    /// The next completion.
    pub fn poll(&mut self) -> Option<Cqe> {
        let block = self.entry(CQ + self.rings + record::ENTRIES, self.completions)?;
        self.completions += 1;
        self.write(CQ + self.rings + record::CONSUMER as u64, &self.completions.to_le_bytes());
        Some(Cqe::decode(&[block]))
    }

    /// All completions there are.
    pub fn poll_all(&mut self) -> Vec<Cqe> {
        std::iter::from_fn(|| self.poll()).collect()
    }

    /// The next event.
    pub fn event(&mut self) -> Option<EngineEvent> {
        let block = self.entry(EVENTS, self.events)?;
        self.events += 1;
        Some(EngineEvent::decode(&[block]))
    }

    /// The state that the stack has the QP in.
    pub fn state(&self) -> QpState {
        self.card.network.stack.query_qp(Qpn::new(self.qpn).unwrap()).unwrap().state
    }
}

fn take_apart(bytes: &[u8]) -> Heard {
    assert!(icrc::check(&mut bytes.to_vec()));
    let body = &bytes[14 + 40 + 8..];
    let packet = frame::Repr::parse(body).unwrap();
    assert_eq!(packet.bth.dest_qpn, PEER_QPN);
    let Range { start, end } = packet.payload;
    let value = if packet.bth.opcode == code::ATOMIC_ACKNOWLEDGE { 8 } else { 0 };
    Heard {
        opcode: packet.bth.opcode,
        psn: packet.bth.psn.value(),
        aeth: packet.aeth.map(|header| (header.syndrome.to_byte(), header.msn)),
        payload: body[start - value..end].to_vec(),
    }
}
