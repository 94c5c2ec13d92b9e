//! Reasons for which the kernel cannot show a card.

use nix::errno::Errno;

/// Why the kernel does not show the cards.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A missing condition, and the mend.
    #[error("--shadow: {0}")]
    Shadow(String),
    /// A system call failed.
    #[error("{call}: {errno}")]
    Os {
        /// The call that failed.
        call: &'static str,
        /// Its error number.
        errno: Errno,
    },
}

impl Error {
    /// A system call that failed, for `map_err`.
    pub(crate) fn os(call: &'static str) -> impl FnOnce(Errno) -> Self {
        move |errno| Self::Os { call, errno }
    }
}
