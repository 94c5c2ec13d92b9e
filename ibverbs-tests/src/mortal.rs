//! The modes of `verbs-mortal`: verbs programs that are killed, or see others die, and check all rules.
//!
//! Each prints its progress on standard output, one word a line, so that the case that started it knows when to strike.
//! Its exit code tells what it saw: [`STOPPED`], [`CARD_DIED`] or [`PEER_GONE`].

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use verbs_sys::current::verbs as v;

use crate::data::link::{ConnectedSides, DEPTH, Options, Side};
use crate::ffi::{Completion, Context, Cq, Operation, Patience, Recv, Send, Service};

pub mod attack;
pub mod channels;
pub mod copies;
pub mod death;
pub mod fork;
pub mod hand;
pub mod pair;
pub mod work;

/// Exit code: it was asked to stop, and all its data was right.
pub const STOPPED: u8 = 0;
/// Exit code: the card died, and everything outstanding came back as it should.
pub const CARD_DIED: u8 = 3;
/// Exit code: the peer is gone, and everything outstanding came back as it should.
pub const PEER_GONE: u8 = 4;

/// How long anything may take that is bound to come.
pub const LIMIT: Duration = Duration::from_secs(60);
/// How long a death is waited for, which comes when everything else is ready.
pub const DEATH: Duration = Duration::from_secs(100);
/// With a peer that may go: eight tries of 67 ms are little to wait for.
const IMPATIENT: Patience = Patience { timeout: 14, retry_cnt: 7, rnr_retry: 7 };
/// With a peer that stays: eight tries of 1.07 s are more than a busy machine keeps a card waiting.
const PATIENT: Patience = Patience { timeout: 18, ..IMPATIENT };

/// Says how far the program is.
pub fn say(word: &str) {
    use std::io::Write as _;
    let mut out = std::io::stdout();
    // Whoever does not listen does not strike either.
    let _ = writeln!(out, "{word}").and_then(|()| out.flush());
}

/// A link between the two cards, with completion channels or without.
fn options(events: bool, patience: Patience) -> Options {
    Options {
        devices: ["balboa0".into(), "balboa1".into()],
        gid_index: 1,
        events,
        thread_domain: false,
        extended: None,
        service: Service::Reliable,
        cq_entries: 2 * DEPTH,
        patience,
    }
}

/// A link with regions of `room` bytes.
fn linked(events: bool, room: usize) -> Result<ConnectedSides> {
    ConnectedSides::new(&options(events, PATIENT), v::IBV_MTU_4096, room)
}

/// A signalled SEND of a side's first bytes.
fn send(side: &Side, wr_id: u64) -> Send {
    Send {
        wr_id,
        operation: Operation::Send,
        pieces: vec![side.region.piece(0, 64)],
        remote: (0, 0),
        immediate: 0,
        flags: v::IBV_SEND_SIGNALED,
    }
}

/// Posts sends that no receive waits for, and receives that nothing is sent to: they stay.
fn leave_outstanding(side: &Side, count: u64) -> Result<()> {
    for wr_id in 0..count {
        side.qp.post_recv(&Recv { wr_id, pieces: vec![side.region.piece(0, 64)] })?;
        side.qp.post_send(&[send(side, wr_id)]).map_err(|(failed, _)| failed)?;
    }
    Ok(())
}

/// Checks that exactly these work requests come back flushed, in order, each within that time.
fn flushed(cq: &Cq, count: u64, limit: Duration) -> Result<()> {
    for wr_id in 0..count {
        let done = next(cq, limit)?;
        let found = (done.wr_id, done.status);
        ensure!(found == (wr_id, v::IBV_WC_WR_FLUSH_ERR), "expected {wr_id} flushed: {done:?}");
    }
    let more = cq.poll()?;
    ensure!(more.is_none(), "a completion too many: {more:?}");
    Ok(())
}

/// The next completion, by polling.
fn next(cq: &Cq, limit: Duration) -> Result<Completion> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(done) = cq.poll()? {
            return Ok(done);
        }
        ensure!(Instant::now() < deadline, "no completion within {limit:?}");
        std::thread::yield_now();
    }
}

/// Checks that a side of a dead card takes nothing more, and that its program is told.
fn is_dead(side: &Side) -> Result<()> {
    // Of two cards the other may die later.
    told_of_death(&side.context)?;
    takes_nothing(side)
}

/// Checks that a side of a dead card takes nothing more.
fn takes_nothing(side: &Side) -> Result<()> {
    let refused = side.qp.post_send(&[send(side, 0)]);
    let errno = refused.as_ref().err().map(|(failed, _)| failed.errno);
    ensure!(errno == Some(libc::EIO), "posting a send on a dead card: {refused:?}");
    let refused = side.qp.post_recv(&Recv { wr_id: 0, pieces: vec![side.region.piece(0, 8)] });
    let errno = refused.as_ref().err().map(|failed| failed.errno);
    ensure!(errno == Some(libc::EIO), "posting a receive on a dead card: {refused:?}");
    let armed = side.send_cq.arm();
    ensure!(armed.as_ref().is_err_and(|it| it.errno == libc::EIO), "arming: {armed:?}");
    Ok(())
}

/// Checks that a context's next event, past those of QPs and ports, is the death of the device.
fn told_of_death(context: &Context) -> Result<()> {
    loop {
        match context.async_event(LIMIT)?.kind {
            v::IBV_EVENT_DEVICE_FATAL => return Ok(()),
            v::IBV_EVENT_COMM_EST | v::IBV_EVENT_QP_FATAL => {}
            other => bail!("asynchronous event {other} on a dead card"),
        }
    }
}

/// Whether this program is to go on: the file that stops it is not there.
fn is_wanted(stop: &Path) -> bool {
    !stop.exists()
}
