//! Services that need much time, and neighbours on the card, by a clock that only the services move.

use std::cell::Cell;

use ::services::{
    About, Budget, Chain, Halt, Operations, PacketService, Part, Placing, Selector, Stages, limit,
};
use fpga_regs::engine::wqe::SendOpcode;

use super::pair::{MEMORY, Pair};
use super::rig::REGION;
use super::*;

/// The units of work of a service just under its budget, and the nanoseconds of one.
const MOST: u32 = limit::WORK - 1;
const UNIT: u64 = 5;
/// The time of a test, in which services and neighbour have many turns.
const TIME: u64 = 30_000_000;
/// Bytes of a message: three packets.
const BYTES: usize = 3000;

std::thread_local! {
    static CLOCK: Cell<u64> = const { Cell::new(0) };
    /// How long services work on a packet.
    static PACKET: Cell<u64> = const { Cell::new(MOST as u64 * UNIT) };
}

/// Takes nearly all of its budget for each packet at one of the stages.
#[derive(Debug)]
struct Busy(About);

impl Busy {
    fn chain(stages: Stages) -> Chain {
        let about = About {
            name: "busy".into(),
            summary: "works as long as it may".into(),
            stages,
            operations: Operations::ALL,
            takes: None,
            gives: None,
            check_state: 0,
            act_state: 0,
            work: limit::WORK,
        };
        Chain::new(vec![Arc::new(Self(about))]).unwrap()
    }

    fn work(budget: &mut Budget) -> Result<(), Halt> {
        CLOCK.set(CLOCK.get() + PACKET.get());
        budget.spend(MOST)
    }
}

impl PacketService for Busy {
    fn about(&self) -> &About {
        &self.0
    }

    fn act(
        &self,
        _: &Part,
        _: &mut Placing<'_>,
        _: &mut [u8],
        budget: &mut Budget,
    ) -> Result<(), Halt> {
        Self::work(budget)
    }

    fn transform(&self, _: &Part, payload: &mut [u8], budget: &mut Budget) -> Result<(), Halt> {
        payload.iter_mut().for_each(|byte| *byte = !*byte);
        Self::work(budget)
    }
}

/// Two cards with a queue pair that has the services, on the card that takes or the one that sends, and a neighbour of it,
/// which is driven first.
pub(super) fn pair_with(stages: Option<Stages>) -> Pair {
    let mut pair = Pair::new();
    pair.one.make_another();
    pair.other.make_another();
    for rig in [&mut pair.one, &mut pair.other] {
        rig.card.network.clock = || CLOCK.get();
    }
    if let Some(stages) = stages {
        let rig = if stages.transform { &mut pair.one } else { &mut pair.other };
        let qpn = rig.qpn;
        rig.card.network.attach(Selector::Qp(qpn), Busy::chain(stages)).unwrap();
    }
    pair.one.connect(PEER, pair.other.qpn);
    pair.other.connect(OWN, pair.one.qpn);
    pair.drive_next();
    pair
}

/// Moves messages, of which one is under way on each of both queue pairs; their numbers on the first and the second.
fn messages(pair: &mut Pair) -> [u64; 2] {
    let (mut done, mut posted) = ([0; 2], [false; 2]);
    let begun = pair.one.now;
    while pair.one.now < begun + TIME {
        for (done, posted) in done.iter_mut().zip(&mut posted) {
            if let Some(completion) = pair.one.poll() {
                assert_eq!(completion.status, Status::Success);
                *done += 1;
                *posted = false;
            }
            if !std::mem::replace(posted, true) {
                pair.one.post_from(MEMORY, SendOpcode::Write, BYTES as u32, pair.other.rkey);
            }
            pair.drive_next();
        }
        step(pair);
    }
    done
}

/// Lets both cards work once, for as long as their services need.
fn step(pair: &mut Pair) {
    let before = CLOCK.get();
    pair.step();
    for rig in [&mut pair.one, &mut pair.other] {
        rig.now += CLOCK.get() - before;
    }
}

#[test]
fn a_message_arrives_for_whose_packets_services_need_longer_than_a_timeout() {
    PACKET.set(100_000_000);
    let mut pair = pair_with(Some(Stages { act: true, ..Stages::default() }));
    pair.drive_next();
    pair.one.post_from(MEMORY, SendOpcode::Write, 10 * BYTES as u32, pair.other.rkey);
    let completion = loop {
        match pair.one.poll() {
            Some(completion) => break completion,
            None => step(&mut pair),
        }
    };
    assert_eq!(completion.status, Status::Success);
    // It hears of each packet, and so waits for one at a time.
    assert_eq!(pair.one.card.network.stack.counters().retransmitted_pkts, 0);
}

#[test]
fn services_just_under_their_budget_leave_a_neighbour_more_than_half() {
    let [alone, _] = messages(&mut pair_with(None));
    let act = Stages { act: true, ..Stages::default() };
    let transform = Stages { transform: true, ..Stages::default() };
    for stages in [act, transform] {
        let mut pair = pair_with(Some(stages));
        pair.one.write(MEMORY, &[0x0f; BYTES]);
        let [beside, served] = messages(&mut pair);
        assert!(2 * beside > alone, "{beside} of {alone} beside {served} of {stages:?}");
        // They have the third of the time that is left to them.
        let worked = 3 * served * u64::from(MOST) * UNIT;
        assert!(worked > TIME / 4, "{served} of {stages:?}");
        let byte = if stages.transform { 0xf0 } else { 0x0f };
        let found = pair.other.read(REGION, BYTES);
        assert!(found.iter().all(|it| [byte, 0x0f].contains(it)));
    }
}

#[test]
fn what_waits_for_services_that_are_detached_comes_in_its_order() {
    let act = Stages { act: true, ..Stages::default() };
    let mut pair = pair_with(Some(act));
    pair.drive_next();
    let bytes: Vec<u8> = (0..10 * BYTES).map(|at| (at / 100) as u8).collect();
    pair.one.write(MEMORY, &bytes);
    for length in [BYTES, bytes.len()] {
        pair.one.post_from(MEMORY, SendOpcode::Write, length as u32, pair.other.rkey);
    }
    let is_waiting =
        |pair: &Pair| pair.other.card.network.turns.borrow().is_waiting(pair.other.qpn);
    while !is_waiting(&pair) {
        pair.step();
    }
    let to = Selector::Qp(pair.other.qpn);
    // The first message has begun, and keeps them to its end.
    pair.other.card.network.detach(to, true).unwrap();
    pair.work();
    let done = pair.one.poll_all();
    assert!(done.len() == 2 && done.iter().all(|it| it.status == Status::Success), "{done:?}");
    assert!(pair.other.card.network.attached().is_empty());
    assert!(pair.other.read(REGION, bytes.len()) == bytes);
    let counters = pair.other.card.network.stack.counters();
    assert_eq!((counters.out_of_sequence, is_waiting(&pair)), (0, false));
}

#[test]
fn a_queue_pair_that_ends_leaves_nothing_that_waits() {
    let act = Stages { act: true, ..Stages::default() };
    for is_reset in [false, true] {
        let mut pair = pair_with(Some(act));
        pair.drive_next();
        pair.one.post_from(MEMORY, SendOpcode::Write, 10 * BYTES as u32, pair.other.rkey);
        while pair.other.card.network.turns.borrow().next_timeout().is_none() {
            pair.step();
        }
        match is_reset {
            true => pair.other.reset_logic(),
            false => pair.other.destroy(),
        }
        assert_eq!(pair.other.card.network.turns.borrow().next_timeout(), None, "{is_reset}");
    }
}
