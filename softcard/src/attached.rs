//! The services that are attached to a card, at their places in its transport and its data path.
//!
//! The transport has them only while something is attached (`network/tended.rs`), so a card without services pays for
//! the question alone.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use roce::opcode::{Class, Opcode};
use roce::{Checked, FramePayload, Placement, Sink, Source};
use services::{Attachments, Operation, Part, Placing, Verdict};

use crate::sealing::transport_of;

/// The services of a card, as its transport has them.
#[derive(Debug)]
pub(crate) struct Path(pub(crate) Rc<RefCell<Attachments>>);

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
        let mut all = self.0.borrow_mut();
        let Some(connection) = all.connection(packet.qpn.value()) else {
            return roce::Verdict::Accept;
        };
        let part = packet.part.as_ref().map(|part| part_of(part, packet.payload));
        match connection.check(part.as_ref().map(|part| (part, packet.payload))) {
            Verdict::Accept => roce::Verdict::Accept,
            Verdict::Drop => roce::Verdict::Drop,
            Verdict::Refuse => roce::Verdict::Refuse,
        }
    }

    fn accepted(&mut self, placement: &Placement) {
        if let Some(connection) = self.0.borrow_mut().connection(placement.qpn.value()) {
            connection.accept();
        }
    }

    fn act(&mut self, placement: &Placement, frame: &mut [u8]) -> Option<Sink> {
        let mut all = self.0.borrow_mut();
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
        all.tidy(qpn);
        let sink = match (placement.sink, address) {
            (Sink::Remote { rkey, .. }, Some(va)) => Sink::Remote { rkey, va },
            (sink, _) => sink,
        };
        acted.then_some(sink)
    }

    fn transform(&mut self, payload: &FramePayload, frame: &mut [u8], range: Range<usize>) -> bool {
        let mut all = self.0.borrow_mut();
        let Some(connection) = all.connection(payload.qpn.value()) else { return true };
        if !connection.transforms() {
            return true;
        }
        let Some(part) = leaving(payload, frame) else { return false };
        frame.get_mut(range).is_some_and(|bytes| connection.transform(&part, bytes))
    }
}
