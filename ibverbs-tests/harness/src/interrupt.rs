//! The clean-up when the user ends a run: our programs end with us, our directories do not.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once, PoisonError};

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

static DIRECTORIES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Removes a directory if SIGINT, SIGTERM or SIGHUP ends this program while the answer lives.
///
/// To be called by the main thread before it starts others, which inherit its signal mask, or after
/// [`watch_for_signals`].
pub fn remove_on_signal(directory: &Path) -> Removal {
    watch_for_signals();
    with_directories(|directories| directories.push(directory.to_owned()));
    Removal(directory.to_owned())
}

/// Lets threads that are started from now on name directories to remove.
pub fn watch_for_signals() {
    static WATCH: Once = Once::new();
    WATCH.call_once(watch);
}

/// Runs a step, for example the start of a program, with no signal blocked.
pub fn unmasked<T>(act: impl FnOnce() -> T) -> T {
    let before = SigSet::empty().thread_swap_mask(SigmaskHow::SIG_SETMASK);
    let outcome = act();
    if let Ok(before) = before {
        // What was a mask a moment ago is one still.
        let _ = before.thread_set_mask();
    }
    outcome
}

/// See [`remove_on_signal`].
#[derive(Debug)]
pub struct Removal(PathBuf);

impl Drop for Removal {
    fn drop(&mut self) {
        with_directories(|directories| directories.retain(|known| *known != self.0));
    }
}

fn with_directories<T>(use_them: impl FnOnce(&mut Vec<PathBuf>) -> T) -> T {
    use_them(&mut DIRECTORIES.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Takes the signals away from the other threads and waits for one in a thread of its own. Programs
/// that are started inherit the mask, unless it is [lifted](unmasked).
fn watch() {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        signals.add(signal);
    }
    if signals.thread_block().is_err() {
        return;
    }
    std::thread::spawn(move || {
        let Ok(signal) = signals.wait() else { return };
        with_directories(|directories| {
            for directory in directories {
                let _ = fs::remove_dir_all(directory);
            }
        });
        std::process::exit(128 + signal as i32);
    });
}
