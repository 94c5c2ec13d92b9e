//! Where the parts of messages and receives lie, as the transport asks packet by packet.

use fpga_regs::engine::admin::Opcode;
use fpga_regs::engine::qp::QpState;
use fpga_regs::engine::wqe::{MAX_INLINE, SendOpcode, Sge};
use queue_engine::{Payload, Piece, Unreachable};

use crate::engine::support::bench::{Bench, Region};
use crate::engine::support::client::ClientQp;
use crate::engine::support::device::Device as _;
use crate::engine::support::manual::Manual;
use crate::engine::support::random::{Seeded, for_seeds};
use crate::engine::support::wqe::Wqe;

struct Fixture {
    bench: Bench<Manual>,
    qp: ClientQp,
    region: Region,
}

impl Fixture {
    fn new() -> Self {
        let mut bench = Bench::new();
        let cq = bench.create_cq(8);
        let rq = bench.create_rq(4, 3);
        let qp = bench.create_qp(5, &cq, &cq, rq);
        bench.climb(qp.qpn, QpState::Rts);
        let region = bench.register(1 << 16);
        Self { bench, qp, region }
    }

    fn resolve(
        &self,
        payload: Payload,
        offset: u64,
        length: u32,
    ) -> Result<Vec<Piece>, Unreachable> {
        let sentinel = Piece { iova: 7, length: 7 };
        let mut pieces = vec![sentinel];
        let engine = &self.bench.device;
        let resolved = engine.resolve(self.qp.qpn, payload, offset, length, &mut pieces);
        assert_eq!(pieces.remove(0), sentinel);
        if resolved.is_err() {
            assert!(pieces.is_empty(), "a failure leaves the pieces as they were");
        }
        resolved.map(|()| pieces)
    }

    fn random_sges(&self, random: &mut Seeded) -> Vec<Sge> {
        let length = |random: &mut Seeded| random.choose(&[0, 1, 3, 64, 100, 1000]);
        (0..random.below(17))
            .map(|_| self.region.sge(random.below(60_000), length(random)))
            .collect()
    }
}

/// Every byte's address.
fn addresses(pieces: &[Piece]) -> Vec<u64> {
    pieces.iter().flat_map(|piece| piece.iova..piece.iova + u64::from(piece.length)).collect()
}

#[test]
fn any_part_of_a_message_or_receive_is_that_part_of_its_elements() {
    for_seeds(30, |seed| {
        let mut random = Seeded::new(seed);
        let mut fixture = Fixture::new();
        let sges = fixture.random_sges(&mut random);
        fixture.qp.post(&Wqe::gather(SendOpcode::Read, &sges));
        fixture.qp.rq.post(0, &sges);
        fixture.bench.settle();
        let id = fixture.bench.device.take_receive(fixture.qp.qpn).unwrap().id;
        let of_sge = |sge: &Sge| Piece {
            iova: sge.address - fixture.region.va + fixture.region.iova,
            length: sge.length,
        };
        let all = addresses(&Vec::from_iter(sges.iter().map(of_sge)));
        for payload in [Payload::Message { number: 0 }, Payload::Receive { id }] {
            for _ in 0..200 {
                let from = random.below(all.len() as u64 + 1) as usize;
                let to = from + random.below((all.len() - from) as u64 + 1) as usize;
                let pieces = fixture.resolve(payload, from as u64, (to - from) as u32).unwrap();
                assert_eq!(addresses(&pieces), all[from..to], "{payload:?} {from}..{to}");
                assert!(pieces.iter().all(|piece| piece.length > 0));
            }
            let length = all.len() as u32;
            assert_eq!(fixture.resolve(payload, 0, length + 1), Err(Unreachable));
            assert_eq!(fixture.resolve(payload, 1, length.max(1)), Err(Unreachable));
            assert_eq!(fixture.resolve(payload, u64::MAX, 1), Err(Unreachable));
        }
    });
}

#[test]
fn any_part_of_inline_data_is_that_part_of_the_ring() {
    for_seeds(30, |seed| {
        let mut random = Seeded::new(seed);
        let mut fixture = Fixture::new();
        // The ring has 32 blocks: after some entries, one wraps.
        for number in 0..40 {
            let length = random.below(MAX_INLINE as u64 + 1) as u32;
            let index = fixture.qp.post(&Wqe::inline(SendOpcode::Send, &vec![9; length as usize]));
            fixture.bench.settle();
            let payload = Payload::Message { number };
            let all: Vec<_> = (0..u64::from(length))
                .map(|i| 32 + i)
                .map(|i| fixture.qp.block_address(index.wrapping_add((i / 64) as u32)) + i % 64)
                .collect();
            for _ in 0..20 {
                let from = random.below(u64::from(length) + 1);
                let count = random.below(u64::from(length) - from + 1);
                let pieces = fixture.resolve(payload, from, count as u32).unwrap();
                assert_eq!(addresses(&pieces), all[from as usize..(from + count) as usize]);
            }
            assert_eq!(fixture.resolve(payload, 0, length + 1), Err(Unreachable));
            fixture.bench.complete(fixture.qp.qpn, 1);
            assert_eq!(fixture.resolve(payload, 0, length.max(1)), Err(Unreachable));
        }
    });
}

#[test]
fn a_message_has_its_number_until_it_is_complete() {
    let mut fixture = Fixture::new();
    for i in 0..4 {
        fixture.qp.post(&Wqe::gather(SendOpcode::Write, &[fixture.region.sge(i * 8, 8)]));
    }
    fixture.qp.post(&Wqe::gather(SendOpcode::FetchAdd, &[]));
    fixture.bench.settle();
    let iova = fixture.region.iova;
    let at = |fixture: &Fixture, number| fixture.resolve(Payload::Message { number }, 0, 8);
    fixture.bench.complete(fixture.qp.qpn, 2);
    assert_eq!(at(&fixture, 1), Err(Unreachable));
    assert_eq!(at(&fixture, 2), Ok(vec![Piece { iova: iova + 16, length: 8 }]));
    assert_eq!(at(&fixture, 3), Ok(vec![Piece { iova: iova + 24, length: 8 }]));
    assert_eq!(at(&fixture, 4), Err(Unreachable), "the entry that was never submitted");
    assert_eq!(at(&fixture, u64::MAX), Err(Unreachable));
    fixture.bench.complete(fixture.qp.qpn, 2);
    assert_eq!(at(&fixture, 0), Err(Unreachable));
}

#[test]
fn memory_whose_key_was_destroyed_is_out_of_reach_at_once() {
    let mut fixture = Fixture::new();
    let other = fixture.bench.register(64);
    let sges = [fixture.region.sge(0, 8), other.sge(0, 8)];
    fixture.qp.post(&Wqe::gather(SendOpcode::Send, &sges));
    fixture.qp.rq.post(0, &sges);
    fixture.bench.settle();
    let id = fixture.bench.device.take_receive(fixture.qp.qpn).unwrap().id;
    fixture.bench.destroy(Opcode::DestroyKey, other.key);
    for payload in [Payload::Message { number: 0 }, Payload::Receive { id }] {
        assert!(fixture.resolve(payload, 0, 8).is_ok());
        assert_eq!(fixture.resolve(payload, 0, 9), Err(Unreachable));
    }
}

#[test]
fn a_receive_has_its_name_until_it_is_complete() {
    let mut fixture = Fixture::new();
    for _ in 0..3 {
        fixture.qp.rq.post(0, &[fixture.region.sge(0, 8)]);
        fixture.bench.device.take_receive(fixture.qp.qpn).unwrap();
    }
    fixture.bench.handle(crate::engine::receiving::received(fixture.qp.qpn, 8));
    let reach = |fixture: &Fixture, id| fixture.resolve(Payload::Receive { id }, 0, 8).is_ok();
    let reached = [0, 1, 2, 3, u64::MAX].map(|id| reach(&fixture, id));
    assert_eq!(reached, [false, true, true, false, false]);
}
