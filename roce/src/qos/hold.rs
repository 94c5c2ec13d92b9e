//! The pauses of a queue, and the watchdog against pauses without end.

/// A watchdog against pauses without end: a queue that was paused and let nothing go for `detect` drops its frames and those
/// that come, until `recover` has passed without a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watchdog {
    /// How long a queue may stand still. It is looked at twice in that time.
    pub detect: u64,
    /// How long it drops at least.
    pub recover: u64,
}

impl Watchdog {
    /// The time from one look to the next.
    #[must_use]
    pub const fn interval(&self) -> u64 {
        self.detect / 2
    }
}

/// The pauses of a queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hold {
    /// Nothing leaves before.
    until: u64,
    /// Frames that come before this time are dropped.
    drops_until: u64,
    /// Whether a frame has left since it was last looked at.
    has_moved: bool,
    /// Since when it is known to stand still.
    still_since: Option<u64>,
}

impl Hold {
    /// Nothing leaves before `at`.
    pub fn set(&mut self, at: u64) {
        self.until = at;
    }

    /// Nothing leaves before that time.
    #[inline]
    #[must_use]
    pub const fn until(&self) -> u64 {
        self.until
    }

    /// A frame leaves.
    #[inline]
    pub fn leaves(&mut self) {
        self.has_moved = true;
    }

    /// Whether frames that come are dropped, since the queue stood still for too long.
    #[inline]
    #[must_use]
    pub const fn drops(&self, now: u64) -> bool {
        self.drops_until > now
    }

    /// Looks whether the queue, in which something `waits` or nothing, has been paused and stood still for too long. Then
    /// its frames are to be discarded, and others are dropped for [`Watchdog::recover`], and for as long after each pause.
    pub fn stands_still(&mut self, waits: bool, now: u64, watchdog: Watchdog) -> bool {
        let is_held = waits && self.until > now;
        if core::mem::take(&mut self.has_moved) || !is_held {
            self.still_since = None;
            return false;
        }
        let since = *self.still_since.get_or_insert(now);
        let stands = now >= since.saturating_add(watchdog.detect);
        if stands {
            self.still_since = None;
            self.drops_until = now.saturating_add(watchdog.recover);
        }
        stands
    }

    /// Takes note of a pause: if frames that come are dropped, they are for `recover` more.
    pub fn go_on_dropping(&mut self, now: u64, recover: u64) {
        if self.drops(now) {
            self.drops_until = now.saturating_add(recover);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_that_stands_still_drops_until_pauses_end() {
        let watchdog = Watchdog { detect: 100, recover: 50 };
        let mut hold = Hold::default();
        // A queue that is not paused may take its time.
        assert!([0, 100, 200].iter().all(|at| !hold.stands_still(true, *at, watchdog)));
        hold.set(1_000);
        assert!(!hold.stands_still(true, 250, watchdog));
        hold.leaves();
        let looks = [300, 350, 400, 450].map(|at| hold.stands_still(true, at, watchdog));
        assert_eq!(looks, [false, false, false, true]);
        assert!(hold.drops(499) && !hold.drops(500));
        hold.go_on_dropping(490, watchdog.recover);
        assert!(hold.drops(539) && !hold.drops(540));
        hold.go_on_dropping(540, watchdog.recover);
        assert!(!hold.drops(540));
        // A queue in which nothing waits does not stand still.
        assert!([600, 700, 800].iter().all(|at| !hold.stands_still(false, *at, watchdog)));
    }
}
