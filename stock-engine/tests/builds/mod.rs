//! Cards whose shell is not known to be mended, and windows that a reset leaves as they are.

use stock_engine::Faults;

use crate::net::Net;

const MS: u64 = 1_000_000;
const UNKNOWN: Faults = Faults { windows: true, selection: true };
/// Bytes of a message, several packets.
const BYTES: u32 = 60_000;

/// Four QPs of an old build WRITE over a cable that loses one packet, the number `lost`: how many messages were told to be
/// complete, and how many of these are not where they belong.
fn write(seed: u64, faults: Faults, loss: u64) -> (usize, usize) {
    let mut net = Net::old(seed, faults);
    let qps: Vec<_> = (0..4).map(|_| net.connect()).collect();
    for &[a, b] in &qps {
        for message in 0..3 {
            let at = message << 17;
            net.fill(0, a, at, BYTES, seed + at + 1);
            net.fill(1, b, at, BYTES, seed + at + 2);
        }
        net.submit(0, a, false, 0, BYTES).unwrap();
    }
    // The way to the peer is known.
    net.run(20 * MS);
    (net.loss, net.may_stand) = (loss, true);
    for &[a, _] in &qps {
        for message in 1..3 {
            net.submit(0, a, false, message << 17, BYTES).unwrap();
        }
    }
    net.run(8_000 * MS);
    let (mut complete, mut wrong) = (0, 0);
    for &[a, b] in &qps {
        for message in 0..net.completed.get(&(0, a)).copied().unwrap_or(0) {
            let at = message << 17;
            complete += 1;
            wrong += usize::from(net.bytes(0, a, at, BYTES) != net.bytes(1, b, at, BYTES));
        }
    }
    (complete, wrong)
}

#[test]
fn one_write_at_a_time_is_repeated_right_by_a_card_of_an_old_build() {
    let sum = |faults: Faults, loss| {
        let all = (0..6).map(|seed| write(seed, faults, loss));
        all.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    };
    assert_eq!(sum(UNKNOWN, 0), (72, 0));
    assert_eq!(sum(UNKNOWN, 300), (72, 0));
    // The model's choice: several at a time are reported as complete, and are not.
    let (_, wrong) = sum(Faults::default(), 300);
    assert!(wrong > 0, "repetitions have the payload of others");
}

/// Eight of a card's packets are on their way, of any QPs, so none is behind eight that wait for their payload.
#[test]
fn writes_and_answers_of_a_card_that_loses_selections_go_together() {
    for seed in 0..4 {
        for faults in [UNKNOWN, Faults { windows: false, selection: true }] {
            let mut net = Net::old(seed, faults);
            let qps: Vec<_> = (0..12).map(|_| net.connect()).collect();
            for (index, &[a, b]) in qps.iter().enumerate() {
                let (side, own) = if index % 2 == 0 { (0, a) } else { (1, b) };
                net.fill(0, a, 0, BYTES, seed + 1);
                net.fill(1, b, 0, BYTES, seed + 2);
                net.submit(side, own, index % 3 == 0, 0, BYTES).unwrap();
            }
            net.run(1_000 * MS);
            assert_eq!(net.completed.values().sum::<u64>(), 12, "{faults:?}: {:?}", net.failed);
            for &[a, b] in &qps {
                assert!(net.bytes(0, a, 0, BYTES) == net.bytes(1, b, 0, BYTES), "{a}");
            }
        }
    }
}

/// Sends so much to a peer that falls silent, until the QP is given up; its number.
fn give_up(net: &mut Net, bytes: u32) -> u32 {
    let [a, b] = net.connect();
    net.submit(0, a, false, 0, 4096).unwrap();
    net.run(20 * MS);
    assert_eq!(net.completed.get(&(0, a)), Some(&1));
    net.silence(&[b]);
    net.submit(0, a, false, 0, bytes).unwrap();
    net.run(2_000 * MS);
    assert!(net.failed.contains_key(&(0, a)));
    net.silence(&[]);
    a
}

#[test]
fn a_number_whose_window_is_full_stands_in_nobodys_way_behind_a_reset() {
    let mut net = Net::new(3);
    let full = give_up(&mut net, 1 << 16);
    let half = give_up(&mut net, 1 << 15);
    for _ in 0..2 {
        net.reset_card(0);
        net.reset_card(1);
        let mut named = Vec::new();
        while let Ok(qpn) = net.try_create(0) {
            named.push(qpn);
        }
        assert_eq!((named.contains(&full), named.contains(&half), named.len()), (false, true, 61));
        for qpn in named {
            net.destroy(0, qpn);
        }
        // Each number in turn, with more than the window of one of them has room for.
        for _ in 0..62 {
            let [a, b] = net.connect();
            net.fill(0, a, 0, 1 << 17, 5);
            net.submit(0, a, false, 0, 1 << 17).unwrap();
            net.run(20 * MS);
            assert_eq!(net.completed.get(&(0, a)), Some(&1), "{a}");
            assert!(net.bytes(0, a, 0, 1 << 17) == net.bytes(1, b, 0, 1 << 17));
            net.destroy(0, a);
            net.destroy(1, b);
        }
    }
}
