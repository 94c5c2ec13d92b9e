//! The places where services stand that see each packet of queue pairs: before it is accepted, before its payload is
//! placed, and once that is done; and the payload of each that leaves, before it is sealed.
//!
//! A stack has none unless it is given some ([`Stack::set_services`](crate::Stack::set_services)).

use core::fmt::Debug;
use core::ops::Range;

use crate::api::{FramePayload, Placed, Placement, Sink};
use crate::types::Qpn;
use crate::wire::frame;

/// A packet that comes from its queue pair's peer.
#[derive(Clone, Copy, Debug)]
pub struct Checked<'a> {
    /// The queue pair.
    pub qpn: Qpn,
    /// The headers.
    pub packet: &'a frame::Repr,
    /// The payload, without padding.
    pub payload: &'a [u8],
    /// The part of its message that the payload is, along a reliable connection. Duplicates, packets that come too
    /// early and packets without payload have none.
    pub part: Option<Part>,
}

/// The part of a message that a packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The kind of the message.
    pub kind: PartKind,
    /// The offset of the first byte in its message.
    pub offset: u64,
    /// Whether it ends the message.
    pub is_last: bool,
}

/// The kind of a message with payload, as its receiver sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartKind {
    /// A SEND of the peer's.
    Send,
    /// A WRITE of the peer's.
    Write,
    /// A READ of this end, in its responses.
    Read,
}

/// A service's verdict on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on.
    Accept,
    /// It is dropped as if it were lost, and counted as `drop_by_service`.
    Drop,
    /// It is dropped, and counted the same. Where it has a [`Checked::part`], its connection fails: a request gets the NAK
    /// "remote operational error", and a READ of this end ends as
    /// [`SendStatus::BadResponse`](crate::SendStatus::BadResponse). None of its bytes is placed.
    Refuse,
}

/// Services on the way of packets. Each of these does nothing unless it is said otherwise.
pub trait Services: Debug {
    /// Checks a packet whose origin has been checked. The packet may be a duplicate, or come too early, and its request
    /// may be refused later. A packet that waits for the layer above is not checked again.
    fn check(&mut self, _packet: &Checked<'_>) -> Verdict {
        Verdict::Accept
    }

    /// Hears that the packet of its queue pair that was checked last has been accepted, and is to be placed there; not of
    /// datagrams to groups.
    fn accepted(&mut self, _placement: &Placement) {}

    /// Acts on a frame whose payload is about to be placed, once for each placement and in their order: it may change the
    /// bytes that are placed, and says where they belong; `None` fails the placement, and with it the queue pair. Keys,
    /// rights and bounds of that place are checked behind it.
    ///
    /// An implementation that changes bytes does so once for each range of a frame: a datagram for several members of a
    /// multicast group has a placement of the same bytes for each. The caller of the stack calls this, for the stack
    /// never touches payload.
    fn act(&mut self, placement: &Placement, _frame: &mut [u8]) -> Option<Sink> {
        Some(placement.sink)
    }

    /// Takes the result of a placement, once for each that was acted on, in their order, before its queue pair's peer
    /// and program get it. It is not told of placements of queue pairs that were reset or destroyed meanwhile.
    fn done(&mut self, _qpn: Qpn, _placed: Placed) {}

    /// Changes the payload of a frame that is to leave, before that is sealed; `false` fails it as memory that cannot be
    /// read. A packet may leave several times, and then has the same bytes. The caller of the stack calls it.
    fn transform(
        &mut self,
        _payload: &FramePayload,
        _frame: &mut [u8],
        _range: Range<usize>,
    ) -> bool {
        true
    }
}
