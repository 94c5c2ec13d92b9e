//! A terminal for the log: a writer never waits for long.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, IsTerminal as _, Write};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// A terminal that was opened once more. That it can be written to says of it only that it takes a byte: a line that it does
/// not take whole is cut, and the next one begins a line of its own.
#[derive(Debug)]
pub(crate) struct Terminal {
    file: File,
    limit: Duration,
    cut: Arc<AtomicBool>,
}

impl Terminal {
    /// The one behind a descriptor; each line has so much time. `None` where there is none, or it may not be opened.
    pub(crate) fn behind(descriptor: BorrowedFd<'_>, limit: Duration) -> Option<Self> {
        if !descriptor.is_terminal() {
            return None;
        }
        // Other processes share the flags of the descriptor itself, and do not expect refusals.
        let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
        let file = OpenOptions::new().write(true).custom_flags(flags.bits()).open(path).ok()?;
        Some(Self { file, limit, cut: Arc::default() })
    }

    /// The same file, and the flag whether the last line was cut.
    pub(crate) fn parts(&self) -> io::Result<(File, Arc<AtomicBool>)> {
        Ok((self.file.try_clone()?, Arc::clone(&self.cut)))
    }

    fn put(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let begun = Instant::now();
        while !bytes.is_empty() {
            match self.file.write(bytes) {
                Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let left = self.limit.saturating_sub(begun.elapsed());
                    if left.is_zero() || !has_room(self.file.as_fd(), left) {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Takes whole lines, or part of one and an error.
impl Write for Terminal {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.cut.load(Ordering::Relaxed) {
            self.put(b"\n")?;
        }
        let put = self.put(line);
        self.cut.store(put.is_err(), Ordering::Relaxed);
        put.map(|()| line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether a file takes something without waiting, within a time.
pub(crate) fn has_room(file: BorrowedFd<'_>, patience: Duration) -> bool {
    let patience = PollTimeout::try_from(patience).unwrap_or(PollTimeout::ZERO);
    // If there is no reader, writing reports it at once.
    !matches!(poll(&mut [PollFd::new(file, PollFlags::POLLOUT)], patience), Ok(0))
}
