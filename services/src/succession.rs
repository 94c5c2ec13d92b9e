//! A queue pair whose services change from one message to the next.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::chain::Chain;
use crate::connection::{Counters, ServedQp};
use crate::part::Part;
use crate::service::{Placing, Verdict};

/// The services of a queue pair, and those that follow them: messages that have begun keep the former.
#[derive(Debug)]
pub struct Succession {
    present: ServedQp,
    /// Those of all messages that begin from now on, as long as one that had begun keeps the present ones.
    next: Option<ServedQp>,
    /// Whether the packet that was checked last is one for the next.
    checked_next: bool,
    /// The same of each placement that was accepted and not acted on; kept while there are next ones.
    waiting: VecDeque<bool>,
    /// The counts of former ones.
    past: Counters,
    /// Units of their work, which were not taken.
    past_work: u64,
}

impl Succession {
    /// A connection on which nothing has come yet.
    #[must_use]
    pub fn new(chain: Arc<Chain>) -> Self {
        Self {
            present: ServedQp::new(chain),
            next: None,
            checked_next: false,
            waiting: VecDeque::new(),
            past: Counters::default(),
            past_work: 0,
        }
    }

    fn each(&self) -> impl Iterator<Item = &ServedQp> {
        std::iter::once(&self.present).chain(&self.next)
    }

    fn each_mut(&mut self) -> impl Iterator<Item = &mut ServedQp> {
        std::iter::once(&mut self.present).chain(&mut self.next)
    }

    /// The counts of its services, former ones included.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.each().fold(self.past, |sum, its| sum.plus(its.counters()))
    }

    /// Whether a message is under way that services see; none goes on, on a connection that has failed.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.each().any(ServedQp::is_busy)
    }

    /// Lets messages that have begun go on to their end, and no other begin.
    pub(crate) fn leave(&mut self) {
        self.each_mut().for_each(ServedQp::leave);
    }

    /// Lets messages that have begun be without an end: the queue pair has failed.
    pub(crate) fn give_up(&mut self) {
        self.each_mut().for_each(ServedQp::give_up);
    }

    /// Whether its services were detached, and nothing that they see is under way any more.
    pub(crate) fn has_left(&self) -> bool {
        self.each().all(ServedQp::has_left)
    }

    /// Whether others can follow now: not while a message keeps services that have been followed already.
    pub(crate) fn can_be_followed(&self) -> bool {
        self.next.as_ref().is_none_or(ServedQp::is_done)
    }

    /// Has other services follow at the next message of each way.
    pub(crate) fn follow(&mut self, chain: Arc<Chain>) {
        match self.next.take() {
            Some(next) => self.past = self.past.plus(next.counters()),
            None => self.waiting.extend(std::iter::repeat_n(false, self.present.waiting())),
        }
        self.present.leave();
        self.next = Some(ServedQp::new(chain));
        self.settle();
    }

    /// Has the next services be the present ones, once nothing is under way with those.
    fn settle(&mut self) {
        if let Some(next) = self.next.take_if(|_| self.present.is_done()) {
            self.past = self.past.plus(self.present.counters());
            self.past_work = self.past_work.saturating_add(self.present.take_work());
            self.present = next;
            // All that waits is theirs.
            self.checked_next = false;
            self.waiting.clear();
        }
    }

    /// Lets the services check a packet whose turn it is, as [`ServedQp::check`].
    pub fn check(&mut self, packet: Option<(&Part, &[u8])>) -> Verdict {
        self.checked_next = false;
        if let (Some(next), Some((part, _))) = (&mut self.next, packet) {
            let has_begun = !part.is_first() && self.present.has_open(part.operation);
            if !has_begun && !self.present.has_failed() {
                self.present.forget_checked();
                self.checked_next = true;
                return next.check(packet);
            }
        }
        self.present.check(packet)
    }

    /// The packet that was checked last is accepted, and its payload is to be placed.
    pub fn accept(&mut self) {
        let is_next = std::mem::take(&mut self.checked_next);
        if self.next.is_some() {
            self.waiting.push_back(is_next);
        }
        match &mut self.next {
            Some(next) if is_next => next.accept(),
            _ => self.present.accept(),
        }
    }

    /// Lets the services act on the oldest placement that was accepted, as [`ServedQp::act`].
    #[must_use]
    pub fn act(&mut self, placing: &mut Placing<'_>) -> bool {
        let acted = match &mut self.next {
            Some(next) if self.waiting.pop_front() == Some(true) => next.act(placing),
            _ => self.present.act(placing),
        };
        self.settle();
        acted
    }

    /// Whether any of its services changes payload that leaves.
    #[must_use]
    pub fn transforms(&self) -> bool {
        self.present.transforms()
    }

    /// The most units of work that its services have declared for a packet, at one stage.
    #[must_use]
    pub fn declared_work(&self) -> u32 {
        self.each().map(ServedQp::declared_work).max().unwrap_or(0)
    }

    /// Takes the units of work that its services have done since this was last asked.
    pub fn take_work(&mut self) -> u64 {
        let past = std::mem::take(&mut self.past_work);
        self.each_mut().map(ServedQp::take_work).fold(past, u64::saturating_add)
    }

    /// Lets the services change payload that leaves, as [`ServedQp::transform`]. None of those that do are followed.
    #[must_use]
    pub fn transform(&mut self, part: &Part, payload: &mut [u8]) -> bool {
        self.present.transform(part, payload)
    }
}
