//! The layer below the engine: a carrier of whole messages.

use fpga_regs::engine::admin::{AdminStatus, CreateAh, CreateQp, PortAttributes};
use fpga_regs::engine::cqe::Status;
use fpga_regs::engine::event::QpEvent;
pub use fpga_regs::engine::message::{
    ReceiveError, ReceiveKind, RemoteAccess, RemoteRange, TakenReceive,
};
use fpga_regs::engine::qp::{Attributes, QpType};
use fpga_regs::engine::wqe::{AtomicOperation, Datagram};

/// The operation of a message as its work-queue entry says it, with all operands.
///
/// It is another thing than the `Operation` of the RoCE transport, by which that finds the opcode of each packet: that
/// has no datagrams, for they are no messages of a connection, and its immediate data is a number, not opaque.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WqeOperation {
    /// SEND, with immediate data if any.
    Send {
        /// Immediate data, opaque.
        immediate: Option<u32>,
    },
    /// A datagram, with immediate data if any.
    Datagram {
        /// The destination.
        datagram: Datagram,
        /// Immediate data, opaque.
        immediate: Option<u32>,
    },
    /// SEND that takes a key of the peer's back.
    SendInvalidate {
        /// The key.
        rkey: u32,
    },
    /// RDMA WRITE, with immediate data if any.
    Write {
        /// First byte of remote memory.
        remote_address: u64,
        /// Its key.
        rkey: u32,
        /// Immediate data, opaque.
        immediate: Option<u32>,
    },
    /// RDMA READ.
    Read {
        /// First byte of remote memory.
        remote_address: u64,
        /// Its key.
        rkey: u32,
    },
    /// An atomic on 8 bytes; the value before goes to local memory.
    Atomic {
        /// First byte of remote memory.
        remote_address: u64,
        /// Its key.
        rkey: u32,
        /// The operation.
        operation: AtomicOperation,
    },
}

impl WqeOperation {
    /// Whether a peer that answers nothing can execute it.
    pub(crate) fn is_unanswered(&self) -> bool {
        matches!(self, Self::Send { .. } | Self::Write { .. })
    }
}

/// A message to carry. Its local memory was within reach when it was submitted; where that is, which may
/// change, [`crate::Engine::resolve`] says when its bytes move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The operation.
    pub operation: WqeOperation,
    /// Bytes.
    pub length: u32,
    /// The responder's completion is solicited.
    pub solicited: bool,
    /// Begin only when all earlier READs and atomics are complete.
    pub fence: bool,
    /// Along XRC: the peer's shared receive queue that it is for.
    pub srqn: Option<u32>,
}

/// Why a transport refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportError {
    /// No room now, see [`Transport::room`].
    Full,
    /// The hardware below cannot do this operation.
    Unsupported,
    /// A datagram is longer than a packet.
    TooLong,
    /// The QP is in no state to send: it failed, and the event that says so is under way.
    WrongState,
}

/// An entry of the GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalGid {
    /// The GID, network order.
    pub gid: [u8; 16],
    /// Number of the VLAN that it is in; 0 for none.
    pub vlan: u16,
}

/// A carrier of QPs' messages; completions come back in the order of submission.
pub trait Transport {
    /// The number of a QP of a kind that is to be made, where the hardware below names its QPs; `None` where any number will do.
    ///
    /// # Errors
    /// The status for the driver where it has no QP left.
    fn name_qp(&mut self, kind: QpType) -> Option<Result<u32, AdminStatus>> {
        let _ = kind;
        None
    }

    /// Makes a QP in RESET, of the command's kind. By its client's number a transport may tell whose it is.
    ///
    /// # Errors
    /// The status for the driver, such as [`AdminStatus::NoResources`].
    fn create_qp(&mut self, qpn: u32, command: &CreateQp) -> Result<(), AdminStatus>;

    /// Applies attributes that the engine has checked; `state` is the state to go to.
    ///
    /// RESET forgets messages under way: no event about them follows, and numbers begin anew.
    ///
    /// # Errors
    /// The status for the driver.
    fn modify_qp(&mut self, now: u64, qpn: u32, attributes: &Attributes)
    -> Result<(), AdminStatus>;

    /// Fails a connection of which a completion was lost: it stops acknowledging executed requests, refuses them as
    /// a remote operational error, and reports by [`TransportEvent::Async`] and [`TransportEvent::Error`] like any
    /// error of its own; nothing follows where the QP has failed before. `false` where it leaves all of that to the
    /// engine.
    fn refuse(&mut self, _now: u64, _qpn: u32) -> bool {
        false
    }

    /// Whether the transport may still reach memory for a QP that was brought to ERR. Then [`TransportEvent::Error`]
    /// says when it has stopped, unless the QP goes to RESET or ends before.
    fn lingers(&self, _qpn: u32) -> bool {
        false
    }

    /// The QP's attributes; `None` for an unknown QP.
    fn query_qp(&self, qpn: u32) -> Option<Attributes>;

    /// Forgets a QP; no message, no event and no DMA of it follows.
    fn destroy_qp(&mut self, qpn: u32);

    /// Makes an address handle of which the engine has checked the indices and ranges.
    ///
    /// # Errors
    /// The status for the driver.
    fn create_ah(&mut self, now: u64, ah: u32, command: &CreateAh) -> Result<(), AdminStatus> {
        let _ = (now, ah, command);
        Err(AdminStatus::Unsupported)
    }

    /// Forgets an address handle, with which no datagram is under way unless its QP goes, too.
    fn destroy_ah(&mut self, ah: u32) {
        let _ = ah;
    }

    /// Whether the MAC address that an address handle's datagrams go to is known.
    ///
    /// # Errors
    /// The status for the driver; [`AdminStatus::Unsupported`] where the transport cannot say.
    fn query_ah(&self, ah: u32) -> Result<bool, AdminStatus> {
        let _ = ah;
        Err(AdminStatus::Unsupported)
    }

    /// Takes a QP of Unreliable Datagram into a multicast group, or, where `member` is false, out of it.
    ///
    /// # Errors
    /// The status for the driver.
    fn set_member(
        &mut self,
        now: u64,
        qpn: u32,
        group: [u8; 16],
        member: bool,
    ) -> Result<(), AdminStatus> {
        let _ = (now, qpn, group, member);
        Err(AdminStatus::Unsupported)
    }

    /// Messages the QP takes at this moment.
    ///
    /// QPs may share their room. Room that comes back is told by an event of any QP, or comes with
    /// the engine's own call that makes it (a QP destroyed, or reset).
    fn room(&self, qpn: u32) -> usize;

    /// Whether the QP stands in line to send: it has something to say, and waits for nothing but its turn.
    fn stands_in_line(&self, _qpn: u32) -> bool {
        false
    }

    /// Gives back memory that the QP's messages of before took, as far as those under way do not need
    /// it: memory is scarce.
    fn narrow(&mut self, _qpn: u32) {}

    /// Takes a message and answers with its number: from 0, one more with each message since RESET.
    ///
    /// # Errors
    /// [`TransportError`]; nothing was taken.
    fn submit(&mut self, now: u64, qpn: u32, message: &Message) -> Result<u64, TransportError>;

    /// The counters of [`fpga_regs::engine::admin::COUNTERS`], in that order.
    fn counters(&self) -> Vec<u64>;

    /// The port; `None` where the transport cannot say.
    fn port(&self) -> Option<PortAttributes> {
        None
    }

    /// Takes the port off its cable, or puts it back.
    ///
    /// # Errors
    /// The status for the driver; [`AdminStatus::Unsupported`] where the transport cannot.
    fn set_link(&mut self, up: bool) -> Result<(), AdminStatus> {
        let _ = up;
        Err(AdminStatus::Unsupported)
    }

    /// Takes note of an entry of the GID table; `None` empties it.
    ///
    /// # Errors
    /// The status for the driver; the entry stays as it was.
    fn set_gid(&mut self, index: u8, gid: Option<LocalGid>) -> Result<(), AdminStatus> {
        let _ = (index, gid);
        Ok(())
    }

    /// Takes note of the MAC address of a GID, in network order; `None` forgets it.
    ///
    /// # Errors
    /// The status for the driver; [`AdminStatus::Unsupported`] where the transport asks by itself.
    fn set_neighbour(&mut self, gid: [u8; 16], mac: Option<[u8; 6]>) -> Result<(), AdminStatus> {
        let _ = (gid, mac);
        Err(AdminStatus::Unsupported)
    }
}

/// An event of a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportEvent {
    /// The oldest `count` messages of the QP ended well.
    Completed {
        /// QP.
        qpn: u32,
        /// Messages.
        count: u64,
    },
    /// The oldest message of the QP failed and the QP is in ERR; one that is not answered is in SQE, and has
    /// none under way.
    Failed {
        /// QP.
        qpn: u32,
        /// How.
        status: Status,
    },
    /// The oldest taken receive of the QP was filled.
    Received(ReceivedMessage),
    /// The oldest taken receive of the QP failed and the QP is in ERR; one of datagrams goes on.
    ReceiveFailed {
        /// QP.
        qpn: u32,
        /// How.
        status: Status,
    },
    /// A receive that a shared receive queue gave to an XRC target was filled.
    XrcReceived {
        /// The queue.
        srqn: u32,
        /// The receive, from [`TakenReceive`].
        id: u64,
        /// The message; its QP is the target, which may be another engine's.
        received: ReceivedMessage,
    },
    /// A receive that a shared receive queue gave to an XRC target failed.
    XrcReceiveFailed {
        /// The queue.
        srqn: u32,
        /// The receive, from [`TakenReceive`].
        id: u64,
        /// The target, which may be another engine's.
        qpn: u32,
        /// How.
        status: Status,
    },
    /// The QP went to ERR without a failing request.
    Error {
        /// QP.
        qpn: u32,
    },
    /// Something the driver should hear of.
    Async {
        /// QP.
        qpn: u32,
        /// The event.
        event: QpEvent,
    },
}

impl TransportEvent {
    /// The QP the event belongs to.
    #[must_use]
    pub fn qpn(&self) -> u32 {
        match self {
            Self::Completed { qpn, .. }
            | Self::Failed { qpn, .. }
            | Self::ReceiveFailed { qpn, .. }
            | Self::XrcReceiveFailed { qpn, .. }
            | Self::Error { qpn }
            | Self::Async { qpn, .. } => *qpn,
            Self::Received(received) | Self::XrcReceived { received, .. } => received.qpn,
        }
    }
}

/// A message that arrived in a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedMessage {
    /// QP.
    pub qpn: u32,
    /// Bytes of the message.
    pub length: u32,
    /// The operation that filled it.
    pub kind: ReceiveKind,
    /// Immediate data, opaque.
    pub immediate: Option<u32>,
    /// The sender asked for an event.
    pub solicited: bool,
    /// The source QP of a datagram. Its GRH stands before it, and counts.
    pub source_qpn: Option<u32>,
}

/// The destination of a request along XRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XrcRequest {
    /// The target that received it, which may be another engine's.
    pub qpn: u32,
    /// The target's XRC domain.
    pub xrcdn: u32,
    /// The shared receive queue that it names; of this engine, if there is such a one.
    pub srqn: u32,
}
