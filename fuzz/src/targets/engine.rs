//! The queue engine between a hostile driver, hostile clients and a hostile transport.
//!
//! Its memory changes under it: a change of the loaded
//! bytes follows every load of a record or a ring block, so that a second look would see others. Checked promises: no
//! block of a send queue is read twice, nothing is written but completions, events and answers in the rings that were
//! named, every byte of payload lies under a key that was made or in the queue's own ring, and the work of one call is
//! bounded.

use std::collections::BTreeMap;
use std::rc::Rc;

use arbitrary::Unstructured;
use fpga_regs::Block;
use fpga_regs::engine::admin::{
    AdminStatus, AllocDm, Completion, CopyDm, CreateAh, CreateCq, CreateKey, CreateQp, CreateRq,
    Destroy, DmDirection, Header, KeyKind, Membership, ModerateCq, ModifyKey, ModifyQp, ModifyRq,
    Opcode, ResizeCq, RqKind, SetGid,
};
use fpga_regs::engine::cqe::Status;
use fpga_regs::engine::doorbell::{self, QueueKind, record};
use fpga_regs::engine::event::{Event, EventType, QpEvent};
use fpga_regs::engine::key::Access;
use fpga_regs::engine::qp::{AttributeMask, Attributes, QpState, QpType};
use fpga_regs::engine::transition::transition;
use fpga_regs::engine::window::{self, Capabilities, LimitRate, Profile};
use fpga_regs::engine::wqe::{Datagram, SendHeader, SendOpcode};
use queue_engine::{
    DoorbellPage as _, Engine, EngineConfig, Payload, Piece, ReceiveKind, ReceivedMessage,
    RemoteAccess, RemoteRange, TransportEvent, XrcRequest,
};

use crate::Outcome;
use surroundings::{Lower, Memory, Numbers, Page};

mod surroundings;

/// Where the queues of the clients lie; each has 2^16 bytes.
const QUEUES: u64 = 0x10_0000;
const QUEUE_BYTES: u64 = 1 << 16;
const QUEUE_COUNT: u64 = 24;
/// Where payload lies.
const PAYLOAD: u64 = 0x80_0000;
const PAYLOAD_BYTES: u64 = 1 << 16;
/// The driver's rings.
const ADMIN_SQ: u64 = 0x1000;
const ADMIN_CQ: u64 = 0x2000;
const RESPONSE: u64 = 0x3000;
const EVENTS: u64 = 0x4000;
const LOG2_ADMIN: u8 = 4;
const LOG2_EVENTS: u8 = 3;
/// Unread events at which completions wait.
const COMPLETIONS: u64 = 3;
/// Event rings that the driver lays, one behind the other.
const RINGS: u8 = 3;

/// Where the engine has memory of its own.
const OWN: u64 = 1 << 63;
const NULL: u64 = 3 << 62;

const PAGE: u8 = 1;
const QPS: usize = 4;
/// The XRC domains.
const XRCDNS: [u32; 2] = [5, 6];
/// An XRC target of another engine.
const FOREIGN: u32 = 0x70_0042;
const CONFIG: EngineConfig = EngineConfig {
    window: 3,
    profile: Profile::Vqe,
    capabilities: Capabilities::RC
        .union(Capabilities::XRC)
        .union(Capabilities::UD)
        .union(Capabilities::MULTICAST)
        .union(Capabilities::SRQ)
        .union(Capabilities::RESIZE_CQ)
        .union(Capabilities::DEVICE_MEMORY)
        .union(Capabilities::MODERATION)
        .union(Capabilities::NULL_MR)
        .union(Capabilities::RATE_LIMIT),
    qps: QPS as u32,
    cqs: 6,
    rqs: 6,
    keys: 6,
    ahs: 6,
    groups: 8,
    qps_per_group: 4,
    rates: LimitRate { min: 1_000, max: 100_000_000 },
    log2_cq_entries: 6,
    log2_sq_blocks: 6,
    log2_rq_entries: 6,
    max_rd_atomic: 16,
    max_message: 1 << 30,
    device_memory: 4096,
    event_rings: RINGS,
    under_way_bytes: 1 << 12,
};

struct Bench {
    engine: Engine<Memory, Page, Numbers>,
    memory: Memory,
    page: Page,
    lower: Lower,
    now: u64,
    admin: u32,
    /// The objects that were made: number and place.
    cqs: Vec<(u32, u64)>,
    /// In which event ring each completion queue that was made is told of.
    vectors: BTreeMap<u32, u8>,
    rqs: Vec<(u32, u64)>,
    qps: Vec<(u32, u64)>,
    /// Shared receive queues of XRC domains, which are also in `rqs`, and the targets.
    srqs: Vec<XrcRequest>,
    targets: Vec<u32>,
    /// Receives along XRC that were taken: queue, id, and through which target.
    taken: Vec<(u32, u64, u32)>,
    keys: Vec<(u32, CreateKey)>,
    /// Address handles that the driver has, and the last one that it had.
    ahs: Vec<u32>,
    last_ah: u32,
    next_queue: u64,
    completions: u32,
}

pub fn run(u: &mut Unstructured<'_>) -> Outcome {
    let memory = Memory(Rc::default());
    let page = Page(Rc::default());
    let numbers = Numbers(crate::random::Random::new(u.arbitrary()?));
    let mut engine = Engine::new(CONFIG, numbers);
    assert!(engine.open_page(PAGE, page.clone()));
    let mut bench = Bench {
        engine,
        memory,
        page,
        lower: Lower::default(),
        now: 1,
        admin: 0,
        cqs: Vec::new(),
        vectors: BTreeMap::new(),
        rqs: Vec::new(),
        qps: Vec::new(),
        srqs: Vec::new(),
        targets: Vec::new(),
        taken: Vec::new(),
        keys: Vec::new(),
        ahs: Vec::new(),
        last_ah: 0,
        next_queue: 0,
        completions: 0,
    };
    bench.start();
    for _ in 0..u.int_in_range(1..=2)? {
        bench.make_all(u)?;
    }
    while !u.is_empty() {
        bench.act(u)?;
        bench.check();
    }
    Ok(())
}

impl Bench {
    fn start(&mut self) {
        for (register, value) in [
            (window::ADMIN_SQ_BASE, ADMIN_SQ),
            (window::ADMIN_SQ_SIZE, LOG2_ADMIN.into()),
            (window::ADMIN_CQ_BASE, ADMIN_CQ),
            (window::ADMIN_CQ_SIZE, LOG2_ADMIN.into()),
            (window::EVENT_BASE, EVENTS),
            (window::EVENT_SIZE, LOG2_EVENTS.into()),
            (window::EVENT_RINGS, RINGS.into()),
            (window::EVENT_COMPLETIONS, COMPLETIONS),
            (window::CONTROL, window::CONTROL_ENABLE),
        ] {
            self.write(register, value);
        }
        let gid = SetGid { index: 0, valid: 1, vlan: 0, gid: [1; 16] };
        self.admin(Opcode::SetGid, &gid.encode());
    }

    fn write(&mut self, register: u64, value: u64) {
        self.new_call();
        self.engine.write_register(register, value, &mut self.lower);
        self.engine.execute(self.now, &self.memory, &mut self.lower);
    }

    fn new_call(&mut self) {
        self.now += 1;
        self.memory.0.reads.set(0);
        self.memory.0.writes.set(0);
        self.memory.0.seen.borrow_mut().clear();
    }

    /// Runs one command of a driver whose rings stay undisturbed.
    fn admin(&mut self, opcode: Opcode, blocks: &[Block]) -> Completion {
        let chaos = std::mem::take(&mut *self.memory.0.chaos.borrow_mut());
        let header = Header { opcode, blocks: blocks.len() as u8, tag: 7, response: RESPONSE };
        for (i, block) in blocks.iter().enumerate() {
            let mut block = *block;
            if i == 0 {
                block.iter_mut().zip(header.encode()[0]).for_each(|(word, more)| *word |= more);
            }
            let index = u64::from(self.admin) % (1 << LOG2_ADMIN);
            self.memory.store_block(ADMIN_SQ + 64 * index, &block);
            self.admin = self.admin.wrapping_add(1);
        }
        self.write(window::ADMIN_DOORBELL, self.admin.into());
        let index = u64::from(self.completions) % (1 << LOG2_ADMIN);
        self.completions = self.completions.wrapping_add(1);
        let at = ADMIN_CQ + 64 * index;
        *self.memory.0.chaos.borrow_mut() = chaos;
        Completion::decode(&[std::array::from_fn(|i| self.memory.load(at + 8 * i as u64))])
    }

    fn made(&mut self, opcode: Opcode, blocks: &[Block]) -> Option<u32> {
        let completion = self.admin(opcode, blocks);
        assert_eq!(completion.opcode, opcode, "the answer to another command");
        (completion.status == AdminStatus::Success).then_some(completion.result)
    }

    /// A place for a queue, where none is: there are more places than an engine has queues.
    fn queue(&mut self) -> u64 {
        loop {
            self.next_queue += 1;
            let place = QUEUES + (self.next_queue % QUEUE_COUNT) * QUEUE_BYTES;
            let mut live = self.cqs.iter().chain(&self.rqs).chain(&self.qps);
            if live.all(|(_, ring)| *ring != place) {
                return place;
            }
        }
    }

    /// A key, a CQ, and a QP with its RQ, in RTS.
    fn make_all(&mut self, u: &mut Unstructured<'_>) -> Outcome {
        let offset = u.int_in_range(0..=1024)?;
        let command = CreateKey {
            va: if u.ratio(1, 8)? { u64::MAX - 600 } else { 0x7000_0000 },
            length: u.int_in_range(0..=600)?,
            iova: PAYLOAD + offset,
            pdn: 7,
            access: Access::from_bits_truncate(u.arbitrary::<u32>()? | 1),
            kind: KeyKind::Region,
            dm: 0,
        };
        if let Some(key) = self.made(Opcode::CreateKey, &command.encode()) {
            let zero_based = command.access.contains(Access::ZERO_BASED);
            let va = if zero_based { 0 } else { command.va };
            self.keys.push((key, CreateKey { va, ..command }));
        }
        let ring = self.queue();
        let (log2_entries, vector) = (u.int_in_range(0..=6)?, u.int_in_range(0..=RINGS)?);
        let command = CreateCq { ring, log2_entries, page: PAGE, vector };
        if let Some(cqn) = self.made(Opcode::CreateCq, &command.encode()) {
            assert!(vector < RINGS, "a queue is told of in a ring that there is not");
            self.vectors.insert(cqn, vector);
            self.cqs.push((cqn, ring));
        }
        let Some(&(cqn, _)) = self.cqs.last() else { return Ok(()) };
        let ring = self.queue();
        let command = CreateRq {
            ring,
            log2_entries: u.int_in_range(0..=6)?,
            page: PAGE,
            log2_stride: u.int_in_range(0..=3)?,
            kind: *u.choose(&[RqKind::Private, RqKind::Shared, RqKind::Xrc])?,
            pdn: 7,
            cqn,
            xrcdn: *u.choose(&XRCDNS)?,
        };
        let Some(rqn) = self.made(Opcode::CreateRq, &command.encode()) else { return Ok(()) };
        self.rqs.push((rqn, ring));
        if command.kind == RqKind::Xrc {
            self.srqs.push(XrcRequest { qpn: 0, xrcdn: command.xrcdn, srqn: rqn });
            self.make_target(u)?;
        }
        // One that another has is no use unless it is shared.
        let rqn = if u.ratio(1, 3)? { u.choose(&self.rqs)?.0 } else { rqn };
        let ring = self.queue();
        let kind = *u.choose(&[QpType::Rc, QpType::Ud, QpType::XrcSend])?;
        let command = CreateQp {
            sq_ring: ring,
            log2_sq_blocks: u.int_in_range(0..=6)?,
            page: PAGE,
            kind,
            pdn: 7,
            send_cqn: cqn,
            receive_cqn: cqn,
            rqn,
            xrcdn: 0,
        };
        let Some(qpn) = self.made(Opcode::CreateQp, &command.encode()) else { return Ok(()) };
        let of_domain = self.srqs.iter().any(|srq| srq.srqn == rqn);
        assert!(kind == QpType::XrcSend || !of_domain, "a QP takes receives of a domain's queue");
        self.qps.push((qpn, ring));
        self.memory.0.sends.borrow_mut().insert(ring + record::ENTRIES);
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            self.modify(qpn, &step_to(kind, state));
        }
        Ok(())
    }

    /// An XRC target, in RTS.
    fn make_target(&mut self, u: &mut Unstructured<'_>) -> Outcome {
        let (kind, xrcdn) = (QpType::XrcReceive, *u.choose(&XRCDNS)?);
        let command = CreateQp { page: PAGE, kind, xrcdn, ..CreateQp::default() };
        let Some(qpn) = self.made(Opcode::CreateQp, &command.encode()) else { return Ok(()) };
        self.targets.push(qpn);
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            self.modify(qpn, &step_to(kind, state));
        }
        Ok(())
    }

    fn modify(&mut self, qpn: u32, attributes: &Attributes) {
        let [head] = ModifyQp { qpn }.encode();
        let [first, second] = attributes.encode();
        self.admin(Opcode::ModifyQp, &[head, first, second]);
    }

    fn act(&mut self, u: &mut Unstructured<'_>) -> Outcome {
        match u.int_in_range(0..=15)? {
            0..=4 => self.post(u)?,
            5 => {
                let length = u.int_in_range(0..=40)?;
                *self.memory.0.chaos.borrow_mut() = u.bytes(length.min(u.len()))?.to_vec();
            }
            6 | 7 => {
                self.new_call();
                self.engine.poll(self.now, &mut self.lower);
            }
            8..=10 => self.transport_event(u)?,
            11 => match u.arbitrary()? {
                true => self.incoming(u)?,
                false => self.incoming_along_xrc(u)?,
            },
            12 => self.arm(u)?,
            13 => self.destroy_or_make(u)?,
            14 => self.hostile_admin(u)?,
            _ => {
                // A register at random; a reset forgets all objects.
                let register = u.int_in_range(0..=0x40)? * 64;
                let is_admin = register == window::ADMIN_DOORBELL;
                if !is_admin && register != window::CONTROL {
                    self.write(register, u.arbitrary()?);
                }
                let _ = self.engine.read_register(self.now, register);
            }
        }
        Ok(())
    }

    /// Writes entries of a send or receive queue and moves its producer index.
    fn post(&mut self, u: &mut Unstructured<'_>) -> Outcome {
        let sends = u.ratio(3, 4)?;
        let queues = if sends { &self.qps } else { &self.rqs };
        if queues.is_empty() {
            return Ok(());
        }
        let (number, ring) = *u.choose(queues)?;
        let old = self.memory.load(ring) as u32;
        let entries = u.int_in_range(0..=3)?;
        for index in 0..entries {
            let mut block: Block = [0; 8];
            for word in &mut block {
                *word = self.word(u)?;
            }
            if sends && u.ratio(7, 8)? {
                let header = SendHeader {
                    opcode: SendOpcode(u.int_in_range(0..=9)?),
                    blocks: u.int_in_range(0..=6)?,
                    num_sge: u.int_in_range(0..=3)?,
                    inline_length: u.int_in_range(0..=300)?,
                    ..SendHeader::decode(&[block])
                };
                let [encoded] = header.encode();
                (block[0], block[1]) = (encoded[0], encoded[1]);
            }
            let kind = self.lower.qps.get(&number).map(|qp| qp.kind);
            if sends && kind == Some(QpType::Ud) && u.ratio(7, 8)? {
                self.address(u, &mut block)?;
            }
            let at = u64::from(old.wrapping_add(index)) & 63;
            self.memory.store_block(ring + record::ENTRIES + at * 64, &block);
        }
        let far = u.ratio(1, 64)?;
        let step = if far { u.int_in_range(0..=0xffff)? } else { entries };
        let rest = self.memory.load(ring) & !u64::from(u32::MAX);
        self.memory.store(ring, rest | u64::from(old.wrapping_add(step)));
        let kind = if sends { QueueKind::Send } else { QueueKind::Receive };
        self.ring_bell(kind, number);
        Ok(())
    }

    /// Makes a send a datagram by an address handle that there is, or was.
    fn address(&self, u: &mut Unstructured<'_>, block: &mut Block) -> Outcome {
        let ah = if self.ahs.is_empty() { self.last_ah } else { *u.choose(&self.ahs)? };
        let header = SendHeader { opcode: SendOpcode::Send, ..SendHeader::decode(&[*block]) };
        let [[_, _, address, key, ..]] = Datagram { ah, qpn: 0x42, qkey: 7 }.encode();
        let key = key as u32;
        let [encoded] = SendHeader { remote_address: address, rkey: key, ..header }.encode();
        block[..4].copy_from_slice(&encoded[..4]);
        Ok(())
    }

    /// A word that is often a sound address, length and key.
    fn word(&self, u: &mut Unstructured<'_>) -> arbitrary::Result<u64> {
        Ok(match (u.int_in_range(0..=5)?, self.keys.last()) {
            (0, _) => u.arbitrary()?,
            (1 | 2, Some((_, region))) => region.va.wrapping_add(u.int_in_range(0..=64)?),
            (3 | 4, Some((key, _))) => u.int_in_range(0..=600)? | u64::from(*key) << 32,
            _ => 0,
        })
    }

    fn ring_bell(&mut self, kind: QueueKind, number: u32) {
        let slot = doorbell::slot(kind, number);
        let value = self.page.load(slot).wrapping_add(1);
        self.page.0.borrow_mut().insert(slot, value);
    }

    fn transport_event(&mut self, u: &mut Unstructured<'_>) -> Outcome {
        if self.qps.is_empty() {
            return Ok(());
        }
        let (mut qpn, _) = *u.choose(&self.qps)?;
        if !self.targets.is_empty() && u.ratio(1, 4)? {
            qpn = *u.choose(&self.targets)?;
        }
        let event = match u.int_in_range(0..=7)? {
            0 => TransportEvent::Failed { qpn, status: Status(u.arbitrary()?) },
            1 => TransportEvent::Error { qpn },
            2 => TransportEvent::Async { qpn, event: QpEvent(u.arbitrary()?) },
            3 => TransportEvent::ReceiveFailed { qpn, status: Status(u.arbitrary()?) },
            4 => {
                let kind = *u.choose(&[ReceiveKind::Send, ReceiveKind::Write])?;
                let (length, immediate, solicited, source_qpn) = u.arbitrary()?;
                TransportEvent::Received(ReceivedMessage {
                    qpn,
                    length,
                    kind,
                    immediate,
                    solicited,
                    source_qpn,
                })
            }
            _ => {
                let Some(qp) = self.lower.qps.get_mut(&qpn) else { return Ok(()) };
                let count = u.int_in_range(0..=qp.next - qp.complete)?;
                qp.end(count);
                TransportEvent::Completed { qpn, count }
            }
        };
        let failed = matches!(event, TransportEvent::Failed { .. } | TransportEvent::Error { .. });
        if let Some(qp) = self.lower.qps.get_mut(&qpn).filter(|_| failed) {
            qp.fail();
        }
        self.new_call();
        self.engine.handle(self.now, event, &mut self.lower);
        Ok(())
    }

    /// A question of the transport on behalf of a peer.
    fn incoming(&mut self, u: &mut Unstructured<'_>) -> Outcome {
        let (Some(&(qpn, ring)), Some(&(key, region))) = (self.qps.last(), self.keys.last()) else {
            return Ok(());
        };
        self.new_call();
        let address = region.va.wrapping_add(u.int_in_range(0..=700)?).wrapping_sub(50);
        let length: u32 = if u.ratio(1, 8)? { u.arbitrary()? } else { u.int_in_range(0..=700)? };
        let access = *u.choose(&[
            RemoteAccess::Read,
            RemoteAccess::Write,
            RemoteAccess::Atomic,
            RemoteAccess::Invalidate,
        ])?;
        let within = address.checked_sub(region.va).is_some_and(|offset| {
            offset.checked_add(length.into()).is_some_and(|end| end <= region.length)
        });
        let memory = RemoteRange { rkey: key, va: address, length: length.into() };
        let allowed = self.engine.allows(qpn, memory, access);
        assert!(!allowed || length == 0 || within, "{address:#x} of {length} bytes is allowed");
        let mut pieces = Vec::new();
        let payload = match u.int_in_range(0..=2)? {
            0 => Payload::Remote { rkey: key, address, access },
            1 => {
                let id = self.engine.take_receive(qpn).map_or(u.arbitrary()?, |taken| taken.id);
                Payload::Receive { id }
            }
            _ => Payload::Message {
                number: self.engine.oldest_message(qpn).unwrap_or(u.arbitrary()?),
            },
        };
        let offset = u.int_in_range(0..=700)?;
        let resolved = self.engine.resolve(qpn, payload, offset, length, &mut pieces);
        assert!(resolved.is_ok() || pieces.is_empty());
        for piece in pieces {
            self.check_piece(ring, piece);
        }
        if u.ratio(1, 4)? {
            self.engine.refuse_receive(self.now, qpn, &mut self.lower);
        }
        Ok(())
    }

    /// Questions and reports of the transport about requests along XRC.
    fn incoming_along_xrc(&mut self, u: &mut Unstructured<'_>) -> Outcome {
        let Some(&(key, region)) = self.keys.last() else { return Ok(()) };
        if self.srqs.is_empty() {
            return Ok(());
        }
        self.new_call();
        let right = *u.choose(&self.srqs)?;
        let mut request = right;
        request.qpn = self.targets.last().copied().unwrap_or(FOREIGN);
        if u.ratio(1, 8)? {
            request.xrcdn = u.int_in_range(0..=7)?;
        }
        if u.ratio(1, 8)? {
            let number = u.arbitrary()?;
            request.srqn = self.rqs.last().map_or(number, |(rqn, _)| *rqn);
        }
        let there = |srq: &XrcRequest| (srq.xrcdn, srq.srqn) == (request.xrcdn, request.srqn);
        let exists = self.srqs.iter().any(there);
        let mut pieces = Vec::new();
        let length = u.int_in_range(0..=700)?;
        match u.int_in_range(0..=3)? {
            0 => {
                let access = *u.choose(&[RemoteAccess::Read, RemoteAccess::Write])?;
                let address = region.va.wrapping_add(u.int_in_range(0..=700)?).wrapping_sub(50);
                let memory = RemoteRange { rkey: key, va: address, length: u64::from(length) };
                let allowed = self.engine.allows_xrc(request, memory, access);
                assert_eq!(allowed.is_some(), exists, "{request:?}");
                let payload = Payload::XrcRemote { srqn: request.srqn, rkey: key, address, access };
                let resolved =
                    self.engine.resolve(request.qpn, payload, 0, length, &mut pieces).is_ok();
                assert!(allowed != Some(true) || resolved, "what is allowed is there");
            }
            1 => {
                let taken = self.engine.take_xrc_receive(request);
                assert!(taken.is_err() || exists, "{request:?}");
                if let Ok(taken) = taken {
                    let is_new = self.taken.iter().all(|(_, id, _)| *id != taken.id);
                    assert!(is_new, "two receives have the name {:#x}", taken.id);
                    self.taken.push((request.srqn, taken.id, request.qpn));
                }
            }
            2 if !self.taken.is_empty() => {
                let (srqn, id, _) = *u.choose(&self.taken)?;
                let (payload, offset) =
                    (Payload::XrcReceive { srqn, id }, u.int_in_range(0..=700)?);
                let lives = self.srqs.iter().any(|srq| srq.srqn == srqn);
                let resolved =
                    self.engine.resolve(request.qpn, payload, offset, length, &mut pieces);
                assert!(resolved.is_err() || lives, "the queue is gone");
            }
            _ if !self.taken.is_empty() => {
                let at = u.choose_index(self.taken.len())?;
                let (srqn, id, qpn) = self.taken.swap_remove(at);
                let (immediate, solicited, source_qpn) = u.arbitrary()?;
                let kind = *u.choose(&[
                    ReceiveKind::Send,
                    ReceiveKind::Write,
                    ReceiveKind::SendInvalidate { rkey: key },
                ])?;
                let received =
                    ReceivedMessage { qpn, length, kind, immediate, solicited, source_qpn };
                let event = match u.arbitrary()? {
                    true => TransportEvent::XrcReceived { srqn, id, received },
                    false => {
                        let status = Status(u.arbitrary()?);
                        TransportEvent::XrcReceiveFailed { srqn, id, qpn, status }
                    }
                };
                self.engine.handle(self.now, event, &mut self.lower);
            }
            _ => {}
        }
        for piece in pieces {
            assert!(self.is_keyed(piece), "{piece:x?} is under no key");
        }
        Ok(())
    }

    fn arm(&mut self, u: &mut Unstructured<'_>) -> Outcome {
        if self.cqs.is_empty() {
            return Ok(());
        }
        let (cqn, ring) = *u.choose(&self.cqs)?;
        self.memory.store(ring + record::ARM as u64, u.arbitrary()?);
        self.memory.store(ring + (record::ARMED_FOR_ANY as u64 & !7), u.arbitrary()?);
        let consumer: u32 = u.arbitrary()?;
        let address = ring + (record::CONSUMER as u64 & !7);
        let shift = (record::CONSUMER as u64 & 4) * 8;
        let others = self.memory.load(address) & !(u64::from(u32::MAX) << shift);
        self.memory.store(address, others | u64::from(consumer) << shift);
        self.ring_bell(QueueKind::Completion, cqn);
        Ok(())
    }

    /// Makes a null region, by which a peer reaches nothing, and ends it.
    fn use_null_region(&mut self, u: &mut Unstructured<'_>) -> Outcome {
        let access = Access::from_bits_truncate(u.arbitrary()?);
        let (va, length, kind) = (u.arbitrary()?, u.arbitrary()?, KeyKind::Null);
        let key = CreateKey { va, length, iova: u.arbitrary()?, pdn: 7, access, kind, dm: 0 };
        // There may be no number left.
        let Some(rkey) = self.made(Opcode::CreateKey, &key.encode()) else { return Ok(()) };
        assert!(Access::LOCAL_WRITE.contains(access), "{key:?}");
        for access in [RemoteAccess::Read, RemoteAccess::Write, RemoteAccess::Atomic] {
            let (qpn, mut pieces) = (self.qps.first().map_or(1, |qp| qp.0), Vec::<Piece>::new());
            let payload = Payload::Remote { rkey, address: u.arbitrary()?, access };
            assert!(self.engine.resolve(qpn, payload, 0, 1, &mut pieces).is_err());
        }
        assert!(self.made(Opcode::DestroyKey, &Destroy { number: rkey }.encode()).is_some());
        Ok(())
    }

    /// Takes a part of the device memory, copies to and from it, names it by a key, and gives it back.
    fn use_device_memory(&mut self, u: &mut Unstructured<'_>) -> Outcome {
        let command =
            AllocDm { length: u.int_in_range(0..=4100)?, log2_alignment: u.int_in_range(0..=17)? };
        let Some(dm) = self.made(Opcode::AllocDm, &command.encode()) else { return Ok(()) };
        let copy = CopyDm {
            host: PAYLOAD + 8 * u.int_in_range(0..=16)?,
            offset: u.int_in_range(0..=4100)?,
            length: u.int_in_range(0..=4100)?,
            dm,
            log2_blocks: u.int_in_range(0..=11)?,
            direction: DmDirection(u.int_in_range(0..=2)?),
        };
        let within = copy.offset + copy.length <= command.length;
        let copied = self.made(Opcode::CopyDm, &copy.encode()).is_some();
        assert!(within || !copied, "{copy:?} of {command:?}");
        let (offset, length) = (u.int_in_range(0..=4100)?, u.int_in_range(1..=4100)?);
        let key = CreateKey {
            va: u.arbitrary()?,
            length,
            iova: offset,
            pdn: 7,
            access: Access::from_bits_truncate(u.arbitrary::<u32>()? | 1),
            kind: KeyKind::DeviceMemory,
            dm,
        };
        let key = self.made(Opcode::CreateKey, &key.encode());
        assert!(key.is_none() || offset + length <= command.length.into());
        let end = Destroy { number: dm }.encode();
        if let Some(key) = key {
            assert!(self.made(Opcode::FreeDm, &end).is_none(), "a key names it");
            assert!(self.made(Opcode::DestroyKey, &Destroy { number: key }.encode()).is_some());
        }
        assert!(self.made(Opcode::FreeDm, &end).is_some());
        Ok(())
    }

    fn destroy_or_make(&mut self, u: &mut Unstructured<'_>) -> Outcome {
        let ends = |number: u32| Destroy { number }.encode();
        match u.int_in_range(0..=15)? {
            13 | 14 => {
                let command = CreateAh { pdn: 7, page: PAGE, dgid: [2; 16], ..CreateAh::default() };
                let made = self.made(Opcode::CreateAh, &command.encode());
                self.ahs.extend(made);
            }
            15 if !self.ahs.is_empty() => {
                let at = u.choose_index(self.ahs.len())?;
                self.last_ah = self.ahs.swap_remove(at);
                let end = ends(self.last_ah);
                assert!(self.made(Opcode::DestroyAh, &end).is_some());
                assert!(self.made(Opcode::DestroyAh, &end).is_none(), "destroyed twice");
            }
            12 if !self.targets.is_empty() => {
                let at = u.choose_index(self.targets.len())?;
                let qpn = self.targets.remove(at);
                assert!(self.made(Opcode::DestroyQp, &ends(qpn)).is_some());
                assert!(!self.lower.qps.contains_key(&qpn), "the transport keeps a target");
            }
            11 if !self.targets.is_empty() => {
                let (qpn, state) = (*u.choose(&self.targets)?, QpState(u.int_in_range(0..=7)?));
                let mask = AttributeMask::STATE;
                self.modify(qpn, &Attributes { mask, state, ..Attributes::default() });
            }
            10 => {
                let qpn = match self.qps.is_empty() {
                    true => u.arbitrary()?,
                    false => u.choose(&self.qps)?.0,
                };
                let command = Membership { qpn, group: u.arbitrary()? }.encode();
                let opcode = *u.choose(&[Opcode::AttachMulticast, Opcode::DetachMulticast])?;
                self.admin(opcode, &command);
            }
            9 if !self.cqs.is_empty() => {
                let cqn = u.choose(&self.cqs)?.0;
                let (count, period) = (u.int_in_range(0..=5)?, u.int_in_range(0..=2)?);
                let command = ModerateCq { cqn, count, period };
                assert!(self.made(Opcode::ModerateCq, &command.encode()).is_some());
            }
            8 if u.ratio(1, 4)? => self.use_null_region(u)?,
            8 => self.use_device_memory(u)?,
            7 if !self.cqs.is_empty() => {
                let at = u.choose_index(self.cqs.len())?;
                let (ring, cqn) = (self.queue(), self.cqs[at].0);
                let command = ResizeCq { ring, log2_entries: u.int_in_range(0..=7)?, cqn };
                if self.made(Opcode::ResizeCq, &command.encode()).is_some() {
                    self.cqs[at].1 = ring;
                }
            }
            0 if !self.qps.is_empty() => {
                let at = u.choose_index(self.qps.len())?;
                let (qpn, ring) = self.qps[at];
                if self.made(Opcode::DestroyQp, &ends(qpn)).is_some() {
                    self.qps.remove(at);
                    self.memory.0.sends.borrow_mut().remove(&(ring + record::ENTRIES));
                    assert!(!self.lower.qps.contains_key(&qpn), "the transport keeps a QP");
                }
            }
            1 if !self.cqs.is_empty() => {
                let at = u.choose_index(self.cqs.len())?;
                if self.made(Opcode::DestroyCq, &ends(self.cqs[at].0)).is_some() {
                    self.cqs.remove(at);
                }
            }
            2 if !self.rqs.is_empty() => {
                let at = u.choose_index(self.rqs.len())?;
                let rqn = self.rqs[at].0;
                if self.made(Opcode::DestroyRq, &ends(rqn)).is_some() {
                    self.rqs.remove(at);
                    self.srqs.retain(|srq| srq.srqn != rqn);
                }
            }
            3 if self.keys.len() > 1 => {
                let (key, _) = self.keys.remove(0);
                assert!(self.made(Opcode::DestroyKey, &ends(key)).is_some());
                assert!(self.made(Opcode::DestroyKey, &ends(key)).is_none(), "destroyed twice");
            }
            4 if !self.qps.is_empty() => {
                let (qpn, _) = *u.choose(&self.qps)?;
                let state = QpState(u.int_in_range(0..=7)?);
                let mask = AttributeMask::STATE;
                self.modify(qpn, &Attributes { mask, state, ..Attributes::default() });
            }
            5 if !self.rqs.is_empty() && u.arbitrary()? => {
                let command =
                    ModifyRq { rqn: u.choose(&self.rqs)?.0, limit: u.int_in_range(0..=70)? };
                let _ = self.made(Opcode::ModifyRq, &command.encode());
            }
            6 if self.keys.len() > 1 => {
                // The oldest key gets the newest one's region, then no key opens its former region.
                let (key, _) = self.keys[0];
                let CreateKey { va, length, iova, pdn, access, .. } =
                    self.keys[self.keys.len() - 1].1;
                let command = ModifyKey { va, length, iova, pdn, access, key };
                assert!(self.made(Opcode::ModifyKey, &command.encode()).is_some());
                let (_, region) = self.keys.remove(self.keys.len() - 1);
                self.keys.remove(0);
                self.keys.push((key, region));
            }
            _ => self.make_all(u)?,
        }
        Ok(())
    }

    /// Commands of a driver that is out of its mind; its engine may be of no use afterwards.
    fn hostile_admin(&mut self, u: &mut Unstructured<'_>) -> Outcome {
        if !u.ratio(1, 16)? {
            return Ok(());
        }
        for index in 0..1 << LOG2_ADMIN {
            let block: Block = u.arbitrary()?;
            let header = Header {
                opcode: Opcode(u.int_in_range(0..=30)?),
                blocks: u.int_in_range(0..=5)?,
                tag: 1,
                response: *u.choose(&[0, RESPONSE, 0x4ff8, u64::MAX - 63])?,
            };
            let mut block = block;
            if u.ratio(3, 4)? {
                block[0] = header.encode()[0][0];
                block[1] = header.encode()[0][1];
            }
            self.memory.store_block(ADMIN_SQ + 64 * index, &block);
        }
        self.write(window::ADMIN_DOORBELL, u.arbitrary::<u32>()?.into());
        // Start again: the objects of such a driver cannot be followed.
        self.write(window::CONTROL, window::CONTROL_RESET);
        self.cqs.clear();
        self.rqs.clear();
        self.qps.clear();
        (self.srqs, self.targets, self.taken) = Default::default();
        self.keys.clear();
        self.ahs.clear();
        assert!(self.lower.ahs.is_empty(), "a reset leaves address handles to the transport");
        self.memory.0.sends.borrow_mut().clear();
        assert!(self.lower.qps.is_empty(), "a reset leaves QPs to the transport");
        (self.admin, self.completions) = (0, 0);
        self.lower.messages.clear();
        self.start();
        self.make_all(u)
    }

    /// Every byte submitted lies where its QP may reach, unless that has failed since.
    fn check(&mut self) {
        for (qpn, number, length) in std::mem::take(&mut self.lower.messages) {
            let (payload, mut pieces) = (Payload::Message { number }, Vec::new());
            if self.engine.resolve(qpn, payload, 0, length, &mut pieces).is_err() {
                continue;
            }
            let total: u64 = pieces.iter().map(|piece: &Piece| u64::from(piece.length)).sum();
            assert_eq!(total, u64::from(length), "pieces and length differ");
            assert!(pieces.len() <= 32, "{} pieces", pieces.len());
            let ring = self.qps.iter().find(|(number, _)| *number == qpn).map(|(_, ring)| *ring);
            for piece in pieces {
                self.check_piece(ring.expect("a QP of ours"), piece);
            }
        }
        self.check_events();
    }

    /// Behind the first event ring stand completions alone, each in its queue's ring.
    fn check_events(&self) {
        let of_ring = |ring: u8| (0..1 << LOG2_EVENTS).map(move |index: u64| (ring, index));
        for (ring, index) in (1..RINGS).flat_map(of_ring) {
            let at = EVENTS + (u64::from(ring) << (6 + LOG2_EVENTS)) + 64 * index;
            let event = Event::decode(&[[self.memory.load(at), 0, 0, 0, 0, 0, 0, 0]]);
            if event == Event::default() {
                continue;
            }
            assert_eq!(event.kind, EventType::Completion, "in ring {ring}");
            let vector = self.vectors.get(&event.number).copied();
            assert!(vector.is_none_or(|vector| vector == ring), "{event:?} in ring {ring}");
        }
    }

    fn check_piece(&self, ring: u64, piece: Piece) {
        let inline = within(piece, ring + record::ENTRIES, 64 << CONFIG.log2_sq_blocks);
        assert!(inline || self.is_keyed(piece), "{piece:x?} is under no key");
    }

    fn is_keyed(&self, piece: Piece) -> bool {
        self.keys.iter().any(|(_, region)| within(piece, region.iova, region.length))
    }
}

fn within(Piece { iova, length }: Piece, start: u64, bytes: u64) -> bool {
    iova >= start && iova.checked_add(length.into()).is_some_and(|end| end <= start + bytes)
}

fn step_to(kind: QpType, state: QpState) -> Attributes {
    let from = match state {
        QpState::Init => QpState::Reset,
        QpState::Rtr => QpState::Init,
        _ => QpState::Rtr,
    };
    let required = transition(kind, from, state);
    let required = required.map_or(AttributeMask::empty(), |it| it.required);
    Attributes {
        mask: AttributeMask::STATE | required,
        state,
        path_mtu: 3,
        port: 1,
        dest_qpn: 0x1234,
        access: (Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ).bits(),
        dgid: [2; 16],
        ..Attributes::default()
    }
}
