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

use roce::wire::ethernet::{self, EtherType};
use roce::wire::{bth, ipv4, ipv6, udp};
use roce::{FramePayload, Psn};

use crate::port::{Frame, FramePool};

/// A sealing step's view of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sealed<'a> {
    /// The packet's PSN.
    pub psn: Psn,
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

    /// Seals a frame, at the end of which there is room for these bytes.
    fn seal(&mut self, frame: &mut [u8], about: &Sealed<'_>);
}

/// A step before a frame is classified.
pub trait Opening: Debug {
    /// Opens a frame.
    fn open(&mut self, frame: &mut [u8]) -> Opened;
}

/// The result of opening a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// It needs no opening, and is as it came.
    Untouched,
    /// It is the frame that was sealed, in so many bytes.
    Open(usize),
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
}

impl Steps {
    /// Bytes that sealing makes frames longer behind their invariant CRC.
    pub(crate) fn length(&self) -> usize {
        self.sealing.as_ref().map_or(0, |step| step.length())
    }

    /// Seals a frame of the stack's, with room for the invariant CRC at its end; `false` where the frame cannot be so
    /// long.
    #[inline]
    pub(crate) fn seal(
        &mut self,
        frame: &mut Frame,
        attempt: u64,
        payload: Option<&FramePayload>,
    ) -> bool {
        frame.seal();
        self.sealing.is_none() || self.enclose(frame, attempt, payload)
    }

    #[cold]
    fn enclose(&mut self, frame: &mut Frame, attempt: u64, payload: Option<&FramePayload>) -> bool {
        let (Some(step), Some(transport)) = (&mut self.sealing, transport_of(frame.as_slice()))
        else {
            return false;
        };
        let psn = transport.psn;
        let fits = frame.set_len(frame.as_slice().len().saturating_add(step.length()));
        if fits {
            step.seal(frame.as_mut_slice(), &Sealed { psn, attempt, payload });
            frame.enclose();
        }
        fits
    }

    /// Opens frames that have come; those that are refused go to the pool.
    #[inline]
    pub(crate) fn open(&mut self, frames: &mut VecDeque<Frame>, pool: &FramePool) {
        let Some(step) = &mut self.opening else { return };
        for _ in 0..frames.len() {
            let Some(mut frame) = frames.pop_front() else { break };
            match step.open(frame.as_mut_slice()) {
                Opened::Untouched => {}
                Opened::Open(length) if frame.shorten(length) => {}
                Opened::Open(_) | Opened::Refused => {
                    self.refused = self.refused.saturating_add(1);
                    pool.put(frame);
                    continue;
                }
            }
            frames.push_back(frame);
        }
    }

    /// Counters by name, where there is a step.
    pub(crate) fn counters(&self) -> Option<(&'static str, u64)> {
        self.opening.as_ref().map(|_| ("port_frames_not_opened", self.refused))
    }
}
