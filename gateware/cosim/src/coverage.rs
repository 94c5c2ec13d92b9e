//! Which ends of work requests a simulation has seen, of those that it can see.

use std::collections::BTreeSet;

use fpga_regs::engine::cqe::Status;
use fpga_regs::engine::wqe::SendOpcode;

/// What ended; opcodes as the contract numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ended {
    /// A request of that opcode.
    Request(u8),
    /// A receive that a message of that opcode filled.
    Filled(u8),
    /// A receive that no message filled.
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

const SENDS: [SendOpcode; 2] = [SendOpcode::Send, SendOpcode::SendImm];
const WRITES: [SendOpcode; 2] = [SendOpcode::Write, SendOpcode::WriteImm];
const FILLING: [SendOpcode; 3] = [SendOpcode::Send, SendOpcode::SendImm, SendOpcode::WriteImm];

/// The ends that were seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage(BTreeSet<(Ended, u8, When)>);

impl Coverage {
    /// Takes note of an end.
    pub fn note(&mut self, ended: Ended, status: Status, when: When) {
        self.0.insert((ended, status.0, when));
    }

    /// Takes what another has seen, too.
    pub fn merge(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// The ends of all that the engine offers, without those for which the transport of the simulation has no reason.
    #[must_use]
    pub fn of_all() -> Self {
        use Ended::{Filled, Request, Unfilled};
        use When::{Again, Connected, Failed};
        let mut all = Self::default();
        let read = [SendOpcode::Read];
        for opcode in SENDS.into_iter().chain(WRITES).chain(read) {
            for when in [Connected, Again] {
                all.note(Request(opcode.0), Status::Success, when);
            }
            for when in [Connected, Failed] {
                all.note(Request(opcode.0), Status::Flushed, when);
            }
        }
        let refused: [(&[SendOpcode], &[Status]); 3] = [
            (&SENDS, &[Status::RemoteInvalidRequest, Status::RemoteOperation]),
            (&WRITES, &[Status::RemoteAccess]),
            (&read, &[Status::RemoteAccess, Status::LocalProtection, Status::LocalQpOperation]),
        ];
        for (opcodes, statuses) in refused {
            for opcode in opcodes {
                statuses.iter().for_each(|it| all.note(Request(opcode.0), *it, Connected));
            }
        }
        for opcode in FILLING {
            for when in [Connected, Again] {
                all.note(Filled(opcode.0), Status::Success, when);
            }
        }
        for status in [Status::LocalLength, Status::LocalProtection, Status::Flushed] {
            all.note(Unfilled, status, Connected);
        }
        all.note(Unfilled, Status::Flushed, Failed);
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
        let words = all.0.difference(&self.0);
        let words =
            words.map(|(ended, status, when)| format!("{ended:?} status {status} {when:?}"));
        words.collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_of_all_is_counted_and_the_rest_named() {
        let all = Coverage::of_all();
        assert_eq!(all.count_of(&all), all.count());
        assert_eq!(all.missing(&all), "");
        let mut seen = Coverage::default();
        seen.note(Ended::Unfilled, Status::Flushed, When::Failed);
        // No receive ends so.
        seen.note(Ended::Unfilled, Status::Success, When::Failed);
        assert_eq!((seen.count_of(&all), seen.count()), (1, 2));
        assert!(seen.missing(&all).starts_with("Request("));
    }
}
