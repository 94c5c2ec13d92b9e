//! Frames in, frames out: what the card does in each round of its loop.
//!
//! A round takes a burst of frames, places all their payload by one vectored copy, and only then
//! lets acknowledgements and completions out; and it makes a burst of frames, fetching all their
//! payload by one vectored copy. Each payload byte is copied twice on its way from program to
//! program: into the frame, and out of it.

use std::collections::VecDeque;

use fpga_regs::engine::cqe::Status;
use queue_engine::{
    HostMemory, Payload, Piece, ReadElement, ReceiveKind, Received, TransportEvent, WriteElement,
};
use roce::{
    AccessDenied, Event, Instant, Placement, Qpn, Receive, ReceiveError, RemoteAccess, Sink,
    Source, Transmit, Verbs, wire::icrc,
};

use crate::card::{Card, CardEngine, engine_of};
use crate::port::Frame;
use crate::transport::{self, RoceTransport};

/// Frames one card takes, and makes, in one round.
const BURST: usize = 64;
/// Rounds full of frames that timers wait for at most: what a port and its cable hold.
const TIMER_ROUNDS: u32 = 128;

/// Scratch of the data path, kept so that rounds need not allocate it.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Frames received in this round.
    received: VecDeque<Frame>,
    placements: Vec<Placement>,
    pieces: Vec<Piece>,
    /// For each placement or frame: the end of its pieces, or that it has none within reach.
    ends: Vec<Option<usize>>,
    statuses: Vec<bool>,
    transmits: Vec<Transmit>,
    /// Frames being made.
    made: Vec<Frame>,
    /// Frames ready to be sent.
    sending: VecDeque<Frame>,
    /// Frames to the card's own address.
    looped: VecDeque<Frame>,
    /// Rounds that timers which are due have waited for frames.
    timers_waited: u32,
}

/// The engines of a card, as asked by the stack about incoming requests.
struct Engines<'a>(&'a mut [CardEngine]);

impl Verbs for Engines<'_> {
    fn check_remote(
        &mut self,
        qpn: Qpn,
        rkey: u32,
        va: u64,
        length: u64,
        access: RemoteAccess,
    ) -> Result<(), AccessDenied> {
        let engine = engine_of(self.0, qpn.value()).ok_or(AccessDenied)?;
        let allowed = engine.allows(qpn.value(), rkey, va, length, remote_access(access));
        if allowed { Ok(()) } else { Err(AccessDenied) }
    }

    fn take_receive(&mut self, qpn: Qpn) -> Result<Receive, ReceiveError> {
        let engine = engine_of(self.0, qpn.value()).ok_or(ReceiveError::Empty)?;
        match engine.take_receive(qpn.value()) {
            Ok(taken) => {
                Ok(Receive { id: taken.id, capacity: taken.capacity, left: Some(taken.left) })
            }
            Err(queue_engine::ReceiveError::Empty) => Err(ReceiveError::Empty),
            Err(queue_engine::ReceiveError::Invalid) => Err(ReceiveError::Invalid),
        }
    }
}

fn remote_access(access: RemoteAccess) -> queue_engine::RemoteAccess {
    match access {
        RemoteAccess::Write => queue_engine::RemoteAccess::Write,
        RemoteAccess::Read => queue_engine::RemoteAccess::Read,
    }
}

impl Card {
    /// Works on everything that waits; `true` if there was anything.
    pub(crate) fn round(&mut self, now: u64) -> bool {
        self.memory.now = now;
        let mut worked = self.poll_engines(now);
        let received = self.receive_burst(now);
        worked |= received > 0;
        worked |= self.run_timers(now, received);
        worked |= self.drain_events(now);
        worked |= self.transmit_burst(now);
        worked |= self.drain_events(now);
        self.raise_interrupts();
        worked
    }

    /// Runs the timers that are due, after the frames that have arrived: the answer a timer waits
    /// for may be among them. While more wait in the port the timers wait too, but not for ever.
    fn run_timers(&mut self, now: u64, received: usize) -> bool {
        if self.stack.next_timeout().is_none_or(|timeout| timeout > Instant(now)) {
            return false;
        }
        self.scratch.timers_waited = self.scratch.timers_waited.saturating_add(1);
        if received >= BURST && self.scratch.timers_waited < TIMER_ROUNDS {
            return false;
        }
        self.scratch.timers_waited = 0;
        self.stack.handle_timeout(Instant(now));
        true
    }

    fn poll_engines(&mut self, now: u64) -> bool {
        let mut worked = false;
        let mut transport = RoceTransport { stack: &mut self.stack, identity: self.identity };
        for engine in &mut self.engines {
            worked |= engine.poll(now, &mut transport);
        }
        worked
    }

    /// Takes a burst of frames, and says how many there were.
    fn receive_burst(&mut self, now: u64) -> usize {
        let scratch = &mut self.scratch;
        scratch.received.append(&mut scratch.looped);
        self.port.receive(now, &mut scratch.received, BURST);
        let received = scratch.received.len();
        if received == 0 {
            return 0;
        }
        for (index, frame) in scratch.received.iter().enumerate() {
            let mut verbs = Engines(&mut self.engines);
            let bytes = frame.as_slice();
            self.stack.receive(Instant(now), bytes, index, &mut verbs, &mut scratch.placements);
        }
        self.place(now);
        for frame in self.scratch.received.drain(..) {
            self.pool.put(frame);
        }
        received
    }

    /// Copies the payload of the received burst to where it belongs, then tells the stack.
    fn place(&mut self, now: u64) {
        let Scratch { received, placements, pieces, ends, statuses, .. } = &mut self.scratch;
        pieces.clear();
        ends.clear();
        for placement in placements.iter() {
            let qpn = placement.qpn.value();
            let length = u32::try_from(placement.range.len()).unwrap_or(u32::MAX);
            let resolved = engine_of(&mut self.engines, qpn).is_some_and(|engine| {
                let payload = sink(&placement.sink);
                engine.resolve(qpn, payload, placement.offset, length, pieces).is_ok()
            });
            ends.push(resolved.then_some(pieces.len()));
        }
        let mut burst = Vec::with_capacity(pieces.len());
        let mut owners = Vec::with_capacity(pieces.len());
        let mut start = 0;
        for (owner, (placement, end)) in placements.iter().zip(ends.iter()).enumerate() {
            let bytes = received.get(placement.frame_index).map_or(&[][..], Frame::as_slice);
            let mut bytes = bytes.get(placement.range.clone()).unwrap_or_default();
            let Some(end) = *end else { continue };
            for piece in pieces.get(start..end).unwrap_or_default() {
                let (from, rest) = bytes.split_at(bytes.len().min(piece.length as usize));
                bytes = rest;
                burst.push(WriteElement { iova: piece.iova, from, done: false });
                owners.push(owner);
            }
            start = end;
        }
        self.memory.write(&mut burst);
        statuses.clear();
        statuses.extend(ends.iter().map(Option::is_some));
        for (element, owner) in burst.iter().zip(owners) {
            if let Some(status) = statuses.get_mut(owner) {
                *status &= element.done;
            }
        }
        self.stack.commit(Instant(now), statuses);
        placements.clear();
    }

    fn drain_events(&mut self, now: u64) -> bool {
        let mut worked = false;
        while let Some(event) = self.stack.poll_event() {
            worked = true;
            let qpn = event.qpn().value();
            let Some(engine) = engine_of(&mut self.engines, qpn) else { continue };
            if let Some(event) = transport_event(engine, event) {
                engine.handle(
                    now,
                    event,
                    &mut RoceTransport { stack: &mut self.stack, identity: self.identity },
                );
            }
        }
        worked
    }

    fn transmit_burst(&mut self, now: u64) -> bool {
        let waiting = self.scratch.sending.len();
        let budget = self.port.room().min(BURST).saturating_sub(waiting);
        for _ in 0..budget {
            let Some(transmit) = self.stack.poll_transmit(Instant(now)) else { break };
            let mut frame = self.pool.take();
            if frame.set_len(transmit.frame_length()) {
                self.scratch.transmits.push(transmit);
                self.scratch.made.push(frame);
            } else {
                self.pool.put(frame);
            }
        }
        let made = !self.scratch.made.is_empty();
        if made {
            self.fill_frames(now);
        }
        let sent = self.send_frames(now);
        made || sent
    }

    /// Writes headers, fetches payload and seals the frames of a burst with their ICRC.
    fn fill_frames(&mut self, now: u64) {
        let Scratch { transmits, made, pieces, ends, statuses, sending, .. } = &mut self.scratch;
        pieces.clear();
        ends.clear();
        for transmit in transmits.iter() {
            let resolved = transmit.payload.as_ref().is_none_or(|payload| {
                let qpn = payload.qpn.value();
                engine_of(&mut self.engines, qpn).is_some_and(|engine| {
                    let source = source(&payload.source);
                    engine.resolve(qpn, source, payload.offset, payload.length, pieces).is_ok()
                })
            });
            ends.push(resolved.then_some(pieces.len()));
        }
        let mut burst = Vec::with_capacity(pieces.len());
        let mut owners = Vec::with_capacity(pieces.len());
        let mut start = 0;
        for (owner, ((transmit, frame), end)) in
            transmits.iter().zip(made.iter_mut()).zip(ends.iter()).enumerate()
        {
            let header = transmit.header.as_slice();
            let (head, mut body) = frame.as_mut_slice().split_at_mut(header.len());
            head.copy_from_slice(header);
            let Some(end) = *end else { continue };
            for piece in pieces.get(start..end).unwrap_or_default() {
                let (into, rest) = body.split_at_mut(body.len().min(piece.length as usize));
                body = rest;
                burst.push(ReadElement { iova: piece.iova, into, done: false });
                owners.push(owner);
            }
            // What is left are the pad and the room for the ICRC.
            body.fill(0);
            start = end;
        }
        self.memory.read(&mut burst);
        statuses.clear();
        statuses.extend(ends.iter().map(Option::is_some));
        for (element, owner) in burst.iter().zip(owners) {
            if let Some(status) = statuses.get_mut(owner) {
                *status &= element.done;
            }
        }
        let mut failed: Option<Qpn> = None;
        for ((transmit, mut frame), fetched) in
            transmits.drain(..).zip(made.drain(..)).zip(statuses.iter())
        {
            let qpn = transmit.payload.as_ref().map(|payload| payload.qpn);
            // Behind a frame that could not be made, the later ones of its QP would only be a gap.
            if qpn.is_some() && qpn == failed {
                self.pool.put(frame);
                continue;
            }
            if let (false, Some(payload)) = (*fetched, &transmit.payload) {
                self.stack.payload_failed(Instant(now), payload.qpn, payload);
                failed = qpn;
                self.pool.put(frame);
                continue;
            }
            if transmit.needs_icrc {
                // Only a header that is not the stack's could make this fail.
                let _ = icrc::append(frame.as_mut_slice());
            }
            sending.push_back(frame);
        }
    }

    fn send_frames(&mut self, now: u64) -> bool {
        let Scratch { sending, looped, .. } = &mut self.scratch;
        if sending.is_empty() {
            return false;
        }
        let own = self.identity.mac;
        if sending.iter().any(|frame| frame.as_slice().starts_with(&own)) {
            let (to_self, to_others) =
                sending.drain(..).partition(|frame| frame.as_slice().starts_with(&own));
            *sending = to_others;
            self.port.loop_back(now, &to_self);
            looped.extend(to_self);
        }
        let before = sending.len();
        self.port.send(now, sending);
        sending.len() < before || !looped.is_empty()
    }
}

fn sink(sink: &Sink) -> Payload {
    match *sink {
        Sink::Remote { rkey, va } => {
            Payload::Remote { rkey, address: va, access: queue_engine::RemoteAccess::Write }
        }
        Sink::Receive { id } => Payload::Receive { id },
        Sink::Message { message } => Payload::Message { number: message },
    }
}

fn source(source: &Source) -> Payload {
    match *source {
        Source::Remote { rkey, va } => {
            Payload::Remote { rkey, address: va, access: queue_engine::RemoteAccess::Read }
        }
        Source::Message { message } => Payload::Message { number: message },
    }
}

/// What an event of the stack means to the engine of its QP.
fn transport_event(engine: &CardEngine, event: Event) -> Option<TransportEvent> {
    Some(match event {
        Event::SendsCompleted { qpn, through } => {
            let qpn = qpn.value();
            let oldest = engine.oldest_message(qpn)?;
            let count = through.checked_sub(oldest)?.saturating_add(1);
            TransportEvent::Completed { qpn, count }
        }
        Event::SendFailed { qpn, status, .. } => {
            TransportEvent::Failed { qpn: qpn.value(), status: transport::send_status(status) }
        }
        Event::ReceiveCompleted { qpn, length, kind, imm, solicited, .. } => {
            TransportEvent::Received(Received {
                qpn: qpn.value(),
                length,
                kind: match kind {
                    roce::ReceiveKind::Send => ReceiveKind::Send,
                    roce::ReceiveKind::Write => ReceiveKind::Write,
                },
                immediate: imm.map(transport::immediate),
                solicited,
            })
        }
        Event::ReceiveFailed { qpn, status, .. } => {
            let status: Status = transport::receive_status(status);
            TransportEvent::ReceiveFailed { qpn: qpn.value(), status }
        }
        Event::Async { qpn, kind } => {
            TransportEvent::Async { qpn: qpn.value(), event: transport::qp_event(kind) }
        }
        Event::EnteredError { qpn } => TransportEvent::Error { qpn: qpn.value() },
    })
}

#[cfg(test)]
mod tests;
