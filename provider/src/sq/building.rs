//! Work requests that a program builds call by call, and posts all of them or none.
//!
//! Each call writes into the ring at once. Nothing reads it before the list is complete.

use std::sync::atomic::Ordering;

use fpga_regs::engine::wqe::{Atomic, Datagram, SendHeader, SendOpcode};
use hostmem::{BlockRing, RingBlock, Waiters};

use super::{Cursor, SendBatch, SendQueue};
use crate::abi::verbs::{IBV_SEND_INLINE, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, ibv_sge};
use crate::doorbell::CardPath;
use crate::log::not_posted;
use crate::wr::{
    KeyRequest, Payload, header_words, write_element, write_header, write_operands, write_payload,
    write_result, write_srqn, write_target,
};

/// A list of work requests that is being built, if one is. Then the queue is held by it: its guard was kept.
pub(crate) struct Building<'a> {
    queue: &'a SendQueue,
    awaits: Awaits,
    /// The errno of a list that has failed, and EINVAL otherwise: of none.
    errno: i32,
    /// The block where the next request goes; while something of a request is awaited, where that one stands.
    block: u32,
    /// The number of requests for which there is room, running.
    end: u32,
    /// Requests before that one, running.
    requests: u32,
    /// The first block of the entry of a request that awaits its payload, and its first word without the payload.
    entry: RingBlock<'a>,
    codes: u64,
    /// The blocks of a request that awaits only its target.
    blocks: u32,
    /// The immediate data of a request along XRC.
    immediate: u32,
}

/// The next part of a list.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Awaits {
    /// A request, or the end.
    Request,
    /// The payload of a request, which may have none.
    Payload,
    /// Where the result of an atomic goes.
    Result,
    /// The payload and the target of a datagram, or of a request along XRC.
    PayloadAndTarget,
    /// Where the result of an atomic along XRC goes, and its target.
    ResultAndTarget,
    /// The target of a request that has its payload.
    Target,
    /// The end of a list that has failed.
    Failed,
    /// The begin of a list, or the end of one that could not hold the queue.
    Begin,
}

/// A work request without its payload, as it is to be posted.
#[derive(Clone, Copy)]
pub(crate) struct Request<'r> {
    /// `ibv_wr_opcode`.
    pub opcode: u32,
    /// `ibv_send_flags`.
    pub flags: u32,
    /// The place of the program's name for it: it is read last.
    pub wr_id: &'r u64,
    /// Remote memory, its address and key; zeros where the operation has none.
    pub remote: (u64, u32),
    /// Immediate data; 0 where the operation has none.
    pub immediate: u32,
}

impl<'a> Building<'a> {
    /// No list.
    pub(crate) fn of(queue: &'a SendQueue) -> Self {
        let (awaits, errno, entry) = (Awaits::Begin, libc::EINVAL, queue.ring.block(0));
        let (block, end, requests) = (0, 0, 0);
        let (codes, blocks, immediate) = (0, 0, 0);
        Self { queue, awaits, errno, block, end, requests, entry, codes, blocks, immediate }
    }

    /// Begins a list where there is none; nobody else posts to the queue before it ends. The place is
    /// another's until the queue is held, and asked for behind that.
    #[inline(always)]
    pub(crate) fn begin<'p>(queue: &'a SendQueue, place: impl FnOnce() -> &'p mut Self)
    where
        'a: 'p,
    {
        let Some(SendBatch { guard, cursor, end, .. }) = queue.begin_at_once() else {
            return Self::begin_waiting(place, queue);
        };
        queue.lock.keep_for_list(guard);
        let place = place();
        (place.awaits, place.end) = (Awaits::Request, end);
        place.go_on(cursor);
    }

    /// As [`Self::begin`], also where the queue takes nothing: it is held all the same.
    #[cold]
    #[inline(never)]
    fn begin_waiting<'p>(place: impl FnOnce() -> &'p mut Self, queue: &'a SendQueue)
    where
        'a: 'p,
    {
        let none = Self::of(queue);
        *place() = match queue.hold() {
            Ok((SendBatch { guard, cursor: Cursor { block, requests }, end, .. }, errno)) => {
                queue.lock.keep_for_list(guard);
                let awaits = if errno == 0 { Awaits::Request } else { Awaits::Failed };
                let errno = if errno == 0 { libc::EINVAL } else { errno };
                Self { awaits, errno, block, end, requests, ..none }
            }
            Err(errno) => Self { errno, ..none },
        };
    }

    #[inline(always)]
    fn cursor(&self) -> Cursor {
        Cursor { block: self.block, requests: self.requests }
    }

    #[inline(always)]
    fn go_on(&mut self, cursor: Cursor) {
        (self.block, self.requests) = (cursor.block, cursor.requests);
    }

    /// Adds a request, whose payload may follow, and its target if it is a datagram or goes along XRC.
    pub(crate) fn request(&mut self, request: Request<'_>) {
        if self.settle() && !self.request_at_once(&request) {
            self.request_along_xrc(&request);
        }
    }

    /// As [`Self::request`], where nothing is awaited of the request that was added last, and the operation
    /// is a usual one; else it answers false, and nothing is added.
    #[inline(always)]
    pub(crate) fn request_at_once(&mut self, request: &Request<'_>) -> bool {
        if self.awaits != Awaits::Request {
            return false;
        }
        let Ok(operation) = self.queue.shape.operations.get(request.opcode) else { return false };
        // The caller knows the operation, so that code for other operations is left out.
        let may_be_datagram = matches!(request.opcode, IBV_WR_SEND | IBV_WR_SEND_WITH_IMM);
        let awaits = match may_be_datagram && operation.is_datagram() {
            true => Awaits::PayloadAndTarget,
            false => Awaits::Payload,
        };
        self.open(request, operation.code(), awaits);
        true
    }

    /// As [`Self::request`], along XRC; any other fails.
    fn request_along_xrc(&mut self, request: &Request<'_>) {
        match self.queue.shape.operations.along_xrc(request.opcode) {
            Ok(operation) => self.open(request, operation.code(), Awaits::PayloadAndTarget),
            Err(errno) => self.fail(errno),
        }
        self.immediate = request.immediate;
    }

    /// As [`Self::request`], an atomic.
    pub(crate) fn atomic(&mut self, request: Request<'_>, operands: Atomic) {
        if !self.settle() {
            return;
        }
        let operations = &self.queue.shape.operations;
        let awaits = if operations.name_srq() { Awaits::ResultAndTarget } else { Awaits::Result };
        match operations.atomic(request.opcode) {
            Ok(opcode) => self.open(&request, opcode, awaits),
            Err(errno) => self.fail(errno),
        }
        self.immediate = 0;
        if self.awaits == awaits {
            write_operands(&self.queue.ring, self.block, operands);
        }
    }

    /// Writes the header of a request.
    #[inline(always)]
    fn open(&mut self, request: &Request<'_>, opcode: SendOpcode, awaits: Awaits) {
        let queue = self.queue;
        // How its payload is given says whether that is inline.
        let flags = match queue.shape.flags.get(request.flags & !IBV_SEND_INLINE) {
            Ok(flags) => flags,
            Err(errno) => return self.refuse(request.opcode, request.flags, errno),
        };
        let cursor = self.cursor();
        if cursor.requests == self.end {
            return self.fail(libc::ENOMEM);
        }
        let ((remote_address, rkey), immediate) = (request.remote, request.immediate);
        let header =
            SendHeader { opcode, flags, immediate, remote_address, rkey, ..SendHeader::default() };
        // One after the other: a written word takes no register any more.
        let (codes, others) = header_words(&header);
        (self.codes, self.awaits) = (codes, awaits);
        self.entry = queue.ring.block(cursor.block);
        write_header(self.entry, others);
        queue.note(cursor, *request.wr_id);
    }

    /// Adds a change of keys, which has no payload.
    pub(crate) fn key_change(&mut self, opcode: u32, request: &KeyRequest) {
        if !self.settle() {
            return;
        }
        // There is nothing that could stand inline.
        let request = KeyRequest { flags: request.flags & !IBV_SEND_INLINE, ..*request };
        match self.queue.push_key_change(self.cursor(), self.end, opcode, &request) {
            Ok(cursor) => self.go_on(cursor),
            Err(errno) => self.refuse(opcode, request.flags, errno),
        }
    }

    /// Gives the request that was added last one element for its payload, or answers false where that is not
    /// so simple. Every entry has room for one.
    #[inline(always)]
    pub(crate) fn element(&mut self, element: &ibv_sge) -> bool {
        let is_simple = self.awaits == Awaits::Payload;
        if is_simple {
            write_element(self.entry, self.codes, element);
            self.end_request(1);
        }
        is_simple
    }

    /// Gives the request that was added last its payload.
    pub(crate) fn payload(&mut self, payload: Payload<'_>) {
        if self.awaits != Awaits::Payload {
            return self.other_payload(payload);
        }
        match self.write_payload(payload) {
            Ok(blocks) => self.end_request(blocks),
            Err(errno) => self.fail(errno),
        }
    }

    /// Gives the request that was added last so many inline bytes. Answers with the ring and the block of its entry,
    /// into which the caller copies the bytes, unless the list fails.
    pub(crate) fn inline(&mut self, length: u32) -> Option<(&'a BlockRing, u32)> {
        let block = self.block;
        self.payload(Payload::Inline(length));
        let is_taken = matches!(self.awaits, Awaits::Request | Awaits::Target);
        is_taken.then_some((&self.queue.ring, block))
    }

    /// Writes the payload of the request that awaits it; answers its blocks.
    fn write_payload(&mut self, payload: Payload<'_>) -> Result<u32, i32> {
        let shape = &self.queue.shape;
        let fits = match payload {
            Payload::Sges(sges) => sges.len() <= shape.max_sge as usize,
            Payload::Inline(length) => {
                let SendHeader { opcode, .. } =
                    SendHeader::decode(&[[self.codes, 0, 0, 0, 0, 0, 0, 0]]);
                length <= shape.max_inline && opcode != SendOpcode::Read
            }
        };
        if !fits {
            return Err(libc::EINVAL);
        }
        Ok(write_payload(&self.queue.ring, self.block, self.codes, payload))
    }

    /// As [`Self::payload`], of a request that has no target yet, or of an atomic; of no other.
    #[inline(never)]
    fn other_payload(&mut self, payload: Payload<'_>) {
        let queue = self.queue;
        match (self.awaits, payload) {
            (Awaits::PayloadAndTarget, _) => match self.write_payload(payload) {
                Ok(blocks) => (self.awaits, self.blocks) = (Awaits::Target, blocks),
                Err(errno) => self.fail(errno),
            },
            (Awaits::Result, Payload::Sges([result])) => {
                write_result(&queue.ring, self.block, self.codes, result);
                self.end_request(1);
            }
            (Awaits::ResultAndTarget, Payload::Sges([result])) => {
                write_result(&queue.ring, self.block, self.codes, result);
                (self.awaits, self.blocks) = (Awaits::Target, 1);
            }
            _ => self.fail(libc::EINVAL),
        }
    }

    /// Tells where the datagram goes that was added last; its payload may be there already.
    pub(crate) fn target(&mut self, datagram: Datagram) {
        self.tell(|ring, block, _| write_target(ring, block, datagram));
    }

    /// Tells for which shared receive queue the request is that was added last, along XRC; its payload may be
    /// there already.
    pub(crate) fn srq(&mut self, srqn: u32) {
        self.tell(|ring, block, immediate| write_srqn(ring, block, srqn, immediate));
    }

    /// Writes the target of the request that was added last into its entry, by its ring, its block and
    /// its immediate data.
    fn tell(&mut self, write: impl FnOnce(&BlockRing, u32, u32)) {
        self.awaits = match self.awaits {
            Awaits::Payload | Awaits::PayloadAndTarget => Awaits::Payload,
            Awaits::Result | Awaits::ResultAndTarget => Awaits::Result,
            Awaits::Target => Awaits::Target,
            Awaits::Request | Awaits::Failed | Awaits::Begin => return self.fail(libc::EINVAL),
        };
        write(&self.queue.ring, self.block, self.immediate);
        if self.awaits == Awaits::Target {
            self.end_request(self.blocks);
        }
    }

    /// Goes on behind a request of which nothing is awaited.
    #[inline(always)]
    fn end_request(&mut self, blocks: u32) {
        self.block = self.block.wrapping_add(blocks);
        self.requests = self.requests.wrapping_add(1);
        self.awaits = Awaits::Request;
    }

    /// Gives the request that was added last no payload; the list fails if the request lacks something else.
    /// Answers whether the list can go on.
    #[cold]
    #[inline(never)]
    fn settle(&mut self) -> bool {
        match self.awaits {
            Awaits::Payload => self.payload(Payload::Sges(&[])),
            Awaits::Request => {}
            _ => self.fail(libc::EINVAL),
        }
        self.awaits == Awaits::Request
    }

    /// Makes posting the list fail as [`Self::fail`] does, by a request of which the card may not offer something.
    #[cold]
    #[inline(never)]
    fn refuse(&mut self, opcode: u32, flags: u32, errno: i32) {
        if !matches!(self.awaits, Awaits::Failed | Awaits::Begin) {
            not_posted("ibv_wr_complete", (opcode, flags), errno);
        }
        self.fail(errno);
    }

    /// Makes posting the list fail, if nothing was wrong before.
    #[cold]
    #[inline(never)]
    pub(crate) fn fail(&mut self, errno: i32) {
        if matches!(self.awaits, Awaits::Failed | Awaits::Begin) {
            return;
        }
        self.forget();
        (self.awaits, self.errno) = (Awaits::Failed, errno);
    }

    /// Forgets the notes of the list's requests.
    fn forget(&mut self) {
        let queue = self.queue;
        // A number that is consumed is of nothing that is outstanding.
        let consumed = queue.consumed.requests.load(Ordering::Acquire);
        let start = queue.produced.block.load(Ordering::Relaxed);
        let is_open = self.awaits != Awaits::Request;
        let written = self.block.wrapping_sub(start).wrapping_add(u32::from(is_open));
        // Of a list that was overtaken, the start is another.
        let written = written.min(queue.posted.mask().wrapping_add(1));
        for block in (0..written).map(|step| start.wrapping_add(step)) {
            queue.posted.get(block).number.store(consumed, Ordering::Relaxed);
        }
    }

    /// Ends the list and posts it; 0, or the errno: then nothing of it is posted.
    #[inline(always)]
    pub(crate) fn complete(&mut self) -> i32 {
        if self.awaits != Awaits::Request {
            return self.settle_and_complete();
        }
        self.awaits = Awaits::Begin;
        let queue = self.queue;
        let Some(guard) = queue.lock.end_at_once() else { return self.complete_rare() };
        queue.show(self.cursor());
        // By calls that answer, so that nothing is left to do behind them.
        match guard.release() {
            None if queue.path.is_asleep() => queue.path.wake(),
            None => 0,
            Some(waiters) => both_woken(waiters, &queue.path),
        }
    }

    /// As [`Self::complete`], of a queue without a lock, or a list that may have been overtaken.
    #[cold]
    #[inline(never)]
    fn complete_rare(&self) -> i32 {
        let end = self.queue.lock.end();
        if end.is_overtaken {
            self.queue.forget_notes();
            return libc::EINVAL;
        }
        self.queue.publish(self.cursor(), end.guard);
        0
    }

    /// As [`Self::complete`], where something else is awaited: apart, so that it takes no registers there.
    #[cold]
    #[inline(never)]
    fn settle_and_complete(&mut self) -> i32 {
        if self.settle() { self.complete() } else { self.let_go() }
    }

    /// Ends a list that has failed; answers why.
    #[cold]
    #[inline(never)]
    fn let_go(&mut self) -> i32 {
        if std::mem::replace(&mut self.awaits, Awaits::Begin) == Awaits::Failed {
            let end = self.queue.lock.end();
            if end.is_overtaken {
                self.queue.forget_notes();
            }
        }
        std::mem::replace(&mut self.errno, libc::EINVAL)
    }

    /// Forgets the list.
    #[cold]
    pub(crate) fn abort(&mut self) {
        self.fail(libc::EINVAL);
        self.let_go();
    }
}

/// Wakes the threads that wait for the queue, and the card if it sleeps, and answers 0.
#[cold]
#[inline(never)]
fn both_woken(waiters: Waiters<'_, ()>, path: &CardPath) -> i32 {
    waiters.wake();
    path.wake_if_asleep();
    0
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    use super::*;
    use crate::abi::verbs as ibv;
    use crate::lock::SendLock;
    use crate::qp::tests::{queues, queues_of};
    use fpga_regs::engine::doorbell::record;
    use fpga_regs::engine::qp::QpType;
    use fpga_regs::engine::wqe::{SendFlags, SendHeader, SendOpcode};

    const PRODUCER: usize = record::PRODUCER / 4;
    const WRITE: u32 = ibv::IBV_WR_RDMA_WRITE;
    const SIGNALED: u32 = ibv::IBV_SEND_SIGNALED;

    fn sge(length: u32) -> [ibv_sge; 1] {
        [ibv_sge { addr: 0x1000, length, lkey: 3 }]
    }

    fn begin(queue: &SendQueue) -> Building<'_> {
        let mut list = Building::of(queue);
        Building::begin(queue, || &mut list);
        list
    }

    fn request(
        opcode: u32,
        flags: u32,
        wr_id: u64,
        remote: (u64, u32),
        immediate: u32,
    ) -> Request<'static> {
        Request { opcode, flags, wr_id: Box::leak(Box::new(wr_id)), remote, immediate }
    }

    fn producer(queue: &SendQueue) -> u32 {
        queue.record.load_relaxed_u32(PRODUCER)
    }

    #[test]
    fn a_list_is_shown_to_the_card_once_it_is_complete() {
        let queues = queues(1, 0);
        let mut list = begin(&queues.send);
        list.request(request(WRITE, SIGNALED, 10, (0x5000, 77), 0));
        list.payload(Payload::Sges(&sge(8)));
        list.request(request(ibv::IBV_WR_SEND_WITH_IMM, 0, 11, (0, 0), 0xaabb));
        assert_eq!(producer(&queues.send), 0);
        assert_eq!(list.complete(), 0);
        assert_eq!(producer(&queues.send), 2);
        let first = SendHeader::decode(&[queues.send.ring.read(0)]);
        assert_eq!((first.opcode, first.flags), (SendOpcode::Write, SendFlags::SIGNALED));
        assert_eq!((first.num_sge, first.blocks), (1, 1));
        assert_eq!((first.remote_address, first.rkey), (0x5000, 77));
        let second = SendHeader::decode(&[queues.send.ring.read(1)]);
        assert_eq!((second.opcode, second.immediate), (SendOpcode::SendImm, 0xaabb));
        assert_eq!((second.num_sge, second.blocks), (0, 1), "no payload was given");
        assert_eq!((queues.send.retire(0), queues.send.retire(1)), (Some(10), Some(11)));
    }

    const ADD: u32 = ibv::IBV_WR_ATOMIC_FETCH_AND_ADD;
    const SWAP: u32 = ibv::IBV_WR_ATOMIC_CMP_AND_SWP;
    const OPERANDS: Atomic = Atomic { swap_add: 0x1122, compare: 0x3344 };

    #[test]
    fn atomics_stand_in_a_list_between_other_requests() {
        let queues = queues(1, 0);
        let mut list = begin(&queues.send);
        list.atomic(request(SWAP, SIGNALED, 1, (0x5000, 77), 0), OPERANDS);
        list.payload(Payload::Sges(&sge(8)));
        list.request(request(WRITE, 0, 2, (0x6000, 78), 0));
        list.payload(Payload::Sges(&sge(8)));
        // How its payload is given says that it is not inline.
        let flags = SIGNALED | ibv::IBV_SEND_INLINE;
        let operands = Atomic { swap_add: 5, compare: 0 };
        list.atomic(request(ADD, flags, 3, (0x7000, 79), 0), operands);
        list.payload(Payload::Sges(&sge(8)));
        assert_eq!(list.complete(), 0);
        assert_eq!(producer(&queues.send), 3);
        let entry = |block: u32| {
            let block = [queues.send.ring.read(block)];
            (SendHeader::decode(&block), Atomic::decode(&block))
        };
        let ((swap, swap_operands), (write, _), (add, add_operands)) =
            (entry(0), entry(1), entry(2));
        assert_eq!((swap.opcode, swap.flags), (SendOpcode::CompareSwap, SendFlags::SIGNALED));
        assert_eq!((swap.remote_address, swap.rkey, swap_operands), (0x5000, 77, OPERANDS));
        assert_eq!((write.opcode, write.remote_address), (SendOpcode::Write, 0x6000));
        assert_eq!((add.opcode, add.flags), (SendOpcode::FetchAdd, SendFlags::SIGNALED));
        assert_eq!((add.remote_address, add.rkey, add_operands), (0x7000, 79, operands));
        assert_eq!(queues.send.retire(2), Some(3));
    }

    #[test]
    fn an_atomic_has_one_element_that_is_not_inline() {
        let queues = queues(2, 0);
        let two = [sge(8)[0]; 2];
        let payloads = [None, Some(Payload::Sges(&two)), Some(Payload::Inline(8))];
        for payload in payloads {
            let mut list = begin(&queues.send);
            list.atomic(request(ADD, SIGNALED, 1, (0x5000, 77), 0), OPERANDS);
            if let Some(payload) = payload {
                list.payload(payload);
            }
            assert_eq!(list.complete(), libc::EINVAL);
            assert_eq!(producer(&queues.send), 0);
        }
    }

    /// Something that keeps a list from being posted.
    type Wrong = fn(&mut Building<'_>);

    #[test]
    fn a_list_with_anything_wrong_leaves_nothing_behind() {
        let queues = queues(1, 0);
        let wrongs: [(Wrong, i32); 9] = [
            (|list| list.fail(libc::EINVAL), libc::EINVAL),
            (|list| list.request(request(99, 0, 0, (0, 0), 0)), libc::EINVAL),
            (|list| list.request(request(ibv::IBV_WR_TSO, 0, 0, (0, 0), 0)), libc::EOPNOTSUPP),
            (|list| list.request(request(WRITE, 1 << 30, 0, (0, 0), 0)), libc::EINVAL),
            (|list| list.payload(Payload::Sges(&sge(1))), libc::EINVAL),
            (|list| list.atomic(request(ADD, 0, 0, (0, 0), 0), OPERANDS), libc::EINVAL),
            (
                |list| {
                    list.atomic(request(SWAP, 1 << 30, 0, (0, 0), 0), OPERANDS);
                    list.payload(Payload::Sges(&sge(8)));
                },
                libc::EINVAL,
            ),
            (
                |list| {
                    list.request(request(WRITE, 0, 0, (0, 0), 0));
                    list.payload(Payload::Sges(&[sge(1)[0]; 3]));
                },
                libc::EINVAL,
            ),
            (
                |list| (0..8).for_each(|wr_id| list.request(request(WRITE, 0, wr_id, (0, 0), 0))),
                libc::ENOMEM,
            ),
        ];
        for (wrong, errno) in wrongs {
            let mut list = begin(&queues.send);
            list.request(request(WRITE, SIGNALED, 1, (1, 2), 0));
            list.payload(Payload::Sges(&sge(8)));
            wrong(&mut list);
            list.request(request(WRITE, SIGNALED, 2, (1, 2), 0));
            list.payload(Payload::Sges(&sge(8)));
            assert_eq!(list.complete(), errno);
            assert_eq!(producer(&queues.send), 0);
            assert!((0..8).all(|block| queues.send.retire(block).is_none()));
        }
    }

    #[test]
    fn what_is_aborted_is_not_found_when_the_card_dies_with_what_comes_after() {
        let queues = queues(1, 0);
        let mut list = begin(&queues.send);
        (0..8).for_each(|wr_id| list.request(request(WRITE, 0, 100 + wr_id, (1, 2), 0)));
        list.abort();
        // These begin elsewhere: each of them takes two blocks.
        let mut list = begin(&queues.send);
        for wr_id in 0..3 {
            list.request(request(WRITE, 0, wr_id, (1, 2), 0));
            assert_eq!(list.inline(40).map(|place| place.1), None);
        }
        assert_eq!(list.complete(), libc::EINVAL, "there are 32 bytes at most");
        // The next one takes one block.
        let mut list = begin(&queues.send);
        list.request(request(WRITE, 0, 0, (1, 2), 0));
        assert_eq!(list.inline(32).map(|place| place.1), Some(0));
        let entry = SendHeader::decode(&[queues.send.ring.read(0)]);
        assert_eq!((entry.flags, entry.inline_length, entry.num_sge), (SendFlags::INLINE, 32, 0));
        list.abort();
        let mut list = begin(&queues.send);
        (0..8).for_each(|wr_id| list.request(request(WRITE, 0, wr_id, (1, 2), 0)));
        assert_eq!(list.complete(), 0);
        let flushed: Vec<_> = std::iter::from_fn(|| queues.send.flush_one()).collect();
        assert_eq!(flushed, (0..8).collect::<Vec<_>>());
    }

    #[test]
    fn an_abort_where_the_queue_is_full_leaves_what_is_outstanding() {
        let queues = queues(1, 0);
        let mut list = begin(&queues.send);
        (0..8).for_each(|wr_id| list.request(request(WRITE, 0, wr_id, (1, 2), 0)));
        assert_eq!(list.complete(), 0);
        let mut list = begin(&queues.send);
        list.request(request(WRITE, 0, 8, (1, 2), 0));
        assert_eq!(list.complete(), libc::ENOMEM);
        assert_eq!(queues.send.retire(0), Some(0));
        let mut list = begin(&queues.send);
        list.request(request(WRITE, 0, 8, (1, 2), 0));
        list.abort();
        assert_eq!(queues.send.retire(8), None);
        assert_eq!(queues.send.retire(7), Some(7));
    }

    const THERE: Datagram = Datagram { ah: 7, qpn: 0x1234, qkey: 0x8000_0001 };

    #[test]
    fn a_datagram_is_told_its_target_before_its_payload_or_behind() {
        let queues = queues_of(QpType::Ud);
        let mut list = begin(&queues.send);
        let send = |wr_id| request(ibv::IBV_WR_SEND, SIGNALED, wr_id, (0, 0), 0);
        list.request(send(1));
        list.target(THERE);
        list.payload(Payload::Sges(&sge(8)));
        list.request(send(2));
        list.payload(Payload::Sges(&sge(8)));
        list.target(Datagram { ah: 8, ..THERE });
        // The last one counts, and an empty message needs one, too.
        list.request(send(3));
        list.target(THERE);
        list.target(Datagram { ah: 9, ..THERE });
        assert_eq!(list.complete(), 0);
        let told = |block| Datagram::decode(&[queues.send.ring.read(block)]);
        assert_eq!(told(0), THERE);
        assert_eq!(told(1), Datagram { ah: 8, ..THERE });
        assert_eq!(told(2), Datagram { ah: 9, ..THERE });
        let lengths = [0, 1, 2].map(|i| SendHeader::decode(&[queues.send.ring.read(i)]).num_sge);
        assert_eq!(lengths, [1, 1, 0]);
    }

    #[test]
    fn along_xrc_each_request_names_a_queue_before_its_payload_or_behind() {
        let queues = queues_of(QpType::XrcSend);
        let mut list = begin(&queues.send);
        list.request(request(WRITE, SIGNALED, 1, (0x5000, 77), 0));
        list.srq(40);
        list.payload(Payload::Sges(&sge(8)));
        list.request(request(ibv::IBV_WR_SEND_WITH_IMM, 0, 2, (0, 0), 0xaabb));
        list.payload(Payload::Sges(&sge(8)));
        list.srq(41);
        list.atomic(request(ADD, 0, 3, (0x6000, 78), 0), OPERANDS);
        list.payload(Payload::Sges(&sge(8)));
        list.srq(42);
        list.atomic(request(SWAP, 0, 4, (0x7000, 79), 0), OPERANDS);
        list.srq(43);
        list.payload(Payload::Sges(&sge(8)));
        assert_eq!(list.complete(), 0);
        let entries = [0, 1, 2, 3].map(|i| SendHeader::decode(&[queues.send.ring.read(i)]));
        assert_eq!(entries.map(|it| it.remote_srqn), [40, 41, 42, 43]);
        assert_eq!(entries.map(|it| it.immediate), [0, 0xaabb, 0, 0]);
        assert_eq!(entries.map(|it| it.num_sge), [1; 4]);
        assert_eq!(entries.map(|it| it.remote_address), [0x5000, 0, 0x6000, 0x7000]);
        // A list with a request that names none fails.
        let lacking: [Wrong; 3] = [
            |list| list.payload(Payload::Sges(&sge(8))),
            |_| {},
            |list| {
                list.atomic(request(ADD, 0, 3, (0x6000, 78), 0), OPERANDS);
                list.payload(Payload::Sges(&sge(8)));
            },
        ];
        for lacking in lacking {
            let mut list = begin(&queues.send);
            list.request(request(WRITE, SIGNALED, 1, (0x5000, 77), 0));
            lacking(&mut list);
            assert_eq!(list.complete(), libc::EINVAL);
            assert_eq!(producer(&queues.send), 4);
        }
    }

    #[test]
    fn a_datagram_that_goes_nowhere_fails_its_list() {
        let send = request(ibv::IBV_WR_SEND, SIGNALED, 1, (0, 0), 0);
        let wrongs: [Wrong; 3] = [
            |_| {},
            |list| list.payload(Payload::Sges(&sge(8))),
            |list| {
                list.payload(Payload::Sges(&sge(8)));
                list.payload(Payload::Sges(&sge(8)));
                list.target(THERE);
            },
        ];
        for wrong in wrongs {
            for more in [false, true] {
                let queues = queues_of(QpType::Ud);
                let mut list = begin(&queues.send);
                list.request(send);
                wrong(&mut list);
                if more {
                    list.request(send);
                    list.target(THERE);
                }
                assert_eq!(list.complete(), libc::EINVAL);
                // Nor is it sent where the last one was to go.
                let mut list = begin(&queues.send);
                list.request(send);
                list.payload(Payload::Sges(&sge(8)));
                assert_eq!(list.complete(), libc::EINVAL);
                assert_eq!(producer(&queues.send), 0);
            }
        }
        let queues = queues_of(QpType::Ud);
        let mut list = begin(&queues.send);
        list.target(THERE);
        assert_eq!(list.complete(), libc::EINVAL, "there is no request");
    }

    #[test]
    fn a_queue_that_takes_nothing_says_so_at_the_end() {
        let queues = queues(1, 0);
        queues.close(libc::EIO);
        let mut list = begin(&queues.send);
        list.request(request(WRITE, 0, 8, (1, 2), 0));
        list.payload(Payload::Sges(&sge(8)));
        assert_eq!(list.complete(), libc::EIO);
        assert_eq!(Building::of(&queues.send).complete(), libc::EINVAL);
    }

    #[test]
    fn a_list_keeps_others_from_posting_until_it_ends() {
        let queues = queues(1, 0);
        let ends: [fn(&mut Building<'_>); 3] = [
            |list| assert_eq!(list.complete(), 0),
            |list| list.abort(),
            |list| {
                list.fail(libc::EFAULT);
                assert_eq!(list.complete(), libc::EFAULT);
            },
        ];
        for end in ends {
            let mut list = begin(&queues.send);
            assert!(queues.send.begin_at_once().is_none());
            end(&mut list);
            let other = queues.send.begin_at_once();
            assert!(other.is_some());
            // A list that has ended does not release another's lock.
            assert_eq!(list.complete(), libc::EINVAL);
            list.abort();
            assert!(queues.send.begin_at_once().is_none());
        }
    }

    #[test]
    fn threads_that_build_lists_exclude_each_other_and_all_come_through() {
        const THREADS: u32 = 4;
        const ROUNDS: u32 = 2000;
        let queues = queues(1, 0);
        let count = AtomicU32::new(0);
        let build = || {
            for round in 0..ROUNDS {
                let mut list = begin(&queues.send);
                let before = count.load(Ordering::Relaxed);
                // Now and then the others are made to sleep.
                if round % 64 == 0 {
                    std::thread::sleep(Duration::from_micros(100));
                }
                count.store(before + 1, Ordering::Relaxed);
                match round % 3 {
                    0 => assert_eq!(list.complete(), 0),
                    1 => list.abort(),
                    _ => {
                        list.fail(libc::EFAULT);
                        assert_eq!(list.complete(), libc::EFAULT);
                    }
                }
            }
        };
        std::thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(build))));
        assert_eq!(count.into_inner(), THREADS * ROUNDS);
    }

    /// How a list ends that was open when its queue was reset.
    type Ended = fn(&mut Building<'_>) -> i32;

    #[test]
    fn a_list_that_is_open_at_a_reset_is_not_waited_for_and_posts_nothing() {
        let add = |list: &mut Building<'_>, wr_id| {
            list.request(request(WRITE, SIGNALED, wr_id, (1, 2), 0));
            list.payload(Payload::Sges(&sge(8)));
        };
        let ends: [(&str, Ended); 5] = [
            ("completed", |list| list.complete()),
            ("aborted", |list| {
                list.abort();
                libc::EINVAL
            }),
            ("failed", |list| {
                list.fail(libc::EINVAL);
                list.complete()
            }),
            ("full", |list| {
                (0..8).for_each(|wr_id| list.request(request(WRITE, 0, wr_id, (1, 2), 0)));
                if list.complete() == libc::ENOMEM { libc::EINVAL } else { 0 }
            }),
            ("waiting for its payload", |list| {
                list.request(request(WRITE, SIGNALED, 9, (1, 2), 0));
                list.complete()
            }),
        ];
        for (how, end) in ends {
            for single_threaded in [false, true] {
                let mut queues = queues(1, 0);
                let send = &mut Arc::get_mut(&mut queues).unwrap().send;
                send.lock = SendLock::new(single_threaded);
                // Two that the card has, of which one is complete, and two of a list.
                let mut list = begin(&queues.send);
                (0..2).for_each(|wr_id| add(&mut list, wr_id));
                assert_eq!(list.complete(), 0);
                assert_eq!(queues.send.retire(0), Some(0));
                let mut list = begin(&queues.send);
                (2..4).for_each(|wr_id| add(&mut list, wr_id));
                (1..3).for_each(|generation| queues.send.reset(generation));
                assert_eq!(producer(&queues.send), 0, "{how}");
                add(&mut list, 4);
                assert_eq!(end(&mut list), libc::EINVAL, "{how}");
                assert_eq!(producer(&queues.send), 0, "{how}");
                assert!((0..8).all(|block| queues.send.retire(block).is_none()), "{how}");
                assert_eq!(queues.send.flush_one(), None, "{how}");
                // The next one is the first of the QP's new life.
                let mut list = begin(&queues.send);
                add(&mut list, 5);
                assert_eq!(list.complete(), 0, "{how}");
                assert_eq!(producer(&queues.send), 1, "{how}");
                let posted = SendHeader::decode(&[queues.send.ring.read(0)]);
                assert_eq!(posted.opcode, SendOpcode::Write, "{how}");
                assert_eq!(queues.send.retire(0), Some(5), "{how}");
                assert!(queues.send.begin_at_once().is_some(), "{how}");
            }
        }
    }

    #[test]
    fn a_reset_while_a_list_is_posted_comes_before_it_or_behind_it_and_nothing_is_left() {
        const ROUNDS: u32 = 3000;
        let queues = queues(1, 0);
        let (open, ended) = (AtomicU32::new(0), AtomicU32::new(0));
        let wait_for = |word: &AtomicU32, round: u32| {
            while word.load(Ordering::Acquire) != round {
                std::thread::yield_now();
            }
        };
        let post = |told: &dyn Fn()| {
            let mut list = begin(&queues.send);
            told();
            for wr_id in 0..3 {
                list.request(request(WRITE, SIGNALED, wr_id, (1, 2), 0));
            }
            list.complete()
        };
        let build = || {
            for round in 1..=ROUNDS {
                assert_eq!(post(&|| {}), 0);
                let posted = post(&|| open.store(round, Ordering::Release));
                assert!([0, libc::EINVAL].contains(&posted), "{posted}");
                ended.store(round, Ordering::Release);
                wait_for(&open, 0);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(build);
            for round in 1..=ROUNDS {
                wait_for(&open, round);
                (0..round % 128).for_each(|_| std::hint::spin_loop());
                queues.send.reset(round as u8);
                wait_for(&ended, round);
                let noted = queues.send.produced.requests.load(Ordering::Relaxed);
                assert_eq!((producer(&queues.send), noted), (0, 0), "round {round}");
                assert!((0..8).all(|block| queues.send.retire(block).is_none()), "round {round}");
                assert!(queues.send.begin_at_once().is_some(), "round {round}");
                open.store(0, Ordering::Release);
            }
        });
    }

    const SRQN: u32 = 0x12_3456;

    #[test]
    fn a_request_along_xrc_is_told_its_queue_before_its_payload_or_behind_it() {
        let sges = sge(8);
        let imm = request(ibv::IBV_WR_RDMA_WRITE_WITH_IMM, 0, 1, (0x5000, 77), 0xaabb);
        for payload in [Payload::Sges(&sges), Payload::Inline(8)] {
            let queues = queues_of(QpType::XrcSend);
            let mut list = begin(&queues.send);
            list.request(imm);
            list.srq(SRQN);
            list.payload(payload);
            list.request(imm);
            list.payload(payload);
            list.srq(SRQN + 1);
            list.atomic(request(ADD, 0, 2, (0x7000, 79), 0), OPERANDS);
            list.payload(Payload::Sges(&sges));
            list.srq(SRQN + 2);
            // No payload is needed, and the number is.
            list.request(request(ibv::IBV_WR_SEND, 0, 3, (0, 0), 0));
            list.srq(SRQN + 3);
            assert_eq!(list.complete(), 0);
            let entry = |block| SendHeader::decode(&[queues.send.ring.read(block)]);
            let entries: [SendHeader; 4] = std::array::from_fn(|block| entry(block as u32));
            let seen = entries.map(|it| (it.opcode, it.remote_srqn, it.immediate, it.rkey));
            let along = (SendOpcode::WriteImm, SRQN, 0xaabb, 77);
            let add = (SendOpcode::FetchAdd, SRQN + 2, 0, 79);
            let send = (SendOpcode::Send, SRQN + 3, 0, 0);
            assert_eq!(seen, [along, (along.0, SRQN + 1, along.2, along.3), add, send]);
        }
    }

    #[test]
    fn a_list_along_xrc_without_a_number_or_with_one_that_nothing_asks_for_is_not_posted() {
        let send = request(ibv::IBV_WR_SEND, 0, 1, (0, 0), 0);
        let wrongs: [(&str, Wrong); 5] = [
            ("none", |_| {}),
            ("none behind its payload", |list| list.payload(Payload::Sges(&sge(8)))),
            ("none before the next request", |list| {
                list.payload(Payload::Sges(&sge(8)));
                list.request(request(ibv::IBV_WR_SEND, 0, 2, (0, 0), 0));
                list.srq(SRQN);
            }),
            ("two", |list| {
                list.payload(Payload::Sges(&sge(8)));
                (0..2).for_each(|_| list.srq(SRQN));
            }),
            ("where a datagram goes", |list| {
                list.payload(Payload::Sges(&sge(8)));
                list.target(THERE);
                list.srq(SRQN);
            }),
        ];
        for (what, wrong) in wrongs {
            let queues = queues_of(QpType::XrcSend);
            let mut list = begin(&queues.send);
            list.request(send);
            wrong(&mut list);
            assert_eq!(list.complete(), libc::EINVAL, "{what}");
            assert_eq!(producer(&queues.send), 0, "{what}");
        }
        let queues = queues_of(QpType::XrcSend);
        let mut list = begin(&queues.send);
        list.srq(SRQN);
        assert_eq!(list.complete(), libc::EINVAL, "no request");
    }
}
