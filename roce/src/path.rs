//! A queue pair's path: who the peer is, and the header bytes that every frame to it begins with.

use core::net::{Ipv4Addr, Ipv6Addr};

use crate::attributes::AddressVector;
use crate::error::Error;
use crate::header::HeaderBuffer;
use crate::param;
use crate::types::{Gid, GidTable, MacAddr, Qpn};
use crate::wire::{
    Field, bth, checksum_add, checksum_finish, ethernet, icrc, ipv4, ipv6, ndp, udp,
};

/// The addresses of the port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PortAddresses {
    pub mac: MacAddr,
    pub gids: GidTable,
}

impl PortAddresses {
    /// A port with two addresses: the link-local one of its MAC, and one of IPv4.
    pub(crate) fn new(mac: MacAddr, ipv4: Ipv4Addr) -> Self {
        let mut gids = GidTable::default();
        let first = [Gid::from_ipv6(mac.link_local()), Gid::from_ipv4(ipv4)];
        for (entry, gid) in gids.iter_mut().zip(first) {
            *entry = Some(gid);
        }
        Self { mac, gids }
    }

    /// The GID at `index` of the port's table.
    pub(crate) fn gid(&self, index: u8) -> Option<Gid> {
        self.gids.get(usize::from(index)).copied().flatten()
    }

    /// Whether an address is the port's.
    #[inline]
    pub(crate) fn has(&self, gid: Gid) -> bool {
        self.gids.contains(&Some(gid))
    }

    /// Whether an IPv4 address is the port's.
    #[inline]
    pub(crate) fn has_ipv4(&self, address: Ipv4Addr) -> bool {
        self.has(Gid::from_ipv4(address))
    }

    /// Whether an IPv6 address is the port's. One of IPv4 in its mapped form is not: such a packet
    /// would pass for one of IPv4 that no check of IPv4's has seen.
    #[inline]
    pub(crate) fn has_ipv6(&self, address: Ipv6Addr) -> bool {
        let gid = Gid::from_ipv6(address);
        // RC-14
        gid.as_ipv4().is_none() && self.has(gid)
    }

    /// Whether packets to a multicast address ask for one of the port's.
    pub(crate) fn is_solicited_at(&self, group: Ipv6Addr) -> bool {
        let own = self.gids.iter().flatten();
        own.filter(|gid| gid.as_ipv4().is_none())
            .any(|gid| ndp::solicited_node(gid.as_ipv6()) == group)
    }
}

/// A peer whose Ethernet address has to be asked for, and the address of ours that asks: both of
/// IPv4, by ARP, or both of IPv6, by neighbour discovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Neighbour {
    pub address: Gid,
    pub asked_from: Gid,
}

/// What a peer knows a queue pair's packets by: they do not name the queue pair that they come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Connection {
    pub own: Gid,
    pub peer: Gid,
    pub dest_qpn: Qpn,
}

/// What must happen before frames can be sent on a path.
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
    pub own: Gid,
    pub peer: Gid,
    dest_qpn: Qpn,
    resolved: bool,
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
    /// The path of `vector` from the port `addresses`, and how to resolve it.
    pub(crate) fn new(
        qpn: Qpn,
        dest_qpn: Qpn,
        vector: &AddressVector,
        addresses: &PortAddresses,
    ) -> Result<(Self, Resolution), Error> {
        let mismatch = Error::GidMismatch { dgid: vector.dgid, sgid_index: vector.sgid_index };
        let unreachable = Error::Unreachable { dgid: vector.dgid };
        let own = addresses.gid(vector.sgid_index).ok_or_else(|| mismatch.clone())?;
        // RC-14
        let peer = vector.dgid;
        let is_nobody = match (own.as_ipv4(), peer.as_ipv4()) {
            (Some(_), Some(peer)) => {
                peer.is_unspecified() || peer.is_multicast() || peer.is_broadcast()
            }
            (None, None) => {
                let peer = peer.as_ipv6();
                peer.is_unspecified() || peer.is_multicast() || peer.is_loopback()
            }
            _ => return Err(mismatch),
        };
        let in_address = MacAddr::of_link_local(peer.as_ipv6());
        if is_nobody || in_address.is_some_and(MacAddr::is_group) {
            return Err(unreachable);
        }
        let resolution = match in_address {
            _ if own == peer => Resolution::Known(addresses.mac),
            Some(mac) => Resolution::Known(mac),
            None => Resolution::Ask(Neighbour { address: peer, asked_from: own }),
        };
        let template = Template::new((own, vector.dgid), (qpn, dest_qpn), vector, addresses.mac);
        let mut path = Self { own, peer: vector.dgid, dest_qpn, resolved: false, template };
        if let Resolution::Known(mac) = resolution {
            path.resolve(mac);
        }
        Ok((path, resolution))
    }

    /// What the peer knows the queue pair's packets by.
    pub(crate) fn connection(&self) -> Connection {
        Connection { own: self.own, peer: self.peer, dest_qpn: self.dest_qpn }
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
        let known = self.own == self.peer || MacAddr::of_link_local(self.peer.as_ipv6()).is_some();
        (!known).then_some(Neighbour { address: self.peer, asked_from: self.own })
    }

    /// A header up to the Base Transport Header, for a frame with `after` bytes between that
    /// header and the invariant CRC.
    #[inline]
    pub(crate) fn header(&self, transport: &bth::Repr, after: usize) -> HeaderBuffer {
        self.header_from(None, transport, after)
    }

    /// As [`Path::header`], perhaps from another UDP port.
    #[inline]
    pub(crate) fn header_from(
        &self,
        port: Option<u16>,
        transport: &bth::Repr,
        after: usize,
    ) -> HeaderBuffer {
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
        header.push(&transport.to_bytes());
        header
    }
}

impl Template {
    fn new(
        (own, peer): (Gid, Gid),
        (qpn, dest_qpn): (Qpn, Qpn),
        vector: &AddressVector,
        mac: MacAddr,
    ) -> Self {
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
        let udp = udp::Repr {
            source_port: flow_port(qpn, dest_qpn),
            destination_port: param::ROCE_UDP_PORT,
            payload_length: 0,
        };
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

/// The UDP source port of a flow: the same for all frames of a QP, so that switches keep their
/// order, and spread over QPs, so that they take different paths.
pub(crate) fn flow_port(qpn: Qpn, dest_qpn: Qpn) -> u16 {
    // RC-15
    let mixed = (u64::from(qpn.value()) << 24 | u64::from(dest_qpn.value()))
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    param::UDP_SOURCE_PORT_BASE | (mixed >> 50) as u16
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

    /// RC-14.
    #[test]
    fn peers_are_asked_for_unless_their_address_tells() {
        let resolve = |index, dgid| {
            Path::new(qpn(1), qpn(2), &vector(index, dgid), &addresses()).map(|(path, how)| {
                assert_eq!(path.is_resolved(), matches!(how, Resolution::Known(_)));
                how
            })
        };
        let v4 = |d| Gid::from_ipv4(Ipv4Addr::new(10, 0, 0, d));
        assert_eq!(resolve(0, Gid::from_ipv6(PEER.link_local())), Ok(Resolution::Known(PEER)));
        let [asked_from, address] = [1, 2].map(v4);
        assert_eq!(resolve(1, v4(2)), Ok(Resolution::Ask(Neighbour { address, asked_from })));
        let asked_from = Gid::from_ipv6(MAC.link_local());
        for other in ["2001:db8::1", "fe80::1"] {
            let address = Gid::from_ipv6(other.parse().unwrap());
            assert_eq!(resolve(0, address), Ok(Resolution::Ask(Neighbour { address, asked_from })));
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
}
