//! Atomics: executed once, answered as often as asked.

use roce::opcode::code;
use roce::wire::aeth::{NakCode, Syndrome};
use roce::wire::extension::atomiceth;
use roce::{
    AccessFlags, AtomicOperation, Event, Instant, Operation, PathMtu, Placed, PostError, QpEvent,
    QpState, SendRequest, SendStatus,
};

use crate::connection::Options;
use crate::for_each_seed;
use crate::lossless::both_ways;
use crate::memory::Local;
use crate::network::{Network, bad};
use crate::puppet::{
    Puppet, RKEY, RQ_PSN, SQ_PSN, Say, Sent, VA, ack, answer, atomic_ack, compare_swap, fetch_add,
    rdma, response,
};
use crate::workload::{ATOMIC, Plan, run};

fn options() -> Options {
    Options { mtu: PathMtu::Mtu256, ..Options::default() }
}

/// The word at the start of the puppet's region.
fn word(puppet: &Puppet) -> u64 {
    u64::from_ne_bytes(puppet.node.memory.regions[&RKEY].bytes[..8].try_into().unwrap())
}

fn set_word(puppet: &mut Puppet, value: u64) {
    let region = puppet.node.memory.regions.get_mut(&RKEY).unwrap();
    region.bytes[..8].copy_from_slice(&value.to_ne_bytes());
}

/// PSNs and values of atomic acknowledgements, which is all that was said.
fn values(sent: &[Sent]) -> Vec<(u32, u64)> {
    assert!(sent.iter().all(|sent| matches!(sent.syndrome, Some(Syndrome::Ack { .. }))));
    sent.iter().map(|sent| (sent.psn - RQ_PSN, sent.value.unwrap())).collect()
}

/// RC-51, RC-99, RC-101.
#[test]
fn an_atomic_changes_its_word_and_is_answered_with_what_was_there() {
    let mut puppet = Puppet::new(&options());
    set_word(&mut puppet, u64::MAX - 1);
    let sent = puppet.say(&[fetch_add(RQ_PSN, VA, 5)]);
    assert_eq!((values(&sent), sent[0].msn, word(&puppet)), (vec![(0, u64::MAX - 1)], 1, 3));
    let sent = puppet.say(&[compare_swap(RQ_PSN + 1, VA, 2, 100)]);
    assert_eq!((values(&sent), sent[0].msn, word(&puppet)), (vec![(1, 3)], 2, 3));
    let sent = puppet.say(&[compare_swap(RQ_PSN + 2, VA, 3, 100)]);
    assert_eq!((values(&sent), sent[0].msn, word(&puppet)), (vec![(2, 3)], 3, 100));
    assert_eq!(puppet.node.stack.counters().rx_atomic_requests, 3);
    assert_eq!((puppet.events(), puppet.state()), (vec![], QpState::Rts));
}

/// RC-32, RC-46, RC-54, RC-99.
#[test]
fn requests_of_one_burst_find_what_those_before_them_left() {
    let mut puppet = Puppet::new(&options());
    let write =
        |n: u32, value: u64| rdma(code::WRITE_ONLY, RQ_PSN + n, 0, 8, value.to_ne_bytes().to_vec());
    let sent = puppet.say(&[
        write(0, 7),
        fetch_add(RQ_PSN + 1, VA, 1),
        fetch_add(RQ_PSN + 2, VA, 1),
        write(3, 50),
        compare_swap(RQ_PSN + 4, VA, 50, 60),
    ]);
    let said: Vec<_> = sent.iter().map(|sent| (sent.psn - RQ_PSN, sent.value)).collect();
    assert_eq!(said, [(0, None), (1, Some(7)), (2, Some(8)), (3, None), (4, Some(50))]);
    assert_eq!(word(&puppet), 60);
}

/// RC-100.
#[test]
fn a_repeated_atomic_is_answered_with_the_same_value_and_not_executed_again() {
    let mut puppet = Puppet::new(&options());
    let all: Vec<Say> = (0..6).map(|n| fetch_add(RQ_PSN + n, VA, 10)).collect();
    assert_eq!(values(&puppet.say(&all[..4])), [(0, 0), (1, 10), (2, 20), (3, 30)]);
    assert_eq!(values(&puppet.say(&all[4..])), [(4, 40), (5, 50)]);
    set_word(&mut puppet, 1000);
    // The latest `max_dest_rd_atomic` are known.
    let again = puppet.say(&all);
    assert_eq!(values(&again), [(2, 20), (3, 30), (4, 40), (5, 50)]);
    assert_eq!(again.iter().map(|sent| sent.msn).collect::<Vec<_>>(), [3, 4, 5, 6]);
    assert_eq!(word(&puppet), 1000);
    let counters = puppet.node.stack.counters();
    assert_eq!((counters.rx_atomic_requests, counters.duplicate_request), (6, 6));
    assert_eq!(counters.drop_duplicate_read, 2);
    // A READ of the same PSN was never there.
    assert!(puppet.say(&[rdma(code::READ_REQUEST, RQ_PSN + 5, 0, 8, vec![])]).is_empty());
    // Known in one burst with the first, where nothing is executed yet.
    let next = fetch_add(RQ_PSN + 6, VA, 1);
    assert_eq!(values(&puppet.say(&[next.clone(), next])), [(6, 1000)]);
    assert_eq!((word(&puppet), puppet.events()), (1001, vec![]));
}

/// RC-34, RC-54, RC-100.
#[test]
fn an_acknowledgement_said_again_does_not_overtake_an_atomic() {
    let mut puppet = Puppet::new(&options());
    let write = rdma(code::WRITE_ONLY, RQ_PSN, 8, 8, vec![1; 8]);
    puppet.say(&[write.clone(), fetch_add(RQ_PSN + 1, VA, 1)]);
    let again = puppet.say(&[write, fetch_add(RQ_PSN + 1, VA, 1)]);
    let said: Vec<_> = again.iter().map(|sent| (sent.psn - RQ_PSN, sent.msn, sent.value)).collect();
    assert_eq!(said, [(0, 1, None), (1, 2, Some(0))]);
}

fn assert_refused(puppet: &mut Puppet, say: Say, code: NakCode, kind: QpEvent) {
    let sent = puppet.say(&[say]);
    let refusal = Some(Syndrome::Nak(code));
    let [nak] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!((nak.psn, nak.msn, nak.syndrome), (RQ_PSN, 0, refusal));
    let qpn = puppet.qpn;
    assert_eq!(puppet.events(), [Event::Async { qpn, kind }, Event::EnteredError { qpn }]);
    assert_eq!(word(puppet), 0);
}

/// RC-43, RC-45.
#[test]
fn an_atomic_that_the_queue_pair_does_not_allow_or_that_is_misaligned_is_invalid() {
    let access = AccessFlags::all() - AccessFlags::REMOTE_ATOMIC;
    for (options, va) in [
        (Options { access, ..options() }, VA),
        (Options { max_dest_rd_atomic: 0, ..options() }, VA),
        (options(), VA + 4),
        (options(), VA + 1),
    ] {
        for say in [fetch_add(RQ_PSN, va, 1), compare_swap(RQ_PSN, va, 0, 1)] {
            let mut puppet = Puppet::new(&options);
            assert_refused(&mut puppet, say, NakCode::InvalidRequest, QpEvent::RequestError);
        }
    }
}

/// RC-36. The header is all that there is.
#[test]
fn an_atomic_with_payload_is_invalid() {
    let say = Say { payload: vec![1; 4], ..fetch_add(RQ_PSN, VA, 1) };
    let mut puppet = Puppet::new(&options());
    assert_refused(&mut puppet, say, NakCode::InvalidRequest, QpEvent::RequestError);
}

/// RC-41.
#[test]
fn a_key_that_does_not_allow_an_atomic_is_an_access_error() {
    let key = |rkey, va| {
        let say = fetch_add(RQ_PSN, va, 1);
        Say { atomic: say.atomic.map(|atomic| atomiceth::Repr { rkey, ..atomic }), ..say }
    };
    for say in [key(RKEY + 1, VA), key(RKEY, VA + 65_536), key(RKEY, VA - 8), key(RKEY, !7)] {
        let mut puppet = Puppet::new(&options());
        assert_refused(&mut puppet, say, NakCode::RemoteAccessError, QpEvent::AccessError);
    }
    let mut puppet = Puppet::new(&options());
    puppet.node.memory.regions.get_mut(&RKEY).unwrap().writable = false;
    let say = fetch_add(RQ_PSN, VA, 1);
    assert_refused(&mut puppet, say, NakCode::RemoteAccessError, QpEvent::AccessError);
}

/// RC-44.
#[test]
fn more_reads_and_atomics_than_agreed_are_refused() {
    let mut puppet = Puppet::new(&Options { max_dest_rd_atomic: 2, ..options() });
    let sent = puppet.say(&[
        rdma(code::READ_REQUEST, RQ_PSN, 0, 8, vec![]),
        fetch_add(RQ_PSN + 1, VA, 1),
        fetch_add(RQ_PSN + 2, VA, 1),
    ]);
    let nak = sent.last().unwrap();
    let refusal = Some(Syndrome::Nak(NakCode::InvalidRequest));
    assert_eq!((nak.psn, nak.msn, nak.syndrome), (RQ_PSN + 2, 2, refusal));
    assert_eq!(sent[1].value, Some(0), "the one before is answered");
    assert_eq!((word(&puppet), puppet.state()), (1, QpState::Err));
}

/// RC-47, RC-88.
#[test]
fn an_atomic_whose_memory_went_away_is_an_operational_error() {
    for placed in [Placed::Failed, Placed::Copied] {
        let mut puppet = Puppet::new(&options());
        let mut frames =
            [fetch_add(RQ_PSN, VA, 1), fetch_add(RQ_PSN + 1, VA, 1)].map(|say| puppet.frame(&say));
        let (now, mut placements) = (Instant(puppet.now), Vec::new());
        for (index, frame) in frames.iter_mut().enumerate() {
            let node = &mut puppet.node;
            let taken = node.stack.receive(now, frame, index, &mut node.memory, &mut placements);
            assert!(taken.is_ready());
        }
        puppet.node.stack.commit(now, &[Placed::Executed { before: 9 }, placed]);
        let sent = puppet.drain();
        assert_eq!((sent[0].value, sent[0].msn), (Some(9), 1));
        let refusal = Some(Syndrome::Nak(NakCode::RemoteOperationalError));
        assert_eq!((sent[1].psn, sent[1].msn, sent[1].syndrome), (RQ_PSN + 1, 1, refusal));
        assert_eq!(sent.len(), 2);
        let (qpn, kind) = (puppet.qpn, QpEvent::Fatal);
        puppet.round();
        assert_eq!(puppet.events(), [Event::Async { qpn, kind }, Event::EnteredError { qpn }]);
    }
}

fn atomic(operation: AtomicOperation) -> SendRequest {
    SendRequest {
        operation: Operation::Atomic(operation),
        length: AtomicOperation::LENGTH,
        remote_va: VA,
        rkey: RKEY,
        imm: 0,
        solicited: false,
        fence: false,
    }
}

const ADD: AtomicOperation = AtomicOperation::FetchAdd { add: 0x0102_0304_0506_0708 };
const SWAP: AtomicOperation = AtomicOperation::CompareSwap { compare: 5, swap: 6 };

/// The result of a message of the puppet's stack.
fn result(puppet: &Puppet, message: u64) -> u64 {
    match &puppet.node.memory.messages[&(puppet.qpn.value(), message)] {
        Local::Buffer(bytes) => u64::from_ne_bytes(bytes[..].try_into().unwrap()),
        other => panic!("{other:?}"),
    }
}

fn completed(puppet: &Puppet, through: u64) -> Event {
    Event::SendsCompleted { qpn: puppet.qpn, through }
}

/// RC-20, RC-25, RC-99, RC-101.
#[test]
fn an_atomic_is_one_packet_and_complete_with_its_result() {
    let mut puppet = Puppet::new(&options());
    puppet.post_request(atomic(ADD));
    puppet.post_request(atomic(SWAP));
    let sent = puppet.drain();
    let said: Vec<_> = sent.iter().map(|sent| (sent.opcode, sent.psn - SQ_PSN)).collect();
    assert_eq!(said, [(code::FETCH_ADD, 0), (code::COMPARE_SWAP, 1)]);
    let (va, rkey) = (VA, RKEY);
    let swap_or_add = 0x0102_0304_0506_0708;
    assert_eq!(sent[0].atomic, Some(atomiceth::Repr { va, rkey, swap_or_add, compare: 0 }));
    assert_eq!(sent[1].atomic, Some(atomiceth::Repr { va, rkey, swap_or_add: 6, compare: 5 }));
    assert!(puppet.say(&[atomic_ack(SQ_PSN, 0x1122_3344_5566_7788)]).is_empty());
    assert_eq!(puppet.events(), [completed(&puppet, 0)]);
    assert_eq!((result(&puppet, 0), result(&puppet, 1)), (0x1122_3344_5566_7788, 0));
    // The same again is about nothing.
    puppet.say(&[atomic_ack(SQ_PSN, 1), atomic_ack(SQ_PSN + 1, 2)]);
    assert_eq!(puppet.events(), [completed(&puppet, 1)]);
    assert_eq!((result(&puppet, 0), result(&puppet, 1)), (0x1122_3344_5566_7788, 2));
}

/// RC-26, RC-27.
#[test]
fn atomics_and_reads_share_max_rd_atomic_and_a_fence_waits_for_both() {
    let mut puppet = Puppet::new(&Options { max_rd_atomic: 2, ..options() });
    puppet.post(Operation::Read, 8);
    puppet.post_request(atomic(ADD));
    puppet.post_request(atomic(SWAP));
    puppet.post_request(SendRequest { fence: true, operation: Operation::Write, ..atomic(ADD) });
    let psns = |sent: &[Sent]| sent.iter().map(|sent| sent.psn - SQ_PSN).collect::<Vec<_>>();
    assert_eq!(psns(&puppet.drain()), [0, 1]);
    let read = response(code::READ_RESPONSE_ONLY, SQ_PSN, vec![0; 8]);
    assert_eq!(psns(&puppet.say(&[read])), [2]);
    assert!(puppet.say(&[atomic_ack(SQ_PSN + 1, 0)]).is_empty());
    assert_eq!(psns(&puppet.say(&[atomic_ack(SQ_PSN + 2, 0)])), [3]);
    let mut puppet = Puppet::new(&Options { max_rd_atomic: 0, ..options() });
    let (now, qpn) = (Instant(puppet.now), puppet.qpn);
    let mut post = |request| puppet.node.stack.post_send(now, qpn, request);
    assert_eq!(post(atomic(ADD)), Err(PostError::ReadsDisabled(qpn)));
    let mut puppet = Puppet::new(&options());
    let short = SendRequest { length: 4, ..atomic(ADD) };
    let refused = puppet.node.stack.post_send(now, qpn, short);
    assert_eq!(refused, Err(PostError::AtomicLength(4)));
}

/// RC-31, RC-68, RC-69.
#[test]
fn a_lost_answer_to_an_atomic_is_asked_for_again() {
    let mut puppet = Puppet::new(&options());
    puppet.post(Operation::Write, 8);
    puppet.post_request(atomic(ADD));
    puppet.post_request(atomic(SWAP));
    let first = puppet.drain();
    assert_eq!(first.len(), 3);
    // The answer to the second shows that the one to the first is lost; that of the WRITE is not.
    let again = puppet.say(&[atomic_ack(SQ_PSN + 2, 8)]);
    assert_eq!(again, first[1..]);
    assert_eq!(puppet.events(), [completed(&puppet, 0)]);
    // So does an acknowledgement, which tells no value; once for each place.
    assert!(puppet.say(&[ack(SQ_PSN + 1), ack(SQ_PSN + 2)]).is_empty());
    assert_eq!(puppet.node.stack.counters().implied_nak_seq_err, 1);
    assert_eq!((puppet.events(), result(&puppet, 2)), (vec![], 0));
    puppet.say(&[atomic_ack(SQ_PSN + 1, 7), atomic_ack(SQ_PSN + 2, 8)]);
    assert_eq!(puppet.events(), [completed(&puppet, 1), completed(&puppet, 2)]);
    assert_eq!((result(&puppet, 1), result(&puppet, 2)), (7, 8));
}

/// RC-75.
#[test]
fn an_atomic_that_nobody_answers_is_repeated_and_fails_in_the_end() {
    let mut puppet = Puppet::new(&Options { retry_cnt: 1, ..options() });
    puppet.post_request(atomic(ADD));
    let first = puppet.drain();
    let (_, again) = puppet.time_out();
    assert_eq!(again, first);
    assert!(puppet.time_out().1.is_empty());
    let (qpn, status) = (puppet.qpn, SendStatus::RetryExceeded);
    let failed = Event::SendFailed { qpn, message: 0, status };
    assert_eq!(puppet.events(), [failed, Event::EnteredError { qpn }]);
}

/// RC-61, RC-72.
#[test]
fn answers_of_another_kind_than_was_asked_for_are_dropped() {
    let mut puppet = Puppet::new(&options());
    puppet.post_request(atomic(ADD));
    puppet.post(Operation::Read, 8);
    puppet.drain();
    let read = |n| response(code::READ_RESPONSE_ONLY, SQ_PSN + n, vec![1; 8]);
    puppet.say(&[read(0)]);
    let nak = Say { aeth: answer(0, Syndrome::RnrNak { timer: 1 }).aeth, ..atomic_ack(SQ_PSN, 1) };
    puppet.say(&[nak]);
    assert_eq!((puppet.events(), result(&puppet, 0)), (vec![], 0));
    puppet.say(&[atomic_ack(SQ_PSN, 4), atomic_ack(SQ_PSN + 1, 5)]);
    assert_eq!(puppet.events(), [completed(&puppet, 0)]);
    puppet.say(&[read(1)]);
    assert_eq!(puppet.events(), [completed(&puppet, 1)]);
    assert_eq!(result(&puppet, 1), u64::from_ne_bytes([1; 8]));
}

/// RC-60.
#[test]
fn a_refused_atomic_fails_with_its_status() {
    for (code, status) in [
        (NakCode::InvalidRequest, SendStatus::RemoteInvalidRequest),
        (NakCode::RemoteAccessError, SendStatus::RemoteAccess),
        (NakCode::RemoteOperationalError, SendStatus::RemoteOperation),
    ] {
        let mut puppet = Puppet::new(&options());
        puppet.post_request(atomic(ADD));
        puppet.drain();
        puppet.say(&[answer(SQ_PSN, Syndrome::Nak(code))]);
        let qpn = puppet.qpn;
        let failed = Event::SendFailed { qpn, message: 0, status };
        assert_eq!(puppet.events(), [failed, Event::EnteredError { qpn }]);
    }
}

/// RC-86.
#[test]
fn a_result_that_cannot_be_placed_is_a_local_error() {
    let mut puppet = Puppet::new(&options());
    let number = puppet.post_request(atomic(ADD));
    let message = (puppet.qpn.value(), number);
    puppet.node.memory.messages.insert(message, Local::Unreadable);
    puppet.drain();
    puppet.say(&[atomic_ack(SQ_PSN, 4)]);
    let (qpn, status) = (puppet.qpn, SendStatus::LocalProtection);
    let failed = Event::SendFailed { qpn, message: 0, status };
    assert_eq!(puppet.events(), [failed, Event::EnteredError { qpn }]);
}

/// RC-99, RC-100. `counting` has the checks.
#[test]
fn each_atomic_is_executed_once_over_bad_cables() {
    for_each_seed("each_atomic_is_executed_once_over_bad_cables", 20, |seed| {
        let mut network = Network::new(seed, 2, bad(800));
        let depth = 1 + (seed % 4) as u8;
        let options = Options { max_rd_atomic: depth, max_dest_rd_atomic: depth, ..options() };
        let plan = Plan { only: Some(ATOMIC), ..Plan::mixed(150, options.mtu) };
        let mut flows = both_ways(&mut network, &options, &plan);
        flows.extend(both_ways(&mut network, &options, &plan));
        run(&mut network, &mut flows, 600_000_000_000);
        let again: u64 =
            network.sim.hosts.iter().map(|node| node.stack.counters().duplicate_request).sum();
        assert!(again != 0, "none came twice");
    });
}
