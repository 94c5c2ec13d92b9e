use std::cell::RefCell;
use std::collections::HashSet;
use std::thread::sleep;

use fpga_regs::engine::doorbell::{Arm, ArmKind, SLOTS, SlotValue};

use super::*;

const BASE: u64 = 1 << 40;
const RING: u64 = 4096;

/// A card's end of the page that the relay rings, and of its wake-up.
struct Card {
    page: DoorbellPage,
    asleep: AsleepWord,
    wake: EventFd,
    /// The stored values when it was last awaited.
    seen: RefCell<HashMap<usize, u64>>,
}

/// A program's end of its grant.
struct Program {
    page: DoorbellPage,
    waker: Waker,
    rings: Arc<SharedMapping>,
}

fn mapping(fd: &OwnedFd, bytes: usize, access: Access) -> Arc<SharedMapping> {
    Arc::new(SharedMapping::new(fd.as_fd(), 0, bytes, access).unwrap())
}

/// A page that is granted, and the card that granted it.
fn granted() -> (Card, DoorbellGrant) {
    let page = memfd::create("page", PAGE_BYTES).unwrap();
    let (thread_page, words) = memfd::create_read_only_for_others("words", PAGE_BYTES).unwrap();
    let wake = EventFd::new().unwrap();
    let eventfd = wake.try_clone().unwrap().into_fd();
    let (asleep, liveness, worked) = (64, 128, 192);
    let card = Card {
        page: map_page(&page).unwrap(),
        asleep: AsleepWord::new(Arc::new(words), asleep as usize).unwrap(),
        wake,
        seen: RefCell::default(),
    };
    let wake = WakeGrant { eventfd, thread_page, asleep, liveness, worked };
    (card, DoorbellGrant::Page { page, wake })
}

fn relay() -> (Card, Relay) {
    let (card, grant) = granted();
    (card, Relay::start("test", &grant).unwrap())
}

fn join(relay: &mut Relay, number: u8) -> Program {
    let bytes = 1 << 20;
    let fd = memfd::create("rings", bytes).unwrap();
    let rings = mapping(&fd, bytes, Access::ReadWrite);
    let ours = ClientRings { memory: Arc::clone(&rings), iova: BASE };
    let grant = relay.join(number, ours).unwrap();
    let DoorbellGrant::Relay { page, words, relay } = grant else { panic!("{grant:?}") };
    assert_eq!((relay.liveness, relay.worked), (128, 192), "of the card's thread");
    let word =
        AsleepWord::new(mapping(&words, PAGE_BYTES, Access::ReadOnly), relay.asleep as usize);
    let waker = Waker::new(word.unwrap(), EventFd::from_received(relay.eventfd));
    Program { page: map_page(&page).unwrap(), waker, rings }
}

impl Program {
    fn record(&self, ring: u64) -> Record {
        Record::new(Arc::clone(&self.rings), ring as usize).unwrap()
    }

    /// Rings as a program does: the record, the slot, the wake-up.
    fn ring(&self, (kind, number): Name, ring: u64, index: u32) {
        self.record(ring).store_release_u32(record::PRODUCER / 4, index);
        self.page.ring(doorbell::slot(kind, number), slot_value(number, 0, index));
        self.waker.wake_if_asleep().unwrap();
    }
}

impl Card {
    fn read(&self, kind: QueueKind, number: u32) -> SlotValue {
        SlotValue::decode(self.page.read(doorbell::slot(kind, number)))
    }

    /// Waits for another store of a queue's.
    fn await_ring(&self, kind: QueueKind, number: u32, generation: u8) {
        let slot = doorbell::slot(kind, number);
        let mut seen = self.seen.borrow_mut();
        let seen = seen.entry(slot).or_default();
        let is_new = |value: u64| {
            let it = SlotValue::decode(value);
            value != *seen && (it.number, it.generation) == (number, generation)
        };
        eventually(|| is_new(self.page.read(slot)), || format!("{:?}", self.read(kind, number)));
        *seen = self.page.read(slot);
    }
}

fn eventually(mut come: impl FnMut() -> bool, seen: impl Fn() -> String) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !come() {
        assert!(Instant::now() < deadline, "it does not come: {}", seen());
        sleep(Duration::from_millis(1));
    }
}

fn bell() -> RelayBell {
    RelayBell { page: map_page(&memfd::create("page", PAGE_BYTES).unwrap()).unwrap(), stores: 0 }
}

/// A client without a thread, with so many queues.
fn client(queues: u32) -> (RelayedClient, Program) {
    let (_card, mut relay) = relay();
    let program = join(&mut relay, 16);
    let page = program.page.clone();
    let mut client =
        RelayedClient { page, wake: EventFd::new().unwrap(), slots: BTreeMap::new(), next: 0 };
    let mut nowhere = bell();
    for number in 0..queues {
        let record = program.record(u64::from(number) * 64);
        let name = (QueueKind::Send, number);
        client.add(Queue { name, generation: 0, record, told: None }, &mut nowhere);
    }
    (client, program)
}

#[test]
fn a_ring_reaches_the_card_whatever_its_slot_says_and_wakes_it() {
    let (card, mut relay) = relay();
    let program = join(&mut relay, 16);
    let send = (QueueKind::Send, 0x10_0007);
    relay.add(16, (QueueKind::Receive, 9), BASE + RING, true).unwrap();
    relay.add_qp(16, send.1, BASE, 9).unwrap();
    relay.renew_qp(send.1, 200);
    card.asleep.prepare_sleep(WakeFor::AllButReceives).unwrap();
    program.ring((QueueKind::Receive, 9), RING, 3);
    card.await_ring(QueueKind::Receive, 9, 200);
    assert_eq!(card.wake.drain().unwrap(), 0, "receives are no reason to wake it");
    program.ring(send, 0, 5);
    card.await_ring(send.0, send.1, 200);
    eventually(|| card.wake.drain().unwrap() > 0, || "no signal".into());
    // The slot's value is not believed.
    program.record(0).store_release_u32(0, 6);
    program.page.ring(doorbell::slot(send.0, send.1), u64::MAX);
    program.waker.wake_if_asleep().unwrap();
    card.await_ring(send.0, send.1, 200);
    // Anew, from 0 on, under the next generation.
    relay.renew_qp(send.1, 201);
    program.ring(send, 0, 0);
    card.await_ring(send.0, send.1, 201);
    program.ring((QueueKind::Receive, 9), RING, 1);
    card.await_ring(QueueKind::Receive, 9, 201);
}

#[test]
fn an_arming_reaches_the_card_from_the_old_ring_and_the_new_one() {
    let (card, mut relay) = relay();
    let program = join(&mut relay, 255);
    let cq = (QueueKind::Completion, 300);
    relay.add(255, cq, BASE, false).unwrap();
    let arm = |ring: u64, sequence| {
        let word = Arm { consumer: 77, sequence, kind: ArmKind::Any }.encode();
        program.record(ring).store_release_u64(record::ARM / 8, word);
        program.page.ring(doorbell::slot(cq.0, cq.1), slot_value(cq.1, 0, sequence));
        program.waker.wake_if_asleep().unwrap();
    };
    arm(0, 1);
    card.await_ring(cq.0, cq.1, 0);
    // Rung in the new ring before the relay hears that there is one.
    arm(RING, 2);
    relay.move_cq(cq.1, BASE + RING).unwrap();
    card.await_ring(cq.0, cq.1, 1);
}

#[test]
fn nobody_rings_for_another_and_garbage_rings_for_nobody() {
    let (card, mut relay) = relay();
    let (hostile, honest) = (join(&mut relay, 16), join(&mut relay, 17));
    // Behind one slot.
    let (own, others) = ((QueueKind::Send, 1), (QueueKind::Send, 129));
    relay.add(16, own, BASE, false).unwrap();
    relay.add(17, others, BASE, false).unwrap();
    // Once the relay knows of both.
    for index in [1, 2] {
        hostile.ring(own, 0, index);
        card.await_ring(own.0, own.1, 0);
    }
    honest.record(0).store_release_u32(0, 40);
    for round in 1..100 {
        for slot in 0..SLOTS {
            hostile.page.ring(slot, slot_value(others.1, 0, 40) ^ (round << 56));
        }
        hostile.waker.wake_if_asleep().unwrap();
    }
    // That was before this.
    hostile.ring(own, 0, 3);
    card.await_ring(own.0, own.1, 0);
    let rung = (0..SLOTS).filter(|slot| card.page.read(*slot) != 0).count();
    assert_eq!(rung, 1, "its own queue, and no other");
    // The honest one's did not get lost behind it.
    honest.ring(others, 0, 41);
    card.await_ring(others.0, others.1, 0);
}

#[test]
fn a_store_that_hides_another_hides_no_queue() {
    let (mut client, program) = client(300);
    let mut card = bell();
    // 1, 129 and 257 share a slot: two have news, and the last store tells of one.
    for number in [1, 257] {
        program.ring((QueueKind::Send, number), u64::from(number) * 64, 8);
    }
    let turn = client.turn(&mut card);
    assert!(turn.worked && turn.rung == Rung::Anything);
    let told: Vec<_> =
        [1, 129, 257].map(|number| client.queue((QueueKind::Send, number)).unwrap().told).into();
    // Not told of before, it is told of once for sure.
    assert_eq!(told, [Some(8), Some(0), Some(8)]);
    assert!(!client.turn(&mut card).worked);
}

#[test]
fn what_the_card_has_seen_comes_back_over_nobody_elses_ring() {
    let ((mut hostile, scribbler), (mut honest, program)) = (client(1), client(129));
    let mut card = bell();
    let (own, others) = ((QueueKind::Send, 0), (QueueKind::Send, 128));
    let slot = doorbell::slot(own.0, own.1);
    assert_eq!(slot, doorbell::slot(others.0, others.1));
    let mut stored = HashSet::from([0]);
    for round in 0..100 {
        // To and fro, with another client's ring between, which the card may have yet to see.
        scribbler.ring(own, 0, 5 + round % 2);
        assert_eq!(hostile.turn(&mut card).rung, Rung::Anything);
        assert!(stored.insert(card.page.read(slot)), "in round {round}");
        program.ring(others, 128 * 64, 1 + round);
        assert_eq!(honest.turn(&mut card).rung, Rung::Anything);
        assert!(stored.insert(card.page.read(slot)), "in round {round}");
    }
}

#[test]
fn a_queue_that_was_rung_before_it_was_known_hides_no_other_when_it_is_rung_again() {
    let (mut client, program) = client(1);
    let mut card = bell();
    let (first, second) = ((QueueKind::Send, 0), (QueueKind::Send, 128));
    let slot = doorbell::slot(first.0, first.1);
    program.ring(second, RING, 5);
    let queue = Queue { name: second, generation: 0, record: program.record(RING), told: None };
    assert_eq!(client.add(queue, &mut card), Rung::Anything);
    let seen = card.page.read(slot);
    // The second is rung again behind the first, for all that is known of it.
    program.ring(first, 0, 1);
    assert!(client.turn(&mut card).worked);
    assert_eq!(SlotValue::decode(card.page.read(slot)).number, second.1);
    assert_ne!(card.page.read(slot), seen, "the card would not look");
}

#[test]
fn who_rings_for_thousands_of_queues_is_heard_by_turns() {
    const QUEUES: u32 = 4096;
    let (mut client, program) = client(QUEUES);
    let mut card = bell();
    for number in 0..QUEUES {
        program.ring((QueueKind::Send, number), u64::from(number) * 64, 1);
    }
    let told = |client: &RelayedClient| {
        let queues = client.slots.values().flat_map(|slot| &slot.queues);
        queues.filter(|queue| queue.told == Some(1)).count()
    };
    let (mut before, mut turns) = (0, 0);
    while client.turn(&mut card).worked {
        let now = told(&client);
        assert!((1..=TURN + 32).contains(&(now - before)), "{}", now - before);
        (before, turns) = (now, turns + 1);
    }
    assert_eq!((before, turns), (QUEUES as usize, QUEUES as usize / TURN));
}

#[test]
fn a_queue_or_a_client_that_is_gone_is_relayed_no_more() {
    let (card, mut relay) = relay();
    let (first, second) = (join(&mut relay, 16), join(&mut relay, 17));
    let names = [1, 2, 3].map(|number| (QueueKind::Send, number));
    relay.add(16, names[0], BASE, false).unwrap();
    relay.add(16, names[1], BASE + RING, false).unwrap();
    relay.add(17, names[2], BASE, false).unwrap();
    relay.remove(names[0]).unwrap();
    assert!(!relay.leave(17), "there is one more");
    // Two rounds: a client that rings while the relay hears of its end may be heard once more.
    for index in [1, 2] {
        first.ring(names[1], RING, index);
        card.await_ring(names[1].0, names[1].1, 0);
    }
    first.ring(names[0], 0, 1);
    second.ring(names[2], 0, 1);
    first.ring(names[1], RING, 3);
    card.await_ring(names[1].0, names[1].1, 0);
    assert_eq!([1, 3].map(|number| card.read(QueueKind::Send, number).encode()), [0, 0]);
    assert!(relay.leave(16), "that was the last");
}

#[test]
fn a_relay_sleeps_while_nothing_comes_and_wakes_for_whoever_rings() {
    let (card, mut relay) = relay();
    let programs = [16, 17].map(|number| join(&mut relay, number));
    for (program, number) in programs.iter().zip([16_u8, 17]) {
        let name = (QueueKind::Send, number.into());
        relay.add(number, name, BASE, false).unwrap();
        for index in 1..20 {
            eventually(|| program.waker.is_needed(), || "it does not sleep".into());
            program.ring(name, 0, index);
            card.await_ring(name.0, name.1, 0);
        }
    }
}

#[test]
fn a_page_of_the_card_itself_is_not_relayed_by_this_driver() {
    let fd = || memfd::create("nothing", PAGE_BYTES).unwrap();
    let (function, iommu, life) = (fd(), fd(), fd());
    let grant = DoorbellGrant::Device { function, offset: 0, iommu, ioas: None, life };
    let refused = Relay::start("balboa3 window 1", &grant).unwrap_err().to_string();
    assert!(refused.contains("balboa3 window 1"), "{refused}");
}
