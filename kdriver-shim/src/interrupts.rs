//! The thread that serves a card's interrupts, apart from the requests of clients.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use hostmem::EventFd;

use crate::error::Error;
use crate::shell::Shell;

/// How long nothing is waited for where the kernel does not let it.
const PAUSE: Duration = Duration::from_millis(100);

/// A thread that serves the interrupts of one card until this is dropped.
#[derive(Debug)]
pub struct Interrupts {
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Interrupts {
    /// Starts to serve the interrupts of a card.
    ///
    /// # Errors
    /// [`Error::Memory`] when descriptors run out, [`Error::Backend`] when threads do.
    pub fn serve(shell: &Arc<Shell>) -> Result<Self, Error> {
        let stop = Arc::new(EventFd::new()?);
        let (shell, stopped) = (Arc::clone(shell), Arc::clone(&stop));
        let thread = thread::Builder::new()
            .name("interrupts".into())
            .spawn(move || {
                while let Err(error) = shell.serve_until(stopped.as_fd()) {
                    log::error!("interrupts are not served for a moment: {error}");
                    thread::sleep(PAUSE);
                }
            })
            .map_err(|error| Error::Backend(format!("a thread for interrupts: {error}")))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        let _ = self.stop.signal();
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}
