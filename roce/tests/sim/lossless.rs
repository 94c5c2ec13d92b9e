//! Scenarios on perfect cables.

use netsim::config::Faults;
use roce::{Operation, PathMtu};

use crate::connection::Options;
use crate::for_each_seed;
use crate::network::Network;
use crate::workload::{Flow, Plan, Supply, run};

const SECOND: u64 = 1_000_000_000;

/// Both directions of one connection between two nodes.
pub fn both_ways(network: &mut Network, options: &Options, plan: &Plan) -> Vec<Flow> {
    let (a, b) = network.connect(0, 1, options);
    vec![Flow::new(network, a, b, plan), Flow::new(network, b, a, plan)]
}

/// Nothing was sent twice, dropped or complained about.
fn assert_flawless(network: &Network) {
    for node in &network.sim.hosts {
        for (name, value) in node.stack.counters().iter() {
            // ARP asks everybody, and concerns one.
            let flaw = (name.starts_with("drop_") && name != "drop_not_for_us")
                || matches!(
                    name,
                    "retransmitted_pkts"
                        | "duplicate_request"
                        | "out_of_sequence"
                        | "packet_seq_err"
                        | "implied_nak_seq_err"
                        | "local_ack_timeout_err"
                        | "rx_icrc_encapsulated"
                );
            assert!(!flaw || value == 0, "{name} is {value}");
        }
    }
}

/// RC-22, RC-24, RC-38, RC-39.
#[test]
fn every_kind_of_message_arrives_at_every_mtu() {
    for_each_seed("every_kind_of_message_arrives_at_every_mtu", 4, |seed| {
        for mtu in PathMtu::ALL {
            let mut network = Network::new(seed, 2, Faults::NONE);
            let options = Options { mtu, ipv4: seed % 2 == 0, ..Options::default() };
            let mut flows = both_ways(&mut network, &options, &Plan::mixed(200, mtu));
            run(&mut network, &mut flows, SECOND);
            assert_flawless(&network);
        }
    });
}

/// RC-38, RC-39.
#[test]
fn each_kind_alone_arrives() {
    for_each_seed("each_kind_alone_arrives", 1, |seed| {
        for operation in [
            Operation::Send,
            Operation::SendImm,
            Operation::Write,
            Operation::WriteImm,
            Operation::Read,
        ] {
            let mtu = PathMtu::Mtu512;
            let mut network = Network::new(seed, 2, Faults::NONE);
            let options = Options { mtu, ..Options::default() };
            let plan = Plan { only: Some(operation), longest: 3, ..Plan::mixed(1100, mtu) };
            let mut flows = both_ways(&mut network, &options, &plan);
            run(&mut network, &mut flows, SECOND);
            assert_flawless(&network);
        }
    });
}

/// RC-18, RC-19.
#[test]
fn packet_sequence_numbers_wrap() {
    for_each_seed("packet_sequence_numbers_wrap", 2, |seed| {
        let mtu = PathMtu::Mtu256;
        let mut network = Network::new(seed, 2, Faults::NONE);
        let psns = Some((0xff_ffff - 100 * seed as u32, 0xff_ffff));
        let options = Options { mtu, psns, ..Options::default() };
        let mut flows = both_ways(&mut network, &options, &Plan::mixed(300, mtu));
        run(&mut network, &mut flows, SECOND);
        assert_flawless(&network);
    });
}

#[test]
fn a_connection_to_oneself_works() {
    for_each_seed("a_connection_to_oneself_works", 4, |seed| {
        let mut network = Network::new(seed, 1, Faults::NONE);
        let options = Options { ipv4: seed % 2 == 0, ..Options::default() };
        let (a, b) = network.connect(0, 0, &options);
        let plan = Plan::mixed(200, options.mtu);
        let mut flows =
            [Flow::new(&mut network, a, b, &plan), Flow::new(&mut network, b, a, &plan)];
        run(&mut network, &mut flows, SECOND);
        assert_flawless(&network);
    });
}

#[test]
fn late_receive_requests_delay_but_do_not_lose_messages() {
    for_each_seed("late_receive_requests_delay_but_do_not_lose_messages", 6, |seed| {
        let mut network = Network::new(seed, 2, Faults::NONE);
        let options = Options { mtu: PathMtu::Mtu256, ..Options::default() };
        let plan = Plan { supply: Supply::Late, ..Plan::mixed(150, options.mtu) };
        let mut flows = both_ways(&mut network, &options, &plan);
        run(&mut network, &mut flows, 10 * SECOND);
        let counters = network.sim.hosts[0].stack.counters();
        assert!(counters.rcvd_rnr_err > 0 && counters.send_rnr_err > 0);
    });
}

#[test]
fn without_a_timeout_a_perfect_cable_needs_none() {
    for_each_seed("without_a_timeout_a_perfect_cable_needs_none", 2, |seed| {
        let mut network = Network::new(seed, 2, Faults::NONE);
        let options = Options { timeout: 0, ..Options::default() };
        let plan = Plan { supply: Supply::Late, ..Plan::mixed(300, options.mtu) };
        let mut flows = both_ways(&mut network, &options, &plan);
        run(&mut network, &mut flows, 10 * SECOND);
    });
}

#[test]
fn a_mesh_of_nodes_talks_all_to_all() {
    for_each_seed("a_mesh_of_nodes_talks_all_to_all", 2, |seed| {
        let mut network = Network::new(seed, 5, Faults::NONE);
        let mut flows = Vec::new();
        for a in 0..5 {
            for b in a + 1..5 {
                let options =
                    Options { mtu: PathMtu::Mtu512, ipv4: (a + b) % 2 == 0, ..Options::default() };
                let (one, other) = network.connect(a, b, &options);
                let plan = Plan::mixed(60, options.mtu);
                flows.push(Flow::new(&mut network, one, other, &plan));
                flows.push(Flow::new(&mut network, other, one, &plan));
            }
        }
        run(&mut network, &mut flows, SECOND);
        assert_flawless(&network);
    });
}

#[test]
fn long_messages_cross_the_window_many_times() {
    for_each_seed("long_messages_cross_the_window_many_times", 1, |seed| {
        let mtu = PathMtu::Mtu256;
        let mut network = Network::new(seed, 2, Faults::NONE);
        let options = Options { mtu, ..Options::default() };
        let plan = Plan { longest: 5_000, ..Plan::mixed(12, mtu) };
        let mut flows = both_ways(&mut network, &options, &plan);
        run(&mut network, &mut flows, 10 * SECOND);
        assert_flawless(&network);
    });
}
