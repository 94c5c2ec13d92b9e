//! Randomness of the tests: seeded, so that a failure can be repeated.

use super::device::Device as _;
use crate::Dut;

/// A small generator (xorshift64*).
#[derive(Clone, Debug)]
pub struct Seeded(u64);

impl Seeded {
    pub fn new(seed: u64) -> Self {
        let mut seeded = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..4 {
            seeded.next();
        }
        seeded
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 16) % limit
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of `choices`.
    pub fn choose<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

/// Runs a case for each seed, and says which one failed. `SEED=n` runs that one alone.
pub fn for_seeds(seeds: u64, case: impl Fn(u64)) {
    let only = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    let range = only.map_or(0..seeds.div_ceil(Dut::SHARE), |seed| seed..seed + 1);
    for seed in range {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| case(seed)));
        if let Err(panic) = outcome {
            eprintln!("failed with seed {seed}; repeat it with SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
