//! Completion queues that are resized while messages go both ways and complete on them.

use anyhow::{Context as _, Result, ensure};
use verbs_sys::current::verbs as v;

use super::link::{ConnectedSides, DEPTH, Options, Side};
use super::transfer;
use crate::ffi::{Cq, Failed, Operation, Recv, Send};

/// Rounds, each of so many messages each way as a QP takes at a time.
const ROUNDS: u64 = 60;
/// Bytes of a message.
const BYTES: usize = 1500;
/// Entries that a queue is given in turn: never fewer than the completions that it can get.
const ENTRIES: [u32; 6] = [64, 1024, 33, 4096, 100, 512];
/// Where messages arrive, behind those that are sent.
const ARRIVED: usize = DEPTH as usize * BYTES;

/// Runs all of it; answers with the number of messages.
///
/// # Errors
/// At the first completion, byte or refusal that is not as it should be.
pub fn all(options: &Options) -> Result<u64> {
    let options = Options { cq_entries: ENTRIES[0], ..options.clone() };
    let link = ConnectedSides::new(&options, v::IBV_MTU_1024, transfer::room(2 * ARRIVED))?;
    refusals(&link.left.send_cq)?;
    for round in 0..ROUNDS {
        one_round(&link, round).with_context(|| format!("round {round}"))?;
    }
    Ok(ROUNDS * u64::from(DEPTH) * 2)
}

/// An impossible size is refused, and leaves the queue as it was.
fn refusals(cq: &Cq) -> Result<()> {
    let before = cq.entries();
    for entries in [0, 1 << 30] {
        let refused: Failed = cq.resize(entries).err().context("it is not refused")?;
        ensure!(refused.errno == libc::EINVAL, "{entries} entries: {refused}");
        ensure!(cq.entries() == before, "{} entries", cq.entries());
    }
    Ok(())
}

fn one_round(link: &ConnectedSides, round: u64) -> Result<()> {
    let sides = [&link.left, &link.right];
    let byte = |side: usize, index: u32| (round as usize * 7 + side * 101 + index as usize) as u8;
    for (number, side) in sides.iter().enumerate() {
        for index in 0..DEPTH {
            let at = index as usize * BYTES;
            side.region.write(at, &[byte(number, index); BYTES]);
            let pieces = vec![side.region.piece(ARRIVED + at, BYTES)];
            side.qp.post_recv(&Recv { wr_id: index.into(), pieces })?;
        }
    }
    // Before, among and behind those that complete, and once more before the rest is polled.
    let first = round as u32 * 5 % DEPTH;
    let mut turn = round as usize;
    for range in [0..first, first..DEPTH] {
        for side in sides {
            post(side, range.clone())?;
        }
        for side in sides {
            for cq in [&side.send_cq, &side.receive_cq] {
                turn += 1;
                resize(cq, ENTRIES[turn % ENTRIES.len()])?;
            }
        }
    }
    for (number, side) in sides.iter().enumerate() {
        for index in 0..DEPTH {
            for (cq, opcode) in
                [(&side.send_cq, v::IBV_WC_SEND), (&side.receive_cq, v::IBV_WC_RECV)]
            {
                let found = link.success(cq)?;
                let told = (found.wr_id, found.opcode, found.qp_num);
                ensure!(told == (index.into(), opcode, side.qp.number()), "{index}: {found:?}");
            }
            let mut bytes = [0; BYTES];
            side.region.read(ARRIVED + index as usize * BYTES, &mut bytes);
            ensure!(bytes == [byte(1 - number, index); BYTES], "message {index} has other bytes");
            // Now and then the rest moves on, too.
            if index % 11 == (round % 11) as u32 {
                turn += 1;
                resize(&side.send_cq, ENTRIES[turn % ENTRIES.len()])?;
            }
        }
        link.nothing_more(&side.send_cq)?;
        link.nothing_more(&side.receive_cq)?;
    }
    Ok(())
}

fn resize(cq: &Cq, entries: u32) -> Result<()> {
    cq.resize(entries)?;
    ensure!(cq.entries() >= entries, "{} entries instead of {entries}", cq.entries());
    Ok(())
}

/// Posts sends, all of them signalled.
fn post(side: &Side, range: std::ops::Range<u32>) -> Result<()> {
    for index in range {
        let send = Send {
            wr_id: index.into(),
            operation: Operation::Send,
            pieces: vec![side.region.piece(index as usize * BYTES, BYTES)],
            remote: (0, 0),
            immediate: 0,
            flags: v::IBV_SEND_SIGNALED,
        };
        if side.qp.is_extended() {
            side.qp.build(&[send], crate::ffi::ListEnd::Complete)?;
        } else {
            side.qp.post_send(&[send]).map_err(|(failed, _)| failed)?;
        }
    }
    Ok(())
}
