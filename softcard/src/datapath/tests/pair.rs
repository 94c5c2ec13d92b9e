//! Two cards on one cable, and whole messages between them.

use fpga_regs::engine::cqe::Cqe;
use fpga_regs::engine::wqe::SendOpcode;
use std::collections::VecDeque;

use super::rig::{REGION, Rig};
use super::*;
use crate::congestion::Reaction;

/// Where messages are sent from, or taken to.
pub(super) const MEMORY: u64 = REGION + 0x2_0000;
/// Rounds after which nothing more is expected.
const ROUNDS: usize = 10_000;
/// Nanoseconds that nothing but logic waits for.
const SOON: u64 = 1_000_000;

type Queue = Rc<RefCell<VecDeque<Frame>>>;

/// One end of a cable.
struct End {
    out: Queue,
    into: Queue,
}

impl Port for End {
    fn send(&mut self, _now: u64, burst: &mut VecDeque<Frame>) {
        self.out.borrow_mut().append(burst);
    }

    fn receive(&mut self, _now: u64, into: &mut VecDeque<Frame>, budget: usize) {
        let mut arrived = self.into.borrow_mut();
        let count = arrived.len().min(budget);
        into.extend(arrived.drain(..count));
    }

    fn room(&self) -> usize {
        usize::MAX
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// Two cards whose QPs are connected.
pub(super) struct Pair {
    pub one: Rig,
    pub other: Rig,
    /// How often both have worked.
    pub rounds: usize,
}

impl Pair {
    /// Two cards with so many QPs each.
    pub fn with_qps(qps: usize) -> Self {
        Self::behind(qps, &Reaction::default(), |_, port, _| port)
    }

    /// The same with cards of this reaction to congestion, and a wrapper around each port.
    pub fn behind(
        qps: usize,
        reaction: &Reaction,
        put: impl Fn(usize, Box<dyn Port>, &FramePool) -> Box<dyn Port>,
    ) -> Self {
        let queues = [Queue::default(), Queue::default()];
        let pool = FramePool::new(1024);
        let card = |own, out: usize, into: usize| {
            let end = End { out: Rc::clone(&queues[out]), into: Rc::clone(&queues[into]) };
            Rig::reacting(own, put(out, Box::new(end), &pool), pool.clone(), reaction.clone())
        };
        let (mut one, mut other) = (card(OWN, 0, 1), card(PEER, 1, 0));
        for made in 1..=qps {
            one.connect(PEER, other.qpn);
            other.connect(OWN, one.qpn);
            if made < qps {
                one.make_another();
                other.make_another();
            }
        }
        let mut pair = Self { one, other, rounds: 0 };
        pair.drive_next();
        pair
    }

    pub fn new() -> Self {
        Self::with_qps(1)
    }

    /// Drives the next QP of both.
    pub fn drive_next(&mut self) {
        self.one.drive_next();
        self.other.drive_next();
    }

    /// Lets both cards work once; whether one had something to do.
    fn round(&mut self) -> bool {
        let mut worked = false;
        self.rounds += 1;
        for Rig { card, now, .. } in [&mut self.one, &mut self.other] {
            *now += 1_000;
            // A thread that is never kept from a processor.
            card.network.time.sleep();
            worked |= card.round(*now);
        }
        worked
    }

    /// Lets both cards work once, and where there is nothing to do time pass until there is.
    pub fn step(&mut self) {
        if !self.round() {
            let due = [&mut self.one, &mut self.other].map(|rig| rig.card.next_timeout());
            let now = due.into_iter().flatten().min().expect("nothing is due");
            (self.one.now, self.other.now) = (self.one.now.max(now), self.other.now.max(now));
        }
    }

    /// Lets both cards work until neither has anything to do for a while.
    pub fn work(&mut self) {
        for _ in 0..ROUNDS {
            if !self.round() && !self.sleep() {
                return;
            }
        }
        panic!("the cards find no end");
    }

    /// Lets time pass until a card has work; `false` if that is not soon.
    fn sleep(&mut self) -> bool {
        let now = self.one.now.max(self.other.now);
        let due = [&mut self.one, &mut self.other].map(|rig| rig.card.next_timeout());
        let Some(due) = due.into_iter().flatten().min().filter(|due| *due < now + SOON) else {
            return false;
        };
        (self.one.now, self.other.now) = (now.max(due), now.max(due));
        true
    }

    /// Lets the first card carry a message, and gives its completion there.
    pub fn carry(&mut self, opcode: SendOpcode, length: u32) -> Option<Cqe> {
        self.one.post_from(MEMORY, opcode, length, self.other.rkey);
        self.work();
        self.one.poll()
    }
}

#[test]
fn messages_pass_between_two_cards() {
    let bytes = |n: u8, length: usize| (0..length).map(|at| at as u8 ^ n).collect::<Vec<u8>>();
    for (n, length) in [(1, 1), (2, 1024), (3, 0x1_0000)] {
        let mut pair = Pair::new();
        pair.one.write(MEMORY, &bytes(n, length));
        assert_eq!(pair.carry(SendOpcode::Write, length as u32).unwrap().status, Status::Success);
        assert_eq!(pair.other.read(REGION, length), bytes(n, length));

        pair.other.write(REGION, &bytes(n + 10, length));
        assert_eq!(pair.carry(SendOpcode::Read, length as u32).unwrap().status, Status::Success);
        assert_eq!(pair.one.read(MEMORY, length), bytes(n + 10, length));

        pair.other.post_receive(MEMORY, length as u32);
        assert_eq!(pair.carry(SendOpcode::Send, length as u32).unwrap().status, Status::Success);
        assert_eq!(pair.other.read(MEMORY, length), bytes(n + 10, length));
        assert_eq!(pair.other.poll().unwrap().byte_count, length as u32);
    }
}
