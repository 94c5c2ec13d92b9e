//! Frames: the ones that the stack takes for its own, and the form of its own.

use libdeflater::Crc;

use crate::opcode::{self, AETH, RETH};

/// A port's addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The Ethernet address.
    pub mac: [u8; 6],
    /// The IPv4 address, as a number.
    pub ipv4: u32,
}

const ETHERNET: usize = 14;
const IPV4: usize = 20;
const UDP: usize = 8;
const BTH: usize = 12;
const ICRC: usize = 4;
const ARP: usize = 28;

const TYPE_IPV4: u16 = 0x0800;
const TYPE_ARP: u16 = 0x0806;
const PROTOCOL_UDP: u8 = 17;
const PORT: u16 = 4791;
const EVERYBODY: u32 = u32::MAX;

/// The headers behind the Base Transport Header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Extension {
    #[default]
    Nothing,
    Reth {
        vaddr: u64,
        rkey: u32,
        length: u32,
    },
    Aeth {
        syndrome: u8,
        msn: u32,
    },
}

/// A packet that was received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) opcode: u8,
    pub(crate) qpn: u32,
    pub(crate) psn: u32,
    pub(crate) extension: Extension,
    /// The bytes behind the Base Transport Header, without the invariant CRC.
    pub(crate) rest: Vec<u8>,
    /// Bytes of it that are payload.
    pub(crate) length: usize,
}

impl Packet {
    /// Whether it says that something was refused, as far as the stack can tell.
    // STOCK-16
    pub(crate) fn is_nak(&self) -> bool {
        matches!(self.extension, Extension::Aeth { syndrome, .. } if syndrome >> 5 & 3 == 3)
    }
}

/// A frame of the Address Resolution Protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arp {
    pub(crate) is_request: bool,
    pub(crate) mac: [u8; 6],
    pub(crate) ipv4: u32,
    pub(crate) target: u32,
}

/// The card's classification of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    Packet(Packet),
    Arp(Arp),
    Others,
}

fn be<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.get(..N)?.try_into().ok()
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    be(bytes, at).map(u16::from_be_bytes)
}

fn be24(bytes: &[u8], at: usize) -> Option<u32> {
    let [a, b, c] = be(bytes, at)?;
    Some(u32::from_be_bytes([0, a, b, c]))
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    be(bytes, at).map(u32::from_be_bytes)
}

/// The Internet checksum of a header; 0 for one that has its own in it.
fn checksum(header: &[u8]) -> u16 {
    let words = header.chunks_exact(2).filter_map(|pair| be16(pair, 0));
    let sum = words.fold(0u32, |sum, word| sum.wrapping_add(word.into()));
    let folded = (sum & 0xffff).wrapping_add(sum >> 16);
    !((folded & 0xffff).wrapping_add(folded >> 16) as u16)
}

impl Frame {
    /// Reads a frame without its check sequence; frames of other kinds, or too short, are [`Frame::Others`].
    pub(crate) fn parse(frame: &[u8], own: u32) -> Self {
        let parsed = match be16(frame, 12) {
            Some(TYPE_IPV4) => Self::packet(frame, own).map(Self::Packet),
            Some(TYPE_ARP) => Self::arp(frame).map(Self::Arp),
            _ => None,
        };
        parsed.unwrap_or(Self::Others)
    }

    fn arp(frame: &[u8]) -> Option<Arp> {
        let body = frame.get(ETHERNET..)?;
        let is_request = match be16(body, 6)? {
            1 => true,
            2 => false,
            _ => return None,
        };
        Some(Arp { is_request, mac: be(body, 8)?, ipv4: be32(body, 14)?, target: be32(body, 24)? })
    }

    /// Parses a packet. The card does not check its source, key, partition, version, pad count and invariant CRC.
    // STOCK-26
    fn packet(frame: &[u8], own: u32) -> Option<Packet> {
        let body = frame.get(ETHERNET..)?;
        let header = body.get(..IPV4)?;
        let target = be32(header, 16)?;
        let is_ours = header.first() == Some(&0x45)
            && checksum(header) == 0
            && header.get(9) == Some(&PROTOCOL_UDP)
            && (target == own || target == EVERYBODY);
        if !is_ours {
            return None;
        }
        let datagram = body.get(IPV4..usize::from(be16(header, 2)?))?;
        let length = usize::from(be16(datagram, 4)?);
        if be16(datagram, 2)? != PORT || length > datagram.len() {
            return None;
        }
        let packet = datagram.get(UDP..length)?;
        let opcode = *packet.first()?;
        let (qpn, psn) = (be24(packet, 5)?, be24(packet, 9)?);
        let rest = packet.get(BTH..packet.len().checked_sub(ICRC)?)?;
        let header = opcode::extension(opcode);
        let extension = if opcode::has_reth(opcode) {
            let (vaddr, rkey, length) =
                (u64::from_be_bytes(be(rest, 0)?), be32(rest, 8)?, be32(rest, 12)?);
            Extension::Reth { vaddr, rkey, length }
        } else if opcode::has_aeth(opcode) {
            let syndrome = *rest.first()?;
            Extension::Aeth { syndrome, msn: be24(rest, 1)? }
        } else {
            Extension::Nothing
        };
        let length = rest.len().checked_sub(header)?;
        Some(Packet { opcode, qpn, psn, extension, rest: rest.to_vec(), length })
    }
}

/// A packet to send.
pub(crate) struct Sent<'a> {
    pub(crate) to: ([u8; 6], u32),
    pub(crate) udp_port: u16,
    pub(crate) opcode: u8,
    pub(crate) asks: bool,
    pub(crate) qpn: u32,
    pub(crate) psn: u32,
    pub(crate) extension: Extension,
    /// Bytes of payload that its headers speak of.
    pub(crate) length: usize,
    pub(crate) payload: &'a [u8],
}

fn put24(frame: &mut Vec<u8>, value: u32) {
    let [_, bytes @ ..] = value.to_be_bytes();
    frame.extend(bytes);
}

impl Sent<'_> {
    /// The frame, with its invariant CRC.
    pub(crate) fn frame(&self, own: Identity) -> Vec<u8> {
        let extension = match self.extension {
            Extension::Nothing => 0,
            Extension::Reth { .. } => RETH,
            Extension::Aeth { .. } => AETH,
        };
        // Every addend is far below 2^16.
        let udp = [UDP, BTH, extension, self.length, ICRC].iter().sum::<usize>() as u16;
        let total = udp.saturating_add(IPV4 as u16);
        let mut frame = Vec::with_capacity(usize::from(total).saturating_add(ETHERNET));
        frame.extend(self.to.0);
        frame.extend(own.mac);
        frame.extend(TYPE_IPV4.to_be_bytes());
        let mut header = Vec::with_capacity(IPV4);
        header.extend([0x45, 0]);
        header.extend(total.to_be_bytes());
        header.extend([0, 0, 0, 0, 0x64, PROTOCOL_UDP, 0, 0]);
        header.extend(own.ipv4.to_be_bytes());
        header.extend(self.to.1.to_be_bytes());
        let sum = checksum(&header).to_be_bytes();
        if let Some(place) = header.get_mut(10..12) {
            place.copy_from_slice(&sum);
        }
        frame.extend(header);
        for word in [self.udp_port, PORT, udp, 0] {
            frame.extend(word.to_be_bytes());
        }
        frame.extend([self.opcode, 0, 0xff, 0xff, 0]);
        put24(&mut frame, self.qpn);
        frame.push(if self.asks { 0x80 } else { 0 });
        put24(&mut frame, self.psn);
        match self.extension {
            Extension::Nothing => {}
            Extension::Reth { vaddr, rkey, length } => {
                frame.extend(vaddr.to_be_bytes());
                frame.extend(rkey.to_be_bytes());
                frame.extend(length.to_be_bytes());
            }
            Extension::Aeth { syndrome, msn } => {
                frame.push(syndrome);
                put24(&mut frame, msn);
            }
        }
        frame.extend(self.payload);
        let icrc = icrc(frame.get(ETHERNET..).unwrap_or_default());
        frame.extend(icrc.to_le_bytes());
        frame
    }
}

/// The invariant CRC of a packet from its IPv4 header on.
fn icrc(packet: &[u8]) -> u32 {
    let mut masked = packet.to_vec();
    let (udp_checksum, reserved) = (26..28, 32..33);
    for range in [1..2, 8..9, 10..12, udp_checksum, reserved] {
        if let Some(bytes) = masked.get_mut(range) {
            bytes.fill(0xff);
        }
    }
    let mut crc = Crc::new();
    crc.update(&[0xff; 8]);
    crc.update(&masked);
    crc.sum()
}

impl Arp {
    /// The frame that asks everybody for an address, or answers an asker.
    pub(crate) fn frame(own: Identity, asker: Option<&Self>, target: u32) -> Vec<u8> {
        let (mac, operation) = match asker {
            Some(asker) => (asker.mac, 2u16),
            None => ([0xff; 6], 1u16),
        };
        let mut frame = Vec::with_capacity(ETHERNET.saturating_add(ARP));
        frame.extend(mac);
        frame.extend(own.mac);
        frame.extend(TYPE_ARP.to_be_bytes());
        for word in [1, TYPE_IPV4, 0x0604, operation] {
            frame.extend(word.to_be_bytes());
        }
        frame.extend(own.mac);
        frame.extend(own.ipv4.to_be_bytes());
        frame.extend(asker.map_or([0; 6], |asker| asker.mac));
        frame.extend(target.to_be_bytes());
        frame
    }
}
