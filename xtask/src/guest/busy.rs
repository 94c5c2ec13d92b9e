//! A host that is busy with other work.

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Threads that want a processor each, until it is dropped.
#[derive(Debug)]
pub struct Busy {
    enough: Arc<AtomicBool>,
}

impl Busy {
    /// Starts so many.
    pub fn start(threads: usize) -> Self {
        let enough = Arc::new(AtomicBool::new(false));
        for _ in 0..threads {
            let enough = Arc::clone(&enough);
            thread::spawn(move || {
                while !enough.load(Ordering::Relaxed) {
                    spin_loop();
                }
            });
        }
        Self { enough }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.enough.store(true, Ordering::Relaxed);
    }
}
