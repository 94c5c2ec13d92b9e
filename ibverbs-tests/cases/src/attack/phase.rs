//! A phase of an attack: its length, and the measurements in it.

use std::fmt;
use std::time::Duration;

use verbs_programs::hostile::latency::Trips;

use super::level::Level;

/// How long an attack is looked at, and how strictly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// The length of the test command, on a machine that may have other work: counts are judged, and balboad's
    /// processor time.
    Short,
    /// For so long before, while and after; times are judged too, beside those of before and after.
    Long(Duration),
}

impl Length {
    /// How long each phase is.
    pub fn span(self) -> Duration {
        match self {
            Self::Short => Duration::from_secs(1),
            Self::Long(span) => span,
        }
    }

    /// The one of two values that belongs to the length.
    pub fn of<T>(self, short: T, long: T) -> T {
        match self {
            Self::Short => short,
            Self::Long(_) => long,
        }
    }
}

/// The measurements of a phase.
#[derive(Clone, Debug)]
pub struct Phase {
    /// When.
    pub name: &'static str,
    /// How long it was.
    pub span: Duration,
    /// The bystander's round trips.
    pub trips: Trips,
    /// The slowest answer of `balboa status`.
    pub status: Duration,
    /// The resources of balboad at the beginning.
    pub begin: Level,
    /// Its resources at the end.
    pub end: Level,
    /// The most that it took.
    pub peak: Level,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, span, trips, status, begin, end, peak } = self;
        let milli = |time: Duration| time.as_secs_f64() * 1e3;
        let rate = trips.count() as f64 / span.as_secs_f64();
        write!(f, "{name:6} {rate:6.0} round trips/s, mean {:.2} ms, ", milli(trips.took.mean()))?;
        let (p99, longest) = (milli(trips.took.percentile(99)), milli(trips.took.longest()));
        write!(f, "99 % within {p99:.2} ms, longest {longest:.1} ms; ")?;
        let (p99, longest) = (milli(trips.worked.percentile(99)), milli(trips.worked.longest()));
        write!(f, "work for 99 % of them within {p99:.2} ms, most {longest:.1} ms; ")?;
        let busy = |from: Duration, to: Duration| {
            100.0 * to.saturating_sub(from).as_secs_f64() / span.as_secs_f64()
        };
        let (cards, control) = (busy(begin.cards, end.cards), busy(begin.control, end.control));
        write!(f, "status {:.0} ms; card thread {cards:.0} %, others {control:.0} %; ", {
            milli(*status)
        })?;
        let mebi = |kib: u64| kib as f64 / 1024.0;
        let (resident, shared) = (mebi(peak.resident), mebi(peak.proportional));
        write!(f, "resident {resident:.1} MiB ({shared:.1} proportional), ")?;
        let grown = mebi(end.own) - mebi(begin.own);
        write!(f, "{:.1} its own, {grown:+.1} meanwhile; ", mebi(end.own))?;
        write!(f, "{} descriptors, ", peak.descriptors)?;
        write!(f, "{} lines logged", end.lines.saturating_sub(begin.lines))
    }
}
