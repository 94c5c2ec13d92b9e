//! Tests of counters: they equal the frames seen on the cable.

use std::collections::{BTreeMap, BTreeSet};

use netsim::config::Faults;
use netsim::frame::Received;
use roce::opcode::{Class, Opcode};
use roce::wire::aeth::{NakCode, Syndrome};
use roce::wire::{arp, ethernet, frame, ipv4, ipv6, udp};
use roce::{MacAddr, Operation, PathMtu, ReceivedFrame as _};

use crate::connection::Options;
use crate::for_each_seed;
use crate::lossless::both_ways;
use crate::network::{Network, Node, bad};
use crate::puppet::take_apart;
use crate::workload::{Flow, Op, Plan, Supply, run};

/// The fields that a witness reads off a RoCE frame.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    pub opcode: &'static Opcode,
    /// The Ethernet address and queue pair that it goes to.
    pub target: (MacAddr, u32),
    pub psn: u32,
    pub syndrome: Option<Syndrome>,
    /// Bytes that a READ asks for.
    pub asked: u32,
    /// Bytes of payload.
    pub length: u64,
    pub congested: bool,
}

pub fn look(bytes: &[u8]) -> Look {
    let (header, packet) = ethernet::Repr::parse(bytes).unwrap();
    let (traffic_class, datagram) = if header.ethertype == ethernet::EtherType::IPV4 {
        let (ip, datagram) = ipv4::Repr::parse(packet).unwrap();
        (ip.type_of_service, datagram)
    } else {
        let (ip, datagram) = ipv6::Repr::parse(packet).unwrap();
        (ip.traffic_class, datagram)
    };
    let (_, body) = udp::Repr::parse(datagram).unwrap();
    let repr = frame::Repr::parse(body).unwrap();
    Look {
        opcode: repr.opcode,
        target: (header.destination, repr.bth.dest_qpn),
        psn: repr.bth.psn.value(),
        syndrome: repr.aeth.map(|header| header.syndrome),
        asked: repr.reth.map_or(0, |header| header.dma_length),
        length: repr.payload.len() as u64,
        congested: traffic_class & 3 == 3,
    }
}

fn as_arp(bytes: &[u8]) -> Option<arp::Repr> {
    let (header, packet) = ethernet::Repr::parse(bytes).unwrap();
    (header.ethertype == ethernet::EtherType::ARP).then(|| arp::Repr::parse(packet).unwrap())
}

/// Counters under their names, where a witness counts as well.
type Tally = BTreeMap<&'static str, u64>;

fn count(tally: &mut Tally, name: &'static str, amount: u64) {
    *tally.entry(name).or_default() += amount;
}

/// The counts that the frames sent by a node show. Also: new requests follow each other without a hole, and no gap is
/// reported twice.
fn watch_sent(frames: &[Vec<u8>], mtus: &BTreeMap<(MacAddr, u32), PathMtu>) -> Tally {
    let mut tally = Tally::new();
    let mut next: BTreeMap<(MacAddr, u32), u32> = BTreeMap::new();
    let mut gaps = BTreeSet::new();
    for bytes in frames {
        if let Some(packet) = as_arp(bytes) {
            let request = packet.operation == arp::Operation::Request;
            count(&mut tally, if request { "sent_arp_requests" } else { "arp_replies" }, 1);
            continue;
        }
        let seen = look(bytes);
        count(&mut tally, "sent_pkts", 1);
        if seen.opcode.class == Class::CongestionNotification {
            count(&mut tally, "np_cnp_sent", 1);
            continue;
        }
        count(&mut tally, "sent_bytes", seen.length);
        if !seen.opcode.class.is_response() {
            // A READ stands for all its responses.
            let packets = seen.asked.div_ceil(mtus[&seen.target].bytes()).max(1);
            let packets = if seen.opcode.class == Class::ReadRequest { packets } else { 1 };
            let next = next.entry(seen.target).or_insert(seen.psn);
            if seen.psn == *next {
                *next = (seen.psn + packets) & 0xff_ffff;
            } else {
                let behind = next.wrapping_sub(seen.psn) & 0xff_ffff;
                assert!(behind < 1 << 23, "PSN {} was sent, {next} left out", seen.psn);
                assert!(packets <= behind, "a repetition goes beyond what was sent");
                count(&mut tally, REPEATED, 1);
            }
        }
        match seen.syndrome {
            Some(Syndrome::Nak(NakCode::PsnSequenceError)) => {
                count(&mut tally, "sent_seq_err", 1);
                assert!(gaps.insert((seen.target, seen.psn)), "two NAKs for PSN {}", seen.psn);
            }
            Some(Syndrome::RnrNak { .. }) => count(&mut tally, "send_rnr_err", 1),
            _ => {}
        }
    }
    tally
}

/// The required fate of a frame of which a cable flipped a bit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// No check covers the bit, and nothing depends on it.
    Taken,
    /// The invariant CRC shows the damage.
    Icrc,
    /// A header check or an address before the CRC does.
    Header,
}

/// Headers stand without tags and options: Ethernet at 0, IP at 14, then UDP and transport.
fn fate(bytes: &[u8], bit: usize) -> Fate {
    // The damaged bit may be the type's own, so the version of IP decides unless it is that one.
    let ipv4 = bytes[12] & 0x80 == 0;
    let (byte, high) = (bit / 8, bit % 8 >= 4);
    match byte {
        6..12 => Fate::Taken,
        0..14 => Fate::Header,
        _ if ipv4 => match byte {
            14..34 | 36..40 => Fate::Header,
            // The UDP checksum, and the congestion byte of the transport header.
            40 | 41 | 46 => Fate::Taken,
            _ => Fate::Icrc,
        },
        14 if high => Fate::Header,
        // Traffic class, flow label and hop limit.
        14..18 | 21 => Fate::Taken,
        18..21 | 38..54 | 56..60 => Fate::Header,
        60 | 61 | 66 => Fate::Taken,
        _ => Fate::Icrc,
    }
}

/// The counts that the frames received by a node show.
fn watch_heard(node: &Node, frames: &[Received]) -> Tally {
    let mut tally = Tally::new();
    for frame in frames {
        match frame.flipped.map(|bit| fate(frame.bytes(), bit.into())) {
            None | Some(Fate::Taken) => {}
            Some(Fate::Icrc) => {
                count(&mut tally, "rx_icrc_encapsulated", 1);
                continue;
            }
            Some(Fate::Header) => {
                count(&mut tally, "dropped", 1);
                continue;
            }
        }
        if let Some(packet) = as_arp(frame.bytes()) {
            count(&mut tally, "dropped", u64::from(packet.target_ip != node.ipv4));
            continue;
        }
        let seen = look(frame.bytes());
        count(&mut tally, "rcvd_pkts", 1);
        count(&mut tally, "np_ecn_marked_roce_packets", u64::from(seen.congested));
        if seen.opcode.class == Class::CongestionNotification {
            count(&mut tally, "rp_cnp_ignored", 1);
        } else if !seen.opcode.class.is_response() {
            count(&mut tally, "requests", 1);
        }
        match seen.syndrome {
            Some(Syndrome::Nak(NakCode::PsnSequenceError)) => count(&mut tally, "naks", 1),
            Some(Syndrome::RnrNak { .. }) => count(&mut tally, "rnr_naks", 1),
            _ => {}
        }
    }
    tally
}

/// The counts that the messages of a node's flows show: all of them are complete.
fn watch_messages(network: &Network, index: usize, flows: &[Flow]) -> Tally {
    let mut tally = Tally::new();
    for flow in flows {
        let node = &network.sim.hosts[flow.from.node];
        let mtu = node.stack.query_qp(flow.from.qpn).unwrap().path_mtu.unwrap().bytes();
        for Op { operation, length, .. } in flow.ops() {
            if flow.from.node == index {
                count(&mut tally, "rdma_sends", 1);
                if *operation == Operation::Read {
                    count(&mut tally, "rcvd_bytes", u64::from(*length));
                }
            }
            if flow.to.node == index {
                let packets = match operation {
                    Operation::Read => {
                        count(&mut tally, "rx_read_requests", 1);
                        1
                    }
                    Operation::Atomic(_) => {
                        count(&mut tally, "rx_atomic_requests", 1);
                        1
                    }
                    _ => {
                        count(&mut tally, "rcvd_bytes", u64::from(*length));
                        length.div_ceil(mtu).max(1)
                    }
                };
                count(&mut tally, "executed", u64::from(packets));
                match operation {
                    Operation::Write | Operation::WriteImm => {
                        count(&mut tally, "rx_write_requests", 1);
                    }
                    Operation::Read | Operation::Atomic(_) => {}
                    _ => count(&mut tally, "rdma_recvs", 1),
                }
            }
        }
    }
    tally
}

/// Compares every counter of every node with the frames that it sent and received (both were
/// captured) and with the messages of `flows`, all of which are complete.
pub fn assert_true(network: &Network, flows: &[Flow]) {
    let mut mtus = BTreeMap::new();
    for flow in flows {
        for end in [flow.from, flow.to] {
            let node = &network.sim.hosts[end.node];
            let snapshot = node.stack.query_qp(end.qpn).unwrap();
            mtus.insert((node.mac, end.qpn.value()), snapshot.path_mtu.unwrap());
        }
    }
    for (index, node) in network.sim.hosts.iter().enumerate() {
        let counted: Tally = node.stack.counters().iter().collect();
        let sent = watch_sent(node.memory.capture.as_ref().unwrap(), &mtus);
        let heard = watch_heard(node, node.memory.heard.as_ref().unwrap());
        let done = watch_messages(network, index, flows);
        let seen = |name: &str| {
            [&sent, &heard, &done].into_iter().filter_map(|tally| tally.get(name)).sum::<u64>()
        };
        let sum = |names: &[&str]| names.iter().map(|name| counted[name]).sum::<u64>();
        for name in EXACT {
            assert_eq!(counted[name], seen(name), "node {index}: {name}");
        }
        let repeated = sum(&["retransmitted_pkts", "sent_questions"]);
        assert_eq!(repeated, seen(REPEATED), "node {index}: {REPEATED}");
        for name in NEVER {
            assert_eq!(counted[name], 0, "node {index}: {name}");
        }
        let dropped = sum(&["drop_not_for_us", "drop_malformed"]);
        assert_eq!(dropped, seen("dropped"), "node {index}: frames of no QP");
        // Every request was executed once, or counted by its fate.
        let idle = sum(&["duplicate_request", "out_of_sequence", "out_of_buffer"]);
        assert_eq!(seen("executed") + idle, seen("requests"), "node {index}: requests");
        // NAKs that were not heeded were stale.
        let stale = counted["drop_stale_response"];
        for (name, frames) in [("packet_seq_err", "naks"), ("rcvd_rnr_err", "rnr_naks")] {
            let range = seen(frames).saturating_sub(stale)..=seen(frames);
            assert!(range.contains(&counted[name]), "node {index}: {name}, seen {range:?}");
        }
        assert_eq!(counted["rcvd_seq_err"], counted["packet_seq_err"], "node {index}");
        assert_eq!(counted["out_of_seq_request"], counted["out_of_sequence"], "node {index}");
        // A NAK for packets that are being repeated already is no reason for another retry.
        let reasons = sum(&["local_ack_timeout_err", "implied_nak_seq_err"]);
        let retries = reasons..=reasons + counted["packet_seq_err"];
        let counted_retries = counted["completer_retry_err"];
        assert!(retries.contains(&counted_retries), "node {index}: {counted_retries} retries");
        assert_eq_sums_of_qps(node, flows, index, &counted);
    }
}

/// The name under which a witness counts repeated packets: it cannot tell the reason.
const REPEATED: &str = "retransmissions and questions";

/// Counters that a witness can count just as well.
const EXACT: [&str; 18] = [
    "sent_pkts",
    "sent_bytes",
    "sent_seq_err",
    "send_rnr_err",
    "sent_arp_requests",
    "arp_replies",
    "rcvd_pkts",
    "rcvd_bytes",
    "rx_icrc_encapsulated",
    "np_ecn_marked_roce_packets",
    "np_cnp_sent",
    "rp_cnp_ignored",
    "rdma_sends",
    "rdma_recvs",
    "rx_write_requests",
    "rx_read_requests",
    "rx_atomic_requests",
    "drop_control_queue",
];

/// Counters of events that cannot happen between peers that keep the rules.
const NEVER: [&str; 20] = [
    "retry_exceeded_err",
    "retry_rnr_exceeded_err",
    "rnr_nak_retry_err",
    "req_remote_access_errors",
    "req_remote_invalid_request",
    "req_remote_operational_errors",
    "req_cqe_error",
    "resp_remote_access_errors",
    "resp_remote_invalid_request",
    "resp_remote_operational_errors",
    "resp_local_length_error",
    "resp_cqe_error",
    "drop_unknown_qp",
    "drop_wrong_source",
    "drop_martian_source",
    "drop_by_service",
    "drop_bad_pkey",
    "drop_wrong_state",
    "drop_bad_opcode",
    "drop_ack_queue",
];

/// The counters of queue pairs add up to those of their port.
fn assert_eq_sums_of_qps(node: &Node, flows: &[Flow], index: usize, counted: &Tally) {
    let ends: BTreeSet<_> = flows
        .iter()
        .flat_map(|flow| [flow.from, flow.to])
        .filter(|end| end.node == index)
        .collect();
    let mut sums = Tally::new();
    for end in ends {
        for (name, value) in node.stack.qp_counters(end.qpn).unwrap().iter() {
            count(&mut sums, name, value);
        }
    }
    for (name, sum) in sums {
        assert_eq!(counted[name], sum, "node {index}: {name} of all its QPs");
    }
}

/// RC-20.
#[test]
fn counters_equal_what_is_seen_on_the_cable() {
    for_each_seed("counters_equal_what_is_seen_on_the_cable", 5, |seed| {
        let mut network = Network::new(seed, 2, bad(200));
        let options = Options { mtu: PathMtu::Mtu256, ..Options::default() };
        network.record();
        let supply = if seed % 2 == 0 { Supply::Late } else { Supply::Ready };
        let plan = Plan { supply, ..Plan::mixed(150, options.mtu) };
        let mut flows = both_ways(&mut network, &options, &plan);
        run(&mut network, &mut flows, 60_000_000_000);
        assert_true(&network, &flows);
    });
}

/// RC-53.
#[test]
fn each_gap_is_reported_by_one_nak() {
    for_each_seed("each_gap_is_reported_by_one_nak", 5, |seed| {
        let mut network = Network::new(seed, 2, Faults { loss: 300, ..Faults::NONE });
        let options = Options { mtu: PathMtu::Mtu256, psns: Some((7, 7)), ..Options::default() };
        network.sim.hosts[1].memory.capture = Some(Vec::new());
        let plan = Plan { only: Some(Operation::Write), ..Plan::mixed(200, options.mtu) };
        let mut flows = both_ways(&mut network, &options, &plan);
        run(&mut network, &mut flows, 60_000_000_000);
        let mut last_ack = 0;
        let mut naks = BTreeSet::new();
        for frame in
            network.sim.hosts[1].memory.capture.iter().flatten().filter_map(|f| take_apart(f))
        {
            match frame.syndrome {
                Some(Syndrome::Nak(NakCode::PsnSequenceError)) => {
                    assert!(naks.insert(frame.psn), "two NAKs for PSN {}", frame.psn);
                    assert!(frame.psn > last_ack, "a NAK for what was acknowledged");
                }
                Some(Syndrome::Ack { .. }) => {
                    assert!(frame.psn >= last_ack, "acknowledgements run backwards");
                    last_ack = frame.psn;
                }
                _ => {}
            }
        }
        assert!(!naks.is_empty());
    });
}
