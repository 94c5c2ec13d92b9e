//! The seam between shell and logic: answers that come late, in any order, or not; logic that is not
//! ready; and several kinds of logic in one card.

use std::task::Poll;

use ::services::Stages;
use fpga_regs::coyote::pci::Bar;
use fpga_regs::coyote::shell::{self, Datapath};
use fpga_regs::engine::qp::{AttributeMask, Attributes, QpState as State};
use fpga_regs::engine::wqe::SendOpcode;
use hostmem::SharedMapping;
use roce::{AccessDenied, ReceiveError, TakenReceive, Target};

#[path = "../../../tests/logic/echo.rs"]
mod echo;

use super::super::receiving::HELD;
use super::pair::{MEMORY, Pair};
use super::rig::{REGION, Rig, VA, WINDOW, user_register};
use super::turns::pair_with;
use super::*;
use crate::bus::{Bus, BusMemory, Rights};
use crate::network::PATIENCE;
use crate::vfpga::{Access, Occupant, Piece, Ports, QueueEngine, Tag, Unreachable};

/// An event of a logic, in order: a question, an answer, and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Asked(Tag, Qpn),
    Answered(Tag),
    Heard,
}

/// A senseless answer of logic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lie {
    /// Each answer twice, and one to a tag that there never was.
    Twice,
    /// A byte or a piece less than was wanted.
    Short,
    /// An answer to another question than was asked.
    OfAnotherKind,
}

type Silence = Box<dyn Fn(Qpn, &Answer) -> bool>;

/// How a logic takes its time.
#[derive(Default)]
struct Pace {
    /// The most nanoseconds it thinks, in steps of a microsecond.
    thinks: u64,
    /// It is not ready before.
    ready_at: u64,
    /// Payload passes through it.
    carries: bool,
    /// The question that it never answers.
    silent: Option<Silence>,
    lie: Option<Lie>,
    said: Vec<Said>,
}

/// A queue engine that thinks before it answers, and does not answer in the order it was asked.
struct Slow {
    engine: Box<QueueEngine>,
    pace: Rc<RefCell<Pace>>,
    /// Where the memory is that the engine names.
    bus: Rc<Bus>,
    now: u64,
    /// Its answers, each with its time.
    answers: Vec<(u64, Tag, Answer)>,
}

impl Slow {
    /// Puts it in the place of a card's queue engine.
    fn around(card: &mut Card, pace: Pace) -> Rc<RefCell<Pace>> {
        let pace = Rc::new(RefCell::new(pace));
        let bus = Rc::clone(&card.memory.bus);
        let place = &mut card.vfpgas[usize::from(WINDOW)].logic;
        let before = std::mem::replace(place, Occupant::Other(Box::new(Dummy::default())));
        let Occupant::Engine(engine) = before else { panic!("there is no engine") };
        let slow = Self { engine, pace: Rc::clone(&pace), bus, now: 0, answers: Vec::new() };
        *place = Occupant::Other(Box::new(slow));
        pace
    }

    fn think<T>(&mut self, tag: Tag, qpn: Qpn, answer: Answer) -> Poll<T> {
        let mut pace = self.pace.borrow_mut();
        pace.said.push(Said::Asked(tag, qpn));
        let steps = (pace.thinks / 1_000).max(1);
        let due = self.now + 1_000 * (1 + tag.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) % steps);
        if pace.silent.as_ref().is_some_and(|silent| silent(qpn, &answer)) {
            return Poll::Pending;
        }
        let (times, answer) = match (pace.lie, answer) {
            (Some(Lie::Twice), answer) => {
                self.answers.push((due, Tag(u64::MAX), answer.clone()));
                (2, answer)
            }
            (Some(Lie::Short), Answer::Fetched(Ok(mut bytes))) => {
                bytes.pop();
                (1, Answer::Fetched(Ok(bytes)))
            }
            (Some(Lie::OfAnotherKind), Answer::Fetched(_)) => (1, Answer::Placed(Ok(()))),
            (Some(Lie::OfAnotherKind), Answer::Placed(_)) => (1, Answer::Access(Ok(()))),
            (_, answer) => (1, answer),
        };
        self.answers.extend(vec![(due, tag, answer); times]);
        Poll::Pending
    }

    /// Where the memory of payload is.
    fn pieces(
        &mut self,
        wanted: &Wanted,
    ) -> Result<Vec<(Arc<SharedMapping>, usize, usize)>, Unreachable> {
        let mut pieces = Vec::new();
        self.engine.locate(wanted, &mut pieces)?;
        let found = pieces.iter().map(|piece| {
            // The one page of memory is where it says it is.
            match self.bus.look_up(piece.iova, Rights::BOTH) {
                Some((BusMemory::Shared(mapping, offset), _)) => {
                    (mapping, offset, piece.length as usize)
                }
                _ => panic!("the memory is shared"),
            }
        });
        Ok(found.collect())
    }
}

fn at_once<T>(answer: Poll<T>) -> T {
    let Poll::Ready(answer) = answer else { panic!("the engine answers at once") };
    answer
}

impl Logic for Slow {
    fn read_register(&self, now: u64, offset: u64) -> u64 {
        self.engine.read_register(now, offset)
    }

    fn write_register(&mut self, now: u64, offset: u64, value: u64, ports: &mut Ports<'_>) {
        self.engine.write_register(now, offset, value, ports);
    }

    fn reset(&mut self, ports: &mut Ports<'_>) {
        self.answers.clear();
        self.engine.reset(ports);
    }

    fn lost_memory(&mut self, now: u64, ports: &mut Ports<'_>) {
        self.engine.lost_memory(now, ports);
    }

    fn work(&mut self, now: u64, ports: &mut Ports<'_>) -> bool {
        self.now = now;
        self.engine.work(now, ports)
    }

    fn next_wake(&self) -> Option<u64> {
        let ready = Some(self.pace.borrow().ready_at).filter(|_| !self.is_ready());
        self.answers.iter().map(|(due, ..)| *due).chain(ready).min()
    }

    fn take_notify(&mut self) -> Option<u32> {
        self.engine.take_notify()
    }

    fn is_ready(&self) -> bool {
        self.now >= self.pace.borrow().ready_at
    }

    fn check_remote(&mut self, tag: Tag, access: &Access) -> Poll<Result<(), AccessDenied>> {
        assert!(self.is_ready());
        let answer = at_once(self.engine.check_remote(tag, access));
        self.think(tag, access.target.qpn, Answer::Access(answer))
    }

    fn take_receive(
        &mut self,
        tag: Tag,
        target: Target,
    ) -> Poll<Result<TakenReceive, ReceiveError>> {
        assert!(self.is_ready());
        let answer = at_once(self.engine.take_receive(tag, target));
        self.think(tag, target.qpn, Answer::Receive(answer))
    }

    fn carries_payload(&self) -> bool {
        self.pace.borrow().carries
    }

    fn locate(&mut self, wanted: &Wanted, pieces: &mut Vec<Piece>) -> Result<(), Unreachable> {
        self.engine.locate(wanted, pieces)?;
        if self.pace.borrow().lie == Some(Lie::Short) {
            pieces.pop();
        }
        Ok(())
    }

    fn place(&mut self, tag: Tag, wanted: &Wanted, bytes: &[u8]) -> Poll<Result<(), Unreachable>> {
        assert!(self.is_ready() && wanted.length as usize == bytes.len());
        let placed = self.pieces(wanted).map(|pieces| {
            let mut rest = bytes;
            for (mapping, offset, length) in pieces {
                let (here, behind) = rest.split_at(length);
                mapping.write_bytes(offset, here).unwrap();
                rest = behind;
            }
        });
        if self.pace.borrow().thinks == 0 {
            return Poll::Ready(placed);
        }
        self.think(tag, wanted.qpn, Answer::Placed(placed))
    }

    fn fetch(
        &mut self,
        tag: Tag,
        wanted: &Wanted,
        into: &mut [u8],
    ) -> Poll<Result<(), Unreachable>> {
        assert!(self.is_ready() && wanted.length as usize == into.len());
        let fetched = self.pieces(wanted).map(|pieces| {
            let mut all = Vec::new();
            for (mapping, offset, length) in pieces {
                let mut bytes = vec![0; length];
                mapping.read_bytes(offset, &mut bytes).unwrap();
                all.extend(bytes);
            }
            all
        });
        if self.pace.borrow().thinks == 0 {
            return Poll::Ready(fetched.map(|bytes| into.copy_from_slice(&bytes)));
        }
        // The rest there has no meaning.
        into.fill(0xee);
        self.think(tag, wanted.qpn, Answer::Fetched(fetched))
    }

    fn take_event(&mut self, now: u64, event: Event, ports: &mut Ports<'_>) {
        assert!(self.is_ready());
        self.pace.borrow_mut().said.push(Said::Heard);
        self.engine.take_event(now, event, ports);
    }

    fn poll_answer(&mut self) -> Option<(Tag, Answer)> {
        let due = self.answers.iter().rposition(|(due, ..)| *due <= self.now)?;
        let (_, tag, answer) = self.answers.remove(due);
        self.pace.borrow_mut().said.push(Said::Answered(tag));
        Some((tag, answer))
    }
}

/// Logic that is no engine: a register, and the record of its calls.
#[derive(Clone, Default)]
struct Dummy(Rc<RefCell<DummyState>>);

#[derive(Default)]
struct DummyState {
    register: u64,
    notify: Option<u32>,
    cycles: u32,
    resets: u32,
    /// Made of a QPN that is not its own.
    refused: Option<roce::Error>,
}

impl Logic for Dummy {
    fn read_register(&self, _: u64, offset: u64) -> u64 {
        if offset == 0 { self.0.borrow().register } else { 0 }
    }

    fn write_register(&mut self, _: u64, _: u64, value: u64, ports: &mut Ports<'_>) {
        let mut state = self.0.borrow_mut();
        state.register = value;
        state.notify = Some(value as u32);
        let of_the_engine = Qpn::new(u32::from(WINDOW) << 20 | 5).unwrap();
        state.refused = ports.create_qp(of_the_engine, roce::Service::Rc, 1).err();
    }

    fn reset(&mut self, _: &mut Ports<'_>) {
        self.0.borrow_mut().resets += 1;
    }

    fn lost_memory(&mut self, _: u64, _: &mut Ports<'_>) {}

    fn work(&mut self, _: u64, _: &mut Ports<'_>) -> bool {
        self.0.borrow_mut().cycles += 1;
        false
    }

    fn take_notify(&mut self) -> Option<u32> {
        self.0.borrow_mut().notify.take()
    }

    fn check_remote(&mut self, _: Tag, _: &Access) -> Poll<Result<(), AccessDenied>> {
        panic!("it has no QPs");
    }

    fn take_receive(&mut self, _: Tag, _: Target) -> Poll<Result<TakenReceive, ReceiveError>> {
        panic!("it has no QPs");
    }

    fn take_event(&mut self, _: u64, _: Event, _: &mut Ports<'_>) {
        panic!("it has no QPs");
    }
}

fn bytes(n: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 251) as u8 ^ at as u8 ^ n as u8).collect()
}

/// Whether an answer for one QP was given before one that was asked for earlier for another.
fn out_of_order(said: &[Said]) -> bool {
    let qpn_of = |tag: Tag| {
        said.iter().find_map(|it| match it {
            Said::Asked(asked, qpn) if *asked == tag => Some(*qpn),
            _ => None,
        })
    };
    let answered = said.iter().filter_map(|it| match it {
        Said::Answered(tag) => Some(*tag),
        _ => None,
    });
    let answered: Vec<Tag> = answered.collect();
    answered.windows(2).any(|pair| pair[0] > pair[1] && qpn_of(pair[0]) != qpn_of(pair[1]))
}

const QPS: usize = 4;
const LENGTHS: [usize; 3] = [1, 1024, 5_000];

/// Messages of every kind on several QPs at once, and where they end up.
fn exchange(pair: &mut Pair) {
    for (round, length) in (0..).zip(LENGTHS) {
        for opcode in [SendOpcode::Write, SendOpcode::Send, SendOpcode::Read] {
            let at = |base: u64, qp: usize| base + 0x2000 * qp as u64;
            for qp in 0..QPS {
                let Pair { one, other, .. } = pair;
                one.write(at(MEMORY, qp), &bytes(qp + round, length));
                if opcode == SendOpcode::Read {
                    other.write(at(REGION, qp), &bytes(100 + qp, length));
                }
                if opcode == SendOpcode::Send {
                    other.post_receive(at(MEMORY, qp), length as u32);
                }
                one.remote = at(VA, qp);
                one.post_from(at(MEMORY, qp), opcode, length as u32, other.rkey);
                pair.drive_next();
            }
            pair.work();
            for qp in 0..QPS {
                let Pair { one, other, .. } = pair;
                assert_eq!(one.poll().unwrap().status, Status::Success, "{opcode:?} {length}");
                let (found, expected) = match opcode {
                    SendOpcode::Write => (other.read(at(REGION, qp), length), qp + round),
                    SendOpcode::Send => {
                        assert_eq!(other.poll().unwrap().byte_count, length as u32);
                        (other.read(at(MEMORY, qp), length), qp + round)
                    }
                    _ => (one.read(at(MEMORY, qp), length), 100 + qp),
                };
                assert!(found == bytes(expected, length), "{opcode:?} {length} of QP {qp}");
                pair.drive_next();
            }
        }
    }
}

/// All QPs add to one word, and each swaps the word it finds for one of its own, with WRITEs around.
fn count_up(pair: &mut Pair) {
    const TURNS: usize = 3;
    pair.other.write(REGION, &[0; 64]);
    for turn in 0..TURNS {
        for qp in 0..QPS {
            let Pair { one, other, .. } = &mut *pair;
            let own = 8 * (1 + qp as u64);
            let at = |number: u64| MEMORY + 0x2000 * qp as u64 + 8 * (4 * turn as u64 + number);
            one.write(at(0), &(10 * turn as u64).to_ne_bytes());
            one.remote = VA + own;
            one.post_from(at(0), SendOpcode::Write, 8, other.rkey);
            one.post_atomic(at(1), SendOpcode::CompareSwap, [99, 10 * turn as u64], other.rkey);
            one.post_atomic(at(2), SendOpcode::CompareSwap, [98, 97], other.rkey);
            one.remote = VA;
            one.post_atomic(at(3), SendOpcode::FetchAdd, [1, 0], other.rkey);
            pair.drive_next();
        }
    }
    pair.work();
    let mut found = Vec::new();
    for qp in 0..QPS {
        let Pair { one, other, .. } = &mut *pair;
        for _ in 0..4 * TURNS {
            assert_eq!(one.poll().unwrap().status, Status::Success);
        }
        let word = |bytes: Vec<u8>| u64::from_ne_bytes(bytes.try_into().unwrap());
        let result = |turn: usize, number: u64| {
            word(one.read(MEMORY + 0x2000 * qp as u64 + 8 * (4 * turn as u64 + number), 8))
        };
        for turn in 0..TURNS {
            assert_eq!((result(turn, 1), result(turn, 2)), (10 * turn as u64, 99));
            found.push(result(turn, 3));
        }
        assert_eq!(word(other.read(REGION + 8 * (1 + qp as u64), 8)), 99);
        pair.drive_next();
    }
    found.sort_unstable();
    assert_eq!(found, (0..(QPS * TURNS) as u64).collect::<Vec<_>>());
    assert_eq!(pair.other.read(REGION, 8), ((QPS * TURNS) as u64).to_ne_bytes());
}

#[test]
fn messages_pass_though_logic_answers_late_and_in_another_order_than_asked() {
    for (thinks, carries) in
        [(1_000, false), (7_000, false), (40_000, false), (0, true), (1_000, true), (40_000, true)]
    {
        for slow in [[true, false], [false, true], [true, true]] {
            let mut pair = Pair::with_qps(QPS);
            let cards = [&mut pair.one.card, &mut pair.other.card];
            let paces = cards.into_iter().zip(slow).filter(|(_, slow)| *slow);
            let pace = || Pace { thinks, carries, ..Pace::default() };
            let paces: Vec<_> = paces.map(|(card, _)| Slow::around(card, pace())).collect();
            exchange(&mut pair);
            if !(carries && slow[1]) {
                count_up(&mut pair);
            }
            for pace in paces {
                let said = &pace.borrow().said;
                // The requester's is asked for payload alone.
                let is_asked = said.iter().any(|it| matches!(it, Said::Asked(..)));
                assert!(
                    is_asked || thinks == 0 || !carries && slow[0],
                    "{thinks} {carries} {slow:?}"
                );
                let is_mixed = thinks <= 1_000 || out_of_order(said);
                assert!(is_mixed || !is_asked, "{thinks} {carries} {slow:?}");
            }
            // Nobody had to say anything twice.
            for card in [&pair.one.card, &pair.other.card] {
                let counters = card.network.stack.counters();
                assert_eq!((counters.retransmitted_pkts, counters.send_rnr_err), (0, 0));
                assert!(card.network.decisions.is_empty() && card.scratch.held.is_empty());
                assert!(card.network.waits.is_empty());
            }
        }
    }
}

#[test]
fn an_atomic_on_memory_behind_logic_that_carries_payload_is_refused() {
    let mut pair = Pair::new();
    Slow::around(&mut pair.other.card, Pace { carries: true, ..Pace::default() });
    let rkey = pair.other.rkey;
    pair.one.post_atomic(MEMORY, SendOpcode::FetchAdd, [1, 0], rkey);
    pair.work();
    assert_eq!(pair.one.poll().unwrap().status, Status::RemoteOperation);
}

#[test]
fn what_meets_logic_that_is_not_ready_waits_for_it_and_no_longer() {
    for carries in [false, true] {
        let mut pair = Pair::with_qps(QPS);
        let pace = || Pace { thinks: 3_000, carries, ..Pace::default() };
        let paces =
            [&mut pair.one.card, &mut pair.other.card].map(|card| Slow::around(card, pace()));
        for (turn, pace) in [0, 1, 0, 1].into_iter().map(|number| &paces[number]).enumerate() {
            let ready_at = pair.one.now.max(pair.other.now) + 200_000;
            pace.borrow_mut().ready_at = ready_at;
            let before = pace.borrow().said.len();
            for opcode in [SendOpcode::Write, SendOpcode::Read] {
                pair.one.post_from(MEMORY, opcode, 3_000, pair.other.rkey);
            }
            for _ in 0..20 {
                for Rig { card, now, .. } in [&mut pair.one, &mut pair.other] {
                    *now += 1_000;
                    card.round(*now);
                }
            }
            assert_eq!(pace.borrow().said.len(), before, "turn {turn}: it was not ready");
            assert!(pair.one.poll().is_none());
            pair.work();
            assert!(pair.one.now >= ready_at);
            for _ in 0..2 {
                assert_eq!(pair.one.poll().unwrap().status, Status::Success);
            }
        }
        assert!(paces[0].borrow().said.contains(&Said::Heard));
        assert_eq!(pair.one.card.network.stack.counters().retransmitted_pkts, 0);
    }
}

#[test]
fn a_queue_pair_that_waits_for_a_decision_holds_up_no_other() {
    let mut pair = Pair::with_qps(2);
    let silent: Silence = Box::new(|_, answer| matches!(answer, Answer::Receive(_)));
    let pace = Pace { thinks: 1_000, silent: Some(silent), ..Pace::default() };
    Slow::around(&mut pair.other.card, pace);
    pair.other.post_receive(MEMORY, 1_000);
    pair.one.post_from(MEMORY, SendOpcode::Send, 1_000, 0);
    pair.work();
    assert!(pair.one.poll().is_none());
    assert_eq!(pair.other.card.scratch.held.len(), 1);
    pair.drive_next();
    for _ in 0..10 {
        assert_eq!(pair.carry(SendOpcode::Write, 5_000).unwrap().status, Status::Success);
    }
    // Once it is gone, nothing of it waits any more, and an answer to nothing is none.
    pair.drive_next();
    pair.other.destroy();
    pair.work();
    let Network { decisions, unheard, .. } = &mut pair.other.card.network;
    assert!(decisions.is_empty() && unheard.is_empty());
    for answer in [Answer::Access(Ok(())), Answer::Placed(Err(Unreachable))] {
        decisions.decide(WINDOW.into(), Tag(0), &answer);
    }
    assert_eq!(pair.other.card.scratch.held.len(), 0);
    pair.drive_next();
    assert_eq!(pair.carry(SendOpcode::Write, 5_000).unwrap().status, Status::Success);
}

#[test]
fn frames_that_wait_for_a_decision_have_an_end() {
    // Each sends as much as its window lets it.
    let mut pair = Pair::with_qps(6);
    let silent: Silence = Box::new(|_, answer| matches!(answer, Answer::Access(_)));
    let pace = Pace { silent: Some(silent), ..Pace::default() };
    Slow::around(&mut pair.other.card, pace);
    for _ in 0..6 {
        for _ in 0..12 {
            pair.one.post_from(MEMORY, SendOpcode::Write, 0x1_0000, pair.other.rkey);
        }
        pair.drive_next();
    }
    pair.work();
    assert_eq!(pair.other.card.scratch.held.len(), HELD);
    pair.other.reset_logic();
    pair.work();
    let card = &pair.other.card;
    assert!(card.scratch.held.is_empty() && card.network.decisions.is_empty());
}

#[test]
fn frames_that_wait_leave_a_place_to_what_other_queue_pairs_are_asked() {
    let mut pair = Pair::with_qps(7);
    let free = Qpn::new(pair.other.qpn).unwrap();
    let silent: Silence =
        Box::new(move |qpn, answer| qpn != free && matches!(answer, Answer::Access(_)));
    let pace = Pace { thinks: 1_000, silent: Some(silent), ..Pace::default() };
    Slow::around(&mut pair.other.card, pace);
    for _ in 0..6 {
        pair.drive_next();
        for _ in 0..12 {
            pair.one.post_from(MEMORY, SendOpcode::Write, 0x1_0000, pair.other.rkey);
        }
    }
    pair.work();
    assert_eq!(pair.other.card.scratch.held.len(), HELD);
    pair.drive_next();
    assert_eq!(pair.other.qpn, free.value());
    assert_eq!(pair.carry(SendOpcode::Write, 1_000).unwrap().status, Status::Success);
}

/// A selection of answers.
type Of = fn(&Answer) -> bool;

/// The card whose logic is silent, the message, the question that is not answered, and the status of the message then.
const SILENCES: [(usize, SendOpcode, Of, Status); 6] = [
    (1, SendOpcode::Write, |it| matches!(it, Answer::Placed(_)), Status::RemoteOperation),
    (0, SendOpcode::Write, |it| matches!(it, Answer::Fetched(_)), Status::LocalProtection),
    (1, SendOpcode::Read, |it| matches!(it, Answer::Fetched(_)), Status::RemoteOperation),
    (0, SendOpcode::Read, |it| matches!(it, Answer::Placed(_)), Status::LocalProtection),
    (1, SendOpcode::Write, |it| matches!(it, Answer::Access(_)), Status::RemoteAccess),
    (1, SendOpcode::Send, |it| matches!(it, Answer::Receive(_)), Status::RemoteOperation),
];

/// Two QPs, of which the first one's logic says nothing to some question, and the message that waits for it.
fn silence(which: usize, opcode: SendOpcode, what: Of) -> Pair {
    let mut pair = Pair::with_qps(2);
    let qpn = Qpn::new([pair.one.qpn, pair.other.qpn][which]).unwrap();
    let silent: Silence = Box::new(move |of, answer| of == qpn && what(answer));
    let pace = Pace { thinks: 1_000, carries: true, silent: Some(silent), ..Pace::default() };
    Slow::around(&mut [&mut pair.one, &mut pair.other][which].card, pace);
    pair.other.post_receive(MEMORY, 5_000);
    assert!(pair.carry(opcode, 5_000).is_none());
    pair
}

#[test]
fn a_queue_pair_whose_logic_is_silent_fails_alone_after_a_while() {
    for (which, opcode, what, status) in SILENCES {
        let mut pair = silence(which, opcode, what);
        pair.drive_next();
        let goes_on = |pair: &mut Pair| {
            for opcode in [SendOpcode::Write, SendOpcode::Read] {
                assert_eq!(pair.carry(opcode, 5_000).unwrap().status, Status::Success);
            }
        };
        (0..5).for_each(|_| goes_on(&mut pair));
        let card = &mut [&mut pair.one, &mut pair.other][which].card;
        assert!(!card.network.waits.is_empty() || !card.network.decisions.is_empty());
        // The card wakes up for it by itself.
        let due = card.next_timeout().unwrap();
        assert!(due <= pair.one.now + PATIENCE);
        pair.one.now += PATIENCE;
        pair.other.now += PATIENCE;
        pair.work();
        pair.drive_next();
        assert_eq!(pair.one.poll().unwrap().status, status, "{which} {opcode:?}");
        let card = &[&pair.one, &pair.other][which].card;
        assert!(card.network.waits.is_empty() && card.scratch.held.is_empty());
        assert!(card.network.waits.unanswered > 0);
        pair.drive_next();
        goes_on(&mut pair);
    }
}

#[test]
fn logic_that_is_silent_is_reset_and_the_card_goes_on() {
    for (which, opcode, what, _) in SILENCES {
        let mut pair = silence(which, opcode, what);
        let rig = if which == 0 { &mut pair.one } else { &mut pair.other };
        rig.reset_logic();
        pair.work();
        for card in [&pair.one.card, &pair.other.card] {
            assert_eq!(card.scratch.underway, Underway::Nothing);
            assert!(card.network.waits.is_empty() && card.network.decisions.is_empty());
        }
    }
}

#[test]
fn a_queue_pair_that_ends_while_its_logic_thinks_takes_nothing_with_it() {
    for (which, opcode, what, _) in SILENCES {
        let mut pair = silence(which, opcode, what);
        let rig = if which == 0 { &mut pair.one } else { &mut pair.other };
        rig.destroy();
        pair.work();
        let card = &[&pair.one, &pair.other][which].card;
        assert!(card.network.waits.is_empty() && card.network.decisions.is_empty());
        pair.drive_next();
        assert_eq!(pair.carry(SendOpcode::Write, 5_000).unwrap().status, Status::Success);
    }
}

/// RC-83.
#[test]
fn what_logic_gives_for_a_queue_pair_in_error_is_not_sent() {
    for (which, opcode) in [(0, SendOpcode::Write), (1, SendOpcode::Read)] {
        let mut pair = Pair::new();
        let pace = Pace { thinks: 1_000, carries: true, ..Pace::default() };
        let pace = Slow::around(&mut [&mut pair.one, &mut pair.other][which].card, pace);
        pair.one.post_from(MEMORY, opcode, 1_000, pair.other.rkey);
        // Until it is asked for the payload.
        while [&pair.one, &pair.other][which].card.network.waits.is_empty() {
            for Rig { card, now, .. } in [&mut pair.one, &mut pair.other] {
                *now += 1_000;
                card.round(*now);
            }
        }
        let before = pace.borrow().said.len();
        let rig = if which == 0 { &mut pair.one } else { &mut pair.other };
        let (mask, state) = (AttributeMask::STATE, State::Err);
        rig.modify(&Attributes { mask, state, ..Attributes::default() });
        assert_eq!(rig.state(), roce::QpState::Err);
        pair.work();
        assert!(pace.borrow().said[before..].iter().any(|it| matches!(it, Said::Answered(_))));
        let peer = if which == 0 { &pair.other } else { &pair.one };
        assert_eq!(peer.card.network.stack.counters().rcvd_pkts, 0, "{opcode:?}");
        assert!([&pair.one, &pair.other][which].card.network.waits.is_empty());
    }
}

#[test]
fn answers_that_make_no_sense_change_nothing_or_fail_their_own_queue_pair() {
    for (which, lie, carries, ends) in [
        (1, Lie::Twice, true, [Status::Success, Status::Success]),
        (0, Lie::Twice, true, [Status::Success, Status::Success]),
        (0, Lie::Short, true, [Status::LocalProtection, Status::Success]),
        (1, Lie::Short, true, [Status::Success, Status::RemoteOperation]),
        (0, Lie::Short, false, [Status::LocalProtection, Status::LocalProtection]),
        (1, Lie::Short, false, [Status::RemoteOperation, Status::RemoteOperation]),
        (0, Lie::OfAnotherKind, true, [Status::LocalProtection, Status::LocalProtection]),
        (1, Lie::OfAnotherKind, true, [Status::RemoteOperation, Status::RemoteOperation]),
    ] {
        for (opcode, end) in [SendOpcode::Write, SendOpcode::Read].into_iter().zip(ends) {
            let mut pair = Pair::with_qps(2);
            let pace = Pace { thinks: 1_000, carries, lie: Some(lie), ..Pace::default() };
            let pace = Slow::around(&mut [&mut pair.one, &mut pair.other][which].card, pace);
            let mut done = pair.carry(opcode, 5_000);
            if done.is_none() {
                pair.one.now += PATIENCE;
                pair.other.now += PATIENCE;
                pair.work();
                done = pair.one.poll();
            }
            assert_eq!(done.unwrap().status, end, "{which} {lie:?} {carries} {opcode:?}");
            pace.borrow_mut().lie = None;
            pair.drive_next();
            assert_eq!(pair.carry(opcode, 5_000).unwrap().status, Status::Success);
        }
    }
}

/// What logic holds up has had its turn, and services work on all of it once the logic is ready.
#[test]
fn services_pay_for_the_time_of_what_logic_has_held_up() {
    let mut pair = pair_with(Some(Stages { act: true, ..Stages::default() }));
    let pace = Slow::around(&mut pair.other.card, Pace { ready_at: u64::MAX, ..Pace::default() });
    pair.drive_next();
    pair.one.post_from(MEMORY, SendOpcode::Write, 3_000, pair.other.rkey);
    while pair.other.card.scratch.held.len() < 3 {
        pair.step();
    }
    pace.borrow_mut().ready_at = 0;
    pair.other.card.network.time.note_other();
    while !pair.other.card.scratch.held.is_empty() {
        pair.step();
    }
    pair.other.card.network.time.note_other();
    pair.one.post_from(MEMORY, SendOpcode::Write, 1_000, pair.other.rkey);
    let waits = (0..5).any(|_| {
        pair.step();
        pair.other.card.network.turns.borrow().is_waiting(pair.other.qpn)
    });
    assert!(waits);
}

#[test]
fn a_card_has_an_engine_in_one_vfpga_and_other_logic_in_another() {
    const OTHER: u8 = 2;
    let mut pair = Pair::new();
    let dummy = Dummy::default();
    let state = Rc::clone(&dummy.0);
    pair.other.card.vfpgas[usize::from(OTHER)].logic = Occupant::Other(Box::new(dummy));
    let register = user_register(OTHER, 0);
    let card = &mut pair.other.card;
    card.write(0, Bar::Shell, register, 8, 77);
    assert_eq!(card.read(0, Bar::Shell, register, 8), 77);
    assert_eq!(card.vfpgas[usize::from(OTHER)].control.isr.counts[2], 1, "it has notified");
    assert!(state.borrow().refused.is_some(), "a QP of another vFPGA is none of its own");
    for length in [1, 5_000] {
        pair.one.write(MEMORY, &bytes(3, length));
        assert_eq!(pair.carry(SendOpcode::Write, length as u32).unwrap().status, Status::Success);
        assert_eq!(pair.other.read(REGION, length), bytes(3, length));
    }
    let cycles = state.borrow().cycles;
    assert!(cycles > 0);
    // Cut off it has no clock, and its registers read as ones; reset, it alone is.
    let card = &mut pair.other.card;
    let bits = Datapath { decouple: 1 << OTHER, reset: 1 << OTHER }.encode();
    let map = card.shell.map;
    card.write(0, Bar::Shell, shell::DATAPATH_SET.at(map), 8, bits);
    card.write(0, Bar::Shell, register, 8, 78);
    assert_eq!(card.read(0, Bar::Shell, register, 8), u64::MAX);
    assert_eq!(pair.carry(SendOpcode::Write, 5_000).unwrap().status, Status::Success);
    assert_eq!((state.borrow().cycles, state.borrow().resets), (cycles, 1));
    let card = &mut pair.other.card;
    card.write(0, Bar::Shell, shell::DATAPATH_CLEAR.at(map), 8, bits);
    assert_eq!(card.read(0, Bar::Shell, register, 8), 77);
    card.reset();
    assert_eq!(state.borrow().resets, 2);
}

/// Connects the queue engine's QP with one of the other logic in another vFPGA, as that card's driver would.
fn meet(pair: &mut Pair, vfpga: u8) -> Qpn {
    pair.one.make_another();
    let Rig { card, now, .. } = &mut pair.other;
    let register = |offset| user_register(vfpga, offset);
    let gid = MacAddr(OWN).link_local().octets();
    let [low, high] =
        [&gid[..8], &gid[8..]].map(|half| u64::from_le_bytes(half.try_into().unwrap()));
    let peer = pair.one.qpn.into();
    for (offset, value) in [(0x08, peer), (0x10, low), (0x18, high), (0x20, 1)] {
        card.write(*now, Bar::Shell, register(offset), 8, value);
    }
    assert_eq!(card.read(*now, Bar::Shell, register(0x20), 8), 1, "it is connected");
    let qpn = card.read(*now, Bar::Shell, register(0), 8) as u32;
    pair.one.connect(PEER, qpn);
    Qpn::new(qpn).unwrap()
}

#[test]
fn logic_of_another_crate_has_queue_pairs_of_its_own_beside_an_engines() {
    const ECHO: u8 = 2;
    let mut pair = Pair::new();
    pair.other.card.vfpgas[usize::from(ECHO)].logic = Occupant::Other(echo::Echo::make(ECHO));
    let qpn = meet(&mut pair, ECHO);
    let back = MEMORY + 0x1_0000;
    for length in [1, 1024, 5_000, 0x1_0000] {
        // The logic echoes the messages to it, and the engine's own QPs carry on.
        pair.one.write(MEMORY, &bytes(9, length));
        pair.one.post_receive(back, length as u32);
        pair.one.post_from(MEMORY, SendOpcode::Send, length as u32, 0);
        pair.one.drive_next();
        assert_eq!(pair.carry(SendOpcode::Write, 5_000).unwrap().status, Status::Success);
        pair.one.drive_next();
        let done = pair.one.poll_all();
        assert_eq!(done.iter().map(|cqe| cqe.status).collect::<Vec<_>>(), [Status::Success; 2]);
        assert!(pair.one.read(back, length) == bytes(9, length), "{length}");
    }
    // Nobody reaches memory there.
    assert_eq!(pair.carry(SendOpcode::Write, 8).unwrap().status, Status::RemoteInvalidRequest);
    // Without its logic there is no QP.
    assert!(pair.other.card.network.stack.query_qp(qpn).is_some());
    pair.other.card.load_into(ECHO.into(), None);
    assert!(pair.other.card.network.stack.query_qp(qpn).is_none());
    pair.one.drive_next();
    assert_eq!(pair.carry(SendOpcode::Write, 5_000).unwrap().status, Status::Success);
}
