//! The counter-only transport: the abilities of a published bitstream fit the seam.

use fpga_regs::engine::admin::{AdminStatus, CreateQp, Opcode};
use fpga_regs::engine::cqe::{Cqe, Status};
use fpga_regs::engine::qp::{QpState, QpType};
use fpga_regs::engine::window::{self as w, Capabilities, Profile};
use fpga_regs::engine::wqe::SendOpcode;
use queue_engine::EngineConfig;

use crate::engine::support::bench::{Bench, PAGE, Region, standard};
use crate::engine::support::client::{ClientCq, ClientQp};
use crate::engine::support::device::{Need, needs};
use crate::engine::support::random::{Seeded, for_seeds};
use crate::engine::support::stock::{ROOM, Stock};
use crate::engine::support::wqe::Wqe;

fn config() -> EngineConfig {
    let capabilities = Capabilities::RC | Capabilities::WRITE | Capabilities::READ;
    EngineConfig { profile: Profile::Stock, capabilities, qps: 64, ..standard() }
}

struct Fixture {
    bench: Bench<Stock>,
    cq: ClientCq,
    region: Region,
}

impl Fixture {
    fn new() -> Self {
        let mut bench = Bench::with(config(), Stock::default());
        let cq = bench.create_cq(10);
        let region = bench.register(1 << 16);
        Self { bench, cq, region }
    }

    fn ready_qp(&mut self) -> ClientQp {
        self.bench.ready_qp(&self.cq)
    }

    fn wqe(&self, opcode: SendOpcode) -> Wqe {
        Wqe::gather(opcode, &[self.region.sge(0, 4096)]).remote(0x1000, 1)
    }

    /// Reads the hardware's counters until they say nothing new.
    fn harvest(&mut self) -> Vec<Cqe> {
        for event in self.bench.transport.harvest() {
            self.bench.handle(event);
        }
        self.cq.poll()
    }
}

#[test]
fn the_window_says_that_it_is_stock_and_what_that_can_do() {
    needs!(Need::OtherLimits);
    let mut fixture = Fixture::new();
    assert_eq!(fixture.bench.read(w::VERSION) >> 32, u64::from(Profile::Stock.0));
    let capabilities = Capabilities::from_bits_retain(fixture.bench.read(w::CAPABILITIES));
    assert_eq!(capabilities, config().capabilities);
}

#[test]
fn writes_and_reads_complete_in_order_by_two_counters_that_move_apart() {
    needs!(Need::OtherLimits);
    let mut fixture = Fixture::new();
    let mut qp = fixture.ready_qp();
    fixture.bench.transport.near_wrap(qp.qpn);
    let posted: Vec<_> = [SendOpcode::Write, SendOpcode::Read, SendOpcode::Read, SendOpcode::Write]
        .map(|opcode| qp.post(&fixture.wqe(opcode)))
        .into();
    fixture.bench.settle();
    fixture.bench.transport.reads_done(qp.qpn, 2);
    assert!(fixture.harvest().is_empty(), "the WRITE before the READs is not done");
    fixture.bench.transport.writes_done(qp.qpn, 1);
    let done: Vec<_> = fixture.harvest().iter().map(|entry| entry.wqe_index).collect();
    assert_eq!(done, posted[..3]);
    fixture.bench.transport.writes_done(qp.qpn, 1);
    assert_eq!(fixture.harvest().len(), 1);
}

#[test]
fn a_send_is_refused_and_what_came_before_it_completes_first() {
    needs!(Need::OtherLimits);
    for opcode in [SendOpcode::Send, SendOpcode::SendImm, SendOpcode::WriteImm] {
        let mut fixture = Fixture::new();
        let mut qp = fixture.ready_qp();
        qp.post(&fixture.wqe(SendOpcode::Write));
        qp.post(&fixture.wqe(opcode));
        qp.post(&fixture.wqe(SendOpcode::Write));
        fixture.bench.settle();
        assert_eq!(fixture.bench.transport.under_way(), 1);
        assert!(fixture.harvest().is_empty());
        fixture.bench.transport.writes_done(qp.qpn, 1);
        let statuses: Vec<_> = fixture.harvest().iter().map(|entry| entry.status).collect();
        assert_eq!(statuses, [Status::Success, Status::LocalQpOperation, Status::Flushed]);
    }
}

#[test]
fn the_fifo_is_shared_never_overrun_and_nobody_starves() {
    needs!(Need::OtherLimits);
    for_seeds(8, |seed| {
        let mut random = Seeded::new(seed);
        let mut fixture = Fixture::new();
        let mut qps: Vec<_> = (0..20).map(|_| fixture.ready_qp()).collect();
        for qp in &mut qps {
            for _ in 0..25 {
                let opcode = random.choose(&[SendOpcode::Write, SendOpcode::Read]);
                qp.post(&fixture.wqe(opcode));
            }
        }
        fixture.bench.settle();
        assert_eq!(fixture.bench.transport.under_way(), ROOM);
        let mut done: Vec<Cqe> = Vec::new();
        for _ in 0..10_000 {
            // Messages under way advance; the counters run ahead by as many.
            let qp = &qps[random.below(20) as usize];
            fixture.bench.transport.finish(qp.qpn, random.below(4) as u32);
            done.extend(fixture.harvest());
        }
        assert_eq!(done.len(), 20 * 25);
        for qp in &qps {
            let indices: Vec<_> =
                done.iter().filter(|e| e.qpn == qp.qpn).map(|e| e.wqe_index).collect();
            assert_eq!(indices, Vec::from_iter(0..25));
        }
        assert_eq!(fixture.bench.transport.under_way(), 0);
    });
}

#[test]
fn a_qp_with_endless_work_does_not_starve_those_that_wait() {
    needs!(Need::OtherLimits);
    let mut fixture = Fixture::new();
    let (mut busy, mut patient) = (fixture.ready_qp(), fixture.ready_qp());
    for _ in 0..2 * ROOM {
        busy.post(&fixture.wqe(SendOpcode::Write));
    }
    fixture.bench.settle();
    patient.post(&fixture.wqe(SendOpcode::Write));
    fixture.bench.settle();
    // The busy one waited before the patient one came: it is first, and then it is not.
    for _ in 0..2 {
        fixture.bench.transport.writes_done(busy.qpn, 1);
        fixture.harvest();
    }
    fixture.bench.transport.finish(patient.qpn, 1);
    let done = fixture.harvest();
    assert_eq!(done.len(), 1);
    assert_eq!(done[0].qpn, patient.qpn);
}

#[test]
fn room_that_a_destroyed_qp_leaves_goes_to_those_that_wait() {
    needs!(Need::OtherLimits);
    let mut fixture = Fixture::new();
    let (mut first, mut second, mut third) =
        (fixture.ready_qp(), fixture.ready_qp(), fixture.ready_qp());
    for _ in 0..ROOM {
        first.post(&fixture.wqe(SendOpcode::Write));
    }
    fixture.bench.settle();
    second.post(&fixture.wqe(SendOpcode::Write));
    fixture.bench.settle();
    third.post(&fixture.wqe(SendOpcode::Read));
    fixture.bench.settle();
    assert_eq!(fixture.bench.transport.under_way(), ROOM);
    fixture.bench.destroy(Opcode::DestroyQp, first.qpn);
    fixture.bench.settle();
    assert_eq!(fixture.bench.transport.under_way(), 2);
}

#[test]
fn a_qp_that_waits_in_vain_state_passes_the_room_on() {
    needs!(Need::OtherLimits);
    let mut fixture = Fixture::new();
    let mut qps: Vec<_> = (0..4).map(|_| fixture.ready_qp()).collect();
    for _ in 0..ROOM {
        qps[0].post(&fixture.wqe(SendOpcode::Write));
    }
    fixture.bench.settle();
    for qp in &mut qps[1..] {
        qp.post(&fixture.wqe(SendOpcode::Write));
        fixture.bench.settle();
    }
    fixture.bench.go(qps[1].qpn, QpState::Sqd);
    fixture.bench.destroy(Opcode::DestroyQp, qps[2].qpn);
    fixture.bench.settle();
    fixture.bench.transport.writes_done(qps[0].qpn, 1);
    assert_eq!(fixture.harvest().len(), 1);
    fixture.bench.transport.writes_done(qps[3].qpn, 1);
    assert_eq!(fixture.harvest().len(), 1, "the fourth QP had its turn");
}

#[test]
fn the_hardware_has_64_qps() {
    needs!(Need::OtherLimits);
    let config = EngineConfig { qps: 100, ..config() };
    let mut bench = Bench::with(config, Stock::default());
    let cq = bench.create_cq(4);
    for _ in 0..64 {
        bench.ready_qp(&cq);
    }
    let rq = bench.create_rq(0, 0);
    let command = CreateQp {
        sq_ring: bench.memory.allocate(128),
        page: PAGE,
        kind: QpType::Rc,
        send_cqn: cq.cqn,
        receive_cqn: cq.cqn,
        rqn: rq.rqn,
        ..Default::default()
    };
    assert_eq!(bench.status(Opcode::CreateQp, &command.encode()), AdminStatus::NoResources);
}
