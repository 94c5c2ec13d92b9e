//! Messages that arrive along a connection: the effects of packets of SENDs and WRITEs, answered or not.

use core::task::Poll;

use crate::api::{
    AccessDenied, Event, Placement, ReceiveError, ReceiveKind, RemoteAccess, RemoteRange,
    ResponderMemory, Sink, TakenReceive, Target,
};
use crate::attributes::AccessFlags;
use crate::counters::bump;
use crate::incoming::Incoming;
use crate::log::{EffectKind, Taken};
use crate::opcode::{Class, Opcode};
use crate::owed::Ack;
use crate::param;
use crate::qp::{QpCore, Shared};
use crate::wire::reth;

/// A request packet of the peer's, in its turn.
pub(crate) struct Request<'a> {
    pub incoming: &'a Incoming<'a>,
    pub target: Target,
    pub length: u32,
    /// The packet that an answer to it names, and the messages executed until then.
    pub at: Ack,
}

/// Why a request is not executed.
pub(crate) enum Stop {
    /// No request is like that, or not here.
    Invalid,
    /// The layer above does not allow it.
    Denied(AccessDenied),
    /// There is no receive request for it.
    NoReceive(ReceiveError),
    /// The message does not fit the receive request.
    TooLong(Taken),
    /// The layer above has not decided yet: the packet comes again.
    Undecided,
}

/// A message of which not all packets have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Current {
    /// A SEND, `offset` bytes of which have arrived.
    Send { receive: TakenReceive, offset: u64 },
    /// A WRITE, `offset` bytes of which have arrived.
    Write { whole: reth::Repr, offset: u32 },
}

/// The message that is coming in, and the receive requests for it and those behind it.
#[derive(Debug, Default)]
pub(crate) struct Arriving {
    current: Option<Current>,
    /// A receive request that a message had taken which was given up then.
    held: Option<TakenReceive>,
    /// Receive requests left when one was last asked for; `None` where others take from the queue.
    left: Option<u32>,
}

impl Arriving {
    /// Nothing has arrived yet; `left` receive requests are promised, or nothing can be.
    pub(crate) fn new(left: Option<u32>) -> Self {
        Self { current: None, held: None, left }
    }

    /// Receive requests for messages after those that are complete. The one that the message in progress has
    /// taken is for such a message.
    // RC-89
    pub(crate) fn receives(&self) -> Option<u32> {
        let taken = matches!(self.current, Some(Current::Send { .. }));
        self.left.map(|left| left.saturating_add(u32::from(taken)))
    }

    /// Whether a packet of this kind is one of the message in progress, or begins one where there is none.
    // RC-35, UC-6
    #[inline]
    pub(crate) fn is_next(&self, opcode: &Opcode) -> bool {
        match (self.current, opcode.class) {
            (None, _) => opcode.position.is_start(),
            (Some(Current::Send { .. }), Class::Send)
            | (Some(Current::Write { .. }), Class::Write) => !opcode.position.is_start(),
            (Some(_), _) => false,
        }
    }

    /// The offset of the next payload in the message in progress, or in one that begins.
    pub(crate) fn offset(&self) -> u64 {
        match self.current {
            Some(Current::Send { offset, .. }) => offset,
            Some(Current::Write { offset, .. }) => offset.into(),
            None => 0,
        }
    }

    /// Gives the message in progress up. Its receive request is for the next one.
    // UC-7
    pub(crate) fn abandon(&mut self) {
        if let Some(Current::Send { receive, .. }) = self.current.take() {
            self.held = Some(receive);
        }
    }

    /// Gives everything up, and a receive request that was taken back.
    // RC-83, UC-14
    pub(crate) fn stop(&mut self) -> Option<u64> {
        self.abandon();
        self.held.take().map(|receive| receive.id)
    }

    /// Drops the receive request `id`, whose failure is already reported.
    pub(crate) fn forget_receive(&mut self, id: u64) {
        if matches!(self.current, Some(Current::Send { receive, .. }) if receive.id == id) {
            self.current = None;
        }
        self.held = self.held.filter(|receive| receive.id != id);
    }

    /// Executes a packet of a SEND of some kind.
    #[inline]
    pub(crate) fn take_send(
        &mut self,
        core: &QpCore,
        shared: &mut Shared,
        request: &Request<'_>,
        kind: ReceiveKind,
        memory: &mut impl ResponderMemory,
    ) -> Result<(), Stop> {
        let (receive, offset) = match self.current {
            Some(Current::Send { receive, offset }) => (receive, offset),
            // RC-38
            _ => (self.take_receive(request.target, memory)?, 0),
        };
        let end = offset.wrapping_add(u64::from(request.length));
        // From here on a message that is given up gives its receive request back.
        self.current = Some(Current::Send { receive, offset: end });
        // RC-40, UC-9
        // The completion reports a length of 32 bits, so a receive request takes no more, even if it offers more.
        if end > receive.capacity || end > u64::from(param::MAX_MESSAGE_LENGTH) {
            return Err(Stop::TooLong(request.taken(receive)));
        }
        if request.length != 0 {
            let sink = Sink::Receive { id: receive.id };
            request.place(core, shared, sink, offset, Some(receive));
        }
        if request.incoming.packet.opcode.position.is_end() {
            self.current = None;
            bump(&mut shared.counters.rdma_recvs);
            // At most MAX_MESSAGE_LENGTH.
            request.complete(core, shared, receive, end as u32, kind);
        }
        Ok(())
    }

    /// Executes a packet of a WRITE.
    #[inline]
    pub(crate) fn take_write(
        &mut self,
        core: &QpCore,
        shared: &mut Shared,
        request: &Request<'_>,
        memory: &mut impl ResponderMemory,
    ) -> Result<(), Stop> {
        let is_end = request.incoming.packet.opcode.position.is_end();
        let (whole, offset) = match self.current {
            Some(Current::Write { whole, offset }) => (whole, offset),
            _ => (begin_write(core, request, memory)?, 0),
        };
        let reth::Repr { rkey, va, dma_length: length } = whole;
        let end = offset.checked_add(request.length).ok_or(Stop::Invalid)?;
        // RC-37, UC-8
        if (is_end && end != length) || (!is_end && end >= length) {
            return Err(Stop::Invalid);
        }
        // RC-39, RC-62
        // Taken before anything is placed: without one, the packet is executed again later.
        let receive = match request.incoming.packet.immediate {
            Some(_) => Some(self.take_receive(request.target, memory)?),
            None => None,
        };
        if request.length != 0 {
            let sink = Sink::Remote { rkey, va: va.wrapping_add(u64::from(offset)) };
            request.place(core, shared, sink, u64::from(offset), receive);
        }
        self.current = (!is_end).then_some(Current::Write { whole, offset: end });
        if is_end {
            bump(&mut shared.counters.rx_write_requests);
        }
        if let Some(receive) = receive {
            request.complete(core, shared, receive, length, ReceiveKind::Write);
        }
        Ok(())
    }

    fn take_receive(
        &mut self,
        target: Target,
        memory: &mut impl ResponderMemory,
    ) -> Result<TakenReceive, Stop> {
        // UC-7
        if let Some(held) = self.held.take() {
            return Ok(held);
        }
        match memory.take_receive(target) {
            Poll::Ready(Ok(receive)) => {
                self.left = receive.left;
                Ok(receive)
            }
            Poll::Ready(Err(error)) => Err(Stop::NoReceive(error)),
            Poll::Pending => Err(Stop::Undecided),
        }
    }
}

impl Request<'_> {
    fn taken(&self, receive: TakenReceive) -> Taken {
        Taken { srqn: self.incoming.packet.srqn, id: receive.id }
    }

    /// Places its payload, of which there is some.
    #[inline]
    fn place(
        &self,
        core: &QpCore,
        shared: &mut Shared,
        sink: Sink,
        offset: u64,
        receive: Option<TakenReceive>,
    ) {
        let receive = receive.map(|receive| self.taken(receive));
        let place = self.incoming.place;
        let start = place.payload_start;
        let placement = shared.log.place(Placement {
            qpn: core.qpn,
            srqn: self.incoming.packet.srqn,
            sink,
            offset,
            frame_index: place.frame_index,
            range: start..start.wrapping_add(self.length as usize),
        });
        core.push_effect(shared, EffectKind::PlacedRequest { placement, at: self.at, receive });
    }

    /// Reports a message that it completes.
    fn complete(
        &self,
        core: &QpCore,
        shared: &mut Shared,
        receive: TakenReceive,
        length: u32,
        kind: ReceiveKind,
    ) {
        let received = Event::ReceiveCompleted {
            qpn: core.qpn,
            srqn: self.incoming.packet.srqn,
            id: receive.id,
            length,
            kind,
            imm: self.incoming.packet.immediate,
            solicited: self.incoming.packet.bth.solicited,
            source_qpn: None,
        };
        core.emit(shared, received);
    }
}

/// Checks the first packet of a WRITE: rights, key, address and length.
fn begin_write(
    core: &QpCore,
    request: &Request<'_>,
    memory: &mut impl ResponderMemory,
) -> Result<reth::Repr, Stop> {
    let whole = request.incoming.packet.reth.ok_or(Stop::Invalid)?;
    // RC-23, RC-43, UC-10
    if !core.attributes.access.contains(AccessFlags::REMOTE_WRITE)
        || whole.dma_length > param::MAX_MESSAGE_LENGTH
    {
        return Err(Stop::Invalid);
    }
    allowed(check_remote(memory, request.target, whole.into(), RemoteAccess::Write))?;
    Ok(whole)
}

/// Asks the layer above whether the peer of a QP may access memory.
pub(crate) fn check_remote(
    memory: &mut impl ResponderMemory,
    target: Target,
    range: RemoteRange,
    access: RemoteAccess,
) -> Poll<Result<(), AccessDenied>> {
    let RemoteRange { va, length, .. } = range;
    if length == 0 && target.srq.is_none() {
        // RC-42: The specification checks no key for an empty access.
        return Poll::Ready(Ok(()));
    }
    // RC-41: The last byte must have an address.
    if va.checked_add(length.saturating_sub(1)).is_none() {
        return Poll::Ready(Err(AccessDenied::Memory));
    }
    memory.check_remote(target, range, access)
}

/// The answer of the layer above to an access, as the reason for not executing the request.
pub(crate) fn allowed(answer: Poll<Result<(), AccessDenied>>) -> Result<(), Stop> {
    match answer {
        Poll::Ready(allowed) => allowed.map_err(Stop::Denied),
        Poll::Pending => Err(Stop::Undecided),
    }
}
