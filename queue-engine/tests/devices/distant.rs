//! The same engine at the far end of buses: orders reach it later, its writes are seen later, and the reports of
//! different QPs overtake each other.

use std::collections::{BTreeMap, VecDeque};

use queue_engine::{
    EngineConfig, Payload, Piece, ReceiveError, RemoteAccess, RemoteRange, TakenReceive, Transport,
    TransportEvent, Unreachable, XrcRequest,
};

use super::rust::{FULL, Posted, RustEngine, land};
use crate::engine::support::device::Device;
use crate::engine::support::memory::{TestMemory, TestPage};
use crate::engine::support::random::Seeded;

/// The engine with the writes on their way to it and from it.
#[derive(Debug)]
pub struct Distant {
    near: RustEngine,
    memory: TestMemory,
    /// Register writes on their way, oldest first.
    writes: VecDeque<(u64, u64)>,
    /// Reports on their way, by QP, oldest first.
    reports: BTreeMap<u32, VecDeque<TransportEvent>>,
    /// Its writes to host memory that are not visible yet.
    posted: Posted,
    random: Seeded,
}

impl Distant {
    fn deliver_write(&mut self, port: &mut impl Transport) {
        if let Some((offset, value)) = self.writes.pop_front() {
            self.near.write_register(offset, value, port);
        }
    }

    /// Delivers the oldest report of some QP.
    fn deliver_report(&mut self, port: &mut impl Transport) {
        let place = self.random.below(self.reports.len() as u64) as usize;
        let Some(entry) = self.reports.iter_mut().nth(place) else { return };
        let (qpn, event) = (*entry.0, entry.1.pop_front());
        if entry.1.is_empty() {
            self.reports.remove(&qpn);
        }
        if let Some(event) = event {
            self.near.report(event, port);
        }
    }

    /// Makes so many of the writes to host memory visible, in their order.
    fn land(&mut self, count: usize) {
        let mut posted = self.posted.borrow_mut();
        let count = count.min(posted.len());
        for (address, block, is_entry) in posted.drain(..count) {
            land(&self.memory, address, &block, is_entry);
        }
    }

    fn is_quiet(&self) -> bool {
        self.writes.is_empty() && self.reports.is_empty() && self.posted.borrow().is_empty()
    }
}

impl Device for Distant {
    const OTHER_LIMITS: bool = true;
    const TURNS: bool = false;

    fn config() -> EngineConfig {
        FULL
    }

    fn new(config: EngineConfig, memory: TestMemory) -> Self {
        let posted = Posted::default();
        let near = RustEngine::behind(config, memory.clone(), Some(posted.clone()));
        let (writes, reports) = Default::default();
        Self { near, memory, writes, reports, posted, random: Seeded::new(2) }
    }

    /// The answer comes behind every write of either side.
    fn read_register(&mut self, offset: u64, port: &mut impl Transport) -> u64 {
        while !self.writes.is_empty() {
            self.deliver_write(port);
        }
        self.land(usize::MAX);
        self.near.read_register(offset, port)
    }

    fn write_register(&mut self, offset: u64, value: u64, _: &mut impl Transport) {
        self.writes.push_back((offset, value));
    }

    fn open_page(&mut self, page: u8, memory: TestPage) -> bool {
        self.near.open_page(page, memory)
    }

    fn close_page(&mut self, page: u8) {
        self.near.close_page(page);
    }

    fn reset(&mut self, port: &mut impl Transport) {
        self.writes.clear();
        self.reports.clear();
        self.land(usize::MAX);
        self.near.reset(port);
    }

    /// An interrupt overtakes no write.
    fn take_interrupt(&mut self) -> bool {
        self.posted.borrow().is_empty() && self.near.take_interrupt()
    }

    fn step(&mut self, port: &mut impl Transport) -> bool {
        if self.random.one_in(3) {
            self.deliver_write(port);
        }
        if self.writes.is_empty() && !self.reports.is_empty() && self.random.one_in(3) {
            self.deliver_report(port);
        }
        let is_busy = self.near.step(port);
        let seen = self.random.below(4) as usize;
        self.land(seen);
        is_busy || !self.is_quiet()
    }

    fn now(&self) -> u64 {
        self.near.now()
    }

    fn pass(&mut self, time: u64) {
        self.near.pass(time);
    }

    fn next_wake(&self) -> Option<u64> {
        self.near.next_wake()
    }

    fn report(&mut self, event: TransportEvent, _: &mut impl Transport) {
        self.reports.entry(event.qpn()).or_default().push_back(event);
    }

    fn take_receive(&mut self, qpn: u32) -> Result<TakenReceive, ReceiveError> {
        self.near.take_receive(qpn)
    }

    fn refuse_receive(&mut self, qpn: u32, port: &mut impl Transport) {
        self.near.refuse_receive(qpn, port);
    }

    fn take_xrc_receive(&mut self, request: XrcRequest) -> Result<TakenReceive, ReceiveError> {
        self.near.take_xrc_receive(request)
    }

    fn allows(&self, qpn: u32, memory: RemoteRange, access: RemoteAccess) -> bool {
        self.near.allows(qpn, memory, access)
    }

    fn allows_xrc(
        &mut self,
        request: XrcRequest,
        memory: RemoteRange,
        access: RemoteAccess,
    ) -> Option<bool> {
        self.near.allows_xrc(request, memory, access)
    }

    fn resolve(
        &self,
        qpn: u32,
        payload: Payload,
        offset: u64,
        length: u32,
        pieces: &mut Vec<Piece>,
    ) -> Result<(), Unreachable> {
        self.near.resolve(qpn, payload, offset, length, pieces)
    }
}
