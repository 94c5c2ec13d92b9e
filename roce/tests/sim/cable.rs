//! What a cable does to frames.

use crate::rng::Rng;

/// Faults in units of one in 10,000 frames, and times in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Cable {
    pub loss: u32,
    pub duplication: u32,
    pub reordering: u32,
    pub corruption: u32,
    /// Every frame takes this long.
    pub delay: u64,
    /// And up to this much more, without overtaking.
    pub jitter: u64,
    /// A reordered frame comes up to this much later.
    pub reorder_delay: u64,
}

impl Cable {
    pub const PERFECT: Self = Self {
        loss: 0,
        duplication: 0,
        reordering: 0,
        corruption: 0,
        delay: 1_000,
        jitter: 0,
        reorder_delay: 20_000,
    };

    /// Each fault to the same degree.
    pub const fn bad(n: u32) -> Self {
        Self {
            loss: n,
            duplication: n,
            reordering: n,
            corruption: n,
            jitter: 3_000,
            ..Self::PERFECT
        }
    }

    /// The times at which copies of a frame sent at `now` arrive, and what they are by then.
    /// `last` is when the previous frame in order arrived.
    pub fn carry(
        &self,
        rng: &mut Rng,
        now: u64,
        last: &mut u64,
        frame: Vec<u8>,
        tally: &mut Tally,
    ) -> Vec<(u64, Vec<u8>)> {
        tally.sent += 1;
        if rng.chance(self.loss) {
            tally.lost += 1;
            return Vec::new();
        }
        let jitter = if self.jitter == 0 { 0 } else { rng.below(self.jitter + 1) };
        let mut arrival = (now + self.delay + jitter).max(*last);
        if rng.chance(self.reordering) {
            tally.reordered += 1;
            arrival += 1 + rng.below(self.reorder_delay);
        } else {
            *last = arrival;
        }
        let mut copies = vec![(arrival, frame)];
        if rng.chance(self.duplication) {
            tally.duplicated += 1;
            let copy = copies[0].1.clone();
            copies.push((arrival + rng.below(self.reorder_delay + 1), copy));
        }
        // Ethernet's own check would have caught damage on the cable; what slips through happens
        // inside a switch, to frames that the ICRC protects. ARP has no such protection.
        let protected = copies[0].1[12..14] != [0x08, 0x06];
        for (_, frame) in &mut copies {
            if protected && rng.chance(self.corruption) {
                tally.corrupted += 1;
                let bit = rng.below(frame.len() as u64 * 8) as usize;
                frame[bit / 8] ^= 1 << (bit % 8);
            }
        }
        copies
    }
}

/// What the cables did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub sent: u64,
    pub lost: u64,
    pub duplicated: u64,
    pub reordered: u64,
    pub corrupted: u64,
}
