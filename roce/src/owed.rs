//! Acknowledgements that are owed: one for each packet that asked and was executed.
//!
//! The specification lets one acknowledgement stand for all before it. But there are requesters that
//! count acknowledgements without regard to their PSNs, so none is left out here. How many are owed at a
//! time is up to the peer, for they wait behind READ responses and for the port. So they are kept as
//! runs, in which PSN and message number rise evenly, and there is room for so many runs.

use std::collections::VecDeque;

use crate::param;
use crate::psn::Psn;

/// One acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ack {
    /// The sequence of the packet that it names.
    pub sequence: u64,
    /// Messages executed up to there, 24 bits.
    pub msn: u32,
}

/// Acknowledgements at even distances; at least one.
#[derive(Clone, Copy, Debug)]
struct Run {
    first: Ack,
    count: u32,
    /// Packets from one to the next.
    packets: u64,
    /// Messages from one to the next.
    messages: u32,
}

impl Run {
    fn of(ack: Ack) -> Self {
        Self { first: ack, count: 1, packets: 0, messages: 0 }
    }

    /// The one that stands `steps` after the first.
    fn at(&self, steps: u32) -> Ack {
        let packets = self.packets.wrapping_mul(u64::from(steps));
        let messages = self.messages.wrapping_mul(steps);
        Ack {
            sequence: self.first.sequence.wrapping_add(packets),
            msn: self.first.msn.wrapping_add(messages) & Psn::MASK,
        }
    }

    /// Adds one that is not before the last, and says whether it belongs here: behind one, anything.
    fn extend(&mut self, ack: Ack) -> bool {
        if self.count == 1 {
            self.packets = ack.sequence.wrapping_sub(self.first.sequence);
            self.messages = ack.msn.wrapping_sub(self.first.msn) & Psn::MASK;
        } else if self.count == u32::MAX || self.at(self.count) != ack {
            return false;
        }
        self.count = self.count.wrapping_add(1);
        true
    }

    /// How many are before `sequence`.
    fn count_before(&self, sequence: u64) -> u32 {
        match sequence.checked_sub(self.first.sequence) {
            None | Some(0) => 0,
            // At most the count, which has 32 bits.
            Some(distance) if self.packets != 0 => {
                distance.div_ceil(self.packets).min(u64::from(self.count)) as u32
            }
            Some(_) => self.count,
        }
    }

    /// Cuts off all but the first `count`, of which there are more than one.
    fn split_off(&mut self, count: u32) -> Self {
        let rest = Self { first: self.at(count), count: self.count.wrapping_sub(count), ..*self };
        self.count = count;
        rest
    }
}

/// Everything owed, by sequence.
#[derive(Debug, Default)]
pub(crate) struct Owed(VecDeque<Run>);

impl Owed {
    /// Bytes that they take at most.
    pub(crate) const MOST_BYTES: usize = param::OWED_RUNS * size_of::<Run>();

    /// Whether nothing is owed.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The sequence of the next one.
    pub(crate) fn next(&self) -> Option<u64> {
        self.0.front().map(|run| run.first.sequence)
    }

    /// Takes the next one.
    pub(crate) fn pop(&mut self) -> Option<Ack> {
        let run = self.0.front_mut()?;
        let ack = run.first;
        if run.count > 1 {
            *run = run.split_off(1);
            return Some(ack);
        }
        self.0.pop_front();
        if self.0.is_empty() && self.0.capacity() > param::OWED_RUNS_KEPT {
            self.clear();
        }
        Some(ack)
    }

    /// Whether there is room for one more.
    pub(crate) fn has_room(&self) -> bool {
        // A run of one takes any acknowledgement that follows.
        self.0.len() < param::OWED_RUNS || self.0.back().is_some_and(|run| run.count == 1)
    }

    /// Adds one behind all others. The caller has seen that there is room.
    pub(crate) fn push(&mut self, ack: Ack) {
        if !self.0.back_mut().is_some_and(|last| last.extend(ack)) {
            self.0.push_back(Run::of(ack));
        }
    }

    /// Adds one where it belongs, for a packet that was executed before; says whether there was room.
    pub(crate) fn repeat(&mut self, ack: Ack) -> bool {
        let after = ack.sequence.wrapping_add(1);
        let place = self.0.partition_point(|run| run.first.sequence < after);
        // Two more, if a run is taken apart.
        let has_room = self.0.len().saturating_add(2) <= param::OWED_RUNS;
        let Some(run) = place.checked_sub(1).and_then(|index| self.0.get_mut(index)) else {
            if has_room {
                self.0.push_front(Run::of(ack));
            }
            return has_room;
        };
        let before = run.count_before(after);
        if !has_room {
            return false;
        }
        if before < run.count {
            let rest = run.split_off(before);
            self.0.insert(place, rest);
        }
        let run = place.checked_sub(1).and_then(|index| self.0.get_mut(index));
        if !run.is_some_and(|run| run.extend(ack)) {
            self.0.insert(place, Run::of(ack));
        }
        true
    }

    /// Forgets the acknowledgement of `sequence` and all later ones.
    pub(crate) fn truncate(&mut self, sequence: u64) {
        while let Some(run) = self.0.back_mut() {
            let before = run.count_before(sequence);
            if before != 0 {
                run.count = before;
                break;
            }
            self.0.pop_back();
        }
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ack(sequence: u64, msn: u32) -> Ack {
        Ack { sequence, msn }
    }

    fn drain(owed: &mut Owed) -> Vec<Ack> {
        std::iter::from_fn(|| owed.pop()).collect()
    }

    /// A small generator: the next number below `limit`.
    fn draw(state: &mut u64, limit: u64) -> u64 {
        *state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) % limit
    }

    /// RC-50.
    #[test]
    fn even_patterns_are_one_run_each() {
        // Every packet of messages of one packet; the last ones of messages of 16; all of one long one.
        for (packets, messages) in [(1, 1), (16, 1), (1, 0), (64, 4)] {
            let mut owed = Owed::default();
            let all: Vec<_> = (0..5_000_u32)
                .map(|n| ack(u64::from(n) * packets, (0xff_ff00 + n * messages) & Psn::MASK))
                .collect();
            all.iter().for_each(|&ack| owed.push(ack));
            assert_eq!(owed.0.len(), 1);
            assert_eq!(drain(&mut owed), all);
        }
    }

    /// RC-50.
    #[test]
    fn every_pattern_of_a_window_of_ours_finds_room() {
        for seed in 0..20 {
            let (mut state, mut owed, mut all) = (seed, Owed::default(), Vec::new());
            let (mut sequence, mut msn) = (1_u64 << 32, 0xff_fff0_u32);
            for _ in 0..param::WINDOW_PACKETS {
                assert!(owed.has_room());
                let next = ack(sequence, msn);
                owed.push(next);
                all.push(next);
                sequence += 1 + draw(&mut state, 3);
                msn = (msn + draw(&mut state, 2) as u32) & Psn::MASK;
            }
            assert!(owed.0.len() <= param::OWED_RUNS);
            assert_eq!(drain(&mut owed), all);
            assert!(owed.0.capacity() <= param::OWED_RUNS_KEPT, "memory is given back");
        }
    }

    /// RC-34, RC-50.
    #[test]
    fn whatever_is_added_and_taken_it_stays_in_order() {
        for seed in 0..200 {
            let (mut state, mut owed, mut model) = (seed, Owed::default(), Vec::<Ack>::new());
            let mut next = ack(1 << 32, 0);
            for _ in 0..400 {
                match draw(&mut state, 8) {
                    0..=2 if owed.has_room() => {
                        next = ack(next.sequence + 1 + draw(&mut state, 2), next.msn + 1);
                        owed.push(next);
                        model.push(next);
                    }
                    3 | 4 => {
                        // One of those still owed, or between two of them.
                        let back = draw(&mut state, 12);
                        let again = ack(next.sequence - back, next.msn);
                        let place = model.partition_point(|it| it.sequence <= again.sequence);
                        assert!(owed.repeat(again));
                        model.insert(place, again);
                    }
                    5 | 6 => {
                        let taken = owed.pop();
                        assert_eq!(
                            taken,
                            (!model.is_empty()).then(|| model.remove(0)),
                            "seed {seed}"
                        );
                    }
                    _ if draw(&mut state, 8) == 0 => {
                        let end = next.sequence - draw(&mut state, 20);
                        owed.truncate(end);
                        model.retain(|it| it.sequence < end);
                    }
                    _ => {}
                }
                assert_eq!(owed.next(), model.first().map(|it| it.sequence), "seed {seed}");
                assert_eq!(owed.is_empty(), model.is_empty());
            }
            assert_eq!(drain(&mut owed), model, "seed {seed}");
        }
    }

    #[test]
    fn there_is_an_end_to_runs() {
        let mut owed = Owed::default();
        let mut sequence = 0_u64;
        let mut pushed = 0;
        while owed.has_room() {
            // Never three at the same distance.
            sequence += 1 + pushed * pushed;
            owed.push(ack(sequence, 0));
            pushed += 1;
        }
        assert_eq!((owed.0.len(), pushed), (param::OWED_RUNS, 2 * param::OWED_RUNS as u64));
        assert!(!owed.repeat(ack(sequence, 0)));
        assert_eq!(drain(&mut owed).len() as u64, pushed);
    }
}
