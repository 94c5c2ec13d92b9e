//! Completion channels and asynchronous events: which records a program gets to read.
//!
//! balboad sends records into a socket whose other end libibverbs reads. Each record names its
//! object by a *cookie*, a number that is never used twice; the hook into libibverbs' `read`
//! (see [`crate::ffi::hook`]) comes here, and a record leaves with the address libibverbs expects.
//! A record of an object that was destroyed meanwhile therefore cannot be taken for a newer object
//! at the same address, and never reaches libibverbs, which would follow the address.
//!
//! All reading is done without waiting, which the hook does, and under one lock, so the number of records a program was
//! handed is exact: destroying waits until that many were acknowledged. Records of destroyed
//! objects are taken off the socket as soon as they come to its front, so that a descriptor that
//! polls readable has something to read.
//!
//! When balboad dies, a channel hands out one record for each of its queues, whose polls then
//! deliver the flushed requests, and the asynchronous descriptor one fatal event. After that reading
//! fails with EIO.

use std::ops::{Deref, DerefMut};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::abi::verbs as ibv;
use fpga_regs::engine::doorbell::record;
use hostmem::Record;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};
use parking_lot::{Mutex, MutexGuard};

use crate::doorbell::CardPath;
use crate::ffi::cancel::Uncancelled;

/// The format of a source's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordKind {
    /// 8 bytes: the object.
    Completion,
    /// 16 bytes: the object or port, the event (u32), zero (u32).
    Asynchronous,
}

/// The largest record in bytes.
const LONGEST: usize = 16;
const EVENTS_READ: usize = record::EVENTS_READ / 4;

/// A socket of records and the objects they can be about.
#[derive(Debug)]
pub(crate) struct EventSource {
    kind: RecordKind,
    path: Arc<CardPath>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    objects: Vec<Object>,
    /// Records of destroyed objects that balboad sent and that are still in the socket.
    stale: u32,
    /// balboad has gone; objects that are still to be told.
    ended: Option<Vec<u64>>,
}

/// The state, held by a thread that is not cancelled meanwhile.
struct Locked<'a> {
    // Given up first.
    state: MutexGuard<'a, State>,
    _uncancelled: Uncancelled,
}

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

#[derive(Debug)]
struct Object {
    cookie: u64,
    /// libibverbs' name for it: its address.
    address: u64,
    /// Records handed to the program.
    handed: u32,
    /// Where the driver reads that number, of a completion queue.
    record: Option<Record>,
}

/// A number for an object's records that no other object of this process ever has.
pub(crate) fn new_cookie() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// One record: an object's cookie or address, or a port, and the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Message {
    element: u64,
    /// `ibv_event_type`; 0 on a completion channel.
    event: u32,
}

impl Message {
    fn parse(raw: &[u8; LONGEST]) -> Self {
        let [e0, e1, e2, e3, e4, e5, e6, e7, v0, v1, v2, v3, ..] = *raw;
        Self {
            element: u64::from_ne_bytes([e0, e1, e2, e3, e4, e5, e6, e7]),
            event: u32::from_ne_bytes([v0, v1, v2, v3]),
        }
    }

    fn bytes(self) -> impl Iterator<Item = u8> {
        let element = self.element.to_ne_bytes().into_iter();
        element.chain(self.event.to_ne_bytes()).chain([0; 4])
    }
}

/// The kind of a record's element.
enum Subject {
    /// The cookie of an object.
    Object,
    /// A port's number, or nothing.
    Port,
}

impl EventSource {
    /// Makes the source of a completion channel.
    pub(crate) fn completions(path: Arc<CardPath>) -> Self {
        Self { kind: RecordKind::Completion, path, state: Mutex::default() }
    }

    /// Makes the source of a context's asynchronous events.
    pub(crate) fn asynchronous(path: Arc<CardPath>) -> Self {
        Self { kind: RecordKind::Asynchronous, path, state: Mutex::default() }
    }

    /// Looking into a socket, too, is where a thread may be cancelled: not while it holds this.
    fn lock(&self) -> Locked<'_> {
        let _uncancelled = Uncancelled::now();
        Locked { state: self.state.lock(), _uncancelled }
    }

    fn record_bytes(&self) -> usize {
        match self.kind {
            RecordKind::Completion => 8,
            RecordKind::Asynchronous => LONGEST,
        }
    }

    /// Begins to hand out records of an object.
    pub(crate) fn watch(&self, cookie: u64, address: u64, record: Option<Record>) {
        self.lock().objects.push(Object { cookie, address, handed: 0, record });
    }

    /// Counts the events that an object's program was handed in another record from now on, for the driver.
    pub(crate) fn count_in(&self, cookie: u64, record: Record) {
        if let Some(object) = self.lock().object(cookie) {
            record.store_release_u32(EVENTS_READ, object.handed);
            object.record = Some(record);
        }
    }

    /// Stops handing out records of an object of which `sent` were sent in all.
    ///
    /// Returns how many the program was handed; the caller waits until it acknowledged those.
    pub(crate) fn forget(&self, fd: RawFd, cookie: u64, sent: u32) -> u32 {
        let mut state = self.lock();
        let Some(at) = state.objects.iter().position(|object| object.cookie == cookie) else {
            return 0;
        };
        let handed = state.objects.swap_remove(at).handed;
        state.stale = state.stale.saturating_add(sent.saturating_sub(handed));
        self.sweep(fd, &mut state);
        handed
    }

    /// Reads one record for libibverbs, without waiting; `None` where there is none.
    ///
    /// Fails with EPERM in a forked child, which would take the parent's records off the socket.
    pub(crate) fn read(&self, fd: RawFd, into: &mut [u8]) -> Result<Option<usize>, Errno> {
        if !self.path.is_ours() {
            return Err(Errno::EPERM);
        }
        let Some(into) = into.get_mut(..self.record_bytes()) else { return Err(Errno::EINVAL) };
        let mut state = self.lock();
        let Some(message) = self.try_read(fd, &mut state)? else { return Ok(None) };
        self.sweep(fd, &mut state);
        for (to, from) in into.iter_mut().zip(message.bytes()) {
            *to = from;
        }
        Ok(Some(into.len()))
    }

    /// The next record for the program; `None` when one would have to wait.
    fn try_read(&self, fd: RawFd, state: &mut State) -> Result<Option<Message>, Errno> {
        loop {
            let mut raw = [0; LONGEST];
            let bytes = match recv(fd, &mut raw, MsgFlags::MSG_DONTWAIT) {
                Ok(0) => return self.end(state).map(Some),
                // The kernel reports once, before the unread data, that balboad was killed.
                Err(Errno::ECONNRESET) => continue,
                Ok(bytes) => bytes,
                Err(Errno::EAGAIN) => return Ok(None),
                Err(errno) => return Err(errno),
            };
            let message = Message::parse(&raw);
            let handed = match self.subject(bytes, message) {
                Some(Subject::Port) => Some(message),
                Some(Subject::Object) => state.hand_out(message),
                None => None,
            };
            match handed {
                Some(_) => return Ok(handed),
                None => state.stale = state.stale.saturating_sub(1),
            }
        }
    }

    /// The subject of a record; `None` for one that libibverbs must not see.
    fn subject(&self, bytes: usize, message: Message) -> Option<Subject> {
        if bytes != self.record_bytes() {
            return None;
        }
        if self.kind == RecordKind::Completion {
            return Some(Subject::Object);
        }
        match message.event {
            ibv::IBV_EVENT_CQ_ERR
            | ibv::IBV_EVENT_QP_FATAL
            | ibv::IBV_EVENT_QP_REQ_ERR
            | ibv::IBV_EVENT_QP_ACCESS_ERR
            | ibv::IBV_EVENT_COMM_EST
            | ibv::IBV_EVENT_SQ_DRAINED
            | ibv::IBV_EVENT_SRQ_LIMIT_REACHED
            | ibv::IBV_EVENT_QP_LAST_WQE_REACHED => Some(Subject::Object),
            ibv::IBV_EVENT_DEVICE_FATAL
            | ibv::IBV_EVENT_PORT_ACTIVE
            | ibv::IBV_EVENT_PORT_ERR
            | ibv::IBV_EVENT_PKEY_CHANGE
            | ibv::IBV_EVENT_GID_CHANGE => Some(Subject::Port),
            _ => None,
        }
    }

    /// The last messages once balboad has gone.
    fn end(&self, state: &mut State) -> Result<Message, Errno> {
        self.path.declare_dead();
        if state.ended.is_none() {
            state.ended = Some(match self.kind {
                RecordKind::Completion => state.objects.iter().rev().map(|o| o.cookie).collect(),
                RecordKind::Asynchronous => vec![0],
            });
        }
        while let Some(cookie) = state.ended.as_mut().and_then(Vec::pop) {
            if self.kind == RecordKind::Asynchronous {
                return Ok(Message { element: 0, event: ibv::IBV_EVENT_DEVICE_FATAL });
            }
            if let Some(message) = state.hand_out(Message { element: cookie, event: 0 }) {
                return Ok(message);
            }
        }
        Err(Errno::EIO)
    }

    /// Takes records of destroyed objects off the front of the socket.
    fn sweep(&self, fd: RawFd, state: &mut State) {
        while state.stale > 0 {
            let mut raw = [0; LONGEST];
            let peeked = recv(fd, &mut raw, MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT);
            let Ok(bytes @ 1..) = peeked else { return };
            let message = Message::parse(&raw);
            let wanted = match self.subject(bytes, message) {
                Some(Subject::Port) => true,
                Some(Subject::Object) => state.object(message.element).is_some(),
                None => false,
            };
            if wanted || recv(fd, &mut raw, MsgFlags::MSG_DONTWAIT).is_err() {
                return;
            }
            state.stale = state.stale.saturating_sub(1);
        }
    }
}

impl State {
    fn object(&mut self, cookie: u64) -> Option<&mut Object> {
        self.objects.iter_mut().find(|object| object.cookie == cookie)
    }

    /// Counts a record as handed to the program and names its object by address.
    fn hand_out(&mut self, message: Message) -> Option<Message> {
        let object = self.object(message.element)?;
        object.handed = object.handed.wrapping_add(1);
        if let Some(record) = &object.record {
            record.store_release_u32(EVENTS_READ, object.handed);
        }
        Some(Message { element: object.address, ..message })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::fd::{AsFd, AsRawFd, OwnedFd};

    use hostmem::fdpass::{Wait, Writer, one_way, send};
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    use nix::unistd::close;

    use super::*;
    use crate::doorbell::tests::{memory, path};
    use crate::ffi::cancel::peek;

    struct Bench {
        source: EventSource,
        ours: OwnedFd,
        theirs: Option<Writer>,
    }

    /// How balboad goes.
    #[derive(Clone, Copy, Debug)]
    pub(crate) enum Goes {
        Ends,
        /// Its descriptors are closed by the kernel.
        IsKilled,
    }

    impl Goes {
        pub(crate) const EITHER: [Self; 2] = [Self::Ends, Self::IsKilled];

        /// Writes the end of a source in each way that its writer can end.
        pub(crate) fn with(self, writer: Writer) {
            match self {
                Self::Ends => drop(writer),
                Self::IsKilled => {
                    close(writer.as_fd().as_raw_fd()).unwrap();
                    std::mem::forget(writer);
                }
            }
        }
    }

    fn bench(make: impl FnOnce(Arc<CardPath>) -> EventSource) -> Bench {
        let (theirs, ours) = one_way().unwrap();
        fcntl(&ours, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        Bench { source: make(path().0), ours, theirs: Some(theirs) }
    }

    impl Bench {
        fn send(&self, element: u64, event: u32) {
            let bytes: Vec<u8> = Message { element, event }.bytes().collect();
            let bytes = &bytes[..self.source.record_bytes()];
            send(self.theirs.as_ref().unwrap().as_fd(), bytes, &[], Wait::Never).unwrap();
        }

        fn read(&self) -> Result<(u64, u32), Errno> {
            let mut raw = [0; LONGEST];
            let read = self.source.read(self.ours.as_raw_fd(), &mut raw)?;
            read.ok_or(Errno::EAGAIN)?;
            let message = Message::parse(&raw);
            Ok((message.element, message.event))
        }

        fn forget(&self, cookie: u64, sent: u32) -> u32 {
            self.source.forget(self.ours.as_raw_fd(), cookie, sent)
        }

        fn is_readable(&self) -> bool {
            let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
            recv(self.ours.as_raw_fd(), &mut [0; LONGEST], flags).is_ok()
        }
    }

    #[test]
    fn a_record_leaves_with_its_object_s_address_and_is_counted() {
        let bench = bench(EventSource::completions);
        let record = Record::new(memory(4096), 0).unwrap();
        bench.source.watch(7, 0x1000, Some(record.clone()));
        bench.send(7, 0);
        bench.send(7, 0);
        assert_eq!(bench.read(), Ok((0x1000, 0)));
        assert_eq!(record.load_relaxed_u32(EVENTS_READ), 1);
        assert_eq!(bench.read(), Ok((0x1000, 0)));
        assert_eq!(record.load_relaxed_u32(EVENTS_READ), 2);
        assert_eq!(bench.read(), Err(Errno::EAGAIN));
        assert_eq!(bench.forget(7, 2), 2);
    }

    #[test]
    fn records_of_a_destroyed_object_are_never_read_and_leave_the_socket_quiet() {
        let bench = bench(EventSource::completions);
        bench.source.watch(1, 0x100, None);
        bench.send(1, 0);
        assert_eq!(bench.forget(1, 1), 0);
        assert!(!bench.is_readable());
        // A new object at the same address is another object.
        bench.source.watch(2, 0x100, None);
        assert_eq!(bench.read(), Err(Errno::EAGAIN));
    }

    #[test]
    fn stale_records_behind_living_ones_go_once_they_are_at_the_front() {
        let bench = bench(EventSource::completions);
        bench.source.watch(1, 0x100, None);
        bench.source.watch(2, 0x200, None);
        for cookie in [2, 1, 2, 1] {
            bench.send(cookie, 0);
        }
        assert_eq!(bench.forget(1, 2), 0);
        assert_eq!(bench.read(), Ok((0x200, 0)));
        assert_eq!(bench.read(), Ok((0x200, 0)));
        assert!(!bench.is_readable());
    }

    #[test]
    fn a_reader_that_waits_is_woken_by_a_record() {
        let (theirs, ours) = one_way().unwrap();
        let source = EventSource::completions(path().0);
        source.watch(1, 0x100, None);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut raw = [0; LONGEST];
                while source.read(ours.as_raw_fd(), &mut raw).unwrap().is_none() {
                    peek(ours.as_raw_fd(), 0).unwrap();
                }
                Message::parse(&raw).element
            });
            // Unknown first: the reader must go back to waiting.
            send(theirs.as_fd(), &9u64.to_ne_bytes(), &[], Wait::AsSocket).unwrap();
            send(theirs.as_fd(), &1u64.to_ne_bytes(), &[], Wait::AsSocket).unwrap();
            assert_eq!(reader.join().unwrap(), 0x100);
        });
    }

    #[test]
    fn asynchronous_events_of_objects_ports_and_unknown_kinds_are_told_apart() {
        let bench = bench(EventSource::asynchronous);
        bench.source.watch(5, 0xabc0, None);
        bench.send(5, ibv::IBV_EVENT_QP_FATAL);
        bench.send(6, ibv::IBV_EVENT_QP_FATAL);
        bench.send(1, ibv::IBV_EVENT_SRQ_ERR);
        bench.send(1, 1000);
        bench.send(1, ibv::IBV_EVENT_PORT_ERR);
        assert_eq!(bench.read(), Ok((0xabc0, ibv::IBV_EVENT_QP_FATAL)));
        assert_eq!(bench.read(), Ok((1, ibv::IBV_EVENT_PORT_ERR)));
        assert_eq!(bench.read(), Err(Errno::EAGAIN));
        assert_eq!(bench.forget(5, 1), 1);
    }

    #[test]
    fn the_end_of_balboad_wakes_every_queue_once_and_then_fails() {
        for goes in Goes::EITHER {
            let mut bench = bench(EventSource::completions);
            bench.source.watch(1, 0x100, None);
            bench.source.watch(2, 0x200, None);
            bench.send(2, 0);
            goes.with(bench.theirs.take().unwrap());
            assert_eq!(bench.read(), Ok((0x200, 0)), "{goes:?}");
            assert_eq!(bench.read(), Ok((0x100, 0)), "{goes:?}");
            assert_eq!(bench.read(), Ok((0x200, 0)), "{goes:?}");
            assert_eq!(bench.read(), Err(Errno::EIO), "{goes:?}");
            assert!(bench.source.path.is_dead());
            assert_eq!(bench.forget(2, 1), 2);
        }
    }

    #[test]
    fn the_end_of_balboad_is_one_fatal_event_behind_those_that_are_unread() {
        for goes in Goes::EITHER {
            let mut bench = bench(EventSource::asynchronous);
            bench.send(1, ibv::IBV_EVENT_PORT_ERR);
            goes.with(bench.theirs.take().unwrap());
            assert_eq!(bench.read(), Ok((1, ibv::IBV_EVENT_PORT_ERR)), "{goes:?}");
            assert_eq!(bench.read(), Ok((0, ibv::IBV_EVENT_DEVICE_FATAL)), "{goes:?}");
            assert_eq!(bench.read(), Err(Errno::EIO), "{goes:?}");
        }
    }

    #[test]
    fn the_end_of_balboad_wakes_who_waits() {
        for goes in Goes::EITHER {
            let (theirs, ours) = one_way().unwrap();
            std::thread::scope(|scope| {
                let waits = scope.spawn(|| peek(ours.as_raw_fd(), 0));
                goes.with(theirs);
                assert_eq!(waits.join().unwrap(), Ok(()), "{goes:?}");
            });
        }
    }

    #[test]
    fn what_is_no_socket_is_said_to_be_none() {
        let source = EventSource::completions(path().0);
        let (reader, _writer) = nix::unistd::pipe().unwrap();
        let read = source.read(reader.as_raw_fd(), &mut [0; LONGEST]);
        assert_eq!(read, Err(Errno::ENOTSOCK));
    }
}
