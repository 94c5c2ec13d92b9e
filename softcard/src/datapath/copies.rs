//! The copies of a burst: its pieces of payload, each found on the bus.

use queue_engine::Piece;

use crate::dma::Element;
use crate::mmu::{Mmu, Translation};

/// What became of a piece of payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It is still to be copied.
    Waits,
    Copied,
    Failed,
}

/// The pieces of a burst that still wait, as far as they were found on the bus.
pub(super) struct Copies<'a, E> {
    pieces: &'a [Piece],
    /// For each piece: what became of it.
    states: &'a mut [State],
    /// The first piece that has not been looked at.
    next: usize,
    /// What is to be copied; a piece that is scattered over the bus is several elements.
    elements: Vec<E>,
    /// For each element: its piece.
    owners: Vec<usize>,
}

impl<'a, E: Element> Copies<'a, E> {
    pub(super) fn new(pieces: &'a [Piece], states: &'a mut [State]) -> Self {
        let elements = Vec::with_capacity(pieces.len());
        let owners = Vec::with_capacity(pieces.len());
        Self { pieces, states, next: 0, elements, owners }
    }

    /// Finds the pieces up to number `end`, which are the first of `bytes`, and answers the bytes
    /// behind them; `None` where one has to wait for the driver. Without an MMU none is within reach.
    #[inline]
    pub(super) fn find(
        &mut self,
        mut mmu: Option<&mut Mmu>,
        end: usize,
        mut bytes: E::Bytes,
    ) -> Option<E::Bytes> {
        let pieces = self.pieces.get(self.next..end).unwrap_or_default();
        let states = self.states.get_mut(self.next..end).unwrap_or_default();
        for ((owner, piece), state) in (self.next..).zip(pieces).zip(states) {
            let (own, rest) = E::split(bytes, piece.length as usize);
            bytes = rest;
            if *state != State::Waits {
                continue;
            }
            let found = mmu.as_mut().map_or(Translation::Refused, |mmu| {
                find_piece(mmu, *piece, own, &mut self.elements)
            });
            match found {
                Translation::Found { .. } => {
                    *state = State::Copied;
                    while self.owners.len() < self.elements.len() {
                        self.owners.push(owner);
                    }
                }
                Translation::Refused => *state = State::Failed,
                Translation::Waits => return None,
            }
        }
        self.next = end;
        Some(bytes)
    }

    /// What is to be copied.
    pub(super) fn elements(&mut self) -> &mut [E] {
        &mut self.elements
    }

    /// Takes note of the elements that could not be copied.
    pub(super) fn end(self) {
        for (_, owner) in self.elements.iter().zip(self.owners).filter(|(it, _)| !it.is_done()) {
            if let Some(state) = self.states.get_mut(owner) {
                *state = State::Failed;
            }
        }
    }
}

/// Finds a piece of payload on the bus and adds its elements; none, and `Waits` or `Refused`, where
/// that holds for a part of it.
#[inline]
fn find_piece<E: Element>(
    mmu: &mut Mmu,
    piece: Piece,
    mut bytes: E::Bytes,
    elements: &mut Vec<E>,
) -> Translation {
    let before = elements.len();
    let mut vaddr = piece.iova;
    let mut left = piece.length;
    if left == 0 {
        return Translation::Found { bus: 0, bytes: 0 };
    }
    loop {
        match mmu.translate(E::DIRECTION, vaddr, left) {
            Translation::Found { bus, bytes: run } => {
                let here = u32::try_from(run).map_or(left, |run| run.min(left));
                let (part, rest) = E::split(bytes, here as usize);
                bytes = rest;
                elements.push(E::new(bus, part));
                left = left.saturating_sub(here);
                vaddr = vaddr.saturating_add(here.into());
                if left == 0 {
                    return Translation::Found { bus, bytes: run };
                }
            }
            other => {
                elements.truncate(before);
                return other;
            }
        }
    }
}
