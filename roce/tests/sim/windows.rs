//! Windows: the calls that they get, and the limits that they set, for each kind of traffic of a queue pair.

use std::sync::{Arc, Mutex};

use netsim::config::Faults;
use roce::opcode::code;
use roce::window::{Acked, AnyWindow, Fixed, Window};
use roce::wire::aeth::{NakCode, Syndrome};
use roce::{Instant, Operation, PathMtu, QpState, Qpn, Service};

use crate::connection::Options;
use crate::datagrams::{self, Pair};
use crate::for_each_seed;
use crate::lossless::both_ways;
use crate::memory::Region;
use crate::network::Network;
use crate::puppet::{
    Puppet, RKEY, RQ_PSN, SQ_PSN, Say, Sent, VA, ack, answer, fetch_add, rdma, request, response,
};
use crate::unreliable::{self, UC, counter};
use crate::workload::{Plan, run};
use trial::rng::pattern_vec;

const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLISECOND;

/// Nanoseconds that a byte takes where packets are paced.
const PACE: u64 = 10;

/// A call that a window gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Sent(usize),
    Acked(Acked),
    Lost,
    Cnp,
    TimedOut,
}

/// The calls of windows: the queue pair, the time, and the call.
#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<Vec<(Qpn, u64, Told)>>>);

impl Log {
    fn all(&self) -> Vec<(Qpn, u64, Told)> {
        self.0.lock().unwrap().clone()
    }

    /// When frames left, and their bytes.
    fn sent(&self) -> Vec<(u64, usize)> {
        let sent = |&(_, at, told): &(_, _, _)| match told {
            Told::Sent(bytes) => Some((at, bytes)),
            _ => None,
        };
        self.all().iter().filter_map(sent).collect()
    }

    fn count(&self, what: Told) -> usize {
        self.all().iter().filter(|it| it.2 == what).count()
    }
}

/// A toy: each byte takes so long, and a notification holds everything back for a time of its own.
#[derive(Debug)]
struct Paced {
    qpn: Qpn,
    nanos: u64,
    /// No packet leaves before.
    next: u64,
    /// When to be called after a notification.
    deadline: Option<u64>,
    log: Log,
}

impl Paced {
    /// How long after a notification it wants to be called.
    const RECOVERY: u64 = 200_000;

    fn tell(&self, now: Instant, told: Told) {
        self.log.0.lock().unwrap().push((self.qpn, now.0, told));
    }
}

impl Window for Paced {
    fn on_sent(&mut self, now: Instant, bytes: usize) {
        assert!(now.0 >= self.next, "{} ns before its departure", self.next - now.0);
        self.next = now.0 + bytes as u64 * self.nanos;
        self.tell(now, Told::Sent(bytes));
    }

    fn on_ack(&mut self, now: Instant, acked: Acked) {
        self.tell(now, Told::Acked(acked));
    }

    fn on_loss(&mut self, now: Instant) {
        self.tell(now, Told::Lost);
    }

    fn on_cnp(&mut self, now: Instant) -> bool {
        self.deadline = Some(now.0 + Self::RECOVERY);
        self.tell(now, Told::Cnp);
        true
    }

    fn on_timeout(&mut self, now: Instant) {
        assert!(self.deadline.take().is_some_and(|at| now.0 >= at), "nothing was due");
        self.tell(now, Told::TimedOut);
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.deadline.map(Instant)
    }

    fn window(&self) -> u64 {
        512
    }

    fn earliest_departure(&self) -> Option<Instant> {
        Some(Instant(self.next))
    }
}

/// Paced windows, and the log of their calls.
fn paced(nanos: u64) -> (Log, impl Fn(Qpn, Service) -> AnyWindow + Clone + Send) {
    let log = Log::default();
    let its = log.clone();
    let windows = move |qpn, _| {
        let log = its.clone();
        AnyWindow::Other(Box::new(Paced { qpn, nanos, next: 0, deadline: None, log }))
    };
    (log, windows)
}

fn puppet(nanos: u64) -> (Puppet, Log) {
    let (log, windows) = paced(nanos);
    (Puppet::with_windows(&Options::default(), windows), log)
}

/// Each frame but the first left as soon as those before it let it, not earlier and not later.
fn assert_paced(log: &Log, frames: usize) {
    let sent = log.sent();
    assert_eq!(sent.len(), frames);
    for pair in sent.windows(2) {
        assert_eq!(pair[1].0 - pair[0].0, pair[0].1 as u64 * PACE, "{sent:?}");
    }
}

/// RC-107.
#[test]
fn requests_leave_one_after_another_and_the_card_wakes_up_once_for_each() {
    let (mut puppet, log) = puppet(PACE);
    puppet.post(Operation::Write, 10 * 1024);
    let mut sent = puppet.drain();
    assert_eq!(sent.len(), 1);
    let rounds = puppet.node.rounds;
    while sent.len() < 10 {
        let (_, more) = puppet.time_out();
        assert_eq!(more.len(), 1);
        sent.extend(more);
    }
    assert_eq!(puppet.node.rounds - rounds, 9);
    assert_paced(&log, 10);
    for (n, packet) in sent.iter().enumerate() {
        assert_eq!(packet.psn, SQ_PSN + n as u32);
        assert_eq!(packet.payload, pattern_vec(0, n as u64 * 1024, 1024));
    }
    assert!(puppet.say(&[ack(SQ_PSN + 9)]).is_empty());
    assert_eq!(puppet.events().len(), 1);
    puppet.node.stack.settle_timeouts();
    assert_eq!(puppet.node.stack.next_timeout(), None, "nothing is waited for");
}

/// RC-54, RC-94, RC-107.
#[test]
fn read_responses_are_paced_but_acknowledgements_and_notifications_are_not() {
    let (mut puppet, log) = puppet(PACE);
    let read = rdma(code::READ_REQUEST, RQ_PSN + 1, 0, 4096, vec![]);
    let write = |psn| rdma(code::WRITE_ONLY, psn, 0, 8, vec![7; 8]);
    let opcodes = |sent: &[Sent]| -> Vec<u8> { sent.iter().map(|packet| packet.opcode).collect() };
    let sent = puppet.say(&[write(RQ_PSN), read]);
    assert_eq!(opcodes(&sent), [code::ACKNOWLEDGE, code::READ_RESPONSE_FIRST]);
    // An acknowledgement of a later request keeps its place behind the responses; a notification has none.
    let sent = puppet.say(&[Say { marked: true, ..write(RQ_PSN + 5) }]);
    assert_eq!(opcodes(&sent), [code::CNP]);
    let sent: Vec<_> = (0..3).flat_map(|_| puppet.time_out().1).collect();
    assert_eq!(
        opcodes(&sent),
        [
            code::READ_RESPONSE_MIDDLE,
            code::READ_RESPONSE_MIDDLE,
            code::READ_RESPONSE_LAST,
            code::ACKNOWLEDGE
        ]
    );
    assert_paced(&log, 4);
    assert_eq!(puppet.node.stack.next_timeout(), None, "nothing is waited for");
}

/// RC-99, RC-107.
#[test]
fn the_result_of_an_atomic_does_not_wait() {
    let (mut puppet, log) = puppet(PACE);
    puppet.post(Operation::Write, 2048);
    assert_eq!(puppet.drain().len(), 1);
    let sent = puppet.say(&[fetch_add(RQ_PSN, VA, 1)]);
    assert_eq!((sent.len(), sent[0].opcode), (1, code::ATOMIC_ACKNOWLEDGE));
    assert_eq!(puppet.time_out().1.len(), 1);
    assert_paced(&log, 2);
}

/// RC-107.
#[test]
fn requests_and_responses_take_turns_at_one_pace() {
    let (mut puppet, log) = puppet(PACE);
    puppet.post(Operation::Write, 5 * 1024);
    let mut sent = puppet.say(&[rdma(code::READ_REQUEST, RQ_PSN, 0, 5 * 1024, vec![])]);
    while sent.len() < 10 {
        let (_, more) = puppet.time_out();
        assert_eq!(more.len(), 1);
        sent.extend(more);
    }
    let is_response = |n: usize| roce::opcode::Opcode::find(sent[n].opcode).unwrap().class;
    for n in 1..10 {
        assert_ne!(is_response(n), is_response(n - 1), "{n}");
    }
    assert_paced(&log, 10);
}

/// RC-30.
#[test]
fn a_slow_pace_outlasts_no_acknowledgement_timeout() {
    // A packet takes a third of the timeout; 64 would take 20 of them.
    let (log, windows) = paced(300);
    let mut network = Network::new(1, 2, Faults::NONE);
    network.sim.hosts.iter_mut().for_each(|node| node.stack.set_windows(windows.clone()));
    let options = Options::default();
    let plan = Plan { only: Some(Operation::Write), ..Plan::mixed(40, options.mtu) };
    let mut flows = both_ways(&mut network, &options, &plan);
    run(&mut network, &mut flows, SECOND);
    assert_eq!(log.count(Told::Lost), 0);
    assert_eq!(counter(&network, 0, "local_ack_timeout_err"), 0);
    assert_eq!(counter(&network, 0, "retransmitted_pkts"), 0);
}

/// RC-107.
#[test]
fn paced_networks_with_faults_deliver_everything_once_and_spin_nowhere() {
    let name = "paced_networks_with_faults_deliver_everything_once_and_spin_nowhere";
    for_each_seed(name, 20, |seed| {
        let faulty =
            Faults { loss: 60, duplication: 60, reordering: 60, corruption: 60, ..Faults::NONE };
        let (log, windows) = paced(seed % 8);
        let mut network = Network::new(seed, 2, if seed % 2 == 0 { faulty } else { Faults::NONE });
        network.sim.hosts.iter_mut().for_each(|node| node.stack.set_windows(windows.clone()));
        let options = Options { timeout: 10, mtu: PathMtu::Mtu1024, ..Options::default() };
        let mut flows = both_ways(&mut network, &options, &Plan::mixed(120, options.mtu));
        run(&mut network, &mut flows, 60 * SECOND);
        let idle = network.sim.hosts.iter().map(|node| node.rounds).sum::<u64>();
        // Each round has a frame that came, one that went, or a timer of the transport.
        let frames: u64 =
            network.sim.hosts.iter().map(|node| node.received + node.memory.roce_frames_sent).sum();
        assert!(idle <= 2 * frames + 1_000, "{idle} rounds for {frames} frames");
        assert!(log.sent().len() > 240);
        assert!(log.all().iter().any(|it| matches!(it.2, Told::Acked(_))));
        assert_eq!(log.count(Told::Lost) != 0, seed % 2 == 0, "losses are told of");
    });
}

/// UC-4, RC-107.
#[test]
fn messages_along_an_unreliable_connection_are_paced() {
    let (log, windows) = paced(PACE);
    let mut network = Network::new(1, 2, Faults::NONE);
    network.sim.hosts[0].stack.set_windows(windows);
    let (from, _) = unreliable::connect(&mut network, &Options::default());
    let region = Region { va: VA, bytes: vec![0; 65_536], writable: true };
    network.sim.hosts[1].memory.regions.insert(RKEY, region);
    for key in 0..4 {
        unreliable::post(&mut network, from, unreliable::request(Operation::Write, 5000), key);
    }
    let rounds = network.sim.hosts[0].rounds;
    unreliable::run(&mut network, MILLISECOND);
    assert_paced(&log, 20);
    assert!(network.sim.hosts[0].rounds - rounds < 30, "{}", network.sim.hosts[0].rounds - rounds);
    assert!(network.sim.hosts[1].memory.regions[&RKEY].bytes[..5000] == pattern_vec(3, 0, 5000));
}

/// UD-6, RC-107.
#[test]
fn datagrams_are_paced() {
    let (log, windows) = paced(PACE);
    let mut pair = Pair::resolved();
    pair.network.sim.hosts[0].stack.set_windows(windows);
    pair.network.set_state(pair.from, QpState::Reset);
    for change in datagrams::way(QpState::Rts, datagrams::QKEY) {
        pair.network.modify(pair.from, &change);
    }
    for _ in 0..8 {
        pair.network.sim.hosts[1].memory.post_receive(pair.to.qpn, 1100);
        pair.post(datagrams::request(pair.to.qpn, 1000));
    }
    let [_, received] = pair.run(MILLISECOND);
    assert_eq!(received.len(), 8);
    assert_paced(&log, 8);
}

/// RC-96.
#[test]
fn a_notification_reaches_the_window_of_its_queue_pair_and_of_no_other() {
    let (log, windows) = paced(0);
    let mut network = Network::new(1, 2, Faults { marking: 10_000, ..Faults::NONE });
    network.sim.hosts.iter_mut().for_each(|node| node.stack.set_windows(windows.clone()));
    // Only the packets of one connection may be marked.
    let capable = Options { traffic_class: 2, ..Options::default() };
    let plan = Plan { only: Some(Operation::Write), ..Plan::mixed(20, PathMtu::Mtu1024) };
    let mut flows = both_ways(&mut network, &Options::default(), &plan);
    let (one, other) = network.connect(0, 1, &capable);
    flows.push(crate::workload::Flow::new(&mut network, one, other, &plan));
    run(&mut network, &mut flows, SECOND);
    let told: Vec<Qpn> = log.all().iter().filter(|it| it.2 == Told::Cnp).map(|it| it.0).collect();
    assert!(told.contains(&one.qpn));
    assert!(told.iter().all(|qpn| [one.qpn, other.qpn].contains(qpn)), "{told:?}");
    assert_eq!(counter(&network, 0, "rp_cnp_ignored"), 0);
}

fn cnp() -> Say {
    Say { opcode: code::CNP, payload: vec![0; 16], ..Say::default() }
}

/// RC-11, RC-96.
#[test]
fn a_notification_of_a_stranger_or_for_nobody_reaches_no_window() {
    for uc in [false, true] {
        let (mut puppet, log) = puppet(0);
        if uc {
            puppet = unreliable::of_connection(puppet);
        }
        let before = log.all().len();
        let stranger = Some("10.7.0.98".parse().unwrap());
        puppet.say(&[Say { source: stranger, ..cnp() }]);
        puppet.say(&[Say { dest_qpn: Some(0x1234), ..cnp() }]);
        puppet.say(&[Say { pkey: Some(0x1234), ..cnp() }]);
        assert_eq!(log.all().len(), before);
        puppet.say(&[cnp()]);
        assert_eq!(log.all()[before..], [(puppet.qpn, puppet.now, Told::Cnp)]);
        assert_eq!(puppet.node.stack.counters().rp_cnp_ignored, 0, "it is heeded");
    }
}

/// RC-96.
#[test]
fn a_window_is_called_at_its_deadline_and_the_card_sleeps_until_then() {
    for uc in [false, true] {
        let (mut puppet, log) = puppet(0);
        if uc {
            puppet = unreliable::of_connection(puppet);
        }
        puppet.say(&[cnp()]);
        let due = puppet.now + Paced::RECOVERY;
        puppet.node.stack.settle_timeouts();
        assert_eq!(puppet.node.stack.next_timeout(), Some(Instant(due)));
        puppet.now = due - 1;
        assert!(puppet.round().is_empty());
        assert_eq!(log.count(Told::TimedOut), 0);
        puppet.now = due;
        assert!(puppet.round().is_empty());
        assert_eq!(log.all().last(), Some(&(puppet.qpn, due, Told::TimedOut)));
        assert_eq!(puppet.node.stack.next_timeout(), None);
    }
}

/// RC-82, RC-107.
#[test]
fn a_queue_pair_in_its_next_life_has_a_new_window_and_no_timer() {
    let (mut puppet, _) = puppet(PACE);
    puppet.post(Operation::Write, 2048);
    assert_eq!(puppet.drain().len(), 1);
    puppet.modify(&roce::QpAttributes {
        state: Some(QpState::Reset),
        ..roce::QpAttributes::default()
    });
    puppet.node.stack.settle_timeouts();
    assert_eq!(puppet.node.stack.next_timeout(), None);
    let mut puppet = unreliable::of_connection(puppet);
    puppet.node.memory.regions.clear();
    let say = Say { opcode: UC | code::SEND_ONLY, psn: RQ_PSN, ..request(0, 0, vec![]) };
    assert!(puppet.say(&[say]).is_empty());
}

/// RC-83, UC-14.
#[test]
fn the_window_of_a_queue_pair_that_failed_is_called_no_more() {
    for uc in [false, true] {
        let (mut puppet, log) = puppet(0);
        if uc {
            puppet = unreliable::of_connection(puppet);
        }
        puppet.say(&[cnp()]);
        puppet.modify(&roce::QpAttributes {
            state: Some(QpState::Err),
            ..roce::QpAttributes::default()
        });
        puppet.node.stack.settle_timeouts();
        assert_eq!(puppet.node.stack.next_timeout(), None);
        puppet.now += 2 * Paced::RECOVERY;
        assert!(puppet.round().is_empty());
        assert_eq!(log.count(Told::TimedOut), 0);
    }
}

/// RC-74: the window is told of acknowledgements with their bytes and their time.
#[test]
fn a_window_is_told_how_many_bytes_were_acknowledged_and_how_long_it_took() {
    let (mut puppet, log) = puppet(0);
    let before = log.all().len();
    puppet.post(Operation::Write, 2500);
    puppet.post(Operation::Read, 1500);
    assert_eq!(puppet.drain().len(), 4);
    puppet.now += 7_000;
    puppet.say(&[ack(SQ_PSN + 1)]);
    puppet.say(&[response(code::READ_RESPONSE_FIRST, SQ_PSN + 3, vec![0; 1024])]);
    puppet.say(&[response(code::READ_RESPONSE_LAST, SQ_PSN + 4, vec![0; 476])]);
    let told = log.all()[before..].to_vec();
    let acked: Vec<(u64, u64)> = told
        .iter()
        .filter_map(|it| match it.2 {
            Told::Acked(Acked { packets, bytes, .. }) => Some((packets, bytes)),
            _ => None,
        })
        .collect();
    assert_eq!(acked, [(2, 2048), (1, 452), (1, 1024), (1, 476)]);
    let measured: Vec<_> = told
        .iter()
        .filter_map(|it| match it.2 {
            Told::Acked(Acked { round_trip, .. }) => round_trip,
            _ => None,
        })
        .collect();
    assert_eq!(measured, [core::time::Duration::from_micros(7)]);
}

/// RC-31.
#[test]
fn a_fixed_window_is_the_same_after_a_loss() {
    let fixed = |_, _| AnyWindow::Fixed(Fixed::new(4));
    let mut puppet = Puppet::with_windows(&Options::default(), fixed);
    puppet.post(Operation::Write, 10 * 1024);
    let sent = puppet.drain();
    assert_eq!(sent.len(), 4);
    assert!(sent[3].ack_request && !sent[2].ack_request);
    assert_eq!(puppet.say(&[ack(SQ_PSN + 1)]).len(), 2);
    let nak = answer(SQ_PSN + 3, Syndrome::Nak(NakCode::PsnSequenceError));
    let psns: Vec<u32> = puppet.say(&[nak]).iter().map(|packet| packet.psn).collect();
    assert_eq!(psns, (SQ_PSN + 3..SQ_PSN + 7).collect::<Vec<_>>());
}

/// RC-31.
#[test]
fn fixed_windows_of_any_size_deliver_everything_once() {
    for_each_seed("fixed_windows_of_any_size_deliver_everything_once", 4, |seed| {
        for size in [1, 2, 16, 4096] {
            let faults = Faults { loss: 100, reordering: 50, ..Faults::NONE };
            let mut network = Network::new(seed, 2, faults);
            for node in &mut network.sim.hosts {
                node.stack.set_windows(move |_, _| AnyWindow::Fixed(Fixed::new(size)));
            }
            let options = Options::default();
            let mut flows = both_ways(&mut network, &options, &Plan::mixed(60, options.mtu));
            run(&mut network, &mut flows, 60 * SECOND);
        }
    });
}
