//! Programs' objects of a card that was reset, until they have closed it.
//!
//! A card that was reset comes back at once, as a device that no program has opened yet. Programs keep their former
//! objects until they destroy them or end: the objects stay in their tables, as objects of an absent card
//! ([`Card::part`], [`Client::part`]), of a number of its own, which no request can name. Requests about them fail
//! as those to a dead card do, and their destruction succeeds at once, for the reset has ended them.
//!
//! They do not reach the card. A client with a page of memory rings for the former engine: the new one is told of
//! other pages. A client with the function itself still reaches its own doorbell page and may map memory at its
//! former addresses, so no other client gets those meanwhile.

use card_driver::Error as DriverError;
use card_driver::backend::GrantKind;
use card_driver::device::NUMBERS;
use card_driver::iova::IovaRange;
use card_driver::spans::Span;

use crate::cards::{Card, Page, Remains};
use crate::clients::{Client, Owned};

/// The number of a card's remains, of which there are such `taken` already.
#[must_use]
pub fn number(card: u32, taken: impl Fn(u32) -> bool) -> Option<u32> {
    let mut numbers =
        (1..u32::MAX / NUMBERS).map(|part| card.saturating_add(part.saturating_mul(NUMBERS)));
    numbers.find(|number| !taken(*number))
}

impl Card {
    /// Parts the programs' objects from the card, which was reset and is about to be brought up anew.
    ///
    /// # Errors
    /// The driver's: then nothing has changed.
    pub fn part(&mut self, number: u32) -> Result<Self, DriverError> {
        let of = self.device.number;
        let mut left = Self::new(self.device.part(number)?);
        std::mem::swap(&mut left.users, &mut self.users);
        std::mem::swap(&mut left.claims, &mut self.claims);
        std::mem::swap(&mut left.xrc, &mut self.xrc);
        std::mem::swap(&mut left.quarantine, &mut self.quarantine);
        left.remains = Some(Remains { of, addresses: Vec::new(), held: Vec::new() });
        Ok(left)
    }

    /// Whether a client has that page of a window.
    #[must_use]
    pub fn has_page(&self, index: u8, page: u8) -> bool {
        let windows = self.device.windows.iter().zip(&self.users);
        let mut users = windows.filter(|(window, _)| window.index == index).map(|(_, users)| users);
        users.any(|users| users.pages_of_clients().any(|of_client| of_client == page))
    }

    /// Withholds, on a card that has come up anew, the resources that programs with objects in `left` can still reach.
    pub fn hold(&mut self, left: &mut Self) {
        let Some(remains) = left.remains.as_mut() else { return };
        if left.device.backend.grant_kind() != GrantKind::Device {
            return;
        }
        let arena = &mut self.device.arena;
        remains.held = remains.addresses.iter().filter_map(|span| arena.hold(*span)).collect();
        let former = left.device.windows.iter().map(|window| window.index).zip(&left.users);
        for (index, users) in former {
            let Ok(window) = self.window(index) else { continue };
            for page in users.pages_of_clients() {
                window.users.set_page(page, Page::Former);
            }
        }
    }

    /// Gives back the resources that were withheld for programs with objects in `left`, which now have none.
    pub fn let_go(&mut self, left: Self) {
        for range in left.remains.into_iter().flat_map(|remains| remains.held) {
            // A client that maps by itself may have done so behind the reset.
            match self.device.unmap_all(&range) {
                Ok(()) => self.device.arena.release(range, std::time::Instant::now()),
                Err(error) => {
                    log::error!("addresses of {} are quarantined: {error}", self.device.name());
                    self.device.arena.lose(&range);
                }
            }
        }
    }
}

impl Client {
    /// Moves its objects of a card that was reset to the remains `left`; returns its addresses there.
    pub fn part(&mut self, card: u32, left: u32) -> Vec<Span> {
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
            rings: _,
            channels: _,
            pds: _,
            contexts,
        } = &mut *self.owned;
        let Some(place) = places.remove(&card) else { return Vec::new() };
        let ranges = mrs.values().filter(|mr| mr.card == card).filter_map(|mr| mr.range.as_ref());
        let leaves = leaving.regions.iter().filter_map(|it| it.mr.range.as_ref());
        let leaves = leaves.filter(|_| leaving.card == card);
        let ranges = ranges.chain(leaves).chain(&place.rings).map(IovaRange::span).collect();
        places.insert(left, place);
        let of_card = |it: &&mut u32| **it == card;
        let all = (qps.values_mut().map(|it| &mut it.card))
            .chain(targets.values_mut().map(|it| &mut it.card))
            .chain(srqs.values_mut().map(|it| &mut it.card))
            .chain(xrcds.values_mut().map(|it| &mut it.card))
            .chain(ahs.values_mut().map(|it| &mut it.card))
            .chain(mws.values_mut().map(|it| &mut it.card))
            .chain(cqs.values_mut().map(|it| &mut it.card))
            .chain(mrs.values_mut().map(|it| &mut it.card))
            .chain(dms.values_mut().map(|it| &mut it.card))
            .chain(contexts.values_mut().map(|it| &mut it.card))
            .chain(leaving.regions.iter_mut().map(|it| &mut it.mr.card))
            .chain([&mut leaving.card]);
        all.filter(of_card).for_each(|it| *it = left);
        self.usage.rename(card, left);
        ranges
    }
}
