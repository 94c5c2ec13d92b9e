//! A queue pair's path: the peer's addresses, and the header bytes that every frame to it begins with.

use core::net::{Ipv4Addr, Ipv6Addr};

use crate::attributes::AddressVector;
use crate::error::Error;
use crate::header::HeaderBuffer;
use crate::param;
use crate::priority::Trust;
use crate::types::{Address, Gid, GidTable, MacAddr, Qpn};
use crate::wire::{
    Field, bth, checksum_add, checksum_finish, ethernet, icrc, ipv4, ipv6, ndp, udp,
};

/// The addresses of the port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PortAddresses {
    pub mac: MacAddr,
    gids: GidTable,
    /// The number of places up to the last taken one, all of which each packet looks at.
    taken: usize,
}

impl PortAddresses {
    /// A port with two addresses: the link-local one of its MAC, and one of IPv4.
    pub(crate) fn new(mac: MacAddr, ipv4: Ipv4Addr) -> Self {
        let mut gids = GidTable::default();
        let first = [Gid::from_ipv6(mac.link_local()), Gid::from_ipv4(ipv4)];
        for (entry, gid) in gids.iter_mut().zip(first) {
            *entry = Some(gid.into());
        }
        let mut addresses = Self { mac, gids, taken: 0 };
        addresses.set_gids(gids);
        addresses
    }

    /// Sets the port's addresses, and gives the earlier ones.
    pub(crate) fn set_gids(&mut self, gids: GidTable) -> GidTable {
        let last = gids.iter().rposition(Option::is_some);
        self.taken = last.map_or(0, |last| last.saturating_add(1));
        core::mem::replace(&mut self.gids, gids)
    }

    /// All addresses.
    #[inline]
    pub(crate) fn own(&self) -> impl Iterator<Item = &Address> + Clone {
        self.gids.get(..self.taken).unwrap_or_default().iter().flatten()
    }

    /// The address at `index` of the port's table.
    pub(crate) fn address(&self, index: u8) -> Option<Address> {
        self.gids.get(usize::from(index)).copied().flatten()
    }

    /// Whether an address is the port's in that VLAN.
    #[inline]
    pub(crate) fn has(&self, vlan: u16, gid: Gid) -> bool {
        self.own().any(|own| *own == Address { gid, vlan })
    }

    /// Whether an IPv4 address is the port's in that VLAN.
    #[inline]
    pub(crate) fn has_ipv4(&self, vlan: u16, address: Ipv4Addr) -> bool {
        self.has(vlan, Gid::from_ipv4(address))
    }

    /// Whether an IPv6 address is the port's in that VLAN. One of IPv4 in its mapped form is not: such
    /// a packet would pass for one of IPv4 that no check of IPv4's has seen.
    #[inline]
    pub(crate) fn has_ipv6(&self, vlan: u16, address: Ipv6Addr) -> bool {
        let gid = Gid::from_ipv6(address);
        // RC-14
        gid.as_ipv4().is_none() && self.has(vlan, gid)
    }

    /// Whether packets to a multicast address ask for one of the port's in that VLAN.
    pub(crate) fn is_solicited_at(&self, vlan: u16, group: Ipv6Addr) -> bool {
        let own = self.own().filter(|own| own.vlan == vlan);
        own.filter(|own| own.gid.as_ipv4().is_none())
            .any(|own| ndp::solicited_node(own.gid.as_ipv6()) == group)
    }

    /// Whether an address can be the source of a packet that others send to `destination`. None can that is the port's
    /// own, in any VLAN, for a switch may change tags; that is of no one host: unspecified, multicast or
    /// broadcast; that is a loopback address where the port has none; or that is of the other IP.
    #[inline]
    pub(crate) fn may_come_from(&self, source: Gid, destination: Gid) -> bool {
        let own = || self.own().map(|own| own.gid);
        let is_of_one = match source.as_ipv4() {
            Some(address) => {
                let [network, ..] = address.octets();
                network != 0 && !address.is_multicast() && !address.is_broadcast()
            }
            None => {
                let address = source.as_ipv6();
                !address.is_unspecified() && !address.is_multicast()
            }
        };
        is_of_one
            && source.as_ipv4().is_some() == destination.as_ipv4().is_some()
            && own().all(|own| own != source)
            && (!source.is_loopback() || own().any(Gid::is_loopback))
    }

    /// Whether the port has any address in a VLAN.
    pub(crate) fn is_in(&self, vlan: u16) -> bool {
        self.own().any(|own| own.vlan == vlan)
    }
}

/// A peer whose Ethernet address has to be asked for, and the address of ours that asks: both of
/// IPv4, by ARP, or both of IPv6, by neighbour discovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Neighbour {
    pub address: Address,
    pub asked_from: Gid,
}

/// The fields by which a peer recognises a queue pair's packets, which do not name their queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ConnectionKey {
    /// The own address in any VLAN, for a switch may take tags off.
    pub own: Gid,
    pub peer: Gid,
    pub dest_qpn: Qpn,
}

/// The step that a path needs before it can carry frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resolution {
    /// The Ethernet address is known.
    Known(MacAddr),
    /// It must be asked for.
    Ask(Neighbour),
}

/// A path, ready to emit headers once it is resolved.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    pub own: Address,
    pub peer: Gid,
    dest_qpn: Qpn,
    resolved: bool,
    /// The port that the flow label stands for, if there is a label.
    labelled_port: Option<u16>,
    /// The 802.1Q tag, in a VLAN.
    tag: Option<[u8; ethernet::TAG_LENGTH]>,
    /// The priority in the tag, in a VLAN.
    priority: Option<u8>,
    class: u8,
    template: Template,
}

/// Ethernet, IP and UDP headers with their lengths left open.
#[derive(Clone, Debug)]
enum Template {
    V4 {
        bytes: [u8; V4],
        /// The running sum of the IPv4 header with total length and checksum zero.
        checksum: u32,
    },
    V6 {
        bytes: [u8; V6],
    },
}

/// Lengths of the templates, and where fields lie in them.
const IP: usize = ethernet::LENGTH;
const V4: usize = IP + ipv4::LENGTH + udp::LENGTH;
const V6: usize = IP + ipv6::LENGTH + udp::LENGTH;
const IPV4_TOTAL_LENGTH: Field<{ IP + ipv4::field::TOTAL_LENGTH.range().start }, 2> = Field;
const IPV4_CHECKSUM: Field<{ IP + ipv4::field::HEADER_CHECKSUM.range().start }, 2> = Field;
const IPV6_PAYLOAD_LENGTH: Field<{ IP + ipv6::field::PAYLOAD_LENGTH.range().start }, 2> = Field;
const UDP_LENGTH: usize = udp::field::LENGTH.range().start;
const V4_UDP_PORT: Field<{ V4 - udp::LENGTH }, 2> = Field;
const V6_UDP_PORT: Field<{ V6 - udp::LENGTH }, 2> = Field;
const V4_UDP_LENGTH: Field<{ V4 - udp::LENGTH + UDP_LENGTH }, 2> = Field;
const V6_UDP_LENGTH: Field<{ V6 - udp::LENGTH + UDP_LENGTH }, 2> = Field;

impl Path {
    /// The path of `vector` to one peer from the port `addresses`, and how to resolve it.
    pub(crate) fn to_one(
        qpn: Qpn,
        dest_qpn: Qpn,
        vector: &AddressVector,
        addresses: &PortAddresses,
    ) -> Result<(Self, Resolution), Error> {
        match vector.dgid.is_group() {
            true => Err(Error::Unreachable { dgid: vector.dgid }),
            false => Self::new(qpn, dest_qpn, vector, addresses),
        }
    }

    /// The path of `vector` from the port `addresses`, to a peer or to a multicast group, and how to
    /// resolve it.
    pub(crate) fn new(
        qpn: Qpn,
        dest_qpn: Qpn,
        vector: &AddressVector,
        addresses: &PortAddresses,
    ) -> Result<(Self, Resolution), Error> {
        let mismatch = Error::GidMismatch { dgid: vector.dgid, sgid_index: vector.sgid_index };
        let unreachable = Error::Unreachable { dgid: vector.dgid };
        let address = addresses.address(vector.sgid_index).ok_or_else(|| mismatch.clone())?;
        let own = address.gid;
        // RC-14
        let peer = vector.dgid;
        let is_nobody = match (own.as_ipv4(), peer.as_ipv4()) {
            (Some(_), Some(peer)) => peer.is_unspecified() || peer.is_broadcast(),
            (None, None) => {
                let peer = peer.as_ipv6();
                peer.is_unspecified() || peer.is_loopback()
            }
            _ => return Err(mismatch),
        };
        let in_address = MacAddr::of_link_local(peer.as_ipv6());
        if is_nobody || in_address.is_some_and(MacAddr::is_group) {
            return Err(unreachable);
        }
        let resolution = match in_address {
            _ if own == peer => Resolution::Known(addresses.mac),
            // UD-18
            _ if peer.is_group() => Resolution::Known(MacAddr::of_group(peer)),
            Some(mac) => Resolution::Known(mac),
            None => {
                let address = Address { gid: peer, ..address };
                Resolution::Ask(Neighbour { address, asked_from: own })
            }
        };
        // RC-15
        let labelled_port = (vector.flow_label != 0).then(|| label_port(vector.flow_label));
        let port = labelled_port.unwrap_or_else(|| flow_port(qpn, dest_qpn));
        // RC-104
        let priority = (address.vlan != 0).then_some(vector.sl & PRIORITIES);
        let tag = priority.map(|priority| {
            ethernet::Tag { priority, drop_eligible: false, vlan: address.vlan }.to_bytes()
        });
        let template = Template::new(own, port, vector, addresses.mac);
        let (own, peer, resolved) = (address, vector.dgid, false);
        let class = vector.traffic_class;
        let mut path =
            Self { own, peer, dest_qpn, resolved, labelled_port, tag, priority, class, template };
        if let Resolution::Known(mac) = resolution {
            path.resolve(mac);
        }
        Ok((path, resolution))
    }

    /// The fields by which the peer recognises the queue pair's packets.
    pub(crate) fn connection(&self) -> ConnectionKey {
        ConnectionKey { own: self.own.gid, peer: self.peer, dest_qpn: self.dest_qpn }
    }

    /// The priority of its packets.
    #[inline]
    pub(crate) fn priority(&self, trust: &Trust) -> u8 {
        trust.priority(self.priority, self.class)
    }

    /// The priority of one of another traffic class.
    pub(crate) fn priority_of(&self, trust: &Trust, class: u8) -> u8 {
        trust.priority(self.priority, class)
    }

    /// Whether the peer's Ethernet address is known.
    pub(crate) fn is_resolved(&self) -> bool {
        self.resolved
    }

    /// Sets the peer's Ethernet address.
    pub(crate) fn resolve(&mut self, mac: MacAddr) {
        let bytes = match &mut self.template {
            Template::V4 { bytes, .. } => bytes.first_chunk_mut(),
            Template::V6 { bytes } => bytes.first_chunk_mut(),
        };
        if let Some(destination) = bytes {
            *destination = mac.0;
        }
        self.resolved = true;
    }

    /// The peer whose Ethernet address has to be asked for, if it has.
    pub(crate) fn neighbour(&self) -> Option<Neighbour> {
        let Address { gid: own, vlan } = self.own;
        let known = own == self.peer
            || self.peer.is_group()
            || MacAddr::of_link_local(self.peer.as_ipv6()).is_some();
        let address = Address { gid: self.peer, vlan };
        (!known).then_some(Neighbour { address, asked_from: own })
    }

    /// A header up to the Base Transport Header, for a frame with `after` bytes between that
    /// header and the invariant CRC.
    #[inline]
    pub(crate) fn header(&self, transport: &bth::Repr, after: usize) -> HeaderBuffer {
        self.header_from(None, transport, after)
    }

    /// The header of a packet between other queue pairs than the path's, of which the UDP port tells unless the flow
    /// label does; otherwise as [`Path::header`].
    #[inline]
    pub(crate) fn header_between(
        &self,
        qpn: Qpn,
        dest_qpn: Qpn,
        transport: &bth::Repr,
        after: usize,
    ) -> HeaderBuffer {
        let port = self.labelled_port.unwrap_or_else(|| flow_port(qpn, dest_qpn));
        self.header_from(Some(port), transport, after)
    }

    #[inline(always)]
    fn header_from(&self, port: Option<u16>, transport: &bth::Repr, after: usize) -> HeaderBuffer {
        const TRANSPORT: usize = udp::LENGTH + bth::LENGTH + icrc::LENGTH;
        // At most a path MTU and some headers: far from 2^16.
        let udp_length = after.wrapping_add(TRANSPORT) as u16;
        let mut header = match self.template {
            Template::V4 { mut bytes, checksum } => {
                let total = udp_length.wrapping_add(ipv4::LENGTH as u16);
                let sum = checksum_finish(checksum.wrapping_add(u32::from(total)));
                IPV4_TOTAL_LENGTH.put(&mut bytes, total.to_be_bytes());
                IPV4_CHECKSUM.put(&mut bytes, sum.to_be_bytes());
                V4_UDP_LENGTH.put(&mut bytes, udp_length.to_be_bytes());
                if let Some(port) = port {
                    V4_UDP_PORT.put(&mut bytes, port.to_be_bytes());
                }
                HeaderBuffer::beginning(&bytes)
            }
            Template::V6 { mut bytes } => {
                IPV6_PAYLOAD_LENGTH.put(&mut bytes, udp_length.to_be_bytes());
                V6_UDP_LENGTH.put(&mut bytes, udp_length.to_be_bytes());
                if let Some(port) = port {
                    V6_UDP_PORT.put(&mut bytes, port.to_be_bytes());
                }
                HeaderBuffer::beginning(&bytes)
            }
        };
        if let Some(tag) = &self.tag {
            header.insert(ethernet::TAG_OFFSET, tag);
        }
        header.push(&transport.to_bytes());
        header
    }
}

impl Template {
    fn new(own: Gid, source_port: u16, vector: &AddressVector, mac: MacAddr) -> Self {
        let peer = vector.dgid;
        // RC-16
        let hops = match vector.hop_limit {
            0 => param::DEFAULT_HOP_LIMIT,
            hops => hops,
        };
        let ethernet = ethernet::Repr {
            destination: MacAddr::default(),
            source: mac,
            tag: None,
            ethertype: ethernet::EtherType::IPV6,
        };
        let udp =
            udp::Repr { source_port, destination_port: param::ROCE_UDP_PORT, payload_length: 0 };
        if let (Some(source), Some(destination)) = (own.as_ipv4(), peer.as_ipv4()) {
            let ip = ipv4::Repr {
                type_of_service: vector.traffic_class,
                time_to_live: hops,
                protocol: ipv4::PROTOCOL_UDP,
                source,
                destination,
                payload_length: 0,
            };
            let mut ip = ip.to_bytes();
            ipv4::field::TOTAL_LENGTH.put(&mut ip, [0; 2]);
            ipv4::field::HEADER_CHECKSUM.put(&mut ip, [0; 2]);
            let ethernet = ethernet::Repr { ethertype: ethernet::EtherType::IPV4, ..ethernet };
            let mut bytes = [0; V4];
            fill(&mut bytes, &[&ethernet.to_bytes(), &ip, &udp.to_bytes()]);
            Self::V4 { bytes, checksum: checksum_add(0, &ip) }
        } else {
            let ip = ipv6::Repr {
                traffic_class: vector.traffic_class,
                flow_label: vector.flow_label,
                next_header: ipv6::NEXT_HEADER_UDP,
                hop_limit: hops,
                source: own.as_ipv6(),
                destination: peer.as_ipv6(),
                payload_length: 0,
            };
            let mut bytes = [0; V6];
            fill(&mut bytes, &[&ethernet.to_bytes(), &ip.to_bytes(), &udp.to_bytes()]);
            Self::V6 { bytes }
        }
    }
}

/// Puts parts behind one another.
fn fill(bytes: &mut [u8], parts: &[&[u8]]) {
    let all = parts.iter().copied().flatten();
    for (byte, value) in bytes.iter_mut().zip(all) {
        *byte = *value;
    }
}

/// Bits of a service level that a tag's priority has.
const PRIORITIES: u8 = 7;
/// Bits of a flow label, and those that a UDP port of the dynamic range leaves open.
const LABEL_BITS: u32 = 20;
const PORT_BITS: u32 = 14;

/// The UDP source port of a flow without a label: the same for all frames of a QP, so that switches
/// keep their order, and spread over QPs, so that they take different paths.
///
/// It is that of the label which Linux' verbs give such a flow: the product of both numbers, folded.
pub(crate) fn flow_port(qpn: Qpn, dest_qpn: Qpn) -> u16 {
    // RC-15
    let mut folded = u64::from(qpn.value()).wrapping_mul(dest_qpn.value().into());
    folded ^= folded >> LABEL_BITS;
    folded ^= folded >> (2 * LABEL_BITS);
    label_port(folded as u32 & ((1 << LABEL_BITS) - 1))
}

/// The UDP source port that a flow label stands for: its upper bits are folded upon the lower ones.
fn label_port(label: u32) -> u16 {
    const LOWER: u32 = (1 << PORT_BITS) - 1;
    param::UDP_SOURCE_PORT_BASE | ((label ^ label >> PORT_BITS) & LOWER) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opcode::code;

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const PEER: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

    fn addresses() -> PortAddresses {
        PortAddresses::new(MAC, Ipv4Addr::new(10, 0, 0, 1))
    }

    fn vector(sgid_index: u8, dgid: Gid) -> AddressVector {
        AddressVector {
            sgid_index,
            dgid,
            hop_limit: 0,
            traffic_class: 0x22,
            flow_label: 0x1234,
            sl: 0,
            static_rate: 0,
        }
    }

    fn qpn(value: u32) -> Qpn {
        Qpn::new(value).unwrap()
    }

    /// RC-14, RC-15, RC-16.
    #[test]
    fn headers_parse_back_with_their_lengths() {
        let transport = bth::Repr { opcode: code::ACKNOWLEDGE, ..bth::Repr::default() };
        for (index, dgid) in [
            (0, Gid::from_ipv6(PEER.link_local())),
            (1, Gid::from_ipv4(Ipv4Addr::new(10, 0, 0, 2))),
        ] {
            let (mut path, _) =
                Path::new(qpn(1), qpn(2), &vector(index, dgid), &addresses()).unwrap();
            path.resolve(PEER);
            for after in [0, 4, 28, 4096] {
                let mut frame = path.header(&transport, after).as_slice().to_vec();
                frame.resize(frame.len() + after + 4, 0);
                let (eth, packet) = ethernet::Repr::parse(&frame).unwrap();
                assert_eq!((eth.source, eth.destination), (MAC, PEER));
                let datagram = if index == 1 {
                    ipv4::Repr::parse(packet).unwrap().1
                } else {
                    let (ip, datagram) = ipv6::Repr::parse(packet).unwrap();
                    assert_eq!((ip.traffic_class, ip.flow_label), (0x22, 0x1234));
                    datagram
                };
                let (udp, rest) = udp::Repr::parse(datagram).unwrap();
                assert!(udp.source_port >= param::UDP_SOURCE_PORT_BASE);
                assert_eq!(rest.len(), 12 + after + 4);
                assert_eq!(bth::Repr::parse(rest).unwrap().0, transport);
            }
        }
    }

    /// RC-104.
    #[test]
    fn frames_from_an_address_in_a_vlan_carry_its_tag_and_the_service_level() {
        let mut addresses = addresses();
        let gid = Gid::from_ipv4(Ipv4Addr::new(10, 5, 0, 1));
        let mut gids = addresses.gids;
        gids[2] = Some(Address { gid, vlan: 0xabc });
        addresses.set_gids(gids);
        let peer = Gid::from_ipv4(Ipv4Addr::new(10, 5, 0, 2));
        let transport = bth::Repr { opcode: code::ACKNOWLEDGE, ..bth::Repr::default() };
        for sl in [0, 5, 7, 13] {
            let vector = AddressVector { sl, ..vector(2, peer) };
            let (mut path, how) = Path::new(qpn(1), qpn(2), &vector, &addresses).unwrap();
            let address = Address { gid: peer, vlan: 0xabc };
            assert_eq!(how, Resolution::Ask(Neighbour { address, asked_from: gid }));
            path.resolve(PEER);
            let mut frame = path.header(&transport, 4).as_slice().to_vec();
            frame.resize(frame.len() + 4 + 4, 0);
            let (eth, packet) = ethernet::Repr::parse(&frame).unwrap();
            assert_eq!((eth.source, eth.destination), (MAC, PEER));
            let tag = ethernet::Tag { priority: sl & 7, drop_eligible: false, vlan: 0xabc };
            assert_eq!((eth.tag, eth.ethertype), (Some(tag), ethernet::EtherType::IPV4));
            let (_, datagram) = ipv4::Repr::parse(packet).unwrap();
            let (_, rest) = udp::Repr::parse(datagram).unwrap();
            assert_eq!(bth::Repr::parse(rest).unwrap().0, transport);
        }
    }

    /// RC-15, UD-5.
    #[test]
    fn the_udp_port_is_that_of_the_flow_label_or_of_both_queue_pairs() {
        let port = |flow_label, dest| {
            let gid = Gid::from_ipv6(PEER.link_local());
            let vector = AddressVector { flow_label, ..vector(0, gid) };
            let (path, _) = Path::new(qpn(0x12_3456), qpn(dest), &vector, &addresses()).unwrap();
            let header = path.header(&bth::Repr::default(), 0);
            u16::from_be_bytes([header.as_slice()[54], header.as_slice()[55]])
        };
        // The upper six bits are folded upon the lower fourteen.
        assert_eq!(port(0x1, 9), 0xc001);
        assert_eq!(port(0x3fff, 9), 0xffff);
        assert_eq!(port(0x4000, 9), 0xc001);
        assert_eq!(port(0xf_ffff, 9), 0xffc0);
        // The product of both numbers, 0x7336bf94116, is folded to the label 0xa77ae.
        assert_eq!((port(0, 0x65_4321), port(0xa77ae, 9)), (0xf787, 0xf787));
        assert_ne!(port(0, 0x65_4321), port(0, 0x65_4322));
        // That of a datagram goes by its own queue pairs.
        let datagram = |flow_label| {
            let vector =
                AddressVector { flow_label, ..vector(0, Gid::from_ipv6(PEER.link_local())) };
            let (path, _) = Path::new(qpn(1), qpn(1), &vector, &addresses()).unwrap();
            let (from, to) = (qpn(0x12_3456), qpn(0x65_4321));
            let header = path.header_between(from, to, &bth::Repr::default(), 0);
            u16::from_be_bytes([header.as_slice()[54], header.as_slice()[55]])
        };
        assert_eq!((datagram(0), datagram(0x1)), (port(0, 0x65_4321), 0xc001));
    }

    /// RC-14.
    #[test]
    fn peers_are_asked_for_unless_their_address_tells() {
        let resolve = |index, dgid| {
            Path::to_one(qpn(1), qpn(2), &vector(index, dgid), &addresses()).map(|(path, how)| {
                assert_eq!(path.is_resolved(), matches!(how, Resolution::Known(_)));
                how
            })
        };
        let v4 = |d| Gid::from_ipv4(Ipv4Addr::new(10, 0, 0, d));
        assert_eq!(resolve(0, Gid::from_ipv6(PEER.link_local())), Ok(Resolution::Known(PEER)));
        let (asked_from, address) = (v4(1), v4(2).into());
        assert_eq!(resolve(1, v4(2)), Ok(Resolution::Ask(Neighbour { address, asked_from })));
        let asked_from = Gid::from_ipv6(MAC.link_local());
        for other in ["2001:db8::1", "fe80::1"] {
            let peer = Gid::from_ipv6(other.parse().unwrap());
            let address = peer.into();
            assert_eq!(resolve(0, peer), Ok(Resolution::Ask(Neighbour { address, asked_from })));
        }
        assert_eq!(resolve(1, v4(1)), Ok(Resolution::Known(MAC)));
        assert!(matches!(resolve(0, v4(2)), Err(Error::GidMismatch { .. })));
        for nobody in ["::", "::1", "ff02::1", "fe80::301:ff:fe00:1"] {
            let nobody = Gid::from_ipv6(nobody.parse().unwrap());
            assert!(matches!(resolve(0, nobody), Err(Error::Unreachable { .. })), "{nobody}");
        }
        assert!(matches!(
            resolve(1, Gid::from_ipv4(Ipv4Addr::BROADCAST)),
            Err(Error::Unreachable { .. })
        ));
    }

    /// UD-18.
    #[test]
    fn nobody_is_asked_for_a_groups_ethernet_address() {
        let v4 = Gid::from_ipv4(Ipv4Addr::new(239, 255, 1, 2));
        let v6 = Gid::from_ipv6("ff0e::1:203".parse().unwrap());
        for (index, group) in [(1, v4), (0, v6)] {
            let vector = vector(index, group);
            let (path, how) = Path::new(qpn(1), qpn(1), &vector, &addresses()).unwrap();
            assert_eq!(how, Resolution::Known(MacAddr::of_group(group)));
            assert!(path.is_resolved() && path.neighbour().is_none());
            let header = path.header(&bth::Repr::default(), 0);
            assert_eq!(header.as_slice()[..6], MacAddr::of_group(group).0);
            let connection = Path::to_one(qpn(1), qpn(2), &vector, &addresses());
            assert!(matches!(connection, Err(Error::Unreachable { .. })));
        }
        let crossed = Path::new(qpn(1), qpn(1), &vector(0, v4), &addresses());
        assert!(matches!(crossed, Err(Error::GidMismatch { .. })));
    }
}
