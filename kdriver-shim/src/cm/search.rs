//! Searches for peers: an identifier waits until its card has found the owner of its destination's address, or until
//! its program's time has passed, and gets an event of either.

use std::net::IpAddr;
use std::ops::Bound::{Excluded, Unbounded};
use std::time::Duration;

use card_driver::gsi::{GsiAddress, Party};
use cm::{Instant, param};

use super::abi::{self, event};
use super::channel::Param;
use super::identifier::{Device, Identifier, IdentifierState, Search, in_kind};
use super::network::Network;
use super::told::TIMED_OUT;
use super::{ConnectionManager, Resource, owner, party};
use crate::process::ClientId;

/// When the card is asked for the second time; from then on each time takes twice as long, up to the longest.
const FIRST_INTERVAL: Duration = Duration::from_millis(1);
const LONGEST_INTERVAL: Duration = Duration::from_millis(256);
/// The time that a program waits which gives none, or less: a peer that is there has answered by then.
const LEAST_PATIENCE: Duration = Duration::from_millis(100);
/// Searches that are looked at before others have their turn.
const LOOKED_AT: usize = 256;

impl ConnectionManager {
    /// Looks for an identifier's destination, by a card. The event that tells of the end is counted.
    pub(super) fn search(
        &mut self,
        network: &dyn Network,
        id: u32,
        device: Device,
        timeout_ms: u32,
    ) {
        let now = self.now();
        let patience = Duration::from_millis(timeout_ms.into()).max(LEAST_PATIENCE);
        let until = after(now, patience);
        self.look(network, now, id, Search { device, at: now, interval: FIRST_INTERVAL, until });
    }

    /// When the next search is to be looked at.
    pub(super) fn next_search(&self) -> Option<Instant> {
        self.searches.values().filter_map(|its| its.first()).map(|(at, _)| *at).min()
    }

    /// Goes on with searches whose time it is, some of them: one of each client's in its turn.
    pub(super) fn go_on_searching(&mut self, network: &dyn Network, now: Instant) {
        for _ in 0..LOOKED_AT {
            let Some((client, at, id)) = self.due_search(now) else { return };
            self.forget_search(client, at, id);
            self.last_looker = client;
            let search = self.ids.get_mut(&id).and_then(|it| it.search.take());
            if let Some(search) = search {
                self.look(network, now, id, search);
            }
        }
    }

    /// A search whose time it is, of the client whose turn it is.
    pub(super) fn due_search(&self, now: Instant) -> Option<(ClientId, Instant, u32)> {
        let after = self.searches.range((Excluded(self.last_looker), Unbounded));
        let mut turns = after.chain(self.searches.range(..=self.last_looker));
        turns.find_map(|(client, its)| {
            its.first().filter(|(at, _)| *at <= now).map(|(at, id)| (*client, *at, *id))
        })
    }

    fn forget_search(&mut self, client: ClientId, at: Instant, id: u32) {
        if let Some(its) = self.searches.get_mut(&client) {
            its.remove(&(at, id));
            if its.is_empty() {
                self.searches.remove(&client);
            }
        }
    }

    fn look(&mut self, network: &dyn Network, now: Instant, id: u32, search: Search) {
        let Some(it) = self.ids.get_mut(&id) else { return };
        let Some(client) = self.channels.get(&it.channel).map(|channel| channel.client) else {
            return;
        };
        let (Some(source), Some(destination)) = (it.source, it.destination) else { return };
        let Search { device, interval, until, .. } = search;
        if is_found(network, party(Some(owner(client))), device, destination.ip()) {
            it.source = Some(in_kind(device.address.gid, source));
            (it.device, it.state) = (Some(device), IdentifierState::AddrResolved);
            return self.tell_of(id, event::ADDR_RESOLVED, 0, Param::None);
        }
        if now >= until {
            it.state = IdentifierState::Bound;
            return self.tell_of(id, event::ADDR_ERROR, TIMED_OUT, Param::None);
        }
        let at = after(now, interval).min(until);
        let interval = interval.saturating_mul(2).min(LONGEST_INTERVAL);
        it.search = Some(Search { at, interval, ..search });
        it.state = IdentifierState::AddrQuery;
        self.searches.entry(client).or_default().insert((at, id));
    }

    /// Ends an identifier's search, if there is one, without a word.
    pub(super) fn end_search(&mut self, id: u32, it: &mut Identifier) {
        if let Some(search) = it.search.take() {
            if let Some(client) = self.channels.get(&it.channel).map(|channel| channel.client) {
                self.forget_search(client, search.at, id);
            }
            self.give(it.channel, Resource::CmEvents);
        }
    }
}

/// Whether it is known where a destination is. A card's own address and groups need not be looked for.
fn is_found(network: &dyn Network, party: Party, device: Device, ip: IpAddr) -> bool {
    let gid = abi::gid(ip);
    if ip.to_canonical().is_multicast() || gid == device.address.gid.octets() {
        return true;
    }
    let Some(sgid_index) = network.index(device.card, device.address) else { return false };
    let (hop_limit, traffic_class, flow_label, sl) = (param::HOP_LIMIT, 0, 0, 0);
    let to = GsiAddress { sgid_index, dgid: gid, hop_limit, traffic_class, flow_label, sl };
    network.find(device.card, party, &to)
}

pub(super) fn after(now: Instant, time: Duration) -> Instant {
    Instant(now.0.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
}
