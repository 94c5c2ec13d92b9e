//! Random posts on a good cable: the model's own faults keep off, so all data is exact.

use trial::rng::Rng;

use crate::rig::*;

fn storm(seed: u64) {
    let mut random = Rng::new(seed);
    let ctids: Vec<u8> = (0..1 + random.below(8) as u8).collect();
    let mut pair = Pair::new(&ctids);
    let mut want: Vec<(usize, u8, u64, Vec<u8>)> = Vec::new();
    let mut posted = [[0u32; 8]; 2];
    for round in 0..40u64 {
        for (node, posted) in posted.iter_mut().enumerate() {
            // One kind of request a QP, in one direction.
            let Some(&ctid) = ctids
                .iter()
                .filter(|it| usize::from(**it) % 2 == node)
                .nth(random.below(4) as usize)
            else {
                continue;
            };
            let most = random.pick(&[64, 64, 64, 8192]);
            let length = 4 * (1 + random.below(most) as u32);
            let (own, other) = (round * 40_000, (2 << 20) + round * 40_000);
            let data = pattern(length as usize, random.below(256) as u8);
            let reads = ctid & 2 != 0;
            let source = if reads { 1 - node } else { node };
            let from = own as usize;
            pair.nodes[source].memory.space(ctid)[from..][..data.len()].copy_from_slice(&data);
            match reads {
                true => pair.nodes[node].read(ctid, other, own, length),
                false => pair.nodes[node].write(ctid, own, other, length),
            }
            posted[usize::from(ctid)] += 1;
            let target = if reads { node } else { 1 - node };
            want.push((target, ctid, other, data));
        }
        if random.below(3) == 0 {
            pair.settle();
        }
        if pair.nodes.iter().any(|node| node.queued() > 22) {
            pair.settle();
        }
    }
    pair.settle();
    for (node, ctid, at, data) in want {
        let place = &pair.nodes[node].memory.space(ctid)[at as usize..][..data.len()];
        assert!(place == data, "seed {seed}: QP {ctid}");
    }
    for (node, posted) in posted.iter().enumerate() {
        for &ctid in &ctids {
            let [_, local_writes, _, writes] = pair.nodes[node].completed(ctid);
            let own = posted[usize::from(ctid)];
            let done = if ctid & 2 != 0 { local_writes } else { writes };
            if own > 0 {
                assert_eq!(done, own, "seed {seed}: QP {ctid}");
            }
        }
        assert_eq!(pair.nodes[node].card.parked(), None, "seed {seed}");
    }
    assert_eq!(
        pair.nodes.each_ref().map(|node| node.card.next_timeout()),
        [None; 2],
        "seed {seed}"
    );
}

#[test]
fn a_hundred_storms_on_a_good_cable_are_exact_and_leave_nothing_behind() {
    for seed in 0..100 {
        storm(seed);
    }
}
