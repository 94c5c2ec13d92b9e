//! A window by delay, after Swift (Kumar et al., SIGCOMM 2020): it grows while round trips are shorter than a target, and
//! shrinks by how much they are longer.
//!
//! No switch has to mark packets, and no peer to notify. The target has no part for each hop of the path, for their
//! number is unknown. READ responses and unacknowledged packets have no round trip: Swift slows requests of reliable
//! services down.

use super::{Acked, AnyWindow, Window};
use crate::error::OutOfRange;
use crate::param;
use crate::service::Service;
use crate::types::{Instant, Qpn};

/// A packet: windows are in 2^-16 of one.
const PACKET: u64 = 1 << 16;
/// The smallest window, a packet in 64 round trips, and the largest.
const LEAST: u64 = PACKET / 64;
const MOST: u64 = param::WINDOW_PACKETS * PACKET;

/// Over the root of the window, in 2^-16: of a tenth of a packet, for which the target is the longest, and of a hundred
/// packets, for which it is the shortest.
const LONGEST: u64 = 207_243;
const SHORTEST: u64 = 6_554;

/// The parameters of Swift.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwiftParameters {
    /// The target of large windows, in nanoseconds: 1 to a second.
    pub base_target: u32,
    /// The most that it is longer for small windows, in nanoseconds: many flows share a queue then. Up to a second.
    pub fs_range: u32,
    /// Packets that a window grows by in a round trip: 1 to 100.
    pub ai: u32,
    /// Percent of the excess over the target by which it shrinks: 1 to 100.
    pub beta: u32,
    /// Percent by which it shrinks at most: 1 to 99.
    pub max_mdf: u32,
}

impl Default for SwiftParameters {
    /// For networks of some microseconds. The paper's figures for its own network are not known here; with these, flows
    /// over one switch more or less have about the same.
    fn default() -> Self {
        Self { base_target: 15_000, fs_range: 200_000, ai: 1, beta: 80, max_mdf: 50 }
    }
}

impl SwiftParameters {
    /// Refuses values that are out of range.
    pub fn check(&self) -> Result<(), OutOfRange> {
        for (name, value, least, most) in [
            ("base_target", self.base_target, 1, 1_000_000_000),
            ("fs_range", self.fs_range, 0, 1_000_000_000),
            ("ai", self.ai, 1, 100),
            ("beta", self.beta, 1, 100),
            ("max_mdf", self.max_mdf, 1, 99),
        ] {
            OutOfRange::check(name, value, least, most)?;
        }
        Ok(())
    }
}

/// The window of one queue pair.
#[derive(Clone, Debug)]
pub struct Swift {
    parameters: SwiftParameters,
    /// The window, in 2^-16 packets.
    window: u64,
    /// The last round trip, in nanoseconds; 0 before the first.
    round_trip: u64,
    /// It shrinks once in a round trip: not before.
    next_decrease: Instant,
    /// A window of less than a packet lets the next one go then.
    next_departure: Option<Instant>,
}

impl Swift {
    /// The window of a queue pair that has not begun.
    pub fn new(parameters: SwiftParameters) -> Result<Self, OutOfRange> {
        parameters.check()?;
        Ok(Self {
            parameters,
            window: param::FIRST_WINDOW_PACKETS * PACKET,
            round_trip: 0,
            next_decrease: Instant::default(),
            next_departure: None,
        })
    }

    /// Windows for [`Stack::set_windows`](crate::Stack::set_windows): reliable services have one as this, and others the
    /// stack's own.
    pub fn windows(self) -> impl Fn(Qpn, Service) -> AnyWindow + Clone + Send + 'static {
        move |_, service| match service.kind().is_reliable() {
            true => AnyWindow::Other(Box::new(self.clone())),
            false => AnyWindow::of(service),
        }
    }

    /// How long a round trip may be, in nanoseconds.
    fn target(&self) -> u64 {
        let SwiftParameters { base_target, fs_range, .. } = self.parameters;
        let root = self.window.saturating_mul(PACKET).isqrt();
        let over_root = (PACKET * PACKET).checked_div(root).unwrap_or(LONGEST);
        let share = over_root.clamp(SHORTEST, LONGEST).wrapping_sub(SHORTEST);
        let more = u64::from(fs_range).saturating_mul(share) / (LONGEST - SHORTEST);
        u64::from(base_target).saturating_add(more)
    }

    fn grow(&mut self, packets: u64) {
        let by = packets.saturating_mul(self.parameters.ai.into()).saturating_mul(PACKET);
        // In all of them, a window's worth of packets makes it grow once.
        let by = match self.window > PACKET {
            true => by.saturating_mul(PACKET).checked_div(self.window).unwrap_or_default(),
            false => by,
        };
        self.window = self.window.saturating_add(by).min(MOST);
    }

    /// Shrinks by so many of a million, but by `max_mdf` at most, unless it did in this round trip.
    fn shrink(&mut self, now: Instant, millionths: u64) {
        if now < self.next_decrease {
            return;
        }
        let most = u64::from(self.parameters.max_mdf).saturating_mul(10_000);
        let by = self.window.saturating_mul(millionths.min(most)) / 1_000_000;
        self.window = self.window.saturating_sub(by).max(LEAST);
        self.next_decrease = Instant(now.0.saturating_add(self.round_trip));
    }
}

impl Window for Swift {
    fn on_sent(&mut self, now: Instant, _bytes: usize) {
        let share = self.round_trip.saturating_mul(PACKET).checked_div(self.window);
        let apart = share.filter(|_| self.window < PACKET);
        self.next_departure = apart.map(|nanos| Instant(now.0.saturating_add(nanos)));
    }

    fn on_ack(&mut self, now: Instant, acked: Acked) {
        let measured = acked.round_trip.map(|it| u64::try_from(it.as_nanos()).unwrap_or(u64::MAX));
        self.round_trip = measured.unwrap_or(self.round_trip);
        let target = self.target();
        let excess = self.round_trip.saturating_sub(target);
        if excess == 0 {
            self.grow(acked.packets);
        } else if measured.is_some() {
            let millionths = u64::from(self.parameters.beta)
                .saturating_mul(10_000)
                .saturating_mul(excess)
                .checked_div(self.round_trip);
            self.shrink(now, millionths.unwrap_or_default());
        }
    }

    fn on_loss(&mut self, now: Instant) {
        self.shrink(now, 1_000_000);
    }

    fn window(&self) -> u64 {
        (self.window / PACKET).max(1)
    }

    fn earliest_departure(&self) -> Option<Instant> {
        self.next_departure
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    fn swift() -> Swift {
        Swift::new(SwiftParameters::default()).unwrap()
    }

    fn ack(swift: &mut Swift, at: u64, packets: u64, round_trip: Option<u64>) {
        let round_trip = round_trip.map(Duration::from_nanos);
        swift.on_ack(Instant(at), Acked { packets, bytes: packets * 4096, round_trip });
    }

    #[test]
    fn a_window_grows_by_one_in_a_round_trip_below_the_target() {
        let mut swift = swift();
        ack(&mut swift, 0, 64, Some(10_000));
        ack(&mut swift, 0, 64, None);
        assert!(swift.window > 128 * PACKET && swift.window() <= 129, "{}", swift.window);
        assert_eq!(swift.earliest_departure(), None);
    }

    #[test]
    fn it_shrinks_once_in_a_round_trip_by_the_excess_and_by_half_at_most() {
        let mut swift = swift();
        let before = swift.window;
        // A hundred packets or more have the shortest target: a fifth of the time is too long, of which 80 % counts.
        ack(&mut swift, 100, 1, Some(18_750));
        assert!(swift.window.abs_diff(before * 84 / 100) < PACKET / 100, "{}", swift.window);
        ack(&mut swift, 18_849, 1, Some(18_750));
        assert!(swift.window.abs_diff(before * 84 / 100) < PACKET / 100, "not twice");
        let before = swift.window;
        ack(&mut swift, 18_850, 1, Some(10_000_000));
        assert_eq!(swift.window, before.div_ceil(2));
        swift.on_loss(Instant(20_000_000));
        assert_eq!(swift.window, before.div_ceil(4));
    }

    #[test]
    fn a_window_of_less_than_a_packet_lets_one_go_in_several_round_trips() {
        let mut swift = swift();
        for n in 0..100 {
            ack(&mut swift, n * 1_000_000, 1, Some(1_000_000));
        }
        assert_eq!((swift.window, swift.window()), (LEAST, 1));
        swift.on_sent(Instant(200_000_000), 4158);
        assert_eq!(swift.earliest_departure(), Some(Instant(264_000_000)));
        // The target of so small a window is the longest.
        assert_eq!(swift.target(), 215_000);
        ack(&mut swift, 300_000_000, 1, Some(70_000));
        assert!(swift.window > PACKET);
        swift.on_sent(Instant(300_000_000), 4158);
        assert_eq!(swift.earliest_departure(), None);
    }

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        let bad = SwiftParameters { max_mdf: 100, ..SwiftParameters::default() };
        let text = "max_mdf is 100; it can be 1 to 99";
        assert_eq!(Swift::new(bad).unwrap_err().to_string(), text);
    }
}
