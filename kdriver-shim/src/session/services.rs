//! A tool's services on a card, for all users of the card.

use ::services::{Chain, MAX_DSCP, Selector, Settings, Side};
use card_driver::Error as DriverError;
use shim_abi::{Response, ServiceChain, ServiceSide, ServiceUsers};

use super::{Answer, Session};
use crate::clients::{Client, Stage};
use crate::error::Error;

/// Makes a chain of services. That takes time, which the card's thread would miss.
pub(super) fn made(wanted: ServiceChain) -> Result<Chain, Error> {
    let ServiceChain { services, settings, side } = wanted;
    let side = match side {
        ServiceSide::Both => Side::Both,
        ServiceSide::Requester => Side::Requester,
        ServiceSide::Responder => Side::Responder,
    };
    let chain = Settings::new(settings)
        .and_then(|settings| Chain::named(&services, settings))
        .and_then(|chain| chain.at(side));
    Ok(chain.map_err(DriverError::Services)?)
}

/// Refuses queue pairs that there cannot be.
fn selector(users: ServiceUsers) -> Result<Selector, Error> {
    Ok(match users {
        ServiceUsers::Qp(qpn) => Selector::Qp(qpn),
        ServiceUsers::Process(pid) => Selector::Process(pid),
        ServiceUsers::Peer(address) => Selector::Peer(address),
        ServiceUsers::Dscp(dscp) if dscp > MAX_DSCP => {
            return Err(Error::Invalid(format!(
                "DSCP {dscp}: write a number from 0 to {MAX_DSCP}"
            )));
        }
        ServiceUsers::Dscp(dscp) => Selector::Dscp(dscp),
    })
}

impl Session<'_> {
    pub(super) fn attach_services(
        &mut self,
        number: u32,
        to: ServiceUsers,
        chain: ServiceChain,
        replaces: bool,
    ) -> Result<Answer, Error> {
        let (to, names, side) = (selector(to)?, chain.services.join(", "), chain.side);
        self.card(number)?;
        if let Selector::Process(pid) = to {
            self.check_process(number, pid)?;
        }
        let chain = made(chain)?;
        let backend = &self.card(number)?.device.backend;
        match replaces {
            true => backend.replace_services(to, chain)?,
            false => backend.attach_services(to, chain)?,
        }
        log::info!(client = self.client.process.pid; "balboa{number}: {names} attached to {to} ({side:?})");
        Ok(Response::Done.into())
    }

    /// Refuses a process that has not opened the card: its number, which the kernel told of its socket, may be another's
    /// by the time when it has.
    fn check_process(&self, number: u32, pid: u32) -> Result<(), Error> {
        let is_it = |client: &&Client| {
            client.stage == Stage::Provider
                && u32::try_from(client.process.pid) == Ok(pid)
                && client.owned.places.contains_key(&number)
        };
        match self.others.values().any(|client| is_it(&client)) {
            true => Ok(()),
            false => Err(Error::Invalid(format!(
                "process {pid} has not opened balboa{number}; `balboa status` lists those that have"
            ))),
        }
    }

    pub(super) fn detach_services(
        &mut self,
        number: u32,
        from: ServiceUsers,
        now: bool,
    ) -> Result<Answer, Error> {
        let from = selector(from)?;
        let keeping = self.card(number)?.device.backend.detach_services(from, now)?;
        log::info!(client = self.client.process.pid; "balboa{number}: services detached from {from}");
        let keeping = u32::try_from(keeping).unwrap_or(u32::MAX);
        Ok(Response::ServicesDetached { keeping }.into())
    }
}
