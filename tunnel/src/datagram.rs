//! A datagram on its way, and its bytes in the tunnel.

use fpga_regs::Block;
use fpga_regs::engine::tunnel::{DATAGRAM_PAYLOAD, DatagramHeader, SlotFlags};

/// Bytes of a header.
const HEADER: usize = 64;
/// Bytes of a message between two cards at most.
pub(crate) const MESSAGE: usize = HEADER + DATAGRAM_PAYLOAD;
/// Bytes of an IPv4 header.
const IPV4: usize = 20;

/// Bytes of its packet beside the payload and immediate data: IPv4's header, UDP's, the transport's, that of datagrams, and the
/// invariant CRC.
const OTHERS: usize = IPV4 + 8 + 12 + 8 + 4;

/// A datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// The sender's IPv4 address, as a number.
    pub from: u32,
    /// The header, which names the receiver.
    pub header: DatagramHeader,
    /// Up to [`DATAGRAM_PAYLOAD`] bytes.
    pub payload: Vec<u8>,
}

impl Datagram {
    /// The message that another card gets.
    #[must_use]
    pub fn to_message(&self) -> Vec<u8> {
        let [block] = self.header.encode();
        let mut bytes: Vec<u8> = block.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend_from_slice(&self.payload);
        bytes
    }

    /// The datagram in a message of another card's, if there is one.
    #[must_use]
    pub fn from_message(from: u32, message: &[u8]) -> Option<Self> {
        let (head, payload) = message.split_first_chunk::<HEADER>()?;
        if payload.len() > DATAGRAM_PAYLOAD {
            return None;
        }
        let mut block: Block = [0; 8];
        for (word, chunk) in block.iter_mut().zip(head.chunks_exact(8)) {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(chunk);
            *word = u64::from_le_bytes(bytes);
        }
        Some(Self { from, header: DatagramHeader::decode(&[block]), payload: payload.into() })
    }

    /// The IPv4 header that its packet would have had.
    #[must_use]
    pub fn network_header(&self, to: u32) -> [u8; IPV4] {
        let is_immediate = self.header.flags.contains(SlotFlags::IMMEDIATE);
        let others = if is_immediate { OTHERS.saturating_add(4) } else { OTHERS };
        let length = others.saturating_add(self.payload.len().div_ceil(4).saturating_mul(4));
        let [high, low] = u16::try_from(length).unwrap_or(u16::MAX).to_be_bytes();
        let DatagramHeader { hop_limit, traffic_class, .. } = self.header;
        let mut bytes = [0; IPV4];
        let fixed = [0x45, traffic_class, high, low, 0, 0, 0x40, 0, hop_limit, 17, 0, 0];
        let addresses = [self.from, to].into_iter().flat_map(u32::to_be_bytes);
        for (byte, value) in bytes.iter_mut().zip(fixed.into_iter().chain(addresses)) {
            *byte = value;
        }
        let words = bytes.chunks_exact(2).map(|pair| match pair {
            [high, low] => u32::from(u16::from_be_bytes([*high, *low])),
            _ => 0,
        });
        let sum = words.fold(0, u32::wrapping_add);
        let folded = (sum & 0xffff).wrapping_add(sum.wrapping_shr(16));
        let folded = (folded & 0xffff).wrapping_add(folded.wrapping_shr(16));
        let [high, low] = (!(folded as u16)).to_be_bytes();
        let [_, _, _, _, _, _, _, _, _, _, first, second, ..] = &mut bytes;
        (*first, *second) = (high, low);
        bytes
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may fail")]
mod tests {
    use super::*;

    fn datagram(payload: usize) -> Datagram {
        let header = DatagramHeader {
            source_qpn: 0x8_0001,
            dest_qpn: 0x8_0002,
            qkey: 0x1111_1111,
            immediate: 7,
            flags: SlotFlags::IMMEDIATE,
            hop_limit: 64,
            traffic_class: 0x20,
        };
        Datagram { from: 0x0a4d_0001, header, payload: vec![9; payload] }
    }

    #[test]
    fn a_datagram_comes_out_as_it_went_in_and_nothing_else_is_one() {
        for payload in [0, 1, DATAGRAM_PAYLOAD] {
            let sent = datagram(payload);
            let message = sent.to_message();
            assert!(message.len() <= MESSAGE);
            assert_eq!(Datagram::from_message(0x0a4d_0001, &message), Some(sent));
        }
        assert_eq!(Datagram::from_message(1, &[0; HEADER - 1]), None);
        assert_eq!(Datagram::from_message(1, &[0; MESSAGE + 1]), None);
    }

    /// The checksum is another program's.
    #[test]
    fn its_network_header_is_that_of_its_packet() {
        let header = datagram(5).network_header(0x0a4d_0002);
        let wanted =
            [0x45, 0x20, 0, 64, 0, 0, 0x40, 0, 64, 17, 0x25, 0xf1, 10, 77, 0, 1, 10, 77, 0, 2];
        assert_eq!(header, wanted);
    }
}
