//! The queue of a cable of a given rate, first in, first out.
//!
//! The card's end has a short queue: further frames stay with the card. The far end has a switch's output queue,
//! of bounded length: a frame that finds no room is dropped. Whether one is marked is decided when it leaves, by how much
//! waits then, itself included. All of it is in the caller's time: frames left when they were due, whenever the caller
//! looks.

use std::collections::VecDeque;

use super::spec::{FaultSpec, Red};
use crate::port::{Direction, FRAME_CAPACITY};

/// Bits of a byte, times nanoseconds of a second.
const BYTE_SECOND: u64 = 8_000_000_000;

/// How long a card's own frames take that wait at its end, in nanoseconds: as long as it is late at times.
const OWN_NS: u64 = 100_000;
/// Bytes that may wait at any rate: two frames.
const OWN_LEAST: u64 = 2 * FRAME_CAPACITY as u64;

/// A frame that waits, or that has left.
pub(super) struct Queued<T> {
    /// When it is gone.
    pub(super) leaves: u64,
    bytes: u64,
    pub(super) item: T,
}

/// The queue in front of one direction of a cable.
pub(super) struct Bottleneck<T> {
    /// Bits per second; not 0.
    rate: u64,
    /// Bytes that wait at most; of the card's own frames, before the next one stays with it.
    room: u64,
    drops: bool,
    red: Option<Red>,
    queue: VecDeque<Queued<T>>,
    /// Bytes of all that wait.
    waiting: u64,
    /// The time when the cable has carried all of them, and the fraction of a nanosecond that it lacks, in the rate's
    /// parts of one.
    free_at: u64,
    remainder: u64,
}

impl<T> Bottleneck<T> {
    /// The queue that a specification asks for one way, if it does.
    pub(super) fn new(spec: &FaultSpec, direction: Direction) -> Option<Self> {
        let rate = spec.rate?.bits().max(1);
        let own = rate.checked_div(BYTE_SECOND / OWN_NS).unwrap_or_default().max(OWN_LEAST);
        Some(Self {
            rate,
            room: if direction == Direction::Outbound { own } else { spec.room() },
            drops: direction == Direction::Inbound,
            red: spec.red.filter(|_| direction == Direction::Inbound),
            queue: VecDeque::new(),
            waiting: 0,
            free_at: 0,
            remainder: 0,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Frames that may enter now without being too many.
    pub(super) fn space(&self) -> usize {
        let free = self.room.saturating_sub(self.waiting);
        match (self.drops, free) {
            // Those that are too many are dropped.
            (true, _) => usize::MAX,
            (false, 0) => 0,
            (false, free) => (free as usize / FRAME_CAPACITY).max(1),
        }
    }

    /// When the first frame leaves.
    pub(super) fn next_timeout(&self) -> Option<u64> {
        self.queue.front().map(|first| first.leaves)
    }

    /// Lets a frame of so many bytes wait, after all that were due have [left](Self::leave); gives it back where there is no
    /// room.
    pub(super) fn enter(&mut self, now: u64, bytes: usize, item: T) -> Result<(), T> {
        let bytes = bytes as u64;
        if self.drops && self.waiting.saturating_add(bytes) > self.room {
            return Err(item);
        }
        if self.free_at < now {
            (self.free_at, self.remainder) = (now, 0);
        }
        // A frame has some thousand bytes, and the remainder is below the rate: far from 2^64.
        let work = bytes.saturating_mul(BYTE_SECOND).saturating_add(self.remainder);
        self.remainder = work.checked_rem(self.rate).unwrap_or_default();
        let takes = work.checked_div(self.rate).unwrap_or_default();
        self.free_at = self.free_at.saturating_add(takes);
        self.waiting = self.waiting.saturating_add(bytes);
        self.queue.push_back(Queued { leaves: self.free_at, bytes, item });
        Ok(())
    }

    /// Takes a frame that has left by now, with the bytes that waited when it did.
    pub(super) fn leave(&mut self, now: u64) -> Option<(Queued<T>, u64)> {
        self.queue.front().filter(|first| first.leaves <= now)?;
        let first = self.queue.pop_front()?;
        let waited = self.waiting;
        self.waiting = self.waiting.saturating_sub(first.bytes);
        Some((first, waited))
    }

    /// The lengths of the queue at which packets are marked.
    pub(super) const fn red(&self) -> Option<Red> {
        self.red
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(text: &str) -> Bottleneck<u64> {
        Bottleneck::new(&text.parse().unwrap(), Direction::Inbound).unwrap()
    }

    #[test]
    fn a_cards_own_frames_wait_for_a_tenth_of_a_millisecond_and_the_others_stay_with_it() {
        for (rate, bytes) in [("10G", 125_000), ("1M", 2 * FRAME_CAPACITY)] {
            let spec = format!("rate={rate},buffer=2,ecn=1:2:100%").parse().unwrap();
            let mut queue = Bottleneck::new(&spec, Direction::Outbound).unwrap();
            assert!(queue.red().is_none());
            let mut entered = 0;
            while queue.space() > 0 {
                assert!(queue.space() <= (bytes - entered).div_ceil(FRAME_CAPACITY));
                assert_eq!(queue.enter(0, 1_000, 0), Ok(()));
                entered += 1_000;
            }
            assert!((bytes..bytes + 1_000).contains(&entered), "{rate}: {entered}");
        }
        assert_eq!(queue("rate=1M").space(), usize::MAX);
    }

    #[test]
    fn frames_leave_at_the_rate_to_the_nanosecond() {
        for (rate, bits) in [("1000G", 1_000_000_000_000_u128), ("3M", 3_000_000)] {
            let mut queue = queue(&format!("rate={rate}"));
            for n in 0..100 {
                assert!(queue.enter(1_000, 4_158, n).is_ok());
            }
            for n in 0..100 {
                let took = (u128::from(n) + 1) * 4_158 * 8 * 1_000_000_000 / bits;
                let at = 1_000 + u64::try_from(took).unwrap();
                assert_eq!(queue.next_timeout(), Some(at), "{rate}");
                assert!(queue.leave(at - 1).is_none());
                assert_eq!(queue.leave(at).map(|(it, _)| (it.item, it.leaves)), Some((n, at)));
            }
            assert_eq!(queue.next_timeout(), None);
        }
    }

    #[test]
    fn what_finds_no_room_is_given_back_and_an_idle_cable_begins_anew() {
        let mut queue = queue("rate=8M,buffer=3000");
        assert_eq!(
            [0, 1, 2, 3].map(|n| queue.enter(0, 1_000, n)),
            [Ok(()), Ok(()), Ok(()), Err(3)]
        );
        // A byte takes a microsecond.
        let left =
            [0, 1_000_000, 1_000_000].map(|now| queue.leave(now).map(|(it, w)| (it.item, w)));
        assert_eq!(left, [None, Some((0, 3_000)), None]);
        assert_eq!(queue.enter(1_000_000, 1_001, 4), Err(4));
        assert_eq!(queue.enter(1_000_000, 1_000, 5), Ok(()));
        let late = u64::MAX / 2;
        let left: Vec<_> = std::iter::from_fn(|| queue.leave(late)).collect();
        let left: Vec<_> = left.iter().map(|(it, waited)| (it.item, it.leaves, *waited)).collect();
        assert_eq!(left, [(1, 2_000_000, 3_000), (2, 3_000_000, 2_000), (5, 4_000_000, 1_000)]);
        assert_eq!(queue.enter(late, 1, 6), Ok(()));
        assert_eq!(queue.next_timeout(), Some(late + 1_000));
    }
}
