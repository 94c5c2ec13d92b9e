//! End-to-end credits: a requester sends only messages that the peer has receive requests for, and never hangs.

use netsim::config::Faults;
use roce::opcode::code;
use roce::wire::aeth::{CREDITS_INVALID, NakCode, Syndrome};
use roce::{Operation, PathMtu};

use crate::connection::Options;
use crate::for_each_seed;
use crate::lossless::both_ways;
use crate::network::Network;
use crate::puppet::{Puppet, RQ_PSN, SQ_PSN, Say, Sent, ack, answer, rdma, request};
use crate::workload::{Plan, Supply, run};

const MTU: u32 = 256;

fn options() -> Options {
    Options { mtu: PathMtu::Mtu256, ..Options::default() }
}

fn psns(sent: &[Sent]) -> Vec<u32> {
    sent.iter().map(|sent| sent.psn - SQ_PSN).collect()
}

/// An acknowledgement that tells of `code`.
fn credit(psn: u32, code: u8) -> Say {
    answer(SQ_PSN + psn, Syndrome::Ack { credits: code })
}

/// The credit code of an answer.
fn told(sent: &[Sent]) -> u8 {
    match sent.last().and_then(|sent| sent.syndrome) {
        Some(Syndrome::Ack { credits }) => credits,
        other => panic!("{other:?}"),
    }
}

/// RC-52, RC-89.
#[test]
fn acknowledgements_tell_how_many_receive_requests_are_left() {
    let mut puppet = Puppet::new(&options());
    let write = |n| rdma(code::WRITE_ONLY, RQ_PSN + n, 0, 8, vec![0; 8]);
    let send = |n, opcode, length| request(opcode, RQ_PSN + n, vec![0; length]);
    for _ in 0..8 {
        puppet.node.memory.post_receive(puppet.qpn, 1000);
    }
    // Nobody has looked yet.
    assert_eq!(told(&puppet.say(&[write(0)])), 0);
    // 7 are left, for which the next smaller code is 5: six.
    assert_eq!(told(&puppet.say(&[send(1, code::SEND_ONLY, 9)])), 5);
    // That of the message under way counts until the message does: 6 and 1, then 5.
    assert_eq!(told(&puppet.say(&[send(2, code::SEND_FIRST, 256)])), 5);
    assert_eq!(told(&puppet.say(&[send(3, code::SEND_LAST, 9), send(4, code::SEND_ONLY, 9)])), 4);
    let rest = puppet.say(&[send(5, code::SEND_ONLY, 9), send(6, code::SEND_ONLY, 9)]);
    let msns: Vec<u32> = rest.iter().map(|sent| sent.msn).collect();
    assert_eq!((told(&rest), msns), (3, vec![5, 6]));
    // A READ response tells as well.
    let read = rdma(code::READ_REQUEST, RQ_PSN + 7, 0, 8, vec![]);
    assert_eq!(told(&puppet.say(&[read])), 3);
}

/// RC-92.
#[test]
fn a_queue_that_others_take_from_promises_nothing() {
    let mut puppet = Puppet::new(&options());
    puppet.node.memory.shared.insert(puppet.qpn.value());
    puppet.node.memory.post_receive(puppet.qpn, 1000);
    let sent = puppet.say(&[request(code::SEND_ONLY, RQ_PSN, vec![0; 9])]);
    assert_eq!(told(&sent), CREDITS_INVALID);
}

/// RC-90, RC-91.
#[test]
fn a_requester_sends_what_it_has_credits_for_and_one_packet_more() {
    let mut puppet = Puppet::without_credits(&options());
    for _ in 0..3 {
        puppet.post(Operation::Send, 10);
        puppet.post(Operation::Write, 10);
    }
    for _ in 0..3 {
        puppet.post(Operation::Send, 10);
    }
    let first = puppet.drain();
    assert_eq!(psns(&first), [0]);
    assert!(first[0].ack_request);
    // Two more SENDs; WRITEs and READs use up nothing.
    let sent = puppet.say(&[credit(0, 2)]);
    assert_eq!(psns(&sent), [1, 2, 3, 4, 5, 6]);
    let asking: Vec<bool> = sent.iter().map(|sent| sent.ack_request).collect();
    assert_eq!(asking, [false, false, false, false, false, true]);
    // The third was sent alone. An acknowledgement before it without a further promise changes nothing.
    assert!(puppet.say(&[credit(3, 1)]).is_empty());
    assert_eq!(psns(&puppet.say(&[credit(6, 0)])), [7]);
    assert_eq!(psns(&puppet.say(&[credit(7, 3)])), [8]);
}

/// RC-90.
#[test]
fn credits_that_come_while_one_packet_waits_let_the_rest_go() {
    let mut puppet = Puppet::without_credits(&options());
    puppet.post(Operation::Write, 10);
    for _ in 0..4 {
        puppet.post(Operation::Send, 10);
    }
    assert_eq!(psns(&puppet.drain()), [0, 1]);
    assert_eq!(psns(&puppet.say(&[credit(0, 2)])), [2, 3]);
    assert_eq!(psns(&puppet.say(&[credit(1, 6)])), [4]);
}

/// RC-91.
#[test]
fn of_a_long_message_only_the_packet_that_takes_the_receive_request_goes_alone() {
    let mut puppet = Puppet::without_credits(&options());
    puppet.post(Operation::Send, 3 * MTU);
    puppet.post(Operation::WriteImm, 3 * MTU);
    puppet.post(Operation::Write, 10);
    assert_eq!(psns(&puppet.drain()), [0]);
    assert_eq!(psns(&puppet.say(&[credit(0, 0)])), [1, 2, 3, 4, 5]);
    assert!(puppet.say(&[credit(4, 0)]).is_empty());
    assert_eq!(psns(&puppet.say(&[credit(5, 0)])), [6]);
}

/// RC-92.
#[test]
fn a_peer_that_does_not_count_sets_no_limit() {
    let mut puppet = Puppet::without_credits(&options());
    for _ in 0..20 {
        puppet.post(Operation::Send, 10);
    }
    assert_eq!(psns(&puppet.drain()), [0]);
    assert_eq!(puppet.say(&[credit(0, CREDITS_INVALID)]).len(), 19);
    // For good: later acknowledgements take nothing back.
    puppet.say(&[credit(19, 0)]);
    for _ in 0..20 {
        puppet.post(Operation::Send, 10);
    }
    assert_eq!(puppet.drain().len(), 20);
}

/// RC-93.
#[test]
fn the_last_acknowledgement_said_again_may_bring_credits() {
    let mut puppet = Puppet::without_credits(&options());
    assert!(puppet.say(&[answer(SQ_PSN - 1, Syndrome::Ack { credits: 2 })]).is_empty());
    for _ in 0..6 {
        puppet.post(Operation::Send, 10);
    }
    assert_eq!(psns(&puppet.drain()), [0, 1, 2]);
    assert!(puppet.say(&[credit(1, 0)]).is_empty());
    assert_eq!(psns(&puppet.say(&[credit(1, 2)])), [3, 4]);
    let stale = puppet.node.stack.counters().drop_stale_response;
    // An older one, or one that brings nothing, is a ghost.
    assert!(puppet.say(&[credit(0, 16), credit(1, 2)]).is_empty());
    assert_eq!(puppet.node.stack.counters().drop_stale_response, stale + 2);
}

/// RC-64, RC-91.
#[test]
fn a_receiver_that_is_not_ready_costs_one_packet() {
    let mut puppet = Puppet::without_credits(&options());
    for _ in 0..50 {
        puppet.post(Operation::Send, 3 * MTU);
    }
    assert_eq!(psns(&puppet.drain()), [0]);
    for _ in 0..3 {
        assert!(puppet.say(&[answer(SQ_PSN, Syndrome::RnrNak { timer: 1 })]).is_empty());
        assert_eq!(psns(&puppet.time_out().1), [0]);
    }
    assert_eq!(puppet.node.stack.counters().retransmitted_pkts, 3);
    assert_eq!(psns(&puppet.say(&[credit(0, 1)])), [1, 2, 3]);
}

/// RC-64, RC-92.
#[test]
fn a_receiver_that_is_not_ready_and_does_not_count_is_asked_by_one_packet_and_then_by_more() {
    let mut puppet = Puppet::without_credits(&options());
    for _ in 0..300 {
        puppet.post(Operation::Send, 10);
    }
    assert_eq!(psns(&puppet.drain()), [0]);
    // All that is let go by an acknowledgement.
    let lets_go = |puppet: &mut Puppet, psn: u32| {
        let mut sent = puppet.say(&[credit(psn, CREDITS_INVALID)]);
        sent.extend(puppet.drain());
        sent
    };
    assert_eq!(lets_go(&mut puppet, 0).len(), 129, "all of the window");
    // It is asked again and again by one.
    for _ in 0..3 {
        assert!(puppet.say(&[answer(SQ_PSN + 1, Syndrome::RnrNak { timer: 1 })]).is_empty());
        assert_eq!(psns(&puppet.time_out().1), [1]);
    }
    // Twice as many by each acknowledgement, up to half of the packets in vain, and then one more.
    let mut last = 1;
    for more in [2, 4, 8, 16, 32, 64, 65, 66] {
        let sent = lets_go(&mut puppet, last);
        let wanted: Vec<u32> = (last + 1..=last + more).collect();
        assert_eq!(psns(&sent), wanted);
        assert!(sent.last().unwrap().ack_request);
        last += more;
    }
    // Each time anew; the 66 were in vain then.
    let refused = last - 65;
    puppet.say(&[answer(SQ_PSN + refused, Syndrome::RnrNak { timer: 1 })]);
    assert_eq!(psns(&puppet.time_out().1), [refused]);
    let mut last = refused;
    for more in [2, 4, 8, 16] {
        assert_eq!(lets_go(&mut puppet, last).len(), more as usize);
        last += more;
    }
    assert_eq!(lets_go(&mut puppet, last).len(), 32);
    assert_eq!(lets_go(&mut puppet, last + 32).len(), 33, "half of 66 is 33");
}

/// RC-31, RC-64.
#[test]
fn a_loss_behind_a_receiver_that_was_not_ready_lets_no_more_go_than_before() {
    let mut puppet = Puppet::without_credits(&options());
    for _ in 0..600 {
        puppet.post(Operation::Send, 10);
    }
    assert_eq!(psns(&puppet.drain()), [0]);
    assert_eq!(puppet.say(&[credit(0, CREDITS_INVALID)]).len() + puppet.drain().len(), 129);
    assert!(puppet.say(&[answer(SQ_PSN + 1, Syndrome::RnrNak { timer: 1 })]).is_empty());
    assert_eq!(psns(&puppet.time_out().1), [1]);
    let mut lets_go = |first: u32, say: Say, count: u32| {
        let mut sent = puppet.say(&[say]);
        sent.extend(puppet.drain());
        assert_eq!(psns(&sent), (first..first + count).collect::<Vec<_>>());
    };
    let lost = |psn| answer(psn, Syndrome::Nak(NakCode::PsnSequenceError));
    // The packet alone is lost, and then each burst.
    let mut first = 1;
    for count in [1, 2, 4, 8, 16, 32] {
        lets_go(first, lost(SQ_PSN + first), count);
        lets_go(first + count, ack(SQ_PSN + first + count - 1), 2 * count);
        first += count;
    }
    // Up to half of the packets in vain, and then by one.
    for count in [65, 66] {
        lets_go(first + count - 1, ack(SQ_PSN + first + count - 2), count);
        first += count - 1;
    }
    // A loss costs as much as elsewhere, and nothing of the reached size.
    lets_go(first, lost(SQ_PSN + first), 32);
    for (count, next) in [(32, 64), (64, 66), (66, 67)] {
        lets_go(first + count, ack(SQ_PSN + first + count - 1), next);
        first += count;
    }
}

/// RC-91.
#[test]
fn a_promise_that_is_lost_is_asked_for_again() {
    let mut puppet = Puppet::without_credits(&options());
    puppet.post(Operation::Send, 10);
    puppet.post(Operation::Send, 10);
    assert_eq!(psns(&puppet.drain()), [0]);
    assert_eq!(psns(&puppet.time_out().1), [0]);
    assert_eq!(psns(&puppet.say(&[ack(SQ_PSN)])), [1]);
}

/// RC-89, RC-90.
#[test]
fn whoever_keeps_to_credits_meets_hardly_a_receiver_that_is_not_ready() {
    for_each_seed(
        "whoever_keeps_to_credits_meets_hardly_a_receiver_that_is_not_ready",
        3,
        |seed| {
            let mut network = Network::new(seed, 2, Faults::NONE);
            let options = options();
            let plan = Plan {
                only: Some(Operation::Send),
                supply: Supply::Late,
                longest: 8,
                ..Plan::mixed(200, options.mtu)
            };
            let mut flows = both_ways(&mut network, &options, &plan);
            for node in &mut network.sim.hosts {
                node.memory.shared.clear();
            }
            run(&mut network, &mut flows, 60_000_000_000);
            for node in &network.sim.hosts {
                // Receive requests come one by one, later than their messages: each message waits, but
                // only its first packet is repeated.
                let counters = node.stack.counters();
                assert!(counters.rcvd_rnr_err > 0);
                assert_eq!(counters.retransmitted_pkts, counters.rcvd_rnr_err);
            }
        },
    );
}
