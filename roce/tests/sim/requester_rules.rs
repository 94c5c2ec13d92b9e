//! Rules of the requester, against a puppet responder.

use roce::opcode::code;
use roce::wire::aeth::{NakCode, Syndrome};
use roce::{Event, Operation, PathMtu, QpState, SendRequest, SendStatus};

use crate::connection::Options;
use crate::puppet::{Puppet, SQ_PSN, Say, Sent, VA, ack, answer, response};
use trial::rng::pattern_vec;

const MTU: u32 = 256;

fn options() -> Options {
    Options { mtu: PathMtu::Mtu256, ..Options::default() }
}

fn psns(sent: &[Sent]) -> Vec<u32> {
    sent.iter().map(|sent| sent.psn - SQ_PSN).collect()
}

fn opcodes(sent: &[Sent]) -> Vec<u8> {
    sent.iter().map(|sent| sent.opcode).collect()
}

fn completed(puppet: &Puppet, through: u64) -> Event {
    Event::SendsCompleted { qpn: puppet.qpn, through }
}

fn sequence_nak(psn: u32) -> Say {
    answer(psn, Syndrome::Nak(NakCode::PsnSequenceError))
}

/// RC-19, RC-31, RC-59.
#[test]
fn a_sequence_nak_repeats_from_exactly_its_psn() {
    let mut puppet = Puppet::new(&options());
    puppet.post(Operation::Write, 5 * MTU);
    puppet.post(Operation::Send, 10);
    let first = puppet.drain();
    assert_eq!(psns(&first), [0, 1, 2, 3, 4, 5]);
    let again = puppet.say(&[sequence_nak(SQ_PSN + 3)]);
    assert_eq!(psns(&again), [3, 4, 5]);
    assert_eq!(opcodes(&again), [code::WRITE_MIDDLE, code::WRITE_LAST, code::SEND_ONLY]);
    assert_eq!(again[0].payload, pattern_vec(0, 3 * u64::from(MTU), MTU as usize));
    assert_eq!(puppet.node.stack.counters().retransmitted_pkts, 3);
    assert_eq!(puppet.node.stack.counters().packet_seq_err, 1);
    puppet.say(&[ack(SQ_PSN + 5)]);
    assert_eq!(puppet.events(), [completed(&puppet, 1)]);
}

/// RC-59.
#[test]
fn a_repeated_nak_in_one_burst_repeats_once() {
    let mut puppet = Puppet::new(&options());
    puppet.post(Operation::Write, 5 * MTU);
    puppet.drain();
    let again = puppet.say(&[sequence_nak(SQ_PSN + 2), sequence_nak(SQ_PSN + 2)]);
    assert_eq!(psns(&again), [2, 3, 4]);
}

/// RC-25, RC-56, RC-57.
#[test]
fn acknowledgements_are_cumulative_and_ghosts_are_ignored() {
    let mut puppet = Puppet::new(&options());
    for _ in 0..4 {
        puppet.post(Operation::Send, 300);
    }
    assert_eq!(puppet.drain().len(), 8);
    // Not yet sent, long past, and just past: no effect.
    for ghost in [SQ_PSN + 8, SQ_PSN + 5000, SQ_PSN - 1, SQ_PSN + 0x80_0000] {
        assert!(puppet.say(&[ack(ghost), sequence_nak(ghost)]).is_empty());
    }
    assert_eq!(puppet.node.stack.counters().drop_stale_response, 8);
    assert_eq!(puppet.events(), []);
    puppet.say(&[ack(SQ_PSN + 4)]);
    assert_eq!(puppet.events(), [completed(&puppet, 1)]);
    puppet.say(&[ack(SQ_PSN + 1), ack(SQ_PSN + 7)]);
    assert_eq!(puppet.events(), [completed(&puppet, 3)]);
    assert_eq!(puppet.state(), QpState::Rts);
}

/// RC-58, RC-60, RC-84.
#[test]
fn fatal_naks_fail_the_message_of_their_psn_after_completing_those_before() {
    for (nak, status) in [
        (NakCode::InvalidRequest, SendStatus::RemoteInvalidRequest),
        (NakCode::RemoteAccessError, SendStatus::RemoteAccess),
        (NakCode::RemoteOperationalError, SendStatus::RemoteOperation),
    ] {
        let mut puppet = Puppet::new(&options());
        for _ in 0..3 {
            puppet.post(Operation::Write, 2 * MTU);
        }
        puppet.drain();
        assert!(puppet.say(&[answer(SQ_PSN + 3, Syndrome::Nak(nak))]).is_empty());
        let qpn = puppet.qpn;
        assert_eq!(
            puppet.events(),
            [
                completed(&puppet, 0),
                Event::SendFailed { qpn, message: 1, status },
                Event::EnteredError { qpn },
            ]
        );
        assert_eq!(puppet.state(), QpState::Err);
        assert!(puppet.time_out().1.is_empty());
    }
}

/// RC-61.
#[test]
fn reserved_syndromes_and_naks_have_no_effect() {
    let mut puppet = Puppet::new(&options());
    puppet.post(Operation::Write, 10);
    puppet.drain();
    for byte in [0x40, 0x64, 0x65, 0x7f, 0x80, 0xff] {
        assert!(puppet.say(&[answer(SQ_PSN, Syndrome::from_byte(byte))]).is_empty());
    }
    assert_eq!(puppet.events(), []);
    assert_eq!(puppet.state(), QpState::Rts);
}

/// RC-73, RC-74, RC-75.
#[test]
fn the_acknowledgement_timer_is_4096_ns_times_2_to_the_timeout() {
    for timeout in [1, 5, 14, 20] {
        let mut puppet = Puppet::new(&Options { timeout, retry_cnt: 2, ..options() });
        puppet.post(Operation::Write, 3 * MTU);
        puppet.drain();
        let expected = 4096 << timeout;
        for _ in 0..2 {
            let (elapsed, again) = puppet.time_out();
            assert_eq!((elapsed, psns(&again)), (expected, vec![0, 1, 2]));
        }
        let (elapsed, again) = puppet.time_out();
        assert_eq!((elapsed, again.len()), (expected, 0));
        let (qpn, status) = (puppet.qpn, SendStatus::RetryExceeded);
        let failed = Event::SendFailed { qpn, message: 0, status };
        assert_eq!(puppet.events(), [failed, Event::EnteredError { qpn }]);
        assert_eq!(puppet.node.stack.counters().local_ack_timeout_err, 3);
        assert_eq!(puppet.node.stack.counters().retry_exceeded_err, 1);
    }
}

/// RC-31, RC-76.
#[test]
fn progress_gives_all_retries_back() {
    let mut puppet = Puppet::new(&Options { retry_cnt: 1, ..options() });
    puppet.post(Operation::Write, 8 * MTU);
    puppet.drain();
    for done in 0..7 {
        let (_, again) = puppet.time_out();
        assert_eq!(psns(&again)[0], done);
        puppet.say(&[ack(SQ_PSN + done)]);
        assert_eq!(puppet.events(), []);
    }
}

/// RC-74.
#[test]
fn the_timer_starts_anew_with_progress() {
    let mut puppet = Puppet::new(&options());
    puppet.post(Operation::Write, 3 * MTU);
    puppet.drain();
    let start = puppet.now;
    for done in 0..2 {
        puppet.now += 1_000_000;
        assert!(puppet.say(&[ack(SQ_PSN + done)]).is_empty());
    }
    // A repeated acknowledgement is no progress.
    puppet.now += 1_000_000;
    assert!(puppet.say(&[ack(SQ_PSN + 1)]).is_empty());
    assert_eq!(psns(&puppet.time_out().1), [2]);
    assert_eq!(puppet.now, start + 2_000_000 + (4096 << 8));
}

/// RC-73.
#[test]
fn without_a_timeout_there_is_no_timer() {
    let mut puppet = Puppet::new(&Options { timeout: 0, ..options() });
    puppet.post(Operation::Write, 10);
    puppet.drain();
    assert_eq!(puppet.node.stack.next_timeout(), None);
}

/// RC-64, RC-65, RC-76.
#[test]
fn an_rnr_nak_waits_exactly_its_time() {
    let mut puppet = Puppet::new(&Options { rnr_retry: 1, ..options() });
    puppet.post(Operation::Send, 2 * MTU);
    puppet.drain();
    let nak = answer(SQ_PSN, Syndrome::RnrNak { timer: 12 });
    assert!(puppet.say(&[nak.clone(), nak.clone()]).is_empty());
    let (elapsed, again) = puppet.time_out();
    // Where no credits tell, the packet alone.
    assert_eq!((elapsed, psns(&again)), (640_000, vec![0]));
    assert_eq!(psns(&puppet.say(&[ack(SQ_PSN)])), [1]);
    // Progress gives the retry back, the second NAK without progress is one too many.
    puppet.say(&[answer(SQ_PSN + 1, Syndrome::RnrNak { timer: 1 })]);
    assert_eq!(psns(&puppet.time_out().1), [1]);
    assert_eq!(puppet.events(), []);
    puppet.say(&[answer(SQ_PSN + 1, Syndrome::RnrNak { timer: 1 })]);
    let (qpn, status) = (puppet.qpn, SendStatus::RnrRetryExceeded);
    let failed = Event::SendFailed { qpn, message: 0, status };
    assert_eq!(puppet.events(), [failed, Event::EnteredError { qpn }]);
}

/// RC-65.
#[test]
fn rnr_retry_seven_is_for_ever() {
    let mut puppet = Puppet::new(&Options { rnr_retry: 7, ..options() });
    puppet.post(Operation::Send, 10);
    puppet.drain();
    for _ in 0..100 {
        puppet.say(&[answer(SQ_PSN, Syndrome::RnrNak { timer: 1 })]);
        assert_eq!(psns(&puppet.time_out().1), [0]);
    }
    assert_eq!(puppet.events(), []);
}

/// RC-69, RC-70.
#[test]
fn missing_read_responses_are_asked_for_from_the_gap_on() {
    let mut puppet = Puppet::new(&options());
    puppet.post(Operation::Read, 6 * MTU + 10);
    let asked = puppet.drain();
    assert_eq!(asked[0].reth.unwrap().dma_length, 6 * MTU + 10);
    let chunk = |n: u64| pattern_vec(7, n * 256, 256);
    let middle = |n: u32| response(code::READ_RESPONSE_MIDDLE, SQ_PSN + n, chunk(u64::from(n)));
    // Response 2 is lost; those after it are noticed once, and dropped.
    let again = puppet.say(&[
        response(code::READ_RESPONSE_FIRST, SQ_PSN, chunk(0)),
        middle(1),
        middle(3),
        middle(4),
    ]);
    assert_eq!((opcodes(&again), psns(&again)), (vec![code::READ_REQUEST], vec![2]));
    let rdma = again[0].reth.unwrap();
    assert_eq!((rdma.va, rdma.dma_length), (VA + 512, 4 * MTU + 10));
    assert!(puppet.say(&[middle(5)]).is_empty());
    assert_eq!(puppet.node.stack.counters().implied_nak_seq_err, 1);
    let mut rest = vec![response(code::READ_RESPONSE_FIRST, SQ_PSN + 2, chunk(2))];
    rest.extend([middle(3), middle(4), middle(5)]);
    let end = pattern_vec(7, 6 * 256, 10);
    rest.push(response(code::READ_RESPONSE_LAST, SQ_PSN + 6, end));
    puppet.say(&rest);
    assert_eq!(puppet.events(), [completed(&puppet, 0)]);
    let local = puppet.node.memory.messages.values().next();
    let Some(crate::memory::Local::Buffer(bytes)) = local else { panic!("no buffer") };
    assert!(*bytes == pattern_vec(7, 0, 6 * 256 + 10));
}

/// RC-20, RC-68, RC-69.
#[test]
fn an_acknowledgement_beyond_a_read_implies_that_its_responses_are_lost() {
    let mut puppet = Puppet::new(&options());
    puppet.post(Operation::Write, 10);
    puppet.post(Operation::Read, 2 * MTU);
    puppet.post(Operation::Write, 10);
    assert_eq!(psns(&puppet.drain()), [0, 1, 3]);
    let again = puppet.say(&[ack(SQ_PSN + 3)]);
    assert_eq!(psns(&again), [1, 3]);
    assert_eq!(puppet.events(), [completed(&puppet, 0)]);
    // A response acknowledges earlier requests, and is not acknowledged itself.
    puppet.say(&[
        response(code::READ_RESPONSE_FIRST, SQ_PSN + 1, vec![1; 256]),
        response(code::READ_RESPONSE_LAST, SQ_PSN + 2, vec![2; 256]),
        ack(SQ_PSN + 3),
    ]);
    assert_eq!(puppet.events(), [completed(&puppet, 1), completed(&puppet, 2)]);
}

/// RC-59, RC-75.
#[test]
fn sequence_naks_without_progress_use_up_the_retries() {
    let mut puppet = Puppet::new(&Options { retry_cnt: 2, ..options() });
    puppet.post(Operation::Write, 3 * MTU);
    puppet.drain();
    for _ in 0..2 {
        assert_eq!(psns(&puppet.say(&[sequence_nak(SQ_PSN)])), [0, 1, 2]);
    }
    assert!(puppet.say(&[sequence_nak(SQ_PSN)]).is_empty());
    let (qpn, status) = (puppet.qpn, SendStatus::RetryExceeded);
    let failed = Event::SendFailed { qpn, message: 0, status };
    assert_eq!(puppet.events(), [failed, Event::EnteredError { qpn }]);
    assert_eq!(puppet.node.stack.counters().completer_retry_err, 2);
}

/// RC-69, RC-75.
#[test]
fn an_implied_nak_without_retries_left_fails_the_read() {
    for retry_cnt in [0, 1] {
        let mut puppet = Puppet::new(&Options { retry_cnt, ..options() });
        puppet.post(Operation::Read, 3 * MTU);
        puppet.drain();
        let third = response(code::READ_RESPONSE_LAST, SQ_PSN + 2, vec![0; 256]);
        let again = puppet.say(std::slice::from_ref(&third));
        if retry_cnt != 0 {
            // Asked again, and lost again: the same place is noticed once, then the timer fires.
            assert_eq!((opcodes(&again), psns(&again)), (vec![code::READ_REQUEST], vec![0]));
            assert!(puppet.say(&[third]).is_empty());
            assert_eq!(puppet.events(), []);
            assert!(puppet.time_out().1.is_empty());
        }
        let (qpn, status) = (puppet.qpn, SendStatus::RetryExceeded);
        let failed = Event::SendFailed { qpn, message: 0, status };
        assert_eq!(puppet.events(), [failed, Event::EnteredError { qpn }], "{retry_cnt} retries");
        assert_eq!(puppet.node.stack.counters().implied_nak_seq_err, 1);
    }
}

/// RC-71.
#[test]
fn a_response_of_the_wrong_length_or_position_is_a_bad_response() {
    for (opcode, length) in [
        (code::READ_RESPONSE_FIRST, 255),
        (code::READ_RESPONSE_ONLY, 256),
        (code::READ_RESPONSE_MIDDLE, 0),
        (code::READ_RESPONSE_LAST, 3),
    ] {
        let mut puppet = Puppet::new(&options());
        puppet.post(Operation::Read, 2 * MTU);
        puppet.drain();
        puppet.say(&[response(opcode, SQ_PSN, vec![0; length])]);
        let (qpn, status) = (puppet.qpn, SendStatus::BadResponse);
        let failed = Event::SendFailed { qpn, message: 0, status };
        assert_eq!(puppet.events(), [failed, Event::EnteredError { qpn }], "{opcode} {length}");
    }
}

/// RC-72.
#[test]
fn a_response_to_what_was_no_read_is_dropped() {
    let mut puppet = Puppet::new(&options());
    puppet.post(Operation::Write, 10);
    puppet.drain();
    puppet.say(&[response(code::READ_RESPONSE_ONLY, SQ_PSN, vec![0; 10])]);
    assert_eq!(puppet.events(), []);
    puppet.say(&[ack(SQ_PSN)]);
    assert_eq!(puppet.events(), [completed(&puppet, 0)]);
}

/// RC-30.
#[test]
fn the_last_packet_before_a_stop_asks_for_an_acknowledgement() {
    let mut puppet = Puppet::new(&options());
    for _ in 0..5 {
        puppet.post(Operation::Write, 2 * MTU);
    }
    let asking: Vec<bool> = puppet.drain().iter().map(|sent| sent.ack_request).collect();
    assert_eq!(asking, [[false; 9].as_slice(), &[true]].concat());
    // The window ends long before the message does.
    let mut puppet = Puppet::new(&options());
    puppet.post(Operation::Write, 5000 * MTU);
    let sent = puppet.drain();
    assert_eq!(sent.len() as u64, roce::param::FIRST_WINDOW_PACKETS);
    assert!(sent.last().unwrap().ack_request);
    // Once it is wide, within it too.
    let last = |sent: &[Sent]| sent.last().unwrap().psn;
    let mut sent = sent;
    for _ in 0..3 {
        sent = puppet.say(&[ack(last(&sent))]);
        sent.extend(puppet.drain());
    }
    assert_eq!(sent.len() as u64, roce::param::WINDOW_PACKETS);
    assert!(sent.last().unwrap().ack_request);
    let often = sent.iter().filter(|sent| sent.ack_request).count();
    assert_eq!(often, sent.len() / roce::param::ACK_INTERVAL_PACKETS as usize);
}

/// RC-31.
#[test]
fn at_first_and_after_a_loss_little_is_sent_at_a_time_until_much_is_acknowledged() {
    let mut puppet = Puppet::new(&options());
    puppet.post(Operation::Write, 9000 * MTU);
    let at_first = roce::param::FIRST_WINDOW_PACKETS as u32;
    assert_eq!(psns(&puppet.drain()), (0..at_first).collect::<Vec<_>>());
    let (mut first, mut window) = (10, roce::param::LOSS_WINDOW_PACKETS as u32);
    let mut answer = sequence_nak(SQ_PSN + first);
    for _ in 0..8 {
        let mut sent = puppet.say(&[answer]);
        sent.extend(puppet.drain());
        assert_eq!(psns(&sent), (first..first + window).collect::<Vec<_>>());
        assert!(sent.last().unwrap().ack_request);
        first += window;
        window = (2 * window).min(roce::param::WINDOW_PACKETS as u32);
        answer = ack(SQ_PSN + first - 1);
    }
    assert_eq!(u64::from(window), roce::param::WINDOW_PACKETS);
}

/// RC-26, RC-27.
#[test]
fn a_fenced_message_waits_for_reads_and_the_number_of_reads_is_limited() {
    let mut puppet = Puppet::new(&Options { max_rd_atomic: 2, ..options() });
    for _ in 0..3 {
        puppet.post(Operation::Read, 10);
    }
    puppet.post_request(SendRequest {
        operation: Operation::Send,
        length: 0,
        remote_va: 0,
        rkey: 0,
        imm: 0,
        solicited: true,
        fence: true,
    });
    assert_eq!(psns(&puppet.drain()), [0, 1]);
    let only = |n: u32| response(code::READ_RESPONSE_ONLY, SQ_PSN + n, vec![0; 10]);
    assert_eq!(psns(&puppet.say(&[only(0)])), [2]);
    assert!(puppet.say(&[only(1)]).is_empty());
    let sent = puppet.say(&[only(2)]);
    assert_eq!((opcodes(&sent), psns(&sent)), (vec![code::SEND_ONLY], vec![3]));
}

/// RC-2, RC-9, RC-11, RC-12.
#[test]
fn frames_of_strangers_have_no_effect() {
    let mut puppet = Puppet::new(&options());
    puppet.post(Operation::Write, 10);
    puppet.drain();
    let nak = answer(SQ_PSN, Syndrome::Nak(NakCode::RemoteAccessError));
    let stranger = Some("10.7.0.98".parse().unwrap());
    puppet.say(&[
        Say { source: stranger, ..nak.clone() },
        Say { dest_qpn: Some(0x12), ..nak.clone() },
        Say { pkey: Some(0x8001), ..nak.clone() },
    ]);
    let mut damaged = puppet.frame(&nak);
    *damaged.last_mut().unwrap() ^= 1;
    puppet.feed(&[damaged]);
    let counters = puppet.node.stack.counters();
    assert_eq!(counters.drop_wrong_source, 1);
    assert_eq!(counters.drop_unknown_qp, 1);
    assert_eq!(counters.drop_bad_pkey, 1);
    assert_eq!(counters.rx_icrc_encapsulated, 1);
    assert_eq!((puppet.events(), puppet.state()), (vec![], QpState::Rts));
}
