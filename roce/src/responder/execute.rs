//! The execution of a request in its turn: it takes receive requests, places payload, and owes answers.

use super::{Answer, Resource, Responder};
use crate::api::{
    AccessDenied, AtomicOperation, Placement, ReceiveKind, RemoteAccess, RemoteRange,
    ResponderMemory, Sink,
};
use crate::arriving::{Request, Stop, allowed, check_remote};
use crate::attributes::AccessFlags;
use crate::counters::bump;
use crate::log::EffectKind;
use crate::opcode::Class;
use crate::param;
use crate::qp::{QpCore, Shared};

impl Responder {
    pub(super) fn execute(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        request: &Request<'_>,
        memory: &mut impl ResponderMemory,
    ) -> Result<(), Stop> {
        let opcode = request.incoming.packet.opcode;
        let in_order = self.arriving.is_next(opcode);
        // RC-36
        let fits = opcode
            .payload
            .allows(request.incoming.packet.payload.len(), core.mtu().bytes() as usize);
        if !in_order || !fits {
            return Err(Stop::Invalid);
        }
        if opcode.position.is_start() {
            self.srqn = request.incoming.packet.srqn;
        } else if self.srqn != request.incoming.packet.srqn {
            // XRC-4
            return Err(Stop::Denied(AccessDenied::Srq));
        }
        match opcode.class {
            Class::Send => self.execute_send(core, shared, request, memory),
            Class::Write => self.execute_write(core, shared, request, memory),
            Class::ReadRequest => self.execute_read(core, shared, request, memory),
            Class::CompareSwap | Class::FetchAdd => {
                self.execute_atomic(core, shared, request, memory)
            }
            _ => Err(Stop::Invalid),
        }
    }

    fn execute_send(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        request: &Request<'_>,
        memory: &mut impl ResponderMemory,
    ) -> Result<(), Stop> {
        // Before a receive request is taken, for the answer may be pending.
        let kind = check_invalidate(request, memory)?;
        self.arriving.take_send(core, shared, request, kind, memory)?;
        self.count_executed(request);
        Ok(())
    }

    fn execute_write(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        request: &Request<'_>,
        memory: &mut impl ResponderMemory,
    ) -> Result<(), Stop> {
        self.arriving.take_write(core, shared, request, memory)?;
        self.count_executed(request);
        Ok(())
    }

    fn execute_read(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        request: &Request<'_>,
        memory: &mut impl ResponderMemory,
    ) -> Result<(), Stop> {
        let Some(header) = request.incoming.packet.reth else { return Err(Stop::Invalid) };
        // RC-23, RC-43
        if !core.attributes.access.contains(AccessFlags::REMOTE_READ)
            || header.dma_length > param::MAX_MESSAGE_LENGTH
            || core.attributes.max_dest_rd_atomic == 0
        {
            return Err(Stop::Invalid);
        }
        allowed(check_remote(memory, request.target, header.into(), RemoteAccess::Read))?;
        let packets = u64::from(core.mtu().packets(header.dma_length));
        self.begin_answer(core, shared, request, packets, Answer::Read(header))?;
        bump(&mut shared.counters.rx_read_requests);
        Ok(())
    }

    fn execute_atomic(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        request: &Request<'_>,
        memory: &mut impl ResponderMemory,
    ) -> Result<(), Stop> {
        let Some(header) = request.incoming.packet.atomic else { return Err(Stop::Invalid) };
        let length = AtomicOperation::LENGTH;
        // RC-43, RC-45
        if !core.attributes.access.contains(AccessFlags::REMOTE_ATOMIC)
            || core.attributes.max_dest_rd_atomic == 0
            || header.va & u64::from(length.wrapping_sub(1)) != 0
        {
            return Err(Stop::Invalid);
        }
        let range = RemoteRange { rkey: header.rkey, va: header.va, length: u64::from(length) };
        allowed(check_remote(memory, request.target, range, RemoteAccess::Atomic))?;
        let operation = match request.incoming.packet.opcode.class {
            Class::CompareSwap => {
                AtomicOperation::CompareSwap { compare: header.compare, swap: header.swap_or_add }
            }
            _ => AtomicOperation::FetchAdd { add: header.swap_or_add },
        };
        self.begin_answer(core, shared, request, 1, Answer::Atomic { before: 0 })?;
        // RC-99
        let start = request.incoming.place.payload_start;
        let placement = shared.log.place(Placement {
            qpn: core.qpn,
            srqn: request.incoming.packet.srqn,
            sink: Sink::Atomic { rkey: header.rkey, va: header.va, operation },
            offset: 0,
            frame_index: request.incoming.place.frame_index,
            range: start..start,
        });
        // As many messages as before it.
        let at = request.at;
        core.push_effect(shared, EffectKind::ExecutedAtomic { placement, at });
        bump(&mut shared.counters.rx_atomic_requests);
        Ok(())
    }

    /// Executes a request that is answered by `packets` responses: they are owed from now on.
    fn begin_answer(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        request: &Request<'_>,
        packets: u64,
        answer: Answer,
    ) -> Result<(), Stop> {
        let most = usize::from(core.attributes.max_dest_rd_atomic);
        let responder = &mut *self;
        // RC-44
        while responder.resources.len() >= most {
            // A well-behaved peer has received everything of the oldest; only a ghost of its
            // request can have set it going again.
            if responder.resources.front().is_some_and(|it| it.is_active() && !it.repeated) {
                return Err(Stop::Invalid);
            }
            responder.resources.pop_front();
        }
        responder.count_message();
        responder.resources.push_back(Resource {
            first: request.at.sequence,
            end: request.at.sequence.wrapping_add(packets),
            start: request.at.sequence,
            next: request.at.sequence,
            msn: responder.executed.msn,
            repeated: false,
            srqn: request.incoming.packet.srqn,
            answer,
        });
        responder.count_streams();
        responder.advance(packets);
        core.make_ready(shared);
        Ok(())
    }
}

/// The kind of SEND, which must be allowed to if it invalidates a key.
fn check_invalidate(
    request: &Request<'_>,
    memory: &mut impl ResponderMemory,
) -> Result<ReceiveKind, Stop> {
    let Some(rkey) = request.incoming.packet.invalidate else { return Ok(ReceiveKind::Send) };
    // RC-103
    let key = RemoteRange { rkey, va: 0, length: 0 };
    allowed(memory.check_remote(request.target, key, RemoteAccess::Invalidate))?;
    Ok(ReceiveKind::SendInvalidate { rkey })
}
