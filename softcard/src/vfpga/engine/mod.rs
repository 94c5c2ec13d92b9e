//! The verbs queue engine as logic of a vFPGA: registers, rings and keys are `queue_engine`'s; here its
//! words meet the shell's.

mod random;
mod transport;

use std::task::Poll;

use fpga_regs::engine::event::{Event as DriverEvent, EventType};
use fpga_regs::engine::window::{CONTROL, CONTROL_RESET, FATAL_RING_UNREACHABLE};
use fpga_regs::engine::window::{Capabilities, LimitRate, Profile};
use hostmem::WakeFor;
use queue_engine::{Engine, EngineConfig, Record, Ring, Rings, XrcRequest};
use roce::{AccessDenied, Event, ReceiveError, Stack, TakenReceive, Target, XrcSrq};

use super::Slots;
use super::logic::{Logic, Ports};
use super::request::{Access, Piece, QPN_BITS, Tag, Unreachable, Wanted};
use crate::bus::Bus;
use crate::latch::Latch;
use crate::mmu::Unit;
use crate::own_memory::{NULL_MEMORY, OWN_BYTES};
use crate::views::{RecordView, RingView};
use random::KernelRandom;
use transport::{RoceTransport, transport_event};

type CardEngine = Engine<Unit, Slots, KernelRandom>;

/// Bytes for one client's messages under way, at most, beyond each queue pair's own.
pub const UNDER_WAY_BYTES: usize = 8 << 20;

/// Bytes that a card keeps for a queue pair at most, beside its receive queue and its client's
/// [`UNDER_WAY_BYTES`].
pub const QP_BYTES: usize = CardEngine::QP_BYTES + Stack::QP_BYTES + RING_BYTES;

/// Bytes that a card keeps for a receive queue at most.
pub const RQ_BYTES: usize = CardEngine::RQ_BYTES + RING_BYTES;

/// Bytes that a card keeps for a completion queue at most.
pub const CQ_BYTES: usize = CardEngine::CQ_BYTES + RING_BYTES;

/// Bytes that a card keeps for an address handle at most.
pub const AH_BYTES: usize = CardEngine::AH_BYTES + Stack::AH_BYTES;

/// Bytes that a card keeps for a queue pair's place in a multicast group at most.
pub const MEMBERSHIP_BYTES: usize = Stack::MEMBERSHIP_BYTES;

/// Bytes that a card keeps for a memory window at most.
pub const MW_BYTES: usize = CardEngine::WINDOW_BYTES;

/// Bytes that a card keeps for a memory region with its key at most.
pub const MR_BYTES: usize = CardEngine::KEY_BYTES + Bus::RANGE_BYTES;

/// Bytes that a card keeps for a part of its own memory at most.
pub const DM_BYTES: usize = CardEngine::DM_BYTES + RING_BYTES;

/// Bytes that a card keeps at most of where a ring lies, and of that it may reach it.
const RING_BYTES: usize = 2 * Latch::BYTES + Bus::RANGE_BYTES;

/// Event rings of an engine, as many as completion vectors.
///
/// One thread of the driver's reads them all, so that what they keep apart is what stands before an event, and no
/// cores: a few are enough for that, and each is memory of the driver's, and a turn that the others wait for.
const EVENT_RINGS: u8 = 4;

/// The configuration of every engine of a software card.
fn engine_config(window: u8) -> EngineConfig {
    EngineConfig {
        window,
        profile: Profile::Vqe,
        capabilities: Capabilities::RC
            | Capabilities::UC
            | Capabilities::SEND
            | Capabilities::WRITE
            | Capabilities::READ
            | Capabilities::IMMEDIATE
            | Capabilities::RNR
            | Capabilities::SRQ
            | Capabilities::RESIZE_CQ
            | Capabilities::ATOMIC
            | Capabilities::DEVICE_MEMORY
            | Capabilities::MODERATION
            | Capabilities::NULL_MR
            | Capabilities::RATE_LIMIT
            | Capabilities::UD
            | Capabilities::INVALIDATE
            | Capabilities::MEMORY_WINDOW
            | Capabilities::MULTICAST
            | Capabilities::XRC
            | Capabilities::GSI,
        qps: 16_384,
        cqs: 16_384,
        rqs: 16_384,
        keys: 65_536,
        ahs: 16_384,
        groups: roce::param::MAX_GROUPS as u16,
        qps_per_group: roce::param::MAX_GROUP_MEMBERS as u16,
        rates: LimitRate { min: roce::param::LEAST_RATE, max: roce::param::MOST_RATE },
        log2_cq_entries: 22,
        log2_sq_blocks: 18,
        log2_rq_entries: 16,
        max_rd_atomic: roce::param::MAX_RD_ATOMIC,
        max_message: 1 << 31,
        device_memory: OWN_BYTES,
        event_rings: EVENT_RINGS,
        under_way_bytes: UNDER_WAY_BYTES,
    }
}

/// A queue engine in a vFPGA.
#[derive(Debug)]
pub(crate) struct QueueEngine(CardEngine);

impl QueueEngine {
    /// The engine of the vFPGA of that number, out of reset.
    pub(crate) fn new(vfpga: u8) -> Self {
        Self(Engine::new(engine_config(vfpga), KernelRandom::new()))
    }
}

impl QueueEngine {
    /// Tells the driver of an event.
    pub(crate) fn raise(&mut self, now: u64, event: DriverEvent) {
        self.0.raise(now, event);
    }

    /// Tells the driver of an event in the event ring of that number.
    pub(crate) fn raise_in(&mut self, now: u64, ring: u8, event: DriverEvent) {
        self.0.raise_in(now, ring, event);
    }
}

impl Logic for QueueEngine {
    fn read_register(&self, now: u64, offset: u64) -> u64 {
        self.0.read_register(now, offset)
    }

    fn write_register(&mut self, _now: u64, offset: u64, value: u64, ports: &mut Ports<'_>) {
        self.0.write_register(offset, value, &mut RoceTransport(ports));
        if offset == CONTROL && value & CONTROL_RESET != 0 {
            ports.stop();
        }
    }

    fn open_page(&mut self, page: u8, slots: Slots) -> bool {
        self.0.open_page(page, slots)
    }

    fn close_page(&mut self, page: u8) {
        self.0.close_page(page);
    }

    fn under_way_bytes(&self, page: u8) -> usize {
        self.0.under_way_bytes(page)
    }

    /// Nothing waits for a receive that is posted but a QP that flushes it. Only work can change that.
    fn wakes_for(&self) -> WakeFor {
        if self.0.heeds_receives() { WakeFor::All } else { WakeFor::AllButReceives }
    }

    fn reset(&mut self, ports: &mut Ports<'_>) {
        self.0.limit_groups(ports.most_groups());
        self.0.reset(&mut RoceTransport(ports));
    }

    fn lost_memory(&mut self, now: u64, ports: &mut Ports<'_>) {
        self.0.fail(now, FATAL_RING_UNREACHABLE, &mut RoceTransport(ports));
    }

    #[inline]
    fn work(&mut self, now: u64, ports: &mut Ports<'_>) -> bool {
        let memory = ports.memory();
        let mut transport = RoceTransport(ports);
        let executed = self.0.execute(now, memory, &mut transport);
        self.0.poll(now, &mut transport) | executed
    }

    #[inline]
    fn next_wake(&self) -> Option<u64> {
        self.0.next_wake()
    }

    #[inline]
    fn take_notify(&mut self) -> Option<u32> {
        self.0.take_interrupt().then_some(0)
    }

    #[inline]
    fn check_remote(&mut self, _tag: Tag, access: &Access) -> Poll<Result<(), AccessDenied>> {
        let Access { target, memory, access } = *access;
        let allowed = match xrc_request(target) {
            None => Some(self.0.allows(target.qpn.value(), memory, access)),
            Some(request) => self.0.allows_xrc(request, memory, access),
        };
        Poll::Ready(match allowed {
            Some(true) => Ok(()),
            Some(false) => Err(AccessDenied::Memory),
            None => Err(AccessDenied::Srq),
        })
    }

    #[inline]
    fn take_receive(
        &mut self,
        _tag: Tag,
        target: Target,
    ) -> Poll<Result<TakenReceive, ReceiveError>> {
        let taken = match xrc_request(target) {
            None => self.0.take_receive(target.qpn.value()),
            Some(request) => self.0.take_xrc_receive(request),
        };
        Poll::Ready(taken)
    }

    #[inline]
    fn locate(&mut self, wanted: &Wanted, pieces: &mut Vec<Piece>) -> Result<(), Unreachable> {
        let Wanted { qpn, payload, offset, length } = *wanted;
        self.0.resolve(qpn.value(), payload, offset, length, pieces)
    }

    #[inline]
    fn take_event(&mut self, now: u64, event: Event, ports: &mut Ports<'_>) {
        if let Some(event) = transport_event(&self.0, event) {
            self.0.handle(now, event, &mut RoceTransport(ports));
        }
    }

    fn withhold_gsi(&mut self) {
        self.0.withhold(Capabilities::GSI);
    }

    fn hear_link(&mut self, now: u64, up: bool) {
        self.raise(
            now,
            DriverEvent { kind: EventType::Port, code: up.into(), ..Default::default() },
        );
    }
}

const _: () = assert!(CardEngine::window_of(15 << QPN_BITS) == 15);

/// The request along XRC of a target; `None` of any other.
#[inline]
fn xrc_request(Target { qpn, srq }: Target) -> Option<XrcRequest> {
    let XrcSrq { srqn, domain } = srq?;
    Some(XrcRequest { qpn: qpn.value(), xrcdn: domain, srqn })
}

impl queue_engine::DoorbellPage for Slots {
    #[inline]
    fn load(&self, slot: usize) -> u64 {
        self.read(slot)
    }
}

impl Rings for Unit {
    type Record = RecordView;
    type Ring = RingView;

    fn record(&self, iova: u64) -> Option<RecordView> {
        self.record(iova)
    }

    fn ring(&self, iova: u64, log2_blocks: u8) -> Option<RingView> {
        self.ring(iova, log2_blocks)
    }

    fn reachable(&self, iova: u64, bytes: u64) -> bool {
        self.reachable(iova, bytes)
    }

    fn own(&self) -> Option<(u64, RingView)> {
        self.own()
    }

    fn null(&self) -> Option<u64> {
        Some(NULL_MEMORY)
    }

    fn waits(&self) -> bool {
        self.waits()
    }
}

impl Record for RecordView {
    #[inline]
    fn load_u32(&self, offset: usize) -> u32 {
        self.load_u32(offset)
    }

    #[inline]
    fn load_u64(&self, offset: usize) -> u64 {
        self.load_u64(offset)
    }
}

impl Ring for RingView {
    #[inline]
    fn read(&self, index: u32) -> fpga_regs::Block {
        self.read(index)
    }

    #[inline]
    fn write(&self, index: u32, value: &fpga_regs::Block) {
        self.write(index, value);
    }

    #[inline]
    fn publish(&self, index: u32, value: &fpga_regs::Block) {
        self.publish(index, value);
    }
}
