//! Scenarios on bad cables: every message arrives once and unharmed.

use netsim::config::{CableSpec, Faults};
use roce::{Operation, PathMtu};

use crate::connection::Options;
use crate::for_each_seed;
use crate::lossless::both_ways;
use crate::network::{CABLE, NANO, Network, bad};
use crate::workload::{Flow, Plan, Supply, run};

const SECOND: u64 = 1_000_000_000;

/// One and five per cent, in units of one in 10,000.
const DEGREES: [u32; 2] = [100, 500];

/// Every frame that a node received is accounted for by exactly one counter, every frame it sent
/// by another, and corruption is always noticed.
fn assert_accounted(network: &Network) {
    for node in &network.sim.hosts {
        let c = node.stack.counters();
        let accounted = c.rcvd_pkts
            + c.rx_icrc_encapsulated
            + c.drop_not_for_us
            + c.drop_malformed
            + c.drop_unknown_qp
            + c.drop_wrong_source
            + c.drop_martian_source
            + c.drop_by_service
            + c.drop_bad_pkey;
        // ARP packets for the node are counted only if they were requests.
        let arp = node.received - accounted;
        assert!(arp <= 2 + 2 * c.sent_arp_requests + c.arp_replies, "{arp} frames unaccounted for");
        assert_eq!(c.sent_pkts, node.memory.roce_frames_sent);
    }
}

/// A mixed workload both ways over a cable with faults.
fn mixed_over(seed: u64, faults: Faults) {
    mixed_on(seed, CableSpec { faults, ..CABLE });
}

fn mixed_on(seed: u64, cable: CableSpec) {
    let mut network = Network::on_cables(seed, 2, cable);
    let mtu = PathMtu::ALL[seed as usize % 5];
    let options = Options { mtu, ipv4: seed % 3 != 0, ..Options::default() };
    let supply = if seed % 4 == 0 { Supply::Late } else { Supply::Ready };
    let plan = Plan { supply, longest: 8, ..Plan::mixed(200, mtu) };
    let mut flows = both_ways(&mut network, &options, &plan);
    run(&mut network, &mut flows, 60 * SECOND);
    assert_accounted(&network);
}

#[test]
fn lost_frames_are_repaired() {
    for_each_seed("lost_frames_are_repaired", 2, |seed| {
        for loss in DEGREES {
            mixed_over(seed, Faults { loss, ..Faults::NONE });
        }
    });
}

#[test]
fn duplicated_frames_do_no_harm() {
    for_each_seed("duplicated_frames_do_no_harm", 2, |seed| {
        for duplication in DEGREES {
            mixed_over(seed, Faults { duplication, ..Faults::NONE });
        }
    });
}

#[test]
fn reordered_frames_do_no_harm() {
    for_each_seed("reordered_frames_do_no_harm", 2, |seed| {
        for reordering in DEGREES {
            mixed_over(seed, Faults { reordering, ..Faults::NONE });
        }
    });
}

/// RC-2.
#[test]
fn corrupted_frames_are_noticed_and_repaired() {
    for_each_seed("corrupted_frames_are_noticed_and_repaired", 2, |seed| {
        for corruption in DEGREES {
            mixed_over(seed, Faults { corruption, ..Faults::NONE });
        }
    });
}

#[test]
fn all_faults_together_are_repaired() {
    for_each_seed("all_faults_together_are_repaired", 4, |seed| {
        for degree in DEGREES {
            mixed_over(seed, bad(degree));
        }
    });
}

#[test]
fn very_long_delays_do_no_harm() {
    for_each_seed("very_long_delays_do_no_harm", 3, |seed| {
        // Twice the acknowledgement timeout: everything is sent several times.
        let faults = Faults { reorder_delay: 3_000_000 * NANO, ..bad(100) };
        mixed_on(seed, CableSpec { delay: 1_000_000 * NANO, faults, ..CABLE });
    });
}

#[test]
fn reads_in_a_storm_of_losses_arrive() {
    for_each_seed("reads_in_a_storm_of_losses_arrive", 4, |seed| {
        let mut network = Network::new(seed, 2, bad(300));
        let options = Options {
            mtu: PathMtu::Mtu256,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            ..Options::default()
        };
        let plan =
            Plan { only: Some(Operation::Read), longest: 20, ..Plan::mixed(200, options.mtu) };
        let mut flows = both_ways(&mut network, &options, &plan);
        run(&mut network, &mut flows, 60 * SECOND);
        let counters = network.sim.hosts[0].stack.counters();
        assert!(counters.implied_nak_seq_err > 0, "no lost response was noticed early");
        assert!(counters.duplicate_request > 0, "no READ was repeated");
        assert_accounted(&network);
    });
}

#[test]
fn sequence_numbers_wrap_on_a_bad_cable() {
    for_each_seed("sequence_numbers_wrap_on_a_bad_cable", 4, |seed| {
        let mut network = Network::new(seed, 2, bad(300));
        let psns = Some((0xff_ffff - 60 * seed as u32, 0xff_fff0));
        let options = Options { mtu: PathMtu::Mtu256, psns, ..Options::default() };
        let mut flows = both_ways(&mut network, &options, &Plan::mixed(200, options.mtu));
        run(&mut network, &mut flows, 60 * SECOND);
    });
}

#[test]
fn receive_requests_that_come_late_over_a_bad_cable_lose_nothing() {
    for_each_seed("receive_requests_that_come_late_over_a_bad_cable_lose_nothing", 2, |seed| {
        let mut network = Network::new(seed, 2, bad(300));
        let options = Options { mtu: PathMtu::Mtu512, ..Options::default() };
        let only = Some(if seed % 2 == 0 { Operation::WriteImm } else { Operation::Send });
        let plan = Plan { supply: Supply::Late, only, longest: 5, ..Plan::mixed(150, options.mtu) };
        let mut flows = both_ways(&mut network, &options, &plan);
        run(&mut network, &mut flows, 60 * SECOND);
        assert!(network.sim.hosts[0].stack.counters().rcvd_rnr_err > 0);
    });
}

#[test]
fn a_mesh_on_bad_cables_loses_nothing() {
    for_each_seed("a_mesh_on_bad_cables_loses_nothing", 2, |seed| {
        let mut network = Network::new(seed, 4, bad(200));
        let mut flows = Vec::new();
        for a in 0..4 {
            for b in a..4 {
                let mtu = PathMtu::ALL[(a + b) % 5];
                let options = Options { mtu, ipv4: (a + b) % 2 == 0, ..Options::default() };
                let (one, other) = network.connect(a, b, &options);
                let plan = Plan { longest: 4, ..Plan::mixed(50, mtu) };
                flows.push(Flow::new(&mut network, one, other, &plan));
                flows.push(Flow::new(&mut network, other, one, &plan));
            }
        }
        run(&mut network, &mut flows, 60 * SECOND);
        assert_accounted(&network);
    });
}
