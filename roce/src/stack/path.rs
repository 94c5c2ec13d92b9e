//! The paths of queue pairs, and the neighbours that are asked for where they lead.

use std::collections::HashMap;

use super::Stack;
use super::slots::Slot;
use crate::control;
use crate::counters::bump;
use crate::param;
use crate::path::{ConnectionKey, Neighbour, Path, Resolution};
use crate::table;
use crate::types::{Address, Instant, MacAddr};

impl Stack {
    /// Gives up the path of a queue pair.
    pub(super) fn leave_path(&mut self, slot: u32) {
        let Some(qp) = self.slots.core_mut(slot) else { return };
        let Some(path) = qp.path.take() else { return };
        if let Some(peer) = path.neighbour() {
            self.neighbours.release(peer.address, slot, qp.client);
        }
        give_up(&mut self.connections, path.connection());
    }

    /// Gives a queue pair its path, and asks for the peer's Ethernet address if need be.
    pub(super) fn set_path(&mut self, now: Instant, slot: u32, path: Path, resolution: Resolution) {
        let Some(qp) = self.slots.core_mut(slot) else { return };
        let (place, client) = (&mut qp.path, qp.client);
        let claims = self.connections.entry(path.connection()).or_default();
        *claims = claims.saturating_add(1);
        let old = place.replace(path);
        let before = old.as_ref().and_then(Path::neighbour).map(|peer| peer.address);
        let peer = match resolution {
            Resolution::Ask(peer) => Some(peer),
            Resolution::Known(_) => None,
        };
        let goes_on = peer.is_some_and(|peer| before == Some(peer.address));
        if let Some(address) = before.filter(|_| !goes_on) {
            self.neighbours.release(address, slot, client);
        }
        if let Some(peer) = peer {
            let known = if goes_on {
                self.neighbours.keep(peer, client)
            } else {
                self.neighbours.acquire(peer, slot, client, now)
            };
            if let (Some(mac), Some(path)) = (known, place.as_mut()) {
                path.resolve(mac);
            }
            self.ask_due(now);
        }
        if let Some(old) = old {
            give_up(&mut self.connections, old.connection());
        }
        self.take_priority(slot);
    }

    /// Gives a queue pair the priority of its path, or of the datagram message whose turn it is. If it stands in line,
    /// it stands in that one's.
    // RC-108
    pub(super) fn take_priority(&mut self, slot: u32) {
        let trust = &self.shared.trust;
        let priority = match self.slots.get(slot) {
            Some(Slot::Ud(qp)) => {
                let handle = qp.head().and_then(|(head, _)| self.handles.get(&head.ah));
                match handle.and_then(|slot| self.slots.get(*slot)) {
                    Some(Slot::Handle(handle)) => Some(handle.path.priority(trust)),
                    _ => None,
                }
            }
            Some(slot) => {
                slot.core().and_then(|qp| qp.path.as_ref()).map(|path| path.priority(trust))
            }
            None => None,
        };
        let (Some(priority), Some(qp)) = (priority, self.slots.core_mut(slot)) else { return };
        if qp.priority != priority {
            qp.priority = priority;
            if self.shared.ready.stands(slot) {
                qp.make_ready(&mut self.shared);
            }
        }
    }

    /// Asks for the neighbours whose turn it is, as far as there is room.
    pub(super) fn ask_due(&mut self, now: Instant) {
        while self.control.len() < param::CONTROL_QUEUE {
            let Some(neighbour) = self.neighbours.poll(now) else { break };
            self.ask(neighbour);
        }
    }

    /// Asks for a neighbour.
    pub(super) fn ask(&mut self, neighbour: Neighbour) {
        let Neighbour { address: Address { gid, vlan }, asked_from } = neighbour;
        let frame = match (asked_from.as_ipv4(), gid.as_ipv4()) {
            (Some(own), Some(peer)) => {
                bump(&mut self.shared.counters.sent_arp_requests);
                control::arp_request(&self.addresses, vlan, own, peer)
            }
            _ => {
                let (own, peer) = (asked_from.as_ipv6(), gid.as_ipv6());
                control::neighbour_solicitation(&self.addresses, vlan, own, peer)
            }
        };
        self.send_control(frame);
    }

    /// Takes note of a neighbour's Ethernet address, if it was asked for.
    pub(super) fn learn(&mut self, address: Address, mac: MacAddr) {
        let mut waited = Vec::new();
        for &slot in self.neighbours.learn(address, mac) {
            let Some(occupant) = self.slots.get_mut(slot) else { continue };
            if let Slot::Handle(handle) = occupant {
                handle.path.resolve(mac);
                waited.extend(core::mem::take(&mut handle.waiting));
                continue;
            }
            let Some(qp) = occupant.core_mut() else { continue };
            let Some(path) = qp.path.as_mut() else { continue };
            path.resolve(mac);
            // Messages without answers wait no longer; the timer of others is for their answers, too.
            if !qp.service.kind().is_reliable() {
                qp.set_timer(&mut self.shared, None);
            }
            qp.make_ready(&mut self.shared);
        }
        for slot in waited {
            self.resume(slot);
        }
    }
}

/// Counts one queue pair less on a connection.
fn give_up(connections: &mut HashMap<ConnectionKey, u32>, connection: ConnectionKey) {
    let Some(claims) = connections.get_mut(&connection) else { return };
    *claims = claims.saturating_sub(1);
    if *claims == 0 {
        table::take(connections, &connection);
    }
}
