//! A served card.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use hostmem::EventFd;
use softcard::Link;
use softcard::serve::{ServeConfig, Server};
use tempfile::TempDir;

/// A card that is served until it is dropped.
pub struct Served {
    stop: EventFd,
    thread: Option<JoinHandle<()>>,
    dir: TempDir,
}

impl Served {
    /// Serves a card on a cable of its own.
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = ServeConfig {
            socket: dir.path().join("card.sock"),
            link: Link::Unix { local: dir.path().join("a"), remote: dir.path().join("b") },
            faults: Vec::new(),
            seed: 0,
            capture: None,
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
        Self { stop, thread: Some(thread), dir }
    }

    /// Where clients connect.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("card.sock")
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.signal().unwrap();
        let outcome = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            outcome.unwrap().unwrap();
        }
        let _: &Path = self.dir.path();
    }
}
