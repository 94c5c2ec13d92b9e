//! Changes of the invariant CRC with 16 bits of a frame, and the 16 bits that make a wrong CRC right.
//!
//! A CRC is linear: the difference of the CRCs of two frames of one length depends on the difference of the frames
//! alone, not on their other bytes. So a port that has to change a UDP source port or an IPv4 identification need not
//! read the payload again, and one that is not told of an identification can find it.
//!
//! Polynomials are written as CRC-32 has them, x^0 in the highest bit.

use super::ethernet;
use super::icrc;

/// CRC-32's polynomial without x^32.
const POLYNOMIAL: u32 = 0xedb8_8320;
/// The polynomial 1.
const ONE: u32 = 1 << 31;
/// The most bytes behind a field: more than any frame has.
const MOST_BEHIND: usize = 4352;

/// Where in an IPv4 packet its identification lies.
pub const IPV4_IDENTIFICATION: usize = ethernet::LENGTH + 4;
/// Where its flags lie, with a fragment's offset.
pub const IPV4_FLAGS: usize = ethernet::LENGTH + 6;

/// The values of powers of x, for changes of CRCs.
pub struct Differences {
    /// Powers of x from x^32 on: the weight of each bit of a frame, from the last one that the CRC covers on.
    powers: Vec<u32>,
    /// The field that makes a given change of the CRC, for each number of bytes from the field's first on.
    inverse: Vec<u32>,
}

impl core::fmt::Debug for Differences {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Differences").finish_non_exhaustive()
    }
}

impl Default for Differences {
    fn default() -> Self {
        let powers = core::iter::successors(Some(ONE), |power| Some(times_x(*power)));
        let back = |power: &u32| Some((0..8).fold(*power, |power, _| over_x(power)));
        Self {
            powers: powers.skip(32).take(8 * MOST_BEHIND).collect(),
            inverse: core::iter::successors(Some(ONE), back).take(MOST_BEHIND).collect(),
        }
    }
}

impl Differences {
    /// Gives a whole frame that ends with its invariant CRC other 16 bits at an even place, and a CRC that is as right or
    /// wrong as it was. False, and nothing is done, where the place is not in the frame.
    pub fn put(&self, frame: &mut [u8], at: usize, value: [u8; 2]) -> bool {
        let Some((behind, found)) = behind(frame, at) else { return false };
        let Some(place) = frame.get_mut(at..).and_then(<[u8]>::first_chunk_mut::<2>) else {
            return false;
        };
        if *place == value {
            return true;
        }
        let changes = [place[0] ^ value[0], place[1] ^ value[1]];
        let Some(worth) = self.worth(changes, behind) else { return false };
        *place = value;
        let changed = found ^ worth;
        if let Some(crc) = frame.last_chunk_mut::<{ icrc::LENGTH }>() {
            *crc = changed.to_le_bytes();
        }
        true
    }

    /// The difference of a whole frame's CRC from the right one if other 16 bits stood at a place; `wrong` is the
    /// difference as it is. `None` where the place is not in the frame.
    #[must_use]
    pub fn if_it_were(&self, frame: &[u8], at: usize, value: [u8; 2], wrong: u32) -> Option<u32> {
        let (behind, _) = behind(frame, at)?;
        let [now_first, now_second] = frame.get(at..)?.first_chunk::<2>()?;
        let [first, second] = value;
        Some(wrong ^ self.worth([first ^ now_first, second ^ now_second], behind)?)
    }

    /// The change that a field makes to the CRC, if it begins that many bytes before the end of the covered bytes.
    /// It has no branches, for the set bits cannot be predicted.
    #[inline]
    fn worth(&self, field: [u8; 2], behind: usize) -> Option<u32> {
        let last = behind.checked_sub(field.len())?.checked_mul(8)?;
        let powers = self.powers.get(last..)?.first_chunk::<16>()?;
        // The highest bit of the last byte is sent last.
        let field = u32::from(u16::from_le_bytes(field));
        let bit = |term: u32| (field.wrapping_shl(term) >> 15 & 1).wrapping_neg();
        Some(powers.iter().zip(0..).fold(0, |sum, (power, term)| sum ^ power & bit(term)))
    }

    /// The 16 bits at a place of a whole frame that make its invariant CRC right, if any do; `wrong` is the difference
    /// of its CRC from the right one.
    #[must_use]
    pub fn find(&self, frame: &[u8], at: usize, wrong: u32) -> Option<[u8; 2]> {
        let (behind, _) = behind(frame, at)?;
        let [first, second, 0, 0] = times(wrong, *self.inverse.get(behind)?).to_le_bytes() else {
            return None;
        };
        let [now_first, now_second] = frame.get(at..)?.first_chunk::<2>()?;
        Some([first ^ now_first, second ^ now_second])
    }
}

/// How many bytes the CRC covers from a field of two bytes on, and the CRC.
fn behind(frame: &[u8], at: usize) -> Option<(usize, u32)> {
    let (covered, crc) = frame.split_last_chunk::<{ icrc::LENGTH }>()?;
    let behind = covered.len().checked_sub(at).filter(|behind| *behind >= 2)?;
    Some((behind, u32::from_le_bytes(*crc)))
}

fn times_x(power: u32) -> u32 {
    power >> 1 ^ POLYNOMIAL & (power & 1).wrapping_neg()
}

fn over_x(power: u32) -> u32 {
    if power & ONE == 0 { power << 1 } else { (power ^ POLYNOMIAL) << 1 | 1 }
}

/// The product of two polynomials modulo CRC-32's. Without branches, as [`Differences::worth`].
fn times(one: u32, mut other: u32) -> u32 {
    let mut product = 0;
    for term in 0..32 {
        product ^= other & (one.wrapping_shl(term) >> 31).wrapping_neg();
        other = times_x(other);
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::icrc;

    /// A RoCE frame over IPv4 with so many bytes of payload.
    fn frame(payload: usize) -> Vec<u8> {
        let mut frame = vec![0; 14 + 20 + 8 + 12 + payload + 4];
        let total = (frame.len() - 14) as u16;
        frame[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
        frame[16..18].copy_from_slice(&total.to_be_bytes());
        for (at, byte) in frame.iter_mut().enumerate().skip(26) {
            *byte = (at * 7) as u8;
        }
        icrc::append(&mut frame).unwrap();
        frame
    }

    #[test]
    fn a_field_that_was_changed_has_the_crc_that_is_right() {
        let differences = Differences::default();
        for payload in [0, 4, 1024, 4096] {
            for (at, value) in
                [(IPV4_IDENTIFICATION, [0, 1]), (IPV4_IDENTIFICATION, [0xff, 0xee]), (34, [9, 8])]
            {
                let mut changed = frame(payload);
                assert!(differences.put(&mut changed, at, value));
                assert_eq!(changed[at..at + 2], value);
                assert!(icrc::check(&mut changed), "{payload} bytes at {at}");
            }
        }
    }

    #[test]
    fn a_field_that_was_not_told_is_found_and_nothing_else_is() {
        let differences = Differences::default();
        for payload in [0, 4, 1020, 4096] {
            for id in [1_u16, 63, 0x8000, 0xffff] {
                let mut sent = frame(payload);
                differences.put(&mut sent, IPV4_IDENTIFICATION, id.to_be_bytes());
                // The receiver does not hear of it.
                sent[IPV4_IDENTIFICATION..IPV4_IDENTIFICATION + 2].fill(0);
                let wrong = icrc::difference(&mut sent).unwrap();
                assert_ne!(wrong, 0);
                let found = differences.find(&sent, IPV4_IDENTIFICATION, wrong);
                assert_eq!(found, Some(id.to_be_bytes()), "{payload} bytes, id {id}");
                // A bit of the payload or of a header is not taken for one of the identification's.
                for at in (IPV4_IDENTIFICATION + 2..sent.len()).step_by(97) {
                    let mut damaged = sent.clone();
                    damaged[at] ^= 0x10;
                    let wrong = icrc::difference(&mut damaged).unwrap();
                    let found = differences.find(&damaged, IPV4_IDENTIFICATION, wrong);
                    assert!(found.is_none() || wrong == 0, "byte {at} of {payload}");
                }
            }
        }
    }

    #[test]
    fn what_other_flags_would_make_of_a_crc_is_known() {
        let differences = Differences::default();
        let mut sent = frame(64);
        let received = {
            let mut received = sent.clone();
            received[IPV4_FLAGS] ^= 0x40;
            received
        };
        assert!(icrc::check(&mut sent));
        let wrong = icrc::difference(&mut received.clone()).unwrap();
        let flags = sent[IPV4_FLAGS..].first_chunk::<2>().copied().unwrap();
        assert_eq!(differences.if_it_were(&received, IPV4_FLAGS, flags, wrong), Some(0));
        assert_eq!(differences.if_it_were(&received[..8], IPV4_FLAGS, flags, wrong), None);
    }

    #[test]
    fn places_outside_of_a_frame_are_refused() {
        let differences = Differences::default();
        let mut short = frame(0);
        let whole = short.clone();
        let end = short.len();
        for at in [end - 5, end - 4, end, usize::MAX] {
            assert!(!differences.put(&mut short, at, [1, 2]), "{at}");
            assert_eq!(differences.find(&short, at, 1), None);
        }
        assert_eq!(short, whole);
        assert!(!differences.put(&mut [1, 2, 3], 0, [1, 2]));
        assert!(!differences.put(&mut vec![0; 70_000], 0, [1, 2]));
    }
}
