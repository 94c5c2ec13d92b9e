//! A burst of frames that have come: the transport takes them, or holds them until logic has decided.

use std::collections::VecDeque;

use roce::{Instant, Placement, Qpn, Services};
use smallvec::SmallVec;

use super::passing::offer_payload;
use super::{BURST, placed};
use crate::asks::Asks;
use crate::card::Card;
use crate::network::{Network, PATIENCE};
use crate::port::Frame;
use crate::scratch::{Scratch, Underway};
use crate::vfpga::{Vfpga, occupant, vfpga_of};

/// Frames that a card keeps at most because logic has not decided about one of their QPs, beside one of each QP.
pub(super) const HELD: usize = 4 * BURST;

impl Card {
    /// Takes a burst of frames.
    pub(super) fn receive_burst(&mut self, now: u64) {
        let Self { scratch, network, vfpgas, .. } = self;
        let Scratch { received, looped, held, placements, places, .. } = scratch;
        received.append(looped);
        scratch.burst = network.receive(now, received, BURST);
        let waiting = !held.is_empty();
        if scratch.burst == 0 && !waiting {
            return;
        }
        if waiting {
            held.append(received);
            std::mem::swap(held, received);
        }
        let Network { stack, decisions, pool, .. } = network;
        decisions.until = now.saturating_add(PATIENCE);
        let unready = unready(vfpgas);
        // QPs of frames that are held: the later ones wait behind them.
        let mut behind = SmallVec::<[Qpn; 8]>::new();
        let mut taken = false;
        for (index, frame) in received.iter_mut().enumerate() {
            let minds = !behind.is_empty() || !decisions.is_empty() || unready != 0;
            let qpns = if minds { stack.destinations(frame.as_slice()) } else { Vec::new() };
            let (mut partly, mut is_asked) = (false, false);
            let is_ready = |qpn: &Qpn| unready & 1u32.wrapping_shl(vfpga_of(*qpn) as u32) == 0;
            if qpns.iter().all(is_ready) && !qpns.iter().any(|qpn| behind.contains(qpn)) {
                let mut asks = Asks { vfpgas: &mut *vfpgas, decisions: &mut *decisions };
                if stack.receive(Instant(now), frame, index, &mut asks, placements).is_ready() {
                    taken = true;
                    qpns.into_iter().for_each(|qpn| decisions.close(qpn));
                    continue;
                }
                // There is a place for it at any time: there is one such frame of each QP at most.
                is_asked = true;
                // Of a datagram to a group, some have a copy already.
                partly = placements.last().is_some_and(|placement| placement.frame_index == index);
                taken |= partly;
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
        if taken {
            let refused = match stack.services() {
                Some(services) => act(services, received, placements),
                None => Vec::new(),
            };
            places.ask_for(placements, placed, vfpgas);
            if !refused.is_empty() {
                places.refuse(&refused);
            }
            if !places.passing.is_empty() {
                offer_payload(vfpgas, decisions, places, placements, received);
            }
            scratch.underway = Underway::Placing;
        } else {
            pool.put_all(received);
        }
    }
}

/// Lets services act on the frames of a burst before logic is asked for the places of their payload. Gives the
/// placements that they fail.
#[cold]
fn act(
    services: &mut dyn Services,
    received: &mut VecDeque<Frame>,
    placements: &mut [Placement],
) -> Vec<usize> {
    let mut refused = Vec::new();
    for (number, placement) in placements.iter_mut().enumerate() {
        let Some(frame) = received.get_mut(placement.frame_index) else { continue };
        match services.act(placement, frame.as_mut_slice()) {
            Some(sink) => placement.sink = sink,
            None => refused.push(number),
        }
    }
    refused
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
