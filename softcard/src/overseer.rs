//! The watch over the thread that runs the cards, which must not wait for a program for ever.
//!
//! The thread makes each copy from or to a program's memory without the cards (`hostmem::takeover`).
//! If one takes too long, another thread takes the cards over and goes on: the frames of that copy are
//! lost, their queue pairs fail, and the cards stop accessing that process's memory. The
//! thread that was left behind ends when its copy does.
//!
//! A thread that could go on, had it a processor, waits for no program: it is left its copy, however long
//! others have the processors. One that waits until the program has changed its address space, as it does where that
//! forks, is left it for three times as long ([`Standing`]), unless programs have had the cards stand so too often.
//!
//! How long is too long: [`Patience`] knows, and another look finds the thread in the same copy.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use hostmem::process::Standing;
use hostmem::{Account, Holder, Liveness, Patience, SharedMapping, Sight, Watcher};
use nix::unistd::{Pid, gettid};

use crate::Error;
use crate::run::{self, CardThread};
use hostmem::thread_page;

/// How long the cards may stand within a minute for programs that change their address space, before each further one of
/// these is waited for as any other.
pub const LOCKED: Duration = Duration::from_secs(2);

/// How long the cards stood for programs that change their address space.
struct Locked(Account);

impl Locked {
    /// The part of the time in that state that counts as waiting for a program that does not answer.
    fn counts(&mut self, standing: Standing, time: Duration, now: Instant) -> Duration {
        if standing != Standing::Locked {
            return standing.counts(time);
        }
        if self.0.take(time, now) > LOCKED { time } else { standing.counts(time) }
    }
}

/// Starts the thread that runs the cards, looks after it, and returns when it has ended.
///
/// This thread holds the object that clients watch to see that the cards live, because it never waits for another
/// thread.
pub(crate) fn run_cards(
    make: impl FnOnce() -> Result<CardThread, Error> + Send + 'static,
    page: Arc<SharedMapping>,
    started: &SyncSender<Result<(), Error>>,
) {
    let (holds, held) = std::sync::mpsc::sync_channel(1);
    let cards = move || match Holder::new(make) {
        Ok(cards) => {
            let _ = holds.send(Ok((cards.watch(), gettid())));
            run::run(cards);
        }
        Err(error) => {
            let _ = holds.send(Err(error));
        }
    };
    let spawned = std::thread::Builder::new().name("cards".into()).spawn(cards);
    let watch = match spawned {
        Ok(_) => held.recv().unwrap_or(Err(Error::Gone)),
        Err(error) => Err(Error::Thread(error)),
    };
    let life = watch.and_then(|watch| {
        let liveness = Liveness::hold(page, thread_page::LIVENESS_OFFSET as usize)?;
        Ok((watch, liveness))
    });
    match life {
        Ok(((watch, thread), _liveness)) => {
            let _ = started.send(Ok(()));
            look_after(&watch, thread);
        }
        Err(error) => {
            let _ = started.send(Err(error));
        }
    }
}

/// Looks after the cards until they end; `thread` has them.
fn look_after(watch: &Watcher<CardThread>, mut thread: Pid) {
    let mut patience = Patience::default();
    let mut seen = watch.look();
    let mut waited = Duration::ZERO;
    let mut locked = Locked(Account::new(Instant::now()));
    while seen != Sight::Ended {
        let limit = patience.now(Instant::now());
        watch.doze(seen, limit);
        let before = std::mem::replace(&mut seen, watch.look());
        let Sight::Left(call) = seen else { continue };
        if before != seen {
            waited = Duration::ZERO;
            continue;
        }
        let counts = locked.counts(Standing::of(thread), limit, Instant::now());
        waited = waited.saturating_add(counts);
        if waited < limit {
            continue;
        }
        waited = Duration::ZERO;
        if let Some(successor) = replace(watch, call) {
            thread = successor;
            patience.was_tried(Instant::now());
        }
    }
}

/// Lets another thread go on with the cards, and says which; `None` where the copy has just returned.
fn replace(watch: &Watcher<CardThread>, call: u64) -> Option<Pid> {
    let successor = watch.clone();
    let (takes, taken) = std::sync::mpsc::sync_channel(1);
    let go_on = move || {
        let cards = successor.take(call);
        let _ = takes.send(cards.is_some().then(gettid));
        if let Some(cards) = cards {
            run::take_over(cards);
        }
    };
    match std::thread::Builder::new().name("cards".into()).spawn(go_on) {
        Ok(_) => taken.recv().unwrap_or(None),
        Err(error) => {
            log::error!("a copy does not return, and no thread can be had to go on: {error}");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use fpga_regs::coyote::pci::Bar;
    use hostmem::{EventFd, PAGE_BYTES, memfd};

    use super::*;
    use crate::command::{Action, Command};
    use crate::port::Cabling;
    use crate::run::ThreadShares;
    use crate::{Link, published::Published};

    /// Gives the cards to a thread that makes a call without them, and looks after both; answers whether
    /// the thread found the cards gone behind its call. Meanwhile `asks` asks the cards for something.
    fn are_taken_from(call: impl FnOnce() + Send + 'static, asks: impl FnOnce(&dyn Fn())) -> bool {
        let (_, page) = memfd::create_read_only_for_others("test", PAGE_BYTES).unwrap();
        let (sender, commands) = mpsc::channel();
        let kick = EventFd::new().unwrap();
        let wake = kick.try_clone().unwrap();
        let make = move || {
            let cabling = Cabling { links: vec![Link::Switch], ..Cabling::default() };
            let places = vec![Default::default()];
            let published = vec![Arc::new(Published::new()?)];
            let given_up = EventFd::new()?;
            let place = ThreadShares { page: Arc::new(page), idle_cards: Arc::default() };
            CardThread::new(cabling, places, published, commands, kick, given_up, place)
        };
        let (tells, told) = mpsc::channel();
        let caller = std::thread::spawn(move || {
            let cards = Holder::new(make).unwrap();
            tells.send((cards.watch(), gettid())).unwrap();
            match cards.without(call) {
                Some((cards, ())) => {
                    run::run(cards);
                    false
                }
                None => true,
            }
        });
        let (watch, thread) = told.recv().unwrap();
        let overseer = std::thread::spawn(move || look_after(&watch, thread));
        asks(&|| {
            let (reply, answer) = mpsc::sync_channel(1);
            let action = Action::Read { bar: Bar::Static, offset: 0, bytes: 4, reply };
            sender.send(Command { card: 0, action }).unwrap();
            answer.recv().expect("some thread has the cards");
        });
        drop(sender);
        wake.signal().unwrap();
        let taken = caller.join().unwrap();
        overseer.join().unwrap();
        taken
    }

    #[test]
    fn cards_go_on_without_the_thread_that_a_call_keeps() {
        let (go_on, kept) = mpsc::channel::<()>();
        let taken = are_taken_from(
            move || kept.recv().unwrap(),
            |ask| {
                ask();
                go_on.send(()).unwrap();
            },
        );
        assert!(taken);
    }

    #[test]
    fn who_locks_too_often_within_a_minute_is_waited_for_as_any_other() {
        let (begun, look) = (Instant::now(), Duration::from_millis(200));
        let mut locked = Locked(Account::new(begun));
        assert_eq!(locked.counts(Standing::Runnable, look, begun), Duration::ZERO);
        assert_eq!(locked.counts(Standing::Asleep, look, begun), look);
        for _ in 0..10 {
            assert!(locked.counts(Standing::Locked, look, begun) < look / 2);
        }
        assert_eq!(locked.counts(Standing::Locked, look, begun), look);
        assert!(locked.counts(Standing::Locked, look, begun + Duration::from_secs(60)) < look / 2);
    }

    #[test]
    fn cards_stay_with_a_thread_that_could_go_on() {
        let begun = Instant::now();
        let long = 4 * Patience::default().now(begun);
        let spin = move || while begun.elapsed() < long {};
        assert!(!are_taken_from(spin, |ask| ask()));
    }
}
