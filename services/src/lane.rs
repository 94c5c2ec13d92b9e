//! One way of a connection: the state that its services have there, and the message that is under way.

use crate::chain::Chain;
use crate::part::{End, Part};
use crate::service::{About, Budget, Halt, PacketService, Placing, Verdict};

/// Why a packet, or its connection, ends at a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The packet is dropped.
    Dropped,
    /// The service refuses it.
    Refused,
    /// The service is stopped on this connection.
    Halted(Halt),
}

impl From<Halt> for Stop {
    fn from(halt: Halt) -> Self {
        Self::Halted(halt)
    }
}

/// One way of a connection.
#[derive(Debug)]
pub(crate) struct Lane {
    /// The state of all checks, one behind the other, as of the last packet that was accepted.
    check: Vec<u8>,
    /// The same behind the packet that was checked last.
    next: Vec<u8>,
    /// The state of all acts.
    act: Vec<u8>,
    /// Packets of a message were accepted, and its last one was not.
    is_open: bool,
    /// Units of work that were done, and not taken.
    work: u64,
}

fn total(chain: &Chain, of: impl Fn(&About) -> usize) -> usize {
    chain.services().iter().map(|it| of(it.about())).fold(0, usize::saturating_add)
}

/// Calls with each service that takes part in a message, its part of the state, and its budget, until one stops; adds the
/// units of work that they did.
fn each<E>(
    chain: &Chain,
    mut states: &mut [u8],
    work: &mut u64,
    (size, takes): (impl Fn(&About) -> usize, impl Fn(&About) -> bool),
    mut call: impl FnMut(&dyn PacketService, &mut [u8], &mut Budget) -> Result<(), E>,
) -> Result<(), E> {
    for service in chain.services() {
        let about = service.about();
        // There is as much state as all have declared.
        let Some((own, rest)) = states.split_at_mut_checked(size(about)) else { break };
        states = rest;
        if takes(about) {
            let mut budget = Budget::new(about.work);
            let outcome = call(&**service, own, &mut budget);
            *work = work.saturating_add(budget.spent_of(about.work));
            outcome?;
        }
    }
    Ok(())
}

impl Lane {
    pub(crate) fn new(chain: &Chain) -> Self {
        let check = vec![0; total(chain, |about| about.check_state)];
        Self {
            next: check.clone(),
            check,
            act: vec![0; total(chain, |about| about.act_state)],
            is_open: false,
            work: 0,
        }
    }

    /// Takes the units of work that its services have done since this was last asked.
    pub(crate) const fn take_work(&mut self) -> u64 {
        std::mem::replace(&mut self.work, 0)
    }

    /// Whether a message has begun whose last packet has not been accepted.
    pub(crate) const fn is_open(&self) -> bool {
        self.is_open
    }

    /// Whether a packet is one of a message that began before the services were there.
    fn is_foreign(&self, part: &Part) -> bool {
        !self.is_open && !part.is_first()
    }

    /// Lets the services check a packet whose turn it is; whether they see it at all.
    pub(crate) fn check(
        &mut self,
        chain: &Chain,
        part: &Part,
        payload: &[u8],
    ) -> Result<bool, Stop> {
        if self.is_foreign(part) {
            return Ok(false);
        }
        self.next.copy_from_slice(&self.check);
        let takes = |about: &About| about.stages.check && about.operations.has(part.operation);
        let which = (|about: &About| about.check_state, takes);
        let outcome =
            each(chain, &mut self.next, &mut self.work, which, |service, state, budget| {
                match service.check(part, payload, state, budget)? {
                    Verdict::Accept => Ok(()),
                    Verdict::Drop => Err(Stop::Dropped),
                    Verdict::Refuse => Err(Stop::Refused),
                }
            });
        if outcome == Err(Stop::Refused) {
            // Nothing is checked behind it, and the pattern for which it was refused counts as found.
            std::mem::swap(&mut self.check, &mut self.next);
        }
        outcome?;
        Ok(true)
    }

    /// The number of matches that services have found, in accepted packets and in the one that was refused.
    pub(crate) fn found(&self, chain: &Chain) -> u64 {
        let mut states = &*self.check;
        let each = chain.services().iter().map(|service| {
            let (own, rest) =
                states.split_at_checked(service.about().check_state).unwrap_or_default();
            states = rest;
            service.found(own)
        });
        each.fold(0, u64::saturating_add)
    }

    /// Keeps the state that the checks of the last packet left, of which this is the part: it was accepted.
    pub(crate) fn accept(&mut self, part: &Part) {
        std::mem::swap(&mut self.check, &mut self.next);
        self.is_open = !part.is_last;
    }

    /// Lets the services act on a packet that was accepted.
    pub(crate) fn act(
        &mut self,
        chain: &Chain,
        part: &Part,
        placing: &mut Placing<'_>,
    ) -> Result<(), Stop> {
        let takes = |about: &About| about.stages.act && about.operations.has(part.operation);
        let which = (|about: &About| about.act_state, takes);
        each(chain, &mut self.act, &mut self.work, which, |service, state, budget| {
            if part.is_first() {
                service.begin(part, state, budget)?;
            }
            service.act(part, placing, state, budget)?;
            if part.is_last {
                let bytes = part.offset.saturating_add(u64::from(part.length));
                service.end(&End { operation: part.operation, bytes }, state, budget)?;
            }
            Ok(())
        })
    }
}
