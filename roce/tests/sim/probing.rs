//! Questions of a requester before its acknowledgement timer ends.

use roce::opcode::code;
use roce::{Event, Operation};

use crate::connection::Options;
use crate::puppet::{Puppet, SQ_PSN, Sent, ack};

const MTU: u32 = 1024;
/// The acknowledgement timeout, code 11, and a round trip before it, in nanoseconds.
const TIMEOUT: u64 = 4096 << 11;
const ROUND_TRIP: u64 = 20_000;
/// The first question comes after so long.
const PATIENCE: u64 = 100_000;

/// A requester that knows its peer's round-trip time. Its next PSN is `SQ_PSN` + 1.
fn acquainted() -> Puppet {
    let mut puppet = Puppet::new(&Options { timeout: 11, ..Options::default() });
    puppet.post(Operation::Write, 10);
    assert_eq!(puppet.drain().len(), 1);
    puppet.now += ROUND_TRIP;
    assert!(puppet.say(&[ack(SQ_PSN)]).is_empty());
    puppet.events();
    puppet
}

fn psns(sent: &[Sent]) -> Vec<u32> {
    sent.iter().map(|sent| sent.psn - SQ_PSN).collect()
}

/// Packets sent again, and questions.
fn told(puppet: &Puppet) -> (u64, u64) {
    let counters = puppet.node.stack.counters();
    (counters.retransmitted_pkts, counters.sent_questions)
}

#[test]
fn a_silent_peer_is_asked_by_one_packet() {
    let mut puppet = acquainted();
    puppet.post(Operation::Write, 8 * MTU);
    let first = puppet.drain();
    let (elapsed, asked) = puppet.time_out();
    assert_eq!((elapsed, psns(&asked)), (PATIENCE, vec![1]));
    assert!(asked[0].ack_request);
    assert_eq!((asked[0].opcode, &asked[0].payload), (code::WRITE_FIRST, &first[0].payload));
    assert_eq!(puppet.node.stack.counters().local_ack_timeout_err, 0);
}

#[test]
fn an_answer_to_the_question_alone_shows_that_the_rest_is_lost() {
    let mut puppet = acquainted();
    puppet.post(Operation::Write, 8 * MTU);
    puppet.drain();
    puppet.time_out();
    assert!(puppet.say(&[ack(SQ_PSN + 1)]).is_empty());
    let (elapsed, again) = puppet.time_out();
    assert_eq!((elapsed, psns(&again)), (ROUND_TRIP, (2..=8).collect()));
    assert_eq!(told(&puppet), (7, 1));
    assert!(puppet.say(&[ack(SQ_PSN + 8)]).is_empty());
    let (qpn, through) = (puppet.qpn, 1);
    assert_eq!(puppet.events(), [Event::SendsCompleted { qpn, through }]);
}

/// Each packet here asks when it is first sent, so the first acknowledgement may not be the question's.
#[test]
fn an_acknowledgement_that_others_follow_shows_no_loss() {
    let mut puppet = acquainted();
    for _ in 0..4 {
        puppet.post(Operation::Write, 10);
        assert!(puppet.drain()[0].ack_request);
    }
    assert_eq!(psns(&puppet.time_out().1), [1]);
    assert!(puppet.say(&[ack(SQ_PSN + 1)]).is_empty());
    puppet.now += ROUND_TRIP / 2;
    let rest = [2, 3, 4, 4].map(|psn| ack(SQ_PSN + psn));
    assert!(puppet.say(&rest).is_empty());
    assert_eq!(told(&puppet), (0, 1), "a question is no retransmission");
    let through = |through| Event::SendsCompleted { qpn: puppet.qpn, through };
    let events = puppet.node.events.clone();
    assert_eq!(events, [1, 2, 3, 4].map(through));
}

#[test]
fn an_answer_that_covers_more_than_the_question_repeats_nothing() {
    let mut puppet = acquainted();
    puppet.post(Operation::Write, 8 * MTU);
    puppet.drain();
    puppet.time_out();
    assert!(puppet.say(&[ack(SQ_PSN + 5)]).is_empty());
    assert!(puppet.say(&[ack(SQ_PSN + 8)]).is_empty());
    assert_eq!(puppet.events().len(), 1);
}

#[test]
fn questions_wait_twice_as_long_each_and_the_acknowledgement_timer_does_not_wait_for_them() {
    let mut puppet = acquainted();
    puppet.post(Operation::Write, 3 * MTU);
    puppet.drain();
    let start = puppet.now;
    let mut expected = PATIENCE;
    loop {
        let (elapsed, sent) = puppet.time_out();
        if puppet.node.stack.counters().local_ack_timeout_err != 0 {
            assert_eq!((puppet.now - start, psns(&sent)), (TIMEOUT, vec![1, 2, 3]));
            return;
        }
        assert_eq!((elapsed, psns(&sent)), (expected, vec![1]));
        expected *= 2;
    }
}

#[test]
fn a_read_without_answer_is_asked_for_again() {
    let mut puppet = acquainted();
    puppet.post(Operation::Read, 3 * MTU);
    assert_eq!(puppet.drain().len(), 1);
    let (elapsed, asked) = puppet.time_out();
    assert_eq!((elapsed, psns(&asked)), (PATIENCE, vec![1]));
    assert_eq!(asked[0].reth.map(|reth| reth.dma_length), Some(3 * MTU));
    assert_eq!(told(&puppet), (0, 1));
}

#[test]
fn a_requester_that_was_never_answered_does_not_ask() {
    let mut puppet = Puppet::new(&Options { timeout: 11, ..Options::default() });
    puppet.post(Operation::Write, MTU);
    puppet.drain();
    assert_eq!(puppet.time_out().0, TIMEOUT);
}
