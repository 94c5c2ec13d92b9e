//! Memory regions on their way out: first their keys, then the card's translations of their pages, a
//! row at a time, then the memory itself, a piece at a time.
//!
//! Each call does a bounded part, so that others are served between two. Until a region is gone its
//! addresses and its part of quotas stay taken.

use card_driver::Error as DriverError;

use crate::cards::{Card, find};
use crate::clients::Client;
use crate::error::Error;
use crate::objects::{Leaving, LeavingRegion, Mr};

impl Leaving {
    /// Whether no region is on its way out.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }
}

impl Client {
    /// Gives up a region whose key has ended, with this result: [`Self::leave_regions`] goes on. All those on their way
    /// out are of one card.
    pub fn give_region_up(&mut self, mr: Mr, stopped: Result<(), Error>) {
        let leaving = &mut self.owned.leaving;
        leaving.card = mr.card;
        leaving.regions.push(LeavingRegion { mr, stopped, unmapped: 0 });
    }

    /// Goes on with the regions on their way out; `true` when they are gone, otherwise another call is
    /// due.
    ///
    /// # Errors
    /// A step that the card or the kernel did not confirm. The regions are gone all the same, and memory that
    /// the card may still use is quarantined. An engine that is dead need not confirm the end of a key.
    pub fn leave_regions(&mut self, cards: &mut [Card]) -> Result<bool, Error> {
        let leaving = &mut self.owned.leaving;
        if leaving.is_empty() {
            return Ok(true);
        }
        let place = self.owned.places.get(&leaving.card);
        if let (Some(place), Ok(card)) = (place, find(cards, leaving.card)) {
            if !leaving.go_on(card, place.window) {
                return Ok(false);
            }
        }
        let Leaving { regions, failure, .. } = std::mem::take(leaving);
        let mut died = false;
        for LeavingRegion { mut mr, stopped, .. } in regions {
            died |= stopped.is_err();
            mr.mapped &= failure.is_some();
            self.give_back(cards, mr, stopped);
        }
        match failure {
            // A dead engine cannot confirm the end of a key, and cannot use it either: its memory was taken away.
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
    /// Does a bounded part of the rest; whether it is done.
    fn go_on(&mut self, card: &mut Card, window: u8) -> bool {
        if !self.forgotten {
            let mapped = self.regions.iter().filter(|region| region.mr.mapped);
            let ranges: Vec<_> = mapped.filter_map(|region| region.mr.range.as_ref()).collect();
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
            let Some(range) = &region.mr.range else { continue };
            let whole = range.length();
            while region.unmapped < whole {
                if bytes >= card.device.backend.dma_piece() {
                    return false;
                }
                let before = region.unmapped;
                if let Err(error) = card.device.unmap_piece(range, &mut region.unmapped) {
                    self.failure.get_or_insert(error.into());
                    region.unmapped = whole;
                }
                bytes = bytes.saturating_add(region.unmapped.saturating_sub(before));
            }
        }
        true
    }
}
