//! The turns of connections that have services, on a thread which does the work of all connections of cards: by the work of their
//! services, and not by packets.
//!
//! All that comes for such a connection waits here, and so does its sending where services change what leaves. In each
//! round of a card those go on whose services have worked least, until so much was done of what comes and of what leaves
//! that the round takes no longer than a burst of packets without services. A single packet may need much more. While
//! connections without services, the others, have packets, services then wait for three times the processor time that they
//! needed beyond that.
//! What is done for a packet does not depend on the number of connections, but for a search in their order.

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::rc::Rc;

use crate::limit;

/// How long others count as present behind the last packet of theirs, in nanoseconds: a packet that causes the next at the
/// other end, and waits for that, is to find the thread at rest.
const PRESENT_NS: u64 = 10_000_000;
/// The parts of time that others have for each part of services beyond [`FREE_NS`].
const PARTS_OF_OTHERS: u64 = 3;
/// How long the services of a thread may work in a round before they owe others time, in nanoseconds: others have a turn of
/// their own in each round.
const FREE_NS: u64 = 100_000;
/// Units of work after which no further packet begins in a round, of what comes and of what leaves: some 40 µs, so that
/// packets which need a few more are within [`FREE_NS`].
const ROUND: u64 = 8_192;

/// What is to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn<T> {
    /// This, which has come for a queue pair.
    Take(T),
    /// The sending of that queue pair.
    Send(u32),
}

/// A queue pair whose services work.
#[derive(Debug)]
struct Account<T> {
    /// Units of work that its services have done, and for the time in which it had no packets as many as others'.
    work: u64,
    /// Units of work that they have declared for a packet.
    declared: u32,
    waiting: VecDeque<T>,
    sends: bool,
    /// The round in which its sending had its turn last.
    sent: u64,
    /// Its work when the last packet that came was taken.
    taken: u64,
}

impl<T> Account<T> {
    const fn new(work: u64) -> Self {
        Self { work, declared: 0, waiting: VecDeque::new(), sends: false, sent: 0, taken: work }
    }

    fn is_waiting(&self) -> bool {
        self.sends || !self.waiting.is_empty()
    }
}

/// The time that services of all cards of a thread share, in nanoseconds: that in which the thread had a processor, or slept.
///
/// While the system gives the processor to other threads the cards take nobody's packets, so that time pays for nothing.
#[derive(Debug, Default)]
pub struct SharedTime {
    /// The cards that have services.
    served: Cell<usize>,
    /// The time that has passed when the thread's round began.
    passed: Cell<u64>,
    /// The processor time of the thread at that moment; `None` if it has slept since.
    processor: Cell<Option<u64>>,
    /// The cards' time of that moment, and for how long services have worked since.
    round: Cell<(u64, u64)>,
    /// When services have had no more than their part.
    due: Cell<u64>,
    /// When others had a packet last.
    others: Cell<Option<u64>>,
    /// The account with which queue pairs begin.
    present: Cell<u64>,
    /// The highest account.
    highest: Cell<u64>,
}

impl SharedTime {
    /// Whether any card of the thread has services.
    #[inline]
    #[must_use]
    pub fn has_services(&self) -> bool {
        self.served.get() > 0
    }

    /// Takes note of a packet that is none of a queue pair with services.
    pub fn note_other(&self) {
        self.others.set(Some(self.passed.get()));
    }

    /// Takes note that the thread sleeps now, or that another goes on with its cards.
    pub fn sleep(&self) {
        self.processor.set(None);
    }

    /// Begins a round of the thread at that time of the cards, unless one of them has.
    fn begin(&self, now: u64, processor: impl FnOnce() -> u64) {
        let (begun, _) = self.round.get();
        if begun == now {
            return;
        }
        let (processor, most) = (processor(), now.saturating_sub(begun));
        let before = self.processor.replace(Some(processor));
        let passed = before.map_or(most, |before| processor.saturating_sub(before).min(most));
        self.passed.set(self.passed.get().saturating_add(passed));
        self.round.set((now, 0));
    }
}

/// The queue pairs of a card that wait for the turn of their services, in their order.
#[derive(Debug)]
pub struct Turns<T> {
    time: Rc<SharedTime>,
    /// Its card has services.
    is_served: bool,
    /// The shared time, as far as services have worked in this round.
    now: u64,
    round: u64,
    /// Units of work that were done in this round on packets that came.
    worked: u64,
    /// Units of work that may be done in this round on packets that leave. These have a part of their own, because what
    /// comes has its turn first in each round.
    promised: u64,
    accounts: HashMap<u32, Account<T>>,
    /// The services of that which was taken last needed all of a round's work for the one before.
    is_long: bool,
    /// All that has come and waits.
    waiting: usize,
    /// The queue pairs that wait, by their accounts.
    order: BTreeSet<(u64, u32)>,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self {
            time: Rc::default(),
            is_served: false,
            now: 0,
            round: 0,
            worked: 0,
            promised: 0,
            accounts: HashMap::new(),
            is_long: false,
            waiting: 0,
            order: BTreeSet::new(),
        }
    }
}

impl<T> Turns<T> {
    /// Those of a card that shares its thread's time with others.
    #[must_use]
    pub fn sharing(time: &Rc<SharedTime>) -> Self {
        Self { time: Rc::clone(time), ..Self::default() }
    }

    /// Takes note whether its card has services.
    pub fn serve(&mut self, is_served: bool) {
        let cards = self.time.served.get();
        match (std::mem::replace(&mut self.is_served, is_served), is_served) {
            (false, true) => self.time.served.set(cards.saturating_add(1)),
            (true, false) => self.time.served.set(cards.saturating_sub(1)),
            _ => {}
        }
    }

    /// Begins a round of the card at that time of its, in nanoseconds, by a clock of the thread's processor time.
    pub fn begin(&mut self, now: u64, processor: impl FnOnce() -> u64) {
        self.time.begin(now, processor);
        self.now = self.now.max(self.time.passed.get());
        self.round = self.round.wrapping_add(1);
        (self.worked, self.promised) = (0, 0);
    }

    /// What may come in this round, of so much that a card takes otherwise. Where services go on in each round, the rest
    /// stays where it is rather than be lost; where they are to wait, nothing else waits for them.
    #[must_use]
    pub fn room(&self, most: usize) -> usize {
        match self.opens_at() {
            Some(_) => most,
            None => most.min(limit::WAITING.saturating_sub(self.waiting)),
        }
    }

    /// Until when others count as present.
    fn others_until(&self) -> u64 {
        self.time.others.get().map_or(0, |at| at.saturating_add(PRESENT_NS))
    }

    /// When services go on that have had their time; `None` where they may now.
    fn opens_at(&self) -> Option<u64> {
        Some(self.time.due.get().min(self.others_until())).filter(|at| *at > self.now)
    }

    /// Whether a queue pair with such an account will not have worked more than another behind a packet for which that
    /// much is declared. It does not wait for time, for it is the other which has had it.
    fn is_behind(&self, work: u64, declared: u32) -> bool {
        work.saturating_add(declared.into()) <= self.time.highest.get()
    }

    /// Whether such a queue pair may go on, if it is the first and so much was done in this round.
    fn is_open(&self, work: u64, declared: u32, done: u64) -> bool {
        done < ROUND && (self.is_behind(work, declared) || self.opens_at().is_none())
    }

    /// The first of those that wait.
    fn first(&self) -> Option<&Account<T>> {
        self.accounts.get(&self.order.first()?.1)
    }

    /// The account of a queue pair. What was not there gets nothing for that time; what has waited has lost none.
    fn account(&self, qpn: u32) -> u64 {
        let present = self.time.present.get();
        match self.accounts.get(&qpn) {
            Some(account) if account.is_waiting() || account.sent == self.round => account.work,
            Some(account) => account.work.max(present),
            None => present,
        }
    }

    /// Puts a queue pair into the order.
    fn stand(&mut self, qpn: u32, declared: u32) -> &mut Account<T> {
        let work = self.account(qpn);
        let account = self.accounts.entry(qpn).or_insert(Account::new(work));
        (account.work, account.declared) = (work, declared);
        self.order.insert((work, qpn));
        account
    }

    /// Lets something wait that has come for a queue pair, whose services have declared so many units of work.
    ///
    /// # Errors
    /// It is given back where as much waits for that queue pair as may, and services do not go on or all of the room is
    /// taken. Those that wait share it.
    pub fn wait(&mut self, qpn: u32, declared: u32, it: T) -> Result<(), T> {
        let most = limit::WAITING.checked_div(self.order.len()).unwrap_or(limit::WAITING).max(1);
        let is_scarce = self.waiting >= limit::WAITING || self.opens_at().is_some();
        if is_scarce && self.accounts.get(&qpn).is_some_and(|it| it.waiting.len() >= most) {
            return Err(it);
        }
        self.waiting = self.waiting.saturating_add(1);
        self.stand(qpn, declared).waiting.push_back(it);
        Ok(())
    }

    /// Whether a queue pair may send a packet, on which its services may do so many units of work; otherwise it waits for
    /// [`Turn::Send`].
    pub fn may_send(&mut self, qpn: u32, declared: u32) -> bool {
        let work = self.account(qpn);
        let is_first = self.order.first().is_none_or(|first| *first >= (work, qpn));
        if is_first && self.is_open(work, declared, self.promised) {
            self.accounts.entry(qpn).or_insert(Account::new(work)).work = work;
            self.promised = self.promised.saturating_add(declared.into());
            return true;
        }
        self.stand(qpn, declared).sends = true;
        false
    }

    /// Whether [`Turns::may_send`] has let any packet be sent in this round.
    #[must_use]
    pub const fn is_promised(&self) -> bool {
        self.promised > 0
    }

    /// Takes note that a queue pair's services have done so many units of work on a packet that came.
    pub fn spend(&mut self, qpn: u32, work: u64) {
        self.worked = self.worked.saturating_add(work);
        self.spend_promised(qpn, work);
    }

    /// Takes note of the same on a packet of which [`Turns::may_send`] was asked.
    pub fn spend_promised(&mut self, qpn: u32, work: u64) {
        if work == 0 {
            return;
        }
        let present = self.time.present.get();
        let account = self.accounts.entry(qpn).or_insert(Account::new(present));
        let behind = account.work.saturating_add(work);
        self.time.present.set(present.max(account.work));
        self.time.highest.set(self.time.highest.get().max(behind));
        if account.is_waiting() {
            self.order.remove(&(account.work, qpn));
            self.order.insert((behind, qpn));
        }
        account.work = behind;
    }

    /// Takes note of the processor time that services have worked, in nanoseconds.
    pub fn took(&mut self, time: u64) {
        let (round, before) = self.time.round.get();
        let worked = before.saturating_add(time);
        self.time.round.set((round, worked));
        let longer = worked.saturating_sub(FREE_NS).min(time);
        let parts = if self.others_until() > self.now { PARTS_OF_OTHERS } else { 0 };
        let begun = self.time.due.get().max(self.now);
        let others = longer.saturating_mul(parts);
        self.time.due.set(begun.saturating_add(time).saturating_add(others));
        self.now = self.now.saturating_add(time);
    }

    /// Takes what is to go on now.
    pub fn take(&mut self) -> Option<Turn<T>> {
        if self.is_resting() {
            return None;
        }
        let (_, qpn) = *self.order.first()?;
        let account = self.accounts.get_mut(&qpn)?;
        let turn = if std::mem::take(&mut account.sends) {
            account.sent = self.round;
            Some(Turn::Send(qpn))
        } else {
            self.waiting = self.waiting.saturating_sub(1);
            let before = std::mem::replace(&mut account.taken, account.work);
            self.is_long = account.work.saturating_sub(before) >= ROUND;
            account.waiting.pop_front().map(Turn::Take)
        };
        if !account.is_waiting() {
            self.order.pop_first();
        }
        turn
    }

    /// Whether the services of what [`Turns::take`] gave last needed all of a round's work for the packet before, so that
    /// the next one of that queue pair waits long.
    #[must_use]
    pub const fn is_long(&self) -> bool {
        self.is_long
    }

    /// Whether anything waits for that queue pair.
    #[must_use]
    pub fn is_waiting(&self, qpn: u32) -> bool {
        self.accounts.get(&qpn).is_some_and(|account| !account.waiting.is_empty())
    }

    /// Whether nothing is to go on now.
    #[must_use]
    pub fn is_resting(&self) -> bool {
        let first = self.first();
        first.is_none_or(|it| !self.is_open(it.work, it.declared, self.worked))
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// When something is to go on by the time of the card, if anything waits and the thread has nothing to do until then.
    #[must_use]
    pub fn next_timeout(&self) -> Option<u64> {
        let first = self.first()?;
        let at = self.opens_at().filter(|_| !self.is_behind(first.work, first.declared));
        let left = at.map_or(0, |at| at.saturating_sub(self.time.passed.get()));
        Some(self.time.round.get().0.saturating_add(left))
    }

    /// Forgets a queue pair, and all that waits for it.
    pub fn forget(&mut self, qpn: u32) {
        if let Some(account) = self.accounts.remove(&qpn) {
            self.order.remove(&(account.work, qpn));
            self.waiting = self.waiting.saturating_sub(account.waiting.len());
        }
    }

    /// Forgets all queue pairs.
    pub fn clear(&mut self) {
        let Self { now, is_served, .. } = *self;
        *self = Self { now, is_served, ..Self::sharing(&self.time) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Units of work that a service just under its budget does, and the nanoseconds of one.
    const MOST: u64 = limit::WORK as u64 - 1;
    const UNIT: u64 = 5;
    /// The time of a test, in which each has many turns.
    const TIME: u64 = 300_000_000;
    /// The time of a packet without services.
    const PACKET: u64 = 1_000;

    /// A thread, with the work of each connection's services for a packet, and the packets that each has had.
    struct Thread {
        turns: Turns<u32>,
        now: u64,
        /// Its processor time, and for how long it does without a processor behind so much of that.
        processor: u64,
        kept: (u64, u64),
        served: Vec<(u64, usize)>,
        /// Units of work that were done.
        work: u64,
        /// The most that was done in a round.
        most: u64,
    }

    impl Thread {
        /// Connections with services, to each of which as many packets come as may wait.
        fn new(works: &[u64]) -> Self {
            let served = works.iter().map(|work| (*work, 0)).collect();
            let (turns, kept) = (Turns::default(), (u64::MAX, 0));
            let mut thread = Self { turns, now: 0, processor: 0, kept, served, work: 0, most: 0 };
            for _ in 0..2 {
                for qpn in 0..works.len() as u32 {
                    thread.turns.wait(qpn, limit::WORK, qpn).unwrap();
                }
            }
            thread
        }

        /// A round, in which connections without services have so many packets before.
        fn round(&mut self, others: usize) {
            self.turns.begin(self.now, || self.processor);
            if others > 0 {
                self.turns.time.note_other();
            }
            let mut done = 0;
            while let Some(Turn::Take(qpn)) = self.turns.take() {
                let (work, packets) = &mut self.served[qpn as usize];
                *packets += 1;
                done += *work;
                self.turns.spend(qpn, *work);
                self.turns.wait(qpn, limit::WORK, qpn).unwrap();
            }
            self.turns.took(done * UNIT);
            self.work += done;
            self.most = self.most.max(done);
            self.pass(done * UNIT + PACKET * (others as u64).max(1));
        }

        /// Lets processor time pass.
        fn pass(&mut self, time: u64) {
            let (slice, kept) = self.kept;
            let slices = (self.processor + time) / slice - self.processor / slice;
            self.processor += time;
            self.now += time + slices * kept;
        }

        /// The part of the processor time that services have, over more than so many nanoseconds.
        fn part(&mut self, time: u64, others: usize) -> f64 {
            let begun = self.processor;
            self.work = 0;
            while self.processor < begun + time {
                self.round(others);
            }
            (self.work * UNIT) as f64 / (self.processor - begun) as f64
        }
    }

    /// Begins a round of a thread that has slept.
    fn begin<T>(turns: &mut Turns<T>, now: u64) {
        turns.time.sleep();
        turns.begin(now, || 0);
    }

    #[test]
    fn services_just_under_their_budget_have_about_a_third_of_the_time_however_many_they_are() {
        for (count, others) in [(1, 1), (1, 128), (2, 16), (64, 16), (64, 128)] {
            let mut thread = Thread::new(&vec![MOST; count]);
            let part = thread.part(TIME, others);
            assert!((0.27..0.36).contains(&part), "{count} beside {others}: {part}");
            // One packet begins where there was room for a unit.
            assert!(thread.most <= 2 * MOST);
        }
    }

    /// On a busy machine the time that services are to wait would often be over before the thread has a processor again.
    #[test]
    fn services_have_no_more_of_a_thread_that_does_without_a_processor_for_most_of_the_time() {
        for slice in [300_000, 400_000, 1_000_000, 3_000_000] {
            for kept in [1_000_000, 24_000_000] {
                let mut thread = Thread::new(&[MOST]);
                thread.kept = (slice, kept);
                let part = thread.part(TIME, 1);
                assert!((0.27..0.36).contains(&part), "{slice} and {kept}: {part}");
            }
        }
    }

    #[test]
    fn time_that_the_thread_sleeps_is_time_of_the_others() {
        for sleeps in [false, true] {
            let mut thread = Thread::new(&[MOST]);
            thread.now = 1;
            thread.round(1);
            if sleeps {
                thread.turns.time.sleep();
            }
            let due = thread.turns.next_timeout().unwrap();
            thread.turns.begin(due, || thread.processor);
            thread.turns.time.note_other();
            assert_eq!(thread.turns.is_resting(), !sleeps);
        }
    }

    #[test]
    fn a_thread_has_services_as_long_as_one_of_its_cards_has() {
        let time = Rc::<SharedTime>::default();
        let mut cards = [Turns::<()>::sharing(&time), Turns::sharing(&time)];
        for (card, is_served, expected) in
            [(0, true, true), (0, true, true), (1, true, true), (0, false, true), (1, false, false)]
        {
            cards[card].serve(is_served);
            cards[card].clear();
            assert_eq!(time.has_services(), expected, "{card} {is_served}");
        }
    }

    /// Such a service's connection may be all that a thread has, with an end without services on another card.
    #[test]
    fn services_that_need_little_for_a_packet_wait_for_nobody_and_leave_others_their_bursts() {
        for (work, others) in [(20, 1), (800, 1), (800, 128), (ROUND, 1), (ROUND, 128)] {
            let part = Thread::new(&[work]).part(TIME, others);
            let free = (ROUND.next_multiple_of(work) * UNIT) as f64;
            let alike = free / (free + (others as u64 * PACKET) as f64);
            assert!((alike - part).abs() < 0.05, "{part} of {alike} with {work} beside {others}");
        }
    }

    #[test]
    fn services_of_several_cards_share_the_time_of_their_thread() {
        let time = Rc::<SharedTime>::default();
        let mut threads = [Thread::new(&[MOST]), Thread::new(&[MOST, MOST])];
        for thread in &mut threads {
            thread.turns.time = Rc::clone(&time);
        }
        let mut now = 0;
        while now < TIME {
            // A third card has no services, and packets; so it is always the first card for which time is due.
            time.others.set(Some(now));
            for thread in &mut threads {
                (thread.now, thread.processor) = (now, now);
                thread.round(0);
                now = thread.now - PACKET;
            }
            now += PACKET;
        }
        let work: u64 = threads.iter().map(|thread| thread.work * UNIT).sum();
        let part = work as f64 / now as f64;
        assert!((0.3..0.36).contains(&part), "{part}");
        let served: Vec<usize> =
            threads.iter().flat_map(|thread| &thread.served).map(|(_, packets)| *packets).collect();
        let (least, most) = (served.iter().min().unwrap(), served.iter().max().unwrap());
        assert!(most - least <= 2 && *least > 50, "{served:?}");
    }

    #[test]
    fn services_alone_have_all_of_the_time() {
        let mut thread = Thread::new(&[MOST]);
        assert!(thread.part(TIME, 0) > 0.99);
        // They owe nothing for it, and soon have all of the time again.
        assert!(thread.part(100_000_000, 16) > 0.3);
        thread.part(PRESENT_NS, 0);
        assert!(thread.part(100_000_000, 0) > 0.99);
    }

    #[test]
    fn connections_with_services_share_by_work_and_not_by_packets() {
        let mut thread = Thread::new(&[MOST, 1_000, MOST, 1_000]);
        thread.part(TIME, 0);
        let works: Vec<u64> = thread.served.iter().map(|(work, n)| work * *n as u64).collect();
        let (least, most) = (works.iter().min().unwrap(), works.iter().max().unwrap());
        assert!(most - least <= 2 * MOST && *least > 100 * MOST, "{works:?}");
    }

    /// As long as a connection whose services do little has worked less than another, it does not pay for that one.
    #[test]
    fn light_services_do_not_wait_for_time_that_others_have_had() {
        let mut turns = Turns::default();
        let (mut now, mut heavy, mut light, mut is_there) = (0, 0, 0, false);
        while now < TIME {
            begin(&mut turns, now);
            turns.time.note_other();
            if !is_there {
                turns.wait(7, 40, 7).unwrap();
            }
            is_there = true;
            while turns.wait(0, limit::WORK, 0).is_ok() {}
            let mut done = 0;
            while let Some(Turn::Take(qpn)) = turns.take() {
                is_there &= qpn != 7;
                let (work, packets) = if qpn == 7 { (20, &mut light) } else { (MOST, &mut heavy) };
                *packets += 1;
                done += work;
                turns.spend(qpn, work);
            }
            turns.took(done * UNIT);
            now += PACKET + done * UNIT;
        }
        // As many as it would have alone.
        let alone = now / (PACKET + 20 * UNIT);
        assert!(light > alone / 2 && heavy > 0, "{light} of {alone} beside {heavy}");
    }

    #[test]
    fn what_waits_keeps_its_order_and_takes_part_of_the_room() {
        let mut turns = Turns::default();
        for number in 1..=limit::WAITING {
            turns.wait(1, 1, number).unwrap();
        }
        assert_eq!(turns.wait(1, 1, 0), Err(0));
        // Another is not kept out, and has half of the room.
        turns.wait(2, 1, 0).unwrap();
        assert!(turns.is_waiting(2) && !turns.is_resting());
        let mut last = 0;
        while let Some(Turn::Take(number)) = turns.take() {
            assert!(number == 0 || number == last + 1);
            last = number.max(last);
        }
        assert_eq!((last, turns.next_timeout()), (limit::WAITING, None));
        for number in 0..limit::WAITING {
            assert_eq!(turns.wait(1, 1, number).is_ok(), number < limit::WAITING);
        }
        for number in 0..limit::WAITING {
            assert_eq!(turns.wait(2, 1, number).is_ok(), number < limit::WAITING / 2, "{number}");
        }
    }

    #[test]
    fn services_that_go_on_lose_nothing_and_nobody_waits_behind_those_that_rest() {
        let mut turns = Turns::default();
        let mut come = 0;
        for round in 0..10 {
            begin(&mut turns, round * FREE_NS);
            turns.time.note_other();
            // Two connections, of which one has come first.
            for number in 0..turns.room(128) {
                turns.wait((come > 900 && number % 2 == 0).into(), 1_024, come).unwrap();
                come += 1;
            }
            let mut taken = 0;
            while let Some(Turn::Take(_)) = turns.take() {
                turns.spend(0, 1_024);
                taken += 1;
            }
            assert_eq!(taken, 8);
            turns.took(FREE_NS);
        }
        assert!(come > limit::WAITING && turns.room(128) == 8, "{come}");
        turns.took(FREE_NS);
        assert_eq!(turns.room(128), 128);
        assert!(turns.wait(0, 1_024, 0).is_err());
        turns.forget(0);
        begin(&mut turns, 20 * FREE_NS);
        assert_eq!(turns.room(128), 128);
    }

    #[test]
    fn sending_waits_for_its_turn_and_a_burst_is_promised_no_more_than_a_packet_s_work() {
        let mut turns = Turns::<()>::default();
        begin(&mut turns, 0);
        turns.time.note_other();
        assert!(turns.may_send(1, limit::WORK));
        assert!(!turns.may_send(1, limit::WORK) && !turns.may_send(2, 1));
        turns.spend_promised(1, MOST);
        turns.took(MOST * UNIT);
        let (ends, due) = (MOST * UNIT, 4 * MOST * UNIT - PARTS_OF_OTHERS * FREE_NS);
        begin(&mut turns, ends);
        // The services of the other will not have worked more than these.
        assert_eq!(turns.take(), Some(Turn::Send(2)));
        assert!(turns.may_send(2, 1));
        assert_eq!((turns.take(), turns.next_timeout()), (None, Some(due)));
        begin(&mut turns, due);
        assert_eq!((turns.take(), turns.take()), (Some(Turn::Send(1)), None));
        assert!(!turns.is_waiting(1));
        assert!(turns.may_send(1, limit::WORK) && !turns.may_send(1, limit::WORK));
        turns.forget(1);
        assert_eq!(turns.next_timeout(), None);
    }

    #[test]
    fn what_comes_and_what_leaves_have_their_turns() {
        for work in [10, 1_000, MOST] {
            let mut turns = Turns::default();
            let (mut come, mut left) = (0, 0);
            turns.wait(1, work as u32, ()).unwrap();
            for _ in 0..100 {
                begin(&mut turns, 0);
                while let Some(turn) = turns.take() {
                    if turn == Turn::Take(()) {
                        come += work;
                        turns.spend(1, work);
                        turns.wait(1, work as u32, ()).unwrap();
                    }
                }
                if turns.may_send(2, limit::WORK) {
                    left += MOST;
                    turns.spend_promised(2, MOST);
                }
            }
            let least = 40 * ROUND.max(work);
            assert!(come > least && left > least, "{come} and {left} by {work}");
        }
    }
}
