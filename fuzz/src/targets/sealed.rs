//! Frames for a card that takes sealed ones alone: only an unchanged frame that its peer has sealed opens, and only
//! once.

use std::net::IpAddr;

use arbitrary::Unstructured;
use psp::{Peer, Secret, Version, param};
use roce::wire::ethernet::{self, EtherType};
use roce::wire::{ipv4, udp};
use roce::{MacAddr, Psn, Qpn};
use softcard::Protection;
use softcard::sealing::{Opened, Sealed};

use super::frame::guided;
use crate::Outcome;

/// Bytes of a datagram's payload at most.
const LONGEST: usize = 200;

const CARDS: [[u8; 4]; 2] = [[10, 0, 0, 1], [10, 0, 0, 2]];

fn protection(version: Version, peer: [u8; 4]) -> Protection {
    let peer = Peer { addresses: vec![IpAddr::from(peer)], secret: Secret::new([7; 32]) };
    Protection { version, port: param::UDP_PORT, peers: vec![peer] }
}

/// A datagram of the peer's as its stack makes it.
fn plain(u: &mut Unstructured<'_>, port: u16) -> arbitrary::Result<Vec<u8>> {
    let length = u.int_in_range(0..=LONGEST)?.min(u.len());
    let payload = u.bytes(length)?;
    let [destination, source] = CARDS.map(|[.., last]| MacAddr([2, 0, 0, 0, 0, last]));
    let ethernet = ethernet::Repr { destination, source, tag: None, ethertype: EtherType::IPV4 };
    let header = ipv4::Repr {
        type_of_service: u.arbitrary()?,
        time_to_live: u.arbitrary()?,
        protocol: ipv4::PROTOCOL_UDP,
        source: CARDS[1].into(),
        destination: CARDS[0].into(),
        payload_length: (length + udp::LENGTH) as u16,
    };
    let udp = udp::Repr {
        source_port: u.arbitrary()?,
        destination_port: port,
        payload_length: length as u16,
    };
    let (ethernet, ip, udp) = (ethernet.to_bytes(), header.to_bytes(), udp.to_bytes());
    Ok([&ethernet[..], &ip, &udp, payload].concat())
}

pub fn run(u: &mut Unstructured<'_>) -> Outcome {
    let version = *u.choose(&Version::ALL)?;
    let (_, mut card) = protection(version, CARDS[1]).steps();
    let (mut peer, _) = protection(version, CARDS[0]).steps();
    while !u.is_empty() {
        if u.ratio(1, 3)? {
            // From a host without a key.
            let mut frame = guided(u)?;
            let length = u.int_in_range(0..=LONGEST)?.min(u.len());
            frame.extend_from_slice(u.bytes(length)?);
            let opened = card.open(&mut frame);
            assert!(!matches!(opened, Opened::Open { .. }), "a frame of nobody's: {opened:?}");
            continue;
        }
        // One that is not for RoCE's port is nothing that a peer seals, but may.
        let port = *u.choose(&[4791, 4791, 4791, 53])?;
        let before = plain(u, port)?;
        let mut frame = before.clone();
        frame.resize(before.len() + peer.length(), 0);
        let qpn: u32 = u.int_in_range(2..=0xff_fffe)?;
        let about = Sealed { psn: Psn::new(0), qpn: Qpn::new(qpn), attempt: 0, payload: None };
        assert!(peer.seal(&mut frame, &about), "it is not sealed");
        let mut changed = frame.clone();
        let at = u.int_in_range(0..=8 * frame.len() - 1)?;
        changed[at / 8] ^= 1 << (at % 8);
        // The seal does not cover Ethernet, and the fields of an IP header that routers change.
        let may_open = at / 8 < ethernet::LENGTH + ipv4::LENGTH + udp::LENGTH;
        match card.open(&mut changed) {
            Opened::Open { .. } => {
                assert!(may_open, "bit {at} was changed");
                continue;
            }
            Opened::Untouched | Opened::Refused => {}
        }
        let opened = card.open(&mut frame);
        if port != 4791 {
            assert_eq!(opened, Opened::Refused, "a datagram to another port");
            continue;
        }
        assert_eq!(opened, Opened::Open { length: before.len(), sender: Some(qpn) });
        assert_eq!(frame.get(..before.len()), Some(&before[..]), "another frame comes out");
    }
    Ok(())
}
