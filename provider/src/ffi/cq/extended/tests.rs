use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use hostmem::Record;

use super::*;
use crate::cq::{CONSUMER, attach, attach_srq, detach, detach_srq, reset};
use crate::poll::tests::{Bench, GENERATION, QPN, along_xrc, bench, received, sent};
use crate::qp::tests::queues_on;
use crate::srq::tests::{post, shared};

const SUCCESS: u32 = ibv::IBV_WC_SUCCESS;

/// A completion queue as the program has it.
struct Program(*mut ibv_cq_ex);

// SAFETY: one thread at a time polls.
unsafe impl Send for Program {}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: made by `program`, and freed here once.
        drop(unsafe { Box::from_raw(self.0.cast::<CqObject>()) });
    }
}

fn program(bench: &Bench) -> Program {
    let cq = crate::context::Cq::unwatched(Arc::clone(&bench.cq));
    let mut verbs = super::super::zeroed::<ibv_cq_ex>();
    furnish(&mut verbs, OFFERED);
    let extended =
        super::super::verbs_cq__bindgen_ty_1 { cq_ex: std::mem::ManuallyDrop::new(verbs) };
    let verbs = super::super::verbs_cq { __bindgen_anon_1: extended };
    let queue = std::ptr::NonNull::from(&*cq.queue);
    let object = CqObject { verbs, queue, polling: Polling::none(), cq, _parent: None };
    Program(Box::into_raw(Box::new(object)).cast())
}

impl Program {
    fn start(&self) -> c_int {
        let mut attr = ibv_poll_cq_attr { comp_mask: 0 };
        // SAFETY: the queue lives, and is polled by one thread.
        unsafe { ((*self.0).start_poll.unwrap())(self.0, &raw mut attr) }
    }

    fn next(&self) -> c_int {
        // SAFETY: as above.
        unsafe { ((*self.0).next_poll.unwrap())(self.0) }
    }

    fn end(&self) {
        // SAFETY: as above.
        unsafe { ((*self.0).end_poll.unwrap())(self.0) };
    }

    /// The fields of the present completion: the request, the status, the QP, the bytes.
    fn told(&self) -> (u64, u32, u32, u32) {
        let cq = self.0;
        // SAFETY: as above.
        unsafe {
            (
                (*cq).wr_id,
                (*cq).status,
                (*cq).read_qp_num.unwrap()(cq),
                (*cq).read_byte_len.unwrap()(cq),
            )
        }
    }

    /// The requests that the rest of the poll completes, and of which QP.
    fn rest(&self) -> Vec<(u64, u32)> {
        let next = || (self.next() == 0).then(|| (self.told().0, self.told().2));
        std::iter::from_fn(next).collect()
    }
}

#[test]
fn calls_of_no_poll_do_nothing() {
    let mut bench = bench(4);
    let program = program(&bench);
    for _ in 0..3 {
        assert_eq!((program.next(), program.start()), (libc::EINVAL, libc::ENOENT));
        program.end();
    }
    bench.post_and_complete(2);
    assert_eq!((program.start(), program.told().0), (0, 0));
    assert_eq!((program.next(), program.next()), (0, libc::ENOENT));
    program.end();
    assert!(bench.cq.state.try_lock().is_some());
}

#[test]
fn queue_pairs_come_and_go_in_a_poll_and_what_is_read_stays() {
    let mut bench = bench(4);
    let program = program(&bench);
    bench.send(0);
    bench.send(1);
    assert_eq!(program.start(), 0);
    let present = (0, SUCCESS, QPN, 0);
    assert_eq!(program.told(), present);
    let other = queues_on(QPN + 1, GENERATION, &bench.cq.path);
    attach(&bench.cq, &bench.cq, &other);
    // So many that the table is made anew.
    let more: Vec<_> = (2..40).map(|n| queues_on(QPN + n, GENERATION, &bench.cq.path)).collect();
    more.iter().for_each(|queues| attach(&bench.cq, &bench.cq, queues));
    detach(&bench.cq, &bench.cq, &bench.queues);
    assert_eq!(program.told(), present);
    bench.queues = other;
    bench.post(9);
    bench.complete(sent(2));
    bench.complete(fpga_regs::engine::cqe::Cqe { qpn: QPN + 1, ..sent(0) });
    assert_eq!(program.rest(), [(9, QPN + 1)], "nothing of the one that was destroyed");
    more.iter().for_each(|queues| detach(&bench.cq, &bench.cq, queues));
    assert_eq!(program.told(), (9, SUCCESS, QPN + 1, 0));
    assert!(bench.cq.state.try_lock().is_none(), "the poll goes on");
    program.end();
    assert!(bench.cq.state.try_lock().is_some());
}

#[test]
fn a_queue_pair_that_is_reset_in_a_poll_completes_there_what_comes_later_alone() {
    let mut bench = bench(4);
    let program = program(&bench);
    (0..4).for_each(|wr_id| bench.send(wr_id));
    assert_eq!((program.start(), program.next()), (0, 0));
    reset(&bench.cq, &bench.cq, &bench.queues, GENERATION + 1);
    assert_eq!(program.told(), (1, SUCCESS, QPN, 0));
    assert_eq!(program.next(), libc::ENOENT);
    bench.post(7);
    bench.complete(fpga_regs::engine::cqe::Cqe { generation: GENERATION + 1, ..sent(0) });
    assert_eq!(program.rest(), [(7, QPN)]);
    program.end();
}

#[test]
fn a_queue_is_resized_in_a_poll_which_goes_on_behind_what_was_left() {
    let mut bench = bench(2);
    let program = program(&bench);
    (0..4).for_each(|wr_id| bench.send(wr_id));
    assert_eq!(program.start(), 0);
    bench.resize(4, |_| {}).unwrap();
    assert_eq!((bench.cq.log2_entries(), program.told().0), (4, 0));
    (4..8).for_each(|wr_id| bench.send(wr_id));
    let left: Vec<_> = program.rest().into_iter().map(|(wr_id, _)| wr_id).collect();
    assert_eq!(left, (1..8).collect::<Vec<_>>());
    assert!(bench.resize(1, |_| {}).is_ok(), "and again");
    program.end();
}

#[test]
fn shared_queues_of_an_xrc_domain_come_and_go_in_a_poll() {
    let mut bench = bench(4);
    let program = program(&bench);
    bench.send(0);
    assert_eq!(program.start(), 0);
    let shared = shared(4, &Arc::clone(&bench.cq.path));
    attach_srq(&bench.cq, &shared);
    (10..12).for_each(|wr_id| post(&shared, wr_id).unwrap());
    bench.complete(along_xrc(&shared, 0));
    assert_eq!(program.rest().first().map(|found| found.0), Some(10));
    bench.complete(along_xrc(&shared, 1));
    detach_srq(&bench.cq, &shared);
    assert_eq!((program.rest().len(), program.told().0), (0, 10));
    program.end();
}

#[test]
fn what_a_queue_pair_took_of_a_shared_queue_comes_back_in_a_poll() {
    let (mut bench, shared) = crate::poll::tests::sharing_bench();
    let program = program(&bench);
    (0..4).for_each(|wr_id| post(&shared, wr_id).unwrap());
    (0..4).for_each(|tag| bench.complete(received(tag)));
    assert_eq!((program.start(), program.told().0), (0, 0));
    detach(&bench.cq, &bench.cq, &bench.queues);
    assert_eq!(program.next(), libc::ENOENT);
    (4..8).for_each(|wr_id| post(&shared, wr_id).unwrap());
    assert_eq!(post(&shared, 8), Err(libc::ENOMEM));
    program.end();
}

#[test]
fn a_poll_that_another_thread_never_ends_keeps_nobody_from_making_and_destroying() {
    const ROUNDS: u32 = 300;
    let mut bench = bench(4);
    detach(&bench.cq, &bench.cq, &bench.queues);
    let program = program(&bench);
    let (path, record) =
        (Arc::clone(&bench.cq.path), |bench: &Bench| -> Record { bench.cq.record() });
    // The number of the last queue pair that was destroyed, and whether that is all.
    let (gone, over) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
    let first = queues_on(1, GENERATION, &path);
    attach(&bench.cq, &bench.cq, &first);
    bench.queues = first;
    bench.post(0);
    bench.complete(fpga_regs::engine::cqe::Cqe { qpn: 1, ..sent(0) });
    assert_eq!(program.start(), 0);
    detach(&bench.cq, &bench.cq, &bench.queues);
    let endless = {
        let (gone, over) = (Arc::clone(&gone), Arc::clone(&over));
        std::thread::spawn(move || {
            let (mut found, program) = (0, program);
            while !over.load(Ordering::Relaxed) {
                let gone = gone.load(Ordering::Acquire);
                if program.next() == 0 {
                    let (wr_id, status, qpn, _) = program.told();
                    assert_eq!((wr_id / 3, status), (u64::from(qpn), SUCCESS));
                    assert!(qpn > gone, "of QP {qpn}, which was gone");
                    found += 1;
                }
            }
            (found, program)
        })
    };
    for qpn in 2..ROUNDS {
        bench.queues = queues_on(qpn, GENERATION, &path);
        attach(&bench.cq, &bench.cq, &bench.queues);
        for index in 0..3 {
            bench.post((3 * qpn + index).into());
            bench.complete(fpga_regs::engine::cqe::Cqe { qpn, ..sent(index) });
        }
        let waits = |bench: &Bench| {
            while record(bench).load_acquire_u32(CONSUMER) != bench.written() {
                assert!(!endless.is_finished(), "the other thread failed");
                std::thread::yield_now();
            }
        };
        if qpn % 3 == 0 {
            waits(&bench);
        }
        if qpn % 5 == 0 {
            reset(&bench.cq, &bench.cq, &bench.queues, GENERATION + 1);
        }
        if qpn % 7 == 0 {
            let log2_entries = 7 - bench.cq.log2_entries();
            bench.resize(log2_entries, |_| {}).unwrap();
        }
        detach(&bench.cq, &bench.cq, &bench.queues);
        gone.store(qpn, Ordering::Release);
        waits(&bench);
    }
    over.store(true, Ordering::Relaxed);
    let (found, program) = endless.join().unwrap();
    assert!(found >= ROUNDS / 3, "{found} completions");
    assert!(bench.cq.state.try_lock().is_none(), "the poll has not ended");
    program.end();
    assert!(!bench.cq.is_used());
}
