//! What a cable does to frames.

use roce::{Kept, ReceivedFrame};
use trial::rng::Rng;

/// A frame under way.
#[derive(Clone, Debug)]
pub struct Frame {
    pub bytes: Vec<u8>,
    /// The bit that a cable flipped, counted from the first byte's lowest. No frame is damaged
    /// twice, so that a judge can tell what must become of it.
    pub flipped: Option<usize>,
    /// Its node has sent it to itself.
    pub looped: bool,
}

impl ReceivedFrame for Frame {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn is_vouched_for(&self) -> bool {
        false
    }

    fn is_looped(&self) -> bool {
        self.looped
    }
}

impl From<Vec<u8>> for Frame {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, flipped: None, looped: false }
    }
}

/// A frame that keeps what it is told.
pub struct Held {
    pub bytes: Vec<u8>,
    kept: Kept,
}

impl ReceivedFrame for Held {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn is_vouched_for(&self) -> bool {
        false
    }

    fn kept(&self) -> Kept {
        self.kept
    }

    fn keep(&mut self, kept: Kept) {
        self.kept = kept;
    }
}

impl From<Vec<u8>> for Held {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, kept: Kept::default() }
    }
}

/// Faults in units of one in 10,000 frames, and times in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Cable {
    pub loss: u32,
    pub duplication: u32,
    pub reordering: u32,
    pub corruption: u32,
    /// Of the frames that allow it: marked "congestion experienced".
    pub marking: u32,
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
        marking: 0,
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
        mut frame: Frame,
        tally: &mut Tally,
    ) -> Vec<(u64, Frame)> {
        tally.carried += 1;
        if rng.chance(self.loss) {
            tally.lost += 1;
            return Vec::new();
        }
        // Marking makes a new header checksum, which must not cover up earlier damage.
        if frame.flipped.is_none() && rng.chance(self.marking) && mark(&mut frame.bytes) {
            tally.marked += 1;
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
        let protected = copies[0].1.bytes[12..14] != [0x08, 0x06];
        for (_, frame) in &mut copies {
            if protected && frame.flipped.is_none() && rng.chance(self.corruption) {
                tally.corrupted += 1;
                let bit = rng.below(frame.bytes.len() as u64 * 8) as usize;
                frame.bytes[bit / 8] ^= 1 << (bit % 8);
                frame.flipped = Some(bit);
            }
        }
        copies
    }
}

/// Marks a frame "congestion experienced", as a switch does, if its sender allows that.
pub fn mark(frame: &mut [u8]) -> bool {
    match [frame[12], frame[13]] {
        [0x08, 0x00] if matches!(frame[15] & 3, 1 | 2) => {
            frame[15] |= 3;
            frame[24..26].fill(0);
            let words =
                frame[14..34].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
            let sum: u32 = words.sum();
            let sum = (sum & 0xffff) + (sum >> 16);
            let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
            frame[24..26].copy_from_slice(&checksum.to_be_bytes());
            true
        }
        // The traffic class lies across two bytes.
        [0x86, 0xdd] if matches!(frame[15] >> 4 & 3, 1 | 2) => {
            frame[15] |= 0x30;
            true
        }
        _ => false,
    }
}

/// What the cables did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub carried: u64,
    pub lost: u64,
    pub duplicated: u64,
    pub reordered: u64,
    pub corrupted: u64,
    pub marked: u64,
}
