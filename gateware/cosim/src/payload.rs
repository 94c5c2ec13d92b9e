//! Questions for payload of which many are under way at one engine in RTL: bytes and verdicts of each, where parts of memory
//! are out of reach; that a ring which is makes the engine stop; that nothing reaches memory behind the answer to the
//! command that ends its key, behind a reset, and behind the event of an engine that stops; that a queue pair in RESET has
//! none; and that the engine stops where the shell does not answer.
//!
//! With some seeds other bytes take the place of entries and commands once they are read.

use std::collections::VecDeque;
use std::ops::Range;

use fpga_regs::engine::admin::Opcode;
use fpga_regs::engine::event::EventType;
use fpga_regs::engine::qp::QpState;
use fpga_regs::engine::window::STATUS;
use fpga_regs::engine::wqe::{
    RECEIVE_PAYLOAD_OFFSET, ReceiveHeader, SendFlags, SendHeader, SendOpcode, Sge,
};

use crate::alone::{Alone, RING_LOST, obey_all, start, started};
use crate::bus::{Config, Counts};
use crate::ffi::Library;
use crate::host::{Cq, Host, Qp, RIGHTS, Region, Rq};
use crate::memory::{Direction, PAGE_BYTES};
use crate::messages::{MessageError, PATIENCE, blocks_of, bytes_of, send_entry, wrong};
use crate::port::{Check, Passed, Payload, Report, Submitted, Transfer, Verdict};
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
/// Cycles in which the transport forgets all, on average.
const FORGETTING: u64 = 200;
/// Questions behind the event of an engine that stops, and those that wait for their answers at a time.
const LATE: usize = 20;
const WAITING: usize = 16;

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
    rq: Rq,
    /// Rings of which each byte becomes another one once it is read.
    rewritten: Vec<Range<u64>>,
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
    let again = Bench::connected(library, config)?.decoupled()?;
    let mut other = Bench::on(again, config.seed)?;
    other.forgotten()?;
    other.lost()?;
    bench.seen.cycles = bench.host.vfpga.now();
    bench.seen.faults = faults;
    Ok(bench.seen)
}

/// What the shell does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Silent {
    Fetch,
    Place,
    Entries,
    Completion,
    Command,
}

/// Has the shell lose a request of each kind, and answers how many there are.
///
/// # Errors
/// [`MessageError`].
pub fn silence(library: &Library) -> Result<usize, MessageError> {
    use Silent::{Command, Completion, Entries, Fetch, Place};
    let all = [Fetch, Place, Entries, Completion, Command];
    for (seed, silent) in (1..).zip(all) {
        Bench::connected(library, &Config { seed, ..Config::default() })?.silent(silent)?;
    }
    Ok(all.len())
}

impl Alone for Bench {
    fn host(&mut self) -> &mut Host {
        &mut self.host
    }

    fn cycle(&mut self) -> Result<(), MessageError> {
        self.host.cycle()?;
        let port = self.host.vfpga.port();
        obey_all(port, MESSAGES as u16);
        // Where the engine stops, the transport goes on to ask for a while.
        if port.stops() && self.random.below(FORGETTING) == 0 {
            port.end_stop();
        }
        self.submitted.extend(port.submitted.drain(..));
        self.rewrite();
        Ok(())
    }
}

impl Bench {
    fn connected(library: &Library, config: &Config) -> Result<Self, MessageError> {
        Self::on(started(library, config)?, config.seed)
    }

    /// A host whose engine is started.
    fn on(mut host: Host, seed: u64) -> Result<Self, MessageError> {
        let cq = host.create_cq(4);
        let region = host.register(PAGES * PAGE_BYTES, RIGHTS);
        let mut bench = Self {
            host,
            random: Random::new(seed ^ 0xfe7c),
            cq,
            qp: Qp::default(),
            rq: Rq::default(),
            rewritten: Vec::new(),
            region,
            messages: Vec::new(),
            submitted: Vec::new(),
            fetches: VecDeque::new(),
            places: VecDeque::new(),
            seen: Asked::default(),
        };
        bench.answer(Opcode::SetGid)?;
        if bench.random.chance(128) {
            bench.rewritten.push(bench.host.commands());
            // From here on it is noted what passes.
            drop(bench.host.vfpga.take_passed());
        }
        bench.cq.cqn = bench.answer(Opcode::CreateCq)?.result;
        bench.region.key = bench.answer(Opcode::CreateKey)?.result;
        (bench.qp, bench.rq) = bench.connect_qp(bench.cq.cqn, 0, 7)?;
        if !bench.rewritten.is_empty() {
            bench.rewritten.extend([bench.qp.ring(), bench.rq.ring()]);
        }
        Ok(bench)
    }

    /// Puts other bytes into the place of those that were read, which are of no use any more.
    fn rewrite(&mut self) {
        if self.rewritten.is_empty() {
            return;
        }
        for passed in self.host.vfpga.take_passed() {
            let Passed::Read { address, length } = passed else { continue };
            if self.rewritten.iter().any(|ring| ring.contains(&address)) {
                self.host.memory.store(address, &vec![0xff; length]);
            }
        }
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
            // One that goes on behind what was read at a time is read anew, so they come one by one.
            if !self.rewritten.is_empty() {
                self.has_submitted(number as usize + 1)?;
            }
        }
        self.has_submitted(MESSAGES as usize)?;
        for (number, (message, elements)) in (0..).zip(self.submitted.iter().zip(&self.messages)) {
            let opcode = if is_read(number) { SendOpcode::Read } else { SendOpcode::Write };
            let length: u32 = elements.iter().map(|sge| sge.length).sum();
            if (message.opcode, message.length) != (opcode.0, length) {
                return wrong("a message", (number, message, length));
            }
        }
        Ok(())
    }

    /// Waits until the transport has so many messages.
    fn has_submitted(&mut self, count: usize) -> Result<(), MessageError> {
        self.until("a message", |it| (it.submitted.len() == count).then_some(()))
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

    /// A question for memory of the region that a peer named: whether its bytes are fetched, where, and how many.
    fn ask(&mut self, tag: u8, qpn: u32) -> (bool, u64, u16) {
        let is_read = self.random.chance(128);
        let length = 1 + self.random.below(PAGE_BYTES) as u16;
        let at = self.random.below(HALF - u64::from(length));
        let address = self.region.address + at + if is_read { 0 } else { HALF };
        let payload = Payload::Remote { rkey: self.region.key, address, is_read };
        let transfer = Transfer { tag, qpn, payload, offset: 0, length };
        let port = self.host.vfpga.port();
        match is_read {
            true => port.fetch(transfer),
            false => port.place(transfer, &vec![0xa5; length.into()]),
        }
        (is_read, at, length)
    }

    /// Asks all that can be asked of a queue pair that is no more, or is in RESET: it is refused, and bytes are dropped.
    fn refuses(&mut self, qpn: u32, claim: Verdict) -> Result<(), MessageError> {
        let Region { key: rkey, address } = self.region;
        self.settle()?;
        let before = self.sent();
        let remote = |is_read| Payload::Remote { rkey, address, is_read };
        let (offset, length) = (0, 1000);
        let port = self.host.vfpga.port();
        for (tag, payload) in (0..).zip([Payload::Message(1), Payload::Receive(0), remote(false)]) {
            port.place(Transfer { tag, qpn, payload, offset, length }, &[0xa5; 1000]);
        }
        for (tag, payload) in (0..).zip([Payload::Message(0), remote(true)]) {
            port.fetch(Transfer { tag, qpn, payload, offset, length });
        }
        for (tag, is_read) in [(0, false), (1, true)] {
            port.check(Check { tag, qpn, is_read, rkey, address, length: length.into() });
        }
        port.claim(0, qpn);
        self.settle()?;
        let port = self.host.vfpga.port();
        let placed: Vec<Verdict> = port.placed.drain(..).map(|it| it.1).collect();
        let checked: Vec<Verdict> = port.checked.drain(..).map(|it| it.1).collect();
        let claimed: Vec<Verdict> = port.claimed.drain(..).map(|it| it.verdict).collect();
        let fetched: Vec<Verdict> =
            std::iter::from_fn(|| port.take_fetched()).map(|it| it.1).collect();
        let are_refused = placed == [Verdict::Unreachable; 3]
            && fetched == [Verdict::Unreachable; 2]
            && checked.len() == 2
            && !checked.contains(&Verdict::Done)
            && claimed == [claim];
        match are_refused && self.sent() == before {
            true => Ok(()),
            false => {
                wrong("what a queue pair in RESET refuses", (placed, fetched, checked, claimed))
            }
        }
    }

    /// A queue pair that was destroyed, and one in RESET, refuse what is asked; connected again it takes a receive, and its
    /// bytes.
    fn forgotten(&mut self) -> Result<(), MessageError> {
        let (gone, _) = self.connect_qp(self.cq.cqn, 0, 2)?;
        self.host.name(Opcode::DestroyQp, gone.qpn);
        self.answer(Opcode::DestroyQp)?;
        self.refuses(gone.qpn, Verdict::Unreachable)?;
        // There is a receive for it, as its record says.
        let Region { key: lkey, address } = self.region;
        let sge = |offset, length| Sge { address: address + HALF + offset, length, lkey };
        let elements = [sge(1, 700), sge(5000, 300)];
        let header = ReceiveHeader { num_sge: 2, tag: 2 }.encode();
        let entry = blocks_of(&header, RECEIVE_PAYLOAD_OFFSET, &bytes_of(&elements));
        let qpn = self.qp.qpn;
        self.host.post_receive(&mut self.rq, &self.qp, &entry);
        self.host.modify_qp(qpn, QpState::Reset, (0, [0; 16]), 1);
        let answer = self.answer(Opcode::ModifyQp)?;
        self.refuses(qpn, Verdict::Empty)?;
        self.host.renew(&mut self.qp, &mut self.rq, &answer);
        self.host.vfpga.port().give_room(qpn, MESSAGES as u16);
        self.ready(qpn)?;
        self.host.post_receive(&mut self.rq, &self.qp, &entry);
        self.host.vfpga.port().claim(0, qpn);
        let claimed =
            self.until("the answer to a claim", |it| it.host.vfpga.port().claimed.pop_front())?;
        if (claimed.verdict, claimed.capacity) != (Verdict::Done, 1000) {
            return wrong("a receive behind RESET", claimed);
        }
        let bytes: Vec<u8> = (0..1000).map(|_| self.random.next_u64() as u8).collect();
        let payload = Payload::Receive(claimed.receive);
        let transfer = Transfer { tag: 0, qpn, payload, offset: 0, length: 1000 };
        self.host.vfpga.port().place(transfer, &bytes);
        self.settle()?;
        let placed = self.host.vfpga.port().placed.pop_front();
        let mut came = vec![0; 1000];
        let [first, second] = elements.map(|sge| sge.address);
        self.host.memory.load(first, &mut came[..700]);
        self.host.memory.load(second, &mut came[700..]);
        match placed == Some((0, Verdict::Done)) && came == bytes {
            true => Ok(()),
            false => wrong("the bytes of a receive behind RESET", placed),
        }
    }

    /// The shell takes the logic off the bus amid questions, and resets it: it sends nothing more, and begins anew whatever its
    /// registers and memories have.
    fn decoupled(mut self) -> Result<Host, MessageError> {
        self.post()?;
        for cycle in 0..self.random.below(2000) {
            if cycle % 32 == 0 {
                self.ask((cycle / 32) as u8, self.qp.qpn);
            }
            self.cycle()?;
        }
        self.host.decouple();
        let before = self.sent();
        self.settle()?;
        if self.sent() != before {
            return wrong("what logic sends that was taken off the bus", (before, self.sent()));
        }
        start(&mut self.host)?;
        Ok(self.host)
    }

    /// Waits until the engine has stopped, and told the driver, which hears it once.
    fn has_stopped(&mut self) -> Result<(), MessageError> {
        self.has_status(RING_LOST)?;
        match (self.host.event(), self.host.event()) {
            (Some(event), None) if event.kind == EventType::Fatal => Ok(()),
            events => wrong("the event of an engine that stops", events),
        }
    }

    /// Peers go on to ask until the engine tells that it stops, and behind that, where the transport still has its queue
    /// pairs: nothing reaches memory any more.
    fn asked_on(&mut self, second: u32) -> Result<(), MessageError> {
        let mut told = None;
        let (mut asked, mut late) = (0_usize, 0);
        // Whether each was asked behind the event.
        let [mut fetches, mut places] = [VecDeque::new(), VecDeque::new()];
        for cycle in 0..PATIENCE {
            if cycle % 16 == 0 && late < LATE && fetches.len() + places.len() < WAITING {
                let qpn = self.random.one_of(&[self.qp.qpn, second]);
                let (is_read, ..) = self.ask(asked as u8, qpn);
                let line = if is_read { &mut fetches } else { &mut places };
                line.push_back(told.is_some());
                asked += 1;
                late += usize::from(told.is_some());
            }
            // The transport does not forget.
            self.host.cycle()?;
            self.rewrite();
            if told.is_none() && self.host.unread_event().is_some() {
                told = Some(self.host.memory.clone());
            }
            let port = self.host.vfpga.port();
            let mut answers: Vec<_> =
                port.placed.drain(..).map(|(_, verdict)| (verdict, places.pop_front())).collect();
            while let Some((_, verdict, _)) = port.take_fetched() {
                answers.push((verdict, fetches.pop_front()));
            }
            let is_right = |&(verdict, is_late)| match is_late {
                Some(true) => verdict != Verdict::Done,
                is_late => is_late.is_some(),
            };
            if !answers.iter().all(is_right) {
                return wrong("an answer behind the event of an engine that stops", answers);
            }
            if late == LATE && fetches.is_empty() && places.is_empty() {
                return match told.as_ref() == Some(&self.host.memory) {
                    true => Ok(()),
                    false => wrong("memory behind the event of an engine that stops", asked),
                };
            }
        }
        Err(MessageError::Late("the end of an engine that stops"))
    }

    /// The shell does not answer a request: what asked for it fails, and the engine stops, tells the driver, and goes on
    /// behind a reset.
    fn silent(&mut self, silent: Silent) -> Result<(), MessageError> {
        self.post()?;
        self.settle()?;
        let Region { key: rkey, address } = self.region;
        let qpn = self.qp.qpn;
        let remote = |is_read| {
            let payload = Payload::Remote { rkey, address, is_read };
            Transfer { tag: 0, qpn, payload, offset: 0, length: 200 }
        };
        let is_write = matches!(silent, Silent::Place | Silent::Completion);
        let direction = if is_write { Direction::Write } else { Direction::Read };
        self.host.vfpga.bus().lose(direction);
        match silent {
            Silent::Fetch => self.host.vfpga.port().fetch(remote(true)),
            Silent::Place => self.host.vfpga.port().place(remote(false), &[0xa5; 200]),
            Silent::Entries => {
                self.host.vfpga.port().give_room(qpn, 1);
                self.host.ring_send(&self.qp);
            }
            Silent::Completion => {
                self.host.vfpga.port().report(Report::Ended { qpn, count: 1 });
            }
            Silent::Command => self.host.name(Opcode::QueryQp, qpn),
        }
        self.has_stopped()?;
        let port = self.host.vfpga.port();
        let fetched = port.take_fetched().map(|it| it.1);
        let placed = port.placed.pop_front().map(|it| it.1);
        let is_of = |kind| (silent == kind).then_some(Verdict::Unreachable);
        if (fetched, placed) != (is_of(Silent::Fetch), is_of(Silent::Place)) {
            return wrong("a question that the shell did not answer", (silent, fetched, placed));
        }
        self.host.reset();
        self.has_status(0)?;
        // A start looks at the rings.
        self.rewritten.clear();
        start(&mut self.host)?;
        self.answer(Opcode::SetGid).map(drop)
    }

    /// Takes a ring away: the engine stops, tells the driver, and starts over behind a reset.
    fn lost(&mut self) -> Result<(), MessageError> {
        let (second, _) = self.connect_qp(self.cq.cqn, 0, 2)?;
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
        self.asked_on(second.qpn)?;
        self.has_stopped()?;
        self.host.reset();
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
                    true => self.host.reset(),
                    false => self.host.name(Opcode::DestroyKey, self.region.key),
                }
            }
            if cycle % 8 == 0 && asked < QUESTIONS {
                let (is_read, at, length) = self.ask(asked, self.qp.qpn);
                match is_read {
                    true => fetches.push_back(content[at as usize..][..length.into()].to_vec()),
                    false => places += 1,
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
