//! Programs in every kind of call when balboad dies, or is stopped.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use verbs_sys::current::verbs as v;

use super::{
    DEATH, LIMIT, flushed, is_dead, leave_outstanding, linked, say, send, takes_nothing,
    told_of_death,
};
use crate::data::link::ConnectedSides;
use crate::data::transfer::{self, Transfer};
use crate::ffi::{CmEventType, EventChannel, Failed, Identifier, Operation, Pd, Region};

/// Work requests that are outstanding of each kind.
const OUTSTANDING: u64 = 5;

/// The call that a program is in when balboad dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Doing {
    /// It polls.
    Poll,
    /// It sits in ibv_get_cq_event.
    CqEvent,
    /// It sits in ibv_get_async_event.
    AsyncEvent,
    /// It sits in rdma_get_cm_event.
    CmEvent,
    /// It waits in epoll for its completion channel.
    Epoll,
    /// It posts and never polls.
    Post,
    /// It makes control calls, one after the other.
    Control,
}

impl Doing {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Poll,
        Self::CqEvent,
        Self::AsyncEvent,
        Self::CmEvent,
        Self::Epoll,
        Self::Post,
        Self::Control,
    ];
}

/// Makes the call until balboad dies, or a card that a living balboad has, checks its result, and then works with the
/// next one.
///
/// Says `waiting`, `told` and `again`.
///
/// # Errors
/// When something does not go by the book.
pub fn survive(doing: Doing, card: bool) -> Result<()> {
    let link = linked(matches!(doing, Doing::CqEvent | Doing::Epoll), transfer::room(4096))?;
    if doing != Doing::Post {
        leave_outstanding(&link.left, OUTSTANDING)?;
    }
    match doing {
        Doing::Poll => say("waiting"),
        Doing::CqEvent => cq_event(&link, card)?,
        Doing::AsyncEvent => async_event(&link)?,
        Doing::CmEvent => cm_event(card)?,
        Doing::Epoll => epoll(&link)?,
        Doing::Post => post(&link)?,
        Doing::Control => control(&link)?,
    }
    if doing != Doing::Post {
        // The others have waited for the death already.
        let limit = if doing == Doing::Poll { DEATH } else { LIMIT };
        flushed(&link.left.send_cq, OUTSTANDING, limit).context("sends")?;
        flushed(&link.left.receive_cq, OUTSTANDING, LIMIT).context("receives")?;
    }
    if doing == Doing::AsyncEvent && card {
        // It has heard of the death already.
        takes_nothing(&link.left)?;
    } else if doing == Doing::AsyncEvent {
        // There is nothing more to hear.
        let more = link.left.context.next_async_event();
        ensure!(more == Err(failed("ibv_get_async_event", libc::EIO)), "after the end: {more:?}");
    } else {
        is_dead(&link.left)?;
    }
    is_dead(&link.right).context("the other side")?;
    // Everything can be destroyed: each drop checks that.
    drop(link);
    say("told");
    works_again()
}

pub(super) fn failed(call: &'static str, errno: i32) -> Failed {
    Failed { call, errno }
}

fn cq_event(link: &ConnectedSides, card: bool) -> Result<()> {
    let channel = link.left.send_cq.channel().context("no channel")?;
    link.left.send_cq.arm()?;
    say("waiting");
    let queue = channel.next_event()?;
    ensure!(queue as usize == link.left.send_cq.element(), "an event of another queue");
    if card {
        return Ok(());
    }
    // One event tells of the flushed queue, and then there will be none any more.
    let more = channel.next_event();
    ensure!(more == Err(failed("ibv_get_cq_event", libc::EIO)), "after the end: {more:?}");
    Ok(())
}

fn async_event(link: &ConnectedSides) -> Result<()> {
    say("waiting");
    let event = link.left.context.next_async_event()?;
    ensure!(event == v::IBV_EVENT_DEVICE_FATAL, "event {event}");
    Ok(())
}

fn cm_event(card: bool) -> Result<()> {
    ensure!(!card, "an identifier without an address is not told of a card's death");
    let channel = EventChannel::open()?;
    let identifier = Identifier::new(&channel)?;
    say("waiting");
    let event = channel.next_event()?;
    ensure!(event == CmEventType::DeviceRemoval as i32, "event {event}");
    let more = channel.next_event();
    ensure!(more == Err(failed("rdma_get_cm_event", libc::EIO)), "after the end: {more:?}");
    drop(identifier);
    Ok(())
}

fn epoll(link: &ConnectedSides) -> Result<()> {
    let channel = link.left.receive_cq.channel().context("no channel")?;
    link.left.receive_cq.arm()?;
    let epoll = Epoll::new(EpollCreateFlags::empty())?;
    epoll.add(channel.descriptor(), EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
    say("waiting");
    ensure!(epoll.wait(&mut [EpollEvent::empty(); 4], EpollTimeout::NONE)? == 1);
    let queue = channel.next_event()?;
    ensure!(queue as usize == link.left.receive_cq.element(), "an event of another queue");
    Ok(())
}

fn post(link: &ConnectedSides) -> Result<()> {
    say("waiting");
    let deadline = Instant::now() + DEATH;
    loop {
        match link.left.qp.post_send(&[send(&link.left, 0)]) {
            Ok(()) => {}
            // Nobody polls, so the queue fills and stays full.
            Err((failed, _)) if failed.errno == libc::ENOMEM => {
                std::thread::sleep(Duration::from_micros(200));
            }
            Err((failed, _)) if failed.errno == libc::EIO => return Ok(()),
            Err((failed, _)) => bail!("posting: {failed}"),
        }
        ensure!(Instant::now() < deadline, "posting goes on without a card");
    }
}

fn control(link: &ConnectedSides) -> Result<()> {
    say("waiting");
    loop {
        if let Err(failed) = Pd::new(&link.left.context) {
            ensure!(failed.errno == libc::EIO, "a control call without balboad: {failed}");
            return Ok(());
        }
    }
}

/// Waits for a balboad, moves a message through it, says `again`.
fn works_again() -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    let link = loop {
        match linked(false, transfer::room(4096)) {
            Ok(link) => break link,
            Err(error) if Instant::now() > deadline => return Err(error.context("again")),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    message(&link)?;
    say("again");
    Ok(())
}

/// Moves one message and checks it.
pub fn message(link: &ConnectedSides) -> Result<()> {
    let operation = Operation::SendImmediate;
    let (gather, scatter) = (2, 3);
    Transfer { operation, size: 3000, gather, scatter, offset: 9, inline: false, seed: 5 }.run(link)
}

/// Makes control calls while balboad is stopped, and goes on when it is.
///
/// Says `waiting`, `told` and, once balboad goes on, `ended` and `again`.
///
/// # Errors
/// When something does not go by the book.
pub fn stopped() -> Result<()> {
    let link = linked(false, transfer::room(4096))?;
    leave_outstanding(&link.left, OUTSTANDING)?;
    let region = Region::new(&link.left.pd, 4096, v::IBV_ACCESS_LOCAL_WRITE, false)?;
    say("waiting");
    let late = loop {
        if let Err(failed) = link.left.context.port() {
            break failed;
        }
    };
    ensure!(late.errno == libc::ETIMEDOUT, "a call that is not answered: {late}");
    // The next one is not sent any more: it would wait, too, and be told of another errno.
    let refused = Pd::new(&link.left.context).err();
    ensure!(refused.as_ref().is_some_and(|it| it.errno == libc::EIO), "the next: {refused:?}");
    // The card may go on any moment, so its memory cannot be given back, and nothing is flushed.
    let dereg = region.deregister();
    ensure!(dereg == Err(failed("ibv_dereg_mr", libc::EIO)), "ibv_dereg_mr: {dereg:?}");
    ensure!(link.left.send_cq.poll()?.is_none(), "flushed while the card may still work");
    say("told");
    told_of_death(&link.left.context)?;
    flushed(&link.left.send_cq, OUTSTANDING, LIMIT).context("sends")?;
    flushed(&link.left.receive_cq, OUTSTANDING, LIMIT).context("receives")?;
    told_of_death(&link.right.context)?;
    drop(region);
    drop(link);
    say("ended");
    works_again()
}
