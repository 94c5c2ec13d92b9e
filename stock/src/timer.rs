//! One timer for each QP.

use std::collections::BTreeMap;

use crate::param::{LONG_TIMEOUT, RETRIES, SHORT_RETRIES, SHORT_TIMEOUT};

#[derive(Clone, Copy, Debug, Default)]
struct Timer {
    deadline: Option<u64>,
    retries: u8,
}

/// The timers of all QPs.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    timers: BTreeMap<u32, Timer>,
}

impl Timers {
    /// A request goes out.
    // STOCK-24
    pub(crate) fn set(&mut self, now: u64, qpn: u32) {
        let timer = self.timers.entry(qpn).or_default();
        let after = if timer.retries < SHORT_RETRIES { SHORT_TIMEOUT } else { LONG_TIMEOUT };
        timer.deadline.get_or_insert(now.saturating_add(after));
    }

    /// A response has come; `stop` where nothing more is out.
    pub(crate) fn answered(&mut self, now: u64, qpn: u32, stop: bool) {
        let timer = self.timers.entry(qpn).or_default();
        timer.retries = 0;
        timer.deadline =
            timer.deadline.filter(|_| !stop).map(|_| now.saturating_add(SHORT_TIMEOUT));
    }

    /// The next QP whose requests are to be repeated.
    // STOCK-25
    pub(crate) fn expire(&mut self, now: u64) -> Option<u32> {
        for (qpn, timer) in &mut self.timers {
            if timer.deadline.is_some_and(|deadline| deadline <= now) {
                timer.deadline = None;
                if timer.retries < RETRIES {
                    timer.retries = timer.retries.saturating_add(1);
                    return Some(*qpn);
                }
            }
        }
        None
    }

    pub(crate) fn next_timeout(&self) -> Option<u64> {
        self.timers.values().filter_map(|timer| timer.deadline).min()
    }
}
