//! Ports and cables: how frames leave a card and reach another.
//!
//! One thread runs all cards and all ports. Frames move in bursts, by ownership. A port that
//! cannot take a frame leaves it with its sender: that is back-pressure, and the sender keeps it.

mod frame;
mod plug;
mod switch;

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

pub use frame::{FRAME_CAPACITY, Frame, FramePool};
pub use switch::{SwitchPort, switch};

pub use plug::plug;

use crate::Link;

/// The card's end of a cable. Times are nanoseconds of the caller's clock.
pub trait Port {
    /// Sends frames from the front of the burst and leaves those there is no room for.
    fn send(&mut self, now: u64, burst: &mut VecDeque<Frame>);

    /// Appends up to `budget` frames that have arrived.
    fn receive(&mut self, now: u64, into: &mut VecDeque<Frame>, budget: usize);

    /// Frames that [`Port::send`] would take now.
    fn room(&self) -> usize;

    /// The descriptor that becomes readable with frames and writable with room.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// When the port next has something to do by itself.
    fn next_timeout(&self) -> Option<u64> {
        None
    }

    /// Sees frames that the card sends to itself, which never reach the cable.
    fn loop_back(&mut self, _now: u64, _frames: &VecDeque<Frame>) {}

    /// Counters by name.
    fn counters(&self) -> Vec<(&'static str, u64)>;

    /// Finishes what is buffered, such as a capture.
    fn flush(&mut self) {}
}

/// What is plugged into what.
#[derive(Clone, Debug, Default)]
pub struct Cabling {
    /// For each card, what its port is plugged into.
    pub links: Vec<Link>,
    /// Where to write a capture of every port.
    pub capture: Option<PathBuf>,
}
