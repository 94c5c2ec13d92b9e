//! The queues in front of one direction of a cable of a given rate: one for each traffic class.
//!
//! The card's end has short queues: frames beyond stay with the card, and pauses of the far end stop the priorities that
//! they name. The far end has a switch's output queues, of one buffer: it drops a frame that finds no room, and before that
//! pauses the senders of priorities with flow control. It marks a frame when that leaves, by how much of its class waits
//! then, itself included. All of it is in the caller's time: frames left when they were due, whenever the caller looks.

use std::collections::VecDeque;

use roce::qos::{Buffer, BufferConfig, Hold, Qos, Schedule, Watchdog, pfc};
use roce::{Instant, LineRate, PRIORITIES};

use super::spec::{FaultSpec, Red};
use crate::port::{Direction, FRAME_CAPACITY, Rooms};

/// How long a card's own frames of a class take that wait at its end, in nanoseconds: as long as it is late at times.
const OWN_NS: u64 = 100_000;
/// So many bytes of them wait in any case: two frames.
const OWN_LEAST: u64 = 2 * FRAME_CAPACITY as u64;

/// The watchdog against pauses without end, with the times that are usual.
const WATCHDOG: Watchdog = Watchdog { detect: 200_000_000, recover: 200_000_000 };

/// A frame that comes.
pub(super) struct Arrival<T> {
    pub(super) bytes: u32,
    pub(super) priority: u8,
    /// The way by which it has come, of those that the port behind has.
    pub(super) way: usize,
    pub(super) item: T,
}

/// A frame that waits.
struct Waiting<T> {
    arrival: Arrival<T>,
    /// The buffer has it on its account.
    is_charged: bool,
}

/// A frame that has left.
pub(super) struct Left<T> {
    pub(super) at: u64,
    /// Bytes of its class that waited when it did, its own among them.
    pub(super) waited: u64,
    pub(super) item: T,
}

/// The frames of a traffic class.
struct Queue<T> {
    waiting: VecDeque<Waiting<T>>,
    /// Their bytes, and those of the frame that leaves.
    bytes: u64,
    hold: Hold,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), bytes: 0, hold: Hold::default() }
    }
}

/// The frame that leaves.
struct Leaving<T> {
    frame: Waiting<T>,
    class: usize,
    /// When it is gone.
    at: u64,
}

/// The end of the cable that has the queues.
enum End {
    /// The card's, with so many bytes of each class before the next one stays with it.
    Own { room: u64 },
    /// The far one.
    Far { buffer: Buffer, red: Option<Red> },
}

/// Counts of a priority.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PriorityCounts {
    /// Frames that left, and their bytes.
    pub(super) packets: u64,
    pub(super) bytes: u64,
    /// Frames that found no room.
    pub(super) discards: u64,
    /// Pauses that were said or heeded, those that let go on among them.
    pub(super) pauses: u64,
}

/// A pause to be said to the sender behind a way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pause {
    pub(super) way: usize,
    pub(super) priority: u8,
    pub(super) quanta: u16,
}

/// The queues in front of one direction of a cable.
pub(super) struct Egress<T> {
    qos: Qos,
    rate: LineRate,
    schedule: Schedule,
    queues: [Queue<T>; PRIORITIES],
    leaving: Option<Leaving<T>>,
    /// The time when the cable has carried all that has left.
    free_at: u64,
    end: End,
    /// The ways of the port behind, and the bytes that the buffer expects of each after a pause, by thirds.
    ways: usize,
    late: u64,
    total: u64,
    /// The pauses of each priority that are heeded.
    paused_until: [u64; PRIORITIES],
    /// When queues that stand still are looked for.
    watch_at: Option<u64>,
    /// Pauses to be said.
    pub(super) said: VecDeque<Pause>,
    pub(super) counts: [PriorityCounts; PRIORITIES],
    /// Queues that stood still for too long, and frames that were dropped for that.
    pub(super) stood_still: u64,
    pub(super) given_up: u64,
}

impl<T> Egress<T> {
    /// The queues that a specification asks for one way, if it does; the port behind has so many ways.
    pub(super) fn new(spec: &FaultSpec, direction: Direction, ways: usize) -> Option<Self> {
        let rate = LineRate::new(spec.rate?.bits());
        let own = rate.bytes_in(OWN_NS, Instant::SECOND).max(OWN_LEAST);
        let on_the_cable = spec.delay.map_or(0, |it| rate.bytes_in(it.max, Instant::SECOND));
        // A card that comes late sends the frames of its own queue.
        let late = on_the_cable.saturating_add(own / 3);
        let (qos, total) = (Qos::untouched(), spec.room());
        let end = match direction {
            Direction::Outbound => End::Own { room: own },
            Direction::Inbound => {
                End::Far { buffer: buffer(total, ways, late, &qos)?, red: spec.red }
            }
        };
        Some(Self {
            rate,
            schedule: Schedule::new(qos.ets),
            qos,
            queues: Default::default(),
            leaving: None,
            free_at: 0,
            end,
            ways,
            late,
            total,
            paused_until: [0; PRIORITIES],
            watch_at: None,
            said: VecDeque::new(),
            counts: Default::default(),
            stood_still: 0,
            given_up: 0,
        })
    }

    /// Its settings.
    pub(super) const fn qos(&self) -> &Qos {
        &self.qos
    }

    /// The bytes of its buffer, where there are too few for these settings: those of headroom are all of it.
    pub(super) fn lacks(&self, qos: &Qos) -> Option<u64> {
        match self.end {
            End::Own { .. } => None,
            End::Far { .. } => match buffer(self.total, self.ways, self.late, qos) {
                Some(_) => None,
                None => Some(self.total),
            },
        }
    }

    /// Changes the settings, and lets the frames that wait come again; gives those that find no room any more. `priority`
    /// tells that of a frame.
    pub(super) fn set(&mut self, now: u64, qos: Qos, priority: impl Fn(&T) -> u8) -> Vec<T> {
        if let End::Far { buffer: old, .. } = &mut self.end {
            // No sender stays paused by a buffer that is no more.
            let paused = old.paused().map(|(way, priority, _)| Pause { way, priority, quanta: 0 });
            self.said.extend(paused);
            if let Some(new) = buffer(self.total, self.ways, self.late, &qos) {
                *old = new;
            }
        }
        self.schedule = Schedule::new(qos.ets);
        self.qos = qos;
        self.paused_until = [0; PRIORITIES];
        let waiting: Vec<_> = self.queues.iter_mut().flat_map(|it| it.waiting.drain(..)).collect();
        self.queues = Default::default();
        if let Some(Leaving { mut frame, at, .. }) = self.leaving.take() {
            let class = self.qos.class(frame.arrival.priority);
            frame.is_charged = self.charge(now, &frame.arrival, class).unwrap_or(false);
            if let Some(queue) = self.queues.get_mut(class) {
                queue.bytes = frame.arrival.bytes.into();
            }
            self.leaving = Some(Leaving { frame, class, at });
        }
        let again = waiting.into_iter().map(|Waiting { arrival, .. }| {
            let priority = priority(&arrival.item);
            self.enter(now, Arrival { priority, ..arrival })
        });
        again.filter_map(Result::err).collect()
    }

    pub(super) fn len(&self) -> usize {
        let waiting = self.queues.iter().map(|queue| queue.waiting.len());
        waiting.fold(usize::from(self.leaving.is_some()), usize::saturating_add)
    }

    /// Frames of each class that may enter now without being too many; of the far end all may, for those that are too
    /// many are dropped.
    pub(super) fn rooms(&self) -> Rooms {
        let End::Own { room } = self.end else { return Rooms::endless() };
        let frames = |queue: &Queue<T>| match room.saturating_sub(queue.bytes) {
            0 => 0,
            free => (free as usize / FRAME_CAPACITY).max(1),
        };
        Rooms::new(self.qos.classes, self.queues.each_ref().map(frames))
    }

    /// When something is to be done next.
    pub(super) fn next_timeout(&self) -> Option<u64> {
        let leaves = match &self.leaving {
            Some(leaving) => Some(leaving.at),
            None => self.may_leave_at(),
        };
        let refresh = match &self.end {
            End::Own { .. } => None,
            End::Far { buffer, .. } => buffer.paused().map(|(_, _, at)| at).min(),
        };
        [leaves, refresh, self.watch_at].into_iter().flatten().min()
    }

    /// Puts a frame on the buffer's account, if there is one; an error is that there is no room.
    fn charge(&mut self, now: u64, frame: &Arrival<T>, class: usize) -> Result<bool, ()> {
        let End::Far { buffer, .. } = &mut self.end else { return Ok(false) };
        let (way, priority) = (frame.way, frame.priority);
        // Where nothing has flow control, one class may have all of the buffer, which is of this cable alone.
        let waiting = match self.qos.pfc {
            0 => 0,
            _ => self.queues.get(class).map_or(0, |queue| queue.bytes),
        };
        if !buffer.admit(way, priority, frame.bytes, waiting) {
            return Err(());
        }
        if buffer.pauses(way, priority) {
            self.pause(now, way, priority);
        }
        Ok(true)
    }

    /// Tells the sender behind a way to pause, and again before that is over.
    fn pause(&mut self, now: u64, way: usize, priority: u8) {
        let half = pfc::duration(pfc::LONGEST / 2, self.rate.bits(), Instant::SECOND);
        if let End::Far { buffer, .. } = &mut self.end {
            buffer.refresh_at(way, priority, now.saturating_add(half));
        }
        self.said.push_back(Pause { way, priority, quanta: pfc::LONGEST });
    }

    /// Lets a frame wait, after all that were due have [left](Self::leave); gives it back where there is no room.
    pub(super) fn enter(&mut self, now: u64, frame: Arrival<T>) -> Result<(), T> {
        let class = self.qos.class(frame.priority);
        let drops = self.queues.get(class).is_some_and(|queue| queue.hold.drops(now));
        if drops {
            self.given_up = self.given_up.saturating_add(1);
            return Err(frame.item);
        }
        let Ok(is_charged) = self.charge(now, &frame, class) else {
            if let Some(counts) = self.counts.get_mut(usize::from(frame.priority)) {
                counts.discards = counts.discards.saturating_add(1);
            }
            return Err(frame.item);
        };
        if let Some(queue) = self.queues.get_mut(class) {
            queue.bytes = queue.bytes.saturating_add(frame.bytes.into());
            queue.waiting.push_back(Waiting { arrival: frame, is_charged });
            if queue.hold.until() > now {
                self.watch_at.get_or_insert(now.saturating_add(WATCHDOG.interval()));
            }
        }
        if self.leaving.is_none() {
            self.begin(now.max(self.free_at));
        }
        Ok(())
    }

    /// When the first frame may leave of those that wait.
    fn may_leave_at(&self) -> Option<u64> {
        let waiting = self.queues.iter().filter(|queue| !queue.waiting.is_empty());
        Some(waiting.map(|queue| queue.hold.until()).min()?.max(self.free_at))
    }

    /// Lets the next frame begin to leave at that time, if one may.
    fn begin(&mut self, at: u64) {
        let (mut may, mut waits) = (0_u8, 0_u8);
        let mut sizes = [0; PRIORITIES];
        let mut bit = 1_u8;
        for (queue, size) in self.queues.iter().zip(&mut sizes) {
            if let Some(first) = queue.waiting.front() {
                waits |= bit;
                *size = first.arrival.bytes;
                may |= if queue.hold.until() <= at { bit } else { 0 };
            }
            bit = bit.wrapping_shl(1);
        }
        let size = |class: usize| sizes.get(class).copied().unwrap_or_default();
        let Some(class) = self.schedule.next(may, waits, size) else { return };
        let Some(queue) = self.queues.get_mut(class) else { return };
        let Some(frame) = queue.waiting.pop_front() else { return };
        queue.hold.leaves();
        self.schedule.leaves(class, frame.arrival.bytes);
        let takes = self.rate.time_of(frame.arrival.bytes.into(), Instant::SECOND);
        self.free_at = at.saturating_add(takes);
        self.leaving = Some(Leaving { frame, class, at: self.free_at });
    }

    /// Takes a frame that has left by now.
    pub(super) fn leave(&mut self, now: u64) -> Option<Left<T>> {
        if self.leaving.is_none() {
            let at = self.may_leave_at().filter(|at| *at <= now)?;
            self.begin(at);
        }
        let Leaving { frame, class, at } = self.leaving.take_if(|leaving| leaving.at <= now)?;
        let Waiting { arrival: Arrival { bytes, priority, way, item }, is_charged } = frame;
        let queue = self.queues.get_mut(class)?;
        let waited = queue.bytes;
        queue.bytes = queue.bytes.saturating_sub(bytes.into());
        if let End::Far { buffer, .. } = &mut self.end {
            if is_charged {
                buffer.release(way, priority, bytes);
            }
            if buffer.resumes(way, priority) {
                self.said.push_back(Pause { way, priority, quanta: 0 });
            }
        }
        if let Some(counts) = self.counts.get_mut(usize::from(priority)) {
            counts.packets = counts.packets.saturating_add(1);
            counts.bytes = counts.bytes.saturating_add(bytes.into());
        }
        self.begin(at);
        Some(Left { at, waited, item })
    }

    /// Heeds a pause, of priorities that have flow control.
    pub(super) fn heed(&mut self, now: u64, said: &pfc::Said) {
        for ((priority, quanta), until) in (0_u8..).zip(said).zip(&mut self.paused_until) {
            let Some(quanta) =
                quanta.filter(|_| self.qos.pfc.wrapping_shr(priority.into()) & 1 == 1)
            else {
                continue;
            };
            *until = now.saturating_add(pfc::duration(quanta, self.rate.bits(), Instant::SECOND));
            if let Some(counts) = self.counts.get_mut(usize::from(priority)) {
                counts.pauses = counts.pauses.saturating_add(1);
            }
            let queue = self.queues.get_mut(self.qos.class(priority));
            if let Some(queue) = queue.filter(|_| quanta != 0) {
                queue.hold.go_on_dropping(now, WATCHDOG.recover);
            }
        }
        // A class waits for all of its priorities.
        let mut holds = [0; PRIORITIES];
        for (priority, until) in (0_u8..).zip(self.paused_until) {
            let hold = holds.get_mut(self.qos.class(priority));
            hold.into_iter().for_each(|hold| *hold = until.max(*hold));
        }
        for (queue, hold) in self.queues.iter_mut().zip(holds) {
            queue.hold.set(hold);
            if hold > now && !queue.waiting.is_empty() {
                self.watch_at.get_or_insert(now.saturating_add(WATCHDOG.interval()));
            }
        }
    }

    /// Says pauses again that are due, and gives the frames of queues that stood still for too long.
    pub(super) fn tend(&mut self, now: u64) -> Vec<T> {
        if let End::Far { buffer, .. } = &self.end {
            let due: Vec<_> = buffer.paused().filter(|(_, _, at)| *at <= now).collect();
            for (way, priority, _) in due {
                self.pause(now, way, priority);
            }
        }
        if self.watch_at.is_none_or(|at| at > now) {
            return Vec::new();
        }
        let (mut given_up, mut holds) = (Vec::new(), false);
        for queue in &mut self.queues {
            if queue.hold.stands_still(!queue.waiting.is_empty(), now, WATCHDOG) {
                self.stood_still = self.stood_still.saturating_add(1);
                for Waiting { arrival, .. } in queue.waiting.drain(..) {
                    queue.bytes = queue.bytes.saturating_sub(arrival.bytes.into());
                    given_up.push(arrival.item);
                }
            }
            holds |= queue.hold.until() > now && !queue.waiting.is_empty();
        }
        self.given_up = self.given_up.saturating_add(given_up.len() as u64);
        self.watch_at = holds.then(|| now.saturating_add(WATCHDOG.interval()));
        given_up
    }

    /// Counts a pause that was said.
    pub(super) fn count_said(&mut self, pause: Pause) {
        if let Some(counts) = self.counts.get_mut(usize::from(pause.priority)) {
            counts.pauses = counts.pauses.saturating_add(1);
        }
    }

    /// The lengths of queues at which packets are marked.
    pub(super) const fn red(&self) -> Option<Red> {
        match self.end {
            End::Own { .. } => None,
            End::Far { red, .. } => red,
        }
    }
}

/// The buffer of the far end's queues, if there is room for the headroom of priorities with flow control.
fn buffer(total: u64, ways: usize, late: u64, qos: &Qos) -> Option<Buffer> {
    let config = BufferConfig { total, reserve: 0, lossless: qos.pfc };
    Buffer::new(config, &vec![late; ways])
}

#[cfg(test)]
mod tests;
