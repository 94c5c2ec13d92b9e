//! A cable made of a Unix datagram socket: one datagram, one raw Ethernet frame, or many between two that know them
//! ([`bursts`]).
//!
//! QEMU speaks the first (`-netdev dgram` with unix paths), so a guest's network card plugs into a
//! software card's port. The socket is bound to one path and sends to another, unconnected: either
//! end may come, go and come again. A frame to a peer that is not there, or is another user's, is
//! dropped, as on a cable that is not plugged in. A frame that finds the peer's queue full (the
//! kernel's default is ten datagrams) stays with its sender.

mod bursts;

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

use super::{
    Arrival, BAD_LIMIT, Counters, FRAME_CAPACITY, Frame, FramePool, MIN_FRAME, Port, receive_burst,
};
use crate::socket::{Absent, Bound, Remote};
use bursts::{Bursts, Datagram};

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
    /// The sockets for many frames at a time; `None` where they cannot be had.
    bursts: Option<Bursts>,
    /// Frames that came with the last of those that were asked for.
    arrived: VecDeque<Frame>,
    /// Becomes readable when there are frames, or room after there was none.
    events: Epoll,
    waiting: WaitsFor,
    /// When to look again, if the descriptor will not tell.
    resume: Option<u64>,
    pool: FramePool,
    counters: Counters,
    /// Datagrams handed to the cable.
    messages: u64,
}

/// The way that frames take to the peer.
enum Way {
    /// Many at a time.
    Bursts(UnixAddr),
    /// One by one.
    Frames(UnixAddr),
    /// None: nobody is there.
    Nowhere,
}

impl Way {
    fn peer(&self) -> Option<&UnixAddr> {
        match self {
            Self::Bursts(peer) | Self::Frames(peer) => Some(peer),
            Self::Nowhere => None,
        }
    }
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
        let mut port = Self::open_to(local, Remote::new(remote)?, pool)?;
        match Bursts::open(local, remote) {
            Ok(bursts) => {
                port.events.add(&bursts, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
                port.bursts = Some(bursts);
            }
            Err(error) => {
                let path = port.socket.path().display();
                log::info!("port {path}: frames come and go one by one: {error}");
            }
        }
        Ok(port)
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
            bursts: None,
            arrived: VecDeque::new(),
            events,
            waiting: WaitsFor::No,
            resume: None,
            pool,
            counters: Counters::default(),
            messages: 0,
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

    /// The way to the peer, by its second socket if it may have one.
    fn way(&mut self, now: u64) -> Way {
        let bursts = self.bursts.as_mut().and_then(|bursts| bursts.peer(now));
        bursts.map_or_else(|| self.way_of_frames(), Way::Bursts)
    }

    fn way_of_frames(&mut self) -> Way {
        self.peer().map_or(Way::Nowhere, Way::Frames)
    }

    /// Offers the peer the front of a burst, a frame that is not too short: how many frames, and whether it took them.
    fn offer(&self, burst: &VecDeque<Frame>, way: &Way) -> (usize, nix::Result<usize>) {
        match (way, burst.front()) {
            (Way::Bursts(peer), _) => bursts::send(&self.socket, burst, peer),
            (Way::Frames(peer), Some(frame)) => (1, self.send_frame(frame, peer)),
            _ => (1, Err(Errno::ENOENT)),
        }
    }

    /// Takes frames that are gone off the front of a burst.
    fn drop_front(&self, burst: &mut VecDeque<Frame>, count: usize) {
        burst.drain(..count.min(burst.len())).for_each(|frame| self.pool.put(frame));
    }

    /// Takes frames that came many at a time, until there are `budget`; whether so many datagrams were passed over that
    /// the rest waits for another call.
    fn take_bursts(&mut self, into: &mut VecDeque<Frame>, budget: usize) -> bool {
        let Self { bursts, arrived, pool, counters, .. } = self;
        let Some(bursts) = bursts else { return false };
        let mut passed_over = 0;
        while arrived.len() < budget && passed_over < BAD_LIMIT {
            match bursts.receive(pool, arrived) {
                Datagram::Frames(count) => {
                    counters.received = counters.received.saturating_add(count as u64);
                    continue;
                }
                Datagram::Bad => counters.bad_length = counters.bad_length.saturating_add(1),
                Datagram::Interruption => {}
                Datagram::Nothing => break,
            }
            passed_over = passed_over.saturating_add(1);
        }
        into.extend(arrived.drain(..budget.min(arrived.len())));
        passed_over == BAD_LIMIT
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
        let mut way = self.way(now);
        while let Some(front) = burst.front() {
            if front.as_slice().len() < MIN_FRAME {
                self.counters.bad_length = self.counters.bad_length.saturating_add(1);
                self.drop_front(burst, 1);
                continue;
            }
            let (count, sent) = self.offer(burst, &way);
            if let Err(Errno::EAGAIN | Errno::ENOBUFS | Errno::ENOMEM | Errno::EINTR) = sent {
                self.counters.held = self.counters.held.saturating_add(1);
                self.stop_waiting();
                if let Some(peer) = way.peer() {
                    self.wait_for_room(now, peer);
                }
                return;
            }
            if let (Err(_), Way::Bursts(_), Some(bursts)) = (sent, &way, &mut self.bursts) {
                // The peer has no second socket, or the kernel no room for so long a datagram.
                bursts.miss(now);
                way = self.way_of_frames();
                continue;
            }
            let counter = match sent {
                Ok(_) => {
                    self.messages = self.messages.saturating_add(1);
                    &mut self.counters.sent
                }
                Err(Errno::EMSGSIZE) => &mut self.counters.bad_length,
                // No such path, no listener, another user, or a socket that is connected to another.
                Err(_) => &mut self.counters.no_peer,
            };
            *counter = counter.saturating_add(count as u64);
            self.drop_front(burst, count);
            if !matches!(self.waiting, WaitsFor::No) {
                self.stop_waiting();
            }
        }
    }

    fn receive(&mut self, now: u64, into: &mut VecDeque<Frame>, budget: usize) {
        let lengths = MIN_FRAME..=FRAME_CAPACITY;
        let before = into.len();
        // First: a peer that has found the second socket has sent these before.
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
        let taken = into.len().saturating_sub(before);
        let goes_on = self.take_bursts(into, budget.saturating_sub(taken));
        if received.goes_on || goes_on || !self.arrived.is_empty() {
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

    fn reset(&mut self) {
        self.pool.put_all(&mut self.arrived);
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = self.counters.list();
        counters.push(("port_messages_sent", self.messages));
        counters
    }
}

#[cfg(test)]
mod tests;
