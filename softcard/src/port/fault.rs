//! A middleware that makes a cable a bad one.
//!
//! Each way, each frame (ARP as well as RoCE) may be lost, doubled, held back until later ones have
//! come, damaged by a bit, marked as having met congestion, or delayed; each of these is decided
//! independently. The decision about the n-th frame of a seed, a card and a direction depends on
//! these alone. A cable of a given rate has queues at both ends ([`egress`]), by traffic class: those at its far end pause
//! senders, drop frames without room, and mark packets by their length. Everything is counted by cause
//! and direction.

mod counters;
mod draw;
mod edit;
mod egress;
mod line;
mod quantity;
mod spec;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use roce::qos::{Qos, pfc};
use roce::{MacAddr, PathMtu};

pub use draw::FaultSource;
pub(crate) use quantity::whole;
pub use quantity::{BitRate, Size};
pub use spec::{Delay, FaultSpec, Rate, Red};

use draw::Decisions;
use line::Line;

use super::{Direction, Frame, FramePool, Port, Rooms};
use crate::Error;

/// Frames decided about before they are offered to the port behind.
const CHUNK: usize = 64;

/// A port behind a cable that loses, doubles, reorders, damages, marks and delays frames, and carries so many at most.
///
/// It takes frames only while the port behind takes them, so the sender feels a port that pushes
/// back. Frames on their way are at most 4,096 each way; beyond that, they stay
/// with their sender, or in the port behind. Frames that a card sends to itself pass no cable.
pub struct Faults {
    port: Box<dyn Port>,
    tx: Line,
    rx: Line,
    pool: FramePool,
    /// The card's Ethernet address.
    mac: MacAddr,
    /// Pauses to be said, each with the way of the sender that is to pause.
    saying: VecDeque<(usize, Frame)>,
    /// Frames between the port and `rx`; kept for its memory.
    arrivals: VecDeque<Frame>,
    /// Set when frames have moved that the caller could not see moving: there may be more.
    again: Option<u64>,
}

impl Faults {
    /// Puts faults around a port; lost frames go to the pool, copies come from it.
    #[must_use]
    pub fn new(
        port: Box<dyn Port>,
        spec: &FaultSpec,
        source: FaultSource,
        pool: &FramePool,
    ) -> Self {
        let ways = port.ways();
        let line = |direction| {
            Line::new(*spec, direction, Decisions::new(source, direction), pool.clone(), ways)
        };
        Self {
            port,
            tx: line(Direction::Outbound),
            rx: line(Direction::Inbound),
            pool: pool.clone(),
            mac: MacAddr::default(),
            saying: VecDeque::new(),
            arrivals: VecDeque::new(),
            again: None,
        }
    }

    /// Hands ready frames to the port behind; `true` if it took any.
    fn push(&mut self, now: u64) -> bool {
        self.tx.advance(now);
        let before = self.tx.ready.len();
        if before > 0 {
            self.port.send(now, &mut self.tx.ready);
        }
        self.tx.ready.len() < before
    }

    /// Fetches frames from the port behind, as far as there is space; `true` if there were any.
    fn pull(&mut self, now: u64, budget: usize) -> bool {
        self.port.receive(now, &mut self.arrivals, budget.min(self.rx.space()));
        let pulled = !self.arrivals.is_empty();
        for frame in self.arrivals.drain(..) {
            if self.tx.has_queues() {
                if let Some(said) = pfc::parse(frame.as_slice()) {
                    self.tx.heed(now, &said);
                    self.rx.pass(frame);
                    continue;
                }
            }
            let way = match self.rx.has_queues() {
                true => self.port.way_of(source_of(&frame)),
                false => 0,
            };
            self.rx.take(now, frame, way);
        }
        pulled
    }

    /// Sends the pauses that are due; `true` if there were any.
    fn say(&mut self, now: u64) -> bool {
        while let Some(pause) = self.rx.take_said() {
            let mut frame = self.pool.take();
            frame.set_len(pfc::LENGTH);
            let bytes = pfc::frame(self.mac, pause.priority, pause.quanta);
            frame.as_mut_slice().copy_from_slice(&bytes);
            self.saying.push_back((pause.way, frame));
        }
        let any = !self.saying.is_empty();
        while let Some((way, frame)) = self.saying.pop_front() {
            let mut burst = VecDeque::from([frame]);
            self.port.answer(now, way, &mut burst);
            if let Some(frame) = burst.pop_front() {
                self.saying.push_front((way, frame));
                break;
            }
        }
        any
    }
}

impl Port for Faults {
    fn send(&mut self, now: u64, burst: &mut VecDeque<Frame>) {
        let before = burst.len();
        let pushed = self.push(now);
        while self.tx.ready.is_empty() {
            // A port that has no room may still take a frame, as by another way out of a switch.
            let room = self.port.room().clamp(1, CHUNK);
            let count = self.tx.fitting(burst, room);
            if count == 0 {
                break;
            }
            for frame in burst.drain(..count) {
                self.tx.take(now, frame, 0);
            }
            self.push(now);
        }
        if pushed && burst.len() == before {
            self.again = Some(now);
        }
    }

    fn receive(&mut self, now: u64, into: &mut VecDeque<Frame>, budget: usize) {
        let before = into.len();
        self.rx.advance(now);
        // Pauses first: a card that comes late does not send the frames that they were to stop.
        let pulled = self.pull(now, budget.saturating_sub(self.rx.ready.len()));
        // Nobody else calls when sent frames are due, or the port behind has room again.
        let pushed = self.push(now);
        let count = self.rx.ready.len().min(budget);
        into.extend(self.rx.ready.drain(..count));
        let said = self.say(now);
        let unseen = (pushed || pulled || said) && into.len() == before;
        self.again = (unseen || !self.rx.ready.is_empty()).then_some(now);
    }

    fn room(&self) -> usize {
        match self.tx.ready.len() {
            0 if self.tx.always_delays() => self.tx.space(),
            0 => self.port.room().min(self.tx.space()),
            _ => 0,
        }
    }

    fn rooms(&self) -> Option<Rooms> {
        match (self.tx.rooms(), self.port.rooms()) {
            (Some(_), _) if !self.tx.ready.is_empty() => Some(Rooms::none()),
            (Some(rooms), _) => Some(rooms),
            (None, rooms) => rooms,
        }
    }

    fn qos(&self) -> Result<&Qos, Error> {
        self.tx.qos().map_or_else(|| self.port.qos(), Ok)
    }

    fn set_qos(&mut self, now: u64, qos: &Qos) -> Result<(), Error> {
        if !self.tx.has_queues() {
            return self.port.set_qos(now, qos);
        }
        if let Some(buffer) = self.rx.lacks(qos) {
            return Err(Error::NoHeadroom { buffer });
        }
        match self.port.set_qos(now, qos) {
            Ok(()) | Err(Error::NoQueues) => {}
            Err(error) => return Err(error),
        }
        self.tx.set(now, qos);
        self.rx.set(now, qos);
        self.again = Some(now);
        Ok(())
    }

    fn ways(&self) -> usize {
        self.port.ways()
    }

    fn way_of(&self, source: [u8; 6]) -> usize {
        self.port.way_of(source)
    }

    fn answer(&mut self, now: u64, way: usize, frame: &mut VecDeque<Frame>) {
        self.port.answer(now, way, frame);
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.port.fd()
    }

    fn next_timeout(&self) -> Option<u64> {
        let own = [self.again, self.tx.next_timeout(), self.rx.next_timeout()];
        own.into_iter().chain([self.port.next_timeout()]).flatten().min()
    }

    fn loop_back(&mut self, now: u64, frames: &VecDeque<Frame>) {
        self.port.loop_back(now, frames);
    }

    fn set_addresses(&mut self, mac: [u8; 6], addresses: &[IpAddr]) {
        self.mac = MacAddr(mac);
        self.port.set_addresses(mac, addresses);
    }

    fn path_mtu(&self, longer: usize) -> PathMtu {
        self.port.path_mtu(longer)
    }

    fn most_groups(&self) -> usize {
        self.port.most_groups()
    }

    fn hear_group(&mut self, group: IpAddr, is_member: bool) -> bool {
        self.port.hear_group(group, is_member)
    }

    fn reset(&mut self) {
        self.port.reset();
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = self.port.counters();
        for (name, value) in counters::of(&self.tx, &self.rx) {
            // Faults around faults count together.
            match counters.iter_mut().find(|(found, _)| *found == name) {
                Some((_, sum)) => *sum = sum.saturating_add(value),
                None => counters.push((name, value)),
            }
        }
        counters
    }

    fn flush(&mut self) {
        self.port.flush();
    }
}

/// The Ethernet address that a frame comes from.
fn source_of(frame: &Frame) -> [u8; 6] {
    let source = frame.as_slice().get(6..).and_then(|rest| rest.first_chunk());
    source.copied().unwrap_or_default()
}

#[cfg(test)]
mod tests;
