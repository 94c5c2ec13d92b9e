//! A middleware that makes a cable a bad one.
//!
//! Each way, each frame (ARP as well as RoCE) may be lost, doubled, held back until later ones have
//! come, damaged by a bit, marked as having met congestion, or delayed; each of these is decided
//! independently. The decisions about the n-th frame of a seed, a card and a direction depend on
//! these alone. A cable of a given rate has a queue at its far end, which drops frames beyond its room,
//! and marks packets by its length. Everything is counted by cause and direction.

mod bottleneck;
mod draw;
mod edit;
mod line;
mod quantity;
mod spec;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use roce::PathMtu;

pub use draw::FaultSource;
pub(crate) use quantity::whole;
pub use quantity::{BitRate, Size};
pub use spec::{Delay, FaultSpec, Rate, Red};

use draw::Decisions;
use line::Line;

use super::{Direction, Frame, FramePool, Port};

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
        let line = |direction| {
            Line::new(*spec, direction, Decisions::new(source, direction), pool.clone())
        };
        Self {
            port,
            tx: line(Direction::Outbound),
            rx: line(Direction::Inbound),
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
            self.rx.take(now, frame);
        }
        pulled
    }
}

impl Port for Faults {
    fn send(&mut self, now: u64, burst: &mut VecDeque<Frame>) {
        let before = burst.len();
        let pushed = self.push(now);
        while self.tx.ready.is_empty() {
            // A port that has no room may still take a frame, as by another way out of a switch.
            let room = self.port.room().clamp(1, CHUNK);
            let count = room.min(self.tx.space()).min(burst.len());
            if count == 0 {
                break;
            }
            for frame in burst.drain(..count) {
                self.tx.take(now, frame);
            }
            self.push(now);
        }
        if pushed && burst.len() == before {
            self.again = Some(now);
        }
    }

    fn receive(&mut self, now: u64, into: &mut VecDeque<Frame>, budget: usize) {
        let before = into.len();
        // Nothing else calls when a sent frame is due, or the port behind has room again.
        let pushed = self.push(now);
        self.rx.advance(now);
        let pulled = self.pull(now, budget.saturating_sub(self.rx.ready.len()));
        let count = self.rx.ready.len().min(budget);
        into.extend(self.rx.ready.drain(..count));
        let unseen = (pushed || pulled) && into.len() == before;
        self.again = (unseen || !self.rx.ready.is_empty()).then_some(now);
    }

    fn room(&self) -> usize {
        match self.tx.ready.len() {
            0 if self.tx.always_delays() => self.tx.space(),
            0 => self.port.room().min(self.tx.space()),
            _ => 0,
        }
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
        let (tx, rx) = (&self.tx.counts, &self.rx.counts);
        for (name, value) in [
            ("fault_lost_tx", tx.lost),
            ("fault_lost_rx", rx.lost),
            ("fault_duplicated_tx", tx.duplicated),
            ("fault_duplicated_rx", rx.duplicated),
            ("fault_reordered_tx", tx.reordered),
            ("fault_reordered_rx", rx.reordered),
            ("fault_corrupted_tx", tx.corrupted),
            ("fault_corrupted_rx", rx.corrupted),
            ("fault_ecn_marked_tx", tx.ecn_marked),
            ("fault_ecn_marked_rx", rx.ecn_marked),
            ("fault_delayed_tx", tx.delayed),
            ("fault_delayed_rx", rx.delayed),
            ("fault_dropped_rx", rx.dropped),
        ] {
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

#[cfg(test)]
mod tests;
