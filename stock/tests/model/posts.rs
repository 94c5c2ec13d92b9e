//! Posting.

use fpga_regs::coyote::vfpga::{self as v, Command, Stream};

use crate::rig::*;

fn with_data(ctids: &[u8]) -> Pair {
    let mut pair = Pair::new(ctids);
    for &ctid in ctids {
        pair.nodes[0].memory.space(ctid)[..1 << 20].copy_from_slice(&pattern(1 << 20, ctid));
        pair.nodes[1].memory.space(ctid)[..1 << 20].copy_from_slice(&pattern(1 << 20, !ctid));
    }
    pair
}

#[test]
fn a_write_and_a_read_of_every_size_are_exact_and_counted() {
    for length in [4u32, 64, 4092, 4096, 4100, 32768, 36864, 1 << 20] {
        let mut pair = with_data(&[3]);
        pair.nodes[0].write(3, 0, 2 << 20, length);
        pair.settle();
        assert_eq!(pair.nodes[0].completed(3), [1, 0, 0, 1], "{length}");
        assert_eq!(pair.nodes[1].completed(3), [0, 1, 0, 0], "{length}");
        let want = pattern(1 << 20, 3)[..length as usize].to_vec();
        let space = pair.nodes[1].memory.space(3);
        assert_eq!(space[2 << 20..][..length as usize], want, "{length}");
        assert!(space[(2 << 20) + length as usize..].iter().all(|it| *it == 0), "{length}");

        let mut pair = with_data(&[3]);
        pair.nodes[0].read(3, 3 << 20, 0, length);
        pair.settle();
        let want = pattern(1 << 20, !3)[..length as usize].to_vec();
        assert_eq!(pair.nodes[0].memory.space(3)[3 << 20..][..length as usize], want, "{length}");
        assert_eq!(pair.nodes[0].completed(3)[1], 1, "{length}");
        assert_eq!(pair.nodes[1].completed(3)[0], length.div_ceil(32768), "{length}");
    }
}

/// STOCK-1
#[test]
fn one_store_of_32_bytes_posts_and_what_is_on_the_bus_decides() {
    let mut pair = with_data(&[1]);
    pair.nodes[0].write(1, 0, 1 << 20, 64);
    assert_eq!((pair.nodes[0].sent(), pair.nodes[0].queued()), ([0, 0, 0, 1], 1));
    // An address alone posts nothing, for the halves on the bus are not active.
    pair.nodes[0].store(v::VADDR_WR, &0u64.to_le_bytes());
    assert_eq!((pair.nodes[0].sent(), pair.nodes[0].queued()), ([0, 0, 0, 1], 1));
}

/// STOCK-2
#[test]
fn a_split_store_counts_as_sent_and_sends_nothing() {
    for size in [8, 16] {
        let mut pair = with_data(&[1]);
        let (first, second) = write_halves(1, 64);
        let words = bytes_of([first.encode(), 0, second.encode(), 1 << 20]);
        for (offset, part) in (0u64..).step_by(size).zip(words.chunks(size)) {
            pair.nodes[0].store(offset, part);
        }
        pair.settle();
        assert_eq!(pair.nodes[0].sent(), [0, 0, 0, 1], "{size}");
        assert_eq!(pair.opcodes(0), [], "{size}");
        assert!(pair.nodes[0].card.starves());
    }
}

/// STOCK-2
#[test]
fn a_read_that_is_split_runs_with_the_write_half_of_before() {
    let mut pair = with_data(&[1]);
    pair.nodes[0].read(1, 2 << 20, 0, 64);
    pair.settle();
    let (first, second) = read_halves(1, 64);
    let words = bytes_of([first.encode(), 0x40, second.encode(), 3 << 20]);
    pair.nodes[0].store(v::CTRL, &words[..16]);
    pair.nodes[0].store(v::CTRL_2, &words[16..]);
    pair.settle();
    let space = pair.nodes[0].memory.space(1);
    assert_eq!(space[2 << 20..][..64], pattern(128, !1)[64..]);
    assert_eq!(space[3 << 20..][..64], [0; 64]);
}

/// STOCK-3
#[test]
fn the_33rd_post_is_lost_in_silence() {
    let mut pair = with_data(&[1]);
    for number in 0..40 {
        pair.nodes[0].write(1, 64 * number, (1 << 20) + 64 * number, 64);
    }
    assert_eq!((pair.nodes[0].queued(), pair.nodes[0].sent()[3]), (32, 40));
    pair.settle();
    assert_eq!(pair.nodes[0].completed(1), [32, 0, 0, 32]);
    assert_eq!(pair.nodes[0].card.tally().lost_posts, 8);
}

/// STOCK-4
#[test]
fn payload_that_never_comes_keeps_all_posts_of_a_vfpga_for_good() {
    let change: [fn(&mut Command, &mut Command); 4] = [
        |first, _| first.stream = Stream::Card,
        |first, _| first.length = 32,
        |first, _| first.last = false,
        |first, second| (first.length, second.length) = (0, 0),
    ];
    for (number, change) in change.into_iter().enumerate() {
        let mut pair = with_data(&[1, 2]);
        let (mut first, mut second) = write_halves(1, 64);
        change(&mut first, &mut second);
        pair.nodes[0].post((first, second), (0, 1 << 20));
        pair.nodes[0].write(2, 0, 1 << 20, 64);
        pair.settle();
        while pair.wait() {}
        assert_eq!(pair.opcodes(0), [], "{number}");
        assert_eq!(pair.nodes[0].queued(), 1, "{number}");
    }
    // Without `last` only whole packets leave.
    let mut pair = with_data(&[1]);
    let (mut first, second) = write_halves(1, 8192);
    first.last = false;
    pair.nodes[0].post((first, second), (0, 1 << 20));
    pair.settle();
    assert_eq!(pair.opcodes(0), [6, 8]);
    assert_eq!(pair.nodes[0].completed(1), [0, 0, 0, 1]);
}

/// STOCK-4 STOCK-36
#[test]
fn payload_that_the_driver_refuses_never_comes_either() {
    let mut pair = with_data(&[1]);
    pair.nodes[0].memory.refused = 0..4096;
    pair.nodes[0].write(1, 0, 1 << 20, 64);
    pair.settle();
    assert!(pair.nodes[0].card.starves() && pair.opcodes(0).is_empty());
    // What a peer asks for: then nothing leaves the card any more, not even an acknowledgement.
    let mut pair = with_data(&[1, 2]);
    pair.nodes[1].memory.refused = 0..4096;
    pair.nodes[0].read(1, 1 << 20, 0, 64);
    pair.settle();
    pair.nodes[0].write(2, 8192, 8192, 64);
    pair.settle();
    assert!(pair.nodes[1].card.starves() && pair.opcodes(1).is_empty());
    // What is to land is gone, the peer was told that it came, and no counter moves.
    let mut pair = with_data(&[1]);
    pair.nodes[1].memory.refused = 0..4096;
    pair.nodes[0].write(1, 0, 0, 64);
    pair.settle();
    assert_eq!(pair.nodes[0].completed(1)[3], 1);
    assert_eq!((pair.nodes[1].completed(1)[1], pair.nodes[1].card.tally().refused), (0, 1));
}

/// STOCK-5
#[test]
fn eight_read_pieces_of_a_vfpga_are_out_and_a_dead_peer_keeps_them() {
    let mut pair = with_data(&[1, 2]);
    pair.nodes[0].read(1, 2 << 20, 0, 1 << 20);
    let out = pair.nodes[0].frames(0);
    let lengths: Vec<u32> = out.iter().map(|frame| reth(frame).2).collect();
    assert_eq!(lengths, [32768; 8]);
    // Another QP's READ does not leave, however long the first one is silent.
    pair.nodes[0].read(2, 0, 0, 64);
    for _ in 0..20 {
        let Some(due) = pair.nodes[0].card.next_timeout() else { break };
        let again = pair.nodes[0].frames(due);
        assert!(again.iter().all(|frame| frame[47..50] == [0, 0, 1]));
    }
    assert_eq!(pair.nodes[0].card.next_timeout(), None);
    assert_eq!(pair.nodes[0].queued(), 1);
}

/// STOCK-6
#[test]
fn a_context_fires_on_each_part_of_a_store_with_what_the_register_holds() {
    let mut pair = with_data(&[1]);
    let second = v::RdmaContext1 { local_psn: 7, remote_psn: 9 }.encode();
    pair.nodes[0].store(v::RDMA_CTX_0 + 8, &second.to_le_bytes());
    // It was fired for the QP whose context was stored last, whose peer expects another number.
    pair.nodes[0].write(1, 0, 1 << 20, 64);
    let frames = pair.nodes[0].frames(0);
    assert_eq!(psn(&frames[0]), 9);
}

/// STOCK-7
#[test]
fn what_the_splitter_does_not_know_is_gone_and_raw_packets_go_as_they_are() {
    let mut pair = with_data(&[1]);
    let (first, mut second) = write_halves(1, 64);
    second.opcode = 3;
    pair.nodes[0].post((first, second), (0, 1 << 20));
    pair.settle();
    assert_eq!((pair.opcodes(0), pair.nodes[0].queued()), (vec![], 0));
    let (first, mut second) = write_halves(1, 64);
    (second.raw, second.opcode) = (true, 0x0a);
    pair.nodes[0].post((first, second), (0, 1 << 20));
    pair.settle();
    assert_eq!((pair.opcodes(0), pair.nodes[0].completed(1)[3]), (vec![0x0a], 1));
}

/// STOCK-8
#[test]
fn a_full_window_holds_up_every_qp_of_the_card() {
    let mut pair = with_data(&[1, 2]);
    pair.nodes[0].write(1, 0, 1 << 20, 17 * 4096);
    pair.nodes[0].write(2, 0, 1 << 20, 64);
    let out = pair.nodes[0].frames(0);
    assert_eq!(out.len(), 16);
    assert!(out.iter().all(|frame| frame[47..50] == [0, 0, 1]));
    // READs have a window of their own; it is of no use to them behind that request.
    pair.nodes[0].read(2, 0, 0, 64);
    assert!(pair.nodes[0].frames(0).is_empty());
    for frame in out {
        pair.nodes[1].card.receive(&frame);
        let _ = pair.nodes[1].work(0);
    }
    pair.settle();
    assert_eq!((pair.nodes[0].completed(1)[3], pair.nodes[0].completed(2)[3]), (1, 1));
}
