//! A tool's services on a card, for all users of the card.

use std::sync::Arc;

use ::services::{Attached, Chain, Loaded, MAX_DSCP, PacketService, Selector, Settings, Side};
use card_driver::Error as DriverError;
use shim_abi::{Response, ServiceChain, ServiceSide, ServiceUsers};

use super::{Answer, Session};
use crate::clients::{Client, Stage};
use crate::error::Error;

/// Makes a chain of services that are compiled in or loaded. That takes time, which the card's thread would miss.
pub(super) fn made(wanted: ServiceChain, loaded: &Loaded) -> Result<Chain, Error> {
    let ServiceChain { services, settings, side } = wanted;
    let side = match side {
        ServiceSide::Both => Side::Both,
        ServiceSide::Requester => Side::Requester,
        ServiceSide::Responder => Side::Responder,
    };
    let chain = Settings::new(settings)
        .and_then(|settings| Chain::with(&services, settings, loaded))
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

/// A service of a user's module.
#[cfg(feature = "wasm")]
fn of_module(module: &[u8]) -> Result<Arc<dyn PacketService>, Error> {
    match services_wasm::Module::load(module) {
        Ok(service) => Ok(Arc::new(service)),
        Err(why) => Err(Error::Invalid(why.to_string())),
    }
}

#[cfg(not(feature = "wasm"))]
fn of_module(_: &[u8]) -> Result<Arc<dyn PacketService>, Error> {
    let why =
        "this balboad was built without the interpreter of modules; build it with the feature wasm";
    Err(Error::Unsupported(why.into()))
}

impl Session<'_> {
    /// Loads a user's service into a card that has a place for services.
    pub(super) fn load_service(&mut self, number: u32, module: &[u8]) -> Result<Answer, Error> {
        self.attached(number)?;
        let service = of_module(module)?;
        let name = service.about().name.to_string();
        let card = self.card(number)?;
        card.loaded.load(service).map_err(DriverError::Services)?;
        log::info!(client = self.client.process.pid; "balboa{number}: service {name} loaded");
        Ok(Response::ServiceLoaded { name }.into())
    }

    pub(super) fn unload_service(
        &mut self,
        number: u32,
        name: &str,
        now: bool,
    ) -> Result<Answer, Error> {
        let attached = self.attached(number)?;
        let having = attached.iter().filter(|it| it.chain.iter().any(|other| other == name));
        let having = having.count();
        let card = self.card(number)?;
        card.loaded.unload(name, having, now).map_err(DriverError::Services)?;
        log::info!(client = self.client.process.pid; "balboa{number}: service {name} unloaded");
        Ok(Response::Done.into())
    }

    /// The chains that are attached to a card.
    fn attached(&mut self, number: u32) -> Result<Vec<Attached>, Error> {
        let attached = self.card(number)?.device.backend.services();
        attached.ok_or_else(|| DriverError::NoServices.into())
    }

    pub(super) fn attach_services(
        &mut self,
        number: u32,
        to: ServiceUsers,
        chain: ServiceChain,
        replaces: bool,
    ) -> Result<Answer, Error> {
        let (to, names, side) = (selector(to)?, chain.services.join(", "), chain.side);
        if let Selector::Process(pid) = to {
            // No process has opened a card that is not there: the card is what is wrong then.
            self.card(number)?;
            self.check_process(number, pid)?;
        }
        let card = self.card(number)?;
        let chain = made(chain, &card.loaded)?;
        let backend = &card.device.backend;
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
