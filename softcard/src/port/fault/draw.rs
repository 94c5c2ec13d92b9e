//! Draws that depend on a seed, a card, a direction and the frame's number, and on nothing else.
//!
//! Each frame has a short sequence of random words of its own, so neither decisions about
//! earlier frames nor the set of faults shifts its draws. The generator is
//! SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).

use super::spec::{FaultSpec, Rate};
use crate::port::Direction;

/// The odd constant that SplitMix64 steps by: 2^64 divided by the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Most later frames that a frame held back lets pass.
const MAX_DISPLACEMENT: u64 = 8;

/// The source of random faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultSource {
    /// The seed that the user gave.
    pub seed: u64,
    /// Number of the card.
    pub card: usize,
    /// Number of the middleware among those around the card's port, so that no two draw alike.
    pub layer: usize,
}

/// A random word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Draw(u64);

impl Draw {
    /// A number from 0 to `count` - 1, each as likely; 0 when there is none.
    pub(super) fn below(self, count: u64) -> u64 {
        // The upper half of the product: at most `count` - 1.
        (u128::from(self.0).wrapping_mul(u128::from(count)) >> 64) as u64
    }

    pub(super) fn hits(self, rate: Rate) -> bool {
        self.below(Rate::ALL.billionths().into()) < rate.billionths().into()
    }
}

/// The faults of one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Decision {
    pub(super) lost: bool,
    pub(super) duplicated: bool,
    /// How many later frames pass it, if it is held back.
    pub(super) displacement: Option<u64>,
    /// The bit that is flipped, once the number of bits is known.
    pub(super) flip: Option<Draw>,
    /// Nanoseconds.
    pub(super) delay: Option<u64>,
    pub(super) marked: bool,
    /// The draw that decides about a mark, once the length of the queue is known.
    pub(super) mark: Draw,
}

/// The decisions about the frames of one direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decisions {
    key: u64,
}

impl Decisions {
    pub(super) fn new(source: FaultSource, direction: Direction) -> Self {
        let direction = match direction {
            Direction::Outbound => 0,
            Direction::Inbound => 1,
        };
        let words = [source.seed, source.card as u64, source.layer as u64, direction];
        Self { key: words.into_iter().fold(0, |key, word| mix((key ^ word).wrapping_add(STEP))) }
    }

    /// The faults of a frame, numbered from 0.
    pub(super) fn about(&self, frame: u64, spec: &FaultSpec) -> Decision {
        let mut state = mix((self.key ^ frame).wrapping_add(STEP));
        let mut draw = || {
            state = state.wrapping_add(STEP);
            Draw(mix(state))
        };
        // Everything is drawn in this order for every frame, needed or not.
        let [loss, dup, reorder, displacement, corrupt, bit, delay, ecn] =
            [draw(), draw(), draw(), draw(), draw(), draw(), draw(), draw()];
        let displacement = displacement.below(MAX_DISPLACEMENT).saturating_add(1);
        Decision {
            lost: loss.hits(spec.loss),
            duplicated: dup.hits(spec.dup),
            displacement: reorder.hits(spec.reorder).then_some(displacement),
            flip: corrupt.hits(spec.corrupt).then_some(bit),
            delay: spec.delay.map(|range| {
                let choices = range.max.saturating_sub(range.min).saturating_add(1);
                range.min.saturating_add(delay.below(choices))
            }),
            marked: ecn.hits(spec.ecn),
            mark: ecn,
        }
    }
}

/// The output function of SplitMix64: a bijection that spreads every bit over the word.
fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: FaultSource = FaultSource { seed: 1, card: 0, layer: 0 };

    fn spec(text: &str) -> FaultSpec {
        text.parse().unwrap()
    }

    fn decided(source: FaultSource, direction: Direction, text: &str) -> Vec<Decision> {
        let (decisions, spec) = (Decisions::new(source, direction), spec(text));
        (0..1000).map(|frame| decisions.about(frame, &spec)).collect()
    }

    #[test]
    fn the_generator_is_splitmix64() {
        // The first words of the published generator from state 0.
        assert_eq!(mix(STEP), 0xe220_a839_7b1d_cdaf);
        assert_eq!(mix(STEP.wrapping_mul(2)), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn every_part_of_the_source_changes_what_is_drawn_and_nothing_else_does() {
        let text = "loss=50%,delay=0ns..1ms";
        let base = decided(SOURCE, Direction::Outbound, text);
        assert_eq!(base, decided(SOURCE, Direction::Outbound, text));
        for (other, direction) in [
            (SOURCE, Direction::Inbound),
            (FaultSource { seed: 2, ..SOURCE }, Direction::Outbound),
            (FaultSource { card: 1, ..SOURCE }, Direction::Outbound),
            (FaultSource { layer: 1, ..SOURCE }, Direction::Outbound),
        ] {
            let other = decided(other, direction, text);
            let agreeing = base.iter().zip(&other).filter(|(a, b)| a.lost == b.lost).count();
            assert!((400..600).contains(&agreeing), "{agreeing} of 1000 agree");
        }
    }

    #[test]
    fn one_fault_is_decided_alike_whichever_others_are_asked_for() {
        let alone = decided(SOURCE, Direction::Outbound, "corrupt=20%");
        let among = decided(
            SOURCE,
            Direction::Outbound,
            "loss=30%,dup=30%,reorder=30%,corrupt=20%,ecn=30%,delay=1us..9us",
        );
        assert!(alone.iter().zip(&among).all(|(a, b)| a.flip == b.flip));
    }

    #[test]
    fn the_ends_of_every_range_are_drawn() {
        let decisions = decided(SOURCE, Direction::Outbound, "reorder=100%,delay=5ns..7ns");
        for displacement in 1..=MAX_DISPLACEMENT {
            assert!(decisions.iter().any(|d| d.displacement == Some(displacement)));
        }
        for delay in 5..=7 {
            assert!(decisions.iter().any(|d| d.delay == Some(delay)));
        }
        assert!(decisions.iter().all(|d| (5..=7).contains(&d.delay.unwrap())));
        assert_eq!((Draw(u64::MAX).below(3), Draw(0).below(3), Draw(u64::MAX).below(0)), (2, 0, 0));
    }
}
