//! Memory windows: the memory that they open, the peers that may use it, and the ways to take them back.

use fpga_regs::engine::admin::{AdminStatus, CreateKey, KeyKind, ModifyKey, Opcode};
use fpga_regs::engine::cqe::{self, Flags, Status};
use fpga_regs::engine::key::{self, Access};
use fpga_regs::engine::qp::{AttributeMask, Attributes, QpState, QpType};
use fpga_regs::engine::window::Capabilities;
use fpga_regs::engine::wqe::{SendFlags, SendOpcode};
use queue_engine::{
    EngineConfig, Payload, Piece, ReceiveKind, ReceivedMessage, RemoteAccess, RemoteRange,
    TransportEvent, WqeOperation,
};

use crate::engine::support::bench::{Bench, PDN, Region, sound_attributes, standard};
use crate::engine::support::client::{ClientCq, ClientQp};
use crate::engine::support::device::{Device as _, Need, needs};
use crate::engine::support::manual::Manual;
use crate::engine::support::random::for_seeds;
use crate::engine::support::wqe::Wqe;

const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::WINDOW_BIND);
const REMOTE: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ);

use RemoteAccess::{Invalidate, Read, Write};

struct Fixture {
    bench: Bench<Manual>,
    cq: ClientCq,
    qp: ClientQp,
    region: Region,
}

fn bind(rkey: u32, region: Region, offset: u64, length: u64, access: Access) -> Wqe {
    let words = [length, u64::from(region.key) | u64::from(access.bits()) << 32];
    Wqe::atomic(SendOpcode::BindWindow, words, &[]).remote(region.va + offset, rkey)
}

fn local_invalidate(rkey: u32) -> Wqe {
    Wqe::gather(SendOpcode::LocalInvalidate, &[]).immediate(rkey)
}

/// The next key of a window.
fn next(rkey: u32) -> u32 {
    key::key(key::number(rkey), key::variant(rkey).wrapping_add(1))
}

impl Fixture {
    fn new() -> Self {
        let mut bench = Bench::new();
        let cq = bench.create_cq(6);
        let qp = bench.ready_qp(&cq);
        let region = bench.register_with(4096, ALL, PDN);
        let mut fixture = Self { bench, cq, qp, region };
        fixture.let_in(fixture.qp.qpn);
        fixture
    }

    /// Has a QP allow its peer everything.
    fn let_in(&mut self, qpn: u32) {
        let access = (REMOTE | Access::REMOTE_ATOMIC).bits();
        let mask = AttributeMask::ACCESS;
        self.bench.modify(qpn, &Attributes { mask, access, ..sound_attributes() });
    }

    fn window(&mut self, kind: KeyKind) -> u32 {
        let command = CreateKey { pdn: PDN, kind, ..CreateKey::default() };
        self.bench.succeed(Opcode::CreateKey, &command.encode()).result
    }

    /// Posts, and gives the completions.
    fn post(&mut self, wqe: &Wqe) -> Vec<(cqe::Opcode, Status)> {
        self.qp.post(wqe);
        self.bench.settle();
        self.cq.poll().iter().map(|entry| (entry.opcode, entry.status)).collect()
    }

    fn bind(&mut self, rkey: u32, offset: u64, length: u64, access: Access) {
        let wqe = bind(rkey, self.region, offset, length, access);
        assert_eq!(self.post(&wqe), [(cqe::Opcode::BindWindow, Status::Success)]);
    }

    fn allows(&self, qpn: u32, rkey: u32, address: u64, length: u32, access: RemoteAccess) -> bool {
        let engine = &self.bench.device;
        let memory = RemoteRange { rkey, va: address, length: length.into() };
        let allowed = engine.allows(qpn, memory, access);
        let payload = Payload::Remote { rkey, address, access };
        let mut pieces: Vec<Piece> = Vec::new();
        if allowed && length > 0 {
            assert_eq!(engine.resolve(qpn, payload, 0, length, &mut pieces), Ok(()));
            let within = self.region.iova..self.region.iova + 4096;
            assert!(pieces.iter().all(|piece| within.contains(&piece.iova)));
        }
        allowed
    }

    /// Whether the peer of the fixture's QP may.
    fn opens(&self, rkey: u32, offset: u64, length: u32, access: RemoteAccess) -> bool {
        self.allows(self.qp.qpn, rkey, self.region.va + offset, length, access)
    }

    fn state(&mut self) -> QpState {
        let qpn = self.qp.qpn;
        self.bench.query(qpn).state
    }
}

#[test]
fn a_window_opens_what_it_is_bound_to_and_no_more() {
    needs!(Capabilities::MEMORY_WINDOW);
    for kind in [KeyKind::Window1, KeyKind::Window2] {
        let mut fixture = Fixture::new();
        let first = fixture.window(kind);
        assert!(!fixture.opens(first, 0, 1, Read), "it is not bound");
        let rkey = next(first);
        fixture.bind(rkey, 100, 50, Access::REMOTE_READ);
        assert!(fixture.opens(rkey, 100, 50, Read) && fixture.opens(rkey, 149, 1, Read));
        assert!(!fixture.opens(rkey, 99, 1, Read) && !fixture.opens(rkey, 149, 2, Read));
        assert!(!fixture.opens(rkey, 150, 1, Read) && !fixture.opens(rkey, 100, u32::MAX, Read));
        assert!(!fixture.opens(rkey, 100, 1, Write), "it does not have the right");
        assert!(!fixture.opens(first, 100, 1, Read), "that was its key before");
        assert!(fixture.opens(fixture.region.key, 99, 1, Read), "the region is as it was");
        // Where it begins is where its addresses begin.
        let payload =
            Payload::Remote { rkey, address: fixture.region.va + 120, access: RemoteAccess::Read };
        let mut pieces: Vec<Piece> = Vec::new();
        fixture.bench.device.resolve(fixture.qp.qpn, payload, 0, 8, &mut pieces).unwrap();
        assert_eq!(pieces, [Piece { iova: fixture.region.iova + 120, length: 8 }]);
        // No request of this side goes by it.
        let sge = fpga_regs::engine::wqe::Sge { lkey: rkey, ..fixture.region.sge(100, 8) };
        let send = Wqe::gather(SendOpcode::Send, &[sge]);
        assert_eq!(fixture.post(&send), [(cqe::Opcode::Send, Status::LocalProtection)]);
    }
}

#[test]
fn addresses_of_a_zero_based_window_are_offsets() {
    needs!(Capabilities::MEMORY_WINDOW);
    let mut fixture = Fixture::new();
    let rkey = fixture.window(KeyKind::Window2);
    fixture.bind(rkey, 100, 50, REMOTE | Access::ZERO_BASED);
    let qpn = fixture.qp.qpn;
    assert!(fixture.allows(qpn, rkey, 0, 50, Write) && fixture.allows(qpn, rkey, 49, 1, Write));
    assert!(!fixture.allows(qpn, rkey, 1, 50, Write) && !fixture.opens(rkey, 100, 1, Write));
    let payload = Payload::Remote { rkey, address: 7, access: Write };
    let mut pieces: Vec<Piece> = Vec::new();
    fixture.bench.device.resolve(qpn, payload, 0, 1, &mut pieces).unwrap();
    assert_eq!(pieces, [Piece { iova: fixture.region.iova + 107, length: 1 }]);
}

#[test]
fn a_window_of_type_1_is_its_domains_and_moves_with_each_binding() {
    needs!(Capabilities::MEMORY_WINDOW);
    let mut fixture = Fixture::new();
    let cq = fixture.bench.create_cq(4);
    let other = fixture.bench.ready_qp(&cq).qpn;
    fixture.let_in(other);
    let mut rkey = fixture.window(KeyKind::Window1);
    for offset in [0, 64, 128] {
        let before = rkey;
        rkey = next(rkey);
        fixture.bind(rkey, offset, 64, REMOTE);
        assert!(fixture.opens(rkey, offset, 64, Write) && !fixture.opens(before, offset, 1, Write));
        assert!(fixture.allows(other, rkey, fixture.region.va + offset, 64, Write));
    }
    // Only the QP that binds it takes it back.
    assert!(!fixture.opens(rkey, 0, 0, Invalidate));
    fixture.bind(next(rkey), 0, 0, Access::empty());
    assert!(!fixture.opens(rkey, 128, 1, Write) && !fixture.opens(next(rkey), 0, 1, Write));
    let destroy = fixture.bench.destroy(Opcode::DestroyKey, fixture.region.key);
    assert_eq!(destroy, AdminStatus::Success);
}

#[test]
fn a_window_of_type_2_is_its_qps_and_is_taken_back_before_it_is_bound_again() {
    needs!(Capabilities::MEMORY_WINDOW);
    let mut fixture = Fixture::new();
    let cq = fixture.bench.create_cq(4);
    let other = fixture.bench.ready_qp(&cq).qpn;
    fixture.let_in(other);
    let rkey = fixture.window(KeyKind::Window2);
    assert!(!fixture.opens(rkey, 0, 0, Invalidate), "it is not bound");
    fixture.bind(rkey, 0, 64, REMOTE);
    let va = fixture.region.va;
    assert!(!fixture.allows(other, rkey, va, 1, Write), "another QP has not bound it");
    assert!(!fixture.allows(other, rkey, 0, 0, Invalidate));
    assert!(fixture.opens(rkey, 0, 0, Invalidate) && !fixture.opens(next(rkey), 0, 0, Invalidate));
    assert!(!fixture.opens(fixture.region.key, 0, 0, Invalidate), "a region's is not");
    let taken = fixture.post(&local_invalidate(rkey));
    assert_eq!(taken, [(cqe::Opcode::LocalInvalidate, Status::Success)]);
    assert!(!fixture.opens(rkey, 0, 1, Write));
    fixture.bind(next(rkey), 8, 64, REMOTE);
    assert!(fixture.opens(next(rkey), 8, 64, Write));
    let twice = bind(rkey, fixture.region, 0, 64, REMOTE);
    assert_eq!(fixture.post(&twice), [(cqe::Opcode::BindWindow, Status::WindowBind)]);
    assert_eq!(fixture.state(), QpState::Err);
    assert!(fixture.opens(next(rkey), 8, 64, Write), "it is as it was");
}

#[test]
fn what_cannot_be_bound_fails_and_with_it_the_queue_pair() {
    needs!(Capabilities::MEMORY_WINDOW);
    let window = |fixture: &mut Fixture| fixture.window(KeyKind::Window2);
    let refused = |make: &dyn Fn(&mut Fixture) -> Wqe, status: Status| {
        let mut fixture = Fixture::new();
        let wqe = make(&mut fixture);
        let behind = Wqe::gather(SendOpcode::Send, &[fixture.region.sge(0, 8)]);
        fixture.qp.post_silently(&wqe);
        let outcome = fixture.post(&behind);
        assert_eq!(outcome.len(), 2);
        assert_eq!((outcome[0].1, outcome[1].1), (status, Status::Flushed), "{wqe:?}");
        assert_eq!(fixture.state(), QpState::Err);
    };
    let bad = Status::WindowBind;
    refused(&|f| bind(f.region.key, f.region, 0, 8, REMOTE), bad);
    refused(&|f| bind(window(f) ^ 0x100, f.region, 0, 8, REMOTE), bad);
    refused(&|f| bind(window(f), Region { key: f.region.key ^ 1, ..f.region }, 0, 8, REMOTE), bad);
    refused(&|f| bind(window(f), f.region, 0, 4097, REMOTE), bad);
    refused(&|f| bind(window(f), f.region, 4090, 8, REMOTE), bad);
    refused(&|f| bind(window(f), f.region, 1, u64::MAX, REMOTE), bad);
    refused(&|f| bind(window(f), f.region, 0, 8, Access::LOCAL_WRITE), bad);
    refused(&|f| bind(window(f), f.region, 0, 8, Access::from_bits_retain(1 << 9)), bad);
    refused(
        &|f| {
            let rkey = f.window(KeyKind::Window1);
            bind(rkey, f.region, 0, 8, REMOTE | Access::ZERO_BASED)
        },
        bad,
    );
    // A region that takes no windows, one without remote writes, one of another domain.
    for (access, pdn) in [
        (ALL - Access::WINDOW_BIND, PDN),
        (Access::WINDOW_BIND | Access::REMOTE_READ, PDN),
        (ALL, PDN + 1),
    ] {
        refused(
            &|f| {
                let region = f.bench.register_with(64, access, pdn);
                bind(window(f), region, 0, 8, REMOTE)
            },
            bad,
        );
    }
    // A window of another domain.
    refused(
        &|f| {
            let kind = KeyKind::Window2;
            let command = CreateKey { pdn: PDN + 1, kind, ..CreateKey::default() };
            let rkey = f.bench.succeed(Opcode::CreateKey, &command.encode()).result;
            bind(rkey, f.region, 0, 8, REMOTE)
        },
        bad,
    );
    refused(&|f| local_invalidate(window(f)), bad);
    refused(&|f| local_invalidate(f.region.key), bad);
    refused(
        &|f| bind(window(f), f.region, 0, 8, REMOTE).flag(SendFlags::INLINE),
        Status::LocalQpOperation,
    );
}

#[test]
fn keys_change_behind_everything_before_and_ahead_of_everything_behind() {
    needs!(Capabilities::MEMORY_WINDOW);
    let mut fixture = Fixture::new();
    let qpn = fixture.qp.qpn;
    let rkey = fixture.window(KeyKind::Window2);
    let send = Wqe::gather(SendOpcode::Send, &[fixture.region.sge(0, 8)]);
    fixture.qp.post(&send);
    let binding = bind(rkey, fixture.region, 0, 64, REMOTE);
    assert_eq!(fixture.post(&binding), []);
    assert_eq!(fixture.post(&send), []);
    assert_eq!(fixture.bench.transport.under_way(qpn), 1, "what is behind waits with it");
    assert!(!fixture.opens(rkey, 0, 1, Write));
    fixture.bench.complete(qpn, 1);
    let done: Vec<_> = fixture.cq.poll().iter().map(|entry| entry.opcode).collect();
    assert_eq!(done, [cqe::Opcode::Send, cqe::Opcode::BindWindow]);
    assert!(fixture.opens(rkey, 0, 1, Write));
    assert_eq!(fixture.bench.transport.under_way(qpn), 1);
    // One that is not signaled says nothing.
    fixture.bench.complete(qpn, 1);
    fixture.cq.poll();
    assert_eq!(fixture.post(&local_invalidate(rkey).unsignaled()), []);
    assert!(!fixture.opens(rkey, 0, 1, Write));
}

#[test]
fn a_send_takes_the_peers_key_back_once_it_is_complete() {
    needs!(Capabilities::MEMORY_WINDOW);
    let mut fixture = Fixture::new();
    let qpn = fixture.qp.qpn;
    let wqe = Wqe::gather(SendOpcode::SendInvalidate, &[fixture.region.sge(0, 8)]);
    fixture.post(&wqe.immediate(0x1234_5678));
    let message = fixture.bench.transport.sent.last().unwrap();
    assert_eq!(message.operation, WqeOperation::SendInvalidate { rkey: 0x1234_5678 });
    // And the other way round.
    let rkey = fixture.window(KeyKind::Window2);
    fixture.bench.complete(qpn, 1);
    fixture.cq.poll();
    fixture.bind(rkey, 0, 64, REMOTE);
    fixture.qp.rq.post(9, &[fixture.region.sge(0, 64)]);
    fixture.bench.settle();
    fixture.bench.device.take_receive(qpn).unwrap();
    assert!(fixture.opens(rkey, 0, 1, Write));
    let received = ReceivedMessage {
        qpn,
        length: 8,
        kind: ReceiveKind::SendInvalidate { rkey },
        immediate: None,
        solicited: false,
        source_qpn: None,
    };
    fixture.bench.handle(TransportEvent::Received(received));
    let entry = fixture.cq.poll_one();
    assert_eq!((entry.opcode, entry.immediate), (cqe::Opcode::Receive, rkey));
    assert_eq!(entry.flags, Flags::RECEIVE | Flags::INVALIDATED);
    assert!(!fixture.opens(rkey, 0, 1, Write) && !fixture.opens(rkey, 0, 0, Invalidate));
}

#[test]
fn a_region_stays_as_it_is_while_windows_are_bound_to_it() {
    needs!(Capabilities::MEMORY_WINDOW);
    let mut fixture = Fixture::new();
    let windows = [0, 1, 2].map(|_| fixture.window(KeyKind::Window2));
    for rkey in windows {
        fixture.bind(rkey, 0, 64, REMOTE);
    }
    let Region { va, iova, key } = fixture.region;
    let modify = ModifyKey { va, length: 4096, iova, pdn: PDN, access: ALL, key };
    let busy = |fixture: &mut Fixture| {
        let destroyed = fixture.bench.destroy(Opcode::DestroyKey, key);
        let modified = fixture.bench.status(Opcode::ModifyKey, &modify.encode());
        assert_eq!((destroyed, modified), (AdminStatus::Busy, AdminStatus::Busy));
    };
    busy(&mut fixture);
    fixture.post(&local_invalidate(windows[0]));
    busy(&mut fixture);
    // A window ends with any key that it has by now, bound or not.
    for rkey in [windows[0], windows[1], next(windows[2])] {
        assert_eq!(fixture.bench.destroy(Opcode::DestroyKey, rkey), AdminStatus::Success);
        assert_eq!(fixture.bench.destroy(Opcode::DestroyKey, rkey), AdminStatus::NotFound);
        assert!(!fixture.opens(rkey, 0, 1, Write));
    }
    assert_eq!(fixture.bench.status(Opcode::ModifyKey, &modify.encode()), AdminStatus::Success);
    assert_eq!(fixture.bench.destroy(Opcode::DestroyKey, key), AdminStatus::Success);
}

#[test]
fn without_the_capability_and_without_a_connection_there_are_none() {
    needs!(Need::OtherLimits, Capabilities::MEMORY_WINDOW);
    let capabilities = standard().capabilities - Capabilities::MEMORY_WINDOW;
    let mut bench = Bench::with(EngineConfig { capabilities, ..standard() }, Manual::default());
    for kind in [KeyKind::Window1, KeyKind::Window2] {
        let command = CreateKey { pdn: PDN, kind, ..CreateKey::default() };
        let status = bench.status(Opcode::CreateKey, &command.encode());
        assert_eq!(status, AdminStatus::Unsupported);
    }
    let mut bench = Bench::new();
    let cq = bench.create_cq(4);
    let rq = bench.create_rq(4, 0);
    let mut qp = bench.create_qp_of(QpType::Ud, 6, (&cq, &cq), rq);
    bench.climb_datagrams(qp.qpn);
    qp.post(&local_invalidate(5));
    bench.settle();
    assert_eq!(bench.query(qp.qpn).state, QpState::Sqe);
}

/// Against a model that knows only the rules: after bindings and invalidations in any order, each key grants
/// the right accesses.
#[test]
fn random_bindings_open_what_they_should() {
    needs!(Capabilities::MEMORY_WINDOW);
    for_seeds(50, |seed| {
        let mut random = crate::engine::support::random::Seeded::new(seed);
        let mut fixture = Fixture::new();
        let kinds = [KeyKind::Window1, KeyKind::Window2, KeyKind::Window1, KeyKind::Window2];
        let mut windows = kinds.map(|kind| (kind, fixture.window(kind), None::<(u64, u64)>));
        for _ in 0..200 {
            let index = random.below(4) as usize;
            let (kind, rkey, bound) = windows[index];
            let (offset, length) = (random.below(4000), 1 + random.below(96));
            if kind == KeyKind::Window2 && bound.is_some() {
                fixture.post(&local_invalidate(rkey));
                windows[index].2 = None;
            } else {
                fixture.bind(next(rkey), offset, length, REMOTE);
                windows[index] = (kind, next(rkey), Some((offset, length)));
            }
            for (_, rkey, bound) in windows {
                let at = random.below(4096);
                let open =
                    bound.is_some_and(|(offset, length)| (offset..offset + length).contains(&at));
                assert_eq!(fixture.opens(rkey, at, 1, Write), open);
                assert!(!fixture.opens(next(rkey), at, 1, Write));
            }
            let is_busy = windows.iter().any(|(.., bound)| bound.is_some());
            if is_busy {
                let status = fixture.bench.destroy(Opcode::DestroyKey, fixture.region.key);
                assert_eq!(status, AdminStatus::Busy);
            }
        }
        assert_eq!(fixture.state(), QpState::Rts);
    });
}
