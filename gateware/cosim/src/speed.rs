//! What the queue engine in RTL reaches beside a transport that never keeps it waiting, and where its cycles go.
//!
//! One host with one engine. The transport has no network: it asks for the bytes of messages, and brings bytes, as soon as it
//! may, of all queue pairs by turns. Every entry asks for a completion, and the program posts again once half of a queue
//! pair's entries have ended.

use std::collections::{BTreeMap, VecDeque};

use fpga_regs::engine::admin::Opcode;
use fpga_regs::engine::cqe::Status;
use fpga_regs::engine::doorbell;
use fpga_regs::engine::window::STATUS;
use fpga_regs::engine::wqe::{
    RECEIVE_PAYLOAD_OFFSET, ReceiveHeader, SEND_PAYLOAD_OFFSET, SendFlags, SendHeader, SendOpcode,
    Sge, send_blocks_for_inline,
};
use fpga_regs::{BLOCK_BYTES, Block};

use crate::alone::{Alone, cycle, started};
use crate::bus::Config;
use crate::ffi::Library;
use crate::host::{Cq, Host, Qp, RIGHTS, Region, Rq};
use crate::limit::Limit;
use crate::messages::{MessageError, PATIENCE, blocks_of, bytes_of, send_entry, wrong};
use crate::pair::MTU;
use crate::port::{Payload, Report, Transfer, Verdict};

/// Messages that a queue pair has room for at the transport.
const ROOM: u16 = 32;
/// Entries that are posted of a queue pair at most, of perftest's 128: as many as fit into its queue with their bytes.
const POSTED: u32 = 64;
/// log2 of the blocks of a send queue; the entries of a receive queue, and of the completion queue.
const LOG2_BLOCKS: u8 = 7;
const LOG2_RECEIVES: u8 = 6;
const LOG2_COMPLETIONS: u8 = 12;
/// Questions of the transport that are under way.
const QUESTIONS: usize = 32;
/// Queue pairs of a completion queue, which has room for all their entries; clients, which queue pairs have by turns, two of
/// them without a doorbell page.
const QPS_OF_A_CQ: usize = 64;
const CLIENTS: [u8; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 17];
/// Bytes of the region.
const REGION: u64 = 1 << 17;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// WRITEs of the engine's own.
    Write,
    /// The same with their bytes in the entries.
    Inline,
    /// READs of the engine's own.
    Read,
    /// SENDs that come.
    Receive,
}

/// How much of it.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// What.
    pub work: Work,
    /// Queue pairs.
    pub qps: usize,
    /// Bytes of a message.
    pub length: u32,
    /// Bytes of the first queue pair's messages.
    pub first_length: u32,
    /// Messages of each queue pair, on average, before the measurement, and in it.
    pub messages: [u64; 2],
}

/// What was reached.
#[derive(Clone, Copy, Debug)]
pub struct Reached {
    /// Messages, their bytes, and the cycles.
    pub limit: Limit,
    /// The part of the cycles in which something was under way on the bus.
    pub on_the_bus: f64,
    /// The messages of the slowest queue pair but the first, of the mean of these.
    pub slowest: f64,
}

/// A queue pair, as the program and the transport know it.
struct Line {
    qp: Qp,
    rq: Rq,
    length: u32,
    /// Entries that were posted and have not ended; those that ended.
    posted: u32,
    ended: u64,
    /// Messages that the transport has, with the bytes that were asked for, or brought.
    messages: VecDeque<(u32, u32)>,
    next: u32,
}

/// A question for bytes of a queue pair, or one that brings them, which is under way.
struct Asked {
    number: usize,
    /// It is for the last bytes of its message.
    is_last: bool,
}

struct Bench {
    host: Host,
    work: Work,
    cqs: Vec<Cq>,
    region: Region,
    lines: Vec<Line>,
    /// Entries of all that ended.
    ended: u64,
    places: BTreeMap<u32, usize>,
    /// Queue pairs of which more is to be asked, by turns.
    turns: VecDeque<usize>,
    /// Claims that are under way; their tags are the numbers of their queue pairs.
    claims: usize,
    asked: VecDeque<Asked>,
}

/// Measures a load.
///
/// # Errors
/// [`MessageError`].
pub fn measure(library: &Library, config: &Config, load: &Load) -> Result<Reached, MessageError> {
    let mut bench = Bench::connected(library, config, load)?;
    (0..load.qps).for_each(|line| bench.post(line));
    if load.work == Work::Receive {
        bench.turns.extend(0..load.qps);
    }
    let [before, measured] = load.messages.map(|each| each * load.qps as u64);
    bench.run(before)?;
    let ended: Vec<u64> = bench.lines.iter().map(|line| line.ended).collect();
    let began = bench.host.vfpga.now();
    let on_the_bus = bench.run(before + measured)?;
    let cycles = bench.host.vfpga.now() - began;
    let each = bench.lines.iter().zip(&ended).map(|(line, before)| line.ended - before);
    let each: Vec<u64> = each.collect();
    let bytes = bench.lines.iter().zip(&each).map(|(line, count)| u64::from(line.length) * count);
    let limit = Limit { requests: each.iter().sum(), bytes: bytes.sum(), cycles };
    let others = each.get(1..).unwrap_or_default();
    let mean = others.iter().sum::<u64>() as f64 / others.len().max(1) as f64;
    let slowest = others.iter().min().map_or(1.0, |least| *least as f64 / mean);
    Ok(Reached { limit, on_the_bus: on_the_bus as f64 / cycles as f64, slowest })
}

/// Cycles of the engine's own from a doorbell to the first request of payload: those in which it waits for no read.
///
/// # Errors
/// [`MessageError`].
pub fn to_first_payload(library: &Library) -> Result<u64, MessageError> {
    let load = Load { work: Work::Write, qps: 1, length: 64, first_length: 64, messages: [0, 1] };
    let mut bench = Bench::connected(library, &Config::default(), &load)?;
    // It has looked at the queue pair for the room that it was given.
    bench.settle()?;
    let before = bench.host.vfpga.bus().counts();
    let entry = bench.entry(0);
    bench.host.post(&mut bench.lines[0].qp, &entry);
    let mut own = 0;
    // The record, the entry, the payload.
    for _ in 0..PATIENCE {
        let bus = bench.host.vfpga.bus();
        let reads = bus.counts().reads - before.reads;
        if reads == 3 {
            return Ok(own);
        }
        let waits = reads * BLOCK_BYTES as u64 > bus.counts().bytes_read - before.bytes_read;
        own += u64::from(!waits);
        bench.cycle()?;
    }
    Err(MessageError::Late("the first request of payload"))
}

/// Cycles from the order to reset an engine with so many queue pairs until its status says that it has nothing any more.
///
/// # Errors
/// [`MessageError`].
pub fn to_reset(library: &Library, qps: usize) -> Result<u64, MessageError> {
    let load = Load { work: Work::Write, qps, length: 64, first_length: 64, messages: [0, 1] };
    let mut bench = Bench::connected(library, &Config::default(), &load)?;
    let began = bench.host.vfpga.now();
    bench.host.reset();
    bench.until("the end of a reset", |it| {
        if it.host.vfpga.take_answer() == Some(0) {
            return Some(());
        }
        if !it.host.vfpga.has_orders() {
            it.host.vfpga.ask(STATUS as u16);
        }
        None
    })?;
    Ok(bench.host.vfpga.now() - began)
}

/// The client of a queue pair.
fn client_of(number: usize) -> u8 {
    CLIENTS[number % CLIENTS.len()]
}

impl Alone for Bench {
    fn host(&mut self) -> &mut Host {
        &mut self.host
    }

    fn cycle(&mut self) -> Result<(), MessageError> {
        let port = cycle(&mut self.host, ROOM)?;
        while let Some(message) = port.submitted.pop_front() {
            let Some(&number) = self.places.get(&message.qpn) else {
                return wrong("a message", message);
            };
            let Line { messages, next, .. } = &mut self.lines[number];
            messages.push_back((*next, 0));
            *next += 1;
            if messages.len() == 1 {
                self.turns.push_back(number);
            }
        }
        self.hear()?;
        while self.claims + self.asked.len() < QUESTIONS {
            let Some(number) = self.turns.pop_front() else { break };
            self.ask(number);
        }
        Ok(())
    }
}

impl Bench {
    /// Starts the engine, and connects its queue pairs.
    fn connected(library: &Library, config: &Config, load: &Load) -> Result<Self, MessageError> {
        let mut host = started(library, config)?;
        // What is measured begins later.
        host.vfpga.bus().set_latency(0);
        let region = host.register(REGION, RIGHTS);
        let mut bench = Self {
            host,
            work: load.work,
            cqs: Vec::new(),
            region,
            lines: Vec::new(),
            ended: 0,
            places: BTreeMap::new(),
            turns: VecDeque::new(),
            claims: 0,
            asked: VecDeque::new(),
        };
        bench.answer(Opcode::SetGid)?;
        bench.region.key = bench.answer(Opcode::CreateKey)?.result;
        for number in 0..load.qps {
            bench.connect(if number == 0 { load.first_length } else { load.length })?;
        }
        bench.settle()?;
        bench.host.vfpga.bus().set_latency(config.latency);
        Ok(bench)
    }

    /// Connects one more queue pair.
    fn connect(&mut self, length: u32) -> Result<(), MessageError> {
        let number = self.lines.len();
        if number % QPS_OF_A_CQ == 0 {
            let mut cq = self.host.create_cq(LOG2_COMPLETIONS);
            cq.cqn = self.answer(Opcode::CreateCq)?.result;
            self.cqs.push(cq);
        }
        let Some(cqn) = self.cqs.last().map(|cq| cq.cqn) else {
            return wrong("a completion queue", number);
        };
        self.host.page = client_of(number);
        let (qp, rq) = self.connect_qp(cqn, LOG2_RECEIVES, LOG2_BLOCKS)?;
        self.places.insert(qp.qpn, number);
        let (posted, ended, messages, next) = (0, 0, VecDeque::new(), 0);
        self.lines.push(Line { qp, rq, length, posted, ended, messages, next });
        Ok(())
    }

    /// Goes on until so many messages have ended; cycles in which the bus was at work.
    fn run(&mut self, messages: u64) -> Result<u64, MessageError> {
        let (mut on_the_bus, mut waited) = (0, 0);
        // The program looks at its completion queues one after the other.
        for cq in (0..self.cqs.len()).cycle() {
            while let Some(entry) = self.host.poll(&mut self.cqs[cq]) {
                let line = self.places.get(&entry.qpn).copied();
                let Some(line) = line.filter(|_| entry.status == Status::Success) else {
                    return wrong("a completion", entry);
                };
                waited = 0;
                let Line { posted, ended, .. } = &mut self.lines[line];
                (*posted, *ended) = (*posted - 1, *ended + 1);
                self.ended += 1;
                if *posted <= POSTED / 2 {
                    self.post(line);
                }
            }
            if self.ended >= messages {
                break;
            }
            waited += 1;
            if waited > PATIENCE {
                return Err(MessageError::Late("a completion"));
            }
            self.cycle()?;
            on_the_bus += u64::from(!self.host.vfpga.bus().is_quiet());
        }
        Ok(on_the_bus)
    }

    /// The entry of a queue pair's next message.
    fn entry(&self, line: usize) -> Vec<Block> {
        let (length, Region { key, address }) = (self.lines[line].length, self.region);
        let opcode = if self.work == Work::Read { SendOpcode::Read } else { SendOpcode::Write };
        let flags = SendFlags::SIGNALED;
        let header = SendHeader {
            opcode,
            flags,
            remote_address: address,
            rkey: key,
            ..SendHeader::default()
        };
        match self.work {
            Work::Receive => {
                let elements = bytes_of(&[Sge { address, length, lkey: key }]);
                let header = ReceiveHeader { num_sge: 1, tag: 0 };
                blocks_of(&header.encode(), RECEIVE_PAYLOAD_OFFSET, &elements)
            }
            Work::Inline => {
                let (flags, inline_length) = (flags | SendFlags::INLINE, length);
                let blocks = send_blocks_for_inline(length as usize) as u8;
                let header = SendHeader { flags, inline_length, blocks, ..header };
                blocks_of(&header.encode(), SEND_PAYLOAD_OFFSET, &vec![0x5a; length as usize])
            }
            Work::Write | Work::Read => send_entry(header, &[Sge { address, length, lkey: key }]),
        }
    }

    /// Posts as many entries of a queue pair as there is room for.
    fn post(&mut self, line: usize) {
        let entry = self.entry(line);
        self.host.page = doorbell::page_of(client_of(line));
        let Line { qp, rq, posted, .. } = &mut self.lines[line];
        for _ in *posted..POSTED {
            match self.work {
                Work::Receive => self.host.post_receive(rq, qp, &entry),
                _ => self.host.put(qp, &entry),
            }
        }
        *posted = POSTED;
        if self.work != Work::Receive {
            self.host.ring_send(qp);
        }
    }

    /// Asks for the next bytes of a queue pair's messages, or brings them.
    fn ask(&mut self, number: usize) {
        let (work, port) = (self.work, self.host.vfpga.port());
        let Line { qp, length, messages, .. } = &mut self.lines[number];
        let qpn = qp.qpn;
        if work == Work::Receive {
            port.claim(number as u8, qpn);
            self.claims += 1;
            return;
        }
        let Some((message, offset)) = messages.front_mut() else { return };
        let bytes = (*length - *offset).min(MTU);
        let (payload, length) = (Payload::Message(*message), *length);
        let transfer = Transfer { tag: 0, qpn, payload, offset: *offset, length: bytes as u16 };
        match work {
            Work::Read => port.place(transfer, &vec![0xa5; bytes as usize]),
            _ => port.fetch(transfer),
        }
        *offset += bytes;
        let is_last = *offset == length;
        if is_last {
            messages.pop_front();
        }
        self.asked.push_back(Asked { number, is_last });
        if !messages.is_empty() {
            self.turns.push_back(number);
        }
    }

    /// Takes the engine's answers, which come in the order of the questions, but for those to claims.
    fn hear(&mut self) -> Result<(), MessageError> {
        let port = self.host.vfpga.port();
        while let Some(claimed) = port.claimed.pop_front() {
            let number = usize::from(claimed.tag);
            let line = self.lines.get(number).filter(|_| claimed.verdict == Verdict::Done);
            let Some(Line { qp, length, .. }) = line else { return wrong("a claim", claimed) };
            self.claims -= 1;
            let payload = Payload::Receive(claimed.receive);
            let transfer =
                Transfer { tag: 0, qpn: qp.qpn, payload, offset: 0, length: *length as u16 };
            port.place(transfer, &vec![0xa5; *length as usize]);
            self.asked.push_back(Asked { number, is_last: true });
        }
        loop {
            let fetched = port.take_fetched().map(|(_, verdict, _)| verdict);
            let verdict = fetched.or_else(|| Some(port.placed.pop_front()?.1));
            let Some(verdict) = verdict else { return Ok(()) };
            let asked = self.asked.pop_front().filter(|_| verdict == Verdict::Done);
            let Some(Asked { number, is_last }) = asked else { return wrong("an answer", verdict) };
            let Line { qp, length, .. } = &self.lines[number];
            let (qpn, length) = (qp.qpn, *length);
            match self.work {
                Work::Receive => {
                    let (is_write, immediate, solicited) = (false, None, false);
                    port.report(Report::Commit { qpn, length, is_write, immediate, solicited });
                    self.turns.push_back(number);
                }
                _ if is_last => {
                    port.report(Report::Ended { qpn, count: 1 });
                    port.give_room(qpn, 1);
                }
                _ => {}
            }
        }
    }
}
