//! The log of refusals: the log of libibverbs.

use std::path::Path;
use std::sync::OnceLock;

use crate::abi::RELEASE;
use crate::abi::verbs::{IBV_SEND_FENCE, IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED};
use crate::error::{Error, invalid, unsupported};
use crate::ffi::log::verbs_log;

/// How serious a message is; the numbers are those of `VERBS_LOG_LEVEL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// The device cannot be used.
    Error = 1,
    /// A call was refused.
    Warning = 2,
}

/// The level that `VERBS_LOG_LEVEL` sets; 0 without it.
fn wanted() -> u32 {
    static WANTED: OnceLock<u32> = OnceLock::new();
    *WANTED.get_or_init(|| {
        let value = std::env::var("VERBS_LOG_LEVEL").unwrap_or_default();
        value.trim().parse().unwrap_or(0)
    })
}

/// Logs a message at a level: to libibverbs where it has a log file, else on standard error.
///
/// A release build of libibverbs is silent without `VERBS_LOG_FILE`, at any level.
fn say(level: Level, message: &str) -> bool {
    if std::env::var_os("VERBS_LOG_FILE").is_some() {
        verbs_log(level as u32, &format!("balboa: {message}\n"));
        return wanted() >= level as u32;
    }
    if wanted() >= level as u32 {
        to_stderr(message);
        return true;
    }
    false
}

fn to_stderr(message: &str) {
    use std::io::Write;
    // A program may have closed its standard error; that is no reason to fail.
    let _ = writeln!(std::io::stderr(), "balboa: {message}");
}

/// Tells why a call was refused, and returns the errno it fails with.
pub(crate) fn refused(call: &str, error: &Error) -> i32 {
    say(Level::Warning, &format!("{call}: {error}"));
    error.errno()
}

/// Tells why a send work request that verbs know fails with an errno, by its `ibv_wr_opcode` and `ibv_send_flags`,
/// where that is because the card does not offer it.
#[cold]
pub(crate) fn not_posted(call: &str, (opcode, flags): (u32, u32), errno: i32) {
    const OFFERED: u32 = IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE;
    let error = if errno == libc::EOPNOTSUPP {
        unsupported!(
            "queue pairs of its type have no requests of opcode {opcode} on this card; one with a published bitstream may need the tunnel for them"
        )
    } else if errno == libc::EINVAL && flags & !OFFERED != 0 {
        invalid!("this card does not offer the flags {:#x} of requests", flags & !OFFERED)
    } else {
        return;
    };
    refused(call, &error);
}

/// Logs, at any log level, why a device cannot be opened; returns the errno.
///
/// A program that finds a device and cannot open it seldom says more than that.
pub(crate) fn unusable(device: &str, error: &Error) -> i32 {
    let message = format!("cannot open {device}: {error}");
    if !say(Level::Error, &message) {
        to_stderr(&message);
    }
    error.errno()
}

/// Logs, at any log level, that this provider is for another release of libibverbs.
pub(crate) fn wrong_release(library: &Path, release: u32) {
    let library = library.display();
    let message = format!(
        "this provider is for rdma-core {RELEASE}, and {library} is of rdma-core {release}, \
         which needs another (balboa run chooses it)"
    );
    if !say(Level::Error, &message) {
        to_stderr(&message);
    }
}
