use std::sync::Arc;

use crate::abi::verbs::ibv_sge;
use fpga_regs::engine::cqe::expected_phase;
use hostmem::{BlockRing, DoorbellPage, Record};

use super::*;
use crate::cq::{EntryRing, attach, attach_srq, detach, detach_srq, reset};
use crate::doorbell::tests::{memory, path};
use crate::qp::tests::{CQN, queues_on, sharing};
use crate::srq::SharedReceiveQueue;
use crate::srq::tests::{post, shared};
use crate::wr::{Payload, SendRequest};

mod resized;

/// A completion queue with one QP, and the card's side of its ring.
pub(crate) struct Bench {
    pub(crate) cq: Arc<CompletionQueue>,
    pub(crate) page: DoorbellPage,
    pub(crate) queues: Arc<Queues>,
    card: BlockRing,
    log2_entries: u8,
    written: u32,
}

pub(crate) const QPN: u32 = 0x45;
/// The number of a target in an XRC domain.
const TARGET: u32 = 0x70_0042;
pub(crate) const GENERATION: u8 = 3;

pub(crate) fn bench(log2_entries: u8) -> Bench {
    let memory = memory(64 * 1024);
    let ring = BlockRing::new(memory.clone(), 64, 1 << log2_entries).unwrap();
    let (path, page) = path();
    let record = Record::new(memory, 0).unwrap();
    let ring_of_card = EntryRing::new(ring.clone(), record);
    let cq = Arc::new(CompletionQueue::new(CQN, ring_of_card, path.clone()));
    let queues = queues_on(QPN, GENERATION, &path);
    attach(&cq, &cq, &queues);
    Bench { cq, page, queues, card: ring, log2_entries, written: 0 }
}

impl Bench {
    pub(crate) fn complete(&mut self, cqe: Cqe) {
        let phase = u8::from(expected_phase(self.written, self.log2_entries));
        let [block] = Cqe { phase, ..cqe }.encode();
        self.card.write_published(self.written, &block);
        self.written = self.written.wrapping_add(1);
    }

    /// Completes so many sends, as the card does.
    pub(crate) fn post_and_complete(&mut self, count: u32) {
        for _ in 0..count {
            let index = self.written;
            self.post(index.into());
            self.complete(sent(index));
        }
    }

    /// Posts a send and has the card complete it.
    pub(crate) fn send(&mut self, wr_id: u64) {
        self.post(wr_id);
        self.complete(sent(wr_id as u32));
    }

    pub(crate) fn post(&self, wr_id: u64) {
        let sges = [ibv_sge { addr: 1, length: 2, lkey: 3 }];
        let mut batch = self.queues.send.begin().unwrap();
        let (queue, cursor, end) = batch.position();
        let request = SendRequest {
            wr_id,
            opcode: ibv::IBV_WR_SEND,
            flags: ibv::IBV_SEND_SIGNALED,
            payload: Payload::Sges(&sges),
        };
        batch.advance(queue.push(cursor, end, &request, || (0, 0), || None, || 0).unwrap());
        batch.finish();
    }

    fn post_receive(&self, wr_id: u64) {
        let mut batch = self.queues.receive.begin().unwrap();
        batch.push(wr_id, &[]).unwrap();
        batch.finish();
    }

    /// Entries that the card has written to its ring.
    pub(crate) fn written(&self) -> u32 {
        self.written
    }

    fn poll(&self, limit: i32) -> Vec<ibv_wc> {
        let mut found = Vec::new();
        let count = self.cq.poll(limit, |completion, _| found.push(completion));
        assert_eq!(count as usize, found.len());
        found
    }
}

pub(crate) fn sent(wqe_index: u32) -> Cqe {
    Cqe { qpn: QPN, wqe_index, opcode: Opcode::Send, generation: GENERATION, ..Cqe::default() }
}

#[test]
fn completions_come_out_in_order_and_the_consumer_is_told_once_per_poll() {
    let mut bench = bench(4);
    for wr_id in 0..3u32 {
        bench.post(wr_id.into());
        bench.complete(sent(wr_id));
    }
    let found = bench.poll(2);
    assert_eq!(found.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [0, 1]);
    assert_eq!((found[0].status, found[0].opcode), (ibv::IBV_WC_SUCCESS, ibv::IBV_WC_SEND));
    assert_eq!(found[0].qp_num, QPN);
    assert_eq!(bench.cq.record().load_relaxed_u32(CONSUMER), 2);
    assert_eq!(bench.poll(2).len(), 1);
    assert_eq!(bench.poll(2).len(), 0);
    assert_eq!(bench.cq.record().load_relaxed_u32(CONSUMER), 3);
}

#[test]
fn the_phase_tells_laps_apart() {
    let mut bench = bench(1);
    for lap in 0..10u32 {
        bench.post(lap.into());
        assert!(bench.poll(1).is_empty());
        bench.complete(sent(lap));
        assert_eq!(bench.poll(2).first().map(|wc| wc.wr_id), Some(lap.into()));
    }
}

#[test]
fn the_last_entry_before_the_index_wraps_is_found() {
    let mut bench = bench(2);
    bench.written = u32::MAX;
    bench.cq.lock().consumer = u32::MAX;
    // The lap before that one left the other phase.
    for index in 0..4 {
        let phase = u8::from(!expected_phase(u32::MAX, 2));
        let [block] = Cqe { phase, ..Cqe::default() }.encode();
        bench.card.write_published(index, &block);
    }
    bench.post(1);
    bench.post(2);
    bench.complete(sent(0));
    assert_eq!(bench.poll(1).len(), 1);
    assert_eq!(bench.cq.lock().consumer, 0);
    bench.complete(sent(1));
    assert_eq!(bench.poll(1).len(), 1);
}

#[test]
fn a_receive_carries_length_immediate_and_the_name_of_its_request() {
    let mut bench = bench(4);
    bench.post_receive(99);
    bench.complete(Cqe {
        opcode: Opcode::ReceiveWriteImm,
        flags: Flags::RECEIVE | Flags::IMMEDIATE,
        byte_count: 4096,
        immediate: 0xaabb_ccdd,
        ..sent(0)
    });
    let found = bench.poll(1);
    let wc = found.first().unwrap();
    assert_eq!((wc.wr_id, wc.byte_len), (99, 4096));
    assert_eq!(wc.opcode, ibv::IBV_WC_RECV_RDMA_WITH_IMM);
    assert_eq!(wc.wc_flags, ibv::IBV_WC_WITH_IMM);
    assert_eq!(crate::ffi::types::immediate(wc), 0xaabb_ccdd);
}

/// The fields of a completion.
fn told(wc: &ibv_wc) -> [u64; 8] {
    let ibv_wc { wr_id, status, opcode, vendor_err, byte_len, qp_num, src_qp, wc_flags, .. } = *wc;
    let words = [status, opcode, vendor_err, byte_len, qp_num, src_qp, wc_flags].map(u64::from);
    let [status, opcode, vendor_err, byte_len, qp_num, src_qp, wc_flags] = words;
    let immediate = u64::from(crate::ffi::types::immediate(wc)) << 32;
    [wr_id, status, opcode, vendor_err, byte_len, qp_num, src_qp | immediate, wc_flags]
}

#[test]
fn a_receive_is_told_alike_whether_it_is_taken_by_itself_or_among_others() {
    let optional = Flags::all() - Flags::RECEIVE;
    let flags = (0..=u8::MAX).map(Flags::from_bits_retain);
    let flags: Vec<_> = flags.filter(|it| optional.contains(*it)).collect();
    let codes = [(Status::Success, 0), (Status::Success, 7), (Status::LocalLength, 7)];
    for sharing in [false, true] {
        let (mut bench, shared) = if sharing {
            let (bench, shared) = sharing_bench();
            (bench, Some(shared))
        } else {
            (bench(3), None)
        };
        let mut tag = 0..;
        for &flags in &flags {
            for opcode in [Opcode::Receive, Opcode::ReceiveWriteImm, Opcode(200), Opcode::Send] {
                for (status, vendor_code) in codes {
                    let mut take = |poll: &dyn Fn(&Bench) -> Vec<ibv_wc>| {
                        let tag = tag.next().unwrap();
                        match &shared {
                            Some(shared) => post(shared, 5).unwrap(),
                            None => bench.post_receive(5),
                        }
                        let flags = flags | Flags::RECEIVE;
                        let cqe = Cqe { opcode, flags, status, vendor_code, ..received(tag) };
                        bench.complete(Cqe {
                            byte_count: 9,
                            immediate: 0xaabb_ccdd,
                            source_qpn: 77,
                            ..cqe
                        });
                        poll(&bench).iter().map(told).collect::<Vec<_>>()
                    };
                    let alone = take(&|bench| bench.poll(1));
                    let among_others = take(&|bench| {
                        let mut found = Vec::new();
                        bench.cq.poll_all(4, |wc, _| found.push(wc), 0, bench.cq.lock());
                        found
                    });
                    let one_by_one = take(&|bench| {
                        let mut found = Vec::new();
                        drop(begin_poll(bench, |wc, _| found.push(wc)).unwrap());
                        found
                    });
                    assert_eq!(alone.len(), 1);
                    assert_eq!(alone, among_others, "{opcode:?} {flags:?} {status:?}");
                    assert_eq!(alone, one_by_one, "{opcode:?} {flags:?} {status:?}");
                }
            }
        }
    }
}

#[test]
fn a_poll_of_several_goes_on_behind_a_receive() {
    let mut bench = bench(4);
    for tag in 0..2 {
        bench.post_receive(u64::from(tag) + 10);
        bench.complete(received(tag));
        bench.send(tag.into());
    }
    let names = |found: Vec<ibv_wc>| found.iter().map(|wc| wc.wr_id).collect::<Vec<_>>();
    assert_eq!(names(bench.poll(3)), [10, 0, 11]);
    assert_eq!(bench.cq.record().load_relaxed_u32(CONSUMER), 3);
    assert_eq!(names(bench.poll(3)), [1]);
    assert!(bench.cq.state.try_lock().is_some());
}

#[test]
fn entries_of_earlier_generations_and_of_unknown_qps_are_skipped() {
    let mut bench = bench(4);
    bench.post(1);
    bench.complete(Cqe { generation: GENERATION - 1, ..sent(0) });
    bench.complete(Cqe { qpn: QPN + 1, ..sent(0) });
    bench.complete(sent(0));
    assert_eq!(bench.poll(1).first().map(|wc| wc.wr_id), Some(1));
    assert_eq!(bench.cq.record().load_relaxed_u32(CONSUMER), 3);
}

#[test]
fn after_a_reset_only_the_new_generation_counts() {
    let mut bench = bench(4);
    bench.post(1);
    bench.complete(sent(0));
    reset(&bench.cq, &bench.cq, &bench.queues, GENERATION + 1);
    bench.post(2);
    bench.complete(Cqe { generation: GENERATION + 1, ..sent(0) });
    let found = bench.poll(4);
    assert_eq!(found.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [2]);
}

#[test]
fn a_destroyed_qp_completes_no_more() {
    let mut bench = bench(4);
    assert!(bench.cq.is_used());
    bench.post(1);
    bench.complete(sent(0));
    detach(&bench.cq, &bench.cq, &bench.queues);
    assert!(bench.poll(4).is_empty());
    assert!(!bench.cq.is_used());
}

#[test]
fn errors_keep_their_status_and_vendor_code() {
    let mut bench = bench(4);
    bench.post(5);
    bench.complete(Cqe { status: Status::RemoteAccess, vendor_code: 0x21, ..sent(0) });
    let wc = bench.poll(1)[0];
    let expected = (5, ibv::IBV_WC_REM_ACCESS_ERR, 0x21);
    assert_eq!((wc.wr_id, wc.status, wc.vendor_err), expected);
}

#[test]
fn codes_from_the_card_that_are_none_become_a_general_error() {
    let mut bench = bench(4);
    for (wr_id, cqe) in [
        (0, Cqe { status: Status(200), ..sent(0) }),
        (1, Cqe { opcode: Opcode(99), ..sent(1) }),
        (2, Cqe { opcode: Opcode::Receive, ..sent(2) }),
    ] {
        bench.post(wr_id);
        bench.complete(cqe);
        let wc = bench.poll(1)[0];
        let expected = (wr_id, ibv::IBV_WC_GENERAL_ERR, VENDOR_UNKNOWN_CODE);
        assert_eq!((wc.wr_id, wc.status, wc.vendor_err), expected);
    }
}

#[test]
fn a_completion_of_what_is_not_outstanding_is_reported_and_not_believed() {
    let mut bench = bench(4);
    bench.post(1);
    bench.complete(sent(5));
    bench.complete(Cqe { flags: Flags::RECEIVE, opcode: Opcode::Receive, ..sent(0) });
    bench.complete(sent(0));
    let found = bench.poll(4);
    let seen: Vec<_> = found.iter().map(|wc| (wc.wr_id, wc.status, wc.vendor_err)).collect();
    let unknown = (0, ibv::IBV_WC_GENERAL_ERR, VENDOR_UNKNOWN_REQUEST);
    assert_eq!(seen, [unknown, unknown, (1, ibv::IBV_WC_SUCCESS, 0)]);
}

#[test]
fn a_dead_card_flushes_everything_outstanding_once_and_closes_the_queues() {
    let mut bench = bench(4);
    bench.post(1);
    bench.post(2);
    bench.post(3);
    bench.post_receive(10);
    bench.complete(sent(0));
    bench.cq.path.declare_dead();
    // Requests that the card completed before it died come first.
    assert_eq!(bench.poll(8).iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [1]);
    assert_eq!(bench.poll(1).iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [2]);
    let rest = bench.poll(8);
    let seen: Vec<_> = rest.iter().map(|wc| (wc.wr_id, wc.status, wc.opcode)).collect();
    let flushed = ibv::IBV_WC_WR_FLUSH_ERR;
    assert_eq!(seen, [(3, flushed, ibv::IBV_WC_SEND), (10, flushed, ibv::IBV_WC_RECV)]);
    assert!(bench.poll(8).is_empty());
    assert_eq!(bench.queues.send.begin().err(), Some(libc::EIO));
    assert_eq!(bench.queues.receive.begin().err(), Some(libc::EIO));
}

/// A completion queue with one QP, which uses a shared receive queue of four entries.
pub(crate) fn sharing_bench() -> (Bench, Arc<SharedReceiveQueue>) {
    let mut bench = bench(3);
    detach(&bench.cq, &bench.cq, &bench.queues);
    let path = Arc::clone(&bench.cq.path);
    let shared = shared(4, &path);
    bench.queues = sharing(QPN, GENERATION, (&path, &shared));
    attach(&bench.cq, &bench.cq, &bench.queues);
    (bench, shared)
}

pub(crate) fn received(tag: u32) -> Cqe {
    Cqe { flags: Flags::RECEIVE, opcode: Opcode::Receive, wqe_index: tag, ..sent(0) }
}

/// A receive of a shared queue of an XRC domain, at a target that is anybody's.
pub(crate) fn along_xrc(shared: &SharedReceiveQueue, tag: u32) -> Cqe {
    let flags = Flags::RECEIVE | Flags::XRC;
    Cqe { qpn: TARGET, srqn: shared.srqn, flags, ..received(tag) }
}

#[test]
fn receives_of_a_shared_queue_complete_in_any_order_and_give_their_places_back() {
    let (mut bench, shared) = sharing_bench();
    (10..14).for_each(|wr_id| post(&shared, wr_id).unwrap());
    assert_eq!(post(&shared, 14), Err(libc::ENOMEM));
    bench.complete(Cqe { status: Status::Flushed, ..received(2) });
    [3, 0, 1, 1].into_iter().for_each(|tag| bench.complete(received(tag)));
    let seen: Vec<_> = bench.poll(8).iter().map(|wc| (wc.wr_id, wc.status)).collect();
    let success = |wr_id| (wr_id, ibv::IBV_WC_SUCCESS);
    let flushed = (12, ibv::IBV_WC_WR_FLUSH_ERR);
    let twice = (0, ibv::IBV_WC_GENERAL_ERR);
    assert_eq!(seen, [flushed, success(13), success(10), success(11), twice]);
    (0..4).for_each(|wr_id| post(&shared, wr_id).unwrap());
}

#[test]
fn receives_along_xrc_complete_by_their_queue_whosever_target_it_was() {
    let mut bench = bench(4);
    let shared = shared(4, &Arc::clone(&bench.cq.path));
    attach_srq(&bench.cq, &shared);
    (10..14).for_each(|wr_id| post(&shared, wr_id).unwrap());
    let flags = Flags::RECEIVE | Flags::XRC;
    let along = |tag| along_xrc(&shared, tag);
    let with_immediate = Cqe {
        flags: flags | Flags::IMMEDIATE,
        opcode: Opcode::ReceiveWriteImm,
        byte_count: 5000,
        immediate: 9,
        ..along(1)
    };
    bench.complete(Cqe { status: Status::LocalProtection, ..along(2) });
    bench.complete(with_immediate);
    // One of a queue that is not here, one that says nothing of XRC, and one that completes twice.
    bench.complete(Cqe { srqn: shared.srqn + 1, ..along(3) });
    bench.complete(Cqe { flags: Flags::RECEIVE, ..along(3) });
    bench.complete(along(1));
    bench.send(0);
    let found = bench.poll(8);
    let seen: Vec<_> = found.iter().map(|wc| (wc.qp_num, wc.wr_id, wc.status)).collect();
    let expected = [
        (TARGET, 12, ibv::IBV_WC_LOC_PROT_ERR),
        (TARGET, 11, ibv::IBV_WC_SUCCESS),
        (TARGET, 0, ibv::IBV_WC_GENERAL_ERR),
    ];
    assert_eq!(seen[..3], expected);
    let told = (found[1].opcode, found[1].byte_len, found[1].wc_flags);
    assert_eq!(told, (ibv::IBV_WC_RECV_RDMA_WITH_IMM, 5000, ibv::IBV_WC_WITH_IMM));
    // Returned entries can be posted again, and nothing is reported of a queue that is gone.
    assert_eq!([14, 15, 16].map(|wr_id| post(&shared, wr_id)), [Ok(()), Ok(()), Err(libc::ENOMEM)]);
    detach_srq(&bench.cq, &shared);
    bench.complete(along(0));
    assert!(bench.poll(8).is_empty());
}

#[test]
fn a_qp_that_is_reset_or_destroyed_gives_back_what_it_took_of_a_shared_queue() {
    for ends in [false, true] {
        let (mut bench, shared) = sharing_bench();
        (0..4).for_each(|wr_id| post(&shared, wr_id).unwrap());
        // One is polled before, two are not, and one belongs to another QP.
        bench.complete(received(1));
        assert_eq!(bench.poll(1).first().map(|wc| wc.wr_id), Some(1));
        bench.complete(received(0));
        bench.complete(sent(0));
        bench.complete(Cqe { status: Status::Flushed, ..received(3) });
        bench.complete(Cqe { qpn: QPN + 1, ..received(2) });
        if ends {
            detach(&bench.cq, &bench.cq, &bench.queues);
        } else {
            reset(&bench.cq, &bench.cq, &bench.queues, GENERATION + 1);
        }
        (4..7).for_each(|wr_id| post(&shared, wr_id).unwrap());
        assert_eq!(post(&shared, 7), Err(libc::ENOMEM));
        assert!(bench.poll(8).is_empty());
        assert_eq!(shared.retire(2), Some(2));
    }
}

#[test]
fn what_nobody_took_of_a_shared_queue_is_not_flushed_with_a_dead_card() {
    let (bench, shared) = sharing_bench();
    post(&shared, 1).unwrap();
    bench.post(2);
    bench.cq.path.declare_dead();
    assert_eq!(bench.poll(8).iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [2]);
    assert_eq!(post(&shared, 3), Err(libc::EIO));
}

fn begin_poll(
    bench: &Bench,
    deliver: impl FnMut(ibv_wc, u64),
) -> Result<TurnGuard<'_, CqState>, i32> {
    bench.cq.first_poll::<true>(bench.cq.hold()?, deliver)
}

#[test]
fn completions_come_one_by_one_with_the_time_at_which_the_card_wrote_them() {
    let mut bench = bench(4);
    bench.post(1);
    bench.post_receive(2);
    bench.post(3);
    bench.complete(Cqe { timestamp: 1_000, ..sent(0) });
    bench.complete(Cqe { timestamp: 2_000, ..received(0) });
    bench.complete(Cqe { timestamp: 3_000, status: Status::RemoteAccess, ..sent(1) });
    let mut found = Vec::new();
    let mut deliver = |wc: ibv_wc, time: u64| {
        found.push((wc.wr_id, wc.status, time));
    };
    let mut state = begin_poll(&bench, &mut deliver).unwrap();
    assert_eq!(bench.cq.record().load_relaxed_u32(CONSUMER), 1);
    while bench.cq.next_poll::<true>(&mut state, &mut deliver) {}
    drop(state);
    let (success, access) = (ibv::IBV_WC_SUCCESS, ibv::IBV_WC_REM_ACCESS_ERR);
    assert_eq!(found, [(1, success, 1_000), (2, success, 2_000), (3, access, 3_000)]);
    assert_eq!(bench.cq.record().load_relaxed_u32(CONSUMER), 3);
}

#[test]
fn what_came_while_the_core_was_handed_over_is_in_the_answer_of_that_poll() {
    let mut bench = bench(4);
    bench.post(7);
    let cq = Arc::clone(&bench.cq);
    let mut found = Vec::new();
    let mut polls = 0;
    while found.is_empty() {
        polls += 1;
        assert!(polls <= EMPTY_POLLS, "{polls} polls found nothing");
        let mut deliver = |wc: ibv_wc, _| found.push(wc.wr_id);
        let take = |state: &mut CqState| cq.take_any::<false>(state, 4, &mut deliver, 0);
        let handed_over = || {
            bench.complete(sent(0));
            true
        };
        let (taken, state) = cq.take_or_hand_over(cq.lock(), take, handed_over);
        drop(state);
        assert_eq!(taken, found.len() as i32);
    }
    assert_eq!((polls, found), (EMPTY_POLLS, vec![7]));
}

#[test]
fn who_takes_completions_one_by_one_is_the_only_one_and_both_ways_go_on_where_the_other_ended() {
    let mut bench = bench(2);
    let begin = |bench: &Bench| begin_poll(bench, |_, _| {}).map(drop);
    assert_eq!(begin(&bench), Err(libc::ENOENT));
    for _ in 0..5 {
        bench.post_and_complete(3);
        let mut wr_id = None;
        let state = begin_poll(&bench, |wc, _| wr_id = Some(wc.wr_id)).unwrap();
        assert!(bench.cq.state.try_lock().is_none());
        // Arming does not wait for the thread that polls.
        bench.cq.arm(fpga_regs::engine::doorbell::ArmKind::Any).unwrap();
        drop(state);
        let rest: Vec<_> = bench.poll(4).iter().map(|wc| wc.wr_id).collect();
        assert_eq!([wr_id.unwrap() + 1, wr_id.unwrap() + 2], *rest);
        assert_eq!(begin(&bench), Err(libc::ENOENT));
        assert!(bench.cq.state.try_lock().is_some());
    }
}

#[test]
fn what_a_card_died_with_comes_one_by_one_too() {
    let bench = bench(4);
    bench.post(1);
    bench.post(2);
    bench.cq.path.declare_dead();
    let mut found = Vec::new();
    let mut deliver = |wc: ibv_wc, time: u64| {
        found.push((wc.wr_id, wc.status, time));
    };
    let mut state = begin_poll(&bench, &mut deliver).unwrap();
    while bench.cq.next_poll::<true>(&mut state, &mut deliver) {}
    drop(state);
    let flushed = ibv::IBV_WC_WR_FLUSH_ERR;
    assert_eq!(found, [(1, flushed, 0), (2, flushed, 0)]);
    assert_eq!(begin_poll(&bench, |_, _| {}).err(), Some(libc::ENOENT));
}
