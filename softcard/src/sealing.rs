//! The steps that make frames ready for their way, and those that undo it on arrival.
//!
//! Each RoCE frame of the card's is sealed once it has its payload: it gets its invariant CRC, and then the sealing step
//! has it, if there is one. Each frame that comes, from the port or from the card itself, goes through the opening step,
//! if there is one, before it is classified. Whether its invariant CRC is checked then is another matter: a port that
//! vouches for the CRC ([`Frame`]) vouches for nothing else, and nothing vouches for a frame that a step has changed.
//!
//! A sealing step encloses a whole frame, invariant CRC included. The opening step gives that frame back as it was,
//! byte for byte, also where the port has given the one on the cable another UDP source port and IPv4 identification, as
//! the port on the machine's own network does: the step keeps those that it needs in its own bytes. So that port, which
//! exchanges both with the invariant CRC ([`roce::wire::difference`]), leaves the CRC of an enclosed frame alone.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::net::IpAddr;

use roce::wire::ethernet::{self, EtherType};
use roce::wire::{bth, ipv4, ipv6, udp};
use roce::{FramePayload, Psn, Qpn, Stack};

use crate::made::Made;
use crate::port::{Frame, FramePool};

/// A sealing step's view of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sealed<'a> {
    /// The packet's PSN.
    pub psn: Psn,
    /// The queue pair that sends it.
    pub qpn: Option<Qpn>,
    /// The number of the frame, counted since the reset of the card: no other has that number. A packet that is sent
    /// again is another frame, and its bytes are fetched again, so they need not be the same.
    pub attempt: u64,
    /// The payload behind the headers, if there is any: which bytes of which message.
    pub payload: Option<&'a FramePayload>,
}

/// A step behind the invariant CRC.
pub trait Sealing: Debug {
    /// Bytes that it makes each frame longer. It does not change; the path MTU of the card leaves room for it.
    fn length(&self) -> usize;

    /// Seals a frame, at the end of which there is room for these bytes; `false` where it must not leave.
    fn seal(&mut self, frame: &mut [u8], about: &Sealed<'_>) -> bool;

    /// Whether it seals frames to a host, or a group, at all.
    fn seals_for(&self, _peer: IpAddr) -> bool {
        true
    }
}

/// A step before a frame is classified.
pub trait Opening: Debug {
    /// Opens a frame.
    fn open(&mut self, frame: &mut [u8]) -> Opened;

    /// Counters by name.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// The result of opening a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// It needs no opening, and is as it came.
    Untouched,
    /// It is the frame that was sealed.
    Open {
        /// Bytes of that frame.
        length: usize,
        /// The number of the queue pair that its host has sealed it for, where the step knows it.
        sender: Option<u32>,
    },
    /// It is dropped.
    Refused,
}

/// The base transport header of a RoCE frame.
pub(crate) fn transport_of(frame: &[u8]) -> Option<bth::Repr> {
    let (header, packet) = ethernet::Repr::parse(frame).ok()?;
    let datagram = match header.ethertype {
        EtherType::IPV4 => ipv4::Repr::parse(packet).ok()?.1,
        _ => ipv6::Repr::parse(packet).ok()?.1,
    };
    let (_, transport) = udp::Repr::parse(datagram).ok()?;
    Some(bth::Repr::parse(transport).ok()?.0)
}

/// The steps of a card.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    pub(crate) sealing: Option<Box<dyn Sealing>>,
    pub(crate) opening: Option<Box<dyn Opening>>,
    /// Frames that the opening step refused.
    pub(crate) refused: u64,
    /// Frames of another queue pair than the one that they would pass for.
    pub(crate) misattributed: u64,
}

impl Steps {
    /// Bytes that sealing makes frames longer behind their invariant CRC.
    pub(crate) fn length(&self) -> usize {
        self.sealing.as_ref().map_or(0, |step| step.length())
    }

    /// Whether frames may leave for a host, or a group.
    pub(crate) fn seals_for(&self, peer: IpAddr) -> bool {
        self.sealing.as_ref().is_none_or(|step| step.seals_for(peer))
    }

    /// Seals a frame of the stack's, with room for the invariant CRC at its end; `false` where it cannot leave.
    #[inline]
    pub(crate) fn seal(&mut self, frame: &mut Frame, made: &Made) -> bool {
        frame.seal();
        self.sealing.is_none() || self.enclose(frame, made)
    }

    #[cold]
    fn enclose(&mut self, frame: &mut Frame, made: &Made) -> bool {
        let (Some(step), Some(transport)) = (&mut self.sealing, transport_of(frame.as_slice()))
        else {
            return false;
        };
        let Made { qpn, attempt, payload, .. } = made;
        let (psn, payload) = (transport.psn, payload.as_ref());
        let sealed = Sealed { psn, qpn: *qpn, attempt: *attempt, payload };
        let leaves = frame.set_len(frame.as_slice().len().saturating_add(step.length()))
            && step.seal(frame.as_mut_slice(), &sealed);
        if leaves {
            frame.enclose();
        }
        leaves
    }

    /// Opens frames that have come. Those that are refused go to the pool, and so do those that do not come from the queue
    /// pair from which the stack would take them.
    #[inline]
    pub(crate) fn open(&mut self, frames: &mut VecDeque<Frame>, stack: &Stack, pool: &FramePool) {
        let Some(step) = &mut self.opening else { return };
        for _ in 0..frames.len() {
            let Some(mut frame) = frames.pop_front() else { break };
            let refusals = match step.open(frame.as_mut_slice()) {
                Opened::Untouched => None,
                Opened::Open { length, sender } if frame.shorten(length) => {
                    let is_its = |sender| stack.may_be_from(frame.as_slice(), sender);
                    (!sender.is_none_or(is_its)).then_some(&mut self.misattributed)
                }
                Opened::Open { .. } | Opened::Refused => Some(&mut self.refused),
            };
            match refusals {
                None => frames.push_back(frame),
                Some(count) => {
                    *count = count.saturating_add(1);
                    pool.put(frame);
                }
            }
        }
    }

    /// Counters by name, where there is a step.
    pub(crate) fn counters(&self) -> Vec<(&'static str, u64)> {
        let Some(step) = &self.opening else { return Vec::new() };
        let own = [
            ("port_frames_not_opened", self.refused),
            ("port_frames_misattributed", self.misattributed),
        ];
        own.into_iter().chain(step.counters()).collect()
    }
}
