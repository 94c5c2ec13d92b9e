//! A cable made of a network device of the kernel's: the card's frames leave by it as they are.
//!
//! Every frame that arrives at the device comes here, and all of the card's frames leave there, beside
//! those that the kernel itself receives and sends by the device. The device should have no addresses
//! of its own, and room for the card's frames: MTU 4200 for a path MTU of 4096. It is told to hand on
//! every frame as it arrived, for the kernel merges those of a TCP connection.

use std::cell::Cell;
use std::collections::VecDeque;
use std::os::fd::{AsFd as _, BorrowedFd};

use hostmem::PacketSocket;
use nix::errno::Errno;

use super::{Arrival, Counters, FRAME_CAPACITY, Frame, FramePool, MIN_FRAME, Port, receive_burst};

/// Frames that a sender may offer in one burst while the device takes them.
const ROOM: usize = 64;

/// How long to wait, in nanoseconds, before a frame that found no room is tried again.
const RETRY_NS: u64 = 100_000;

/// A port that sends and receives by a network device of the kernel's.
pub struct PacketPort {
    socket: PacketSocket,
    /// When to try again, after a frame found no room.
    resume: Option<u64>,
    /// When to go on receiving, after so many frames of bad length.
    again: Option<u64>,
    pool: FramePool,
    counters: Counters,
    /// Frames that arrived faster than they were taken.
    lost: Cell<u64>,
}

impl PacketPort {
    /// Plugs into a device.
    ///
    /// # Errors
    /// Where the device is not there, or this process has no CAP_NET_RAW.
    pub fn open(device: &str, pool: FramePool) -> Result<Self, hostmem::Error> {
        let socket = PacketSocket::open(device)?;
        Ok(Self {
            socket,
            resume: None,
            again: None,
            pool,
            counters: Counters::default(),
            lost: Cell::default(),
        })
    }
}

impl Port for PacketPort {
    fn send(&mut self, now: u64, burst: &mut VecDeque<Frame>) {
        self.resume = None;
        while let Some(frame) = burst.pop_front() {
            let sent = match frame.as_slice().len() {
                MIN_FRAME.. => self.socket.send(frame.as_slice()),
                _ => Err(Errno::EMSGSIZE),
            };
            if let Err(Errno::EAGAIN | Errno::ENOBUFS | Errno::EINTR) = sent {
                burst.push_front(frame);
                self.counters.held = self.counters.held.saturating_add(1);
                self.resume = Some(now.saturating_add(RETRY_NS));
                return;
            }
            let counter = match sent {
                Ok(()) => &mut self.counters.sent,
                Err(Errno::EMSGSIZE) => &mut self.counters.bad_length,
                // The device is down, or gone.
                Err(_) => &mut self.counters.no_peer,
            };
            *counter = counter.saturating_add(1);
            self.pool.put(frame);
        }
    }

    fn receive(&mut self, now: u64, into: &mut VecDeque<Frame>, budget: usize) {
        let lengths = MIN_FRAME..=FRAME_CAPACITY;
        let received = receive_burst(&self.pool, into, budget, lengths, |buffer| {
            match self.socket.receive(buffer) {
                Ok(length) => Arrival::Frame(length),
                // It is told once that the device went down; it may come up again.
                Err(Errno::ENETDOWN | Errno::EINTR) => Arrival::Interruption,
                Err(_) => Arrival::Nothing,
            }
        });
        self.again = received.goes_on.then_some(now);
        self.counters.count(&received);
    }

    fn room(&self) -> usize {
        // While there was none, one frame is enough to find out.
        if self.resume.is_some() { 1 } else { ROOM }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn next_timeout(&self) -> Option<u64> {
        self.resume.into_iter().chain(self.again).min()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.lost.set(self.lost.get().saturating_add(self.socket.lost().into()));
        let mut counters = self.counters.list();
        counters.push(("port_frames_lost", self.lost.get()));
        counters
    }
}
