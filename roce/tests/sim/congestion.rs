//! Congestion notifications: a sender of marked packets is told, but not too often.

use roce::opcode::code;
use roce::{AccessFlags, QpAttributes, QpState};

use crate::connection::Options;
use crate::puppet::{Puppet, RQ_PSN, SQ_PSN, Say, ack, rdma};

/// The shortest time between two notifications of a queue pair, in nanoseconds.
const INTERVAL: u64 = 4_000;

fn marked_write(n: u32) -> Say {
    let write = rdma(code::WRITE_ONLY, RQ_PSN + n, 0, 8, vec![0; 8]);
    Say { marked: true, ack_request: false, ..write }
}

fn cnps(puppet: &mut Puppet, says: &[Say]) -> usize {
    puppet.say(says).iter().filter(|sent| sent.opcode == code::CNP).count()
}

/// RC-17, RC-94.
#[test]
fn a_marked_packet_is_answered_by_a_notification() {
    let mut puppet = Puppet::new(&Options::default());
    let sent = puppet.say(&[Say { ack_request: true, ..marked_write(0) }]);
    let opcodes: Vec<u8> = sent.iter().map(|sent| sent.opcode).collect();
    assert_eq!(opcodes, [code::CNP, code::ACKNOWLEDGE]);
    assert!(sent[0].becn && !sent[0].ack_request && !sent[1].becn);
    assert_eq!((sent[0].psn, &sent[0].payload), (0, &vec![0; 16]));
    let counters = puppet.node.stack.counters();
    assert_eq!((counters.np_ecn_marked_roce_packets, counters.np_cnp_sent), (1, 1));
    assert_eq!(counters.sent_pkts, 2);
    // A packet without mark is no reason.
    assert_eq!(cnps(&mut puppet, &[Say { marked: false, ..marked_write(1) }]), 0);
}

/// RC-95.
#[test]
fn notifications_of_a_queue_pair_keep_their_distance() {
    let mut puppet = Puppet::new(&Options::default());
    assert_eq!(cnps(&mut puppet, &[marked_write(0), marked_write(1), marked_write(2)]), 1);
    puppet.now += INTERVAL - 1;
    assert_eq!(cnps(&mut puppet, &[marked_write(3)]), 0);
    puppet.now += 1;
    assert_eq!(cnps(&mut puppet, &[marked_write(4)]), 1);
    let counters = puppet.node.stack.counters();
    assert_eq!((counters.np_ecn_marked_roce_packets, counters.np_cnp_sent), (5, 2));
}

/// RC-95.
#[test]
fn marks_on_packets_of_strangers_and_to_the_dead_are_no_reason() {
    let mut puppet = Puppet::new(&Options::default());
    let stranger = Some("10.7.0.98".parse().unwrap());
    assert_eq!(cnps(&mut puppet, &[Say { source: stranger, ..marked_write(0) }]), 0);
    puppet.modify(&QpAttributes { state: Some(QpState::Err), ..QpAttributes::default() });
    assert_eq!(cnps(&mut puppet, &[marked_write(0)]), 0);
    assert_eq!(puppet.node.stack.counters().np_cnp_sent, 0);
}

/// RC-94, RC-96.
#[test]
fn a_notification_received_is_counted_and_changes_nothing() {
    let mut puppet = Puppet::new(&Options { access: AccessFlags::all(), ..Options::default() });
    let cnp = Say { opcode: code::CNP, payload: vec![0; 16], marked: true, ..Say::default() };
    // Not even a marked one is answered by another.
    assert!(puppet.say(&[cnp.clone(), cnp]).is_empty());
    assert_eq!(puppet.node.stack.counters().rp_cnp_ignored, 2);
    puppet.post(roce::Operation::Write, 8);
    assert_eq!(puppet.drain().len(), 1);
    assert!(puppet.say(&[ack(SQ_PSN)]).is_empty());
    assert_eq!(puppet.events().len(), 1);
}
