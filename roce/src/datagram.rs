//! Unreliable Datagram: its queue pairs, whose messages each name a destination, and the address handles with the
//! paths.
//!
//! A message is one packet, without an answer. It is complete when its packet was made. One whose
//! address handle knows no Ethernet address yet waits a while, with those behind it, for they keep their
//! order; if the peer has not answered for [`param::DATAGRAM_PATIENCE`] since the handle was made, messages are dropped
//! at once until it answers.

use core::ops::Range;
use core::task::{Poll, ready};
use std::collections::BTreeSet;

use fpga_regs::engine::qp::QpState;

use crate::api::{
    DatagramRequest, Event, GRH_LENGTH, Placement, ReceiveError, ReceiveKind, ReceiveStatus,
    ResponderMemory, Sink,
};
use crate::attributes::{QpAttributes, QpSnapshot};
use crate::counters::{add, bump};
use crate::drops::{self, Reason};
use crate::error::PostError;
use crate::incoming::{Envelope, Incoming};
use crate::log::{EffectKind, Taken};
use crate::opcode::{Class, code};
use crate::param;
use crate::path::Path;
use crate::psn::Psn;
use crate::qp::{QpCore, Shared, transport_header};
use crate::types::{Gid, Instant, PathMtu};
use crate::unanswered::Unanswered;
use crate::wire::{bth, frame, ipv4, ipv6, udp};

/// The bit of a message's Q_Key that selects the queue pair's own.
const OWN_QKEY: u32 = 1 << 31;

/// Where datagrams go.
#[derive(Debug)]
pub(crate) struct Handle {
    /// The client that owns it.
    pub client: u16,
    pub path: Path,
    /// The most that goes there, a code of `ibv_rate`.
    pub static_rate: u8,
    /// Until then messages wait for the peer's Ethernet address.
    pub patient_until: Instant,
    /// When to ask next whether that address is still right.
    pub next_check: Instant,
    /// Slots of the queue pairs that wait for it.
    pub waiting: BTreeSet<u32>,
}

impl Handle {
    /// A handle that was just made.
    pub(crate) fn new(client: u16, path: Path, static_rate: u8, now: Instant) -> Self {
        Self {
            client,
            path,
            static_rate,
            patient_until: now.after(param::DATAGRAM_PATIENCE),
            next_check: now.after(param::DATAGRAM_CHECK_INTERVAL),
            waiting: BTreeSet::new(),
        }
    }
}

/// A queue pair of Unreliable Datagram.
#[derive(Debug)]
pub(crate) struct UdQp {
    pub core: QpCore,
    psn: Psn,
    pub sends: Unanswered<DatagramRequest>,
    /// The multicast groups that it is in, in all its lives.
    pub groups: BTreeSet<Gid>,
    /// The slot of the address handle that it waits for.
    pub waits_for: Option<u32>,
    /// The address handle whose priority it has.
    pub aimed: Option<u32>,
}

impl UdQp {
    /// Bytes that are kept of a message until its packet is made.
    pub(crate) const MESSAGE_BYTES: usize = size_of::<DatagramRequest>();

    /// A queue pair in RESET.
    pub(crate) fn new(core: QpCore) -> Self {
        Self {
            core,
            psn: Psn::default(),
            sends: Unanswered::default(),
            groups: BTreeSet::new(),
            waits_for: None,
            aimed: None,
        }
    }

    /// Enters a state other than RESET, with the attributes of a change.
    pub(crate) fn change(&mut self, shared: &mut Shared, to: QpState, change: &QpAttributes) {
        self.psn = change.sq_psn.unwrap_or(self.psn);
        match (core::mem::replace(&mut self.core.attributes.state, to), to) {
            (QpState::Err, QpState::Err) => {}
            // UD-15
            (_, QpState::Err) => {
                self.sends.forget();
                self.core.set_timer(shared, None);
                self.core.emit(shared, Event::EnteredError { qpn: self.core.qpn });
            }
            // UD-14
            (QpState::Rts, QpState::Sqd) => {
                self.core.begin_to_drain(shared, self.sends.is_settled());
            }
            _ => self.core.make_ready(shared),
        }
    }

    /// Takes a message of at most `most` bytes, and gives its number.
    pub(crate) fn post(
        &mut self,
        shared: &mut Shared,
        request: DatagramRequest,
        most: u32,
    ) -> Result<u64, PostError> {
        let (qpn, state) = (self.core.qpn, self.core.state());
        if !state.sends_requests() {
            return Err(PostError::State { qpn, state });
        }
        // UD-1
        if request.length > most {
            return Err(PostError::TooLong(request.length));
        }
        self.sends.post(&mut self.core, shared, request)
    }

    /// The attributes as they are now.
    pub(crate) fn snapshot(&self) -> QpSnapshot {
        QpSnapshot {
            sq_draining: self.core.state() == QpState::Sqd && !self.sends.is_settled(),
            sq_psn: self.psn,
            ..self.core.attributes
        }
    }

    /// The message whose turn it is, and its number.
    pub(crate) fn head(&self) -> Option<(DatagramRequest, u64)> {
        // UD-14
        self.sends.head().filter(|_| self.core.state().begins_messages())
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
        if request.qkey & OWN_QKEY != 0 { self.core.attributes.qkey } else { request.qkey }
    }

    /// The packet of the message whose turn it was is being made.
    pub(crate) fn sent(&mut self, shared: &mut Shared) {
        self.core.count_sent(shared);
        self.psn = self.psn.add(1);
        self.sends.advance();
    }

    /// Drops the message whose turn it was.
    pub(crate) fn drop_head(&mut self, shared: &mut Shared) {
        self.sends.drop_head(&self.core, shared);
    }

    /// Its packets have been made.
    pub(crate) fn settle(&mut self, shared: &mut Shared) {
        self.sends.settle(&self.core, shared);
        self.core.check_drained(shared, self.sends.is_settled());
    }

    /// The payload of a message could not be read.
    pub(crate) fn unreadable(&mut self, shared: &mut Shared, message: u64) {
        if self.core.state() != QpState::Err && self.sends.fail(&self.core, shared, message) {
            self.core.attributes.state = QpState::Sqe;
        }
    }

    /// A receive request that was taken cannot hold the message.
    fn fail_short_receive(&self, shared: &mut Shared, id: u64) {
        // UD-12
        bump(&mut shared.counters.resp_local_length_error);
        self.core.fail_receive(shared, Taken { srqn: None, id }, ReceiveStatus::LocalLength);
    }

    /// Why a packet cannot be for the queue pair, if it cannot.
    // UD-10
    pub(crate) fn hears(&self, packet: &frame::Repr, most: PathMtu) -> Result<(), Reason> {
        // RC-12
        if !bth::pkeys_match(packet.bth.pkey, param::DEFAULT_PKEY) {
            return Err(Reason::BadPkey);
        }
        match packet.deth {
            _ if !self.core.state().receives_unreliable() => Err(Reason::WrongState),
            Some(_) if packet.opcode.class != Class::Datagram => Err(Reason::BadOpcode),
            None => Err(Reason::BadOpcode),
            Some(deth) if deth.qkey != self.core.attributes.qkey => Err(Reason::BadQkey),
            Some(_) if packet.payload.len() > most.bytes() as usize => Err(Reason::Oversized),
            Some(_) => Ok(()),
        }
    }

    /// Takes a packet.
    pub(crate) fn receive(
        &mut self,
        shared: &mut Shared,
        incoming: &Incoming<'_>,
        memory: &mut impl ResponderMemory,
    ) -> Poll<()> {
        let Incoming { envelope, packet, place, .. } = *incoming;
        let qpn = self.core.qpn;
        let receive = match ready!(memory.take_receive(qpn.into())) {
            Ok(receive) => receive,
            Err(error) => {
                drops::count(
                    &mut shared.counters,
                    match error {
                        // UD-11
                        ReceiveError::Empty | ReceiveError::NoSrq => Reason::NoReceive,
                        ReceiveError::Invalid => Reason::UnusableReceive,
                    },
                );
                return Poll::Ready(());
            }
        };
        let bytes = packet.payload.len();
        let length = GRH_LENGTH.wrapping_add(bytes as u32);
        if u64::from(length) > receive.capacity {
            self.fail_short_receive(shared, receive.id);
            return Poll::Ready(());
        }
        bump(&mut shared.counters.rdma_recvs);
        add(&mut shared.counters.rcvd_bytes, bytes as u64);
        let (frame_index, sink) = (place.frame_index, Sink::Receive { id: receive.id });
        let mut put = |offset, range| {
            shared.log.place(Placement { qpn, srqn: None, sink, offset, frame_index, range })
        };
        let (offset, range) = network_header(envelope);
        let first = put(offset, range);
        if bytes != 0 {
            let start = place.payload_start;
            put(GRH_LENGTH.into(), start..start.wrapping_add(bytes));
        }
        let count = if bytes == 0 { 1 } else { 2 };
        let kind = EffectKind::PlacedDatagram { first, count, receive: receive.id };
        self.core.push_effect(shared, kind);
        let received = Event::ReceiveCompleted {
            qpn,
            srqn: None,
            id: receive.id,
            length,
            kind: ReceiveKind::Send,
            imm: packet.immediate,
            solicited: packet.bth.solicited,
            source_qpn: packet.deth.map(|deth| deth.source_qpn),
        };
        self.core.emit(shared, received);
        Poll::Ready(())
    }
}

/// Where a packet's network header lies in its frame, and where in a receive: its end where the GRH's
/// is.
fn network_header(envelope: &Envelope) -> (u64, Range<usize>) {
    let is_ipv4 = envelope.flow.source.as_ipv4().is_some();
    let length = if is_ipv4 { ipv4::LENGTH } else { ipv6::LENGTH };
    let end = envelope.payload.start.wrapping_sub(udp::LENGTH);
    // UD-17
    let offset = u64::from(GRH_LENGTH).wrapping_sub(length as u64);
    (offset, end.wrapping_sub(length)..end)
}
