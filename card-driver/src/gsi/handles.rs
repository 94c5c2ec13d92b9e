//! The address handles of queue pair 1, the datagrams that wait for theirs, and the peers that are looked for.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};

use super::rings::{Queues, Sent};
use super::{Datagram, GsiAddress, Party};

/// Peers that have a handle, at most.
pub(super) const HANDLES: usize = 1024;
/// Datagrams that wait for a handle, at most: half of them are one party's.
const WAITING: usize = 512;
/// Peers that the engine is to be asked about, at most: half of them are one party's.
const ASKED: usize = 512;

/// An address handle of the engine's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Handle {
    pub(super) ah: u32,
    /// The party that it counts for: of its users, the one with the fewest.
    party: Party,
    /// Sends that had been posted when it was used last, that one among them.
    last: u64,
    /// The engine has said that it knows the peer's Ethernet address.
    is_found: bool,
}

impl Handle {
    /// Sends a datagram by it.
    pub(super) fn send(&mut self, queues: &mut Queues, datagram: &Datagram) -> Sent {
        let sent = queues.send(self.ah, datagram);
        self.last = queues.posted();
        sent
    }
}

/// A task of the driver for the handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// The engine is to end a handle.
    End(u32),
    /// The engine is to make one.
    Make(GsiAddress),
    /// The engine is to be asked whether the peer of a handle is found.
    Ask(GsiAddress, u32),
    /// Nothing can be made for that one: all are in use.
    Drop(GsiAddress),
    /// None is wanted.
    Nothing,
}

/// A datagram that waits for its handle.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    to: GsiAddress,
    party: Party,
    pub(super) datagram: Datagram,
}

/// Whether a party with so many may have one more: none has more than is left for all others together.
fn is_in_share(has: usize, all: usize, most: usize) -> bool {
    has < most.saturating_sub(all)
}

/// All handles.
#[derive(Debug, Default)]
pub(super) struct Handles {
    known: HashMap<GsiAddress, Handle>,
    /// The number of them that count for each party.
    parties: HashMap<Party, usize>,
    /// Handles by which nothing is sent any more.
    retired: Vec<Handle>,
    waiting: VecDeque<Waiting>,
    asked: VecDeque<(GsiAddress, Party)>,
    /// Whether peers that were asked about have their turn before datagrams.
    is_turn_of_asked: bool,
}

impl Handles {
    /// The handle by which a peer is reached, for a party that uses it.
    pub(super) fn find(&mut self, party: Party, to: &GsiAddress) -> Option<&mut Handle> {
        let handle = self.known.get_mut(to)?;
        if handle.party != party {
            let count = |party: &Party| self.parties.get(party).copied().unwrap_or(0);
            if count(&party) < count(&handle.party) {
                let before = std::mem::replace(&mut handle.party, party);
                less(&mut self.parties, before);
                more(&mut self.parties, party);
            }
        }
        Some(handle)
    }

    /// Keeps a datagram until its handle is made.
    pub(super) fn wait(&mut self, party: Party, to: &GsiAddress, datagram: &Datagram) -> Sent {
        let its = self.waiting.iter().filter(|waiting| waiting.party == party).count();
        if !is_in_share(its, self.waiting.len(), WAITING) {
            return Sent::Lost;
        }
        self.waiting.push_back(Waiting { to: *to, party, datagram: *datagram });
        Sent::Waits
    }

    /// Whether a peer is found, which counts as a use of its handle; if not, the engine is asked, unless too many
    /// are asked about, or too many of that party's.
    pub(super) fn is_found(&mut self, party: Party, to: &GsiAddress, posted: u64) -> bool {
        if let Some(handle) = self.find(party, to) {
            handle.last = posted;
            if handle.is_found {
                return true;
            }
        }
        let its = self.asked.iter().filter(|(_, whose)| *whose == party).count();
        let is_asked = self.asked.iter().any(|(asked, _)| asked == to);
        if !is_asked && is_in_share(its, self.asked.len(), ASKED) {
            self.asked.push_back((*to, party));
        }
        false
    }

    /// The engine has said whether a handle's peer is found.
    pub(super) fn answer(&mut self, to: &GsiAddress, ah: u32, is_found: bool) {
        if let Some(handle) = self.known.get_mut(to).filter(|handle| handle.ah == ah) {
            handle.is_found = is_found;
        }
    }

    /// The next task, where so many sends are complete: a handle without a send under way may end, and where another
    /// has no room one goes that [`Self::make_room`] names.
    pub(super) fn next(&mut self, complete: u64) -> Task {
        let is_idle = |handle: &Handle| handle.last <= complete;
        if let Some(place) = self.retired.iter().position(is_idle) {
            return Task::End(self.retired.swap_remove(place).ah);
        }
        let waiting = self.waiting.front().map(|waiting| (waiting.to, waiting.party));
        let asked = self.asked.front().copied();
        let turn = if self.is_turn_of_asked { asked.or(waiting) } else { waiting.or(asked) };
        let Some((address, party)) = turn else { return Task::Nothing };
        self.is_turn_of_asked = !self.is_turn_of_asked;
        if let Some(handle) = self.known.get(&address) {
            self.asked.retain(|(asked, _)| *asked != address);
            return Task::Ask(address, handle.ah);
        }
        if self.known.len().saturating_add(self.retired.len()) < HANDLES {
            return Task::Make(address);
        }
        self.make_room(party, complete).map_or(Task::Drop(address), |handle| Task::End(handle.ah))
    }

    /// Takes a handle away for one of a party's: of those that have most, the one that was not used for longest, and
    /// none of a party that has fewer than this one.
    fn make_room(&mut self, party: Party, complete: u64) -> Option<Handle> {
        let count = |party: &Party| self.parties.get(party).copied().unwrap_or(0);
        let least = count(&party);
        let idle = self.known.iter().filter(|(_, handle)| handle.last <= complete);
        let theirs = idle.map(|(address, handle)| (count(&handle.party), handle.last, address));
        let theirs = theirs.filter(|(has, ..)| *has >= least);
        let (.., address) = theirs.max_by_key(|(has, last, _)| (*has, Reverse(*last)))?;
        let address = *address;
        let handle = self.known.remove(&address)?;
        less(&mut self.parties, handle.party);
        Some(handle)
    }

    /// Takes the datagrams that wait for the handle of an address, oldest first.
    pub(super) fn take_waiting(&mut self, address: &GsiAddress) -> VecDeque<Waiting> {
        let waiting = std::mem::take(&mut self.waiting);
        let (its, others) = waiting.into_iter().partition(|waiting| waiting.to == *address);
        self.waiting = others;
        its
    }

    /// Stops asking about a peer without a handle.
    pub(super) fn give_up(&mut self, address: &GsiAddress) {
        self.asked.retain(|(asked, _)| asked != address);
    }

    /// The party for which a handle would be made.
    pub(super) fn wanted_by(&self, address: &GsiAddress) -> Party {
        let waiting = self.waiting.iter().map(|waiting| (waiting.to, waiting.party));
        let mut wants = waiting.chain(self.asked.iter().copied());
        wants.find(|(to, _)| to == address).map_or(Party::default(), |(_, party)| party)
    }

    /// Begins to use a handle.
    pub(super) fn add(&mut self, party: Party, address: GsiAddress, ah: u32) -> &mut Handle {
        self.known.entry(address).or_insert_with(|| {
            more(&mut self.parties, party);
            Handle { ah, party, last: 0, is_found: false }
        })
    }

    /// Uses no handle of that local address any more.
    pub(super) fn forget(&mut self, sgid_index: u8) {
        let Self { known, parties, retired, .. } = self;
        known.retain(|address, handle| {
            let stays = address.sgid_index != sgid_index;
            if !stays {
                less(parties, handle.party);
                retired.push(*handle);
            }
            stays
        });
    }

    /// All handles, used and retired.
    pub(super) fn into_all(self) -> Vec<u32> {
        self.known.into_values().chain(self.retired).map(|handle| handle.ah).collect()
    }
}

/// A party has one handle more.
fn more(parties: &mut HashMap<Party, usize>, party: Party) {
    let has = parties.entry(party).or_default();
    *has = has.saturating_add(1);
}

/// A party has one handle less.
fn less(parties: &mut HashMap<Party, usize>, party: Party) {
    if let Some(has) = parties.get_mut(&party) {
        *has = has.saturating_sub(1);
        if *has == 0 {
            parties.remove(&party);
        }
    }
}
