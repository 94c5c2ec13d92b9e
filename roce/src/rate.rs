//! How long bytes take at a rate.

/// Bits of a byte.
const BYTE: u64 = 8;

/// A rate, and the fraction of the clock's unit that the times of what has passed so far lack, without which it would
/// drift.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineRate {
    /// Bits per second, never 0.
    bits: u64,
    remainder: u64,
}

impl LineRate {
    /// A rate of so many bits per second, at least one.
    #[must_use]
    pub const fn new(bits: u64) -> Self {
        Self { bits: if bits == 0 { 1 } else { bits }, remainder: 0 }
    }

    /// Bits per second.
    #[must_use]
    pub const fn bits(&self) -> u64 {
        self.bits
    }

    /// Goes on at another rate, of which no fraction is missing yet.
    pub fn set(&mut self, bits: u64) {
        if bits != self.bits {
            *self = Self::new(bits);
        }
    }

    /// The time that so many bytes take, at most a mebibyte, in a clock's units, of which a second has so many: 10^12 at
    /// most.
    #[inline]
    pub fn time_of(&mut self, bytes: u64, second: u64) -> u64 {
        // Less than 2^64 by these bounds, for the remainder is below the rate.
        let work = bytes.saturating_mul(second.saturating_mul(BYTE)).saturating_add(self.remainder);
        self.remainder = work.checked_rem(self.bits).unwrap_or_default();
        work.checked_div(self.bits).unwrap_or_default()
    }

    /// The bytes that pass in such a time.
    #[must_use]
    pub fn bytes_in(&self, time: u64, second: u64) -> u64 {
        let bits = u128::from(time).saturating_mul(self.bits.into());
        let bytes = bits.checked_div(u128::from(second.saturating_mul(BYTE)));
        u64::try_from(bytes.unwrap_or_default()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NANOS: u64 = 1_000_000_000;
    const PICOS: u64 = 1_000_000_000_000;

    #[test]
    fn a_byte_at_100_gigabits_takes_80_picoseconds() {
        let mut rate = LineRate::new(100_000_000_000);
        assert_eq!((rate.time_of(1, PICOS), rate.time_of(4182, PICOS)), (80, 4182 * 80));
        assert_eq!(rate.bytes_in(1_000_000, PICOS), 12_500);
        assert_eq!(LineRate::new(0).bits(), 1);
    }

    #[test]
    fn odd_rates_do_not_drift() {
        for (bits, second) in [(3, NANOS), (7_000_000_001, PICOS), (99_999_999_977, PICOS)] {
            let mut rate = LineRate::new(bits);
            let sum: u128 = (0..10_000).map(|_| u128::from(rate.time_of(64, second))).sum();
            assert_eq!(sum, 640_000 * 8 * u128::from(second) / u128::from(bits));
        }
    }

    #[test]
    fn another_rate_begins_without_a_fraction() {
        let mut rate = LineRate::new(3 * NANOS);
        assert_eq!([(); 3].map(|()| rate.time_of(1, NANOS)), [2, 3, 3]);
        rate.time_of(1, NANOS);
        rate.set(3 * NANOS);
        assert_eq!(rate.time_of(1, NANOS), 3, "the same rate goes on");
        rate.set(3 * NANOS / 2);
        assert_eq!(rate.time_of(1, NANOS), 5);
    }
}
