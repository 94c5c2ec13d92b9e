//! What stands around the model: memory as the logic knows it, numbers that it drew, and a transport that keeps accounts.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Deref;
use std::rc::Rc;

use fpga_regs::BLOCK_BYTES;
use fpga_regs::Block;
use fpga_regs::engine::admin::{AdminStatus, CreateQp};
use fpga_regs::engine::doorbell::{Arm, SLOTS, record};
use fpga_regs::engine::qp::{AttributeMask, Attributes, QpState};
use queue_engine::{
    DoorbellPage, LocalGid, Message, Random, Record, Ring, Rings, Transport, TransportError,
    WqeOperation,
};

use crate::memory::{Pages, block_of};
use crate::port::{Command, Operation, Submitted};

/// A card's addresses end here; what is mapped of them is not for an engine to know.
const ADDRESSES: u64 = 1 << 44;
/// Messages that the model may have under way of a queue pair: those that the logic has are fewer.
const ROOM: usize = 4096;

/// Host memory, and what the logic knows of records.
#[derive(Debug, Default)]
pub(super) struct World {
    pub(super) memory: RefCell<Pages>,
    /// Producer indices, as the logic read them last.
    producers: RefCell<BTreeMap<u64, u32>>,
    /// The records of completion queues, and how many indices the logic's places in their rings are behind the model's.
    pub(super) cqs: RefCell<BTreeMap<u64, u32>>,
    /// Entries that a completion queue has whose ring the model is asked to change.
    pub(super) outstanding: Cell<u32>,
    /// Entries that the model wrote, oldest first, and how many to each ring.
    pub(super) published: RefCell<Vec<(u64, Block)>>,
    counts: RefCell<BTreeMap<u64, u32>>,
}

impl World {
    pub(super) fn block(&self, address: u64) -> Block {
        let mut bytes = [0; BLOCK_BYTES];
        self.memory.borrow_mut().load(address, &mut bytes);
        block_of(&bytes)
    }

    /// The logic has read a queue's record.
    pub(super) fn learn(&self, record: u64) {
        let [word, ..] = self.block(record);
        self.producers.borrow_mut().insert(record, word as u32);
    }

    /// The consumer index of a completion queue.
    pub(super) fn consumer(&self, record: u64) -> u32 {
        let [word, ..] = self.block(record);
        word as u32
    }

    /// A completion queue moves to a ring with another record, when the model had written so many more entries than the
    /// logic: those the logic writes to the new ring.
    pub(super) fn move_cq(&self, from: u64, to: u64, ahead: u32) {
        let mut cqs = self.cqs.borrow_mut();
        let behind = cqs.remove(&from).unwrap_or(0);
        cqs.insert(to, behind.wrapping_add(ahead));
    }

    /// A queue begins anew.
    pub(super) fn forget(&self, record: u64) {
        self.producers.borrow_mut().remove(&record);
    }
}

/// The same for the model and for who drives it.
#[derive(Clone, Debug, Default)]
pub(super) struct Shared(Rc<World>);

impl Deref for Shared {
    type Target = World;

    fn deref(&self) -> &World {
        &self.0
    }
}

/// A view of a record or of a ring.
#[derive(Debug)]
pub(super) struct View {
    world: Shared,
    iova: u64,
    mask: u64,
}

impl View {
    fn address(&self, index: u32) -> u64 {
        self.iova + (u64::from(index) & self.mask) * BLOCK_BYTES as u64
    }
}

impl Record for View {
    fn load_u32(&self, offset: usize) -> u32 {
        let is_cq = self.world.cqs.borrow().contains_key(&self.iova);
        match (offset, is_cq) {
            // Whether its ring has room is the logic's to know, which is behind.
            (record::CONSUMER, true) => {
                let counts = self.world.counts.borrow();
                let count = counts.get(&(self.iova + record::ENTRIES)).copied().unwrap_or(0);
                count.wrapping_sub(self.world.outstanding.get())
            }
            (record::PRODUCER, false) => {
                self.world.producers.borrow().get(&self.iova).copied().unwrap_or(0)
            }
            _ => (self.load_u64(offset & !7) >> (8 * (offset & 4))) as u32,
        }
    }

    fn load_u64(&self, offset: usize) -> u64 {
        let word = self.world.block(self.iova).get(offset / 8).copied().unwrap_or(0);
        let behind = self.world.cqs.borrow().get(&self.iova).copied();
        match (behind, Arm::decode(word)) {
            (Some(behind), Some(arm)) if offset == record::ARM => {
                Arm { consumer: arm.consumer.wrapping_sub(behind), ..arm }.encode()
            }
            _ => word,
        }
    }
}

impl Ring for View {
    fn read(&self, index: u32) -> Block {
        self.world.block(self.address(index))
    }

    fn write(&self, _: u32, _: &Block) {}

    fn publish(&self, index: u32, value: &Block) {
        self.world.published.borrow_mut().push((self.address(index), *value));
        self.world.counts.borrow_mut().insert(self.iova, index.wrapping_add(1));
    }
}

impl Rings for Shared {
    type Record = View;
    type Ring = View;

    fn record(&self, iova: u64) -> Option<View> {
        self.ring(iova, 0)
    }

    fn ring(&self, iova: u64, log2_blocks: u8) -> Option<View> {
        let bytes = (BLOCK_BYTES as u64) << log2_blocks;
        let is_mapped = u32::try_from(bytes).is_ok_and(|it| self.memory.borrow().has(iova, it));
        let reached = iova % BLOCK_BYTES as u64 == 0 && is_mapped;
        reached.then(|| View { world: self.clone(), iova, mask: (1 << log2_blocks) - 1 })
    }

    fn reachable(&self, iova: u64, bytes: u64) -> bool {
        iova.checked_add(bytes).is_some_and(|end| end <= ADDRESSES)
    }
}

/// The slots of all doorbell pages: what stands in one is only ever another value than before.
#[derive(Clone, Debug)]
pub(super) struct Slots(Rc<[Cell<u64>; SLOTS]>);

impl Default for Slots {
    fn default() -> Self {
        Self(Rc::new([const { Cell::new(0) }; SLOTS]))
    }
}

impl Slots {
    pub(super) fn ring(&self, slot: usize) {
        if let Some(cell) = self.0.get(slot) {
            cell.set(cell.get() + 1);
        }
    }
}

impl DoorbellPage for Slots {
    fn load(&self, slot: usize) -> u64 {
        self.0.get(slot).map_or(0, Cell::get)
    }
}

/// The numbers that the logic drew.
#[derive(Clone, Debug, Default)]
pub(super) struct Drawn(Rc<RefCell<VecDeque<u32>>>, u32);

impl Drawn {
    pub(super) fn give(&self, numbers: Vec<u32>) {
        self.0.borrow_mut().extend(numbers);
    }

    pub(super) fn clear(&self) {
        self.0.borrow_mut().clear();
    }
}

impl Random for Drawn {
    /// Where the logic drew none, the model makes what the logic did not: another number each time.
    fn next_u32(&mut self) -> u32 {
        self.1 = self.1.wrapping_add(1);
        let drawn = self.0.borrow_mut().pop_front();
        drawn.unwrap_or(self.1)
    }
}

/// The transport's accounts: what one of both engines told it, and the other did not yet.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// The status of the command that the transport answered last.
    pub(super) status: AdminStatus,
    /// By operation, queue pair or index, and state: how often the logic told more often than the model.
    commands: BTreeMap<(u8, u32, u8), i32>,
    /// Messages that the model submitted, and the logic did not yet, by queue pair.
    messages: BTreeMap<u32, VecDeque<Message>>,
    numbers: BTreeMap<u32, u64>,
    /// Queue pairs that may have no READ under way.
    readless: BTreeSet<u32>,
    /// Queue pairs that need not submit what the model did.
    failed: BTreeSet<u32>,
}

/// Which of a queue pair's, or of the port's, a command is.
fn name(command: &Command) -> (u8, u32, u8) {
    let (number, state) = match command.operation {
        Operation::Modify => (command.qpn, command.to_state().0),
        Operation::SetGid | Operation::ClearGid => (0, 0),
        _ => (command.qpn, 0),
    };
    (command.operation as u8, number, state)
}

impl Told {
    fn count(&mut self, name: (u8, u32, u8), by: i32) {
        let count = self.commands.entry(name).or_default();
        *count += by;
        if *count == 0 {
            self.commands.remove(&name);
        }
    }

    /// The logic told a command. What the model does not tell is not counted.
    pub(super) fn heard(&mut self, command: &Command) {
        use Operation::{ClearGid, Create, Destroy, Modify, SetGid};
        if matches!(command.operation, Create | Modify | Destroy | SetGid | ClearGid) {
            self.count(name(command), 1);
        }
    }

    /// The logic stops, by which the transport forgets all: the model has told it so by a command for each.
    pub(super) fn stopped(&mut self) {
        self.commands.clear();
    }

    /// Whether the logic told it more often.
    pub(super) fn is_ahead(&self, command: &Command) -> bool {
        self.commands.get(&name(command)).is_some_and(|count| *count > 0)
    }

    /// Whether the model told it more often.
    pub(super) fn expects(&self, command: &Command) -> bool {
        self.commands.get(&name(command)).is_some_and(|count| *count < 0)
    }

    pub(super) fn has_failed(&self, qpn: u32) -> bool {
        self.failed.contains(&qpn)
    }

    pub(super) fn failed(&mut self, qpn: u32) {
        self.failed.insert(qpn);
    }

    /// The logic submitted a message: what is wrong with that.
    pub(super) fn submitted(&mut self, message: &Submitted) -> Option<String> {
        let wanted = self.messages.get_mut(&message.qpn).and_then(VecDeque::pop_front);
        let Some(wanted) = wanted else {
            return Some(format!("{message:?} is no message of the model's"));
        };
        (message.message().as_ref() != Some(&wanted))
            .then(|| format!("{message:?} in place of {wanted:?}"))
    }

    /// What one of both did and the other did not.
    pub(super) fn missing(&self) -> Option<String> {
        let message = self
            .messages
            .iter()
            .find(|(qpn, messages)| !self.failed.contains(qpn) && !messages.is_empty());
        if let Some((qpn, messages)) = message {
            return Some(format!("queue pair {qpn:#x} did not submit {messages:?}"));
        }
        let ((operation, number, state), count) = self.commands.iter().next()?;
        let who = if *count > 0 { "the logic" } else { "the model" };
        Some(format!("{who} alone told command {operation} of {number:#x}, state {state}"))
    }

    fn answer(&self) -> Result<(), AdminStatus> {
        match self.status {
            AdminStatus::Success => Ok(()),
            status => Err(status),
        }
    }

    /// A queue pair begins anew, or ends.
    fn forget(&mut self, qpn: u32) {
        self.messages.remove(&qpn);
        self.numbers.remove(&qpn);
        self.failed.remove(&qpn);
    }
}

impl Transport for Told {
    fn create_qp(&mut self, qpn: u32, _: &CreateQp) -> Result<(), AdminStatus> {
        self.count((Operation::Create as u8, qpn, 0), -1);
        self.answer()
    }

    fn modify_qp(&mut self, _: u64, qpn: u32, attributes: &Attributes) -> Result<(), AdminStatus> {
        let state = attributes.state;
        self.count((Operation::Modify as u8, qpn, state.0), -1);
        if attributes.mask.contains(AttributeMask::MAX_RD_ATOMIC) {
            match attributes.max_rd_atomic {
                0 => self.readless.insert(qpn),
                _ => self.readless.remove(&qpn),
            };
        }
        if attributes.mask.contains(AttributeMask::STATE) {
            match state {
                QpState::Reset => self.forget(qpn),
                QpState::Err => self.failed(qpn),
                _ => {}
            }
        }
        self.answer()
    }

    /// What only the transport knows is in no ring, and is not compared.
    fn query_qp(&self, _: u32) -> Option<Attributes> {
        Some(Attributes::default())
    }

    fn destroy_qp(&mut self, qpn: u32) {
        self.count((Operation::Destroy as u8, qpn, 0), -1);
        self.forget(qpn);
    }

    fn room(&self, _: u32) -> usize {
        ROOM
    }

    fn submit(&mut self, _: u64, qpn: u32, message: &Message) -> Result<u64, TransportError> {
        let is_read = matches!(message.operation, WqeOperation::Read { .. });
        if is_read && self.readless.contains(&qpn) {
            return Err(TransportError::Unsupported);
        }
        self.messages.entry(qpn).or_default().push_back(*message);
        let number = self.numbers.entry(qpn).or_default();
        *number += 1;
        Ok(*number - 1)
    }

    fn counters(&self) -> Vec<u64> {
        Vec::new()
    }

    fn set_gid(&mut self, _: u8, gid: Option<LocalGid>) -> Result<(), AdminStatus> {
        let operation = if gid.is_some() { Operation::SetGid } else { Operation::ClearGid };
        self.count((operation as u8, 0, 0), -1);
        self.answer()
    }
}
