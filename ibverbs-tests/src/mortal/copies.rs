//! Registered memory that a forked child writes as its parent does: each has pages of its own from the first byte on
//! that either writes, and a card accesses the parent's.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use anyhow::{Context as _, Result, ensure};
use nix::unistd::alarm;
use verbs_sys::current::verbs as v;

use super::fork::{HANGS, code, good};
use super::linked;
use crate::data::link::{ConnectedSides, Side, becomes};
use crate::ffi::{Operation, Recv, Send, in_child};

/// Bytes of a transfer: pages, and parts of pages.
const BYTES: usize = 5 * 4096 + 77;
/// Where it begins in its region.
const START: usize = 333;
/// Rounds, of each order of writing with each operation as often.
const ROUNDS: u64 = 54;

/// The processes that write to the memory after a fork, before the transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writers {
    /// Neither: the card is the first.
    Neither,
    /// The child.
    Child,
    /// The child, and the parent behind it.
    Both,
}

/// Transfers bytes in one process while a child has, and may write, the same memory: the parent's arrive, and nothing is
/// changed in the child.
///
/// # Errors
/// When a byte is another one.
pub fn copies() -> Result<()> {
    let link = linked(false, START + BYTES + 4096)?;
    for round in 0..ROUNDS {
        let writers = [Writers::Neither, Writers::Child, Writers::Both][round as usize % 3];
        let operation =
            [Operation::Write, Operation::Read, Operation::Send][round as usize / 3 % 3];
        one_round(&link, round, writers, operation)
            .with_context(|| format!("round {round}: {operation:?}, {writers:?} wrote"))?;
    }
    println!("{ROUNDS} transfers beside a child that had the same memory");
    Ok(())
}

/// The bytes of one process in one region in a round.
fn bytes(round: u64, who: u64) -> Vec<u8> {
    (0..BYTES as u64).map(|at| (at * 31 + round * 7 + who * 101) as u8).collect()
}

fn holds(side: &Side, wanted: &[u8]) -> Result<()> {
    let mut found = vec![0; BYTES];
    side.region.read(START, &mut found);
    let differs = found.iter().zip(wanted).position(|(found, wanted)| found != wanted);
    ensure!(differs.is_none(), "byte {differs:?} is another one");
    Ok(())
}

fn one_round(
    link: &ConnectedSides,
    round: u64,
    writers: Writers,
    operation: Operation,
) -> Result<()> {
    let (left, right) = (&link.left, &link.right);
    // From where to where it goes.
    let (from, to) = if operation == Operation::Read { (right, left) } else { (left, right) };
    from.region.write(START, &bytes(round, 0));
    to.region.write(START, &bytes(round, 1));
    let (mut ours, theirs) = UnixStream::pair()?;
    let child = in_child(|| {
        alarm::set(HANGS);
        code(child(theirs, [from, to], round, writers))
    })?;
    ours.read_exact(&mut [0]).context("the child failed")?;
    let sent = if writers == Writers::Both { 4 } else { 0 };
    if writers == Writers::Both {
        from.region.write(START, &bytes(round, sent));
        to.region.write(START, &bytes(round, 5));
    }
    transfer(link, operation)?;
    if operation == Operation::Send {
        link.success(&right.receive_cq)?;
    }
    link.success(&left.send_cq)?;
    // A published card acknowledges bytes that land a moment later.
    let mut whole = vec![0; START];
    to.region.read(0, &mut whole);
    whole.extend(bytes(round, sent));
    becomes(&to.region, &whole)?;
    holds(from, &bytes(round, sent)).context("where it came from")?;
    ours.write_all(&[0])?;
    good(child).context("what the child has")
}

/// Writes, if it is one of the writers, waits for the transfer, and finds its bytes unchanged.
fn child(mut parent: UnixStream, sides: [&Side; 2], round: u64, writers: Writers) -> Result<()> {
    let first = if writers == Writers::Neither { 0 } else { 2 };
    for (side, number) in sides.iter().zip(0..) {
        holds(side, &bytes(round, number)).context("of the parent's")?;
        if writers != Writers::Neither {
            side.region.write(START, &bytes(round, first + number));
        }
    }
    parent.write_all(&[0])?;
    parent.read_exact(&mut [0])?;
    for (side, number) in sides.iter().zip(0..) {
        holds(side, &bytes(round, first + number)).context("after the transfer")?;
    }
    Ok(())
}

fn transfer(link: &ConnectedSides, operation: Operation) -> Result<()> {
    let (left, right) = (&link.left, &link.right);
    if operation == Operation::Send {
        let pieces = vec![right.region.piece(START, BYTES)];
        right.qp.post_recv(&Recv { wr_id: 1, pieces })?;
    }
    let request = Send {
        wr_id: 1,
        operation,
        pieces: vec![left.region.piece(START, BYTES)],
        remote: (right.region.address() + START as u64, right.region.rkey()),
        immediate: 0,
        flags: v::IBV_SEND_SIGNALED,
    };
    left.qp.post_send(&[request]).map_err(|(failed, _)| failed.into())
}
