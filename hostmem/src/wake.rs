//! Waking a card that sleeps, without a system call while it is awake and without losing a wake-up.
//!
//! A card that polls doorbells goes to sleep on an eventfd when it finds nothing. A client that
//! rings must wake it, but must not pay for a system call when the card is awake anyway. Both
//! share one word, `asleep`:
//!
//! ```text
//! client                                   card
//!   record, slot  := new work                 asleep := 1
//!   full fence                                full fence
//!   read asleep; if set, signal eventfd       scan all slots again
//!                                             nothing found: wait on the eventfd
//!                                             asleep := 0, drain the eventfd, scan
//! ```
//!
//! Why no wake-up is lost: the two full fences are in some order. If the client's comes first, the
//! card's second scan follows it and sees the work. If the card's comes first, the client's load
//! follows it and sees `asleep` set, and signals; the eventfd keeps the signal however late the
//! card starts to wait. A signal too many costs one empty scan; the card drains the eventfd
//! *before* it scans, so a signal that arrives during the scan ends the next wait at once.
//!
//! A card that has nothing to do when a receive is posted says so by another value: a program that
//! posts receives one by one to a card that waits for something else would otherwise pay a system
//! call for each, and give its core away. The card decides which value it is before it stores it,
//! so the protocol of the signalling side is the same.
//!
//! The word is the card's to write. It belongs in a page that clients can only read
//! ([`crate::memfd::create_read_only_for_others`]): a client that could clear it would put the
//! card to sleep for everybody.
//!
//! The two halves of the protocol are generic over the word, so that the loom model at the end of
//! this file runs the very code that production runs.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use crate::mapping::SharedMapping;
use crate::word::SharedWord;
use crate::{EventFd, Result, barrier};

/// The shared word as clients use it; the second implementation is the model checker's.
trait ClientWord {
    fn load(&self) -> u32;
    fn full_fence(&self);
}

/// The shared word as the card uses it; the second implementation is the model checker's.
trait CardWord {
    fn store(&self, value: u32);
    fn full_fence(&self);
}

const AWAKE: u32 = 0;

/// The events that are to wake a sleeping card: the values of the word other than 0, awake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum WakeFor {
    /// Every doorbell.
    All = 1,
    /// Every doorbell but those of receive queues.
    AllButReceives = 2,
}

/// Client half, after the work was made visible: says whether the card must be signalled.
#[inline(always)]
fn must_signal(word: &impl ClientWord) -> bool {
    word.full_fence();
    word.load() != AWAKE
}

/// The same where the work is receives.
#[inline(always)]
fn must_signal_receives(word: &impl ClientWord) -> bool {
    word.full_fence();
    word.load() == WakeFor::All as u32
}

/// Card half, before the last scan.
#[inline(always)]
fn announce_sleep(word: &impl CardWord, wake: WakeFor) {
    word.store(wake as u32);
    word.full_fence();
}

/// Card half, after the wait or when the last scan found work.
#[inline(always)]
fn announce_awake(word: &impl CardWord) {
    // No fence: a client that still sees the old value signals once too often.
    word.store(AWAKE);
}

/// The word that tells clients whether their card sleeps: 32 bits, 0 awake, or a [`WakeFor`].
#[derive(Debug, Clone)]
pub struct AsleepWord {
    word: SharedWord,
    /// The mapping that has it, for the card to store it.
    mapping: Arc<SharedMapping>,
    offset: usize,
}

impl AsleepWord {
    /// Views the word at `offset`, a multiple of 4.
    ///
    /// The card's mapping must be one that can be written, a client's need not.
    pub fn new(mapping: Arc<SharedMapping>, offset: usize) -> Result<Self> {
        let word = SharedWord::new(Arc::clone(&mapping), offset)?;
        Ok(Self { word, mapping, offset })
    }

    /// Card: announces that it will sleep unless the scan that must follow finds work, and the doorbells for which it
    /// is to be woken. Where that changes before it says that it is awake, it says so anew, and scans again.
    ///
    /// Fails on a mapping that cannot be written.
    pub fn prepare_sleep(&self, wake: WakeFor) -> Result<()> {
        self.mapping.must_be_writable("asleep word")?;
        announce_sleep(self, wake);
        Ok(())
    }

    /// Card: says that it is awake, after the wait or instead of it.
    ///
    /// Then drain the eventfd if it was signalled, then scan. Fails on a mapping that cannot be
    /// written.
    pub fn awake(&self) -> Result<()> {
        self.mapping.must_be_writable("asleep word")?;
        announce_awake(self);
        Ok(())
    }

    /// Whether the card says that it sleeps, with no order: to be shown, not to be relied on.
    pub fn is_asleep(&self) -> bool {
        self.word.load_relaxed() != AWAKE
    }
}

impl CardWord for AsleepWord {
    fn store(&self, value: u32) {
        let stored = self.mapping.store_relaxed_u32(self.offset, value);
        debug_assert!(stored.is_ok(), "callers check that the mapping can be written");
    }

    fn full_fence(&self) {
        barrier::store_then_load();
    }
}

impl ClientWord for SharedWord {
    #[inline(always)]
    fn load(&self) -> u32 {
        self.load_relaxed()
    }

    #[inline(always)]
    fn full_fence(&self) {
        barrier::store_then_load();
    }
}

/// A client's means to wake its card: the asleep word and the card's eventfd.
#[derive(Debug)]
pub struct Waker {
    word: SharedWord,
    /// `None` where the card is never woken: the word then never says that it sleeps.
    event: Option<EventFd>,
}

impl Waker {
    /// Joins the word and the eventfd of one card.
    pub fn new(word: AsleepWord, event: EventFd) -> Self {
        Self { word: word.word, event: Some(event) }
    }

    /// For a card that sees its doorbells without being woken.
    pub fn needless() -> Self {
        static ALWAYS_AWAKE: AtomicU32 = AtomicU32::new(AWAKE);
        Self { word: SharedWord::constant(&ALWAYS_AWAKE), event: None }
    }

    /// Wakes the card if it sleeps; to be called after the record and the slot were stored.
    ///
    /// One full fence and one load while the card is awake, and one system call, which does not
    /// wait, when it sleeps. Returns whether it was signalled.
    #[inline(always)]
    pub fn wake_if_asleep(&self) -> Result<bool> {
        if !self.is_needed() {
            return Ok(false);
        }
        self.signal()?;
        Ok(true)
    }

    /// Whether the card sleeps, so that it must be signalled: the first half of
    /// [`Self::wake_if_asleep`].
    #[inline(always)]
    pub fn is_needed(&self) -> bool {
        must_signal(&self.word)
    }

    /// Whether the card sleeps and must be signalled for receives that were posted.
    #[inline(always)]
    pub fn is_needed_for_receives(&self) -> bool {
        must_signal_receives(&self.word)
    }

    /// Signals the card: the system call, the second half of [`Self::wake_if_asleep`].
    pub fn signal(&self) -> Result<()> {
        self.event.as_ref().map_or(Ok(()), EventFd::signal)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;
    use crate::{Access, DoorbellPage, Error, memfd};

    #[test]
    fn only_a_sleeping_card_is_signalled() {
        let (fd, writer) = memfd::create_read_only_for_others("asleep", 4096).unwrap();
        let reader = SharedMapping::new(fd.as_fd(), 0, 4096, Access::ReadOnly).unwrap();
        let card = AsleepWord::new(Arc::new(writer), 64).unwrap();
        let event = EventFd::new().unwrap();
        let word = AsleepWord::new(Arc::new(reader), 64).unwrap();
        assert!(matches!(word.prepare_sleep(WakeFor::All), Err(Error::ReadOnly { .. })));
        assert!(matches!(word.awake(), Err(Error::ReadOnly { .. })));
        let client = Waker::new(word, event.try_clone().unwrap());

        assert!(!client.wake_if_asleep().unwrap());
        for wake in [WakeFor::All, WakeFor::AllButReceives] {
            card.prepare_sleep(wake).unwrap();
            assert!(card.is_asleep());
            assert!(client.wake_if_asleep().unwrap());
            assert_eq!(event.drain().unwrap(), 1);
            assert_eq!(client.is_needed_for_receives(), wake == WakeFor::All);
            card.awake().unwrap();
            assert!(!client.wake_if_asleep().unwrap());
            assert!(!client.is_needed_for_receives());
        }
    }

    #[test]
    fn a_real_card_thread_sees_every_doorbell() {
        const ROUNDS: u64 = 2000;
        let fd = memfd::create("doorbells", 8192).unwrap();
        let map = || SharedMapping::new(fd.as_fd(), 0, 8192, Access::ReadWrite).unwrap();
        let (ours, theirs) = (Arc::new(map()), Arc::new(map()));
        let event = EventFd::new().unwrap();
        let waker =
            Waker::new(AsleepWord::new(ours.clone(), 0).unwrap(), event.try_clone().unwrap());
        let doorbells = DoorbellPage::new(ours.clone(), 4096).unwrap();
        let card = std::thread::spawn(move || {
            let page = DoorbellPage::new(theirs.clone(), 4096).unwrap();
            let word = AsleepWord::new(theirs.clone(), 0).unwrap();
            let mut seen = 0;
            let scan = |seen: &mut u64| {
                let value = page.read(9);
                let found = value != *seen;
                *seen = value;
                theirs.store_release_u64(128, value).unwrap();
                found
            };
            while seen < ROUNDS {
                if scan(&mut seen) {
                    continue;
                }
                word.prepare_sleep(WakeFor::All).unwrap();
                if !scan(&mut seen) {
                    let mut fds = [PollFd::new(event.as_fd(), PollFlags::POLLIN)];
                    // The limit turns a lost wake-up into a failure instead of a hang.
                    assert_eq!(poll(&mut fds, PollTimeout::from(20_000u16)).unwrap(), 1);
                }
                word.awake().unwrap();
                event.drain().unwrap();
            }
        });
        for round in 1..=ROUNDS {
            doorbells.ring(9, round);
            waker.wake_if_asleep().unwrap();
            while ours.load_acquire_u64(128).unwrap() != round && !card.is_finished() {
                std::thread::yield_now();
            }
        }
        card.join().unwrap();
    }
}

/// The protocol under loom: every interleaving and every stale load the memory model allows.
#[cfg(test)]
mod model {
    use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
    use loom::sync::{Arc, Mutex};

    use super::{
        CardWord, ClientWord, WakeFor, announce_awake, announce_sleep, must_signal,
        must_signal_receives,
    };

    /// Full fence or none: the model must fail without it, or it would prove nothing.
    struct ModelWord {
        value: AtomicU32,
        fenced: bool,
    }

    impl ClientWord for ModelWord {
        fn load(&self) -> u32 {
            self.value.load(Ordering::Relaxed)
        }
        fn full_fence(&self) {
            if self.fenced {
                fence(Ordering::SeqCst);
            }
        }
    }

    impl CardWord for ModelWord {
        fn store(&self, value: u32) {
            self.value.store(value, Ordering::Relaxed);
        }
        fn full_fence(&self) {
            ClientWord::full_fence(self);
        }
    }

    /// The state that card and clients share; the mutex stands for the eventfd, which the kernel orders.
    struct Shared {
        asleep: ModelWord,
        slots: [AtomicU32; 2],
        records: [AtomicU32; 2],
        event: Mutex<bool>,
    }

    /// Follows one card that wants to sleep while `clients` clients ring once each.
    ///
    /// A card that would now wait for ever with work undone panics. The first client posts receives,
    /// and the card is to be woken for `wake`.
    fn card_against(clients: usize, wake: WakeFor, fenced: bool) {
        card_announces(clients, vec![wake], fenced);
    }

    /// The same, where the card says it so often, each time with a look behind it.
    fn card_announces(clients: usize, wakes: Vec<WakeFor>, fenced: bool) {
        let wake = *wakes.last().unwrap();
        let lost = move || {
            let shared = Arc::new(Shared {
                asleep: ModelWord { value: AtomicU32::new(0), fenced },
                slots: [AtomicU32::new(0), AtomicU32::new(0)],
                records: [AtomicU32::new(0), AtomicU32::new(0)],
                event: Mutex::new(false),
            });
            let threads: Vec<_> = (0..clients)
                .map(|client| {
                    let shared = Arc::clone(&shared);
                    loom::thread::spawn(move || {
                        shared.records[client].store(1, Ordering::Release);
                        shared.slots[client].store(1, Ordering::Release);
                        let must: fn(&ModelWord) -> bool =
                            if client == 0 { must_signal_receives } else { must_signal };
                        if must(&shared.asleep) {
                            *shared.event.lock().unwrap() = true;
                        }
                    })
                })
                .collect();

            let done: Vec<_> = (0..clients).map(|_| AtomicBool::new(false)).collect();
            let scan = || {
                let mut found = false;
                for (client, done) in done.iter().enumerate() {
                    if shared.slots[client].load(Ordering::Acquire) == 1
                        && !done.load(Ordering::Relaxed)
                    {
                        // A slot that changed must show the record stored before it.
                        assert_eq!(shared.records[client].load(Ordering::Acquire), 1);
                        done.store(true, Ordering::Relaxed);
                        found = true;
                    }
                }
                found
            };
            let mut slept = true;
            for wake in &wakes {
                announce_sleep(&shared.asleep, *wake);
                slept &= !scan();
            }
            if !slept {
                announce_awake(&shared.asleep);
            }
            for thread in threads {
                thread.join().unwrap();
            }
            // All clients have finished. A card that went to wait with work
            // undone is woken only if its event was signalled.
            if slept {
                let matters = usize::from(wake == WakeFor::AllButReceives);
                let undone = done[matters..].iter().any(|done| !done.load(Ordering::Relaxed));
                assert!(!undone || *shared.event.lock().unwrap(), "lost wake-up");
            }
        };
        loom::model(lost);
    }

    #[test]
    fn no_wake_up_is_lost_with_one_client() {
        card_against(1, WakeFor::All, true);
    }

    #[test]
    fn no_wake_up_is_lost_where_a_card_wants_to_be_woken_for_more() {
        card_announces(1, vec![WakeFor::AllButReceives, WakeFor::All], true);
    }

    #[test]
    fn no_wake_up_is_lost_with_two_clients() {
        card_against(2, WakeFor::All, true);
        card_against(2, WakeFor::AllButReceives, true);
    }

    #[test]
    #[should_panic(expected = "lost wake-up")]
    fn without_the_full_fences_the_model_loses_a_wake_up() {
        card_against(1, WakeFor::All, false);
    }
}
