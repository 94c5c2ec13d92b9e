//! A process that makes and destroys without end, while others wait for events, rests in between.
//!
//! One thread serves requests and passes completion events on, and where processors are few, all work
//! on a request is in the way of who waits. So a process is charged for being served while programs of
//! others are told of completions. It is granted a burst, and more for every object that it has: who
//! sets itself up, however large, never rests, nor does who destroys what it has, for that comes to an
//! end. Whoever goes on has a small part of the time, in quanta: most events then meet none of it.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use crate::clients::ClientId;

/// Service that a process is granted at once.
const BURST: Duration = Duration::from_millis(50);
/// And for each object that it has: more than it takes to make one.
const FOR_EACH_OBJECT: Duration = Duration::from_millis(1);
/// One part in so many of the time is a process served behind that.
const PARTS: u32 = 32;
/// What it is served between two rests.
const QUANTUM: Duration = Duration::from_millis(2);
/// The longest rest there is.
const LONGEST_REST: Duration = Duration::from_secs(1);
/// How long after it was told of a completion a program counts as waiting for the next.
pub const EXPECTANT: Duration = Duration::from_millis(100);

/// Who was served how much, and who rests.
#[derive(Debug, Default)]
pub struct Pace {
    /// By process: when the service it had will be no more than its part of the time.
    settled: HashMap<i32, Instant>,
    /// Clients that rest, by when they are to be heard again.
    resting: BTreeSet<(Instant, ClientId)>,
}

impl Pace {
    /// Notes that a process with so many objects was served while others waited; until when it
    /// rests, if it is to.
    pub fn charge(
        &mut self,
        pid: i32,
        objects: u64,
        served: Duration,
        now: Instant,
    ) -> Option<Instant> {
        self.settled.retain(|_, settled| *settled > now);
        let objects = u32::try_from(objects).unwrap_or(u32::MAX);
        let granted = BURST.saturating_add(FOR_EACH_OBJECT.saturating_mul(objects));
        let granted = now.checked_add(granted.saturating_mul(PARTS))?;
        let settled = self.settled.entry(pid).or_insert(now);
        let service = served.saturating_mul(PARTS);
        *settled = settled.checked_add(service).or(granted.checked_add(LONGEST_REST))?;
        let rest = settled.checked_duration_since(granted).filter(|rest| !rest.is_zero())?;
        // In whole quanta; and what would be a longer rest than the longest is forgotten.
        let rest = rest.saturating_add(QUANTUM.saturating_mul(PARTS)).min(LONGEST_REST);
        *settled = (*settled).min(granted.checked_add(rest)?);
        now.checked_add(rest)
    }

    /// Lets a client rest.
    pub fn rest(&mut self, client: ClientId, until: Instant) {
        self.resting.insert((until, client));
    }

    /// How long it is until somebody has rested.
    #[must_use]
    pub fn patience(&self, now: Instant) -> Option<Duration> {
        self.resting.first().map(|(until, _)| until.saturating_duration_since(now))
    }

    /// A client that has rested; some may have ended meanwhile.
    pub fn next_rested(&mut self, now: Instant) -> Option<ClientId> {
        let (until, client) = *self.resting.first()?;
        (until <= now).then(|| self.resting.pop_first())?;
        Some(client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: Duration = Duration::from_micros(500);
    const SECOND: Duration = Duration::from_secs(1);

    /// Service that a process without objects has in `span` if it asks again as soon as it may.
    fn served(pace: &mut Pace, begin: Instant, span: Duration) -> Duration {
        let (mut now, mut served) = (begin, Duration::ZERO);
        while now < begin + span {
            now += REQUEST;
            served += REQUEST;
            now = pace.charge(7, 0, REQUEST, now).unwrap_or(now);
        }
        served
    }

    #[test]
    fn who_asks_without_end_has_a_burst_and_then_its_part() {
        let (mut pace, begin) = (Pace::default(), Instant::now());
        assert_eq!(served(&mut pace, begin, BURST), BURST, "nobody rests before");
        // While it is served, its part of that time is earned.
        let first = served(&mut pace, begin + BURST, SECOND);
        assert!(first < SECOND / PARTS + BURST / PARTS + 2 * QUANTUM, "{first:?}");
        let later = served(&mut pace, begin + BURST + SECOND, 10 * SECOND);
        let part = 10 * SECOND / PARTS;
        assert!((part - 2 * QUANTUM..part + 2 * QUANTUM).contains(&later), "{later:?}");
        // Another is none the worse, and who asks no more is forgotten.
        assert_eq!(pace.charge(8, 0, REQUEST, begin), None);
        pace.charge(9, 0, REQUEST, begin + 60 * SECOND);
        assert_eq!(pace.settled.len(), 1);
    }

    #[test]
    fn who_sets_itself_up_never_rests() {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        for objects in 1..20_000 {
            now += REQUEST;
            assert_eq!(pace.charge(7, objects, REQUEST, now), None, "with {objects} objects");
        }
        // Once all is destroyed it rests, but nobody takes it for dead.
        let until = pace.charge(7, 0, 4 * BURST, now).unwrap();
        assert_eq!(until, now + LONGEST_REST);
        assert_eq!(pace.charge(7, 0, Duration::ZERO, until), None, "and not for what was before");
        let until = pace.charge(7, 0, Duration::MAX, now).unwrap();
        assert!(until <= now + LONGEST_REST);
        assert!(pace.charge(7, u64::MAX, REQUEST, now).is_none());
    }

    #[test]
    fn those_who_rest_are_heard_in_the_order_of_their_times() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        assert_eq!(pace.patience(now), None);
        let later = |millis| now + Duration::from_millis(millis);
        pace.rest(ClientId(1), later(5));
        pace.rest(ClientId(2), later(3));
        assert_eq!(pace.patience(now), Some(Duration::from_millis(3)));
        assert_eq!(pace.next_rested(later(2)), None);
        assert_eq!(pace.next_rested(later(5)), Some(ClientId(2)));
        assert_eq!(pace.next_rested(later(5)), Some(ClientId(1)));
        assert_eq!(pace.next_rested(later(5)), None);
        assert_eq!(pace.patience(now), None);
    }
}
