//! Buffers of a round of the data path, below the card whose rounds they are.

mod copies;
mod places;

use std::collections::VecDeque;

use roce::{Placed, Placement};

use crate::dma::{AddressSpace, Call, Copying, PartEnd, Parts};
use crate::made::Made;
use crate::mmu::MemoryDirection;
use crate::port::Frame;
use crate::vfpga::vfpga_asked;
pub(crate) use copies::Search;
use copies::State;
pub(crate) use places::Places;

/// A burst whose payload is being copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Underway {
    #[default]
    Nothing,
    /// Received frames, towards host memory.
    Placing,
    /// Frames being made, from host memory.
    Fetching,
}

/// The outcome of a burst's copies.
pub(crate) enum CopyOutcome {
    /// All are done, or have failed.
    Done,
    /// A page has to be waited for.
    Waits,
    /// This comes next.
    Call(Box<Call>),
}

/// Scratch of the data path, kept so that rounds need not allocate it.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Whether work was done in this round.
    pub(crate) worked: bool,
    /// Whether there was any of the data path in it, which is what counters count.
    pub(crate) moved: bool,
    pub(crate) underway: Underway,
    /// Frames received in this round.
    pub(crate) received: VecDeque<Frame>,
    /// Frames about whose QPs logic has not decided, in their order.
    pub(crate) held: VecDeque<Frame>,
    pub(crate) placements: Vec<Placement>,
    /// Where the payload of each placement or frame lies.
    pub(crate) places: Places,
    pub(crate) statuses: Vec<Placed>,
    /// Parts of frames that are being copied, and whether others wait for a page.
    pub(crate) parts: Parts,
    pub(crate) copies: bool,
    pub(crate) waits: bool,
    /// Frames being made, with the data of each.
    pub(crate) making: VecDeque<Frame>,
    pub(crate) made: Vec<Made>,
    /// Frames ready to be sent.
    pub(crate) sending: VecDeque<Frame>,
    /// Frames to the card's own address.
    pub(crate) looped: VecDeque<Frame>,
    /// Frames that were received in this round.
    pub(crate) burst: usize,
    /// Rounds that timers which are due have waited for frames.
    pub(crate) timers_waited: u32,
}

impl Scratch {
    /// The vFPGA whose memory a placement or frame is of.
    pub(crate) fn owner(&self, number: usize) -> Option<usize> {
        match self.underway {
            Underway::Nothing => None,
            Underway::Placing => self.placements.get(number).map(|it| vfpga_asked(it.qpn, it.srqn)),
            Underway::Fetching => {
                self.made.get(number)?.payload.as_ref().map(|it| vfpga_asked(it.qpn, it.srqn))
            }
        }
    }

    /// Lets no piece of a vFPGA's memory be copied any more that waits.
    pub(crate) fn fail_transfers(&mut self, vfpga: usize) {
        let mut places = std::mem::take(&mut self.places);
        places.fail(vfpga, |number| self.owner(number));
        self.places = places;
    }

    /// The frames whose payload is being copied, their parts, and which way.
    pub(crate) fn copying(&mut self) -> Copying<'_, impl FnMut(usize, PartEnd)> {
        let (direction, frames) = match self.underway {
            Underway::Fetching => (MemoryDirection::Read, &mut self.making),
            Underway::Placing | Underway::Nothing => (MemoryDirection::Write, &mut self.received),
        };
        let states = &mut self.places.states;
        let ended = move |owner, end| {
            if let Some(state) = states.get_mut(owner) {
                *state = match end {
                    PartEnd::Failed => State::Failed,
                    PartEnd::Executed { before } => State::Executed { before },
                };
            }
        };
        Copying { direction, parts: &mut self.parts, frames, ended }
    }

    /// Copies the pieces that were found; gives, once that is done, whether more wait.
    pub(crate) fn copy(&mut self, memory: &mut AddressSpace) -> CopyOutcome {
        self.worked = true;
        self.moved = true;
        if let Some(call) = memory.copy(self.copying()) {
            return CopyOutcome::Call(call);
        }
        self.copies = false;
        self.parts.clear();
        if self.waits {
            return CopyOutcome::Waits;
        }
        self.end();
        CopyOutcome::Done
    }

    /// Ends a burst, and says of each placement or frame whether all of it was copied.
    pub(crate) fn end(&mut self) {
        self.underway = Underway::Nothing;
        self.statuses.clear();
        self.statuses.extend(self.places.statuses());
        for asked in &self.places.late {
            if let Some(status) = self.statuses.get_mut(asked.number) {
                *status = Placed::Later;
            }
        }
    }
}
