//! The end of a client: a bounded part of its objects at a time, between which others are served.
//!
//! The order is that of [`Owned`]: every object goes before what it uses. It is not the reverse of the order in
//! which they were made: a change may make an object use a later one, and regions are quicker
//! together. Until its turn has come each is as before: its number, its addresses and its part of every
//! quota stay taken.

use std::os::fd::AsFd;

use card_driver::device::Reach;
use card_driver::shell::ROW;

use crate::cards::{Card, Page, find};
use crate::clients::{CardUse, Client, Owned, Stage};
use crate::objects::{Ah, Channel, Context, Cq, Dm, Mr, Mw, Pd, Qp, Srq, XrcTarget, Xrcd};
use crate::poller::Poller;
use crate::quota::Resource;
use crate::undo::ClientObject;

/// Commands to engines, or pages taken back, of a client's end before others have a turn.
const TURN: usize = 8;
/// Regions whose pages are taken back together.
const REGIONS: usize = 8;
/// The cost of a piece of ring memory, in a turn.
const PIECE: usize = TURN / 2;

/// A function that ends some objects of a kind, and gives the cost.
type End = fn(&mut Client, &mut [Card]) -> usize;

impl Client {
    /// Stops reading its requests: its objects are to end.
    pub fn begin_end(&mut self, poller: &Poller) {
        self.stage = Stage::Ending;
        self.put_off = None;
        let mut watches = std::mem::take(&mut self.watches).into_iter();
        for fd in [self.socket.as_fd(), self.handle.as_fd()] {
            if let Some(watch) = watches.next() {
                poller.unwatch(fd, watch);
            }
        }
    }

    /// Ends a part of the client's objects; `true` at the end.
    pub fn end_some(&mut self, cards: &mut [Card]) -> bool {
        let mut spent = 0usize;
        while spent < TURN {
            let Some(end) = self.next_end() else { return true };
            spent = spent.saturating_add(end(self, cards));
        }
        false
    }

    /// How to end some of the first kind that the client has anything of; `None` when all has gone.
    fn next_end(&self) -> Option<End> {
        // All of them, by name: one that is left out does not compile.
        let Owned {
            qps,
            targets,
            srqs,
            xrcds,
            ahs,
            mws,
            cqs,
            mrs,
            leaving,
            dms,
            places,
            rings,
            channels,
            pds,
            contexts,
        } = &*self.owned;
        let order: [(bool, End); 14] = [
            (qps.is_empty(), Self::end_first::<Qp>),
            (targets.is_empty(), Self::end_first::<XrcTarget>),
            (srqs.is_empty(), Self::end_first::<Srq>),
            (xrcds.is_empty(), Self::end_first::<Xrcd>),
            (ahs.is_empty(), Self::end_first::<Ah>),
            (cqs.is_empty(), Self::end_first::<Cq>),
            // A region that windows are bound to does not end.
            (mws.is_empty(), Self::end_first::<Mw>),
            (mrs.is_empty() && leaving.is_empty(), Self::end_regions),
            (dms.is_empty(), Self::end_first::<Dm>),
            (places.is_empty(), Self::end_place),
            (rings.is_none(), Self::empty_rings),
            (channels.is_empty(), Self::end_first::<Channel>),
            (pds.is_empty(), Self::end_first::<Pd>),
            (contexts.is_empty(), Self::end_first::<Context>),
        ];
        order.into_iter().find(|(gone, _)| !gone).map(|(_, end)| end)
    }

    fn end_first<K: ClientObject>(&mut self, cards: &mut [Card]) -> usize {
        if let Some((_, thing)) = K::table(&mut self.owned).pop_first() {
            self.undo(cards, thing);
        }
        K::COST
    }

    /// Ends some regions of one card, keys first.
    fn end_regions(&mut self, cards: &mut [Card]) -> usize {
        if !self.owned.leaving.is_empty() {
            if let Err(error) = self.leave_regions(cards) {
                log::error!("memory regions of {}: {error}", self.label());
            }
            return ROW;
        }
        let mut cost = 0usize;
        let card = self.owned.mrs.first_key_value().map(|(_, mr)| mr.card);
        while self.owned.leaving.regions.len() < REGIONS {
            let first = self.owned.mrs.first_entry();
            let Some(mr) = first.filter(|mr| Some(mr.get().card) == card) else { break };
            let mr = mr.remove();
            let stopped = mr.stop(self, cards);
            self.give_region_up(mr, stopped);
            cost = cost.saturating_add(Mr::COST);
        }
        cost
    }

    /// Gives the client's place on a card up.
    fn end_place(&mut self, cards: &mut [Card]) -> usize {
        let number = self.owned.places.first_key_value().map(|(number, _)| *number);
        match number.map(|number| find(cards, number)) {
            Some(Ok(card)) => drop(self.leave(card)),
            _ => drop(self.owned.places.pop_first()),
        }
        ROW
    }

    /// Undoes the client's place on a card, as far as it has one: takes back the card's mappings of its rings, a row of
    /// pages, and behind the last one the rest; whether that is done. Its queues and regions there are gone.
    pub fn leave(&mut self, card: &mut Card) -> bool {
        let number = card.device.number;
        let Some(place) = self.owned.places.get(&number) else { return true };
        let unmapped = match &place.rings {
            Some(rings) => match card.device.take_back(place.window, &[rings]) {
                Ok(false) => return false,
                Ok(true) => card.device.unmap_all(rings),
                Err(error) => card.device.unmap_all(rings).and(Err(error)),
            },
            None => Ok(()),
        };
        let Some(place) = self.owned.places.remove(&number) else { return true };
        if let Err(error) = &unmapped {
            log::error!("rings of {}: {error}", self.label());
        }
        let reach = place.reach(unmapped.is_ok(), place.clean);
        let CardUse { window, page, state, rings, access, grant, kept, .. } = place;
        if let Some(rings) = rings {
            card.device.release_iova(rings, reach);
        }
        // Without addresses no card reaches the memory.
        if let Some(memory) = self.owned.rings.as_mut().filter(|_| unmapped.is_ok()) {
            let bytes = kept.iter().fold(0u64, |sum, ring| sum.saturating_add(ring.length));
            memory.release_all(kept);
            self.usage.give(None, Resource::RingBytes, bytes);
        }
        end_page(card, window, page, access.is_some(), reach == Reach::Nobody);
        // Where the process still runs, its polls find that nothing will complete any more.
        if let (Some(rings), true) = (&self.owned.rings, access.is_some() && grant.is_none()) {
            rings.set_lost(state, true);
        }
        true
    }

    /// Lets the memory of the rings go, a piece at a time.
    fn empty_rings(&mut self, _: &mut [Card]) -> usize {
        let is_mapped = !self.handle.has_ended();
        if self.owned.rings.as_mut().is_some_and(|rings| rings.empty_some(is_mapped)) {
            self.owned.rings = None;
            self.usage.give(None, Resource::RingBytes, self.usage.of(Resource::RingBytes));
        }
        PIECE
    }
}

impl Card {
    /// Starts those dead engines anew whose cards have confirmed everything meanwhile.
    pub fn start_waiting_anew(&mut self) {
        let windows = self.device.windows.iter().zip(&mut self.users);
        let waiting = windows.filter(|(window, users)| {
            users.waits_for_card && !self.device.shell.is_in_doubt(window.index)
        });
        let due: Vec<_> = waiting
            .map(|(window, users)| {
                users.waits_for_card = false;
                window.index
            })
            .collect();
        due.into_iter().for_each(|index| self.start_anew(index));
    }
}

/// Takes a doorbell page back, and starts a dead engine anew once it has no user.
fn end_page(card: &mut Card, index: u8, page: u8, granted: bool, clean: bool) {
    let Ok(window) = card.window(index) else { return };
    if granted {
        window.engine.revoke(page);
    }
    window.users.set_page(page, if clean { Page::Free } else { Page::Quarantined });
    if window.engine.death().is_none() {
        if !clean {
            card.quarantine.pages = card.quarantine.pages.saturating_add(1);
        }
        return;
    }
    card.start_anew(index);
}
