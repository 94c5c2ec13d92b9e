//! Bound ports: the owners of ports, the listeners, and the listener of a request.
//!
//! A binding has a port of a port space, for one address or for all (a wildcard). Two bindings have
//! one port only for different addresses, or where both allow it and neither listens. The rules are
//! those of Linux' RDMA CM, so that programs find the ports as they would there.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::collections::BTreeMap;

use crate::param::{self, Limits};
use crate::random::Random;
use crate::service::PortSpace;
use crate::types::{Address, BindingId, Error, Owner, Transport};

/// The port to be bound, and its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The port space.
    pub space: PortSpace,
    /// The address; unspecified, it is a wildcard for all addresses of its kind, in all VLANs.
    pub address: IpAddr,
    /// The VLAN that the address is in; 0 for none, and of a wildcard.
    pub vlan: u16,
    /// The port; 0 asks for any.
    pub port: u16,
    /// Others that ask for this as well may have the same address and port.
    pub reuse: bool,
    /// Whether a wildcard of IPv6 leaves IPv4 alone; one of IPv4 always leaves IPv6 alone.
    pub only_ipv6: bool,
}

/// The requests that a listener takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Offer {
    /// Connections.
    Connections(Transport),
    /// Resolutions: where datagrams for it go.
    Datagrams,
}

/// A bound port.
#[derive(Debug)]
pub(crate) struct Binding {
    pub owner: Owner,
    pub bind: Bind,
    pub listener: Option<Listener>,
}

/// The part of a binding that listens.
#[derive(Debug)]
pub(crate) struct Listener {
    pub offer: Offer,
    /// Requests about which it may have to decide at a time.
    pub backlog: usize,
    /// Requests about which it has to decide.
    pub undecided: usize,
}

/// All bound ports.
#[derive(Debug, Default)]
pub(crate) struct Bindings {
    bindings: BTreeMap<BindingId, Binding>,
    ports: BTreeMap<(PortSpace, u16), Vec<BindingId>>,
    /// At most one of an address: the cost of a request does not grow with the bindings.
    listeners: BTreeMap<(PortSpace, u16, IpAddr, u16), BindingId>,
    owners: BTreeMap<Owner, usize>,
    last: u64,
}

const ANY_IPV4: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
const ANY_IPV6: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

impl Bind {
    /// Whether only addresses of its own kind are meant.
    fn only_its_kind(&self) -> bool {
        self.address.is_ipv4() || self.only_ipv6
    }

    /// Why two bindings cannot have the same port.
    fn conflict(&self, other: &Self) -> Result<(), Error> {
        let kinds_differ = self.address.is_ipv4() != other.address.is_ipv4();
        if kinds_differ && self.only_its_kind() && other.only_its_kind() {
            Ok(())
        } else if self.address.is_unspecified() || other.address.is_unspecified() {
            Err(Error::AddressNotAvailable)
        } else if (self.address, self.vlan) == (other.address, other.vlan) {
            Err(Error::AddressInUse)
        } else {
            Ok(())
        }
    }
}

impl Bindings {
    /// Binds a port; answers with it.
    pub(crate) fn bind(
        &mut self,
        owner: Owner,
        mut bind: Bind,
        limits: &Limits,
        random: &mut Random,
    ) -> Result<(BindingId, u16), Error> {
        if bind.space == PortSpace::Ipoib {
            return Err(Error::PortSpace(bind.space));
        }
        let have = self.owners.get(&owner).copied().unwrap_or(0);
        // CM-49
        if have >= limits.bindings_per_owner {
            return Err(Error::Quota { what: "bound ports", most: limits.bindings_per_owner });
        }
        bind.address = bind.address.to_canonical();
        if bind.address.is_unspecified() {
            bind.vlan = 0;
        }
        if bind.port == 0 {
            bind.port = self.free_port(&bind, limits, random)?;
        } else {
            self.may_have(&bind, None)?;
        }
        self.last = self.last.saturating_add(1);
        let id = BindingId(self.last);
        self.ports.entry((bind.space, bind.port)).or_default().push(id);
        self.bindings.insert(id, Binding { owner, bind, listener: None });
        self.owners.insert(owner, have.saturating_add(1));
        Ok((id, bind.port))
    }

    /// A port that no binding of an overlapping address has, from the range for bindings that ask for any.
    fn free_port(&self, bind: &Bind, limits: &Limits, random: &mut Random) -> Result<u16, Error> {
        // CM-17
        let (first, last) = limits.ephemeral_ports.clone().into_inner();
        let count = u64::from(last.saturating_sub(first)).saturating_add(1);
        let begin = random.below(count);
        let ports = (0..count).filter_map(|step| {
            let at = begin.wrapping_add(step).checked_rem(count)?;
            first.checked_add(u16::try_from(at).ok()?)
        });
        // A program that asks for any wants one of its own: nothing is shared.
        let mut free = ports.filter(|port| {
            let bind = Bind { port: *port, reuse: false, ..*bind };
            *port != 0 && self.may_have(&bind, None).is_ok()
        });
        free.next().ok_or(Error::AddressNotAvailable)
    }

    /// Whether a binding, which may be there already, may have its port.
    fn may_have(&self, bind: &Bind, own: Option<BindingId>) -> Result<(), Error> {
        // CM-16
        let others = self.ports.get(&(bind.space, bind.port)).map_or(&[][..], Vec::as_slice);
        if own.is_none() && others.len() >= param::BINDINGS_OF_PORT {
            return Err(Error::AddressInUse);
        }
        for other in others.iter().filter(|id| Some(**id) != own) {
            let Some(other) = self.bindings.get(other) else { continue };
            let shared = bind.reuse && other.bind.reuse && other.listener.is_none();
            if !shared {
                bind.conflict(&other.bind)?;
            }
        }
        Ok(())
    }

    /// Makes a binding listen, or changes how many requests wait for it.
    pub(crate) fn listen(
        &mut self,
        id: BindingId,
        offer: Offer,
        backlog: usize,
    ) -> Result<(), Error> {
        let binding = self.bindings.get(&id).ok_or(Error::NoBinding(id))?;
        let bind = Bind { reuse: false, ..binding.bind };
        self.may_have(&bind, Some(id))?;
        self.listeners.insert((bind.space, bind.port, bind.address, bind.vlan), id);
        let Some(binding) = self.bindings.get_mut(&id) else { return Err(Error::NoBinding(id)) };
        let undecided = binding.listener.as_ref().map_or(0, |listener| listener.undecided);
        binding.listener = Some(Listener { offer, backlog, undecided });
        Ok(())
    }

    /// Changes the bindings with which a binding shares its port from now on; those that have it keep it.
    // CM-16
    pub(crate) fn share(
        &mut self,
        id: BindingId,
        reuse: bool,
        only_ipv6: bool,
    ) -> Result<(), Error> {
        let bind = &mut self.bindings.get_mut(&id).ok_or(Error::NoBinding(id))?.bind;
        (bind.reuse, bind.only_ipv6) = (reuse, only_ipv6);
        Ok(())
    }

    /// Gives a port back.
    pub(crate) fn unbind(&mut self, id: BindingId) -> Result<(), Error> {
        let binding = self.bindings.remove(&id).ok_or(Error::NoBinding(id))?;
        let Bind { space, port, address, vlan, .. } = binding.bind;
        if binding.listener.is_some() {
            self.listeners.remove(&(space, port, address, vlan));
        }
        if let Some(others) = self.ports.get_mut(&(space, port)) {
            others.retain(|other| *other != id);
            if others.is_empty() {
                self.ports.remove(&(space, port));
            }
        }
        if let Some(have) = self.owners.get_mut(&binding.owner) {
            *have = have.saturating_sub(1);
            if *have == 0 {
                self.owners.remove(&binding.owner);
            }
        }
        Ok(())
    }

    /// The listener that a request to an address and port is for.
    pub(crate) fn find(&self, space: PortSpace, port: u16, address: Address) -> Option<BindingId> {
        // CM-14
        let (ip, vlan) = (address.ip(), address.vlan);
        let at = |ip, vlan| self.listeners.get(&(space, port, ip, vlan)).copied();
        let any_ipv4 = if ip.is_ipv4() { at(ANY_IPV4, 0) } else { None };
        at(ip, vlan).or(any_ipv4).or_else(|| {
            let wildcard = at(ANY_IPV6, 0)?;
            let takes = ip.is_ipv6() || !self.bindings.get(&wildcard)?.bind.only_ipv6;
            takes.then_some(wildcard)
        })
    }

    /// The listening part of a binding, and its owner.
    pub(crate) fn listener(&mut self, id: BindingId) -> Option<(Owner, &mut Listener)> {
        let binding = self.bindings.get_mut(&id)?;
        Some((binding.owner, binding.listener.as_mut()?))
    }

    /// A listener has one request less to decide; it may be gone.
    pub(crate) fn decided(&mut self, id: BindingId) {
        if let Some((_, listener)) = self.listener(id) {
            listener.undecided = listener.undecided.saturating_sub(1);
        }
    }

    /// The number of bindings.
    pub(crate) fn len(&self) -> usize {
        self.bindings.len()
    }
}

#[cfg(test)]
mod tests;
