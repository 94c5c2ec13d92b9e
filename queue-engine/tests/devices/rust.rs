//! The engine of this crate as a device: it obeys at once.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use fpga_regs::engine::window::{Capabilities, LimitRate, Profile};
use fpga_regs::{BLOCK_BYTES, Block};
use queue_engine::{
    DoorbellPage, Engine, EngineConfig, Payload, Piece, Random, ReceiveError, Record, RemoteAccess,
    RemoteRange, Ring, Rings, TakenReceive, Transport, TransportEvent, Unreachable, XrcRequest,
};

use crate::engine::support::device::Device;
use crate::engine::support::memory::{OWN, TestMemory, TestPage};
use crate::engine::support::random::Seeded;

/// The full configuration of this crate's engine, for tests that ask for no other.
pub const FULL: EngineConfig = EngineConfig {
    window: 2,
    profile: Profile::Vqe,
    capabilities: Capabilities::RC
        .union(Capabilities::SEND)
        .union(Capabilities::WRITE)
        .union(Capabilities::READ)
        .union(Capabilities::ATOMIC)
        .union(Capabilities::IMMEDIATE)
        .union(Capabilities::SRQ)
        .union(Capabilities::RESIZE_CQ)
        .union(Capabilities::UD)
        .union(Capabilities::MULTICAST)
        .union(Capabilities::DEVICE_MEMORY)
        .union(Capabilities::MODERATION)
        .union(Capabilities::NULL_MR)
        .union(Capabilities::RATE_LIMIT)
        .union(Capabilities::INVALIDATE)
        .union(Capabilities::MEMORY_WINDOW),
    qps: 1024,
    cqs: 1024,
    rqs: 1024,
    keys: 1024,
    ahs: 1024,
    groups: 8,
    qps_per_group: 4,
    rates: LimitRate { min: 1_000, max: 100_000_000 },
    log2_cq_entries: 12,
    log2_sq_blocks: 10,
    log2_rq_entries: 10,
    max_rd_atomic: 16,
    max_message: 1 << 30,
    device_memory: 64 << 10,
    event_rings: 4,
    under_way_bytes: 1 << 20,
};

/// Where there is no memory.
const NULL: u64 = 3 << 62;

/// Blocks that were written and cannot be seen yet, oldest first: address, block, whether it is a ring's entry.
pub type Posted = Rc<RefCell<VecDeque<(u64, Block, bool)>>>;

/// Host memory by the engine's transfers.
#[derive(Clone, Debug)]
pub struct Bus {
    memory: TestMemory,
    /// `None` where writes are seen at once.
    posted: Option<Posted>,
}

impl Bus {
    fn write(&self, address: u64, block: &Block, is_entry: bool) {
        match &self.posted {
            Some(posted) => posted.borrow_mut().push_back((address, *block, is_entry)),
            None => land(&self.memory, address, block, is_entry),
        }
    }

    /// A read overtakes no write.
    fn push_writes(&self) {
        let Some(posted) = &self.posted else { return };
        for (address, block, is_entry) in posted.borrow_mut().drain(..) {
            land(&self.memory, address, &block, is_entry);
        }
    }
}

/// Makes a write visible.
pub fn land(memory: &TestMemory, address: u64, block: &Block, is_entry: bool) {
    match is_entry {
        true => memory.publish_block(address, block),
        false => memory.store_block(address, block),
    }
}

/// A view of a record or of a ring.
#[derive(Debug)]
pub struct View {
    bus: Bus,
    iova: u64,
    mask: u64,
}

impl View {
    fn address(&self, index: u32) -> u64 {
        self.iova + (u64::from(index) & self.mask) * BLOCK_BYTES as u64
    }
}

impl Record for View {
    fn load_u32(&self, offset: usize) -> u32 {
        assert!(offset < BLOCK_BYTES && offset % 4 == 0);
        let word = self.load_u64(offset & !7);
        (word >> ((offset & 4) * 8)) as u32
    }

    fn load_u64(&self, offset: usize) -> u64 {
        assert!(offset < BLOCK_BYTES && offset % 8 == 0);
        self.bus.push_writes();
        self.bus.memory.read_word(self.iova + offset as u64)
    }
}

impl Ring for View {
    fn read(&self, index: u32) -> Block {
        self.bus.push_writes();
        self.bus.memory.read_block(self.address(index))
    }

    fn write(&self, index: u32, value: &Block) {
        self.bus.write(self.address(index), value, false);
    }

    fn publish(&self, index: u32, value: &Block) {
        self.bus.write(self.address(index), value, true);
    }
}

impl Rings for Bus {
    type Record = View;
    type Ring = View;

    fn record(&self, iova: u64) -> Option<View> {
        self.ring(iova, 0)
    }

    fn ring(&self, iova: u64, log2_blocks: u8) -> Option<View> {
        let blocks = 1u64 << log2_blocks;
        let reached = iova % 64 == 0 && self.memory.reaches(iova, blocks * BLOCK_BYTES as u64);
        reached.then(|| View { bus: self.clone(), iova, mask: blocks - 1 })
    }

    fn reachable(&self, iova: u64, bytes: u64) -> bool {
        self.memory.reaches(iova, bytes)
    }

    fn own(&self) -> Option<(u64, View)> {
        let bus = Self { posted: None, ..self.clone() };
        Some((OWN, View { bus, iova: OWN, mask: u64::MAX }))
    }

    fn null(&self) -> Option<u64> {
        Some(NULL)
    }
}

impl DoorbellPage for TestPage {
    fn load(&self, slot: usize) -> u64 {
        Self::load(self, slot)
    }
}

impl Random for Seeded {
    fn next_u32(&mut self) -> u32 {
        (self.next() >> 32) as u32
    }
}

/// The engine, its memory and its clock.
#[derive(Debug)]
pub struct RustEngine {
    pub engine: Engine<Bus, TestPage, Seeded>,
    pub bus: Bus,
    pub now: u64,
}

impl RustEngine {
    /// An engine whose writes are seen when they are taken from `posted`.
    pub fn behind(config: EngineConfig, memory: TestMemory, posted: Option<Posted>) -> Self {
        let engine = Engine::new(config, Seeded::new(1));
        Self { engine, bus: Bus { memory, posted }, now: 1000 }
    }
}

impl Device for RustEngine {
    const OTHER_LIMITS: bool = true;
    const TURNS: bool = true;

    fn config() -> EngineConfig {
        FULL
    }

    fn new(config: EngineConfig, memory: TestMemory) -> Self {
        Self::behind(config, memory, None)
    }

    fn read_register(&mut self, offset: u64, _: &mut impl Transport) -> u64 {
        self.engine.read_register(self.now, offset)
    }

    fn write_register(&mut self, offset: u64, value: u64, port: &mut impl Transport) {
        self.engine.write_register(offset, value, port);
        self.engine.execute(self.now, &self.bus, port);
    }

    fn open_page(&mut self, page: u8, memory: TestPage) -> bool {
        self.engine.open_page(page, memory)
    }

    fn close_page(&mut self, page: u8) {
        self.engine.close_page(page);
    }

    fn reset(&mut self, port: &mut impl Transport) {
        self.engine.reset(port);
    }

    fn take_interrupt(&mut self) -> bool {
        self.engine.take_interrupt()
    }

    fn step(&mut self, port: &mut impl Transport) -> bool {
        self.now += 1;
        let executed = self.engine.execute(self.now, &self.bus, port);
        self.engine.poll(self.now, port) || executed
    }

    fn now(&self) -> u64 {
        self.now
    }

    fn pass(&mut self, time: u64) {
        self.now += time;
    }

    fn next_wake(&self) -> Option<u64> {
        self.engine.next_wake()
    }

    fn report(&mut self, event: TransportEvent, port: &mut impl Transport) {
        self.now += 1;
        self.engine.handle(self.now, event, port);
    }

    fn take_receive(&mut self, qpn: u32) -> Result<TakenReceive, ReceiveError> {
        self.engine.take_receive(qpn)
    }

    fn refuse_receive(&mut self, qpn: u32, port: &mut impl Transport) {
        self.engine.refuse_receive(self.now, qpn, port);
    }

    fn take_xrc_receive(&mut self, request: XrcRequest) -> Result<TakenReceive, ReceiveError> {
        self.engine.take_xrc_receive(request)
    }

    fn allows(&self, qpn: u32, memory: RemoteRange, access: RemoteAccess) -> bool {
        self.engine.allows(qpn, memory, access)
    }

    fn allows_xrc(
        &mut self,
        request: XrcRequest,
        memory: RemoteRange,
        access: RemoteAccess,
    ) -> Option<bool> {
        self.engine.allows_xrc(request, memory, access)
    }

    fn resolve(
        &self,
        qpn: u32,
        payload: Payload,
        offset: u64,
        length: u32,
        pieces: &mut Vec<Piece>,
    ) -> Result<(), Unreachable> {
        self.engine.resolve(qpn, payload, offset, length, pieces)
    }
}
