//! Sockets that carry records to a client: completion channels and asynchronous events.
//!
//! balboad never waits for a client: a record that the socket does not take is kept and sent when
//! there is room. A record is kept with the key of its object, so that it can be forgotten when the
//! object ends: libibverbs dereferences the cookie it reads.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use hostmem::fdpass;
use nix::errno::Errno;
use nix::sys::epoll::EpollFlags;
use nix::sys::socket::{MsgFlags, Shutdown, send, shutdown};

use crate::error::Error;
use crate::poller::{Poller, Token, Watch};

/// Records kept for one socket; more are dropped, which only a client that never reads can cause.
const MAX_PENDING: usize = 65536;

/// The object that a record speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// A completion queue, by number.
    Cq(u32),
    /// A QP, by number.
    Qp(u32),
    /// The port, or the device.
    Device,
}

/// balboad's end of a socket pair that carries records of `N` bytes.
#[derive(Debug)]
pub struct RecordSocket<const N: usize> {
    // None once the client has closed its end.
    socket: Option<(OwnedFd, Watch)>,
    pending: VecDeque<(Key, [u8; N])>,
    // The epoll set tells when there is room.
    full: bool,
}

/// What became of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It is in the socket, or will be.
    Yes,
    /// The client has closed its end, or never reads: it is dropped.
    No,
}

impl<const N: usize> RecordSocket<N> {
    /// Makes a socket pair; returned are balboad's end and the client's.
    ///
    /// # Errors
    /// [`Error::Memory`] or [`Error::Os`] when descriptors run out.
    pub fn new(poller: &Poller, token: Token) -> Result<(Self, OwnedFd), Error> {
        let (ours, theirs) = fdpass::pair()?;
        // The client has nothing to say here: descriptors above all, which would be balboad's to close.
        shutdown(ours.as_raw_fd(), Shutdown::Read).map_err(Error::os("shutdown of a channel"))?;
        let watch = poller.watch(&ours, token, EpollFlags::empty())?;
        Ok((Self { socket: Some((ours, watch)), pending: VecDeque::new(), full: false }, theirs))
    }

    /// Sends a record of the object with key `key`, or keeps it until there is room.
    pub fn send(&mut self, poller: &Poller, key: Key, record: [u8; N]) -> Sent {
        if self.socket.is_none() || self.pending.len() >= MAX_PENDING {
            return Sent::No;
        }
        self.pending.push_back((key, record));
        if self.pending.len() == 1 {
            self.flush(poller);
        }
        if self.socket.is_some() { Sent::Yes } else { Sent::No }
    }

    /// Sends what was kept, as far as there is room.
    pub fn flush(&mut self, poller: &Poller) {
        let Some((socket, watch)) = &self.socket else { return };
        while let Some((_, record)) = self.pending.front() {
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            match send(socket.as_raw_fd(), record, flags) {
                Ok(_) => {
                    self.pending.pop_front();
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => {
                    if !std::mem::replace(&mut self.full, true) {
                        poller.change(socket.as_fd(), watch, EpollFlags::EPOLLOUT);
                    }
                    return;
                }
                Err(_) => return self.close(poller),
            }
        }
        if std::mem::take(&mut self.full) {
            poller.change(socket.as_fd(), watch, EpollFlags::empty());
        }
    }

    /// Drops the records of an object that are still kept, and returns how many there were.
    pub fn forget(&mut self, key: Key) -> u32 {
        let before = self.pending.len();
        self.pending.retain(|(k, _)| *k != key);
        u32::try_from(before.saturating_sub(self.pending.len())).unwrap_or(u32::MAX)
    }

    /// Whether a record of the object is still kept.
    #[must_use]
    pub fn keeps(&self, key: Key) -> bool {
        self.pending.iter().any(|(k, _)| *k == key)
    }

    /// Closes balboad's end; later records are dropped.
    pub fn close(&mut self, poller: &Poller) {
        if let Some((socket, watch)) = self.socket.take() {
            poller.unwatch(&socket, watch);
        }
        self.pending.clear();
    }

    /// Whether the socket can still carry records.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.socket.is_some()
    }
}

/// The record of a completion channel: a cookie.
#[must_use]
pub fn completion_record(cookie: u64) -> [u8; 8] {
    cookie.to_le_bytes()
}

/// The record of an asynchronous event: cookie (or port), `ibv_event_type`, zero.
#[must_use]
pub fn async_record(element: u64, event_type: u32) -> [u8; 16] {
    let [a, b, c, d, e, f, g, h] = element.to_le_bytes();
    let [i, j, k, l] = event_type.to_le_bytes();
    [a, b, c, d, e, f, g, h, i, j, k, l, 0, 0, 0, 0]
}

#[cfg(test)]
mod tests {
    use hostmem::fdpass::{Wait, receive};

    use super::*;

    fn socket() -> (Poller, RecordSocket<8>, OwnedFd) {
        let poller = Poller::new().unwrap();
        let (socket, theirs) = RecordSocket::new(&poller, Token::Listener).unwrap();
        (poller, socket, theirs)
    }

    fn read(fd: &OwnedFd) -> Option<u64> {
        let mut buffer = [0; 8];
        receive(fd.as_fd(), &mut buffer, Wait::Never).ok().map(|_| u64::from_le_bytes(buffer))
    }

    #[test]
    fn a_full_socket_keeps_records_in_order_and_forgets_those_of_a_dead_object() {
        let (poller, mut socket, theirs) = socket();
        let mut sent = 0u64;
        while !socket.keeps(Key::Cq(1)) {
            assert_eq!(socket.send(&poller, Key::Cq(1), completion_record(sent)), Sent::Yes);
            sent += 1;
        }
        socket.send(&poller, Key::Qp(1), completion_record(1_000_000));
        socket.send(&poller, Key::Cq(1), completion_record(sent));
        assert_eq!(socket.forget(Key::Cq(1)), 2);
        for expected in 0..sent - 1 {
            assert_eq!(read(&theirs), Some(expected));
        }
        assert_eq!(read(&theirs), None);
        let ready = poller.wait(Some(0)).unwrap();
        assert!(ready.iter().any(|(_, flags)| flags.contains(EpollFlags::EPOLLOUT)));
        socket.flush(&poller);
        assert_eq!(read(&theirs), Some(1_000_000));
        assert_eq!(read(&theirs), None);
    }

    #[test]
    fn a_client_can_say_nothing_on_a_channel_and_its_end_is_seen_all_the_same() {
        let (poller, _socket, theirs) = socket();
        let said = fdpass::send(theirs.as_fd(), b"x", &[theirs.as_fd()], Wait::Never);
        assert_eq!(said.unwrap_err().errno(), Some(Errno::EPIPE));
        assert!(poller.wait(Some(0)).unwrap().is_empty());
        drop(theirs);
        let ready = poller.wait(Some(0)).unwrap();
        assert!(ready.iter().any(|(_, flags)| flags.contains(EpollFlags::EPOLLHUP)));
    }

    #[test]
    fn a_closed_channel_takes_no_record() {
        let (poller, mut socket, theirs) = socket();
        drop(theirs);
        assert_eq!(socket.send(&poller, Key::Cq(1), completion_record(1)), Sent::No);
        assert!(!socket.is_open());
        assert_eq!(socket.send(&poller, Key::Cq(1), completion_record(1)), Sent::No);
    }

    #[test]
    fn an_asynchronous_record_is_cookie_type_and_zero() {
        let record = async_record(0x0102_0304_0506_0708, 3);
        assert_eq!(record, [8, 7, 6, 5, 4, 3, 2, 1, 3, 0, 0, 0, 0, 0, 0, 0]);
    }
}
