//! The transport's questions about requests of peers, put to the logic in the vFPGAs.

use std::task::Poll;

use roce::{
    AccessDenied, ReceiveError, RemoteAccess, RemoteRange, ResponderMemory, TakenReceive, Target,
};

use crate::network::{Decisions, OpenDecisions, Question};
use crate::vfpga::{
    Access, Logic, Occupant, Piece, Tag, Unreachable, Vfpga, Wanted, occupant, vfpga_asked,
};

/// The logic of a card's vFPGAs, as asked by the transport about requests of peers.
pub(crate) struct Asks<'a> {
    pub(crate) vfpgas: &'a mut [Vfpga],
    pub(crate) decisions: &'a mut Decisions,
    /// Whether the packet is acknowledged in any case.
    pub(crate) acknowledges: bool,
}

impl Asks<'_> {
    /// Asks once, until it is decided.
    #[inline]
    fn ask<T: Copy>(
        &mut self,
        target: Target,
        nobody: T,
        question: impl Fn(&mut OpenDecisions) -> &mut Question<T>,
        ask: impl FnOnce(&mut Vfpga, Tag) -> Poll<T>,
    ) -> Poll<T> {
        let Target { qpn, srq } = target;
        if let Some(open) = self.decisions.open.get_mut(&qpn) {
            match *question(open) {
                Question::Unasked => {}
                Question::Asked(_) => return Poll::Pending,
                Question::Decided(decided) => return Poll::Ready(decided),
            }
        }
        let index = vfpga_asked(qpn, srq.map(|srq| srq.srqn));
        let Some(vfpga) = self.vfpgas.get_mut(index) else { return Poll::Ready(nobody) };
        if !occupant!(&vfpga.logic, logic => logic.is_ready()) {
            return Poll::Pending;
        }
        let answer = ask(vfpga, self.decisions.next_tag());
        if answer.is_pending() {
            let (tag, until) = (self.decisions.use_tag(), self.decisions.until);
            let open = self.decisions.open.entry(qpn).or_insert(OpenDecisions::of(index));
            open.until = until;
            *question(open) = Question::Asked(tag);
        }
        answer
    }
}

/// The answer to where payload lies, from the card or the logic.
pub(crate) enum Located {
    /// The card: the pieces were added, or there are none within reach.
    Here(Result<(), Unreachable>),
    /// The logic, through which it passes.
    Passes,
}

/// Asks the logic of a QP where payload of its lies.
#[inline]
pub(crate) fn locate(vfpgas: &mut [Vfpga], wanted: &Wanted, pieces: &mut Vec<Piece>) -> Located {
    match vfpgas.get_mut(wanted.vfpga()).map(|vfpga| &mut vfpga.logic) {
        Some(Occupant::Engine(engine)) => Located::Here(engine.locate(wanted, pieces)),
        Some(Occupant::Other(logic)) => locate_by(&mut **logic, wanted, pieces),
        Some(Occupant::PassThrough(_)) | None => Located::Here(Err(Unreachable)),
    }
}

/// The same of logic that may say anything.
#[cold]
fn locate_by(logic: &mut dyn Logic, wanted: &Wanted, pieces: &mut Vec<Piece>) -> Located {
    if logic.carries_payload() {
        return Located::Passes;
    }
    let before = pieces.len();
    let found = logic.locate(wanted, pieces);
    let named = pieces.get(before..).unwrap_or_default().iter();
    let bytes = named.fold(0u64, |bytes, piece| bytes.saturating_add(piece.length.into()));
    if found.is_ok() && bytes == u64::from(wanted.length) {
        return Located::Here(Ok(()));
    }
    pieces.truncate(before);
    Located::Here(Err(Unreachable))
}

impl ResponderMemory for Asks<'_> {
    #[inline]
    fn acknowledges(&self) -> bool {
        self.acknowledges
    }

    #[inline]
    fn check_remote(
        &mut self,
        target: Target,
        memory: RemoteRange,
        access: RemoteAccess,
    ) -> Poll<Result<(), AccessDenied>> {
        let nobody = target.srq.map_or(AccessDenied::Memory, |_| AccessDenied::Srq);
        let access = Access { target, memory, access };
        self.ask(
            target,
            Err(nobody),
            |open| &mut open.access,
            |vfpga, tag| occupant!(&mut vfpga.logic, logic => logic.check_remote(tag, &access)),
        )
    }

    #[inline]
    fn take_receive(&mut self, target: Target) -> Poll<Result<TakenReceive, ReceiveError>> {
        let nobody = target.srq.map_or(ReceiveError::Empty, |_| ReceiveError::NoSrq);
        self.ask(
            target,
            Err(nobody),
            |open| &mut open.receive,
            |vfpga, tag| occupant!(&mut vfpga.logic, logic => logic.take_receive(tag, target)),
        )
    }
}
