//! Work requests as values, and the entries they become.

use fpga_regs::Block;
use fpga_regs::engine::window::Capabilities;
use fpga_regs::engine::wqe::{
    MAX_INLINE, RECEIVE_PAYLOAD_OFFSET, ReceiveHeader, SEND_MAX_BLOCKS, SEND_PAYLOAD_OFFSET,
    SendFlags, SendHeader, SendOpcode, Sge, send_blocks_for_inline, send_blocks_for_sges,
};
use hostmem::BlockRing;
use verbs_sys::v44::verbs::{self as ibv, ibv_sge};

/// A send work request, read once from the program's structure.
#[derive(Clone, Copy)]
pub(crate) struct SendRequest<'a> {
    /// The program's name for it.
    pub wr_id: u64,
    /// What is to be done.
    pub operation: Operation,
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

/// What a send operation is to the card, and what it carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    /// [`SendOpcode`]; 0 for one that the card does not offer.
    code: u8,
    /// [`INLINE`], [`REMOTE`], [`IMMEDIATE`].
    carries: u8,
}

/// The payload may stand in the entry.
const INLINE: u8 = 1 << 0;
/// It names remote memory.
const REMOTE: u8 = 1 << 1;
/// It has immediate data.
const IMMEDIATE: u8 = 1 << 2;

/// The `ibv_wr_opcode`s that can be looked up; a power of two.
const OPCODES: usize = 16;

/// Which send operations a QP accepts, by `ibv_wr_opcode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operations([Operation; OPCODES]);

impl Operations {
    /// The operations an engine with these capabilities offers on an RC QP.
    pub(crate) fn offered(capabilities: Capabilities) -> Self {
        use Capabilities as C;
        let mut table = [Operation { code: 0, carries: 0 }; OPCODES];
        let (write, read) = (INLINE | REMOTE, REMOTE);
        for (needs, opcode, code, carries) in [
            (C::SEND, ibv::IBV_WR_SEND, SendOpcode::Send, INLINE),
            (C::SEND, ibv::IBV_WR_SEND_WITH_IMM, SendOpcode::SendImm, INLINE | IMMEDIATE),
            (C::WRITE, ibv::IBV_WR_RDMA_WRITE, SendOpcode::Write, write),
            (C::WRITE, ibv::IBV_WR_RDMA_WRITE_WITH_IMM, SendOpcode::WriteImm, write | IMMEDIATE),
            (C::READ, ibv::IBV_WR_RDMA_READ, SendOpcode::Read, read),
        ] {
            let immediate = carries & IMMEDIATE == 0 || capabilities.contains(C::IMMEDIATE);
            let offered = immediate && capabilities.contains(needs);
            if let Some(place) = table.get_mut(opcode as usize).filter(|_| offered) {
                *place = Operation { code: code.0, carries };
            }
        }
        Self(table)
    }

    /// The operation, or the errno a post of it fails with.
    #[inline(always)]
    pub(crate) fn get(&self, opcode: u32) -> Result<Operation, i32> {
        match self.0.get(opcode as usize) {
            Some(operation) if operation.code != 0 => Ok(*operation),
            _ => Err(not_offered(opcode)),
        }
    }
}

impl Operation {
    /// What the card calls it.
    #[inline(always)]
    pub(crate) fn code(self) -> SendOpcode {
        SendOpcode(self.code)
    }

    /// Whether its payload may stand in the entry.
    #[inline(always)]
    pub(crate) fn can_be_inline(self) -> bool {
        self.carries & INLINE != 0
    }

    /// Whether it names remote memory.
    #[inline(always)]
    pub(crate) fn has_remote(self) -> bool {
        self.carries & REMOTE != 0
    }

    /// Whether it has immediate data.
    #[inline(always)]
    pub(crate) fn has_immediate(self) -> bool {
        self.carries & IMMEDIATE != 0
    }
}

/// EOPNOTSUPP for operations verbs knows, EINVAL for numbers that are none.
#[cold]
fn not_offered(opcode: u32) -> i32 {
    if opcode <= ibv::IBV_WR_TSO { libc::EOPNOTSUPP } else { libc::EINVAL }
}

/// The card's form of each combination of `ibv_send_flags` that can be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlagTable([u8; 16]);

impl FlagTable {
    /// Makes the table; with `signal_all` every request is signaled.
    pub(crate) fn new(signal_all: bool) -> Self {
        let always = if signal_all { SendFlags::SIGNALED } else { SendFlags::empty() };
        let mut table = [always.bits(); 16];
        for (place, flags) in table.iter_mut().zip(0u32..) {
            for (theirs, ours) in [
                (ibv::IBV_SEND_FENCE, SendFlags::FENCE),
                (ibv::IBV_SEND_SIGNALED, SendFlags::SIGNALED),
                (ibv::IBV_SEND_SOLICITED, SendFlags::SOLICITED),
                (ibv::IBV_SEND_INLINE, SendFlags::INLINE),
            ] {
                *place |= if flags & theirs != 0 { ours.bits() } else { 0 };
            }
        }
        Self(table)
    }

    /// The card's form of `ibv_send_flags`; EINVAL for others than those four.
    #[inline(always)]
    pub(crate) fn get(&self, flags: u32) -> Result<SendFlags, i32> {
        let found = self.0.get(flags as usize).copied();
        found.map(SendFlags::from_bits_retain).ok_or(libc::EINVAL)
    }
}

#[inline(always)]
fn words(sge: &ibv_sge) -> [u64; 2] {
    Sge { address: sge.addr, length: sge.length, lkey: sge.lkey }.encode()
}

/// Elements of a send entry's first block.
const SHORT_SEND: usize = 2;
/// Elements of a receive entry's first block.
const SHORT_RECEIVE: usize = 3;

/// Writes a send entry into its ring from block `index` on, and returns its blocks.
///
/// `header` has opcode, flags, immediate data and remote memory; counts are filled in here. The
/// payload was checked against the QP's limits.
#[inline(always)]
pub(crate) fn write_send(
    ring: &BlockRing,
    index: u32,
    header: SendHeader,
    payload: Payload<'_>,
) -> u32 {
    match payload {
        Payload::Sges(sges) if sges.len() <= SHORT_SEND => {
            write_send_head(ring, index, header, sges, 1);
            1
        }
        Payload::Sges(sges) => write_long(ring, index, header, sges),
        Payload::Inline(data) => write_inline(ring, index, header, data),
    }
}

/// Writes a send entry of one element into its ring at block `index`: word by word, from where they
/// stand. The words behind its element are nobody's.
#[inline(always)]
pub(crate) fn write_simple(
    ring: &BlockRing,
    index: u32,
    operation: Operation,
    flags: SendFlags,
    element: &ibv_sge,
    remote: impl FnOnce() -> (u64, u32),
    immediate: impl FnOnce() -> u32,
) {
    let (block, header) = (ring.block(index), SendHeader::default());
    let with_codes =
        SendHeader { opcode: operation.code(), flags, num_sge: 1, blocks: 1, ..header };
    let [[codes, ..]] = with_codes.encode();
    block.store(0, codes);
    let immediate = if operation.has_immediate() { immediate() } else { 0 };
    let [[_, with_immediate, ..]] = SendHeader { immediate, ..header }.encode();
    block.store(1, with_immediate);
    let (remote_address, rkey) = if operation.has_remote() { remote() } else { (0, 0) };
    let [[_, _, address, key, ..]] = SendHeader { remote_address, rkey, ..header }.encode();
    block.store(2, address);
    block.store(3, key);
    let [address, length_and_key] = words(element);
    block.store(4, address);
    block.store(5, length_and_key);
}

/// Writes the first block of a send entry.
#[inline(always)]
fn write_send_head(
    ring: &BlockRing,
    index: u32,
    mut header: SendHeader,
    sges: &[ibv_sge],
    blocks: u32,
) {
    header.num_sge = sges.len() as u8;
    header.blocks = blocks as u8;
    let [[h0, h1, h2, h3, ..]] = header.encode();
    let sge = |index: usize| sges.get(index).map_or([0; 2], words);
    let ([s0, s1], [s2, s3]) = (sge(0), sge(1));
    ring.write(index, &[h0, h1, h2, h3, s0, s1, s2, s3]);
}

#[inline(never)]
fn write_long(ring: &BlockRing, index: u32, header: SendHeader, sges: &[ibv_sge]) -> u32 {
    let blocks = send_blocks_for_sges(sges.len()) as u32;
    write_send_head(ring, index, header, sges, blocks);
    write_sges(ring, index, sges, SHORT_SEND);
    blocks
}

#[inline(never)]
fn write_inline(ring: &BlockRing, index: u32, mut header: SendHeader, data: &InlineData) -> u32 {
    let blocks = send_blocks_for_inline(data.length as usize) as u32;
    header.inline_length = data.length;
    header.blocks = blocks as u8;
    let [[h0, h1, h2, h3, ..]] = header.encode();
    let [[_, _, _, _, d0, d1, d2, d3], more @ ..] = &data.blocks;
    ring.write(index, &[h0, h1, h2, h3, *d0, *d1, *d2, *d3]);
    for (block, n) in more.iter().zip(1..blocks) {
        ring.write(index.wrapping_add(n), block);
    }
    blocks
}

/// Writes a receive entry into its ring from block `index` on; the payload was checked.
#[inline(always)]
pub(crate) fn write_receive(ring: &BlockRing, index: u32, tag: u32, sges: &[ibv_sge]) {
    let header = ReceiveHeader { num_sge: sges.len() as u8, tag };
    let [[h0, h1, ..]] = header.encode();
    let sge = |index: usize| sges.get(index).map_or([0; 2], words);
    let ([s0, s1], [s2, s3], [s4, s5]) = (sge(0), sge(1), sge(2));
    ring.write(index, &[h0, h1, s0, s1, s2, s3, s4, s5]);
    if sges.len() > SHORT_RECEIVE {
        write_sges(ring, index, sges, SHORT_RECEIVE);
    }
}

/// Writes the elements behind the first block's, four to a block.
#[inline(never)]
fn write_sges(ring: &BlockRing, index: u32, sges: &[ibv_sge], first: usize) {
    for (four, n) in sges.get(first..).unwrap_or_default().chunks(4).zip(1u32..) {
        let sge = |index: usize| four.get(index).map_or([0; 2], words);
        let ([s0, s1], [s2, s3], [s4, s5], [s6, s7]) = (sge(0), sge(1), sge(2), sge(3));
        ring.write(index.wrapping_add(n), &[s0, s1, s2, s3, s4, s5, s6, s7]);
    }
}

#[cfg(test)]
mod tests {
    use fpga_regs::engine::wqe::sge_at;

    use super::*;
    use crate::doorbell::tests::memory;

    const AT: u32 = 6;

    fn ring() -> BlockRing {
        BlockRing::new(memory(4096), 0, 8).unwrap()
    }

    /// The entry's blocks, which wrap at the end of the ring.
    fn written(ring: &BlockRing, blocks: usize) -> Vec<Block> {
        (AT..).take(blocks).map(|index| ring.read(index)).collect()
    }

    fn sges(count: u32) -> Vec<ibv_sge> {
        (0..count)
            .map(|i| ibv_sge { addr: 0x1000 + u64::from(i), length: 100 + i, lkey: 7 + i })
            .collect()
    }

    fn as_sge(sge: &ibv_sge) -> Sge {
        Sge { address: sge.addr, length: sge.length, lkey: sge.lkey }
    }

    #[test]
    fn a_send_entry_holds_every_element_where_the_card_looks() {
        for count in 0..=16 {
            let (ring, sges) = (ring(), sges(count));
            let header = SendHeader { opcode: SendOpcode::Write, rkey: 9, ..Default::default() };
            let said = write_send(&ring, AT, header, Payload::Sges(&sges));
            assert_eq!(said as usize, send_blocks_for_sges(count as usize));
            let blocks = written(&ring, said as usize);
            let read = SendHeader::decode(&[blocks[0]]);
            assert_eq!((read.num_sge, read.blocks), (count as u8, blocks.len() as u8));
            assert_eq!((read.opcode, read.rkey), (SendOpcode::Write, 9));
            for (i, sge) in sges.iter().enumerate() {
                let found = sge_at(&blocks, SEND_PAYLOAD_OFFSET + i * 16);
                assert_eq!(found, Some(as_sge(sge)), "element {i} of {count}");
            }
            assert_eq!(ring.read(AT + said), [0; 8], "nothing is written behind the entry");
        }
    }

    #[test]
    fn a_receive_entry_holds_every_element_where_the_card_looks() {
        for count in 0..=16 {
            let (ring, sges) = (ring(), sges(count));
            write_receive(&ring, AT, 0xabcd, &sges);
            let blocks = written(&ring, 8);
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
            let (ring, opcode) = (ring(), SendOpcode::Send);
            let header = SendHeader { opcode, ..Default::default() };
            let said = write_send(&ring, AT, header, Payload::Inline(&data));
            assert_eq!(said as usize, send_blocks_for_inline(length));
            let blocks = written(&ring, said as usize);
            let read = SendHeader::decode(&[blocks[0]]);
            assert_eq!((read.inline_length, read.num_sge), (length as u32, 0));
            let payload = &blocks.as_flattened()[HEADER_WORDS..];
            assert!(payload.iter().zip(1..).all(|(&word, i)| word == i));
        }
    }

    #[test]
    fn flags_keep_their_meaning() {
        let table = FlagTable::new(false);
        let fence_and_inline = ibv::IBV_SEND_FENCE | ibv::IBV_SEND_INLINE;
        for (theirs, ours) in [
            (0, SendFlags::empty()),
            (ibv::IBV_SEND_SIGNALED, SendFlags::SIGNALED),
            (ibv::IBV_SEND_SOLICITED, SendFlags::SOLICITED),
            (fence_and_inline, SendFlags::FENCE | SendFlags::INLINE),
            (15, SendFlags::all()),
        ] {
            assert_eq!(table.get(theirs), Ok(ours));
            assert_eq!(FlagTable::new(true).get(theirs), Ok(ours | SendFlags::SIGNALED));
        }
        assert_eq!(table.get(ibv::IBV_SEND_IP_CSUM), Err(libc::EINVAL));
        assert_eq!(table.get(u32::MAX), Err(libc::EINVAL));
    }

    #[test]
    fn only_what_the_card_offers_can_be_posted() {
        let code = |operations: &Operations, opcode| operations.get(opcode).map(Operation::code);
        let all = Operations::offered(Capabilities::all());
        assert_eq!(code(&all, ibv::IBV_WR_SEND_WITH_IMM), Ok(SendOpcode::SendImm));
        assert_eq!(code(&all, ibv::IBV_WR_ATOMIC_FETCH_AND_ADD), Err(libc::EOPNOTSUPP));
        assert_eq!(code(&all, ibv::IBV_WR_BIND_MW), Err(libc::EOPNOTSUPP));
        for unknown in [11, 15, 16, 32, u32::MAX] {
            assert_eq!(code(&all, unknown), Err(libc::EINVAL));
        }
        let stock =
            Operations::offered(Capabilities::RC | Capabilities::WRITE | Capabilities::READ);
        assert_eq!(code(&stock, ibv::IBV_WR_RDMA_READ), Ok(SendOpcode::Read));
        assert_eq!(code(&stock, ibv::IBV_WR_RDMA_WRITE_WITH_IMM), Err(libc::EOPNOTSUPP));
        assert_eq!(code(&stock, ibv::IBV_WR_SEND), Err(libc::EOPNOTSUPP));
    }
}
