//! A window that is small at first and after a loss, and grows with each acknowledged packet.

use super::{Acked, Window};
use crate::param;
use crate::types::Instant;

/// A window that grows by the packets acknowledged, up to [`param::WINDOW_PACKETS`], and paces nothing.
#[derive(Clone, Copy, Debug)]
pub struct SlowStart {
    packets: u64,
}

impl Default for SlowStart {
    fn default() -> Self {
        Self { packets: param::FIRST_WINDOW_PACKETS }
    }
}

impl Window for SlowStart {
    #[inline]
    fn on_ack(&mut self, _now: Instant, acked: Acked) {
        self.packets = self.packets.saturating_add(acked.packets).min(param::WINDOW_PACKETS);
    }

    fn on_loss(&mut self, _now: Instant) {
        self.packets = self.packets.min(param::LOSS_WINDOW_PACKETS);
    }

    #[inline]
    fn window(&self) -> u64 {
        self.packets
    }
}
