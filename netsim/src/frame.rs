//! Frames under way: headers by bytes, payload by length, or by bytes as well where they matter.

use roce::{MacAddr, ReceivedFrame, Transmit};
use trial::rng::mix;

/// Header bytes that a frame holds in place; bytes behind them, if they matter, lie elsewhere.
const HEADER: usize = 80;

/// Bytes of a frame check sequence.
const FCS: u32 = 4;

/// The shortest frame, without its check sequence.
const SHORTEST: u32 = 60;

/// Bytes that a frame takes of a wire besides: preamble, start, and the gap to the next one.
const GAP: u32 = 20;

/// Class selector bits of the traffic class, which say the priority.
pub(crate) const PRIORITY_SHIFT: u8 = 5;

pub use roce::PRIORITIES;

/// A frame under way.
///
/// More may be under way than a cache holds: what switches read of one is in its first line.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct Frame {
    /// The host that it goes to; [`Frame::NOWHERE`] for a group's address.
    pub destination: u32,
    /// A hash of the addresses, the protocol and the ports.
    pub hash: u32,
    /// The host that sent it; [`Frame::NOWHERE`] for a switch.
    pub from: u32,
    /// The port by which it came to where it is.
    pub ingress: u32,
    /// Bytes of the whole frame, without its check sequence.
    pub length: u32,
    /// The bit that a cable flipped, counted from the first byte's lowest.
    pub flipped: Option<u16>,
    /// The priority of the queue that it waits in.
    pub priority: u8,
    header_length: u8,
    header: [u8; HEADER],
    /// The bytes behind the header, if they matter; zeros otherwise.
    bytes: Option<Box<[u8]>>,
}

impl Frame {
    /// The destination of frames that no single host receives.
    pub const NOWHERE: u32 = u32::MAX;

    /// A frame whose first bytes these are, of so many bytes as a whole.
    #[must_use]
    pub fn new(first: &[u8], length: usize) -> Self {
        let (head, rest) = first.split_at(first.len().min(HEADER));
        let mut header = [0; HEADER];
        header[..head.len()].copy_from_slice(head);
        let mut frame = Self {
            destination: host_of(head),
            hash: 0,
            from: Self::NOWHERE,
            ingress: u32::MAX,
            length: length.max(first.len()) as u32,
            flipped: None,
            priority: 0,
            header_length: head.len() as u8,
            header,
            bytes: (!rest.is_empty()).then(|| rest.into()),
        };
        frame.hash = frame.flow_hash();
        frame.priority = frame.traffic_class().map_or(0, |class| class >> PRIORITY_SHIFT);
        frame
    }

    /// The frame of a packet that a transport emitted; its payload is a length only.
    #[must_use]
    pub fn of(transmit: &Transmit) -> Self {
        Self::new(transmit.header.as_slice(), transmit.frame_length())
    }

    /// The bytes that it is known by.
    #[must_use]
    pub fn header(&self) -> &[u8] {
        &self.header[..usize::from(self.header_length)]
    }

    /// Whether all its bytes are there: its payload is not a length only.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let rest = self.bytes.as_ref().map_or(0, |bytes| bytes.len());
        usize::from(self.header_length) + rest == self.length as usize
    }

    /// Bytes in a buffer: with padding and check sequence.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.length.max(SHORTEST) + FCS
    }

    /// Bytes' worth of time on a wire.
    #[must_use]
    pub fn wire_length(&self) -> u32 {
        self.size() + GAP
    }

    /// Writes the whole frame into the first [`Frame::length`] bytes of `buffer`, which are made to be that
    /// many, and gives them. Bytes that do not matter keep their values.
    pub fn write<'a>(&self, buffer: &'a mut Vec<u8>) -> &'a mut [u8] {
        let length = self.length as usize;
        if buffer.len() < length {
            buffer.resize(length, 0);
        }
        let header = self.header();
        buffer[..header.len()].copy_from_slice(header);
        if let Some(bytes) = &self.bytes {
            buffer[header.len()..][..bytes.len()].copy_from_slice(bytes);
        }
        &mut buffer[..length]
    }

    /// Flips a bit, counted from the first byte's lowest. Where the frame goes, and how it waits, was decided before.
    pub fn flip(&mut self, bit: u16) {
        let (byte, mask) = (usize::from(bit / 8), 1 << (bit % 8));
        let rest = self.bytes.as_deref_mut().unwrap_or_default();
        match byte.checked_sub(usize::from(self.header_length)) {
            None => self.header[byte] ^= mask,
            Some(byte) => rest[byte] ^= mask,
        }
        self.flipped = Some(bit);
    }

    /// Whether it asks or says where a host is.
    #[must_use]
    pub fn is_arp(&self) -> bool {
        self.header[12..14] == [0x08, 0x06]
    }

    /// Where the network header begins, and which it is.
    fn network(&self) -> (usize, [u8; 2]) {
        match self.header[12..14] {
            [0x81, 0x00] => (18, [self.header[16], self.header[17]]),
            ref ethertype => (14, [ethertype[0], ethertype[1]]),
        }
    }

    /// The traffic class, or type of service, of an IP packet.
    #[must_use]
    pub fn traffic_class(&self) -> Option<u8> {
        let (at, ethertype) = self.network();
        match ethertype {
            [0x08, 0x00] => Some(self.header[at + 1]),
            [0x86, 0xdd] => Some(self.header[at] << 4 | self.header[at + 1] >> 4),
            _ => None,
        }
    }

    /// Whether it is marked "congestion experienced".
    #[must_use]
    pub fn is_marked(&self) -> bool {
        self.traffic_class().is_some_and(|class| class & 3 == 3)
    }

    /// Marks it "congestion experienced", as a switch does, if its sender allows that (RFC 3168). The
    /// invariant CRC does not cover the changed bits.
    pub fn mark(&mut self) -> bool {
        let (at, ethertype) = self.network();
        if !self.traffic_class().is_some_and(|class| matches!(class & 3, 1 | 2)) {
            return false;
        }
        if ethertype == [0x86, 0xdd] {
            self.header[at + 1] |= 0x30;
            return true;
        }
        self.header[at + 1] |= 3;
        let checksum = at + 10..at + 12;
        self.header[checksum.clone()].fill(0);
        let words = self.header[at..at + 20].chunks_exact(2);
        let sum: u32 = words.map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        self.header[checksum].copy_from_slice(&sum.to_be_bytes());
        true
    }

    /// A hash of the fields that tell flows apart: addresses, protocol and ports.
    fn flow_hash(&self) -> u32 {
        let (at, ethertype) = self.network();
        let tuple = match ethertype {
            [0x08, 0x00] => &self.header[at + 12..at + 24],
            [0x86, 0xdd] => &self.header[at + 8..at + 44],
            _ => return 0,
        };
        let hash = tuple.chunks_exact(4).fold(0x9e37_79b9_7f4a_7c15_u64, |hash, word| {
            let word = u32::from_be_bytes([word[0], word[1], word[2], word[3]]);
            mix(hash ^ u64::from(word))
        });
        (hash >> 32) as u32
    }
}

/// The first two bytes of hosts' Ethernet addresses; their number follows.
const PREFIX: [u8; 2] = [2, 0];

/// The Ethernet address of a host.
#[must_use]
pub const fn mac_of(host: u32) -> MacAddr {
    let [a, b, c, d] = host.to_be_bytes();
    MacAddr([PREFIX[0], PREFIX[1], a, b, c, d])
}

/// The host that a frame goes to.
fn host_of(header: &[u8]) -> u32 {
    match *header {
        [a, b, c, d, e, f, ..] if [a, b] == PREFIX => u32::from_be_bytes([c, d, e, f]),
        _ => Frame::NOWHERE,
    }
}

/// A frame that has come to a host.
#[derive(Clone, Debug, Default)]
pub struct Received {
    /// The frame is the first bytes of this.
    buffer: Vec<u8>,
    length: usize,
    /// The bit that a cable flipped, counted from the first byte's lowest.
    pub flipped: Option<u16>,
    /// The host has sent it itself.
    pub is_looped: bool,
    /// Whether its invariant CRC is taken to be right, for its payload is a length only, and no host reads it.
    is_vouched_for: bool,
}

impl Received {
    /// Takes the bytes of a frame that a host receives.
    pub(crate) fn set(&mut self, frame: &Frame, host: u32) {
        self.length = frame.write(&mut self.buffer).len();
        self.flipped = frame.flipped;
        self.is_looped = frame.from == host;
        self.is_vouched_for = !frame.is_whole();
    }
}

impl ReceivedFrame for Received {
    fn bytes(&self) -> &[u8] {
        &self.buffer[..self.length]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[..self.length]
    }

    fn is_vouched_for(&self) -> bool {
        self.is_vouched_for
    }

    fn is_looped(&self) -> bool {
        self.is_looped
    }
}

impl From<Vec<u8>> for Received {
    fn from(buffer: Vec<u8>) -> Self {
        Self { length: buffer.len(), buffer, ..Self::default() }
    }
}

/// Frames by number: as many are kept as ever were under way at a time.
#[derive(Debug, Default)]
pub struct Frames {
    slots: Vec<Frame>,
    free: Vec<u32>,
}

impl Frames {
    /// Takes a frame in.
    pub fn insert(&mut self, frame: Frame) -> u32 {
        match self.free.pop() {
            Some(number) => {
                self.slots[number as usize] = frame;
                number
            }
            None => {
                self.slots.push(frame);
                (self.slots.len() - 1) as u32
            }
        }
    }

    /// Lets a frame go. Its number is another's from then on.
    pub fn remove(&mut self, number: u32) {
        self.free.push(number);
    }

    /// Frames under way.
    #[must_use]
    pub fn live(&self) -> u64 {
        (self.slots.len() - self.free.len()) as u64
    }

    /// The most that ever were under way at a time.
    #[must_use]
    pub fn most(&self) -> usize {
        self.slots.len()
    }
}

impl std::ops::Index<u32> for Frames {
    type Output = Frame;

    fn index(&self, number: u32) -> &Frame {
        &self.slots[number as usize]
    }
}

impl std::ops::IndexMut<u32> for Frames {
    fn index_mut(&mut self, number: u32) -> &mut Frame {
        &mut self.slots[number as usize]
    }
}

/// Two lines of a cache.
const _: () = assert!(size_of::<Frame>() <= 128);

/// A tagged frame's IPv6 header and ports are among the bytes that are read, however short it is.
const _: () = assert!(HEADER >= 18 + 44);

#[cfg(test)]
mod tests {
    use super::*;

    fn ipv4(class: u8) -> Vec<u8> {
        let mut bytes = vec![2, 0, 0, 0, 0, 7, 2, 0, 0, 0, 0, 9, 8, 0, 0x45, class, 1, 0];
        bytes.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        bytes.extend([0xc1, 0x23, 0x12, 0xb7, 0, 0, 0, 0]);
        bytes
    }

    #[test]
    fn a_frame_knows_its_host_and_its_priority() {
        let frame = Frame::new(&ipv4(26 << 2 | 2), 1000);
        assert_eq!((frame.destination, frame.priority), (7, 3));
        assert_eq!((frame.size(), frame.wire_length()), (1004, 1024));
        assert_eq!(Frame::new(&[0xff; 14], 42).destination, Frame::NOWHERE);
        assert_eq!(Frame::new(&[0xff; 14], 42).wire_length(), 84);
    }

    #[test]
    fn only_what_its_sender_allows_is_marked_and_the_checksum_is_right() {
        for (ecn, marked) in [(0, false), (1, true), (2, true), (3, false)] {
            let mut frame = Frame::new(&ipv4(26 << 2 | ecn), 1000);
            assert_eq!(frame.mark(), marked);
            assert_eq!(frame.is_marked(), ecn != 0);
            if marked {
                let (header, _) = roce::wire::ipv4::Header::new(&frame.header()[14..]).unwrap();
                assert!(header.checksum_is_right());
            }
        }
    }

    #[test]
    fn the_hash_depends_on_the_source_port() {
        let mut other = ipv4(0);
        other[35] ^= 1;
        assert_ne!(Frame::new(&ipv4(0), 100).hash, Frame::new(&other, 100).hash);
        other[35] ^= 1;
        other[16] ^= 1;
        assert_eq!(Frame::new(&ipv4(0), 100).hash, Frame::new(&other, 100).hash);
    }
}
