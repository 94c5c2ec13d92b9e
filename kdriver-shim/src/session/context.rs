//! Contexts and protection domains.

use std::sync::Arc;
use std::time::Instant;

use card_driver::Error as DriverError;
use card_driver::iova::IovaRange;
use card_driver::translations::Purpose;
use shim_abi::{ContextInfo, Grant, Response, RingMemory as RingInfo};

use super::{Answer, Session, found};
use crate::cards::{Card, Page, client_limits};
use crate::channels::RecordSocket;
use crate::clients::CardUse;
use crate::error::Error;
use crate::grants;
use crate::listeners::ContextEvents;
use crate::objects::{Context, Pd};
use crate::poller::Token;
use crate::quota::Resource;
use crate::rings::{RING_MEMORY_BYTES, RingMemory};

/// A protection domain's number has 24 bits, of which these are its number within its client's block: more
/// than a client may have. There are more blocks than connections.
const PD_BITS: u32 = 13;
const PD_BLOCKS: u32 = 1 << (24 - PD_BITS);

impl Session<'_> {
    pub(super) fn open_context(&mut self, card: u32) -> Result<Answer, Error> {
        self.card(card)?;
        if !self.client.owned.places.contains_key(&card) {
            self.enter_card(card)?;
        }
        let limits = self.limits(card)?;
        self.client.usage.take(Resource::Contexts, 1, &limits)?;
        let answer = self.add_context(card);
        if answer.is_err() {
            self.client.usage.give(Resource::Contexts, 1);
        }
        answer
    }

    fn add_context(&mut self, card: u32) -> Result<Answer, Error> {
        let limits = client_limits(&self.limits(card)?);
        let info = self.card(card)?.info();
        let listeners = Arc::clone(&self.window(card)?.users.listeners);
        let client = &mut *self.client;
        let number = client.numbers.next(u32::MAX, |n| client.owned.contexts.contains_key(&n));
        let first_rings = !client.rings_handed_out;
        let rings = match &client.owned.rings {
            Some(rings) if first_rings => Some(rings.descriptor()?),
            _ => None,
        };
        let records = RecordSocket::new(self.poller);
        let async_fd = records.open(Token::Async(client.id, number))?;
        // Nothing fails from here on: what is handed out once is handed out now.
        let place = found(client.owned.places.get_mut(&card), "open card", card)?;
        let mut fds = vec![async_fd];
        let first = place.grant.is_some();
        if let Some(grant) = place.grant.take() {
            fds.extend(grants::into_descriptors(grant));
        }
        fds.extend(rings);
        client.rings_handed_out = true;
        let process = client.process.clone();
        let events = Arc::new(ContextEvents { process, records });
        listeners.add_context(client.id, number, Arc::clone(&events));
        client.owned.contexts.insert(number, Context { card, events });
        let grant = Grant { page: place.page, first, way: place.way };
        log::debug!("{}: context {number} on balboa{card}", client.label());
        let rings = RingInfo { length: RING_MEMORY_BYTES, first: first_rings };
        let context = ContextInfo { context: number, card: info, limits, grant, rings };
        Ok(Answer { response: Response::Context(Box::new(context)), fds })
    }

    /// Gives the client a place on a card: a doorbell page, and addresses for its ring memory.
    fn enter_card(&mut self, card: u32) -> Result<(), Error> {
        let id = self.client.id;
        if self.client.owned.rings.is_none() {
            self.client.owned.rings = Some(RingMemory::new()?);
        }
        let card = self.card(card)?;
        let number = card.device.number;
        let window = card.emptiest_window()?;
        let index = window.index;
        let page = window.users.take_page(id).ok_or(Error::NoPages { card: number, pages: 0 })?;
        let grant = match window.engine.grant(page) {
            Ok(grant) => grant,
            Err(error) => {
                window.users.set_page(page, Page::Free);
                return Err(error.into());
            }
        };
        // Rings are mapped one by one, as they are made, for a card behind an IOMMU pins what is mapped;
        // most of their addresses are never used, so translations come with the rings.
        match map_rings(card, index) {
            Ok(rings) => {
                let way = grants::way(&grant);
                let (window, grant) = (index, Some(grant));
                let (addresses, clean) = (0, true);
                let place = CardUse { window, page, rings, way, grant, addresses, clean };
                self.client.owned.places.insert(number, place);
                log::info!(
                    client = self.client.process.pid;
                    "{}: page {page} of window {index} of balboa{number}",
                    self.client.label()
                );
                Ok(())
            }
            Err(error) => {
                let window = card.window(index)?;
                window.engine.revoke(page);
                window.users.set_page(page, Page::Free);
                Err(error)
            }
        }
    }

    pub(super) fn close_context(&mut self, context: u32) -> Result<Answer, Error> {
        let number = self.context(context)?.card;
        let client = &mut *self.client;
        let users = [
            (
                "protection domains",
                client.owned.pds.values().filter(|pd| pd.context == context).count(),
            ),
            (
                "completion queues",
                client.owned.cqs.values().filter(|cq| cq.context == context).count(),
            ),
        ];
        if let Some((what, count)) = users.into_iter().find(|(_, count)| *count > 0) {
            let users = format!("{count} {what}");
            return Err(Error::Busy { object: "context", number: context, users });
        }
        client.owned.channels.retain(|_, channel| {
            if channel.context == context {
                channel.records.close();
                client.usage.give(Resource::Channels, 1);
            }
            channel.context != context
        });
        if let Some(closed) = client.owned.contexts.remove(&context) {
            closed.events.records.close();
            client.usage.give(Resource::Contexts, 1);
        }
        let id = client.id;
        self.window(number)?.users.listeners.remove_context(id, context);
        // A dead card is left with the last context: others wait for it to be free.
        let last = !self.client.owned.contexts.values().any(|context| context.card == number);
        if last && self.window(number)?.engine.death().is_some() {
            let card =
                found(self.cards.iter_mut().find(|it| it.device.number == number), "card", number)?;
            while !self.client.leave(card) {}
        }
        Ok(Response::Done.into())
    }

    pub(super) fn query_port(&mut self, context: u32) -> Result<Answer, Error> {
        let card = self.context(context)?.card;
        Ok(Response::Port(self.card(card)?.port()).into())
    }

    pub(super) fn alloc_pd(&mut self, context: u32) -> Result<Answer, Error> {
        let card = self.context(context)?.card;
        let limits = self.limits(card)?;
        self.client.usage.take(Resource::Pds, 1, &limits)?;
        let client = &mut *self.client;
        let (blocks, others) = (&mut *self.pd_blocks, self.others);
        let block = *client.pd_block.get_or_insert_with(|| {
            blocks.next(PD_BLOCKS, |n| others.values().any(|other| other.pd_block == Some(n)))
        });
        let number = |n: u32| block << PD_BITS | n;
        let taken = |n| client.owned.pds.contains_key(&number(n));
        let pdn = number(client.pd_numbers.next(1 << PD_BITS, taken));
        client.owned.pds.insert(pdn, Pd { context });
        Ok(Response::Pd { pdn }.into())
    }

    pub(super) fn dealloc_pd(&mut self, pdn: u32) -> Result<Answer, Error> {
        let client = &mut *self.client;
        found(client.owned.pds.get(&pdn), "protection domain", pdn)?;
        let users = [
            ("memory regions", client.owned.mrs.values().filter(|mr| mr.pdn == pdn).count()),
            ("queue pairs", client.owned.qps.values().filter(|qp| qp.pdn == pdn).count()),
        ];
        if let Some((what, count)) = users.into_iter().find(|(_, count)| *count > 0) {
            let users = format!("{count} {what}");
            return Err(Error::Busy { object: "protection domain", number: pdn, users });
        }
        client.owned.pds.remove(&pdn);
        client.usage.give(Resource::Pds, 1);
        Ok(Response::Done.into())
    }
}

/// Takes addresses for a client's ring memory.
fn map_rings(card: &mut Card, window: u8) -> Result<IovaRange, Error> {
    let length = RING_MEMORY_BYTES;
    let rings = card
        .device
        .arena
        .allocate(length, 0, Instant::now())
        .ok_or(DriverError::NoAddressSpace { card: card.device.number, length })?;
    match card.device.map(window, &rings, None, Purpose::Rings) {
        Ok(()) => Ok(rings),
        Err(error) => {
            card.device.release_iova(rings, true);
            Err(error.into())
        }
    }
}
