//! The only source of randomness: a small generator with a seed, and test patterns.

/// SplitMix64: every seed gives a good sequence.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The numbers of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    /// The next number.
    #[expect(clippy::should_implement_trait, reason = "it never ends, and is no iterator")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number from 0 to `limit` - 1.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True `n` times out of 10,000.
    pub fn chance(&mut self, n: u32) -> bool {
        n != 0 && self.below(10_000) < u64::from(n)
    }

    /// One of the items, of which there are some.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize]
    }
}

/// Spreads every bit over all others.
#[must_use]
pub const fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Fills `out` with the bytes from `offset` on of the endless pattern `key`.
pub fn pattern(key: u64, offset: u64, out: &mut [u8]) {
    let mut at = offset;
    let mut rest = out;
    while !rest.is_empty() {
        let word = mix(key ^ (at / 8).wrapping_mul(0xd134_2543_de82_ef95)).to_le_bytes();
        let within = (at % 8) as usize;
        let count = rest.len().min(8 - within);
        let (head, tail) = rest.split_at_mut(count);
        head.copy_from_slice(&word[within..within + count]);
        rest = tail;
        at += count as u64;
    }
}

/// The bytes of a pattern.
#[must_use]
pub fn pattern_vec(key: u64, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    pattern(key, offset, &mut bytes);
    bytes
}
