//! All opcodes: the effect of a packet of each in its turn.

use roce::opcode::code;
use roce::wire::aeth::{NakCode, Syndrome};
use roce::{Event, Operation, PathMtu, QpEvent, QpState, ReceiveKind, ReceiveStatus};

use crate::connection::Options;
use crate::puppet::{
    Puppet, RKEY, RQ_PSN, SQ_PSN, Say, Sent, VA, answer, compare_swap, fetch_add, rdma, request,
    response,
};

const MTU: usize = 256;
/// Bytes of a receive request.
const ROOM: usize = 1000;
const WORD: u32 = 0x0102_0304;
/// A word of the puppet's memory, and the value that atomics leave there.
const FILLED: u64 = 0x7777_7777_7777_7777;
const SWAPPED: u64 = 0x8877_8877_8877_8877;
/// The bytes of a message's first packet, and of its last.
const FIRST: u8 = 0x11;
const LAST: u8 = 0x22;

/// A peer that has two receive requests to send to.
fn puppet() -> Puppet {
    let mut puppet = Puppet::new(&Options { mtu: PathMtu::Mtu256, ..Options::default() });
    for _ in 0..2 {
        puppet.node.memory.post_receive(puppet.qpn, ROOM);
    }
    puppet.node.memory.revocable.push(WORD);
    puppet
}

/// The packet that comes before one of `opcode` in its message, if there is one.
fn before(opcode: u8) -> Option<Say> {
    match opcode {
        code::SEND_MIDDLE | code::SEND_LAST | code::SEND_LAST_IMM | code::SEND_LAST_INVALIDATE => {
            Some(request(code::SEND_FIRST, RQ_PSN, vec![FIRST; MTU]))
        }
        code::WRITE_MIDDLE | code::WRITE_LAST | code::WRITE_LAST_IMM => {
            let length = if opcode == code::WRITE_MIDDLE { 600 } else { 300 };
            Some(rdma(code::WRITE_FIRST, RQ_PSN, 0, length, vec![FIRST; MTU]))
        }
        _ => None,
    }
}

/// A request of `opcode` with the headers that the specification gives it.
fn packet(opcode: u8, psn: u32) -> Say {
    let word = |say| Say { imm: Some(WORD), ..say };
    let bytes = |length| vec![LAST; length];
    match opcode {
        code::SEND_FIRST | code::SEND_MIDDLE | code::WRITE_MIDDLE => {
            request(opcode, psn, bytes(MTU))
        }
        code::SEND_LAST | code::SEND_ONLY | code::WRITE_LAST => request(opcode, psn, bytes(44)),
        code::SEND_LAST_IMM
        | code::SEND_ONLY_IMM
        | code::WRITE_LAST_IMM
        | code::SEND_LAST_INVALIDATE
        | code::SEND_ONLY_INVALIDATE => word(request(opcode, psn, bytes(44))),
        code::WRITE_FIRST => rdma(opcode, psn, 0, 300, bytes(MTU)),
        code::WRITE_ONLY => rdma(opcode, psn, 0, 44, bytes(44)),
        code::WRITE_ONLY_IMM => word(rdma(opcode, psn, 0, 44, bytes(44))),
        code::READ_REQUEST => rdma(opcode, psn, 0, 300, vec![]),
        code::COMPARE_SWAP => compare_swap(psn, VA, FILLED, SWAPPED),
        code::FETCH_ADD => fetch_add(psn, VA, SWAPPED - FILLED),
        _ => request(opcode, psn, bytes(8)),
    }
}

/// A message of a peer that begins with `before` and goes on with `opcode`, and the answers to it.
fn say(puppet: &mut Puppet, opcode: u8) -> (u32, Vec<Sent>) {
    let first = before(opcode);
    let psn = RQ_PSN + u32::from(first.is_some());
    let says: Vec<Say> = first.into_iter().chain([packet(opcode, psn)]).collect();
    let mut sent = puppet.say(&says);
    if psn != RQ_PSN {
        assert_eq!((sent[0].psn, sent[0].msn), (RQ_PSN, 0), "the ACK of the first packet");
        assert!(matches!(sent.remove(0).syndrome, Some(Syndrome::Ack { .. })));
    }
    (psn, sent)
}

/// Bytes where a message of `opcode` belongs: of its first packet, and then of this one.
fn expected(opcode: u8) -> Vec<u8> {
    if is_atomic(opcode) {
        return SWAPPED.to_ne_bytes().to_vec();
    }
    let payload = packet(opcode, 0).payload;
    let first = if before(opcode).is_some() { MTU } else { 0 };
    [vec![FIRST; first], payload].concat()
}

fn is_atomic(opcode: u8) -> bool {
    matches!(opcode, code::COMPARE_SWAP | code::FETCH_ADD)
}

fn is_executed(opcode: u8) -> bool {
    opcode <= code::READ_REQUEST || is_atomic(opcode) || invalidates(opcode)
}

fn invalidates(opcode: u8) -> bool {
    matches!(opcode, code::SEND_LAST_INVALIDATE | code::SEND_ONLY_INVALIDATE)
}

fn is_response(opcode: u8) -> bool {
    (code::READ_RESPONSE_FIRST..=code::ATOMIC_ACKNOWLEDGE).contains(&opcode)
}

/// RC-22, RC-32, RC-38, RC-39, RC-46, RC-50, RC-51, RC-66, RC-99, RC-102, RC-103.
#[test]
fn every_request_that_is_offered_has_its_whole_effect() {
    for opcode in (0..=u8::MAX).filter(|opcode| is_executed(*opcode)) {
        let name = format!("opcode {opcode:#04x}");
        let mut puppet = puppet();
        let memory = vec![0x77; 65_536];
        puppet.node.memory.regions.get_mut(&RKEY).unwrap().bytes = memory.clone();
        let (psn, sent) = say(&mut puppet, opcode);
        assert_eq!(puppet.state(), QpState::Rts, "{name}");
        let is_send = opcode <= code::SEND_ONLY_IMM || invalidates(opcode);
        let ends = !matches!(opcode, 0x00 | 0x01 | 0x06 | 0x07);
        let has_imm = matches!(opcode, 0x03 | 0x05 | 0x09 | 0x0b);
        // The answer.
        let msn = u32::from(ends);
        if opcode == code::READ_REQUEST {
            let said: Vec<_> = sent.iter().map(|sent| (sent.opcode, sent.psn - psn)).collect();
            assert_eq!(said, [(code::READ_RESPONSE_FIRST, 0), (code::READ_RESPONSE_LAST, 1)]);
            assert_eq!((sent[0].msn, sent[1].msn), (msn, msn));
            let bytes: Vec<u8> = sent.iter().flat_map(|sent| sent.payload.clone()).collect();
            assert_eq!(bytes, memory[..300]);
        } else {
            let [ack] = &sent[..] else { panic!("{name} is answered by {sent:?}") };
            let (kind, value) = match is_atomic(opcode) {
                true => (code::ATOMIC_ACKNOWLEDGE, Some(FILLED)),
                false => (code::ACKNOWLEDGE, None),
            };
            assert_eq!((ack.opcode, ack.psn, ack.msn), (kind, psn, msn), "{name}");
            assert_eq!(ack.value, value, "{name}");
            assert!(matches!(ack.syndrome, Some(Syndrome::Ack { .. })), "{name}");
        }
        // The bytes.
        let expected = expected(opcode);
        let written = if is_send || opcode == code::READ_REQUEST { &[][..] } else { &expected };
        let region = &puppet.node.memory.regions[&RKEY].bytes;
        assert_eq!(region[..written.len()], *written, "{name}");
        assert_eq!(region[written.len()..], memory[written.len()..], "{name}");
        let received = if is_send { &expected[..] } else { &[] };
        let buffer = &puppet.node.memory.buffers[&0].bytes;
        assert_eq!(buffer[..received.len()], *received, "{name}");
        assert!(buffer[received.len()..].iter().all(|byte| *byte == 0xee), "{name}");
        // The events for the layer above, and the receive requests that are left.
        let takes = is_send || has_imm;
        let receives = &puppet.node.memory.receives[&puppet.qpn.value()];
        assert_eq!(receives.len(), if takes { 1 } else { 2 }, "{name}");
        let event = Event::ReceiveCompleted {
            qpn: puppet.qpn,
            srqn: None,
            id: 0,
            length: expected.len() as u32,
            kind: match is_send {
                true if invalidates(opcode) => ReceiveKind::SendInvalidate { rkey: WORD },
                true => ReceiveKind::Send,
                false => ReceiveKind::Write,
            },
            imm: has_imm.then_some(WORD),
            solicited: false,
            source_qpn: None,
        };
        let events = if takes && ends { vec![event] } else { vec![] };
        assert_eq!(puppet.events(), events, "{name}");
    }
}

/// RC-7, RC-55, RC-83, RC-88.
#[test]
fn every_request_that_is_not_offered_is_refused_and_does_nothing() {
    let refused = (0..0x20).filter(|opcode| !is_executed(*opcode) && !is_response(*opcode));
    let refused: Vec<u8> = refused.collect();
    assert_eq!(refused, [0x15].into_iter().chain(0x18..0x20).collect::<Vec<u8>>());
    for opcode in refused {
        let name = format!("opcode {opcode:#04x}");
        let mut puppet = puppet();
        let (psn, sent) = say(&mut puppet, opcode);
        let [nak] = &sent[..] else { panic!("{name} is answered by {sent:?}") };
        let refusal = Some(Syndrome::Nak(NakCode::InvalidRequest));
        assert_eq!((nak.psn, nak.msn, nak.syndrome), (psn, 0, refusal), "{name}");
        assert_eq!(puppet.state(), QpState::Err, "{name}");
        let qpn = puppet.qpn;
        let mut events =
            vec![Event::Async { qpn, kind: QpEvent::RequestError }, Event::EnteredError { qpn }];
        let begun = before(opcode).is_some();
        if begun {
            let status = ReceiveStatus::Flushed;
            events.insert(1, Event::ReceiveFailed { qpn, srqn: None, id: 0, status });
        }
        assert_eq!(puppet.events(), events, "{name}");
        let receives = &puppet.node.memory.receives[&qpn.value()];
        assert_eq!(receives.len(), if begun { 1 } else { 2 }, "{name}");
        assert!(puppet.node.memory.regions[&RKEY].bytes.iter().all(|byte| *byte == 0), "{name}");
        // Silent from now on, and without another effect.
        assert!(puppet.say(&[packet(opcode, psn), packet(code::WRITE_ONLY, psn)]).is_empty());
        assert_eq!(puppet.events(), [], "{name}");
        let counters = puppet.node.stack.counters();
        assert_eq!(counters.resp_remote_invalid_request, 1, "{name}");
    }
}

/// RC-103.
#[test]
fn a_send_that_may_not_take_its_key_back_is_refused_and_takes_nothing() {
    for opcode in [code::SEND_LAST_INVALIDATE, code::SEND_ONLY_INVALIDATE] {
        let mut puppet = puppet();
        puppet.node.memory.revocable.clear();
        let (psn, sent) = say(&mut puppet, opcode);
        let refusal = Some(Syndrome::Nak(NakCode::RemoteAccessError));
        assert_eq!((sent.len(), sent[0].psn, sent[0].msn), (1, psn, 0));
        assert_eq!((sent[0].syndrome, puppet.state()), (refusal, QpState::Err));
        let qpn = puppet.qpn;
        let mut events =
            vec![Event::Async { qpn, kind: QpEvent::AccessError }, Event::EnteredError { qpn }];
        let begun = before(opcode).is_some();
        if begun {
            let status = ReceiveStatus::Flushed;
            events.insert(1, Event::ReceiveFailed { qpn, srqn: None, id: 0, status });
        }
        assert_eq!(puppet.events(), events);
        let receives = &puppet.node.memory.receives[&qpn.value()];
        assert_eq!(receives.len(), if begun { 1 } else { 2 }, "the key is looked at before");
    }
}

/// RC-102.
#[test]
fn a_send_takes_a_key_back_with_its_last_packet() {
    let mut puppet = puppet();
    puppet.post(Operation::SendInvalidate { rkey: 0x0a0b_0c0d }, 300);
    puppet.post(Operation::SendInvalidate { rkey: 0x0a0b_0c0e }, 0);
    let sent = puppet.drain();
    let opcodes: Vec<u8> = sent.iter().map(|sent| sent.opcode).collect();
    let wanted = [code::SEND_FIRST, code::SEND_LAST_INVALIDATE, code::SEND_ONLY_INVALIDATE];
    assert_eq!(opcodes, wanted);
    let keys: Vec<Option<u32>> = sent.iter().map(|sent| sent.invalidate).collect();
    assert_eq!(keys, [None, Some(0x0a0b_0c0d), Some(0x0a0b_0c0e)]);
    assert_eq!(sent[1].payload.len(), 300 - MTU);
}

/// RC-33, RC-34. It is neither executed nor refused before its turn, nor after it.
#[test]
fn a_request_that_is_not_offered_is_refused_at_its_turn_only() {
    for opcode in [0x15].into_iter().chain(0x18..0x20) {
        let mut puppet = puppet();
        puppet.say(&[packet(code::WRITE_ONLY, RQ_PSN)]);
        let again = puppet.say(&[packet(opcode, RQ_PSN)]);
        assert_eq!(again, [], "opcode {opcode:#04x}");
        assert_eq!(puppet.node.stack.counters().drop_bad_opcode, 1);
        let ahead = puppet.say(&[packet(opcode, RQ_PSN + 2)]);
        let gap = Some(Syndrome::Nak(NakCode::PsnSequenceError));
        assert_eq!((ahead[0].psn, ahead[0].syndrome), (RQ_PSN + 1, gap));
        assert_eq!((puppet.state(), puppet.events()), (QpState::Rts, vec![]));
    }
}

/// RC-57, RC-61.
#[test]
fn every_response_that_nobody_asked_for_is_dropped() {
    for opcode in (0..0x20).filter(|opcode| is_response(*opcode)) {
        let mut puppet = puppet();
        let say = Say { opcode, ..response(code::READ_RESPONSE_ONLY, SQ_PSN, vec![1; MTU]) };
        let say = match opcode {
            code::READ_RESPONSE_MIDDLE => Say { aeth: None, ..say },
            code::ACKNOWLEDGE => Say { payload: vec![], ..say },
            code::ATOMIC_ACKNOWLEDGE => Say { payload: vec![0; 8], ..say },
            _ => say,
        };
        let stale = puppet.node.stack.counters().drop_stale_response;
        assert!(puppet.say(&[say]).is_empty(), "opcode {opcode:#04x}");
        assert_eq!((puppet.state(), puppet.events()), (QpState::Rts, vec![]));
        assert_eq!(puppet.node.stack.counters().drop_stale_response, stale + 1);
    }
}

/// RC-56, RC-61, RC-66.
#[test]
fn every_response_to_what_was_asked_has_its_effect() {
    let done = |puppet: &Puppet, through| vec![Event::SendsCompleted { qpn: puppet.qpn, through }];
    // The answer to an atomic, of which there is none.
    let mut puppet = puppet();
    puppet.post(Operation::Write, 8);
    puppet.drain();
    let atomic = Say { payload: vec![0; 8], ..answer(SQ_PSN, Syndrome::Ack { credits: 0 }) };
    let atomic = Say { opcode: code::ATOMIC_ACKNOWLEDGE, ..atomic };
    assert!(puppet.say(&[atomic]).is_empty());
    assert_eq!((puppet.events(), puppet.node.stack.counters().drop_stale_response), (vec![], 1));
    puppet.say(&[answer(SQ_PSN, Syndrome::Ack { credits: 0 })]);
    assert_eq!(puppet.events(), done(&puppet, 0));
    // READs of one packet and of three.
    let whole: Vec<u8> = (0..600).map(|n| n as u8).collect();
    for opcodes in [
        &[code::READ_RESPONSE_ONLY][..],
        &[code::READ_RESPONSE_FIRST, code::READ_RESPONSE_MIDDLE, code::READ_RESPONSE_LAST],
    ] {
        let mut puppet = self::puppet();
        let bytes = if opcodes.len() == 1 { &whole[..44] } else { &whole[..] };
        let number = puppet.post(Operation::Read, bytes.len() as u32);
        puppet.drain();
        for (n, (opcode, part)) in opcodes.iter().zip(bytes.chunks(MTU)).enumerate() {
            assert_eq!(puppet.events(), []);
            puppet.say(&[response(*opcode, SQ_PSN + n as u32, part.to_vec())]);
        }
        assert_eq!(puppet.events(), done(&puppet, number));
        match &puppet.node.memory.messages[&(puppet.qpn.value(), number)] {
            crate::memory::Local::Buffer(got) => assert_eq!(got, bytes),
            other => panic!("{other:?}"),
        }
    }
}

/// RC-6, RC-96.
#[test]
fn packets_of_other_services_are_dropped_in_silence() {
    for opcode in 0x20..=u8::MAX {
        let mut puppet = puppet();
        let before = *puppet.node.stack.counters();
        assert!(puppet.say(&[request(opcode, RQ_PSN, vec![LAST; 64])]).is_empty());
        assert_eq!((puppet.state(), puppet.events()), (QpState::Rts, vec![]), "{opcode:#04x}");
        let counters = puppet.node.stack.counters();
        let counted = [
            counters.drop_malformed - before.drop_malformed,
            counters.drop_bad_opcode - before.drop_bad_opcode,
            counters.rp_cnp_ignored - before.rp_cnp_ignored,
        ];
        let expected = match opcode {
            0x20..=0x2b | code::UD_SEND_ONLY | code::UD_SEND_ONLY_IMM => [0, 1, 0],
            code::CNP => [0, 0, 1],
            // Also the reserved ones: they are looked at as those of RC.
            0xa0..=0xbf => [0, 1, 0],
            _ => [1, 0, 0],
        };
        assert_eq!(counted, expected, "{opcode:#04x}");
        // The next request is accepted as usual.
        assert_eq!(puppet.say(&[packet(code::WRITE_ONLY, RQ_PSN)]).len(), 1);
    }
}
