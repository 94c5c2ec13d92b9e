//! Limits on the lines of a log.
//!
//! Others could make a program log without end: a client by refused requests, a peer by bad packets. So
//! every kind of line, which is a place in the source, has a number of lines at once and then a rate; a
//! client has less of each, so that the others are heard beside it; and all kinds together have a limit,
//! too. Omitted lines are counted and reported.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Lines at once, and the time that one more takes to be allowed.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    burst: u32,
    interval: Duration,
}

/// All lines.
const WHOLE: Rate = Rate { burst: 500, interval: Duration::from_secs(2) };
/// Those of one kind.
const KIND: Rate = Rate { burst: 100, interval: Duration::from_secs(10) };
/// Those of one kind that a client caused.
const CLIENT: Rate = Rate { burst: 20, interval: Duration::from_secs(60) };
/// After this time omitted lines are reported.
const TELL_AFTER: Duration = Duration::from_secs(30);
/// Clients that are remembered; beyond, those that are quiet are forgotten, and then all.
const MAX_CLIENTS: usize = 4096;

/// The place in the source that a line comes from.
pub type CallSite = (&'static str, u32);

/// When a line would be in time if one came in each interval: so far ahead as it is, so much of the
/// burst is used up.
#[derive(Clone, Copy, Debug)]
struct Bucket(Instant);

impl Bucket {
    fn has_room(self, rate: Rate, now: Instant) -> bool {
        let ahead = self.0.saturating_duration_since(now);
        ahead <= rate.interval.saturating_mul(rate.burst.saturating_sub(1))
    }

    fn take(&mut self, rate: Rate, now: Instant) {
        let from = self.0.max(now);
        self.0 = from.checked_add(rate.interval).unwrap_or(from);
    }
}

/// Lines of one kind that were left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Their kind.
    pub kind: CallSite,
    /// How many they are.
    pub lines: u64,
    /// When the first of them was left out.
    pub since: Instant,
}

/// The lines that were logged, and those that were left out.
#[derive(Debug)]
pub struct Limit {
    whole: Bucket,
    kinds: HashMap<CallSite, Bucket>,
    clients: HashMap<(CallSite, u64), Bucket>,
    left_out: Vec<LeftOut>,
}

impl Limit {
    /// Nothing was said yet.
    pub fn new(now: Instant) -> Self {
        Self {
            whole: Bucket(now),
            kinds: HashMap::new(),
            clients: HashMap::new(),
            left_out: Vec::new(),
        }
    }

    /// Whether a line may be logged that a client caused, or balboad itself; counts it if not.
    pub fn admit(&mut self, kind: CallSite, client: Option<u64>, now: Instant) -> bool {
        let fresh = Bucket(now);
        let of_kind = self.kinds.entry(kind).or_insert(fresh);
        let of_client = client.map(|client| {
            if self.clients.len() >= MAX_CLIENTS {
                self.clients.retain(|_, bucket| bucket.0 > now);
                if self.clients.len() >= MAX_CLIENTS {
                    self.clients.clear();
                }
            }
            self.clients.entry((kind, client)).or_insert(fresh)
        });
        let has_room = self.whole.has_room(WHOLE, now)
            && of_kind.has_room(KIND, now)
            && of_client.as_ref().is_none_or(|bucket| bucket.has_room(CLIENT, now));
        if has_room {
            self.whole.take(WHOLE, now);
            of_kind.take(KIND, now);
            if let Some(bucket) = of_client {
                bucket.take(CLIENT, now);
            }
            return true;
        }
        match self.left_out.iter_mut().find(|left_out| left_out.kind == kind) {
            Some(left_out) => left_out.lines = left_out.lines.saturating_add(1),
            None => self.left_out.push(LeftOut { kind, lines: 1, since: now }),
        }
        false
    }

    /// Takes the counts of left-out lines that are due for the log.
    pub fn due(&mut self, now: Instant) -> Vec<LeftOut> {
        let is_due = |it: &LeftOut| now.saturating_duration_since(it.since) >= TELL_AFTER;
        let (due, later) = std::mem::take(&mut self.left_out).into_iter().partition(is_due);
        self.left_out = later;
        due
    }

    /// All that has not been told yet.
    pub fn rest(&mut self) -> Vec<LeftOut> {
        std::mem::take(&mut self.left_out)
    }

    /// The time until a report is [`Self::due`]; `None` if nothing is left out.
    pub fn patience(&self, now: Instant) -> Option<Duration> {
        let since = self.left_out.iter().map(|it| it.since).min()?;
        Some(TELL_AFTER.saturating_sub(now.saturating_duration_since(since)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFUSED: CallSite = ("clients.rs", 1);
    const OVERRAN: CallSite = ("events.rs", 2);

    fn said(
        limit: &mut Limit,
        kind: CallSite,
        client: Option<u64>,
        now: Instant,
        tries: u32,
    ) -> u32 {
        (0..tries).map(|_| u32::from(limit.admit(kind, client, now))).sum()
    }

    #[test]
    fn a_client_without_end_has_its_share_and_the_others_are_heard_beside_it() {
        let begun = Instant::now();
        let mut limit = Limit::new(begun);
        assert_eq!(said(&mut limit, REFUSED, Some(1), begun, 100_000), 20);
        assert_eq!(said(&mut limit, REFUSED, Some(2), begun, 5), 5);
        assert_eq!(said(&mut limit, OVERRAN, Some(1), begun, 100), 20);
        let later = begun + 3 * CLIENT.interval;
        assert_eq!(said(&mut limit, REFUSED, Some(1), later, 100), 3);
    }

    #[test]
    fn neither_more_clients_nor_more_kinds_make_the_log_grow_without_end() {
        let begun = Instant::now();
        let mut limit = Limit::new(begun);
        let mut lines = 0;
        for client in 0..10_000 {
            lines += said(&mut limit, REFUSED, Some(client), begun, 20);
        }
        assert_eq!(lines, KIND.burst);
        assert!(limit.clients.len() <= MAX_CLIENTS);
        for kind in 0..100 {
            lines += said(&mut limit, ("x.rs", kind), None, begun, 1000);
        }
        assert_eq!(lines, WHOLE.burst);
        // From then on it is one line in two seconds, for as long as it lasts.
        let mut now = begun;
        for _ in 0..600 {
            now += Duration::from_secs(1);
            for kind in 0..100 {
                lines += said(&mut limit, ("x.rs", kind), None, now, 2);
            }
        }
        assert_eq!(lines, WHOLE.burst + 300);
    }

    #[test]
    fn what_was_left_out_is_counted_and_told_in_time() {
        let begun = Instant::now();
        let mut limit = Limit::new(begun);
        assert_eq!(limit.patience(begun), None);
        assert_eq!(said(&mut limit, REFUSED, None, begun, 150), 100);
        assert_eq!(limit.patience(begun), Some(TELL_AFTER));
        let later = begun + Duration::from_secs(10);
        assert_eq!(said(&mut limit, OVERRAN, Some(3), later, 21), 20);
        assert_eq!(said(&mut limit, REFUSED, None, later, 7), 1);
        assert_eq!(limit.due(later), []);
        let due = begun + TELL_AFTER;
        let refused = LeftOut { kind: REFUSED, lines: 56, since: begun };
        assert_eq!(limit.due(due), [refused]);
        assert_eq!(limit.patience(due), Some(Duration::from_secs(10)));
        assert_eq!(limit.rest(), [LeftOut { kind: OVERRAN, lines: 1, since: later }]);
        assert_eq!(limit.patience(due), None);
    }

    #[test]
    fn who_is_quiet_for_long_may_say_as_much_again() {
        let begun = Instant::now();
        let mut limit = Limit::new(begun);
        for hour in [0, 1, 2] {
            let now = begun + hour * Duration::from_secs(3600);
            assert_eq!(said(&mut limit, REFUSED, None, now, 1000), 100);
        }
    }
}
