//! The queue engine in RTL beside the one in Rust, which follows it: lock-step by replay.
//!
//! The model (`queue-engine`) has the same registers, rings, and reports of the transport. It goes on when the logic shows
//! that it does: with a record that the logic has read, with a report or a question that it has taken, with the end of a
//! command. So it is ahead of the logic, or as far, and all that the logic writes, submits and says has to be what the model
//! did. The numbers that the logic drew are the model's.
//!
//! Within a queue pair's sends, and within its receives, completions have the model's order, each in the next place of its
//! ring; events have any. Entries are the same byte for byte but for the time, and for the length of what failed.
//! [`LockStep::end`] sees that the logic left nothing out.
//!
//! The model's completion queues are never full, for only the logic knows what their consumers were when it looked. So
//! accounts of each queue say what it had room for, what may be lost, and of which loss the driver has to hear.

mod model;
mod room;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use fpga_regs::engine::admin::{
    AdminStatus, Completion, CreateCq, CreateQp, CreateRq, Destroy, Header, MAX_BLOCKS, ModifyQp,
    Opcode,
};
use fpga_regs::engine::cqe::{Cqe, Flags, Status, expected_phase};
use fpga_regs::engine::doorbell::{QueueKind, record, slot};
use fpga_regs::engine::event::{Event, QpEvent};
use fpga_regs::engine::key;
use fpga_regs::engine::qp::{AttributeMask, Attributes, QpState};
use fpga_regs::engine::window as w;
use fpga_regs::{BLOCK_BYTES, Block};
use queue_engine::{
    Engine, EngineConfig, Payload, ReceiveError, ReceiveKind, ReceivedMessage, RemoteAccess,
    RemoteRange, TransportEvent,
};

use crate::memory::{Pages, block_of};
use crate::port::{
    Check, Claimed, Command, Operation, Passed, Payload as Bytes, Report, Transfer, Verdict,
};
use model::{Drawn, Shared, Slots, Told};
use room::{Cq, Losses, Wanted};

/// Turns in which the model comes to rest.
const TURNS: u32 = 10_000;
/// Receives of a queue pair that the logic has claimed at most: `RECEIVES` of `balboa_engine_pkg.sv`.
const CLAIMS: usize = 4;

/// Where the logic does what the model does not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not in step with the model: {0}")]
pub struct OutOfStep(String);

type Step = Result<(), OutOfStep>;

/// What does not depend on when an event was written.
fn timeless(event: &Event) -> Event {
    Event { timestamp: 0, phase: 0, ..*event }
}

fn out<T>(what: String) -> Result<T, OutOfStep> {
    Err(OutOfStep(what))
}

/// The queue pair that a command takes to a state.
fn goes_to(state: QpState, header: &Header, blocks: &[Block; MAX_BLOCKS]) -> Option<u32> {
    let asked = Attributes::decode(&[blocks[1], blocks[2]]);
    let goes = header.opcode == Opcode::ModifyQp
        && asked.mask.contains(AttributeMask::STATE)
        && asked.state == state;
    goes.then(|| ModifyQp::decode(&[blocks[0]]).qpn)
}

/// A ring that the logic writes.
#[derive(Clone, Copy, Debug, Default)]
struct Written {
    base: u64,
    log2: u8,
    next: u32,
}

impl Written {
    /// The ring of a completion queue, which begins with a record.
    fn behind(record: u64, log2: u8) -> Self {
        Self { base: record + record::ENTRIES, log2, next: 0 }
    }

    fn has(&self, address: u64) -> bool {
        self.base != 0 && (self.base..self.base + (64 << self.log2)).contains(&address)
    }

    /// The next entry stands here, and has this phase.
    fn take(&mut self, address: u64, phase: u8) -> Step {
        let index = u64::from(self.next) & ((1 << self.log2) - 1);
        let wanted = (self.base + 64 * index, u8::from(expected_phase(self.next, self.log2)));
        self.next = self.next.wrapping_add(1);
        match (address, phase) == wanted {
            true => Ok(()),
            false => out(format!("an entry at {address:#x} of phase {phase}, not {wanted:x?}")),
        }
    }
}

/// A queue pair, as the logic has it.
#[derive(Clone, Copy, Debug)]
struct Qp {
    record: u64,
    send_cqn: u32,
    receive_cqn: u32,
    rqn: u32,
    /// Receives that are claimed.
    claimed: usize,
    /// Receives for whose completions room is kept, at least.
    kept: u32,
}

/// A receive queue.
#[derive(Clone, Copy, Debug)]
struct Rq {
    record: u64,
    is_shared: bool,
}

/// The limits and capabilities of an engine, by its registers.
pub fn limits(mut read: impl FnMut(u64) -> u64) -> EngineConfig {
    let queues = w::LimitQueues::decode(read(w::LIMIT_QUEUES));
    let w::LimitQpCq { qps, cqs } = w::LimitQpCq::decode(read(w::LIMIT_QP_CQ));
    let w::LimitKeyRq { keys, rqs } = w::LimitKeyRq::decode(read(w::LIMIT_KEY_RQ));
    let w::LimitPort { max_message, ahs, .. } = w::LimitPort::decode(read(w::LIMIT_PORT));
    let multicast = w::LimitMulticast::decode(read(w::LIMIT_MULTICAST));
    EngineConfig {
        window: 0,
        profile: w::Version::decode(read(w::VERSION)).profile,
        capabilities: w::Capabilities::from_bits_retain(read(w::CAPABILITIES)),
        qps,
        cqs,
        rqs,
        keys,
        ahs,
        groups: multicast.groups,
        qps_per_group: multicast.qps_per_group,
        rates: w::LimitRate::decode(read(w::LIMIT_RATE)),
        log2_cq_entries: queues.log2_cq_entries,
        log2_sq_blocks: queues.log2_sq_blocks,
        log2_rq_entries: queues.log2_rq_entries,
        max_rd_atomic: queues.max_reads_under_way,
        max_message,
        device_memory: w::LimitDm::decode(read(w::LIMIT_DM)).bytes,
        event_rings: w::LimitEvents::decode(read(w::LIMIT_EVENTS)).rings,
        // No register says it; a card's memory for messages is not the host's.
        under_way_bytes: 1 << 20,
    }
}

/// The model beside one engine.
#[derive(Debug)]
pub struct LockStep {
    engine: Engine<Shared, Slots, Drawn>,
    world: Shared,
    slots: Slots,
    drawn: Drawn,
    told: Told,
    now: u64,
    /// The ring of commands, and as far as it was rung for.
    commands: Written,
    rung: u32,
    admin: Written,
    events: Written,
    cqs: BTreeMap<u32, Cq>,
    rqs: BTreeMap<u32, Rq>,
    qps: BTreeMap<u32, Qp>,
    /// Completion queues whose doorbell rang since their record was read.
    armed: BTreeSet<u32>,
    /// Queue pairs that a command took to ERR, and of which the logic has not been seen to flush anything.
    held: BTreeSet<u32>,
    /// What the model wrote, and the logic did not yet.
    answers: VecDeque<Block>,
    told_events: Vec<Event>,
    /// By completion queue, queue pair, and whether of receives.
    completions: BTreeMap<(u32, u32, bool), VecDeque<Wanted>>,
    losses: Losses,
    /// A queue pair that a command destroys, or takes to RESET, which is still to be answered.
    ending: Option<u32>,
    open: BTreeMap<u8, Command>,
    checks: BTreeMap<u8, Check>,
    claims: BTreeMap<u8, u32>,
    fetches: BTreeMap<u8, Transfer>,
    places: BTreeMap<u8, Transfer>,
    /// Steps that were compared.
    pub compared: u64,
}

impl LockStep {
    /// A model out of reset with the limits of the logic.
    #[must_use]
    pub fn new(config: EngineConfig) -> Self {
        let (world, slots, drawn) = (Shared::default(), Slots::default(), Drawn::default());
        let mut engine = Engine::new(config, drawn.clone());
        // Doorbell pages of a card are always there.
        for page in 1..=w::DOORBELL_PAGES {
            engine.open_page(page, slots.clone());
        }
        Self {
            engine,
            world,
            slots,
            drawn,
            told: Told::default(),
            now: 0,
            commands: Written::default(),
            rung: 0,
            admin: Written::default(),
            events: Written::default(),
            cqs: BTreeMap::new(),
            rqs: BTreeMap::new(),
            qps: BTreeMap::new(),
            armed: BTreeSet::new(),
            held: BTreeSet::new(),
            answers: VecDeque::new(),
            told_events: Vec::new(),
            completions: BTreeMap::new(),
            losses: Losses::default(),
            ending: None,
            open: BTreeMap::new(),
            checks: BTreeMap::new(),
            claims: BTreeMap::new(),
            fetches: BTreeMap::new(),
            places: BTreeMap::new(),
            compared: 0,
        }
    }

    /// Follows the logic through what passed.
    ///
    /// # Errors
    /// Where it is not what the model does.
    pub fn follow(&mut self, passed: Vec<Passed>, memory: &mut Pages) -> Step {
        if passed.is_empty() {
            return Ok(());
        }
        std::mem::swap(memory, &mut *self.world.memory.borrow_mut());
        let followed = passed.into_iter().try_for_each(|it| self.step(it));
        std::mem::swap(memory, &mut *self.world.memory.borrow_mut());
        followed
    }

    /// Nothing is under way any more: all that the model did, the logic did.
    ///
    /// # Errors
    /// Where something is missing.
    pub fn end(&self) -> Step {
        for ((cqn, qpn, _), left) in &self.completions {
            // Behind an overrun all are lost, and each queue pair fails for that.
            let is_lost = self.cqs.get(cqn).is_some_and(|cq| cq.has_overrun)
                && (!self.qps.contains_key(qpn) || self.told.has_failed(*qpn));
            if let Some(missing) = left.front().filter(|_| !is_lost) {
                return out(format!("a completion is missing: {missing:?}"));
            }
        }
        if let Some(qpn) = self.untold() {
            return out(format!("no event tells that a completion of {qpn:#x} was lost"));
        }
        if let Some(qpn) = self.held.first() {
            return out(format!("queue pair {qpn:#x} was not flushed"));
        }
        if let Some(missing) = self.told_events.first() {
            return out(format!("an event is missing: {missing:?}"));
        }
        if !self.answers.is_empty() {
            return out("an answer to a command is missing".to_owned());
        }
        match self.told.missing() {
            Some(missing) => out(missing),
            None => Ok(()),
        }
    }

    fn step(&mut self, passed: Passed) -> Step {
        self.now += 1;
        match passed {
            Passed::Register { offset, value } => self.write(offset.into(), value),
            Passed::Read { address, length } => self.read(address, length as u64),
            Passed::Wrote { address, bytes } => return self.wrote(address, &bytes),
            Passed::Command(command) => {
                match self.ends_for_loss(&command) {
                    true => self.lose(command.qpn),
                    false => self.told.heard(&command),
                }
                // From here on the logic serves nothing of it.
                if command.operation == Operation::Destroy {
                    self.qps.remove(&command.qpn);
                }
                self.open.insert(command.tag, command);
            }
            Passed::Done { tag, status } => return self.done(tag, status),
            Passed::Submitted(message) => {
                self.compared += 1;
                return self.told.submitted(&message).map_or(Ok(()), out);
            }
            Passed::Check(check) => drop(self.checks.insert(check.tag, check)),
            Passed::Checked(tag, verdict) => return self.checked(tag, verdict),
            Passed::Claim(tag, qpn) => drop(self.claims.insert(tag, qpn)),
            Passed::Claimed(claimed) => return self.claimed(&claimed),
            Passed::Fetch(transfer) => drop(self.fetches.insert(transfer.tag, transfer)),
            Passed::Fetched(tag, verdict) => {
                let transfer = self.fetches.remove(&tag);
                return self.moved(transfer, verdict);
            }
            Passed::Place(transfer) => drop(self.places.insert(transfer.tag, transfer)),
            Passed::Placed(tag, verdict) => {
                let transfer = self.places.remove(&tag);
                return self.moved(transfer, verdict);
            }
            Passed::Report(report) => self.report(&report),
            // From here on it serves nothing, and a command that is under way has no effect.
            Passed::Stop => {
                self.qps.clear();
                self.open.clear();
                self.told.stopped();
            }
        }
        Ok(())
    }

    // ---- The driver and the programs

    fn write(&mut self, offset: u64, value: u64) {
        if offset >= w::PAGE_BYTES {
            // Who has armed is seen once the record is read; others by their records alone.
            let place = ((offset % w::PAGE_BYTES) / 8) as usize;
            let behind = |cqn: &&u32| slot(QueueKind::Completion, **cqn) == place;
            self.armed.extend(self.cqs.keys().filter(behind));
            return;
        }
        match offset {
            w::ADMIN_DOORBELL => self.rung = value as u32,
            _ => {
                match offset {
                    w::ADMIN_SQ_BASE => self.commands.base = value,
                    w::ADMIN_SQ_SIZE => self.commands.log2 = value as u8,
                    w::ADMIN_CQ_BASE => self.admin.base = value,
                    w::ADMIN_CQ_SIZE => self.admin.log2 = value as u8,
                    w::EVENT_BASE => self.events.base = value,
                    w::EVENT_SIZE => self.events.log2 = value as u8,
                    _ => {}
                }
                self.engine.write_register(offset, value, &mut self.told);
                self.settle();
            }
        }
    }

    /// The logic has read host memory: of records it knows as much as stands there now.
    fn read(&mut self, address: u64, length: u64) {
        let is_read = |at: u64| (address..address.saturating_add(length)).contains(&at);
        let mut looked = Vec::new();
        for (qpn, qp) in self.qps.iter().filter(|(_, qp)| is_read(qp.record)) {
            self.world.learn(qp.record);
            // In ERR it is read behind the messages that were flushed.
            self.held.remove(qpn);
            looked.push((QueueKind::Send, *qpn));
        }
        for (rqn, rq) in self.rqs.iter().filter(|(_, rq)| is_read(rq.record)) {
            self.world.learn(rq.record);
            looked.push((QueueKind::Receive, *rqn));
        }
        for (cqn, cq) in self.cqs.iter_mut().filter(|(_, cq)| is_read(cq.record())) {
            cq.consumer = self.world.consumer(cq.record());
            if self.armed.remove(cqn) {
                looked.push((QueueKind::Completion, *cqn));
            }
        }
        if !looked.is_empty() {
            looked.into_iter().for_each(|(kind, number)| self.slots.ring(slot(kind, number)));
            self.settle();
        }
    }

    /// Lets the model do all that it can.
    fn settle(&mut self) {
        for _ in 0..TURNS {
            let executed = self.engine.execute(self.now, &self.world, &mut self.told);
            let has_turn = |qpn| !self.held.contains(&qpn);
            if !self.engine.poll_of(self.now, has_turn, &mut self.told) && !executed {
                break;
            }
        }
        self.collect();
    }

    /// The logic flushes a queue pair: so does the model, if it has not begun.
    fn flush(&mut self, qpn: u32) {
        if self.held.remove(&qpn) {
            self.settle();
        }
    }

    /// Takes note of what the model wrote.
    fn collect(&mut self) {
        for (address, block) in self.world.published.take() {
            if self.admin.has(address) {
                self.answers.push_back(block);
            } else if self.events.has(address) {
                self.told_events.push(Event::decode(&[block]));
            } else if let Some(cqn) = self.cq_at(address) {
                let entry = Cqe::decode(&[block]);
                let place = (cqn, entry.qpn, entry.flags.contains(Flags::RECEIVE));
                // One that is flushed, or fails, has taken its queue pair to ERR before.
                let works = entry.status == Status::Success && !self.told.has_failed(entry.qpn);
                self.completions.entry(place).or_default().push_back(Wanted { entry, works });
            }
        }
    }

    // ---- What the logic writes

    fn wrote(&mut self, address: u64, bytes: &[u8]) -> Step {
        if bytes.len() != BLOCK_BYTES {
            return Ok(());
        }
        let block = block_of(bytes);
        if self.admin.has(address) {
            return self.answered(address, block);
        }
        if self.events.has(address) {
            return self.told_of(address, &Event::decode(&[block]));
        }
        if self.moving_to().is_some_and(|(_, ring)| ring.has(address)) {
            self.command(None)?;
        }
        match self.cq_at(address) {
            Some(cqn) => self.completed(cqn, address, block),
            None => Ok(()),
        }
    }

    /// The logic has written a completion.
    fn completed(&mut self, cqn: u32, address: u64, block: Block) -> Step {
        let entry = Cqe::decode(&[block]);
        let is_receive = entry.flags.contains(Flags::RECEIVE);
        if let Some(qp) = self.qps.get_mut(&entry.qpn).filter(|_| is_receive) {
            qp.kept = qp.kept.saturating_sub(1);
        }
        // What no report has ended is flushed.
        let place = (cqn, entry.qpn, is_receive);
        if self.completions.get(&place).is_none_or(VecDeque::is_empty) {
            self.flush(entry.qpn);
        }
        if entry.status == Status::Flushed && self.losses.owes(entry.qpn) {
            return out(format!("{entry:?}, and no event tells that a completion was lost"));
        }
        let kept = self.kept(cqn);
        let Some(cq) = self.cqs.get_mut(&cqn) else { return Ok(()) };
        cq.ring.take(address, entry.phase)?;
        if cq.waiting().saturating_add(kept) > cq.entries() {
            return out(format!("{entry:?} has no room: {kept} are kept in {cq:?}"));
        }
        let wanted = self.completions.get_mut(&place);
        let Some(Wanted { entry: wanted, .. }) = wanted.and_then(VecDeque::pop_front) else {
            return out(format!("{entry:?} is no completion of the model's"));
        };
        // Docs of the contract: the length is undefined with an error.
        let byte_count =
            if entry.status == Status::Success { wanted.byte_count } else { entry.byte_count };
        let Cqe { timestamp, phase, .. } = entry;
        let [wanted] = Cqe { timestamp, phase, byte_count, ..wanted }.encode();
        self.compared += 1;
        match wanted == block {
            true => Ok(()),
            false => out(format!("{entry:?} in place of {:?}", Cqe::decode(&[wanted]))),
        }
    }

    /// The logic has written an event.
    fn told_of(&mut self, address: u64, event: &Event) -> Step {
        let mut is_there = self.take_event(event);
        // Some come before their command is answered: of a limit, of an arming that is found when a queue moves.
        let is_early = |it: &Self| match it.next_command() {
            Some((header, ..)) => matches!(header.opcode, Opcode::ModifyRq | Opcode::ResizeCq),
            None => false,
        };
        if !is_there && self.answers.is_empty() && is_early(self) {
            self.command(None)?;
            is_there = self.take_event(event);
        }
        if !is_there && self.is_of_loss(event) {
            is_there = self.take_event(event);
        }
        if !is_there {
            return out(format!("{event:?} is no event of the model's"));
        }
        self.compared += 1;
        self.events.take(address, event.phase)
    }

    /// Takes an event out of those that the model told of, if it is one.
    fn take_event(&mut self, event: &Event) -> bool {
        let place = self.told_events.iter().position(|it| timeless(it) == timeless(event));
        place.map(|place| self.told_events.remove(place)).is_some()
    }

    /// The logic has answered a command.
    fn answered(&mut self, address: u64, block: Block) -> Step {
        let answer = Completion::decode(&[block]);
        if self.answers.is_empty() {
            self.command(Some(&answer))?;
        }
        let Some(wanted) = self.answers.pop_front() else {
            return out(format!("{answer:?} is the answer to no command"));
        };
        self.compared += 1;
        if let Some(qpn) = self.ending.take() {
            self.ended(qpn)?;
        }
        self.admin.take(address, answer.phase)?;
        match wanted == block {
            true => Ok(()),
            false => out(format!("{answer:?} in place of {:?}", Completion::decode(&[wanted]))),
        }
    }

    // ---- Commands

    /// The next command that the logic has not answered.
    fn next_command(&self) -> Option<(Header, [Block; MAX_BLOCKS], u32)> {
        let first = self.commands.next;
        if first == self.rung {
            return None;
        }
        let index =
            |step: u32| u64::from(first.wrapping_add(step)) & ((1 << self.commands.log2) - 1);
        let block = |step: usize| self.world.block(self.commands.base + 64 * index(step as u32));
        let blocks: [Block; MAX_BLOCKS] = std::array::from_fn(block);
        let header = Header::decode(&[blocks[0]]);
        let is_sound = (1..=MAX_BLOCKS).contains(&usize::from(header.blocks));
        let count = if is_sound { u32::from(header.blocks) } else { 1 };
        Some((header, blocks, count))
    }

    /// Lets the model execute the next command, with the numbers that the logic drew.
    fn command(&mut self, answer: Option<&Completion>) -> Step {
        let Some((header, blocks, count)) = self.next_command() else {
            return out(format!("{answer:?}, and no command was rung for"));
        };
        let first = [blocks[0]];
        if let Some(answer) = answer.filter(|answer| answer.status == AdminStatus::Success) {
            let (number, generation) = (answer.result, answer.generation);
            self.drawn.give(match header.opcode {
                Opcode::CreateKey => vec![key::number(number), key::variant(number).into()],
                Opcode::CreateQp => vec![number, generation.into()],
                _ => vec![number],
            });
        }
        let moving = self.moving_to();
        let failing = goes_to(QpState::Err, &header, &blocks).filter(|qpn| self.held.insert(*qpn));
        self.commands.next = self.commands.next.wrapping_add(count);
        self.engine.write_register(w::ADMIN_DOORBELL, self.commands.next.into(), &mut self.told);
        if let Some((cqn, ring)) = moving {
            self.move_cq(cqn, ring);
        }
        self.settle();
        let answered = self.answers.back().map(|block| Completion::decode(&[*block]).status);
        let has_done = answered == Some(AdminStatus::Success);
        if let Some(qpn) = failing.filter(|_| !has_done) {
            self.flush(qpn);
        }
        if let Some(qpn) = goes_to(QpState::Err, &header, &blocks) {
            self.losses.settle(qpn);
        }
        let ended = match header.opcode {
            Opcode::DestroyQp => Some(Destroy::decode(&first).number),
            _ => goes_to(QpState::Reset, &header, &blocks),
        };
        self.ending = ended.filter(|_| has_done);
        if let Some(qpn) = self.ending {
            self.held.remove(&qpn);
        }
        self.began(&header, &blocks);
        self.drawn.clear();
        self.told.status = AdminStatus::Success;
        let number = answer.map_or(0, |answer| answer.result);
        let is_made = answer.is_some_and(|answer| answer.status == AdminStatus::Success);
        match header.opcode {
            Opcode::CreateCq if is_made => {
                let CreateCq { ring, log2_entries, .. } = CreateCq::decode(&first);
                self.cqs.insert(number, Cq::new(Written::behind(ring, log2_entries)));
                self.world.cqs.borrow_mut().insert(ring, 0);
            }
            Opcode::CreateRq if is_made => {
                let CreateRq { ring: record, kind, .. } = CreateRq::decode(&first);
                let is_shared = kind != fpga_regs::engine::admin::RqKind::Private;
                self.world.forget(record);
                self.rqs.insert(number, Rq { record, is_shared });
            }
            Opcode::CreateQp if is_made => {
                let CreateQp { sq_ring: record, send_cqn, receive_cqn, rqn, .. } =
                    CreateQp::decode(&first);
                self.world.forget(record);
                let qp = Qp { record, send_cqn, receive_cqn, rqn, claimed: 0, kept: 0 };
                self.qps.insert(number, qp);
            }
            Opcode::DestroyCq if is_made => {
                if let Some(cq) = self.cqs.remove(&Destroy::decode(&first).number) {
                    self.world.cqs.borrow_mut().remove(&cq.record());
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// A command was executed, which may have taken a queue pair to RESET: what the records said counts no more.
    fn began(&mut self, header: &Header, blocks: &[Block; MAX_BLOCKS]) {
        let Some(qpn) = goes_to(QpState::Reset, header, blocks) else { return };
        let Some(qp) = self.qps.get_mut(&qpn) else { return };
        (qp.claimed, qp.kept) = (0, 0);
        self.held.remove(&qpn);
        self.world.forget(qp.record);
        if let Some(rq) = self.rqs.get(&qp.rqn).filter(|rq| !rq.is_shared) {
            self.world.forget(rq.record);
        }
    }

    /// The transport's answer was taken: the command's effects begin, of one of the driver's.
    fn done(&mut self, tag: u8, status: u8) -> Step {
        let Some(command) = self.open.remove(&tag) else { return Ok(()) };
        self.told.status = AdminStatus(status);
        let ends = matches!(command.operation, Operation::Modify | Operation::Destroy);
        // One by which the engine fails a queue pair is the model's already.
        if ends && self.told.is_ahead(&command) && self.answers.is_empty() {
            return self.command(None);
        }
        Ok(())
    }

    // ---- The transport

    fn report(&mut self, report: &Report) {
        let event = match *report {
            Report::Ended { qpn, count } => TransportEvent::Completed { qpn, count: count.into() },
            Report::Failed { qpn, status } => {
                self.told.failed(qpn);
                TransportEvent::Failed { qpn, status: Status(status) }
            }
            Report::Error { qpn } => {
                self.told.failed(qpn);
                TransportEvent::Error { qpn }
            }
            Report::Commit { qpn, length, is_write, immediate, solicited } => {
                self.unclaim(qpn);
                let kind = if is_write { ReceiveKind::Write } else { ReceiveKind::Send };
                let source_qpn = None;
                let received =
                    ReceivedMessage { qpn, length, kind, immediate, solicited, source_qpn };
                TransportEvent::Received(received)
            }
            Report::ReceiveFailed { qpn, status } => {
                self.told.failed(qpn);
                self.unclaim(qpn);
                TransportEvent::ReceiveFailed { qpn, status: Status(status) }
            }
            Report::Event { qpn, event } => TransportEvent::Async { qpn, event: QpEvent(event) },
            Report::Link { .. } => return,
        };
        let qpn = event.qpn();
        if self.qps.contains_key(&qpn) {
            self.engine.handle(self.now, event, &mut self.told);
            self.collect();
            // One that fails the queue pair flushes it at once.
            if matches!(
                event,
                TransportEvent::Failed { .. }
                    | TransportEvent::Error { .. }
                    | TransportEvent::ReceiveFailed { .. }
            ) {
                self.held.remove(&qpn);
            }
            self.settle();
        }
    }

    fn unclaim(&mut self, qpn: u32) {
        if let Some(qp) = self.qps.get_mut(&qpn) {
            qp.claimed = qp.claimed.saturating_sub(1);
        }
    }

    fn checked(&mut self, tag: u8, verdict: Verdict) -> Step {
        let Some(check) = self.checks.remove(&tag) else { return Ok(()) };
        let Check { qpn, rkey, address: va, length, is_read, .. } = check;
        let access = if is_read { RemoteAccess::Read } else { RemoteAccess::Write };
        let memory = RemoteRange { rkey, va, length: length.into() };
        let allowed = self.engine.allows(qpn, memory, access);
        self.compared += 1;
        match self.agrees(qpn, allowed, verdict) {
            true => Ok(()),
            false => out(format!("{verdict:?} to {check:?}")),
        }
    }

    /// Whether a verdict is the model's. A queue pair that ends has it until its command has been executed.
    fn agrees(&self, qpn: u32, may: bool, verdict: Verdict) -> bool {
        may == (verdict == Verdict::Done) || may && !self.qps.contains_key(&qpn)
    }

    fn claimed(&mut self, claimed: &Claimed) -> Step {
        let Some(qpn) = self.claims.remove(&claimed.tag) else { return Ok(()) };
        let receive_cqn = self.qps.get(&qpn).map_or(0, |qp| qp.receive_cqn);
        let may_lack_room = self.may_be_full(receive_cqn);
        let Some(qp) = self.qps.get_mut(&qpn) else { return Ok(()) };
        if claimed.verdict == Verdict::Empty && qp.claimed == CLAIMS {
            return Ok(());
        }
        let wanted = self.engine.take_receive(qpn);
        let is_right = match (claimed.verdict, &wanted) {
            (Verdict::Done, Ok(taken)) => {
                let capacity = u32::try_from(taken.capacity).unwrap_or(u32::MAX);
                (claimed.receive, claimed.capacity) == (taken.id as u32, capacity)
            }
            (Verdict::Empty, Err(ReceiveError::Empty)) => true,
            (Verdict::InvalidReceive, Err(ReceiveError::Invalid)) => true,
            (Verdict::InvalidReceive, Ok(_)) => may_lack_room,
            _ => false,
        };
        if claimed.verdict == Verdict::InvalidReceive && wanted.is_ok() {
            // No room, so its completion is lost.
            self.losses.owe(qpn, self.told.has_failed(qpn));
        }
        qp.kept += u32::from(claimed.verdict == Verdict::Done);
        qp.claimed += usize::from(claimed.verdict != Verdict::Empty);
        self.compared += 1;
        self.settle();
        match is_right {
            true => Ok(()),
            false => out(format!("{claimed:?} of queue pair {qpn:#x} in place of {wanted:?}")),
        }
    }

    /// Bytes were moved, or not.
    fn moved(&mut self, transfer: Option<Transfer>, verdict: Verdict) -> Step {
        let Some(transfer) = transfer else { return Ok(()) };
        let payload = match transfer.payload {
            Bytes::Message(number) => Payload::Message { number: number.into() },
            Bytes::Receive(id) => Payload::Receive { id: id.into() },
            Bytes::Remote { rkey, address, is_read } => {
                let access = if is_read { RemoteAccess::Read } else { RemoteAccess::Write };
                Payload::Remote { rkey, address, access }
            }
        };
        let (qpn, offset) = (transfer.qpn, transfer.offset.into());
        let length = transfer.length.into();
        let found = self.engine.resolve(qpn, payload, offset, length, &mut Vec::new());
        self.compared += 1;
        match self.agrees(qpn, found.is_ok(), verdict) {
            true => Ok(()),
            false => out(format!("{verdict:?} to {transfer:?}")),
        }
    }
}
