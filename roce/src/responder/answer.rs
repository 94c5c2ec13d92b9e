//! The answers of a responder, in PSN order: acknowledgements, NAKs, and responses to READs and atomics.

use super::{Answer, Nak, Resource, Responder};
use crate::api::{FramePayload, Source, Transmit};
use crate::counters::{add, bump};
use crate::opcode::{Position, code};
use crate::owed::Ack;
use crate::psn::Psn;
use crate::qp::{QpCore, Shared, pad};
use crate::types::{Instant, PathMtu};
use crate::wire::aeth::{self, CREDITS_INVALID, NakCode, Syndrome};
use crate::wire::extension::atomicacketh;
use crate::wire::reth;

impl Responder {
    /// Emits the next frame of the responder, if there is one.
    pub(crate) fn transmit_response(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        now: Instant,
    ) -> Option<Transmit> {
        let ack = self.owed.next();
        // RC-54
        if let Some(resource) = self.next_answer() {
            if ack.is_none_or(|ack| ack > resource.next) {
                // RC-107
                if core.is_held(now) && matches!(resource.answer, Answer::Read(_)) {
                    return None;
                }
                let (sequence, resource) = (resource.next, resource.advance());
                return self.transmit_answer(core, shared, now, sequence, resource);
            }
        }
        // RC-50
        if let Some(ack) = self.owed.pop() {
            // RC-52
            return Self::acknowledgement(core, Syndrome::Ack { credits: self.credit_code() }, ack);
        }
        if let Some(refusal) = self.refusal.take() {
            self.silence();
            return Self::acknowledgement(core, Syndrome::Nak(refusal.code), refusal.at);
        }
        let nak = self.nak.take()?;
        self.transmit_nak(core, shared, nak)
    }

    /// The credit code for an acknowledgement to the peer.
    // RC-52, RC-89
    fn credit_code(&self) -> u8 {
        self.credits().map_or(CREDITS_INVALID, aeth::credit_code)
    }

    /// Emits a NAK, unless the packet that it misses has come in the meantime.
    fn transmit_nak(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        nak: Nak,
    ) -> Option<Transmit> {
        let expected = self.executed.next;
        let syndrome = match nak {
            Nak::ReceiverNotReady(sequence) if sequence == expected => {
                bump(&mut shared.counters.send_rnr_err);
                bump(&mut core.counters.send_rnr_err);
                // RC-62
                Syndrome::RnrNak { timer: core.attributes.min_rnr_timer }
            }
            _ if expected <= self.dropped => {
                bump(&mut shared.counters.sent_seq_err);
                // RC-53
                Syndrome::Nak(NakCode::PsnSequenceError)
            }
            _ => return None,
        };
        self.reported = true;
        Self::acknowledgement(core, syndrome, self.at(expected))
    }

    fn acknowledgement(core: &QpCore, syndrome: Syndrome, at: Ack) -> Option<Transmit> {
        let transport = core.transport_header(code::ACKNOWLEDGE, Psn::of(at.sequence), 0);
        let mut header = core.path.as_ref()?.header(&transport, aeth::LENGTH);
        // RC-51
        header.push(&aeth::Repr { syndrome, msn: at.msn }.to_bytes());
        Some(Transmit::without_payload(core.qpn, core.priority, header))
    }

    /// The response `sequence` of a READ or an atomic that has moved on.
    fn transmit_answer(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        now: Instant,
        sequence: u64,
        resource: Resource,
    ) -> Option<Transmit> {
        if !resource.is_active() {
            self.streaming = self.streaming.saturating_sub(1);
        }
        match resource.answer {
            Answer::Atomic { before } => self.atomic_response(core, &resource, before),
            Answer::Read(whole) => {
                self.transmit_read_response(core, shared, now, sequence, &resource, whole)
            }
        }
    }

    fn atomic_response(&self, core: &QpCore, atomic: &Resource, before: u64) -> Option<Transmit> {
        let transport = core.transport_header(code::ATOMIC_ACKNOWLEDGE, Psn::of(atomic.first), 0);
        let after = aeth::LENGTH.wrapping_add(atomicacketh::LENGTH);
        let mut header = core.path.as_ref()?.header(&transport, after);
        let syndrome = Syndrome::Ack { credits: self.credit_code() };
        // RC-51, RC-52, RC-99
        header.push(&aeth::Repr { syndrome, msn: atomic.msn }.to_bytes());
        header.push(&atomicacketh::to_bytes(before));
        Some(Transmit::without_payload(core.qpn, core.priority, header))
    }

    fn transmit_read_response(
        &self,
        core: &mut QpCore,
        shared: &mut Shared,
        now: Instant,
        sequence: u64,
        read: &Resource,
        whole: reth::Repr,
    ) -> Option<Transmit> {
        let is_last = !read.is_active();
        let (offset, length) =
            response_part(sequence.wrapping_sub(read.first), whole.dma_length, core.mtu());
        // RC-66
        let position = Position::new(sequence == read.start, is_last);
        let response = match position {
            Position::First => code::READ_RESPONSE_FIRST,
            Position::Middle => code::READ_RESPONSE_MIDDLE,
            Position::Last => code::READ_RESPONSE_LAST,
            Position::Only => code::READ_RESPONSE_ONLY,
        };
        let psn = Psn::of(sequence);
        let transport = core.transport_header(response, psn, length);
        let pad = pad(length);
        let mut after = (length as usize).wrapping_add(usize::from(pad));
        let with_ack = position != Position::Middle;
        if with_ack {
            after = after.wrapping_add(aeth::LENGTH);
        }
        let mut header = core.path.as_ref()?.header(&transport, after);
        if with_ack {
            let syndrome = Syndrome::Ack { credits: self.credit_code() };
            header.push(&aeth::Repr { syndrome, msn: read.msn }.to_bytes());
        }
        let payload = (length != 0).then_some(FramePayload {
            qpn: core.qpn,
            srqn: read.srqn,
            source: Source::Remote { rkey: whole.rkey, va: whole.va.wrapping_add(offset) },
            offset,
            length,
            psn,
        });
        add(&mut shared.counters.sent_bytes, u64::from(length));
        let (qpn, priority) = (Some(core.qpn), core.priority);
        let mut transmit = Transmit { qpn, header, payload, pad, needs_icrc: true, priority };
        core.departs(shared, now, &mut transmit);
        Some(transmit)
    }
}

/// Offset and length of the payload of a READ's response of that number.
fn response_part(number: u64, length: u32, mtu: PathMtu) -> (u64, u32) {
    let offset = number << mtu.shift();
    let rest = u64::from(length).saturating_sub(offset);
    // At most a path MTU.
    (offset, rest.min(u64::from(mtu.bytes())) as u32)
}
