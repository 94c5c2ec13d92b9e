//! The card's questions to the logic in a vFPGA, and the answers.

pub use fpga_regs::engine::message::{Payload, Piece, Unreachable};
use roce::{AccessDenied, Qpn, ReceiveError, RemoteAccess, RemoteRange, TakenReceive, Target};

/// Bits of a QPN below the number of its vFPGA.
pub(super) const QPN_BITS: u32 = 20;

/// The vFPGA that a QP belongs to.
#[inline]
pub(crate) fn vfpga_of(qpn: Qpn) -> usize {
    (qpn.value() >> QPN_BITS) as usize
}

/// The vFPGA of a shared receive queue that a request along XRC names, whose number has it where a QP's has.
#[inline]
pub(crate) fn vfpga_of_srq(srqn: u32) -> usize {
    (srqn >> QPN_BITS) as usize
}

/// The vFPGA whose logic is asked: the queue's where a request names one, else the QP's.
#[inline]
pub(crate) fn vfpga_asked(qpn: Qpn, srqn: Option<u32>) -> usize {
    srqn.map_or_else(|| vfpga_of(qpn), vfpga_of_srq)
}

/// Names a request of the shell's until it is answered; never used again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tag(pub(crate) u64);

/// Bytes of a payload that are about to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The QP.
    pub qpn: Qpn,
    /// The owner of the bytes: of its own message, of a receive, or of memory that its peer named, from this packet's
    /// first byte on.
    pub payload: Payload,
    /// The offset from the first byte of the message.
    pub offset: u64,
    /// Bytes; at least 1.
    pub length: u32,
}

impl Wanted {
    /// The vFPGA whose memory it is.
    #[inline]
    pub(crate) fn vfpga(&self) -> usize {
        vfpga_asked(self.qpn, self.payload.srqn())
    }
}

/// A peer's wish to access memory, for a whole message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The QP, and along XRC the shared receive queue.
    pub target: Target,
    /// The key that it names, and where in its memory: of at least one byte, but to take a key back, and along XRC.
    pub memory: RemoteRange,
    /// The kind of access.
    pub access: RemoteAccess,
}

/// A transfer of host memory that logic makes by itself, by addresses of its vFPGA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostTransfer {
    /// Whether the driver maps memory to be read, or written, and it is there. The answer has the bytes that are to be read, if
    /// they are a process's, which may take them away before they are; else it has none.
    Reach {
        /// To be written, else read.
        writes: bool,
        /// The first byte.
        address: u64,
        /// Bytes.
        length: u32,
    },
    /// Reads memory.
    Read {
        /// The first byte.
        address: u64,
        /// Bytes, at most 4,096.
        length: u32,
    },
    /// Writes memory. Of a block at a multiple of its 64 bytes the last word comes behind the others.
    Write {
        /// The first byte.
        address: u64,
        /// At most 4,096.
        bytes: Vec<u8>,
    },
}

/// Why a transfer that logic makes by itself does not reach its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missed {
    /// The driver refused its page fault.
    Refused,
    /// The driver maps it, but its process has taken it away, or nothing is there.
    Gone,
}

/// A later answer of logic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The answer to [`check_remote`](super::Logic::check_remote).
    Access(Result<(), AccessDenied>),
    /// The answer to [`take_receive`](super::Logic::take_receive).
    Receive(Result<TakenReceive, ReceiveError>),
    /// The answer to [`place`](super::Logic::place).
    Placed(Result<(), Unreachable>),
    /// The answer to [`fetch`](super::Logic::fetch): the wanted bytes.
    Fetched(Result<Vec<u8>, Unreachable>),
}

/// The outcome of payload that was offered to logic, or asked of it.
pub(crate) enum Passed {
    Now(Result<(), Unreachable>),
    /// It answers later, by the tag; without one it was not ready, and is to be asked again.
    Later(Option<Tag>),
}
