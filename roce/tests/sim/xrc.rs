//! XRC: Reliable Connection between a side that sends and a side that receives for shared receive queues.

use netsim::memory::Memory as _;
use roce::opcode::{Class, Opcode, code};
use roce::wire::aeth::{CREDITS_INVALID, NakCode, Syndrome};
use roce::{
    AtomicOperation, Event, Instant, Operation, PathMtu, PostError, QpAttributes, QpEvent, QpState,
    ReceiveKind, ReceiveStatus, SendRequest, SendStatus,
};

use crate::connection::Options;
use crate::for_each_seed;
use crate::memory::{Local, of_srq};
use crate::network::{Network, bad};
use crate::puppet::{
    Puppet, RKEY, RQ_PSN, SQ_PSN, Say, VA, ack, answer, fetch_add, rdma, request, response,
};
use crate::workload::{Flow, Plan, run};

const XRC: u8 = code::EXTENDED_RELIABLE_CONNECTION;
const DOMAIN: u32 = 7;
const SRQN: u32 = 0x12_3456;
/// One of another domain.
const FOREIGN: u32 = 0x30;
/// One that is not there.
const NOBODY: u32 = 0x31;
const MTU: usize = 256;
const REFUSED: Option<Syndrome> = Some(Syndrome::Nak(NakCode::InvalidRdRequest));

fn options() -> Options {
    Options { mtu: PathMtu::Mtu256, ..Options::default() }
}

/// The receiving side, of whose domain there are two queues with a receive request each.
fn target() -> Puppet {
    let mut puppet = Puppet::of_xrc(Some(DOMAIN), &options());
    puppet.node.memory.srqs.extend([(SRQN, DOMAIN), (SRQN + 1, DOMAIN), (FOREIGN, DOMAIN + 1)]);
    for srqn in [SRQN, SRQN + 1, FOREIGN] {
        puppet.node.memory.post_xrc_receive(srqn, 1000);
    }
    puppet
}

/// The sending side.
fn initiator() -> Puppet {
    Puppet::of_xrc(None, &options())
}

/// A packet of Reliable Connection as one of XRC.
fn along(srqn: u32, say: Say) -> Say {
    let is_request = !Opcode::find(say.opcode).unwrap().class.is_response();
    Say { opcode: say.opcode | XRC, srqn: is_request.then_some(srqn), ..say }
}

fn post(puppet: &mut Puppet, srqn: u32, operation: Operation, length: u32) -> u64 {
    let request = SendRequest {
        operation,
        length,
        remote_va: VA,
        rkey: RKEY,
        imm: 0x0102_0304,
        solicited: false,
        fence: false,
    };
    let (now, qpn) = (Instant(puppet.now), puppet.qpn);
    let number = puppet.node.stack.post_xrc_send(now, qpn, srqn, request).unwrap();
    let local = match operation.is_answered() {
        true => Local::Buffer(vec![0; length as usize]),
        false => Local::Pattern(number),
    };
    puppet.node.memory.messages.insert((qpn.value(), number), local);
    number
}

fn left(puppet: &Puppet, srqn: u32) -> usize {
    puppet.node.memory.receives[&of_srq(srqn)].len()
}

const ADD: Operation = Operation::Atomic(AtomicOperation::FetchAdd { add: 1 });

/// XRC-1, XRC-2, XRC-8.
#[test]
fn every_request_names_its_queue_and_nothing_waits_for_credits() {
    let mut puppet = initiator();
    let messages = [
        (Operation::Send, 600, &[0x00, 0x01, 0x02][..]),
        (Operation::SendImm, 300, &[0x00, 0x03]),
        (Operation::SendInvalidate { rkey: 1 }, 0, &[0x17]),
        (Operation::Write, 300, &[0x06, 0x08]),
        (Operation::WriteImm, 44, &[0x0b]),
        (Operation::Read, 44, &[0x0c]),
        (ADD, 8, &[0x14]),
        (Operation::Send, 44, &[0x04]),
    ];
    let mut expected = Vec::new();
    for (srqn, (operation, length, opcodes)) in (100..).zip(messages) {
        post(&mut puppet, srqn, operation, length);
        expected.extend(opcodes.iter().map(|opcode| (opcode | XRC, Some(srqn))));
    }
    let sent = puppet.drain();
    let seen: Vec<_> = sent.iter().map(|sent| (sent.opcode, sent.srqn)).collect();
    assert_eq!(seen, expected);
    assert!(sent.iter().zip(SQ_PSN..).all(|(sent, psn)| sent.psn == psn));
    // Answers are as along a reliable connection.
    let answers = [
        ack(SQ_PSN + 8),
        response(code::READ_RESPONSE_ONLY, SQ_PSN + 9, vec![5; 44]),
        Say { opcode: code::ATOMIC_ACKNOWLEDGE, payload: vec![0; 8], ..ack(SQ_PSN + 10) },
        ack(SQ_PSN + 11),
    ];
    let answers: Vec<_> = answers.into_iter().map(|say| along(0, say)).collect();
    puppet.say(&answers);
    let done = puppet.events();
    assert_eq!(done.last(), Some(&Event::SendsCompleted { qpn: puppet.qpn, through: 7 }));
    let Local::Buffer(read) = &puppet.node.memory.messages[&(puppet.qpn.value(), 5)] else {
        panic!("the READ has no buffer")
    };
    assert_eq!(*read, [5; 44]);
}

/// XRC-1, XRC-2, XRC-6, XRC-8.
#[test]
fn requests_have_their_effect_for_the_queue_that_they_name() {
    let mut puppet = target();
    let sent = puppet.say(&[
        along(SRQN + 1, request(code::SEND_ONLY, RQ_PSN, vec![1; 44])),
        along(SRQN, request(code::SEND_FIRST, RQ_PSN + 1, vec![2; MTU])),
        along(SRQN, Say { imm: Some(9), ..request(code::SEND_LAST_IMM, RQ_PSN + 2, vec![2; 4]) }),
        along(SRQN, rdma(code::WRITE_ONLY, RQ_PSN + 3, 0, 4, vec![3; 4])),
        along(SRQN, rdma(code::READ_REQUEST, RQ_PSN + 4, 0, 4, vec![])),
        along(SRQN, fetch_add(RQ_PSN + 5, VA + 8, 1)),
    ]);
    let seen: Vec<_> =
        sent.iter().map(|sent| (sent.opcode, sent.psn - RQ_PSN, sent.srqn)).collect();
    let (acknowledged, read) = (code::ACKNOWLEDGE | XRC, code::READ_RESPONSE_ONLY | XRC);
    let expected = [
        (acknowledged, 0, None),
        (acknowledged, 1, None),
        (acknowledged, 2, None),
        (acknowledged, 3, None),
        (read, 4, None),
        (code::ATOMIC_ACKNOWLEDGE | XRC, 5, None),
    ];
    assert_eq!(seen, expected);
    let unlimited = Some(Syndrome::Ack { credits: CREDITS_INVALID });
    assert!(sent.iter().all(|sent| sent.syndrome == unlimited));
    assert_eq!(sent[4].payload, [3; 4]);
    let received = |srqn, id, length, imm| Event::ReceiveCompleted {
        qpn: puppet.qpn,
        srqn: Some(srqn),
        id,
        length,
        kind: ReceiveKind::Send,
        imm,
        solicited: false,
        source_qpn: None,
    };
    let expected = [received(SRQN + 1, 1, 44, None), received(SRQN, 0, 260, Some(9))];
    assert_eq!(puppet.events(), expected);
    assert_eq!(puppet.node.memory.buffers[&0].bytes[..260], [2; 260]);
    assert_eq!((left(&puppet, SRQN), left(&puppet, SRQN + 1)), (0, 0));
    // There is no other message for that one, and it is told so.
    let none = puppet.say(&[along(SRQN, request(code::SEND_ONLY, RQ_PSN + 6, vec![]))]);
    assert!(matches!(none[0].syndrome, Some(Syndrome::RnrNak { .. })), "{none:?}");
}

/// XRC-5, XRC-6.
#[test]
fn a_queue_that_is_not_there_or_another_domain_s_is_refused() {
    let empty = |opcode| rdma(opcode, RQ_PSN, 0, 0, vec![]);
    let says = [
        request(code::SEND_ONLY, RQ_PSN, vec![1; 8]),
        request(code::SEND_FIRST, RQ_PSN, vec![1; MTU]),
        Say { imm: Some(1), ..request(code::SEND_ONLY_INVALIDATE, RQ_PSN, vec![]) },
        rdma(code::WRITE_ONLY, RQ_PSN, 0, 8, vec![1; 8]),
        Say { imm: Some(1), ..empty(code::WRITE_ONLY_IMM) },
        empty(code::WRITE_ONLY),
        rdma(code::READ_REQUEST, RQ_PSN, 0, 8, vec![]),
        empty(code::READ_REQUEST),
        fetch_add(RQ_PSN, VA, 1),
    ];
    for srqn in [FOREIGN, NOBODY] {
        for say in &says {
            let mut puppet = target();
            let sent = puppet.say(&[along(srqn, say.clone())]);
            let seen: Vec<_> =
                sent.iter().map(|sent| (sent.psn, sent.msn, sent.syndrome)).collect();
            assert_eq!(seen, [(RQ_PSN, 0, REFUSED)], "{srqn:#x} {say:?}");
            let qpn = puppet.qpn;
            let kind = QpEvent::AccessError;
            let expected = [Event::Async { qpn, kind }, Event::EnteredError { qpn }];
            assert_eq!((puppet.events(), puppet.state()), (expected.into(), QpState::Err));
            assert_eq!(left(&puppet, FOREIGN), 1);
            let memory = &puppet.node.memory.regions[&RKEY].bytes;
            assert!(memory.iter().all(|byte| *byte == 0));
        }
    }
}

/// XRC-4.
#[test]
fn a_message_names_one_queue() {
    let begins = [
        (request(code::SEND_FIRST, RQ_PSN, vec![1; MTU]), code::SEND_MIDDLE),
        (rdma(code::WRITE_FIRST, RQ_PSN, 0, 600, vec![1; MTU]), code::WRITE_MIDDLE),
    ];
    for (first, then) in begins {
        let mut puppet = target();
        let then = request(then, RQ_PSN + 1, vec![2; MTU]);
        let is_send = first.opcode == code::SEND_FIRST;
        let sent = puppet.say(&[along(SRQN, first), along(SRQN + 1, then)]);
        assert_eq!((sent[1].psn, sent[1].syndrome), (RQ_PSN + 1, REFUSED));
        let (qpn, status) = (puppet.qpn, ReceiveStatus::Flushed);
        let flushed = Event::ReceiveFailed { qpn, srqn: Some(SRQN), id: 0, status };
        assert_eq!(puppet.events().contains(&flushed), is_send);
        assert_eq!(left(&puppet, SRQN + 1), 1);
    }
}

/// XRC-5.
#[test]
fn the_sender_is_told_that_there_is_no_such_queue() {
    let nak = |psn| along(0, answer(psn, Syndrome::Nak(NakCode::InvalidRdRequest)));
    let mut puppet = initiator();
    post(&mut puppet, NOBODY, Operation::Send, 8);
    puppet.drain();
    puppet.say(&[nak(SQ_PSN)]);
    let (qpn, status) = (puppet.qpn, SendStatus::RemoteInvalidRdRequest);
    let expected = [Event::SendFailed { qpn, message: 0, status }, Event::EnteredError { qpn }];
    assert_eq!(puppet.events(), expected);
}

/// XRC-3.
#[test]
fn each_side_hears_what_is_for_it_and_sends_what_is_its_own() {
    for opcode in 0..=u8::MAX {
        let Some(row) = Opcode::find(opcode) else { continue };
        let is_other = row.service() != XRC && row.class != Class::CongestionNotification;
        for (mut puppet, is_deaf) in [
            (initiator(), is_other || !row.class.is_response()),
            (target(), is_other || row.class.is_response()),
        ] {
            if row.class == Class::CongestionNotification || !is_deaf {
                continue;
            }
            // It is not parsed, with any headers.
            let sent = puppet.say(&[request(opcode, RQ_PSN, vec![1; 64])]);
            assert_eq!((sent, puppet.events()), (vec![], vec![]), "{}", row.name);
            assert_eq!(puppet.state(), QpState::Rts);
            assert_eq!(puppet.node.stack.counters().drop_bad_opcode, 1, "{}", row.name);
        }
    }
    let request = SendRequest {
        operation: Operation::Send,
        length: 0,
        remote_va: 0,
        rkey: 0,
        imm: 0,
        solicited: false,
        fence: false,
    };
    for mut puppet in [initiator(), target(), Puppet::new(&options())] {
        let (now, qpn) = (Instant(puppet.now), puppet.qpn);
        let stack = &mut puppet.node.stack;
        let plain = stack.post_send(now, qpn, request).is_ok();
        let named = stack.post_xrc_send(now, qpn, SRQN, request);
        let refused = Err(PostError::NotOffered(qpn));
        assert!(!(plain && named.is_ok()));
        if named.is_err() {
            assert_eq!(named, refused);
        }
    }
}

/// XRC-3. A reserved opcode is refused by the side that answers.
#[test]
fn reserved_opcodes_are_refused_by_the_side_that_receives() {
    for opcode in [0xb5].into_iter().chain(0xb8..=0xbf) {
        let mut puppet = target();
        let sent = puppet.say(&[request(opcode, RQ_PSN, vec![1; 8])]);
        let refusal = Some(Syndrome::Nak(NakCode::InvalidRequest));
        assert_eq!((sent[0].psn, sent[0].syndrome), (RQ_PSN, refusal), "{opcode:#04x}");
        let mut puppet = initiator();
        assert_eq!(puppet.say(&[request(opcode, RQ_PSN, vec![1; 8])]), []);
        assert_eq!(puppet.state(), QpState::Rts);
    }
}

/// XRC-7.
#[test]
fn a_receive_ends_whatever_becomes_of_the_queue_pair_that_took_it() {
    let flushed = |puppet: &Puppet, id| {
        let (qpn, status) = (puppet.qpn, ReceiveStatus::Flushed);
        Event::ReceiveFailed { qpn, srqn: Some(SRQN), id, status }
    };
    let reset = QpAttributes { state: Some(QpState::Reset), ..QpAttributes::default() };
    for destroys in [false, true] {
        let mut puppet = target();
        // One that is received and not told of yet, and one of which the rest is missing.
        puppet.node.memory.post_xrc_receive(SRQN, 1000);
        puppet.say(&[
            along(SRQN, request(code::SEND_ONLY, RQ_PSN, vec![])),
            along(SRQN, request(code::SEND_FIRST, RQ_PSN + 1, vec![1; MTU])),
        ]);
        let received = puppet.events();
        assert!(matches!(received[..], [Event::ReceiveCompleted { id: 0, .. }]));
        let qpn = puppet.qpn;
        match destroys {
            true => puppet.node.stack.destroy_qp(qpn),
            false => puppet.modify(&reset),
        }
        let events = std::iter::from_fn(|| puppet.node.stack.poll_event());
        let events: Vec<Event> = events.collect();
        assert_eq!(events, [flushed(&puppet, 3)]);
        puppet.round();
        assert_eq!(puppet.events(), []);
    }
}

/// XRC-7.
#[test]
fn a_receive_ends_also_where_its_bytes_were_under_way() {
    let mut puppet = target();
    let frame = puppet.frame(&along(SRQN, request(code::SEND_ONLY, RQ_PSN, vec![1; 8])));
    let (now, qpn, mut placements) = (Instant(puppet.now), puppet.qpn, Vec::new());
    let node = &mut puppet.node;
    let mut bytes = frame;
    let taken = node.stack.receive(now, &mut bytes, 0, &mut node.memory, &mut placements);
    assert!(taken.is_ready());
    node.stack.destroy_qp(qpn);
    let placed = [node.memory.place(&placements[0], &bytes)];
    node.stack.commit(now, &placed);
    let status = ReceiveStatus::Flushed;
    let expected = Event::ReceiveFailed { qpn, srqn: Some(SRQN), id: 0, status };
    assert_eq!(node.stack.poll_event(), Some(expected));
    assert_eq!(node.stack.poll_event(), None);
}

/// XRC-9.
#[test]
fn each_side_takes_the_attributes_that_are_its_own() {
    let mut puppet = initiator();
    let qpn = puppet.qpn;
    for (change, allowed) in [
        (QpAttributes { min_rnr_timer: Some(3), ..QpAttributes::default() }, false),
        (QpAttributes { access: Some(options().access), ..QpAttributes::default() }, true),
    ] {
        let now = Instant(puppet.now);
        assert_eq!(puppet.node.stack.modify_qp(now, qpn, &change).is_ok(), allowed);
        assert!(target().node.stack.modify_qp(now, qpn, &change).is_ok());
    }
}

/// XRC-1, XRC-6.
#[test]
fn messages_of_every_kind_arrive_once_over_a_bad_cable() {
    for_each_seed("messages_of_every_kind_arrive_once_over_a_bad_cable", 20, |seed| {
        let faults = bad(200);
        let mut network = Network::new(seed, 2, faults);
        let plan = Plan::mixed(60, PathMtu::Mtu256);
        let mut flows = Vec::new();
        for (from, to, domain) in [(0, 1, 1), (1, 0, 2), (1, 1, 3)] {
            let srqns = [domain * 10, domain * 10 + 1];
            let ends = network.connect_xrc(from, to, domain, &options());
            flows.push(Flow::along_xrc(&mut network, ends, (domain, &srqns), &plan));
        }
        run(&mut network, &mut flows, 60_000_000_000);
    });
}

/// RC-106.
#[test]
fn what_no_queue_can_tell_of_is_refused_by_the_side_that_receives() {
    let mut puppet = target();
    puppet.node.memory.untold = true;
    let says = [0, 1].map(|n| {
        let srqn = SRQN + n;
        along(srqn, request(code::SEND_ONLY, RQ_PSN + n, vec![1; 8]))
    });
    let sent = puppet.say(&says);
    let seen: Vec<_> = sent.iter().map(|sent| (sent.psn, sent.syndrome)).collect();
    let refused = Some(Syndrome::Nak(NakCode::RemoteOperationalError));
    assert_eq!(seen, [(RQ_PSN, refused)]);
    let fatal = Event::Async { qpn: puppet.qpn, kind: QpEvent::Fatal };
    assert_eq!(puppet.events().iter().filter(|event| **event == fatal).count(), 1);
    assert_eq!(puppet.state(), QpState::Err);
}
