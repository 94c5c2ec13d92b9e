//! When whole packets leave that share a rate.

use crate::param;
use crate::rate::LineRate;
use crate::types::Instant;

/// The pacer: it keeps packets apart by their times at a rate, which may differ for each of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pacer {
    /// When the next packet leaves; 0 before the first.
    next: Instant,
    rate: LineRate,
}

impl Default for Pacer {
    fn default() -> Self {
        Self { next: Instant(0), rate: LineRate::new(1) }
    }
}

impl Pacer {
    /// When the next packet may leave; `None` before the first.
    #[inline]
    pub(crate) const fn next(&self) -> Option<Instant> {
        if self.next.0 == 0 { None } else { Some(self.next) }
    }

    /// The same, where so many bytes may leave before their time.
    pub(crate) fn next_ahead(&self, bytes: u32) -> Option<Instant> {
        let ahead = LineRate::new(self.rate.bits()).time_of(bytes.into(), Instant::SECOND);
        self.next().map(|next| Instant(next.0.saturating_sub(ahead)))
    }

    /// Has another rate from the next packet on, in bits per second, which is not 0.
    pub(crate) fn set(&mut self, rate: u64) {
        self.rate.set(rate);
    }

    /// A packet of so many bytes leaves, and takes its time. A card that is late catches up by at most
    /// [`param::PACED_LATENESS`].
    pub(crate) fn leaves(&mut self, now: Instant, bytes: usize) {
        let took = self.rate.time_of(bytes as u64, Instant::SECOND);
        let begin = self.next().map_or(now, |next| next.max(now.before(param::PACED_LATENESS)));
        self.next = Instant(begin.0.saturating_add(took));
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
            pacer.set(rate);
            let mut now = Instant(1_000);
            for _ in 0..10_000 {
                pacer.leaves(now, bytes);
                now = pacer.next().unwrap();
            }
            let whole = 8 * u128::from(Instant::SECOND) * bytes as u128 * 10_000 / u128::from(rate);
            assert_eq!(u128::from(now.0 - 1_000), whole, "{rate}");
        }
    }

    /// RC-107.
    #[test]
    fn a_card_that_comes_late_makes_up_for_that_and_not_for_an_idle_hour() {
        let mut pacer = Pacer::default();
        pacer.set(8_000_000_000);
        pacer.leaves(Instant(0), 1_000);
        assert_eq!(pacer.next(), Some(Instant(1_000)));
        pacer.leaves(Instant(1_700), 1_000);
        assert_eq!(pacer.next(), Some(Instant(2_000)));
        let hour = Instant(3_600_000_000_000);
        pacer.leaves(hour, 1_000);
        let lateness = param::PACED_LATENESS.as_nanos() as u64;
        assert_eq!(pacer.next(), Some(Instant(hour.0 - lateness + 1_000)));
    }
}
