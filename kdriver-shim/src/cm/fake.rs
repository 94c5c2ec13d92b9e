//! Two cards on a cable, for tests: their datagrams stay there until the test carries them on.

use std::collections::VecDeque;
use std::net::IpAddr;

use card_driver::gsi::{DATAGRAM_BYTES, GsiAddress, GsiArrival, Party};
use cm::Address;

use super::network::{Local, Network, Port};

/// Cards 0 and 1, on a cable that loses nothing until it is told to.
#[derive(Debug, Default)]
pub struct Wire {
    /// The addresses of both.
    pub addresses: Vec<Local>,
    /// The datagrams under way, and the card to which each goes.
    pub under_way: VecDeque<(u32, GsiArrival)>,
    /// Nothing that is said gets anywhere.
    pub cut: bool,
    /// Addresses without a host.
    pub silent: Vec<[u8; 16]>,
}

impl Wire {
    /// Cards with these addresses: the card, the index, and the address.
    ///
    /// # Panics
    /// Where a text is no address.
    #[must_use]
    pub fn new(addresses: &[(u32, u8, &str)]) -> Self {
        let local = |&(card, index, text): &(u32, u8, &str)| Local {
            card,
            index,
            address: Address::untagged(text.parse().expect("an address")),
            prefix: if text.contains(':') { 64 } else { 24 },
            on_machine: false,
        };
        Self { addresses: addresses.iter().map(local).collect(), ..Self::default() }
    }
}

impl Network for Wire {
    fn addresses(&self) -> Vec<Local> {
        self.addresses.clone()
    }

    fn index(&self, card: u32, address: Address) -> Option<u8> {
        let mut own = self.addresses.iter().filter(|local| local.card == card);
        own.find(|local| local.address == address).map(|local| local.index)
    }

    fn address(&self, card: u32, index: u8) -> Option<Address> {
        let mut own = self.addresses.iter().filter(|local| local.card == card);
        own.find(|local| local.index == index).map(|local| local.address)
    }

    fn guid(&self, card: u32) -> Option<u64> {
        (card < 2).then(|| 0x0200_00ff_fe00_0000 | u64::from(card))
    }

    fn port(&mut self, card: u32) -> Option<Port> {
        Some(Port { guid: self.guid(card)?, mtu: 5, rate: 100_000 })
    }

    fn path_mtu(&mut self, card: u32, _: IpAddr, _: IpAddr) -> Option<u8> {
        self.port(card).map(|port| port.mtu)
    }

    fn find(&self, card: u32, _: Party, to: &GsiAddress) -> bool {
        self.address(card, to.sgid_index).expect("it looks for it from an address it has");
        !self.silent.contains(&to.dgid)
    }

    fn send(&mut self, card: u32, _: Party, to: &GsiAddress, datagram: &[u8; DATAGRAM_BYTES]) {
        let source = self.address(card, to.sgid_index).expect("it sends from an address it has");
        let found = self.addresses.iter().find(|local| local.address.gid.octets() == to.dgid);
        let Some(local) = found.filter(|_| !self.cut) else { return };
        let arrival = GsiArrival {
            source: source.gid.octets(),
            destination_gid_index: local.index,
            hop_limit: to.hop_limit,
            traffic_class: to.traffic_class,
            flow_label: to.flow_label,
            source_qpn: 1,
            datagram: *datagram,
        };
        self.under_way.push_back((local.card, arrival));
    }
}
