//! Ports and cables: how frames leave a card and reach another.
//!
//! One thread runs all cards and all ports. Frames move in bursts, by ownership. A port that
//! cannot take a frame leaves it with its sender: that is back-pressure, and the sender keeps it.
//! Frames shorter than [`MIN_FRAME`] or longer than [`FRAME_CAPACITY`] are dropped and counted.

mod capture;
mod fault;
mod frame;
mod packet;
mod pcapng;
mod plug;
mod rooms;
mod switch;
mod tap;
pub mod udp;
mod unix;
mod watch;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::ops::RangeBounds;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

pub use capture::{Capture, SharedWriter};
pub(crate) use fault::whole;
pub use fault::{BitRate, Delay, FaultSource, FaultSpec, Faults, Rate, Red, Size};
pub use frame::{FRAME_CAPACITY, Frame, FramePool, MIN_FRAME};
pub use packet::PacketPort;
pub use pcapng::{Direction, Writer as PcapngWriter};
pub use plug::plug;
pub use rooms::Rooms;
pub use switch::{SwitchPort, switch};
pub use tap::TapPort;
pub use udp::UdpPort;
pub use unix::UnixPort;
pub use watch::{Recorder, Watch, Watched};

use roce::PathMtu;
use roce::param::MAX_GROUPS;
use roce::qos::Qos;

use crate::{Error, Link};

/// Frames of a bad length passed over in one call, so that they cannot hold up the thread.
const BAD_LIMIT: u64 = 1024;

/// The result of a read from a port's descriptor.
enum Arrival {
    /// A frame, of that length.
    Frame(usize),
    /// No frame, but one may stand behind it.
    Interruption,
    /// Nothing more.
    Nothing,
}

/// The result of [`receive_burst`].
struct TakenFrames {
    frames: u64,
    bad_length: u64,
    /// Whether so much was passed over that the rest waits for another call.
    goes_on: bool,
}

/// Receives up to `budget` frames of the right lengths.
fn receive_burst(
    pool: &FramePool,
    into: &mut VecDeque<Frame>,
    budget: usize,
    lengths: impl RangeBounds<usize>,
    mut arrival: impl FnMut(&mut [u8]) -> Arrival,
) -> TakenFrames {
    let mut received = TakenFrames { frames: 0, bad_length: 0, goes_on: false };
    let mut passed_over = 0_u64;
    while received.frames < budget as u64 {
        received.goes_on = passed_over == BAD_LIMIT;
        if received.goes_on {
            break;
        }
        let mut frame = pool.take();
        match arrival(frame.buffer_mut()) {
            Arrival::Frame(length) if lengths.contains(&length) => {
                frame.set_len(length);
                into.push_back(frame);
                received.frames = received.frames.saturating_add(1);
                continue;
            }
            Arrival::Frame(_) => received.bad_length = received.bad_length.saturating_add(1),
            Arrival::Interruption => {}
            Arrival::Nothing => {
                pool.put(frame);
                break;
            }
        }
        passed_over = passed_over.saturating_add(1);
        pool.put(frame);
    }
    received
}

/// The card's end of a cable. Times are nanoseconds of the caller's clock.
pub trait Port {
    /// Sends frames from the front of the burst and leaves those there is no room for.
    ///
    /// Frames that can never be sent are dropped and counted.
    fn send(&mut self, now: u64, burst: &mut VecDeque<Frame>);

    /// Appends up to `budget` frames that have arrived.
    fn receive(&mut self, now: u64, into: &mut VecDeque<Frame>, budget: usize);

    /// Frames that [`Port::send`] would take now, as far as can be known; some ports learn only
    /// by trying.
    fn room(&self) -> usize;

    /// The frames of each priority that [`Port::send`] would take now, where it has queues for them; [`Port::room`] is the
    /// most of these.
    fn rooms(&self) -> Option<Rooms> {
        None
    }

    /// The settings of the port's priorities.
    ///
    /// # Errors
    /// [`Error::NoQueues`] or [`Error::MachinesQueues`] where it has no queues for them.
    fn qos(&self) -> Result<&Qos, Error> {
        Err(Error::NoQueues)
    }

    /// Changes the settings of the port's priorities, which were [checked](Qos::check).
    ///
    /// # Errors
    /// As [`Port::qos`], and [`Error::NoHeadroom`] where its buffer is too small. Nothing has changed then.
    fn set_qos(&mut self, _now: u64, _qos: &Qos) -> Result<(), Error> {
        Err(Error::NoQueues)
    }

    /// The number of ways by which frames come: the ports of a switch, of which each has senders of its own.
    fn ways(&self) -> usize {
        1
    }

    /// The way by which frames of a source come.
    fn way_of(&self, _source: [u8; 6]) -> usize {
        0
    }

    /// Sends a frame to the port at the other end of a way, ahead of all others, and leaves it where there is no room.
    fn answer(&mut self, now: u64, _way: usize, frame: &mut VecDeque<Frame>) {
        self.send(now, frame);
    }

    /// The descriptor that becomes readable when the port has work: frames to receive, or room again after
    /// [`Port::send`] left frames behind.
    ///
    /// It may be watched edge-triggered by a thread that receives until nothing comes. `None` for
    /// a port whose other end is run by the same thread.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// The time of the port's next work by itself: send or receive again then.
    fn next_timeout(&self) -> Option<u64> {
        None
    }

    /// Sees frames that the card sends to itself, which never reach the cable.
    fn loop_back(&mut self, _now: u64, _frames: &VecDeque<Frame>) {}

    /// Tells the other end, where that can be told, whether the card's port is on its cable.
    fn set_carrier(&mut self, _up: bool) {}

    /// Tells the port the card's Ethernet address, and its IP addresses.
    fn set_addresses(&mut self, _mac: [u8; 6], _addresses: &[IpAddr]) {}

    /// The largest path MTU that the cable carries, where each frame is so many bytes longer than the stack makes it.
    fn path_mtu(&self, _longer: usize) -> PathMtu {
        PathMtu::Mtu4096
    }

    /// The number of multicast groups that the port can be in.
    fn most_groups(&self) -> usize {
        MAX_GROUPS
    }

    /// Joins or leaves a multicast group; false if it has no room for another one.
    fn hear_group(&mut self, _group: IpAddr, _is_member: bool) -> bool {
        true
    }

    /// Resets the port with its card: frames that wait in it are lost, and it is in no group any more.
    fn reset(&mut self) {}

    /// Counters by name.
    fn counters(&self) -> Vec<(&'static str, u64)>;

    /// Finishes buffered output, of a capture for example.
    fn flush(&mut self) {}
}

/// The ends of all cables.
#[derive(Clone, Debug, Default)]
pub struct Cabling {
    /// The other end of each card's port.
    pub links: Vec<Link>,
    /// The faults of the cables, the first nearest to the card.
    pub faults: Vec<FaultSpec>,
    /// The seed of the faults, which fixes the n-th frame's of each cable and direction.
    pub seed: u64,
    /// The file for a capture of every port.
    pub capture: Option<PathBuf>,
}

impl Cabling {
    /// The rate of a card's cable, if it has one.
    pub(crate) fn rate(&self, card: usize) -> Option<BitRate> {
        let of_card = self.faults.iter().filter(|it| it.is_for(card));
        of_card.filter_map(|fault| fault.rate).min()
    }
}

/// The counters of every kind of port.
#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    /// Frames handed to the cable.
    sent: u64,
    /// Frames taken from the cable.
    received: u64,
    /// Times a frame had to wait with its sender.
    held: u64,
    /// Frames dropped because they are too short or too long.
    bad_length: u64,
    /// Frames dropped because the other end has no receiver.
    no_peer: u64,
}

impl Counters {
    fn count(&mut self, received: &TakenFrames) {
        self.received = self.received.saturating_add(received.frames);
        self.bad_length = self.bad_length.saturating_add(received.bad_length);
    }

    fn list(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("port_frames_sent", self.sent),
            ("port_frames_received", self.received),
            ("port_frames_held", self.held),
            ("port_frames_bad_length", self.bad_length),
            ("port_frames_no_peer", self.no_peer),
        ]
    }
}
