//! How a client ends: a bounded part of what it owns at a time, so that others are served meanwhile.
//!
//! The order lets every object go before what it uses: QPs, CQs, keys and regions, rings, doorbell
//! pages. Until its turn has come each is as before: its number, its addresses and its part of every
//! quota stay taken. What a card does not confirm is quarantined: never used again, and counted.

use std::os::fd::AsFd;

use card_driver::Error as DriverError;
use card_driver::bringup::write_gids;
use card_driver::shell::ROW;

use crate::cards::{Card, Page, Suspects, Window, find};
use crate::claims::CardQp;
use crate::clients::{CardUse, Client, Stage, confirmed};
use crate::poller::Poller;

/// Commands to engines, or pages taken back, of a client's end before others have a turn.
const TURN: usize = 8;
/// Regions whose pages are taken back together.
const REGIONS: usize = 8;
/// What a piece of ring memory costs of a turn.
const PIECE: usize = TURN / 2;

impl Client {
    /// Hears it no more: what it owns is to end.
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

    /// Ends a part of what the client owns; `true` when all has gone.
    pub fn end_some(&mut self, cards: &mut [Card]) -> bool {
        let mut spent = 0usize;
        while spent < TURN {
            let cost = self
                .end_qp(cards)
                .or_else(|| self.end_cq(cards))
                .or_else(|| self.end_regions(cards))
                .or_else(|| self.end_place(cards))
                .or_else(|| self.empty_rings());
            let Some(cost) = cost else {
                self.close();
                return true;
            };
            spent = spent.saturating_add(cost);
        }
        false
    }

    /// Ends a QP and its receive queue; what that cost, or `None` where there is none.
    fn end_qp(&mut self, cards: &mut [Card]) -> Option<usize> {
        let (qpn, qp) = self.owned.qps.pop_first()?;
        let window = self.owned.places.get(&qp.card).map_or(0, |place| place.window);
        if let (Some(peer), Ok(card)) = (qp.peer, find(cards, qp.card)) {
            card.claims.release(peer, CardQp { window, qpn });
        }
        self.end_queues(cards, qp.card, |window| {
            window.users.listeners.remove_qp(qpn);
            let qp_ended = window.engine.destroy_qp(qpn);
            let rq_ended = window.engine.destroy_rq(qp.rqn);
            [("QP", qpn, qp_ended), ("RQ", qp.rqn, rq_ended)]
        });
        Some(2)
    }

    fn end_cq(&mut self, cards: &mut [Card]) -> Option<usize> {
        let (cqn, cq) = self.owned.cqs.pop_first()?;
        self.end_queues(cards, cq.card, |window| {
            window.users.listeners.remove_cq(cqn);
            [("CQ", cqn, window.engine.destroy_cq(cqn))]
        });
        Some(1)
    }

    /// Ends queues in the client's window of a card, and counts those that are not confirmed.
    fn end_queues<const N: usize>(
        &mut self,
        cards: &mut [Card],
        number: u32,
        end: impl FnOnce(Window<'_>) -> [(&'static str, u32, Result<(), DriverError>); N],
    ) {
        let Some(place) = self.owned.places.get_mut(&number) else { return };
        let Ok(card) = find(cards, number) else { return };
        let Ok(window) = card.window(place.window) else { return };
        for (what, number, ended) in end(window) {
            if let Err(error) = confirmed(ended) {
                log::warn!("{what} {number:#x} is quarantined: {error}");
                card.quarantine.queues = card.quarantine.queues.saturating_add(1);
                place.clean = false;
            }
        }
    }

    /// Ends some regions of one card, keys first.
    fn end_regions(&mut self, cards: &mut [Card]) -> Option<usize> {
        if !self.owned.leaving.is_empty() {
            if let Err(error) = self.leave_regions(cards) {
                log::error!("memory regions of {}: {error}", self.label());
            }
            return Some(ROW);
        }
        let card = self.owned.mrs.first_key_value()?.1.card;
        let some = self.owned.mrs.iter().take_while(|(_, mr)| mr.card == card).take(REGIONS);
        let some: Vec<u32> = some.map(|(number, _)| *number).collect();
        for number in &some {
            let ended = self.end_key(cards, *number);
            self.give_region_up(cards, *number, ended);
        }
        Some(some.len())
    }

    /// Gives the client's place on a card up.
    fn end_place(&mut self, cards: &mut [Card]) -> Option<usize> {
        let number = *self.owned.places.first_key_value()?.0;
        match find(cards, number) {
            Ok(card) => drop(self.leave(card)),
            Err(_) => drop(self.owned.places.pop_first()),
        }
        Some(ROW)
    }

    /// Takes back what the card knows of the client's rings, a row of pages, and behind the last one
    /// ends its place there; whether that is done. Its queues and regions there are gone.
    pub fn leave(&mut self, card: &mut Card) -> bool {
        let number = card.device.number;
        let Some(place) = self.owned.places.get(&number) else { return true };
        let unmapped = match card.device.take_back(place.window, &[&place.rings]) {
            Ok(false) => return false,
            Ok(true) => card.device.unmap_all(&place.rings),
            Err(error) => card.device.unmap_all(&place.rings).and(Err(error)),
        };
        let Some(CardUse { window, page, rings, clean, .. }) = self.owned.places.remove(&number)
        else {
            return true;
        };
        if let Err(error) = &unmapped {
            log::error!("rings of {}: {error}", self.label());
        }
        if let Ok(window) = card.window(window) {
            window.users.listeners.remove_client(self.id);
        }
        let clean = clean && unmapped.is_ok();
        card.device.release_iova(rings, clean);
        end_page(card, window, page, clean);
        // Where the process still runs, its polls find that nothing will complete any more.
        self.lose_card(number);
        true
    }

    /// Lets the memory of the rings go, a piece at a time.
    fn empty_rings(&mut self) -> Option<usize> {
        let rings = self.owned.rings.as_mut()?;
        if rings.empty_some(!self.handle.has_ended()) {
            self.owned.rings = None;
        }
        Some(PIECE)
    }

    fn close(&mut self) {
        for channel in self.owned.channels.values_mut() {
            channel.records.close();
        }
        for context in self.owned.contexts.values_mut() {
            context.events.records.close();
        }
    }
}

/// Takes a doorbell page back, and starts a dead engine anew once nobody uses it.
fn end_page(card: &mut Card, index: u8, page: u8, clean: bool) {
    let gids = card.device.gids.clone();
    let Ok(window) = card.window(index) else { return };
    window.engine.revoke(page);
    window.users.set_page(page, if clean { Page::Free } else { Page::Quarantined });
    if window.engine.death().is_none() {
        if !clean {
            card.quarantine.pages = card.quarantine.pages.saturating_add(1);
        }
        return;
    }
    // One that was reset has lost more than its engine, and one that leaves wants none.
    if !window.users.are_none() || card.wanted_back || card.device.was_reset() {
        return;
    }
    let Ok(window) = card.window(index) else { return };
    let restarted = window.engine.restart().and_then(|()| write_gids(&mut *window.engine, &gids));
    match restarted {
        Ok(()) => {
            log::warn!("{}: started anew after its death", window.engine.name());
            window.users.pages.fill(Page::Free);
            window.users.listeners.clear();
            window.users.suspects = Suspects::default();
        }
        Err(error) => log::error!("{error}"),
    }
}
