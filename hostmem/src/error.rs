//! The errors of this crate.

pub use nix::errno::Errno;

/// An error of memory, of a descriptor or of another process.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("{call} failed: {errno}")]
    Os {
        /// The system call.
        call: &'static str,
        /// Its error number.
        errno: Errno,
    },
    /// An access or a view would leave its mapping.
    #[error(
        "{object} of {bytes} bytes at offset {offset} leaves the mapping of {mapping_bytes} bytes"
    )]
    OutOfRange {
        /// The object of the access.
        object: &'static str,
        /// Its offset in the mapping, in bytes.
        offset: usize,
        /// Its size in bytes.
        bytes: usize,
        /// Size of the mapping in bytes.
        mapping_bytes: usize,
    },
    /// An offset is not a multiple of its object's alignment.
    #[error("{object} at offset {offset} is not aligned to {alignment} bytes")]
    Misaligned {
        /// The object of the access.
        object: &'static str,
        /// Its offset in bytes.
        offset: u64,
        /// The alignment it needs, in bytes.
        alignment: usize,
    },
    /// This machine lacks the requested feature.
    #[error("this machine has no {0}")]
    Unsupported(&'static str),
    /// A store was asked of a mapping made for reading.
    #[error("{object} needs a mapping that can be written, and this one is read-only")]
    ReadOnly {
        /// The object of the store.
        object: &'static str,
    },
    /// A length or count is none that the object can have.
    #[error("{object} cannot have {value} {unit}: {rule}")]
    BadSize {
        /// The object.
        object: &'static str,
        /// The value asked for.
        value: u64,
        /// Unit of the value.
        unit: &'static str,
        /// The rule that forbids it.
        rule: &'static str,
    },
    /// A memory file could be shrunk under its mapping, which would end in SIGBUS.
    #[error("memory file is not sealed against shrinking (seals {seals:#x}): refuse to map it")]
    Unsealed {
        /// Seals found, as `F_GET_SEALS` returns them; 0 when the file cannot be sealed at all.
        seals: i32,
    },
    /// A memory file is smaller than the range to be mapped.
    #[error(
        "memory file of {file_bytes} bytes is too small to map {bytes} bytes at offset {offset}"
    )]
    FileTooSmall {
        /// Size of the file in bytes.
        file_bytes: u64,
        /// Offset of the range in bytes.
        offset: u64,
        /// Size of the range in bytes.
        bytes: usize,
    },
    /// A received descriptor is not of the kind that was asked for.
    #[error("a descriptor is not {wanted}")]
    BadKind {
        /// The request.
        wanted: &'static str,
    },
    /// A message, or the descriptors with it, did not fit; everything received was thrown away.
    #[error("message was cut: {what} did not fit into the {capacity} {unit} there was room for")]
    Truncated {
        /// The part that did not fit.
        what: &'static str,
        /// Room there was.
        capacity: usize,
        /// Unit of the room.
        unit: &'static str,
    },
    /// Another process's memory could not be accessed in full.
    #[error("memory of process {pid}: {moved} of {total} bytes moved, then {errno}")]
    ProcessMemory {
        /// The process.
        pid: i32,
        /// Bytes moved before the failure, counted from the start of the list.
        moved: usize,
        /// Bytes asked for.
        total: usize,
        /// Why the next byte could not be moved: EFAULT for memory that is not there, ESRCH for a
        /// process that is gone, EPERM for one that may not be accessed.
        errno: Errno,
    },
}

impl Error {
    /// The system's error number, where the failure is a system call's.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Os { errno, .. } | Self::ProcessMemory { errno, .. } => Some(*errno),
            _ => None,
        }
    }

    /// Whether a non-blocking call failed because it would have had to wait.
    pub fn would_block(&self) -> bool {
        self.errno() == Some(Errno::EAGAIN)
    }

    /// Makes the error of a failed system call that another crate made.
    pub(crate) fn io(call: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |error| Self::Os { call, errno: Errno::try_from(error).unwrap_or(Errno::EIO) }
    }

    /// Makes the error of a failed system call.
    pub(crate) fn os(call: &'static str) -> impl FnOnce(Errno) -> Self {
        move |errno| Self::Os { call, errno }
    }
}

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;
