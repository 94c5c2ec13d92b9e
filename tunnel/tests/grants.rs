//! An end whose peer has the key, and asks for grants and gives them as it likes.

#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "tests")]

use fpga_regs::engine::cqe::Status;
use fpga_regs::engine::key::Access;
use fpga_regs::engine::qp::Attributes;
use fpga_regs::engine::tunnel::{
    GRANT_BYTES, RESERVED_SLOTS, SLOT_BYTES, SLOTS, SlotFlags, SlotHeader, SlotOperation,
};
use fpga_regs::engine::wqe::AtomicOperation;
use queue_engine::{
    Message, Payload, ReceiveError, RemoteAccess, RemoteRange, TakenReceive, TransportEvent,
    Unreachable, WqeOperation,
};
use tunnel::{Direction, End, Host, Key, Names, Pace, Work, write_slot};

const QPN: u32 = 5;
const NAMES: Names =
    Names { direction: Direction { from: (1, QPN), to: (2, 6) }, key: Key::new([9; 16]) };
const LONG: u32 = 8192;
/// Bytes of it that go by a grant: the last ones go in a slot.
const PART: u32 = LONG - 4;

/// An engine that has everything.
#[derive(Debug, Default)]
struct Engine {
    opened: Vec<(Payload, u64, u32)>,
    closed: Vec<u64>,
    /// A card that has not confirmed yet.
    drains: bool,
    refuses: bool,
    /// There are no receives.
    empty: bool,
    /// The byte in all of its memory; `None` if that is gone.
    memory: Option<u8>,
}

/// The sum of bytes.
fn sum(byte: u8, bytes: u32) -> u32 {
    let mut crc = libdeflater::Crc::new();
    crc.update(&vec![byte; bytes as usize]);
    crc.sum()
}

impl Host for Engine {
    fn allows(&self, _: u32, _: RemoteRange, _: RemoteAccess) -> bool {
        true
    }

    fn take_receive(&mut self, _: u32) -> Result<TakenReceive, ReceiveError> {
        let receive = TakenReceive { id: 0, capacity: 1 << 30, left: None };
        if self.empty { Err(ReceiveError::Empty) } else { Ok(receive) }
    }

    fn read(&mut self, _: u32, _: Payload, _: u64, into: &mut [u8]) -> Result<(), Unreachable> {
        into.fill(self.memory.ok_or(Unreachable)?);
        Ok(())
    }

    fn write(&mut self, _: u32, _: Payload, _: u64, _: &[u8]) -> Result<(), Unreachable> {
        Ok(())
    }

    fn atomic(&mut self, _: u32, _: u32, _: u64, _: AtomicOperation) -> Result<u64, Unreachable> {
        Err(Unreachable)
    }

    fn open(&mut self, _: u32, payload: Payload, offset: u64, bytes: u32) -> Option<u64> {
        if self.refuses {
            return None;
        }
        self.opened.push((payload, offset, bytes));
        Some(self.opened.len() as u64 * 0x10_0000)
    }

    fn close(&mut self, _: u32, window: u64) {
        self.closed.push(window);
    }

    fn is_closed(&self, _: u32, _: u64) -> bool {
        !self.drains
    }
}

/// An end, with its peer's slots so far.
struct Bench {
    end: End,
    host: Engine,
    number: u64,
    now: u64,
    names: Names,
}

impl Bench {
    fn new(long: Option<u32>) -> Self {
        Self::between(NAMES, long)
    }

    fn between(names: Names, long: Option<u32>) -> Self {
        let access = Access::all().bits();
        let attributes = Attributes { rq_psn: 3, sq_psn: 4, access, ..Attributes::default() };
        let pace = Pace { watchdog: 1_000_000_000, between: 1 << 22, rest: 0, long };
        let mut end = End::new(0, QPN, names, &attributes, pace);
        end.let_send(&attributes);
        end.set(&attributes);
        let host = Engine { memory: Some(7), ..Engine::default() };
        Self { end, host, number: 0, now: 0, names }
    }

    /// The peer says something.
    fn hear(&mut self, header: SlotHeader) {
        assert!(self.hears(header), "{header:?}");
    }

    /// Whether something is taken that the peer says.
    fn hears(&mut self, header: SlotHeader) -> bool {
        self.number += 1;
        let flags = header.flags | SlotFlags::OWN_NUMBER;
        let header = SlotHeader { number: self.number, flags, ..header };
        let key = self.names.key.of_slots(self.names.direction.back(), 3);
        let mut slot = Vec::new();
        write_slot(&header, &vec![7; header.bytes.into()], &key, &mut slot);
        slot.resize(SLOT_BYTES, 0);
        let heard = self.end.receive(self.now, &slot, &mut self.host);
        self.number -= u64::from(!heard);
        heard
    }

    /// The end's next work, and its slot.
    fn next(&mut self) -> (Work, SlotHeader) {
        let mut slot = Vec::new();
        let step = self.end.next(self.now, true, &mut self.host, &mut slot);
        let mut block = [0; 8];
        for (word, bytes) in block.iter_mut().zip(slot.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().unwrap());
        }
        (step, SlotHeader::decode(&[block]))
    }

    /// Its next slot.
    fn said(&mut self) -> SlotHeader {
        let (step, header) = self.next();
        assert!(matches!(step, Work::Slot(_)), "{step:?}");
        header
    }

    /// Lets time pass.
    fn pass(&mut self, nanoseconds: u64) {
        let end = self.now + nanoseconds;
        while self.now < end {
            self.now = end.min(self.now + 1_000_000);
            self.end.settle(self.now, &mut self.host);
            self.end.advance(self.now, true);
        }
    }

    fn events(&mut self) -> Vec<TransportEvent> {
        let events: Vec<_> = std::iter::from_fn(|| self.end.take_event()).collect();
        let received = events.iter().filter(|event| matches!(event, TransportEvent::Received(_)));
        received.for_each(|_| self.end.told());
        events
    }

    fn write(&mut self, length: u32) {
        self.submit(WqeOperation::Write { remote_address: 0, rkey: 1, immediate: None }, length);
    }

    fn submit(&mut self, operation: WqeOperation, length: u32) {
        let message = Message { operation, length, solicited: false, fence: false, srqn: None };
        self.end.submit(0, &message).unwrap();
    }
}

fn said(operation: SlotOperation) -> SlotHeader {
    SlotHeader { operation, flags: SlotFlags::GRANTS, ..SlotHeader::default() }
}

/// A request for a grant of a WRITE of `LONG` bytes, the first message of the peer's.
fn ask() -> SlotHeader {
    let flags = SlotFlags::GRANTS | SlotFlags::ASKS;
    SlotHeader { flags, length: LONG, ..said(SlotOperation::Write) }
}

/// The status that tells the peer why the QP ends, if it does.
fn refused(bench: &mut Bench) -> Option<Status> {
    let (step, header) = bench.next();
    let is_answer = matches!(step, Work::Slot(_)) && header.operation == SlotOperation::Answer;
    (is_answer && header.status != 0).then_some(Status(header.status))
}

#[test]
fn nothing_is_asked_of_an_end_of_before_and_nothing_is_granted_by_one_that_does_not_say_so() {
    let mut bench = Bench::new(Some(LONG));
    bench.hear(SlotHeader { flags: SlotFlags::empty(), ..said(SlotOperation::Credit) });
    bench.write(LONG);
    let (_, header) = bench.next();
    assert!(!header.flags.contains(SlotFlags::ASKS) && header.bytes > 0, "{header:?}");
    assert!(header.flags.contains(SlotFlags::GRANTS));
    let mut bench = Bench::new(None);
    bench.hear(said(SlotOperation::Credit));
    bench.write(LONG);
    let (_, header) = bench.next();
    assert!(!header.flags.intersects(SlotFlags::ASKS | SlotFlags::GRANTS), "{header:?}");
    let mut bench = Bench::new(None);
    bench.hear(ask());
    assert_eq!(refused(&mut bench), Some(Status::RemoteInvalidRequest));
}

/// An end that has asked for a grant of a WRITE of `LONG` bytes, got it, used it and said so.
fn written() -> (Bench, SlotHeader) {
    let mut bench = Bench::new(Some(LONG));
    bench.hear(said(SlotOperation::Credit));
    bench.write(LONG);
    let header = bench.said();
    assert!(header.flags.contains(SlotFlags::ASKS) && header.bytes == 0, "{header:?}");
    assert_eq!(bench.next().0, Work::Nothing);
    bench.hear(SlotHeader { address: 0x9000, length: PART, ..said(SlotOperation::Grant) });
    let window = 0x10_0000;
    assert_eq!(bench.next().0, Work::Write { window, remote: 0x9000, bytes: PART });
    let header = bench.said();
    assert_eq!((header.operation, header.offset), (SlotOperation::Written, 0));
    (bench, header)
}

#[test]
fn what_was_granted_is_used_and_the_window_stays_until_the_peer_has_it() {
    let (mut bench, header) = written();
    assert_eq!(header.sum, sum(7, PART));
    // The rest goes behind it at once.
    let header = bench.said();
    assert_eq!((header.operation, header.offset, header.bytes), (SlotOperation::Write, PART, 4));
    // The card's acknowledgements meanwhile mean nothing.
    assert_eq!((bench.next().0, bench.host.closed.len()), (Work::Nothing, 0));
    bench.hear(SlotHeader { length: PART, ..said(SlotOperation::Landed) });
    assert_eq!((bench.next().0, &bench.host.closed[..]), (Work::Nothing, &[0x10_0000][..]));
    bench.hear(said(SlotOperation::Answer));
    assert_eq!(bench.events(), [TransportEvent::Completed { qpn: QPN, count: 1 }]);
}

#[test]
fn what_has_not_landed_comes_in_slots_and_is_not_asked_for_again() {
    let (mut bench, _) = written();
    // The last bytes are on their way, and come again.
    assert_eq!(bench.said().offset, PART);
    bench.hear(said(SlotOperation::Landed));
    assert_eq!(bench.host.closed, [0x10_0000]);
    let slots = [bench.said(), bench.said(), bench.said()];
    let places = slots.map(|it| (it.operation, it.offset, it.flags.contains(SlotFlags::ASKS)));
    assert_eq!(places, [0, 4032, 8064].map(|offset| (SlotOperation::Write, offset, false)));
}

#[test]
fn a_word_of_what_has_landed_that_makes_no_sense_ends_the_queue_pair() {
    let good = SlotHeader { length: PART, ..said(SlotOperation::Landed) };
    for bad in [
        SlotHeader { length: PART - 4, ..good },
        SlotHeader { length: LONG, ..good },
        SlotHeader { offset: 4, ..good },
        SlotHeader { message: 1, ..good },
        SlotHeader { operation: SlotOperation::DataLanded, ..good },
        SlotHeader { operation: SlotOperation::Grant, ..good },
    ] {
        let (mut bench, _) = written();
        bench.hear(bad);
        let failed = TransportEvent::Failed { qpn: QPN, status: Status::BadResponse };
        assert_eq!(bench.events(), [failed], "{bad:?}");
    }
}

#[test]
fn memory_of_one_s_own_that_is_gone_by_then_fails_the_message() {
    let mut bench = Bench::new(Some(LONG));
    bench.hear(said(SlotOperation::Credit));
    bench.write(LONG);
    bench.said();
    bench.hear(SlotHeader { address: 0x9000, length: PART, ..said(SlotOperation::Grant) });
    bench.next();
    bench.host.memory = None;
    assert_eq!(bench.said().operation, SlotOperation::Written);
    assert_eq!(bench.next().0, Work::Nothing);
    bench.pass(1);
    let failed = TransportEvent::Failed { qpn: QPN, status: Status::LocalProtection };
    assert_eq!(bench.events(), [failed]);
}

/// The rest of a turnover that the peer has asked for; the counts by then.
fn turn_over(bench: &mut Bench) -> (u64, u64) {
    assert_eq!(bench.said().operation, SlotOperation::Paused);
    bench.hear(said(SlotOperation::Rewritten));
    let counts = match bench.next().0 {
        Work::Rewrite(sent, taken) => (sent, taken),
        other => panic!("{other:?}"),
    };
    assert_eq!(bench.said().operation, SlotOperation::Resume);
    counts
}

/// An end whose peer asks for turnovers.
fn led() -> Bench {
    let direction = Direction { from: (3, QPN), to: (2, 6) };
    Bench::between(Names { direction, ..NAMES }, Some(LONG))
}

#[test]
fn both_count_what_was_written_of_memory_that_is_gone_by_then() {
    let packets = u64::from(PART.div_ceil(SLOT_BYTES as u32));
    for paused in [false, true] {
        // Behind a READ that is not answered the queue pair lives on.
        let mut bench = led();
        bench.hear(said(SlotOperation::Credit));
        bench.submit(WqeOperation::Read { remote_address: 0, rkey: 1 }, 8);
        bench.write(LONG);
        for _ in 0..2 {
            bench.said();
        }
        let grant = SlotHeader { address: 0x9000, length: PART, ..said(SlotOperation::Grant) };
        bench.hear(SlotHeader { message: 1, ..grant });
        assert!(matches!(bench.next().0, Work::Write { .. }));
        bench.host.memory = None;
        if paused {
            bench.hear(said(SlotOperation::Pause));
        }
        let header = bench.said();
        assert_eq!((header.operation, header.message), (SlotOperation::Written, 1));
        bench.pass(1);
        if !paused {
            bench.hear(said(SlotOperation::Pause));
        }
        assert_eq!(turn_over(&mut bench), (4 + packets, 4), "paused: {paused}");
        // And the peer's READ.
        let mut bench = led();
        bench.hear(SlotHeader { length: LONG, ..said(SlotOperation::Read) });
        assert!(bench.said().flags.contains(SlotFlags::ASKS));
        bench.hear(SlotHeader { operation: SlotOperation::GrantData, ..grant });
        assert!(matches!(bench.next().0, Work::Write { .. }));
        bench.host.memory = None;
        if paused {
            bench.hear(said(SlotOperation::Pause));
        }
        assert_eq!(bench.said().operation, SlotOperation::DataWritten);
        if paused {
            assert_eq!(turn_over(&mut bench), (3 + packets, 4));
        }
        assert_eq!(refused(&mut bench), Some(Status::RemoteOperation));
    }
}

#[test]
fn what_was_used_counts_once() {
    let packets = u64::from(PART.div_ceil(SLOT_BYTES as u32));
    let mut bench = led();
    bench.hear(ask());
    assert_eq!(bench.said().operation, SlotOperation::Grant);
    let used = SlotHeader { length: LONG, sum: sum(7, PART), ..said(SlotOperation::Written) };
    bench.hear(used);
    assert!(bench.end.settle(0, &mut bench.host));
    assert_eq!(bench.said().operation, SlotOperation::Landed);
    bench.hear(SlotHeader { length: LONG, offset: PART, bytes: 4, ..said(SlotOperation::Write) });
    assert_eq!(bench.said().operation, SlotOperation::Answer);
    // A SEND that finds no receive; its later slots count for nothing.
    bench.host.empty = true;
    bench.hear(SlotHeader { message: 1, length: 4, bytes: 4, ..said(SlotOperation::Send) });
    assert!(bench.said().flags.contains(SlotFlags::NOT_READY));
    bench.hear(SlotHeader { message: 1, offset: 4, ..used });
    bench.hear(said(SlotOperation::Pause));
    assert_eq!(turn_over(&mut bench), (5, 7 + packets));
}

#[test]
fn a_grant_that_was_not_asked_for_or_is_of_something_else_ends_the_queue_pair() {
    let good = SlotHeader { address: 0x9000, length: PART, ..said(SlotOperation::Grant) };
    for bad in [
        SlotHeader { length: LONG, ..good },
        SlotHeader { length: 2, ..good },
        SlotHeader { length: u32::MAX, ..good },
        SlotHeader { address: (1 << 48) - 4, ..good },
        SlotHeader { address: u64::MAX, ..good },
        SlotHeader { offset: 4, ..good },
        SlotHeader { message: 1, ..good },
        SlotHeader { operation: SlotOperation::GrantData, ..good },
        SlotHeader { operation: SlotOperation::DataWritten, ..good },
        SlotHeader { length: PART - 4, ..good },
        SlotHeader { operation: SlotOperation::Landed, ..good },
    ] {
        let mut bench = Bench::new(Some(LONG));
        bench.hear(said(SlotOperation::Credit));
        bench.write(LONG);
        bench.next();
        bench.hear(bad);
        let failed = TransportEvent::Failed { qpn: QPN, status: Status::BadResponse };
        assert_eq!(bench.events(), [failed], "{bad:?}");
        assert_eq!(bench.next().0, Work::Nothing, "{bad:?}");
    }
    // One that comes twice, or before it was asked for.
    for asks in [false, true] {
        let mut bench = Bench::new(Some(LONG));
        bench.write(LONG);
        if asks {
            bench.hear(said(SlotOperation::Credit));
            bench.next();
            bench.hear(good);
        }
        bench.hear(good);
        let failed = TransportEvent::Failed { qpn: QPN, status: Status::BadResponse };
        assert_eq!(bench.events(), [failed]);
    }
}

#[test]
fn what_makes_no_sense_about_a_grant_is_refused() {
    let written = SlotHeader { length: LONG, ..said(SlotOperation::Written) };
    let part = SlotHeader { bytes: 8, length: LONG, ..said(SlotOperation::Write) };
    let cases: [&[SlotHeader]; 7] = [
        // Nothing was granted.
        &[written],
        &[part, SlotHeader { offset: 8, ..written }],
        // For a request with payload there is no grant.
        &[SlotHeader { bytes: 8, ..ask() }],
        // Two at once, of one message and of two.
        &[ask(), ask()],
        &[ask(), SlotHeader { message: 1, ..ask() }],
        // The granted part in slots.
        &[ask(), part],
        // Of something else than was granted.
        &[ask(), SlotHeader { offset: 4, ..written }],
    ];
    for case in cases {
        let mut bench = Bench::new(Some(LONG));
        case.iter().for_each(|header| bench.hear(*header));
        let told: Vec<_> = (0..3).map(|_| refused(&mut bench)).collect();
        assert!(told.contains(&Some(Status::RemoteInvalidRequest)), "{case:?}: {told:?}");
    }
}

/// A message of four parts and some bytes, and the request for the part of that number.
const PARTS: u32 = 4 * GRANT_BYTES + 4;

fn ask_for(part: u32) -> SlotHeader {
    SlotHeader { length: PARTS, offset: part * GRANT_BYTES, ..ask() }
}

#[test]
fn as_many_parts_as_are_agreed_are_granted_at_a_time_and_what_comes_behind_waits_for_all() {
    let mut bench = Bench::new(Some(LONG));
    bench.host.drains = true;
    let header = |operation, part, length| {
        let offset = part * GRANT_BYTES;
        SlotHeader { offset, length, sum: sum(7, GRANT_BYTES), ..said(operation) }
    };
    for part in 0..4 {
        bench.hear(ask_for(part));
        let grant = bench.said();
        let place = (grant.operation, grant.offset, grant.length);
        assert_eq!(place, (SlotOperation::Grant, part * GRANT_BYTES, GRANT_BYTES));
    }
    for part in 0..4 {
        bench.hear(header(SlotOperation::Written, part, PARTS));
    }
    // The last bytes stay where they are, until nothing is on its way by any.
    let last = SlotHeader { bytes: 4, ..header(SlotOperation::Write, 4, PARTS) };
    assert!(!bench.hears(last) && bench.end.expected().is_none());
    assert_eq!(bench.next().0, Work::Nothing);
    bench.host.drains = false;
    for part in 0..4 {
        assert!(bench.end.settle(0, &mut bench.host));
        let landed = bench.said();
        let place = (landed.operation, landed.offset, landed.length);
        assert_eq!(place, (SlotOperation::Landed, part * GRANT_BYTES, GRANT_BYTES));
    }
    bench.hear(last);
    let answer = bench.said();
    assert_eq!((answer.operation, answer.status), (SlotOperation::Answer, 0));
    // An end that has heard nothing of the others does not ask for a fifth one.
    let mut bench = Bench::new(Some(LONG));
    (0..5).for_each(|part| bench.hear(SlotHeader { length: PARTS * 2, ..ask_for(part) }));
    let told: Vec<_> = (0..6).map(|_| refused(&mut bench)).collect();
    assert!(told.contains(&Some(Status::RemoteInvalidRequest)), "{told:?}");
}

#[test]
fn what_is_behind_a_part_that_has_not_landed_counts_for_nothing_until_that_has_come_in_slots() {
    let mut bench = Bench::new(Some(LONG));
    let written = |part, sum| {
        let offset = part * GRANT_BYTES;
        SlotHeader { offset, length: PARTS, sum, ..said(SlotOperation::Written) }
    };
    (0..3).for_each(|part| bench.hear(ask_for(part)));
    for (part, sum) in [(0, sum(7, GRANT_BYTES)), (1, 9), (2, sum(7, GRANT_BYTES))] {
        bench.hear(written(part, sum));
        bench.end.settle(0, &mut bench.host);
    }
    let slots: Vec<_> = (0..6).map(|_| bench.said()).collect();
    let landed = slots.iter().filter(|it| it.operation == SlotOperation::Landed);
    let landed: Vec<_> = landed.map(|it| it.length).collect();
    assert_eq!(landed, [GRANT_BYTES, 0, 0]);
    // More is not granted, and slots that its sender has sent before it heard are passed over.
    bench.hear(ask_for(3));
    let grant = bench.said();
    assert_eq!((grant.operation, grant.length), (SlotOperation::Grant, 0));
    let slot =
        |offset, bytes| SlotHeader { offset, bytes, length: PARTS, ..said(SlotOperation::Write) };
    bench.hear(slot(PARTS - 4, 4));
    assert_eq!(bench.next().0, Work::Nothing);
    let (mut offset, mut told) = (GRANT_BYTES, Vec::new());
    while offset < PARTS {
        let bytes = (PARTS - offset).min(4032);
        bench.hear(slot(offset, bytes as u16));
        offset += bytes;
        // It says from time to time that there is room.
        told.push(bench.next().1);
    }
    told.extend((0..40).map(|_| bench.next().1));
    let answer = |it: &SlotHeader| it.operation == SlotOperation::Answer;
    assert!(told.iter().any(|it| answer(it) && it.status == 0));
    assert!(!told.iter().any(|it| answer(it) && it.status != 0));
}

/// An end that has asked for four parts of a WRITE, and got so many grants.
fn asked(grants: u32) -> Bench {
    let mut bench = Bench::new(Some(LONG));
    bench.hear(said(SlotOperation::Credit));
    bench.write(PARTS);
    for part in 0..4 {
        let header = bench.said();
        assert!(header.flags.contains(SlotFlags::ASKS));
        assert_eq!(header.offset, part * GRANT_BYTES);
    }
    assert_eq!(bench.next().0, Work::Nothing);
    for part in 0..grants {
        bench.hear(grant_of(part, GRANT_BYTES));
    }
    bench
}

fn grant_of(part: u32, length: u32) -> SlotHeader {
    let offset = part * GRANT_BYTES;
    SlotHeader { address: 0x9000, offset, length, ..said(SlotOperation::Grant) }
}

#[test]
fn parts_are_written_in_their_order_two_at_a_time_and_the_rest_in_slots_behind_them() {
    let mut bench = asked(4);
    let landed = |part: u32, length| SlotHeader {
        offset: part * GRANT_BYTES,
        length,
        ..said(SlotOperation::Landed)
    };
    for part in 0..4 {
        if part >= 2 {
            assert_eq!(bench.next().0, Work::Nothing);
            bench.hear(landed(part - 2, GRANT_BYTES));
        }
        assert!(matches!(bench.next().0, Work::Write { .. }));
        let header = bench.said();
        assert_eq!((header.operation, header.offset), (SlotOperation::Written, part * GRANT_BYTES));
    }
    let header = bench.said();
    assert_eq!((header.offset, header.bytes), (4 * GRANT_BYTES, 4));
    bench.hear(landed(2, GRANT_BYTES));
    // One that has not landed takes along the slots behind it.
    bench.hear(landed(3, 0));
    let header = bench.said();
    assert_eq!((header.offset, header.bytes), (3 * GRANT_BYTES, 4032));
    assert!(bench.events().is_empty());
    assert_eq!(bench.host.closed.len(), 4);
    // Behind it none can have.
    let mut bench = asked(2);
    for _ in 0..4 {
        bench.next();
    }
    bench.hear(landed(0, 0));
    bench.hear(landed(1, GRANT_BYTES));
    let failed = TransportEvent::Failed { qpn: QPN, status: Status::BadResponse };
    assert_eq!(bench.events(), [failed]);
}

#[test]
fn what_was_refused_goes_in_slots_behind_what_was_granted() {
    let mut bench = asked(1);
    (1..4).for_each(|part| bench.hear(grant_of(part, 0)));
    assert_eq!(bench.host.closed.len(), 3);
    assert!(matches!(bench.next().0, Work::Write { .. }));
    assert_eq!(bench.said().operation, SlotOperation::Written);
    let header = bench.said();
    assert_eq!((header.offset, header.bytes), (GRANT_BYTES, 4032));
    assert!(!header.flags.contains(SlotFlags::ASKS));
    // Nothing is granted behind a refused request.
    let mut bench = asked(1);
    bench.hear(grant_of(1, 0));
    assert!(matches!(bench.next().0, Work::Write { .. }));
    assert_eq!(bench.said().operation, SlotOperation::Written);
    assert_eq!(bench.next().0, Work::Nothing, "the others are still to be refused");
    bench.hear(grant_of(2, GRANT_BYTES));
    let failed = TransportEvent::Failed { qpn: QPN, status: Status::BadResponse };
    assert_eq!(bench.events(), [failed]);
}

#[test]
fn what_has_not_landed_comes_in_slots_once_those_behind_it_are_refused() {
    let mut bench = asked(1);
    assert!(matches!(bench.next().0, Work::Write { .. }));
    assert_eq!(bench.said().operation, SlotOperation::Written);
    bench.hear(said(SlotOperation::Landed));
    for part in 1..4 {
        assert_eq!(bench.next().0, Work::Nothing, "{part} is still to be refused");
        bench.hear(grant_of(part, 0));
    }
    let header = bench.said();
    assert_eq!((header.operation, header.offset, header.bytes), (SlotOperation::Write, 0, 4032));
}

#[test]
fn who_refuses_one_refuses_those_behind_it_and_takes_slots() {
    let mut bench = Bench::new(Some(LONG));
    bench.host.refuses = true;
    bench.hear(ask_for(0));
    bench.host.refuses = false;
    bench.hear(ask_for(1));
    for _ in 0..2 {
        let header = bench.said();
        assert_eq!((header.operation, header.length), (SlotOperation::Grant, 0));
    }
    bench.hear(SlotHeader { bytes: 8, length: PARTS, ..said(SlotOperation::Write) });
    assert_eq!(bench.next().0, Work::Nothing);
    // A peer that floods it with requests is refused.
    (0..5).for_each(|_| bench.hear(ask_for(1)));
    let told: Vec<_> = (0..6).map(|_| refused(&mut bench)).collect();
    assert!(told.contains(&Some(Status::RemoteInvalidRequest)), "{told:?}");
}

/// An end that has given a grant of so many bytes, which the peer has used for bytes of that sum; it drains.
fn granted(length: u32, sum: u32) -> Bench {
    let mut bench = Bench::new(Some(LONG));
    bench.hear(SlotHeader { length, ..ask() });
    let header = bench.said();
    let part = (length - 1).min(GRANT_BYTES) & !3;
    assert_eq!((header.operation, header.length), (SlotOperation::Grant, part));
    bench.host.drains = true;
    bench.hear(SlotHeader { length, sum, ..said(SlotOperation::Written) });
    let part = SlotHeader { length, offset: part, bytes: 4, ..said(SlotOperation::Write) };
    assert!(!bench.hears(part) && bench.end.expected().is_none());
    assert!(!bench.end.settle(0, &mut bench.host));
    assert_eq!(bench.next().0, Work::Nothing);
    bench
}

#[test]
fn a_grant_is_bounded_and_nothing_goes_on_before_nothing_is_on_its_way_by_it() {
    let length = GRANT_BYTES + 7;
    let mut bench = granted(length, sum(7, GRANT_BYTES));
    bench.host.drains = false;
    assert!(bench.end.settle(0, &mut bench.host) && bench.end.expected().is_some());
    let header = bench.said();
    assert_eq!((header.operation, header.length), (SlotOperation::Landed, GRANT_BYTES));
    let rest = SlotHeader { length, offset: GRANT_BYTES, bytes: 7, ..said(SlotOperation::Write) };
    bench.hear(rest);
    let header = bench.said();
    assert_eq!((header.operation, header.status), (SlotOperation::Answer, 0));
}

#[test]
fn what_adds_up_to_something_else_when_nothing_is_on_its_way_comes_in_slots() {
    for memory in [Some(8), None] {
        let mut bench = granted(LONG, sum(7, PART));
        // The bytes behind the drain count.
        (bench.host.drains, bench.host.memory) = (false, memory);
        bench.end.settle(0, &mut bench.host);
        let header = bench.said();
        assert_eq!((header.operation, header.offset, header.length), (SlotOperation::Landed, 0, 0));
        let part = SlotHeader { length: LONG, bytes: 4032, ..said(SlotOperation::Write) };
        for offset in [0, 4032] {
            bench.hear(SlotHeader { offset, ..part });
        }
        bench.hear(SlotHeader { offset: 8064, bytes: 128, ..part });
        let header = bench.said();
        assert_eq!((header.operation, header.status), (SlotOperation::Answer, 0));
    }
}

#[test]
fn a_grant_that_is_not_used_in_time_leads_nowhere_and_hurts_nobody_who_is_only_late() {
    let mut bench = Bench::new(Some(LONG));
    bench.hear(ask());
    bench.said();
    bench.pass(1_500_000_000);
    assert!(bench.host.closed.is_empty());
    bench.pass(1_000_000_000);
    assert_eq!(bench.host.closed.first(), Some(&0x10_0000));
    // Nothing of it has landed.
    bench.host.memory = Some(0);
    bench.hear(SlotHeader { length: LONG, sum: sum(7, PART), ..said(SlotOperation::Written) });
    bench.end.settle(bench.now, &mut bench.host);
    let header = bench.said();
    assert_eq!((header.operation, header.length), (SlotOperation::Landed, 0));
    assert!(bench.events().is_empty());
}

/// The peer's READ of `LONG` bytes.
fn asked_to_read() -> (Bench, SlotHeader) {
    let mut bench = Bench::new(Some(LONG));
    bench.hear(SlotHeader { length: LONG, ..said(SlotOperation::Read) });
    let header = bench.said();
    assert!(header.operation == SlotOperation::Data && header.flags.contains(SlotFlags::ASKS));
    (bench, SlotHeader { address: 0x9000, length: PART, ..said(SlotOperation::GrantData) })
}

#[test]
fn a_peer_that_gives_no_grant_for_what_it_asks_to_read_keeps_no_window() {
    let (mut bench, grant) = asked_to_read();
    bench.pass(2_500_000_000);
    assert_eq!(bench.host.closed.first(), Some(&0x10_0000));
    // A peer that is only late gets other bytes, and then the right ones in slots.
    bench.hear(grant);
    assert!(matches!(bench.next().0, Work::Write { .. }));
    assert_eq!(bench.said().operation, SlotOperation::DataWritten);
    bench.hear(said(SlotOperation::DataLanded));
    let header = bench.said();
    assert_eq!((header.operation, header.offset, header.bytes), (SlotOperation::Data, 0, 4032));
}

#[test]
fn a_read_from_before_what_is_refused_is_answered_first() {
    let (mut bench, grant) = asked_to_read();
    bench.hear(SlotHeader { message: 5, length: 8, bytes: 8, ..said(SlotOperation::Write) });
    assert!(bench.end.is_open() && !bench.end.is_live());
    bench.hear(grant);
    assert!(matches!(bench.next().0, Work::Write { .. }));
    assert_eq!(bench.said().operation, SlotOperation::DataWritten);
    bench.hear(SlotHeader { length: PART, ..said(SlotOperation::DataLanded) });
    let header = bench.said();
    assert_eq!((header.operation, header.offset, header.bytes), (SlotOperation::Data, PART, 4));
    assert_eq!(refused(&mut bench), Some(Status::RemoteInvalidRequest));
    bench.pass(1);
    let told = bench.events();
    assert!(told.contains(&TransportEvent::Error { qpn: QPN }), "{told:?}");
}

#[test]
fn a_turnover_waits_for_no_credits_but_one_to_say_what_was_written() {
    let mut bench = led();
    bench.hear(said(SlotOperation::Credit));
    // All slots but the reserved ones, and one for the request.
    let message = SLOTS - RESERVED_SLOTS - 1;
    for _ in 0..message {
        bench.submit(WqeOperation::Send { immediate: None }, 4);
        bench.said();
    }
    bench.write(LONG);
    assert!(bench.said().flags.contains(SlotFlags::ASKS));
    let said = |operation| SlotHeader { consumed: 1, ..said(operation) };
    bench.hear(SlotHeader { message, address: 0x9000, length: PART, ..said(SlotOperation::Grant) });
    assert!(matches!(bench.next().0, Work::Write { .. }));
    bench.hear(SlotHeader { length: 4, bytes: 4, ..said(SlotOperation::Send) });
    // The program is told of the message, and then the peer.
    bench.events();
    assert_eq!(bench.said().operation, SlotOperation::Answer);
    bench.hear(said(SlotOperation::Pause));
    assert_eq!(bench.said().operation, SlotOperation::Written);
}

#[test]
fn what_a_turnover_takes_at_the_worst_is_kept_for_it() {
    let mut bench = led();
    bench.hear(SlotHeader { length: LONG, ..said(SlotOperation::Read) });
    assert_eq!(bench.said().operation, SlotOperation::Data);
    // All slots but the reserved ones, and one for the request.
    let message = SLOTS - RESERVED_SLOTS - 2;
    for _ in 0..message {
        bench.submit(WqeOperation::Send { immediate: None }, 4);
        bench.said();
    }
    bench.write(LONG);
    assert!(bench.said().flags.contains(SlotFlags::ASKS));
    // There is one again, and both parts are being written.
    let said = |operation| SlotHeader { consumed: 1, ..said(operation) };
    let grant = SlotHeader { address: 0x9000, length: PART, ..said(SlotOperation::Grant) };
    bench.hear(SlotHeader { message, ..grant });
    bench.hear(SlotHeader { operation: SlotOperation::GrantData, ..grant });
    (0..2).for_each(|_| assert!(matches!(bench.next().0, Work::Write { .. })));
    // The last one that is not reserved.
    bench.hear(SlotHeader { message: 1, consumed: 1, ..ask() });
    assert_eq!(bench.said().operation, SlotOperation::Grant);
    bench.hear(said(SlotOperation::Pause));
    let told = [(); 3].map(|()| bench.said().operation);
    assert_eq!(
        told[..],
        [SlotOperation::Written, SlotOperation::DataWritten, SlotOperation::Paused]
    );
    bench.hear(said(SlotOperation::Rewritten));
    assert!(matches!(bench.next().0, Work::Rewrite(..)));
    assert_eq!(bench.said().operation, SlotOperation::Resume);
    assert_eq!(bench.next().0, Work::Nothing, "there is no other");
}
