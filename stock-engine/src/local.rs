//! QPs of one card that are each other's peers: whose ring takes whose slots.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tunnel::Key;

use crate::ends::{Acceptance, Ends};

/// The state that the vFPGAs of a card share of QPs with a peer on the same card: their packets do not leave it.
#[derive(Clone, Debug)]
pub struct Local {
    /// The key of their slots.
    pub(crate) key: Key,
    ends: Arc<Mutex<Ends>>,
}

impl Local {
    /// The state of a card, with a key that no other process has.
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
        ends.connect((0, qpn), (0, peer), 0);
        ends.open((0, qpn));
    }

    /// A QP's ring takes no slots any more.
    pub(crate) fn close(&self, qpn: u32) {
        self.ends().close((0, qpn));
    }

    /// Whether the ring of a QP's peer takes its slots.
    pub(crate) fn reaches(&self, from: u32) -> bool {
        self.ends().acceptance((0, from)) == Acceptance::Open
    }

    /// Puts a slot of a QP's into the ring of its peer, unless that takes none any more; it can close only before or
    /// after.
    pub(crate) fn deliver(&self, from: u32, put: impl FnOnce()) {
        let mut ends = self.ends();
        if ends.meet((0, from)) {
            put();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a slot of a QP reaches its peer's ring.
    fn reaches(local: &Local, from: u32) -> bool {
        let mut reached = false;
        local.deliver(from, || reached = true);
        assert!(!reached || local.reaches(from));
        reached
    }

    #[test]
    fn a_slot_reaches_the_connection_that_its_sender_has_met_and_no_later_one() {
        let local = Local::new(Key::new([1; 16]));
        local.open(2, 3);
        assert!(!reaches(&local, 2));
        local.open(3, 2);
        assert!(local.reaches(2) && reaches(&local, 2) && reaches(&local, 3));
        // Its sender may have asked before, and has the slot ready.
        local.close(3);
        assert!(!reaches(&local, 2));
        local.open(3, 2);
        assert!(!reaches(&local, 2) && !reaches(&local, 3));
        local.open(2, 3);
        assert!(reaches(&local, 3) && reaches(&local, 2));
        local.open(4, 3);
        assert!(!reaches(&local, 4), "that one names another");
        local.open(5, 5);
        assert!(reaches(&local, 5));
    }
}
