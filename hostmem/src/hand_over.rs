//! Handing the core over, in a loop that looks for work and finds none.
//!
//! Where threads that poll outnumber the cores, one that finds nothing may keep from running the very
//! thread that it waits for. `sched_yield` gives the core to a thread that waits for it, where there is
//! one. If that polls, too, it gives the core back within microseconds. If it computes, the core comes
//! back after a tick of the kernel's, which is milliseconds. So behind a yield that cost so much none
//! follows for a multiple of that time: to such a neighbour a small part of the time is lost, and the
//! rest is shared as the kernel sees fit.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The cost of a yield, in nanoseconds, to a thread that works without polling. It is less than a tick of
/// any kernel's, and more than a polling thread works without a pause.
const LONG_NS: u64 = 1_000_000;

/// The time for which a loop looks again before it sleeps: about what a sleep and a wake-up cost.
pub const LOOKS: Duration = Duration::from_micros(50);

/// How many times as long as a yield cost no other follows.
const REST: u64 = 16;

/// Whether the core is handed over; to be asked by a loop each time, or some times, that it finds
/// nothing. Threads may share it.
#[derive(Debug)]
pub struct HandOver {
    clock: Instant,
    /// No yield before that time, in nanoseconds of the clock.
    rests_until: AtomicU64,
}

impl HandOver {
    /// The state of a loop that begins.
    #[must_use]
    pub fn new() -> Self {
        Self { clock: Instant::now(), rests_until: AtomicU64::new(0) }
    }

    /// Hands the core to a thread that waits for it, unless that cost much lately; whether it did.
    ///
    /// `worked_ns` is a clock of the work that the loop waits for, in nanoseconds: time that it counts
    /// meanwhile is no cost.
    pub fn hand_over(&self, worked_ns: impl Fn() -> u64) -> bool {
        let now = || u64::try_from(self.clock.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.hand_over_at(now, worked_ns, std::thread::yield_now)
    }

    /// Whether a loop that found something so long ago looks again instead of sleeping, behind other threads that wait for
    /// the core. If such a thread keeps the core, a wake-up is quicker than getting the core back by turns.
    pub fn looks_again(&self, idle: Duration) -> bool {
        // Nobody is waited for: all that passes is lost.
        idle < LOOKS && self.hand_over(|| 0)
    }

    fn hand_over_at(
        &self,
        now_ns: impl Fn() -> u64,
        worked_ns: impl Fn() -> u64,
        hand_over: impl FnOnce(),
    ) -> bool {
        let begun = now_ns();
        if begun < self.rests_until.load(Ordering::Relaxed) {
            return false;
        }
        let worked = worked_ns();
        hand_over();
        let ended = now_ns();
        let worked = worked_ns().saturating_sub(worked);
        let cost = ended.saturating_sub(begun).saturating_sub(worked);
        if cost >= LONG_NS {
            let rests_until = ended.saturating_add(cost.saturating_mul(REST));
            self.rests_until.store(rests_until, Ordering::Relaxed);
        }
        true
    }
}

impl Default for HandOver {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Clocks of time and work.
    #[derive(Default)]
    struct Machine {
        hand_over: HandOver,
        now: Cell<u64>,
        worked: Cell<u64>,
    }

    impl Machine {
        /// Asks once, when the next yield takes so long, with so much work in it; whether it came.
        fn asks(&self, takes: u64, works: u64) -> bool {
            self.hand_over.hand_over_at(
                || self.now.get(),
                || self.worked.get(),
                || {
                    self.now.set(self.now.get() + takes);
                    self.worked.set(self.worked.get() + works);
                },
            )
        }
    }

    #[test]
    fn the_core_is_handed_over_as_long_as_it_comes_back() {
        let machine = Machine::default();
        assert!((0..1000).all(|_| machine.asks(LONG_NS - 1, 0)));
    }

    #[test]
    fn who_keeps_the_core_has_a_small_part_of_the_time() {
        let machine = Machine::default();
        const TICK: u64 = 4_000_000;
        let (mut lost, begun) = (0, machine.now.get());
        for _ in 0..100_000 {
            lost += if machine.asks(TICK, 0) { TICK } else { 0 };
            machine.now.set(machine.now.get() + 10_000);
        }
        let passed = machine.now.get() - begun;
        assert!(lost * REST <= passed, "{lost} of {passed} ns");
        assert!(lost * 2 * REST >= passed, "it is tried again: {lost} of {passed} ns");
    }

    #[test]
    fn time_that_was_worked_in_is_not_lost() {
        let machine = Machine::default();
        assert!((0..1000).all(|_| machine.asks(5 * LONG_NS, 4 * LONG_NS + 1)));
        assert!(machine.asks(5 * LONG_NS, 4 * LONG_NS));
        assert!(!machine.asks(0, 0));
    }
}
