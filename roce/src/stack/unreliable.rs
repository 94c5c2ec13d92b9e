//! Unreliable Connection's part of a port: its queue pairs, and their packets.

use core::task::Poll;

use fpga_regs::engine::qp::QpType;

use super::commit::{Failure, release};
use super::input::{admits, count_received};
use super::{Slot, Stack, Turn, put_slot, unreliable_at};
use crate::api::{Event, Placed, Placement, ReceiveStatus, SendRequest, Verbs};
use crate::attributes::{self, QpAttributes};
use crate::comp::FramePlace;
use crate::counters::bump;
use crate::error::{Error, PostError};
use crate::log::{Effect, EffectKind};
use crate::opcode::code;
use crate::param;
use crate::path::Path;
use crate::state::QpState;
use crate::types::{Address, Gid, Instant, Qpn};
use crate::unanswered::Sender;
use crate::unreliable::{UnreliableQp, is_offered};
use crate::wire::frame;

impl Stack {
    /// Creates the queue pair `qpn` of Unreliable Connection in RESET, as [`Stack::create_qp`] one of
    /// Reliable Connection.
    pub fn create_unreliable_qp(&mut self, qpn: Qpn, client: u16) -> Result<(), Error> {
        let (slot, generation) = self.new_qp(qpn)?;
        let mut qp = Box::new(UnreliableQp::new(Sender { qpn, slot, generation }, client));
        qp.queued = self.departed.remove(&slot);
        put_slot(&mut self.slots, slot, Slot::Unreliable(qp));
        Ok(())
    }

    pub(super) fn modify_unreliable_qp(
        &mut self,
        now: Instant,
        slot: u32,
        change: &QpAttributes,
    ) -> Result<(), Error> {
        let Some(qp) = unreliable_at(&mut self.slots, slot) else { return Ok(()) };
        let (qpn, from) = (qp.sender.qpn, qp.attributes.state);
        // UC-15
        attributes::check(QpType::Uc, qpn, from, change, self.mtu_max)?;
        let to = change.state.unwrap_or(from);
        if to == QpState::Reset {
            self.reset(slot);
            return Ok(());
        }
        let dest = change.dest_qpn.or(qp.attributes.dest_qpn).unwrap_or(qpn);
        let path = match change.path {
            Some(vector) => Some((vector, Path::to_one(qpn, dest, &vector, &self.addresses)?)),
            None => None,
        };
        qp.change(&mut self.shared, to, change);
        if let Some((vector, (path, resolution))) = path {
            qp.attributes.path = Some(vector);
            qp.patient_until = now.after(param::DATAGRAM_PATIENCE);
            qp.next_check = now.after(param::DATAGRAM_CHECK_INTERVAL);
            self.set_path(now, slot, path, resolution);
        }
        Ok(())
    }

    pub(super) fn post_unreliable(
        &mut self,
        qpn: Qpn,
        slot: u32,
        request: SendRequest,
    ) -> Result<u64, PostError> {
        let qp = unreliable_at(&mut self.slots, slot).ok_or(PostError::UnknownQp(qpn))?;
        let state = qp.attributes.state;
        if !state.sends_requests() {
            return Err(PostError::State { qpn, state });
        }
        // UC-1
        if !is_offered(request.operation) {
            return Err(PostError::NotOffered(qpn));
        }
        if request.length > param::MAX_MESSAGE_LENGTH {
            return Err(PostError::TooLong(request.length));
        }
        if qp.sends.room() == 0 {
            return Err(PostError::Full(qpn));
        }
        let number = qp.sends.post(request);
        qp.make_ready(&mut self.shared);
        Ok(number)
    }

    /// Makes the next packet of a queue pair.
    pub(super) fn transmit_unreliable(&mut self, slot: u32, now: Instant) -> Turn {
        for _ in 0..param::TRANSMIT_QUANTUM {
            let Some(qp) = unreliable_at(&mut self.slots, slot) else { return Turn::Over };
            if qp.head().is_none() {
                return Turn::Over;
            }
            let Some(path) = &qp.path else { return Turn::Over };
            if !path.is_resolved() {
                // UD-7, UD-8
                if now < qp.patient_until {
                    self.shared.timers.set(slot, Some(qp.patient_until));
                    return Turn::Over;
                }
                qp.drop_head(&mut self.shared);
                continue;
            }
            let (peer, client) = (path.neighbour(), qp.client);
            let is_due = now >= qp.next_check;
            if is_due {
                qp.next_check = now.after(param::DATAGRAM_CHECK_INTERVAL);
            }
            let Some(transmit) = qp.transmit(&mut self.shared) else { return Turn::Over };
            let making = (slot, qp.sender.generation);
            if self.making.last() != Some(&making) {
                self.making.push(making);
            }
            // UD-9
            if let Some(peer) = peer.filter(|_| is_due) {
                if self.neighbours.probe(peer.address, client, now) {
                    self.ask(peer);
                }
            }
            return Turn::Frame(transmit);
        }
        Turn::Later
    }

    /// Takes a packet for a queue pair of Unreliable Connection.
    pub(super) fn receive_unreliable(
        &mut self,
        slot: u32,
        (source, destination): (Gid, Address),
        packet: &frame::Repr,
        place: FramePlace,
        verbs: &mut impl Verbs,
        placements: &mut Vec<Placement>,
    ) -> Poll<()> {
        let Stack { slots, shared, .. } = self;
        let Some(qp) = unreliable_at(slots, slot) else { return Poll::Ready(()) };
        let counters = &mut shared.counters;
        let (path, own) = (qp.path.as_ref(), &mut qp.counters);
        if !admits(path, (counters, own), (source, destination), &packet.bth) {
            return Poll::Ready(());
        }
        if packet.opcode.service() == code::UNRELIABLE_CONNECTION {
            if qp.receive(shared, packet, place, verbs, placements).is_pending() {
                return Poll::Pending;
            }
        } else if packet.opcode.code == code::CNP {
            // RC-96
            bump(&mut counters.rp_cnp_ignored);
        } else {
            // UC-1
            bump(&mut counters.drop_bad_opcode);
        }
        count_received(&mut shared.counters, &mut qp.counters);
        Poll::Ready(())
    }

    /// What a burst has done to a queue pair of Unreliable Connection.
    pub(super) fn commit_unreliable(
        &mut self,
        effect: &Effect,
        placed: &[Placed],
        failures: &mut Vec<Failure>,
    ) {
        let Effect { slot, generation, kind } = *effect;
        let qp = unreliable_at(&mut self.slots, slot);
        let Some(qp) = qp.filter(|qp| qp.sender.generation == generation) else { return };
        let shared = &mut self.shared;
        match kind {
            EffectKind::PlacedRequest { placement, at, receive } => {
                let receive = receive.map(|taken| taken.id);
                let failed = failures.iter().any(|failure| failure.slot == slot);
                if failed || placed.get(placement) == Some(&Placed::Copied) {
                    return;
                }
                // UC-11
                if let Some(id) = receive {
                    qp.forget_receive(id);
                    bump(&mut shared.counters.resp_cqe_error);
                    let (qpn, status) = (qp.sender.qpn, ReceiveStatus::LocalProtection);
                    shared.log.release(Event::ReceiveFailed { qpn, srqn: None, id, status });
                }
                failures.push(Failure { slot, request: Some(at), receive });
            }
            EffectKind::Event(event) => release(shared, event, slot, failures),
            _ => {}
        }
    }
}
