//! Whether a queue pair takes the messages of another, where one process has both.
//!
//! A published card refuses the packets of a card that is not connected to it as it expects, and that stops the
//! sender's. So where both ends are known nothing is sent before the other one is ready, nor to a later connection
//! of its number.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// A queue pair: its card's IPv4 address, and its number.
pub(crate) type Name = (u32, u32);

/// Connections, by the queue pair whose they are; the last one of each.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    all: BTreeMap<Name, ConnectionEpoch>,
    /// Those that there were so far.
    count: u64,
    /// The number of queue pairs, by their peer, that may have packets on their way to it.
    on_their_way: BTreeMap<Name, u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It takes nothing yet.
    Connected,
    Open,
    /// It takes nothing any more; it still sends what it owes to its peer.
    Closed,
}

/// A connection of a queue pair: the next one of the same is another.
#[derive(Clone, Copy, Debug)]
struct ConnectionEpoch {
    /// Which of all it is.
    epoch: u64,
    /// The queue pair that it names.
    peer: Name,
    /// The first sequence number both ways.
    number: u32,
    /// The connection of that one with which it has exchanged anything. Numbers and keys of another may be the same, and
    /// late packets would be taken for its own.
    partner: Option<u64>,
    stage: Stage,
    /// Packets of it may be on their way to its partner.
    sends: bool,
}

/// Whether the peer of a queue pair takes its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acceptance {
    /// Its peer takes it.
    Open,
    /// Its peer does not take it yet.
    Waits,
    /// The connection with which it has exchanged anything takes nothing any more.
    Gone,
}

fn all_of(card: u32) -> RangeInclusive<Name> {
    (card, 0)..=(card, u32::MAX)
}

impl Ends {
    /// A queue pair is connected, and takes nothing yet; the first sequence number both ways, which is the one that is
    /// proposed, unless its peer is connected to it already.
    pub(crate) fn connect(&mut self, own: Name, peer: Name, number: u32) -> u32 {
        self.rest(own);
        let waits = |it: &&ConnectionEpoch| it.peer == own && it.partner.is_none();
        let number = self.all.get(&peer).filter(waits).map_or(number, |it| it.number);
        let epoch = self.count;
        self.count = epoch.wrapping_add(1);
        let (partner, stage, sends) = (None, Stage::Connected, false);
        self.all.insert(own, ConnectionEpoch { epoch, peer, number, partner, stage, sends });
        number
    }

    fn set(&mut self, own: Name, stage: Stage) {
        if let Some(it) = self.all.get_mut(&own) {
            it.stage = stage;
        }
    }

    /// A queue pair takes packets of its peer from now on.
    pub(crate) fn open(&mut self, own: Name) {
        self.set(own, Stage::Open);
    }

    /// A queue pair takes nothing any more.
    pub(crate) fn close(&mut self, own: Name) {
        self.set(own, Stage::Closed);
    }

    /// No queue pair of a card's takes anything any more.
    pub(crate) fn close_all(&mut self, card: u32) {
        self.all.range_mut(all_of(card)).for_each(|(_, it)| it.stage = Stage::Closed);
    }

    /// A card has forgotten everything, and nothing of it is on its way.
    pub(crate) fn forget(&mut self, card: u32) {
        let names: Vec<_> = self.all.range(all_of(card)).map(|(name, _)| *name).collect();
        for name in names {
            self.rest(name);
            self.all.remove(&name);
        }
    }

    /// Whether its peer takes a queue pair's packets: it does if they name each other, and neither has met another
    /// one.
    pub(crate) fn acceptance(&self, from: Name) -> Acceptance {
        let Some(one) = self.all.get(&from) else { return Acceptance::Gone };
        let other = self.all.get(&one.peer).filter(|other| other.peer == from);
        let other = other.filter(|it| it.partner.is_none_or(|met| met == one.epoch));
        let is_open = other.is_some_and(|other| other.stage == Stage::Open);
        match one.partner {
            Some(met) if is_open && other.is_some_and(|other| other.epoch == met) => {
                Acceptance::Open
            }
            Some(_) => Acceptance::Gone,
            None if is_open && one.stage == Stage::Open => Acceptance::Open,
            None => Acceptance::Waits,
        }
    }

    /// A queue pair is about to send: whether it may. From then on neither meets another one.
    pub(crate) fn meet(&mut self, from: Name) -> bool {
        let is_open = self.acceptance(from) == Acceptance::Open;
        let Some(one) = self.all.get(&from).copied().filter(|_| is_open) else { return false };
        let Some(other) = self.all.get_mut(&one.peer) else { return false };
        other.partner = Some(one.epoch);
        let epoch = other.epoch;
        if let Some(it) = self.all.get_mut(&from) {
            it.partner = Some(epoch);
        }
        true
    }

    /// The same, for packets that are on their way until [`Ends::rest`].
    pub(crate) fn send(&mut self, from: Name) -> bool {
        if !self.meet(from) {
            return false;
        }
        if let Some(it) = self.all.get_mut(&from).filter(|it| !it.sends) {
            it.sends = true;
            let count = self.on_their_way.entry(it.peer).or_default();
            *count = count.saturating_add(1);
        }
        true
    }

    /// Nothing of a queue pair is on its way any more.
    pub(crate) fn rest(&mut self, from: Name) {
        let Some(it) = self.all.get_mut(&from).filter(|it| it.sends) else { return };
        it.sends = false;
        let Some(count) = self.on_their_way.get_mut(&it.peer) else { return };
        *count = count.saturating_sub(1);
        if *count == 0 {
            self.on_their_way.remove(&it.peer);
        }
    }

    /// Whether packets may be on their way to a queue pair's number, even if another queue pair has it by now.
    pub(crate) fn is_sent_to(&self, own: Name) -> bool {
        self.on_their_way.contains_key(&own)
    }

    /// Whether anything may be on its way to a card.
    pub(crate) fn is_card_sent_to(&self, card: u32) -> bool {
        self.on_their_way.range(all_of(card)).next().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One queue pair of each of two cards.
    const A: Name = (10, 3);
    const B: Name = (20, 5);

    fn open(ends: &mut Ends, own: Name, peer: Name) -> u32 {
        let number = ends.connect(own, peer, own.1);
        ends.open(own);
        number
    }

    #[test]
    fn nothing_is_sent_to_who_is_not_ready_or_names_another() {
        let mut ends = Ends::default();
        open(&mut ends, A, B);
        assert_eq!(
            (ends.acceptance(A), ends.send(A)),
            (Acceptance::Waits, false),
            "nobody is there"
        );
        ends.connect(B, A, 0);
        assert_eq!(
            (ends.acceptance(A), ends.send(A), ends.send(B)),
            (Acceptance::Waits, false, false)
        );
        ends.open(B);
        assert!(ends.send(A) && ends.send(B));
        // Of a card's that is not connected, and of one that is to somebody else.
        open(&mut ends, (10, 4), (20, 6));
        open(&mut ends, (10, 5), B);
        assert!(!ends.send((10, 4)) && !ends.send((10, 5)) && !ends.send((10, 6)));
    }

    #[test]
    fn who_was_sent_anything_and_is_closed_may_still_answer() {
        let mut ends = Ends::default();
        for (own, peer) in [(A, B), (B, A)] {
            open(&mut ends, own, peer);
        }
        assert!(ends.send(A));
        ends.close(B);
        assert_eq!(
            (ends.acceptance(A), ends.acceptance(B), ends.send(B)),
            (Acceptance::Gone, Acceptance::Open, true)
        );
        ends.close(A);
        assert_eq!((ends.acceptance(B), ends.send(B)), (Acceptance::Gone, false));
    }

    #[test]
    fn a_later_connection_of_a_number_is_another() {
        let mut ends = Ends::default();
        open(&mut ends, A, B);
        open(&mut ends, B, A);
        // Nothing was exchanged with the one before.
        open(&mut ends, B, A);
        assert!(ends.send(A));
        ends.close(B);
        open(&mut ends, B, A);
        assert_eq!((ends.acceptance(A), ends.acceptance(B)), (Acceptance::Gone, Acceptance::Waits));
        open(&mut ends, A, B);
        assert!(ends.send(A) && ends.send(B));
    }

    #[test]
    fn both_begin_with_one_number_whoever_connects_first_and_again() {
        let mut ends = Ends::default();
        assert_eq!((ends.connect(A, B, 1), ends.connect(B, A, 2)), (1, 1));
        assert_eq!((ends.connect(A, B, 3), ends.connect(B, A, 4)), (1, 1), "neither has met one");
        ends.open(A);
        ends.open(B);
        assert!(ends.send(A));
        assert_eq!((ends.connect(B, A, 5), ends.connect(A, B, 6)), (5, 5));
        assert_eq!(ends.connect((30, 1), A, 7), 7, "that one names another");
    }

    #[test]
    fn what_is_on_its_way_is_known_until_it_rests() {
        let mut ends = Ends::default();
        open(&mut ends, A, B);
        open(&mut ends, B, A);
        assert!(!ends.is_sent_to(B) && !ends.is_card_sent_to(20));
        assert!(ends.send(A) && ends.send(A) && ends.is_sent_to(B) && ends.is_card_sent_to(20));
        assert!(!ends.is_sent_to(A) && !ends.is_card_sent_to(10) && !ends.is_card_sent_to(21));
        ends.close_all(20);
        assert_eq!(ends.acceptance(A), Acceptance::Gone);
        // Even if another queue pair has the number by then, and its card has forgotten the first.
        ends.forget(20);
        open(&mut ends, B, (10, 4));
        assert!(ends.is_sent_to(B) && ends.is_card_sent_to(20));
        ends.rest(A);
        ends.rest(A);
        assert!(!ends.is_sent_to(B) && !ends.is_card_sent_to(20));
        open(&mut ends, A, B);
        open(&mut ends, B, A);
        assert!(ends.send(A));
        ends.forget(10);
        assert!(
            !ends.is_sent_to(B)
                && ends.acceptance(A) == Acceptance::Gone
                && ends.acceptance(B) == Acceptance::Gone
        );
    }
}
