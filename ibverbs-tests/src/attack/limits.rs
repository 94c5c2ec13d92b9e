//! What an attack must not do.

use std::fmt;
use std::time::Duration;

use anyhow::{Error, Result};

use super::phase::{Length, Phase};

/// How often as long a bystander's round trips may take beside an attack as beside harmless work.
const SLOWER: u32 = 5;
/// The same where the machine may have turned to something else meanwhile.
const MUCH_SLOWER: u32 = 50;
/// And below this nothing is said there.
const NOTICED: Duration = Duration::from_secs(1);
/// The longest that the status, or a single round trip, may take.
const LONGEST: Duration = Duration::from_secs(1);

/// Lines that may be logged of programs in all, and more of them for each second.
const LINES: usize = 150;
const LINES_A_SECOND: usize = 10;

/// What balboad may take for an attacker, while that is connected.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Resident memory beyond that of before, MiB.
    pub memory: u64,
    /// Memory of its own that comes to it while the attack goes on, MiB. What it has in common with a
    /// program, whose quota that is, fills when queues are first used: on a busy machine, meanwhile.
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
        judge_times(before, during, length, excess);
    }
}

/// Looks whether the bystander, and who asks for the status, were slowed down too much.
fn judge_times(before: &Phase, during: &Phase, length: Length, excess: &mut Excess) {
    let (usual, found) = (before.trips.percentile(99), during.trips.percentile(99));
    if length == Length::Short {
        let limit = NOTICED.max(usual * MUCH_SLOWER);
        excess.unless(found <= limit, || {
            format!("the bystander's 99th percentile is {found:?} and was {usual:?}")
        });
        return;
    }
    excess.late_unless(found <= usual * SLOWER, || {
        format!("the bystander's 99th percentile is {found:?} and was {usual:?}")
    });
    let (usual, found) = (before.trips.mean(), during.trips.mean());
    excess.late_unless(found <= usual * SLOWER, || {
        format!("the bystander's round trips take {found:?} on average and took {usual:?}")
    });
    let found = during.trips.longest();
    excess.late_unless(found <= LONGEST, || format!("one of its round trips takes {found:?}"));
    let found = during.status;
    excess.late_unless(found <= LONGEST, || format!("the status takes {found:?}"));
}

/// Limits that were exceeded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Excess {
    counted: Vec<String>,
    timed: Vec<String>,
}

impl Excess {
    /// Notes what was counted and is too much.
    pub fn unless(&mut self, fine: bool, what: impl FnOnce() -> String) {
        if !fine {
            self.counted.push(what());
        }
    }

    /// Notes what took too long.
    pub fn late_unless(&mut self, fine: bool, what: impl FnOnce() -> String) {
        if !fine {
            self.timed.push(what());
        }
    }

    /// Whether an error is of what took too long, and of nothing else: the machine may have had other
    /// things to do, which it does not have each time.
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
