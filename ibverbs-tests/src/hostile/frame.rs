//! A frame of the connection manager's, as a peer on the cable sends it.

use std::net::Ipv4Addr;

use anyhow::{Context as _, Result};
use roce::wire::{bth, ethernet, extension::deth, icrc, ipv4, udp};
use roce::{MacAddr, Psn};

/// The opcode of a datagram's packet.
const SEND_ONLY: u8 = 0x64;

/// The sender of a frame, and its receiver.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// Their Ethernet addresses.
    pub macs: [[u8; 6]; 2],
    /// Their IPv4 addresses.
    pub addresses: [Ipv4Addr; 2],
}

/// A frame that carries a datagram from queue pair 1 to queue pair 1.
///
/// # Errors
/// Never: a datagram is shorter than a frame may be.
pub fn frame(datagram: &[u8; 256], ends: Ends) -> Result<Vec<u8>> {
    let ([from, to], [source, destination]) = (ends.macs.map(MacAddr), ends.addresses);
    let ethernet = ethernet::Repr {
        destination: to,
        source: from,
        tag: None,
        ethertype: ethernet::EtherType::IPV4,
    };
    let bth = bth::Repr {
        opcode: SEND_ONLY,
        migrated: true,
        pkey: 0xffff,
        dest_qpn: cm::param::QPN,
        psn: Psn::new(1),
        ..bth::Repr::default()
    };
    let deth = deth::Repr { qkey: cm::param::QKEY, source_qpn: cm::param::QPN };
    let packet = [&bth.to_bytes()[..], &deth.to_bytes(), datagram, &[0; icrc::LENGTH]].concat();
    let payload_length = u16::try_from(packet.len())?;
    let udp = udp::Repr { source_port: 0xc000, destination_port: 4791, payload_length };
    let ipv4 = ipv4::Repr {
        type_of_service: 0,
        time_to_live: 64,
        protocol: ipv4::PROTOCOL_UDP,
        source,
        destination,
        payload_length: payload_length + u16::try_from(udp::LENGTH)?,
    };
    let mut frame = [&ethernet.to_bytes()[..], &ipv4.to_bytes(), &udp.to_bytes(), &packet].concat();
    icrc::append(&mut frame).context("the frame is not whole")?;
    Ok(frame)
}
