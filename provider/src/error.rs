//! Errors, and the errno of each for a program.

use std::path::PathBuf;

use nix::errno::Errno;

/// Why a verbs call failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Nobody listens in the state directory.
    #[error("no balboad answers at {}: {errno}; start balboad, or set {} to where it runs",
        path.display(), shim_abi::STATE_DIR_VARIABLE)]
    NoDaemon {
        /// The socket.
        path: PathBuf,
        /// Why connecting failed.
        errno: Errno,
    },
    /// Somebody else listens there.
    #[error("the socket {} is served by user {uid}, not by you or root: refuse to talk to it",
        path.display())]
    ForeignDaemon {
        /// The socket.
        path: PathBuf,
        /// Whose it is.
        uid: u32,
    },
    /// The received bytes are no message of balboad's.
    #[error(transparent)]
    Decode(#[from] shim_abi::DecodeError),
    /// The answer is one to another question, or lacks a part that its documentation promises.
    #[error(
        "balboad's answer to {to} cannot be: {what}; install provider and balboad of one release"
    )]
    Answer {
        /// The request.
        to: &'static str,
        /// The fault.
        what: &'static str,
    },
    /// balboad closed the connection.
    #[error("balboad has closed the connection; its objects are gone, open the device anew")]
    Gone,
    /// balboad did not answer this call.
    #[error(
        "balboad has not answered {to} within {seconds} s (is it stopped?); this process gives it up: close the device, and open it anew ({} sets the seconds)",
        shim_abi::CONTROL_SECONDS_VARIABLE
    )]
    Silent {
        /// The request.
        to: &'static str,
        /// How long it was waited for.
        seconds: u32,
    },
    /// balboad did not answer an earlier call, and is still there.
    #[error("balboad was given up after a call that it did not answer; open the device anew")]
    GivenUp,
    /// The call was made in a forked child of the process that opened the device.
    #[error("a forked child cannot use its parent's RDMA objects; open the device in the child")]
    Forked,
    /// The host refused something this call needs.
    #[error("{what}: {source}")]
    Host {
        /// The operation that failed.
        what: &'static str,
        /// Why it was not.
        source: hostmem::Error,
    },
    /// balboad refused, with its reason.
    #[error("{reason}")]
    Refused {
        /// The errno it gave.
        errno: i32,
        /// One sentence.
        reason: String,
    },
    /// An argument is out of range or the object is not in a state for the call.
    #[error("{0}")]
    Invalid(String),
    /// The allocator of a parent domain has no memory.
    #[error("the parent domain's allocator gave no memory, or none that is aligned, for {0}")]
    NoMemory(&'static str),
    /// A memory window is not bound.
    #[error("the window is not bound, {why}: {errno}")]
    NotBound {
        /// Why, as far as it is known.
        why: &'static str,
        /// The errno that the call fails with.
        errno: Errno,
    },
    /// The object is still used by others.
    #[error("{0}")]
    Busy(String),
    /// The card, or this provider, does not offer it.
    #[error("{0}")]
    Unsupported(String),
    /// Memory of the program cannot be reached.
    #[error("the memory {address:#x}, {length} bytes, cannot be used for {access}: {errno}")]
    BadMemory {
        /// First byte.
        address: u64,
        /// Bytes.
        length: u64,
        /// The access that was requested.
        access: &'static str,
        /// The kernel's errno.
        errno: Errno,
    },
    /// libibverbs is not as the hook expects it.
    #[error("cannot answer for the kernel inside libibverbs: {0}")]
    Hook(&'static str),
}

/// Result of this crate's functions.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// The errno the verbs call fails with, never 0 and never negative.
    pub(crate) fn errno(&self) -> i32 {
        match self {
            Self::NoDaemon { errno, .. } | Self::NotBound { errno, .. } => *errno as i32,
            Self::ForeignDaemon { .. } | Self::Forked => libc::EPERM,
            Self::Decode(_) | Self::Answer { .. } => libc::EPROTO,
            Self::Gone | Self::GivenUp => libc::EIO,
            Self::Silent { .. } => libc::ETIMEDOUT,
            Self::Host { source, .. } => source.errno().map_or(libc::EIO, |errno| errno as i32),
            Self::Refused { errno, .. } if *errno > 0 => *errno,
            Self::Refused { .. } => libc::EIO,
            Self::Invalid(_) => libc::EINVAL,
            Self::NoMemory(_) => libc::ENOMEM,
            Self::Busy(_) => libc::EBUSY,
            Self::Unsupported(_) => libc::EOPNOTSUPP,
            Self::BadMemory { .. } => libc::EFAULT,
            Self::Hook(_) => libc::ENOSYS,
        }
    }

    /// Makes the error of a failed call to the host.
    pub(crate) fn host(what: &'static str) -> impl FnOnce(hostmem::Error) -> Self {
        move |source| Self::Host { what, source }
    }
}

/// Refuses an argument, with a formatted reason.
macro_rules! invalid {
    ($($reason:tt)*) => { $crate::error::Error::Invalid(format!($($reason)*)) };
}

/// Refuses an operation that is not offered, with a formatted reason.
macro_rules! unsupported {
    ($($reason:tt)*) => { $crate::error::Error::Unsupported(format!($($reason)*)) };
}

pub(crate) use {invalid, unsupported};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_refusal_of_balboad_can_look_like_success() {
        for errno in [0, -22] {
            let refused = Error::Refused { errno, reason: String::new() };
            assert_eq!(refused.errno(), libc::EIO);
        }
        let refused = Error::Refused { errno: libc::ENOMEM, reason: String::new() };
        assert_eq!(refused.errno(), libc::ENOMEM);
    }
}
