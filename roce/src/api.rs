//! The values that the transport and the layer above it exchange.

use core::ops::Range;
use core::task::Poll;

use fpga_regs::engine::cqe::Status;
pub use fpga_regs::engine::event::QpEvent;
pub use fpga_regs::engine::message::{
    ReceiveError, ReceiveKind, RemoteAccess, RemoteRange, TakenReceive,
};
pub use fpga_regs::engine::wqe::AtomicOperation;
pub use fpga_regs::port::IcrcPolicy;

use crate::header::HeaderBuffer;
use crate::psn::Psn;
use crate::types::Qpn;
use crate::wire::{Malformed, icrc, reth};

/// The operation of a message along a connection, by which the opcode of each of its packets is found. The operands stand
/// beside it in [`SendRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// SEND: consumes a receive request of the peer.
    Send,
    /// SEND with immediate data.
    SendImm,
    /// SEND that takes a key of the peer's back.
    SendInvalidate {
        /// The key.
        rkey: u32,
    },
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with immediate data: consumes a receive request of the peer at its end.
    WriteImm,
    /// RDMA READ.
    Read,
    /// Compare and swap, or fetch and add: a READ of the value before, whose length is
    /// [`AtomicOperation::LENGTH`].
    Atomic(AtomicOperation),
}

/// A message for [`Stack::post_send`](crate::Stack::post_send).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendRequest {
    /// The operation.
    pub operation: Operation,
    /// Bytes of payload, at most [`MAX_MESSAGE_LENGTH`](crate::param::MAX_MESSAGE_LENGTH).
    pub length: u32,
    /// The peer's virtual address (WRITE, READ and atomics).
    pub remote_va: u64,
    /// The peer's key (WRITE, READ and atomics).
    pub rkey: u32,
    /// The immediate data (big-endian on the wire), for operations that have some.
    pub imm: u32,
    /// Ask for a solicited event at the peer.
    pub solicited: bool,
    /// Start only when all earlier READs and atomics are complete.
    pub fence: bool,
}

/// A datagram for [`Stack::post_datagram`](crate::Stack::post_datagram).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramRequest {
    /// The address handle that says where the peer is.
    pub ah: u32,
    /// The peer's queue pair; [`Qpn::GROUP`] where the address handle names a multicast group.
    pub dest_qpn: Qpn,
    /// The Q_Key that it has; the sending queue pair's own where the highest bit is set.
    pub qkey: u32,
    /// Bytes of payload, at most the port's largest path MTU.
    pub length: u32,
    /// The immediate data (big-endian on the wire), if there is any.
    pub imm: Option<u32>,
    /// Ask for a solicited event at the peer.
    pub solicited: bool,
}

/// Bytes before the payload of a datagram in its receive: the global route header, which is IPv6's
/// header, or in its last 20 bytes that of IPv4.
pub const GRH_LENGTH: u32 = 40;

/// Where received bytes belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sink {
    /// Memory that a WRITE of the peer addresses.
    Remote {
        /// The key, already checked for the whole message by [`ResponderMemory::check_remote`].
        rkey: u32,
        /// The virtual address of this packet's first byte.
        va: u64,
    },
    /// A receive request, at `Placement::offset` of its buffer.
    Receive {
        /// The request, as [`ResponderMemory::take_receive`] named it.
        id: u64,
    },
    /// The buffer of one of our own READs or atomics, at `Placement::offset`.
    Message {
        /// The message number that `post_send` returned.
        message: u64,
    },
    /// Memory that an atomic operation of the peer addresses. No bytes of the frame belong there: the
    /// operation is to be executed, on a value in the order of bytes of the host, after the placements
    /// before it and before those behind it, and so that no other operation of any QP comes between
    /// its read and its write.
    Atomic {
        /// The key, already checked by [`ResponderMemory::check_remote`].
        rkey: u32,
        /// The virtual address, a multiple of [`AtomicOperation::LENGTH`].
        va: u64,
        /// The operation.
        operation: AtomicOperation,
    },
}

/// A shared receive queue that a request along XRC names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XrcSrq {
    /// Its alleged number, 24 bits.
    pub srqn: u32,
    /// The XRC domain that it must be of: the receiving QP's.
    pub domain: u32,
}

/// The queue pair that a request of a peer reached, and its shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The QP that received it.
    pub qpn: Qpn,
    /// Along XRC: the shared receive queue that it names. Receive requests are taken from that one, and
    /// memory is reached in its protection domain.
    pub srq: Option<XrcSrq>,
}

impl From<Qpn> for Target {
    fn from(qpn: Qpn) -> Self {
        Self { qpn, srq: None }
    }
}

/// One copy that the caller owes: bytes of a received frame into memory, or the execution of an atomic
/// operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The QP that received the frame.
    pub qpn: Qpn,
    /// The shared receive queue that a request along XRC names.
    pub srqn: Option<u32>,
    /// Where the bytes belong.
    pub sink: Sink,
    /// The offset of the first byte in its message.
    pub offset: u64,
    /// The index that the caller gave the frame.
    pub frame_index: usize,
    /// The bytes in that frame; empty for [`Sink::Atomic`] only.
    pub range: Range<usize>,
}

/// How a placement went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placed {
    /// All bytes are where they belong.
    Copied,
    /// The atomic operation was executed.
    Executed {
        /// The value before it.
        before: u64,
    },
    /// Memory was not within reach. An atomic operation has had no effect.
    Failed,
    /// Not known yet. The queue pair waits for [`Stack::settle`](crate::Stack::settle), and no other does.
    Later,
}

/// Where the payload of a frame comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The buffer of one of our own messages, at `FramePayload::offset`.
    Message {
        /// The message number that `post_send` returned.
        message: u64,
    },
    /// Memory that a READ of the peer addresses.
    Remote {
        /// The key, already checked for the whole READ by [`ResponderMemory::check_remote`].
        rkey: u32,
        /// The virtual address of this packet's first byte.
        va: u64,
    },
}

/// A reference to the payload of one frame: which of a message's bytes it has, and under which PSN they go.
///
/// The contract's [`Payload`](fpga_regs::engine::message::Payload) names memory alone, not the part of it that is
/// moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FramePayload {
    /// The QP that sends the frame.
    pub qpn: Qpn,
    /// The shared receive queue that the request named, if this answers one along XRC.
    pub srqn: Option<u32>,
    /// Where the bytes are.
    pub source: Source,
    /// The offset of the first byte in its message.
    pub offset: u64,
    /// The number of bytes; never zero.
    pub length: u32,
    /// The PSN of the frame, by which
    /// [`Stack::payload_failed`](crate::Stack::payload_failed) finds it again.
    pub psn: Psn,
}

/// A received Ethernet frame: with its invariant CRC, without frame check sequence.
pub trait ReceivedFrame {
    /// The frame.
    fn bytes(&self) -> &[u8];
    /// The same, to be changed while its invariant CRC is checked; then it is as it was, but that the
    /// value before an atomic operation of ours stands in the host's order, to be placed.
    fn bytes_mut(&mut self) -> &mut [u8];
    /// Whether the caller vouches for the invariant CRC: the frame was sealed with it, and has not been changed since.
    /// [`IcrcPolicy`] says whether the stack trusts that.
    fn is_vouched_for(&self) -> bool;
    /// Whether this port has sent the frame, to itself or to a group that it is in, and no cable carried it.
    /// Any other frame has another host's source (RC-105).
    fn is_looped(&self) -> bool {
        false
    }
    /// The value that [`ReceivedFrame::keep`] got, of a packet that is given again.
    fn kept(&self) -> Kept {
        Kept::default()
    }
    /// Keeps a value for as long as the frame exists unchanged. If the value is lost, the packet is looked at as if it
    /// came for the first time, and members of a multicast group that have taken it take it again.
    fn keep(&mut self, _kept: Kept) {}
}

/// The mark that a packet was accepted, kept while it waits to be given to [`Stack::receive`](crate::Stack::receive)
/// again. All that it asks for is decided anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// The life of the queue pair that has accepted it.
    pub(crate) generation: Option<u32>,
    /// The last member that has taken a datagram to a multicast group.
    pub(crate) last: Option<Qpn>,
}

impl Kept {
    /// Whether the packet was given before.
    #[inline]
    pub(crate) const fn is_some(self) -> bool {
        self.generation.is_some()
    }
}

/// Plain bytes from outside, with a CRC to be checked.
impl<T: AsRef<[u8]> + AsMut<[u8]> + ?Sized> ReceivedFrame for T {
    fn bytes(&self) -> &[u8] {
        self.as_ref()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.as_mut()
    }

    fn is_vouched_for(&self) -> bool {
        false
    }
}

/// Whether a frame may go on: its invariant CRC is right, or need not be looked at.
// RC-2
#[inline]
pub(crate) fn admits(policy: IcrcPolicy, frame: &mut (impl ReceivedFrame + ?Sized)) -> bool {
    let is_trusted = policy == IcrcPolicy::TrustVouchedFor && frame.is_vouched_for();
    is_trusted || icrc::check(frame.bytes_mut())
}

/// One frame to send: header, payload, padding, then the ICRC.
#[derive(Debug)]
pub struct Transmit {
    /// The QP that sends it; `None` for ARP and ICMP.
    pub qpn: Option<Qpn>,
    /// Every byte from the Ethernet header to the last extension header, with all lengths and
    /// checksums right. ARP and ICMP answers are whole frames.
    pub header: HeaderBuffer,
    /// The payload that follows the header.
    pub payload: Option<FramePayload>,
    /// Zero bytes after the payload: 0 to 3.
    pub pad: u8,
    /// Whether four bytes of ICRC end the frame; false for ARP and ICMP.
    pub needs_icrc: bool,
    /// The priority, 0 to 7, as [`Trust`](crate::Trust) tells it; that of ARP and ICMP is 0.
    pub priority: u8,
}

impl Operation {
    /// Whether the peer needs a receive request for it.
    #[must_use]
    pub const fn takes_receive(self) -> bool {
        match self {
            Self::Send | Self::SendImm | Self::SendInvalidate { .. } | Self::WriteImm => true,
            Self::Write | Self::Read | Self::Atomic(_) => false,
        }
    }

    /// Whether the peer answers with bytes, rather than with an acknowledgement only.
    #[must_use]
    pub const fn is_answered(self) -> bool {
        matches!(self, Self::Read | Self::Atomic(_))
    }
}

impl SendRequest {
    /// A WRITE of `length` bytes to the peer's memory at `remote_va`, by its key.
    #[must_use]
    pub const fn write(length: u32, remote_va: u64, rkey: u32) -> Self {
        let operation = Operation::Write;
        Self { operation, length, remote_va, rkey, imm: 0, solicited: false, fence: false }
    }
}

impl Transmit {
    /// The whole frame in memory of its own, with the ICRC, if it has one; `payload` is the bytes that
    /// [`Transmit::payload`] refers to.
    ///
    /// # Errors
    /// [`Malformed::Length`] when that is another number of bytes.
    pub fn to_frame(&self, payload: &[u8]) -> Result<Vec<u8>, Malformed> {
        if payload.len() != self.payload.map_or(0, |payload| payload.length as usize) {
            return Err(Malformed::Length("payload"));
        }
        let mut frame = [self.header.as_slice(), payload].concat();
        frame.resize(self.frame_length(), 0);
        if self.needs_icrc {
            icrc::append(&mut frame)?;
        }
        Ok(frame)
    }

    /// A frame of a QP's that ends with its headers, but for the ICRC.
    #[inline]
    pub(crate) fn without_payload(qpn: Qpn, priority: u8, header: HeaderBuffer) -> Self {
        Self { qpn: Some(qpn), header, payload: None, pad: 0, needs_icrc: true, priority }
    }

    /// The length of the whole frame in bytes, with payload, padding and ICRC, without Ethernet's
    /// padding to its minimum and its frame check sequence.
    #[must_use]
    pub fn frame_length(&self) -> usize {
        let payload = self.payload.map_or(0, |payload| payload.length as usize);
        let icrc = if self.needs_icrc { icrc::LENGTH } else { 0 };
        self.header
            .as_slice()
            .len()
            .saturating_add(payload)
            .saturating_add(usize::from(self.pad))
            .saturating_add(icrc)
    }
}

/// The status of a failed message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SendStatus {
    /// The peer refused the key, the address range or the access (NAK remote access error).
    RemoteAccess,
    /// The peer refused the request, for example because its receive buffer is too short (NAK
    /// invalid request).
    RemoteInvalidRequest,
    /// The peer has no such shared receive queue in the XRC domain (NAK invalid RD request).
    RemoteInvalidRdRequest,
    /// The peer could not complete the request (NAK remote operational error).
    RemoteOperation,
    /// The peer did not acknowledge within `retry_cnt` retries.
    RetryExceeded,
    /// The peer had no receive request within `rnr_retry` retries.
    RnrRetryExceeded,
    /// Our own memory could not be read or written.
    LocalProtection,
    /// A response of the peer had the wrong length or position.
    BadResponse,
}

/// The status of a failed receive request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReceiveStatus {
    /// The message was longer than the receive buffer.
    LocalLength,
    /// The receive buffer could not be written.
    LocalProtection,
    /// The QP entered the error state before the message was complete.
    Flushed,
}

impl From<SendStatus> for Status {
    fn from(status: SendStatus) -> Self {
        match status {
            SendStatus::RemoteAccess => Self::RemoteAccess,
            SendStatus::RemoteInvalidRequest => Self::RemoteInvalidRequest,
            SendStatus::RemoteInvalidRdRequest => Self::RemoteInvalidRdRequest,
            SendStatus::RemoteOperation => Self::RemoteOperation,
            SendStatus::RetryExceeded => Self::RetryExceeded,
            SendStatus::RnrRetryExceeded => Self::RnrRetryExceeded,
            SendStatus::LocalProtection => Self::LocalProtection,
            SendStatus::BadResponse => Self::BadResponse,
        }
    }
}

impl From<ReceiveStatus> for Status {
    fn from(status: ReceiveStatus) -> Self {
        match status {
            ReceiveStatus::LocalLength => Self::LocalLength,
            ReceiveStatus::LocalProtection => Self::LocalProtection,
            ReceiveStatus::Flushed => Self::Flushed,
        }
    }
}

/// An event that the transport reports; events come in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Messages completed with success.
    SendsCompleted {
        /// The QP.
        qpn: Qpn,
        /// Every message up to and including this number is complete.
        through: u64,
    },
    /// A message failed; all earlier ones are complete, and the QP enters the error state; one of datagrams
    /// enters SQE, and all later ones are forgotten.
    SendFailed {
        /// The QP.
        qpn: Qpn,
        /// The message number.
        message: u64,
        /// Why.
        status: SendStatus,
    },
    /// A receive request completed with success.
    ReceiveCompleted {
        /// The QP.
        qpn: Qpn,
        /// Along XRC: the shared receive queue that the request was taken from.
        srqn: Option<u32>,
        /// The request, as [`ResponderMemory::take_receive`] named it.
        id: u64,
        /// Bytes of the message.
        length: u32,
        /// The kind of message.
        kind: ReceiveKind,
        /// The immediate data, if there is any (big-endian on the wire).
        imm: Option<u32>,
        /// The peer asked for a solicited event.
        solicited: bool,
        /// The queue pair that sent the datagram. `length` counts the [`GRH_LENGTH`] bytes before its payload, too.
        source_qpn: Option<u32>,
    },
    /// A receive request that was taken failed; the QP enters the error state, unless it is one of
    /// datagrams.
    ReceiveFailed {
        /// The QP.
        qpn: Qpn,
        /// Along XRC: the shared receive queue that the request was taken from.
        srqn: Option<u32>,
        /// The request, as [`ResponderMemory::take_receive`] named it.
        id: u64,
        /// Why.
        status: ReceiveStatus,
    },
    /// An event that belongs to no work request.
    Async {
        /// The QP.
        qpn: Qpn,
        /// The event.
        kind: QpEvent,
    },
    /// The QP is in the error state now; the caller flushes the requests that it holds for the QP.
    EnteredError {
        /// The QP.
        qpn: Qpn,
    },
}

impl Event {
    /// The shared receive queue that the event belongs to rather than to the QP, along XRC.
    #[must_use]
    pub const fn srqn(&self) -> Option<u32> {
        match *self {
            Self::ReceiveCompleted { srqn, .. } | Self::ReceiveFailed { srqn, .. } => srqn,
            _ => None,
        }
    }

    /// The QP that the event belongs to.
    #[must_use]
    pub const fn qpn(&self) -> Qpn {
        match *self {
            Self::SendsCompleted { qpn, .. }
            | Self::SendFailed { qpn, .. }
            | Self::ReceiveCompleted { qpn, .. }
            | Self::ReceiveFailed { qpn, .. }
            | Self::Async { qpn, .. }
            | Self::EnteredError { qpn } => qpn,
        }
    }
}

/// The object that did not allow a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessDenied {
    /// The key, range, access or protection domain.
    Memory,
    /// There is no such shared receive queue in the XRC domain.
    Srq,
}

impl From<reth::Repr> for RemoteRange {
    fn from(header: reth::Repr) -> Self {
        Self { rkey: header.rkey, va: header.va, length: header.dma_length.into() }
    }
}

/// The memory of the responder, which the layer above grants to incoming requests: by their R_Key, or as the next
/// receive request.
///
/// [`Poll::Pending`] means that a decision is still to come: the frame that needs it has had no effect. The caller
/// passes it to [`Stack::receive`](crate::Stack::receive) again, which asks the same question again.
pub trait ResponderMemory {
    /// Whether the peer of a QP may access memory. Asked once for a whole message. Of no bytes it is asked
    /// for [`RemoteAccess::Invalidate`] only, and along XRC: then whether there is the shared receive queue.
    fn check_remote(
        &mut self,
        target: Target,
        memory: RemoteRange,
        access: RemoteAccess,
    ) -> Poll<Result<(), AccessDenied>>;

    /// Takes the next receive request of a QP, or along XRC of the shared receive queue. The transport owes one
    /// `ReceiveCompleted` or `ReceiveFailed` for it, unless the QP is reset or destroyed first, which changes
    /// nothing along XRC, or enters the error state while the frame that needs it has to be given again.
    fn take_receive(&mut self, target: Target) -> Poll<Result<TakenReceive, ReceiveError>>;

    /// Whether to acknowledge the packet that is being received, whether or not it asks for that: the next one may be
    /// received much later.
    // RC-50
    fn acknowledges(&self) -> bool {
        false
    }
}
