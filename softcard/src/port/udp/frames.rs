//! Frames of the card's as datagrams, and datagrams as frames.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use roce::MacAddr;
use roce::wire::difference::IPV4_IDENTIFICATION;
use roce::wire::ethernet::{self, EtherType};
use roce::wire::{ipv4, ipv6, udp};

use crate::port::Frame;

/// Where the IP header begins, behind an Ethernet header without a tag.
const IP: usize = ethernet::LENGTH;

/// Bytes of all headers.
const V4: usize = IP + ipv4::LENGTH + udp::LENGTH;
const V6: usize = IP + ipv6::LENGTH + udp::LENGTH;

/// Where a frame's headers end and its datagram's payload begins.
const fn behind_headers(is_ipv4: bool) -> usize {
    if is_ipv4 { V4 } else { V6 }
}

/// Two addresses between which datagrams pass. Both ends count between the same two, and hosts number their IPv4
/// datagrams so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Pair {
    /// The card's.
    pub(super) own: IpAddr,
    /// The host's, or a group.
    pub(super) peer: IpAddr,
}

/// The Ethernet addresses of a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Macs {
    pub(super) source: MacAddr,
    pub(super) destination: MacAddr,
}

/// The header fields of a frame that is a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Headers {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) source_port: u16,
    pub(super) destination_port: u16,
    pub(super) tos: u8,
    pub(super) ttl: u8,
}

impl Headers {
    /// The fields of a frame that the card's stack has made: without options, extensions or tag; `None` if it is no
    /// datagram to that port.
    pub(super) fn of(frame: &[u8], port: u16) -> Option<Self> {
        let (header, packet) = ethernet::Repr::parse(frame).ok()?;
        let (source, destination, tos, ttl, datagram) = match header.ethertype {
            EtherType::IPV4 if header.tag.is_none() => {
                let (ip, rest) = ipv4::Header::new(packet).ok()?;
                let is_plain = ip.header_length() == ipv4::LENGTH;
                (is_plain && ip.protocol() == ipv4::PROTOCOL_UDP).then_some(())?;
                let (tos, ttl) = (ip.type_of_service(), ip.time_to_live());
                (ip.source().into(), ip.destination().into(), tos, ttl, rest)
            }
            EtherType::IPV6 if header.tag.is_none() => {
                let (ip, rest) = ipv6::Header::new(packet).ok()?;
                (ip.next_header() == ipv6::NEXT_HEADER_UDP).then_some(())?;
                let (tos, ttl) = (ip.traffic_class(), ip.hop_limit());
                (ip.source().into(), ip.destination().into(), tos, ttl, rest)
            }
            _ => return None,
        };
        let (udp, _) = udp::Header::new(datagram).ok()?;
        let (source_port, destination_port) = (udp.source_port(), udp.destination_port());
        let headers = Self { source, destination, source_port, destination_port, tos, ttl };
        (destination_port == port).then_some(headers)
    }

    /// Between which two addresses a datagram of the card's passes.
    pub(super) fn sent_between(&self) -> Pair {
        Pair { own: self.source, peer: self.destination }
    }

    /// Where in the frame its UDP source port lies.
    pub(super) fn source_port_at(&self) -> usize {
        behind_headers(self.source.is_ipv4()).saturating_sub(udp::LENGTH)
    }

    /// Where the datagram's payload lies in a frame of that length.
    pub(super) fn payload(&self, length: usize) -> Range<usize> {
        behind_headers(self.source.is_ipv4())..length
    }

    /// Makes a frame between two Ethernet addresses of a datagram's payload; false where it is too long for one.
    pub(super) fn frame(&self, macs: Macs, payload: &[u8], frame: &mut Frame) -> bool {
        let headers = behind_headers(self.source.is_ipv4());
        let udp = udp::Repr {
            source_port: self.source_port,
            destination_port: self.destination_port,
            payload_length: payload.len() as u16,
        };
        if payload.len() > usize::from(u16::MAX)
            || !frame.set_len(headers.saturating_add(payload.len()))
        {
            return false;
        }
        let (ethertype, ip) = match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                (EtherType::IPV4, Ip::V4(self.ipv4(source, destination, payload.len())))
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                (EtherType::IPV6, Ip::V6(self.ipv6(source, destination, payload.len())))
            }
            _ => return false,
        };
        let Macs { source, destination } = macs;
        let ethernet = ethernet::Repr { destination, source, tag: None, ethertype };
        let ip: &[u8] = match &ip {
            Ip::V4(bytes) => bytes,
            Ip::V6(bytes) => bytes,
        };
        let parts = [&ethernet.to_bytes()[..], ip, &udp.to_bytes(), payload];
        let mut rest = frame.as_mut_slice();
        for part in parts {
            let Some((place, behind)) = rest.split_at_mut_checked(part.len()) else { return false };
            place.copy_from_slice(part);
            rest = behind;
        }
        true
    }

    fn ipv4(&self, source: Ipv4Addr, destination: Ipv4Addr, payload: usize) -> [u8; ipv4::LENGTH] {
        let header = ipv4::Repr {
            type_of_service: self.tos,
            time_to_live: self.ttl,
            protocol: ipv4::PROTOCOL_UDP,
            source,
            destination,
            payload_length: payload.saturating_add(udp::LENGTH) as u16,
        };
        header.to_bytes()
    }

    fn ipv6(&self, source: Ipv6Addr, destination: Ipv6Addr, payload: usize) -> [u8; ipv6::LENGTH] {
        let header = ipv6::Repr {
            traffic_class: self.tos,
            flow_label: 0,
            next_header: ipv6::NEXT_HEADER_UDP,
            hop_limit: self.ttl,
            source,
            destination,
            payload_length: payload.saturating_add(udp::LENGTH) as u16,
        };
        header.to_bytes()
    }
}

/// The bytes of an IP header.
enum Ip {
    V4([u8; ipv4::LENGTH]),
    V6([u8; ipv6::LENGTH]),
}

/// The identification of a frame over IPv4.
pub(super) fn identification(frame: &Frame) -> u16 {
    let at = frame.as_slice().get(IPV4_IDENTIFICATION..).and_then(<[u8]>::first_chunk::<2>);
    at.map_or(0, |bytes| u16::from_be_bytes(*bytes))
}

/// Gives a frame of ours 16 bits of its IPv4 header that its datagram had, and the header checksum that goes with them.
pub(super) fn put_back(frame: &mut Frame, at: usize, value: [u8; 2]) {
    const CHECKSUM: usize = IP + 10;
    let bytes = frame.as_mut_slice();
    let Some(place) = bytes.get_mut(at..).and_then(<[u8]>::first_chunk_mut::<2>) else { return };
    let before = std::mem::replace(place, value);
    if let Some(place) = bytes.get_mut(CHECKSUM..).and_then(<[u8]>::first_chunk_mut::<2>) {
        // RFC 1624.
        let terms =
            [!u16::from_be_bytes(*place), !u16::from_be_bytes(before), u16::from_be_bytes(value)];
        let sum = terms.into_iter().fold(0_u32, |sum, term| sum.saturating_add(term.into()));
        let folded = (sum & 0xffff).saturating_add(sum >> 16);
        let folded = (folded & 0xffff).saturating_add(folded >> 16);
        *place = (!(folded as u16)).to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use roce::param::ROCE_UDP_PORT;
    use roce::wire::difference::IPV4_FLAGS;

    use super::*;

    fn headers(ips: [&str; 2]) -> Headers {
        let [source, destination] = ips.map(|ip| ip.parse().unwrap());
        let (source_port, destination_port) = (0xc123, ROCE_UDP_PORT);
        Headers { source, destination, source_port, destination_port, tos: 0x6a, ttl: 17 }
    }

    #[test]
    fn a_datagram_becomes_a_frame_and_that_a_datagram() {
        let [source, destination] = [1, 2].map(|last| MacAddr([2, 0, 0, 0, 0, last]));
        let macs = Macs { source, destination };
        for ips in [["10.0.0.1", "10.0.0.2"], ["fe80::1", "2001:db8::2"]] {
            let headers = headers(ips);
            let mut frame = Frame::from_bytes(&[]).unwrap();
            assert!(headers.frame(macs, &[7; 60], &mut frame));
            assert_eq!(Headers::of(frame.as_slice(), ROCE_UDP_PORT), Some(headers));
            assert_eq!(Headers::of(frame.as_slice(), 1000), None);
            let payload = headers.payload(frame.as_slice().len());
            assert_eq!(frame.as_slice()[payload], [7; 60]);
            let port = headers.source_port_at();
            assert_eq!(frame.as_slice()[port..port + 2], [0xc1, 0x23]);
            assert!(!headers.frame(macs, &[7; 4400], &mut frame), "longer than any frame");
        }
    }

    #[test]
    fn a_frame_with_an_identification_has_the_checksum_for_it() {
        let [source, destination] = [1, 2].map(|last| MacAddr([2, 0, 0, 0, 0, last]));
        let macs = Macs { source, destination };
        for id in [1_u16, 63, 0xffff, 0x8001] {
            let mut frame = Frame::from_bytes(&[]).unwrap();
            assert!(headers(["10.0.0.1", "10.0.0.2"]).frame(macs, &[7; 60], &mut frame));
            put_back(&mut frame, IPV4_IDENTIFICATION, id.to_be_bytes());
            let of = |frame: &Frame| {
                let (header, _) = ipv4::Header::new(&frame.as_slice()[14..]).unwrap();
                (header.identification(), header.checksum_is_right())
            };
            assert_eq!(of(&frame), (id, true));
            put_back(&mut frame, IPV4_FLAGS, [0, 0]);
            assert_eq!(of(&frame), (id, true));
        }
    }

    #[test]
    fn other_frames_are_no_datagrams() {
        for bytes in [&[][..], &[0; 14], &[0xff; 60], &[0; 100]] {
            assert_eq!(Headers::of(bytes, ROCE_UDP_PORT), None);
        }
    }
}
