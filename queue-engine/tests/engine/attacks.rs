//! Attacks on keys, numbers and memory bounds, by clients of one card and by their peers.

use std::collections::HashSet;

use fpga_regs::engine::cqe::Status;
use fpga_regs::engine::key::{self, Access};
use fpga_regs::engine::qp::QpState;
use fpga_regs::engine::wqe::{SendOpcode, Sge};
use queue_engine::{Payload, Piece, RemoteAccess, RemoteRange, TransportEvent};

use crate::engine::support::bench::{Bench, PDN};
use crate::engine::support::device::{Device as _, Need, needs};
use crate::engine::support::random::Seeded;
use crate::engine::support::wqe::Wqe;

/// Far from anything that counting, shifting or a weak generator would give.
fn assert_spread(numbers: &[u32], bits: u32, what: &str) {
    let distinct: HashSet<u32> = numbers.iter().copied().collect();
    assert_eq!(distinct.len(), numbers.len(), "{what} repeat");
    let steps: HashSet<i64> =
        numbers.windows(2).map(|pair| i64::from(pair[1]) - i64::from(pair[0])).collect();
    assert!(steps.len() > numbers.len() * 9 / 10, "{what} follow from each other");
    for bit in 0..bits {
        let set = numbers.iter().filter(|number| *number >> bit & 1 == 1).count();
        let share = set * 100 / numbers.len();
        assert!((40..=60).contains(&share), "bit {bit} of {what} is set in {share} %");
    }
}

#[test]
fn keys_are_spread_over_all_their_bits() {
    needs!(Need::Keys(1000));
    let mut bench = Bench::new();
    let keys: Vec<u32> = (0..1000).map(|_| bench.register(64).key).collect();
    let numbers: Vec<u32> = keys.iter().map(|key| key::number(*key)).collect();
    assert_spread(&numbers, 24, "key numbers");
    let variants: HashSet<u8> = keys.iter().map(|key| key::variant(*key)).collect();
    assert!(variants.len() > 200, "{} variants", variants.len());
}

#[test]
fn qpns_are_spread_over_all_their_bits() {
    needs!(Need::Queues(500));
    let mut bench = Bench::new();
    let cq = bench.create_cq(4);
    let qpns: Vec<u32> = (0..500)
        .map(|_| {
            let rq = bench.create_rq(0, 0);
            bench.create_qp(0, &cq, &cq, rq).qpn & 0xf_ffff
        })
        .collect();
    assert_spread(&qpns, 20, "QPNs");
}

#[test]
fn a_hundred_thousand_guessed_keys_open_nothing_among_a_thousand_regions() {
    needs!(Need::Keys(1000));
    let mut bench = Bench::new();
    let cq = bench.create_cq(4);
    let qp = bench.ready_qp(&cq);
    let regions: Vec<_> = (0..1000).map(|_| bench.register(4096)).collect();
    let known: HashSet<u32> = regions.iter().map(|region| region.key).collect();
    let mut random = Seeded::new(7);
    for n in 0..100_000 {
        let guess = match n % 3 {
            // Near a key that the attacker has: the next, the previous, another variant.
            0 => regions[n % 1000].key.wrapping_add(1),
            1 => regions[n % 1000].key.wrapping_sub(0x100),
            _ => random.next() as u32,
        };
        if known.contains(&guess) {
            continue;
        }
        let va = regions[n % 1000].va;
        for access in [RemoteAccess::Read, RemoteAccess::Write] {
            let memory = RemoteRange { rkey: guess, va, length: 1 };
            let open = bench.device.allows(qp.qpn, memory, access);
            assert!(!open, "guess {n}: {guess:#x} opens {va:#x}");
        }
    }
}

#[test]
fn a_key_of_another_domain_opens_nothing_to_peers_and_to_neighbours() {
    let mut bench = Bench::new();
    let mut cq = bench.create_cq(6);
    let mut qp = bench.ready_qp(&cq);
    let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    // Another client's domain: balboad never gives one number to two clients.
    let theirs = bench.register_with(4096, all, PDN + 1);
    for access in [RemoteAccess::Read, RemoteAccess::Write] {
        let memory = RemoteRange { rkey: theirs.key, va: theirs.va, length: 64 };
        assert!(!bench.device.allows(qp.qpn, memory, access));
        let payload = Payload::Remote { rkey: theirs.key, address: theirs.va, access };
        let mut pieces: Vec<Piece> = Vec::new();
        assert!(bench.device.resolve(qp.qpn, payload, 0, 64, &mut pieces).is_err());
        assert!(pieces.is_empty());
    }
    // As local key of a SEND, and of a receive.
    qp.rq.post(1, &[theirs.sge(0, 64)]);
    let taken = bench.device.take_receive(qp.qpn).unwrap();
    let mut pieces: Vec<Piece> = Vec::new();
    let place = Payload::Receive { id: taken.id };
    assert!(bench.device.resolve(qp.qpn, place, 0, 1, &mut pieces).is_err());
    assert!(pieces.is_empty(), "bytes arrive at another client's");
    let status = Status::LocalProtection;
    bench.handle(TransportEvent::ReceiveFailed { qpn: qp.qpn, status });
    let mut qp = bench.ready_qp(&cq);
    qp.post(&Wqe::gather(SendOpcode::Send, &[theirs.sge(0, 64)]));
    bench.settle();
    assert!(bench.transport.sent.is_empty(), "bytes of another client leave");
    let entries = cq.poll();
    assert_eq!(entries.len(), 2, "{entries:?}");
    assert!(entries.iter().all(|entry| entry.status == Status::LocalProtection), "{entries:?}");
    assert_eq!(bench.transport.state(qp.qpn), QpState::Err);
}

#[test]
fn no_range_leaves_its_region_wherever_it_wraps() {
    let mut bench = Bench::new();
    let cq = bench.create_cq(4);
    let qp = bench.ready_qp(&cq);
    let region = bench.register(4096);
    let open = |va: u64, length: u64| {
        let memory = RemoteRange { rkey: region.key, va, length };
        bench.device.allows(qp.qpn, memory, RemoteAccess::Write)
    };
    let end = region.va + 4096;
    assert!(open(region.va, 4096) && open(end - 1, 1));
    for (va, length) in [
        (end - 1, 2),
        (end, 1),
        (region.va - 1, 1),
        (region.va - 1, 4097),
        (region.va, 4097),
        (region.va, u64::MAX),
        (region.va + 1, u64::MAX),
        (region.va, 0u64.wrapping_sub(region.va)),
        (u64::MAX, 1),
        (u64::MAX, 2),
        (0, u64::MAX),
    ] {
        assert!(!open(va, length), "{va:#x} of {length} bytes");
    }
    // No bytes at all are no access, as the specification has it, and name no memory.
    let remote = Payload::Remote { rkey: 0xdead_beef, address: 1, access: RemoteAccess::Write };
    let mut pieces: Vec<Piece> = Vec::new();
    assert!(bench.device.resolve(qp.qpn, remote, 0, 0, &mut pieces).is_ok());
    assert!(pieces.is_empty());
}

#[test]
fn a_gather_entry_that_wraps_around_reads_nothing() {
    for (address, length) in [(u64::MAX - 10, 64), (u64::MAX, u32::MAX), (0, u32::MAX)] {
        let mut bench = Bench::new();
        let mut cq = bench.create_cq(6);
        let mut qp = bench.ready_qp(&cq);
        let region = bench.register(4096);
        let sge = Sge { address, length, lkey: region.key };
        qp.post(&Wqe::gather(SendOpcode::Write, &[sge]));
        bench.settle();
        assert!(bench.transport.sent.is_empty());
        let status = cq.poll_one().status;
        assert!(matches!(status, Status::LocalProtection | Status::LocalLength), "{status:?}");
    }
}

#[test]
fn rights_that_were_not_given_are_not_taken() {
    let mut bench = Bench::new();
    let cq = bench.create_cq(4);
    let mut qp = bench.ready_qp(&cq);
    let read_only = bench.register_with(4096, Access::REMOTE_READ, PDN);
    let local = bench.register_with(4096, Access::LOCAL_WRITE, PDN);
    let allows = |rkey, va, access| {
        bench.device.allows(qp.qpn, RemoteRange { rkey, va, length: 64 }, access)
    };
    assert!(allows(read_only.key, read_only.va, RemoteAccess::Read));
    assert!(!allows(read_only.key, read_only.va, RemoteAccess::Write));
    assert!(!allows(local.key, local.va, RemoteAccess::Read));
    assert!(!allows(local.key, local.va, RemoteAccess::Write));
    // A receive, and the answer to a READ, are writes too.
    qp.rq.post(1, &[read_only.sge(0, 64)]);
    let place = Payload::Receive { id: bench.device.take_receive(qp.qpn).unwrap().id };
    let mut pieces: Vec<Piece> = Vec::new();
    assert!(bench.device.resolve(qp.qpn, place, 0, 1, &mut pieces).is_err());
    qp.post(&Wqe::gather(SendOpcode::Read, &[read_only.sge(0, 64)]));
    bench.settle();
    assert!(bench.transport.sent.is_empty());
}
