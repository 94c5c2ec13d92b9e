//! The engine: its objects, and the order in which it works on them.

use std::collections::BTreeSet;

use fpga_regs::engine::cqe::Cqe;
use fpga_regs::engine::doorbell::QueueKind;
use fpga_regs::engine::event::{Event, EventType};
use fpga_regs::engine::qp::QpState;
use fpga_regs::engine::window::{Capabilities, LimitRate, MAX_EVENT_RINGS, Profile};
use fpga_regs::engine::wqe::{MAX_SGE, Sge};

use crate::cq::{Completions, Cq};
use crate::device_memory::DeviceMemory;
use crate::doorbells::{DoorbellPage, Doorbells, Queue};
use crate::events::EventRings;
use crate::handles::Handles;
use crate::keys::Keys;
use crate::memory::Rings;
use crate::numbers::{ByNumber, Numbers, Random, free_all};
use crate::qp::{KEPT_RECEIVES, Qp, Turn, XrcTarget};
use crate::rings::{AdminRings, QueueRegisters};
use crate::rq::{Rq, TakenWqe};
use crate::transport::Transport;
use crate::under_way::{OWN_BYTES, Shares};
use crate::waiting::Waiting;

/// Entries of the GID table.
const GIDS: usize = 16;
/// Bits of the number of a QP, a receive queue or an address handle that are drawn at random; the window's
/// number stands above them.
pub(crate) const QPN_RANDOM_BITS: u32 = 20;

/// QPs that are looked at in one call of [`Engine::poll`]; the others have their turn in the next, so
/// that frames and commands wait for a bounded piece of work only.
const TURNS: usize = 16;

/// Places that a table has at most for each of the objects that it grew with: meanwhile it has those that it
/// leaves, too. Of many that end, those that stay behind share the places until the table shrinks.
const PLACES: usize = 4;

/// Bits of the number of a completion queue or a key.
const NUMBER_BITS: u32 = 24;

/// The sizes and features of an engine.
///
/// Limits beyond half of a number space (2^19 QPs or receive queues, 2^23 of the others, less the resting
/// numbers) are brought down to that, and the window's limit registers say so.
#[derive(Clone, Copy, Debug)]
pub struct EngineConfig {
    /// The window, 0 to 15; bits 23 to 20 of its QPNs.
    pub window: u8,
    /// The kind of engine that the window reports.
    pub profile: Profile,
    /// The features that the window reports.
    pub capabilities: Capabilities,
    /// QPs.
    pub qps: u32,
    /// Completion queues.
    pub cqs: u32,
    /// Receive queues.
    pub rqs: u32,
    /// Keys.
    pub keys: u32,
    /// Address handles.
    pub ahs: u16,
    /// Multicast groups.
    pub groups: u16,
    /// QPs in one of them.
    pub qps_per_group: u16,
    /// The rates that queue pairs can be held to.
    pub rates: LimitRate,
    /// log2 of the largest CQ, in entries.
    pub log2_cq_entries: u8,
    /// log2 of the largest send ring, in blocks.
    pub log2_sq_blocks: u8,
    /// log2 of the largest receive ring, in entries.
    pub log2_rq_entries: u8,
    /// READs under way in each direction.
    pub max_rd_atomic: u8,
    /// Bytes of the largest message.
    pub max_message: u32,
    /// Bytes of the card's own memory that it gives out.
    pub device_memory: u32,
    /// Event rings that the driver may lay, 1 to [`MAX_EVENT_RINGS`].
    pub event_rings: u8,
    /// Bytes for the messages under way of one client's QPs, beyond each QP's own.
    pub under_way_bytes: usize,
}

/// A verbs queue engine.
///
/// `M` is ring memory, `D` a doorbell page, `N` the source of random numbers.
#[derive(Debug)]
pub struct Engine<M: Rings, D, N> {
    pub(crate) config: EngineConfig,
    pub(crate) random: N,
    pub(crate) registers: QueueRegisters,
    pub(crate) enabled: bool,
    /// The engine is to be enabled as soon as its rings are found.
    enabling: bool,
    /// The producer index last written to the admin doorbell, until it was worked on.
    pub(crate) admin_rung: Option<u32>,
    /// Calls for which the next command has waited for a QP to begin with its posted requests.
    pub(crate) command_waited: u32,
    /// Why the engine stopped for good; 0 while it did not.
    pub(crate) fatal: u32,
    pub(crate) admin: Option<AdminRings<M>>,
    pub(crate) events: EventRings<M>,
    pub(crate) gids: [Option<[u8; 16]>; GIDS],
    pub(crate) keys: Keys,
    pub(crate) device_memory: DeviceMemory<M>,
    pub(crate) cqs: ByNumber<Cq<M>>,
    pub(crate) cq_numbers: Numbers,
    pub(crate) rqs: ByNumber<Rq<M>>,
    pub(crate) rq_numbers: Numbers,
    pub(crate) qps: ByNumber<Qp<M>>,
    pub(crate) qp_numbers: Numbers,
    /// XRC targets, whose numbers are QPs'.
    pub(crate) targets: ByNumber<XrcTarget>,
    pub(crate) ahs: Handles,
    pub(crate) shares: Shares,
    /// QPs that flush requests posted to them: those in ERR.
    pub(crate) flushing: BTreeSet<u32>,
    pub(crate) doorbells: Doorbells<D>,
    /// QPs to look at, each at most once.
    ready: Waiting,
    /// QPs with work the transport had no room for.
    starved: Waiting,
    /// QPs of which a completion was lost, until they have failed for it.
    pub(crate) lost: Vec<u32>,
    /// Shared receive queues that have fewer entries than their limit, to be told of.
    pub(crate) below_limit: Vec<u32>,
    /// The name of the next receive along XRC. It is never reset, though numbers of queues are given out again, so
    /// that no late byte of a message finds the receive of another queue.
    pub(crate) next_xrc_receive: u32,
    /// Completions of receives along XRC that could not be used, each with its completion queue.
    pub(crate) failed_receives: Vec<(u32, Cqe)>,
    /// Scratch: queues whose doorbell rang.
    rung: Vec<Queue>,
}

impl<M: Rings, D: DoorbellPage, N: Random> Engine<M, D, N> {
    /// Bytes of a QP at most, without its receive queue, its client's share for messages under way, the transport's
    /// part and the view of its ring.
    pub const QP_BYTES: usize = PLACES
        * (size_of::<(u32, Qp<M>)>() + Doorbells::<D>::BYTES_OF_EACH)
        + Handles::BYTES_OF_QP
        + 2 * Waiting::BYTES_OF_EACH
        + OWN_BYTES
        + KEPT_RECEIVES * size_of::<TakenWqe>()
        + MAX_SGE * size_of::<Sge>();
    /// Bytes of a receive queue at most, without the view of its ring.
    pub const RQ_BYTES: usize =
        PLACES * (size_of::<(u32, Rq<M>)>() + Doorbells::<D>::BYTES_OF_EACH);
    /// Bytes of a completion queue at most, without the view of its ring.
    pub const CQ_BYTES: usize = PLACES
        * (size_of::<(u32, Cq<M>)>() + Doorbells::<D>::BYTES_OF_EACH)
        + EventRings::<M>::BYTES_OF_EACH;
    /// Bytes that an address handle takes at most.
    pub const AH_BYTES: usize = PLACES * Handles::BYTES_OF_EACH;
    /// Bytes that a key takes at most.
    pub const KEY_BYTES: usize = PLACES * Keys::BYTES_OF_EACH;
    /// Bytes of the engine that a memory window takes at most.
    pub const WINDOW_BYTES: usize = PLACES * Keys::BYTES_OF_WINDOW;

    /// Bytes that a part of the card's own memory takes at most.
    pub const DM_BYTES: usize = PLACES * DeviceMemory::<M>::BYTES_OF_EACH;

    /// An engine out of reset.
    pub fn new(config: EngineConfig, random: N) -> Self {
        let prefix = u32::from(config.window & 0xf) << QPN_RANDOM_BITS;
        // QP 1 is of window 0, as its number says.
        let elsewhere = if prefix == 0 { Capabilities::empty() } else { Capabilities::GSI };
        let capabilities = config.capabilities.difference(elsewhere);
        let config = EngineConfig {
            capabilities,
            qps: config.qps.min(Numbers::most(QPN_RANDOM_BITS)),
            cqs: config.cqs.min(Numbers::most(NUMBER_BITS)),
            rqs: config.rqs.min(Numbers::most(QPN_RANDOM_BITS)),
            keys: config.keys.min(Numbers::most(NUMBER_BITS)),
            event_rings: config.event_rings.clamp(1, MAX_EVENT_RINGS),
            ..config
        };
        Self {
            config,
            random,
            registers: QueueRegisters::default(),
            enabled: false,
            enabling: false,
            admin_rung: None,
            command_waited: 0,
            fatal: 0,
            admin: None,
            events: EventRings::closed(),
            gids: [None; GIDS],
            keys: Keys::new(NUMBER_BITS, config.keys),
            device_memory: DeviceMemory::new(config.device_memory),
            cqs: ByNumber::default(),
            cq_numbers: Numbers::new(NUMBER_BITS, 0, config.cqs),
            rqs: ByNumber::default(),
            rq_numbers: Numbers::new(QPN_RANDOM_BITS, prefix, config.rqs),
            qps: ByNumber::default(),
            qp_numbers: Numbers::new(QPN_RANDOM_BITS, prefix, config.qps),
            targets: ByNumber::default(),
            ahs: Handles::new(Numbers::new(QPN_RANDOM_BITS, prefix, config.ahs.into())),
            shares: Shares::new(config.under_way_bytes),
            flushing: BTreeSet::new(),
            doorbells: Doorbells::new(),
            ready: Waiting::default(),
            starved: Waiting::default(),
            lost: Vec::new(),
            below_limit: Vec::new(),
            next_xrc_receive: 0,
            failed_receives: Vec::new(),
            rung: Vec::new(),
        }
    }

    /// Withdraws features from the window that the engine was built with.
    pub fn withhold(&mut self, capabilities: Capabilities) {
        self.config.capabilities.remove(capabilities);
    }

    /// The window a QPN belongs to.
    #[must_use]
    pub const fn window_of(qpn: u32) -> u8 {
        (qpn >> QPN_RANDOM_BITS & 0xf) as u8
    }

    /// Starts with the rings the registers name; stays disabled when they are out of reach, and as
    /// it is when it runs.
    pub(crate) fn enable(&mut self) {
        self.enabling = !self.enabled && self.fatal == 0;
    }

    /// Executes the requests of the registers; requests that must wait for memory go on in a later call. `true` if
    /// there was anything to do.
    pub fn execute(&mut self, now: u64, memory: &M, transport: &mut impl Transport) -> bool {
        if memory.waits() {
            return false;
        }
        let enabling = self.enabling;
        if enabling {
            let admin = AdminRings::open(&self.registers, memory);
            let events = EventRings::open(&self.registers, self.config.event_rings, memory);
            if let (Some(admin), Some(events)) = (admin, events) {
                self.admin = Some(admin);
                self.events = events;
                self.enabled = true;
            }
            self.enabling = !self.enabled && memory.waits();
        }
        let rung = self.admin_rung;
        if let Some(producer) = rung {
            if self.execute_admin(now, producer, memory, transport) {
                self.admin_rung = None;
            }
        }
        enabling || rung.is_some()
    }

    /// Tells the driver of an event, in the first ring.
    pub fn raise(&mut self, now: u64, event: Event) {
        self.events.push(event, now);
    }

    /// Tells the driver of an event in an event ring, which stays unsaid where there is no such ring.
    pub fn raise_in(&mut self, now: u64, ring: u8, event: Event) {
        self.events.push_in(ring, event, now);
    }

    /// Stops for good, for the reason `code`: only a reset helps.
    pub fn fail(&mut self, now: u64, code: u32, transport: &mut impl Transport) {
        if self.fatal == 0 {
            let event = Event { kind: EventType::Fatal, code: code as u8, ..Event::default() };
            self.raise(now, event);
            self.stop(transport);
            self.fatal = code;
            self.events.raised = true;
        }
    }

    /// Limits the multicast groups to those of the port; the transport refuses more.
    pub fn limit_groups(&mut self, groups: u16) {
        self.config.groups = groups;
    }

    /// Forgets every object and every doorbell page, and stops: the effect of a reset of the shell.
    pub fn reset(&mut self, transport: &mut impl Transport) {
        self.stop(transport);
        self.doorbells = Doorbells::new();
    }

    /// Forgets every object and stops, as the window's reset bit demands.
    ///
    /// Numbers in use rest; doorbell pages stay in place, with nothing behind them.
    pub(crate) fn stop(&mut self, transport: &mut impl Transport) {
        let mut qpns: Vec<u32> = self.qps.keys().chain(self.targets.keys()).copied().collect();
        qpns.sort_unstable();
        for qpn in qpns {
            transport.destroy_qp(qpn);
        }
        free_all(&mut self.qps, &mut self.qp_numbers);
        free_all(&mut self.targets, &mut self.qp_numbers);
        self.ahs.clear().into_iter().for_each(|ah| transport.destroy_ah(ah));
        self.shares = Shares::new(self.config.under_way_bytes);
        free_all(&mut self.cqs, &mut self.cq_numbers);
        free_all(&mut self.rqs, &mut self.rq_numbers);
        self.keys.clear();
        self.device_memory.clear();
        self.doorbells.clear();
        self.flushing.clear();
        self.ready.clear();
        self.starved.clear();
        self.lost.clear();
        self.below_limit.clear();
        self.failed_receives.clear();
        for (index, gid) in (0..).zip(&mut self.gids) {
            if gid.take().is_some() {
                // A transport that keeps the entry cannot use it: no QP is left.
                let _ = transport.set_gid(index, None);
            }
        }
        self.registers = QueueRegisters::default();
        self.admin = None;
        self.events = EventRings::closed();
        self.enabled = false;
        self.enabling = false;
        self.admin_rung = None;
        self.command_waited = 0;
        self.fatal = 0;
    }

    /// Puts a doorbell page in place; `false` where there is no such page or it is in use.
    pub fn open_page(&mut self, page: u8, memory: D) -> bool {
        self.doorbells.open(page, memory)
    }

    /// Takes a doorbell page away; queues that were rung there are deaf from now on.
    pub fn close_page(&mut self, page: u8) {
        self.doorbells.close(page);
    }

    /// Bytes of the messages under way of a client's QPs, beyond each QP's own.
    #[must_use]
    pub fn under_way_bytes(&self, client: u8) -> usize {
        self.shares.used(client)
    }

    /// Whether any QP exists.
    #[must_use]
    pub fn has_qps(&self) -> bool {
        !self.qps.is_empty()
    }

    /// Whether a posted receive makes work: only a QP in ERR flushes it.
    #[must_use]
    pub fn heeds_receives(&self) -> bool {
        !self.flushing.is_empty()
    }

    /// Whether an interrupt is due; asking clears it.
    pub fn take_interrupt(&mut self) -> bool {
        std::mem::take(&mut self.events.raised)
    }

    /// Reads the doorbells and executes the work behind them; `true` if there was any.
    ///
    /// The work of one call is bounded, for any content of the rings and any number of QPs: some
    /// of those that have work get a turn, of each client one after the other. After `true` another call is
    /// due, as it is after [`Engine::handle`] and after a register write.
    pub fn poll(&mut self, now: u64, transport: &mut impl Transport) -> bool {
        self.poll_of(now, |_| true, transport)
    }

    /// The same with turns for those QPs alone that `has_turn` says; the others keep theirs for a later call.
    ///
    /// An engine that follows another one has the order of its turns from that.
    pub fn poll_of(
        &mut self,
        now: u64,
        has_turn: impl Fn(u32) -> bool,
        transport: &mut impl Transport,
    ) -> bool {
        let rang = self.scan(now) | self.tell_below_limit(now) | self.tell_due(now);
        let mut has_worked = rang | self.complete_failed_receives(now);
        let turns = self.ready.len().min(TURNS);
        for _ in 0..turns {
            let Some(qpn) = self.ready.pop() else { break };
            if let Some(qp) = self.qps.get_mut(&qpn) {
                if !has_turn(qpn) {
                    self.ready.push(qp.page, qpn);
                    continue;
                }
                qp.queued = false;
            }
            has_worked = true;
            match self.pump(now, qpn, transport) {
                Turn::Over => self.feed_starved(),
                Turn::Starved => self.starve(qpn),
            }
        }
        self.fail_lost(now, transport);
        has_worked
    }

    /// When [`Engine::poll`] is due at the latest, though nothing happens.
    #[must_use]
    pub fn next_wake(&self) -> Option<u64> {
        self.events.next_due()
    }

    /// Tells of completion queues whose events have room now, and of some of those whose have waited long enough.
    #[inline]
    fn tell_due(&mut self, now: u64) -> bool {
        let mut completions =
            Completions { cqs: &mut self.cqs, events: &mut self.events, lost: &mut self.lost, now };
        let mut told = completions.tell_waiting();
        for _ in 0..TURNS {
            let Some(cqn) = self.events.take_due(now) else { break };
            Completions { cqs: &mut self.cqs, events: &mut self.events, lost: &mut self.lost, now }
                .tell_held(cqn);
            told = true;
        }
        told
    }

    /// Notes that a QP waits for room in the transport.
    pub(crate) fn starve(&mut self, qpn: u32) {
        let Some(qp) = self.qps.get_mut(&qpn) else { return };
        if !std::mem::replace(&mut qp.starved, true) {
            self.starved.push(qp.page, qpn);
        }
    }

    /// Gives the QP another turn that is next of those that wait for room.
    ///
    /// One at a time is enough: when its turn ends with room to spare, the next one is fed.
    pub(crate) fn feed_starved(&mut self) {
        while let Some(qpn) = self.starved.pop() {
            if let Some(qp) = self.qps.get_mut(&qpn) {
                qp.starved = false;
                self.look_at(qpn);
                break;
            }
        }
    }

    /// Notes that a QP wants to be looked at.
    pub(crate) fn look_at(&mut self, qpn: u32) {
        let Some(qp) = self.qps.get_mut(&qpn) else { return };
        if !std::mem::replace(&mut qp.queued, true) {
            self.ready.push(qp.page, qpn);
        }
    }

    /// Takes note of the queues whose doorbell rang; `false` if none did.
    fn scan(&mut self, now: u64) -> bool {
        let mut rung = std::mem::take(&mut self.rung);
        self.doorbells.scan(&mut rung);
        let rang = !rung.is_empty();
        for Queue { kind, number } in rung.drain(..) {
            match kind {
                QueueKind::Send => self.look_at(number),
                QueueKind::Receive => {
                    // A receive needs attention only where it will be flushed.
                    let qpn = self.rqs.get(&number).and_then(Rq::private_qpn);
                    let qp = qpn.and_then(|qpn| self.qps.get(&qpn));
                    if let Some(qpn) = qp.filter(|qp| qp.state == QpState::Err).map(|qp| qp.qpn) {
                        self.look_at(qpn);
                    }
                }
                QueueKind::Completion => {
                    Completions {
                        cqs: &mut self.cqs,
                        events: &mut self.events,
                        lost: &mut self.lost,
                        now,
                    }
                    .arm(number);
                }
            }
        }
        self.rung = rung;
        rang
    }
}
