//! The services that are attached to a card, at their places in its transport and its data path.
//!
//! The transport has them only while something is attached (`network/tended.rs`), so a card without services pays for
//! the question alone.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use roce::opcode::{Class, Opcode};
use roce::{Checked, FramePayload, Placement, Sink, Source};
use services::{Attachments, Operation, Part, Placing, Succession, Turns, Verdict};

use crate::port::Frame;
use crate::sealing::transport_of;

/// The services of a card, as its transport has them.
#[derive(Debug)]
pub(crate) struct Path {
    pub(crate) attachments: Rc<RefCell<Attachments>>,
    pub(crate) turns: Rc<RefCell<Turns<Frame>>>,
}

impl Path {
    /// Takes note of the work that a queue pair's services have done on a packet that came.
    fn spend(&self, qpn: u32, connection: &mut Succession) {
        self.turns.borrow_mut().spend(qpn, connection.take_work());
    }
}

/// The part of a message that a packet of the peer's carries.
fn part_of(part: &roce::Part, payload: &[u8]) -> Part {
    let operation = match part.kind {
        roce::PartKind::Send => Operation::Send,
        roce::PartKind::Write => Operation::Write,
        roce::PartKind::Read => Operation::Read,
    };
    // At most a frame.
    let length = payload.len() as u32;
    Part { operation, offset: part.offset, length, is_last: part.is_last }
}

/// The part of a message that a frame which is to leave carries.
fn leaving(payload: &FramePayload, frame: &[u8]) -> Option<Part> {
    let opcode = Opcode::find(transport_of(frame)?.opcode)?;
    let operation = match (payload.source, opcode.class) {
        (Source::Remote { .. }, _) => Operation::Read,
        (Source::Message { .. }, Class::Write) => Operation::Write,
        (Source::Message { .. }, _) => Operation::Send,
    };
    let is_last = opcode.position.is_end();
    Some(Part { operation, offset: payload.offset, length: payload.length, is_last })
}

impl roce::Services for Path {
    fn check(&mut self, packet: &Checked<'_>) -> roce::Verdict {
        let mut all = self.attachments.borrow_mut();
        let qpn = packet.qpn.value();
        let Some(connection) = all.connection(qpn) else { return roce::Verdict::Accept };
        let part = packet.part.as_ref().map(|part| part_of(part, packet.payload));
        let verdict = connection.check(part.as_ref().map(|part| (part, packet.payload)));
        self.spend(qpn, connection);
        match verdict {
            Verdict::Accept => roce::Verdict::Accept,
            Verdict::Drop => roce::Verdict::Drop,
            Verdict::Refuse => roce::Verdict::Refuse,
        }
    }

    fn accepted(&mut self, placement: &Placement) {
        let mut all = self.attachments.borrow_mut();
        if let Some(connection) = all.connection(placement.qpn.value()) {
            connection.accept();
        }
    }

    fn act(&mut self, placement: &Placement, frame: &mut [u8]) -> Option<Sink> {
        let mut all = self.attachments.borrow_mut();
        let qpn = placement.qpn.value();
        let Some(connection) = all.connection(qpn) else { return Some(placement.sink) };
        let bytes = frame.get_mut(placement.range.clone()).unwrap_or_default();
        let address = match placement.sink {
            Sink::Remote { va, .. } => Some(va),
            Sink::Receive { .. } | Sink::Message { .. } | Sink::Atomic { .. } => None,
        };
        let mut placing = Placing { bytes, address };
        let acted = connection.act(&mut placing);
        let address = placing.address;
        self.spend(qpn, connection);
        all.tidy(qpn);
        let sink = match (placement.sink, address) {
            (Sink::Remote { rkey, .. }, Some(va)) => Sink::Remote { rkey, va },
            (sink, _) => sink,
        };
        acted.then_some(sink)
    }

    fn transform(&mut self, payload: &FramePayload, frame: &mut [u8], range: Range<usize>) -> bool {
        let mut all = self.attachments.borrow_mut();
        let qpn = payload.qpn.value();
        let Some(connection) = all.connection(qpn) else { return true };
        if !connection.transforms() {
            return true;
        }
        let Some(part) = leaving(payload, frame) else { return false };
        let bytes = frame.get_mut(range);
        let transformed = bytes.is_some_and(|bytes| connection.transform(&part, bytes));
        self.turns.borrow_mut().spend_promised(qpn, connection.take_work());
        transformed
    }
}
