//! A process that asks without end, while others wait for events, rests between its requests.
//!
//! One thread serves requests and passes completion events on, and where processors are few, all work
//! on a request is in the way of who waits. So a process is charged for being served while programs of
//! others are told of completions. What makes it larger than it ever was is free, for that comes to an
//! end; it is granted a burst, and for every object it ever had at a time what connects and destroys
//! it. Whoever goes on has a small part of the time, in quanta: most events then meet none of it.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use crate::clients::ClientId;

/// Service that a process is granted at once.
const BURST: Duration = Duration::from_millis(20);
/// And for each object: some times what three changes, a query and its end take.
const FOR_EACH_OBJECT: Duration = Duration::from_millis(1);
/// One part in so many of the time is a process served behind that.
const PARTS: u32 = 32;
/// What it is served between two rests.
const QUANTUM: Duration = Duration::from_millis(2);
/// The longest rest there is: nobody's request is to seem unanswered.
const LONGEST_REST: Duration = Duration::from_millis(500);
/// How long a process that asks nothing is remembered.
const MEMORY: Duration = Duration::from_secs(10);
/// How long after it was told of a completion a program counts as waiting for the next.
pub const EXPECTANT: Duration = Duration::from_millis(10);

/// What a process was served.
#[derive(Debug)]
struct Account {
    /// When the service it had will be no more than its part of the time.
    settled: Instant,
    /// The most objects it had at a time.
    peak: u64,
    /// It rests until then.
    rests: Instant,
    /// It was charged last.
    charged: Instant,
    /// It has rested before.
    rested: bool,
}

/// What was done for a process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Service {
    /// How long it took.
    pub took: Duration,
    /// Objects that the process has behind it.
    pub objects: u64,
    /// It ended one of them, which makes nobody rest.
    pub ended_one: bool,
}

/// Who was served how much, and who rests.
#[derive(Debug, Default)]
pub struct Pace {
    /// By process.
    accounts: HashMap<i32, Account>,
    /// When those were last looked for that need not be remembered.
    swept: Option<Instant>,
    /// Clients that are not heard, by when they are to be heard again.
    resting: BTreeSet<(Instant, ClientId)>,
}

impl Pace {
    /// Notes that a process was served while others waited; true when it is to rest for the first
    /// time.
    pub fn charge(&mut self, pid: i32, service: Service, now: Instant) -> bool {
        let Service { took, objects, ended_one } = service;
        self.sweep(now);
        let account = self.accounts.entry(pid).or_insert(Account {
            settled: now,
            peak: 0,
            rests: now,
            charged: now,
            rested: false,
        });
        account.charged = now;
        if objects > account.peak {
            account.peak = objects;
            return false;
        }
        let peak = u32::try_from(account.peak).unwrap_or(u32::MAX);
        let granted = BURST.saturating_add(FOR_EACH_OBJECT.saturating_mul(peak));
        let granted = later(now, granted.saturating_mul(PARTS));
        let settled = later(account.settled.max(now), took.saturating_mul(PARTS));
        let debt = settled.saturating_duration_since(granted);
        if debt.is_zero() {
            account.settled = settled;
            return false;
        }
        // In whole quanta; and what would be a longer rest than the longest is forgotten.
        let rest = debt.saturating_add(QUANTUM.saturating_mul(PARTS)).min(LONGEST_REST);
        account.settled = settled.min(later(granted, rest));
        if ended_one {
            return false;
        }
        account.rests = later(now, rest);
        !std::mem::replace(&mut account.rested, true)
    }

    /// Forgets processes that ask nothing any more, now and then: there may be thousands that came and
    /// went, and who is charged is one.
    fn sweep(&mut self, now: Instant) {
        if self.swept.is_some_and(|swept| later(swept, MEMORY) > now) {
            return;
        }
        self.swept = Some(now);
        self.accounts.retain(|_, it| it.settled > now || later(it.charged, MEMORY) > now);
    }

    /// Until when a process rests, if it does.
    #[must_use]
    pub fn rests(&self, pid: i32, now: Instant) -> Option<Instant> {
        self.accounts.get(&pid).map(|account| account.rests).filter(|until| *until > now)
    }

    /// A process has ended: another may get its number.
    pub fn forget(&mut self, pid: i32) {
        self.accounts.remove(&pid);
    }

    /// Lets a client rest.
    pub fn rest(&mut self, client: ClientId, until: Instant) {
        self.resting.insert((until, client));
    }

    /// When somebody will have rested.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.resting.first().map(|(until, _)| *until)
    }

    /// A client that has rested; some may have ended meanwhile.
    pub fn next_rested(&mut self, now: Instant) -> Option<ClientId> {
        self.due().filter(|due| *due <= now)?;
        self.resting.pop_first().map(|(_, client)| client)
    }
}

/// That much later, or as late as can be told.
fn later(instant: Instant, span: Duration) -> Instant {
    const DAY: Duration = Duration::from_secs(86_400);
    instant.checked_add(span.min(DAY)).unwrap_or(instant)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: Duration = Duration::from_micros(500);
    const SECOND: Duration = Duration::from_secs(1);

    fn service(took: Duration, objects: u64) -> Service {
        Service { took, objects, ended_one: false }
    }

    /// Service that a process without objects has in `span` if it asks again as soon as it may.
    fn served(pace: &mut Pace, begin: Instant, span: Duration) -> Duration {
        let (mut now, mut served) = (begin, Duration::ZERO);
        while now < begin + span {
            now += REQUEST;
            served += REQUEST;
            pace.charge(7, service(REQUEST, 0), now);
            now = pace.rests(7, now).unwrap_or(now);
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
        // To ask nothing for a while earns a burst, and no more.
        let later = served(&mut pace, begin + BURST + 20 * SECOND, SECOND);
        assert!((BURST..BURST + SECOND / PARTS + 3 * QUANTUM).contains(&later), "{later:?}");
        // Another is none the worse, and who asks no more is forgotten.
        pace.charge(8, service(REQUEST, 0), begin);
        assert_eq!(pace.rests(8, begin), None);
        pace.charge(9, service(REQUEST, 0), begin + 60 * SECOND);
        assert_eq!(pace.accounts.len(), 1);
    }

    #[test]
    fn processes_that_came_and_went_are_looked_through_now_and_then_only() {
        let (mut pace, begin) = (Pace::default(), Instant::now());
        for pid in 0..1000 {
            pace.charge(pid, service(REQUEST, 0), begin + MEMORY * pid.unsigned_abs() / 1001);
        }
        assert_eq!((pace.accounts.len(), pace.swept), (1000, Some(begin)));
        pace.charge(1000, service(REQUEST, 0), begin + 3 * MEMORY);
        assert_eq!((pace.accounts.len(), pace.swept), (1, Some(begin + 3 * MEMORY)));
    }

    #[test]
    fn who_makes_and_destroys_is_no_better_off_however_much_it_has() {
        for most in [1, 8, 200] {
            let (mut pace, mut now) = (Pace::default(), Instant::now());
            let (begin, mut served) = (now, Duration::ZERO);
            let rounds = (1..=most).map(|n| (n, false)).chain((0..most).rev().map(|n| (n, true)));
            for (objects, ended_one) in rounds.cycle() {
                now += REQUEST;
                served += REQUEST;
                pace.charge(7, Service { took: REQUEST, objects, ended_one }, now);
                now = pace.rests(7, now).unwrap_or(now);
                if now > begin + 100 * SECOND {
                    break;
                }
            }
            let granted = BURST + FOR_EACH_OBJECT * u32::try_from(most).unwrap();
            // Its first objects are free, and what it destroys at a time is not rested for in full.
            let limit = granted + most as u32 * REQUEST + 100 * SECOND * 2 / PARTS;
            assert!(served < limit, "{served:?} with {most} objects");
        }
    }

    #[test]
    fn who_sets_itself_up_or_ends_never_rests() {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        let (create, change) = (10 * REQUEST, REQUEST / 2);
        for objects in 1..20_000 {
            for took in [create, change, change, change] {
                now += took;
                assert!(!pace.charge(7, service(took, objects), now), "with {objects} objects");
            }
        }
        for objects in (0..20_000).rev() {
            now += REQUEST;
            assert!(!pace.charge(7, Service { took: REQUEST, objects, ended_one: true }, now));
            assert_eq!(pace.rests(7, now), None, "with {objects} objects left");
        }
    }

    #[test]
    fn no_rest_is_long_and_nothing_is_rested_for_twice() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        assert!(pace.charge(7, service(Duration::MAX, 0), now), "for the first time");
        let until = pace.rests(7, now).unwrap();
        assert_eq!(until, now + LONGEST_REST);
        assert!(!pace.charge(7, service(Duration::ZERO, 0), until));
        assert_eq!(pace.rests(7, until), None);
        assert!(!pace.charge(7, service(QUANTUM, 0), until), "not for the first time");
        assert!(pace.rests(7, until).is_some());
        pace.forget(7);
        assert_eq!(pace.rests(7, until), None);
    }

    #[test]
    fn those_who_rest_are_heard_in_the_order_of_their_times() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        assert_eq!(pace.due(), None);
        let later = |millis| now + Duration::from_millis(millis);
        pace.rest(ClientId(1), later(5));
        pace.rest(ClientId(2), later(3));
        assert_eq!(pace.due(), Some(later(3)));
        assert_eq!(pace.next_rested(later(2)), None);
        assert_eq!(pace.next_rested(later(5)), Some(ClientId(2)));
        assert_eq!(pace.next_rested(later(5)), Some(ClientId(1)));
        assert_eq!(pace.next_rested(later(5)), None);
        assert_eq!(pace.due(), None);
    }
}
