//! Null memory regions: zeros come out of them, nothing that goes in is kept, and no peer reaches them.

use std::rc::Rc;

use anyhow::{Context as _, Result, ensure};
use verbs_sys::current::verbs as v;

use super::link::{ConnectedSides, Options};
use super::transfer;
use crate::ffi::{Failed, NullRegion, Operation, Piece, Recv, Region, Send};

/// Bytes of a message: a part before that of the null region, that, and one behind.
const PARTS: [usize; 3] = [100, 5000, 33];
const BYTES: usize = PARTS[0] + PARTS[1] + PARTS[2];
/// Where in the null region a piece begins.
const ADDRESSES: [u64; 4] = [0, 1, 0x7fff_dead_beef, u64::MAX - 1 - PARTS[1] as u64];

/// Runs all of it; answers with the number of messages.
///
/// # Errors
/// At the first byte, completion or refusal that is not as it should be.
pub fn all(options: &Options) -> Result<usize> {
    let mut link = ConnectedSides::new(options, v::IBV_MTU_1024, transfer::room(2 * BYTES))?;
    let mut count = 0;
    for at in ADDRESSES {
        for operation in [Operation::Send, Operation::Write, Operation::Read] {
            for left in [false, true] {
                // A peer's memory has no pieces.
                if !left && operation != Operation::Send {
                    continue;
                }
                message(&link, operation, at, left)
                    .with_context(|| format!("{operation:?} at {at:#x}, left: {left}"))?;
                count += 1;
            }
        }
    }
    refusals(&mut link)?;
    Ok(count)
}

/// The pieces of a message of which the middle is of a null region.
fn pieces(region: &Rc<Region>, null: &Rc<NullRegion>, at: u64) -> Vec<Piece> {
    let [before, middle, behind] = PARTS;
    vec![
        region.piece(0, before),
        null.piece(at, middle as u32),
        region.piece(before + middle, behind),
    ]
}

/// A message that one side has in pieces, the left one or the right one.
fn message(link: &ConnectedSides, operation: Operation, at: u64, left: bool) -> Result<()> {
    let sides = [&link.left, &link.right];
    let [ours, theirs] = [0x11, 0x22].map(|byte| [byte; BYTES]);
    let whole = |side: usize| vec![sides[side].region.piece(0, BYTES)];
    let number = usize::from(!left);
    let null = NullRegion::new(&sides[number].pd)?;
    let broken = pieces(&sides[number].region, &null, at);
    sides[0].region.write(0, &ours);
    sides[1].region.write(0, &theirs);
    let (local, receive) = if left { (broken, whole(1)) } else { (whole(0), broken) };
    if operation == Operation::Send {
        link.right.qp.post_recv(&Recv { wr_id: 1, pieces: receive })?;
    }
    let request = Send { pieces: local, ..link.request(2, operation, BYTES) };
    link.left.qp.post_send(&[request]).map_err(|(failed, _)| failed)?;
    link.success(&link.left.send_cq)?;
    if operation == Operation::Send {
        let received = link.success(&link.right.receive_cq)?;
        ensure!(received.byte_len as usize == BYTES, "{received:?}");
    }
    let found = sides.map(|side| {
        let mut found = [0; BYTES];
        side.region.read(0, &mut found);
        found
    });
    // Where it arrives the middle is zeros, if it was sent from there, and as before, if it was lost there.
    let (into, sent, before) = match operation {
        Operation::Read => (0, theirs, ours),
        _ => (1, ours, theirs),
    };
    let mut wanted = sent;
    let middle = PARTS[0]..PARTS[0] + PARTS[1];
    let lost = operation == Operation::Read || !left;
    wanted[middle.clone()].copy_from_slice(match lost {
        true => &before[middle],
        false => &[0; PARTS[1]],
    });
    ensure!(found[into] == wanted, "other bytes arrived");
    ensure!(found[1 - into] == sent, "bytes of where it came from");
    Ok(())
}

/// Tries operations that a null region does not allow.
fn refusals(link: &mut ConnectedSides) -> Result<()> {
    let null = NullRegion::new(&link.right.pd)?;
    let refused: Failed = null.rereg().err().context("it is changed")?;
    ensure!([libc::EINVAL, libc::EOPNOTSUPP].contains(&refused.errno), "{refused}");
    for operation in [Operation::Write, Operation::Read] {
        let request = Send {
            wr_id: 3,
            operation,
            pieces: vec![link.left.region.piece(0, 8)],
            remote: (0, null.lkey()),
            immediate: 0,
            flags: v::IBV_SEND_SIGNALED,
        };
        link.left.qp.post_send(&[request]).map_err(|(failed, _)| failed)?;
        let ended = link.completion(&link.left.send_cq)?;
        ensure!(ended.status == v::IBV_WC_REM_ACCESS_ERR, "a peer's {operation:?}: {ended:?}");
        link.half_connect(super::link::ACCESS)?;
        link.finish()?;
    }
    // One that is gone is no key any more.
    let gone = NullRegion::new(&link.left.pd)?;
    let lkey = gone.lkey();
    drop(gone);
    let region = &link.left.region;
    let pieces = vec![region.piece(0, 8).with_key(lkey)];
    let request = Send { pieces, ..link.request(4, Operation::Write, 8) };
    link.left.qp.post_send(&[request]).map_err(|(failed, _)| failed)?;
    let ended = link.completion(&link.left.send_cq)?;
    ensure!(ended.status == v::IBV_WC_LOC_PROT_ERR, "after its end: {ended:?}");
    Ok(())
}
