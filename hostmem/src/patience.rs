//! How long a copy from or to a program's memory may take.

use std::time::{Duration, Instant};

/// How long a copy may take at first.
const PATIENCE: Duration = Duration::from_millis(200);
/// The shortest that becomes.
const LEAST_PATIENCE: Duration = Duration::from_millis(5);
/// How long without a copy that did not return makes it twice as long again.
const FORGIVEN: Duration = Duration::from_secs(60);

/// The time for which other work waits for a copy: 0.2 s once, and half of the former time for each further process
/// that does not answer, down to 5 ms, so many of them take at most twice as much and some milliseconds each. A minute
/// without any makes it twice as long again.
#[derive(Debug)]
pub struct Patience {
    limit: Duration,
    /// When it was tried last, or has grown again.
    tried: Option<Instant>,
}

impl Default for Patience {
    fn default() -> Self {
        Self { limit: PATIENCE, tried: None }
    }
}

impl Patience {
    /// The patience as it is now.
    pub fn now(&mut self, now: Instant) -> Duration {
        while let Some(tried) = self.tried {
            let Some(rested) = tried.checked_add(FORGIVEN).filter(|rested| *rested <= now) else {
                break;
            };
            self.limit = self.limit.saturating_mul(2).min(PATIENCE);
            self.tried = (self.limit < PATIENCE).then_some(rested);
        }
        self.limit
    }

    /// Notes that a copy was not waited for any longer.
    pub fn was_tried(&mut self, now: Instant) {
        self.limit = self.limit.checked_div(2).unwrap_or_default().max(LEAST_PATIENCE);
        self.tried = Some(now);
    }
}

/// How much of a time was taken within a minute, which begins with the first that was.
#[derive(Debug)]
pub struct Account {
    since: Instant,
    sum: Duration,
}

impl Account {
    /// One of which nothing was taken yet.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { since: now, sum: Duration::ZERO }
    }

    /// Adds a time; returns the sum of the times taken within the minute.
    pub fn take(&mut self, time: Duration, now: Instant) -> Duration {
        if self.is_over(now) {
            *self = Self::new(now);
        }
        self.sum = self.sum.saturating_add(time);
        self.sum
    }

    /// Whether the minute is over.
    #[must_use]
    pub fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= FORGIVEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_gets_shorter_with_each_trial_and_comes_back() {
        let mut patience = Patience::default();
        let begun = Instant::now();
        assert_eq!(patience.now(begun), PATIENCE);
        let mut spent = Duration::ZERO;
        for _ in 0..100 {
            spent += patience.now(begun);
            patience.was_tried(begun);
        }
        assert!(spent < 2 * PATIENCE + 100 * LEAST_PATIENCE, "{spent:?}");
        assert_eq!(patience.now(begun), LEAST_PATIENCE);
        assert_eq!(patience.now(begun + FORGIVEN), 2 * LEAST_PATIENCE);
        assert_eq!(patience.now(begun + 3 * FORGIVEN), 8 * LEAST_PATIENCE);
        assert_eq!(patience.now(begun + 60 * FORGIVEN), PATIENCE);
        assert_eq!(patience.tried, None);
    }
}
