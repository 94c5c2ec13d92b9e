//! What must go wrong does so by the book: status, order, errno and bad_wr.

use anyhow::{Result, ensure};
use verbs_sys::v44::verbs as v;

use super::link::{DEPTH, Link, MAX_SGE, Options};
use super::transfer::{self, Transfer};
use crate::ffi::{Operation, Qp, Recv, Send};

const EINVAL: i32 = libc::EINVAL;
const ENOMEM: i32 = libc::ENOMEM;

/// Runs all of them.
///
/// # Errors
/// At the first that is not as it should be.
pub fn all(options: &Options) -> Result<usize> {
    let tries: [fn(&Link) -> Result<()>; 6] =
        [bad_requests, full_queue, wrong_key, short_receive, flushed_receives, wrong_states];
    for attempt in tries {
        let link = Link::new(options, v::IBV_MTU_1024, transfer::room(1 << 16))?;
        attempt(&link)?;
        works_after_reset(&link)?;
    }
    Ok(tries.len())
}

fn write(link: &Link, wr_id: u64, length: usize) -> Send {
    let right = &link.right.region;
    Send {
        wr_id,
        operation: Operation::Write,
        pieces: vec![link.left.region.piece(0, length)],
        remote: (right.address(), right.rkey()),
        immediate: 0,
        flags: v::IBV_SEND_SIGNALED,
    }
}

fn refused(
    posted: Result<(), (crate::ffi::Failed, usize)>,
    errno: i32,
    index: usize,
) -> Result<()> {
    match posted {
        Err((failed, at)) => {
            ensure!(
                (failed.errno, at) == (errno, index),
                "{failed} at {at}, not {errno} at {index}"
            );
            Ok(())
        }
        Ok(()) => anyhow::bail!("a list was taken whole that should fail at {index}"),
    }
}

/// The third of a list has more SGEs than the QP allows: the first two are done.
fn bad_requests(link: &Link) -> Result<()> {
    let mut list: Vec<Send> = (0..4).map(|id| write(link, id, 100)).collect();
    let allowed = link.left.qp.capabilities.max_send_sge.max(MAX_SGE) as usize;
    list[2].pieces = vec![link.left.region.piece(0, 1); allowed + 1];
    refused(link.left.qp.post_send(&list), EINVAL, 2)?;
    for id in 0..2 {
        let done = link.success(&link.left.send_cq)?;
        ensure!(done.wr_id == id, "{done:?}");
    }
    link.nothing_more(&link.left.send_cq)
}

/// More requests than the queue holds: it takes what fits and names the first that does not.
fn full_queue(link: &Link) -> Result<()> {
    let room = link.left.qp.capabilities.max_send_wr;
    ensure!(room >= DEPTH);
    let mut list: Vec<Send> = (0..=u64::from(room)).map(|id| write(link, id, 8)).collect();
    for request in &mut list {
        // Only the last that fits is signalled, so that the completion queue is wide enough.
        request.flags = if request.wr_id + 1 == u64::from(room) { v::IBV_SEND_SIGNALED } else { 0 };
    }
    // A card that is quick may have made room meanwhile; without a poll it is not to be used.
    refused(link.left.qp.post_send(&list), ENOMEM, room as usize)?;
    let done = link.success(&link.left.send_cq)?;
    ensure!(done.wr_id + 1 == u64::from(room), "{done:?}");
    link.left
        .qp
        .post_send(&list[room as usize - 1..=room as usize - 1])
        .map_err(|(error, _)| error)?;
    link.success(&link.left.send_cq).map(drop)
}

/// A wrong rkey is a remote access error; what follows is flushed in order, signalled or not.
fn wrong_key(link: &Link) -> Result<()> {
    let mut list: Vec<Send> = (0..4).map(|id| write(link, id, 64)).collect();
    list[1].remote.1 ^= 0x0100_0000;
    list[2].flags = 0;
    link.left.qp.post_send(&list).map_err(|(error, _)| error)?;
    let expected = [
        v::IBV_WC_SUCCESS,
        v::IBV_WC_REM_ACCESS_ERR,
        v::IBV_WC_WR_FLUSH_ERR,
        v::IBV_WC_WR_FLUSH_ERR,
    ];
    expect(link, &expected)
}

/// The next completions of the left side's sends, with wr_id counting from 0.
fn expect(link: &Link, expected: &[v::ibv_wc_status]) -> Result<()> {
    for (id, status) in expected.iter().enumerate() {
        let done = link.completion(&link.left.send_cq)?;
        let name = link.library.status_name(done.status);
        ensure!(
            (done.wr_id, done.status) == (id as u64, *status),
            "{name}, not {status}: {done:?}"
        );
    }
    link.nothing_more(&link.left.send_cq)
}

/// A message longer than its receive: a length error there, an invalid request here.
fn short_receive(link: &Link) -> Result<()> {
    let pieces = vec![link.right.region.piece(0, 99)];
    link.right.qp.post_recv(&Recv { wr_id: 5, pieces })?;
    let mut send = write(link, 0, 100);
    send.operation = Operation::Send;
    link.left.qp.post_send(&[send]).map_err(|(error, _)| error)?;
    let received = link.completion(&link.right.receive_cq)?;
    ensure!((received.wr_id, received.status) == (5, v::IBV_WC_LOC_LEN_ERR), "{received:?}");
    expect(link, &[v::IBV_WC_REM_INV_REQ_ERR])
}

/// Receives that wait when the QP fails come back flushed, in order; so do those posted after.
fn flushed_receives(link: &Link) -> Result<()> {
    let receive = |wr_id| Recv { wr_id, pieces: vec![link.right.region.piece(0, 8)] };
    for id in 0..3 {
        link.right.qp.post_recv(&receive(id))?;
    }
    link.right.qp.to(v::IBV_QPS_ERR)?;
    link.right.qp.post_recv(&receive(3))?;
    for id in 0..4 {
        let flushed = link.completion(&link.right.receive_cq)?;
        ensure!((flushed.wr_id, flushed.status) == (id, v::IBV_WC_WR_FLUSH_ERR), "{flushed:?}");
    }
    link.nothing_more(&link.right.receive_cq)
}

/// Sends are taken only from RTS on, receives from INIT on, and states only in their order.
fn wrong_states(link: &Link) -> Result<()> {
    let qp: &Qp = &link.left.qp;
    qp.to(v::IBV_QPS_RESET)?;
    refused(qp.post_send(&[write(link, 0, 8)]), EINVAL, 0)?;
    let jump = qp.to(v::IBV_QPS_RTS);
    ensure!(jump.as_ref().is_err_and(|error| error.errno == EINVAL), "RESET to RTS: {jump:?}");
    Ok(())
}

/// A QP is as new after RESET, and nothing old comes out of its queues.
fn works_after_reset(link: &Link) -> Result<()> {
    for side in [&link.left, &link.right] {
        side.qp.to(v::IBV_QPS_RESET)?;
    }
    link.connect()?;
    let operation = Operation::SendImmediate;
    let transfer = Transfer {
        operation,
        size: 3000,
        gather: 2,
        scatter: 3,
        offset: 1,
        inline: false,
        seed: 3,
    };
    transfer.run(link)
}
