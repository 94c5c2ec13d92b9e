//! What a tool changes of a card's port, for everybody who uses the card.

use shim_abi::Response;

use super::{Answer, Session};
use crate::error::Error;

impl Session<'_> {
    pub(super) fn set_link(&mut self, number: u32, up: bool) -> Result<Answer, Error> {
        let card = self.card(number)?;
        card.device.set_link(up)?;
        let state = if up { "on its cable" } else { "off its cable: down" };
        log::info!(client = self.client.process.pid; "balboa{number}: the port was put {state}");
        Ok(Response::Done.into())
    }
}
