//! Work on all the bytes of an image, by a thread of its own: its sender decides how long that takes, and the control
//! thread serves all clients.
//!
//! There is one such thread at a time; further requests wait for their turn, or are withdrawn. It touches no card, and
//! of the state directory only images: the control thread writes the card's record, once it has the outcome and has
//! checked the rest.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use bitstreams::Manifest;
use bitstreams::digest::Sha256;
use card_driver::backend::Takes;
use hostmem::EventFd;
use nix::errno::Errno;
use shim_abi::MAX_IMAGE;

use super::record::ImageName;
use super::store::Store;
use super::{Accepted, Digested, accept_for};
use crate::error::Error;
use crate::process::ClientId;

/// A card for which there is an image.
#[derive(Debug)]
pub struct TargetCard {
    /// Its number.
    pub card: u32,
    /// The kind of images that it takes.
    pub takes: Takes,
    /// Its present manifest.
    pub like: Manifest,
}

/// An image as a tool has brought it.
#[derive(Debug)]
pub struct Brought {
    /// Its name.
    pub name: String,
    /// The text of its manifest; empty where it has none.
    pub manifest: String,
    /// Its digest, as the client says.
    pub sha256: Sha256,
    /// The file.
    pub bytes: Vec<u8>,
}

/// A task for the examiner.
#[derive(Debug)]
pub enum Task {
    /// Checks an image for a card, and keeps it where the card takes it.
    Check(TargetCard, Brought),
    /// Reads the image that a card had before.
    Read(TargetCard, ImageName),
    /// Looks whether an image with that digest is kept whole.
    Verify(String),
    /// Removes the images that no record wants.
    Tidy,
}

/// The result of a task.
#[derive(Debug)]
pub enum Examined {
    /// An image for the card of that number, or why there is none.
    Image(u32, Result<Accepted, Error>),
    /// Whether the image with that digest is whole.
    Kept(String, Result<(), String>),
    /// Unwanted images are gone.
    Tidied,
}

/// The thread, if there is one, and the clients that wait for it.
#[derive(Debug)]
pub struct Examiner {
    store: Arc<Store>,
    state_dir: PathBuf,
    /// Readable when it has ended.
    news: Arc<EventFd>,
    at_work: Option<(Option<ClientId>, JoinHandle<Examined>)>,
    /// The clients that wait, in the order of their turns.
    waiting: VecDeque<ClientId>,
    wants_to_tidy: bool,
    /// The signal that the next thread waits for, in tests, before it begins.
    #[cfg(test)]
    held: Option<std::sync::mpsc::Receiver<()>>,
}

/// The signal of a thread's end, however it ends.
struct News(Arc<EventFd>);

impl Drop for News {
    fn drop(&mut self) {
        // The receiver may be gone.
        let _ = self.0.signal();
    }
}

impl Examiner {
    /// An examiner for the images of a state directory.
    ///
    /// # Errors
    /// [`Error::Memory`] when descriptors run out.
    pub fn new(store: Store, state_dir: PathBuf) -> Result<Self, Error> {
        Ok(Self {
            store: Arc::new(store),
            state_dir,
            news: Arc::new(EventFd::new()?),
            at_work: None,
            waiting: VecDeque::new(),
            wants_to_tidy: false,
            #[cfg(test)]
            held: None,
        })
    }

    /// Whether it has a task.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.at_work.is_some()
    }

    /// Records that a client waits for the end of its task.
    pub fn wait(&mut self, client: ClientId) {
        self.waiting.push_back(client);
    }

    /// The number of clients that wait for it.
    #[must_use]
    pub fn awaited(&self) -> usize {
        self.waiting.len()
    }

    /// Takes the client that has waited longest; none while it is busy.
    pub fn next_client(&mut self) -> Option<ClientId> {
        if self.is_busy() { None } else { self.waiting.pop_front() }
    }

    /// Begins a task for a client; it must not be busy.
    ///
    /// # Errors
    /// [`Error::Os`] when there can be no thread.
    pub fn begin(&mut self, client: ClientId, task: Task) -> Result<(), Error> {
        self.start(Some(client), task)
    }

    /// Removes the images that no record wants, as soon as it is not busy.
    pub fn tidy(&mut self) {
        self.wants_to_tidy = true;
        if self.is_busy() {
            return;
        }
        match self.start(None, Task::Tidy) {
            Ok(()) => self.wants_to_tidy = false,
            Err(error) => log::warn!("unused images cannot be removed: {error}"),
        }
    }

    fn start(&mut self, client: Option<ClientId>, task: Task) -> Result<(), Error> {
        let (store, state_dir) = (Arc::clone(&self.store), self.state_dir.clone());
        let news = News(Arc::clone(&self.news));
        #[cfg(test)]
        let held = self.held.take();
        let work = move || {
            let _news = news;
            #[cfg(test)]
            if let Some(held) = held {
                assert!(held.recv().is_err(), "a test has it panic");
            }
            task.run(&store, &state_dir)
        };
        let thread = Builder::new().name("images".into()).spawn(work);
        let thread = thread.map_err(|error| Error::Os {
            call: "a thread to look at an image",
            errno: Errno::from_raw(error.raw_os_error().unwrap_or(0)),
        })?;
        self.at_work = Some((client, thread));
        Ok(())
    }

    /// The result of the task, and its client; `None` while it goes on.
    ///
    /// # Panics
    /// Where the thread has.
    pub fn ended(&mut self) -> Option<(Option<ClientId>, Examined)> {
        let _ = self.news.drain();
        // It is signalled by its end alone, and has nothing left to do then.
        let (client, thread) = self.at_work.take()?;
        Some((client, thread.join().unwrap_or_else(|panic| resume_unwind(panic))))
    }

    /// Removes the files whose removal was asked for meanwhile, once the result was used.
    pub fn go_on(&mut self) {
        if self.wants_to_tidy {
            self.tidy();
        }
    }

    /// Makes the next thread wait for the sender's end; a message makes it panic.
    #[cfg(test)]
    pub fn hold(&mut self) -> std::sync::mpsc::Sender<()> {
        let (sender, receiver) = std::sync::mpsc::channel();
        self.held = Some(receiver);
        sender
    }
}

/// Readable when it has ended.
impl AsFd for Examiner {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.news.as_ref().as_fd()
    }
}

/// Waits for the thread's end: a half-written file is of no use to the next balboad, but only one thread may write
/// there.
impl Drop for Examiner {
    fn drop(&mut self) {
        if let Some((_, thread)) = self.at_work.take() {
            let _ = thread.join();
        }
    }
}

impl Task {
    fn run(self, store: &Store, state_dir: &std::path::Path) -> Examined {
        match self {
            Self::Check(target, brought) => {
                let accepted = check(&target, brought).and_then(|accepted| {
                    // One of a vFPGA alone is not gone back to.
                    if accepted.name.vfpga.is_none() {
                        let kept = store.put(&accepted.name.sha256, &accepted.bytes);
                        kept.map_err(|error| not_kept(state_dir, &error))?;
                    }
                    Ok(accepted)
                });
                Examined::Image(target.card, accepted)
            }
            Self::Read(target, name) => Examined::Image(target.card, read(store, &target, &name)),
            Self::Verify(sha256) => {
                let whole = store.image(&sha256, MAX_IMAGE).map(drop);
                Examined::Kept(sha256, whole)
            }
            Self::Tidy => {
                if let Err(why) = store.tidy() {
                    log::warn!("unused images cannot be removed: {why}");
                }
                Examined::Tidied
            }
        }
    }
}

fn not_kept(state_dir: &std::path::Path, error: &std::io::Error) -> Error {
    let why = format!("the image cannot be kept: {error}");
    Error::StateDir { dir: state_dir.to_owned(), why }
}

fn check(target: &TargetCard, brought: Brought) -> Result<Accepted, Error> {
    let Brought { name, manifest, sha256, bytes } = brought;
    let found = Sha256::of(&bytes);
    if found != sha256 {
        return Err(Error::Invalid(format!(
            "an image came whose SHA-256 is {found}, and {sha256} was said"
        )));
    }
    let file = Digested { bytes, sha256 };
    let accepted = accept_for(target.takes, &name, file, &manifest, &target.like);
    accepted.map_err(Error::Invalid)
}

fn read(store: &Store, target: &TargetCard, name: &ImageName) -> Result<Accepted, Error> {
    let wrong = |why| Error::Invalid(format!("{}, which it had before: {why}", name.name));
    let bytes = store.image(&name.sha256, MAX_IMAGE).map_err(wrong)?;
    let sha256 = name.sha256.parse::<Sha256>().map_err(wrong)?;
    let text = name.manifest.as_deref().unwrap_or_default();
    let file = Digested { bytes, sha256 };
    accept_for(target.takes, &name.name, file, text, &target.like).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use bitstreams::soft::{Logic, SoftImage};
    use host_view::directory::Directory;

    use super::*;

    fn examiner(root: &tempfile::TempDir) -> Examiner {
        let store = Store::new(&Directory::open(root.path()).unwrap()).unwrap();
        Examiner::new(store, root.path().to_owned()).unwrap()
    }

    #[test]
    fn one_that_goes_away_has_written_what_it_was_writing() {
        let root = tempfile::tempdir().unwrap();
        let mut examiner = examiner(&root);
        let held = examiner.hold();
        let bytes = SoftImage::new(vec![Logic::Vqe]).unwrap().to_bytes();
        let (name, sha256) = ("x".into(), Sha256::of(&bytes));
        let like = Manifest { regions: Some(4), ..Manifest::default() };
        let target = TargetCard { card: 0, takes: Takes::SoftImages, like };
        let brought = Brought { name, manifest: String::new(), sha256, bytes };
        examiner.begin(ClientId(1), Task::Check(target, brought)).unwrap();
        let (gone, has_gone) = channel();
        let dropping = thread::spawn(move || {
            drop(examiner);
            gone.send(()).unwrap();
        });
        let early = has_gone.recv_timeout(Duration::from_millis(100));
        assert!(early.is_err(), "it did not wait for its thread");
        drop(held);
        has_gone.recv().unwrap();
        assert!(root.path().join(format!("images/{sha256}.image")).exists());
        dropping.join().unwrap();
    }

    #[test]
    fn a_thread_that_panics_is_heard_and_nobody_takes_that_for_an_outcome() {
        let root = tempfile::tempdir().unwrap();
        let mut examiner = examiner(&root);
        let held = examiner.hold();
        examiner.begin(ClientId(1), Task::Tidy).unwrap();
        held.send(()).unwrap();
        while examiner.at_work.as_ref().is_some_and(|(_, thread)| !thread.is_finished()) {
            thread::yield_now();
        }
        assert!(examiner.news.drain().unwrap() > 0, "it is told");
        assert!(catch_unwind(AssertUnwindSafe(|| examiner.ended())).is_err());
    }
}
