//! Words about messages that an engine, its transport and the shell around them share. None of them is
//! written anywhere: they have no code.

/// A peer's operation on memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RemoteAccess {
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// An atomic operation.
    Atomic,
    /// To take the key back; no bytes.
    Invalidate,
}

/// A range of registered memory, as a peer names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteRange {
    /// The key.
    pub rkey: u32,
    /// The virtual address of its first byte.
    pub va: u64,
    /// Bytes.
    pub length: u64,
}

/// The operation that filled a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReceiveKind {
    /// A SEND; its bytes are in the receive's memory.
    Send,
    /// The same, and the key is to be taken back, which [`RemoteAccess::Invalidate`] has allowed.
    SendInvalidate {
        /// The key.
        rkey: u32,
    },
    /// An RDMA WRITE with immediate data; its bytes are where the WRITE said.
    Write,
}

/// A receive that was taken for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenReceive {
    /// Names it in [`Payload::Receive`], one more with each taken by the QP since RESET; along XRC in
    /// [`Payload::XrcReceive`]. No other that is under way has the name.
    pub id: u64,
    /// Bytes it can hold.
    pub capacity: u64,
    /// Receives posted behind it; `None` where other QPs may take them, so that nothing can be promised.
    pub left: Option<u32>,
}

/// Why there is no receive for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReceiveError {
    /// None is posted: the peer is told to try later (RNR NAK), or its datagram is dropped.
    Empty,
    /// The next one names memory that it must not, and the engine completes it with its own error. The peer
    /// gets a NAK "remote operational error" and the QP fails. A datagram is dropped.
    Invalid,
    /// The XRC domain has no such shared receive queue: the peer gets a NAK "invalid RD request", and the QP
    /// fails.
    NoSrq,
}

/// Names payload of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Local memory of the message with this number: fetched for SEND and WRITE, filled by READ.
    Message {
        /// As the transport numbers the messages of the QP, from 0 since RESET.
        number: u64,
    },
    /// The memory of a taken receive.
    Receive {
        /// From [`TakenReceive`].
        id: u64,
    },
    /// Memory a peer named; the key is looked up anew.
    Remote {
        /// Key.
        rkey: u32,
        /// First byte; the offset is already in it.
        address: u64,
        /// The peer's access.
        access: RemoteAccess,
    },
    /// The memory of a receive that a shared receive queue gave to an XRC target.
    XrcReceive {
        /// The queue.
        srqn: u32,
        /// From [`TakenReceive`].
        id: u64,
    },
    /// Memory that a peer named along XRC, as [`Payload::Remote`].
    XrcRemote {
        /// The shared receive queue that the request named.
        srqn: u32,
        /// Key.
        rkey: u32,
        /// First byte; the offset is already in it.
        address: u64,
        /// The peer's access.
        access: RemoteAccess,
    },
}

impl Payload {
    /// The memory of a receive; along XRC of one that a shared receive queue gave.
    #[must_use]
    #[inline]
    pub const fn receive(srqn: Option<u32>, id: u64) -> Self {
        match srqn {
            None => Self::Receive { id },
            Some(srqn) => Self::XrcReceive { srqn, id },
        }
    }

    /// Memory that a peer named; along XRC in a request that names a shared receive queue.
    #[must_use]
    #[inline]
    pub const fn remote(srqn: Option<u32>, rkey: u32, address: u64, access: RemoteAccess) -> Self {
        match srqn {
            None => Self::Remote { rkey, address, access },
            Some(srqn) => Self::XrcRemote { srqn, rkey, address, access },
        }
    }

    /// Along XRC: the shared receive queue that the request named, to which the memory belongs.
    #[must_use]
    #[inline]
    pub const fn srqn(self) -> Option<u32> {
        match self {
            Self::XrcReceive { srqn, .. } | Self::XrcRemote { srqn, .. } => Some(srqn),
            Self::Message { .. } | Self::Receive { .. } | Self::Remote { .. } => None,
        }
    }
}

/// A run of bytes in the address space of an engine: of the vFPGA that it stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First byte.
    pub iova: u64,
    /// Bytes.
    pub length: u32,
}

/// Payload is not, or no longer, within reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreachable;
