//! Cards that this process has lost, and which are another device to it from then on.
//!
//! A card that was reset, or whose balboad ended, comes back under its name. Programs tell devices apart by what
//! libibverbs lists, and librdmacm by their GUIDs: it keeps what it has opened for good, and asks for a new device only
//! where the connection manager names a GUID that it does not know. So for a process that has lost a card, its
//! successor is a device of another GUID, which libibverbs lists in the place of the one before. A process that never
//! had the card open knows it by its former GUID.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use crate::control::ControlConnection;
use crate::doorbell::CardPath;
use crate::process::ProcessLock;

/// The lowest bit of the part of a GUID that is the same for all cards: theirs are made of their MAC addresses.
const SAME: u32 = 24;

/// A card as this process has had it.
#[derive(Debug)]
struct Card {
    /// Its own GUID.
    guid: u64,
    /// How often it was lost.
    lost: u16,
    /// The way to it as it was opened last, and the connection by which that was.
    last: (Weak<CardPath>, Weak<ControlConnection>),
}

/// The cards that the process has opened, by number.
pub(crate) static CARDS: ProcessLock<Cards> = ProcessLock::new(Cards(BTreeMap::new()));

/// The cards that a process has opened.
#[derive(Debug)]
pub(crate) struct Cards(BTreeMap<u32, Card>);

/// Takes note of a card that was opened, and answers the GUID that it has for this process.
pub(crate) fn opened(
    card: u32,
    guid: u64,
    path: &Arc<CardPath>,
    connection: &Weak<ControlConnection>,
) -> u64 {
    let lost = lost(card);
    CARDS.with(|Cards(all)| {
        let last = (Arc::downgrade(path), Weak::clone(connection));
        all.insert(card, Card { guid, lost, last });
    });
    renamed(guid, lost)
}

/// How often this process has lost a card that it had open.
pub(crate) fn lost(card: u32) -> u16 {
    let last = CARDS.with(|Cards(all)| {
        let card = all.get(&card)?;
        Some((card.last.0.upgrade()?, card.last.1.upgrade()?))
    });
    // This may be the last use of the connection, which then ends outside of the lock. A forked child does not own its
    // parent's connection.
    let is_lost = last.is_some_and(|(path, connection)| !connection.is_forked() && path.is_dead());
    CARDS.with(|Cards(all)| {
        let Some(card) = all.get_mut(&card) else { return 0 };
        if is_lost {
            (card.lost, card.last) = (card.lost.wrapping_add(1), (Weak::new(), Weak::new()));
        }
        card.lost
    })
}

/// The GUID that a card has for this process.
pub(crate) fn guid(guid: u64) -> u64 {
    let card = CARDS.with(|Cards(all)| {
        all.iter().find(|(_, card)| card.guid == guid).map(|(number, _)| *number)
    });
    renamed(guid, card.map_or(0, lost))
}

/// The GUID that a card which this process has opened has for it.
pub(crate) fn guid_of(card: u32) -> Option<u64> {
    let lost = lost(card);
    CARDS.with(|Cards(all)| all.get(&card).map(|card| renamed(card.guid, lost)))
}

/// The GUID of a card that was lost so often.
pub(crate) fn renamed(guid: u64, lost: u16) -> u64 {
    guid ^ u64::from(lost) << SAME
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_that_was_lost_has_another_guid_and_none_of_anothers() {
        let guids = [0x0250_c2ff_fe00_0001, 0x0250_c2ff_fe00_0002u64];
        let mut seen: Vec<_> =
            guids.iter().flat_map(|guid| (0..100).map(|lost| renamed(*guid, lost))).collect();
        assert_eq!(seen[0], guids[0]);
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 200);
        assert_eq!((lost(4711), guid(guids[0])), (0, guids[0]), "it was never opened");
    }
}
