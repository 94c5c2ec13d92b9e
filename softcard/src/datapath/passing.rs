//! Payload that passes through logic, in place of a copy between a frame and memory.
//!
//! Logic that answers later makes only that queue pair wait: the transport puts aside the burst's effects on it, and
//! makes no frames of it meanwhile.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::task::Poll;

use roce::{Placed, Placement, Qpn, RemoteAccess};

use super::{fetched, placed};
use crate::card::Card;
use crate::made::Made;
use crate::network::{Asked, Decisions, EndedWait, Making, Network, PATIENCE};
use crate::port::Frame;
use crate::scratch::{Places, Scratch, Underway};
use crate::vfpga::{Logic, Occupant, Passed, Payload, Tag, Unreachable, Vfpga, Wanted};

impl Card {
    /// Goes on with the queue pairs whose payload logic has taken, or given, or was to.
    #[cold]
    pub(super) fn end_waits(&mut self, now: u64) -> bool {
        let Self { network, vfpgas, .. } = &mut *self;
        let Network { waits, decisions, .. } = network;
        waits.ask_again(|made, frame| ask_for_payload(vfpgas, decisions, made, frame));
        let mut worked = false;
        while let Some(EndedWait { qpn, placed, making, goes_on }) =
            self.network.waits.take_ended(now)
        {
            worked = true;
            if let Some(placed) = placed {
                self.network.stack.settle(qpn, &placed);
            }
            if goes_on {
                self.network.stack.go_on(qpn);
            }
            if let Some(Making { mut frames, made, placed }) = making {
                if self.network.stack.is_silent(qpn) {
                    self.network.pool.put_all(&mut frames);
                    self.network.stack.frames_made();
                    continue;
                }
                let Scratch { making, made: all, statuses, .. } = &mut self.scratch;
                (*making, *all, *statuses) = (frames, made, placed);
                self.seal_frames(now);
            } else {
                self.network.stack.frames_made();
            }
        }
        worked
    }

    /// Asks logic for the payload of frames that passes through it. Queue pairs wait for payload that it gives later.
    #[cold]
    pub(super) fn ask_for_frames(&mut self, now: u64) {
        let Self { scratch, vfpgas, network, .. } = self;
        let Scratch { making, made, places, .. } = &mut *scratch;
        let mut waiting = BTreeSet::new();
        for number in std::mem::take(&mut places.passing) {
            let Some((made, frame)) = made.get_mut(number).zip(making.get_mut(number)) else {
                continue;
            };
            let Some(wanted) = fetched(made) else { continue };
            match ask_for_payload(vfpgas, &mut network.decisions, made, frame) {
                Passed::Now(passed) => places.passed(number, passed),
                Passed::Later(tag) => {
                    places.late.push(Asked { number, vfpga: wanted.vfpga(), tag });
                    waiting.insert(wanted.qpn);
                }
            }
        }
        if waiting.is_empty() {
            return;
        }
        wait_for_frames(network, now, &waiting, scratch);
        if scratch.made.is_empty() {
            scratch.underway = Underway::Nothing;
        }
    }
}

/// Passes payload through the logic of a QP, once that is ready if it may wait. Such logic executes no atomic
/// operations, and has no memory for requests along XRC.
fn pass(
    vfpgas: &mut [Vfpga],
    decisions: &mut Decisions,
    wanted: &Wanted,
    may_wait: bool,
    ask: impl FnOnce(&mut dyn Logic, Tag) -> Poll<Result<(), Unreachable>>,
) -> Passed {
    let vfpga = vfpgas.get_mut(wanted.vfpga()).filter(|vfpga| !vfpga.decoupled);
    let Some(Occupant::Other(logic)) = vfpga.map(|vfpga| &mut vfpga.logic) else {
        return Passed::Now(Err(Unreachable));
    };
    let is_atomic = matches!(wanted.payload, Payload::Remote { access: RemoteAccess::Atomic, .. });
    if is_atomic || wanted.payload.srqn().is_some() {
        return Passed::Now(Err(Unreachable));
    }
    if may_wait && !logic.is_ready() {
        return Passed::Later(None);
    }
    match ask(&mut **logic, decisions.next_tag()) {
        Poll::Ready(passed) => Passed::Now(passed),
        Poll::Pending => Passed::Later(Some(decisions.use_tag())),
    }
}

/// Offers payload that has come to the logic through which it passes.
#[cold]
pub(super) fn offer_payload(
    vfpgas: &mut [Vfpga],
    decisions: &mut Decisions,
    places: &mut Places,
    placements: &[Placement],
    received: &VecDeque<Frame>,
) {
    for number in std::mem::take(&mut places.passing) {
        let Some(placement) = placements.get(number) else { continue };
        let frame = received.get(placement.frame_index);
        let bytes = frame.and_then(|frame| frame.as_slice().get(placement.range.clone()));
        let Some((wanted, bytes)) = placed(placement).zip(bytes) else { continue };
        // It was ready for the burst, else that would not have been taken.
        let passed =
            pass(vfpgas, decisions, &wanted, false, |logic, tag| logic.place(tag, &wanted, bytes));
        match passed {
            Passed::Now(passed) => places.passed(number, passed),
            Passed::Later(tag) => {
                places.late.push(Asked { number, vfpga: wanted.vfpga(), tag });
            }
        }
    }
}

/// Asks logic for the payload of a frame.
fn ask_for_payload(
    vfpgas: &mut [Vfpga],
    decisions: &mut Decisions,
    made: &mut Made,
    frame: &mut Frame,
) -> Passed {
    let body = frame.as_mut_slice().get_mut(made.body());
    let Some((wanted, body)) = fetched(made).zip(body) else {
        return Passed::Now(Err(Unreachable));
    };
    let passed =
        pass(vfpgas, decisions, &wanted, true, |logic, tag| logic.fetch(tag, &wanted, body));
    if let Passed::Now(Ok(())) = passed {
        made.complete(frame);
    }
    passed
}

/// Makes queue pairs wait whose payload of a burst logic has not taken yet.
#[cold]
pub(super) fn wait_for_places(
    network: &mut Network,
    now: u64,
    late: Vec<Asked>,
    placements: &[Placement],
    placed: &[Placed],
) {
    let mut by_qp = BTreeMap::<Qpn, Vec<Asked>>::new();
    for asked in late {
        // It may have begun anew meanwhile.
        let qpn = placements.get(asked.number).map(|placement| placement.qpn);
        if let Some(qpn) = qpn.filter(|qpn| network.stack.is_unsettled(*qpn)) {
            by_qp.entry(qpn).or_default().push(asked);
        }
    }
    let until = now.saturating_add(PATIENCE);
    for (qpn, asked) in by_qp {
        network.waits.wait_for_places(qpn, until, asked, placed.to_vec());
    }
}

/// Makes queue pairs wait whose payload for frames logic has not given yet: all their frames, in their order.
fn wait_for_frames(
    network: &mut Network,
    now: u64,
    waiting: &BTreeSet<Qpn>,
    scratch: &mut Scratch,
) {
    let Scratch { making, made, places, .. } = scratch;
    let late = std::mem::take(&mut places.late);
    let until = now.saturating_add(PATIENCE);
    let mut by_qp = BTreeMap::<Qpn, (Vec<Asked>, Making)>::new();
    let others = std::mem::take(&mut places.frames);
    let before = making.drain(..).zip(std::mem::take(made)).zip(others);
    for (number, ((frame, its), pieces)) in before.collect::<Vec<_>>().into_iter().enumerate() {
        let Some(qpn) = its.qpn.filter(|qpn| waiting.contains(qpn)) else {
            making.push_back(frame);
            made.push(its);
            places.frames.push(pieces);
            continue;
        };
        let (asked, group) = by_qp.entry(qpn).or_default();
        let question = late.iter().find(|asked| asked.number == number);
        asked.extend(question.map(|it| Asked { number: group.frames.len(), ..*it }));
        group.placed.push(match (question, pieces) {
            (Some(_), _) => Placed::Later,
            (None, Some(_)) => Placed::Copied,
            (None, None) => Placed::Failed,
        });
        group.frames.push_back(frame);
        group.made.push(its);
    }
    for (qpn, (asked, group)) in by_qp {
        network.stack.pause(qpn);
        network.waits.wait_for_frames(qpn, until, asked, group);
    }
}
