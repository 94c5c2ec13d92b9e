//! Sockets that carry records to a client: completion channels and asynchronous events.
//!
//! balboad never waits for a client: a record that the socket does not take is kept and sent when
//! there is room. Of equal records one is kept: a program that has not read an event of an object
//! need not read the same event again. So there are never more than the client's objects
//! have kinds of events. A record is kept with the key of its object, so that it can be forgotten when
//! the object ends: libibverbs dereferences the cookie it reads.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex};

use card_driver::lock::lock;
use hostmem::fdpass::{self, Writer};
use nix::errno::Errno;
use nix::sys::epoll::EpollFlags;
use nix::sys::socket::{MsgFlags, send};

use crate::error::Error;
use crate::poller::{Poller, Token, Watch};

/// The object that a record speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// A completion queue, by number.
    Cq(u32),
    /// A shared receive queue, by number.
    Srq(u32),
    /// A QP, by number.
    Qp(u32),
    /// A handle of an XRC target, by number.
    Target(u32),
    /// The port, or the device.
    Device,
}

/// balboad's end of a socket pair that carries records of `N` bytes; any thread may use it.
#[derive(Debug)]
pub struct RecordSocket<const N: usize> {
    poller: Arc<Poller>,
    state: Mutex<State<N>>,
}

#[derive(Debug)]
struct State<const N: usize> {
    // None before it is made, and once balboad's end is closed.
    socket: Option<(Writer, Watch)>,
    /// Records that wait for room, in their order; while there are any, the epoll set tells of room.
    kept: BTreeMap<u64, (Key, [u8; N])>,
    /// Where each of them is.
    places: BTreeMap<(Key, [u8; N]), u64>,
    /// The place of the next.
    next: u64,
}

/// The fate of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It is in the socket, or will be.
    Yes,
    /// It is one with an equal record that was kept, and takes its place behind all others.
    Merged,
    /// The client has closed its end: it is dropped.
    No,
}

/// Whether a record was written to the socket.
enum Written {
    Yes,
    Full,
    Gone,
}

impl<const N: usize> RecordSocket<N> {
    /// A socket of records that is not open yet ([`Self::open`]).
    #[must_use]
    pub fn new(poller: &Arc<Poller>) -> Self {
        let (kept, places) = (BTreeMap::new(), BTreeMap::new());
        let state = Mutex::new(State { socket: None, kept, places, next: 0 });
        Self { poller: Arc::clone(poller), state }
    }

    /// Makes the socket pair and returns the client's end of it.
    ///
    /// # Errors
    /// [`Error::Memory`] or [`Error::Os`] when descriptors run out.
    pub fn open(&self, token: Token) -> Result<OwnedFd, Error> {
        let (ours, theirs) = fdpass::one_way()?;
        let watch = self.poller.watch(&ours, token, EpollFlags::empty())?;
        lock(&self.state).socket = Some((ours, watch));
        Ok(theirs)
    }

    /// Sends a record of the object with key `key`, or keeps it until there is room.
    pub fn send(&self, key: Key, record: [u8; N]) -> Sent {
        let mut state = lock(&self.state);
        if state.kept.is_empty() {
            match state.offer(&record) {
                Written::Yes => return Sent::Yes,
                Written::Full => state.wait_for_room(&self.poller, EpollFlags::EPOLLOUT),
                Written::Gone => {
                    state.end();
                    return Sent::No;
                }
            }
        }
        let place = state.next;
        state.next = place.wrapping_add(1);
        state.kept.insert(place, (key, record));
        match state.places.insert((key, record), place) {
            Some(before) => {
                state.kept.remove(&before);
                Sent::Merged
            }
            None => Sent::Yes,
        }
    }

    /// Sends kept records, as far as there is room.
    pub fn flush(&self) {
        let mut state = lock(&self.state);
        while let Some((&place, &(key, record))) = state.kept.first_key_value() {
            match state.offer(&record) {
                Written::Yes => {
                    state.kept.remove(&place);
                    state.places.remove(&(key, record));
                }
                Written::Full => return,
                Written::Gone => return state.end(),
            }
        }
        state.wait_for_room(&self.poller, EpollFlags::empty());
    }

    /// Drops the records of an object that are still kept, and returns how many there were.
    pub fn forget(&self, key: Key) -> u32 {
        let mut state = lock(&self.state);
        let of_object = (key, [0; N])..=(key, [u8::MAX; N]);
        let found: Vec<_> =
            state.places.range(of_object).map(|(at, place)| (*at, *place)).collect();
        for (at, place) in &found {
            state.places.remove(at);
            state.kept.remove(place);
        }
        u32::try_from(found.len()).unwrap_or(u32::MAX)
    }

    /// The number of kept records.
    #[must_use]
    pub fn kept(&self) -> usize {
        lock(&self.state).kept.len()
    }

    /// Closes balboad's end; later records are dropped.
    pub fn close(&self) {
        lock(&self.state).close(&self.poller);
    }
}

impl<const N: usize> State<N> {
    fn offer(&self, record: &[u8; N]) -> Written {
        let Some((socket, _)) = &self.socket else { return Written::Gone };
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        loop {
            match send(socket.as_fd().as_raw_fd(), record, flags) {
                Ok(_) => return Written::Yes,
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Written::Full,
                Err(_) => return Written::Gone,
            }
        }
    }

    fn wait_for_room(&self, poller: &Poller, interest: EpollFlags) {
        if let Some((socket, watch)) = &self.socket {
            poller.change(socket.as_fd(), watch, interest);
        }
    }

    fn close(&mut self, poller: &Poller) {
        if let Some((socket, watch)) = self.socket.take() {
            poller.unwatch(&socket, watch);
        }
        self.kept.clear();
        self.places.clear();
    }

    /// Sends nothing any more. Both see the end, balboad by the epoll set.
    fn end(&mut self) {
        if let Some((socket, _)) = &self.socket {
            socket.end();
        }
        self.kept.clear();
        self.places.clear();
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

    fn socket() -> (Arc<Poller>, RecordSocket<8>, OwnedFd) {
        let poller = Arc::new(Poller::new().unwrap());
        let socket = RecordSocket::new(&poller);
        let theirs = socket.open(Token::Listener).unwrap();
        (poller, socket, theirs)
    }

    fn read(fd: &OwnedFd) -> Option<u64> {
        let mut buffer = [0; 8];
        receive(fd.as_fd(), &mut buffer, Wait::Never).ok().map(|_| u64::from_le_bytes(buffer))
    }

    /// Sends records of queue 1 until one is kept, the last of those returned.
    fn fill(socket: &RecordSocket<8>) -> u64 {
        let mut sent = 0;
        while socket.kept() == 0 {
            assert_eq!(socket.send(Key::Cq(1), completion_record(sent)), Sent::Yes);
            sent += 1;
        }
        sent - 1
    }

    #[test]
    fn a_full_socket_keeps_records_in_order_and_forgets_those_of_a_dead_object() {
        let (poller, socket, theirs) = socket();
        let last = fill(&socket);
        socket.send(Key::Qp(1), completion_record(1_000_000));
        socket.send(Key::Cq(1), completion_record(last + 1));
        socket.send(Key::Cq(2), completion_record(1_000_001));
        assert_eq!(socket.forget(Key::Cq(1)), 2);
        for expected in 0..last {
            assert_eq!(read(&theirs), Some(expected));
        }
        assert_eq!(read(&theirs), None);
        let ready = poller.wait(Some(0)).unwrap();
        assert!(ready.iter().any(|(_, flags)| flags.contains(EpollFlags::EPOLLOUT)));
        socket.flush();
        assert_eq!([read(&theirs), read(&theirs)], [Some(1_000_000), Some(1_000_001)]);
        assert_eq!((read(&theirs), socket.kept()), (None, 0));
        assert!(poller.wait(Some(0)).unwrap().is_empty());
    }

    #[test]
    fn of_equal_records_one_is_kept_where_the_last_of_them_was() {
        let (_, socket, theirs) = socket();
        let last = fill(&socket);
        let (up, down) = (completion_record(1 << 40), completion_record(1 << 41));
        assert_eq!(socket.send(Key::Device, down), Sent::Yes);
        for _ in 0..100_000 {
            socket.send(Key::Device, up);
            assert_eq!(socket.send(Key::Device, down), Sent::Merged);
        }
        assert_eq!(socket.send(Key::Cq(1), completion_record(last)), Sent::Merged);
        assert_eq!(socket.kept(), 3);
        for expected in 0..last {
            assert_eq!(read(&theirs), Some(expected));
        }
        socket.flush();
        let rest = [read(&theirs), read(&theirs), read(&theirs), read(&theirs)];
        assert_eq!(rest, [Some(1 << 40), Some(1 << 41), Some(last), None]);
        // An event that was read may happen again.
        assert_eq!(socket.send(Key::Device, up), Sent::Yes);
        assert_eq!(read(&theirs), Some(1 << 40));
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
    fn a_closed_channel_takes_no_record_and_its_end_is_seen_all_the_same() {
        let (poller, socket, theirs) = socket();
        fill(&socket);
        drop(theirs);
        socket.flush();
        assert_eq!(socket.kept(), 0);
        assert_eq!(socket.send(Key::Cq(1), completion_record(1)), Sent::No);
        let ready = poller.wait(Some(0)).unwrap();
        assert!(ready.iter().any(|(_, flags)| flags.contains(EpollFlags::EPOLLHUP)));
        socket.close();
        assert_eq!(socket.send(Key::Cq(1), completion_record(1)), Sent::No);
        assert!(poller.wait(Some(0)).unwrap().is_empty());
    }

    #[test]
    fn an_asynchronous_record_is_cookie_type_and_zero() {
        let record = async_record(0x0102_0304_0506_0708, 3);
        assert_eq!(record, [8, 7, 6, 5, 4, 3, 2, 1, 3, 0, 0, 0, 0, 0, 0, 0]);
    }
}
