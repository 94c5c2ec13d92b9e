//! The header of a frame to send, in one inline buffer.

use core::fmt;

use crate::wire::extension::{atomiceth, xrceth};
use crate::wire::{bth, checksum_finish, ethernet, ipv4, ipv6, udp};

/// The longest header: Ethernet with a tag, IPv6, UDP, BTH, XRCETH and AtomicETH.
const INLINE: usize = ethernet::LENGTH
    + ethernet::TAG_LENGTH
    + ipv6::LENGTH
    + udp::LENGTH
    + bth::LENGTH
    + xrceth::LENGTH
    + atomiceth::LENGTH;

/// Header bytes of one frame. Headers of RoCE frames need no allocation; the rare ARP and ICMP
/// answers, which are whole frames, are boxed.
#[derive(Clone)]
pub struct HeaderBuffer(Bytes);

#[derive(Clone)]
enum Bytes {
    Inline { bytes: [u8; INLINE], length: u8 },
    Whole(Box<[u8]>),
}

impl HeaderBuffer {
    /// A header that begins with these bytes; it holds many more.
    #[inline]
    pub(crate) fn beginning<const N: usize>(first: &[u8; N]) -> Self {
        const { assert!(N <= INLINE) };
        let mut bytes = [0; INLINE];
        if let Some(place) = bytes.first_chunk_mut() {
            *place = *first;
        }
        Self(Bytes::Inline { bytes, length: N as u8 })
    }

    /// A whole frame.
    pub(crate) fn whole(frame: Vec<u8>) -> Self {
        Self(Bytes::Whole(frame.into_boxed_slice()))
    }

    /// Appends `more`; headers never exceed the buffer, so nothing is ever cut off.
    #[inline]
    pub(crate) fn push(&mut self, more: &[u8]) {
        if let Bytes::Inline { bytes, length } = &mut self.0 {
            let start = usize::from(*length);
            let end = start.wrapping_add(more.len());
            if let Some(place) = bytes.get_mut(start..end) {
                place.copy_from_slice(more);
                *length = end as u8;
            }
        }
    }

    /// Inserts `more` at an offset; the bytes from there on move behind it.
    pub(crate) fn insert(&mut self, offset: usize, more: &[u8]) {
        if let Bytes::Inline { bytes, length } = &mut self.0 {
            let end = usize::from(*length).wrapping_add(more.len());
            let behind = bytes.get_mut(offset..end);
            if let Some(behind) = behind.filter(|behind| behind.len() >= more.len()) {
                behind.rotate_right(more.len());
                for (place, byte) in behind.iter_mut().zip(more) {
                    *place = *byte;
                }
                *length = end as u8;
            }
        }
    }

    /// Changes the traffic class, or type of service, of an IP packet, and the checksum with it (RFC 1624).
    pub(crate) fn change_class(&mut self, change: impl FnOnce(u8) -> u8) {
        let Bytes::Inline { bytes, .. } = &mut self.0 else { return };
        let tag = ethernet::EtherType::VLAN.0.to_be_bytes();
        let tagged = bytes.get(ethernet::TAG_OFFSET..).is_some_and(|it| it.starts_with(&tag));
        let network = match tagged {
            true => ethernet::LENGTH.wrapping_add(ethernet::TAG_LENGTH),
            false => ethernet::LENGTH,
        };
        let Some(ip) = bytes.get_mut(network..).and_then(<[u8]>::first_chunk_mut) else { return };
        change_class(ip, change);
    }

    /// The bytes, Ethernet header first.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        match &self.0 {
            Bytes::Inline { bytes, length } => {
                bytes.get(..usize::from(*length)).unwrap_or_default()
            }
            Bytes::Whole(frame) => frame,
        }
    }
}

/// The same, of an IPv4 or IPv6 header by its first bytes.
fn change_class(ip: &mut [u8; ipv4::LENGTH], change: impl FnOnce(u8) -> u8) {
    let [first, second, ..] = *ip;
    let before = u16::from_be_bytes([first, second]);
    if first >> 4 == 4 {
        ip[ipv4::field::TYPE_OF_SERVICE] = change(second);
        let after = u16::from_be_bytes([first, ip[ipv4::field::TYPE_OF_SERVICE]]);
        let checksum = u16::from_be_bytes(*ipv4::field::HEADER_CHECKSUM.of(ip));
        let sum = [!checksum, !before, after].map(u32::from).iter().sum();
        ipv4::field::HEADER_CHECKSUM.put(ip, checksum_finish(sum).to_be_bytes());
    } else {
        // Four bits of version, eight of class, and the first four of the flow label.
        let class = change((before >> 4) as u8);
        let after = before & 0xf00f | u16::from(class) << 4;
        [ip[0], ip[1]] = after.to_be_bytes();
    }
}

impl fmt::Debug for HeaderBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HeaderBuffer(")?;
        for byte in self.as_slice() {
            write!(f, "{byte:02x}")?;
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_grow() {
        let mut header = HeaderBuffer::beginning(&[1, 2, 3]);
        header.push(&[4, 0xaf]);
        assert_eq!(header.as_slice(), [1, 2, 3, 4, 0xaf]);
        assert_eq!(format!("{header:?}"), "HeaderBuffer(01020304af)");
        header.insert(1, &[9, 8]);
        assert_eq!(header.as_slice(), [1, 9, 8, 2, 3, 4, 0xaf]);
        header.insert(7, &[7]);
        assert_eq!(header.as_slice(), [1, 9, 8, 2, 3, 4, 0xaf, 7]);
    }

    #[test]
    fn a_class_is_changed_with_its_checksum_and_nothing_else_is() {
        let header = |tagged: bool, ip: &[u8]| {
            let ethertype = if ip[0] >> 4 == 4 { [8, 0] } else { [0x86, 0xdd] };
            let tag: &[u8] = if tagged { &[0x81, 0, 0x60, 1] } else { &[] };
            let mut header = HeaderBuffer::beginning(&[0x55; ethernet::TAG_OFFSET]);
            [tag, &ethertype, ip, &[0xaa; 8]].iter().for_each(|part| header.push(part));
            header
        };
        for (from, to) in [(0, 2), (2, 0), (106, 192), (0xff, 1), (0x1a, 0x1a), (0, 0xff)] {
            let v4 = |type_of_service| {
                let (source, destination) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
                let (time_to_live, protocol, payload_length) = (64, 17, 1000);
                ipv4::Repr {
                    type_of_service,
                    time_to_live,
                    protocol,
                    source,
                    destination,
                    payload_length,
                }
                .to_bytes()
            };
            let v6 = |traffic_class| {
                let own = core::net::Ipv6Addr::LOCALHOST;
                ipv6::Repr {
                    traffic_class,
                    flow_label: 0xa_5a5a,
                    next_header: 17,
                    hop_limit: 64,
                    source: own,
                    destination: own,
                    payload_length: 1000,
                }
                .to_bytes()
            };
            for tagged in [false, true] {
                let mut changed = header(tagged, &v4(from));
                changed.change_class(|class| if class == from { to } else { panic!("{class}") });
                assert_eq!(changed.as_slice(), header(tagged, &v4(to)).as_slice(), "{from} {to}");
                let mut changed = header(tagged, &v6(from));
                changed.change_class(|class| if class == from { to } else { panic!("{class}") });
                assert_eq!(changed.as_slice(), header(tagged, &v6(to)).as_slice(), "{from} {to}");
            }
        }
    }
}
