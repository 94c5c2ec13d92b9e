//! What logic was asked about requests of peers, and did not answer at once.
//!
//! Of each QP one packet at most waits for an answer. It is given to the transport again once that has
//! come, asks the same, and finds it here.

use std::collections::BTreeMap;
use std::task::Poll;

use roce::{AccessDenied, Qpn, Receive, ReceiveError, RemoteAccess, Verbs};

use crate::vfpga::{
    Access, Answer, Logic, Piece, Tag, Unreachable, Vfpga, Wanted, occupant, vfpga_of,
};

/// A question about a packet.
#[derive(Clone, Copy, Debug)]
enum Question<T> {
    Unasked,
    Asked(Tag),
    Decided(T),
}

impl<T> Question<T> {
    /// Takes an answer, if it is to this; gives it back otherwise.
    fn decide(&mut self, tag: Tag, answer: T) {
        if matches!(self, Self::Asked(asked) if *asked == tag) {
            *self = Self::Decided(answer);
        }
    }
}

/// What the packet of a QP waits for.
#[derive(Clone, Copy, Debug)]
struct Open {
    access: Question<Result<(), AccessDenied>>,
    receive: Question<Result<Receive, ReceiveError>>,
}

impl Default for Open {
    fn default() -> Self {
        Self { access: Question::Unasked, receive: Question::Unasked }
    }
}

/// The questions of a card.
#[derive(Debug, Default)]
pub(crate) struct Decisions {
    next: Tag,
    open: BTreeMap<Qpn, Open>,
}

impl Decisions {
    /// The tag of the next request.
    pub(crate) fn next_tag(&self) -> Tag {
        self.next
    }

    /// The next tag was given to a request that is answered later.
    pub(crate) fn use_tag(&mut self) -> Tag {
        let Tag(number) = self.next;
        self.next = Tag(number.wrapping_add(1));
        Tag(number)
    }

    /// Whether nothing is waited for.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Takes an answer of a vFPGA's; one to nothing that it was asked has no effect.
    pub(crate) fn decide(&mut self, vfpga: usize, tag: Tag, answer: &Answer) {
        for (_, open) in self.open.iter_mut().filter(|(qpn, _)| vfpga_of(**qpn) == vfpga) {
            match answer {
                Answer::Access(decided) => open.access.decide(tag, *decided),
                Answer::Receive(decided) => open.receive.decide(tag, *decided),
                Answer::Place(_) => {}
            }
        }
    }

    /// A packet of a QP was taken.
    pub(crate) fn close(&mut self, qpn: Qpn) {
        self.open.remove(&qpn);
    }

    /// Forgets what was asked about some QPs.
    pub(crate) fn forget(&mut self, of: impl Fn(Qpn) -> bool) {
        self.open.retain(|qpn, _| !of(*qpn));
    }
}

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
        qpn: Qpn,
        nobody: T,
        question: impl Fn(&mut Open) -> &mut Question<T>,
        ask: impl FnOnce(&mut Vfpga, Tag) -> Poll<T>,
    ) -> Poll<T> {
        if let Some(open) = self.decisions.open.get_mut(&qpn) {
            match *question(open) {
                Question::Unasked => {}
                Question::Asked(_) => return Poll::Pending,
                Question::Decided(decided) => return Poll::Ready(decided),
            }
        }
        let Some(vfpga) = self.vfpgas.get_mut(vfpga_of(qpn)) else { return Poll::Ready(nobody) };
        if !self.may_wait || !occupant!(&vfpga.logic, logic => logic.is_ready()) {
            return Poll::Pending;
        }
        let answer = ask(vfpga, self.decisions.next_tag());
        if answer.is_pending() {
            let tag = self.decisions.use_tag();
            *question(self.decisions.open.entry(qpn).or_default()) = Question::Asked(tag);
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
        let Some(vfpga) = self.vfpgas.get_mut(vfpga_of(wanted.qpn)) else {
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
        qpn: Qpn,
        rkey: u32,
        va: u64,
        length: u64,
        access: RemoteAccess,
    ) -> Poll<Result<(), AccessDenied>> {
        let access = Access { qpn, rkey, va, length, access };
        self.ask(
            qpn,
            Err(AccessDenied),
            |open| &mut open.access,
            |vfpga, tag| occupant!(&mut vfpga.logic, logic => logic.check_remote(tag, &access)),
        )
    }

    #[inline]
    fn take_receive(&mut self, qpn: Qpn) -> Poll<Result<Receive, ReceiveError>> {
        self.ask(
            qpn,
            Err(ReceiveError::Empty),
            |open| &mut open.receive,
            |vfpga, tag| occupant!(&mut vfpga.logic, logic => logic.take_receive(tag, qpn)),
        )
    }
}
