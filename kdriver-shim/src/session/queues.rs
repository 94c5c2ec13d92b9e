//! Completion queues and queue pairs.

use std::sync::Arc;

use card_driver::Error as DriverError;
use card_driver::engine::EngineLimits;
use card_driver::spans::Span;
use fpga_regs::engine::admin::{AdminStatus, CreateCq, CreateQp, CreateRq, RqKind};
use fpga_regs::engine::qp::{AttributeMask, Attributes, QpState, QpType};
use fpga_regs::engine::transition;
use hostmem::DmaMemory;
use shim_abi::Response;

use super::{Answer, Progress, Session, found};
use crate::cards::Window;
use crate::claims::{CardQp, Claimant, Peer};
use crate::clients::{Client, confirmed};
use crate::error::Error;
use crate::listeners::{Notifier, Told};
use crate::objects::{Cq, Qp};
use crate::quota::Resource;
use crate::rings::RingMemory;

/// How often a number that the client has on another card is drawn again.
const REDRAWS: usize = 8;

/// QPs of others that are asked whether they still speak for a connection, before others have a turn.
const ASKED: usize = 8;

/// The largest log2 of blocks from one receive entry to the next.
const MAX_LOG2_STRIDE: u8 = 3;

impl Session<'_> {
    pub(super) fn create_cq(
        &mut self,
        context: u32,
        log2_entries: u8,
        channel: Option<u32>,
        cookie: u64,
    ) -> Result<Answer, Error> {
        let card = self.context(context)?.card;
        let limits = self.limits(card)?;
        let mut records = None;
        if let Some(channel) = channel {
            let record =
                found(self.client.owned.channels.get(&channel), "completion channel", channel)?;
            if self.context(record.context)?.card != card {
                return Err(Error::Invalid(format!("channel {channel} is another device's")));
            }
            records = Some(Arc::clone(&record.records));
        }
        let entries =
            power_of_two("completion queue entries", log2_entries, limits.log2_cq_entries)?;
        let wanted = [(Resource::Cqs, 1), (Resource::CqEntries, entries)];
        self.take(&wanted, &limits)?;
        let made = self.place_ring(card, entries, &limits).and_then(|ring| {
            let cqn = self.engine_cq(card, ring, log2_entries);
            self.keep_ring(card, cqn.map(|cqn| (cqn, ring)), ring)
        });
        let (cqn, ring) = self.keep(made, &wanted)?;
        let start = ring.start;
        let memory = self.client.owned.rings.as_ref().map(|rings| Arc::clone(rings.mapping()));
        let notifier = records
            .zip(memory)
            .map(|(records, memory)| Notifier::new(cookie, records, memory, ring));
        let events = Arc::clone(&self.context(context)?.events);
        self.window(card)?.users.listeners.add_cq(cqn, cookie, &events, notifier);
        let cq = Cq { context, card, log2_entries, ring };
        self.client.owned.cqs.insert(cqn, cq);
        Ok(Response::Cq { cqn, ring: start }.into())
    }

    fn engine_cq(&mut self, card: u32, ring: Span, log2_entries: u8) -> Result<u32, Error> {
        let (page, iova) = self.place(card)?;
        let command = CreateCq { ring: iova.wrapping_add(ring.start), log2_entries, page };
        for _ in 0..REDRAWS {
            let window = self.window(card)?;
            let cqn = window.engine.create_cq(&command)?;
            if window.users.listeners.has_cq(cqn) {
                return Err(given_twice(&window, "completion queue", cqn));
            }
            if !self.client.owned.cqs.contains_key(&cqn) {
                return Ok(cqn);
            }
            self.window(card)?.engine.destroy_cq(cqn)?;
        }
        Err(no_number("completion queue"))
    }

    pub(super) fn destroy_cq(&mut self, cqn: u32) -> Result<Answer, Error> {
        let cq = found(self.client.owned.cqs.get(&cqn), "completion queue", cqn)?;
        let card = cq.card;
        let uses = |qp: &&Qp| qp.card == card && (qp.send_cqn == cqn || qp.receive_cqn == cqn);
        let users = self.client.owned.qps.values().filter(uses).count();
        if users > 0 {
            let users = format!("{users} queue pairs");
            return Err(Error::Busy { object: "completion queue", number: cqn, users });
        }
        let window = self.window(card)?;
        let confirmed = survive_death(window.engine.destroy_cq(cqn))?;
        let told = window.users.listeners.remove_cq(cqn);
        let Some(cq) = self.client.owned.cqs.remove(&cqn) else { return Ok(Response::Done.into()) };
        self.drop_ring(card, cq.ring, confirmed);
        let entries = 1u64.checked_shl(u32::from(cq.log2_entries)).unwrap_or(0);
        self.client.usage.give(Resource::Cqs, 1);
        self.client.usage.give(Resource::CqEntries, entries);
        self.count_quarantined(card, confirmed, 1);
        Ok(destroyed(told))
    }

    pub(super) fn create_qp(&mut self, wanted: &shim_abi::CreateQp) -> Result<Answer, Error> {
        let pd = found(self.client.owned.pds.get(&wanted.pdn), "protection domain", wanted.pdn)?;
        let context = pd.context;
        let card = self.context(context)?.card;
        let limits = self.limits(card)?;
        for cqn in [wanted.send_cqn, wanted.receive_cqn] {
            if found(self.client.owned.cqs.get(&cqn), "completion queue", cqn)?.card != card {
                return Err(Error::Invalid(format!(
                    "completion queue {cqn:#x} is another device's than the protection domain"
                )));
            }
        }
        let blocks =
            power_of_two("send ring blocks", wanted.log2_sq_blocks, limits.log2_sq_blocks)?;
        let entries =
            power_of_two("receive queue entries", wanted.log2_rq_entries, limits.log2_rq_entries)?;
        let stride = power_of_two("receive stride blocks", wanted.log2_rq_stride, MAX_LOG2_STRIDE)?;
        self.take(&[(Resource::Qps, 1)], &limits)?;
        let made = self.place_ring(card, blocks, &limits).and_then(|sq| {
            let rest =
                self.place_ring(card, entries.saturating_mul(stride), &limits).and_then(|rq| {
                    let made = self.engine_qp(card, wanted, sq, rq);
                    self.keep_ring(card, made.map(|made| (made, sq, rq)), rq)
                });
            self.keep_ring(card, rest, sq)
        });
        let ((rqn, qpn, generation), sq, rq) = self.keep(made, &[(Resource::Qps, 1)])?;
        let answer = Response::Qp { qpn, generation, rqn, sq_ring: sq.start, rq_ring: rq.start };
        let qp = Qp {
            context,
            card,
            pdn: wanted.pdn,
            kind: wanted.kind,
            send_cqn: wanted.send_cqn,
            receive_cqn: wanted.receive_cqn,
            rqn,
            sq,
            rq,
            state: QpState::Reset,
            peer: None,
        };
        self.client.owned.qps.insert(qpn, qp);
        let events = Arc::clone(&self.context(context)?.events);
        self.window(card)?.users.listeners.add_qp(qpn, wanted.cookie, &events);
        Ok(answer.into())
    }

    /// Makes receive queue and QP; returns RQN, QPN and generation.
    fn engine_qp(
        &mut self,
        card: u32,
        wanted: &shim_abi::CreateQp,
        sq: Span,
        rq: Span,
    ) -> Result<(u32, u32, u8), Error> {
        let (page, iova) = self.place(card)?;
        let rqn = self.window(card)?.engine.create_rq(&CreateRq {
            ring: iova.wrapping_add(rq.start),
            log2_entries: wanted.log2_rq_entries,
            page,
            log2_stride: wanted.log2_rq_stride,
            kind: RqKind::Private,
            pdn: wanted.pdn,
            ..CreateRq::default()
        })?;
        let command = CreateQp {
            sq_ring: iova.wrapping_add(sq.start),
            log2_sq_blocks: wanted.log2_sq_blocks,
            page,
            kind: QpType(wanted.kind),
            pdn: wanted.pdn,
            send_cqn: wanted.send_cqn,
            receive_cqn: wanted.receive_cqn,
            rqn,
            xrcdn: 0,
        };
        for _ in 0..REDRAWS {
            let window = self.window(card)?;
            match window.engine.create_qp(&command) {
                // Nothing is undone: it would be somebody else's QP.
                Ok((qpn, _)) if window.users.listeners.has_qp(qpn) => {
                    return Err(given_twice(&window, "queue pair", qpn));
                }
                Ok((qpn, _)) if self.client.owned.qps.contains_key(&qpn) => {
                    self.window(card)?.engine.destroy_qp(qpn)?;
                }
                Ok((qpn, generation)) => return Ok((rqn, qpn, generation)),
                Err(error) => {
                    self.undo_rq(card, rqn)?;
                    return Err(error.into());
                }
            }
        }
        self.undo_rq(card, rqn)?;
        Err(no_number("queue pair"))
    }

    fn undo_rq(&mut self, card: u32, rqn: u32) -> Result<(), Error> {
        let ended = self.window(card)?.engine.destroy_rq(rqn);
        Ok(ended.inspect_err(|_| self.count_quarantined(card, false, 1))?)
    }

    pub(super) fn modify_qp(
        &mut self,
        qpn: u32,
        attributes: &[[u64; 8]; 2],
    ) -> Result<Progress, Error> {
        let attributes = Attributes::decode(attributes);
        let qp = found(self.client.owned.qps.get(&qpn), "queue pair", qpn)?;
        let (card, kind) = (qp.card, QpType(qp.kind));
        self.limits(card)?;
        let peer = self.new_peer(qpn, &attributes);
        if let Some(peer) = peer {
            if !self.check_unclaimed(card, peer)? {
                return Ok(Progress::More);
            }
        }
        let window = self.window(card)?;
        let generation = match window.engine.modify_qp(qpn, &attributes) {
            Ok(generation) => generation,
            Err(error) => return Err(explain(window, (qpn, kind), &attributes, error)),
        };
        let state = attributes.mask.contains(AttributeMask::STATE).then_some(attributes.state);
        // The one way out of ERR; what it failed of before has been told.
        if state == Some(QpState::Reset) {
            window.users.listeners.revive_qp(qpn);
        }
        let Some(qp) = self.client.owned.qps.get_mut(&qpn) else {
            return Err(no_number("queue pair"));
        };
        let before = qp.peer;
        if let Some(state) = state {
            qp.state = state;
            if matches!(qp.state, QpState::Reset | QpState::Err) {
                qp.peer = None;
            }
        }
        qp.peer = peer.or(qp.peer);
        let now = qp.peer;
        if before != now || peer.is_some() {
            self.change_claim(card, qpn, before, now)?;
        }
        Ok(Response::QpModified { generation }.into())
    }

    /// Notes for which connection a QP speaks now.
    fn change_claim(
        &mut self,
        card: u32,
        qpn: u32,
        before: Option<Peer>,
        now: Option<Peer>,
    ) -> Result<(), Error> {
        let window = self.window(card)?.index;
        let claimant = Claimant { client: self.client.id, pid: self.client.process.pid };
        let (claims, qp) = (&mut self.card(card)?.claims, CardQp { window, qpn });
        before.into_iter().for_each(|peer| claims.release(peer, qp));
        now.into_iter().for_each(|peer| claims.claim(peer, qp, claimant));
        Ok(())
    }

    /// The far end that a change connects a QP to; `None` where it stays what it is.
    fn new_peer(&self, qpn: u32, attributes: &Attributes) -> Option<Peer> {
        let given = |mask| attributes.mask.contains(mask);
        let old = self.client.owned.qps.get(&qpn).and_then(|qp| qp.peer);
        let gid = given(AttributeMask::AV).then_some(attributes.dgid);
        let dest = given(AttributeMask::DEST_QPN).then_some(attributes.dest_qpn);
        if gid.is_none() && dest.is_none() {
            return None;
        }
        Some(Peer { gid: gid.or(old.map(|it| it.gid))?, qpn: dest.or(old.map(|it| it.qpn))? })
    }

    /// Refuses a connection that another process's QP has already; `false` where there are more such
    /// QPs to be asked.
    ///
    /// One that failed or was reset speaks no more, and is asked, because balboad is not told of every
    /// failure. It will not speak again before it is connected anew.
    fn check_unclaimed(&mut self, card: u32, peer: Peer) -> Result<bool, Error> {
        let pid = self.client.process.pid;
        for _ in 0..ASKED {
            let Some((qp, claimant)) = self.card(card)?.claims.of_another(peer, pid) else {
                return Ok(true);
            };
            let now = self.card(card)?.window(qp.window)?.engine.query_qp(qp.qpn);
            let silent = [QpState::Reset, QpState::Init, QpState::Err];
            if now.is_ok_and(|now| !silent.contains(&now.state)) {
                let owner =
                    self.others.get(&claimant.client).map_or_else(String::new, Client::label);
                let gid = card_driver::address::gid_text(peer.gid);
                return Err(Error::Claimed { gid, peer: peer.qpn, owner, qpn: qp.qpn });
            }
            self.card(card)?.claims.release(peer, qp);
        }
        Ok(false)
    }

    pub(super) fn query_qp(&mut self, qpn: u32) -> Result<Answer, Error> {
        let card = found(self.client.owned.qps.get(&qpn), "queue pair", qpn)?.card;
        self.limits(card)?;
        let attributes = self.window(card)?.engine.query_qp(qpn)?;
        if let Some(qp) = self.client.owned.qps.get_mut(&qpn) {
            qp.state = attributes.state;
        }
        Ok(Response::QpAttributes { attributes: attributes.encode() }.into())
    }

    pub(super) fn destroy_qp(&mut self, qpn: u32) -> Result<Answer, Error> {
        let qp = found(self.client.owned.qps.get(&qpn), "queue pair", qpn)?;
        let (card, rqn) = (qp.card, qp.rqn);
        let window = self.window(card)?;
        let qp_gone = survive_death(window.engine.destroy_qp(qpn))?;
        // The QP is gone: whatever comes of its receive queue, there is no way back.
        let rq_gone = confirmed(window.engine.destroy_rq(rqn))
            .inspect_err(|error| log::warn!("RQ {rqn:#x} is quarantined: {error}"))
            .is_ok();
        let told = window.users.listeners.remove_qp(qpn);
        let window = window.index;
        let Some(qp) = self.client.owned.qps.remove(&qpn) else { return Ok(Response::Done.into()) };
        if let (Some(peer), Ok(card)) = (qp.peer, self.card(card)) {
            card.claims.release(peer, CardQp { window, qpn });
        }
        self.drop_ring(card, qp.sq, qp_gone);
        self.drop_ring(card, qp.rq, rq_gone);
        self.client.usage.give(Resource::Qps, 1);
        self.count_quarantined(card, qp_gone, 1);
        self.count_quarantined(card, rq_gone, 1);
        Ok(destroyed(told))
    }

    /// The client's doorbell page on a card, and where the card sees its ring memory.
    fn place(&self, card: u32) -> Result<(u8, u64), Error> {
        let place = found(self.client.owned.places.get(&card), "open card", card)?;
        Ok((place.page, place.rings.start()))
    }

    fn take(&mut self, wanted: &[(Resource, u64)], limits: &EngineLimits) -> Result<(), Error> {
        for (taken, &(resource, amount)) in wanted.iter().enumerate() {
            if let Err(error) = self.client.usage.take(resource, amount, limits) {
                for &(resource, amount) in wanted.iter().take(taken) {
                    self.client.usage.give(resource, amount);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Passes a result on; what was taken is given back with an error.
    fn keep<T>(&mut self, made: Result<T, Error>, wanted: &[(Resource, u64)]) -> Result<T, Error> {
        if made.is_err() {
            for &(resource, amount) in wanted {
                self.client.usage.give(resource, amount);
            }
        }
        made
    }

    /// Passes a result on; with an error the ring goes.
    fn keep_ring<T>(&mut self, card: u32, made: Result<T, Error>, ring: Span) -> Result<T, Error> {
        if let Err(error) = &made {
            let clean = !matches!(error, Error::Driver(DriverError::Dead { .. }));
            self.drop_ring(card, ring, clean);
        }
        made
    }

    /// Takes zeroed space for a record and `blocks` blocks, and lets the card reach it.
    fn place_ring(&mut self, card: u32, blocks: u64, limits: &EngineLimits) -> Result<Span, Error> {
        let bytes = RingMemory::ring_bytes(blocks)
            .ok_or_else(|| Error::Invalid(format!("a ring of {blocks} blocks is too large")))?;
        self.client.usage.take(Resource::RingBytes, bytes, limits)?;
        let made = match &mut self.client.owned.rings {
            Some(rings) => rings.allocate(bytes).map(|ring| (ring, Arc::clone(rings.mapping()))),
            None => Err(Error::NoSuch { object: "ring memory", number: 0 }),
        };
        let (ring, mapping) = self.keep(made, &[(Resource::RingBytes, bytes)])?;
        let memory = DmaMemory::Shared { mapping, offset: ring.start };
        let mapped = self.place(card).and_then(|(_, iova)| {
            let iova = iova.wrapping_add(ring.start);
            Ok(self.card(card)?.device.backend.dma_map(iova, ring.length, memory)?)
        });
        self.keep_ring(card, mapped.map(|()| ring), ring)
    }

    /// Gives a ring's space back, unless the card may still use it.
    fn drop_ring(&mut self, card: u32, ring: Span, clean: bool) {
        let unmapped = self.place(card).and_then(|(_, iova)| {
            let iova = iova.wrapping_add(ring.start);
            if clean {
                self.card(card)?.device.backend.dma_unmap(iova, ring.length)?;
            }
            Ok(())
        });
        if let Err(error) = &unmapped {
            log::error!("ring of {}: {error}", self.client.label());
        }
        if !clean || unmapped.is_err() {
            log::warn!("{} bytes of rings are quarantined", ring.length);
            return;
        }
        self.client.usage.give(Resource::RingBytes, ring.length);
        if let Some(rings) = &mut self.client.owned.rings {
            rings.release(ring);
        }
    }

    fn count_quarantined(&mut self, card: u32, confirmed: bool, queues: u64) {
        if confirmed {
            return;
        }
        if let Ok(card) = self.card(card) {
            card.quarantine.queues = card.quarantine.queues.saturating_add(queues);
        }
    }
}

fn destroyed(told: Told) -> Answer {
    let Told { completion_events, async_events } = told;
    Response::Destroyed { completion_events, async_events }.into()
}

/// 2^`log2`, or why that is too large.
fn power_of_two(what: &str, log2: u8, limit: u8) -> Result<u64, Error> {
    // Ring memory has 2^24 blocks: no engine's claim makes a larger ring possible.
    let limit = limit.min(24);
    if log2 > limit {
        return Err(Error::Invalid(format!(
            "2^{log2} {what} are more than the limit of 2^{limit}"
        )));
    }
    Ok(1u64.checked_shl(u32::from(log2)).unwrap_or(u64::MAX))
}

/// Whether the engine confirmed a destroy; one that died is no reason to keep a program from its
/// own clean-up.
fn survive_death(result: Result<(), DriverError>) -> Result<bool, Error> {
    match confirmed(result) {
        Ok(()) => Ok(true),
        Err(error @ Error::Driver(DriverError::Dead { .. })) => {
            log::warn!("a queue is quarantined: {error}");
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// An engine that gives a number out that is in use cannot be believed.
fn given_twice(window: &Window<'_>, what: &str, number: u32) -> Error {
    let engine = window.engine.name();
    let why = format!("{engine} gave {what} {number:#x} out, which another client has");
    DriverError::Backend(why).into()
}

fn no_number(what: &'static str) -> Error {
    Error::Quota { resource: what, used: 0, asked: 1, limit: 0 }
}

/// Adds to a refused change what was missing or too much, as far as the QP's state tells.
fn explain(
    window: Window<'_>,
    (qpn, kind): (u32, QpType),
    wanted: &Attributes,
    error: DriverError,
) -> Error {
    let DriverError::Refused { engine, opcode, status, .. } = error else { return error.into() };
    let detail = match (status, window.engine.query_qp(qpn)) {
        (AdminStatus::Invalid | AdminStatus::BadState, Ok(now)) => {
            diagnose(kind, now.state, wanted)
        }
        _ => String::new(),
    };
    DriverError::Refused { engine, opcode, status, detail }.into()
}

fn diagnose(kind: QpType, from: QpState, wanted: &Attributes) -> String {
    match transition::check(kind, from, wanted) {
        Err(refused) => format!("; {refused}"),
        Ok(to) => {
            let names = wanted.mask.names();
            format!("; {from:?} to {to:?} with {names}: one of the values is out of range")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(state: QpState, mask: AttributeMask) -> Attributes {
        Attributes { state, mask, ..Attributes::default() }
    }

    #[test]
    fn a_refused_change_names_states_and_attributes() {
        let now = QpState::Init;
        let rtr = AttributeMask::STATE | AttributeMask::AV | AttributeMask::PATH_MTU;
        assert_eq!(
            diagnose(QpType::Rc, now, &attributes(QpState::Rtr, rtr)),
            "; Init to Rtr also needs RQ_PSN, MIN_RNR_TIMER, MAX_DEST_RD_ATOMIC, DEST_QPN"
        );
        assert_eq!(
            diagnose(QpType::Rc, now, &attributes(QpState::Rts, AttributeMask::STATE)),
            "; the QP is in Init, and no way leads from there to Rts"
        );
        let surplus = AttributeMask::STATE | AttributeMask::SQ_PSN;
        assert_eq!(
            diagnose(QpType::Rc, now, &attributes(QpState::Init, surplus)),
            "; Init to Init does not take SQ_PSN"
        );
        let wrong = AttributeMask::STATE | AttributeMask::CURRENT_STATE;
        assert!(
            diagnose(QpType::Rc, now, &attributes(QpState::Init, wrong))
                .contains("in Init, not in Reset")
        );
    }

    #[test]
    fn sizes_beyond_the_limit_name_it() {
        assert_eq!(power_of_two("send ring blocks", 10, 10).unwrap(), 1024);
        let refused = power_of_two("send ring blocks", 255, 15).unwrap_err();
        assert!(refused.to_string().contains("limit of 2^15"), "{refused}");
        assert!(power_of_two("entries", 40, 255).is_err());
    }
}
