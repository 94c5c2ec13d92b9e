//! Work requests as values, and the entries they become.

use crate::abi::verbs::{self as ibv, ibv_sge};
use fpga_regs::engine::qp::QpType;
use fpga_regs::engine::window::Capabilities;
use fpga_regs::engine::wqe::{
    Atomic, Bind, Datagram, MAX_INLINE, RECEIVE_PAYLOAD_OFFSET, ReceiveHeader, SEND_MAX_BLOCKS,
    SEND_PAYLOAD_OFFSET, SendFlags, SendHeader, SendOpcode, Sge, send_blocks_for_inline,
    send_blocks_for_sges,
};
use hostmem::{BlockRing, RingBlock};

/// A send work request, without the fields that only some operations have.
#[derive(Clone, Copy)]
pub(crate) struct SendRequest<'a> {
    /// The program's name for it.
    pub wr_id: u64,
    /// `ibv_wr_opcode`.
    pub opcode: u32,
    /// `ibv_send_flags`.
    pub flags: u32,
    /// The payload to send, or the place of a READ's result.
    pub payload: Payload<'a>,
}

/// An atomic work request.
#[derive(Clone, Copy)]
pub(crate) struct AtomicRequest<'a> {
    /// The program's name for it.
    pub wr_id: u64,
    /// `ibv_wr_opcode`.
    pub opcode: u32,
    /// `ibv_send_flags`.
    pub flags: u32,
    /// First byte of remote memory, and its key.
    pub remote: (u64, u32),
    /// Along XRC: the peer's shared receive queue.
    pub srqn: u32,
    /// The operands: the value to swap in or to add, and the value to compare with.
    pub operands: Atomic,
    /// The place of the old value.
    pub result: &'a ibv_sge,
}

/// The local side of a send work request.
#[derive(Clone, Copy)]
pub(crate) enum Payload<'a> {
    /// Pieces of registered memory.
    Sges(&'a [ibv_sge]),
    /// A number of bytes, at most [`MAX_INLINE`], that go into the entry. Only their length is written with the
    /// header; the caller that reads the program's memory copies them behind it before the request is shown.
    Inline(u32),
}

/// Words of a block.
const BLOCK_WORDS: usize = 8;
const _: () = assert!(SEND_PAYLOAD_OFFSET == 4 * 8 && RECEIVE_PAYLOAD_OFFSET == 2 * 8);
const _: () = assert!(MAX_INLINE == SEND_MAX_BLOCKS * 64 - SEND_PAYLOAD_OFFSET);

/// The card's opcode of a send operation, and the fields that it carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    /// [`SendOpcode`]; 0 for one that the card does not offer.
    code: u8,
    /// [`INLINE`], [`REMOTE`], [`IMMEDIATE`], [`CONNECTED`].
    carries: u8,
}

/// The payload may stand in the entry.
const INLINE: u8 = 1 << 0;
/// It names remote memory.
const REMOTE: u8 = 1 << 1;
/// It has immediate data.
const IMMEDIATE: u8 = 1 << 2;
/// It goes along a connection; any other that is offered names the queue pair that it goes to, and no remote memory.
const CONNECTED: u8 = 1 << 3;

/// The `ibv_wr_opcode`s that can be looked up; a power of two.
const OPCODES: usize = 16;

/// Which send operations a QP accepts, by `ibv_wr_opcode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operations {
    table: [Operation; OPCODES],
    /// The operations along XRC, whose requests name the peer's shared receive queue.
    xrc: [Operation; OPCODES],
    /// Atomics, which are not in the table: requests of other operations need not be told from them.
    atomics: bool,
    /// Whether it accepts binding memory windows,
    binds: bool,
    /// and with taking keys back here.
    invalidates: bool,
}

impl Operations {
    /// The operations an engine with these capabilities offers on a QP of a kind.
    pub(crate) fn offered(capabilities: Capabilities, kind: QpType) -> Self {
        use Capabilities as C;
        const NONE: [Operation; OPCODES] = [Operation { code: 0, carries: 0 }; OPCODES];
        let mut table = NONE;
        let is_datagram = kind == QpType::Ud;
        let send = if is_datagram { INLINE } else { INLINE | CONNECTED };
        let (write, read) = (INLINE | REMOTE | CONNECTED, REMOTE | CONNECTED);
        for (needs, opcode, code, carries) in [
            (C::SEND, ibv::IBV_WR_SEND, SendOpcode::Send, send),
            (C::SEND, ibv::IBV_WR_SEND_WITH_IMM, SendOpcode::SendImm, send | IMMEDIATE),
            (C::WRITE, ibv::IBV_WR_RDMA_WRITE, SendOpcode::Write, write),
            (C::WRITE, ibv::IBV_WR_RDMA_WRITE_WITH_IMM, SendOpcode::WriteImm, write | IMMEDIATE),
            (C::READ, ibv::IBV_WR_RDMA_READ, SendOpcode::Read, read),
            // In place of immediate data there is the key.
            (
                C::INVALIDATE,
                ibv::IBV_WR_SEND_WITH_INV,
                SendOpcode::SendInvalidate,
                send | IMMEDIATE,
            ),
        ] {
            let immediate = carries & IMMEDIATE == 0 || capabilities.contains(C::IMMEDIATE);
            let of_kind = match kind {
                QpType::Ud => carries & REMOTE == 0 && code != SendOpcode::SendInvalidate,
                QpType::Uc => code != SendOpcode::Read && code != SendOpcode::SendInvalidate,
                QpType::XrcReceive => false,
                _ => true,
            };
            let offered = immediate && of_kind && capabilities.contains(needs);
            if let Some(place) = table.get_mut(opcode as usize).filter(|_| offered) {
                *place = Operation { code: code.0, carries };
            }
        }
        let connected = !matches!(kind, QpType::Ud | QpType::XrcReceive);
        let (table, xrc) = if kind == QpType::XrcSend { (NONE, table) } else { (table, NONE) };
        Self {
            table,
            xrc,
            atomics: capabilities.contains(C::ATOMIC) && kind.is_reliable() && connected,
            binds: capabilities.contains(C::MEMORY_WINDOW) && connected,
            invalidates: capabilities.contains(C::INVALIDATE) && connected,
        }
    }

    /// The card's opcode of an atomic, or the errno with which a post of it fails.
    pub(crate) fn atomic(&self, opcode: u32) -> Result<SendOpcode, i32> {
        match opcode {
            ibv::IBV_WR_ATOMIC_CMP_AND_SWP if self.atomics => Ok(SendOpcode::CompareSwap),
            ibv::IBV_WR_ATOMIC_FETCH_AND_ADD if self.atomics => Ok(SendOpcode::FetchAdd),
            _ => Err(not_offered(opcode)),
        }
    }

    /// Checks a change of keys, or fails with the errno of posting it.
    pub(crate) fn key_change(&self, opcode: u32) -> Result<(), i32> {
        match opcode {
            ibv::IBV_WR_BIND_MW if self.binds => Ok(()),
            ibv::IBV_WR_LOCAL_INV if self.invalidates => Ok(()),
            _ => Err(not_offered(opcode)),
        }
    }

    /// Whether requests of that operation can be posted.
    pub(crate) fn offers(&self, opcode: u32) -> bool {
        self.get(opcode).is_ok()
            || self.along_xrc(opcode).is_ok()
            || self.atomic(opcode).is_ok()
            || self.key_change(opcode).is_ok()
    }

    /// Whether requests name the peer's shared receive queue.
    pub(crate) fn name_srq(&self) -> bool {
        self.xrc.iter().any(|operation| operation.code != 0)
    }

    /// The operation along XRC, if it is no atomic, or the errno a post of it fails with.
    pub(crate) fn along_xrc(&self, opcode: u32) -> Result<Operation, i32> {
        match self.xrc.get(opcode as usize) {
            Some(operation) if operation.code != 0 => Ok(*operation),
            _ => Err(not_offered(opcode)),
        }
    }

    /// The operation, if it is no atomic and not along XRC, or the errno a post of it fails with.
    #[inline(always)]
    pub(crate) fn get(&self, opcode: u32) -> Result<Operation, i32> {
        match self.table.get(opcode as usize) {
            Some(operation) if operation.code != 0 => Ok(*operation),
            _ => Err(not_offered(opcode)),
        }
    }

    /// As [`Self::get`], where it goes along a connection.
    #[inline(always)]
    pub(crate) fn get_connected(&self, opcode: u32) -> Option<Operation> {
        self.carrying(CONNECTED, opcode)
    }

    /// As [`Self::get_connected`], where its payload may stand in the entry.
    #[inline(always)]
    pub(crate) fn get_connected_inline(&self, opcode: u32) -> Option<Operation> {
        self.carrying(CONNECTED | INLINE, opcode)
    }

    /// The operation, if it carries all of that: one that is not offered carries nothing.
    #[inline(always)]
    fn carrying(&self, carries: u8, opcode: u32) -> Option<Operation> {
        let operation = self.table.get(opcode as usize)?;
        (operation.carries & carries == carries).then_some(*operation)
    }
}

impl Operation {
    /// The card's opcode.
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

    /// Whether it names the queue pair that it goes to.
    #[inline(always)]
    pub(crate) fn is_datagram(self) -> bool {
        self.carries & CONNECTED == 0
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

/// Writes the words of an entry into its ring, one after the other.
struct EntryWriter<'a> {
    ring: &'a BlockRing,
    index: u32,
    block: RingBlock<'a>,
    /// Where the next word goes in the block.
    word: usize,
}

impl<'a> EntryWriter<'a> {
    #[inline(always)]
    fn new(ring: &'a BlockRing, index: u32) -> Self {
        Self { ring, index, block: ring.block(index), word: 0 }
    }

    /// Writes words that stand in one block.
    #[inline(always)]
    fn write<const WORDS: usize>(&mut self, words: [u64; WORDS]) {
        if self.word == BLOCK_WORDS {
            self.index = self.index.wrapping_add(1);
            self.block = self.ring.block(self.index);
            self.word = 0;
        }
        for value in words {
            self.block.store(self.word, value);
            self.word = self.word.wrapping_add(1);
        }
    }

    /// Writes elements, none of which stands in two blocks.
    #[inline(always)]
    fn write_elements(&mut self, elements: &[ibv_sge]) {
        for sge in elements {
            self.write(Sge { address: sge.addr, length: sge.length, lkey: sge.lkey }.encode());
        }
    }
}

/// The words that stand for remote memory in an entry, of a datagram.
#[inline(always)]
fn target(datagram: Datagram) -> (u64, u32) {
    let [[_, _, target, qkey, ..]] = datagram.encode();
    (target, qkey as u32)
}

/// Gives the datagram whose entry begins with block `index` the queue pair that it goes to.
pub(crate) fn write_target(ring: &BlockRing, index: u32, datagram: Datagram) {
    let (block, [[_, _, target, qkey, ..]]) = (ring.block(index), datagram.encode());
    block.store(2, target);
    block.store(3, qkey);
}

/// Gives the request whose entry begins with block `index` the shared receive queue that it is for; it has been
/// written with that immediate data.
pub(crate) fn write_srqn(ring: &BlockRing, index: u32, remote_srqn: u32, immediate: u32) {
    let header = SendHeader { immediate, remote_srqn, ..SendHeader::default() };
    let [[_, word, ..]] = header.encode();
    ring.block(index).store(1, word);
}

/// As [`write_send`], a datagram.
#[inline(always)]
pub(crate) fn write_datagram(
    ring: &BlockRing,
    index: u32,
    (operation, flags): (Operation, SendFlags),
    payload: Payload<'_>,
    datagram: Datagram,
    immediate: impl FnOnce() -> u32,
) -> u32 {
    let operation = Operation { carries: operation.carries | REMOTE, ..operation };
    write_send(ring, index, (operation, flags), payload, || target(datagram), immediate)
}

/// Writes a send entry into its ring from block `index` on, and returns its blocks; the request was
/// checked against the QP's limits.
///
/// Each word is written from where it stands, for there are few registers. Remote memory (address,
/// key) and immediate data are read if the operation has them. The bytes behind the payload have no
/// meaning.
#[inline(always)]
pub(crate) fn write_send(
    ring: &BlockRing,
    index: u32,
    (operation, flags): (Operation, SendFlags),
    payload: Payload<'_>,
    remote: impl FnOnce() -> (u64, u32),
    immediate: impl FnOnce() -> u32,
) -> u32 {
    let (mut entry, header) = (EntryWriter::new(ring, index), SendHeader::default());
    let opcode = operation.code();
    let blocks = blocks_of(payload);
    let header = SendHeader { blocks: blocks as u8, ..header };
    let with_codes = match payload {
        Payload::Sges(sges) => SendHeader { opcode, flags, num_sge: sges.len() as u8, ..header },
        Payload::Inline(inline_length) => SendHeader { opcode, flags, inline_length, ..header },
    };
    let [[codes, ..]] = with_codes.encode();
    entry.write([codes]);
    let immediate = if operation.has_immediate() { immediate() } else { 0 };
    let [[_, with_immediate, ..]] = SendHeader { immediate, ..header }.encode();
    entry.write([with_immediate]);
    let (remote_address, rkey) = if operation.has_remote() { remote() } else { (0, 0) };
    let [[_, _, address, key, ..]] = SendHeader { remote_address, rkey, ..header }.encode();
    entry.write([address, key]);
    if let Payload::Sges(sges) = payload {
        entry.write_elements(sges);
    }
    blocks
}

/// Blocks of a send entry with a payload that was checked against the QP's limits.
#[inline(always)]
fn blocks_of(payload: Payload<'_>) -> u32 {
    match payload {
        Payload::Sges(sges) => send_blocks_for_sges(sges.len()) as u32,
        Payload::Inline(length) => send_blocks_for_inline(length as usize) as u32,
    }
}

/// The words of the header of a send entry that has no payload yet: the first, which the payload adds to and
/// [`write_payload`] is to be told, and the others.
#[inline(always)]
pub(crate) fn header_words(header: &SendHeader) -> (u64, [u64; 3]) {
    let [[codes, immediate, address, key, ..]] = header.encode();
    (codes, [immediate, address, key])
}

/// Writes the words behind the first into the first block of an entry.
#[inline(always)]
pub(crate) fn write_header(block: RingBlock<'_>, [immediate, address, key]: [u64; 3]) {
    block.store(1, immediate);
    block.store(2, address);
    block.store(3, key);
}

/// As [`write_payload`], of one element: the entry has no other block than its first.
#[inline(always)]
pub(crate) fn write_element(block: RingBlock<'_>, codes: u64, element: &ibv_sge) {
    let [[one, ..]] = SendHeader { num_sge: 1, blocks: 1, ..SendHeader::default() }.encode();
    let ibv_sge { addr: address, length, lkey } = *element;
    let [first, second] = Sge { address, length, lkey }.encode();
    block.store(4, first);
    block.store(5, second);
    block.store(0, codes | one);
}

/// Writes the operands of an atomic behind its header.
pub(crate) fn write_operands(ring: &BlockRing, index: u32, operands: Atomic) {
    let (block, [[.., swap_add, compare, _, _]]) = (ring.block(index), operands.encode());
    block.store(4, swap_add);
    block.store(5, compare);
}

/// Writes where an atomic's result goes, and its first word: the rest is there.
pub(crate) fn write_result(ring: &BlockRing, index: u32, codes: u64, result: &ibv_sge) {
    let ibv_sge { addr: address, length, lkey } = *result;
    let [[one, ..]] = SendHeader { num_sge: 1, blocks: 1, ..SendHeader::default() }.encode();
    let block = ring.block(index);
    let [first, second] = Sge { address, length, lkey }.encode();
    block.store(6, first);
    block.store(7, second);
    block.store(0, codes | one);
}

/// Writes the payload of an entry whose header is there, and its first word; returns its blocks.
#[inline(always)]
pub(crate) fn write_payload(ring: &BlockRing, index: u32, codes: u64, payload: Payload<'_>) -> u32 {
    let blocks = blocks_of(payload);
    let header = SendHeader { blocks: blocks as u8, ..SendHeader::default() };
    let added = match payload {
        Payload::Sges(sges) => {
            let (block, word) = (ring.block(index), SEND_PAYLOAD_OFFSET / 8);
            EntryWriter { ring, index, block, word }.write_elements(sges);
            SendHeader { num_sge: sges.len() as u8, ..header }
        }
        Payload::Inline(inline_length) => {
            SendHeader { flags: SendFlags::INLINE, inline_length, ..header }
        }
    };
    let [[bits, ..]] = added.encode();
    ring.block(index).store(0, codes | bits);
    blocks
}

/// Writes an atomic into its ring, where it is block `index`; it was checked against the QP's limits.
pub(crate) fn write_atomic(
    ring: &BlockRing,
    index: u32,
    (opcode, flags): (SendOpcode, SendFlags),
    request: &AtomicRequest<'_>,
) {
    let (remote_address, rkey) = request.remote;
    let header = SendHeader {
        opcode,
        flags,
        num_sge: 1,
        blocks: 1,
        remote_address,
        rkey,
        remote_srqn: request.srqn,
        ..SendHeader::default()
    };
    let ibv_sge { addr: address, length, lkey } = *request.result;
    let mut entry = EntryWriter::new(ring, index);
    let [[h0, h1, h2, h3, ..]] = header.encode();
    let [[.., o0, o1, _, _]] = request.operands.encode();
    entry.write([h0, h1, h2, h3, o0, o1]);
    entry.write(Sge { address, length, lkey }.encode());
}

/// A work request that changes a key's memory, and moves no bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyRequest {
    /// The program's name for it.
    pub wr_id: u64,
    /// `ibv_send_flags`.
    pub flags: u32,
    /// The change.
    pub change: KeyChange,
}

/// The change of a [`KeyRequest`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum KeyChange {
    /// A memory window is bound.
    Bind {
        /// Its key from then on.
        rkey: u32,
        /// Its first byte.
        address: u64,
        /// The rest.
        bind: Bind,
    },
    /// A memory window is taken back.
    Invalidate {
        /// Its key.
        rkey: u32,
    },
}

/// Writes a change of keys into its ring, where it is block `index`.
pub(crate) fn write_key_change(ring: &BlockRing, index: u32, flags: SendFlags, change: &KeyChange) {
    let header = SendHeader { flags, blocks: 1, ..SendHeader::default() };
    let (header, bind) = match *change {
        KeyChange::Bind { rkey, address, bind } => {
            let opcode = SendOpcode::BindWindow;
            (SendHeader { opcode, rkey, remote_address: address, ..header }, bind)
        }
        KeyChange::Invalidate { rkey } => {
            let opcode = SendOpcode::LocalInvalidate;
            (SendHeader { opcode, immediate: rkey, ..header }, Bind::default())
        }
    };
    let mut entry = EntryWriter::new(ring, index);
    let [[h0, h1, h2, h3, ..]] = header.encode();
    let [[.., length, key, _, _]] = bind.encode();
    entry.write([h0, h1, h2, h3, length, key]);
}

/// Writes a receive entry into its ring from block `index` on; the elements were checked.
#[inline(always)]
pub(crate) fn write_receive(ring: &BlockRing, index: u32, tag: u32, elements: &[ibv_sge]) {
    let [[h0, h1, ..]] = ReceiveHeader { num_sge: elements.len() as u8, tag }.encode();
    let mut entry = EntryWriter::new(ring, index);
    entry.write([h0, h1]);
    entry.write_elements(elements);
}

#[cfg(test)]
mod tests {
    use fpga_regs::Block;
    use fpga_regs::engine::wqe::{ATOMIC_PAYLOAD_OFFSET, sge_at};

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

    fn write(ring: &BlockRing, opcode: SendOpcode, payload: Payload<'_>) -> u32 {
        let operation = Operation { code: opcode.0, carries: REMOTE };
        let no_immediate = || panic!("it has none");
        write_send(ring, AT, (operation, SendFlags::FENCE), payload, || (8, 9), no_immediate)
    }

    #[test]
    fn a_send_entry_holds_every_element_where_the_card_looks() {
        for count in 0..=16 {
            let (ring, sges) = (ring(), sges(count));
            let said = write(&ring, SendOpcode::Write, Payload::Sges(&sges));
            assert_eq!(said as usize, send_blocks_for_sges(count as usize));
            let blocks = written(&ring, said as usize);
            let read = SendHeader::decode(&[blocks[0]]);
            assert_eq!((read.num_sge, read.blocks), (count as u8, blocks.len() as u8));
            assert_eq!((read.opcode, read.flags), (SendOpcode::Write, SendFlags::FENCE));
            assert_eq!((read.remote_address, read.rkey, read.immediate), (8, 9, 0));
            for (i, sge) in sges.iter().enumerate() {
                let found = sge_at(&blocks, SEND_PAYLOAD_OFFSET + i * 16);
                assert_eq!(found, Some(as_sge(sge)), "element {i} of {count}");
            }
            assert_eq!(ring.read(AT + said), [0; 8], "nothing is written behind the entry");
        }
    }

    #[test]
    fn an_atomic_is_one_block_with_its_operands_before_its_element() {
        let ring = ring();
        let sge = ibv_sge { addr: 0x7008, length: 8, lkey: 0x55 };
        let request = AtomicRequest {
            srqn: 0,
            wr_id: 1,
            opcode: ibv::IBV_WR_ATOMIC_CMP_AND_SWP,
            flags: 0,
            remote: (0x9000, 0x66),
            operands: Atomic { swap_add: 0x1122, compare: 0x3344 },
            result: &sge,
        };
        write_atomic(&ring, AT, (SendOpcode::CompareSwap, SendFlags::FENCE), &request);
        let block = ring.read(AT);
        let read = SendHeader::decode(&[block]);
        assert_eq!((read.opcode, read.flags), (SendOpcode::CompareSwap, SendFlags::FENCE));
        assert_eq!((read.num_sge, read.blocks, read.inline_length), (1, 1, 0));
        assert_eq!((read.remote_address, read.rkey), (0x9000, 0x66));
        assert_eq!(Atomic::decode(&[block]), request.operands);
        assert_eq!(sge_at(&[block], ATOMIC_PAYLOAD_OFFSET), Some(as_sge(&sge)));
        assert_eq!(ring.read(AT + 1), [0; 8]);
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
    fn an_entry_has_room_for_its_inline_bytes_and_tells_their_length() {
        for length in [0usize, 1, 32, 33, 96, 97, 288] {
            let ring = ring();
            let said = write(&ring, SendOpcode::Send, Payload::Inline(length as u32));
            assert_eq!(said as usize, send_blocks_for_inline(length));
            let blocks = written(&ring, said as usize);
            let read = SendHeader::decode(&[blocks[0]]);
            assert_eq!((read.inline_length, read.num_sge), (length as u32, 0));
            let payload = &blocks.as_flattened()[SEND_PAYLOAD_OFFSET / 8..];
            assert!(payload.iter().all(|&word| word == 0), "who has the bytes copies them");
        }
    }

    #[test]
    fn immediate_data_is_asked_for_where_the_operation_has_it() {
        let (ring, no_remote) = (ring(), || panic!("it has none"));
        let operation = Operation { code: SendOpcode::SendImm.0, carries: IMMEDIATE };
        let codes = (operation, SendFlags::empty());
        write_send(&ring, AT, codes, Payload::Sges(&[]), no_remote, || 0xaabb);
        let read = SendHeader::decode(&[ring.read(AT)]);
        assert_eq!((read.immediate, read.remote_address, read.rkey), (0xaabb, 0, 0));
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
        let offered = |capabilities| Operations::offered(capabilities, QpType::Rc);
        let all = offered(Capabilities::all());
        assert_eq!(code(&all, ibv::IBV_WR_SEND_WITH_IMM), Ok(SendOpcode::SendImm));
        let atomics = [
            (ibv::IBV_WR_ATOMIC_CMP_AND_SWP, SendOpcode::CompareSwap),
            (ibv::IBV_WR_ATOMIC_FETCH_AND_ADD, SendOpcode::FetchAdd),
        ];
        let without = offered(Capabilities::all() - Capabilities::ATOMIC);
        for (opcode, theirs) in atomics {
            assert_eq!(all.atomic(opcode), Ok(theirs));
            assert_eq!(code(&all, opcode), Err(libc::EOPNOTSUPP), "it is looked up apart");
            assert_eq!(without.atomic(opcode), Err(libc::EOPNOTSUPP));
            assert!(all.offers(opcode) && !without.offers(opcode));
        }
        assert_eq!(all.atomic(ibv::IBV_WR_BIND_MW), Err(libc::EOPNOTSUPP));
        assert_eq!(all.atomic(32), Err(libc::EINVAL));
        assert!(all.offers(ibv::IBV_WR_SEND) && !all.offers(ibv::IBV_WR_TSO));
        for (opcode, needs) in [
            (ibv::IBV_WR_BIND_MW, Capabilities::MEMORY_WINDOW),
            (ibv::IBV_WR_LOCAL_INV, Capabilities::INVALIDATE),
            (ibv::IBV_WR_SEND_WITH_INV, Capabilities::INVALIDATE),
        ] {
            assert!(all.offers(opcode) && !offered(Capabilities::all() - needs).offers(opcode));
        }
        assert_eq!(code(&all, ibv::IBV_WR_BIND_MW), Err(libc::EOPNOTSUPP));
        for unknown in [11, 15, 16, 32, u32::MAX] {
            assert_eq!(code(&all, unknown), Err(libc::EINVAL));
        }
        let stock = offered(Capabilities::RC | Capabilities::WRITE | Capabilities::READ);
        assert_eq!(code(&stock, ibv::IBV_WR_RDMA_READ), Ok(SendOpcode::Read));
        assert_eq!(code(&stock, ibv::IBV_WR_RDMA_WRITE_WITH_IMM), Err(libc::EOPNOTSUPP));
        assert_eq!(code(&stock, ibv::IBV_WR_SEND), Err(libc::EOPNOTSUPP));
    }

    #[test]
    fn an_unreliable_connection_sends_and_writes_and_nothing_else() {
        let all = Operations::offered(Capabilities::all(), QpType::Uc);
        let reliable = Operations::offered(Capabilities::all(), QpType::Rc);
        for opcode in 0..=ibv::IBV_WR_TSO {
            let only_reliable = [ibv::IBV_WR_RDMA_READ, ibv::IBV_WR_SEND_WITH_INV]
                .contains(&opcode)
                || reliable.atomic(opcode).is_ok();
            let offered = reliable.offers(opcode) && !only_reliable;
            assert_eq!(all.offers(opcode), offered, "opcode {opcode}");
        }
    }

    #[test]
    fn a_datagram_qp_sends_and_does_nothing_else() {
        let offered = |capabilities| Operations::offered(capabilities, QpType::Ud);
        let all = offered(Capabilities::all());
        for (opcode, code) in
            [(ibv::IBV_WR_SEND, SendOpcode::Send), (ibv::IBV_WR_SEND_WITH_IMM, SendOpcode::SendImm)]
        {
            let operation = all.get(opcode).unwrap();
            assert_eq!(operation.code(), code);
            assert!(operation.is_datagram() && operation.can_be_inline());
            assert!(!operation.has_remote());
        }
        for opcode in 0..=ibv::IBV_WR_TSO {
            let sends = [ibv::IBV_WR_SEND, ibv::IBV_WR_SEND_WITH_IMM].contains(&opcode);
            assert_eq!(all.get(opcode).is_ok(), sends, "opcode {opcode}");
            assert_eq!(all.atomic(opcode).err(), Some(libc::EOPNOTSUPP), "opcode {opcode}");
        }
        let plain = offered(Capabilities::UD | Capabilities::SEND);
        assert_eq!(plain.get(ibv::IBV_WR_SEND_WITH_IMM).err(), Some(libc::EOPNOTSUPP));
    }
}
