//! Hostile clients, drivers and transports: no panic, no hang, bounded work.

use std::collections::BTreeSet;

use fpga_regs::Block;
use fpga_regs::engine::admin::{CreateCq, CreateQp, CreateRq, Opcode};
use fpga_regs::engine::cqe::{Cqe, Flags, Status};
use fpga_regs::engine::doorbell::record;
use fpga_regs::engine::event::QpEvent;
use fpga_regs::engine::qp::{QpState, QpType};
use fpga_regs::engine::window::{self as w, Capabilities};
use fpga_regs::engine::wqe::{SendHeader, SendOpcode};
use queue_engine::{
    EngineConfig, Payload, Piece, ReceiveKind, ReceivedMessage, RemoteAccess, RemoteRange,
    TransportError, TransportEvent,
};

use crate::Dut;
use crate::engine::support::bench::{Bench, PAGE, standard};
use crate::engine::support::client::{ClientCq, ClientQp};
use crate::engine::support::device::{Device as _, Need, needs};
use crate::engine::support::manual::Manual;
use crate::engine::support::random::{Seeded, for_seeds};
use crate::engine::support::wqe::Wqe;

/// QPs of the hostile tests.
const QPS: usize = 6;
/// Blocks an engine may read, and entries it may write, in one call: for each QP one turn of 64
/// entries in each direction, of up to 5 blocks each.
const READS: u64 = QPS as u64 * 2 * 64 * 5;
const WRITES: usize = QPS * 2 * 64 * 2 + 64;

fn small() -> EngineConfig {
    EngineConfig { qps: QPS as u32, cqs: 8, rqs: 8, keys: 8, log2_cq_entries: 6, ..standard() }
}

/// Polls once and checks that the work was bounded, where that is to be seen.
fn bounded_poll(bench: &mut Bench<Manual>) -> bool {
    let before = bench.memory.reads();
    bench.memory.take_published();
    let busy = bench.poll();
    if !Dut::serves(Need::Turns) {
        return busy;
    }
    assert!(bench.memory.reads() - before <= READS);
    assert!(bench.memory.take_published().len() <= WRITES);
    busy
}

/// Blocks that are mostly nonsense, some of it nearly right.
fn garbage(random: &mut Seeded, keys: &[u32]) -> Block {
    let mut block: Block = std::array::from_fn(|_| match random.below(4) {
        0 => 0,
        1 => random.next(),
        2 => 0x7f00_0010_0000 + random.below(1 << 16),
        _ => random.below(300) | u64::from(random.choose(keys)) << 32,
    });
    if random.one_in(2) {
        let header = SendHeader {
            opcode: SendOpcode(random.below(12) as u8),
            blocks: random.below(7) as u8,
            num_sge: random.below(18) as u8,
            inline_length: random.below(400) as u32,
            ..SendHeader::decode(&[block])
        };
        block = header.encode()[0];
    }
    block
}

/// A producer index that is near, far, or impossible.
fn any_index(random: &mut Seeded, now: u32) -> u32 {
    match random.below(4) {
        0 => now.wrapping_add(random.below(20) as u32),
        1 => now.wrapping_sub(random.below(20) as u32),
        2 => now.wrapping_add(random.below(2000) as u32),
        _ => random.next() as u32,
    }
}

#[test]
fn a_call_looks_at_some_queue_pairs_however_many_have_work() {
    needs!(Need::Turns);
    const QPS: usize = 1000;
    let mut bench = Bench::new();
    let cq = bench.create_cq(12);
    let region = bench.register(64);
    let mut qps: Vec<_> = (0..QPS).map(|_| bench.ready_qp(&cq)).collect();
    for qp in &mut qps {
        qp.post(&Wqe::gather(SendOpcode::Write, &[region.sge(0, 1)]));
    }
    let (mut calls, mut before) = (0, 0);
    while bench.poll() {
        let sent = bench.transport.sent.len();
        assert!(sent - before <= 128, "{} in one call", sent - before);
        (calls, before) = (calls + 1, sent);
    }
    let served: BTreeSet<u32> = bench.transport.sent.iter().map(|sent| sent.qpn).collect();
    assert_eq!((served.len(), before), (QPS, QPS), "in {calls} calls");
}

#[test]
fn a_producer_index_that_runs_away_costs_one_turn_per_poll_and_others_go_on() {
    needs!(Need::Turns);
    for step in [1, 3, 1 << 31, u32::MAX] {
        for state in [QpState::Rts, QpState::Err] {
            for victim_is_rq in [false, true] {
                let mut bench = Bench::new();
                let (bad_cq, mut good_cq) = (bench.create_cq(4), bench.create_cq(6));
                let mut bad = bench.ready_qp(&bad_cq);
                let mut good = bench.ready_qp(&good_cq);
                bench.go(bad.qpn, state);
                bench.settle();
                bench.memory.run_away(if victim_is_rq { bad.rq.ring } else { bad.sq }, step);
                bad.post(&Wqe::gather(SendOpcode::Send, &[]));
                bad.rq.post(1, &[]);
                for _ in 0..50 {
                    good.post(&Wqe::gather(SendOpcode::Send, &[]));
                    for _ in 0..3 {
                        bounded_poll(&mut bench);
                    }
                    let count = bench.transport.under_way(good.qpn) as u64;
                    let event = bench.transport.completed(good.qpn, count);
                    bench.report(event);
                    assert_eq!(good_cq.poll_one().status, Status::Success);
                }
            }
        }
    }
}

#[test]
fn an_impossible_producer_index_is_one_bad_entry() {
    let mut bench = Bench::new();
    let mut cq = bench.create_cq(8);
    let mut qp = bench.ready_qp(&cq);
    // Sound entries from end to end: only the index is wrong.
    let [block] = Wqe::gather(SendOpcode::Send, &[]).encode()[..] else { unreachable!() };
    for index in 0..64 {
        bench.memory.store_block(qp.block_address(index), &block);
    }
    let jump = 1 << 31;
    qp.produce(jump);
    bench.settle();
    let entry = cq.poll_one();
    assert_eq!((entry.wqe_index, entry.status), (0, Status::LocalQpOperation));
    // In ERR too; then the ring is in step again, across the end of 32 bits.
    qp.produce(u32::MAX - 2);
    bench.settle();
    assert_eq!(cq.poll_one().wqe_index, jump);
    let posted: Vec<_> = (0..6).map(|_| qp.post(&Wqe::gather(SendOpcode::Send, &[]))).collect();
    bench.settle();
    let flushed: Vec<_> = cq.poll().iter().map(|entry| entry.wqe_index).collect();
    assert_eq!(flushed, posted);
    assert_eq!(posted.last(), Some(&2));
}

#[test]
fn an_impossible_receive_producer_index_is_one_bad_receive() {
    let mut bench = Bench::new();
    let mut cq = bench.create_cq(8);
    let mut qp = bench.ready_qp(&cq);
    qp.rq.produce(u32::MAX - 1);
    assert_eq!(bench.device.take_receive(qp.qpn), Err(queue_engine::ReceiveError::Invalid));
    bench.refuse_receive(qp.qpn);
    bench.settle();
    let entry = cq.poll_one();
    assert_eq!((entry.flags, entry.status), (Flags::RECEIVE, Status::LocalProtection));
    for tag in 0..5 {
        qp.rq.post(tag, &[]);
    }
    bench.settle();
    let tags: Vec<_> = cq.poll().iter().map(|entry| entry.wqe_index).collect();
    assert_eq!(tags, [0, 1, 2, 3, 4]);
    qp.rq.produce(1 << 30);
    bench.settle();
    assert_eq!(cq.poll().len(), 1);
}

#[test]
fn a_consumer_index_that_lies_hurts_its_own_queue_only() {
    for_seeds(50, |seed| {
        let mut random = Seeded::new(seed);
        let mut bench = Bench::new();
        let (mut bad, mut good) = (bench.create_cq(2), bench.create_cq(6));
        let mut bad_qp = bench.ready_qp(&bad);
        let mut good_qp = bench.ready_qp(&good);
        for _ in 0..100 {
            for address in [bad.ring, bad.ring + 8] {
                bench.memory.store(address, random.next());
            }
            bad.sequence = random.next() as u32;
            bad.ring();
            bad_qp.post(&Wqe::gather(SendOpcode::Send, &[]));
            good_qp.post(&Wqe::gather(SendOpcode::Send, &[]));
            bench.settle();
            // It may have lost a completion, and failed by that.
            if bench.query(bad_qp.qpn).state == QpState::Rts {
                bench.complete(bad_qp.qpn, 1);
            }
            bench.complete(good_qp.qpn, 1);
            assert_eq!(good.poll_one().status, Status::Success);
        }
        bad.take();
    });
}

/// A world in which no party keeps the rules.
struct Chaos {
    bench: Bench<Manual>,
    random: Seeded,
    cqs: Vec<ClientCq>,
    qps: Vec<ClientQp>,
    keys: Vec<u32>,
}

impl Chaos {
    fn new(seed: u64) -> Self {
        let mut bench = Bench::with(small(), Manual::with_capacity(16));
        let cqs: Vec<_> = (0..3).map(|_| bench.create_cq(5)).collect();
        let qps: Vec<_> = (0..QPS)
            .map(|i| {
                let rq = bench.create_rq(3, (i % 4) as u8);
                let cqs = (&cqs[i % 3], &cqs[(i + 1) % 3]);
                if i % 3 == 2 && standard().capabilities.contains(Capabilities::UD) {
                    let qp = bench.create_qp_of(QpType::Ud, 4, cqs, rq);
                    bench.climb_datagrams(qp.qpn);
                    return qp;
                }
                let qp = bench.create_qp_of(QpType::Rc, 4, cqs, rq);
                bench.climb(qp.qpn, QpState::Rts);
                qp
            })
            .collect();
        let keys = (0..4).map(|_| bench.register(1 << 16).key).collect();
        Self { bench, random: Seeded::new(seed), cqs, qps, keys }
    }

    fn qp(&mut self) -> usize {
        self.random.below(self.qps.len() as u64) as usize
    }

    fn any_qpn(&mut self) -> u32 {
        let qpn = self.qps[self.random.below(QPS as u64) as usize].qpn;
        if self.random.one_in(10) { self.random.next() as u32 & 0xff_ffff } else { qpn }
    }

    /// A client writes nonsense and rings.
    fn client(&mut self) {
        let i = self.qp();
        let random = &mut self.random;
        let qp = &mut self.qps[i];
        for _ in 0..random.below(6) {
            let index = random.below(16) as u32;
            let block = garbage(random, &self.keys);
            self.bench.memory.store_block(qp.block_address(index), &block);
            let rq = qp.rq.ring + record::ENTRIES + random.below(8 << qp.rq.log2_stride) * 64;
            self.bench.memory.store_block(rq, &garbage(random, &self.keys));
        }
        match random.below(4) {
            0 => qp.produce(any_index(random, qp.producer)),
            1 => qp.rq.produce(any_index(random, qp.rq.producer)),
            2 => self.bench.page.store(random.below(512) as usize, random.next()),
            _ => {
                let cq = &mut self.cqs[i % 3];
                self.bench.memory.store(cq.ring, any_index(random, cq.consumer).into());
                self.bench.memory.store(cq.ring + 8, random.next());
                cq.sequence = random.next() as u32;
                cq.ring();
            }
        }
    }

    /// The transport reports anything.
    fn transport(&mut self) {
        let qpn = self.any_qpn();
        let random = &mut self.random;
        let status = Status(random.below(30) as u8);
        let event = match random.below(8) {
            0 => TransportEvent::Failed { qpn, status },
            1 => TransportEvent::ReceiveFailed { qpn, status },
            2 => TransportEvent::Error { qpn },
            3 => TransportEvent::Async { qpn, event: QpEvent(random.next() as u8) },
            4 | 5 => TransportEvent::Received(ReceivedMessage {
                qpn,
                length: random.next() as u32,
                kind: random.choose(&[ReceiveKind::Send, ReceiveKind::Write]),
                immediate: random.choose(&[None, Some(7)]),
                solicited: random.one_in(2),
                source_qpn: random.choose(&[None, Some(5)]),
            }),
            _ => TransportEvent::Completed { qpn, count: random.below(20) },
        };
        let refusals = [
            None,
            None,
            None,
            Some(TransportError::Full),
            Some(TransportError::Unsupported),
            Some(TransportError::WrongState),
        ];
        self.bench.transport.refusal = random.choose(&refusals);
        self.bench.report(event);
    }

    /// A peer takes receives and reaches for memory.
    fn peer(&mut self) {
        let qpn = self.any_qpn();
        let random = &mut self.random;
        let (rkey, address) = (random.choose(&self.keys), 0x7f00_0010_0000 + random.below(1 << 20));
        let access =
            random.choose(&[RemoteAccess::Read, RemoteAccess::Write, RemoteAccess::Atomic]);
        let payload = match random.below(3) {
            0 => Payload::Message { number: random.below(40) },
            1 => Payload::Receive { id: random.below(40) },
            _ => Payload::Remote { rkey, address, access },
        };
        let (offset, length) = match random.below(3) {
            0 => (random.next(), random.next() as u32),
            _ => (random.below(600), random.below(600) as u32),
        };
        let engine = &mut self.bench.device;
        let mut pieces = Vec::new();
        if engine.resolve(qpn, payload, offset, length, &mut pieces).is_ok() {
            let bytes: u64 = pieces.iter().map(|piece: &Piece| u64::from(piece.length)).sum();
            assert_eq!(bytes, u64::from(length));
        }
        let memory = RemoteRange { rkey, va: address, length: random.next() };
        let _ = engine.allows(qpn, memory, access);
        if engine.take_receive(qpn).is_err() {
            self.bench.refuse_receive(qpn);
        }
    }

    /// The driver brings a QP back into play, or fails it.
    fn driver(&mut self) {
        let i = self.qp();
        let qpn = self.qps[i].qpn;
        match self.random.below(4) {
            0 => drop(self.bench.go(qpn, QpState::Err)),
            1 => self.bench.set_gid(self.random.below(16) as u8, Some([3; 16])),
            _ => {
                let generation = self.bench.go(qpn, QpState::Reset);
                self.qps[i].start_over(generation);
                for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
                    self.bench.modify(qpn, &crate::engine::support::bench::step_to(state));
                }
            }
        }
        self.bench.events();
    }
}

#[test]
fn clients_transports_and_peers_out_of_control_break_nothing() {
    needs!(Need::OtherLimits);
    for_seeds(40, |seed| {
        let mut chaos = Chaos::new(seed);
        for _ in 0..1500 {
            match chaos.random.below(8) {
                0..=2 => chaos.client(),
                3 => chaos.transport(),
                4 => chaos.peer(),
                5 if chaos.random.one_in(3) => chaos.driver(),
                _ => drop(bounded_poll(&mut chaos.bench)),
            }
            if chaos.random.one_in(20) {
                for cq in &mut chaos.cqs {
                    cq.poll();
                }
            }
        }
        // The engine comes to rest once all writers stop, and the QPs work again.
        chaos.bench.transport.refusal = None;
        for i in 0..QPS {
            chaos.bench.transport.enter_error(chaos.qps[i].qpn);
            chaos.bench.go(chaos.qps[i].qpn, QpState::Err);
        }
        let mut polls = 0;
        while bounded_poll(&mut chaos.bench) {
            polls += 1;
            assert!(polls < 2000, "the engine does not come to rest");
        }
        let mut cq = chaos.bench.create_cq(5);
        for i in 0..QPS {
            let qpn = chaos.qps[i].qpn;
            chaos.bench.destroy(Opcode::DestroyQp, qpn);
            let rq = chaos.bench.create_rq(0, 0);
            let mut qp = chaos.bench.create_qp(2, &cq, &cq, rq);
            chaos.bench.climb(qp.qpn, QpState::Rts);
            qp.post(&Wqe::gather(SendOpcode::Send, &[]));
            chaos.bench.settle();
            chaos.bench.complete(qp.qpn, 1);
            let entry: Cqe = cq.poll_one();
            assert_eq!((entry.qpn, entry.status), (qp.qpn, Status::Success));
            chaos.bench.destroy(Opcode::DestroyQp, qp.qpn);
            chaos.bench.destroy(Opcode::DestroyRq, qp.rq.rqn);
        }
    });
}

/// Admin blocks: an opcode that may exist, and fields that may name something.
fn admin_blocks(random: &mut Seeded, numbers: &[u32], rings: &[u64]) -> Vec<Block> {
    let field = |random: &mut Seeded| match random.below(5) {
        0 => 0,
        1 => random.next(),
        2 => random.choose(rings),
        _ => u64::from(random.choose(numbers)) | u64::from(random.choose(numbers)) << 32,
    };
    let mut blocks = vec![[0; 8]; 1 + random.below(4) as usize];
    for word in blocks.as_flattened_mut() {
        *word = field(random);
    }
    let ring = random.choose(rings);
    let number = |random: &mut Seeded| random.choose(numbers);
    match random.below(6) {
        0 => {
            let log2_entries = random.below(8) as u8;
            let (page, vector) = (random.below(3) as u8, random.below(4) as u8);
            let command = CreateCq { ring, log2_entries, page, vector };
            blocks = command.encode().to_vec();
        }
        1 => {
            let command = CreateRq {
                ring,
                log2_entries: random.below(12) as u8,
                log2_stride: random.below(5) as u8,
                page: PAGE,
                ..Default::default()
            };
            blocks = command.encode().to_vec();
        }
        2 => {
            let command = CreateQp {
                sq_ring: ring,
                log2_sq_blocks: random.below(12) as u8,
                page: PAGE,
                kind: QpType::Rc,
                send_cqn: number(random),
                receive_cqn: number(random),
                rqn: number(random),
                ..Default::default()
            };
            blocks = command.encode().to_vec();
        }
        _ => {}
    }
    let count = if random.one_in(8) { random.next() as u8 } else { blocks.len() as u8 };
    let opcode = random.below(20);
    blocks[0][0] = opcode | u64::from(count) << 8 | (random.next() & 0xffff) << 16;
    blocks[0][1] = random.choose(rings);
    blocks
}

#[test]
fn admin_commands_at_random_break_nothing() {
    needs!(Need::OtherLimits);
    for_seeds(30, |seed| {
        let mut random = Seeded::new(seed);
        let mut bench = Bench::with(small(), Manual::default());
        let mut rings: Vec<u64> = (0..6).map(|_| bench.memory.allocate(64 << 12)).collect();
        rings.extend([0, 8, u64::MAX - 63, 1 << 44]);
        let mut numbers = BTreeSet::from([0, 1, 0xff_ffff]);
        for _ in 0..1500 {
            let all: Vec<u32> = numbers.iter().copied().collect();
            let blocks = admin_blocks(&mut random, &all, &rings);
            bench.push_admin(&blocks);
            bench.execute_admin();
            for completion in bench.admin_completions() {
                numbers.insert(completion.result);
            }
            if numbers.len() > 60 {
                numbers = BTreeSet::from([0, 1]);
            }
            bounded_poll(&mut bench);
            if random.one_in(200) {
                bench.write(w::CONTROL, w::CONTROL_RESET);
                bench.start();
            }
        }
    });
}

#[test]
fn register_accesses_at_random_break_nothing() {
    needs!(Need::OtherLimits);
    for_seeds(30, |seed| {
        let mut random = Seeded::new(seed);
        let mut bench = Bench::with(small(), Manual::default());
        bench.memory.map(0, 1 << 24);
        for _ in 0..5000 {
            let register = match random.below(3) {
                0 => random.next(),
                _ => random.below(0x240) & !7,
            };
            let value = match random.below(4) {
                0 => random.next(),
                1 => random.below(20),
                2 => random.below(1 << 18) << 6,
                _ => 1 << random.below(64),
            };
            bench.read(register);
            bench.write(register, value);
            if random.one_in(10) {
                let block: Block = std::array::from_fn(|_| random.next());
                bench.memory.store_block(random.below(1 << 18) << 6, &block);
            }
            bounded_poll(&mut bench);
        }
        bench.write(w::CONTROL, w::CONTROL_RESET);
        bench.start();
        let cq = bench.create_cq(2);
        assert_eq!(cq.consumer, 0);
    });
}
