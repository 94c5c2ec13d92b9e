//! The card thread: one loop for all cards.
//!
//! Copies from and to programs' memory are made without the cards, which another thread may take over
//! meanwhile (`overseer.rs`).
//!
//! It does all waiting work, looks again for a moment while no other thread keeps its core (`spin.rs`),
//! and sleeps. Before it sleeps it says so in the asleep word, issues a full fence, and
//! looks once more.
//!
//! While it sleeps it sets the cards aside ([`hostmem::Borrowable`]): a driver's thread that has work for the cards
//! borrows them and does the work itself ([`visit`]), instead of waking this thread and waiting for it. Cards that are set
//! aside have nothing to do of which nobody wakes this thread, so a borrower looks only at those that its commands
//! concern, and at all once these have worked. A borrower makes no copy from or to a program's memory, for which it might
//! wait: it leaves the copy, and work of more than a few rounds, to this thread.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};

use hostmem::{AsleepWord, Borrowable, EventFd, Holder, SharedMapping, Tap, WakeFor};
use services::SharedTime;

use crate::Error;
use crate::card::{Card, Programmed};
use crate::clock::Clock;
use crate::command::{Action, Command};
use crate::congestion::Congestion;
use crate::dma::Call;
use crate::link::Link;
use crate::port::{self, Cabling, FramePool, Recorder, TapPort};
use crate::protection::Protection;
use crate::published::Published;
use crate::spin::Spin;
use crate::vfpga::{Logic, Slots, occupant};
use crate::wait::Waiter;
use crate::worked::Worked;
use hostmem::thread_page;

/// The state that the card thread owns.
pub(crate) struct CardThread {
    cards: Vec<Card>,
    /// The time that the cards' services share.
    time: Rc<SharedTime>,
    commands: Receiver<Command>,
    /// Signalled behind a command while the thread sleeps; kept because the epoll set does not own it.
    _kick: EventFd,
    /// Eventfds of granted pages: (card, window, page) and the descriptor.
    wakes: Vec<(usize, u8, u8, EventFd)>,
    asleep: AsleepWord,
    worked: Worked,
    /// Signalled when a process's memory was given up.
    given_up: EventFd,
    waiter: Arc<Waiter>,
    clock: Clock,
    spin: Spin,
    ended: bool,
    idle_cards: Arc<Borrowable<CardThread>>,
    /// The doorbells for which clients are to wake the thread while the cards are set aside, and the end of its sleep.
    wakes_for: WakeFor,
    sleeps_until: Option<u64>,
    /// The copy at which a borrower has left a card's round.
    left_to_owner: Option<(usize, Box<Call>)>,
}

/// Frames kept for reuse, for each card.
pub(crate) const POOLED_FRAMES: usize = 1024;

/// Commands that are executed between two rounds of the data path at most: a driver with many of them must not delay
/// clients' frames.
const COMMANDS: usize = 8;

/// Rounds that a borrower makes at most: more is no small piece of work.
const ROUNDS_OF_BORROWER: usize = 64;

/// The cards, for the thread that runs them; `None` once another has taken them over.
type Cards = Holder<CardThread>;

/// Runs the cards until they have no owner any more, or another thread takes them over.
pub(crate) fn run(mut cards: Cards) {
    Waiter::sharpen_timers();
    while let Some(next) = turn(cards) {
        cards = next;
    }
}

/// Goes on with cards whose thread is in a copy that does not return.
pub(crate) fn take_over(mut cards: Cards) {
    // It may have been about to sleep.
    let _ = cards.asleep.awake();
    let kept = (0..).zip(&mut cards.cards).find_map(|(at, card)| Some((at, card.abandon()?)));
    if let Some((number, pid)) = kept {
        log::error!(
            "balboa{number}: memory of process {pid} does not answer: nothing of that process is reached any more, and its queue pairs fail"
        );
        // A counter that is full has been signalled.
        let _ = cards.given_up.signal();
        let now = cards.waiter.now();
        let now = cards.go_on(now);
        // The interrupted round comes before any command.
        match finish_round(cards, number, now) {
            Some(next) => cards = next,
            None => return,
        }
    }
    run(cards);
}

/// A turn of the loop; `None` at the end of the cards, too.
fn turn(mut cards: Cards) -> Option<Cards> {
    // Read once a round: where the kernel's clock is a device, that takes microseconds.
    let now = cards.waiter.now();
    cards.worked.end(now);
    let (mut cards, worked) = round(cards, now)?;
    if cards.ended {
        cards.cards.iter_mut().for_each(|card| card.network.port.flush());
        return None;
    }
    if worked {
        cards.spin.worked();
        cards.worked.begin(now);
        return Some(cards);
    }
    if cards.spin.goes_on(now) {
        return Some(cards);
    }
    cards.announce_sleep();
    let (mut cards, worked) = round(cards, now)?;
    if !worked && !cards.ended {
        cards.sleeps_until = cards.next_timeout(Concerned::ALL);
        cards = sleep(cards)?;
    }
    // The page is ours and can be written.
    let _ = cards.asleep.awake();
    Some(cards)
}

/// Sleeps, while others may borrow the cards; `None` where one of them has lost them.
fn sleep(cards: Cards) -> Option<Cards> {
    let (idle_cards, waiter) = (Arc::clone(&cards.idle_cards), Arc::clone(&cards.waiter));
    let until = cards.sleeps_until;
    cards.time.sleep();
    idle_cards.set_aside(cards);
    waiter.sleep(until);
    let mut cards = idle_cards.reclaim()?;
    let Some((number, call)) = cards.left_to_owner.take() else { return Some(cards) };
    // The copy at which a borrower's round stopped comes before all else.
    let now = cards.waiter.now();
    let now = cards.go_on(now);
    let cards = make(cards, number, call)?;
    finish_round(cards, number, now)
}

/// Runs the cards where they are set aside. `false` where the thread that owns them is to be woken for the work, or for
/// the rest: they are not set aside, a copy is to be made, there is more than a few rounds' work, or a timer is due
/// before the thread would wake up.
pub(crate) fn visit(idle_cards: &Borrowable<CardThread>) -> bool {
    let Some(mut cards) = idle_cards.borrow() else { return false };
    let mut now = cards.waiter.now();
    cards.worked.begin(now);
    let (mut concerned, mut done) = (Concerned::default(), false);
    for round in 0..ROUNDS_OF_BORROWER {
        if cards.left_to_owner.is_some() || cards.is_wanted() {
            break;
        }
        if round > 0 {
            now = cards.waiter.now();
        }
        if cards.round_of_borrower(now, &mut concerned) {
            continue;
        }
        if cards.wakes_for == cards.due_wakes() {
            done = true;
            break;
        }
        // Clients go by another word from now on, behind which there is one more look.
        cards.announce_sleep();
        concerned = Concerned::ALL;
    }
    let now = cards.waiter.now();
    cards.worked.end(now);
    let in_time = done && cards.sleeps_in_time(concerned);
    cards.time.sleep();
    cards.give_back();
    in_time
}

/// The cards that a borrower looks at, as bits by their numbers; a number beyond them stands for all cards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Concerned(u64);

impl Concerned {
    const ALL: Self = Self(u64::MAX);

    fn bits(card: usize) -> u64 {
        let shift = u32::try_from(card).unwrap_or(u32::MAX);
        1_u64.checked_shl(shift).unwrap_or(u64::MAX)
    }

    fn add(&mut self, card: usize) {
        self.0 |= Self::bits(card);
    }

    fn has(self, card: usize) -> bool {
        self.0 & Self::bits(card) != 0
    }
}

/// A round of all cards at that time of the host's, and whether there was anything to do.
fn round(mut cards: Cards, now: u64) -> Option<(Cards, bool)> {
    let now = cards.go_on(now);
    let mut worked = cards.execute_commands(now, |_| {}) > 0;
    for number in 0..cards.cards.len() {
        cards = finish_round(cards, number, now)?;
        worked |= cards.cards.get_mut(number).is_some_and(Card::take_worked);
    }
    cards.clock.end_round(worked);
    Some((cards, worked))
}

/// Finishes the round of a card.
fn finish_round(mut cards: Cards, number: usize, now: u64) -> Option<Cards> {
    while let Some(call) = cards.cards.get_mut(number).and_then(|card| card.advance(now)) {
        cards = make(cards, number, call)?;
    }
    Some(cards)
}

/// Makes a copy without the cards, and gives it back to the card that wants it.
fn make(cards: Cards, number: usize, mut call: Box<Call>) -> Option<Cards> {
    let made = cards.without(move || {
        call.make();
        call
    });
    let (mut cards, call) = made?;
    if let Some(card) = cards.cards.get_mut(number) {
        card.returned(call);
    }
    Some(cards)
}

/// What a card is to be, beside its cable.
#[derive(Default)]
pub(crate) struct Place {
    pub(crate) programmed: Programmed,
    pub(crate) host: Option<Arc<Tap>>,
    pub(crate) congestion: Congestion,
    pub(crate) protection: Option<Protection>,
}

/// The state that the thread of cards shares with others.
pub(crate) struct ThreadShares {
    /// Its page, with the word that says whether it is asleep.
    pub(crate) page: Arc<SharedMapping>,
    /// The cards, while it sleeps.
    pub(crate) idle_cards: Arc<Borrowable<CardThread>>,
}

impl CardThread {
    pub(crate) fn new(
        cabling: Cabling,
        places: Vec<Place>,
        published: Vec<Arc<Published>>,
        commands: Receiver<Command>,
        kick: EventFd,
        given_up: EventFd,
        ThreadShares { page, idle_cards }: ThreadShares,
    ) -> Result<Self, Error> {
        let pool = FramePool::new(POOLED_FRAMES.saturating_mul(cabling.links.len()));
        let policies: Vec<_> = cabling.links.iter().map(Link::icrc_policy).collect();
        let count = cabling.links.len();
        let rates: Vec<_> = (0..count).map(|card| cabling.rate(card)).collect();
        let ports = port::plug(cabling, &pool)?;
        let waiter = Arc::new(Waiter::new()?);
        // Descriptors are edge-triggered, so their counters need not be drained.
        waiter.listen_for_edges(&kick)?;
        for port in &ports {
            waiter.listen_to_port(&**port)?;
        }
        let worked = Worked::new(Arc::clone(&page));
        let asleep = AsleepWord::new(page, thread_page::ASLEEP_OFFSET as usize)?;
        let (mut cards, time) = (Vec::new(), Rc::<SharedTime>::default());
        let ports = ports.into_iter().zip(policies).zip(rates);
        for ((((port, icrc_policy), rate), published), place) in ports.zip(published).zip(places) {
            let Place { programmed, host, congestion, protection } = place;
            let vectors = Rc::new(Arc::clone(&published));
            let mut card =
                Card::new(programmed, port, icrc_policy, pool.clone(), vectors, published);
            card.network.react(congestion.reaction(rate)?);
            card.network.share_time(&time);
            if let Some(protection) = &protection {
                card.protect(protection);
            }
            if let Some(tap) = host {
                let host = TapPort::new(tap, pool.clone());
                waiter.listen_to_port(&host)?;
                card.share_port(Box::new(host));
            }
            cards.push(card);
        }
        Ok(Self {
            cards,
            time,
            commands,
            _kick: kick,
            wakes: Vec::new(),
            asleep,
            worked,
            given_up,
            waiter,
            clock: Clock::default(),
            spin: Spin::new(),
            ended: false,
            idle_cards,
            wakes_for: WakeFor::All,
            sleeps_until: None,
            left_to_owner: None,
        })
    }

    /// Tells clients to wake the thread. A last look for work must follow.
    fn announce_sleep(&mut self) {
        self.wakes_for = self.due_wakes();
        // The page is ours and can be written.
        let _ = self.asleep.prepare_sleep(self.wakes_for);
    }

    /// The cards' time of a round that begins at that time of the host's.
    fn go_on(&mut self, now: u64) -> u64 {
        let to = self.cards.iter().filter_map(Card::goes_on_to).min();
        self.clock.go_on(now, to)
    }

    /// The host's time of these cards' next work by themselves.
    fn next_timeout(&mut self, concerned: Concerned) -> Option<u64> {
        let cards = self.cards.iter_mut().enumerate().filter(|(number, _)| concerned.has(*number));
        let due = cards.filter_map(|(_, card)| card.next_timeout()).min();
        due.map(|due| self.clock.on_the_host(due))
    }

    /// A borrower's round of the cards that commands concern, up to a copy, at that time of the host's; whether another is
    /// due. A card that has worked may have given others work, whose ports have no descriptor: then all are concerned.
    fn round_of_borrower(&mut self, now: u64, concerned: &mut Concerned) -> bool {
        let is_due = self.advance_concerned(now, concerned);
        self.clock.end_round(is_due);
        is_due
    }

    fn advance_concerned(&mut self, now: u64, concerned: &mut Concerned) -> bool {
        let now = self.go_on(now);
        let executed = self.execute_commands(now, |card| concerned.add(card));
        let mut is_due = executed == COMMANDS;
        for (number, card) in self.cards.iter_mut().enumerate() {
            if !concerned.has(number) {
                continue;
            }
            if let Some(call) = card.advance(now) {
                self.left_to_owner = Some((number, call));
                return true;
            }
            if card.take_worked() {
                *concerned = Concerned::ALL;
                is_due = true;
            }
        }
        is_due
    }

    /// Whether the owner wakes up before these cards have work by themselves.
    fn sleeps_in_time(&mut self, concerned: Concerned) -> bool {
        let due = self.next_timeout(concerned);
        due.is_none_or(|due| self.sleeps_until.is_some_and(|until| until <= due))
    }

    /// The doorbells for which clients are to wake the thread. Only a round's work can change that, after which the
    /// thread does not sleep, and a borrower announces it anew.
    fn due_wakes(&self) -> WakeFor {
        let mut vfpgas = self.cards.iter().flat_map(|card| &card.vfpgas);
        let all = |wakes| wakes == WakeFor::All;
        match vfpgas.any(|vfpga| all(occupant!(&vfpga.logic, logic => logic.wakes_for()))) {
            true => WakeFor::All,
            false => WakeFor::AllButReceives,
        }
    }

    /// Executes the commands that wait, [`COMMANDS`] at most; their number. Tells the card of each.
    fn execute_commands(&mut self, now: u64, mut concern: impl FnMut(usize)) -> usize {
        for executed in 0..COMMANDS {
            match self.commands.try_recv() {
                Ok(command) => {
                    concern(command.card);
                    self.execute(now, command);
                }
                Err(TryRecvError::Empty) => return executed,
                Err(TryRecvError::Disconnected) => {
                    self.ended = true;
                    return executed;
                }
            }
        }
        COMMANDS
    }

    fn execute(&mut self, now: u64, Command { card: number, action }: Command) {
        let Some(card) = self.cards.get_mut(number) else { return };
        // A driver that no longer waits for its answer is gone; no other side is concerned.
        match action {
            Action::Write { bar, offset, bytes, value } => {
                card.write(now, bar, offset, bytes, value);
                card.published.write_executed(card.is_cut_off());
            }
            Action::WriteWide { offset, bytes } => {
                card.write_wide(now, offset, bytes);
                card.published.write_executed(card.is_cut_off());
            }
            Action::Read { bar, offset, bytes, reply } => {
                let _ = reply.send(card.read(now, bar, offset, bytes));
            }
            Action::Map { iova, length, memory, reply } => {
                let outcome = card.memory.map(iova, length, memory);
                match (reply, outcome) {
                    (Some(reply), outcome) => drop(reply.send(outcome)),
                    (None, Ok(())) => {}
                    (None, Err(error)) => log::error!("balboa{number}: not mapped: {error}"),
                }
            }
            Action::Unmap { iova, length, reply } => {
                card.memory.unmap(iova, length);
                if let Some(reply) = reply {
                    let _ = reply.send(());
                }
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
            Action::UnderWay { window, page, reply } => {
                let _ = reply.send(card.under_way_bytes(window, page));
            }
            Action::Report { vfpga, unfounded, reply } => {
                card.report(now, vfpga.into(), unfounded);
                let _ = reply.send(());
            }
            Action::Reset { reply } => {
                card.reset_function();
                let _ = reply.send(());
            }
            Action::Spoil { descriptor, how, reply } => {
                card.shell.reconfiguration.spoil = Some((descriptor, how));
                let _ = reply.send(());
            }
            Action::Record { filter, reader, reply } => {
                let recorder = Recorder::begin(number, filter, reader, now);
                let _ = reply.send(recorder.map(|recorder| card.network.watch.begin(recorder)));
            }
            Action::EndRecord => card.network.watch.end(now),
            Action::Attach { selector, chain, reply } => {
                let _ = reply.send(card.attach(selector, chain));
            }
            Action::Replace { selector, chain, reply } => {
                drop(reply.send(card.network.replace(selector, chain).map_err(Error::from)));
            }
            Action::Ask { qpn, chain, reply } => drop(reply.send(card.ask(qpn, chain))),
            Action::Detach { selector, now, reply } => {
                let _ = reply.send(card.network.detach(selector, now).map_err(Error::from));
            }
            Action::Own { qpn, process } => {
                if let Some(qpn) = roce::Qpn::new(qpn) {
                    card.network.own(qpn, process);
                }
            }
            Action::EndProcess { process } => card.network.end_process(process),
            Action::Attached { reply } => {
                let _ = reply.send(card.network.attached());
            }
            Action::Qos { reply } => drop(reply.send(card.network.port.qos().cloned())),
            Action::SetQos { qos, reply } => drop(reply.send(card.network.set_qos(now, &qos))),
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use fpga_regs::coyote::pci::Bar;
    use hostmem::{PAGE_BYTES, memfd};

    use super::*;
    use crate::port::Frame;

    /// Two cards that are set aside, and the sender of their commands.
    fn idle() -> (Arc<Borrowable<CardThread>>, mpsc::Sender<Command>) {
        let (_, page) = memfd::create_read_only_for_others("test", PAGE_BYTES).unwrap();
        let (sender, commands) = mpsc::channel();
        let idle_cards = Arc::<Borrowable<_>>::default();
        let for_the_thread = Arc::clone(&idle_cards);
        let make = move || {
            let kick = EventFd::new().unwrap();
            let cabling = Cabling { links: vec![Link::Switch; 2], ..Cabling::default() };
            let published = vec![Arc::default(), Arc::default()];
            let places = vec![Default::default(), Default::default()];
            let shares = ThreadShares { page: Arc::new(page), idle_cards: for_the_thread };
            let given_up = EventFd::new().unwrap();
            CardThread::new(cabling, places, published, commands, kick, given_up, shares)
        };
        let mut cards = Holder::new(make).unwrap();
        cards.announce_sleep();
        cards.sleeps_until = cards.next_timeout(Concerned::ALL);
        idle_cards.set_aside(cards);
        (idle_cards, sender)
    }

    fn read(sender: &mpsc::Sender<Command>) -> mpsc::Receiver<u64> {
        read_of(0, sender)
    }

    fn read_of(card: usize, sender: &mpsc::Sender<Command>) -> mpsc::Receiver<u64> {
        let (reply, answer) = mpsc::sync_channel(1);
        let action = Action::Read { bar: Bar::Static, offset: 0, bytes: 4, reply };
        sender.send(Command { card, action }).unwrap();
        answer
    }

    #[test]
    fn a_borrower_does_all_that_idle_cards_are_asked() {
        let (idle_cards, sender) = idle();
        let answers: Vec<_> = (0..3 * COMMANDS).map(|_| read(&sender)).collect();
        assert!(visit(&idle_cards));
        assert!(answers.iter().all(|answer| answer.try_recv().is_ok()));
        assert!(visit(&idle_cards), "it has given them back");
        let cards = idle_cards.reclaim().unwrap();
        let answer = read(&sender);
        assert!(!visit(&idle_cards), "the owner is to be woken");
        assert!(answer.try_recv().is_err());
        drop(cards);
    }

    #[test]
    fn a_borrower_wakes_the_owner_for_what_is_due_before() {
        let (idle_cards, _sender) = idle();
        let mut cards = idle_cards.reclaim().unwrap();
        // As if the owner had lain down before it became known what the cards do by themselves.
        let due = cards.next_timeout(Concerned::ALL);
        assert_eq!(due, cards.sleeps_until);
        cards.sleeps_until = due.map(|due| due.saturating_add(1));
        idle_cards.set_aside(cards);
        assert_eq!(visit(&idle_cards), due.is_none());
    }

    #[test]
    fn a_borrower_leaves_a_copy_and_what_is_behind_it_to_the_owner() {
        let (idle_cards, sender) = idle();
        let mut cards = idle_cards.reclaim().unwrap();
        cards.left_to_owner = Some((0, Box::default()));
        idle_cards.set_aside(cards);
        let answer = read(&sender);
        assert!(!visit(&idle_cards));
        assert!(answer.try_recv().is_err());
    }

    #[test]
    fn a_borrower_looks_at_the_cards_of_its_commands_and_at_all_once_these_have_worked() {
        let (idle_cards, sender) = idle();
        // Work that no card has which is set aside: a frame that it takes as soon as it is looked at.
        let give = |number: usize| {
            let mut cards = idle_cards.reclaim().unwrap();
            let frame = Frame::from_bytes(&[0; 60]).unwrap();
            cards.cards[number].scratch.looped.push_back(frame);
            idle_cards.set_aside(cards);
        };
        let waiting = || {
            let cards = idle_cards.reclaim().unwrap();
            let waiting = cards.cards.iter().map(|card| card.scratch.looped.len());
            let waiting: Vec<_> = waiting.collect();
            idle_cards.set_aside(cards);
            waiting
        };
        give(1);
        assert!(visit(&idle_cards));
        assert_eq!(waiting(), vec![0, 1], "there was no command");
        let answer = read_of(0, &sender);
        assert!(visit(&idle_cards) && answer.try_recv().is_ok());
        assert_eq!(waiting(), vec![0, 1], "the command is of the other card");
        give(0);
        let answer = read_of(0, &sender);
        assert!(visit(&idle_cards) && answer.try_recv().is_ok());
        assert_eq!(waiting(), vec![0, 0], "a card that has worked may have given others work");
    }

    #[test]
    fn a_card_beyond_the_bits_stands_for_all() {
        let mut concerned = Concerned::default();
        assert!(!concerned.has(0) && !concerned.has(64));
        concerned.add(63);
        assert!(concerned.has(63) && !concerned.has(62) && concerned.has(64));
        concerned.add(64);
        assert_eq!(concerned, Concerned::ALL);
    }

    #[test]
    fn commands_without_end_leave_every_round_its_frames() {
        let (_, page) = memfd::create_read_only_for_others("test", PAGE_BYTES).unwrap();
        let (sender, commands) = mpsc::channel();
        let kick = EventFd::new().unwrap();
        let cabling = Cabling { links: vec![Link::Switch], ..Cabling::default() };
        let make = move || {
            let published = vec![Arc::default()];
            let places = vec![Default::default()];
            let given_up = EventFd::new().unwrap();
            let shares = ThreadShares { page: Arc::new(page), idle_cards: Arc::default() };
            CardThread::new(cabling, places, published, commands, kick, given_up, shares)
        };
        let mut cards = Some(Holder::new(make).unwrap());
        let mut next_round = || {
            let (next, worked) = round(cards.take().unwrap(), 0).unwrap();
            let ended = next.ended;
            cards = Some(next);
            (worked, ended)
        };
        let (reply, answers) = mpsc::sync_channel(3 * COMMANDS);
        for _ in 0..2 * COMMANDS + 1 {
            let action =
                Action::Read { bar: Bar::Static, offset: 0, bytes: 4, reply: reply.clone() };
            sender.send(Command { card: 0, action }).unwrap();
        }
        for expected in [COMMANDS, COMMANDS, 1] {
            assert_eq!(next_round(), (true, false), "there is work, so the thread does not sleep");
            assert_eq!(answers.try_iter().count(), expected);
        }
        assert_eq!(next_round(), (false, false));
        drop(sender);
        assert!(next_round().1);
    }
}
