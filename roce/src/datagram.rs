//! Unreliable Datagram: queue pairs whose messages each name whom they are for, and the address handles
//! that say where that is.
//!
//! A message is one packet, and nobody answers it. It is complete when its packet was made. One whose
//! address handle knows no Ethernet address yet waits a while, with those behind it, for they keep their
//! order; where nobody has answered for [`param::DATAGRAM_PATIENCE`] since the handle was made, messages
//! are dropped at once until somebody does.

use std::collections::BTreeSet;

use crate::api::{DatagramRequest, Event, QpEvent, ReceiveStatus};
use crate::attributes::{QpAttributes, QpSnapshot};
use crate::counters::{QpCounters, bump};
use crate::log::EffectKind;
use crate::opcode::code;
use crate::param;
use crate::path::Path;
use crate::psn::Psn;
use crate::qp::{Shared, transport_header};
use crate::state::QpState;
use crate::types::{Gid, Instant, Qpn};
use crate::unanswered::{Sender, Unanswered};
use crate::wire::bth;

/// In a message's Q_Key: its queue pair's own is to be sent.
const OWN_QKEY: u32 = 1 << 31;

/// Where datagrams go.
#[derive(Debug)]
pub(crate) struct Handle {
    /// Whose it is.
    pub client: u16,
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
    pub(crate) fn new(client: u16, path: Path, now: Instant) -> Self {
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
    pub client: u16,
    /// Its place in the stack's table.
    pub slot: u32,
    /// Changes with every reset, so that what belongs to an earlier life is recognised.
    pub generation: u32,
    pub state: QpState,
    pub qkey: u32,
    pkey_index: u16,
    psn: Psn,
    pub sends: Unanswered<DatagramRequest>,
    /// The multicast groups that it is in, in all its lives.
    pub groups: BTreeSet<Gid>,
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
    pub(crate) fn new(qpn: Qpn, client: u16, slot: u32, generation: u32) -> Self {
        Self {
            qpn,
            client,
            slot,
            generation,
            state: QpState::Reset,
            qkey: 0,
            pkey_index: 0,
            psn: Psn::default(),
            sends: Unanswered::default(),
            groups: BTreeSet::new(),
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

    fn sender(&self) -> Sender {
        let Self { qpn, slot, generation, .. } = *self;
        Sender { qpn, slot, generation }
    }

    fn emit(&self, shared: &mut Shared, event: Event) {
        self.sender().emit(shared, event);
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
                self.sends.forget();
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
            sq_draining: self.state == QpState::Sqd && !self.sends.is_settled(),
            sq_psn: self.psn,
            qkey: self.qkey,
            pkey_index: self.pkey_index,
            ..QpSnapshot::default()
        }
    }

    /// The message whose turn it is, and its number.
    pub(crate) fn head(&self) -> Option<(DatagramRequest, u64)> {
        // UD-14
        self.sends.head().filter(|_| self.state.begins_messages())
    }

    /// The Base Transport Header of the packet of a message.
    pub(crate) fn transport_header(&self, request: &DatagramRequest) -> bth::Repr {
        let opcode =
            if request.imm.is_some() { code::UD_SEND_ONLY_IMM } else { code::UD_SEND_ONLY };
        // UD-2, UD-4
        let transport =
            transport_header(request.dest_qpn.value(), opcode, self.psn, request.length);
        bth::Repr { solicited: request.solicited, ..transport }
    }

    /// The Q_Key that the packet of a message has.
    pub(crate) fn qkey_of(&self, request: &DatagramRequest) -> u32 {
        // UD-3
        if request.qkey & OWN_QKEY != 0 { self.qkey } else { request.qkey }
    }

    /// The packet of the message whose turn it was is being made.
    pub(crate) fn sent(&mut self, shared: &mut Shared) {
        bump(&mut shared.counters.sent_pkts);
        bump(&mut self.counters.sent_pkts);
        self.psn = self.psn.add(1);
        self.sends.advance();
    }

    /// Drops the message whose turn it was.
    pub(crate) fn drop_head(&mut self, shared: &mut Shared) {
        self.sends.drop_head(self.sender(), shared);
    }

    /// Its packets have been made.
    pub(crate) fn settle(&mut self, shared: &mut Shared) {
        self.sends.settle(self.sender(), shared);
        self.check_drained(shared);
    }

    /// The payload of a message could not be read.
    pub(crate) fn unreadable(&mut self, shared: &mut Shared, message: u64) {
        if self.state != QpState::Err && self.sends.fail(self.sender(), shared, message) {
            self.state = QpState::Sqe;
        }
    }

    fn check_drained(&mut self, shared: &mut Shared) {
        if self.state == QpState::Sqd && !self.drained && self.sends.is_settled() {
            self.drained = true;
            let kind = QpEvent::SqDrained;
            self.emit(shared, Event::Async { qpn: self.qpn, kind });
        }
    }

    /// A receive request that was taken cannot hold the message.
    pub(crate) fn fail_short_receive(&self, shared: &mut Shared, id: u64) {
        // UD-12
        bump(&mut shared.counters.resp_local_length_error);
        bump(&mut shared.counters.resp_cqe_error);
        let status = ReceiveStatus::LocalLength;
        self.emit(shared, Event::ReceiveFailed { qpn: self.qpn, srqn: None, id, status });
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
