//! A tool's view and changes of a port's priorities, for all users of the card.

use roce::Trust;
use roce::qos::{Ets, Qos};
use shim_abi::Response;

use super::{Answer, Session};
use crate::error::Error;

/// The settings as a tool says them.
fn read(told: &shim_abi::Qos) -> Result<Qos, Error> {
    let trust =
        match &told.dscp {
            None => Trust::Pcp,
            Some(map) => Trust::Dscp(Box::new(map.as_slice().try_into().map_err(|_| {
                Error::Invalid(format!("a map of {} DSCPs; there are 64", map.len()))
            })?)),
        };
    let ets = Ets { strict: told.strict, weights: told.weights };
    Ok(Qos { trust, classes: told.classes, ets, pfc: told.pfc })
}

/// The settings as a tool hears them.
pub(crate) fn told(qos: &Qos) -> shim_abi::Qos {
    let dscp = match &qos.trust {
        Trust::Pcp => None,
        Trust::Dscp(map) => Some(map.to_vec()),
    };
    let Ets { strict, weights } = qos.ets;
    shim_abi::Qos { dscp, classes: qos.classes, strict, weights, pfc: qos.pfc }
}

impl Session<'_> {
    pub(super) fn query_qos(&mut self, number: u32) -> Result<Answer, Error> {
        let qos = self.card(number)?.device.backend.qos()?;
        Ok(Response::Qos(told(&qos)).into())
    }

    pub(super) fn set_qos(&mut self, number: u32, qos: &shim_abi::Qos) -> Result<Answer, Error> {
        let qos = read(qos)?;
        self.card(number)?.device.backend.set_qos(qos)?;
        log::info!(client = self.client.process.pid; "balboa{number}: the settings of priorities were changed");
        Ok(Response::Done.into())
    }
}
