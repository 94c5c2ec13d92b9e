//! Unreliable services, with losses at exact places (see `lumina`): only the lost messages are lost.

use netsim::config::Faults;
use roce::{Event, GRH_LENGTH, Operation, PathMtu, ReceiveKind, SendRequest};

use crate::connection::Options;
use crate::datagrams::{self, FIRST_PSN, Pair};
use crate::memory::Region;
use crate::network::Network;
use crate::puppet::{RKEY, SQ_PSN, VA};
use crate::script::{Action, Place, Script, Seen};
use crate::unreliable::{connect, post, request, run};
use trial::rng::pattern_vec;

const MILLISECOND: u64 = 1_000_000;
/// Three messages of four packets.
const BYTES: usize = 256;
const PACKETS: u32 = 4;
const MESSAGES: u32 = 3;
const MESSAGE: usize = PACKETS as usize * BYTES;

fn lost_at(psn: u32, action: Action) -> (Place, Action) {
    (Place { connection: 0, response: false, psn, iteration: 1 }, action)
}

/// Each packet is there once, in its order, and nothing is answered.
fn assert_sent_once(trace: &[Seen], packets: u32) {
    let psns: Vec<u32> = trace.iter().map(|seen| seen.place.psn).collect();
    assert_eq!(psns, (0..packets).collect::<Vec<_>>());
    assert!(trace.iter().all(|seen| !seen.place.response && seen.place.iteration == 1));
    assert!(trace.iter().all(|seen| seen.look.syndrome.is_none()));
}

/// UC-3, UC-4, UC-6, UC-7.
#[test]
fn a_lost_packet_of_a_connection_costs_its_message_and_no_other() {
    for operation in [Operation::Send, Operation::SendImm, Operation::Write, Operation::WriteImm] {
        for psn in 0..MESSAGES * PACKETS {
            for action in [Action::Drop, Action::Corrupt] {
                lose_of_connection(operation, psn, action);
            }
        }
    }
}

fn lose_of_connection(operation: Operation, psn: u32, action: Action) {
    let mut network = Network::new(1, 2, Faults::NONE);
    let options = Options { mtu: PathMtu::Mtu256, ..Options::default() };
    let (from, to) = connect(&mut network, &options);
    // They find each other's Ethernet addresses.
    run(&mut network, MILLISECOND);
    let target = Region { va: VA, bytes: vec![0; MESSAGES as usize * MESSAGE], writable: true };
    network.sim.hosts[1].memory.regions.insert(RKEY, target);
    let mut script = Script::default();
    script.watch(from, to, SQ_PSN);
    let (place, action) = lost_at(psn, action);
    script.at(place, action);
    network.play(script);
    for key in 0..MESSAGES {
        network.sim.hosts[1].memory.post_receive(to.qpn, MESSAGE);
        let remote_va = VA + u64::from(key) * MESSAGE as u64;
        let request = SendRequest { imm: key, remote_va, ..request(operation, MESSAGE as u32) };
        post(&mut network, from, request, key.into());
    }
    let [sent, received] = run(&mut network, MILLISECOND);
    let what = format!("{operation:?}, {action:?} of PSN {psn}");
    let through = |event: &Event| match event {
        Event::SendsCompleted { through, .. } => *through,
        other => panic!("{what}: {other:?}"),
    };
    assert_eq!(sent.iter().map(through).max(), Some(u64::from(MESSAGES) - 1), "{what}");
    assert_sent_once(&network.played().trace, MESSAGES * PACKETS);
    let node = &network.sim.hosts[1];
    let whole: Vec<u32> = (0..MESSAGES).filter(|message| *message != psn / PACKETS).collect();
    let right = |key: u32| pattern_vec(key.into(), 0, MESSAGE);
    let takes_receive = operation.takes_receive();
    assert_eq!(received.len(), if takes_receive { whole.len() } else { 0 }, "{what}");
    for ((event, key), receive) in received.iter().zip(&whole).zip(0..) {
        let Event::ReceiveCompleted { id, length, kind, imm, .. } = event else {
            panic!("{what}: {event:?}");
        };
        assert_eq!((*id, *length as usize), (receive, MESSAGE), "{what}");
        let has_imm = matches!(operation, Operation::SendImm | Operation::WriteImm);
        assert_eq!(*imm, has_imm.then_some(*key), "{what}");
        if *kind == ReceiveKind::Send {
            assert!(node.memory.buffers[id].bytes == right(*key), "{what}");
        }
    }
    if matches!(operation, Operation::Write | Operation::WriteImm) {
        for key in whole {
            let start = key as usize * MESSAGE;
            assert!(node.memory.regions[&RKEY].bytes[start..start + MESSAGE] == right(key));
        }
    }
    // Of the message the packets behind the lost one are dropped; the next message shows a gap if none is
    // behind it.
    let counters = node.stack.counters();
    let behind = u64::from(PACKETS - 1 - psn % PACKETS);
    assert_eq!(counters.drop_after_gap, behind, "{what}");
    assert_eq!(counters.rx_icrc_encapsulated, u64::from(action == Action::Corrupt), "{what}");
    assert_eq!(node.stack.counters().sent_pkts, 0, "{what}");
}

/// UD-4, UD-6.
#[test]
fn a_lost_datagram_is_lost_alone() {
    const DATAGRAMS: u32 = 8;
    for psn in 0..DATAGRAMS {
        for action in [Action::Drop, Action::Corrupt] {
            let mut pair = Pair::resolved();
            let mut script = Script::default();
            script.watch(pair.from, pair.to, FIRST_PSN);
            let (place, action) = lost_at(psn, action);
            script.at(place, action);
            pair.network.play(script);
            for imm in 0..DATAGRAMS {
                let capacity = MESSAGE + GRH_LENGTH as usize;
                pair.network.sim.hosts[1].memory.post_receive(pair.to.qpn, capacity);
                let datagram = datagrams::request(pair.to.qpn, MESSAGE as u32);
                pair.post(roce::DatagramRequest { imm: Some(imm), ..datagram });
            }
            let [sent, received] = pair.run(MILLISECOND);
            assert!(sent.iter().all(|event| matches!(event, Event::SendsCompleted { .. })));
            let node = &pair.network.sim.hosts[1];
            let arrived: Vec<u32> = received
                .iter()
                .map(|event| match event {
                    Event::ReceiveCompleted { id, imm: Some(imm), .. } => {
                        let bytes = &node.memory.buffers[id].bytes[GRH_LENGTH as usize..];
                        assert!(bytes == pattern_vec((*imm).into(), 0, MESSAGE));
                        *imm
                    }
                    other => panic!("{other:?}"),
                })
                .collect();
            let others: Vec<u32> = (0..DATAGRAMS).filter(|imm| *imm != psn).collect();
            assert_eq!(arrived, others, "{action:?} of PSN {psn}");
            assert_sent_once(&pair.network.played().trace, DATAGRAMS);
        }
    }
}
