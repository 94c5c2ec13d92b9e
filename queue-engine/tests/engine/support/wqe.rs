//! Send WQEs as a program's provider builds them.

use fpga_regs::Block;
use fpga_regs::engine::wqe::{
    SendFlags, SendHeader, SendOpcode, Sge, send_blocks_for_inline, send_blocks_for_sges,
};

/// A send WQE; the header's counts are filled in when it is encoded.
#[derive(Clone, Debug)]
pub struct Wqe {
    pub header: SendHeader,
    body: Body,
}

#[derive(Clone, Debug)]
enum Body {
    Gather(Vec<Sge>),
    /// The value to swap in or add, the value to compare with, and the elements behind them.
    Atomic([u64; 2], Vec<Sge>),
    Inline(Vec<u8>),
}

impl Wqe {
    /// A signaled WQE that gathers.
    pub fn gather(opcode: SendOpcode, sges: &[Sge]) -> Self {
        let header = SendHeader { opcode, flags: SendFlags::SIGNALED, ..SendHeader::default() };
        Self { header, body: Body::Gather(sges.to_vec()) }
    }

    /// A signaled atomic.
    pub fn atomic(opcode: SendOpcode, operands: [u64; 2], sges: &[Sge]) -> Self {
        Self { body: Body::Atomic(operands, sges.to_vec()), ..Self::gather(opcode, &[]) }
    }

    /// A signaled WQE with its payload in it.
    pub fn inline(opcode: SendOpcode, bytes: &[u8]) -> Self {
        let flags = SendFlags::SIGNALED | SendFlags::INLINE;
        let header = SendHeader { opcode, flags, ..SendHeader::default() };
        Self { header, body: Body::Inline(bytes.to_vec()) }
    }

    /// An RDMA WRITE or READ of remote memory, or an atomic on it.
    pub fn remote(mut self, remote_address: u64, rkey: u32) -> Self {
        (self.header.remote_address, self.header.rkey) = (remote_address, rkey);
        self
    }

    pub fn immediate(mut self, immediate: u32) -> Self {
        self.header.immediate = immediate;
        self
    }

    pub fn flag(mut self, flag: SendFlags) -> Self {
        self.header.flags |= flag;
        self
    }

    pub fn unsignaled(mut self) -> Self {
        self.header.flags -= SendFlags::SIGNALED;
        self
    }

    /// The entry as it stands in the ring.
    pub fn encode(&self) -> Vec<Block> {
        let (words, blocks) = match &self.body {
            Body::Gather(sges) => {
                let words: Vec<u64> = sges.iter().flat_map(|sge| sge.encode()).collect();
                (words, send_blocks_for_sges(sges.len()))
            }
            Body::Atomic(operands, sges) => {
                let elements = sges.iter().flat_map(|sge| sge.encode());
                let words = operands.iter().copied().chain(elements).collect();
                (words, send_blocks_for_sges(sges.len() + 1))
            }
            Body::Inline(bytes) => {
                let word = |chunk: &[u8]| {
                    let mut word = [0; 8];
                    word[..chunk.len()].copy_from_slice(chunk);
                    u64::from_le_bytes(word)
                };
                (bytes.chunks(8).map(word).collect(), send_blocks_for_inline(bytes.len()))
            }
        };
        let mut header = SendHeader { blocks: blocks as u8, ..self.header };
        match &self.body {
            Body::Gather(sges) | Body::Atomic(_, sges) => header.num_sge = sges.len() as u8,
            Body::Inline(bytes) => header.inline_length = bytes.len() as u32,
        }
        let mut encoded = vec![[0; 8]; blocks];
        encoded[0] = header.encode()[0];
        encoded.as_flattened_mut()[4..4 + words.len()].copy_from_slice(&words);
        encoded
    }
}
