//! The neighbour cache: Ethernet addresses of peers, found by ARP or neighbour discovery.
//!
//! An entry lives as long as a queue pair uses it. Answers are believed only while a question is
//! open, so that no unsolicited answer can redirect a working connection.
//!
//! Clients of a port share no question: each has its own, also for an address for which another client
//! asks, and its own part of the requests that the port sends. An answer returns its request to that
//! part, so only neighbours that do not answer use it up, and then the questions take turns: those
//! never asked come first, the others by their times. Each operation costs at most the logarithm of
//! the number of questions.

use std::collections::{BTreeSet, HashMap};

use core::time::Duration;

use crate::param;
use crate::path::Neighbour;
use crate::table;
use crate::timer::Timers;
use crate::types::{Address, Gid, Instant, MacAddr};

/// The entry of a neighbour.
#[derive(Debug, Default)]
struct Entry {
    mac: Option<MacAddr>,
    /// One request asks whether that is still right.
    checking: bool,
    last_probe: Option<Instant>,
    /// The slots of the QPs that use the entry.
    users: Vec<u32>,
    /// While the Ethernet address is not known: one for each client whose QPs wait for it.
    questions: Vec<Question>,
}

impl Entry {
    fn question(&mut self, client: u16) -> Option<&mut Question> {
        self.questions.iter_mut().find(|question| question.client == client)
    }
}

/// A client's question, which is repeated until it is answered.
#[derive(Clone, Copy, Debug)]
struct Question {
    client: u16,
    /// QPs of the client's that wait for the answer.
    waiting: u32,
    asked_from: Gid,
    turn: Turn,
    interval: Duration,
    /// Requests sent.
    sent: u32,
}

/// A question's place among its client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    is_repeated: bool,
    /// When it is due.
    at: Instant,
    address: Address,
}

/// The questions of a client.
#[derive(Debug, Default)]
struct Questions {
    turns: BTreeSet<Turn>,
    /// When all its requests are made up for, of which each takes some time.
    settled: Instant,
}

impl Questions {
    /// When it may send a request.
    fn may_ask(&self) -> Instant {
        let burst = param::ARP_REQUEST_INTERVAL.saturating_mul(param::ARP_REQUEST_BURST);
        self.settled.before(burst.saturating_sub(param::ARP_REQUEST_INTERVAL))
    }

    /// Counts a request.
    fn spend(&mut self, now: Instant) {
        self.settled = self.settled.max(now).after(param::ARP_REQUEST_INTERVAL);
    }

    /// A request was answered.
    fn refund(&mut self) {
        self.settled = self.settled.before(param::ARP_REQUEST_INTERVAL);
    }

    /// When its next request is due.
    fn next(&self) -> Option<Instant> {
        self.turns.first().map(|turn| turn.at.max(self.may_ask()))
    }
}

/// The neighbour cache.
#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    entries: HashMap<Address, Entry>,
    /// The place of each slot among the users of its entry.
    places: Vec<usize>,
    /// Of each client, by its number.
    clients: Vec<Questions>,
    /// The time of each client's next request.
    timers: Timers,
}

impl Neighbours {
    /// Bytes that a QP takes at most, as the only user of its neighbour.
    pub(crate) const BYTES_OF_EACH: usize = param::TABLE_PLACES * size_of::<(Address, Entry)>()
        + 4 * (size_of::<Question>() + size_of::<u32>())
        + 2 * (size_of::<Turn>() + size_of::<usize>());

    /// A QP of a client's begins to use a neighbour. Gives its Ethernet address, if it is known;
    /// otherwise a request is due at once, unless the client's question is open already.
    pub(crate) fn acquire(
        &mut self,
        neighbour: Neighbour,
        slot: u32,
        client: u16,
        now: Instant,
    ) -> Option<MacAddr> {
        let Neighbour { address, asked_from } = neighbour;
        let entry = self.entries.entry(address).or_default();
        let place = slot as usize;
        if self.places.len() <= place {
            self.places.resize(place.wrapping_add(1), 0);
        }
        if let Some(place) = self.places.get_mut(place) {
            *place = entry.users.len();
        }
        entry.users.push(slot);
        if entry.mac.is_some() {
            return entry.mac;
        }
        if let Some(question) = entry.question(client) {
            question.waiting = question.waiting.saturating_add(1);
            // The address that asked before may not be the port's any more.
            question.asked_from = asked_from;
            return None;
        }
        let turn = Turn { is_repeated: false, at: now, address };
        let interval = param::ARP_FIRST_INTERVAL;
        entry.questions.push(Question { client, waiting: 1, asked_from, turn, interval, sent: 0 });
        self.change(client, |its| {
            its.turns.insert(turn);
        });
        None
    }

    /// Drops a QP's use of a neighbour, for its client.
    pub(crate) fn release(&mut self, address: Address, slot: u32, client: u16) {
        let Some(entry) = self.entries.get_mut(&address) else { return };
        let Some(&place) = self.places.get(slot as usize) else { return };
        if entry.users.get(place) != Some(&slot) {
            return;
        }
        entry.users.swap_remove(place);
        if let Some(&moved) = entry.users.get(place) {
            if let Some(its) = self.places.get_mut(moved as usize) {
                *its = place;
            }
        }
        let mut over = None;
        if let Some(question) = entry.question(client) {
            question.waiting = question.waiting.saturating_sub(1);
            over = (question.waiting == 0).then_some(question.turn);
        }
        if over.is_some() {
            entry.questions.retain(|question| question.client != client);
        }
        if entry.users.is_empty() {
            table::take(&mut self.entries, &address);
        }
        if let Some(turn) = over {
            self.change(client, |its| {
                its.turns.remove(&turn);
            });
        }
    }

    /// A QP of a client's that uses a neighbour goes on using it, perhaps from another address. Gives
    /// its Ethernet address, if it is known.
    pub(crate) fn keep(&mut self, neighbour: Neighbour, client: u16) -> Option<MacAddr> {
        let entry = self.entries.get_mut(&neighbour.address)?;
        if let Some(question) = entry.question(client) {
            question.asked_from = neighbour.asked_from;
        }
        entry.mac
    }

    /// A neighbour did not answer a QP of a client's: says whether to ask once whether its address
    /// is still right.
    pub(crate) fn probe(&mut self, address: Address, client: u16, now: Instant) -> bool {
        let is_old = |last| now.since(last) >= param::ARP_PROBE_INTERVAL;
        let wanted = |entry: &Entry| entry.mac.is_some() && entry.last_probe.is_none_or(is_old);
        if !self.entries.get(&address).is_some_and(wanted) {
            return false;
        }
        let mut may_ask = false;
        self.change(client, |its| {
            may_ask = its.may_ask() <= now;
            if may_ask {
                its.spend(now);
            }
        });
        if let Some(entry) = self.entries.get_mut(&address).filter(|_| may_ask) {
            entry.last_probe = Some(now);
            entry.checking = true;
        }
        may_ask
    }

    /// A packet says that `address` is at `mac`. Gives the slots of the QPs to tell, if that
    /// is news.
    pub(crate) fn learn(&mut self, address: Address, mac: MacAddr) -> &[u32] {
        let Some(entry) = self.entries.get_mut(&address) else { return &[] };
        if !entry.checking && entry.questions.is_empty() || mac.is_group() {
            return &[];
        }
        entry.checking = false;
        for question in core::mem::take(&mut entry.questions) {
            self.change(question.client, |its| {
                its.turns.remove(&question.turn);
                if question.sent != 0 {
                    its.refund();
                }
            });
        }
        let Some(entry) = self.entries.get_mut(&address) else { return &[] };
        if entry.mac == Some(mac) {
            return &[];
        }
        entry.mac = Some(mac);
        &entry.users
    }

    /// Whether a neighbour has not answered many requests.
    pub(crate) fn is_silent(&self, address: Address) -> bool {
        let questions = self.entries.get(&address).map(|entry| &entry.questions);
        questions.into_iter().flatten().any(|question| question.sent >= param::ARP_PATIENCE)
    }

    /// When the next request is due.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// The next neighbour to ask for, if a request is due.
    pub(crate) fn poll(&mut self, now: Instant) -> Option<Neighbour> {
        while let Some(due) = self.timers.pop_due(now) {
            if !due.fires {
                continue;
            }
            let asked = self.ask(due.slot, now);
            if asked.is_some() {
                return asked;
            }
        }
        None
    }

    /// Lets a client's first question have its turn.
    fn ask(&mut self, number: u32, now: Instant) -> Option<Neighbour> {
        let client = self.clients.get_mut(number as usize)?;
        let Turn { address, .. } = client.turns.pop_first()?;
        // Clients are numbered by sixteen bits.
        let question = self.entries.get_mut(&address)?.question(number as u16)?;
        question.turn = Turn { is_repeated: true, at: now.after(question.interval), address };
        question.sent = question.sent.saturating_add(1);
        question.interval = question.interval.saturating_mul(2).min(param::ARP_LONGEST_INTERVAL);
        client.turns.insert(question.turn);
        client.spend(now);
        self.timers.set(number, client.next());
        Some(Neighbour { address, asked_from: question.asked_from })
    }

    /// Changes a client's questions, and keeps the client's turn.
    fn change(&mut self, number: u16, change: impl FnOnce(&mut Questions)) {
        while self.clients.len() <= usize::from(number) {
            // No more than numbers of that kind.
            self.timers.add(self.clients.len() as u32);
            self.clients.push(Questions::default());
        }
        let Some(client) = self.clients.get_mut(usize::from(number)) else { return };
        change(client);
        self.timers.set(u32::from(number), client.next());
        self.timers.settle();
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;

    const PEER: Address = Address::untagged(Gid::from_ipv4(Ipv4Addr::new(10, 0, 0, 2)));
    const OWN: Gid = Gid::from_ipv4(Ipv4Addr::new(10, 0, 0, 1));
    const ASKED: Neighbour = Neighbour { address: PEER, asked_from: OWN };
    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
    const OTHER: MacAddr = MacAddr([2, 0, 0, 0, 0, 3]);

    #[test]
    fn requests_are_repeated_at_growing_intervals_until_answered() {
        let mut neighbours = Neighbours::default();
        assert_eq!(neighbours.acquire(ASKED, 1, 0, Instant(0)), None);
        assert_eq!(neighbours.acquire(ASKED, 2, 0, Instant(0)), None);
        let mut asked = Vec::new();
        while let Some(at) = neighbours.next_timeout().filter(|at| at.0 < 5_000_000_000) {
            assert_eq!(neighbours.poll(at), Some(ASKED));
            assert_eq!(neighbours.poll(at), None);
            asked.push(at.0 / 1_000_000);
            assert_eq!(neighbours.is_silent(PEER), asked.len() >= 6);
        }
        assert_eq!(asked, [0, 1, 3, 7, 15, 31, 63, 127, 255, 511, 1023, 2023, 3023, 4023]);
        assert_eq!(neighbours.learn(PEER, MAC), [1, 2]);
        assert_eq!(neighbours.next_timeout(), None);
        assert_eq!(neighbours.acquire(ASKED, 3, 0, Instant(0)), Some(MAC));
    }

    #[test]
    fn answers_that_were_not_asked_for_are_ignored() {
        let mut neighbours = Neighbours::default();
        assert!(neighbours.learn(PEER, MAC).is_empty());
        neighbours.acquire(ASKED, 1, 0, Instant(0));
        assert!(neighbours.learn(PEER, MacAddr::BROADCAST).is_empty());
        assert_eq!(neighbours.learn(PEER, MAC), [1]);
        assert!(neighbours.learn(PEER, OTHER).is_empty());
        assert!(neighbours.probe(PEER, 1, Instant(1)), "who never had to ask may, too");
        assert!(!neighbours.probe(PEER, 0, Instant(2)));
        assert_eq!(neighbours.learn(PEER, OTHER), [1]);
    }

    #[test]
    fn a_neighbour_in_a_vlan_is_another_than_one_outside_of_it() {
        let mut neighbours = Neighbours::default();
        let tagged = Neighbour { address: Address { vlan: 5, ..PEER }, ..ASKED };
        neighbours.acquire(ASKED, 1, 0, Instant(0));
        neighbours.acquire(tagged, 2, 0, Instant(0));
        let mut asked = [(); 2].map(|()| neighbours.poll(Instant(0)).unwrap().address);
        asked.sort();
        assert_eq!(asked, [PEER, tagged.address]);
        assert_eq!(neighbours.learn(PEER, MAC), [1]);
        assert_eq!(neighbours.learn(tagged.address, OTHER), [2]);
        assert_eq!(neighbours.acquire(tagged, 3, 0, Instant(0)), Some(OTHER));
    }

    #[test]
    fn entries_go_with_their_last_user() {
        let mut neighbours = Neighbours::default();
        neighbours.acquire(ASKED, 1, 0, Instant(0));
        neighbours.acquire(ASKED, 2, 0, Instant(0));
        neighbours.release(PEER, 1, 0);
        assert!(neighbours.next_timeout().is_some());
        neighbours.release(PEER, 2, 0);
        assert_eq!(neighbours.next_timeout(), None);
        assert!(neighbours.entries.is_empty());
    }

    fn neighbour(n: u32) -> Neighbour {
        let address = Gid::from_ipv4(Ipv4Addr::from_bits(OWN_BITS + 16 + n)).into();
        Neighbour { address, asked_from: OWN }
    }

    const OWN_BITS: u32 = Ipv4Addr::new(10, 0, 0, 0).to_bits();

    #[test]
    fn requests_that_are_answered_are_not_limited_and_others_are() {
        let mut neighbours = Neighbours::default();
        let now = Instant(1_000_000_000);
        for n in 0..1000 {
            neighbours.acquire(neighbour(n), n, 0, now);
        }
        for n in 0..900 {
            let asked = neighbours.poll(now).unwrap();
            assert_eq!(neighbours.learn(asked.address, MAC), [n], "each in its turn");
        }
        for _ in 0..param::ARP_REQUEST_BURST {
            assert!(neighbours.poll(now).is_some());
        }
        assert_eq!(neighbours.poll(now), None);
        neighbours.acquire(neighbour(950), 1000, 1, now);
        assert_eq!(neighbours.poll(now), Some(neighbour(950)), "another client has its own");
        assert_eq!(neighbours.poll(now), None);
        let later = neighbours.next_timeout().unwrap();
        assert_eq!(later, now.after(param::ARP_REQUEST_INTERVAL));
        // All clients that asked learn the answer.
        assert_eq!(neighbours.learn(neighbour(950).address, MAC), [950, 1000]);
        assert_eq!(neighbours.poll(later), Some(neighbour(964)));
    }

    #[test]
    fn a_question_is_its_clients_and_ends_with_the_last_that_waits() {
        let mut neighbours = Neighbours::default();
        for (slot, client) in [(1, 0), (2, 1), (3, 0)] {
            neighbours.acquire(ASKED, slot, client, Instant(0));
        }
        assert_eq!([(); 3].map(|()| neighbours.poll(Instant(0))), [Some(ASKED), Some(ASKED), None]);
        neighbours.release(PEER, 2, 1);
        let elsewhere =
            Neighbour { asked_from: Gid::from_ipv4(Ipv4Addr::new(10, 0, 0, 9)), ..ASKED };
        assert_eq!(neighbours.keep(elsewhere, 0), None);
        let later = neighbours.next_timeout().unwrap();
        assert_eq!([(); 2].map(|()| neighbours.poll(later)), [Some(elsewhere), None]);
        neighbours.release(PEER, 1, 0);
        assert!(neighbours.next_timeout().is_some());
        assert_eq!(neighbours.learn(PEER, MAC), [3]);
        assert_eq!(neighbours.keep(ASKED, 0), Some(MAC));
    }

    #[test]
    fn users_of_one_neighbour_leave_in_any_order() {
        const USERS: u32 = 1000;
        let mut neighbours = Neighbours::default();
        (0..USERS).for_each(|slot| {
            neighbours.acquire(ASKED, slot, 0, Instant(0));
        });
        // Every slot once: 7 has no divisor in common with their number.
        let mut order = (0..USERS).map(|n| n * 7 % USERS);
        order.by_ref().take(USERS as usize - 2).for_each(|slot| neighbours.release(PEER, slot, 0));
        let mut left: Vec<_> = order.collect();
        let mut told = neighbours.learn(PEER, MAC).to_vec();
        left.sort_unstable();
        told.sort_unstable();
        assert_eq!(told, left);
    }
}
