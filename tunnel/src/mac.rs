//! SipHash-2-4, and the keys that are made with it.

/// A key of 128 bits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key([u64; 2]);

/// Nobody's log is to have one.
impl core::fmt::Debug for Key {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Key")
    }
}

/// Who sends to whom, each by IPv4 address and QPN.
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
        let mut state = State([
            low ^ 0x736f_6d65_7073_6575,
            high ^ 0x646f_7261_6e64_6f6d,
            low ^ 0x6c79_6765_6e65_7261,
            high ^ 0x7465_6462_7974_6573,
        ]);
        words.iter().for_each(|word| state.absorb(*word));
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            let mut word = [0; 8];
            word.copy_from_slice(chunk);
            state.absorb(u64::from_le_bytes(word));
        }
        let length = words.len().wrapping_mul(8).wrapping_add(bytes.len());
        let mut last = [0; 8];
        for (to, from) in last.iter_mut().zip(chunks.remainder()) {
            *to = *from;
        }
        state.absorb(u64::from_le_bytes(last) | (length as u64) << 56);
        state.finish()
    }
}

/// SipHash's state.
struct State([u64; 4]);

impl State {
    #[inline]
    fn round(&mut self) {
        let [mut a, mut b, mut c, mut d] = self.0;
        a = a.wrapping_add(b);
        b = b.rotate_left(13) ^ a;
        a = a.rotate_left(32);
        c = c.wrapping_add(d);
        d = d.rotate_left(16) ^ c;
        a = a.wrapping_add(d);
        d = d.rotate_left(21) ^ a;
        c = c.wrapping_add(b);
        b = b.rotate_left(17) ^ c;
        c = c.rotate_left(32);
        self.0 = [a, b, c, d];
    }

    #[inline]
    fn absorb(&mut self, word: u64) {
        let [a, b, c, d] = self.0;
        self.0 = [a, b, c, d ^ word];
        self.round();
        self.round();
        let [a, b, c, d] = self.0;
        self.0 = [a ^ word, b, c, d];
    }

    fn finish(mut self) -> u64 {
        let [a, b, c, d] = self.0;
        self.0 = [a, b, c ^ 0xff, d];
        for _ in 0..4 {
            self.round();
        }
        let [a, b, c, d] = self.0;
        a ^ b ^ c ^ d
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
