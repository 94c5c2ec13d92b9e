//! Whether to look once more before sleeping, or to leave the core to others.
//!
//! A card thread that finds nothing may spin for a moment: whoever rings meanwhile is spared the
//! system call that wakes it, and waits for no wake-up. That is worth it only while a core would be
//! idle otherwise. Where programs that poll fill the cores, a card that spins keeps them from
//! running, and they have the work it waits for. So it asks the kernel, now and then, how many
//! threads want to run. And since the kernel may put a program behind the very thread that spins while
//! another core is idle, the thread yields at each turn.
//!
//! For the same reason a program that receives may not get to run while messages for it keep the
//! card busy. Once it has no receives left, its peer waits for an RNR timer, which is longer than
//! everything here. So when a receive queue runs out and the cores are full, the card pauses.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

/// How long after the last work the thread spins at most, in nanoseconds.
const SPIN_NS: u64 = 50_000;
/// How long the kernel's answer is believed, in nanoseconds.
const BELIEVED_NS: u64 = 1_000_000;
/// A turn that takes longer was not the thread's alone, in nanoseconds.
const TURN_NS: u64 = 20_000;

/// How long a core is left to a program that should post receives: as long as posting some hundred
/// takes.
const WAY: Duration = Duration::from_micros(50);
/// The shortest time from one such pause to the next, in nanoseconds: whatever programs do, the
/// card works most of the time.
const WAY_INTERVAL_NS: u64 = 200_000;

/// Decides whether to spin.
#[derive(Debug)]
pub(crate) struct Spin {
    /// /proc/loadavg; `None` where it cannot be read, and then the thread never spins.
    load: Option<File>,
    cores: usize,
    /// Cores are idle as of `asked`.
    idle: bool,
    asked: Option<u64>,
    /// There was work the last time.
    busy: bool,
    /// When there was no work any more.
    worked: u64,
    /// When the thread went on to spin last, if it does.
    spins: Option<u64>,
    /// When the core was left to a program last.
    gave_way: Option<u64>,
}

impl Spin {
    pub(crate) fn new() -> Self {
        // The thread's own affinity counts, and a container's limit.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let load = File::open("/proc/loadavg").ok();
        let (asked, spins, gave_way) = Default::default();
        Self { load, cores, idle: false, asked, busy: false, worked: 0, spins, gave_way }
    }

    /// There was work.
    pub(crate) fn worked(&mut self) {
        self.busy = true;
        self.spins = None;
    }

    /// There was none: whether to look again instead of sleeping.
    pub(crate) fn goes_on(&mut self, now: u64) -> bool {
        if std::mem::take(&mut self.busy) {
            self.worked = now;
        }
        // Another has the core: to be woken is quicker than to have it back by turns.
        if self.spins.is_some_and(|since| now.saturating_sub(since) >= TURN_NS) {
            (self.idle, self.asked) = (false, Some(now));
        }
        let goes_on = now.saturating_sub(self.worked) < SPIN_NS && self.has_idle_core(now);
        self.spins = goes_on.then_some(now);
        goes_on
    }

    /// A receive queue runs out: how long to leave the core to its program, which is kept from
    /// posting more where programs that poll fill the cores.
    pub(crate) fn gives_way(&mut self, now: u64) -> Option<Duration> {
        let lately = self.gave_way.is_some_and(|at| now.saturating_sub(at) < WAY_INTERVAL_NS);
        if lately || self.load.is_none() || self.has_idle_core(now) {
            return None;
        }
        self.gave_way = Some(now);
        Some(WAY)
    }

    /// Whether the kernel counts no more runnable threads than cores.
    fn has_idle_core(&mut self, now: u64) -> bool {
        if self.asked.is_none_or(|asked| now.saturating_sub(asked) >= BELIEVED_NS) {
            self.asked = Some(now);
            // The thread itself is one of them.
            self.idle = self.running().is_some_and(|running| running <= self.cores);
        }
        self.idle
    }

    /// Threads that run or want to.
    fn running(&self) -> Option<usize> {
        let mut text = [0; 128];
        let length = self.load.as_ref()?.read_at(&mut text, 0).ok()?;
        running(text.get(..length)?)
    }
}

/// What /proc/loadavg says of threads that run: the part before the slash of its fourth word.
fn running(loadavg: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(loadavg).ok()?;
    text.split_whitespace().nth(3)?.split_once('/')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_how_many_threads_run() {
        assert_eq!(running(b"0.20 0.18 0.12 3/417 11206\n"), Some(3));
        assert_eq!(running(b"0.20 0.18"), None);
        assert!(Spin::new().running().is_some_and(|running| running > 0));
    }

    #[test]
    fn nobody_spins_long_after_the_last_work() {
        let mut spin = Spin { cores: usize::MAX, ..Spin::new() };
        spin.worked();
        assert!((1000..1000 + SPIN_NS).step_by(10_000).all(|now| spin.goes_on(now)));
        assert!(!spin.goes_on(1000 + SPIN_NS));
    }

    #[test]
    fn nobody_spins_on_who_was_kept_from_it_by_another() {
        let mut spin = Spin { cores: usize::MAX, ..Spin::new() };
        spin.worked();
        assert!(spin.goes_on(1000) && spin.goes_on(2000));
        assert!(!spin.goes_on(2000 + TURN_NS), "another had the core");
        spin.worked();
        assert!(!spin.goes_on(3000 + TURN_NS), "and has it still, for all that is known");
        spin.worked();
        assert!(spin.goes_on(2000 + TURN_NS + BELIEVED_NS));
        spin.worked();
        assert!(spin.goes_on(3000 + 3 * TURN_NS + BELIEVED_NS), "that was work");
    }

    #[test]
    fn the_core_is_left_to_programs_only_where_all_are_taken_and_not_all_the_time() {
        let mut full = Spin { cores: 0, ..Spin::new() };
        assert_eq!(full.gives_way(1), Some(WAY));
        assert_eq!(full.gives_way(WAY_INTERVAL_NS), None);
        assert_eq!(full.gives_way(1 + WAY_INTERVAL_NS), Some(WAY));
        let mut empty = Spin { cores: usize::MAX, ..Spin::new() };
        assert_eq!(empty.gives_way(1), None);
        let mut blind = Spin { load: None, cores: 0, ..Spin::new() };
        assert_eq!(blind.gives_way(1), None);
    }

    #[test]
    fn nobody_spins_where_all_cores_are_taken_or_nothing_is_known() {
        let mut full = Spin { cores: 0, ..Spin::new() };
        assert!(!full.goes_on(1));
        let mut blind = Spin { load: None, cores: usize::MAX, ..Spin::new() };
        assert!(!blind.goes_on(1));
    }
}
