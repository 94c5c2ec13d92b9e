//! The order in which queues send: strict, or by weights (ETS, IEEE 802.1Q, clause 37).
//!
//! Weights are kept by deficit round robin (Shreedhar and Varghese, SIGCOMM 1995): each queue in its turn may send so
//! many bytes more, and has the rest of them the next time.

use crate::priority::{PRIORITIES, bit};

/// Bytes that a queue may send more in its turn, for each percent of its weight.
const BYTES_OF_A_PERCENT: u32 = 128;

/// How a port chooses among queues. Those of neither kind go behind all others, the highest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ets {
    /// Queues that go before all others, the highest first; a bit for each.
    pub strict: u8,
    /// The percentages of the other queues in the rest that these leave. All together are 100.
    pub weights: [u8; PRIORITIES],
}

impl Default for Ets {
    fn default() -> Self {
        Self::STRICT
    }
}

/// Why queues cannot share a line so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadEts {
    /// A queue is of both kinds.
    #[error("{queue} {number} is strict, and has a weight; it can be or have one of them")]
    Both {
        /// The name for a queue.
        queue: &'static str,
        /// Its number.
        number: u8,
    },
    /// The weights are not 100.
    #[error("the weights are {0} in all, and have to be 100")]
    Sum(u32),
}

impl Ets {
    /// The highest goes first.
    pub const STRICT: Self = Self { strict: u8::MAX, weights: [0; PRIORITIES] };

    /// Refuses queues of both kinds, and weights that are not 100; `queue` is the name for one.
    pub fn check(&self, queue: &'static str) -> Result<(), BadEts> {
        let is_both = |(number, weight): &(u8, u8)| *weight != 0 && self.strict & bit(*number) != 0;
        if let Some((number, _)) = (0_u8..).zip(self.weights).find(is_both) {
            return Err(BadEts::Both { queue, number });
        }
        match self.weights.iter().map(|weight| u32::from(*weight)).sum() {
            0 | 100 => Ok(()),
            sum => Err(BadEts::Sum(sum)),
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
    /// The queue whose turn it is among those with weights.
    turn: usize,
}

impl Schedule {
    /// A schedule as described.
    #[must_use]
    pub fn new(Ets { strict, weights }: Ets) -> Self {
        let quanta = weights.map(|weight| u32::from(weight).saturating_mul(BYTES_OF_A_PERCENT));
        let has_weight = |(number, weight): (u8, u8)| if weight == 0 { 0 } else { bit(number) };
        let weighted = (0..).zip(weights).map(has_weight).fold(0, |set, it| set | it);
        Self { strict, quanta, weighted, rest: [0; PRIORITIES], turn: 0 }
    }

    /// The queue that goes next, of those that may; the first frame of each has so many bytes. None is saved up for
    /// by one of which nothing `waits`.
    pub fn next(&mut self, may: u8, waits: u8, size: impl Fn(usize) -> u32) -> Option<usize> {
        let first = highest(may & self.strict);
        let weighted = may & self.weighted;
        if first.is_some() || weighted == 0 {
            return first.or_else(|| highest(may));
        }
        for (number, rest) in (0..).zip(&mut self.rest) {
            if waits & bit(number) == 0 {
                *rest = 0;
            }
        }
        let may_go = |turn: usize| weighted & bit(turn as u8) != 0;
        while !may_go(self.turn) || self.rest(self.turn) < size(self.turn) {
            self.turn = self.turn.wrapping_add(1) % PRIORITIES;
            let quantum = self.quanta.get(self.turn).copied().unwrap_or_default();
            let rest = self.rest.get_mut(self.turn).filter(|_| may_go(self.turn));
            rest.into_iter().for_each(|rest| *rest = rest.saturating_add(quantum));
        }
        Some(self.turn)
    }

    fn rest(&self, queue: usize) -> u32 {
        self.rest.get(queue).copied().unwrap_or_default()
    }

    /// A frame of so many bytes leaves.
    pub fn leaves(&mut self, queue: usize, size: u32) {
        if let Some(rest) = self.rest.get_mut(queue) {
            *rest = rest.saturating_sub(size);
        }
    }
}

/// The highest of some queues.
fn highest(set: u8) -> Option<usize> {
    set.checked_ilog2().map(|queue| queue as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(strict: &[u8], weights: &[(usize, u8)]) -> Result<Ets, BadEts> {
        let mut ets = Ets { strict: 0, weights: [0; 8] };
        strict.iter().for_each(|queue| ets.strict |= 1 << queue);
        weights.iter().for_each(|(queue, weight)| ets.weights[*queue] = *weight);
        ets.check("priority").map(|()| ets)
    }

    fn ets(strict: &[u8], weights: &[(usize, u8)]) -> Ets {
        described(strict, weights).unwrap()
    }

    /// Bytes that each queue gets of so many frames, of those that may, whose frames have these sizes.
    fn bytes(schedule: &mut Schedule, may: u8, sizes: [u32; 8], frames: u32) -> [u32; 8] {
        let mut bytes = [0; 8];
        for _ in 0..frames {
            let queue = schedule.next(may, may, |queue| sizes[queue]).unwrap();
            schedule.leaves(queue, sizes[queue]);
            bytes[queue] += sizes[queue];
        }
        bytes
    }

    #[test]
    fn without_a_description_the_highest_goes_first() {
        let mut schedule = Schedule::new(Ets::default());
        assert_eq!(schedule.next(0b1010, 0b1010, |_| 100), Some(3));
        assert_eq!(schedule.next(0, 0, |_| 100), None);
    }

    #[test]
    fn weights_are_shares_of_bytes_whatever_the_sizes_of_frames() {
        let ets = ets(&[7], &[(0, 10), (3, 60), (4, 30)]);
        let sizes = [64, 0, 0, 4_190, 1_082, 300, 0, 0];
        let mut schedule = Schedule::new(ets);
        let seen = bytes(&mut schedule, 0b1_1001, sizes, 100_000);
        let sum: u32 = seen.iter().sum();
        for (queue, weight) in [(0, 10), (3, 60), (4, 30)] {
            let share = u64::from(seen[queue]) * 1_000 / u64::from(sum);
            assert!(share.abs_diff(weight * 10) <= 2, "{queue}: {share}");
        }
        // The others have the share of one that does not use it, in proportion.
        let seen = bytes(&mut schedule, 0b1_0001, sizes, 100_000);
        assert!((299..=301).contains(&(u64::from(seen[4]) * 100 / u64::from(seen[0]))), "{seen:?}");
    }

    #[test]
    fn strict_ones_go_before_and_those_of_neither_kind_behind() {
        let mut schedule = Schedule::new(ets(&[1, 6], &[(0, 10), (3, 90)]));
        let next = |schedule: &mut Schedule, may| schedule.next(may, may, |_| 1_000);
        assert_eq!(next(&mut schedule, 0b1110_1111), Some(6));
        assert_eq!(next(&mut schedule, 0b1010_1111), Some(1));
        assert_eq!(next(&mut schedule, 0b1010_1000), Some(3));
        assert_eq!(next(&mut schedule, 0b1010_0000), Some(7));
    }

    #[test]
    fn nothing_is_saved_up_by_one_of_which_nothing_waits() {
        let mut schedule = Schedule::new(ets(&[], &[(0, 1), (3, 99)]));
        for _ in 0..10_000 {
            bytes(&mut schedule, 0b1000, [0, 0, 0, 1_000, 0, 0, 0, 0], 1);
        }
        let seen = bytes(&mut schedule, 0b1001, [1_000, 0, 0, 1_000, 0, 0, 0, 0], 1_000);
        assert!((9_000..=11_000).contains(&seen[0]), "{seen:?}");
    }

    #[test]
    fn a_description_that_is_none_is_refused() {
        let refused = |strict: &[u8], weights: &[(usize, u8)]| {
            described(strict, weights).map(|_| ()).map_err(|error| error.to_string())
        };
        assert_eq!(refused(&[6, 7], &[(0, 10), (3, 60), (4, 30)]), Ok(()));
        assert_eq!(refused(&[6], &[]), Ok(()));
        let sum = "the weights are 90 in all, and have to be 100";
        assert_eq!(refused(&[], &[(3, 60), (4, 30)]), Err(sum.into()));
        let twice = "priority 3 is strict, and has a weight; it can be or have one of them";
        assert_eq!(refused(&[3], &[(3, 100)]), Err(twice.into()));
    }
}
