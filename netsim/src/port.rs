//! A port: queues by priority, and the wire to its peer.

use std::collections::VecDeque;

use roce::qos::{Hold, Schedule, Watchdog};
use roce::{LineRate, Priorities};

use crate::config::{CableSpec, Faults};
use crate::frame::PRIORITIES;
use crate::time::Time;

/// The host or switch that a port belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The host of this number.
    Host(u32),
    /// The switch of this number.
    Switch(u32),
}

/// The port at the other end of a port's cable.
#[must_use]
pub const fn peer(port: u32) -> u32 {
    port ^ 1
}

/// The place of a port.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The host or switch that it belongs to.
    pub owner: Owner,
    /// Its number among its owner's.
    pub local: u32,
}

/// The frames of one priority that wait.
#[derive(Clone, Debug, Default)]
pub struct Queue {
    /// Each with its bytes.
    frames: VecDeque<(u32, u32)>,
    /// The bytes of all.
    pub bytes: u64,
    /// Its pauses.
    hold: Hold,
}

/// Counts of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputTally {
    /// Frames sent, without pauses.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Frames marked "congestion experienced".
    pub marked: u64,
    /// Pauses sent, those that let go on among them.
    pub pauses: u64,
    /// The most bytes that ever waited in one queue.
    pub longest: u64,
}

/// A port's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// This pause leaves.
    Pause(u32),
    /// This frame leaves, of this priority.
    Frame(u32, usize),
    /// Nothing before this time.
    At(Time),
    /// There is nothing.
    Nothing,
}

/// One direction of a cable, and the queues before it.
///
/// A large network has more than a cache holds: what each frame needs of one is in few of its lines.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Port {
    /// Frames on the wire, each with its number and when it has arrived, the first first.
    flying: VecDeque<(Time, u32)>,
    /// The wire.
    pub wire: LineRate,
    /// Picoseconds from one end to the other.
    pub delay: u64,
    /// The frame that leaves has left then.
    pub free_at: Time,
    /// An event tells when that is.
    pub is_told: bool,
    /// The queues that have frames, a bit each.
    waiting: u8,
    /// An event tells when a queue becomes eligible.
    pub resumes_at: Time,
    /// Pauses, which nothing holds up.
    pauses: VecDeque<u32>,
    /// The faults of the cable, if any.
    pub faults: Option<Box<Faults>>,
    /// When the last frame arrives that kept its place.
    pub last: Time,
    /// Its counts.
    pub tally: OutputTally,
    schedule: Schedule,
    queues: [Queue; PRIORITIES],
}

impl Port {
    /// A port before one direction of a cable, whose queues are empty.
    #[must_use]
    pub fn new(link: &CableSpec) -> Self {
        Self {
            wire: LineRate::new(link.rate),
            delay: link.delay,
            faults: Some(link.faults).filter(Faults::are_some).map(Box::new),
            last: Time(0),
            flying: VecDeque::new(),
            free_at: Time(0),
            is_told: false,
            resumes_at: Time::NEVER,
            tally: OutputTally::default(),
            schedule: Schedule::new(link.ets),
            queues: Default::default(),
            pauses: VecDeque::new(),
            waiting: 0,
        }
    }

    /// The queue of a priority.
    #[must_use]
    pub fn queue(&self, priority: usize) -> &Queue {
        &self.queues[priority]
    }

    /// Bytes that wait, of all priorities.
    #[must_use]
    pub fn waiting_bytes(&self) -> u64 {
        self.queues.iter().map(|queue| queue.bytes).sum()
    }

    /// The priorities of which nothing waits.
    #[must_use]
    pub const fn open(&self) -> Priorities {
        Priorities(!self.waiting)
    }

    /// Whether nothing waits at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting == 0 && self.pauses.is_empty()
    }

    /// A frame of so many bytes waits.
    pub fn push(&mut self, frame: u32, priority: usize, size: u32) {
        let queue = &mut self.queues[priority];
        queue.frames.push_back((frame, size));
        queue.bytes += u64::from(size);
        self.tally.longest = self.tally.longest.max(queue.bytes);
        self.waiting |= 1 << priority;
    }

    /// A pause waits.
    pub fn push_pause(&mut self, frame: u32) {
        self.tally.pauses += 1;
        self.pauses.push_back(frame);
    }

    /// A frame is on the wire, and arrives at `at`. Says whether it is the next one to arrive.
    pub fn fly(&mut self, at: Time, frame: u32) -> bool {
        if self.flying.back().is_none_or(|(last, _)| *last <= at) {
            self.flying.push_back((at, frame));
            return self.flying.len() == 1;
        }
        let place = self.flying.partition_point(|(other, _)| *other <= at);
        self.flying.insert(place, (at, frame));
        place == 0
    }

    /// The frame that arrives first of those on the wire.
    #[must_use]
    pub fn first(&self) -> Option<u32> {
        self.flying.front().map(|(_, frame)| *frame)
    }

    /// The first frame of the highest priority that waits.
    #[must_use]
    pub fn front(&self) -> Option<u32> {
        let queue = &self.queues[self.waiting.checked_ilog2()? as usize];
        queue.frames.front().map(|(frame, _)| *frame)
    }

    /// Reads what changes when a frame of a priority comes or leaves.
    #[must_use]
    pub fn touch(&self, priority: usize) -> u64 {
        let queue = &self.queues[priority];
        let last = queue.frames.back().map_or(0, |(frame, _)| u64::from(*frame));
        let flying = self.flying.back().map_or(0, |(at, _)| at.0);
        last ^ flying ^ queue.hold.until() ^ self.free_at.0 ^ self.tally.bytes
    }

    /// The frame that has arrived by `now`, and when the one behind it does.
    pub fn land(&mut self, now: Time) -> Option<(u32, Option<Time>)> {
        // One that was to arrive first may have been overtaken since.
        let (_, frame) = self.flying.front().filter(|(at, _)| *at <= now).copied()?;
        self.flying.pop_front();
        Some((frame, self.flying.front().map(|(at, _)| *at)))
    }

    /// No frame of a priority leaves before `at`.
    pub fn hold(&mut self, priority: usize, at: Time) {
        self.queues[priority].hold.set(at.0);
    }

    /// Whether a frame for a priority is dropped, since its queue stood still for too long.
    #[must_use]
    pub fn drops(&self, priority: usize, now: Time) -> bool {
        self.queues[priority].hold.drops(now.0)
    }

    /// Looks whether a queue has been paused and stood still for `detect` picoseconds. Then its frames are to be
    /// [discarded](Port::discard), and others are dropped for `recover`, and for as long after each pause.
    pub fn stands_still(&mut self, priority: usize, now: Time, watchdog: Watchdog) -> bool {
        let queue = &mut self.queues[priority];
        queue.hold.stands_still(!queue.frames.is_empty(), now.0, watchdog)
    }

    /// Takes note of a pause of a priority: if its queue drops frames that come, it does for `recover` picoseconds
    /// more.
    pub fn go_on_dropping(&mut self, priority: usize, now: Time, recover: u64) {
        self.queues[priority].hold.go_on_dropping(now.0, recover);
    }

    /// The frame that leaves at `now`: pauses first, then a frame of the priority whose turn it is among those that
    /// may. A frame stays until [`Port::take`].
    pub fn next(&mut self, now: Time) -> Next {
        if let Some(pause) = self.pauses.pop_front() {
            return Next::Pause(pause);
        }
        let (mut first, mut may) = (Time::NEVER, 0);
        let mut left = self.waiting;
        while left != 0 {
            let priority = left.trailing_zeros() as usize;
            left &= left - 1;
            match Time(self.queues[priority].hold.until()) {
                at if at > now => first = first.min(at),
                _ => may |= 1 << priority,
            }
        }
        let queues = &self.queues;
        let front = |priority: usize| queues[priority].frames.front().copied().unwrap_or_default();
        match self.schedule.next(may, self.waiting, |priority| front(priority).1) {
            Some(priority) => Next::Frame(front(priority).0, priority),
            None if first == Time::NEVER => Next::Nothing,
            None => Next::At(first),
        }
    }

    /// The first frame of a queue leaves, and how many bytes that are.
    pub fn take(&mut self, priority: usize) -> u32 {
        let Some((_, size)) = self.discard(priority) else { return 0 };
        self.schedule.leaves(priority, size);
        self.queues[priority].hold.leaves();
        self.tally.frames += 1;
        self.tally.bytes += u64::from(size);
        size
    }

    /// The first frame of a queue is dropped, if there is one: its number, and its bytes.
    pub fn discard(&mut self, priority: usize) -> Option<(u32, u32)> {
        let queue = &mut self.queues[priority];
        let (frame, size) = queue.frames.pop_front()?;
        queue.bytes -= u64::from(size);
        if queue.frames.is_empty() {
            self.waiting &= !(1 << priority);
        }
        Some((frame, size))
    }
}

#[cfg(test)]
mod tests {
    use roce::qos::Ets;

    use super::*;

    #[test]
    fn the_highest_priority_that_may_leaves_first() {
        let link = CableSpec { rate: 1_000, delay: 0, faults: Faults::NONE, ets: Ets::default() };
        let mut port = Port::new(&link);
        port.push(10, 1, 100);
        port.push(30, 3, 100);
        assert_eq!(port.next(Time(0)), Next::Frame(30, 3));
        port.hold(3, Time(50));
        assert_eq!(port.next(Time(0)), Next::Frame(10, 1));
        port.take(1);
        assert_eq!(port.next(Time(0)), Next::At(Time(50)));
        port.push_pause(99);
        assert_eq!(port.next(Time(0)), Next::Pause(99));
        assert_eq!(port.next(Time(50)), Next::Frame(30, 3));
        port.take(3);
        assert_eq!(port.next(Time(50)), Next::Nothing);
        assert!(port.is_empty());
    }
    #[test]
    fn frames_land_in_the_order_of_their_times() {
        let link = CableSpec { rate: 1_000, delay: 0, faults: Faults::NONE, ets: Ets::default() };
        let mut port = Port::new(&link);
        let first: Vec<bool> = [(30, 1), (50, 2), (20, 3), (30, 4)]
            .map(|(at, frame)| port.fly(Time(at), frame))
            .into();
        assert_eq!(first, [true, false, true, false]);
        assert_eq!(port.land(Time(19)), None);
        assert_eq!(port.land(Time(20)), Some((3, Some(Time(30)))));
        assert_eq!(port.land(Time(30)), Some((1, Some(Time(30)))));
        assert_eq!(port.land(Time(30)), Some((4, Some(Time(50)))));
        assert_eq!(port.land(Time(30)), None);
        assert_eq!(port.land(Time(50)), Some((2, None)));
    }
    #[test]
    fn a_queue_that_stands_still_drops_until_pauses_end() {
        let watchdog = Watchdog { detect: 100, recover: 50 };
        let link = CableSpec { rate: 1_000, delay: 0, faults: Faults::NONE, ets: Ets::default() };
        let mut port = Port::new(&link);
        port.push(10, 3, 100);
        port.push(11, 3, 100);
        // A priority that is not paused may take its time.
        assert!([0, 100, 200].iter().all(|at| !port.stands_still(3, Time(*at), watchdog)));
        port.hold(3, Time(1_000));
        assert!(!port.stands_still(3, Time(250), watchdog));
        port.take(3);
        let looks = [300, 350, 400, 450].map(|at| port.stands_still(3, Time(at), watchdog));
        assert_eq!(looks, [false, false, false, true]);
        assert_eq!(port.discard(3), Some((11, 100)));
        assert!(port.is_empty() && port.drops(3, Time(499)) && !port.drops(3, Time(500)));
        port.go_on_dropping(3, Time(490), watchdog.recover);
        assert!(port.drops(3, Time(539)) && !port.drops(3, Time(540)));
        port.go_on_dropping(3, Time(540), watchdog.recover);
        assert!(!port.drops(3, Time(540)) && !port.drops(2, Time(500)));
    }
}
