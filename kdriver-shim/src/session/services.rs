//! A tool's services on a card, for all users of the card.

use ::services::{Chain, Selector, Settings};
use card_driver::Error as DriverError;
use shim_abi::{Response, ServiceUsers};

use super::{Answer, Session};
use crate::error::Error;

/// The queue pairs that a tool names.
fn selector(users: ServiceUsers) -> Selector {
    match users {
        ServiceUsers::Qp(qpn) => Selector::Qp(qpn),
        ServiceUsers::Peer(address) => Selector::Peer(address),
    }
}

impl Session<'_> {
    pub(super) fn attach_services(
        &mut self,
        number: u32,
        to: ServiceUsers,
        services: &[String],
        settings: Vec<(String, Vec<u8>)>,
    ) -> Result<Answer, Error> {
        let (to, names) = (selector(to), services.join(", "));
        let backend = &self.card(number)?.device.backend;
        // Made here, for the card's thread has packets to move.
        let chain = Settings::new(settings).and_then(|settings| Chain::named(services, settings));
        backend.attach_services(to, chain.map_err(DriverError::Services)?)?;
        log::info!(client = self.client.process.pid; "balboa{number}: {names} attached to {to}");
        Ok(Response::Done.into())
    }

    pub(super) fn detach_services(
        &mut self,
        number: u32,
        from: ServiceUsers,
        now: bool,
    ) -> Result<Answer, Error> {
        let from = selector(from);
        let keeping = self.card(number)?.device.backend.detach_services(from, now)?;
        log::info!(client = self.client.process.pid; "balboa{number}: services detached from {from}");
        let keeping = u32::try_from(keeping).unwrap_or(u32::MAX);
        Ok(Response::ServicesDetached { keeping }.into())
    }
}
