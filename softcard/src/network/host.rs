//! A port that the host's network stack shares: the receiver of each frame, and the frames that the host may send.
//!
//! The rules are [`roce::Stack::owner`]'s and [`roce::Stack::is_forged`]'s. The host's frames go
//! out as they are; the host never hears the card, nor the card the host.

use std::collections::VecDeque;

use roce::{Owner, ReceivedFrame as _};

use super::Network;
use crate::port::Direction;
use crate::port::{Frame, Port};

/// Frames of the host's that have their turn before the card's in each round, so that a card which
/// is never idle keeps no connection from being made.
pub(crate) const HOST_TURN: usize = 8;

/// The host's network stack.
pub(crate) struct Host {
    pub(crate) port: Box<dyn Port>,
    /// Frames that it sent to itself, which is the card, too.
    to_itself: u64,
    /// Frames that it sent and a peer would take for the card's.
    forged: u64,
    /// Frames that it sent and whose queue in the port was full.
    dropped: u64,
    /// Frames on their way, kept so that rounds need not allocate it.
    passing: VecDeque<Frame>,
}

impl Host {
    pub(crate) fn new(port: Box<dyn Port>) -> Self {
        Self { port, to_itself: 0, forged: 0, dropped: 0, passing: VecDeque::new() }
    }

    /// Counters by name.
    pub(crate) fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = self.port.counters();
        counters.push(("host_frames_to_itself", self.to_itself));
        counters.push(("host_frames_forged", self.forged));
        counters.push(("host_frames_dropped", self.dropped));
        counters
    }
}

impl Network {
    /// Counts the frames that were received, and gives the host those that it is to see.
    pub(super) fn share_received(&mut self, now: u64, received: &mut VecDeque<Frame>) {
        for frame in received.iter() {
            self.tally.count(Direction::Inbound, frame.as_slice());
        }
        let Some(Host { port, passing, .. }) = &mut self.host else { return };
        for _ in 0..received.len() {
            let Some(frame) = received.pop_front() else { break };
            match self.stack.owner(frame.as_slice()) {
                Owner::Stack => received.push_back(frame),
                // A frame of the card's to a group that it is in.
                Owner::Both if frame.is_looped() => received.push_back(frame),
                Owner::Host => passing.push_back(frame),
                Owner::Both => {
                    passing.push_back(self.pool.copy_of(&frame));
                    received.push_back(frame);
                }
            }
        }
        port.send(now, passing);
        // Frames that the host did not take are lost, as on any cable.
        self.pool.put_all(passing);
    }

    /// Takes up to `room` frames of the host's to be sent; `true` if there were any, whether they are
    /// to be sent or not.
    pub(crate) fn take_from_host(
        &mut self,
        now: u64,
        room: usize,
        sending: &mut VecDeque<Frame>,
    ) -> bool {
        if self.host.is_none() {
            return false;
        }
        let (own, mut rooms) = (self.identity().mac, self.rooms(sending));
        let Some(Host { port, to_itself, forged, dropped, passing }) = &mut self.host else {
            return false;
        };
        port.receive(now, passing, room);
        let any = !passing.is_empty();
        for frame in passing.drain(..) {
            if frame.as_slice().starts_with(&own) {
                *to_itself = to_itself.saturating_add(1);
                self.pool.put(frame);
            } else if self.stack.is_forged(frame.as_slice()) {
                *forged = forged.saturating_add(1);
                self.pool.put(frame);
            } else if rooms
                .as_mut()
                .is_some_and(|rooms| !rooms.take(self.trust.of_frame(frame.as_slice())))
            {
                // It would hold up those of other priorities.
                *dropped = dropped.saturating_add(1);
                self.pool.put(frame);
            } else {
                self.tally.count(Direction::Outbound, frame.as_slice());
                sending.push_back(frame);
            }
        }
        any
    }
}

#[cfg(test)]
mod tests;
