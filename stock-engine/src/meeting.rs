//! The messages between the cards of one process: the queue pairs that take messages, and those that carry
//! datagrams between them.
//!
//! A published card refuses the first packet for a queue pair that its driver has not registered, and that stops the
//! sender's card. So nothing is sent before the other end is ready ([`Ends`]). Ends for datagrams, which no program
//! names, are offered first, by their number; and a card that has connected to the other's offer says so.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::ends::{Ends, Name};

/// The knowledge of the cards of one process about each other.
#[derive(Clone, Debug, Default)]
pub struct Meetings(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    /// By IPv4 address, how often each card has come.
    lives: BTreeMap<u32, u32>,
    /// Those that are there.
    members: BTreeSet<u32>,
    /// Those with queue pairs of datagrams.
    present: BTreeSet<u32>,
    /// By the card that offers and the one that it is for.
    offers: BTreeMap<(u32, u32), Offer>,
    count: u32,
    ends: Ends,
    /// Packets in the windows of queue pairs that were never answered before resets of their cards.
    kept: BTreeMap<Name, [u8; 2]>,
}

/// One end of a queue pair between two cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// Which of all it is, 24 bits.
    pub(crate) number: u32,
    pub(crate) qpn: u32,
    /// The other end's number that it is connected to.
    pub(crate) met: Option<u32>,
}

impl Meetings {
    fn table(&self) -> MutexGuard<'_, Table> {
        // Nobody leaves it in the middle of a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a card, and forgets the messages of a former one with its address; returns how many there were before.
    #[must_use]
    pub fn join(&self, card: u32) -> u32 {
        self.retire(card);
        let mut table = self.table();
        table.members.insert(card);
        let times = table.lives.entry(card).or_default();
        let before = *times;
        *times = times.wrapping_add(1);
        before
    }

    /// A card is away, and has no packets on their way; queue pairs that are connected to it wait until it comes again.
    pub(crate) fn retire(&self, card: u32) {
        self.leave(card);
        self.table().ends.forget(card);
    }

    /// A card is no published one of this process's any more.
    pub fn end(&self, card: u32) {
        self.retire(card);
        self.table().members.remove(&card);
    }

    /// A card takes no datagrams any more.
    pub(crate) fn leave(&self, card: u32) {
        let mut table = self.table();
        table.present.remove(&card);
        table.offers.retain(|(from, _), _| *from != card);
    }

    /// Packets in the windows of a queue pair from before its card's last reset, of WRITEs and READs.
    pub(crate) fn kept(&self, card: u32, qpn: u32) -> [u8; 2] {
        self.table().kept.get(&(card, qpn)).copied().unwrap_or_default()
    }

    /// Takes note of it.
    pub(crate) fn keep(&self, card: u32, qpn: u32, kept: [u8; 2]) {
        if kept != [0, 0] {
            self.table().kept.insert((card, qpn), kept);
        }
    }

    /// Calls with the queue pairs that take others' packets.
    pub(crate) fn ends<T>(&self, call: impl FnOnce(&mut Ends) -> T) -> T {
        call(&mut self.table().ends)
    }

    /// Whether a card is one of this process's.
    pub(crate) fn has(&self, card: u32) -> bool {
        self.table().members.contains(&card)
    }

    /// Takes note whether a card has queue pairs of datagrams.
    pub(crate) fn set_present(&self, card: u32, is_present: bool) {
        let mut table = self.table();
        match is_present {
            true => table.present.insert(card),
            false => table.present.remove(&card),
        };
    }

    /// Whether a card has queue pairs of datagrams.
    pub(crate) fn is_present(&self, card: u32) -> bool {
        self.table().present.contains(&card)
    }

    /// Offers an end to a card in the place of the one before; its number.
    pub(crate) fn offer(&self, from: u32, to: u32, qpn: u32) -> u32 {
        let mut table = self.table();
        table.count = table.count.wrapping_add(1) & 0xff_ffff;
        let number = table.count;
        table.offers.insert((from, to), Offer { number, qpn, met: None });
        number
    }

    /// Takes note that the end which a card has offered is connected to the other's.
    pub(crate) fn meet(&self, from: u32, to: u32, theirs: u32) {
        if let Some(offer) = self.table().offers.get_mut(&(from, to)) {
            offer.met = Some(theirs);
        }
    }

    /// Takes an offer back.
    pub(crate) fn withdraw(&self, from: u32, to: u32) {
        self.table().offers.remove(&(from, to));
    }

    /// A card's offer to another one.
    pub(crate) fn offered(&self, from: u32, to: u32) -> Option<Offer> {
        self.table().offers.get(&(from, to)).copied()
    }
}
