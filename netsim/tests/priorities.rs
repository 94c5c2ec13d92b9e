//! Priorities: shares of a cable, and pauses that stop one of them alone.

use netsim::bars::Seen;
use netsim::config::{Config, Shape};
use netsim::{NETWORKS, Network, Time, parse};
use roce::qos::Ets;
use roce::window::{AnyWindow, Fixed};

fn config(name: &str) -> Config {
    parse(NETWORKS).unwrap().remove(name).unwrap()
}

fn network(config: &Config) -> Network {
    Network::new(config, 1, |_, _| AnyWindow::Fixed(Fixed::default())).unwrap()
}

/// The figures of a run of a network, and the bars that they are beyond.
fn run(config: &Config) -> (Seen, Vec<String>) {
    let mut network = network(config);
    let bars = config.bars.as_ref().unwrap();
    let seen = bars.run(&mut network, config.host.rate);
    assert_eq!(seen.dropped, 0);
    let broken = bars.broken_by(&seen);
    (seen, broken)
}

#[test]
fn priorities_have_the_shares_of_their_weights_and_without_them_the_highest_has_all() {
    let mut config = config("ets");
    let (seen, broken) = run(&config);
    assert_eq!(broken, [""; 0], "{seen}");
    (config.host.ets, config.trunk.ets) = (Ets::STRICT, Ets::STRICT);
    let (seen, _) = run(&config);
    assert!(seen.shares[4] >= 990, "{seen}");
}

#[test]
fn a_strict_priority_has_what_it_sends_and_the_others_have_their_shares_of_the_rest() {
    let mut config = config("ets-strict");
    let (seen, broken) = run(&config);
    assert_eq!(broken, [""; 0], "{seen}");
    // Behind all others it has nothing while they have something to send.
    let ets = Ets { strict: 0, ..config.host.ets };
    (config.host.ets, config.trunk.ets) = (ets, ets);
    let (seen, _) = run(&config);
    assert!(seen.shares[6] <= 10, "{seen}");
}

/// A host's own cable is full: packets wait in the transport, and none in a switch.
#[test]
fn a_host_shares_its_own_cable_by_weights_too() {
    let mut config = config("ets");
    config.shape = Shape::Dumbbell { pairs: 1 };
    config.trunk.rate *= 4;
    config.trunk.ets = Ets::STRICT;
    let shares = |config: &Config| {
        let mut network = network(config);
        network.run(Time::from_micros(5_000));
        assert_eq!(network.tally().pauses, 0);
        let sent = network.flows().iter().map(|flow| flow.sent);
        let all: u64 = sent.clone().sum();
        sent.map(|bytes| bytes * 1_000 / all).collect::<Vec<_>>()
    };
    // Of the priorities 0, 3 and 4.
    let seen = shares(&config);
    let near = |(share, weight): (&u64, u64)| share.abs_diff(weight) * 50 <= weight;
    assert!(seen.iter().zip([100, 600, 300]).all(near), "{seen:?}");
    config.host.ets = Ets::STRICT;
    let seen = shares(&config);
    assert!(seen[2] >= 990, "{seen:?}");
}

/// Two hosts' flows of one priority are paused, and theirs of another go on. If both are of one, both stand.
#[test]
fn pauses_of_one_priority_stop_no_other_of_the_same_host() {
    let mut config = config("victim-priority");
    let (apart, broken) = run(&config);
    assert_eq!(broken, [""; 0], "{apart}");
    config.traffic[1].class = config.traffic[0].class;
    let (together, _) = run(&config);
    assert!(together.pauses > 0 && together.goodput * 5 < apart.goodput, "{together}, {apart}");
}

#[test]
fn shares_that_are_none_are_refused_in_one_sentence() {
    let refused = |from: &str, to: &str| {
        let text = NETWORKS.replacen(from, to, 1);
        assert_ne!(text, NETWORKS, "{from}");
        parse(&text).unwrap_err().to_string()
    };
    let weights = "weights = { 0 = 10, 3 = 60, 4 = 30 }";
    let sum = "the network 'ets': ets: the weights are 90 in all, and have to be 100";
    assert_eq!(refused(weights, "weights = { 3 = 60, 4 = 30 }"), sum);
    let both = "the network 'ets': ets: priority 3 is strict, and has a weight; it can be or have one of them";
    assert_eq!(refused(weights, &format!("strict = [3], {weights}")), both);
    let none = "a priority of ets is 8, and has to be 0 to 7";
    assert!(refused(weights, "weights = { 8 = 100 }").contains(none));
    assert!(refused(weights, "strict = [8]").contains(none));
    let interval = "interval = \"100us\"";
    let long = "the network 'ets-strict': an interval in picoseconds is 2000000000000, and has to be 1 s at most";
    assert_eq!(refused(interval, "interval = \"2000ms\""), long);
}
