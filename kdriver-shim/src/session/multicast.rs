//! Multicast groups, which queue pairs of datagrams are in.

use card_driver::Error as DriverError;
use fpga_regs::engine::admin::Membership;
use fpga_regs::engine::qp::QpType;
use fpga_regs::engine::window::Capabilities;
use shim_abi::Response;

use super::{Answer, Session, found};
use crate::error::Error;
use crate::quota::Resource;

impl Session<'_> {
    /// Takes a queue pair into a group; once more does nothing.
    pub(super) fn attach_multicast(&mut self, qpn: u32, group: [u8; 16]) -> Result<Answer, Error> {
        let qp = found(self.client.owned.qps.get(&qpn), qpn)?;
        let (card, kind, is_member) = (qp.card, QpType(qp.kind), qp.groups.contains(&group));
        let limits = self.limits(card)?;
        if !limits.capabilities.contains(Capabilities::MULTICAST) {
            return Err(Error::Unsupported(format!("balboa{card} has no multicast groups")));
        }
        if kind != QpType::Ud {
            let why = format!("queue pair {qpn:#x} is none of datagrams, as multicast is");
            return Err(Error::Invalid(why));
        }
        if is_member {
            return Ok(Response::Done.into());
        }
        let client = &mut *self.client;
        client.usage.take(Some(card), Resource::Memberships, 1, &limits)?;
        let membership = Membership { qpn, group };
        let attached =
            self.window(card).and_then(|it| Ok(it.engine.attach_multicast(&membership)?));
        let client = &mut *self.client;
        if attached.is_err() {
            client.usage.give(Some(card), Resource::Memberships, 1);
        }
        attached?;
        if let Some(qp) = client.owned.qps.get_mut(&qpn) {
            qp.groups.insert(group);
        }
        Ok(Response::Done.into())
    }

    /// Takes a queue pair out of a group that it is in.
    pub(super) fn detach_multicast(&mut self, qpn: u32, group: [u8; 16]) -> Result<Answer, Error> {
        let qp = found(self.client.owned.qps.get(&qpn), qpn)?;
        let card = qp.card;
        if !qp.groups.contains(&group) {
            let group = std::net::Ipv6Addr::from(group);
            return Err(Error::Invalid(format!("queue pair {qpn:#x} is not in group {group}")));
        }
        match self.window(card)?.engine.detach_multicast(&Membership { qpn, group }) {
            // It is in no group of an engine that is dead.
            Ok(()) | Err(DriverError::Dead { .. }) => {}
            Err(refused) => return Err(refused.into()),
        }
        let client = &mut *self.client;
        if let Some(qp) = client.owned.qps.get_mut(&qpn) {
            qp.groups.remove(&group);
            client.usage.give(Some(card), Resource::Memberships, 1);
        }
        Ok(Response::Done.into())
    }
}
