//! The kernel's random numbers, fetched a page at a time.

use queue_engine::Random;

const WORDS: usize = 256;

/// Random numbers for keys and object numbers; never seeded, for a key must not be guessed.
#[derive(Debug)]
pub(crate) struct KernelRandom {
    buffer: [u8; WORDS * 4],
    used: usize,
}

impl KernelRandom {
    pub(crate) fn new() -> Self {
        Self { buffer: [0; WORDS * 4], used: WORDS }
    }
}

impl Random for KernelRandom {
    fn next_u32(&mut self) -> u32 {
        if self.used >= WORDS {
            // Linux answers for every size up to 256 bytes once booted, and retries are its own.
            while getrandom::fill(&mut self.buffer).is_err() {}
            self.used = 0;
        }
        let word = self.buffer.chunks_exact(4).nth(self.used);
        self.used = self.used.saturating_add(1);
        word.and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes)
    }
}
