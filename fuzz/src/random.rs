//! The seeded random engine: inputs that follow from a number, so that a failure can be repeated.

/// Numbers that follow from a seed (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The numbers of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next_u64() % end
    }
}

/// The input of a seed: up to `longest` bytes, half of the inputs near that length.
///
/// Random bytes with runs of one byte in between, because flags and lengths that are 0 or all ones
/// lead further than those that are neither.
#[must_use]
pub fn input(seed: u64, longest: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let longest = longest as u64;
    let length = match random.below(2) {
        0 => random.below(longest + 1),
        _ => longest - random.below(longest / 8 + 1),
    } as usize;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        match random.below(8) {
            0 => {
                let byte = [0, 0, 1, 0xff][random.below(4) as usize];
                bytes.resize(bytes.len() + random.below(16) as usize, byte);
            }
            _ => bytes.extend(random.next_u64().to_le_bytes()),
        }
    }
    bytes.truncate(length);
    bytes
}
