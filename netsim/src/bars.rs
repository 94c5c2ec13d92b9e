//! The bars of a network, and whether a run stayed within them.

use core::fmt;
use std::collections::{BTreeMap, BTreeSet};

use crate::config::{Bars, Bounds};
use crate::flow::{Flow, Message};
use crate::frame::PRIORITIES;
use crate::network::Network;
use crate::results::{WHOLE, jain, rate};
use crate::time::Time;

impl Bounds {
    /// The bound that a figure is beyond, in words.
    fn broken_by(self, figure: u64) -> Option<String> {
        match self {
            Self { least: Some(least), .. } if figure < least => Some(format!("{least} at least")),
            Self { most: Some(most), .. } if figure > most => Some(format!("{most} at most")),
            _ => None,
        }
    }
}

/// The figures of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Jain's index in millionths.
    pub fairness: u64,
    /// Bits per second.
    pub goodput: u64,
    /// The same in thousandths of the rates of the cables of all hosts that receive it.
    pub used: u64,
    /// The shares of each priority in all bytes, in thousandths.
    pub shares: [u64; PRIORITIES],
    /// The time that the 99th of each hundred messages took, of those that started in the span, in nanoseconds; `None`
    /// if that one was not complete.
    pub p99: Option<u64>,
    /// Frames.
    pub dropped: u64,
    /// Pauses.
    pub pauses: u64,
    /// Frames that were marked.
    pub marked: u64,
    /// Notifications that hosts heeded.
    pub notifications: u64,
}

impl Bars {
    /// A run that ends at a picosecond, of which everything counts and nothing is judged.
    #[must_use]
    pub const fn none(until: u64) -> Self {
        let any = Bounds { least: None, most: None };
        Self {
            from: 0,
            until,
            flows: Vec::new(),
            fairness: any,
            shares: BTreeMap::new(),
            goodput: any,
            p99: any,
            dropped: any,
            pauses: any,
        }
    }

    /// Runs a network from its start, whose hosts' cables have a rate in bits per second.
    pub fn run(&self, network: &mut Network, line: u64) -> Seen {
        let delivered = |network: &Network| -> Vec<u64> {
            network.flows().iter().map(|flow| flow.delivered).collect()
        };
        network.run(Time(self.from));
        let before = delivered(network);
        network.run(Time(self.until));
        let bytes: Vec<u64> =
            delivered(network).iter().zip(before).map(|(after, before)| after - before).collect();
        let shares = shares(network.flows(), &bytes);
        let counts = |flow: u32| self.flows.is_empty() || self.flows.contains(&flow);
        let counted = (0..).zip(network.flows()).zip(bytes).filter(|((it, _), _)| counts(*it));
        let (receivers, bytes): (BTreeSet<u32>, Vec<u64>) =
            counted.map(|((_, flow), bytes)| (flow.to, bytes)).unzip();
        let goodput = rate(bytes.iter().sum(), self.until.saturating_sub(self.from));
        let possible = u128::from(line) * receivers.len() as u128;
        let tally = network.tally();
        let heeded = network.hosts.iter().map(|host| host.stack.counters().rp_cnp_handled);
        Seen {
            fairness: jain(bytes),
            goodput,
            used: (u128::from(goodput) * 1_000 / possible.max(1)) as u64,
            shares,
            p99: p99(network.flows(), Time(self.from)),
            dropped: tally.dropped,
            pauses: tally.pauses,
            marked: tally.marked,
            notifications: heeded.sum(),
        }
    }

    /// The figures that are beyond a bound, in words.
    #[must_use]
    pub fn broken_by(&self, seen: &Seen) -> Vec<String> {
        let figures = [
            ("fairness", self.fairness, Some(seen.fairness)),
            ("goodput in bits per second", self.goodput, Some(seen.goodput)),
            ("p99 in nanoseconds", self.p99, seen.p99),
            ("dropped", self.dropped, Some(seen.dropped)),
            ("pauses", self.pauses, Some(seen.pauses)),
        ];
        let figures = figures.map(|(name, bounds, figure)| (name.to_owned(), bounds, figure));
        let shares = self.shares.iter().map(|(priority, bounds)| {
            let share = seen.shares.get(usize::from(*priority)).copied().unwrap_or_default();
            (format!("the share of priority {priority} in thousandths"), *bounds, Some(share))
        });
        let broken = figures.into_iter().chain(shares).filter_map(|(name, bounds, figure)| {
            let Some(figure) = figure else {
                let is_bound = bounds != Bounds::default();
                return is_bound
                    .then(|| format!("{name}: the message that it is of is not complete"));
            };
            Some(format!("{name} is {figure}, and is to be {}", bounds.broken_by(figure)?))
        });
        broken.collect()
    }
}

/// How long the 99th of each hundred messages took, of those that started at `from` or later, in nanoseconds.
fn p99(flows: &[Flow], from: Time) -> Option<u64> {
    let of_flow = |flow: &Flow| -> Vec<u64> {
        let started = flow.messages.iter().enumerate().filter(|(_, it)| it.start >= from);
        let took = |(number, it): (usize, &Message)| {
            flow.ends.get(number).map_or(u64::MAX, |end| end.nanos() - it.start.nanos())
        };
        started.map(took).collect()
    };
    let mut took: Vec<u64> = flows.iter().flat_map(of_flow).collect();
    let place = (took.len() * 99).div_ceil(100).checked_sub(1)?;
    let (_, p99, _) = took.select_nth_unstable(place);
    Some(*p99).filter(|took| *took != u64::MAX)
}

/// The shares of each priority's flows in all bytes, in thousandths.
fn shares(flows: &[Flow], bytes: &[u64]) -> [u64; PRIORITIES] {
    let mut shares = [0; PRIORITIES];
    for (flow, bytes) in flows.iter().zip(bytes) {
        shares[usize::from(flow.priority())] += bytes;
    }
    let all: u64 = bytes.iter().sum();
    shares.map(|share| (u128::from(share) * 1_000 / u128::from(all.max(1))) as u64)
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (fairness, goodput) = (self.fairness * 1_000 / WHOLE, self.goodput / 100_000_000);
        write!(
            f,
            "fairness {}.{:03}, goodput {}.{} Gb/s ({}.{} % of the receivers' cables), {} dropped, {} pauses, {} marked, {} notifications",
            fairness / 1_000,
            fairness % 1_000,
            goodput / 10,
            goodput % 10,
            self.used / 10,
            self.used % 10,
            self.dropped,
            self.pauses,
            self.marked,
            self.notifications
        )?;
        if let Some(nanos) = self.p99 {
            write!(f, ", p99 {}.{} us", nanos / 1_000, nanos % 1_000 / 100)?;
        }
        // Of one priority there is nothing to say.
        let shares = self.shares.iter().enumerate().filter(|(_, share)| **share != 0);
        if shares.clone().count() > 1 {
            for (priority, share) in shares {
                write!(f, ", priority {priority} {}.{} %", share / 10, share % 10)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_beyond_a_bound_is_named() {
        let bars = Bars {
            fairness: Bounds { least: Some(950_000), most: None },
            pauses: Bounds { least: Some(1), most: Some(2) },
            p99: Bounds { least: None, most: Some(20_000) },
            shares: [(3, Bounds { least: None, most: Some(605) })].into(),
            ..Bars::none(1)
        };
        let seen = Seen {
            fairness: 950_000,
            goodput: 36_200_000_000,
            used: 905,
            shares: [0, 0, 0, 605, 395, 0, 0, 0],
            p99: Some(12_345),
            dropped: 7,
            pauses: 2,
            marked: 5,
            notifications: 4,
        };
        assert_eq!(bars.broken_by(&seen), [""; 0]);
        let text = "fairness 0.950, goodput 36.2 Gb/s (90.5 % of the receivers' cables), 7 dropped, 2 pauses, 5 marked, 4 notifications, p99 12.3 us, priority 3 60.5 %, priority 4 39.5 %";
        assert_eq!(seen.to_string(), text);
        let broken = bars.broken_by(&Seen {
            fairness: 949_999,
            pauses: 3,
            p99: Some(20_001),
            shares: [0, 0, 0, 606, 394, 0, 0, 0],
            ..seen
        });
        let expected = [
            "fairness is 949999, and is to be 950000 at least",
            "p99 in nanoseconds is 20001, and is to be 20000 at most",
            "pauses is 3, and is to be 2 at most",
            "the share of priority 3 in thousandths is 606, and is to be 605 at most",
        ];
        assert_eq!(broken, expected);
        let incomplete = Seen { p99: None, ..seen };
        let expected = ["p99 in nanoseconds: the message that it is of is not complete"];
        for p99 in [Bounds { least: Some(1), most: None }, bars.p99] {
            let bars = Bars { p99, ..bars.clone() };
            assert_eq!(bars.broken_by(&incomplete), expected);
        }
        let bars = Bars { p99: Bounds::default(), ..bars };
        assert_eq!(bars.broken_by(&incomplete), [""; 0]);
    }
}
