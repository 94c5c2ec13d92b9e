//! Errors, and the one table of their errnos.

use std::path::PathBuf;

use card_driver::Error as DriverError;
use fpga_regs::engine::admin::AdminStatus;
use nix::errno::Errno;
use shim_abi::Refusal;

/// The name of the rings' memory where a quota is told of.
pub const RINGS: &str = "bytes of rings";
/// The name of a card's addresses where a quota is told of.
pub const ADDRESSES: &str = "bytes of the card's addresses";

/// Why balboad does not start, or refuses a request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The state directory cannot be used.
    #[error("state directory {}: {why}", dir.display())]
    StateDir {
        /// The directory.
        dir: PathBuf,
        /// The reason, and the mend.
        why: String,
    },
    /// Another balboad serves the state directory.
    #[error(
        "another balboad ({holder}) serves {}; stop it, or give this one a --state-dir of its own",
        dir.display()
    )]
    Running {
        /// The directory.
        dir: PathBuf,
        /// The process that the lock file names.
        holder: String,
    },
    /// A card does not come up, or does not follow an order.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The kernel does not show the cards.
    #[error(transparent)]
    Shadow(#[from] host_view::Error),
    /// A system call of balboad's own failed.
    #[error("{call}: {errno}")]
    Os {
        /// The system call.
        call: &'static str,
        /// Its error number.
        errno: Errno,
    },
    /// Shared memory, descriptors or another process's memory could not be handled.
    #[error(transparent)]
    Memory(#[from] hostmem::Error),

    /// The client would have more than it may.
    #[error(
        "this process has {used} {resource}{} and asks for {asked} more; a process may have {limit}",
        .card.map(|card| format!(" on balboa{card}")).unwrap_or_default()
    )]
    Quota {
        /// The card of which it is, if it is of one.
        card: Option<u32>,
        /// Plural name of the limited resource.
        resource: &'static str,
        /// The number that the client has.
        used: u64,
        /// The number that it asks for on top.
        asked: u64,
        /// The number that it may have.
        limit: u64,
    },
    /// Every place of a card belongs to a process: its doorbell pages, and where balboad relays those for
    /// which there is none.
    #[error(
        "balboa{card}: all {places} places are taken, so {places} processes use the card; wait until one ends, or use another card"
    )]
    NoPlaces {
        /// Card number.
        card: u32,
        /// Places in all.
        places: usize,
    },
    /// A GID table has no room for one more address.
    #[error(
        "balboa{card}: its GID table has {entries} entries, and those for {kind} addresses, {first} to {}, are taken; make room with `balboa addr balboa{card} del ADDRESS`",
        .entries.saturating_sub(1)
    )]
    Full {
        /// Card number.
        card: u32,
        /// Entries in all.
        entries: usize,
        /// The kind that is asked for.
        kind: &'static str,
        /// The first entry that may have it.
        first: u8,
    },
    /// There are too many connections.
    #[error("{who} may have {connections} connections to balboad, and no more; close some")]
    Crowded {
        /// The owner of the connections.
        who: &'static str,
        /// How many are allowed.
        connections: usize,
    },
    /// A process asks for the status too often at a time.
    #[error(
        "a process may wait for the status on {connections} connections to balboad at a time, and no more"
    )]
    Asking {
        /// How many are allowed.
        connections: usize,
    },
    /// The kernel does not answer a question about other programs.
    #[error(
        "{programs} programs that came before hang in exec, and the kernel waits for them; end those first"
    )]
    Unanswered {
        /// How many they are.
        programs: usize,
    },
    /// A descriptor that the service manager handed over is not of the right kind.
    #[error("the service manager handed over {why}")]
    Handed {
        /// The descriptor, and the kind that it should be.
        why: String,
    },
    /// The endpoint for metrics cannot be made.
    #[error("metrics cannot be shown at {at}: {why}")]
    Metrics {
        /// Where.
        at: String,
        /// Why not.
        why: String,
    },
    /// The client names an object it does not have.
    #[error("this process has no {object} {number:#x}")]
    NoSuch {
        /// Kind of object.
        object: &'static str,
        /// Its alleged number.
        number: u64,
    },
    /// The object is in use.
    #[error("{object} {number:#x} is in use by {users}; destroy those first")]
    Busy {
        /// Kind of object.
        object: &'static str,
        /// Its number.
        number: u32,
        /// The users.
        users: String,
    },
    /// Other clients have the wanted object.
    #[error("{0}")]
    Occupied(String),
    /// No XRC domain stands for a file, and none is to be made.
    #[error("no XRC domain stands for this file; with O_CREAT one is made")]
    NoDomain,
    /// A value is out of its range.
    #[error("{0}")]
    Invalid(String),
    /// The card or balboad does not offer this.
    #[error("{0}")]
    Unsupported(String),
    /// The client may not do this.
    #[error("{0}")]
    Forbidden(String),
    /// The connection manager does not follow an order.
    #[error("{why}")]
    Connection {
        /// The error number that the kernel has for it.
        errno: Errno,
        /// Why.
        why: String,
    },
    /// Another process's QP is connected to the same far end.
    #[error(
        "QP {peer:#x} of {gid} is connected to QP {qpn:#x} of {owner}; a second process cannot speak for it"
    )]
    Claimed {
        /// GID of the far end.
        gid: String,
        /// Number of the QP there.
        peer: u32,
        /// The process that has the connection.
        owner: String,
        /// Its QP.
        qpn: u32,
    },
}

impl Error {
    /// A system call that failed, for `map_err`.
    pub(crate) fn os(call: &'static str) -> impl FnOnce(Errno) -> Self {
        move |errno| Self::Os { call, errno }
    }

    /// The error number that the verbs call returns: the only place where one is chosen.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::Full { .. } => Errno::ENOSPC,
            Self::Quota { .. } | Self::Driver(DriverError::NoAddressSpace { .. }) => Errno::ENOMEM,
            Self::NoPlaces { .. }
            | Self::Crowded { .. }
            | Self::Asking { .. }
            | Self::Unanswered { .. }
            | Self::NoDomain => Errno::EAGAIN,
            Self::NoSuch { .. } | Self::Invalid(_) => Errno::EINVAL,
            Self::Busy { .. }
            | Self::Occupied(_)
            | Self::Running { .. }
            | Self::Driver(DriverError::Recorded) => Errno::EBUSY,
            Self::Claimed { .. } => Errno::EADDRINUSE,
            Self::Unsupported(_)
            | Self::Driver(
                DriverError::NoRecord(_)
                | DriverError::NoServices
                | DriverError::NoQueues(_)
                | DriverError::Services(services::Error::NoPlace),
            ) => Errno::EOPNOTSUPP,
            Self::Driver(DriverError::Services(
                services::Error::Busy { .. }
                | services::Error::Taken(_)
                | services::Error::Asked(_)
                | services::Error::Leaving(_)
                | services::Error::Followed(_)
                | services::Error::InUse { .. }
                | services::Error::Loaded(_),
            )) => Errno::EBUSY,
            Self::Driver(DriverError::Services(_) | DriverError::Qos(_)) => Errno::EINVAL,
            Self::Forbidden(_) => Errno::EPERM,
            Self::Driver(
                DriverError::Dead { .. }
                | DriverError::Unconfirmed { .. }
                | DriverError::Backend(_)
                | DriverError::Limit(_)
                | DriverError::BringUp { .. }
                | DriverError::Load { .. },
            )
            | Self::Shadow(host_view::Error::Shadow(_)) => Errno::EIO,
            Self::StateDir { .. } | Self::Handed { .. } | Self::Metrics { .. } => Errno::EACCES,
            Self::Os { errno, .. }
            | Self::Connection { errno, .. }
            | Self::Driver(DriverError::Os { errno, .. })
            | Self::Shadow(host_view::Error::Os { errno, .. }) => *errno,
            Self::Memory(error) | Self::Driver(DriverError::Memory(error)) => {
                error.errno().unwrap_or(Errno::EIO)
            }
            Self::Driver(DriverError::Refused { status, .. }) => match *status {
                AdminStatus::Unsupported => Errno::EOPNOTSUPP,
                AdminStatus::Invalid | AdminStatus::NotFound | AdminStatus::BadState => {
                    Errno::EINVAL
                }
                AdminStatus::Busy => Errno::EBUSY,
                AdminStatus::NoResources => Errno::ENOMEM,
                AdminStatus::BadAddress => Errno::EFAULT,
                _ => Errno::EIO,
            },
        }
    }

    /// Whether a resource that clients share has run out, so that another client's end may help.
    #[must_use]
    pub fn is_shortage(&self) -> bool {
        match self {
            Self::NoPlaces { .. }
            | Self::Claimed { .. }
            | Self::Driver(DriverError::NoAddressSpace { .. }) => true,
            Self::Quota { resource, .. } => *resource == ADDRESSES,
            Self::Driver(DriverError::Refused { status, .. }) => {
                *status == AdminStatus::NoResources
            }
            _ => false,
        }
    }

    /// Whether the client's ring memory is too small.
    #[must_use]
    pub fn is_shortage_of_rings(&self) -> bool {
        matches!(self, Self::Quota { resource: RINGS, .. })
    }
}

impl From<&Error> for Refusal {
    fn from(error: &Error) -> Self {
        Self { errno: error.errno() as i32, reason: error.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use fpga_regs::engine::admin::Opcode;

    use super::*;

    #[test]
    fn every_admin_status_has_an_errno_and_a_sentence() {
        let (engine, opcode) = ("balboa0 window 1", Opcode::CreateQp);
        let refused = |status| {
            let (engine, detail) = (engine.into(), String::new());
            Error::from(DriverError::Refused { engine, opcode, status, detail })
        };
        let wanted = [
            (AdminStatus::Unsupported, Errno::EOPNOTSUPP),
            (AdminStatus::Invalid, Errno::EINVAL),
            (AdminStatus::NotFound, Errno::EINVAL),
            (AdminStatus::Busy, Errno::EBUSY),
            (AdminStatus::NoResources, Errno::ENOMEM),
            (AdminStatus::BadAddress, Errno::EFAULT),
            (AdminStatus::BadState, Errno::EINVAL),
            (AdminStatus(200), Errno::EIO),
        ];
        for (status, errno) in wanted {
            assert_eq!(refused(status).errno(), errno);
        }
        assert_eq!(
            refused(AdminStatus::NoResources).to_string(),
            "balboa0 window 1: CreateQp was refused: the engine's table is full"
        );
        assert!(refused(AdminStatus(200)).to_string().contains("status 200 is unknown"));
    }

    #[test]
    fn a_refusal_carries_errno_and_sentence() {
        let refusal = Refusal::from(&Error::NoPlaces { card: 0, places: 60 });
        assert_eq!(refusal.errno, Errno::EAGAIN as i32);
        assert!(refusal.reason.contains("60 processes"));
    }
}
