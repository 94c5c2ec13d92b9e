//! SEND, WRITE and READ of one queue pair between two engines in RTL: from the program's entries to their completions and
//! events, with each byte of payload through both.

mod errors;
mod late;
mod refusals;
mod resizing;
mod room;
mod sending;
mod shared;

use fpga_regs::engine::admin::{AdminStatus, Completion, Opcode, RqKind};
use fpga_regs::engine::cqe::{Cqe, Flags, Opcode as Completed, Status};
use fpga_regs::engine::event::{EventType, QpEvent};
use fpga_regs::engine::key::Access;
use fpga_regs::engine::qp::QpState;
use fpga_regs::engine::window;
use fpga_regs::engine::wqe::{
    MAX_SGE, RECEIVE_PAYLOAD_OFFSET, ReceiveHeader, SEND_PAYLOAD_OFFSET, SendFlags, SendHeader,
    SendOpcode, Sge, send_blocks_for_inline, send_blocks_for_sges,
};
use fpga_regs::{BLOCK_BYTES, Block};

use crate::bus::{Config, Violation};
use crate::card::Vfpga;
use crate::coverage::{Coverage, Ended, When};
use crate::ffi::{Library, LoadError};
use crate::host::{Cq, Host, Qp, RIGHTS, Region, Rq};
use crate::memory::block_of;
use crate::pair::{Pair, Stopped};
use crate::random::Random;

pub use refusals::{Refused, run as refuse};

/// Bytes of each region.
const REGION: u64 = 1 << 17;
/// Cycles in which anything that is waited for comes.
pub(crate) const PATIENCE: u64 = 500_000;
/// Entries of a batch.
const BATCH: u64 = 6;
/// Cycles in which a message waits for its receive.
const EARLY: u64 = 500;
/// Requests that are refused.
const REFUSALS: u64 = 10;
/// log2 of the entries of a completion queue.
const LOG2_COMPLETIONS: u8 = 3;
/// log2 of the entries of a receive queue.
const LOG2_RECEIVES: u8 = 3;
/// The states on the way to a connected queue pair.
const STATES: [QpState; 4] = [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts];
/// The one that is a READ of a queue pair that may have none under way.
const NO_READS: u64 = 5;

/// What was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Messages that arrived.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Cycles of each card.
    pub cycles: u64,
    /// Beats of payload on the ports N of both.
    pub beats: u64,
    /// What the engines did, and their models too.
    pub compared: u64,
    /// The ends of work requests.
    pub coverage: Coverage,
}

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// There is no logic.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The logic broke a rule.
    #[error(transparent)]
    Violation(#[from] Violation),
    /// The same of one of two engines, or it did what its model does not.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// Something did not come.
    #[error("{0} did not come within {PATIENCE} cycles")]
    Late(&'static str),
    /// Something will not come.
    #[error("{0} will not come: nothing is under way on both cards")]
    Never(&'static str),
    /// Something else came than what had to.
    #[error("{what}: {seen}")]
    Wrong {
        /// What.
        what: &'static str,
        /// What was seen.
        seen: String,
    },
}

pub(crate) fn wrong<T>(what: &'static str, seen: impl std::fmt::Debug) -> Result<T, MessageError> {
    Err(MessageError::Wrong { what, seen: format!("{seen:?}") })
}

/// The program's objects on one host.
struct Side {
    cq: Cq,
    rq: Rq,
    qp: Qp,
    /// Another queue pair, where both use one receive queue.
    second: Option<Qp>,
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
    /// Receives that are posted later than the messages that take them.
    late: Option<Vec<Vec<Block>>>,
    /// The state of the queue pairs.
    when: When,
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
    /// The completion of the receive that it takes from the peer.
    receive: Option<Cqe>,
}

/// Runs a scenario that a seed decides.
///
/// # Errors
/// [`MessageError`].
pub fn run(library: &Library, config: &Config, batches: u32) -> Result<Seen, MessageError> {
    let mut test = Test::connected(library, config, true)?;
    for _ in 0..batches {
        test.batch()?;
    }
    test.counted()?;
    test.waiting()?;
    test.share()?;
    test.drained()?;
    test.resized()?;
    test.room()?;
    test.refused()?;
    test.ends()?;
    // What failed works again behind RESET.
    connect(&mut test.pair, &mut test.sides, test.refusal, &STATES)?;
    test.when = When::Again;
    test.batch()?;
    test.ends()?;
    test.stopped()?;
    test.ends()?;
    test.told_late()?;
    test.ends()?;
    settle(&mut test.pair, "the end of all")?;
    test.pair.followed()?;
    test.pair.hosts.iter_mut().for_each(Host::reset);
    settle(&mut test.pair, "the end of two resets")?;
    test.seen.compared = test.pair.followed()?;
    test.seen.cycles = test.pair.hosts[0].vfpga.now();
    test.seen.beats = test.pair.hosts.iter_mut().map(|host| host.vfpga.port().beats).sum();
    Ok(test.seen)
}

/// Waits until something is there.
fn until<T>(
    pair: &mut Pair,
    what: &'static str,
    mut is: impl FnMut(&mut Pair) -> Option<T>,
) -> Result<T, MessageError> {
    for _ in 0..PATIENCE {
        if let Some(it) = is(pair) {
            return Ok(it);
        }
        if pair.is_quiet() {
            return Err(MessageError::Never(what));
        }
        pair.cycle()?;
    }
    Err(MessageError::Late(what))
}

/// Waits until nothing is under way.
fn settle(pair: &mut Pair, what: &'static str) -> Result<(), MessageError> {
    until(pair, what, |pair| pair.is_quiet().then_some(()))
}

/// Waits for the answer to a command, which has to be a success.
fn answer(pair: &mut Pair, side: usize, opcode: Opcode) -> Result<Completion, MessageError> {
    answer_as(pair, side, opcode, AdminStatus::Success)
}

/// Waits for the answer to a command, which has to have a status.
fn answer_as(
    pair: &mut Pair,
    side: usize,
    opcode: Opcode,
    status: AdminStatus,
) -> Result<Completion, MessageError> {
    let completion = until(pair, "an answer", |pair| pair.hosts[side].answer())?;
    match completion.status == status && completion.opcode == opcode {
        true => Ok(completion),
        false => wrong("the answer to a command", completion),
    }
}

/// Registers memory of a host, with rights.
fn register(pair: &mut Pair, side: usize, access: Access) -> Result<Region, MessageError> {
    let mut region = pair.hosts[side].register(REGION, access);
    region.key = answer(pair, side, Opcode::CreateKey)?.result;
    Ok(region)
}

/// Makes a completion queue.
fn create_cq(pair: &mut Pair, side: usize, log2_entries: u8) -> Result<Cq, MessageError> {
    let mut cq = pair.hosts[side].create_cq(log2_entries);
    cq.cqn = answer(pair, side, Opcode::CreateCq)?.result;
    Ok(cq)
}

/// Makes a receive queue.
fn create_rq(
    pair: &mut Pair,
    side: usize,
    log2_stride: u8,
    kind: RqKind,
) -> Result<Rq, MessageError> {
    let mut rq = pair.hosts[side].create_rq(LOG2_RECEIVES, log2_stride, kind);
    rq.rqn = answer(pair, side, Opcode::CreateRq)?.result;
    Ok(rq)
}

/// Makes a queue pair.
fn create_qp(pair: &mut Pair, side: usize, cqn: u32, rqn: u32) -> Result<Qp, MessageError> {
    let mut qp = pair.hosts[side].create_qp(cqn, rqn, 5);
    let made = answer(pair, side, Opcode::CreateQp)?;
    match Host::made(&mut qp, &made) {
        Ok(()) => Ok(qp),
        Err(_) => wrong("a queue pair", made),
    }
}

/// The address of a host.
pub(crate) fn gid_of(side: usize) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1 + side as u8]
}

/// Takes a queue pair of a side to RTS, to a peer on the other side.
fn connect_qp(pair: &mut Pair, side: usize, qpn: u32, peer: u32) -> Result<(), MessageError> {
    for state in &STATES[1..] {
        pair.hosts[side].modify_qp(qpn, *state, (peer, gid_of(1 - side)), 1);
        answer(pair, side, Opcode::ModifyQp)?;
    }
    Ok(())
}

/// Takes both queue pairs through states, to one another.
fn connect(
    pair: &mut Pair,
    sides: &mut [Side; 2],
    refusal: u64,
    states: &[QpState],
) -> Result<(), MessageError> {
    for state in states {
        for side in 0..2 {
            let peer = (sides[1 - side].qp.qpn, gid_of(1 - side));
            let reads = if side == 0 && refusal == NO_READS { 0 } else { 1 };
            pair.hosts[side].modify_qp(sides[side].qp.qpn, *state, peer, reads);
            let completion = answer(pair, side, Opcode::ModifyQp)?;
            if *state == QpState::Reset {
                let Side { qp, rq, .. } = &mut sides[side];
                pair.hosts[side].renew(qp, rq, &completion);
            }
        }
    }
    Ok(())
}

impl Test {
    /// Each engine has counted, on its streams of host memory, the payload that passed at its port N.
    fn counted(&mut self) -> Result<(), MessageError> {
        for side in 0..2 {
            let counted = [
                self.register(side, window::PAYLOAD_READ)?,
                self.register(side, window::PAYLOAD_WRITTEN)?,
            ];
            let port = self.pair.hosts[side].vfpga.port();
            let passed = [port.fetched_bytes, port.placed_bytes];
            if counted != passed {
                return wrong("the payload that an engine counted", (side, counted, passed));
            }
        }
        Ok(())
    }

    pub(super) fn register(&mut self, side: usize, register: u64) -> Result<u64, MessageError> {
        self.pair.hosts[side].vfpga.ask(register as u16);
        until(&mut self.pair, "a register", |pair| pair.hosts[side].vfpga.take_answer())
    }

    /// Starts both engines, with models that follow them or without, and connects a queue pair on each.
    fn connected(library: &Library, config: &Config, follow: bool) -> Result<Self, MessageError> {
        let host = |seed| -> Result<Host, MessageError> {
            Ok(Host::new(Vfpga::new(library, Config { seed, ..config.clone() })?))
        };
        let (limit, refusal) = (config.seed % 2, config.seed % REFUSALS);
        let places = [1, 8, 3][(config.seed % 3) as usize];
        let mut pair = Pair::new([host(config.seed)?, host(config.seed ^ 0xffff)?], places);
        if follow {
            pair.follow()?;
        }
        let mut sides = Vec::new();
        for side in 0..2 {
            pair.hosts[side].start(limit);
            // The engine starts some cycles after it is told to, and hears no doorbell before that.
            settle(&mut pair, "the engine's start")?;
            pair.hosts[side].set_gid(gid_of(side));
            answer(&mut pair, side, Opcode::SetGid)?;
            let cq = create_cq(&mut pair, side, LOG2_COMPLETIONS)?;
            let kind = if config.seed / 2 % 3 == 1 { RqKind::Shared } else { RqKind::Private };
            let rq = create_rq(&mut pair, side, (config.seed % 4) as u8, kind)?;
            let qp = create_qp(&mut pair, side, cq.cqn, rq.rqn)?;
            let second = rq.is_shared().then(|| create_qp(&mut pair, side, cq.cqn, rq.rqn));
            let second = second.transpose()?;
            let region = register(&mut pair, side, RIGHTS)?;
            let readable = register(&mut pair, side, Access::REMOTE_READ)?;
            let writable = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
            let writable = register(&mut pair, side, writable)?;
            sides.push(Side { cq, rq, qp, second, region, readable, writable });
        }
        let [Ok(one), Ok(other)] = [1, 0].map(|_| sides.pop().ok_or(())) else {
            return wrong("sides", sides.len());
        };
        let mut sides = [other, one];
        connect(&mut pair, &mut sides, refusal, &STATES[1..])?;
        let random = Random::new(config.seed ^ 0x5eed);
        let seen = Seen::default();
        let when = When::Connected;
        Ok(Self { pair, sides, random, limit, refusal, late: None, when, seen })
    }

    /// Posts some entries on one side, and looks at all that comes of them.
    fn batch(&mut self) -> Result<(), MessageError> {
        let from = self.random.below(2) as usize;
        let arms = self.random.chance(128);
        let Self { pair, sides, .. } = self;
        if arms {
            let host = &mut pair.hosts[from];
            host.arm(&mut sides[from].cq);
        }
        self.late = self.random.chance(64).then(Vec::new);
        let mut all = Vec::new();
        for number in 0..BATCH {
            let is_last = number + 1 == BATCH;
            all.push(self.post(from, number, is_last));
        }
        if let Some(late) = self.late.take() {
            (0..EARLY).try_for_each(|_| self.pair.cycle())?;
            let Side { rq, qp, .. } = &mut self.sides[1 - from];
            late.iter().for_each(|entry| self.pair.hosts[1 - from].post_receive(rq, qp, entry));
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
        all.iter().try_for_each(|posted| self.arrived(from, posted))
    }

    /// Looks at the bytes of a message, and at its receive.
    fn arrived(&mut self, from: usize, posted: &Posted) -> Result<(), MessageError> {
        self.received(from, posted)?;
        let host = &mut self.pair.hosts[posted.side];
        let mut bytes = vec![0; posted.bytes.len()];
        host.memory.load(posted.at, &mut bytes);
        if bytes != posted.bytes {
            let at = bytes.iter().zip(&posted.bytes).position(|(is, wanted)| is != wanted);
            return wrong("bytes differ", (posted.opcode, posted.bytes.len(), at));
        }
        self.seen.messages += 1;
        self.seen.bytes += posted.bytes.len() as u64;
        Ok(())
    }

    /// The completion of which an event tells: it is there when the event is.
    fn told_completion(&mut self, from: usize) -> Result<Cqe, MessageError> {
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
    fn waiting(&mut self) -> Result<(), MessageError> {
        let cqn = self.sides[0].cq.cqn;
        let mut sequences = Vec::new();
        for _ in 0..3 {
            sequences.push(self.pair.hosts[0].arm(&mut self.sides[0].cq));
            let posted = self.post(0, 0, true);
            let entry = self.completion(0)?;
            self.compare(0, &posted, &entry)?;
            self.received(0, &posted)?;
        }
        if self.limit == 1 {
            sequences.remove(1);
        }
        for sequence in sequences {
            until(&mut self.pair, "an event", |pair| pair.hosts[0].unread_event())?;
            settle(&mut self.pair, "the end of what follows the event")?;
            if self.limit == 1 && self.pair.hosts[0].has_second_event() {
                return wrong("events in a ring that allows completions one", 2);
            }
            match self.pair.hosts[0].event() {
                Some(event) if event.number == cqn && event.data == u64::from(sequence) => {}
                event => return wrong("the event of a queue that fired", (sequence, event)),
            }
        }
        Ok(())
    }

    fn completion(&mut self, from: usize) -> Result<Cqe, MessageError> {
        let cq = &mut self.sides[from].cq;
        until(&mut self.pair, "a completion", |pair| pair.hosts[from].poll(cq))
    }

    fn compare(&mut self, from: usize, posted: &Posted, entry: &Cqe) -> Result<(), MessageError> {
        let opcode = match posted.opcode {
            SendOpcode::Read => Completed::Read,
            SendOpcode::Write | SendOpcode::WriteImm => Completed::Write,
            _ => Completed::Send,
        };
        let (wqe_index, byte_count) = (posted.index, posted.bytes.len() as u32);
        self.is(from, entry, Cqe { wqe_index, byte_count, opcode, ..Cqe::default() })?;
        self.note(Ended::Request(posted.opcode.0), Status::Success);
        Ok(())
    }

    /// Looks at the completion of the receive that a message took, if it took one.
    fn received(&mut self, from: usize, posted: &Posted) -> Result<(), MessageError> {
        let Some(wanted) = posted.receive else { return Ok(()) };
        let entry = self.completion(1 - from)?;
        self.is(1 - from, &entry, wanted)?;
        self.note(Ended::Taken(posted.opcode.0), Status::Success);
        Ok(())
    }

    fn note(&mut self, ended: Ended, status: Status) {
        self.seen.coverage.note(ended, status, self.when);
    }

    /// Whether a completion is as it has to be, but for what cannot be foretold.
    fn is(&self, side: usize, entry: &Cqe, wanted: Cqe) -> Result<(), MessageError> {
        let qp = &self.sides[side].qp;
        let (qpn, generation) = (qp.qpn, qp.generation());
        let Cqe { timestamp, phase, .. } = *entry;
        let wanted = Cqe { qpn, generation, timestamp, phase, ..wanted };
        if *entry == wanted && timestamp > 0 {
            Ok(())
        } else {
            wrong("a completion", (entry, wanted))
        }
    }

    /// Posts one message of a random length, inline or of up to 16 elements, and the receive that it takes.
    fn post(&mut self, from: usize, number: u64, is_signaled: bool) -> Posted {
        let random = &mut self.random;
        let is_signaled = is_signaled || random.chance(128);
        let opcode = random.one_of(&[
            SendOpcode::Send,
            SendOpcode::SendImm,
            SendOpcode::Write,
            SendOpcode::WriteImm,
            SendOpcode::Read,
        ]);
        let may_read = from != 0 || self.refusal != NO_READS;
        let opcode =
            if may_read || opcode != SendOpcode::Read { opcode } else { SendOpcode::Write };
        let is_read = opcode == SendOpcode::Read;
        let is_inline = !is_read && random.chance(64);
        let odd = random.below(9000);
        let length = match is_inline {
            true => random.below(289),
            false => random.one_of(&[0, 1, 63, 64, 65, 4095, 4096, 4097, odd]),
        };
        let bytes: Vec<u8> = (0..length).map(|_| random.next_u64() as u8).collect();
        // A place of its own for each entry of a batch, at any byte.
        let place = number * (REGION / BATCH) + random.below(600);
        let (immediate, is_solicited) = (random.next_u64() as u32, random.chance(64));
        let Region { key, address: local } = self.sides[from].region;
        let Region { key: rkey, address: peer } = self.sides[1 - from].region;
        let (local, remote_address) = (local + place, peer + place);
        let receive = self.receive_for(from, opcode, remote_address, length as u32, immediate);
        let receive = receive.map(|mut wanted| {
            wanted.flags.set(Flags::SOLICITED, is_solicited);
            wanted
        });
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, is_signaled);
        flags.set(SendFlags::SOLICITED, is_solicited);
        flags.set(SendFlags::INLINE, is_inline);
        let header =
            SendHeader { opcode, flags, immediate, remote_address, rkey, ..SendHeader::default() };
        let entry = if is_inline {
            let inline_length = length as u32;
            let blocks = send_blocks_for_inline(length as usize) as u8;
            blocks_of(
                &SendHeader { inline_length, blocks, ..header }.encode(),
                SEND_PAYLOAD_OFFSET,
                &bytes,
            )
        } else {
            // Of a READ they are at the peer.
            let (owner, at) = if is_read { (1 - from, remote_address) } else { (from, local) };
            self.pair.hosts[owner].memory.store(at, &bytes);
            let elements = elements(&mut self.random, local, key, length as u32, MAX_SGE);
            send_entry(header, &elements)
        };
        let qp = &mut self.sides[from].qp;
        let index = qp.index();
        self.pair.hosts[from].post(qp, &entry);
        let (side, at) = if is_read { (from, local) } else { (1 - from, remote_address) };
        Posted { index, opcode, side, at, bytes, is_signaled, receive }
    }

    /// Posts the receive of a message that takes one, and gives its completion, of which it need not hold all.
    fn receive_for(
        &mut self,
        from: usize,
        opcode: SendOpcode,
        at: u64,
        length: u32,
        immediate: u32,
    ) -> Option<Cqe> {
        let (is_send, has_immediate) = match opcode {
            SendOpcode::Send => (true, false),
            SendOpcode::SendImm => (true, true),
            SendOpcode::WriteImm => (false, true),
            _ => return None,
        };
        let capacity = if is_send { length + self.random.below(200) as u32 } else { 0 };
        let key = self.sides[1 - from].region.key;
        let most = self.sides[1 - from].rq.most_elements();
        let elements = elements(&mut self.random, at, key, capacity, most);
        let tag = self.random.next_u64() as u32;
        self.post_receive(1 - from, tag, elements.len() as u8, &elements);
        let mut wanted = Cqe {
            wqe_index: tag,
            byte_count: length,
            opcode: if is_send { Completed::Receive } else { Completed::ReceiveWriteImm },
            flags: Flags::RECEIVE,
            ..Cqe::default()
        };
        if has_immediate {
            wanted.immediate = immediate;
            wanted.flags |= Flags::IMMEDIATE;
        }
        Some(wanted)
    }

    /// Posts a receive, or keeps it for later.
    fn post_receive(&mut self, side: usize, tag: u32, num_sge: u8, elements: &[Sge]) {
        let Side { rq, qp, .. } = &mut self.sides[side];
        let header = ReceiveHeader { num_sge, tag }.encode();
        let entry = blocks_of(&header, RECEIVE_PAYLOAD_OFFSET, &bytes_of(elements));
        match &mut self.late {
            Some(late) => late.push(entry),
            None => self.pair.hosts[side].post_receive(rq, qp, &entry),
        }
    }

    /// A request beyond a region, without a right, or for which there is no good receive fails; what stands behind it, and
    /// what is posted later, is flushed.
    fn refused(&mut self) -> Result<(), MessageError> {
        let [own, peer] = &self.sides;
        let beyond = Region { address: peer.region.address + REGION - 10, ..peer.region };
        let (region, readable) = (peer.region, peer.readable);
        let write = (SendOpcode::Write, Status::RemoteAccess);
        let read = (SendOpcode::Read, Status::RemoteAccess);
        let send = (SendOpcode::Send, Status::RemoteOperation);
        let ((opcode, status), local, remote) = match self.refusal {
            0 => (write, own.region, beyond),
            1 => (read, own.region, beyond),
            2 => (write, own.region, readable),
            3 => (read, own.region, peer.writable),
            4 => ((SendOpcode::Read, Status::LocalProtection), own.readable, region),
            NO_READS => ((SendOpcode::Read, Status::LocalQpOperation), own.region, region),
            6 => ((SendOpcode::Send, Status::RemoteInvalidRequest), own.region, region),
            _ => (send, own.region, region),
        };
        let opcode = match opcode {
            SendOpcode::Send if self.random.chance(128) => SendOpcode::SendImm,
            SendOpcode::Write if self.random.chance(128) => SendOpcode::WriteImm,
            opcode => opcode,
        };
        let header = SendHeader {
            opcode,
            remote_address: remote.address,
            rkey: remote.key,
            ..SendHeader::default()
        };
        let sge = Sge { address: local.address, length: 11, lkey: local.key };
        let entry = send_entry(header, &[sge]);
        let received = self.bad_receives();
        let is_shared = self.sides[0].rq.is_shared();
        if !is_shared {
            self.post_receive(0, 3, 0, &[]);
        }
        let first = self.sides[0].qp.index();
        for _ in 0..2 {
            self.pair.hosts[0].post(&mut self.sides[0].qp, &entry);
        }
        let request = Ended::Request(opcode.0);
        self.ends_as(0, request, first, status)?;
        self.ends_as(0, request, first + 1, Status::Flushed)?;
        if is_shared {
            self.reached_last(0)?;
        } else {
            self.ends_as(0, Ended::Unfilled, 3, Status::Flushed)?;
        }
        let fails_peer = !received.is_empty();
        for (tag, status) in received {
            let is_taken = status != Status::Flushed;
            let ended = if is_taken { Ended::Taken(opcode.0) } else { Ended::Unfilled };
            self.ends_as(1, ended, tag, status)?;
        }
        if is_shared && fails_peer {
            self.reached_last(1)?;
        }
        self.when = When::Failed;
        // Nobody looks at the queues any more until one is rung for.
        settle(&mut self.pair, "the end of the flush")?;
        if !is_shared {
            self.post_receive(0, 4, 0, &[]);
            self.ends_as(0, Ended::Unfilled, 4, Status::Flushed)?;
            settle(&mut self.pair, "the end of the receive's flush")?;
        }
        self.pair.hosts[0].post(&mut self.sides[0].qp, &entry);
        self.ends_as(0, request, first + 2, Status::Flushed)?;
        Ok(())
    }

    /// A queue pair takes no more from its shared receive queue, of which the driver hears once.
    fn reached_last(&mut self, side: usize) -> Result<(), MessageError> {
        let event = until(&mut self.pair, "an event", |pair| pair.hosts[side].event())?;
        let is = (event.kind, event.code, event.number);
        match is == (EventType::Qp, QpEvent::LastWqeReached.0, self.sides[side].qp.qpn) {
            true => Ok(()),
            false => wrong("the event of the last receive of a queue pair", event),
        }
    }

    /// Nothing has come that was not waited for.
    fn ends(&mut self) -> Result<(), MessageError> {
        settle(&mut self.pair, "the end")?;
        for (host, side) in self.pair.hosts.iter_mut().zip(&mut self.sides) {
            if let Some(entry) = host.poll(&mut side.cq) {
                return wrong("a completion of nothing", entry);
            }
            if let Some(event) = host.unread_event() {
                return wrong("an event that nothing raised", event);
            }
        }
        Ok(())
    }

    /// Posts the receives of the peer that the refused message finds, and gives the tags and statuses of their ends: the
    /// first is too short, has more elements than its entry, has no right to its memory, or one more is posted than the
    /// ring has.
    fn bad_receives(&mut self) -> Vec<(u32, Status)> {
        let Side { rq, region, readable, .. } = &self.sides[1];
        let (num_sge, sge, status) = match self.refusal {
            6 => (
                1,
                Sge { address: region.address, length: 10, lkey: region.key },
                Status::LocalLength,
            ),
            7 => (rq.most_elements() as u8 + 1, Sge::default(), Status::LocalProtection),
            8 => {
                let sge = Sge { address: readable.address, length: 11, lkey: readable.key };
                (1, sge, Status::LocalProtection)
            }
            9 => {
                // The last one lies over the first.
                let posted = 1 + (1 << LOG2_RECEIVES);
                (1..=posted).for_each(|tag| self.post_receive(1, tag, 0, &[]));
                return vec![(posted, Status::LocalProtection)];
            }
            _ => return Vec::new(),
        };
        let is_shared = rq.is_shared();
        self.post_receive(1, 1, num_sge, &[sge]);
        if is_shared {
            // What is posted there is not flushed.
            return vec![(1, status)];
        }
        self.post_receive(1, 2, 0, &[]);
        vec![(1, status), (2, Status::Flushed)]
    }

    /// Waits for the completion of a request that is refused or flushed.
    fn ends_as(
        &mut self,
        side: usize,
        ended: Ended,
        wqe_index: u32,
        status: Status,
    ) -> Result<(), MessageError> {
        let entry = self.completion(side)?;
        let is_request = matches!(ended, Ended::Request(_));
        let flags = if is_request { Flags::empty() } else { Flags::RECEIVE };
        if (entry.flags, entry.wqe_index, entry.status) != (flags, wqe_index, status) {
            let seen = (self.refusal, status, entry);
            return wrong("the completion of a request that is refused", seen);
        }
        self.note(ended, status);
        Ok(())
    }
}

/// Some elements, at most so many, of memory from an address on.
fn elements(
    random: &mut Random,
    mut address: u64,
    lkey: u32,
    length: u32,
    most: usize,
) -> Vec<Sge> {
    let count = 1 + random.below(most as u64);
    let mut left = length;
    let mut all = Vec::new();
    for number in 1..=count {
        let length = if number == count { left } else { random.below(u64::from(left) + 1) as u32 };
        all.push(Sge { address, length, lkey });
        address += u64::from(length);
        left -= length;
    }
    all
}

pub(crate) fn bytes_of(elements: &[Sge]) -> Vec<u8> {
    elements.iter().flat_map(|sge| sge.encode()).flat_map(u64::to_le_bytes).collect()
}

/// The blocks of an entry to send, with elements.
pub(crate) fn send_entry(header: SendHeader, elements: &[Sge]) -> Vec<Block> {
    let (num_sge, blocks) = (elements.len() as u8, send_blocks_for_sges(elements.len()) as u8);
    let header = SendHeader { num_sge, blocks, ..header };
    blocks_of(&header.encode(), SEND_PAYLOAD_OFFSET, &bytes_of(elements))
}

/// The blocks of an entry, whose payload stands behind so many bytes of its header.
pub(crate) fn blocks_of([header]: &[Block; 1], offset: usize, payload: &[u8]) -> Vec<Block> {
    let mut bytes: Vec<u8> = header.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.truncate(offset);
    bytes.extend_from_slice(payload);
    bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
    bytes.chunks(BLOCK_BYTES).map(block_of).collect()
}
