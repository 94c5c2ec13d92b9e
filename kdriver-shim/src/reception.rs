//! The place where connections come in: a listening socket, which is left alone for a while where none can be accepted.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hostmem::fdpass;
use nix::errno::Errno;
use nix::sys::epoll::EpollFlags;

use crate::error::Error;
use crate::poller::{Poller, Token, Watch};
use crate::process::ClientId;

/// How long connections wait where one could not be accepted and no client ends.
const PAUSE: Duration = Duration::from_millis(100);

/// The listening socket.
pub struct Reception {
    poller: Arc<Poller>,
    /// A socket of SOCK_SEQPACKET, which std's type accepts.
    listener: UnixListener,
    watch: Watch,
    /// Since when no connection is accepted, because the kernel could give none.
    paused: Option<Instant>,
    last: u64,
}

impl Reception {
    /// Hears a listening socket.
    ///
    /// # Errors
    /// [`Error::Os`] when the epoll set does not take it, or its connections cannot be examined.
    pub fn new(poller: Arc<Poller>, listener: OwnedFd) -> Result<Self, Error> {
        // Where the kernel can: else each message is looked at before it is received.
        fdpass::refuse_descriptors(listener.as_fd())?;
        let listener = UnixListener::from(listener);
        let watch = poller.watch(&listener, Token::Listener, EpollFlags::EPOLLIN)?;
        Ok(Self { poller, listener, watch, paused: None, last: 0 })
    }

    /// The next connection, if there is one.
    pub fn accept(&mut self) -> Option<OwnedFd> {
        match self.listener.accept() {
            Ok((socket, _)) => Some(OwnedFd::from(socket)),
            Err(error) => {
                self.failed(&error);
                None
            }
        }
    }

    /// A connection could not be accepted.
    pub fn failed(&mut self, error: &std::io::Error) {
        match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EAGAIN | Errno::ECONNABORTED | Errno::EINTR) => {}
            // Most likely descriptors or memory ran out. A client's end helps, and so may another process's.
            _ => {
                log::error!("no connection can be accepted for now: {error}");
                self.pause();
            }
        }
    }

    /// A number for a client, which no other has had.
    pub fn number(&mut self) -> ClientId {
        self.last = self.last.wrapping_add(1);
        ClientId(self.last)
    }

    /// Leaves connections where they are for a while.
    pub fn pause(&mut self) {
        self.poller.change(self.listener.as_fd(), &self.watch, EpollFlags::empty());
        self.paused = Some(Instant::now());
    }

    /// Accepts connections again.
    pub fn resume(&mut self) {
        if self.paused.take().is_some() {
            let interest = EpollFlags::EPOLLIN;
            self.poller.change(self.listener.as_fd(), &self.watch, interest);
        }
    }

    /// The same, if they have waited for long enough.
    pub fn resume_in_time(&mut self) {
        if self.paused.is_some_and(|since| since.elapsed() >= PAUSE) {
            self.resume();
        }
    }

    /// The time without work.
    #[must_use]
    pub fn patience(&self) -> Option<Duration> {
        self.paused.map(|_| PAUSE)
    }
}
