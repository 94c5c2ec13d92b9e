//! Completions.

use fpga_regs::coyote::vfpga as v;

use crate::rig::*;

/// STOCK-17
#[test]
fn only_what_is_posted_with_last_is_counted_and_local_writes_mix_messages_and_own_reads() {
    let mut pair = Pair::new(&[1]);
    pair.nodes[0].memory.space(1);
    let (first, mut second) = write_halves(1, 64);
    second.last = false;
    pair.nodes[0].post((first, second), (0, 0x1000));
    pair.settle();
    assert_eq!(pair.nodes[0].completed(1), [1, 0, 0, 0]);
    // The responder counts the message nevertheless.
    assert_eq!(pair.nodes[1].completed(1), [0, 1, 0, 0]);
    pair.nodes[1].write(1, 0, 0x1000, 8192);
    pair.settle();
    pair.nodes[0].read(1, 0, 0x1000, 64);
    pair.settle();
    assert_eq!(pair.nodes[0].completed(1)[1], 2);
}

/// STOCK-18
#[test]
fn a_read_is_counted_as_one_more_than_the_writes_are() {
    let mut pair = Pair::new(&[1]);
    pair.nodes[0].memory.space(1);
    for _ in 0..3 {
        pair.nodes[0].write(1, 0, 0x1000, 64);
    }
    pair.settle();
    for _ in 0..5 {
        pair.nodes[0].read(1, 0, 0x1000, 64);
    }
    pair.settle();
    assert_eq!(pair.nodes[0].completed(1), [3, 5, 4, 3]);
}

/// STOCK-19
#[test]
fn a_half_clears_its_pair_and_writes_0_to_where_copies_should_be() {
    let mut pair = Pair::new(&[5]);
    let node = &mut pair.nodes[0];
    node.memory.space(5);
    let bases = [0u64, 0x100, 0x200, 0x300].map(|at| WRITEBACK + at);
    node.store(v::WBACK.offset, &bytes_of(bases));
    node.write(5, 0, 0x1000, 64);
    pair.settle();
    let node = &mut pair.nodes[0];
    node.memory.written_back.clear();
    let clear = |clear| fpga_regs::coyote::vfpga::Command { ctid: 5, clear, ..Default::default() };
    node.post((clear(true), clear(false)), (0, 0));
    assert_eq!(node.completed(5), [0, 0, 0, 1]);
    assert_eq!(node.memory.written_back, [(WRITEBACK + 20, 0), (WRITEBACK + 0x200 + 20, 0)]);
    node.post((clear(false), clear(true)), (0, 0));
    assert_eq!(node.completed(5), [0; 4]);
    assert_eq!(node.sent(), [0, 0, 0, 1]);
}

/// STOCK-20
#[test]
fn copies_of_the_networks_counters_go_to_where_the_completions_record_points() {
    let mut pair = Pair::new(&[5]);
    let node = &mut pair.nodes[0];
    node.memory.space(5);
    let bases = [0u64, 0x100, 0x200, 0x300].map(|at| WRITEBACK + at);
    node.store(v::WBACK.offset, &bytes_of(bases));
    node.write(5, 0, 0x1000, 64);
    pair.settle();
    let place = WRITEBACK + 0x300 + 0x2_2e00_0000 + 5 * 0x8000;
    let written = &pair.nodes[0].memory.written_back;
    assert_eq!(written, &[(WRITEBACK + 20, 1), (place, 1)]);
}

/// STOCK-9
#[test]
fn an_answer_frees_one_slot_whatever_it_answers() {
    let mut pair = Pair::new(&[1]);
    pair.nodes[0].memory.space(1);
    for round in 0..3 {
        for number in 0..4 {
            pair.nodes[0].write(1, 64 * number, 0x1000, 64);
        }
        let frames = pair.nodes[0].frames(0);
        // One ACK for all four, as a good responder may send.
        let newest = psn(frames.last().unwrap());
        pair.nodes[0].card.receive(&ack_frame(0, 1, newest, 0x1f));
        let _ = pair.nodes[0].work(0);
        assert_eq!(pair.nodes[0].completed(1)[3], round + 1);
    }
    // Nine of sixteen slots are gone for good.
    for number in 0..16 {
        pair.nodes[0].write(1, 64 * number, 0x1000, 64);
    }
    assert_eq!(pair.nodes[0].frames(0).len(), 7);
}
