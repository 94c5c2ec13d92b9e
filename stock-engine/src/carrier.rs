//! The carrier of the messages of a vFPGA's QPs: posts of their own, or the tunnel if the peer has its other end.

use std::collections::{BTreeMap, VecDeque};

use fpga_regs::engine::admin::{AdminStatus, CreateAh, CreateQp, PortAttributes};
use fpga_regs::engine::cqe::Status;
use fpga_regs::engine::qp::{AttributeMask, Attributes, QpState, QpType};
use fpga_regs::engine::tunnel::{SLOT_BYTES, ring_address};
use queue_engine::{LocalGid, Message, Transport, TransportError, TransportEvent};
use tunnel::{End, Pace, Work};

use crate::ends::Acceptance;
use crate::exchange::Exchange;
use crate::link::CardLink;
use crate::local::Local;
use crate::memory::Memory;
use crate::param::{CTIDS, STAGED, TURN};
use crate::posts::{Posts, Registers, Settings};
use crate::sockets::{DatagramTally, Sockets};

/// A QP's end of the tunnel, with its outstanding posts.
#[derive(Debug)]
struct Tunnelled {
    end: End,
    /// Whether its ring was emptied.
    cleared: bool,
    /// Slots that were handed on, and of them those that the card has acknowledged.
    staged: u64,
    acknowledged: u64,
    /// So many of them have to be acknowledged before all answers are.
    answers: u64,
    /// The card's first sequence numbers, from the peer and to it.
    first: [u32; 2],
    /// Its peer is on the same card, which has no part in it.
    local: Option<Local>,
}

impl Tunnelled {
    /// Takes the slots that have come into its ring, as many as are its turn; how many there were.
    fn take_slots(
        &mut self,
        now: u64,
        ctid: u8,
        slot: &mut Vec<u8>,
        memory: &mut impl Memory,
    ) -> u64 {
        let mut taken: u64 = 0;
        for _ in 0..TURN {
            let Some((next, place)) = self.end.expected() else { break };
            if memory.sequence(ctid, place) != next {
                break;
            }
            slot.resize(SLOT_BYTES, 0);
            memory.slot(ctid, place, slot);
            if !self.end.receive(now, slot, memory) {
                break;
            }
            taken = taken.wrapping_add(1);
        }
        taken
    }
}

/// The transport of a vFPGA.
#[derive(Debug)]
pub struct Carrier<R> {
    /// The posts.
    pub posts: Posts<R>,
    ends: Vec<Option<Tunnelled>>,
    events: VecDeque<TransportEvent>,
    /// The QP to which a message has come, where that is the event that was taken last: by the next one its program was told.
    telling: Option<u32>,
    slot: Vec<u8>,
    tally: TunnelTally,
    pub(crate) exchange: Option<Exchange>,
    pub(crate) sockets: Sockets,
    /// Links to other cards, by their address spaces.
    pub(crate) links: BTreeMap<u8, CardLink>,
}

/// Counts of the tunnel, for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TunnelTally {
    /// Slots that were sent.
    pub sent: u64,
    /// Slots that were taken.
    pub taken: u64,
    /// Contexts that were rewritten.
    pub turnovers: u64,
    /// Bytes that were sent without slots, into memory that the peer has granted.
    pub granted: u64,
    /// Parts of them that came again in slots, because other bytes had landed.
    pub astray: u64,
}

impl<R: Registers> Carrier<R> {
    /// Over posts.
    pub fn new(posts: Posts<R>) -> Self {
        let (events, tally, sockets, links) = Default::default();
        let ends = (0..CTIDS).map(|_| None).collect();
        let exchange = posts.settings.datagrams.clone();
        let (telling, slot) = (None, Vec::new());
        Self { posts, ends, events, telling, slot, tally, exchange, sockets, links }
    }

    /// Counts of the tunnel, for people.
    #[must_use]
    pub fn tally(&self) -> TunnelTally {
        self.tally
    }

    /// Counts of datagrams, for people.
    #[must_use]
    pub fn datagrams(&self) -> DatagramTally {
        self.sockets.tally
    }

    /// The end of an address space's QP.
    pub(crate) fn end_of(&mut self, ctid: u8) -> Option<&mut End> {
        self.ends.get_mut(usize::from(ctid))?.as_mut().map(|it| &mut it.end)
    }

    fn end(&self, qpn: u32) -> Option<&Tunnelled> {
        let ctid = self.posts.ctid(qpn)?;
        self.ends.get(usize::from(ctid))?.as_ref()
    }

    fn end_mut(&mut self, qpn: u32) -> Option<&mut Tunnelled> {
        let ctid = self.posts.ctid(qpn)?;
        self.ends.get_mut(usize::from(ctid))?.as_mut()
    }

    /// Forgets everything, as the card has with its reset.
    pub fn reset(&mut self) {
        for (ctid, end) in (0u8..).zip(&mut self.ends) {
            if let Some(local) = end.take().and_then(|it| it.local) {
                local.close(self.posts.qpn(ctid));
            }
        }
        self.links.clear();
        if let Some(exchange) = &self.exchange {
            exchange.forget(self.posts.settings.vfpga);
            exchange.count(0, self.sockets.len());
        }
        self.sockets.reset();
        if self.posts.settings.vfpga == 0 {
            self.retire();
        }
        self.events.clear();
        self.posts.reset();
    }

    /// The caller is about to tell the card to ask anew for all pages that led to no program's memory; then
    /// [`Posts::surfaced`] is due.
    pub fn surface(&mut self) {
        let Self { posts, ends, .. } = self;
        // A ring is empty before slots come.
        let is_clear = |end: &Option<Tunnelled>| end.as_ref().is_none_or(|it| it.cleared);
        posts.surface(|ctid| ends.get(usize::from(ctid)).is_some_and(is_clear));
    }

    /// Begins no further messages before the card's reset, and finishes those that have begun.
    pub fn halt(&mut self, now: u64) {
        self.posts.halt();
        self.ends.iter_mut().flatten().for_each(|it| it.end.drain(now, true));
    }

    /// Tells the other cards of this process, behind [`Carrier::halt`], that no QP takes anything any more.
    pub fn part(&self) {
        self.posts.settings.meetings.ends(|ends| ends.close_all(self.posts.settings.ipv4));
    }

    /// The card is away, until it is brought up anew.
    pub fn retire(&self) {
        self.posts.leave_windows();
        self.posts.settings.meetings.retire(self.posts.settings.ipv4);
    }

    /// Whether other cards of this process have anything on its way to the card.
    #[must_use]
    pub fn is_sent_to(&self) -> bool {
        self.posts.settings.meetings.ends(|ends| ends.is_card_sent_to(self.posts.settings.ipv4))
    }

    /// Whether nothing is on its way, behind [`Carrier::halt`], that an answer would come to.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let waits = |(ctid, it): (u8, &Option<Tunnelled>)| {
            it.as_ref().is_some_and(|it| {
                self.posts.is_open(ctid)
                    && it.local.is_none()
                    && self.posts.acceptance(ctid) == Acceptance::Open
                    && it.end.is_open()
                    && (it.end.is_draining() || it.end.owes())
            })
        };
        !self.posts.has_out() && !(0u8..).zip(&self.ends).any(waits)
    }

    /// Whether an address space is that of a QP of the tunnel: it leads to its ring and slots, and to no program's memory.
    #[must_use]
    pub fn is_tunnelled(&self, ctid: u8) -> bool {
        self.ends.get(usize::from(ctid)).is_some_and(Option::is_some)
    }

    /// Whether the peer of an address space's QP is on the same card, which then reaches no memory for it.
    #[must_use]
    pub fn is_local(&self, ctid: u8) -> bool {
        let end = self.ends.get(usize::from(ctid)).and_then(Option::as_ref);
        end.is_some_and(|it| it.local.is_some())
    }

    /// Whether [`Carrier::advance`] has to look: arrivals in rings raise no event.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        // A link is served for queue pairs that take datagrams, or while posts are out to a card that serves it, too.
        let wanted = |it: &Exchange| it.is_used() || it.has_departures();
        let takes = self.exchange.as_ref().is_some_and(wanted);
        let open = |(ctid, end): (u8, &Option<Tunnelled>)| {
            let answers = |link: &CardLink| {
                let is_present = |it: &Exchange| it.meetings.is_present(link.peer);
                link.traffic.out() > 0 && self.exchange.as_ref().is_some_and(is_present)
            };
            let waits = |link: &CardLink| takes || link.ends || answers(link);
            end.as_ref().is_some_and(|it| it.end.is_open())
                && self.links.get(&ctid).is_none_or(waits)
        };
        let has_ends = (0u8..).zip(&self.ends).any(open);
        let sends = takes || self.sockets.is_waiting();
        !self.events.is_empty() || self.posts.is_waiting() || has_ends || sends
    }

    /// Whether a QP still owes its peer an answer, other than the bytes of a READ, or the card has not acknowledged
    /// that it was sent.
    #[must_use]
    pub fn owes(&self, qpn: u32) -> bool {
        let owes =
            |it: &Tunnelled| it.end.is_open() && (it.end.owes() || it.acknowledged < it.answers);
        // Nothing is owed to a peer that no longer takes it.
        let lives =
            |ctid| self.posts.is_open(ctid) && self.posts.acceptance(ctid) == Acceptance::Open;
        self.posts.ctid(qpn).is_some_and(lives) && self.end(qpn).is_some_and(owes)
    }

    /// Whether anything of a QP is with the card, so that its number cannot begin anew yet.
    #[must_use]
    pub fn is_out(&self, qpn: u32) -> bool {
        self.posts.is_out(qpn)
    }

    /// Takes an event of a message. Its caller has handled those before, and [refused](Transport::refuse) messages
    /// of which it could not tell the program.
    pub fn take_event(&mut self) -> Option<TransportEvent> {
        if let Some(it) = self.telling.take().and_then(|qpn| self.end_mut(qpn)) {
            it.end.told();
        }
        let event = self.events.pop_front();
        if let Some(TransportEvent::Received(received)) = &event {
            self.telling = Some(received.qpn);
        }
        event
    }

    /// Takes arrivals, sends waiting messages, and posts; `true` if there was anything.
    pub fn advance(&mut self, now: u64, memory: &mut impl Memory) -> bool {
        let mut did = false;
        self.meet(now);
        for ctid in 0..CTIDS {
            did |= match self.links.contains_key(&ctid) {
                true => self.serve_link(now, ctid, memory),
                false => self.serve(now, ctid, memory),
            };
        }
        did |= self.posts.advance(now, memory);
        while let Some(event) = self.posts.take_event() {
            did = true;
            self.route(event);
        }
        did |= self.hear_links();
        did |= self.exchange_datagrams(now, memory);
        for (ctid, end) in (0u8..).zip(&mut self.ends) {
            let Some(it) = end else { continue };
            // A failed end gives memory back, which no card may reach any more by then.
            if !it.end.is_open() && !memory.end_windows(ctid) {
                continue;
            }
            while let Some(event) = it.end.take_event() {
                did = true;
                self.events.push_back(event);
            }
        }
        did
    }

    /// Takes the datagrams that have come for QPs of the vFPGA, and sends those of its own.
    fn exchange_datagrams(&mut self, now: u64, memory: &mut impl Memory) -> bool {
        let Some(exchange) = &self.exchange else { return false };
        let Settings { vfpga, watchdog, .. } = self.posts.settings;
        let mut did = false;
        for datagram in exchange.arrived(vfpga) {
            did = true;
            self.events.extend(self.sockets.receive(exchange.own, &datagram, memory));
        }
        did | self.sockets.send(now, (exchange, vfpga, watchdog), memory, &mut self.events)
    }

    /// Takes note of the ends of slots, which concern the carrier alone.
    fn route(&mut self, event: TransportEvent) {
        let Some(it) = self.end_mut(event.qpn()) else { return self.events.push_back(event) };
        match event {
            TransportEvent::Completed { count, .. } => {
                it.acknowledged = it.acknowledged.wrapping_add(count);
            }
            _ => it.end.fail(Status::RetryExceeded),
        }
    }

    /// Serves one end: its ring, its time, its slots.
    pub(crate) fn serve(&mut self, now: u64, ctid: u8, memory: &mut impl Memory) -> bool {
        let Self { posts, ends, slot, tally, .. } = self;
        let it = ends.get_mut(usize::from(ctid)).and_then(Option::as_mut);
        // A closed end is about to be told of its fate.
        let served = |it: &&mut Tunnelled| it.end.is_open() && posts.is_open(ctid);
        let Some(it) = it.filter(served) else { return false };
        let qpn = posts.qpn(ctid);
        if !it.cleared {
            memory.clear(ctid);
            it.cleared = true;
            if let Some(local) = &it.local {
                local.open(qpn, it.end.peer());
            }
        }
        let mut did = it.end.settle(now, memory);
        let taken = it.take_slots(now, ctid, slot, memory);
        did |= taken > 0;
        tally.taken = tally.taken.wrapping_add(taken);
        tally.astray = tally.astray.wrapping_add(it.end.take_astray());
        it.end.advance(now, it.acknowledged == it.staged);
        let peer = it.end.peer();
        // Until its peer is ready the engine sends nothing: no peer would answer the card's packets.
        let may_send = it.local.as_ref().is_none_or(|local| local.reaches(qpn));
        while may_send && it.staged.wrapping_sub(it.acknowledged) < STAGED.into() {
            let replies = it.end.has_replies();
            let quiet = it.acknowledged == it.staged;
            match it.end.next(now, quiet, memory, slot) {
                Work::Slot(place) => {
                    if let Some(local) = &it.local {
                        // A thread may have waited for the copy meanwhile, and the peer may have gone: then the slot is
                        // gone, too.
                        local.deliver(qpn, || memory.deliver(peer, place, slot));
                        it.acknowledged = it.acknowledged.wrapping_add(1);
                    } else {
                        let number = (it.staged as u8).wrapping_rem(STAGED);
                        let local = memory.stage(ctid, number, slot);
                        let ring = ring_address((peer & 0x3f) as u8);
                        let remote = ring.saturating_add(place as u64);
                        let length = u32::try_from(slot.len()).unwrap_or(u32::MAX);
                        if !posts.post(now, ctid, local, remote, length) {
                            it.end.fail(Status::RetryExceeded);
                            break;
                        }
                    }
                    it.staged = it.staged.wrapping_add(1);
                    if replies {
                        it.answers = it.staged;
                    }
                    tally.sent = tally.sent.wrapping_add(1);
                }
                Work::Write { window, remote, bytes } => {
                    if !posts.post(now, ctid, window, remote, bytes) {
                        it.end.fail(Status::RetryExceeded);
                        break;
                    }
                    it.staged = it.staged.wrapping_add(1);
                    tally.granted = tally.granted.wrapping_add(bytes.into());
                }
                // No card counts these.
                Work::Rewrite(..) if it.local.is_some() => {}
                Work::Rewrite(sent, taken) => {
                    let [theirs, own] = it.first;
                    let after =
                        |first: u32, count: u64| first.wrapping_add(count as u32) & 0xff_ffff;
                    posts.write_context(qpn, 0, after(theirs, taken), after(own, sent));
                    tally.turnovers = tally.turnovers.wrapping_add(1);
                }
                Work::Nothing => break,
            }
            did = true;
        }
        did
    }

    /// Makes or ends a QP's end, as its state has become.
    fn follow(&mut self, now: u64, qpn: u32, state: QpState) {
        let Some(ctid) = self.posts.ctid(qpn) else { return };
        let attributes = self.posts.query_qp(qpn);
        let (names, local) = (self.posts.names(ctid), self.posts.local_of(ctid));
        let Some(place) = self.ends.get_mut(usize::from(ctid)) else { return };
        if let Some(local) = place.as_ref().and_then(|it| it.local.as_ref()) {
            if matches!(state, QpState::Err | QpState::Reset) {
                local.close(qpn);
            }
        }
        match (state, attributes) {
            (QpState::Rtr, Some(attributes)) => {
                *place = names.map(|names| {
                    let pace = self.posts.pace(local.is_some());
                    // A card that takes no datagrams looks at no ring, and is not dead for that.
                    let is_link = self.links.contains_key(&ctid);
                    let pace = match is_link {
                        true => Pace { watchdog: u64::MAX, long: None, ..pace },
                        false => pace,
                    };
                    let end = End::new(now, qpn, names, &attributes, pace);
                    let (staged, acknowledged, answers, cleared) = Default::default();
                    let first = names.first_psns();
                    Tunnelled { end, cleared, staged, acknowledged, answers, first, local }
                });
            }
            (QpState::Rts, Some(attributes)) => {
                if let Some(it) = place {
                    it.end.let_send(&attributes);
                    it.end.drain(now, false);
                }
            }
            (QpState::Sqd, _) => {
                if let Some(it) = place {
                    it.end.drain(now, true);
                }
            }
            (QpState::Err, _) => {
                if let Some(it) = place {
                    it.end.stop();
                }
            }
            (QpState::Reset, _) => *place = None,
            _ => {}
        }
    }
}

impl<R: Registers> Transport for Carrier<R> {
    fn name_qp(&mut self, kind: QpType) -> Option<Result<u32, AdminStatus>> {
        match &self.exchange {
            Some(exchange) if kind == QpType::Ud => {
                Some(self.sockets.name(exchange, self.posts.settings.vfpga))
            }
            _ => self.posts.name_qp(kind),
        }
    }

    fn create_qp(&mut self, qpn: u32, command: &CreateQp) -> Result<(), AdminStatus> {
        match &self.exchange {
            Some(exchange) if command.kind == QpType::Ud => {
                self.sockets.create(qpn);
                exchange.count(1, 0);
                Ok(())
            }
            _ => self.posts.create_qp(qpn, command),
        }
    }

    fn modify_qp(&mut self, now: u64, qpn: u32, change: &Attributes) -> Result<(), AdminStatus> {
        if self.sockets.has(qpn) {
            self.events.extend(self.sockets.modify(qpn, change));
            return Ok(());
        }
        self.posts.modify_qp(now, qpn, change)?;
        if change.mask.contains(AttributeMask::STATE) {
            self.follow(now, qpn, change.state);
        }
        let attributes = self.posts.query_qp(qpn);
        if let (Some(it), Some(attributes)) = (self.end_mut(qpn), attributes) {
            it.end.set(&attributes);
        }
        Ok(())
    }

    fn refuse(&mut self, now: u64, qpn: u32) -> bool {
        self.telling = self.telling.filter(|told| *told != qpn);
        self.end_mut(qpn).is_some_and(|it| it.end.refuse(now))
    }

    fn lingers(&self, qpn: u32) -> bool {
        self.end(qpn).is_some_and(|it| !it.end.is_open() && it.end.has_events())
    }

    fn query_qp(&self, qpn: u32) -> Option<Attributes> {
        if self.sockets.has(qpn) {
            return self.sockets.query(qpn);
        }
        let attributes = self.posts.query_qp(qpn)?;
        match self.end(qpn) {
            Some(it) if !it.end.is_live() => Some(Attributes { state: QpState::Err, ..attributes }),
            Some(it) => Some(Attributes { sq_draining: it.end.is_draining().into(), ..attributes }),
            None => Some(attributes),
        }
    }

    fn destroy_qp(&mut self, qpn: u32) {
        if self.sockets.destroy(qpn) {
            if let Some(exchange) = &self.exchange {
                exchange.count(0, 1);
            }
            return;
        }
        let ctid = self.posts.ctid(qpn);
        if let Some(end) = ctid.and_then(|ctid| self.ends.get_mut(usize::from(ctid))) {
            if let Some(local) = end.take().and_then(|it| it.local) {
                local.close(qpn);
            }
        }
        self.posts.destroy_qp(qpn);
    }

    fn create_ah(&mut self, _: u64, ah: u32, command: &CreateAh) -> Result<(), AdminStatus> {
        let peer = self.posts.check_handle(command)?;
        self.sockets.create_ah(ah, peer, command);
        Ok(())
    }

    fn destroy_ah(&mut self, ah: u32) {
        self.sockets.destroy_ah(ah);
    }

    fn stands_in_line(&self, qpn: u32) -> bool {
        self.sockets.sends(qpn)
    }

    fn room(&self, qpn: u32) -> usize {
        if self.sockets.has(qpn) {
            return self.sockets.room(qpn);
        }
        self.end(qpn).map_or_else(|| self.posts.room(qpn), |it| it.end.room())
    }

    fn submit(&mut self, now: u64, qpn: u32, message: &Message) -> Result<u64, TransportError> {
        if self.sockets.has(qpn) {
            return self.sockets.submit(qpn, message);
        }
        match self.end_mut(qpn) {
            Some(it) => it.end.submit(now, message),
            None => self.posts.submit(now, qpn, message),
        }
    }

    fn counters(&self) -> Vec<u64> {
        self.posts.counters()
    }

    fn port(&self) -> Option<PortAttributes> {
        self.posts.port()
    }

    fn set_gid(&mut self, index: u8, gid: Option<LocalGid>) -> Result<(), AdminStatus> {
        self.posts.set_gid(index, gid)
    }
}
