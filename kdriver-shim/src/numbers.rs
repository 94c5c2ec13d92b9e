//! Numbers for balboad's own objects: ascending, never one that is in use.

/// A counter that skips numbers in use, and 0.
#[derive(Clone, Copy, Debug, Default)]
pub struct Numbers {
    last: u32,
}

impl Numbers {
    /// The next number below `end` for which `taken` is false. At least one must be free.
    pub fn next(&mut self, end: u32, taken: impl Fn(u32) -> bool) -> u32 {
        loop {
            self.last = match self.last.checked_add(1) {
                Some(next) if next < end => next,
                _ => 1,
            };
            if !taken(self.last) {
                return self.last;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_wrap_at_their_end_and_skip_what_is_taken() {
        let mut numbers = Numbers::default();
        let drawn: Vec<_> = (0..5).map(|_| numbers.next(5, |n| n == 2)).collect();
        assert_eq!(drawn, [1, 3, 4, 1, 3]);
    }
}
