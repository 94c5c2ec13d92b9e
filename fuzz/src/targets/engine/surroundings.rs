//! The engine's surroundings with a hostile driver, client and transport.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;

use fpga_regs::Block;
use fpga_regs::engine::admin::{AdminStatus, CreateAh, CreateQp};
use fpga_regs::engine::qp::{Attributes, QpState, QpType};
use queue_engine::{
    DoorbellPage, Message, Random, Record, Ring, Rings, Transport, TransportError, WqeOperation,
};

use super::{CONFIG, NULL, OWN, PAYLOAD, PAYLOAD_BYTES, QPS, QUEUE_BYTES, QUEUE_COUNT, QUEUES};

/// Blocks that one call may read: for each QP a turn of 64 entries of up to 5 blocks each way, and
/// the admin ring.
const READS: u64 = (QPS as u64 * 2 * 64 * 5) + 64;
/// Blocks that one call may write.
const WRITES: u64 = READS;

/// Memory whose other writer is an input.
#[derive(Clone, Debug)]
pub(super) struct Memory(pub(super) Rc<Inner>);

#[derive(Debug, Default)]
pub(super) struct Inner {
    pub(super) words: RefCell<HashMap<u64, u64>>,
    /// The bytes of the next changes.
    pub(super) chaos: RefCell<Vec<u8>>,
    pub(super) reads: Cell<u64>,
    pub(super) writes: Cell<u64>,
    /// Blocks read in this call: address of the ring, index.
    pub(super) seen: RefCell<HashSet<(u64, u32)>>,
    /// Rings of send queues.
    pub(super) sends: RefCell<HashSet<u64>>,
}

impl Memory {
    pub(super) fn load(&self, address: u64) -> u64 {
        self.0.words.borrow().get(&address).copied().unwrap_or(0)
    }

    pub(super) fn store(&self, address: u64, word: u64) {
        self.0.words.borrow_mut().insert(address, word);
    }

    pub(super) fn store_block(&self, address: u64, block: &Block) {
        (0..).zip(block).for_each(|(i, word)| self.store(address + 8 * i, *word));
    }

    /// The other writer's turn: a word just read becomes another.
    pub(super) fn disturb(&self, address: u64) {
        let mut chaos = self.0.chaos.borrow_mut();
        if let Some(byte) = chaos.pop().filter(|byte| byte % 2 == 1) {
            drop(chaos);
            let word = self.load(address);
            self.store(address, word ^ (u64::from(byte) << (byte % 56)));
        }
    }

    pub(super) fn is_mapped(iova: u64, bytes: u64) -> bool {
        let within = |start: u64, length: u64| {
            iova >= start && iova.checked_add(bytes).is_some_and(|end| end <= start + length)
        };
        within(0x1000, 0x4000)
            || within(QUEUES, QUEUE_BYTES * QUEUE_COUNT)
            || within(PAYLOAD, PAYLOAD_BYTES)
    }
}

#[derive(Debug)]
pub(super) struct View {
    memory: Memory,
    iova: u64,
    mask: u64,
}

impl View {
    fn address(&self, index: u32) -> u64 {
        self.iova + (u64::from(index) & self.mask) * 64
    }

    fn count_write(&self) {
        let writes = &self.memory.0.writes;
        writes.set(writes.get() + 1);
        assert!(writes.get() <= WRITES, "writes without end at {:#x}", self.iova);
        assert!(!self.memory.0.sends.borrow().contains(&self.iova), "a send ring is written");
    }
}

impl Record for View {
    fn load_u32(&self, offset: usize) -> u32 {
        let address = self.iova + (offset as u64 & !7);
        let word = self.memory.load(address);
        // The other writer moves an index a little or far.
        if let Some(step) = self.memory.0.chaos.borrow_mut().pop().filter(|step| *step >= 0xc0) {
            let step = u64::from(step & 0x3f);
            let index = ((word >> ((offset as u64 & 4) * 8)) as u32).wrapping_add(step as u32);
            let shift = (offset as u64 & 4) * 8;
            let others = word & !(u64::from(u32::MAX) << shift);
            self.memory.store(address, others | u64::from(index) << shift);
        }
        (word >> ((offset as u64 & 4) * 8)) as u32
    }

    fn load_u64(&self, offset: usize) -> u64 {
        let word = self.memory.load(self.iova + offset as u64);
        self.memory.disturb(self.iova + offset as u64);
        word
    }
}

impl Ring for View {
    fn read(&self, index: u32) -> Block {
        let inner = &self.memory.0;
        inner.reads.set(inner.reads.get() + 1);
        assert!(inner.reads.get() <= READS, "reads without end at {:#x}", self.iova);
        if inner.sends.borrow().contains(&self.iova) {
            let first = inner.seen.borrow_mut().insert((self.iova, index));
            assert!(first, "block {index} of the send ring at {:#x} is read twice", self.iova);
        }
        let address = self.address(index);
        let block = std::array::from_fn(|i| self.memory.load(address + 8 * i as u64));
        (0..8).for_each(|i| self.memory.disturb(address + 8 * i));
        block
    }

    fn write(&self, index: u32, value: &Block) {
        self.count_write();
        self.memory.store_block(self.address(index), value);
    }

    fn publish(&self, index: u32, value: &Block) {
        self.write(index, value);
    }
}

impl Rings for Memory {
    type Record = View;
    type Ring = View;

    fn record(&self, iova: u64) -> Option<View> {
        self.ring(iova, 0)
    }

    fn ring(&self, iova: u64, log2_blocks: u8) -> Option<View> {
        assert_eq!(iova % 64, 0, "a ring is asked for at {iova:#x}");
        let blocks = 1u64.checked_shl(log2_blocks.into())?;
        let mapped = Self::is_mapped(iova, blocks.checked_mul(64)?);
        mapped.then(|| View { memory: self.clone(), iova, mask: blocks - 1 })
    }

    fn reachable(&self, iova: u64, bytes: u64) -> bool {
        Self::is_mapped(iova, bytes)
    }

    fn own(&self) -> Option<(u64, View)> {
        let mask = u64::from(CONFIG.device_memory / 64 - 1);
        Some((OWN, View { memory: self.clone(), iova: OWN, mask }))
    }

    fn null(&self) -> Option<u64> {
        Some(NULL)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Page(pub(super) Rc<RefCell<HashMap<usize, u64>>>);

impl DoorbellPage for Page {
    fn load(&self, slot: usize) -> u64 {
        assert!(slot < 512);
        self.0.borrow().get(&slot).copied().unwrap_or(0)
    }
}

#[derive(Debug)]
pub(super) struct Numbers(pub(super) crate::random::Random);

impl Random for Numbers {
    fn next_u32(&mut self) -> u32 {
        self.0.next_u64() as u32
    }
}

/// A transport with the input's answers.
#[derive(Debug, Default)]
pub(super) struct Lower {
    pub(super) qps: HashMap<u32, LowerQp>,
    /// QP, number and length of the messages submitted since the last look.
    pub(super) messages: Vec<(u32, u64, u32)>,
    /// The address handles that there are.
    pub(super) ahs: HashSet<u32>,
}

#[derive(Debug, Default)]
pub(super) struct LowerQp {
    pub(super) kind: QpType,
    pub(super) state: QpState,
    pub(super) next: u64,
    pub(super) complete: u64,
    /// Of datagrams: the address handles of the messages that are not complete, oldest first.
    pub(super) handles: VecDeque<u32>,
}

impl LowerQp {
    /// The oldest messages are complete.
    pub(super) fn end(&mut self, count: u64) {
        self.complete += count;
        self.handles.drain(..self.handles.len().min(count as usize));
    }

    /// It failed, and forgets its messages.
    pub(super) fn fail(&mut self) {
        self.state = QpState::Err;
        self.handles.clear();
    }
}

impl Transport for Lower {
    fn create_qp(&mut self, qpn: u32, command: &CreateQp) -> Result<(), AdminStatus> {
        let qp = LowerQp { kind: command.kind, ..LowerQp::default() };
        assert!(self.qps.insert(qpn, qp).is_none(), "QPN {qpn:#x} is in use");
        Ok(())
    }

    fn modify_qp(&mut self, _: u64, qpn: u32, attributes: &Attributes) -> Result<(), AdminStatus> {
        let qp = self.qps.get_mut(&qpn).expect("the engine names a QP that exists");
        match attributes.state {
            QpState::Reset => *qp = LowerQp { kind: qp.kind, ..LowerQp::default() },
            QpState::Err => qp.fail(),
            state => qp.state = state,
        }
        Ok(())
    }

    fn create_ah(&mut self, _: u64, ah: u32, _: &CreateAh) -> Result<(), AdminStatus> {
        assert!(self.ahs.insert(ah), "address handle {ah:#x} is in use");
        Ok(())
    }

    fn destroy_ah(&mut self, ah: u32) {
        assert!(self.ahs.remove(&ah), "address handle {ah:#x} does not exist");
        let is_named = self.qps.values().any(|qp| qp.handles.contains(&ah));
        assert!(!is_named, "a datagram under way names {ah:#x}, which goes");
    }

    fn query_qp(&self, qpn: u32) -> Option<Attributes> {
        self.qps.get(&qpn).map(|qp| Attributes { state: qp.state, ..Attributes::default() })
    }

    fn destroy_qp(&mut self, qpn: u32) {
        assert!(self.qps.remove(&qpn).is_some(), "QPN {qpn:#x} does not exist");
    }

    fn set_member(&mut self, _: u64, qpn: u32, _: [u8; 16], _: bool) -> Result<(), AdminStatus> {
        assert!(self.qps.contains_key(&qpn), "the engine names a QP that exists");
        Ok(())
    }

    fn room(&self, qpn: u32) -> usize {
        let under_way = |qp: &LowerQp| 1024usize.saturating_sub((qp.next - qp.complete) as usize);
        self.qps.get(&qpn).map_or(0, under_way)
    }

    fn submit(&mut self, _: u64, qpn: u32, message: &Message) -> Result<u64, TransportError> {
        let qp = self.qps.get_mut(&qpn).expect("the engine names a QP that exists");
        assert_eq!(qp.state, QpState::Rts, "a message of a QP that does not send");
        assert_ne!(qp.kind, QpType::XrcReceive, "a message of a target");
        if let WqeOperation::Datagram { datagram, .. } = message.operation {
            assert!(self.ahs.contains(&datagram.ah), "a datagram by a handle that is not there");
            qp.handles.push_back(datagram.ah);
        }
        assert_eq!(message.srqn.is_some(), qp.kind == QpType::XrcSend, "{message:?}");
        self.messages.push((qpn, qp.next, message.length));
        qp.next += 1;
        Ok(qp.next - 1)
    }

    fn counters(&self) -> Vec<u64> {
        vec![1, 2, 3]
    }
}
