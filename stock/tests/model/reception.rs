//! Reception, with frames that are made by hand.

use stock::Parked;
use stock::param::ASTRAY;

use crate::rig::*;

fn node() -> Node {
    let mut pair = Pair::new(&[1, 2]);
    pair.nodes[1].memory.space(1);
    let [_, node] = pair.nodes;
    node
}

/// The first number that QP 1, or 2, of that card expects.
const EXPECTED: u32 = 1200;
const OTHER: u32 = 2200;

fn write_only(psn: u32, vaddr: u64, bytes: &[u8]) -> Vec<u8> {
    frame(1, 0x0a, 1, psn, &with_reth(vaddr, bytes.len() as u32, bytes))
}

/// STOCK-26
#[test]
fn source_key_partition_version_and_crc_are_not_looked_at() {
    let mut node = node();
    node.card.receive(&write_only(EXPECTED, 0x100, &[7; 64]));
    let frames = node.frames(0);
    assert_eq!((opcode(&frames[0]), aeth(&frames[0])), (Some(0x11), (0x1f, 1)));
    assert_eq!(node.memory.space(1)[0x100..0x140], [7; 64]);
    // What is looked at: the header's checksum, the address, the port.
    for at in [24, 33, 37] {
        let mut spoilt = write_only(EXPECTED + 1, 0x100, &[8; 64]);
        spoilt[at] ^= 1;
        node.card.receive(&spoilt);
    }
    assert!(node.frames(0).is_empty());
}

/// STOCK-26
#[test]
fn no_bytes_make_it_panic() {
    let mut node = node();
    let whole = write_only(EXPECTED, 0x100, &[7; 8]);
    for length in 0..whole.len() {
        node.card.receive(&whole[..length]);
    }
    let mut random = trial::rng::Rng::new(5);
    for _ in 0..20_000 {
        let mut frame = whole.clone();
        for _ in 0..random.below(4) {
            let at = random.below(frame.len() as u64) as usize;
            frame[at] = random.below(256) as u8;
        }
        node.card.receive(&frame);
        let _ = node.frames(0);
    }
}

/// STOCK-14
#[test]
fn what_is_of_before_is_dropped_and_writes_of_it_acknowledged_again() {
    let mut node = node();
    for number in 0..3 {
        node.card.receive(&write_only(EXPECTED + number, 0x100, &[number as u8; 4]));
    }
    assert_eq!(node.frames(0).len(), 3);
    node.card.receive(&write_only(EXPECTED, 0x100, &[9; 4]));
    let frames = node.frames(0);
    assert_eq!((frames.len(), psn(&frames[0]), aeth(&frames[0]).0), (1, EXPECTED, 0x1f));
    assert_eq!(node.memory.space(1)[0x100..0x104], [2; 4]);
    // A SEND of before is dropped without a word; a READ is executed again.
    node.card.receive(&frame(1, 0x04, 1, EXPECTED, &[1; 4]));
    assert!(node.frames(0).is_empty());
    node.card.receive(&frame(1, 0x0c, 1, EXPECTED, &with_reth(0x100, 4, &[])));
    assert_eq!(opcode(&node.frames(0)[0]), Some(0x10));
}

/// STOCK-14
#[test]
fn a_gap_is_refused_once_until_what_is_expected_comes_and_never_in_responses() {
    let mut node = node();
    for early in [1, 2, 3] {
        node.card.receive(&write_only(EXPECTED + early, 0x100, &[9; 4]));
    }
    let frames = node.frames(0);
    assert_eq!((frames.len(), psn(&frames[0]), aeth(&frames[0]).0), (1, EXPECTED, 0x60));
    node.card.receive(&write_only(EXPECTED, 0x100, &[1; 4]));
    node.card.receive(&write_only(EXPECTED + 4, 0x100, &[1; 4]));
    let syndromes: Vec<u8> = node.frames(0).iter().map(|frame| aeth(frame).0).collect();
    assert_eq!(syndromes, [0x1f, 0x60]);
    node.card.receive(&frame(1, 0x10, 1, 5555, &[0x1f, 0, 0, 0, 1, 2, 3, 4]));
    assert!(node.frames(0).is_empty());
    assert_eq!(node.card.tally().psn_drops, 5);
}

/// STOCK-14
#[test]
fn the_lower_edge_of_what_is_of_before_never_moves() {
    let mut node = node();
    node.context(1, 0, 0, 0);
    node.card.receive(&write_only(0, 0x100, &[1; 4]));
    // Half the numbers away it is the same: one further on is a gap, however old it could be.
    node.context(1, 0x80_0001, 0, 0);
    node.card.receive(&write_only(0x80_0001, 0x100, &[1; 4]));
    let _ = node.frames(0);
    node.card.receive(&write_only(0x80_0000, 0x100, &[1; 4]));
    assert_eq!(aeth(&node.frames(0)[0]).0, 0x60);
}

/// STOCK-39
#[test]
fn a_read_that_is_refused_takes_the_next_payload_along_and_all_that_follow_land_one_place_before() {
    let mut node = node();
    node.card.receive(&frame(1, 0x0c, 1, EXPECTED + 7, &with_reth(0, 4, &[])));
    assert_eq!(aeth(&node.frames(0)[0]).0, 0x60);
    // Of this one the bytes are gone, though it is acknowledged.
    node.card.receive(&write_only(EXPECTED, 0x100, &[1; 8]));
    assert_eq!(aeth(&node.frames(0)[0]).0, 0x1f);
    assert_eq!((node.completed(1)[1], &node.memory.space(1)[0x100..0x108]), (0, &[0; 8][..]));
    // Another QP's come to where those were to.
    node.card.receive(&frame(1, 0x0a, 2, OTHER, &with_reth(0x200, 4, &[2; 4])));
    assert_eq!(node.frames(0).len(), 1);
    assert_eq!(node.memory.space(1)[0x100..0x108], [2, 2, 2, 2, 0, 0, 0, 0]);
    assert_eq!((node.completed(1)[1], node.completed(2)[1]), (1, 0));
    // The card removes as many bytes as a WRITE's first header has from a SEND.
    node.card.receive(&frame(1, 0x04, 2, OTHER + 1, &pattern(24, 0)));
    let _ = node.frames(0);
    assert_eq!(node.memory.space(2)[0x200..0x204], pattern(24, 0)[16..20]);
    // A READ of before is not refused, and leaves nothing like it.
    let mut node = self::node();
    node.card.receive(&write_only(EXPECTED, 0x100, &[1; 8]));
    node.card.receive(&frame(1, 0x0c, 1, EXPECTED, &with_reth(0, 4, &[])));
    node.card.receive(&write_only(EXPECTED + 1, 0x100, &[3; 8]));
    let _ = node.frames(0);
    assert_eq!(node.memory.space(1)[0x100..0x108], [3; 8]);
}

/// STOCK-39
#[test]
fn reads_that_are_refused_without_end_take_no_more_than_a_card_may_hold() {
    let mut node = node();
    for _ in 0..ASTRAY + 20 {
        node.card.receive(&frame(1, 0x0c, 1, EXPECTED + 900, &with_reth(0, 4, &[])));
        let _ = node.frames(0);
    }
    for number in 0..=ASTRAY as u32 {
        assert_eq!(node.completed(1)[1], 0);
        let vaddr = 0x100 + 4 * u64::from(number);
        node.card.receive(&write_only(EXPECTED + number, vaddr, &[number as u8 + 1; 4]));
        let _ = node.frames(0);
    }
    assert_eq!(node.completed(1)[1], 1);
    assert_eq!(node.memory.space(1)[0x100..0x108], [65, 65, 65, 65, 0, 0, 0, 0]);
}

/// STOCK-30
#[test]
fn a_send_goes_to_address_0_of_the_qp() {
    let mut node = node();
    for (number, code) in [0u8, 1, 2, 4].into_iter().enumerate() {
        node.card.receive(&frame(1, code, 1, EXPECTED + number as u32, &[code + 1; 8]));
        assert_eq!(node.frames(0).len(), 1);
        assert_eq!(node.memory.space(1)[..8], [code + 1; 8]);
    }
    assert_eq!(node.completed(1), [0, 2, 0, 0]);
}

/// STOCK-31 STOCK-35
#[test]
fn it_is_acknowledged_before_it_has_landed_and_a_page_that_is_not_there_stalls_all() {
    let mut node = node();
    node.memory.absent = 0..0x1000;
    node.card.receive(&write_only(EXPECTED, 0x100, &[7; 64]));
    assert_eq!(opcode(&node.frames(0)[0]), Some(0x11));
    assert_eq!((node.completed(1)[1], node.memory.space(1)[0x100]), (0, 0));
    // Another QP's own WRITE does not leave meanwhile.
    node.write(2, 0x8000, 0, 64);
    assert!(node.frames(0).is_empty());
    node.memory.absent = 0..0;
    assert_eq!(opcode(&node.frames(0)[0]), Some(0x0a));
    assert_eq!((node.completed(1)[1], node.memory.space(1)[0x100]), (1, 7));
}

/// STOCK-32
#[test]
fn unknown_opcodes_and_writes_of_nothing_park_reception_for_good() {
    let imm = |code| frame(1, code, 1, EXPECTED, &[0; 24]);
    let cases = [
        (imm(0x0b), Parked::Opcode(0x0b)),
        (imm(0x05), Parked::Opcode(0x05)),
        (imm(0x14), Parked::Opcode(0x14)),
        (imm(0x81), Parked::Opcode(0x81)),
        (write_only(EXPECTED, 0, &[]), Parked::EmptyWrite),
    ];
    for (first, why) in cases {
        let mut node = node();
        node.card.receive(&first);
        assert!(node.frames(0).is_empty());
        assert_eq!(node.card.parked(), Some(why));
        // No other QP hears anything any more.
        node.card.receive(&frame(1, 0x0a, 2, OTHER, &with_reth(0, 4, &[1; 4])));
        assert!(node.frames(0).is_empty());
        assert_eq!(node.memory.space(2)[..4], [0; 4]);
        // Where its number is not the expected one, it is only dropped.
        let mut other = self::node();
        other.card.receive(&frame(1, 0x81, 1, EXPECTED - 5, &[0; 24]));
        other.card.receive(&write_only(EXPECTED, 0, &[1; 4]));
        assert_eq!(other.card.parked(), None);
    }
}

#[test]
fn a_read_of_nothing_is_ignored() {
    let mut node = node();
    node.card.receive(&frame(1, 0x0c, 1, EXPECTED, &with_reth(0, 0, &[])));
    node.card.receive(&write_only(EXPECTED, 0, &[1; 4]));
    assert_eq!(opcode(&node.frames(0)[0]), Some(0x11));
}

/// STOCK-33
#[test]
fn an_address_of_more_than_48_bits_names_a_stream_that_is_not_there() {
    let mut node = node();
    node.card.receive(&write_only(EXPECTED, 1 << 48, &[1; 4]));
    assert!(node.frames(0).is_empty());
    assert_eq!(node.card.parked(), Some(Parked::Stream));
}

/// STOCK-34
#[test]
fn only_the_shells_reset_ends_it() {
    let mut node = node();
    node.card.receive(&write_only(EXPECTED, 0, &[]));
    let _ = node.frames(0);
    node.context(1, EXPECTED, 0, 0);
    assert!(node.card.parked().is_some());
    node.card.reset();
    assert_eq!((node.card.parked(), node.queued()), (None, 0));
    node.context(1, EXPECTED, 0, 0);
    node.card.receive(&write_only(EXPECTED, 0, &[5; 4]));
    let _ = node.frames(0);
    assert_eq!(node.memory.space(1)[..4], [5; 4]);
}

/// STOCK-37
#[test]
fn the_shells_only_sign_is_that_reception_stood_in_front_of_frames() {
    let mut node = node();
    node.card.receive(&write_only(EXPECTED, 0, &[]));
    let _ = node.frames(0);
    assert!(!node.card.stream_is_down());
    for number in 0..4 {
        let bytes = with_reth(0, 4, &[1; 4]);
        node.card.receive(&frame(1, 0x0a, 2, OTHER + number, &bytes));
    }
    let _ = node.frames(0);
    assert!(node.card.stream_is_down());
}

/// STOCK-28
#[test]
fn a_qps_number_leads_to_an_entry_whoevers_it_is() {
    let mut node = node();
    // 513 is QP 1 of 512; its payload goes to the address space that the number names, which is not there.
    node.card.receive(&frame(1, 0x0a, 513, EXPECTED, &with_reth(0, 4, &[1; 4])));
    assert_eq!(opcode(&node.frames(0)[0]), Some(0x11));
    assert_eq!(node.memory.space(1)[..4], [0; 4]);
    // QP 1 does not expect that number any more.
    node.card.receive(&write_only(EXPECTED, 0, &[3; 4]));
    let _ = node.frames(0);
    assert_eq!(node.memory.space(1)[..4], [0; 4]);
}

/// STOCK-21
#[test]
fn reads_and_writes_of_a_qp_share_one_cursor() {
    // A WRITE of the peer's between the packets of a READ response.
    let mut pair = Pair::new(&[1]);
    pair.nodes[1].memory.space(1)[..8192].copy_from_slice(&pattern(8192, 1));
    pair.nodes[0].read(1, 0x10_0000, 0, 8192);
    let request = pair.nodes[0].frames(0);
    pair.nodes[1].card.receive(&request[0]);
    let responses = pair.nodes[1].frames(0);
    assert_eq!(responses.len(), 2);
    pair.nodes[0].card.receive(&responses[0]);
    let write = with_reth(0x20_0000, 4, &[9; 4]);
    pair.nodes[0].card.receive(&frame(0, 0x0a, 1, 1100, &write));
    pair.nodes[0].card.receive(&responses[1]);
    let _ = pair.nodes[0].frames(0);
    let space = pair.nodes[0].memory.space(1);
    assert_eq!(space[0x10_1000..0x10_2000], [0; 4096]);
    assert_eq!(space[0x20_0004..0x20_1004], pattern(8192, 1)[4096..]);
    // The READ has completed all the same.
    assert_eq!(pair.nodes[0].completed(1)[1], 2);

    // A READ request of the peer's between the packets of its WRITE sends the rest to address 0.
    let mut node = node();
    node.card.receive(&frame(1, 0x06, 1, EXPECTED, &with_reth(0x1000, 4096, &[1; 4096])));
    node.card.receive(&frame(1, 0x0c, 1, EXPECTED + 1, &with_reth(0, 4, &[])));
    node.card.receive(&frame(1, 0x08, 1, EXPECTED + 2, &[2; 64]));
    let _ = node.frames(0);
    assert_eq!(node.memory.space(1)[..64], [2; 64]);
}
