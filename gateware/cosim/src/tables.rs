//! The tables of one engine in RTL: as many keys and queues as it offers, whose numbers rest, and tables whose memory flips, of
//! which nothing is used: the engine stops.

use std::collections::BTreeSet;

use fpga_regs::engine::admin::{AdminStatus, Opcode};
use fpga_regs::engine::cqe::Status;
use fpga_regs::engine::event::EventType;
use fpga_regs::engine::window::{
    FATAL_TABLE_FLIPPED, LIMIT_KEY_RQ, LIMIT_QP_CQ, STATUS_ENABLED, STATUS_FATAL,
};
use fpga_regs::engine::wqe::{
    RECEIVE_PAYLOAD_OFFSET, ReceiveHeader, SendFlags, SendHeader, SendOpcode, Sge,
};

use crate::alone::{Alone, cycle, started};
use crate::bus::Config;
use crate::ffi::{Library, Table};
use crate::host::{Cq, Host, Qp, RIGHTS, Region, Rq};
use crate::memory::PAGE_BYTES;
use crate::messages::{MessageError, blocks_of, bytes_of, send_entry, wrong};
use crate::port::{Check, Payload, Report, Transfer, Verdict};

/// Each table, the bits of a record of it with their parity, and what asks for one.
const TABLES: [(Table, u32, &[Asks]); 22] = [
    (
        Table::Keys,
        3 * 72,
        &[Asks::Message, Asks::Fetch, Asks::Check, Asks::Place, Asks::DestroyKey],
    ),
    (
        Table::FoundQps,
        3 * 72,
        &[Asks::Fetch, Asks::Check, Asks::Place, Asks::End, Asks::Claim, Asks::Destroy],
    ),
    (Table::ReadQps, 3 * 72, &[Asks::Message, Asks::End, Asks::Destroy]),
    (Table::Cqs, 72, &[Asks::End, Asks::Arm]),
    (Table::Rqs, 2 * 72, &[Asks::Claim]),
    (Table::AskedMessages, 2 * 72, &[Asks::Fetch]),
    (Table::EndedMessages, 2 * 72, &[Asks::End]),
    (Table::MessageElements, 2 * 72, &[Asks::Fetch]),
    (Table::AskedReceives, 3 * 72, &[Asks::Fill]),
    (Table::EndedReceives, 72, &[Asks::Commit]),
    (Table::ReceiveElements, 2 * 72, &[Asks::Fill]),
    (Table::SendIndices, 3 * 72, &[Asks::Message, Asks::End]),
    (Table::FoundMessages, 72, &[Asks::Fetch, Asks::End]),
    (Table::UsedRoom, 72, &[Asks::Message]),
    (Table::GivenRoom, 72, &[Asks::Room]),
    (Table::ReceiveIndices, 2 * 72, &[Asks::Claim]),
    (Table::FoundReceives, 72, &[Asks::Claim, Asks::Fill]),
    (Table::ReadReceives, 72, &[Asks::Commit]),
    (Table::CompletionIndices, 3 * 72, &[Asks::End, Asks::Arm]),
    (Table::RoomQps, 72, &[Asks::Room]),
    (Table::CqUsers, 72, &[Asks::DestroyCq, Asks::CreateQp, Asks::Destroy]),
    (Table::RqUsers, 72, &[Asks::DestroyRq, Asks::CreateQp, Asks::Destroy]),
];
/// Every so many of these bits flips once, from this one on.
const STEP: usize = 7;
const FIRST: u32 = 1;
/// Commands that wait in the ring at a time.
const AT_A_TIME: usize = 8;
/// Keys that are made behind a reset, and one by one where no more are free than always.
const FEW: usize = 40;

/// What was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Keys at a time.
    pub keys: usize,
    /// The same of completion queues.
    pub cqs: usize,
    /// Bits that flipped.
    pub flips: u64,
}

/// What asks for a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asks {
    /// A message that is posted.
    Message,
    /// The bytes of one.
    Fetch,
    /// Its end.
    End,
    /// A peer's request.
    Check,
    /// Its bytes.
    Place,
    /// A peer's message, for a receive.
    Claim,
    /// Its bytes.
    Fill,
    /// Its end.
    Commit,
    /// Room for a message.
    Room,
    /// A completion queue's doorbell.
    Arm,
    /// Commands.
    DestroyKey,
    Destroy,
    DestroyCq,
    DestroyRq,
    CreateQp,
}

struct Bench {
    host: Host,
    cq: Cq,
    rq: Rq,
    qp: Qp,
    region: Region,
}

/// Tries all of it.
///
/// # Errors
/// [`MessageError`].
pub fn run(library: &Library) -> Result<Kept, MessageError> {
    let (keys, cqs) = (full(library)?, full_of_cqs(library)?);
    let mut flips = 0;
    for (table, bits, asks) in TABLES {
        for (bit, asks) in (FIRST..bits).step_by(STEP).zip(asks.iter().cycle()) {
            let config = Config { seed: bit.into(), latency: 20, ..Config::default() };
            Bench::connected(library, &config)?.flipped(table, bit, *asks)?;
            flips += 1;
        }
    }
    Ok(Kept { keys, cqs, flips })
}

impl Alone for Bench {
    fn host(&mut self) -> &mut Host {
        &mut self.host
    }

    fn cycle(&mut self) -> Result<(), MessageError> {
        cycle(&mut self.host, 1).map(drop)
    }
}

/// Makes as many keys as the engine offers, ends some, makes them anew, and resets it: no number comes again.
fn full(library: &Library) -> Result<usize, MessageError> {
    let mut bench = Bench::connected(library, &Config { latency: 0, ..Config::default() })?;
    let limit = bench.register(LIMIT_KEY_RQ)? as u32 as usize;
    let mut numbers = BTreeSet::from([bench.region.key >> 8]);
    let mut keys = bench.make(limit - 1, &mut numbers)?;
    bench.is_full()?;
    // The newest ends, and another takes its room, at once.
    for _ in 0..FEW {
        let Some(key) = keys.pop() else { return wrong("the keys", keys.len()) };
        bench.host.name(Opcode::DestroyKey, key);
        bench.answer(Opcode::DestroyKey)?;
        bench.host.name(Opcode::DestroyKey, key);
        bench.has_status_of("a key that ended", AdminStatus::NotFound)?;
        keys.extend(bench.make(1, &mut numbers)?);
        bench.is_full()?;
    }
    for key in keys.drain(..FEW) {
        bench.host.name(Opcode::DestroyKey, key);
        bench.answer(Opcode::DestroyKey)?;
    }
    keys.extend(bench.make(FEW, &mut numbers)?);
    bench.is_full()?;
    for _ in 0..2 {
        bench.restart()?;
        let Some(key) = keys.pop() else { return wrong("the keys", keys.len()) };
        bench.host.name(Opcode::DestroyKey, key);
        bench.has_status_of("a key of before the reset", AdminStatus::NotFound)?;
        keys.extend(bench.make(FEW, &mut numbers)?);
    }
    Ok(limit)
}

/// Makes as many completion queues as the engine offers, and one more; those that end make room again.
fn full_of_cqs(library: &Library) -> Result<usize, MessageError> {
    let mut bench = Bench::connected(library, &Config { latency: 0, ..Config::default() })?;
    let limit = (bench.register(LIMIT_QP_CQ)? >> 32) as usize;
    let mut numbers = BTreeSet::from([bench.cq.cqn]);
    for _ in 0..2 {
        let mut made = Vec::new();
        // One is the queue pair's.
        while made.len() < limit - 1 {
            bench.host.create_cq(0);
            made.push(bench.answer(Opcode::CreateCq)?.result);
        }
        bench.host.create_cq(0);
        bench.has_status_of("one completion queue more", AdminStatus::NoResources)?;
        for cqn in made {
            if !numbers.insert(cqn) {
                return wrong("a number that does not rest", cqn);
            }
            bench.host.name(Opcode::DestroyCq, cqn);
            bench.answer(Opcode::DestroyCq)?;
        }
    }
    Ok(limit)
}

impl Bench {
    fn connected(library: &Library, config: &Config) -> Result<Self, MessageError> {
        let mut host = started(library, config)?;
        let cq = host.create_cq(4);
        let region = host.register(PAGE_BYTES, RIGHTS);
        let (rq, qp) = (Rq::default(), Qp::default());
        let mut bench = Self { host, cq, rq, qp, region };
        bench.answer(Opcode::SetGid)?;
        bench.cq.cqn = bench.answer(Opcode::CreateCq)?.result;
        bench.region.key = bench.answer(Opcode::CreateKey)?.result;
        (bench.qp, bench.rq) = bench.connect_qp(bench.cq.cqn, 0, 4)?;
        Ok(bench)
    }

    /// Resets the engine and starts it, which hears no doorbell before it is enabled.
    fn restart(&mut self) -> Result<(), MessageError> {
        self.host.reset();
        self.has_status(0)?;
        self.host.start(0);
        self.has_status(STATUS_ENABLED)
    }

    fn has_status_of(
        &mut self,
        what: &'static str,
        status: AdminStatus,
    ) -> Result<(), MessageError> {
        match self.completion()? {
            it if it.status == status => Ok(()),
            it => wrong(what, it),
        }
    }

    /// Makes keys, none of whose numbers was seen before.
    fn make(
        &mut self,
        count: usize,
        numbers: &mut BTreeSet<u32>,
    ) -> Result<Vec<u32>, MessageError> {
        let (mut asked, mut keys) = (0, Vec::new());
        while keys.len() < count {
            while asked < count.min(keys.len() + AT_A_TIME) {
                self.host.create_key(0, PAGE_BYTES, RIGHTS);
                asked += 1;
            }
            let key = self.answer(Opcode::CreateKey)?.result;
            if !numbers.insert(key >> 8) {
                return wrong("a number that does not rest", key);
            }
            keys.push(key);
        }
        Ok(keys)
    }

    fn is_full(&mut self) -> Result<(), MessageError> {
        self.host.create_key(0, PAGE_BYTES, RIGHTS);
        self.has_status_of("one key more", AdminStatus::NoResources)
    }

    /// Flips a bit of all that is in a table before something asks for a record of it.
    fn flipped(mut self, table: Table, bit: u32, asks: Asks) -> Result<(), MessageError> {
        let Region { key, address } = self.region;
        if matches!(asks, Asks::Fetch | Asks::End) {
            self.post();
            self.until("a message", |bench| bench.host.vfpga.port().submitted.pop_front())?;
        }
        // The elements of a receive with one are not in that table.
        let num_sge = 1 + u8::from(table == Table::ReceiveElements);
        let header = ReceiveHeader { num_sge, tag: 0 };
        let elements = vec![Sge { address, length: 64, lkey: key }; num_sge.into()];
        let receive = blocks_of(&header.encode(), RECEIVE_PAYLOAD_OFFSET, &bytes_of(&elements));
        self.host.post_receive(&mut self.rq, &self.qp, &receive);
        if matches!(asks, Asks::Fill | Asks::Commit) {
            self.ask(Asks::Claim);
            let claimed =
                self.until("a claim", |bench| bench.host.vfpga.port().claimed.pop_front())?;
            if claimed.verdict != Verdict::Done {
                return wrong("a claim", claimed);
            }
        }
        self.settle()?;
        // What is reached all the same has a fault.
        self.host.memory.unmap(address, PAGE_BYTES);
        self.host.vfpga.flip(table, bit);
        self.ask(asks);
        self.has_status(STATUS_FATAL | u64::from(FATAL_TABLE_FLIPPED) << 32)?;
        match self.host.event() {
            Some(event) if event.kind == EventType::Fatal => {
                if u32::from(event.code) != FATAL_TABLE_FLIPPED {
                    return wrong("the code of an engine that stops", event);
                }
            }
            event => return wrong("the event of an engine that stops", event),
        }
        let faults = self.host.vfpga.faults;
        let port = self.host.vfpga.port();
        let (checked, placed) = (port.checked.pop_front(), port.placed.pop_front());
        let claimed = port.claimed.pop_front().map(|it| it.verdict);
        let fetched = port.take_fetched().map(|(_, verdict, _)| verdict);
        let told = placed.or(checked).map(|it| it.1).or(fetched).or(claimed);
        let is_submitted = !port.submitted.is_empty();
        let completion = self.host.poll(&mut self.cq);
        let is_question =
            matches!(asks, Asks::Fetch | Asks::Check | Asks::Place | Asks::Claim | Asks::Fill);
        let is_refused = told.is_some_and(|verdict| verdict != Verdict::Done);
        let is_done = completion.is_some_and(|it| it.status == Status::Success);
        // What is in use was not freed.
        let frees = matches!(asks, Asks::DestroyCq | Asks::DestroyRq);
        let answer = self.host.answer().filter(|_| frees);
        let is_freed = answer.is_some_and(|it| it.status == AdminStatus::Success);
        if is_submitted || is_done || is_freed || faults != 0 || is_refused != is_question {
            return wrong(
                "what was used that flipped",
                (table, bit, asks, told, completion, answer),
            );
        }
        self.restart()?;
        self.make(1, &mut BTreeSet::from([key >> 8])).map(drop)
    }

    fn ask(&mut self, asks: Asks) {
        let (qpn, Region { key, address }) = (self.qp.qpn, self.region);
        let payload = match asks {
            Asks::Fetch => Payload::Message(0),
            Asks::Fill => Payload::Receive(0),
            _ => Payload::Remote { rkey: key, address, is_read: false },
        };
        let transfer = Transfer { tag: 0, qpn, payload, offset: 0, length: 64 };
        let port = self.host.vfpga.port();
        match asks {
            Asks::Message => self.post(),
            Asks::Fetch => port.fetch(transfer),
            Asks::End => port.report(Report::Ended { qpn, count: 1 }),
            Asks::Place | Asks::Fill => port.place(transfer, &[0xa5; 64]),
            Asks::Check => {
                port.check(Check { tag: 0, qpn, is_read: true, rkey: key, address, length: 64 });
            }
            Asks::Claim => port.claim(0, qpn),
            Asks::Commit => {
                let (is_write, immediate, solicited) = (false, None, false);
                port.report(Report::Commit { qpn, length: 64, is_write, immediate, solicited });
            }
            Asks::Room => port.give_room(qpn, 1),
            Asks::Arm => {
                self.host.arm(&mut self.cq);
            }
            Asks::DestroyKey => self.host.name(Opcode::DestroyKey, key),
            Asks::Destroy => self.host.name(Opcode::DestroyQp, qpn),
            Asks::DestroyCq => self.host.name(Opcode::DestroyCq, self.cq.cqn),
            Asks::DestroyRq => self.host.name(Opcode::DestroyRq, self.rq.rqn),
            Asks::CreateQp => drop(self.host.create_qp(self.cq.cqn, self.rq.rqn, 4)),
        }
    }

    /// Posts a WRITE.
    fn post(&mut self) {
        let header = SendHeader {
            opcode: SendOpcode::Write,
            flags: SendFlags::SIGNALED,
            ..SendHeader::default()
        };
        let Region { key: lkey, address } = self.region;
        let entry = send_entry(header, &[Sge { address, length: 64, lkey }]);
        self.host.post(&mut self.qp, &entry);
    }
}
