//! Long transfers whose memory is changed while they move.

use std::time::Instant;

use anyhow::{Result, ensure};
use verbs_sys::current::verbs as v;

use super::link::{ConnectedSides, LIMIT, Side};
use crate::ffi::{Completion, Operation, Piece, Region, Send};

/// Bytes of a page.
pub(super) const PAGE: usize = 4096;

/// Connects both sides anew, with nothing of before in their queues.
pub(super) fn reconnect(link: &ConnectedSides) -> Result<()> {
    for side in [&link.left, &link.right] {
        side.qp.to(v::IBV_QPS_RESET)?;
        while side.send_cq.poll()?.is_some() || side.receive_cq.poll()?.is_some() {}
    }
    link.connect()
}

/// Bytes of which all are odd, so that none is 0, and no page is another.
pub(super) fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes as u32).map(|at| (at.wrapping_mul(0x9e37_79b1) >> 24) as u8 | 1).collect()
}

/// Posts so many messages at once, all of the same memory.
pub(super) fn post(
    side: &Side,
    operation: Operation,
    (piece, count): (Piece, u64),
    remote: (u64, u32),
) -> Result<()> {
    let (immediate, flags) = (0, v::IBV_SEND_SIGNALED);
    let request = |wr_id| {
        let pieces = vec![piece.clone()];
        Send { wr_id, operation, pieces, remote, immediate, flags }
    };
    let requests: Vec<_> = (0..count).map(request).collect();
    side.qp.post_send(&requests).map_err(|(failed, _)| failed.into())
}

/// Waits until a page's first byte is there, or a message of the left side's is over; then its completion.
pub(super) fn reaches(
    link: &ConnectedSides,
    target: &Region,
    page: usize,
) -> Result<Option<Completion>> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let mut byte = [0];
        target.read(page * PAGE, &mut byte);
        if byte != [0] {
            return Ok(None);
        }
        if let Some(done) = link.left.send_cq.poll()? {
            return Ok(Some(done));
        }
        ensure!(Instant::now() < deadline, "page {page} is not written within {LIMIT:?}");
    }
}

/// How many pages are such, of so many bytes that are read.
pub(super) fn pages_with(
    bytes: usize,
    read: impl FnOnce(&mut [u8]),
    is_one: impl Fn(&[u8]) -> bool,
) -> usize {
    let mut all = vec![0; bytes];
    read(&mut all);
    all.chunks(PAGE).filter(|page| is_one(page)).count()
}

/// Whether anything was written to a page that was cleared.
pub(super) fn is_written(page: &[u8]) -> bool {
    page.iter().any(|byte| *byte != 0)
}
