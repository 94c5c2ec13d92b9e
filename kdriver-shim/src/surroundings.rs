//! The state that parts of balboad need to act on cards: the cards, their users, and the receiver of their news.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use nix::sys::epoll::EpollFlags;

use crate::cards::{Card, find};
use crate::clients::{Client, Stage};
use crate::cm::ConnectionManager;
use crate::cm::network::{CardsOfServer, Network as _};
use crate::error::Error;
use crate::events::{self, Clients};
use crate::poller::{Poller, Token, Watch};
use crate::process::ClientId;

/// The cards and their users; the server executes the consequences.
pub struct Surroundings<'a> {
    /// The cards.
    pub cards: &'a mut Vec<Card>,
    /// Their users, without the client that is being served.
    pub clients: &'a mut Clients,
    /// The connection manager.
    pub connections: &'a mut ConnectionManager,
    /// The receiver of the cards' news.
    pub news: &'a mut CardNews,
    /// Clients to end, because they keep open a card that is needed.
    pub ends: Vec<ClientId>,
    /// Cards may be to be let go, or to be brought up anew.
    pub tend: bool,
}

impl Surroundings<'_> {
    /// Reports the cards' events to the programs.
    pub fn dispatch(&mut self) {
        events::dispatch(self.cards, self.clients);
    }

    /// Tells the programs of a card that it is gone, and resets it. Those that have closed it give their places back.
    ///
    /// # Errors
    /// [`Error::NoSuch`] where there is no such card, and why it cannot be reset.
    pub fn take_from_programs(&mut self, number: u32, why: &str) -> Result<(), Error> {
        find(self.cards, number)?.device.abandon(why);
        self.dispatch();
        self.connections.lose_card(number);
        let card = find(self.cards, number)?;
        let reset = card.device.backend.reset();
        // They would keep it from coming up.
        give_places_back(self.clients, card, |client| client.owned.places.contains_key(&number));
        if reset.is_err() {
            // The end of a client starts only engines that the client used, so all are started here.
            let windows: Vec<_> = card.windows().map(|window| window.index).collect();
            windows.into_iter().for_each(|index| card.start_anew(index));
        }
        Ok(reset?)
    }

    /// Tells the programs of one vFPGA that their device is gone. Those that have closed it give their places back.
    pub fn take_window_from_programs(&mut self, number: u32, vfpga: u8, why: &str) {
        let Ok(card) = find(self.cards, number) else { return };
        card.reloading = Some(vfpga);
        if let Ok(window) = card.window(vfpga) {
            window.engine.abandon(why);
        }
        self.dispatch();
        let Ok(card) = find(self.cards, number) else { return };
        give_places_back(self.clients, card, |client| client.uses(number, vfpga));
    }

    /// Tells the connection manager of the cards' ports.
    pub fn tell_ports(&mut self) {
        let numbers: Vec<_> = self.cards.iter().map(|card| card.device.number).collect();
        let mut network = CardsOfServer(self.cards);
        for number in numbers {
            if let Some(port) = network.port(number) {
                self.connections.set_port(number, &port);
            }
        }
    }

    /// Hears a card again whose engines are others now.
    pub fn hear_again(&mut self, number: u32) {
        let Ok(card) = find(self.cards, number) else { return };
        if let Err(error) = self.news.hear(card) {
            log::error!("{}: is not heard any more: {error}", card.device.name());
        }
    }
}

/// Gives back the places that programs which have closed a card keep for the next time.
fn give_places_back(clients: &mut Clients, card: &mut Card, has_place: impl Fn(&Client) -> bool) {
    let number = card.device.number;
    for client in clients.values_mut().filter(|it| it.stage != Stage::Ending) {
        if has_place(client) && !client.has_open(number) {
            while !client.leave(card) {}
        }
    }
}

/// The receiver of the cards' news: the places of their signals in the epoll set.
pub struct CardNews {
    poller: Arc<Poller>,
    /// The places by card, in the order of [`signals`].
    watches: BTreeMap<u32, Vec<Watch>>,
}

impl CardNews {
    /// A receiver that hears no card yet.
    #[must_use]
    pub fn new(poller: Arc<Poller>) -> Self {
        Self { poller, watches: BTreeMap::new() }
    }

    /// Hears a card.
    ///
    /// # Errors
    /// [`Error::Os`] when the epoll set is full.
    pub fn hear(&mut self, card: &Card) -> Result<(), Error> {
        let watched = |(fd, token)| self.poller.watch(fd, token, EpollFlags::EPOLLIN);
        let watches = signals(card).into_iter().map(watched).collect::<Result<_, _>>()?;
        self.watches.insert(card.device.number, watches);
        Ok(())
    }

    /// Stops listening to a card.
    pub fn unhear(&mut self, card: &Card) {
        let watches = self.watches.remove(&card.device.number).unwrap_or_default();
        for ((fd, _), watch) in signals(card).into_iter().zip(watches) {
            self.poller.unwatch(fd, watch);
        }
    }
}

/// The signals of a card, with their meaning.
fn signals(card: &Card) -> Vec<(BorrowedFd<'_>, Token)> {
    let windows = card.device.windows.iter().map(|window| {
        let token = Token::Engine { card: card.device.number, window: window.index };
        (window.engine.news(), token)
    });
    let wanted_back =
        card.device.backend.wanted_back().map(|fd| (fd, Token::WantedBack(card.device.number)));
    let given_up =
        card.device.backend.given_up().map(|fd| (fd, Token::GivenUp(card.device.number)));
    let arrivals = card.gsi.as_ref().map(|gsi| (gsi.news(), Token::CmArrival(card.device.number)));
    wanted_back.into_iter().chain(given_up).chain(windows).chain(arrivals).collect()
}
