//! A card that did not run for a while: late timers say nothing about the peer.

use netsim::config::{CableSpec, Faults};
use roce::{Operation, PathMtu};

use crate::connection::Options;
use crate::for_each_seed;
use crate::lossless::both_ways;
use crate::network::{CABLE, NANO, Network};
use crate::puppet::{Puppet, SQ_PSN, ack};
use crate::workload::{Plan, run};

/// Longer than the acknowledgement timeout of most of these runs, in nanoseconds.
const STALL: u64 = 5_000_000;

fn options(timeout: u8) -> Options {
    Options { mtu: PathMtu::Mtu256, timeout, ..Options::default() }
}

/// Nothing was sent again, but for one question, which counts as that alone: a timer due in the last moments of a stall cannot be
/// told from one that is as little late as ever.
fn assert_calm(network: &Network) {
    for node in &network.sim.hosts {
        let counters = node.stack.counters();
        assert_eq!(counters.local_ack_timeout_err, 0);
        assert_eq!(counters.retransmitted_pkts, 0);
        assert!(counters.sent_questions <= 1, "{} questions", counters.sent_questions);
    }
}

/// RC-97.
#[test]
fn answers_that_came_while_a_node_stalled_are_heard_before_its_timers() {
    for_each_seed(
        "answers_that_came_while_a_node_stalled_are_heard_before_its_timers",
        5,
        |seed| {
            for timeout in [8, 14] {
                let mut network = Network::new(seed, 2, Faults::NONE);
                let plan = Plan { longest: 30, ..Plan::mixed(300, PathMtu::Mtu256) };
                let mut flows = both_ways(&mut network, &options(timeout), &plan);
                // Messages one way only, so that the other node never waits for the stalled one.
                flows.truncate(1);
                flows[0].pump(&mut network);
                for _ in 0..5 {
                    let next = network.now() + network.rng.below(200_000);
                    network.run(next, |_| false);
                    network.stall(0, STALL);
                    network.run(next + STALL, |_| false);
                }
                run(&mut network, &mut flows, 60_000_000_000);
                let counters = network.sim.hosts[0].stack.counters();
                assert_eq!((counters.retransmitted_pkts, counters.local_ack_timeout_err), (0, 0));
            }
        },
    );
}

/// RC-97.
#[test]
fn a_machine_that_stalls_with_all_its_nodes_keeps_calm() {
    for_each_seed("a_machine_that_stalls_with_all_its_nodes_keeps_calm", 10, |seed| {
        for timeout in [8, 14] {
            let faults = Faults { jitter: 5_000 * NANO, ..Faults::NONE };
            let cable = CableSpec { delay: 20_000 * NANO, faults, ..CABLE };
            let mut network = Network::on_cables(seed, 2, cable);
            let plan = Plan { longest: 30, ..Plan::mixed(300, PathMtu::Mtu256) };
            let mut flows = both_ways(&mut network, &options(timeout), &plan);
            for flow in &mut flows {
                flow.pump(&mut network);
            }
            for _ in 0..5 {
                // Long enough for something to move between two stalls.
                let next = network.now() + 200_000 + network.rng.below(300_000);
                network.run(next, |_| false);
                for node in 0..2 {
                    network.stall(node, STALL);
                }
                network.run(next + STALL, |_| false);
            }
            run(&mut network, &mut flows, 60_000_000_000);
            assert_calm(&network);
        }
    });
}

/// RC-73, RC-97.
#[test]
fn a_late_timer_waits_once_and_then_counts() {
    let mut puppet = Puppet::new(&options(11));
    puppet.post(Operation::Write, 10);
    puppet.drain();
    let due = puppet.now + (4096 << 11);
    // Late, but only as late as a busy machine always is.
    puppet.now = due + 100_000;
    assert_eq!(puppet.drain().len(), 1);
    let due = puppet.now + (4096 << 11);
    puppet.now = due + 1_000_000;
    assert!(puppet.drain().is_empty());
    puppet.now += 1_000_000;
    assert_eq!(puppet.drain().len(), 1);
    assert_eq!(puppet.node.stack.counters().local_ack_timeout_err, 2);
    assert!(puppet.say(&[ack(SQ_PSN)]).is_empty());
    assert_eq!(puppet.events().len(), 1);
}
