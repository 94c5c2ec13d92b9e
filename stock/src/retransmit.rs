//! The retransmission lists: the unanswered requests of each QP.

use std::collections::{BTreeMap, VecDeque};

use crate::opcode;
use crate::param::{ELEMENTS, PMTU, UNLISTED};

/// The memory from which a request takes its bytes, that to which it writes them, and whether it ends a post.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestMemory {
    /// Own memory; of a READ with the stream and its number in bits 53 to 48.
    pub(crate) local: u64,
    pub(crate) remote: u64,
    pub(crate) length: u32,
    pub(crate) last: bool,
    /// The slot of its payload.
    pub(crate) slot: u8,
}

/// A packet, or the rest of a READ, that is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Element {
    pub(crate) psn: u32,
    pub(crate) opcode: u8,
    pub(crate) place: RequestMemory,
}

/// The data of a request that its response gets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Init {
    pub(crate) local: u64,
    pub(crate) last: bool,
}

/// The lists of all QPs.
#[derive(Debug, Default)]
pub(crate) struct Retransmitter {
    lists: BTreeMap<u32, VecDeque<Element>>,
    used: usize,
    /// The two halves of new elements, which come from two places and are joined in their order.
    packets: VecDeque<(u32, u32, u8)>,
    places: VecDeque<RequestMemory>,
    /// The data of freed elements, for the responses that wait for it, of all QPs.
    pub(crate) inits: VecDeque<Init>,
    /// It looks for a packet that is in no list, for ever.
    lost: bool,
}

impl Retransmitter {
    /// Whether requests may go out: they can be listed, or will be before long.
    pub(crate) fn has_room(&self) -> bool {
        self.packets.len() < UNLISTED
    }

    /// Takes note of where a request has its bytes.
    // STOCK-27
    pub(crate) fn place(&mut self, place: RequestMemory) {
        self.places.push_back(place);
    }

    /// Takes note of a packet that went out.
    pub(crate) fn sent(&mut self, qpn: u32, psn: u32, opcode: u8) {
        self.packets.push_back((qpn, psn, opcode));
        self.list();
    }

    fn list(&mut self) {
        while !self.lost && self.used < ELEMENTS {
            if self.packets.is_empty() || self.places.is_empty() {
                return;
            }
            let (Some((qpn, psn, opcode)), Some(place)) =
                (self.packets.pop_front(), self.places.pop_front())
            else {
                return;
            };
            self.used = self.used.saturating_add(1);
            self.lists.entry(qpn).or_default().push_back(Element { psn, opcode, place });
        }
    }

    /// A response has come: it frees, or shortens, the oldest element of its QP, even if it answers another one.
    // STOCK-10
    pub(crate) fn answered(&mut self, qpn: u32, opcode: u8) {
        if self.lost {
            return;
        }
        let Some(list) = self.lists.get_mut(&qpn) else { return };
        let Some(head) = list.front_mut() else { return };
        if matches!(opcode, opcode::RESPONSE_FIRST | opcode::RESPONSE_ONLY | opcode::ACK) {
            self.inits.push_back(Init { local: head.place.local, last: head.place.last });
        }
        if matches!(opcode, opcode::RESPONSE_FIRST | opcode::RESPONSE_MIDDLE) {
            let place = &mut head.place;
            place.local = place.local.wrapping_add(PMTU.into());
            place.remote = place.remote.wrapping_add(PMTU.into());
            place.length = place.length.wrapping_sub(PMTU);
            head.psn = crate::tables::advance(head.psn, 1);
        } else {
            list.pop_front();
            self.used = self.used.saturating_sub(1);
            self.list();
        }
    }

    /// Everything of a QP, for its timer has expired.
    pub(crate) fn all(&self, qpn: u32) -> Vec<Element> {
        match self.lists.get(&qpn) {
            Some(list) if !self.lost => list.iter().copied().collect(),
            _ => Vec::new(),
        }
    }

    /// The elements that a NAK asks for. If they are in no list, nothing is listed or freed from then on.
    // STOCK-13
    pub(crate) fn from(&mut self, qpn: u32, psn: u32) -> Vec<Element> {
        let Some(list) = self.lists.get(&qpn).filter(|list| !list.is_empty() && !self.lost) else {
            return Vec::new();
        };
        let found: Vec<Element> =
            list.iter().copied().skip_while(|element| element.psn != psn).collect();
        self.lost = found.is_empty();
        found
    }

    /// Whether it searches for an element that is not listed.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost
    }
}
