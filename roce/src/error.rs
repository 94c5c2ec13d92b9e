//! Why a control operation was refused.

use fpga_regs::engine::admin::AdminStatus;
use fpga_regs::engine::qp::QpState;
use fpga_regs::engine::transition::Refused;

use crate::types::{Gid, Qpn};

/// Why creating or modifying a queue pair, or creating an address handle, was refused; nothing is changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The number is in use.
    #[error("QP {0} exists already; choose another number")]
    QpExists(Qpn),
    /// The port is full.
    #[error("the port holds {0} QPs, its limit; destroy some first")]
    TooManyQps(usize),
    /// The number is in use.
    #[error("address handle {0:#x} exists already; choose another number")]
    AhExists(u32),
    /// The port is full.
    #[error("the port holds {0} address handles, its limit; destroy some first")]
    TooManyAhs(usize),
    /// There is no such queue pair.
    #[error("QP {0} does not exist; create it first")]
    UnknownQp(Qpn),
    /// There is no such transition, or not with these attributes.
    #[error("QP {qpn}: {refused}")]
    BadTransition {
        /// The QP.
        qpn: Qpn,
        /// The attribute or transition that is refused.
        refused: Refused,
    },
    /// An attribute is out of range.
    #[error("QP {qpn}: {attribute} is {value}; at most {limit}")]
    BadValue {
        /// The QP.
        qpn: Qpn,
        /// The attribute.
        attribute: &'static str,
        /// The value given.
        value: u64,
        /// The largest value.
        limit: u64,
    },
    /// The rate is out of range.
    #[error("QP {qpn}: {refused}")]
    BadRate {
        /// The QP.
        qpn: Qpn,
        /// The value.
        refused: OutOfRange,
    },
    /// A path's rate is no code of `ibv_rate`.
    #[error("static_rate {0} is no code of a rate; 0 is the port's")]
    NoRate(u8),
    /// The own and the peer's GID are of different kinds.
    #[error(
        "dgid {dgid} does not fit sgid_index {sgid_index}; \
         give the index of an address of the same kind, of IPv4 or IPv6"
    )]
    GidMismatch {
        /// The peer's GID.
        dgid: Gid,
        /// The own GID's index.
        sgid_index: u8,
    },
    /// There can be no members of it.
    #[error("{0} is no multicast group; use an address of 224.0.0.0/4, mapped, or of ff00::/8")]
    NoGroup(Gid),
    /// The port is full.
    #[error("the port is in {0} multicast groups, its limit; leave some first")]
    TooManyGroups(usize),
    /// The group is full.
    #[error("{limit} QPs of the port are in group {group}, the limit; take one out first")]
    TooManyMembers {
        /// The group.
        group: Gid,
        /// How many there can be.
        limit: usize,
    },
    /// The queue pair is of another transport service than Unreliable Datagram.
    #[error("QP {0} is none of datagrams, and cannot be in a multicast group")]
    NoDatagramQp(Qpn),
    /// The queue pair is not in the group.
    #[error("QP {qpn} is not in group {group}")]
    NoMember {
        /// The QP.
        qpn: Qpn,
        /// The group.
        group: Gid,
    },
    /// What leaves must be sealed, and it cannot be for that peer, or for a group.
    #[error(
        "dgid {dgid} is of no host with which a key is shared, and the card sends nothing in the clear; \
         name it in the file of --psp-peers"
    )]
    Unprotected {
        /// The peer's GID, or the group's.
        dgid: Gid,
    },
    /// Services stand on the way of such a connection, and the queue pair has others.
    #[error(
        "QP {0} has services that its program asked for, and connections like this one have others; make it without"
    )]
    Served(Qpn),
    /// The peer's Ethernet address cannot be known.
    #[error("dgid {dgid} is no peer's address; use a unicast address")]
    Unreachable {
        /// The peer's GID.
        dgid: Gid,
    },
}

/// The status that a card's driver gets.
impl From<Error> for AdminStatus {
    fn from(error: Error) -> Self {
        match error {
            Error::QpExists(_)
            | Error::TooManyQps(_)
            | Error::AhExists(_)
            | Error::TooManyAhs(_)
            | Error::TooManyGroups(_)
            | Error::TooManyMembers { .. } => Self::NoResources,
            Error::UnknownQp(_) | Error::NoMember { .. } => Self::NotFound,
            Error::Unprotected { .. } | Error::Served(_) => Self::Unsupported,
            Error::BadTransition { refused, .. } => refused.into(),
            Error::BadValue { .. }
            | Error::BadRate { .. }
            | Error::NoRate(_)
            | Error::GidMismatch { .. }
            | Error::NoGroup(_)
            | Error::NoDatagramQp(_)
            | Error::Unreachable { .. } => Self::Invalid,
        }
    }
}

/// A parameter has a value that it cannot have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} is {value}; it can be {least} to {most}")]
pub struct OutOfRange {
    /// The parameter.
    pub name: &'static str,
    /// The value given.
    pub value: u32,
    /// The smallest value.
    pub least: u32,
    /// The largest value.
    pub most: u32,
}

impl OutOfRange {
    /// Refuses a value that is not in its range.
    pub(crate) const fn check(
        name: &'static str,
        value: u32,
        least: u32,
        most: u32,
    ) -> Result<(), Self> {
        match value < least || value > most {
            true => Err(Self { name, value, least, most }),
            false => Ok(()),
        }
    }
}

/// Why a message was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// There is no such queue pair.
    #[error("QP {0} does not exist; create it first")]
    UnknownQp(Qpn),
    /// The queue pair does not take messages in this state.
    #[error("QP {qpn} is in state {state:?}; it takes messages in RTS and SQD")]
    State {
        /// The QP.
        qpn: Qpn,
        /// Its state.
        state: QpState,
    },
    /// The send ring is full; see [`Stack::send_room`](crate::Stack::send_room).
    #[error("QP {0} has no room for a message; wait for completions")]
    Full(Qpn),
    /// The message is longer than 2^31 bytes, or than the port's path MTU if it is a datagram.
    #[error(
        "a message of {0} bytes is too long; at most 2147483648, and the path MTU of a datagram"
    )]
    TooLong(u32),
    /// The transport service of the queue pair has no such operation.
    #[error("QP {0} is of a transport service that has no such operation")]
    NotOffered(Qpn),
    /// READs were disabled by `max_rd_atomic` 0.
    #[error("QP {0} may have no READ outstanding; raise max_rd_atomic")]
    ReadsDisabled(Qpn),
    /// An atomic operation on another number of bytes than [`LENGTH`](crate::AtomicOperation::LENGTH).
    #[error("atomic operations have 8 bytes, not {0}")]
    AtomicLength(u32),
}
