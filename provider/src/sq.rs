//! Send queues: posting, and giving back room as completions come.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use fpga_regs::engine::doorbell::{QueueKind, record, slot, slot_value};
use fpga_regs::engine::wqe::{Datagram, SendFlags, SendHeader};
use hostmem::{BlockRing, DoorbellSlot, Lender, MaskedTable, Record, Waiters};

use crate::doorbell::CardPath;
use crate::error::{Error, Result};
use crate::lock::{QueueGuard, SendLock};
use crate::wr::{
    AtomicRequest, FlagTable, KeyRequest, Operation, Operations, Payload, SendRequest,
    write_atomic, write_datagram, write_key_change, write_send, write_srqn,
};

pub(crate) use building::{Building, Request};

mod building;

const PRODUCER: usize = record::PRODUCER / 4;

/// The requests that a send queue accepts.
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
/// The poster owns the producer's indices (under [`Self::lock`]), the poller of the send CQ the
/// consumer's (under that CQ's lock); each reads the other's with acquire.
#[derive(Debug)]
pub(crate) struct SendQueue {
    lock: SendLock,
    /// The errno of posting now; 0 while the queue takes requests.
    gate: AtomicI32,
    shape: SendShape,
    qpn: u32,
    slot: DoorbellSlot,
    /// The doorbell's value without the index, which is 0 in it.
    doorbell: AtomicU64,
    ring: BlockRing,
    record: Record,
    path: Arc<CardPath>,
    /// The posted requests, by the index of their first blocks.
    posted: MaskedTable<Posted>,
    produced: Position,
    consumed: Position,
}

/// How far one side has come.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Position {
    /// Work requests, running.
    requests: AtomicU32,
    /// Produced: the index of the block behind the last one. Consumed: where the search for the
    /// oldest request begins on a dead card; completions leave it behind.
    block: AtomicU32,
}

/// A work request, noted at its first block.
#[derive(Debug, Default)]
struct Posted {
    wr_id: AtomicU64,
    /// The number of requests up to this one. It lies ahead of the consumed ones only while the request
    /// is outstanding: blocks within requests, and blocks not posted yet, have numbers of an earlier
    /// lap.
    number: AtomicU32,
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
    /// The lender of memory for records of requests, if not the heap.
    pub lender: Option<Arc<dyn Lender>>,
}

impl SendQueue {
    /// Makes the queue of a QP in RESET.
    pub(crate) fn new(place: SendPlace, shape: SendShape, single_threaded: bool) -> Result<Self> {
        let SendPlace { qpn, generation, ring, record, path, lender } = place;
        let posted = MaskedTable::lent(ring.blocks(), lender.as_ref());
        let posted = posted.ok_or(Error::NoMemory("a send queue"))?;
        Ok(Self {
            lock: SendLock::new(single_threaded),
            gate: AtomicI32::new(libc::EINVAL),
            shape,
            qpn,
            slot: path.slot(slot(QueueKind::Send, qpn)),
            doorbell: AtomicU64::new(slot_value(qpn, generation, 0)),
            ring,
            record,
            path,
            posted,
            produced: Position::default(),
            consumed: Position::default(),
        })
    }

    /// The requests that the queue accepts.
    #[inline(always)]
    pub(crate) fn shape(&self) -> &SendShape {
        &self.shape
    }

    /// Sets the errno of posting; 0 opens the queue.
    pub(crate) fn set_gate(&self, errno: i32) {
        self.gate.store(errno, Ordering::Relaxed);
    }

    /// Forgets everything posted, as RESET does; the caller holds the send CQ's lock. A list that is being built is not
    /// waited for: nothing of it will be posted.
    pub(crate) fn reset(&self, generation: u8) {
        self.lock.overtake(|| {
            self.doorbell.store(slot_value(self.qpn, generation, 0), Ordering::Relaxed);
            for position in [&self.produced, &self.consumed] {
                position.requests.store(0, Ordering::Relaxed);
                position.block.store(0, Ordering::Relaxed);
            }
            self.forget_notes();
            self.record.store_release_u32(PRODUCER, 0);
        });
    }

    /// Forgets the notes of requests before a RESET: a later index must not find them.
    fn forget_notes(&self) {
        for posted in self.posted.iter() {
            posted.number.store(0, Ordering::Relaxed);
        }
    }

    /// Begins a list of work requests; fails with the errno of posting now, EIO on a dead card.
    pub(crate) fn begin(&self) -> Result<SendBatch<'_>, i32> {
        match self.hold()? {
            (batch, 0) => Ok(batch),
            (_, errno) => Err(errno),
        }
    }

    /// As [`Self::begin`], with the errno of posting now; the lock is held even if that is not 0.
    fn hold(&self) -> Result<(SendBatch<'_>, i32), i32> {
        if !self.path.is_ours() {
            return Err(libc::EPERM);
        }
        let guard = self.lock.lock();
        let errno = match self.gate.load(Ordering::Relaxed) {
            0 if self.path.is_dead() => libc::EIO,
            errno => errno,
        };
        Ok((SendBatch::new(self, guard), errno))
    }

    /// As [`Self::begin`], if no other thread posts and no list is open.
    #[inline(always)]
    pub(crate) fn begin_at_once(&self) -> Option<SendBatch<'_>> {
        Some(SendBatch::new(self, self.lock_at_once()?))
    }

    /// The lock alone of [`Self::begin_at_once`], to begin with.
    #[inline(always)]
    pub(crate) fn lock_at_once(&self) -> Option<QueueGuard<'_>> {
        // The lock does not keep a program from closing the queue meanwhile.
        if self.gate.load(Ordering::Relaxed) != 0 || !self.path.is_fit() {
            return None;
        }
        self.lock.try_lock()
    }

    /// Shows the card all requests before the cursor: the record, then the doorbell.
    #[inline(always)]
    fn publish(&self, cursor: Cursor, guard: QueueGuard<'_>) {
        self.show(cursor);
        // Others may post while the card is woken.
        match guard.release() {
            None => self.path.wake_if_asleep(),
            Some(waiters) => wake_both(waiters, &self.path),
        }
    }

    /// As [`Self::publish`], for a caller that still holds the queue and wakes the card.
    #[inline(always)]
    fn show(&self, cursor: Cursor) {
        self.produced.block.store(cursor.block, Ordering::Relaxed);
        // Release: a flush that sees the number also sees the note.
        self.produced.requests.store(cursor.requests, Ordering::Release);
        self.record.store_release_u32(PRODUCER, cursor.block);
        let value = self.doorbell.load(Ordering::Relaxed) | u64::from(cursor.block);
        self.slot.ring(value);
    }

    /// Writes one work request into the ring, or fails with its errno and writes nothing.
    ///
    /// Returns where the next one goes; there is room up to number `end`. (Both are passed by value
    /// so that they stay in registers while a list is posted.) The caller holds the queue's lock,
    /// as a batch does. Fields that the operation lacks are not read, as in [`write_send`]; a
    /// datagram that goes nowhere fails with EINVAL.
    #[inline(always)]
    pub(crate) fn push(
        &self,
        cursor: Cursor,
        end: u32,
        request: &SendRequest<'_>,
        remote: impl FnOnce() -> (u64, u32),
        datagram: impl FnOnce() -> Option<Datagram>,
        immediate: impl FnOnce() -> u32,
    ) -> Result<Cursor, i32> {
        let shape = &self.shape;
        let operation = shape.operations.get(request.opcode)?;
        let flags = shape.flags.get(request.flags)?;
        let fits = match request.payload {
            Payload::Sges(sges) => sges.len() <= shape.max_sge as usize,
            Payload::Inline(length) => length <= shape.max_inline && operation.can_be_inline(),
        };
        if !fits {
            return Err(libc::EINVAL);
        }
        let how = (operation, flags);
        if operation.is_datagram() {
            return self.push_datagram(cursor, end, request, how, datagram, immediate);
        }
        let (wr_id, payload) = (request.wr_id, request.payload);
        self.push_admitted((cursor, end), wr_id, how, payload, remote, immediate)
    }

    /// The entry of the request at a cursor, into which inline bytes are copied: its ring, and its first block.
    #[inline(always)]
    pub(crate) fn entry(&self, cursor: Cursor) -> (&BlockRing, u32) {
        (&self.ring, cursor.block)
    }

    /// As [`Self::push`], no datagram, and one whose operation, flags and payload were looked at.
    #[inline(always)]
    pub(crate) fn push_admitted(
        &self,
        (cursor, end): (Cursor, u32),
        wr_id: u64,
        how: (Operation, SendFlags),
        payload: Payload<'_>,
        remote: impl FnOnce() -> (u64, u32),
        immediate: impl FnOnce() -> u32,
    ) -> Result<Cursor, i32> {
        let requests = self.claim(cursor, end, wr_id)?;
        let blocks = write_send(&self.ring, cursor.block, how, payload, remote, immediate);
        Ok(Cursor { block: cursor.block.wrapping_add(blocks), requests })
    }

    /// As [`Self::push`], a datagram that was checked: apart, so that it takes no registers of requests
    /// along a connection.
    #[inline(never)]
    fn push_datagram(
        &self,
        cursor: Cursor,
        end: u32,
        request: &SendRequest<'_>,
        how: (Operation, SendFlags),
        datagram: impl FnOnce() -> Option<Datagram>,
        immediate: impl FnOnce() -> u32,
    ) -> Result<Cursor, i32> {
        let datagram = datagram().ok_or(libc::EINVAL)?;
        let requests = self.claim(cursor, end, request.wr_id)?;
        let payload = request.payload;
        let blocks = write_datagram(&self.ring, cursor.block, how, payload, datagram, immediate);
        Ok(Cursor { block: cursor.block.wrapping_add(blocks), requests })
    }

    /// As [`Self::push`], along XRC: for the peer's shared receive queue `srqn`. Apart, so that it costs no
    /// instructions of requests along other connections.
    #[inline(never)]
    pub(crate) fn push_xrc(
        &self,
        cursor: Cursor,
        end: u32,
        request: &SendRequest<'_>,
        srqn: u32,
        remote: impl FnOnce() -> (u64, u32),
        immediate: impl FnOnce() -> u32,
    ) -> Result<Cursor, i32> {
        let (shape, payload) = (&self.shape, request.payload);
        let operation = shape.operations.along_xrc(request.opcode)?;
        let flags = shape.flags.get(request.flags)?;
        let fits = match payload {
            Payload::Sges(sges) => sges.len() <= shape.max_sge as usize,
            Payload::Inline(length) => length <= shape.max_inline && operation.can_be_inline(),
        };
        if !fits {
            return Err(libc::EINVAL);
        }
        let requests = self.claim(cursor, end, request.wr_id)?;
        let immediate = if operation.has_immediate() { immediate() } else { 0 };
        let how = (operation, flags);
        let blocks = write_send(&self.ring, cursor.block, how, payload, remote, || immediate);
        write_srqn(&self.ring, cursor.block, srqn, immediate);
        Ok(Cursor { block: cursor.block.wrapping_add(blocks), requests })
    }

    /// As [`Self::push`], an atomic.
    pub(crate) fn push_atomic(
        &self,
        cursor: Cursor,
        end: u32,
        request: &AtomicRequest<'_>,
    ) -> Result<Cursor, i32> {
        let opcode = self.shape.operations.atomic(request.opcode)?;
        let flags = self.shape.flags.get(request.flags)?;
        if flags.contains(SendFlags::INLINE) {
            return Err(libc::EINVAL);
        }
        let requests = self.claim(cursor, end, request.wr_id)?;
        write_atomic(&self.ring, cursor.block, (opcode, flags), request);
        Ok(Cursor { block: cursor.block.wrapping_add(1), requests })
    }

    /// As [`Self::push`], a change of keys.
    pub(crate) fn push_key_change(
        &self,
        cursor: Cursor,
        end: u32,
        opcode: u32,
        request: &KeyRequest,
    ) -> Result<Cursor, i32> {
        self.shape.operations.key_change(opcode)?;
        let flags = self.shape.flags.get(request.flags)?;
        if flags.contains(SendFlags::INLINE) {
            return Err(libc::EINVAL);
        }
        let requests = self.claim(cursor, end, request.wr_id)?;
        write_key_change(&self.ring, cursor.block, flags, &request.change);
        Ok(Cursor { block: cursor.block.wrapping_add(1), requests })
    }

    /// Notes the request that begins at the cursor, and answers how many there are with it; fails with
    /// ENOMEM where the queue is full.
    #[inline(always)]
    fn claim(&self, cursor: Cursor, end: u32, wr_id: u64) -> Result<u32, i32> {
        if cursor.requests == end {
            return Err(libc::ENOMEM);
        }
        Ok(self.note(cursor, wr_id))
    }

    /// As [`Self::claim`], of a queue that has room.
    #[inline(always)]
    fn note(&self, cursor: Cursor, wr_id: u64) -> u32 {
        let requests = cursor.requests.wrapping_add(1);
        let posted = self.posted.get(cursor.block);
        posted.wr_id.store(wr_id, Ordering::Relaxed);
        posted.number.store(requests, Ordering::Release);
        requests
    }

    /// Takes back a work request and all before it: its completion names its first block.
    ///
    /// Returns the program's name for it; `None` where nothing outstanding begins at that block.
    /// The caller holds the send CQ's lock.
    #[inline(always)]
    pub(crate) fn retire(&self, wqe_index: u32) -> Option<u64> {
        let posted = self.posted.get(wqe_index);
        // Acquire: with the number comes the name. Both at once, for then the place takes no register any more.
        let number = posted.number.load(Ordering::Acquire);
        let wr_id = posted.wr_id.load(Ordering::Relaxed);
        // Only the numbers of outstanding requests lie ahead; 0 becomes the largest.
        let ahead = number.wrapping_sub(self.consumed.requests.load(Ordering::Relaxed));
        if ahead.wrapping_sub(1) > self.posted.mask() {
            return None;
        }
        // Release: the poster that finds this room may write over the note that was read.
        self.consumed.requests.store(number, Ordering::Release);
        Some(wr_id)
    }

    /// Outstanding work requests that complete even where they go well.
    ///
    /// The caller holds the send CQ's lock; this does not wait for threads that post meanwhile.
    pub(crate) fn signalled(&self) -> usize {
        let consumed = self.consumed.requests.load(Ordering::Relaxed);
        // Acquire: with the number come the requests.
        let count = self.produced.requests.load(Ordering::Acquire).wrapping_sub(consumed);
        let is_signalled = |block: &u32| {
            let number = self.posted.get(*block).number.load(Ordering::Relaxed);
            let ahead = number.wrapping_sub(consumed).wrapping_sub(1);
            let flags = || SendHeader::decode(&[self.ring.read(*block)]).flags;
            ahead < count && flags().contains(SendFlags::SIGNALED)
        };
        (0..=self.posted.mask()).filter(is_signalled).count()
    }

    /// Takes back the oldest outstanding work request: the card died with it.
    ///
    /// The caller holds the send CQ's lock.
    pub(crate) fn flush_one(&self) -> Option<u64> {
        let consumed = self.consumed.requests.load(Ordering::Relaxed);
        if consumed == self.produced.requests.load(Ordering::Acquire) {
            return None;
        }
        let oldest = consumed.wrapping_add(1);
        // From the second one on it begins a few blocks behind the one before it.
        let from = self.consumed.block.load(Ordering::Relaxed);
        let mut blocks = (0..=self.posted.mask()).map(|step| from.wrapping_add(step));
        let number = |block: u32| self.posted.get(block).number.load(Ordering::Acquire);
        let block = blocks.find(|block| number(*block) == oldest)?;
        self.consumed.block.store(block, Ordering::Relaxed);
        self.retire(block)
    }
}

/// Wakes the threads that wait for the queue, and the card if it sleeps: apart, so that it takes no registers where
/// none waits.
#[cold]
#[inline(never)]
fn wake_both(waiters: Waiters<'_, ()>, path: &CardPath) {
    waiters.wake();
    path.wake_if_asleep();
}

/// A list of work requests being posted; the lock is held until it is finished or dropped.
pub(crate) struct SendBatch<'a> {
    queue: &'a SendQueue,
    guard: QueueGuard<'a>,
    start: u32,
    end: u32,
    cursor: Cursor,
}

/// Where a work request goes.
#[derive(Clone, Copy)]
pub(crate) struct Cursor {
    /// Index of its first block, running.
    block: u32,
    /// Requests before it, running.
    requests: u32,
}

impl<'a> SendBatch<'a> {
    /// Begins with the lock of a queue that is open.
    #[inline(always)]
    pub(crate) fn new(queue: &'a SendQueue, guard: QueueGuard<'a>) -> Self {
        let start = queue.produced.block.load(Ordering::Relaxed);
        let requests = queue.produced.requests.load(Ordering::Relaxed);
        let done = queue.consumed.requests.load(Ordering::Acquire);
        let end = done.wrapping_add(queue.shape.max_wr);
        Self { queue, guard, start, end, cursor: Cursor { block: start, requests } }
    }

    /// The queue, where the next work request goes in it, and the number that has no room any more.
    #[inline(always)]
    pub(crate) fn position(&self) -> (&'a SendQueue, Cursor, u32) {
        (self.queue, self.cursor, self.end)
    }

    /// Goes on behind the pushed requests.
    #[inline(always)]
    pub(crate) fn advance(&mut self, cursor: Cursor) {
        self.cursor = cursor;
    }

    /// Shows the card the one request that was pushed, behind which the cursor stands.
    #[inline(always)]
    pub(crate) fn post(self, cursor: Cursor) {
        self.queue.publish(cursor, self.guard);
    }

    /// The lock alone, to begin anew with; the pushed requests are forgotten.
    #[inline(always)]
    pub(crate) fn into_guard(self) -> QueueGuard<'a> {
        self.guard
    }

    /// Shows the card the pushed requests, once for the list.
    #[inline(always)]
    pub(crate) fn finish(self) {
        let Self { queue, guard, start, cursor, .. } = self;
        if cursor.block == start {
            return;
        }
        queue.publish(cursor, guard);
    }
}

#[cfg(test)]
mod tests;
