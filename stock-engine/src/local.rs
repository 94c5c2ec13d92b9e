//! QPs of one card that are each other's peers: whose ring takes whose slots.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tunnel::Key;

/// What the vFPGAs of a card share of QPs whose peer is on the same card: no packet of theirs leaves it.
#[derive(Clone, Debug)]
pub struct Local {
    /// The key of their slots.
    pub(crate) key: Key,
    ends: Arc<Mutex<Ends>>,
}

/// QPs whose rings take slots.
#[derive(Debug, Default)]
struct Ends {
    /// By their number.
    open: BTreeMap<u32, OpenEnd>,
    /// Those that there were so far.
    count: u64,
}

/// A connection of a QP: the next one of the same QP is another.
#[derive(Clone, Copy, Debug)]
struct OpenEnd {
    /// Which of all it is.
    epoch: u64,
    /// The QP that it names.
    peer: u32,
    /// The connection of that one with which it has exchanged slots. Numbers and keys of another may be the same, and
    /// slots of before would be taken for its own.
    partner: Option<u64>,
}

impl Ends {
    /// The connections of two QPs, if they name each other and neither has met another one.
    fn pair(&self, from: u32, to: u32) -> Option<(u64, u64)> {
        let (one, other) = (self.open.get(&from)?, self.open.get(&to)?);
        let knows = |it: &OpenEnd, of: &OpenEnd| it.partner.is_none_or(|epoch| epoch == of.epoch);
        let meet = (one.peer, other.peer) == (to, from) && knows(one, other) && knows(other, one);
        meet.then_some((one.epoch, other.epoch))
    }
}

impl Local {
    /// Of a card, with a key that nobody else has.
    #[must_use]
    pub fn new(key: Key) -> Self {
        Self { key, ends: Arc::default() }
    }

    fn ends(&self) -> MutexGuard<'_, Ends> {
        // Nobody leaves it in the middle of a change.
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A QP's ring, which is empty, takes the slots of another one's.
    pub(crate) fn open(&self, qpn: u32, peer: u32) {
        let mut ends = self.ends();
        let epoch = ends.count;
        ends.count = epoch.wrapping_add(1);
        ends.open.insert(qpn, OpenEnd { epoch, peer, partner: None });
    }

    /// A QP's ring takes no slots any more.
    pub(crate) fn close(&self, qpn: u32) {
        self.ends().open.remove(&qpn);
    }

    /// Whether a QP's ring takes the slots of another one's.
    pub(crate) fn takes(&self, qpn: u32, from: u32) -> bool {
        self.ends().pair(from, qpn).is_some()
    }

    /// Puts a slot into a QP's ring, unless that takes those of its sender no more; it can close only before or after.
    pub(crate) fn deliver(&self, qpn: u32, from: u32, put: impl FnOnce()) {
        let mut ends = self.ends();
        let Some((one, other)) = ends.pair(from, qpn) else { return };
        for (end, partner) in [(from, other), (qpn, one)] {
            if let Some(end) = ends.open.get_mut(&end) {
                end.partner = Some(partner);
            }
        }
        put();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a slot of one QP reaches another one's ring.
    fn reaches(local: &Local, from: u32, to: u32) -> bool {
        let mut reached = false;
        local.deliver(to, from, || reached = true);
        assert!(!reached || local.takes(to, from));
        reached
    }

    #[test]
    fn a_slot_reaches_the_connection_that_its_sender_has_met_and_no_later_one() {
        let local = Local::new(Key::new([1; 16]));
        local.open(2, 3);
        assert!(!reaches(&local, 2, 3));
        local.open(3, 2);
        assert!(local.takes(3, 2) && reaches(&local, 2, 3) && reaches(&local, 3, 2));
        // Its sender may have asked before, and has the slot ready.
        local.close(3);
        assert!(!reaches(&local, 2, 3));
        local.open(3, 2);
        assert!(!reaches(&local, 2, 3) && !reaches(&local, 3, 2));
        local.open(2, 3);
        assert!(reaches(&local, 3, 2) && reaches(&local, 2, 3));
        local.open(4, 3);
        assert!(!reaches(&local, 4, 3) && !reaches(&local, 3, 4));
        local.open(5, 5);
        assert!(reaches(&local, 5, 5));
    }
}
