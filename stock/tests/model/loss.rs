//! The effects of a lost packet, and of answers that are not the one ACK for each packet.

use stock::Parked;

use crate::rig::*;

fn pair_with(ctids: &[u8]) -> Pair {
    let mut pair = Pair::new(ctids);
    for &ctid in ctids {
        pair.nodes[0].memory.space(ctid)[..1 << 20].copy_from_slice(&pattern(1 << 20, ctid));
    }
    pair
}

/// STOCK-16
#[test]
fn a_receiver_not_ready_nak_is_taken_for_an_acknowledgement() {
    let mut pair = pair_with(&[1]);
    pair.nodes[0].write(1, 0, 0, 64);
    let sent = pair.nodes[0].frames(0);
    pair.nodes[0].card.receive(&ack_frame(0, 1, psn(&sent[0]), 0x20));
    let _ = pair.nodes[0].work(0);
    assert_eq!(pair.nodes[0].completed(1)[3], 1);
}

/// STOCK-10
#[test]
fn a_nak_parks_reception_of_the_whole_card_until_some_answer_frees_an_element_for_it() {
    let mut pair = pair_with(&[1, 2]);
    pair.nodes[0].write(1, 0, 0, 64);
    let sent = pair.nodes[0].frames(0);
    pair.nodes[0].card.receive(&ack_frame(0, 1, psn(&sent[0]), 0x60));
    let _ = pair.nodes[0].work(0);
    assert_eq!(pair.nodes[0].card.parked(), Some(Parked::WantsElement));
    // The peer's WRITE to another QP is numbered, not done; its repetition is acknowledged.
    let write = with_reth(0x100, 4, &[1; 4]);
    let strange = frame(0, 0x0a, 2, 2100, &write);
    pair.nodes[0].card.receive(&strange);
    assert!(pair.nodes[0].frames(0).is_empty());
    pair.nodes[0].card.receive(&strange);
    assert_eq!(opcode(&pair.nodes[0].frames(0)[0]), Some(0x11));
    assert_ne!(pair.nodes[0].memory.space(2)[0x100..0x104], [1; 4]);
    // The ACK for the first packet frees its element: the NAK gets that element, completes the WRITE, and causes a
    // repetition of all entries; the ACK itself is parked now.
    pair.nodes[0].card.receive(&ack_frame(0, 1, psn(&sent[0]), 0x1f));
    let _ = pair.nodes[0].frames(0);
    assert_eq!(pair.nodes[0].completed(1)[3], 1);
    assert_eq!(pair.nodes[0].memory.space(2)[0x100..0x104], [1; 4]);
    assert_eq!(pair.nodes[0].card.parked(), Some(Parked::WantsElement));
}

/// STOCK-10
#[test]
fn one_acknowledgement_too_many_parks_reception() {
    let mut pair = pair_with(&[1]);
    pair.nodes[0].write(1, 0, 0, 64);
    pair.settle();
    pair.nodes[0].card.receive(&ack_frame(0, 1, 1100, 0x1f));
    let _ = pair.nodes[0].work(0);
    assert_eq!(pair.nodes[0].card.parked(), Some(Parked::WantsElement));
}

/// STOCK-15
#[test]
fn behind_a_parked_packet_two_more_are_numbered_and_the_rest_stands() {
    let mut pair = pair_with(&[1, 2]);
    pair.nodes[0].card.receive(&ack_frame(0, 1, 0, 0x1f));
    for number in 0..4 {
        let write = with_reth(0x100, 4, &[1; 4]);
        pair.nodes[0].card.receive(&frame(0, 0x0a, 2, 2100 + number, &write));
    }
    let _ = pair.nodes[0].frames(0);
    // The repetition of the first one waits behind the fourth.
    let tally = pair.nodes[0].card.tally();
    assert_eq!((tally.received, pair.nodes[0].card.stream_is_down()), (3, true));
    for _ in 0..100 {
        pair.nodes[0].card.receive(&ack_frame(0, 1, 0, 0x1f));
    }
    assert_eq!(pair.nodes[0].card.tally().lost_frames, 38);
}

/// STOCK-13
#[test]
fn a_nak_that_has_an_element_repeats_from_its_number_on() {
    let mut pair = pair_with(&[1]);
    pair.nodes[0].write(1, 0, 0, 4 * 4096);
    let sent = pair.nodes[0].frames(0);
    // Two ACKs: the NAK between them gets the second one's element.
    let numbers: Vec<u32> = sent.iter().map(|frame| psn(frame)).collect();
    pair.nodes[0].card.receive(&ack_frame(0, 1, numbers[0], 0x1f));
    pair.nodes[0].card.receive(&ack_frame(0, 1, numbers[2], 0x60));
    pair.nodes[0].card.receive(&ack_frame(0, 1, numbers[1], 0x1f));
    let again: Vec<u32> = pair.nodes[0].frames(0).iter().map(|frame| psn(frame)).collect();
    assert_eq!(again, numbers[2..]);
    assert_eq!(pair.nodes[0].card.tally().repeated, 2);
}

/// STOCK-13
#[test]
fn a_nak_for_what_is_in_no_list_loses_the_lists() {
    let mut pair = pair_with(&[1]);
    pair.nodes[0].write(1, 0, 0, 4 * 4096);
    let sent = pair.nodes[0].frames(0);
    pair.nodes[0].card.receive(&ack_frame(0, 1, 77, 0x60));
    pair.nodes[0].card.receive(&ack_frame(0, 1, psn(&sent[0]), 0x1f));
    assert!(pair.nodes[0].frames(0).is_empty());
    assert!(pair.nodes[0].card.starves());
    // Two more packets leave, and nothing is repeated.
    for number in 0..4 {
        pair.nodes[0].write(1, 64 * number, 0, 64);
    }
    assert_eq!(pair.nodes[0].frames(0).len(), 2);
    let due = pair.nodes[0].card.next_timeout().unwrap();
    assert!(pair.nodes[0].frames(due).is_empty());
}

/// STOCK-24
#[test]
fn a_lost_packet_is_repeated_after_two_thirds_of_a_millisecond_and_later_after_40() {
    let mut pair = pair_with(&[1]);
    pair.nodes[0].write(1, 0, 0, 64);
    let sent = pair.nodes[0].frames(0);
    let mut now = 0;
    let mut after = Vec::new();
    while let Some(due) = pair.nodes[0].card.next_timeout() {
        after.push((due - now) / 1000);
        now = due;
        let again = pair.nodes[0].frames(now);
        assert!(again.iter().all(|frame| *frame == sent[0]));
    }
    assert_eq!(after[..3], [628; 3]);
    assert_eq!(after[3..], [40_004; 10]);
}

/// STOCK-25
#[test]
fn after_twelve_repetitions_there_is_silence_and_the_next_request_is_not_repeated() {
    let mut pair = pair_with(&[1]);
    pair.nodes[0].write(1, 0, 0, 64);
    let _ = pair.nodes[0].frames(0);
    let mut repeated = 0;
    while let Some(due) = pair.nodes[0].card.next_timeout() {
        repeated += pair.nodes[0].frames(due).len();
    }
    assert_eq!((repeated, pair.nodes[0].completed(1)[3]), (12, 0));
    let now = 1 << 40;
    pair.nodes[0].write(1, 0, 0, 64);
    assert_eq!(pair.nodes[0].frames(now).len(), 1);
    let due = pair.nodes[0].card.next_timeout().unwrap();
    assert!(due - now > 40_000_000);
    assert!(pair.nodes[0].frames(due).is_empty());
    assert_eq!(pair.nodes[0].card.next_timeout(), None);
}

#[test]
fn a_lost_request_of_one_packet_recovers_by_the_timer() {
    let mut pair = pair_with(&[1]);
    pair.nodes[0].write(1, 0, 0x1000, 64);
    pair.run(|_, index, _| index == 0);
    assert!(pair.wait());
    assert_eq!(pair.nodes[0].completed(1)[3], 1);
    assert_eq!(pair.nodes[1].memory.space(1)[0x1000..0x1040], pattern(64, 1));
    assert_eq!(pair.nodes.map(|node| node.card.parked()), [None; 2]);
}

/// STOCK-10
#[test]
fn a_lost_packet_of_several_ends_with_reception_parked() {
    let mut pair = pair_with(&[1]);
    pair.nodes[0].write(1, 0, 0x1000, 8 * 4096);
    pair.run(|from, index, _| from == 0 && index == 2);
    while pair.wait() {}
    assert_eq!(pair.nodes[0].card.parked(), Some(Parked::WantsElement));
}
