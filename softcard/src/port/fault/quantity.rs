//! Rates and sizes, as numbers with a unit.

use std::fmt;
use std::str::FromStr;

/// The bits that a line carries in a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BitRate(u64);

/// An amount of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(u64);

const RATES: [(&str, u64); 2] = [("G", 1_000_000_000), ("M", 1_000_000)];
const MAX_RATE: u64 = 1_000_000_000_000;
const SIZES: [(&str, u64); 3] = [("M", 1 << 20), ("k", 1 << 10), ("", 1)];
const MAX_SIZE: u64 = 1 << 30;

pub(super) const MEND_RATE: &str =
    "write bits per second, a whole number from 1M to 1000G, such as 10G or 250M";
pub(super) const MEND_SIZE: &str =
    "write bytes, a whole number from 1 to 1024M, such as 400k or 1M, in which k stands for 1,024";

impl BitRate {
    /// A rate of so many bits per second.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Bits per second.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }
}

impl Size {
    /// A size of so many bytes.
    #[must_use]
    pub const fn from_bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

/// A number of nothing but digits.
pub(crate) fn whole<T: FromStr>(text: &str) -> Option<T> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// The digits that a text begins with, and the factor of the unit behind them.
pub(super) fn split<'a>(text: &'a str, units: &[(&str, u64)]) -> Option<(&'a str, u64)> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(digits)?;
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    Some((number, *factor))
}

/// A whole number with a unit, from 1 to the most there may be.
fn read(text: &str, units: &[(&str, u64)], most: u64) -> Option<u64> {
    let (number, factor) = split(text, units)?;
    let value = whole::<u64>(number)?.checked_mul(factor)?;
    (1..=most).contains(&value).then_some(value)
}

/// Writes a number with the first of these units that it is a multiple of.
pub(super) fn write(f: &mut fmt::Formatter<'_>, value: u64, units: &[(&str, u64)]) -> fmt::Result {
    let fits = |(_, factor): &&(&str, u64)| value.checked_rem(*factor) == Some(0);
    let (unit, factor) = units.iter().find(fits).copied().unwrap_or(("", 1));
    write!(f, "{}{unit}", value.checked_div(factor).unwrap_or_default())
}

impl FromStr for BitRate {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        read(text, &RATES, MAX_RATE).map(Self).ok_or(MEND_RATE)
    }
}

impl FromStr for Size {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        read(text, &SIZES, MAX_SIZE).map(Self).ok_or(MEND_SIZE)
    }
}

impl fmt::Display for BitRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(f, self.0, &RATES)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(f, self.0, &SIZES)
    }
}
