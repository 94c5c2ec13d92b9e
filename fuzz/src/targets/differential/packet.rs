//! Packets of a peer's, from their IPv4 header on.

pub const SEND_FIRST: u8 = 0x00;
pub const SEND_MIDDLE: u8 = 0x01;
pub const SEND_LAST: u8 = 0x02;
pub const SEND_ONLY: u8 = 0x04;
pub const WRITE_FIRST: u8 = 0x06;
pub const WRITE_MIDDLE: u8 = 0x07;
pub const WRITE_LAST: u8 = 0x08;
pub const WRITE_ONLY: u8 = 0x0a;
pub const READ_REQUEST: u8 = 0x0c;
pub const RESPONSE_FIRST: u8 = 0x0d;
pub const RESPONSE_MIDDLE: u8 = 0x0e;
pub const RESPONSE_LAST: u8 = 0x0f;
pub const RESPONSE_ONLY: u8 = 0x10;
pub const ACK: u8 = 0x11;

/// A packet of a peer.
#[derive(Clone, Debug)]
pub struct Packet {
    pub opcode: u8,
    pub qpn: u32,
    pub psn: u32,
    /// Address and length, where the opcode has them.
    pub reth: (u64, u32),
    /// Where the opcode has one.
    pub syndrome: u8,
    pub payload: Vec<u8>,
}

impl Packet {
    /// Its bytes, on their way from one address to another.
    pub fn bytes(&self, from: u32, to: u32) -> Vec<u8> {
        let (vaddr, length) = self.reth;
        let extension = match self.opcode {
            WRITE_FIRST | WRITE_ONLY | READ_REQUEST => {
                [&vaddr.to_be_bytes()[..], &[0xba, 0xad, 0xca, 0xfe], &length.to_be_bytes()]
                    .concat()
            }
            RESPONSE_FIRST | RESPONSE_LAST | RESPONSE_ONLY | ACK => vec![self.syndrome, 0, 0, 9],
            _ => Vec::new(),
        };
        let udp = (8 + 12 + extension.len() + self.payload.len() + 4) as u16;
        let mut packet = vec![0x45, 0];
        packet.extend((udp + 20).to_be_bytes());
        packet.extend([0, 0, 0, 0, 64, 17, 0, 0]);
        packet.extend(from.to_be_bytes());
        packet.extend(to.to_be_bytes());
        let sum: u32 = packet.chunks(2).map(|it| u32::from(it[0]) << 8 | u32::from(it[1])).sum();
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        for word in [4791, 4791, udp, 0] {
            packet.extend(u16::to_be_bytes(word));
        }
        packet.extend([self.opcode, 0, 0xff, 0xff, 0]);
        packet.extend(&self.qpn.to_be_bytes()[1..]);
        packet.push(0);
        packet.extend(&self.psn.to_be_bytes()[1..]);
        packet.extend(extension);
        packet.extend(&self.payload);
        packet.extend([0xde, 0xad, 0xbe, 0xef]);
        packet
    }
}
