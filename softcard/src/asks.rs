//! The transport's questions about requests of peers, put to the logic in the vFPGAs.

use std::task::Poll;

use roce::{AccessDenied, ReceiveError, RemoteAccess, RemoteRange, TakenReceive, Target, Verbs};

use crate::network::{Decisions, Open, Question};
use crate::vfpga::{Access, Logic, Piece, Tag, Unreachable, Vfpga, Wanted, occupant, vfpga_asked};

/// The logic of a card's vFPGAs, as asked by the transport about requests of peers.
pub(crate) struct Asks<'a> {
    pub(crate) vfpgas: &'a mut [Vfpga],
    pub(crate) decisions: &'a mut Decisions,
    /// Whether a packet can be kept until there is an answer.
    pub(crate) may_wait: bool,
}

impl Asks<'_> {
    /// Asks once, until it is decided.
    #[inline]
    fn ask<T: Copy>(
        &mut self,
        target: Target,
        nobody: T,
        question: impl Fn(&mut Open) -> &mut Question<T>,
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
        if !self.may_wait || !occupant!(&vfpga.logic, logic => logic.is_ready()) {
            return Poll::Pending;
        }
        let answer = ask(vfpga, self.decisions.next_tag());
        if answer.is_pending() {
            let tag = self.decisions.use_tag();
            *question(self.decisions.open.entry(qpn).or_insert(Open::of(index))) =
                Question::Asked(tag);
        }
        answer
    }
}

/// What logic says to a question for a place.
pub(crate) enum Found {
    /// The pieces were added, or there are none within reach.
    Here(Result<(), Unreachable>),
    /// It answers later, by the tag; without one it is to be asked again.
    Later(Option<Tag>),
}

impl Asks<'_> {
    /// Asks the logic of a QP where payload of its lies.
    #[inline]
    pub(crate) fn locate(&mut self, wanted: &Wanted, pieces: &mut Vec<Piece>) -> Found {
        let Some(vfpga) = self.vfpgas.get_mut(wanted.vfpga()) else {
            return Found::Here(Err(Unreachable));
        };
        occupant!(&mut vfpga.logic, logic => {
            if !logic.is_ready() {
                return Found::Later(None);
            }
            match logic.locate(self.decisions.next_tag(), wanted, pieces) {
                Poll::Ready(found) => Found::Here(found),
                Poll::Pending => Found::Later(Some(self.decisions.use_tag())),
            }
        })
    }
}

impl Verbs for Asks<'_> {
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
