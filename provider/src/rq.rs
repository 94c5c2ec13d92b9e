//! Receive queues: posting, and giving back room as completions come.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use crate::abi::verbs::ibv_sge;
use fpga_regs::engine::doorbell::{QueueKind, record, slot, slot_value};
use hostmem::{BlockRing, DoorbellSlot, Lender, Record};

use crate::doorbell::CardPath;
use crate::error::{Error, Result};
use crate::lock::{QueueGuard, QueueLock};
use crate::wr::write_receive;
use crate::wr_ids::WrIdPool;

const PRODUCER: usize = record::PRODUCER / 4;

/// A receive queue as the program's side sees it; ownership as in [`crate::sq::SendQueue`].
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    lock: QueueLock,
    /// The errno of posting now; 0 while the queue takes requests.
    gate: AtomicI32,
    max_sge: u32,
    log2_stride: u32,
    rqn: u32,
    slot: DoorbellSlot,
    /// The doorbell's value without the index, which is 0 in it.
    doorbell: AtomicU64,
    ring: BlockRing,
    record: Record,
    path: Arc<CardPath>,
    /// The program's names for the posted requests.
    wr_ids: WrIdPool,
    produced: Produced,
}

/// Entries posted, running.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Produced(AtomicU32);

/// Where a receive queue lives and how it is reached.
#[derive(Debug)]
pub(crate) struct ReceivePlace {
    /// The receive queue.
    pub rqn: u32,
    /// Generation of its QP; of a shared one any.
    pub generation: u8,
    /// The entries.
    pub ring: BlockRing,
    /// log2 of the blocks from one entry to the next.
    pub log2_stride: u8,
    /// The doorbell record.
    pub record: Record,
    /// The card.
    pub path: Arc<CardPath>,
    /// The lender of memory for the names of requests, if not the heap.
    pub lender: Option<Arc<dyn Lender>>,
}

impl ReceiveQueue {
    /// Makes the receive queue of a QP in RESET.
    pub(crate) fn new(place: ReceivePlace, max_sge: u32, single_threaded: bool) -> Result<Self> {
        let ReceivePlace { rqn, generation, ring, log2_stride, record, path, lender } = place;
        let entries = ring.blocks().wrapping_shr(u32::from(log2_stride)).max(1);
        let wr_ids = WrIdPool::lent(entries, lender.as_ref());
        let wr_ids = wr_ids.ok_or(Error::NoMemory("a receive queue"))?;
        Ok(Self {
            lock: QueueLock::new(single_threaded),
            gate: AtomicI32::new(libc::EINVAL),
            max_sge,
            log2_stride: u32::from(log2_stride),
            rqn,
            slot: path.slot(slot(QueueKind::Receive, rqn)),
            doorbell: AtomicU64::new(slot_value(rqn, generation, 0)),
            ring,
            record,
            path,
            wr_ids,
            produced: Produced::default(),
        })
    }

    /// Makes the own queue of a QP that has a shared one, this one: it is never opened, and stays
    /// empty. So posts and polls need not ask first which queue it is.
    pub(crate) fn beside(&self) -> Self {
        let (ring, record) = (self.ring.clone(), self.record.clone());
        Self::absent(self.rqn, ring, record, Arc::clone(&self.path))
    }

    /// Makes the own queue of a QP that has none: as [`Self::beside`]. Nothing is ever written to ring and
    /// record, whosoever they are.
    pub(crate) fn absent(rqn: u32, ring: BlockRing, record: Record, path: Arc<CardPath>) -> Self {
        Self {
            lock: QueueLock::new(false),
            gate: AtomicI32::new(libc::EINVAL),
            max_sge: 0,
            log2_stride: 0,
            rqn,
            slot: path.slot(slot(QueueKind::Receive, rqn)),
            doorbell: AtomicU64::new(0),
            ring,
            record,
            path,
            wr_ids: WrIdPool::new(1),
            produced: Produced::default(),
        }
    }

    /// Sets the errno of posting; 0 opens the queue.
    pub(crate) fn set_gate(&self, errno: i32) {
        self.gate.store(errno, Ordering::Relaxed);
    }

    /// Forgets everything posted, as RESET does; the caller holds the receive CQ's lock.
    pub(crate) fn reset(&self, generation: u8) {
        let _guard = self.lock.lock();
        self.doorbell.store(slot_value(self.rqn, generation, 0), Ordering::Relaxed);
        self.produced.0.store(0, Ordering::Relaxed);
        self.wr_ids.reset();
        self.record.store_release_u32(PRODUCER, 0);
    }

    /// Begins a list of work requests; fails with the errno of posting now, EIO on a dead card.
    #[inline(always)]
    pub(crate) fn begin(&self) -> Result<ReceiveBatch<'_>, i32> {
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
        let index = self.produced.0.load(Ordering::Relaxed);
        let room = self.wr_ids.room(index);
        Ok(ReceiveBatch { queue: self, guard, start: index, index, room })
    }

    /// Takes back a work request: its completion carries its tag.
    ///
    /// Returns the program's name for it; `None` where no such request is outstanding. The caller
    /// holds the receive CQ's lock.
    #[inline(always)]
    pub(crate) fn retire(&self, tag: u32) -> Option<u64> {
        self.wr_ids.give_back(tag)
    }

    /// Takes back the oldest outstanding work request: the card died with it.
    ///
    /// The caller holds the receive CQ's lock.
    pub(crate) fn flush_one(&self) -> Option<u64> {
        self.wr_ids.give_back_oldest(self.produced.0.load(Ordering::Relaxed))
    }
}

/// A list of receives being posted; the lock is held until it is dropped.
pub(crate) struct ReceiveBatch<'a> {
    queue: &'a ReceiveQueue,
    guard: QueueGuard<'a>,
    start: u32,
    index: u32,
    room: u32,
}

impl ReceiveBatch<'_> {
    /// Writes one work request into the ring, or fails with its errno and writes nothing.
    #[inline(always)]
    pub(crate) fn push(&mut self, wr_id: u64, sges: &[ibv_sge]) -> Result<(), i32> {
        let queue = self.queue;
        if sges.len() > queue.max_sge as usize {
            return Err(libc::EINVAL);
        }
        self.room = self.room.checked_sub(1).ok_or(libc::ENOMEM)?;
        let index = self.index;
        let tag = queue.wr_ids.take(index, wr_id);
        write_receive(&queue.ring, index.wrapping_shl(queue.log2_stride), tag, sges);
        self.index = index.wrapping_add(1);
        Ok(())
    }

    /// Shows the card the pushed requests: the record, then the doorbell, once for the list.
    #[inline(always)]
    pub(crate) fn finish(self) {
        let Self { queue, guard, start, index, .. } = self;
        if index == start {
            return;
        }
        queue.produced.0.store(index, Ordering::Relaxed);
        queue.record.store_release_u32(PRODUCER, index);
        queue.slot.ring(queue.doorbell.load(Ordering::Relaxed) | u64::from(index));
        // Others may post while the card is woken.
        drop(guard);
        queue.path.wake_for_receives();
    }
}

#[cfg(test)]
mod tests {
    use fpga_regs::engine::wqe::{ReceiveHeader, Sge, sge_at};

    use super::*;
    use crate::doorbell::tests::{memory, path};

    const SGE: ibv_sge = ibv_sge { addr: 0x9000, length: 4096, lkey: 3 };

    fn queue(entries: u32, log2_stride: u8) -> (ReceiveQueue, BlockRing, Record) {
        let memory = memory(64 * 1024);
        let ring = BlockRing::new(memory.clone(), 64, entries << log2_stride).unwrap();
        let record = Record::new(memory, 0).unwrap();
        let place = ReceivePlace {
            rqn: 5,
            generation: 0,
            ring: ring.clone(),
            log2_stride,
            record: record.clone(),
            path: path().0,
            lender: None,
        };
        let queue = ReceiveQueue::new(place, 7, false).unwrap();
        queue.set_gate(0);
        (queue, ring, record)
    }

    fn post(queue: &ReceiveQueue, wr_id: u64, sges: &[ibv_sge]) -> Result<(), i32> {
        let mut batch = queue.begin()?;
        let pushed = batch.push(wr_id, sges);
        batch.finish();
        pushed
    }

    #[test]
    fn entries_stand_at_their_stride_and_carry_their_tags() {
        let (queue, ring, record) = queue(4, 1);
        let sges = [SGE; 7];
        for wr_id in 0..6u32 {
            post(&queue, wr_id.into(), &sges).unwrap();
            let first = (wr_id % 4) * 2;
            let blocks = [ring.read(first), ring.read(first + 1)];
            let header = ReceiveHeader::decode(&[blocks[0]]);
            assert_eq!((header.num_sge, header.tag), (7, wr_id));
            let last = Sge { address: SGE.addr, length: SGE.length, lkey: SGE.lkey };
            assert_eq!(sge_at(&blocks, 16 + 6 * 16), Some(last));
            assert_eq!(record.load_relaxed_u32(PRODUCER), wr_id + 1);
            assert_eq!(queue.retire(wr_id), Some(wr_id.into()));
        }
    }

    #[test]
    fn a_full_queue_refuses_and_a_completion_makes_room() {
        let (queue, ..) = queue(4, 0);
        for wr_id in 10..14 {
            post(&queue, wr_id, &[SGE]).unwrap();
        }
        assert_eq!(post(&queue, 14, &[SGE]), Err(libc::ENOMEM));
        assert_eq!(queue.retire(4), None, "not posted yet");
        assert_eq!(queue.retire(0), Some(10));
        assert_eq!(queue.retire(0), None, "already retired");
        post(&queue, 14, &[SGE]).unwrap();
    }

    #[test]
    fn too_many_elements_are_refused_and_none_are_fine() {
        let (queue, ..) = queue(4, 1);
        assert_eq!(post(&queue, 1, &[SGE; 8]), Err(libc::EINVAL));
        assert_eq!(post(&queue, 1, &[]), Ok(()));
    }

    #[test]
    fn completions_in_another_order_than_that_of_posting_find_their_names() {
        let (queue, ring, _) = queue(4, 0);
        for wr_id in 10..14 {
            post(&queue, wr_id, &[SGE]).unwrap();
        }
        assert_eq!(queue.retire(2), Some(12));
        assert_eq!(post(&queue, 14, &[SGE]), Ok(()), "one has room");
        assert_eq!(post(&queue, 15, &[SGE]), Err(libc::ENOMEM));
        let header = ReceiveHeader::decode(&[ring.read(4)]);
        assert_eq!(header.tag, 6, "the entry that was given back, in its next generation");
        let names = [0, 6, 3, 1].map(|tag| queue.retire(tag));
        assert_eq!(names, [Some(10), Some(14), Some(13), Some(11)]);
    }

    #[test]
    fn indices_wrap_at_32_bits() {
        let (queue, _, record) = queue(2, 0);
        for pool in [&queue.produced.0, queue.wr_ids.given_back()] {
            pool.store(u32::MAX, Ordering::Relaxed);
        }
        post(&queue, 1, &[SGE]).unwrap();
        post(&queue, 2, &[SGE]).unwrap();
        assert_eq!(record.load_relaxed_u32(PRODUCER), 1);
        assert_eq!(post(&queue, 3, &[SGE]), Err(libc::ENOMEM));
        assert_eq!((queue.retire(1), queue.retire(0)), (Some(1), Some(2)));
    }

    #[test]
    fn a_reset_queue_starts_over_and_a_dead_one_flushes_in_order() {
        let (queue, _, record) = queue(4, 0);
        post(&queue, 1, &[]).unwrap();
        queue.reset(1);
        assert_eq!(record.load_relaxed_u32(PRODUCER), 0);
        assert_eq!(queue.flush_one(), None);
        post(&queue, 2, &[]).unwrap();
        post(&queue, 3, &[]).unwrap();
        assert_eq!(std::iter::from_fn(|| queue.flush_one()).collect::<Vec<_>>(), [2, 3]);
    }
}
