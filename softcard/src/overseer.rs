//! Who looks after the thread that runs the cards: it must not wait for a program for ever.
//!
//! The thread makes each copy from or to a program's memory without the cards (`hostmem::relay`).
//! Where one takes too long, another thread takes the cards and goes on: the frames of that copy are
//! lost, the queue pairs they belong to fail, and that process's memory is reached no more. The
//! thread that was left behind ends when its copy does.
//!
//! How long is too long: [`PATIENCE`], which others have to bear once, and half of what it was before
//! for each further process, so that many of them take no more from others than twice as much
//! and some milliseconds each. A minute without any makes it twice as long again.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use hostmem::{Holder, Liveness, SharedMapping, Sight, Watch};

use crate::Error;
use crate::run::{self, CardThread};
use crate::thread_page;

/// How long a copy may take before the cards are taken from its thread; twice as long at most.
const PATIENCE: Duration = Duration::from_millis(200);
/// The shortest that becomes.
const LEAST_PATIENCE: Duration = Duration::from_millis(5);
/// How long without a copy that did not return makes it twice as long again.
const FORGIVEN: Duration = Duration::from_secs(60);

/// Starts the thread that runs the cards, looks after it, and returns when it has ended.
///
/// What clients watch to see that the cards live is held here, for this thread waits for nobody.
pub(crate) fn run_cards(
    make: impl FnOnce() -> Result<CardThread, Error> + Send + 'static,
    page: Arc<SharedMapping>,
    started: &SyncSender<Result<(), Error>>,
) {
    let (holds, held) = std::sync::mpsc::sync_channel(1);
    let cards = move || match Holder::new(make) {
        Ok(cards) => {
            let _ = holds.send(Ok(cards.watch()));
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
        Ok((watch, _liveness)) => {
            let _ = started.send(Ok(()));
            look_after(&watch);
        }
        Err(error) => {
            let _ = started.send(Err(error));
        }
    }
}

/// Looks after the cards until they end.
fn look_after(watch: &Watch<CardThread>) {
    let mut patience = Patience::default();
    let mut seen = watch.look();
    while seen != Sight::Ended {
        watch.doze(seen, patience.now(Instant::now()));
        let before = std::mem::replace(&mut seen, watch.look());
        let Sight::Left(call) = seen else { continue };
        if before == seen && replace(watch, call) {
            patience.was_tried(Instant::now());
        }
    }
}

/// Lets another thread go on with the cards; `false` where the copy has just returned.
fn replace(watch: &Watch<CardThread>, call: u64) -> bool {
    let successor = watch.clone();
    let (takes, taken) = std::sync::mpsc::sync_channel(1);
    let go_on = move || {
        let cards = successor.take(call);
        let _ = takes.send(cards.is_some());
        if let Some(cards) = cards {
            run::take_over(cards);
        }
    };
    match std::thread::Builder::new().name("cards".into()).spawn(go_on) {
        Ok(_) => taken.recv().unwrap_or(false),
        Err(error) => {
            log::error!("a copy does not return, and no thread can be had to go on: {error}");
            false
        }
    }
}

/// How long a copy may take.
#[derive(Debug)]
struct Patience {
    limit: Duration,
    /// When it was tried last, or has grown again.
    tried: Option<Instant>,
}

impl Default for Patience {
    fn default() -> Self {
        Self { limit: PATIENCE, tried: None }
    }
}

impl Patience {
    fn now(&mut self, now: Instant) -> Duration {
        while let Some(tried) = self.tried {
            let Some(rested) = tried.checked_add(FORGIVEN).filter(|rested| *rested <= now) else {
                break;
            };
            self.limit = self.limit.saturating_mul(2).min(PATIENCE);
            self.tried = (self.limit < PATIENCE).then_some(rested);
        }
        self.limit
    }

    fn was_tried(&mut self, now: Instant) {
        self.limit = self.limit.checked_div(2).unwrap_or_default().max(LEAST_PATIENCE);
        self.tried = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use fpga_regs::coyote::pci::Bar;
    use fpga_regs::coyote::shell::Map;
    use hostmem::{EventFd, PAGE_BYTES, memfd};

    use super::*;
    use crate::command::{Action, Command};
    use crate::port::Cabling;
    use crate::{Link, published::Published};

    #[test]
    fn cards_go_on_without_the_thread_that_a_call_keeps() {
        let (_, page) = memfd::create_read_only_for_others("test", PAGE_BYTES).unwrap();
        let (sender, commands) = mpsc::channel();
        let kick = EventFd::new().unwrap();
        let wake = kick.try_clone().unwrap();
        let make = move || {
            let cabling = Cabling { links: vec![Link::Switch], ..Cabling::default() };
            let places = vec![(Map::default(), None)];
            let published = vec![Arc::new(Published::new()?)];
            let given_up = EventFd::new()?;
            CardThread::new(cabling, places, published, commands, kick, given_up, Arc::new(page))
        };
        let (tells, told) = mpsc::channel();
        let (go_on, kept) = mpsc::channel::<()>();
        let kept_one = std::thread::spawn(move || {
            let cards = Holder::new(make).unwrap();
            tells.send(cards.watch()).unwrap();
            cards.without(move || kept.recv().unwrap()).is_none()
        });
        let watch = told.recv().unwrap();
        let overseer = std::thread::spawn(move || look_after(&watch));
        let (reply, answer) = mpsc::sync_channel(1);
        let action = Action::Read { bar: Bar::Static, offset: 0, bytes: 4, reply };
        sender.send(Command { card: 0, action }).unwrap();
        answer.recv().expect("another thread has the cards");
        go_on.send(()).unwrap();
        assert!(kept_one.join().unwrap(), "it found them gone");
        drop(sender);
        wake.signal().unwrap();
        overseer.join().unwrap();
    }

    #[test]
    fn patience_gets_shorter_with_each_trial_and_comes_back() {
        let mut patience = Patience::default();
        let begun = Instant::now();
        assert_eq!(patience.now(begun), PATIENCE);
        let mut spent = Duration::ZERO;
        for _ in 0..100 {
            spent += patience.now(begun);
            patience.was_tried(begun);
        }
        assert!(spent < 2 * PATIENCE + 100 * LEAST_PATIENCE, "{spent:?}");
        assert_eq!(patience.now(begun), LEAST_PATIENCE);
        assert_eq!(patience.now(begun + FORGIVEN), 2 * LEAST_PATIENCE);
        assert_eq!(patience.now(begun + 3 * FORGIVEN), 8 * LEAST_PATIENCE);
        assert_eq!(patience.now(begun + 60 * FORGIVEN), PATIENCE);
        assert_eq!(patience.tried, None);
    }
}
