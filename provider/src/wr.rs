//! Work requests as values, and the entries they become.

use fpga_regs::Block;
use fpga_regs::engine::window::Capabilities;
use fpga_regs::engine::wqe::{
    MAX_INLINE, RECEIVE_PAYLOAD_OFFSET, ReceiveHeader, SEND_MAX_BLOCKS, SEND_PAYLOAD_OFFSET,
    SendHeader, SendOpcode, Sge, send_blocks_for_inline, send_blocks_for_sges,
};
use verbs_sys::v44::verbs::{self as ibv, ibv_sge};

/// A send work request, read once from the program's structure.
#[derive(Clone, Copy)]
pub(crate) struct SendRequest<'a> {
    /// The program's name for it.
    pub wr_id: u64,
    /// `ibv_wr_opcode`.
    pub opcode: u32,
    /// `ibv_send_flags`.
    pub flags: u32,
    /// Immediate data as it stands in memory; 0 for operations without.
    pub immediate: u32,
    /// First byte of remote memory; 0 for operations without.
    pub remote_address: u64,
    /// Key of the remote memory; 0 for operations without.
    pub rkey: u32,
    /// What is sent, or where a READ goes.
    pub payload: Payload<'a>,
}

/// The local side of a send work request.
#[derive(Clone, Copy)]
pub(crate) enum Payload<'a> {
    /// Pieces of registered memory.
    Sges(&'a [ibv_sge]),
    /// Bytes that go into the entry.
    Inline(&'a InlineData),
}

/// Inline bytes, laid out as they stand in an entry behind its header.
#[derive(Clone)]
pub(crate) struct InlineData {
    /// The entry; its header words are still zero.
    pub blocks: [Block; SEND_MAX_BLOCKS],
    /// Bytes, at most [`MAX_INLINE`].
    pub length: u32,
}

const HEADER_WORDS: usize = SEND_PAYLOAD_OFFSET / 8;
const _: () = assert!(HEADER_WORDS == 4 && RECEIVE_PAYLOAD_OFFSET == 16);
const _: () = assert!(MAX_INLINE == SEND_MAX_BLOCKS * 64 - SEND_PAYLOAD_OFFSET);

/// Which send operations a QP accepts, one bit for each `ibv_wr_opcode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operations(u32);

impl Operations {
    /// The operations an engine with these capabilities offers on an RC QP.
    pub(crate) fn offered(capabilities: Capabilities) -> Self {
        let immediate = capabilities.contains(Capabilities::IMMEDIATE);
        let mut mask = 0;
        for (capability, opcode, opcode_imm) in [
            (Capabilities::SEND, ibv::IBV_WR_SEND, Some(ibv::IBV_WR_SEND_WITH_IMM)),
            (Capabilities::WRITE, ibv::IBV_WR_RDMA_WRITE, Some(ibv::IBV_WR_RDMA_WRITE_WITH_IMM)),
            (Capabilities::READ, ibv::IBV_WR_RDMA_READ, None),
        ] {
            if capabilities.contains(capability) {
                mask |= 1u32.wrapping_shl(opcode);
                if let (true, Some(opcode)) = (immediate, opcode_imm) {
                    mask |= 1u32.wrapping_shl(opcode);
                }
            }
        }
        Self(mask)
    }

    /// What the card calls an operation, or the errno a post of it fails with.
    #[inline(always)]
    pub(crate) fn code(self, opcode: u32) -> Result<SendOpcode, i32> {
        if opcode >= u32::BITS || self.0 & 1u32.wrapping_shl(opcode) == 0 {
            return Err(not_offered(opcode));
        }
        match opcode {
            ibv::IBV_WR_RDMA_WRITE => Ok(SendOpcode::Write),
            ibv::IBV_WR_RDMA_WRITE_WITH_IMM => Ok(SendOpcode::WriteImm),
            ibv::IBV_WR_SEND => Ok(SendOpcode::Send),
            ibv::IBV_WR_SEND_WITH_IMM => Ok(SendOpcode::SendImm),
            ibv::IBV_WR_RDMA_READ => Ok(SendOpcode::Read),
            _ => Err(libc::EOPNOTSUPP),
        }
    }
}

/// EOPNOTSUPP for operations verbs knows, EINVAL for numbers that are none.
#[cold]
fn not_offered(opcode: u32) -> i32 {
    if opcode <= ibv::IBV_WR_TSO { libc::EOPNOTSUPP } else { libc::EINVAL }
}

const ALL_FLAGS: u32 =
    ibv::IBV_SEND_FENCE | ibv::IBV_SEND_SIGNALED | ibv::IBV_SEND_SOLICITED | ibv::IBV_SEND_INLINE;

/// `ibv_send_flags` as the card's; EINVAL for unknown ones.
#[inline(always)]
pub(crate) fn send_flags(flags: u32) -> Result<u8, i32> {
    if flags & !ALL_FLAGS != 0 {
        return Err(libc::EINVAL);
    }
    // FENCE 1, SIGNALED 2, SOLICITED 4, INLINE 8 become SIGNALED 1, SOLICITED 2, FENCE 4, INLINE 8.
    let moved = ((flags >> 1) & 3) | ((flags & 1) << 2) | (flags & 8);
    Ok(moved as u8)
}

#[inline(always)]
fn words(sge: &ibv_sge) -> [u64; 2] {
    Sge { address: sge.addr, length: sge.length, lkey: sge.lkey }.encode()
}

/// Writes a send entry block by block; `write(n, block)` stores its `n`-th.
///
/// `header` has opcode, flags, immediate data and remote memory; counts are filled in here. Returns
/// the blocks of the entry. The payload was checked against the QP's limits.
#[inline(always)]
pub(crate) fn write_send(
    mut header: SendHeader,
    payload: Payload<'_>,
    mut write: impl FnMut(u32, &Block),
) -> u32 {
    match payload {
        Payload::Sges(sges) => {
            let blocks = send_blocks_for_sges(sges.len()) as u32;
            header.num_sge = sges.len() as u8;
            header.blocks = blocks as u8;
            let [[h0, h1, h2, h3, ..]] = header.encode();
            let sge = |index: usize| sges.get(index).map_or([0; 2], words);
            let ([s0, s1], [s2, s3]) = (sge(0), sge(1));
            write(0, &[h0, h1, h2, h3, s0, s1, s2, s3]);
            if let Some((_, more)) = sges.split_at_checked(2) {
                write_sges(more, &mut write);
            }
            blocks
        }
        Payload::Inline(data) => {
            let blocks = send_blocks_for_inline(data.length as usize) as u32;
            header.inline_length = data.length;
            header.blocks = blocks as u8;
            let [[h0, h1, h2, h3, ..]] = header.encode();
            let [[_, _, _, _, d0, d1, d2, d3], more @ ..] = &data.blocks;
            write(0, &[h0, h1, h2, h3, *d0, *d1, *d2, *d3]);
            for (block, index) in more.iter().zip(1..blocks) {
                write(index, block);
            }
            blocks
        }
    }
}

/// Writes a receive entry block by block, as [`write_send`].
#[inline(always)]
pub(crate) fn write_receive(tag: u32, sges: &[ibv_sge], mut write: impl FnMut(u32, &Block)) {
    let header = ReceiveHeader { num_sge: sges.len() as u8, tag };
    let [[h0, h1, ..]] = header.encode();
    let sge = |index: usize| sges.get(index).map_or([0; 2], words);
    let ([s0, s1], [s2, s3], [s4, s5]) = (sge(0), sge(1), sge(2));
    write(0, &[h0, h1, s0, s1, s2, s3, s4, s5]);
    if let Some((_, more)) = sges.split_at_checked(3) {
        write_sges(more, &mut write);
    }
}

/// Writes elements four to a block, from block 1 on.
#[inline]
fn write_sges(sges: &[ibv_sge], write: &mut impl FnMut(u32, &Block)) {
    for (four, index) in sges.chunks(4).zip(1u32..) {
        let sge = |index: usize| four.get(index).map_or([0; 2], words);
        let ([s0, s1], [s2, s3], [s4, s5], [s6, s7]) = (sge(0), sge(1), sge(2), sge(3));
        write(index, &[s0, s1, s2, s3, s4, s5, s6, s7]);
    }
}

#[cfg(test)]
mod tests {
    use fpga_regs::engine::wqe::{SendFlags, sge_at};

    use super::*;

    fn sges(count: u32) -> Vec<ibv_sge> {
        (0..count)
            .map(|i| ibv_sge { addr: 0x1000 + u64::from(i), length: 100 + i, lkey: 7 + i })
            .collect()
    }

    fn as_sge(sge: &ibv_sge) -> Sge {
        Sge { address: sge.addr, length: sge.length, lkey: sge.lkey }
    }

    fn collect(build: impl FnOnce(&mut dyn FnMut(u32, &Block))) -> Vec<Block> {
        let mut blocks = Vec::new();
        build(&mut |index, block| {
            assert_eq!(index as usize, blocks.len());
            blocks.push(*block);
        });
        blocks
    }

    #[test]
    fn a_send_entry_holds_every_element_where_the_card_looks() {
        for count in 0..=16 {
            let sges = sges(count);
            let header = SendHeader { opcode: SendOpcode::Write, rkey: 9, ..Default::default() };
            let mut said = 0;
            let blocks =
                collect(|w| said = write_send(header, Payload::Sges(&sges), |i, b| w(i, b)));
            assert_eq!(blocks.len(), send_blocks_for_sges(count as usize));
            assert_eq!(said as usize, blocks.len());
            let read = SendHeader::decode(&[blocks[0]]);
            assert_eq!((read.num_sge, read.blocks), (count as u8, blocks.len() as u8));
            assert_eq!((read.opcode, read.rkey), (SendOpcode::Write, 9));
            for (i, sge) in sges.iter().enumerate() {
                let found = sge_at(&blocks, SEND_PAYLOAD_OFFSET + i * 16);
                assert_eq!(found, Some(as_sge(sge)), "element {i} of {count}");
            }
        }
    }

    #[test]
    fn a_receive_entry_holds_every_element_where_the_card_looks() {
        for count in 0..=16 {
            let sges = sges(count);
            let blocks = collect(|w| write_receive(0xabcd, &sges, |i, b| w(i, b)));
            let read = ReceiveHeader::decode(&[blocks[0]]);
            assert_eq!((read.num_sge, read.tag), (count as u8, 0xabcd));
            for (i, sge) in sges.iter().enumerate() {
                let found = sge_at(&blocks, RECEIVE_PAYLOAD_OFFSET + i * 16);
                assert_eq!(found, Some(as_sge(sge)), "element {i} of {count}");
            }
        }
    }

    #[test]
    fn inline_bytes_follow_the_header_without_a_gap() {
        for length in [0usize, 1, 32, 33, 96, 97, 288] {
            let mut data = InlineData { blocks: [[0; 8]; 5], length: length as u32 };
            for (word, i) in data.blocks.as_flattened_mut()[HEADER_WORDS..].iter_mut().zip(1..) {
                *word = i;
            }
            let header = SendHeader { opcode: SendOpcode::Send, ..Default::default() };
            let blocks = collect(|w| {
                write_send(header, Payload::Inline(&data), |i, b| w(i, b));
            });
            assert_eq!(blocks.len(), send_blocks_for_inline(length));
            let read = SendHeader::decode(&[blocks[0]]);
            assert_eq!((read.inline_length, read.num_sge), (length as u32, 0));
            let payload = &blocks.as_flattened()[HEADER_WORDS..];
            assert!(payload.iter().zip(1..).all(|(&word, i)| word == i));
        }
    }

    #[test]
    fn flags_keep_their_meaning() {
        for (theirs, ours) in [
            (ibv::IBV_SEND_FENCE, SendFlags::FENCE),
            (ibv::IBV_SEND_SIGNALED, SendFlags::SIGNALED),
            (ibv::IBV_SEND_SOLICITED, SendFlags::SOLICITED),
            (ibv::IBV_SEND_INLINE, SendFlags::INLINE),
            (ALL_FLAGS, SendFlags::all()),
        ] {
            assert_eq!(send_flags(theirs), Ok(ours.bits()));
        }
        assert_eq!(send_flags(ibv::IBV_SEND_IP_CSUM), Err(libc::EINVAL));
    }

    #[test]
    fn only_what_the_card_offers_can_be_posted() {
        let all = Operations::offered(Capabilities::all());
        assert_eq!(all.code(ibv::IBV_WR_SEND_WITH_IMM), Ok(SendOpcode::SendImm));
        assert_eq!(all.code(ibv::IBV_WR_ATOMIC_FETCH_AND_ADD), Err(libc::EOPNOTSUPP));
        assert_eq!(all.code(ibv::IBV_WR_BIND_MW), Err(libc::EOPNOTSUPP));
        for unknown in [31, 32, u32::MAX] {
            assert_eq!(all.code(unknown), Err(libc::EINVAL));
        }
        let stock =
            Operations::offered(Capabilities::RC | Capabilities::WRITE | Capabilities::READ);
        assert_eq!(stock.code(ibv::IBV_WR_RDMA_READ), Ok(SendOpcode::Read));
        assert_eq!(stock.code(ibv::IBV_WR_RDMA_WRITE_WITH_IMM), Err(libc::EOPNOTSUPP));
        assert_eq!(stock.code(ibv::IBV_WR_SEND), Err(libc::EOPNOTSUPP));
    }
}
