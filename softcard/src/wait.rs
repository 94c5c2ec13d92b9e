//! Sleeping until a descriptor or a time wakes the thread.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::prctl;
use nix::sys::time::TimeSpec;

use crate::Error;
use crate::port::Port;

/// Waits shorter than this, in nanoseconds, are waited exactly: the delays of cables, timers such
/// as RNR's, and looks at doorbells are tens of microseconds.
const FINE_NS: u64 = 4_000_000;

/// How late, in nanoseconds, the kernel may wake the thread so as to wake others with it.
const TIMER_SLACK_NS: u64 = 1;

/// A thread's clock, and the set that it sleeps on.
pub(crate) struct Waiter {
    epoll: Epoll,
    clock: Instant,
}

impl Waiter {
    pub(crate) fn new() -> Result<Self, Error> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(os("epoll_create1"))?;
        Ok(Self { epoll, clock: Instant::now() })
    }

    /// Nanoseconds since the waiter was made.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.clock.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Lets the calling thread's timers be exact.
    pub(crate) fn sharpen_timers() {
        if let Err(errno) = prctl::set_timerslack(TIMER_SLACK_NS) {
            log::debug!("the card thread's timers stay coarse: {errno}");
        }
    }

    /// Wakes on these flags of a descriptor; a counter is not drained.
    pub(crate) fn listen(&self, fd: impl AsFd, flags: EpollFlags) -> Result<(), Error> {
        self.epoll.add(fd, EpollEvent::new(flags, 0)).map_err(os("epoll_ctl"))
    }

    /// Wakes once for each time that new bytes are to be read from a descriptor.
    pub(crate) fn listen_for_edges(&self, fd: impl AsFd) -> Result<(), Error> {
        self.listen(fd, EpollFlags::EPOLLIN | EpollFlags::EPOLLET)
    }

    /// Wakes on the events that a port wants of its descriptor.
    pub(crate) fn listen_to_port(&self, port: &dyn Port) -> Result<(), Error> {
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLET;
        port.fd().map_or(Ok(()), |fd| self.listen(fd, flags))
    }

    /// Changes the events that wake on a descriptor that is listened to.
    pub(crate) fn change(&self, fd: impl AsFd, flags: EpollFlags) -> Result<(), Error> {
        self.epoll.modify(fd, &mut EpollEvent::new(flags, 0)).map_err(os("epoll_ctl"))
    }

    /// Wakes on a descriptor no more.
    pub(crate) fn forget(&self, fd: impl AsFd) {
        // It was added before; a set that has lost it has forgotten it.
        let _ = self.epoll.delete(fd);
    }

    /// Sleeps until a descriptor wakes the thread, or until that time.
    pub(crate) fn sleep(&self, until: Option<u64>) {
        let timeout = match until.map(|until| until.saturating_sub(self.now())) {
            None => EpollTimeout::NONE,
            Some(wait @ 1..FINE_NS) => {
                self.sleep_fine(wait);
                EpollTimeout::ZERO
            }
            // Rounded up: a timer may be late, never early.
            Some(wait) => {
                EpollTimeout::try_from(wait.div_ceil(1_000_000)).unwrap_or(EpollTimeout::MAX)
            }
        };
        let mut events = [EpollEvent::empty(); 16];
        match self.epoll.wait(&mut events, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => log::error!("the card thread cannot wait: {errno}"),
        }
    }

    /// Sleeps as `epoll_wait` would, but not in whole milliseconds.
    fn sleep_fine(&self, nanoseconds: u64) {
        let timeout = TimeSpec::from_duration(Duration::from_nanos(nanoseconds));
        let mut fds = [PollFd::new(self.epoll.0.as_fd(), PollFlags::POLLIN)];
        match ppoll(&mut fds, Some(timeout), None) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => log::error!("the card thread cannot wait: {errno}"),
        }
    }
}

/// Names the system call that failed.
pub(crate) fn os(call: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::Host(hostmem::Error::Os { call, errno })
}
