//! Errors of a card.

use fpga_regs::engine::admin::{AdminStatus, Opcode};
use nix::errno::Errno;

/// Why an engine is dead whose registers read all ones.
pub(crate) const GONE: &str = "its registers read all ones: the card is gone";

/// Why a card does not come up, or does not execute a command.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A card does not come up.
    #[error("card {card}: {why}")]
    BringUp {
        /// Card number.
        card: u32,
        /// The finding, and the mend.
        why: String,
    },
    /// An image does not get into a card, or is not there.
    #[error("balboa{card}: {why}")]
    Load {
        /// Card number.
        card: u32,
        /// The step that was reached, and the finding.
        why: String,
    },
    /// The card back-end failed.
    #[error("card back-end: {0}")]
    Backend(String),
    /// The back-end needs more than the machine lets this process have; no other card and no reset mends that.
    #[error("card back-end: {0}")]
    Limit(String),
    /// The port cannot be recorded.
    #[error("{0}")]
    NoRecord(String),
    /// Another capture of the port runs.
    #[error("its port is being captured already; one capture of a card runs at a time")]
    Recorded,
    /// The card can have no services.
    #[error(
        "packets of a card behind VFIO do not pass balboad, so no service sees them; attach the service at a peer that is a software card"
    )]
    NoServices,
    /// Services are not attached, or not detached.
    #[error("{0}")]
    Services(services::Error),
    /// The port has no queues for priorities.
    #[error("{0}")]
    NoQueues(String),
    /// A port cannot have such settings of its priorities.
    #[error("{0}")]
    Qos(String),
    /// A system call failed.
    #[error("{call}: {errno}")]
    Os {
        /// The system call.
        call: &'static str,
        /// Its error number.
        errno: Errno,
    },
    /// Shared memory or descriptors could not be handled.
    #[error(transparent)]
    Memory(#[from] hostmem::Error),
    /// No range of IOVAs is free.
    #[error("balboa{card}: no range of {length} bytes is left in the card's address space")]
    NoAddressSpace {
        /// Card number.
        card: u32,
        /// Bytes asked for.
        length: u64,
    },
    /// The engine stopped, or does not answer.
    #[error("{engine}: {why}")]
    Dead {
        /// The engine.
        engine: String,
        /// Why.
        why: String,
    },
    /// The card has not confirmed in its time that nothing of an object is on its way: the object stays, and may be ended
    /// later.
    #[error("{engine}: {why}; try again later")]
    Unconfirmed {
        /// The engine.
        engine: String,
        /// Why.
        why: String,
    },
    /// The engine refused a command.
    #[error("{engine}: {opcode:?} was refused: {}{detail}", status_text(*.status))]
    Refused {
        /// The engine.
        engine: String,
        /// The command.
        opcode: Opcode,
        /// Its status.
        status: AdminStatus,
        /// The words that its caller can add; empty, or begins with `; `.
        detail: String,
    },
}

impl Error {
    /// A system call that failed, for `map_err`.
    pub(crate) fn os(call: &'static str) -> impl FnOnce(Errno) -> Self {
        move |errno| Self::Os { call, errno }
    }
}

fn status_text(status: AdminStatus) -> String {
    let text = match status {
        AdminStatus::Success => "no reason given",
        AdminStatus::Unsupported => "the engine does not offer this",
        AdminStatus::Invalid => "a value is out of range",
        AdminStatus::NotFound => "there is no such object",
        AdminStatus::Busy => "others still use the object",
        AdminStatus::NoResources => "the engine's table is full",
        AdminStatus::BadAddress => "an address is not memory that the card can reach",
        AdminStatus::BadState => "the state the object is in does not allow it",
        unknown => return format!("status {} is unknown to this balboad", unknown.0),
    };
    text.to_owned()
}
