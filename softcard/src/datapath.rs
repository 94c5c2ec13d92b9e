//! Frames in, frames out: the card's work in each round of its loop.
//!
//! A round takes a burst of frames, places all their payload by one vectored copy, and only then
//! lets acknowledgements and completions out; and it makes a burst of frames, fetching all their
//! payload by one vectored copy. Each payload byte is copied twice on its way from program to
//! program: into the frame, and out of it.
//!
//! Where a payload's page has no TLB entry, the burst stops there and the card with it, until the
//! driver has answered the page fault; then the burst goes on. So nothing overtakes a waiting frame.
//!
//! A copy from or to another process's memory is handed out ([`Card::advance`]), for it may not
//! return; a round goes on where it stopped once the copy is given back, or given up.

mod passing;
mod receiving;
mod streams;

use std::cell::RefMut;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering;

use bitstreams::soft::Scope;
use fpga_regs::coyote::pci::RECONFIGURATION_VECTOR;
use fpga_regs::engine::wqe::ATOMIC_BYTES;
use nix::unistd::Pid;
use roce::{
    AtomicOperation, Event, Instant, Placed, Placement, Priorities, Qpn, RemoteAccess, Sink,
    Source, Transmit,
};

use crate::card::Card;
use crate::dma::Call;
use crate::image::fits;
use crate::made::Made;
use crate::mmu::{MemoryDirection, Mmu};
use crate::network::{HOST_TURN, Network};
use crate::port::Frame;
use crate::reconfig::Progress;
use crate::scratch::{CopyOutcome, Places, Scratch, Search, Underway};
use crate::vfpga::{Answer, Logic, Payload, Vfpga, Wanted, occupant, vfpga_asked};
use passing::wait_for_places;

/// Frames one card takes, and makes, in one round.
const BURST: usize = 128;
/// Rounds full of frames that timers wait for at most: as many as a port and its cable hold.
const TIMER_ROUNDS: u32 = 128;

/// The MMU of a vFPGA, unless that is cut off.
#[inline]
fn mmu_of(vfpgas: &[Vfpga], vfpga: usize) -> Option<RefMut<'_, Mmu>> {
    let vfpga = vfpgas.get(vfpga).filter(|vfpga| !vfpga.decoupled)?;
    Some(vfpga.control.unit.mmu.borrow_mut())
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
        if self.stock.is_some() {
            let worked = self.reconfigure();
            self.scratch.worked |= worked;
            if self.is_cut_off() || self.waits_for_driver() {
                return None;
            }
            return self.advance_stock(now).or_else(|| self.end_round());
        }
        // Otherwise a round goes on behind a copy.
        if !self.scratch.copies {
            let worked = self.reconfigure();
            self.scratch.worked |= worked;
            if self.is_cut_off() || self.waits_for_driver() {
                return None;
            }
            if !self.find_rings(now) {
                return self.end_round();
            }
            if self.scratch.underway == Underway::Nothing {
                self.scratch.worked |= self.work_logic(now) | self.tell_unheard(now);
                if let Some(call) = self.move_streams() {
                    return Some(call);
                }
                self.receive_burst(now);
            }
        }
        if self.scratch.underway == Underway::Placing {
            match self.place(now) {
                CopyOutcome::Call(call) => return Some(call),
                CopyOutcome::Waits => return self.end_round(),
                CopyOutcome::Done => {}
            }
        }
        if self.scratch.underway == Underway::Nothing {
            let mut worked = self.run_timers(now);
            worked |= self.drain_events(now);
            // A thread that sleeps until an event does not wait for this round's frames to leave.
            self.raise_interrupts();
            let room = self.send_room().min(HOST_TURN);
            worked |= self.network.take_from_host(now, room, &mut self.scratch.sending);
            self.scratch.worked |= worked;
            self.scratch.moved |= worked || self.scratch.burst > 0;
            self.make_burst(now);
        }
        if self.scratch.underway == Underway::Fetching {
            match self.fetch(now) {
                CopyOutcome::Call(call) => return Some(call),
                CopyOutcome::Waits => return self.end_round(),
                CopyOutcome::Done => {}
            }
        }
        let worked = self.send_frames(now) | self.drain_events(now);
        self.scratch.worked |= worked;
        self.scratch.moved |= worked;
        self.end_round()
    }

    /// A round of a card with the published image, whose model moves frames and payload by itself.
    fn advance_stock(&mut self, now: u64) -> Option<Box<Call>> {
        let Self { stock, scratch, vfpgas, memory, network, .. } = self;
        let stock = stock.as_deref_mut()?;
        let Scratch { worked, received, sending, looped, .. } = scratch;
        received.append(looped);
        // Packets wait in the model while a copy is made, and then more than it has room for stay in the port. They are lost
        // only where reception stands.
        let room = match stock.model.parked() {
            Some(_) => ::stock::param::INPUT,
            None => stock.model.room(),
        };
        if network.receive(now, received, room) > 0 {
            network.time.note_other();
        }
        *worked |= stock.work(now, vfpgas, memory, network, received, sending);
        if network.steps.sealing.is_some() {
            // The model's stack has no place for the step, and nothing leaves in the clear.
            network.pool.put_all(sending);
        }
        *worked |= network.send(now, sending, looped);
        let call = stock.take_call();
        *worked |= call.is_some();
        call
    }

    /// Tells the driver all news at the end of a round.
    fn end_round(&mut self) -> Option<Box<Call>> {
        self.tell_link();
        self.raise_interrupts();
        self.settle_faults();
        if std::mem::take(&mut self.scratch.moved) {
            self.published.activity.fetch_add(1, Ordering::Release);
        }
        None
    }

    /// Tells all logic that the port was taken off its cable, or put back, if it was.
    fn tell_link(&mut self) {
        let Some(up) = self.network.take_link_change() else { return };
        for vfpga in &mut self.vfpgas {
            occupant!(&mut vfpga.logic, logic => logic.hear_link(self.memory.now, up));
        }
    }

    /// Whether the round that has ended did anything.
    pub(crate) fn take_worked(&mut self) -> bool {
        std::mem::take(&mut self.scratch.worked)
    }

    /// Takes a copy back that was made.
    pub(crate) fn returned(&mut self, call: Box<Call>) {
        match &mut self.stock {
            Some(stock) => stock.returned(&mut self.memory, call),
            None if self.streams.is_lent() => self.streams.returned(&mut self.memory, call),
            None => self.memory.returned(self.scratch.copying(), call),
        }
    }

    /// Gives up the copy that was handed out, if one was, and the memory that did not answer; the id
    /// of its process.
    pub(crate) fn abandon(&mut self) -> Option<Pid> {
        match &mut self.stock {
            Some(stock) => stock.abandon(&mut self.memory),
            None if self.streams.is_lent() => self.streams.abandon(&mut self.memory),
            None => self.memory.abandon(self.scratch.copying()),
        }
    }

    /// Takes a part of a bitstream; `true` if there was any. Its first byte ends the old image of the card, or of
    /// the bitstream's vFPGA.
    fn reconfigure(&mut self) -> bool {
        let reconfiguration = &mut self.shell.reconfiguration;
        let before = reconfiguration.is_done();
        let (scope, image) = match reconfiguration.work(&mut self.memory) {
            Progress::Nothing => return false,
            Progress::Fetched(scope) => (scope, None),
            Progress::Ended(scope, image) => (scope, image),
            Progress::PowerLost => {
                self.program(None);
                self.reset_function();
                return true;
            }
        };
        match scope {
            Scope::Unknown => {}
            Scope::One(vfpga) if self.is_decoupled(vfpga.into()) => {
                let loaded = image.as_ref().and_then(|image| image.logic().first());
                self.load_into(vfpga.into(), loaded.copied());
            }
            Scope::One(_) | Scope::Card => {
                let fitting = image.as_ref().and_then(fits);
                if fitting.is_some() || !self.vfpgas.is_empty() {
                    self.program(fitting);
                }
            }
        }
        if self.shell.reconfiguration.is_done() && !before {
            self.shell.signal(usize::from(RECONFIGURATION_VECTOR));
        }
        true
    }

    /// Lets logic do the work that its registers ask for, unless other work waits that comes first.
    pub(crate) fn work_at_once(&mut self, now: u64, index: usize) {
        let busy = self.scratch.underway != Underway::Nothing || self.waits_for_driver();
        if busy || !self.find_rings(now) {
            return;
        }
        if let Some(vfpga) = self.vfpgas.get_mut(index) {
            vfpga.work(now, &mut self.network);
        }
        self.end_round();
    }

    /// Runs the timers that are due, after the frames that have arrived: the answer a timer waits
    /// for may be among them. While more wait in the port the timers wait too, but not for ever.
    fn run_timers(&mut self, now: u64) -> bool {
        if self.network.stack.next_timeout().is_none_or(|timeout| timeout > Instant(now)) {
            return false;
        }
        self.scratch.timers_waited = self.scratch.timers_waited.saturating_add(1);
        if self.scratch.burst >= BURST && self.scratch.timers_waited < TIMER_ROUNDS {
            return false;
        }
        self.scratch.timers_waited = 0;
        self.network.stack.handle_timeout(Instant(now));
        true
    }

    /// Lets all logic work, and takes its decisions; `true` if there was any work.
    fn work_logic(&mut self, now: u64) -> bool {
        let mut worked = false;
        let coupled = |(_, vfpga): &(usize, &mut Vfpga)| !vfpga.decoupled;
        for (index, vfpga) in self.vfpgas.iter_mut().enumerate().filter(coupled) {
            worked |= vfpga.work(now, &mut self.network);
            while let Some((tag, answer)) =
                occupant!(&mut vfpga.logic, logic => logic.poll_answer())
            {
                worked = true;
                let Network { decisions, waits, .. } = &mut self.network;
                match answer {
                    Answer::Access(_) | Answer::Receive(_) => decisions.decide(index, tag, &answer),
                    Answer::Placed(_) | Answer::Fetched(_) => waits.answer(index, tag, &answer),
                }
            }
        }
        if !self.network.decisions.is_empty() {
            let expired = self.network.decisions.expire(now);
            self.network.waits.unanswered = self.network.waits.unanswered.saturating_add(expired);
        }
        if !self.network.waits.is_empty() {
            worked |= self.end_waits(now);
        }
        worked
    }

    /// Copies the payload of the received burst to where it belongs, as far as it can, and once it
    /// could tells the stack.
    fn place(&mut self, now: u64) -> CopyOutcome {
        let Self { scratch, vfpgas, memory, network, .. } = self;
        if !scratch.copies {
            let Scratch { placements, places, parts, .. } = scratch;
            let Places { pieces, states, frames, .. } = places;
            let mut search = Search { direction: MemoryDirection::Write, pieces, states, parts };
            let found = |(placement, pieces): (&Placement, &Option<Range<usize>>)| {
                let Some(pieces) = pieces.clone() else { return true };
                let mut mmu = mmu_of(vfpgas, vfpga_asked(placement.qpn, placement.srqn));
                let (frame, range) = (placement.frame_index, placement.range.clone());
                let (atomic, range) = match placement.sink {
                    // It stands for the operation, and is no part of the frame.
                    Sink::Atomic { operation, .. } => (Some(operation), 0..ATOMIC_BYTES),
                    _ => (None, range),
                };
                search.find(mmu.as_deref_mut(), pieces, frame, range, atomic).is_some()
            };
            scratch.waits = !placements.iter().zip(frames.iter()).all(found);
            scratch.copies = true;
        }
        let outcome = scratch.copy(memory);
        if let CopyOutcome::Done = outcome {
            network.stack.commit(Instant(now), &scratch.statuses);
            if !scratch.places.late.is_empty() {
                let Scratch { places, placements, statuses, .. } = scratch;
                let late = std::mem::take(&mut places.late);
                wait_for_places(network, now, late, placements, statuses);
            }
            scratch.placements.clear();
            network.pool.put_all(&mut scratch.received);
        }
        outcome
    }

    /// Tells logic the events of messages; `true` if there were any.
    fn drain_events(&mut self, now: u64) -> bool {
        let mut worked = false;
        while let Some(event) = self.network.stack.poll_event() {
            worked = true;
            if self.network.unheard.is_empty() {
                if let Some(event) = self.tell(now, event) {
                    self.network.unheard.push_back(event);
                }
            } else {
                self.network.unheard.push_back(event);
            }
        }
        worked
    }

    /// Tells logic of an event; gives it back where that is not ready.
    #[inline]
    fn tell(&mut self, now: u64, event: Event) -> Option<Event> {
        let vfpga = self.vfpgas.get_mut(vfpga_asked(event.qpn(), event.srqn()))?;
        let (logic, mut ports) = vfpga.parts(&mut self.network);
        occupant!(logic, logic => {
            if !logic.is_ready() {
                return Some(event);
            }
            logic.take_event(now, event, &mut ports);
        });
        None
    }

    /// Tells logic the events that it was not ready for; `true` if it took any.
    fn tell_unheard(&mut self, now: u64) -> bool {
        if self.network.unheard.is_empty() {
            return false;
        }
        let mut worked = false;
        for _ in 0..self.network.unheard.len() {
            // Logic's reaction to an event may remove later ones.
            let Some(event) = self.network.unheard.pop_front() else { break };
            match self.tell(now, event) {
                Some(event) => self.network.unheard.push_back(event),
                None => worked = true,
            }
        }
        worked
    }

    /// Begins a burst of frames, if there are any to be sent.
    fn make_burst(&mut self, now: u64) {
        let at = Instant(now);
        match self.network.time.has_services() {
            false => self.poll_burst(|network, open| network.stack.poll_transmit_of(at, open)),
            true => self.poll_burst(|network, open| network.poll_in_turn(at, open)),
        }
        if self.scratch.made.is_empty() {
            return;
        }
        let Scratch { made, places, underway, .. } = &mut self.scratch;
        places.ask_for(made, fetched, &mut self.vfpgas);
        *underway = Underway::Fetching;
        if !places.passing.is_empty() {
            self.ask_for_frames(now);
        }
    }

    /// Polls the frames of a burst.
    #[inline]
    fn poll_burst(&mut self, mut poll: impl FnMut(&mut Network, Priorities) -> Option<Transmit>) {
        let mut rooms = self.network.rooms(&self.scratch.sending);
        let (mut open, most) = match &rooms {
            Some(rooms) => (rooms.open(), BURST),
            None => (Priorities::ALL, self.send_room()),
        };
        for _ in 0..most {
            let Some(transmit) = poll(&mut self.network, open) else { break };
            if let Some(rooms) = &mut rooms {
                rooms.take(transmit.priority);
                open = rooms.open();
            }
            let mut frame = self.network.pool.take();
            let attempt = self.network.stack.counters().sent_pkts;
            match Made::new(&transmit, attempt, &mut frame) {
                Some(made) => {
                    self.scratch.made.push(made);
                    self.scratch.making.push_back(frame);
                }
                None => self.network.pool.put(frame),
            }
        }
    }

    /// Frames that the port takes in this round, besides those that wait for it.
    fn send_room(&self) -> usize {
        self.network.room(BURST, self.scratch.sending.len())
    }

    /// Fetches payload as far as it can, and once it could seals the frames with their ICRC.
    fn fetch(&mut self, now: u64) -> CopyOutcome {
        let Self { scratch, vfpgas, memory, .. } = self;
        if !scratch.copies {
            let Scratch { making, made, places, parts, .. } = scratch;
            let Places { pieces, states, frames, .. } = places;
            let mut search = Search { direction: MemoryDirection::Read, pieces, states, parts };
            let mut found =
                |number: usize, made: &Made, frame: &mut Frame, pieces: Range<usize>| {
                    let mut mmu = made
                        .payload
                        .as_ref()
                        .and_then(|payload| mmu_of(vfpgas, vfpga_asked(payload.qpn, payload.srqn)));
                    let body = made.header..frame.as_slice().len();
                    let Some(behind) = search.find(mmu.as_deref_mut(), pieces, number, body, None)
                    else {
                        return false;
                    };
                    // The pad and the room for the ICRC.
                    frame.as_mut_slice().get_mut(behind..).unwrap_or_default().fill(0);
                    true
                };
            let mut all = made.iter().zip(making).zip(frames.iter()).enumerate();
            scratch.waits = !all.all(|(number, ((made, frame), pieces))| {
                made.is_whole
                    || pieces.clone().is_none_or(|pieces| found(number, made, frame, pieces))
            });
            scratch.copies = true;
        }
        let outcome = scratch.copy(memory);
        if let CopyOutcome::Done = outcome {
            self.seal_frames(now);
        }
        outcome
    }

    /// Seals the frames whose payload was fetched, and gives up the others.
    fn seal_frames(&mut self, now: u64) {
        let Scratch { making, made, statuses, sending, looped, .. } = &mut self.scratch;
        if self.network.stack.services().is_some() {
            transform(&mut self.network, made, making, statuses);
        }
        let mut failed: Option<Qpn> = None;
        let frames = making.drain(..).zip(made.drain(..));
        for ((mut frame, made), fetched) in frames.zip(statuses.iter().copied()) {
            let payload = made.payload.as_ref();
            let qpn = payload.map(|payload| payload.qpn);
            // Behind a frame that could not be made, the later ones of its QP would only be a gap.
            if qpn.is_some() && qpn == failed {
                self.network.pool.put(frame);
                continue;
            }
            if let (Placed::Failed, Some(payload)) = (fetched, payload) {
                self.network.stack.payload_failed(Instant(now), payload.qpn, payload);
                failed = qpn;
                self.network.pool.put(frame);
                continue;
            }
            self.network.count_sent(&frame);
            let is_heard = self.network.stack.hears_itself(frame.as_slice());
            if made.needs_icrc && !self.network.steps.seal(&mut frame, &made) {
                self.network.pool.put(frame);
                continue;
            }
            if is_heard {
                let mut copy = self.network.pool.copy_of(&frame);
                copy.loop_back();
                looped.push_back(copy);
            }
            sending.push_back(frame);
        }
        self.network.stack.frames_made();
    }

    fn send_frames(&mut self, now: u64) -> bool {
        let room = self.send_room();
        let Scratch { sending, looped, .. } = &mut self.scratch;
        self.network.take_from_host(now, room, sending) | self.network.send(now, sending, looped)
    }
}

/// Lets services change the payload of frames that was fetched, before they are sealed, and measures the time that this
/// takes.
#[cold]
fn transform(
    network: &mut Network,
    made: &[Made],
    making: &mut VecDeque<Frame>,
    statuses: &mut [Placed],
) {
    let Network { stack, turns, clock, .. } = network;
    let Some(services) = stack.services() else { return };
    let begun = turns.borrow().is_promised().then(*clock);
    for ((made, frame), fetched) in made.iter().zip(making).zip(statuses) {
        let payload = made.payload.as_ref().filter(|_| *fetched == Placed::Copied);
        let is_made =
            payload.is_none_or(|it| services.transform(it, frame.as_mut_slice(), made.body()));
        if !is_made {
            *fetched = Placed::Failed;
        }
    }
    if let Some(begun) = begun {
        turns.borrow_mut().took(clock().saturating_sub(begun));
    }
}

/// The place that a placement needs.
#[inline]
fn placed(placement: &Placement) -> Option<Wanted> {
    let Placement { qpn, srqn, offset, .. } = *placement;
    let payload = match placement.sink {
        Sink::Remote { rkey, va } => Payload::remote(srqn, rkey, va, RemoteAccess::Write),
        Sink::Receive { id } => Payload::receive(srqn, id),
        Sink::Message { message } => Payload::Message { number: message },
        Sink::Atomic { rkey, va, .. } => {
            let payload = Payload::remote(srqn, rkey, va, RemoteAccess::Atomic);
            return Some(Wanted { qpn, payload, offset: 0, length: AtomicOperation::LENGTH });
        }
    };
    let length = u32::try_from(placement.range.len()).unwrap_or(u32::MAX);
    Some(Wanted { qpn, payload, offset, length })
}

/// The payload that a frame needs.
#[inline]
fn fetched(made: &Made) -> Option<Wanted> {
    let wanted = made.payload.as_ref()?;
    let roce::FramePayload { qpn, srqn, offset, length, .. } = *wanted;
    let payload = match wanted.source {
        Source::Remote { rkey, va } => Payload::remote(srqn, rkey, va, RemoteAccess::Read),
        Source::Message { message } => Payload::Message { number: message },
    };
    Some(Wanted { qpn, payload, offset, length })
}

#[cfg(test)]
pub(crate) mod tests;
