//! Message authentication codes by SipHash-2-4, and the keys that are made with it.

use core::hash::Hasher as _;

use siphasher::sip::SipHasher24;

/// A key of 128 bits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key([u64; 2]);

/// Nobody's log is to have one.
impl core::fmt::Debug for Key {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Key")
    }
}

/// The sender and the receiver, each by IPv4 address and QPN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Direction {
    /// The sender.
    pub from: (u32, u32),
    /// The receiver.
    pub to: (u32, u32),
}

impl Direction {
    /// The other one.
    #[must_use]
    pub const fn back(self) -> Self {
        Self { from: self.to, to: self.from }
    }

    /// The card's first sequence number in this direction. No secret is in it: two ends with different keys would refuse
    /// each other's packets, which stops a published card.
    pub(crate) fn first_psn(self) -> u32 {
        (Key([0; 2]).mac(&[], &self.text(3, 0)) & 0xff_ffff) as u32
    }

    fn text(self, label: u8, psn: u32) -> [u8; 21] {
        let mut text = [label; 21];
        let words = [self.from.0, self.from.1, self.to.0, self.to.1, psn];
        let (_, rest) = text.split_at_mut(1);
        for (chunk, word) in rest.chunks_exact_mut(4).zip(words) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        text
    }
}

impl Key {
    /// The key whose bytes these are.
    #[must_use]
    pub const fn new(bytes: [u8; 16]) -> Self {
        let number = u128::from_le_bytes(bytes);
        Self([number as u64, (number >> 64) as u64])
    }

    /// The key of slots in a direction, where the number that a program has named is `psn`.
    #[must_use]
    pub fn of_slots(&self, direction: Direction, psn: u32) -> Self {
        Self([1, 2].map(|label| self.mac(&[], &direction.text(label, psn))))
    }

    /// SipHash-2-4 of words, and of bytes behind them.
    pub(crate) fn mac(&self, words: &[u64], bytes: &[u8]) -> u64 {
        let [low, high] = self.0;
        let mut hasher = SipHasher24::new_with_keys(low, high);
        words.iter().for_each(|word| hasher.write(&word.to_le_bytes()));
        hasher.write(bytes);
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of SipHash's authors: the key is the bytes 0 to 15, the text those from 0 on.
    #[test]
    fn it_is_siphash_2_4() {
        let key = Key::new(core::array::from_fn(|index| index as u8));
        let text: Vec<u8> = (0..15).collect();
        assert_eq!(key.mac(&[], &[]), 0x726f_db47_dd0e_0e31);
        assert_eq!(key.mac(&[], &text), 0xa129_ca61_49be_45e5);
        let word = u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(key.mac(&[word], &[8, 9, 10, 11, 12, 13, 14]), 0xa129_ca61_49be_45e5);
    }

    #[test]
    fn each_direction_number_and_pair_has_a_key_of_its_own() {
        let key = Key::new([7; 16]);
        let there = Direction { from: (1, 2), to: (3, 4) };
        let other = Direction { from: (1, 2), to: (3, 5) };
        let keys = [(there, 9), (there.back(), 9), (there, 8), (other, 9)];
        let keys = keys.map(|(direction, psn)| key.of_slots(direction, psn).0);
        for (index, one) in keys.iter().enumerate() {
            assert!(keys.iter().skip(index + 1).all(|other| other != one));
        }
    }
}
