//! Whether to look once more before sleeping.
//!
//! A card thread that finds nothing may spin for a moment: whoever rings meanwhile is spared the
//! system call that wakes it, and waits for no wake-up. That is worth it only while a core would be
//! idle otherwise. Where programs that poll fill the cores, a card that spins keeps them from
//! running, and they have the work it waits for. So it asks the kernel, now and then, how many
//! threads want to run.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// How long after the last work the thread spins at most, in nanoseconds.
const SPIN_NS: u64 = 50_000;
/// How long the kernel's answer is believed, in nanoseconds.
const BELIEVED_NS: u64 = 1_000_000;

/// Decides whether to spin.
#[derive(Debug)]
pub(crate) struct Spin {
    /// /proc/loadavg; `None` where it cannot be read, and then the thread never spins.
    load: Option<File>,
    cores: usize,
    /// Cores are idle as of `asked`.
    idle: bool,
    asked: Option<u64>,
    /// When there was work last.
    worked: u64,
}

impl Spin {
    pub(crate) fn new() -> Self {
        // The thread's own affinity counts, and a container's limit.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let load = File::open("/proc/loadavg").ok();
        Self { load, cores, idle: false, asked: None, worked: 0 }
    }

    /// There was work.
    pub(crate) fn worked(&mut self, now: u64) {
        self.worked = now;
    }

    /// There was none: whether to look again instead of sleeping.
    pub(crate) fn goes_on(&mut self, now: u64) -> bool {
        if now.saturating_sub(self.worked) >= SPIN_NS {
            return false;
        }
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
        spin.worked(1000);
        assert!(spin.goes_on(1000 + SPIN_NS - 1));
        assert!(!spin.goes_on(1000 + SPIN_NS));
    }

    #[test]
    fn nobody_spins_where_all_cores_are_taken_or_nothing_is_known() {
        let mut full = Spin { cores: 0, ..Spin::new() };
        assert!(!full.goes_on(1));
        let mut blind = Spin { load: None, cores: usize::MAX, ..Spin::new() };
        assert!(!blind.goes_on(1));
    }
}
