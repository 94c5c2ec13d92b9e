//! Readiness of channels that a program waits on for reading and writing at once.
//!
//! The kernel's files are never ready to be written. At the end of their device there are errors (EIO), behind the events
//! that were not read.

use std::net::SocketAddrV4;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use verbs_sys::current::verbs as v;

use super::death::failed;
use super::{DEATH, LIMIT, linked, next, say, send};
use crate::data::link::{ACCESS, ConnectedSides};
use crate::data::managed::address;
use crate::data::transfer;
use crate::ffi::{CmEventType, Context, EventChannel, Failed, Identifier, Recv};

/// One of each kind, in this order.
const KINDS: [&str; 3] = ["completion channel", "asynchronous events", "rdma_cm's event channel"];
/// The mask of all programs that wait for both at once.
const BOTH: EpollFlags = EpollFlags::EPOLLIN.union(EpollFlags::EPOLLOUT);
const NOTHING: [EpollFlags; 3] = [EpollFlags::empty(); 3];
const EVENTS: [EpollFlags; 3] = [EpollFlags::EPOLLIN; 3];

/// Sees channels of every kind before balboad's end, and behind it.
///
/// Says `waiting` when balboad may end.
///
/// # Errors
/// When a channel is wrongly ready, or does not deliver its events in their order.
pub fn channels() -> Result<()> {
    let link = linked(true, transfer::room(4096))?;
    let managed = EventChannel::open()?;
    let identifier = Identifier::new(&managed)?;
    let all = All { link: &link, managed: &managed };
    command_descriptor(&link.right.context)?;

    let level = watched(all.descriptors()?, BOTH)?;
    let edge = watched(all.descriptors()?, BOTH | EpollFlags::EPOLLET)?;
    are_ready_for_nothing(&level, "before any event")?;
    all.have_nothing()?;
    let [from, to] = [&link.left, &link.right].map(|side| address(&side.context, 1));
    let [from, to] = [SocketAddrV4::new(from?, 0), SocketAddrV4::new(to?, 7471)];
    all.cause(|| identifier.ask_for_address(from, to))?;
    come(&level, EVENTS)?;
    come(&edge, EVENTS)?;
    all.give(CmEventType::AddressResolved)?;
    are_ready_for_nothing(&level, "behind the events")?;
    are_ready_for_nothing(&edge, "behind the events, of what has changed")?;
    all.have_nothing()?;

    // Left where they are.
    all.cause(|| identifier.ask_for_route())?;
    come(&level, EVENTS)?;
    // Each descriptor reports the end also to a watcher of no events, here once.
    let ends = watched(all.descriptors()?, EpollFlags::EPOLLONESHOT)?;
    say("waiting");
    for _ in KINDS {
        ended(&ends)?;
    }
    // librdmacm asks for the path of an event, and balboad does not answer.
    all.give(CmEventType::RouteError)?;
    all.give_the_end()?;
    for (flags, kind) in ready(&level)?.into_iter().zip(KINDS) {
        let end = EpollFlags::EPOLLIN | EpollFlags::EPOLLHUP;
        ensure!(flags.contains(end), "{kind} behind its end: {flags:?}");
        ensure!(!flags.contains(EpollFlags::EPOLLERR), "{kind} behind its end: {flags:?}");
    }
    Ok(())
}

/// One channel of each kind, and the objects that cause their events.
struct All<'a> {
    link: &'a ConnectedSides,
    managed: &'a EventChannel,
}

impl All<'_> {
    fn descriptors(&self) -> Result<[BorrowedFd<'_>; 3]> {
        let right = &self.link.right;
        let completions = right.receive_cq.channel().context("no channel")?;
        let all = [completions.descriptor(), right.context.descriptor(), self.managed.descriptor()];
        for fd in all {
            let flags = OFlag::from_bits_truncate(fcntl(fd, FcntlArg::F_GETFL)?);
            fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
        }
        Ok(all)
    }

    /// Reads an event of each: its number, or, of a completion, the address of its queue.
    fn read(&self) -> Result<[Result<usize, Failed>; 3]> {
        let right = &self.link.right;
        let completions = right.receive_cq.channel().context("no channel")?;
        Ok([
            completions.next_event().map(|queue| queue as usize),
            right.context.next_async_event().map(|event| event as usize),
            self.managed.next_event().map(|event| event as usize),
        ])
    }

    fn fail(&self, errno: i32) -> Result<()> {
        let calls = ["ibv_get_cq_event", "ibv_get_async_event", "rdma_get_cm_event"];
        let found = self.read()?;
        ensure!(found == calls.map(|call| Err(failed(call, errno))), "expected {errno}: {found:?}");
        Ok(())
    }

    fn have_nothing(&self) -> Result<()> {
        self.fail(libc::EAGAIN)
    }

    /// Brings about one event on each, that of rdma_cm by a question.
    fn cause(&self, ask: impl FnOnce() -> Result<()>) -> Result<()> {
        let ConnectedSides { left, right, .. } = self.link;
        // The first message in RTR is an asynchronous event.
        self.link.half_connect(ACCESS)?;
        right.receive_cq.arm()?;
        right.qp.post_recv(&Recv { wr_id: 0, pieces: vec![right.region.piece(0, 64)] })?;
        left.qp.post_send(&[send(left, 0)]).map_err(|(failed, _)| failed)?;
        for done in [next(&left.send_cq, LIMIT)?, next(&right.receive_cq, LIMIT)?] {
            ensure!(done.status == v::IBV_WC_SUCCESS, "{done:?}");
        }
        ask()
    }

    /// Takes the events that were brought about.
    fn give(&self, told: CmEventType) -> Result<()> {
        let queue = self.link.right.receive_cq.element();
        let expected = [queue, v::IBV_EVENT_COMM_EST as usize, told as usize].map(Ok);
        let found = self.read()?;
        ensure!(found == expected, "expected {expected:?}: {found:?}");
        Ok(())
    }

    /// Takes the event that tells of the end, behind which there is none.
    fn give_the_end(&self) -> Result<()> {
        let queue = self.link.right.receive_cq.element();
        let fatal = v::IBV_EVENT_DEVICE_FATAL as usize;
        let expected = [queue, fatal, CmEventType::DeviceRemoval as usize].map(Ok);
        let found = self.read()?;
        ensure!(found == expected, "expected {expected:?}: {found:?}");
        self.fail(libc::EIO)
    }
}

fn watched(all: [BorrowedFd<'_>; 3], flags: EpollFlags) -> Result<Epoll> {
    let epoll = Epoll::new(EpollCreateFlags::empty())?;
    for (number, fd) in (0..).zip(all) {
        epoll.add(fd, EpollEvent::new(flags, number))?;
    }
    Ok(epoll)
}

/// The readiness of each now.
fn ready(epoll: &Epoll) -> Result<[EpollFlags; 3]> {
    let mut found = [EpollEvent::empty(); 3];
    let count = epoll.wait(&mut found, EpollTimeout::ZERO)?;
    let mut flags = NOTHING;
    for event in found.iter().take(count) {
        let one = flags.get_mut(usize::try_from(event.data())?).context("no such channel")?;
        *one = event.events();
    }
    Ok(flags)
}

fn are_ready_for_nothing(epoll: &Epoll, when: &str) -> Result<()> {
    let flags = ready(epoll)?;
    ensure!(flags == NOTHING, "{when} {KINDS:?} are ready for {flags:?}");
    Ok(())
}

/// Waits until each is ready as expected, and sees none ready otherwise.
fn come(epoll: &Epoll, expected: [EpollFlags; 3]) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    let mut seen = NOTHING;
    while seen != expected {
        ensure!(Instant::now() < deadline, "expected {expected:?} within {LIMIT:?}: {seen:?}");
        let now = ready(epoll)?;
        for (number, kind) in KINDS.iter().enumerate() {
            let (now, expected) = (now[number], expected[number]);
            ensure!(expected.contains(now), "{kind} is ready for {now:?}, not for {expected:?}");
            seen[number] |= now;
        }
        std::thread::yield_now();
    }
    Ok(())
}

/// Waits until one more has ended.
fn ended(epoll: &Epoll) -> Result<()> {
    let mut found = [EpollEvent::empty()];
    let count = epoll.wait(&mut found, EpollTimeout::try_from(DEATH)?)?;
    ensure!(count == 1, "no end within {DEATH:?}");
    let [event] = found;
    ensure!(event.events().contains(EpollFlags::EPOLLHUP), "at the end: {:?}", event.events());
    Ok(())
}

/// The kernel's file, by which libibverbs asks, is ready for everything at any time, and for no epoll.
fn command_descriptor(context: &Context) -> Result<()> {
    let command = context.command_descriptor();
    let both = PollFlags::POLLIN | PollFlags::POLLOUT;
    let mut fds = [PollFd::new(command, both)];
    poll(&mut fds, PollTimeout::ZERO)?;
    ensure!(fds[0].revents() == Some(both), "the command descriptor: {:?}", fds[0].revents());
    let refused = Epoll::new(EpollCreateFlags::empty())?.add(command, EpollEvent::new(BOTH, 0));
    ensure!(refused == Err(Errno::EPERM), "epoll takes the command descriptor: {refused:?}");
    Ok(())
}
