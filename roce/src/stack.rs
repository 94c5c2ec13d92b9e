//! The transport of one card port: all its queue pairs, and the calls from outside.

use core::net::Ipv4Addr;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use fpga_regs::engine::qp::QpState;

use crate::api::{Event, FramePayload, IcrcPolicy, ReceiveStatus, SendRequest, Source, Transmit};
use crate::attributes::{self, QpAttributes, QpSnapshot};
use crate::congestion::NotificationPoint;
use crate::counters::{Counters, QpCounters};
use crate::datagram::UdQp;
use crate::drops::{self, Reason};
use crate::error::{Error, OutOfRange, PostError};
use crate::groups::Groups;
use crate::header::HeaderBuffer;
use crate::log::Taken;
use crate::message::Message;
use crate::neighbour::Neighbours;
use crate::param;
use crate::path::{ConnectionKey, Path, PortAddresses};
use crate::priority::{Priorities, Trust};
use crate::qp::{QpCore, Shared};
use crate::ready::Ready;
use crate::reliable::RcQp;
use crate::requester::Requester;
use crate::responder::Responder;
use crate::service::Service;
use crate::services::Services;
use crate::table;
use crate::timer::{Due, Timers};
use crate::types::{Gid, GidTable, Instant, MacAddr, PathMtu, Qpn};
use crate::unreliable::UcQp;
use crate::window::{AnyWindow, Limited, Windows};

mod accept;
mod commit;
mod datagram;
mod input;
mod multicast;
mod owner;
mod path;
mod sender;
mod slots;
mod unreliable;

pub use owner::Owner;
use slots::{Slot, Slots};

/// The configuration of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackConfig {
    /// The Ethernet address. The link-local address, at first source GID 0, follows from it.
    pub mac: MacAddr,
    /// The IPv4 address, at first source GID 1.
    pub ipv4: Ipv4Addr,
    /// The largest path MTU that a QP may use.
    pub mtu_max: PathMtu,
    /// The received frames whose invariant CRC is checked.
    pub icrc_policy: IcrcPolicy,
}

/// Spreads queue pair numbers, which are random or dense, over the table.
#[derive(Debug, Default)]
struct QpnHasher(u64);

impl Hasher for QpnHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(u32::from(byte));
        }
    }

    fn write_u32(&mut self, value: u32) {
        let mixed = (self.0 ^ u64::from(value)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

/// Slots of the port's table by queue pair number.
type QpnTable = HashMap<Qpn, u32, BuildHasherDefault<QpnHasher>>;

/// How a queue pair's turn to send went.
enum Turn {
    /// A frame is to be sent.
    Frame(Transmit),
    /// It has nothing to send now.
    Over,
    /// Others have their turn first.
    Later,
}

/// The transport of one card port. See the [crate's documentation](crate) for the caller's loop.
#[derive(Debug)]
pub struct Stack {
    addresses: PortAddresses,
    /// The services that see all packets on their way, if there are any.
    services: Option<Box<dyn Services>>,
    mtu_max: PathMtu,
    icrc_policy: IcrcPolicy,
    /// Slots by queue pair number.
    table: QpnTable,
    slots: Slots,
    free: Vec<u32>,
    /// Slots by the numbers of address handles.
    handles: HashMap<u32, u32>,
    /// Slots and generations of queue pairs with unanswered messages that are being made.
    making: Vec<(u32, u32)>,
    next_generation: u32,
    /// How many queue pairs have each connection: at most one, unless their owner wants it otherwise.
    connections: HashMap<ConnectionKey, u32>,
    shared: Shared,
    /// The function that gives queue pairs their windows.
    windows: Windows,
    neighbours: Neighbours,
    /// The multicast groups that queue pairs are in.
    groups: Groups,
    /// ARP, ICMP and neighbour discovery frames to send.
    control: VecDeque<Vec<u8>>,
}

impl Stack {
    /// Bytes that are kept of a message until it is complete.
    pub const MESSAGE_BYTES: usize = size_of::<Message>();
    /// Bytes of a slot, with its timer and its places in lists.
    const SLOT_BYTES: usize =
        Timers::BYTES_OF_EACH + Ready::BYTES_OF_EACH + size_of::<Slot>() + size_of::<u32>();
    /// Bytes that a queue pair takes at most, beside its messages.
    pub const QP_BYTES: usize = size_of::<RcQp>()
        + Responder::MOST_BYTES
        + Requester::READ_BYTES
        + size_of::<Limited>()
        + Neighbours::BYTES_OF_EACH
        + param::TABLE_PLACES
            * (Self::SLOT_BYTES + size_of::<(ConnectionKey, u32)>() + size_of::<(Qpn, u32)>());

    /// A port without queue pairs.
    #[must_use]
    pub fn new(config: StackConfig) -> Self {
        Self {
            addresses: PortAddresses::new(config.mac, config.ipv4),
            services: None,
            mtu_max: config.mtu_max,
            icrc_policy: config.icrc_policy,
            table: HashMap::default(),
            slots: Slots::default(),
            free: Vec::new(),
            handles: HashMap::new(),
            making: Vec::new(),
            next_generation: 0,
            connections: HashMap::new(),
            shared: Shared::default(),
            windows: Windows::default(),
            neighbours: Neighbours::default(),
            groups: Groups::default(),
            control: VecDeque::new(),
        }
    }

    /// Lets services see all packets from now on, or none.
    pub fn set_services(&mut self, services: Option<Box<dyn Services>>) {
        self.services = services;
    }

    /// The services that see all packets, for [`Services::act`].
    #[inline]
    pub fn services(&mut self) -> Option<&mut (dyn Services + 'static)> {
        self.services.as_deref_mut()
    }

    /// The same, without them from now on.
    pub fn take_services(&mut self) -> Option<Box<dyn Services>> {
        self.services.take()
    }

    /// The GID at `index` of the port's table.
    #[must_use]
    pub fn gid(&self, index: u8) -> Option<Gid> {
        self.addresses.address(index).map(|address| address.gid)
    }

    /// Gives the port other addresses. Queue pairs on one that goes away send on, and hear nothing.
    pub fn set_gids(&mut self, gids: GidTable) {
        let before = self.addresses.set_gids(gids);
        self.tell_of_groups(&before);
    }

    /// Sets how the port notifies peers whose packets arrive marked, from now on.
    pub fn set_notification_point(&mut self, point: NotificationPoint) -> Result<(), OutOfRange> {
        point.check()?;
        self.shared.notification_point = point;
        Ok(())
    }

    /// Sets the fields by which a packet's priority is told from now on. Without this it is the upper half of the DSCP.
    pub fn set_trust(&mut self, trust: Trust) -> Result<(), OutOfRange> {
        trust.check()?;
        self.shared.trust = trust;
        for slot in 0..self.slots.count() {
            self.take_priority(slot);
        }
        Ok(())
    }

    /// Says which window queue pairs have that are created or reset from now on. Without this, those whose peer
    /// acknowledges have [`SlowStart`](crate::window::SlowStart).
    pub fn set_windows(&mut self, of: impl Fn(Qpn, Service) -> AnyWindow + Send + 'static) {
        self.windows = Windows::new(of);
    }

    /// Creates the queue pair `qpn` of a transport service in RESET. Its `client` is one of those that share the port:
    /// each has its own part of scarce resources, such as [`param::ARP_REQUEST_INTERVAL`].
    pub fn create_qp(&mut self, qpn: Qpn, service: Service, client: u16) -> Result<(), Error> {
        if self.table.contains_key(&qpn) {
            return Err(Error::QpExists(qpn));
        }
        if self.table.len() >= param::MAX_QPS {
            return Err(Error::TooManyQps(param::MAX_QPS));
        }
        let (slot, generation) = (self.new_slot(), self.new_generation());
        self.table.insert(qpn, slot);
        let window = self.windows.of(qpn, service);
        let qp = QpCore::new(qpn, service, client, slot, generation, window);
        self.slots.put(slot, Slot::of(qp));
        Ok(())
    }

    /// A slot with nothing in it.
    fn new_slot(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            let slot = self.slots.add();
            self.shared.timers.add(slot);
            self.shared.ready.add();
            slot
        })
    }

    /// Changes state and attributes of a queue pair; on an error nothing has changed.
    ///
    /// Besides the transitions that the layer above asks for there is one that a queue pair takes by itself: to ERR, from
    /// RTR, RTS and SQD, when a message or a request fails for good.
    ///
    /// Going to ERR reports [`Event::EnteredError`] (once); going to RESET drops all events of the
    /// QP that were not polled.
    pub fn modify_qp(
        &mut self,
        now: Instant,
        qpn: Qpn,
        change: &QpAttributes,
    ) -> Result<(), Error> {
        let slot = self.slot(qpn).ok_or(Error::UnknownQp(qpn))?;
        let qp = self.slots.core_mut(slot).ok_or(Error::UnknownQp(qpn))?;
        let from = qp.state();
        // RC-77, RC-78, UC-15, UD-16
        attributes::check(qp.service.kind(), qpn, from, change, self.mtu_max)?;
        let to = change.state.unwrap_or(from);
        if to == QpState::Reset {
            self.reset(slot);
            return Ok(());
        }
        // RC-78: Steps that can fail come first.
        let path = match change.path {
            Some(vector) => {
                let dest = change.dest_qpn.or(qp.attributes.dest_qpn).unwrap_or(qpn);
                Some((vector, Path::to_one(qpn, dest, &vector, &self.addresses)?))
            }
            None => None,
        };
        qp.attributes.apply(change);
        if let Some((vector, _)) = &path {
            qp.attributes.path = Some(*vector);
        }
        let static_rate = qp.attributes.path.map_or(0, |path| path.static_rate);
        let burst = change.rate_limit.map(|limit| limit.burst);
        qp.keep_to(&mut self.shared, now, static_rate, burst);
        if let Some((_, (path, resolution))) = path {
            self.set_path(now, slot, path, resolution);
            if let Some(qp) = self.slots.uc(slot) {
                qp.be_patient(now);
            }
        }
        match self.slots.get_mut(slot) {
            Some(Slot::Rc(qp)) => qp.change(&mut self.shared, to, change),
            Some(Slot::Uc(qp)) => qp.change(&mut self.shared, to, change),
            Some(Slot::Ud(qp)) => qp.change(&mut self.shared, to, change),
            Some(Slot::Free | Slot::Handle(_)) | None => {}
        }
        self.aim(slot);
        Ok(())
    }

    /// Whether this is a queue pair that receives along XRC.
    #[must_use]
    pub fn is_xrc_target(&self, qpn: Qpn) -> bool {
        let qp = self.slot(qpn).and_then(|slot| self.slots.core(slot));
        qp.is_some_and(|qp| !qp.service.hears_responses())
    }

    /// Fails a connection of which the layer above cannot tell its program: executed requests without an
    /// acknowledgement are refused as a remote operational error. Reported as an error of its own, once. `false` where
    /// there is no such connection of Reliable Connection or XRC.
    pub fn refuse_unacknowledged(&mut self, qpn: Qpn) -> bool {
        let slot = self.slot(qpn);
        let Some(qp) = slot.and_then(|slot| self.slots.rc(slot)) else { return false };
        qp.refuse_unacknowledged(&mut self.shared);
        true
    }

    /// Whether there is any queue pair or address handle.
    #[must_use]
    pub fn is_used(&self) -> bool {
        !self.table.is_empty() || !self.handles.is_empty()
    }

    /// Whether a queue pair has messages of its own that are not complete; `None` where it is none of a reliable
    /// connection, or there is none.
    #[must_use]
    pub fn has_open_messages(&self, qpn: Qpn) -> Option<bool> {
        match self.slots.get(self.slot(qpn)?)? {
            Slot::Rc(qp) if qp.core.service == Service::Rc => Some(qp.requester.is_open()),
            _ => None,
        }
    }

    /// The attributes of a queue pair as they are now.
    #[must_use]
    pub fn query_qp(&self, qpn: Qpn) -> Option<QpSnapshot> {
        match self.slots.get(self.slot(qpn)?)? {
            Slot::Rc(qp) => Some(qp.snapshot()),
            Slot::Uc(qp) => Some(qp.snapshot()),
            Slot::Ud(qp) => Some(qp.snapshot()),
            Slot::Free | Slot::Handle(_) => None,
        }
    }

    /// Whether a queue pair stands in line for [`Stack::poll_transmit`].
    #[must_use]
    pub fn stands_in_line(&self, qpn: Qpn) -> bool {
        self.slot(qpn).is_some_and(|slot| self.shared.ready.stands(slot))
    }

    /// Destroys a queue pair. Afterwards nothing about it is emitted any more: its events are
    /// dropped, and its placements, if any await their commit, have no effect.
    pub fn destroy_qp(&mut self, qpn: Qpn) {
        let Some(slot) = self.slot(qpn) else { return };
        self.reset(slot);
        self.leave_groups(slot);
        table::take(&mut self.table, &qpn);
        self.slots.put(slot, Slot::Free);
        self.free.push(slot);
    }

    /// Gives memory for messages back, of a queue pair that has more than four times its need.
    pub fn narrow(&mut self, qpn: Qpn) {
        let slot = self.slot(qpn).and_then(|slot| self.slots.get_mut(slot));
        match slot {
            Some(Slot::Rc(qp)) => qp.requester.narrow(),
            Some(Slot::Uc(qp)) => qp.sends.narrow(),
            Some(Slot::Ud(qp)) => qp.sends.narrow(),
            _ => {}
        }
    }

    /// How many more messages a queue pair takes now.
    #[must_use]
    pub fn send_room(&self, qpn: Qpn) -> usize {
        match self.slot(qpn).and_then(|slot| self.slots.get(slot)) {
            Some(Slot::Rc(qp)) => qp.requester.room(),
            Some(Slot::Uc(qp)) => qp.sends.room(),
            Some(Slot::Ud(qp)) => qp.sends.room(),
            _ => 0,
        }
    }

    /// Gives a message to a queue pair of a connection in RTS or SQD. Messages are numbered from 0 since the last
    /// RESET; the number is returned.
    pub fn post_send(
        &mut self,
        now: Instant,
        qpn: Qpn,
        request: SendRequest,
    ) -> Result<u64, PostError> {
        self.post(now, qpn, request, None)
    }

    /// Posts a message along XRC, for the peer's shared receive queue `srqn`; otherwise as [`Stack::post_send`].
    pub fn post_xrc_send(
        &mut self,
        now: Instant,
        qpn: Qpn,
        srqn: u32,
        request: SendRequest,
    ) -> Result<u64, PostError> {
        self.post(now, qpn, request, Some(srqn))
    }

    fn post(
        &mut self,
        now: Instant,
        qpn: Qpn,
        request: SendRequest,
        srqn: Option<u32>,
    ) -> Result<u64, PostError> {
        let slot = self.slot(qpn).ok_or(PostError::UnknownQp(qpn))?;
        match (self.slots.get_mut(slot), srqn) {
            (Some(Slot::Rc(qp)), srqn) => qp.post(&mut self.shared, now, srqn, request),
            (_, Some(_)) => Err(PostError::NotOffered(qpn)),
            (Some(Slot::Uc(qp)), None) => qp.post(&mut self.shared, request),
            _ => Err(PostError::UnknownQp(qpn)),
        }
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.shared.log.poll()
    }

    /// The next frame to send; `None` when nothing is ready, or while placements await their
    /// commit.
    #[inline]
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        self.poll_transmit_of(now, Priorities::ALL)
    }

    /// Polls frames of some priorities alone: those of the others wait, and hold back no other queue pair; otherwise as
    /// [`Stack::poll_transmit`]. Within a priority queue pairs take turns of [`param::TRANSMIT_QUANTUM`] frames, and so
    /// do priorities.
    // RC-108
    pub fn poll_transmit_of(&mut self, now: Instant, open: Priorities) -> Option<Transmit> {
        self.poll_if(now, open, None)
    }

    /// Polls frames of those queue pairs alone that may send, otherwise as [`Stack::poll_transmit_of`]. One that may not
    /// leaves the line of those that send, until [`Stack::stand_in_line`] or something that happens to it; then this asks
    /// again.
    pub fn poll_transmit_if(
        &mut self,
        now: Instant,
        open: Priorities,
        may_send: &mut dyn FnMut(Qpn) -> bool,
    ) -> Option<Transmit> {
        self.poll_if(now, open, Some(may_send))
    }

    /// Both polls are one function, so that the compiler makes the building of a frame part of it.
    fn poll_if(
        &mut self,
        now: Instant,
        open: Priorities,
        mut may_send: Option<&mut dyn FnMut(Qpn) -> bool>,
    ) -> Option<Transmit> {
        // RC-46
        if !self.shared.log.is_committed() {
            return None;
        }
        if open.has(0) {
            if let Some(frame) = self.control.pop_front() {
                self.ask_due(now);
                let header = HeaderBuffer::whole(frame);
                let (qpn, payload, pad, needs_icrc, priority) = (None, None, 0, false, 0);
                return Some(Transmit { qpn, header, payload, pad, needs_icrc, priority });
            }
        }
        while let Some((slot, priority)) = self.shared.ready.first(open) {
            match self.slots.get_mut(slot) {
                // Its queue pair is gone.
                None | Some(Slot::Free | Slot::Handle(_)) => {}
                Some(occupant)
                    if occupant.core().is_some_and(|qp| {
                        qp.paused || may_send.as_mut().is_some_and(|may_send| !may_send(qp.qpn))
                    }) => {}
                Some(Slot::Rc(qp)) => {
                    let transmit = qp.transmit(&mut self.shared, now, priority);
                    if transmit.is_some() {
                        self.shared.ready.emitted();
                        return transmit;
                    }
                }
                Some(occupant) => {
                    let turn = match occupant {
                        Slot::Uc(_) => self.transmit_unreliable(slot, now, priority),
                        _ => self.transmit_datagram(slot, now, priority),
                    };
                    match turn {
                        Turn::Frame(transmit) => {
                            self.shared.ready.emitted();
                            return Some(transmit);
                        }
                        Turn::Later => {
                            self.shared.ready.yields();
                            continue;
                        }
                        Turn::Over => {}
                    }
                }
            }
            self.shared.ready.leaves();
        }
        None
    }

    /// Whether a queue pair waits for [`Stack::settle`].
    #[must_use]
    pub fn is_unsettled(&self, qpn: Qpn) -> bool {
        self.slot(qpn).is_some_and(|slot| self.shared.log.is_aside(slot))
    }

    /// The numbers of all queue pairs, in order.
    #[must_use]
    pub fn queue_pairs(&self) -> Vec<Qpn> {
        let mut all: Vec<Qpn> = self.table.keys().copied().collect();
        all.sort_unstable();
        all
    }

    /// Whether a queue pair sends nothing any more: it is in the error state, and owes no refusal.
    #[must_use]
    pub fn is_silent(&self, qpn: Qpn) -> bool {
        match self.slot(qpn).and_then(|slot| self.slots.get(slot)) {
            Some(Slot::Rc(qp)) if qp.responder.has_last_words() => false,
            qp => qp.and_then(Slot::core).is_none_or(|qp| qp.state() == QpState::Err),
        }
    }

    /// Stops a queue pair's sending until [`Stack::go_on`]: payload of frames that were polled is not there yet. A
    /// RESET ends that, too.
    pub fn pause(&mut self, qpn: Qpn) {
        if let Some(qp) = self.slot(qpn).and_then(|slot| self.slots.core_mut(slot)) {
            qp.paused = true;
        }
    }

    /// Lets a queue pair send again, unless it waits for [`Stack::settle`].
    pub fn go_on(&mut self, qpn: Qpn) {
        let Some(slot) = self.slot(qpn).filter(|slot| !self.shared.log.is_aside(*slot)) else {
            return;
        };
        if let Some(qp) = self.slots.core_mut(slot) {
            qp.paused = false;
            qp.make_ready(&mut self.shared);
        }
    }

    /// Has a queue pair stand in line again that has left it at [`Stack::poll_transmit_if`].
    pub fn stand_in_line(&mut self, qpn: Qpn) {
        if let Some(qp) = self.slot(qpn).and_then(|slot| self.slots.core_mut(slot)) {
            qp.make_ready(&mut self.shared);
        }
    }

    /// Tells that the payload of an emitted frame could not be read; the caller drops the frame.
    ///
    /// A message of ours fails with [`SendStatus::LocalProtection`](crate::api::SendStatus::LocalProtection), after those before it are
    /// complete; a READ of the peer gets a NAK "remote operational error". Either way the QP
    /// enters the error state. A QP whose messages have no answers enters SQE, and the caller also drops its
    /// frames behind that one.
    pub fn payload_failed(&mut self, _now: Instant, qpn: Qpn, payload: &FramePayload) {
        let Some(slot) = self.slot(qpn) else { return };
        let shared = &mut self.shared;
        match (self.slots.get_mut(slot), payload.source) {
            (Some(Slot::Rc(qp)), Source::Message { message }) => {
                qp.message_unreadable(shared, message);
            }
            (Some(Slot::Rc(qp)), Source::Remote { .. }) => {
                qp.response_unreadable(shared, payload.psn);
            }
            (Some(Slot::Uc(qp)), Source::Message { message }) => {
                qp.unreadable(shared, message);
            }
            (Some(Slot::Ud(qp)), Source::Message { message }) => {
                qp.unreadable(shared, message);
            }
            _ => {}
        }
    }

    /// Makes [`Stack::next_timeout`] exact: the time of the next due work, not of the next look for work. For callers
    /// that are about to sleep until then.
    pub fn settle_timeouts(&mut self) {
        self.shared.timers.settle();
    }

    /// When [`Stack::handle_timeout`] must be called, at the latest.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        // Behind a full queue, a request waits for one of its frames to go.
        let is_full = self.control.len() >= param::CONTROL_QUEUE;
        let requests = [self.neighbours.next_timeout(), self.groups.next_timeout()];
        let requests = requests.into_iter().flatten().filter(|_| !is_full);
        self.shared.timers.next().into_iter().chain(requests).min()
    }

    /// Handles timers due at `now`, or some of them if they are very many: then [`Stack::next_timeout`] is still in the
    /// past. May be called at any time.
    ///
    /// Frames that have arrived should be given to [`Stack::receive`] first: the answer that a timer
    /// waits for may be among them.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.ask_due(now);
        self.report_due(now);
        for _ in 0..param::TIMER_TURN {
            let Some(Due { slot, at, fires }) = self.shared.timers.pop_due(now) else { break };
            let core = self.slots.core_mut(slot).filter(|_| fires);
            let is_due = core.is_some_and(|qp| qp.timer_fired(&mut self.shared, now));
            let Some(qp) = self.slots.rc(slot) else {
                if is_due {
                    self.resume(slot);
                }
                continue;
            };
            // RC-97: Nothing handled this entry when it was due, whichever timer it stands for.
            let is_late = now.since(at) >= param::LATE_TIMER;
            if is_late && qp.requester.excuse_late_timer(&mut qp.core, &mut self.shared, now)
                || !is_due
            {
                continue;
            }
            let peer = qp.core.path.as_ref().and_then(Path::neighbour);
            let lost_cause = peer.is_none_or(|peer| self.neighbours.is_silent(peer.address));
            let client = qp.core.client;
            let unanswered = qp.timer_fired(&mut self.shared, now, lost_cause);
            if let (true, Some(peer)) = (unanswered, peer) {
                if self.neighbours.probe(peer.address, client, now) {
                    self.ask(peer);
                }
            }
        }
    }

    /// The counters of the port.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// The counters of a queue pair since its creation.
    #[must_use]
    pub fn qp_counters(&self, qpn: Qpn) -> Option<&QpCounters> {
        Some(&self.slots.core(self.slot(qpn)?)?.counters)
    }

    fn slot(&self, qpn: Qpn) -> Option<u32> {
        self.table.get(&qpn).copied()
    }

    fn new_generation(&mut self) -> u32 {
        self.next_generation = self.next_generation.wrapping_add(1);
        self.next_generation
    }

    /// Tells that the payload of all polled frames has been read, but of those reported to [`Stack::payload_failed`]:
    /// unanswered messages are complete then. Those of a queue pair that is [paused](Stack::pause) are not.
    pub fn frames_made(&mut self) {
        let Self { making, slots, shared, .. } = self;
        making.retain(|&(slot, generation)| {
            let Some(occupant) = slots.get_mut(slot) else { return false };
            let Some(qp) = occupant.core().filter(|qp| qp.generation == generation) else {
                return false;
            };
            if qp.paused {
                return true;
            }
            match occupant {
                Slot::Uc(qp) => qp.settle(shared),
                Slot::Ud(qp) => qp.settle(shared),
                Slot::Rc(_) | Slot::Handle(_) | Slot::Free => {}
            }
            false
        });
    }

    /// Takes a queue pair back to RESET: nothing of its former life is left.
    fn reset(&mut self, slot: u32) {
        let generation = self.new_generation();
        self.leave_path(slot);
        self.stop_waiting(slot);
        if self.shared.log.has_aside() {
            self.forget_aside(slot);
        }
        let Some(occupant) = self.slots.get_mut(slot) else { return };
        let Some(qp) = occupant.core() else { return };
        let qp = qp.renewed(generation, self.windows.of(qp.qpn, qp.service));
        let (qpn, mut taken) = (qp.qpn, None);
        match occupant {
            Slot::Rc(old) => {
                // XRC-7
                taken = old.responder.stop().filter(|taken| taken.srqn.is_some());
                **old = RcQp::new(qp);
            }
            Slot::Uc(old) => **old = UcQp::new(qp),
            Slot::Ud(old) => {
                let groups = core::mem::take(&mut old.groups);
                **old = UdQp::new(qp);
                old.groups = groups;
            }
            Slot::Free | Slot::Handle(_) => {}
        }
        self.shared.timers.set(slot, None);
        self.shared.log.retain(|event| event.qpn() != qpn || event.srqn().is_some());
        if let Some(Taken { srqn, id }) = taken {
            let status = ReceiveStatus::Flushed;
            self.shared.log.release(Event::ReceiveFailed { qpn, srqn, id, status });
        }
    }

    /// Queues a frame beside RoCE.
    fn send_control(&mut self, frame: Vec<u8>) {
        if self.control.len() < param::CONTROL_QUEUE {
            self.control.push_back(frame);
        } else {
            drops::count(&mut self.shared.counters, Reason::ControlQueue);
        }
    }
}

#[cfg(test)]
mod tests;
