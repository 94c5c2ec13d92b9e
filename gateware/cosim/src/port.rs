//! Port N, off the wires and onto them: `gateware/rtl/balboa_port_pkg.sv` has the same records, docs/gateware-port.md what
//! they mean.

use std::collections::VecDeque;

use fpga_regs::engine::qp::QpState;
use fpga_regs::engine::wqe::SendOpcode;
use queue_engine::{Message, WqeOperation};

use crate::bus::{BEAT_BYTES, Beat, Violation};
use crate::ffi::{PortIn, PortOut};
use crate::random::Random;

/// Bytes of a QP's attributes.
pub const ATTRIBUTES: usize = 128;

/// What a command does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are the names of the RTL's enumeration")]
pub enum Operation {
    Create,
    Modify,
    Query,
    Destroy,
    SetGid,
    ClearGid,
    QueryPort,
    QueryCounters,
    SetLink,
    /// What no engine sends.
    Unknown,
}

/// A command about a QP or the port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Comes back with its end.
    pub tag: u8,
    /// What it does.
    pub operation: Operation,
    /// The QP.
    pub qpn: u32,
    /// The client.
    pub page: u8,
    /// The QP's type, as the contract numbers it.
    pub kind: u8,
    /// A VLAN, the first counter, or whether the port is to be up.
    pub number: u16,
    /// As the contract has them in memory.
    pub attributes: [u8; ATTRIBUTES],
}

impl Command {
    /// The state that a Modify takes the QP to.
    #[must_use]
    pub fn to_state(&self) -> QpState {
        QpState(self.attributes[4])
    }
}

/// A message of the engine's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are the fields of a work request")]
pub struct Submitted {
    pub qpn: u32,
    pub opcode: u8,
    pub solicited: bool,
    pub fence: bool,
    pub length: u32,
    pub immediate: u32,
    pub remote_address: u64,
    pub rkey: u32,
}

impl Submitted {
    /// The message in the words of the engine in Rust, if it is one.
    #[must_use]
    pub fn message(&self) -> Option<Message> {
        let Self { immediate, remote_address, rkey, length, solicited, fence, .. } = *self;
        let operation = match SendOpcode(self.opcode) {
            SendOpcode::Send => WqeOperation::Send { immediate: None },
            SendOpcode::SendImm => WqeOperation::Send { immediate: Some(immediate) },
            SendOpcode::Write => WqeOperation::Write { remote_address, rkey, immediate: None },
            SendOpcode::WriteImm => {
                WqeOperation::Write { remote_address, rkey, immediate: Some(immediate) }
            }
            SendOpcode::Read => WqeOperation::Read { remote_address, rkey },
            _ => return None,
        };
        Some(Message { operation, length, solicited, fence, srqn: None })
    }
}

/// What is said to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are the names of the RTL's enumeration")]
pub enum Verdict {
    Done,
    InvalidRequest,
    Denied,
    Empty,
    InvalidReceive,
    Unreachable,
}

/// A question about a peer's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check {
    /// Comes back with the verdict.
    pub tag: u8,
    /// The QP.
    pub qpn: u32,
    /// A READ, else a WRITE.
    pub is_read: bool,
    /// The key.
    pub rkey: u32,
    /// The first byte.
    pub address: u64,
    /// Bytes.
    pub length: u32,
}

/// Whose bytes a transfer moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Of the message of that number.
    Message(u32),
    /// Of the receive of that number.
    Receive(u32),
    /// Of memory that a peer named.
    Remote {
        /// The key.
        rkey: u32,
        /// The first byte.
        address: u64,
        /// To be read, else written.
        is_read: bool,
    },
}

/// A question for bytes, or one that brings them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Comes back with the verdict.
    pub tag: u8,
    /// The QP.
    pub qpn: u32,
    /// Whose bytes.
    pub payload: Payload,
    /// From the message's first byte.
    pub offset: u32,
    /// Bytes, 1 to 4,096.
    pub length: u16,
}

/// The answer to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// The claim's.
    pub tag: u8,
    /// Whether there is one.
    pub verdict: Verdict,
    /// Its number.
    pub receive: u32,
    /// Bytes that it can hold.
    pub capacity: u32,
}

/// What became of messages and QPs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// The oldest messages ended well.
    Ended {
        /// The QP.
        qpn: u32,
        /// How many.
        count: u32,
    },
    /// The oldest message failed, and the QP is in ERR.
    Failed {
        /// The QP.
        qpn: u32,
        /// The contract's status.
        status: u8,
    },
    /// The QP went to ERR.
    Error {
        /// The QP.
        qpn: u32,
    },
    /// The oldest claimed receive was filled.
    Commit {
        /// The QP.
        qpn: u32,
        /// Bytes of the message.
        length: u32,
        /// Of a WRITE with immediate data, else of a SEND.
        is_write: bool,
        /// Immediate data, in the order of its bytes on the wire.
        immediate: Option<u32>,
        /// The peer asked for a solicited event.
        solicited: bool,
    },
    /// The oldest claimed receive failed, and the QP is in ERR.
    ReceiveFailed {
        /// The QP.
        qpn: u32,
        /// The contract's status.
        status: u8,
    },
    /// The driver should hear of an event of a QP.
    Event {
        /// The QP.
        qpn: u32,
        /// As the contract numbers it.
        event: u8,
    },
    /// The port went to its cable, or off it.
    Link {
        /// Which.
        is_up: bool,
    },
}

/// What passed between logic and its surroundings, in the order of the cycles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Passed {
    /// A register was written whole.
    Register {
        /// Its offset.
        offset: u16,
        /// What was written.
        value: u64,
    },
    /// Bytes of host memory were read.
    Read {
        /// The first.
        address: u64,
        /// How many.
        length: usize,
    },
    /// Bytes came to host memory.
    Wrote {
        /// The first.
        address: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// A command to the transport.
    Command(Command),
    /// The transport's answer to a command was taken.
    Done {
        /// The command's.
        tag: u8,
        /// Its status.
        status: u8,
    },
    /// A message.
    Submitted(Submitted),
    /// A question about a peer's request was taken.
    Check(Check),
    /// Its verdict.
    Checked(u8, Verdict),
    /// A claim was taken: its tag, and the queue pair.
    Claim(u8, u32),
    /// The answer to it.
    Claimed(Claimed),
    /// A question for bytes was taken.
    Fetch(Transfer),
    /// Its verdict.
    Fetched(u8, Verdict),
    /// A question that brings bytes was taken.
    Place(Transfer),
    /// Its verdict.
    Placed(u8, Verdict),
    /// A report was taken.
    Report(Report),
    /// The engine stops: from here on the transport forgets all.
    Stop,
}

/// Bits of a record, the lowest field first.
struct Bits<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl<'a> Bits<'a> {
    fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    fn put(&mut self, value: u64, count: usize) -> &mut Self {
        for bit in 0..count {
            if value >> bit & 1 != 0 {
                self.bytes[(self.at + bit) / 8] |= 1 << ((self.at + bit) % 8);
            }
        }
        self.at += count;
        self
    }

    fn take(&mut self, count: usize) -> u64 {
        let bit = |at: usize| u64::from(self.bytes[at / 8] >> (at % 8) & 1);
        let value = (0..count).fold(0, |value, n| value | bit(self.at + n) << n);
        self.at += count;
        value
    }

    fn take_bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.take(8) as u8)
    }
}

fn verdict(code: u64) -> Verdict {
    use Verdict::{Denied, Done, Empty, InvalidReceive, InvalidRequest, Unreachable};
    let all = [Done, InvalidRequest, Denied, Empty, InvalidReceive];
    all.get(code as usize).copied().unwrap_or(Unreachable)
}

/// The other end of port N: what waits to be told and asked, and what was heard.
#[derive(Debug)]
pub struct Port {
    /// How often of 256 times it takes nothing, and shows nothing new.
    lazy: u8,
    random: Random,
    /// Tags, statuses, attributes, and counters that there are.
    ends: VecDeque<(u8, u8, [u8; ATTRIBUTES], u16)>,
    room: VecDeque<(u32, u16)>,
    checks: VecDeque<Check>,
    /// Tags and QPs.
    claims: VecDeque<(u8, u32)>,
    fetches: VecDeque<Transfer>,
    places: VecDeque<Transfer>,
    place_beats: VecDeque<Beat>,
    reports: VecDeque<Report>,
    /// What is shown holds until it is taken.
    shows: [bool; 8],
    /// What was heard, oldest first.
    pub commands: VecDeque<Command>,
    /// Messages.
    pub submitted: VecDeque<Submitted>,
    /// Answers to checks.
    pub checked: VecDeque<(u8, Verdict)>,
    /// Answers to claims.
    pub claimed: VecDeque<Claimed>,
    /// Answers to fetches.
    fetched: VecDeque<(u8, Verdict)>,
    /// Their bytes.
    fetched_beats: VecDeque<Beat>,
    /// Answers to places.
    pub placed: VecDeque<(u8, Verdict)>,
    /// Beats of payload that passed here, both ways.
    pub beats: u64,
    /// Bytes of payload that were fetched since its reset.
    pub fetched_bytes: u64,
    /// Bytes of payload that were given to be placed since its reset.
    pub placed_bytes: u64,
    /// What passed here since somebody looked, where somebody does.
    pub(crate) passed: Option<Vec<Passed>>,
    /// Commands that the transport has not answered, as far as they passed.
    open_commands: usize,
    /// Questions that the engine has not answered, by their kind: tags, and whether they came while it stopped.
    open: [VecDeque<(u8, bool)>; 4],
    /// Beats of a fetch that was answered are to come.
    awaits_beats: bool,
    /// The transport has forgotten all that the engine's stop is of, and shows its quiet.
    has_forgotten: bool,
    shows_quiet: bool,
    /// What the logic showed in the last cycle, and whether each channel of it was taken.
    before: (PortOut, PortIn),
}

/// How often of 256 times the transport's quiet falls, where the other end is lazy.
const SLOW: u8 = 8;
/// Kinds of questions.
const CHECKS: usize = 0;
const CLAIMS: usize = 1;
const FETCHES: usize = 2;
const PLACES: usize = 3;

impl Port {
    /// A port at which nothing waits.
    #[must_use]
    pub fn new(seed: u64, lazy: u8) -> Self {
        Self {
            lazy,
            random: Random::new(seed ^ 0x7075),
            ends: VecDeque::new(),
            room: VecDeque::new(),
            checks: VecDeque::new(),
            claims: VecDeque::new(),
            fetches: VecDeque::new(),
            places: VecDeque::new(),
            place_beats: VecDeque::new(),
            reports: VecDeque::new(),
            shows: [false; 8],
            commands: VecDeque::new(),
            submitted: VecDeque::new(),
            checked: VecDeque::new(),
            claimed: VecDeque::new(),
            fetched: VecDeque::new(),
            fetched_beats: VecDeque::new(),
            placed: VecDeque::new(),
            beats: 0,
            fetched_bytes: 0,
            placed_bytes: 0,
            passed: None,
            open_commands: 0,
            open: [const { VecDeque::new() }; 4],
            awaits_beats: false,
            has_forgotten: false,
            shows_quiet: false,
            before: (PortOut::default(), PortIn::default()),
        }
    }

    /// Whether the engine stops, and waits until the transport has forgotten all.
    #[must_use]
    pub fn stops(&self) -> bool {
        self.before.0.stop != 0 && !self.has_forgotten
    }

    /// The transport has forgotten all that the engine's stop is of. It shows its quiet once nothing waits here, and nothing is
    /// under way.
    pub fn end_stop(&mut self) {
        self.has_forgotten = true;
    }

    /// Ends a command.
    pub fn end(&mut self, tag: u8, status: u8, attributes: [u8; ATTRIBUTES]) {
        self.ends.push_back((tag, status, attributes, 0));
    }

    /// Ends a query of counters well: from the command's first one on, as many come back as attributes have room for.
    pub fn end_counters(&mut self, command: &Command, counters: &[u64]) {
        let wanted = counters.get(usize::from(command.number)..).unwrap_or_default();
        let mut attributes = [0; ATTRIBUTES];
        for (place, counter) in attributes.chunks_exact_mut(8).zip(wanted) {
            place.copy_from_slice(&counter.to_le_bytes());
        }
        let count = u16::try_from(wanted.len()).unwrap_or(u16::MAX);
        self.ends.push_back((command.tag, 0, attributes, count));
    }

    /// Gives a QP room for messages.
    pub fn give_room(&mut self, qpn: u32, messages: u16) {
        self.room.push_back((qpn, messages));
    }

    /// Asks whether a peer may.
    pub fn check(&mut self, check: Check) {
        self.checks.push_back(check);
    }

    /// Asks for the next receive of a QP.
    pub fn claim(&mut self, tag: u8, qpn: u32) {
        self.claims.push_back((tag, qpn));
    }

    /// Asks for bytes.
    pub fn fetch(&mut self, transfer: Transfer) {
        self.fetches.push_back(transfer);
    }

    /// Brings bytes.
    pub fn place(&mut self, transfer: Transfer, bytes: &[u8]) {
        self.places.push_back(transfer);
        self.place_beats.extend(Beat::all_of(bytes));
    }

    /// Tells what became of a message.
    pub fn report(&mut self, report: Report) {
        self.reports.push_back(report);
    }

    /// Whether a report of a filled receive of a QP waits to be told.
    #[must_use]
    pub fn has_commit(&self, of: u32) -> bool {
        self.reports.iter().any(|it| matches!(it, Report::Commit { qpn, .. } if *qpn == of))
    }

    /// The oldest answer to a fetch, with its bytes, once all of them were heard.
    pub fn take_fetched(&mut self) -> Option<(u8, Verdict, Vec<u8>)> {
        let (tag, verdict) = *self.fetched.front()?;
        let mut bytes = Vec::new();
        if verdict == Verdict::Done {
            let last = self.fetched_beats.iter().position(|beat| beat.last)?;
            for beat in self.fetched_beats.drain(..=last) {
                bytes.extend_from_slice(beat.content());
            }
        }
        self.fetched.pop_front();
        Some((tag, verdict, bytes))
    }

    /// Whether nothing waits to be told or asked.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let asks = self.checks.is_empty()
            && self.claims.is_empty()
            && self.fetches.is_empty()
            && self.places.is_empty();
        let tells = self.ends.is_empty() && self.room.is_empty() && self.reports.is_empty();
        asks && tells && self.place_beats.is_empty()
    }

    /// Shows the transport's quiet, or ends that, by the engine's `stop` in the cycle before.
    fn answer_stop(&mut self) {
        let stops = self.before.0.stop != 0;
        let is_due = match self.shows_quiet {
            true => !stops,
            false => {
                let is_answered = self.open_commands == 0
                    && self.open.iter().all(VecDeque::is_empty)
                    && !self.awaits_beats;
                stops && self.has_forgotten && is_answered && self.is_quiet()
            }
        };
        // A lazy one is slow with the end of its quiet, too.
        let goes_on = |it: &mut Self| match it.shows_quiet && it.lazy > 0 {
            true => it.random.chance(SLOW),
            false => !it.random.chance(it.lazy),
        };
        if is_due && goes_on(self) {
            self.shows_quiet = !self.shows_quiet;
            self.has_forgotten = self.shows_quiet;
        }
    }

    /// What is driven in a cycle.
    pub(crate) fn drive(&mut self) -> PortIn {
        self.answer_stop();
        let mut wires = PortIn { transport_quiet: self.shows_quiet.into(), ..PortIn::default() };
        if self.shows_quiet {
            return wires;
        }
        let lazy = self.lazy;
        for shows in &mut self.shows {
            *shows |= !self.random.chance(lazy);
        }
        let mut takes = || u8::from(!self.random.chance(lazy));
        (wires.command_ready, wires.submit_ready) = (takes(), takes());
        (wires.checked_ready, wires.claimed_ready) = (takes(), takes());
        (wires.fetched_ready, wires.fetched_beat_ready) = (takes(), takes());
        wires.placed_ready = takes();
        let shows = |place: usize| self.shows[place];
        if let Some((tag, status, attributes, count)) = self.ends.front().filter(|_| shows(0)) {
            wires.command_done_valid = 1;
            let mut bits = Bits::new(&mut wires.command_done);
            bits.put((*tag).into(), 8).put((*status).into(), 8);
            for byte in attributes {
                bits.put((*byte).into(), 8);
            }
            bits.put((*count).into(), 16);
        }
        // Room for a QP follows the answer to the command that made it.
        let has_room = shows(1) && self.ends.is_empty();
        if let Some((qpn, messages)) = self.room.front().filter(|_| has_room) {
            wires.room_valid = 1;
            Bits::new(&mut wires.room).put((*qpn).into(), 24).put((*messages).into(), 16);
        }
        if let Some(check) = self.checks.front().filter(|_| shows(2)) {
            wires.check_valid = 1;
            let mut bits = Bits::new(&mut wires.check);
            bits.put(check.tag.into(), 8).put(check.qpn.into(), 24).put(check.is_read.into(), 1);
            bits.put(check.rkey.into(), 32).put(check.address, 64).put(check.length.into(), 32);
        }
        if let Some(transfer) = self.fetches.front().filter(|_| shows(3)) {
            wires.fetch_valid = 1;
            put_transfer(&mut wires.fetch, transfer);
        }
        if let Some(transfer) = self.places.front().filter(|_| shows(4)) {
            wires.place_valid = 1;
            put_transfer(&mut wires.place, transfer);
        }
        if let Some(beat) = self.place_beats.front().filter(|_| shows(5)) {
            wires.place_beat_valid = 1;
            Bits::new(&mut wires.place_beat).put(beat.last.into(), 1).put(beat.bytes.into(), 7);
            wires.place_beat[1..=BEAT_BYTES].copy_from_slice(&beat.data);
        }
        if let Some(report) = self.reports.front().filter(|_| shows(6)) {
            wires.report_valid = 1;
            put_report(&mut wires.report, report);
        }
        if let Some((tag, qpn)) = self.claims.front().filter(|_| shows(7)) {
            wires.claim_valid = 1;
            Bits::new(&mut wires.claim).put((*tag).into(), 8).put((*qpn).into(), 24);
        }
        wires
    }

    /// Forgets all but its counts, for the logic is in reset.
    pub(crate) fn forget(&mut self) {
        let (beats, passed) = (self.beats, self.passed.take());
        *self = Self { beats, passed, ..Self::new(0, self.lazy) };
    }

    /// The channel of the logic's that changed before it was taken.
    fn unstable(&self, logic: &PortOut) -> Option<&'static str> {
        let (out, ours) = &self.before;
        let held = |valid: u8, ready: u8| valid != 0 && ready == 0;
        let changed = [
            (
                "command",
                held(out.command_valid, ours.command_ready),
                logic.command_valid != 0 && out.command == logic.command,
            ),
            (
                "submit",
                held(out.submit_valid, ours.submit_ready),
                logic.submit_valid != 0 && out.submit == logic.submit,
            ),
            (
                "checked",
                held(out.checked_valid, ours.checked_ready),
                logic.checked_valid != 0 && out.checked == logic.checked,
            ),
            (
                "claimed",
                held(out.claimed_valid, ours.claimed_ready),
                logic.claimed_valid != 0 && out.claimed == logic.claimed,
            ),
            (
                "fetched",
                held(out.fetched_valid, ours.fetched_ready),
                logic.fetched_valid != 0 && out.fetched == logic.fetched,
            ),
            (
                "fetched_beat",
                held(out.fetched_beat_valid, ours.fetched_beat_ready),
                logic.fetched_beat_valid != 0 && out.fetched_beat == logic.fetched_beat,
            ),
            (
                "placed",
                held(out.placed_valid, ours.placed_ready),
                logic.placed_valid != 0 && out.placed == logic.placed,
            ),
        ];
        changed.iter().find(|(_, held, same)| *held && !same).map(|(channel, ..)| *channel)
    }

    /// The rule of a stop that the logic breaks.
    fn breaks_stop(&self, logic: &PortOut) -> Option<&'static str> {
        let (was, ours) = &self.before;
        let is_answered = ours.transport_quiet != 0;
        let shows = logic.command_valid | logic.submit_valid != 0;
        match (was.stop != 0, logic.stop != 0) {
            (false, true) if is_answered => {
                Some("stop rises before the transport's quiet has fallen behind the last one")
            }
            (true, false) if !is_answered => {
                Some("stop falls before the transport shows its quiet")
            }
            (_, true) if shows => Some("a command or a message is shown while stop stands"),
            (_, true) if logic.engine_quiet != 0 => Some("the engine is quiet while stop stands"),
            _ => None,
        }
    }

    /// Takes note of a cycle, in which that was driven by both sides.
    ///
    /// # Errors
    /// The rule that the logic breaks.
    pub(crate) fn went_on(
        &mut self,
        cycle: u64,
        ours: &PortIn,
        logic: &PortOut,
    ) -> Result<(), Violation> {
        if let Some(channel) = self.unstable(logic) {
            return Err(Violation::UnstablePort { cycle, channel });
        }
        let broken = |what| Violation::PortRule { cycle, what };
        if let Some(what) = self.breaks_stop(logic) {
            return Err(broken(what));
        }
        let stops = logic.stop != 0 && self.before.0.stop == 0;
        self.note(stops.then_some(Passed::Stop));
        self.before = (*logic, *ours);
        let told = [
            (ours.command_done_valid, logic.command_done_ready, 0),
            (ours.room_valid, logic.room_ready, 1),
            (ours.check_valid, logic.check_ready, 2),
            (ours.fetch_valid, logic.fetch_ready, 3),
            (ours.place_valid, logic.place_ready, 4),
            (ours.place_beat_valid, logic.place_beat_ready, 5),
            (ours.report_valid, logic.report_ready, 6),
            (ours.claim_valid, logic.claim_ready, 7),
        ];
        for (valid, ready, place) in told {
            if valid & ready != 0 {
                self.shows[place] = false;
                let passed = self.tell(place);
                self.open(&passed, logic.stop != 0);
                self.note(passed);
            }
        }
        self.hear(ours, logic).map_err(broken)
    }

    /// A question or an answer was taken: what is under way then.
    fn open(&mut self, taken: &Option<Passed>, stops: bool) {
        let (kind, tag) = match *taken {
            Some(Passed::Check(Check { tag, .. })) => (CHECKS, tag),
            Some(Passed::Claim(tag, _)) => (CLAIMS, tag),
            Some(Passed::Fetch(Transfer { tag, .. })) => (FETCHES, tag),
            Some(Passed::Place(Transfer { tag, .. })) => (PLACES, tag),
            Some(Passed::Done { .. }) => {
                self.open_commands = self.open_commands.saturating_sub(1);
                return;
            }
            _ => return,
        };
        self.open[kind].push_back((tag, stops));
    }

    /// A question was answered: the rule that this breaks.
    fn close(&mut self, kind: usize, (tag, verdict): (u8, Verdict)) -> Result<(), &'static str> {
        let place = self.open[kind].iter().position(|(open, _)| *open == tag);
        match place.and_then(|place| self.open[kind].remove(place)) {
            None => Err("an answer comes to no question"),
            Some((_, true)) if verdict == Verdict::Done => {
                Err("a question is served that came while stop stood")
            }
            Some(_) => Ok(()),
        }
    }

    /// The logic has taken what a channel showed.
    fn tell(&mut self, place: usize) -> Option<Passed> {
        match place {
            0 => self.ends.pop_front().map(|(tag, status, ..)| Passed::Done { tag, status }),
            1 => {
                self.room.pop_front();
                None
            }
            2 => self.checks.pop_front().map(Passed::Check),
            3 => self.fetches.pop_front().map(Passed::Fetch),
            4 => self.places.pop_front().map(Passed::Place),
            5 => {
                self.beats += 1;
                self.placed_bytes +=
                    self.place_beats.pop_front().map_or(0, |beat| u64::from(beat.bytes));
                None
            }
            6 => self.reports.pop_front().map(Passed::Report),
            _ => self.claims.pop_front().map(|(tag, qpn)| Passed::Claim(tag, qpn)),
        }
    }

    fn note(&mut self, passed: impl IntoIterator<Item = Passed>) {
        if let Some(all) = &mut self.passed {
            all.extend(passed);
        }
    }

    fn hear(&mut self, ours: &PortIn, logic: &PortOut) -> Result<(), &'static str> {
        let mut logic = *logic;
        if logic.command_valid & ours.command_ready != 0 {
            let command = take_command(&mut logic.command);
            self.open_commands += 1;
            self.note([Passed::Command(command.clone())]);
            self.commands.push_back(command);
        }
        if logic.submit_valid & ours.submit_ready != 0 {
            let mut bits = Bits::new(&mut logic.submit);
            let message = Submitted {
                qpn: bits.take(24) as u32,
                opcode: bits.take(8) as u8,
                solicited: bits.take(1) != 0,
                fence: bits.take(1) != 0,
                length: bits.take(32) as u32,
                immediate: bits.take(32) as u32,
                remote_address: bits.take(64),
                rkey: bits.take(32) as u32,
            };
            self.note([Passed::Submitted(message)]);
            self.submitted.push_back(message);
        }
        let answer = |valid: u8, ready: u8, record: &mut [u8]| {
            let mut bits = Bits::new(record);
            (valid & ready != 0).then(|| (bits.take(8) as u8, verdict(bits.take(3))))
        };
        let checked = answer(logic.checked_valid, ours.checked_ready, &mut logic.checked);
        checked.map_or(Ok(()), |it| self.close(CHECKS, it))?;
        self.note(checked.map(|(tag, verdict)| Passed::Checked(tag, verdict)));
        self.checked.extend(checked);
        let fetched = answer(logic.fetched_valid, ours.fetched_ready, &mut logic.fetched);
        fetched.map_or(Ok(()), |it| self.close(FETCHES, it))?;
        self.note(fetched.map(|(tag, verdict)| Passed::Fetched(tag, verdict)));
        self.fetched.extend(fetched);
        self.awaits_beats |= fetched.is_some_and(|(_, verdict)| verdict == Verdict::Done);
        let placed = answer(logic.placed_valid, ours.placed_ready, &mut logic.placed);
        placed.map_or(Ok(()), |it| self.close(PLACES, it))?;
        self.note(placed.map(|(tag, verdict)| Passed::Placed(tag, verdict)));
        self.placed.extend(placed);
        if logic.claimed_valid & ours.claimed_ready != 0 {
            let mut bits = Bits::new(&mut logic.claimed);
            let (tag, verdict) = (bits.take(8) as u8, verdict(bits.take(3)));
            let (receive, capacity) = (bits.take(32) as u32, bits.take(32) as u32);
            let claimed = Claimed { tag, verdict, receive, capacity };
            self.close(CLAIMS, (tag, claimed.verdict))?;
            self.note([Passed::Claimed(claimed)]);
            self.claimed.push_back(claimed);
        }
        if logic.fetched_beat_valid & ours.fetched_beat_ready != 0 {
            let mut bits = Bits::new(&mut logic.fetched_beat);
            let (last, bytes) = (bits.take(1) != 0, bits.take(7) as u8);
            self.beats += 1;
            self.fetched_bytes += u64::from(bytes);
            self.awaits_beats &= !last;
            self.fetched_beats.push_back(Beat { data: bits.take_bytes(), bytes, last });
        }
        Ok(())
    }
}

fn put_transfer(record: &mut [u8], transfer: &Transfer) {
    let Transfer { tag, qpn, payload, offset, length } = *transfer;
    let (kind, is_read, number, rkey, address) = match payload {
        Payload::Message(number) => (0, false, number, 0, 0),
        Payload::Receive(number) => (1, false, number, 0, 0),
        Payload::Remote { rkey, address, is_read } => (2, is_read, 0, rkey, address),
    };
    let mut bits = Bits::new(record);
    bits.put(tag.into(), 8).put(qpn.into(), 24).put(kind, 2).put(is_read.into(), 1);
    bits.put(number.into(), 32).put(rkey.into(), 32).put(address, 64);
    bits.put(offset.into(), 32).put(length.into(), 13);
}

fn put_report(record: &mut [u8], report: &Report) {
    // Kind, QP, count, immediate data, whether of a WRITE, whether there is any, whether solicited, status, event.
    let (kind, qpn, count, immediate, flags, status, event) = match *report {
        Report::Ended { qpn, count } => (0, qpn, count, 0, 0, 0, 0),
        Report::Failed { qpn, status } => (1, qpn, 0, 0, 0, status, 0),
        Report::Commit { qpn, length, is_write, immediate, solicited } => {
            let has = u64::from(immediate.is_some());
            let flags = u64::from(is_write) | has << 1 | u64::from(solicited) << 2;
            (2, qpn, length, immediate.unwrap_or(0), flags, 0, 0)
        }
        Report::ReceiveFailed { qpn, status } => (3, qpn, 0, 0, 0, status, 0),
        Report::Error { qpn } => (4, qpn, 0, 0, 0, 0, 0),
        Report::Event { qpn, event } => (5, qpn, 0, 0, 0, 0, event),
        Report::Link { is_up } => (6, 0, is_up.into(), 0, 0, 0, 0),
    };
    let mut bits = Bits::new(record);
    bits.put(kind, 3).put(qpn.into(), 24).put(count.into(), 32).put(immediate.into(), 32);
    bits.put(flags, 3).put(status.into(), 8).put(event.into(), 8);
}

fn take_command(record: &mut [u8]) -> Command {
    let mut bits = Bits::new(record);
    let tag = bits.take(8) as u8;
    let operation = match bits.take(4) {
        0 => Operation::Create,
        1 => Operation::Modify,
        2 => Operation::Query,
        3 => Operation::Destroy,
        4 => Operation::SetGid,
        5 => Operation::ClearGid,
        6 => Operation::QueryPort,
        7 => Operation::QueryCounters,
        8 => Operation::SetLink,
        _ => Operation::Unknown,
    };
    Command {
        tag,
        operation,
        qpn: bits.take(24) as u32,
        page: bits.take(8) as u8,
        kind: bits.take(8) as u8,
        number: bits.take(16) as u16,
        attributes: bits.take_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ends of a port, of which the engine's shows a stop or none.
    fn cycle(port: &mut Port, stop: bool) -> Result<bool, Violation> {
        let ours = port.drive();
        let logic = PortOut { stop: stop.into(), check_ready: 1, ..PortOut::default() };
        port.went_on(0, &ours, &logic).map(|()| ours.transport_quiet != 0)
    }

    #[test]
    fn the_transports_quiet_waits_for_the_answers_to_its_questions_and_falls_behind_the_stop() {
        let mut port = Port::new(1, 0);
        let (tag, qpn, is_read, rkey, address, length) = (7, 1, false, 2, 3, 4);
        port.check(Check { tag, qpn, is_read, rkey, address, length });
        assert_eq!(cycle(&mut port, true), Ok(false));
        assert!(port.stops());
        port.end_stop();
        assert!(!port.stops());
        // The question was taken, and is not answered.
        assert_eq!(cycle(&mut port, true), Ok(false));
        assert_eq!(port.close(CHECKS, (7, Verdict::Denied)), Ok(()));
        for (stop, is_quiet) in [(true, true), (false, true), (false, false), (true, false)] {
            assert_eq!(cycle(&mut port, stop), Ok(is_quiet));
        }
        assert!(port.stops());
    }

    #[test]
    fn a_stop_that_does_not_wait_for_the_transport_breaks_a_rule() {
        let mut port = Port::new(1, 0);
        assert_eq!(cycle(&mut port, true), Ok(false));
        assert!(cycle(&mut port, false).is_err());
        let mut port = Port::new(1, 0);
        port.end_stop();
        for stop in [true, true, false] {
            assert!(cycle(&mut port, stop).is_ok());
        }
        // The quiet of the last one stands in the cycle before.
        assert!(port.before.1.transport_quiet != 0 && cycle(&mut port, true).is_err());
    }

    #[test]
    fn an_answer_comes_to_a_question_and_serves_none_that_came_in_a_stop() {
        let mut port = Port::new(1, 0);
        assert!(port.close(PLACES, (0, Verdict::Unreachable)).is_err());
        port.open(&Some(Passed::Claim(3, 1)), false);
        port.open(&Some(Passed::Claim(4, 1)), true);
        assert_eq!(port.close(CLAIMS, (3, Verdict::Done)), Ok(()));
        assert!(port.close(CLAIMS, (4, Verdict::Done)).is_err());
    }
}
