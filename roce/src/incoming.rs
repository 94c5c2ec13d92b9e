//! A packet that has come in: its fields as known at each place that it passes.

use core::ops::Range;

use crate::types::{Address, Gid, Instant};
use crate::wire::extension::atomicacketh;
use crate::wire::frame;

/// Explicit congestion notification (RFC 3168), in the traffic class or type of service.
pub(crate) mod ecn {
    /// Its two bits.
    pub const FIELD: u8 = 3;
    /// ECT(0): the packet may be marked.
    pub const CAPABLE: u8 = 2;
    /// CE: congestion experienced.
    pub const EXPERIENCED: u8 = 3;
}

/// The two ends of a packet's way: its source and its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flow {
    pub source: Gid,
    /// The destination, in its VLAN.
    pub destination: Address,
}

/// A UDP datagram to the RoCE port: the fields of its headers, and its place in the frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Envelope {
    pub flow: Flow,
    pub traffic_class: u8,
    /// Where the UDP payload is in the frame: transport headers to invariant CRC.
    pub payload: Range<usize>,
}

impl Envelope {
    /// Whether a switch marked the packet "congestion experienced".
    pub(crate) const fn is_marked(&self) -> bool {
        self.traffic_class & ecn::FIELD == ecn::EXPERIENCED
    }
}

/// Where a packet's payload lies: the caller's index of the frame, and the payload's offset there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FramePlace {
    pub frame_index: usize,
    pub payload_start: usize,
}

impl FramePlace {
    /// Where the value before an atomic operation is in the frame that answers it: the last of the headers, and all that
    /// is placed of such a frame.
    pub(crate) const fn value_before(self) -> Range<usize> {
        self.payload_start.wrapping_sub(atomicacketh::LENGTH)..self.payload_start
    }
}

/// A RoCE packet that has come in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Incoming<'a> {
    pub now: Instant,
    pub envelope: &'a Envelope,
    pub packet: &'a frame::Repr,
    pub place: FramePlace,
}
