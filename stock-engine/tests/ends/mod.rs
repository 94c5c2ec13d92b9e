//! Two cards, their drivers, and programs of a kind at either end of a tunnel, in virtual time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use fpga_regs::coyote::vfpga as v;
use fpga_regs::engine::admin::{AdminStatus, CreateAh, CreateQp};
use fpga_regs::engine::key::Access;
use fpga_regs::engine::qp::{AttributeMask as M, Attributes, QpState, QpType};
use fpga_regs::engine::tunnel::{RING_BASE, SLOT_BYTES, SLOTS, ring_address};
use fpga_regs::engine::wqe::AtomicOperation;
use queue_engine::{
    LocalGid, Message, Payload, ReceiveError, RemoteAccess, RemoteRange, TakenReceive, Transport,
    TransportError, TransportEvent, Unreachable, WqeOperation,
};
use stock::{Card, Identity, Reach, Space};
use stock_engine::param::{LOCAL, STAGED, WATCHDOG};
use stock_engine::{
    Budget, Carrier, Exchange, Host, Key, Local, Locate, Meetings, Memory, Posts, Registers,
    Settings, Windows,
};
use trial::rng::Rng;

/// Bytes of a program's memory that peers reach.
pub const OPEN_BYTES: usize = 1 << 17;
/// The same where long messages go without slots.
const OPEN_LONG: usize = 1 << 20;
/// The key to it.
pub const RKEY: u32 = 0x1234;
pub const IPV4: [u32; 2] = [0x0a00_0001, 0x0a00_0002];
/// A card's that is on no cable; it ends as that of the second side does.
pub const THIRD: u32 = 0x0a00_0102;
const STEP: u64 = 5_000;
const RING: usize = SLOTS as usize * SLOT_BYTES;
const STAGING: usize = STAGED as usize * SLOT_BYTES;

/// Memory of balboad's that the card reaches: rings and slots to send.
#[derive(Debug, Default)]
struct Slots {
    of: BTreeMap<u8, (Vec<u8>, Vec<u8>)>,
    /// Address spaces that lead to the spare page, until the card asks for their pages anew.
    sunk: BTreeSet<u8>,
    sink: Vec<u8>,
}

impl Slots {
    fn of(&mut self, ctid: u8) -> &mut (Vec<u8>, Vec<u8>) {
        self.of.entry(ctid).or_insert_with(|| (vec![0; RING], vec![0; STAGING]))
    }

    fn at(&mut self, space: Space, vaddr: u64, length: usize) -> &mut [u8] {
        // Of windows that have ended, and of memory that is gone.
        let is_slot = vaddr >= RING_BASE || vaddr & LOCAL != 0;
        if !is_slot || self.sunk.contains(&space.ctid) {
            self.sink = vec![0; length];
            return &mut self.sink;
        }
        let (ring, staging) = self.of(space.ctid);
        if vaddr >= RING_BASE {
            let at = (vaddr - ring_address(space.ctid)) as usize;
            return &mut ring[at..at + length];
        }
        let at = (vaddr & !LOCAL) as usize - usize::from(space.ctid) * STAGING;
        &mut staging[at..at + length]
    }
}

/// The memory that a card reaches: slots, and memory of programs through windows.
struct Reached<'a> {
    slots: &'a mut Slots,
    programs: &'a mut BTreeMap<u32, Program>,
    windows: &'a mut Windows,
    strays: &'a mut Option<u32>,
}

impl Reached<'_> {
    /// Calls with the bytes behind an address, as far as pages lead to them, one after the other.
    fn each(&mut self, space: Space, vaddr: u64, length: usize, mut call: impl FnMut(&mut [u8])) {
        let mut done = 0;
        while done < length {
            let at = vaddr + done as u64;
            let here = (length - done).min((4096 - at % 4096) as usize);
            let page = at & !0xfff;
            let found = self.windows.find(space.ctid, page).and_then(|(window, bus)| {
                let start = (bus + at % 4096).checked_sub(window.iova)?;
                Some((window.payload, window.offset, start))
            });
            let strays = found.is_some() && *self.strays == Some(0);
            if let (Some(_), Some(left)) = (&found, *self.strays) {
                *self.strays = left.checked_sub(1);
            }
            let memory = found.filter(|_| !strays).and_then(|(payload, offset, start)| {
                let program = self.programs.get_mut(&u32::from(space.ctid))?;
                program.range(payload, offset + start, here)
            });
            match memory {
                Some(memory) => call(memory),
                None => call(self.slots.at(space, at, here)),
            }
            done += here;
        }
    }
}

impl stock::Host for Reached<'_> {
    fn read(&mut self, space: Space, vaddr: u64, into: &mut [u8]) -> Reach {
        let mut done = 0;
        self.each(space, vaddr, into.len(), |bytes| {
            into[done..done + bytes.len()].copy_from_slice(bytes);
            done += bytes.len();
        });
        Reach::Done
    }

    fn write(&mut self, space: Space, vaddr: u64, from: &[u8]) -> Reach {
        let mut done = 0;
        self.each(space, vaddr, from.len(), |bytes| {
            bytes.copy_from_slice(&from[done..done + bytes.len()]);
            done += bytes.len();
        });
        Reach::Done
    }

    fn write_back(&mut self, _: u64, _: u32) {}
}

/// The registers of a card reach no memory but for copies of counters.
struct Nothing;

impl stock::Host for Nothing {
    fn read(&mut self, _: Space, _: u64, _: &mut [u8]) -> Reach {
        Reach::Refused
    }

    fn write(&mut self, _: Space, _: u64, _: &[u8]) -> Reach {
        Reach::Refused
    }

    fn write_back(&mut self, _: u64, _: u32) {}
}

pub struct Machine {
    card: Card,
    slots: Slots,
}

#[derive(Clone)]
pub struct Bus(std::rc::Rc<std::cell::RefCell<Machine>>);

impl Registers for Bus {
    fn store(&mut self, register: u64, words: [u64; 4]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let card = &mut self.0.borrow_mut().card;
        assert!(card.store(0, register, &bytes, &mut Nothing));
        let waiting = card.load(0, v::CTRL).unwrap();
        assert!(waiting <= 22, "{waiting} posts wait");
    }

    fn load(&mut self, register: u64) -> u64 {
        self.0.borrow().card.load(0, register).unwrap()
    }
}

/// A program's queue pair, as an engine knows it.
#[derive(Debug, Default)]
pub struct Program {
    /// Memory of messages, by their number.
    pub messages: BTreeMap<u64, Vec<u8>>,
    /// Memory that the peer reaches.
    pub open: Vec<u8>,
    /// Receives that are posted, by their bytes.
    pub posted: VecDeque<usize>,
    /// Those that were taken.
    pub taken: Vec<Vec<u8>>,
    pub events: Vec<TransportEvent>,
    /// The number of received messages that it can be told of.
    pub room: Option<usize>,
}

impl Program {
    /// Takes an event; `false` where there is no room for it.
    fn hear(&mut self, event: TransportEvent) -> bool {
        if matches!(event, TransportEvent::Received(_)) {
            match self.room.map(|room| room.checked_sub(1)) {
                Some(None) => return false,
                Some(left) => self.room = left,
                None => {}
            }
        }
        self.events.push(event);
        true
    }

    pub fn completed(&self) -> u64 {
        let count = |event: &TransportEvent| match event {
            TransportEvent::Completed { count, .. } => *count,
            _ => 0,
        };
        self.events.iter().map(count).sum()
    }

    /// Where bytes of a payload lie. Those of messages are where they were when they were submitted.
    fn range(&mut self, payload: Payload, offset: u64, length: usize) -> Option<&mut [u8]> {
        let offset = offset as usize;
        match payload {
            Payload::Message { number } => {
                self.messages.get_mut(&number)?.get_mut(offset..offset + length)
            }
            Payload::Receive { id } => {
                self.taken.get_mut(id as usize)?.get_mut(offset..offset + length)
            }
            Payload::Remote { rkey: RKEY, address, .. } => {
                let at = address as usize + offset;
                self.open.get_mut(at..at + length)
            }
            _ => None,
        }
    }
}

/// The part of an engine that serves its transport.
pub struct Programs {
    bus: Bus,
    pub of: BTreeMap<u32, Program>,
    pub windows: Windows,
    /// Those that were opened so far.
    pub opened: Vec<u64>,
    /// Bytes of each one's memory that is open to its peer.
    pub open_bytes: usize,
    /// All memory lies in pieces.
    pub in_pieces: bool,
    /// Behind so many pages of windows the card takes one from elsewhere, or puts it elsewhere, and says that all is well.
    pub strays: Option<u32>,
}

impl Programs {
    fn range(
        &mut self,
        qpn: u32,
        payload: Payload,
        offset: u64,
        length: usize,
    ) -> Option<&mut [u8]> {
        // As the engine has it: the address moves, and the offset is not used.
        assert!(offset == 0 || !matches!(payload, Payload::Remote { .. }), "{payload:?} {offset}");
        self.of.get_mut(&qpn)?.range(payload, offset, length)
    }
}

impl Host for Programs {
    fn allows(&self, _: u32, memory: RemoteRange, _: RemoteAccess) -> bool {
        let RemoteRange { rkey, va: address, length } = memory;
        rkey == RKEY && address.checked_add(length).is_some_and(|end| end <= self.open_bytes as u64)
    }

    fn take_receive(&mut self, qpn: u32) -> Result<TakenReceive, ReceiveError> {
        let program = self.of.get_mut(&qpn).ok_or(ReceiveError::Empty)?;
        let bytes = program.posted.pop_front().ok_or(ReceiveError::Empty)?;
        let id = program.taken.len() as u64;
        program.taken.push(vec![0; bytes]);
        Ok(TakenReceive { id, capacity: bytes as u64, left: None })
    }

    fn read(
        &mut self,
        qpn: u32,
        payload: Payload,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), Unreachable> {
        let length = into.len();
        into.copy_from_slice(self.range(qpn, payload, offset, length).ok_or(Unreachable)?);
        Ok(())
    }

    fn write(
        &mut self,
        qpn: u32,
        payload: Payload,
        offset: u64,
        from: &[u8],
    ) -> Result<(), Unreachable> {
        self.range(qpn, payload, offset, from.len()).ok_or(Unreachable)?.copy_from_slice(from);
        Ok(())
    }

    fn atomic(
        &mut self,
        qpn: u32,
        rkey: u32,
        address: u64,
        operation: AtomicOperation,
    ) -> Result<u64, Unreachable> {
        let payload = Payload::Remote { rkey, address, access: RemoteAccess::Atomic };
        let place = self.range(qpn, payload, 0, 8).ok_or(Unreachable)?;
        let before = u64::from_le_bytes((&*place).try_into().unwrap());
        if let Some(after) = operation.apply(before) {
            place.copy_from_slice(&after.to_le_bytes());
        }
        Ok(before)
    }

    fn open(&mut self, qpn: u32, payload: Payload, offset: u64, bytes: u32) -> Option<u64> {
        if self.in_pieces {
            return None;
        }
        self.range(qpn, payload, offset, bytes as usize)?;
        // Anywhere in a page.
        let iova = 0x7000_0000 + offset % 4096 + u64::from(bytes) * 7 % 4096;
        let window = self.windows.open((qpn & 0x3f) as u8, iova, (payload, offset), bytes)?;
        self.opened.push(window);
        Some(window)
    }

    fn close(&mut self, qpn: u32, window: u64) {
        self.windows.close((qpn & 0x3f) as u8, window);
    }

    fn is_closed(&self, qpn: u32, window: u64) -> bool {
        self.windows.is_closed((qpn & 0x3f) as u8, window)
    }
}

impl Locate for Programs {
    fn locate(&mut self, _: u32, _: u64, _: u32, _: u32, _: u8) -> Result<(u64, u32), Unreachable> {
        panic!("a post that is no slot");
    }
}

impl Memory for Programs {
    fn sequence(&self, ctid: u8, place: usize) -> u64 {
        let mut machine = self.bus.0.borrow_mut();
        let (ring, _) = machine.slots.of(ctid);
        u64::from_le_bytes(ring[place + 8..place + 16].try_into().unwrap())
    }

    fn slot(&self, ctid: u8, place: usize, into: &mut [u8]) {
        let mut machine = self.bus.0.borrow_mut();
        into.copy_from_slice(&machine.slots.of(ctid).0[place..place + into.len()]);
    }

    fn stage(&mut self, ctid: u8, number: u8, slot: &[u8]) -> u64 {
        let at = usize::from(number) * SLOT_BYTES;
        let mut machine = self.bus.0.borrow_mut();
        machine.slots.of(ctid).1[at..at + slot.len()].copy_from_slice(slot);
        LOCAL | (usize::from(ctid) * STAGING + at) as u64
    }

    fn deliver(&mut self, qpn: u32, place: usize, slot: &[u8]) {
        let mut machine = self.bus.0.borrow_mut();
        machine.slots.of((qpn & 0x3f) as u8).0[place..place + slot.len()].copy_from_slice(slot);
    }

    fn clear(&mut self, ctid: u8) {
        self.bus.0.borrow_mut().slots.of(ctid).0.fill(0);
    }

    fn end_windows(&mut self, ctid: u8) -> bool {
        self.windows.end(ctid)
    }
}

fn mac_of(number: usize) -> [u8; 6] {
    [2, 0, 0, 0, 0, number as u8]
}

/// A card as it comes out of its reset, with its addresses.
fn card_of(number: usize, ipv4: u32) -> Card {
    let mut card = Card::new(1);
    card.set_identity(Identity { mac: mac_of(number), ipv4 });
    card
}

pub struct Node {
    bus: Bus,
    pub carrier: Carrier<Bus>,
    pub programs: Programs,
    /// Its thread does not run.
    pub stands: bool,
}

impl Node {
    fn new(
        number: usize,
        ipv4: u32,
        peers: BTreeMap<u32, Key>,
        random: u32,
        meetings: &Meetings,
        settings: &Settings,
    ) -> Self {
        let card = card_of(number, ipv4);
        let bus = Bus(std::rc::Rc::new(Machine { card, slots: Slots::default() }.into()));
        let settings = Settings {
            ipv4,
            mac: mac_of(number),
            peers: Arc::new(peers),
            local: Some(Local::new(Key::new([number as u8; 16]))),
            meetings: meetings.clone(),
            past_lives: meetings.join(ipv4),
            datagrams: Some(Exchange::new(ipv4, 1, random, meetings.clone())),
            ..settings.clone()
        };
        let mut posts = Posts::new(bus.clone(), settings, Budget::default());
        posts.set_gid(1, Some(LocalGid { gid: gid_of(ipv4), vlan: 0 })).unwrap();
        let carrier = Carrier::new(posts);
        let (of, windows, opened, in_pieces, strays) = Default::default();
        let (its, open_bytes) = (bus.clone(), OPEN_BYTES);
        let programs = Programs { bus: its, of, windows, opened, open_bytes, in_pieces, strays };
        Self { bus, carrier, programs, stands: false }
    }

    /// One turn of its thread; `true` if there was anything.
    fn turn(&mut self, now: u64) -> bool {
        let Self { bus, carrier, programs, .. } = self;
        let did = carrier.advance(now, programs);
        carrier.surface();
        carrier.posts.surfaced();
        if let Some(ctid) = carrier.posts.lost() {
            carrier.posts.close(ctid);
            programs.windows.begin_end(ctid);
            programs.windows.forget(ctid);
            carrier.posts.bury(ctid);
        }
        while programs.windows.take_fresh().is_some() {}
        if let Some(number) = carrier.connected_link() {
            bus.0.borrow_mut().slots.sunk.clear();
            carrier.open_link(number);
        }
        if let Some(qpn) = carrier.ended_link() {
            bus.0.borrow_mut().slots.sunk.insert((qpn & 0x3f) as u8);
            carrier.release_link(qpn);
        }
        did
    }

    /// Its card confirms that it has forgotten ended windows; whether there were any.
    fn confirm(&mut self) -> bool {
        let windows = &mut self.programs.windows;
        let did = !windows.leave().is_empty();
        windows.left(|_, _, _| false);
        did
    }

    /// Makes a QP of datagrams, in RTS.
    pub fn socket(&mut self, now: u64, qkey: u32) -> u32 {
        let Self { carrier, programs, .. } = self;
        let qpn = carrier.name_qp(QpType::Ud).unwrap().unwrap();
        let command = CreateQp { kind: QpType::Ud, ..CreateQp::default() };
        carrier.create_qp(qpn, &command).unwrap();
        programs.of.insert(qpn, Program::default());
        for (state, mask) in
            [(QpState::Init, M::QKEY), (QpState::Rtr, M::empty()), (QpState::Rts, M::SQ_PSN)]
        {
            let mask = mask | M::STATE;
            let change = Attributes { mask, state, qkey, ..Attributes::default() };
            carrier.modify_qp(now, qpn, &change).unwrap();
        }
        qpn
    }
}

/// Two nodes on a cable.
pub struct Net {
    pub nodes: [Node; 2],
    /// A card of the same process that is on no cable, which the first node takes for a peer.
    pub third: Option<Node>,
    rng: Rng,
    now: u64,
    /// RoCE packets that get lost, in ten thousand; it is not checked where cards may then stand.
    pub loss: u64,
    pub may_stand: bool,
    /// Nanoseconds that a frame is on its way, and the frames that are: their end, and their side.
    pub delay: u64,
    /// The rights that connected queue pairs grant to their peers.
    pub grants: Access,
    /// The frames that a listener overhears on the link, by the side to which they go.
    pub overheard: Option<Vec<(usize, Vec<u8>)>>,
    on_the_way: VecDeque<(u64, usize, Vec<u8>)>,
}

pub fn gid_of(ipv4: u32) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[10..12].fill(0xff);
    gid[12..].copy_from_slice(&ipv4.to_be_bytes());
    gid
}

impl Net {
    /// The packets between two turnovers are as many.
    pub fn new(seed: u64, turnover: u32) -> Self {
        Self::with_keys(seed, turnover, [[7; 16]; 2])
    }

    pub fn with_keys(seed: u64, turnover: u32, keys: [[u8; 16]; 2]) -> Self {
        Self::with(seed, keys, &Settings { turnover, ..Settings::default() })
    }

    /// Their cables are said to lose packets, and a peer may be silent for so long.
    pub fn lossy(seed: u64, turnover: u32, watchdog: u64) -> Self {
        let settings = Settings { turnover, watchdog, lossy: true, ..Settings::default() };
        Self::with(seed, [[7; 16]; 2], &settings)
    }

    /// Messages go without slots from so many bytes on.
    pub fn granting(seed: u64, turnover: u32, long: u32) -> Self {
        let settings = Settings { turnover, long: Some(long), ..Settings::default() };
        let mut net = Self::with(seed, [[7; 16]; 2], &settings);
        for node in &mut net.nodes {
            node.programs.open_bytes = OPEN_LONG;
        }
        net
    }

    /// A net of a process that has brought its cards up before.
    pub fn again(meetings: &Meetings) -> Self {
        Self::among([meetings; 2], 1, [[7; 16]; 2], &Settings::default())
    }

    fn with(seed: u64, keys: [[u8; 16]; 2], settings: &Settings) -> Self {
        Self::among([&Meetings::default(); 2], seed, keys, settings)
    }

    /// A net of two processes, which know nothing of each other.
    pub fn apart(seed: u64) -> Self {
        let meetings = [Meetings::default(), Meetings::default()];
        Self::among(meetings.each_ref(), seed, [[7; 16]; 2], &Settings::default())
    }

    fn among(
        meetings: [&Meetings; 2],
        seed: u64,
        keys: [[u8; 16]; 2],
        settings: &Settings,
    ) -> Self {
        let node = |number: usize| {
            let random = (seed as u32).wrapping_add(1000 * number as u32);
            let mut peers = BTreeMap::from([(IPV4[1 - number], Key::new(keys[number]))]);
            if number == 0 {
                peers.insert(THIRD, Key::new(keys[0]));
            }
            Node::new(number, IPV4[number], peers, random, meetings[number], settings)
        };
        let (rng, now, loss, may_stand, delay) = (Rng::new(seed), 0, 0, false, 0);
        let on_the_way = VecDeque::new();
        let (nodes, grants, overheard) = ([0, 1].map(node), Access::all(), None);
        let third = None;
        Self { nodes, third, rng, now, loss, may_stand, delay, grants, overheard, on_the_way }
    }

    /// There is a third card besides, without a cable.
    pub fn of_three(seed: u64) -> Self {
        let (meetings, keys, settings) = (Meetings::default(), [[7; 16]; 2], Settings::default());
        let mut net = Self::among([&meetings; 2], seed, keys, &settings);
        let peers = BTreeMap::from([(IPV4[0], Key::new(keys[0]))]);
        net.third = Some(Node::new(2, THIRD, peers, 7, &meetings, &settings));
        net
    }

    /// Makes a QP on either side and connects them; that of side 1 may stay in RTR.
    pub fn connect(&mut self, rnr_retry: u8, both_send: bool) -> [u32; 2] {
        let qpns = [0, 1].map(|side| self.create(side));
        self.join([0, 1], qpns, rnr_retry, both_send);
        qpns
    }

    /// Makes a QP.
    pub fn create(&mut self, side: usize) -> u32 {
        let Node { carrier, programs, .. } = &mut self.nodes[side];
        let qpn = carrier.name_qp(QpType::Rc).unwrap().unwrap();
        let command = CreateQp { kind: QpType::Rc, ..CreateQp::default() };
        carrier.create_qp(qpn, &command).unwrap();
        let mut open: Vec<_> = (0..OPEN_BYTES).map(|_| self.rng.next() as u8).collect();
        open.resize(programs.open_bytes, 0);
        programs.of.insert(qpn, Program { open, ..Program::default() });
        qpn
    }

    /// Connects two QPs, on these sides; the second one may stay in RTR.
    pub fn join(&mut self, sides: [usize; 2], qpns: [u32; 2], rnr_retry: u8, both_send: bool) {
        let psns = [0, 1].map(|_| self.rng.next() as u32 & 0xff_ffff);
        for own in [0, 1] {
            let peer = 1 - own;
            let sends = own == 0 || both_send;
            let attributes = Attributes {
                dest_qpn: qpns[peer],
                rq_psn: psns[peer],
                sq_psn: psns[own],
                dgid: gid_of(IPV4[sides[peer]]),
                rnr_retry,
                ..Attributes::default()
            };
            self.attach(sides[own], qpns[own], &attributes, sends);
        }
    }

    /// Connects a QP to one of its own card, by the same first numbers both ways.
    pub fn attach_beside(&mut self, side: usize, qpn: u32, dest_qpn: u32) {
        let (dgid, rnr_retry) = (gid_of(IPV4[side]), 7);
        let attributes = Attributes { dest_qpn, dgid, rnr_retry, ..Attributes::default() };
        self.attach(side, qpn, &attributes, true);
    }

    /// Connects a QP to one of the other side's, which need not know of it.
    pub fn name(&mut self, side: usize, qpn: u32, dest_qpn: u32) {
        let (dgid, rnr_retry) = (gid_of(IPV4[1 - side]), 7);
        let attributes = Attributes { dest_qpn, dgid, rnr_retry, ..Attributes::default() };
        self.attach(side, qpn, &attributes, true);
    }

    /// The address space of a QP leads to no program's memory any more.
    fn end_space(&mut self, side: usize, qpn: u32) {
        let ctid = (qpn & 0x3f) as u8;
        self.nodes[side].carrier.posts.close(ctid);
        self.nodes[side].programs.windows.begin_end(ctid);
        self.nodes[side].programs.windows.forget(ctid);
    }

    /// Fails a QP for a reason that the engine has found itself.
    pub fn fail(&mut self, side: usize, qpn: u32) {
        let change = Attributes { mask: M::STATE, state: QpState::Err, ..Attributes::default() };
        self.nodes[side].carrier.modify_qp(self.now, qpn, &change).unwrap();
    }

    /// Waits for the answers that a QP owes, closes it to its peer, and waits for packets out of it and on their way to
    /// it; whether there are none.
    pub fn settle(&mut self, side: usize, qpn: u32) -> bool {
        let owes = |net: &Self| net.nodes[side].carrier.owes(qpn);
        for _ in 0..10 {
            if !owes(self) {
                break;
            }
            self.run(STEP);
        }
        self.nodes[side].carrier.posts.part(qpn);
        self.wait_while(|net| {
            let carrier = &net.nodes[side].carrier;
            owes(net) || carrier.is_out(qpn) || carrier.posts.is_sent_to(qpn)
        })
    }

    /// Brings a QP to RESET.
    pub fn reset(&mut self, side: usize, qpn: u32) {
        self.end_space(side, qpn);
        let change = Attributes { mask: M::STATE, state: QpState::Reset, ..Attributes::default() };
        self.nodes[side].carrier.modify_qp(self.now, qpn, &change).unwrap();
    }

    /// Brings a QP to RTR, or to RTS if it sends, with the attributes of its peer.
    fn attach(&mut self, side: usize, qpn: u32, peer: &Attributes, sends: bool) {
        let all = Attributes {
            path_mtu: 3,
            sgid_index: 1,
            min_rnr_timer: 16,
            max_rd_atomic: 4,
            access: self.grants.bits(),
            ..*peer
        };
        let rtr = M::ACCESS | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::AV | M::MIN_RNR_TIMER;
        let rts = M::SQ_PSN | M::RNR_RETRY | M::MAX_RD_ATOMIC;
        let steps = [(QpState::Init, M::empty()), (QpState::Rtr, rtr), (QpState::Rts, rts)];
        for (state, mask) in steps.into_iter().take(if sends { 3 } else { 2 }) {
            let change = Attributes { mask: mask | M::STATE, state, ..all };
            self.nodes[side].carrier.modify_qp(self.now, qpn, &change).unwrap();
        }
    }

    pub fn drain(&mut self, side: usize, qpn: u32, drains: bool) {
        let state = if drains { QpState::Sqd } else { QpState::Rts };
        let change = Attributes { mask: M::STATE, state, ..Attributes::default() };
        self.nodes[side].carrier.modify_qp(self.now, qpn, &change).unwrap();
    }

    pub fn is_draining(&self, side: usize, qpn: u32) -> bool {
        self.nodes[side].carrier.query_qp(qpn).unwrap().sq_draining != 0
    }

    pub fn submit(
        &mut self,
        side: usize,
        qpn: u32,
        operation: WqeOperation,
        bytes: &[u8],
    ) -> Result<u64, TransportError> {
        let length = bytes.len() as u32;
        // Changes of memory wait for earlier READs, which may be served later otherwise.
        let fence = matches!(operation, WqeOperation::Write { .. } | WqeOperation::Atomic { .. });
        let message = Message { operation, length, solicited: false, fence, srqn: None };
        let Node { carrier, programs, .. } = &mut self.nodes[side];
        let number = carrier.submit(self.now, qpn, &message)?;
        programs.of.get_mut(&qpn).unwrap().messages.insert(number, bytes.to_vec());
        Ok(number)
    }

    /// Makes a QP of datagrams, in RTS.
    pub fn socket(&mut self, side: usize, qkey: u32) -> u32 {
        self.nodes[side].socket(self.now, qkey)
    }

    /// The same of the third card's.
    pub fn third_socket(&mut self, qkey: u32) -> u32 {
        self.third.as_mut().unwrap().socket(self.now, qkey)
    }

    /// Brings a QP of datagrams to another state.
    pub fn change(&mut self, side: usize, qpn: u32, state: QpState) {
        let change = Attributes { mask: M::STATE, state, ..Attributes::default() };
        self.nodes[side].carrier.modify_qp(self.now, qpn, &change).unwrap();
    }

    pub fn state(&self, side: usize, qpn: u32) -> QpState {
        self.nodes[side].carrier.query_qp(qpn).unwrap().state
    }

    /// Makes an address handle to a GID.
    pub fn handle(&mut self, side: usize, ah: u32, dgid: [u8; 16]) -> Result<(), AdminStatus> {
        let (hop_limit, traffic_class) = (64, 0x20);
        let command =
            CreateAh { sgid_index: 1, hop_limit, traffic_class, dgid, ..CreateAh::default() };
        self.nodes[side].carrier.create_ah(self.now, ah, &command)
    }

    /// Lets time pass while a condition holds, for as long as a peer may be silent; whether it has ended.
    fn wait_while(&mut self, is_so: impl Fn(&Self) -> bool) -> bool {
        let end = self.now + WATCHDOG;
        while is_so(self) && self.now < end {
            self.run(STEP);
        }
        !is_so(self)
    }

    /// Begins nothing more on a side, and lets time pass until all requests are answered, and none is on its way to it;
    /// whether that is reached.
    pub fn halt(&mut self, side: usize) -> bool {
        self.nodes[side].carrier.halt(self.now);
        let is_quiet = self.wait_while(|net| !net.nodes[side].carrier.is_quiet());
        self.nodes[side].carrier.part();
        let waits = |net: &Self| {
            let carrier = &net.nodes[side].carrier;
            !carrier.is_quiet() || carrier.is_sent_to()
        };
        is_quiet && self.wait_while(waits)
    }

    /// Whether a card's reception stands.
    pub fn stands(&self, side: usize) -> bool {
        let machine = self.nodes[side].bus.0.borrow();
        machine.card.parked().is_some() || machine.card.starves()
    }

    /// A card forgets everything, and is there again.
    pub fn restart(&mut self, side: usize) {
        let Node { bus, carrier, programs, .. } = &mut self.nodes[side];
        carrier.leave();
        bus.0.borrow_mut().card = card_of(side, IPV4[side]);
        bus.0.borrow_mut().slots = Slots::default();
        carrier.reset();
        programs.of.clear();
        programs.windows.reset();
    }

    /// Gives a card that was reset its address again.
    pub fn give_gid(&mut self, side: usize) {
        let gid = LocalGid { gid: gid_of(IPV4[side]), vlan: 0 };
        self.nodes[side].carrier.set_gid(1, Some(gid)).unwrap();
    }

    pub fn destroy(&mut self, side: usize, qpn: u32) {
        self.end_space(side, qpn);
        self.nodes[side].carrier.destroy_qp(qpn);
        self.nodes[side].programs.of.remove(&qpn);
    }

    /// Posts of a side's card.
    pub fn posts(&self, side: usize) -> u64 {
        self.nodes[side].carrier.posts.tally().posts
    }

    pub fn program(&mut self, side: usize, qpn: u32) -> &mut Program {
        self.nodes[side].programs.of.get_mut(&qpn).unwrap()
    }

    /// A card writes bytes to an address of a QP's.
    pub fn land(&mut self, side: usize, qpn: u32, vaddr: u64, bytes: &[u8]) {
        let Node { bus, programs, .. } = &mut self.nodes[side];
        let Programs { of, windows, strays, .. } = programs;
        let slots = &mut bus.0.borrow_mut().slots;
        let mut reached = Reached { slots, programs: of, windows, strays };
        assert_eq!(stock::Host::write(&mut reached, Space::of_qp(qpn), vaddr, bytes), Reach::Done);
    }

    /// A place of a ring.
    pub fn place(&mut self, side: usize, qpn: u32, place: usize) -> Vec<u8> {
        let mut machine = self.nodes[side].bus.0.borrow_mut();
        machine.slots.of((qpn & 0x3f) as u8).0[place..place + SLOT_BYTES].to_vec()
    }

    pub fn put(&mut self, side: usize, qpn: u32, place: usize, bytes: &[u8]) {
        let mut machine = self.nodes[side].bus.0.borrow_mut();
        machine.slots.of((qpn & 0x3f) as u8).0[place..place + bytes.len()].copy_from_slice(bytes);
    }

    /// Puts a forged frame on the link to a side.
    pub fn put_on_link(&mut self, side: usize, frame: &[u8]) {
        self.nodes[side].bus.0.borrow_mut().card.receive(frame);
    }

    /// Lets time pass.
    pub fn run(&mut self, nanoseconds: u64) {
        let end = self.now + nanoseconds;
        let mut quiet = 0;
        while self.now < end {
            let did = self.step();
            quiet = if did { 0 } else { quiet + 1 };
            self.now += if quiet > 20 { 1_000_000 } else { STEP };
        }
    }

    fn step(&mut self) -> bool {
        let mut did = false;
        for side in [0, 1] {
            let node = &mut self.nodes[side];
            if self.rng.chance(7000) && !node.stands {
                did |= node.turn(self.now);
                // The card may take its time to confirm.
                if self.rng.chance(5000) {
                    did |= node.confirm();
                }
            }
            let Node { carrier, programs, .. } = node;
            let mut told = false;
            while let Some(event) = carrier.take_event() {
                told = true;
                let qpn = event.qpn();
                if programs.of.get_mut(&qpn).is_some_and(|program| !program.hear(event)) {
                    assert!(carrier.refuse(self.now, qpn), "it has ended already");
                }
            }
            // As an engine's thread does: peers get answers to messages that programs were told of.
            if told {
                did |= carrier.advance(self.now, programs);
            }
            let Node { bus, programs, .. } = node;
            let bus = bus.clone();
            let frames = {
                let Machine { card, slots } = &mut *bus.0.borrow_mut();
                let Programs { of, windows, strays, .. } = programs;
                card.work(self.now, &mut Reached { slots, programs: of, windows, strays });
                std::iter::from_fn(|| card.transmit()).collect::<Vec<_>>()
            };
            did |= !frames.is_empty();
            for frame in frames {
                if !self.may_stand {
                    check(&frame);
                }
                if frame[12..14] == [8, 0] && self.rng.below(10_000) < self.loss {
                    continue;
                }
                if let Some(heard) = &mut self.overheard {
                    heard.push((1 - side, frame.clone()));
                }
                self.on_the_way.push_back((self.now + self.delay, 1 - side, frame));
            }
            while self.on_the_way.front().is_some_and(|(due, ..)| *due <= self.now) {
                let (_, side, frame) = self.on_the_way.pop_front().unwrap();
                self.nodes[side].bus.0.borrow_mut().card.receive(&frame);
            }
        }
        if let Some(third) = self.third.as_mut().filter(|third| !third.stands) {
            did |= third.turn(self.now);
        }
        did |= !self.on_the_way.is_empty();
        for node in self.nodes.iter().filter(|_| !self.may_stand) {
            let machine = node.bus.0.borrow();
            assert!(machine.card.parked().is_none() && !machine.card.starves(), "the card stands");
            let tally = machine.card.tally();
            assert_eq!((tally.lost_posts, tally.refused, tally.lost_frames), (0, 0, 0));
        }
        did
    }
}

/// WRITEs, and ACKs that refuse nothing: no other packet goes over the link.
fn check(frame: &[u8]) {
    let bth = &frame[42..];
    if frame[12..14] == [8, 0] {
        let is_ack = bth[0] == 0x11 && bth[12] == 0x1f;
        assert!(
            is_ack || matches!(bth[0], 0x06..=0x08 | 0x0a) && bth[8] & 0x80 != 0,
            "opcode {:#x}",
            bth[0]
        );
    }
}
