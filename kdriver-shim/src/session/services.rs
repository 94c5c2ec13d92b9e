//! A tool's services on a card, for all users of the card.

use ::services::Selector;
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
        services: Vec<String>,
    ) -> Result<Answer, Error> {
        let (to, names) = (selector(to), services.join(", "));
        self.card(number)?.device.backend.attach_services(to, services)?;
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
