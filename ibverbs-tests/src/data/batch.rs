//! Objects that a program makes, changes and destroys between the start and the end of a poll.

use std::rc::Rc;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use verbs_sys::current::verbs as v;

use super::link::{ACCESS, ConnectedSides, LIMIT, Options};
use super::transfer;
use crate::ffi::{Batch, Cq, Send};

/// Requests of a kind.
const EACH: u64 = 5;

/// Runs all of it, on queues of many threads and of one.
///
/// # Errors
/// At the first thing that is not as it should be.
pub fn all(options: &Options, write: impl Fn(&ConnectedSides, u64) -> Send) -> Result<()> {
    for thread_domain in [false, true] {
        let options = Options { thread_domain, ..options.clone() };
        let mut link = ConnectedSides::new(&options, v::IBV_MTU_1024, transfer::room(1 << 16))?;
        let post = |link: &ConnectedSides, wr_ids: std::ops::Range<u64>| -> Result<()> {
            let list: Vec<Send> = wr_ids.map(|wr_id| write(link, wr_id)).collect();
            link.left.qp.post_send(&list).map_err(|(failed, _)| failed.into())
        };
        one_poll(&mut link, &post).with_context(|| format!("thread domain: {thread_domain}"))?;
    }
    Ok(())
}

/// A poll in which queue pairs come, are reset and go, and its queue is resized.
fn one_poll(
    link: &mut ConnectedSides,
    post: &impl Fn(&ConnectedSides, std::ops::Range<u64>) -> Result<()>,
) -> Result<()> {
    let cq = Rc::clone(&link.left.send_cq);
    let first = link.left.qp.number();
    post(link, 0..EACH)?;
    let mut batch = started(&cq)?;
    let seen = |batch: &Batch<'_>, wr_id: u64, qpn: u32| -> Result<()> {
        let found = batch.completion();
        let told = (found.wr_id, found.status, found.qp_num, found.opcode);
        ensure!(told == (wr_id, v::IBV_WC_SUCCESS, qpn, v::IBV_WC_RDMA_WRITE), "{found:?}");
        Ok(())
    };
    seen(&batch, 0, first)?;
    // Another comes and goes.
    let other = link.left.another_qp()?;
    ensure!(other.number() != first);
    drop(other);
    seen(&batch, 0, first)?;
    next(&mut batch)?;
    seen(&batch, 1, first)?;
    // What is there when the queue is resized comes in order.
    cq.resize(4 * cq.entries())?;
    seen(&batch, 1, first)?;
    for wr_id in 2..EACH - 1 {
        next(&mut batch)?;
        seen(&batch, wr_id, first)?;
    }
    // No request from before a reset completes, and all later ones do.
    link.half_connect(ACCESS)?;
    link.finish()?;
    seen(&batch, EACH - 2, first)?;
    ensure!(!batch.go_on()?, "a completion of before the reset: {:?}", batch.completion());
    post(link, EACH..2 * EACH)?;
    for wr_id in EACH..2 * EACH {
        next(&mut batch)?;
        seen(&batch, wr_id, first)?;
    }
    // Of one that was destroyed nothing comes either.
    post(link, 0..EACH)?;
    next(&mut batch)?;
    link.left.renew_qp()?;
    seen(&batch, 0, first)?;
    let second = link.left.qp.number();
    link.half_connect(ACCESS)?;
    link.finish()?;
    post(link, 7..8)?;
    next(&mut batch)?;
    seen(&batch, 7, second)?;
    drop(batch);
    link.nothing_more(&cq)
}

/// Starts a poll, which finds a completion.
fn started(cq: &Cq) -> Result<Batch<'_>> {
    let begun = Instant::now();
    loop {
        if let Some(batch) = cq.start()? {
            return Ok(batch);
        }
        ensure!(begun.elapsed() < LIMIT, "no completion within {LIMIT:?}");
        std::thread::yield_now();
    }
}

/// Goes on to the next completion of a poll.
fn next(batch: &mut Batch<'_>) -> Result<()> {
    let begun = Instant::now();
    while !batch.go_on()? {
        ensure!(begun.elapsed() < LIMIT, "no completion within {LIMIT:?}");
        std::thread::yield_now();
    }
    Ok(())
}
