//! Frames on the cable.

use crate::rig::*;

/// Bytes in front of the payload of a packet that has a RETH.
const HEADERS: usize = 14 + 20 + 8 + 12 + 16;

fn pair_with(ctids: &[u8]) -> Pair {
    let mut pair = Pair::new(ctids);
    for &ctid in ctids {
        pair.nodes[0].memory.space(ctid)[..1 << 20].copy_from_slice(&pattern(1 << 20, ctid));
    }
    pair
}

/// STOCK-11
#[test]
fn the_first_packet_of_a_write_says_its_own_length_and_not_the_messages() {
    let mut pair = pair_with(&[1]);
    pair.nodes[0].write(1, 0, 0x8000, 10_000);
    let frames = pair.nodes[0].frames(0);
    let opcodes: Vec<u8> = frames.iter().filter_map(|frame| opcode(frame)).collect();
    assert_eq!(opcodes, [6, 7, 8]);
    assert_eq!(reth(&frames[0]), (0x8000, RKEY, 4096));
    pair.nodes[0].write(1, 0, 0x8000, 4000);
    assert_eq!(reth(&pair.nodes[0].frames(0)[0]), (0x8000, RKEY, 4000));
}

/// STOCK-12
#[test]
fn each_packet_is_acknowledged_by_itself_and_counts_as_a_message() {
    let mut pair = pair_with(&[1]);
    pair.nodes[0].write(1, 0, 0x8000, 5 * 4096);
    pair.settle();
    let acks: Vec<(u8, u32)> =
        pair.seen.iter().filter(|(from, _)| *from == 1).map(|(_, frame)| aeth(frame)).collect();
    // Number 5 may be in several of them: it is as it is when the packet goes out.
    assert_eq!(acks.len(), 5);
    assert_eq!(acks.last(), Some(&(0x1f, 5)));
}

/// STOCK-22
#[test]
fn a_new_context_starts_the_numbers_anew_but_not_the_windows_or_the_lists() {
    let mut pair = pair_with(&[1]);
    pair.nodes[0].write(1, 0, 0x8000, 16 * 4096);
    assert_eq!(pair.nodes[0].frames(0).len(), 16);
    pair.nodes[0].context(1, 5, 6, RKEY);
    pair.nodes[0].write(1, 0, 0x8000, 64);
    assert!(pair.nodes[0].frames(0).is_empty());
    // The card repeats the outstanding packets, with their numbers.
    let due = pair.nodes[0].card.next_timeout().unwrap();
    let again = pair.nodes[0].frames(due);
    assert_eq!((again.len(), psn(&again[0])), (16, 1200));
}

/// STOCK-23
#[test]
fn the_key_is_the_one_of_the_context_when_the_packet_goes_out() {
    let mut pair = pair_with(&[1]);
    pair.nodes[0].write(1, 0, 0, 64);
    let first = pair.nodes[0].frames(0);
    assert_eq!(reth(&first[0]).1, RKEY);
    pair.nodes[0].context(1, 1, 2, 99);
    let due = pair.nodes[0].card.next_timeout().unwrap();
    assert_eq!(reth(&pair.nodes[0].frames(due)[0]).1, 99);
}

/// STOCK-38
#[test]
fn from_the_first_own_request_on_everything_asks_to_be_acknowledged() {
    let mut pair = pair_with(&[1]);
    pair.nodes[0].write(1, 0, 0, 64);
    pair.settle();
    let asking: Vec<(usize, bool)> = pair.seen.iter().map(|(from, it)| (*from, asks(it))).collect();
    assert_eq!(asking, [(0, true), (1, false)]);
    pair.nodes[1].read(1, 0, 0, 64);
    pair.settle();
    pair.seen.clear();
    pair.nodes[0].write(1, 0, 0, 64);
    pair.settle();
    assert!(pair.seen.iter().all(|(_, frame)| asks(frame)));
}

#[test]
fn headers_are_as_they_are_said_to_be() {
    let mut pair = pair_with(&[1]);
    pair.nodes[0].write(1, 0, 0x1000, 8);
    let frame = pair.nodes[0].frames(0).remove(0);
    assert_eq!(frame.len(), 14 + 20 + 8 + 12 + 16 + 8 + 4);
    assert_eq!((&frame[..6], &frame[6..12]), (&MAC[1][..], &MAC[0][..]));
    assert_eq!((frame[15], frame[18..22].to_vec(), frame[22]), (0, vec![0; 4], 0x64));
    let ports = [18488u16.to_be_bytes(), 4791u16.to_be_bytes()].concat();
    assert_eq!((&frame[34..38], &frame[40..42]), (&ports[..], &[0, 0][..]));
    assert_eq!(frame[43..46], [0, 0xff, 0xff]);
}

/// STOCK-27
#[test]
fn a_raw_packet_of_an_unknown_kind_sends_nothing_and_shifts_the_lists() {
    let mut pair = pair_with(&[1]);
    let (first, mut second) = write_halves(1, 64);
    (second.raw, second.opcode) = (true, 0x0b);
    pair.nodes[0].post((first, second), (0, 0x9000));
    pair.nodes[0].write(1, 0, 0x8000, 128);
    let frames = pair.nodes[0].frames(0);
    assert_eq!((frames.len(), reth(&frames[0]).0), (1, 0x8000));
    // Repeated is the packet with the other one's address.
    let due = pair.nodes[0].card.next_timeout().unwrap();
    let again = pair.nodes[0].frames(due);
    assert_eq!(
        (psn(&again[0]), reth(&again[0]).0, reth(&again[0]).2),
        (psn(&frames[0]), 0x9000, 64)
    );
    // And its length, but of the payload that is in the slot of its number.
    assert_eq!(again[0].len(), HEADERS + 64 + 4);
    assert_eq!(again[0][HEADERS..][..64], [0; 64]);
}

/// STOCK-40
#[test]
fn the_first_packet_of_a_write_says_that_it_is_full_whatever_it_has() {
    let mut pair = pair_with(&[1]);
    let (first, mut second) = write_halves(1, 64);
    (second.raw, second.opcode) = (true, 6);
    pair.nodes[0].post((first, second), (0, 0x9000));
    let frame = pair.nodes[0].frames(0).remove(0);
    assert_eq!((frame.len(), reth(&frame).2), (HEADERS + 64 + 4, 64));
    let says = (HEADERS - 14 + 4096 + 4) as u16;
    assert_eq!(
        (&frame[16..18], &frame[38..40]),
        (&says.to_be_bytes()[..], &(says - 20).to_be_bytes()[..])
    );
}

/// STOCK-29
#[test]
fn a_packet_to_an_address_that_is_not_known_is_lost_and_another_may_be_taken_for_it() {
    let mut node = Node::new(0);
    node.context(1, 100, 200, RKEY);
    node.connect(1, 1, IPV4[1]);
    node.memory.space(1);
    node.write(1, 0, 0, 64);
    let frames = node.frames(0);
    assert_eq!(
        (frames.len(), &frames[0][..14]),
        (1, &[&[0xff; 6][..], &MAC[0], &[8, 6]].concat()[..])
    );
    assert_eq!(node.card.tally().unresolved, 1);
    // The answer of a host whose address ends in the same byte counts; requests of others do not.
    let reply = |operation: u8, ipv4: u32| {
        let mut frame =
            [&MAC[0][..], &[2, 7, 7, 7, 7, 7], &[8, 6, 0, 1, 8, 0, 6, 4, 0, operation]].concat();
        frame.extend([2, 7, 7, 7, 7, 7]);
        frame.extend(ipv4.to_be_bytes());
        frame.extend([0; 6]);
        frame.extend(IPV4[0].to_be_bytes());
        frame
    };
    node.card.receive(&reply(1, IPV4[1]));
    let answers = node.frames(0);
    assert_eq!((answers.len(), answers[0][21]), (1, 2));
    assert_eq!(node.frames(node.card.next_timeout().unwrap())[0][21], 1);
    node.card.receive(&reply(2, IPV4[1] | 0xff00));
    let due = node.card.next_timeout().unwrap();
    let again = node.frames(due);
    assert_eq!((opcode(&again[0]), &again[0][..6]), (Some(0x0a), &[2, 7, 7, 7, 7, 7][..]));
}
