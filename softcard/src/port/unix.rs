//! A cable made of a Unix datagram socket: one datagram, one raw Ethernet frame.
//!
//! QEMU speaks the same (`-netdev dgram` with unix paths), so a guest's network card plugs into a
//! software card's port. The socket is bound to one path and sends to another, unconnected: either
//! end may come, go and come again. A frame to a peer that is not there, or is another user's, is
//! dropped, as on a cable that is not plugged in. A frame that finds the peer's queue full (the
//! kernel's default is ten datagrams) stays with its sender.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use hostmem::fdpass;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, sendto, setsockopt,
    socket, sockopt,
};

use super::{Arrival, Counters, FRAME_CAPACITY, Frame, FramePool, MIN_FRAME, Port, receive_burst};
use crate::socket::{Absent, Bound, Remote};

/// Frames that a sender may offer in one burst while the peer takes them.
const ROOM: usize = 64;

/// Bytes asked for as send buffer; the kernel grants up to `net.core.wmem_max`.
const SEND_BUFFER: usize = 1 << 20;

/// How long to wait, in nanoseconds, where the kernel will not tell when to try again.
const RETRY_NS: u64 = 1_000_000;

/// A port that carries raw Ethernet frames over a Unix datagram socket.
pub struct UnixPort {
    socket: Bound,
    remote: Remote,
    /// Whether the socket at the remote path is not sent to, for the reason in the log.
    refused: bool,
    /// Becomes readable when there are frames, or room after there was none.
    events: Epoll,
    waiting: WaitsFor,
    /// When to look again, if the descriptor will not tell.
    resume: Option<u64>,
    pool: FramePool,
    counters: Counters,
}

/// The event that the port waits for before it sends again.
enum WaitsFor {
    /// Nothing: the last frame was taken.
    No,
    /// Its own send buffer.
    Buffer,
    /// The peer's queue. Only a connected socket is told when a queue has room, so this one is
    /// connected to the peer and never sends.
    Queue { _probe: OwnedFd },
    /// A time.
    Timer,
}

impl UnixPort {
    /// Binds `local` and sends to `remote`, which need not exist yet.
    ///
    /// A socket file at `local` without a listener is replaced.
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrInUse`] when a process listens at `local`, or the file there is not a
    /// socket; [`io::ErrorKind::InvalidInput`] when a path is longer than a socket address holds;
    /// [`io::ErrorKind::PermissionDenied`] when the file at `remote` is another user's.
    pub fn open(local: &Path, remote: &Path, pool: FramePool) -> io::Result<Self> {
        Self::open_to(local, Remote::new(remote)?, pool)
    }

    fn open_to(local: &Path, mut remote: Remote, pool: FramePool) -> io::Result<Self> {
        if let Err(why @ (Absent::Foreign { .. } | Absent::NoSocket(_))) = remote.address() {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        let socket = Bound::new(local, SockType::Datagram)?;
        // Descriptors that come with a frame would be closed by the card thread, which may wait for
        // that; where the kernel cannot refuse them (before 6.16) it closes them all the same.
        fdpass::refuse_descriptors(socket.as_fd()).map_err(io::Error::other)?;
        setsockopt(&socket, sockopt::SndBuf, &SEND_BUFFER)?;
        let events = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        events.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        Ok(Self {
            socket,
            remote,
            refused: false,
            events,
            waiting: WaitsFor::No,
            resume: None,
            pool,
            counters: Counters::default(),
        })
    }

    /// Arranges to be told when the frame that was just refused can be tried again.
    fn wait_for_room(&mut self, now: u64, remote: &UnixAddr) {
        self.waiting = match self.listen_for_room(remote) {
            Ok(waiting) => waiting,
            Err(_) => {
                self.resume = Some(now.saturating_add(RETRY_NS));
                WaitsFor::Timer
            }
        };
    }

    fn listen_for_room(&self, remote: &UnixAddr) -> nix::Result<WaitsFor> {
        let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLOUT)];
        if poll(&mut fds, PollTimeout::ZERO)? == 0 {
            let mut event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT, 0);
            self.events.modify(&self.socket, &mut event)?;
            return Ok(WaitsFor::Buffer);
        }
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let probe = socket(AddressFamily::Unix, SockType::Datagram, flags, None)?;
        connect(probe.as_raw_fd(), remote)?;
        // Ready at once if the queue has been emptied meanwhile.
        self.events.add(&probe, EpollEvent::new(EpollFlags::EPOLLOUT, 0))?;
        Ok(WaitsFor::Queue { _probe: probe })
    }

    fn stop_waiting(&mut self) {
        // A probe leaves the set by being closed.
        if let WaitsFor::Buffer = std::mem::replace(&mut self.waiting, WaitsFor::No) {
            let mut event = EpollEvent::new(EpollFlags::EPOLLIN, 0);
            if let Err(errno) = self.events.modify(&self.socket, &mut event) {
                log::error!("port {}: epoll_ctl: {errno}", self.socket.path().display());
            }
        }
        self.resume = None;
    }

    fn send_frame(&self, frame: &Frame, remote: &UnixAddr) -> nix::Result<usize> {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        sendto(self.socket.as_fd().as_raw_fd(), frame.as_slice(), remote, flags)
    }

    /// The address of the peer's socket, if one is there.
    fn peer(&mut self) -> Option<UnixAddr> {
        let refusal = match self.remote.address() {
            Ok(address) => {
                self.refused = false;
                return Some(address);
            }
            Err(Absent::Missing(_)) => return None,
            Err(refusal) => refusal,
        };
        if !std::mem::replace(&mut self.refused, true) {
            log::warn!("port {}: {refusal}", self.socket.path().display());
        }
        None
    }
}

impl Port for UnixPort {
    fn send(&mut self, now: u64, burst: &mut VecDeque<Frame>) {
        if burst.is_empty() {
            return;
        }
        let peer = self.peer();
        while let Some(frame) = burst.pop_front() {
            let sent = match (frame.as_slice().len(), &peer) {
                (..MIN_FRAME, _) => Err(Errno::EMSGSIZE),
                (_, Some(peer)) => self.send_frame(&frame, peer),
                (_, None) => Err(Errno::ENOENT),
            };
            if let Err(Errno::EAGAIN | Errno::ENOBUFS | Errno::ENOMEM | Errno::EINTR) = sent {
                burst.push_front(frame);
                self.counters.held = self.counters.held.saturating_add(1);
                self.stop_waiting();
                if let Some(peer) = &peer {
                    self.wait_for_room(now, peer);
                }
                return;
            }
            let counter = match sent {
                Ok(_) => &mut self.counters.sent,
                Err(Errno::EMSGSIZE) => &mut self.counters.bad_length,
                // No such path, no listener, another user, or a socket that is connected to another.
                Err(_) => &mut self.counters.no_peer,
            };
            *counter = counter.saturating_add(1);
            self.pool.put(frame);
            if !matches!(self.waiting, WaitsFor::No) {
                self.stop_waiting();
            }
        }
    }

    fn receive(&mut self, now: u64, into: &mut VecDeque<Frame>, budget: usize) {
        let lengths = MIN_FRAME..=FRAME_CAPACITY;
        let received = receive_burst(&self.pool, into, budget, lengths, |buffer| {
            // With MSG_TRUNC the returned length is that of the datagram, not of the copied part.
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC;
            match recv(self.socket.as_fd().as_raw_fd(), buffer, flags) {
                Ok(length) => Arrival::Frame(length),
                Err(Errno::EINTR) => Arrival::Interruption,
                // EAGAIN, or an error that the peer's end left on the socket.
                Err(_) => Arrival::Nothing,
            }
        });
        self.counters.count(&received);
        if received.goes_on {
            self.resume = Some(now);
        } else if !matches!(self.waiting, WaitsFor::Timer) {
            self.resume = None;
        }
    }

    fn room(&self) -> usize {
        match self.waiting {
            WaitsFor::No => ROOM,
            // One frame is enough to find out.
            _ => 1,
        }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.events.0.as_fd())
    }

    fn next_timeout(&self) -> Option<u64> {
        self.resume
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.counters.list()
    }
}

#[cfg(test)]
mod tests;
