//! The one door for packets: it decides which are taken, by which queue pair, and why others are not.

use core::task::Poll;

use super::Stack;
use super::slots::Slot;
use crate::api::{Kept, ReceivedFrame, ResponderMemory, admits};
use crate::counters::bump;
use crate::drops::{self, Reason};
use crate::incoming::{Envelope, FramePlace, Incoming};
use crate::opcode::{Class, code};
use crate::services::{Checked, Verdict};
use crate::types::{Instant, Qpn};
use crate::wire::extension::atomicacketh;
use crate::wire::{Malformed, bth, frame};

/// The queue pairs that an accepted packet is for.
#[derive(Clone, Copy)]
enum Whom {
    /// The queue pair in this slot.
    One(u32),
    /// The members of a multicast group, of which the first may have accepted it already.
    Group { first_has: bool },
}

/// Why a packet is not taken, and the slot of the queue pair that it names.
#[derive(Clone, Copy)]
struct Refused {
    reason: Reason,
    slot: Option<u32>,
}

impl Refused {
    /// Whether a mark on the packet counts: its queue pair has received it. Nobody is notified of it.
    fn is_marked(self, envelope: &Envelope) -> bool {
        self.reason.is_received() && envelope.is_marked()
    }
}

impl From<Reason> for Refused {
    fn from(reason: Reason) -> Self {
        Self { reason, slot: None }
    }
}

impl Stack {
    /// Takes a RoCE packet, if it is to be taken.
    #[inline]
    pub(super) fn receive_roce(
        &mut self,
        now: Instant,
        envelope: &Envelope,
        frame: &mut (impl ReceivedFrame + ?Sized),
        frame_index: usize,
        memory: &mut impl ResponderMemory,
    ) -> Poll<()> {
        let bytes = frame.bytes().get(envelope.payload.clone()).unwrap_or_default();
        let parsed = frame::Repr::parse(bytes);
        let (packet, whom) = match self.accept(now, envelope, &parsed, frame) {
            Ok(accepted) => accepted,
            Err(refused) => {
                self.refuse(refused);
                if refused.is_marked(envelope) {
                    bump(&mut self.shared.counters.np_ecn_marked_roce_packets);
                }
                return Poll::Ready(());
            }
        };
        let payload_start = envelope.payload.start.wrapping_add(packet.payload.start);
        let place = FramePlace { frame_index, payload_start };
        let incoming = Incoming { now, envelope, packet, place };
        let slot = match whom {
            Whom::One(slot) => slot,
            Whom::Group { first_has } => {
                return self.receive_for_group(&incoming, frame, first_has, memory);
            }
        };
        let before = self.shared.log.placements.len();
        if self.take(slot, &incoming, memory).is_pending() {
            frame.keep(self.kept(slot, None));
            return Poll::Pending;
        }
        let is_placed = self.shared.log.placements.len() != before;
        if is_placed && packet.opcode.class == Class::AtomicAcknowledge {
            // RC-101: Bytes are placed as they stand in the frame, and these are a number.
            let header = frame.bytes_mut().get_mut(place.value_before());
            header.and_then(<[u8]>::first_chunk_mut).map(atomicacketh::make_value);
        }
        if is_placed && self.services.is_some() {
            self.tell_accepted();
        }
        if envelope.is_marked() {
            self.take_mark(slot, packet.opcode.class, now);
        }
        Poll::Ready(())
    }

    /// The queue pairs that take a packet, if it is unchanged, from a possible source, and for a queue pair that hears
    /// it, from its peer. Nothing else may have any effect on a queue pair.
    ///
    /// A packet that was accepted and waits is not accepted again in the same life of the queue pair. This does not
    /// judge the packet's request: its PSN and its keys are checked when it is taken.
    #[inline]
    fn accept<'p>(
        &mut self,
        now: Instant,
        envelope: &Envelope,
        parsed: &'p Result<frame::Repr, Malformed>,
        frame: &mut (impl ReceivedFrame + ?Sized),
    ) -> Result<(&'p frame::Repr, Whom), Refused> {
        let kept = frame.kept();
        if kept.is_some() {
            if let Some(accepted) = self.accepted_before(envelope, parsed, kept) {
                return Ok(accepted);
            }
        }
        // RC-2
        if !admits(self.icrc_policy, frame) {
            return Err(Reason::Icrc.into());
        }
        // RC-105
        let (source, destination) = (envelope.flow.source, envelope.flow.destination.gid);
        if !frame.is_looped() && !self.addresses.may_come_from(source, destination) {
            return Err(Reason::MartianSource.into());
        }
        let packet = match parsed {
            Ok(packet) => packet,
            Err(Malformed::Opcode(opcode)) if !destination.is_group() => {
                return Err(self.refuse_opcode(*opcode, envelope, frame.bytes()));
            }
            // RC-6
            Err(_) => return Err(Reason::Malformed.into()),
        };
        if destination.is_group() {
            // UD-19
            let names_group = packet.bth.dest_qpn == Qpn::GROUP.value();
            let whom = Whom::Group { first_has: false };
            return if names_group { Ok((packet, whom)) } else { Err(Reason::UnknownQp.into()) };
        }
        let slot = Qpn::new(packet.bth.dest_qpn).and_then(|qpn| self.slot(qpn));
        // RC-9
        let Some(slot) = slot else { return Err(Reason::UnknownQp.into()) };
        if let Err(reason) = self.suits(now, slot, envelope, packet, frame.bytes()) {
            return Err(Refused { reason, slot: Some(slot) });
        }
        Ok((packet, Whom::One(slot)))
    }

    /// The queue pairs of a packet that was accepted before.
    #[cold]
    fn accepted_before<'p>(
        &self,
        envelope: &Envelope,
        parsed: &'p Result<frame::Repr, Malformed>,
        kept: Kept,
    ) -> Option<(&'p frame::Repr, Whom)> {
        let packet = parsed.as_ref().ok()?;
        let group = envelope.flow.destination.gid;
        let is_group = group.is_group();
        let qpn = match is_group {
            true => self.groups.next_member(group, kept.last),
            false => Qpn::new(packet.bth.dest_qpn),
        };
        let slot = self.slot(qpn?)?;
        let whom = if is_group { Whom::Group { first_has: true } } else { Whom::One(slot) };
        (self.kept(slot, kept.last) == kept).then_some((packet, whom))
    }

    /// The mark to be kept of a packet that waits.
    fn kept(&self, slot: u32, last: Option<Qpn>) -> Kept {
        Kept { generation: self.slots.core(slot).map(|qp| qp.generation), last }
    }

    /// Whether a queue pair hears such packets, and this one comes from its peer, if it has one. Then the services check
    /// it.
    #[inline]
    fn suits(
        &mut self,
        now: Instant,
        slot: u32,
        envelope: &Envelope,
        packet: &frame::Repr,
        frame: &[u8],
    ) -> Result<(), Reason> {
        match self.slots.get(slot) {
            Some(Slot::Rc(qp)) => qp.core.hears(envelope.flow, packet),
            Some(Slot::Uc(qp)) => qp.core.hears(envelope.flow, packet),
            Some(Slot::Ud(qp)) => qp.hears(packet, self.mtu_max),
            Some(Slot::Free | Slot::Handle(_)) | None => Err(Reason::UnknownQp),
        }?;
        match &self.services {
            None => Ok(()),
            Some(_) => self.check(now, slot, envelope, packet, frame),
        }
    }

    /// Asks the services for their verdict on a packet, and fails a connection at a packet that they refuse.
    #[cold]
    fn check(
        &mut self,
        now: Instant,
        slot: u32,
        envelope: &Envelope,
        packet: &frame::Repr,
        frame: &[u8],
    ) -> Result<(), Reason> {
        let Stack { slots, services, shared, .. } = self;
        let Some(occupant) = slots.get(slot) else { return Ok(()) };
        let (Some(services), Some(qp)) = (services, occupant.core()) else { return Ok(()) };
        let datagram = frame.get(envelope.payload.clone()).unwrap_or_default();
        let payload = datagram.get(packet.payload.clone()).unwrap_or_default();
        let part = match occupant {
            Slot::Rc(qp) if !payload.is_empty() => qp.part(packet),
            _ => None,
        };
        match services.check(&Checked { qpn: qp.qpn, packet, payload, part }) {
            Verdict::Accept => return Ok(()),
            Verdict::Refuse if part.is_some() => {
                if let Some(qp) = slots.rc(slot) {
                    qp.refuse_by_service(shared, now, packet);
                }
            }
            Verdict::Drop | Verdict::Refuse => {}
        }
        Err(Reason::Service)
    }

    /// Tells the services that the packet which they checked last is to be placed.
    #[cold]
    fn tell_accepted(&mut self) {
        if let (Some(services), Some(placement)) =
            (&mut self.services, self.shared.log.placements.last())
        {
            services.accepted(placement);
        }
    }

    /// Refuses a packet whose opcode is reserved, or not known here. A request of a reliable service is answered, so that
    /// the peer need not wait for its retries to run out.
    // RC-7
    #[cold]
    fn refuse_opcode(&mut self, opcode: u8, envelope: &Envelope, frame: &[u8]) -> Refused {
        let bytes = frame.get(envelope.payload.clone()).unwrap_or_default();
        let is_reliable = matches!(
            opcode & code::SERVICE,
            code::RELIABLE_CONNECTION | code::EXTENDED_RELIABLE_CONNECTION
        );
        let transport = match bth::Repr::parse(bytes) {
            Ok((transport, _)) if is_reliable => transport,
            _ => return Reason::Malformed.into(),
        };
        let slot = Qpn::new(transport.dest_qpn).and_then(|qpn| self.slot(qpn));
        let Some(slot) = slot else { return Reason::UnknownQp.into() };
        let mut reason = Reason::BadOpcode;
        if let Some(qp) = self.slots.rc(slot) {
            match qp.core.comes_from_peer(envelope.flow, transport.pkey) {
                Err(why) => reason = why,
                Ok(()) if qp.core.service.answers(opcode) => {
                    qp.receive_unknown_request(&mut self.shared, transport.psn);
                }
                Ok(()) => {}
            }
        }
        Refused { reason, slot: Some(slot) }
    }

    /// Drops a packet, and counts that.
    #[cold]
    fn refuse(&mut self, Refused { reason, slot }: Refused) {
        drops::count(&mut self.shared.counters, reason);
        let slot = slot.filter(|_| reason.is_received());
        if let Some(qp) = slot.and_then(|slot| self.slots.core_mut(slot)) {
            qp.count_received(&mut self.shared.counters);
        }
    }

    /// Lets a queue pair have an accepted packet.
    #[inline]
    fn take(
        &mut self,
        slot: u32,
        incoming: &Incoming<'_>,
        memory: &mut impl ResponderMemory,
    ) -> Poll<()> {
        let Stack { slots, shared, .. } = self;
        if shared.log.is_aside(slot) {
            return Poll::Pending;
        }
        // RC-96
        if incoming.packet.opcode.class == Class::CongestionNotification {
            if let Some(qp) = slots.core_mut(slot) {
                qp.notified(shared, incoming.now);
            }
        } else {
            let taken = match slots.get_mut(slot) {
                Some(Slot::Rc(qp)) => qp.receive(shared, incoming, memory),
                Some(Slot::Uc(qp)) => qp.receive(shared, incoming, memory),
                Some(Slot::Ud(qp)) => qp.receive(shared, incoming, memory),
                Some(Slot::Free | Slot::Handle(_)) | None => Poll::Ready(()),
            };
            if taken.is_pending() {
                return Poll::Pending;
            }
        }
        if let Some(qp) = slots.core_mut(slot) {
            qp.count_received(&mut shared.counters);
        }
        Poll::Ready(())
    }

    /// Takes note of a mark on a packet that a queue pair has taken. A marked datagram causes no notification.
    // RC-17, RC-94
    #[cold]
    fn take_mark(&mut self, slot: u32, class: Class, now: Instant) {
        let Stack { slots, shared, .. } = self;
        bump(&mut shared.counters.np_ecn_marked_roce_packets);
        let qp = slots.core_mut(slot).filter(|qp| qp.path.is_some());
        if let Some(qp) = qp.filter(|_| class != Class::CongestionNotification) {
            qp.take_mark(shared, now);
        }
    }

    /// Takes a datagram to a group, for each of its members that has not taken it yet. Each has checks of its own.
    // UD-21
    fn receive_for_group(
        &mut self,
        incoming: &Incoming<'_>,
        frame: &mut (impl ReceivedFrame + ?Sized),
        mut first_has: bool,
        memory: &mut impl ResponderMemory,
    ) -> Poll<()> {
        let Incoming { now, envelope, packet, .. } = *incoming;
        let mut last = frame.kept().last;
        while let Some(member) = self.groups.next_member(envelope.flow.destination.gid, last) {
            if let Some(slot) = self.slot(member) {
                let accepted = match core::mem::take(&mut first_has) {
                    true => Ok(()),
                    false => self.suits(now, slot, envelope, packet, frame.bytes()),
                };
                if let Err(reason) = accepted {
                    self.refuse(Refused { reason, slot: Some(slot) });
                } else if self.take(slot, incoming, memory).is_pending() {
                    frame.keep(self.kept(slot, last));
                    return Poll::Pending;
                }
            }
            last = Some(member);
        }
        let counters = &mut self.shared.counters;
        bump(&mut counters.rcvd_mcast_pkts);
        if envelope.is_marked() {
            bump(&mut counters.np_ecn_marked_roce_packets);
        }
        Poll::Ready(())
    }
}
