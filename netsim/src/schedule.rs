//! The order in which a port's priorities send: strict, or by weights (ETS, IEEE 802.1Q, clause 37).
//!
//! Weights are kept by deficit round robin (Shreedhar and Varghese, SIGCOMM 1995): each priority in its turn may send so
//! many bytes more, and saves them up if its next frame is longer.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::error::Error;
use crate::frame::PRIORITIES;

/// Bytes that a priority may send more in its turn, for each percent of its weight.
const BYTES_OF_A_PERCENT: u32 = 128;

/// How a port chooses among priorities. Those of neither kind go behind all others, the highest first.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "Description")]
pub struct Ets {
    /// Priorities that go before all others, the highest first; a bit for each.
    pub strict: u8,
    /// The percentages of the other priorities in the rest that these leave. All together are 100.
    pub weights: [u8; PRIORITIES],
}

/// The same, as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    #[serde(default)]
    strict: Vec<u8>,
    #[serde(default)]
    weights: BTreeMap<u8, u8>,
}

impl TryFrom<Description> for Ets {
    type Error = Error;

    fn try_from(description: Description) -> Result<Self, Error> {
        let mut ets = Self { strict: 0, weights: [0; PRIORITIES] };
        let none = |priority: &u8| Error::Range {
            what: "a priority of ets",
            value: (*priority).into(),
            range: "0 to 7",
        };
        for priority in &description.strict {
            let bit = 1_u8.checked_shl((*priority).into()).ok_or_else(|| none(priority))?;
            ets.strict |= bit;
        }
        for (priority, weight) in &description.weights {
            let place = ets.weights.get_mut(usize::from(*priority));
            *place.ok_or_else(|| none(priority))? = *weight;
        }
        Ok(ets)
    }
}

impl Ets {
    /// Refuses priorities of both kinds, and weights that are not 100.
    pub fn check(&self) -> Result<(), Error> {
        let range = |what, value, range| Err(Error::Range { what, value, range });
        let both = (0_u8..)
            .zip(self.weights)
            .find(|(priority, weight)| *weight != 0 && self.strict >> priority & 1 == 1);
        if let Some((priority, _)) = both {
            return range("a priority of ets", priority.into(), "strict, or have a weight");
        }
        match self.weights.iter().map(|weight| u64::from(*weight)).sum() {
            0 | 100 => Ok(()),
            sum => range("the sum of ets' weights", sum, "100"),
        }
    }
}

/// The choice of a port.
#[derive(Clone, Debug)]
pub struct Schedule {
    strict: u8,
    /// Bytes that each may send more in its turn; 0 where it has no weight.
    quanta: [u32; PRIORITIES],
    weighted: u8,
    /// Bytes that each may still send.
    rest: [u32; PRIORITIES],
    /// The priority whose turn it is among those with weights.
    turn: usize,
}

impl Schedule {
    /// A schedule as described; without a description the highest priority goes first.
    #[must_use]
    pub fn new(ets: Option<Ets>) -> Self {
        let Ets { strict, weights } =
            ets.unwrap_or(Ets { strict: u8::MAX, weights: [0; PRIORITIES] });
        let quanta = weights.map(|weight| u32::from(weight) * BYTES_OF_A_PERCENT);
        let has_weight = |priority: &usize| weights[*priority] != 0;
        let weighted = (0..PRIORITIES).filter(has_weight).fold(0, |set, it| set | 1 << it);
        Self { strict, quanta, weighted, rest: [0; PRIORITIES], turn: 0 }
    }

    /// The priority that goes next, of those that may; the first frame of each has so many bytes. None is saved up for
    /// by one of which nothing `waits`.
    pub fn next(&mut self, may: u8, waits: u8, size: impl Fn(usize) -> u32) -> Option<usize> {
        let first = highest(may & self.strict);
        let weighted = may & self.weighted;
        if first.is_some() || weighted == 0 {
            return first.or_else(|| highest(may));
        }
        for priority in (0..PRIORITIES).filter(|priority| waits >> priority & 1 == 0) {
            self.rest[priority] = 0;
        }
        while weighted >> self.turn & 1 == 0 || self.rest[self.turn] < size(self.turn) {
            self.turn = (self.turn + 1) % PRIORITIES;
            if weighted >> self.turn & 1 == 1 {
                self.rest[self.turn] += self.quanta[self.turn];
            }
        }
        Some(self.turn)
    }

    /// A frame of so many bytes leaves.
    pub fn leaves(&mut self, priority: usize, size: u32) {
        self.rest[priority] = self.rest[priority].saturating_sub(size);
    }
}

/// The highest of some priorities.
fn highest(set: u8) -> Option<usize> {
    set.checked_ilog2().map(|priority| priority as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(strict: &[u8], weights: &[(u8, u8)]) -> Result<Ets, Error> {
        let weights = weights.iter().copied().collect();
        let ets = Ets::try_from(Description { strict: strict.into(), weights })?;
        ets.check().map(|()| ets)
    }

    fn ets(strict: &[u8], weights: &[(u8, u8)]) -> Ets {
        described(strict, weights).unwrap()
    }

    /// Bytes that each priority gets of so many frames, of those that may, whose frames have these sizes.
    fn bytes(schedule: &mut Schedule, may: u8, sizes: [u32; 8], frames: u32) -> [u32; 8] {
        let mut bytes = [0; 8];
        for _ in 0..frames {
            let priority = schedule.next(may, may, |priority| sizes[priority]).unwrap();
            schedule.leaves(priority, sizes[priority]);
            bytes[priority] += sizes[priority];
        }
        bytes
    }

    #[test]
    fn without_a_description_the_highest_goes_first() {
        let mut schedule = Schedule::new(None);
        assert_eq!(schedule.next(0b1010, 0b1010, |_| 100), Some(3));
        assert_eq!(schedule.next(0, 0, |_| 100), None);
    }

    #[test]
    fn weights_are_shares_of_bytes_whatever_the_sizes_of_frames() {
        let ets = ets(&[7], &[(0, 10), (3, 60), (4, 30)]);
        let sizes = [64, 0, 0, 4_190, 1_082, 300, 0, 0];
        let mut schedule = Schedule::new(Some(ets));
        let seen = bytes(&mut schedule, 0b1_1001, sizes, 100_000);
        let sum: u32 = seen.iter().sum();
        for (priority, weight) in [(0, 10), (3, 60), (4, 30)] {
            let share = u64::from(seen[priority]) * 1_000 / u64::from(sum);
            assert!(share.abs_diff(weight * 10) <= 2, "{priority}: {share}");
        }
        // The others share the unused part of one in proportion.
        let seen = bytes(&mut schedule, 0b1_0001, sizes, 100_000);
        assert!((299..=301).contains(&(u64::from(seen[4]) * 100 / u64::from(seen[0]))), "{seen:?}");
    }

    #[test]
    fn strict_ones_go_before_and_those_of_neither_kind_behind() {
        let mut schedule = Schedule::new(Some(ets(&[1, 6], &[(0, 10), (3, 90)])));
        let next = |schedule: &mut Schedule, may| schedule.next(may, may, |_| 1_000);
        assert_eq!(next(&mut schedule, 0b1110_1111), Some(6));
        assert_eq!(next(&mut schedule, 0b1010_1111), Some(1));
        assert_eq!(next(&mut schedule, 0b1010_1000), Some(3));
        assert_eq!(next(&mut schedule, 0b1010_0000), Some(7));
    }

    #[test]
    fn nothing_is_saved_up_by_one_of_which_nothing_waits() {
        let mut schedule = Schedule::new(Some(ets(&[], &[(0, 1), (3, 99)])));
        for _ in 0..10_000 {
            bytes(&mut schedule, 0b1000, [0, 0, 0, 1_000, 0, 0, 0, 0], 1);
        }
        let seen = bytes(&mut schedule, 0b1001, [1_000, 0, 0, 1_000, 0, 0, 0, 0], 1_000);
        assert!((9_000..=11_000).contains(&seen[0]), "{seen:?}");
    }

    #[test]
    fn a_description_that_is_none_is_refused() {
        let refused = |strict: &[u8], weights: &[(u8, u8)]| {
            described(strict, weights).map(|_| ()).map_err(|error| error.to_string())
        };
        assert_eq!(refused(&[6, 7], &[(0, 10), (3, 60), (4, 30)]), Ok(()));
        assert_eq!(refused(&[6], &[]), Ok(()));
        let sum = "the sum of ets' weights is 90, and has to be 100";
        assert_eq!(refused(&[], &[(3, 60), (4, 30)]), Err(sum.into()));
        let twice = "a priority of ets is 3, and has to be strict, or have a weight";
        assert_eq!(refused(&[3], &[(3, 100)]), Err(twice.into()));
        let high = "a priority of ets is 8, and has to be 0 to 7";
        assert_eq!(refused(&[8], &[]), Err(high.into()));
        assert_eq!(refused(&[], &[(8, 100)]), Err(high.into()));
    }
}
