//! The receivers of an engine's events about its objects: events, from the ring to the programs.
//!
//! Told by whichever thread finds an event. An object's listener is in the table from when the object
//! is made until it has gone; nothing is told of it once [`Listeners`] has returned it, because all is
//! told under the table's lock: libibverbs dereferences the cookie that a record carries.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use card_driver::lock::lock;
use card_driver::spans::Span;
use fpga_regs::engine::doorbell::record;
use fpga_regs::engine::event::{Event, EventType, QpEvent};
use hostmem::SharedMapping;

use crate::channels::{Key, RecordSocket, Sent, async_record, completion_record};
use crate::process::{ClientId, Process};

/// `ibv_event_type`, as far as the codes are not those of [`QpEvent`].
pub mod ibv_event {
    /// A completion queue overran.
    pub const CQ_ERR: u32 = 0;
    /// A queue pair is in ERR.
    pub const QP_FATAL: u32 = 1;
    /// The device is gone.
    pub const DEVICE_FATAL: u32 = 8;
    /// The port came up.
    pub const PORT_ACTIVE: u32 = 9;
    /// The port went down.
    pub const PORT_ERR: u32 = 10;
    /// A shared receive queue fell below its limit.
    pub const SRQ_LIMIT_REACHED: u32 = 15;
    /// The GID table has changed.
    pub const GID_CHANGE: u32 = 18;
}

/// The one port of a card, as port events name it.
const PORT: u64 = 1;

/// balboad's end of a completion channel, which its completion queues share.
pub type Records = Arc<RecordSocket<8>>;

/// An open context, as the sender of its asynchronous events knows it.
#[derive(Debug)]
pub struct ContextEvents {
    /// Its process.
    pub process: Process,
    /// The receiver of its asynchronous events.
    pub records: RecordSocket<16>,
}

/// The receiver of a queue's completion events.
#[derive(Debug)]
pub struct Notifier {
    /// The cookie of its records.
    pub cookie: u64,
    /// Its channel.
    pub records: Records,
    /// Event ring of the window in which the engine tells of it.
    pub vector: u8,
    /// The client's ring memory, and the queue's ring in it, which begins with its record.
    pub memory: Arc<SharedMapping>,
    /// See [`Self::memory`].
    pub ring: Span,
    /// The ring it had before, in whose record the client may still count, too.
    former: Option<Span>,
    /// Records sent on the channel, or kept for it, modulo 2^32.
    sent: u32,
}

impl Notifier {
    /// The receiver of a queue without events yet.
    #[must_use]
    pub fn new(
        cookie: u64,
        records: Records,
        vector: u8,
        memory: Arc<SharedMapping>,
        ring: Span,
    ) -> Self {
        Self { cookie, records, vector, memory, ring, former: None, sent: 0 }
    }

    /// Records of the queue that the client has read, as far as a ring's record tells.
    fn read(&self, ring: Span) -> Option<u32> {
        let ring = usize::try_from(ring.start).unwrap_or(usize::MAX);
        self.memory.load_acquire_u32(ring.saturating_add(record::EVENTS_READ)).ok()
    }

    /// The queue fired: at most one unread record of it is ever in its channel.
    fn fire(&mut self, cqn: u32) {
        // The number only grows: where either of them says that all were read, they were. A client that
        // counts wrongly gets too few records, and is the only one to suffer.
        let mut rings = [Some(self.ring), self.former].into_iter().flatten();
        if !rings.any(|ring| self.read(ring) == Some(self.sent)) {
            log::trace!("CQ {cqn:#x}: fired with less than {} records read", self.sent);
            return;
        }
        let record = completion_record(self.cookie);
        if self.records.send(Key::Cq(cqn), record) == Sent::Yes {
            self.sent = self.sent.wrapping_add(1);
        }
    }
}

/// How many objects have listeners.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectCount {
    /// Completion queues.
    pub cqs: usize,
    /// Queue pairs, and handles of XRC targets.
    pub qps: usize,
    /// Shared receive queues.
    pub srqs: usize,
}

/// Numbers of queues, by their kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueNumbers {
    /// Numbers of queue pairs.
    pub qps: BTreeSet<u32>,
    /// Numbers of shared receive queues.
    pub srqs: BTreeSet<u32>,
}

/// The receiver of an object's asynchronous events.
#[derive(Debug)]
struct Listener {
    cookie: u64,
    context: Arc<ContextEvents>,
    /// Records sent on the asynchronous event socket, modulo 2^32.
    sent: u32,
    /// A fatal event of it was sent since it last left ERR.
    failed: bool,
}

impl Listener {
    fn new(cookie: u64, context: &Arc<ContextEvents>) -> Self {
        Self { cookie, context: Arc::clone(context), sent: 0, failed: false }
    }

    fn tell(&mut self, key: Key, event_type: u32) {
        if self.context.records.send(key, async_record(self.cookie, event_type)) == Sent::Yes {
            self.sent = self.sent.wrapping_add(1);
        }
    }

    /// Tells that a queue pair is in ERR, once.
    fn fail(&mut self, key: Key) {
        if !std::mem::replace(&mut self.failed, true) {
            self.tell(key, ibv_event::QP_FATAL);
        }
    }

    /// Records that were sent on the socket, once those that were not are dropped.
    fn end(self, key: Key) -> u32 {
        self.sent.wrapping_sub(self.context.records.forget(key))
    }
}

/// Records that a program has been sent of an object that has gone, modulo 2^32: libibverbs waits
/// until as many are acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SentRecords {
    /// On its completion channel.
    pub completion_events: u32,
    /// On the asynchronous event socket.
    pub async_events: u32,
}

/// The listeners of a window.
#[derive(Debug)]
pub struct Listeners {
    card: u32,
    window: u8,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// Completion queues by number, those with a channel with where their completions go.
    cqs: BTreeMap<u32, (Listener, Option<Notifier>)>,
    qps: BTreeMap<u32, Listener>,
    /// XRC targets by number, each as often as it has handles: whose, and its number.
    targets: BTreeMap<(u32, ClientId, u32), Listener>,
    /// Shared receive queues by number, each with its limit until that was told of.
    srqs: BTreeMap<u32, (Listener, u32)>,
    contexts: BTreeMap<(ClientId, u32), Arc<ContextEvents>>,
}

impl Table {
    /// The receivers of a QP's events, or of an XRC target's, and the names by which they know it.
    fn of_qp(&mut self, qpn: u32) -> impl Iterator<Item = (Key, &mut Listener)> {
        let own = self.qps.get_mut(&qpn).map(|listener| (Key::Qp(qpn), listener));
        let (first, last) = ((qpn, ClientId(0), 0), (qpn, ClientId(u64::MAX), u32::MAX));
        let handles = self.targets.range_mut(first..=last);
        own.into_iter().chain(handles.map(|((.., handle), it)| (Key::Target(*handle), it)))
    }

    fn has_target(&self, qpn: u32) -> bool {
        let (first, last) = ((qpn, ClientId(0), 0), (qpn, ClientId(u64::MAX), u32::MAX));
        self.targets.range(first..=last).next().is_some()
    }
}

impl Listeners {
    /// The receivers of an unused window.
    #[must_use]
    pub fn new(card: u32, window: u8) -> Self {
        Self { card, window, table: Mutex::default() }
    }

    /// Adds a context of a client.
    pub fn add_context(&self, client: ClientId, context: u32, events: Arc<ContextEvents>) {
        lock(&self.table).contexts.insert((client, context), events);
    }

    /// Takes a context out, whose objects have gone.
    pub fn remove_context(&self, client: ClientId, context: u32) {
        lock(&self.table).contexts.remove(&(client, context));
    }

    /// Adds a completion queue of a context.
    pub fn add_cq(
        &self,
        cqn: u32,
        cookie: u64,
        context: &Arc<ContextEvents>,
        notifier: Option<Notifier>,
    ) {
        lock(&self.table).cqs.insert(cqn, (Listener::new(cookie, context), notifier));
    }

    /// Records that a completion queue has moved to another ring, with `former` still at its place; or that it is gone.
    pub fn move_cq(&self, cqn: u32, ring: Span, former: Option<Span>) {
        if let Some((_, Some(notifier))) = lock(&self.table).cqs.get_mut(&cqn) {
            (notifier.ring, notifier.former) = (ring, former);
        }
    }

    /// Takes a completion queue out that has gone.
    pub fn remove_cq(&self, cqn: u32) -> SentRecords {
        let Some((listener, notifier)) = lock(&self.table).cqs.remove(&cqn) else {
            return SentRecords::default();
        };
        let key = Key::Cq(cqn);
        let forgotten =
            |notifier: Notifier| notifier.sent.wrapping_sub(notifier.records.forget(key));
        SentRecords {
            completion_events: notifier.map_or(0, forgotten),
            async_events: listener.end(key),
        }
    }

    /// Adds a queue pair of a context.
    pub fn add_qp(&self, qpn: u32, cookie: u64, context: &Arc<ContextEvents>) {
        lock(&self.table).qps.insert(qpn, Listener::new(cookie, context));
    }

    /// Takes a queue pair out that has gone.
    pub fn remove_qp(&self, qpn: u32) -> SentRecords {
        let listener = lock(&self.table).qps.remove(&qpn);
        let async_events = listener.map_or(0, |listener| listener.end(Key::Qp(qpn)));
        SentRecords { completion_events: 0, async_events }
    }

    /// A queue pair has left ERR: its next failure is told again.
    pub fn revive_qp(&self, qpn: u32) {
        for (_, listener) in lock(&self.table).of_qp(qpn) {
            listener.failed = false;
        }
    }

    /// Adds a handle of an XRC target: the cookie of its records, and its context.
    pub fn add_target(
        &self,
        qpn: u32,
        client: ClientId,
        handle: u32,
        cookie: u64,
        context: &Arc<ContextEvents>,
    ) {
        let listener = Listener::new(cookie, context);
        lock(&self.table).targets.insert((qpn, client, handle), listener);
    }

    /// Takes a handle of an XRC target out that has gone.
    pub fn remove_target(&self, qpn: u32, client: ClientId, handle: u32) -> SentRecords {
        let listener = lock(&self.table).targets.remove(&(qpn, client, handle));
        let async_events = listener.map_or(0, |listener| listener.end(Key::Target(handle)));
        SentRecords { completion_events: 0, async_events }
    }

    /// Tells that all XRC targets are lost: their holders may be clients of other windows.
    pub fn fail_targets(&self) {
        for ((.., handle), listener) in &mut lock(&self.table).targets {
            listener.fail(Key::Target(*handle));
        }
    }

    /// Adds a shared receive queue of a context.
    pub fn add_srq(&self, srqn: u32, cookie: u64, context: &Arc<ContextEvents>) {
        lock(&self.table).srqs.insert(srqn, (Listener::new(cookie, context), 0));
    }

    /// Takes a shared receive queue out that has gone.
    pub fn remove_srq(&self, srqn: u32) -> SentRecords {
        let removed = lock(&self.table).srqs.remove(&srqn);
        let async_events = removed.map_or(0, |(listener, _)| listener.end(Key::Srq(srqn)));
        SentRecords { completion_events: 0, async_events }
    }

    /// Records the limit of a shared receive queue, and drops events of the limit before.
    pub fn set_srq_limit(&self, srqn: u32, limit: u32) {
        if let Some((_, noted)) = lock(&self.table).srqs.get_mut(&srqn) {
            *noted = limit;
        }
    }

    /// The limit of a shared receive queue; 0 where it was told of, or where there is none.
    #[must_use]
    pub fn srq_limit(&self, srqn: u32) -> u32 {
        lock(&self.table).srqs.get(&srqn).map_or(0, |(_, limit)| *limit)
    }

    /// Whether there is a shared receive queue of that number.
    #[must_use]
    pub fn has_srq(&self, srqn: u32) -> bool {
        lock(&self.table).srqs.contains_key(&srqn)
    }

    /// Whether there is a completion queue of that number.
    #[must_use]
    pub fn has_cq(&self, cqn: u32) -> bool {
        lock(&self.table).cqs.contains_key(&cqn)
    }

    /// Whether there is a queue pair or an XRC target of that number.
    #[must_use]
    pub fn has_qp(&self, qpn: u32) -> bool {
        let table = lock(&self.table);
        table.qps.contains_key(&qpn) || table.has_target(qpn)
    }

    /// How many objects of each kind there are.
    #[must_use]
    pub fn count(&self) -> ObjectCount {
        let table = lock(&self.table);
        let qps = table.qps.len().saturating_add(table.targets.len());
        ObjectCount { cqs: table.cqs.len(), qps, srqs: table.srqs.len() }
    }

    /// The numbers of the completion queues that have a channel and are told of in these event rings, bit n for
    /// ring n.
    #[must_use]
    pub fn cqs_told_in(&self, rings: u8) -> BTreeSet<u32> {
        let is_told = |notifier: &Notifier| 1u8.wrapping_shl(notifier.vector.into()) & rings != 0;
        let table = lock(&self.table);
        let told =
            table.cqs.iter().filter(|(_, (_, notifier))| notifier.as_ref().is_some_and(is_told));
        told.map(|(cqn, _)| *cqn).collect()
    }

    /// The numbers of all queue pairs, and of all shared receive queues that have a limit.
    #[must_use]
    pub fn numbers(&self) -> QueueNumbers {
        let table = lock(&self.table);
        let limited = table.srqs.iter().filter(|(_, (_, limit))| *limit > 0);
        QueueNumbers {
            qps: table
                .qps
                .keys()
                .chain(table.targets.keys().map(|(qpn, ..)| qpn))
                .copied()
                .collect(),
            srqs: limited.map(|(srqn, _)| *srqn).collect(),
        }
    }

    /// Forgets all objects.
    pub fn clear(&self) {
        let mut table = lock(&self.table);
        table.cqs.clear();
        table.qps.clear();
        table.targets.clear();
        table.srqs.clear();
    }

    /// Reports an event of the engine.
    pub fn tell(&self, event: Event) {
        match event.kind {
            EventType::Completion => self.fire(event.number),
            EventType::Qp => self.tell_qp(event.number, QpEvent(event.code)),
            EventType::CqError => self.tell_cq_error(event.number),
            EventType::ReceiveLimit => self.tell_srq_limit(event.number),
            EventType::Port => {
                let up = event.code != 0;
                let state = if up { "up" } else { "down" };
                log::info!("balboa{} window {}: port {state}", self.card, self.window);
                self.tell_all(if up { ibv_event::PORT_ACTIVE } else { ibv_event::PORT_ERR });
            }
            EventType::Gid => self.tell_all(ibv_event::GID_CHANGE),
            _ => {
                let Self { card, window, .. } = self;
                log::warn!("balboa{card} window {window}: {event:?} is not passed on");
            }
        }
    }

    /// A completion queue fired.
    pub fn fire(&self, cqn: u32) {
        if let Some((_, Some(notifier))) = lock(&self.table).cqs.get_mut(&cqn) {
            notifier.fire(cqn);
        }
    }

    /// All completion queues may have fired.
    pub fn fire_all(&self) {
        for (cqn, (_, notifier)) in &mut lock(&self.table).cqs {
            if let Some(notifier) = notifier {
                notifier.fire(*cqn);
            }
        }
    }

    fn tell_qp(&self, qpn: u32, what: QpEvent) {
        let mut table = lock(&self.table);
        for (key, listener) in table.of_qp(qpn) {
            self.tell_of_qp(qpn, what, key, listener);
        }
    }

    fn tell_of_qp(&self, qpn: u32, what: QpEvent, key: Key, listener: &mut Listener) {
        let Process { pid, command, .. } = &listener.context.process;
        if what.name().is_none() {
            return log::warn!(
                client = *pid;
                "QP {qpn:#x}: event code {} is unknown and not passed on",
                what.0
            );
        }
        if what == QpEvent::Fatal {
            // The completion that tells of it is the peer's.
            log::warn!(
                client = *pid;
                "{command} ({pid}): QP {qpn:#x} of balboa{} is in ERR: its peer has a key to memory that the card cannot reach",
                self.card
            );
            return listener.fail(key);
        }
        log::debug!("{command} ({pid}): QP {qpn:#x}: {what:?}");
        // The codes of QP events are those of `ibv_event_type`.
        listener.tell(key, u32::from(what.0));
    }

    /// A queue pair is in ERR, and the event that told of it may be lost.
    pub fn fail_qp(&self, qpn: u32) {
        for (key, listener) in lock(&self.table).of_qp(qpn) {
            listener.fail(key);
        }
    }

    fn tell_cq_error(&self, cqn: u32) {
        let mut table = lock(&self.table);
        let Some((listener, _)) = table.cqs.get_mut(&cqn) else { return };
        let Process { pid, command, .. } = &listener.context.process;
        log::warn!(client = *pid; "{command} ({pid}): completion queue {cqn:#x} overran");
        listener.tell(Key::Cq(cqn), ibv_event::CQ_ERR);
    }

    fn tell_srq_limit(&self, srqn: u32) {
        let mut table = lock(&self.table);
        let Some((listener, limit)) = table.srqs.get_mut(&srqn) else { return };
        *limit = 0;
        listener.tell(Key::Srq(srqn), ibv_event::SRQ_LIMIT_REACHED);
    }

    /// Tells every context of an event of port or device, which is an `ibv_event_type`.
    pub fn tell_all(&self, event_type: u32) {
        for context in lock(&self.table).contexts.values() {
            context.records.send(Key::Device, async_record(PORT, event_type));
        }
    }
}

const _: () = assert!(QpEvent::Fatal.0 as u32 == ibv_event::QP_FATAL);
