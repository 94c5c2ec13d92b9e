//! A host with a queue engine in RTL: its memory, and a driver and a program at the engine's registers and rings.

use std::ops::Range;

use fpga_regs::engine::admin::{
    AdminStatus, Completion, CreateCq, CreateKey, CreateQp, CreateRq, Destroy, Header, ModifyQp,
    ModifyRq, Opcode, ResizeCq, RqKind, SetGid,
};
use fpga_regs::engine::cqe::{Cqe, LAST_WORD, expected_phase, phase};
use fpga_regs::engine::doorbell::{Arm, ArmKind, QueueKind, SlotValue, record, slot};
use fpga_regs::engine::event::{Event, EventType};
use fpga_regs::engine::key::Access;
use fpga_regs::engine::qp::{AttributeMask, Attributes, QpState, QpType};
use fpga_regs::engine::window;
use fpga_regs::engine::wqe::{MAX_SGE, RECEIVE_PAYLOAD_OFFSET, SGE_BYTES};
use fpga_regs::{BLOCK_BYTES, Block};
use queue_engine::EngineConfig;

use crate::bus::Violation;
use crate::card::Vfpga;
use crate::lockstep;
use crate::memory::{Pages, block_of};

/// log2 of the entries of each ring of the driver's.
const LOG2_RING: u8 = 4;
/// The doorbell page of the program.
pub(crate) const PAGE: u8 = 1;
/// Its protection domain.
pub(crate) const PDN: u32 = 7;

/// All rights that are offered: those of its queue pairs.
pub const RIGHTS: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);

/// A host with a card.
#[derive(Debug)]
pub struct Host {
    /// The card.
    pub vfpga: Vfpga,
    /// Memory.
    pub memory: Pages,
    next: u64,
    admin_sq: u64,
    admin_cq: u64,
    events: u64,
    admin_producer: u32,
    admin_consumer: u32,
    event_consumer: u32,
    /// Entries of both rings that were there with the last interrupt, and whether an event says that the engine has stopped.
    heard: [u32; 2],
    has_stopped: bool,
    /// It is reset, and forgets what it had to tell.
    is_reset: bool,
    tag: u16,
    /// The doorbell page of what is made, and of stores.
    pub(crate) page: u8,
    /// What the engine draws numbers from, if it was not started since the reset of the shell.
    pub(crate) seed: u64,
}

/// The offset of a slot of a doorbell page in the window.
#[must_use]
pub fn slot_of(page: u8, slot: usize) -> u16 {
    (u64::from(page) * window::PAGE_BYTES + 8 * slot as u64) as u16
}

/// A completion queue of the program's.
#[derive(Debug)]
pub struct Cq {
    /// Its number.
    pub cqn: u32,
    ring: u64,
    log2_entries: u8,
    consumer: u32,
    sequence: u32,
    /// How often it was resized.
    generation: u8,
    /// The ring that it moves to, and the log2 of its entries.
    next: Option<(u64, u8)>,
    /// The consumer index of the last arming.
    armed_behind: u32,
}

impl Cq {
    /// The index behind the last entry that was polled.
    #[must_use]
    pub fn consumer(&self) -> u32 {
        self.consumer
    }

    /// Its entries.
    #[must_use]
    pub fn entries(&self) -> u64 {
        1 << self.log2_entries
    }
}

/// A receive queue of the program's.
#[derive(Debug, Default)]
pub struct Rq {
    /// Its number.
    pub rqn: u32,
    ring: u64,
    log2_entries: u8,
    log2_stride: u8,
    producer: u32,
    is_shared: bool,
}

impl Rq {
    /// Where its entries are.
    pub(crate) fn ring(&self) -> Range<u64> {
        let first = self.ring + record::ENTRIES;
        first..first + (64 << (self.log2_entries + self.log2_stride))
    }

    /// Whether several queue pairs may use it.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Scatter/gather elements of an entry at most.
    #[must_use]
    pub fn most_elements(&self) -> usize {
        let bytes = (BLOCK_BYTES << self.log2_stride) - RECEIVE_PAYLOAD_OFFSET;
        (bytes / SGE_BYTES).min(MAX_SGE)
    }
}

/// A queue pair of the program's.
#[derive(Debug, Default)]
pub struct Qp {
    /// Its number.
    pub qpn: u32,
    generation: u8,
    ring: u64,
    log2_blocks: u8,
    producer: u32,
}

impl Qp {
    /// Where the entries of its send queue are.
    pub(crate) fn ring(&self) -> Range<u64> {
        let first = self.ring + record::ENTRIES;
        first..first + (64 << self.log2_blocks)
    }

    /// The index of the block that is posted next.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.producer
    }

    /// Which of the queue pairs of its number it is; its completions say so.
    #[must_use]
    pub fn generation(&self) -> u8 {
        self.generation
    }
}

/// A memory region.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// Its key.
    pub key: u32,
    /// Its first byte, in host memory and to work requests.
    pub address: u64,
}

impl Host {
    /// A host whose card is not started.
    #[must_use]
    pub fn new(vfpga: Vfpga) -> Self {
        let mut host = Self {
            seed: vfpga.seed,
            vfpga,
            memory: Pages::default(),
            next: 0x10_0000,
            admin_sq: 0,
            admin_cq: 0,
            events: 0,
            admin_producer: 0,
            admin_consumer: 0,
            event_consumer: 0,
            heard: [0; 2],
            has_stopped: false,
            is_reset: false,
            tag: 0,
            page: PAGE,
        };
        let bytes = (BLOCK_BYTES as u64) << LOG2_RING;
        host.admin_sq = host.allocate(bytes);
        host.admin_cq = host.allocate(bytes);
        host.events = host.allocate(bytes);
        host
    }

    /// The limits and capabilities that the engine's registers say.
    ///
    /// # Errors
    /// Where the logic breaks a rule of the ports.
    pub fn limits(&mut self) -> Result<EngineConfig, Violation> {
        let mut broken = None;
        let limits = lockstep::limits(|register| {
            self.vfpga.ask(register as u16);
            while broken.is_none() {
                broken = self.vfpga.cycle(&mut self.memory).err();
                if let Some(value) = self.vfpga.take_answer() {
                    return value;
                }
            }
            0
        });
        broken.map_or(Ok(limits), Err)
    }

    /// Resets the engine.
    pub fn reset(&mut self) {
        self.is_reset = true;
        self.vfpga.write(window::CONTROL as u16, window::CONTROL_RESET);
    }

    /// Has the shell take the logic off the bus, and reset it.
    pub fn decouple(&mut self) {
        self.is_reset = true;
        self.vfpga.reset();
    }

    /// Lets a cycle of the card pass. Each interrupt has to be for something new in the driver's rings, and everything there
    /// has to have one.
    ///
    /// # Errors
    /// Where the logic breaks a rule.
    pub fn cycle(&mut self) -> Result<(), Violation> {
        self.vfpga.cycle(&mut self.memory)?;
        let cycle = self.vfpga.now();
        let interrupt = self.vfpga.bus().take_interrupt();
        match interrupt {
            _ if self.is_reset => Ok(()),
            // Behind a stop there is another one.
            Some(_) if !self.hears() && !self.has_stopped => Err(Violation::Early { cycle }),
            None if self.vfpga.is_quiet() && self.hears() => Err(Violation::Untold { cycle }),
            _ => Ok(()),
        }
    }

    /// Whether there is anything new in the driver's rings.
    fn hears(&mut self) -> bool {
        let before = self.heard;
        for (place, ring) in [self.admin_cq, self.events].into_iter().enumerate() {
            while let Some(block) = self.entry(ring, self.heard[place]) {
                let is_event = ring == self.events;
                self.has_stopped |= is_event && Event::decode(&[block]).kind == EventType::Fatal;
                self.heard[place] = self.heard[place].wrapping_add(1);
            }
        }
        self.heard != before
    }

    /// The entry of that index in a ring of the driver's, if it is there.
    fn entry(&mut self, ring: u64, index: u32) -> Option<Block> {
        let place = u64::from(index) & ((1 << LOG2_RING) - 1);
        let block = self.load_block(ring + place * BLOCK_BYTES as u64);
        (phase(block[LAST_WORD]) == expected_phase(index, LOG2_RING)).then_some(block)
    }

    /// Maps zeroed memory, with a hole behind it.
    pub fn allocate(&mut self, bytes: u64) -> u64 {
        let address = self.next;
        self.next = (address + bytes).next_multiple_of(4096) + 4096;
        self.memory.map(address, bytes);
        address
    }

    fn load_block(&mut self, address: u64) -> Block {
        let mut bytes = [0; BLOCK_BYTES];
        self.memory.load(address, &mut bytes);
        block_of(&bytes)
    }

    fn store_block(&mut self, address: u64, block: &Block) {
        for (word, address) in block.iter().zip((address..).step_by(8)) {
            self.memory.store(address, &word.to_le_bytes());
        }
    }

    /// Writes the seed and the registers of the rings, which begin anew, and starts the engine. Completions' events wait while
    /// so many are unread; 0 is no limit.
    pub fn start(&mut self, completions: u64) {
        let log2 = u64::from(LOG2_RING);
        (self.admin_producer, self.admin_consumer, self.event_consumer) = (0, 0, 0);
        (self.heard, self.has_stopped, self.is_reset) = ([0; 2], false, false);
        for ring in [self.admin_sq, self.admin_cq, self.events] {
            self.memory.store(ring, &[0; BLOCK_BYTES << LOG2_RING]);
        }
        for (register, value) in [
            (window::SEED, self.seed),
            (window::ADMIN_SQ_BASE, self.admin_sq),
            (window::ADMIN_SQ_SIZE, log2),
            (window::ADMIN_CQ_BASE, self.admin_cq),
            (window::ADMIN_CQ_SIZE, log2),
            (window::EVENT_BASE, self.events),
            (window::EVENT_SIZE, log2),
            (window::EVENT_COMPLETIONS, completions),
            (window::CONTROL, window::CONTROL_ENABLE),
        ] {
            self.vfpga.write(register as u16, value);
        }
    }

    /// Where its commands are.
    pub(crate) fn commands(&self) -> Range<u64> {
        self.admin_sq..self.admin_sq + ((BLOCK_BYTES as u64) << LOG2_RING)
    }

    /// Hands a command to the engine.
    pub fn command(&mut self, opcode: Opcode, blocks: &[Block], response: u64) {
        self.tag = self.tag.wrapping_add(1);
        let header = Header { opcode, blocks: blocks.len() as u8, tag: self.tag, response };
        let [header] = header.encode();
        let mut blocks = blocks.to_vec();
        if let Some(first) = blocks.first_mut() {
            first.iter_mut().zip(header).for_each(|(word, more)| *word |= more);
        }
        self.command_of(&blocks);
    }

    /// Hands blocks to the engine as they are.
    pub fn command_of(&mut self, blocks: &[Block]) {
        for block in blocks {
            let index = u64::from(self.admin_producer) & ((1 << LOG2_RING) - 1);
            self.store_block(self.admin_sq + index * BLOCK_BYTES as u64, block);
            self.admin_producer = self.admin_producer.wrapping_add(1);
        }
        self.vfpga.write(window::ADMIN_DOORBELL as u16, self.admin_producer.into());
    }

    /// The next answer to a command.
    pub fn answer(&mut self) -> Option<Completion> {
        let block = self.entry(self.admin_cq, self.admin_consumer)?;
        self.admin_consumer = self.admin_consumer.wrapping_add(1);
        Some(Completion::decode(&[block]))
    }

    /// The next event, of which the engine is told that it was read.
    pub fn event(&mut self) -> Option<Event> {
        let event = self.unread_event()?;
        self.event_consumer = self.event_consumer.wrapping_add(1);
        self.vfpga.write(window::EVENT_CONSUMER as u16, self.event_consumer.into());
        Some(event)
    }

    /// Whether an event stands behind the next one.
    pub fn has_second_event(&mut self) -> bool {
        self.event_consumer = self.event_consumer.wrapping_add(1);
        let is_there = self.unread_event().is_some();
        self.event_consumer = self.event_consumer.wrapping_sub(1);
        is_there
    }

    /// The next event, which stays unread.
    pub fn unread_event(&mut self) -> Option<Event> {
        let block = self.entry(self.events, self.event_consumer)?;
        Some(Event::decode(&[block]))
    }

    /// The command that enters the port's address.
    pub fn set_gid(&mut self, gid: [u8; 16]) {
        self.set_gid_at(0, gid);
    }

    /// The command that enters an address at an index of the table.
    pub fn set_gid_at(&mut self, index: u8, gid: [u8; 16]) {
        let command = SetGid { index, valid: 1, vlan: 0, gid };
        self.command(Opcode::SetGid, &command.encode(), 0);
    }

    /// The command that makes a completion queue; its number is not known yet.
    pub fn create_cq(&mut self, log2_entries: u8) -> Cq {
        let ring = self.allocate(record::ENTRIES + (64 << log2_entries));
        let command = CreateCq { ring, log2_entries, page: self.page, vector: 0 };
        self.command(Opcode::CreateCq, &command.encode(), 0);
        let (consumer, sequence, generation, next) = (0, 0, 0, None);
        let armed_behind = 0;
        Cq { cqn: 0, ring, log2_entries, consumer, sequence, generation, next, armed_behind }
    }

    /// The command that moves a completion queue to a new ring.
    pub fn resize_cq(&mut self, cq: &mut Cq, log2_entries: u8) {
        let ring = self.allocate(record::ENTRIES + (64 << log2_entries));
        cq.next = Some((ring, log2_entries));
        let command = ResizeCq { ring, log2_entries, cqn: cq.cqn };
        self.command(Opcode::ResizeCq, &command.encode(), 0);
    }

    /// Goes on in the new ring of a queue whose entries up to the end of the old one were polled. `tells` the engine of the last
    /// arming again, as a program does that may have stored it too late.
    pub fn moved(&mut self, cq: &mut Cq, end: u32, tells: bool) {
        let Some((ring, log2_entries)) = cq.next.take() else { return };
        (cq.ring, cq.log2_entries) = (ring, log2_entries);
        cq.consumer = cq.consumer.wrapping_sub(end);
        cq.generation = cq.generation.wrapping_add(1);
        self.memory.store(ring + record::CONSUMER as u64, &cq.consumer.to_le_bytes());
        if tells && cq.sequence != 0 {
            self.store_arming(cq, cq.armed_behind.wrapping_sub(end));
            self.ring_completions(cq);
        }
    }

    /// The command that makes a receive queue; its number is not known yet.
    pub fn create_rq(&mut self, log2_entries: u8, log2_stride: u8, kind: RqKind) -> Rq {
        let ring = self.allocate(record::ENTRIES + (64 << (log2_entries + log2_stride)));
        let (page, pdn) = (self.page, PDN);
        let command =
            CreateRq { ring, log2_entries, log2_stride, page, pdn, kind, ..CreateRq::default() };
        self.command(Opcode::CreateRq, &command.encode(), 0);
        let is_shared = kind == RqKind::Shared;
        Rq { rqn: 0, ring, log2_entries, log2_stride, producer: 0, is_shared }
    }

    /// The command that sets the limit of a receive queue.
    pub fn limit_rq(&mut self, rqn: u32, limit: u32) {
        self.command(Opcode::ModifyRq, &ModifyRq { rqn, limit }.encode(), 0);
    }

    /// A command that only names an object.
    pub fn name(&mut self, opcode: Opcode, number: u32) {
        self.command(opcode, &Destroy { number }.encode(), 0);
    }

    /// The command that makes a queue pair.
    pub fn create_qp(&mut self, cqn: u32, rqn: u32, log2_blocks: u8) -> Qp {
        let ring = self.allocate(record::ENTRIES + (64 << log2_blocks));
        let command = CreateQp {
            sq_ring: ring,
            log2_sq_blocks: log2_blocks,
            page: self.page,
            kind: QpType::Rc,
            pdn: PDN,
            send_cqn: cqn,
            receive_cqn: cqn,
            rqn,
            xrcdn: 0,
        };
        self.command(Opcode::CreateQp, &command.encode(), 0);
        Qp { qpn: 0, generation: 0, ring, log2_blocks, producer: 0 }
    }

    /// The command that takes a queue pair to its next state; so many READs it may have under way.
    pub fn modify_qp(&mut self, qpn: u32, state: QpState, peer: (u32, [u8; 16]), reads: u8) {
        use AttributeMask as M;
        let mask = match state {
            QpState::Init => M::PKEY_INDEX | M::PORT | M::ACCESS,
            QpState::Rtr => {
                let path = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
                path | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER
            }
            QpState::Rts => {
                M::TIMEOUT | M::RETRY_COUNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_RD_ATOMIC
            }
            _ => M::empty(),
        };
        let attributes = Attributes {
            mask: mask | M::STATE,
            state,
            port: 1,
            access: RIGHTS.bits(),
            dest_qpn: peer.0,
            dgid: peer.1,
            path_mtu: 5,
            timeout: 18,
            retry_count: 7,
            rnr_retry: 7,
            hop_limit: 64,
            max_rd_atomic: reads,
            max_dest_rd_atomic: 16,
            ..Attributes::default()
        };
        self.change_qp(qpn, &attributes);
    }

    /// The command that changes attributes of a queue pair.
    pub fn change_qp(&mut self, qpn: u32, attributes: &Attributes) {
        let [head] = ModifyQp { qpn }.encode();
        let [first, second] = attributes.encode();
        self.command(Opcode::ModifyQp, &[head, first, second], 0);
    }

    /// The command that registers fresh memory.
    pub fn register(&mut self, length: u64, access: Access) -> Region {
        let address = self.allocate(length);
        self.create_key(address, length, access);
        Region { key: 0, address }
    }

    /// The command that makes a key of memory.
    pub fn create_key(&mut self, address: u64, length: u64, access: Access) {
        let command = CreateKey {
            va: address,
            length,
            iova: address,
            pdn: PDN,
            access,
            ..CreateKey::default()
        };
        self.command(Opcode::CreateKey, &command.encode(), 0);
    }

    /// Takes away the memory of a queue pair's ring.
    pub fn lose_sends(&mut self, qp: &Qp) {
        self.memory.unmap(qp.ring, record::ENTRIES + (64 << qp.log2_blocks));
    }

    /// Takes away the memory of a completion queue's ring.
    pub fn lose_completions(&mut self, cq: &Cq) {
        self.memory.unmap(cq.ring, record::ENTRIES + (64 << cq.log2_entries));
    }

    /// Takes away the memory of a receive queue's ring.
    pub fn lose_receives(&mut self, rq: &Rq) {
        let bytes = 64 << (rq.log2_entries + rq.log2_stride);
        self.memory.unmap(rq.ring, record::ENTRIES + bytes);
    }

    /// Posts a work-queue entry and rings for it.
    pub fn post(&mut self, qp: &mut Qp, blocks: &[Block]) {
        self.put(qp, blocks);
        self.ring_send(qp);
    }

    /// Posts a work-queue entry, and does not ring yet.
    pub fn put(&mut self, qp: &mut Qp, blocks: &[Block]) {
        for block in blocks {
            let index = u64::from(qp.producer) & ((1 << qp.log2_blocks) - 1);
            self.store_block(qp.ring + record::ENTRIES + 64 * index, block);
            qp.producer = qp.producer.wrapping_add(1);
        }
        self.memory.store(qp.ring + record::PRODUCER as u64, &qp.producer.to_le_bytes());
    }

    /// Rings for the entries of a queue pair.
    pub fn ring_send(&mut self, qp: &Qp) {
        let (number, generation, index) = (qp.qpn, qp.generation, qp.producer);
        self.ring(QueueKind::Send, number, SlotValue { index, number, generation }.encode());
    }

    /// Posts a receive to a queue pair's queue and rings for it.
    pub fn post_receive(&mut self, rq: &mut Rq, qp: &Qp, blocks: &[Block]) {
        let index = u64::from(rq.producer) & ((1 << rq.log2_entries) - 1);
        let first = rq.ring + record::ENTRIES + ((64 * index) << rq.log2_stride);
        for (block, address) in blocks.iter().zip((first..).step_by(BLOCK_BYTES)) {
            self.store_block(address, block);
        }
        rq.producer = rq.producer.wrapping_add(1);
        self.memory.store(rq.ring + record::PRODUCER as u64, &rq.producer.to_le_bytes());
        let (index, number, generation) = (rq.producer, rq.rqn, qp.generation);
        self.ring(QueueKind::Receive, number, SlotValue { index, number, generation }.encode());
    }

    fn ring(&mut self, kind: QueueKind, number: u32, value: u64) {
        self.vfpga.write(slot_of(self.page, slot(kind, number)), value);
    }

    /// Arms a completion queue for any completion behind those that were polled, and gives the sequence of that.
    pub fn arm(&mut self, cq: &mut Cq) -> u32 {
        let sequence = self.arm_silently(cq);
        self.ring_completions(cq);
        sequence
    }

    /// The same before the doorbell rings.
    pub fn arm_silently(&mut self, cq: &mut Cq) -> u32 {
        cq.sequence = Arm::next_sequence(cq.sequence);
        cq.armed_behind = cq.consumer;
        self.store_arming(cq, cq.consumer);
        cq.sequence
    }

    fn store_arming(&mut self, cq: &Cq, consumer: u32) {
        let arm = Arm { consumer, sequence: cq.sequence, kind: ArmKind::Any };
        let (any, word) = (record::ARMED_FOR_ANY as u64, record::ARM as u64);
        self.memory.store(cq.ring + any, &cq.sequence.to_le_bytes());
        self.memory.store(cq.ring + word, &arm.encode().to_le_bytes());
    }

    fn ring_completions(&mut self, cq: &Cq) {
        let (index, number, generation) = (cq.sequence, cq.cqn, cq.generation);
        let value = SlotValue { index, number, generation };
        self.ring(QueueKind::Completion, cq.cqn, value.encode());
    }

    /// The next completion of a queue.
    pub fn poll(&mut self, cq: &mut Cq) -> Option<Cqe> {
        let index = u64::from(cq.consumer) & ((1 << cq.log2_entries) - 1);
        let block = self.load_block(cq.ring + record::ENTRIES + 64 * index);
        if phase(block[LAST_WORD]) != expected_phase(cq.consumer, cq.log2_entries) {
            return None;
        }
        cq.consumer = cq.consumer.wrapping_add(1);
        self.memory.store(cq.ring + record::CONSUMER as u64, &cq.consumer.to_le_bytes());
        Some(Cqe::decode(&[block]))
    }

    /// Takes note that a queue pair was taken to RESET: it begins anew, and its receive queue if that is its own.
    pub fn renew(&mut self, qp: &mut Qp, rq: &mut Rq, completion: &Completion) {
        (qp.generation, qp.producer) = (completion.generation, 0);
        self.memory.store(qp.ring + record::PRODUCER as u64, &[0; 4]);
        if !rq.is_shared {
            rq.producer = 0;
            self.memory.store(rq.ring + record::PRODUCER as u64, &[0; 4]);
        }
    }

    /// Takes note of the number that the engine drew for a queue pair.
    ///
    /// # Errors
    /// The status of a command that failed.
    pub fn made(qp: &mut Qp, completion: &Completion) -> Result<(), AdminStatus> {
        match completion.status {
            AdminStatus::Success => {
                (qp.qpn, qp.generation) = (completion.result, completion.generation);
                Ok(())
            }
            status => Err(status),
        }
    }
}
