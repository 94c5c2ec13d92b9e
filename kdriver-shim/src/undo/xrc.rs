//! Undoing of handles of XRC domains and targets: the last one ends the object that others have shared.

use std::collections::BTreeMap;

use super::{ClientObject, end, queues};
use crate::cards::{Card, find};
use crate::clients::{Client, Owned};
use crate::error::Error;
use crate::listeners::SentRecords;
use crate::objects::{XrcTarget, Xrcd};
use crate::quota::Resource;

impl ClientObject for Xrcd {
    const NAME: &'static str = "XRC domain";
    const COST: usize = 1;

    fn table(owned: &mut Owned) -> &mut BTreeMap<u32, Self> {
        &mut owned.xrcds
    }

    fn card(&self) -> Option<u32> {
        Some(self.card)
    }

    fn takes(&self) -> impl IntoIterator<Item = (Resource, u64)> {
        [(Resource::Xrcds, 1)]
    }

    fn stop(&self, _: &Client, _: &mut [Card]) -> Result<(), Error> {
        Ok(())
    }

    fn give_back(
        &mut self,
        _: &mut Client,
        cards: &mut [Card],
        _: Result<(), Error>,
    ) -> SentRecords {
        if let (Some(xrcdn), Ok(card)) = (self.xrcdn, find(cards, self.card)) {
            card.xrc.close(xrcdn);
        }
        SentRecords::default()
    }
}

impl ClientObject for XrcTarget {
    const NAME: &'static str = "XRC target";
    const COST: usize = 1;

    fn table(owned: &mut Owned) -> &mut BTreeMap<u32, Self> {
        &mut owned.targets
    }

    fn card(&self) -> Option<u32> {
        Some(self.card)
    }

    fn takes(&self) -> impl IntoIterator<Item = (Resource, u64)> {
        [(Resource::Qps, 1)]
    }

    /// With the last handle the target ends; it may be another window's than the client's.
    fn stop(&self, _: &Client, cards: &mut [Card]) -> Result<(), Error> {
        let card = find(cards, self.card)?;
        let last = self.target.and_then(|number| card.xrc.last(number));
        let Some(qp) = last.map(|target| target.qp) else { return Ok(()) };
        end(card.window(qp.window)?, Some(qp.qpn), |engine, qpn| engine.destroy_qp(qpn))
    }

    fn give_back(
        &mut self,
        client: &mut Client,
        cards: &mut [Card],
        stopped: Result<(), Error>,
    ) -> SentRecords {
        let (Some(number), Ok(card)) = (self.target, find(cards, self.card)) else {
            return SentRecords::default();
        };
        let qp = card.xrc.target(number).map(|target| target.qp);
        let window = qp.and_then(|qp| card.window(qp.window).ok());
        let told = window.zip(qp).map_or(SentRecords::default(), |(window, qp)| {
            window.users.listeners.remove_target(qp.qpn, client.id, self.number)
        });
        let Some(ended) = card.xrc.leave(number) else { return told };
        if let Some(peer) = ended.peer {
            card.claims.release(peer, ended.qp);
        }
        if let Err(error) = stopped {
            // It has neither memory nor addresses, only its place in the engine's table.
            log::warn!("{} {:#x} is quarantined: {error}", Self::NAME, ended.qp.qpn);
            let count = queues(&mut card.quarantine);
            *count = count.saturating_add(1);
        }
        told
    }
}
