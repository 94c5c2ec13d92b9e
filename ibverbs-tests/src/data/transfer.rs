//! One message, and the check of every byte of it.

use std::rc::Rc;

use anyhow::{Result, ensure};
use verbs_sys::current::verbs as v;

use super::link::{ConnectedSides, Side};
use crate::ffi::{Completion, ListEnd, Operation, Piece, Recv, Region, Send};

/// Bytes between the pieces of a message, and after the last: they must stay as they are.
const GAP: usize = 61;
/// Most pieces of a message.
const MAX_PIECES: usize = 16;
/// Furthest first byte.
const MAX_OFFSET: usize = 16 * 4096;
/// The value of a byte that must not be touched.
const GUARD: u8 = 0xa5;
/// Bytes that are compared at a time.
const CHUNK: usize = 1 << 20;

/// Room that a message of `size` bytes needs in a region.
pub const fn room(size: usize) -> usize {
    MAX_OFFSET + size + (MAX_PIECES + 1) * GAP
}

/// One message.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// How it is moved.
    pub operation: Operation,
    /// Bytes.
    pub size: usize,
    /// SGEs of the side that works: those it gathers from, or for READ scatters to.
    pub gather: usize,
    /// SGEs of the receive, where there is one.
    pub scatter: usize,
    /// Where the first byte lies in either region.
    pub offset: usize,
    /// Whether the work request carries the data itself.
    pub inline: bool,
    /// The seed of the data.
    pub seed: u64,
}

impl Transfer {
    /// Moves the message from left to right (READ: from right to left) and checks everything.
    ///
    /// # Errors
    /// When a byte, a completion or a call is wrong.
    pub fn run(&self, link: &ConnectedSides) -> Result<()> {
        run_list(link, &[*self])
    }

    /// Whether bytes go from the other side to the one that works.
    pub(super) fn reads(&self) -> bool {
        self.operation == Operation::Read
    }

    /// First byte of a region that it leaves alone, as everything after it.
    pub(super) fn end(&self) -> usize {
        self.offset + room(self.size) - MAX_OFFSET
    }

    /// Parts of the region of the side that works.
    pub(super) fn near(&self) -> Vec<(usize, usize)> {
        parts(self.size, self.gather, self.offset)
    }

    /// Parts of the region of the other side.
    pub(super) fn far(&self) -> Vec<(usize, usize)> {
        let count = match self.operation {
            Operation::Send | Operation::SendImmediate => self.scatter,
            _ => 1,
        };
        // Another place than the near one, so that the two are not aligned alike.
        parts(self.size, count, self.offset + 2)
    }

    fn immediate(&self) -> u32 {
        0x8000_0001 ^ (self.seed as u32).rotate_left(8)
    }

    /// The work request of the side that works, towards a region given by address and key.
    pub(super) fn send(
        &self,
        near: &Rc<Region>,
        remote: (u64, u32),
        wr_id: u64,
        signalled: bool,
    ) -> Send {
        let far = self.far().first().map_or(0, |(offset, _)| *offset) as u64;
        let signal = if signalled { v::IBV_SEND_SIGNALED } else { 0 };
        let inline = if self.inline { v::IBV_SEND_INLINE } else { 0 };
        Send {
            wr_id,
            operation: self.operation,
            pieces: pieces(near, &self.near()),
            remote: (remote.0 + far, remote.1),
            immediate: self.immediate(),
            flags: signal | inline,
        }
    }

    /// The receive request of the other side.
    pub(super) fn receive(&self, region: &Rc<Region>, wr_id: u64) -> Recv {
        let far = match self.operation {
            Operation::WriteImmediate => Vec::new(),
            _ => self.far(),
        };
        Recv { wr_id, pieces: pieces(region, &far) }
    }

    /// Checks the completion of the side that works.
    pub(super) fn check_sent(&self, side: &Side, wr_id: u64, sent: &Completion) -> Result<()> {
        let opcode = match self.operation {
            Operation::Send | Operation::SendImmediate => v::IBV_WC_SEND,
            Operation::Write | Operation::WriteImmediate => v::IBV_WC_RDMA_WRITE,
            Operation::Read => v::IBV_WC_RDMA_READ,
        };
        ensure!(
            (sent.wr_id, sent.opcode) == (wr_id, opcode),
            "expected {wr_id}, {opcode}: {sent:?}"
        );
        ensure!(sent.qp_num == side.qp.number(), "of another QP: {sent:?}");
        ensure!(!self.reads() || sent.byte_len as usize == self.size, "wrong length: {sent:?}");
        Ok(())
    }

    /// Checks the completion of the other side.
    pub(super) fn check_received(
        &self,
        side: &Side,
        wr_id: u64,
        received: &Completion,
    ) -> Result<()> {
        let (opcode, immediate) = match self.operation {
            Operation::Send => (v::IBV_WC_RECV, None),
            Operation::SendImmediate => (v::IBV_WC_RECV, Some(self.immediate())),
            _ => (v::IBV_WC_RECV_RDMA_WITH_IMM, Some(self.immediate())),
        };
        let expected = (wr_id, opcode, immediate, self.size);
        let found =
            (received.wr_id, received.opcode, received.immediate, received.byte_len as usize);
        ensure!(found == expected, "expected {expected:?}: {received:?}");
        ensure!(received.qp_num == side.qp.number(), "of another QP: {received:?}");
        Ok(())
    }
}

/// Posts all of them as one list of which only the last is signalled, and checks everything.
///
/// Their places must not overlap.
///
/// # Errors
/// When a byte, a completion or a call is wrong.
pub fn run_list(link: &ConnectedSides, transfers: &[Transfer]) -> Result<()> {
    let (left, right) = (&link.left, &link.right);
    let ends = transfers.iter().map(Transfer::end);
    let end = ends.max().unwrap_or(0).min(left.region.length());
    fill_guard(&left.region, end);
    fill_guard(&right.region, end);
    for transfer in transfers {
        match transfer.reads() {
            true => fill(&right.region, &transfer.far(), transfer.seed),
            false => fill(&left.region, &transfer.near(), transfer.seed),
        }
    }

    for (transfer, wr_id) in transfers.iter().zip(1000..) {
        if transfer.operation.receives() {
            right.qp.post_recv(&transfer.receive(&right.region, wr_id))?;
        }
    }
    let last = transfers.len().saturating_sub(1);
    let sends: Vec<Send> = transfers
        .iter()
        .enumerate()
        .map(|(index, transfer)| {
            let remote = (right.region.address(), right.region.rkey());
            transfer.send(&left.region, remote, index as u64, index == last)
        })
        .collect();
    if left.qp.is_extended() {
        left.qp.build(&sends, ListEnd::Complete)?;
    } else {
        left.qp
            .post_send(&sends)
            .map_err(|(failed, index)| anyhow::anyhow!("work request {index}: {failed}"))?;
    }

    for (transfer, wr_id) in transfers.iter().zip(1000..) {
        if transfer.operation.receives() {
            transfer.check_received(right, wr_id, &link.success(&right.receive_cq)?)?;
        }
    }
    if let Some(transfer) = transfers.last() {
        transfer.check_sent(left, last as u64, &link.success(&left.send_cq)?)?;
    }
    link.nothing_more(&left.send_cq)?;
    link.nothing_more(&right.receive_cq)?;
    let reads = transfers.first().is_some_and(Transfer::reads);
    check_bytes(if reads { &left.region } else { &right.region }, transfers, end)
}

/// Checks every byte of the region that transfers wrote to, up to `end`, which is in none of them.
pub(super) fn check_bytes(region: &Region, transfers: &[Transfer], end: usize) -> Result<()> {
    let reads = transfers.first().is_some_and(Transfer::reads);
    let mut written: Vec<(usize, usize, u64, usize)> = Vec::new();
    for transfer in transfers {
        let parts = if reads { transfer.near() } else { transfer.far() };
        let mut before = 0;
        for (offset, length) in parts {
            written.push((offset, length, transfer.seed, before));
            before += length;
        }
    }
    written.sort_unstable();
    let mut at = 0;
    for (offset, length, seed, before) in written {
        check_range(region, at, offset - at, |_| GUARD)?;
        check_range(region, offset, length, |index| pattern(seed, before + index))?;
        at = offset + length;
    }
    check_range(region, at, end - at, |_| GUARD)
}

/// A message's parts in a region: `count` pieces of different lengths, with gaps between them.
fn parts(size: usize, count: usize, start: usize) -> Vec<(usize, usize)> {
    // An empty piece means something else on every vendor's card.
    let count = count.min(size);
    if count == 0 {
        return Vec::new();
    }
    // Neighbours give and take a few bytes, so that lengths differ and pieces start anywhere.
    let (even, rest) = (size / count, size % count);
    let mut offset = start;
    let mut parts = Vec::new();
    for index in 0..count {
        let moved = (2 * (index / 2) + 1).min(even - 1);
        let length = match index {
            _ if index + 1 == count && index % 2 == 0 => even + rest,
            _ if index + 1 == count => even - moved + rest,
            _ if index % 2 == 0 => even + moved,
            _ => even - moved,
        };
        parts.push((offset, length));
        offset += length + GAP;
    }
    parts
}

fn pieces(region: &Rc<Region>, parts: &[(usize, usize)]) -> Vec<Piece> {
    parts.iter().map(|&(offset, length)| region.piece(offset, length)).collect()
}

/// The byte of a message at an index.
fn pattern(seed: u64, index: usize) -> u8 {
    let word = (index as u64 / 8).wrapping_add(seed << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (word ^ (word >> 29)).to_le_bytes()[index % 8]
}

/// Fills a region's bytes up to `end` with the guard's value.
pub(super) fn fill_guard(region: &Region, end: usize) {
    guard_part(region, 0, end);
}

/// Fills a part of a region with the guard's value.
pub(super) fn guard_part(region: &Region, start: usize, length: usize) {
    in_chunks(start, length, |offset, length| region.write(offset, &vec![GUARD; length]));
}

/// Fills parts of a region with the data of a seed.
pub(super) fn fill(region: &Region, parts: &[(usize, usize)], seed: u64) {
    let mut before = 0;
    for &(start, length) in parts {
        in_chunks(start, length, |offset, length| {
            let first = before + offset - start;
            let bytes: Vec<u8> = (first..first + length).map(|it| pattern(seed, it)).collect();
            region.write(offset, &bytes);
        });
        before += length;
    }
}

/// Checks a part of a region with the data of a seed, and that nothing was written between it and `end`.
pub(super) fn check_part(
    region: &Region,
    (offset, length): (usize, usize),
    end: usize,
    seed: u64,
) -> Result<()> {
    check_range(region, offset, length, |index| pattern(seed, index))?;
    check_range(region, offset + length, end - offset - length, |_| GUARD)
}

fn check_range(
    region: &Region,
    start: usize,
    length: usize,
    expected: impl Fn(usize) -> u8,
) -> Result<()> {
    let mut wrong = None;
    in_chunks(start, length, |offset, length| {
        let mut bytes = vec![0; length];
        region.read(offset, &mut bytes);
        let first = offset - start;
        let bad = (0..length).find(|&index| bytes[index] != expected(first + index));
        wrong = wrong.or(bad.map(|index| (offset + index, bytes[index], expected(first + index))));
    });
    match wrong {
        None => Ok(()),
        Some((offset, found, expected)) => {
            anyhow::bail!(
                "byte {offset} of the target's region is {found:#04x}, not {expected:#04x}"
            )
        }
    }
}

fn in_chunks(start: usize, length: usize, mut each: impl FnMut(usize, usize)) {
    let mut done = 0;
    while done < length {
        let chunk = CHUNK.min(length - done);
        each(start + done, chunk);
        done += chunk;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_and_fit() {
        for size in [0, 1, 2, 3, 15, 16, 17, 4096, 1 << 20] {
            for count in 1..=MAX_PIECES {
                let parts = parts(size, count, 5);
                assert_eq!(parts.iter().map(|part| part.1).sum::<usize>(), size);
                assert!(parts.iter().all(|part| part.1 > 0), "{size} in {count}: {parts:?}");
                let end = parts.last().map_or(0, |part| part.0 + part.1 + GAP);
                assert!(end <= 5 + room(size) - MAX_OFFSET);
            }
        }
    }

    #[test]
    fn data_of_different_seeds_and_places_differ() {
        let data =
            |seed, from: usize| (from..from + 64).map(|i| pattern(seed, i)).collect::<Vec<_>>();
        assert_ne!(data(1, 0), data(2, 0));
        assert_ne!(data(1, 0), data(1, 64));
        assert_ne!(data(1, 0), data(1, 4096));
    }
}
