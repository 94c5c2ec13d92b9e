//! The way to the host's network stack: a network device whose other end is the card.

use std::collections::VecDeque;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;

use hostmem::Tap;

use super::{Arrival, FRAME_CAPACITY, Frame, FramePool, MIN_FRAME, Port, receive_burst};

/// Frames that may be offered to the host in one burst; the kernel takes them all.
const ROOM: usize = 64;

/// A port whose other end is the host's network stack.
pub struct TapPort {
    tap: Arc<Tap>,
    pool: FramePool,
    /// When to go on receiving, after so many frames of bad length.
    resume: Option<u64>,
    /// Frames that the host's network stack was given.
    given: u64,
    /// Frames that it did not take: its device is down.
    refused: u64,
    /// Frames that it sent.
    taken: u64,
    /// Frames that it sent and that are longer than any of the card's.
    bad_length: u64,
}

impl TapPort {
    /// A port on a network device.
    #[must_use]
    pub fn new(tap: Arc<Tap>, pool: FramePool) -> Self {
        Self { tap, pool, resume: None, given: 0, refused: 0, taken: 0, bad_length: 0 }
    }
}

impl Port for TapPort {
    fn send(&mut self, _now: u64, burst: &mut VecDeque<Frame>) {
        for frame in burst.drain(..) {
            let counter = match self.tap.send(frame.as_slice()) {
                true => &mut self.given,
                false => &mut self.refused,
            };
            *counter = counter.saturating_add(1);
            self.pool.put(frame);
        }
    }

    fn receive(&mut self, now: u64, into: &mut VecDeque<Frame>, budget: usize) {
        // One that fills the buffer may have been cut.
        let lengths = MIN_FRAME..FRAME_CAPACITY;
        let received = receive_burst(&self.pool, into, budget, lengths, |buffer| {
            self.tap.receive(buffer).map_or(Arrival::Nothing, Arrival::Frame)
        });
        self.resume = received.goes_on.then_some(now);
        self.taken = self.taken.saturating_add(received.frames);
        self.bad_length = self.bad_length.saturating_add(received.bad_length);
    }

    fn room(&self) -> usize {
        ROOM
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.tap.as_fd())
    }

    fn next_timeout(&self) -> Option<u64> {
        self.resume
    }

    fn set_carrier(&mut self, up: bool) {
        if let Err(error) = self.tap.set_carrier(up) {
            log::warn!("the kernel's device goes on saying that its cable is there: {error}");
        }
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("host_frames_given", self.given),
            ("host_frames_refused", self.refused),
            ("host_frames_taken", self.taken),
            ("host_frames_bad_length", self.bad_length),
        ]
    }
}
