//! Cards that come back, and cards that go: a card that was reset is brought up anew, and one that the kernel wants is
//! let go.

use card_driver::device::NUMBERS;
use shim_abi::Request;

use super::{Parts, Server};
use crate::cards::{Card, find};
use crate::clients::Client;
use crate::error::Error;
use crate::events;
use crate::remains;

/// Refuses a request that names the remains of a card, or an impossible card.
pub(super) fn check_named(request: &Request) -> Result<(), Error> {
    let named = match request {
        Request::OpenContext { card }
        | Request::SetLink { card, .. }
        | Request::AddGid { card, .. }
        | Request::DelGid { card, .. }
        | Request::Capture { card, .. }
        | Request::EndCapture { card }
        | Request::AttachServices { card, .. }
        | Request::DetachServices { card, .. }
        | Request::LoadService { card, .. }
        | Request::UnloadService { card, .. }
        | Request::QueryQos { card }
        | Request::SetQos { card, .. }
        | Request::ResetCard { card }
        | Request::FlashOpen { card, .. }
        | Request::FlashRollback { card, .. }
        | Request::FlashState { card, .. }
        | Request::FlashVerify { card, .. } => Some(*card),
        _ => None,
    };
    match named.filter(|card| *card >= NUMBERS) {
        Some(card) => Err(Error::NoSuch { object: "card", number: card.into() }),
        None => Ok(()),
    }
}

impl Server {
    /// Lets those cards go that the kernel wants back once no program has a place on them, and brings those up anew
    /// that were reset. One of which a vFPGA is given an image waits for the end of that.
    pub(super) fn tend_cards(&mut self) {
        self.forget_remains();
        let leaves = |card: &Card| card.wanted_back && card.is_unused() && card.reloading.is_none();
        while let Some(at) = self.cards.iter().position(leaves) {
            let card = self.cards.remove(at);
            self.news.unhear(&card);
            log::warn!("{}: let go, for the kernel wants it back", card.device.name());
        }
        let lost = |card: &&Card| {
            card.is_there()
                && card.device.is_dead()
                && !card.wanted_back
                && card.unusable.is_none()
                // It would not come up at the next client's end either: this thread would try again and again.
                && card.failure.is_none()
                && card.reloading.is_none()
                // Programs with connections by it are told first, before new connections can be taken for old ones.
                && !self.connections.is_losing(card.device.number)
                && card.device.was_reset()
        };
        let lost: Vec<_> = self.cards.iter().filter(lost).map(|card| card.device.number).collect();
        let mut changed = false;
        for number in lost {
            match self.part(number) {
                Ok(()) => changed |= self.bring_back(number),
                Err(error) => log::error!("balboa{number}: not brought up after a reset: {error}"),
            }
        }
        if changed {
            self.tell_ports();
        }
    }

    /// The number of programs that still have open a card as it was before its reset.
    pub(super) fn programs_with_remains(&self, number: u32) -> usize {
        let is_left = |of: &u32| *of >= NUMBERS && of.checked_rem(NUMBERS) == Some(number);
        let has = |client: &&Client| client.owned.places.keys().any(is_left);
        self.clients.values().filter(has).count()
    }

    /// Parts a card that was reset from programs' objects on it, if there are any.
    fn part(&mut self, number: u32) -> Result<(), Error> {
        // Programs that have it open are told that it has died, before it is another card.
        events::dispatch(&mut self.cards, &self.clients);
        let cards = &mut self.cards;
        let taken = |number| cards.iter().any(|card| card.device.number == number);
        let left = remains::number(number, taken);
        let none =
            Error::NoSuch { object: "number for what is left of card", number: number.into() };
        let left = left.ok_or(none)?;
        let card = find(cards, number)?;
        if card.is_unused() {
            return Ok(());
        }
        let mut parted = card.part(left)?;
        for client in self.clients.values_mut() {
            let addresses = client.part(number, left);
            parted.remains.iter_mut().for_each(|it| it.addresses.extend(&addresses));
        }
        cards.push(parted);
        Ok(())
    }

    /// Brings a card without users up anew; whether that changed its properties.
    fn bring_back(&mut self, number: u32) -> bool {
        let (remains, mut there): (Vec<_>, Vec<_>) =
            self.cards.iter_mut().partition(|card| !card.is_there());
        let card = there.iter_mut().find(|card| card.device.number == number);
        let Some(card) = card else { return false };
        self.news.unhear(card);
        let name = card.device.name();
        let up = card.renew();
        match &up {
            Ok(()) => {
                let of = |left: &&mut Card| left.remains.as_ref().is_some_and(|it| it.of == number);
                remains.into_iter().filter(of).for_each(|left| card.hold(left));
                log::warn!("{name}: brought up anew after a reset");
            }
            Err(error) => log::error!("{name}: not brought up after a reset: {error}"),
        }
        let unusable = card.unusable.clone();
        let Parts { mut around, flasher, .. } = self.parts();
        around.hear_again(number);
        if let Some(why) = &unusable {
            log::error!("{name}: {why}");
            flasher.save_record(&mut around, number);
        }
        up.is_ok() || unusable.is_some()
    }

    /// Forgets the remains of cards without users, and gives back the resources kept for those.
    fn forget_remains(&mut self) {
        let ended = |card: &Card| !card.is_there() && card.is_unused();
        while let Some(at) = self.cards.iter().position(ended) {
            let left = self.cards.remove(at);
            let of = left.remains.as_ref().map(|remains| remains.of);
            match of.map(|of| find(&mut self.cards, of)) {
                Some(Ok(card)) => card.let_go(left),
                // The kernel has that.
                _ => drop(left),
            }
        }
        let (remains, there): (Vec<_>, Vec<_>) =
            self.cards.iter_mut().partition(|card| !card.is_there());
        for card in there {
            let number = card.device.number;
            for window in card.windows() {
                let index = window.index;
                let of = |left: &Card| left.remains.as_ref().is_some_and(|it| it.of == number);
                let has = |page| remains.iter().any(|it| of(it) && it.has_page(index, page));
                window.users.free_former(has);
            }
        }
    }
}
