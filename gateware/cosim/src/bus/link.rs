//! A PCIe link: two lanes, each of which carries packets one behind the other.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// What a request's packet has beside its payload: its header of four words, framing, sequence number, checksum.
pub(super) const REQUEST_OVERHEAD: u64 = 24;
/// What a completion's packet has beside its payload: its header has three words.
pub(super) const COMPLETION_OVERHEAD: u64 = 20;

/// One direction of a link.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    rate: u64,
    /// The bytes that it will have carried, and those that it could have carried in idle cycles.
    position: u64,
}

impl Lane {
    /// An idle lane of so many bytes in a cycle.
    pub(super) fn new(rate: u64) -> Self {
        Self { rate: rate.max(1), position: 0 }
    }

    /// Carries a packet, behind those of before; the cycle in which the last byte of it has left.
    pub(super) fn send(&mut self, now: u64, bytes: u64) -> u64 {
        self.position = self.position.max(now * self.rate) + bytes;
        self.position.div_ceil(self.rate)
    }

    /// Bytes that wait for the lane.
    pub(super) fn backlog(&self, now: u64) -> u64 {
        self.position.saturating_sub(now * self.rate)
    }
}

/// Things that arrive in the order in which they were sent.
#[derive(Clone, Debug)]
pub(super) struct Flight<T>(VecDeque<(u64, T)>);

impl<T> Default for Flight<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> Flight<T> {
    /// Sends something that arrives in that cycle, and not before what was sent earlier.
    pub(super) fn send(&mut self, arrival: u64, thing: T) {
        let arrival = self.0.back().map_or(arrival, |(last, _)| arrival.max(*last));
        self.0.push_back((arrival, thing));
    }

    /// The next that has arrived, which stays.
    pub(super) fn next(&self, now: u64) -> Option<&T> {
        self.0.front().filter(|(arrival, _)| *arrival <= now).map(|(_, thing)| thing)
    }

    /// The next that has arrived.
    pub(super) fn arrived(&mut self, now: u64) -> Option<T> {
        self.0.front().filter(|(arrival, _)| *arrival <= now)?;
        self.0.pop_front().map(|(_, thing)| thing)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Things that are due at times of their own; those of one time in the order in which they came.
#[derive(Clone, Debug)]
pub(super) struct Agenda<T> {
    due: BinaryHeap<Reverse<(u64, u64)>>,
    things: std::collections::BTreeMap<u64, T>,
    next: u64,
}

impl<T> Default for Agenda<T> {
    fn default() -> Self {
        Self { due: BinaryHeap::new(), things: Default::default(), next: 0 }
    }
}

impl<T> Agenda<T> {
    pub(super) fn enter(&mut self, time: u64, thing: T) {
        self.due.push(Reverse((time, self.next)));
        self.things.insert(self.next, thing);
        self.next += 1;
    }

    /// The next that is due.
    pub(super) fn due(&mut self, now: u64) -> Option<T> {
        self.due.peek().filter(|Reverse((time, _))| *time <= now)?;
        let Reverse((_, number)) = self.due.pop()?;
        self.things.remove(&number)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.due.is_empty()
    }
}

/// The lengths of the parts of a transfer, none of which is longer than `most` or crosses a multiple of it.
pub(super) fn parts(address: u64, length: u32, most: u32) -> impl Iterator<Item = (u32, u32)> {
    let mut offset = 0;
    std::iter::from_fn(move || {
        let left = length - offset;
        let at = address.wrapping_add(offset.into());
        let part = left.min(most - (at % u64::from(most)) as u32);
        let from = offset;
        offset += part;
        (part != 0).then_some((from, part))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_carries_its_rate_and_forgets_idle_cycles() {
        let mut lane = Lane::new(64);
        assert_eq!((lane.send(10, 64), lane.send(10, 64), lane.send(10, 1)), (11, 12, 13));
        assert_eq!((lane.backlog(10), lane.backlog(13)), (129, 0));
        assert_eq!(lane.send(100, 640), 110);
    }

    #[test]
    fn parts_cross_no_boundary_and_are_the_whole() {
        let all = |address, length| parts(address, length, 256).collect::<Vec<_>>();
        assert_eq!(all(0, 512), [(0, 256), (256, 256)]);
        assert_eq!(all(250, 20), [(0, 6), (6, 14)]);
        assert_eq!(all(u64::MAX, 2), [(0, 1), (1, 1)]);
        assert_eq!(all(7, 1), [(0, 1)]);
    }
}
