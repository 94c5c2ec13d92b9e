//! Hosts' reactions to congestion, and their effects. Each test also states the result if the hosts do nothing.

use netsim::config::{Config, Shape};
use netsim::frame::{Frame, mac_of};
use netsim::results::{WHOLE, jain, rate};
use netsim::{NETWORKS, Network, Time, parse};
use roce::opcode::code;
use roce::window::{AnyWindow, Fixed};
use roce::wire::{bth, ethernet, icrc, ipv6, udp};
use roce::{NotificationPoint, Qpn, param};
use trial::share::share;

const MILLISECOND: u64 = 1_000_000_000;

fn config(name: &str) -> Config {
    parse(NETWORKS).unwrap().remove(name).unwrap()
}

fn network(config: &Config, seed: u64) -> Network {
    Network::new(config, seed, |_, _| AnyWindow::Fixed(Fixed::default())).unwrap()
}

fn delivered(network: &Network) -> Vec<u64> {
    network.flows().iter().map(|flow| flow.delivered).collect()
}

/// Bytes of each flow from one time to another.
fn shares(network: &mut Network, from: Time, to: Time) -> Vec<u64> {
    network.run(from);
    let before = delivered(network);
    network.run(to);
    delivered(network).iter().zip(before).map(|(after, before)| after - before).collect()
}

/// DCQCN's parking lot at a rate that is a multiple of the 40 Gb/s of the paper, in halves; thresholds of marking are in
/// proportion.
fn parking_lot(halves: u64) -> Config {
    let mut config = config("parking-lot-dcqcn");
    let scaled = |value: u64| value * halves / 2;
    config.host.rate = scaled(config.host.rate);
    config.trunk.rate = scaled(config.trunk.rate);
    // It takes less of the machine's time than the description's.
    config.traffic[0].stagger = 2 * MILLISECOND;
    if let Some(red) = &mut config.switch.red {
        (red.kmin, red.kmax) = (scaled(red.kmin), scaled(red.kmax));
    }
    config
}

/// With DCQCN all eight flows have the same within 40 ms of the last start. With pauses alone the one beside the receiver
/// has as much as the seven behind a cable, for ever.
fn assert_fair(halves: u64) {
    let mut config = parking_lot(halves);
    let last_start = Time(config.traffic[0].stagger * 7);
    for seed in (1..=5).step_by(share()) {
        let mut network = network(&config, seed);
        let (from, to) = (last_start.after(30 * MILLISECOND), last_start.after(40 * MILLISECOND));
        let shares = shares(&mut network, from, to);
        let index = jain(shares.iter().copied());
        assert!(index >= WHOLE * 95 / 100, "seed {seed}: {index} {shares:?}");
        let used = rate(shares.iter().sum(), 10 * MILLISECOND);
        assert!(used > config.host.rate * 90 / 100, "seed {seed}: {used} of {}", config.host.rate);
        assert_eq!(network.tally().dropped, 0);
        let handled = |host: usize| network.hosts[host].stack.counters().rp_cnp_handled;
        assert!((0..8).all(|host| handled(host) > 0), "seed {seed}");
        assert!(network.tally().marked > 0);
    }
    (config.congestion, config.traffic[0].stagger) = (None, 0);
    for seed in (1..=5).step_by(share()) {
        let mut network = network(&config, seed);
        let shares = shares(&mut network, Time(MILLISECOND), Time(4 * MILLISECOND));
        let index = jain(shares.iter().copied());
        assert!(index <= WHOLE * 6 / 10, "seed {seed}: {index} {shares:?}");
        assert_eq!(network.tally().marked, 0, "nobody asks for marks");
    }
}

#[test]
fn dcqcn_shares_a_parking_lot_at_40_gigabits_and_pauses_alone_do_not() {
    assert_fair(2);
}

#[test]
fn dcqcn_shares_a_parking_lot_at_100_gigabits_and_pauses_alone_do_not() {
    assert_fair(5);
}

/// Many send to one: with DCQCN switches pause hosts while the first notifications are under way, and not for ever.
#[test]
fn dcqcn_has_an_incast_pause_a_tenth_as_often() {
    let pauses = |reacts: bool| {
        let mut config = config("incast-dcqcn");
        config.congestion = config.congestion.filter(|_| reacts);
        let mut network = network(&config, 1);
        let shares = shares(&mut network, Time(0), Time(12 * MILLISECOND));
        assert_eq!(network.tally().dropped, 0);
        assert!(rate(shares.iter().sum(), 12 * MILLISECOND) > config.host.rate * 95 / 100);
        network.tally().pauses
    };
    let (with, without) = (pauses(true), pauses(false));
    assert!(with * 10 <= without, "{with}, {without}");
}

/// A flow that meets no full cable shares one with flows to a host that many send to. Pauses stop it with them, and
/// leave it a tenth of its cable, unless the others' senders react to marks.
#[test]
fn dcqcn_has_a_victim_go_on_that_pauses_alone_stop() {
    let victim = |reacts: bool| {
        let mut config = config("victim-dcqcn");
        config.congestion = config.congestion.filter(|_| reacts);
        let mut network = network(&config, 1);
        let shares = shares(&mut network, Time(10 * MILLISECOND), Time(20 * MILLISECOND));
        let tally = network.tally();
        assert_eq!((tally.dropped, tally.pauses > 0), (0, !reacts), "{tally:?}");
        rate(shares[10], 10 * MILLISECOND)
    };
    // What its cable carries beside headers.
    let line = 100_000_000_000_u64 * 4_096 / 4_214;
    let (with, without) = (victim(true), victim(false));
    assert!(with > line * 9 / 10, "{with} of {line}");
    assert!(without < line / 2, "{without} of {line}");
}

/// A second algorithm, by round trips alone: no packet is marked, and no host is notified or paused.
#[test]
fn swift_shares_a_parking_lot_without_marks_or_pauses() {
    let mut config = config("parking-lot-swift");
    config.traffic[0].stagger = 2 * MILLISECOND;
    let mut network = network(&config, 1);
    let shares = shares(&mut network, Time(44 * MILLISECOND), Time(54 * MILLISECOND));
    let index = jain(shares.iter().copied());
    assert!(index >= WHOLE * 95 / 100, "{index} {shares:?}");
    let used = rate(shares.iter().sum(), 10 * MILLISECOND);
    assert!(used > config.host.rate * 95 / 100, "{used} of {}", config.host.rate);
    let tally = network.tally();
    assert_eq!((tally.dropped, tally.pauses, tally.marked), (0, 0, 0));
}

/// Cables that lose and overtake, switches that drop: everything arrives all the same.
#[test]
fn whatever_hosts_do_about_congestion_everything_arrives_once() {
    for name in ["parking-lot-dcqcn", "parking-lot-mlx5", "parking-lot-swift"] {
        for seed in 1..=3 {
            let mut config = config(name);
            config.shape = Shape::Incast { senders: 4 };
            config.switch.pfc.clear();
            config.switch.buffer = 1 << 20;
            config.host.faults.loss = 20;
            config.host.faults.reordering = 20;
            config.host.faults.reorder_delay = 20_000_000;
            let traffic = &mut config.traffic[0];
            (traffic.bytes, traffic.messages, traffic.stagger) = (100_001, 20, 0);
            let mut network = network(&config, seed);
            network.run(Time(2_000 * MILLISECOND));
            for flow in network.flows() {
                assert!(!flow.failed, "{name} {seed}");
                assert_eq!((flow.ends.len(), flow.delivered), (20, 2_000_020), "{name} {seed}");
            }
            assert_eq!(network.under_way(), 0, "{name} {seed}");
        }
    }
}

/// A notification to a queue pair of host `to` as if host `from` had sent it.
fn forged(from: u32, to: u32, dest_qpn: Qpn) -> Frame {
    let transport = bth::Repr {
        opcode: code::CNP,
        becn: true,
        pkey: param::DEFAULT_PKEY,
        dest_qpn: dest_qpn.value(),
        ..bth::Repr::default()
    };
    let payload = [&transport.to_bytes()[..], &[0; 16 + icrc::LENGTH]].concat();
    let (source_port, destination_port) = (0xc000, param::ROCE_UDP_PORT);
    let length = payload.len() as u16;
    let udp = udp::Repr { source_port, destination_port, payload_length: length };
    let ip = ipv6::Repr {
        traffic_class: 48 << 2,
        flow_label: 0,
        next_header: ipv6::NEXT_HEADER_UDP,
        hop_limit: 64,
        source: mac_of(from).link_local(),
        destination: mac_of(to).link_local(),
        payload_length: length + udp::LENGTH as u16,
    };
    let ethernet = ethernet::Repr {
        destination: mac_of(to),
        source: mac_of(from),
        tag: None,
        ethertype: ethernet::EtherType::IPV6,
    };
    let mut bytes = [&ethernet.to_bytes()[..], &ip.to_bytes(), &udp.to_bytes(), &payload].concat();
    icrc::append(&mut bytes).unwrap();
    Frame::new(&bytes, bytes.len())
}

/// The rate of a flow at 40 Gb/s under 100,000 forged notifications a second, in bits per second, and the numbers of
/// these that were heeded and ignored. `min_rate` and `between` are the sender's, in Mb/s and µs; 0 for the default.
fn under_attack(min_rate: u32, between: u32) -> (u64, u64, u64) {
    let mut config = config("parking-lot-dcqcn");
    config.shape = Shape::Dumbbell { pairs: 1 };
    config.switch.red = None;
    if let Some(congestion) = &mut config.congestion {
        congestion.min_rate = min_rate;
    }
    let mut network = network(&config, 1);
    if between != 0 {
        let point = NotificationPoint { min_time_between_cnps: between, ..Default::default() };
        network.hosts[0].stack.set_notification_point(point).unwrap();
    }
    let qpn = network.flows()[0].qpns[0];
    for n in 0..2_000 {
        network.inject(0, Time::from_micros(1_000 + 10 * n), forged(1, 0, qpn));
    }
    let [share] = shares(&mut network, Time(11 * MILLISECOND), Time(21 * MILLISECOND))[..] else {
        panic!("one flow");
    };
    let counters = network.hosts[0].stack.counters();
    (rate(share, 10 * MILLISECOND), counters.rp_cnp_handled, counters.rp_cnp_ignored)
}

#[test]
fn forged_notifications_leave_the_smallest_rate_and_those_beyond_a_peers_rate_are_ignored() {
    // A hundredth of the line, less headers.
    let floor = 400_000_000 * 95 / 100;
    let (attained, handled, ignored) = under_attack(0, 0);
    println!("{attained} bit/s, {handled} notifications heeded, {ignored} ignored");
    assert!((floor..10 * floor).contains(&attained), "{attained}");
    assert_eq!(handled + ignored, 2_000);
    assert!((400..=403).contains(&handled), "one in 50 µs: {handled}");
    // Without the one, and without the other.
    let (attained, ..) = under_attack(1, 0);
    println!("with a smallest rate of 1 Mb/s: {attained} bit/s");
    assert!(attained < floor / 10, "{attained}");
    let (_, handled, ignored) = under_attack(0, 1);
    println!("with a peer's rate of one in a microsecond: {handled} heeded, {ignored} ignored");
    assert_eq!((handled, ignored), (2_000, 0));
}

#[test]
fn of_strangers_and_of_numbers_that_nobody_has_no_notification_counts() {
    let mut config = config("parking-lot-dcqcn");
    config.shape = Shape::Dumbbell { pairs: 2 };
    config.traffic[0].stagger = 0;
    let mut network = network(&config, 1);
    let qpn = network.flows()[0].qpns[0];
    for n in 0..100 {
        let at = Time::from_micros(1_000 + 10 * n);
        network.inject(0, at, forged(3, 0, qpn));
        network.inject(0, at, forged(2, 0, Qpn::new(0x1234).unwrap()));
        // Host 2 receives only: it has sent nothing that could be marked.
        network.inject(2, at, forged(0, 2, qpn));
    }
    network.run(Time(2 * MILLISECOND));
    let counters = *network.hosts[0].stack.counters();
    assert_eq!((counters.drop_wrong_source, counters.drop_unknown_qp), (100, 100));
    assert_eq!(network.hosts[2].stack.counters().rp_cnp_handled, 0);
    assert_eq!(network.hosts[2].stack.counters().rp_cnp_ignored, 100);
}

#[test]
fn a_parameter_out_of_range_is_refused_in_one_sentence() {
    let refused = |from: &str, to: &str| {
        let text = NETWORKS.replacen(from, to, 1);
        assert_ne!(text, NETWORKS);
        let config = match parse(&text) {
            Err(error) => return error.to_string(),
            Ok(mut networks) => networks.remove("parking-lot-dcqcn").unwrap(),
        };
        let network: Result<Network, _> =
            Network::new(&config, 1, |_, _| AnyWindow::Fixed(Fixed::default()));
        network.unwrap_err().to_string()
    };
    let from = "min_time_between_cnps = 50";
    let text = "congestion: min_time_between_cnps is 131072; it can be 0 to 131071";
    assert_eq!(refused(from, "min_time_between_cnps = 131072"), text);
    let text = "congestion: min_rate is 131072; it can be 0 to 131071";
    assert_eq!(refused(from, "min_rate = 131072"), text);
    assert!(refused("dcqcn-paper", "reno").contains("reno"));
}
