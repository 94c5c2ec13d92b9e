//! When whole packets leave that share a rate.

use crate::param;
use crate::rate::LineRate;
use crate::types::Instant;

/// The pacer: it keeps packets apart by their times at a rate, which may differ for each of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pacer {
    next: Option<Instant>,
    /// The rate of the last packet.
    rate: LineRate,
}

impl Default for Pacer {
    fn default() -> Self {
        Self { next: None, rate: LineRate::new(1) }
    }
}

impl Pacer {
    /// When the next packet may leave; `None` before the first.
    #[inline]
    pub(crate) const fn next(&self) -> Option<Instant> {
        self.next
    }

    /// A packet of so many bytes leaves, and takes its time of a rate in bits per second, which is not 0. A card that
    /// is late catches up by at most [`param::PACED_LATENESS`].
    pub(crate) fn leaves(&mut self, now: Instant, bytes: usize, rate: u64) {
        self.rate.set(rate);
        let took = self.rate.time_of(bytes as u64, Instant::SECOND);
        let begin = self.next.map_or(now, |next| next.max(now.before(param::PACED_LATENESS)));
        self.next = Some(Instant(begin.0.saturating_add(took)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RC-107.
    #[test]
    fn packets_leave_at_their_rate_to_the_nanosecond() {
        for (rate, bytes) in [(100_000_000_000, 4158), (1_000_000, 4158), (99_999_999_977, 64)] {
            let mut pacer = Pacer::default();
            let mut now = Instant(1_000);
            for _ in 0..10_000 {
                pacer.leaves(now, bytes, rate);
                now = pacer.next().unwrap();
            }
            let whole = 8 * u128::from(Instant::SECOND) * bytes as u128 * 10_000 / u128::from(rate);
            assert_eq!(u128::from(now.0 - 1_000), whole, "{rate}");
        }
    }

    /// RC-107.
    #[test]
    fn a_card_that_comes_late_makes_up_for_that_and_not_for_an_idle_hour() {
        let (mut pacer, rate) = (Pacer::default(), 8_000_000_000);
        pacer.leaves(Instant(0), 1_000, rate);
        assert_eq!(pacer.next(), Some(Instant(1_000)));
        pacer.leaves(Instant(1_700), 1_000, rate);
        assert_eq!(pacer.next(), Some(Instant(2_000)));
        let hour = Instant(3_600_000_000_000);
        pacer.leaves(hour, 1_000, rate);
        let lateness = param::PACED_LATENESS.as_nanos() as u64;
        assert_eq!(pacer.next(), Some(Instant(hour.0 - lateness + 1_000)));
    }
}
