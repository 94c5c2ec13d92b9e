//! Messages of more queue pairs of a client than there are banks for at one engine in RTL: those without one have a message of
//! one element each, or wait; other clients have banks of their own; and each message that ends, and each queue pair that is
//! reset, lets others go on.

use fpga_regs::engine::admin::Opcode;
use fpga_regs::engine::cqe::Status;
use fpga_regs::engine::qp::QpState;
use fpga_regs::engine::wqe::{SendFlags, SendHeader, SendOpcode, Sge};

use crate::alone::{Alone, cycle, started};
use crate::bus::Config;
use crate::ffi::Library;
use crate::host::{Cq, Host, PAGE, Qp, RIGHTS, Region};
use crate::memory::PAGE_BYTES;
use crate::messages::{MessageError, send_entry, wrong};
use crate::port::{Payload, Report, Transfer, Verdict};
use crate::random::Random;

/// Banks that one client can have: `balboa_banks.sv`.
const BANKS: usize = 68;
/// Queue pairs of a client that want one, and one whose messages have one element; then one of another client, with more
/// elements than it has room for.
const LINES: usize = BANKS + 6;
const SIMPLE: usize = LINES;
const OTHER: usize = LINES + 1;
/// Messages of each, of that last one, and those of it that have room.
const MESSAGES: usize = 2;
const MANY: usize = 10;
const FITTING: usize = 8;
/// Cycles in which a queue pair that lacks a bank is looked at again, and more.
const LATER: u64 = 6000;
/// Bytes of an element at most, and elements of a message.
const ELEMENT: u64 = 60;
const MOST: u64 = 16;

/// What was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Messages.
    pub messages: u64,
    /// Cycles.
    pub cycles: u64,
}

struct Line {
    qp: Qp,
    /// The elements of each message.
    messages: Vec<Vec<Sge>>,
    submitted: usize,
    ended: usize,
}

struct Bench {
    host: Host,
    random: Random,
    cq: Cq,
    region: Region,
    content: Vec<u8>,
    lines: Vec<Line>,
    completed: usize,
}

/// Runs a scenario that a seed decides.
///
/// # Errors
/// [`MessageError`].
pub fn run(library: &Library, config: &Config) -> Result<Seen, MessageError> {
    let mut bench = Bench::connected(library, config)?;
    for line in 0..LINES {
        let elements = 2 + bench.random.below(MOST - 1);
        bench.post(line, MESSAGES, elements);
    }
    bench.until("messages with banks", |it| (it.submitted() >= BANKS * MESSAGES).then_some(()))?;
    bench.post(SIMPLE, MESSAGES, 1);
    bench.post(OTHER, MANY, MOST);
    for _ in 0..LATER {
        bench.cycle()?;
    }
    let [simple, other] = [SIMPLE, OTHER].map(|line| bench.lines[line].submitted);
    if (bench.submitted(), simple, other) != (BANKS * MESSAGES + 1 + FITTING, 1, FITTING) {
        return wrong("messages without a bank", (bench.submitted(), simple, other));
    }
    (0..=OTHER).try_for_each(|line| bench.fetched(line))?;
    bench.resets()?;
    bench.ends()?;
    let messages = bench.lines.iter().map(|line| line.ended as u64).sum();
    Ok(Seen { messages, cycles: bench.host.vfpga.now() })
}

impl Alone for Bench {
    fn host(&mut self) -> &mut Host {
        &mut self.host
    }

    fn cycle(&mut self) -> Result<(), MessageError> {
        let port = cycle(&mut self.host, MANY as u16)?;
        while let Some(message) = port.submitted.pop_front() {
            match self.lines.iter_mut().find(|line| line.qp.qpn == message.qpn) {
                Some(line) => line.submitted += 1,
                None => return wrong("a message", message),
            }
        }
        while let Some(entry) = self.host.poll(&mut self.cq) {
            if entry.status != Status::Success {
                return wrong("a completion", entry);
            }
            self.completed += 1;
        }
        Ok(())
    }
}

impl Bench {
    fn connected(library: &Library, config: &Config) -> Result<Self, MessageError> {
        let mut host = started(library, config)?;
        let cq = host.create_cq(10);
        let region = host.register(PAGE_BYTES, RIGHTS);
        let mut random = Random::new(config.seed ^ 0xba2c);
        let content: Vec<u8> = (0..PAGE_BYTES).map(|_| random.next_u64() as u8).collect();
        host.memory.store(region.address, &content);
        let (lines, completed) = (Vec::new(), 0);
        let mut bench = Self { host, random, cq, region, content, lines, completed };
        bench.answer(Opcode::SetGid)?;
        bench.cq.cqn = bench.answer(Opcode::CreateCq)?.result;
        bench.region.key = bench.answer(Opcode::CreateKey)?.result;
        for line in 0..=OTHER {
            bench.host.page = PAGE + u8::from(line == OTHER);
            let (qp, _) = bench.connect_qp(bench.cq.cqn, 0, 6)?;
            bench.lines.push(Line { qp, messages: Vec::new(), submitted: 0, ended: 0 });
        }
        Ok(bench)
    }

    fn submitted(&self) -> usize {
        self.lines.iter().map(|line| line.submitted).sum()
    }

    fn is_sent(&self, line: usize) -> bool {
        self.lines[line].submitted == self.lines[line].messages.len()
    }

    /// Posts so many WRITEs of so many elements.
    fn post(&mut self, line: usize, count: usize, elements: u64) {
        self.host.page = PAGE + u8::from(line == OTHER);
        let Region { key: lkey, address } = self.region;
        for _ in 0..count {
            let element = |random: &mut Random| {
                let length = 1 + random.below(ELEMENT);
                let address = address + random.below(PAGE_BYTES - length);
                Sge { address, length: length as u32, lkey }
            };
            let elements: Vec<Sge> = (0..elements).map(|_| element(&mut self.random)).collect();
            let (opcode, flags) = (SendOpcode::Write, SendFlags::SIGNALED);
            let header = SendHeader { opcode, flags, ..SendHeader::default() };
            let line = &mut self.lines[line];
            self.host.post(&mut line.qp, &send_entry(header, &elements));
            line.messages.push(elements);
        }
    }

    /// Fetches each message of a queue pair that the transport has, and compares its bytes.
    fn fetched(&mut self, line: usize) -> Result<(), MessageError> {
        let Line { qp, messages, submitted, ended, .. } = &self.lines[line];
        let qpn = qp.qpn;
        let asked = messages.iter().enumerate().take(*submitted).skip(*ended);
        for (number, elements) in asked {
            let mut wanted = Vec::new();
            for sge in elements {
                let at = (sge.address - self.region.address) as usize;
                wanted.extend_from_slice(&self.content[at..][..sge.length as usize]);
            }
            let (payload, length) = (Payload::Message(number as u32), wanted.len() as u16);
            let port = self.host.vfpga.port();
            port.fetch(Transfer { tag: 0, qpn, payload, offset: 0, length });
            let fetched = loop {
                self.host.cycle()?;
                if let Some(fetched) = self.host.vfpga.port().take_fetched() {
                    break fetched;
                }
            };
            if fetched != (0, Verdict::Done, wanted) {
                return wrong("the bytes of a message", (line, number, fetched.1));
            }
        }
        Ok(())
    }

    /// Takes a queue pair with a bank to RESET: another one has it.
    fn resets(&mut self) -> Result<(), MessageError> {
        let sent = (0..LINES).filter(|line| self.is_sent(*line)).count();
        let Some(line) = (0..LINES).find(|line| self.is_sent(*line)) else {
            return wrong("queue pairs with banks", sent);
        };
        self.host.modify_qp(self.lines[line].qp.qpn, QpState::Reset, (0, [0; 16]), 1);
        self.answer(Opcode::ModifyQp)?;
        self.lines[line].ended = MESSAGES;
        self.completed += MESSAGES;
        let has_more = |it: &mut Self| {
            let now = (0..LINES).filter(|line| it.is_sent(*line)).count();
            (now == sent + 1).then_some(())
        };
        self.until("a bank of a queue pair that was reset", has_more)
    }

    /// Ends all messages, as they come.
    fn ends(&mut self) -> Result<(), MessageError> {
        while let Some(line) = (0..=OTHER).find(|line| {
            let Line { messages, ended, .. } = &self.lines[*line];
            *ended < messages.len()
        }) {
            let has_some = |it: &mut Self| {
                let Line { submitted, ended, .. } = it.lines[line];
                (submitted > ended).then_some(())
            };
            self.until("a message that waited", has_some)?;
            self.fetched(line)?;
            let Line { qp, submitted, ended, .. } = &mut self.lines[line];
            let (qpn, count) = (qp.qpn, (*submitted - *ended) as u32);
            *ended = *submitted;
            self.host.vfpga.port().report(Report::Ended { qpn, count });
        }
        let all: usize = self.lines.iter().map(|line| line.messages.len()).sum();
        self.until("the last completion", |it| (it.completed == all).then_some(()))?;
        self.settle()
    }
}
