//! Copies from programs and to them, by a thread aside: their memory may be of a file system that does not answer, or of a
//! `userfaultfd`, and then nothing ends the copy.
//!
//! The thread that orders a copy waits for it, with the engine that it holds. Where the thread sleeps in it for too
//! long ([`Patience`]), or has slept too much for one process within a minute, it is left behind, and that memory is
//! not accessed any more. A thread that could go on, had it a processor, is waited for.

use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::Builder;
use std::time::{Duration, Instant};

use hostmem::process::{Standing, read_vectored, write_vectored};
use hostmem::{Account, Patience, RemoteProcess, RemoteRange};
use nix::unistd::Pid;

use crate::backend::CardBackend;
use crate::error::Error;
use crate::lock::lock;

/// How long a copy is waited for between two looks at its thread, at most.
const LOOK: Duration = Duration::from_millis(20);
/// The time limit of a copy, in any state of its thread.
const LONGEST: Duration = Duration::from_secs(10);
/// How long copies may sleep for one process within a minute: memory that answers, but each time late.
const SLEEP: Duration = Duration::from_secs(2);

/// The direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyDirection {
    FromProgram,
    ToProgram,
}

/// Bytes to copy.
struct Load {
    process: Arc<RemoteProcess>,
    range: RemoteRange,
    direction: CopyDirection,
    bytes: Vec<u8>,
}

impl Load {
    /// Copies them; they come back, if all were copied.
    fn carry(self) -> Option<Vec<u8>> {
        let Self { process, range, direction, mut bytes } = self;
        // This thread may come to it late, when another process has the number.
        if process.has_ended() {
            return None;
        }
        let copied = match direction {
            CopyDirection::FromProgram => {
                read_vectored(process.pid(), &mut [IoSliceMut::new(&mut bytes)], &[range])
            }
            CopyDirection::ToProgram => {
                write_vectored(process.pid(), &mut [IoSlice::new(&bytes)], &[range])
            }
        };
        copied.is_ok().then_some(bytes)
    }
}

/// A thread that copies, as others reach it.
struct Lane {
    loads: mpsc::Sender<Load>,
    done: mpsc::Receiver<Option<Vec<u8>>>,
    /// The thread's number, as soon as it runs.
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
                // A thread that was left behind finds no receiver.
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
}

/// The porter of copies for a card's engines.
pub(super) struct Porter {
    card: u32,
    below: Arc<dyn CardBackend>,
    lane: Mutex<Option<Lane>>,
    sleep: Mutex<Sleep>,
    /// Makes a copy; another one in tests.
    copy: fn(Load) -> Option<Vec<u8>>,
}

/// How long copies have slept.
#[derive(Default)]
struct Sleep {
    patience: Patience,
    /// The accounts of processes: how long their copies slept.
    accounts: BTreeMap<i32, Account>,
}

impl Sleep {
    /// Notes that a copy for a process slept; whether it may go on to.
    fn count(&mut self, process: i32, slept: Duration, now: Instant) -> bool {
        self.accounts.retain(|_, account| !account.is_over(now));
        let account = self.accounts.entry(process).or_insert_with(|| Account::new(now));
        account.take(slept, now) < SLEEP
    }
}

impl std::fmt::Debug for Porter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Porter").field("card", &self.card).finish_non_exhaustive()
    }
}

impl Porter {
    pub(super) fn new(card: u32, below: Arc<dyn CardBackend>) -> Self {
        Self { card, below, lane: Mutex::default(), sleep: Mutex::default(), copy: Load::carry }
    }

    /// Copies bytes between here and a process's range; they come back, unless some were not copied.
    pub(super) fn carry(
        &self,
        process: &Arc<RemoteProcess>,
        range: RemoteRange,
        direction: CopyDirection,
        bytes: Vec<u8>,
    ) -> Option<Vec<u8>> {
        let mut place = lock(&self.lane);
        // The copy before may have been of the same process.
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
        lane.loads.send(Load { process: Arc::clone(process), range, direction, bytes }).ok()?;
        match self.wait(&lane, process) {
            Ok(carried) => {
                *place = Some(lane);
                return carried;
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => return None,
            Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
        log::warn!(
            "memory of process {} does not answer; balboad stops accessing it",
            process.pid()
        );
        process.give_up();
        if let Some(told) = self.below.given_up() {
            // A counter that is full has been signalled.
            let _ = nix::unistd::write(told, &1u64.to_ne_bytes());
        }
        None
    }

    /// Waits for a copy as long as it may take.
    fn wait(
        &self,
        lane: &Lane,
        process: &RemoteProcess,
    ) -> Result<Option<Vec<u8>>, mpsc::RecvTimeoutError> {
        let begun = Instant::now();
        let (mut patience, mut slept) = (None, Duration::ZERO);
        let mut look = LOOK;
        loop {
            match lane.done.recv_timeout(look) {
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                told => return told,
            }
            let now = Instant::now();
            let mut sleep = lock(&self.sleep);
            let limit = *patience.get_or_insert_with(|| sleep.patience.now(now));
            let mut goes_on = now.saturating_duration_since(begun) < LONGEST;
            // A thread that has not run yet has not slept.
            let thread = Some(lane.thread.load(Ordering::Acquire)).filter(|thread| *thread != 0);
            let standing = thread.map_or(Standing::Runnable, |it| Standing::of(Pid::from_raw(it)));
            // Nor has one that sleeps because it is done.
            match lane.done.try_recv() {
                Err(mpsc::TryRecvError::Empty) => {}
                Err(mpsc::TryRecvError::Disconnected) => {
                    return Err(mpsc::RecvTimeoutError::Disconnected);
                }
                Ok(carried) => return Ok(carried),
            }
            let more = standing.counts(look);
            if !more.is_zero() {
                slept = slept.saturating_add(more);
                goes_on &= sleep.count(process.pid().as_raw(), more, now) && slept < limit;
            }
            if !goes_on {
                sleep.patience.was_tried(now);
                return Err(mpsc::RecvTimeoutError::Timeout);
            }
            look = LOOK.min(limit);
        }
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
    fn who_answers_late_too_often_within_a_minute_is_left_behind() {
        let (mut sleep, begun) = (Sleep::default(), Instant::now());
        let (late, looks) = (7, 100);
        for look in 1..looks {
            assert!(sleep.count(late, LOOK, begun), "{look}");
        }
        assert!(!sleep.count(late, LOOK, begun) && sleep.count(8, LOOK, begun));
        assert!(sleep.count(late, LOOK, begun + Duration::from_secs(60)), "it is counted anew");
        assert_eq!(sleep.accounts.len(), 1, "who is quiet is forgotten");
    }

    #[test]
    fn a_thread_that_has_not_run_yet_is_waited_for_beyond_what_a_copy_may_sleep() {
        let porter = Porter::new(0, Arc::new(FakeCard::new(1)));
        let (loads, _taken) = mpsc::channel();
        let (carried, done) = mpsc::channel();
        let lane = Lane { loads, done, thread: Arc::default() };
        let limit = Patience::default().now(Instant::now());
        let late = std::thread::spawn(move || {
            std::thread::sleep(limit * 2);
            carried.send(Some(vec![7])).unwrap();
        });
        assert_eq!(porter.wait(&lane, &own_process()), Ok(Some(vec![7])));
        late.join().unwrap();
    }

    #[test]
    fn who_does_not_answer_is_left_behind_and_others_are_copied() {
        let porter = Porter { copy, ..Porter::new(0, Arc::new(FakeCard::new(1))) };
        let mut memory = vec![7u8; 64];
        let base = memory.as_mut_ptr() as usize;
        let place = |len| RemoteRange { base, len };
        let [silent, other] = [(); 2].map(|()| own_process());
        let read = |process: &Arc<RemoteProcess>, len| {
            porter.carry(process, place(len), CopyDirection::FromProgram, vec![0; len])
        };
        assert_eq!(read(&silent, 8), Some(vec![7; 8]));
        assert_eq!(read(&silent, SILENT), None);
        assert!(silent.is_given_up() && !other.is_given_up());
        let told = porter.below.given_up().unwrap();
        let told = poll(&mut [PollFd::new(told, PollFlags::POLLIN)], PollTimeout::ZERO);
        assert_eq!(told, Ok(1), "nobody was told");
        assert_eq!(read(&silent, 8), None, "it is not accessed any more");
        assert_eq!(read(&other, 64), Some(vec![7; 64]));
        let nowhere = RemoteRange { base: 8, len: 8 };
        assert_eq!(porter.carry(&other, nowhere, CopyDirection::FromProgram, vec![0; 8]), None);
        let wrote = porter.carry(&other, place(3), CopyDirection::ToProgram, vec![9; 3]);
        assert!(wrote.is_some());
        memory.rotate_left(1);
        assert_eq!(memory[..4], [9, 9, 7, 7]);
    }
}
