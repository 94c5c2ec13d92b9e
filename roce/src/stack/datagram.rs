//! Unreliable Datagram's part of a port: its queue pairs, its address handles, its packets.

use core::task::Poll;

use fpga_regs::engine::qp::QpType;

use super::commit::Failure;
use super::input::{Envelope, count_received};
use super::{Slot, Stack, Turn, datagram_at, put_slot};
use crate::api::{
    DatagramRequest, Event, GRH_LENGTH, Payload, Placed, Placement, ReceiveError, ReceiveKind,
    ReceiveStatus, Sink, Source, Transmit, Verbs,
};
use crate::attributes::{self, AddressVector, QpAttributes};
use crate::counters::{Counters, add, bump};
use crate::datagram::{DatagramQp, Handle};
use crate::error::{Error, PostError};
use crate::log::{Effect, EffectKind};
use crate::opcode::Class;
use crate::param;
use crate::path::{Path, Resolution};
use crate::qp::pad;
use crate::state::QpState;
use crate::table;
use crate::types::{Instant, PathMtu, Qpn};
use crate::wire::extension::{deth, immdt};
use crate::wire::{bth, frame, ipv4, ipv6, udp};

impl Stack {
    /// Bytes that an address handle takes at most.
    pub const AH_BYTES: usize = size_of::<Handle>()
        + crate::neighbour::Neighbours::BYTES_OF_EACH
        + param::TABLE_PLACES * (Self::SLOT_BYTES + size_of::<(u32, u32)>());
    /// Bytes that are kept of a datagram until its packet is made.
    pub const DATAGRAM_BYTES: usize = DatagramQp::MESSAGE_BYTES;

    /// Creates the queue pair `qpn` of Unreliable Datagram in RESET, as [`Stack::create_qp`] one of
    /// Reliable Connection.
    pub fn create_datagram_qp(&mut self, qpn: Qpn, client: u16) -> Result<(), Error> {
        let (slot, generation) = self.new_qp(qpn)?;
        let mut qp = Box::new(DatagramQp::new(qpn, client, slot, generation));
        qp.queued = self.departed.remove(&slot);
        put_slot(&mut self.slots, slot, Slot::Datagram(qp));
        Ok(())
    }

    /// Creates the address handle `ah`, for a client as [`Stack::create_qp`] has them, and asks for the
    /// peer's Ethernet address if need be.
    pub fn create_ah(
        &mut self,
        now: Instant,
        ah: u32,
        client: u16,
        vector: &AddressVector,
    ) -> Result<(), Error> {
        if self.handles.contains_key(&ah) {
            return Err(Error::AhExists(ah));
        }
        if self.handles.len() >= param::MAX_AHS {
            return Err(Error::TooManyAhs(param::MAX_AHS));
        }
        // UD-5: Port and queue pair are put in by each message.
        let nobody = Qpn::default();
        let (mut path, resolution) = Path::new(nobody, nobody, vector, &self.addresses)?;
        let slot = self.new_slot();
        if let Resolution::Ask(peer) = resolution {
            if let Some(mac) = self.neighbours.acquire(peer, slot, client, now) {
                path.resolve(mac);
            }
        }
        let handle = Box::new(Handle::new(client, path, now));
        put_slot(&mut self.slots, slot, Slot::Handle(handle));
        self.handles.insert(ah, slot);
        self.ask_due(now);
        Ok(())
    }

    /// Destroys an address handle. Messages that were posted with it and not sent are dropped, and are
    /// complete.
    pub fn destroy_ah(&mut self, ah: u32) {
        let Some(slot) = table::take(&mut self.handles, &ah) else { return };
        let Some(place) = self.slots.get_mut(slot as usize) else { return };
        let Slot::Handle(handle) = core::mem::take(place) else { return };
        if let Some(peer) = handle.path.neighbour() {
            self.neighbours.release(peer.address, slot, handle.client);
        }
        for waiting in handle.waiting {
            self.resume(waiting);
        }
        self.free.push(slot);
    }

    /// Whether the Ethernet address that an address handle leads to is known; `None` for an unknown handle.
    #[must_use]
    pub fn is_ah_resolved(&self, ah: u32) -> Option<bool> {
        let slot = *self.handles.get(&ah)?;
        match self.slots.get(slot as usize)? {
            Slot::Handle(handle) => Some(handle.path.is_resolved()),
            _ => None,
        }
    }

    /// Gives a message to a queue pair of Unreliable Datagram in RTS or SQD, as [`Stack::post_send`].
    pub fn post_datagram(&mut self, qpn: Qpn, request: DatagramRequest) -> Result<u64, PostError> {
        let slot = self.slot(qpn).ok_or(PostError::UnknownQp(qpn))?;
        let qp = datagram_at(&mut self.slots, slot).ok_or(PostError::UnknownQp(qpn))?;
        let state = qp.state;
        if !state.sends_requests() {
            return Err(PostError::State { qpn, state });
        }
        // UD-1
        if request.length > self.mtu_max.bytes() {
            return Err(PostError::TooLong(request.length));
        }
        if qp.sends.room() == 0 {
            return Err(PostError::Full(qpn));
        }
        let number = qp.sends.post(request);
        qp.make_ready(&mut self.shared);
        Ok(number)
    }

    pub(super) fn modify_datagram_qp(
        &mut self,
        slot: u32,
        change: &QpAttributes,
    ) -> Result<(), Error> {
        let Some(qp) = datagram_at(&mut self.slots, slot) else { return Ok(()) };
        let from = qp.state;
        // UD-16
        attributes::check(QpType::Ud, qp.qpn, from, change, self.mtu_max)?;
        match change.state.unwrap_or(from) {
            QpState::Reset => self.reset_datagram(slot),
            to => qp.change(&mut self.shared, to, change),
        }
        Ok(())
    }

    /// Takes a queue pair back to RESET, as [`Stack::reset`].
    pub(super) fn reset_datagram(&mut self, slot: u32) {
        self.stop_waiting(slot);
        let generation = self.new_generation();
        let Some(qp) = datagram_at(&mut self.slots, slot) else { return };
        let (qpn, queued, counters) = (qp.qpn, qp.queued, qp.counters);
        let groups = core::mem::take(&mut qp.groups);
        *qp = DatagramQp::new(qpn, qp.client, slot, generation);
        (qp.queued, qp.counters, qp.groups) = (queued, counters, groups);
        self.shared.log.retain(|event| event.qpn() != qpn);
        if self.shared.ready.front() == Some(&slot) {
            self.quantum = param::TRANSMIT_QUANTUM;
        }
    }

    /// Makes the packet of a queue pair's next message that can be sent.
    pub(super) fn transmit_datagram(&mut self, slot: u32, now: Instant) -> Turn {
        for _ in 0..param::TRANSMIT_QUANTUM {
            let Some(qp) = datagram_at(&mut self.slots, slot) else { return Turn::Over };
            let Some((request, message)) = qp.head() else { return Turn::Over };
            let (transport, qkey) = (qp.transport_header(&request), qp.qkey_of(&request));
            let deth = deth::Repr { qkey, source_qpn: qp.qpn.value() };
            let handle_slot = self.handles.get(&request.ah).copied();
            let handle = handle_slot.and_then(|slot| handle_at(&mut self.slots, slot));
            match (handle, handle_slot) {
                (Some(handle), _) if handle.path.is_resolved() => {
                    let (path, client) = (&handle.path, handle.client);
                    let header = header(path, &transport, &deth, &request);
                    let is_due = now >= handle.next_check;
                    let peer = path.neighbour().filter(|_| is_due);
                    if let Some(peer) = peer {
                        // UD-9
                        handle.next_check = now.after(param::DATAGRAM_CHECK_INTERVAL);
                        if self.neighbours.probe(peer.address, client, now) {
                            self.ask(peer);
                        }
                    }
                    let Some(qp) = datagram_at(&mut self.slots, slot) else { return Turn::Over };
                    qp.sent(&mut self.shared);
                    if self.making.last().map(|(last, _)| *last) != Some(slot) {
                        self.making.push((slot, qp.generation));
                    }
                    let counters = &mut self.shared.counters;
                    if request.dest_qpn == Qpn::GROUP {
                        bump(&mut counters.sent_mcast_pkts);
                    }
                    add(&mut counters.sent_bytes, request.length.into());
                    let payload = (request.length != 0).then_some(Payload {
                        qpn: qp.qpn,
                        srqn: None,
                        source: Source::Message { message },
                        offset: 0,
                        length: request.length,
                        psn: transport.psn,
                    });
                    let pad = pad(request.length);
                    return Turn::Frame(Transmit { header, payload, pad, needs_icrc: true });
                }
                // UD-7
                (Some(handle), place) if now < handle.patient_until => {
                    handle.waiting.insert(slot);
                    let until = handle.patient_until;
                    if let Some(qp) = datagram_at(&mut self.slots, slot) {
                        qp.waits_for = place;
                    }
                    self.shared.timers.set(slot, Some(until));
                    return Turn::Over;
                }
                _ => {
                    if let Some(qp) = datagram_at(&mut self.slots, slot) {
                        qp.drop_head(&mut self.shared);
                    }
                }
            }
        }
        Turn::Later
    }

    /// A queue pair waits for its address handle no more.
    fn stop_waiting(&mut self, slot: u32) {
        let waits_for = datagram_at(&mut self.slots, slot).and_then(|qp| qp.waits_for.take());
        let handle = waits_for.and_then(|its| handle_at(&mut self.slots, its));
        if let Some(handle) = handle {
            handle.waiting.remove(&slot);
        }
        self.shared.timers.set(slot, None);
    }

    /// A queue pair need not wait any longer.
    pub(super) fn resume(&mut self, slot: u32) {
        self.stop_waiting(slot);
        match self.slots.get_mut(slot as usize) {
            Some(Slot::Unreliable(qp)) => qp.make_ready(&mut self.shared),
            Some(Slot::Datagram(qp)) => qp.make_ready(&mut self.shared),
            _ => {}
        }
    }

    /// Takes a packet for a queue pair of Unreliable Datagram.
    pub(super) fn receive_datagram(
        &mut self,
        slot: u32,
        envelope: &Envelope,
        packet: &frame::Repr,
        frame_index: usize,
        verbs: &mut impl Verbs,
        placements: &mut Vec<Placement>,
    ) -> Poll<()> {
        let Some(qp) = datagram_at(&mut self.slots, slot) else { return Poll::Ready(()) };
        let Stack { shared, mtu_max, .. } = self;
        let counters = &mut shared.counters;
        // RC-12
        if !bth::pkeys_match(packet.bth.pkey, param::DEFAULT_PKEY) {
            bump(&mut counters.drop_bad_pkey);
            return Poll::Ready(());
        }
        if let Some(counter) = refusal(qp, packet, *mtu_max, counters) {
            bump(counter);
            count_received(counters, &mut qp.counters);
            return Poll::Ready(());
        }
        let receive = match verbs.take_receive(qp.qpn.into()) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(receive) => receive,
        };
        count_received(counters, &mut qp.counters);
        let receive = match receive {
            Ok(receive) => receive,
            // UD-11
            Err(ReceiveError::Empty | ReceiveError::NoSrq) => {
                bump(&mut counters.out_of_buffer);
                return Poll::Ready(());
            }
            Err(ReceiveError::Invalid) => {
                bump(&mut counters.resp_cqe_error);
                return Poll::Ready(());
            }
        };
        let bytes = packet.payload.len();
        let length = GRH_LENGTH.wrapping_add(bytes as u32);
        if u64::from(length) > receive.capacity {
            qp.fail_short_receive(shared, receive.id);
            return Poll::Ready(());
        }
        bump(&mut counters.rdma_recvs);
        add(&mut counters.rcvd_bytes, bytes as u64);
        let (qpn, srqn, sink) = (qp.qpn, None, Sink::Receive { id: receive.id });
        let first = shared.log.place();
        let (offset, range) = network_header(envelope);
        placements.push(Placement { qpn, srqn, sink, offset, frame_index, range });
        let mut count = 1;
        if bytes != 0 {
            shared.log.place();
            count = 2;
            let start = envelope.payload.start.wrapping_add(packet.payload.start);
            let range = start..start.wrapping_add(bytes);
            let offset = GRH_LENGTH.into();
            placements.push(Placement { qpn, srqn, sink, offset, frame_index, range });
        }
        let received = Event::ReceiveCompleted {
            qpn,
            srqn,
            id: receive.id,
            length,
            kind: ReceiveKind::Send,
            imm: packet.immediate,
            solicited: packet.bth.solicited,
            source_qpn: packet.deth.map(|deth| deth.source_qpn),
        };
        qp.take_message(shared, (first, count), (receive.id, received));
        Poll::Ready(())
    }

    /// What a burst has done to a queue pair of Unreliable Datagram. A receive fails alone.
    pub(super) fn commit_datagram(
        &mut self,
        effect: &Effect,
        placed: &[Placed],
        failures: &mut Vec<Failure>,
    ) {
        let Effect { slot, generation, kind } = *effect;
        let qp = datagram_at(&mut self.slots, slot);
        if qp.is_none_or(|qp| qp.generation != generation) {
            return;
        }
        let shared = &mut self.shared;
        match kind {
            EffectKind::PlacedDatagram { first, count, receive } => {
                let copied = |number: usize| placed.get(number) == Some(&Placed::Copied);
                if !(first..first.wrapping_add(count.into())).all(copied) {
                    failures.push(Failure { slot, request: None, receive: Some(receive) });
                }
            }
            EffectKind::Event(Event::ReceiveCompleted { qpn, id, .. })
                if failures.iter().any(|f| f.slot == slot && f.receive == Some(id)) =>
            {
                // UD-12
                bump(&mut shared.counters.resp_cqe_error);
                let status = ReceiveStatus::LocalProtection;
                shared.log.release(Event::ReceiveFailed { qpn, srqn: None, id, status });
            }
            EffectKind::Event(event) => shared.log.release(event),
            _ => {}
        }
    }
}

/// The header of a datagram's frame.
fn header(
    path: &Path,
    transport: &bth::Repr,
    deth: &deth::Repr,
    request: &DatagramRequest,
) -> crate::header::HeaderBuffer {
    let immediate = request.imm.map_or(0, |_| immdt::LENGTH);
    let after = deth::LENGTH
        .wrapping_add(immediate)
        .wrapping_add(request.length as usize)
        .wrapping_add(usize::from(transport.pad_count));
    // UD-5
    let source = Qpn::new(deth.source_qpn).unwrap_or_default();
    let mut header = path.header_between((source, request.dest_qpn), transport, after);
    header.push(&deth.to_bytes());
    if let Some(immediate) = request.imm {
        header.push(&immdt::to_bytes(immediate));
    }
    header
}

/// The counter of packets that a queue pair drops for what is wrong with this one, if something is.
// UD-10
fn refusal<'a>(
    qp: &DatagramQp,
    packet: &frame::Repr,
    mtu_max: PathMtu,
    counters: &'a mut Counters,
) -> Option<&'a mut u64> {
    match packet.deth {
        _ if !qp.state.receives_unreliable() => Some(&mut counters.drop_wrong_state),
        Some(_) if packet.opcode.class != Class::Datagram => Some(&mut counters.drop_bad_opcode),
        None => Some(&mut counters.drop_bad_opcode),
        Some(deth) if deth.qkey != qp.qkey => Some(&mut counters.drop_bad_qkey),
        Some(_) if packet.payload.len() > mtu_max.bytes() as usize => {
            Some(&mut counters.drop_malformed)
        }
        Some(_) => None,
    }
}

/// Where a packet's network header lies in its frame, and where in a receive: its end where the GRH's
/// is.
fn network_header(envelope: &Envelope) -> (u64, core::ops::Range<usize>) {
    let length = if envelope.source.as_ipv4().is_some() { ipv4::LENGTH } else { ipv6::LENGTH };
    let end = envelope.payload.start.wrapping_sub(udp::LENGTH);
    // UD-17
    let offset = u64::from(GRH_LENGTH).wrapping_sub(length as u64);
    (offset, end.wrapping_sub(length)..end)
}

/// The address handle in a slot.
fn handle_at(slots: &mut [Slot], slot: u32) -> Option<&mut Handle> {
    match slots.get_mut(slot as usize)? {
        Slot::Handle(handle) => Some(handle),
        _ => None,
    }
}
