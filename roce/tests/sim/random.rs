//! Random networks under random faults: one seed draws everything.

use std::cell::RefCell;
use std::collections::BTreeMap;

use netsim::cable::FaultTally;
use netsim::config::{CableSpec, Faults};
use roce::{Operation, PathMtu, QpState};

use crate::connection::{End, Options};
use crate::for_seeds;
use crate::network::{CABLE, NANO, Network, assert_conserved, tree};
use crate::truth::assert_true;
use crate::workload::{ATOMIC, Flow, Plan, Supply, run};
use trial::rng::Rng;

const SECOND: u64 = 1_000_000_000;

/// The number of seeds that the project's tests run.
const SEEDS: u64 = 2_000;

/// The draws of a seed, printed when its run fails.
struct Story(String);

impl Drop for Story {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.0);
        }
    }
}

/// Cables whose faults of each kind add up, on average and along the longest way, to `severity`
/// of 10,000 frames.
fn draw_cable(rng: &mut Rng, severity: u64, hops: u64) -> CableSpec {
    let mut fault = || rng.below(2 * severity / hops + 1) as u32;
    let (loss, duplication, reordering, corruption) = (fault(), fault(), fault(), fault());
    let faults = Faults {
        loss,
        duplication,
        reordering,
        corruption,
        marking: rng.pick(&[0, 0, 1_000]),
        jitter: rng.pick(&[0, 3_000]) * NANO,
        reorder_delay: rng.pick(&[2_000, 20_000, 100_000]) * NANO,
    };
    CableSpec { delay: rng.between(100, 10_000) * NANO, faults, ..CABLE }
}

fn draw_options(rng: &mut Rng) -> Options {
    let max_rd_atomic = rng.between(1, 16) as u8;
    let near_the_wrap = |rng: &mut Rng| 0x100_0000 - rng.between(1, 60) as u32;
    Options {
        mtu: rng.pick(&PathMtu::ALL),
        ipv4: rng.chance(5_000),
        timeout: rng.pick(&[7, 8, 10, 12, 14]),
        min_rnr_timer: rng.pick(&[1, 5, 10]),
        max_rd_atomic,
        max_dest_rd_atomic: rng.between(u64::from(max_rd_atomic), 16) as u8,
        traffic_class: rng.pick(&[0, 0x02, 0x69]),
        psns: rng.chance(3_000).then(|| (near_the_wrap(rng), near_the_wrap(rng))),
        ..Options::default()
    }
}

fn draw_plan(rng: &mut Rng, mtu: PathMtu) -> Plan {
    let operations = [
        Operation::Send,
        Operation::SendImm,
        Operation::Write,
        Operation::WriteImm,
        Operation::Read,
        ATOMIC,
    ];
    Plan {
        longest: rng.pick(&[1, 4, 12]),
        supply: rng.pick(&[Supply::Ready, Supply::Ready, Supply::Late]),
        only: rng.chance(2_000).then(|| rng.pick(&operations)),
        ..Plan::mixed(rng.between(5, 40) as usize, mtu)
    }
}

/// Two to six nodes on one to three switches, and one to four connections between any of them,
/// also from a node to itself, with messages one way or both.
fn draw(seed: u64) -> (Network, Vec<Flow>, Story) {
    let mut rng = Rng::new(seed);
    let (nodes, switches) = (rng.between(2, 6) as usize, rng.between(1, 3) as usize);
    let severity = rng.pick(&[0, 50, 150, 300]);
    let hops = switches as u64 + 1;
    let cables = tree(&mut rng, nodes, switches, |rng| draw_cable(rng, severity, hops));
    let mut story = format!("{nodes} nodes, {switches} switches, severity {severity}\n");
    let mut network = Network::of(Rng::new(rng.next()), &cables);
    network.record();
    let mut flows = Vec::new();
    for _ in 0..rng.between(1, 4) {
        let (a, b) = (rng.below(nodes as u64) as usize, rng.below(nodes as u64) as usize);
        let options = draw_options(&mut rng);
        if rng.chance(2_500) {
            // A queue and a domain of its own, so that no other flow takes this one's receives.
            let (domain, first) = (flows.len() as u32 + 1, flows.len() as u32 * 4);
            let srqns: Vec<u32> = (first..first + rng.between(1, 3) as u32).collect();
            let ends = network.connect_xrc(a, b, domain, &options);
            let plan = draw_plan(&mut rng, options.mtu);
            story += &format!("XRC, nodes {a} and {b}: {options:?}\n  there: {plan:?}\n");
            flows.push(Flow::along_xrc(&mut network, ends, (domain, &srqns), &plan));
            continue;
        }
        let (one, other) = network.connect(a, b, &options);
        let plan = draw_plan(&mut rng, options.mtu);
        story += &format!("nodes {a} and {b}: {options:?}\n  there: {plan:?}\n");
        flows.push(Flow::new(&mut network, one, other, &plan));
        if rng.chance(7_000) {
            let plan = draw_plan(&mut rng, options.mtu);
            story += &format!("  back: {plan:?}\n");
            flows.push(Flow::new(&mut network, other, one, &plan));
        }
    }
    for (index, node) in network.sim.hosts.iter_mut().enumerate() {
        node.memory.insists = rng.chance(3_000);
        if node.memory.insists {
            story += &format!("node {index} insists on acknowledgements\n");
        }
    }
    (network, flows, Story(story))
}

/// The counts of all runs together: they show that the networks were not calm.
#[derive(Default)]
struct Total {
    runs: u64,
    /// Packets acknowledged when they were accepted.
    acknowledged: u64,
    frames: u64,
    faults: FaultTally,
    counters: BTreeMap<&'static str, u64>,
}

impl Total {
    fn add(&mut self, network: &Network) {
        let tally = network.sim.tally();
        self.runs += 1;
        for node in &network.sim.hosts {
            self.acknowledged += node.memory.ledger.as_ref().unwrap().settle();
        }
        self.frames += tally.sent + tally.flooded;
        self.faults.lost += tally.cables.lost;
        self.faults.duplicated += tally.cables.duplicated;
        self.faults.reordered += tally.cables.reordered;
        self.faults.corrupted += tally.cables.corrupted;
        self.faults.marked += tally.cables.marked;
        for (name, value) in network.sim.hosts.iter().flat_map(|node| node.stack.counters().iter())
        {
            *self.counters.entry(name).or_default() += value;
        }
    }

    /// Every way to repair a fault was taken, if there were enough runs to expect that.
    fn check(&self) {
        println!("{} random networks, {} frames: {:?}", self.runs, self.frames, self.faults);
        println!("{:?}", self.counters);
        println!("{} packets acknowledged as accepted", self.acknowledged);
        assert!(self.acknowledged > 10 * self.runs);
        let ways = [
            "duplicate_request",
            "out_of_sequence",
            "packet_seq_err",
            "implied_nak_seq_err",
            "local_ack_timeout_err",
            "rcvd_rnr_err",
            "rx_icrc_encapsulated",
            "np_ecn_marked_roce_packets",
            "np_cnp_sent",
            "rp_cnp_ignored",
            "sent_questions",
            "drop_after_gap",
            "drop_stale_response",
        ];
        for way in ways {
            assert!(self.runs < 100 || self.counters[way] != 0, "{way} never counted");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let (mut network, mut flows, _story) = draw(seed);
        run(&mut network, &mut flows, 60 * SECOND);
        let said: Vec<_> =
            network.sim.hosts.iter_mut().map(|node| node.memory.capture.take()).collect();
        (network.sim.digest(), network.sim.tally(), said)
    };
    for seed in 1..=20 {
        assert!(run(seed) == run(seed), "of seed {seed}");
    }
    assert_ne!(run(1).0, run(2).0);
}

/// RC-2, RC-17, RC-20, RC-32, RC-34, RC-50, RC-51, RC-53, RC-54, XRC-1, XRC-6.
#[test]
fn random_networks_with_random_faults_deliver_everything_once() {
    let name = "random_networks_with_random_faults_deliver_everything_once";
    let total = RefCell::new(Total::default());
    for_seeds(name, "ROCE_SIM_SEEDS", SEEDS, |seed| {
        let (mut network, mut flows, _story) = draw(seed);
        run(&mut network, &mut flows, 60 * SECOND);
        // Frames still under way have no effect any more.
        let later = network.now() + SECOND;
        network.run(later, |_| false);
        for node in &network.sim.hosts {
            assert_eq!(node.events, []);
        }
        for flow in &flows {
            let ask = |end: End| network.sim.hosts[end.node].stack.query_qp(end.qpn).unwrap();
            let (from, to) = (ask(flow.from), ask(flow.to));
            assert_eq!((from.state, to.state), (QpState::Rts, QpState::Rts));
            assert_eq!(from.sq_psn, to.rq_psn);
            flow.check_guards(&network);
        }
        assert_true(&network, &flows);
        assert_conserved(&network);
        total.borrow_mut().add(&network);
    });
    total.borrow().check();
}
