//! The invariant CRC that ends every RoCE frame (specification, section 7.8.1, and annex A17).
//!
//! A CRC-32 over the IP packet, behind eight bytes of ones that stand for InfiniBand's local
//! header, with the fields that a router may change replaced by ones: type of service, time to
//! live and checksums of IPv4; traffic class, flow label and hop limit of IPv6; the UDP checksum;
//! the congestion byte of the Base Transport Header. Its four bytes are little-endian.

use super::ethernet::{self, EtherType};
use super::{Malformed, bth, ipv4, ipv6, udp};

/// The length of the invariant CRC.
pub const LENGTH: usize = 4;

/// Ones in place of InfiniBand's local routing header.
const LOCAL_HEADER: usize = 8;

/// Bytes from the ones to the end of the Base Transport Header.
const V4: usize = LOCAL_HEADER + ipv4::LENGTH + udp::LENGTH + bth::LENGTH;
const V6: usize = LOCAL_HEADER + ipv6::LENGTH + udp::LENGTH + bth::LENGTH;

/// The bits of these bytes that the CRC takes as ones.
// RC-1
const V4_MASK: [u8; V4] = {
    let mut network = [0; ipv4::LENGTH];
    network[ipv4::field::TYPE_OF_SERVICE] = 0xff;
    network[ipv4::field::TIME_TO_LIVE] = 0xff;
    ipv4::field::HEADER_CHECKSUM.put(&mut network, [0xff; 2]);
    mask(&network)
};
const V6_MASK: [u8; V6] = {
    let mut network = [0; ipv6::LENGTH];
    // All but the version.
    ipv6::field::VERSION_CLASS_FLOW.put(&mut network, 0x0fff_ffff_u32.to_be_bytes());
    network[ipv6::field::HOP_LIMIT] = 0xff;
    mask(&network)
};

/// The mask for a network header of which these bits are set.
#[expect(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "evaluated at compile time, where both are errors"
)]
const fn mask<const N: usize>(network: &[u8]) -> [u8; N] {
    let mut udp = [0; udp::LENGTH];
    udp::field::CHECKSUM.put(&mut udp, [0xff; 2]);
    let mut bth = [0; bth::LENGTH];
    bth[bth::field::FECN_BECN] = 0xff;
    let mut parts: &[&[u8]] = &[&[0xff; LOCAL_HEADER], network, &udp, &bth];
    let mut mask = [0; N];
    let mut at = 0;
    while let [part, others @ ..] = parts {
        let mut number = 0;
        while number < part.len() {
            mask[at] = part[number];
            at += 1;
            number += 1;
        }
        parts = others;
    }
    mask
}

/// Writes the invariant CRC into the last four bytes of `frame`, a whole frame without Ethernet
/// padding.
pub fn append(frame: &mut [u8]) -> Result<(), Malformed> {
    let (start, kind) = network_header(frame)?;
    let (body, place) =
        frame.split_last_chunk_mut::<LENGTH>().ok_or(Malformed::Truncated("ICRC"))?;
    *place = compute(body, start, kind)?;
    Ok(())
}

/// Whether the invariant CRC of `frame`, a whole frame, is right. Bytes after the IP packet are
/// Ethernet padding. The frame is changed meanwhile, and then as it was.
#[must_use]
pub fn check(frame: &mut [u8]) -> bool {
    difference(frame) == Some(0)
}

/// The difference of the invariant CRC of `frame`, a whole frame, from the right one, in the order of bits of
/// [`super::difference`]; `None` if it is no RoCE frame. Otherwise as [`check`].
#[must_use]
pub fn difference(frame: &mut [u8]) -> Option<u32> {
    let (start, kind) = network_header(frame).ok()?;
    let length = packet_length(frame.get(start..).unwrap_or_default(), kind)?;
    let whole = frame.get_mut(..start.checked_add(length)?)?;
    let (body, found) = whole.split_last_chunk_mut::<LENGTH>()?;
    let computed = compute(body, start, kind).ok()?;
    Some(u32::from_le_bytes(computed) ^ u32::from_le_bytes(*found))
}

/// The invariant CRC of a frame without it, whose network header is at `start`.
#[inline]
fn compute(frame: &mut [u8], start: usize, kind: Network) -> Result<[u8; LENGTH], Malformed> {
    // The ones take the place of the bytes before the network header: Ethernet's header is longer.
    let covered = start.checked_sub(LOCAL_HEADER).and_then(|start| frame.get_mut(start..));
    let covered = covered.unwrap_or_default();
    match kind {
        Network::V4 => compute_masked(covered, &V4_MASK),
        Network::V6 => compute_masked(covered, &V6_MASK),
    }
}

/// The CRC of bytes of which the first are masked.
///
/// They are masked in place: one pass over a frame takes less time than one over a masked copy of
/// its header and another one, which has to wait for the first, over the rest.
#[inline]
fn compute_masked<const N: usize>(
    covered: &mut [u8],
    mask: &[u8; N],
) -> Result<[u8; LENGTH], Malformed> {
    let head = covered.first_chunk_mut::<N>().ok_or(Malformed::Truncated("BTH"))?;
    let before = *head;
    for (byte, bits) in head.iter_mut().zip(mask) {
        *byte |= bits;
    }
    let crc = libdeflater::crc32(covered);
    if let Some(head) = covered.first_chunk_mut::<N>() {
        *head = before;
    }
    Ok(crc.to_le_bytes())
}

/// The kind of a frame's network header.
#[derive(Clone, Copy)]
enum Network {
    V4,
    V6,
}

/// Where the network header of a frame begins, and which it is.
#[inline]
fn network_header(frame: &[u8]) -> Result<(usize, Network), Malformed> {
    let (header, rest) = ethernet::Header::new(frame)?;
    let (start, ethertype) = match header.ethertype() {
        EtherType::VLAN => match *rest {
            [_, _, hi, lo, ..] => (
                ethernet::LENGTH.wrapping_add(ethernet::TAG_LENGTH),
                EtherType(u16::from_be_bytes([hi, lo])),
            ),
            _ => return Err(Malformed::Truncated("802.1Q")),
        },
        other => (ethernet::LENGTH, other),
    };
    match ethertype {
        EtherType::IPV4 => Ok((start, Network::V4)),
        EtherType::IPV6 => Ok((start, Network::V6)),
        _ => Err(Malformed::Version("Ethernet")),
    }
}

/// The length of an IP packet, which Ethernet padding may follow.
#[inline]
fn packet_length(packet: &[u8], kind: Network) -> Option<usize> {
    match kind {
        Network::V4 => Some(ipv4::Header::new(packet).ok()?.0.total_length().into()),
        Network::V6 => usize::from(ipv6::Header::new(packet).ok()?.0.payload_length())
            .checked_add(ipv6::LENGTH),
    }
}

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
            let mut frame = bytes(hex);
            assert!(check(&mut frame), "{hex}");
            assert_eq!(frame, bytes(hex), "the check leaves the frame as it was");
            let mut again = frame.clone();
            let end = again.len();
            again[end - 4..].fill(0);
            append(&mut again).unwrap();
            assert_eq!(again, frame);
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
            assert_eq!(check(&mut changed), masked.contains(&at), "byte {at}");
        }
    }

    #[test]
    fn ethernet_padding_is_not_part_of_the_frame() {
        let mut frame = bytes(FRAMES[3]);
        frame.extend([0; 7]);
        assert!(check(&mut frame));
    }

    #[test]
    fn short_and_foreign_frames_are_refused() {
        for hex in FRAMES {
            let mut frame = bytes(hex);
            for length in 0..frame.len() {
                assert!(!check(&mut frame[..length]));
            }
        }
        assert!(append(&mut [0; 3]).is_err());
        assert!(append(&mut [0; 80]).is_err());
    }
}
