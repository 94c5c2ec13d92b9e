//! Which ends of work requests a simulation has seen, of those that it can see: of each operation, each status that the
//! contract's tables have for it, in each state of its queue pair.

use std::collections::BTreeSet;

use fpga_regs::Describe as _;
use fpga_regs::engine::cqe::Status;
use fpga_regs::engine::window::Capabilities;
use fpga_regs::engine::wqe::SendOpcode;

/// What ended; opcodes as the contract numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ended {
    /// A request of that opcode.
    Request(u8),
    /// A receive that a message of that opcode took, and ended.
    Taken(u8),
    /// A receive that no message ended.
    Unfilled,
}

/// The state of its queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum When {
    /// It was posted to one that was connected.
    Connected,
    /// It was posted to one in ERR.
    Failed,
    /// It was posted to one that failed, was reset, and connected again.
    Again,
}

/// The states in which a request is executed.
pub(crate) const WORKING: [When; 2] = [When::Connected, When::Again];

/// A status, and the operations of which it is the end.
type Row = (Status, fn(SendOpcode) -> bool);

/// How requests fail: the contract's checks of entries, and the answers of a responder, but for those for which the transport
/// of the simulation has no reason. It loses nothing, and does not give up.
const FAILURES: [Row; 6] = [
    (Status::LocalQpOperation, |_| true),
    (Status::LocalLength, |_| true),
    (Status::LocalProtection, |_| true),
    // The receive is too short, or the queue pair does not grant the right.
    (Status::RemoteInvalidRequest, |_| true),
    (Status::RemoteAccess, |opcode| !is_send(opcode)),
    // The receive is not valid, or memory is out of reach.
    (Status::RemoteOperation, |_| true),
];

/// How the receive ends that a message took.
const RECEIVES: [Row; 3] = [
    (Status::Success, takes_receive),
    (Status::LocalLength, is_send),
    (Status::LocalProtection, takes_receive),
];

fn is_send(opcode: SendOpcode) -> bool {
    [SendOpcode::Send, SendOpcode::SendImm].contains(&opcode)
}

/// Whether a message of an operation takes a receive; of those that the engine offers.
pub(crate) fn takes_receive(opcode: SendOpcode) -> bool {
    is_send(opcode) || opcode == SendOpcode::WriteImm
}

/// What an engine offers that has an operation.
fn needs(opcode: SendOpcode) -> Capabilities {
    use Capabilities as C;
    match opcode {
        SendOpcode::Send => C::SEND,
        SendOpcode::SendImm => C::SEND | C::IMMEDIATE,
        SendOpcode::SendInvalidate => C::SEND | C::INVALIDATE,
        SendOpcode::Write => C::WRITE,
        SendOpcode::WriteImm => C::WRITE | C::IMMEDIATE,
        SendOpcode::Read => C::READ,
        SendOpcode::CompareSwap | SendOpcode::FetchAdd => C::ATOMIC,
        SendOpcode::LocalInvalidate => C::INVALIDATE,
        SendOpcode::BindWindow => C::MEMORY_WINDOW,
        _ => C::all(),
    }
}

/// All operations of the contract, and whether an engine with these capabilities has them.
fn operations(capabilities: Capabilities) -> impl Iterator<Item = (SendOpcode, bool)> {
    let codes = SendOpcode::CODES.into_iter().flat_map(|codes| codes.values);
    codes.map(move |code| {
        let opcode = SendOpcode::from_raw(code.value);
        (opcode, capabilities.contains(needs(opcode)))
    })
}

/// Each way in which a request can fail at an engine with these capabilities; one that it does not offer fails in one way.
pub(crate) fn failures(
    capabilities: Capabilities,
) -> impl Iterator<Item = (SendOpcode, bool, Status)> {
    operations(capabilities).flat_map(|(opcode, is_offered)| {
        let is_its = move |(status, of): &Row| {
            of(opcode) && (is_offered || *status == Status::LocalQpOperation)
        };
        FAILURES.into_iter().filter(is_its).map(move |(status, _)| (opcode, is_offered, status))
    })
}

/// The ends that were seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage(BTreeSet<(Ended, u8, When)>);

impl Coverage {
    /// Takes note of an end.
    pub fn note(&mut self, ended: Ended, status: Status, when: When) {
        self.0.insert((ended, status.0, when));
    }

    /// Takes what another has seen, too.
    pub fn merge(&mut self, other: &Self) {
        self.0.extend(&other.0);
    }

    /// The ends that there are at an engine with these capabilities.
    #[must_use]
    pub fn of_all(capabilities: Capabilities) -> Self {
        use Ended::{Request, Taken, Unfilled};
        use When::{Again, Connected, Failed};
        let mut all = Self::default();
        for (opcode, _, status) in failures(capabilities) {
            WORKING.iter().for_each(|when| all.note(Request(opcode.0), status, *when));
        }
        let offered = operations(capabilities).filter(|(_, is_offered)| *is_offered);
        for (opcode, _) in offered {
            let receives = RECEIVES.into_iter().filter(|(_, of)| of(opcode));
            let receives = receives.map(|(status, _)| (Taken(opcode.0), status));
            for (ended, status) in receives.chain([(Request(opcode.0), Status::Success)]) {
                WORKING.iter().for_each(|when| all.note(ended, status, *when));
            }
            for when in [Connected, Failed, Again] {
                all.note(Request(opcode.0), Status::Flushed, when);
            }
        }
        for when in [Connected, Failed, Again] {
            all.note(Unfilled, Status::Flushed, when);
        }
        all
    }

    /// How many of those there are that another has.
    #[must_use]
    pub fn count_of(&self, all: &Self) -> usize {
        self.0.intersection(&all.0).count()
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Those of another that are missing, in words.
    #[must_use]
    pub fn missing(&self, all: &Self) -> String {
        Self(&all.0 - &self.0).words()
    }

    /// All of them, in words.
    #[must_use]
    pub fn words(&self) -> String {
        let words = self.0.iter();
        let words =
            words.map(|(ended, status, when)| format!("{ended:?} status {status} {when:?}"));
        words.collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFERED: Capabilities = Capabilities::SEND.union(Capabilities::READ);

    #[test]
    fn what_was_seen_of_all_is_counted_and_the_rest_named() {
        let all = Coverage::of_all(OFFERED);
        assert_eq!(all.count_of(&all), all.count());
        assert_eq!(all.missing(&all), "");
        let mut seen = Coverage::default();
        seen.note(Ended::Unfilled, Status::Flushed, When::Failed);
        // No receive ends so.
        seen.note(Ended::Unfilled, Status::Success, When::Failed);
        assert_eq!((seen.count_of(&all), seen.count()), (1, 2));
        assert!(seen.missing(&all).starts_with("Request("));
    }

    #[test]
    fn what_an_engine_does_not_offer_fails_in_one_way() {
        let of = |opcode: SendOpcode| {
            failures(OFFERED).filter(|it| it.0 == opcode).map(|it| it.2).collect::<Vec<_>>()
        };
        assert_eq!(of(SendOpcode::SendImm), [Status::LocalQpOperation]);
        assert_eq!(of(SendOpcode::BindWindow), [Status::LocalQpOperation]);
        assert_eq!(of(SendOpcode::Read).len(), FAILURES.len());
        // Of each of these two 15 or 17, of the 8 others two; of receives 6 and 3.
        assert_eq!(Coverage::of_all(OFFERED).count(), 15 + 17 + 2 * 8 + 6 + 3);
    }
}
