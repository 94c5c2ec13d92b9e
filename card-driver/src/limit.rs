//! The limit of waiting for a card.

use std::time::{Duration, Instant};

/// The time that a card may take for a command before it counts as dead.
///
/// A software card stands while a program changes its address space, for 0.8 s and more at a time where one forks that has
/// much memory, and several of them may come one behind the other; the machine may be busy besides.
pub const COMMAND_LIMIT: Duration = Duration::from_secs(5);
/// How long it may take for a reset of an engine, or for the confirmation of an invalidation, after which that memory
/// is quarantined. A card that is being loaded, or whose engine has stopped, confirms nothing, and a wait for it delays
/// all clients: so it is not much longer than a software card ever pauses.
pub(crate) const CONFIRM_LIMIT: Duration = Duration::from_secs(1);
/// How often a card is looked at while it does not signal anything.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The rest of the time that a card has.
///
/// Time between two looks counts for [`LOOK_AGAIN`] at most. If it was longer, balboad was stopped, or had no
/// processor, and must first see answers that the card gave long since.
#[derive(Debug)]
pub(crate) struct TimeLeft {
    left: Duration,
    looked: Instant,
}

impl TimeLeft {
    /// A limit of that length, from now on.
    pub(crate) fn new(limit: Duration, now: Instant) -> Self {
        Self { left: limit, looked: now }
    }

    /// Looks at the clock: the time that is left now.
    pub(crate) fn left(&mut self, now: Instant) -> Duration {
        let since = now.saturating_duration_since(std::mem::replace(&mut self.looked, now));
        self.left = self.left.saturating_sub(since.min(LOOK_AGAIN));
        self.left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_has_its_time_and_a_stop_of_balboads_is_not_its() {
        let mut now = Instant::now();
        let mut time_left = TimeLeft::new(COMMAND_LIMIT, now);
        let mut pass = |time: Duration| {
            now += time;
            time_left.left(now)
        };
        assert_eq!(pass(Duration::from_secs(3600)), COMMAND_LIMIT - LOOK_AGAIN);
        let looks = (COMMAND_LIMIT - LOOK_AGAIN).as_millis() / 10;
        for look in 1..=looks {
            assert_eq!(pass(Duration::from_millis(10)).is_zero(), look == looks, "look {look}");
        }
        assert!(pass(Duration::ZERO).is_zero());
    }
}
