//! The connections that the QPs of a card claim.
//!
//! A packet of Reliable Connection does not say which QP sent it: a second QP of the card with the same
//! far end could speak for the first, and is not to be another process's.

use std::collections::BTreeMap;

use fpga_regs::engine::qp::{AttributeMask, Attributes};

use crate::process::ClientId;

/// The far end of a connection: a QP of another port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Peer {
    /// The port's GID.
    pub gid: [u8; 16],
    /// The QP's number there.
    pub qpn: u32,
}

impl Peer {
    /// The far end of a QP after a change, where it was `before`; `None` if the change leaves it.
    #[must_use]
    pub fn after(before: Option<Self>, change: &Attributes) -> Option<Self> {
        let given = |mask| change.mask.contains(mask);
        let gid = given(AttributeMask::AV).then_some(change.dgid);
        let dest = given(AttributeMask::DEST_QPN).then_some(change.dest_qpn);
        if gid.is_none() && dest.is_none() {
            return None;
        }
        Some(Self { gid: gid.or(before.map(|it| it.gid))?, qpn: dest.or(before.map(|it| it.qpn))? })
    }
}

/// A QP of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CardQp {
    /// The window whose engine made it.
    pub window: u8,
    /// Its number there.
    pub qpn: u32,
}

/// The owner of a connected QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claimant {
    /// The client.
    pub client: ClientId,
    /// Its process.
    pub pid: i32,
}

/// The QPs of a card that were connected, by their far ends.
#[derive(Debug, Default)]
pub struct Claims(BTreeMap<(Peer, CardQp), Claimant>);

impl Claims {
    /// Notes that a QP speaks for a connection.
    pub fn claim(&mut self, peer: Peer, qp: CardQp, claimant: Claimant) {
        self.0.insert((peer, qp), claimant);
    }

    /// Withdraws a QP's claim.
    pub fn release(&mut self, peer: Peer, qp: CardQp) {
        self.0.remove(&(peer, qp));
    }

    /// A QP of another process than `pid` that may speak for a connection, and whose it is.
    #[must_use]
    pub fn of_another(&self, peer: Peer, pid: i32) -> Option<(CardQp, Claimant)> {
        let (first, last) =
            (CardQp { window: 0, qpn: 0 }, CardQp { window: u8::MAX, qpn: u32::MAX });
        let same = self.0.range((peer, first)..=(peer, last));
        let mut others = same.filter(|(_, claimant)| claimant.pid != pid);
        others.next().map(|(&(_, qp), claimant)| (qp, *claimant))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_found_by_its_far_end_by_other_processes() {
        let peer = |qpn| Peer { gid: [1; 16], qpn };
        let qp = |window, qpn| CardQp { window, qpn };
        let claimant = |pid| Claimant { client: ClientId(1), pid };
        let mut claims = Claims::default();
        claims.claim(peer(5), qp(0, 0x10), claimant(7));
        claims.claim(peer(5), qp(1, 0x10), claimant(8));
        claims.claim(peer(6), qp(0, 0x30), claimant(9));
        assert_eq!(claims.of_another(peer(5), 7), Some((qp(1, 0x10), claimant(8))));
        assert_eq!(claims.of_another(peer(5), 9), Some((qp(0, 0x10), claimant(7))));
        assert_eq!(claims.of_another(peer(4), 7), None);
        claims.release(peer(5), qp(1, 0x10));
        assert_eq!(claims.of_another(peer(5), 7), None);
        assert_eq!(claims.of_another(Peer { gid: [2; 16], qpn: 5 }, 1), None);
    }
}
