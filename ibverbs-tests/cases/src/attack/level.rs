//! The use of the machine by a balboad at a moment, clients or none.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use harness::setting::Daemon;

/// The card thread's name.
const CARDS: &str = "cards";

/// The resources that a balboad holds, and has used.
#[derive(Clone, Debug)]
pub struct Level {
    /// When.
    pub taken: Instant,
    /// Resident memory, KiB.
    pub resident: u64,
    /// The same, with shared memory divided by the number of its sharers.
    pub proportional: u64,
    /// Its private memory that is in no file, KiB.
    pub own: u64,
    /// Descriptors.
    pub descriptors: usize,
    /// Lines that it has logged.
    pub lines: usize,
    /// Processor time of the card thread.
    pub cards: Duration,
    /// Processor time of all other threads.
    pub control: Duration,
}

impl Level {
    /// Looks at a balboad.
    ///
    /// # Errors
    /// When it has ended.
    pub fn of(daemon: &Daemon<'_>) -> Result<Self> {
        let process = Path::new("/proc").join(daemon.pid().to_string());
        let memory =
            fs::read_to_string(process.join("smaps_rollup")).context("balboad's memory")?;
        let kib = |name: &str| -> Result<u64> {
            let line = memory.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
            number.with_context(|| format!("no {name} of {}", process.display()))
        };
        let mut level = Self {
            taken: Instant::now(),
            resident: kib("Rss:")?,
            proportional: kib("Pss:")?,
            own: kib("Anonymous:")?,
            descriptors: fs::read_dir(process.join("fd")).context("balboad's descriptors")?.count(),
            lines: daemon.log().lines().count(),
            cards: Duration::ZERO,
            control: Duration::ZERO,
        };
        for thread in fs::read_dir(process.join("task")).context("balboad's threads")? {
            let thread: PathBuf = thread?.path();
            // One that has ended meanwhile took no time worth counting.
            let (Ok(name), Ok(time)) = (fs::read_to_string(thread.join("comm")), time_of(&thread))
            else {
                continue;
            };
            match name.trim_end() {
                CARDS => level.cards += time,
                _ => level.control += time,
            }
        }
        Ok(level)
    }

    /// The larger of either, by each of its numbers.
    pub fn raise(&mut self, other: &Self) {
        self.resident = self.resident.max(other.resident);
        self.proportional = self.proportional.max(other.proportional);
        self.own = self.own.max(other.own);
        self.descriptors = self.descriptors.max(other.descriptors);
        self.lines = self.lines.max(other.lines);
        self.cards = self.cards.max(other.cards);
        self.control = self.control.max(other.control);
    }
}

/// The processor time of a thread, as its scheduler counts it in nanoseconds.
fn time_of(thread: &Path) -> Result<Duration> {
    let counted = fs::read_to_string(thread.join("schedstat"))?;
    let nanos = counted.split_whitespace().next().and_then(|word| word.parse().ok());
    nanos.map(Duration::from_nanos).with_context(|| format!("no time in {counted:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_told_its_time() {
        let own = Path::new("/proc/thread-self");
        let before = time_of(own).unwrap();
        let mut word = 1u64;
        while time_of(own).unwrap() == before {
            word = std::hint::black_box(word.rotate_left(7) ^ 5);
        }
    }
}
