//! Errors: the first with its cause, everything after it flushed, in order.

use fpga_regs::engine::admin::{AdminStatus, Opcode as Admin};
use fpga_regs::engine::cqe::{Cqe, Flags, Opcode, Status};
use fpga_regs::engine::event::{EventType, QpEvent};
use fpga_regs::engine::key::Access;
use fpga_regs::engine::qp::QpState;
use fpga_regs::engine::window::Capabilities;
use fpga_regs::engine::wqe::{SendFlags, SendHeader, SendOpcode, Sge};
use queue_engine::{ReceiveKind, ReceivedMessage, TransportError, TransportEvent};

use crate::Dut;
use crate::engine::support::bench::{Bench, PDN, Region};
use crate::engine::support::client::{ClientCq, ClientQp};
use crate::engine::support::device::{Device as _, Need, needs};
use crate::engine::support::manual::Manual;
use crate::engine::support::wqe::Wqe;

struct Fixture {
    bench: Bench<Manual>,
    cq: ClientCq,
    qp: ClientQp,
    region: Region,
}

impl Fixture {
    fn new() -> Self {
        let mut bench = Bench::new();
        let cq = bench.create_cq(8);
        let qp = bench.ready_qp(&cq);
        let region = bench.register(4096);
        Self { bench, cq, qp, region }
    }

    fn good(&self) -> Wqe {
        Wqe::gather(SendOpcode::Send, &[self.region.sge(0, 8)])
    }

    /// Indices and statuses of the completions that are there.
    fn outcome(&mut self) -> Vec<(u32, Status)> {
        self.cq.poll().iter().map(|entry| (entry.wqe_index, entry.status)).collect()
    }

    /// The QP is in ERR, for the driver and for the transport.
    fn expect_error_state(&mut self) {
        assert_eq!(self.bench.query(self.qp.qpn).state, QpState::Err);
        assert_eq!(self.bench.transport.state(self.qp.qpn), QpState::Err);
    }
}

use Status as S;

type MakeWqe = fn(&Fixture) -> Wqe;

/// Posts one entry that must fail by itself, and answers with its completion.
fn fails_as(name: &str, wqe: impl Fn(&Fixture) -> Wqe, status: Status) {
    let mut fixture = Fixture::new();
    let wqe = wqe(&fixture).unsignaled();
    let index = fixture.qp.post(&wqe);
    let later = fixture.qp.post(&fixture.good());
    fixture.bench.settle();
    assert_eq!(fixture.outcome(), [(index, status), (later, S::Flushed)], "{name}");
    assert!(fixture.bench.transport.sent.is_empty(), "{name}");
    fixture.expect_error_state();
}

#[test]
fn local_memory_is_checked_before_anything_is_sent() {
    let cases: &[(&str, MakeWqe)] = &[
        ("a key that does not exist", |f| {
            let sge = Sge { lkey: f.region.key ^ 0xff00, ..f.region.sge(0, 8) };
            Wqe::gather(SendOpcode::Send, &[sge])
        }),
        ("another variant of the key", |f| {
            let sge = Sge { lkey: f.region.key ^ 1, ..f.region.sge(0, 8) };
            Wqe::gather(SendOpcode::Send, &[sge])
        }),
        ("before the region", |f| {
            let sge = Sge { address: f.region.va - 1, ..f.region.sge(0, 8) };
            Wqe::gather(SendOpcode::Write, &[sge])
        }),
        ("behind the region", |f| Wqe::gather(SendOpcode::Send, &[f.region.sge(4089, 8)])),
        ("round the end of the address space", |f| {
            let sge = Sge { address: u64::MAX - 3, ..f.region.sge(0, 8) };
            Wqe::gather(SendOpcode::Send, &[sge])
        }),
        ("the last of sixteen elements", |f| {
            let mut sges = [f.region.sge(0, 1); 16];
            sges[15].lkey = 0;
            Wqe::gather(SendOpcode::Read, &sges)
        }),
    ];
    for (name, wqe) in cases {
        fails_as(name, wqe, S::LocalProtection);
    }
}

#[test]
fn rights_and_domains_of_local_keys_are_checked() {
    for (access, pdn, opcode, status) in [
        (Access::empty(), PDN, SendOpcode::Send, S::Success),
        (Access::empty(), PDN, SendOpcode::Write, S::Success),
        (Access::REMOTE_READ, PDN, SendOpcode::Read, S::LocalProtection),
        (Access::LOCAL_WRITE, PDN, SendOpcode::Read, S::Success),
        (Access::LOCAL_WRITE, PDN + 1, SendOpcode::Send, S::LocalProtection),
        (Access::REMOTE_READ, PDN, SendOpcode::FetchAdd, S::LocalProtection),
        (Access::LOCAL_WRITE, PDN, SendOpcode::FetchAdd, S::Success),
        (Access::LOCAL_WRITE, PDN, SendOpcode::CompareSwap, S::Success),
        (Access::LOCAL_WRITE, PDN + 1, SendOpcode::CompareSwap, S::LocalProtection),
    ] {
        let mut fixture = Fixture::new();
        let region = fixture.bench.register_with(64, access, pdn);
        let sges = [region.sge(0, 64)];
        let is_atomic = matches!(opcode, SendOpcode::CompareSwap | SendOpcode::FetchAdd);
        if is_atomic && !Dut::serves(Capabilities::ATOMIC.into()) {
            continue;
        }
        fixture.qp.post(&match is_atomic {
            true => Wqe::atomic(opcode, [0; 2], &sges),
            false => Wqe::gather(opcode, &sges),
        });
        fixture.bench.settle();
        if status == S::Success {
            fixture.bench.complete(fixture.qp.qpn, 1);
        }
        assert_eq!(fixture.cq.poll_one().status, status, "{access:?} {opcode:?}");
    }
}

#[test]
fn operations_that_are_not_offered_fail() {
    for opcode in [SendOpcode(0), SendOpcode(11), SendOpcode(255)] {
        fails_as("opcode", |_| Wqe::gather(opcode, &[]), S::LocalQpOperation);
    }
    fails_as("inline READ", |_| Wqe::inline(SendOpcode::Read, &[1, 2]), S::LocalQpOperation);
}

#[test]
fn an_atomic_has_one_element_that_holds_its_result() {
    needs!(Capabilities::ATOMIC);
    for opcode in [SendOpcode::CompareSwap, SendOpcode::FetchAdd] {
        let of = |sges: &[Sge]| Wqe::atomic(opcode, [1, 2], sges);
        fails_as("no element", |_| of(&[]), S::LocalQpOperation);
        fails_as("two", |f| of(&[f.region.sge(0, 8), f.region.sge(8, 8)]), S::LocalQpOperation);
        fails_as("inline", |_| Wqe::inline(opcode, &[1; 16]), S::LocalQpOperation);
        fails_as("a short one", |f| of(&[f.region.sge(0, 7)]), S::LocalLength);
        fails_as("out of reach", |f| of(&[f.region.sge(4089, 8)]), S::LocalProtection);
    }
}

#[test]
fn a_message_beyond_32_bits_of_length_fails() {
    let long = |f: &Fixture| Wqe::gather(SendOpcode::Write, &[f.region.sge(0, u32::MAX); 2]);
    fails_as("two of 4 GiB", long, S::LocalLength);
}

#[test]
fn a_transport_that_cannot_do_an_operation_fails_it() {
    needs!(Need::Words);
    let mut fixture = Fixture::new();
    fixture.bench.transport.refusal = Some(TransportError::Unsupported);
    let index = fixture.qp.post(&fixture.good());
    fixture.bench.settle();
    assert_eq!(fixture.outcome(), [(index, S::LocalQpOperation)]);
    fixture.expect_error_state();
}

#[test]
fn what_is_posted_while_the_transport_has_failed_is_flushed() {
    let mut fixture = Fixture::new();
    let first = fixture.qp.post(&fixture.good());
    fixture.bench.settle();
    // The failure has happened; the engine has not heard of it.
    let event = fixture.bench.transport.failed(fixture.qp.qpn, S::RetryExceeded);
    let second = fixture.qp.post(&fixture.good());
    fixture.bench.settle();
    assert_eq!(fixture.outcome(), []);
    fixture.bench.handle(event);
    assert_eq!(fixture.outcome(), [(first, S::RetryExceeded), (second, S::Flushed)]);

    let mut fixture = Fixture::new();
    fixture.bench.transport.enter_error(fixture.qp.qpn);
    let first = fixture.qp.post(&fixture.good());
    let second = fixture.qp.post(&fixture.good());
    fixture.bench.settle();
    fixture.bench.handle(TransportEvent::Error { qpn: fixture.qp.qpn });
    assert_eq!(fixture.outcome(), [(first, S::Flushed), (second, S::Flushed)]);
    fixture.expect_error_state();
}

/// Entries whose form cannot be, by the header they carry.
const NONSENSE: &[(&str, SendHeader)] = {
    const SEND: SendHeader = SendHeader {
        opcode: SendOpcode::Send,
        flags: SendFlags::SIGNALED,
        num_sge: 0,
        blocks: 1,
        inline_length: 0,
        immediate: 0,
        remote_srqn: 0,
        remote_address: 0,
        rkey: 0,
    };
    const INLINE: SendFlags = SendFlags::SIGNALED.union(SendFlags::INLINE);
    &[
        ("no blocks", SendHeader { blocks: 0, ..SEND }),
        ("six blocks", SendHeader { blocks: 6, ..SEND }),
        ("more blocks than posted", SendHeader { blocks: 5, ..SEND }),
        ("more elements than blocks hold", SendHeader { num_sge: 3, ..SEND }),
        ("17 elements", SendHeader { num_sge: 17, ..SEND }),
        ("255 elements", SendHeader { num_sge: 255, ..SEND }),
        ("more inline data than blocks hold", {
            SendHeader { flags: INLINE, inline_length: 33, ..SEND }
        }),
        ("endless inline data", SendHeader { flags: INLINE, inline_length: u32::MAX, ..SEND }),
        ("inline data and elements", SendHeader { flags: INLINE, num_sge: 1, ..SEND }),
    ]
};

#[test]
fn entries_whose_form_cannot_be_fail_alone() {
    for (name, header) in NONSENSE {
        let mut fixture = Fixture::new();
        let index = fixture.qp.post_blocks(&header.encode());
        fixture.qp.ring();
        fixture.bench.settle();
        assert_eq!(fixture.outcome(), [(index, S::LocalQpOperation)], "{name}");
        assert!(fixture.bench.transport.sent.is_empty(), "{name}");
        fixture.expect_error_state();
        // The ring is in step again: later posts are flushed entry by entry.
        let later = [fixture.qp.post(&fixture.good()), fixture.qp.post(&fixture.good())];
        fixture.bench.settle();
        assert_eq!(fixture.outcome(), later.map(|index| (index, S::Flushed)), "{name}");
    }
}

#[test]
fn entries_behind_one_that_fails_are_flushed_one_by_one_if_its_form_is_sound() {
    let mut fixture = Fixture::new();
    let bad = fixture.qp.post_silently(&Wqe::gather(SendOpcode::FetchAdd, &[]));
    let wqe = Wqe::gather(SendOpcode::Write, &[fixture.region.sge(0, 1); 16]);
    let later: Vec<_> = (0..4).map(|_| fixture.qp.post_silently(&wqe)).collect();
    fixture.qp.ring();
    fixture.bench.settle();
    let entries = fixture.cq.poll();
    let outcome: Vec<_> = entries.iter().map(|e| (e.wqe_index, e.status)).collect();
    let flushed = later.iter().map(|index| (*index, S::Flushed));
    let expected: Vec<_> = std::iter::once((bad, S::LocalQpOperation)).chain(flushed).collect();
    assert_eq!(outcome, expected);
    assert_eq!((entries[0].opcode, entries[1].opcode), (Opcode::FetchAdd, Opcode::Write));
}

#[test]
fn a_bad_entry_waits_for_the_good_ones_before_it() {
    let mut fixture = Fixture::new();
    let good = [fixture.qp.post(&fixture.good()), fixture.qp.post(&fixture.good())];
    let bad =
        fixture.qp.post(&Wqe::gather(SendOpcode::Send, &[Sge { length: 1, ..Sge::default() }]));
    let later = fixture.qp.post(&fixture.good().unsignaled());
    fixture.bench.settle();
    assert_eq!(fixture.bench.transport.sent.len(), 2, "nothing behind the bad one is sent");
    assert_eq!(fixture.outcome(), []);
    assert_eq!(fixture.bench.query(fixture.qp.qpn).state, QpState::Rts);
    fixture.bench.complete(fixture.qp.qpn, 1);
    assert_eq!(fixture.outcome(), [(good[0], S::Success)]);
    fixture.bench.complete(fixture.qp.qpn, 1);
    let expected = [(good[1], S::Success), (bad, S::LocalProtection), (later, S::Flushed)];
    assert_eq!(fixture.outcome(), expected);
    fixture.expect_error_state();
}

#[test]
fn a_bad_entry_behind_a_message_that_fails_below_is_flushed() {
    let mut fixture = Fixture::new();
    let first = fixture.qp.post(&fixture.good());
    let second = fixture.qp.post(&fixture.good());
    let bad = fixture.qp.post(&Wqe::gather(SendOpcode::FetchAdd, &[]));
    fixture.bench.settle();
    fixture.bench.complete(fixture.qp.qpn, 1);
    let event = fixture.bench.transport.failed(fixture.qp.qpn, S::RemoteAccess);
    fixture.bench.handle(event);
    let expected = [(first, S::Success), (second, S::RemoteAccess), (bad, S::Flushed)];
    assert_eq!(fixture.outcome(), expected);
    // Neither of the two causes is told twice.
    fixture.bench.handle(TransportEvent::Failed { qpn: fixture.qp.qpn, status: S::General });
    fixture.bench.handle(TransportEvent::Error { qpn: fixture.qp.qpn });
    assert_eq!(fixture.outcome(), []);
}

#[test]
fn a_bad_entry_in_a_draining_qp_fails_when_its_turn_comes() {
    let mut fixture = Fixture::new();
    let good = fixture.qp.post(&fixture.good());
    let bad = fixture.qp.post(&Wqe::gather(SendOpcode::FetchAdd, &[]));
    fixture.bench.settle();
    fixture.bench.go(fixture.qp.qpn, QpState::Sqd);
    fixture.bench.complete(fixture.qp.qpn, 1);
    assert_eq!(fixture.outcome(), [(good, S::Success), (bad, S::LocalQpOperation)]);
    fixture.expect_error_state();
}

#[test]
fn what_fails_here_is_told_when_no_memory_is_reached_any_more() {
    needs!(Need::Words);
    for fails_receive in [false, true] {
        let mut fixture = Fixture::new();
        let qpn = fixture.qp.qpn;
        fixture.bench.transport.lingers = true;
        fixture.qp.rq.post(100, &[]);
        let bad_sge = Sge { length: 1, ..Sge::default() };
        let mut sends = Vec::new();
        if fails_receive {
            fixture.bench.device.take_receive(qpn).unwrap();
            fixture.qp.rq.post_as(101, &[], 200);
            assert!(fixture.bench.device.take_receive(qpn).is_err());
            sends.push(fixture.qp.post(&fixture.good()));
            fixture.bench.settle();
            let received = ReceivedMessage {
                qpn,
                length: 0,
                kind: ReceiveKind::Send,
                immediate: None,
                solicited: false,
                source_qpn: None,
            };
            fixture.bench.handle(TransportEvent::Received(received));
            let statuses: Vec<_> = fixture.outcome().into_iter().map(|(_, it)| it).collect();
            assert_eq!(statuses, [S::Success, S::LocalProtection]);
        } else {
            fixture.bench.device.take_receive(qpn).unwrap();
            sends.push(fixture.qp.post(&Wqe::gather(SendOpcode::Send, &[bad_sge])));
        }
        sends.push(fixture.qp.post(&fixture.good()));
        fixture.bench.settle();
        // Nothing is, even if requests are posted meanwhile.
        assert_eq!((fixture.outcome(), fixture.bench.transport.state(qpn)), (vec![], QpState::Err));
        fixture.bench.handle(TransportEvent::Error { qpn });
        let mut expected = Vec::new();
        let causes = [if fails_receive { S::Flushed } else { S::LocalProtection }, S::Flushed];
        expected.extend(sends.into_iter().zip(causes));
        expected.extend((!fails_receive).then_some((100, S::Flushed)));
        assert_eq!(fixture.outcome(), expected);
        fixture.expect_error_state();
    }
    // A program that does not wait for it.
    for state in [QpState::Err, QpState::Reset] {
        let mut fixture = Fixture::new();
        fixture.bench.transport.lingers = true;
        let bad = fixture.qp.post(&Wqe::gather(SendOpcode::FetchAdd, &[]));
        fixture.bench.settle();
        fixture.bench.go(fixture.qp.qpn, state);
        fixture.bench.settle();
        let told = (state == QpState::Err).then_some((bad, S::LocalQpOperation));
        assert_eq!(fixture.outcome(), Vec::from_iter(told));
    }
}

#[test]
fn every_status_of_the_transport_reaches_the_program() {
    for status in [
        S::BadResponse,
        S::RemoteInvalidRequest,
        S::RemoteAccess,
        S::RemoteOperation,
        S::RetryExceeded,
        S::RnrRetryExceeded,
        S::LocalProtection,
        S::General,
    ] {
        let mut fixture = Fixture::new();
        let index = fixture.qp.post(&fixture.good().unsignaled());
        fixture.bench.settle();
        let event = fixture.bench.transport.failed(fixture.qp.qpn, status);
        fixture.bench.handle(event);
        assert_eq!(fixture.outcome(), [(index, status)]);
    }
}

#[test]
fn an_error_flushes_sends_and_receives_and_what_is_posted_later() {
    let mut fixture = Fixture::new();
    let wqe = fixture.good();
    for tag in 0..4 {
        fixture.qp.rq.post(100 + tag, &[]);
    }
    fixture.bench.device.take_receive(fixture.qp.qpn).unwrap();
    let mut sends: Vec<_> = (0..3).map(|_| fixture.qp.post(&wqe.clone().unsignaled())).collect();
    fixture.bench.settle();
    let event = fixture.bench.transport.failed(fixture.qp.qpn, S::RetryExceeded);
    sends.push(fixture.qp.post_silently(&wqe));
    fixture.bench.handle(event);
    let (receives, sent): (Vec<Cqe>, Vec<Cqe>) =
        fixture.cq.poll().iter().partition(|entry| entry.flags.contains(Flags::RECEIVE));
    let statuses: Vec<_> = sent.iter().map(|e| (e.wqe_index, e.status)).collect();
    let causes = [S::RetryExceeded, S::Flushed, S::Flushed, S::Flushed];
    assert_eq!(statuses, Vec::from_iter(sends.into_iter().zip(causes)));
    let tags: Vec<_> = receives.iter().map(|e| (e.wqe_index, e.status)).collect();
    assert_eq!(tags, Vec::from_iter((100..104).map(|tag| (tag, S::Flushed))));
    assert!(receives.iter().all(|entry| entry.opcode == Opcode::Receive));

    let later = fixture.qp.post(&wqe.unsignaled());
    fixture.bench.settle();
    assert_eq!(fixture.outcome(), [(later, S::Flushed)]);
    fixture.qp.rq.post(200, &[]);
    fixture.bench.settle();
    assert_eq!(fixture.outcome(), [(200, S::Flushed)]);
    assert!(fixture.bench.device.take_receive(fixture.qp.qpn).is_err());
    assert_eq!(fixture.bench.transport.sent.len(), 3);
}

#[test]
fn the_driver_can_put_a_qp_in_err_from_any_state_and_it_flushes() {
    for state in [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd] {
        let mut bench = Bench::new();
        let mut cq = bench.create_cq(6);
        let rq = bench.create_rq(3, 0);
        let mut qp = bench.create_qp(4, &cq, &cq, rq);
        match state {
            QpState::Reset => {}
            QpState::Sqd => {
                bench.climb(qp.qpn, QpState::Rts);
                bench.go(qp.qpn, QpState::Sqd);
            }
            _ => bench.climb(qp.qpn, state),
        }
        qp.post(&Wqe::gather(SendOpcode::Send, &[]));
        qp.rq.post(5, &[]);
        bench.settle();
        bench.go(qp.qpn, QpState::Err);
        bench.settle();
        let statuses: Vec<_> = cq.poll().iter().map(|e| (e.flags, e.status)).collect();
        let expected = [(Flags::empty(), S::Flushed), (Flags::RECEIVE, S::Flushed)];
        assert_eq!(statuses, expected, "{state:?}");
    }
}

#[test]
fn a_long_ring_is_flushed_in_turns_and_in_whole() {
    needs!(Need::Turns);
    flush_rings(1024, 1024);
    flush_rings(1024, 1);
    flush_rings(1, 1024);
}

fn flush_rings(sends: u32, receives: u32) {
    let mut bench = Bench::new();
    let mut cq = bench.create_cq(12);
    let rq = bench.create_rq(10, 0);
    let mut qp = bench.create_qp(10, &cq, &cq, rq);
    bench.climb(qp.qpn, QpState::Rts);
    for _ in 0..sends {
        qp.post_silently(&Wqe::gather(SendOpcode::Send, &[]).unsignaled());
    }
    for tag in 0..receives {
        qp.rq.post(tag, &[]);
    }
    bench.go(qp.qpn, QpState::Err);
    assert!(bench.poll());
    let first = cq.poll();
    assert!((2..1024).contains(&first.len()), "{} in one turn", first.len());
    bench.settle();
    let all = [first, cq.poll()].concat();
    let indices = |receive: bool| -> Vec<u32> {
        let of_kind = |e: &&Cqe| e.flags.contains(Flags::RECEIVE) == receive;
        all.iter().filter(of_kind).map(|e| e.wqe_index).collect()
    };
    assert_eq!(indices(false), Vec::from_iter(0..sends));
    assert_eq!(indices(true), Vec::from_iter(0..receives));
    assert!(all.iter().all(|entry| entry.status == S::Flushed));
}

#[test]
fn a_destroyed_qp_completes_nothing_more() {
    let mut fixture = Fixture::new();
    fixture.qp.post(&fixture.good());
    fixture.qp.rq.post(1, &[]);
    fixture.bench.settle();
    let qpn = fixture.qp.qpn;
    let late = [
        fixture.bench.transport.completed(qpn, 1),
        TransportEvent::Failed { qpn, status: S::General },
        crate::engine::receiving::received(qpn, 0),
        TransportEvent::ReceiveFailed { qpn, status: S::General },
        TransportEvent::Error { qpn },
        TransportEvent::Async { qpn, event: QpEvent::Fatal },
    ];
    assert_eq!(fixture.bench.destroy(Admin::DestroyQp, qpn), AdminStatus::Success);
    fixture.bench.events();
    fixture.bench.memory.take_published();
    for event in late {
        fixture.bench.handle(event);
    }
    fixture.qp.ring();
    fixture.bench.settle();
    assert!(fixture.bench.memory.take_published().is_empty());
}

#[test]
fn what_happens_to_a_qp_is_an_event() {
    let mut fixture = Fixture::new();
    let qpn = fixture.qp.qpn;
    for event in [
        QpEvent::Fatal,
        QpEvent::RequestError,
        QpEvent::AccessError,
        QpEvent::CommunicationEstablished,
    ] {
        let before = fixture.bench.now();
        fixture.bench.handle(TransportEvent::Async { qpn, event });
        assert!(fixture.bench.device.take_interrupt());
        let after = fixture.bench.now();
        let events = fixture.bench.events();
        assert_eq!(events.len(), 1);
        let found = (events[0].kind, events[0].number, QpEvent(events[0].code));
        assert_eq!(found, (EventType::Qp, qpn, event));
        assert!((before..=after).contains(&events[0].timestamp));
    }
}
