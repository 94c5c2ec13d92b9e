//! A driver at the engine's registers and rings.

use fpga_regs::Block;
use fpga_regs::engine::admin::{
    AdminStatus, Completion, CreateCq, CreateKey, CreateQp, CreateRq, Destroy, Header, KeyKind,
    ModifyQp, Opcode, RqKind, SetGid,
};
use fpga_regs::engine::event::Event;
use fpga_regs::engine::key::Access;
use fpga_regs::engine::qp::{AttributeMask, Attributes, QpState, QpType};
use fpga_regs::engine::window::{self, EventConsumer, MAX_EVENT_RINGS};
use fpga_regs::engine::wqe::Sge;
use queue_engine::{EngineConfig, ReceiveError, Transport, TransportEvent};

use super::client::{ClientCq, ClientQp, ClientRq};
use super::device::Device;
use super::manual::Manual;
use super::memory::{TestMemory, TestPage};
use crate::Dut;

/// The configuration of the tests' devices unless a test has another one.
pub fn standard() -> EngineConfig {
    Dut::config()
}

/// Steps within which a device comes to rest, or does the expected work.
const STEPS: usize = 100_000;

/// The page every client rings in unless a test says otherwise.
pub const PAGE: u8 = 1;
/// The protection domain of clients.
pub const PDN: u32 = 7;
/// GID 0 of the port.
pub const GID: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1];

const LOG2_ADMIN: u8 = 4;
pub const LOG2_EVENTS: u8 = 5;

/// A device with memory, a transport, a doorbell page and a driver.
pub struct Bench<T: Transport> {
    pub device: Dut,
    pub memory: TestMemory,
    pub transport: T,
    pub page: TestPage,
    /// Client that receive queues and QPs are made for, whose doorbell page `page` is.
    pub client: u8,
    pub admin_sq: u64,
    pub admin_cq: u64,
    pub event_ring: u64,
    /// Event rings that the driver lays, from the first on.
    event_rings: u8,
    pub admin_producer: u32,
    admin_consumer: u32,
    event_consumers: [u32; MAX_EVENT_RINGS as usize],
    tag: u16,
}

impl Bench<Manual> {
    /// A running engine over a transport that the test drives.
    pub fn new() -> Self {
        Self::with(standard(), Manual::default())
    }
}

impl<T: Transport> Bench<T> {
    /// A running engine.
    pub fn with(config: EngineConfig, transport: T) -> Self {
        let mut bench = Self::stopped(config, transport);
        bench.start();
        bench.set_gid(0, Some(GID));
        bench
    }

    /// An engine out of reset, with page [`PAGE`] in place.
    pub fn stopped(config: EngineConfig, transport: T) -> Self {
        Self::stopped_over(TestMemory::default(), config, transport)
    }

    /// The same over some memory.
    pub fn stopped_over(memory: TestMemory, config: EngineConfig, transport: T) -> Self {
        let mut device = Dut::new(config, memory.clone());
        let page = TestPage::default();
        assert!(device.open_page(PAGE, page.clone()));
        Self {
            device,
            transport,
            page,
            client: PAGE,
            admin_sq: memory.allocate(64 << LOG2_ADMIN),
            admin_cq: memory.allocate(64 << LOG2_ADMIN),
            event_ring: memory.allocate(64 << LOG2_EVENTS),
            memory,
            admin_producer: 0,
            event_rings: 1,
            admin_consumer: 0,
            event_consumers: [0; MAX_EVENT_RINGS as usize],
            tag: 0,
        }
    }

    /// Lays so many event rings instead of one, before it starts.
    pub fn lay(&mut self, event_rings: u8) {
        self.event_rings = event_rings;
        self.event_ring = self.memory.allocate(u64::from(event_rings) << (6 + LOG2_EVENTS));
        self.write(window::EVENT_RINGS, event_rings.into());
    }

    /// Writes where the rings are, and enables the engine.
    pub fn start(&mut self) {
        let events = u64::from(self.event_rings) << LOG2_EVENTS;
        for (ring, entries) in [(self.admin_cq, 1 << LOG2_ADMIN), (self.event_ring, events)] {
            for index in 0..entries {
                self.memory.store_block(ring + 64 * index, &[0; 8]);
            }
        }
        (self.admin_producer, self.admin_consumer, self.event_consumers) = Default::default();
        self.write(window::ADMIN_SQ_BASE, self.admin_sq);
        self.write(window::ADMIN_SQ_SIZE, LOG2_ADMIN.into());
        self.write(window::ADMIN_CQ_BASE, self.admin_cq);
        self.write(window::ADMIN_CQ_SIZE, LOG2_ADMIN.into());
        self.write(window::EVENT_BASE, self.event_ring);
        self.write(window::EVENT_SIZE, LOG2_EVENTS.into());
        self.write(window::CONTROL, window::CONTROL_ENABLE);
        assert_eq!(self.read(window::STATUS), window::STATUS_ENABLED);
    }

    pub fn read(&mut self, register: u64) -> u64 {
        self.device.read_register(register, &mut self.transport)
    }

    /// Writes a register; where that starts or stops the engine, until it has.
    pub fn write(&mut self, register: u64, value: u64) {
        self.device.write_register(register, value, &mut self.transport);
        if register == window::CONTROL {
            self.settle();
        }
    }

    /// Writes blocks to the admin ring, without a doorbell.
    pub fn push_admin(&mut self, blocks: &[Block]) {
        for block in blocks {
            let index = u64::from(self.admin_producer) & ((1 << LOG2_ADMIN) - 1);
            self.memory.store_block(self.admin_sq + 64 * index, block);
            self.admin_producer = self.admin_producer.wrapping_add(1);
        }
    }

    /// Rings for the commands in the admin ring.
    pub fn ring_admin(&mut self) {
        self.write(window::ADMIN_DOORBELL, self.admin_producer.into());
    }

    /// The same, until nothing is left of it to do.
    pub fn execute_admin(&mut self) {
        self.ring_admin();
        self.settle();
    }

    /// Takes the admin completions that are there.
    pub fn admin_completions(&mut self) -> Vec<Completion> {
        let mut completions = Vec::new();
        while let Some(block) = self.memory.entry(self.admin_cq, self.admin_consumer, LOG2_ADMIN) {
            completions.push(Completion::decode(&[block]));
            self.admin_consumer = self.admin_consumer.wrapping_add(1);
        }
        completions
    }

    /// Runs a command of whole blocks, with an answer buffer if there is one.
    pub fn run_with(&mut self, opcode: Opcode, blocks: &[Block], response: u64) -> Completion {
        self.tag = self.tag.wrapping_add(1);
        let header = Header { opcode, blocks: blocks.len() as u8, tag: self.tag, response };
        let mut blocks = blocks.to_vec();
        for (word, more) in blocks[0].iter_mut().zip(header.encode()[0]) {
            *word |= more;
        }
        self.push_admin(&blocks);
        self.ring_admin();
        let mut completions = self.admin_completions();
        for _ in 0..STEPS {
            if !completions.is_empty() {
                break;
            }
            self.poll();
            completions = self.admin_completions();
        }
        assert_eq!(completions.len(), 1, "{completions:?}");
        assert_eq!((completions[0].tag, completions[0].opcode), (self.tag, opcode));
        completions[0]
    }

    pub fn run(&mut self, opcode: Opcode, blocks: &[Block]) -> Completion {
        self.run_with(opcode, blocks, 0)
    }

    /// Runs a command and answers with its status.
    pub fn status(&mut self, opcode: Opcode, blocks: &[Block]) -> AdminStatus {
        self.run(opcode, blocks).status
    }

    /// Runs a command that must succeed.
    pub fn succeed(&mut self, opcode: Opcode, blocks: &[Block]) -> Completion {
        let completion = self.run(opcode, blocks);
        assert_eq!(completion.status, AdminStatus::Success, "{opcode:?}");
        completion
    }

    pub fn set_gid(&mut self, index: u8, gid: Option<[u8; 16]>) {
        let command =
            SetGid { index, valid: u8::from(gid.is_some()), vlan: 0, gid: gid.unwrap_or_default() };
        self.succeed(Opcode::SetGid, &command.encode());
    }

    pub fn create_cq(&mut self, log2_entries: u8) -> ClientCq {
        self.create_cq_of(0, log2_entries)
    }

    /// Makes a completion queue that is told of in an event ring of that number.
    pub fn create_cq_of(&mut self, vector: u8, log2_entries: u8) -> ClientCq {
        self.create_cq_by(PAGE, vector, log2_entries)
    }

    /// The same for a client of another number, whose doorbell page is open.
    pub fn create_cq_by(&mut self, page: u8, vector: u8, log2_entries: u8) -> ClientCq {
        let ring = self.memory.allocate(64 + (64 << log2_entries));
        let command = CreateCq { ring, log2_entries, page, vector };
        let cqn = self.succeed(Opcode::CreateCq, &command.encode()).result;
        let (memory, page) = (self.memory.clone(), self.page.clone());
        ClientCq { memory, page, cqn, ring, log2_entries, consumer: 0, sequence: 0 }
    }

    pub fn create_rq(&mut self, log2_entries: u8, log2_stride: u8) -> ClientRq {
        self.create_rq_of(RqKind::Private, log2_entries, log2_stride)
    }

    /// Goes on as another client, with a doorbell page of its own.
    pub fn become_client(&mut self, client: u8) {
        (self.client, self.page) = (client, TestPage::default());
        assert!(self.device.open_page(client, self.page.clone()));
    }

    /// Makes a receive queue of some kind.
    pub fn create_rq_of(&mut self, kind: RqKind, log2_entries: u8, log2_stride: u8) -> ClientRq {
        let ring = self.memory.allocate(64 + (64 << (log2_entries + log2_stride)));
        let command = CreateRq {
            ring,
            log2_entries,
            log2_stride,
            page: self.client,
            pdn: PDN,
            kind,
            ..Default::default()
        };
        let rqn = self.succeed(Opcode::CreateRq, &command.encode()).result;
        let (memory, page) = (self.memory.clone(), self.page.clone());
        ClientRq { memory, page, rqn, ring, log2_entries, log2_stride, producer: 0 }
    }

    /// Makes a shared receive queue of an XRC domain, which completes on a completion queue.
    pub fn create_xrc_rq(&mut self, log2_entries: u8, (cqn, xrcdn): (u32, u32)) -> ClientRq {
        let ring = self.memory.allocate(64 + (64 << log2_entries));
        let (page, pdn, kind) = (self.client, PDN, RqKind::Xrc);
        let command =
            CreateRq { ring, log2_entries, page, pdn, kind, cqn, xrcdn, ..Default::default() };
        let rqn = self.succeed(Opcode::CreateRq, &command.encode()).result;
        let (memory, page) = (self.memory.clone(), self.page.clone());
        ClientRq { memory, page, rqn, ring, log2_entries, log2_stride: 0, producer: 0 }
    }

    /// Makes an RC QP in RESET on a receive queue.
    pub fn create_qp(
        &mut self,
        log2_sq_blocks: u8,
        send_cq: &ClientCq,
        receive_cq: &ClientCq,
        rq: ClientRq,
    ) -> ClientQp {
        self.create_qp_of(QpType::Rc, log2_sq_blocks, (send_cq, receive_cq), rq)
    }

    /// Makes a QP of some kind in RESET on a receive queue.
    pub fn create_qp_of(
        &mut self,
        kind: QpType,
        log2_sq_blocks: u8,
        (send_cq, receive_cq): (&ClientCq, &ClientCq),
        rq: ClientRq,
    ) -> ClientQp {
        let sq = self.memory.allocate(64 + (64 << log2_sq_blocks));
        let command = CreateQp {
            sq_ring: sq,
            log2_sq_blocks,
            page: self.client,
            kind,
            pdn: PDN,
            send_cqn: send_cq.cqn,
            receive_cqn: receive_cq.cqn,
            rqn: rq.rqn,
            xrcdn: 0,
        };
        let Completion { result: qpn, generation, .. } =
            self.succeed(Opcode::CreateQp, &command.encode());
        let (memory, page) = (self.memory.clone(), self.page.clone());
        let log2_blocks = log2_sq_blocks;
        ClientQp { memory, page, qpn, generation, sq, log2_blocks, producer: 0, rq }
    }

    /// Makes a QP with 64 blocks and 16 receives that may do everything, in RTS.
    pub fn ready_qp(&mut self, cq: &ClientCq) -> ClientQp {
        let rq = self.create_rq(4, 0);
        let qp = self.create_qp(6, cq, cq, rq);
        self.climb(qp.qpn, QpState::Rts);
        qp
    }

    pub fn modify(&mut self, qpn: u32, attributes: &Attributes) -> Completion {
        let [head] = ModifyQp { qpn }.encode();
        let [first, second] = attributes.encode();
        self.run(Opcode::ModifyQp, &[head, first, second])
    }

    /// Takes a QP from RESET up the ladder to a state.
    pub fn climb(&mut self, qpn: u32, to: QpState) {
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let status = self.modify(qpn, &step_to(state)).status;
            assert_eq!(status, AdminStatus::Success, "to {state:?}");
            if state == to {
                break;
            }
        }
        // A change is a reason to look at the QP, doorbell or not.
        self.settle();
    }

    /// Takes a QP of datagrams from RESET to RTS.
    pub fn climb_datagrams(&mut self, qpn: u32) {
        self.climb_with_qkey(qpn, 0x1234);
    }

    /// Takes a QP of datagrams to RTS, with a Q_Key.
    pub fn climb_with_qkey(&mut self, qpn: u32, qkey: u32) {
        use AttributeMask as M;
        let steps = [
            (QpState::Init, M::PKEY_INDEX | M::PORT | M::QKEY),
            (QpState::Rtr, M::empty()),
            (QpState::Rts, M::SQ_PSN),
        ];
        for (state, mask) in steps {
            let mask = mask | M::STATE;
            let change = Attributes { mask, state, qkey, ..sound_attributes() };
            assert_eq!(self.modify(qpn, &change).status, AdminStatus::Success, "to {state:?}");
        }
        self.settle();
    }

    /// Changes nothing but the state; answers with the generation.
    pub fn go(&mut self, qpn: u32, state: QpState) -> u8 {
        let attributes = Attributes { mask: AttributeMask::STATE, state, ..Default::default() };
        let completion = self.modify(qpn, &attributes);
        assert_eq!(completion.status, AdminStatus::Success, "to {state:?}");
        completion.generation
    }

    /// The attributes as queried.
    pub fn query(&mut self, qpn: u32) -> Attributes {
        let response = self.memory.allocate(128);
        let [query] = Destroy { number: qpn }.encode();
        let completion = self.run_with(Opcode::QueryQp, &[query], response);
        assert_eq!(completion.status, AdminStatus::Success);
        let blocks = [self.memory.load_block(response), self.memory.load_block(response + 64)];
        Attributes::decode(&blocks)
    }

    pub fn destroy(&mut self, opcode: Opcode, number: u32) -> AdminStatus {
        self.status(opcode, &Destroy { number }.encode())
    }

    /// Registers fresh memory with every right.
    pub fn register(&mut self, length: u64) -> Region {
        let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        self.register_with(length, all, PDN)
    }

    /// Registers fresh memory.
    pub fn register_with(&mut self, length: u64, access: Access, pdn: u32) -> Region {
        let iova = self.memory.allocate(length);
        let va = 0x7f00_0000_0000 + iova;
        let command = CreateKey { va, length, iova, pdn, access, kind: KeyKind::Region, dm: 0 };
        let key = self.succeed(Opcode::CreateKey, &command.encode()).result;
        Region { va, iova, key }
    }

    /// Takes the events that are there, and gives their places back.
    pub fn events(&mut self) -> Vec<Event> {
        self.events_in(0)
    }

    /// The same of an event ring of that number.
    pub fn events_in(&mut self, ring: u8) -> Vec<Event> {
        let events = self.peek_events(ring);
        let read = &mut self.event_consumers[usize::from(ring)];
        *read = read.wrapping_add(events.len() as u32);
        let told = EventConsumer { consumer: *read, ring };
        self.write(window::EVENT_CONSUMER, told.encode());
        events
    }

    /// The events that are there in an event ring.
    pub fn peek_events(&self, ring: u8) -> Vec<Event> {
        let base = self.event_ring + (u64::from(ring) << (6 + LOG2_EVENTS));
        let first = self.event_consumers[usize::from(ring)];
        (0..1u32 << LOG2_EVENTS)
            .map_while(|step| self.memory.entry(base, first.wrapping_add(step), LOG2_EVENTS))
            .map(|block| Event::decode(&[block]))
            .collect()
    }

    /// The device's clock.
    pub fn now(&self) -> u64 {
        self.device.now()
    }

    /// One step of the device; `false` where there was nothing to do.
    pub fn poll(&mut self) -> bool {
        self.device.step(&mut self.transport)
    }

    /// Steps until there is nothing to do.
    pub fn settle(&mut self) {
        for _ in 0..STEPS {
            if !self.poll() {
                return;
            }
        }
        panic!("the engine does not come to rest");
    }

    /// Lets so many nanoseconds pass.
    pub fn pass(&mut self, time: u64) {
        self.device.pass(time);
        self.settle();
    }

    /// Passes the transport's report on to the engine.
    pub fn report(&mut self, event: TransportEvent) {
        self.device.report(event, &mut self.transport);
    }

    /// The same, and lets it come to rest.
    pub fn handle(&mut self, event: TransportEvent) {
        self.report(event);
        self.settle();
    }

    /// A message fills the next receive. An engine that keeps room for completions refuses a message for whose it has none;
    /// then the transport ends the queue pair.
    pub fn receive(&mut self, received: TransportEvent) {
        let qpn = received.qpn();
        match self.device.take_receive(qpn) {
            Err(ReceiveError::Invalid) => self.handle(TransportEvent::Error { qpn }),
            taken => {
                taken.unwrap();
                self.handle(received);
            }
        }
    }

    /// Tells the engine that a peer was refused a receive that made no sense.
    pub fn refuse_receive(&mut self, qpn: u32) {
        self.device.refuse_receive(qpn, &mut self.transport);
    }

    /// Resets the engine as the shell does.
    pub fn reset(&mut self) {
        self.device.reset(&mut self.transport);
    }
}

impl Bench<Manual> {
    /// The oldest `count` messages of a QP end well.
    pub fn complete(&mut self, qpn: u32, count: u64) {
        let event = self.transport.completed(qpn, count);
        self.handle(event);
    }
}

/// Registered memory.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    pub va: u64,
    pub iova: u64,
    pub key: u32,
}

impl Region {
    /// A part of it.
    pub fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { address: self.va + offset, length, lkey: self.key }
    }
}

/// Attributes that take an RC QP to a state of the ladder from the one below.
pub fn step_to(state: QpState) -> Attributes {
    use AttributeMask as M;
    let mask = match state {
        QpState::Init => M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS,
        QpState::Rtr => {
            M::STATE
                | M::AV
                | M::PATH_MTU
                | M::DEST_QPN
                | M::RQ_PSN
                | M::MAX_DEST_RD_ATOMIC
                | M::MIN_RNR_TIMER
        }
        QpState::Rts => {
            M::STATE | M::TIMEOUT | M::RETRY_COUNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_RD_ATOMIC
        }
        _ => M::STATE,
    };
    Attributes { mask, state, ..sound_attributes() }
}

/// Attributes of which each is in its range.
pub fn sound_attributes() -> Attributes {
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    Attributes {
        path_mtu: 3,
        access: access.bits(),
        port: 1,
        timeout: 14,
        dest_qpn: 0x1234,
        rq_psn: 0x11,
        sq_psn: 0x22,
        max_rd_atomic: 1,
        max_dest_rd_atomic: 1,
        min_rnr_timer: 12,
        retry_count: 7,
        rnr_retry: 7,
        hop_limit: 64,
        dgid: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 2],
        ..Attributes::default()
    }
}
