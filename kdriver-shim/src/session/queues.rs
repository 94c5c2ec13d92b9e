//! Completion queues and queue pairs.

use std::collections::BTreeSet;
use std::net::Ipv6Addr;
use std::sync::Arc;

use card_driver::Error as DriverError;
use card_driver::engine::{Engine, EngineLimits};
use card_driver::spans::Span;
use fpga_regs::engine::admin::{
    AdminStatus, CreateCq, CreateQp, CreateRq, ModerateCq, ResizeCq, RqKind,
};
use fpga_regs::engine::qp::{AttributeMask, Attributes, QpState, QpType};
use fpga_regs::engine::transition;
use fpga_regs::engine::window::Capabilities;
use hostmem::DmaMemory;
use shim_abi::{ReceiveRing, Response};

use super::{Answer, Progress, Session, check_unused, found, no_number, services};
use crate::cards::Window;
use crate::claims::{CardQp, Claimant, Peer};
use crate::clients::Client;
use crate::error::Error;
use crate::listeners::{Listeners, Notifier, SentRecords};
use crate::objects::{Cq, Qp, Srq};
use crate::quota::Resource;
use crate::rings::RingMemory;
use crate::status::mtu_bytes;
use crate::undo::ClientObject;

/// QPs of others that are asked whether they still speak for a connection, before others have a turn.
const ASKED: usize = 8;

/// Q_Keys with this bit are those of management (InfiniBand specification, 3.5.3): in a work request it
/// asks for the queue pair's own.
const PRIVILEGED_QKEY: u32 = 1 << 31;

/// The largest log2 of blocks from one receive entry to the next.
pub(super) const MAX_LOG2_STRIDE: u8 = 3;

/// A completion queue as a client asks for it.
pub(super) struct WantedCq {
    pub(super) context: u32,
    pub(super) log2_entries: u8,
    /// Channel for its events.
    pub(super) channel: Option<u32>,
    /// Completion vector.
    pub(super) vector: u8,
    /// The cookie of its records.
    pub(super) cookie: u64,
}

impl Session<'_> {
    pub(super) fn create_cq(
        &mut self,
        WantedCq { context, log2_entries, channel, vector, cookie }: WantedCq,
    ) -> Result<Answer, Error> {
        let card = self.context(context)?.card;
        let limits = self.limits(card)?;
        let mut records = None;
        if let Some(channel) = channel {
            let record = found(self.client.owned.channels.get(&channel), channel)?;
            if self.context(record.context)?.card != card {
                return Err(Error::Invalid(format!("channel {channel} is another device's")));
            }
            records = Some(Arc::clone(&record.records));
        }
        let entries =
            power_of_two("completion queue entries", log2_entries, limits.log2_cq_entries)?;
        if vector >= limits.event_rings {
            let why =
                format!("completion vector {vector} is none of {} vectors", limits.event_rings);
            return Err(Error::Invalid(why));
        }
        let cq = Cq { context, card, log2_entries, ring: None, former: None, cqn: None };
        self.make(&limits, cq, |session, cq| {
            let ring = session.place_ring(card, entries, &limits, &mut cq.ring)?;
            let cqn = session.engine_cq(cq, ring, vector)?;
            let memory = session.client.owned.rings.as_ref();
            let memory = memory.map(|rings| Arc::clone(rings.mapping()));
            let notifier = records
                .zip(memory)
                .map(|(records, memory)| Notifier::new(cookie, records, vector, memory, ring));
            let events = Arc::clone(&session.context(context)?.events);
            session.window(card)?.users.listeners.add_cq(cqn, cookie, &events, notifier);
            Ok((cqn, Response::Cq { cqn, ring: ring.start }.into()))
        })
    }

    /// Makes a completion queue on its ring, and returns its number.
    fn engine_cq(&mut self, cq: &mut Cq, ring: Span, vector: u8) -> Result<u32, Error> {
        let place = self.client.place(cq.card)?;
        let command = CreateCq {
            ring: place.ring_address(ring)?,
            log2_entries: cq.log2_entries,
            page: place.page,
            vector,
        };
        let make = |engine: &mut dyn Engine| Ok((engine.create_cq(&command)?, ()));
        let destroy = |engine: &mut dyn Engine, cqn| engine.destroy_cq(cqn);
        let (cqn, ()) =
            self.draw::<Cq, _>(cq.card, &mut cq.cqn, Listeners::has_cq, make, destroy)?;
        Ok(cqn)
    }

    /// Moves a completion queue to a new ring; its old one stays until the client gives it back.
    pub(super) fn resize_cq(&mut self, cqn: u32, log2_entries: u8) -> Result<Answer, Error> {
        let cq = found(self.client.owned.cqs.get(&cqn), cqn)?;
        let &Cq { context, card, ring: old, former, .. } = cq;
        let before = cq.entries();
        let limits = self.limits(card)?;
        if former.is_some() {
            let why = format!("the former ring of completion queue {cqn:#x} was not given back");
            return Err(Error::Invalid(why));
        }
        let entries =
            power_of_two("completion queue entries", log2_entries, limits.log2_cq_entries)?;
        self.client.usage.take(Some(card), Resource::CqEntries, entries, &limits)?;
        // The parts of the queue; undone as a queue that was never made.
        let mut new = Cq { context, card, log2_entries, ring: None, former: None, cqn: None };
        match self.engine_resize(&mut new, cqn, &limits) {
            Ok((ring, end)) => {
                self.client.usage.give(Some(card), Resource::CqEntries, before);
                if let Some(cq) = self.client.owned.cqs.get_mut(&cqn) {
                    *cq = Cq { former: old, cqn: Some(cqn), ..new };
                }
                self.window(card)?.users.listeners.move_cq(cqn, ring, old);
                Ok(Response::CqResized { ring: ring.start, end }.into())
            }
            Err(error) => {
                let stopped = new.stop(self.client, self.cards);
                new.give_back(self.client, self.cards, stopped);
                self.client.usage.give(Some(card), Resource::CqEntries, entries);
                Err(error)
            }
        }
    }

    /// Places the ring of a queue as it is to be, and moves it there; answers with the ring, and with the
    /// index behind the last entry of the old one.
    fn engine_resize(
        &mut self,
        new: &mut Cq,
        cqn: u32,
        limits: &EngineLimits,
    ) -> Result<(Span, u32), Error> {
        let Cq { card, log2_entries, .. } = *new;
        let span = self.place_ring(card, new.entries(), limits, &mut new.ring)?;
        let ring = self.client.place(card)?.ring_address(span)?;
        let command = ResizeCq { ring, log2_entries, cqn };
        Ok((span, self.window(card)?.engine.resize_cq(&command)?))
    }

    pub(super) fn moderate_cq(
        &mut self,
        cqn: u32,
        count: u16,
        period: u16,
    ) -> Result<Answer, Error> {
        let card = found(self.client.owned.cqs.get(&cqn), cqn)?.card;
        self.limits(card)?;
        self.window(card)?.engine.moderate_cq(&ModerateCq { cqn, count, period })?;
        Ok(Response::Done.into())
    }

    pub(super) fn release_cq_ring(&mut self, cqn: u32) -> Result<Answer, Error> {
        let none = Error::NoSuch { object: Cq::NAME, number: u64::from(cqn) };
        let cq = self.client.owned.cqs.get_mut(&cqn).ok_or(none)?;
        let (card, ring, former) = (cq.card, cq.ring, cq.former.take());
        if let Some(ring) = ring {
            self.window(card)?.users.listeners.move_cq(cqn, ring, None);
        }
        self.client.give_ring(self.cards, card, former, true);
        Ok(Response::Done.into())
    }

    pub(super) fn destroy_cq(&mut self, cqn: u32) -> Result<Answer, Error> {
        let card = found(self.client.owned.cqs.get(&cqn), cqn)?.card;
        let uses = |qp: &&Qp| qp.card == card && (qp.send_cqn == cqn || qp.receive_cqn == cqn);
        let users = self.client.owned.qps.values().filter(uses).count();
        let takes = |srq: &&Srq| srq.card == card && srq.xrc.is_some_and(|(_, it)| it == cqn);
        let queues = self.client.owned.srqs.values().filter(takes).count();
        let users = [("queue pairs", users), ("shared receive queues", queues)];
        check_unused::<Cq>(cqn, &users)?;
        self.client.destroy::<Cq>(self.cards, cqn).map(destroyed)
    }

    pub(super) fn create_qp(&mut self, wanted: &shim_abi::CreateQp) -> Result<Answer, Error> {
        let pd = found(self.client.owned.pds.get(&wanted.pdn), wanted.pdn)?;
        let context = pd.context;
        let card = self.context(context)?.card;
        let limits = self.limits(card)?;
        let kind = QpType(wanted.kind);
        if kind == QpType::XrcReceive {
            return Err(Error::Invalid("an XRC target is made in an XRC domain".into()));
        }
        if kind == QpType::Gsi {
            return Err(Error::Invalid("queue pair 1 is the driver's, and no program's".into()));
        }
        // A queue pair that only sends does not use the rest.
        let (receive_cqn, srqn) = match kind {
            QpType::XrcSend => (wanted.send_cqn, None),
            _ => (wanted.receive_cqn, wanted.srqn),
        };
        for cqn in [wanted.send_cqn, receive_cqn] {
            if found(self.client.owned.cqs.get(&cqn), cqn)?.card != card {
                return Err(Error::Invalid(format!(
                    "completion queue {cqn:#x} is another device's than the protection domain"
                )));
            }
        }
        if let Some(srqn) = srqn {
            let srq = found(self.client.owned.srqs.get(&srqn), srqn)?;
            if srq.xrc.is_some() {
                let why = format!("{} {srqn:#x} is of an XRC domain, and no QP's own", Srq::NAME);
                return Err(Error::Invalid(why));
            }
            if srq.card != card {
                return Err(Error::Invalid(format!(
                    "{} {srqn:#x} is another device's than the protection domain",
                    Srq::NAME
                )));
            }
        }
        let blocks =
            power_of_two("send ring blocks", wanted.log2_sq_blocks, limits.log2_sq_blocks)?;
        let loaded = &self.card(card)?.loaded;
        let chain = wanted.chain.clone().map(|chain| services::made(chain, loaded));
        let mut chain = chain.transpose()?;
        let qp = Qp {
            context,
            card,
            has_services: chain.is_some(),
            pdn: wanted.pdn,
            kind: wanted.kind,
            send_cqn: wanted.send_cqn,
            receive_cqn,
            sq: None,
            srqn,
            rq: None,
            rqn: None,
            qpn: None,
            groups: BTreeSet::new(),
            state: QpState::Reset,
            peer: None,
        };
        self.make(&limits, qp, |session, qp| {
            let sq = session.place_ring(card, blocks, &limits, &mut qp.sq)?;
            let receive = match qp.has_own_rq() {
                false => None,
                true => Some(session.receive_ring(qp, wanted, &limits)?),
            };
            let rqn = srqn.or(receive.map(|it| it.rqn)).unwrap_or_default();
            let (qpn, generation) = session.engine_qp(qp, wanted, sq, rqn)?;
            let events = Arc::clone(&session.context(context)?.events);
            session.window(card)?.users.listeners.add_qp(qpn, wanted.cookie, &events);
            let process = u32::try_from(session.client.process.pid).unwrap_or(0);
            let backend = &session.card(card)?.device.backend;
            backend.own_qp(qpn, process);
            if let Some(chain) = chain.take() {
                backend.ask_for_services(qpn, chain)?;
            }
            let sq_ring = sq.start;
            Ok((qpn, Response::Qp { qpn, generation, sq_ring, receive }.into()))
        })
    }

    /// Makes a QP's own receive queue with its ring.
    fn receive_ring(
        &mut self,
        qp: &mut Qp,
        wanted: &shim_abi::CreateQp,
        limits: &EngineLimits,
    ) -> Result<ReceiveRing, Error> {
        let entries =
            power_of_two("receive queue entries", wanted.log2_rq_entries, limits.log2_rq_entries)?;
        let stride = power_of_two("receive stride blocks", wanted.log2_rq_stride, MAX_LOG2_STRIDE)?;
        let rq = self.place_ring(qp.card, entries.saturating_mul(stride), limits, &mut qp.rq)?;
        let place = self.client.place(qp.card)?;
        let command = CreateRq {
            ring: place.ring_address(rq)?,
            log2_entries: wanted.log2_rq_entries,
            page: place.page,
            log2_stride: wanted.log2_rq_stride,
            kind: RqKind::Private,
            pdn: wanted.pdn,
            ..CreateRq::default()
        };
        let rqn = self.window(qp.card)?.engine.create_rq(&command)?;
        qp.rqn = Some(rqn);
        Ok(ReceiveRing { rqn, ring: rq.start })
    }

    /// Makes a QP on its send ring and a receive queue, and returns its number and generation.
    fn engine_qp(
        &mut self,
        qp: &mut Qp,
        wanted: &shim_abi::CreateQp,
        sq: Span,
        rqn: u32,
    ) -> Result<(u32, u8), Error> {
        let place = self.client.place(qp.card)?;
        let command = CreateQp {
            sq_ring: place.ring_address(sq)?,
            log2_sq_blocks: wanted.log2_sq_blocks,
            page: place.page,
            kind: QpType(wanted.kind),
            pdn: wanted.pdn,
            send_cqn: wanted.send_cqn,
            receive_cqn: qp.receive_cqn,
            rqn,
            xrcdn: 0,
        };
        let make = |engine: &mut dyn Engine| engine.create_qp(&command);
        let destroy = |engine: &mut dyn Engine, qpn| engine.destroy_qp(qpn);
        self.draw::<Qp, _>(qp.card, &mut qp.qpn, Listeners::has_qp, make, destroy)
    }

    /// Refuses a path MTU that the machine's route to the peer does not carry: packets would be lost in silence.
    fn check_route(&mut self, card: u32, wanted: &Attributes) -> Result<(), Error> {
        if !wanted.mask.contains(AttributeMask::PATH_MTU | AttributeMask::AV) {
            return Ok(());
        }
        let most = self.card(card)?.mtu_to(wanted.sgid_index, wanted.dgid);
        let Some(most) = most.filter(|most| wanted.path_mtu > *most) else { return Ok(()) };
        let [wanted_bytes, most] = [wanted.path_mtu, most].map(mtu_bytes);
        let why = format!(
            "balboa{card}: a path MTU of {wanted_bytes} is more than the machine's route to {} carries, which is {most}; use that",
            Ipv6Addr::from(wanted.dgid).to_canonical()
        );
        Err(Error::Invalid(why))
    }

    /// Makes the changes of a QP, one behind the other. A request that is put off begins anew with the first.
    pub(super) fn modify_qp(
        &mut self,
        qpn: u32,
        first: Option<&[[u64; 8]; 2]>,
        attributes: &[[u64; 8]; 2],
    ) -> Result<Progress, Error> {
        if let Some(first) = first {
            match self.change_qp(qpn, first)? {
                Progress::Done(_) => {}
                put_off => return Ok(put_off),
            }
        }
        self.change_qp(qpn, attributes)
    }

    fn change_qp(&mut self, qpn: u32, attributes: &[[u64; 8]; 2]) -> Result<Progress, Error> {
        let attributes = Attributes::decode(attributes);
        let qp = found(self.client.owned.qps.get(&qpn), qpn)?;
        let (card, kind, before) = (qp.card, QpType(qp.kind), qp.peer);
        self.limits(card)?;
        // The kernel gives those to privileged programs only, and balboad does not know privileges.
        let qkey = attributes.mask.contains(AttributeMask::QKEY).then_some(attributes.qkey);
        if let Some(qkey) = qkey.filter(|qkey| qkey & PRIVILEGED_QKEY != 0) {
            let why = format!("Q_Key {qkey:#x} is a privileged one: its highest bit is set");
            return Err(Error::Forbidden(why));
        }
        self.check_route(card, &attributes)?;
        let peer = Peer::after(before, &attributes);
        if let Some(peer) = peer {
            if !self.check_unclaimed(card, peer)? {
                return Ok(Progress::More);
            }
        }
        let window = self.window(card)?;
        let generation = match window.engine.modify_qp(qpn, &attributes) {
            Ok(generation) => generation,
            Err(error) => return Err(explain(window, qpn, kind, &attributes, error)),
        };
        let state = attributes.mask.contains(AttributeMask::STATE).then_some(attributes.state);
        // The one way out of ERR; its failure before has been reported.
        if state == Some(QpState::Reset) {
            window.users.listeners.revive_qp(qpn);
        }
        let Some(qp) = self.client.owned.qps.get_mut(&qpn) else {
            return Err(no_number::<Qp>());
        };
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

    /// Refuses a connection that another process's QP has already; `false` where there are more such
    /// QPs to be asked.
    ///
    /// A QP that failed or was reset is silent, and is asked, because balboad is not told of every failure.
    /// It stays silent until it is connected anew.
    pub(super) fn check_unclaimed(&mut self, card: u32, peer: Peer) -> Result<bool, Error> {
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
        let card = found(self.client.owned.qps.get(&qpn), qpn)?.card;
        self.limits(card)?;
        let attributes = self.window(card)?.engine.query_qp(qpn)?;
        if let Some(qp) = self.client.owned.qps.get_mut(&qpn) {
            qp.state = attributes.state;
        }
        Ok(Response::QpAttributes { attributes: attributes.encode() }.into())
    }

    pub(super) fn destroy_qp(&mut self, qpn: u32) -> Result<Answer, Error> {
        let groups = found(self.client.owned.qps.get(&qpn), qpn)?.groups.len();
        if groups != 0 {
            let users = format!("{groups} multicast groups that it is in");
            return Err(Error::Busy { object: "queue pair", number: qpn, users });
        }
        self.client.destroy::<Qp>(self.cards, qpn).map(destroyed)
    }

    /// Takes zeroed space for a record and `blocks` blocks, notes it, and lets the card reach it.
    pub(super) fn place_ring(
        &mut self,
        card: u32,
        blocks: u64,
        limits: &EngineLimits,
        note: &mut Option<Span>,
    ) -> Result<Span, Error> {
        let bytes = RingMemory::ring_bytes(blocks)
            .ok_or_else(|| Error::Invalid(format!("a ring of {blocks} blocks is too large")))?;
        let client = &mut *self.client;
        let none = Error::NoSuch { object: "ring memory", number: 0 };
        let rings = client.owned.rings.as_mut().ok_or(none)?;
        client.usage.take(None, Resource::RingBytes, bytes, limits)?;
        let ring = rings
            .allocate(bytes)
            .inspect_err(|_| client.usage.give(None, Resource::RingBytes, bytes))?;
        *note = Some(ring);
        let mapping = Arc::clone(rings.mapping());
        let memory = DmaMemory::Shared { mapping, offset: ring.start };
        let iova = client.place(card)?.ring_address(ring)?;
        self.card(card)?.device.backend.dma_map_ahead(iova, ring.length, memory)?;
        Ok(ring)
    }
}

pub(super) fn destroyed(told: SentRecords) -> Answer {
    let SentRecords { completion_events, async_events } = told;
    Response::Destroyed { completion_events, async_events }.into()
}

/// 2^`log2`, or why that is too large.
pub(super) fn power_of_two(what: &str, log2: u8, limit: u8) -> Result<u64, Error> {
    // Ring memory has 2^24 blocks: no engine's claim makes a larger ring possible.
    let limit = limit.min(24);
    if log2 > limit {
        return Err(Error::Invalid(format!(
            "2^{log2} {what} are more than the limit of 2^{limit}"
        )));
    }
    Ok(1u64.checked_shl(u32::from(log2)).unwrap_or(u64::MAX))
}

/// Adds the missing and superfluous attributes to a refused change, as far as the QP's state tells.
pub(super) fn explain(
    window: Window<'_>,
    qpn: u32,
    kind: QpType,
    wanted: &Attributes,
    error: DriverError,
) -> Error {
    let DriverError::Refused { engine, opcode, status, detail } = error else {
        return error.into();
    };
    let detail = match (status, window.engine.query_qp(qpn)) {
        (AdminStatus::Invalid | AdminStatus::BadState, Ok(now)) => {
            diagnose(kind, now.state, wanted, window.engine.limits().capabilities)
        }
        _ => detail,
    };
    DriverError::Refused { engine, opcode, status, detail }.into()
}

fn diagnose(kind: QpType, from: QpState, wanted: &Attributes, offered: Capabilities) -> String {
    match transition::check(kind, from, wanted, offered) {
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
        let diagnose = |wanted: &Attributes| diagnose(QpType::Rc, now, wanted, Capabilities::all());
        let rtr = AttributeMask::STATE | AttributeMask::AV | AttributeMask::PATH_MTU;
        assert_eq!(
            diagnose(&attributes(QpState::Rtr, rtr)),
            "; Init to Rtr also needs RQ_PSN, MIN_RNR_TIMER, MAX_DEST_RD_ATOMIC, DEST_QPN"
        );
        assert_eq!(
            diagnose(&attributes(QpState::Rts, AttributeMask::STATE)),
            "; the QP is in Init, and no way leads from there to Rts"
        );
        let surplus = AttributeMask::STATE | AttributeMask::SQ_PSN;
        assert_eq!(
            diagnose(&attributes(QpState::Init, surplus)),
            "; Init to Init does not take SQ_PSN"
        );
        let wrong = AttributeMask::STATE | AttributeMask::CURRENT_STATE;
        assert!(diagnose(&attributes(QpState::Init, wrong)).contains("in Init, not in Reset"));
    }

    #[test]
    fn sizes_beyond_the_limit_name_it() {
        assert_eq!(power_of_two("send ring blocks", 10, 10).unwrap(), 1024);
        let refused = power_of_two("send ring blocks", 255, 15).unwrap_err();
        assert!(refused.to_string().contains("limit of 2^15"), "{refused}");
        assert!(power_of_two("entries", 40, 255).is_err());
    }
}
