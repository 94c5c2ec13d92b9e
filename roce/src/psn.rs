//! Packet sequence numbers: 24 bits on the wire, 64 bits inside.
//!
//! Inside the transport a packet is named by a *sequence*: a 64-bit number whose low 24 bits are
//! the PSN on the wire. Sequences never wrap, so windows are compared with plain `<`; only the two
//! conversions here know about wrap-around.

use core::fmt;

/// A packet sequence number as it stands on the wire: 24 bits, modulo arithmetic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    /// The bits that a PSN has.
    pub const MASK: u32 = 0x00ff_ffff;

    /// The PSN in the low 24 bits of `value`.
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self(value & Self::MASK)
    }

    /// The number, at most 24 bits.
    #[must_use]
    pub const fn value(self) -> u32 {
        self.0
    }

    /// The PSN `count` packets later.
    #[must_use]
    pub const fn add(self, count: u32) -> Self {
        Self::new(self.0.wrapping_add(count))
    }

    /// How many packets `self` lies after `reference`: from -2^23 (before) to 2^23 - 1 (after).
    #[must_use]
    pub const fn distance(self, reference: Self) -> i32 {
        // Move the 24-bit difference to the top of the word and let the sign extend.
        // RC-18
        (self.0.wrapping_sub(reference.0) << 8) as i32 >> 8
    }

    /// The PSN of a sequence.
    pub(crate) const fn of(sequence: u64) -> Self {
        Self::new(sequence as u32)
    }

    /// The sequence with this PSN that is nearest to `reference`.
    pub(crate) const fn near(self, reference: u64) -> u64 {
        reference.wrapping_add_signed(self.distance(Self::of(reference)) as i64)
    }

    /// The first sequence of a connection that starts at this PSN, far from zero so that no
    /// duplicate lies before it.
    pub(crate) const fn first_sequence(self) -> u64 {
        (1 << 32) | self.0 as u64
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every PSN that is special, and some that are not.
    fn samples() -> Vec<u32> {
        let mut samples = vec![0, 1, 2, 0x7f_fffe, 0x7f_ffff, 0x80_0000, 0x80_0001, 0xff_fffe];
        samples.push(0xff_ffff);
        let mut state = 0x9e37_79b9_u32;
        for _ in 0..500 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            samples.push(state >> 8);
        }
        samples
    }

    #[test]
    fn distance_undoes_addition_over_the_whole_half_space() {
        for &start in &samples() {
            for &step in &samples() {
                let from = Psn::new(start);
                let to = from.add(step);
                let expected =
                    if step < 0x80_0000 { step as i32 } else { step as i32 - 0x100_0000 };
                assert_eq!(to.distance(from), expected, "start {start} step {step}");
            }
        }
    }

    /// RC-18.
    #[test]
    fn distance_is_exhaustively_right_from_one_reference() {
        let reference = Psn::new(0xff_fff0);
        for step in 0..=Psn::MASK {
            let distance = reference.add(step).distance(reference);
            assert_eq!(distance.rem_euclid(1 << 24) as u32, step);
            assert!((-(1 << 23)..1 << 23).contains(&distance));
        }
    }

    /// RC-18.
    #[test]
    fn a_sequence_is_found_again_from_its_psn_anywhere_in_the_window() {
        for &start in &samples() {
            let reference = Psn::new(start).first_sequence() + 3 * (1 << 24);
            for &step in &samples() {
                let step = i64::from(step as i32 - 0x80_0000);
                let sequence = reference.wrapping_add_signed(step);
                assert_eq!(Psn::of(sequence).near(reference), sequence);
            }
        }
    }
}
