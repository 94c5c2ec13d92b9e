//! A message in the send ring of a requester.

use core::ops::Range;

use crate::api::SendRequest;
use crate::param;
use crate::types::PathMtu;

/// A message in the send ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    /// The request as posted.
    pub request: SendRequest,
    /// The sequence of its first packet (of a READ or an atomic: of its first response).
    pub first: u64,
    /// How many packets it takes (of a READ or an atomic: responses).
    pub packets: u32,
    /// Along XRC: the peer's shared receive queue that it names.
    pub srqn: u32,
    /// Request packets of all messages before it, for the window.
    pub weight_before: u64,
    /// Messages before it that take a receive request of the peer.
    pub takes_before: u64,
}

impl Message {
    /// The sequence after its last packet.
    #[inline]
    pub(crate) fn end(&self) -> u64 {
        self.first.wrapping_add(u64::from(self.packets))
    }

    /// Whether this is a READ or an atomic, which is answered by responses instead of acknowledged.
    #[inline]
    pub(crate) fn is_answered(&self) -> bool {
        self.request.operation.is_answered()
    }

    /// Request packets up to `sequence`, counted from the first message of the connection.
    pub(crate) fn weight_at(&self, sequence: u64) -> u64 {
        let packets = sequence.saturating_sub(self.first);
        let packets = if self.is_answered() { packets.min(1) } else { packets };
        self.weight_before.wrapping_add(packets)
    }

    /// The end of the request that covers the response `sequence`. Requests of a READ end at fixed
    /// places, wherever a retry begins.
    pub(crate) fn request_end(&self, sequence: u64) -> u64 {
        // RC-21
        let done = sequence.saturating_sub(self.first);
        let request = (done / param::READ_REQUEST_PACKETS).wrapping_add(1);
        let end = self.first.wrapping_add(request.wrapping_mul(param::READ_REQUEST_PACKETS));
        end.min(self.end())
    }

    /// Offset and length of the payload of packet `sequence`.
    #[inline]
    pub(crate) fn payload_at(&self, sequence: u64, mtu: PathMtu) -> (u64, u32) {
        let offset = sequence.saturating_sub(self.first) << mtu.shift();
        let rest = u64::from(self.request.length).saturating_sub(offset);
        // At most a path MTU.
        (offset, rest.min(u64::from(mtu.bytes())) as u32)
    }

    /// Bytes of the payload of packets.
    #[inline]
    pub(crate) fn bytes(&self, packets: Range<u64>, mtu: PathMtu) -> u64 {
        let length = u64::from(self.request.length);
        if packets == (self.first..self.end()) {
            return length;
        }
        let before =
            |sequence: u64| (sequence.saturating_sub(self.first) << mtu.shift()).min(length);
        before(packets.end).saturating_sub(before(packets.start))
    }
}
