//! Where the payload of a burst's frames lies: one look-up for frames that go on where others end.
//!
//! The frames of a long message ask for one range of memory in parts. Keys, rights and bounds hold
//! for all of a range or not, so the whole is looked up, and only where that is not one piece, or
//! fails, is every frame looked up by itself.

use std::iter;

use queue_engine::{Payload, Piece};

use crate::card::{CardEngine, engine_of};

/// The payload of a frame, as the engine of its QP names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) qpn: u32,
    pub(super) payload: Payload,
    pub(super) offset: u64,
    pub(super) length: u32,
}

impl Wanted {
    /// Makes the payload longer by `next`, if that goes on where it ends.
    #[inline]
    fn take_in(&mut self, next: &Self) -> bool {
        let own = u64::from(self.length);
        let follows = match (self.payload, next.payload) {
            (Payload::Remote { rkey, address, access }, Payload::Remote { .. }) => {
                let after = address.checked_add(own);
                after.is_some_and(|address| {
                    next.payload == Payload::Remote { rkey, address, access }
                })
            }
            (payload, other) => {
                payload == other && self.offset.checked_add(own) == Some(next.offset)
            }
        };
        match self.length.checked_add(next.length) {
            Some(length) if follows && self.qpn == next.qpn => {
                self.length = length;
                true
            }
            _ => false,
        }
    }

    /// Adds the pieces; `false`, and none is added, where not all is within reach.
    fn resolve(&self, engines: &mut [CardEngine], pieces: &mut Vec<Piece>) -> bool {
        engine_of(engines, self.qpn).is_some_and(|engine| {
            engine.resolve(self.qpn, self.payload, self.offset, self.length, pieces).is_ok()
        })
    }
}

/// Finds the pieces of `frames`, and for each frame the end of its pieces, or that it has none
/// within reach. What a frame wants is told by `wanted`; one that wants nothing has it.
pub(super) fn resolve<F>(
    engines: &mut [CardEngine],
    frames: &[F],
    wanted: impl Fn(&F) -> Option<Wanted>,
    pieces: &mut Vec<Piece>,
    ends: &mut Vec<Option<usize>>,
) {
    pieces.clear();
    ends.clear();
    let mut rest = frames;
    while let [frame, behind @ ..] = rest {
        let Some(first) = wanted(frame) else {
            ends.push(Some(pieces.len()));
            rest = behind;
            continue;
        };
        let mut run = first;
        let follow = |frame: &&F| wanted(frame).is_some_and(|next| run.take_in(&next));
        let count = behind.iter().take_while(follow).count();
        let (more, behind) = behind.split_at(count);
        rest = behind;
        let before = pieces.len();
        let resolved = run.resolve(engines, pieces);
        if more.is_empty() {
            ends.push(resolved.then_some(pieces.len()));
            continue;
        }
        let parts = iter::once(first).chain(more.iter().filter_map(&wanted));
        let whole = match pieces.get(before..) {
            Some([whole]) if whole.length == run.length => Some(*whole),
            _ => None,
        };
        pieces.truncate(before);
        let mut next = whole.map(|whole| whole.iova);
        for part in parts {
            let resolved = match &mut next {
                Some(iova) => {
                    pieces.push(Piece { iova: *iova, length: part.length });
                    *iova = iova.wrapping_add(u64::from(part.length));
                    true
                }
                None => part.resolve(engines, pieces),
            };
            ends.push(resolved.then_some(pieces.len()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(offset: u64, length: u32) -> Wanted {
        Wanted { qpn: 7, payload: Payload::Message { number: 3 }, offset, length }
    }

    fn remote(address: u64, length: u32) -> Wanted {
        let access = queue_engine::RemoteAccess::Write;
        Wanted { qpn: 7, payload: Payload::Remote { rkey: 9, address, access }, offset: 0, length }
    }

    #[test]
    fn payload_that_goes_on_is_taken_in() {
        let mut run = message(100, 50);
        assert!(run.take_in(&message(150, 10)));
        assert!(run.take_in(&message(160, 1)));
        assert_eq!(run, message(100, 61));
        let mut run = remote(0x1000, 0x100);
        assert!(run.take_in(&Wanted { offset: 4096, ..remote(0x1100, 4) }));
        assert_eq!(run, remote(0x1000, 0x104));
    }

    #[test]
    fn payload_that_lies_elsewhere_or_is_named_otherwise_is_not() {
        let last = remote(u64::MAX - 1, 2);
        for (run, next) in [
            (message(100, 50), message(151, 10)),
            (message(100, 50), message(100, 50)),
            (message(100, 50), remote(150, 10)),
            (message(100, 50), Wanted { qpn: 8, ..message(150, 10) }),
            (message(0, u32::MAX), message(u64::from(u32::MAX), 1)),
            (
                message(100, 50),
                Wanted { payload: Payload::Message { number: 4 }, ..message(150, 10) },
            ),
            (remote(0x1000, 0x100), remote(0x1101, 4)),
            (remote(0x1000, 0x100), Wanted { qpn: 8, ..remote(0x1100, 4) }),
            (last, remote(0, 4)),
        ] {
            let mut after = run;
            assert!(!after.take_in(&next), "{run:?} {next:?}");
            assert_eq!(after, run);
        }
    }
}
