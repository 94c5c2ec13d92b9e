//! Unreliable Datagram's part of a port: its queue pairs, its address handles, its packets.

use super::commit::Failure;
use super::slots::Slot;
use super::{Stack, Turn};
use crate::api::{DatagramRequest, Event, FramePayload, Placed, ReceiveStatus, Source, Transmit};
use crate::attributes::{self, AddressVector};
use crate::counters::{add, bump};
use crate::datagram::{Handle, UdQp};
use crate::error::{Error, PostError};
use crate::log::{Effect, EffectKind};
use crate::param;
use crate::path::{Path, Resolution};
use crate::psn::Psn;
use crate::qp::pad;
use crate::table;
use crate::types::{Instant, Qpn};
use crate::wire::bth;
use crate::wire::extension::{deth, immdt};

impl Stack {
    /// Bytes that an address handle takes at most.
    pub const AH_BYTES: usize = size_of::<Handle>()
        + crate::neighbour::Neighbours::BYTES_OF_EACH
        + param::TABLE_PLACES * (Self::SLOT_BYTES + size_of::<(u32, u32)>());
    /// Bytes that are kept of a datagram until its packet is made.
    pub const DATAGRAM_BYTES: usize = UdQp::MESSAGE_BYTES;

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
        attributes::check_static_rate(vector.static_rate)?;
        // UD-5: Port and queue pair are put in by each message.
        let nobody = Qpn::default();
        let (mut path, resolution) = Path::new(nobody, nobody, vector, &self.addresses)?;
        let slot = self.new_slot();
        if let Resolution::Ask(peer) = resolution {
            if let Some(mac) = self.neighbours.acquire(peer, slot, client, now) {
                path.resolve(mac);
            }
        }
        let handle = Box::new(Handle::new(client, path, vector.static_rate, now));
        self.slots.put(slot, Slot::Handle(handle));
        self.handles.insert(ah, slot);
        self.ask_due(now);
        Ok(())
    }

    /// Destroys an address handle. Messages that were posted with it and not sent are dropped, and are
    /// complete.
    pub fn destroy_ah(&mut self, ah: u32) {
        let Some(slot) = table::take(&mut self.handles, &ah) else { return };
        let Some(place) = self.slots.get_mut(slot) else { return };
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
        match self.slots.get(slot)? {
            Slot::Handle(handle) => Some(handle.path.is_resolved()),
            _ => None,
        }
    }

    /// Gives a message to a queue pair of Unreliable Datagram in RTS or SQD, as [`Stack::post_send`].
    pub fn post_datagram(&mut self, qpn: Qpn, request: DatagramRequest) -> Result<u64, PostError> {
        let slot = self.slot(qpn).ok_or(PostError::UnknownQp(qpn))?;
        let qp = self.slots.ud(slot).ok_or(PostError::UnknownQp(qpn))?;
        let number = qp.post(&mut self.shared, request, self.mtu_max.bytes())?;
        self.aim(slot);
        Ok(number)
    }

    /// Gives a queue pair of Unreliable Datagram the priority of the message whose turn it is from now on, if that has
    /// another destination than the one before.
    pub(super) fn aim(&mut self, slot: u32) {
        let Some(qp) = self.slots.ud(slot) else { return };
        let Some((head, _)) = qp.head() else { return };
        if qp.aimed.replace(head.ah) != Some(head.ah) {
            self.take_priority(slot);
        }
    }

    /// Makes the packet of a queue pair's next message that can be sent, if that is of a priority.
    pub(super) fn transmit_datagram(&mut self, slot: u32, now: Instant, priority: u8) -> Turn {
        for _ in 0..param::TRANSMIT_QUANTUM {
            let Some(qp) = self.slots.ud(slot) else { return Turn::Over };
            let Some((request, message)) = qp.head() else { return Turn::Over };
            // It stands in another line.
            if qp.core.priority != priority {
                return Turn::Over;
            }
            // RC-107
            if qp.core.is_held(now) {
                qp.core.hold(&mut self.shared);
                return Turn::Over;
            }
            let (transport, qkey) = (qp.transport_header(&request), qp.qkey_of(&request));
            let deth = deth::Repr { qkey, source_qpn: qp.core.qpn.value() };
            let handle_slot = self.handles.get(&request.ah).copied();
            let handle = handle_slot.and_then(|slot| self.slots.handle(slot));
            let trust = &self.shared.trust;
            // Another handle has the number.
            if handle.as_ref().is_some_and(|it| it.path.priority(trust) != priority) {
                self.take_priority(slot);
                return Turn::Over;
            }
            match (handle, handle_slot) {
                (Some(handle), _) if handle.path.is_resolved() => {
                    let (path, client, static_rate) =
                        (&handle.path, handle.client, handle.static_rate);
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
                    let Some(qp) = self.slots.ud(slot) else { return Turn::Over };
                    qp.sent(&mut self.shared);
                    if self.making.last().map(|(last, _)| *last) != Some(slot) {
                        self.making.push((slot, qp.core.generation));
                    }
                    let counters = &mut self.shared.counters;
                    if request.dest_qpn == Qpn::GROUP {
                        bump(&mut counters.sent_mcast_pkts);
                    }
                    add(&mut counters.sent_bytes, request.length.into());
                    let payload = payload(qp.core.qpn, message, request.length, transport.psn);
                    let pad = pad(request.length);
                    let qpn = Some(qp.core.qpn);
                    let mut transmit =
                        Transmit { qpn, header, payload, pad, needs_icrc: true, priority };
                    // RC-109: It keeps the next one back, wherever that goes.
                    qp.core.keep_to(&mut self.shared, now, static_rate, None);
                    qp.core.departs(&mut self.shared, now, &mut transmit);
                    self.aim(slot);
                    return Turn::Frame(transmit);
                }
                // UD-7
                (Some(handle), place) if now < handle.patient_until => {
                    handle.waiting.insert(slot);
                    let until = handle.patient_until;
                    if let Some(qp) = self.slots.ud(slot) {
                        qp.waits_for = place;
                        qp.core.set_timer(&mut self.shared, Some(until));
                    }
                    return Turn::Over;
                }
                _ => {
                    if let Some(qp) = self.slots.ud(slot) {
                        qp.drop_head(&mut self.shared);
                    }
                    self.aim(slot);
                }
            }
        }
        Turn::Later
    }

    /// Ends a queue pair's wait for its address handle.
    pub(super) fn stop_waiting(&mut self, slot: u32) {
        let waits_for = self.slots.ud(slot).and_then(|qp| qp.waits_for.take());
        let handle = waits_for.and_then(|its| self.slots.handle(its));
        if let Some(handle) = handle {
            handle.waiting.remove(&slot);
        }
        if let Some(qp) = self.slots.core_mut(slot) {
            qp.set_timer(&mut self.shared, None);
        }
    }

    /// A queue pair need not wait any longer.
    pub(super) fn resume(&mut self, slot: u32) {
        self.stop_waiting(slot);
        if let Some(qp) = self.slots.core_mut(slot).filter(|qp| !qp.service.kind().is_reliable()) {
            qp.make_ready(&mut self.shared);
        }
    }

    /// Commits the effects of a burst on a queue pair of Unreliable Datagram. A receive fails alone.
    pub(super) fn commit_datagram(
        &mut self,
        effect: &Effect,
        placed: &[Placed],
        failures: &mut Vec<Failure>,
    ) {
        let Effect { slot, kind, .. } = *effect;
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

/// The payload of a message, which is in one packet; none where the message has no bytes.
fn payload(qpn: Qpn, message: u64, length: u32, psn: Psn) -> Option<FramePayload> {
    let source = Source::Message { message };
    (length != 0).then_some(FramePayload { qpn, srqn: None, source, offset: 0, length, psn })
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
    let mut header = path.header_between(source, request.dest_qpn, transport, after);
    header.push(&deth.to_bytes());
    if let Some(immediate) = request.imm {
        header.push(&immdt::to_bytes(immediate));
    }
    header
}
