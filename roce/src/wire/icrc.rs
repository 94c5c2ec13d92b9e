//! The invariant CRC that ends every RoCE frame (specification, section 7.8.1, and annex A17).
//!
//! A CRC-32 over the IP packet, behind eight bytes of ones that stand for InfiniBand's local
//! header, with the fields that a router may change replaced by ones: type of service, time to
//! live and checksums of IPv4; traffic class, flow label and hop limit of IPv6; the UDP checksum;
//! the congestion byte of the Base Transport Header. Its four bytes are little-endian.

use std::sync::LazyLock;

use super::ethernet::{self, EtherType};
use super::{Malformed, bth, ipv4, ipv6, udp};

/// The length of the invariant CRC.
pub const LENGTH: usize = 4;

/// Ones in place of InfiniBand's local routing header.
const LOCAL_HEADER: usize = 8;

/// Bytes of UDP and Base Transport Header, which follow the network header.
const TRANSPORT: usize = udp::LENGTH + bth::LENGTH;

/// Bytes of the network and transport headers, of which some are masked.
const V4: usize = ipv4::LENGTH + TRANSPORT;
const V6: usize = ipv6::LENGTH + TRANSPORT;

/// A CRC of nothing yet, with the way of computing it that this processor is best at.
static EMPTY: LazyLock<crc32fast::Hasher> = LazyLock::new(crc32fast::Hasher::new);

/// A running invariant CRC, for frames whose payload lies apart from their header.
#[derive(Clone, Debug)]
pub struct Icrc(crc32fast::Hasher);

impl Icrc {
    /// Begins with `header`: a frame's first bytes, from the Ethernet header to at least the end
    /// of the Base Transport Header.
    pub fn start(header: &[u8]) -> Result<Self, Malformed> {
        let (packet, kind) = network_packet(header)?;
        Self::start_packet(packet, kind)
    }

    /// Begins with a frame's first bytes from the network header on.
    #[inline]
    fn start_packet(packet: &[u8], kind: Network) -> Result<Self, Malformed> {
        let cut = Malformed::Truncated("BTH");
        let mut hasher = EMPTY.clone();
        let rest = match kind {
            Network::V4 => {
                let (head, rest) = packet.split_first_chunk::<V4>().ok_or(cut)?;
                hasher.update(&masked_v4(head));
                rest
            }
            Network::V6 => {
                let (head, rest) = packet.split_first_chunk::<V6>().ok_or(cut)?;
                hasher.update(&masked_v6(head));
                rest
            }
        };
        hasher.update(rest);
        Ok(Self(hasher))
    }

    /// Goes on with the next bytes of the frame.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The four bytes that end the frame.
    #[must_use]
    pub fn finish(self) -> [u8; LENGTH] {
        self.0.finalize().to_le_bytes()
    }
}

/// Writes the invariant CRC into the last four bytes of `frame`, a whole frame without Ethernet
/// padding.
pub fn append(frame: &mut [u8]) -> Result<(), Malformed> {
    let (body, place) =
        frame.split_last_chunk_mut::<LENGTH>().ok_or(Malformed::Truncated("ICRC"))?;
    *place = Icrc::start(body)?.finish();
    Ok(())
}

/// Whether the invariant CRC of `frame`, a whole frame, is right. Bytes after the IP packet are
/// Ethernet padding.
#[must_use]
pub fn check(frame: &[u8]) -> bool {
    let Ok((packet, kind)) = network_packet(frame) else { return false };
    let found = unpadded(packet, kind).and_then(<[u8]>::split_last_chunk::<LENGTH>);
    let Some((body, found)) = found else { return false };
    Icrc::start_packet(body, kind).is_ok_and(|icrc| icrc.finish() == *found)
}

/// Which network header a frame has.
#[derive(Clone, Copy)]
enum Network {
    V4,
    V6,
}

/// A frame from its network header on, and which one that is.
#[inline]
fn network_packet(frame: &[u8]) -> Result<(&[u8], Network), Malformed> {
    let (header, rest) = ethernet::Header::new(frame)?;
    let (packet, ethertype) = match header.ethertype() {
        EtherType::VLAN => match rest {
            [_, _, hi, lo, packet @ ..] => (packet, EtherType(u16::from_be_bytes([*hi, *lo]))),
            _ => return Err(Malformed::Truncated("802.1Q")),
        },
        other => (rest, other),
    };
    match ethertype {
        EtherType::IPV4 => Ok((packet, Network::V4)),
        EtherType::IPV6 => Ok((packet, Network::V6)),
        _ => Err(Malformed::Version("Ethernet")),
    }
}

/// The packet without Ethernet padding.
#[inline]
fn unpadded(packet: &[u8], kind: Network) -> Option<&[u8]> {
    let length = match kind {
        Network::V4 => usize::from(ipv4::Header::new(packet).ok()?.0.total_length()),
        Network::V6 => usize::from(ipv6::Header::new(packet).ok()?.0.payload_length())
            .checked_add(ipv6::LENGTH)?,
    };
    packet.get(..length)
}

/// The local header and the first headers of an IPv4 packet, masked.
// RC-1
#[inline]
fn masked_v4(head: &[u8; V4]) -> [u8; LOCAL_HEADER + V4] {
    let mut masked = [0xff; LOCAL_HEADER + V4];
    if let Some(body) = masked.last_chunk_mut::<V4>() {
        *body = *head;
        body[1] = 0xff;
        body[8] = 0xff;
        body[10] = 0xff;
        body[11] = 0xff;
        body[ipv4::LENGTH + UDP_CHECKSUM] = 0xff;
        body[ipv4::LENGTH + UDP_CHECKSUM + 1] = 0xff;
        body[ipv4::LENGTH + CONGESTION] = 0xff;
    }
    masked
}

/// The local header and the first headers of an IPv6 packet, masked.
// RC-1
#[inline]
fn masked_v6(head: &[u8; V6]) -> [u8; LOCAL_HEADER + V6] {
    let mut masked = [0xff; LOCAL_HEADER + V6];
    if let Some(body) = masked.last_chunk_mut::<V6>() {
        *body = *head;
        body[0] |= 0x0f;
        body[1] = 0xff;
        body[2] = 0xff;
        body[3] = 0xff;
        body[7] = 0xff;
        body[ipv6::LENGTH + UDP_CHECKSUM] = 0xff;
        body[ipv6::LENGTH + UDP_CHECKSUM + 1] = 0xff;
        body[ipv6::LENGTH + CONGESTION] = 0xff;
    }
    masked
}

/// Where masked bytes lie behind the network header.
const UDP_CHECKSUM: usize = 6;
const CONGESTION: usize = udp::LENGTH + 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len() / 2)
            .map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap())
            .collect()
    }

    /// Whole frames with the invariant CRC that other implementations computed: the first with a
    /// real card's (0x78f353f3), the others built with an independent packet library.
    const FRAMES: [&str; 4] = [
        "248a07a8fa22248a07a8fa22080045010040047840004011b4d5c0a80007c0a80007c00012b7002ccaca2460\
         ffff000000d300cf17104630818be28935d90e9a95505401be885e50000078f353f3",
        "0200000000020200000000010800456a0044000040002511413d0a0000010a000002c12312b7003000000a70\
         ffff00abcdef801234561122334455667788deadbeef0000000568656c6c6f0000000b508fa1",
        "02000000000202000000000186dd6a31234500281109fe80000000000000000000fffe000001fe8000000000\
         0000000000fffe000002c12312b7002800000c40ffffc000001280ffffff1122334455667788deadbeef0000\
         000573a86baf",
        "0200000000020200000000018100600008004500003000004000401126bb0a0000010a000002c00012b7001c\
         00001140ffff00abcdef000000071f000001ef0bac49",
    ];

    /// RC-1.
    #[test]
    fn the_crc_equals_that_of_other_implementations() {
        for hex in FRAMES {
            let frame = bytes(hex);
            assert!(check(&frame), "{hex}");
            let mut again = frame.clone();
            let end = again.len();
            again[end - 4..].fill(0);
            append(&mut again).unwrap();
            assert_eq!(again, frame);
        }
    }

    #[test]
    fn the_crc_may_be_computed_in_pieces() {
        let frame = bytes(FRAMES[1]);
        for cut in 54..frame.len() - 4 {
            let mut icrc = Icrc::start(&frame[..cut]).unwrap();
            icrc.update(&frame[cut..frame.len() - 4]);
            assert_eq!(icrc.finish(), frame[frame.len() - 4..], "cut at {cut}");
        }
    }

    /// RC-1.
    #[test]
    fn fields_that_routers_change_do_not_count_and_all_others_do() {
        // Bytes of the second frame (IPv4 at 14, UDP at 34, BTH at 42) that are masked.
        let masked = [15, 22, 24, 25, 40, 41, 46];
        let frame = bytes(FRAMES[1]);
        for at in 18..frame.len() {
            let mut changed = frame.clone();
            changed[at] ^= 0x10;
            assert_eq!(check(&changed), masked.contains(&at), "byte {at}");
        }
    }

    #[test]
    fn ethernet_padding_is_not_part_of_the_frame() {
        let mut frame = bytes(FRAMES[3]);
        frame.extend([0; 7]);
        assert!(check(&frame));
    }

    #[test]
    fn short_and_foreign_frames_are_refused() {
        for hex in FRAMES {
            let frame = bytes(hex);
            for length in 0..frame.len() {
                assert!(!check(&frame[..length]));
            }
        }
        assert!(append(&mut [0; 3]).is_err());
        assert!(append(&mut [0; 80]).is_err());
    }
}
