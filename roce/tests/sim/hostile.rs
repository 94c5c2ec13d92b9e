//! Hostile frames: the transport survives them, and other QPs do not notice.

use netsim::config::Faults;
use roce::wire::icrc;
use roce::{Instant, Operation, PathMtu, Placed, Placement, Sink};

use crate::connection::Options;
use crate::for_each_seed;
use crate::lossless::both_ways;
use crate::network::{Network, Node, bad};
use crate::puppet::{Puppet, SQ_PSN};
use crate::workload::{Plan, run};
use trial::rng::Rng;

/// Real frames of a connection, to start from.
fn samples(seed: u64, ipv4: bool) -> Vec<Vec<u8>> {
    let mut network = Network::new(seed, 2, bad(300));
    let options = Options { mtu: PathMtu::Mtu256, ipv4, ..Options::default() };
    network.sim.hosts.iter_mut().for_each(|node| node.memory.capture = Some(Vec::new()));
    let mut flows = both_ways(&mut network, &options, &Plan::mixed(60, options.mtu));
    run(&mut network, &mut flows, 60_000_000_000);
    network.sim.hosts.iter_mut().flat_map(|node| node.memory.capture.take().unwrap()).collect()
}

/// Changes, cuts or lengthens a frame.
fn mutate(rng: &mut Rng, frame: &mut Vec<u8>, from: usize) {
    for _ in 0..rng.between(1, 4) {
        let at = rng.between(from as u64, frame.len().max(from + 1) as u64 - 1) as usize;
        match rng.below(6) {
            0 => frame.truncate(at.max(1)),
            1 => frame.extend((0..rng.below(20)).map(|n| n as u8)),
            _ => {
                if let Some(byte) = frame.get_mut(at) {
                    let random = rng.next() as u8;
                    *byte = rng.pick(&[0, 0xff, random, *byte ^ (1 << (random % 8))]);
                }
            }
        }
    }
}

/// Feeds one frame, makes the copies that it asks for, and lets the stack send.
fn feed(node: &mut Node, now: u64, frame: &[u8]) {
    let mut placements: Vec<Placement> = Vec::new();
    let mut bytes = frame.to_vec();
    assert!(
        node.stack
            .receive(Instant(now), &mut bytes, 0, &mut node.memory, &mut placements)
            .is_ready()
    );
    for placement in &placements {
        let is_atomic = matches!(placement.sink, Sink::Atomic { .. });
        assert!(placement.range.end <= frame.len() && placement.range.is_empty() == is_atomic);
    }
    if let ([placement], true) = (&placements[..], bytes != frame) {
        assert!(matches!(placement.sink, Sink::Message { .. }));
        bytes[placement.range.clone()].reverse();
    }
    assert_eq!(bytes, frame, "a frame is left as it was, but for the result of an atomic");
    let placed = vec![Placed::Copied; placements.len()];
    node.stack.commit(Instant(now), &placed);
    while node.stack.poll_event().is_some() {}
    while node.stack.poll_transmit(Instant(now)).is_some() {}
}

#[test]
fn random_and_damaged_frames_never_panic() {
    for_each_seed("random_and_damaged_frames_never_panic", 1, |seed| {
        let mut rng = Rng::new(seed);
        let samples = [samples(seed, true), samples(seed, false)].concat();
        let mut puppet = Puppet::new(&Options::default());
        for n in 0..100_000 {
            let mut frame = if n % 10 == 0 {
                let length = rng.below(120);
                (0..length).map(|_| rng.next() as u8).collect()
            } else {
                samples[rng.below(samples.len() as u64) as usize].clone()
            };
            if frame.len() > 20 && n % 10 != 0 {
                frame[..6].copy_from_slice(&puppet.node.mac.0);
                mutate(&mut rng, &mut frame, 12);
                // Half of them get past the invariant CRC.
                if n % 2 == 0 {
                    let _ = icrc::append(&mut frame);
                }
            }
            feed(&mut puppet.node, 2_000_000 + n, &frame);
        }
    });
}

#[test]
fn damaged_frames_of_the_real_peer_never_panic() {
    for_each_seed("damaged_frames_of_the_real_peer_never_panic", 1, |seed| {
        let mut rng = Rng::new(seed);
        let options = Options { mtu: PathMtu::Mtu256, timeout: 0, ..Options::default() };
        let mut kept_alive = 0;
        for round in 0..400 {
            // The error state ends a round early; then the next one begins.
            let mut puppet = Puppet::new(&options);
            for _ in 0..3 {
                puppet.post(Operation::Write, 700);
                puppet.post(Operation::Read, 700);
                puppet.node.memory.post_receive(puppet.qpn, 600);
            }
            puppet.drain();
            for n in 0..100 {
                let mut frame = puppet.frame(&crate::puppet::Say {
                    opcode: rng
                        .pick(&[0, 1, 2, 4, 6, 7, 8, 10, 12, 13, 14, 15, 16, 17, 0x17, 0x81]),
                    psn: rng.pick(&[SQ_PSN, crate::puppet::RQ_PSN]) + rng.below(8) as u32,
                    ack_request: rng.chance(5_000),
                    reth: rng.chance(4_000).then(|| roce::wire::reth::Repr {
                        va: crate::puppet::VA,
                        rkey: crate::puppet::RKEY,
                        dma_length: rng.pick(&[0, 8, 256, 700, u32::MAX]),
                    }),
                    aeth: rng.chance(4_000).then(|| roce::wire::aeth::Repr {
                        syndrome: roce::wire::aeth::Syndrome::from_byte(rng.next() as u8),
                        msn: 1,
                    }),
                    payload: vec![5; rng.pick(&[0, 1, 8, 188, 256, 257])],
                    ..Default::default()
                });
                if rng.chance(2_000) {
                    // From the transport headers on, so that the frame still reaches the QP.
                    mutate(&mut rng, &mut frame, 42);
                    let _ = icrc::append(&mut frame);
                }
                feed(&mut puppet.node, 2_000_000 + round * 1000 + n, &frame);
            }
            kept_alive += u32::from(puppet.state() == roce::QpState::Rts);
            puppet.node.stack.handle_timeout(Instant(u64::MAX));
        }
        assert!(kept_alive < 400, "no damage ever reached a QP");
    });
}

/// RC-11.
#[test]
fn a_flood_of_forged_frames_does_not_disturb_a_connection() {
    for_each_seed("a_flood_of_forged_frames_does_not_disturb_a_connection", 2, |seed| {
        let mut network = Network::new(seed, 3, Faults::NONE);
        let options = Options { mtu: PathMtu::Mtu512, ..Options::default() };
        let plan = Plan::mixed(100, options.mtu);
        // The stranger sits on the same switch, knows numbers of QPs and PSNs, but has its own
        // address; its frames differ from real ones in nothing but the source.
        network.sim.hosts[0].memory.capture = Some(Vec::new());
        let mut flows = both_ways(&mut network, &options, &plan);
        let (now, mut rng) = (network.now(), Rng::new(seed));
        for n in 0..2_000 {
            let mut puppet = Puppet::new(&options);
            puppet.node.ipv4 = network.sim.hosts[1].ipv4;
            puppet.node.mac = network.sim.hosts[1].mac;
            let frame = puppet.frame(&crate::puppet::Say {
                opcode: rng.below(0x12) as u8,
                dest_qpn: Some(flows[0].to.qpn.value()),
                psn: rng.below(1 << 24) as u32,
                source: Some(network.sim.hosts[2].ipv4),
                payload: vec![0; 512],
                ..Default::default()
            });
            network.inject(1, now + n * 100, &frame);
        }
        run(&mut network, &mut flows, 10_000_000_000);
        let counters = network.sim.hosts[1].stack.counters();
        assert!(counters.drop_wrong_source > 100);
        assert_eq!(counters.duplicate_request + counters.out_of_sequence, 0);
    });
}
