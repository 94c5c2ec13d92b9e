//! Connection management.

use shim_abi::{CmReader, Response};

use super::{Answer, Session};
use crate::cm::network::CardsOfServer;
use crate::cm::{Asker, Said};
use crate::error::Error;

impl Session<'_> {
    fn asker(&self) -> Asker {
        Asker { client: self.client.id, uid: self.client.process.uid }
    }

    pub(super) fn open_cm_channel(&mut self) -> Result<Answer, Error> {
        if self.cards.iter().all(|card| card.gsi.is_none()) {
            let why = "no card has a queue pair 1 to give, by which connections are managed";
            return Err(Error::Connection { errno: nix::errno::Errno::ENODEV, why: why.into() });
        }
        let asker = self.asker();
        let (channel, socket) = self.connections.open(self.poller, asker)?;
        Ok(Answer { response: Response::CmChannel { channel }, fds: vec![socket] })
    }

    pub(super) fn cm_command(
        &mut self,
        channel: CmReader,
        command: &[u8],
        from: Option<CmReader>,
    ) -> Result<Answer, Error> {
        let asker = self.asker();
        if let Some(rings) = &self.client.owned.rings {
            self.connections.tell_ahead(asker.client, rings.mapping());
        }
        let (client, others) = (&*self.client, self.others);
        let has_qp = |owner, card, qpn| {
            let owner = if owner == client.id { Some(client) } else { others.get(&owner) };
            owner.is_some_and(|owner| owner.has_qp(card, qpn))
        };
        let mut network = CardsOfServer(self.cards);
        let Said { output, void } =
            self.connections.command(&mut network, &has_qp, asker, channel, command, from)?;
        Ok(Response::CmAnswer { output, void }.into())
    }
}
