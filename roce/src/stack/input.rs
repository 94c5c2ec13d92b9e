//! Received frames: who they are for, and whether they are what they claim.

use core::ops::Range;
use core::task::Poll;

use super::Stack;
use super::slots::Slot;
use crate::api::{Placement, ReceivedFrame, Verbs};
use crate::arriving::FramePlace;
use crate::control;
use crate::counters::{Counters, QpCounters, bump};
use crate::groups::Groups;
use crate::opcode::{Class, code};
use crate::param;
use crate::path::{Path, PortAddresses};
use crate::types::{Address, Gid, Instant, MacAddr, Qpn};
use crate::wire::ethernet::{self, EtherType};
use crate::wire::{Malformed, arp, bth, frame, icmpv4, igmp, ipv4, ipv6, ndp, udp};

/// The ECN field that says "congestion experienced".
pub(super) const CONGESTION_EXPERIENCED: u8 = 3;

/// What a frame is, as far as its network header tells.
pub(super) enum Kind<'a> {
    Arp(&'a [u8]),
    Icmp(ipv4::Repr, &'a [u8]),
    Ndp(ipv6::Repr, &'a [u8]),
    Igmp(&'a [u8]),
    Mld(ipv6::Repr, &'a [u8]),
    Roce(Envelope),
    /// Another protocol, or for another address.
    Foreign,
}

/// A UDP datagram to the RoCE port: where it is, and what its envelope says.
pub(super) struct Envelope {
    pub(super) source: Gid,
    pub(super) destination: Address,
    pub(super) traffic_class: u8,
    /// Where the UDP payload is in the frame: transport headers to invariant CRC.
    pub(super) payload: Range<usize>,
}

impl Envelope {
    /// Source and destination.
    fn addresses(&self) -> (Gid, Address) {
        (self.source, self.destination)
    }
}

impl Stack {
    /// Takes a received Ethernet frame.
    ///
    /// Placements are appended to `placements`; they name the frame by `frame_index`. Nothing that
    /// the frame causes is visible before the next [`Stack::commit`].
    ///
    /// [`Poll::Pending`]: the layer above has not decided about it, and it has done nothing. It is to be
    /// given again, before any later frame of the same [destinations](Stack::destinations). Of a datagram to a
    /// multicast group, some of the members may have taken their copies: see [`ReceivedFrame::taken_by`].
    pub fn receive(
        &mut self,
        now: Instant,
        frame: &mut (impl ReceivedFrame + ?Sized),
        frame_index: usize,
        verbs: &mut impl Verbs,
        placements: &mut Vec<Placement>,
    ) -> Poll<()> {
        // Whoever places something finds them there.
        self.shared.log.placements = core::mem::take(placements);
        let taken = self.receive_frame(now, frame, frame_index, verbs);
        *placements = core::mem::take(&mut self.shared.log.placements);
        taken
    }

    #[inline]
    fn receive_frame(
        &mut self,
        now: Instant,
        frame: &mut (impl ReceivedFrame + ?Sized),
        frame_index: usize,
        verbs: &mut impl Verbs,
    ) -> Poll<()> {
        let result = match self.classify(frame.bytes()) {
            Ok((_, Kind::Roce(envelope))) => {
                match self.receive_packet(now, &envelope, frame, frame_index, verbs) {
                    Ok(Poll::Pending) => return Poll::Pending,
                    taken => taken.map(drop),
                }
            }
            Ok((ethernet, Kind::Arp(packet))) => self.receive_arp(&ethernet, packet),
            Ok((ethernet, Kind::Icmp(ip, packet))) => self.receive_icmp(&ethernet, &ip, packet),
            Ok((ethernet, Kind::Ndp(ip, packet))) => self.receive_ndp(&ethernet, &ip, packet),
            Ok((ethernet, Kind::Igmp(packet))) => {
                self.receive_igmp(now, ethernet.vlan(), packet);
                Ok(())
            }
            Ok((ethernet, Kind::Mld(ip, packet))) => {
                self.receive_mld(now, ethernet.vlan(), &ip, packet);
                Ok(())
            }
            Ok((_, Kind::Foreign)) => {
                bump(&mut self.shared.counters.drop_not_for_us);
                Ok(())
            }
            Err(malformed) => Err(malformed),
        };
        if result.is_err() {
            bump(&mut self.shared.counters.drop_malformed);
        }
        Poll::Ready(())
    }

    /// Takes a RoCE packet, if it is to be taken.
    #[inline]
    fn receive_packet(
        &mut self,
        now: Instant,
        envelope: &Envelope,
        frame: &mut (impl ReceivedFrame + ?Sized),
        frame_index: usize,
        verbs: &mut impl Verbs,
    ) -> Result<Poll<()>, Malformed> {
        if !self.admits_frame(envelope, frame) {
            return Ok(Poll::Ready(()));
        }
        if envelope.destination.gid.is_group() {
            return self.receive_for_group(envelope, frame, frame_index, verbs);
        }
        let before = self.shared.log.placements.len();
        let payload = frame.bytes().get(envelope.payload.clone()).unwrap_or_default();
        let taken = self.receive_roce(now, envelope, payload, frame_index, verbs);
        let is_pending = matches!(taken, Ok(Poll::Pending));
        if !is_pending && is_atomic_acknowledge(payload) {
            give_host_order(frame, self.shared.log.placements.get(before));
        }
        taken
    }

    /// Whether a RoCE packet is as it was sent, and by somebody who can have; else it is counted.
    #[inline]
    fn admits_frame(
        &mut self,
        envelope: &Envelope,
        frame: &mut (impl ReceivedFrame + ?Sized),
    ) -> bool {
        let counters = &mut self.shared.counters;
        if !self.icrc_policy.admits(frame) {
            bump(&mut counters.rx_icrc_encapsulated);
            return false;
        }
        // RC-105
        let is_possible = frame.is_looped()
            || self.addresses.may_come_from(envelope.source, envelope.destination.gid);
        if !is_possible {
            bump(&mut counters.drop_martian_source);
        }
        is_possible
    }

    /// The queue pairs that a frame is for, if it is a RoCE packet to this port: the one that it names, or
    /// those in a multicast group. Whether there is such a one, and whether the frame comes from its peer,
    /// is not looked at.
    #[must_use]
    pub fn destinations(&self, frame: &[u8]) -> Vec<Qpn> {
        let Ok((_, Kind::Roce(envelope))) = self.classify(frame) else { return Vec::new() };
        let group = envelope.destination.gid;
        if group.is_group() {
            return self.groups.members(group).collect();
        }
        let header = frame.get(envelope.payload).map(bth::Repr::parse);
        let named = header.and_then(Result::ok).and_then(|(header, _)| Qpn::new(header.dest_qpn));
        named.into_iter().collect()
    }

    #[inline]
    pub(super) fn classify<'a>(
        &self,
        frame: &'a [u8],
    ) -> Result<(ethernet::Repr, Kind<'a>), Malformed> {
        classify(frame, &self.addresses, &self.groups)
    }

    #[inline]
    fn receive_roce(
        &mut self,
        now: Instant,
        envelope: &Envelope,
        bytes: &[u8],
        frame_index: usize,
        verbs: &mut impl Verbs,
    ) -> Result<Poll<()>, Malformed> {
        let packet = match frame::Repr::parse(bytes) {
            // RC-7
            Err(Malformed::Opcode(opcode))
                if matches!(
                    opcode & code::SERVICE,
                    code::RELIABLE_CONNECTION | code::EXTENDED_RELIABLE_CONNECTION
                ) =>
            {
                return self.receive_unknown(envelope, bytes).map(Poll::Ready);
            }
            // RC-6
            packet => packet?,
        };
        let padded = packet.payload.len().wrapping_add(usize::from(packet.bth.pad_count));
        // RC-8
        if padded % 4 != 0 {
            return Err(Malformed::Length("BTH"));
        }
        let slot = Qpn::new(packet.bth.dest_qpn).and_then(|qpn| self.slot(qpn));
        // RC-9
        let Some(slot) = slot else {
            bump(&mut self.shared.counters.drop_unknown_qp);
            return Ok(Poll::Ready(()));
        };
        if packet.opcode.class == Class::CongestionNotification && self.slots.ud(slot).is_none() {
            self.receive_notification(now, slot, envelope, &packet);
            return Ok(Poll::Ready(()));
        }
        let marked = envelope.traffic_class & 3 == CONGESTION_EXPERIENCED;
        let payload_start = envelope.payload.start.wrapping_add(packet.payload.start);
        let place = FramePlace { frame_index, payload_start };
        let Some(qp) = self.slots.rc(slot) else {
            let taken = match self.slots.get(slot) {
                Some(Slot::Uc(_)) => {
                    let between = envelope.addresses();
                    self.receive_unreliable(slot, between, &packet, place, verbs)
                }
                _ => self.receive_datagram(slot, envelope, &packet, frame_index, verbs),
            };
            if marked && taken.is_ready() {
                bump(&mut self.shared.counters.np_ecn_marked_roce_packets);
            }
            return Ok(taken);
        };
        let counters = &mut self.shared.counters;
        let (path, own) = (qp.core.path.as_ref(), &mut qp.core.counters);
        if !admits(path, (counters, own), envelope.addresses(), &packet.bth) {
            return Ok(Poll::Ready(()));
        }
        match packet.opcode.class {
            // RC-6, XRC-3
            _ if !qp.core.service.hears(packet.opcode) => {
                bump(&mut counters.drop_bad_opcode);
            }
            class if class.is_response() => {
                qp.receive_response(&mut self.shared, now, &packet, place);
            }
            _ => {
                let taken = qp.receive_request(&mut self.shared, &packet, place, verbs);
                if taken.is_pending() {
                    return Ok(Poll::Pending);
                }
            }
        }
        count_received(&mut self.shared.counters, &mut qp.core.counters);
        // RC-17, RC-94
        if marked {
            bump(&mut self.shared.counters.np_ecn_marked_roce_packets);
            qp.notification.note(&mut qp.core, &mut self.shared, now);
        }
        Ok(Poll::Ready(()))
    }

    /// Takes a congestion notification packet for the window of a queue pair, if it comes from its peer.
    // RC-96
    fn receive_notification(
        &mut self,
        now: Instant,
        slot: u32,
        envelope: &Envelope,
        packet: &frame::Repr,
    ) {
        let Some(qp) = self.slots.core_mut(slot) else { return };
        let counters = &mut self.shared.counters;
        if !admits(
            qp.path.as_ref(),
            (counters, &mut qp.counters),
            envelope.addresses(),
            &packet.bth,
        ) {
            return;
        }
        qp.notified(&mut self.shared, now);
        count_received(&mut self.shared.counters, &mut qp.counters);
        // RC-17
        if envelope.traffic_class & 3 == CONGESTION_EXPERIENCED {
            bump(&mut self.shared.counters.np_ecn_marked_roce_packets);
        }
    }

    /// A request whose opcode is reserved, or not known here: it is refused, not ignored, so that
    /// the peer need not wait for its retries to run out.
    fn receive_unknown(&mut self, envelope: &Envelope, bytes: &[u8]) -> Result<(), Malformed> {
        let (transport, _) = bth::Repr::parse(bytes)?;
        let slot = Qpn::new(transport.dest_qpn).and_then(|qpn| self.slot(qpn));
        let counters = &mut self.shared.counters;
        let Some(slot) = slot else {
            bump(&mut counters.drop_unknown_qp);
            return Ok(());
        };
        let Some(qp) = self.slots.rc(slot) else {
            if let Some(qp) = self.slots.core_mut(slot) {
                count_received(counters, &mut qp.counters);
                bump(&mut counters.drop_bad_opcode);
            }
            return Ok(());
        };
        let (path, own) = (qp.core.path.as_ref(), &mut qp.core.counters);
        if admits(path, (counters, own), envelope.addresses(), &transport) {
            count_received(&mut self.shared.counters, &mut qp.core.counters);
            bump(&mut self.shared.counters.drop_bad_opcode);
            if qp.core.service.answers(transport.opcode) {
                qp.receive_unknown_request(&mut self.shared, transport.psn);
            }
        }
        Ok(())
    }

    fn receive_arp(&mut self, ethernet: &ethernet::Repr, packet: &[u8]) -> Result<(), Malformed> {
        let packet = arp::Repr::parse(packet)?;
        // RC-98: No checksum protects the packet, and a wrong address cuts off all queue pairs on it.
        if packet.sender_mac != ethernet.source {
            return Err(Malformed::Sender("ARP"));
        }
        let vlan = ethernet.vlan();
        if !self.addresses.has_ipv4(vlan, packet.target_ip) {
            bump(&mut self.shared.counters.drop_not_for_us);
            return Ok(());
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
    ) -> Result<(), Malformed> {
        let echo = icmpv4::Repr::parse(packet)?;
        let answerable = !echo.reply
            && packet.len() <= param::MAX_ICMP_LENGTH
            && !ethernet.source.is_group()
            && ethernet.destination == self.addresses.mac;
        if answerable {
            bump(&mut self.shared.counters.icmp_replies);
            let to = (ethernet.vlan(), ethernet.source);
            let reply = control::icmp_reply(&self.addresses, to, ip, &echo);
            self.send_control(reply);
        } else {
            bump(&mut self.shared.counters.drop_not_for_us);
        }
        Ok(())
    }

    fn receive_ndp(
        &mut self,
        ethernet: &ethernet::Repr,
        ip: &ipv6::Repr,
        packet: &[u8],
    ) -> Result<(), Malformed> {
        if let Ok((target, mac)) = ndp::parse_advertisement(ip, packet) {
            let address = Address { gid: Gid::from_ipv6(target), vlan: ethernet.vlan() };
            self.learn(address, mac);
            return Ok(());
        }
        let target = ndp::parse_solicitation(ip, packet)?;
        // An unspecified source asks whether an address is free to take. Whoever gave the port its
        // addresses asked that before.
        if self.addresses.has_ipv6(ethernet.vlan(), target)
            && !ip.source.is_unspecified()
            && !ip.source.is_multicast()
            && !ethernet.source.is_group()
        {
            bump(&mut self.shared.counters.ndp_replies);
            let (to, asker) = ((ethernet.vlan(), ethernet.source), ip.source);
            let reply = control::neighbour_advertisement(&self.addresses, target, to, asker);
            self.send_control(reply);
        } else {
            bump(&mut self.shared.counters.drop_not_for_us);
        }
        Ok(())
    }
}

/// Whether a packet is the answer to an atomic operation.
#[inline]
fn is_atomic_acknowledge(packet: &[u8]) -> bool {
    const XRC: u8 = code::EXTENDED_RELIABLE_CONNECTION | code::ATOMIC_ACKNOWLEDGE;
    matches!(packet.first(), Some(&(code::ATOMIC_ACKNOWLEDGE | XRC)))
}

/// The value before an atomic operation, which stands in a header, is placed in the host's order.
// RC-101
fn give_host_order(frame: &mut (impl ReceivedFrame + ?Sized), placement: Option<&Placement>) {
    let value = placement.and_then(|placement| frame.bytes_mut().get_mut(placement.range.clone()));
    if let Some(value) = value.filter(|_| cfg!(target_endian = "little")) {
        value.reverse();
    }
}

/// Whether a packet may reach a queue pair: it comes from the QP's peer, on the QP's path, in the right
/// partition. Nothing else may have any effect on the QP.
#[inline]
pub(super) fn admits(
    path: Option<&Path>,
    (counters, own): (&mut Counters, &mut QpCounters),
    (source, destination): (Gid, Address),
    transport: &bth::Repr,
) -> bool {
    // RC-10: It has no peer yet, so that the frame counts as received, as in the other states.
    let Some(path) = path else {
        count_received(counters, own);
        bump(&mut counters.drop_wrong_state);
        return false;
    };
    // RC-11
    if path.peer != source || path.own != destination {
        bump(&mut counters.drop_wrong_source);
        return false;
    }
    // RC-12
    if !bth::pkeys_match(transport.pkey, param::DEFAULT_PKEY) {
        bump(&mut counters.drop_bad_pkey);
        return false;
    }
    true
}

/// Counts a packet that its queue pair has taken.
#[inline]
pub(super) fn count_received(counters: &mut Counters, own: &mut QpCounters) {
    bump(&mut counters.rcvd_pkts);
    bump(&mut own.rcvd_pkts);
}

/// Finds out what a frame is.
#[inline]
fn classify<'a>(
    frame: &'a [u8],
    addresses: &PortAddresses,
    groups: &Groups,
) -> Result<(ethernet::Repr, Kind<'a>), Malformed> {
    let (ethernet, packet) = ethernet::Repr::parse(frame)?;
    // RC-104
    let vlan = ethernet.vlan();
    let group = ethernet.destination.is_group();
    if !(group || ethernet.destination == addresses.mac) {
        return Ok((ethernet, Kind::Foreign));
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
        EtherType::ARP => Kind::Arp(packet),
        EtherType::IPV4 if group && is_igmp(packet) => Kind::Igmp(packet),
        EtherType::IPV4 => {
            let (ip, payload) = ipv4::Repr::parse(packet)?;
            let between = (Gid::from_ipv4(ip.source), Gid::from_ipv4(ip.destination), vlan);
            let behind = network_offset.wrapping_add(ipv4::LENGTH);
            match ip.protocol {
                ipv4::PROTOCOL_UDP if is_joined(between.1) => {
                    datagram(between, ip.type_of_service, payload, behind)?
                }
                _ if !addresses.has_ipv4(vlan, ip.destination) => Kind::Foreign,
                ipv4::PROTOCOL_ICMP => Kind::Icmp(ip, payload),
                ipv4::PROTOCOL_UDP if !group => {
                    datagram(between, ip.type_of_service, payload, behind)?
                }
                _ => Kind::Foreign,
            }
        }
        EtherType::IPV6 => {
            let (ip, payload) = ipv6::Repr::parse(packet)?;
            let own = addresses.has_ipv6(vlan, ip.destination);
            let between = (Gid::from_ipv6(ip.source), Gid::from_ipv6(ip.destination), vlan);
            // RC-14
            let is_mapped = between.1.as_ipv4().is_some();
            match ip.next_header {
                ipv6::HOP_BY_HOP if group => Kind::Mld(ip, payload),
                ipv6::NEXT_HEADER_ICMPV6
                    if own || addresses.is_solicited_at(vlan, ip.destination) =>
                {
                    Kind::Ndp(ip, payload)
                }
                ipv6::NEXT_HEADER_UDP if !group && own || !is_mapped && is_joined(between.1) => {
                    let behind = network_offset.wrapping_add(ipv6::LENGTH);
                    datagram(between, ip.traffic_class, payload, behind)?
                }
                _ => Kind::Foreign,
            }
        }
        _ => Kind::Foreign,
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
    (source, destination, vlan): (Gid, Gid, u16),
    traffic_class: u8,
    payload: &[u8],
    offset: usize,
) -> Result<Kind<'_>, Malformed> {
    let (header, payload) = udp::Repr::parse(payload)?;
    // RC-3
    if header.destination_port != param::ROCE_UDP_PORT {
        return Ok(Kind::Foreign);
    }
    let offset = offset.wrapping_add(udp::LENGTH);
    let payload = offset..offset.wrapping_add(payload.len());
    let destination = Address { gid: destination, vlan };
    Ok(Kind::Roce(Envelope { source, destination, traffic_class, payload }))
}
