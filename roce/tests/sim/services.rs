//! Services on the way of packets, at each of their places.

use std::cell::RefCell;
use std::rc::Rc;

use netsim::config::Faults;
use roce::{Checked, PathMtu, Placed, Placement, Qpn, Services, Sink, Verdict};

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

/// What a service has seen.
#[derive(Debug, Default)]
struct Seen {
    checked: u64,
    dropped: u64,
    /// Placements that were acted on and are not done.
    open: u64,
    done: u64,
}

/// Writes down what it sees, and drops each packet of that number.
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

    fn act(&mut self, placement: &Placement, frame: &mut [u8]) -> Sink {
        assert!(placement.range.end <= frame.len());
        self.seen.borrow_mut().open += 1;
        placement.sink
    }

    fn done(&mut self, _: Qpn, placed: Placed) {
        let mut seen = self.seen.borrow_mut();
        assert_ne!(placed, Placed::Failed);
        seen.open -= 1;
        seen.done += 1;
    }
}

/// A workload both ways, with services at both ends; what was said, and what was counted.
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
