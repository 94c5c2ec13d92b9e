//! Frames: parsed without a panic, within their bounds, and back to the bytes they came from.

use arbitrary::Unstructured;
use roce::qos::pfc;
use roce::wire::{
    aeth, arp, bth, ethernet, extension, frame, icmpv4, icrc, ipv4, ipv6, ndp, reth, udp,
};

use crate::Outcome;

pub fn run(u: &mut Unstructured<'_>) -> Outcome {
    let mut bytes = guided(u)?;
    let rest = u.len();
    bytes.extend(u.bytes(rest)?);
    parse_all(&bytes);
    pauses(&mut bytes.clone());
    // A sealed frame passes the check, and one with a changed bit does not.
    let packet = bytes.get(ethernet::LENGTH..).unwrap_or_default();
    let is_ipv4 = bytes.get(12..14) == Some(&[8, 0]);
    let whole = ipv4::Repr::parse(packet)
        .is_ok_and(|(_, payload)| payload.len() + ipv4::LENGTH == packet.len());
    if is_ipv4 && whole && icrc::append(&mut bytes).is_ok() {
        assert!(icrc::check(&mut bytes), "a sealed frame does not pass its own check");
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        assert!(!icrc::check(&mut bytes), "a broken seal passes");
    }
    Ok(())
}

/// The beginning of a frame that gets further than random bytes do.
pub(super) fn guided(u: &mut Unstructured<'_>) -> arbitrary::Result<Vec<u8>> {
    let ethertype = *u.choose(&[0x0800_u16, 0x0806, 0x86dd, 0x8100])?;
    let mut bytes: Vec<u8> = u.bytes(12)?.to_vec();
    bytes.extend(ethertype.to_be_bytes());
    let length = u16::try_from(u.len()).unwrap_or(u16::MAX);
    match ethertype {
        0x0800 if u.ratio(3, 4)? => {
            let header = ipv4::Repr {
                type_of_service: u.arbitrary()?,
                time_to_live: u.arbitrary()?,
                protocol: *u.choose(&[ipv4::PROTOCOL_UDP, ipv4::PROTOCOL_ICMP, 6])?,
                source: u.arbitrary()?,
                destination: u.arbitrary()?,
                payload_length: if u.ratio(1, 2)? { length } else { u.int_in_range(0..=length)? },
            };
            bytes.extend(header.to_bytes());
        }
        0x86dd if u.ratio(3, 4)? => {
            let next_header = *u.choose(&[ipv6::NEXT_HEADER_UDP, ipv6::NEXT_HEADER_ICMPV6, 0])?;
            let [high, low] = u.int_in_range(0..=length)?.to_be_bytes();
            bytes.extend([0x60, 0, 0, 0, high, low, next_header, u.arbitrary()?]);
        }
        _ => {}
    }
    if u.ratio(1, 2)? {
        let source_port: u16 = u.arbitrary()?;
        bytes.extend(source_port.to_be_bytes());
        bytes.extend(4791_u16.to_be_bytes());
        let payload = u16::try_from(u.len()).unwrap_or(u16::MAX);
        bytes.extend(u.int_in_range(0..=payload)?.to_be_bytes());
        bytes.extend([0, 0]);
    }
    Ok(bytes)
}

/// Every parser, at the place where a frame would lead it and on the whole.
fn parse_all(bytes: &[u8]) {
    if let Ok((header, packet)) = ethernet::Repr::parse(bytes) {
        assert!(packet.len() < bytes.len());
        if header.tag.is_none() {
            assert_eq!(header.to_bytes(), bytes[..ethernet::LENGTH]);
        }
        network(packet);
    }
    network(bytes);
    let mut checked = bytes.to_vec();
    let _ = icrc::check(&mut checked);
    assert_eq!(checked, bytes, "the check left its mask in the frame");
}

/// Reads the pauses of a frame, as it is and made a pause frame: those that its bytes say, and none of another frame.
fn pauses(bytes: &mut [u8]) {
    let heads = [(0, &[0x01, 0x80, 0xc2, 0, 0, 1][..]), (12, &[0x88, 0x08, 0x01, 0x01])];
    let is_pause = |bytes: &[u8]| {
        let has = |(at, head): &(usize, &[u8])| bytes[*at..].starts_with(head);
        bytes.len() >= pfc::LENGTH && heads.iter().all(has)
    };
    assert_eq!(pfc::parse(bytes).is_some(), is_pause(bytes));
    if bytes.len() < pfc::LENGTH {
        return;
    }
    heads.iter().for_each(|(at, head)| bytes[*at..at + head.len()].copy_from_slice(head));
    let said = pfc::parse(bytes).expect("a pause frame");
    for (priority, quanta) in said.into_iter().enumerate() {
        let time = u16::from_be_bytes([bytes[18 + 2 * priority], bytes[19 + 2 * priority]]);
        assert_eq!(quanta, (bytes[17] >> priority & 1 == 1).then_some(time), "of {priority}");
    }
    assert_eq!(pfc::parse(&bytes[..pfc::LENGTH]), Some(said), "no byte behind says anything");
    assert_eq!(pfc::parse(&bytes[..pfc::LENGTH - 1]), None, "it is too short");
}

fn network(bytes: &[u8]) {
    if let Ok((header, payload)) = ipv4::Repr::parse(bytes) {
        assert_eq!(payload.len(), usize::from(header.payload_length));
        let (again, _) = ipv4::Repr::parse(&[&header.to_bytes()[..], payload].concat()).unwrap();
        assert_eq!(again, header, "IPv4 does not round trip");
        transport(payload);
        let _ = icmpv4::Repr::parse(payload);
    }
    if let Ok((header, payload)) = ipv6::Repr::parse(bytes) {
        assert_eq!(payload.len(), usize::from(header.payload_length));
        let (again, _) = ipv6::Repr::parse(&[&header.to_bytes()[..], payload].concat()).unwrap();
        assert_eq!(again, header, "IPv6 does not round trip");
        transport(payload);
        let _ = ndp::parse_solicitation(&header, payload);
    }
    if let Ok(packet) = arp::Repr::parse(bytes) {
        assert_eq!(arp::Repr::parse(&packet.to_bytes()), Ok(packet), "ARP does not round trip");
    }
    transport(bytes);
}

fn transport(bytes: &[u8]) {
    if let Ok((_, payload)) = udp::Repr::parse(bytes) {
        assert!(payload.len() <= bytes.len());
        packet(payload);
    }
    packet(bytes);
}

fn packet(bytes: &[u8]) {
    let Ok(repr) = frame::Repr::parse(bytes) else { return };
    let trailer = usize::from(repr.bth.pad_count) + icrc::LENGTH;
    assert!(repr.payload.start <= repr.payload.end, "the payload ends before it begins");
    assert_eq!(repr.payload.end + trailer, bytes.len(), "the payload is not all there is");
    assert_eq!(repr.payload.start, repr.opcode.header_length());
    let (again, _) = bth::Repr::parse(&repr.bth.to_bytes()).unwrap();
    assert_eq!(again, repr.bth, "BTH does not round trip");
    if let Some(header) = repr.reth {
        assert_eq!(reth::Repr::parse(&header.to_bytes()).unwrap().0, header);
    }
    if let Some(header) = repr.atomic {
        assert_eq!(extension::atomiceth::Repr::parse(&header.to_bytes()).unwrap().0, header);
    }
    if let Some(header) = repr.aeth {
        assert_eq!(aeth::Repr::parse(&header.to_bytes()).unwrap().0, header);
    }
}
