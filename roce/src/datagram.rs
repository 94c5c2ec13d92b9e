//! Unreliable Datagram: queue pairs whose messages each name whom they are for, and the address handles
//! that say where that is.
//!
//! A message is one packet, and nobody answers it. It is complete when its packet was made. One whose
//! address handle knows no Ethernet address yet waits a while, with those behind it, for they keep their
//! order; where nobody has answered for [`param::DATAGRAM_PATIENCE`] since the handle was made, messages
//! are dropped at once until somebody does.

use std::collections::{BTreeSet, VecDeque};

use crate::api::{AsyncKind, DatagramRequest, Event, ReceiveStatus, SendStatus};
use crate::attributes::{QpAttributes, QpSnapshot};
use crate::counters::{QpCounters, add, bump};
use crate::log::EffectKind;
use crate::opcode::code;
use crate::param;
use crate::path::Path;
use crate::psn::Psn;
use crate::qp::{Shared, pad};
use crate::state::QpState;
use crate::types::{Instant, Qpn};
use crate::wire::bth;

/// In a message's Q_Key: its queue pair's own is to be sent.
const OWN_QKEY: u32 = 1 << 31;

/// Where datagrams go.
#[derive(Debug)]
pub(crate) struct Handle {
    /// Whose it is.
    pub client: u8,
    pub path: Path,
    /// Until then messages wait for the peer's Ethernet address.
    pub patient_until: Instant,
    /// When to ask next whether that address is still right.
    pub next_check: Instant,
    /// Slots of the queue pairs that wait for it.
    pub waiting: BTreeSet<u32>,
}

impl Handle {
    /// A handle that was just made.
    pub(crate) fn new(client: u8, path: Path, now: Instant) -> Self {
        Self {
            client,
            path,
            patient_until: now.after(param::DATAGRAM_PATIENCE),
            next_check: now.after(param::DATAGRAM_CHECK_INTERVAL),
            waiting: BTreeSet::new(),
        }
    }
}

/// A queue pair of Unreliable Datagram.
#[derive(Debug)]
pub(crate) struct DatagramQp {
    pub qpn: Qpn,
    /// Whose it is.
    pub client: u8,
    /// Its place in the stack's table.
    pub slot: u32,
    /// Changes with every reset, so that what belongs to an earlier life is recognised.
    pub generation: u32,
    pub state: QpState,
    pub qkey: u32,
    pkey_index: u16,
    psn: Psn,
    /// Messages that were not sent, oldest first.
    messages: VecDeque<DatagramRequest>,
    /// The number of the first of them.
    next: u64,
    /// The number of the oldest that is not complete: from it on to `next` packets are being made.
    oldest: u64,
    /// The slot of the address handle that it waits for.
    pub waits_for: Option<u32>,
    /// Whether the slot stands in the ready queue.
    pub queued: bool,
    /// Whether the drained event of this stay in SQD was reported.
    drained: bool,
    pub counters: QpCounters,
}

impl DatagramQp {
    /// Bytes that are kept of a message until its packet is made.
    pub(crate) const MESSAGE_BYTES: usize = size_of::<DatagramRequest>();

    /// A queue pair in RESET.
    pub(crate) fn new(qpn: Qpn, client: u8, slot: u32, generation: u32) -> Self {
        Self {
            qpn,
            client,
            slot,
            generation,
            state: QpState::Reset,
            qkey: 0,
            pkey_index: 0,
            psn: Psn::default(),
            messages: VecDeque::new(),
            next: 0,
            oldest: 0,
            waits_for: None,
            queued: false,
            drained: false,
            counters: QpCounters::default(),
        }
    }

    /// Puts the QP into the ready queue.
    pub(crate) fn make_ready(&mut self, shared: &mut Shared) {
        if !self.queued {
            self.queued = true;
            shared.ready.push_back(self.slot);
        }
    }

    fn emit(&self, shared: &mut Shared, event: Event) {
        shared.log.emit(self.slot, self.generation, event);
    }

    /// Enters a state other than RESET with the attributes of a change that was checked.
    pub(crate) fn change(&mut self, shared: &mut Shared, to: QpState, change: &QpAttributes) {
        self.qkey = change.qkey.unwrap_or(self.qkey);
        self.pkey_index = change.pkey_index.unwrap_or(self.pkey_index);
        self.psn = change.sq_psn.unwrap_or(self.psn);
        let from = core::mem::replace(&mut self.state, to);
        match (from, to) {
            (QpState::Err, QpState::Err) => {}
            // UD-15
            (_, QpState::Err) => {
                self.forget_messages();
                self.emit(shared, Event::EnteredError { qpn: self.qpn });
            }
            // UD-14
            (QpState::Rts, QpState::Sqd) => {
                self.drained = false;
                self.check_drained(shared);
            }
            _ => self.make_ready(shared),
        }
    }

    /// The attributes as they are now.
    pub(crate) fn snapshot(&self) -> QpSnapshot {
        QpSnapshot {
            state: self.state,
            sq_draining: self.state == QpState::Sqd && self.oldest != self.next,
            sq_psn: self.psn,
            qkey: self.qkey,
            pkey_index: self.pkey_index,
            ..QpSnapshot::default()
        }
    }

    /// How many more messages it takes now.
    pub(crate) fn room(&self) -> usize {
        param::SEND_RING.saturating_sub(self.messages.len())
    }

    /// Adds a message, for which there is room, and gives its number.
    pub(crate) fn post(&mut self, request: DatagramRequest) -> u64 {
        let number = self.next.wrapping_add(self.messages.len() as u64);
        self.messages.push_back(request);
        number
    }

    /// Gives room back of which three quarters are empty.
    pub(crate) fn narrow(&mut self) {
        let mut room = self.messages.capacity();
        while room > param::KEPT_MESSAGES && self.messages.len() <= room / 4 {
            room = (room / 2).max(param::KEPT_MESSAGES);
        }
        self.messages.shrink_to(room);
    }

    /// The message whose turn it is.
    pub(crate) fn head(&self) -> Option<DatagramRequest> {
        // UD-14
        let message = self.messages.front().filter(|_| self.state.begins_messages());
        message.copied()
    }

    /// The Base Transport Header of the packet of a message.
    pub(crate) fn transport_header(&self, request: &DatagramRequest) -> bth::Repr {
        let opcode =
            if request.imm.is_some() { code::UD_SEND_ONLY_IMM } else { code::UD_SEND_ONLY };
        // UD-2, UD-4
        bth::Repr {
            opcode,
            solicited: request.solicited,
            migrated: true,
            pad_count: pad(request.length),
            pkey: param::DEFAULT_PKEY,
            dest_qpn: request.dest_qpn.value(),
            psn: self.psn,
            ..bth::Repr::default()
        }
    }

    /// The Q_Key that the packet of a message has.
    pub(crate) fn qkey_of(&self, request: &DatagramRequest) -> u32 {
        // UD-3
        if request.qkey & OWN_QKEY != 0 { self.qkey } else { request.qkey }
    }

    /// The packet of the message whose turn it was is being made; gives the number of the message.
    pub(crate) fn sent(&mut self, shared: &mut Shared) -> u64 {
        bump(&mut shared.counters.sent_pkts);
        bump(&mut self.counters.sent_pkts);
        self.psn = self.psn.add(1);
        self.advance()
    }

    /// Drops the message whose turn it was. It is complete behind those before it.
    pub(crate) fn drop_head(&mut self, shared: &mut Shared) {
        // UD-8
        bump(&mut shared.counters.drop_no_neighbour);
        if self.advance() == self.oldest {
            self.complete(shared, self.next);
        }
    }

    fn advance(&mut self) -> u64 {
        self.messages.pop_front();
        let number = self.next;
        self.next = number.wrapping_add(1);
        number
    }

    /// Its packets have been made.
    pub(crate) fn settle(&mut self, shared: &mut Shared) {
        // UD-6
        self.complete(shared, self.next);
        self.check_drained(shared);
    }

    /// Completes the messages before `end`.
    fn complete(&mut self, shared: &mut Shared, end: u64) {
        let count = end.saturating_sub(self.oldest);
        if count == 0 {
            return;
        }
        self.oldest = end;
        add(&mut shared.counters.rdma_sends, count);
        let through = end.wrapping_sub(1);
        self.emit(shared, Event::SendsCompleted { qpn: self.qpn, through });
    }

    /// The payload of a message could not be read: it fails, behind those before it, and with it all
    /// that were posted behind it.
    pub(crate) fn unreadable(&mut self, shared: &mut Shared, message: u64) {
        if !(self.oldest..self.next).contains(&message) || self.state == QpState::Err {
            return;
        }
        // UD-13
        self.complete(shared, message);
        bump(&mut shared.counters.req_cqe_error);
        let (qpn, status) = (self.qpn, SendStatus::LocalProtection);
        self.emit(shared, Event::SendFailed { qpn, message, status });
        self.state = QpState::Sqe;
        self.forget_messages();
    }

    fn forget_messages(&mut self) {
        self.next = self.next.wrapping_add(self.messages.len() as u64);
        self.oldest = self.next;
        self.messages = VecDeque::new();
    }

    fn check_drained(&mut self, shared: &mut Shared) {
        if self.state == QpState::Sqd && !self.drained && self.oldest == self.next {
            self.drained = true;
            let kind = AsyncKind::SqDrained;
            self.emit(shared, Event::Async { qpn: self.qpn, kind });
        }
    }

    /// A receive request that was taken cannot hold the message.
    pub(crate) fn fail_short_receive(&self, shared: &mut Shared, id: u64) {
        // UD-12
        bump(&mut shared.counters.resp_local_length_error);
        bump(&mut shared.counters.resp_cqe_error);
        let status = ReceiveStatus::LocalLength;
        self.emit(shared, Event::ReceiveFailed { qpn: self.qpn, id, status });
    }

    /// A message fills a receive request by `count` placements, the first of which has that number.
    pub(crate) fn take_message(
        &self,
        shared: &mut Shared,
        (first, count): (usize, u8),
        (id, received): (u64, Event),
    ) {
        let kind = EffectKind::PlacedDatagram { first, count, receive: id };
        shared.log.push(self.slot, self.generation, kind);
        self.emit(shared, received);
    }
}
