//! Contexts and protection domains.

use std::sync::Arc;
use std::time::Instant;

use card_driver::Error as DriverError;
use card_driver::relay::ClientRings;
use card_driver::spans::Span;
use card_driver::translations::Purpose;
use shim_abi::{ContextInfo, Grant, Response, RingMemory as RingInfo};

use super::{Answer, Session, check_unused, found};
use crate::cards::{client_limits, find};
use crate::channels::RecordSocket;
use crate::clients::CardUse;
use crate::error::Error;
use crate::grants;
use crate::listeners::ContextEvents;
use crate::objects::{Channel, Context, Pd};
use crate::poller::Token;
use crate::rings::{RING_MEMORY_BYTES, RingMemory};

/// A protection domain's number has 24 bits, of which these are its number within its client's block: more
/// than a client may have. There are more blocks than connections.
const PD_BITS: u32 = 13;
const PD_BLOCKS: u32 = 1 << (24 - PD_BITS);

impl Session<'_> {
    pub(super) fn open_context(&mut self, card: u32) -> Result<Answer, Error> {
        self.card(card)?;
        if self.client.owned.places.contains_key(&card) {
            return self.add_context(card);
        }
        self.enter_card(card)?;
        // Without a context the place is good for nothing.
        self.add_context(card).inspect_err(|_| self.leave_card(card))
    }

    fn add_context(&mut self, card: u32) -> Result<Answer, Error> {
        let engine = self.limits(card)?;
        let window = self.window(card)?;
        let (index, listeners) = (window.index, Arc::clone(&window.users.listeners));
        let client = &mut *self.client;
        let number = client.numbers.next(u32::MAX, |n| client.owned.contexts.contains_key(&n));
        let records = RecordSocket::new(self.poller);
        let events = Arc::new(ContextEvents { process: client.process.clone(), records });
        let context = Context { number, card, window: index, events };
        self.make(&engine, context, |session, context| {
            let info = session.card(card)?.info();
            let client = &mut *session.client;
            let first_rings = !client.rings_handed_out;
            let rings = match &client.owned.rings {
                Some(rings) if first_rings => Some(rings.descriptor()?),
                _ => None,
            };
            let mut fds = vec![context.events.records.open(Token::Async(client.id, number))?];
            let place = client.place_mut(card)?;
            let page = place.page;
            let none = Error::NoSuch { object: "granted page", number: page.into() };
            let access = place.access.ok_or(none)?;
            let state = shim_abi::card_state(place.state).ok_or_else(|| no_words(card))?;
            // Nothing fails from here on: the first context gets the client's page and addresses now.
            let first = place.grant.is_some();
            if let Some(grant) = place.grant.take() {
                fds.extend(grants::into_descriptors(grant));
            }
            fds.extend(rings);
            client.rings_handed_out = true;
            listeners.add_context(client.id, number, Arc::clone(&context.events));
            let grant = Grant { page, first, access, state };
            log::debug!("{}: context {number} on balboa{card}", client.label());
            let rings = RingInfo { length: RING_MEMORY_BYTES, first: first_rings };
            let limits = client_limits(&engine);
            let context = ContextInfo { context: number, card: info, limits, grant, rings };
            Ok((number, Answer { response: Response::Context(Box::new(context)), fds }))
        })
    }

    /// Gives the client a place on a card: a doorbell page, and addresses for its ring memory.
    fn enter_card(&mut self, number: u32) -> Result<(), Error> {
        let client = &mut *self.client;
        if client.owned.rings.is_none() {
            client.owned.rings = Some(RingMemory::new()?);
        }
        // Behind those of cards that it has lost, and of others.
        let taken = |word: &u32| client.owned.places.values().any(|place| place.state == *word);
        let free = (0..).take_while(|word| shim_abi::card_state(*word).is_some());
        let state = free.into_iter().find(|word| !taken(word)).ok_or_else(|| no_words(number))?;
        let window = find(self.cards, number)?.emptiest_window()?;
        let index = window.index;
        let page =
            window.users.take_page(client.id).ok_or(Error::NoPlaces { card: number, places: 0 })?;
        client.owned.places.insert(number, CardUse::new(index, page, state));
        client.owned.rings.iter().for_each(|rings| rings.set_lost(state, false));
        self.furnish(number).inspect_err(|_| self.leave_card(number))?;
        log::info!(
            client = self.client.process.pid;
            "{}: page {page} of window {index} of balboa{number}",
            self.client.label()
        );
        Ok(())
    }

    /// Takes the resources of a place besides its doorbell page.
    fn furnish(&mut self, number: u32) -> Result<(), Error> {
        let card = find(self.cards, number)?;
        let none = Error::NoSuch { object: "ring memory", number: 0 };
        let memory = self.client.owned.rings.as_ref().ok_or(none)?.mapping();
        let memory = Arc::clone(memory);
        let place = self.client.place_mut(number)?;
        // Rings are mapped one by one, as they are made, for a card behind an IOMMU pins mapped memory;
        // most of their addresses are never used, so translations come with the rings.
        let length = RING_MEMORY_BYTES;
        let none = DriverError::NoAddressSpace { card: number, length };
        let rings = card.device.arena.allocate(length, 0, Instant::now()).ok_or(none)?;
        card.device.map(place.window, place.rings.insert(rings), None, Purpose::Rings)?;
        let rings = ClientRings { memory, iova: place.ring_address(Span { start: 0, length })? };
        let grant = card.window(place.window)?.engine.grant(place.page, rings)?;
        place.access = Some(grants::access(&grant));
        place.grant = Some(grant);
        Ok(())
    }

    /// Gives the client's place on a card up, of which it uses nothing.
    fn leave_card(&mut self, number: u32) {
        if let Ok(card) = find(self.cards, number) {
            while !self.client.leave(card) {}
        }
    }

    pub(super) fn close_context(&mut self, context: u32) -> Result<Answer, Error> {
        let number = self.context(context)?.card;
        let owned = &self.client.owned;
        let users = [
            ("protection domains", owned.pds.values().filter(|pd| pd.context == context).count()),
            ("XRC domains", owned.xrcds.values().filter(|it| it.context == context).count()),
            ("completion queues", owned.cqs.values().filter(|cq| cq.context == context).count()),
            (
                "parts of device memory",
                owned.dms.values().filter(|dm| dm.context == context).count(),
            ),
        ];
        check_unused::<Context>(context, &users)?;
        let channels = owned.channels.iter().filter(|(_, channel)| channel.context == context);
        let channels: Vec<u32> = channels.map(|(number, _)| *number).collect();
        for channel in channels {
            self.client.destroy::<Channel>(self.cards, channel)?;
        }
        self.client.destroy::<Context>(self.cards, context)?;
        // A dead card is left with the last context: others wait for it to be free.
        let last = !self.client.owned.contexts.values().any(|context| context.card == number);
        if last && self.window(number)?.engine.death().is_some() {
            self.leave_card(number);
        }
        Ok(Response::Done.into())
    }

    pub(super) fn query_port(&mut self, context: u32) -> Result<Answer, Error> {
        let card = self.context(context)?.card;
        if !self.card(card)?.is_there() {
            self.limits(card)?;
        }
        Ok(Response::Port(self.card(card)?.port()).into())
    }

    pub(super) fn query_clock(&mut self, context: u32) -> Result<Answer, Error> {
        let card = self.context(context)?.card;
        Ok(Response::Clock { now: self.window(card)?.engine.query_clock()? }.into())
    }

    pub(super) fn alloc_pd(&mut self, context: u32) -> Result<Answer, Error> {
        let card = self.context(context)?.card;
        let limits = self.limits(card)?;
        self.make(&limits, Pd { context }, |session, _| {
            let client = &mut *session.client;
            let (blocks, others) = (&mut *session.pd_blocks, session.others);
            let block = *client.pd_block.get_or_insert_with(|| {
                blocks.next(PD_BLOCKS, |n| others.values().any(|other| other.pd_block == Some(n)))
            });
            let number = |n: u32| block << PD_BITS | n;
            let taken = |n| client.owned.pds.contains_key(&number(n));
            let pdn = number(client.pd_numbers.next(1 << PD_BITS, taken));
            Ok((pdn, Response::Pd { pdn }.into()))
        })
    }

    pub(super) fn dealloc_pd(&mut self, pdn: u32) -> Result<Answer, Error> {
        let owned = &self.client.owned;
        found(owned.pds.get(&pdn), pdn)?;
        let users = [
            ("memory regions", owned.mrs.values().filter(|mr| mr.pdn == pdn).count()),
            ("memory windows", owned.mws.values().filter(|mw| mw.pdn == pdn).count()),
            ("queue pairs", owned.qps.values().filter(|qp| qp.pdn == pdn).count()),
            ("address handles", owned.ahs.values().filter(|ah| ah.pdn == pdn).count()),
            ("shared receive queues", owned.srqs.values().filter(|srq| srq.pdn == pdn).count()),
        ];
        check_unused::<Pd>(pdn, &users)?;
        self.client.destroy::<Pd>(self.cards, pdn)?;
        Ok(Response::Done.into())
    }
}

/// The client has lost as many cards, and keeps objects of them, as it can be told of.
fn no_words(card: u32) -> Error {
    let words = u64::from(u32::MAX).min(shim_abi::CM_ERA / 4);
    let (used, asked, limit) = (words, 1, words);
    Error::Quota {
        card: Some(card),
        resource: "cards, with those that were reset",
        used,
        asked,
        limit,
    }
}
