//! How much a requester sends to a peer that has too few receive requests, and whose credits do not tell how many.
//!
//! This is about the peer's program, not about the network: it is beside the congestion window, and the smaller of the
//! two counts.

use crate::param;

/// The limit that RNR NAKs set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unready {
    /// Packets that may be unacknowledged now.
    limit: u64,
    /// The limit up to which it grows with each acknowledged packet, and beyond which by one packet for each limit.
    quick_to: u64,
    /// Packets acknowledged since it has changed.
    acknowledged: u64,
}

impl Default for Unready {
    /// None yet.
    fn default() -> Self {
        Self { limit: param::WINDOW_PACKETS, quick_to: param::WINDOW_PACKETS, acknowledged: 0 }
    }
}

impl Unready {
    /// Packets that may be unacknowledged.
    #[inline]
    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// Takes an RNR NAK for the oldest of so many packets: it alone is sent, and the limit comes slowly back to half of
    /// the packets that were in vain this time.
    // RC-64
    pub(super) fn refused(&mut self, in_vain: u64) {
        // One that was sent alone says nothing new of how many there may be.
        if in_vain > 1 {
            self.quick_to = (in_vain / 2).clamp(param::RNR_WINDOW_PACKETS, param::WINDOW_PACKETS);
        }
        (self.limit, self.acknowledged) = (1, 0);
    }

    /// Takes a loss: the limit that it had counts as reached.
    pub(super) fn lost(&mut self) {
        (self.quick_to, self.acknowledged) = (self.quick_to.max(self.limit), 0);
    }

    /// Packets were acknowledged while the congestion window had room for `window` of them.
    #[inline]
    pub(super) fn follow_progress(&mut self, acknowledged: u64, window: u64) {
        if self.limit != param::WINDOW_PACKETS {
            self.grow(acknowledged, window);
        }
    }

    #[cold]
    fn grow(&mut self, acknowledged: u64, window: u64) {
        if self.limit < self.quick_to {
            self.limit = self.limit.saturating_add(acknowledged).min(self.quick_to);
            return;
        }
        // Where less than it was under way, that less arrived says nothing of it.
        self.acknowledged =
            if window < self.limit { 0 } else { self.acknowledged.saturating_add(acknowledged) };
        if self.acknowledged >= self.limit {
            self.limit = self.limit.saturating_add(1).min(param::WINDOW_PACKETS);
            self.acknowledged = 0;
        }
    }
}
