//! A served card.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::thread::JoinHandle;
use std::time::Duration;

use hostmem::EventFd;
use softcard::Link;
use softcard::serve::{ServeConfig, Server};
use tempfile::TempDir;

/// A card that is served until it is dropped.
pub struct Served {
    stop: EventFd,
    thread: Option<JoinHandle<()>>,
    dir: Rc<TempDir>,
    name: &'static str,
}

impl Served {
    /// Serves a card on a cable of its own.
    pub fn new() -> Self {
        Self::start(Rc::new(tempfile::tempdir().unwrap()), "a", "b")
    }

    /// Serves two cards on one cable.
    pub fn pair() -> [Self; 2] {
        let dir = Rc::new(tempfile::tempdir().unwrap());
        [Self::start(dir.clone(), "a", "b"), Self::start(dir, "b", "a")]
    }

    /// Serves a card that soon gives up a client that does not answer.
    pub fn impatient() -> Self {
        let dir = Rc::new(tempfile::tempdir().unwrap());
        Self::start_with(dir, "a", "b", Duration::from_millis(20))
    }

    fn start(dir: Rc<TempDir>, name: &'static str, peer: &str) -> Self {
        // Longer than a busy machine keeps a client from answering.
        Self::start_with(dir, name, peer, Duration::from_secs(20))
    }

    fn start_with(dir: Rc<TempDir>, name: &'static str, peer: &str, patience: Duration) -> Self {
        let port = |name: &str| dir.path().join(format!("port-{name}"));
        let config = ServeConfig {
            socket: dir.path().join(name),
            link: Link::Unix { local: port(name), remote: port(peer) },
            image: softcard::Image::default(),
            faults: Vec::new(),
            seed: 0,
            capture: None,
            patience,
        };
        let stop = EventFd::new().unwrap();
        let stopped = stop.try_clone().unwrap();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut server = Server::new(config).unwrap();
            ready.send(()).unwrap();
            server.run(stopped.as_fd()).unwrap();
        });
        is_ready.recv().unwrap();
        Self { stop, thread: Some(thread), dir, name }
    }

    /// Where clients connect.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join(self.name)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.signal().unwrap();
        let outcome = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            outcome.unwrap().unwrap();
        }
    }
}
