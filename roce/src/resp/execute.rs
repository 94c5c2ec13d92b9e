//! What a request in its turn does: it takes receive requests, places payload, and owes answers.

use core::task::Poll;

use super::{Answer, Current, Request, Resource, Stop, allowed, check_remote};
use crate::api::{
    AtomicOperation, Event, Placement, ReceiveError, ReceiveKind, RemoteAccess, Sink, TakenReceive,
    Target, Verbs,
};
use crate::attributes::AccessFlags;
use crate::counters::bump;
use crate::log::{EffectKind, Taken};
use crate::opcode::Class;
use crate::owed::Ack;
use crate::param;
use crate::psn::Psn;
use crate::qp::Shared;
use crate::reliable::RcQp;
use crate::wire::aeth::NakCode;

impl RcQp {
    pub(super) fn execute(
        &mut self,
        shared: &mut Shared,
        request: &Request<'_>,
        verbs: &mut impl Verbs,
        placements: &mut Vec<Placement>,
    ) -> Result<(), Stop> {
        let opcode = request.packet.opcode;
        // RC-35
        let in_order = match (self.responder.current, opcode.class) {
            (None, _) => opcode.position.is_start(),
            (Some(Current::Send { .. }), Class::Send)
            | (Some(Current::Write { .. }), Class::Write) => !opcode.position.is_start(),
            (Some(_), _) => false,
        };
        // RC-36
        let fits =
            opcode.payload.allows(request.packet.payload.len(), self.core.mtu().bytes() as usize);
        if !in_order || !fits {
            return Err(Stop::Refuse(NakCode::InvalidRequest));
        }
        if opcode.position.is_start() {
            self.responder.srqn = request.packet.srqn;
        } else if self.responder.srqn != request.packet.srqn {
            // XRC-4
            return Err(Stop::Refuse(NakCode::InvalidRdRequest));
        }
        match opcode.class {
            Class::Send => self.execute_send(shared, request, verbs, placements),
            Class::Write => self.execute_write(shared, request, verbs, placements),
            Class::ReadRequest => self.execute_read(shared, request, verbs),
            Class::CompareSwap | Class::FetchAdd => {
                self.execute_atomic(shared, request, verbs, placements)
            }
            _ => Err(Stop::Refuse(NakCode::InvalidRequest)),
        }
    }

    fn execute_send(
        &mut self,
        shared: &mut Shared,
        request: &Request<'_>,
        verbs: &mut impl Verbs,
        placements: &mut Vec<Placement>,
    ) -> Result<(), Stop> {
        // Before a receive request is taken, for the answer may be pending.
        let kind = self.check_invalidate(request, verbs)?;
        let (receive, offset) = match self.responder.current {
            Some(Current::Send { receive, offset }) => (receive, offset),
            // RC-38
            _ => (self.take_receive(request.target, verbs)?, 0),
        };
        let end = offset.wrapping_add(u64::from(request.length));
        // RC-40
        // A 32-bit length is reported, so that much fits whatever the receive request offers.
        if end > receive.capacity || end > u64::from(param::MAX_MESSAGE_LENGTH) {
            return Err(Stop::TooLong(Taken { srqn: request.packet.srqn, id: receive.id }));
        }
        if request.length != 0 {
            let sink = Sink::Receive { id: receive.id };
            self.place(shared, request, sink, offset, Some(receive.id), placements);
        }
        self.responder.advance(1);
        if !request.packet.opcode.position.is_end() {
            self.responder.current = Some(Current::Send { receive, offset: end });
            return Ok(());
        }
        self.responder.current = None;
        self.responder.count_message();
        bump(&mut shared.counters.rdma_recvs);
        self.core.emit(
            shared,
            Event::ReceiveCompleted {
                qpn: self.core.qpn,
                srqn: request.packet.srqn,
                id: receive.id,
                // At most MAX_MESSAGE_LENGTH.
                length: end as u32,
                kind,
                imm: request.packet.immediate,
                solicited: request.packet.bth.solicited,
                source_qpn: None,
            },
        );
        Ok(())
    }

    /// What kind of SEND it is; one that takes a key back must be allowed to.
    fn check_invalidate(
        &self,
        request: &Request<'_>,
        verbs: &mut impl Verbs,
    ) -> Result<ReceiveKind, Stop> {
        let Some(rkey) = request.packet.invalidate else { return Ok(ReceiveKind::Send) };
        // RC-103
        allowed(verbs.check_remote(request.target, rkey, 0, 0, RemoteAccess::Invalidate))?;
        Ok(ReceiveKind::SendInvalidate { rkey })
    }

    fn execute_write(
        &mut self,
        shared: &mut Shared,
        request: &Request<'_>,
        verbs: &mut impl Verbs,
        placements: &mut Vec<Placement>,
    ) -> Result<(), Stop> {
        let invalid = Stop::Refuse(NakCode::InvalidRequest);
        let is_end = request.packet.opcode.position.is_end();
        let (rkey, va, offset, length) = match self.responder.current {
            Some(Current::Write { rkey, va, offset, length }) => (rkey, va, offset, length),
            _ => self.begin_write(request, verbs)?,
        };
        let end =
            offset.checked_add(request.length).ok_or(Stop::Refuse(NakCode::InvalidRequest))?;
        // RC-37
        if (is_end && end != length) || (!is_end && end >= length) {
            return Err(invalid);
        }
        // RC-39, RC-62
        // Taken before anything is placed: without one, the packet is executed again later.
        let receive = match request.packet.immediate {
            Some(_) => Some(self.take_receive(request.target, verbs)?),
            None => None,
        };
        if request.length != 0 {
            let sink = Sink::Remote { rkey, va: va.wrapping_add(u64::from(offset)) };
            let id = receive.map(|receive| receive.id);
            self.place(shared, request, sink, u64::from(offset), id, placements);
        }
        self.responder.advance(1);
        if !is_end {
            self.responder.current = Some(Current::Write { rkey, va, offset: end, length });
            return Ok(());
        }
        self.responder.current = None;
        self.responder.count_message();
        bump(&mut shared.counters.rx_write_requests);
        if let Some(receive) = receive {
            self.core.emit(
                shared,
                Event::ReceiveCompleted {
                    qpn: self.core.qpn,
                    srqn: request.packet.srqn,
                    id: receive.id,
                    length,
                    kind: ReceiveKind::Write,
                    imm: request.packet.immediate,
                    solicited: request.packet.bth.solicited,
                    source_qpn: None,
                },
            );
        }
        Ok(())
    }

    /// Checks the first packet of a WRITE: key, address, offset 0, length.
    fn begin_write(
        &self,
        request: &Request<'_>,
        verbs: &mut impl Verbs,
    ) -> Result<(u32, u64, u32, u32), Stop> {
        let rdma = request.packet.reth.ok_or(Stop::Refuse(NakCode::InvalidRequest))?;
        // RC-23, RC-43
        if !self.core.attributes.access.contains(AccessFlags::REMOTE_WRITE)
            || rdma.dma_length > param::MAX_MESSAGE_LENGTH
        {
            return Err(Stop::Refuse(NakCode::InvalidRequest));
        }
        let asked = (rdma.rkey, rdma.va, rdma.dma_length);
        allowed(check_remote(verbs, request.target, asked, RemoteAccess::Write))?;
        Ok((rdma.rkey, rdma.va, 0, rdma.dma_length))
    }

    fn execute_read(
        &mut self,
        shared: &mut Shared,
        request: &Request<'_>,
        verbs: &mut impl Verbs,
    ) -> Result<(), Stop> {
        let invalid = Stop::Refuse(NakCode::InvalidRequest);
        let Some(rdma) = request.packet.reth else { return Err(invalid) };
        // RC-23, RC-43
        if !self.core.attributes.access.contains(AccessFlags::REMOTE_READ)
            || rdma.dma_length > param::MAX_MESSAGE_LENGTH
            || self.core.attributes.max_dest_rd_atomic == 0
        {
            return Err(invalid);
        }
        let asked = (rdma.rkey, rdma.va, rdma.dma_length);
        allowed(check_remote(verbs, request.target, asked, RemoteAccess::Read))?;
        let packets = u64::from(self.core.mtu().packets(rdma.dma_length));
        let (rkey, va, length) = (rdma.rkey, rdma.va, rdma.dma_length);
        self.begin_answer(shared, request, packets, Answer::Read { rkey, va, length })?;
        bump(&mut shared.counters.rx_read_requests);
        Ok(())
    }

    fn execute_atomic(
        &mut self,
        shared: &mut Shared,
        request: &Request<'_>,
        verbs: &mut impl Verbs,
        placements: &mut Vec<Placement>,
    ) -> Result<(), Stop> {
        let invalid = Stop::Refuse(NakCode::InvalidRequest);
        let Some(header) = request.packet.atomic else { return Err(invalid) };
        let length = AtomicOperation::LENGTH;
        // RC-43, RC-45
        if !self.core.attributes.access.contains(AccessFlags::REMOTE_ATOMIC)
            || self.core.attributes.max_dest_rd_atomic == 0
            || header.va & u64::from(length.wrapping_sub(1)) != 0
        {
            return Err(invalid);
        }
        let asked = (header.rkey, header.va, length);
        allowed(check_remote(verbs, request.target, asked, RemoteAccess::Atomic))?;
        let operation = match request.packet.opcode.class {
            Class::CompareSwap => {
                AtomicOperation::CompareSwap { compare: header.compare, swap: header.swap_or_add }
            }
            _ => AtomicOperation::FetchAdd { add: header.swap_or_add },
        };
        self.begin_answer(shared, request, 1, Answer::Atomic { before: 0 })?;
        // RC-99
        let placement = shared.log.place();
        // As many messages as before it.
        let at = Ack {
            msn: self.responder.msn.wrapping_sub(1) & Psn::MASK,
            ..self.responder.at(request.sequence)
        };
        self.core.push_effect(shared, EffectKind::ExecutedAtomic { placement, at });
        let start = request.place.payload_start;
        placements.push(Placement {
            qpn: self.core.qpn,
            srqn: request.packet.srqn,
            sink: Sink::Atomic { rkey: header.rkey, va: header.va, operation },
            offset: 0,
            frame_index: request.place.frame_index,
            range: start..start,
        });
        bump(&mut shared.counters.rx_atomic_requests);
        Ok(())
    }

    /// Executes a request that is answered by `packets` responses: they are owed from now on.
    fn begin_answer(
        &mut self,
        shared: &mut Shared,
        request: &Request<'_>,
        packets: u64,
        answer: Answer,
    ) -> Result<(), Stop> {
        let most = usize::from(self.core.attributes.max_dest_rd_atomic);
        let responder = &mut self.responder;
        // RC-44
        while responder.resources.len() >= most {
            // A well-behaved peer has received everything of the oldest; only a ghost of its
            // request can have set it going again.
            if responder.resources.front().is_some_and(|it| it.is_active() && !it.repeated) {
                return Err(Stop::Refuse(NakCode::InvalidRequest));
            }
            responder.resources.pop_front();
        }
        responder.count_message();
        responder.resources.push_back(Resource {
            first: request.sequence,
            end: request.sequence.wrapping_add(packets),
            start: request.sequence,
            next: request.sequence,
            msn: responder.msn,
            repeated: false,
            srqn: request.packet.srqn,
            answer,
        });
        responder.count_streams();
        responder.advance(packets);
        self.core.make_ready(shared);
        Ok(())
    }

    fn take_receive(
        &mut self,
        target: Target,
        verbs: &mut impl Verbs,
    ) -> Result<TakenReceive, Stop> {
        match verbs.take_receive(target) {
            Poll::Ready(Ok(receive)) => {
                self.responder.left = receive.left;
                Ok(receive)
            }
            Poll::Ready(Err(ReceiveError::Empty)) => Err(Stop::NotReady),
            Poll::Ready(Err(ReceiveError::Invalid)) => Err(Stop::BadReceive),
            // XRC-5
            Poll::Ready(Err(ReceiveError::NoSrq)) => Err(Stop::Refuse(NakCode::InvalidRdRequest)),
            Poll::Pending => Err(Stop::Undecided),
        }
    }

    fn place(
        &mut self,
        shared: &mut Shared,
        request: &Request<'_>,
        sink: Sink,
        offset: u64,
        receive: Option<u64>,
        placements: &mut Vec<Placement>,
    ) {
        let placement = shared.log.place();
        let at = self.responder.at(request.sequence);
        let srqn = request.packet.srqn;
        let receive = receive.map(|id| Taken { srqn, id });
        self.core.push_effect(shared, EffectKind::PlacedRequest { placement, at, receive });
        let start = request.place.payload_start;
        placements.push(Placement {
            qpn: self.core.qpn,
            srqn,
            sink,
            offset,
            frame_index: request.place.frame_index,
            range: start..start.wrapping_add(request.length as usize),
        });
    }
}
