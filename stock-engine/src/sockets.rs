//! Queue pairs of datagrams of a vFPGA, and their address handles.
//!
//! A datagram is complete when it is on its way; no acknowledgement follows. One for no queue pair, with another
//! Q_Key, or without a receive is dropped, and counted.

use std::collections::{BTreeMap, VecDeque};

use fpga_regs::engine::admin::{AdminStatus, CreateAh};
use fpga_regs::engine::cqe::Status;
use fpga_regs::engine::event::QpEvent;
use fpga_regs::engine::qp::{AttributeMask, Attributes, QpState};
use fpga_regs::engine::tunnel::{DATAGRAM_PAYLOAD, DatagramHeader, SlotFlags};
use queue_engine::{
    Message, Payload, ReceiveKind, ReceivedMessage, TransportError, TransportEvent, WqeOperation,
};
use tunnel::{Datagram, Host};

use crate::exchange::{Departure, Exchange, Source};
use crate::param::{DATAGRAM_QPS, DATAGRAM_TURN, MESSAGES};
use crate::verbs::merge;

/// In a message's Q_Key: its queue pair's own is meant.
const OWN_QKEY: u32 = 1 << 31;
/// Bytes of the GRH that a receive has before a datagram's payload.
const GRH: u32 = 40;

/// Counts of datagrams, for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramTally {
    /// Datagrams that were sent.
    pub sent: u64,
    /// Datagrams that filled a receive.
    pub received: u64,
    /// Datagrams that came for no queue pair, or with another Q_Key.
    pub refused: u64,
    /// Datagrams for which there was no receive.
    pub unreceived: u64,
    /// Datagrams whose receive was too short, or led to no memory.
    pub failed: u64,
    /// Datagrams to a card that takes none, or to which no datagram moves, or that may be lost.
    pub undelivered: u64,
}

/// Where datagrams go.
#[derive(Clone, Copy, Debug)]
struct Handle {
    peer: u32,
    hop_limit: u8,
    traffic_class: u8,
}

/// A queue pair of datagrams.
#[derive(Debug, Default)]
struct Socket {
    attributes: Attributes,
    /// Oldest first.
    messages: VecDeque<Message>,
    /// The number of the next message.
    next: u64,
    /// It stands in line.
    queued: bool,
}

impl Socket {
    fn fail(&mut self, state: QpState) {
        self.messages.clear();
        self.attributes.state = state;
    }

    fn receives(&self) -> bool {
        self.attributes.state.receives_unreliable()
    }
}

/// The outcome of an attempt to send.
enum SendOutcome {
    Sent,
    /// The way is full.
    Waits,
    Failed,
}

/// The queue pairs of datagrams of a vFPGA.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    of: BTreeMap<u32, Socket>,
    handles: BTreeMap<u32, Handle>,
    /// Those that have something to send, each once.
    line: VecDeque<u32>,
    pub(crate) tally: DatagramTally,
}

impl Sockets {
    pub(crate) fn has(&self, qpn: u32) -> bool {
        self.of.contains_key(&qpn)
    }

    pub(crate) fn len(&self) -> usize {
        self.of.len()
    }

    /// A free QPN.
    pub(crate) fn name(&self, exchange: &Exchange, vfpga: u8) -> Result<u32, AdminStatus> {
        if self.of.len() >= DATAGRAM_QPS {
            return Err(AdminStatus::NoResources);
        }
        let mut qpn = exchange.name(vfpga);
        while self.of.contains_key(&qpn) {
            qpn = exchange.name(vfpga);
        }
        Ok(qpn)
    }

    pub(crate) fn create(&mut self, qpn: u32) {
        self.of.insert(qpn, Socket::default());
    }

    /// Forgets a queue pair; whether there was such a one.
    pub(crate) fn destroy(&mut self, qpn: u32) -> bool {
        self.of.remove(&qpn).is_some()
    }

    /// Forgets everything.
    pub(crate) fn reset(&mut self) {
        *self = Self { tally: self.tally, ..Self::default() };
    }

    /// Applies attributes; the event to report.
    pub(crate) fn modify(&mut self, qpn: u32, change: &Attributes) -> Option<TransportEvent> {
        let socket = self.of.get_mut(&qpn)?;
        let from = socket.attributes.state;
        merge(&mut socket.attributes, change);
        let to = if change.mask.contains(AttributeMask::STATE) { change.state } else { from };
        match to {
            QpState::Reset => *socket = Socket { queued: socket.queued, ..Socket::default() },
            QpState::Err => socket.fail(QpState::Err),
            // All that was begun is complete.
            QpState::Sqd if from != to => {
                let event = QpEvent::SqDrained;
                return Some(TransportEvent::Async { qpn, event });
            }
            _ => self.stand(qpn),
        }
        None
    }

    pub(crate) fn query(&self, qpn: u32) -> Option<Attributes> {
        Some(self.of.get(&qpn)?.attributes)
    }

    pub(crate) fn room(&self, qpn: u32) -> usize {
        self.of.get(&qpn).map_or(0, |it| MESSAGES.saturating_sub(it.messages.len()))
    }

    /// Whether a queue pair has something to send, and may.
    pub(crate) fn sends(&self, qpn: u32) -> bool {
        let sends = |it: &Socket| it.attributes.state == QpState::Rts && !it.messages.is_empty();
        self.of.get(&qpn).is_some_and(sends)
    }

    /// Whether anything waits to be sent.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.line.is_empty()
    }

    /// Puts a queue pair into the line, if it has something to send.
    fn stand(&mut self, qpn: u32) {
        if !self.sends(qpn) {
            return;
        }
        let noted = |it: &mut Socket| std::mem::replace(&mut it.queued, true);
        if self.of.get_mut(&qpn).map(noted) == Some(false) {
            self.line.push_back(qpn);
        }
    }

    pub(crate) fn submit(&mut self, qpn: u32, message: &Message) -> Result<u64, TransportError> {
        let socket = self.of.get_mut(&qpn).ok_or(TransportError::WrongState)?;
        if socket.attributes.state != QpState::Rts {
            return Err(TransportError::WrongState);
        }
        if message.length as usize > DATAGRAM_PAYLOAD {
            return Err(TransportError::TooLong);
        }
        if socket.messages.len() >= MESSAGES {
            return Err(TransportError::Full);
        }
        let number = socket.next;
        socket.next = number.wrapping_add(1);
        socket.messages.push_back(*message);
        self.stand(qpn);
        Ok(number)
    }

    /// Makes an address handle to a card.
    pub(crate) fn create_ah(&mut self, ah: u32, peer: u32, command: &CreateAh) {
        let CreateAh { hop_limit, traffic_class, .. } = *command;
        self.handles.insert(ah, Handle { peer, hop_limit, traffic_class });
    }

    pub(crate) fn destroy_ah(&mut self, ah: u32) {
        self.handles.remove(&ah);
    }

    /// Sends by turns, one datagram of each queue pair; `true` if there was anything.
    pub(crate) fn send(
        &mut self,
        now: u64,
        (exchange, vfpga, patience): (&Exchange, u8, u64),
        host: &mut impl Host,
        events: &mut VecDeque<TransportEvent>,
    ) -> bool {
        let (mut did, mut idle) = (false, 0usize);
        for _ in 0..DATAGRAM_TURN {
            let Some(qpn) = self.line.pop_front() else { break };
            if let Some(socket) = self.of.get_mut(&qpn) {
                socket.queued = false;
            }
            match self.send_one(now, qpn, (exchange, vfpga, patience), host) {
                Some(SendOutcome::Sent) => {
                    (did, idle) = (true, 0);
                    events.push_back(TransportEvent::Completed { qpn, count: 1 });
                }
                Some(SendOutcome::Failed) => {
                    did = true;
                    let status = Status::LocalProtection;
                    events.push_back(TransportEvent::Failed { qpn, status });
                }
                Some(SendOutcome::Waits) => idle = idle.saturating_add(1),
                None => {}
            }
            self.stand(qpn);
            if idle >= self.line.len() && idle > 0 {
                break;
            }
        }
        did
    }

    /// Sends the oldest datagram of a queue pair, if it has one.
    fn send_one(
        &mut self,
        now: u64,
        qpn: u32,
        (exchange, vfpga, patience): (&Exchange, u8, u64),
        host: &mut impl Host,
    ) -> Option<SendOutcome> {
        if !self.sends(qpn) {
            return None;
        }
        let Self { of, handles, tally, .. } = self;
        let socket = of.get_mut(&qpn)?;
        let message = *socket.messages.front()?;
        let WqeOperation::Datagram { datagram, immediate } = message.operation else {
            socket.fail(QpState::Sqe);
            return Some(SendOutcome::Failed);
        };
        // The engine keeps a handle until the datagrams that name it are sent.
        let handle = handles.get(&datagram.ah)?;
        let is_own = handle.peer == exchange.own;
        let to = exchange.vfpga_of(datagram.qpn).filter(|_| is_own);
        let departure = match to {
            Some(to) if exchange.takes(to, Source::Vfpga(vfpga)) => Departure::Open,
            Some(_) => Departure::Full,
            None if is_own => Departure::None,
            None => exchange.departure(now, patience, handle.peer, vfpga),
        };
        if departure == Departure::Full {
            return Some(SendOutcome::Waits);
        }
        let number = socket.next.wrapping_sub(socket.messages.len() as u64);
        let mut payload = vec![0; message.length as usize];
        let source = Payload::Message { number };
        if !payload.is_empty() && host.read(qpn, source, 0, &mut payload).is_err() {
            socket.fail(QpState::Sqe);
            return Some(SendOutcome::Failed);
        }
        socket.messages.pop_front();
        let Attributes { qkey, sq_psn, .. } = &mut socket.attributes;
        *sq_psn = sq_psn.wrapping_add(1) & 0xff_ffff;
        let mut flags = SlotFlags::empty();
        flags.set(SlotFlags::IMMEDIATE, immediate.is_some());
        flags.set(SlotFlags::SOLICITED, message.solicited);
        let header = DatagramHeader {
            source_qpn: qpn,
            dest_qpn: datagram.qpn,
            qkey: if datagram.qkey & OWN_QKEY != 0 { *qkey } else { datagram.qkey },
            immediate: immediate.unwrap_or(0),
            flags,
            hop_limit: handle.hop_limit,
            traffic_class: handle.traffic_class,
        };
        let datagram = Datagram { from: exchange.own, header, payload };
        tally.sent = tally.sent.wrapping_add(1);
        match (departure, to) {
            (Departure::Open, Some(to)) => exchange.arrive(to, Source::Vfpga(vfpga), datagram),
            (Departure::Open, None) => exchange.depart(now, handle.peer, vfpga, datagram),
            // As its receiver would.
            _ if is_own => tally.refused = tally.refused.wrapping_add(1),
            _ => tally.undelivered = tally.undelivered.wrapping_add(1),
        }
        Some(SendOutcome::Sent)
    }

    /// Takes a received datagram; the event to report.
    pub(crate) fn receive(
        &mut self,
        own: u32,
        datagram: &Datagram,
        host: &mut impl Host,
    ) -> Option<TransportEvent> {
        let Self { of, tally, .. } = self;
        let DatagramHeader { source_qpn, dest_qpn: qpn, qkey, immediate, flags, .. } =
            datagram.header;
        let takes = |it: &&Socket| it.receives() && it.attributes.qkey == qkey;
        if of.get(&qpn).filter(takes).is_none() {
            tally.refused = tally.refused.wrapping_add(1);
            return None;
        }
        let Ok(receive) = host.take_receive(qpn) else {
            tally.unreceived = tally.unreceived.wrapping_add(1);
            return None;
        };
        let length = GRH.saturating_add(datagram.payload.len() as u32);
        let mut failed = |status| {
            tally.failed = tally.failed.wrapping_add(1);
            Some(TransportEvent::ReceiveFailed { qpn, status })
        };
        if u64::from(length) > receive.capacity {
            return failed(Status::LocalLength);
        }
        // The first half of a GRH is of IPv6 alone.
        let header = datagram.network_header(own);
        let mut bytes = header.to_vec();
        bytes.extend_from_slice(&datagram.payload);
        let into = Payload::Receive { id: receive.id };
        let offset = u64::from(GRH).saturating_sub(header.len() as u64);
        if host.write(qpn, into, offset, &bytes).is_err() {
            return failed(Status::LocalProtection);
        }
        tally.received = tally.received.wrapping_add(1);
        Some(TransportEvent::Received(ReceivedMessage {
            qpn,
            length,
            kind: ReceiveKind::Send,
            immediate: flags.contains(SlotFlags::IMMEDIATE).then_some(immediate),
            solicited: flags.contains(SlotFlags::SOLICITED),
            source_qpn: Some(source_qpn & 0xff_ffff),
        }))
    }
}
