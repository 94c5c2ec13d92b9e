//! A port that the host's network stack shares: which of the two gets a frame.
//!
//! The rule is [`roce::Stack::owner`]'s. What the host sends goes out as it is, behind the card's
//! own frames; the host never hears the card, nor the card the host.

use std::collections::VecDeque;

use roce::Owner;

use crate::card::Card;
use crate::tally::Way;

impl Card {
    /// Counts the frames that were received, and gives the host those that it is to see.
    pub(crate) fn share_received(&mut self, now: u64) {
        let received = &mut self.scratch.received;
        for frame in received.iter() {
            self.tally.count(Way::Received, frame.as_slice());
        }
        let Some(host) = &mut self.host else { return };
        let mut hosts = VecDeque::new();
        for _ in 0..received.len() {
            let Some(frame) = received.pop_front() else { break };
            match self.stack.owner(frame.as_slice()) {
                Owner::Stack => received.push_back(frame),
                Owner::Host => hosts.push_back(frame),
                Owner::Both => {
                    hosts.push_back(self.pool.copy_of(&frame));
                    received.push_back(frame);
                }
            }
        }
        host.send(now, &mut hosts);
    }

    /// Takes up to `room` frames of the host's to be sent.
    pub(crate) fn take_from_host(&mut self, now: u64, room: usize) {
        let Some(host) = &mut self.host else { return };
        let sending = &mut self.scratch.sending;
        let before = sending.len();
        host.receive(now, sending, room);
        for frame in sending.iter().skip(before) {
            self.tally.count(Way::Sent, frame.as_slice());
        }
    }
}

#[cfg(test)]
mod tests;
