//! Lumina's families of tests (Yu et al., "Understanding the Micro-Behaviors of Hardware Offloaded Network Stacks
//! with Lumina", SIGCOMM 2023): each event at an exact place of a connection, and the trace read
//! back by rules that know nothing of the stacks.
//!
//! `docs/testing-coverage.md` says which family is held where.

use std::collections::{BTreeMap, VecDeque};

use netsim::config::Faults;
use roce::opcode::{Class, code};
use roce::wire::aeth::{NakCode, Syndrome};
use roce::{Operation, PathMtu};

use crate::connection::Options;
use crate::network::{self, CABLE, NANO, Network};
use crate::script::{Action, Place, Script, Seen};
use crate::truth::{Look, assert_true};
use crate::workload::{ATOMIC, Flow, Plan, run};

/// Three messages of four packets each, or as many atomics as packets.
const MTU: PathMtu = PathMtu::Mtu256;
const BYTES: u32 = 256;
const PACKETS: u32 = 4;
const MESSAGES: u32 = 3;
const PSNS: u32 = MESSAGES * PACKETS;
// Times are in picoseconds.
/// The acknowledgement timeout, code 10.
const TIMEOUT: u64 = (4096 << 10) * NANO;
/// The time of a bit on a cable in picoseconds, and the most that the longest frame takes.
const BIT_TIME: u64 = 1_000_000_000_000 / CABLE.rate;
const FRAME_TIME: u64 = 100 * NANO;
/// How long a node sleeps after the first frame of a burst.
const WAKE_DELAY: u64 = network::WAKE_DELAY * NANO;
/// From the arrival of a frame to the first one that it makes a node send: a round begins so long after the
/// first frame of a burst, takes those that have come by then, and sends one frame after the other.
const REACTION: std::ops::RangeInclusive<u64> = 0..=WAKE_DELAY + (2 * PSNS as u64 + 1) * FRAME_TIME;
/// The shortest silence that a question breaks.
const SILENCE: u64 = 100_000 * NANO;
/// First PSNs of the connections: those of the first wrap around.
const FIRST: [u32; 2] = [0xff_fffb, 500];

const OPERATIONS: [Operation; 6] = [
    Operation::Send,
    Operation::SendImm,
    Operation::Write,
    Operation::WriteImm,
    Operation::Read,
    ATOMIC,
];

/// The outcome of a case.
struct Outcome {
    network: Network,
    flows: Vec<Flow>,
    trace: Vec<Seen>,
}

/// Plays messages of one kind over connections to their end, with events at exact frames; all bytes and counters were
/// compared then.
fn play(operation: Operation, connections: usize, events: &[(Place, Action)]) -> Outcome {
    let mut network = Network::new(1, 2, Faults::NONE);
    network.record();
    let mut script = Script::default();
    let mut flows = Vec::new();
    for first in FIRST.into_iter().take(connections) {
        // Capable of congestion marks.
        let options = Options {
            mtu: MTU,
            timeout: 10,
            psns: Some((first, 77)),
            traffic_class: 2,
            ..Options::default()
        };
        let (requester, responder) = network.connect(0, 1, &options);
        script.watch(requester, responder, first);
        let is_atomic = matches!(operation, Operation::Atomic(_));
        let messages = if is_atomic { PSNS } else { MESSAGES } as usize;
        let exact = Some(PACKETS * BYTES);
        let plan = Plan { only: Some(operation), exact, ..Plan::mixed(messages, MTU) };
        flows.push(Flow::new(&mut network, requester, responder, &plan));
    }
    // The peers find each other's Ethernet addresses.
    let deadline = network.now() + 100_000;
    network.run(deadline, |_| false);
    for (place, action) in events {
        script.at(*place, *action);
    }
    network.play(script);
    run(&mut network, &mut flows, 20_000_000_000);
    // Frames still under way arrive.
    let deadline = network.now() + 100_000;
    network.run(deadline, |_| false);
    let trace = network.played().trace;
    Outcome { network, flows, trace }
}

/// Everything that one connection's frames must obey.
#[derive(Default)]
struct Rules {
    /// The requester: the next new PSN, the oldest not acknowledged, and the PSN that would continue a repetition.
    next: u32,
    unacked: u32,
    run: Option<u32>,
    last_request: u64,
    /// When the acknowledgement timer was started.
    timer: u64,
    /// NAKs and responses beyond a hole that have arrived, and are not answered by a repetition yet.
    naks: VecDeque<(u64, u32)>,
    beyond: Option<u64>,
    /// The last hole that was seen so.
    hole: Option<u32>,
    /// The PSN that broke a silence last.
    question: Option<u32>,
    /// The responder: the PSN that it expects, and the gap that it reported.
    expected: u32,
    gap: Option<u64>,
    complained: bool,
    acknowledged: Option<u32>,
    /// READ requests that have arrived: first PSN and the one behind the last; the response that is due.
    reads: VecDeque<(u32, u32)>,
    due: Option<(u32, u32)>,
    told: Told,
}

/// The values that the counters must have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Told {
    packet_seq_err: u64,
    implied_nak_seq_err: u64,
    local_ack_timeout_err: u64,
    sent_questions: u64,
    retransmitted_pkts: u64,
    duplicate_request: u64,
    out_of_sequence: u64,
    sent_seq_err: u64,
    corrupted_requests: u64,
    corrupted_responses: u64,
}

fn packets(seen: &Seen) -> u32 {
    if seen.look.opcode.class == Class::ReadRequest { seen.look.asked.div_ceil(BYTES) } else { 1 }
}

/// Whether only its own response completes a request.
fn is_answered(class: Class) -> bool {
    !matches!(class, Class::Send | Class::Write)
}

impl Rules {
    /// A request leaves.
    fn request(&mut self, seen: &Seen) {
        let (psn, at) = (seen.place.psn, seen.at);
        let before = std::mem::replace(&mut self.last_request, at);
        if psn == self.next {
            if self.unacked == self.next {
                self.timer = at;
            }
            self.next += packets(seen);
            self.run = None;
            return;
        }
        assert!(psn < self.next, "PSN {psn} was sent, and {} left out", self.next);
        assert!(psn + packets(seen) <= self.next, "a repetition goes beyond what was sent");
        if seen.look.opcode.class == Class::ReadRequest {
            let rest = PACKETS - psn % PACKETS;
            assert_eq!(seen.look.asked, rest * BYTES, "a READ is asked for again as far as needed");
        }
        let goes_on = self.run == Some(psn) && at - before <= (PSNS as u64) * FRAME_TIME;
        self.run = Some(psn + packets(seen));
        if goes_on {
            self.told.retransmitted_pkts += 1;
            return;
        }
        assert_eq!(psn, self.unacked, "a repetition begins elsewhere, at {at} ps");
        let waited = at.saturating_sub(self.timer);
        if let Some((arrived, nak)) = self.naks.pop_front() {
            assert_eq!(nak, psn, "a NAK asks for another PSN");
            assert!(REACTION.contains(&(at - arrived)), "{} ps after a NAK", at - arrived);
            self.told.retransmitted_pkts += 1;
        } else if let Some(arrived) = self.beyond.take() {
            assert!(REACTION.contains(&(at - arrived)), "{} ps after the hole", at - arrived);
            self.hole = Some(psn);
            self.told.implied_nak_seq_err += 1;
            self.told.retransmitted_pkts += 1;
        } else if waited >= TIMEOUT - REACTION.end() {
            // The timer runs from the round in which a frame was made, not from when it left.
            assert!(waited <= TIMEOUT + REACTION.end(), "a timer fired after {waited} ps");
            self.told.local_ack_timeout_err += 1;
            self.told.retransmitted_pkts += 1;
        } else if self.question.take().is_some_and(|question| question + 1 == psn) {
            // The question was answered, and nothing behind it.
            self.told.retransmitted_pkts += 1;
        } else {
            assert!(at - before >= SILENCE - REACTION.end(), "nobody asked for it, at {at} ps");
            self.question = Some(psn);
            self.told.sent_questions += 1;
            return;
        }
        self.timer = at;
    }

    /// A response arrives at the requester.
    fn answered(&mut self, seen: &Seen, class: Class, at: u64) {
        let psn = seen.place.psn;
        let before = self.unacked;
        match seen.look.syndrome {
            Some(Syndrome::Nak(code)) => {
                assert_eq!(code, NakCode::PsnSequenceError);
                self.told.packet_seq_err += u64::from(psn >= self.unacked);
                // One beyond a response that is missing shows that, too.
                if is_answered(class) && psn > self.unacked {
                    self.beyond = self.beyond.or(Some(at));
                } else if psn >= self.unacked {
                    self.unacked = psn;
                    self.naks.push_back((at, psn));
                }
            }
            _ if !is_answered(class) => self.unacked = self.unacked.max(psn + 1),
            _ if psn == self.unacked => self.unacked += 1,
            // Once for each place: a requested repetition may be lost again.
            _ if psn > self.unacked && self.hole != Some(self.unacked) => {
                self.beyond = self.beyond.or(Some(at));
            }
            _ => {}
        }
        if self.unacked > before {
            self.timer = at + WAKE_DELAY;
            if self.naks.is_empty() {
                self.beyond = None;
            }
        }
        assert!(self.unacked <= self.next, "what was not sent is acknowledged");
    }

    /// A request arrives at the responder.
    fn asked(&mut self, seen: &Seen, at: u64) {
        let psn = seen.place.psn;
        if psn > self.expected {
            self.told.out_of_sequence += 1;
            self.gap = self.gap.or(Some(at));
            return;
        }
        if psn < self.expected {
            self.told.duplicate_request += 1;
        } else {
            self.expected += packets(seen);
            assert!(self.gap.is_none() || self.complained, "a gap of which nothing was said");
            (self.gap, self.complained) = (None, false);
        }
        if is_answered(seen.look.opcode.class) {
            self.reads.push_back((psn, psn + packets(seen)));
        }
    }

    /// A response leaves.
    fn response(&mut self, seen: &Seen) {
        let (psn, at) = (seen.place.psn, seen.at);
        match (seen.look.opcode.code, seen.look.syndrome) {
            (code::ACKNOWLEDGE, Some(Syndrome::Nak(NakCode::PsnSequenceError))) => {
                assert_eq!(psn, self.expected, "a NAK asks for another PSN than is expected");
                let gap = self.gap.expect("a NAK without a gap");
                assert!(!self.complained, "two NAKs for PSN {psn}");
                assert!(REACTION.contains(&(at - gap)), "a NAK after {} ps", at - gap);
                self.complained = true;
                self.told.sent_seq_err += 1;
            }
            (code::ACKNOWLEDGE, Some(Syndrome::Ack { .. })) => {
                assert!(psn < self.expected, "what has not come is acknowledged");
                assert!(self.acknowledged.is_none_or(|last| psn >= last), "ACKs run backwards");
                self.acknowledged = Some(psn);
            }
            (code::ACKNOWLEDGE, other) => panic!("{other:?}"),
            // Responses go on, or begin where a request that has come says.
            _ => {
                if self.due.is_none_or(|(next, end)| next != psn || next == end) {
                    let asked = self.reads.iter().position(|(first, _)| *first == psn);
                    let asked = asked.unwrap_or_else(|| panic!("nobody asked for response {psn}"));
                    self.due = self.reads.drain(..=asked).next_back();
                }
                self.due = self.due.map(|(next, end)| (next + 1, end));
            }
        }
    }
}

/// When frames arrive that do: the switch has all of one before it sends it on, behind those before it.
fn arrivals(trace: &[Seen]) -> Vec<Option<u64>> {
    // By the node from which it comes.
    let mut free = [0; 2];
    let mut arrives = |seen: &Seen| {
        let takes = u64::from(seen.wire_length) * 8 * BIT_TIME;
        let free = &mut free[seen.from];
        *free = (*free).max(seen.at + takes) + takes;
        *free + CABLE.delay
    };
    let goes_on = |seen: &&Seen| seen.befell != Some(Action::Drop);
    trace.iter().map(|seen| Some(seen).filter(goes_on).map(&mut arrives)).collect()
}

/// Goes through the trace of a connection in the order of time, sides taking turns as they saw it.
fn judge(trace: &[Seen], connection: usize) -> Told {
    let mut happenings: BTreeMap<(u64, bool, usize), &Seen> = BTreeMap::new();
    for (id, (seen, arrives)) in trace.iter().zip(arrivals(trace)).enumerate() {
        if seen.place.connection != connection {
            continue;
        }
        happenings.insert((seen.at, true, id), seen);
        if let Some(at) = arrives {
            happenings.insert((at, false, id), seen);
        }
    }
    let mut rules = Rules::default();
    let class = trace.iter().find(|seen| !seen.place.response).unwrap().look.opcode.class;
    for ((at, leaves, _), seen) in happenings {
        match (leaves, seen.place.response) {
            (true, false) => rules.request(seen),
            (true, true) => rules.response(seen),
            (false, false) if seen.arrives() => rules.asked(seen, at),
            (false, true) if seen.arrives() => rules.answered(seen, class, at),
            (false, false) => rules.told.corrupted_requests += 1,
            (false, true) => rules.told.corrupted_responses += 1,
        }
    }
    assert_eq!((rules.unacked, rules.expected), (PSNS, PSNS), "not everything was acknowledged");
    assert!(rules.gap.is_none(), "a gap stayed open");
    rules.told
}

/// Checks that both ends' counters have the values that the trace shows.
fn assert_counted(outcome: &Outcome, told: &[Told]) {
    let sum = |of: fn(&Told) -> u64| told.iter().map(of).sum::<u64>();
    let [requester, responder] =
        [0, 1].map(|node| outcome.network.sim.hosts[node].stack.counters());
    for (name, counted, seen) in [
        ("packet_seq_err", requester.packet_seq_err, sum(|it| it.packet_seq_err)),
        ("implied_nak_seq_err", requester.implied_nak_seq_err, sum(|it| it.implied_nak_seq_err)),
        (
            "local_ack_timeout_err",
            requester.local_ack_timeout_err,
            sum(|it| it.local_ack_timeout_err),
        ),
        ("sent_questions", requester.sent_questions, sum(|it| it.sent_questions)),
        ("retransmitted_pkts", requester.retransmitted_pkts, sum(|it| it.retransmitted_pkts)),
        ("rx_icrc_encapsulated", requester.rx_icrc_encapsulated, sum(|it| it.corrupted_responses)),
        ("duplicate_request", responder.duplicate_request, sum(|it| it.duplicate_request)),
        ("out_of_sequence", responder.out_of_sequence, sum(|it| it.out_of_sequence)),
        ("sent_seq_err", responder.sent_seq_err, sum(|it| it.sent_seq_err)),
        ("rx_icrc_encapsulated", responder.rx_icrc_encapsulated, sum(|it| it.corrupted_requests)),
    ] {
        assert_eq!(counted, seen, "{name}");
    }
    assert_true(&outcome.network, &outcome.flows);
}

/// The trace is whole: it has every frame that a node sent, in the order of time, and a node has heard
/// all that arrived.
fn assert_whole(outcome: &Outcome) {
    for (index, node) in outcome.network.sim.hosts.iter().enumerate() {
        let sent: Vec<&Seen> = outcome.trace.iter().filter(|seen| seen.from == index).collect();
        for connection in 0..outcome.flows.len() {
            let of = sent.iter().filter(|seen| seen.place.connection == connection);
            assert!(of.map(|seen| seen.at).is_sorted_by(|one, other| one < other));
        }
        let counters = node.stack.counters();
        assert_eq!(sent.len() as u64, counters.sent_pkts - counters.np_cnp_sent);
        let heard = outcome.trace.iter().filter(|seen| seen.from != index && seen.arrives());
        let heard = heard.count() as u64 + counters.rp_cnp_ignored;
        assert_eq!(heard, counters.rcvd_pkts, "frames that arrived at node {index}");
        for (name, value) in counters.iter().filter(|it| it.0.starts_with("drop_")) {
            let harmless = ["drop_not_for_us", "drop_stale_response", "drop_after_gap"];
            assert!(value == 0 || harmless.contains(&name), "{name} is {value}");
        }
    }
}

/// Plays events on one connection, judges all of it, and gives the counts and the number of events that found their
/// frame.
fn one(operation: Operation, events: &[(Place, Action)]) -> (Told, usize) {
    let run = std::panic::AssertUnwindSafe(|| {
        let outcome = play(operation, 1, events);
        let told = judge(&outcome.trace, 0);
        assert_counted(&outcome, &[told]);
        assert_whole(&outcome);
        let befell = outcome.trace.iter().filter(|seen| seen.befell.is_some()).count();
        (told, befell)
    });
    std::panic::catch_unwind(run).unwrap_or_else(|panic| {
        eprintln!("of {operation:?}, with {events:?}");
        std::panic::resume_unwind(panic)
    })
}

fn place(response: bool, psn: u32, iteration: u32) -> Place {
    Place { connection: 0, response, psn, iteration }
}

/// Families 1, 2, 3, 5, 6 and 7: every PSN of every kind of message, in either direction, lost or spoilt,
/// the first time, and the first two times.
///
/// RC-31, RC-33, RC-53, RC-58, RC-59, RC-69, RC-70, RC-73, RC-74, RC-75.
#[test]
fn every_frame_lost_or_spoilt_once_or_twice() {
    for operation in OPERATIONS {
        let mut events = 0;
        for (response, psn) in (0..2 * PSNS).map(|it| (it % 2 == 1, it / 2)) {
            for action in [Action::Drop, Action::Corrupt] {
                events += one(operation, &[(place(response, psn, 1), action)]).1;
                let twice = [1, 2].map(|iteration| (place(response, psn, iteration), action));
                events += one(operation, &twice).1;
            }
        }
        assert!(events >= 40, "only {events} frames of {operation:?} were met");
    }
}

/// The same if the NAK, or the answer to the repetition, is lost as well.
#[test]
fn every_request_lost_and_what_is_said_of_it() {
    for operation in OPERATIONS {
        for psn in 0..PSNS {
            for other in 0..PSNS {
                let lost = (place(false, psn, 1), Action::Drop);
                one(operation, &[lost, (place(true, other, 1), Action::Drop)]);
            }
        }
    }
}

/// A connection whose frames are lost repeats them, and another one of the same nodes repeats nothing.
#[test]
fn what_befalls_one_connection_is_nothing_to_another() {
    for operation in OPERATIONS {
        for psn in 0..PSNS {
            let lost = (place(false, psn, 1), Action::Drop);
            let outcome = play(operation, 2, &[lost, (place(true, psn, 1), Action::Corrupt)]);
            let told = [0, 1].map(|connection| judge(&outcome.trace, connection));
            assert_eq!(told[1], Told::default(), "{operation:?}, PSN {psn}");
            assert_counted(&outcome, &told);
            assert_whole(&outcome);
        }
    }
}

/// A mark delays nothing, and is counted and told of.
#[test]
fn a_mark_repeats_nothing() {
    for operation in OPERATIONS {
        for psn in 0..PSNS {
            let (told, befell) = one(operation, &[(place(false, psn, 1), Action::Mark)]);
            assert_eq!((told, befell <= 1), (Told::default(), true), "{operation:?}, PSN {psn}");
        }
    }
}

/// The rules see it where a trace breaks them.
#[test]
fn a_trace_that_breaks_a_rule_is_no_good() {
    let nak = |seen: &Seen| matches!(seen.look.syndrome, Some(Syndrome::Nak(_)));
    let again = |seen: &Seen| !seen.place.response && seen.place.iteration == 2;
    type Lie = (&'static str, Operation, fn(&Seen) -> bool, fn(&mut Vec<Seen>, usize));
    let lies: [Lie; 8] = [
        ("a second NAK", Operation::Write, nak, |trace, at| {
            let twice = Seen { at: trace[at].at + 1, ..trace[at] };
            trace.insert(at + 1, twice);
        }),
        ("a NAK for another PSN", Operation::Write, nak, |trace, at| trace[at].place.psn += 1),
        ("a NAK that takes its time", Operation::Write, nak, |trace, at| {
            trace[at].at += 5_000 * NANO
        }),
        ("no NAK", Operation::Write, nak, |trace, at| {
            trace.remove(at);
        }),
        ("a repetition from elsewhere", Operation::Write, again, |trace, at| {
            trace[at].place.psn -= 1;
        }),
        ("a repetition that comes late", Operation::Write, again, |trace, at| {
            trace[at].at += 10_000 * NANO;
        }),
        (
            "an acknowledgement of what has not come",
            Operation::Write,
            |_| true,
            |trace, at| {
                let nak = trace.iter().find(|seen| seen.place.response).copied().unwrap();
                let syndrome = Some(Syndrome::Ack { credits: 0 });
                let place = Place { psn: PSNS - 1, ..nak.place };
                let look = Look { syndrome, ..nak.look };
                trace.insert(at, Seen { place, look, ..nak });
            },
        ),
        ("a response that nobody asked for", Operation::Read, |seen| seen.place.response, {
            |trace, at| trace[at].place.psn += 1
        }),
    ];
    for (lie, operation, befalls, tell) in lies {
        let mut trace = play(operation, 1, &[(place(false, 4, 1), Action::Drop)]).trace;
        judge(&trace, 0);
        let at = trace.iter().position(befalls).unwrap();
        tell(&mut trace, at);
        let judged = std::panic::catch_unwind(|| judge(&trace, 0));
        assert!(judged.is_err(), "{lie} went by");
    }
}
