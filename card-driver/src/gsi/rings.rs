//! The rings of queue pair 1, and the buffers of its receives.

use std::sync::Arc;

use fpga_regs::Block;
use fpga_regs::engine::cqe::{self, Cqe, Flags, Status};
use fpga_regs::engine::doorbell::{Arm, ArmKind, QueueKind, record, slot_value};
use fpga_regs::engine::qp::{GSI_QKEY, GSI_QPN};
use fpga_regs::engine::wqe::{
    self, ReceiveHeader, SEND_PAYLOAD_OFFSET, SendFlags, SendHeader, SendOpcode, Sge,
    send_blocks_for_inline,
};
use hostmem::{BlockRing, Record, SharedMapping};

use super::{DATAGRAM_BYTES, Datagram, DriverBell, GsiArrival};
use crate::error::Error;

/// log2 of the blocks of the send ring, and of the entries of its completion queue: more than it has sends.
const LOG2_SENDS: u8 = 12;
const LOG2_SEND_CQ: u8 = 10;
/// log2 of the receives, and of the entries of their completion queue.
const LOG2_RECEIVES: u8 = 9;
/// Receives that are posted before the card is told.
const UNTOLD: u32 = 32;

/// Blocks of a send.
const SEND_BLOCKS: u32 = send_blocks_for_inline(DATAGRAM_BYTES) as u32;
const _: () = assert!(DATAGRAM_BYTES <= wqe::MAX_INLINE);
const _: () = assert!((1 << LOG2_SENDS) / SEND_BLOCKS <= 1 << LOG2_SEND_CQ);
/// Bytes of the network header before a datagram.
const HEADER_BYTES: usize = 40;
const RECEIVED_BYTES: usize = HEADER_BYTES + DATAGRAM_BYTES;
/// Bytes from one buffer to the next.
const BUFFER_BYTES: u64 = RECEIVED_BYTES.next_multiple_of(64) as u64;

/// Where the parts begin.
pub(crate) const SQ_AT: u64 = 0;
pub(crate) const SEND_CQ_AT: u64 = SQ_AT + ring_bytes(LOG2_SENDS);
pub(crate) const RQ_AT: u64 = SEND_CQ_AT + ring_bytes(LOG2_SEND_CQ);
pub(crate) const RECEIVE_CQ_AT: u64 = RQ_AT + ring_bytes(LOG2_RECEIVES);
pub(crate) const BUFFERS_AT: u64 = RECEIVE_CQ_AT + ring_bytes(LOG2_RECEIVES);
/// Bytes of memory of all of it.
pub(crate) const MEMORY_BYTES: u64 =
    (BUFFERS_AT + (BUFFER_BYTES << LOG2_RECEIVES)).next_multiple_of(4096);

const fn ring_bytes(log2_blocks: u8) -> u64 {
    record::ENTRIES.saturating_add(64u64.wrapping_shl(log2_blocks as u32))
}

/// How large the queues are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) log2_sends: u8,
    pub(crate) log2_send_cq: u8,
    pub(crate) log2_receives: u8,
}

impl Sizes {
    /// The wanted sizes, as far as an engine with such limits allows them.
    pub(crate) fn within(log2_sq_blocks: u8, log2_rq_entries: u8, log2_cq_entries: u8) -> Self {
        let log2_receives = LOG2_RECEIVES.min(log2_rq_entries).min(log2_cq_entries);
        let log2_send_cq = LOG2_SEND_CQ.min(log2_cq_entries);
        // No more sends than there is room for their completions: each has more than four blocks.
        let log2_sends = LOG2_SENDS.min(log2_sq_blocks).min(log2_send_cq.saturating_add(2));
        Self { log2_sends, log2_send_cq, log2_receives }
    }
}

/// The fate of a datagram that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// It stands in the ring.
    Posted,
    /// It waits for its address handle.
    Waits,
    /// There was no room.
    Lost,
}

/// The numbers that the engine gave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names {
    pub(crate) receive_cqn: u32,
    pub(crate) rqn: u32,
    pub(crate) key: u32,
    /// The queue pair's.
    pub(crate) generation: u8,
}

/// The queues of a queue pair 1 that is ready to send.
#[derive(Debug)]
pub(super) struct Queues {
    bell: DriverBell,
    sends: Producer,
    sent: Completions,
    /// Sends that were posted, and that are complete, since it began.
    posted: u64,
    complete: u64,
    failed: bool,
    receives: Producer,
    arrived: Completions,
    arm_sequence: u32,
    /// Receives that the card was not told of.
    untold: u32,
    /// Where the card sees the buffers.
    buffers: u64,
    names: Names,
}

/// A ring that the driver writes.
#[derive(Debug)]
struct Producer {
    ring: BlockRing,
    record: Record,
    index: u32,
}

/// A ring of completions.
#[derive(Debug)]
struct Completions {
    ring: BlockRing,
    record: Record,
    index: u32,
}

impl Producer {
    fn new(memory: &Arc<SharedMapping>, at: u64, log2: u8) -> Result<Self, Error> {
        let (ring, record) = ring(memory, at, log2)?;
        Ok(Self { ring, record, index: 0 })
    }

    fn write(&mut self, block: &Block) {
        self.ring.write(self.index, block);
        self.index = self.index.wrapping_add(1);
    }

    fn publish(&self) {
        self.record.store_release_u32(record::PRODUCER / 4, self.index);
    }
}

impl Completions {
    fn new(memory: &Arc<SharedMapping>, at: u64, log2: u8) -> Result<Self, Error> {
        let (ring, record) = ring(memory, at, log2)?;
        Ok(Self { ring, record, index: 0 })
    }

    fn take(&mut self) -> Option<Cqe> {
        // A ring has a power of two of blocks.
        let expected = cqe::expected_phase(self.index, self.ring.blocks().ilog2() as u8);
        let entry = self.ring.block(self.index).written(|last| cqe::phase(last) == expected)?;
        let entry = Cqe::decode(&[entry.load()]);
        self.index = self.index.wrapping_add(1);
        self.record.store_release_u32(record::CONSUMER / 4, self.index);
        Some(entry)
    }
}

fn ring(memory: &Arc<SharedMapping>, at: u64, log2: u8) -> Result<(BlockRing, Record), Error> {
    let entries = place(at.saturating_add(record::ENTRIES));
    let ring = BlockRing::new(Arc::clone(memory), entries, 1u32.wrapping_shl(log2.into()))?;
    Ok((ring, Record::new(Arc::clone(memory), place(at))?))
}

fn place(at: u64) -> usize {
    usize::try_from(at).unwrap_or(usize::MAX)
}

impl Queues {
    /// Queues whose objects the engine has just made, with all receives posted; in memory of zeros.
    pub(super) fn new(
        bell: DriverBell,
        (memory, iova): (&Arc<SharedMapping>, u64),
        sizes: Sizes,
        names: Names,
    ) -> Result<Self, Error> {
        let Sizes { log2_sends, log2_send_cq, log2_receives } = sizes;
        let mut queues = Self {
            bell,
            sends: Producer::new(memory, SQ_AT, log2_sends)?,
            sent: Completions::new(memory, SEND_CQ_AT, log2_send_cq)?,
            posted: 0,
            complete: 0,
            failed: false,
            receives: Producer::new(memory, RQ_AT, log2_receives)?,
            arrived: Completions::new(memory, RECEIVE_CQ_AT, log2_receives)?,
            arm_sequence: 0,
            untold: 0,
            buffers: iova.wrapping_add(BUFFERS_AT),
            names,
        };
        (0..queues.receives.ring.blocks()).for_each(|number| queues.post_receive(number));
        Ok(queues)
    }

    /// Gives the card the first receives, and arms the queue of arrivals.
    pub(super) fn begin(&mut self) {
        self.tell_receives();
        self.arm();
    }

    /// Whether the card has failed a send, after which the queue pair stops sending.
    pub(super) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Sends that were posted.
    pub(super) fn posted(&self) -> u64 {
        self.posted
    }

    /// Sends that are complete.
    pub(super) fn complete(&mut self) -> u64 {
        // A card that completes without end does so in its turns only.
        for _ in 0..self.sent.ring.blocks() {
            let Some(entry) = self.sent.take() else { break };
            self.complete = self.complete.saturating_add(1).min(self.posted);
            if entry.status != Status::Success {
                self.failed = true;
            }
        }
        self.complete
    }

    /// Posts a datagram, by an address handle.
    pub(super) fn send(&mut self, ah: u32, datagram: &Datagram) -> Sent {
        let under_way = self.posted.saturating_sub(self.complete());
        let room = self.sends.ring.blocks().checked_div(SEND_BLOCKS).unwrap_or(0);
        if under_way >= room.into() || self.failed {
            return Sent::Lost;
        }
        for block in &send_entry(ah, datagram) {
            self.sends.write(block);
        }
        self.sends.publish();
        self.posted = self.posted.saturating_add(1);
        let value = slot_value(GSI_QPN, self.names.generation, self.sends.index);
        self.bell.ring(QueueKind::Send, GSI_QPN, value);
        Sent::Posted
    }

    /// Posts the receive of a buffer.
    fn post_receive(&mut self, number: u32) {
        let address = self.buffers.wrapping_add(u64::from(number).wrapping_mul(BUFFER_BYTES));
        let sge = Sge { address, length: RECEIVED_BYTES as u32, lkey: self.names.key };
        let [mut block] = ReceiveHeader { num_sge: 1, tag: number }.encode();
        let words = block.iter_mut().skip(wqe::RECEIVE_PAYLOAD_OFFSET / 8);
        words.zip(sge.encode()).for_each(|(word, value)| *word = value);
        self.receives.write(&block);
        self.untold = self.untold.saturating_add(1);
    }

    fn tell_receives(&mut self) {
        if self.untold == 0 {
            return;
        }
        self.untold = 0;
        self.receives.publish();
        let Names { rqn, generation, .. } = self.names;
        self.bell.ring(QueueKind::Receive, rqn, slot_value(rqn, generation, self.receives.index));
    }

    /// Asks to be told of the next arrival.
    pub(super) fn arm(&mut self) {
        self.arm_sequence = Arm::next_sequence(self.arm_sequence);
        let (sequence, cqn) = (self.arm_sequence, self.names.receive_cqn);
        let arm = Arm { consumer: self.arrived.index, sequence, kind: ArmKind::Any };
        self.arrived.record.store_release_u32(record::ARMED_FOR_ANY / 4, sequence);
        self.arrived.record.store_release_u64(record::ARM / 8, arm.encode());
        self.bell.ring(QueueKind::Completion, cqn, slot_value(cqn, 0, sequence));
    }

    /// The next datagram that is one; its receive is posted again, as are those of the others. `gids` are the
    /// card's own addresses.
    pub(super) fn take(&mut self, memory: &SharedMapping, gids: &[[u8; 16]]) -> Option<GsiArrival> {
        // Of one that completes without end the next call takes the rest: the arming says that there is more.
        for _ in 0..self.arrived.ring.blocks() {
            let Some(entry) = self.arrived.take() else { break };
            let number = entry.wqe_index;
            if number >= self.receives.ring.blocks() {
                continue;
            }
            let arrival = arrival(&entry, memory, gids);
            self.post_receive(number);
            if self.untold >= UNTOLD.min(self.receives.ring.blocks() / 2) {
                self.tell_receives();
            }
            if arrival.is_some() {
                return arrival;
            }
        }
        self.tell_receives();
        None
    }
}

/// The entry of a send of a datagram that stands in it.
fn send_entry(ah: u32, datagram: &Datagram) -> [Block; SEND_BLOCKS as usize] {
    let mut entry = [[0; 8]; SEND_BLOCKS as usize];
    let [header] = SendHeader {
        opcode: SendOpcode::Send,
        flags: SendFlags::SIGNALED | SendFlags::INLINE,
        blocks: SEND_BLOCKS as u8,
        inline_length: DATAGRAM_BYTES as u32,
        ..SendHeader::default()
    }
    .encode();
    let [address] = wqe::Datagram { ah, qpn: GSI_QPN, qkey: GSI_QKEY }.encode();
    if let Some(first) = entry.first_mut() {
        let words = header.into_iter().zip(address).map(|(one, other)| one | other);
        first.iter_mut().zip(words).for_each(|(word, value)| *word = value);
    }
    let words = entry.as_flattened_mut().iter_mut().skip(SEND_PAYLOAD_OFFSET / 8);
    let values = datagram.chunks_exact(8).filter_map(|bytes| bytes.try_into().ok());
    words.zip(values).for_each(|(word, bytes)| *word = u64::from_le_bytes(bytes));
    entry
}

/// The arrival in a receive; `None` if it is no datagram for one of the card's addresses.
///
/// Its buffer is cleared, so that the next arrival is not taken for it.
fn arrival(entry: &Cqe, memory: &SharedMapping, gids: &[[u8; 16]]) -> Option<GsiArrival> {
    let number = u64::from(entry.wqe_index);
    let at = place(BUFFERS_AT.saturating_add(number.saturating_mul(BUFFER_BYTES)));
    let whole = entry.status == Status::Success
        && entry.byte_count as usize == RECEIVED_BYTES
        && entry.flags.contains(Flags::GRH);
    let (mut header, mut datagram) = ([0; HEADER_BYTES], [0; DATAGRAM_BYTES]);
    memory.read_bytes(at, &mut header).ok()?;
    memory.read_bytes(at.saturating_add(HEADER_BYTES), &mut datagram).ok()?;
    memory.store_relaxed_u64(at, 0).ok()?;
    let network = Header::parse(&header).filter(|_| whole)?;
    // An index without an address has zeros.
    let mut known = gids.iter().map(|gid| *gid == network.destination && *gid != [0; 16]);
    let index = known.position(|is_it| is_it)?;
    Some(GsiArrival {
        source: network.source,
        destination_gid_index: u8::try_from(index).ok()?,
        hop_limit: network.hop_limit,
        traffic_class: network.traffic_class,
        flow_label: network.flow_label,
        source_qpn: entry.source_qpn,
        datagram,
    })
}

/// The network header of a datagram.
#[derive(Debug, PartialEq, Eq)]
struct Header {
    source: [u8; 16],
    destination: [u8; 16],
    hop_limit: u8,
    traffic_class: u8,
    flow_label: u32,
}

impl Header {
    /// Reads that of IPv6, or that of IPv4 in the last 20 bytes, with zeros before.
    fn parse(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let [first, .., _] = *bytes;
        if first >> 4 == 6 {
            let (head, addresses) = bytes.split_first_chunk::<8>()?;
            let [a, b, c, d, .., hop_limit] = *head;
            let head = u32::from_be_bytes([a, b, c, d]);
            let (source, destination) = addresses.split_first_chunk::<16>()?;
            return Some(Self {
                source: *source,
                destination: *destination.first_chunk()?,
                hop_limit,
                traffic_class: (head >> 20) as u8,
                flow_label: head & 0xf_ffff,
            });
        }
        let [version, traffic_class, _, _, _, _, _, _, hop_limit, _, _, _, addresses @ ..] =
            *bytes.last_chunk::<20>()?;
        let [a, b, c, d, e, f, g, h] = addresses;
        (first == 0 && version >> 4 == 4).then_some(Self {
            source: mapped([a, b, c, d]),
            destination: mapped([e, f, g, h]),
            hop_limit,
            traffic_class,
            flow_label: 0,
        })
    }
}

fn mapped(address: [u8; 4]) -> [u8; 16] {
    std::net::Ipv4Addr::from(address).to_ipv6_mapped().octets()
}
