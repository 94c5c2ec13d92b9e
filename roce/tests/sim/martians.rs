//! Martian sources: packets from outside with an address that no other host can have are dropped.

use core::net::{Ipv4Addr, Ipv6Addr};

use netsim::config::Faults;
use roce::opcode::code;
use roce::wire::{icrc, ipv4, ipv6};
use roce::{Address, Gid, GidTable, Instant, Operation, SendRequest};

use crate::connection::{End, Options};
use crate::datagrams::{AH, address, datagram_qp, post, request, vector};
use crate::memory::Local;
use crate::multicast::altered;
use crate::network::Network;

const MILLISECOND: u64 = 1_000_000;
/// Where fields lie in a frame of IPv4, and the source in one of IPv6.
const PROTOCOL: usize = 23;
const V4_SOURCE: usize = 26;
const OPCODE: usize = 42;
const LAST_OF_PSN: usize = 53;
const V6_SOURCE: usize = 22;
const NEXT_HEADER: usize = 20;

fn run(network: &mut Network) {
    network.wake(0);
    let deadline = network.now() + MILLISECOND;
    network.run(deadline, |_| false);
}

fn dropped(network: &Network) -> u64 {
    network.sim.hosts[0].stack.counters().drop_martian_source
}

/// Posts a SEND from one queue pair of node 0 to another, and says how many messages then came.
fn send(network: &mut Network, from: End, to: End) -> u64 {
    let now = Instant(network.now());
    let node = &mut network.sim.hosts[0];
    node.memory.post_receive(to.qpn, 100);
    let request = SendRequest {
        operation: Operation::Send,
        length: 9,
        remote_va: 0,
        rkey: 0,
        imm: 0,
        solicited: false,
        fence: false,
    };
    let number = node.stack.post_send(now, from.qpn, request).unwrap();
    node.memory.messages.insert((from.qpn.value(), number), Local::Pattern(number));
    run(network);
    network.sim.hosts[0].stack.counters().rdma_recvs
}

/// RC-105.
#[test]
fn a_connection_to_itself_hears_nobody_who_says_to_be_this_port() {
    let mut network = Network::new(1, 1, Faults::NONE);
    let options = Options { psns: Some((7, 70)), ..Options::default() };
    let (from, to) = network.connect(0, 0, &options);
    network.record();
    assert_eq!(send(&mut network, from, to), 1);
    let frames = network.sim.hosts[0].memory.capture.take().unwrap();
    let mut sent = frames.into_iter();
    let sent = sent.find(|frame| frame[OPCODE] == code::SEND_ONLY).unwrap();
    // The next one, right in all but that it comes from outside.
    network.sim.hosts[0].memory.post_receive(to.qpn, 100);
    let next = altered(&sent, |frame| frame[LAST_OF_PSN] += 1);
    let now = network.now();
    network.inject(0, now, &next);
    run(&mut network);
    assert_eq!(network.sim.hosts[0].stack.counters().rdma_recvs, 1);
    assert_eq!(dropped(&network), 1);
    assert_eq!(send(&mut network, from, to), 2);
}

/// A node with a queue pair of datagrams that sends to itself, and the frame of such a datagram.
fn to_itself(is_ipv4: bool) -> (Network, End, Vec<u8>) {
    let mut network = Network::new(1, 1, Faults::NONE);
    let own = datagram_qp(&mut network, 0, 0x11);
    let gid = network.gid(0, is_ipv4);
    address(&mut network, 0, AH, &vector(gid, is_ipv4));
    network.record();
    network.sim.hosts[0].memory.post_receive(own.qpn, 100);
    post(&mut network, own, request(own.qpn, 8));
    run(&mut network);
    assert_eq!(network.sim.hosts[0].stack.counters().rdma_recvs, 1);
    let at = if is_ipv4 { PROTOCOL } else { NEXT_HEADER };
    let protocol = if is_ipv4 { ipv4::PROTOCOL_UDP } else { ipv6::NEXT_HEADER_UDP };
    let frames = network.sim.hosts[0].memory.capture.take().unwrap();
    let frame = frames.into_iter().rfind(|frame| frame[at] == protocol).unwrap();
    (network, own, frame)
}

/// Whether a frame from outside fills a receive; else it is counted as a martian.
fn is_taken(network: &mut Network, own: End, frame: Vec<u8>) -> bool {
    let (received, martians) = (network.sim.hosts[0].stack.counters().rdma_recvs, dropped(network));
    network.sim.hosts[0].memory.post_receive(own.qpn, 100);
    let now = network.now();
    network.inject(0, now, &frame);
    run(network);
    let taken = network.sim.hosts[0].stack.counters().rdma_recvs - received;
    assert_eq!(taken + dropped(network) - martians, 1);
    taken == 1
}

/// RC-105.
#[test]
fn datagrams_come_from_addresses_that_one_other_host_can_have() {
    let (mut network, own, frame) = to_itself(true);
    let from = |network: &mut Network, source: Ipv4Addr| {
        let frame = altered(&frame, |frame| {
            frame[V4_SOURCE..V4_SOURCE + 4].copy_from_slice(&source.octets());
        });
        is_taken(network, own, frame)
    };
    let node = network.sim.hosts[0].ipv4;
    let mut gids = GidTable::default();
    gids[0] = Some(Gid::from_ipv6(network.sim.hosts[0].mac.link_local()).into());
    gids[1] = Some(Gid::from_ipv4(node).into());
    let in_vlan = Ipv4Addr::new(10, 8, 0, 1);
    gids[2] = Some(Address { gid: Gid::from_ipv4(in_vlan), vlan: 5 });
    network.sim.hosts[0].stack.set_gids(gids);
    let nobodys = ["0.0.0.0", "0.1.2.3", "127.0.0.1", "127.9.9.9", "224.0.0.1", "255.255.255.255"];
    for source in nobodys.map(|it| it.parse().unwrap()).into_iter().chain([node, in_vlan]) {
        assert!(!from(&mut network, source), "{source}");
    }
    for source in ["10.7.0.99", "1.2.3.4", "240.0.0.1", "128.0.0.1"] {
        assert!(from(&mut network, source.parse().unwrap()), "{source}");
    }
    // A port on the loopback network has neighbours there.
    gids[3] = Some(Gid::from_ipv4(Ipv4Addr::new(127, 0, 0, 2)).into());
    network.sim.hosts[0].stack.set_gids(gids);
    assert!(from(&mut network, Ipv4Addr::new(127, 0, 0, 3)));
    assert!(!from(&mut network, Ipv4Addr::new(127, 0, 0, 2)));
}

/// RC-105.
#[test]
fn datagrams_of_ipv6_come_from_addresses_that_one_other_host_can_have() {
    let (mut network, own, frame) = to_itself(false);
    let link_local = network.sim.hosts[0].mac.link_local().to_string();
    let nobodys = ["::", "::1", "ff02::1", "::ffff:10.7.0.99", &link_local];
    for (source, taken) in
        nobodys.map(|it| (it, false)).into_iter().chain([("fe80::99", true), ("fd00::1", true)])
    {
        let mut frame = frame.clone();
        let address: Ipv6Addr = source.parse().unwrap();
        frame[V6_SOURCE..V6_SOURCE + 16].copy_from_slice(&address.octets());
        icrc::append(&mut frame).unwrap();
        assert_eq!(is_taken(&mut network, own, frame), taken, "{source}");
    }
}
