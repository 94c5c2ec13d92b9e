//! A served card.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::thread::JoinHandle;
use std::time::Duration;

use hostmem::EventFd;
use softcard::serve::{ServeConfig, Server};
use softcard::{Image, Link};
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
        let patience = Duration::from_millis(20);
        let config = ServeConfig { patience, ..Self::config(&dir, "a", "b") };
        Self::serve(dir, "a", config)
    }

    /// Serves two cards as published on one cable, which may take the parts of a store for one.
    pub fn published(join_split_stores: bool) -> [Self; 2] {
        let dir = Rc::new(tempfile::tempdir().unwrap());
        [["a", "b"], ["b", "a"]].map(|[name, peer]| {
            let config = Self::config(&dir, name, peer);
            let config = ServeConfig { image: Image::Stock, join_split_stores, ..config };
            Self::serve(Rc::clone(&dir), name, config)
        })
    }

    fn start(dir: Rc<TempDir>, name: &'static str, peer: &str) -> Self {
        let config = Self::config(&dir, name, peer);
        Self::serve(dir, name, config)
    }

    fn config(dir: &TempDir, name: &str, peer: &str) -> ServeConfig {
        let port = |name: &str| dir.path().join(format!("port-{name}"));
        ServeConfig {
            socket: dir.path().join(name),
            link: Link::Unix { local: port(name), remote: port(peer) },
            image: Image::default(),
            plays_fpga: false,
            congestion: Default::default(),
            faults: Vec::new(),
            seed: 0,
            capture: None,
            // Longer than a busy machine keeps a client from answering.
            patience: Duration::from_secs(20),
            join_split_stores: false,
        }
    }

    fn serve(dir: Rc<TempDir>, name: &'static str, config: ServeConfig) -> Self {
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
