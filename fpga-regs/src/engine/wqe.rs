//! Work-queue entries, which programs write into send and receive rings.
//!
//! A send WQE takes 1 to [`SEND_MAX_BLOCKS`] consecutive blocks of the send ring (wrapping at its
//! end): a header of 32 bytes, then scatter/gather elements of 16 bytes or inline data. The
//! producer index counts blocks. A receive WQE stands at a fixed stride.

use crate::Block;
use crate::layout::{Layout, field};

constants! {
    /// Scatter/gather elements of one entry.
    pub const MAX_SGE: usize = 16;
    /// Bytes of inline data a send WQE can hold.
    pub const MAX_INLINE: usize = SEND_MAX_BLOCKS * 64 - SEND_PAYLOAD_OFFSET;
    /// Blocks of the largest send WQE.
    pub const SEND_MAX_BLOCKS: usize = 5;
    /// Byte offset of the first SGE, or of inline data, in a send WQE.
    pub const SEND_PAYLOAD_OFFSET: usize = 32;
    /// Byte offset of the first SGE in a receive WQE.
    pub const RECEIVE_PAYLOAD_OFFSET: usize = 16;
    /// Bytes of a scatter/gather element.
    pub const SGE_BYTES: usize = 16;
    /// Byte offset of the SGE in an atomic's WQE.
    pub const ATOMIC_PAYLOAD_OFFSET: usize = 48;
    /// Bytes that an atomic reads and writes.
    pub const ATOMIC_BYTES: usize = 8;
}

open_enum! {
    /// The operation of a send WQE.
    pub struct SendOpcode(u8) {
        /// SEND.
        Send = 1,
        /// SEND with immediate data.
        SendImm = 2,
        /// SEND that invalidates a remote key.
        SendInvalidate = 3,
        /// RDMA WRITE.
        Write = 4,
        /// RDMA WRITE with immediate data; consumes a receive WQE at the responder.
        WriteImm = 5,
        /// RDMA READ.
        Read = 6,
        /// 8-byte compare and swap.
        CompareSwap = 7,
        /// 8-byte fetch and add.
        FetchAdd = 8,
        /// Invalidates a local key.
        LocalInvalidate = 9,
        /// Binds a memory window.
        BindWindow = 10,
    }
}

flags! {
    /// Flags of a send WQE.
    pub struct SendFlags(u8) {
        /// Report success with a completion; errors are always reported.
        SIGNALED = 1 << 0,
        /// The responder's completion is solicited.
        SOLICITED = 1 << 1,
        /// Begin only when all earlier READs and atomics are complete.
        FENCE = 1 << 2,
        /// The payload stands in the entry.
        INLINE = 1 << 3,
    }
}

layout! {
    /// The header of a send WQE, the first 32 bytes of its first block.
    ///
    /// Atomics carry the operands in the first 16 bytes behind the header and one SGE after them.
    /// UD reuses `remote_address` and `rkey` through [`Datagram`]; a window bind through [`Bind`].
    pub struct SendHeader: 1 {
        /// The operation.
        opcode @ 0x00: SendOpcode,
        /// How.
        flags @ 0x01: SendFlags,
        /// Scatter/gather elements, 0 to 16; 0 with inline data.
        num_sge @ 0x02: u8,
        /// Blocks of this WQE, 1 to 5.
        blocks @ 0x03: u8,
        /// Bytes of inline data; 0 without.
        inline_length @ 0x04: u32,
        /// Immediate data as the program gave it (its byte order is opaque), or the key to invalidate.
        immediate @ 0x08: u32,
        /// XRC: number of the remote shared receive queue.
        remote_srqn @ 0x0c: u32,
        /// First byte of remote memory.
        remote_address @ 0x10: u64,
        /// Key of the remote memory.
        rkey @ 0x18: u32,
    }
}

layout! {
    /// The address fields of a UD send WQE, over the same bytes as `remote_address` and `rkey`.
    ///
    /// A datagram has no more bytes than the port's active MTU; it is complete when its packet was made,
    /// even if no peer gets it. One that fails leaves its QP in SQE.
    pub struct Datagram: 1 in SendHeader {
        /// Address handle number.
        ah @ 0x10: u32,
        /// Destination QPN.
        qpn @ 0x14: u32,
        /// Q_Key; the QP's own where the highest bit is set.
        qkey @ 0x18: u32,
    }
}

layout! {
    /// The fields of a window bind behind the header. `rkey` is the window's key from now on: its number, with
    /// any variant. `remote_address` is the first byte of it that is bound.
    pub struct Bind: 1 in SendHeader {
        /// Bytes that are bound; 0 unbinds the window.
        length @ 0x20: u64,
        /// Key of the memory region it lies in.
        lkey @ 0x28: u32,
        /// [`super::key::Access`] bits granted.
        access @ 0x2c: u32,
    }
}

layout! {
    /// The operands of an atomic, behind the header. `length` of the SGE behind them is at least 8; the
    /// value before goes to its first 8 bytes.
    pub struct Atomic: 1 in SendHeader {
        /// Value to swap in, or to add.
        swap_add @ 0x20: u64,
        /// Value to compare with.
        compare @ 0x28: u64,
    }
}

/// The effect of an atomic on [`ATOMIC_BYTES`] of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AtomicOperation {
    /// Compare and swap: the value becomes `swap` if it is `compare`.
    CompareSwap {
        /// The value that there must be.
        compare: u64,
        /// The value that comes in its place.
        swap: u64,
    },
    /// Fetch and add, modulo 2^64.
    FetchAdd {
        /// The addend.
        add: u64,
    },
}

impl AtomicOperation {
    /// The bytes it reads and writes, at an address that is a multiple of that.
    pub const LENGTH: u32 = ATOMIC_BYTES as u32;

    /// The new value for the value `before`; `None` if the atomic writes none.
    #[must_use]
    pub const fn apply(self, before: u64) -> Option<u64> {
        match self {
            Self::CompareSwap { compare, swap } if before == compare => Some(swap),
            Self::CompareSwap { .. } => None,
            Self::FetchAdd { add } => Some(before.wrapping_add(add)),
        }
    }
}

layout! {
    /// The first 16 bytes of a receive WQE; up to 3 SGEs stand in its first block, 4 in each other.
    pub struct ReceiveHeader: 1 {
        /// Scatter/gather elements, 0 to 16.
        num_sge @ 0x00: u8,
        /// Opaque to the engine, echoed in the completion.
        tag @ 0x04: u32,
    }
}

/// A piece of local memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// First byte, in the address space of the region's key.
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// Key of the region it lies in.
    pub lkey: u32,
}

impl Sge {
    /// The element's description.
    pub const LAYOUT: &'static Layout = &Layout {
        name: "Sge",
        module: module_path!(),
        doc: "A piece of local memory: a scatter/gather element.\n",
        bytes: SGE_BYTES,
        fields: &[
            field::<u64>("address", "First byte, in the address space of the region's key.\n", 0x0),
            field::<u32>("length", "Bytes.\n", 0x8),
            field::<u32>("lkey", "Key of the region it lies in.\n", 0xc),
        ],
        head: None,
    };

    /// The element as two words.
    #[inline(always)]
    #[must_use]
    pub const fn encode(self) -> [u64; 2] {
        [self.address, self.length as u64 | (self.lkey as u64) << 32]
    }

    /// Reads the element from two words.
    #[inline(always)]
    #[must_use]
    pub const fn decode(words: [u64; 2]) -> Self {
        Self { address: words[0], length: words[1] as u32, lkey: (words[1] >> 32) as u32 }
    }
}

/// Blocks of a send WQE with `num_sge` elements.
#[inline(always)]
#[must_use]
pub const fn send_blocks_for_sges(num_sge: usize) -> usize {
    (SEND_PAYLOAD_OFFSET + num_sge * SGE_BYTES).div_ceil(64)
}

/// Blocks of a send WQE with `length` bytes of inline data.
#[inline(always)]
#[must_use]
pub const fn send_blocks_for_inline(length: usize) -> usize {
    (SEND_PAYLOAD_OFFSET + length).div_ceil(64)
}

/// Blocks from one receive WQE to the next in a queue of up to `max_sge` elements: 1, 2, 4 or 8.
#[inline(always)]
#[must_use]
pub const fn receive_stride_blocks(max_sge: usize) -> usize {
    (RECEIVE_PAYLOAD_OFFSET + max_sge * SGE_BYTES).div_ceil(64).next_power_of_two()
}

/// The SGE at byte `offset` of a WQE's blocks, or nothing when it lies beyond them.
#[inline(always)]
#[must_use]
pub fn sge_at(blocks: &[Block], offset: usize) -> Option<Sge> {
    let words = blocks.as_flattened();
    Some(Sge::decode([*words.get(offset / 8)?, *words.get(offset / 8 + 1)?]))
}

const _: () = assert!(send_blocks_for_sges(MAX_SGE) == SEND_MAX_BLOCKS);
const _: () = assert!(send_blocks_for_inline(MAX_INLINE) == SEND_MAX_BLOCKS);
const _: () = assert!(receive_stride_blocks(MAX_SGE) == 8);
const _: () = assert!(ATOMIC_PAYLOAD_OFFSET + SGE_BYTES == 64, "an atomic takes one block");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_element_is_described_as_it_is_encoded() {
        let sge = Sge { address: 0x1122_3344_5566_7788, length: 0x99aa_bbcc, lkey: 0xddee_ff00 };
        let words = sge.encode();
        assert_eq!(Sge::decode(words), sge);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let at = |name: &str| {
            let field = Sge::LAYOUT.fields.iter().find(|field| field.name == name).unwrap();
            bytes[field.offset..field.offset + field.size].to_vec()
        };
        assert_eq!(at("address"), sge.address.to_le_bytes());
        assert_eq!(at("length"), sge.length.to_le_bytes());
        assert_eq!(at("lkey"), sge.lkey.to_le_bytes());
    }
}
