//! The links of a card to others, and their datagrams: the part of its first vFPGA.

use fpga_regs::engine::admin::{AdminStatus, CreateQp};
use fpga_regs::engine::qp::{AttributeMask as M, Attributes, QpState, QpType};
use queue_engine::{Transport as _, TransportEvent};
use tunnel::{Datagram, Pace};

use crate::carrier::Carrier;
use crate::exchange::{Exchange, Source};
use crate::gid::gid_of;
use crate::link::{CardLink, LinkMemory};
use crate::meeting::Offer;
use crate::memory::Memory;
use crate::param::{GAP, WAITING};
use crate::posts::Registers;
use crate::verbs::MTU;

impl<R: Registers> Carrier<R> {
    /// A link that was connected, by its number among all: the card is to ask anew for pages that led into sinks,
    /// as those of the former owner of its address space; then [`Carrier::open_link`] is due.
    #[must_use]
    pub fn connected_link(&self) -> Option<u32> {
        let waits = |link: &&CardLink| link.met.is_some() && !link.opened && !link.ends;
        self.links.values().find(waits).map(|link| link.number)
    }

    /// Opens a connected link for service.
    pub fn open_link(&mut self, number: u32) {
        if let Some(link) = self.links.values_mut().find(|link| link.number == number) {
            link.opened = true;
        }
    }

    /// A link whose address space is to lead to no memory any more; then [`Carrier::release_link`] is due.
    #[must_use]
    pub fn ended_link(&self) -> Option<u32> {
        self.links.values().find(|link| link.ends).map(|link| link.qpn)
    }

    /// Forgets a link that has ended, by which the card reaches no memory any more.
    pub fn release_link(&mut self, qpn: u32) {
        if let Some(ctid) = self.posts.ctid(qpn) {
            self.links.remove(&ctid);
            self.destroy_qp(qpn);
        }
    }

    /// Tells the other cards of this process that the card is about to forget everything.
    pub fn leave(&self) {
        if let Some(exchange) = &self.exchange {
            exchange.meetings.leave(exchange.own);
        }
    }

    fn link_to(&self, peer: u32) -> Option<u8> {
        self.links.iter().find(|(_, link)| link.peer == peer).map(|(ctid, _)| *ctid)
    }

    /// Makes the links that are wanted, and ends those of which the other end has gone.
    pub(crate) fn meet(&mut self, now: u64) {
        let is_first = self.posts.settings.vfpga == 0;
        let Some(exchange) = self.exchange.as_ref().filter(|_| is_first) else { return };
        let wants = exchange.is_used() || exchange.has_departures();
        if !wants && self.links.is_empty() {
            return;
        }
        let exchange = exchange.clone();
        // The reason why a link is refused concerns no program; an earlier reason for a program stays.
        let reason = self.posts.reason.take();
        let peers = std::sync::Arc::clone(&self.posts.settings.peers);
        // Time in which the engine did not look does not count as a peer's silence.
        let passed = now.saturating_sub(self.posts.looked).min(GAP);
        for &peer in peers.keys() {
            let is_present = exchange.meetings.is_present(peer);
            let link = self.link_to(peer);
            // One that would be refused is not offered, or it would be without end.
            let has_way =
                is_present && (link.is_some() || self.posts.budget.in_place_of(peer).is_none());
            if !has_way {
                self.drop_departures(&exchange, peer);
            }
            match link {
                Some(ctid) => self.keep(now, ctid, &exchange, is_present.then_some(passed)),
                None if wants && has_way => self.offer(now, &exchange, peer),
                None => {}
            }
        }
        self.posts.reason = reason;
    }

    /// Connects a link to its peer's offer, or ends it if the offer has gone, or if the peer has answered nothing for
    /// too long, of which `passed` nanoseconds have passed if it looks: a slot was lost for good then.
    fn keep(&mut self, now: u64, ctid: u8, exchange: &Exchange, passed: Option<u64>) {
        let Pace { watchdog, rest, .. } = self.posts.pace(false);
        let Some(link) = self.links.get_mut(&ctid).filter(|link| !link.ends) else { return };
        let theirs = exchange.meetings.offered(link.peer, exchange.own);
        let passed = passed.filter(|_| link.traffic.out() > 0);
        link.silent = passed.map_or(0, |passed| link.silent.saturating_add(passed));
        match (link.met, theirs) {
            _ if link.silent >= watchdog.saturating_add(rest) => {
                log::warn!(
                    "QP {}: the other card has answered no datagram for {} ms; another QP takes its place",
                    link.qpn,
                    link.silent.wrapping_div(1_000_000)
                );
                self.end_link(ctid);
            }
            // It goes if it is connected to an earlier end of this card's.
            (None, Some(theirs)) if theirs.met.is_some_and(|met| met != link.number) => {}
            (None, Some(theirs)) => {
                link.met = Some(theirs.number);
                let (peer, qpn, number) = (link.peer, link.qpn, link.number);
                if self.connect_link(now, (qpn, number), peer, theirs).is_err() {
                    self.end_link(ctid);
                }
            }
            (Some(met), Some(theirs)) if met == theirs.number => {}
            (None, None) => {}
            _ => self.end_link(ctid),
        }
    }

    /// Makes an end of a link and offers it, where there is a number for it and the card has its address.
    fn offer(&mut self, now: u64, exchange: &Exchange, peer: u32) {
        if self.posts.own_gid().is_none() {
            return;
        }
        let Some(Ok(qpn)) = self.posts.name_qp(QpType::Rc) else { return };
        let Some(ctid) = self.posts.ctid(qpn) else { return };
        let command = CreateQp { kind: QpType::Rc, ..CreateQp::default() };
        let change = Attributes { mask: M::STATE, state: QpState::Init, ..Attributes::default() };
        if self.posts.create_qp(qpn, &command).is_err() {
            return;
        }
        if self.modify_qp(now, qpn, &change).is_err() {
            return self.destroy_qp(qpn);
        }
        let number = exchange.meetings.offer(exchange.own, peer, qpn);
        let (met, opened, told, ends, silent, traffic) = Default::default();
        let link = CardLink { peer, qpn, number, met, opened, told, ends, silent, traffic };
        self.links.insert(ctid, link);
    }

    /// Connects this card's end to the other one.
    fn connect_link(
        &mut self,
        now: u64,
        (qpn, number): (u32, u32),
        peer: u32,
        theirs: Offer,
    ) -> Result<(), AdminStatus> {
        let sgid_index = self.posts.own_gid().ok_or(AdminStatus::NotFound)?;
        let all = Attributes {
            path_mtu: MTU,
            dest_qpn: theirs.qpn,
            rq_psn: theirs.number,
            sq_psn: number,
            rnr_retry: tunnel::param::RNR_RETRY_INFINITE,
            sgid_index,
            dgid: gid_of(peer),
            ..Attributes::default()
        };
        let rtr = M::ACCESS | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::AV;
        for (state, mask) in [(QpState::Rtr, rtr), (QpState::Rts, M::SQ_PSN | M::RNR_RETRY)] {
            let change = Attributes { mask: mask | M::STATE, state, ..all };
            self.modify_qp(now, qpn, &change)?;
        }
        Ok(())
    }

    /// Ends a link: nothing is posted any more, and datagrams that waited for it are dropped.
    fn end_link(&mut self, ctid: u8) {
        let Some(link) = self.links.get_mut(&ctid).filter(|link| !link.ends) else { return };
        link.ends = true;
        let (peer, out) = (link.peer, link.traffic.out() as u64);
        let undelivered = &mut self.sockets.tally.undelivered;
        *undelivered = undelivered.wrapping_add(out);
        self.posts.close(ctid);
        if let Some(exchange) = self.exchange.clone() {
            exchange.meetings.withdraw(exchange.own, peer);
            self.drop_departures(&exchange, peer);
        }
    }

    fn drop_departures(&mut self, exchange: &Exchange, peer: u32) {
        let undelivered = &mut self.sockets.tally.undelivered;
        *undelivered = undelivered.wrapping_add(exchange.drop_departures(peer));
    }

    /// Serves a link: gives it datagrams for the other card, and takes received ones, unless others must take theirs
    /// first.
    pub(crate) fn serve_link(&mut self, now: u64, ctid: u8, memory: &mut impl Memory) -> bool {
        let (Some(mut link), Some(exchange)) = (self.links.remove(&ctid), self.exchange.clone())
        else {
            return false;
        };
        let mut did = false;
        let met = link.met.filter(|_| link.opened && !link.ends);
        if let Some(met) = met.filter(|_| exchange.is_empty_of(Source::Card(link.peer))) {
            let theirs = exchange.meetings.offered(link.peer, exchange.own);
            let is_ready = |it: Offer| it.number == met && it.met == Some(link.number);
            if theirs.is_some_and(is_ready) {
                did |= self.load(now, ctid, &exchange, &mut link);
            }
            let CardLink { traffic, .. } = &mut link;
            did |= self.serve(now, ctid, &mut LinkMemory { memory, traffic });
            // Its ring is empty now, and later slots are the peer's.
            if !std::mem::replace(&mut link.told, true) {
                self.posts.open(ctid);
                exchange.meetings.meet(exchange.own, link.peer, met);
            }
        }
        self.links.insert(ctid, link);
        did
    }

    /// Gives a link datagrams that wait for it, as far as it takes them.
    fn load(&mut self, now: u64, ctid: u8, exchange: &Exchange, link: &mut CardLink) -> bool {
        let Some(end) = self.end_of(ctid).filter(|end| end.is_live()) else { return false };
        let mut did = false;
        while link.traffic.out() < WAITING {
            let Some(datagram) = exchange.departed(now, link.peer) else { break };
            let message = link.traffic.send(&datagram);
            // There is room for them all, and it may send as long as it is connected.
            did |= end.submit(now, &message).is_ok();
        }
        did
    }

    /// Takes note of the outcomes of links' messages.
    pub(crate) fn hear_links(&mut self) -> bool {
        let ctids: Vec<u8> = self.links.keys().copied().collect();
        let mut did = false;
        for ctid in ctids {
            while let Some(event) = self.end_of(ctid).and_then(tunnel::End::take_event) {
                did = true;
                self.hear_link(ctid, event);
                // No program is told of received messages.
                if let (TransportEvent::Received(_), Some(end)) = (event, self.end_of(ctid)) {
                    end.told();
                }
            }
        }
        did
    }

    fn hear_link(&mut self, ctid: u8, event: TransportEvent) {
        let Some(link) = self.links.get_mut(&ctid) else { return };
        match event {
            TransportEvent::Completed { count, .. } => {
                link.traffic.answered(count);
                link.silent = 0;
            }
            TransportEvent::Received(_) => {
                let message = link.traffic.take().unwrap_or_default();
                let Some(exchange) = &self.exchange else { return };
                let datagram = Datagram::from_message(link.peer, &message);
                let to = |it: &Datagram| exchange.vfpga_of(it.header.dest_qpn);
                match datagram.and_then(|it| Some((to(&it)?, it))) {
                    Some((vfpga, it)) => exchange.arrive(vfpga, Source::Card(link.peer), it),
                    None => {
                        let refused = &mut self.sockets.tally.refused;
                        *refused = refused.wrapping_add(1);
                    }
                }
            }
            TransportEvent::Async { .. } => {}
            _ => self.end_link(ctid),
        }
    }
}
