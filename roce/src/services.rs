//! The places where services stand that see each packet of queue pairs: before it is accepted, before its payload is
//! placed, and once that is done.
//!
//! A stack has none unless it is given some ([`Stack::set_services`](crate::Stack::set_services)).

use core::fmt::Debug;

use crate::api::{Placed, Placement, Sink};
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
}

/// What is to become of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on.
    Accept,
    /// It is dropped as if it were lost, and counted as `drop_by_service`.
    Drop,
}

/// Services on the way of packets. Each of these does nothing unless it is said otherwise.
pub trait Services: Debug {
    /// Looks at a packet that passed all checks of its origin. It may be one that came before, or comes too early, and what
    /// it asks for may be refused. A packet that waits for the layer above is not checked again.
    fn check(&mut self, _packet: &Checked<'_>) -> Verdict {
        Verdict::Accept
    }

    /// Acts on a frame whose payload is about to be placed, once for each placement and in their order: it may change the
    /// bytes that are placed, and says where they belong. One that changes bytes does so once for each range of a frame: what
    /// comes for several members of a multicast group has a placement of the same bytes for each. Keys, rights and bounds of that place are checked behind it. The
    /// caller of the stack calls it, for the stack never touches payload.
    fn act(&mut self, placement: &Placement, _frame: &mut [u8]) -> Sink {
        placement.sink
    }

    /// Hears what became of a placement, once for each that was acted on, in their order, before its queue pair's peer and
    /// program do. It is not told of placements of queue pairs that were reset or destroyed meanwhile.
    fn done(&mut self, _qpn: Qpn, _placed: Placed) {}
}
