//! Forked children, which own nothing of their parent's, and programs that become others.

use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Pid, alarm};
use verbs_sys::current::verbs as v;

use super::death::message;
use super::{linked, say, send};
use crate::data::link::ConnectedSides;
use crate::data::transfer;
use crate::ffi::{Channel, Context, Cq, Dm, Failed, Library, Pd, Recv, Region, in_child};

/// How often is forked while other threads are in calls.
const FORKS: usize = 20;
/// Threads that are in calls.
const BUSY: usize = 2;
/// After which time a child counts as hanging, seconds: on a machine whose cores are all busy it takes some.
pub(super) const HANGS: u32 = 50;

/// Forks again and again, while threads make control calls: no call in a child succeeds or hangs,
/// and a child that opens the device for itself works.
///
/// # Errors
/// When something does not go by the book.
pub fn children() -> Result<()> {
    let link = linked(true, transfer::room(4096))?;
    let dm = Dm::new(&link.left.context, 128, 0)?;
    let (stop, begun) = (AtomicBool::new(false), Barrier::new(BUSY + 1));
    std::thread::scope(|scope| {
        let busy: Vec<_> = (0..BUSY).map(|_| scope.spawn(|| keep_busy(&begun, &stop))).collect();
        begun.wait();
        let outcome = (0..FORKS).try_for_each(|turn| {
            let child = in_child(|| {
                alarm::set(HANGS);
                code(refused_everything(&link, &dm).and_then(|()| match turn % 5 {
                    0 => own_device(),
                    _ => Ok(()),
                }))
            })?;
            good(child).with_context(|| format!("child {turn}"))
        });
        stop.store(true, Ordering::Relaxed);
        for thread in busy {
            thread.join().unwrap_or_else(|_| bail!("a thread failed"))?;
        }
        outcome
    })?;
    message(&link).context("the parent, afterwards")?;
    println!("{FORKS} children were refused");
    Ok(())
}

pub(super) fn code(outcome: Result<()>) -> i32 {
    match outcome {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("in the child: {error:#}");
            1
        }
    }
}

pub(super) fn good(child: Pid) -> Result<()> {
    let status = waitpid(child, None)?;
    ensure!(matches!(status, WaitStatus::Exited(_, 0)), "it hangs, or failed: {status:?}");
    Ok(())
}

fn keep_busy(begun: &Barrier, stop: &AtomicBool) -> Result<()> {
    // Opened before any fork: libibverbs' own lock of the list of devices, and the linker's, are
    // not given back in a child.
    let context = Library::open().and_then(|library| Context::open(library, "balboa0"));
    begun.wait();
    let context = context?;
    while !stop.load(Ordering::Relaxed) {
        drop(Pd::new(&context)?);
        context.gid(1)?;
    }
    Ok(())
}

/// Checks that a call fails with EPERM.
fn refused<T>(call: &str, outcome: Result<T, Failed>) -> Result<()> {
    match outcome {
        Err(failed) if failed.errno == libc::EPERM => Ok(()),
        Err(failed) => bail!("{call}: {failed}, not EPERM"),
        Ok(_) => bail!("{call} succeeds"),
    }
}

/// Every call on the parent's objects says that they are not the child's.
fn refused_everything(link: &ConnectedSides, dm: &Dm) -> Result<()> {
    let side = &link.left;
    let polled = side.send_cq.poll();
    ensure!(polled.is_err(), "polling answers {polled:?}");
    refused("arming", side.send_cq.arm())?;
    let posted = side.qp.post_send(&[send(side, 1)]);
    refused("posting a send", posted.map_err(|(failed, _)| failed))?;
    let pieces = vec![side.region.piece(0, 8)];
    refused("posting a receive", side.qp.post_recv(&Recv { wr_id: 1, pieces }))?;
    refused("changing a QP", side.qp.to(v::IBV_QPS_ERR))?;
    refused("a QP query", side.qp.query())?;
    refused("a port query", side.context.port())?;
    refused("a GID query", side.context.gid(1))?;
    refused("making a PD", Pd::new(&side.context))?;
    refused("making a CQ", Cq::new(&side.context, 4, None))?;
    refused("making a channel", Channel::new(&side.context))?;
    let rights = v::IBV_ACCESS_LOCAL_WRITE;
    refused("registering memory", Region::new(&side.pd, 4096, rights, false))?;
    refused("deregistering memory", side.region.deregister())?;
    refused("copying to device memory", dm.write(0, &[1; 64]))?;
    refused("copying from device memory", dm.read(0, 64))?;
    refused("giving device memory back", dm.free())?;
    let channel = side.send_cq.channel().context("no channel")?;
    refused("waiting for a completion event", channel.next_event())?;
    refused("waiting for an event", side.context.next_async_event())
}

/// A child may open the device for itself.
fn own_device() -> Result<()> {
    message(&linked(false, transfer::room(4096))?)
}

/// Messages that a parent moves while its children live.
const MESSAGES: usize = 200;

/// Moves messages, each with bytes of its own, while one child lives and does nothing, one has become
/// another program, and one takes device memory by its parent's context and moves messages by a device
/// that it has opened itself.
///
/// # Errors
/// When something does not go by the book.
pub fn family() -> Result<()> {
    let link = linked(true, transfer::room(4096))?;
    message(&link)?;
    let idle = in_child(|| {
        loop {
            std::thread::park();
        }
    })?;
    let other = in_child(|| {
        // What comes back has failed.
        drop(Command::new("sleep").arg("1000").exec());
        1
    })?;
    let busy = in_child(|| {
        alarm::set(HANGS * 3);
        code(own_device_memory(&link).and_then(|()| (0..MESSAGES).try_for_each(|_| own_device())))
    })?;
    (0..MESSAGES).try_for_each(|_| message(&link)).context("the parent, beside its children")?;
    good(busy).context("the child that works")?;
    for child in [idle, other] {
        kill(child, Signal::SIGKILL)?;
        waitpid(child, None)?;
    }
    message(&link).context("the parent, afterwards")?;
    println!("{MESSAGES} messages arrived beside children");
    Ok(())
}

/// A child has device memory by its parent's context, which is its own and no domain's of its parent.
fn own_device_memory(link: &ConnectedSides) -> Result<()> {
    let side = &link.left;
    let (mine, more) = (Dm::new(&side.context, 128, 0)?, Dm::new(&side.context, 64, 0)?);
    let bytes: Vec<u8> = (0..128).collect();
    mine.write(0, &bytes)?;
    more.write(0, &bytes[64..])?;
    ensure!(mine.read(0, 128)? == bytes, "other bytes come back");
    ensure!(more.read(0, 64)? == bytes[64..], "other bytes come back");
    let rights = v::IBV_ACCESS_LOCAL_WRITE | v::IBV_ACCESS_ZERO_BASED;
    let registered = mine.register(&side.pd, (0, 64), rights).map_err(|error| {
        // What the library says of it, with the call's name.
        error.downcast::<Failed>()
    });
    match registered {
        Err(Ok(failed)) => refused::<()>("registering it in the parent's domain", Err(failed)),
        Err(Err(error)) => Err(error),
        Ok(_) => bail!("device memory of the child's is registered in its parent's domain"),
    }
}

/// Leaves everything to a child that only holds on to the descriptors; says `heir` and its id.
///
/// # Errors
/// When there is no child.
pub fn heir() -> Result<()> {
    let link = linked(true, transfer::room(1 << 16))?;
    message(&link)?;
    let child = in_child(|| {
        std::thread::sleep(super::LIMIT * 100);
        0
    })?;
    say(&format!("heir {child}"));
    waitpid(child, None)?;
    Ok(())
}

/// Becomes another program, with queues and memory in use; says `executing`.
///
/// # Errors
/// When it cannot.
pub fn execute() -> Result<()> {
    let link = linked(true, transfer::room(1 << 16))?;
    message(&link)?;
    super::leave_outstanding(&link.left, 3)?;
    say("executing");
    Err(Command::new("sleep").arg("1000").exec()).context("cannot execute sleep")
}
