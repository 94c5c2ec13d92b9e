//! Completion queues: full rings, arming, and the event ring behind them.

use fpga_regs::engine::admin::{AdminStatus, ModerateCq, Opcode, ResizeCq};
use fpga_regs::engine::cqe::Status;
use fpga_regs::engine::doorbell::{Arm, ArmKind, record, slot_value};
use fpga_regs::engine::event::{Event, EventType, QpEvent};
use fpga_regs::engine::qp::QpState;
use fpga_regs::engine::window::{self as w, Capabilities};
use fpga_regs::engine::wqe::SendOpcode;
use queue_engine::{ReceiveKind, ReceivedMessage, TransportEvent};

use crate::engine::support::bench::{Bench, LOG2_EVENTS};
use crate::engine::support::client::{ClientCq, ClientQp};
use crate::engine::support::device::{Device as _, needs};
use crate::engine::support::manual::Manual;
use crate::engine::support::wqe::Wqe;

struct Fixture {
    bench: Bench<Manual>,
    cq: ClientCq,
    qp: ClientQp,
    rings: u8,
}

impl Fixture {
    fn with_entries(log2_entries: u8) -> Self {
        let mut bench = Bench::new();
        let cq = bench.create_cq(log2_entries);
        let qp = bench.ready_qp(&cq);
        bench.device.take_interrupt();
        Self { bench, cq, qp, rings: 0 }
    }

    fn new() -> Self {
        Self::with_entries(6)
    }

    fn post_send(&mut self) {
        self.qp.post(&Wqe::gather(SendOpcode::Send, &[]));
        self.bench.settle();
    }

    /// One send completes well.
    fn complete_send(&mut self) {
        self.post_send();
        self.bench.complete(self.qp.qpn, 1);
    }

    /// One receive completes well.
    fn complete_receive(&mut self, solicited: bool) {
        self.qp.rq.post(0, &[]);
        let (qpn, kind) = (self.qp.qpn, ReceiveKind::Send);
        let received =
            ReceivedMessage { qpn, length: 0, kind, immediate: None, solicited, source_qpn: None };
        self.bench.receive(TransportEvent::Received(received));
    }

    /// The completion events that are there, by their arm sequence.
    fn fired(&mut self) -> Vec<u64> {
        let of_this = |event: &Event| {
            assert_eq!((event.kind, event.number), (EventType::Completion, self.cq.cqn));
            event.data
        };
        self.bench.events().iter().map(of_this).collect()
    }

    /// Has the engine move the queue to new memory; answers with the old queue, and with where it ended.
    fn resize(&mut self, log2_entries: u8) -> Result<(ClientCq, u32), AdminStatus> {
        let ring = self.bench.memory.allocate(64 + (64 << log2_entries));
        let command = ResizeCq { ring, log2_entries, cqn: self.cq.cqn };
        let completion = self.bench.run(Opcode::ResizeCq, &command.encode());
        if completion.status != AdminStatus::Success {
            return Err(completion.status);
        }
        let (memory, page) = (self.cq.memory.clone(), self.cq.page.clone());
        let ClientCq { cqn, sequence, .. } = self.cq;
        let new = ClientCq { memory, page, cqn, ring, log2_entries, consumer: 0, sequence };
        Ok((std::mem::replace(&mut self.cq, new), completion.result))
    }

    /// Stores an arm word in the record as it now is, and rings.
    fn tell_again(&mut self, kind: ArmKind, sequence: u32, consumer: u32) {
        let arm = Arm { consumer, sequence, kind };
        self.bench.memory.store(self.cq.ring + record::ARM as u64, arm.encode());
        self.rings += 1;
        self.cq.page.store(self.cq.slot(), slot_value(self.cq.cqn, self.rings, sequence));
        self.bench.settle();
    }

    fn moderate(&mut self, count: u16, period: u16) {
        let command = ModerateCq { cqn: self.cq.cqn, count, period };
        self.bench.succeed(Opcode::ModerateCq, &command.encode());
    }

    /// Lets so many nanoseconds pass.
    fn pass(&mut self, time: u64) {
        self.bench.pass(time);
    }

    fn arm(&mut self, kind: ArmKind) -> u64 {
        let sequence = self.cq.arm(kind);
        self.bench.settle();
        sequence.into()
    }
}

#[test]
fn entries_alternate_their_phase_over_many_laps() {
    for log2_entries in [0, 1, 3] {
        let mut fixture = Fixture::with_entries(log2_entries);
        for _ in 0..50 {
            let index = fixture.qp.producer;
            fixture.complete_send();
            assert_eq!(fixture.cq.poll_one().wqe_index, index);
        }
        assert!(fixture.bench.events().is_empty());
    }
}

#[test]
fn a_full_queue_raises_one_event_and_overwrites_nothing() {
    let mut fixture = Fixture::with_entries(2);
    for _ in 0..4 {
        fixture.complete_send();
    }
    assert!(fixture.bench.events().is_empty());
    fixture.complete_send();
    fixture.post_send();
    let told: Vec<_> = fixture.bench.events().iter().map(|it| (it.kind, it.number)).collect();
    let (of_queue, of_qp) = (fixture.cq.cqn, fixture.qp.qpn);
    assert_eq!(told, [(EventType::CqError, of_queue), (EventType::Qp, of_qp)]);
    let indices: Vec<_> = fixture.cq.poll().iter().map(|entry| entry.wqe_index).collect();
    assert_eq!(indices, [0, 1, 2, 3]);
    // The queue is lost: room does not bring it back.
    fixture.post_send();
    assert!(fixture.cq.poll().is_empty());
    assert!(fixture.bench.events().is_empty());
}

#[test]
fn a_queue_pair_fails_by_the_first_completion_that_it_loses_and_others_go_on() {
    for of_receive in [false, true] {
        let mut fixture = Fixture::with_entries(1);
        let (other_cq, other) = {
            let cq = fixture.bench.create_cq(4);
            let qp = fixture.bench.ready_qp(&cq);
            (cq, qp)
        };
        // One that completes in the same queue, and loses nothing as long as it has nothing.
        let idle = fixture.bench.ready_qp(&fixture.cq);
        fixture.bench.events();
        for _ in 0..3 {
            match of_receive {
                true => fixture.complete_receive(false),
                false => fixture.complete_send(),
            }
        }
        let qpns = [fixture.qp.qpn, idle.qpn, other.qpn];
        let states = qpns.map(|qpn| fixture.bench.query(qpn).state);
        assert_eq!(states, [QpState::Err, QpState::Rts, QpState::Rts]);
        let told = fixture.bench.events();
        let fatal = told.iter().filter(|it| it.code == QpEvent::Fatal.0).map(|it| it.number);
        assert_eq!(fatal.collect::<Vec<_>>(), [fixture.qp.qpn]);
        assert_eq!(fixture.cq.poll().len(), 2);
        drop(other_cq);
    }
}

#[test]
fn a_queue_is_full_by_the_consumer_index_and_by_nothing_else() {
    let mut fixture = Fixture::with_entries(2);
    for _ in 0..3 {
        for _ in 0..4 {
            fixture.complete_send();
        }
        assert_eq!(fixture.cq.poll().len(), 4);
    }
    // Polled, and not told: to the engine the ring is full.
    for _ in 0..4 {
        fixture.complete_send();
    }
    assert_eq!(fixture.cq.take().len(), 4);
    fixture.complete_send();
    assert_eq!(fixture.bench.events()[0].kind, EventType::CqError);
}

#[test]
fn one_arming_fires_once() {
    let mut fixture = Fixture::new();
    fixture.complete_send();
    assert_eq!(fixture.fired(), [0; 0], "not armed");
    fixture.cq.poll();
    for _ in 0..3 {
        let sequence = fixture.arm(ArmKind::Any);
        assert_eq!(fixture.fired(), [0; 0], "nothing has completed");
        assert!(!fixture.bench.device.take_interrupt());
        fixture.complete_send();
        assert!(fixture.bench.device.take_interrupt());
        fixture.complete_send();
        assert_eq!(fixture.fired(), [sequence]);
        assert_eq!(fixture.cq.poll().len(), 2);
    }
}

#[test]
fn an_entry_beyond_the_consumer_index_fires_at_once() {
    let mut fixture = Fixture::new();
    fixture.complete_send();
    let sequence = fixture.arm(ArmKind::Any);
    assert_eq!(fixture.fired(), [sequence]);
    // Polled completions do not count.
    fixture.cq.poll();
    let sequence = fixture.arm(ArmKind::Any);
    assert_eq!(fixture.fired(), [0; 0]);
    fixture.complete_send();
    assert_eq!(fixture.fired(), [sequence]);
}

#[test]
fn a_solicited_arming_waits_for_a_solicited_message() {
    let mut fixture = Fixture::new();
    let sequence = fixture.arm(ArmKind::Solicited);
    fixture.complete_send();
    fixture.complete_receive(false);
    assert_eq!(fixture.fired(), [0; 0]);
    fixture.complete_receive(true);
    assert_eq!(fixture.fired(), [sequence]);
    fixture.complete_receive(true);
    assert_eq!(fixture.fired(), [0; 0]);
}

#[test]
fn a_solicited_arming_fires_for_an_error() {
    let mut fixture = Fixture::new();
    let sequence = fixture.arm(ArmKind::Solicited);
    fixture.qp.post(&Wqe::gather(SendOpcode::FetchAdd, &[]));
    fixture.bench.settle();
    assert_eq!(fixture.cq.poll_one().status, Status::LocalQpOperation);
    assert_eq!(fixture.fired(), [sequence]);
}

#[test]
fn a_solicited_arming_fires_at_once_for_a_solicited_entry_beyond_the_consumer_index() {
    let mut fixture = Fixture::new();
    fixture.complete_receive(true);
    fixture.complete_send();
    let sequence = fixture.arm(ArmKind::Solicited);
    assert_eq!(fixture.fired(), [sequence]);
    fixture.cq.poll();
    fixture.complete_send();
    fixture.arm(ArmKind::Solicited);
    assert_eq!(fixture.fired(), [0; 0], "the entry beyond is not solicited");
}

#[test]
fn a_later_arming_replaces_an_earlier_one() {
    let mut fixture = Fixture::new();
    fixture.arm(ArmKind::Solicited);
    let sequence = fixture.arm(ArmKind::Any);
    fixture.complete_send();
    assert_eq!(fixture.fired(), [sequence]);
    // Two armings, of which the engine sees the last one only.
    fixture.cq.poll();
    fixture.cq.arm(ArmKind::Any);
    let sequence = fixture.arm(ArmKind::Any);
    fixture.complete_send();
    assert_eq!(fixture.fired(), [sequence]);
}

#[test]
fn an_arming_for_solicited_ones_undoes_none_for_any_that_has_not_fired() {
    // Of the first the engine sees the doorbell, or only that of the second.
    for seen in [true, false] {
        let mut fixture = Fixture::new();
        // It makes no difference where the sequence wraps.
        fixture.cq.sequence = 0x3fff_fffa;
        for _ in 0..5 {
            fixture.cq.arm(ArmKind::Any);
            if seen {
                fixture.bench.settle();
            }
            fixture.cq.arm(ArmKind::Solicited);
            let sequence = fixture.arm(ArmKind::Solicited);
            assert_eq!(fixture.fired(), [0; 0]);
            fixture.complete_send();
            assert_eq!(fixture.fired(), [sequence], "once, by the last; {seen}");
            // That arming has fired, and no longer counts, though the program has not polled.
            fixture.cq.poll();
            let sequence = fixture.arm(ArmKind::Solicited);
            fixture.complete_send();
            assert_eq!(fixture.fired(), [0; 0], "{seen}");
            fixture.complete_receive(true);
            assert_eq!(fixture.fired(), [sequence]);
            fixture.cq.poll();
        }
    }
}

#[test]
fn an_arming_for_any_is_kept_where_there_is_something_already_that_moves_or_is_moderated() {
    needs!(Capabilities::MODERATION | Capabilities::RESIZE_CQ);
    let mut fixture = Fixture::new();
    fixture.complete_send();
    fixture.cq.arm(ArmKind::Any);
    let sequence = fixture.arm(ArmKind::Solicited);
    assert_eq!(fixture.fired(), [sequence], "it is there");
    fixture.cq.poll();
    fixture.cq.arm(ArmKind::Any);
    let sequence = fixture.cq.arm(ArmKind::Solicited);
    fixture.resize(5).unwrap();
    fixture.complete_send();
    assert_eq!(fixture.fired(), [u64::from(sequence)], "behind a resize");
    fixture.cq.poll();
    fixture.moderate(2, 50);
    fixture.arm(ArmKind::Any);
    fixture.complete_send();
    let sequence = fixture.arm(ArmKind::Solicited);
    fixture.complete_send();
    assert_eq!(fixture.fired(), [sequence], "two of any kind");
}

#[test]
fn an_arming_is_seen_by_its_doorbell_and_a_doorbell_without_arming_does_nothing() {
    let mut fixture = Fixture::new();
    fixture.cq.arm_silently(ArmKind::Any);
    fixture.bench.settle();
    fixture.complete_send();
    assert_eq!(fixture.fired(), [0; 0]);
    fixture.cq.ring();
    fixture.bench.settle();
    assert_eq!(fixture.fired().len(), 1);
    let address = fixture.cq.ring + record::ARM as u64;
    for word in [0, 3 << 62 | 9 << 32] {
        fixture.bench.memory.store(address, word);
        fixture.cq.sequence += 1;
        fixture.cq.ring();
        fixture.bench.settle();
        assert_eq!(fixture.fired(), [0; 0], "{word:#x}");
    }
}

#[test]
fn a_doorbell_of_another_queue_behind_the_same_slot_fires_no_arming_twice() {
    let mut fixture = Fixture::new();
    let sequence = fixture.arm(ArmKind::Any);
    fixture.complete_send();
    assert_eq!(fixture.fired(), [sequence]);
    let mut other = fixture.bench.create_cq(0);
    while other.slot() != fixture.cq.slot() {
        assert_eq!(fixture.bench.destroy(Opcode::DestroyCq, other.cqn), AdminStatus::Success);
        other = fixture.bench.create_cq(0);
    }
    for _ in 0..3 {
        other.arm(ArmKind::Any);
        fixture.bench.settle();
        assert_eq!(fixture.fired(), [0; 0]);
        fixture.complete_send();
        assert_eq!(fixture.fired(), [0; 0]);
    }
}

#[test]
fn armings_go_on_across_the_wrap_of_their_sequence() {
    let mut fixture = Fixture::new();
    fixture.cq.sequence = 0x3fff_fffd;
    for _ in 0..5 {
        let sequence = fixture.arm(ArmKind::Any);
        fixture.complete_send();
        fixture.cq.poll();
        assert_eq!(fixture.fired(), [sequence]);
    }
    assert!(fixture.cq.sequence < 5);
}

#[test]
fn an_entry_is_written_before_the_event_that_speaks_of_it() {
    let mut fixture = Fixture::new();
    fixture.arm(ArmKind::Any);
    fixture.bench.memory.take_published();
    fixture.complete_send();
    let published = fixture.bench.memory.take_published();
    let entry = fixture.cq.ring + record::ENTRIES;
    assert_eq!(published, [entry, fixture.bench.event_ring]);
}

#[test]
fn a_full_event_ring_loses_events_and_says_so_until_it_is_told_otherwise() {
    let mut fixture = Fixture::new();
    let qpn = fixture.qp.qpn;
    let event = TransportEvent::Async { qpn, event: QpEvent::CommunicationEstablished };
    let entries = 1 << LOG2_EVENTS;
    let overflow = w::STATUS_ENABLED | w::STATUS_EVENT_OVERFLOW;
    for lap in 0..3 {
        for _ in 0..entries {
            fixture.bench.handle(event);
        }
        assert_eq!(fixture.bench.read(w::STATUS), w::STATUS_ENABLED, "lap {lap}");
        fixture.bench.device.take_interrupt();
        fixture.bench.handle(event);
        assert!(fixture.bench.device.take_interrupt(), "the driver must hear of it");
        assert_eq!(fixture.bench.read(w::STATUS), overflow);
        assert_eq!(fixture.bench.events().len(), entries);
        assert_eq!(fixture.bench.read(w::STATUS), overflow, "it is sticky");
        fixture.bench.write(w::EVENT_OVERFLOW_CLEAR, 0);
        assert_eq!(fixture.bench.read(w::STATUS), w::STATUS_ENABLED);
    }
    fixture.bench.handle(event);
    assert_eq!(fixture.bench.events().len(), 1);
}

#[test]
fn a_resized_queue_leaves_in_its_old_ring_what_was_there_and_goes_on_in_the_new() {
    needs!(Capabilities::RESIZE_CQ);
    for (before, after) in [(2, 4), (4, 2), (3, 0), (1, 1)] {
        let mut fixture = Fixture::with_entries(before);
        let mut next = fixture.qp.producer;
        for round in 0..40 {
            let count = round % (1 + (1 << before.min(after)));
            (0..count).for_each(|_| fixture.complete_send());
            let to = if round % 2 == 0 { after } else { before };
            let (mut old, end) = fixture.resize(to).unwrap();
            let left = old.take();
            assert_eq!((left.len(), old.consumer), (count, end), "{before} to {after}");
            // The old ring is no longer the engine's, so changes of its record have no effect.
            old.memory.store_u32(old.ring + record::CONSUMER as u64, 77);
            fixture.complete_send();
            assert!(old.take().is_empty());
            let entries = left.iter().copied().chain(fixture.cq.poll());
            for entry in entries {
                assert_eq!(entry.wqe_index, next);
                next = next.wrapping_add(1);
            }
            assert_eq!(next, fixture.qp.producer);
        }
        assert!(fixture.bench.events().is_empty());
    }
}

#[test]
fn a_resized_queue_is_full_by_its_new_size() {
    needs!(Capabilities::RESIZE_CQ);
    let mut fixture = Fixture::with_entries(3);
    (0..4).for_each(|_| fixture.complete_send());
    fixture.resize(2).unwrap();
    (0..4).for_each(|_| fixture.complete_send());
    assert!(fixture.bench.events().is_empty());
    fixture.complete_send();
    assert_eq!(fixture.bench.events()[0].kind, EventType::CqError);
    // It stays in error.
    fixture.resize(4).unwrap();
    fixture.post_send();
    assert!(fixture.cq.poll().is_empty() && fixture.bench.events().is_empty());
}

#[test]
fn a_queue_that_cannot_be_resized_stays_as_it_is() {
    needs!(Capabilities::RESIZE_CQ);
    let mut fixture = Fixture::with_entries(3);
    (0..5).for_each(|_| fixture.complete_send());
    assert_eq!(fixture.resize(2).unwrap_err(), AdminStatus::Invalid, "five are there");
    assert_eq!(fixture.resize(13).unwrap_err(), AdminStatus::Invalid, "beyond the limit");
    let (cqn, ring) = (fixture.cq.cqn, fixture.bench.memory.allocate(128));
    let sound = ResizeCq { ring, log2_entries: 0, cqn };
    for (command, status) in [
        (ResizeCq { cqn: cqn ^ 1, ..sound }, AdminStatus::NotFound),
        (ResizeCq { ring: ring + 8, ..sound }, AdminStatus::Invalid),
        (ResizeCq { ring: u64::MAX - 63, ..sound }, AdminStatus::BadAddress),
    ] {
        assert_eq!(fixture.bench.status(Opcode::ResizeCq, &command.encode()), status);
    }
    (0..3).for_each(|_| fixture.complete_send());
    assert_eq!(fixture.cq.poll().len(), 8);
    fixture.complete_send();
    assert_eq!(fixture.cq.poll().len(), 1);
}

#[test]
fn an_arming_of_before_a_resize_fires_behind_it_and_once() {
    needs!(Capabilities::RESIZE_CQ);
    for kind in [ArmKind::Any, ArmKind::Solicited] {
        let mut fixture = Fixture::new();
        // The doorbell was seen, or was not.
        for seen in [true, false] {
            let sequence = if seen { fixture.arm(kind) } else { u64::from(fixture.cq.arm(kind)) };
            fixture.resize(5).unwrap();
            // Told again, as one that may have come too late: it is known.
            fixture.tell_again(kind, sequence as u32, fixture.cq.consumer);
            fixture.complete_receive(true);
            fixture.tell_again(kind, sequence as u32, fixture.cq.consumer);
            assert_eq!(fixture.fired(), [sequence], "{kind:?}, {seen}");
            fixture.cq.poll();
        }
        // It came too late: its completion is there, in the old ring or in the new one.
        let sequence = Arm::next_sequence(fixture.cq.sequence);
        fixture.complete_receive(true);
        let (_, end) = fixture.resize(6).unwrap();
        fixture.tell_again(kind, sequence, (end - 1).wrapping_sub(end));
        assert_eq!(fixture.fired(), [u64::from(sequence)]);
        fixture.resize(5).unwrap();
        fixture.complete_receive(true);
        let sequence = Arm::next_sequence(sequence);
        fixture.tell_again(kind, sequence, 0);
        assert_eq!(fixture.fired(), [u64::from(sequence)]);
    }
}

#[test]
fn a_moderated_event_is_of_so_many_completions_or_comes_after_its_time() {
    needs!(Capabilities::MODERATION);
    let mut fixture = Fixture::new();
    fixture.moderate(3, 50);
    for _ in 0..3 {
        let sequence = fixture.arm(ArmKind::Any);
        for left in (0..3).rev() {
            assert_eq!(fixture.fired(), [0; 0], "{left} and one more to come");
            fixture.complete_send();
            fixture.pass(1000);
        }
        assert_eq!(fixture.fired(), [sequence], "three have come");
        assert_eq!(fixture.bench.device.next_wake(), None);
        fixture.pass(100_000);
        assert_eq!(fixture.fired(), [0; 0], "and nothing is left to tell");
        fixture.cq.poll();
        let sequence = fixture.arm(ArmKind::Any);
        fixture.pass(1_000_000);
        let begun = fixture.bench.now();
        fixture.complete_send();
        let due = fixture.bench.device.next_wake().unwrap();
        let between = begun + 50_000..=fixture.bench.now() + 50_000;
        assert!(between.contains(&due), "{due} from {begun} on");
        fixture.pass(20_000);
        fixture.complete_send();
        assert_eq!(fixture.bench.device.next_wake(), Some(due), "from the first on");
        fixture.pass(20_000);
        assert_eq!(fixture.fired(), [0; 0]);
        fixture.pass(due - fixture.bench.now());
        assert_eq!(fixture.fired(), [sequence]);
        assert_eq!(fixture.bench.device.next_wake(), None);
        assert_eq!(fixture.cq.poll().len(), 2, "the completions came as they did");
    }
}

#[test]
fn completions_that_are_there_when_a_moderated_queue_is_armed_count() {
    needs!(Capabilities::MODERATION);
    let mut fixture = Fixture::new();
    fixture.moderate(3, 50);
    (0..2).for_each(|_| fixture.complete_send());
    let sequence = fixture.arm(ArmKind::Any);
    assert_eq!(fixture.fired(), [0; 0]);
    fixture.complete_send();
    assert_eq!(fixture.fired(), [sequence]);
    // All of them are there, and then some of them are.
    let sequence = fixture.arm(ArmKind::Any);
    assert_eq!(fixture.fired(), [sequence]);
    fixture.cq.poll();
    fixture.complete_send();
    let sequence = fixture.arm(ArmKind::Any);
    fixture.pass(50_000);
    assert_eq!(fixture.fired(), [sequence]);
}

#[test]
fn a_moderated_solicited_arming_counts_what_is_solicited() {
    needs!(Capabilities::MODERATION);
    let mut fixture = Fixture::new();
    fixture.moderate(2, 50);
    let sequence = fixture.arm(ArmKind::Solicited);
    (0..3).for_each(|_| fixture.complete_send());
    assert_eq!(fixture.bench.device.next_wake(), None);
    fixture.complete_receive(true);
    assert_eq!(fixture.fired(), [0; 0]);
    fixture.complete_receive(true);
    assert_eq!(fixture.fired(), [sequence]);
}

#[test]
fn without_count_or_period_nothing_waits_and_a_change_tells_of_what_does() {
    needs!(Capabilities::MODERATION);
    for (count, period) in [(0, 0), (0, 50), (3, 0), (1, 50)] {
        let mut fixture = Fixture::new();
        fixture.moderate(1000, 1000);
        let sequence = fixture.arm(ArmKind::Any);
        fixture.complete_send();
        assert_eq!(fixture.fired(), [0; 0]);
        fixture.moderate(count, period);
        assert_eq!(fixture.fired(), [sequence], "what waited was told of");
        fixture.cq.poll();
        let sequence = fixture.arm(ArmKind::Any);
        assert_eq!(fixture.fired(), [0; 0]);
        fixture.complete_send();
        assert_eq!(fixture.fired(), [sequence], "{count}, {period}");
        assert_eq!(fixture.bench.device.next_wake(), None);
    }
}

#[test]
fn a_new_arming_and_the_end_of_a_queue_forget_what_waited() {
    needs!(Capabilities::MODERATION | Capabilities::RESIZE_CQ);
    let mut fixture = Fixture::new();
    fixture.moderate(2, 50);
    fixture.arm(ArmKind::Any);
    fixture.complete_send();
    fixture.cq.poll();
    let sequence = fixture.arm(ArmKind::Any);
    fixture.pass(100_000);
    assert_eq!(fixture.fired(), [0; 0], "what was polled is not told of");
    fixture.complete_send();
    fixture.resize(3).unwrap();
    fixture.pass(50_000);
    assert_eq!(fixture.fired(), [sequence], "a resize does not change it");
    let unknown = ModerateCq { cqn: fixture.cq.cqn ^ 1, count: 1, period: 1 };
    let status = fixture.bench.status(Opcode::ModerateCq, &unknown.encode());
    assert_eq!(status, AdminStatus::NotFound);
    fixture.cq = fixture.bench.create_cq(3);
    fixture.qp = fixture.bench.ready_qp(&fixture.cq);
    fixture.moderate(2, 50);
    fixture.arm(ArmKind::Any);
    fixture.complete_send();
    assert!(fixture.bench.device.next_wake().is_some());
    assert_eq!(fixture.bench.destroy(Opcode::DestroyQp, fixture.qp.qpn), AdminStatus::Success);
    assert_eq!(fixture.bench.destroy(Opcode::DestroyCq, fixture.cq.cqn), AdminStatus::Success);
    assert_eq!(fixture.bench.device.next_wake(), None);
    fixture.pass(100_000);
    assert!(fixture.bench.events().is_empty());
}
