//! Calls that may never return, made aside: by threads that balboad can do without.
//!
//! One thread serves all clients, and a process can make the kernel wait in unexpected
//! places: a question about a process waits for its exec under way, and that for the descriptors that
//! the exec closes; closing the last descriptor of a file waits for the file's maker, such as a file
//! system in user space or a connection that lingers. So this thread asks about clients' processes, and
//! closes their descriptors. If it hangs, it ends with balboad, or when the kernel lets it go on.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use hostmem::{EventFd, fdpass};
use nix::errno::Errno;
use nix::sys::socket::{Shutdown, shutdown};

use crate::error::Error;
use crate::peer;
use crate::process::{ClientId, Process};

/// Programs that are asked about at a time.
const MAX_ASKED: usize = 64;
/// Closings under way at which no new connection is accepted.
const MAX_CLOSING: usize = 256;
/// Bytes of a thread's stack.
const STACK: usize = 128 << 10;

/// A question about a program that must be answered before balboad serves it.
pub type Question = fn(&Process) -> Result<(), Error>;

/// The threads, and their answers.
#[derive(Debug)]
pub struct Aside {
    question: Question,
    /// Readable when there is an answer.
    news: Arc<EventFd>,
    answered: (Sender<ClientId>, Receiver<ClientId>),
    asked: BTreeMap<ClientId, JoinHandle<Result<(), Error>>>,
    /// Sockets that wait for a thread to close them.
    unclosed: Arc<Mutex<Vec<OwnedFd>>>,
    closing: Vec<JoinHandle<()>>,
}

impl Aside {
    /// No thread yet.
    ///
    /// # Errors
    /// [`Error::Memory`] when descriptors run out.
    pub fn new() -> Result<Self, Error> {
        Ok(Self {
            question: peer::examine,
            news: Arc::new(EventFd::new()?),
            answered: channel(),
            asked: BTreeMap::new(),
            unclosed: Arc::default(),
            closing: Vec::new(),
        })
    }

    /// Asks another question than whether a program's memory is within reach.
    #[cfg(test)]
    pub fn ask_instead(&mut self, question: Question) {
        self.question = question;
    }

    /// Begins to ask about a client's program; [`Self::answers`] has the answer, if it comes.
    ///
    /// # Errors
    /// [`Error::Unanswered`] when as many others are asked about and hang, [`Error::Os`] when there
    /// can be no thread.
    pub fn ask(&mut self, id: ClientId, process: &Process) -> Result<(), Error> {
        if self.asked.len() >= MAX_ASKED {
            return Err(Error::Unanswered { programs: self.asked.len() });
        }
        let (question, process) = (self.question, process.clone());
        let (answered, news) = (self.answered.0.clone(), Arc::clone(&self.news));
        let thread = spawn("ask", move || {
            let answer = question(&process);
            // The receiver may be gone.
            let _ = answered.send(id);
            let _ = news.signal();
            answer
        })?;
        self.asked.insert(id, thread);
        Ok(())
    }

    /// The answers that have come, with the clients that they are about.
    pub fn answers(&mut self) -> Vec<(ClientId, Result<(), Error>)> {
        let _ = self.news.drain();
        let Self { answered, asked, .. } = self;
        let mut answers = Vec::new();
        while let Ok(id) = answered.1.try_recv() {
            // It has nothing left to do but to end, so that this is not to wait.
            let Some(answer) = asked.remove(&id).and_then(|thread| thread.join().ok()) else {
                continue;
            };
            answers.push((id, answer));
        }
        answers
    }

    /// Closes a client's socket, in which there may be descriptors that were never received.
    pub fn close(&mut self, socket: OwnedFd) {
        self.closing.retain(|thread| !thread.is_finished());
        // From here on no message is added.
        let _ = shutdown(socket.as_raw_fd(), Shutdown::Both);
        if !fdpass::may_hold_descriptors(socket.as_fd()) {
            return;
        }
        self.unclosed.lock().unwrap_or_else(PoisonError::into_inner).push(socket);
        let unclosed = Arc::clone(&self.unclosed);
        let next = move || unclosed.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match spawn("close", move || while next().map(drop).is_some() {}) {
            Ok(thread) => self.closing.push(thread),
            Err(error) => log::warn!("a connection is closed later: {error}"),
        }
    }

    /// Whether so many closings hang that balboad should begin no others.
    pub fn is_full(&mut self) -> bool {
        self.closing.retain(|thread| !thread.is_finished());
        self.closing.len() >= MAX_CLOSING
    }
}

/// Readable when there are answers.
impl AsFd for Aside {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.news.as_ref().as_fd()
    }
}

fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, Error> {
    let thread = Builder::new().name(name.to_owned()).stack_size(STACK).spawn(work);
    thread.map_err(|error| Error::Os {
        call: "a thread to ask the kernel aside",
        errno: Errno::from_raw(error.raw_os_error().unwrap_or(0)),
    })
}
