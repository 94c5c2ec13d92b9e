use crate::abi::verbs::{self as ibv, ibv_sge};
use fpga_regs::engine::qp::QpType;
use fpga_regs::engine::window::Capabilities;
use fpga_regs::engine::wqe::{Atomic, SendHeader, SendOpcode};
use hostmem::DoorbellPage;

use super::*;
use crate::doorbell::tests::{memory, path};

struct Bench {
    queue: SendQueue,
    ring: BlockRing,
    record: Record,
    page: DoorbellPage,
}

const QPN: u32 = 0x12_3456;

fn bench(blocks: u32, max_wr: u32, signal_all: bool) -> Bench {
    bench_of(QpType::Rc, blocks, max_wr, signal_all)
}

fn bench_of(kind: QpType, blocks: u32, max_wr: u32, signal_all: bool) -> Bench {
    let memory = memory(64 * 1024);
    let ring = BlockRing::new(memory.clone(), 64, blocks).unwrap();
    let record = Record::new(memory, 0).unwrap();
    let (path, page) = path();
    let place = SendPlace {
        qpn: QPN,
        generation: 9,
        ring: ring.clone(),
        record: record.clone(),
        path,
        lender: None,
    };
    let shape = SendShape {
        max_wr,
        max_sge: 4,
        max_inline: 96,
        operations: Operations::offered(Capabilities::all(), kind),
        flags: FlagTable::new(signal_all),
    };
    let queue = SendQueue::new(place, shape, false).unwrap();
    queue.set_gate(0);
    Bench { queue, ring, record, page }
}

const TARGET: Option<Datagram> = Some(Datagram { ah: 0x77, qpn: 0xab_cdef, qkey: 0x9876_5432 });
const ONE: [ibv_sge; 1] = [ibv_sge { addr: 0x7000, length: 64, lkey: 0x55 }];
const FOUR: [ibv_sge; 4] = [ONE[0]; 4];

fn write(wr_id: u64, sges: &[ibv_sge]) -> SendRequest<'_> {
    SendRequest {
        wr_id,
        opcode: ibv::IBV_WR_RDMA_WRITE,
        flags: ibv::IBV_SEND_SIGNALED,
        payload: Payload::Sges(sges),
    }
}

fn post(queue: &SendQueue, requests: &[SendRequest<'_>]) -> Result<(), (usize, i32)> {
    let mut batch = queue.begin().map_err(|errno| (0, errno))?;
    for (i, request) in requests.iter().enumerate() {
        let (queue, cursor, end) = batch.position();
        let remote = || (0xdead_beef_0000, 0x1234_5678);
        match queue.push(cursor, end, request, remote, || TARGET, || 7) {
            Ok(next) => batch.advance(next),
            Err(errno) => {
                batch.finish();
                return Err((i, errno));
            }
        }
    }
    batch.finish();
    Ok(())
}

#[test]
fn a_posted_write_is_what_the_card_expects_byte_for_byte() {
    let bench = bench(8, 8, false);
    post(&bench.queue, &[write(1, &ONE)]).unwrap();
    let block = bench.ring.read(0);
    let bytes: Vec<u8> = block.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut expected = vec![4, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    expected.extend(0xdead_beef_0000_u64.to_le_bytes());
    expected.extend([0x78, 0x56, 0x34, 0x12, 0, 0, 0, 0]);
    expected.extend(0x7000_u64.to_le_bytes());
    expected.extend([64, 0, 0, 0, 0x55, 0, 0, 0]);
    expected.resize(64, 0);
    assert_eq!(bytes, expected);
}

#[test]
fn only_what_the_operation_has_is_in_the_entry() {
    for (opcode, remote, immediate) in [
        (ibv::IBV_WR_RDMA_WRITE, (0xdead_beef_0000, 0x1234_5678), 0),
        (ibv::IBV_WR_RDMA_WRITE_WITH_IMM, (0xdead_beef_0000, 0x1234_5678), 7),
        (ibv::IBV_WR_SEND, (0, 0), 0),
        (ibv::IBV_WR_SEND_WITH_IMM, (0, 0), 7),
    ] {
        let bench = bench(8, 8, false);
        post(&bench.queue, &[SendRequest { opcode, ..write(1, &ONE) }]).unwrap();
        let header = SendHeader::decode(&[bench.ring.read(0)]);
        assert_eq!((header.remote_address, header.rkey), remote, "opcode {opcode}");
        assert_eq!(header.immediate, immediate, "opcode {opcode}");
    }
}

#[test]
fn a_datagram_names_where_it_goes_in_the_place_of_remote_memory() {
    for (opcode, immediate) in [(ibv::IBV_WR_SEND, 0), (ibv::IBV_WR_SEND_WITH_IMM, 7)] {
        for payload in [Payload::Sges(&ONE), Payload::Inline(16)] {
            let bench = bench_of(QpType::Ud, 8, 8, false);
            let flags =
                if matches!(payload, Payload::Inline(_)) { ibv::IBV_SEND_INLINE } else { 0 };
            let request = SendRequest { wr_id: 1, opcode, flags, payload };
            post(&bench.queue, &[request, request]).unwrap();
            let entry = bench.ring.read(1);
            assert_eq!(Some(Datagram::decode(&[entry])), TARGET);
            assert_eq!(SendHeader::decode(&[entry]).immediate, immediate);
            assert_eq!(entry[3] >> 32, 0, "nothing stands behind the Q_Key");
        }
    }
}

#[test]
fn a_datagram_without_an_address_is_not_posted() {
    let bench = bench_of(QpType::Ud, 8, 8, false);
    let request = SendRequest { opcode: ibv::IBV_WR_SEND, ..write(1, &ONE) };
    let batch = bench.queue.begin().unwrap();
    let (queue, cursor, end) = batch.position();
    let pushed = queue.push(cursor, end, &request, || (0, 0), || None, || 0);
    assert_eq!(pushed.err(), Some(libc::EINVAL));
    batch.finish();
    assert_eq!(bench.record.load_relaxed_u32(PRODUCER), 0);
    assert_eq!(bench.queue.retire(0), None);
}

#[test]
fn operations_and_flags_that_cannot_be_posted_are_not() {
    let bench = bench(8, 1, false);
    let posted = |opcode, flags| {
        post(&bench.queue, &[SendRequest { opcode, flags, ..write(1, &ONE) }]).map_err(|it| it.1)
    };
    let write = ibv::IBV_WR_RDMA_WRITE;
    assert_eq!(posted(ibv::IBV_WR_ATOMIC_CMP_AND_SWP, 0), Err(libc::EOPNOTSUPP));
    assert_eq!(posted(99, 0), Err(libc::EINVAL));
    let sge = ONE[0];
    let atomic = |opcode, flags| {
        let operands = Atomic::default();
        let request = AtomicRequest {
            wr_id: 1,
            opcode,
            flags,
            remote: (0, 0),
            srqn: 0,
            operands,
            result: &sge,
        };
        let batch = bench.queue.begin().unwrap();
        let (queue, cursor, end) = batch.position();
        queue.push_atomic(cursor, end, &request).err()
    };
    let add = ibv::IBV_WR_ATOMIC_FETCH_AND_ADD;
    assert_eq!(atomic(write, 0), Some(libc::EOPNOTSUPP));
    assert_eq!(atomic(add, ibv::IBV_SEND_IP_CSUM), Some(libc::EINVAL));
    assert_eq!(atomic(add, ibv::IBV_SEND_INLINE), Some(libc::EINVAL));
    assert_eq!(posted(write, ibv::IBV_SEND_IP_CSUM), Err(libc::EINVAL));
    assert_eq!(posted(write, 0), Ok(()));
    assert_eq!(bench.record.load_relaxed_u32(PRODUCER), 1);
}

#[test]
fn an_atomic_takes_one_block_and_one_place() {
    let bench = bench(8, 1, false);
    let mut batch = bench.queue.begin().unwrap();
    let (queue, cursor, end) = batch.position();
    let request = AtomicRequest {
        srqn: 0,
        wr_id: 77,
        opcode: ibv::IBV_WR_ATOMIC_FETCH_AND_ADD,
        flags: 0,
        remote: (0x9000, 0x66),
        operands: Atomic { swap_add: 3, compare: 0 },
        result: &ONE[0],
    };
    let next = queue.push_atomic(cursor, end, &request).unwrap();
    assert_eq!(queue.push_atomic(next, end, &request).err(), Some(libc::ENOMEM));
    batch.advance(next);
    batch.finish();
    assert_eq!(bench.record.load_relaxed_u32(PRODUCER), 1);
    assert_eq!(SendHeader::decode(&[bench.ring.read(0)]).opcode, SendOpcode::FetchAdd);
    assert_eq!(bench.queue.retire(0), Some(77));
}

#[test]
fn what_is_in_the_way_keeps_from_posting_at_once() {
    let queue = bench(8, 1, false).queue;
    let held = queue.begin_at_once();
    assert!(held.is_some());
    assert!(queue.begin_at_once().is_none(), "somebody else is posting");
    drop(held);
    queue.set_gate(libc::EINVAL);
    assert!(queue.begin_at_once().is_none());
    queue.set_gate(0);
    assert!(queue.begin_at_once().is_some());
    queue.path.declare_dead();
    assert!(queue.begin_at_once().is_none());
}

#[test]
fn a_list_is_published_once_with_record_and_slot_agreeing() {
    let bench = bench(16, 8, false);
    post(&bench.queue, &[write(1, &ONE), write(2, &FOUR), write(3, &ONE)]).unwrap();
    assert_eq!(bench.record.load_relaxed_u32(PRODUCER), 4);
    let value = bench.page.read(slot(QueueKind::Send, QPN));
    assert_eq!(value, slot_value(QPN, 9, 4));
}

#[test]
fn requests_before_a_bad_one_are_posted_and_the_bad_one_is_named() {
    let bench = bench(16, 8, false);
    let five = [ONE[0]; 5];
    let bad = post(&bench.queue, &[write(1, &ONE), write(2, &five), write(3, &ONE)]);
    assert_eq!(bad, Err((1, libc::EINVAL)));
    assert_eq!(bench.record.load_relaxed_u32(PRODUCER), 1);
    assert_eq!(bench.queue.retire(0), Some(1));
    assert_eq!(bench.queue.retire(1), None);
}

#[test]
fn a_refused_first_request_rings_no_doorbell() {
    let bench = bench(16, 8, false);
    let unknown = SendRequest { flags: 1 << 9, ..write(1, &ONE) };
    assert_eq!(post(&bench.queue, &[unknown]), Err((0, libc::EINVAL)));
    assert_eq!(bench.page.read(slot(QueueKind::Send, QPN)), 0);
}

#[test]
fn a_full_queue_refuses_until_a_completion_retires_all_before_it() {
    let bench = bench(16, 4, false);
    let requests: Vec<_> = (1..=5).map(|id| write(id, &ONE)).collect();
    assert_eq!(post(&bench.queue, &requests), Err((4, libc::ENOMEM)));
    // The third completes; the two before it were unsignaled.
    assert_eq!(bench.queue.retire(2), Some(3));
    assert_eq!(bench.queue.retire(1), None, "already retired");
    post(&bench.queue, &[write(5, &ONE), write(6, &ONE), write(7, &ONE)]).unwrap();
    assert_eq!(post(&bench.queue, &[write(8, &ONE)]), Err((0, libc::ENOMEM)));
}

#[test]
fn accounting_survives_many_laps_and_the_wrap_of_every_counter() {
    let bench = bench(8, 4, false);
    let start = u32::MAX - 20;
    for position in [&bench.queue.produced, &bench.queue.consumed] {
        position.block.store(start, Ordering::Relaxed);
        position.requests.store(u32::MAX - 5, Ordering::Relaxed);
    }
    let mut index = start;
    for round in 0..100u64 {
        let sges = if round % 3 == 0 { &FOUR[..] } else { &ONE[..] };
        let blocks = if round % 3 == 0 { 2 } else { 1 };
        post(&bench.queue, &[write(round, sges)]).unwrap();
        let last = SendHeader::decode(&[bench.ring.read(index)]);
        assert_eq!(last.opcode, SendOpcode::Write);
        // The card may name the block by its running or by its masked index.
        let named = if round % 2 == 0 { index } else { index & 7 };
        assert_eq!(bench.queue.retire(named), Some(round), "round {round}");
        index = index.wrapping_add(blocks);
    }
}

#[test]
fn a_completion_inside_a_request_or_beyond_all_is_not_believed() {
    let bench = bench(16, 8, false);
    post(&bench.queue, &[write(1, &FOUR), write(2, &ONE)]).unwrap();
    assert_eq!(bench.queue.retire(1), None, "the second block of the first request");
    assert_eq!(bench.queue.retire(3), None, "beyond what is posted");
    assert_eq!(bench.queue.retire(2), Some(2));
}

#[test]
fn signal_all_signals_what_the_program_left_unsignaled() {
    let bench = bench(8, 8, true);
    post(&bench.queue, &[SendRequest { flags: 0, ..write(1, &ONE) }]).unwrap();
    assert_eq!(SendHeader::decode(&[bench.ring.read(0)]).flags, SendFlags::SIGNALED);
}

#[test]
fn inline_data_beyond_the_limit_and_inline_reads_are_refused() {
    let bench = bench(8, 8, false);
    let inline = |opcode, length| {
        let (payload, flags) = (Payload::Inline(length), ibv::IBV_SEND_INLINE);
        post(&bench.queue, &[SendRequest { opcode, flags, payload, ..write(1, &ONE) }])
    };
    assert_eq!(inline(ibv::IBV_WR_SEND, 96), Ok(()));
    assert_eq!(inline(ibv::IBV_WR_SEND, 97), Err((0, libc::EINVAL)));
    assert_eq!(inline(ibv::IBV_WR_RDMA_READ, 8), Err((0, libc::EINVAL)));
}

#[test]
fn a_reset_queue_starts_over_in_its_new_generation() {
    let bench = bench(8, 8, false);
    post(&bench.queue, &[write(1, &ONE), write(2, &ONE)]).unwrap();
    bench.queue.reset(10);
    assert_eq!(bench.record.load_relaxed_u32(PRODUCER), 0);
    assert_eq!(bench.queue.retire(0), None);
    post(&bench.queue, &[write(3, &ONE)]).unwrap();
    assert_eq!(bench.page.read(slot(QueueKind::Send, QPN)), slot_value(QPN, 10, 1));
    assert_eq!(bench.queue.retire(0), Some(3));
}

#[test]
fn a_closed_gate_names_its_errno_and_flushing_walks_the_shadow() {
    let bench = bench(16, 8, false);
    post(&bench.queue, &[write(1, &FOUR), write(2, &ONE), write(3, &ONE)]).unwrap();
    bench.queue.set_gate(libc::EIO);
    assert_eq!(post(&bench.queue, &[write(4, &ONE)]), Err((0, libc::EIO)));
    let flushed: Vec<_> = std::iter::from_fn(|| bench.queue.flush_one()).collect();
    assert_eq!(flushed, [1, 2, 3]);
}

#[test]
fn a_full_queue_of_a_dead_card_says_so() {
    let bench = bench(4, 2, false);
    post(&bench.queue, &[write(1, &ONE), write(2, &ONE)]).unwrap();
    assert_eq!(post(&bench.queue, &[write(3, &ONE)]), Err((0, libc::ENOMEM)));
    bench.queue.path.declare_dead();
    assert_eq!(post(&bench.queue, &[write(3, &ONE)]), Err((0, libc::EIO)));
}
