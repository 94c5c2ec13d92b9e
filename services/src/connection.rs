//! A queue pair that has services.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::chain::Chain;
use crate::lane::{Lane, Stop};
use crate::part::{Operation, Part};
use crate::service::{Budget, Halt, Placing, Verdict};

/// The counts of services on a connection, or on several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets that came and were checked; one that comes again counts again.
    pub checked_packets: u64,
    /// Packets that were dropped as if they were lost.
    pub dropped_packets: u64,
    /// Packets that ended their connection.
    pub refused_packets: u64,
    /// The matches that services found: in accepted packets, and in the one that was refused for it.
    pub matches: u64,
    /// Packets that were acted on.
    pub acted_packets: u64,
    /// Bytes of those.
    pub acted_bytes: u64,
    /// Messages that were acted on to their end.
    pub acted_messages: u64,
    /// Packets that were changed before they left; one that leaves again counts again.
    pub transformed_packets: u64,
    /// Packets for which a service wanted to work more than it had declared, which ended their connections.
    pub over_budget: u64,
    /// Packets on which a loaded service did what no service may, which ended their connections.
    pub faults: u64,
}

impl Counters {
    /// The counters by name, in a fixed order.
    #[must_use]
    pub const fn named(&self) -> [(&'static str, u64); 10] {
        [
            ("checked_packets", self.checked_packets),
            ("dropped_packets", self.dropped_packets),
            ("refused_packets", self.refused_packets),
            ("matches", self.matches),
            ("acted_packets", self.acted_packets),
            ("acted_bytes", self.acted_bytes),
            ("acted_messages", self.acted_messages),
            ("transformed_packets", self.transformed_packets),
            ("over_budget", self.over_budget),
            ("faults", self.faults),
        ]
    }

    /// The sum of both.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            checked_packets: self.checked_packets.saturating_add(other.checked_packets),
            dropped_packets: self.dropped_packets.saturating_add(other.dropped_packets),
            refused_packets: self.refused_packets.saturating_add(other.refused_packets),
            matches: self.matches.saturating_add(other.matches),
            acted_packets: self.acted_packets.saturating_add(other.acted_packets),
            acted_bytes: self.acted_bytes.saturating_add(other.acted_bytes),
            acted_messages: self.acted_messages.saturating_add(other.acted_messages),
            transformed_packets: self.transformed_packets.saturating_add(other.transformed_packets),
            over_budget: self.over_budget.saturating_add(other.over_budget),
            faults: self.faults.saturating_add(other.faults),
        }
    }
}

fn bump(counter: &mut u64) {
    *counter = counter.saturating_add(1);
}

/// A queue pair that has services, in one life of it.
#[derive(Debug)]
pub struct ServedQp {
    chain: Arc<Chain>,
    /// Messages of the peer's. They and the answers know nothing of each other.
    requests: Lane,
    /// Answers to this end's READs.
    responses: Lane,
    /// The part of the packet that was checked last and is not accepted yet; `None` where services do not see it.
    checked: Option<Part>,
    /// The same of each placement that was accepted and not acted on.
    waiting: VecDeque<Option<Part>>,
    /// A check ended the connection: nothing is accepted any more, and accepted packets are still acted on.
    refused: bool,
    /// Another stage did: nothing is acted on any more either.
    failed: bool,
    leaving: bool,
    /// Units of work on packets that left, which were not taken.
    work: u64,
    counters: Counters,
}

impl ServedQp {
    /// A connection on which nothing has come yet.
    #[must_use]
    pub fn new(chain: Arc<Chain>) -> Self {
        Self {
            requests: Lane::new(&chain),
            responses: Lane::new(&chain),
            chain,
            checked: None,
            waiting: VecDeque::new(),
            refused: false,
            failed: false,
            leaving: false,
            work: 0,
            counters: Counters::default(),
        }
    }

    /// The counts of its services.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let found = [&self.requests, &self.responses].map(|lane| lane.found(&self.chain));
        let matches = found.into_iter().fold(0, u64::saturating_add);
        Counters { matches, ..self.counters }
    }

    /// Whether a message is under way that services see; none goes on, on a connection that has failed.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        let is_open = self.requests.is_open() || self.responses.is_open();
        !self.failed && (is_open && !self.refused || !self.waiting.is_empty())
    }

    /// Whether a message of an operation's way has begun, and not ended.
    pub(crate) fn has_open(&self, operation: Operation) -> bool {
        match operation {
            Operation::Send | Operation::Write => self.requests.is_open(),
            Operation::Read => self.responses.is_open(),
        }
    }

    /// Placements that were accepted and not acted on.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether a stage ended the connection.
    pub(crate) fn has_failed(&self) -> bool {
        self.refused || self.failed
    }

    /// Whether nothing is under way, on a connection that goes on.
    pub(crate) fn is_done(&self) -> bool {
        !self.has_failed() && !self.is_busy() && self.checked.is_none()
    }

    /// Forgets the packet that was checked last: it was not accepted, and another one has come.
    pub(crate) fn forget_checked(&mut self) {
        self.checked = None;
    }

    /// Lets messages that have begun go on to their end, and no other begin.
    pub(crate) fn leave(&mut self) {
        self.leaving = true;
    }

    /// Lets messages that have begun be without an end: the queue pair has failed.
    pub(crate) fn give_up(&mut self) {
        self.failed = true;
    }

    /// Whether its services were detached, and nothing that they see is under way any more.
    pub(crate) fn has_left(&self) -> bool {
        self.leaving && !self.is_busy()
    }

    /// The way by which messages of an operation come, each of them behind the one before.
    fn lane(&mut self, operation: Operation) -> (&mut Lane, &Chain) {
        match operation {
            Operation::Send | Operation::Write => (&mut self.requests, &self.chain),
            Operation::Read => (&mut self.responses, &self.chain),
        }
    }

    /// Lets the services check a packet whose turn it is: `part` of it and its payload, or `None` where it has none.
    /// Each call takes the place of the one before.
    pub fn check(&mut self, packet: Option<(&Part, &[u8])>) -> Verdict {
        self.checked = None;
        let Some((part, payload)) = packet else { return Verdict::Accept };
        if self.refused || self.failed {
            return Verdict::Refuse;
        }
        if self.leaving && part.is_first() || !self.chain.sees(part.operation) {
            return Verdict::Accept;
        }
        let (lane, chain) = self.lane(part.operation);
        let outcome = lane.check(chain, part, payload);
        if outcome != Ok(false) {
            bump(&mut self.counters.checked_packets);
        }
        match outcome {
            Ok(seen) => {
                self.checked = seen.then_some(*part);
                Verdict::Accept
            }
            Err(Stop::Dropped) => {
                bump(&mut self.counters.dropped_packets);
                Verdict::Drop
            }
            Err(stop) => {
                self.refused = true;
                self.count(stop);
                Verdict::Refuse
            }
        }
    }

    /// The packet that was checked last is accepted, and its payload is to be placed.
    pub fn accept(&mut self) {
        let part = self.checked.take();
        if let Some(part) = &part {
            self.lane(part.operation).0.accept(part);
        }
        self.waiting.push_back(part);
    }

    /// Lets the services act on the oldest placement that was accepted, before its payload is placed; `false` where the
    /// connection is to fail, and nothing is to be placed.
    #[must_use]
    pub fn act(&mut self, placing: &mut Placing<'_>) -> bool {
        let Some(Some(part)) = self.waiting.pop_front() else { return !self.failed };
        if self.failed {
            return false;
        }
        let (lane, chain) = self.lane(part.operation);
        match lane.act(chain, &part, placing) {
            Ok(()) => {
                let (length, ended) = (u64::from(part.length), u64::from(part.is_last));
                bump(&mut self.counters.acted_packets);
                self.counters.acted_bytes = self.counters.acted_bytes.saturating_add(length);
                self.counters.acted_messages = self.counters.acted_messages.saturating_add(ended);
                true
            }
            Err(stop) => {
                self.fail(stop);
                false
            }
        }
    }

    /// Whether any of its services changes payload that leaves.
    #[must_use]
    pub fn transforms(&self) -> bool {
        self.chain.transforming().is_some()
    }

    /// The units of work that its services have declared for a packet, at one stage.
    pub(crate) fn declared_work(&self) -> u32 {
        self.chain.work()
    }

    /// Takes the units of work that its services have done since this was last asked.
    pub fn take_work(&mut self) -> u64 {
        let lanes = self.requests.take_work().saturating_add(self.responses.take_work());
        std::mem::take(&mut self.work).saturating_add(lanes)
    }

    /// Lets the services change payload that leaves, the last of the chain first; `false` where the connection is to
    /// fail, and the payload is not to leave.
    #[must_use]
    pub fn transform(&mut self, part: &Part, payload: &mut [u8]) -> bool {
        if self.failed {
            return false;
        }
        let mut transformed = false;
        for service in self.chain.services().iter().rev() {
            let about = service.about();
            if !self.chain.transforms(about, part.operation) {
                continue;
            }
            transformed = true;
            let mut budget = Budget::new(about.work);
            let outcome = service.transform(part, payload, &mut budget);
            self.work = self.work.saturating_add(budget.spent_of(about.work));
            if let Err(halt) = outcome {
                self.fail(halt.into());
                return false;
            }
        }
        if transformed {
            bump(&mut self.counters.transformed_packets);
        }
        true
    }

    fn fail(&mut self, stop: Stop) {
        self.failed = true;
        self.count(stop);
    }

    fn count(&mut self, stop: Stop) {
        match stop {
            Stop::Halted(Halt::Exhausted) => bump(&mut self.counters.over_budget),
            Stop::Halted(Halt::Fault) => bump(&mut self.counters.faults),
            Stop::Dropped | Stop::Refused => bump(&mut self.counters.refused_packets),
        }
    }
}
