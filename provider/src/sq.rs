//! Send queues: posting, and giving back room as completions come.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use fpga_regs::engine::doorbell::{QueueKind, record, slot, slot_value};
use fpga_regs::engine::wqe::SendHeader;
use hostmem::{BlockRing, Record};

use crate::doorbell::CardPath;
use crate::lock::{QueueGuard, QueueLock};
use crate::wr::{FlagTable, Operations, Payload, SendRequest, write_send};

const PRODUCER: usize = record::PRODUCER / 4;

/// What a send queue accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SendShape {
    /// Work requests outstanding at a time; the ring holds that many of the largest.
    pub max_wr: u32,
    /// Elements of a work request.
    pub max_sge: u32,
    /// Inline bytes of a work request.
    pub max_inline: u32,
    /// Operations the card offers.
    pub operations: Operations,
    /// Flags it takes.
    pub flags: FlagTable,
}

/// A QP's send queue as the program's side sees it.
///
/// The poster owns what was produced (under [`Self::lock`]), the poller of the send CQ what was
/// consumed (under that CQ's lock); each reads the other's with acquire.
#[derive(Debug)]
pub(crate) struct SendQueue {
    lock: QueueLock,
    /// The errno of posting now; 0 while the queue takes requests.
    gate: AtomicI32,
    shape: SendShape,
    mask: u32,
    qpn: u32,
    slot: usize,
    /// The doorbell's value without the index, which is 0 in it.
    doorbell: AtomicU64,
    ring: BlockRing,
    record: Record,
    path: Arc<CardPath>,
    /// What was posted, by the index of its first block.
    shadow: Box<[Posted]>,
    produced: Position,
    consumed: Position,
}

/// How far one side has come, as a [`Cursor`] in one word.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Position(AtomicU64);

/// A work request in the shadow of its first block.
#[derive(Debug, Default)]
struct Posted {
    wr_id: AtomicU64,
    /// The position behind the request. It lies behind what is consumed only while the request is
    /// outstanding: not of one of an earlier lap, which is what stands at blocks within requests
    /// and at blocks not posted yet.
    end: AtomicU64,
}

/// Where a send queue lives and how it is reached.
#[derive(Debug)]
pub(crate) struct SendPlace {
    /// The QP.
    pub qpn: u32,
    /// Its generation.
    pub generation: u8,
    /// The entries.
    pub ring: BlockRing,
    /// The doorbell record.
    pub record: Record,
    /// The card.
    pub path: Arc<CardPath>,
}

impl SendQueue {
    /// Makes the queue of a QP in RESET.
    pub(crate) fn new(place: SendPlace, shape: SendShape, single_threaded: bool) -> Self {
        let SendPlace { qpn, generation, ring, record, path } = place;
        let shadow = std::iter::repeat_with(Posted::default).take(ring.blocks() as usize).collect();
        Self {
            lock: QueueLock::new(single_threaded),
            gate: AtomicI32::new(libc::EINVAL),
            shape,
            mask: ring.blocks().wrapping_sub(1),
            qpn,
            slot: slot(QueueKind::Send, qpn),
            doorbell: AtomicU64::new(slot_value(qpn, generation, 0)),
            ring,
            record,
            path,
            shadow,
            produced: Position::default(),
            consumed: Position::default(),
        }
    }

    /// What the queue accepts.
    #[inline(always)]
    pub(crate) fn shape(&self) -> &SendShape {
        &self.shape
    }

    /// Sets the errno of posting; 0 opens the queue.
    pub(crate) fn set_gate(&self, errno: i32) {
        self.gate.store(errno, Ordering::Relaxed);
    }

    /// Forgets everything posted, as RESET does; the caller holds the send CQ's lock.
    pub(crate) fn reset(&self, generation: u8) {
        let _guard = self.lock.lock();
        self.doorbell.store(slot_value(self.qpn, generation, 0), Ordering::Relaxed);
        for position in [&self.produced, &self.consumed] {
            position.0.store(0, Ordering::Relaxed);
        }
        // What the shadow remembers of before must not be found by an index of after.
        for posted in &self.shadow {
            posted.end.store(0, Ordering::Relaxed);
        }
        self.record.store_release_u32(PRODUCER, 0);
    }

    /// Begins a list of work requests; fails with the errno of posting now, EIO on a dead card.
    #[inline(always)]
    pub(crate) fn begin(&self) -> Result<SendBatch<'_>, i32> {
        if !self.path.is_ours() {
            return Err(libc::EPERM);
        }
        let guard = self.lock.lock();
        let gate = self.gate.load(Ordering::Relaxed);
        if gate != 0 {
            return Err(gate);
        }
        if self.path.is_dead() {
            return Err(libc::EIO);
        }
        let cursor = Cursor::unpack(self.produced.0.load(Ordering::Relaxed));
        let done = Cursor::unpack(self.consumed.0.load(Ordering::Acquire));
        let end = done.requests.wrapping_add(self.shape.max_wr);
        Ok(SendBatch { queue: self, _guard: guard, start: cursor.blocks, end, cursor })
    }

    /// Writes one work request into the ring, or fails with its errno and writes nothing.
    ///
    /// Returns where the next one goes; there is room up to number `end`. (Both are passed by value
    /// so that they stay in registers while a list is posted.) The caller holds the queue's lock,
    /// as a batch does.
    #[inline(always)]
    pub(crate) fn push(
        &self,
        cursor: Cursor,
        end: u32,
        request: &SendRequest<'_>,
    ) -> Result<Cursor, i32> {
        let (shape, operation) = (&self.shape, request.operation);
        let flags = shape.flags.get(request.flags)?;
        let fits = match request.payload {
            Payload::Sges(sges) => sges.len() <= shape.max_sge as usize,
            Payload::Inline(data) => data.length <= shape.max_inline && operation.can_be_inline(),
        };
        if !fits {
            return Err(libc::EINVAL);
        }
        let Cursor { blocks: index, requests: number } = cursor;
        if number == end {
            return Err(libc::ENOMEM);
        }
        let header = SendHeader {
            opcode: operation.code(),
            flags,
            immediate: request.immediate,
            remote_address: request.remote_address,
            rkey: request.rkey,
            ..SendHeader::default()
        };
        let blocks = write_send(&self.ring, index, header, request.payload);
        let next = Cursor { blocks: index.wrapping_add(blocks), requests: number.wrapping_add(1) };
        if let Some(posted) = self.shadow.get((index & self.mask) as usize) {
            posted.wr_id.store(request.wr_id, Ordering::Relaxed);
            posted.end.store(next.pack(), Ordering::Release);
        }
        Ok(next)
    }

    /// Takes back a work request and all before it: its completion names its first block.
    ///
    /// Returns the program's name for it; `None` where nothing outstanding begins at that block.
    /// The caller holds the send CQ's lock.
    #[inline(always)]
    pub(crate) fn retire(&self, wqe_index: u32) -> Option<u64> {
        self.take(wqe_index, Cursor::unpack(self.consumed.0.load(Ordering::Relaxed)).blocks)
    }

    /// Takes back the oldest outstanding work request: the card died with it.
    ///
    /// The caller holds the send CQ's lock.
    pub(crate) fn flush_one(&self) -> Option<u64> {
        let consumed = self.consumed.0.load(Ordering::Relaxed);
        if consumed == self.produced.0.load(Ordering::Acquire) {
            return None;
        }
        let oldest = Cursor::unpack(consumed).blocks;
        self.take(oldest, oldest)
    }

    /// Takes back the work request whose first block stands at an index, modulo the ring.
    #[inline(always)]
    fn take(&self, index: u32, consumed: u32) -> Option<u64> {
        let posted = self.shadow.get((index & self.mask) as usize)?;
        // Acquire: with the position comes the name.
        let end = posted.end.load(Ordering::Acquire);
        // Only of what is outstanding the end lies ahead; 0 becomes the largest.
        let ahead = Cursor::unpack(end).blocks.wrapping_sub(consumed);
        if ahead.wrapping_sub(1) > self.mask {
            return None;
        }
        let wr_id = posted.wr_id.load(Ordering::Relaxed);
        // Release: the poster that finds this room may write over the shadow read above.
        self.consumed.0.store(end, Ordering::Release);
        Some(wr_id)
    }
}

/// A list of work requests being posted; the lock is held until it is dropped.
pub(crate) struct SendBatch<'a> {
    queue: &'a SendQueue,
    _guard: QueueGuard<'a>,
    start: u32,
    end: u32,
    cursor: Cursor,
}

/// Where a work request goes.
#[derive(Clone, Copy)]
pub(crate) struct Cursor {
    /// Index of its first block, running.
    blocks: u32,
    /// Its number, running.
    requests: u32,
}

impl Cursor {
    #[inline(always)]
    fn pack(self) -> u64 {
        u64::from(self.requests) << 32 | u64::from(self.blocks)
    }

    #[inline(always)]
    fn unpack(word: u64) -> Self {
        Self { blocks: word as u32, requests: (word >> 32) as u32 }
    }
}

impl<'a> SendBatch<'a> {
    /// The queue, where the next work request goes in it, and the number that has no room any more.
    #[inline(always)]
    pub(crate) fn position(&self) -> (&'a SendQueue, Cursor, u32) {
        (self.queue, self.cursor, self.end)
    }

    /// Goes on behind what was pushed.
    #[inline(always)]
    pub(crate) fn advance(&mut self, cursor: Cursor) {
        self.cursor = cursor;
    }

    /// Shows the card what was pushed: the record, then the doorbell, once for the list.
    #[inline(always)]
    pub(crate) fn finish(self) {
        let (queue, cursor, _) = self.position();
        let blocks = cursor.blocks;
        if blocks == self.start {
            return;
        }
        // Release: who flushes and sees the index also sees the shadow.
        queue.produced.0.store(cursor.pack(), Ordering::Release);
        queue.record.store_release_u32(PRODUCER, blocks);
        let value = queue.doorbell.load(Ordering::Relaxed) | u64::from(blocks);
        queue.path.ring(queue.slot, value);
    }
}

#[cfg(test)]
mod tests;
