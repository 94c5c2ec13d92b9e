//! What one client may have: every limit in one table.
//!
//! The figures leave room for the other clients of a card: a client gets at most seven eighths of
//! what its engine offers, and never more than the table says; contexts and channels cost balboad a
//! descriptor each, of which a client gets a thirty-second part for either.

use std::sync::OnceLock;

use nix::sys::resource::{Resource as Limited, getrlimit};

use crate::engine::EngineLimits;
use crate::error::Error;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Open contexts.
    Contexts,
    /// Protection domains.
    Pds,
    /// Completion channels.
    Channels,
    /// Completion queues.
    Cqs,
    /// Entries of all completion queues together.
    CqEntries,
    /// Queue pairs.
    Qps,
    /// Memory regions.
    Mrs,
    /// Bytes of all memory regions together.
    MrBytes,
    /// Bytes of all rings together.
    RingBytes,
}

/// Every resource with its name in messages and its limit.
const TABLE: [(Resource, &str, u64); 9] = [
    (Resource::Contexts, "contexts", 256),
    (Resource::Pds, "protection domains", 4096),
    (Resource::Channels, "completion channels", 1024),
    (Resource::Cqs, "completion queues", 16384),
    (Resource::CqEntries, "completion queue entries", 12 << 20),
    (Resource::Qps, "queue pairs", 16384),
    (Resource::Mrs, "memory regions", 65536),
    (Resource::MrBytes, "registered bytes", 1 << 40),
    (Resource::RingBytes, "bytes of rings", crate::rings::RING_BYTES),
];

impl Resource {
    fn entry(self) -> (&'static str, u64) {
        TABLE
            .iter()
            .find(|(resource, ..)| *resource == self)
            .map_or(("objects", 0), |&(_, name, limit)| (name, limit))
    }

    /// The resource's name, plural.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.entry().0
    }

    /// Every resource, in the order of the table.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.into_iter().map(|(resource, ..)| resource)
    }

    /// What a client may have of it on an engine with these limits.
    #[must_use]
    pub fn limit(self, engine: &EngineLimits) -> u64 {
        let (_, table) = self.entry();
        let offered = match self {
            Self::Cqs => engine.cqs,
            Self::Qps => engine.qps.min(engine.rqs),
            Self::Mrs => engine.keys,
            Self::Contexts | Self::Channels => return table.min(share_of_descriptors()),
            _ => return table,
        };
        table.min(u64::from(share(offered)))
    }
}

/// What one client may take of what an engine has: seven eighths, but at least one.
fn share(offered: u32) -> u32 {
    offered.saturating_sub(offered / 8).max(offered.min(1))
}

/// What one client may take of the descriptors that balboad may have, of either kind.
fn share_of_descriptors() -> u64 {
    static SHARE: OnceLock<u64> = OnceLock::new();
    *SHARE.get_or_init(|| {
        let limit = getrlimit(Limited::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
        (limit / 32).max(1)
    })
}

/// What a client has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    counts: [u64; TABLE.len()],
}

impl Usage {
    /// How much of a resource the client has.
    #[must_use]
    pub fn of(&self, resource: Resource) -> u64 {
        Resource::all().zip(self.counts).find(|(r, _)| *r == resource).map_or(0, |(_, count)| count)
    }

    /// Objects of all kinds that the client has.
    #[must_use]
    pub fn objects(&self) -> u64 {
        use Resource::{Channels, Contexts, Cqs, Mrs, Pds, Qps};
        [Contexts, Pds, Channels, Cqs, Qps, Mrs].map(|resource| self.of(resource)).iter().sum()
    }

    /// Takes some of a resource.
    ///
    /// # Errors
    /// [`Error::Quota`], with nothing taken, where the client would have more than its limit.
    pub fn take(
        &mut self,
        resource: Resource,
        amount: u64,
        engine: &EngineLimits,
    ) -> Result<(), Error> {
        let limit = resource.limit(engine);
        let used = self.of(resource);
        match used.checked_add(amount) {
            Some(sum) if sum <= limit => {
                self.set(resource, sum);
                Ok(())
            }
            _ => Err(Error::Quota { resource: resource.name(), used, asked: amount, limit }),
        }
    }

    /// Gives some of a resource back.
    pub fn give(&mut self, resource: Resource, amount: u64) {
        self.set(resource, self.of(resource).saturating_sub(amount));
    }

    fn set(&mut self, resource: Resource, value: u64) {
        for (r, count) in Resource::all().zip(&mut self.counts) {
            if r == resource {
                *count = value;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn engine() -> EngineLimits {
        EngineLimits { qps: 16, rqs: 16, cqs: 8, keys: 1 << 20, ..EngineLimits::default() }
    }

    #[test]
    fn a_client_cannot_take_all_of_an_engine() {
        let mut usage = Usage::default();
        usage.take(Resource::Qps, 14, &engine()).unwrap();
        let refused = usage.take(Resource::Qps, 1, &engine()).unwrap_err();
        assert!(refused.to_string().contains("14 queue pairs"), "{refused}");
        assert_eq!(usage.of(Resource::Qps), 14);
        usage.give(Resource::Qps, 1);
        usage.take(Resource::Qps, 1, &engine()).unwrap();
    }

    #[test]
    fn resources_are_counted_apart_and_amounts_do_not_wrap() {
        let mut usage = Usage::default();
        for resource in Resource::all().filter(|&r| r != Resource::Contexts) {
            usage.take(resource, 1, &engine()).unwrap();
        }
        assert!(usage.take(Resource::MrBytes, u64::MAX, &engine()).is_err());
        assert_eq!(usage.of(Resource::Contexts), 0);
        assert_eq!(usage.of(Resource::MrBytes), 1);
    }

    #[test]
    fn an_engine_of_one_object_still_serves_one_client() {
        assert_eq!(share(1), 1);
        assert_eq!(share(0), 0);
        assert_eq!(share(1024), 896);
    }
}
