//! A transfer between a card and host memory that is not a burst's payload: its pages are found as a whole, and its bytes
//! are copied by calls that may not return.

use std::collections::VecDeque;

use nix::unistd::Pid;

use crate::dma::{AddressSpace, Call, Copying, FramePart, PartEnd, Parts};
use crate::mmu::{MemoryDirection, Mmu, Translation};
use crate::port::{Frame, FramePool};

/// A transfer; one after the other.
#[derive(Debug, Default)]
pub(crate) struct Transfer {
    direction: Option<MemoryDirection>,
    parts: Parts,
    /// Where the parts lie on the bus.
    places: Vec<u64>,
    /// The one frame that has, or gets, the bytes.
    frame: VecDeque<Frame>,
    failed: bool,
}

impl Transfer {
    /// Finds all pages of the next transfer.
    pub(crate) fn find(
        &mut self,
        mmu: &mut Mmu,
        direction: MemoryDirection,
        vaddr: u64,
        length: usize,
    ) -> Translation {
        self.parts.clear();
        self.places.clear();
        self.direction = Some(direction);
        let mut done = 0usize;
        while done < length {
            let left = length.saturating_sub(done);
            let at = vaddr.saturating_add(done as u64);
            let asked = u32::try_from(left).unwrap_or(u32::MAX);
            let found = mmu.translate(direction, at, asked);
            let Translation::Found { bus, bytes } = found else { return found };
            let here = left.min(usize::try_from(bytes).unwrap_or(left));
            let range = done..done.saturating_add(here);
            done = range.end;
            self.places.push(bus);
            self.parts.push(FramePart { frame: 0, range, bus, owner: 0 });
        }
        Translation::Found { bus: 0, bytes: 0 }
    }

    /// Has what was found be read, whatever it was found for.
    pub(crate) fn only_reads(&mut self) {
        self.direction = Some(MemoryDirection::Read);
    }

    /// Gives what was found its bytes, or room for so many; `false` where that is more than a frame holds.
    pub(crate) fn fill(&mut self, pool: &FramePool, length: usize, from: &[u8]) -> bool {
        let mut frame = pool.take();
        if !frame.set_len(length) {
            return false;
        }
        if let Some(into) = frame.as_mut_slice().get_mut(..from.len()) {
            into.copy_from_slice(from);
        }
        self.frame = VecDeque::from([frame]);
        self.failed = false;
        true
    }

    /// Copies as far as the card itself can, and gives the call that makes the next copy; `None` once it has ended.
    pub(crate) fn copy(&mut self, memory: &mut AddressSpace) -> Option<Box<Call>> {
        memory.copy(self.copying())
    }

    /// Whether a call was handed out, which is to be given back or given up.
    pub(crate) fn is_lent(&self) -> bool {
        self.parts.is_lent()
    }

    /// Takes a copy back that was made.
    pub(crate) fn returned(&mut self, memory: &mut AddressSpace, call: Box<Call>) {
        memory.returned(self.copying(), call);
    }

    /// Gives up the copy that was handed out; the id of the process.
    pub(crate) fn abandon(&mut self, memory: &mut AddressSpace) -> Option<Pid> {
        memory.abandon(self.copying())
    }

    /// Whether a part of it could not be copied.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Where its parts lie on the bus.
    pub(crate) fn places(&self) -> &[u64] {
        &self.places
    }

    /// Its bytes; `None` where a copy was given up, which has them.
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        self.frame.front().map(Frame::as_slice)
    }

    /// The same, to be changed.
    pub(crate) fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        self.frame.front_mut().map(Frame::as_mut_slice)
    }

    fn copying(&mut self) -> Copying<'_, impl FnMut(usize, PartEnd)> {
        let direction = self.direction.unwrap_or(MemoryDirection::Read);
        let failed = &mut self.failed;
        let ended = move |_, end| *failed |= end == PartEnd::Failed;
        Copying { direction, parts: &mut self.parts, frames: &mut self.frame, ended }
    }
}

/// The transfers of logic, of which one at a time is copied.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    pub(crate) transfer: Transfer,
    /// The vFPGA that it is of.
    pub(crate) of: Option<usize>,
}

impl Streams {
    /// Whether a call was handed out.
    pub(crate) fn is_lent(&self) -> bool {
        self.transfer.is_lent()
    }

    /// Takes a copy back that was made.
    pub(crate) fn returned(&mut self, memory: &mut AddressSpace, call: Box<Call>) {
        self.transfer.returned(memory, call);
    }

    /// Gives up the copy that was handed out; the id of the process.
    pub(crate) fn abandon(&mut self, memory: &mut AddressSpace) -> Option<Pid> {
        self.transfer.abandon(memory)
    }

    /// Forgets the transfer of a vFPGA's logic, which stops.
    pub(crate) fn fail(&mut self, vfpga: usize) {
        if self.of == Some(vfpga) {
            *self = Self::default();
        }
    }
}
