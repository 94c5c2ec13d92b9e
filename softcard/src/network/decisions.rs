//! Questions about requests of peers that logic has not answered yet.
//!
//! Of each QP one packet at most waits for an answer. It is given to the transport again once that has
//! come, asks the same, and finds it here.

use std::collections::BTreeMap;

use roce::{AccessDenied, Qpn, ReceiveError, TakenReceive};

use crate::vfpga::{Answer, Tag, vfpga_of};

/// A question about a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Question<T> {
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

/// The decisions that a QP's packet waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenDecisions {
    /// The vFPGA that is asked.
    pub(crate) vfpga: usize,
    /// When it is decided without an answer.
    pub(crate) until: u64,
    pub(crate) access: Question<Result<(), AccessDenied>>,
    pub(crate) receive: Question<Result<TakenReceive, ReceiveError>>,
}

impl OpenDecisions {
    /// Nothing yet.
    pub(crate) fn of(vfpga: usize) -> Self {
        Self { vfpga, until: 0, access: Question::Unasked, receive: Question::Unasked }
    }
}

/// The questions of a card.
#[derive(Debug, Default)]
pub(crate) struct Decisions {
    next: Tag,
    /// The time at which present questions are decided without an answer.
    pub(crate) until: u64,
    pub(crate) open: BTreeMap<Qpn, OpenDecisions>,
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
        for open in self.open.values_mut().filter(|open| open.vfpga == vfpga) {
            match answer {
                Answer::Access(decided) => open.access.decide(tag, *decided),
                Answer::Receive(decided) => open.receive.decide(tag, *decided),
                Answer::Placed(_) | Answer::Fetched(_) => {}
            }
        }
    }

    /// Refuses requests whose question is too old; gives the number of questions.
    pub(crate) fn expire(&mut self, now: u64) -> u64 {
        let mut expired = 0u64;
        for open in self.open.values_mut().filter(|open| open.until <= now) {
            if let Question::Asked(_) = open.access {
                open.access = Question::Decided(Err(AccessDenied::Memory));
                expired = expired.saturating_add(1);
            }
            if let Question::Asked(_) = open.receive {
                open.receive = Question::Decided(Err(ReceiveError::Invalid));
                expired = expired.saturating_add(1);
            }
        }
        expired
    }

    /// When the first question is decided without an answer.
    pub(crate) fn next_timeout(&self) -> Option<u64> {
        let asks = |open: &&OpenDecisions| {
            matches!(open.access, Question::Asked(_)) || matches!(open.receive, Question::Asked(_))
        };
        self.open.values().filter(asks).map(|open| open.until).min()
    }

    /// A packet of a QP was taken.
    pub(crate) fn close(&mut self, qpn: Qpn) {
        self.open.remove(&qpn);
    }

    /// Forgets the questions to a vFPGA, and those about its QPs.
    pub(crate) fn forget(&mut self, vfpga: usize) {
        self.open.retain(|qpn, open| open.vfpga != vfpga && vfpga_of(*qpn) != vfpga);
    }
}
