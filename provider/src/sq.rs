//! Send queues: posting, and giving back room as completions come.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering};

use fpga_regs::engine::doorbell::{QueueKind, record, slot, slot_value};
use fpga_regs::engine::wqe::{SendFlags, SendHeader};
use hostmem::{BlockRing, Record};

use crate::doorbell::CardPath;
use crate::lock::{QueueGuard, QueueLock};
use crate::wr::{Operations, Payload, SendRequest, send_flags, write_send};

const PRODUCER: usize = record::PRODUCER / 4;
const FLAG_INLINE: u8 = SendFlags::INLINE.bits();
const FLAG_SIGNALED: u8 = SendFlags::SIGNALED.bits();

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
    /// Every work request is signaled.
    pub signal_all: bool,
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
    generation: AtomicU8,
    shape: SendShape,
    mask: u32,
    qpn: u32,
    slot: usize,
    ring: BlockRing,
    record: Record,
    path: Arc<CardPath>,
    /// What was posted, by the index of its first block.
    shadow: Box<[Posted]>,
    produced: Position,
    consumed: Position,
}

/// How far one side has come.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Position {
    /// In blocks of the ring, running.
    blocks: AtomicU32,
    /// In work requests, modulo 2^24.
    requests: AtomicU32,
}

/// A work request in the shadow of its first block.
#[derive(Debug, Default)]
struct Posted {
    wr_id: AtomicU64,
    /// See [`Tag`].
    tag: AtomicU64,
}

/// What identifies a posted request: [31:0] index of its first block, [55:32] its number, modulo
/// 2^24, [63:56] its blocks.
#[derive(Clone, Copy)]
struct Tag(u64);

/// Numbers of work requests are counted modulo this; a ring has fewer blocks.
const REQUESTS: u32 = 1 << 24;

impl Tag {
    #[inline(always)]
    fn new(index: u32, number: u32, blocks: u32) -> Self {
        Self(u64::from(index) | u64::from(number % REQUESTS) << 32 | u64::from(blocks) << 56)
    }
    #[inline(always)]
    fn index(self) -> u32 {
        self.0 as u32
    }
    #[inline(always)]
    fn number(self) -> u32 {
        (self.0 >> 32) as u32 % REQUESTS
    }
    #[inline(always)]
    fn blocks(self) -> u32 {
        (self.0 >> 56) as u32
    }
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
            generation: AtomicU8::new(generation),
            shape,
            mask: ring.blocks().wrapping_sub(1),
            qpn,
            slot: slot(QueueKind::Send, qpn),
            ring,
            record,
            path,
            shadow,
            produced: Position::default(),
            consumed: Position::default(),
        }
    }

    /// Sets the errno of posting; 0 opens the queue.
    pub(crate) fn set_gate(&self, errno: i32) {
        self.gate.store(errno, Ordering::Relaxed);
    }

    /// Forgets everything posted, as RESET does; the caller holds the send CQ's lock.
    pub(crate) fn reset(&self, generation: u8) {
        let _guard = self.lock.lock();
        self.generation.store(generation, Ordering::Relaxed);
        for position in [&self.produced, &self.consumed] {
            position.blocks.store(0, Ordering::Relaxed);
            position.requests.store(0, Ordering::Relaxed);
        }
        // What the shadow remembers of before must not be found by an index of after.
        for posted in &self.shadow {
            posted.tag.store(0, Ordering::Relaxed);
        }
        self.record.store_release_u32(PRODUCER, 0);
    }

    /// Begins a list of work requests; fails with the errno of posting now.
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
        let requests = self.produced.requests.load(Ordering::Relaxed);
        let done = self.consumed.requests.load(Ordering::Acquire);
        let outstanding = requests.wrapping_sub(done) % REQUESTS;
        Ok(SendBatch {
            queue: self,
            _guard: guard,
            blocks: self.produced.blocks.load(Ordering::Relaxed),
            requests,
            room: self.shape.max_wr.saturating_sub(outstanding),
        })
    }

    /// Takes back a work request and all before it: its completion names its first block.
    ///
    /// Returns the program's name for it; `None` where nothing outstanding begins at that block.
    /// The caller holds the send CQ's lock.
    #[inline(always)]
    pub(crate) fn retire(&self, wqe_index: u32) -> Option<u64> {
        let consumed = self.consumed.blocks.load(Ordering::Relaxed);
        let produced = self.produced.blocks.load(Ordering::Acquire);
        let ahead = wqe_index.wrapping_sub(consumed) & self.mask;
        if ahead >= produced.wrapping_sub(consumed) {
            return None;
        }
        self.take(consumed.wrapping_add(ahead))
    }

    /// Takes back the oldest outstanding work request: the card died with it.
    ///
    /// The caller holds the send CQ's lock.
    pub(crate) fn flush_one(&self) -> Option<u64> {
        let consumed = self.consumed.blocks.load(Ordering::Relaxed);
        if consumed == self.produced.blocks.load(Ordering::Acquire) {
            return None;
        }
        self.take(consumed)
    }

    #[inline(always)]
    fn take(&self, index: u32) -> Option<u64> {
        let posted = self.shadow.get((index & self.mask) as usize)?;
        let tag = Tag(posted.tag.load(Ordering::Relaxed));
        if tag.index() != index {
            return None;
        }
        let wr_id = posted.wr_id.load(Ordering::Relaxed);
        self.consumed.blocks.store(index.wrapping_add(tag.blocks()), Ordering::Relaxed);
        // Release: the poster that finds this room may write over the shadow read above.
        let done = tag.number().wrapping_add(1);
        self.consumed.requests.store(done, Ordering::Release);
        Some(wr_id)
    }
}

/// A list of work requests being posted; the lock is held until it is dropped.
pub(crate) struct SendBatch<'a> {
    queue: &'a SendQueue,
    _guard: QueueGuard<'a>,
    blocks: u32,
    requests: u32,
    room: u32,
}

impl SendBatch<'_> {
    /// Writes one work request into the ring, or fails with its errno and writes nothing.
    #[inline(always)]
    pub(crate) fn push(&mut self, request: &SendRequest<'_>) -> Result<(), i32> {
        let queue = self.queue;
        let shape = &queue.shape;
        let opcode = shape.operations.code(request.opcode)?;
        let mut flags = send_flags(request.flags)?;
        match request.payload {
            Payload::Sges(sges) => {
                if sges.len() > shape.max_sge as usize {
                    return Err(libc::EINVAL);
                }
                flags &= !FLAG_INLINE;
            }
            Payload::Inline(data) => {
                if data.length > shape.max_inline || !carries_inline(request.opcode) {
                    return Err(libc::EINVAL);
                }
            }
        }
        if shape.signal_all {
            flags |= FLAG_SIGNALED;
        }
        self.room = self.room.checked_sub(1).ok_or(libc::ENOMEM)?;
        let index = self.blocks;
        let header = SendHeader {
            opcode,
            flags: SendFlags::from_bits_retain(flags),
            immediate: request.immediate,
            remote_address: request.remote_address,
            rkey: request.rkey,
            ..SendHeader::default()
        };
        let blocks = write_send(header, request.payload, |n, block| {
            queue.ring.write(index.wrapping_add(n), block);
        });
        if let Some(posted) = queue.shadow.get((index & queue.mask) as usize) {
            posted.wr_id.store(request.wr_id, Ordering::Relaxed);
            posted.tag.store(Tag::new(index, self.requests, blocks).0, Ordering::Relaxed);
        }
        self.blocks = index.wrapping_add(blocks);
        self.requests = self.requests.wrapping_add(1);
        Ok(())
    }

    /// Shows the card what was pushed: the record, then the doorbell, once for the list.
    #[inline(always)]
    pub(crate) fn finish(self) {
        let queue = self.queue;
        if self.blocks == queue.produced.blocks.load(Ordering::Relaxed) {
            return;
        }
        queue.produced.requests.store(self.requests % REQUESTS, Ordering::Relaxed);
        // Release: the poller that sees the index also sees the shadow.
        queue.produced.blocks.store(self.blocks, Ordering::Release);
        queue.record.store_release_u32(PRODUCER, self.blocks);
        let generation = queue.generation.load(Ordering::Relaxed);
        queue.path.ring(queue.slot, slot_value(queue.qpn, generation, self.blocks));
    }
}

/// Whether an operation sends bytes that could stand in the entry.
#[inline(always)]
fn carries_inline(opcode: u32) -> bool {
    opcode != verbs_sys::v44::verbs::IBV_WR_RDMA_READ
}

#[cfg(test)]
mod tests;
