//! Sending: acknowledgements, READ responses, repetitions and new requests, in this order.

use std::collections::{BTreeMap, VecDeque};

use crate::arp::Cache;
use crate::host::{Host, Reach, Space};
use crate::opcode;
use crate::param::{PMTU, SEND_QUEUE};
use crate::retransmit::{Element, Retransmitter};
use crate::split::Piece;
use crate::tables::{Tables, advance};
use crate::tally::CardTally;
use crate::timer::Timers;
use crate::wire::{Arp, Extension, Identity, Sent};

/// An acknowledgement that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ack {
    pub(crate) qpn: u32,
    pub(crate) psn: u32,
    pub(crate) refuses: bool,
}

/// A packet of a READ response that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) qpn: u32,
    pub(crate) psn: u32,
    pub(crate) opcode: u8,
    pub(crate) vaddr: u64,
    pub(crate) length: u32,
}

/// The packets to be sent.
#[derive(Debug, Default)]
pub(crate) struct Sender {
    pub(crate) acks: VecDeque<Ack>,
    pub(crate) answers: VecDeque<Answer>,
    pub(crate) repeats: VecDeque<(u32, Element)>,
    queue: VecDeque<Piece>,
    /// Payload of packets that are not answered, by QP and slot.
    slots: BTreeMap<(u32, u8), Vec<u8>>,
    /// A request has gone out: the header that is kept asks for acknowledgement from then on.
    asks: bool,
    /// A READ response's payload has not come yet.
    waits: bool,
    /// A READ response's payload will never come: nothing is sent any more.
    pub(crate) starves: bool,
}

/// The parts of the card that the sender uses.
pub(crate) struct Sending<'a> {
    pub(crate) now: u64,
    pub(crate) own: Identity,
    pub(crate) tables: &'a mut Tables,
    pub(crate) timers: &'a mut Timers,
    pub(crate) retransmitter: &'a mut Retransmitter,
    pub(crate) cache: &'a Cache,
    pub(crate) tally: &'a mut CardTally,
}

/// The outcome of an attempt to send.
pub(crate) enum Made {
    /// A frame, and the address space of which a counted read has ended with it.
    Frame(Vec<u8>, Option<Space>),
    /// Something was done that no frame comes of.
    Nothing,
    /// There is nothing to send.
    Idle,
    /// A page is not there yet.
    Waits,
}

impl Sender {
    /// Whether a request that has passed the windows is taken.
    pub(crate) fn has_room(&self) -> bool {
        self.queue.len() < SEND_QUEUE
    }

    /// Requests that wait with payload.
    pub(crate) fn payloads(&self) -> usize {
        self.queue.iter().filter(|piece| !piece.payload.is_empty()).count()
    }

    /// Takes a request that has passed the windows.
    pub(crate) fn push(&mut self, piece: Piece) {
        self.queue.push_back(piece);
    }

    /// Sends the next packet.
    pub(crate) fn send(&mut self, with: &mut Sending<'_>, host: &mut impl Host) -> Made {
        if self.starves {
            return Made::Idle;
        }
        // A response whose page is not there is in front of all that came since.
        let ack = if self.waits { None } else { self.acks.pop_front() };
        if let Some(ack) = ack {
            // STOCK-12
            let syndrome = if ack.refuses { 0x60 } else { 0x1f };
            return self.answer(with, (ack.qpn, ack.psn), opcode::ACK, syndrome, &[]);
        }
        if let Some(answer) = self.answers.front().copied() {
            return self.respond(with, answer, host);
        }
        if !with.retransmitter.has_room() {
            return Made::Idle;
        }
        if let Some((qpn, element)) = self.repeats.pop_front() {
            with.tally.repeated = with.tally.repeated.wrapping_add(1);
            // As many bytes of the slot as the element says, though another packet may have filled it.
            let slot = self.slots.get(&(qpn, element.place.slot));
            let mut payload = slot.cloned().unwrap_or_default();
            payload.resize(element.place.length.min(PMTU) as usize, 0);
            return self.request(with, qpn, &element, &payload);
        }
        match self.queue.pop_front() {
            Some(piece) => self.post(with, piece),
            None => Made::Idle,
        }
    }

    /// A new request gets its number, its place in a list, and its payload a slot.
    fn post(&mut self, with: &mut Sending<'_>, piece: Piece) -> Made {
        let Piece { qpn, opcode, place, payload } = piece;
        with.retransmitter.place(place);
        // STOCK-27
        if !piece_is_known(opcode) {
            return Made::Nothing;
        }
        let state = &mut with.tables.of(qpn).state;
        let psn = state.next;
        let packets = if opcode == opcode::READ_REQUEST { place.length.div_ceil(PMTU) } else { 1 };
        state.next = advance(psn, packets);
        // STOCK-38
        self.asks = true;
        with.retransmitter.sent(qpn, psn, opcode);
        let made = self.request(with, qpn, &Element { psn, opcode, place }, &payload);
        if opcode != opcode::READ_REQUEST {
            let slot = self.slots.entry((qpn, place.slot)).or_default();
            let behind = slot.get(payload.len()..).unwrap_or_default();
            *slot = [&payload, behind].concat();
        }
        made
    }

    /// A request, the first time or again: a WRITE says the length of its packet, and the key is the QP's.
    // STOCK-11 STOCK-23
    fn request(
        &mut self,
        with: &mut Sending<'_>,
        qpn: u32,
        element: &Element,
        payload: &[u8],
    ) -> Made {
        let Element { psn, opcode, place } = *element;
        with.timers.set(with.now, qpn);
        let rkey = with.tables.of(qpn).message.rkey;
        let reth = Extension::Reth { vaddr: place.remote, rkey, length: place.length };
        let (extension, payload) = match opcode {
            opcode::READ_REQUEST => (reth, &[][..]),
            opcode::WRITE_FIRST | opcode::WRITE_ONLY => (reth, payload),
            _ => (Extension::Nothing, payload),
        };
        self.packet(with, qpn, psn, opcode, extension, payload)
    }

    /// A packet of a READ response.
    fn respond(&mut self, with: &mut Sending<'_>, answer: Answer, host: &mut impl Host) -> Made {
        let space = Space::of_qp(answer.qpn);
        let mut payload = vec![0; answer.length as usize];
        let reach = host.read(space, answer.vaddr, &mut payload);
        self.waits = reach == Reach::Waits;
        match reach {
            Reach::Done => {}
            Reach::Waits => return Made::Waits,
            Reach::Refused => {
                with.tally.refused = with.tally.refused.wrapping_add(1);
                self.starves = true;
                return Made::Idle;
            }
        }
        self.answers.pop_front();
        let made = self.answer(with, (answer.qpn, answer.psn), answer.opcode, 0x1f, &payload);
        let ends = matches!(answer.opcode, opcode::RESPONSE_LAST | opcode::RESPONSE_ONLY);
        match made {
            Made::Frame(frame, _) => Made::Frame(frame, ends.then_some(space)),
            made => made,
        }
    }

    fn answer(
        &mut self,
        with: &mut Sending<'_>,
        (qpn, psn): (u32, u32),
        opcode: u8,
        syndrome: u8,
        payload: &[u8],
    ) -> Made {
        let msn = with.tables.of(qpn).message.msn;
        let extension = match opcode {
            opcode::RESPONSE_MIDDLE => Extension::Nothing,
            _ => Extension::Aeth { syndrome, msn },
        };
        self.packet(with, qpn, psn, opcode, extension, payload)
    }

    fn packet(
        &mut self,
        with: &mut Sending<'_>,
        qpn: u32,
        psn: u32,
        opcode: u8,
        extension: Extension,
        payload: &[u8],
    ) -> Made {
        let connection = with.tables.of(qpn).connection;
        with.tally.sent = with.tally.sent.wrapping_add(1);
        // STOCK-29
        let Some(mac) = with.cache.find(connection.ipv4) else {
            with.tally.unresolved = with.tally.unresolved.wrapping_add(1);
            return Made::Frame(Arp::frame(with.own, None, connection.ipv4), None);
        };
        // STOCK-40
        let length = match opcode {
            opcode::WRITE_FIRST => PMTU as usize,
            _ => payload.len(),
        };
        let sent = Sent {
            to: (mac, connection.ipv4),
            udp_port: connection.udp_port,
            opcode,
            asks: self.asks,
            qpn: connection.qpn,
            psn,
            extension,
            length,
            payload,
        };
        Made::Frame(sent.frame(with.own), None)
    }
}

fn piece_is_known(opcode: u8) -> bool {
    opcode == opcode::READ_REQUEST || opcode::is_sent_with_payload(opcode)
}
