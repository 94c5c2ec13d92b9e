//! Virtual time.

use roce::Instant;

/// Picoseconds in a nanosecond.
const PER_NANO: u64 = 1_000;

/// A point in virtual time, in picoseconds since the start: a byte at 100 Gb/s takes 80 of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// A second.
    pub const SECOND: u64 = 1_000_000_000_000;

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
