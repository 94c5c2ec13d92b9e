//! WRITE and READ of one queue pair between two engines in RTL: from the program's entry to its completion and event, with
//! each byte of payload through both.

use fpga_regs::engine::admin::{Completion, Opcode};
use fpga_regs::engine::cqe::{self, Cqe, Status};
use fpga_regs::engine::event::EventType;
use fpga_regs::engine::key::Access;
use fpga_regs::engine::qp::QpState;
use fpga_regs::engine::wqe::{
    SEND_PAYLOAD_OFFSET, SendFlags, SendHeader, SendOpcode, Sge, send_blocks_for_inline,
    send_blocks_for_sges,
};
use fpga_regs::{BLOCK_BYTES, Block};

use crate::bus::{Config, Violation};
use crate::card::Vfpga;
use crate::ffi::{Library, LoadError};
use crate::host::{Cq, Host, Qp, RIGHTS, Region};
use crate::memory::block_of;
use crate::pair::Pair;
use crate::random::Random;

/// Bytes of each region.
const REGION: u64 = 1 << 17;
/// Cycles in which anything that is waited for comes.
const PATIENCE: u64 = 500_000;
/// Cycles in which an event that does not wait has come.
const WHILE: u64 = 3_000;
/// Entries of a batch.
const BATCH: u64 = 6;
/// Requests that are refused.
const REFUSALS: u64 = 6;
/// The one that is a READ of a queue pair that may have none under way.
const NO_READS: u64 = 5;

/// What was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Messages that were written.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Cycles of each card.
    pub cycles: u64,
    /// Beats of payload on the ports N of both.
    pub beats: u64,
}

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// There is no logic.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The logic broke a rule.
    #[error(transparent)]
    Violation(#[from] Violation),
    /// Something did not come.
    #[error("{0} did not come within {PATIENCE} cycles")]
    Late(&'static str),
    /// Something else came than what had to.
    #[error("{what}: {seen}")]
    Wrong {
        /// What.
        what: &'static str,
        /// What was seen.
        seen: String,
    },
}

fn wrong<T>(what: &'static str, seen: impl std::fmt::Debug) -> Result<T, WriteError> {
    Err(WriteError::Wrong { what, seen: format!("{seen:?}") })
}

/// The program's objects on one host.
struct Side {
    cq: Cq,
    qp: Qp,
    region: Region,
    /// Memory that only a peer's READ, or only WRITEs may reach.
    readable: Region,
    writable: Region,
}

/// Two hosts, whose programs are connected.
struct Test {
    pair: Pair,
    sides: [Side; 2],
    random: Random,
    /// Unread events at which completions' events wait; 0 is no limit.
    limit: u64,
    /// Which of the refusals ends it.
    refusal: u64,
    seen: Seen,
}

/// An entry that was posted, and what it is to do.
struct Posted {
    index: u32,
    opcode: SendOpcode,
    /// On which host, where, and what.
    side: usize,
    at: u64,
    bytes: Vec<u8>,
    is_signaled: bool,
}

/// Runs a scenario that a seed decides.
///
/// # Errors
/// [`WriteError`].
pub fn run(library: &Library, config: &Config, batches: u32) -> Result<Seen, WriteError> {
    let mut test = Test::connected(library, config)?;
    for _ in 0..batches {
        test.batch()?;
    }
    test.waiting()?;
    test.refused()?;
    test.seen.cycles = test.pair.hosts[0].vfpga.now();
    test.seen.beats = test.pair.hosts.iter_mut().map(|host| host.vfpga.port().beats).sum();
    Ok(test.seen)
}

/// Waits until something is there.
fn until<T>(
    pair: &mut Pair,
    what: &'static str,
    mut is: impl FnMut(&mut Pair) -> Option<T>,
) -> Result<T, WriteError> {
    for _ in 0..PATIENCE {
        if let Some(it) = is(pair) {
            return Ok(it);
        }
        pair.cycle()?;
    }
    Err(WriteError::Late(what))
}

/// Waits for the answer to a command, which has to be a success.
fn answer(pair: &mut Pair, side: usize, opcode: Opcode) -> Result<Completion, WriteError> {
    let completion = until(pair, "an answer", |pair| pair.hosts[side].answer())?;
    match completion.status.0 == 0 && completion.opcode == opcode {
        true => Ok(completion),
        false => wrong("the answer to a command", completion),
    }
}

/// Registers memory of a host, with rights.
fn register(pair: &mut Pair, side: usize, access: Access) -> Result<Region, WriteError> {
    let mut region = pair.hosts[side].register(REGION, access);
    region.key = answer(pair, side, Opcode::CreateKey)?.result;
    Ok(region)
}

impl Test {
    /// Starts both engines and connects a queue pair on each.
    fn connected(library: &Library, config: &Config) -> Result<Self, WriteError> {
        let host = |seed| -> Result<Host, WriteError> {
            Ok(Host::new(Vfpga::new(library, Config { seed, ..config.clone() })?))
        };
        let (limit, refusal) = (config.seed % 2, config.seed % REFUSALS);
        let mut pair = Pair::new([host(config.seed)?, host(config.seed ^ 0xffff)?]);
        let gids = [1, 2].map(|last| [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last]);
        let mut sides = Vec::new();
        for (side, gid) in gids.into_iter().enumerate() {
            pair.hosts[side].start(limit);
            pair.hosts[side].set_gid(gid);
            // The engine starts some cycles after it is told to, and hears no doorbell before that.
            until(&mut pair, "the engine's start", |pair| {
                let now = pair.hosts[side].vfpga.now();
                let host = &mut pair.hosts[side];
                if now % 2000 == 0 {
                    host.ring_commands();
                }
                host.answer()
            })?;
            let mut cq = pair.hosts[side].create_cq(3);
            cq.cqn = answer(&mut pair, side, Opcode::CreateCq)?.result;
            pair.hosts[side].create_rq();
            let rqn = answer(&mut pair, side, Opcode::CreateRq)?.result;
            let mut qp = pair.hosts[side].create_qp(cq.cqn, rqn, 5);
            let made = answer(&mut pair, side, Opcode::CreateQp)?;
            if Host::made(&mut qp, &made).is_err() {
                return wrong("a queue pair", made);
            }
            let region = register(&mut pair, side, RIGHTS)?;
            let readable = register(&mut pair, side, Access::REMOTE_READ)?;
            let writable = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
            let writable = register(&mut pair, side, writable)?;
            sides.push(Side { cq, qp, region, readable, writable });
        }
        let [Ok(one), Ok(other)] = [1, 0].map(|_| sides.pop().ok_or(())) else {
            return wrong("sides", sides.len());
        };
        let sides = [other, one];
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            for side in 0..2 {
                let peer = (sides[1 - side].qp.qpn, gids[1 - side]);
                let reads = if side == 0 && refusal == NO_READS { 0 } else { 1 };
                pair.hosts[side].modify_qp(sides[side].qp.qpn, state, peer, reads);
                answer(&mut pair, side, Opcode::ModifyQp)?;
            }
        }
        let random = Random::new(config.seed ^ 0x5eed);
        Ok(Self { pair, sides, random, limit, refusal, seen: Seen::default() })
    }

    /// Posts some entries on one side, and looks at all that comes of them.
    fn batch(&mut self) -> Result<(), WriteError> {
        let from = self.random.below(2) as usize;
        let arms = self.random.chance(128);
        let Self { pair, sides, .. } = self;
        if arms {
            let host = &mut pair.hosts[from];
            host.arm(&mut sides[from].cq);
        }
        let mut all = Vec::new();
        for number in 0..BATCH {
            let is_last = number + 1 == BATCH;
            all.push(self.post(from, number, is_last));
        }
        let mut first = match arms {
            true => Some(self.told_completion(from)?),
            false => None,
        };
        for posted in all.iter().filter(|posted| posted.is_signaled) {
            let entry = match first.take() {
                Some(entry) => entry,
                None => self.completion(from)?,
            };
            self.compare(from, posted, &entry)?;
        }
        for posted in &all {
            let host = &mut self.pair.hosts[posted.side];
            let mut bytes = vec![0; posted.bytes.len()];
            host.memory.load(posted.at, &mut bytes);
            if bytes != posted.bytes {
                let at = bytes.iter().zip(&posted.bytes).position(|(is, wanted)| is != wanted);
                return wrong("bytes differ", (posted.opcode, posted.bytes.len(), at));
            }
            self.seen.messages += 1;
            self.seen.bytes += posted.bytes.len() as u64;
        }
        Ok(())
    }

    /// The completion of which an event tells: it is there when the event is.
    fn told_completion(&mut self, from: usize) -> Result<Cqe, WriteError> {
        let cqn = self.sides[from].cq.cqn;
        let event = until(&mut self.pair, "an event", |pair| pair.hosts[from].event())?;
        if event.kind != EventType::Completion || event.number != cqn {
            return wrong("the event of a completion", event);
        }
        match self.pair.hosts[from].poll(&mut self.sides[from].cq) {
            Some(entry) => Ok(entry),
            None => wrong("an event before its completion", event),
        }
    }

    /// A queue fires thrice before the driver reads an event: of a ring that allows one, it tells the first and the last.
    fn waiting(&mut self) -> Result<(), WriteError> {
        let cqn = self.sides[0].cq.cqn;
        let mut sequences = Vec::new();
        for _ in 0..3 {
            sequences.push(self.pair.hosts[0].arm(&mut self.sides[0].cq));
            let posted = self.post(0, 0, true);
            let entry = self.completion(0)?;
            self.compare(0, &posted, &entry)?;
        }
        if self.limit == 1 {
            sequences.remove(1);
        }
        for sequence in sequences {
            until(&mut self.pair, "an event", |pair| pair.hosts[0].unread_event())?;
            self.pass()?;
            if self.limit == 1 && self.pair.hosts[0].has_second_event() {
                return wrong("events in a ring that allows completions one", 2);
            }
            match self.pair.hosts[0].event() {
                Some(event) if event.number == cqn && event.data == u64::from(sequence) => {}
                event => return wrong("the event of a queue that fired", (sequence, event)),
            }
        }
        self.pass()?;
        match self.pair.hosts[0].unread_event() {
            None => Ok(()),
            event => wrong("an event that nothing raised", event),
        }
    }

    /// Lets some cycles pass.
    fn pass(&mut self) -> Result<(), WriteError> {
        (0..WHILE).try_for_each(|_| Ok(self.pair.cycle()?))
    }

    fn completion(&mut self, from: usize) -> Result<Cqe, WriteError> {
        let cq = &mut self.sides[from].cq;
        until(&mut self.pair, "a completion", |pair| pair.hosts[from].poll(cq))
    }

    fn compare(&self, from: usize, posted: &Posted, entry: &Cqe) -> Result<(), WriteError> {
        let wanted = Cqe {
            qpn: self.sides[from].qp.qpn,
            generation: self.sides[from].qp.generation(),
            wqe_index: posted.index,
            byte_count: posted.bytes.len() as u32,
            opcode: match posted.opcode {
                SendOpcode::Read => cqe::Opcode::Read,
                _ => cqe::Opcode::Write,
            },
            status: Status::Success,
            // What cannot be foretold is as it is.
            timestamp: entry.timestamp,
            phase: entry.phase,
            ..Cqe::default()
        };
        if *entry == wanted && entry.timestamp > 0 { Ok(()) } else { wrong("a completion", entry) }
    }

    /// Posts one WRITE or READ of a random length: inline, or of up to 16 elements.
    fn post(&mut self, from: usize, number: u64, is_signaled: bool) -> Posted {
        let random = &mut self.random;
        let is_signaled = is_signaled || random.chance(128);
        let may_read = from != 0 || self.refusal != NO_READS;
        let is_read = may_read && random.chance(80);
        let is_inline = !is_read && random.chance(64);
        let odd = random.below(9000);
        let length = match is_inline {
            true => random.below(289),
            false => random.one_of(&[0, 1, 63, 64, 65, 4095, 4096, 4097, odd]),
        };
        let bytes: Vec<u8> = (0..length).map(|_| random.next_u64() as u8).collect();
        // A place of its own for each entry of a batch, at any byte.
        let side = &mut self.sides[from];
        let place = number * (REGION / BATCH) + random.below(600);
        let (local, key) = (side.region.address + place, side.region.key);
        let peer = self.sides[1 - from].region;
        let flags = if is_signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
        let mut header = SendHeader {
            opcode: if is_read { SendOpcode::Read } else { SendOpcode::Write },
            flags,
            remote_address: peer.address + place,
            rkey: peer.key,
            ..SendHeader::default()
        };
        let mut payload = Vec::new();
        if is_inline {
            header.flags |= SendFlags::INLINE;
            header.inline_length = length as u32;
            header.blocks = send_blocks_for_inline(length as usize) as u8;
            payload.extend_from_slice(&bytes);
        } else {
            let elements = elements(&mut self.random, length as u32);
            header.num_sge = elements.len() as u8;
            header.blocks = send_blocks_for_sges(elements.len()) as u8;
            // Of a READ they are at the peer.
            let (owner, at) = match is_read {
                true => (1 - from, peer.address + place),
                false => (from, local),
            };
            self.pair.hosts[owner].memory.store(at, &bytes);
            let mut address = local;
            for length in elements {
                let sge = Sge { address, length, lkey: key };
                payload.extend(sge.encode().into_iter().flat_map(u64::to_le_bytes));
                address += u64::from(length);
            }
        }
        let side = &mut self.sides[from];
        let index = side.qp.index();
        let entry = entry(&header, &payload);
        self.pair.hosts[from].post(&mut side.qp, &entry);
        let (side, at) = match is_read {
            true => (from, local),
            false => (1 - from, peer.address + place),
        };
        Posted { index, opcode: header.opcode, side, at, bytes, is_signaled }
    }

    /// A request beyond a region, or without a right, fails, and the one behind it is flushed.
    fn refused(&mut self) -> Result<(), WriteError> {
        let [own, peer] = &self.sides;
        let beyond = Region { address: peer.region.address + REGION - 10, ..peer.region };
        let (opcode, local, remote, status) = match self.refusal {
            0 => (SendOpcode::Write, own.region, beyond, Status::RemoteAccess),
            1 => (SendOpcode::Read, own.region, beyond, Status::RemoteAccess),
            2 => (SendOpcode::Write, own.region, peer.readable, Status::RemoteAccess),
            3 => (SendOpcode::Read, own.region, peer.writable, Status::RemoteAccess),
            4 => (SendOpcode::Read, own.readable, peer.region, Status::LocalProtection),
            _ => (SendOpcode::Read, own.region, peer.region, Status::LocalQpOperation),
        };
        let header = SendHeader {
            opcode,
            num_sge: 1,
            blocks: 1,
            remote_address: remote.address,
            rkey: remote.key,
            ..SendHeader::default()
        };
        let sge = Sge { address: local.address, length: 11, lkey: local.key };
        let payload: Vec<u8> = sge.encode().into_iter().flat_map(u64::to_le_bytes).collect();
        let entry = entry(&header, &payload);
        for _ in 0..2 {
            self.pair.hosts[0].post(&mut self.sides[0].qp, &entry);
        }
        for wanted in [status, Status::Flushed] {
            let entry = self.completion(0)?;
            if entry.status != wanted {
                return wrong("the completion of a request that is refused", (self.refusal, entry));
            }
        }
        Ok(())
    }
}

/// The lengths of the elements of a message, of up to 16.
fn elements(random: &mut Random, length: u32) -> Vec<u32> {
    let count = 1 + random.below(16) as u32;
    let mut left = length;
    let mut all = Vec::new();
    for number in 1..=count {
        let part = if number == count { left } else { random.below(u64::from(left) + 1) as u32 };
        all.push(part);
        left -= part;
    }
    all
}

/// The blocks of an entry.
fn entry(header: &SendHeader, payload: &[u8]) -> Vec<Block> {
    let [first] = header.encode();
    let mut bytes: Vec<u8> = first.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.truncate(SEND_PAYLOAD_OFFSET);
    bytes.extend_from_slice(payload);
    bytes.resize(usize::from(header.blocks) * BLOCK_BYTES, 0);
    bytes.chunks(BLOCK_BYTES).map(block_of).collect()
}
