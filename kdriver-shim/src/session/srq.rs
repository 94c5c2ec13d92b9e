//! Shared receive queues.

use std::sync::Arc;

use card_driver::engine::{Engine, EngineLimits};
use fpga_regs::engine::admin::{CreateRq, RqKind};
use fpga_regs::engine::window::Capabilities;
use shim_abi::Response;

use super::queues::{MAX_LOG2_STRIDE, destroyed, power_of_two};
use super::{Answer, Session, check_unused, found};
use crate::error::Error;
use crate::listeners::Listeners;
use crate::objects::{Qp, Srq};
use crate::undo::ClientObject;

/// The shared receive queue that a client asks for.
pub(super) struct WantedSrq {
    pub(super) pdn: u32,
    pub(super) log2_entries: u8,
    pub(super) log2_stride: u8,
    pub(super) cookie: u64,
}

/// The XRC domain that a shared receive queue is in, its number on the card, and where receives by it complete.
pub(super) struct Along {
    pub(super) xrcd: u32,
    pub(super) xrcdn: u32,
    pub(super) cqn: u32,
}

impl Session<'_> {
    pub(super) fn create_srq(&mut self, wanted: WantedSrq) -> Result<Answer, Error> {
        let context = found(self.client.owned.pds.get(&wanted.pdn), wanted.pdn)?.context;
        let card = self.context(context)?.card;
        let limits = self.limits(card)?;
        if !limits.capabilities.contains(Capabilities::SRQ) {
            let why = format!("balboa{card} has no shared receive queues");
            return Err(Error::Unsupported(why));
        }
        self.make_srq(context, &limits, wanted, None)
    }

    /// Makes a shared receive queue of a context, whose card has these limits.
    pub(super) fn make_srq(
        &mut self,
        context: u32,
        limits: &EngineLimits,
        WantedSrq { pdn, log2_entries, log2_stride, cookie }: WantedSrq,
        along: Option<Along>,
    ) -> Result<Answer, Error> {
        let card = self.context(context)?.card;
        let entries = power_of_two("receive queue entries", log2_entries, limits.log2_rq_entries)?;
        let stride = power_of_two("receive stride blocks", log2_stride, MAX_LOG2_STRIDE)?;
        let most = u32::try_from(entries).unwrap_or(u32::MAX);
        let xrc = along.as_ref().map(|along| (along.xrcd, along.cqn));
        let (kind, cqn, xrcdn) =
            along.map_or((RqKind::Shared, 0, 0), |along| (RqKind::Xrc, along.cqn, along.xrcdn));
        let srq = Srq { context, card, pdn, xrc, entries: most, ring: None, srqn: None };
        self.make(limits, srq, |session, srq| {
            let blocks = entries.saturating_mul(stride);
            let ring = session.place_ring(card, blocks, limits, &mut srq.ring)?;
            let place = session.client.place(card)?;
            let command = CreateRq {
                ring: place.ring_address(ring)?,
                log2_entries,
                page: place.page,
                log2_stride,
                kind,
                pdn,
                cqn,
                xrcdn,
            };
            let make = |engine: &mut dyn Engine| Ok((engine.create_rq(&command)?, ()));
            let destroy = |engine: &mut dyn Engine, srqn| engine.destroy_rq(srqn);
            let (srqn, ()) =
                session.draw::<Srq, _>(card, &mut srq.srqn, Listeners::has_srq, make, destroy)?;
            let events = Arc::clone(&session.context(context)?.events);
            session.window(card)?.users.listeners.add_srq(srqn, cookie, &events);
            Ok((srqn, Response::Srq { srqn, ring: ring.start }.into()))
        })
    }

    /// Sets a limit: once nothing is told any more of the one before, so that whether this one was told
    /// of is certain.
    pub(super) fn modify_srq(&mut self, srqn: u32, limit: u32) -> Result<Answer, Error> {
        let Srq { card, entries, .. } = *found(self.client.owned.srqs.get(&srqn), srqn)?;
        self.limits(card)?;
        if limit > entries {
            return Err(Error::Invalid(format!(
                "a limit of {limit} is more than the {entries} entries of {} {srqn:#x}",
                Srq::NAME
            )));
        }
        let window = self.window(card)?;
        window.engine.modify_rq(srqn, 0)?;
        window.users.listeners.set_srq_limit(srqn, limit);
        if limit > 0 {
            window.engine.modify_rq(srqn, limit)?;
        }
        Ok(Response::Done.into())
    }

    pub(super) fn query_srq(&mut self, srqn: u32) -> Result<Answer, Error> {
        let card = found(self.client.owned.srqs.get(&srqn), srqn)?.card;
        self.limits(card)?;
        let limit = self.window(card)?.users.listeners.srq_limit(srqn);
        Ok(Response::SrqLimit { limit }.into())
    }

    pub(super) fn destroy_srq(&mut self, srqn: u32) -> Result<Answer, Error> {
        let card = found(self.client.owned.srqs.get(&srqn), srqn)?.card;
        let uses = |qp: &&Qp| qp.card == card && qp.srqn == Some(srqn);
        let users = self.client.owned.qps.values().filter(uses).count();
        check_unused::<Srq>(srqn, &[("queue pairs", users)])?;
        self.client.destroy::<Srq>(self.cards, srqn).map(destroyed)
    }
}
