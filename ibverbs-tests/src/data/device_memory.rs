//! Memory of the devices' own: bytes that go in and out of it by copies, and by messages of every kind.

use std::rc::Rc;

use anyhow::{Context as _, Result, ensure};
use verbs_sys::current::verbs as v;

use super::link::{ACCESS, ConnectedSides, Options, Side};
use super::transfer;
use crate::ffi::{
    Atomic, AtomicOperation, Dm, DmRegion, Failed, Operation, Piece, Recv, Region, Send,
};

/// Bytes of each part, more than pass at a time.
const BYTES: usize = 150_000;
/// Ranges of it that messages are of: first byte, bytes.
const RANGES: [(usize, usize); 6] =
    [(0, 1), (63, 2), (1, 4096), (4095, 70_000), (100_000, 50_000), (0, BYTES)];
const RIGHTS: v::ibv_access_flags = ACCESS | v::IBV_ACCESS_REMOTE_ATOMIC | v::IBV_ACCESS_ZERO_BASED;

/// A side with a part of its device's memory.
struct Own<'a> {
    side: &'a Side,
    dm: Rc<Dm>,
    /// All of the part.
    region: Rc<DmRegion>,
    /// A region of the program's memory, as large.
    host: Rc<Region>,
}

/// Runs all of it; answers with the number of messages.
///
/// # Errors
/// At the first byte or refusal that is not as it should be.
pub fn all(options: &Options) -> Result<usize> {
    let link = ConnectedSides::new(options, v::IBV_MTU_1024, transfer::room(4096))?;
    refusals(&link.left)?;
    let (left, right) = (Own::new(&link.left)?, Own::new(&link.right)?);
    copies(&left.dm)?;
    let mut count = 0;
    for (number, range) in RANGES.into_iter().enumerate() {
        for operation in [Operation::Send, Operation::Write, Operation::Read] {
            let seed = (number * 5) as u8;
            message(&link, operation, range, (&left, &right), seed)
                .with_context(|| format!("{operation:?} of {range:?}"))?;
            count += 3;
        }
    }
    atomics(&link, &left, &right)?;
    Ok(count)
}

impl<'a> Own<'a> {
    fn new(side: &'a Side) -> Result<Self> {
        let dm = Dm::new(&side.context, BYTES, 4)?;
        let region = dm.register(&side.pd, (0, BYTES), RIGHTS)?;
        let host = Region::new(&side.pd, BYTES, ACCESS, false)?;
        Ok(Self { side, dm, region, host })
    }
}

fn refused<T>(outcome: Result<T>, errno: i32) -> Result<()> {
    let found = outcome.err().context("it is not refused")?.downcast::<Failed>()?;
    ensure!(found.errno == errno, "refused otherwise: {found}");
    Ok(())
}

/// Tries device memory that cannot be had or reached.
fn refusals(side: &Side) -> Result<()> {
    let most = usize::try_from(side.context.extended_attributes()?.max_dm_size)?;
    ensure!(most >= BYTES, "max_dm_size is {most}");
    refused(Dm::new(&side.context, most + 1, 0), libc::EINVAL)?;
    refused(Dm::new(&side.context, 0, 0), libc::EINVAL)?;
    refused(Dm::new(&side.context, 64, 40), libc::EINVAL)?;
    let dm = Dm::new(&side.context, 100, 0)?;
    ensure!(dm.read(0, 100)? == [0; 100], "it is not zero");
    refused(dm.write(96, &[0; 5]).map_err(Into::into), libc::EINVAL)?;
    refused(dm.write(0, &[1]).map_err(Into::into), libc::EINVAL)?;
    refused(dm.write(2, &[0; 4]).map_err(Into::into), libc::EINVAL)?;
    refused(dm.read(u64::MAX - 3, 4).map_err(Into::into), libc::EINVAL)?;
    refused(dm.register(&side.pd, (1, 100), RIGHTS), libc::EINVAL)?;
    refused(dm.register(&side.pd, (0, 100), ACCESS), libc::EINVAL)?;
    let region = dm.register(&side.pd, (0, 100), RIGHTS)?;
    refused(dm.free().map_err(Into::into), libc::EBUSY)?;
    drop(region);
    // All that there is for one program, and it comes back.
    for _ in 0..3 {
        let mut parts = Vec::new();
        while let Ok(part) = Dm::new(&side.context, most, 0) {
            parts.push(part);
        }
        ensure!(!parts.is_empty(), "not even one");
        refused(Dm::new(&side.context, most, 0), libc::ENOMEM)?;
    }
    Ok(())
}

/// A byte of a pattern.
fn pattern(seed: u8, index: usize) -> u8 {
    (index.wrapping_mul(31) >> 3) as u8 ^ seed ^ index as u8
}

fn bytes(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|index| pattern(seed, index)).collect()
}

/// Writes and reads device memory by copies alone.
fn copies(dm: &Dm) -> Result<()> {
    let mut truth = vec![0; BYTES];
    for (number, (offset, length)) in RANGES.into_iter().enumerate().rev() {
        let (offset, length) = (offset & !3, length & !3);
        let new = bytes(number as u8, length);
        truth[offset..offset + length].copy_from_slice(&new);
        dm.write(offset as u64, &new)?;
        ensure!(dm.read(offset as u64, length)? == new, "{offset} + {length}");
        ensure!(dm.read(0, BYTES)? == truth, "bytes beside {offset} + {length}");
    }
    Ok(())
}

/// One message from device memory to device memory, from there to the host's, and from that to there.
fn message(
    link: &ConnectedSides,
    operation: Operation,
    (offset, length): (usize, usize),
    (left, right): (&Own<'_>, &Own<'_>),
    seed: u8,
) -> Result<()> {
    let (from, to) = if operation == Operation::Read { (right, left) } else { (left, right) };
    for (turn, (of_device, to_device)) in
        [(true, true), (true, false), (false, true)].into_iter().enumerate()
    {
        let seed = seed.wrapping_add(turn as u8);
        let sent = bytes(seed, length);
        let guard = vec![!seed; BYTES];
        if of_device {
            let mut all = vec![0x77; BYTES];
            all[offset..offset + length].copy_from_slice(&sent);
            from.dm.write(0, &all)?;
        } else {
            from.host.write(offset, &sent);
        }
        if to_device {
            to.dm.write(0, &guard)?;
        } else {
            to.host.write(0, &guard);
        }
        let piece = |own: &Own<'_>, device: bool| -> Piece {
            if device { own.region.piece(offset, length) } else { own.host.piece(offset, length) }
        };
        let (near, far_is_device) = match operation {
            Operation::Read => (piece(left, to_device), of_device),
            _ => (piece(left, of_device), to_device),
        };
        if operation == Operation::Send {
            let pieces = vec![piece(right, to_device)];
            right.side.qp.post_recv(&Recv { wr_id: 7, pieces })?;
        }
        let remote = match far_is_device {
            true => (offset as u64, right.region.rkey()),
            false => (right.host.address() + offset as u64, right.host.rkey()),
        };
        let flags = v::IBV_SEND_SIGNALED;
        let send = Send { wr_id: 8, operation, pieces: vec![near], remote, immediate: 0, flags };
        left.side.qp.post_send(&[send]).map_err(|(failed, _)| failed)?;
        ensure!(link.success(&left.side.send_cq)?.wr_id == 8);
        if operation == Operation::Send {
            ensure!(link.success(&right.side.receive_cq)?.byte_len as usize == length);
        }
        let mut wanted = guard;
        wanted[offset..offset + length].copy_from_slice(&sent);
        let mut found = vec![0; BYTES];
        if to_device {
            found = to.dm.read(0, BYTES)?;
        } else {
            to.host.read(0, &mut found);
        }
        ensure!(found == wanted, "other bytes arrived, or beside them (turn {turn})");
    }
    Ok(())
}

/// Atomics on a word of a device's memory, whose results go to another's.
fn atomics(link: &ConnectedSides, left: &Own<'_>, right: &Own<'_>) -> Result<()> {
    link.half_connect(ACCESS | v::IBV_ACCESS_REMOTE_ATOMIC)?;
    link.finish()?;
    right.dm.write(4096, &1000u64.to_ne_bytes())?;
    for round in 0..20u64 {
        left.side.qp.post_atomic(&Atomic {
            wr_id: round,
            operation: AtomicOperation::FetchAdd { add: 3 },
            result: vec![left.region.piece(64, 8)],
            remote: (4096, right.region.rkey()),
        })?;
        ensure!(link.success(&left.side.send_cq)?.wr_id == round);
        let before = left.dm.read(64, 8)?;
        ensure!(before == (1000 + 3 * round).to_ne_bytes(), "round {round}: {before:?} before");
    }
    ensure!(right.dm.read(4096, 8)? == 1060u64.to_ne_bytes(), "another sum");
    Ok(())
}
