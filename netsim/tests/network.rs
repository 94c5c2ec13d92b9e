//! Whole networks: all frames are accounted for, and switches do their work.

use std::collections::BTreeSet;

use netsim::config::{Bars, Config, Faults, Pattern, Shape, parse_end};
use netsim::flow::Message;
use netsim::frame::Frame;
use netsim::host::Pace;
use netsim::port::Owner;
use netsim::results::{Results, WHOLE, jain};
use netsim::shape::Plan;
use netsim::{Error, NETWORKS, Network, Time, parse};
use roce::qos::Watchdog;
use roce::window::{AnyWindow, Fixed};
use trial::rng::Rng;

/// The class that asks for no marks, of priority 3.
const UNMARKABLE: u8 = 26 << 2;

fn config(name: &str) -> Config {
    parse(NETWORKS).unwrap().remove(name).unwrap()
}

/// A network whose queue pairs have a window of so many packets.
fn network(config: &Config, seed: u64, packets: u64) -> Network {
    Network::new(config, seed, move |_, _| AnyWindow::Fixed(Fixed::new(packets))).unwrap()
}

/// Every frame was delivered, dropped and counted, or is under way.
fn assert_conserved(network: &Network) {
    let tally = network.tally();
    let ended = tally.delivered + tally.dropped + tally.unroutable + tally.cables.lost;
    let came = tally.sent + tally.flooded + tally.cables.duplicated;
    assert_eq!(came, ended + network.under_way(), "{tally:?}");
    let waiting: u64 = network
        .ports()
        .iter()
        .zip(0..)
        .filter(|(_, number)| matches!(network.owner(*number), Owner::Switch(_)))
        .map(|(port, _)| port.waiting_bytes())
        .sum();
    assert_eq!(network.buffered(), waiting, "what buffers hold is what waits");
}

/// Bytes that arrived, by flow.
fn delivered(network: &Network) -> Vec<u64> {
    network.flows().iter().map(|flow| flow.delivered).collect()
}

#[test]
fn frames_are_conserved_and_the_same_seed_gives_the_same_digest() {
    for name in ["dumbbell", "parking-lot", "incast", "leaf-spine", "ring"] {
        for lossless in [true, false] {
            let mut config = config(name);
            if !lossless {
                config.switch.pfc.clear();
                config.switch.buffer = 4 << 20;
            }
            let run = |seed| {
                let mut network = network(&config, seed, 64);
                for step in 1..=4 {
                    network.run(Time::from_micros(50 * step));
                    assert_conserved(&network);
                }
                (network.digest(), network.tally(), delivered(&network))
            };
            let (digest, tally, bytes) = run(7);
            assert_eq!((digest, tally, bytes.clone()), run(7), "{name}");
            assert!(bytes.iter().sum::<u64>() > 0, "{name}");
            assert_eq!(tally.unroutable, 0, "{name}");
            if lossless {
                assert_eq!(tally.dropped, 0, "{name}");
            } else {
                assert_eq!(tally.pauses, 0, "{name}");
            }
        }
    }
    let of_seed = |seed| {
        let mut network = network(&config("leaf-spine"), seed, 64);
        network.run(Time::from_micros(50));
        network.digest()
    };
    assert_ne!(of_seed(1), of_seed(2), "the permutation is the seed's");
}

#[test]
fn all_messages_of_a_finite_run_are_complete_and_nothing_stays() {
    let mut config = config("leaf-spine");
    config.traffic[0].messages = 3;
    config.traffic[0].bytes = 100_001;
    let mut network = network(&config, 3, 64);
    network.run(Time::from_micros(5_000));
    assert_conserved(&network);
    assert_eq!((network.under_way(), network.buffered()), (0, 0));
    for flow in network.flows() {
        assert_eq!((flow.ends.len(), flow.delivered, flow.failed), (3, 300_003, false));
        assert!(flow.ends.windows(2).all(|pair| pair[0] <= pair[1]));
    }
    let csv = Results::messages_csv(network.flows());
    assert_eq!(csv.lines().count(), 1 + 3 * 64);
}

#[test]
fn over_bad_cables_every_message_arrives_once_whatever_the_hosts_pace() {
    let faults = Faults {
        loss: 20,
        duplication: 20,
        reordering: 20,
        corruption: 20,
        marking: 20,
        jitter: 1_000_000,
        ..Faults::NONE
    };
    for pace in [Pace::EACH, Pace { sleep: 300_000, burst: 64 }] {
        let mut config = config("leaf-spine");
        (config.host.faults, config.trunk.faults) = (faults, faults);
        (config.traffic[0].messages, config.traffic[0].bytes) = (3, 100_001);
        let run = || {
            let mut network = network(&config, 3, 64);
            network.hosts.iter_mut().for_each(|host| host.pace = pace);
            for step in 1..=10 {
                network.run(Time::from_micros(50_000 * step));
                assert_conserved(&network);
            }
            network
        };
        let (one, other) = (run(), run());
        assert_eq!((one.digest(), one.tally()), (other.digest(), other.tally()));
        assert_eq!((one.under_way(), one.buffered()), (0, 0));
        for flow in one.flows() {
            assert_eq!((flow.ends.len(), flow.delivered, flow.failed), (3, 300_003, false));
        }
        let tally = one.tally();
        let cables = tally.cables;
        // There is nothing of the payload that could be another.
        assert_eq!(cables.corrupted, 0);
        let counts = [cables.lost, cables.duplicated, cables.reordered, cables.marked];
        assert!(counts.iter().all(|count| *count > 10), "{tally:?}");
    }
}

#[test]
fn a_message_alone_takes_what_its_frames_and_the_cables_take() {
    let mut config = config("dumbbell");
    config.traffic[0].messages = 1;
    config.traffic[0].bytes = 4096;
    config.shape = Shape::Dumbbell { pairs: 1 };
    let mut network = network(&config, 1, 64);
    network.run(Time::from_micros(100));
    // Data: 14 + 40 + 8 + 12 + 16 + 4096 + 4 bytes, and 24 for check sequence, preamble and gap; its
    // acknowledgement has 4 in place of 4112. Each crosses three cables of 1 µs, a byte in 80 ps.
    let (data, acknowledgement) = (4_190 + 24, 82 + 24);
    let expected = 3 * 80 * (data + acknowledgement) + 6_000_000;
    assert_eq!(network.flows()[0].ends, [Time(expected)]);
}

#[test]
fn a_flow_has_queue_pairs_from_its_first_message_until_all_are_complete() {
    let mut config = config("dumbbell");
    (config.traffic[0].messages, config.traffic[0].bytes) = (1, 1);
    let mut network = network(&config, 1, 64);
    let messages = [50, 90].map(|start| Message { bytes: 4096, start: Time::from_micros(start) });
    let flow = network.add_flow(0, 4, UNMARKABLE, messages.into()) as usize;
    let qpns = network.flows()[flow].qpns;
    let stand = |network: &Network| {
        let ends = [(0, qpns[0]), (4, qpns[1])];
        ends.map(|(host, qpn): (usize, _)| network.hosts[host].stack.query_qp(qpn).is_some())
    };
    for (micros, expected) in [(49, false), (51, true), (89, true), (200, false)] {
        network.run(Time::from_micros(micros));
        assert_eq!(stand(&network), [expected; 2], "after {micros} µs");
    }
    assert_eq!(network.flows()[flow].ends.len(), 2);
    assert_eq!(network.flows()[flow].delivered, 2 * 4096);
}

#[test]
fn from_all_to_all_no_host_receives_from_two_in_a_step() {
    let mut config = config("leaf-spine");
    config.traffic[0].pattern = Pattern::AllToAll;
    let plan = Plan::new(&config);
    let pairs = plan.pairs(config.shape, &Pattern::AllToAll, &mut Rng::new(1));
    let hosts = plan.hosts as usize;
    assert_eq!(pairs.len(), hosts * (hosts - 1));
    let all: BTreeSet<_> = pairs.iter().copied().collect();
    assert_eq!(all.len(), pairs.len());
    for step in pairs.chunks(hosts) {
        let (from, to): (BTreeSet<_>, BTreeSet<_>) = step.iter().copied().unzip();
        assert_eq!((from.len(), to.len()), (hosts, hosts));
    }
}

#[test]
fn a_message_starts_when_its_time_has_come() {
    let mut config = config("dumbbell");
    (config.traffic[0].messages, config.traffic[0].bytes) = (1, 1);
    let mut network = network(&config, 1, 64);
    let starts = [5, 50, 90].map(Time::from_micros);
    let messages = starts.map(|start| Message { bytes: 4096, start });
    let flow = network.add_flow(0, 4, UNMARKABLE, messages.into()) as usize;
    network.run(Time::from_micros(200));
    let ends = &network.flows()[flow].ends;
    let took: Vec<u64> = ends.iter().zip(starts).map(|(end, start)| end.0 - start.0).collect();
    // Nothing else is on the way then.
    assert_eq!(took, [took[0]; 3]);
    assert!((7_000_000..7_200_000).contains(&took[0]), "{took:?}");
}

#[test]
fn goodput_is_a_share_of_the_cables_of_all_hosts_that_receive() {
    for (name, receivers) in [("parking-lot", 1), ("dumbbell", 4), ("leaf-spine", 64)] {
        let config = config(name);
        let mut network = network(&config, 1, 64);
        let seen = Bars::none(100_000_000).run(&mut network, config.host.rate);
        assert!((1..1_000).contains(&seen.used), "{name}: {seen}");
        assert_eq!(seen.used, seen.goodput * 1_000 / (receivers * config.host.rate), "{name}");
    }
}

#[test]
fn what_was_seen_is_written_as_tables_and_charts() {
    let mut network = network(&config("parking-lot"), 1, 64);
    network.look_each(10_000_000);
    network.run(Time::from_micros(100));
    let (results, flows) = (network.results(), network.flows());
    // Eleven looks at two ports and eight flows; rates of flows lie between two looks.
    assert_eq!(results.queues_csv().lines().count(), 1 + 11 * 2);
    assert_eq!(results.flows_csv().lines().count(), 1 + 10 * 8);
    assert_eq!(results.fairness_csv(flows).lines().count(), 1 + 10);
    let of_flows = [results.flows_svg(flows), results.rates_svg(flows)];
    assert_ne!(of_flows[0], of_flows[1], "what left is not what arrived");
    let charts = [results.queues_svg(), results.fairness_svg(flows)];
    let lines = [charts, of_flows].map(|two| two.map(|svg| svg.matches("<polyline").count()));
    assert_eq!(lines, [[2, 1], [8, 8]]);
    assert_eq!(Results::messages_svg(flows).matches("<polyline").count(), 1);
    let mut several = self::network(&config("ets-strict"), 1, 64);
    several.look_each(10_000_000);
    several.run(Time::from_micros(50));
    let chart = several.results().priorities_svg(several.flows());
    let lines = [0, 3, 4, 6].map(|it| chart.contains(&format!(">priority {it}</text>")));
    assert_eq!((lines, chart.matches("<polyline").count()), ([true; 4], 4));
}

#[test]
fn incast_loses_nothing_with_pauses_and_much_without() {
    let mut config = config("incast");
    config.switch.red = None;
    let mut with = network(&config, 5, 512);
    with.run(Time::from_micros(1_500));
    assert_conserved(&with);
    let tally = with.tally();
    assert_eq!(tally.dropped, 0);
    assert!(tally.pauses > 64, "{tally:?}");
    config.switch.pfc.clear();
    let mut without = network(&config, 5, 512);
    without.run(Time::from_micros(1_500));
    assert_conserved(&without);
    assert!(without.tally().dropped > 1_000, "{:?}", without.tally());
}

#[test]
fn a_pause_holds_one_priority_of_a_cable_up_and_another_goes_on() {
    let mut config = config("dumbbell");
    config.switch.red = None;
    config.shape = Shape::Dumbbell { pairs: 8 };
    (config.traffic[0].messages, config.traffic[0].bytes) = (1, 1);
    let mut network = network(&config, 5, 1024);
    let messages = || vec![Message { bytes: 1 << 20, start: Time(0) }; 64];
    // Seven hosts on the far switch and one on the near write to one, which has the cable between switches paused.
    for from in [0, 1, 2, 3, 4, 5, 6, 9] {
        network.add_flow(from, 8, UNMARKABLE, messages());
    }
    let other = network.add_flow(7, 15, 0, messages());
    network.run(Time::from_micros(2_000));
    assert_conserved(&network);
    assert_eq!(network.tally().dropped, 0);
    let trunk = network.results().watched[0] as usize;
    let [trunk, back] = [trunk, trunk ^ 1].map(|port| network.ports()[port].tally);
    assert!(back.pauses > 2, "{back:?}");
    let possible = 2_000 * 100_000 / 8;
    let held_up: u64 = delivered(&network)[8..15].iter().sum();
    let shares = (held_up, network.flows()[other as usize].delivered);
    assert!(shares.0 < possible * 6 / 10 && shares.1 > possible * 3 / 10, "{shares:?}");
    assert!(trunk.bytes > possible * 95 / 100, "{trunk:?}");
}

#[test]
fn symmetric_flows_share_a_dumbbell_fairly() {
    for seed in 1..=5 {
        let mut network = network(&config("dumbbell"), seed, 128);
        network.look_each(100_000_000);
        network.run(Time::from_micros(1_000));
        let shares = delivered(&network);
        assert!(jain(shares.iter().copied()) >= WHOLE * 99 / 100, "{shares:?}");
        let sum: u64 = shares.iter().sum();
        // A millisecond at 100 Gb/s, less headers and the way there.
        assert!((11_500_000..12_500_000).contains(&sum), "{sum}");
        let fairness = network.results().fairness(network.flows());
        assert_eq!(fairness.len(), 10);
    }
}

#[test]
fn a_parking_lot_with_pauses_alone_is_unfair() {
    let mut config = config("parking-lot");
    config.traffic[0].class = UNMARKABLE;
    let mut network = network(&config, 1, 1024);
    network.run(Time::from_micros(3_000));
    assert_eq!(network.tally().dropped, 0);
    let index = jain(delivered(&network));
    assert!(index <= WHOLE * 6 / 10, "{index} {:?}", delivered(&network));
}

#[test]
fn packets_are_marked_above_the_threshold_only_and_their_senders_are_notified() {
    let mut config = config("dumbbell");
    // A window too small for a queue of 400 KiB.
    let mut short = network(&config, 1, 16);
    short.run(Time::from_micros(500));
    assert_eq!(short.tally().marked, 0);
    let mut long = network(&config, 1, 256);
    long.run(Time::from_micros(500));
    let tally = long.tally();
    assert!(tally.marked > 10 && tally.marked < tally.delivered, "{tally:?}");
    let cnps = |number: usize| long.hosts[number].stack.counters().np_cnp_sent;
    assert!((4..8).map(cnps).sum::<u64>() > 0);
    config.traffic[0].class = UNMARKABLE;
    let mut unmarkable = network(&config, 1, 256);
    unmarkable.run(Time::from_micros(500));
    assert_eq!(unmarkable.tally().marked, 0);
}

#[test]
fn a_full_ring_stands_still_and_a_leaf_spine_does_not() {
    let mut config = config("ring");
    let mut ring = network(&config, 1, 1024);
    ring.run(Time::from_micros(3_000));
    let before = delivered(&ring);
    ring.run(Time::from_micros(6_000));
    assert_conserved(&ring);
    assert_eq!(before, delivered(&ring), "each cable waits for the next one");
    config = self::config("leaf-spine");
    config.switch.buffer = 4 << 20;
    let mut tree = network(&config, 1, 1024);
    tree.run(Time::from_micros(1_000));
    let before = delivered(&tree);
    tree.run(Time::from_micros(2_000));
    assert!(before.iter().zip(delivered(&tree)).all(|(before, after)| *before < after));
}

/// The bytes that all flows deliver from one time to another, in microseconds.
fn delivered_between(network: &mut Network, from: u64, to: u64) -> u64 {
    network.run(Time::from_micros(from));
    let before: u64 = delivered(network).iter().sum();
    network.run(Time::from_micros(to));
    assert_conserved(network);
    delivered(network).iter().sum::<u64>() - before
}

/// Marks come too late to keep the ring from standing still at first, but keep it from doing so again.
#[test]
fn a_watchdog_has_a_ring_go_on_where_its_hosts_react_to_marks() {
    let mut config = config("ring-watchdog");
    let mut with = network(&config, 1, 1024);
    // Each cable is the way of two flows. Until now some of them waited for their transport's timers.
    let possible = 2 * 10_000 * 100_000 / 8;
    let delivered = delivered_between(&mut with, 150_000, 160_000);
    let tally = with.tally();
    assert!(delivered > possible * 8 / 10, "{delivered} of {possible}, {tally:?}");
    assert!(tally.still >= 4 && tally.dropped != 0, "{tally:?}");
    // Without marks it is full again at once.
    let reaction = config.congestion.take();
    let mut alone = network(&config, 1, 1024);
    let delivered = delivered_between(&mut alone, 2_000, 44_000);
    assert!(delivered < possible / 1_000, "{delivered}");
    assert!(alone.tally().still >= 4, "{:?}", alone.tally());
    (config.congestion, config.switch.watchdog) = (reaction, None);
    let mut without = network(&config, 1, 1024);
    assert_eq!(delivered_between(&mut without, 2_000, 160_000), 0);
}

#[test]
fn a_watchdog_finds_nothing_where_no_pauses_wait_for_each_other() {
    let mut config = config("leaf-spine");
    config.switch.buffer = 4 << 20;
    config.switch.watchdog = Some(Watchdog { detect: 200_000_000, recover: 200_000_000 });
    let mut network = network(&config, 1, 1024);
    network.run(Time::from_micros(2_000));
    assert_conserved(&network);
    let tally = network.tally();
    assert!(tally.pauses > 0, "{tally:?}");
    assert_eq!((tally.still, tally.dropped), (0, 0));
}

#[test]
fn a_fat_tree_of_1024_hosts_runs_in_bounded_memory() {
    let mut network = network(&config("fat-tree"), 1, 64);
    assert_eq!((network.hosts.len(), network.ports().len()), (1_024, 2 * 3 * 1_024));
    network.run(Time::from_micros(20));
    assert_conserved(&network);
    assert_eq!(network.tally().dropped, 0);
    assert!(delivered(&network).iter().all(|bytes| *bytes > 0));
    let bytes = network.most_under_way() * size_of::<Frame>();
    assert!(bytes < 64 << 20, "{bytes} bytes of frames");
}

#[test]
fn a_description_that_makes_no_network_is_refused_in_one_sentence() {
    let before = parse(NETWORKS).unwrap();
    // The others need not be laid out: some have a thousand hosts.
    let changed = |(name, config): &(&String, &Config)| {
        format!("{config:?}") != format!("{:?}", before[*name])
    };
    let refused = |from: &str, to: &str| {
        let text = NETWORKS.replacen(from, to, 1);
        assert_ne!(text, NETWORKS, "{from}");
        let error = match parse(&text) {
            Err(error) => error,
            Ok(networks) => networks
                .iter()
                .filter(changed)
                .find_map(|(_, config)| {
                    Network::new(config, 1, |_, _| AnyWindow::Fixed(Fixed::new(1))).err()
                })
                .unwrap_or_else(|| panic!("{to} is accepted")),
        };
        error.to_string()
    };
    let rate = "the network 'dumbbell': a rate is 0, and has to be 1k to 10000G";
    assert_eq!(refused("rate = \"100G\"", "rate = \"0G\""), rate);
    assert!(refused("rate = \"100G\"", "rate = \"fast\"").contains("'fast' is no number"));
    let bar = refused("goodput.least = \"90G\"", "goodput.least = \"90%\"");
    assert!(bar.contains("'90%' is no number"), "{bar}");
    let often = "delay = \"1us\", faults = { loss = 10001 }";
    assert!(refused("delay = \"1us\"", often).contains("a fault is 10001"));
    let long = "delay = \"1us\", faults = { jitter = \"2000ms\" }";
    assert!(refused("delay = \"1us\"", long).contains("a fault's delay"));
    let dog = "pfc = [3], watchdog = { detect = \"2s\", recover = \"2ms\" }";
    assert!(refused("pfc = [3]", dog).contains("'2s' is no number"));
    let dog = "pfc = [3], watchdog = { detect = \"2ms\", recover = \"0ms\" }";
    assert!(refused("pfc = [3]", dog).contains("a watchdog's time in picoseconds is 0"));
    assert!(refused("pfc = [3]", "pfc = [8]").contains("a priority is 8"));
    let share = refused("shares = { 0 =", "shares = { 8 =");
    assert!(share.ends_with("the priority of a bar's share is 8, and has to be 0 to 7"), "{share}");
    let reserve = refused("reserve = \"4k\"", "reserve = \"2G\"");
    assert!(reserve.ends_with("a reserve is 2147483648, and has to be 1G at most"), "{reserve}");
    assert!(refused("\"32M\"", "\"32k\"").contains("too small"));
    assert!(refused("kmin = \"400k\"", "kmin = \"2M\"").contains("kmin"));
    assert!(
        refused("switch = 0, to = 2, via = 1", "switch = 0, to = 2, via = 2")
            .contains("no such cable")
    );
    assert!(refused("ports = 16", "ports = 15").contains("even"));
    assert!(refused("pairs = 4", "pears = 4").contains("pears"));
    let many = "bytes = \"256k\", messages = 1048576";
    assert!(refused("bytes = \"256k\", messages = 1000", many).contains("number of messages"));
    let mut large = config("fat-tree");
    large.shape = Shape::FatTree { ports: 32 };
    large.traffic[0].pattern = Pattern::AllToAll;
    let large = Network::new(&large, 1, |_, _| AnyWindow::Fixed(Fixed::new(1)));
    assert!(large.unwrap_err().to_string().contains("number of flows is 67108864"));
    let error = refused("[2, 11]", "[2, 20]");
    assert_eq!(
        error,
        "the pair of host 2 and host 20: there are hosts 0 to 19, and two make a pair"
    );
    assert!(refused("[2, 11]", "[2, 2]").contains("two make a pair"));
    assert!(refused("flows = [10]", "flows = [11]").contains("a bar's flow is 11"));
    let back = "{ switch = 1, to = 2, via = 0 },\n    { switch = 0, to = 2, via = 1 }";
    assert!(refused("{ switch = 0, to = 2, via = 1 }", back).contains("have a loop"));
    assert!(matches!(parse("x = 1"), Err(Error::Text(_))));
    assert_eq!(parse_end("10ms"), Ok(10_000_000_000));
    for wrong in ["0ms", "100001ms"] {
        assert!(parse_end(wrong).unwrap_err().contains("100000ms at most"), "{wrong}");
    }
}
