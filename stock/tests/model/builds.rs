//! Differences by the sources of which a card was built, and states that only programming it ends.

use stock::Build;

use crate::rig::*;

fn pair_of(ctids: &[u8], build: Build) -> Pair {
    let mut pair = Pair::of_build(ctids, build);
    for &ctid in ctids {
        pair.nodes[0].memory.space(ctid)[..1 << 17].copy_from_slice(&pattern(1 << 17, ctid));
    }
    pair
}

/// Packets with payload that leave node 0, of which none is answered.
fn leave(pair: &mut Pair) -> usize {
    let now = pair.now;
    pair.nodes[0].frames(now).iter().filter(|frame| opcode(frame).is_some()).count()
}

/// STOCK-41
#[test]
fn a_queue_pair_of_an_old_build_is_not_held_back_by_its_own_window() {
    for (build, leaves) in [(Build::Mended, 16), (Build::Old, 20)] {
        let mut pair = pair_of(&[0, 1], build);
        for part in 0..5 {
            pair.nodes[0].write(1, part << 14, 0, 1 << 14);
        }
        assert_eq!(leave(&mut pair), leaves, "{build:?}");
    }
}

/// STOCK-41
#[test]
fn the_full_window_of_qp_0_of_an_old_build_holds_back_everybody() {
    let mut pair = pair_of(&[0, 1], Build::Old);
    for part in 0..4 {
        pair.nodes[0].write(0, part << 14, 0, 1 << 14);
    }
    assert_eq!(leave(&mut pair), 16);
    pair.nodes[0].write(1, 0, 0, 64);
    pair.nodes[0].read(1, 0, 0, 64);
    assert_eq!(leave(&mut pair), 0);
    // One answer to QP 0 lets them all go on, as far as its window is looked at.
    pair.nodes[0].card.receive(&ack_frame(0, 0, 200, 0x1f));
    assert_eq!(leave(&mut pair), 2);
}

/// What node 0 repeats of two WRITEs of QP 1, of which the second leaves when the first is answered or at once.
fn repeated(build: Build, at_once: bool) -> Vec<(u32, Vec<u8>)> {
    let mut pair = pair_of(&[0, 1], build);
    for part in 0..2 {
        pair.nodes[0].write(1, part << 12, part << 12, 4096);
        if !at_once && part == 0 {
            pair.settle();
        }
    }
    let _lost = leave(&mut pair);
    let due = pair.nodes[0].card.next_timeout().unwrap();
    let frames = pair.nodes[0].frames(due);
    frames.iter().map(|frame| (psn(frame), frame[70..70 + 4096].to_vec())).collect()
}

/// STOCK-41
#[test]
fn a_second_packet_of_an_old_build_overwrites_what_the_first_one_is_repeated_from() {
    let sent = |part: usize| pattern(1 << 17, 1)[part << 12..(part + 1) << 12].to_vec();
    let payloads = |build, at_once| -> Vec<Vec<u8>> {
        repeated(build, at_once).into_iter().map(|(_, payload)| payload).collect()
    };
    assert!(payloads(Build::Mended, true) == [sent(0), sent(1)]);
    assert!(payloads(Build::Old, true) == [sent(1), sent(1)]);
    assert!(payloads(Build::Old, false) == [sent(1)], "one at a time");
}

/// STOCK-42
#[test]
fn an_old_build_loses_the_selection_of_a_payload_behind_eight_others() {
    for (build, packets, starves) in
        [(Build::Mended, 12, false), (Build::Old, 8, false), (Build::Old, 9, true)]
    {
        let mut pair = pair_of(&[1], build);
        for part in 0..packets {
            pair.nodes[0].write(1, part << 12, part << 12, 4096);
        }
        // A READ of the peer's, whose 16 packets are sent first.
        let read = frame(0, 0x0c, 1, 1100, &with_reth(0, 1 << 16, &[]));
        pair.nodes[0].card.receive(&read);
        let _ = pair.nodes[0].frames(0);
        assert_eq!(pair.nodes[0].card.starves(), starves, "{build:?}, {packets} packets");
    }
}

/// STOCK-43
#[test]
fn windows_are_behind_the_shells_reset_what_they_were_before() {
    let connect = |node: &mut Node| {
        for ctid in [1, 2] {
            node.context(ctid, 0, 0, 0);
            node.connect(ctid, 1, 0x0a00_0002);
            node.write(ctid, 0, 0, 64);
        }
    };
    let mut pair = pair_of(&[1, 2], Build::Mended);
    for part in 0..4 {
        pair.nodes[0].write(1, part << 14, 0, 1 << 14);
    }
    assert_eq!(leave(&mut pair), 16);
    pair.nodes[0].card.reset();
    connect(&mut pair.nodes[0]);
    // The packet of QP 1 stands in front of that of QP 2. Each that leaves asks for an Ethernet address.
    assert!(pair.nodes[0].frames(0).is_empty());
    let mut programmed = Node::new(0);
    connect(&mut programmed);
    assert_eq!(programmed.frames(0).len(), 2);
}
