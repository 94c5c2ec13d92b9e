//! Random numbers, from a source that the caller gives.

use core::fmt;

/// A source of random numbers that a stranger cannot guess.
pub(crate) struct Random(Box<dyn FnMut() -> u64 + Send>);

impl Random {
    pub(crate) fn new(source: Box<dyn FnMut() -> u64 + Send>) -> Self {
        Self(source)
    }

    /// 64 random bits.
    pub(crate) fn next(&mut self) -> u64 {
        (self.0)()
    }

    /// A number below `end`; 0 where there is none.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next().checked_rem(end).unwrap_or(0)
    }
}

impl fmt::Debug for Random {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Random")
    }
}
