//! One direction of a cable with faults.
//!
//! A frame that is not lost is edited, then held back until enough later ones have come, then waits in a queue of a
//! cable of a given rate, then is delayed, then ready. All of this is bounded: a caller
//! asks for the space first.

use std::collections::VecDeque;

use roce::qos::{Qos, pfc};

use super::draw::{Decision, Decisions, Draw};
use super::edit::{self, Marked};
use super::egress::{Arrival, Egress, Pause};
use super::spec::FaultSpec;
use crate::port::{Direction, Frame, FramePool, Rooms};

/// Frames on their way at most, which bounds the frames that a delay can carry.
pub(super) const LIMIT: usize = 4096;

/// How long, in nanoseconds, a frame is held back at most when no others come.
pub(super) const HOLD_NS: u64 = 1_000_000;

/// Counts of faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) lost: u64,
    pub(super) duplicated: u64,
    pub(super) reordered: u64,
    pub(super) corrupted: u64,
    pub(super) delayed: u64,
    pub(super) ecn_marked: u64,
    /// Those that found no room in front of a cable of a given rate, or whose queue stood still for too long.
    pub(super) dropped: u64,
}

/// A frame that was not lost.
pub(super) struct Passing {
    frame: Frame,
    duplicated: bool,
    /// Nanoseconds that it takes once it is no longer held back.
    delay: Option<u64>,
    /// The draw that decides about a mark by the queue's length.
    mark: Draw,
    /// The priority that it came with, and the way by which it did.
    priority: u8,
    way: usize,
}

/// A frame that later ones pass.
struct Held {
    passing: Passing,
    /// Released when so many frames have come that were not lost.
    until: u64,
    /// Released then in any case.
    deadline: u64,
}

/// One direction of a cable with faults.
pub(super) struct Line {
    spec: FaultSpec,
    decisions: Decisions,
    pool: FramePool,
    /// Frames that have come.
    frames: u64,
    /// Frames that were not lost.
    surviving: u64,
    /// No more than the longest displacement: each newer one has let the older ones go a step.
    held: VecDeque<Held>,
    /// The queues of a cable of a given rate.
    egress: Option<Egress<Passing>>,
    /// Frames by the time when each is ready, which never is before that of the one before it.
    delayed: VecDeque<(u64, Passing)>,
    /// Frames at the far end.
    pub(super) ready: VecDeque<Frame>,
    pub(super) counts: Counts,
}

impl Line {
    pub(super) fn new(
        spec: FaultSpec,
        direction: Direction,
        decisions: Decisions,
        pool: FramePool,
        ways: usize,
    ) -> Self {
        Self {
            spec,
            decisions,
            pool,
            frames: 0,
            surviving: 0,
            held: VecDeque::new(),
            egress: Egress::new(&spec, direction, ways),
            delayed: VecDeque::new(),
            ready: VecDeque::new(),
            counts: Counts::default(),
        }
    }

    /// Frames on their way.
    pub(super) fn occupied(&self) -> usize {
        let waiting = self.egress.as_ref().map_or(0, Egress::len);
        let all = [self.held.len(), waiting, self.delayed.len(), self.ready.len()];
        all.into_iter().fold(0, usize::saturating_add)
    }

    /// Frames that may come now.
    pub(super) fn space(&self) -> usize {
        let space = self.rooms().map_or(usize::MAX, |rooms| rooms.most());
        LIMIT.saturating_sub(self.occupied()).min(space)
    }

    /// Frames of each priority that may come now, of a cable of a given rate.
    pub(super) fn rooms(&self) -> Option<Rooms> {
        self.egress.as_ref().map(Egress::rooms)
    }

    /// The first frames that may come now, of those that would; `most` at most.
    pub(super) fn fitting(&self, frames: &VecDeque<Frame>, most: usize) -> usize {
        let most = LIMIT.saturating_sub(self.occupied()).min(most).min(frames.len());
        let (Some(mut rooms), Some(egress)) = (self.rooms(), &self.egress) else { return most };
        let trust = &egress.qos().trust;
        let fits = |frame: &&Frame| rooms.take(trust.of_frame(frame.as_slice()));
        frames.iter().take(most).take_while(fits).count()
    }

    /// The settings of the queues, if there are any.
    pub(super) fn qos(&self) -> Option<&Qos> {
        self.egress.as_ref().map(Egress::qos)
    }

    /// The bytes of the buffer, where there are too few for these settings.
    pub(super) fn lacks(&self, qos: &Qos) -> Option<u64> {
        self.egress.as_ref().and_then(|egress| egress.lacks(qos))
    }

    /// Changes the settings of the queues.
    pub(super) fn set(&mut self, now: u64, qos: &Qos) {
        self.advance(now);
        let Some(egress) = &mut self.egress else { return };
        let priority = |passing: &Passing| qos.trust.of_frame(passing.frame.as_slice());
        let dropped = egress.set(now, qos.clone(), priority);
        self.drop_all(dropped);
    }

    /// Whether it heeds pauses.
    pub(super) const fn has_queues(&self) -> bool {
        self.egress.is_some()
    }

    /// Heeds a pause.
    pub(super) fn heed(&mut self, now: u64, said: &pfc::Said) {
        self.egress.iter_mut().for_each(|egress| egress.heed(now, said));
    }

    /// A pause frame that came passes unharmed.
    pub(super) fn pass(&mut self, frame: Frame) {
        self.ready.push_back(frame);
    }

    /// Takes a pause that is to be said.
    pub(super) fn take_said(&mut self) -> Option<Pause> {
        let egress = self.egress.as_mut()?;
        let pause = egress.said.pop_front()?;
        egress.count_said(pause);
        Some(pause)
    }

    /// Its queues, for their counters.
    pub(super) const fn egress(&self) -> Option<&Egress<Passing>> {
        self.egress.as_ref()
    }

    fn drop_all(&mut self, dropped: Vec<Passing>) {
        for passing in dropped {
            count(&mut self.counts.dropped, true);
            self.pool.put(passing.frame);
        }
    }

    /// Whether no frame is ready as soon as it comes.
    pub(super) fn always_delays(&self) -> bool {
        self.egress.is_some() || self.spec.delay.is_some_and(|delay| delay.min > 0)
    }

    /// The time of the next work for [`Self::advance`].
    pub(super) fn next_timeout(&self) -> Option<u64> {
        let held = self.held.iter().map(|held| held.deadline).min();
        let delayed = self.delayed.front().map(|(due, _)| *due);
        let waiting = self.egress.as_ref().and_then(Egress::next_timeout);
        [held, waiting, delayed].into_iter().flatten().min()
    }

    /// Makes ready all frames whose time has come.
    pub(super) fn advance(&mut self, now: u64) {
        self.release_held(now);
        self.release_waiting(now);
        if let Some(given_up) = self.egress.as_mut().map(|egress| egress.tend(now)) {
            self.drop_all(given_up);
        }
        while self.delayed.front().is_some_and(|(due, _)| *due <= now) {
            let Some((_, passing)) = self.delayed.pop_front() else { return };
            self.arrive(passing);
        }
    }

    /// Lets a frame come, by one of the port's ways; it is lost, on its way, or ready at once.
    pub(super) fn take(&mut self, now: u64, mut frame: Frame, way: usize) {
        let decision = self.decisions.about(self.frames, &self.spec);
        self.frames = self.frames.saturating_add(1);
        if decision.lost {
            count(&mut self.counts.lost, true);
            self.pool.put(frame);
            return;
        }
        let priority = match &self.egress {
            Some(egress) => egress.qos().trust.of_frame(frame.as_slice()),
            None => 0,
        };
        // The mark is on the packet before the cable damages it.
        let marked = decision.marked && edit::mark_congestion(frame.as_mut_slice(), Marked::Any);
        count(&mut self.counts.ecn_marked, marked);
        let flipped = decision.flip.is_some_and(|bit| edit::flip_bit(frame.as_mut_slice(), bit));
        count(&mut self.counts.corrupted, flipped);
        count(&mut self.counts.duplicated, decision.duplicated);
        count(&mut self.counts.reordered, decision.displacement.is_some());
        count(&mut self.counts.delayed, decision.delay.is_some());

        self.surviving = self.surviving.saturating_add(1);
        let Decision { duplicated, delay, mark, .. } = decision;
        let passing = Passing { frame, duplicated, delay, mark, priority, way };
        match decision.displacement {
            Some(displacement) => self.held.push_back(Held {
                passing,
                until: self.surviving.saturating_add(displacement),
                deadline: now.saturating_add(HOLD_NS),
            }),
            None => self.forward(now, passing),
        }
        self.release_held(now);
    }

    /// Sends on, oldest first, frames that need not be held back any longer.
    fn release_held(&mut self, now: u64) {
        let surviving = self.surviving;
        let over = |held: &Held| held.until <= surviving || held.deadline <= now;
        while let Some(at) = self.held.iter().position(over) {
            let Some(held) = self.held.remove(at) else { return };
            self.forward(now, held.passing);
        }
    }

    /// Sends a frame on that need not be held back, or not any longer.
    fn forward(&mut self, now: u64, passing: Passing) {
        self.release_waiting(now);
        let Some(egress) = &mut self.egress else { return self.carry(now, passing) };
        let bytes = passing.frame.as_slice().len() as u32;
        let Passing { priority, way, .. } = passing;
        if let Err(passing) = egress.enter(now, Arrival { bytes, priority, way, item: passing }) {
            count(&mut self.counts.dropped, true);
            self.pool.put(passing.frame);
        }
    }

    /// Sends on frames that the cable has carried by now.
    fn release_waiting(&mut self, now: u64) {
        while let Some(left) = self.egress.as_mut().and_then(|egress| egress.leave(now)) {
            let mut passing = left.item;
            let red = self.egress.as_ref().and_then(Egress::red);
            let marked = red.is_some_and(|red| passing.mark.hits(red.share(left.waited)))
                && edit::mark_congestion(passing.frame.as_mut_slice(), Marked::Capable);
            count(&mut self.counts.ecn_marked, marked);
            self.carry(left.at, passing);
        }
    }

    /// Puts a frame under way for its delay, from a time on.
    fn carry(&mut self, now: u64, passing: Passing) {
        match passing.delay {
            Some(delay) => {
                let last = self.delayed.back().map_or(0, |(due, _)| *due);
                self.delayed.push_back((now.saturating_add(delay).max(last), passing));
            }
            None => self.arrive(passing),
        }
    }

    fn arrive(&mut self, passing: Passing) {
        if passing.duplicated {
            self.ready.push_back(self.pool.copy_of(&passing.frame));
        }
        self.ready.push_back(passing.frame);
    }
}

fn count(counter: &mut u64, happened: bool) {
    *counter = counter.saturating_add(u64::from(happened));
}
