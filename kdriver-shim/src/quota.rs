//! Limits of one client: every limit in one table.
//!
//! The figures leave room for the other clients of a card: a client gets at most seven eighths of
//! its engine's objects, and never more than the table says; contexts and channels cost balboad a
//! descriptor each, of which a client gets a thirty-second part for either.
//!
//! Objects of a card are counted for each card by itself, so that a program can have as many on each as that
//! card advertises; contexts, channels, protection domains and rings are counted once for the process.
//!
//! Objects cost memory besides: each counts with the most that balboad ever keeps for it, a software
//! card's part included, and all of them together have a limit in bytes. Only the messages under way are
//! counted as they come and go, by the card ([`card_driver::backend::CardBackend::under_way`]).

use std::collections::BTreeMap;
use std::sync::OnceLock;

use ::services::limit::CHAIN_BYTES as CHAIN;
use card_driver::engine::EngineLimits;
use nix::sys::resource::{Resource as Limited, getrlimit};

use crate::error::{Error, RINGS};

/// A counted resource.
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
    /// Receive queues, shared ones and those of queue pairs.
    Rqs,
    /// Queue pairs.
    Qps,
    /// Queue pairs with services of their own.
    Services,
    /// Handles of XRC domains.
    Xrcds,
    /// Address handles.
    Ahs,
    /// Places of queue pairs in multicast groups.
    Memberships,
    /// Memory windows.
    Mws,
    /// Memory regions.
    Mrs,
    /// Bytes of all memory regions together.
    MrBytes,
    /// Parts of cards' own memory.
    Dms,
    /// Bytes of all of those together.
    DmBytes,
    /// Event channels of the connection manager.
    CmChannels,
    /// Identifiers of the connection manager.
    CmIds,
    /// Events of the connection manager that the client brought about and has not read.
    CmEvents,
    /// Joins of multicast groups by the connection manager.
    CmJoins,
    /// Bytes of all rings together.
    RingBytes,
    /// Bytes that balboad keeps for all of the above, at most, beside the rings; the last one.
    KeptBytes,
}

/// A resource.
struct Row {
    resource: Resource,
    /// Its name in messages, plural.
    name: &'static str,
    limit: u64,
    /// Bytes that balboad keeps for one of them at most.
    bytes: u64,
}

const fn row(resource: Resource, name: &'static str, limit: u64, bytes: u64) -> Row {
    Row { resource, name, limit, bytes }
}

/// Every resource, each in its place.
static TABLE: [Row; Resource::KeptBytes as usize + 1] = [
    row(Resource::Contexts, "contexts", 256, 1 << 10),
    row(Resource::Pds, "protection domains", 4096, 128),
    row(Resource::Channels, "completion channels", 1024, 1 << 10),
    row(Resource::Cqs, "completion queues", 16384, CQ_BYTES),
    row(Resource::CqEntries, "completion queue entries", 12 << 20, 0),
    row(Resource::Rqs, "receive queues", 16384, RQ_BYTES),
    row(Resource::Qps, "queue pairs", 16384, QP_BYTES),
    row(Resource::Services, "queue pairs with services", 64, CHAIN_BYTES),
    row(Resource::Xrcds, "XRC domains", 1024, XRCD_BYTES),
    row(Resource::Ahs, "address handles", 32768, AH_BYTES),
    row(Resource::Memberships, "places in multicast groups", 1024, MEMBERSHIP_BYTES),
    row(Resource::Mws, "memory windows", 16384, MW_BYTES),
    row(Resource::Mrs, "memory regions", 65536, MR_BYTES),
    row(Resource::MrBytes, "registered bytes", 1 << 40, 0),
    row(Resource::Dms, "parts of device memory", 256, DM_BYTES),
    row(Resource::DmBytes, "bytes of device memory", 1 << 30, 0),
    row(Resource::CmChannels, "event channels", 1024, 1 << 10),
    row(Resource::CmIds, "connection identifiers", 16384, CM_ID_BYTES),
    row(Resource::CmEvents, "unread connection events", 65536, CM_EVENT_BYTES),
    row(Resource::CmJoins, "joined multicast groups", 1024, CM_JOIN_BYTES),
    row(Resource::RingBytes, RINGS, crate::rings::RING_BYTES, 0),
    row(Resource::KeptBytes, "bytes kept at most", 512 << 20, 0),
];

/// Bytes that balboad keeps for a queue pair at most, beside its receive queue: mostly acknowledgements that it owes to
/// a peer, and work under way beyond its client's share.
const QP_BYTES: u64 = 32 << 10;
const CHAIN_BYTES: u64 = CHAIN as u64;
const RQ_BYTES: u64 = 3 << 10;
const CQ_BYTES: u64 = 3 << 10;
const AH_BYTES: u64 = 2 << 10;
const MEMBERSHIP_BYTES: u64 = 1 << 10;
/// A domain is balboad's own: two places in tables.
const XRCD_BYTES: u64 = 512;
const MW_BYTES: u64 = 1 << 10;
const MR_BYTES: u64 = 1 << 10;
const DM_BYTES: u64 = 3 << 10;
/// Bytes of an identifier of the connection manager, all of which are balboad's own.
pub const CM_ID_BYTES: u64 = 10 << 10;
/// Bytes of an event of the connection manager.
pub const CM_EVENT_BYTES: u64 = 1 << 10;
/// Bytes of a join by the connection manager.
pub const CM_JOIN_BYTES: u64 = 1 << 10;

/// Whether an object's bytes cover those of a software card, and so many of balboad's own: its places in tables, trees
/// and claims, and its unread events.
#[must_use]
pub const fn covers(bytes: u64, card: usize, own: usize) -> bool {
    (card as u64).saturating_add(own as u64) <= bytes
}
const _: () = assert!(covers(QP_BYTES, softcard::QP_BYTES, 2000));
const _: () = assert!(covers(RQ_BYTES, softcard::RQ_BYTES, 1024));
const _: () = assert!(covers(CQ_BYTES, softcard::CQ_BYTES, 1024));
const _: () = assert!(covers(AH_BYTES, softcard::AH_BYTES, 256));
const _: () = assert!(covers(MEMBERSHIP_BYTES, softcard::MEMBERSHIP_BYTES, 128));
const _: () = assert!(covers(MW_BYTES, softcard::MW_BYTES, 256));
const _: () = assert!(covers(MR_BYTES, softcard::MR_BYTES, 512));
const _: () = assert!(covers(DM_BYTES, softcard::DM_BYTES, 256));

impl Resource {
    fn row(self) -> Option<&'static Row> {
        TABLE.get(self as usize)
    }

    /// The resource's name, plural.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().map_or("objects", |row| row.name)
    }

    /// Every resource, in the order of the table.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.resource)
    }

    /// A client's limit on an engine with these limits.
    #[must_use]
    pub fn limit(self, engine: &EngineLimits) -> u64 {
        let table = self.row().map_or(0, |row| row.limit);
        let offered = match self {
            Self::Cqs => engine.cqs,
            Self::Rqs => engine.rqs,
            Self::Qps => engine.qps.min(engine.rqs),
            Self::Ahs => engine.ahs.into(),
            Self::Memberships => u32::from(engine.groups),
            Self::Mws | Self::Mrs => engine.keys,
            Self::DmBytes => engine.dm_bytes,
            Self::Contexts | Self::Channels | Self::CmChannels => {
                return table.min(share_of_descriptors());
            }
            _ => return table,
        };
        table.min(u64::from(share(offered)))
    }
}

/// One client's share of an engine's resource: seven eighths, but at least one.
fn share(offered: u32) -> u32 {
    offered.saturating_sub(offered / 8).max(offered.min(1))
}

/// One client's share of the descriptors that balboad may have, of either kind.
fn share_of_descriptors() -> u64 {
    static SHARE: OnceLock<u64> = OnceLock::new();
    *SHARE.get_or_init(|| {
        let limit = getrlimit(Limited::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
        (limit / 32).max(1)
    })
}

/// Counts, each in the place of its resource in the table; that of kept bytes is the sum over all others.
type Counts = [u64; TABLE.len()];

/// A client's use of resources: of each card by itself, and of those that belong to no card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    counts: BTreeMap<Option<u32>, Counts>,
    most_kept: u64,
}

impl Usage {
    /// The client's share of a resource, of all cards together.
    #[must_use]
    pub fn of(&self, resource: Resource) -> u64 {
        let counts = self.counts.values().map(|counts| count(counts, resource));
        counts.fold(0, u64::saturating_add)
    }

    /// The client's share of a card's resource.
    #[must_use]
    pub fn on(&self, card: Option<u32>, resource: Resource) -> u64 {
        self.counts.get(&card).map_or(0, |counts| count(counts, resource))
    }

    /// Takes some of a resource: of a card's, or of one that belongs to no card.
    ///
    /// # Errors
    /// [`Error::Quota`], with nothing taken, where the client would have more than its limit.
    pub fn take(
        &mut self,
        card: Option<u32>,
        resource: Resource,
        amount: u64,
        engine: &EngineLimits,
    ) -> Result<(), Error> {
        let bytes = amount.saturating_mul(resource.row().map_or(0, |row| row.bytes));
        self.check(card, resource, amount, engine)?;
        self.check(card, Resource::KeptBytes, bytes, engine)?;
        self.set(card, resource, self.on(card, resource).saturating_add(amount));
        self.most_kept = self.most_kept.max(self.of(Resource::KeptBytes));
        Ok(())
    }

    /// Takes an object's share of several resources, or nothing.
    ///
    /// # Errors
    /// That of [`Self::take`], for the first that there is too little of.
    pub fn take_all(
        &mut self,
        card: Option<u32>,
        amounts: impl IntoIterator<Item = (Resource, u64)>,
        engine: &EngineLimits,
    ) -> Result<(), Error> {
        let before = self.counts.get(&card).copied().unwrap_or_default();
        for (resource, amount) in amounts {
            self.take(card, resource, amount, engine).inspect_err(|_| {
                self.counts.insert(card, before);
            })?;
        }
        Ok(())
    }

    /// The most that the client ever had of [`Resource::KeptBytes`].
    #[must_use]
    pub fn most_kept(&self) -> u64 {
        self.most_kept
    }

    /// Counts its objects of one card as another card's, of which it has none.
    pub fn rename(&mut self, card: u32, to: u32) {
        if let Some(counts) = self.counts.remove(&Some(card)) {
            self.counts.insert(Some(to), counts);
        }
    }

    /// Whether the client may have so much more of a resource.
    fn check(
        &self,
        card: Option<u32>,
        resource: Resource,
        asked: u64,
        engine: &EngineLimits,
    ) -> Result<(), Error> {
        let (used, limit) = (self.on(card, resource), resource.limit(engine));
        match used.checked_add(asked) {
            Some(sum) if sum <= limit => Ok(()),
            _ => Err(Error::Quota { card, resource: resource.name(), used, asked, limit }),
        }
    }

    /// Gives some of a resource back.
    pub fn give(&mut self, card: Option<u32>, resource: Resource, amount: u64) {
        self.set(card, resource, self.on(card, resource).saturating_sub(amount));
    }

    fn set(&mut self, card: Option<u32>, resource: Resource, value: u64) {
        let counts = self.counts.entry(card).or_default();
        let Some(row) = resource.row().filter(|row| row.resource != Resource::KeptBytes) else {
            return;
        };
        let Some(count) = counts.get_mut(resource as usize) else { return };
        let [before, now] =
            [std::mem::replace(count, value), value].map(|count| count.saturating_mul(row.bytes));
        if let Some(kept) = counts.last_mut() {
            *kept = kept.saturating_sub(before).saturating_add(now);
        }
    }
}

fn count(counts: &Counts, resource: Resource) -> u64 {
    counts.get(resource as usize).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CARD: Option<u32> = Some(0);

    fn engine() -> EngineLimits {
        let (qps, rqs, cqs, keys, ahs, dm_bytes) = (16, 16, 8, 1 << 20, 16, 1 << 20);
        let groups = 16;
        EngineLimits { qps, rqs, cqs, keys, ahs, groups, dm_bytes, ..EngineLimits::default() }
    }

    #[test]
    fn each_resource_has_its_place_in_the_table() {
        assert!((0..).zip(Resource::all()).all(|(at, resource)| resource as usize == at));
        assert_eq!(Resource::all().last(), Some(Resource::KeptBytes));
    }

    #[test]
    fn a_client_cannot_take_all_of_an_engine() {
        let mut usage = Usage::default();
        usage.take(CARD, Resource::Qps, 14, &engine()).unwrap();
        let refused = usage.take(CARD, Resource::Qps, 1, &engine()).unwrap_err();
        assert!(refused.to_string().contains("14 queue pairs"), "{refused}");
        assert_eq!(usage.of(Resource::Qps), 14);
        usage.give(CARD, Resource::Qps, 1);
        usage.take(CARD, Resource::Qps, 1, &engine()).unwrap();
    }

    #[test]
    fn resources_are_counted_apart_and_amounts_do_not_wrap() {
        let mut usage = Usage::default();
        for resource in Resource::all().filter(|&r| r != Resource::Contexts) {
            usage.take(CARD, resource, 1, &engine()).unwrap();
        }
        assert!(usage.take(CARD, Resource::MrBytes, u64::MAX, &engine()).is_err());
        assert_eq!(usage.of(Resource::Contexts), 0);
        assert_eq!(usage.of(Resource::MrBytes), 1);
    }

    #[test]
    fn objects_cost_bytes_of_which_there_is_an_end() {
        let engine = EngineLimits { qps: 1 << 20, rqs: 1 << 20, keys: 1 << 20, ..engine() };
        let limit = Resource::KeptBytes.limit(&engine);
        let mut usage = Usage::default();
        // All but two queue pairs, with their receive queues, of those that there is room for.
        let bytes = QP_BYTES + RQ_BYTES;
        let pairs = limit / bytes - 2;
        usage.take_all(CARD, [(Resource::Qps, pairs), (Resource::Rqs, pairs)], &engine).unwrap();
        let regions = (limit - pairs * bytes) / MR_BYTES;
        let refused =
            usage.take(CARD, Resource::Mrs, regions + 1, &engine).unwrap_err().to_string();
        assert!(refused.contains("bytes kept at most"), "{refused}");
        assert_eq!(usage.of(Resource::Mrs), 0);
        usage.take(CARD, Resource::Mrs, regions, &engine).unwrap();
        assert_eq!(usage.of(Resource::KeptBytes), limit);
        assert!(usage.take(CARD, Resource::Pds, 1, &engine).is_err());
        usage.give(CARD, Resource::Qps, 1);
        assert_eq!(usage.of(Resource::KeptBytes), limit - QP_BYTES);
        usage.take(CARD, Resource::Pds, 1, &engine).unwrap();
        assert_eq!(usage.most_kept(), limit);
    }

    #[test]
    fn every_card_has_a_quota_of_its_own() {
        let mut usage = Usage::default();
        for card in [Some(0), Some(15)] {
            usage.take(card, Resource::Qps, 14, &engine()).unwrap();
            let refused = usage.take(card, Resource::Qps, 1, &engine()).unwrap_err().to_string();
            assert!(refused.contains("has 14 queue pairs on balboa"), "{refused}");
        }
        assert_eq!(usage.of(Resource::Qps), 28);
        assert_eq!(usage.of(Resource::KeptBytes), 28 * QP_BYTES);
        usage.give(Some(15), Resource::Qps, 1);
        assert_eq!([0, 15, 7].map(|card| usage.on(Some(card), Resource::Qps)), [14, 13, 0]);
        // Objects of the process's own.
        usage.take(None, Resource::Pds, 4096, &engine()).unwrap();
        let refused = usage.take(None, Resource::Pds, 1, &engine()).unwrap_err().to_string();
        assert!(refused.contains("has 4096 protection domains and"), "{refused}");
    }

    #[test]
    fn an_engine_of_one_object_still_serves_one_client() {
        assert_eq!(share(1), 1);
        assert_eq!(share(0), 0);
        assert_eq!(share(1024), 896);
    }
}
