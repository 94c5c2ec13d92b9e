//! Claims of many queue pairs at once at one engine in RTL, more than it keeps entries for: each receive is taken once, in its
//! order, and none that is posted is missed; also where queue pairs end and begin anew, and where a ring is lost. Where a
//! command takes a queue pair to ERR, reports of receives that were filled come late: each is of its receive, or of none.

use std::collections::VecDeque;

use fpga_regs::engine::admin::{Opcode, RqKind};
use fpga_regs::engine::cqe::{Cqe, Status};
use fpga_regs::engine::event::EventType;
use fpga_regs::engine::qp::QpState;
use fpga_regs::engine::wqe::{RECEIVE_PAYLOAD_OFFSET, ReceiveHeader, Sge};

use crate::alone::{Alone, RING_LOST, obey, started};
use crate::bus::Config;
use crate::ffi::Library;
use crate::host::{Cq, Host, Qp, Rq};
use crate::messages::{MessageError, PATIENCE, blocks_of, bytes_of, wrong};
use crate::port::{Claimed, Command, Operation, Report, Verdict};
use crate::random::Random;

/// Queue pairs, the last ones of which share a receive queue.
const LINES: usize = 24;
const SHARING: usize = 6;
/// Receives of a queue pair that are claimed at most.
const RECEIVES: usize = 4;
/// log2 of the entries of the completion queue.
const LOG2_COMPLETIONS: u8 = 10;
/// Cycles between two ends of queue pairs, and such ends.
const CYCLES: u64 = 2000;
const ENDS: usize = 4;
/// Bytes of the first receive of a queue; each other one has one more than that before it.
const CAPACITY: u32 = 1000;

/// What was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// Claims that had a receive.
    pub done: u64,
    /// Those that had none.
    pub empty: u64,
    /// Receives that were flushed.
    pub flushed: u64,
    /// Those of them that were filled, of which the report came too late.
    pub late: u64,
    /// Cycles.
    pub cycles: u64,
}

/// A receive queue, and how many were posted, taken, and complete.
struct Queue {
    rq: Rq,
    log2_entries: u8,
    posted: u32,
    taken: u32,
    complete: u32,
}

struct Line {
    qp: Qp,
    queue: usize,
    /// How many were posted when the claim came that is under way.
    claim: Option<u32>,
    /// Receives that were taken and are not complete, each with its number, and how many of them were told to be filled.
    taken: VecDeque<(u32, u32)>,
    told: usize,
    /// The number of the next receive, and of the next one that is told to be filled.
    number: u32,
    filled: u32,
    /// It is to end; it has been taken to RESET.
    is_ending: bool,
    is_gone: bool,
    late: Option<Late>,
}

/// Filled receives of which the transport tells behind the answer to the command that takes their queue pair to ERR.
#[derive(Clone, Copy, Debug)]
struct Late {
    /// Those that are still to be told of, and how often that happens, of 256 turns.
    left: usize,
    chance: u8,
    /// The transport has answered; the engine has flushed a receive.
    is_answered: bool,
    is_flushed: bool,
}

struct Bench {
    host: Host,
    random: Random,
    cq: Cq,
    queues: Vec<Queue>,
    lines: Vec<Line>,
    /// A command's answer is awaited: claims that would wait for others' receives to complete are answered without one.
    is_commanded: bool,
    /// A ring is lost.
    is_lost: bool,
    seen: Claims,
}

/// Runs a scenario that a seed decides.
///
/// # Errors
/// [`MessageError`].
pub fn run(library: &Library, config: &Config) -> Result<Claims, MessageError> {
    let mut bench = Bench::connected(library, config)?;
    for _ in 0..ENDS {
        for _ in 0..CYCLES {
            bench.step()?;
        }
        let line = bench.random.below(LINES as u64) as usize;
        bench.end(line)?;
    }
    bench.lost()?;
    bench.seen.cycles = bench.host.vfpga.now();
    Ok(bench.seen)
}

impl Alone for Bench {
    fn host(&mut self) -> &mut Host {
        &mut self.host
    }

    fn cycle(&mut self) -> Result<(), MessageError> {
        let Self { host, lines, .. } = self;
        host.cycle()?;
        let port = host.vfpga.port();
        while let Some(command) = port.commands.pop_front() {
            let line = lines.iter_mut().find(|line| fails(&command, line.qp.qpn));
            if let Some(late) = line.and_then(|line| line.late.as_mut()) {
                late.is_answered = true;
            }
            obey(port, &command, 1);
        }
        if port.stops() {
            port.end_stop();
        }
        let claimed: Vec<Claimed> = port.claimed.drain(..).collect();
        claimed.iter().try_for_each(|it| self.claimed(it))?;
        while let Some(entry) = self.host.poll(&mut self.cq) {
            self.completed(&entry)?;
        }
        Ok(())
    }
}

impl Bench {
    fn connected(library: &Library, config: &Config) -> Result<Self, MessageError> {
        let mut host = started(library, config)?;
        let cq = host.create_cq(LOG2_COMPLETIONS);
        let mut bench = Self {
            host,
            random: Random::new(config.seed ^ 0xc1a1),
            cq,
            queues: Vec::new(),
            lines: Vec::new(),
            is_commanded: false,
            is_lost: false,
            seen: Claims::default(),
        };
        bench.answer(Opcode::SetGid)?;
        bench.cq.cqn = bench.answer(Opcode::CreateCq)?.result;
        for number in 0..LINES {
            let shares = number + SHARING >= LINES;
            if !shares || number + SHARING == LINES {
                let kind = if shares { RqKind::Shared } else { RqKind::Private };
                let [log2_entries, log2_stride] = [6, 4].map(|most| bench.random.below(most) as u8);
                let rq = bench.make_rq(log2_entries, log2_stride, kind)?;
                bench.queues.push(Queue { rq, log2_entries, posted: 0, taken: 0, complete: 0 });
            }
            let queue = bench.queues.len() - 1;
            let qp = bench.make_qp(bench.cq.cqn, bench.queues[queue].rq.rqn, 2)?;
            bench.lines.push(Line {
                qp,
                queue,
                claim: None,
                taken: VecDeque::new(),
                told: 0,
                number: 0,
                filled: 0,
                is_ending: false,
                is_gone: false,
                late: None,
            });
        }
        Ok(bench)
    }

    /// A cycle, and what the program and the transport begin.
    fn step(&mut self) -> Result<(), MessageError> {
        self.cycle()?;
        let number = self.random.below(LINES as u64) as usize;
        let line = &mut self.lines[number];
        if line.is_ending {
            let late = line.late.filter(|it| it.is_answered && it.left > 0);
            if late.is_some_and(|it| self.random.chance(it.chance)) {
                self.fill(number);
            }
            return Ok(());
        }
        let port = self.host.vfpga.port();
        match self.random.below(16) {
            0 => self.post(number),
            1..8 if line.claim.is_none() && line.taken.len() < RECEIVES => {
                line.claim = Some(self.queues[line.queue].posted);
                port.claim(number as u8, line.qp.qpn);
            }
            8..16 if line.told < line.taken.len() && line.late.is_none() => self.fill(number),
            _ => {}
        }
        Ok(())
    }

    /// Tells that the next receive of a queue pair is filled, with its number as immediate data.
    fn fill(&mut self, number: usize) {
        let line = &mut self.lines[number];
        let immediate = Some(line.filled);
        line.filled += 1;
        match &mut line.late {
            Some(late) => {
                late.left -= 1;
                // It ends nothing any more.
                line.told += usize::from(!late.is_flushed);
                self.seen.late += u64::from(late.is_flushed);
            }
            None => line.told += 1,
        }
        let (qpn, length, is_write, solicited) = (line.qp.qpn, CAPACITY, false, false);
        let report = Report::Commit { qpn, length, is_write, immediate, solicited };
        self.host.vfpga.port().report(report);
    }

    /// Posts receives to the queue of a queue pair, for some of which there is room.
    fn post(&mut self, number: usize) {
        let Line { qp, queue: place, .. } = &self.lines[number];
        let queue = &mut self.queues[*place];
        let room = (1 << queue.log2_entries) - (queue.posted - queue.complete);
        for _ in 0..self.random.below(u64::from(room) + 1) {
            let count = 1 + queue.posted % queue.rq.most_elements() as u32;
            let sge = |length| Sge { address: 0, length, lkey: 0 };
            let mut elements = vec![sge(1); count as usize];
            elements[0].length = CAPACITY + queue.posted - (count - 1);
            let header = ReceiveHeader { num_sge: count as u8, tag: tag_of(*place, queue.posted) };
            let entry = blocks_of(&header.encode(), RECEIVE_PAYLOAD_OFFSET, &bytes_of(&elements));
            self.host.post_receive(&mut queue.rq, qp, &entry);
            queue.posted += 1;
        }
    }

    /// Takes the answer to a claim.
    fn claimed(&mut self, claimed: &Claimed) -> Result<(), MessageError> {
        let line = &mut self.lines[usize::from(claimed.tag)];
        let Some(posted) = line.claim.take() else { return wrong("a claim", claimed) };
        let queue = &mut self.queues[line.queue];
        match claimed.verdict {
            Verdict::Done => {
                let wanted = (line.number, CAPACITY + queue.taken);
                let is_there = queue.taken < queue.posted && !line.is_gone;
                if (claimed.receive, claimed.capacity) != wanted || !is_there {
                    return wrong("a receive", (claimed, wanted, is_there));
                }
                line.taken.push_back((tag_of(line.queue, queue.taken), line.number));
                line.number += 1;
                queue.taken += 1;
                self.seen.done += 1;
            }
            // One that was posted before the claim serves it, unless another claim has it.
            Verdict::Empty if queue.taken >= posted || line.is_ending || self.is_commanded => {
                self.seen.empty += 1;
            }
            Verdict::Unreachable if self.is_lost => {}
            _ => return wrong("the answer to a claim", (claimed, queue.taken, posted)),
        }
        Ok(())
    }

    /// Takes a completion, which is that of the oldest receive of a queue pair.
    fn completed(&mut self, entry: &Cqe) -> Result<(), MessageError> {
        let Some(line) = self.lines.iter_mut().find(|line| line.qp.qpn == entry.qpn) else {
            return wrong("the queue pair of a completion", entry);
        };
        let queue = &mut self.queues[line.queue];
        let may_end = line.told > 0 || (line.is_ending && !line.is_gone);
        let is_flush = |late: &&mut Late| late.is_answered && entry.status == Status::Flushed;
        if let Some(late) = line.late.as_mut().filter(is_flush) {
            // All that it has is flushed, also what is told to be filled and was not heard.
            late.is_flushed = true;
            self.seen.late += line.told as u64;
            line.told = 0;
        }
        let status = if line.told > 0 { Status::Success } else { Status::Flushed };
        // Behind those that were taken, what is posted to a queue of its own.
        let posted = !queue.rq.is_shared() && queue.taken < queue.posted;
        let taken = line.taken.pop_front();
        let tag = taken.map(|(tag, _)| tag).or_else(|| {
            queue.taken += u32::from(posted);
            posted.then(|| tag_of(line.queue, queue.taken - 1))
        });
        let is_other = taken.is_some_and(|(_, number)| number != entry.immediate);
        let is_other = is_other && entry.status == Status::Success;
        if is_other || (Some(entry.wqe_index), entry.status, true) != (tag, status, may_end) {
            return wrong("the completion of a receive", (entry, taken, tag, status, may_end));
        }
        line.told = line.told.saturating_sub(1);
        queue.complete += 1;
        self.seen.flushed += u64::from(status == Status::Flushed);
        Ok(())
    }

    /// Goes on with all that claim until something is.
    fn step_until(
        &mut self,
        what: &'static str,
        mut is: impl FnMut(&mut Self) -> bool,
    ) -> Result<(), MessageError> {
        for _ in 0..PATIENCE {
            if is(self) {
                return Ok(());
            }
            self.step()?;
        }
        Err(MessageError::Late(what))
    }

    /// Takes a queue pair to ERR by a command, of which some receives are filled that the transport tells of later.
    fn fail_late(&mut self, number: usize) -> Result<(), MessageError> {
        let (line, chance) = (&mut self.lines[number], self.random.one_of(&[8, 64, 255]));
        line.late = Some(Late { left: 0, chance, is_answered: false, is_flushed: false });
        let entries = 1 << self.queues[line.queue].log2_entries;
        let wanted = (1 + self.random.below(RECEIVES as u64) as usize).min(entries);
        self.step_until("claimed receives", |it| {
            let line = &it.lines[number];
            line.told == 0 && line.taken.len() >= wanted
        })?;
        let line = &mut self.lines[number];
        line.is_ending = true;
        let left = line.taken.len();
        line.late = line.late.map(|late| Late { left, ..late });
        self.host.modify_qp(line.qp.qpn, QpState::Err, (0, [0; 16]), 1);
        let mut answer = None;
        self.step_until("the answer to ERR", |it| {
            answer = it.host.answer();
            answer.is_some()
        })?;
        match answer.filter(|it| it.status.0 == 0) {
            Some(_) => Ok(()),
            None => wrong("the answer to ERR", answer),
        }
    }

    /// Ends a queue pair while others go on, out of ERR or at once, and connects it anew.
    fn end(&mut self, number: usize) -> Result<(), MessageError> {
        let (qpn, place) = (self.lines[number].qp.qpn, self.lines[number].queue);
        let is_late = self.random.chance(128);
        if is_late {
            self.fail_late(number)?;
        } else {
            self.lines[number].is_ending = true;
            self.step_until("the completion of a receive", |it| it.lines[number].told == 0)?;
        }
        if is_late || self.random.chance(128) {
            if !is_late {
                self.host.vfpga.port().report(Report::Error { qpn });
            }
            self.step_until("a flushed receive", |it| {
                let (queue, line) = (&it.queues[place], &it.lines[number]);
                let is_flushed = queue.rq.is_shared() || queue.taken == queue.posted;
                // Behind the answer to RESET nothing is told of it.
                let is_told = line.late.is_none_or(|it| it.left == 0);
                let is_told = is_told && !it.host.vfpga.port().has_commit(qpn);
                is_flushed && is_told && line.taken.is_empty() && line.claim.is_none()
            })?;
        }
        self.is_commanded = true;
        self.host.modify_qp(qpn, QpState::Reset, (0, [0; 16]), 1);
        let mut answer = None;
        self.step_until("the answer to RESET", |it| {
            answer = it.host.answer();
            answer.is_some()
        })?;
        let Some(answer) = answer.filter(|it| it.status.0 == 0) else {
            return wrong("the answer to RESET", answer);
        };
        self.is_commanded = false;
        self.lines[number].is_gone = true;
        let is_shared = self.queues[place].rq.is_shared();
        if is_shared && !self.lines[number].taken.is_empty() {
            return wrong("receives of a shared queue behind RESET", &self.lines[number].taken);
        }
        self.step_until("the answer to a claim", |it| it.lines[number].claim.is_none())?;
        let (line, queue) = (&mut self.lines[number], &mut self.queues[place]);
        self.host.renew(&mut line.qp, &mut queue.rq, &answer);
        line.taken.clear();
        (line.number, line.filled, line.told, line.late) = (0, 0, 0, None);
        if !is_shared {
            (queue.posted, queue.taken, queue.complete) = (0, 0, 0);
        }
        self.ready(qpn)?;
        (self.lines[number].is_ending, self.lines[number].is_gone) = (false, false);
        // The driver hears of one that took the last receive that it will.
        while let Some(event) = self.host.event() {
            if event.kind != EventType::Qp {
                return wrong("an event", event);
            }
        }
        Ok(())
    }

    /// Takes the ring of a queue away of which nothing was read: the engine stops, and answers all claims.
    fn lost(&mut self) -> Result<(), MessageError> {
        let number = self.random.below((LINES - SHARING) as u64) as usize;
        self.end(number)?;
        let Line { qp, queue, claim, .. } = &mut self.lines[number];
        self.host.lose_receives(&self.queues[*queue].rq);
        self.is_lost = true;
        *claim = Some(0);
        let qpn = qp.qpn;
        self.host.vfpga.port().claim(number as u8, qpn);
        for line in &mut self.lines {
            // What comes is of no matter any more.
            line.is_ending = true;
        }
        let is_answered = |it: &mut Self| it.lines.iter().all(|line| line.claim.is_none());
        self.step_until("the answer to a claim of a lost ring", is_answered)?;
        self.has_status(RING_LOST)?;
        self.host.reset();
        self.has_status(0)
    }
}

/// Whether a command takes a queue pair to ERR.
fn fails(command: &Command, qpn: u32) -> bool {
    let is_modify = command.operation == Operation::Modify && command.qpn == qpn;
    is_modify && command.to_state() == QpState::Err
}

/// The tag of a receive.
fn tag_of(queue: usize, index: u32) -> u32 {
    (queue as u32) << 16 | index
}
