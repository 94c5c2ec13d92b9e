//! Two cards and their drivers, in virtual time.

use std::collections::{BTreeMap, BTreeSet};

use fpga_regs::coyote::vfpga as v;
use fpga_regs::engine::admin::{AdminStatus, CreateQp};
use fpga_regs::engine::cqe::Status;
use fpga_regs::engine::qp::{AttributeMask as M, Attributes, QpState, QpType};
use queue_engine::{
    LocalGid, Message, Transport, TransportError, TransportEvent, Unreachable, WqeOperation,
};
use stock::{Build, Card, Host, Identity, Reach, Space};
use stock_engine::param::{ASTRAY, ASTRAY_BYTES, LOCAL};
use stock_engine::{Budget, Faults, Locate, Meetings, Posts, Registers, Settings};
use trial::rng::Rng;

/// Bytes of memory of each QP; programs name them from 0 on.
pub const WINDOW_BYTES: u64 = 1 << 20;
const IPV4: [u32; 2] = [0x0a00_0001, 0x0a00_0002];
const MAC: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
/// Nanoseconds of a step.
const STEP: u64 = 5_000;
/// Where copies of the counters are wanted.
const COPIES: u64 = 0x10_0000_0000;

/// The opcode of a request, and the key that it names.
type Named = (u8, Option<u32>);

/// A host's memory, by address space.
#[derive(Debug, Default)]
struct Memory(BTreeMap<u8, Vec<u8>>, u64);

impl Memory {
    fn at(&mut self, ctid: u8, vaddr: u64, length: usize) -> Option<&mut [u8]> {
        let all = self.0.entry(ctid).or_insert_with(|| vec![0; WINDOW_BYTES as usize]);
        let start = usize::try_from(vaddr & !LOCAL).ok()?;
        all.get_mut(start..start.checked_add(length)?)
    }
}

impl Host for Memory {
    fn read(&mut self, space: Space, vaddr: u64, into: &mut [u8]) -> Reach {
        let length = into.len();
        into.copy_from_slice(self.at(space.ctid, vaddr, length).expect("memory that was named"));
        Reach::Done
    }

    fn write(&mut self, space: Space, vaddr: u64, from: &[u8]) -> Reach {
        let place = self.at(space.ctid, vaddr, from.len()).expect("memory that was named");
        place.copy_from_slice(from);
        Reach::Done
    }

    /// Copies of counters go where there is memory for them, and nowhere else.
    fn write_back(&mut self, bus: u64, _: u32) {
        let astray = |start: &u64| (COPIES + start..COPIES + start + ASTRAY_BYTES).contains(&bus);
        let is_astray = ASTRAY.iter().any(astray);
        assert!(is_astray || (COPIES..COPIES + 0x200).contains(&bus), "a counter goes to {bus:#x}");
        self.1 += u64::from(is_astray);
    }
}

/// A card in its host, as its registers show it.
pub struct Machine {
    card: Card,
    memory: Memory,
    /// The additions to the counters of an address space, as of a card that has run for long.
    offsets: BTreeMap<u8, u32>,
}

#[derive(Clone)]
pub struct Bus(std::rc::Rc<std::cell::RefCell<Machine>>);

impl Registers for Bus {
    fn store(&mut self, register: u64, words: [u64; 4]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let Machine { card, memory, .. } = &mut *self.0.borrow_mut();
        assert!(card.store(0, register, &bytes, memory));
        let waiting = card.load(0, v::CTRL).unwrap();
        assert!(waiting <= 22, "{waiting} posts wait");
    }

    fn load(&mut self, register: u64) -> u64 {
        let machine = self.0.borrow();
        let word = machine.card.load(0, register).unwrap();
        let counter = v::AVX_REMOTE.index(register).map(|ctid| machine.offsets.get(&(ctid as u8)));
        let offset = counter.flatten().copied().unwrap_or(0);
        u64::from((word >> 32) as u32).wrapping_add(offset.into()) << 32 | word & 0xffff_ffff
    }
}

/// Messages' memory lies where the peer's does.
#[derive(Default)]
struct Places {
    /// By QP and number: where it begins.
    starts: BTreeMap<(u32, u64), u64>,
    odd: Option<(u32, u64)>,
}

impl Locate for Places {
    fn locate(
        &mut self,
        qpn: u32,
        number: u64,
        offset: u32,
        length: u32,
        _: u8,
    ) -> Result<(u64, u32), Unreachable> {
        let start = self.starts.get(&(qpn, number)).ok_or(Unreachable)?;
        let length = if self.odd == Some((qpn, number)) { 3 } else { length };
        Ok((stock_engine::local_address(start + u64::from(offset)), length))
    }
}

pub struct Node {
    bus: Bus,
    pub posts: Posts<Bus>,
    places: Places,
}

/// Two nodes on a cable.
pub struct Net {
    pub nodes: [Node; 2],
    rng: Rng,
    now: u64,
    /// QPs of the second node that hear nothing.
    silent: Vec<u32>,
    /// READs that QPs of new connections may have out.
    pub reads: u8,
    /// The opcodes of requests to each QP, by side and QP, and the keys that they name.
    pub named: BTreeMap<(usize, u32), BTreeSet<Named>>,
    /// RoCE packets that get lost, in ten thousand; it is not checked where cards may then stand.
    pub loss: u64,
    pub may_stand: bool,
    /// Questions of the first node for Ethernet addresses get lost.
    pub unanswered: bool,
    /// Nanoseconds that the next packet to the first node needs on its way, and when it arrives.
    pub late: Option<u64>,
    held: Option<(u64, Vec<u8>)>,
    pub completed: BTreeMap<(usize, u32), u64>,
    pub failed: BTreeMap<(usize, u32), Status>,
    pub events: Vec<(usize, TransportEvent)>,
}

impl Net {
    pub fn new(seed: u64) -> Self {
        Self::with(seed, false)
    }

    /// Each takes the other one for an RNIC.
    pub fn of_rnics(seed: u64) -> Self {
        let settings = Settings { rnics: std::sync::Arc::new(IPV4.into()), ..Settings::default() };
        Self::with_settings(seed, &settings, [Budget::default(), Budget::default()])
    }

    /// Their cables are said to lose packets, or not to.
    pub fn with(seed: u64, lossy: bool) -> Self {
        Self::with_budgets(seed, lossy, [Budget::default(), Budget::default()])
    }

    /// A net of cards that share one budget for requests on their way, as two vFPGAs of a card do.
    pub fn sharing(seed: u64) -> Self {
        let budget = Budget::default();
        Self::with_budgets(seed, false, [budget.clone(), budget])
    }

    fn with_budgets(seed: u64, lossy: bool, budgets: [Budget; 2]) -> Self {
        Self::with_settings(seed, &Settings { lossy, ..Settings::default() }, budgets)
    }

    /// A net of cards of an old build, with the faults that its drivers are told.
    pub fn old(seed: u64, faults: Faults) -> Self {
        let settings = Settings { faults, ..Settings::default() };
        let mut net = Self::with_settings(seed, &settings, Default::default());
        for side in [0, 1] {
            net.program(side, Build::Old);
        }
        net
    }

    /// Programs a card.
    fn program(&mut self, side: usize, build: Build) {
        self.nodes[side].bus.0.borrow_mut().card = Card::of_build(1, build);
        self.begin(side);
    }

    /// Resets a card and its driver.
    pub fn reset_card(&mut self, side: usize) {
        self.nodes[side].bus.0.borrow_mut().card.reset();
        self.nodes[side].posts.reset();
        self.begin(side);
    }

    fn begin(&mut self, side: usize) {
        let bus = &mut self.nodes[side].bus;
        bus.0.borrow_mut().card.set_identity(Identity { mac: MAC[side], ipv4: IPV4[side] });
        bus.store(v::WBACK.offset, [COPIES, COPIES + 0x100, COPIES, COPIES]);
    }

    /// A net of one process.
    pub fn together(seed: u64) -> Self {
        let meetings = Meetings::default();
        let _first = IPV4.map(|card| meetings.join(card));
        let settings = Settings { meetings, ..Settings::default() };
        Self::with_settings(seed, &settings, [Budget::default(), Budget::default()])
    }

    fn with_settings(seed: u64, settings: &Settings, budgets: [Budget; 2]) -> Self {
        let node = |number: usize| {
            let mut card = Card::new(1);
            card.set_identity(Identity { mac: MAC[number], ipv4: IPV4[number] });
            let machine = Machine { card, memory: Memory::default(), offsets: BTreeMap::new() };
            let mut bus = Bus(std::rc::Rc::new(machine.into()));
            bus.store(v::WBACK.offset, [COPIES, COPIES + 0x100, COPIES, COPIES]);
            let (ipv4, mac) = (IPV4[number], MAC[number]);
            let settings = Settings { ipv4, mac, ..settings.clone() };
            let mut posts = Posts::new(bus.clone(), settings, budgets[number].clone());
            let gid = LocalGid { gid: gid_of(IPV4[number]), vlan: 0 };
            posts.set_gid(1, Some(gid)).unwrap();
            Node { bus, posts, places: Places::default() }
        };
        let (silent, named, loss, may_stand, late, held) = Default::default();
        let (unanswered, completed, failed, events) = Default::default();
        Self {
            nodes: [0, 1].map(node),
            rng: Rng::new(seed),
            now: 0,
            silent,
            reads: 16,
            named,
            loss,
            may_stand,
            unanswered,
            late,
            held,
            completed,
            failed,
            events,
        }
    }

    pub fn try_create(&mut self, side: usize) -> Result<u32, ()> {
        let posts = &mut self.nodes[side].posts;
        let qpn = posts.name_qp(QpType::Rc).unwrap().map_err(drop)?;
        posts.create_qp(qpn, &CreateQp { kind: QpType::Rc, ..CreateQp::default() }).unwrap();
        self.nodes[side].places.starts.retain(|(other, _), _| *other != qpn);
        self.completed.remove(&(side, qpn));
        Ok(qpn)
    }

    /// Makes a QP on either side, and connects them.
    pub fn connect(&mut self) -> [u32; 2] {
        let qpns = [0, 1].map(|side| self.try_create(side).unwrap());
        let psns = [0, 1].map(|_| self.rng.next() as u32 & 0xff_ffff);
        for side in [0, 1] {
            let other = 1 - side;
            let all = Attributes {
                path_mtu: 5,
                dest_qpn: qpns[other],
                rq_psn: psns[other],
                sq_psn: psns[side],
                sgid_index: 1,
                max_rd_atomic: self.reads,
                dgid: gid_of(IPV4[other]),
                ..Attributes::default()
            };
            let rtr = M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::AV;
            for (state, mask) in [
                (QpState::Init, M::empty()),
                (QpState::Rtr, rtr),
                (QpState::Rts, M::SQ_PSN | M::MAX_RD_ATOMIC),
            ] {
                let change = Attributes { mask: mask | M::STATE, state, ..all };
                self.nodes[side].posts.modify_qp(self.now, qpns[side], &change).unwrap();
            }
        }
        qpns
    }

    /// Brings a QP to RTR, with attributes that are another one's than the peer's.
    pub fn try_connect(
        &mut self,
        side: usize,
        qpn: u32,
        change: impl Fn(&mut Attributes),
    ) -> Result<(), AdminStatus> {
        let dgid = gid_of(IPV4[1 - side]);
        let mut all = Attributes { path_mtu: 5, sgid_index: 1, dgid, ..Attributes::default() };
        change(&mut all);
        let rtr = M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::AV;
        for (state, mask) in [(QpState::Init, M::empty()), (QpState::Rtr, rtr)] {
            let change = Attributes { mask: mask | M::STATE, state, ..all };
            self.nodes[side].posts.modify_qp(self.now, qpn, &change)?;
        }
        Ok(())
    }

    /// The same of a new QP, with a peer of any IPv4 address.
    pub fn name_peer(&mut self, side: usize, peer: u32) -> Result<(), AdminStatus> {
        let qpn = self.try_create(side).unwrap();
        self.try_connect(side, qpn, |all| all.dgid = gid_of(peer))
    }

    pub fn own_gid(&self, side: usize) -> [u8; 16] {
        gid_of(IPV4[side])
    }

    /// Gives a QP in SQD another path.
    pub fn try_path(&mut self, side: usize, qpn: u32, dgid: [u8; 16]) -> Result<(), AdminStatus> {
        let (mask, sgid_index) = (M::STATE | M::AV, 1);
        let change =
            Attributes { mask, state: QpState::Sqd, sgid_index, dgid, ..Attributes::default() };
        self.nodes[side].posts.modify_qp(self.now, qpn, &change)
    }

    /// Brings a QP to RESET.
    pub fn reset(&mut self, side: usize, qpn: u32) {
        let change = Attributes { mask: M::STATE, state: QpState::Reset, ..Attributes::default() };
        self.nodes[side].posts.modify_qp(self.now, qpn, &change).unwrap();
    }

    /// Brings a QP that is in RTR to RTS.
    pub fn let_send(&mut self, side: usize, qpn: u32) -> Result<(), AdminStatus> {
        let mask = M::STATE | M::SQ_PSN | M::MAX_RD_ATOMIC;
        let (state, max_rd_atomic) = (QpState::Rts, self.reads);
        let change = Attributes { mask, state, max_rd_atomic, ..Attributes::default() };
        self.nodes[side].posts.modify_qp(self.now, qpn, &change)
    }

    pub fn destroy(&mut self, side: usize, qpn: u32) {
        self.nodes[side].posts.destroy_qp(qpn);
    }

    pub fn state(&self, side: usize, qpn: u32) -> QpState {
        self.nodes[side].posts.query_qp(qpn).unwrap().state
    }

    /// A message whose memory is at `at` on both sides.
    pub fn submit(
        &mut self,
        side: usize,
        qpn: u32,
        read: bool,
        at: u64,
        length: u32,
    ) -> Result<u64, TransportError> {
        self.submit_by(side, qpn, read, at, length, 0)
    }

    /// The same by a key.
    pub fn submit_by(
        &mut self,
        side: usize,
        qpn: u32,
        read: bool,
        at: u64,
        length: u32,
        rkey: u32,
    ) -> Result<u64, TransportError> {
        let remote_address = at;
        let operation = match read {
            true => WqeOperation::Read { remote_address, rkey },
            false => WqeOperation::Write { remote_address, rkey, immediate: None },
        };
        self.message(side, qpn, operation, at, length)
    }

    pub fn submit_at(
        &mut self,
        side: usize,
        qpn: u32,
        remote_address: u64,
        length: u32,
    ) -> Result<u64, TransportError> {
        let operation = WqeOperation::Write { remote_address, rkey: 0, immediate: None };
        self.message(side, qpn, operation, 0, length)
    }

    pub fn send(&mut self, side: usize, qpn: u32) -> Result<u64, TransportError> {
        self.message(side, qpn, WqeOperation::Send { immediate: None }, 0, 64)
    }

    fn message(
        &mut self,
        side: usize,
        qpn: u32,
        operation: WqeOperation,
        at: u64,
        length: u32,
    ) -> Result<u64, TransportError> {
        let message = Message { operation, length, solicited: false, fence: false, srqn: None };
        let node = &mut self.nodes[side];
        let number = node.posts.submit(self.now, qpn, &message)?;
        node.places.starts.insert((qpn, number), at);
        Ok(number)
    }

    pub fn odd_at(&mut self, qpn: u32, number: u64) {
        self.nodes[0].places.odd = Some((qpn, number));
    }

    pub fn wrap_from(&mut self, side: usize, qpn: u32, counter: u32) {
        self.nodes[side].bus.0.borrow_mut().offsets.insert((qpn & 0x3f) as u8, counter);
    }

    pub fn drain(&mut self, side: usize, qpn: u32, drains: bool) {
        let state = if drains { QpState::Sqd } else { QpState::Rts };
        let change = Attributes { mask: M::STATE, state, ..Attributes::default() };
        self.nodes[side].posts.modify_qp(self.now, qpn, &change).unwrap();
    }

    pub fn is_draining(&self, side: usize, qpn: u32) -> bool {
        self.nodes[side].posts.query_qp(qpn).unwrap().sq_draining != 0
    }

    /// Whether a card has come to stand.
    pub fn stands(&self) -> bool {
        let stands = |card: &Card| card.parked().is_some() || card.starves();
        self.nodes.iter().any(|node| stands(&node.bus.0.borrow().card))
    }

    pub fn silence(&mut self, qpns: &[u32]) {
        self.silent = qpns.to_vec();
    }

    fn memory(&mut self, side: usize, qpn: u32, at: u64, length: u32) -> Vec<u8> {
        let mut machine = self.nodes[side].bus.0.borrow_mut();
        machine.memory.at((qpn & 0x3f) as u8, at, length as usize).unwrap().to_vec()
    }

    pub fn bytes(&mut self, side: usize, qpn: u32, at: u64, length: u32) -> Vec<u8> {
        self.memory(side, qpn, at, length)
    }

    pub fn fill(&mut self, side: usize, qpn: u32, at: u64, length: u32, seed: u64) {
        let mut rng = Rng::new(seed);
        let bytes: Vec<u8> = (0..length).map(|_| rng.next() as u8).collect();
        let mut machine = self.nodes[side].bus.0.borrow_mut();
        let place = machine.memory.at((qpn & 0x3f) as u8, at, length as usize);
        place.unwrap().copy_from_slice(&bytes);
    }

    /// Copies of counters that went astray.
    pub fn astray(&self, side: usize) -> u64 {
        self.nodes[side].bus.0.borrow().memory.1
    }

    /// Lets time pass.
    pub fn run(&mut self, nanoseconds: u64) {
        let end = self.now + nanoseconds;
        let mut quiet = 0;
        while self.now < end {
            let did = self.step();
            quiet = if did { 0 } else { quiet + 1 };
            // Where nothing happens, time is the timers'.
            self.now += if quiet > 20 { 1_000_000 } else { STEP };
        }
    }

    fn step(&mut self) -> bool {
        let mut did = false;
        for side in [0, 1] {
            let Node { bus, posts, places } = &mut self.nodes[side];
            // A driver that is not always there.
            if self.rng.chance(7000) {
                did |= posts.advance(self.now, places);
                posts.surface(|_| true);
                posts.surfaced();
            }
            if let Some(ctid) = posts.lost() {
                posts.close(ctid);
                posts.bury(ctid);
            }
            while let Some(event) = posts.take_event() {
                did = true;
                self.events.push((side, event));
                match event {
                    TransportEvent::Completed { qpn, count } => {
                        *self.completed.entry((side, qpn)).or_default() += count;
                    }
                    TransportEvent::Failed { qpn, status } => {
                        self.failed.insert((side, qpn), status);
                    }
                    TransportEvent::Async { .. } => {}
                    other => panic!("{other:?}"),
                }
            }
            let bus = bus.clone();
            let mut machine = bus.0.borrow_mut();
            let Machine { card, memory, .. } = &mut *machine;
            let now = self.now;
            card.work(now, memory);
            let mut frames = Vec::new();
            while let Some(frame) = card.transmit() {
                frames.push(frame);
            }
            drop(machine);
            did |= !frames.is_empty();
            for frame in frames {
                self.carry(side, &frame);
            }
        }
        if let Some((_, frame)) = self.held.take_if(|(due, _)| *due <= self.now) {
            self.nodes[0].bus.0.borrow_mut().card.receive(&frame);
            did = true;
        }
        for node in self.nodes.iter().filter(|_| !self.may_stand) {
            let machine = node.bus.0.borrow();
            assert!(machine.card.parked().is_none() && !machine.card.starves(), "the card stands");
            let tally = machine.card.tally();
            assert_eq!((tally.lost_posts, tally.refused, tally.lost_frames), (0, 0, 0));
        }
        did
    }

    fn carry(&mut self, from: usize, frame: &[u8]) {
        let to = 1 - from;
        if let Some((opcode, asks, qpn, syndrome)) = packet(frame) {
            assert!(matches!(opcode, 0x06..=0x08 | 0x0a | 0x0c..=0x11), "opcode {opcode:#x}");
            assert!(asks || matches!(opcode, 0x0d..=0x11), "AckReq on each request");
            let refuses = syndrome.is_some_and(|syndrome| syndrome != 0x1f);
            assert!(self.may_stand || !refuses, "a NAK");
            if asks && opcode < 0x0d {
                let has_key = matches!(opcode, 0x06 | 0x0a | 0x0c);
                let key =
                    has_key.then(|| frame[62..66].try_into().map(u32::from_be_bytes).unwrap());
                self.named.entry((to, qpn)).or_default().insert((opcode, key));
            }
            if self.rng.below(10_000) < self.loss {
                return;
            }
            if to == 1 && self.silent.contains(&qpn) {
                return;
            }
            if let Some(late) = self.late.take_if(|_| to == 0) {
                self.held = Some((self.now + late, frame.to_vec()));
                return;
            }
        } else if self.unanswered && from == 0 && frame.get(21) == Some(&1) {
            return;
        }
        self.nodes[to].bus.0.borrow_mut().card.receive(frame);
    }
}

/// Opcode, AckReq, QP and syndrome of a RoCE packet.
fn packet(frame: &[u8]) -> Option<(u8, bool, u32, Option<u8>)> {
    let bth = frame.get(42..)?;
    if frame[12..14] != [8, 0] {
        return None;
    }
    let qpn = u32::from_be_bytes([0, bth[5], bth[6], bth[7]]);
    let syndrome = (bth[0] == 0x11).then(|| bth[12]);
    Some((bth[0], bth[8] & 0x80 != 0, qpn, syndrome))
}

fn gid_of(ipv4: u32) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[10..12].fill(0xff);
    gid[12..].copy_from_slice(&ipv4.to_be_bytes());
    gid
}
