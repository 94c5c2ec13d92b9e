//! The neighbour cache: Ethernet addresses of peers, found by ARP or neighbour discovery.
//!
//! An entry lives as long as a queue pair uses it. Answers are believed only while a question is
//! open, so that nobody can redirect a working connection by an answer that was not asked for.

use std::collections::HashMap;

use core::time::Duration;

use crate::param;
use crate::path::Neighbour;
use crate::types::{Gid, Instant, MacAddr};

/// What is known about a neighbour.
#[derive(Debug, Default)]
struct Entry {
    mac: Option<MacAddr>,
    /// A question is open.
    asking: bool,
    last_probe: Option<Instant>,
    /// The slots of the QPs that use the entry.
    users: Vec<u32>,
}

/// A question that is repeated until it is answered.
#[derive(Clone, Copy, Debug)]
struct Question {
    neighbour: Neighbour,
    at: Instant,
    interval: Duration,
    /// Requests sent.
    sent: u32,
}

/// The neighbour cache.
#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    entries: HashMap<Gid, Entry>,
    questions: Vec<Question>,
}

impl Neighbours {
    /// A QP begins to use a neighbour. Gives its Ethernet address, if it is known; otherwise the
    /// first request is due at once.
    pub(crate) fn acquire(
        &mut self,
        neighbour: Neighbour,
        slot: u32,
        now: Instant,
    ) -> Option<MacAddr> {
        let entry = self.entries.entry(neighbour.address).or_default();
        entry.users.push(slot);
        if entry.mac.is_none() && !entry.asking {
            entry.asking = true;
            let interval = param::ARP_FIRST_INTERVAL;
            self.questions.push(Question { neighbour, at: now, interval, sent: 0 });
        }
        entry.mac
    }

    /// A QP uses a neighbour no more.
    pub(crate) fn release(&mut self, address: Gid, slot: u32) {
        let Some(entry) = self.entries.get_mut(&address) else { return };
        if let Some(at) = entry.users.iter().position(|&user| user == slot) {
            entry.users.swap_remove(at);
        }
        if entry.users.is_empty() {
            self.entries.remove(&address);
            self.questions.retain(|question| question.neighbour.address != address);
        }
    }

    /// A neighbour did not answer a QP: says whether to ask once whether its address is still
    /// right.
    pub(crate) fn probe(&mut self, address: Gid, now: Instant) -> bool {
        let Some(entry) = self.entries.get_mut(&address) else { return false };
        let recent =
            entry.last_probe.is_some_and(|last| now.since(last) < param::ARP_PROBE_INTERVAL);
        if entry.mac.is_none() || recent {
            return false;
        }
        entry.last_probe = Some(now);
        entry.asking = true;
        true
    }

    /// A packet says that `address` is at `mac`. Gives the slots of the QPs to tell, if that
    /// is news.
    pub(crate) fn learn(&mut self, address: Gid, mac: MacAddr) -> &[u32] {
        let Some(entry) = self.entries.get_mut(&address) else { return &[] };
        if !entry.asking || mac.is_group() {
            return &[];
        }
        entry.asking = false;
        self.questions.retain(|question| question.neighbour.address != address);
        if entry.mac == Some(mac) {
            return &[];
        }
        entry.mac = Some(mac);
        &entry.users
    }

    /// Whether a neighbour has not answered many requests.
    pub(crate) fn is_silent(&self, address: Gid) -> bool {
        let mut asked = self.questions.iter().filter(|it| it.neighbour.address == address);
        asked.any(|question| question.sent >= param::ARP_PATIENCE)
    }

    /// The number of open questions that are repeated.
    pub(crate) fn questions(&self) -> usize {
        self.questions.len()
    }

    /// When the next request is due.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.questions.iter().map(|question| question.at).min()
    }

    /// The next neighbour to ask for, if a request is due.
    pub(crate) fn poll(&mut self, now: Instant) -> Option<Neighbour> {
        let question = self.questions.iter_mut().find(|question| question.at <= now)?;
        question.at = now.after(question.interval);
        question.sent = question.sent.saturating_add(1);
        question.interval = question.interval.saturating_mul(2).min(param::ARP_LONGEST_INTERVAL);
        Some(question.neighbour)
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;

    const PEER: Gid = Gid::from_ipv4(Ipv4Addr::new(10, 0, 0, 2));
    const OWN: Gid = Gid::from_ipv4(Ipv4Addr::new(10, 0, 0, 1));
    const ASKED: Neighbour = Neighbour { address: PEER, asked_from: OWN };
    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
    const OTHER: MacAddr = MacAddr([2, 0, 0, 0, 0, 3]);

    #[test]
    fn requests_are_repeated_at_growing_intervals_until_answered() {
        let mut neighbours = Neighbours::default();
        assert_eq!(neighbours.acquire(ASKED, 1, Instant(0)), None);
        assert_eq!(neighbours.acquire(ASKED, 2, Instant(0)), None);
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
        assert_eq!(neighbours.acquire(ASKED, 3, Instant(0)), Some(MAC));
    }

    #[test]
    fn answers_that_were_not_asked_for_are_ignored() {
        let mut neighbours = Neighbours::default();
        assert!(neighbours.learn(PEER, MAC).is_empty());
        neighbours.acquire(ASKED, 1, Instant(0));
        assert!(neighbours.learn(PEER, MacAddr::BROADCAST).is_empty());
        assert_eq!(neighbours.learn(PEER, MAC), [1]);
        assert!(neighbours.learn(PEER, OTHER).is_empty());
        assert!(neighbours.probe(PEER, Instant(1)));
        assert!(!neighbours.probe(PEER, Instant(2)));
        assert_eq!(neighbours.learn(PEER, OTHER), [1]);
    }

    #[test]
    fn entries_go_with_their_last_user() {
        let mut neighbours = Neighbours::default();
        neighbours.acquire(ASKED, 1, Instant(0));
        neighbours.acquire(ASKED, 2, Instant(0));
        neighbours.release(PEER, 1);
        assert!(neighbours.next_timeout().is_some());
        neighbours.release(PEER, 2);
        assert_eq!(neighbours.next_timeout(), None);
        assert!(neighbours.entries.is_empty());
    }
}
