//! Rules of the responder, against a puppet requester.

use roce::opcode::code;
use roce::wire::aeth::{NakCode, Syndrome};
use roce::{AccessFlags, Event, PathMtu, Placed, QpEvent, QpState, ReceiveStatus};

use crate::connection::Options;
use crate::puppet::{Puppet, RKEY, RQ_PSN, Say, Sent, VA, rdma, request};
use trial::rng::pattern_vec;

const MTU: usize = 256;
/// The acknowledgement where no message has needed a receive request before, or there was one.
const ACK: Syndrome = Syndrome::Ack { credits: 0 };

fn puppet() -> Puppet {
    Puppet::new(&Options { mtu: PathMtu::Mtu256, ..Options::default() })
}

fn write(n: u32) -> Say {
    rdma(code::WRITE_ONLY, RQ_PSN + n, u64::from(n) * 8, 8, vec![(n as u8).wrapping_add(1); 8])
}

fn read(n: u32, offset: u64, length: u32) -> Say {
    rdma(code::READ_REQUEST, RQ_PSN + n, offset, length, vec![])
}

/// Syndromes and PSNs of the stack's answers.
fn answers(sent: &[Sent]) -> Vec<(u32, Syndrome)> {
    sent.iter().map(|sent| (sent.psn - RQ_PSN, sent.syndrome.unwrap())).collect()
}

fn psns(sent: &[Sent]) -> Vec<u32> {
    sent.iter().map(|sent| sent.psn - RQ_PSN).collect()
}

fn msns(sent: &[Sent]) -> Vec<u32> {
    sent.iter().map(|sent| sent.msn).collect()
}

/// The packet was refused, and all before it of those that are answered in `sent` were not.
fn assert_refused(puppet: &mut Puppet, sent: &[Sent], psn: u32, nak: NakCode, events: &[Event]) {
    let before = (psn + 1 - sent.len() as u32..psn).map(|psn| (psn, ACK));
    let all: Vec<_> = before.chain([(psn, Syndrome::Nak(nak))]).collect();
    assert_eq!(answers(sent), all);
    assert_eq!(puppet.events(), events);
    assert_eq!(puppet.state(), QpState::Err);
}

/// The events of a request refused for `kind`.
fn refusal(puppet: &Puppet, kind: QpEvent) -> [Event; 2] {
    let qpn = puppet.qpn;
    [Event::Async { qpn, kind }, Event::EnteredError { qpn }]
}

/// RC-19, RC-32, RC-50, RC-51, RC-52.
#[test]
fn each_packet_that_asks_gets_an_acknowledgement_of_its_own() {
    let mut puppet = puppet();
    let sent = puppet.say(&(0..20).map(write).collect::<Vec<_>>());
    assert_eq!(answers(&sent), (0..20).map(|n| (n, ACK)).collect::<Vec<_>>());
    assert_eq!(msns(&sent), (1..=20).collect::<Vec<_>>());
    let memory = &puppet.node.memory.regions[&RKEY].bytes;
    assert_eq!(memory[8..16], [2; 8]);
    // Without a question there is no answer.
    let quiet = Say { ack_request: false, ..write(20) };
    assert!(puppet.say(&[quiet]).is_empty());
}

/// RC-50, RC-51.
#[test]
fn an_acknowledgement_counts_the_messages_up_to_its_own_packet() {
    let mut puppet = puppet();
    for _ in 0..3 {
        puppet.node.memory.post_receive(puppet.qpn, 1000);
    }
    let send = |n, opcode, length| request(opcode, RQ_PSN + n, vec![0; length]);
    let imm = |say: Say| Say { imm: Some(7), ..say };
    let burst = [
        rdma(code::WRITE_FIRST, RQ_PSN, 0, 600, vec![1; 256]),
        send(1, code::WRITE_MIDDLE, 256),
        send(2, code::WRITE_LAST, 88),
        read(3, 0, 300),
        send(5, code::SEND_FIRST, 256),
        imm(send(6, code::SEND_LAST_IMM, 1)),
        Say { ack_request: false, ..write(7) },
        send(8, code::SEND_ONLY, 0),
        rdma(code::WRITE_FIRST, RQ_PSN + 9, 0, 300, vec![1; 256]),
        imm(send(10, code::WRITE_LAST_IMM, 44)),
        write(11),
    ];
    let sent = puppet.say(&burst);
    assert_eq!(psns(&sent), [0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11]);
    assert_eq!(msns(&sent), [0, 0, 1, 2, 2, 2, 3, 5, 5, 6, 7]);
}

/// RC-50. A requester with 16 places for packets, that frees the oldest by each acknowledgement,
/// without regard to its PSN.
#[test]
fn a_requester_that_counts_acknowledgements_gets_all_its_places_back() {
    let mut puppet = puppet();
    let (mut under_way, mut next, mut acknowledged) = (0, 0, 0);
    while acknowledged < 276 {
        let burst: Vec<_> = (next..next + 16 - under_way).map(write).collect();
        (next, under_way) = (next + burst.len() as u32, 16);
        // Some now, some with the next burst.
        let (now, later) = burst.split_at(burst.len() / 2);
        for part in [now, later] {
            let answered = puppet.say(part).len() as u32;
            (under_way, acknowledged) = (under_way - answered, acknowledged + answered);
        }
    }
    assert_eq!((under_way, acknowledged), (0, next));
}

/// RC-33, RC-53.
#[test]
fn a_gap_is_reported_once_and_what_follows_is_dropped() {
    let mut puppet = puppet();
    let nak = |psn| (psn, Syndrome::Nak(NakCode::PsnSequenceError));
    assert_eq!(answers(&puppet.say(&[write(0), write(2), write(3)])), [(0, ACK), nak(1)]);
    assert!(puppet.say(&[write(4), write(5)]).is_empty());
    assert_eq!(puppet.node.memory.regions[&RKEY].bytes[16], 0);
    assert_eq!(answers(&puppet.say(&[write(1), write(2)])), [(1, ACK), (2, ACK)]);
    assert_eq!(answers(&puppet.say(&[write(4)])), [nak(3)]);
    let counters = puppet.node.stack.counters();
    assert_eq!((counters.out_of_sequence, counters.sent_seq_err), (5, 2));
    assert_eq!(counters.drop_after_gap, 3);
}

/// RC-53.
#[test]
fn a_gap_that_closes_in_the_same_burst_is_reported_from_where_it_is() {
    let mut puppet = puppet();
    let sent = puppet.say(&[write(1), write(0)]);
    assert_eq!(answers(&sent), [(0, ACK), (1, Syndrome::Nak(NakCode::PsnSequenceError))]);
    let sent = puppet.say(&[write(2), write(1), write(2)]);
    assert_eq!(answers(&sent), [(1, ACK), (2, ACK)]);
}

/// RC-34.
#[test]
fn repetitions_are_acknowledged_and_not_executed_again() {
    let mut puppet = puppet();
    puppet.say(&[write(0), write(1)]);
    puppet.node.memory.regions.get_mut(&RKEY).unwrap().bytes.fill(0x55);
    assert_eq!(answers(&puppet.say(&[write(0)])), [(1, ACK)]);
    assert_eq!(puppet.node.memory.regions[&RKEY].bytes[0], 0x55);
    assert_eq!(puppet.node.stack.counters().duplicate_request, 1);
}

/// RC-34, RC-50.
#[test]
fn each_repetition_that_asks_is_acknowledged() {
    let mut puppet = puppet();
    let quiet = |n| Say { ack_request: false, ..write(n) };
    puppet.say(&[write(0), write(1), write(2)]);
    let sent = puppet.say(&[write(0), write(1), write(2)]);
    assert_eq!((answers(&sent), msns(&sent)), (vec![(2, ACK); 3], vec![3; 3]));
    assert!(puppet.say(&[quiet(0), quiet(1), quiet(2)]).is_empty());
    assert_eq!(answers(&puppet.say(&[write(0), quiet(1)])), [(2, ACK)]);
    // New packets are owed an acknowledgement anyway.
    assert_eq!(answers(&puppet.say(&[write(3), quiet(1), write(4), write(2)])), {
        [(3, ACK), (4, ACK), (4, ACK)]
    });
}

/// RC-34.
#[test]
fn repetitions_that_do_not_ask_are_not_acknowledged() {
    let mut puppet = puppet();
    let silent = |say: Say| Say { ack_request: false, ..say };
    let message = [
        silent(rdma(code::WRITE_FIRST, RQ_PSN, 0, 600, vec![1; 256])),
        silent(request(code::WRITE_MIDDLE, RQ_PSN + 1, vec![2; 256])),
        request(code::WRITE_LAST, RQ_PSN + 2, vec![3; 88]),
    ];
    assert_eq!(answers(&puppet.say(&message)), [(2, ACK)]);
    assert!(puppet.say(&message[..2]).is_empty(), "the peer has not repeated all yet");
    assert_eq!(answers(&puppet.say(&message[2..])), [(2, ACK)]);
    assert_eq!(puppet.node.stack.counters().duplicate_request, 3);
}

/// RC-54, RC-66, RC-67.
#[test]
fn reads_are_answered_in_order_and_again_from_anywhere() {
    let mut puppet = puppet();
    let bytes = pattern_vec(3, 0, 65_536);
    puppet.node.memory.regions.get_mut(&RKEY).unwrap().bytes = bytes.clone();
    let sent = puppet.say(&[read(0, 100, 600), read(3, 0, 0), write(4)]);
    let codes: Vec<u8> = sent.iter().map(|sent| sent.opcode).collect();
    assert_eq!(
        codes,
        [
            code::READ_RESPONSE_FIRST,
            code::READ_RESPONSE_MIDDLE,
            code::READ_RESPONSE_LAST,
            code::READ_RESPONSE_ONLY,
            code::ACKNOWLEDGE
        ]
    );
    assert_eq!(psns(&sent), [0, 1, 2, 3, 4]);
    let all: Vec<u8> = sent.iter().flat_map(|sent| sent.payload.clone()).collect();
    assert!(all == bytes[100..700]);
    let bytes = puppet.node.memory.regions[&RKEY].bytes.clone();
    let again = puppet.say(&[read(1, 100 + MTU as u64, 600 - MTU as u32)]);
    let codes: Vec<u8> = again.iter().map(|sent| sent.opcode).collect();
    assert_eq!(codes, [code::READ_RESPONSE_FIRST, code::READ_RESPONSE_LAST]);
    assert_eq!(psns(&again), [1, 2]);
    let all: Vec<u8> = again.iter().flat_map(|sent| sent.payload.clone()).collect();
    assert!(all == bytes[100 + MTU..700]);
}

/// RC-67.
#[test]
fn a_repeated_read_must_be_the_one_that_was_asked() {
    let mut puppet = puppet();
    puppet.say(&[read(0, 100, 600)]);
    for wrong in [
        read(1, 100, 600 - 256),
        read(1, 100 + 256, 600),
        read(0, 100, 601),
        Say {
            reth: read(0, 100, 600).reth.map(|r| roce::wire::reth::Repr { rkey: 1, ..r }),
            ..read(0, 100, 600)
        },
    ] {
        assert!(puppet.say(&[wrong]).is_empty());
    }
    assert_eq!(puppet.node.stack.counters().drop_duplicate_read, 4);
    // A key that was revoked in the meantime makes the repetition a ghost, not an error.
    puppet.node.memory.regions.clear();
    assert!(puppet.say(&[read(0, 100, 600)]).is_empty());
    assert_eq!(puppet.state(), QpState::Rts);
}

/// RC-34, RC-54.
#[test]
fn a_repeated_write_before_a_read_acknowledges_nothing_beyond_the_read() {
    let mut puppet = puppet();
    puppet.say(&[write(0), read(1, 0, 300), write(3)]);
    let sent = puppet.say(&[write(0)]);
    assert_eq!((answers(&sent), msns(&sent)), (vec![(0, ACK)], vec![1]));
    assert_eq!(answers(&puppet.say(&[write(3)])), [(3, ACK)]);
    let sent = puppet.say(&[write(0), read(1, 0, 300), write(3), write(4)]);
    assert_eq!(psns(&sent), [0, 1, 2, 3, 4]);
    // It is the first to go behind new packets as well.
    let sent = puppet.say(&[write(5), write(6), write(0), read(1, 0, 300), write(0)]);
    assert_eq!(psns(&sent), [0, 0, 1, 2, 5, 6]);
}

/// RC-50, RC-54.
#[test]
fn acknowledgements_wait_for_the_responses_of_reads_before_them_and_for_no_others() {
    let mut puppet = puppet();
    let burst = [write(0), read(1, 0, 300), write(3), write(4), read(5, 0, 600), write(8)];
    let sent = puppet.say(&burst);
    assert_eq!(psns(&sent), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(msns(&sent)[2..5], [2, 3, 4]);
}

/// RC-50. A request that there is no room to acknowledge is not executed, and asked for again.
#[test]
fn more_acknowledgements_than_can_be_owed_are_refused_with_their_packets() {
    let mut puppet = puppet();
    // They wait behind a READ. Of three packets two ask, so that none are at even distances.
    let packet = |n: u32| Say { ack_request: n % 3 != 0, ..write(n) };
    let packets: Vec<u32> = (256..256 + 1_800).collect();
    let mut burst = vec![read(0, 0, 65_536)];
    burst.extend(packets.iter().map(|&n| packet(n)));
    let mut sent = puppet.say(&burst);
    sent.extend(puppet.drain());
    let room = 2 * roce::param::OWED_RUNS;
    let asking: Vec<u32> = packets.iter().copied().filter(|n| n % 3 != 0).collect();
    assert_eq!(psns(&sent), (0..256).chain(asking[..=room].iter().copied()).collect::<Vec<_>>());
    let nak = sent.pop().unwrap();
    assert_eq!(nak.syndrome, Some(Syndrome::Nak(NakCode::PsnSequenceError)));
    let first = asking[room];
    let counters = puppet.node.stack.counters();
    let left = packets.iter().filter(|&&n| n > first).count() as u64;
    assert_eq!((counters.drop_ack_queue, counters.out_of_sequence), (1, left));
    let rest: Vec<Say> = (first..256 + 1_800).map(packet).collect();
    let mut sent = puppet.say(&rest);
    sent.extend(puppet.drain());
    assert_eq!(psns(&sent), asking[room..]);
}

/// RC-62.
#[test]
fn without_a_receive_request_a_send_is_put_off() {
    let mut puppet = puppet();
    let send = request(code::SEND_ONLY, RQ_PSN, vec![9; 5]);
    let next = request(code::SEND_ONLY, RQ_PSN + 1, vec![8; 5]);
    let rnr = (0, Syndrome::RnrNak { timer: 1 });
    assert_eq!(answers(&puppet.say(&[send.clone(), next.clone()])), [rnr]);
    assert!(puppet.say(std::slice::from_ref(&next)).is_empty());
    assert_eq!(answers(&puppet.say(std::slice::from_ref(&send))), [rnr]);
    let id = puppet.node.memory.post_receive(puppet.qpn, 5);
    assert_eq!(answers(&puppet.say(&[send])), [(0, ACK)]);
    assert!(
        matches!(puppet.events()[..], [Event::ReceiveCompleted { id: got, length: 5, .. }] if got == id)
    );
    let counters = puppet.node.stack.counters();
    assert_eq!((counters.send_rnr_err, counters.out_of_buffer), (2, 2));
}

/// RC-50, RC-62.
#[test]
fn between_a_nak_and_what_it_asks_for_nothing_new_is_acknowledged() {
    let mut puppet = puppet();
    let send = |n| request(code::SEND_ONLY, RQ_PSN + n, vec![9; 5]);
    let rnr = |n| (n, Syndrome::RnrNak { timer: 1 });
    let burst = [write(0), write(1), send(2), write(3), send(4)];
    assert_eq!(answers(&puppet.say(&burst)), [(0, ACK), (1, ACK), rnr(2)]);
    assert!(puppet.say(&burst[3..]).is_empty());
    puppet.node.memory.post_receive(puppet.qpn, 5);
    assert_eq!(answers(&puppet.say(&burst[2..])), [(2, ACK), (3, ACK), rnr(4)]);
    puppet.node.memory.post_receive(puppet.qpn, 5);
    assert_eq!(answers(&puppet.say(&burst[4..])), [(4, ACK)]);
}

/// RC-39, RC-62.
#[test]
fn a_write_with_immediate_that_was_put_off_is_executed_whole_later() {
    let mut puppet = puppet();
    let first = rdma(code::WRITE_FIRST, RQ_PSN, 0, 300, vec![1; 256]);
    let last = Say { imm: Some(5), ..request(code::WRITE_LAST_IMM, RQ_PSN + 1, vec![2; 44]) };
    let rnr = (1, Syndrome::RnrNak { timer: 1 });
    assert_eq!(answers(&puppet.say(&[first, last.clone()])), [(0, ACK), rnr]);
    assert_eq!(puppet.node.memory.regions[&RKEY].bytes[256], 0);
    puppet.node.memory.post_receive(puppet.qpn, 0);
    assert_eq!(answers(&puppet.say(&[last])), [(1, ACK)]);
    assert_eq!(puppet.node.memory.regions[&RKEY].bytes[256..300], [2; 44]);
    assert!(matches!(
        puppet.events()[..],
        [Event::ReceiveCompleted { length: 300, imm: Some(5), .. }]
    ));
}

/// RC-35, RC-36, RC-37, RC-45.
#[test]
fn packets_out_of_their_place_in_a_message_are_invalid() {
    let wrong = [
        request(code::WRITE_MIDDLE, RQ_PSN, vec![0; 256]),
        request(code::SEND_LAST, RQ_PSN, vec![0; 2]),
        // Lengths.
        rdma(code::WRITE_FIRST, RQ_PSN, 0, 300, vec![0; 255]),
        rdma(code::WRITE_ONLY, RQ_PSN, 0, 9, vec![0; 8]),
        rdma(code::WRITE_FIRST, RQ_PSN, 0, 256, vec![0; 256]),
        rdma(code::WRITE_ONLY, RQ_PSN, 0, 300, vec![0; 300]),
    ];
    for say in wrong {
        let mut puppet = puppet();
        let sent = puppet.say(&[say]);
        let events = refusal(&puppet, QpEvent::RequestError);
        assert_refused(&mut puppet, &sent, 0, NakCode::InvalidRequest, &events);
    }
}

/// RC-6, RC-7.
#[test]
fn a_reserved_opcode_is_invalid_when_its_turn_comes() {
    let mut puppet = puppet();
    let reserved = |n| request(0x1c, RQ_PSN + n, vec![0; 8]);
    let nak = (0, Syndrome::Nak(NakCode::PsnSequenceError));
    assert_eq!(answers(&puppet.say(&[reserved(1)])), [nak]);
    assert_eq!(answers(&puppet.say(&[write(0)])), [(0, ACK)]);
    assert!(puppet.say(&[reserved(0), request(0x3c, RQ_PSN + 1, vec![])]).is_empty());
    assert_eq!(puppet.state(), QpState::Rts);
    let sent = puppet.say(&[reserved(1)]);
    let events = refusal(&puppet, QpEvent::RequestError);
    assert_refused(&mut puppet, &sent, 1, NakCode::InvalidRequest, &events);
}

/// RC-35.
#[test]
fn a_new_message_inside_another_is_invalid() {
    for inside in [write(1), read(1, 0, 8), request(code::SEND_ONLY, RQ_PSN + 1, vec![])] {
        let mut puppet = puppet();
        let sent = puppet.say(&[rdma(code::WRITE_FIRST, RQ_PSN, 0, 1000, vec![0; 256]), inside]);
        assert_eq!(sent.len(), 2);
        let events = refusal(&puppet, QpEvent::RequestError);
        assert_refused(&mut puppet, &sent, 1, NakCode::InvalidRequest, &events);
    }
}

/// RC-41, RC-43, RC-88.
#[test]
fn access_that_is_not_granted_is_refused() {
    let denied = |say: Say, va, rkey, length| {
        let mut puppet = puppet();
        let reth = Some(roce::wire::reth::Repr { va, rkey, dma_length: length });
        let sent = puppet.say(&[Say { reth, ..say }]);
        let events = refusal(&puppet, QpEvent::AccessError);
        assert_refused(&mut puppet, &sent, 0, NakCode::RemoteAccessError, &events);
    };
    denied(write(0), VA, RKEY + 1, 8);
    denied(write(0), VA - 1, RKEY, 8);
    denied(write(0), VA + 65_536 - 7, RKEY, 8);
    denied(write(0), u64::MAX - 3, RKEY, 8);
    denied(read(0, 0, 0), VA, RKEY, 65_537);
    denied(read(0, 0, 0), u64::MAX, RKEY, 2);
    // An operation that the QP does not allow at all is an invalid request.
    for say in [write(0), read(0, 0, 8)] {
        let access = AccessFlags::empty();
        let mut puppet =
            Puppet::new(&Options { mtu: PathMtu::Mtu256, access, ..Options::default() });
        let sent = puppet.say(&[say]);
        let events = refusal(&puppet, QpEvent::RequestError);
        assert_refused(&mut puppet, &sent, 0, NakCode::InvalidRequest, &events);
    }
}

/// RC-10, RC-55.
#[test]
fn what_was_asked_before_a_refusal_is_still_answered() {
    let mut puppet = puppet();
    let sent = puppet.say(&[
        write(0),
        read(1, 0, 300),
        write(3),
        request(code::SEND_LAST, RQ_PSN + 4, vec![1]),
    ]);
    assert_eq!(psns(&sent), [0, 1, 2, 3, 4]);
    assert_eq!(msns(&sent)[3..], [3, 3]);
    assert_eq!(sent[4].syndrome, Some(Syndrome::Nak(NakCode::InvalidRequest)));
    assert!(puppet.say(&[write(4), write(0)]).is_empty());
    assert_eq!(puppet.node.stack.counters().drop_wrong_state, 2);
}

/// RC-44.
#[test]
fn more_reads_than_agreed_are_refused() {
    let options = Options { mtu: PathMtu::Mtu256, max_dest_rd_atomic: 2, ..Options::default() };
    let mut puppet = Puppet::new(&options);
    let sent = puppet.say(&[read(0, 0, 8), read(1, 0, 8), read(2, 0, 8)]);
    assert_eq!(psns(&sent), [0, 1, 2]);
    assert_eq!(sent[2].syndrome, Some(Syndrome::Nak(NakCode::InvalidRequest)));
    // One after the other there is no limit.
    let mut puppet = Puppet::new(&options);
    for n in 0..10 {
        assert_eq!(psns(&puppet.say(&[read(n, 0, 8)])), [n]);
    }
}

/// RC-40.
#[test]
fn a_message_too_long_for_its_receive_request_fails_on_both_sides() {
    let mut puppet = puppet();
    let id = puppet.node.memory.post_receive(puppet.qpn, 299);
    let sent = puppet.say(&[
        request(code::SEND_FIRST, RQ_PSN, vec![0; 256]),
        request(code::SEND_LAST, RQ_PSN + 1, vec![0; 44]),
    ]);
    let (qpn, status) = (puppet.qpn, ReceiveStatus::LocalLength);
    let events =
        [Event::ReceiveFailed { qpn, srqn: None, id, status }, Event::EnteredError { qpn }];
    assert_refused(&mut puppet, &sent, 1, NakCode::InvalidRequest, &events);
}

/// RC-47, RC-51.
#[test]
fn a_placement_that_fails_undoes_what_came_after_it() {
    let mut puppet = puppet();
    let first = puppet.node.memory.post_receive(puppet.qpn, 100);
    let bad = puppet.node.memory.post_receive(puppet.qpn, 100);
    let third = puppet.node.memory.post_receive(puppet.qpn, 100);
    let fourth = puppet.node.memory.post_receive(puppet.qpn, 1000);
    puppet.node.memory.unwritable.push(bad);
    let send = |n: u32| request(code::SEND_ONLY, RQ_PSN + n, vec![n as u8; 10]);
    let sent = puppet.say(&[
        send(0),
        send(1),
        send(2),
        read(3, 0, 8),
        request(code::SEND_FIRST, RQ_PSN + 4, vec![0; 256]),
    ]);
    let nak = Syndrome::Nak(NakCode::RemoteOperationalError);
    assert_eq!((answers(&sent), msns(&sent)), (vec![(0, ACK), (1, nak)], vec![1, 1]));
    let qpn = puppet.qpn;
    let failed = |id, status| Event::ReceiveFailed { qpn, srqn: None, id, status };
    let events = puppet.events();
    assert!(matches!(events[0], Event::ReceiveCompleted { id, .. } if id == first));
    assert_eq!(
        events[1..],
        [
            failed(bad, ReceiveStatus::LocalProtection),
            failed(third, ReceiveStatus::Flushed),
            failed(fourth, ReceiveStatus::Flushed),
            Event::EnteredError { qpn },
        ]
    );
}

/// RC-47, RC-88.
#[test]
fn memory_that_a_write_does_not_reach_is_an_operational_error() {
    let mut puppet = puppet();
    let mut frames = [write(0), write(1), write(2)].map(|say| puppet.frame(&say));
    let (now, mut placements) = (roce::Instant(puppet.now), Vec::new());
    for (index, frame) in frames.iter_mut().enumerate() {
        let node = &mut puppet.node;
        assert!(
            node.stack.receive(now, frame, index, &mut node.memory, &mut placements).is_ready()
        );
    }
    puppet.node.stack.commit(now, &[Placed::Copied, Placed::Failed, Placed::Copied]);
    let sent = puppet.drain();
    assert_eq!(msns(&sent), [1, 1]);
    let events = refusal(&puppet, QpEvent::Fatal);
    assert_refused(&mut puppet, &sent, 1, NakCode::RemoteOperationalError, &events);
}

/// RC-48.
#[test]
fn an_unusable_receive_request_is_an_operational_error() {
    let mut puppet = puppet();
    puppet.node.memory.bad_receives.push(puppet.qpn.value());
    let sent = puppet.say(&[request(code::SEND_ONLY, RQ_PSN, vec![])]);
    let events = [Event::EnteredError { qpn: puppet.qpn }];
    assert_refused(&mut puppet, &sent, 0, NakCode::RemoteOperationalError, &events);
}

/// RC-87, RC-88.
#[test]
fn unreadable_memory_behind_a_read_is_an_operational_error() {
    let mut puppet = puppet();
    let mut frame = puppet.frame(&read(0, 0, 600));
    // The key is checked when the request arrives, and gone when the responses are made.
    let mut placements = Vec::new();
    let now = roce::Instant(puppet.now);
    assert!(
        puppet
            .node
            .stack
            .receive(now, &mut frame, 0, &mut puppet.node.memory, &mut placements)
            .is_ready()
    );
    puppet.node.memory.regions.clear();
    let sent = puppet.drain();
    let events = refusal(&puppet, QpEvent::Fatal);
    assert_refused(&mut puppet, &sent, 0, NakCode::RemoteOperationalError, &events);
}

/// RC-83.
#[test]
fn a_receive_request_in_use_is_given_back_in_the_error_state() {
    let mut puppet = puppet();
    let id = puppet.node.memory.post_receive(puppet.qpn, 1000);
    puppet.say(&[request(code::SEND_FIRST, RQ_PSN, vec![0; 256])]);
    let err = roce::QpAttributes { state: Some(QpState::Err), ..Default::default() };
    puppet.modify(&err);
    puppet.modify(&err);
    puppet.round();
    let (qpn, status) = (puppet.qpn, ReceiveStatus::Flushed);
    let events =
        [Event::ReceiveFailed { qpn, srqn: None, id, status }, Event::EnteredError { qpn }];
    assert_eq!(puppet.events(), events);
}

#[test]
fn acknowledgements_and_own_requests_take_turns() {
    let mut puppet = puppet();
    puppet.post(roce::Operation::Write, 20 * 256);
    let sent = puppet.say(&(0..60).map(write).collect::<Vec<_>>());
    let own = |sent: &&Sent| matches!(sent.opcode, 0x06..=0x0b);
    assert_eq!(sent[..40].iter().filter(own).count(), 20, "requests among the first 40 frames");
}

#[test]
fn responses_and_own_requests_take_turns() {
    let mut puppet = puppet();
    puppet.post(roce::Operation::Write, 20 * 256);
    // Nothing is sent yet: the burst comes first.
    let sent = puppet.say(&[read(0, 0, 60_000)]);
    let own = |sent: &&Sent| matches!(sent.opcode, 0x06..=0x0b);
    let first = &sent[..40];
    assert_eq!(first.iter().filter(own).count(), 20, "requests among the first 40 frames");
    assert_eq!(sent.len(), 64);
}

/// RC-106.
#[test]
fn what_no_program_can_be_told_of_is_refused_and_not_acknowledged() {
    let mut puppet = puppet();
    let send = |n: u32| request(code::SEND_ONLY, RQ_PSN + n, vec![n as u8; 8]);
    for _ in 0..4 {
        puppet.node.memory.post_receive(puppet.qpn, 100);
    }
    assert_eq!(answers(&puppet.say(&[send(0)])).last().unwrap().0, 0);
    puppet.events();
    puppet.node.memory.untold = true;
    // The first of those that were not acknowledged is refused, and so all behind it are.
    let sent = puppet.say(&[send(1), send(2)]);
    assert_eq!(answers(&sent), [(1, Syndrome::Nak(NakCode::RemoteOperationalError))]);
    assert_eq!(puppet.state(), QpState::Err);
    let qpn = puppet.qpn;
    let told = puppet.events();
    let fatal = Event::Async { qpn, kind: QpEvent::Fatal };
    assert_eq!(told.iter().filter(|event| **event == fatal).count(), 1, "{told:?}");
    assert_eq!(told.last(), Some(&Event::EnteredError { qpn }));
    assert!(puppet.say(&[send(3)]).is_empty());
}
