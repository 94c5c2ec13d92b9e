//! The state that queue pairs of each transport service have.

use fpga_regs::engine::qp::QpState;

use crate::api::{Event, QpEvent, ReceiveStatus, Transmit};
use crate::attributes::QpSnapshot;
use crate::congestion::{NotificationPoint, Notifications, RESERVED};
use crate::counters::{Counters, QpCounters, bump};
use crate::drops::Reason;
use crate::incoming::{Flow, ecn};
use crate::log::{EffectKind, Log, Taken};
use crate::opcode::{Class, code};
use crate::param;
use crate::path::Path;
use crate::priority::Trust;
use crate::psn::Psn;
use crate::ready::Ready;
use crate::service::Service;
use crate::timer::Timers;
use crate::types::{Instant, PathMtu, Qpn};
use crate::window::{AnyWindow, Window as _, lower};
use crate::wire::{bth, frame};

/// The state that all queue pairs of a port share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub counters: Counters,
    pub log: Log,
    pub timers: Timers,
    /// The slots of QPs that may have a packet to send, in turn.
    pub ready: Ready,
    /// The fields by which a packet's priority is told.
    pub trust: Trust,
    /// The port's notification of peers whose packets arrive marked.
    pub notification_point: NotificationPoint,
}

/// The part of a queue pair that does not depend on its transport service.
#[derive(Debug)]
pub(crate) struct QpCore {
    pub qpn: Qpn,
    pub service: Service,
    /// The client that owns it.
    pub client: u16,
    /// Its place in the stack's table.
    pub slot: u32,
    /// A number that changes with every reset, by which remains of an earlier life are recognised.
    pub generation: u32,
    /// State and attributes; `rq_psn`, `sq_psn` and `sq_draining` here are not kept current.
    pub attributes: QpSnapshot,
    /// The path of a connection, from RTR on.
    pub path: Option<Path>,
    /// The priority of its packets, 0 to 7: of its path, or of the message of datagrams whose turn it is.
    pub priority: u8,
    /// It sends nothing, for the layer above waits for payload of its.
    pub paused: bool,
    /// Whether a request arrived since RTR.
    established: bool,
    /// Whether the drained event of this stay in SQD was reported.
    drained: bool,
    pub counters: QpCounters,
    /// How much it may send, and when.
    pub window: AnyWindow,
    /// Whether a packet waits until the window lets it go.
    waits: bool,
    /// When its service wants its timer to fire.
    deadline: Option<Instant>,
    notifications: Notifications,
    /// Whether it has entered the error state, with consequences still to be drawn.
    pub failed: bool,
}

impl QpCore {
    /// A queue pair in RESET.
    pub(crate) fn new(
        qpn: Qpn,
        service: Service,
        client: u16,
        slot: u32,
        generation: u32,
        window: AnyWindow,
    ) -> Self {
        Self {
            qpn,
            service,
            client,
            slot,
            generation,
            window,
            waits: false,
            deadline: None,
            notifications: Notifications::default(),
            attributes: QpSnapshot::default(),
            path: None,
            priority: 0,
            paused: false,
            established: false,
            drained: false,
            counters: QpCounters::default(),
            failed: false,
        }
    }

    /// The same queue pair in its next life. Its slot stays in line, possibly behind all others: when its turn comes,
    /// it has nothing to send, or the messages posted by then.
    // RC-82
    pub(crate) fn renewed(&self, generation: u32, window: AnyWindow) -> Self {
        let Self { qpn, service, client, slot, counters, .. } = *self;
        Self { counters, ..Self::new(qpn, service, client, slot, generation, window) }
    }

    /// The state.
    #[inline]
    pub(crate) fn state(&self) -> QpState {
        self.attributes.state
    }

    /// The path MTU; meaningful from RTR on.
    #[inline]
    pub(crate) fn mtu(&self) -> PathMtu {
        self.attributes.path_mtu.unwrap_or(PathMtu::Mtu256)
    }

    /// Puts the QP into the line of its priority, and of its notification if one is due.
    #[inline]
    pub(crate) fn make_ready(&self, shared: &mut Shared) {
        shared.ready.stand(self.slot, self.priority);
        if self.notifications.is_due() {
            self.make_notification_ready(shared);
        }
    }

    #[cold]
    fn make_notification_ready(&self, shared: &mut Shared) {
        shared.ready.stand(self.slot, self.notification_priority(shared));
    }

    /// The priority of the notification that the peer is due, which has a class of its own.
    // RC-108
    fn notification_priority(&self, shared: &Shared) -> u8 {
        match (shared.notification_point.cnp_dscp, &self.path) {
            (Some(dscp), Some(path)) => path.priority_of(&shared.trust, dscp << 2),
            _ => self.priority,
        }
    }

    /// Whether the window lets nothing go that it paces.
    // RC-107
    #[inline]
    pub(crate) fn is_held(&self, now: Instant) -> bool {
        self.window.paces() && self.window.earliest_departure().is_some_and(|at| at > now)
    }

    /// Waits until the window lets a packet go, when the QP's timer fires.
    pub(crate) fn hold(&mut self, shared: &mut Shared) {
        self.waits = true;
        self.arm(shared);
    }

    /// Keeps to its own rate and to that of a path from now on, with another burst if it is to have one.
    // RC-109
    #[inline]
    pub(crate) fn keep_to(
        &mut self,
        shared: &mut Shared,
        now: Instant,
        static_rate: u8,
        burst: Option<u32>,
    ) {
        let kilobits = lower(self.attributes.rate_limit, static_rate);
        if kilobits != 0 || self.window.is_limited() {
            self.window.limit(kilobits, burst);
            self.go_on(shared, now);
            self.arm(shared);
        }
    }

    /// A packet leaves that the window paces.
    #[inline]
    pub(crate) fn departs(&mut self, shared: &mut Shared, now: Instant, packet: &mut Transmit) {
        if self.window.paces() {
            self.pace(shared, now, packet);
        }
    }

    #[cold]
    fn pace(&mut self, shared: &mut Shared, now: Instant, packet: &mut Transmit) {
        // RC-17
        if self.window.asks_for_marks() {
            packet.header.change_class(|class| class & !ecn::FIELD | ecn::CAPABLE);
        }
        self.window.on_sent(now, packet.frame_length());
        self.waits = false;
        self.arm(shared);
    }

    /// Sets its one timer to the earlier of its service's deadline and its window's.
    #[inline]
    pub(crate) fn set_timer(&mut self, shared: &mut Shared, deadline: Option<Instant>) {
        self.deadline = deadline;
        self.arm(shared);
    }

    /// A packet of the peer of a connection has arrived marked.
    // RC-94
    pub(crate) fn take_mark(&mut self, shared: &mut Shared, now: Instant) {
        let receives = self.state().receives_unreliable();
        if receives && self.notifications.note(&shared.notification_point, now) {
            self.make_notification_ready(shared);
        }
    }

    /// The notification that the peer is due, if that is of a priority. It is of no service.
    #[inline]
    pub(crate) fn transmit_notification(
        &mut self,
        shared: &mut Shared,
        priority: u8,
    ) -> Option<Transmit> {
        if self.notifications.is_due() { self.notify(shared, priority) } else { None }
    }

    #[cold]
    fn notify(&mut self, shared: &mut Shared, priority: u8) -> Option<Transmit> {
        if self.notification_priority(shared) != priority {
            return None;
        }
        self.notifications.take();
        let path = self.path.as_ref().filter(|path| path.is_resolved())?;
        if !self.state().receives_unreliable() {
            return None;
        }
        // RC-94
        let transport = bth::Repr {
            opcode: code::CNP,
            pkey: param::DEFAULT_PKEY,
            becn: true,
            dest_qpn: self.attributes.dest_qpn.map_or(0, Qpn::value),
            ..bth::Repr::default()
        };
        let mut header = path.header(&transport, RESERVED.len());
        header.push(&RESERVED);
        if let Some(dscp) = shared.notification_point.cnp_dscp {
            header.change_class(|_| dscp << 2);
        }
        bump(&mut shared.counters.np_cnp_sent);
        bump(&mut self.counters.np_cnp_sent);
        Some(Transmit::without_payload(self.qpn, priority, header))
    }

    /// The peer has sent a congestion notification packet.
    // RC-96
    pub(crate) fn notified(&mut self, shared: &mut Shared, now: Instant) {
        let is_timely = self.notifications.is_timely(&shared.notification_point, now);
        bump(match is_timely && self.window.on_cnp(now) {
            true => &mut shared.counters.rp_cnp_handled,
            false => &mut shared.counters.rp_cnp_ignored,
        });
        self.go_on(shared, now);
        self.arm(shared);
    }

    /// Puts the queue pair in line again if its window lets it send.
    fn go_on(&mut self, shared: &mut Shared, now: Instant) {
        if self.waits && !self.is_held(now) {
            self.waits = false;
            self.make_ready(shared);
        }
    }

    #[inline]
    fn arm(&self, shared: &mut Shared) {
        let first = if self.window.paces() { self.first_deadline() } else { self.deadline };
        shared.timers.set(self.slot, first);
    }

    #[cold]
    fn first_deadline(&self) -> Option<Instant> {
        // RC-83: Nothing leaves any more that a window holds back, and none grows again.
        if self.state() == QpState::Err {
            return self.deadline;
        }
        let departure = self.window.earliest_departure().filter(|_| self.waits);
        [self.deadline, self.window.next_deadline(), departure].into_iter().flatten().min()
    }

    /// Handles its timer's firing: the window does its part. Says whether the deadline of its service has come.
    pub(crate) fn timer_fired(&mut self, shared: &mut Shared, now: Instant) -> bool {
        if self.window.next_deadline().is_some_and(|at| at <= now) {
            self.window.on_timeout(now);
        }
        self.go_on(shared, now);
        let is_due = self.deadline.is_some_and(|at| at <= now);
        self.deadline = self.deadline.filter(|_| !is_due);
        self.arm(shared);
        is_due
    }

    /// Reports an event, after all effects that wait for their placements.
    #[inline]
    pub(crate) fn emit(&self, shared: &mut Shared, event: Event) {
        shared.log.emit(self.slot, self.generation, event);
    }

    /// Reports an event that belongs to no work request.
    pub(crate) fn emit_async(&self, shared: &mut Shared, kind: QpEvent) {
        self.emit(shared, Event::Async { qpn: self.qpn, kind });
    }

    /// Adds an effect to the log.
    #[inline]
    pub(crate) fn push_effect(&self, shared: &mut Shared, kind: EffectKind) {
        shared.log.push(self.slot, self.generation, kind);
    }

    /// Reports a failed receive request.
    pub(crate) fn fail_receive(&self, shared: &mut Shared, taken: Taken, status: ReceiveStatus) {
        if status != ReceiveStatus::Flushed {
            bump(&mut shared.counters.resp_cqe_error);
        }
        let Taken { srqn, id } = taken;
        self.emit(shared, Event::ReceiveFailed { qpn: self.qpn, srqn, id, status });
    }

    /// Enters the error state, which its service sees to next; once more does nothing.
    pub(crate) fn enter_error(&mut self) {
        if self.state() != QpState::Err {
            self.attributes.state = QpState::Err;
            self.failed = true;
        }
    }

    /// A request of the peer has arrived: in RTR the first one is reported.
    // RC-49
    #[inline]
    pub(crate) fn establish(&mut self, shared: &mut Shared) {
        if self.state() == QpState::Rtr && !self.established {
            self.established = true;
            self.emit_async(shared, QpEvent::CommunicationEstablished);
        }
    }

    /// Is in SQD from now on: as [`Self::check_drained`].
    pub(crate) fn begin_to_drain(&mut self, shared: &mut Shared, is_drained: bool) {
        self.drained = false;
        self.check_drained(shared, is_drained);
    }

    /// In SQD, reports once that all messages that had begun are complete.
    // RC-80
    pub(crate) fn check_drained(&mut self, shared: &mut Shared, is_drained: bool) {
        if self.state() == QpState::Sqd && !self.drained && is_drained {
            self.drained = true;
            self.emit_async(shared, QpEvent::SqDrained);
        }
    }

    /// Why a packet cannot be for the queue pair of a connection, if it cannot: it does not come from its peer, or is of
    /// another service. A notification of congestion is of none.
    // RC-6, XRC-3
    #[inline]
    pub(crate) fn hears(&self, flow: Flow, packet: &frame::Repr) -> Result<(), Reason> {
        self.comes_from_peer(flow, packet.bth.pkey)?;
        match packet.opcode.class {
            Class::CongestionNotification => Ok(()),
            _ if self.service.hears(packet.opcode) => Ok(()),
            _ => Err(Reason::BadOpcode),
        }
    }

    /// Why a packet is not one of the peer's of a connection: on its path, in the right partition.
    #[inline]
    pub(crate) fn comes_from_peer(&self, flow: Flow, pkey: u16) -> Result<(), Reason> {
        // RC-10: It has no peer yet.
        let Some(path) = &self.path else { return Err(Reason::WrongState) };
        // RC-11
        if path.peer != flow.source || path.own != flow.destination {
            return Err(Reason::WrongSource);
        }
        // RC-12
        if !bth::pkeys_match(pkey, param::DEFAULT_PKEY) {
            return Err(Reason::BadPkey);
        }
        Ok(())
    }

    /// Counts a packet that it has received.
    #[inline]
    pub(crate) fn count_received(&mut self, counters: &mut Counters) {
        bump(&mut counters.rcvd_pkts);
        bump(&mut self.counters.rcvd_pkts);
    }

    /// Counts a packet that is sent.
    #[inline]
    pub(crate) fn count_sent(&mut self, shared: &mut Shared) {
        bump(&mut shared.counters.sent_pkts);
        bump(&mut self.counters.sent_pkts);
    }

    /// The Base Transport Header of a frame of a connection to its peer; `opcode` without the bits of its service.
    #[inline]
    pub(crate) fn transport_header(&self, opcode: u8, psn: Psn, length: u32) -> bth::Repr {
        let peer = self.attributes.dest_qpn.map_or(0, Qpn::value);
        // XRC-1
        transport_header(peer, opcode | self.service.code(), psn, length)
    }
}

/// The Base Transport Header of a frame to a peer with a payload of `length` bytes.
#[inline]
pub(crate) fn transport_header(dest_qpn: u32, opcode: u8, psn: Psn, length: u32) -> bth::Repr {
    bth::Repr {
        // RC-13
        opcode,
        // Interoperable peers take 0 for a path about to migrate, and go slow.
        migrated: true,
        pad_count: pad(length),
        pkey: param::DEFAULT_PKEY,
        dest_qpn,
        psn,
        ..bth::Repr::default()
    }
}

/// Padding after a payload of `length` bytes: up to a multiple of four.
// RC-8
pub(crate) const fn pad(length: u32) -> u8 {
    (length.wrapping_neg() & 3) as u8
}
