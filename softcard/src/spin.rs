//! Whether to look once more before sleeping.
//!
//! A card thread that finds nothing looks again for a moment: a program that rings meanwhile is spared the system call
//! that wakes the thread, and waits for no wake-up.

use std::time::Duration;

use hostmem::HandOver;

/// Decides whether to look again.
#[derive(Debug)]
pub(crate) struct Spin {
    /// There was work the last time.
    busy: bool,
    /// When there was no work any more.
    worked: u64,
    hand_over: HandOver,
}

impl Spin {
    pub(crate) fn new() -> Self {
        Self { busy: false, worked: 0, hand_over: HandOver::new() }
    }

    /// There was work.
    pub(crate) fn worked(&mut self) {
        self.busy = true;
    }

    /// Notes a round without work: whether to look again instead of sleeping, behind other threads that wait for the
    /// core.
    pub(crate) fn goes_on(&mut self, now: u64) -> bool {
        if std::mem::take(&mut self.busy) {
            self.worked = now;
        }
        self.hand_over.looks_again(Duration::from_nanos(now.saturating_sub(self.worked)))
    }
}

#[cfg(test)]
mod tests {
    use hostmem::hand_over::LOOKS;

    use super::*;

    #[test]
    fn nobody_looks_again_long_after_the_last_work() {
        let mut spin = Spin::new();
        let looks = u64::try_from(LOOKS.as_nanos()).unwrap();
        for begun in [1000, 1_000_000] {
            spin.worked();
            // Whether it does at once depends on what else the machine is at.
            spin.goes_on(begun);
            assert!(!spin.goes_on(begun + looks));
        }
        assert_eq!(spin.worked, 1_000_000);
    }
}
