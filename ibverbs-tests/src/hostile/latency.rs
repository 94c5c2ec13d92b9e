//! The times of a bystander's round trips, and balboad's work meanwhile: counted, printed, and read.
//!
//! Neither depends on other work of the machine: the time for which a trip waits for a processor is taken off, and
//! costs no work.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, Error, Result};

/// The word that begins a line of the bystander's.
const WORD: &str = "trips";
/// log2 of the steps in which a power of two is told: one of them is 6 %.
const LOG2_STEPS: u32 = 4;
/// Nanoseconds are told up to 2^42, more than an hour.
const LARGEST: u32 = 42;

/// The text between the two spreads of a line.
const AND: &str = " / ";

/// Round trips.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trips {
    /// The times, without waits for a processor on the way.
    pub took: Spread,
    /// How long balboad's threads ran meanwhile, all together.
    pub worked: Spread,
}

impl Trips {
    /// Counts one.
    pub fn add(&mut self, took: Duration, worked: Duration) {
        self.took.add(took);
        self.worked.add(worked);
    }

    /// Counts another's.
    pub fn merge(&mut self, other: &Self) {
        self.took.merge(&other.took);
        self.worked.merge(&other.worked);
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.took.count()
    }

    /// The lines that were printed of them in a program's output so far.
    pub fn lines(output: &str) -> impl Iterator<Item = &str> {
        // The last one may be half written.
        let whole = output.rfind('\n').and_then(|end| output.get(..end)).unwrap_or_default();
        whole.lines().filter(|line| line.starts_with(WORD))
    }
}

/// The times as the bystander prints them, in one line.
impl fmt::Display for Trips {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{WORD}{}{AND}{}", self.took, self.worked)
    }
}

impl FromStr for Trips {
    type Err = Error;

    fn from_str(line: &str) -> Result<Self> {
        let read = || {
            let (took, worked) = line.strip_prefix(WORD)?.split_once(AND)?;
            Some(Self { took: Spread::read(took)?, worked: Spread::read(worked)? })
        };
        read().with_context(|| format!("no round trips: {line:?}"))
    }
}

/// Times, counted by how long they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    /// How many are in each step.
    steps: Vec<u64>,
    longest: Duration,
    total: Duration,
}

impl Spread {
    /// Counts one.
    pub fn add(&mut self, took: Duration) {
        self.add_many(step(took), 1);
        self.longest = self.longest.max(took);
        self.total += took;
    }

    /// Counts another's.
    pub fn merge(&mut self, other: &Self) {
        for (step, count) in other.steps.iter().enumerate() {
            self.add_many(step, *count);
        }
        self.longest = self.longest.max(other.longest);
        self.total += other.total;
    }

    fn add_many(&mut self, step: usize, count: u64) {
        if self.steps.len() <= step {
            self.steps.resize(step + 1, 0);
        }
        self.steps[step] += count;
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.steps.iter().sum()
    }

    /// The longest of them.
    pub fn longest(&self) -> Duration {
        self.longest
    }

    /// Their mean.
    pub fn mean(&self) -> Duration {
        let count = u32::try_from(self.count()).unwrap_or(u32::MAX);
        self.total.checked_div(count).unwrap_or_default()
    }

    /// The time within which so many of a hundred came back, rounded up to the step.
    pub fn percentile(&self, of_hundred: u64) -> Duration {
        let wanted = (self.count() * of_hundred).div_ceil(100);
        let mut count = 0;
        for (step, of_step) in self.steps.iter().enumerate() {
            count += of_step;
            if count >= wanted {
                return end_of(step).min(self.longest);
            }
        }
        self.longest
    }

    fn read(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let mut span = || Some(Duration::from_nanos(words.next()?.parse().ok()?));
        let mut spread = Self { longest: span()?, total: span()?, steps: Vec::new() };
        for word in words {
            let (step, count) = word.split_once(':')?;
            spread.add_many(step.parse().ok()?, count.parse().ok()?);
        }
        Some(spread)
    }
}

/// Numbers with a space before each.
impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, " {} {}", self.longest.as_nanos(), self.total.as_nanos())?;
        let taken = self.steps.iter().enumerate().filter(|(_, count)| **count > 0);
        taken.into_iter().try_for_each(|(step, count)| write!(f, " {step}:{count}"))
    }
}

/// The step that a time falls into.
fn step(took: Duration) -> usize {
    let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).clamp(1, 1 << LARGEST);
    let log2 = nanos.ilog2();
    let within = (nanos << (LARGEST - log2)) >> (LARGEST - LOG2_STEPS);
    ((log2 << LOG2_STEPS) as u64 + within - (1 << LOG2_STEPS)) as usize
}

/// The first time beyond a step.
fn end_of(step: usize) -> Duration {
    let next = step as u64 + 1;
    let (log2, within) = (next >> LOG2_STEPS, next & ((1 << LOG2_STEPS) - 1));
    Duration::from_nanos((((1 << LOG2_STEPS) + within) << log2).div_ceil(1 << LOG2_STEPS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_a_step_of_the_truth() {
        let mut trips = Spread::default();
        for micros in 1..=10_000 {
            trips.add(Duration::from_micros(micros));
        }
        for of_hundred in [1, 50, 99, 100] {
            let truth = of_hundred as f64 / 1e4;
            let found = trips.percentile(of_hundred).as_secs_f64();
            assert!((truth..=truth * 1.07).contains(&found), "{found} for {truth}");
        }
        assert_eq!((trips.count(), trips.longest()), (10_000, Duration::from_millis(10)));
        assert_eq!(trips.mean(), Duration::from_nanos(5_000_500));
        assert_eq!(Spread::default().percentile(99), Duration::ZERO);
    }

    #[test]
    fn every_time_lies_in_its_step() {
        for nanos in (0..4096).chain([1 << 20, (1 << 20) - 1, 1 << 41, u64::MAX >> 1]) {
            let time = Duration::from_nanos(nanos);
            let (own, last) = (step(time), 1 << LARGEST);
            assert!(end_of(own) > time || nanos >= last, "{nanos}");
            assert!(own == 0 || end_of(own - 1) <= time, "{nanos}");
        }
    }

    #[test]
    fn what_is_printed_is_read_and_merged() {
        let (mut one, mut other) = (Trips::default(), Trips::default());
        one.add(Duration::from_micros(3), Duration::from_micros(2));
        other.add(Duration::from_secs(1), Duration::ZERO);
        other.add(Duration::from_micros(3), Duration::from_micros(5));
        let output = format!("ready\n{one}\n{other}\ntrips 12");
        let mut read = Trips::default();
        for line in Trips::lines(&output) {
            read.merge(&line.parse().unwrap());
        }
        one.merge(&other);
        assert_eq!(read, one);
        assert_eq!(read.count(), 3);
        assert_eq!(read.worked.longest(), Duration::from_micros(5));
        for wrong in ["trips 1", "trips 1 2", "trips 1 2 / 3", "trips 1 2 3:x / 1 2"] {
            assert!(wrong.parse::<Trips>().is_err(), "{wrong}");
        }
    }
}
