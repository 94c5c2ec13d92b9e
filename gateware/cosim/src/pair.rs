//! Two hosts with queue engines in RTL, and a transport between their ports that loses nothing.

use std::collections::{BTreeMap, VecDeque};

use fpga_regs::engine::event::QpEvent;
use fpga_regs::engine::qp::QpState;
use fpga_regs::engine::wqe::SendOpcode;

use crate::bus::Violation;
use crate::host::Host;
use crate::lockstep::{LockStep, OutOfStep};
use crate::port::{
    ATTRIBUTES, Check, Claimed, Command, Operation, Payload, Report, Submitted, Transfer, Verdict,
};

/// Messages that a queue pair has room for.
const ROOM: u16 = 16;
/// Counters of the port: more than one answer has, and not a whole number of answers.
pub(crate) const COUNTERS: [u64; 20] = [7; 20];
/// The path MTU.
pub const MTU: u32 = 4096;

/// Statuses of the contract: of commands, of completions.
const SUCCESS: u8 = 0;
const LOCAL_LENGTH: u8 = 1;
const NOT_FOUND: u8 = 3;
const LOCAL_PROTECTION: u8 = 4;
const REMOTE_INVALID_REQUEST: u8 = 9;
const REMOTE_ACCESS: u8 = 10;
const REMOTE_OPERATION: u8 = 11;

/// A queue pair, as the transport knows it.
#[derive(Clone, Debug)]
struct Known {
    attributes: [u8; ATTRIBUTES],
    next: u32,
    messages: VecDeque<(u32, Submitted)>,
    /// Places of messages that ended, which are kept back.
    kept_back: u16,
    failed: bool,
    /// It is to be told of once nothing of it is under way.
    drains: bool,
}

/// What is under way of the message that is first in its line.
#[derive(Clone, Debug)]
enum Step {
    Check,
    Claim,
    Fetch { offset: u32 },
    Place { offset: u32 },
}

/// A message under way between the hosts: a READ's bytes go back.
#[derive(Clone, Debug)]
struct UnderWay {
    from: usize,
    qpn: u32,
    number: u32,
    message: Submitted,
    step: Step,
    /// The receive that it fills, or completes.
    receive: Option<Claimed>,
    bytes: Vec<u8>,
    /// One of its queue pairs ends, or begins anew, once its question is answered.
    is_given_up: bool,
}

/// Reports of filled receives that the transport keeps back: it tells of them behind the answer to a command that takes their
/// queue pair to ERR.
#[derive(Clone, Debug)]
struct Late {
    side: usize,
    reports: VecDeque<Report>,
    /// Cycles from one to the next, and those that are left, once the command was answered.
    pace: u64,
    left: Option<u64>,
}

/// Two hosts.
#[derive(Debug)]
pub struct Pair {
    /// The hosts.
    pub hosts: [Host; 2],
    known: [BTreeMap<u32, Known>; 2],
    under_way: Option<UnderWay>,
    /// Places that are given at a time.
    places: u16,
    /// Messages that a queue pair had given when a command last ended its sending.
    pub begun: u32,
    late: Option<Late>,
    /// The models that follow the engines.
    pub models: Option<[LockStep; 2]>,
}

/// Why the simulation cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stopped {
    /// An engine breaks a rule of the ports.
    #[error(transparent)]
    Violation(#[from] Violation),
    /// An engine does what its model does not.
    #[error("host {0}: {1}")]
    OutOfStep(usize, OutOfStep),
}

/// Whether a command ends the sending of a queue pair.
fn ends(command: &Command) -> bool {
    match command.operation {
        Operation::Destroy => true,
        Operation::Modify => matches!(command.to_state(), QpState::Reset | QpState::Err),
        _ => false,
    }
}

impl UnderWay {
    fn opcode(&self) -> SendOpcode {
        SendOpcode(self.message.opcode)
    }

    fn is_read(&self) -> bool {
        self.opcode() == SendOpcode::Read
    }

    fn is_send(&self) -> bool {
        matches!(self.opcode(), SendOpcode::Send | SendOpcode::SendImm)
    }

    /// The host whose bytes they are, and the one that gets them.
    fn ends(&self) -> (usize, usize) {
        if self.is_read() { (1 - self.from, self.from) } else { (self.from, 1 - self.from) }
    }
}

impl Pair {
    /// Two hosts whose cards are not started. The transport gives the places of messages that ended so many at a time, at
    /// most half of all.
    #[must_use]
    pub fn new(hosts: [Host; 2], places: u16) -> Self {
        let places = places.min(ROOM / 2);
        let known = Default::default();
        Self { hosts, known, under_way: None, places, begun: 0, late: None, models: None }
    }

    /// Lets a cycle pass on both cards.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn cycle(&mut self) -> Result<(), Stopped> {
        for (side, host) in self.hosts.iter_mut().enumerate() {
            host.cycle()?;
            if let Some(models) = &mut self.models {
                let passed = host.vfpga.take_passed();
                let followed = models[side].follow(passed, &mut host.memory);
                followed.map_err(|error| Stopped::OutOfStep(side, error))?;
            }
        }
        for side in 0..2 {
            self.obey(side);
        }
        self.carry();
        self.tell_late();
        Ok(())
    }

    /// Keeps reports of filled receives of a host back, until a command takes a queue pair there to ERR; behind the answer it
    /// tells of them, so many cycles from one to the next.
    pub fn keep_back(&mut self, side: usize, pace: u64) {
        self.late = Some(Late { side, reports: VecDeque::new(), pace, left: None });
    }

    /// Reports that are kept back.
    #[must_use]
    pub fn kept_back(&self) -> usize {
        self.late.as_ref().map_or(0, |late| late.reports.len())
    }

    fn tell_late(&mut self) {
        let Some(late) = &mut self.late else { return };
        let Some(left) = &mut late.left else { return };
        *left = left.saturating_sub(1);
        if *left > 0 {
            return;
        }
        *left = late.pace;
        match late.reports.pop_front() {
            Some(report) => self.hosts[late.side].vfpga.port().report(report),
            None => self.late = None,
        }
    }

    /// Has models follow the engines, which have not been started.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn follow(&mut self) -> Result<(), Stopped> {
        let [one, other] = &mut self.hosts;
        let models = [LockStep::new(one.limits()?), LockStep::new(other.limits()?)];
        self.hosts.iter_mut().for_each(|host| drop(host.vfpga.take_passed()));
        self.models = Some(models);
        Ok(())
    }

    /// Whether the engines, which are quiet, have done all that the models did; how much was compared.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn followed(&self) -> Result<u64, Stopped> {
        let mut compared = 0;
        for (side, model) in self.models.iter().flatten().enumerate() {
            model.end().map_err(|error| Stopped::OutOfStep(side, error))?;
            compared += model.compared;
        }
        Ok(compared)
    }

    /// Whether nothing is under way: until a program or a driver does something, nothing comes.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let waits = |qp: &Known| !qp.failed && !qp.messages.is_empty();
        let is_told = self.late.as_ref().is_none_or(|late| late.left.is_none());
        self.under_way.is_none()
            && is_told
            && self.hosts.iter().all(|host| host.vfpga.is_quiet())
            && !self.known.iter().flat_map(BTreeMap::values).any(waits)
    }

    /// Messages of a queue pair that the engine has given since RESET.
    #[must_use]
    pub fn given(&self, side: usize, qpn: u32) -> u32 {
        self.known[side].get(&qpn).map_or(0, |qp| qp.next)
    }

    /// Whether the message under way has taken a receive.
    #[must_use]
    pub fn has_claimed(&self) -> bool {
        let receive = self.under_way.as_ref().and_then(|it| it.receive);
        receive.is_some_and(|receive| receive.verdict == Verdict::Done)
    }

    /// Whether a command ends a queue pair of the message that is under way, which is then given up.
    fn gives_up(&mut self, side: usize) -> bool {
        let Some(command) = self.hosts[side].vfpga.port().commands.front() else { return false };
        let (ended, ends) = (command.qpn, ends(command));
        let Some((from, own)) = self.under_way.as_ref().map(|it| (it.from, it.qpn)) else {
            return false;
        };
        let qpn = if from == side { own } else { self.peer(from, own) };
        let gives_up = ends && ended == qpn;
        if let (true, Some(under_way)) = (gives_up, &mut self.under_way) {
            under_way.is_given_up = true;
        }
        gives_up
    }

    /// Forgets all of an engine that stops, once the message under way, which is given up, waits for no answer.
    fn forget(&mut self, side: usize) {
        if let Some(under_way) = &mut self.under_way {
            under_way.is_given_up = true;
            return;
        }
        self.known[side].clear();
        self.late.take_if(|late| late.side == side);
        let port = self.hosts[side].vfpga.port();
        port.submitted.clear();
        port.end_stop();
    }

    /// Executes the commands of an engine, and takes its messages.
    fn obey(&mut self, side: usize) {
        if self.hosts[side].vfpga.port().stops() {
            self.forget(side);
        }
        if self.gives_up(side) {
            return;
        }
        let (port, known) = (self.hosts[side].vfpga.port(), &mut self.known[side]);
        while let Some(command) = port.commands.pop_front() {
            if command.operation == Operation::QueryCounters {
                port.end_counters(&command, &COUNTERS);
                continue;
            }
            let mut attributes = [0; ATTRIBUTES];
            let mut status = SUCCESS;
            let ends = ends(&command);
            let fresh = || Known {
                attributes: [0; ATTRIBUTES],
                next: 0,
                messages: VecDeque::new(),
                kept_back: 0,
                failed: false,
                drains: false,
            };
            match (command.operation, known.get_mut(&command.qpn)) {
                (Operation::Create, _) => drop(known.insert(command.qpn, fresh())),
                (Operation::Modify, Some(qp)) => {
                    if ends {
                        self.begun = qp.next;
                    }
                    match command.to_state() {
                        // It forgets everything.
                        QpState::Reset => *qp = fresh(),
                        QpState::Rtr => qp.attributes = command.attributes,
                        QpState::Sqd => qp.drains = true,
                        QpState::Err => {
                            qp.failed = true;
                            qp.messages.clear();
                            if let Some(late) = self.late.as_mut().filter(|it| it.side == side) {
                                late.left = Some(late.pace);
                            }
                        }
                        _ => {}
                    }
                }
                (Operation::Query, Some(qp)) => attributes = qp.attributes,
                (Operation::Destroy, Some(qp)) => {
                    self.begun = qp.next;
                    known.remove(&command.qpn);
                }
                (Operation::Modify | Operation::Query | Operation::Destroy, None) => {
                    status = NOT_FOUND;
                }
                _ => {}
            }
            port.end(command.tag, status, attributes);
            let is_modify = command.operation == Operation::Modify;
            let is_reset = is_modify && command.to_state() == QpState::Reset;
            if command.operation == Operation::Create || is_reset {
                port.give_room(command.qpn, ROOM);
            }
        }
        while let Some(message) = port.submitted.pop_front() {
            if let Some(qp) = known.get_mut(&message.qpn) {
                qp.messages.push_back((qp.next, message));
                qp.next += 1;
            }
        }
        for (&qpn, qp) in known.iter_mut().filter(|(_, qp)| qp.drains && qp.messages.is_empty()) {
            let mut under_way = self.under_way.iter();
            if !under_way.any(|it| it.from == side && it.qpn == qpn) {
                qp.drains = false;
                port.report(Report::Event { qpn, event: QpEvent::SqDrained.0 });
            }
        }
    }

    /// Goes on with the message that is under way, or begins with another.
    fn carry(&mut self) {
        let Some(mut under_way) = self.under_way.take().or_else(|| self.next()) else { return };
        let (source, sink) = under_way.ends();
        let peer = 1 - under_way.from;
        let message = under_way.message;
        let answer = match under_way.step {
            Step::Check => self.hosts[peer].vfpga.port().checked.pop_front(),
            Step::Claim => {
                under_way.receive = self.hosts[peer].vfpga.port().claimed.pop_front();
                under_way.receive.map(|claimed| (claimed.tag, claimed.verdict))
            }
            Step::Fetch { .. } => {
                let fetched = self.hosts[source].vfpga.port().take_fetched();
                fetched.map(|(tag, verdict, bytes)| {
                    under_way.bytes = bytes;
                    (tag, verdict)
                })
            }
            Step::Place { .. } => self.hosts[sink].vfpga.port().placed.pop_front(),
        };
        let Some((_, verdict)) = answer else {
            self.under_way = Some(under_way);
            return;
        };
        if under_way.is_given_up {
            return;
        }
        let status = match verdict {
            Verdict::Done => SUCCESS,
            // The peer is asked again, until it has one.
            Verdict::Empty => return self.claim(under_way),
            Verdict::InvalidRequest => REMOTE_INVALID_REQUEST,
            Verdict::Denied => REMOTE_ACCESS,
            _ => REMOTE_OPERATION,
        };
        if status != SUCCESS {
            let receive = under_way.receive.filter(|receive| receive.verdict == Verdict::Done);
            return self.fail(&under_way, status, receive.map(|_| LOCAL_PROTECTION));
        }
        match under_way.step {
            Step::Check => self.go_on(under_way, 0),
            Step::Claim if !under_way.is_send() => self.finish(&under_way),
            Step::Claim if under_way.receive.is_some_and(|it| it.capacity < message.length) => {
                self.fail(&under_way, REMOTE_INVALID_REQUEST, Some(LOCAL_LENGTH));
            }
            Step::Claim => self.go_on(under_way, 0),
            Step::Fetch { offset } => self.place(under_way, offset),
            Step::Place { offset } => {
                let next = offset + under_way.bytes.len() as u32;
                self.go_on(under_way, next);
            }
        }
    }

    /// Goes on with the bytes of a message from an offset on, or behind all of them.
    fn go_on(&mut self, under_way: UnderWay, offset: u32) {
        if offset < under_way.message.length {
            self.fetch(under_way, offset);
        } else if under_way.opcode() == SendOpcode::WriteImm {
            self.claim(under_way);
        } else {
            self.finish(&under_way);
        }
    }

    /// The next message, of the sides by turns.
    fn next(&mut self) -> Option<UnderWay> {
        for from in 0..2 {
            let ready =
                self.known[from].iter_mut().find(|(_, qp)| !qp.failed && !qp.messages.is_empty());
            let Some((&qpn, qp)) = ready else { continue };
            let (number, message) = qp.messages.pop_front()?;
            let (step, receive, bytes) = (Step::Check, None, Vec::new());
            let is_given_up = false;
            let under_way =
                UnderWay { from, qpn, number, message, step, receive, bytes, is_given_up };
            if under_way.is_send() {
                self.claim(under_way);
                return self.under_way.take();
            }
            let Submitted { rkey, remote_address: address, length, .. } = message;
            let to = self.peer(from, qpn);
            let is_read = under_way.is_read();
            let check = Check { tag: 0, qpn: to, is_read, rkey, address, length };
            self.hosts[1 - from].vfpga.port().check(check);
            return Some(under_way);
        }
        None
    }

    /// The QPN of the peer of a queue pair: bytes 16 to 18 of its attributes.
    fn peer(&self, side: usize, qpn: u32) -> u32 {
        let attributes = self.known[side].get(&qpn).map_or([0; ATTRIBUTES], |qp| qp.attributes);
        u32::from_le_bytes([attributes[16], attributes[17], attributes[18], 0])
    }

    fn claim(&mut self, mut under_way: UnderWay) {
        let peer = self.peer(under_way.from, under_way.qpn);
        self.hosts[1 - under_way.from].vfpga.port().claim(3, peer);
        under_way.step = Step::Claim;
        self.under_way = Some(under_way);
    }

    fn fetch(&mut self, mut under_way: UnderWay, offset: u32) {
        let length = (under_way.message.length - offset).min(MTU) as u16;
        let (source, _) = under_way.ends();
        let (qpn, payload) = self.payload(&under_way, source, offset);
        let transfer = Transfer { tag: 1, qpn, payload, offset, length };
        self.hosts[source].vfpga.port().fetch(transfer);
        under_way.step = Step::Fetch { offset };
        self.under_way = Some(under_way);
    }

    fn place(&mut self, mut under_way: UnderWay, offset: u32) {
        let length = under_way.bytes.len() as u16;
        let (_, sink) = under_way.ends();
        let (qpn, payload) = self.payload(&under_way, sink, offset);
        let transfer = Transfer { tag: 2, qpn, payload, offset, length };
        self.hosts[sink].vfpga.port().place(transfer, &under_way.bytes);
        under_way.step = Step::Place { offset };
        self.under_way = Some(under_way);
    }

    /// The queue pair of a host, and what bytes of a message are there.
    fn payload(&self, under_way: &UnderWay, side: usize, offset: u32) -> (u32, Payload) {
        if side == under_way.from {
            return (under_way.qpn, Payload::Message(under_way.number));
        }
        let Submitted { rkey, remote_address, .. } = under_way.message;
        let (address, is_read) = (remote_address + u64::from(offset), under_way.is_read());
        let qpn = self.peer(under_way.from, under_way.qpn);
        match under_way.receive {
            Some(receive) => (qpn, Payload::Receive(receive.receive)),
            None => (qpn, Payload::Remote { rkey, address, is_read }),
        }
    }

    /// Ends a message well, on both hosts.
    fn finish(&mut self, under_way: &UnderWay) {
        let UnderWay { from, qpn, message, .. } = *under_way;
        if under_way.receive.is_some() {
            let has = matches!(under_way.opcode(), SendOpcode::SendImm | SendOpcode::WriteImm);
            let report = Report::Commit {
                qpn: self.peer(from, qpn),
                length: message.length,
                is_write: !under_way.is_send(),
                immediate: has.then_some(message.immediate),
                solicited: message.solicited,
            };
            match self.late.as_mut().filter(|late| late.side == 1 - from) {
                Some(late) => late.reports.push_back(report),
                None => self.hosts[1 - from].vfpga.port().report(report),
            }
        }
        if let Some(qp) = self.known[from].get_mut(&qpn) {
            let port = self.hosts[from].vfpga.port();
            port.report(Report::Ended { qpn, count: 1 });
            qp.kept_back += 1;
            if qp.kept_back >= self.places {
                port.give_room(qpn, std::mem::take(&mut qp.kept_back));
            }
        }
    }

    /// Fails a message with a status, and the receive that it took with another; one that could not be claimed fails the
    /// peer's queue pair.
    fn fail(&mut self, under_way: &UnderWay, status: u8, receive: Option<u8>) {
        let UnderWay { from, qpn, .. } = *under_way;
        let peer = self.peer(from, qpn);
        let report = match receive {
            Some(status) => Some(Report::ReceiveFailed { qpn: peer, status }),
            None => under_way.receive.map(|_| Report::Error { qpn: peer }),
        };
        report.into_iter().for_each(|it| self.hosts[1 - from].vfpga.port().report(it));
        let Some(qp) = self.known[from].get_mut(&qpn) else { return };
        qp.failed = true;
        qp.messages.clear();
        self.hosts[from].vfpga.port().report(Report::Failed { qpn, status });
    }
}
