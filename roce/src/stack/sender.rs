//! Checks the queue pair from which a packet comes, if the port vouches for its number.

use super::Stack;
use super::input::Protocol;
use super::slots::Slot;
use crate::types::Qpn;
use crate::wire::bth;
use crate::wire::extension::deth;

impl Stack {
    /// Whether a RoCE packet to this port can come from the queue pair `sender` of its host: the peer of the connection that
    /// it is for, or the one that its datagram header names.
    ///
    /// A packet does not name the queue pair that it comes from. If its host names the queue pair truthfully, no
    /// program there can send on another's connection. True of packets that no queue pair takes.
    #[must_use]
    pub fn may_be_from(&self, frame: &[u8], sender: u32) -> bool {
        let Ok((_, Protocol::Roce(envelope))) = self.classify(frame) else { return true };
        let datagram = frame.get(envelope.payload).map(bth::Repr::parse);
        let Some(Ok((transport, rest))) = datagram else { return true };
        let slot = Qpn::new(transport.dest_qpn).and_then(|qpn| self.slot(qpn));
        let Some(occupant) = slot.and_then(|slot| self.slots.get(slot)) else { return true };
        if let Slot::Ud(_) = occupant {
            return deth::Repr::parse(rest).is_ok_and(|(header, _)| header.source_qpn == sender);
        }
        occupant
            .core()
            .is_none_or(|qp| qp.attributes.dest_qpn.is_some_and(|peer| peer.value() == sender))
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;
    use crate::opcode::code;
    use crate::wire::ethernet::{self, EtherType};
    use crate::wire::{ipv4, udp};
    use crate::{
        AccessFlags, AddressVector, Gid, Instant, MacAddr, PathMtu, Psn, QpAttributes, Service,
        StackConfig,
    };

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const IPS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 2), Ipv4Addr::new(10, 0, 0, 1)];

    /// A packet to a queue pair, with what follows its transport header.
    fn packet(opcode: u8, dest_qpn: u32, behind: &[u8]) -> Vec<u8> {
        let transport = bth::Repr { opcode, dest_qpn, ..bth::Repr::default() };
        let payload = [&transport.to_bytes()[..], behind, &[0; 4]].concat();
        let udp = udp::Repr {
            source_port: 0xc000,
            destination_port: 4791,
            payload_length: payload.len() as u16,
        };
        let ip = ipv4::Repr {
            type_of_service: 0,
            time_to_live: 64,
            protocol: ipv4::PROTOCOL_UDP,
            source: IPS[0],
            destination: IPS[1],
            payload_length: (payload.len() + udp::LENGTH) as u16,
        };
        let ethertype = EtherType::IPV4;
        let ethernet =
            ethernet::Repr { destination: MAC, source: MacAddr::default(), tag: None, ethertype };
        let headers = [&ethernet.to_bytes()[..], &ip.to_bytes(), &udp.to_bytes()].concat();
        [headers, payload].concat()
    }

    #[test]
    fn a_packet_comes_from_the_peer_of_its_connection_or_from_the_one_that_its_header_names() {
        let config = StackConfig {
            mac: MAC,
            ipv4: IPS[1],
            mtu_max: PathMtu::Mtu4096,
            icrc_policy: Default::default(),
        };
        let mut stack = Stack::new(config);
        let path = AddressVector::new(1, Gid::from_ipv4(IPS[0]));
        for (service, number) in [(Service::Rc, 0x11), (Service::Uc, 0x12), (Service::Ud, 0x13)] {
            let (qpn, peer) = (Qpn::new(number).unwrap(), Qpn::new(number + 0x100).unwrap());
            stack.create_qp(qpn, service, 0).unwrap();
            assert!(!stack.may_be_from(&packet(code::ACKNOWLEDGE, number, &[0; 4]), 0x111));
            if service == Service::Ud {
                continue;
            }
            let rtr = QpAttributes::to_rtr(path, PathMtu::Mtu1024, peer, Psn::default());
            let rtr = match service {
                Service::Rc => QpAttributes { min_rnr_timer: Some(1), ..rtr },
                _ => QpAttributes { max_dest_rd_atomic: None, min_rnr_timer: None, ..rtr },
            };
            for change in [QpAttributes::to_init(AccessFlags::all()), rtr] {
                stack.modify_qp(Instant(0), qpn, &change).unwrap();
            }
            for opcode in [code::ACKNOWLEDGE, code::CNP, 0xff] {
                let packet = packet(opcode, number, &[0; 16]);
                assert!(stack.may_be_from(&packet, peer.value()));
                assert!(!stack.may_be_from(&packet, 0x999) && !stack.may_be_from(&packet, number));
            }
        }
        let named = deth::Repr { qkey: 1, source_qpn: 0x77 }.to_bytes();
        let datagram = packet(0x64, 0x13, &named);
        assert!(stack.may_be_from(&datagram, 0x77) && !stack.may_be_from(&datagram, 0x78));
        // Those have no effect on a queue pair.
        assert!(stack.may_be_from(&packet(code::ACKNOWLEDGE, 0x14, &[0; 4]), 1));
        assert!(stack.may_be_from(&[0; 60], 1));
    }
}
