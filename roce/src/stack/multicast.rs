//! Multicast's part of a port: datagrams for all queue pairs in a group, and reports of groups.

use super::Stack;
use super::slots::Slot;
use crate::control;
use crate::counters::bump;
use crate::drops::Reason;
use crate::error::Error;
use crate::groups::Report;
use crate::param;
use crate::types::{Address, Gid, GidTable, Instant, Qpn};
use crate::wire::{igmp, ipv6, mld};

impl Stack {
    /// Bytes that a queue pair's place in a multicast group takes at most.
    pub const MEMBERSHIP_BYTES: usize = crate::groups::Groups::BYTES_OF_EACH + 2 * size_of::<Gid>();

    /// How many multicast groups have members here.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Whether a multicast group has members here.
    #[must_use]
    pub fn has_members(&self, group: Gid) -> bool {
        self.groups.has(group)
    }

    /// The multicast groups that a queue pair is in.
    pub fn groups_of(&self, qpn: Qpn) -> impl Iterator<Item = Gid> + '_ {
        let slot = self.slot(qpn).and_then(|slot| self.slots.get(slot));
        let groups = match slot {
            Some(Slot::Ud(qp)) => Some(&qp.groups),
            _ => None,
        };
        groups.into_iter().flatten().copied()
    }

    /// Takes a queue pair of Unreliable Datagram into a multicast group; once more does nothing. It stays
    /// there until it is taken out, or destroyed.
    pub fn attach(&mut self, now: Instant, qpn: Qpn, group: Gid) -> Result<(), Error> {
        let slot = self.slot(qpn).ok_or(Error::UnknownQp(qpn))?;
        if !group.is_group() {
            return Err(Error::NoGroup(group));
        }
        let qp = self.slots.ud(slot).ok_or(Error::NoDatagramQp(qpn))?;
        self.groups.join(now, group, qpn)?;
        qp.groups.insert(group);
        Ok(())
    }

    /// Takes a queue pair out of a multicast group.
    pub fn detach(&mut self, now: Instant, qpn: Qpn, group: Gid) -> Result<(), Error> {
        let slot = self.slot(qpn).ok_or(Error::UnknownQp(qpn))?;
        let qp = self.slots.ud(slot).ok_or(Error::NoDatagramQp(qpn))?;
        if !qp.groups.remove(&group) {
            return Err(Error::NoMember { qpn, group });
        }
        self.groups.leave(now, group, qpn);
        Ok(())
    }

    /// Takes a queue pair that ends out of all groups.
    pub(super) fn leave_groups(&mut self, slot: u32) {
        let Some(qp) = self.slots.ud(slot) else { return };
        for group in core::mem::take(&mut qp.groups) {
            // At once.
            self.groups.leave(Instant::default(), group, qp.core.qpn);
        }
    }

    /// Whether a frame that leaves this port is for queue pairs of its own, too: the caller gives it a copy
    /// back, for no cable does.
    // UD-20
    #[inline]
    #[must_use]
    pub fn hears_itself(&self, frame: &[u8]) -> bool {
        let is_group = frame.first().is_some_and(|first| first & 1 == 1);
        is_group && !self.groups.is_empty() && !self.destinations(frame).is_empty()
    }

    pub(super) fn receive_igmp(
        &mut self,
        now: Instant,
        vlan: u16,
        packet: &[u8],
    ) -> Result<(), Reason> {
        let query = igmp::parse_query(packet).ok().filter(|_| self.addresses.is_in(vlan));
        let query = query.ok_or(Reason::NotForUs)?;
        let group = query.group.map(Gid::from_ipv4);
        self.groups.asked(now, true, group, query.within, self.addresses.mac);
        Ok(())
    }

    pub(super) fn receive_mld(
        &mut self,
        now: Instant,
        vlan: u16,
        ip: &ipv6::Repr,
        packet: &[u8],
    ) -> Result<(), Reason> {
        let query = mld::parse_query(ip, packet).ok().filter(|_| self.addresses.is_in(vlan));
        let query = query.ok_or(Reason::NotForUs)?;
        let group = query.group.map(Gid::from_ipv6);
        self.groups.asked(now, false, group, query.within, self.addresses.mac);
        Ok(())
    }

    /// The port has other addresses: where one of them is new, perhaps in a network that knows of nothing
    /// yet, or where it was told without a source, that is told of all groups.
    pub(super) fn tell_of_groups(&mut self, before: &GidTable) {
        let is_new = |own: &Address| before.iter().flatten().all(|it| it != own);
        if self.addresses.own().any(is_new) {
            self.tell_groups_anew();
        }
    }

    /// Reports all groups anew, after the port has come back to its cable, whose switch may not know of them.
    pub fn tell_groups_anew(&mut self) {
        // At once.
        self.groups.tell_all(Instant::default());
    }

    /// Sends the reports of groups that are due, as far as there is room.
    pub(super) fn report_due(&mut self, now: Instant) {
        while self.control.len() < param::CONTROL_QUEUE {
            let Some(report) = self.groups.poll(now) else { break };
            self.report(&report);
        }
    }

    /// Sends a report in each network that the port is in.
    fn report(&mut self, report: &Report) {
        let mut networks: Vec<u16> = Vec::new();
        for own in self.addresses.own() {
            if !networks.contains(&own.vlan) {
                networks.push(own.vlan);
            }
        }
        for vlan in networks {
            let Some(frame) = control::group_report(&self.addresses, vlan, report) else {
                continue;
            };
            bump(&mut self.shared.counters.sent_group_reports);
            self.send_control(frame);
        }
    }
}
