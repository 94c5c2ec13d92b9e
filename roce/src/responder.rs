//! The responder: executes requests in order, and answers with acknowledgements, READ responses and
//! the results of atomics.

use core::task::{Poll, ready};
use std::collections::VecDeque;

use fpga_regs::engine::qp::QpState;

use crate::api::{
    AccessDenied, QpEvent, ReceiveError, ReceiveStatus, RemoteAccess, RemoteRange, ResponderMemory,
    Target, XrcSrq,
};
use crate::arriving::{Arriving, Request, Stop};
use crate::counters::{add, bump};
use crate::drops::{self, Reason};
use crate::incoming::Incoming;
use crate::log::Taken;
use crate::opcode::Class;
use crate::owed::{Ack, Owed};
use crate::param;
use crate::psn::Psn;
use crate::qp::{QpCore, Shared};
use crate::service::Service;
use crate::services::{Part, PartKind};
use crate::wire::aeth::NakCode;
use crate::wire::{frame, reth};

mod answer;
mod execute;

/// A READ or atomic request of the peer, kept so that it can be answered again.
#[derive(Clone, Copy, Debug)]
struct Resource {
    /// The sequence of its first response.
    first: u64,
    /// The sequence after its last response.
    end: u64,
    /// Where the present stream of responses began.
    start: u64,
    /// The response to send next; `end` if none.
    next: u64,
    msn: u32,
    /// Whether the present stream answers a repeated request, which may be a ghost.
    repeated: bool,
    /// Along XRC: the shared receive queue that it names.
    srqn: Option<u32>,
    answer: Answer,
}

/// The answer to a request.
#[derive(Clone, Copy, Debug)]
enum Answer {
    /// Memory, as it is when a response leaves.
    Read(reth::Repr),
    /// The value before an atomic operation, known once that is executed.
    Atomic { before: u64 },
}

impl Resource {
    fn is_active(&self) -> bool {
        self.next < self.end
    }

    /// Moves on to the next response.
    fn advance(&mut self) -> Self {
        self.next = self.next.wrapping_add(1);
        *self
    }

    /// Answers it again, from a response on.
    fn repeat_from(&mut self, sequence: u64) {
        self.start = sequence;
        self.next = sequence;
        self.repeated = true;
    }

    /// The acknowledgement of all that came before it.
    fn acknowledgement_before(&self) -> Ack {
        Ack { sequence: self.first.wrapping_sub(1), msn: self.msn.wrapping_sub(1) & Psn::MASK }
    }
}

/// A NAK that waits for its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nak {
    /// A packet is missing.
    Sequence,
    /// The packet of this sequence found no receive request.
    ReceiverNotReady(u64),
}

/// A request that was refused for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refusal {
    code: NakCode,
    /// The request, and the messages executed before it.
    at: Ack,
}

/// How far the peer's requests have come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Mark {
    /// The packet after the last one.
    next: u64,
    /// The message sequence number: messages up to there, 24 bits.
    msn: u32,
}

impl Mark {
    /// The acknowledgement of everything before it.
    fn acknowledgement(self) -> Ack {
        Ack { sequence: self.next.wrapping_sub(1), msn: self.msn }
    }
}

/// The responder of a queue pair. Packets are named by sequence (see [`crate::psn`]).
#[derive(Debug, Default)]
pub(crate) struct Responder {
    /// The end of the executed requests; the next packet is the expected one.
    executed: Mark,
    /// How far the peer may be told that they are: no further than they are executed. A request that comes again is
    /// answered by this.
    acknowledged: Mark,
    arriving: Arriving,
    /// Along XRC: the shared receive queue that the message in progress names.
    srqn: Option<u32>,
    /// Whether the gap before this sequence was reported (PSN sequence error or RNR), and further packets before its
    /// closing are dropped silently.
    reported: bool,
    /// The last packet dropped ahead of a gap.
    dropped: u64,
    nak: Option<Nak>,
    /// Acknowledgements of executed requests. A NAK waits until they are sent.
    owed: Owed,
    /// The latest READ and atomic requests, oldest first.
    resources: VecDeque<Resource>,
    /// How many of them have responses to send.
    streaming: usize,
    refusal: Option<Refusal>,
}

impl Responder {
    /// Bytes that it keeps of requests at most, beside itself.
    pub(crate) const MOST_BYTES: usize =
        Owed::MOST_BYTES + 2 * param::MAX_RD_ATOMIC as usize * size_of::<Resource>();

    /// Begins a connection. Along XRC its receive queues are shared.
    pub(crate) fn start(&mut self, psn: Psn, is_shared: bool) {
        let mut resources = core::mem::take(&mut self.resources);
        resources.clear();
        // Nobody has looked into the receive queue yet, so nothing is promised.
        let arriving = Arriving::new((!is_shared).then_some(0));
        let start = Mark { next: psn.first_sequence(), msn: 0 };
        *self =
            Self { executed: start, acknowledged: start, arriving, resources, ..Self::default() };
    }

    /// Receive requests for messages after those counted as executed.
    pub(crate) fn credits(&self) -> Option<u32> {
        self.arriving.receives()
    }

    /// The PSN expected next.
    pub(crate) fn expected_psn(&self) -> Psn {
        Psn::of(self.executed.next)
    }

    /// Whether responses to READs or atomics wait to be sent.
    fn is_streaming(&self) -> bool {
        self.streaming != 0
    }

    /// The READ or atomic whose response is to be sent next.
    fn next_answer(&mut self) -> Option<&mut Resource> {
        if !self.is_streaming() {
            return None;
        }
        self.resources.iter_mut().find(|resource| resource.is_active())
    }

    /// The READ or atomic that has a response of `sequence`.
    fn resource(&mut self, sequence: u64) -> Option<&mut Resource> {
        self.resources
            .iter_mut()
            .find(|resource| (resource.first..resource.end).contains(&sequence))
    }

    /// Notes the value that answers an atomic operation.
    pub(crate) fn atomic_executed(&mut self, sequence: u64, value: u64) {
        if let Some(Resource { answer: Answer::Atomic { before }, .. }) = self.resource(sequence) {
            *before = value;
        }
    }

    /// Whether there may be anything to say to the peer.
    #[inline]
    pub(crate) fn has_answer(&self) -> bool {
        self.is_streaming() || !self.owed.is_empty() || self.refusal.is_some() || self.nak.is_some()
    }

    /// Stops executing, except for answers that precede a refusal. Gives back the receive request of a message in
    /// progress.
    pub(crate) fn stop(&mut self) -> Option<Taken> {
        self.nak = None;
        match self.refusal {
            // RC-55
            Some(Refusal { at, .. }) => {
                self.resources.retain(|resource| resource.end <= at.sequence);
                self.owed.truncate(at.sequence);
            }
            None => {
                self.resources.clear();
                self.owed.clear();
            }
        }
        self.count_streams();
        self.arriving.stop().map(|id| Taken { srqn: self.srqn, id })
    }

    /// Whether a refusal is still to be sent.
    pub(crate) fn has_last_words(&self) -> bool {
        self.refusal.is_some()
    }

    /// Forgets a refusal not yet sent.
    pub(crate) fn silence(&mut self) {
        self.refusal = None;
        self.resources.clear();
        self.streaming = 0;
        self.owed.clear();
    }

    /// Drops the receive request in progress if it is `id`, whose failure is already reported.
    pub(crate) fn forget_receive(&mut self, id: u64) {
        self.arriving.forget_receive(id);
    }

    fn count_streams(&mut self) {
        self.streaming = self.resources.iter().filter(|resource| resource.is_active()).count();
    }

    /// One packet was executed.
    fn advance(&mut self, packets: u64) {
        self.executed.next = self.executed.next.wrapping_add(packets);
        self.reported = false;
    }

    /// A packet of a SEND or a WRITE was executed.
    fn count_executed(&mut self, request: &Request<'_>) {
        self.advance(1);
        if request.incoming.packet.opcode.position.is_end() {
            self.count_message();
        }
    }

    /// The packet of `sequence`, and the messages executed so far, for an answer.
    fn at(&self, sequence: u64) -> Ack {
        Ack { sequence, msn: self.executed.msn }
    }

    fn count_message(&mut self) {
        // RC-51
        self.executed.msn = self.executed.msn.wrapping_add(1) & Psn::MASK;
    }
}

impl Responder {
    /// Handles a request of the peer. One that is pending has at most established the connection.
    pub(crate) fn receive_request(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        incoming: &Incoming<'_>,
        memory: &mut impl ResponderMemory,
    ) -> Poll<()> {
        let packet = incoming.packet;
        // RC-10, RC-79
        if !core.state().serves_requests() {
            drops::count(&mut shared.counters, Reason::WrongState);
            return Poll::Ready(());
        }
        core.establish(shared);
        let sequence = packet.bth.psn.near(self.executed.next);
        // RC-32, RC-33
        if sequence > self.executed.next {
            self.receive_ahead(core, shared, sequence);
            return Poll::Ready(());
        }
        if sequence < self.executed.next {
            return self.receive_repetition(core, shared, packet, sequence, memory);
        }
        // The responses of a READ or an atomic are its acknowledgement.
        let is_asked = packet.bth.ack_request || memory.acknowledges();
        let asks = is_asked && !packet.opcode.class.is_answered();
        // RC-50
        if asks && !self.owed.has_room() {
            drops::count(&mut shared.counters, Reason::AckQueue);
            self.miss(core, shared, sequence);
            return Poll::Ready(());
        }
        // At most a frame, far below 2^32.
        let length = packet.payload.len() as u32;
        let at = self.at(sequence);
        let request = Request { incoming, target: Self::target(core, packet), length, at };
        match self.execute(core, shared, &request, memory) {
            Ok(()) => {
                // Nothing holds an acknowledgement back.
                self.acknowledged = self.executed;
                // RC-50
                if asks {
                    let ack = self.at(sequence);
                    self.owed.push(ack);
                    core.make_ready(shared);
                }
                add(&mut shared.counters.rcvd_bytes, u64::from(length));
            }
            Err(Stop::Undecided) => return Poll::Pending,
            Err(stop) => self.stop_request(core, shared, stop, at),
        }
        Poll::Ready(())
    }

    /// The target of a request packet.
    // XRC-6
    #[inline]
    fn target(core: &QpCore, packet: &frame::Repr) -> Target {
        let Service::XrcReceive { domain } = core.service else { return core.qpn.into() };
        // Every request along XRC has the header.
        let srqn = packet.srqn.unwrap_or_default();
        Target { qpn: core.qpn, srq: Some(XrcSrq { srqn, domain }) }
    }

    /// The part of its message that a packet of a SEND or a WRITE is, if its turn has come.
    pub(crate) fn part(&self, core: &QpCore, packet: &frame::Repr) -> Option<Part> {
        let opcode = packet.opcode;
        let kind = match opcode.class {
            Class::Send => PartKind::Send,
            Class::Write => PartKind::Write,
            _ => return None,
        };
        let is_next = packet.bth.psn.near(self.executed.next) == self.executed.next
            && self.arriving.is_next(opcode);
        (is_next && core.state().serves_requests()).then(|| Part {
            kind,
            offset: self.arriving.offset(),
            is_last: opcode.position.is_end(),
        })
    }

    /// Refuses a request whose turn has come, for a service does not let it pass.
    pub(crate) fn refuse_by_service(&mut self, core: &mut QpCore, shared: &mut Shared, psn: Psn) {
        let at = self.at(psn.near(self.executed.next));
        let kind = Some(QpEvent::Fatal);
        self.refuse(core, shared, NakCode::RemoteOperationalError, at, kind);
    }

    /// Handles a request of the peer whose opcode is unknown.
    pub(crate) fn receive_unknown_request(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        psn: Psn,
    ) {
        if !core.state().serves_requests() {
            return;
        }
        let sequence = psn.near(self.executed.next);
        if sequence == self.executed.next {
            // RC-7
            let at = self.at(sequence);
            self.stop_request(core, shared, Stop::Invalid, at);
        } else if sequence > self.executed.next {
            self.receive_ahead(core, shared, sequence);
        }
    }

    /// A packet before this one is missing.
    fn receive_ahead(&mut self, core: &mut QpCore, shared: &mut Shared, sequence: u64) {
        bump(&mut shared.counters.out_of_sequence);
        bump(&mut shared.counters.out_of_seq_request);
        bump(&mut core.counters.out_of_sequence);
        if self.reported || self.nak.is_some() {
            drops::count(&mut shared.counters, Reason::AfterGap);
        }
        self.miss(core, shared, sequence);
    }

    /// The packet of `sequence` was dropped, and must come again: a NAK says so, unless one did.
    fn miss(&mut self, core: &mut QpCore, shared: &mut Shared, sequence: u64) {
        let responder = &mut *self;
        responder.dropped = responder.dropped.max(sequence);
        // RC-53
        if !responder.reported && responder.nak.is_none() {
            responder.nak = Some(Nak::Sequence);
            core.make_ready(shared);
        }
    }

    /// The request was received before: answer it again.
    fn receive_repetition(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        packet: &frame::Repr,
        sequence: u64,
        memory: &mut impl ResponderMemory,
    ) -> Poll<()> {
        let again = match packet.opcode.class {
            Class::Send | Class::Write => None,
            Class::ReadRequest => Some(ready!(self.repeat_read(core, packet, sequence, memory))),
            Class::CompareSwap | Class::FetchAdd => Some(self.repeat_atomic(sequence)),
            // Nothing else was executed, so nothing else comes again.
            _ => {
                drops::count(&mut shared.counters, Reason::BadOpcode);
                return Poll::Ready(());
            }
        };
        bump(&mut shared.counters.duplicate_request);
        bump(&mut core.counters.duplicate_request);
        match again {
            Some(true) => {
                core.make_ready(shared);
                return Poll::Ready(());
            }
            Some(false) => {
                drops::count(&mut shared.counters, Reason::DuplicateRead);
                return Poll::Ready(());
            }
            None => {}
        }
        // RC-34
        // A requester that does not ask has not repeated all packets yet, and needs no answer before. An
        // answer harms the kernel's rxe: it completes a message that it is still sending, and may stall.
        if !packet.bth.ack_request {
            return Poll::Ready(());
        }
        // RC-54
        // An acknowledgement must not overtake the responses of a READ or an atomic that the peer is
        // about to ask for again.
        let before = |it: &&Resource| it.first > sequence && it.first <= self.acknowledged.next;
        let ack = match self.resources.iter().find(before) {
            Some(resource) => resource.acknowledgement_before(),
            None => self.acknowledged.acknowledgement(),
        };
        if self.owed.repeat(ack) {
            core.make_ready(shared);
        } else {
            drops::count(&mut shared.counters, Reason::AckQueue);
        }
        Poll::Ready(())
    }

    /// Streams a READ again from where the peer misses responses. Says whether that is possible.
    fn repeat_read(
        &mut self,
        core: &QpCore,
        packet: &frame::Repr,
        sequence: u64,
        memory: &mut impl ResponderMemory,
    ) -> Poll<bool> {
        let Some(rdma) = packet.reth else { return Poll::Ready(false) };
        let mtu = core.mtu();
        let target = Self::target(core, packet);
        let responder = &mut *self;
        let Some(resource) = responder.resource(sequence) else { return Poll::Ready(false) };
        let Answer::Read(whole) = resource.answer else { return Poll::Ready(false) };
        let offset = sequence.wrapping_sub(resource.first) << mtu.shift();
        let whole = RemoteRange::from(whole);
        let rest = RemoteRange {
            va: whole.va.wrapping_add(offset),
            length: whole.length.saturating_sub(offset),
            ..whole
        };
        // RC-67
        if RemoteRange::from(rdma) != rest || packet.srqn != resource.srqn {
            return Poll::Ready(false);
        }
        // The key may have been revoked since. Then the request is a ghost: the peer no longer needs the
        // data. That is no reason for an error.
        if rest.length != 0
            && ready!(memory.check_remote(target, rest, RemoteAccess::Read)).is_err()
        {
            return Poll::Ready(false);
        }
        resource.repeat_from(sequence);
        responder.count_streams();
        Poll::Ready(true)
    }

    /// Sends the answer of an atomic operation again. Says whether that is still known.
    // RC-100
    fn repeat_atomic(&mut self, sequence: u64) -> bool {
        let responder = &mut *self;
        match responder.resource(sequence) {
            Some(resource) if matches!(resource.answer, Answer::Atomic { .. }) => {
                resource.repeat_from(sequence);
                responder.count_streams();
                true
            }
            _ => false,
        }
    }

    fn stop_request(&mut self, core: &mut QpCore, shared: &mut Shared, stop: Stop, at: Ack) {
        match stop {
            // RC-62
            Stop::NoReceive(ReceiveError::Empty) => {
                bump(&mut shared.counters.out_of_buffer);
                self.nak = Some(Nak::ReceiverNotReady(at.sequence));
                self.dropped = self.dropped.max(at.sequence);
                core.make_ready(shared);
            }
            Stop::TooLong(taken) => {
                bump(&mut shared.counters.resp_local_length_error);
                core.fail_receive(shared, taken, ReceiveStatus::LocalLength);
                self.forget_receive(taken.id);
                self.refuse(core, shared, NakCode::InvalidRequest, at, None);
            }
            // RC-48
            Stop::NoReceive(ReceiveError::Invalid) => {
                self.refuse(core, shared, NakCode::RemoteOperationalError, at, None);
            }
            // RC-88
            Stop::Invalid => {
                let kind = Some(QpEvent::RequestError);
                self.refuse(core, shared, NakCode::InvalidRequest, at, kind);
            }
            Stop::Denied(AccessDenied::Memory) => {
                let kind = Some(QpEvent::AccessError);
                self.refuse(core, shared, NakCode::RemoteAccessError, at, kind);
            }
            // XRC-5
            Stop::Denied(AccessDenied::Srq) | Stop::NoReceive(ReceiveError::NoSrq) => {
                let kind = Some(QpEvent::AccessError);
                self.refuse(core, shared, NakCode::InvalidRdRequest, at, kind);
            }
            // It has come to nothing, and comes again.
            Stop::Undecided => {}
        }
    }

    /// Refuses a request for good, `at` which so many messages were executed, and enters the error
    /// state.
    fn refuse(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        code: NakCode,
        at: Ack,
        kind: Option<QpEvent>,
    ) {
        bump(match code {
            NakCode::RemoteAccessError => &mut shared.counters.resp_remote_access_errors,
            NakCode::RemoteOperationalError => &mut shared.counters.resp_remote_operational_errors,
            _ => &mut shared.counters.resp_remote_invalid_request,
        });
        // RC-55
        self.refusal = Some(Refusal { code, at });
        if let Some(kind) = kind {
            core.emit_async(shared, kind);
        }
        core.enter_error();
    }

    /// Refuses the requests that were executed and are not acknowledged: the layer above cannot tell its program of
    /// them.
    // RC-106
    pub(crate) fn refuse_unacknowledged(&mut self, core: &mut QpCore, shared: &mut Shared) {
        if matches!(core.state(), QpState::Reset | QpState::Err) {
            return;
        }
        match self.owed.pop() {
            Some(at) => {
                self.owed.clear();
                let fatal = Some(QpEvent::Fatal);
                self.refuse(core, shared, NakCode::RemoteOperationalError, at, fatal);
            }
            None => {
                core.emit_async(shared, QpEvent::Fatal);
                core.enter_error();
            }
        }
    }

    /// Takes the failed placement of the request packet `at`, at which so many messages were executed: it and later
    /// ones did not happen. Unless a failed receive request has `reported` that, an event must.
    pub(crate) fn placement_failed(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        at: Ack,
        reported: bool,
    ) {
        // RC-47
        let earlier = self.refusal.is_some_and(|refusal| refusal.at.sequence <= at.sequence);
        if earlier {
            return;
        }
        if core.state() == QpState::Err {
            if self.has_last_words() {
                let code = NakCode::RemoteOperationalError;
                self.refusal = Some(Refusal { code, at });
                self.stop();
            }
            return;
        }
        let kind = (!reported).then_some(QpEvent::Fatal);
        self.refuse(core, shared, NakCode::RemoteOperationalError, at, kind);
    }

    /// The memory behind READ response `psn` could not be read.
    pub(crate) fn response_unreadable(&mut self, core: &mut QpCore, shared: &mut Shared, psn: Psn) {
        let sequence = psn.near(self.executed.next);
        let Some(read) = self.resource(sequence) else { return };
        if read.repeated {
            // A ghost's request: the peer deregisters only memory that it no longer uses.
            read.next = read.end;
            self.count_streams();
            drops::count(&mut shared.counters, Reason::DuplicateRead);
            return;
        }
        let at = Ack { sequence, ..read.acknowledgement_before() };
        if core.state() == QpState::Err {
            self.placement_failed(core, shared, at, true);
        } else {
            // RC-87
            let kind = Some(QpEvent::Fatal);
            self.refuse(core, shared, NakCode::RemoteOperationalError, at, kind);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::TakenReceive;
    use crate::incoming::{Envelope, Flow, FramePlace};
    use crate::opcode::code;
    use crate::types::{Gid, Instant, Qpn};
    use crate::window::{AnyWindow, Fixed};
    use crate::wire::{bth, icrc};

    /// A layer above that must not be asked.
    struct Silent;

    impl ResponderMemory for Silent {
        fn check_remote(
            &mut self,
            _: Target,
            _: RemoteRange,
            _: RemoteAccess,
        ) -> Poll<Result<(), AccessDenied>> {
            Poll::Pending
        }

        fn take_receive(&mut self, _: Target) -> Poll<Result<TakenReceive, ReceiveError>> {
            Poll::Pending
        }
    }

    fn read(first: u64, msn: u32) -> Resource {
        Resource {
            first,
            end: first + 1,
            start: first,
            next: first + 1,
            msn,
            repeated: false,
            srqn: None,
            answer: Answer::Read(reth::Repr { rkey: 0, va: 0, dma_length: 8 }),
        }
    }

    /// The answer to a repeated SEND of a sequence, where packets before 110 are executed and those before 107 may be
    /// acknowledged.
    fn answered(sequence: u64, resources: &[Resource]) -> Option<Ack> {
        let mut responder = Responder {
            executed: Mark { next: 110, msn: 9 },
            acknowledged: Mark { next: 107, msn: 7 },
            resources: resources.iter().copied().collect(),
            ..Responder::default()
        };
        let (window, mut shared) = (AnyWindow::Fixed(Fixed::default()), Shared::default());
        let mut core = QpCore::new(Qpn::default(), Service::Rc, 0, 0, 0, window);
        core.attributes.state = QpState::Rts;
        let transport = bth::Repr {
            opcode: code::SEND_ONLY,
            psn: Psn::of(sequence),
            ack_request: true,
            ..bth::Repr::default()
        };
        let bytes = [&transport.to_bytes()[..], &[0; icrc::LENGTH]].concat();
        let packet = frame::Repr::parse(&bytes).unwrap();
        let place = FramePlace { frame_index: 0, payload_start: 0 };
        let flow = Flow { source: Gid::default(), destination: Gid::default().into() };
        let envelope = Envelope { flow, traffic_class: 0, payload: 0..bytes.len() };
        let (now, packet) = (Instant::default(), &packet);
        let incoming = Incoming { now, envelope: &envelope, packet, place };
        let taken = responder.receive_request(&mut core, &mut shared, &incoming, &mut Silent);
        assert!(taken.is_ready());
        assert_eq!(responder.executed, Mark { next: 110, msn: 9 }, "executed once");
        responder.owed.pop()
    }

    /// RC-34, RC-54.
    #[test]
    fn a_request_that_comes_again_is_answered_by_what_may_be_acknowledged() {
        let acknowledged = Ack { sequence: 106, msn: 7 };
        assert_eq!(answered(104, &[]), Some(acknowledged));
        // It is executed, but the peer must not be told.
        assert_eq!(answered(108, &[]), Some(acknowledged));
        assert_eq!(answered(104, &[read(108, 9)]), Some(acknowledged));
        // Not even an acknowledgement that is due overtakes responses that the peer may miss.
        assert_eq!(answered(103, &[read(105, 6)]), Some(Ack { sequence: 104, msn: 5 }));
        assert_eq!(answered(103, &[read(107, 8)]), Some(acknowledged));
    }
}
