//! The copies of a burst: its pieces of payload, each found on the bus.

use std::ops::Range;

use roce::AtomicOperation;

use crate::dma::{FramePart, Parts};
use crate::mmu::{MemoryDirection, Mmu, Translation};
use crate::vfpga::Piece;

/// The state of a piece of payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It is still to be copied, or executed.
    Waits,
    Copied,
    /// An atomic operation was executed on it.
    Executed {
        /// The value before.
        before: u64,
    },
    Failed,
}

/// The pieces of a burst that still wait, as they are found on the bus.
pub(crate) struct Search<'a> {
    pub(crate) direction: MemoryDirection,
    pub(crate) pieces: &'a [Piece],
    /// The state of each piece.
    pub(crate) states: &'a mut [State],
    /// The parts to be copied; a piece that is scattered over the bus is several parts.
    pub(crate) parts: &'a mut Parts,
}

impl Search<'_> {
    /// Finds the pieces of these numbers, which are the first of the range `bytes` of frame number `frame`, and gives
    /// the start of the bytes behind them; `None` where one has to wait for the driver. Without an MMU none is within
    /// reach. An atomic operation is executed on its piece, in place of a copy.
    #[inline]
    pub(crate) fn find(
        &mut self,
        mut mmu: Option<&mut Mmu>,
        numbers: Range<usize>,
        frame: usize,
        bytes: Range<usize>,
        atomic: Option<AtomicOperation>,
    ) -> Option<usize> {
        let mut at = bytes.start;
        let pieces = self.pieces.get(numbers.clone()).unwrap_or_default();
        let states = self.states.get_mut(numbers.clone()).unwrap_or_default();
        for ((owner, piece), state) in numbers.zip(pieces).zip(states) {
            let start = at;
            at = at.saturating_add(piece.length as usize).min(bytes.end);
            if *state != State::Waits {
                continue;
            }
            let part = FramePart { frame, range: start..at, bus: 0, owner };
            let found = mmu.as_mut().map_or(Translation::Refused, |mmu| {
                find_piece(mmu, self.direction, *piece, part, self.parts)
            });
            match found {
                Translation::Found { .. } => {
                    *state = State::Copied;
                    if let Some(operation) = atomic {
                        self.parts.execute_last(operation);
                    }
                }
                Translation::Refused => *state = State::Failed,
                Translation::Waits => return None,
            }
        }
        Some(at)
    }
}

/// Finds a piece of payload on the bus and adds its parts; none, and `Waits` or `Refused`, where
/// that holds for a part of it.
#[inline]
fn find_piece(
    mmu: &mut Mmu,
    direction: MemoryDirection,
    piece: Piece,
    whole: FramePart,
    parts: &mut Parts,
) -> Translation {
    let before = parts.len();
    let mut vaddr = piece.iova;
    let mut range = whole.range;
    let mut found = Translation::Found { bus: 0, bytes: 0 };
    while !range.is_empty() {
        let left = u32::try_from(range.len()).unwrap_or(u32::MAX);
        found = mmu.translate(direction, vaddr, left);
        let Translation::Found { bus, bytes } = found else {
            parts.truncate(before);
            return found;
        };
        let here = usize::try_from(bytes).map_or(range.len(), |bytes| bytes.min(range.len()));
        let behind = range.start.saturating_add(here);
        parts.push(FramePart { range: range.start..behind, bus, ..whole });
        range.start = behind;
        vaddr = vaddr.saturating_add(here as u64);
    }
    found
}
