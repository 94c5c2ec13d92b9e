//! Polling across a resize.

use fpga_regs::engine::doorbell::{Arm, ArmKind, QueueKind, record, slot, slot_value};

use super::*;

const ARM: usize = record::ARM / 8;

impl Bench {
    /// Resizes the queue as a card would that has written all of its entries; `meanwhile` happens before
    /// the card moves.
    pub(crate) fn resize(
        &mut self,
        log2_entries: u8,
        meanwhile: impl FnOnce(&mut Self),
    ) -> Result<(), crate::error::Error> {
        let memory = memory(64 * 1024);
        let ring = BlockRing::new(memory.clone(), 64, 1 << log2_entries).unwrap();
        let new = EntryRing::new(ring.clone(), Record::new(memory, 0).unwrap());
        let cq = Arc::clone(&self.cq);
        let mut released = false;
        cq.resize(
            log2_entries,
            || {
                meanwhile(self);
                (self.card, self.log2_entries) = (ring, log2_entries);
                Ok((new, std::mem::take(&mut self.written)))
            },
            |_| {
                released = true;
                Ok(())
            },
        )?;
        assert!(released && self.cq.log2_entries() == log2_entries);
        Ok(())
    }

    fn wr_ids(&self, limit: i32) -> Vec<u64> {
        self.poll(limit).iter().map(|wc| wc.wr_id).collect()
    }
}

#[test]
fn what_is_left_is_delivered_before_what_comes_and_nothing_is_lost() {
    for (before, after) in [(2, 4), (4, 2), (3, 0), (0, 3)] {
        let mut bench = bench(before);
        let mut next = 0u64..;
        let mut expected = 0u64..;
        for round in 0..40 {
            let to = if round % 2 == 0 { after } else { before };
            // As many as both have room for, some of which are polled before the card moves.
            let room = 1u64 << before.min(after);
            for wr_id in next.by_ref().take(room as usize) {
                bench.send(wr_id);
            }
            let polled = round % (room + 1);
            let polls = |bench: &mut Bench| {
                let taken = bench.wr_ids(polled as i32);
                taken.into_iter().for_each(|id| assert_eq!(expected.next(), Some(id)));
            };
            bench.resize(to, polls).unwrap();
            for wr_id in next.by_ref().take(room as usize) {
                bench.send(wr_id);
            }
            // One poll empties the queue, as programs rely on.
            let found = bench.wr_ids(1000);
            assert_eq!(found.len() as u64, 2 * room - polled, "{before} to {after}");
            found.into_iter().for_each(|id| assert_eq!(expected.next(), Some(id)));
            assert!(bench.poll(1).is_empty());
        }
    }
}

#[test]
fn a_queue_that_is_resized_again_keeps_what_was_left_twice() {
    let mut bench = bench(2);
    (0..4).for_each(|wr_id| bench.send(wr_id));
    bench.resize(3, |_| {}).unwrap();
    (4..8).for_each(|wr_id| bench.send(wr_id));
    assert_eq!(bench.wr_ids(1), [0]);
    let refused = bench.resize(2, |_| panic!("the card is not asked")).unwrap_err();
    assert_eq!(refused.errno(), libc::EINVAL);
    assert_eq!(bench.cq.log2_entries(), 3);
    bench.resize(4, |bench| assert_eq!(bench.wr_ids(1), [1])).unwrap();
    bench.send(8);
    let mut one_by_one = Vec::new();
    while let [wr_id] = bench.wr_ids(1)[..] {
        one_by_one.push(wr_id);
    }
    assert_eq!(one_by_one, (2..=8).collect::<Vec<_>>());
}

#[test]
fn a_queue_is_not_made_smaller_than_what_its_sends_are_to_complete() {
    let mut bench = bench(3);
    let refused = |bench: &mut Bench, log2_entries| {
        let refused = bench.resize(log2_entries, |_| panic!("the card is not asked")).unwrap_err();
        assert_eq!(refused.errno(), libc::EINVAL);
    };
    // The card has not come to them, or to some.
    (0..5).for_each(|wr_id| bench.post(wr_id));
    refused(&mut bench, 2);
    (0..3).for_each(|index| bench.complete(sent(index)));
    refused(&mut bench, 2);
    assert_eq!(bench.wr_ids(1), [0]);
    // Of a receive it is not known whether it will ever complete.
    (0..4).for_each(|wr_id| bench.post_receive(wr_id));
    bench.resize(2, |_| {}).unwrap();
    bench.complete(Cqe { flags: Flags::RECEIVE, ..sent(0) });
    refused(&mut bench, 1);
    (3..5).for_each(|index| bench.complete(sent(index)));
    assert_eq!(bench.wr_ids(8), [1, 2, 0, 3, 4]);
    // Nobody hears of those that are not signalled.
    let mut batch = bench.queues.send.begin().unwrap();
    for _ in 0..5 {
        let (queue, cursor, end) = batch.position();
        let (opcode, payload) = (ibv::IBV_WR_SEND, Payload::Sges(&[]));
        let request = SendRequest { wr_id: 9, opcode, flags: 0, payload };
        batch.advance(queue.push(cursor, end, &request, || (0, 0), || None, || 0).unwrap());
    }
    batch.finish();
    bench.resize(0, |_| {}).unwrap();
}

#[test]
fn a_queue_may_grow_to_less_than_what_its_sends_are_to_complete() {
    let mut bench = bench(1);
    (0..5).for_each(|wr_id| bench.post(wr_id));
    bench.resize(2, |_| {}).unwrap();
    (0..4).for_each(|index| bench.complete(sent(index)));
    assert_eq!(bench.wr_ids(2), [0, 1]);
    bench.complete(sent(4));
    assert_eq!(bench.wr_ids(8), [2, 3, 4]);
}

#[test]
fn of_what_was_not_polled_nothing_is_nobodys() {
    let mut bench = bench(2);
    (0..3).for_each(|wr_id| bench.send(wr_id));
    bench.resize(4, |_| {}).unwrap();
    bench.send(3);
    let found: Vec<_> = bench.cq.lock().outstanding().map(|it| Cqe::decode(&[it]).qpn).collect();
    assert_eq!(found, [QPN; 4]);
}

#[test]
fn an_arming_that_the_card_may_not_have_seen_is_told_again_in_the_new_ring() {
    let mut bench = bench(2);
    bench.resize(3, |_| {}).unwrap();
    let word = |bench: &Bench| bench.cq.record().load_relaxed_u64(ARM);
    assert_eq!(Arm::decode(word(&bench)), None, "it was never armed");
    (0..2).for_each(|wr_id| bench.send(wr_id));
    bench.cq.arm(ArmKind::Any).unwrap();
    bench.cq.arm(ArmKind::Solicited).unwrap();
    let cqn = bench.cq.cqn;
    let rung = |bench: &Bench| bench.page.read(slot(QueueKind::Completion, cqn));
    let before = rung(&bench);
    bench.resize(2, |bench| bench.send(2)).unwrap();
    // It counts from the end of the old ring, before which three entries are that the program was not told of.
    let before_all_three = 0u32.wrapping_sub(3);
    let arm = Arm::decode(word(&bench)).unwrap();
    assert_eq!((arm.consumer, arm.sequence), (before_all_three, 2));
    assert_eq!(arm.kind, ArmKind::Solicited);
    let any = bench.cq.record().load_acquire_u32(record::ARMED_FOR_ANY / 4);
    assert_eq!(any, 1, "and that it waits for any");
    assert_eq!(rung(&bench), slot_value(cqn, 2, 2));
    assert_ne!(rung(&bench), before, "the card looks again");
    let armed = |bench: &Bench| {
        bench.cq.arm(ArmKind::Any).unwrap();
        Arm::decode(word(bench)).unwrap().consumer
    };
    assert_eq!(armed(&bench), before_all_three);
    bench.cq.take_event();
    assert_eq!(armed(&bench), 0, "it is told of them");
    assert_eq!(bench.wr_ids(8), [0, 1, 2]);
}

#[test]
fn a_refused_resize_leaves_the_queue_as_it_was() {
    let mut bench = bench(2);
    bench.send(0);
    let refuse = || Err(crate::error::invalid!("no"));
    let refused = bench.cq.resize(3, refuse, |_| panic!("nothing is given back"));
    assert_eq!(refused.unwrap_err().errno(), libc::EINVAL);
    bench.send(1);
    assert_eq!((bench.wr_ids(4), bench.cq.log2_entries()), (vec![0, 1], 2));
}

#[test]
fn whoever_polls_while_it_is_resized_gets_everything_once_and_in_order() {
    const COUNT: u64 = 600;
    let mut bench = bench(3);
    let cq = Arc::clone(&bench.cq);
    let poller = std::thread::spawn(move || {
        let mut expected = 0;
        while expected < COUNT {
            cq.poll(1 + (expected % 5) as i32, |completion, _| {
                assert_eq!(completion.wr_id, expected);
                expected += 1;
            });
        }
    });
    for wr_id in 0..COUNT {
        // There is room in the ring, and in the send queue.
        while bench.cq.lock().outstanding().count() >= 8 {
            std::thread::yield_now();
        }
        bench.send(wr_id);
        if wr_id % 3 == 0 {
            let log2_entries = if bench.log2_entries == 3 { 4 } else { 3 };
            bench.resize(log2_entries, |_| std::thread::yield_now()).unwrap();
        }
    }
    poller.join().unwrap();
    assert!(bench.poll(1).is_empty());
}
