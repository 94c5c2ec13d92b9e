//! Virtual time, and how long bytes take on a wire.

use roce::Instant;

/// Picoseconds in a nanosecond.
const PER_NANO: u64 = 1_000;

/// Picoseconds in a second, times the bits of a byte.
const BYTE_SECOND: u64 = 8_000_000_000_000;

/// A point in virtual time, in picoseconds since the start: a byte at 100 Gb/s takes 80 of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// Later than everything.
    pub const NEVER: Self = Self(u64::MAX);

    /// The time of so many nanoseconds after the start.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos.saturating_mul(PER_NANO))
    }

    /// The time of so many microseconds after the start.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self::from_nanos(micros.saturating_mul(1_000))
    }

    /// Whole nanoseconds since the start.
    #[must_use]
    pub const fn nanos(self) -> u64 {
        self.0 / PER_NANO
    }

    /// The time so many picoseconds later.
    #[must_use]
    pub const fn after(self, picoseconds: u64) -> Self {
        Self(self.0.saturating_add(picoseconds))
    }

    /// The transport's clock at this time, in whole nanoseconds.
    #[must_use]
    pub const fn instant(self) -> Instant {
        Instant(self.nanos())
    }
}

impl From<Instant> for Time {
    fn from(instant: Instant) -> Self {
        Self::from_nanos(instant.0)
    }
}

/// A wire's rate, and the fraction of a picosecond that the times of frames so far lack, without which a rate would
/// drift.
#[derive(Clone, Copy, Debug)]
pub struct Wire {
    rate: u64,
    remainder: u64,
}

impl Wire {
    /// A wire of so many bits per second, at least one.
    #[must_use]
    pub fn new(rate: u64) -> Self {
        Self { rate: rate.max(1), remainder: 0 }
    }

    /// Bits per second.
    #[must_use]
    pub const fn rate(&self) -> u64 {
        self.rate
    }

    /// The picoseconds that so many bytes take, at most a mebibyte.
    pub fn time_of(&mut self, bytes: u32) -> u64 {
        let work = u64::from(bytes) * BYTE_SECOND + self.remainder;
        self.remainder = work % self.rate;
        work / self.rate
    }

    /// The bytes that pass in so many picoseconds.
    #[must_use]
    pub fn bytes_in(&self, picoseconds: u64) -> u64 {
        let bytes = u128::from(picoseconds) * u128::from(self.rate) / u128::from(BYTE_SECOND);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_at_100_gigabits_takes_80_picoseconds() {
        let mut wire = Wire::new(100_000_000_000);
        assert_eq!(wire.time_of(1), 80);
        assert_eq!(wire.time_of(4182), 4182 * 80);
        assert_eq!(wire.bytes_in(1_000_000), 12_500);
    }

    #[test]
    fn odd_rates_do_not_drift() {
        for rate in [3, 7_000_000_001, 99_999_999_977] {
            let mut wire = Wire::new(rate);
            let sum: u128 = (0..10_000).map(|_| u128::from(wire.time_of(64))).sum();
            assert_eq!(sum, 640_000 * u128::from(BYTE_SECOND) / u128::from(rate));
        }
    }
}
