//! Questions for payload of which many are under way at one engine in RTL: bytes and verdicts of each, where parts of memory
//! are out of reach; that a ring which is makes the engine stop; and that nothing reaches memory behind the answer to the
//! command that ends its key, or behind a reset.

use std::collections::VecDeque;

use fpga_regs::engine::admin::Opcode;
use fpga_regs::engine::event::EventType;
use fpga_regs::engine::window::{CONTROL, CONTROL_RESET, STATUS};
use fpga_regs::engine::wqe::{SendFlags, SendHeader, SendOpcode, Sge};

use crate::alone::{Alone, RING_LOST, cycle, started};
use crate::bus::{Config, Counts};
use crate::ffi::Library;
use crate::host::{Cq, Host, Qp, RIGHTS, Region};
use crate::memory::PAGE_BYTES;
use crate::messages::{MessageError, PATIENCE, send_entry, wrong};
use crate::port::{Payload, Report, Submitted, Transfer, Verdict};
use crate::random::Random;

/// Pages of the region: of the first half bytes are fetched, into the other half they are placed.
const PAGES: u64 = 32;
const HALF: u64 = PAGES / 2 * PAGE_BYTES;
/// Messages, half of them READs.
const MESSAGES: u32 = 8;
/// Questions of a round.
const QUESTIONS: u8 = 60;
/// Bytes of an element at most.
const ELEMENT: u64 = 600;

/// What was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Questions that were answered with their bytes.
    pub done: u64,
    /// Those that were refused.
    pub refused: u64,
    /// Faults that the driver refused.
    pub faults: u64,
    /// Cycles.
    pub cycles: u64,
}

struct Bench {
    host: Host,
    random: Random,
    cq: Cq,
    qp: Qp,
    region: Region,
    /// The elements of each message.
    messages: Vec<Vec<Sge>>,
    submitted: Vec<Submitted>,
    /// Verdicts of fetches, with their bytes, and of places, oldest first.
    fetches: VecDeque<Option<Vec<u8>>>,
    places: VecDeque<Option<Vec<u8>>>,
    seen: Asked,
}

/// Runs a scenario that a seed decides.
///
/// # Errors
/// [`MessageError`].
pub fn run(library: &Library, config: &Config) -> Result<Asked, MessageError> {
    let mut bench = Bench::connected(library, config)?;
    bench.post()?;
    bench.compared()?;
    bench.ended()?;
    let faults = bench.host.vfpga.faults;
    Bench::connected(library, config)?.lost()?;
    bench.seen.cycles = bench.host.vfpga.now();
    bench.seen.faults = faults;
    Ok(bench.seen)
}

impl Alone for Bench {
    fn host(&mut self) -> &mut Host {
        &mut self.host
    }

    fn cycle(&mut self) -> Result<(), MessageError> {
        let port = cycle(&mut self.host, MESSAGES as u16)?;
        self.submitted.extend(port.submitted.drain(..));
        Ok(())
    }
}

impl Bench {
    fn connected(library: &Library, config: &Config) -> Result<Self, MessageError> {
        let mut host = started(library, config)?;
        let cq = host.create_cq(4);
        let region = host.register(PAGES * PAGE_BYTES, RIGHTS);
        let mut bench = Self {
            host,
            random: Random::new(config.seed ^ 0xfe7c),
            cq,
            qp: Qp::default(),
            region,
            messages: Vec::new(),
            submitted: Vec::new(),
            fetches: VecDeque::new(),
            places: VecDeque::new(),
            seen: Asked::default(),
        };
        bench.answer(Opcode::SetGid)?;
        bench.cq.cqn = bench.answer(Opcode::CreateCq)?.result;
        bench.region.key = bench.answer(Opcode::CreateKey)?.result;
        (bench.qp, _) = bench.connect_qp(bench.cq.cqn, 0, 7)?;
        Ok(bench)
    }

    /// Posts WRITEs and READs by turns, of elements at any byte, and waits until the transport has them.
    fn post(&mut self) -> Result<(), MessageError> {
        let Region { key: lkey, address } = self.region;
        for number in 0..MESSAGES {
            let is_read = is_read(number);
            let opcode = if is_read { SendOpcode::Read } else { SendOpcode::Write };
            let half = address + if is_read { HALF } else { 0 };
            let count = 1 + self.random.below(16);
            let mut elements = Vec::new();
            for place in 0..count {
                // The first has bytes, so each message has.
                let length = self.random.below(ELEMENT) + u64::from(place == 0);
                let address = half + self.random.below(HALF - length);
                elements.push(Sge { address, length: length as u32, lkey });
            }
            let header = SendHeader { opcode, flags: SendFlags::SIGNALED, ..SendHeader::default() };
            self.host.post(&mut self.qp, &send_entry(header, &elements));
            // The doorbell rings at any time of what the engine does for the entry before.
            for _ in 0..self.random.below(800) {
                self.cycle()?;
            }
            self.messages.push(elements);
        }
        let all = MESSAGES as usize;
        self.until("a message", |it| (it.submitted.len() == all).then_some(()))
    }

    /// Asks many questions at once, and compares the answers, and memory.
    fn compared(&mut self) -> Result<(), MessageError> {
        let (address, length) = (self.region.address, PAGES * PAGE_BYTES);
        let content: Vec<u8> = (0..length).map(|_| self.random.next_u64() as u8).collect();
        self.host.memory.store(address, &content);
        for page in 0..PAGES {
            if self.random.chance(24) {
                self.host.memory.unmap(address + page * PAGE_BYTES, 1);
            }
        }
        let mut wanted = self.host.memory.clone();
        for tag in 0..QUESTIONS {
            let (transfer, pieces) = self.question(tag);
            let is_there = |&(at, length): &(u64, u32)| wanted.has(at, length);
            let is_sound = pieces.last().is_some_and(|last| last.1 != 0);
            let is_done = is_sound && pieces.iter().all(is_there);
            if is_place(&transfer) {
                let bytes: Vec<u8> =
                    (0..transfer.length).map(|_| self.random.next_u64() as u8).collect();
                let mut from = 0;
                for (at, length) in pieces {
                    let to = from + length as usize;
                    if wanted.has(at, length) {
                        wanted.store(at, &bytes[from..to]);
                    }
                    from = to;
                }
                self.places.push_back(is_done.then(Vec::new));
                self.host.vfpga.port().place(transfer, &bytes);
            } else {
                let mut bytes = Vec::new();
                for (at, length) in pieces {
                    let mut piece = vec![0; length as usize];
                    wanted.load(at, &mut piece);
                    bytes.extend(piece);
                }
                self.fetches.push_back(is_done.then_some(bytes));
                self.host.vfpga.port().fetch(transfer);
            }
        }
        for _ in 0..PATIENCE {
            self.cycle()?;
            self.compare()?;
            if self.fetches.is_empty() && self.places.is_empty() && self.host.vfpga.is_quiet() {
                return match self.host.memory == wanted {
                    true => Ok(()),
                    false => wrong("memory behind places", "other bytes"),
                };
            }
        }
        Err(MessageError::Late("an answer to a question"))
    }

    /// A question, and its pieces of memory; behind the pieces of one that is refused stands an empty one.
    fn question(&mut self, tag: u8) -> (Transfer, Vec<(u64, u32)>) {
        let Region { key, address } = self.region;
        let qpn = self.qp.qpn;
        let is_read = self.random.chance(128);
        if self.random.chance(128) {
            let length = 1 + self.random.below(PAGE_BYTES) as u16;
            let half = address + if is_read { 0 } else { HALF };
            let address = half + self.random.below(HALF - u64::from(length));
            let is_known = !self.random.chance(16);
            let rkey = if is_known { key } else { !key };
            let payload = Payload::Remote { rkey, address, is_read };
            let piece = if is_known { (address, length.into()) } else { (address, 0) };
            return (Transfer { tag, qpn, payload, offset: 0, length }, vec![piece]);
        }
        let number = self.random.below(u64::from(MESSAGES)) as u32;
        let elements = &self.messages[number as usize];
        let whole: u32 = elements.iter().map(|sge| sge.length).sum();
        let offset = self.random.below(u64::from(whole)) as u32;
        let length =
            1 + self.random.below(u64::from((whole - offset).min(PAGE_BYTES as u32))) as u32;
        let payload = Payload::Message(number);
        let (mut skip, mut left, mut pieces) = (offset, length, Vec::new());
        for sge in elements {
            let from = skip.min(sge.length);
            let part = (sge.length - from).min(left);
            if part != 0 {
                pieces.push((sge.address + u64::from(from), part));
            }
            (skip, left) = (skip - from, left - part);
        }
        (Transfer { tag, qpn, payload, offset, length: length as u16 }, pieces)
    }

    /// Compares the answers that have come with those that have to.
    fn compare(&mut self) -> Result<(), MessageError> {
        let port = self.host.vfpga.port();
        while let Some((tag, verdict, bytes)) = port.take_fetched() {
            let Some(wanted) = self.fetches.pop_front() else { return wrong("a fetch", tag) };
            let is_done = verdict == Verdict::Done;
            if wanted.is_some() != is_done || wanted.is_some_and(|wanted| wanted != bytes) {
                return wrong("the answer to a fetch", (tag, verdict));
            }
            *if is_done { &mut self.seen.done } else { &mut self.seen.refused } += 1;
        }
        while let Some((tag, verdict)) = port.placed.pop_front() {
            let Some(wanted) = self.places.pop_front() else { return wrong("a place", tag) };
            let is_done = verdict == Verdict::Done;
            if wanted.is_some() != is_done {
                return wrong("the answer to a place", (tag, verdict));
            }
            *if is_done { &mut self.seen.done } else { &mut self.seen.refused } += 1;
        }
        Ok(())
    }

    /// Takes a ring away: the engine stops, tells the driver, and starts over behind a reset.
    fn lost(&mut self) -> Result<(), MessageError> {
        self.post()?;
        let qpn = self.qp.qpn;
        if self.random.chance(128) {
            self.host.lose_completions(&self.cq);
            self.host.vfpga.port().report(Report::Ended { qpn, count: 2 });
        } else {
            self.host.lose_sends(&self.qp);
            // Without room it looks at no entries.
            self.host.vfpga.port().give_room(qpn, 1);
            self.host.ring_send(&self.qp);
        }
        self.has_status(RING_LOST)?;
        match self.host.event() {
            Some(event) if event.kind == EventType::Fatal => {}
            event => return wrong("the event of an engine that stops", event),
        }
        self.host.vfpga.write(CONTROL as u16, CONTROL_RESET);
        self.has_status(0)
    }

    /// Whether the command that ends the key was answered.
    fn is_key_ended(&mut self) -> Result<bool, MessageError> {
        match self.host.answer() {
            Some(it) if it.opcode != Opcode::DestroyKey || it.status.0 != 0 => {
                wrong("the answer to a command", it)
            }
            answer => Ok(answer.is_some()),
        }
    }

    /// Whether a reset that was ordered is done, as far as the status register has told.
    fn is_reset(&mut self, cycle: u64) -> bool {
        if cycle % 16 == 0 {
            self.host.vfpga.ask(STATUS as u16);
        }
        self.host.vfpga.take_answer() == Some(0)
    }

    /// What went between the engine and the bus. Packets that had left arrive later, whatever becomes of the engine.
    fn sent(&mut self) -> Counts {
        Counts { packets_arrived: 0, ..self.host.vfpga.bus().counts() }
    }

    /// Ends the key, or resets the engine, while questions are under way: behind the answer nothing reaches the memory, which
    /// is another's then.
    fn ended(&mut self) -> Result<(), MessageError> {
        let (start, length) = (self.region.address, PAGES * PAGE_BYTES);
        self.host.memory.map(start, length);
        let content: Vec<u8> = (0..HALF).map(|_| 1 + self.random.below(255) as u8).collect();
        self.host.memory.store(start, &content);
        let (early, resets) = (self.random.below(400), self.random.chance(128));
        let mut ended = None;
        let (mut places, mut fetches, mut asked) = (0, VecDeque::new(), 0);
        for cycle in 0..PATIENCE {
            if cycle == early {
                match resets {
                    true => self.host.vfpga.write(CONTROL as u16, CONTROL_RESET),
                    false => self.host.name(Opcode::DestroyKey, self.region.key),
                }
            }
            if cycle % 8 == 0 && asked < QUESTIONS {
                let is_read = self.random.chance(128);
                let bytes = 1 + self.random.below(PAGE_BYTES) as u16;
                let at = self.random.below(HALF - u64::from(bytes));
                let address = start + at + if is_read { 0 } else { HALF };
                let payload = Payload::Remote { rkey: self.region.key, address, is_read };
                let (qpn, offset) = (self.qp.qpn, 0);
                let transfer = Transfer { tag: asked, qpn, payload, offset, length: bytes };
                let port = self.host.vfpga.port();
                if is_read {
                    fetches.push_back(content[at as usize..][..bytes.into()].to_vec());
                    port.fetch(transfer);
                } else {
                    places += 1;
                    port.place(transfer, &vec![0xa5; bytes.into()]);
                }
                asked += 1;
            }
            self.cycle()?;
            let answered = match (resets, cycle > early && ended.is_none()) {
                (_, false) => false,
                (true, true) => self.is_reset(cycle),
                (false, true) => self.is_key_ended()?,
            };
            if answered {
                ended = Some(self.sent());
                // A register's value, which here comes beside the bus, may be there before writes are.
                if !resets {
                    self.host.memory.unmap(start, length);
                    self.host.memory.map(start, length);
                }
            }
            let port = self.host.vfpga.port();
            while let Some((tag, verdict, bytes)) = port.take_fetched() {
                let wanted = fetches.pop_front();
                if verdict == Verdict::Done && wanted.is_none_or(|wanted| wanted != bytes) {
                    return wrong("the answer to a fetch whose key ends", tag);
                }
            }
            places -= port.placed.drain(..).count();
            let all = ended.is_some() && asked == QUESTIONS && fetches.is_empty() && places == 0;
            if all && self.host.vfpga.is_quiet() {
                break;
            }
        }
        let mut left = vec![0xff; length as usize];
        self.host.memory.load(start, &mut left);
        let is_sound = match resets {
            true => ended == Some(self.sent()),
            false => ended.is_some() && left.iter().all(|byte| *byte == 0),
        };
        match is_sound && fetches.is_empty() && places == 0 {
            true => Ok(()),
            false => wrong("what reaches memory behind the end", (resets, fetches.len(), places)),
        }
    }
}

/// Whether the message of that number is a READ.
fn is_read(number: u32) -> bool {
    number % 2 == 1
}

/// Whether a question brings bytes.
fn is_place(transfer: &Transfer) -> bool {
    match transfer.payload {
        Payload::Message(number) => is_read(number),
        Payload::Receive(_) => true,
        Payload::Remote { is_read, .. } => !is_read,
    }
}
