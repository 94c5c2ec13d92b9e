//! Memory regions on their way out: first their keys, then the card's translations of their pages, a
//! row at a time, then the memory itself, a piece at a time.
//!
//! Each call does a bounded part, so that others are served between two. Until a region is gone its
//! addresses and what it takes of quotas stay taken.

use card_driver::Error as DriverError;

use crate::cards::{Card, find};
use crate::clients::{Client, confirmed};
use crate::error::Error;
use crate::objects::{Leaving, LeavingRegion};
use crate::quota::Resource;

impl Leaving {
    /// Whether no region is on its way out.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }
}

impl Client {
    /// Ends the key of a region, if it has one.
    ///
    /// # Errors
    /// The engine's: it does not confirm that no DMA follows.
    pub fn end_key(&self, cards: &mut [Card], number: u32) -> Result<(), Error> {
        let no_region = || Error::NoSuch { object: "memory region", number: u64::from(number) };
        let mr = self.owned.mrs.get(&number).ok_or_else(no_region)?;
        let window = self.owned.places.get(&mr.card).map_or(0, |place| place.window);
        match mr.key {
            Some(key) => confirmed(find(cards, mr.card)?.window(window)?.engine.destroy_key(key)),
            None => Ok(()),
        }
    }

    /// Lets a region go whose key was ended, with this result: [`Self::leave_regions`] goes on. All
    /// those on their way out are of one card.
    pub fn give_region_up(&mut self, cards: &mut [Card], number: u32, key: Result<(), Error>) {
        let Some(mr) = self.owned.mrs.remove(&number) else { return };
        if let (Err(error), Ok(card)) = (&key, find(cards, mr.card)) {
            log::warn!("key {:#x} is quarantined: {error}", mr.key.unwrap_or(0));
            card.quarantine.keys = card.quarantine.keys.saturating_add(1);
        }
        self.owned.leaving.card = mr.card;
        self.owned.leaving.regions.push(LeavingRegion { mr, clean: key.is_ok(), unmapped: 0 });
    }

    /// Goes on with the regions on their way out; `true` when they are gone, otherwise another call is
    /// due.
    ///
    /// # Errors
    /// What the card or the kernel did not confirm. The regions are gone all the same, and what may
    /// still be used by the card is quarantined. Where the engine did not even end a key it is none.
    pub fn leave_regions(&mut self, cards: &mut [Card]) -> Result<bool, Error> {
        if self.owned.leaving.is_empty() {
            return Ok(true);
        }
        let number = self.owned.leaving.card;
        let (Some(place), Ok(card)) = (self.owned.places.get_mut(&number), find(cards, number))
        else {
            self.owned.leaving = Leaving::default();
            return Ok(true);
        };
        if !self.owned.leaving.go_on(card, place.window) {
            return Ok(false);
        }
        let Leaving { regions, failure, .. } = std::mem::take(&mut self.owned.leaving);
        let mut died = false;
        for LeavingRegion { mr, clean, .. } in regions {
            self.usage.give(Resource::Mrs, 1);
            self.usage.give(Resource::MrBytes, mr.length);
            place.give_addresses(card, mr.range, clean && failure.is_none());
            place.clean &= clean && failure.is_none();
            died |= !clean;
        }
        match failure {
            // What it cannot confirm it cannot do either: the memory itself was taken from it.
            Some(error @ Error::Driver(DriverError::Dead { .. })) if died => {
                log::warn!("addresses are quarantined: {error}");
                Ok(true)
            }
            Some(error) => Err(error),
            None => Ok(true),
        }
    }
}

impl Leaving {
    /// Does a bounded part of what is left; whether that was the rest.
    fn go_on(&mut self, card: &Card, window: u8) -> bool {
        if !self.forgotten {
            let mapped = self.regions.iter().filter(|region| region.mr.mapped);
            let ranges: Vec<_> = mapped.map(|region| &region.mr.range).collect();
            match card.device.take_back(window, &ranges) {
                Ok(false) => return false,
                Ok(true) => {}
                Err(error) => self.failure = Some(error.into()),
            }
            self.forgotten = true;
        }
        // In any case: the process may be gone, and its id may come to name another.
        let mut bytes = 0u64;
        for region in self.regions.iter_mut().filter(|region| region.mr.mapped) {
            let whole = region.mr.range.length();
            while region.unmapped < whole {
                if bytes >= card.device.backend.dma_piece() {
                    return false;
                }
                let before = region.unmapped;
                if let Err(error) = card.device.unmap_piece(&region.mr.range, &mut region.unmapped)
                {
                    self.failure.get_or_insert(error.into());
                    region.unmapped = whole;
                }
                bytes = bytes.saturating_add(region.unmapped.saturating_sub(before));
            }
        }
        true
    }
}
