//! The connection manager's part of the control thread: arrivals, timers, ends.

use shim_abi::{Reply, Request, Response};

use super::{Server, reply_to};
use crate::clients::{Client, PutOff, Stage};
use crate::cm::network::CardsOfServer;
use crate::error::Error;
use crate::session::Progress;

/// Datagrams that are taken from a card before others have their turn.
const TAKEN: usize = 64;

impl Server {
    /// Takes note of the cards' ports.
    pub(super) fn tell_ports(&mut self) {
        self.parts().around.tell_ports();
    }

    /// Takes some arrivals of a card; the rest is told of again.
    pub(super) fn take_datagrams(&mut self, number: u32) {
        let card = self.cards.iter().find(|card| card.device.number == number);
        let Some(gsi) = card.and_then(|card| card.gsi.clone()) else { return };
        for _ in 0..TAKEN {
            let Some(arrival) = gsi.take() else { return };
            self.connections.arrived(&mut CardsOfServer(&mut self.cards), number, &arrival);
        }
    }

    /// Takes arrivals of all cards: a datagram between two software cards is there at once, and is not to be waited
    /// for.
    pub(super) fn look_for_datagrams(&mut self) {
        let with_gsi = self.cards.iter().filter(|card| card.gsi.is_some());
        let numbers: Vec<_> = with_gsi.map(|card| card.device.number).collect();
        numbers.into_iter().for_each(|number| self.take_datagrams(number));
    }

    /// Asks, for a tool, for the owner of an address.
    pub(super) fn ping(
        &mut self,
        client: &Client,
        card: Option<u32>,
        address: [u8; 16],
    ) -> Result<Progress, Error> {
        if client.stage != Stage::Tool {
            return Err(Error::Forbidden("a verbs program asks nobody; `balboa ping` does".into()));
        }
        self.connections.ping(&mut CardsOfServer(&mut self.cards), client.id, card, address)?;
        Ok(Progress::Waits)
    }

    /// Answers the tools whose questions are settled.
    fn answer_pings(&mut self) {
        while let Some((id, pinged)) = self.connections.pinged() {
            self.with_client(id, |server, client| {
                let asked = |it: &mut PutOff| matches!(it.request, Request::Ping { .. });
                if client.put_off.take_if(asked).is_none() {
                    return Ok(());
                }
                let reply: Reply = Ok(Response::Pinged(pinged));
                reply_to(client, &shim_abi::encode(&reply), &[])?;
                client.heed(&server.poller, true);
                Ok(())
            });
        }
    }

    /// Handles timers of connections, and ends a part of those whose channel or card has gone.
    pub(super) fn tend_connections(&mut self) {
        let mut network = CardsOfServer(&mut self.cards);
        self.connections.tick(&mut network);
        self.answer_pings();
        let mut network = CardsOfServer(&mut self.cards);
        if self.connections.is_ending() {
            self.connections.go_on_ending(&mut network);
            if !self.connections.is_ending() {
                // A card that was reset has waited for that.
                self.tend_cards();
            }
        }
        self.freed.linger(self.connections.census().lingering);
    }
}
