//! The time of all cards of a thread.

/// Nanoseconds that pass at most with a round that had work, beside logic with a clock of its own.
const MOST: u64 = 10_000;

/// It passes as the host's, until logic with a clock of its own has work ([`crate::logic::Logic::goes_on_to`]): then it goes
/// on as that does.
///
/// Beside such logic a round of the host's may take milliseconds, and be interrupted for longer. A frame that it sent is
/// with the other card in the next round all the same. So while there is work, that time passes only up to a bound:
/// timers of queue pairs would end before frames that are under way come.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    now: u64,
    /// The host's time of the same moment.
    host: u64,
    /// Whether there has been logic with a clock of its own.
    is_bounded: bool,
    /// Whether the last round had work.
    has_worked: bool,
}

impl Clock {
    /// The time of a round that begins at that time of the host's, and is to go on to the other.
    #[inline]
    pub(crate) fn go_on(&mut self, host: u64, to: Option<u64>) -> u64 {
        let mut passed = host.saturating_sub(self.host);
        self.is_bounded |= to.is_some();
        if self.is_bounded && self.has_worked {
            passed = passed.min(MOST);
        }
        self.now = to.map_or(self.now.saturating_add(passed), |to| self.now.max(to));
        self.host = host;
        self.now
    }

    /// Takes note of the end of a round.
    #[inline]
    pub(crate) fn end_round(&mut self, has_worked: bool) {
        self.has_worked = has_worked;
    }

    /// The host's time at which it will be that late, as far as it passes as the host's.
    pub(crate) fn on_the_host(&self, time: u64) -> u64 {
        self.host.saturating_add(time.saturating_sub(self.now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_hosts_but_while_logic_goes_on_by_itself() {
        let mut clock = Clock::default();
        assert_eq!(clock.go_on(100, None), 100);
        assert_eq!(clock.go_on(5_000, Some(132)), 132);
        // Logic that lags behind is waited for.
        assert_eq!(clock.go_on(9_000, Some(120)), 132);
        assert_eq!(clock.on_the_host(140), 9_008);
        assert_eq!(clock.go_on(9_010, None), 142);
        assert_eq!(clock.on_the_host(0), 9_010);
    }

    #[test]
    fn a_long_round_with_work_ends_no_timer_beside_logic_with_a_clock() {
        let mut clock = Clock::default();
        clock.end_round(true);
        assert_eq!(clock.go_on(100_000_000, None), 100_000_000, "there is no such logic");
        assert_eq!(clock.go_on(100_000_000, Some(100_000_128)), 100_000_128);
        clock.end_round(true);
        assert_eq!(clock.go_on(200_000_000, None), 100_000_128 + MOST);
        // What did not pass is not made good.
        clock.end_round(false);
        assert_eq!(clock.go_on(200_000_500, None), 100_000_628 + MOST);
    }
}
