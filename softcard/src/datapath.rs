//! Frames in, frames out: what the card does in each round of its loop.
//!
//! A round takes a burst of frames, places all their payload by one vectored copy, and only then
//! lets acknowledgements and completions out; and it makes a burst of frames, fetching all their
//! payload by one vectored copy. Each payload byte is copied twice on its way from program to
//! program: into the frame, and out of it.
//!
//! Where a payload's page has no TLB entry, the burst stops there and the card with it, until the
//! driver has answered the page fault; then the burst goes on. So nothing overtakes what waits.
//!
//! A copy from or to another process's memory is handed out ([`Card::advance`]), for it may not
//! return; a round goes on where it stopped once the copy is given back, or given up.

mod copies;
mod runs;

use std::cell::RefMut;
use std::collections::VecDeque;
use std::task::Poll;

use fpga_regs::coyote::pci::RECONFIGURATION_VECTOR;
use fpga_regs::engine::cqe::Status;
use nix::unistd::Pid;
use queue_engine::{Payload, Piece, ReceiveKind, Received, TransportEvent};
use roce::{
    AccessDenied, Event, Instant, Placement, Qpn, Receive, ReceiveError, RemoteAccess, Sink,
    Source, Transmit, Verbs,
};

use crate::card::{Card, CardEngine, decoupled, engine_of};
use crate::dma::{AddressSpace, Call, Copying, Parts};
use crate::host::HOST_TURN;
use crate::mmu::{Direction, Mmu};
use crate::port::Frame;
use crate::tally::Way;
use crate::transport::{self, RoceTransport};
use crate::vfpga::Vfpga;
use copies::{Search, State};
use runs::Wanted;

/// Frames one card takes, and makes, in one round.
const BURST: usize = 128;
/// Rounds full of frames that timers wait for at most: what a port and its cable hold.
const TIMER_ROUNDS: u32 = 128;

/// A burst whose payload is being copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Underway {
    #[default]
    Nothing,
    /// Received frames, towards host memory.
    Placing,
    /// Frames being made, from host memory.
    Fetching,
}

/// What became of a burst's copies.
enum Outcome {
    /// All are done, or have failed.
    Done,
    /// A page has to be waited for.
    Waits,
    /// This comes next.
    Call(Box<Call>),
}

/// A frame being made, whose header is written.
struct Made {
    /// Bytes of the header.
    header: usize,
    /// What follows the header.
    payload: Option<roce::Payload>,
    needs_icrc: bool,
}

impl Made {
    /// Writes the header; `None` where the frame is too small.
    #[inline]
    fn new(transmit: &Transmit, frame: &mut Frame) -> Option<Self> {
        let header = transmit.header.as_slice();
        let fits = frame.set_len(transmit.frame_length());
        match frame.as_mut_slice().get_mut(..header.len()) {
            Some(place) if fits => place.copy_from_slice(header),
            _ => return None,
        }
        let (payload, needs_icrc) = (transmit.payload, transmit.needs_icrc);
        Some(Self { header: header.len(), payload, needs_icrc })
    }
}

/// Scratch of the data path, kept so that rounds need not allocate it.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Something was done in this round.
    worked: bool,
    underway: Underway,
    /// Frames received in this round.
    pub(crate) received: VecDeque<Frame>,
    placements: Vec<Placement>,
    pieces: Vec<Piece>,
    /// For each piece: what became of it.
    states: Vec<State>,
    /// For each placement or frame: the end of its pieces, or that it has none within reach.
    ends: Vec<Option<usize>>,
    statuses: Vec<bool>,
    /// Parts of frames that are being copied, and whether others wait for a page.
    parts: Parts,
    copies: bool,
    waits: bool,
    /// Frames being made, and what is known of each.
    making: VecDeque<Frame>,
    made: Vec<Made>,
    /// Frames ready to be sent.
    pub(crate) sending: VecDeque<Frame>,
    /// Frames to the card's own address.
    looped: VecDeque<Frame>,
    /// Frames that were received in this round.
    burst: usize,
    /// Rounds that timers which are due have waited for frames.
    timers_waited: u32,
}

impl Scratch {
    /// The QP that a placement or frame belongs to.
    fn owner(&self, number: usize) -> Option<Qpn> {
        match self.underway {
            Underway::Nothing => None,
            Underway::Placing => self.placements.get(number).map(|placement| placement.qpn),
            Underway::Fetching => self.made.get(number)?.payload.as_ref().map(|it| it.qpn),
        }
    }

    /// Lets no piece of a window's QPs be copied any more.
    pub(crate) fn fail_transfers(&mut self, window: usize) {
        let mut start = 0;
        for number in 0..self.ends.len() {
            let Some(end) = self.ends.get(number).copied().flatten() else { continue };
            if self.owner(number).is_some_and(|qpn| window_of(qpn) == window) {
                let pieces = self.states.get_mut(start..end).unwrap_or_default();
                for state in pieces.iter_mut().filter(|state| **state == State::Waits) {
                    *state = State::Failed;
                }
            }
            start = end;
        }
    }

    /// The frames whose payload is being copied, their parts, and which way.
    fn copying(&mut self) -> Copying<'_, impl FnMut(usize)> {
        let (direction, frames) = match self.underway {
            Underway::Fetching => (Direction::Read, &mut self.making),
            Underway::Placing | Underway::Nothing => (Direction::Write, &mut self.received),
        };
        let states = &mut self.states;
        let failed = move |owner| {
            if let Some(state) = states.get_mut(owner) {
                *state = State::Failed;
            }
        };
        Copying { direction, parts: &mut self.parts, frames, failed }
    }

    /// Copies what was found; once that is done, says whether more waits.
    fn copy(&mut self, memory: &mut AddressSpace) -> Outcome {
        self.worked = true;
        if let Some(call) = memory.copy(self.copying()) {
            return Outcome::Call(call);
        }
        self.copies = false;
        self.parts.clear();
        if self.waits {
            return Outcome::Waits;
        }
        self.end();
        Outcome::Done
    }

    /// Takes note of the pieces found for a burst.
    fn begin(&mut self, underway: Underway) {
        self.underway = underway;
        self.states.clear();
        self.states.resize(self.pieces.len(), State::Waits);
    }

    /// Ends a burst, and says of each placement or frame whether all of it was copied.
    fn end(&mut self) {
        self.underway = Underway::Nothing;
        self.statuses.clear();
        let mut start = 0;
        for end in &self.ends {
            let done = end.is_some_and(|end| {
                let states = self.states.get(start..end).unwrap_or_default();
                start = end;
                states.iter().all(|state| *state == State::Copied)
            });
            self.statuses.push(done);
        }
    }
}

/// The window that a QP belongs to.
fn window_of(qpn: Qpn) -> usize {
    usize::from(CardEngine::window_of(qpn.value()))
}

/// The MMU of a window, unless its vFPGA is cut off.
#[inline]
fn mmu_of(vfpgas: &[Vfpga], datapath: u64, window: usize) -> Option<RefMut<'_, Mmu>> {
    let vfpga = vfpgas.get(window).filter(|_| !decoupled(datapath, window))?;
    Some(vfpga.unit.mmu.borrow_mut())
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
    ) -> Poll<Result<(), AccessDenied>> {
        let access = remote_access(access);
        let allowed = engine_of(self.0, qpn.value())
            .is_some_and(|engine| engine.allows(qpn.value(), rkey, va, length, access));
        Poll::Ready(if allowed { Ok(()) } else { Err(AccessDenied) })
    }

    fn take_receive(&mut self, qpn: Qpn) -> Poll<Result<Receive, ReceiveError>> {
        let Some(engine) = engine_of(self.0, qpn.value()) else {
            return Poll::Ready(Err(ReceiveError::Empty));
        };
        Poll::Ready(match engine.take_receive(qpn.value()) {
            Ok(taken) => {
                Ok(Receive { id: taken.id, capacity: taken.capacity, left: Some(taken.left) })
            }
            Err(queue_engine::ReceiveError::Empty) => Err(ReceiveError::Empty),
            Err(queue_engine::ReceiveError::Invalid) => Err(ReceiveError::Invalid),
        })
    }
}

fn remote_access(access: RemoteAccess) -> queue_engine::RemoteAccess {
    match access {
        RemoteAccess::Write => queue_engine::RemoteAccess::Write,
        RemoteAccess::Read => queue_engine::RemoteAccess::Read,
    }
}

impl Card {
    /// Works on everything that waits, and makes copies itself; `true` if there was anything.
    pub(crate) fn round(&mut self, now: u64) -> bool {
        while let Some(mut call) = self.advance(now) {
            call.make();
            self.returned(call);
        }
        self.take_worked()
    }

    /// Works on everything that waits, until a copy is due that may not return: that is to be given
    /// back ([`Card::returned`]) or given up ([`Card::abandon`]) before this is called again. `None`
    /// ends the round.
    pub(crate) fn advance(&mut self, now: u64) -> Option<Box<Call>> {
        self.memory.now = now;
        // Otherwise a round goes on behind a copy.
        if !self.scratch.copies {
            self.scratch.worked |= self.reconfigure();
            if self.reconfiguration.decoupled || self.waits_for_driver() {
                return None;
            }
            if !self.find_rings(now) {
                return self.end_round();
            }
            if self.scratch.underway == Underway::Nothing {
                self.scratch.worked |= self.poll_engines(now);
                self.receive_burst(now);
            }
        }
        if self.scratch.underway == Underway::Placing {
            match self.place(now) {
                Outcome::Call(call) => return Some(call),
                Outcome::Waits => return self.end_round(),
                Outcome::Done => {}
            }
        }
        if self.scratch.underway == Underway::Nothing {
            let mut worked = self.run_timers(now);
            worked |= self.drain_events(now);
            worked |= self.take_from_host(now, self.send_room().min(HOST_TURN));
            self.scratch.worked |= worked;
            self.make_burst(now);
        }
        if self.scratch.underway == Underway::Fetching {
            match self.fetch(now) {
                Outcome::Call(call) => return Some(call),
                Outcome::Waits => return self.end_round(),
                Outcome::Done => {}
            }
        }
        self.scratch.worked |= self.send_frames(now) | self.drain_events(now);
        self.end_round()
    }

    /// Tells the driver what there is to tell.
    fn end_round(&mut self) -> Option<Box<Call>> {
        self.raise_interrupts();
        self.settle_faults();
        None
    }

    /// Whether the round that has ended did anything.
    pub(crate) fn take_worked(&mut self) -> bool {
        std::mem::take(&mut self.scratch.worked)
    }

    /// Takes a copy back that was made.
    pub(crate) fn returned(&mut self, call: Box<Call>) {
        self.memory.returned(self.scratch.copying(), call);
    }

    /// Gives up the copy that was handed out, if one was, and the memory that did not answer; the id
    /// of its process.
    pub(crate) fn abandon(&mut self) -> Option<Pid> {
        self.memory.abandon(self.scratch.copying())
    }

    /// Takes a part of a bitstream; `true` if there was any.
    fn reconfigure(&mut self) -> bool {
        let before = self.reconfiguration.is_done();
        let worked = self.reconfiguration.work(&mut self.memory);
        if self.reconfiguration.is_done() && !before {
            self.xdma.signal(usize::from(RECONFIGURATION_VECTOR), &*self.vectors);
        }
        worked
    }

    /// Lets an engine do what its registers ask for, unless something waits that comes first.
    pub(crate) fn execute_at_once(&mut self, now: u64, index: usize) {
        let busy = self.scratch.underway != Underway::Nothing || self.waits_for_driver();
        if busy || !self.find_rings(now) {
            return;
        }
        if let (Some(engine), Some(vfpga)) = (self.engines.get_mut(index), self.vfpgas.get(index)) {
            let (stack, identity, gids) = (&mut self.stack, self.identity, &mut self.gids);
            let mut transport = RoceTransport { stack, identity, gids, window: index };
            engine.execute(now, &vfpga.unit, &mut transport);
        }
        self.end_round();
    }

    /// Runs the timers that are due, after the frames that have arrived: the answer a timer waits
    /// for may be among them. While more wait in the port the timers wait too, but not for ever.
    fn run_timers(&mut self, now: u64) -> bool {
        if self.stack.next_timeout().is_none_or(|timeout| timeout > Instant(now)) {
            return false;
        }
        self.scratch.timers_waited = self.scratch.timers_waited.saturating_add(1);
        if self.scratch.burst >= BURST && self.scratch.timers_waited < TIMER_ROUNDS {
            return false;
        }
        self.scratch.timers_waited = 0;
        self.stack.handle_timeout(Instant(now));
        true
    }

    fn poll_engines(&mut self, now: u64) -> bool {
        let mut worked = false;
        for (index, (engine, vfpga)) in self.engines.iter_mut().zip(&self.vfpgas).enumerate() {
            if self.datapath == 0 || !decoupled(self.datapath, index) {
                let (stack, identity, gids) = (&mut self.stack, self.identity, &mut self.gids);
                let mut transport = RoceTransport { stack, identity, gids, window: index };
                worked |= engine.execute(now, &vfpga.unit, &mut transport);
                worked |= engine.poll(now, &mut transport);
            }
        }
        worked
    }

    /// Takes a burst of frames.
    fn receive_burst(&mut self, now: u64) {
        let scratch = &mut self.scratch;
        scratch.received.append(&mut scratch.looped);
        self.port.receive(now, &mut scratch.received, BURST);
        scratch.burst = scratch.received.len();
        if scratch.burst == 0 {
            return;
        }
        self.share_received(now);
        let scratch = &mut self.scratch;
        for (index, frame) in scratch.received.iter_mut().enumerate() {
            let mut verbs = Engines(&mut self.engines);
            let taken =
                self.stack.receive(Instant(now), frame, index, &mut verbs, &mut scratch.placements);
            debug_assert!(taken.is_ready(), "the engines decide at once");
        }
        let Scratch { placements, pieces, ends, .. } = scratch;
        runs::resolve(&mut self.engines, placements, placed, pieces, ends);
        scratch.begin(Underway::Placing);
    }

    /// Copies the payload of the received burst to where it belongs, as far as it can, and once it
    /// could tells the stack.
    fn place(&mut self, now: u64) -> Outcome {
        let Self { scratch, vfpgas, memory, datapath, .. } = self;
        if !scratch.copies {
            let Scratch { placements, pieces, states, ends, parts, .. } = scratch;
            let direction = Direction::Write;
            let mut search = Search { direction, pieces, states, next: 0, parts };
            let found = |(placement, end): (&Placement, &Option<usize>)| {
                let Some(end) = *end else { return true };
                let mut mmu = mmu_of(vfpgas, *datapath, window_of(placement.qpn));
                let (frame, range) = (placement.frame_index, placement.range.clone());
                search.find(mmu.as_deref_mut(), end, frame, range).is_some()
            };
            scratch.waits = !placements.iter().zip(ends.iter()).all(found);
            scratch.copies = true;
        }
        let outcome = scratch.copy(memory);
        if let Outcome::Done = outcome {
            self.stack.commit(Instant(now), &scratch.statuses);
            scratch.placements.clear();
            self.pool.put_all(&mut scratch.received);
        }
        outcome
    }

    fn drain_events(&mut self, now: u64) -> bool {
        let mut worked = false;
        while let Some(event) = self.stack.poll_event() {
            worked = true;
            let window = window_of(event.qpn());
            let Some(engine) = self.engines.get_mut(window) else { continue };
            if let Some(event) = transport_event(engine, event) {
                let (stack, identity, gids) = (&mut self.stack, self.identity, &mut self.gids);
                let mut transport = RoceTransport { stack, identity, gids, window };
                engine.handle(now, event, &mut transport);
            }
        }
        worked
    }

    /// Begins a burst of frames, if there are any to be sent.
    fn make_burst(&mut self, now: u64) {
        for _ in 0..self.send_room() {
            let Some(transmit) = self.stack.poll_transmit(Instant(now)) else { break };
            let mut frame = self.pool.take();
            match Made::new(&transmit, &mut frame) {
                Some(made) => {
                    self.scratch.made.push(made);
                    self.scratch.making.push_back(frame);
                }
                None => self.pool.put(frame),
            }
        }
        if !self.scratch.made.is_empty() {
            self.resolve_frames();
        }
    }

    /// Frames that the port takes in this round, besides those that wait for it.
    fn send_room(&self) -> usize {
        self.port.room().min(BURST).saturating_sub(self.scratch.sending.len())
    }

    /// Finds the payload of the frames of a burst.
    fn resolve_frames(&mut self) {
        let Scratch { made, pieces, ends, .. } = &mut self.scratch;
        runs::resolve(&mut self.engines, made, fetched, pieces, ends);
        self.scratch.begin(Underway::Fetching);
    }

    /// Fetches payload as far as it can, and once it could seals the frames with their ICRC.
    fn fetch(&mut self, now: u64) -> Outcome {
        let Self { scratch, vfpgas, memory, datapath, .. } = self;
        if !scratch.copies {
            let Scratch { making, made, pieces, states, ends, parts, .. } = scratch;
            let direction = Direction::Read;
            let mut search = Search { direction, pieces, states, next: 0, parts };
            let found =
                |(number, (made, frame), end): (usize, (&Made, &mut Frame), &Option<usize>)| {
                    let Some(end) = *end else { return true };
                    let window = made.payload.as_ref().map_or(0, |payload| window_of(payload.qpn));
                    let mut mmu = mmu_of(vfpgas, *datapath, window);
                    let body = made.header..frame.as_slice().len();
                    let Some(behind) = search.find(mmu.as_deref_mut(), end, number, body) else {
                        return false;
                    };
                    // The pad and the room for the ICRC.
                    frame.as_mut_slice().get_mut(behind..).unwrap_or_default().fill(0);
                    true
                };
            let frames = made.iter().zip(making).zip(ends.iter()).enumerate();
            scratch.waits = !frames.map(|(number, (it, end))| (number, it, end)).all(found);
            scratch.copies = true;
        }
        let outcome = scratch.copy(memory);
        if let Outcome::Done = outcome {
            self.seal_frames(now);
        }
        outcome
    }

    /// Seals the frames whose payload was fetched, and gives up the others.
    fn seal_frames(&mut self, now: u64) {
        let Scratch { making, made, statuses, sending, .. } = &mut self.scratch;
        let mut failed: Option<Qpn> = None;
        let frames = making.drain(..).zip(made.drain(..));
        for ((mut frame, made), fetched) in frames.zip(statuses.iter()) {
            let Made { payload, needs_icrc, .. } = made;
            let qpn = payload.as_ref().map(|payload| payload.qpn);
            // Behind a frame that could not be made, the later ones of its QP would only be a gap.
            if qpn.is_some() && qpn == failed {
                self.pool.put(frame);
                continue;
            }
            if let (false, Some(payload)) = (*fetched, &payload) {
                self.stack.payload_failed(Instant(now), payload.qpn, payload);
                failed = qpn;
                self.pool.put(frame);
                continue;
            }
            self.tally.count(Way::Sent, frame.as_slice());
            if needs_icrc {
                frame.seal();
            }
            sending.push_back(frame);
        }
    }

    fn send_frames(&mut self, now: u64) -> bool {
        let of_host = self.take_from_host(now, self.send_room());
        let Scratch { sending, looped, .. } = &mut self.scratch;
        if sending.is_empty() {
            return of_host;
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
        of_host || sending.len() < before || !looped.is_empty()
    }
}

/// What is to be placed.
#[inline]
fn placed(placement: &Placement) -> Option<Wanted> {
    let payload = match placement.sink {
        Sink::Remote { rkey, va } => {
            Payload::Remote { rkey, address: va, access: queue_engine::RemoteAccess::Write }
        }
        Sink::Receive { id } => Payload::Receive { id },
        Sink::Message { message } => Payload::Message { number: message },
    };
    let length = u32::try_from(placement.range.len()).unwrap_or(u32::MAX);
    Some(Wanted { qpn: placement.qpn.value(), payload, offset: placement.offset, length })
}

/// What is to be fetched for a frame.
#[inline]
fn fetched(made: &Made) -> Option<Wanted> {
    let wanted = made.payload.as_ref()?;
    let payload = match wanted.source {
        Source::Remote { rkey, va } => {
            Payload::Remote { rkey, address: va, access: queue_engine::RemoteAccess::Read }
        }
        Source::Message { message } => Payload::Message { number: message },
    };
    let (offset, length) = (wanted.offset, wanted.length);
    Some(Wanted { qpn: wanted.qpn.value(), payload, offset, length })
}

/// What an event of the stack means to the engine of its QP. All that an event says has its name here,
/// so that nothing new is left out unnoticed: messages and receive requests end in their order, which
/// tells the engine which one is meant.
fn transport_event(engine: &CardEngine, event: Event) -> Option<TransportEvent> {
    Some(match event {
        Event::SendsCompleted { qpn, through } => {
            let qpn = qpn.value();
            let oldest = engine.oldest_message(qpn)?;
            let count = through.checked_sub(oldest)?.saturating_add(1);
            TransportEvent::Completed { qpn, count }
        }
        Event::SendFailed { qpn, status, message: _ } => {
            TransportEvent::Failed { qpn: qpn.value(), status: transport::send_status(status) }
        }
        Event::ReceiveCompleted { qpn, length, kind, imm, solicited, id: _ } => {
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
        Event::ReceiveFailed { qpn, status, id: _ } => {
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
pub(crate) mod tests;
