//! XRC domains, their shared receive queues, and targets.

use std::sync::Arc;

use card_driver::engine::EngineLimits;
use fpga_regs::engine::admin::CreateQp;
use fpga_regs::engine::qp::{AttributeMask, Attributes, QpState, QpType};
use fpga_regs::engine::window::Capabilities;
use shim_abi::{FileId, Request, Response};

use super::queues::{destroyed, explain};
use super::srq::{Along, WantedSrq};
use super::{Answer, Progress, Session, check_unused, found, given_twice, not_at_once};
use crate::claims::{CardQp, Claimant, Peer};
use crate::error::Error;
use crate::objects::{XrcTarget, Xrcd};
use crate::undo::ClientObject;
use crate::xrc::SharedTarget;

/// A shared receive queue of an XRC domain that is wanted.
struct WantedXrcSrq {
    /// The domain.
    xrcd: u32,
    /// The completion queue at which the receives by it complete.
    cqn: u32,
    /// The queue itself.
    queue: WantedSrq,
}

/// An object as a card numbers it, and the card.
struct OnCard {
    card: u32,
    number: u32,
}

impl Session<'_> {
    /// Executes a request about XRC, but for [`Request::ModifyTarget`], which takes several turns.
    pub(super) fn serve_xrc(&mut self, request: Request) -> Result<Answer, Error> {
        match request {
            Request::OpenXrcd { context, file, creates, exclusive } => {
                self.open_xrcd(context, file, creates, exclusive)
            }
            Request::CloseXrcd { xrcd } => self.close_xrcd(xrcd),
            Request::CreateXrcSrq { xrcd, pdn, cqn, log2_entries, log2_stride, cookie } => {
                let queue = WantedSrq { pdn, log2_entries, log2_stride, cookie };
                self.create_xrc_srq(WantedXrcSrq { xrcd, cqn, queue })
            }
            Request::CreateTarget { xrcd, cookie } => self.create_target(xrcd, cookie),
            Request::OpenTarget { xrcd, qpn, cookie } => self.open_target(xrcd, qpn, cookie),
            Request::QueryTarget { target } => self.query_target(target),
            Request::DestroyTarget { target } => self.destroy_target(target),
            _ => Err(not_at_once()),
        }
    }

    fn xrc_limits(&mut self, card: u32) -> Result<EngineLimits, Error> {
        let limits = self.limits(card)?;
        if !limits.capabilities.contains(Capabilities::XRC) {
            return Err(Error::Unsupported(format!("balboa{card} has no XRC")));
        }
        Ok(limits)
    }

    fn open_xrcd(
        &mut self,
        context: u32,
        file: Option<FileId>,
        creates: bool,
        exclusive: bool,
    ) -> Result<Answer, Error> {
        let card = self.context(context)?.card;
        let limits = self.xrc_limits(card)?;
        self.make(&limits, Xrcd { context, card, xrcdn: None }, |session, xrcd| {
            xrcd.xrcdn = Some(session.card(card)?.xrc.open(file, creates, exclusive)?);
            let client = &mut *session.client;
            let number = client.numbers.next(u32::MAX, |n| client.owned.xrcds.contains_key(&n));
            Ok((number, Response::Xrcd { xrcd: number }.into()))
        })
    }

    fn close_xrcd(&mut self, xrcd: u32) -> Result<Answer, Error> {
        let owned = &self.client.owned;
        found(owned.xrcds.get(&xrcd), xrcd)?;
        let queues = owned.srqs.values().filter(|srq| srq.xrc.is_some_and(|(it, _)| it == xrcd));
        let users = [
            ("XRC targets", owned.targets.values().filter(|it| it.xrcd == xrcd).count()),
            ("shared receive queues", queues.count()),
        ];
        check_unused::<Xrcd>(xrcd, &users)?;
        self.client.destroy::<Xrcd>(self.cards, xrcd)?;
        Ok(Response::Done.into())
    }

    /// The domain on a card that the client has open by a number of its own.
    fn domain(&self, xrcd: u32) -> Result<OnCard, Error> {
        let Xrcd { card, xrcdn, .. } = *found(self.client.owned.xrcds.get(&xrcd), xrcd)?;
        let none = Error::NoSuch { object: Xrcd::NAME, number: xrcd.into() };
        Ok(OnCard { card, number: xrcdn.ok_or(none)? })
    }

    /// Makes a shared receive queue of an XRC domain, the receives by which complete at a completion queue.
    fn create_xrc_srq(
        &mut self,
        WantedXrcSrq { xrcd, cqn, queue }: WantedXrcSrq,
    ) -> Result<Answer, Error> {
        let pdn = queue.pdn;
        let OnCard { card, number: xrcdn } = self.domain(xrcd)?;
        let limits = self.xrc_limits(card)?;
        let context = found(self.client.owned.pds.get(&pdn), pdn)?.context;
        let is_here = self.context(context)?.card == card
            && found(self.client.owned.cqs.get(&cqn), cqn)?.card == card;
        if !is_here {
            return Err(Error::Invalid(format!(
                "protection domain {pdn:#x} or completion queue {cqn:#x} is another device's than {} {xrcd}",
                Xrcd::NAME
            )));
        }
        self.make_srq(context, &limits, queue, Some(Along { xrcd, xrcdn, cqn }))
    }

    fn create_target(&mut self, xrcd: u32, cookie: u64) -> Result<Answer, Error> {
        let OnCard { card, number: xrcdn } = self.domain(xrcd)?;
        self.make_target(xrcd, cookie, |session| {
            let page = session.client.place(card)?.page;
            let command = CreateQp { kind: QpType::XrcReceive, page, xrcdn, ..CreateQp::default() };
            let window = session.window(card)?;
            let (qpn, _) = window.engine.create_qp(&command)?;
            if window.users.listeners.has_qp(qpn) {
                return Err(given_twice(&window, XrcTarget::NAME, qpn));
            }
            let qp = CardQp { window: window.index, qpn };
            let maker = session.client.id;
            Ok(session.card(card)?.xrc.add(xrcdn, qp, maker))
        })
    }

    fn open_target(&mut self, xrcd: u32, qpn: u32, cookie: u64) -> Result<Answer, Error> {
        let OnCard { card, number: xrcdn } = self.domain(xrcd)?;
        self.make_target(xrcd, cookie, |session| session.card(card)?.xrc.share(xrcdn, qpn))
    }

    /// Makes a handle of a target, which `take` answers the number of.
    fn make_target(
        &mut self,
        xrcd: u32,
        cookie: u64,
        take: impl FnOnce(&mut Self) -> Result<u32, Error>,
    ) -> Result<Answer, Error> {
        let Xrcd { context, card, .. } = *found(self.client.owned.xrcds.get(&xrcd), xrcd)?;
        let limits = self.xrc_limits(card)?;
        let client = &mut *self.client;
        let number = client.numbers.next(u32::MAX, |n| client.owned.targets.contains_key(&n));
        self.make(
            &limits,
            XrcTarget { number, card, xrcd, target: None, qpn: None },
            |session, target| {
                let taken = take(session)?;
                target.target = Some(taken);
                let qp = session.shared(card, taken)?.qp;
                target.qpn = Some(qp.qpn);
                let (events, client) =
                    (Arc::clone(&session.context(context)?.events), session.client.id);
                let window = session.card(card)?.window(qp.window)?;
                window.users.listeners.add_target(qp.qpn, client, number, cookie, &events);
                Ok((number, Response::Target { target: number, qpn: qp.qpn }.into()))
            },
        )
    }

    fn shared(&mut self, card: u32, number: u32) -> Result<&mut SharedTarget, Error> {
        let gone = Error::NoSuch { object: XrcTarget::NAME, number: number.into() };
        self.card(card)?.xrc.target_mut(number).ok_or(gone)
    }

    /// The target on a card that the client has by a number of its own.
    fn target(&self, target: u32) -> Result<OnCard, Error> {
        let XrcTarget { card, target: shared, .. } =
            *found(self.client.owned.targets.get(&target), target)?;
        let none = Error::NoSuch { object: XrcTarget::NAME, number: target.into() };
        Ok(OnCard { card, number: shared.ok_or(none)? })
    }

    pub(super) fn modify_target(
        &mut self,
        target: u32,
        attributes: &[[u64; 8]; 2],
    ) -> Result<Progress, Error> {
        let attributes = Attributes::decode(attributes);
        let OnCard { card, number } = self.target(target)?;
        self.limits(card)?;
        let &mut SharedTarget { qp, peer: before, .. } = self.shared(card, number)?;
        let peer = Peer::after(before, &attributes);
        // Nobody else can have the connection that it speaks for already.
        if let Some(peer) = peer.filter(|peer| Some(*peer) != before) {
            if !self.check_unclaimed(card, peer)? {
                return Ok(Progress::More);
            }
        }
        let window = self.card(card)?.window(qp.window)?;
        let generation = match window.engine.modify_qp(qp.qpn, &attributes) {
            Ok(generation) => generation,
            Err(error) => {
                let kind = QpType::XrcReceive;
                return Err(explain(window, qp.qpn, kind, &attributes, error));
            }
        };
        let state = attributes.mask.contains(AttributeMask::STATE).then_some(attributes.state);
        if state == Some(QpState::Reset) {
            window.users.listeners.revive_qp(qp.qpn);
        }
        let shared = self.shared(card, number)?;
        shared.state = state.unwrap_or(shared.state);
        if matches!(shared.state, QpState::Reset | QpState::Err) {
            shared.peer = None;
        }
        shared.peer = peer.or(shared.peer);
        let now = shared.peer;
        if before != now {
            let claimant = Claimant { client: self.client.id, pid: self.client.process.pid };
            let claims = &mut self.card(card)?.claims;
            before.into_iter().for_each(|peer| claims.release(peer, qp));
            now.into_iter().for_each(|peer| claims.claim(peer, qp, claimant));
        }
        Ok(Response::QpModified { generation }.into())
    }

    fn query_target(&mut self, target: u32) -> Result<Answer, Error> {
        let OnCard { card, number } = self.target(target)?;
        self.limits(card)?;
        let qp = self.shared(card, number)?.qp;
        let attributes = self.card(card)?.window(qp.window)?.engine.query_qp(qp.qpn)?;
        self.shared(card, number)?.state = attributes.state;
        Ok(Response::QpAttributes { attributes: attributes.encode() }.into())
    }

    fn destroy_target(&mut self, target: u32) -> Result<Answer, Error> {
        self.client.destroy::<XrcTarget>(self.cards, target).map(destroyed)
    }
}
