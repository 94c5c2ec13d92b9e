//! The time of all cards of a thread.

/// It passes as the host's, until logic with a clock of its own has work ([`crate::logic::Logic::goes_on_to`]): then it goes
/// on as that does.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    now: u64,
    /// The host's time of the same moment.
    host: u64,
}

impl Clock {
    /// The time of a round that begins at that time of the host's, and is to go on to the other.
    #[inline]
    pub(crate) fn go_on(&mut self, host: u64, to: Option<u64>) -> u64 {
        let passed = host.saturating_sub(self.host);
        self.now = to.map_or(self.now.saturating_add(passed), |to| self.now.max(to));
        self.host = host;
        self.now
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
}
