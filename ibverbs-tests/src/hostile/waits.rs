//! How long threads wait for a processor, which is the machine's doing.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};

/// The threads of balboad by which a message and its event go.
const ON_THE_WAY: [&str; 3] = ["cards", "interrupts", "relay"];

/// The waits of threads for a processor.
#[derive(Debug)]
pub(super) struct Waits(Vec<File>);

impl Waits {
    /// The waits of the calling thread, and of the threads of a balboad, by its process id, through which messages go.
    ///
    /// # Errors
    /// When balboad has ended.
    pub(super) fn on_the_way(balboad: i32) -> Result<Self> {
        let mut files = vec![counts(Path::new("/proc/thread-self"))?];
        let threads = fs::read_dir(format!("/proc/{balboad}/task")).context("balboad's threads")?;
        for thread in threads {
            let thread = thread?.path();
            // One that has ended meanwhile carries nothing.
            let name = fs::read_to_string(thread.join("comm")).unwrap_or_default();
            if ON_THE_WAY.contains(&name.trim_end()) {
                files.extend(counts(&thread));
            }
        }
        Ok(Self(files))
    }

    /// How long they have waited so far, all together: where two wait at a time, that counts twice.
    pub(super) fn so_far(&self) -> Duration {
        self.0.iter().map(waited).sum()
    }
}

fn counts(thread: &Path) -> Result<File> {
    File::open(thread.join("schedstat")).with_context(|| format!("what {thread:?} waits"))
}

/// How long a thread has waited, as its scheduler counts it in nanoseconds; nothing for one that has ended.
fn waited(counts: &File) -> Duration {
    let mut text = [0; 96];
    let length = counts.read_at(&mut text, 0).unwrap_or(0);
    let text = std::str::from_utf8(&text[..length]).unwrap_or_default();
    // It has run so long, has waited so long, and was given a processor so many times.
    let nanos = text.split_whitespace().nth(1).and_then(|word| word.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
    use nix::unistd::Pid;

    use super::*;

    #[test]
    fn a_thread_that_shares_its_core_with_another_waits_for_it() {
        let own = Pid::from_raw(0);
        let allowed = sched_getaffinity(own).unwrap();
        let first = (0..CpuSet::count()).find(|cpu| allowed.is_set(*cpu).unwrap()).unwrap();
        let mut one = CpuSet::new();
        one.set(first).unwrap();
        let over = AtomicBool::new(false);
        let work = || {
            sched_setaffinity(own, &one).unwrap();
            while !over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(work);
            scope.spawn(|| {
                sched_setaffinity(own, &one).unwrap();
                let waits = Waits(vec![counts(Path::new("/proc/thread-self")).unwrap()]);
                let before = waits.so_far();
                while waits.so_far() == before {
                    std::hint::spin_loop();
                }
                over.store(true, Ordering::Relaxed);
            });
        });
    }
}
