//! A window that nothing changes.

use super::{Acked, Window};
use crate::param;
use crate::types::Instant;

/// Always the same number of packets; nothing is paced. Queue pairs of unacknowledged services have the largest, and it
/// shows the cost of go-back-N by itself.
#[derive(Clone, Copy, Debug)]
pub struct Fixed {
    packets: u64,
}

impl Fixed {
    /// A window of so many packets, at least one.
    #[must_use]
    pub fn new(packets: u64) -> Self {
        Self { packets: packets.max(1) }
    }
}

impl Default for Fixed {
    fn default() -> Self {
        Self::new(param::WINDOW_PACKETS)
    }
}

impl Window for Fixed {
    fn on_ack(&mut self, _now: Instant, _acked: Acked) {}

    fn on_loss(&mut self, _now: Instant) {}

    #[inline]
    fn window(&self) -> u64 {
        self.packets
    }
}
