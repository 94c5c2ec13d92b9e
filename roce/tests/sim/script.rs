//! Events at exact frames, and the trace of all frames.

use std::collections::BTreeMap;

use netsim::Time;
use netsim::frame::Frame;
use roce::opcode::Class;
use roce::wire::ethernet;

use crate::connection::End;
use crate::network::bytes;
use crate::truth::{Look, look};

/// An event that a frame meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Drop,
    Corrupt,
    Mark,
}

/// Where it does: at the frame of a connection, given by the order in which connections were named, of a
/// PSN counted from the requester's first, when that comes for this time, 1 for the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub connection: usize,
    /// It goes from the responder to the requester.
    pub response: bool,
    pub psn: u32,
    pub iteration: u32,
}

/// A frame of a connection, as its sender's cable has it.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub place: Place,
    pub look: Look,
    /// The node that sent it, and when, in picoseconds.
    pub from: usize,
    pub at: u64,
    /// Bytes of the cable's time that it takes.
    pub wire_length: u32,
    pub befell: Option<Action>,
}

impl Seen {
    /// Whether the other side takes the frame as it was sent.
    pub fn arrives(&self) -> bool {
        !matches!(self.befell, Some(Action::Drop | Action::Corrupt))
    }
}

/// The requester of a connection, its peer, and the requester's first PSN.
#[derive(Clone, Copy, Debug)]
struct ScriptedConnection {
    requester: End,
    responder: End,
    first: u32,
}

/// Events by place, and everything that was seen.
#[derive(Debug, Default)]
pub struct Script {
    connections: Vec<ScriptedConnection>,
    events: BTreeMap<Place, Action>,
    /// How often each PSN came: of a connection, a direction.
    counts: BTreeMap<(usize, bool, u32), u32>,
    pub trace: Vec<Seen>,
}

/// A bit of the PSN: only the invariant CRC shows that it is another.
const BIT: u16 = (14 + 20 + 8 + 11) * 8;

impl Script {
    pub fn watch(&mut self, requester: End, responder: End, first: u32) {
        self.connections.push(ScriptedConnection { requester, responder, first });
    }

    pub fn at(&mut self, place: Place, action: Action) {
        self.events.insert(place, action);
    }

    /// Records a frame that node `from` sends, and applies the event that the script has for it. Says whether it goes
    /// on.
    pub fn carry(&mut self, from: usize, at: Time, frame: &mut Frame) -> bool {
        let bytes = bytes(frame);
        let (header, _) = ethernet::Repr::parse(&bytes).unwrap();
        if header.ethertype != ethernet::EtherType::IPV4 {
            return true;
        }
        let look = look(&bytes);
        if look.opcode.class == Class::CongestionNotification {
            return true;
        }
        let response = look.opcode.class.is_response();
        let of = |it: &ScriptedConnection| {
            let (sender, target) =
                if response { (it.responder, it.requester) } else { (it.requester, it.responder) };
            sender.node == from && target.qpn.value() == look.target.1
        };
        let connection = self.connections.iter().position(of).expect("a frame of nobody's");
        let psn = look.psn.wrapping_sub(self.connections[connection].first) & 0xff_ffff;
        let count = self.counts.entry((connection, response, psn)).or_default();
        *count += 1;
        let place = Place { connection, response, psn, iteration: *count };
        let befell = self.events.get(&place).copied();
        match befell {
            Some(Action::Corrupt) => frame.flip(BIT),
            Some(Action::Mark) => assert!(frame.mark(), "it may not be marked"),
            Some(Action::Drop) | None => {}
        }
        let (at, wire_length) = (at.0, frame.wire_length());
        self.trace.push(Seen { place, look, from, at, wire_length, befell });
        befell != Some(Action::Drop)
    }
}
