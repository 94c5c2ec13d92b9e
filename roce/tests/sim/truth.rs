//! Counters tell the truth: they equal what is seen on the cable.

use std::collections::BTreeSet;

use roce::opcode::{Class, Opcode};
use roce::wire::aeth::{NakCode, Syndrome};
use roce::{Operation, PathMtu};

use crate::cable::Cable;
use crate::connection::Options;
use crate::for_each_seed;
use crate::lossless::both_ways;
use crate::network::Network;
use crate::puppet::{Sent, take_apart};
use crate::workload::{Plan, Supply, run};

/// What the frames of one node show.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    frames: u64,
    repeated: u64,
    sequence_naks: u64,
    rnr_naks: u64,
}

fn watch(frames: &[Sent]) -> Seen {
    let mut seen = Seen::default();
    let mut psns = BTreeSet::new();
    for frame in frames {
        seen.frames += 1;
        let opcode = Opcode::find(frame.opcode).unwrap();
        if !opcode.class.is_response() {
            let new = psns.insert(frame.psn);
            seen.repeated += u64::from(!new);
            if opcode.class == Class::ReadRequest {
                // It stands for all its responses.
                let packets = frame.reth.unwrap().dma_length.div_ceil(256).max(1);
                psns.extend(frame.psn..frame.psn + packets);
            }
        }
        match frame.syndrome {
            Some(Syndrome::Nak(NakCode::PsnSequenceError)) => seen.sequence_naks += 1,
            Some(Syndrome::RnrNak { .. }) => seen.rnr_naks += 1,
            _ => {}
        }
    }
    seen
}

#[test]
fn counters_equal_what_is_seen_on_the_cable() {
    for_each_seed("counters_equal_what_is_seen_on_the_cable", 5, |seed| {
        let mut network = Network::new(seed, 2, Cable { loss: 200, ..Cable::PERFECT });
        let options =
            Options { mtu: PathMtu::Mtu256, psns: Some((7, 100_000)), ..Options::default() };
        network.nodes.iter_mut().for_each(|node| node.capture = Some(Vec::new()));
        let supply = if seed % 2 == 0 { Supply::Late } else { Supply::Ready };
        let plan = Plan { supply, ..Plan::mixed(150, options.mtu) };
        let mut flows = both_ways(&mut network, &options, &plan);
        run(&mut network, &mut flows, 60_000_000_000);
        for node in &network.nodes {
            let frames: Vec<Sent> =
                node.capture.iter().flatten().filter_map(|frame| take_apart(frame)).collect();
            let counters = node.stack.counters();
            let counted = Seen {
                frames: counters.sent_pkts,
                repeated: counters.retransmitted_pkts,
                sequence_naks: counters.sent_seq_err,
                rnr_naks: counters.send_rnr_err,
            };
            assert_eq!(counted, watch(&frames));
        }
    });
}

#[test]
fn each_gap_is_reported_by_one_nak() {
    for_each_seed("each_gap_is_reported_by_one_nak", 5, |seed| {
        let mut network = Network::new(seed, 2, Cable { loss: 300, ..Cable::PERFECT });
        let options = Options { mtu: PathMtu::Mtu256, psns: Some((7, 7)), ..Options::default() };
        network.nodes[1].capture = Some(Vec::new());
        let plan = Plan { only: Some(Operation::Write), ..Plan::mixed(200, options.mtu) };
        let mut flows = both_ways(&mut network, &options, &plan);
        run(&mut network, &mut flows, 60_000_000_000);
        let mut last_ack = 0;
        let mut naks = BTreeSet::new();
        for frame in network.nodes[1].capture.iter().flatten().filter_map(|f| take_apart(f)) {
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
