//! Event counters: a descriptor that becomes readable when it is signalled.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use nix::errno::Errno;

use crate::fdpass::duplicate;
use crate::{Error, Result};

/// An event counter of the kernel (`eventfd`), non-blocking and closed on exec.
///
/// Any number of signals between two drains count as one wake-up.
#[derive(Debug)]
pub struct EventFd {
    fd: OwnedFd,
}

impl EventFd {
    /// Makes a counter that has not been signalled.
    pub fn new() -> Result<Self> {
        // SAFETY: eventfd takes two integers and touches no memory of ours.
        let raw = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        let raw = Errno::result(raw).map_err(Error::os("eventfd"))?;
        // SAFETY: the kernel has just made this descriptor for us, and nobody else owns it.
        Ok(Self { fd: unsafe { std::os::fd::FromRawFd::from_raw_fd(raw) } })
    }

    /// Takes a counter that was received from another process.
    ///
    /// Its blocking mode is the maker's (the mode belongs to the open file, which is shared): take
    /// counters only from a peer that is trusted not to make [`Self::signal`] wait.
    pub fn from_received(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Adds one to the counter, so that the descriptor becomes readable.
    ///
    /// A counter that is full already is readable already; this is no error.
    pub fn signal(&self) -> Result<()> {
        loop {
            match nix::unistd::write(&self.fd, &1u64.to_ne_bytes()) {
                Ok(_) | Err(Errno::EAGAIN) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(Error::Os { call: "write of an eventfd", errno }),
            }
        }
    }

    /// Takes the count and sets it to zero; 0 if it was not signalled.
    pub fn drain(&self) -> Result<u64> {
        let mut count = [0u8; 8];
        loop {
            match nix::unistd::read(&self.fd, &mut count) {
                Ok(_) => return Ok(u64::from_ne_bytes(count)),
                Err(Errno::EAGAIN) => return Ok(0),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(Error::Os { call: "read of an eventfd", errno }),
            }
        }
    }

    /// A second descriptor of the same counter.
    pub fn try_clone(&self) -> Result<Self> {
        let fd = duplicate(self.fd.as_fd()).map_err(Error::os("dup of an eventfd"))?;
        Ok(Self { fd })
    }

    /// Gives the descriptor up, to be handed to another process.
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_add_up_until_drained() {
        let event = EventFd::new().unwrap();
        assert_eq!(event.drain().unwrap(), 0);
        event.signal().unwrap();
        event.try_clone().unwrap().signal().unwrap();
        assert_eq!(event.drain().unwrap(), 2);
        assert_eq!(event.drain().unwrap(), 0);
    }

    #[test]
    fn a_full_counter_takes_a_signal_without_waiting() {
        let event = EventFd::new().unwrap();
        nix::unistd::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        event.signal().unwrap();
        assert_eq!(event.drain().unwrap(), u64::MAX - 1);
    }
}
