//! Errors by the book: status, order, errno and bad_wr.

use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use verbs_sys::current::verbs as v;

use super::link::{ACCESS, ConnectedSides, DEPTH, MAX_SGE, Options, Side};
use super::transfer::{self, Transfer};
use crate::ffi::{
    AsyncEvent, Atomic, AtomicOperation, Context, Operation, Patience, Qp, Recv, Region, Send,
};

const EINVAL: i32 = libc::EINVAL;
const ENOMEM: i32 = libc::ENOMEM;

/// How long an asynchronous event may take.
const EVENT: Duration = Duration::from_secs(30);
/// Tries after "receiver not ready" where no receive is posted: with more than 6 the retries have no end.
const RNR_RETRY: u8 = 2;

/// An attempt that must fail.
struct Try {
    name: &'static str,
    body: fn(&ConnectedSides) -> Result<()>,
    /// How often it is tried where no receive is posted, if not for ever.
    rnr_retry: Option<u8>,
    /// Whether the link can be used again afterwards.
    heals: bool,
    /// Whether it needs atomics.
    atomic: bool,
}

const fn heals(name: &'static str, body: fn(&ConnectedSides) -> Result<()>) -> Try {
    Try { name, body, rnr_retry: None, heals: true, atomic: false }
}

const fn atomic(name: &'static str, body: fn(&ConnectedSides) -> Result<()>) -> Try {
    Try { atomic: true, ..heals(name, body) }
}

const TRIES: [Try; 24] = [
    heals("too many SGEs", bad_requests),
    heals("a full send queue", full_queue),
    heals("a wrong rkey", wrong_key),
    heals("a byte out of bounds", out_of_bounds),
    heals("no right to write", no_right_to_write),
    heals("no right to read", no_right_to_read),
    heals("a QP that gives no right to write", refused_by_qp),
    atomic("no right to atomics", no_right_to_atomics),
    atomic("a QP that gives no right to atomics", atomic_refused_by_qp),
    atomic("an atomic that is not aligned", misaligned_atomic),
    atomic("an atomic without room for its result", atomic_without_room),
    heals("a wrong lkey", wrong_local_key),
    heals("a wrong lkey of a receive", wrong_receive_key),
    heals("a wrong lkey of a receive that no byte is for", unused_receive_key),
    heals("a short receive", short_receive),
    heals("a flush of receives", flushed_receives),
    heals("a flush of sends", flushed_sends),
    heals("wrong states", wrong_states),
    heals("a message before RTS", communication_established),
    Try { heals: false, ..heals("memory that went away here", local_memory_gone) },
    Try { heals: false, ..heals("memory that went away there", remote_memory_gone) },
    Try { rnr_retry: Some(RNR_RETRY), ..heals("no receive", no_receive) },
    heals("a dead peer", dead_peer),
    heals("bystanders", bystanders),
];

/// Runs all of them, but those about memory that goes away where cards pin it, and those about atomics where a card has
/// none; answers how many.
///
/// # Errors
/// At the first that is not as it should be.
pub fn all(options: &Options, pinned: bool) -> Result<usize> {
    let has_atomics = options.have_atomics()?;
    let tries = TRIES.iter().filter(|attempt| attempt.heals || !pinned);
    let tries = tries.filter(|attempt| has_atomics || !attempt.atomic);
    let mut done = 0;
    for attempt in tries {
        let rnr_retry = attempt.rnr_retry.unwrap_or(options.patience.rnr_retry);
        let patience = Patience { rnr_retry, ..options.patience };
        let options = Options { patience, ..options.clone() };
        let link = ConnectedSides::new(&options, v::IBV_MTU_1024, transfer::room(1 << 16))?;
        let outcome = (attempt.body)(&link).and_then(|()| match attempt.heals {
            true => works_after_reset(&link).context("afterwards"),
            false => Ok(()),
        });
        outcome.with_context(|| attempt.name)?;
        done += 1;
    }
    overrun(options).context("a completion queue that overruns")?;
    Ok(done + 1)
}

fn write(link: &ConnectedSides, wr_id: u64, length: usize) -> Send {
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
fn bad_requests(link: &ConnectedSides) -> Result<()> {
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

/// More requests than the queue holds: it takes those that fit and names the first that does not.
fn full_queue(link: &ConnectedSides) -> Result<()> {
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

/// A wrong rkey is a remote access error; later requests are flushed in order, signalled or not.
fn wrong_key(link: &ConnectedSides) -> Result<()> {
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
    expect(link, &expected)?;
    event(&link.right.context, v::IBV_EVENT_QP_ACCESS_ERR, link.right.qp.element())
}

/// Posts a request, which fails with the status; a second one after it is flushed.
fn fails(link: &ConnectedSides, request: Send, status: v::ibv_wc_status) -> Result<()> {
    let second = Send { wr_id: 1, flags: 0, ..write(link, 1, 8) };
    let list = [Send { wr_id: 0, ..request }, second];
    link.left.qp.post_send(&list).map_err(|(error, _)| error)?;
    expect(link, &[status, v::IBV_WC_WR_FLUSH_ERR])
}

/// Waits for an event of a QP or CQ, past those of others.
fn event(context: &Context, kind: v::ibv_event_type, element: usize) -> Result<()> {
    let wanted = AsyncEvent { kind, element };
    loop {
        let event = context.async_event(EVENT).with_context(|| format!("no {wanted:x?}"))?;
        if event == wanted {
            return Ok(());
        }
    }
}

/// A message that ends one byte behind the region, or starts one before it.
fn out_of_bounds(link: &ConnectedSides) -> Result<()> {
    let right = &link.right.region;
    let mut request = write(link, 0, 64);
    request.remote.0 += right.length() as u64 - 63;
    fails(link, request, v::IBV_WC_REM_ACCESS_ERR)?;
    event(&link.right.context, v::IBV_EVENT_QP_ACCESS_ERR, link.right.qp.element())?;
    works_after_reset(link)?;

    let mut request = write(link, 0, 64);
    request.remote.0 -= 1;
    request.operation = Operation::Read;
    fails(link, request, v::IBV_WC_REM_ACCESS_ERR)
}

/// A request for a region with some rights less.
fn without(
    link: &ConnectedSides,
    operation: Operation,
    rights: v::ibv_access_flags,
    length: usize,
) -> Result<()> {
    let region = Region::new(&link.right.pd, 4096, rights, false)?;
    let mut request = write(link, 0, length);
    request.operation = operation;
    request.remote = (region.address(), region.rkey());
    fails(link, request, v::IBV_WC_REM_ACCESS_ERR)?;
    untouched(&region)
}

fn no_right_to_write(link: &ConnectedSides) -> Result<()> {
    let rights = v::IBV_ACCESS_LOCAL_WRITE | v::IBV_ACCESS_REMOTE_READ;
    link.left.region.write(0, &[7; 64]);
    without(link, Operation::Write, rights, 64)
}

fn no_right_to_read(link: &ConnectedSides) -> Result<()> {
    let rights = v::IBV_ACCESS_LOCAL_WRITE | v::IBV_ACCESS_REMOTE_WRITE;
    without(link, Operation::Read, rights, 64)
}

/// A QP whose peer may not write at all takes a WRITE for an invalid request, and says so: no
/// completion of its own would.
fn refused_by_qp(link: &ConnectedSides) -> Result<()> {
    link.half_connect(v::IBV_ACCESS_LOCAL_WRITE)?;
    fails(link, write(link, 0, 64), v::IBV_WC_REM_INV_REQ_ERR)?;
    event(&link.right.context, v::IBV_EVENT_QP_REQ_ERR, link.right.qp.element())
}

/// An addition of one.
fn add(link: &ConnectedSides, remote: (u64, u32)) -> Atomic {
    let (wr_id, operation) = (0, AtomicOperation::FetchAdd { add: 1 });
    Atomic { wr_id, operation, result: vec![link.left.region.piece(0, 8)], remote }
}

/// Posts an atomic, which fails with the status; a request after it is flushed.
fn atomic_fails(link: &ConnectedSides, request: &Atomic, status: v::ibv_wc_status) -> Result<()> {
    link.left.qp.post_atomic(request)?;
    let second = Send { flags: 0, ..write(link, 1, 8) };
    link.left.qp.post_send(&[second]).map_err(|(error, _)| error)?;
    expect(link, &[status, v::IBV_WC_WR_FLUSH_ERR])
}

/// Both QPs anew, of which the right one allows atomics, and memory there with these rights.
fn for_atomics(link: &ConnectedSides, rights: v::ibv_access_flags) -> Result<Rc<Region>> {
    link.half_connect(ACCESS | v::IBV_ACCESS_REMOTE_ATOMIC)?;
    Ok(Region::new(&link.right.pd, 4096, rights, false)?)
}

fn untouched(region: &Region) -> Result<()> {
    let mut bytes = [0xff; 4096];
    region.read(0, &mut bytes);
    ensure!(bytes == [0; 4096], "the region was written to");
    Ok(())
}

fn no_right_to_atomics(link: &ConnectedSides) -> Result<()> {
    let region = for_atomics(link, ACCESS)?;
    let request = add(link, (region.address(), region.rkey()));
    atomic_fails(link, &request, v::IBV_WC_REM_ACCESS_ERR)?;
    event(&link.right.context, v::IBV_EVENT_QP_ACCESS_ERR, link.right.qp.element())?;
    untouched(&region)
}

fn atomic_refused_by_qp(link: &ConnectedSides) -> Result<()> {
    let region = for_atomics(link, ACCESS | v::IBV_ACCESS_REMOTE_ATOMIC)?;
    link.half_connect(ACCESS)?;
    let request = add(link, (region.address(), region.rkey()));
    atomic_fails(link, &request, v::IBV_WC_REM_INV_REQ_ERR)?;
    event(&link.right.context, v::IBV_EVENT_QP_REQ_ERR, link.right.qp.element())?;
    untouched(&region)
}

fn misaligned_atomic(link: &ConnectedSides) -> Result<()> {
    let region = for_atomics(link, ACCESS | v::IBV_ACCESS_REMOTE_ATOMIC)?;
    let request = add(link, (region.address() + 4, region.rkey()));
    atomic_fails(link, &request, v::IBV_WC_REM_INV_REQ_ERR)?;
    event(&link.right.context, v::IBV_EVENT_QP_REQ_ERR, link.right.qp.element())?;
    untouched(&region)
}

fn atomic_without_room(link: &ConnectedSides) -> Result<()> {
    let region = for_atomics(link, ACCESS | v::IBV_ACCESS_REMOTE_ATOMIC)?;
    let mut request = add(link, (region.address(), region.rkey()));
    request.result = vec![link.left.region.piece(0, 8); 2];
    refused(link.left.qp.post_atomic(&request).map_err(|failed| (failed, 0)), EINVAL, 0)?;
    request.result = vec![link.left.region.piece(0, 7)];
    atomic_fails(link, &request, v::IBV_WC_LOC_LEN_ERR)?;
    untouched(&region)
}

fn wrong_local_key(link: &ConnectedSides) -> Result<()> {
    let mut request = write(link, 0, 64);
    request.pieces = vec![link.left.region.piece(0, 64).with_wrong_key()];
    fails(link, request, v::IBV_WC_LOC_PROT_ERR)
}

/// The receive fails for its own key, the sender hears of an operational error.
fn wrong_receive_key(link: &ConnectedSides) -> Result<()> {
    let pieces = vec![link.right.region.piece(0, 64).with_wrong_key()];
    link.right.qp.post_recv(&Recv { wr_id: 5, pieces })?;
    let request = Send { operation: Operation::Send, ..write(link, 0, 64) };
    fails(link, request, v::IBV_WC_REM_OP_ERR)?;
    let received = link.completion(&link.right.receive_cq)?;
    ensure!((received.wr_id, received.status) == (5, v::IBV_WC_LOC_PROT_ERR), "{received:?}");
    Ok(())
}

/// A message that brings no bytes does not look at where they would go.
fn unused_receive_key(link: &ConnectedSides) -> Result<()> {
    let region = &link.left.region;
    let (send, immediate) = (Operation::Send, Operation::WriteImmediate);
    for (operation, pieces) in [(send, vec![]), (immediate, vec![region.piece(0, 64)])] {
        let wrong = vec![link.right.region.piece(0, 64).with_wrong_key()];
        link.right.qp.post_recv(&Recv { wr_id: 5, pieces: wrong })?;
        let request = Send { operation, pieces, ..write(link, 0, 64) };
        link.left.qp.post_send(&[request]).map_err(|(error, _)| error)?;
        link.success(&link.left.send_cq)?;
        let received = link.success(&link.right.receive_cq)?;
        ensure!(received.wr_id == 5, "{received:?}");
    }
    Ok(())
}

fn local_memory_gone(link: &ConnectedSides) -> Result<()> {
    link.left.region.take_away()?;
    fails(link, write(link, 0, 64), v::IBV_WC_LOC_PROT_ERR)
}

fn remote_memory_gone(link: &ConnectedSides) -> Result<()> {
    link.right.region.take_away()?;
    fails(link, write(link, 0, 64), v::IBV_WC_REM_OP_ERR)?;
    event(&link.right.context, v::IBV_EVENT_QP_FATAL, link.right.qp.element())
}

/// No receive is posted.
fn no_receive(link: &ConnectedSides) -> Result<()> {
    let request = Send { operation: Operation::Send, ..write(link, 0, 64) };
    fails(link, request, v::IBV_WC_RNR_RETRY_EXC_ERR)
}

/// A peer that stops answering is given up. (When, the simulations of the stack see, whose time is their own.)
fn dead_peer(link: &ConnectedSides) -> Result<()> {
    link.right.qp.to(v::IBV_QPS_RESET)?;
    fails(link, write(link, 0, 64), v::IBV_WC_RETRY_EXC_ERR)
}

/// Messages are received in RTR already, and the first is told of.
fn communication_established(link: &ConnectedSides) -> Result<()> {
    link.half_connect(ACCESS)?;
    let pieces = vec![link.right.region.piece(0, 64)];
    link.right.qp.post_recv(&Recv { wr_id: 5, pieces })?;
    let send = Send { operation: Operation::Send, ..write(link, 0, 64) };
    link.left.qp.post_send(&[send]).map_err(|(error, _)| error)?;
    link.success(&link.right.receive_cq)?;
    link.success(&link.left.send_cq)?;
    event(&link.right.context, v::IBV_EVENT_COMM_EST, link.right.qp.element())?;
    link.finish()
}

/// Sends that wait for a peer are flushed in order when their QP is moved to ERR, and so are those
/// posted after.
fn flushed_sends(link: &ConnectedSides) -> Result<()> {
    link.right.qp.to(v::IBV_QPS_RESET)?;
    let mut list: Vec<Send> = (0..6).map(|id| write(link, id, 64)).collect();
    list[1].flags = 0;
    let late = list.split_off(4);
    link.left.qp.post_send(&list).map_err(|(error, _)| error)?;
    link.left.qp.to(v::IBV_QPS_ERR)?;
    link.left.qp.post_send(&late).map_err(|(error, _)| error)?;
    expect(link, &[v::IBV_WC_WR_FLUSH_ERR; 6])
}

/// The error of one QP is none of another's.
fn bystanders(link: &ConnectedSides) -> Result<()> {
    let other = ConnectedSides::new(link.options(), v::IBV_MTU_1024, transfer::room(1 << 16))?;
    wrong_key(link)?;
    carries_data(&other)
}

/// More completions than the queue holds, of which none is polled, break it and its QP.
fn overrun(options: &Options) -> Result<()> {
    let options = Options { cq_entries: 1, ..options.clone() };
    let link = ConnectedSides::new(&options, v::IBV_MTU_1024, transfer::room(1 << 16))?;
    let entries = u64::from(link.left.send_cq.entries());
    ensure!(entries < u64::from(DEPTH), "a CQ of {entries} entries cannot be overrun by one QP");
    let list: Vec<Send> = (0..=entries).map(|id| write(&link, id, 8)).collect();
    link.left.qp.post_send(&list).map_err(|(error, _)| error)?;
    let Side { context, qp, .. } = &link.left;
    event(context, v::IBV_EVENT_CQ_ERR, link.left.send_cq.element())?;
    event(context, v::IBV_EVENT_QP_FATAL, qp.element())?;
    ensure!(qp.query()?.qp_state == v::IBV_QPS_ERR, "its QP goes on");
    overrun_by_receives(&options)
}

/// A peer hears of no success that the receiver's queue has lost.
fn overrun_by_receives(options: &Options) -> Result<()> {
    let link = ConnectedSides::new(options, v::IBV_MTU_1024, transfer::room(1 << 16))?;
    let right = &link.right;
    let entries = u64::from(right.receive_cq.entries());
    for wr_id in 0..entries + 3 {
        right.qp.post_recv(&Recv { wr_id, pieces: vec![right.region.piece(0, 8)] })?;
    }
    let mut arrived = 0;
    let refused = loop {
        let send = Send { operation: Operation::Send, ..write(&link, arrived, 8) };
        link.left.qp.post_send(&[send]).map_err(|(error, _)| error)?;
        let done = link.completion(&link.left.send_cq)?;
        if done.status != v::IBV_WC_SUCCESS {
            break done;
        }
        arrived += 1;
        ensure!(arrived <= entries, "{arrived} arrive, {entries} are told of");
    };
    ensure!(arrived >= entries, "{refused:?} with room for {entries}");
    ensure!(refused.status == v::IBV_WC_REM_OP_ERR, "{refused:?}");
    event(&right.context, v::IBV_EVENT_CQ_ERR, right.receive_cq.element())?;
    event(&right.context, v::IBV_EVENT_QP_FATAL, right.qp.element())?;
    for id in 0..entries {
        let received = link.completion(&right.receive_cq)?;
        ensure!((received.wr_id, received.status) == (id, v::IBV_WC_SUCCESS), "{received:?}");
    }
    link.nothing_more(&right.receive_cq)
}

/// The next completions of the left side's sends, with wr_id counting from 0.
fn expect(link: &ConnectedSides, expected: &[v::ibv_wc_status]) -> Result<()> {
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
fn short_receive(link: &ConnectedSides) -> Result<()> {
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
fn flushed_receives(link: &ConnectedSides) -> Result<()> {
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
fn wrong_states(link: &ConnectedSides) -> Result<()> {
    let qp: &Qp = &link.left.qp;
    qp.to(v::IBV_QPS_RESET)?;
    refused(qp.post_send(&[write(link, 0, 8)]), EINVAL, 0)?;
    let jump = qp.to(v::IBV_QPS_RTS);
    ensure!(jump.as_ref().is_err_and(|error| error.errno == EINVAL), "RESET to RTS: {jump:?}");
    Ok(())
}

/// A QP is as new after RESET, and nothing old comes out of its queues.
fn works_after_reset(link: &ConnectedSides) -> Result<()> {
    for side in [&link.left, &link.right] {
        side.qp.to(v::IBV_QPS_RESET)?;
    }
    link.connect()?;
    carries_data(link)
}

/// A message with everything that can be checked.
fn carries_data(link: &ConnectedSides) -> Result<()> {
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
