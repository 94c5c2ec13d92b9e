//! Received frames: their protocol, their queue pair, and the checks of their claims.

use core::task::Poll;

use super::Stack;
use crate::api::{Placement, ReceivedFrame, ResponderMemory};
use crate::control::{self, Addressee};
use crate::counters::bump;
use crate::drops::{self, Reason};
use crate::groups::Groups;
use crate::incoming::{Envelope, Flow};
use crate::param;
use crate::path::PortAddresses;
use crate::types::{Address, Gid, Instant, MacAddr, Qpn};
use crate::wire::ethernet::{self, EtherType};
use crate::wire::{Malformed, arp, bth, icmpv4, igmp, ipv4, ipv6, ndp, udp};

/// The protocol of a frame, as far as its network header tells.
pub(super) enum Protocol<'a> {
    Arp(&'a [u8]),
    Icmp(ipv4::Repr, &'a [u8]),
    Ndp(ipv6::Repr, &'a [u8]),
    Igmp(&'a [u8]),
    Mld(ipv6::Repr, &'a [u8]),
    Roce(Envelope),
    /// Another protocol, or for another address.
    Foreign,
}

impl Stack {
    /// Takes a received Ethernet frame.
    ///
    /// Placements are appended to `placements`; they name the frame by `frame_index`. Nothing that
    /// the frame causes is visible before the next [`Stack::commit`].
    ///
    /// [`Poll::Pending`]: the layer above has not decided about it, and it has done nothing. It is to be
    /// given again, before any later frame of the same [destinations](Stack::destinations). Of a datagram to a
    /// multicast group, some of the members may have taken their copies: see [`ReceivedFrame::keep`].
    pub fn receive(
        &mut self,
        now: Instant,
        frame: &mut (impl ReceivedFrame + ?Sized),
        frame_index: usize,
        memory: &mut impl ResponderMemory,
        placements: &mut Vec<Placement>,
    ) -> Poll<()> {
        // The steps that place payload find them there.
        self.shared.log.placements = core::mem::take(placements);
        let taken = self.receive_frame(now, frame, frame_index, memory);
        *placements = core::mem::take(&mut self.shared.log.placements);
        taken
    }

    #[inline]
    fn receive_frame(
        &mut self,
        now: Instant,
        frame: &mut (impl ReceivedFrame + ?Sized),
        frame_index: usize,
        memory: &mut impl ResponderMemory,
    ) -> Poll<()> {
        let taken = match self.classify(frame.bytes()) {
            Ok((_, Protocol::Roce(envelope))) => {
                return self.receive_roce(now, &envelope, frame, frame_index, memory);
            }
            Ok((ethernet, Protocol::Arp(packet))) => self.receive_arp(&ethernet, packet),
            Ok((ethernet, Protocol::Icmp(ip, packet))) => self.receive_icmp(&ethernet, &ip, packet),
            Ok((ethernet, Protocol::Ndp(ip, packet))) => self.receive_ndp(&ethernet, &ip, packet),
            Ok((ethernet, Protocol::Igmp(packet))) => {
                self.receive_igmp(now, ethernet.vlan(), packet)
            }
            Ok((ethernet, Protocol::Mld(ip, packet))) => {
                self.receive_mld(now, ethernet.vlan(), &ip, packet)
            }
            Ok((_, Protocol::Foreign)) => Err(Reason::NotForUs),
            Err(malformed) => Err(malformed.into()),
        };
        if let Err(reason) = taken {
            drops::count(&mut self.shared.counters, reason);
        }
        Poll::Ready(())
    }

    /// The queue pairs that a frame is for, if it is a RoCE packet to this port: the one that it names, or
    /// those in a multicast group. Whether there is such a one, and whether the frame comes from its peer,
    /// is not looked at.
    #[must_use]
    pub fn destinations(&self, frame: &[u8]) -> Vec<Qpn> {
        let Ok((_, Protocol::Roce(envelope))) = self.classify(frame) else { return Vec::new() };
        let group = envelope.flow.destination.gid;
        if group.is_group() {
            return self.groups.members(group).collect();
        }
        named(&envelope, frame).into_iter().collect()
    }

    /// The same where the frame is not for a multicast group.
    #[must_use]
    pub fn destination(&self, frame: &[u8]) -> Option<Qpn> {
        let Ok((_, Protocol::Roce(envelope))) = self.classify(frame) else { return None };
        let is_group = envelope.flow.destination.gid.is_group();
        named(&envelope, frame).filter(|_| !is_group)
    }

    #[inline]
    pub(super) fn classify<'a>(
        &self,
        frame: &'a [u8],
    ) -> Result<(ethernet::Repr, Protocol<'a>), Malformed> {
        classify(frame, &self.addresses, &self.groups)
    }

    fn receive_arp(&mut self, ethernet: &ethernet::Repr, packet: &[u8]) -> Result<(), Reason> {
        let packet = arp::Repr::parse(packet)?;
        // RC-98: No checksum protects the packet, and a wrong address cuts off all queue pairs on it.
        if packet.sender_mac != ethernet.source {
            return Err(Malformed::Sender("ARP").into());
        }
        let vlan = ethernet.vlan();
        if !self.addresses.has_ipv4(vlan, packet.target_ip) {
            return Err(Reason::NotForUs);
        }
        let sender = Address { gid: Gid::from_ipv4(packet.sender_ip), vlan };
        self.learn(sender, packet.sender_mac);
        if packet.operation == arp::Operation::Request && !packet.sender_mac.is_group() {
            bump(&mut self.shared.counters.arp_replies);
            let reply = control::arp_reply(&self.addresses, vlan, &packet);
            self.send_control(reply);
        }
        Ok(())
    }

    fn receive_icmp(
        &mut self,
        ethernet: &ethernet::Repr,
        ip: &ipv4::Repr,
        packet: &[u8],
    ) -> Result<(), Reason> {
        let echo = icmpv4::Repr::parse(packet)?;
        let answerable = !echo.reply
            && packet.len() <= param::MAX_ICMP_LENGTH
            && !ethernet.source.is_group()
            && ethernet.destination == self.addresses.mac;
        if answerable {
            bump(&mut self.shared.counters.icmp_replies);
            let to = Addressee { vlan: ethernet.vlan(), mac: ethernet.source };
            let reply = control::icmp_reply(&self.addresses, to, ip, &echo);
            self.send_control(reply);
            Ok(())
        } else {
            Err(Reason::NotForUs)
        }
    }

    fn receive_ndp(
        &mut self,
        ethernet: &ethernet::Repr,
        ip: &ipv6::Repr,
        packet: &[u8],
    ) -> Result<(), Reason> {
        if let Ok((target, mac)) = ndp::parse_advertisement(ip, packet) {
            let address = Address { gid: Gid::from_ipv6(target), vlan: ethernet.vlan() };
            self.learn(address, mac);
            return Ok(());
        }
        let target = ndp::parse_solicitation(ip, packet)?;
        // An unspecified source asks whether an address is free to take. The port's addresses are in
        // use already.
        if self.addresses.has_ipv6(ethernet.vlan(), target)
            && !ip.source.is_unspecified()
            && !ip.source.is_multicast()
            && !ethernet.source.is_group()
        {
            bump(&mut self.shared.counters.ndp_replies);
            let to = Addressee { vlan: ethernet.vlan(), mac: ethernet.source };
            let reply = control::neighbour_advertisement(&self.addresses, target, to, ip.source);
            self.send_control(reply);
            Ok(())
        } else {
            Err(Reason::NotForUs)
        }
    }
}

/// The queue pair that a packet names.
fn named(envelope: &Envelope, frame: &[u8]) -> Option<Qpn> {
    let header = frame.get(envelope.payload.clone()).map(bth::Repr::parse);
    header.and_then(Result::ok).and_then(|(header, _)| Qpn::new(header.dest_qpn))
}

/// Tells the protocol of a frame.
#[inline]
fn classify<'a>(
    frame: &'a [u8],
    addresses: &PortAddresses,
    groups: &Groups,
) -> Result<(ethernet::Repr, Protocol<'a>), Malformed> {
    let (ethernet, packet) = ethernet::Repr::parse(frame)?;
    // RC-104
    let vlan = ethernet.vlan();
    let group = ethernet.destination.is_group();
    if !(group || ethernet.destination == addresses.mac) {
        return Ok((ethernet, Protocol::Foreign));
    }
    let network_offset = frame.len().wrapping_sub(packet.len());
    // UD-19
    let is_joined = |gid| {
        group
            && ethernet.destination == MacAddr::of_group(gid)
            && addresses.is_in(vlan)
            && groups.has(gid)
    };
    let kind = match ethernet.ethertype {
        EtherType::ARP => Protocol::Arp(packet),
        EtherType::IPV4 if group && is_igmp(packet) => Protocol::Igmp(packet),
        EtherType::IPV4 => {
            let (ip, payload) = ipv4::Repr::parse(packet)?;
            let destination = Address { gid: Gid::from_ipv4(ip.destination), vlan };
            let flow = Flow { source: Gid::from_ipv4(ip.source), destination };
            let behind = network_offset.wrapping_add(ipv4::LENGTH);
            match ip.protocol {
                ipv4::PROTOCOL_UDP if is_joined(destination.gid) => {
                    datagram(flow, ip.type_of_service, payload, behind)?
                }
                _ if !addresses.has_ipv4(vlan, ip.destination) => Protocol::Foreign,
                ipv4::PROTOCOL_ICMP => Protocol::Icmp(ip, payload),
                ipv4::PROTOCOL_UDP if !group => {
                    datagram(flow, ip.type_of_service, payload, behind)?
                }
                _ => Protocol::Foreign,
            }
        }
        EtherType::IPV6 => {
            let (ip, payload) = ipv6::Repr::parse(packet)?;
            let own = addresses.has_ipv6(vlan, ip.destination);
            let destination = Address { gid: Gid::from_ipv6(ip.destination), vlan };
            let flow = Flow { source: Gid::from_ipv6(ip.source), destination };
            // RC-14
            let is_mapped = destination.gid.as_ipv4().is_some();
            match ip.next_header {
                ipv6::HOP_BY_HOP if group => Protocol::Mld(ip, payload),
                ipv6::NEXT_HEADER_ICMPV6
                    if own || addresses.is_solicited_at(vlan, ip.destination) =>
                {
                    Protocol::Ndp(ip, payload)
                }
                ipv6::NEXT_HEADER_UDP
                    if !group && own || !is_mapped && is_joined(destination.gid) =>
                {
                    let behind = network_offset.wrapping_add(ipv6::LENGTH);
                    datagram(flow, ip.traffic_class, payload, behind)?
                }
                _ => Protocol::Foreign,
            }
        }
        _ => Protocol::Foreign,
    };
    Ok((ethernet, kind))
}

/// Whether an IPv4 packet is one of IGMP's, which have options.
fn is_igmp(packet: &[u8]) -> bool {
    ipv4::Header::new(packet).is_ok_and(|(header, _)| header.protocol() == igmp::PROTOCOL)
}

/// The RoCE datagram in an IP payload that lies at `offset` of its frame.
#[inline]
fn datagram(
    flow: Flow,
    traffic_class: u8,
    payload: &[u8],
    offset: usize,
) -> Result<Protocol<'_>, Malformed> {
    let (header, payload) = udp::Repr::parse(payload)?;
    // RC-3
    if header.destination_port != param::ROCE_UDP_PORT {
        return Ok(Protocol::Foreign);
    }
    let offset = offset.wrapping_add(udp::LENGTH);
    let payload = offset..offset.wrapping_add(payload.len());
    Ok(Protocol::Roce(Envelope { flow, traffic_class, payload }))
}
