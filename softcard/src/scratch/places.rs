//! The places of the payload of a burst's frames: one question for frames that go on where others end.
//!
//! The frames of a long message ask for one range of memory in parts. Keys, rights and bounds hold
//! for all of a range or not, so the logic is asked for the whole, and only where that is not one
//! piece, or not within reach, for every frame by itself. Payload that passes through logic has no
//! place here: only that is noted.

use std::ops::Range;

use roce::Placed;

use super::copies::State;
use crate::asks::{Located, locate};
use crate::network::Asked;
use crate::vfpga::{Payload, Piece, Unreachable, Vfpga, Wanted};

/// Extends payload by the next wanted piece, if that goes on where it ends.
#[inline]
fn take_in(run: &mut Wanted, next: &Wanted) -> bool {
    let own = u64::from(run.length);
    let follows = match run.payload {
        Payload::Remote { address, .. } | Payload::XrcRemote { address, .. } => {
            address.checked_add(own).is_some_and(|after| next.payload == at(run.payload, after))
        }
        payload => payload == next.payload && run.offset.checked_add(own) == Some(next.offset),
    };
    match run.length.checked_add(next.length) {
        Some(length) if follows && run.qpn == next.qpn => {
            run.length = length;
            true
        }
        _ => false,
    }
}

/// Memory that a peer named, from another address on.
#[inline]
fn at(payload: Payload, address: u64) -> Payload {
    match payload {
        Payload::Remote { rkey, access, .. } => Payload::Remote { rkey, address, access },
        Payload::XrcRemote { srqn, rkey, access, .. } => {
            Payload::XrcRemote { srqn, rkey, address, access }
        }
        other => other,
    }
}

/// Payload that follows one another, of a row of frames.
#[derive(Clone, Debug)]
struct PayloadRun {
    wanted: Wanted,
    frames: Range<usize>,
}

/// The places of a burst's payload.
#[derive(Default)]
pub(crate) struct Places {
    pub(crate) pieces: Vec<Piece>,
    /// The state of each piece.
    pub(crate) states: Vec<State>,
    /// The pieces of each frame; `None` if it has none within reach.
    pub(crate) frames: Vec<Option<Range<usize>>>,
    /// The frames whose payload passes through logic.
    pub(crate) passing: Vec<usize>,
    /// The ones of those about which logic is still to answer.
    pub(crate) late: Vec<Asked>,
}

impl Places {
    /// Asks for the places of `frames`. `wanted` gives each frame's wish; a frame without one is done.
    pub(crate) fn ask_for<F>(
        &mut self,
        frames: &[F],
        wanted: impl Fn(&F) -> Option<Wanted>,
        vfpgas: &mut [Vfpga],
    ) {
        self.pieces.clear();
        self.states.clear();
        self.frames.clear();
        self.passing.clear();
        self.late.clear();
        let mut rest = frames;
        while let [first, behind @ ..] = rest {
            let Some(mut whole) = wanted(first) else {
                self.frames.push(Some(0..0));
                rest = behind;
                continue;
            };
            let follow = |frame: &&F| wanted(frame).is_some_and(|next| take_in(&mut whole, &next));
            let more = behind.iter().take_while(follow).count();
            rest = behind.get(more..).unwrap_or_default();
            let (before, at) = (self.pieces.len(), self.frames.len());
            let found = locate(vfpgas, &whole, &mut self.pieces);
            if let (Located::Here(Ok(())), 0) = (&found, more) {
                self.frames.push(Some(before..self.pieces.len()));
                continue;
            }
            let end = at.saturating_add(more).saturating_add(1);
            self.frames.resize(end, None);
            let run = PayloadRun { wanted: whole, frames: at..end };
            self.take(run, before, found, frames, &wanted, vfpgas);
        }
        self.states.resize(self.pieces.len(), State::Waits);
    }

    /// Takes the places found for a run, which is its pieces from number `before` on.
    fn take<F>(
        &mut self,
        run: PayloadRun,
        before: usize,
        found: Located,
        frames: &[F],
        wanted: &impl Fn(&F) -> Option<Wanted>,
        vfpgas: &mut [Vfpga],
    ) {
        let found = match found {
            Located::Passes => return self.passing.extend(run.frames),
            Located::Here(found) => found,
        };
        if self.settle(&run, before, found, frames, wanted) {
            return;
        }
        for number in run.frames {
            let Some(part) = frames.get(number).and_then(wanted) else { continue };
            let run = PayloadRun { wanted: part, frames: number..number.saturating_add(1) };
            let before = self.pieces.len();
            let found = locate(vfpgas, &run.wanted, &mut self.pieces);
            self.take(run, before, found, frames, wanted, vfpgas);
        }
    }

    /// Gives the frames of a run their pieces; `false`, and the pieces are forgotten, where each of the
    /// frames has to be asked for.
    #[inline]
    fn settle<F>(
        &mut self,
        run: &PayloadRun,
        before: usize,
        found: Result<(), Unreachable>,
        frames: &[F],
        wanted: &impl Fn(&F) -> Option<Wanted>,
    ) -> bool {
        let places = self.frames.get_mut(run.frames.clone()).unwrap_or_default();
        if let ([place], Ok(())) = (&mut *places, found) {
            *place = Some(before..self.pieces.len());
            return true;
        }
        let whole = match self.pieces.get(before..) {
            Some([whole]) if found.is_ok() && whole.length == run.wanted.length => Some(*whole),
            _ => None,
        };
        self.pieces.truncate(before);
        let Some(Piece { mut iova, .. }) = whole else { return places.len() == 1 };
        let parts = frames.get(run.frames.clone()).unwrap_or_default();
        for (place, part) in places.iter_mut().zip(parts.iter().filter_map(wanted)) {
            let at = self.pieces.len();
            self.pieces.push(Piece { iova, length: part.length });
            iova = iova.wrapping_add(u64::from(part.length));
            *place = Some(at..at.saturating_add(1));
        }
        true
    }

    /// Lets no piece of a vFPGA's memory be copied any more that waits. Whose the frames' is, is told by `owner`.
    pub(crate) fn fail(&mut self, vfpga: usize, owner: impl Fn(usize) -> Option<usize>) {
        self.late.retain(|asked| asked.vfpga != vfpga);
        for (number, frame) in self.frames.iter().enumerate() {
            let Some(pieces) = frame else { continue };
            if owner(number) == Some(vfpga) {
                let states = self.states.get_mut(pieces.clone()).unwrap_or_default();
                for state in states.iter_mut().filter(|state| **state == State::Waits) {
                    *state = State::Failed;
                }
            }
        }
    }

    /// Payload that is to be moved nowhere: that of these frames fails.
    #[cold]
    pub(crate) fn refuse(&mut self, numbers: &[usize]) {
        self.passing.retain(|number| !numbers.contains(number));
        for number in numbers {
            if let Some(frame) = self.frames.get_mut(*number) {
                *frame = None;
            }
        }
    }

    /// The payload of a frame has passed through logic, or was refused.
    pub(crate) fn passed(&mut self, number: usize, passed: Result<(), Unreachable>) {
        if let Some(frame) = self.frames.get_mut(number) {
            *frame = passed.ok().map(|()| 0..0);
        }
    }

    /// The status of each frame: whether all of it was copied, or the value that an atomic operation has found.
    pub(crate) fn statuses(&self) -> impl Iterator<Item = Placed> {
        self.frames.iter().map(|frame| {
            let Some(pieces) = frame else { return Placed::Failed };
            let states = self.states.get(pieces.clone()).unwrap_or_default();
            match states {
                [State::Executed { before }] => Placed::Executed { before: *before },
                _ if states.iter().all(|state| *state == State::Copied) => Placed::Copied,
                _ => Placed::Failed,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use roce::Qpn;

    use super::*;

    fn qpn(number: u32) -> Qpn {
        Qpn::new(number).unwrap()
    }

    fn message(offset: u64, length: u32) -> Wanted {
        Wanted { qpn: qpn(7), payload: Payload::Message { number: 3 }, offset, length }
    }

    fn remote(address: u64, length: u32) -> Wanted {
        let access = roce::RemoteAccess::Write;
        Wanted {
            qpn: qpn(7),
            payload: Payload::Remote { rkey: 9, address, access },
            offset: 0,
            length,
        }
    }

    #[test]
    fn payload_that_goes_on_is_taken_in() {
        let mut run = message(100, 50);
        assert!(take_in(&mut run, &message(150, 10)));
        assert!(take_in(&mut run, &message(160, 1)));
        assert_eq!(run, message(100, 61));
        let mut run = remote(0x1000, 0x100);
        assert!(take_in(&mut run, &Wanted { offset: 4096, ..remote(0x1100, 4) }));
        assert_eq!(run, remote(0x1000, 0x104));
    }

    #[test]
    fn payload_that_lies_elsewhere_or_is_named_otherwise_is_not() {
        let last = remote(u64::MAX - 1, 2);
        for (run, next) in [
            (message(100, 50), message(151, 10)),
            (message(100, 50), message(100, 50)),
            (message(100, 50), remote(150, 10)),
            (message(100, 50), Wanted { qpn: qpn(8), ..message(150, 10) }),
            (message(0, u32::MAX), message(u64::from(u32::MAX), 1)),
            (
                message(100, 50),
                Wanted { payload: Payload::Message { number: 4 }, ..message(150, 10) },
            ),
            (remote(0x1000, 0x100), remote(0x1101, 4)),
            (remote(0x1000, 0x100), Wanted { qpn: qpn(8), ..remote(0x1100, 4) }),
            (last, remote(0, 4)),
        ] {
            let mut after = run;
            assert!(!take_in(&mut after, &next), "{run:?} {next:?}");
            assert_eq!(after, run);
        }
    }
}
