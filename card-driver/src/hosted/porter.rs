//! Copies from programs and to them, by a thread aside: their memory may be of a file system that does not answer, or of a
//! `userfaultfd`, and then nothing ends the copy.
//!
//! Whoever has one made waits for it, with the engine that it holds. Where the thread sleeps in it for too long it is left
//! behind, and the memory of that process is reached no more; so a process costs the others that time once.

use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::Builder;
use std::time::Duration;

use hostmem::process::{read_vectored, write_vectored};
use hostmem::{RemoteProcess, RemoteRange};

use crate::backend::CardBackend;
use crate::error::Error;
use crate::lock::lock;

/// How long a copy is waited for between two looks at its thread, and how many looks may find that it sleeps.
const LOOK: Duration = Duration::from_millis(20);
const LOOKS: u32 = 15;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    FromProgram,
    ToProgram,
}

/// Bytes to copy.
struct Load {
    process: Arc<RemoteProcess>,
    range: RemoteRange,
    way: Way,
    bytes: Vec<u8>,
}

impl Load {
    /// Copies them; they come back, if all were copied.
    fn carry(self) -> Option<Vec<u8>> {
        let Self { process, range, way, mut bytes } = self;
        let copied = match way {
            Way::FromProgram => {
                read_vectored(process.pid(), &mut [IoSliceMut::new(&mut bytes)], &[range])
            }
            Way::ToProgram => write_vectored(process.pid(), &mut [IoSlice::new(&bytes)], &[range]),
        };
        copied.is_ok().then_some(bytes)
    }
}

/// A thread that copies, as others reach it.
struct Lane {
    loads: mpsc::Sender<Load>,
    done: mpsc::Receiver<Option<Vec<u8>>>,
    thread: Arc<AtomicI32>,
}

impl Lane {
    fn start(card: u32, carry: fn(Load) -> Option<Vec<u8>>) -> Result<Self, Error> {
        let (loads, taken) = mpsc::channel::<Load>();
        let (carried, done) = mpsc::channel();
        let thread = Arc::new(AtomicI32::new(0));
        let own = Arc::clone(&thread);
        let run = move || {
            own.store(nix::unistd::gettid().as_raw(), Ordering::Release);
            while let Ok(load) = taken.recv() {
                // Who was left behind finds nobody.
                if carried.send(carry(load)).is_err() {
                    break;
                }
            }
        };
        let spawned = Builder::new().name(format!("copies{card}")).spawn(run);
        spawned.map_err(|error| {
            Error::Backend(format!("a thread for copies of balboa{card}: {error}"))
        })?;
        Ok(Self { loads, done, thread })
    }

    /// Whether the thread waits for something else than a processor.
    fn sleeps(&self) -> bool {
        let number = self.thread.load(Ordering::Acquire);
        let state = std::fs::read_to_string(format!("/proc/self/task/{number}/stat"));
        // Behind the name, which is in parentheses and may have some.
        let state = state.ok().and_then(|text| text.rsplit(')').next()?.trim().chars().next());
        state.is_some_and(|state| state != 'R')
    }
}

/// Has copies made for a card's engines.
pub(super) struct Porter {
    card: u32,
    below: Arc<dyn CardBackend>,
    lane: Mutex<Option<Lane>>,
    /// Makes a copy; another one in tests.
    copy: fn(Load) -> Option<Vec<u8>>,
}

impl std::fmt::Debug for Porter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Porter").field("card", &self.card).finish_non_exhaustive()
    }
}

impl Porter {
    pub(super) fn new(card: u32, below: Arc<dyn CardBackend>) -> Self {
        Self { card, below, lane: Mutex::default(), copy: Load::carry }
    }

    /// Copies bytes between here and a process's range; they come back, unless some were not copied.
    pub(super) fn carry(
        &self,
        process: &Arc<RemoteProcess>,
        range: RemoteRange,
        way: Way,
        bytes: Vec<u8>,
    ) -> Option<Vec<u8>> {
        let mut place = lock(&self.lane);
        // Whoever was waited for before may have been of the same process.
        if process.is_given_up() || process.has_ended() {
            return None;
        }
        let lane = match place.take() {
            Some(lane) => lane,
            None => match Lane::start(self.card, self.copy) {
                Ok(lane) => lane,
                Err(error) => {
                    log::error!("{error}");
                    return None;
                }
            },
        };
        lane.loads.send(Load { process: Arc::clone(process), range, way, bytes }).ok()?;
        let mut slept = 0u32;
        loop {
            match lane.done.recv_timeout(LOOK) {
                Ok(carried) => {
                    *place = Some(lane);
                    return carried;
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => return None,
                Err(mpsc::RecvTimeoutError::Timeout) if lane.sleeps() => {
                    slept = slept.saturating_add(1);
                    if slept >= LOOKS {
                        break;
                    }
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
        }
        log::warn!("memory of process {} does not answer; it is reached no more", process.pid());
        process.give_up();
        if let Some(told) = self.below.given_up() {
            // A counter that is full has been signalled.
            let _ = nix::unistd::write(told, &1u64.to_ne_bytes());
        }
        None
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may fail")]
mod tests {
    use hostmem::PidFd;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;
    use crate::fake::FakeCard;

    fn own_process() -> Arc<RemoteProcess> {
        let own = nix::unistd::getpid();
        Arc::new(RemoteProcess::new(own, PidFd::open(own).unwrap()))
    }

    /// A copy that does not return, if it is of so many bytes.
    const SILENT: usize = 13;

    fn copy(load: Load) -> Option<Vec<u8>> {
        if load.range.len == SILENT {
            loop {
                std::thread::park();
            }
        }
        load.carry()
    }

    #[test]
    fn who_does_not_answer_is_left_behind_and_others_are_copied() {
        let porter = Porter { copy, ..Porter::new(0, Arc::new(FakeCard::new(1))) };
        let mut memory = vec![7u8; 64];
        let base = memory.as_mut_ptr() as usize;
        let place = |len| RemoteRange { base, len };
        let [silent, other] = [(); 2].map(|()| own_process());
        let read = |process: &Arc<RemoteProcess>, len| {
            porter.carry(process, place(len), Way::FromProgram, vec![0; len])
        };
        assert_eq!(read(&silent, 8), Some(vec![7; 8]));
        assert_eq!(read(&silent, SILENT), None);
        assert!(silent.is_given_up() && !other.is_given_up());
        let told = porter.below.given_up().unwrap();
        let told = poll(&mut [PollFd::new(told, PollFlags::POLLIN)], PollTimeout::ZERO);
        assert_eq!(told, Ok(1), "nobody was told");
        assert_eq!(read(&silent, 8), None, "it is reached no more");
        assert_eq!(read(&other, 64), Some(vec![7; 64]));
        let nowhere = RemoteRange { base: 8, len: 8 };
        assert_eq!(porter.carry(&other, nowhere, Way::FromProgram, vec![0; 8]), None);
        let wrote = porter.carry(&other, place(3), Way::ToProgram, vec![9; 3]);
        assert!(wrote.is_some());
        memory.rotate_left(1);
        assert_eq!(memory[..4], [9, 9, 7, 7]);
    }
}
