//! The limits that an attack must not exceed.

use std::fmt;
use std::time::Duration;

use anyhow::{Error, Result};

use super::phase::{Length, Phase};

/// How often as long a bystander's round trips, or the status, may take beside an attack as beside harmless work.
const SLOWER: u32 = 5;
/// How often as much balboad may work during a round trip where the phases are short.
const MUCH_MORE: u32 = 50;
/// And below this nothing is said: a bystander that waits for a processor sees a balboad that works for others meanwhile.
const NOTICED: Duration = Duration::from_secs(1);

/// Lines that may be logged of programs in all, and more of them for each second.
const LINES: usize = 150;
const LINES_A_SECOND: usize = 10;

/// The resources that balboad may take for an attacker, while that is connected.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Resident memory beyond that of before, MiB.
    pub memory: u64,
    /// Growth of its own memory during the attack, MiB. Memory that it shares with a program counts for the
    /// program's quota, and fills when queues are first used: on a busy machine, meanwhile.
    pub growth: u64,
    /// Descriptors beyond those of before.
    pub descriptors: usize,
}

impl Limits {
    /// Looks whether an attack kept to them.
    pub(super) fn judge(
        &self,
        [before, during, after]: [&Phase; 3],
        length: Length,
        excess: &mut Excess,
    ) {
        let mebi = |kib: u64| kib >> 10;
        let held = mebi(during.peak.resident.saturating_sub(before.end.resident));
        excess.unless(held <= self.memory, || {
            format!("{held} MiB more than before, and {} are the limit", self.memory)
        });
        let grown = mebi(during.end.own.saturating_sub(during.begin.own));
        excess.unless(grown <= self.growth, || {
            let (span, limit) = (during.span, self.growth);
            format!("{grown} MiB more of its own within {span:?}, and {limit} are the limit")
        });
        let descriptors = during.peak.descriptors.saturating_sub(before.end.descriptors);
        excess.unless(descriptors <= self.descriptors, || {
            format!("{descriptors} descriptors more, and {} are the limit", self.descriptors)
        });
        let lines = after.end.lines.saturating_sub(before.end.lines);
        let seconds = usize::try_from(before.end.taken.elapsed().as_secs()).unwrap_or(usize::MAX);
        let limit = LINES.saturating_add(LINES_A_SECOND.saturating_mul(seconds));
        excess
            .unless(lines <= limit, || format!("{lines} lines logged, and {limit} are the limit"));
        judge_times([before, during, after], length, excess);
    }
}

/// Checks that the bystander and the status command were not slowed down too much: by balboad's work during a round
/// trip, which does not grow on a busy machine, and, in long runs, by times compared with those before or after.
fn judge_times([before, during, after]: [&Phase; 3], length: Length, excess: &mut Excess) {
    let usual = |of: &dyn Fn(&Phase) -> Duration| of(before).max(of(after));
    let work = |phase: &Phase| phase.trips.worked.percentile(99);
    let (found, limit) = (work(during), NOTICED.max(usual(&work) * MUCH_MORE));
    excess.late_unless(found <= limit, || {
        format!("balboad works {found:?} for one in a hundred of the bystander's round trips, and {limit:?} are the limit")
    });
    if length == Length::Short {
        return;
    }
    let found = during.trips.worked.longest();
    excess.late_unless(found <= NOTICED, || {
        format!("balboad works {found:?} while one of the bystander's round trips is under way")
    });
    let slower = |what: &str, of: &dyn Fn(&Phase) -> Duration, least: Duration| {
        let (usual, found) = (usual(of), of(during));
        let is = found > least.max(usual * SLOWER);
        is.then(|| format!("{what} {found:?}, and {usual:?} before or after"))
    };
    let late = [
        slower(
            "the bystander's 99th percentile is",
            &|it| it.trips.took.percentile(99),
            Duration::ZERO,
        ),
        slower(
            "the bystander's round trips take on average",
            &|it| it.trips.took.mean(),
            Duration::ZERO,
        ),
        slower("one of its round trips takes", &|it| it.trips.took.longest(), NOTICED),
        slower("the status takes", &|it| it.status, NOTICED),
    ];
    late.into_iter().flatten().for_each(|what| excess.late_unless(false, || what));
}

/// Limits that were exceeded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Excess {
    counted: Vec<String>,
    timed: Vec<String>,
}

impl Excess {
    /// Notes a count that is too high.
    pub fn unless(&mut self, fine: bool, what: impl FnOnce() -> String) {
        if !fine {
            self.counted.push(what());
        }
    }

    /// Notes a time that is too long.
    pub fn late_unless(&mut self, fine: bool, what: impl FnOnce() -> String) {
        if !fine {
            self.timed.push(what());
        }
    }

    /// Whether an error is of times alone: other work of the machine may have caused it, and does not each time.
    pub fn is_only_late(error: &Error) -> bool {
        error.downcast_ref::<Self>().is_some_and(|it| it.counted.is_empty())
    }

    /// Itself as an error, if there is any.
    pub(super) fn judged(self) -> Result<()> {
        if self == Self::default() { Ok(()) } else { Err(self.into()) }
    }
}

impl std::error::Error for Excess {}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "limits are exceeded")?;
        self.counted.iter().chain(&self.timed).try_for_each(|what| write!(f, "\n     - {what}"))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::attack::level::Level;
    use verbs_programs::hostile::latency::Trips;

    const MS: Duration = Duration::from_millis(1);

    /// A phase of a hundred round trips, all of which take as long and cost as much work, and of a status.
    fn phase(took: Duration, worked: Duration, status: Duration) -> Phase {
        let level = Level {
            taken: Instant::now(),
            resident: 0,
            proportional: 0,
            own: 0,
            descriptors: 0,
            lines: 0,
            cards: Duration::ZERO,
            control: Duration::ZERO,
        };
        let mut trips = Trips::default();
        (0..100).for_each(|_| trips.add(took, worked));
        let (begin, end, peak) = (level.clone(), level.clone(), level);
        Phase { name: "", span: MS, trips, status, begin, end, peak }
    }

    fn judged(phases: [&Phase; 3], length: Length) -> Vec<String> {
        let mut excess = Excess::default();
        judge_times(phases, length, &mut excess);
        assert!(excess.counted.is_empty());
        excess.timed
    }

    #[test]
    fn a_machine_that_stands_still_is_no_fault_of_balboads() {
        let (quiet, busy) = (phase(MS, MS, MS), phase(5000 * MS, 30 * MS, 9000 * MS));
        assert_eq!(judged([&quiet, &busy, &quiet], Length::Short), Vec::<String>::new());
        // It is busy before or after as well, or it is none.
        let long = Length::Long(Duration::from_secs(1));
        assert_eq!(judged([&quiet, &busy, &busy], long), Vec::<String>::new());
        assert_eq!(judged([&busy, &busy, &quiet], long), Vec::<String>::new());
        assert_eq!(judged([&quiet, &busy, &quiet], long).len(), 4);
    }

    #[test]
    fn a_balboad_that_works_for_others_while_a_message_waits_is_told() {
        let (quiet, starved) = (phase(MS, MS, MS), phase(1200 * MS, 1100 * MS, MS));
        let told = judged([&quiet, &starved, &quiet], Length::Short);
        assert_eq!(told.len(), 1);
        assert!(told[0].starts_with("balboad works 1.1s for one in a hundred"), "{told:?}");
        // Also beside a machine that is as slow at all times.
        let slow = phase(1200 * MS, 2 * MS, MS);
        assert_eq!(judged([&slow, &starved, &slow], Length::Long(MS)).len(), 2);
    }
}
