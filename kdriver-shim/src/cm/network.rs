//! The networks that the cards are in: whose an address is, and by which card one is reached.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use card_driver::address::node_guid;
use card_driver::gsi::{DATAGRAM_BYTES, GsiAddress, Party};
use cm::Address;
use softcard::port::udp::machine;

use crate::cards::{Card, find};

/// Bits of the prefix of a network of IPv6.
const PREFIX_OF_IPV6: u8 = 64;

/// An address of a card that has a queue pair 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local {
    /// The card.
    pub card: u32,
    /// Its index in the GID table.
    pub index: u8,
    /// The address, and its VLAN.
    pub address: Address,
    /// Bits of the prefix of the network that it is in.
    pub prefix: u8,
    /// Whether it is the machine's own: the kernel knows the addresses reached from there.
    pub on_machine: bool,
}

/// A card's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// The card's GUID.
    pub guid: u64,
    /// The code of the largest path MTU.
    pub mtu: u8,
    /// Millions of bits a second; 0 where there is nothing to state.
    pub rate: u32,
}

/// The cards, as far as the connection manager is concerned.
pub trait Network {
    /// All addresses of cards that have a queue pair 1, card by card.
    fn addresses(&self) -> Vec<Local>;
    /// The index of an address of a card.
    fn index(&self, card: u32, address: Address) -> Option<u8>;
    /// The address of a card's at an index.
    fn address(&self, card: u32, index: u8) -> Option<Address>;
    /// A card's GUID; `None` where it is gone.
    fn guid(&self, card: u32) -> Option<u64>;
    /// A card's port; `None` where it is gone.
    fn port(&mut self, card: u32) -> Option<Port>;
    /// The code of the largest path MTU from an address of a card's to a peer; `None` where the card is gone.
    fn path_mtu(&mut self, card: u32, from: IpAddr, to: IpAddr) -> Option<u8>;
    /// Whether a card has found a peer; if not, it looks for it for a party, which asks again later.
    fn find(&self, card: u32, party: Party, to: &GsiAddress) -> bool;
    /// Sends a party's datagram by a card's queue pair 1. It may be lost.
    fn send(&mut self, card: u32, party: Party, to: &GsiAddress, datagram: &[u8; DATAGRAM_BYTES]);
}

/// The cards of a server.
pub struct CardsOfServer<'a>(pub &'a mut [Card]);

impl CardsOfServer<'_> {
    fn get(&self, card: u32) -> Option<&Card> {
        self.0.iter().find(|it| it.device.number == card && it.gsi.is_some())
    }
}

impl Network for CardsOfServer<'_> {
    fn addresses(&self) -> Vec<Local> {
        self.0.iter().filter(|card| card.gsi.is_some()).flat_map(locals).collect()
    }

    fn index(&self, card: u32, address: Address) -> Option<u8> {
        let found = locals(self.get(card)?).find(|local| local.address == address);
        found.map(|local| local.index)
    }

    fn address(&self, card: u32, index: u8) -> Option<Address> {
        let found = locals(self.get(card)?).find(|local| local.index == index);
        found.map(|local| local.address)
    }

    fn guid(&self, card: u32) -> Option<u64> {
        self.get(card).map(|card| node_guid(card.device.address.mac()))
    }

    fn port(&mut self, card: u32) -> Option<Port> {
        let guid = self.guid(card)?;
        let card = find(self.0, card).ok()?;
        let rate = card.device.port().rate;
        Some(Port { guid, mtu: card.port().max_mtu, rate })
    }

    fn path_mtu(&mut self, card: u32, from: IpAddr, to: IpAddr) -> Option<u8> {
        let most = self.port(card)?.mtu;
        let by_route = self.get(card)?.mtu_between(from, to);
        Some(by_route.map_or(most, |mtu| mtu.min(most)))
    }

    fn find(&self, card: u32, party: Party, to: &GsiAddress) -> bool {
        let gsi = self.get(card).and_then(|card| card.gsi.as_ref());
        // Nobody is found by a queue pair that has ended.
        gsi.is_some_and(|gsi| gsi.find(party, to).unwrap_or(false))
    }

    fn send(&mut self, card: u32, party: Party, to: &GsiAddress, datagram: &[u8; DATAGRAM_BYTES]) {
        let Some(gsi) = self.get(card).and_then(|card| card.gsi.as_ref()) else { return };
        // Between software cards it is there when this returns, and is looked for behind the round.
        let with_gsi = self.0.iter().filter(|card| card.gsi.is_some());
        let _expected: Vec<_> = with_gsi.map(|card| card.device.expect_arrivals()).collect();
        if let Err(error) = gsi.send(party, to, datagram) {
            log::debug!("balboa{card}: a datagram of the connection manager is lost: {error}");
        }
    }
}

/// The addresses of a card. Only of its first one it is known how large its network is; others of IPv4 are in one
/// as large.
fn locals(card: &Card) -> impl Iterator<Item = Local> {
    let (number, prefix) = (card.device.number, card.device.address.prefix);
    let on_machine = card.on_machine.is_some();
    let entries = (0u8..).zip(card.device.gids.iter().zip(&card.device.vlans));
    entries.filter(|(_, (gid, _))| **gid != [0; 16]).map(move |(index, (gid, vlan))| {
        let address = Address { gid: (*gid).into(), vlan: *vlan };
        let prefix = if address.ip().is_ipv4() { prefix } else { PREFIX_OF_IPV6 };
        Local { card: number, index, address, prefix, on_machine }
    })
}

/// The address of a card that an IP address is; of several VLANs, none is preferred.
#[must_use]
pub fn owner(addresses: &[Local], ip: IpAddr) -> Option<Local> {
    let mut own = addresses.iter().filter(|local| local.address.ip() == ip.to_canonical());
    let first = own.clone().find(|local| local.address.vlan == 0);
    first.or_else(|| own.next()).copied()
}

/// The first address of any card that is of the same kind as another, in place of the loopback address.
#[must_use]
pub fn first(addresses: &[Local], like: IpAddr) -> Option<Local> {
    addresses.iter().find(|local| local.address.ip().is_ipv4() == like.is_ipv4()).copied()
}

/// The address by which a destination is reached, where the program does not say from which: an address of a
/// card's own from itself, by a loop through the card, and others from the first card in whose network they are; where
/// only cards on the machine's own network are left, from the one that has the address which the kernel sends from.
/// A link-local address tells no network, and a group is in all: the first card of all that can have it is taken,
/// but for a link-local address only if there is no other.
#[must_use]
pub fn route(addresses: &[Local], to: IpAddr) -> Option<Local> {
    let to = to.to_canonical();
    if let Some(own) = owner(addresses, to) {
        return Some(own);
    }
    let mut same_kind = addresses.iter().filter(|local| {
        let ip = local.address.ip();
        ip.is_ipv4() == to.is_ipv4() && is_link_local(ip) == is_link_local(to)
    });
    if to.is_multicast() {
        return same_kind.next().copied();
    }
    if is_link_local(to) {
        let first = same_kind.next().copied();
        return first.filter(|_| same_kind.next().is_none());
    }
    let others = same_kind.clone().find(|local| !local.on_machine && in_network(local, to));
    let by_route = || route_of_machine(addresses, to);
    let near = || same_kind.find(|local| in_network(local, to)).copied();
    others.copied().or_else(by_route).or_else(near)
}

/// The card on the machine's own network by which the kernel's routes lead to an address.
fn route_of_machine(addresses: &[Local], to: IpAddr) -> Option<Local> {
    let mut on_machine = addresses.iter().filter(|local| local.on_machine);
    on_machine.clone().next()?;
    let source = machine::source_to(to)?;
    on_machine.find(|local| local.address.ip() == source).copied()
}

/// Whether an address is in the network of a card's.
fn in_network(local: &Local, to: IpAddr) -> bool {
    match (local.address.ip(), to) {
        (IpAddr::V4(own), IpAddr::V4(to)) => {
            let mask = u32::MAX.checked_shl(32u32.saturating_sub(local.prefix.into())).unwrap_or(0);
            Ipv4Addr::to_bits(own) & mask == Ipv4Addr::to_bits(to) & mask
        }
        (IpAddr::V6(own), IpAddr::V6(to)) => {
            let shift = 128u32.saturating_sub(local.prefix.into());
            let mask = u128::MAX.checked_shl(shift).unwrap_or(0);
            Ipv6Addr::to_bits(own) & mask == Ipv6Addr::to_bits(to) & mask
        }
        _ => false,
    }
}

/// Whether an address is one of a link alone.
#[must_use]
pub fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(_) => false,
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// The code that verbs have for a rate: the largest that is not above it.
#[must_use]
pub fn rate_code(megabits: u32) -> u8 {
    const CODES: [(u32, u8); 9] = [
        (400_000, 21),
        (200_000, 17),
        (100_000, 16),
        (50_000, 20),
        (40_000, 7),
        (25_000, 15),
        (20_000, 6),
        (10_000, 3),
        (2_500, 2),
    ];
    CODES.iter().find(|(rate, _)| megabits >= *rate).map_or(0, |(_, code)| *code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(card: u32, text: &str, prefix: u8) -> Local {
        let address = Address::untagged(text.parse().unwrap());
        Local { card, index: 0, address, prefix, on_machine: false }
    }

    fn found(addresses: &[Local], to: &str) -> Option<u32> {
        route(addresses, to.parse().unwrap()).map(|local| local.card)
    }

    #[test]
    fn the_card_is_chosen_by_the_network_of_the_destination() {
        let addresses = [
            local(0, "fe80::1", 64),
            local(0, "10.77.0.1", 24),
            local(1, "fe80::2", 64),
            local(1, "10.77.1.1", 24),
            local(1, "2001:db8::1", 64),
        ];
        assert_eq!(found(&addresses, "10.77.0.9"), Some(0));
        assert_eq!(found(&addresses, "10.77.1.9"), Some(1));
        assert_eq!(found(&addresses, "10.78.0.1"), None);
        assert_eq!(found(&addresses, "2001:db8::9"), Some(1));
        assert_eq!(found(&addresses, "2001:db9::9"), None);
        assert_eq!(found(&addresses, "::ffff:10.77.1.9"), Some(1));
        // A card's own address is reached by itself; a group by the first.
        assert_eq!(found(&addresses, "10.77.1.1"), Some(1));
        assert_eq!(found(&addresses, "224.0.0.9"), Some(0));
        // A link-local address that is no card's is in the network of either.
        assert_eq!(found(&addresses, "fe80::2"), Some(1));
        assert_eq!(found(&addresses, "fe80::9"), None);
        assert_eq!(found(&addresses[..2], "fe80::9"), Some(0));
    }

    #[test]
    fn prefixes_of_any_length_are_taken() {
        let [all, one] = [0, 32].map(|prefix| [local(3, "10.0.0.1", prefix)]);
        assert_eq!(found(&all, "192.0.2.1"), Some(3));
        assert_eq!(found(&one, "10.0.0.2"), None);
        assert_eq!(found(&[local(3, "10.0.0.1", 200)], "10.0.0.2"), None);
    }

    #[test]
    fn a_rate_has_the_code_of_the_largest_below_it() {
        assert_eq!([0, 10_000, 39_999, 100_000, u32::MAX].map(rate_code), [0, 3, 15, 16, 21]);
    }
}
