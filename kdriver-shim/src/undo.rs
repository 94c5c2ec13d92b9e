//! Undoing of clients' objects: once for each kind, whether its client asks for that, its client ends, or its creation
//! fails half way.
//!
//! A thing takes its quotas first, and then its parts, each of which it notes when it has taken it. It is
//! undone the other way round: the engine lets it go, then it gives back its noted parts, and at last its quotas.
//! Parts whose release a card does not confirm are quarantined: counted, and not used again before the engine is
//! started anew.
//!
//! A place on a card and ring memory end in turns and have no quotas: [`crate::ending`].

use std::collections::BTreeMap;

use card_driver::Error as DriverError;
use card_driver::device::Reach;
use card_driver::engine::Engine;
use card_driver::spans::Span;
use fpga_regs::engine::admin::AdminStatus;

use crate::cards::{Card, Quarantine, Window, find};
use crate::claims::CardQp;
use crate::clients::{Client, Owned, Stage};
use crate::error::Error;
use crate::listeners::SentRecords;
use crate::objects::{Ah, Channel, Context, Cq, Dm, Mr, Mw, Pd, Qp, Srq};
use crate::quota::Resource;

mod xrc;

/// A kind of clients' objects.
pub trait ClientObject: Sized {
    /// The name of the kind in the refusal of a number that does not exist.
    const NAME: &'static str;
    /// The cost of one end, in a turn: commands to an engine, or as much.
    const COST: usize;

    /// A client's objects of this kind, by number.
    fn table(owned: &mut Owned) -> &mut BTreeMap<u32, Self>;

    /// The card whose quotas it takes of; `None` for objects that are counted once for the process.
    fn card(&self) -> Option<u32>;

    /// Its use of quotas.
    fn takes(&self) -> impl IntoIterator<Item = (Resource, u64)>;

    /// Makes the engine let it go, as far as that has made it.
    ///
    /// # Errors
    /// The engine's: it does not confirm that it has.
    fn stop(&self, client: &Client, cards: &mut [Card]) -> Result<(), Error>;

    /// Gives back the resources that it noted, the last first; `stopped` is the result of [`Self::stop`]. Gives the
    /// number of records that its client was sent about it.
    fn give_back(
        &mut self,
        client: &mut Client,
        cards: &mut [Card],
        stopped: Result<(), Error>,
    ) -> SentRecords;
}

impl Client {
    /// Undoes a thing that its client wants destroyed.
    ///
    /// # Errors
    /// Those of [`Self::take_out`].
    pub fn destroy<K: ClientObject>(
        &mut self,
        cards: &mut [Card],
        number: u32,
    ) -> Result<SentRecords, Error> {
        let (thing, stopped) = self.take_out::<K>(cards, number)?;
        Ok(self.give_back(cards, thing, stopped))
    }

    /// Undoes an object without a request: its client ends, or its creation has failed.
    pub fn undo<K: ClientObject>(&mut self, cards: &mut [Card], thing: K) -> SentRecords {
        let stopped = thing.stop(self, cards);
        self.give_back(cards, thing, stopped)
    }

    /// Takes an object that its client wants destroyed out of its table, and returns it with the answer of
    /// [`ClientObject::stop`].
    ///
    /// # Errors
    /// [`Error::NoSuch`] where there is none, or why the engine refuses: it stays as it is. An engine that
    /// is dead is no reason to keep a program from its own clean-up.
    pub fn take_out<K: ClientObject>(
        &mut self,
        cards: &mut [Card],
        number: u32,
    ) -> Result<(K, Result<(), Error>), Error> {
        let none = Error::NoSuch { object: K::NAME, number: u64::from(number) };
        let thing = K::table(&mut self.owned).remove(&number).ok_or(none)?;
        match thing.stop(self, cards) {
            stopped @ (Ok(()) | Err(Error::Driver(DriverError::Dead { .. }))) => {
                Ok((thing, stopped))
            }
            Err(refused) => {
                K::table(&mut self.owned).insert(number, thing);
                Err(refused)
            }
        }
    }

    /// Gives back all that a thing has, which the engine has let go, or has not.
    pub fn give_back<K: ClientObject>(
        &mut self,
        cards: &mut [Card],
        mut thing: K,
        stopped: Result<(), Error>,
    ) -> SentRecords {
        let told = thing.give_back(self, cards, stopped);
        for (resource, amount) in thing.takes() {
            self.usage.give(thing.card(), resource, amount);
        }
        told
    }

    /// Whether an engine has let its object go, and its memory may be used again. An object that the engine may still
    /// have is counted, and in the end keeps the client's doorbell page and addresses of rings.
    fn is_released(
        &mut self,
        cards: &mut [Card],
        card: u32,
        what: &str,
        made: Option<u32>,
        count: fn(&mut Quarantine) -> &mut u64,
        stopped: Result<(), Error>,
    ) -> bool {
        let Err(error) = stopped else { return true };
        if let Some(place) = self.owned.places.get_mut(&card) {
            place.clean = false;
        }
        let Some(number) = made else { return false };
        log::warn!("{what} {number:#x} is quarantined: {error}");
        if let Ok(card) = find(cards, card) {
            let count = count(&mut card.quarantine);
            *count = count.saturating_add(1);
        }
        false
    }

    /// Gives a queue's ring back, unless the card may still use it. When its client ends, it goes with all
    /// of its ring memory.
    pub(crate) fn give_ring(
        &mut self,
        cards: &mut [Card],
        card: u32,
        ring: Option<Span>,
        clean: bool,
    ) {
        let Some(ring) = ring.filter(|_| self.stage != Stage::Ending) else { return };
        let unmapped = if clean { self.unmap_ring(cards, card, ring) } else { Ok(()) };
        if let Err(error) = &unmapped {
            log::error!("ring of {}: {error}", self.label());
        }
        if !clean || unmapped.is_err() {
            log::warn!("{} bytes of rings are quarantined", ring.length);
            if let Ok(place) = self.place_mut(card) {
                place.kept.push(ring);
            }
            return;
        }
        if let Some(rings) = &mut self.owned.rings {
            rings.release(ring);
        }
        self.usage.give(None, Resource::RingBytes, ring.length);
    }

    fn unmap_ring(&self, cards: &mut [Card], card: u32, ring: Span) -> Result<(), Error> {
        let iova = self.place(card)?.ring_address(ring)?;
        Ok(find(cards, card)?.device.backend.dma_unmap_unused(iova, ring.length)?)
    }
}

impl ClientObject for Qp {
    const NAME: &'static str = "queue pair";
    const COST: usize = 2;

    fn table(owned: &mut Owned) -> &mut BTreeMap<u32, Self> {
        &mut owned.qps
    }

    fn card(&self) -> Option<u32> {
        Some(self.card)
    }

    fn takes(&self) -> impl IntoIterator<Item = (Resource, u64)> {
        let groups = (Resource::Memberships, self.groups.len() as u64);
        let services = (Resource::Services, u64::from(self.has_services));
        [(Resource::Qps, 1), (Resource::Rqs, u64::from(self.has_own_rq())), groups, services]
    }

    fn stop(&self, client: &Client, cards: &mut [Card]) -> Result<(), Error> {
        end(client.window(cards, self.card)?, self.qpn, |engine, qpn| engine.destroy_qp(qpn))
    }

    fn give_back(
        &mut self,
        client: &mut Client,
        cards: &mut [Card],
        stopped: Result<(), Error>,
    ) -> SentRecords {
        let card = self.card;
        // There is no way back, even if its own receive queue fails to stop.
        let rq_stopped = client
            .window(cards, card)
            .and_then(|window| end(window, self.rqn, |engine, rqn| engine.destroy_rq(rqn)));
        let mut told = SentRecords::default();
        if let (Some(qpn), Ok(window)) = (self.qpn, client.window(cards, card)) {
            told = window.users.listeners.remove_qp(qpn);
            let qp = CardQp { window: window.index, qpn };
            if let (Some(peer), Ok(card)) = (self.peer, find(cards, card)) {
                card.claims.release(peer, qp);
            }
        }
        let qp_gone = client.is_released(cards, card, "QP", self.qpn, queues, stopped);
        let rq_gone = client.is_released(cards, card, "RQ", self.rqn, queues, rq_stopped);
        client.give_ring(cards, card, self.rq, rq_gone);
        client.give_ring(cards, card, self.sq, qp_gone);
        told
    }
}

impl ClientObject for Srq {
    const NAME: &'static str = "shared receive queue";
    const COST: usize = 1;

    fn table(owned: &mut Owned) -> &mut BTreeMap<u32, Self> {
        &mut owned.srqs
    }

    fn card(&self) -> Option<u32> {
        Some(self.card)
    }

    fn takes(&self) -> impl IntoIterator<Item = (Resource, u64)> {
        [(Resource::Rqs, 1)]
    }

    fn stop(&self, client: &Client, cards: &mut [Card]) -> Result<(), Error> {
        end(client.window(cards, self.card)?, self.srqn, |engine, srqn| engine.destroy_rq(srqn))
    }

    fn give_back(
        &mut self,
        client: &mut Client,
        cards: &mut [Card],
        stopped: Result<(), Error>,
    ) -> SentRecords {
        let mut told = SentRecords::default();
        if let (Some(srqn), Ok(window)) = (self.srqn, client.window(cards, self.card)) {
            told = window.users.listeners.remove_srq(srqn);
        }
        let gone = client.is_released(cards, self.card, "SRQ", self.srqn, queues, stopped);
        client.give_ring(cards, self.card, self.ring, gone);
        told
    }
}

impl ClientObject for Cq {
    const NAME: &'static str = "completion queue";
    const COST: usize = 1;

    fn table(owned: &mut Owned) -> &mut BTreeMap<u32, Self> {
        &mut owned.cqs
    }

    fn card(&self) -> Option<u32> {
        Some(self.card)
    }

    fn takes(&self) -> impl IntoIterator<Item = (Resource, u64)> {
        [(Resource::Cqs, 1), (Resource::CqEntries, self.entries())]
    }

    fn stop(&self, client: &Client, cards: &mut [Card]) -> Result<(), Error> {
        end(client.window(cards, self.card)?, self.cqn, |engine, cqn| engine.destroy_cq(cqn))
    }

    fn give_back(
        &mut self,
        client: &mut Client,
        cards: &mut [Card],
        stopped: Result<(), Error>,
    ) -> SentRecords {
        let mut told = SentRecords::default();
        if let (Some(cqn), Ok(window)) = (self.cqn, client.window(cards, self.card)) {
            told = window.users.listeners.remove_cq(cqn);
        }
        let gone = client.is_released(cards, self.card, "CQ", self.cqn, queues, stopped);
        // The engine has left the former ring, even if the queue was not destroyed.
        client.give_ring(cards, self.card, self.former, true);
        client.give_ring(cards, self.card, self.ring, gone);
        told
    }
}

/// Between the end of its key and the rest a region's pages are taken from the card, unless it was never
/// mapped: see [`crate::leaving`].
impl ClientObject for Mr {
    const NAME: &'static str = "memory region";
    const COST: usize = 1;

    fn table(owned: &mut Owned) -> &mut BTreeMap<u32, Self> {
        &mut owned.mrs
    }

    fn card(&self) -> Option<u32> {
        Some(self.card)
    }

    fn takes(&self) -> impl IntoIterator<Item = (Resource, u64)> {
        [(Resource::Mrs, 1), (Resource::MrBytes, self.length)]
    }

    fn stop(&self, client: &Client, cards: &mut [Card]) -> Result<(), Error> {
        end(client.window(cards, self.card)?, self.key, |engine, key| engine.destroy_key(key))
    }

    fn give_back(
        &mut self,
        client: &mut Client,
        cards: &mut [Card],
        stopped: Result<(), Error>,
    ) -> SentRecords {
        let gone = client.is_released(cards, self.card, "key", self.key, keys, stopped);
        let place = client.owned.places.get_mut(&self.card);
        if let (Some(range), Some(place), Ok(card)) =
            (self.range.take(), place, find(cards, self.card))
        {
            let reach = place.reach(!self.mapped, gone);
            place.clean &= reach == Reach::Nobody;
            place.give_addresses(card, range, reach);
        }
        SentRecords::default()
    }
}

impl ClientObject for Dm {
    const NAME: &'static str = "device memory";
    const COST: usize = 1;

    fn table(owned: &mut Owned) -> &mut BTreeMap<u32, Self> {
        &mut owned.dms
    }

    fn card(&self) -> Option<u32> {
        Some(self.card)
    }

    fn takes(&self) -> impl IntoIterator<Item = (Resource, u64)> {
        [(Resource::Dms, 1), (Resource::DmBytes, self.length.into())]
    }

    fn stop(&self, client: &Client, cards: &mut [Card]) -> Result<(), Error> {
        end(client.window(cards, self.card)?, self.card_dm, |engine, dm| engine.free_dm(dm))
    }

    fn give_back(
        &mut self,
        client: &mut Client,
        cards: &mut [Card],
        stopped: Result<(), Error>,
    ) -> SentRecords {
        let (what, made) = (Self::NAME, self.card_dm);
        let gone = client.is_released(cards, self.card, what, made, queues, stopped);
        client.give_ring(cards, self.card, self.passage, gone);
        SentRecords::default()
    }
}

impl ClientObject for Mw {
    const NAME: &'static str = "memory window";
    const COST: usize = 1;

    fn table(owned: &mut Owned) -> &mut BTreeMap<u32, Self> {
        &mut owned.mws
    }

    fn card(&self) -> Option<u32> {
        Some(self.card)
    }

    fn takes(&self) -> impl IntoIterator<Item = (Resource, u64)> {
        [(Resource::Mws, 1)]
    }

    fn stop(&self, client: &Client, cards: &mut [Card]) -> Result<(), Error> {
        end(client.window(cards, self.card)?, self.key, |engine, key| engine.destroy_key(key))
    }

    /// It has neither memory nor addresses, as an address handle.
    fn give_back(
        &mut self,
        _: &mut Client,
        _: &mut [Card],
        stopped: Result<(), Error>,
    ) -> SentRecords {
        if let (Some(key), Err(error)) = (self.key, stopped) {
            log::warn!("memory window {key:#x} stays in the card: {error}");
        }
        SentRecords::default()
    }
}

impl ClientObject for Ah {
    const NAME: &'static str = "address handle";
    const COST: usize = 1;

    fn table(owned: &mut Owned) -> &mut BTreeMap<u32, Self> {
        &mut owned.ahs
    }

    fn card(&self) -> Option<u32> {
        Some(self.card)
    }

    fn takes(&self) -> impl IntoIterator<Item = (Resource, u64)> {
        [(Resource::Ahs, 1)]
    }

    fn stop(&self, client: &Client, cards: &mut [Card]) -> Result<(), Error> {
        end(client.window(cards, self.card)?, self.card_ah, |engine, ah| engine.destroy_ah(ah))
    }

    /// It has neither memory nor addresses: one that the card keeps costs only that card's table.
    fn give_back(
        &mut self,
        _: &mut Client,
        _: &mut [Card],
        stopped: Result<(), Error>,
    ) -> SentRecords {
        if let (Some(ah), Err(error)) = (self.card_ah, stopped) {
            log::warn!("address handle {ah:#x} stays in the card: {error}");
        }
        SentRecords::default()
    }
}

impl ClientObject for Channel {
    const NAME: &'static str = "completion channel";
    const COST: usize = 1;

    fn table(owned: &mut Owned) -> &mut BTreeMap<u32, Self> {
        &mut owned.channels
    }

    fn card(&self) -> Option<u32> {
        None
    }

    fn takes(&self) -> impl IntoIterator<Item = (Resource, u64)> {
        [(Resource::Channels, 1)]
    }

    fn stop(&self, _: &Client, _: &mut [Card]) -> Result<(), Error> {
        Ok(())
    }

    fn give_back(&mut self, _: &mut Client, _: &mut [Card], _: Result<(), Error>) -> SentRecords {
        self.records.close();
        SentRecords::default()
    }
}

impl ClientObject for Pd {
    const NAME: &'static str = "protection domain";
    const COST: usize = 1;

    fn table(owned: &mut Owned) -> &mut BTreeMap<u32, Self> {
        &mut owned.pds
    }

    fn card(&self) -> Option<u32> {
        None
    }

    fn takes(&self) -> impl IntoIterator<Item = (Resource, u64)> {
        [(Resource::Pds, 1)]
    }

    fn stop(&self, _: &Client, _: &mut [Card]) -> Result<(), Error> {
        Ok(())
    }

    fn give_back(&mut self, _: &mut Client, _: &mut [Card], _: Result<(), Error>) -> SentRecords {
        SentRecords::default()
    }
}

impl ClientObject for Context {
    const NAME: &'static str = "context";
    const COST: usize = 1;

    fn table(owned: &mut Owned) -> &mut BTreeMap<u32, Self> {
        &mut owned.contexts
    }

    fn card(&self) -> Option<u32> {
        None
    }

    fn takes(&self) -> impl IntoIterator<Item = (Resource, u64)> {
        [(Resource::Contexts, 1)]
    }

    fn stop(&self, _: &Client, _: &mut [Card]) -> Result<(), Error> {
        Ok(())
    }

    fn give_back(
        &mut self,
        client: &mut Client,
        cards: &mut [Card],
        _: Result<(), Error>,
    ) -> SentRecords {
        // The client's place there may have gone before, and so may the card.
        if let Ok(window) = find(cards, self.card).and_then(|card| card.window(self.window)) {
            window.users.listeners.remove_context(client.id, self.number);
        }
        self.events.records.close();
        SentRecords::default()
    }
}

fn queues(quarantine: &mut Quarantine) -> &mut u64 {
    &mut quarantine.queues
}

fn keys(quarantine: &mut Quarantine) -> &mut u64 {
    &mut quarantine.keys
}

/// Makes an engine end an object that it made. An object without a number does not exist, unless the engine died, which
/// leaves that unknown.
fn end(
    window: Window<'_>,
    made: Option<u32>,
    destroy: impl FnOnce(&mut dyn Engine, u32) -> Result<(), DriverError>,
) -> Result<(), Error> {
    let engine = window.engine;
    match (made, engine.death()) {
        (Some(number), _) => confirmed(destroy(engine, number)),
        (None, None) => Ok(()),
        (None, Some(why)) => {
            Err(DriverError::Dead { engine: engine.name().to_owned(), why: why.to_owned() }.into())
        }
    }
}

/// Takes the engine's answer about an object that is gone for a confirmation.
fn confirmed(result: Result<(), DriverError>) -> Result<(), Error> {
    match result {
        Err(error @ DriverError::Refused { status: AdminStatus::NotFound, .. }) => {
            log::error!("{error}; taken as destroyed");
            Ok(())
        }
        other => Ok(other?),
    }
}
