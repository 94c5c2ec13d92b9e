//! A burst of frames that have come: the transport takes them, or holds them until logic has decided.

use std::collections::VecDeque;

use roce::{Instant, Placement, Qpn};
use smallvec::SmallVec;

use super::passing::offer_payload;
use super::{BURST, placed};
use crate::asks::Asks;
use crate::card::Card;
use crate::network::{Network, PATIENCE};
use crate::port::Frame;
use crate::scratch::{Scratch, Underway};
use crate::vfpga::{Logic, Vfpga, occupant, vfpga_of};

/// Frames that a card keeps at most because logic has not decided about one of their QPs, beside one of each QP.
pub(super) const HELD: usize = 4 * BURST;

/// A burst that is being taken.
struct Reception<'a> {
    now: Instant,
    network: &'a mut Network,
    vfpgas: &'a mut [Vfpga],
    held: &'a mut VecDeque<Frame>,
    placements: &'a mut Vec<Placement>,
    /// The vFPGAs whose logic takes nothing now, as bits.
    unready: u32,
    /// QPs of frames that are held: the later ones wait behind them.
    behind: SmallVec<[Qpn; 8]>,
    taken: bool,
    /// Whether packets are acknowledged in any case.
    acknowledges: bool,
}

impl Card {
    /// Takes a burst of frames.
    pub(super) fn receive_burst(&mut self, now: u64) {
        if self.network.time.has_services() {
            return self.receive_in_turns(now);
        }
        let Scratch { received, looped, held, burst, .. } = &mut self.scratch;
        received.append(looped);
        *burst = self.network.receive(now, received, BURST);
        if *burst == 0 && held.is_empty() {
            return;
        }
        if !held.is_empty() {
            held.append(received);
            std::mem::swap(held, received);
        }
        let (mut reception, received) = self.begin_reception(now);
        for (index, frame) in received.iter_mut().enumerate() {
            reception.take(index, frame);
        }
        let taken = reception.taken;
        self.end_reception(taken, &[]);
    }

    /// Takes a burst of frames, and behind it those whose turn it is by the work of their services.
    #[cold]
    fn receive_in_turns(&mut self, now: u64) {
        let Self { scratch: Scratch { received, looped, held, burst, .. }, network, .. } = self;
        received.append(looped);
        let is_served = network.begin_turns(now);
        let most = if is_served { network.turns.borrow().room(BURST) } else { BURST };
        let came = network.receive(now, received, most);
        // Timers wait for what is behind them in the port.
        *burst = if came < most { came } else { BURST };
        if came == 0 && held.is_empty() && network.turns.borrow().is_resting() {
            return;
        }
        let again = held.len();
        if again > 0 {
            held.append(received);
            std::mem::swap(held, received);
        }
        if is_served {
            network.set_aside(received, again);
        } else if came > 0 {
            network.time.note_other();
        }
        let (mut reception, received) = self.begin_reception(now);
        let mut refused = Vec::new();
        let mut frames = received.iter_mut().enumerate();
        if again > 0 {
            // They have had their turn, and services work on them now.
            reception.measured(|it| {
                for (index, frame) in frames.by_ref().take(again) {
                    it.take_served(index, frame, &mut refused);
                }
            });
        }
        for (index, frame) in frames {
            reception.take_served(index, frame, &mut refused);
        }
        if !reception.network.turns.borrow().is_resting() {
            reception.measured(|it| it.take_turns(received, &mut refused));
        }
        let taken = reception.taken;
        self.end_reception(taken, &refused);
    }

    /// A reception of the frames that have come.
    #[inline]
    fn begin_reception(&mut self, now: u64) -> (Reception<'_>, &mut VecDeque<Frame>) {
        let Self { scratch, network, vfpgas, .. } = self;
        let Scratch { received, held, placements, .. } = scratch;
        network.decisions.until = now.saturating_add(PATIENCE);
        let reception = Reception {
            now: Instant(now),
            unready: unready(vfpgas),
            network,
            vfpgas,
            held,
            placements,
            behind: SmallVec::new(),
            taken: false,
            acknowledges: false,
        };
        (reception, received)
    }

    /// Asks logic for the places of what was taken, if anything was, but for the placements that services have failed.
    #[inline]
    fn end_reception(&mut self, taken: bool, refused: &[usize]) {
        let Self { scratch, network, vfpgas, .. } = self;
        let Scratch { received, placements, places, .. } = scratch;
        if taken {
            places.ask_for(placements, placed, vfpgas);
            if !refused.is_empty() {
                places.refuse(refused);
            }
            if !places.passing.is_empty() {
                offer_payload(vfpgas, &mut network.decisions, places, placements, received);
            }
            scratch.underway = Underway::Placing;
        } else {
            network.pool.put_all(received);
        }
    }
}

impl Reception<'_> {
    /// Takes the frame of that number, unless it is to be held.
    #[inline]
    fn take(&mut self, index: usize, frame: &mut Frame) {
        let Self { now, network, vfpgas, held, placements, unready, behind, acknowledges, .. } =
            self;
        let Network { stack, decisions, pool, .. } = &mut **network;
        let minds = !behind.is_empty() || !decisions.is_empty() || *unready != 0;
        let qpns = if minds { stack.destinations(frame.as_slice()) } else { Vec::new() };
        let (mut partly, mut is_asked) = (false, false);
        let is_ready = |qpn: &Qpn| *unready & 1u32.wrapping_shl(vfpga_of(*qpn) as u32) == 0;
        if qpns.iter().all(is_ready) && !qpns.iter().any(|qpn| behind.contains(qpn)) {
            let mut asks = Asks { vfpgas, decisions, acknowledges: *acknowledges };
            if stack.receive(*now, frame, index, &mut asks, placements).is_ready() {
                self.taken = true;
                qpns.into_iter().for_each(|qpn| decisions.close(qpn));
                return;
            }
            // There is a place for it at any time: there is one such frame of each QP at most.
            is_asked = true;
            // Of a datagram to a group, some have a copy already.
            partly = placements.last().is_some_and(|placement| placement.frame_index == index);
            self.taken |= partly;
        }
        for qpn in stack.destinations(frame.as_slice()) {
            if !behind.contains(&qpn) {
                behind.push(qpn);
            }
        }
        let frame = match partly {
            true => pool.copy_for_others(frame),
            false => std::mem::take(frame),
        };
        match is_asked || held.len() < HELD {
            true => held.push_back(frame),
            false => pool.put(frame),
        }
    }

    /// Takes a frame, and lets services act on what is to be placed of it before logic is asked for the places. Takes note
    /// of the placements that they fail.
    fn take_served(&mut self, index: usize, frame: &mut Frame, refused: &mut Vec<usize>) {
        let before = self.placements.len();
        self.take(index, frame);
        let Some(services) = self.network.stack.services() else { return };
        for (number, placement) in self.placements.iter_mut().enumerate().skip(before) {
            match services.act(placement, frame.as_mut_slice()) {
                Some(sink) => placement.sink = sink,
                None => refused.push(number),
            }
        }
    }

    /// Takes the frames whose turn it is. Where services need long for each, the peer hears of each: its timers wait for
    /// one packet then, and not for all of which it asks for one acknowledgement.
    fn take_turns(&mut self, received: &mut VecDeque<Frame>, refused: &mut Vec<usize>) {
        for _ in 0..2 * BURST {
            let Some(mut frame) = self.network.next_turn() else { break };
            self.acknowledges = self.network.turns.borrow().is_long();
            self.take_served(received.len(), &mut frame, refused);
            received.push_back(frame);
        }
    }

    /// Takes note of the processor time for which services work meanwhile.
    fn measured(&mut self, work: impl FnOnce(&mut Self)) {
        let begun = (self.network.clock)();
        work(self);
        let took = (self.network.clock)().saturating_sub(begun);
        self.network.turns.borrow_mut().took(took);
    }
}

/// The vFPGAs whose logic takes nothing now, as bits.
#[inline]
fn unready(vfpgas: &[Vfpga]) -> u32 {
    let bit = |(index, vfpga): (u32, &Vfpga)| {
        let is_ready = occupant!(&vfpga.logic, logic => logic.is_ready());
        u32::from(!is_ready).wrapping_shl(index)
    };
    (0..).zip(vfpgas).map(bit).fold(0, |all, bit| all | bit)
}
