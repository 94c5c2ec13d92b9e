//! Work requests that a program builds call by call, and posts all of them or none.

use std::sync::atomic::Ordering;

use fpga_regs::engine::wqe::{Atomic, Datagram};

use super::{SendBatch, SendQueue};
use crate::abi::verbs::IBV_SEND_INLINE;
use crate::wr::{AtomicRequest, KeyRequest, Payload, SendRequest, write_srqn, write_target};

/// A list of work requests that is being built, if one is.
pub(crate) struct Building<'a> {
    state: State<'a>,
    /// The request of which something is awaited.
    open: Request,
    /// The operands of the atomic that was added last; of no other request.
    operands: Atomic,
    /// Where that goes, if it is a datagram or along XRC.
    target: Target,
    /// The immediate data that was written where that is owed, along XRC.
    owed_immediate: u32,
}

/// Where a datagram, or a request along XRC, goes.
enum Target {
    /// Nobody has said.
    Unknown,
    /// There.
    Told(Datagram),
    /// Along XRC: to that shared receive queue.
    Srq(u32),
    /// It was written without; its entry begins with this block.
    Owed(u32),
}

/// How the list does.
enum State<'a> {
    /// Nothing was wrong with it so far.
    Good(SendBatch<'a>),
    /// Posting it fails with that errno; the queue is held until it ends, where it is held.
    Failed(Option<SendBatch<'a>>, i32),
}

/// A work request without its payload, as it is to be posted.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    /// `ibv_wr_opcode`.
    pub opcode: u32,
    /// `ibv_send_flags`.
    pub flags: u32,
    /// The program's name for it.
    pub wr_id: u64,
    /// Remote memory, its address and key, where the operation has one.
    pub remote: (u64, u32),
    /// Immediate data, where the operation has it.
    pub immediate: u32,
}

/// The opcode of no request.
const NONE: u32 = u32::MAX;
/// The opcode of a datagram that was written and has no target yet; none that can be posted.
const TARGETLESS: u32 = u32::MAX - 1;

impl<'a> Building<'a> {
    /// No list.
    pub(crate) const fn none() -> Self {
        Self::new(State::Failed(None, libc::EINVAL))
    }

    #[inline(always)]
    const fn new(state: State<'a>) -> Self {
        let open = Request { opcode: NONE, flags: 0, wr_id: 0, remote: (0, 0), immediate: 0 };
        let operands = Atomic { swap_add: 0, compare: 0 };
        Self { state, open, operands, target: Target::Unknown, owed_immediate: 0 }
    }

    /// Begins a list where there is none; nobody else posts to the queue before it ends. The place is
    /// another's until the queue is held, and asked for behind that.
    #[inline(always)]
    pub(crate) fn begin<'p>(queue: &'a SendQueue, place: impl FnOnce() -> &'p mut Self)
    where
        'a: 'p,
    {
        let state = match queue.begin_at_once() {
            Some(batch) => State::Good(batch),
            None => return Self::begin_waiting(queue, place),
        };
        let place = place();
        // There is none that would have to end.
        std::mem::forget(std::mem::replace(&mut place.state, state));
        place.open.opcode = NONE;
    }

    /// As [`Self::begin`], also where the queue takes nothing: it is held all the same.
    #[cold]
    #[inline(never)]
    fn begin_waiting<'p>(queue: &'a SendQueue, place: impl FnOnce() -> &'p mut Self)
    where
        'a: 'p,
    {
        let state = match queue.hold() {
            Ok((batch, 0)) => State::Good(batch),
            Ok((batch, errno)) => State::Failed(Some(batch), errno),
            Err(errno) => State::Failed(None, errno),
        };
        *place() = Self::new(state);
    }

    /// Leaves no list in its place.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Self {
        std::mem::replace(self, Self::none())
    }

    /// Adds a request, whose payload may follow, and its target if it is a datagram.
    #[inline(always)]
    pub(crate) fn request(&mut self, request: Request) {
        if self.open.opcode != NONE {
            self.close();
        }
        self.open = request;
    }

    /// As [`Self::request`], an atomic.
    pub(crate) fn atomic(&mut self, request: Request, operands: Atomic) {
        self.request(request);
        self.operands = operands;
    }

    /// Adds a change of keys, which has no payload.
    pub(crate) fn key_change(&mut self, opcode: u32, request: &KeyRequest) {
        if self.open.opcode != NONE {
            self.close();
        }
        let State::Good(batch) = &mut self.state else { return };
        // There is nothing that could stand inline.
        let request = KeyRequest { flags: request.flags & !IBV_SEND_INLINE, ..*request };
        let (queue, cursor, end) = batch.position();
        match queue.push_key_change(cursor, end, opcode, &request) {
            Ok(cursor) => batch.advance(cursor),
            Err(errno) => return self.fail(errno),
        }
        self.open.opcode = NONE;
    }

    /// Gives the request that was added last no payload; if that is not what it lacks, the list fails.
    #[cold]
    #[inline(never)]
    fn close(&mut self) {
        if self.open.opcode != TARGETLESS {
            self.payload(Payload::Sges(&[]));
        }
        if self.open.opcode == TARGETLESS {
            self.fail(libc::EINVAL);
        }
    }

    /// Gives the request that was added last its payload.
    #[inline(always)]
    pub(crate) fn payload(&mut self, payload: Payload<'_>) {
        let State::Good(batch) = &mut self.state else { return };
        // How its payload is given says whether that is inline.
        let Request { opcode, flags, wr_id, remote, immediate } = self.open;
        let flags = match payload {
            Payload::Sges(_) => flags & !IBV_SEND_INLINE,
            Payload::Inline(_) => flags | IBV_SEND_INLINE,
        };
        let request = SendRequest { wr_id, opcode, flags, payload };
        let (queue, cursor, end) = batch.position();
        let mut awaited = NONE;
        let target = &mut self.target;
        let datagram = || match std::mem::replace(target, Target::Unknown) {
            Target::Told(datagram) => Some(datagram),
            Target::Unknown | Target::Srq(_) | Target::Owed(_) => {
                *target = Target::Owed(cursor.block);
                awaited = TARGETLESS;
                Some(Datagram::default())
            }
        };
        match queue.push(cursor, end, &request, || remote, datagram, || immediate) {
            Ok(cursor) => batch.advance(cursor),
            Err(errno) => return self.rare_payload(payload, errno),
        }
        self.open.opcode = awaited;
    }

    /// Tells where the datagram goes that was added last; its payload may be there already.
    pub(crate) fn target(&mut self, datagram: Datagram) {
        let State::Good(batch) = &self.state else { return };
        match (self.open.opcode, &self.target) {
            (NONE, _) => self.fail(libc::EINVAL),
            (TARGETLESS, Target::Owed(block)) => {
                write_target(&batch.queue.ring, *block, datagram);
                (self.open.opcode, self.target) = (NONE, Target::Unknown);
            }
            _ => self.target = Target::Told(datagram),
        }
    }

    /// Tells for which shared receive queue the request is that was added last, along XRC; its payload may be
    /// there already.
    pub(crate) fn srq(&mut self, srqn: u32) {
        let State::Good(batch) = &self.state else { return };
        match (self.open.opcode, &self.target) {
            (NONE, _) => self.fail(libc::EINVAL),
            (TARGETLESS, Target::Owed(block)) => {
                write_srqn(&batch.queue.ring, *block, srqn, self.owed_immediate);
                (self.open.opcode, self.target) = (NONE, Target::Unknown);
            }
            _ => self.target = Target::Srq(srqn),
        }
    }

    /// Gives an atomic, which is one element, or a request along XRC its payload; any other request fails with
    /// that errno.
    #[cold]
    #[inline(never)]
    fn rare_payload(&mut self, payload: Payload<'_>, errno: i32) {
        let State::Good(batch) = &self.state else { return };
        if !batch.queue.shape().operations.name_srq() {
            return match self.push_atomic(payload, errno, 0) {
                Ok(()) => self.open.opcode = NONE,
                Err(errno) => self.fail(errno),
            };
        }
        let block = batch.position().1.block;
        let (srqn, awaited, target) = match std::mem::replace(&mut self.target, Target::Unknown) {
            Target::Srq(srqn) => (srqn, NONE, Target::Unknown),
            _ => (0, TARGETLESS, Target::Owed(block)),
        };
        let pushed = match self.push_xrc(payload, srqn) {
            Err(libc::EOPNOTSUPP) => self.push_atomic(payload, errno, srqn),
            pushed => pushed,
        };
        match pushed {
            Ok(()) => (self.open.opcode, self.target) = (awaited, target),
            Err(errno) => self.fail(errno),
        }
    }

    fn push_xrc(&mut self, payload: Payload<'_>, srqn: u32) -> Result<(), i32> {
        let State::Good(batch) = &mut self.state else { return Err(libc::EINVAL) };
        let Request { opcode, flags, wr_id, remote, immediate } = self.open;
        let flags = match payload {
            Payload::Sges(_) => flags & !IBV_SEND_INLINE,
            Payload::Inline(_) => flags | IBV_SEND_INLINE,
        };
        let (queue, cursor, end) = batch.position();
        let operation = queue.shape().operations.along_xrc(opcode)?;
        let request = SendRequest { wr_id, opcode, flags, payload };
        let pushed = queue.push_xrc(cursor, end, &request, srqn, || remote, || immediate)?;
        batch.advance(pushed);
        self.owed_immediate = if operation.has_immediate() { immediate } else { 0 };
        Ok(())
    }

    fn push_atomic(&mut self, payload: Payload<'_>, errno: i32, srqn: u32) -> Result<(), i32> {
        let State::Good(batch) = &mut self.state else { return Err(errno) };
        let Request { opcode, flags, wr_id, remote, .. } = self.open;
        let (queue, cursor, end) = batch.position();
        if queue.shape().operations.atomic(opcode).is_err() {
            return Err(errno);
        }
        let Payload::Sges([result]) = payload else { return Err(libc::EINVAL) };
        let (flags, operands) = (flags & !IBV_SEND_INLINE, self.operands);
        let request = AtomicRequest { wr_id, opcode, flags, remote, srqn, operands, result };
        batch.advance(queue.push_atomic(cursor, end, &request)?);
        self.owed_immediate = 0;
        Ok(())
    }

    /// Has posting the list fail, where nothing was wrong before.
    #[cold]
    #[inline(never)]
    pub(crate) fn fail(&mut self, errno: i32) {
        let Self { state, .. } = self.take();
        self.state = match state {
            State::Good(batch) => State::Failed(Some(batch), errno),
            failed @ State::Failed(..) => failed,
        };
    }

    /// Posts the list; 0, or what it fails with: then nothing of it is posted.
    #[inline(always)]
    pub(crate) fn complete(mut self) -> i32 {
        if self.open.opcode != NONE {
            self.close();
        }
        match self.state {
            State::Good(batch) => {
                batch.finish();
                0
            }
            State::Failed(batch, errno) => {
                batch.into_iter().for_each(SendBatch::forget);
                errno
            }
        }
    }

    /// Forgets the list.
    #[cold]
    pub(crate) fn abort(self) {
        if let State::Good(batch) | State::Failed(Some(batch), _) = self.state {
            batch.forget();
        }
    }
}

impl SendBatch<'_> {
    /// Ends the list with nothing of it posted.
    #[cold]
    #[inline(never)]
    fn forget(self) {
        let Self { queue, guard, start, cursor, .. } = self;
        // A number that is consumed is of nothing that is outstanding.
        let consumed = queue.consumed.requests.load(Ordering::Acquire);
        let pushed = cursor.block.wrapping_sub(start);
        for block in (0..pushed).map(|step| start.wrapping_add(step)) {
            queue.posted.get(block).number.store(consumed, Ordering::Relaxed);
        }
        drop(guard);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::verbs::{self as ibv, ibv_sge};
    use crate::qp::tests::{queues, queues_of};
    use crate::wr::InlineData;
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
        let mut list = Building::none();
        Building::begin(queue, || &mut list);
        list
    }

    fn request(opcode: u32, flags: u32, wr_id: u64, remote: (u64, u32), immediate: u32) -> Request {
        Request { opcode, flags, wr_id, remote, immediate }
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
        let data = InlineData { words: &[1], length: 8 };
        let two = [sge(8)[0]; 2];
        let payloads = [None, Some(Payload::Sges(&two)), Some(Payload::Inline(data))];
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
        let two_blocks = [0; 5];
        let data = InlineData { words: &two_blocks, length: 40 };
        let mut list = begin(&queues.send);
        for wr_id in 0..3 {
            list.request(request(WRITE, 0, wr_id, (1, 2), 0));
            list.payload(Payload::Inline(data));
        }
        assert_eq!(list.complete(), libc::EINVAL, "there are 32 bytes at most");
        // The next one takes one block.
        let mut list = begin(&queues.send);
        list.request(request(WRITE, 0, 0, (1, 2), 0));
        list.payload(Payload::Inline(InlineData { words: &two_blocks[..4], length: 32 }));
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
        assert_eq!(Building::none().complete(), libc::EINVAL);
    }

    #[test]
    fn a_list_keeps_others_from_posting_until_it_ends() {
        let queues = queues(1, 0);
        for aborts in [false, true] {
            let list = begin(&queues.send);
            assert!(queues.send.begin_at_once().is_none());
            if aborts {
                list.abort()
            } else {
                assert_eq!(list.complete(), 0)
            }
            assert!(queues.send.begin_at_once().is_some());
        }
    }
}
