//! How flows spread over several ways, chosen by a hash of addresses and ports (ECMP).

use netsim::config::{Config, Route, Shape};
use netsim::flow::Message;
use netsim::port::{Owner, peer};
use netsim::shape::Plan;
use netsim::{NETWORKS, Network, Time, parse};
use roce::window::{AnyWindow, Fixed};

/// The class that asks for no marks, of priority 3.
const UNMARKABLE: u8 = 26 << 2;

/// Two leaves with so many hosts each, and eight ways between them, of which `routes` may say one for a host.
fn network(hosts: u32, routes: &[Route]) -> Network {
    let mut config: Config = parse(NETWORKS).unwrap().remove("leaf-spine").unwrap();
    config.shape = Shape::LeafSpine { leaves: 2, spines: 8, hosts };
    let mut network = Network::build(&Plan::new(&config), &config.switch, routes, 1).unwrap();
    for host in &mut network.hosts {
        host.stack.set_windows(|_, _| AnyWindow::Fixed(Fixed::new(256)));
    }
    network
}

/// Frames that the first leaf has sent on each of its ways up.
fn upward(network: &Network) -> Vec<u64> {
    let own = network.ports_of(0).iter().copied();
    own.filter(|port| matches!(network.owner(peer(*port)), Owner::Switch(_)))
        .map(|port| network.ports()[port as usize].tally.frames)
        .collect()
}

/// The route from the first leaf to a host through the first spine: no choice among ways.
const fn by_one_way(to: u32) -> Route {
    Route { switch: 0, to, via: 2 }
}

/// In how many of some draws of 64 flows a way has more than twice its share.
fn crowded(routes: &[Route], draws: u64) -> u32 {
    let mut network = network(1, routes);
    let mut crowded = 0;
    for draw in 1..=draws {
        let before = upward(&network);
        for _ in 0..64 {
            let message = Message { bytes: 4_096, start: network.now() };
            network.add_flow(0, 1, UNMARKABLE, vec![message]);
        }
        network.run(Time::from_micros(100 * draw));
        let flows: Vec<u64> = upward(&network).iter().zip(before).map(|(a, b)| a - b).collect();
        assert_eq!((flows.len(), flows.iter().sum::<u64>()), (8, 64));
        crowded += u32::from(flows.iter().any(|flows| *flows > 16));
    }
    crowded
}

#[test]
fn no_way_has_more_than_twice_its_share_of_64_flows_but_by_a_rare_chance() {
    let with = crowded(&[], 200);
    println!("{with} of 200 draws have a way with more than twice its share");
    assert!(with <= 10, "{with} of 200");
    assert_eq!(crowded(&[by_one_way(1)], 10), 10, "without a choice all are on one way");
}

/// How many of eight ways are idle where each of eight hosts has a flow, and what flows have in percent of a cable.
fn shares(routes: &[Route]) -> (usize, Vec<u64>) {
    let mut network = network(8, routes);
    for host in 0..8 {
        let messages = vec![Message { bytes: 1 << 20, start: Time(0) }; 64];
        network.add_flow(host, host + 8, UNMARKABLE, messages);
    }
    network.run(Time::from_micros(1_000));
    let idle = upward(&network).iter().filter(|frames| **frames == 0).count();
    let possible = 1_000 * 100_000 / 8;
    (idle, network.flows().iter().map(|flow| flow.delivered * 100 / possible).collect())
}

#[test]
fn flows_that_meet_on_a_way_share_it_while_others_are_idle() {
    let (idle, shares) = shares(&[]);
    let (slow, fast) = (
        shares.iter().filter(|it| **it < 55).count(),
        shares.iter().filter(|it| **it > 90).count(),
    );
    println!("{idle} of eight ways are idle; flows have {shares:?} % of a cable");
    assert!(idle >= 1 && slow >= 2 && fast >= 1, "{idle} idle, {shares:?}");
    let one_way: Vec<Route> = (8..16).map(by_one_way).collect();
    let (idle, shares) = self::shares(&one_way);
    println!("without a choice {idle} are idle; flows have {shares:?} %");
    assert!(idle == 7 && shares.iter().all(|share| *share <= 13), "{idle} idle, {shares:?}");
}
