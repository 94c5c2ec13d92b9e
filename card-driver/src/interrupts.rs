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
pub struct Interrupts {
    shell: Arc<Shell>,
    stop: EventFd,
    thread: Option<JoinHandle<()>>,
}

impl Interrupts {
    /// Starts to serve the interrupts of a card.
    ///
    /// # Errors
    /// [`Error::Memory`] and [`Error::Os`] when descriptors run out, [`Error::Backend`] when threads
    /// do.
    pub fn serve(shell: &Arc<Shell>) -> Result<Self, Error> {
        let stop = EventFd::new()?;
        shell.serve_apart(stop.as_fd())?;
        let mut interrupts = Self { shell: Arc::clone(shell), stop, thread: None };
        let shell = Arc::clone(shell);
        let thread = thread::Builder::new()
            .name("interrupts".into())
            .spawn(move || {
                while let Err(error) = shell.serve() {
                    log::error!("interrupts are not served for a moment: {error}");
                    thread::sleep(PAUSE);
                }
            })
            .map_err(|error| Error::Backend(format!("a thread for interrupts: {error}")))?;
        interrupts.thread = Some(thread);
        Ok(interrupts)
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        let _ = self.stop.signal();
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so.
            let _ = thread.join();
        }
        self.shell.serve_apart_no_more();
    }
}
