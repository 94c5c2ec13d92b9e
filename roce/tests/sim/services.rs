//! Services on the way of packets, at each of their places.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use netsim::config::Faults;
use roce::{
    Checked, FramePayload, Part, PartKind, PathMtu, Placed, Placement, Qpn, Services, Sink, Verdict,
};
use trial::rng::mix;

use crate::connection::Options;
use crate::for_each_seed;
use crate::lossless::both_ways;
use crate::network::{Network, bad};
use crate::workload::{Plan, run};

const SECOND: u64 = 1_000_000_000;

/// Does nothing anywhere.
#[derive(Debug)]
struct Nothing;

impl Services for Nothing {}

/// The packets that a service has seen.
#[derive(Debug, Default)]
struct Seen {
    checked: u64,
    dropped: u64,
    /// Placements that were acted on and are not done.
    open: u64,
    done: u64,
}

/// A service that records packets, and drops each packet of a number.
#[derive(Debug)]
struct Observer {
    seen: Rc<RefCell<Seen>>,
    each: u64,
}

impl Services for Observer {
    fn check(&mut self, packet: &Checked<'_>) -> Verdict {
        let mut seen = self.seen.borrow_mut();
        assert_eq!(packet.payload.len(), packet.packet.payload.len());
        seen.checked += 1;
        if seen.checked % self.each == 0 {
            seen.dropped += 1;
            return Verdict::Drop;
        }
        Verdict::Accept
    }

    fn act(&mut self, placement: &Placement, frame: &mut [u8]) -> Option<Sink> {
        assert!(placement.range.end <= frame.len());
        self.seen.borrow_mut().open += 1;
        Some(placement.sink)
    }

    fn done(&mut self, _: Qpn, placed: Placed) {
        let mut seen = self.seen.borrow_mut();
        assert_ne!(placed, Placed::Failed);
        seen.open -= 1;
        seen.done += 1;
    }
}

/// Runs a workload both ways, with services at both ends; gives the packets and the counts.
fn talk(
    seed: u64,
    faults: Faults,
    services: impl Fn(usize) -> Option<Box<dyn Services>>,
) -> (Network, Vec<Vec<Vec<u8>>>) {
    let mut network = Network::new(seed, 2, faults);
    network.record();
    for (number, node) in network.sim.hosts.iter_mut().enumerate() {
        node.stack.set_services(services(number));
    }
    let mtu = PathMtu::ALL[seed as usize % 5];
    let options = Options { mtu, ..Options::default() };
    let mut flows = both_ways(&mut network, &options, &Plan::mixed(200, mtu));
    run(&mut network, &mut flows, 60 * SECOND);
    let said =
        network.sim.hosts.iter_mut().map(|node| node.memory.capture.take().unwrap()).collect();
    (network, said)
}

#[test]
fn services_that_do_nothing_change_nothing() {
    for_each_seed("services_that_do_nothing_change_nothing", 4, |seed| {
        let faults = bad(100);
        let (with, said_with) = talk(seed, faults, |_| Some(Box::new(Nothing)));
        let (without, said) = talk(seed, faults, |_| None);
        assert!(said == said_with);
        for (one, other) in with.sim.hosts.iter().zip(&without.sim.hosts) {
            assert_eq!(one.stack.counters(), other.stack.counters());
        }
    });
}

#[test]
fn each_packet_is_checked_once_and_each_placement_is_acted_on_and_done() {
    for_each_seed("each_packet_is_checked_once", 4, |seed| {
        let seen = [(); 2].map(|()| Rc::new(RefCell::new(Seen::default())));
        let observe = |node: usize| -> Option<Box<dyn Services>> {
            Some(Box::new(Observer { seen: Rc::clone(&seen[node]), each: u64::MAX }))
        };
        let (network, _) = talk(seed, Faults::NONE, observe);
        for (node, seen) in network.sim.hosts.iter().zip(&seen) {
            let seen = seen.borrow();
            let counters = node.stack.counters();
            assert_eq!((seen.checked, seen.open), (counters.rcvd_pkts, 0));
            assert!(seen.done > 100, "{seen:?}");
        }
    });
}

#[test]
fn what_a_check_drops_is_counted_and_comes_again_as_what_was_lost() {
    for_each_seed("what_a_check_drops", 4, |seed| {
        let seen = [(); 2].map(|()| Rc::new(RefCell::new(Seen::default())));
        let drop_some = |node: usize| -> Option<Box<dyn Services>> {
            Some(Box::new(Observer { seen: Rc::clone(&seen[node]), each: 100 }))
        };
        let (network, _) = talk(seed, Faults::NONE, drop_some);
        for (node, seen) in network.sim.hosts.iter().zip(&seen) {
            let seen = seen.borrow();
            let counters = node.stack.counters();
            assert!(seen.dropped > 2, "{seen:?}");
            assert_eq!(counters.drop_by_service, seen.dropped);
            assert_eq!(counters.rcvd_pkts, seen.checked - seen.dropped);
            assert_eq!(seen.open, 0);
        }
    });
}

/// The test's knowledge of a queue pair.
#[derive(Debug, Default)]
struct Known {
    /// The packet that was checked last.
    checked: Option<Part>,
    /// The parts of packets that were accepted, and are to be acted on.
    waiting: VecDeque<Option<Part>>,
    /// Where the messages under way end: the peer's, and the READ of its own.
    ends: [u64; 2],
}

/// Hides all payload on its way, by its offset in its message, and sees to it that each byte has its turn once.
#[derive(Debug, Default)]
struct Mask {
    known: HashMap<Qpn, Known>,
    transformed: u64,
    acted: Rc<RefCell<u64>>,
}

fn hide(offset: u64, bytes: &mut [u8]) {
    for (offset, byte) in (offset..).zip(bytes) {
        *byte ^= mix(offset) as u8;
    }
}

impl Services for Mask {
    fn check(&mut self, packet: &Checked<'_>) -> Verdict {
        self.known.entry(packet.qpn).or_default().checked = packet.part;
        Verdict::Accept
    }

    fn accepted(&mut self, placement: &Placement) {
        let known = self.known.entry(placement.qpn).or_default();
        let part = known.checked.take();
        if let Some(part) = part {
            assert_eq!(part.offset, placement.offset);
            let end = &mut known.ends[usize::from(part.kind == PartKind::Read)];
            assert_eq!(*end, part.offset, "in the order of the message");
            *end = if part.is_last { 0 } else { part.offset + placement.range.len() as u64 };
        }
        known.waiting.push_back(part);
    }

    fn act(&mut self, placement: &Placement, frame: &mut [u8]) -> Option<Sink> {
        let known = self.known.get_mut(&placement.qpn).unwrap();
        // An atomic operation, and its result, are no part of a message.
        if let Some(part) = known.waiting.pop_front().unwrap() {
            hide(part.offset, &mut frame[placement.range.clone()]);
            *self.acted.borrow_mut() += 1;
        }
        Some(placement.sink)
    }

    fn transform(&mut self, payload: &FramePayload, frame: &mut [u8], range: Range<usize>) -> bool {
        assert_eq!(range.len(), payload.length as usize);
        hide(payload.offset, &mut frame[range]);
        self.transformed += 1;
        true
    }
}

/// READs are repeated from their middle, too.
#[test]
fn what_is_hidden_as_it_leaves_is_found_as_it_comes_on_bad_cables() {
    for_each_seed("what_is_hidden_as_it_leaves", 8, |seed| {
        let acted = [(); 2].map(|()| Rc::default());
        let mask = |node: usize| -> Option<Box<dyn Services>> {
            Some(Box::new(Mask { acted: Rc::clone(&acted[node]), ..Mask::default() }))
        };
        let (network, _) = talk(seed, bad(100), mask);
        for (node, acted) in network.sim.hosts.iter().zip(&acted) {
            assert!(node.stack.counters().retransmitted_pkts > 0);
            assert!(*acted.borrow() > 100);
        }
    });
}
