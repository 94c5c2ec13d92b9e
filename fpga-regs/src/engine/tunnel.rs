//! The tunnel: the words between two ends over published cards, by WRITEs of one packet into rings of slots.
//!
//! A published card carries WRITE and READ of multiples of 4 bytes, and does not report arrivals. If both ends of a
//! QP know the tunnel, each has a ring of [`SLOTS`] slots in the QP's address space, at [`RING_BASE`] + ctid ·
//! [`RING_STRIDE`] (one address in all of them would meet in one set of the TLB), and everything goes through it: a
//! [`SlotHeader`], and behind it the payload, both padded with zeros to a multiple of 64 bytes. Bytes of long messages may go from
//! memory to memory, to an address that the receiver has granted for them.
//!
//! Slot `n`, from 1 on, of a direction stands at place `n` modulo [`SLOTS`]. It is there when its number is
//! `n` and its MAC is right; other bytes mean nothing. It is written once: the ends repeat no slot, and a
//! late repetition by a card has an earlier number.

constants! {
    /// The place of the ring of the first address space.
    pub const RING_BASE: u64 = 0xc000_0000_0000;
    /// Bytes from one ring to the next.
    pub const RING_STRIDE: u64 = 0x22_0000;
    /// Slots of a ring.
    pub const SLOTS: u32 = 32;
    /// Slots that only [`SlotOperation::Credit`] and the operations after it in the table may take.
    pub const RESERVED_SLOTS: u32 = 4;
    /// Bytes of a slot's place: a packet of the card's.
    pub const SLOT_BYTES: usize = 4096;
    /// Bytes of payload of a slot.
    pub const SLOT_PAYLOAD: usize = SLOT_BYTES - 64;
    /// Bytes of a datagram's payload at most: the port's MTU.
    pub const DATAGRAM_PAYLOAD: usize = 4096;
    /// Set in the QPN of a QP of datagrams, whose bits 23 to 20 are the vFPGA: no ctid is such a number.
    pub const DATAGRAM_QPN: u32 = 1 << 19;
    /// Bytes that one grant gives at most.
    pub const GRANT_BYTES: u32 = 1 << 18;
    /// Parts of a message for which grants may be asked, or given and not at their end, at a time.
    pub const GRANT_PARTS: usize = 4;
    /// Packets of either direction after which both ends drain, and rewrite the QP's context with the numbers that are
    /// next: the stack drops repetitions only as long as its numbers have not gone half way round.
    pub const TURNOVER: u32 = 1 << 22;
}

open_enum! {
    /// The operation of a slot.
    pub struct SlotOperation(u8) {
        /// A part of a SEND.
        Send = 1,
        /// A part of an RDMA WRITE.
        Write = 2,
        /// An RDMA READ; no payload.
        Read = 3,
        /// A compare and swap: 16 bytes of payload, the value to compare with and the one to swap in.
        CompareSwap = 4,
        /// A fetch and add: 8 bytes of payload, the addend.
        FetchAdd = 5,
        /// The granted part of a SEND or RDMA WRITE, from `offset` on, has been written.
        Written = 6,
        /// A grant for the data of a READ, as `Grant`.
        GrantData = 7,
        /// The granted part of a READ's data has landed, or has not, as `Landed`.
        DataLanded = 8,
        /// The answer to all requests up to a message, which ended well, or to that one, which did not.
        Answer = 16,
        /// A part of a READ's data.
        Data = 17,
        /// The value before an atomic: 8 bytes of payload.
        Value = 18,
        /// A grant for a SEND or RDMA WRITE: `length` bytes of it from `offset` on may be written to `address`; 0 bytes where
        /// they are to come in slots.
        Grant = 19,
        /// The granted part of a READ's data, from `offset` on, has been written.
        DataWritten = 20,
        /// The granted part of a SEND or RDMA WRITE from `offset` on, `length` bytes, has landed; 0 bytes if its sum
        /// differs, and it must come in slots.
        Landed = 21,
        /// Nothing but credits.
        Credit = 32,
        /// The sender stops sending until the context is rewritten, and asks the peer to do the same.
        Pause = 33,
        /// All of the sender's packets are acknowledged, and it has stopped sending.
        Paused = 34,
        /// The sender has rewritten its context.
        Rewritten = 35,
        /// So has the peer: both go on.
        Resume = 36,
    }
}

flags! {
    /// Flags of a slot.
    pub struct SlotFlags(u8) {
        /// `immediate` is immediate data.
        IMMEDIATE = 1 << 0,
        /// `immediate` is a key to take back.
        INVALIDATE = 1 << 1,
        /// The receiver's completion is solicited.
        SOLICITED = 1 << 2,
        /// The MAC's key has the first number that the sender's own program has named; otherwise the peer's.
        OWN_NUMBER = 1 << 3,
        /// An answer: there is no receive; `timer` says when to try again.
        NOT_READY = 1 << 4,
        /// The sender answers slots that have `ASKS`.
        GRANTS = 1 << 5,
        /// A `Send`, `Write` or `Data` without payload: it asks for a grant of the bytes from `offset` on.
        ASKS = 1 << 6,
    }
}

layout! {
    /// The first 64 bytes of a slot.
    pub struct SlotHeader: 1 {
        /// The kind of the slot.
        operation @ 0x00: SlotOperation,
        /// Of an answer: an [`crate::engine::cqe::Status`].
        status @ 0x01: u8,
        /// Flags.
        flags @ 0x02: SlotFlags,
        /// Of an answer that there is no receive: the RNR NAK timer's code.
        timer @ 0x03: u8,
        /// Bytes of payload in this slot.
        bytes @ 0x04: u16,
        /// The slot's number, from 1 on.
        number @ 0x08: u64,
        /// The number of the requester's message, from 0 on.
        message @ 0x10: u32,
        /// The number of the receiver's slots that the sender has taken, modulo 2^32; beyond it a ring's number of
        /// slots may be on their way.
        consumed @ 0x14: u32,
        /// The first byte of remote memory, of the whole message.
        address @ 0x18: u64,
        /// Its key.
        key @ 0x20: u32,
        /// Bytes of the whole message.
        length @ 0x24: u32,
        /// The offset of this slot's payload in the message.
        offset @ 0x28: u32,
        /// Immediate data, opaque, or a key.
        immediate @ 0x2c: u32,
        /// Of `Written` and `DataWritten`: the CRC-32 of Ethernet of the granted bytes.
        sum @ 0x30: u32,
        /// SipHash-2-4 of the header, with this field 0, and of the payload without its padding.
        mac @ 0x38: u64,
    }
}

layout! {
    /// The first 64 bytes of a SEND between two cards, whose payload behind them is a datagram's.
    pub struct DatagramHeader: 1 {
        /// The sender's QPN.
        source_qpn @ 0x00: u32,
        /// The receiver's QPN.
        dest_qpn @ 0x04: u32,
        /// The Q_Key that the receiver has to have.
        qkey @ 0x08: u32,
        /// Immediate data, opaque.
        immediate @ 0x0c: u32,
        /// `IMMEDIATE` and `SOLICITED`.
        flags @ 0x10: SlotFlags,
        /// Hop limit of the address handle.
        hop_limit @ 0x11: u8,
        /// Traffic class of the address handle.
        traffic_class @ 0x12: u8,
    }
}

impl SlotHeader {
    /// Bytes of the slot on the link.
    #[must_use]
    pub const fn slot_bytes(&self) -> usize {
        64 + (self.bytes as usize).div_ceil(64) * 64
    }

    /// Whether no payload stands beyond the slot's end or the message's.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let end = u64::from(self.offset).saturating_add(self.bytes.into());
        let carries = matches!(
            self.operation,
            SlotOperation::Send | SlotOperation::Write | SlotOperation::Data
        );
        usize::from(self.bytes) <= SLOT_PAYLOAD && (!carries || end <= u64::from(self.length))
    }
}

/// The first byte of an address space's ring.
#[must_use]
pub const fn ring_address(ctid: u8) -> u64 {
    RING_BASE + RING_STRIDE * ctid as u64
}

/// The byte of a ring where a slot stands.
#[must_use]
pub const fn place_of(sequence: u64) -> usize {
    (sequence % SLOTS as u64) as usize * SLOT_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_lie_apart_and_their_pages_meet_in_no_more_than_two_of_a_set() {
        let mut sets = [0u32; 1024];
        for ctid in 0..64u8 {
            for page in 0..u64::from(SLOTS) {
                sets[((ring_address(ctid) / 4096 + page) % 1024) as usize] += 1;
            }
            assert!(u64::from(SLOTS) * SLOT_BYTES as u64 <= RING_STRIDE);
        }
        assert_eq!(sets.iter().max(), Some(&2));
        assert!(ring_address(64) < 1 << 48);
    }

    #[test]
    fn a_slot_is_no_longer_than_its_place_and_no_payload_leaves_its_message() {
        let full = SlotHeader {
            operation: SlotOperation::Send,
            bytes: SLOT_PAYLOAD as u16,
            length: 8000,
            ..SlotHeader::default()
        };
        assert!(full.is_sound());
        assert_eq!(full.slot_bytes(), SLOT_BYTES);
        assert!(!SlotHeader { bytes: SLOT_PAYLOAD as u16 + 1, ..full }.is_sound());
        assert!(!SlotHeader { offset: 8000 - 4000, ..full }.is_sound());
        assert!(!SlotHeader { offset: u32::MAX, ..full }.is_sound());
    }
}
