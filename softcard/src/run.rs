//! The card thread: one loop for all cards.
//!
//! It drains whatever there is, looks again for a moment while a core would be idle otherwise
//! (`spin.rs`), and sleeps. Before it sleeps it says so in the asleep word, issues a full fence, and
//! looks once more.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};

use fpga_regs::coyote::shell::Map;
use hostmem::{AsleepWord, EventFd, Liveness, SharedMapping, Tap, WakeFor};

use crate::Error;
use crate::card::{Card, CardEngine, Slots};
use crate::command::{Action, Command};
use crate::host::Host;
use crate::port::{self, Cabling, FramePool, TapPort};
use crate::published::Published;
use crate::runtime::Runtime;
use crate::spin::Spin;
use crate::wait::Waiter;

/// What the card thread owns.
pub(crate) struct CardThread {
    cards: Vec<Card>,
    commands: Receiver<Command>,
    /// Signalled behind a command while the thread sleeps; kept because the epoll set does not own it.
    _kick: EventFd,
    /// Eventfds of granted pages: (card, window, page) and the descriptor.
    wakes: Vec<(usize, u8, u8, EventFd)>,
    asleep: AsleepWord,
    /// Dies with this thread, for clients to see.
    _liveness: Liveness,
    waiter: Waiter,
    spin: Spin,
    ended: bool,
}

/// Frames kept for reuse, for each card.
pub(crate) const POOLED_FRAMES: usize = 1024;

/// Commands that are executed between two rounds of the data path at most, so that a driver with
/// many of them holds up nobody's frames.
const COMMANDS: usize = 8;

impl CardThread {
    pub(crate) fn new(
        cabling: Cabling,
        places: Vec<(Map, Option<Arc<Tap>>)>,
        published: Vec<Arc<Published>>,
        commands: Receiver<Command>,
        kick: EventFd,
        page: Arc<SharedMapping>,
    ) -> Result<Self, Error> {
        let pool = FramePool::new(POOLED_FRAMES.saturating_mul(cabling.links.len()));
        let ports = port::plug(cabling, &pool)?;
        let waiter = Waiter::new()?;
        // Descriptors are edge-triggered, so their counters need not be drained.
        waiter.listen_for_edges(&kick)?;
        for port in &ports {
            waiter.listen_to_port(&**port)?;
        }
        let asleep = AsleepWord::new(Arc::clone(&page), Runtime::ASLEEP_OFFSET as usize)?;
        let liveness = Liveness::hold(page, Runtime::LIVENESS_OFFSET as usize)?;
        let mut cards = Vec::new();
        for ((port, published), (map, host)) in ports.into_iter().zip(published).zip(places) {
            let vectors = Rc::new(Arc::clone(&published));
            let mut card = Card::new(map, port, pool.clone(), vectors, published);
            if let Some(tap) = host {
                let host = TapPort::new(tap, pool.clone());
                waiter.listen_to_port(&host)?;
                card.host = Some(Host::new(Box::new(host)));
            }
            cards.push(card);
        }
        Ok(Self {
            cards,
            commands,
            _kick: kick,
            wakes: Vec::new(),
            asleep,
            _liveness: liveness,
            waiter,
            spin: Spin::new(),
            ended: false,
        })
    }

    pub(crate) fn run(mut self) {
        Waiter::sharpen_timers();
        while !self.ended {
            // Read once a round: where the kernel's clock is a device, that takes microseconds.
            let now = self.waiter.now();
            if self.round(now) {
                self.spin.worked();
                self.give_way(now);
                continue;
            }
            if self.spin.goes_on(now) {
                std::thread::yield_now();
                continue;
            }
            // The page is ours and can be written, so neither call fails.
            let _ = self.asleep.prepare_sleep(self.wakes_for());
            if !self.round(now) && !self.ended {
                self.waiter.sleep(self.cards.iter_mut().filter_map(Card::next_timeout).min());
            }
            let _ = self.asleep.awake();
        }
        for card in &mut self.cards {
            card.port.flush();
        }
    }

    /// What clients are to wake the thread for: nothing waits for a receive that is posted but a QP
    /// that flushes it. Only a round's work can change that, after which the thread does not sleep.
    fn wakes_for(&self) -> WakeFor {
        let mut engines = self.cards.iter().flat_map(|card| &card.engines);
        match engines.any(CardEngine::heeds_receives) {
            true => WakeFor::All,
            false => WakeFor::AllButReceives,
        }
    }

    /// Pauses if that lets a program post receives it is short of.
    fn give_way(&mut self, now: u64) {
        let engines = self.cards.iter_mut().flat_map(|card| &mut card.engines);
        // Each is asked, for asking clears it.
        if engines.fold(false, |any, engine| engine.take_runs_out() | any) {
            if let Some(pause) = self.spin.gives_way(now) {
                std::thread::sleep(pause);
            }
        }
    }

    fn round(&mut self, now: u64) -> bool {
        let mut worked = self.execute_commands(now);
        for card in &mut self.cards {
            worked |= card.round(now);
        }
        worked
    }

    fn execute_commands(&mut self, now: u64) -> bool {
        for executed in 0..COMMANDS {
            match self.commands.try_recv() {
                Ok(command) => self.execute(now, command),
                Err(TryRecvError::Empty) => return executed > 0,
                Err(TryRecvError::Disconnected) => {
                    self.ended = true;
                    return executed > 0;
                }
            }
        }
        true
    }

    fn execute(&mut self, now: u64, Command { card: number, action }: Command) {
        let Some(card) = self.cards.get_mut(number) else { return };
        // A driver that no longer waits for its answer is gone; nobody else is concerned.
        match action {
            Action::Write { bar, offset, bytes, value } => {
                card.write(now, bar, offset, bytes, value);
                card.published.write_executed(card.reconfiguration.decoupled);
            }
            Action::Read { bar, offset, bytes, reply } => {
                let _ = reply.send(card.read(now, bar, offset, bytes));
            }
            Action::Map { iova, length, memory, reply } => {
                let _ = reply.send(card.memory.map(iova, length, memory));
            }
            Action::Unmap { iova, length, reply } => {
                card.memory.unmap(iova, length);
                let _ = reply.send(());
            }
            Action::Grant { window, page, slots, wake, reply } => {
                let opened = card.open_page(window, page, Slots(slots));
                let outcome = match opened {
                    true => self.listen(number, window, page, wake),
                    false => Err(Error::NoPage { window, page }),
                };
                let _ = reply.send(outcome);
            }
            Action::Revoke { window, page, reply } => {
                card.close_page(window, page);
                // Closing the descriptor takes it out of the epoll set, unless the client still
                // holds it: then it goes on waking a thread that finds nothing.
                self.forget(number, window, page);
                let _ = reply.send(());
            }
            Action::Counters { reply } => {
                let _ = reply.send(card.counters());
            }
        }
    }

    fn listen(&mut self, card: usize, window: u8, page: u8, wake: EventFd) -> Result<(), Error> {
        self.waiter.listen_for_edges(&wake)?;
        self.wakes.push((card, window, page, wake));
        Ok(())
    }

    fn forget(&mut self, card: usize, window: u8, page: u8) {
        let gone = |&(c, w, p, _): &(usize, u8, u8, EventFd)| (c, w, p) == (card, window, page);
        for (.., wake) in self.wakes.iter().filter(|entry| gone(entry)) {
            self.waiter.forget(wake);
        }
        self.wakes.retain(|entry| !gone(entry));
    }
}

impl Card {
    /// When the card next has something to do by itself.
    pub(crate) fn next_timeout(&mut self) -> Option<u64> {
        if self.waits_for_driver() || self.reconfiguration.decoupled {
            return None;
        }
        self.stack.settle_timeouts();
        let stack = self.stack.next_timeout().map(|instant| instant.0);
        let host = self.host.as_ref().and_then(|host| host.port.next_timeout());
        [stack, self.port.next_timeout(), host].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use fpga_regs::coyote::pci::Bar;
    use hostmem::{PAGE_BYTES, memfd};

    use super::*;
    use crate::Link;

    #[test]
    fn commands_without_end_leave_every_round_its_frames() {
        let (_, page) = memfd::create_read_only_for_others("test", PAGE_BYTES).unwrap();
        let (sender, commands) = mpsc::channel();
        let kick = EventFd::new().unwrap();
        let cabling = Cabling { links: vec![Link::Switch], ..Cabling::default() };
        let published = vec![Arc::default()];
        let mut thread = CardThread::new(
            cabling,
            vec![(Map::default(), None)],
            published,
            commands,
            kick,
            Arc::new(page),
        )
        .unwrap();
        let (reply, answers) = mpsc::sync_channel(3 * COMMANDS);
        for _ in 0..2 * COMMANDS + 1 {
            let action =
                Action::Read { bar: Bar::Static, offset: 0, bytes: 4, reply: reply.clone() };
            sender.send(Command { card: 0, action }).unwrap();
        }
        for expected in [COMMANDS, COMMANDS, 1] {
            assert!(thread.round(0), "there is work, so the thread does not sleep");
            assert_eq!(answers.try_iter().count(), expected);
        }
        assert!(!thread.round(0) && !thread.ended);
        drop(sender);
        thread.round(0);
        assert!(thread.ended);
    }
}
